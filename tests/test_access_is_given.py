"""Whoever opens a file, runs code or sends a request for a config was given its `Access`: a walk over the code.

Two rules. Calls of the doors (`open_regular`, `Scripts`, `build_provider`, ...) name an access. And what goes round
them, the system's own ways to open, list, start, import, evaluate and connect, stands only in modules that are named
below, each with the reason why it is no way out of a config.
"""

import ast
from collections.abc import Iterator

import pytest
from support.own_code import module_texts, nodes_of

DOORS = {
    "open_regular": 1,
    "read_text": 1,
    "read_document": 1,
    "read_with_dialect": 1,
    "hash_file": 1,
    "read_script": 1,
    "find_files": 2,
    "existing_files": 2,
    "leads_outside": 2,
    "missing_file": 2,
    "SourceFiles": 1,
    "csv_rows": 1,
    "sheet_rows": 2,
    "read_shape": 1,
    "read_parquet": 1,
    "read_result_texts": 1,
    "find_code": 3,
    "check_python": 2,
    "Scripts": 1,
    "LoadScripts": 1,
    "run_command": 1,
    "ask_webhook": 2,
    "ResponseCode": 2,
    "ProviderPool": 2,
    "ProviderSource": 3,
    "build_provider": 9,
    "check_provider": 9,
    "check_ready": 9,
    "read_portable_suite": 9,
    "gather_env": 9,
    "PromptfooEnv": 1,
    "EnvValues": 9,
    "Tools": 9,
    "CheckContext": 9,
    "open_suite": 9,
}
"""What opens, runs or sends for a config: how many arguments come before the access, 9 where it must be named."""

_NO_CONFIGS = {"library/definition.py: EnvValues"}
"""Calls without one: the library's arguments ask for no environment values, and there are none."""

WAYS_ROUND = {
    # files and folders
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "glob",
    "iglob",
    "rglob",
    "iterdir",
    "scandir",
    "walk",
    "listdir",
    "load_workbook",
    "PdfReader",
    "ZipFile",
    # processes
    "Popen",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "system",
    "popen",
    "execv",
    "execve",
    "posix_spawn",
    # code
    "import_module",
    "exec",
    "eval",
    "compile",
    "__import__",
    "exec_module",
    "run_path",
    # connections and databases
    "create_connection",
    "create_server",
    "open_connection",
    "urlopen",
    "Context",
    "connect",
    # bytes of files, and the C library
    "copy",
    "copyfile",
    "copytree",
    "memmap",
    "CDLL",
    # our own, behind the doors
    "Transport",
    "HttpClient",
    "call_javascript_now",
    "JavaScriptEngine",
    "PythonPool",
    "PythonProcess",
    "load_module",
}

_OF_ONE_MODULE = {"walk": "os", "copy": "shutil", "compile": ""}
"""Names that are common: they count as functions of this module only."""

ALLOWED: dict[str, str] = {
    "__init__.py": "imports geval's own library, by fixed names",
    "version.py": "reads where geval itself was installed from",
    "source/files.py": "the door itself: what it lists was asked of the access before, what it finds after",
    "source/access.py": "the door itself: it looks at the access before and after it opens",
    "extras/programs/scripting/javascript.py": "its callers, scripts and JavaScript providers, ask it",
    "extras/programs/scripting/javascript_worker.py": "runs in the process of the code itself",
    "extras/programs/scripting/processes.py": "Python processes, whose callers ask the access",
    "source/command.py": "a door itself",
    "extras/programs/scripting/python_snippets.py": "runs in the process of the code itself",
    "extras/programs/scripting/python_worker.py": "runs in the process of the code itself",
    "extras/programs/scripting/scripts.py": "the door itself",
    "extras/tools/functions.py": "runs in the process of the code itself",
    "extras/trust/anchors.py": "a file of the state folder, of its own name",
    "extras/promptfoo/js_values.py": "makes a context of decimal numbers",
    "store/home.py": "the folder of local models; geval's own folder, and folders that it made itself",
    "extras/pull_requests/hosts.py": "talks to the host that CI names, with CI's own token; no config has a say",
    "extras/aws/batches.py": "made by a provider that `build_provider` built, which asks the access first",
    "extras/local/models.py": "fetches known models into its folder; for other files providers/trust.py asks",
    "extras/local/llama_server.py": "a model's file, which providers/trust.py has asked of the access",
    "extras/remote.py": "fetches for `suite/test_files.py`, which has asked the access; own copies",
    "providers/network/transport.py": "sends what a provider or webhook asks, which were asked of the access",
    "providers/network/client.py": "connects for what providers ask, and imports libraries by their fixed names",
    "providers/prices.py": "imports a library by its fixed name",
    "extras/programs/providers/exec.py": "built by `build_provider`, which asks the access first",
    "extras/programs/providers/javascript.py": "built by `build_provider`, which asks the access first",
    "extras/programs/providers/python.py": "built by `build_provider`, which asks the access first",
    "providers/registry.py": "imports modules of its own table; `build_provider` asks the access first",
    "providers/wire/endpoint_provider.py": "built by `build_provider`, which asks the access first",
    "extras/http_provider/provider.py": "built by `build_provider`, which asks the access first",
    "extras/programs/providers/http_code.py": "built by `build_provider`, which asks the access first",
    "store/locks.py": "geval's own folder",
    "store/database.py": "geval's own databases",
    "extras/run_pages.py": "geval's own databases",
    "store/runs.py": "geval's own databases",
    "store/state.py": "geval's own databases",
    "judge/prompt.py": "reads geval's own prompts out of its package",
    "extras/programs/webhook.py": "the door itself",
    "plugins.py": "imports modules of its own table",
    "assertions/registry.py": "imports modules of its own table",
    "extras/sql/assertion.py": "imports its own parser by a fixed name",
    "extras/text_metrics.py": "imports libraries by their fixed names",
    "suite/tables.py": "takes bytes that came through the door",
    "extras/xlsx.py": "takes bytes that came through the door",
    "report/csv_file.py": "writes the files that the user named",
    "extras/html/environment.py": "reads the look of pages and reports out of the package",
    "report/report.py": "writes the files that the user named",
    "report/safe_file.py": "writes the files that the user named",
    "extras/programs/loading.py": "the door itself",
    "extras/workers/ray_cluster.py": "asks whether the cluster that the user named is there",
    "extras/workers/executors.py": "connects the processes of one run on this machine, which know its key",
    "extras/trust/__init__.py": "imports geval's own library, by fixed names",
    "library/evaluation.py": "connects a judge to a client that the program itself made",
    "extras/web/": "the server's own pages, and configs by their names in the served folder",
    "cli/app.py": "imports modules of its own table",
    "cli/untrusted.py": "lists the state folder that the user named",
    "cli/landlock.py": "takes rights away, through the C library",
    "cli/streams.py": "the standard streams",
    "cli/watch.py": "looks at times and sizes of the files in the folder of the user's config",
}
"""Modules that use the system's own ways, by rooms, each with the reason why it is no way out of a config.

Those that read what a config names have looked at its access before; the others take no names from configs at all.
"""


def name_of(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def calls(source: str) -> Iterator[ast.Call]:
    return (node for node in nodes_of(source) if isinstance(node, ast.Call))


def closed_doors(where: str, source: str) -> list[str]:
    """Calls of doors to which no access is given. Methods of other objects may have the same names."""
    found = []
    for call in calls(source):
        name = name_of(call)
        if name not in DOORS or isinstance(call.func, ast.Attribute) or f"{where}: {name}" in _NO_CONFIGS:
            continue
        has_access = len(call.args) > DOORS[name] or any(
            word.arg in ("access", None) for word in call.keywords
        )
        if not has_access and not any(isinstance(item, ast.Starred) for item in call.args):
            found.append(f"{where}:{call.lineno} {name}")
    return found


def ways_round(where: str, source: str) -> list[str]:
    """What opens, lists, starts, imports, evaluates or connects by itself, in a module that may not.

    Writing in a module that is not in `WRITERS` is left to the test of those: it is one mistake.
    """
    if any(where == name or (name.endswith("/") and where.startswith(name)) for name in ALLOWED):
        return []
    doors = {"read_text"}  # of `source_file`, a function; of a path, a method
    return [
        f"{where}:{call.lineno} {name_of(call)}"
        for call in calls(source)
        if name_of(call) in WAYS_ROUND and not (name_of(call) in doors and isinstance(call.func, ast.Name))
        if not _is_harmless(call) and (where in WRITERS or not writes(call))
    ]


def _is_harmless(call: ast.Call) -> bool:
    """`RunStore.open(...)`, `ast.walk(tree)`, `sys.stdout`: a method of something that is no path and no system."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = getattr(owner, "id", "") or getattr(owner, "attr", "")
    if name_of(call) in _OF_ONE_MODULE:
        return name != _OF_ONE_MODULE[name_of(call)]
    return name in {
        "ast",
        "RunStore",
        "ResponseCache",
        "re",
        "regex",
        "expression",
        "_database",
        "database",
        "kind",
    }


WRITERS = {
    "report/safe_file.py": "the door itself",
    "cli/configs.py": "a starter, opened by `open_in_place`",
    "extras/request_log.py": "opened by `open_in_place`",
    "report/json_file.py": "opened by `open_in_place`",
    "extras/web/editor/routes.py": "opened by `open_in_place`",
    "cli/streams.py": "the null device",
    "extras/trust/anchors.py": "the state folder",
    "cli/untrusted.py": "folders of a random name; and the user's own state folder",
    "cli/landlock.py": "opens nothing but names",
    "extras/batches/driver.py": "a file of a random name in the state folder",
    "store/home.py": "the state folder, no stranger's: `KernelSandbox.state_folder`; a random folder; that of models",
    "store/locks.py": "empty files in the state folder or beside a cache; no link is followed, nothing is written",
    "store/database.py": "the state folder; a folder of a random name",
    "source/access.py": "opens for reading",
    "extras/programs/scripting/python_worker.py": "the null device, and pipes; a file that its parent made",
    "extras/local/models.py": "the folder of local models",
    "extras/remote.py": "copies of a random name in the state folder",
}
"""Modules that open files for writing, make or rename them: what keeps a planted link from being followed."""

_WRITING = {
    *(
        "write_text",
        "write_bytes",
        "mkdir",
        "touch",
        "symlink_to",
        "hardlink_to",
        "fdopen",
        "rename",
        "replace",
    ),
    *("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "makedirs", "link"),
}


def writes(call: ast.Call) -> bool:
    """Whether a call may make or change a file."""
    name, owner = name_of(call), getattr(call.func, "value", None)
    if name == "open":
        is_system = getattr(owner, "id", "") == "os"
        words = [
            item
            for item in (*call.args, *(word.value for word in call.keywords))
            if isinstance(item, ast.Constant)
        ]
        return is_system or any(
            isinstance(word.value, str) and set(word.value) & set("wxa+") and len(word.value) < 4
            for word in words
        )
    if name in {"replace", "link"}:
        return name == "replace" and (
            getattr(owner, "id", "") == "os" or (len(call.args) == 1 and not call.keywords)
        )
    return name in _WRITING


MODULES = module_texts()


def test_files_are_written_through_one_door() -> None:
    found = {where for where, source in MODULES.items() if any(map(writes, calls(source)))}
    assert found == set(WRITERS), "write through SafeFile, or name the module in WRITERS"


def test_every_door_is_given_an_access() -> None:
    closed = [line for where, source in MODULES.items() for line in closed_doors(where, source)]
    assert closed == [], "pass these calls the Access of the config"


def test_nothing_goes_round_the_doors() -> None:
    ways = [line for where, source in MODULES.items() for line in ways_round(where, source)]
    assert ways == [], "use a door of DOORS, or name the module in ALLOWED with the reason"


def test_what_is_allowed_is_there_and_needs_it() -> None:
    stale = [
        name
        for name in ALLOWED
        if not name.endswith("/")
        and not any(name_of(call) in WAYS_ROUND for call in calls(MODULES.get(name, "")))
    ]
    assert stale == []


@pytest.mark.parametrize(
    "line",
    [
        "open_regular(path)",
        "Scripts(folder)",
        "build_provider(spec, env={}, base_dir=folder)",
        "find_files(name, folder)",
    ],
)
def test_a_door_without_an_access_is_found(line: str) -> None:
    assert closed_doors("engine/case.py", line)
    assert not closed_doors("engine/case.py", line[:-1] + ", access=access)")


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        "path.open()",
        "path.read_text()",
        "Path(name).read_bytes()",
        "glob.glob(name)",
        "folder.iterdir()",
        "os.walk(folder)",
        "subprocess.Popen([name])",
        "asyncio.create_subprocess_exec(name)",
        "import_module(name)",
        "eval(text)",
        "exec(text)",
        "sqlite3.connect(path)",
        "Transport()",
        "JavaScriptEngine()",
    ],
)
def test_a_way_round_is_found(line: str) -> None:
    assert ways_round("engine/case.py", line)


def test_no_module_holds_the_access_of_all() -> None:
    """It is an argument: nothing says it for a whole thread, task or process."""
    rooms = ("source/", "specs/", "suite/", "runs/", "providers/", "extras/programs/scripting/")
    assert [
        where for where, source in MODULES.items() if where.startswith(rooms) and "ContextVar" in source
    ] == []

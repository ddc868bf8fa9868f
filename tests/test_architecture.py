"""The rules that hold the house up: rooms import downwards only, and a few things are never written."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.own_code import PACKAGE, module_texts, nodes_of

from geval_cli.specs.dialect import DEFAULT_RULES, PROMPTFOO_RULES, RULES, Dialect, DialectRules

ROOMS = (
    {
        "version",
        "errors",  # exceptions, problems with their place, exit codes
        "patterns",  # regular expressions, compiled at their first use
        "json_codec",  # fast JSON text
        "records",  # what is asked, answered and found
        "events",  # what a run tells while it runs
        "numbers",  # figures in words
        "metrics",  # sums of scores by name
        "plugins",  # what stands beside the core: extras, installed packages
        "statistics",  # intervals and quantiles
    },
    {"source"},  # documents with positions, files, secrets, access
    {"specs"},  # a config's parts as models
    {"templating"},  # Jinja2 in a sandbox
    {"providers"},  # from a request to an answer
    {"store"},  # runs, results and answers in SQLite
    {"gateway"},  # layers around every model call
    {"judge"},  # G-Eval: prompts, replies, ratings
    {"assertions"},  # one class a type
    {"suite"},  # from a config file to the typed suite
    {"engine"},  # a run in memory
    {"report"},  # tables and files
    {"runs"},  # use cases, and where the parts are put together
    {"library"},  # geval for Python programs
    {"cli"},  # the command line, which starts everything else
)
"""Lowest first. A module imports its own room and lower ones, those of the lowest floor each other too.

The package's `__init__` may import anything. docs/internals/architecture.md shows the same list. Beside these are the
rooms of `extras/`: they may import any of them, and the core, which is all but the last two, imports none of them.
"""

TIES_OF_EXTRAS: dict[str, set[str]] = {
    "aws": {"batches", "credentials"},
    "clouds": {"credentials"},
    "compare": {"run_pages"},
    "comparisons": {"graded"},
    "conversations": {"graded", "traces", "trust"},
    "embeddings": {"graded"},
    "generation": {"plan", "traces"},
    "history": {"compare", "run_pages"},
    "html": {"compare", "run_pages"},
    "json_schema": {"decision_trees", "tools"},
    "judge_again": {"results_files", "run_pages"},
    "juries": {"graded"},
    "local": {"batches", "openai_apis"},
    "mcp": {"compare", "evidence", "plan", "run_pages", "trust"},
    "plan": {"comparisons", "decision_trees", "rag"},
    "programs": {"export", "http_provider"},
    "promptfoo": {"programs", "results_files", "xlsx"},
    "pull_requests": {"compare", "evidence"},
    "rag": {"graded"},
    "stopping": {"compare", "trust"},
    "tools": {"conversations", "programs"},
    "trust": {"compare", "export", "graded", "html", "juries", "plan", "run_pages"},
    "web": {"compare", "history", "html", "json_schema", "run_pages", "starter", "trust"},
    "workers": {"lock", "plan"},
}
"""The extras that build on another extra."""

THIRD_PARTY_HOMES = {
    "typer": {
        "cli",
        "extras.batches",
        "extras.generation",
        "extras.local",
        "extras.pull_requests",
        "extras.mcp",
        "extras.conversations",
        "extras.trust",
        "extras.web",
    },
    "rich": {
        "cli",
        "report",
        "extras.batches",
        "extras.compare",
        "extras.evidence",
        "extras.generation",
        "extras.history",
        "extras.html",
        "extras.local",
        "extras.mcp",
        "extras.plan",
        "extras.request_log",
        "extras.trust",
    },
    "aiohttp": {"providers", "extras.remote"},
    "truststore": {"providers"},
    "python_socks": {"providers"},
    "openai": {"extras.batches", "extras.programs"},
    "genai_prices": {"providers"},
    "yaml": {"source", "suite"},
    "pydantic": {
        "specs",
        "assertions",
        "suite",
        "extras.answers",
        "extras.classifiers",
        "extras.comparisons",
        "extras.conversations",
        "extras.decision_trees",
        "extras.embeddings",
        "extras.graded",
        "extras.markup",
        "extras.programs",
        "extras.rag",
        "extras.sql",
        "extras.text_metrics",
        "extras.tools",
        "extras.traces",
        "extras.trust",
        "extras.web",
        "extras.mcp",
    },
    "mcp": {"extras.mcp"},
    "botocore": {"extras.aws"},
    "opentelemetry": {"extras.traces"},
    "fastapi": {"extras.web"},
    "starlette": {"extras.web"},
    "uvicorn": {"extras.web"},
    "jinja2": {"templating", "extras.html", "extras.promptfoo", "extras.web"},
    "jsonschema": {"assertions", "suite"},
    "markdown_it": {"extras.html"},
    "sqlite3": {"store", "extras.batches", "extras.run_pages"},
    "sqlglot": {"extras.sql"},
    "rapidfuzz": {"extras.text_metrics"},
    "pyarrow": {"extras.parquet"},
    "fsspec": {"extras.remote"},
}
"""The rooms that may import a library; one that is not named here may stand anywhere."""

HIDDEN_IMPORTS_ALLOWED = {"cli", "library", "extras.mcp", "extras.pytest_plugin", "__init__"}
"""Rooms that import own modules inside functions, for start-up time; registries and commands anywhere may too."""


MOST_NAMELESS_ARGUMENTS = 6


def room_named(parts: Sequence[str]) -> str:
    return ".".join(parts[:2]) if parts[0] == "extras" and len(parts) > 1 else parts[0]


def level_of(room: str) -> int:
    return next(level for level, rooms in enumerate(ROOMS) if room in rooms)


def own_imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, room) of every import from geval_cli."""
    for node in nodes_of(source):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "geval_cli" and len(parts) > 1:
                yield node.lineno, room_named(parts[1:])


def upward_imports(room: str, source: str) -> list[str]:
    if room in {"__init__", "__main__"} or room.startswith("extras"):
        return []
    level = level_of(room)
    known = set().union(*ROOMS)
    return [
        f"line {line}: {room} imports {other}"
        for line, other in own_imports(source)
        if other in known and other != room and level_of(other) >= level and other not in ROOMS[0]
    ]


def extras_imported(room: str, source: str) -> set[str]:
    return {
        other.removeprefix("extras.")
        for _, other in own_imports(source)
        if other.startswith("extras.") and other not in {room, "extras.__init__"}
    }


def hidden_imports(source: str) -> list[str]:
    imports = list(own_imports(source))
    return [
        f"line {line}: {function.name} imports {other}"
        for function in nodes_of(source)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for line, other in imports
        if function.lineno <= line <= (function.end_lineno or 0)
    ]


def unused_functions(source: str) -> list[str]:
    """Private functions and classes of a module that it names nowhere outside of themselves."""
    nodes = list(nodes_of(source))
    own = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.col_offset == 0
        and node.name.startswith("_")
        and not node.name.startswith("__")  # which Python calls
        and not node.decorator_list  # which may register it
    ]
    named = [(node.id, node.lineno) for node in nodes if isinstance(node, ast.Name)]
    # In quotes, too: annotations of what is imported for types alone.
    named += [
        (word, node.lineno)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in re.findall(r"\b_\w+", node.value)
    ]
    return [
        f"line {one.lineno}: {one.name}"
        for one in own
        if not any(
            name == one.name and not one.lineno <= line <= (one.end_lineno or 0) for name, line in named
        )
    ]


def third_party_strays(room: str, source: str) -> list[str]:
    found = []
    for node in nodes_of(source):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            homes = THIRD_PARTY_HOMES.get(name.split(".")[0])
            if homes is not None and room not in homes:
                found.append(f"line {node.lineno}: {name} is not at home in {room}")
    return found


def prints(source: str) -> list[str]:
    return [
        f"line {node.lineno}"
        for node in nodes_of(source)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def nameless_arguments(source: str) -> list[str]:
    """Records that are made of more than six values in a row: nobody sees which is which."""
    return [
        f"line {node.lineno}: {name} gets {len(node.args)} values without a name"
        for node in nodes_of(source)
        if isinstance(node, ast.Call) and len(node.args) > MOST_NAMELESS_ARGUMENTS
        for name in [ast.unparse(node.func).rpartition(".")[2]]
        if name[0].isupper()
    ]


def wide_excepts(source: str) -> list[str]:
    """`except:` and `except Exception/BaseException` that do not raise again."""
    found = []
    for node in nodes_of(source):
        if not isinstance(node, ast.ExceptHandler):
            continue
        is_wide = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
        )
        reraises = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
        if is_wide and not reraises:
            found.append(f"line {node.lineno}")
    return found


def imports_for_types(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which modules each module imports when it is loaded, or for types alone; imports in functions do not count."""
    return {
        name: {
            other
            for node in _at_module_level(nodes_of(source)[0].body)
            for other in _imported(node)
            if other in sources and other != name
        }
        for name, source in sources.items()
    }


def _at_module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _at_module_level([*node.body, *node.orelse])


def _imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def circle_among(imports: dict[str, set[str]]) -> list[str]:
    """The modules that are on a circle of imports, or between two; none when all can be put in an order."""
    left = {name: set(others) for name, others in imports.items()}
    while done := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in done}
    wanted = {other for others in left.values() for other in others}
    while unwanted := left.keys() - wanted:
        left = {name: others for name, others in left.items() if name not in unwanted}
        wanted = {other for others in left.values() for other in others}
    return sorted(left)


DIALECT_HOMES = (
    "specs/dialect.py",
    "specs/promptfoo.py",
    "suite/load.py",
    "extras/promptfoo/",
    "cli/arguments.py",
)
"""Where dialects may be told apart: the records, what only promptfoo's reader makes, the readers, and `--dialect`."""

_RECORDS = {"DEFAULT_RULES", "PROMPTFOO_RULES"}
_ASKING_NAME = re.compile(r"is_(of_)?(promptfoo|geval|dialect)\w*")
_DIALECT_NAMES = set(RULES)


def dialect_questions(source: str) -> list[str]:
    """Places where code asks which dialect it is in, and not for a flag of its rules."""
    nodes = nodes_of(source)
    written = {id(part) for node in nodes for part in _written_out(node)}
    found = {node.lineno for node in nodes if isinstance(node, ast.expr | ast.stmt) and _asks(node, written)}
    return [f"line {line}" for line in sorted(found)]


def _written_out(node: ast.AST) -> list[ast.AST]:
    """What becomes text right here, in `str(...)` or an f-string: names of dialects are for people and for keys."""
    if isinstance(node, ast.FormattedValue):
        return [node.value]
    is_text = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str"
    return list(node.args) if is_text else []


def _asks(node: ast.expr | ast.stmt, written: set[int]) -> bool:
    name = _name_of(node)
    if isinstance(node, ast.ImportFrom):
        return any(
            alias.name == "PROMPTFOO_RULES" or _ASKING_NAME.fullmatch(alias.name) for alias in node.names
        )
    if isinstance(node, ast.Attribute):
        if _name_of(node.value) == "Dialect" or name == "PROMPTFOO_RULES":
            return True
        if name == "name" and _name_of(node.value).lower().endswith("rules"):
            return id(node) not in written
    if isinstance(node, ast.Subscript) and _name_of(node.value) == "Literal":
        return False  # the form of a config's key
    if isinstance(node, ast.Compare | ast.Match | ast.Subscript):
        return any(map(_is_of_dialect, ast.walk(node.subject if isinstance(node, ast.Match) else node)))
    if isinstance(node, ast.Call):
        is_lookup = isinstance(node.func, ast.Attribute) and _name_of(node.func.value) == "RULES"
        is_by_type = name in {"isinstance", "issubclass"}
        parts = [part for argument in node.args for part in ast.walk(argument)]
        names_model = any(_name_of(part) == "EnvProviderSpec" for part in parts)
        return (is_lookup and any(map(_is_of_dialect, parts))) or (is_by_type and names_model)
    return bool(_ASKING_NAME.fullmatch(name)) or name == "PROMPTFOO_RULES"


def _is_of_dialect(node: ast.AST) -> bool:
    """Return whether it is a dialect: its record, its name, or the attribute that holds one."""
    is_word = isinstance(node, ast.Constant) and node.value in _DIALECT_NAMES
    is_held = isinstance(node, ast.Attribute) and node.attr == "dialect"
    return is_word or is_held or _name_of(node) in _RECORDS


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _name_of(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    return node.id if isinstance(node, ast.Name) else ""


def room_of(path: Path) -> str:
    """The folder or module at the top of the package; of an extra, `extras.NAME`."""
    return room_named(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {PACKAGE / name: text for name, text in module_texts().items()}
BOUNDARIES = {
    "assertions/patterns.py",  # raises again, in another thread
    "engine/case.py",
    "engine/judge_output.py",
    "cli/main.py",
    "plugins.py",  # what an installed package's own code raises
    "report/report.py",  # the same: its results file
    "store/database.py",
    "extras/packages.py",  # the same
    "extras/programs/providers/openai_client.py",
    "extras/programs/providers/function.py",
    "extras/programs/scripting/python_worker.py",
    "extras/tools/functions.py",
    "extras/workers/ray_cluster.py",  # a Ray that cannot start raises a plain Exception
}
"""The modules that may catch every error.

There it becomes a value, an exit code, a refused write or, where the user's own code raised it, a provider's error.
"""


def broken_in(rule: Callable[[Path, str], list[str]]) -> dict[str, list[str]]:
    """What a rule finds, by module; empty when all of them keep it."""
    found = {path: rule(path, text) for path, text in MODULES.items()}
    return {path.relative_to(PACKAGE).as_posix(): breaks for path, breaks in found.items() if breaks}


def test_rooms_import_downwards_only() -> None:
    assert broken_in(lambda path, source: upward_imports(room_of(path), source)) == {}


def test_the_core_imports_no_extra() -> None:
    outside = {"__init__", "__main__", "library", "cli"}
    found = {
        path.relative_to(PACKAGE).as_posix(): extras
        for path, source in MODULES.items()
        if room_of(path) not in outside and not room_of(path).startswith("extras")
        if (extras := extras_imported(room_of(path), source))
    }
    assert found == {}


def test_extras_stand_by_themselves() -> None:
    found: dict[str, set[str]] = {}
    for path, source in MODULES.items():
        room = room_of(path)
        if room.startswith("extras") and (others := extras_imported(room, source)):
            found.setdefault(room.removeprefix("extras."), set()).update(others)
    names = found.keys() | TIES_OF_EXTRAS.keys()
    imported = {name: found.get(name) for name in names if found.get(name) != TIES_OF_EXTRAS.get(name)}
    assert imported == {}, "TIES_OF_EXTRAS has to name what these extras import of others"


def test_third_party_libraries_stay_at_home() -> None:
    strays = broken_in(lambda path, source: third_party_strays(room_of(path), source))
    assert strays == {}, "give these modules a home in THIRD_PARTY_HOMES, or do without the library"


def test_own_modules_are_imported_at_the_top() -> None:
    def rule(path: Path, source: str) -> list[str]:
        is_lazy = room_of(path) in HIDDEN_IMPORTS_ALLOWED or path.name in {
            "registry.py",
            "command.py",
            "cli.py",
        }
        is_lazy = is_lazy or path.parent.name == "commands"
        return [] if is_lazy else hidden_imports(source)

    assert broken_in(rule) == {}


def test_every_private_function_is_used_in_its_module() -> None:
    assert broken_in(lambda path, source: unused_functions(source)) == {}


def test_only_the_command_line_prints() -> None:
    assert broken_in(lambda path, source: [] if room_of(path) == "cli" else prints(source)) == {}


def test_records_of_many_values_are_made_by_name() -> None:
    assert broken_in(lambda path, source: nameless_arguments(source)) == {}


def test_errors_are_caught_by_name_except_at_the_boundaries() -> None:
    def rule(path: Path, source: str) -> list[str]:
        return [] if path.relative_to(PACKAGE).as_posix() in BOUNDARIES else wide_excepts(source)

    assert broken_in(rule) == {}


def test_nobody_asks_which_dialect_it_is() -> None:
    def rule(path: Path, source: str) -> list[str]:
        is_home = path.relative_to(PACKAGE).as_posix().startswith(DIALECT_HOMES)
        return [] if is_home else dialect_questions(source)

    assert broken_in(rule) == {}


def test_each_dialect_has_one_record_whose_flags_are_asked_for_and_make_a_difference() -> None:
    assert {rules.name for rules in RULES.values()} == set(Dialect)
    flags = [flag for flag in DialectRules.__struct_fields__ if flag != "name"]
    alike = [flag for flag in flags if getattr(DEFAULT_RULES, flag) == getattr(PROMPTFOO_RULES, flag)]
    asked = {
        node.attr
        for text in MODULES.values()
        for node in nodes_of(text)
        if isinstance(node, ast.Attribute) and _name_of(node.value) in {"rules", "DEFAULT_RULES"}
    }
    assert (alike, [flag for flag in flags if flag not in asked]) == ([], [])


def test_no_modules_need_each_other_not_even_for_their_types() -> None:
    sources = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): text
        for path, text in MODULES.items()
    }
    sources = {name.removesuffix(".__init__"): source for name, source in sources.items()}
    assert circle_among(imports_for_types(sources)) == []


def test_every_module_belongs_to_a_room() -> None:
    known = set().union(*ROOMS) | {"__init__", "__main__"}
    assert {room for path in MODULES if not (room := room_of(path)).startswith("extras")} <= known


class TestThatTheRulesCanFail:
    def test_planted_upward_import(self) -> None:
        planted = "from geval_cli.engine.plan import Plan\n"
        assert upward_imports("judge", planted) == ["line 1: judge imports engine"]
        assert upward_imports("runs", planted) == []

    def test_planted_sideways_import_between_fronts(self) -> None:
        assert upward_imports("library", "import geval_cli.cli.app\n") == ["line 1: library imports cli"]

    def test_planted_import_of_an_extra(self) -> None:
        planted = "def load():\n    from geval_cli.extras.trust.labels import file\n"
        assert extras_imported("runs", planted) == {"trust"}
        assert extras_imported("extras.trust", planted) == set()

    def test_planted_hidden_import(self) -> None:
        planted = "def load():\n    from geval_cli.store import runs\n"
        assert hidden_imports(planted) == ["line 2: load imports store"]

    def test_planted_function_that_nobody_calls(self) -> None:
        planted = "def _left():\n    return _left()\n\n\ndef _used():\n    return 1\n\n\nTWO = _used() + 1\n"
        assert unused_functions(planted) == ["line 1: _left"]

    def test_planted_stray_library(self) -> None:
        assert third_party_strays("engine", "import sqlite3\n") == [
            "line 1: sqlite3 is not at home in engine"
        ]

    def test_planted_circle_of_types(self) -> None:
        planted = {
            "a": "if TYPE_CHECKING:\n    from b import B\n",
            "b": "from c import C\n",
            "c": "import a\nimport below\n",
            "above": "import a\n",
            "below": "def load():\n    import a\n",
        }
        assert circle_among(imports_for_types(planted)) == ["a", "b", "c"]
        assert circle_among(imports_for_types({**planted, "c": "import below\n"})) == []

    def test_planted_row_of_values(self) -> None:
        assert nameless_arguments("a.Row(1, 2, 3, 4, 5, 6)\nlisted(1, 2, 3, 4, 5, 6, 7)\n") == []
        assert nameless_arguments("Row(1, 2, 3, 4, 5, 6, 7)\n") == [
            "line 1: Row gets 7 values without a name"
        ]

    def test_planted_print_and_wide_except(self) -> None:
        assert prints("print('x')\n") == ["line 1"]
        assert wide_excepts("try:\n    pass\nexcept Exception:\n    pass\n") == ["line 3"]
        assert wide_excepts("try:\n    pass\nexcept Exception:\n    raise\n") == []

    @pytest.mark.parametrize(
        "planted",
        [
            "is_strict = suite.rules.name is Dialect.GEVAL",
            "if rules.name == 'promptfoo': pass",
            "if str(rules.name) == 'promptfoo': pass",
            "if suite.rules.name: pass",
            "if request.dialect is None: pass",
            "if suite.rules is DEFAULT_RULES: pass",
            "from geval_cli.specs.dialect import PROMPTFOO_RULES",
            "templates = templates_of(dialect.PROMPTFOO_RULES, {})",
            "templates = templates_of(RULES['promptfoo'], {})",
            "templates = templates_of(RULES.get('promptfoo'), {})",
            "is_promptfoo = True",
            "def is_of_promptfoo(): pass",
            "if source.is_promptfoo: pass",
            "if isinstance(spec, EnvProviderSpec): pass",
            "if options.get('--dialect') in ('geval', None): pass",
            "match suite.rules.name:\n    case other: pass",
        ],
    )
    def test_planted_question_for_the_dialect(self, planted: str) -> None:
        assert dialect_questions(planted) == ["line 1"]

    @pytest.mark.parametrize(
        "planted",
        [
            "if suite.rules.nested_variables: pass",
            "if rules.patterns == 'python': pass",
            "rules: DialectRules = DEFAULT_RULES",
            "params['templates'] = str(settings.templates.rules.name)",
            "message = f'{rules.name} is not known here'",
            "request = RunRequest(dialect=request.dialect)",
            "rules = RULES.get(written)",
        ],
    )
    def test_a_flag_and_a_name_that_is_shown_are_no_questions(self, planted: str) -> None:
        assert dialect_questions(planted) == []

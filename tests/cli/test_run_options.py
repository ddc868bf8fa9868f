"""An option of a run is declared once: everything that takes, shows or records options reads the declaration."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
import typer
from support.geval_command import clean_environment, run_geval
from support.own_code import module_texts
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from geval_cli.cli.app import app
from geval_cli.cli.arguments import repeated_options
from geval_cli.cli.options import GroupedCommand, declared
from geval_cli.errors import UsageError
from geval_cli.extras.web.api.runs import start_request
from geval_cli.library.run import RunKeywords
from geval_cli.runs.options import InApi, Option, OptionGroup, RunOptions, declared_options, default_of
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import deciding_options

DECLARED = list(declared_options(RunOptions))
BY_FLAG = {option.name: field.name for field, option in DECLARED}


@dataclass(frozen=True, kw_only=True)
class LargerOptions(RunOptions):
    """The options, and one more."""

    temperature: Annotated[
        int | None,
        Option(
            "-t --temperature",
            "How warm it is.",
            OptionGroup.JUDGING,
            minimum=0,
            maximum=5,
            decides_results=True,
            in_api=InApi("How warm it is, as a number.", maximum=3),
        ),
    ] = None


def run_words(record: type[Any], *words: str) -> tuple[list[Any], str]:
    """Give a command with the options of `record` some words; the records that it was called with, and its output."""
    seen: list[Any] = []
    command_app = typer.Typer(rich_markup_mode=None)

    @command_app.command(cls=GroupedCommand)
    @declared(record)
    def command(given: Any) -> None:
        seen.append(given)

    done = CliRunner().invoke(command_app, list(words), catch_exceptions=False)
    return seen, done.output


def test_a_declared_field_is_all_that_a_new_option_needs() -> None:
    [given], _ = run_words(LargerOptions, "-t", "4")
    assert given == LargerOptions(temperature=4)
    assert "Invalid value for '-t'" in run_words(LargerOptions, "--temperature", "6")[1]
    _, shown = run_words(LargerOptions, "--help")
    assert re.search(r"^Judging:\n(  .*\n)*  -t, --temperature .*How warm it is", shown, re.MULTILINE)

    model = start_request(LargerOptions)
    schema = model.model_json_schema()["properties"]["temperature"]
    assert (schema["description"], schema["default"]) == ("How warm it is, as a number.", None)
    assert schema["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 3}

    @dataclass(frozen=True)
    class LargerRequest(RunRequest, LargerOptions):
        pass

    plain, warm = LargerRequest(Path(), {}), LargerRequest(Path(), {}, temperature=0)
    earlier = deciding_options(RunRequest(Path(), {}), {})
    assert deciding_options(plain, {}) == earlier
    assert deciding_options(warm, {}) == {**earlier, "--temperature": 0}


def other_values(name: str) -> Iterator[tuple[list[str], Any]]:
    """Yield words that give an option, and what it then is."""
    field, option = next((field, option) for field, option in DECLARED if field.name == name)
    default, is_plain_text = default_of(field), str in get_args(get_args(field.type)[0])
    texts: dict[str | None, tuple[str, Any]] = {
        "FILE": ("a.json", Path("a.json")),
        "FOLDER": ("here", Path("here")),
        "HOW": ("single", "single"),
        "DIALECT": ("promptfoo", "promptfoo"),
        "SHARE": ("90%", 0.9),
        "decided": ("decided", "decided"),
        "USD": ("2.5", 2.5),
        "NAME=VALUE": ("a=b=c", ("a", "b=c")),
        "REGEX": ("^a", "^a"),
        "[METRIC=]MARGIN": ("a=0.1", "a=0.1"),
    }
    word, value = texts.get(option.syntax, ("3", "3" if is_plain_text and not option.is_text else 3))
    if name == "env_file":
        word, value = ".env", Path(".env")
    if isinstance(default, dict):
        value = {"a": "b=c"}
    elif isinstance(default, tuple):
        value = (value, value)
    for flag in option.flags.split():
        if isinstance(default, bool):
            yield [flag], not default
        else:
            yield [flag, word] * (2 if isinstance(default, tuple) else 1), value


@pytest.mark.parametrize("name", BY_FLAG.values())
def test_every_option_reaches_the_record_of_a_run(name: str) -> None:
    for words, value in other_values(name):
        [given], _ = run_words(RunOptions, *words)
        assert given == RunOptions(**{name: value})


def all_commands() -> Iterator[tuple[str, Any]]:
    """Yield every command as it is written, `geval cache stats`, with click's object."""
    group: Any = get_command(app)
    pending = [("geval", group)]
    while pending:
        name, command = pending.pop()
        yield name, command
        if isinstance(command, TyperGroup):
            names = command.list_commands(command.make_context(name, [], resilient_parsing=True))
            pending += [(f"{name} {word}", command.get_command(None, word)) for word in names]  # type: ignore[arg-type]


def test_every_summary_stands_whole_by_itself_in_help() -> None:
    summaries = {name: (command.help or "").partition("\n\n")[0] for name, command in all_commands()}
    assert len(summaries) > 30
    assert [name for name, text in summaries.items() if name != "geval" and not 0 < len(text) <= 60] == []
    shown = CliRunner().invoke(app, ["--help"]).output
    own = [text for name, text in summaries.items() if name.count(" ") == 1]
    assert [text for text in own if text not in shown] == []


def test_help_names_no_types_of_python_and_no_brackets_twice() -> None:
    for name, _ in all_commands():
        shown = CliRunner().invoke(app, [*name.split()[1:], "--help"]).output
        assert re.search(r"<\w|\[\[|x>=|<=x|INTEGER", shown) is None, name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run --repaet 3", "error: there is no option `--repaet`\n    = did you mean `--repeat`?"),
        ("--verson", "error: there is no option `--verson`\n    = did you mean `--version`?"),
        ("run --repeat 0", "error: invalid value for `--repeat`: it should be at least 1\n"),
        ("view -p 99999", "error: invalid value for `--port`: it should be at most 65535\n"),
        ("run -j x", "error: invalid value for `--max-concurrency`: it should be a whole number\n"),
        (
            "compare latest",
            ("error: missing argument 'B'\n    = `geval compare --help` lists its options and arguments"),
        ),
        (
            "models pul",
            "error: there is no command `geval models pul`\n    = did you mean `geval models pull`?",
        ),
        ("batches list", "error: there is no command `geval batches list`\n"),
        (
            "show --case",
            "error: option `--case` requires a value\n    = `geval show --help` lists its options and arguments",
        ),
        (
            "run --allow-empty=3",
            "error: option `--allow-empty` does not take a value\n    = `geval run --help`",
        ),
        (
            "models check --json=3",
            "error: option `--json` does not take a value\n    = `geval models check --help`",
        ),
        (
            "--debug import run --home",
            "error: option `--home` requires a value\n    = `geval import run --help`",
        ),
    ],
)
def test_words_that_no_command_takes_are_told_as_every_error_is(
    words: str, message: str, tmp_path: Path
) -> None:
    done = run_geval(*words.split(), cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run --scoring ", {"auto", "logprobs", "samples", "single"}),
        ("run --dialect p", {"promptfoo"}),
        ("show --by ", {"assertion", "reason"}),
        ("show late", {"latest", "latest~1"}),
        ("sho", {"show"}),
        ("run --filter-fi", {"--filter-first-n"}),
    ],
)
def test_the_shell_completes_commands_options_and_values(
    words: str, offered: set[str], tmp_path: Path
) -> None:
    env = clean_environment(
        _GEVAL_COMPLETE="complete_bash",
        COMP_WORDS=f"geval {words}",
        COMP_CWORD=str(len(words.split(" "))),
    )
    assert set(run_geval(cwd=tmp_path, env=env).stdout.split()) == offered


def test_every_option_is_in_help_once_under_its_heading() -> None:
    shown = CliRunner().invoke(app, ["run", "--help"]).output
    sections = re.split(r"^(\w+):\n", shown, flags=re.MULTILINE)
    by_heading = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert len(by_heading) == len(sections) // 2, "a heading stands twice"
    for _, option in DECLARED:
        found = [
            heading
            for heading, text in by_heading.items()
            if re.search(rf"^  (-\w, )?{option.name}\b(?!-)", text, re.M)
        ]
        assert found == ([] if option.is_hidden else [option.group]), option.name


def test_the_api_takes_the_options_that_are_marked_and_no_other() -> None:
    marked = {field.name for field, option in DECLARED if option.in_api}
    # Beside them: which config, and that no one else may be running it.
    assert marked == start_request(RunOptions).model_fields.keys() - {"config", "unless_running"}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")
    assert [name for name in marked if f"`{name}`" not in page] == [], (
        "name them in docs/reference/http-api.md"
    )


def test_every_option_is_used() -> None:
    code = "".join(text for name, text in module_texts().items() if name != "runs/options.py")
    unused = [field.name for field, _ in DECLARED if not re.search(rf"\.{field.name}\b", code)]
    assert unused == [], "nothing reads these fields of RunRequest"


def test_the_options_of_the_library_are_on_its_page_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "library.md").read_text(encoding="utf-8")
    named = page[page.index("**Options** are those of `geval run`") :].partition("\n\n")[0]
    shown = set(re.findall(r"`(\w+)`", named))
    assert shown == set(RunKeywords.__annotations__), "name them under Options in docs/reference/library.md"


@pytest.mark.parametrize("name", BY_FLAG.values())
def test_a_fingerprint_changes_with_the_options_that_decide_results_and_no_other(name: str) -> None:
    def written(**options: Any) -> Any:
        # Without a sample a seed decides nothing.
        request = RunRequest(Path(), {}, **{"filter_sample": 1, **options})
        return deciding_options(request, {}), request.variables

    option = next(option for field, option in DECLARED if field.name == name)
    [(_, value), *_] = other_values(name)
    looked_up: dict[str, Any] = {"failing": frozenset("a")} if name == "filter_failing" else {}
    changes = written(**{name: value}, **looked_up) != written()
    assert changes is option.decides_results


IDLE = {
    "label --import f.csv": ("--draw 5", "--seed 3", "--metric tone", "--scale 1,5", "--show-verdict"),
    "label --review": (
        "--draw 5",
        "--seed 3",
        "--scale 1,5",
        "--show-verdict",
        "--annotator anna",
        "--allow-unmatched",
    ),
    "label --export f.csv": ("--show-verdict", "--allow-unmatched", "--seed 3"),
    "label": ("--allow-unmatched", "--seed 3", "--json"),
    "estimate f.csv --draw 5": (
        "--json",
        "-o f.json",
        "--require true_mean>=1",
        "--method rogan-gladen",
        "--good 0.5",
        "--threshold 0.5",
        "--margin 0.1",
        "--allow-unmatched",
    ),
    "estimate f.csv --draw 5 --of a,b": ("--run a",),
    "estimate f.csv": ("--seed 3",),
    "estimate f.csv --method rogan-gladen": ("--margin 0.1", "--allow-unmatched"),
    "drift --save f.jsonl": (
        "--json",
        "-o f.json",
        "--plan",
        "--max-cost 1",
        "--max-requests 1",
        "-j 1",
        "--env-file f",
        "--grader echo",
        "--scoring single",
        "--samples 3",
    ),
    "drift f.jsonl": ("--run a", "--items 5", "--seed 3"),
    "probe f.yaml --only shuffle": ("--labels f.csv", "--run a"),
    "realism --against f.jsonl": (
        "--plan",
        "--pairs 3",
        "--show-answers",
        "--seed 3",
        "--offline",
        "--max-cost 1",
        "--max-requests 1",
        "-j 1",
        "--env-file f",
    ),
    "compare a b": ("--allow-unmatched",),
    "comment a": ("--pr 3",),
}


@pytest.mark.parametrize(("command", "idle"), [(name, option) for name in IDLE for option in IDLE[name]])
def test_an_option_that_would_do_nothing_is_refused_before_anything_is_read(
    command: str, idle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*command.split(), *idle.split()])
    assert isinstance(done.exception, UsageError), done.output
    flag = {"-o": "--output", "-j": "--max-concurrency"}.get(
        idle.split(maxsplit=1)[0], idle.split(maxsplit=1)[0]
    )
    assert done.exception.message.startswith((f"{flag} cannot be combined with ", f"{flag} needs "))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ""),
        ({"max_cost": 0.25, "outputs": (Path("r.json"),), "is_verbose": True}, " --max-cost 0.25"),
        ({"untrusted": True}, " --untrusted"),
        ({"reads_cache": False, "filter_pattern": "a b"}, " --filter-pattern 'a b' --no-cache"),
        ({"home": Path("h"), "resume_latest": True, "retry_errors": True}, ""),
        ({"variables": {"pin": "1234"}}, None),
        ({"filter_failing": "latest"}, None),
    ],
)
def test_a_resumed_run_is_told_the_options_that_it_needs(given: dict[str, Any], said: str | None) -> None:
    assert repeated_options(RunOptions(**given)) == said


READS = {
    "tests.csv": "q,assert.contains\na,a\n",
    "tests.jsonl": '{"q": "file://data/b.txt", "assert.contains": "b"}\n',
    "prompts/p.md": "hi {{ q }}",
    "data/b.txt": "b",
    "c.json": '{"prompts": ["file://prompts/*.md"], "providers": ["echo"],'
    ' "tests": ["file://tests.csv", "file://tests.jsonl"]}',
}


@pytest.mark.parametrize("option", ["-o", "--log-file"])
@pytest.mark.parametrize(
    "name", ["tests.csv", "./tests.jsonl", "prompts/../prompts/p.md", "c.json", "data/b.txt"]
)
def test_no_file_that_the_config_reads_is_overwritten(tmp_path: Path, option: str, name: str) -> None:
    """`-o tests.csv` beside `tests: file://tests.csv` cost the tests, after the run had been paid for."""
    for path, text in READS.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    if option == "-o" and name == "data/b.txt":
        name = "tests.csv"  # a .txt file cannot be written
    run = run_geval("run", "c.json", option, name, cwd=tmp_path)
    assert run.code == 2, run.stderr
    assert f"cannot write to {Path(name)}: " in run.stderr
    assert {path: (tmp_path / path).read_text(encoding="utf-8") for path in READS} == READS
    assert run_geval("run", "c.json", option, "new.jsonl", cwd=tmp_path).code == 0
    assert run_geval("run", "c.json", option, "new.jsonl", cwd=tmp_path).code == 0


@pytest.mark.parametrize("name", ["tests.csv", "./tests.jsonl", "prompts/p.md", "c.json", "link.json"])
def test_an_exported_suite_replaces_no_file_that_it_is_read_from(tmp_path: Path, name: str) -> None:
    for path, text in READS.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "link.json").symlink_to("data/b.txt")
    run = run_geval("export", "suite", "c.json", "-o", name, cwd=tmp_path)
    assert (run.code, "is also the input and would be overwritten" in run.stderr) == (2, True)
    assert {path: (tmp_path / path).read_text(encoding="utf-8") for path in READS} == READS
    assert run_geval("export", "suite", "c.json", "-o", "new.json", cwd=tmp_path).code == 0
    assert run_geval("export", "suite", "c.json", "-o", "new.json", cwd=tmp_path).code == 0


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("run", LONG),
        ("run", f"{LONG}/c.json"),
        ("validate", LONG),
        ("lock", LONG),
        ("list", "--home", LONG),
        ("run", "c.json", "--home", LONG),
        ("cache", "prune", "--home", LONG),
        ("run", "labelled.json"),
    ],
)
def test_a_file_name_that_is_too_long_is_no_bug(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "c.json").write_text('{"tests": [{"output": "a"}]}', encoding="utf-8")
    (tmp_path / "labelled.json").write_text(
        f'{{"tests": [{{"output": "a"}}], "labels": "{LONG}"}}', encoding="utf-8"
    )
    run = run_geval(*words, cwd=tmp_path)
    assert (run.code, "Traceback" in run.stderr) == (2, False)
    assert "error: the file name is too long: `" in run.stderr


def test_a_limit_larger_than_the_database_knows_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"tests": [{"output": "a"}]}', encoding="utf-8")
    assert run_geval("run", "c.json", cwd=tmp_path).code == 0
    run = run_geval("list", "--limit", "9" * 30, "--json", cwd=tmp_path)
    assert (run.code, run.stdout.count('"c.json"')) == (0, 1), run


@pytest.mark.parametrize(
    "words", [("run", ""), ("run", "c.json", ""), ("validate", ""), ("lock", ""), ("compare", "", "latest")]
)
def test_an_empty_argument_is_no_folder(tmp_path: Path, words: tuple[str, ...]) -> None:
    """`geval run "$CONFIG"` with an unset variable ran, and paid for, the config of the current folder."""
    for name in ("c.json", "gevalconfig.json"):
        (tmp_path / name).write_text('{"tests": [{"output": "a"}]}', encoding="utf-8")
    run = run_geval(*words, cwd=tmp_path)
    assert (run.code, run.stderr.splitlines()[0]) == (2, "error: an argument is empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json", "gevalconfig.json"]


@pytest.mark.parametrize(
    "held", ["prompts: a\n", '{"$schema": "./gevalconfig.schema.json", "prompts": "a"}', "q\na\n"]
)
def test_a_schema_replaces_nothing_but_a_schema(tmp_path: Path, held: str) -> None:
    (tmp_path / "gevalconfig.yaml").write_text(held, encoding="utf-8")
    (tmp_path / "empty.json").write_text("\n", encoding="utf-8")
    refused = run_geval("schema", "-o", "gevalconfig.yaml", cwd=tmp_path)
    assert (refused.code, "exists and is not a JSON Schema" in refused.stderr) == (2, True)
    assert (tmp_path / "gevalconfig.yaml").read_text(encoding="utf-8") == held
    for name in ("new.json", "new.json", "empty.json"):
        assert run_geval("schema", "-o", name, cwd=tmp_path).code == 0


def test_a_comparison_does_not_replace_the_results_that_it_compares(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"tests": [{"output": "a"}]}', encoding="utf-8")
    for name in ("a.json", "b.json"):
        assert run_geval("run", "c.json", "-o", name, cwd=tmp_path).code == 0
    held = (tmp_path / "a.json").read_bytes()
    for name in ("a.json", "./b.json"):
        run = run_geval("compare", "a.json", "b.json", "-o", name, cwd=tmp_path)
        assert (run.code, "it is one of the runs" in run.stderr) == (2, True)
    assert (tmp_path / "a.json").read_bytes() == held
    assert run_geval("compare", "a.json", "b.json", "-o", "c2.json", cwd=tmp_path).code == 0

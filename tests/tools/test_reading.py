"""Tools as a config names them: what keeps them from being called is told before anything is sent."""

import json
from pathlib import Path

import pytest
from support.geval_command import clean_environment, run_geval

CONFIG = """\
prompts: ["{{ input }}"]
providers: PROVIDER
tools: TOOLS
tests: [{ input: a, assert: [{ type: contains, value: x }] }]
"""
GOOD = 'def find(order: int = 7) -> str:\n    "Find."\n    return "x"\n'
MODEL = "openai:m"


def told(folder: Path, tools: str, *words: str, provider: str = MODEL, file: str = GOOD) -> str:
    """What `geval run` says about the tools in a config."""
    (folder / "tools.py").write_text(file, encoding="utf-8")
    config = CONFIG.replace("TOOLS", tools).replace("PROVIDER", provider)
    (folder / "c.yaml").write_text(config, encoding="utf-8")
    environ = clean_environment(OPENAI_API_KEY="key-0123456789", OPENAI_BASE_URL="http://localhost:1")
    done = run_geval("run", "c.yaml", "--no-progress", *words, cwd=folder, env=environ)
    assert done.code == 2, done.stdout + done.stderr
    assert "nothing was sent" in done.stderr
    return done.stderr


def test_a_warning_about_the_tools_of_a_test_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def add(a: int) -> int:\n    return a\n", encoding="utf-8")
    (tmp_path / "replies.yaml").write_text("- {match: '', reply: hello}\n", encoding="utf-8")
    test = {"input": "hi", "tools": "file://tools.py", "assert": [{"type": "contains", "value": "hello"}]}
    config = {"prompts": ["{{ input }}"], "providers": ["scripted:replies.yaml"], "tests": [test, test]}
    (tmp_path / "c.yaml").write_text(json.dumps(config), encoding="utf-8")

    done = run_geval("run", "c.yaml", "--no-progress", cwd=tmp_path, env=clean_environment())

    assert done.code == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert done.stderr.count("warning: `add` of tools.py has no docstring") == 2, "at the place of each test"


WRONG = """
import json
def bare(x): "d"
def named(x: "Nope"): "d"
def many(*x: int): "d"
def strange(x: json.JSONDecoder): "d"
def silent(x: int) -> None: ...
"""


def test_functions_that_cannot_be_tools_are_told_with_the_reason(tmp_path: Path) -> None:
    said = told(tmp_path, "file://tools.py", file=WRONG)
    for message in (
        "error: the parameter `x` of `bare` has no type hint",
        "error: the type hints of `named` cannot be read: name 'Nope' is not defined",
        "error: `*x: int` of `many` cannot be given by name",
        "error: a type hint of `strange` has no JSON Schema",
        "warning: `silent` of tools.py has no docstring",
    ):
        assert f"{message}" in said
        assert "c.yaml:3:8" in said


@pytest.mark.parametrize(
    ("tools", "file", "message"),
    [
        ("file://tools.py:lose", GOOD, "tools.py has no function `lose`"),
        ("file://tools.py", "x = 1\n", "tools.py has no public functions"),
        ("file://tools.py", "def f(:\n", "tools.py cannot be loaded: SyntaxError"),
        ("file://tools.py", "raise SystemExit(3)", "tools.py cannot be loaded: SystemExit: 3"),
        ("[file://tools.py, 'file://tools.py:find']", GOOD, "two tools are called `find`"),
        (
            "{functions: file://tools.py, simulate: {provider: 'openai:m', world: x}}",
            GOOD,
            "`simulate` has no tools to simulate",
        ),
        (
            "{definitions: [{name: a}], simulate: {provider: 'openai:m', world: '{{ nope }}'}}",
            GOOD,
            "nope",
        ),
        (
            "{definitions: [{name: a}], simulate: {provider: 'opnai:m', world: 'x'}}",
            GOOD,
            "unknown provider `opnai:m`",
        ),
    ],
)
def test_what_is_wrong_with_tools_is_told_at_its_place(
    tools: str, file: str, message: str, tmp_path: Path
) -> None:
    said = told(tmp_path, tools, file=file)
    assert message in said
    assert "c.yaml:3:" in said


def test_providers_that_take_no_tools_are_refused(tmp_path: Path) -> None:
    ids = ["echo", "local:smollm2", "openai:embedding:m", "python:tools.py:find", "http://localhost:1/x"]
    said = told(tmp_path, "file://tools.py", provider=str([*ids, MODEL]))
    assert [name for name in [*ids, MODEL] if f"`{name}` cannot be given `tools`" in said] == ids


def test_functions_in_the_providers_own_tools_are_refused(tmp_path: Path) -> None:
    listed = [
        "{type: function, function: {name: a}}",
        "{type: function, name: b}",
        "{functionDeclarations: [{name: c}]}",
        "{type: web_search, name: d}",
    ]
    providers = [
        f"{{ id: 'openai:{place}', config: {{ tools: [{tool}] }} }}" for place, tool in enumerate(listed)
    ]
    said = told(tmp_path, "file://tools.py", provider=f"[{', '.join(providers)}]")
    refused = [
        name for name in "abcd" if f"nothing answers the function `{name}` in the provider's own" in said
    ]
    assert refused == ["a", "b", "c"]
    assert "c.yaml:2:" in said


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--batch", "tools cannot be called with --batch"),
        ("--workers=2", "tools cannot be called with --workers"),
        ("--untrusted", "`tools` runs code, which --untrusted does not allow"),
    ],
)
def test_options_that_tools_do_not_go_with_are_refused(option: str, message: str, tmp_path: Path) -> None:
    said = told(
        tmp_path, "file://tools.py", option, file="open('ran', 'w')\n" + GOOD if "un" in option else GOOD
    )
    assert message in said
    assert "c.yaml:3:" in said
    assert not (tmp_path / "ran").exists()


def test_functions_of_a_test_take_the_place_of_those_of_the_suite(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def own(x): ...\n", encoding="utf-8")
    (tmp_path / "tools.py").write_text(GOOD, encoding="utf-8")
    config = CONFIG.replace("TOOLS", "file://tools.py").replace("PROVIDER", MODEL)
    config = config.replace("{ input: a,", "{ input: a, tools: file://own.py,")
    (tmp_path / "c.yaml").write_text(config, encoding="utf-8")
    done = run_geval("validate", "c.yaml", cwd=tmp_path, env=clean_environment())
    assert "the parameter `x` of `own` has no type hint" in done.stderr
    assert "c.yaml:4:" in done.stderr

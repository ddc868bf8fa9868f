"""What people type who know other tools: aliases run, other verbs and misplaced keys are answered with what to do."""

from pathlib import Path

import pytest
from support.geval_command import run_geval

from geval_cli.cli.app import as_typed, names_of_commands
from geval_cli.errors import ConfigError, UsageError
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest

COMMANDS = names_of_commands()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("eval", "run"),
        ("eval -c a.yaml", "run a.yaml"),
        ("eval --config a.yaml b.yaml -o x.json", "run a.yaml b.yaml -o x.json"),
        ("eval --config=a.yaml -j 2", "run a.yaml -j 2"),
        ("evaluate a.yaml", "run a.yaml"),
        ("test a.yaml", "run a.yaml"),
        ("run a.yaml", "run a.yaml"),
        ("show latest", "show latest"),
        ("cache clear", "cache clear"),
        ("view", "view"),
        ("help", "--help"),
        ("help run", "run --help"),
        ("help eval", "run --help"),
        ("help cache clear", "cache clear --help"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_aliases_are_written_out(typed: str, meant: str) -> None:
    assert as_typed(typed.split(), COMMANDS) == meant.split()


@pytest.mark.parametrize(
    ("verb", "hint"),
    [
        ("share", "results.html"),
        ("retry", "--retry-errors"),
        ("resume", "--resume"),
        ("valdate", "did you mean `geval validate`?"),
        ("evla", "did you mean `geval eval`?"),
        ("frobnicate", "--help"),
    ],
)
def test_other_verbs_are_answered_with_what_to_type(verb: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        as_typed([verb], COMMANDS)
    assert hint in caught.value.hint


def test_every_command_is_known() -> None:
    assert {
        "run",
        "validate",
        "init",
        "schema",
        "export",
        "import",
        "list",
        "show",
        "cache",
        "serve",
        "view",
    } <= set(COMMANDS)


def test_eval_runs_a_config(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("tests: [{output: hi, assert: [{type: equals, value: hi}]}]\n")
    done = run_geval("eval", "-c", "x.yaml", cwd=tmp_path)

    assert (done.code, "PASSED" in done.stdout) == (0, True)
    assert run_geval("shwo", cwd=tmp_path).code == 2


SOUND = "prompts: [hi]\nproviders: [echo]\ntests: [{assert: [{type: equals, value: hi}]}]\n"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("assert: [{type: equals, value: hi}]", "put it under `tests` or `defaultTest`"),
        ("threshold: 0.5", "put it under `tests` or `defaultTest`"),
        ("vars: {a: b}", "put it under `tests` or `defaultTest`"),
        ("metadata: {a: b}", "put it under `tests` or `defaultTest`"),
        ("rubricPrompt: x", "put it under `options` of `defaultTest`"),
        ("model: gpt-4.1", "put it under `providers`, or `config` of one of them"),
        ("temperature: 0", "put it under `providers`, or `config` of one of them"),
        ("models: [echo]", "call it `providers`"),
        ("judge: echo", "name the judge with `defaultTest: {options: {provider: ...}}`"),
        ("cases: []", "call it `tests`"),
        ("metrics: []", "write assertions with `defaultTest: {assert: [...]}`"),
        ("provider: echo", "did you mean `providers`?"),
        ("test: []", "did you mean `tests`?"),
    ],
)
def test_keys_at_the_wrong_level_are_told_where_they_belong(tmp_path: Path, line: str, hint: str) -> None:
    (tmp_path / "x.yaml").write_text(f"{SOUND}{line}\n")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(tmp_path / "x.yaml", {}))
    (problem,) = caught.value.problems
    assert problem.hint == hint
    assert problem.location is not None
    assert (problem.location.line, problem.location.column) == (4, 1)


def test_an_id_with_a_space_after_its_colon_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SOUND.replace("[echo]", "[openai: gpt-4.1]"))
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(tmp_path / "x.yaml", {}))
    (problem,) = caught.value.problems
    assert problem.hint == "write `openai:gpt-4.1`"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("criteria: polite", "put it under an assertion of `assert`"),
        ("rubricPrompt: x", "put it under `options` of the test"),
        ("treshold: 0.5", "did you mean `threshold`?"),
    ],
)
def test_keys_of_assertions_in_a_test(tmp_path: Path, key: str, hint: str) -> None:
    (tmp_path / "x.yaml").write_text(
        f"tests: [{{output: hi, {key}, assert: [{{type: equals, value: hi}}]}}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(tmp_path / "x.yaml", {}))
    assert [problem.hint for problem in caught.value.problems] == [hint]

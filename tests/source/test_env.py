from pathlib import Path

import pytest

from geval_cli.errors import ConfigError, Problem
from geval_cli.source.access import TRUSTED
from geval_cli.source.env import EnvValues, gather_env, parse_env_file
from geval_cli.source.problems import render_problems
from geval_cli.source.source_map import SourcePath


def fill(text: str, **values: str) -> tuple[object, list[Problem]]:
    problems: list[Problem] = []
    return EnvValues(values).fill(text, SourcePath.nowhere(), problems), problems


def test_the_forms_of_an_env_file() -> None:
    text = """
# comment
PLAIN=value
export EXPORTED = spaced out   # a comment
HASH=a#b
SINGLE='as $is \\n'
DOUBLE="line\\nbreak \\"quoted\\"" # comment
EMPTY=
MULTI="one
two"
AFTER=1
PLAIN=last wins
"""
    assert parse_env_file(text, ".env") == {
        "PLAIN": "last wins",
        "EXPORTED": "spaced out",
        "HASH": "a#b",
        "SINGLE": "as $is \\n",
        "DOUBLE": 'line\nbreak "quoted"',
        "EMPTY": "",
        "MULTI": "one\ntwo",
        "AFTER": "1",
    }


@pytest.mark.parametrize("line", ["no assignment", "A='open", 'A="x" y', "1A=x", "=x"])
def test_a_broken_line_is_reported_without_being_shown(line: str, tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(f"OK=1\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        gather_env({}, base_dir=tmp_path, env_file=None, access=TRUSTED)
    shown = render_problems(caught.value.problems)
    assert f"{path}:2:1" in shown
    assert line not in shown


def test_the_process_wins_over_the_given_file_and_that_over_the_found_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_dir, here = tmp_path / "suite", tmp_path / "here"
    config_dir.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    (here / ".env").write_text("A=cwd\nB=cwd\nC=cwd\nD=cwd\n", encoding="utf-8")
    (config_dir / ".env").write_text("A=config\nB=config\nC=config\n", encoding="utf-8")
    given = tmp_path / "given.env"
    given.write_text("A=given\nB=given\n", encoding="utf-8")

    found = gather_env({"A": "process"}, base_dir=config_dir, env_file=given, access=TRUSTED)

    assert found == {"A": "process", "B": "given", "C": "config", "D": "cwd"}


def test_a_given_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        gather_env({}, base_dir=tmp_path, env_file=tmp_path / "none.env", access=TRUSTED)
    assert "there is no file" in caught.value.problems[0].message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ env.A }}", "x"),
        ("{{env.A}}-{{- env.A -}}", "x-x"),
        ("{{ env.B | default('none') }}", "none"),
        ('{{ env.B|default("it\\"s") }}', 'it"s'),
        ("{{ env.A | default('none') }}", "x"),
        ("{{ env.EMPTY }}!", "!"),
        (
            "{{ env.A | upper }} {{ name }} {{ environment.A }}",
            "{{ env.A | upper }} {{ name }} {{ environment.A }}",
        ),
    ],
)
def test_only_plain_env_expressions_are_filled_in(text: str, expected: str) -> None:
    assert fill(text, A="x", EMPTY="") == (expected, [])


def test_an_undefined_name_is_a_problem() -> None:
    _, problems = fill("{{ env.OPENAI_KYE }}", OPENAI_KEY="x")
    assert [(problem.message, problem.hint) for problem in problems] == [
        ("the environment variable `OPENAI_KYE` is not set", "did you mean `OPENAI_KEY`?")
    ]


def test_filled_in_values_are_hidden_from_messages() -> None:
    env = EnvValues({"KEY": "very-secret"})
    env.fill("{{ env.KEY }}", SourcePath.nowhere(), [])
    assert env.hide(Problem('found the text "very-secret"')).message == 'found the text "***"'

"""`--untrusted`: what an untrusted config may not do is refused before anything happens, each with its line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import clean_environment, run_geval

from geval_cli.errors import ConfigError, Problem
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest

BASE: dict[str, Any] = {
    "dialect": "promptfoo",
    "prompts": ["{{a}}"],
    "providers": ["echo"],
    "tests": [{"vars": {"a": "x"}}],
}


def problems(
    folder: Path, content: Mapping[str, Any], env: Mapping[str, str] | None = None, **more: Any
) -> tuple[Problem, ...]:
    """What --untrusted says about a config; () when it may be run."""
    folder.mkdir(exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(content, indent=1), encoding="utf-8")
    try:
        prepare(RunRequest(config, {"OPENAI_API_KEY": "sk-x", **(env or {})}, untrusted=True, **more))
    except ConfigError as error:
        return error.problems
    return ()


def told(folder: Path, content: Mapping[str, Any], **more: Any) -> str:
    return "\n".join(problem.message for problem in problems(folder, content, **more))


def with_assert(**assertion: Any) -> dict[str, Any]:
    return {"tests": [{"vars": {"a": "x"}, "assert": [assertion]}]}


def test_configs_that_only_ask_models_may_run(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "text.txt").write_text("hello", encoding="utf-8")
    (folder / "p.txt").write_text("Say {{a}}", encoding="utf-8")
    content = {
        **BASE,
        "prompts": ["file://p.txt"],
        "providers": [
            "openai:gpt-4.1",
            {"id": "openai:gpt-4.1", "config": {"base_url": "https://api.openai.com/v1", "temperature": 0}},
        ],
        "tests": [
            {
                "vars": {"a": "file://text.txt"},
                "assert": [
                    {"type": "contains", "value": "x"},
                    {"type": "llm-rubric", "value": "good", "provider": "openai:gpt-4.1"},
                    {"type": "moderation"},
                    {"type": "search-rubric", "value": "is true"},
                    {"type": "guardrails"},
                ],
            }
        ],
    }
    assert problems(folder, content) == ()


@pytest.mark.parametrize(
    "part",
    [
        with_assert(type="javascript", value="true"),
        with_assert(type="not-python", value="True"),
        with_assert(type="equals", value="x", transform="output"),
        {"tests": [{"assert": [{"type": "assert-set", "assert": [{"type": "javascript", "value": "1"}]}]}]},
        {"defaultTest": {"options": {"transform": "output"}}},
        {"tests": [{"options": {"transformVars": "vars"}}]},
        {"tests": [{"options": {"postprocess": "output"}}]},
        {"tests": [{"assertScoringFunction": "file://score.js"}]},
        {"providers": [{"id": "echo", "transform": "output"}]},
        {"providers": ["file://answer.py"]},
        {"prompts": ["file://answer.py:ask"]},
        {"prompts": ["exec:./answer.sh"]},
        {"tests": [{"vars": {"a": "file://answer.py"}}]},
        {"providers": ["python:answer.py:ask"]},
        {"providers": ["exec: rm -rf x"]},
        with_assert(type="llm-rubric", value="x", provider="python:judge.py"),
        {
            "tests": [
                {"options": {"provider": "exec:./judge"}, "assert": [{"type": "llm-rubric", "value": "x"}]}
            ]
        },
    ],
    ids=lambda part: json.dumps(part)[:60],
)
def test_code_is_refused_with_its_line(tmp_path: Path, part: dict[str, Any]) -> None:
    for name in ("score.js", "answer.py", "judge.py"):
        (tmp_path / name).write_text("raise SystemExit(9)", encoding="utf-8")
    found = [item for item in problems(tmp_path, {**BASE, **part}) if "runs code" in item.message]
    assert found
    assert all(item.location is not None and item.hint for item in found)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"providers": ["http://127.0.0.1:1/"]}, "has its own URL"),
        ({"providers": [{"id": "https", "config": {"url": "https://x.example"}}]}, "has its own URL"),
        ({"providers": ["opnai:m"]}, "unknown provider `opnai:m`"),
        ({"providers": ["sagemaker:m"]}, "`sagemaker:m` is not supported"),
        ({"providers": [{"id": "openai:m", "config": {"apiBaseUrl": "https://x.example"}}]}, "another host"),
        ({"providers": [{"id": "openai:m", "config": {"apiHost": "x.example"}}]}, "another host"),
        (
            {"providers": [{"id": "openai:m", "config": {"base_url": "http://api.openai.com/v1"}}]},
            "another host",
        ),
        (
            {"providers": [{"id": "openai:m", "config": {"base_url": "https://api.openai.com@x.example/"}}]},
            "another host",
        ),
        ({"providers": [{"id": "openai:m", "config": {"apiKeyEnvar": "HOME"}}]}, "variable `HOME`"),
        (
            {"providers": [{"id": "openai:m", "env": {"OPENAI_BASE_URL": "http://x"}}]},
            "sets environment values",
        ),
        ({"env": {"OPENAI_BASE_URL": "http://x.example"}}, "sets environment values"),
        ({"prompts": ["{{ env.HOME }}"]}, "variable `HOME` is read"),
        ({"prompts": ["{{ env['HOME'] }}"]}, "variable `HOME` is read"),
        (with_assert(type="webhook", value="http://127.0.0.1/"), "another server"),
        ({"outputPath": "../out.json"}, "writes a file"),
        ({"providers": ["scripted:../secret.yaml"]}, "outside"),
        ({"providers": ["local:/etc/passwd"]}, "outside"),
        ({"providers": ["local:embedding:/etc/passwd"]}, "outside"),
        (with_assert(type="similar", value="x", provider="local:../secret.gguf"), "outside"),
        (with_assert(type="similar", value="x", provider="local:embeddings:../secret.gguf"), "outside"),
        (
            with_assert(
                type="moderation",
                provider={"id": "openai:moderation", "config": {"apiBaseUrl": "https://x.example"}},
            ),
            "another host",
        ),
        (
            with_assert(
                type="classifier",
                provider={
                    "id": "huggingface:text-classification:a/b",
                    "config": {"apiEndpoint": "https://x.example/a"},
                },
            ),
            "another host",
        ),
        ({"providers": [{"id": "vertex:gemini-x", "config": {"apiHost": "x.example"}}]}, "another host"),
        ({"providers": [{"id": "vertex:gemini-x", "config": {"cloud_login": True}}]}, "uses the cloud login"),
        ({"prompts": ["file://../secret.txt"]}, "outside"),
        ({"tests": "file://../secret.yaml"}, "outside"),
        ({"tests": [{"vars": {"a": "file:///etc/passwd"}}]}, "outside"),
        ({"tests": [{"vars": {"a": "file://link.txt"}}]}, "outside"),
        ({"tests": [{"vars": {"a": "file://door/secret.txt"}}]}, "outside"),
        ({"tests": [{"vars": "../secret.yaml"}]}, ""),
        (with_assert(type="equals", value="file://../secret.txt"), "outside"),
        ({"providers": ["file://../secret.yaml"]}, "outside"),
        ({"defaultTest": "file://../secret.yaml"}, "outside"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
@pytest.mark.parametrize("dialect", ["promptfoo", "geval"])
def test_the_world_outside_is_closed(tmp_path: Path, part: dict[str, Any], words: str, dialect: str) -> None:
    for name in ("secret.txt", "secret.yaml"):
        (tmp_path / name).write_text("- top: [SECRET", encoding="utf-8")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "door").symlink_to(tmp_path, target_is_directory=True)
    found = problems(folder, {**BASE, "dialect": dialect, **part}, env={"HOME": "SECRET home"})
    text = "\n".join([*(f"{item.message} {item.hint} {item.notes}" for item in found)])
    assert "SECRET" not in text
    if dialect == "promptfoo":
        assert words in text
    else:
        assert found or words == ""


def test_environment_files_of_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_BASE_URL=http://x.example\nbroken line\n", encoding="utf-8")
    assert problems(tmp_path, {**BASE, "providers": ["openai:gpt-4.1"]}) == ()


def test_the_users_own_words_count(tmp_path: Path) -> None:
    """The command line's env file and grader are not the stranger's."""
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "mine.env").write_text("A=b\n", encoding="utf-8")
    (tmp_path / "judge.py").write_text("def call_api(*a): return 'x'\n", encoding="utf-8")
    content = {**BASE, **with_assert(type="llm-rubric", value="x")}
    more = {"env_file": tmp_path / "mine.env", "grader": f"python:{tmp_path / 'judge.py'}"}
    assert problems(folder, content, **more) == ()


def test_everything_is_told_at_once_and_the_variable_means_the_same(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "dialect: promptfoo\nprompts: ['{{env.HOME}}']\nproviders:\n  - exec:true\ntests:\n"
        "  - assert:\n      - type: javascript\n        value: 'true'\n",
        encoding="utf-8",
    )
    env = clean_environment(GEVAL_UNTRUSTED="1")
    by_variable = run_geval("run", "c.yaml", cwd=tmp_path, env=env)
    by_option = run_geval("validate", "--untrusted", "c.yaml", cwd=tmp_path)
    assert by_variable.code == by_option.code == 2
    assert by_variable.stderr == by_option.stderr
    for line in (2, 4, 7):
        assert f"c.yaml:{line}:" in by_option.stderr


def test_tests_that_a_program_makes_are_not_made(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "make.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef generate_tests(): return []\n",
        encoding="utf-8",
    )
    assert told(tmp_path, {**BASE, "tests": "file://make.py:generate_tests"})
    assert not mark.exists()

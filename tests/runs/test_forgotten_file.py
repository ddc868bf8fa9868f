"""A path without `file://`, and prompts that ask every test the same: told before anything is paid for."""

from pathlib import Path

import pytest

from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest

ASSERT = "assert: [{type: contains, value: x}]"


def problems_of(folder: Path, text: str) -> tuple[Problem, ...]:
    (folder / "prompts").mkdir(exist_ok=True)
    for name in ("prompts/a.txt", "a.txt", "tests.yaml", "provider.py"):
        (folder / name).write_text("Say {{word}}\n", encoding="utf-8")
    path = folder / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        return prepare(RunRequest(path, {"OPENAI_API_KEY": "k"})).warnings
    except ConfigError as error:
        return error.problems


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (f"prompts: [prompts/a.txt]\nproviders: [echo]\ntests: [{{{ASSERT}}}]\n", "prompts/a.txt"),
        (f"prompts: prompts/a.txt\nproviders: [echo]\ntests: [{{{ASSERT}}}]\n", "prompts/a.txt"),
        (f"prompts: [{{raw: a.txt}}]\nproviders: [echo]\ntests: [{{{ASSERT}}}]\n", "a.txt"),
        (f"prompts: [{{system: a.txt}}]\nproviders: [echo]\ntests: [{{input: hi, {ASSERT}}}]\n", "a.txt"),
        (
            f"prompts: [[{{role: user, content: ./a.txt}}]]\nproviders: [echo]\ntests: [{{{ASSERT}}}]\n",
            "./a.txt",
        ),
        ("tests: [{output: hi, assert: [{type: g-eval, provider: echo, criteria: a.txt}]}]\n", "a.txt"),
        (
            "tests: [{output: hi, assert: [{type: llm-rubric, provider: echo, value: x, rubricPrompt: a.txt}]}]\n",
            "a.txt",
        ),
        ("prompts: [hi]\nproviders: [echo]\ntests: tests.yaml\n", "tests.yaml"),
        (f"prompts: [hi]\nproviders: [provider.py]\ntests: [{{{ASSERT}}}]\n", "provider.py"),
    ],
)
def test_a_path_where_a_text_is_sent_is_a_problem(tmp_path: Path, text: str, path: str) -> None:
    found = [item for item in problems_of(tmp_path, text) if item.severity is Severity.ERROR]

    assert [item.hint for item in found] == [f"write file://{path}"]
    assert found[0].location is not None


@pytest.mark.parametrize(
    "test",
    [
        f"vars: {{word: prompts/a.txt}}, {ASSERT}",
        f"vars: {{word: x}}, input: a.txt, {ASSERT}",
        "vars: {word: x}, assert: [{type: equals, value: a.txt}]",
        "vars: {word: x}, assert: [{type: assert-set, assert: [{type: equals, value: a.txt}]}]",
    ],
)
def test_a_path_in_a_test_is_a_warning(tmp_path: Path, test: str) -> None:
    found = problems_of(tmp_path, f'prompts: ["{{{{word}}}}"]\nproviders: [echo]\ntests: [{{{test}}}]\n')

    assert [(item.severity, item.hint.endswith("to use its text")) for item in found] == [
        (Severity.WARNING, True)
    ]
    assert found[0].location is not None
    assert found[0].location.line == 3


@pytest.mark.parametrize("prompt", ["prompts/none.txt", "Read a.txt", "version 1.2", "a", "../a.txt"])
def test_other_texts_are_prompts(tmp_path: Path, prompt: str) -> None:
    text = f'prompts: ["{prompt}"]\nproviders: [echo]\ntests: [{{{ASSERT}}}]\n'
    assert [item for item in problems_of(tmp_path, text) if item.severity is Severity.ERROR] == []


@pytest.mark.parametrize(
    ("prompt", "tests", "is_told"),
    [
        (
            "Say it",
            "defaultTest: {assert: [{type: contains, value: x}]}\ntests: [{vars: {w: a}}, {vars: {w: b}}]",
            True,
        ),
        ("Say it", f"tests: [{{vars: {{w: a}}, {ASSERT}}}, {{vars: {{w: b}}, {ASSERT}}}]", True),
        ("Say {{w}}", f"tests: [{{vars: {{w: a}}, {ASSERT}}}, {{vars: {{w: b}}, {ASSERT}}}]", False),
        ("Say it", f"tests: [{{vars: {{w: a}}, {ASSERT}}}, {{vars: {{w: a}}, {ASSERT}}}]", False),
        (
            "Say it",
            f"tests: [{{vars: {{w: a}}, {ASSERT}}}, {{vars: {{w: b}}, assert: [{{type: contains, value: y}}]}}]",
            False,
        ),
        ("Say it", f"tests: [{{{ASSERT}}}]", False),
    ],
)
def test_a_prompt_that_asks_every_test_the_same(
    tmp_path: Path, prompt: str, tests: str, is_told: bool
) -> None:
    found = problems_of(tmp_path, f'prompts: ["{prompt}"]\nproviders: [echo]\n{tests}\n')

    told = [item for item in found if "uses no variables" in item.message]
    assert [item.severity for item in told] == [Severity.WARNING] * is_told
    others = {item.message.partition(":")[0] for item in found if item not in told}
    assert not others if is_told else others <= {"the variable `w` of 2 tests is not used"}, others

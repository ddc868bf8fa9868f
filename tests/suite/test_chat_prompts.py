"""Chats as prompts of geval's own dialect, however they are written; and what only looks like one."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from geval_cli.engine.prompt import message_list, render_prompt
from geval_cli.errors import ConfigError
from geval_cli.runs.prepare import prepare, templates_for
from geval_cli.runs.requests import RunRequest

CHAT = [{"role": "system", "content": "You are {{ who }}."}, {"role": "user", "content": "Say {{ q }}"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Say {{ q }}"}]}]
VARS = {"who": 'a "quoted" \\ man', "q": 'one\ntwo "three" {{ who }} \u2028'}


def prepared(folder: Path, prompts: Any, **files: Any) -> Any:
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        text = yaml.safe_dump(content) if ending == "yaml" else json.dumps(content, indent=1)
        path = folder / f"{stem}.{ending}"
        path.write_text(content if isinstance(content, str) else text, encoding="utf-8")
    document = {
        "prompts": prompts,
        "providers": ["echo"],
        "tests": [{"vars": VARS, "assert": [{"type": "contains", "value": "x"}]}],
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return prepare(RunRequest(folder / "c.yaml", {}))


def sent(found: Any) -> list[Any]:
    """The messages of each prompt for the one test."""
    [test] = found.suite.tests
    templates = templates_for(found.suite)
    return [message_list(render_prompt(prompt, test, templates).messages) for prompt in found.suite.prompts]


FILLED = [
    {"role": "system", "content": f"You are {VARS['who']}."},
    {"role": "user", "content": f"Say {VARS['q']}"},
]


@pytest.mark.parametrize(
    "prompt",
    [
        "file://hist.json",
        "file://hist.yaml",
        "file://hist.txt",
        {"raw": "file://hist.json"},
        {"id": "a", "label": "b", "raw": "file://hist.yaml"},
        {"raw": CHAT},
        CHAT,
        {"messages": CHAT},
        json.dumps(CHAT),
        {"raw": json.dumps(CHAT, indent=2)},
        "file://hist*.json",
    ],
)
def test_a_chat_is_a_chat_however_it_is_written(tmp_path: Path, prompt: Any) -> None:
    found = prepared(tmp_path, [prompt], hist_json=CHAT, hist_yaml=CHAT, hist_txt=json.dumps(CHAT))
    assert sent(found) == [FILLED]
    # The value is sent as it is, which is told.
    assert [item.message for item in found.warnings] == ["`{{ who }}` in `vars.q` is not rendered"]


def test_the_files_of_a_wildcard_are_told_apart(tmp_path: Path) -> None:
    found = prepared(tmp_path, "file://h*", h1_json=CHAT, h2_yaml=PARTS, h3_txt="Say {{ q }}")
    assert sent(found) == [
        FILLED,
        [{"role": "user", "content": [{"type": "text", "text": f"Say {VARS['q']}"}]}],
        [{"role": "user", "content": f"Say {VARS['q']}"}],
    ]
    assert [prompt.label for prompt in found.suite.prompts] == ["h1", "h2", "h3"]


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "{{ q }}", "role": "clerk"}',
        '[{"role": "admin", "name": "Ada"}]',
        "[1, 2, 3]",
        "[]",
        '["role", "content"]',
        "Answer: {{ q }}",
        "[Note] the role: speak of {{ q }}",
        '{"a": ',
        '"a text"',
    ],
)
@pytest.mark.parametrize("ending", ["json", "yaml", "txt", ""])
def test_what_is_no_chat_stays_a_text(tmp_path: Path, text: str, ending: str) -> None:
    files = {f"p_{ending}": text} if ending else {}
    found = prepared(tmp_path, [f"file://p.{ending}" if ending else text], **files)
    assert found.suite.prompts[0].raw == text
    assert [warning.message for warning in found.warnings if "chat" in warning.message] == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[{"role": "user", "content": {{ q | tojson }}}]', "templates only inside"),
        ('[{% for i in [1] %}{"role": "user", "content": "x"}{% endfor %}]', "templates only inside"),
        ('[{"role": "user", "content": "x"}, {"text": "y"}]', "templates only inside"),
        (
            '{"model": "m", "messages": [{"role": "user", "content": "x"}]}',
            "the list that is under `messages`",
        ),
    ],
)
@pytest.mark.parametrize("ending", ["json", "txt", ""])
def test_what_looks_like_a_chat_and_is_none_is_told(
    tmp_path: Path, text: str, hint: str, ending: str
) -> None:
    files = {f"p_{ending}": text} if ending else {}
    found = prepared(tmp_path, [f"file://p.{ending}" if ending else text], **files)
    said = "looks like chat messages, but is sent as one text"
    [warning] = [warning for warning in found.warnings if said in warning.message]
    assert hint in warning.hint
    assert (warning.location.file, found.suite.prompts[0].messages) == (str(tmp_path / "c.yaml"), None)


def test_a_warning_hides_no_problem_beside_it(tmp_path: Path) -> None:
    judged = {"type": "g-eval", "criteria": "good", "provider": "echo"}
    document = {
        "prompts": ['[{"role": "user", "content": {{ q | tojson }}}]'],
        "providers": ["echo"],
        "gates": ["pass_rate[area=none] >= 50%"],
        "tests": [{"vars": {"q": "x"}, "assert": [judged]}],
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(tmp_path / "c.yaml", {}, is_locked=True))
    messages = [problem.message for problem in caught.value.problems]
    for said in ("looks like chat messages", "no test has the metadata", "has no steps for a criterion"):
        assert any(said in message for message in messages), messages


def test_a_mistake_in_a_chat_is_placed_in_its_file(tmp_path: Path) -> None:
    broken = (
        '[{"role": "user", "content": "x"},\n {"role": "assistant"},\n {"role": "user", "contents": "y"}]'
    )
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, ["file://hist.json"], hist_json=broken)
    places = [(Path(p.location.file).name, p.location.line) for p in caught.value.problems if p.location]
    assert {name for name, _ in places} == {"hist.json"}
    assert {2, 3} <= {line for _, line in places}


def test_a_file_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, ["file://none.json"])
    assert len(caught.value.problems) == 1

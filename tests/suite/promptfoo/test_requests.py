"""How promptfoo's rules put variables into a prompt, down to single characters."""

import json

import pytest
from support.specs import case

from geval_cli.engine.prompt import render_prompt
from geval_cli.extras.promptfoo.nunjucks import NunjucksTemplates
from geval_cli.extras.promptfoo.requests import (
    chat_messages,
    chat_mistake,
    render_text,
    resolved_variables,
    shown_text,
)
from geval_cli.providers.wire.chat import message_list
from geval_cli.records import JsonValue, Message
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.specs.promptfoo import NamedPromptSpec, PromptfooTestOptions

TEMPLATES = NunjucksTemplates(PROMPTFOO_RULES)


@pytest.mark.parametrize(
    ("prompt", "variables", "text"),
    [
        ("a {{ x\n | upper }} {{x}}", {"x": "v"}, "a {{ x\n | upper }} {{x}}"),
        ("{# two\nlines #}{{x}}", {"x": "v"}, "{# two\nlines #}{{x}}"),
        ("{# one line #}{{x}}\n", {"x": "v"}, "v\n"),
        ("{{doc}}", {"doc": "Doc {{gone}} {{x}}", "x": "v"}, "Doc {{gone}} {{x}}"),
        ("{{doc}}", {"doc": "{{ x | upper }}", "x": "v"}, "V"),
        ("{{doc}}", {"doc": "{% for i in l %}{{ i }}{% endfor %}", "l": [1, 2]}, "12"),
        (
            "{{doc}}",
            {"doc": "{% for i in gone %}{{ i }}{% endfor %}"},
            "{% for i in gone %}{{ i }}{% endfor %}",
        ),
        ("{{doc}}", {"doc": "{{ 7 * 7 }} {{ env.NOPE }}"}, "49 "),
    ],
)
def test_prompts(prompt: str, variables: dict[str, JsonValue], text: str) -> None:
    assert render_text(prompt, variables, TEMPLATES) == text


def test_null_inside_another_variable_is_written_out() -> None:
    assert resolved_variables({"x": "{{y}}!", "y": None}) == {"x": "null!", "y": None}


def test_json_in_the_texts_of_a_json_prompt_is_shown_without_spaces() -> None:
    assert shown_text('[{"content": "{\\"a\\": [1, 2]}"}]') == '[{"content":"{\\"a\\":[1,2]}"}]'
    assert shown_text('[{"content": "say {\\"a\\": 1}"}]') == '[{"content":"say {\\"a\\": 1}"}]'


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT: list[JsonValue] = [
    {"role": "developer", "content": "Be brief.", "name": "n"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Q"}, {"type": "image_url", "image_url": {"url": "u"}}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "R"},
]


@pytest.mark.parametrize("opaque", [(), ("y",)])
@pytest.mark.parametrize(
    "text", [json.dumps(CHAT), "- role: system\n  content: S\n- role: user\n  content: Q", "Q"]
)
def test_nothing_is_put_around_what_a_program_made(text: str, opaque: tuple[str, ...]) -> None:
    promptfoo = PromptfooTestOptions(prefix="Before {{ gone", suffix=" after")
    prompt = NamedPromptSpec(raw=text, made_by="file://p.py:build")
    rendered = render_prompt(prompt, case(promptfoo=promptfoo), TEMPLATES, opaque)
    assert rendered == render_prompt(prompt, case(), TEMPLATES, opaque)
    assert rendered.messages == chat_messages(text)


def test_messages_of_a_chat_keep_their_roles_and_all_their_keys() -> None:
    assert message_list(chat_messages(json.dumps(CHAT))) == CHAT


@pytest.mark.parametrize("message", [{"role": "user", "parts": [{"text": "Q"}]}, {"role": "user"}])
def test_a_message_without_content_does_not_make_a_chat_one_text(message: dict[str, JsonValue]) -> None:
    further = {key: value for key, value in message.items() if key != "role"}
    found = chat_messages(json.dumps([{"role": "system", "content": "S"}, message]))
    assert found == (Message("system", "S"), Message("user", None, further))


@pytest.mark.parametrize(
    "text", ["[]", '["a"]', '[{"content": "no role"}]', '{"role": "user", "content": "a"}', "5"]
)
def test_json_that_is_no_list_of_messages_is_a_text(text: str) -> None:
    assert chat_messages(text) == (Message("user", text),)


BROKEN_CHATS = [
    '[{"role": "user", "content": "a" "b"}]',
    ' [\n {"content": "a", "role": "user"},\n]\n',
    "- role: system\n  content: 'S\n- role: user\n  content: U",
    "- role: user\nAnswer in one word.",
]
NO_BROKEN_CHATS = [
    json.dumps(CHAT),
    "- role: user\n  content: Q",
    "\n  - role: system\n    content: S\n  - role: user\n    content: Q\n",
    "[1] says: a",
    '[{"a": b}]',
    "{a}",
    '[{"role": "x"}] so?',
]


@pytest.mark.parametrize("text", BROKEN_CHATS)
def test_a_text_that_begins_as_a_chat_and_cannot_be_read_is_a_mistake(text: str) -> None:
    assert chat_mistake(text)


@pytest.mark.parametrize("text", NO_BROKEN_CHATS)
def test_chats_and_other_texts_are_no_mistakes(text: str) -> None:
    assert chat_mistake(text) == ""

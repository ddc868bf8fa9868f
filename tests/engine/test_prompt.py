import pytest
from support.specs import TEMPLATES, case

from geval_cli.engine.prompt import Rendered, render_prompt
from geval_cli.errors import TemplateError
from geval_cli.records import Message
from geval_cli.specs.base import ChatMessageSpec, PromptSpec


def rendered(prompt: PromptSpec, **fields: object) -> Rendered:
    return render_prompt(prompt, case(**fields), TEMPLATES)


def test_a_text_prompt_is_one_user_message_and_shown_as_it_is() -> None:
    assert rendered(PromptSpec(raw="Hello {{ x }}\n"), vars={"x": "you"}) == Rendered(
        (Message("user", "Hello you\n"),), "Hello you\n"
    )


def test_a_chat_prompt_is_rendered_part_by_part_and_shown_as_json() -> None:
    parts = [
        {"type": "text", "text": "{{ x }}"},
        {"type": "image_url", "image_url": {"url": "http://i/{{ x }}"}},
    ]
    prompt = PromptSpec(
        messages=(
            ChatMessageSpec(role="system", content="Be {{ x }}"),
            ChatMessageSpec(role="user", content=parts),
        )
    )
    result = rendered(prompt, vars={"x": 'a"b'})
    assert result.messages[0] == Message("system", 'Be a"b')
    assert result.messages[1].content[1] == {"type": "image_url", "image_url": {"url": 'http://i/a"b'}}
    assert result.text.startswith('[{"role": "system", "content": "Be a\\"b"}')


def test_a_system_prompt_takes_the_tests_input_as_user_message() -> None:
    result = rendered(PromptSpec(system="Be {{ x }}"), vars={"x": "kind"}, input="What is {{ x }}?")
    assert result.messages == (Message("system", "Be kind"), Message("user", "What is {{ x }}?"))


def test_a_system_prompt_without_input_is_an_error() -> None:
    with pytest.raises(TemplateError, match="needs the test's `input`"):
        rendered(PromptSpec(system="Be kind"))


def test_the_tests_own_fields_are_variables_and_vars_win_over_them() -> None:
    prompt = PromptSpec(raw="{{ input }} {{ context }}")
    assert rendered(prompt, input="i", context=("a", "b")).text == 'i ["a", "b"]'
    assert rendered(prompt, input="i", context="c", vars={"input": "v"}).text == "v c"

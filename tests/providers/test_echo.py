from support.calls import answer, ask, provider, run

from geval_cli.records import Message, ModelRequest


def test_the_last_user_message_comes_back_as_often_as_asked() -> None:
    messages = (
        Message("system", "s"),
        Message("user", "one"),
        Message("assistant", "a"),
        Message("user", "two"),
    )
    model = provider("echo")
    [response] = run(answer(model, ModelRequest(messages, sample_indexes=(0, 1))))
    assert [choice.text for choice in response.choices] == ["two", "two"]
    assert response.usage.cost_usd == 0
    assert not model.is_cacheable


def test_text_parts_are_joined_and_nothing_is_empty() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    [one, other] = run(answer(provider("echo"), ModelRequest((Message("user", parts),)), ModelRequest(())))
    assert (one.text, other.text) == ("ab", "")
    assert ask().messages[0].content == "Say hi."

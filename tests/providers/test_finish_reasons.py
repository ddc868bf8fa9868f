import pytest

from geval_cli.providers.wire.finish_reasons import (
    CHAT,
    GEMINI,
    MESSAGES,
    RESPONSES,
    VOCABULARIES,
    FinishReason,
    end_of,
    known_end,
    withheld,
)

ROWS = [(words, reason, end) for words in VOCABULARIES for reason, end in words.reasons.items()]


@pytest.mark.parametrize(("words", "reason", "end"), ROWS, ids=[f"{row[0].vendor}-{row[1]}" for row in ROWS])
def test_a_reason_means_on_its_wire_what_its_vendor_says(words, reason, end):
    spellings = (reason, reason.upper(), reason.replace("_", "-"), f" {reason} ")
    assert {end_of(words.wire, spelling) for spelling in spellings} == {end}


def test_a_camel_is_read_too():
    assert end_of(CHAT, "contextLengthReached") is FinishReason.LENGTH
    assert end_of(CHAT, "toolCalls") is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("wire", [CHAT, MESSAGES, GEMINI, RESPONSES])
def test_an_unknown_reason_is_no_end_and_an_absent_one_says_nothing(wire):
    for reason in ("never heard of", "STOP_IT", 7, True, [], {}, {"type": 7}, "odd: OTHER", "UNKNOWN"):
        assert end_of(wire, reason) is FinishReason.BROKEN
    for reason in (None, "", "null", "None"):
        assert end_of(wire, reason) is None


def test_the_reason_behind_a_colon_decides_where_the_one_before_it_says_nothing():
    assert end_of(CHAT, "content_filter: RECITATION") is FinishReason.FILTERED
    assert end_of(CHAT, "function_call_filter: MALFORMED_FUNCTION_CALL") is FinishReason.BROKEN
    assert end_of(CHAT, "stopped: MAX_TOKENS") is FinishReason.LENGTH


def test_every_word_of_a_filter_withholds_and_no_other_does():
    for words, reason, _ in ROWS:
        end = known_end(reason)
        assert end is not None, (words.vendor, reason)
        assert withheld(reason) is end.is_refusal
    assert not withheld(None)
    assert not withheld("odd")


def test_vendors_of_one_wire_agree_on_what_a_word_means():
    meanings = {}
    for words, reason, end in ROWS:
        assert meanings.setdefault((words.wire, reason), end) is end, (words.vendor, reason)
        assert words.source


def test_the_words_of_the_installed_library_are_all_known():
    from typing import get_args

    from openai.types import CompletionChoice
    from openai.types.chat.chat_completion import Choice
    from openai.types.responses.response_status import ResponseStatus

    known = {words.vendor: words.reasons for words in VOCABULARIES}
    for model in (Choice, CompletionChoice):
        named = get_args(model.model_fields["finish_reason"].annotation)
        assert named
        assert set(named) <= known["OpenAI"].keys()
    assert set(get_args(ResponseStatus)) <= known["OpenAI Responses"].keys()

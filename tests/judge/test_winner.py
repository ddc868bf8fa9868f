"""Reading which of two outputs a judge prefers, and how sure of it its tokens are."""

import math
import re

import pytest

from geval_cli.errors import JudgeParseError
from geval_cli.extras.graded.verdicts import SPELLINGS, parse_winner, weigh_words
from geval_cli.records import TokenAlternative, TokenLogprob


@pytest.mark.parametrize(
    ("text", "winner"),
    [
        ('{"reason": "clearer", "winner": "1"}', "1"),
        ('{"reason": "clearer", "winner": 2}', "2"),
        ('{"reason": "clearer", "winner": 2.0}', "2"),
        ('{"winner": "tie", "reason": "alike"}', "tie"),
        ('```json\n{"reason": "a\nb", "winner": "Output 2",}\n```', "2"),
        ("Here you are: {'reason': 'x', 'winner': 'the second output'}", "2"),
        ('{"verdict": {"winner": "First"}}', "1"),
        ('<think>{"winner": "2"}</think>{"reason": "", "winner": "1"}', "1"),
        ('For example {"winner": "2"}.\n\n{"reason": "b", "winner": "1"}', "1"),
        ('{"reason": "Output 2 says \\"winner: 2\\", but lies.", "winner": "1"}', "1"),
        ('{"winner": "1", "reason": "it breaks off he', "1"),
        ('{"reason": "a", "winner": "1"} and once more {"winner": 1}', "1"),
        ("2", "2"),
        (" **Output 1** ", "1"),
        ("Tie.", "tie"),
        ("Both are fine.\n\n**Winner: Output 2**", "2"),
        ("It is better.\nThe winner is 1.", "1"),
    ],
)
def test_a_winner_is_read_as_a_careful_person_reads_it(text: str, winner: str) -> None:
    found = parse_winner(text)
    assert found.winner == winner
    assert SPELLINGS[text[found.start : found.end].lower()] == winner


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("I like both.", "no winner"),
        ('{"reason": "a", "winner": "3"}', "not one of"),
        ('{"reason": "a", "winner": null}', "not one of"),
        ('{"reason": "a", "winner": true}', "not one of"),
        ('{"reason": "a", "winner": ["1"]}', "not one of"),
        ('{"reason": "a", "winner": "1 or 2"}', "not one of"),
        ('{"reason": "a", "winner": "not 1"}', "not one of"),
        ('{"winner": "1"} {"winner": "2"}', "different winners (1 and 2)"),
        ('{"winner": "1", "final": {"winner": "tie"}}', "different winners"),
        ('{"winner": "1"}\nWinner: 2', "different winners"),
        ("Winner: 1\nWinner: 2", "different winners"),
        ('{"winner": "1"}\n\nCorrection: 2', "retracts its verdict"),
        ('{"winner": "1", "error": "there is one output"}', "an error"),
        ("> Winner: 1\nis what output 2 says.", "no winner"),
        ('Example:\n```json\n{"winner": "1"}\n```', "no winner"),
        ("The winner is not 1.", "no winner"),
        ("Would the winner be 1?", "no winner"),
        ('{"reason": "it breaks off bef', "no winner"),
        ('{"score": 1}', "no winner"),
        ("12", "no winner"),
    ],
)
def test_what_no_careful_person_could_read_is_an_error(text: str, message: str) -> None:
    with pytest.raises(JudgeParseError, match=re.escape(message)):
        parse_winner(text)


def token(text: str, **alternatives: float) -> TokenLogprob:
    shares = {text: 1.0, **alternatives}
    own = 1 - sum(alternatives.values()) or 1.0
    found = tuple(TokenAlternative(name, math.log(share)) for name, share in shares.items() if name != text)
    return TokenLogprob(text, math.log(own), found)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (
            [token('{"winner": "'), token("1", **{"2": 0.2, "tie": 0.1}), token('"}')],
            {"1": 0.7, "2": 0.2, "tie": 0.1},
        ),
        ([token('{"winner":'), token(' "1', **{' "2': 0.4}), token('"}')], {"1": 0.6, "2": 0.4}),
        (
            [token('{"winner": "'), token("t", **{"2": 0.25, "x": 0.25}), token('ie"}')],
            {"tie": 0.5, "2": 0.25},
        ),
        (
            [token('{"winner": '), token("2", **{"12": 0.2, '"': 0.1, "1": 0.2}), token("}")],
            {"2": 0.5, "1": 0.2},
        ),
    ],
)
def test_the_probability_of_a_winner_is_that_of_its_first_token(
    tokens: list[TokenLogprob], expected: dict[str, float]
) -> None:
    text = "".join(item.text for item in tokens)
    found = parse_winner(text)
    masses = weigh_words(tokens, (found.start, found.end), text=text, words=SPELLINGS)
    assert masses == pytest.approx(expected)


def test_tokens_that_are_not_in_the_reply_say_nothing() -> None:
    text = '{"winner": "1"}'
    assert weigh_words([token("something else")], (12, 13), text=text, words=SPELLINGS) == {}
    assert weigh_words([], (12, 13), text=text, words=SPELLINGS) == {}


def test_a_later_token_is_not_taken_for_the_answer() -> None:
    assert weigh_words([token("?"), token(" 2")], (0, 3), text="tie 2", words=SPELLINGS) == {}

from typing import Any

import pytest
from support.calls import ask

from geval_cli.extras.local.provider import (
    LONGEST_ANSWER,
    LONGEST_LIST,
    LONGEST_STRING,
    RATING_PREFIX,
    shape_request,
    shape_response,
)
from geval_cli.records import Choice, Message, ModelResponse, Purpose, Role

RATINGS = ("1", "2", "10", "2.5")
GRAMMAR = 'root ::= " "? ("1" | "2" | "10" | "2.5")'


def test_ratings_become_a_grammar_and_the_answer_is_begun() -> None:
    request = ask("Rate it.", ratings=RATINGS, params={"temperature": 0, "max_tokens": 20})
    shaped = shape_request(request, {})
    assert shaped.params == {"temperature": 0, "max_tokens": 20, "grammar": GRAMMAR}
    assert shaped.messages == (Message("user", "Rate it."), Message("assistant", RATING_PREFIX))
    assert (shaped.want_logprobs, shaped.sample_indexes) == (request.want_logprobs, request.sample_indexes)


@pytest.mark.parametrize("where", ["wire", "request"])
def test_a_grammar_of_the_users_own_stays(where: str) -> None:
    own = {"grammar": 'root ::= "yes"', "max_tokens": 3}
    request = ask(ratings=RATINGS, params=own if where == "request" else {})
    assert shape_request(request, own if where == "wire" else {}) == request


@pytest.mark.parametrize(
    ("wire", "params", "limit"),
    [
        ({}, {}, LONGEST_ANSWER),
        ({"max_tokens": 5}, {}, None),
        ({"max_completion_tokens": 5}, {}, None),
        ({}, {"max_completion_tokens": 5}, None),
        ({}, {"max_tokens": 7}, 7),
    ],
)
def test_an_answer_has_an_end(wire: dict[str, Any], params: dict[str, Any], limit: int | None) -> None:
    assert shape_request(ask(params=params), wire).params.get("max_tokens") == limit


def test_texts_and_lists_of_a_schema_are_bounded_where_they_are_open() -> None:
    schema = {
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "short": {"type": "string", "maxLength": 9},
            "word": {"type": "string", "enum": ["yes", "no"]},
            "score": {"type": "integer"},
            "steps": {"type": "array", "items": {"type": "string"}},
            "pair": {"type": "array", "maxItems": 2},
        },
        "required": ["reason"],
    }
    shaped = shape_request(ask(response_schema=schema, role=Role.JUDGE), {}).response_schema
    assert shaped == {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "maxLength": LONGEST_STRING},
            "short": {"type": "string", "maxLength": 9},
            "word": {"type": "string", "enum": ["yes", "no"]},
            "score": {"type": "integer"},
            "steps": {
                "type": "array",
                "maxItems": LONGEST_LIST,
                "items": {"type": "string", "maxLength": LONGEST_STRING},
            },
            "pair": {"type": "array", "maxItems": 2},
        },
        "required": ["reason"],
    }
    assert schema["properties"]["reason"] == {"type": "string"}, "the caller's own stays as it was"


@pytest.mark.parametrize(
    ("purpose", "bounds_lists", "longest"),
    [(Purpose.VERDICT, False, None), (Purpose.CLAIMS, False, None), (Purpose.STEPS, False, LONGEST_LIST)]
    + [(purpose, True, LONGEST_LIST) for purpose in (Purpose.VERDICT, Purpose.CLAIMS, Purpose.STEPS)],
)
def test_claims_and_verdicts_of_a_model_of_ones_own_are_not_cut(
    purpose: Purpose, bounds_lists: bool, longest: int | None
) -> None:
    schema = {"type": "object", "properties": {"verdicts": {"type": "array", "items": {"type": "string"}}}}
    request = ask(response_schema=schema, role=Role.JUDGE, purpose=purpose)
    shaped = shape_request(request, {}, bounds_lists=bounds_lists).response_schema
    assert shaped is not None
    assert shaped["properties"]["verdicts"].get("maxItems") == longest
    assert shaped["properties"]["verdicts"]["items"]["maxLength"] == LONGEST_STRING


def test_the_score_in_a_judges_answer_is_one_of_the_ratings() -> None:
    schema = {"type": "object", "properties": {"score": {"type": "number"}, "note": {"type": "null"}}}
    request = ask(response_schema=schema, ratings=RATINGS, role=Role.JUDGE)
    shaped = shape_request(request, {})
    assert shaped.response_schema is not None
    assert shaped.response_schema["properties"] == {
        "score": {"enum": [1, 2, 10, 2.5]},
        "note": {"type": "null"},
    }
    assert "grammar" not in shaped.params
    assert shaped.messages == request.messages


def test_the_schema_that_a_prompt_asks_for_is_left_as_it_is() -> None:
    schema = {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}}
    assert shape_request(ask(response_schema=schema), {}).response_schema == schema


@pytest.mark.parametrize(
    ("text", "ratings", "read"),
    [
        (f"{RATING_PREFIX} 4", RATINGS, " 4"),
        (" 4", RATINGS, " 4"),
        (f"{RATING_PREFIX} good", (), f"{RATING_PREFIX} good"),
    ],
)
def test_what_was_begun_for_the_model_is_not_in_its_answer(
    text: str, ratings: tuple[str, ...], read: str
) -> None:
    response = ModelResponse((Choice(text), Choice(text)))
    assert [choice.text for choice in shape_response(ask(ratings=ratings), response).choices] == [read, read]

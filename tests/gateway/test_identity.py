import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from geval_cli.gateway.cache import choice_keys
from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import Message, ModelRequest, Purpose, Role, ToolDefinition

IDENTITY = ProviderIdentity("openai", "gpt-4.1", "https://api.example.com/v1", {"temperature": 0})
REQUEST = ModelRequest((Message("system", "Be brief."), Message("user", "Why?")), params={"max_tokens": 5})
TOOL = ToolDefinition("f", "Do.", {})

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
params = st.dictionaries(st.text(min_size=1), json_values, max_size=4)
messages = st.lists(st.builds(Message, st.text(), json_values), min_size=1, max_size=3).map(tuple)
requests = st.builds(
    ModelRequest,
    messages=messages,
    params=params,
    repeat_index=st.integers(0, 3),
    want_logprobs=st.booleans(),
    response_schema=st.none() | st.dictionaries(st.text(), json_values, max_size=2),
)
identities = st.builds(ProviderIdentity, st.text(), st.text(), st.text(), params)


def choice_key(identity, request, index):
    return choice_keys(identity, replace(request, sample_indexes=(index,)))[0]


def test_a_key_is_the_same_for_ever_so_that_caches_stay_warm():
    # Change this only together with _VERSION: everybody's cached answers are asked for again.
    assert choice_key(IDENTITY, REQUEST, 3) == (
        "ec326f9f47e7bb2177808e927f03fcc4cbdbf5f1de813abfa463539b1cdd6fdc"
    )


@given(identities, requests, st.integers(0, 50))
def test_equal_questions_have_equal_keys(identity, request, index):
    again = replace(request, messages=tuple(replace(message) for message in request.messages))
    assert choice_key(identity, request, index) == choice_key(replace(identity), again, index)


@given(identities, requests, identities, requests)
def test_different_questions_have_different_keys(identity, request, other_identity, other_request):
    def asked(identity, request):
        merged = {**identity.params, **request.params}
        wire = {name: value for name, value in merged.items() if name != "n" and value is not None}
        return repr((replace(identity, params={}), replace(request, params={}), sorted(wire.items())))

    same_key = choice_key(identity, request, 0) == choice_key(other_identity, other_request, 0)
    assert same_key == (asked(identity, request) == asked(other_identity, other_request))


@pytest.mark.parametrize(
    "changed",
    [
        (replace(IDENTITY, kind="azure"), REQUEST, 0),
        (replace(IDENTITY, model="gpt-4.1-mini"), REQUEST, 0),
        (replace(IDENTITY, endpoint="https://other.example.com/v1"), REQUEST, 0),
        (replace(IDENTITY, params={"temperature": 1}), REQUEST, 0),
        (replace(IDENTITY, params={}), REQUEST, 0),
        (IDENTITY, replace(REQUEST, messages=REQUEST.messages[:1]), 0),
        (IDENTITY, replace(REQUEST, messages=REQUEST.messages[::-1]), 0),
        (IDENTITY, replace(REQUEST, messages=(Message("user", "Be brief."), REQUEST.messages[1])), 0),
        (IDENTITY, replace(REQUEST, params={"max_tokens": 6}), 0),
        (IDENTITY, replace(REQUEST, params={"max_tokens": 5, "seed": 1}), 0),
        (IDENTITY, replace(REQUEST, params={"max_tokens": 5, "temperature": 1}), 0),
        (IDENTITY, replace(REQUEST, params={"max_tokens": 5, "temperature": None}), 0),
        (IDENTITY, replace(REQUEST, want_logprobs=True), 0),
        (IDENTITY, replace(REQUEST, response_schema={"type": "object"}), 0),
        (IDENTITY, replace(REQUEST, repeat_index=1), 0),
        (IDENTITY, replace(REQUEST, ratings=("1", "2")), 0),
        (IDENTITY, replace(REQUEST, tools=(TOOL,)), 0),
        (replace(IDENTITY, variables=("city",)), replace(REQUEST, variables={"city": "Rome"}), 0),
        (IDENTITY, REQUEST, 1),
    ],
)
def test_what_changes_the_answer_changes_the_key(changed):
    assert choice_key(*changed) != choice_key(IDENTITY, REQUEST, 0)


def test_of_tools_ratings_and_variables_everything_that_is_said_changes_the_key():
    said = [
        (IDENTITY, replace(REQUEST, tools=tools))
        for tools in (
            (),
            (TOOL,),
            (TOOL, TOOL),
            (replace(TOOL, name="g"),),
            (replace(TOOL, description="Do it."),),
            (replace(TOOL, parameters={"type": "object"}),),
        )
    ]
    said += [(IDENTITY, replace(REQUEST, ratings=ratings)) for ratings in (("1",), ("1", "2"), ("2", "1"))]
    told = replace(IDENTITY, variables=("city", "day"))
    said += [
        (told, replace(REQUEST, variables=variables))
        for variables in ({}, {"city": "Rome"}, {"city": "Oslo"}, {"day": "Rome"}, {"city": "Rome", "day": 1})
    ]
    assert len({choice_key(identity, request, 0) for identity, request in said}) == len(said)


def test_every_field_of_a_request_was_asked_whether_it_changes_the_key():
    """A field that is new belongs in one of the two, and in the rows above or below."""
    changing = {"messages", "params", "sample_indexes", "repeat_index", "want_logprobs", "response_schema"}
    changing |= {"ratings", "variables", "tools"}
    indifferent = {"role", "purpose", "text", "origin", "media", "added"}
    assert set(ModelRequest.__struct_fields__) == changing | indifferent
    assert set(ProviderIdentity.__struct_fields__) == {"kind", "model", "endpoint", "params", "variables"}


@pytest.mark.parametrize(
    ("identity", "request_"),
    [
        (IDENTITY, replace(REQUEST, role=Role.JUDGE)),
        *((IDENTITY, replace(REQUEST, purpose=purpose)) for purpose in Purpose),
        (IDENTITY, replace(REQUEST, sample_indexes=(0, 1, 2))),
        (IDENTITY, replace(REQUEST, params={"max_tokens": 5, "n": 20})),
        (replace(IDENTITY, params={"temperature": 0, "n": 20}), REQUEST),
        (replace(IDENTITY, params={}), replace(REQUEST, params={"max_tokens": 5, "temperature": 0})),
        (replace(IDENTITY, params={"max_tokens": 9, "temperature": 0}), REQUEST),
        (IDENTITY, replace(REQUEST, params={"max_tokens": 5, "seed": None})),
        (IDENTITY, replace(REQUEST, text="the same, as one text")),
        (IDENTITY, replace(REQUEST, origin={"prompt": "p"})),
        (IDENTITY, replace(REQUEST, media=(object(),))),  # their hashes stand in the messages
        (IDENTITY, replace(REQUEST, added=frozenset({"max_tokens"}))),
        (IDENTITY, replace(REQUEST, variables={"city": "Rome"})),
    ],
)
def test_what_does_not_change_the_answer_does_not_change_the_key(identity, request_):
    assert choice_key(identity, request_, 0) == choice_key(IDENTITY, REQUEST, 0)


def test_the_order_of_parameters_is_nothing_but_the_order_inside_a_schema_is():
    one = replace(REQUEST, params={"top_p": 1, "seed": 2}, response_schema={"reason": 1, "score": 2})
    other_params = replace(one, params={"seed": 2, "top_p": 1})
    other_schema = replace(one, response_schema={"score": 2, "reason": 1})
    assert choice_key(IDENTITY, one, 0) == choice_key(IDENTITY, other_params, 0)
    assert choice_key(IDENTITY, one, 0) != choice_key(IDENTITY, other_schema, 0)


def test_the_keys_of_a_request_are_those_of_its_samples_one_by_one():
    request = replace(REQUEST, sample_indexes=(4, 0, 7))
    assert choice_keys(IDENTITY, request) == tuple(
        choice_key(IDENTITY, request, index) for index in (4, 0, 7)
    )


def test_a_value_without_a_json_form_is_refused():
    with pytest.raises(TypeError, match="object"):
        choice_key(IDENTITY, replace(REQUEST, params={"stop": object()}), 0)


def test_the_further_keys_of_a_message_change_the_key():
    calls = {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    plain, calling, named = (
        replace(REQUEST, messages=(Message("assistant", "x", further),))
        for further in ({}, calls, {"name": "A"})
    )
    assert len({choice_key(IDENTITY, request, 0) for request in (plain, calling, named)}) == 3

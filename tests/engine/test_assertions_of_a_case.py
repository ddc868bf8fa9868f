"""What one job makes of assertions that hold others, need more of the answer, or name their metric by a template."""

import pytest
from support.jobs import Model, run
from support.specs import assertion

from geval_cli.records import Choice, ModelResponse, Status, TokenLogprob, Usage


def contains(value: str, **keys: object) -> object:
    return assertion("contains", value=value, **keys)


def test_a_set_counts_as_one_and_keeps_the_results_of_its_members() -> None:
    members = (contains("hello"), contains("bye"))
    result = run(
        "hello there", [assertion("assert-set", assertions=members, metric="both"), contains("there")]
    )
    [group, alone] = result.assertions
    assert (group.status, group.score, alone.score) == (Status.FAILED, 0.5, 1.0)
    assert [member.status for member in group.assertions] == [Status.PASSED, Status.FAILED]
    assert (result.status, result.score, result.named_scores) == (Status.FAILED, 0.75, {"both": 0.5})
    assert group.reason == 'contains: the output does not contain "bye"'


@pytest.mark.parametrize(
    ("threshold", "status"), [(0.5, Status.PASSED), (0.6, Status.FAILED), (0, Status.PASSED)]
)
def test_a_set_with_a_threshold_passes_by_its_score(threshold: float, status: Status) -> None:
    group = assertion("assert-set", assertions=(contains("hello"), contains("bye")), threshold=threshold)
    result = run("hello", [group])
    assert (result.status, result.assertions[0].threshold) == (status, threshold)


def test_weights_within_a_set_make_its_score() -> None:
    members = (contains("hello", weight=3), contains("bye", weight=1))
    result = run("hello", [assertion("assert-set", assertions=members, threshold=0.7, weight=2)])
    assert (result.assertions[0].score, result.assertions[0].weight) == (0.75, 2)


def test_a_member_that_cannot_be_judged_makes_the_set_an_error_without_a_score() -> None:
    group = assertion(
        "assert-set", assertions=(contains("hello"), assertion("cost", threshold=1)), metric="m"
    )
    result = run("hello", [group])
    [found] = result.assertions
    assert (result.status, found.status, found.score) == (Status.ERROR, Status.ERROR, None)
    assert found.assertions[1].error is not None
    assert found.assertions[1].error.type == "UnjudgeableError"
    assert result.named_scores == {}


def test_a_set_that_failed_says_what_failed_though_another_member_could_not_be_judged() -> None:
    group = assertion("assert-set", assertions=(assertion("cost", threshold=1), contains("bye")))
    [found] = run("hello", [group]).assertions
    assert (found.status, found.reason) == (Status.FAILED, 'contains: the output does not contain "bye"')


@pytest.mark.parametrize(
    ("members", "status", "reason"),
    [
        ([contains("a"), contains("b")], Status.PASSED, "all 2 assertions in the set pass"),
        ([contains("a")], Status.PASSED, "the assertion in the set passes"),
        (
            [contains("a"), contains("z", weight=0)],
            Status.PASSED,
            "1 of 2 assertions in the set pass, and the others decide nothing",
        ),
        (
            [contains("a"), assertion("human")],
            Status.PASSED,
            "1 of 2 assertions in the set pass, and the others decide nothing",
        ),
        ([assertion("human")], Status.NOT_EVALUATED, "no assertion in the set was evaluated"),
    ],
)
def test_a_set_says_how_many_of_its_members_passed(
    members: list[object], status: Status, reason: str
) -> None:
    (found,) = run("a b", [assertion("assert-set", assertions=tuple(members))]).assertions
    assert (found.status, found.reason) == (status, reason)


def test_a_negated_set_and_a_human_among_others() -> None:
    group = assertion("not-assert-set", assertions=(contains("bye"),))
    result = run("hello", [group, assertion("human", value="is it kind?")])
    assert [item.status for item in result.assertions] == [Status.PASSED, Status.NOT_EVALUATED]
    assert (result.status, result.score) == (Status.PASSED, 1.0)


@pytest.mark.parametrize("kind", ["assert-set", "not-assert-set"])
@pytest.mark.parametrize("text", ["hello", "bye"])
def test_a_set_whose_members_weigh_nothing_decides_nothing(kind: str, text: str) -> None:
    result = run("hello", [assertion(kind, assertions=(contains(text, weight=0),)), contains("h")])
    assert (result.assertions[0].status, result.assertions[0].score) == (Status.PASSED, None)
    assert (result.status, result.score) == (Status.PASSED, 1.0)


def test_the_name_of_a_metric_is_a_template_and_an_empty_one_is_none() -> None:
    named, unnamed = contains("h", metric="says_{{x}}"), contains("h", metric="{{ '' }}")
    result = run("hello", [named, unnamed])
    assert [item.metric for item in result.assertions] == ["says_hello", None]
    assert result.named_scores == {"says_hello": 1.0}


def test_token_probabilities_are_asked_for_only_where_an_assertion_needs_them() -> None:
    answer = Choice("x", token_logprobs=(TokenLogprob("x", 0.0),))
    model = Model(ModelResponse((answer,), Usage(1)))
    result = run(model, [assertion("assert-set", assertions=(assertion("perplexity-score"),))])
    assert (model.requests[0].want_logprobs, result.assertions[0].score) == (True, 0.5)
    plain = Model("x")
    run(plain, [contains("x")])
    assert plain.requests[0].want_logprobs is False


def test_a_tool_call_is_checked_against_the_config_of_the_provider_that_answered() -> None:
    call = '[{"type": "function", "function": {"name": "now", "arguments": "{}"}}]'
    spec = assertion("is-valid-openai-tools-call")
    config = {"tools": [{"type": "function", "function": {"name": "now"}}]}
    assert run(call, [spec], config=config).status is Status.PASSED
    assert run(call, [spec]).status is Status.ERROR

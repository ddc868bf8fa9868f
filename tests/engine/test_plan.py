import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.sample_run import make_case
from support.specs import case, suite

from geval_cli.engine.plan import DoneCases, Plan, SampledTests, _is_only_name, is_chosen
from geval_cli.records import CaseResult
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec

PROMPTS = (PromptSpec(id="p1", label="short", raw=""), PromptSpec(id="p2", label="long", raw=""))
PROVIDERS = (ProviderSpec(id="echo"), ProviderSpec(id="openai:x", label="X"))


def done_case(test: int, repeat: int, column: int) -> CaseResult:
    return replace(make_case(test), repeat_index=repeat, column=column)


def test_columns_are_numbered_provider_by_provider() -> None:
    columns = Plan(suite([], prompts=PROMPTS, providers=PROVIDERS)).columns
    assert [(c.index, c.provider_label, c.prompt_label) for c in columns] == [
        (0, "echo", "short"),
        (1, "echo", "long"),
        (2, "X", "short"),
        (3, "X", "long"),
    ]


def test_the_jobs_of_a_provider_come_test_by_test_then_repeat_then_prompt() -> None:
    [queue] = Plan(suite([case(0), case(1)], prompts=PROMPTS, providers=PROVIDERS[:1]), repeats=2).queues
    assert [job.id for job in queue] == [
        "0.0.0",
        "0.0.1",
        "0.1.0",
        "0.1.1",
        "1.0.0",
        "1.0.1",
        "1.1.0",
        "1.1.1",
    ]


def test_iterating_again_gives_the_same_jobs() -> None:
    plan = Plan(suite([case(0), case(1)], providers=PROVIDERS))
    assert [list(queue) for queue in plan.queues] == [list(queue) for queue in plan.queues]


def test_each_provider_has_a_lane_with_its_columns() -> None:
    queues = Plan(suite([case(0)], prompts=PROMPTS, providers=PROVIDERS)).queues
    assert [[(job.provider.id, job.column) for job in queue] for queue in queues] == [
        [("echo", 0), ("echo", 1)],
        [("openai:x", 2), ("openai:x", 3)],
    ]


def test_tests_in_random_order_come_in_one_lane() -> None:
    tests = suite([case(0), case(1)], prompts=PROMPTS, providers=PROVIDERS)
    drawn = SampledTests(tests.tests, 2, 0)
    [lane] = Plan(tests, drawn=drawn).queues
    assert [job.id for job in lane] == [
        f"{test}.0.{column}" for test in drawn.positions for column in range(4)
    ]


def test_jobs_of_one_row_share_a_group() -> None:
    [queue] = Plan(suite([case(0), case(1)], prompts=PROMPTS)).queues
    assert [job.group for job in queue] == ["0.0", "0.0", "1.0", "1.0"]


@given(
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 2))),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_the_cases_that_are_done_are_those_that_were_added(
    places: set[tuple[int, int, int]], first: int, length: int
) -> None:
    queues = Plan(suite([case(index) for index in range(6)], prompts=PROMPTS, providers=PROVIDERS[:1])).queues
    whole = DoneCases(repeats=2, columns=3)
    for test, repeat, column in places:
        assert whole.add(done_case(test, repeat, column))
    last = first + length
    part = DoneCases(repeats=2, columns=3, first_test=first, marks=whole.marks_of(first, last))

    assert len(whole) == len(places)
    assert part.marks_of(first, last) == whole.marks_of(first, last)
    assert part.marks_of(first, first) == b""
    for place in itertools.product(range(6), range(2), range(3)):
        assert whole.has(done_case(*place)) == (place in places)
        if place[0] < last:
            assert part.has(done_case(*place)) == (place[0] < first or place in places)
    left = [(job.test.index, job.repeat_index, job.column) for job in whole.missing(*queues)]
    assert left == [
        (test, 0, column) for test in range(6) for column in range(2) if (test, 0, column) not in places
    ]


@given(st.integers(0, 2_000), st.integers(0, 3), st.integers(0, 2_000))
@settings(max_examples=20, deadline=None)
def test_all_tests_are_drawn_once_in_an_order_of_their_seed(count: int, seed: int, left: int) -> None:
    tests = [case(index) for index in range(count)]
    drawn = [test.index for test in SampledTests(tests, count, seed)]
    assert sorted(drawn) == list(range(count))
    assert drawn == SampledTests(tests, count, seed).positions
    # Tests that are gone since they were counted are left out, and change the order of no other.
    assert [test.index for test in SampledTests(tests[:left], count, seed)] == [
        index for index in drawn if index < left
    ]


@pytest.mark.parametrize(
    ("spec", "is_only_name"),
    [
        (ProviderSpec(id="tuned"), True),
        (ProviderSpec(id="tuned", label="tuned"), True),
        (FilteredProviderSpec(id="tuned", label="tuned"), True),
        (ProviderSpec(id="tuned", label="mine"), False),
        (ProviderSpec(id="tuned", config={"temperature": 1}), False),
        (FilteredProviderSpec(id="tuned", transform="output"), False),
    ],
)
def test_only_an_id_alone_may_name_a_provider_that_is_elsewhere(
    spec: ProviderSpec, is_only_name: bool
) -> None:
    assert _is_only_name(spec) is is_only_name


def test_without_providers_nothing_is_generated() -> None:
    [[job]] = Plan(suite([case(0, has_output=True, output="x")], providers=())).queues
    assert not job.generates


@pytest.mark.parametrize(
    ("names", "wanted", "found"),
    [
        (("a", "b"), ["b"], True),
        (("group:a",), ["group"], True),
        (("groups:a",), ["group"], False),
        (("answer-short",), ["answer*"], True),
        (("short",), ["answer*"], False),
        (("", "a"), [""], False),
        (("", ""), ["*"], False),
        (("a",), [], False),
    ],
)
def test_a_name_is_chosen_whole_by_its_group_or_by_its_beginning(
    names: tuple[str, ...], wanted: list[str], found: bool
) -> None:
    assert is_chosen(names, wanted) is found

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_run import make_case
from support.specs import suite

from geval_cli.assertions.base import MergedTest
from geval_cli.engine.plan import SelectedTests, Selection, failing_tests, names_of
from geval_cli.records import Status
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec


@dataclass
class Source:
    """Tests that count how many of them were read in each pass."""

    tests: list[MergedTest]
    reads: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[MergedTest]:
        self.reads.append(0)
        for test in self.tests:
            self.reads[-1] += 1
            yield test


def case(index: int, description: str | None = None, **changes: object) -> MergedTest:
    return MergedTest(index, SourcePath.nowhere(), description, **changes)  # type: ignore[arg-type]


def chosen(selection: Selection, tests: list[MergedTest]) -> list[int]:
    return [test.index for test in SelectedTests(Source(tests), selection)]


TESTS = [
    case(0, "refund in German", metadata={"area": "billing", "langs": ["de", "en"]}),
    case(1, "refund in English", metadata={"area": "billing"}),
    case(2, "greeting", metadata={"area": "small talk", "level": 3, "by": {"name": "Jürgen"}}),
    case(3),
]


@pytest.mark.parametrize(
    ("selection", "indexes"),
    [
        (Selection(), [0, 1, 2, 3]),
        (Selection(pattern="^refund"), [0, 1]),
        (Selection(pattern="German|greet"), [0, 2]),
        (Selection(metadata=(("area", "bill"),)), [0, 1]),
        (Selection(metadata=(("langs", "de"),)), [0]),
        (Selection(metadata=(("langs", "d"),)), []),
        (Selection(metadata=(("level", "3"),)), [2]),
        (Selection(metadata=(("by", "Jürgen"),)), [2]),
        (Selection(metadata=(("nothing", "null"),)), []),
        (Selection(metadata=(("nothing", ""),)), []),
        (Selection(metadata=(("area", "bill"), ("langs", "en"))), [0]),
        (Selection(first=2), [0, 1]),
        (Selection(first=0), []),
        (Selection(first=1, pattern="English"), [1]),
        (Selection(first=9), [0, 1, 2, 3]),
    ],
)
def test_what_each_filter_takes(selection: Selection, indexes: list[int]) -> None:
    assert chosen(selection, TESTS) == indexes


def test_prompts_and_providers_are_chosen_by_id_or_label() -> None:
    prompts = tuple(
        PromptSpec(id=name, label=label, raw="") for name, label in (("p1", "short"), ("p2", "long"))
    )
    providers = (ProviderSpec(id="echo"), ProviderSpec(id="openai:x", label="large"))
    whole = suite([case(0)], prompts=prompts, providers=providers)
    for selection, kept in (
        (Selection(prompts="lon"), (["p2"], ["echo", "openai:x"])),
        (Selection(prompts="p1", providers="large"), (["p1"], ["openai:x"])),
        (Selection(providers="^echo$", first=1), (["p1", "p2"], ["echo"])),
    ):
        found = selection.apply(whole)
        assert ([item.id for item in found.prompts], [item.id for item in found.providers]) == kept


@given(st.integers(0, 12), st.integers(0, 50))
def test_a_sample_is_the_same_each_time_and_in_order(count: int, seed: int) -> None:
    tests = [case(index) for index in range(10)]
    source = SelectedTests(Source(tests), Selection(sample=count, seed=seed))
    first, second = [test.index for test in source], [test.index for test in source]

    assert first == second == sorted(set(first))
    assert len(first) == min(count, 10)
    assert first == chosen(Selection(sample=count, seed=seed), tests)


def test_another_seed_draws_another_sample() -> None:
    tests = [case(index) for index in range(1_000)]

    assert chosen(Selection(sample=10, seed=1), tests) != chosen(Selection(sample=10, seed=2), tests)


def test_every_test_is_drawn_about_equally_often() -> None:
    tests = [case(index) for index in range(10)]
    counts = [0] * 10
    for seed in range(2_000):
        for index in chosen(Selection(sample=3, seed=seed), tests):
            counts[index] += 1

    assert all(abs(count - 600) < 100 for count in counts)


def test_the_first_pass_reads_everything_so_that_every_mistake_is_found() -> None:
    source = Source([case(index) for index in range(100)])
    selected = SelectedTests(source, Selection(first=5))
    list(selected)
    list(selected)

    assert source.reads[0] == 100
    assert source.reads[1] < 10


def test_tests_that_failed_are_found_by_what_they_say() -> None:
    results = [
        make_case(7, status=Status.FAILED, description="refund in German", vars={}),
        make_case(8, status=Status.PASSED, description="greeting", vars={}),
        make_case(9, status=Status.ERROR, description=None, vars={"q": 1}),
        make_case(3, status=Status.ERROR, description=None, vars={}),
    ]
    tests = [*TESTS, case(4, vars={"q": 1}), case(5, vars={"q": 2})]

    assert chosen(Selection(failing=failing_tests(results)), tests) == [0, 3, 4]


def test_a_seed_alone_selects_nothing() -> None:
    assert Selection(seed=3).selects_all
    assert not Selection(first=3).selects_all


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        ({}, {}, False),
        ({"vars": {"x": 1}}, {"vars": {"x": 1}}, True),
        ({"vars": {"x": 1}}, {"vars": {"x": 2}}, False),
        ({"vars": {"x": 1}}, {"vars": {"x": "1"}}, True),
        ({"vars": {"x": 1}}, {"vars": {"x": "01"}}, False),
        ({"description": "a"}, {"description": "a"}, True),
        ({"description": "a"}, {"description": "b"}, False),
        ({"description": "a"}, {"description": "a", "vars": {"x": 1}}, False),
        *(
            ({"description": one, "vars": {"x": 1}}, {"description": other, "vars": {"x": 1}}, are_alike)
            for one, other, are_alike in (
                ("Row #2", "Row #13", True),
                ("Row #2", None, True),
                ("Row #2", "Row #2b", False),
                ("My Row #2", "My Row #3", False),
            )
        ),
        ({"description": "Row #2"}, {"description": "Row #3"}, False),
        ({"description": "Row #2", "vars": {"x": 1}}, {"description": "Row #2", "vars": {"x": 2}}, False),
    ],
)
def test_a_test_is_recognised_by_its_words_and_without_any_by_its_number(
    one: dict[str, Any], other: dict[str, Any], are_alike: bool
) -> None:
    assert (
        names_of(MergedTest(1, SourcePath.nowhere(), **one))
        == names_of(MergedTest(2, SourcePath.nowhere(), **other))
    ) == are_alike

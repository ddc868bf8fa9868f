"""Which tests of two runs belong together, whatever was inserted, removed or moved between them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY, make_case

from geval_cli.assertions.base import MergedTest
from geval_cli.engine.plan import key_of
from geval_cli.extras.compare.comparison import (
    ComparisonOptions,
    EarlierRun,
    NamedRun,
    RunComparison,
    compare,
    paired_cases,
)
from geval_cli.extras.compare.matching import (
    TestName,
    TestPairs,
    match_columns,
    name_by,
    name_of_result,
    name_of_test,
)
from geval_cli.records import CaseResult, Column, Status, Turn
from geval_cli.report.report import RunReport
from geval_cli.source.media import without_media_data
from geval_cli.source.source_map import SourcePath

COLUMN = Column(0, "p", "m")
FEW = st.sampled_from(["a", "b", "c"])
TURN = st.builds(Turn, st.sampled_from(["user", "assistant", "system"]), FEW)
IMAGE = st.sampled_from([f"[image: a.png sha256:{digit * 64}]" for digit in "12"])
HELD = st.builds(lambda turns: (*turns, Turn("user", "so?")), st.lists(TURN, max_size=2))
PLAYED = st.lists(st.builds(Turn, st.just("user"), FEW), min_size=1, max_size=2).map(tuple)
TESTS = st.one_of(
    st.fixed_dictionaries({"description": FEW}),
    st.fixed_dictionaries({"vars": st.dictionaries(FEW, FEW, min_size=1, max_size=2)}),
    st.fixed_dictionaries({"input": FEW}, optional={"description": FEW, "vars": st.just({"x": "a"})}),
    st.fixed_dictionaries({"turns": PLAYED, "plays_turns": st.just(True)}),
    st.fixed_dictionaries({"turns": HELD}, optional={"vars": st.just({"x": "a"})}),
    st.fixed_dictionaries({"images": st.tuples(IMAGE)}, optional={"input": FEW}),
    st.fixed_dictionaries({"context": FEW, "has_output": st.just(True), "output": FEW}),
)
Parts = dict[str, Any]


@st.composite
def two_suites(draw: st.DrawFn) -> tuple[list[Parts], list[Parts]]:
    """Return a suite, and the same after tests were removed, inserted and moved."""
    before = draw(st.lists(TESTS, max_size=8))
    kept = [test for test in before if draw(st.booleans())]
    return before, draw(st.permutations(kept + draw(st.lists(TESTS, max_size=3))))


def built(suite: Sequence[Parts]) -> list[MergedTest]:
    return [MergedTest(index, SourcePath.nowhere(), **parts) for index, parts in enumerate(suite)]


def result_of(test: MergedTest, answer: str, **changes: Any) -> CaseResult:
    """Return a result as the engine makes it: each turn that is played has an answer behind it."""
    turns: list[Turn] = []
    for number, turn in enumerate(test.turns):
        turns += [turn, Turn("assistant", f"{answer} {number}")] if test.plays_turns else [turn]
    if turns and turns[-1].role != "assistant":
        turns.append(Turn("assistant", answer))
    return make_case(
        test.index,
        COLUMN,
        id=str(test.index),
        description=test.description,
        vars=test.vars,
        output=answer,
        turns=tuple(turns),
        test_key=key_of(test),
        **changes,
    )


def names_of(results: Sequence[CaseResult]) -> dict[int, TestName]:
    return {result.test_index: name_of_result(result) for result in results}


def pairs_of(before: dict[int, TestName], after: dict[int, TestName]) -> TestPairs:
    found = TestPairs(before)
    for index, name in after.items():
        found.add(index, name)
    return found


@given(two_suites())
def test_the_pairs_are_exactly_the_tests_that_say_the_same(suites: tuple[list[Parts], list[Parts]]) -> None:
    before, after = map(built, suites)
    old = [result_of(test, "yes") for test in before]
    new = [result_of(test, "no") for test in after]
    found = pairs_of(names_of(old), names_of(new)).partners
    in_both = Counter(map(key_of, before)) & Counter(map(key_of, after))

    assert len(found) == len(set(found.values())) == in_both.total()
    for mine, theirs in found.items():
        assert key_of(before[theirs]) == key_of(after[mine])
    # A suite that is still to run is matched as its results will be, and stored verdicts as results are.
    assert pairs_of(names_of(old), {test.index: name_of_test(test) for test in after}).partners == found
    compared = paired_cases(old, new, match_columns([COLUMN], [COLUMN]))
    assert {pair.after.test_index: pair.before.test_index for pair in compared.pairs} == found


def test_an_image_in_a_variable_is_the_same_before_and_after_a_run() -> None:
    [test] = built([{"vars": {"x": "data:image/png;base64,iVBORw0KGgo="}}])
    result = replace(result_of(test, "yes"), vars=without_media_data(test.vars), test_key=None)
    assert pairs_of(names_of([result]), {0: name_of_test(test)}).partners == {0: 0}


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_number_is_the_text_that_a_table_has_of_it(has_keys: bool) -> None:
    """As a suite moves from YAML to CSV: a cell is a text."""
    numbers = [{"vars": {"n": 1, "t": True}}, {"vars": {"n": 2.5, "t": False}}, {"vars": {"n": 3, "x": [1]}}]
    texts = [{"vars": {"n": "2.5", "t": "false"}}, {"vars": {"n": "1", "t": "true"}}, {"vars": {"n": "3.0"}}]
    before, after = built(numbers), built(texts)
    old, new = ([result_of(test, "yes") for test in suite] for suite in (before, after))
    assert {key_of(test) for test in before}.isdisjoint(map(key_of, after)), "stored keys stay what they are"
    if not has_keys:
        old = [replace(item, test_key=None) for item in old]
    pairs = pairs_of(names_of(old), names_of(new))
    assert pairs.partners == {0: 1, 1: 0}
    assert pairs_of(names_of(old), {test.index: name_of_test(test) for test in after}).partners == {
        0: 1,
        1: 0,
    }
    compared = paired_cases(old, new, match_columns([COLUMN], [COLUMN]))
    assert [(pair.before.test_index, pair.after.test_index) for pair in compared.pairs] == [(1, 0), (0, 1)]


@given(two_suites(), st.booleans(), st.booleans())
def test_results_without_keys_are_paired_by_what_they_have(
    suites: tuple[list[Parts], list[Parts]], old_lacks: bool, new_lacks: bool
) -> None:
    """Of description, variables and turns alone, equal numbers are paired; the key of one side is then no use."""
    if not (old_lacks or new_lacks):
        return
    sides = []
    for suite, lacks in zip(suites, (old_lacks, new_lacks), strict=True):
        results = [result_of(test, "yes") for test in built(suite)]
        sides.append(names_of([replace(item, test_key=None) if lacks else item for item in results]))
    found = pairs_of(*sides).partners
    rough = [Counter(name.rough for name in side.values()) for side in sides]

    assert len(found) == len(set(found.values())) == (rough[0] & rough[1]).total()
    assert all(sides[1][mine].rough == sides[0][theirs].rough for mine, theirs in found.items())


def named(name: str, results: Sequence[CaseResult]) -> NamedRun:
    summary = replace(SUMMARY, total=len(results))
    return NamedRun(name, RunReport(replace(RUN, columns=(COLUMN,)), summary, lambda: iter(results)))


def compared(before: Sequence[CaseResult], after: Sequence[CaseResult]) -> RunComparison:
    return compare(named("A", before), named("B", after), ComparisonOptions())


def inputs(text: str, **changes: Any) -> list[CaseResult]:
    return [result_of(test, "yes", **changes) for test in built([{"input": letter} for letter in text])]


def without_keys(results: Sequence[CaseResult]) -> list[CaseResult]:
    return [replace(item, test_key=None) for item in results]


UNKNOWN = "tests that the results of {} do not tell apart"


@pytest.mark.parametrize(
    ("before", "after", "warning", "note"),
    [
        (inputs("abc"), inputs("abcd"), "", ""),
        (inputs("aab"), inputs("baa"), "", ""),
        (
            inputs("aab"),
            inputs("aaab"),
            "3 tests with identical content, and different numbers of them in the two runs",
            "",
        ),
        (without_keys(inputs("abc")), inputs("abc"), "", UNKNOWN.format("A")),
        (inputs("abc"), without_keys(inputs("abc")), "", UNKNOWN.format("B")),
        (without_keys(inputs("abc")), without_keys(inputs("abc")), "", UNKNOWN.format("A and B")),
        (without_keys(inputs("abc")), inputs("abcd"), "4 " + UNKNOWN.format("A"), ""),
        (without_keys(inputs("abc")), without_keys(inputs("ab")), "3 " + UNKNOWN.format("A and B"), ""),
        # A run that an older geval began and this one resumed.
        ([*without_keys(inputs("ab")), *inputs("abcd")[2:]], inputs("abcd"), "", "2 " + UNKNOWN.format("A")),
        (without_keys(inputs("a")), inputs("a"), "", ""),
    ],
)
def test_what_cannot_be_told_apart_is_said_with_what_to_do(
    before: list[CaseResult], after: list[CaseResult], warning: str, note: str
) -> None:
    found = compared(before, after)
    assert found.paired == min(len(before), len(after))
    for texts, said in ((found.warnings, warning), (found.notes, note)):
        assert bool(texts) == bool(said)
        assert all(said in text and ("description" in text or "geval judge" in text) for text in texts)


def test_a_conversation_that_an_error_cut_short_is_known_by_the_column_that_went_on() -> None:
    [test] = built([{"turns": (Turn("user", "a"), Turn("user", "b")), "plays_turns": True}])
    whole = replace(result_of(test, "yes"), test_key=None)
    cut = replace(whole, turns=whole.turns[:1], status=Status.ERROR, score=None)
    second = replace(whole, column=1)
    columns = (COLUMN, Column(1, "q", "m"))
    for results in ([cut, second], [whole, replace(cut, column=1)]):
        report = RunReport(replace(RUN, columns=columns), SUMMARY, lambda results=results: iter(results))
        match = match_columns(columns, columns)
        keyed = [replace(item, test_key=key_of(test)) for item in (whole, second)]
        assert all(old is not None for old, _ in EarlierRun(report).pairing(match).of(keyed))
        assert len(paired_cases(results, [whole, second], match).pairs) == 2
        # The later run, too, is known by what its columns say together, whichever of them comes first.
        found = EarlierRun(replace(report, results=lambda: iter([whole, second]))).pairing(match).of(results)
        assert all(old is not None for old, _ in found)
    assert name_by(cut, name_of_result(whole)) is None
    assert name_by(replace(cut, test_key="k"), name_of_result(whole)) is not None


def test_ten_thousand_tests_of_the_same_rough_content_are_paired_at_once() -> None:
    """Quadratic work would take minutes here."""
    count = 10_000
    before = {index: TestName(None, "r") for index in range(count)}
    after = {index: TestName(f"{index}" if index % 2 else None, "r") for index in range(count)}
    found = pairs_of(before, after)
    assert found.partners == {index: index for index in range(count)}
    assert found.alike().by_order == count

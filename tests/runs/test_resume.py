"""What of an earlier run stays: each case has a place of its own."""

from msgspec.structs import replace
from support.sample_run import make_case

from geval_cli.records import CaseResult
from geval_cli.runs.resume import DoneCases


def case(test: int, repeat: int, column: int) -> CaseResult:
    return replace(make_case(test), repeat_index=repeat, column=column)


def test_every_case_has_a_place_and_cases_beyond_the_plan_have_none() -> None:
    done = DoneCases(2 * 2 * 3, repeats=2, columns=3)
    places = [(test, repeat, column) for test in range(2) for repeat in range(2) for column in range(3)]
    for count, place in enumerate(places):
        assert len(done) == count
        assert done.add(case(*place))
    assert not any(done.add(case(2, 0, column)) for column in range(3))
    assert len(done) == len(places)

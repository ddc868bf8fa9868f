import pytest
from support.sample_run import COLUMNS, make_case

from geval_cli.engine.aggregate import FLAKY_MAX, flaky_tests
from geval_cli.records import CaseResult, FlakyTest, Status


def repeats(
    test: int, *statuses: Status, column: int = 0, scores: tuple[float, ...] = ()
) -> list[CaseResult]:
    marks = scores or tuple(float(status is Status.PASSED) for status in statuses)
    return [
        make_case(test, COLUMNS[column], status=status, score=score, repeat_index=number)
        for number, (status, score) in enumerate(zip(statuses, marks, strict=True))
    ]


def test_a_test_that_passes_and_fails_is_flaky() -> None:
    results = repeats(0, Status.PASSED, Status.FAILED, Status.PASSED, scores=(0.9, 0.3, 0.6))

    assert flaky_tests(results) == ((FlakyTest(0, 0, None, 2, 3, pytest.approx(0.6), pytest.approx(0.3)),), 1)


@pytest.mark.parametrize(
    "statuses",
    [
        (Status.PASSED, Status.PASSED),
        (Status.FAILED, Status.FAILED),
        (Status.PASSED, Status.ERROR),
        (Status.FAILED, Status.NOT_EVALUATED),
        (Status.PASSED,),
    ],
)
def test_a_test_that_agrees_with_itself_is_not(statuses: tuple[Status, ...]) -> None:
    assert flaky_tests(repeats(0, *statuses)) == ((), 0)


def test_each_column_for_itself() -> None:
    steady = repeats(3, Status.PASSED, Status.PASSED, column=0)
    flaky = repeats(3, Status.PASSED, Status.FAILED, column=1)
    named, count = flaky_tests([*steady, *flaky])

    assert ([(item.test_index, item.column) for item in named], count) == ([(3, 1)], 1)


def test_only_so_many_are_named_but_all_are_counted() -> None:
    results = [
        result for number in range(FLAKY_MAX + 7) for result in repeats(number, Status.PASSED, Status.FAILED)
    ]
    named, count = flaky_tests(results)

    assert (len(named), count, FLAKY_MAX) == (100, 107, 100)

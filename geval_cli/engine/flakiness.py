"""How far repeats of one test agree: tests whose verdict changes from repeat to repeat are flaky. Pure."""

from collections.abc import Iterable
from itertools import groupby

from msgspec import Struct, field

from geval_cli.records import CaseResult, FlakyTest, Status
from geval_cli.statistics.intervals import RunningMean

FLAKY_MAX = 100
"""So many flaky tests are named; all are counted."""

_VERDICTS = frozenset({Status.PASSED, Status.FAILED})


class _Repeats(Struct):
    """The repeats of one test in one column."""

    first: CaseResult
    passed: int = 0
    judged: int = 0
    scores: RunningMean = field(default_factory=RunningMean)

    def add(self, result: CaseResult) -> None:
        if result.status in _VERDICTS:
            self.judged += 1
            self.passed += result.status is Status.PASSED
        if result.score is not None:
            self.scores.add(result.score)

    @property
    def is_flaky(self) -> bool:
        return 0 < self.passed < self.judged

    def flaky_test(self) -> FlakyTest:
        return FlakyTest(
            test_index=self.first.test_index,
            column=self.first.column,
            description=self.first.description,
            passed=self.passed,
            judged=self.judged,
            mean=self.scores.mean,
            deviation=self.scores.deviation,
        )


def flaky_tests(results: Iterable[CaseResult]) -> tuple[tuple[FlakyTest, ...], int]:
    """Return the first hundred tests that both passed and failed, and how many there are in all.

    `results` come test by test, as the store gives them; of one test at a time, its repeats are held.
    """
    named: list[FlakyTest] = []
    count = 0
    for _, of_test in groupby(results, key=lambda result: result.test_index):
        columns: dict[int, _Repeats] = {}
        for result in of_test:
            columns.setdefault(result.column, _Repeats(result)).add(result)
        flaky = [repeats.flaky_test() for _, repeats in sorted(columns.items()) if repeats.is_flaky]
        count += len(flaky)
        named.extend(flaky[: FLAKY_MAX - len(named)])
    return tuple(named), count

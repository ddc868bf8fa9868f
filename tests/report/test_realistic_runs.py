"""The made-up runs that others test and measure with hold what they promise."""

import io
from pathlib import Path

import pytest
from support.realistic_runs import Shape, realistic_report, realistic_results, store_history
from support.sample_run import console_of

from geval_cli.extras.compare.comparison import ComparisonOptions, NamedRun, compare
from geval_cli.extras.compare.text import print_comparison
from geval_cli.extras.evidence import print_test
from geval_cli.records import RunStatus, Status
from geval_cli.report.terminal import print_report
from geval_cli.store.runs import RunStore

SMALL = Shape(tests=20, repeats=2)


def test_every_kind_of_result_is_there() -> None:
    report = realistic_report(SMALL)
    results = list(report.results())
    assert {result.status for result in results} == set(Status)
    assert len(results) == 20 * 2 * 9 == report.summary.total
    assert len(report.summary.columns) == len(report.summary.rankings["helpful"]) == 9
    assert report.summary.gates
    assert report.summary.flaky
    assert all(column.cost_usd is not None for column in report.summary.columns)


def test_the_same_numbers_come_out_every_time() -> None:
    assert list(realistic_results(Shape(tests=2))) == list(realistic_results(Shape(tests=2)))


def test_a_history_is_stored_with_labels(tmp_path: Path) -> None:
    ids = store_history(tmp_path, Shape(tests=4, repeats=1), runs=2)
    runs = RunStore.open(tmp_path / ".geval")
    stored = {item.run.id: item for item in runs.runs()}
    labels = runs.labels().of_run(ids[-1])
    runs.close()
    assert [stored[name].run.status for name in ids] == [
        RunStatus.INTERRUPTED, RunStatus.COMPLETED, RunStatus.COMPLETED
    ]  # fmt: skip
    assert {label.annotator for label in labels} == {"ana", "bo"}


@pytest.mark.parametrize("shown", ["a run", "a comparison", "test 1", "test 7", "test 16", "test 34"])
def test_a_run_of_nine_columns_a_case_of_it_and_its_comparison_fit_45_lines_of_80_columns(shown: str) -> None:
    report, stream = realistic_report(), io.StringIO()
    console = console_of(stream, 80)
    if shown == "a run":
        print_report(report, console)
    elif shown == "a comparison":
        earlier = realistic_report(Shape(drift=-0.05))
        found = compare(NamedRun("latest~1", earlier), NamedRun("latest", report), ComparisonOptions())
        print_comparison(found, console, is_verbose=False, more="geval compare -v")
    else:
        test = int(shown.removeprefix("test ")) - 1
        chosen = [result for result in report.results() if result.test_index == test]
        print_test(chosen, report, console, is_verbose=False)
    lines = stream.getvalue().splitlines()
    assert 25 < len(lines) <= 45 - 2 * shown.startswith("test")  # geval show adds a line
    assert max(map(len, lines)) <= 80

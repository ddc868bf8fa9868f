"""The made-up runs that others test and measure with hold what they promise."""

from pathlib import Path

from support.realistic_runs import Shape, realistic_report, realistic_results, store_history

from geval_cli.records import RunStatus, Status
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

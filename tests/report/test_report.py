from support.sample_run import make_case

from geval_cli.events import Column
from geval_cli.report.report import columns_of


def test_columns_of_a_stored_run_come_in_their_order() -> None:
    columns = [Column(1, "b", "y"), Column(0, "a", "x")]
    results = [make_case(test, column) for test in range(2) for column in columns]

    assert columns_of(results) == (columns[1], columns[0])


def test_a_run_without_results_has_no_columns() -> None:
    assert columns_of([]) == ()

"""The ranking of columns as people see it: in a terminal and in Markdown."""

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.sample_columns import ranked_report
from support.sample_run import console_of, make_report

from geval_cli.report.report import write_results_file
from geval_cli.report.verdict import print_rankings


@pytest.mark.parametrize("width", [40, 80, 200])
def test_in_a_terminal(width: int) -> None:
    stream = io.StringIO()
    print_rankings(ranked_report(), console_of(stream, width, NO_COLOR="1"))
    text = stream.getvalue()
    assert max(cell_len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    assert "the judge chose the same winner in both orders for 92 % of the pairs" in words
    assert "no ranking: the comparisons do not connect all columns" in words
    assert "\x1b" not in text
    assert "\u202e" not in text
    if width > 40:
        assert "large | thorough 1644 1472 to 1784 6 1 1" in words


def test_nothing_is_printed_without_comparisons() -> None:
    stream = io.StringIO()
    print_rankings(make_report(), console_of(stream, 80))
    assert stream.getvalue() == ""


def test_in_markdown(tmp_path: Path) -> None:
    write_results_file(tmp_path / "run.md", ranked_report())
    lines = (tmp_path / "run.md").read_text("utf-8").splitlines()
    assert "| ranking: `more-helpful` | rating | 95 % interval | won | tied | lost |" in lines
    assert "| 1. `large \\| thorough` | 1644 | 1472 to 1784 | 6 | 1 | 1 |" in lines
    assert "| `a` | none |  | 1 | 0 | 0 |" in lines
    assert "the judge chose the same winner in both orders for 92 % of the pairs" in lines

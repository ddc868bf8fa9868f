"""docs/comparing.md, columns of one run: its commands run, and its tables are those of runs that tests compare."""

import re
import shlex
from pathlib import Path

import pytest
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer
from test_examples import respond

from geval_cli.records import ColumnComparison, ColumnSummary, Delta

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/comparing.md").read_text(encoding="utf-8")
STATISTICS = (ROOT / "docs/reference/statistics.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def test_every_command_of_the_section_on_columns_runs(tmp_path: Path) -> None:
    (tmp_path / "gevalconfig.yaml").write_text(block("yaml"), encoding="utf-8")
    with LoopbackServer(respond=respond) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-of-the-page")
        for line in block("sh").splitlines():
            finished = run_geval(*shlex.split(line)[1:], cwd=tmp_path, env=env)
            assert finished.code in {0, 1}, finished.stderr
            assert "brief × small" in finished.stdout  # noqa: RUF001
            assert "vs baseline" in finished.stdout
    assert (tmp_path / "results.json").exists()


def test_the_picture_is_that_of_a_tested_run() -> None:
    shown = (ROOT / "tests/cli/cases/columns_80/expected.out").read_text(encoding="utf-8")
    assert block("text") in shown


@pytest.mark.parametrize(
    ("page", "first_line", "file"),
    [
        ("comparing.md", "A → B", "report/expected/compare-regression.short.txt"),
        ("assertions.md", "ranking: more-helpful", "cli/cases/ranking_200/expected.out"),
    ],
)
def test_tables_on_the_pages_are_those_that_other_tests_compare(
    page: str, first_line: str, file: str
) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    [shown] = [
        found
        for found in re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if first_line in found
    ]
    lines = shown.splitlines()
    lines = lines[next(number for number, line in enumerate(lines) if first_line in line) :]
    printed = (ROOT / "tests" / file).read_text(encoding="utf-8").splitlines()
    assert len(lines) > 5
    assert [line for line in lines if line not in printed and not line.startswith("  ... ")] == []


def test_every_key_of_a_column_is_described() -> None:
    described = set(re.findall(r"`(\w+)`", STATISTICS[STATISTICS.index("`summary.columns` is a list") :]))
    names = {*ColumnSummary.__struct_fields__, *ColumnComparison.__struct_fields__, *Delta.__struct_fields__}
    assert names - described == set()

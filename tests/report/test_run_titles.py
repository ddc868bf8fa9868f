"""A run that somebody gave a name is called so in every report, as on the web page; its config is named beside it."""

import io
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.sample_run import RUN, console_of, make_report

from geval_cli.extras.compare.comparison import ComparedRun
from geval_cli.extras.compare.text import run_name
from geval_cli.report.report import run_title, write_results_file
from geval_cli.report.terminal import print_answer

TITLE = "Before <the> move\n\u202e| 1"
SHOWN = "Before <the> move"


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("html", "<title>geval: Before &lt;the&gt; move"),
        ("html", '<h1 dir="auto">Before &lt;the&gt; move'),
        ("md", f"run `{SHOWN}"),
        ("junit.xml", 'name="geval.title" value="Before &lt;the&gt; move'),
    ],
)
def test_in_a_report(ending: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / f"results.{ending}"
    write_results_file(path, make_report(run=replace(RUN, title=TITLE)))
    page = path.read_text(encoding="utf-8")
    assert words in page
    assert "vacation.yaml" in page
    assert "\u202e" not in page


def test_on_the_terminal() -> None:
    stream = io.StringIO()
    print_answer(make_report(run=replace(RUN, title=TITLE)), console_of(stream, 100))
    title, run = (
        line.split() for line in stream.getvalue().splitlines() if "Before" in line or RUN.id in line
    )
    assert title[:3] == ["Before", "<the>", "move"]
    assert run == ["run", RUN.id, RUN.config_path]
    assert "\u202e" not in stream.getvalue()


def test_in_a_comparison() -> None:
    side = ComparedRun("r1", "latest", "a/vacation.yaml", "2026-01-01T12:00:00", 1, 1, 0, title=TITLE)
    assert run_name(side).startswith(f"latest (r1)  {SHOWN}")
    assert "\u202e" not in run_name(side)


@pytest.mark.parametrize(
    ("title", "config", "shown"),
    [
        ("one", "a/b.yaml", "one"),
        (None, "a/b.yaml", "b.yaml"),
        (None, "", "results"),
        ("", "b.yaml", "b.yaml"),
    ],
)
def test_without_a_name_it_is_that_of_the_config(title: str | None, config: str, shown: str) -> None:
    assert run_title(make_report(run=replace(RUN, title=title, config_path=config)).run) == shown

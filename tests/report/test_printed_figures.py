"""What people read has one form of each figure, whichever command prints it: no tails of floats, no raw times."""

import html
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.browser import serve
from support.realistic_runs import Shape, store_history

from geval_cli.cli.compare import compare_runs
from geval_cli.cli.options import CompareOptions
from geval_cli.cli.runs import ShowChoice, export_run, print_runs, show_run
from geval_cli.extras.run_pages import RunChoice, RunPages
from geval_cli.extras.trust.options import interval_beside
from geval_cli.records import GateResult, Status
from geval_cli.report.verdict import gate_value
from geval_cli.source.source_map import SourcePath
from geval_cli.store.runs import RunStore
from geval_cli.suite.gates import Gate, parse_gate

ROOT = Path(__file__).parents[2]
TAIL = re.compile(r"(?<![\w.$:/-])\d+\.\d{5,}")
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
TIGHT_PERCENT = re.compile(r"(?<!= )(?<!=)\b\d+(\.\d+)?%")
RAW_TIME = re.compile(r"\b\d{4,}(\.\d+)? ?(ms|s)\b|\b\d+m \d+s\b")
RATE_AS_FRACTION = re.compile(r"pass rate[^\n%]{0,30}\b[01]\.\d\d\b")
GATE = re.compile(r"[\w.-]+(\[[^\]]*\])? (>=|<=|>|<|==) [\d.]+%?")
"""A gate is shown as its author wrote it."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    store_history(folder, Shape(tests=6, repeats=2), runs=2)
    return folder / ".geval"


def mistakes(text: str) -> Iterator[str]:
    text = GATE.sub("", text)
    for found in (TAIL, ISO_TIME, TIGHT_PERCENT, RAW_TIME, RATE_AS_FRACTION):
        yield from (f"{found.pattern}: {match[0]}" for match in found.finditer(text))


@pytest.mark.parametrize(
    ("bad"),
    ["0.123456", "at 2026-11-23T19:50", "81% passed", "12345 ms", "1m 05s", "pass rate of a 0.45 to 0.62"],
)
def test_the_walk_sees_mistakes(bad: str) -> None:
    assert list(mistakes(bad))


SHOWN: dict[str, ShowChoice] = {
    "show": ShowChoice(),
    "show -v": ShowChoice(is_verbose=True),
    "show --all": ShowChoice(is_whole=True),
    "show --case 3": ShowChoice(case="#3"),
    "show --case 3 -v": ShowChoice(case="#3", is_verbose=True),
}


@pytest.mark.parametrize("choice", SHOWN.values(), ids=SHOWN)
def test_a_run(choice: ShowChoice, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_run(home, "latest", choice, outputs=(), as_json=False)
    assert list(mistakes(capsys.readouterr().out)) == []


@pytest.mark.parametrize("is_verbose", [False, True])
def test_two_runs_and_the_list(is_verbose: bool, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare_runs("latest~1", "latest", CompareOptions(is_verbose=is_verbose, home=home))
    print_runs(home, config=None, tags=(), limit=10, as_json=False)
    assert list(mistakes(capsys.readouterr().out)) == []


def read_aloud(page: str) -> Iterator[str]:
    """Yield the texts of a page, each on a line, and those that appear over it or are read to people."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    yield from re.findall(r' (?:title|aria-label)="([^"]*)"', page)
    yield from re.sub(r"<[^>]*>", "\n", page).splitlines()


def mistakes_on(page: str) -> list[str]:
    text = html.unescape("\n".join(line.strip() for line in read_aloud(page)))
    figures = re.findall(r"<figure.*?</figure>", page, flags=re.DOTALL)
    rates = [html.unescape(figure) for figure in figures if "pass rate</h3>" in figure.lower()]
    texts = [text for rate in rates for text in read_aloud(rate) if re.search(r"(?<!p )\b[01]\.\d\d\b", text)]
    return [*mistakes(text), *texts]


@pytest.mark.parametrize(
    "bad", ["<p>0.123456</p>", '<p title="12345 ms">', "<figure><h3>Pass rate</h3><b>+0.08</b></figure>"]
)
def test_the_walk_over_pages_sees_mistakes(bad: str) -> None:
    assert mistakes_on(bad)


def page_at(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        text: str = answer.read().decode()
    return text


def test_pages(home: Path) -> None:
    folder = home.parent
    runs = RunStore.open(home)
    newest, before, *_ = (item.run.id for item in RunPages(runs).outlines(RunChoice(), offset=0, limit=3)[0])
    runs.close()
    pair = f"?before={before}&after={newest}"
    paths = ["/", f"/compare{pair}", f"/compare/charts{pair}"]
    rests = ("", "?metric=tone", "/charts", "/labels", "/label", "/results/0/0/0", "/results/1/0/1")
    paths += [f"/runs/{newest}{rest}" for rest in rests]
    with serve(folder, token=None) as address:
        found = {path: mistakes_on(page_at(address + path)) for path in paths}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("names", [("run.md",), ("run.html",)])
def test_reports_for_people(names: Sequence[str], home: Path, tmp_path: Path) -> None:
    export_run(home, "latest", outputs=[tmp_path / name for name in names])
    for name in names:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert (mistakes_on(text) if name.endswith(".html") else list(mistakes(text))) == []


def kept_outputs() -> Iterator[tuple[str, str]]:
    """Yield what commands print in the cases of tests/cli and on pages: agree, calibrate, estimate, probe, plans ..."""
    for path in sorted((ROOT / "tests/cli/cases").glob("*/expected.[oe]*")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        yield str(page.relative_to(ROOT)), "\n".join(blocks)


def test_what_all_commands_print() -> None:
    outputs = dict(kept_outputs())
    assert len(outputs) > 100
    assert {name: found for name, text in outputs.items() if (found := list(mistakes(text)))} == {}


@pytest.mark.parametrize(
    ("gate", "actual", "text"),
    [
        ("latency.p95 < 9000", 5442.803712, "5,442.8 ms"),
        ("pass_rate >= 80%", 0.7961, "79.6 %"),
        ("pass_rate >= 80%", 0.7, "70 %"),
        ("failures <= 3", 1234.0, "1,234"),
        ("tone.mean >= 0.7", 0.664999, "0.66"),
        ("tone.mean >= 0.7", 0.6985, "0.699"),
        ("pass_rate.delta >= -5% vs baseline", -0.0512, "-5.1 pts"),
        ("pass_rate.delta[area=a b] >= -5 % vs baseline proven", 0.2, "+20 pts"),
        ("pass_rate equivalent within 5% vs baseline", 0.0501, "+5.01 pts"),
        ("tone.delta >= -0.02 vs baseline", -0.0204, "-0.0204"),
        ("tone.delta >= -0.02 vs baseline proven", 0.1, "+0.10"),
        ("tone equivalent within 0.05 vs baseline", -0.0502, "-0.0502"),
        ("tone.delta >= 0 vs baseline", 0.0, "0"),
        ("written by another geval", 0.25, "0.25"),
    ],
)
def test_the_value_of_a_gate(gate: str, actual: float, text: str) -> None:
    assert gate_value(GateResult(gate=gate, actual=actual, status=Status.FAILED)) == text


NEAR = (0.0, 4e-4, -4e-4, 6e-5, -6e-5, 3e-8, -3e-8, 0.3, -0.3)


@pytest.mark.parametrize("comparison", [">=", ">", "<=", "<"])
@pytest.mark.parametrize(
    "figure", ["tone.mean", "pass_rate", "cost", "latency.p95", "tone.delta", "pass_rate.delta"]
)
@pytest.mark.parametrize("is_share", [False, True])
def test_a_printed_value_is_on_the_side_of_the_limit_that_decided(
    figure: str, comparison: str, is_share: bool
) -> None:
    """Also the bounds in the notes of gates, which decide where something is to be shown."""
    if is_share and figure in {"cost", "latency.p95"}:
        return
    against = " vs baseline" if figure.endswith("delta") else ""
    written, unit = ("30%", 100) if is_share else ("0.3", 1)
    for distance in NEAR:
        gate = parse_gate(f"{figure} {comparison} {written}{against}", SourcePath.nowhere())
        assert isinstance(gate, Gate)
        actual = 0.3 + distance
        found = GateResult(gate=gate.text, actual=actual, status=Status.FAILED)
        notes = [gate_value(found), gate.said(actual)]
        notes += interval_beside((actual, actual), gate.limit, is_share=is_share).split(" to ")
        for text in notes:
            shown = float(re.sub(r" (pts|ms|%)$", "", text).replace(",", ""))
            is_percent = "pts" in text or "%" in text or (is_share and not text.endswith("ms"))
            assert gate.holds(shown / (unit if is_percent else 1)) is gate.holds(actual), (gate.text, text)

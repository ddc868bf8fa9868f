"""Runs by name: stored ones, and files in every form that they may have."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from support.realistic_runs import Shape, realistic_report
from support.sample_run import make_report
from support.stored_runs import store_run, write_config

from geval_cli.engine.columns import summarized
from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.results_files import read_importable, read_results_file
from geval_cli.records import RunSummary
from geval_cli.report.report import RunReport, write_results_file
from geval_cli.runs.stored import load_report, named_report
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs

TESTS = [
    {"vars": {"x": text}, "assert": [{"type": "contains", "value": "o"}]} for text in ("one", "two", "six")
]


@pytest.fixture
def stored(tmp_path: Path) -> str:
    """Return the id of a run that is stored in `.geval`, and written as a.json and a.jsonl."""
    run_id = store_run(write_config(tmp_path, "config.json", TESTS))
    with open_runs(tmp_path / ".geval", {}) as runs:
        for name in ("a.json", "a.jsonl"):
            write_results_file(tmp_path / name, load_report(runs, run_id))
    return run_id


def shown(report: RunReport) -> list[tuple[int, str, float | None]]:
    return [(item.test_index, item.status.value, item.score) for item in report.results()]


def as_another_tool_writes(text: str) -> bytes:
    return json.dumps(json.loads(text), indent=4).encode()


def in_one_line(text: str) -> bytes:
    return json.dumps(json.loads(text)).encode()


def with_a_mark(text: str) -> bytes:
    return b"\xef\xbb\xbf" + text.encode()


def of_windows(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


@pytest.mark.parametrize("form", [str.encode, as_another_tool_writes, in_one_line, with_a_mark, of_windows])
def test_a_file_in_any_form_is_the_run(tmp_path: Path, stored: str, form: Callable[[str], bytes]) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(form((tmp_path / "a.json").read_text("utf-8")))
    report = read_results_file(path)

    assert report.run.id == stored
    assert [column.provider_label for column in report.columns] == ["echo"]
    assert shown(report) == [(0, "passed", 1.0), (1, "passed", 1.0), (2, "failed", 0.0)]
    assert shown(report) == shown(report)


def test_lines_without_a_run_have_columns(tmp_path: Path, stored: str) -> None:
    report = read_results_file(tmp_path / "a.jsonl")

    assert (report.run.id, stored != "") == ("", True)
    assert [column.provider_label for column in report.columns] == ["echo"]
    assert len(shown(report)) == 3


@pytest.mark.parametrize(
    "rewritten", [{}, {"sort_keys": True}, {"separators": (",", ":")}, {"separators": (" , ", " : ")}]
)
def test_lines_that_another_tool_wrote_anew_are_the_results_and_their_tests(
    tmp_path: Path, rewritten: dict[str, Any]
) -> None:
    write_results_file(tmp_path / "a.jsonl", make_report())
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    lines[:0] = [{"test": {"index": lines[0]["test_index"], "input": "the input"}}]
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(line, **rewritten) for line in lines))
    found, own = (read_results_file(tmp_path / name) for name in ("b.jsonl", "a.jsonl"))

    assert shown(found) == shown(own)
    inline = [{**lines[0], **lines[1]}, *lines[2:]]  # a result that begins with its test
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(line, **rewritten) for line in inline))
    assert shown(read_results_file(tmp_path / "c.jsonl")) == shown(own)
    asked = next(iter(found.results())).asked
    assert asked is not None
    assert asked.input == "the input"


def _shuffled(path: Path, order: random.Random) -> None:
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
        parquet.write_table(table.take(order.sample(range(table.num_rows), table.num_rows)), path)
        return
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        document = json.loads(text)
        order.shuffle(document["results"])
        path.write_text(json.dumps(document), encoding="utf-8")
        return
    lines = text.splitlines()
    results = [line for line in lines if not line.startswith('{"test"')]
    order.shuffle(results)
    path.write_text("\n".join([*(line for line in lines if line.startswith('{"test"')), *results]), "utf-8")


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet"])
def test_results_in_another_order_have_the_same_figures(tmp_path: Path, ending: str) -> None:
    """The repeats and columns of a test are a cluster, wherever a sorted table has put them."""
    path = tmp_path / f"a.{ending}"
    write_results_file(path, realistic_report(Shape(tests=7, repeats=3)))

    def figures() -> tuple[RunSummary, list[tuple[int, str, float | None]]]:
        report = named_report(str(path), RunStore.open_in_memory())
        return summarized(report.run, report.results), shown(report)

    ordered = figures()
    _shuffled(path, random.Random(2))
    assert figures() == ordered


@pytest.mark.parametrize("kind", ["jsonl", "json", "json in one line"])
def test_results_of_two_runs_in_a_file_are_not_counted_as_one(tmp_path: Path, stored: str, kind: str) -> None:
    name = f"both.{kind[:5].strip()}"
    lines, document = ((tmp_path / f"a.{ending}").read_text("utf-8") for ending in ("jsonl", "json"))
    head, results = document.split('"results": [\n')
    listed, end = results.rsplit("\n]", 1)
    joined = f'{head}"results": [\n{listed},\n{listed}\n]{end}'
    texts = {"jsonl": lines + lines, "json": joined, "json in one line": json.dumps(json.loads(joined))}
    (tmp_path / name).write_text(texts[kind], encoding="utf-8")
    with pytest.raises(UsageError, match=rf"{name} has case 0\.0\.0 twice") as refused:
        list(read_results_file(tmp_path / name).results())
    assert stored
    assert "geval compare A B" in refused.value.hint


@pytest.mark.parametrize(
    "odd", [{"test_index": 2**63}, {"column": -1}, {"score": 1e308}, {"named_scores": {"m": -1e200}}]
)
def test_a_result_of_which_no_figures_can_be_made_is_refused(
    tmp_path: Path, stored: str, odd: dict[str, Any]
) -> None:
    whole = json.loads((tmp_path / "a.json").read_text("utf-8"))
    whole["results"][0] |= odd
    (tmp_path / "odd.json").write_text(json.dumps(whole), encoding="utf-8")
    assert stored
    with pytest.raises(UsageError, match="is not a geval results file"):
        list(read_results_file(tmp_path / "odd.json").results())
    with pytest.raises(ConfigError):
        read_importable(tmp_path / "odd.json")


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, stored: str, ending: str) -> None:
    text = (tmp_path / f"a.{ending}").read_text("utf-8")
    path = tmp_path / f"cut.{ending}"
    path.write_text(text[: len(text) - 10], encoding="utf-8")

    assert stored
    with pytest.raises(UsageError, match="is not a geval results file"):
        list(read_results_file(path).results())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a geval results file"),
        (b"[1]", "is not a geval results file"),
        (b"{}", "is not a geval results file"),
        (b"\xff\xfe", "is not a geval results file"),
        (b"[" * 100_000, "is not a geval results file"),
        (None, "cannot read .*: no such file"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_results_file(path)


@pytest.mark.parametrize("name", ["r.csv", "r.md", "results"])
def test_a_file_of_another_kind_is_no_missing_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x", encoding="utf-8")
    with RunStore.open_in_memory() as runs:
        with pytest.raises(UsageError, match="is not a file that a run can be read from") as refused:
            named_report(str(tmp_path / name), runs)
        assert ".jsonl" in (refused.value.hint or "")
        for missing in ("gone.csv", "x" * 5_000):
            with pytest.raises(UsageError, match="there is no run"):
                named_report(missing, runs)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_file_of_a_newer_version_is_refused_by_all_readers(
    tmp_path: Path, stored: str, *, is_ours: bool
) -> None:
    text = (tmp_path / "a.json").read_text("utf-8").replace('"schema_version": 1', '"schema_version": 2', 1)
    path = tmp_path / "newer.json"
    path.write_text(text if is_ours else json.dumps(json.loads(text)), encoding="utf-8")

    assert stored
    with pytest.raises(UsageError, match="newer geval: `schema_version` is 2; this geval reads 1"):
        read_results_file(path)
    with pytest.raises(ConfigError) as refused:
        read_importable(path)
    [problem] = refused.value.problems
    assert "newer geval" in problem.message
    assert problem.location is not None
    assert problem.location.line == (2 if is_ours else 1)


def test_runs_before_the_latest_have_names(tmp_path: Path) -> None:
    config = write_config(tmp_path, "config.json", TESTS)
    ids = [store_run(config) for _ in range(3)]
    with open_runs(tmp_path / ".geval", {}) as runs:
        names = ("latest~2", "latest~1", "latest~0", "latest")
        assert [named_report(name, runs).run.id for name in names] == [*ids, ids[-1]]
        _refuse(runs, "latest~3", "there is no run `latest~3`")
        for name in ("latest~", "latest~x", "latest~-1", "late", "latest~99999999999999999999"):
            _refuse(runs, name, "there is no run")


def _refuse(runs: RunStore, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        runs.find(name)

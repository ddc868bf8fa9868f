import json
import os
import re
import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY, make_case, make_report, results_of

from geval_cli.errors import OutputError
from geval_cli.events import CaseFinished, RunFinished, RunStarted
from geval_cli.records import (
    CaseResult,
    JsonValue,
    case_result_from_json,
    run_record_from_json,
    run_summary_from_json,
)
from geval_cli.report import FORMATS
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport, check_output_path, open_results_file, write_results_file
from geval_cli.report.safe_file import SafeFile


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The nearest thing to a full disk that a test can make: writing beyond `size` bytes fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def report_of(*cases: CaseResult) -> RunReport:
    return make_report(results=lambda: iter(cases))


def test_json_holds_the_run_its_counts_and_every_result(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results_file(path, make_report())

    document = json.loads(path.read_text("utf-8"))

    assert list(document) == ["schema_version", "kind", "run", "summary", "tests", "results"]
    assert (document["schema_version"], document["kind"]) == (1, "run")
    assert run_record_from_json(document["run"]) == RUN
    assert run_summary_from_json(document["summary"]) == SUMMARY
    assert [case_result_from_json(item) for item in document["results"]] == list(results_of())


def test_json_of_a_run_without_results(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results_file(path, report_of())

    assert json.loads(path.read_text("utf-8"))["results"] == []


def test_jsonl_grows_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("from an earlier run\n")
    file = open_results_file(path)
    file.listen(RunStarted(RUN, 10))
    lines = []
    for result in results_of():
        file.listen(CaseFinished(result))
        lines.append(len(path.read_text("utf-8").splitlines()))
    file.listen(RunFinished(RUN, SUMMARY))

    assert lines == list(range(1, 11))


def test_jsonl_ends_complete_and_in_the_order_of_the_tests(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results = list(results_of())
    file = open_results_file(path)
    file.listen(RunStarted(RUN, 10))
    for result in reversed(results[:7]):
        file.listen(CaseFinished(result))
    file.listen(RunFinished(RUN, SUMMARY))
    file.finish(make_report())

    lines = path.read_text("utf-8").splitlines()

    assert [case_result_from_json(json.loads(line)) for line in lines] == results


def test_nothing_is_left_beside_a_written_file(tmp_path: Path) -> None:
    for name in ("a.json", "b.JSONL"):
        write_results_file(tmp_path / name, make_report())

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.JSONL"]


@pytest.mark.parametrize("name", ["results.json", "results.jsonl", "results.parquet"])
def test_a_full_disk_keeps_the_file_that_was_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("precious")
    with file_size_limit(64), pytest.raises(OutputError) as caught:
        write_results_file(path, make_report())

    assert str(path) in caught.value.message
    assert caught.value.hint
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_of_bytes_as_of_text(tmp_path: Path) -> None:
    """Who writes the bytes, a library for example, raises what the system said."""
    path = tmp_path / "results.zip"
    path.write_text("precious")
    with (
        file_size_limit(64),
        pytest.raises(OutputError, match=r"results\.zip") as caught,
        SafeFile(path) as file,
        zipfile.ZipFile(file.binary, "w") as archive,
    ):
        archive.writestr("a.txt", "x" * 100_000)
    assert caught.value.hint
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_up_does_not_stop_the_run(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    file = open_results_file(path)
    with file_size_limit(64):
        file.listen(RunStarted(RUN, 10))
        for result in results_of():
            file.listen(CaseFinished(result))
        with pytest.raises(OutputError):
            file.finish(make_report())
    file.finish(make_report())

    assert len(path.read_text("utf-8").splitlines()) == 10


def test_results_that_cannot_be_read_leave_no_half_file(tmp_path: Path) -> None:
    def broken() -> Iterator[CaseResult]:
        yield make_case()
        raise RuntimeError("store went away")

    with pytest.raises(RuntimeError, match="store went away"):
        write_results_file(tmp_path / "results.json", make_report(results=broken))

    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed_and_permissions_are_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("{}")
    target.chmod(0o640)
    link.symlink_to(target)
    write_results_file(link, make_report())

    assert link.is_symlink()
    assert json.loads(target.read_text("utf-8"))["schema_version"] == 1
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["new.json", "new.jsonl", "NEW.JSON", "with space.json"])
def test_a_path_that_can_be_written_has_no_problem(tmp_path: Path, name: str) -> None:
    assert check_output_path(tmp_path / name) is None
    assert list(tmp_path.iterdir()) == []


def test_checking_leaves_an_existing_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text("old")

    assert check_output_path(path) is None
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("results.xlsx", "`.xlsx` is not a known format", ".json, .jsonl"),
        ("results", "no extension", ".json, .jsonl"),
        ("missing/results.json", "there is no folder", "mkdir -p"),
        ("folder.json", "it is a folder", "another name"),
        ("pipe.json", "not a regular file", "another name"),
        ("file.json/results.json", "there is no folder", "mkdir -p"),
        ("n" * 300 + ".json", "file name too long", "shorter name"),
    ],
)
def test_what_stands_in_the_way_is_said(tmp_path: Path, name: str, message: str, hint: str) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe.json")

    problem = check_output_path(tmp_path / name)

    assert problem is not None
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_without_permission_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)

    problem = check_output_path(folder / "results.json")

    assert problem is not None
    assert "permission denied" in problem.message


def test_a_missing_folder_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such file or directory") as caught:
        write_results_file(tmp_path / "missing" / "results.json", make_report())

    assert caught.value.hint == "create the folder first"


def test_an_unknown_ending_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no results format"):
        open_results_file(Path("results.unknown"))


def test_numbers_that_json_lacks_become_null() -> None:
    case = make_case(score=float("nan"), named_scores={"a": float("inf")}, output=[float("-inf"), 1.5])
    document = json.loads(json_text(case))

    assert (document["score"], document["named_scores"], document["output"]) == (
        None,
        {"a": None},
        [None, 1.5],
    )


def test_strange_values_are_written_as_text() -> None:
    case = make_case(
        output={1: b"caf\xc3\xa9\xff", "set": {2}, "when": Path("x"), "half\ud800": "pair \ud83d\ude00"}
    )
    document = json.loads(json_text(case).encode("utf-8"))

    assert document["output"] == {
        "1": "café\ufffd",
        "set": [2],
        "when": repr(Path("x")),
        "half\ufffd": "pair 😀",
    }


texts = st.text(st.characters(codec="utf-8"))
values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(output=values, variables=st.dictionaries(texts, values, max_size=4))
def test_results_come_back_as_they_were(output: JsonValue, variables: dict[str, JsonValue]) -> None:
    case = make_case(output=output, vars=variables)

    assert case_result_from_json(json.loads(json_text(case).encode("utf-8"))) == case


@settings(max_examples=200, deadline=None)
@given(text=st.text(), number=st.floats())
def test_any_text_and_number_gives_one_line_of_valid_json(text: str, number: float) -> None:
    line = json_text(replace(make_case(), output={text: text}, description=text, score=number)).encode(
        "utf-8"
    )

    assert b"\n" not in line
    assert case_result_from_json(json.loads(line)).test_index == 0


def test_the_page_names_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "reports.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\.[\w.]+)`", page, re.MULTILINE))
    assert rows == set(FORMATS), "the table of endings in docs/reference/reports.md"

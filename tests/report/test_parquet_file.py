"""Results in Parquet files: what data frames read, and the way back into a run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.geval_command import run_geval
from support.sample_run import RUN, SUMMARY, make_case, make_judged, make_report, results_of

from geval_cli.errors import ConfigError, OutputError, UsageError
from geval_cli.extras.parquet import file_of_tests, read_shape
from geval_cli.extras.results_files import read_importable, read_results_file
from geval_cli.records import CaseResult, RecordedTest, Role, Status, Usage, case_result_from_json
from geval_cli.report.report import check_output_paths, write_results_file
from geval_cli.report.sanitize import value_text
from geval_cli.source.access import TRUSTED

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def rows_of(folder: Path, *cases: CaseResult) -> list[dict[str, Any]]:
    report = make_report(results=lambda: iter(cases)) if cases else make_report()
    write_results_file(folder / "run.parquet", report)
    found: list[dict[str, Any]] = parquet.read_table(folder / "run.parquet").to_pylist()
    return found


def test_a_row_for_each_case_and_all_of_it_as_json(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)

    assert [case_result_from_json(json.loads(row["result"])) for row in rows] == list(results_of())
    for row, result in zip(rows, results_of(), strict=True):
        assert (row["id"], row["status"], row["score"]) == (result.id, result.status, result.score)
        assert (row["test_index"], row["column"]) == (result.test_index, result.column)
        output = None if result.output is None else value_text(result.output)
        assert (row["output"], row["rendered_prompt"]) == (output, result.prompt.rendered)
        texts = {name: value_text(value) for name, value in result.vars.items()}
        assert {name: row[f"var.{name}"] for name in result.vars} == texts
        metrics = {name[7:]: score for name, score in row.items() if name.startswith("metric.")}
        assert {name: score for name, score in metrics.items() if score is not None} == dict(
            result.named_scores
        )


def test_an_unknown_cost_is_null_and_every_text_can_be_written(tmp_path: Path) -> None:
    strange = "half \ud800 \0"
    cases = (
        make_case(0, usage={Role.GENERATION: Usage(cost_usd=0.5), Role.JUDGE: Usage(cost_usd=0.25)}),
        make_case(1, usage={Role.JUDGE: Usage(cost_usd=None)}, score=math.nan, output=strange, test_key="2a"),
        make_case(2, named_scores={strange: 0.5, "m": math.inf}, description=strange, test_key=strange),
    )
    rows = rows_of(tmp_path, *cases)
    assert [row["cost_usd"] for row in rows[:2]] == [0.75, None]
    assert rows[1]["score"] is None
    assert rows[2]["metric.half \ufffd \0"] == 0.5
    assert rows[2]["metric.m"] is None
    assert [row["test_key"] for row in rows] == [None, "2a", "half \ufffd \0"]


def test_each_metric_has_its_reason_and_each_simulated_transcript_its_end(tmp_path: Path) -> None:
    judged = make_judged(Status.PASSED, 0.9, metric="tone", reason="Polite.")
    transcript = make_case(0, assertions=(judged,), named_scores={"tone": 0.9}, ended_by="gave_up")
    rows = rows_of(tmp_path, transcript, make_case(1))
    assert [row["reason.tone"] for row in rows] == ["Polite.", None]
    assert [row["ended_by"] for row in rows] == ["gave_up", None]


def test_the_tests_of_a_run_are_a_table_beside_it(tmp_path: Path) -> None:
    nested = {"question": "Why?", "order": {"items": [1, None]}, "half \ud800": 2}
    asked = RecordedTest(7, input="Why?", context=("One.", "Two."))
    cases = [
        replace(
            make_case(7, test_key="key", description="first", vars=nested, repeat_index=repeat), test=asked
        )
        for repeat in range(2)
    ]
    cases.append(make_case(3, vars={}, metadata={"area": "billing", "tags": ["a", "b"]}))
    rows_of(tmp_path, *cases)
    table = parquet.read_table(tmp_path / "run.tests.parquet")

    assert {str(field.type) for field in table.schema} == {"int64", "string"}
    first, second = table.to_pylist()
    assert (first["test_index"], second["test_index"]) == (7, 3)
    assert (first["test_key"], first["description"], first["input"]) == ("key", "first", "Why?")
    assert first["context"] == "One.\nTwo."
    assert json.loads(first["vars"])["order"] == nested["order"]
    assert (first["var.question"], first["var.half \ufffd"]) == ("Why?", "2")
    assert json.loads(first["var.order"]) == nested["order"]
    assert (second["var.question"], first["metadata.area"], second["metadata.area"]) == (
        None,
        None,
        "billing",
    )
    assert json.loads(second["metadata"]) == {"area": "billing", "tags": ["a", "b"]}
    joined = parquet.read_table(tmp_path / "run.parquet").join(
        table, "test_index", right_suffix=" of the test"
    )
    assert sorted(joined["description of the test"].to_pylist(), key=str) == [None, "first", "first"]


@pytest.mark.parametrize("name", ["a.parquet", "b.parquet"])
def test_a_file_of_tests_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "b.tests.parquet").mkdir()
    paths = [tmp_path / name, *([tmp_path / "a.tests.parquet"] if name == "a.parquet" else [])]
    with pytest.raises(ConfigError) as refused:
        check_output_paths(paths)
    [problem] = refused.value.problems
    assert str(file_of_tests(paths[0])) in problem.message
    assert problem.hint


def test_tests_that_are_there_already_are_overwritten_only_beside_their_results(tmp_path: Path) -> None:
    own = tmp_path / "run.tests.parquet"
    own.write_bytes(b"the user's own")
    with pytest.raises(ConfigError) as refused:
        check_output_paths([tmp_path / "run.parquet"])
    assert f"{own} would be overwritten" in refused.value.problems[0].message
    own.unlink()
    for _ in range(2):
        check_output_paths([tmp_path / "run.parquet"])
        rows_of(tmp_path, make_case(0))


def test_without_cases_both_tables_have_their_columns(tmp_path: Path) -> None:
    write_results_file(tmp_path / "run.parquet", make_report(results=lambda: iter(())))
    names = [
        set(parquet.read_table(tmp_path / f"run{end}").column_names) for end in (".parquet", ".tests.parquet")
    ]
    assert {"id", "score", "output", "result"} <= names[0]
    assert {"test_index", "vars", "metadata", "input"} <= names[1]


def test_the_file_is_read_as_the_run_that_it_was(tmp_path: Path) -> None:
    rows_of(tmp_path)
    path = tmp_path / "run.parquet"

    report, imported = read_results_file(path), read_importable(path)

    assert (report.run, report.summary, list(report.results())) == (RUN, SUMMARY, list(results_of()))
    assert (imported.run, imported.summary) == (RUN, SUMMARY)
    assert [case.output for case in imported.results] == [case.output for case in results_of()]


def test_rows_that_another_program_wrote_anew_are_a_run_without_a_name(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    path = tmp_path / "again.parquet"
    parquet.write_table(pa.Table.from_pylist(rows[:3]), path)
    assert [case.id for case in read_results_file(path).results()] == [row["id"] for row in rows[:3]]
    assert read_results_file(path).run.columns
    imported = read_importable(path)
    assert (len(imported.results), imported.summary) == (3, None)


@pytest.mark.parametrize(
    ("table", "message", "where"),
    [
        ({"a": [1]}, "it has no column `result`", "1:1"),
        ({"result": ["{}"]}, "missing required field", "1:1"),
        ({"result": [None]}, "this row has no text in `result`", "1:1"),
        ({"result": pa.array([], pa.string())}, "it is empty", "1:1"),
    ],
)
def test_what_holds_no_results_is_told(tmp_path: Path, table: Any, message: str, where: str) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table(table), path)
    with pytest.raises(ConfigError) as caught:
        read_importable(path)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert str(problem.location) == f"{path}:{where}"
    if "empty" not in message:
        with pytest.raises(UsageError):
            list(read_results_file(path).results())


def test_a_file_of_a_newer_geval_is_not_guessed_at(tmp_path: Path) -> None:
    table = pa.table({"result": ["{}"]}).replace_schema_metadata({"geval.results": '{"schema_version": 99}'})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ConfigError) as caught:
        read_importable(tmp_path / "x.parquet")
    assert "a newer geval wrote this" in caught.value.problems[0].message
    with pytest.raises(UsageError, match="a newer geval"):
        read_results_file(tmp_path / "x.parquet")


def test_large_results_are_written_in_groups(tmp_path: Path) -> None:
    write_results_file(
        tmp_path / "run.parquet",
        make_report(results=lambda: (make_case(index, output="x" * 1_000_000) for index in range(20))),
    )
    assert parquet.ParquetFile(tmp_path / "run.parquet").num_row_groups > 1
    assert read_shape(tmp_path / "run.parquet", TRUSTED).rows == 20


def test_results_that_cannot_be_read_or_written_leave_no_half_file(tmp_path: Path) -> None:
    def broken() -> Any:
        yield make_case()
        raise RuntimeError("store went away")

    with pytest.raises(RuntimeError, match="store went away"):
        write_results_file(tmp_path / "run.parquet", make_report(results=broken))
    with pytest.raises(OutputError, match="no such file or directory"):
        write_results_file(tmp_path / "missing" / "run.parquet", make_report())
    assert list(tmp_path.iterdir()) == []


def test_both_files_of_an_exported_run_are_named(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("prompts: [Hello.]\nproviders: [echo]\ntests: [{}]\n", encoding="utf-8")
    assert run_geval("run", "c.yaml", cwd=tmp_path).code == 0

    said = run_geval("export", "run", "latest", "-o", "r.parquet", "-o", "r.jsonl", cwd=tmp_path).stdout

    assert said == "wrote r.parquet and r.tests.parquet\nwrote r.jsonl\n"
    assert (tmp_path / "r.tests.parquet").exists()

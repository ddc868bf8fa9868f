"""Tests in Parquet files: what types become, the place of mistakes, and many rows in little memory."""

import csv
import io
import json
import random
import subprocess
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from geval_cli.errors import ConfigError, Problem
from geval_cli.report.report import check_output_path
from geval_cli.source.access import TRUSTED, Access, untrusted_access
from geval_cli.suite.load import open_suite
from geval_cli.suite.suite import OpenedSuite

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(folder: Path, columns: dict[str, Any], name: str = "t.parquet", **options: Any) -> str:
    parquet.write_table(pa.table(columns), folder / name, **options)
    return f"file://{name}"


def opened(folder: Path, tests: object, access: Access = TRUSTED) -> OpenedSuite:
    path = folder / "gevalconfig.json"
    config = {"prompts": ["{{ q }}"], "providers": ["echo"], "tests": tests}
    path.write_text(json.dumps(config), encoding="utf-8")
    return open_suite(path, env={}, access=access)


def problems_of(folder: Path, tests: object, access: Access = TRUSTED) -> list[Problem]:
    suite = opened(folder, tests, access)
    found = list(suite.problems)
    try:
        for _ in suite.suite.tests:
            pass
    except ConfigError as error:
        found += error.problems
    return found


def variables_of(folder: Path, tests: object) -> list[dict[str, Any]]:
    suite = opened(folder, tests)
    assert not suite.problems, suite.problems
    return [dict(case.vars) for case in suite.suite.tests]


def test_every_32_bit_number_is_the_shortest_that_means_it(tmp_path: Path) -> None:
    drawn = random.Random(5)
    # Six digits always survive 32 bits.
    written = [float(f"{drawn.uniform(-1, 1):.5f}e{drawn.randint(-20, 20)}") for _ in range(500)]
    parquet.write_table(pa.table({"x": pa.array(written, pa.float32())}), tmp_path / "t.parquet")
    assert [row["x"] for row in variables_of(tmp_path, "file://t.parquet")] == written


MOMENT = datetime(2024, 1, 2, 3, 4, 5)  # noqa: DTZ001 - columns without a time zone
TYPES = [
    (pa.array(["ä😀"]), "ä😀"),
    (pa.array(["ä"], pa.large_string()), "ä"),
    (pa.array(["ä"]).dictionary_encode(), "ä"),
    (pa.array([True]), True),
    (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
    (pa.array([0.5], pa.float32()), 0.5),
    (pa.array([0.1], pa.float32()), 0.1),
    (pa.array([16777217.0], pa.float32()), 16777216.0),
    (pa.array([3.4028235e38], pa.float32()), 3.4028235e38),
    (pa.array([0.1], pa.float32()).dictionary_encode(), 0.1),
    (pa.array([[0.7, None]], pa.list_(pa.float32())), [0.7, None]),
    (
        pa.array([{"float": 1 / 3, "s": 0.3}], pa.struct({"float": pa.float64(), "s": pa.float32()})),
        {"float": 1 / 3, "s": 0.3},
    ),
    (pa.array([[("k", 0.2)]], pa.map_(pa.string(), pa.float32())), {"k": 0.2}),
    (pa.array([Decimal("1.10")]), "1.10"),
    (pa.array([date(2024, 1, 2)]), "2024-01-02"),
    (pa.array([time(3, 4, 5)], pa.time32("s")), "03:04:05"),
    (pa.array([MOMENT]), "2024-01-02T03:04:05"),
    (pa.array([1704164645000000001], pa.timestamp("ns")), "2024-01-02T03:04:05"),
    (pa.array([MOMENT.replace(tzinfo=UTC)], pa.timestamp("ns", "UTC")), "2024-01-02T03:04:05+00:00"),
    (pa.array([["a", None]]), ["a", None]),
    (pa.array([{"a": 1, "b": [0.5]}]), {"a": 1, "b": [0.5]}),
    (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), {"k": 1}),
    (pa.array([UUID(int=1).bytes], pa.uuid()), str(UUID(int=1))),
    (pa.nulls(1), None),
]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()], ids=str)
def test_whole_numbers_are_whole_although_pandas_makes_floats_of_them(tmp_path: Path, kind: Any) -> None:
    numbers = [5.0, None, -0.0, 2048.0, 0.5]
    columns = {"v": pa.array(numbers, kind), "inner": pa.array([[n] for n in numbers], pa.list_(kind))}
    found = variables_of(tmp_path, write(tmp_path, columns))
    assert [str(row["v"]) for row in found] == ["5", "None", "0", "2048", "0.5"]
    assert [str(row["inner"]) for row in found] == ["[5]", "[None]", "[0]", "[2048]", "[0.5]"]


@pytest.mark.parametrize(("column", "value"), TYPES, ids=[str(column.type) for column, _ in TYPES])
def test_values_are_those_that_json_has(tmp_path: Path, column: Any, value: object) -> None:
    assert variables_of(tmp_path, write(tmp_path, {"q": ["x"], "v": column})) == [{"q": "x", "v": value}]


STRANGE = [
    pa.array([b"x"]),
    pa.array([[b"x"]]),
    pa.array([{"image": {"bytes": b"x", "path": "p"}}]),
    pa.array([5], pa.duration("s")),
]


@pytest.mark.parametrize("column", STRANGE, ids=[str(column.type) for column in STRANGE])
def test_a_column_that_json_has_no_form_for_is_a_problem_until_it_is_left_out(
    tmp_path: Path, column: Any
) -> None:
    reference = write(tmp_path, {"q": ["x"], "image": column})

    (problem,) = problems_of(tmp_path, reference)

    assert problem.message.startswith("the column `image` contains ")
    assert "`columns: {image: null}`" in problem.hint
    assert str(problem.location) == f"{tmp_path / 't.parquet'}:1:2"
    assert variables_of(tmp_path, [{"path": reference, "columns": {"image": None}}]) == [{"q": "x"}]


@pytest.mark.parametrize(
    ("columns", "where", "message"),
    [
        ({"q": ["a", "b"], "score": [0.5, float("nan")]}, "2:2", "this cell contains nan"),
        ({"q": ["a"], "v": [[float("inf")]]}, "1:2", "this cell contains inf"),
        ({"q": ["a", "b"], "threshold": [0.5, 7.0]}, "2:2", "`threshold` must be a number from 0 to 1"),
        ({"q": ["a"], "treshold": [0.5]}, "1:2", "unknown key `treshold` in a test"),
        ({"q": ["a"], "vars.q": ["b"]}, "1:2", "`vars.q` duplicates another column"),
        ({"q": ["a"], "context": ["file://none.txt"]}, "1:2", "there is no file"),
        ({"vars": [{"q": "a"}], "topic": ["b"]}, "1:2", "unknown key `topic` in a test"),
        (
            {"q": ["a"], "v": pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))},
            "1:2",
            "this cell does not contain UTF-8 text",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_shown_at_its_row_and_column(
    tmp_path: Path, columns: dict[str, Any], where: str, message: str
) -> None:
    (problem,) = problems_of(tmp_path, write(tmp_path, columns))
    assert message in problem.message
    assert problem.hint or problem.notes
    assert str(problem.location) == f"{tmp_path / 't.parquet'}:{where}"


def test_files_that_cannot_be_read_are_problems_of_the_config(tmp_path: Path) -> None:
    reference = write(tmp_path, {"q": ["x" * 50] * 100})
    whole = (tmp_path / "t.parquet").read_bytes()
    for content in (b"", b"PAR1", b"q\nx\n", whole[:-9], whole[: len(whole) // 2], b"PAR1" + whole[-200:]):
        (tmp_path / "t.parquet").write_bytes(content)
        (problem,) = problems_of(tmp_path, reference)
        assert "cannot be read as Parquet" in problem.message
        assert problem.location
        assert problem.location.key_path == "tests"
    (missing,) = problems_of(tmp_path, "file://x.parquet")
    assert "there is no file" in missing.message
    (empty,) = problems_of(tmp_path, write(tmp_path, {"q": pa.array([], pa.string())}))
    assert "contains no tests" in empty.message
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["q", "q"])
    parquet.write_table(twice, tmp_path / "t.parquet")
    (double,) = problems_of(tmp_path, reference)
    assert double.message == "two columns are called `q`"


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    reference = write(tmp_path, {"question": ["x"], "b": [b"x"]})
    columns = {"questoin": "q", "b": None}
    (problem,) = problems_of(tmp_path, [{"path": reference, "columns": columns}])
    assert (problem.message, problem.hint) == (
        "`t.parquet` has no column `questoin`",
        "did you mean `question`?",
    )


def test_a_stranger_s_config_reads_no_parquet(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, write(tmp_path, {"q": ["x"]}), untrusted_access([tmp_path]))
    assert problem.message == "`t.parquet` is a Parquet file, which --untrusted does not allow"


def test_row_numbers_of_pandas_are_no_part_of_a_test(tmp_path: Path) -> None:
    """With them, the same rows in another order were other tests, which nothing compares."""
    tests = write(tmp_path, {"q": ["a", "b"], "__index_level_0__": [7, 3]})
    assert variables_of(tmp_path, tests) == [{"q": "a"}, {"q": "b"}]
    named = {"path": tests, "columns": {"__index_level_0__": "row"}}
    assert variables_of(tmp_path, [named]) == [{"q": "a", "row": 7}, {"q": "b", "row": 3}]
    left_out = {"path": tests, "columns": {"__index_level_0__": None}}
    assert variables_of(tmp_path, [left_out]) == [{"q": "a"}, {"q": "b"}]


def test_null_is_an_absent_key_of_a_test_and_a_null_variable(tmp_path: Path) -> None:
    checks = [[{"type": "contains", "value": "x", "threshold": None}], None]
    reference = write(tmp_path, {"q": ["x", None], "assert": checks, "metadata": [{"a": 1}, {"a": None}]})
    first, second = opened(tmp_path, reference).suite.tests
    assert ([item.type for item in first.assertions], dict(first.metadata)) == (["contains"], {"a": 1})
    assert (dict(second.vars), second.assertions, dict(second.metadata)) == ({"q": None}, (), {})
    whole = write(tmp_path, {"vars": [{"q": "x"}], "description": pa.nulls(1, pa.string())}, "whole.parquet")
    (case,) = opened(tmp_path, whole).suite.tests
    assert (case.description, dict(case.vars)) == (None, {"q": "x"})


def test_what_is_in_the_file_is_a_part_of_what_identifies_a_run(tmp_path: Path) -> None:
    """So a run whose file has changed since is not resumed."""
    found = []
    for text, reference in (("a", "t.parquet"), ("a", "t.parquet"), ("b", "t.parquet"), ("b", "*.parquet")):
        write(tmp_path, {"q": [text]})
        found.append(opened(tmp_path, f"file://{reference}").suite.digest)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"q": f'question {index}, "quoted"', "expected_output": "x" * (index % 97), "metadata.n": str(index % 7)}
        for index in range(count)
    ]  # fmt: skip


def write_rows(folder: Path, count: int) -> list[str]:
    found = rows(count)
    text = io.StringIO()
    table = csv.DictWriter(text, list(found[0]))
    table.writeheader()
    table.writerows(found)
    (folder / "t.csv").write_text(text.getvalue(), encoding="utf-8", newline="")
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(found), folder / "t.parquet")
    return ["file://t.csv", "file://t.jsonl", "file://t.parquet"]


def test_many_rows_are_the_same_tests_in_all_three_formats(tmp_path: Path) -> None:
    """More than are kept in memory, and more than one group is read at a time."""
    seen = []
    for reference in write_rows(tmp_path, 6_000):
        suite = opened(tmp_path, reference).suite
        assert not suite.tests.source.is_small
        seen.append(
            [(dict(case.vars), case.expected_output or None, dict(case.metadata)) for case in suite.tests]
        )
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[2]) == 6_000


def test_groups_of_any_size_are_read_piece_by_piece(tmp_path: Path) -> None:
    """One group of 32 MB, of which a part is held: a process of its own knows the most that Arrow took in it."""
    texts = [f"{index}:" + "abcdefgh" * 4_000 for index in range(1_000)]
    write(tmp_path, {"q": texts}, use_dictionary=False, compression="none", write_batch_size=16)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "import pyarrow\n"
        "from geval_cli.source.access import TRUSTED\n"
        "from geval_cli.extras.parquet import read_parquet\n"
        "count = sum(len(row.values['q']) > 32_000 for row in read_parquet(Path(sys.argv[1]), TRUSTED, ['q']))\n"
        "print(count, pyarrow.default_memory_pool().max_memory())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    count, most = map(int, done.stdout.split())
    assert count == 1_000
    assert most < 24_000_000


def test_without_the_package_the_way_to_install_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = write(tmp_path, {"q": ["x"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (problem,) = problems_of(tmp_path, reference)
    assert problem.message == "reading `t.parquet` needs the package pyarrow"
    output = check_output_path(tmp_path / "out.parquet")
    assert output is not None
    assert "needs the package pyarrow" in output.message
    assert '".[parquet]"' in problem.hint
    assert '".[parquet]"' in output.hint

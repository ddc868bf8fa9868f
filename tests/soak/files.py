"""The same hundred thousand tests from three kinds of files: equal results, and memory that does not grow with them."""

import csv
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from support.kill_trial import comparable

from benchmarks.measured import measure
from geval_cli.records import to_json
from geval_cli.store.runs import RunStore

TESTS = 100_000
FEW = 10_000
MOST_MB_MORE = 40.0
"""So much more memory may the run of ten times as many tests take: a byte for each case, and what SQLite keeps."""

Row = dict[str, str]


def run(tests: int = TESTS) -> bool:
    """Judge stored outputs from each kind of file, a tenth of them first; print memory and time."""
    digests, is_flat = set(), True
    for name, write in WRITERS.items():
        (few_mb, _), (all_mb, digest) = _judged(name, write, FEW), _judged(name, write, tests)
        digests.add(digest)
        is_flat = is_flat and all_mb - few_mb <= MOST_MB_MORE
        print(
            f"{name}: {few_mb:.0f} MB for {FEW:,} tests, {all_mb:.0f} MB for {tests:,}; results {digest[:12]}"
        )
    print("the results are equal" if len(digests) == 1 else "the results DIFFER")
    return is_flat and len(digests) == 1


def rows(count: int) -> Iterable[Row]:
    """Return tests: a variable, and an output that is to be judged."""
    return ({"number": f"n{number}", "output": f"answer number {number}"} for number in range(count))


def write_jsonl(path: Path, tests: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in tests)


def write_csv(path: Path, tests: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["number", "output"])
        writer.writeheader()
        writer.writerows(tests)


def write_parquet(path: Path, tests: Iterable[Row]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(list(tests)), path)


WRITERS: dict[str, Callable[[Path, Iterable[Row]], None]] = {
    "tests.jsonl": write_jsonl,
    "tests.csv": write_csv,
    "tests.parquet": write_parquet,
}


def _judged(name: str, write: Callable[[Path, Iterable[Row]], None], count: int) -> tuple[float, str]:
    """Return the most memory of a run, and a digest of its results."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write(folder / name, rows(count))
        asserts = "defaultTest:\n  assert: [{type: contains, value: answer}, {type: regex, value: '7'}]\n"
        (folder / "config.yaml").write_text(f"tests: file://{name}\n{asserts}", encoding="utf-8")
        took = measure(_command(), folder, os.environ)
        return took.peak_mb, _digest(folder / "home")


def _command() -> Sequence[str]:
    return [sys.executable, "-m", "geval_cli", "run", "config.yaml", "--no-progress", "--home", "home"]


def _digest(home: Path) -> str:
    """Return a digest of all results but for where in the file their tests stand."""
    digest = sha256()
    with RunStore.open_read_only(home) as store:
        (found,) = store.runs()
        for result in store.results(found.run.id):
            digest.update(json.dumps(_without_places(comparable(to_json(result)))).encode())
    return digest.hexdigest()


def _without_places(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_places(item) for key, item in value.items() if key != "location"}
    return [_without_places(item) for item in value] if isinstance(value, list) else value

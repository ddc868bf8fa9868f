"""Look up the tests that `--filter-failing` means, in a stored run or in a results file."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from geval_cli.cli.problems import print_warnings
from geval_cli.engine.selection import failing_tests
from geval_cli.errors import UsageError
from geval_cli.record_reading import case_result_from_json
from geval_cli.records import CaseResult, JsonValue
from geval_cli.runs.stored import load_report
from geval_cli.store.state import open_runs

_RESULT_FILES = (".json", ".jsonl")


def failing_in(run: str | None, home: Path | None) -> frozenset[str] | None:
    """Return the fingerprints of the tests that failed or errored in a run or a results file; None without one.

    Raises:
        UsageError: there is no such run or file.
    """
    return None if run is None else failing_tests(_results_of(run, home))


def _results_of(run: str, home: Path | None) -> Iterator[CaseResult]:
    if Path(run).suffix.lower() in _RESULT_FILES:
        yield from _results_in(Path(run))
        return
    with open_runs(home, os.environ) as runs:
        print_warnings(runs.warnings)
        yield from load_report(runs, run).results()


def _results_in(path: Path) -> Iterator[CaseResult]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".jsonl":
            items: Sequence[Mapping[str, JsonValue]] = [
                json.loads(line) for line in text.splitlines() if line.strip()
            ]
        else:
            items = json.loads(text)["results"]
        yield from (case_result_from_json(item) for item in items)
    except OSError as error:
        hint = "name a run of `geval list`, or a file that `geval run -o FILE` wrote"
        raise UsageError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}", hint=hint
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "name a file that `geval run -o FILE` wrote, or a run of `geval list`"
        raise UsageError(f"{path} holds no results of geval", hint=hint) from error

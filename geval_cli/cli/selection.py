"""The `--filter-...` options as a `Selection`; failed tests are looked up in a stored run or a results file."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from geval_cli.cli.problems import print_warnings
from geval_cli.engine.selection import Selection, failing_tests
from geval_cli.errors import UsageError
from geval_cli.record_reading import case_result_from_json
from geval_cli.records import CaseResult, JsonValue
from geval_cli.runs.stored import load_report
from geval_cli.store.state import open_runs

_RESULT_FILES = (".json", ".jsonl")


class FilterOptions(Struct, frozen=True):
    """The options as they were written."""

    providers: str | None = None
    prompts: str | None = None
    pattern: str | None = None
    metadata: Sequence[str] = ()
    failing: str | None = None
    first: int | None = None
    sample: int | None = None
    seed: int = 0


def parse_selection(options: FilterOptions, home: Path | None) -> Selection:
    """Return what to take of every config.

    Raises:
        UsageError: a pattern does not compile, or there is no such run or file.
    """
    return Selection(
        providers=_pattern("--filter-providers", options.providers),
        prompts=_pattern("--filter-prompts", options.prompts),
        pattern=_pattern("--filter-pattern", options.pattern),
        metadata=tuple(_pair(text) for text in options.metadata),
        failing=None if options.failing is None else failing_tests(_results_of(options.failing, home)),
        first=options.first,
        sample=options.sample,
        seed=options.seed,
    )


def _pattern(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    import regex  # few runs have patterns, and its own take a while to compile

    try:
        regex.compile(text)
    except regex.error as error:
        hint = "put a backslash before characters that stand for themselves"
        raise UsageError(
            f"{option} takes a regular expression, and `{text}` is not one: {error}", hint=hint
        ) from error
    return text


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        hint = "for example --filter-metadata area=billing"
        raise UsageError(f"--filter-metadata takes NAME=VALUE, not `{text}`", hint=hint)
    return name, value


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

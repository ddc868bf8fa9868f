"""`geval compare`: compare two runs, stored or in files, and show their differences."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from geval_cli.cli.options import CompareOptions, check_idle
from geval_cli.cli.problems import print_warnings
from geval_cli.engine.columns import margins_of
from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.extras.compare.comparison import (
    ComparisonOptions,
    EarlierRun,
    NamedRun,
    RunComparison,
    compare,
    comparison_to_json,
)
from geval_cli.extras.compare.text import comparison_markdown, print_comparison
from geval_cli.plugins import extra
from geval_cli.report.console import make_console
from geval_cli.report.json_file import json_text
from geval_cli.report.report import check_output_path
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import quoted
from geval_cli.runs.options import declared_options
from geval_cli.runs.stored import open_reports
from geval_cli.statistics.paired import ADJUSTMENTS

_ENDINGS = (".json", ".md")
_KEPT = "kept"
"""Given instead of a file, it stands for the labels that `geval label` keeps for the two runs."""


def compare_runs(earlier: str, later: str, given: CompareOptions) -> None:
    """Print the comparison of two runs or results files, and write it to files.

    Raises:
        UsageError: there is no such run or file, the suites are unrelated, or an option is invalid.
        ConfigError: a file cannot be written in the format of its extension.
        OutputError: a file cannot be written.
    """
    if given.adjust not in ADJUSTMENTS:
        raise UsageError(f"unknown method --adjust {given.adjust}", hint="use holm or bh")
    if not 0 < given.detect <= 1:
        hint = "give the smallest difference in scores that matters to you, for example 0.05"
        raise UsageError(f"--detect {given.detect:g} must be above 0 and at most 1", hint=hint)
    if given.labels is None:
        check_idle(given, {"allow_unmatched"}, without="--labels")
    problems = []
    for path in given.outputs:
        problem = check_output_path(path)
        if path.suffix.lower() not in _ENDINGS:
            hint = f"use a name that ends in one of: {', '.join(_ENDINGS)}"
            problem = Problem(f"cannot write a comparison to {path}", hint=hint)
        elif path.is_file() and path.resolve() in {Path(name).resolve() for name in (earlier, later)}:
            problem = Problem(f"cannot write to {path}: it is one of the runs", hint="choose another file")
        if problem is not None:
            problems.append(problem)
    if problems:
        raise ConfigError(problems)
    options = ComparisonOptions(
        given.detect, given.adjust, given.columns, given.cluster, given_margins=given.margins
    )
    with open_reports([earlier, later], given.home, os.environ) as ((a, b), warnings):
        print_warnings(warnings)
        before = EarlierRun(a)
        found = compare(NamedRun(earlier, a), NamedRun(later, b), options, before)
        corrected = None
        if given.labels is not None:
            by_labels = extra("true differences")
            of_labels = by_labels.CorrectOptions(
                columns=given.columns,
                cluster=given.cluster,
                margins=margins_of(b.run).with_given(given.margins),
            )
            labels: Any = given.labels
            if str(labels) == _KEPT:
                labels = extra("human labels").labels_kept_for(a.run.id, b.run.id, home=given.home)
            corrected = by_labels.correct(labels, before, b, of_labels, allow_unmatched=given.allow_unmatched)
    for path in given.outputs:
        is_markdown = path.suffix.lower() == ".md"
        with SafeFile(path) as file:
            file.write(_markdown(found, corrected) if is_markdown else _json(found, corrected))
    if given.prints_json:
        sys.stdout.write(_json(found, corrected))
        return
    console = make_console(sys.stdout, environ=os.environ)
    if corrected is not None:
        corrected.print(console)
        console.print("\nThe judge alone:", style="bold")
    print_comparison(
        found,
        console,
        is_verbose=given.is_verbose,
        more=" ".join(["geval compare", *map(quoted, (earlier, later, *_options_again(given))), "-v"]),
    )


def _options_again(given: CompareOptions) -> Iterator[str]:
    """Yield the options that shape a comparison, as they were given."""
    for field, option in declared_options(CompareOptions):
        value = getattr(given, field.name)
        if field.name not in {"outputs", "is_verbose"} and value != field.default:
            for item in value if isinstance(value, tuple) else (value,):
                yield from (option.name,) if item is True else (option.name, str(item))


def _json(found: RunComparison, corrected: Any) -> str:
    """Return the comparison as JSON, with the figures corrected by labels under `corrected`."""
    more = {} if corrected is None else {"corrected": corrected.to_json()}
    return json_text(comparison_to_json(found) | more, indent=2) + "\n"


def _markdown(found: RunComparison, corrected: Any) -> str:
    if corrected is None:
        return comparison_markdown(found)
    return f"{corrected.to_markdown()}\n{comparison_markdown(found, heading='## The judge alone')}"

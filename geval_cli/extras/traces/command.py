"""`geval import traces`: turns an application's traces and logs into a file of tests."""

import sys
from pathlib import Path

from geval_cli.cli.options import TracesOptions
from geval_cli.cli.problems import print_problems
from geval_cli.errors import ConfigError, Problem, Severity, UsageError
from geval_cli.extras.traces.importing import TraceReading, chosen_answers, line_of, read_traces
from geval_cli.numbers import plural
from geval_cli.report.report import check_output_path
from geval_cli.report.safe_file import SafeFile


def import_traces(source: Path, output: Path, choice: TracesOptions) -> None:
    """Write the tests in a file of traces, and print how many there are.

    Raises:
        ConfigError: lines cannot be read; it has the place of each, and nothing is written.
        UsageError: there is nothing to write, or the file exists and may not be overwritten.
        OutputError: the file cannot be written.
    """
    if output.suffix.lower() != ".jsonl":
        raise UsageError(f"tests cannot be written to {output}", hint="use a name that ends in .jsonl")
    if output.exists() and not choice.may_replace:
        raise UsageError(
            f"{output} already exists and was not changed", hint="choose another file, or add --force"
        )
    problem = check_output_path(output)
    if problem is not None:
        raise ConfigError([problem])
    reading, written = TraceReading(), 0
    with SafeFile(output) as file:
        answers = read_traces(source, reading, joins=not choice.each_call)
        for answer in chosen_answers(answers, choice.where, choice.sample, choice.seed):
            file.write(line_of(answer.row()))
            written += 1
        more = reading.bad - len(reading.problems)
        rest = [Problem(f"{plural(more, 'more line')} cannot be used")] if more > 0 else []
        problems = [*reading.problems, *rest]
        # Inside the block, so that an error leaves the file unchanged.
        if reading.bad and not (choice.skips_bad and reading.answers):
            raise ConfigError(problems)
        if not written:
            raise _nothing(source, reading, choice)
    print_problems(
        [
            Problem(problem.message, problem.location, problem.hint, severity=Severity.WARNING)
            for problem in problems[:1]
        ]
    )
    left_out = [
        f"{plural(count, what, many)} skipped"
        for count, what, many in (
            (reading.silent, "call without an answer", "calls without an answer"),
            (reading.bad, "unreadable line", "unreadable lines"),
        )
        if count
    ]
    sys.stdout.write(
        f"wrote {plural(written, 'test')} to {output}{''.join(f'; {part}' for part in left_out)}\n"
    )
    sys.stdout.write(f"next: add `tests: file://{output.name}` to a config\n")


def _nothing(source: Path, reading: TraceReading, choice: TracesOptions) -> UsageError:
    if reading.answers:
        what = f"none of {plural(reading.answers, 'model call')} in {source} matches"
        return UsageError(what, hint="use fewer or other conditions with --where" if choice.where else "")
    if reading.silent:
        what = f"{plural(reading.silent, 'model call')} in {source}, but none has its answer"
        hint = "have the application record messages: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true"
        return UsageError(what, hint=hint)
    return UsageError(
        f"there are no model calls in {source}", hint="see docs/reference/traces.md for the supported spans"
    )

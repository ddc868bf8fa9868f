"""Every failure and error of a run in full: what was expected, what came, how the judge reached its score."""

from msgspec import Struct, field
from rich.console import Console
from rich.text import Text

from geval_cli.records import AssertionResult, CaseResult, ErrorInfo, Status
from geval_cli.report.assertion_view import AssertionView
from geval_cli.report.console import print_hanging
from geval_cli.report.numbers import plural
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, sanitized_lines, value_text
from geval_cli.report.verdict import (
    case_number,
    case_title,
    case_verdict,
    column_title,
    signs_of,
)

CASES_MAX = 20
VERBOSE_CASES_MAX = 500
_OUTPUT_LINES = 6
_OUTPUT_CHARACTERS = 1_200
_REASON_LINES = 20
_REASON_CHARACTERS = 4_000
_RAW_LINES = 4
_TRACE_LINES = 8
_RAW_CHARACTERS = 600
_NAMED_MAX = 12
_LABEL_WIDTH = len("output  ")
_PROBLEMS = frozenset({Status.FAILED, Status.ERROR})
_USUAL_ENDS = frozenset({None, "stop", "end_turn", "stop_sequence", "eos", "tool_calls", "function_call"})
_OUT_OF_REACH = frozenset(
    {"ProviderAuthError", "ProviderRateLimitError", "ProviderTimeoutError", "ProviderUnavailableError"}
)
_UNUSUAL_ENDS = {
    "length": "a token limit cut the answer off",
    "max_tokens": "a token limit cut the answer off",
    "content_filter": "a content filter cut the answer off or replaced it",
}


class _Entry(Struct):
    """A case to show, and the later ones that broke in exactly the same way."""

    result: CaseResult
    same_count: int = 0
    same_numbers: list[str] = field(default_factory=list)

    def add_number(self, number: str) -> None:
        is_new = number != case_number(self.result) and number not in self.same_numbers
        if is_new and len(self.same_numbers) < _NAMED_MAX:
            self.same_numbers.append(number)


class Failures(Struct):
    """The cases to show in full, picked while the results of a run go by: failures and errors, at most 20.

    With `verbose` every case, at most 500. Cases that could not run or be judged for the same reason (a refused key,
    say) are shown once and counted.
    """

    verbose: bool = False
    entries: list[_Entry] = field(default_factory=list)
    left_out: int = 0
    _by_error: dict[tuple[str, ...], _Entry] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Take in the next result."""
        if not (self.verbose or result.status in _PROBLEMS):
            return
        key = _error_key(result)
        if key and key in self._by_error:
            twin = self._by_error[key]
            twin.same_count += 1
            twin.add_number(case_number(result))
        elif len(self.entries) < (VERBOSE_CASES_MAX if self.verbose else CASES_MAX):
            self.entries.append(_Entry(result))
            if key:
                self._by_error[key] = self.entries[-1]
        else:
            self.left_out += 1


def print_failures(failures: Failures, report: RunReport, console: Console) -> None:
    """Print what `failures` took in, and say what was left out."""
    verbose = failures.verbose
    if not failures.entries:
        return
    console.print()
    title = Text("all results" if verbose else "failures and errors")
    console.rule(title, characters="─" if console.is_terminal else "-", style="dim", align="left")
    printer = _CasePrinter(report, console, verbose)
    for entry in failures.entries:
        printer.print_entry(entry)
    if failures.left_out:
        kind = "result" if verbose else "failure or error"
        kinds = "results" if verbose else "failures and errors"
        what = plural(failures.left_out, f"more {kind}", f"more {kinds}")
        console.print(Text(f"\n {what} not shown; everything: {report.way_to_everything}", style="dim"))


def _error_key(result: CaseResult) -> tuple[str, ...] | None:
    """Return the key of cases that broke for the same reason; None for one that is like no other."""
    if result.error is not None:
        return None if result.assertions else _spelled(result.provider.id, result.error)
    if result.status is not Status.ERROR or any(item.status is Status.FAILED for item in result.assertions):
        return None
    errors = [item.error for item in result.assertions if item.error is not None]
    # A judge that cannot be asked is one matter, whatever it would have judged; one that answers oddly is not.
    if not errors or not all(error.type in _OUT_OF_REACH for error in errors):
        return None
    return tuple(word for error in errors for word in _spelled("judge", error))


def _spelled(who: str, error: ErrorInfo) -> tuple[str, ...]:
    return who, error.type, error.message


class _CasePrinter:
    """Prints cases one after another, remembering which evaluation steps the reader has seen already."""

    def __init__(self, report: RunReport, console: Console, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._signs = signs_of(console)
        self._columns = {column.index: column for column in report.columns}
        self._all_columns = report.columns
        self._seen_steps: dict[tuple[str, ...], str] = {}

    def print_entry(self, entry: _Entry) -> None:
        result = entry.result
        self._console.print()
        self._print_heading(result)
        if result.error is not None:
            self._print_error(result.error, indent=3)
        if entry.same_count:
            self._print_same(entry)
        if result.output is not None:
            text = value_text(result.output)
            lines = clipped_lines(text, line_count=_OUTPUT_LINES, character_count=_OUTPUT_CHARACTERS)
            self._print_block("output", lines or ["(empty)"], indent=3)
        self._print_end(result.finish_reason)
        for assertion in result.assertions:
            self._print_assertion(assertion, result, indent=3)

    def _print_end(self, finish_reason: str | None) -> None:
        if finish_reason in _USUAL_ENDS:
            return
        meaning = _UNUSUAL_ENDS.get(str(finish_reason), "the model ended its answer in an unusual way")
        text = f"{meaning} (finish reason: {one_line(str(finish_reason), 60)})"
        self._print_block("ended", [text], indent=3, style="yellow")

    def _print_heading(self, result: CaseResult) -> None:
        head = case_verdict(result, self._signs).append("  ")
        body = Text(case_number(result), style="bold")
        column = self._columns.get(result.column)
        if column is not None and len(self._all_columns) > 1:
            body.append(f"  [{column_title(column, self._all_columns, self._signs)}]", style="not bold cyan")
        body.append(f"  {case_title(result, 200)}", style="not bold")
        print_hanging(head, body, self._console, indent=1)

    def _print_assertion(self, assertion: AssertionResult, result: CaseResult, *, indent: int) -> None:
        is_problem = assertion.status in _PROBLEMS
        view = AssertionView(assertion, self._signs)
        print_hanging(view.verdict(), view.heading(), self._console, indent=indent)
        if not is_problem and not self._verbose:
            return
        inner = indent + 2
        verdicts = view.verdicts()
        if len(verdicts) == 1 or "judges" in assertion.detail:
            self._print_reason(assertion.reason or "", indent=inner)
        if assertion.error is not None:
            self._print_error(assertion.error, indent=inner)
        for position, part in enumerate(verdicts, start=1):
            if len(verdicts) > 1:
                of_whom = "judge" if "judges" in assertion.detail else "part"
                self._print_block(f"{of_whom} {position}", [part.title()], indent=inner)
                self._print_reason(part.reason(), indent=inner)
            for label, text in part.facts():
                self._print_block(label, [text], indent=inner, style="yellow" if label == "note" else "")
            name = f"{case_number(result)}, {sanitize(assertion.metric or assertion.type)}"
            self._print_steps(part.evaluation_steps(), name, indent=inner)
        for item in assertion.assertions:
            self._print_assertion(item, result, indent=inner)

    def _print_reason(self, reason: str, *, indent: int) -> None:
        lines = clipped_lines(reason, line_count=_REASON_LINES, character_count=_REASON_CHARACTERS)
        self._print_block("reason", lines, indent=indent)

    def _print_steps(self, steps: tuple[str, ...], name: str, *, indent: int) -> None:
        if not steps:
            return
        if steps in self._seen_steps:
            self._print_block("steps", [f"the same as in {self._seen_steps[steps]}"], indent=indent)
            return
        self._seen_steps[steps] = name
        for number, step in enumerate(steps, start=1):
            head = _label("steps" if number == 1 else "").append(f"{number}. ")
            print_hanging(head, Text(step), self._console, indent=indent)

    def _print_error(self, error: ErrorInfo, *, indent: int) -> None:
        message = clipped_lines(f"{error.type}: {error.message}", line_count=10, character_count=2_000)
        self._print_block("error", message, indent=indent, style="yellow")
        if error.hint:
            self._print_block(
                "hint", clipped_lines(error.hint, line_count=4, character_count=1_000), indent=indent
            )
        if error.raw and error.is_bug:
            self._print_block("trace", sanitized_lines(error.raw)[-_TRACE_LINES:], indent=indent, style="dim")
        elif error.raw:
            raw = clipped_lines(error.raw, line_count=_RAW_LINES, character_count=_RAW_CHARACTERS)
            self._print_block("reply", raw, indent=indent, style="dim")

    def _print_same(self, entry: _Entry) -> None:
        names = ", ".join(entry.same_numbers)
        more = ", ..." if entry.same_count > len(entry.same_numbers) else ""
        text = f"the same in {plural(entry.same_count, 'more case')}"
        self._print_block("also", [f"{text}: {names}{more}" if names else text], indent=3)

    def _print_block(self, label: str, lines: list[str], *, indent: int, style: str = "") -> None:
        for position, line in enumerate(lines):
            head = _label(label if position == 0 else "")
            print_hanging(head, Text(line or " ", style=style), self._console, indent=indent)


def _label(text: str) -> Text:
    return Text(text.ljust(_LABEL_WIDTH - 1) + " ", style="dim")

"""One case in words: its assertions, the facts of a judge's verdict that `detail` holds, and all of it printed."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from msgspec import Struct, field
from rich.console import Console
from rich.text import Text

from geval_cli.judge.checklist import CHECKLIST
from geval_cli.numbers import (
    format_comparison,
    format_cost,
    format_duration,
    format_rating,
    format_score,
    format_share,
    plural,
)
from geval_cli.providers.wire.finish_reasons import End, known_end
from geval_cli.records import AssertionResult, CaseResult, ErrorInfo, JsonValue, Status, TraceStep
from geval_cli.report.checklist import checklist_items
from geval_cli.report.console import print_hanging
from geval_cli.report.report import (
    RunReport,
    case_number,
    case_title,
    failed_assertions,
    failure_text,
    is_decided_by_score,
    margin_below,
    output_text,
    score_text,
    worst_first,
)
from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, sanitized_lines, value_text
from geval_cli.report.verdict import (
    PROBLEMS,
    STYLES,
    Signs,
    case_verdict,
    column_title,
    fitted_title,
    has_fallback,
    signs_of,
    verdict,
)

_DISTRIBUTION_MAX = 6
_CRITERIA_WIDTH = 300
_DETAIL_DIGITS = 4
_TOLD = frozenset(
    {"usage", "latency_ms", "wins", "ties", "losses", "pairs"}
    | {"rating", "score_range", "estimator", "coverage", "distribution", "judge", "source_from", "fallback"}
    | {"evaluation_steps", "reason", "parts", "requested", "valid", CHECKLIST}
    | {"answers", "min", "over", "window"}
)
"""The keys of `detail` that have words of their own."""

_LABEL_WIDTH = len("output  ")
_NAMED_MAX = 12
_UNUSUAL_ENDS = {
    End.LENGTH: "a token limit cut the answer off",
    End.FILTERED: "a content filter cut the answer off or replaced it",
    End.REFUSED: "the model refused",
}


class AssertionView(Struct, frozen=True):
    """Reads `detail` with care: it may come from a file that someone else wrote."""

    assertion: AssertionResult
    signs: Signs

    def verdict(self) -> Text:
        """`✗ FAIL`, and a mark when the estimator fell back."""
        item = self.assertion
        line = verdict(item.status, None, self.signs, has_fallback=has_fallback((item,)))
        return line.append("  ")

    def heading(self) -> Text:
        """`g-eval coherence  0.40 < 0.50 (default)  summaries.yaml:8:9`."""
        item = self.assertion
        name = f"{sanitize(item.type)} {sanitize(item.metric)}" if item.metric else sanitize(item.type)
        line = Text.assemble((name, "bold"))
        if item.score is not None and item.status is not Status.ERROR:
            line.append(f"  {self.score_text()}")
        if item.detail.get("split") is True:
            line.append("  split", style="yellow")
        if item.weight != 1:
            line.append(f"  weight {item.weight:g}", style="dim")
        if item.location:
            line.append(f"  {sanitize(item.location)}", style="dim")
        return line

    def verdicts(self) -> list["JudgeVerdict"]:
        """Return the judge's verdicts: one, or one for each of a list of criteria, or of each of several judges."""
        detail = self.assertion.detail
        parts = detail.get("judges") or detail.get("parts")
        if not isinstance(parts, list | tuple):
            return [JudgeVerdict(detail)]
        return [JudgeVerdict(part) for part in parts if isinstance(part, Mapping)] or [JudgeVerdict(detail)]

    def further(self) -> Iterator[tuple[str, str]]:
        """Yield everything else in `detail`, as JSON; not sanitized yet, since it may have lines."""
        for name, value in self.assertion.detail.items():
            if name not in _TOLD and value not in (None, [], {}):
                yield sanitize(name), value if isinstance(value, str) else value_text(_tidy(value))

    def duels(self) -> str:
        """`beat a; tied with b; lost to c, d`: with which other outputs this one was compared."""
        pairs = self.assertion.detail.get("pairs")
        found: dict[str, list[str]] = {"win": [], "tie": [], "loss": []}
        for pair in pairs if isinstance(pairs, list | tuple) else ():
            if isinstance(pair, Mapping) and pair.get("outcome") in found:
                found[str(pair["outcome"])].append(one_line(str(pair.get("label", "")), 60))
        words = {"win": "beat", "tie": "tied with", "loss": "lost to"}
        return "; ".join(f"{words[outcome]} {', '.join(names)}" for outcome, names in found.items() if names)

    def paid(self) -> list[str]:
        """Return what the judge's calls cost and how long they took; nothing where none was made."""
        item = self.assertion
        if not item.usage.requests and not item.usage.cached_requests:
            return []
        if not item.usage.requests:
            return ["from the cache"]
        cost = [] if not item.usage.cost_usd else [format_cost(item.usage.cost_usd)]
        return [*cost, *([format_duration(item.latency_ms)] if item.latency_ms else [])]

    def score_text(self) -> str:
        """`0.40 < 0.50 (default)`, and `P(pass) 0.14` where it is known; empty when nothing was scored."""
        compared, chance = self._compared(), self.assertion.detail.get("p_pass")
        if not compared or not _is_number(chance):
            return compared
        mark = ", borderline" if self.assertion.detail.get("borderline") is True else ""
        return f"{compared}  P(pass) {format_score(chance)}{mark}"

    def _compared(self) -> str:
        item = self.assertion
        if item.score is None:
            return ""
        if item.threshold is None:
            return format_score(item.score)
        if not is_decided_by_score(item):
            return score_text(item)
        default = " (default)" if item.threshold_is_default else ""
        if item.type.startswith("not-"):
            # The threshold is compared with what was judged; the score is that inverted.
            judged = format_comparison(1 - item.score, item.threshold)
            return f"{format_score(item.score)}, since {judged}{default}"
        return f"{format_comparison(item.score, item.threshold)}{default}"


class JudgeVerdict(Struct, frozen=True):
    """One verdict of a judge out of `detail`; all its texts are sanitized."""

    detail: Mapping[str, JsonValue]

    def title(self) -> str:
        """Return the score and the criteria on one line."""
        score, criteria = self.detail.get("score"), self.detail.get("label") or self.detail.get("criteria")
        parts = [format_score(score)] if _is_number(score) else []
        return "  ".join(
            [*parts, one_line(criteria, _CRITERIA_WIDTH)] if isinstance(criteria, str) else parts
        )

    def reason(self) -> str:
        """Return the judge's reason as it came; not sanitized yet, since it may have lines."""
        text = self.detail.get("reason")
        return text if isinstance(text, str) else ""

    def facts(self) -> list[tuple[str, str]]:
        """Label and text of each thing that is known about the rating."""
        facts = [("rating", self._rating()), ("answers", self._answers()), ("spread", self._distribution())]
        known = {**self.detail, "error": _message_of(self.detail.get("error"))}
        for label, key in (
            ("judge", "judge"),
            ("source", "source_from"),
            ("note", "fallback"),
            ("error", "error"),
        ):
            value = known.get(key)
            facts.append((label, one_line(value, 400) if isinstance(value, str) else ""))
        return [(label, text) for label, text in facts if text]

    def evaluation_steps(self) -> tuple[str, ...]:
        """Return the steps that the judge followed; empty when it had none."""
        steps = self.detail.get("evaluation_steps")
        if not isinstance(steps, list | tuple):
            return ()
        return tuple(sanitize(" ".join(step.split())) for step in steps if isinstance(step, str))

    def shares(self) -> list[tuple[str, float]]:
        """Every rating that has a share of the distribution, in the order of the scale; the shares add up to 1."""
        masses = _masses(self.detail.get("distribution"))
        total = sum(mass for _, mass in masses)
        return [(rating, mass / total) for rating, mass in _ordered(masses)] if total > 0 else []

    def _rating(self) -> str:
        rating = self.detail.get("rating")
        bounds = self.detail.get("score_range")
        estimator = self._estimator()
        if self._answers():
            estimator = f"mean of the answers, {estimator}"
        if self.detail.get("read_from") == "retry":
            estimator = f"{estimator}, after a retry"
        if not _is_number(rating):
            return f"none ({estimator})" if estimator else ""
        text = format_rating(float(rating))
        match bounds:
            case [low, high] if _is_number(low) and _is_number(high):
                text += f" in {low:g} to {high:g}"
        return f"{text} ({estimator})" if estimator else text

    def _estimator(self) -> str:
        detail = self.detail
        estimator = detail.get("estimator")
        coverage, requested, valid = (detail.get(key) for key in ("coverage", "requested", "valid"))
        if estimator == "logprobs" and _is_number(coverage):
            return f"logprobs, coverage {format_share(coverage)}"
        if estimator == "samples" and _is_number(requested):
            taken = f"{requested:g}{_most_samples(detail)} samples"
            return f"{taken}, {valid:g} valid" if _is_number(valid) else taken
        if estimator == "single":
            return "single rating"
        return one_line(estimator, 100) if isinstance(estimator, str) else ""

    def _answers(self) -> str:
        """Return `1.00, 0.40, 0.70`: the scores of the answers of a conversation, where each was rated."""
        answers = self.detail.get("answers")
        found = [item.get("score") for item in answers or () if isinstance(item, Mapping)]
        return ", ".join(format_score(score) for score in found if _is_number(score))

    def _distribution(self) -> str:
        """`3: 50%, 2: 40%, 1: 5%`: the likeliest ratings in the order of the scale."""
        masses = _masses(self.detail.get("distribution"))
        total = sum(mass for _, mass in masses)
        if total <= 0:
            return ""
        likeliest = sorted(masses, key=lambda pair: -pair[1])[:_DISTRIBUTION_MAX]
        shown = ", ".join(
            f"{one_line(name, 20)}: {format_share(mass / total)}" for name, mass in _ordered(likeliest)
        )
        hidden = sum(1 for _, mass in masses if mass > 0) - len(likeliest)
        return f"{shown}, and {hidden} more" if hidden > 0 else shown


def _tidy(value: JsonValue) -> JsonValue:
    """Return a value whose numbers have no tails of the arithmetic."""
    match value:
        case float():
            return round(value, _DETAIL_DIGITS)
        case Mapping():
            return {name: _tidy(item) for name, item in value.items()}
        case list() | tuple():
            return [_tidy(item) for item in value]
    return value


def _message_of(error: JsonValue) -> JsonValue:
    """Return the message of a judge's error."""
    return error.get("message") if isinstance(error, Mapping) else None


def _most_samples(detail: Mapping[str, JsonValue]) -> str:
    """Return ` of at most 20` where samples could end early."""
    early_stop = detail.get("early_stop")
    upto = early_stop.get("upto") if isinstance(early_stop, Mapping) else None
    return f" of at most {upto:g}" if _is_number(upto) else ""


def _masses(value: JsonValue) -> list[tuple[str, float]]:
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping | list | tuple):
        return []
    found = []
    for pair in pairs:
        match pair:
            case [rating, mass] if _is_number(mass) and mass > 0:
                found.append((f"{rating:g}" if _is_number(rating) else str(rating), float(mass)))
    return found


def _ordered(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
    def place(pair: tuple[str, float]) -> tuple[float, str]:
        try:
            return float(pair[0]), pair[0]
        except ValueError:
            return float("inf"), pair[0]

    return sorted(pairs, key=place)


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class Limit(NamedTuple):
    """How much of one text is shown."""

    line_count: int
    character_count: int


class Shown(Struct, frozen=True):
    """How much of a case is shown: so much of each text, and whether passed assertions are explained."""

    output: Limit = Limit(6, 1_200)
    reason: Limit = Limit(20, 4_000)
    raw: Limit = Limit(4, 600)
    trace_lines: int = 8
    is_verbose: bool = False
    has_inputs: bool = False


_ALL = Limit(sys.maxsize, sys.maxsize)
IN_SHORT = Shown()
VERBOSE = Shown(is_verbose=True)
UNCUT = Shown(_ALL, _ALL, _ALL, sys.maxsize, is_verbose=True, has_inputs=True)


class ShownCase(Struct):
    """A case to show, and the later ones that broke in exactly the same way."""

    result: CaseResult
    same_count: int = 0
    same_numbers: list[str] = field(default_factory=list)

    def add_number(self, number: str) -> None:
        is_new = number != case_number(self.result) and number not in self.same_numbers
        if is_new and len(self.same_numbers) < _NAMED_MAX:
            self.same_numbers.append(number)


def _step_text(step: TraceStep) -> str:
    called = step.name if step.args is None else f"{step.name} {value_text(step.args)}"
    if step.error is not None:
        return f"{called} failed: {step.error}"
    return called if step.output is None else f"{called} -> {value_text(step.output)}"


class CasePrinter:
    """Prints cases one after another, remembering which evaluation steps the reader has seen already."""

    def __init__(self, report: RunReport, console: Console, shown: Shown) -> None:
        self._console = console
        self._shown = shown
        self._signs = signs_of(console)
        self._columns = {column.index: column for column in report.columns}
        self._all_columns = report.columns
        self._seen_steps: dict[tuple[str, ...], str] = {}

    def print_entry(self, entry: ShownCase) -> None:
        result = entry.result
        self._console.print()
        self._print_heading(result)
        if result.error is not None:
            self._print_error(result.error, indent=3)
        if entry.same_count:
            self._print_same(entry)
        if self._shown.has_inputs:
            self._print_inputs(result)
        if result.output is not None or result.turns:
            lines = clipped_lines(output_text(result), **self._shown.output._asdict())
            self._print_block("turns" if result.turns else "output", lines or ["(empty)"], indent=3)
        if self._shown.has_inputs:
            self._print_trace(result.trace, characters=2000)
        self._print_end(result)
        for assertion in result.assertions:
            self._print_assertion(assertion, result, indent=3)

    def _print_inputs(self, result: CaseResult) -> None:
        """Print what went in, and what is known about the call."""
        self._print_block("prompt", sanitized_lines(result.prompt.rendered), indent=3)
        for name, text in (result.asked.texts if result.asked else {}).items():
            lines = sanitized_lines(f"{name.replace('_', ' ')} = {text}")
            self._print_block("test", lines, indent=3)
        for name, value in result.vars.items():
            self._print_block("var", sanitized_lines(f"{name} = {value_text(value)}"), indent=3)
        if result.metadata:
            self._print_block("about", [sanitize(value_text(dict(result.metadata)))], indent=3)
        took = "with a batch" if result.latency_ms is None else format_duration(result.latency_ms)
        parts = [sanitize(result.provider.label or result.provider.id), took]
        self._print_block(
            "by", [", ".join([*parts, *(["from the cache"] if result.cached else [])])], indent=3
        )

    def _print_trace(self, steps: Sequence[TraceStep], *, characters: int) -> None:
        """Print the first steps of a trace: a line each, or only their names where no more is known of them."""
        if not steps:
            return
        more = [] if len(steps) <= _PASSED_NAMED else [f"{len(steps) - _PASSED_NAMED:,} more"]
        if any(step.args is not None or step.output is not None for step in steps):
            lines = [one_line(_step_text(step), characters) for step in steps[:_PASSED_NAMED]]
            self._print_block("trace", [*lines, *more], indent=3)
            return
        names = [one_line(f"{step.name}{' (failed)' * (step.error is not None)}", 40) for step in steps]
        self._print_block("trace", [", ".join([*names[:_PASSED_NAMED], *more])], indent=3)

    def _print_end(self, result: CaseResult) -> None:
        if result.ended_by:
            self._print_block("ended by", [one_line(result.ended_by, 60)], indent=3)
        finish_reason = result.finish_reason
        end = known_end(finish_reason or "stop")
        if end in (End.STOP, End.TOOL_CALLS):
            return
        meaning = (
            "the model ended its answer in an unusual way" if end is None else _UNUSUAL_ENDS.get(end, "")
        )
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
        is_problem = assertion.status in PROBLEMS
        view = AssertionView(assertion, self._signs)
        print_hanging(view.verdict(), view.heading(), self._console, indent=indent)
        if not is_problem and not self._shown.is_verbose:
            return
        inner = indent + 2
        self._print_verdicts(view, case_number(result), indent=inner)
        if self._shown.has_inputs:
            if duels := view.duels():
                self._print_block("pairs", [duels], indent=inner)
            if paid := view.paid():
                self._print_block("calls", [", ".join(paid)], indent=inner, style="dim")
            for label, text in view.further():
                self._print_block(label, sanitized_lines(text), indent=inner, style="dim")
        for item in assertion.assertions:
            self._print_assertion(item, result, indent=inner)

    def _print_verdicts(self, view: AssertionView, number: str, *, indent: int) -> None:
        assertion, verdicts = view.assertion, view.verdicts()
        if len(verdicts) == 1 or "judges" in assertion.detail:
            self._print_reason(assertion.reason or "", indent=indent)
        if assertion.error is not None:
            self._print_error(assertion.error, indent=indent)
        if "judges" in assertion.detail:
            self._print_items(assertion.detail, indent=indent)
        for position, part in enumerate(verdicts, start=1):
            if len(verdicts) > 1:
                of_whom = "judge" if "judges" in assertion.detail else "part"
                self._print_block(f"{of_whom} {position}", [part.title()], indent=indent)
                self._print_reason(part.reason(), indent=indent)
            self._print_items(part.detail, indent=indent)
            for label, text in part.facts():
                self._print_block(label, [text], indent=indent, style="yellow" if label == "note" else "")
            name = f"{number}, {sanitize(assertion.metric or assertion.type)}"
            self._print_steps(part.evaluation_steps(), name, indent=indent)

    def _print_reason(self, reason: str, *, indent: int) -> None:
        lines = clipped_lines(reason, **self._shown.reason._asdict())
        self._print_block("reason", lines, indent=indent)

    def _print_items(self, detail: Mapping[str, JsonValue], *, indent: int) -> None:
        for number, item in enumerate(checklist_items(detail)):
            status = Status.PASSED if item.is_met else Status.FAILED
            sign = Text(f"{self._signs.marks[status]} ", style=STYLES[status])
            print_hanging(
                _label("items" if number == 0 else "").append(sign),
                Text(item.line),
                self._console,
                indent=indent,
            )

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
        limits = self._shown
        is_named = error.is_bug or limits.has_inputs
        text, most = f"{error.type}: {error.message}" if is_named else error.message, limits.raw
        message = clipped_lines(
            text, line_count=max(10, most.line_count), character_count=max(2_000, most.character_count)
        )
        self._print_block("error", message, indent=indent, style="yellow")
        if error.hint:
            hint = clipped_lines(error.hint, line_count=4, character_count=1_000)
            self._print_block("hint", hint, indent=indent)
        if error.raw and error.is_bug:
            trace = sanitized_lines(error.raw)[-limits.trace_lines :]
            self._print_block("trace", trace, indent=indent, style="dim")
        elif error.raw:
            raw = clipped_lines(error.raw, **limits.raw._asdict())
            self._print_block("reply", raw, indent=indent, style="dim")

    def _print_same(self, entry: ShownCase) -> None:
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


_IN_FULL, _LINES_MAX, _PASSED_NAMED, _WHY_NAMED = 1, 10, 12, 3
_TREE = "decision-tree"
_FEW = 4
"""Up to so many answers to a test, those that passed are shown with their output."""
_ORDER = {Status.FAILED: 0, Status.ERROR: 1, Status.PASSED: 2, Status.NOT_EVALUATED: 3}
_LEAST_SHARE = 0.01


def case_sentence(results: Sequence[CaseResult]) -> str:
    """`test 7, refund after 30 days, failed in 2 of 4 columns: correct 0.40 < 0.70`."""
    first = results[0]
    repeats = {result.repeat_index for result in results}
    number = str(first.test_index + 1) if len(repeats) > 1 else case_number(first).removeprefix("#")
    title = case_title(first, 60)
    name = f"test {number}, {title}," if title else f"test {number}"
    counts = Counter(result.status for result in results)
    failed, errored = counts[Status.FAILED], counts[Status.ERROR]
    if len(results) == 1:
        said = {
            Status.PASSED: "passed",
            Status.FAILED: "failed",
            Status.ERROR: "has no verdict",
            Status.NOT_EVALUATED: "was not evaluated",
        }[first.status]
    else:
        is_repeated = len(repeats) > 1
        columns = len({result.column for result in results})
        of = f"{len(results):,} {'answers' if is_repeated else 'columns'}"
        if is_repeated and columns == 1:
            of = f"{len(results):,} repeats"
        if failed:
            said = f"failed in {_of_all(failed, of)}"
            said += f", and {errored:,} {'has' if errored == 1 else 'have'} no verdict" if errored else ""
        elif errored:
            said = f"has no verdict in {_of_all(errored, of)}"
        elif counts[Status.PASSED]:
            said = f"passed in {_of_all(counts[Status.PASSED], of)}"
        else:
            said = "was not evaluated"
    why = _why(results)
    return f"{name} {said}: {why}" if why else f"{name} {said}"


def _of_all(count: int, of: str) -> str:
    """`2 of 4 columns`, `all 4 columns` or `both columns`."""
    whole, _, noun = of.partition(" ")
    if f"{count:,}" != whole:
        return f"{count:,} of {of}"
    return f"both {noun}" if count == 2 else f"all {of}"  # noqa: PLR2004 - the number that the word means


def _why(results: Sequence[CaseResult]) -> str:
    """Return what failed, what failed most often first, each where it is furthest below its threshold."""
    worst: dict[str, tuple[int, AssertionResult]] = {}
    for result in results:
        for item in failed_assertions(result) if result.status is Status.FAILED else ():
            name = one_line(item.metric or item.type, 40)
            count, known = worst.get(name, (0, item))
            worst[name] = count + 1, max(known, item, key=margin_below)
    named = sorted(worst.items(), key=lambda pair: -pair[1][0])
    parts = [f"{name} {failure_text(item)}".rstrip() for name, (_, item) in named[:_WHY_NAMED]]
    if len(named) > _WHY_NAMED:
        parts.append(f"{len(named) - _WHY_NAMED:,} more")
    if not parts:
        errors = (error for result in results for error in _errors(result))
        parts = [one_line(error.message, 120) for error in errors][:1]
    return ", ".join(parts)


def _range(scores: Sequence[float]) -> str:
    """`0.66 to 0.92`: the least and the highest of some scores."""
    return " to ".join(dict.fromkeys(map(format_score, (min(scores), max(scores))))) if scores else ""


def _badness(result: CaseResult) -> tuple[int, float]:
    return _ORDER[result.status], -max(map(margin_below, failed_assertions(result)), default=0.0)


def _errors(result: CaseResult) -> Iterator[ErrorInfo]:
    if result.error is not None:
        yield result.error
    yield from (item.error for item in result.assertions if item.error is not None)


def print_test(
    results: Sequence[CaseResult], report: RunReport, console: Console, *, is_verbose: bool
) -> None:
    """Print one test in all its columns: what became of it in a sentence, what went in, then the failures first."""
    console.print()
    print_hanging(Text(), Text(case_sentence(results), style="bold"), console, indent=1)
    if is_verbose:
        printer = CasePrinter(report, console, UNCUT)
        for result in results:
            printer.print_entry(ShownCase(result))
        return
    _TestPrinter(results, report, console).print()


class _TestPrinter(CasePrinter):
    """Prints the answers to one test on about one screen."""

    def __init__(self, results: Sequence[CaseResult], report: RunReport, console: Console) -> None:
        is_alone, is_few = len(results) == 1, len(results) <= _FEW
        output = Limit(12, 900) if is_alone else Limit(5, 360)
        super().__init__(report, console, Shown(output, Limit(4, 500)))
        self._results = sorted(results, key=_badness)
        self._is_alone, self._is_few = is_alone, is_few

    def print(self) -> None:
        self._console.print()
        self._print_test_texts(self._results[0])
        problems = [result for result in self._results if result.status in PROBLEMS]
        in_full = self._results if self._is_few else problems[:_IN_FULL]
        for result in in_full:
            self._console.print()
            self._print_answer(result)
        if len(in_full) < len(self._results):
            self._console.print()
        for result in problems[len(in_full) :][:_LINES_MAX]:
            self._print_head(result, _why([result]), is_whole=False)
        more = len(problems) - len(in_full) - _LINES_MAX
        if more > 0:
            self._console.print(Text(f"  ... and {more:,} more", style="dim"))
        if not self._is_few:
            self._print_others([result for result in self._results if result.status not in PROBLEMS])

    def _print_others(self, results: Sequence[CaseResult]) -> None:
        """Print those without a problem as one paragraph: their columns and scores."""
        for status in (Status.PASSED, Status.NOT_EVALUATED):
            found: dict[str, list[float]] = {}
            for result in (one for one in results if one.status is status):
                scores = found.setdefault(self._column(result), [])
                scores.extend([] if result.score is None else [result.score])
            if found:
                word = "passed" if status is Status.PASSED else "not evaluated"
                count = sum(result.status is status for result in results)
                head = Text(f"{self._signs.marks[status]} {count:,} {word}  ", style=STYLES[status])
                told = (f"{name} {_range(scores)}".strip() for name, scores in found.items())
                print_hanging(head, Text(f" {self._signs.dot} ".join(told)), self._console, indent=1)

    def _print_test_texts(self, result: CaseResult) -> None:
        """Print what the test brings: its variables and what it expects, and the prompt where there is nothing else."""
        texts = {name: value_text(value) for name, value in result.vars.items()}
        texts |= {} if result.asked is None else result.asked.texts
        if not texts and not result.turns:
            texts = {"prompt": result.prompt.rendered}
        title = case_title(result, 200)
        for name, text in texts.items():
            if one_line(text, 200) != title:
                lines = clipped_lines(text, line_count=4, character_count=300)
                self._print_block(one_line(name.replace("_", " "), 20), lines, indent=3)

    def _print_answer(self, result: CaseResult) -> None:
        self._print_head(result, self._facts(result))
        if result.error is not None:
            self._print_error(result.error, indent=3)
        if result.output is not None or result.turns:
            lines = clipped_lines(output_text(result), **self._shown.output._asdict())
            self._print_block("turns" if result.turns else "output", lines or ["(empty)"], indent=3)
        self._print_trace(result.trace, characters=160)
        self._print_end(result)
        passed: list[AssertionResult] = []
        for item in sorted(worst_first(result.assertions), key=lambda item: _ORDER[item.status]):
            if item.status in PROBLEMS or self._is_alone:
                self._print_explained(item, indent=3)
            else:
                passed.append(item)
        if passed:
            self._print_passed(passed)

    def _print_head(self, result: CaseResult, facts: str, *, is_whole: bool = True) -> None:
        head = case_verdict(result, self._signs).append("  ")
        column = self._column(result)
        if not is_whole:
            column = fitted_title(column, max(self._console.width - 50, 24), self._signs)
        parts = [column] if len(self._all_columns) > 1 else []
        if result.repeat_index or any(
            one.repeat_index for one in self._results if one.column == result.column
        ):
            parts.append(f"repeat {result.repeat_index + 1}")
        body = Text(", ".join(parts), style="bold")
        print_hanging(
            head, body.append(f"{'  ' if parts else ''}{facts}", style="not bold"), self._console, indent=1
        )

    def _column(self, result: CaseResult) -> str:
        column = self._columns.get(result.column)
        return "" if column is None else column_title(column, self._all_columns, self._signs)

    def _facts(self, result: CaseResult) -> str:
        """`gpt-4.1-mini, 749 ms, $0.0004`: who answered, in what time and at what price."""
        cost = result.cost_usd_generated
        parts = (
            []
            if len({one.provider_label for one in self._all_columns}) > 1
            else [one_line(result.provider.label or result.provider.id, 40)]
        )
        parts += (
            ["with a batch"]
            if result.latency_ms is None
            else [format_duration(result.latency_ms)]
            if result.latency_ms >= 1
            else []
        )
        parts += [format_cost(cost)] if cost else []
        return f" {self._signs.dot} ".join([*parts, *(["from the cache"] if result.cached else [])])

    def _print_explained(self, item: AssertionResult, *, indent: int) -> None:
        view = AssertionView(item, self._signs)
        mark = Text(f"{self._signs.marks[item.status]} ", style=STYLES[item.status])
        print_hanging(mark, view.heading(), self._console, indent=indent)
        inner = indent + 2
        verdicts = view.verdicts()
        is_jury = "judges" in item.detail
        if len(verdicts) == 1 or is_jury:
            self._print_reason(item.reason or "", indent=inner)
        if item.error is not None:
            self._print_error(item.error, indent=inner)
        if is_jury:
            self._print_items(item.detail, indent=inner)
        if duels := view.duels():
            self._print_block("pairs", [duels], indent=inner)
        for position, part in enumerate(verdicts, start=1):
            self._print_part(part, position if len(verdicts) > 1 else 0, view, is_jury=is_jury, indent=inner)
        if item.type.removeprefix("not-") == _TREE:  # each answer led to the next
            for one in item.assertions:
                self._print_explained(one, indent=inner)
            return
        for one in sorted(item.assertions, key=lambda one: _ORDER[one.status]):
            if one.status in PROBLEMS:
                self._print_explained(one, indent=inner)

    def _print_part(
        self, part: JudgeVerdict, number: int, view: AssertionView, *, is_jury: bool, indent: int
    ) -> None:
        """Print who judged, with rating, spread, cost and time on one line; then the steps, once."""
        self._print_items(part.detail, indent=indent)
        facts = dict(part.facts())
        spread = ", ".join(
            f"{one_line(rating, 20)}: {format_share(share)}"
            for rating, share in part.shares()
            if share >= _LEAST_SHARE
        )
        line = [facts["judge"]] if "judge" in facts else []
        line += [f"rating {facts['rating']}"] if "rating" in facts else []
        line += [f"answers {facts['answers']}"] if "answers" in facts else []
        line += [spread] if spread and len(part.shares()) > 1 else []
        if not number:
            line += view.paid() if line else []
        dot = f" {self._signs.dot} "
        if number:
            title = dot.join([text for text in (part.title(), *line) if text])
            self._print_block(f"{'judge' if is_jury else 'part'} {number}", [title], indent=indent)
            self._print_block(
                "", clipped_lines(part.reason(), line_count=2, character_count=200), indent=indent
            )
        elif line:
            self._print_block("judge", [dot.join(line)], indent=indent, style="dim")
        for label in ("note", "error"):
            if label in facts:
                self._print_block(label, [facts[label]], indent=indent, style="yellow")
        steps = part.evaluation_steps()
        if steps not in self._seen_steps:
            self._print_steps(steps, "", indent=indent)

    def _print_passed(self, items: Sequence[AssertionResult]) -> None:
        names = []
        for item in items:
            score = AssertionView(item, self._signs).score_text() if item.threshold is not None else ""
            names.append(f"{one_line(item.metric or item.type, 40)} {score}".rstrip())
        more = [] if len(names) <= _PASSED_NAMED else [f"{len(names) - _PASSED_NAMED:,} more"]
        status = Status.PASSED if items[0].status is Status.PASSED else Status.NOT_EVALUATED
        head = Text(f"{self._signs.marks[status]} ", style=STYLES[status])
        text = f" {self._signs.dot} ".join([*names[:_PASSED_NAMED], *more])
        print_hanging(head, Text(text, style="dim"), self._console, indent=3)

"""The view of a case that all report formats share: which parts are shown, in which order and in which words.

`failures` prints it on terminals, `markdown_file` and `junit_file` of `extras.pull_requests` write it into files,
`extras.html.run` into pages.
Results may come from a file that someone else wrote, so `detail` is read defensively. Text that is not documented as
being on one line is unsanitized: each format makes it harmless.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from msgspec import Struct
from rich.cells import cell_len

from geval_cli.assertions.json_text import called_tools, calls_beside
from geval_cli.judge.estimate import passes
from geval_cli.judge.grading import CHECKLIST, missed_required
from geval_cli.judge.source import ENDS, USER
from geval_cli.metrics import WORST_FIRST, with_members
from geval_cli.numbers import (
    format_comparison,
    format_cost,
    format_duration,
    format_rating,
    format_score,
    format_share,
)
from geval_cli.providers.wire.finish_reasons import FinishReason, known_end
from geval_cli.records import AssertionResult, CaseResult, ErrorInfo, JsonValue, Status, Turn
from geval_cli.report.sanitize import one_line, sanitize, value_text
from geval_cli.source.media import markers_in, named_and_hashed, named_kind

PROBLEMS = frozenset({Status.FAILED, Status.ERROR})
_CRITERIA_WIDTH, _ITEM_WIDTH = 300, 300
_SHARES_MAX, _LEAST_SHARE = 6, 0.01
_DETAIL_DIGITS = 4
_TOLD = frozenset(
    {"usage", "latency_ms", "wins", "ties", "losses", "pairs", "judges", "parts", "status", "score", "split"}
    | {"rating", "score_range", "estimator", "coverage", "distribution", "judge", "source_from", "fallback"}
    | {"evaluation_steps", "criteria", "reason", "requested", "valid", CHECKLIST}
    | {"answers", "min", "over", "window", "p_pass", "borderline"}
    | {"criterion_key", "criterion_parts", "rating_key"}
)
"""The keys of `detail` that are shown in words of their own, and those that only programs compare."""

_UNUSUAL_ENDS = {
    FinishReason.LENGTH: "a token limit cut the answer off",
    FinishReason.FILTERED: "a content filter cut the answer off or replaced it",
    FinishReason.REFUSED: "the model refused",
}


def case_number(result: CaseResult) -> str:
    """Return the number of a test, `#3`, counted from 1; `#3.2` for its second repeat."""
    repeat = f".{result.repeat_index + 1}" if result.repeat_index else ""
    return f"#{result.test_index + 1}{repeat}"


def assertion_name(item: AssertionResult) -> str:
    """Return an assertion's type, followed by its metric if that has a different name."""
    return item.type if item.metric in (None, "", item.type) else f"{item.type} {item.metric}"


def score_text(item: AssertionResult) -> str:
    """Return a score beside its threshold, as "0.5 < 0.7"; "" without a score.

    The threshold of a `not-` assertion belongs to its positive form, so it is not shown beside the score. If something
    other than the score decided, that is shown instead of the threshold.
    """
    if item.score is None:
        return ""
    if item.threshold is None or item.type.startswith("not-"):
        return format_score(item.score)
    if is_decided_by_score(item):
        return format_comparison(item.score, item.threshold)
    why = why_otherwise(item)
    return f"{format_score(item.score)}, {why}" if why else format_score(item.score)


def margin_below(item: AssertionResult) -> float:
    """Return how far a failed assertion is below its threshold; 1 if no score says how far."""
    if item.score is None or item.threshold is None or item.type.startswith("not-"):
        return 1.0
    return max(item.threshold - item.score, 0.0)


def worst_first(assertions: Iterable[AssertionResult]) -> list[AssertionResult]:
    """Return assertions with the failed ones first, the one furthest below its threshold at the head.

    An assertion of weight 0 only measures, so it cannot fail a case.
    """
    return sorted(assertions, key=lambda item: -margin_below(item) if _has_failed(item) else 1.0)


def failed_assertions(result: CaseResult) -> list[AssertionResult]:
    """Return the failed assertions of a case, worst first: the first is the one to name if there is room for one."""
    return [item for item in worst_first(result.assertions) if _has_failed(item)]


def _has_failed(item: AssertionResult) -> bool:
    return item.status is Status.FAILED and bool(item.weight)


def failure_text(item: AssertionResult) -> str:
    """Return the score that failed an assertion, `0.40 < 0.50`; "" if it has only a verdict, as `contains` does."""
    return "" if item.threshold is None or item.status is Status.ERROR else score_text(item)


def failure_figure(item: AssertionResult) -> str:
    """Return the score that failed an assertion without its threshold, `0.40`."""
    return failure_text(item).split(" ")[0].rstrip(",")


def case_reason(result: CaseResult) -> str:
    """Return why a case has its verdict: its error, or the first reason of the deciding assertions; "" if it passed."""
    if result.error is not None:
        return result.error.message
    if result.status is Status.PASSED:
        return ""
    deciding = failed_assertions(result) if result.status is Status.FAILED else result.assertions
    told = (_reason_of(item, result.status) for item in deciding)
    return next(filter(None, told), "") or whole_reason(result)


def whole_reason(result: CaseResult) -> str:
    """Return why a case failed without a failed assertion (by the test's own threshold); "" for other cases."""
    if result.status is not Status.FAILED or result.score is None or failed_assertions(result):
        return ""
    return "the weighted score is below the test's threshold"


def _reason_of(item: AssertionResult, status: Status) -> str:
    """Return the reason of an assertion with that status; for a set, that of its worst member, which it repeats."""
    if item.status is not status:
        return ""
    own = (item.reason or "") if item.error is None else item.error.message
    return next(filter(None, (_reason_of(member, status) for member in worst_first(item.assertions))), own)


def is_decided_by_score(item: AssertionResult) -> bool:
    """Return whether the verdict follows from comparing the score with the threshold."""
    if item.score is None or item.threshold is None:
        return False
    judged = 1 - item.score if item.type.startswith("not-") else item.score
    reached = passes(judged, item.threshold) is not item.type.startswith("not-")
    return item.status is (Status.PASSED if reached else Status.FAILED)


def why_otherwise(item: AssertionResult) -> str:
    """Return why an assertion failed although its score reaches the threshold; "" for any other."""
    if item.status is not Status.FAILED or item.threshold is None or is_decided_by_score(item):
        return ""
    missing = len(missed_required(item.detail))
    if missing:
        return "a required item is missing" if missing == 1 else f"{missing} required items are missing"
    return "the judge says it fails" if item.detail.get("judge_passed") is False else ""


def case_title(result: CaseResult, width: int) -> str:
    """Return a test's title on one line: description, variables in short, user turns, input, else its prompt."""
    if result.description or result.vars:
        return title_of(result.description, result.vars, width)
    if result.turns:
        return one_line(" / ".join(turn.content for turn in result.turns if turn.role == USER), width)
    asked = None if result.asked is None else result.asked.input
    return one_line(asked or result.prompt.rendered, width)


def title_of(description: str | None, variables: Mapping[str, JsonValue], width: int) -> str:
    """Return a test's description on one line, or else its variables in short."""
    return one_line(description or ", ".join(_variable_texts(variables, max(40, width // 2))), width)


_A_WORD = 20
"""A value wider than this is self-explanatory, even in a script without spaces."""


def _variable_texts(variables: Mapping[str, JsonValue], width: int) -> Iterator[str]:
    """Yield `refund after 30 days` or `tier=gold`: a lone word, and text of several words, need no variable name."""
    for name, value in variables.items():
        text = one_line(value_text(value), width)
        speaks = isinstance(value, str) and (" " in value.strip() or cell_len(value) > _A_WORD)
        is_word = (
            len(variables) == 1 and not isinstance(value, bool | int | float) and any(map(str.isalpha, text))
        )
        yield text if speaks or is_word else f"{name}={text}"


def case_score(result: CaseResult) -> str | None:
    """Return the score of a case, precise enough not to look equal to a threshold that it missed; None without one."""
    if result.score is None:
        return None
    if result.status is Status.FAILED:
        for item in result.assertions:
            missed = item.score == result.score and is_decided_by_score(item)
            if missed and item.threshold is not None and item.score is not None:
                return format_comparison(item.score, item.threshold).split()[0]
    return format_score(result.score)


def is_split(assertions: Iterable[AssertionResult]) -> bool:
    """Return whether the judges of any assertion, including nested ones, are far apart."""
    return any(item.detail.get("split") is True or is_split(item.assertions) for item in assertions)


def has_fallback(assertions: Iterable[AssertionResult]) -> bool:
    """Return whether any assertion, including nested ones, was scored by a fallback method."""
    return any(_fell_back(item.detail) or has_fallback(item.assertions) for item in assertions)


def _fell_back(detail: Mapping[str, JsonValue]) -> bool:
    """Return whether the verdict, or that of one of several judges, was scored by a fallback method."""
    judges = detail.get("judges")
    of_judges = judges if isinstance(judges, list | tuple) else ()
    return any(part.get("fallback") for part in (detail, *of_judges) if isinstance(part, Mapping))


class AssertionView(Struct, frozen=True):
    """One assertion as reports show it."""

    assertion: AssertionResult

    @property
    def is_jury(self) -> bool:
        """Return whether several judges gave the verdict; their reasons are shown beside the joint one."""
        return "judges" in self.assertion.detail

    @property
    def scored(self) -> str:
        """The score and its threshold, `0.40 < 0.50 (default)`, and `P(pass) 0.14` if known; "" without a score."""
        compared = self._compared()
        chance = self.assertion.detail.get("p_pass")
        if not compared or not _is_number(chance):
            return compared
        mark = ", borderline" if self.assertion.detail.get("borderline") is True else ""
        return f"{compared}  P(pass) {format_score(chance)}{mark}"

    @property
    def said(self) -> str:
        """The reason, or the error and its hint."""
        error = self.assertion.error
        return (self.assertion.reason or "") if error is None else f"{error.message}\n{error.hint}".rstrip()

    @property
    def remarks(self) -> list[str]:
        """The remarks on it: `split`, `weight 2`."""
        item = self.assertion
        found = ["split"] if item.detail.get("split") is True else []
        return [*found, *([] if item.weight == 1 else [f"weight {item.weight:g}"])]

    @property
    def verdicts(self) -> list["JudgeVerdict"]:
        """The judge's verdicts: one, or one for each of several criteria or of several judges."""
        detail = self.assertion.detail
        return [
            JudgeVerdict(part) for part in _mappings(detail.get("judges") or detail.get("parts")) or [detail]
        ]

    @property
    def members(self) -> list["AssertionView"]:
        """The assertions within it, worst first; those of a decision tree in order, since each led to the next."""
        is_tree = self.assertion.type.removeprefix("not-") == "decision-tree"
        items = self.assertion.assertions
        return [AssertionView(item) for item in items] if is_tree else _views(items)

    @property
    def items(self) -> list["ShownItem"]:
        """The checklist items as a jury decided them; empty for one judge, whose verdict has its own."""
        return JudgeVerdict(self.assertion.detail).items if self.is_jury else []

    @property
    def further(self) -> list[tuple[str, JsonValue]]:
        """Everything else in `detail`, with floats rounded."""
        return [
            (name, _tidy(value))
            for name, value in self.assertion.detail.items()
            if name not in _TOLD and value not in (None, [], {})
        ]

    @property
    def duels(self) -> str:
        """The other outputs that this one was compared with: `beat a; tied with b; lost to c, d`."""
        found: dict[str, list[str]] = {"win": [], "tie": [], "loss": []}
        for pair in _mappings(self.assertion.detail.get("pairs")):
            if str(pair.get("outcome")) in found:
                found[str(pair["outcome"])].append(one_line(str(pair.get("label", "")), 60))
        words = {"win": "beat", "tie": "tied with", "loss": "lost to"}
        return "; ".join(f"{words[outcome]} {', '.join(names)}" for outcome, names in found.items() if names)

    @property
    def paid(self) -> list[str]:
        """The cost and duration of the judge calls, or that they were cached; empty if there were none."""
        item = self.assertion
        if not item.usage.requests:
            return []
        if item.usage.cached_requests >= item.usage.requests:
            return ["from the cache"]
        cost = [] if not item.usage.cost_usd else [format_cost(item.usage.cost_usd)]
        return [*cost, *([format_duration(item.latency_ms)] if item.latency_ms else [])]

    def _compared(self) -> str:
        item = self.assertion
        if item.score is None or item.status is Status.ERROR:
            return ""
        if item.threshold is None:
            return format_score(item.score)
        if not is_decided_by_score(item):
            return score_text(item)
        default = " (default)" if item.threshold_is_default else ""
        if item.type.startswith("not-"):
            # The threshold applies to the score of the positive form; the score shown is 1 minus that.
            judged = format_comparison(1 - item.score, item.threshold)
            return f"{format_score(item.score)}, since {judged}{default}"
        return f"{format_comparison(item.score, item.threshold)}{default}"


def _views(items: Iterable[AssertionResult]) -> list[AssertionView]:
    """Return assertions in the order in which they are shown: failures, worst first, then what was not judged."""
    ordered = sorted(worst_first(items), key=lambda item: WORST_FIRST.index(item.status))
    return [AssertionView(item) for item in ordered]


class JudgeVerdict(Struct, frozen=True):
    """One verdict of a judge, read from `detail`; all its texts except reason and criteria are on one line."""

    detail: Mapping[str, JsonValue]

    @property
    def title(self) -> str:
        """The score and the criteria."""
        score = self.detail.get("score")
        criteria = self.detail.get("label") or self.detail.get("criteria")
        parts = [format_score(score)] if _is_number(score) else []
        return "  ".join(
            [*parts, one_line(criteria, _CRITERIA_WIDTH)] if isinstance(criteria, str) else parts
        )

    @property
    def reason(self) -> str:
        """The judge's reason."""
        text = self.detail.get("reason")
        return text if isinstance(text, str) else ""

    @property
    def criteria(self) -> str:
        """The criteria of the verdict, one per line."""
        value = self.detail.get("criteria")
        lines = value if isinstance(value, list | tuple) else [value]
        return "\n".join(line for line in lines if isinstance(line, str))

    @property
    def items(self) -> list["ShownItem"]:
        """The items of a checklist."""
        return [*map(ShownItem.of, _mappings(self.detail.get(CHECKLIST)))]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The label and text of each known fact about the rating; `note` and `error` are warnings."""
        error = self.detail.get("error")
        known = {**self.detail, "error": error.get("message") if isinstance(error, Mapping) else None}

        def said(key: str) -> str:
            value = known.get(key)
            return one_line(value, 400) if isinstance(value, str) else ""

        facts = [
            ("judge", said("judge")),
            ("rating", self._rating()),
            ("answers", self._answers()),
            ("spread", self._spread()),
            ("source", said("source_from")),
            ("note", said("fallback")),
            ("error", said("error")),
        ]
        return [(label, text) for label, text in facts if text]

    @property
    def steps(self) -> tuple[str, ...]:
        """The evaluation steps that the judge followed; empty if it had none."""
        steps = self.detail.get("evaluation_steps")
        if not isinstance(steps, list | tuple):
            return ()
        return tuple(sanitize(" ".join(step.split())) for step in steps if isinstance(step, str))

    @property
    def shares(self) -> list[tuple[str, float]]:
        """Each rating with its share of the distribution, in the order of the scale; the shares add up to 1."""
        masses = _probabilities(self.detail.get("distribution"))
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
            # ` of at most 20` if sampling could stop early.
            early_stop = detail.get("early_stop")
            upto = early_stop.get("upto") if isinstance(early_stop, Mapping) else None
            most_samples = f" of at most {upto:g}" if _is_number(upto) else ""
            taken = f"{requested:g}{most_samples} samples"
            return f"{taken}, {valid:g} valid" if _is_number(valid) else taken
        if estimator == "single":
            return "single rating"
        return one_line(estimator, 100) if isinstance(estimator, str) else ""

    def _answers(self) -> str:
        """Return the scores of a conversation's answers, `1.00, 0.40, 0.70`, if each answer was rated."""
        found = [item.get("score") for item in _mappings(self.detail.get("answers"))]
        return ", ".join(format_score(score) for score in found if _is_number(score))

    def _spread(self) -> str:
        """Return the likeliest ratings in scale order, `2: 40 %, 3: 50 %, and 1 more`; "" if there is only one."""
        shares = [(rating, share) for rating, share in self.shares if share >= _LEAST_SHARE]
        likeliest = sorted(shares, key=lambda pair: -pair[1])[:_SHARES_MAX]
        if len(self.shares) < 2:  # noqa: PLR2004 - the rating itself says it
            return ""
        shown = ", ".join(
            f"{one_line(rating, 20)}: {format_share(share)}" for rating, share in _ordered(likeliest)
        )
        return f"{shown}, and {len(shares) - _SHARES_MAX} more" if len(shares) > _SHARES_MAX else shown


def _tidy(value: JsonValue) -> JsonValue:
    """Return a value with its floats rounded, at any depth."""
    match value:
        case float():
            return round(value, _DETAIL_DIGITS)
        case Mapping():
            return {name: _tidy(item) for name, item in value.items()}
        case list() | tuple():
            return [_tidy(item) for item in value]
    return value


def _probabilities(value: JsonValue) -> list[tuple[str, float]]:
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


def _mappings(value: JsonValue) -> list[Mapping[str, JsonValue]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class ShownItem(Struct, frozen=True):
    """One item of a checklist; each of its texts is on one line.

    Attributes:
        notes: what is special about it, and a score other than 0 and 1: `required, weight 2, 0.97`; mostly empty.
        because: the quoted evidence, or the judge's reason for a no.
    """

    is_met: bool
    text: str
    notes: str
    because: str

    @property
    def line(self) -> str:
        """The item on one line: `Names the price (required): "5 euros"`."""
        notes = f" ({self.notes})" if self.notes else ""
        return f"{self.text}{notes}: {self.because}" if self.because else f"{self.text}{notes}"

    @classmethod
    def of(cls, item: Mapping[str, JsonValue]) -> "ShownItem":
        """Build the item from its entry in a judgement's `detail`."""
        is_met = item.get("met") is True
        weight, score = item.get("weight"), item.get("score")
        notes = ["required"] if item.get("required") is True else []
        if _is_number(weight) and weight != 1:
            notes.append(f"weight {weight:g}")
        if _is_number(score) and score not in (0, 1):
            notes.append(format_score(score))
        text = one_line(str(item.get("item", "")), _ITEM_WIDTH)
        return cls(is_met, text, ", ".join(notes), _because(item))


def _because(item: Mapping[str, JsonValue]) -> str:
    evidence, reason = (
        one_line(value, _ITEM_WIDTH) if isinstance(value := item.get(name), str) else ""
        for name in ("evidence", "reason")
    )
    is_there = item.get("evidence_found")
    if is_there is False:
        if not evidence:
            return "yes, but it quotes nothing from the output"
        return f'yes, but "{evidence}" is not in the output'
    return f'"{evidence}"' if evidence and is_there is True else reason


class ShownCall(Struct, frozen=True):
    """A tool call: its name and arguments; without a name, `arguments` is the whole call."""

    name: str
    arguments: JsonValue

    @classmethod
    def of(cls, call: Mapping[str, JsonValue]) -> "ShownCall":
        """Build the call from one in the format of any API."""
        name, arguments = next(called_tools([dict(call)]), (str(call.get("name") or ""), call.get("args")))
        return cls(name, arguments if arguments not in ({}, []) else None) if name else cls("", dict(call))

    @property
    def line(self) -> str:
        """The call as text: `calls find {"order": 7}`."""
        return " ".join(
            filter(None, ("calls", self.name, "" if self.arguments is None else value_text(self.arguments)))
        )


class ShownMessage(Struct, frozen=True):
    """A message of a conversation; `tool` is the name of the tool whose answer it is."""

    role: str
    content: str
    calls: tuple[ShownCall, ...] = ()
    tool: str = ""

    @property
    def text(self) -> str:
        """The message, `assistant: Let me look.`, with its calls below."""
        said = "\n".join(filter(None, (self.content, *(call.line for call in self.calls))))
        return f"{' '.join(filter(None, (self.role, self.tool)))}: {said}"


def conversation_of(turns: Sequence[Turn]) -> list[ShownMessage]:
    """Return the turns of a conversation for display, with tool calls as names and arguments."""
    names: dict[str, str] = {}
    found = []
    for turn in turns:
        calls = tuple(map(ShownCall.of, turn.tool_calls))
        names.update(
            {str(call.get("id")): shown.name for call, shown in zip(turn.tool_calls, calls, strict=True)}
        )
        tool = names.get(turn.tool_call_id or "", "")
        found.append(ShownMessage(turn.role, turn.content, calls, tool))
    return found


def calls_of(result: CaseResult) -> list[ShownCall]:
    """Return the tool calls that an output makes besides its text; empty for a conversation."""
    return [] if result.turns else [*map(ShownCall.of, calls_beside(result.output, result.tool_calls))]


def output_text(result: CaseResult) -> str:
    """Return what a case produced: the conversation turn by turn, or the output and its tool calls."""
    if result.turns:
        return "\n".join(message.text for message in conversation_of(result.turns))
    output = "" if result.output is None else value_text(result.output)
    return "\n".join(filter(None, (output, *(call.line for call in calls_of(result)))))


class ShownMedia(Struct, frozen=True):
    """An image or a recording (`kind`) of a case; `link` leads to the file, None if it is not available."""

    kind: str
    name: str
    sha256: str
    link: str | None = None


class CaseView(Struct, frozen=True):
    """One case as reports show it: its verdict, the output, the assertions, and what was asked."""

    result: CaseResult

    @property
    def score(self) -> str | None:
        """The score, precise enough not to look equal to a threshold that it missed; None without one."""
        return case_score(self.result)

    @property
    def took(self) -> str:
        """The time that the answer took, `749 ms`; "" if nothing was waited for."""
        time_ms = self.result.latency_ms
        return "from a batch" if time_ms is None else format_duration(time_ms) if time_ms >= 1 else ""

    @property
    def facts(self) -> list[str]:
        """The time and price of the answer, and whether it came from the cache."""
        cost = self.result.cost_usd_generated
        facts = (
            self.took,
            format_cost(cost) if cost else "",
            "from the cache" if self.result.cached else "",
        )
        return [fact for fact in facts if fact]

    @property
    def ends(self) -> list[str]:
        """How the conversation ended, and why an answer did not end normally; each on one line."""
        result, found = self.result, []
        if result.ended_by:
            found.append(ENDS.get(result.ended_by, f"ended by {one_line(result.ended_by, 60)}"))
        end = known_end(result.finish_reason or FinishReason.STOP)
        if end not in (FinishReason.STOP, FinishReason.TOOL_CALLS):
            meaning = (
                "the model ended its answer in an unusual way" if end is None else _UNUSUAL_ENDS.get(end)
            )
            reason = f"finish reason: {one_line(str(result.finish_reason), 60)}"
            found.append(f"{meaning} ({reason})" if meaning else reason)
        return found

    @property
    def assertions(self) -> list[AssertionView]:
        """The assertions: failures first, the worst at the head, then what could not be judged."""
        return _views(self.result.assertions)

    @property
    def problems(self) -> list[AssertionView]:
        """The assertions that failed or could not be judged; those within a set follow the set."""

        def within(views: Iterable[AssertionView]) -> Iterator[AssertionView]:
            for view in views:
                if view.assertion.status in PROBLEMS:
                    yield view
                yield from within(view.members)

        return list(within(self.assertions))

    @property
    def test_texts(self) -> dict[str, str]:
        """The texts of the test besides its variables, by label such as `expected output`."""
        texts = {} if self.result.asked is None else self.result.asked.texts
        return {name.replace("_", " "): text for name, text in texts.items()}

    @property
    def media(self) -> list[ShownMedia]:
        """The images and recordings that the case refers to, each once."""
        result = self.result
        markers = markers_in([result.vars, result.prompt.rendered, result.output])
        found = [(named_kind(marker), *named_and_hashed(marker)) for marker in markers]
        if result.asked is not None:
            found += [("image", *item) for item in result.asked.images]
            found += [("audio", *item) for item in result.asked.audio]
        return [ShownMedia(*item) for item in dict.fromkeys(found)]


def errors_of(result: CaseResult) -> Iterator[ErrorInfo]:
    """Yield the errors of a case: its own, then those of its assertions, including nested ones."""
    if result.error is not None:
        yield result.error
    yield from (item.error for item, _ in with_members(result.assertions) if item.error is not None)

"""One assertion's result in words: its heading, and the facts of a judge's verdict that `detail` holds."""

import math
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from msgspec import Struct
from rich.text import Text

from geval_cli.numbers import format_comparison, format_score
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.report.numbers import format_percentage
from geval_cli.report.sanitize import one_line, sanitize, value_text
from geval_cli.report.verdict import Signs, has_fallback, verdict

_DISTRIBUTION_MAX = 6
_CRITERIA_WIDTH = 300
_TOLD = frozenset(
    {
        *(
            "rating",
            "score_range",
            "estimator",
            "coverage",
            "distribution",
            "judge",
            "source_from",
            "fallback",
        ),
        *("evaluation_steps", "reason", "parts", "requested", "valid"),
    }
)
"""The keys of `detail` that have words of their own."""


class AssertionView(Struct, frozen=True):
    """Reads `detail` with care: it may come from an older version's store, or from somebody's own file."""

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
                yield sanitize(name), value if isinstance(value, str) else value_text(value)

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
        facts = [("rating", self._rating()), ("spread", self._distribution())]
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
        if not _is_number(rating):
            return f"none ({estimator})" if estimator else ""
        text = _short(float(rating))
        match bounds:
            case [low, high] if _is_number(low) and _is_number(high):
                text += f" in {low:g} to {high:g}"
        return f"{text} ({estimator})" if estimator else text

    def _estimator(self) -> str:
        detail = self.detail
        estimator = detail.get("estimator")
        coverage, requested, valid = (detail.get(key) for key in ("coverage", "requested", "valid"))
        if estimator == "logprobs" and _is_number(coverage):
            return f"logprobs, coverage {format_score(coverage)}"
        if estimator == "samples" and _is_number(requested):
            taken = f"{requested:g}{_most_samples(detail)} samples"
            return f"{taken}, {valid:g} valid" if _is_number(valid) else taken
        if estimator == "single":
            return "single rating"
        return one_line(estimator, 100) if isinstance(estimator, str) else ""

    def _distribution(self) -> str:
        """`3: 50%, 2: 40%, 1: 5%`: the likeliest ratings in the order of the scale."""
        masses = _masses(self.detail.get("distribution"))
        total = sum(mass for _, mass in masses)
        if total <= 0:
            return ""
        likeliest = sorted(masses, key=lambda pair: -pair[1])[:_DISTRIBUTION_MAX]
        shown = ", ".join(
            f"{one_line(name, 20)}: {_percent(mass, total)}" for name, mass in _ordered(likeliest)
        )
        hidden = sum(1 for _, mass in masses if mass > 0) - len(likeliest)
        return f"{shown}, and {hidden} more" if hidden > 0 else shown


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


def _percent(mass: float, total: float) -> str:
    text = f"{100 * mass / total:.0f}"
    return f"{text}%" if text not in {"0", "100"} or mass == total else format_percentage(mass, total)


def _short(number: float) -> str:
    """Return two decimals, or as many as keep a broken number from looking whole."""
    digits = next((digits for digits in range(2, 6) if not round(number, digits).is_integer()), 6)
    return f"{number:.{digits}f}".rstrip("0").rstrip(".")


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

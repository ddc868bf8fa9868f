"""The metrics of results: scores by name, and the default name of a g-eval."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from geval_cli.patterns import compile_later
from geval_cli.records import AssertionResult, CaseResult, Status

_LONGEST = 40
_NAMES_KEPT = 1024
_NAMELESS = "g-eval"
_TAKEN = {"latency": "latency-score"}
"""Names with another meaning in gates, where `latency.mean` is the run's latency, and their replacements."""
WORST_FIRST = (Status.FAILED, Status.ERROR, Status.PASSED, Status.NOT_EVALUATED)
_ASCII_WORD = compile_later(r"[a-z0-9]+")
_APOSTROPHE = compile_later(r"(?<=\w)['\u2019](?=\w)")


def default_metric(
    criteria: str | Sequence[str] | None, steps: Sequence[str] | None, *, is_negated: bool = False
) -> str:
    """Return a name made from the criteria as written, or else from the first evaluation step.

    The scores of a negated assertion mean the opposite of its criteria, so its name begins with `not-`.
    """
    texts = (criteria,) if isinstance(criteria, str) else tuple(criteria or ())
    name = _first_words(" ".join(texts)) or _first_words(next(iter(steps or ()), "")) or _NAMELESS
    return f"not-{name}" if is_negated else _TAKEN.get(name, name)


@lru_cache(maxsize=_NAMES_KEPT)
def _first_words(text: str) -> str:
    """Return the first words of a text, as many as fit, in lower case with hyphens; "" for a text without words."""
    words = _words(text)
    if not words:
        return ""
    name = words[0][:_LONGEST]
    for word in words[1:]:
        if len(name) + 1 + len(word) > _LONGEST:
            break
        name = f"{name}-{word}"
    return name


def _words(text: str) -> list[str]:
    """Return the runs of letters and digits of any script, including combining marks."""
    lower = unicodedata.normalize("NFC", _APOSTROPHE.sub("", text).lower())
    if lower.isascii():  # ten times as fast, and needed for every distinct criterion
        return _ASCII_WORD.findall(lower)
    return "".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in lower).split()


def named_scores(assertions: Iterable[AssertionResult]) -> dict[str, float]:
    """Return the weighted mean score of each metric in one case; a set's weight multiplies those of its members.

    If all assertions of a metric have weight 0, it is their plain mean. Nested assertions do not count again for a
    metric that the assertion around them has already counted for.
    """
    by_metric: dict[str, list[tuple[float, float]]] = {}
    for metric, weight, score in _measured(assertions):
        by_metric.setdefault(metric, []).append((weight, score))
    means = {}
    for metric, scored in by_metric.items():
        weighted = weighted_mean(scored)
        means[metric] = sum(score for _, score in scored) / len(scored) if weighted is None else weighted
    return means


def _measured(
    assertions: Iterable[AssertionResult], weight: float = 1.0, outer: frozenset[str] = frozenset()
) -> Iterator[tuple[str, float, float]]:
    """Yield metric, weight and score of every result that has them; metrics in `outer` are already counted."""
    for result in assertions:
        own = frozenset() if result.metric is None else frozenset({result.metric})
        counted = result.score is not None
        if result.metric is not None and result.score is not None and not own <= outer:
            yield result.metric, weight * result.weight, result.score
        yield from _measured(result.assertions, weight * result.weight, outer | own if counted else outer)


def metric_status(assertions: Iterable[AssertionResult], metric: str) -> Status | None:
    """Return the worst status of a metric's assertions in one case, including members of sets; None if it has none.

    A failure is worse than an error. Nested assertions do not count again for the metric of the assertion around them.
    """
    statuses = set(_statuses(assertions, metric))
    return next((status for status in WORST_FIRST if status in statuses), None)


def _statuses(assertions: Iterable[AssertionResult], metric: str) -> Iterator[Status]:
    for result in assertions:
        if result.metric == metric:
            yield result.status
        else:
            yield from _statuses(result.assertions, metric)


def with_members(
    assertions: Iterable[AssertionResult], weight: float = 1.0
) -> Iterator[tuple[AssertionResult, float]]:
    """Yield every assertion with its effective weight, each set followed by its members."""
    for result in assertions:
        yield result, weight * result.weight
        if result.assertions:
            yield from with_members(result.assertions, weight * result.weight)


def weighted_mean(scored: Sequence[tuple[float, float]]) -> float | None:
    """Return sum(weight * score) / sum(weight) of the pairs; None if the weights sum to 0."""
    total = sum(weight for weight, _ in scored)
    return sum(weight * score for weight, score in scored) / total if total else None


def metric_verdicts(result: CaseResult) -> dict[str, tuple[Status, float | None]]:
    """Return the worst status and the score of each metric of a result, in the order of its assertions."""
    found: dict[str, Status] = {}
    for item, _ in with_members(result.assertions):
        if item.metric is not None:
            found[item.metric] = min(found.get(item.metric, item.status), item.status, key=WORST_FIRST.index)
    return {metric: (status, result.named_scores.get(metric)) for metric, status in found.items()}

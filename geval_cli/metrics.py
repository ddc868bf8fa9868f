"""The metrics of results: scores by name, and the name of a g-eval that was given none."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from geval_cli.patterns import compile_later
from geval_cli.records import AssertionResult

_LONGEST = 40
_NAMES_KEPT = 1024
_NAMELESS = "g-eval"
_APOSTROPHE = compile_later(r"(?<=\w)['\u2019](?=\w)")


def default_metric(
    criteria: str | Sequence[str] | None, steps: Sequence[str] | None, *, is_negated: bool = False
) -> str:
    """Return the name that criteria as written, else the first evaluation step, stand for.

    The scores of a negated assertion say the opposite of its criteria, so `not-` stands before their name.
    """
    texts = (criteria,) if isinstance(criteria, str) else tuple(criteria or ())
    name = _first_words(" ".join(texts)) or _first_words(next(iter(steps or ()), "")) or _NAMELESS
    return f"not-{name}" if is_negated else name


@lru_cache(maxsize=_NAMES_KEPT)
def _first_words(text: str) -> str:
    """Return as many words as fit, in lower case, with hyphens between them; "" of a text without words."""
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
    """Return the runs of letters and digits of any script, with the marks that belong to them."""
    lower = unicodedata.normalize("NFC", _APOSTROPHE.sub("", text).lower())
    return "".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in lower).split()


def named_scores(assertions: Iterable[AssertionResult]) -> dict[str, float]:
    """The weighted mean score of each metric within one case; members of a set count with the set's weight too.

    A metric that only assertions with weight 0 have is their plain mean.
    """
    by_metric: dict[str, list[tuple[float, float]]] = {}
    for result, weight in with_members(assertions):
        if result.metric is not None and result.score is not None:
            by_metric.setdefault(result.metric, []).append((weight, result.score))
    means = {}
    for metric, scored in by_metric.items():
        weighted = weighted_mean(scored)
        means[metric] = sum(score for _, score in scored) / len(scored) if weighted is None else weighted
    return means


def with_members(
    assertions: Iterable[AssertionResult], weight: float = 1.0
) -> Iterator[tuple[AssertionResult, float]]:
    """Every assertion with its weight, each set followed by its members."""
    for result in assertions:
        yield result, weight * result.weight
        yield from with_members(result.assertions, weight * result.weight)


def weighted_mean(scored: Sequence[tuple[float, float]]) -> float | None:
    """sum(weight * score) / sum(weight) of pairs; None when no weight is left."""
    total = sum(weight for weight, _ in scored)
    return sum(weight * score for weight, score in scored) / total if total else None

"""The metrics of results: scores by name, and the name of a g-eval that was given none."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from geval_cli.patterns import compile_later
from geval_cli.records import AssertionResult, CaseResult, JsonValue

_LONGEST = 40
_NAMES_KEPT = 1024
_NAMELESS = "g-eval"
_TAKEN = {"latency": "latency-score"}
"""Names that mean something else in a gate, where `latency.mean` is that of the run, and the ones used instead."""
_GRADED = frozenset({"g-eval", "not-g-eval", "evaluation-llm"})
_CRITERIA_KEYS = ("criteria", "value")
_PROMPT_CRITERIA_KEYS = ("evaluation_criteria", "evaluationCriteria")
_STEPS_KEYS = ("evaluation_steps", "evaluationSteps")
_TEMPLATE_MARKS = ("{{", "{%", "{#")
_ASCII_WORD = compile_later(r"[a-z0-9]+")
_APOSTROPHE = compile_later(r"(?<=\w)['\u2019](?=\w)")


def default_metric(
    criteria: str | Sequence[str] | None, steps: Sequence[str] | None, *, is_negated: bool = False
) -> str:
    """Return the name made from the criteria as written, else from the first evaluation step.

    The scores of a negated assertion say the opposite of its criteria, so `not-` is before their name.
    """
    texts = (criteria,) if isinstance(criteria, str) else tuple(criteria or ())
    name = _first_words(" ".join(texts)) or _first_words(next(iter(steps or ()), "")) or _NAMELESS
    return f"not-{name}" if is_negated else _TAKEN.get(name, name)


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
    if lower.isascii():  # ten times as fast, and every criterion of its own comes by here
        return _ASCII_WORD.findall(lower)
    return "".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in lower).split()


Judged = tuple[str, tuple[str, ...], tuple[str, ...]]
"""The key of a g-eval: its type, its criteria or, without them, its steps; no space around texts."""


def lacks_metrics(assertions: Iterable[AssertionResult]) -> bool:
    """Return whether a g-eval is among the results that has no metric, as it was before it had one by default."""
    for item in assertions:  # every result that is read comes by here
        if (item.metric is None and item.type in _GRADED) or (
            item.assertions and lacks_metrics(item.assertions)
        ):
            return True
    return False


def default_metrics_in(config: JsonValue) -> dict[Judged, str]:
    """Return the default metrics of the g-evals that a config (of geval's own dialect) holds without variables.

    They name the metrics of stored results: a rendered text that is equal to one of theirs came from there.
    """
    found: dict[Judged, str] = {}
    unsure: set[Judged] = set()
    for kind, part in _graded_parts(config):
        criteria, steps = (_first_of(part, *names) for names in (_CRITERIA_KEYS, _STEPS_KEYS))
        judged = _judged(kind, criteria, steps)
        if judged is None:
            continue
        if part.get("metric") is not None:
            if _is_template(part["metric"]):  # one that is empty in a test is no metric there
                unsure.add(judged)
            continue
        name = default_metric(criteria, steps, is_negated=kind.startswith("not-"))
        if found.setdefault(judged, name) != name:
            unsure.add(judged)
    return {judged: name for judged, name in found.items() if judged not in unsure}


def with_default_metrics(result: CaseResult, names: Mapping[Judged, str]) -> CaseResult:
    """Return a stored result with the metrics that `default_metrics_in` its config gives to its g-evals."""

    def name_of(item: AssertionResult) -> str | None:
        judged = _judged(item.type, item.detail.get("criteria"), item.detail.get("evaluation_steps"))
        return None if judged is None else names.get(judged)

    return with_metrics(result, _named(result.assertions, name_of))


def with_metrics(result: CaseResult, assertions: tuple[AssertionResult, ...]) -> CaseResult:
    """Return a result with `assertions`: its own, of which some have got metrics, whose scores come to the others."""
    pairs = zip(with_members(result.assertions), with_members(assertions), strict=True)
    given = {after.metric for (before, _), (after, _) in pairs if before.metric != after.metric}
    if not given:
        return result
    scores = {name: score for name, score in named_scores(assertions).items() if name in given}
    return replace(result, assertions=assertions, named_scores={**result.named_scores, **scores})


def _named(
    assertions: tuple[AssertionResult, ...], name_of: Callable[[AssertionResult], str | None]
) -> tuple[AssertionResult, ...]:
    return tuple(
        replace(
            item,
            metric=name_of(item) if item.metric is None and item.type in _GRADED else item.metric,
            assertions=_named(item.assertions, name_of),
        )
        for item in assertions
    )


def _graded_parts(config: JsonValue) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    """Yield every g-eval of a config, and every prompt with criteria of its own."""
    waiting = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
            kind = part.get("type")
            if isinstance(kind, str) and kind in _GRADED and part.get("dimension") is None:
                yield kind, part
            criteria = _first_of(part, *_PROMPT_CRITERIA_KEYS)
            if criteria is not None:
                yield "evaluation-llm", {"criteria": criteria}


def _first_of(part: Mapping[str, JsonValue], *names: str) -> JsonValue:
    return next((part[name] for name in names if part.get(name) is not None), None)


def _judged(kind: str, criteria: JsonValue, steps: JsonValue) -> Judged | None:
    """Return the key of a g-eval; None when it has none, or one that is not plain text."""
    for number, value in enumerate((criteria, steps)):
        texts = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if not all(isinstance(text, str) and not _is_template(text) for text in texts):
            return None
        stripped = tuple(text.strip() for text in texts)
        if any(stripped):
            return (kind, stripped, ()) if number == 0 else (kind, (), stripped)
    return None


def _is_template(text: JsonValue) -> bool:
    return any(mark in str(text) for mark in _TEMPLATE_MARKS)


def named_scores(assertions: Iterable[AssertionResult]) -> dict[str, float]:
    """Return the weighted mean score of each metric within one case; members of a set count with its weight too.

    A metric that only assertions with weight 0 have is their plain mean. Parts of an assertion do not count for its
    own metric once more.
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
    """Yield metric, weight and score of every result that has them; `outer` are metrics that are counted already."""
    for result in assertions:
        own = frozenset() if result.metric is None else frozenset({result.metric})
        counted = result.score is not None
        if result.metric is not None and result.score is not None and not own <= outer:
            yield result.metric, weight * result.weight, result.score
        yield from _measured(result.assertions, weight * result.weight, outer | own if counted else outer)


def with_members(
    assertions: Iterable[AssertionResult], weight: float = 1.0
) -> Iterator[tuple[AssertionResult, float]]:
    """Yield every assertion with its weight, each set followed by its members."""
    for result in assertions:
        yield result, weight * result.weight
        if result.assertions:
            yield from with_members(result.assertions, weight * result.weight)


def weighted_mean(scored: Sequence[tuple[float, float]]) -> float | None:
    """sum(weight * score) / sum(weight) of pairs; None when no weight is left."""
    total = sum(weight for weight, _ in scored)
    return sum(weight * score for weight, score in scored) / total if total else None

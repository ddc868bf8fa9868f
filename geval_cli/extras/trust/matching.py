"""Match labels to the outputs of a run, with the judge's scores and the cluster of each output.

A label is matched to the output that was labelled, wherever its test is in this run. A label is unmatched if its
`output_sha256` is that of another text, or if it was made for another run and does not say which text it is about: a
label of one text says nothing about another.
"""

import math
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import CriterionKey
from geval_cli.assertions.registry import CRITERION_KEY, CRITERION_PARTS, P_PASS
from geval_cli.errors import ConfigError, Location, Problem, UsageError
from geval_cli.extras.trust.labels import (
    ItemRef,
    Label,
    LabelFile,
    count_words,
    labels_from_rows,
    read_labels,
    vars_key,
)
from geval_cli.extras.trust.statistics.plain import SCORE_DIGITS
from geval_cli.extras.trust.weighted_draw import equally_likely, is_weighted, shares_of_labels
from geval_cli.judge.estimate import passes
from geval_cli.metrics import with_members
from geval_cli.numbers import plural
from geval_cli.records import AssertionResult, CaseResult, JsonValue, Status
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import output_digest
from geval_cli.source.problems import did_you_mean, hint_among

T = TypeVar("T")

_MOST_NAMED = 20
"""Unmatched labels that are reported one by one, each with the nearest id; the others are counted."""
_MOST_LISTED = 5
_MOST_CANDIDATES = 20_000
_METADATA_ID = "id"
_ENDLESS = 10**12
_TEST = "test"
_WRONG_RUN = "check that it is the right run, or choose another with --run"
_OTHER_HINT = "label this run's output, give the label's run with --run, or pass --allow-unmatched"


class JudgeVote(Struct, frozen=True):
    """The score, 0..1, of one judge of a jury; None where it failed.

    `key` identifies the criterion that it rated by, where it was recorded.
    """

    judge: str
    score: float | None
    key: CriterionKey | None = None


class JudgedItem(Struct, frozen=True):
    """An output of a run with the judge's scores, without its text.

    Attributes:
        id: id of the result: test, repeat and column.
        names: ids that a label may use: that of the result, and the test's `metadata.id`.
        prompt: its id and its label; a label may name either. Likewise `provider`.
        repeat: counted from 1.
        scores: 0..1 by metric; None where the judge failed.
        verdicts: by metric, whether the judge passed the output, whatever its score; no entry where it gave no verdict.
        thresholds: by metric, as used by the run.
        judges: the model that gave the scores, by metric.
        criteria: the criterion key of each assertion of a metric; None where it is unknown.
        ranges: the lowest and highest rating on the judge's scale, by metric.
        inexact: metrics whose sampling stopped as soon as the verdict was settled, so that the score is less precise.
        inverted: metrics of `not-` assertions.
        p_pass: the probability of being good according to the run's calibration, by metric.
        votes: the votes of each judge, by metric, for metrics that a single assertion with a jury decides.
        combined: how those votes are combined into one score, by metric.
    """

    id: str
    names: frozenset[str]
    test_index: int
    repeat: int
    prompt: tuple[str, str]
    provider: tuple[str, str]
    description: str | None
    variables: tuple[tuple[str, str], ...]
    output_sha256: str
    test_key: str | None
    words: int
    scores: Mapping[str, float | None]
    metadata: Mapping[str, JsonValue]
    thresholds: Mapping[str, float]
    judges: Mapping[str, str]
    criteria: Mapping[str, tuple[CriterionKey | None, ...]] = {}
    ranges: Mapping[str, tuple[float, float]] = {}
    inexact: frozenset[str] = frozenset()
    inverted: frozenset[str] = frozenset()
    votes: Mapping[str, tuple[JudgeVote, ...]] = {}
    combined: Mapping[str, str] = {}
    verdicts: Mapping[str, bool] = {}
    p_pass: Mapping[str, float] = {}


class Match(Struct, frozen=True):
    """A label and the output that it is about."""

    label: Label
    item: JudgedItem

    @property
    def score(self) -> float | None:
        """The judge's score, 0..1; None where it failed."""
        return self.item.scores[self.label.metric]

    @property
    def passed(self) -> bool | None:
        """Return whether the judge passed the output; None where it gave no verdict."""
        return self.item.verdicts.get(self.label.metric)


class Matching(Struct, frozen=True):
    """Labels matched to outputs, and the unmatched rest; `problems` explain the first of the unmatched ones."""

    matches: tuple[Match, ...]
    unmatched: tuple[Label, ...] = ()
    problems: tuple[Problem, ...] = ()


def judged_items(results: Iterable[CaseResult]) -> Iterator[JudgedItem]:
    """Yield the outputs of a run that have, or should have, a score on some metric."""
    for result in results:
        scores = scores_of(result)
        if not scores:
            continue
        own = result.metadata.get(_METADATA_ID)
        names = {result.id} if own is None else {result.id, str(own)}
        found: dict[str, tuple[CriterionKey | None, ...]] = {}
        for assertion, _ in with_members(result.assertions):
            if assertion.metric is not None and assertion.score is not None:
                found[assertion.metric] = (*found.get(assertion.metric, ()), _key_in(assertion.detail))
        yield JudgedItem(
            id=result.id,
            names=frozenset(names),
            test_index=result.test_index,
            repeat=result.repeat_index + 1,
            prompt=(result.prompt.id, result.prompt.label),
            provider=(result.provider.id, result.provider.label),
            description=result.description,
            variables=vars_key(result.vars),
            output_sha256=output_digest(result.output),
            test_key=result.test_key,
            words=count_words(result.output),
            scores=scores,
            metadata=result.metadata,
            # The threshold of a `not-` assertion is that of its positive form and does not apply to its score.
            thresholds=_of_metrics(
                result, lambda item: None if item.type.startswith("not-") else item.threshold
            ),
            judges=_of_metrics(result, lambda item: item.detail.get("judge")),
            criteria=found,
            ranges=_of_metrics(result, lambda item: item.detail.get("score_range")),
            inexact=frozenset(_of_metrics(result, _ended_early)),
            inverted=frozenset(_of_metrics(result, lambda item: item.type.startswith("not-") or None)),
            votes=_votes_of(result),
            combined=_of_metrics(result, lambda item: (item.detail.get("jury") or {}).get("combine")),
            verdicts=verdicts_of(result),
            p_pass=_of_metrics(result, lambda item: item.detail.get(P_PASS)),
        )


def document_of(metadata: Mapping[str, JsonValue]) -> str | int | None:
    """Return the source document that a test's output is about, from its metadata."""
    found = metadata.get("doc")
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def scores_of(result: CaseResult) -> dict[str, float | None]:
    """Return the scores of a result by metric; None for a metric with any assertion that could not be judged.

    The mean of the remaining assertions would not be comparable with the scores of other outputs.
    """
    scores: dict[str, float | None] = {
        name: round(score, SCORE_DIGITS) for name, score in result.named_scores.items()
    }
    for assertion, _ in with_members(result.assertions):
        if assertion.metric is not None and assertion.status is Status.ERROR:
            scores[assertion.metric] = None
    return scores


def verdicts_of(result: CaseResult) -> dict[str, bool]:
    """Return by metric whether all of its assertions passed; metrics with an error or without a verdict have no entry.

    The score alone does not tell: a required item of a checklist, or a majority of a jury, may decide otherwise.
    """
    statuses: dict[str, set[Status]] = defaultdict(set)
    for assertion, _ in with_members(result.assertions):
        if assertion.metric is not None:
            statuses[assertion.metric].add(assertion.status)
    judged = {metric: found - {Status.NOT_EVALUATED} for metric, found in statuses.items()}
    return {
        metric: found == {Status.PASSED}
        for metric, found in judged.items()
        if found and Status.ERROR not in found
    }


def _of_metrics(result: CaseResult, value_of: Callable[[AssertionResult], T | None]) -> dict[str, T]:
    """Return, by metric, the first value that one of its assertions has."""
    found: dict[str, T] = {}
    for assertion, _ in with_members(result.assertions):
        value = value_of(assertion)
        if assertion.metric is not None and value is not None:
            found.setdefault(assertion.metric, value)
    return found


def _ended_early(result: AssertionResult) -> bool | None:
    """Return True if sampling by the judge, or by a judge of the jury, stopped early, else None."""
    for vote in result.detail.get("judges") or [result.detail]:
        stopped = vote.get("early_stop")
        if stopped and stopped.get("taken") != stopped.get("upto"):
            return True
    return None


def _key_in(detail: Mapping[str, JsonValue]) -> CriterionKey | None:
    key, parts = (detail.get(name) for name in (CRITERION_KEY, CRITERION_PARTS))
    return CriterionKey(key, parts) if isinstance(key, str) and isinstance(parts, dict) else None


def _votes_of(result: CaseResult) -> dict[str, tuple[JudgeVote, ...]]:
    found: dict[str, tuple[JudgeVote, ...]] = {}
    several = set()
    for assertion, _ in with_members(result.assertions):
        metric = assertion.metric
        votes = assertion.detail.get("judges")
        if metric is None or not votes:
            continue
        several.update({metric} & found.keys())
        # The result's score is inverted, those of its judges are not.
        is_turned = assertion.type.startswith("not-")
        found[metric] = tuple(_vote(vote, is_turned=is_turned) for vote in votes)
    return {metric: votes for metric, votes in found.items() if metric not in several}


def _vote(vote: Mapping[str, JsonValue], *, is_turned: bool) -> JudgeVote:
    score = vote.get("score")
    if score is not None:
        score = round(1 - score if is_turned else score, SCORE_DIGITS)
    return JudgeVote(str(vote.get("label") or vote.get("id")), score, _key_in(vote))


def score_notes(metric: str, pairs: Iterable["JudgedLabel"]) -> Iterator[str]:
    """Yield notes on scores whose sampling stopped early, and on scores of `not-` assertions."""
    items = [pair.match.item for pair in pairs if pair.match is not None]
    if count := sum(metric in item.inexact for item in items):
        yield (
            f"{plural(count, 'score')} less exact: the samples ended when the verdict was settled (`upto`); "
            "judge again with all samples for exact figures"
        )
    if any(metric in item.inverted for item in items):
        yield "the scores are those of a `not-` assertion, inverted: a threshold T here is 1 - T in the config"


def match_labels(
    labels: Sequence[Label], items: Iterable[JudgedItem], *, run_id: str = "", allow_unmatched: bool = False
) -> Matching:
    """Return each label with its output, in the order of the labels.

    Args:
        labels: labels of a file.
        items: outputs of the run; iterated once, and only those that a label refers to are kept.
        run_id: id of the run that the items are from.
        allow_unmatched: skip labels that have no output, or whose metric is not judged in the run.

    Raises:
        ConfigError: labels are unmatched and that is not allowed, none is matched, or an annotator labelled an output
            twice.
    """
    return match_in_runs(labels, [(run_id, items)], allow_unmatched=allow_unmatched)[0]


def match_in_runs(
    labels: Sequence[Label],
    runs: Sequence[tuple[str, Iterable[JudgedItem]]],
    *,
    allow_unmatched: bool = False,
) -> list[Matching]:
    """Return the matching for each run, given as its id and its outputs.

    A label belongs to several runs if their texts are equal, and is unmatched if it belongs to none.

    Raises:
        ConfigError: as for `match_labels`; or a label does not say which run's text it is about.
    """
    finders, judged = [], dict[str, None]()
    for run_id, items in runs:
        finder = _Finder(labels, run_id, judged, is_alone=len(runs) == 1)
        for item in items:
            finder.look_at(item)
        finders.append(finder)
    matches: list[list[Match]] = [[] for _ in runs]
    unmatched: list[Label] = []
    unclear: list[Label] = []
    problems: list[Problem] = []
    for number, label in enumerate(labels):
        candidates = [finder.found(number) for finder in finders]
        found = [item if isinstance(item, JudgedItem) else None for item in candidates]
        for here, one in zip(matches, found, strict=True):
            if one is not None:
                here.append(Match(label, one))
        if len({item.output_sha256 for item in found if item is not None}) > 1:
            unclear.append(label)
        if any(item is not None for item in found):
            continue
        unmatched.append(label)
        if len(problems) < _MOST_NAMED:
            meant = next((place for place, (name, _) in enumerate(runs) if name == label.item.run_id), -1)
            tried = candidates[meant]
            problems.append(finders[meant].problem(label, tried if isinstance(tried, list) else []))
    if len(unmatched) > len(problems):
        rest = len(unmatched) - len(problems)
        message = f"{rest:,} more labels have no output in {finders[0].where}"
        problems.append(Problem(message, unmatched[len(problems)].location, finders[0].wrong_run))
    errors = [*_unclear_runs(unclear), *(problem for here in matches for problem in _given_twice(here))]
    if errors or (problems and (not allow_unmatched or not any(matches))):
        raise ConfigError([*errors, *problems])
    return [Matching(tuple(here), tuple(unmatched), tuple(problems)) for here in matches]


def _unclear_runs(labels: Sequence[Label]) -> Iterator[Problem]:
    """Yield problems of labels that do not say which run's text they are about: the first few, and one for the rest."""
    hint = "add `run_id` or `output_sha256`"
    for label in labels[:_MOST_NAMED]:
        yield Problem("this label does not say which run's output was read", _named_at(label), hint)
    if rest := len(labels[_MOST_NAMED:]):
        message = f"{rest:,} more labels do not say which run's output was read"
        yield Problem(message, labels[_MOST_NAMED].location, hint)


def _given_twice(matches: Sequence[Match]) -> Iterator[Problem]:
    """Yield a problem for each repeated label of one output by the same annotator and for the same run."""
    first: dict[tuple[str, str, str, str | None], Label] = {}
    for match in matches:
        label = match.label
        for name in label.marks:
            earlier = first.setdefault((match.item.id, label.metric, name, label.item.run_id), label)
            if earlier is not label:
                who = f"`{name}` labelled" if name else "there is a label of"
                where = f" in line {earlier.location.line}" if earlier.location else ""
                message = f"{who} `{label.metric}` of this output already{where}"
                yield Problem(message, label.location, "keep one of them")


def labelled_outputs(matches: Iterable[Match]) -> dict[str, dict[str, Label]]:
    """Return the label of each output, by metric and output id."""
    found: dict[str, dict[str, Label]] = defaultdict(dict)
    for match in by_output(matches):
        found[match.label.metric][match.item.id] = match.label
    return found


def marks_of(matches: Iterable[Match]) -> dict[str, dict[str, float]]:
    """Return the mean label of all annotators, 0..1, by metric and output id."""
    return {
        metric: {name: label.human for name, label in outputs.items()}
        for metric, outputs in labelled_outputs(matches).items()
    }


def by_output(matches: Iterable[Match]) -> list[Match]:
    """Return one match for each output and metric: rows that name an output in different ways count as one label.

    An annotator who labelled the text more than once, for several runs, gets the mean of these labels.
    """
    found: dict[tuple[str, str], list[Match]] = defaultdict(list)
    for match in matches:
        found[match.item.id, match.label.metric].append(match)
    return [same[0] if len(same) == 1 else _joined(same) for same in found.values()]


def _joined(same: Sequence[Match]) -> Match:
    labels = [match.label for match in same]
    first = next((label for label in labels if label.weight is not None), labels[0])
    marks: dict[str, list[float]] = defaultdict(list)
    for label in labels:
        for name, mark in label.marks.items():
            marks[name].append(mark)
    known = {
        name: next((value for label in (first, *labels) if (value := getattr(label, name)) is not None), None)
        for name in ("doc", "system", "note", "words")
    }
    joined = replace(
        first,
        marks={name: math.fsum(values) / len(values) for name, values in marks.items()},
        columns=dict(ChainMap(*(dict(label.columns) for label in (first, *labels)))),
        notes=dict(ChainMap(*(dict(label.notes) for label in (first, *labels)))),
        **known,
    )
    return Match(joined, same[0].item)


class _Finder:
    """An index of labels by what they say about their output, so that the run is iterated only once."""

    def __init__(
        self, labels: Sequence[Label], run_id: str, judged: dict[str, None], *, is_alone: bool
    ) -> None:
        self._labels = labels
        self._run_id = run_id
        self.where = "this run" if is_alone else "either run"
        self.wrong_run = _WRONG_RUN if is_alone else "check that these are the right runs"
        self._lacks = "this run has no" if is_alone else "neither run has an"
        self._other_hint = _OTHER_HINT if is_alone else "label these runs' outputs, or pass --allow-unmatched"
        self._wanted: dict[tuple[object, ...], list[int]] = defaultdict(list)
        self._said: set[tuple[bool, bool, bool]] = set()
        self._candidates: dict[int, list[JudgedItem]] = defaultdict(list)
        self._names: dict[str, None] = {}
        self._metrics = judged  # of all runs
        for number, label in enumerate(labels):
            for key in self._keys(label.item):
                self._wanted[key].append(number)

    def _keys(self, item: ItemRef) -> Iterator[tuple[object, ...]]:
        """Yield the keys of outputs that a label may be about; an output is a candidate if it has any of them."""
        if item.test_key is not None:
            yield _TEST, item.test_key
        if item.id is not None:
            yield (item.id,)
            if not self._may_have_moved(item):
                return
        says = (item.description is not None, item.variables is not None, item.output_sha256 is not None)
        if any(says):
            self._said.add(says)
            yield _content_key(says, item)

    def _may_have_moved(self, item: ItemRef) -> bool:
        """Return whether a label is of another run and describes its test: its id may be another test's here."""
        is_of_other_run = bool(self._run_id) and item.run_id not in (None, self._run_id)
        return is_of_other_run and not (item.description is None and item.variables is None)

    def look_at(self, item: JudgedItem) -> None:
        """Keep an output if a label may be about it."""
        self._metrics.update(dict.fromkeys(item.scores))
        if len(self._names) < _MOST_CANDIDATES:
            self._names.update(dict.fromkeys(sorted(item.names)))
        keys = [(name,) for name in item.names] + [_content_key(says, item) for says in self._said]
        keys.append((_TEST, item.test_key))
        for number in {number for key in keys for number in self._wanted.get(key, ())}:
            self._candidates[number].append(item)

    def found(self, number: int) -> JudgedItem | list[JudgedItem]:
        """Return the only output that a label can be about, or all candidates if there is not exactly one."""
        label = self._labels[number]
        candidates = self._candidates.get(number, [])
        fitting = [item for item in candidates if self._fits(label, item)]
        if len(fitting) > 1 and label.item.id is not None:  # identical tests: prefer the one with the id
            fitting = [item for item in fitting if label.item.id in item.names] or fitting
        return fitting[0] if len(fitting) == 1 else fitting or candidates

    def _fits(self, label: Label, item: JudgedItem) -> bool:
        said = label.item
        return (
            label.metric in item.scores
            and said.prompt in (None, *item.prompt)
            and said.provider in (None, *item.provider)
            and said.repeat in (None, item.repeat)
            and self._is_of_test(said, item)
            and self._is_of_output(said, item)
        )

    def _is_of_test(self, said: ItemRef, item: JudgedItem) -> bool:
        """Return whether a label can be about the test of an output; true if it does not say which test it is about."""
        if said.test_key is not None and item.test_key is not None:
            return said.test_key == item.test_key
        if not self._may_have_moved(said):
            return True
        return said.description in (None, item.description) and said.variables in (None, item.variables)

    def _is_of_output(self, said: ItemRef, item: JudgedItem) -> bool:
        if said.output_sha256 is not None:
            return said.output_sha256 == item.output_sha256
        return not self._run_id or said.run_id in (None, self._run_id)

    def problem(self, label: Label, candidates: list[JudgedItem]) -> Problem:
        """Return the reason why a label has no output, with the most similar id."""
        if label.metric not in self._metrics:
            hint = hint_of(label.metric, self._metrics, "the run has")
            message = f"no judge of {self.where} scores `{label.metric}`"
            return Problem(message, label.place.value("metric"), hint)
        if not candidates:
            name = label.item.id
            if name is None:
                message = f"no output of {self.where} has this description, these vars or this text"
                return Problem(message, label.location, "give the result's `id`, or pass --allow-unmatched")
            near = did_you_mean(name, self._names)
            hint = f"the nearest id is `{near}`" if near else self.wrong_run
            return Problem(f"{self._lacks} output `{name}`", label.place.value("id"), hint)
        fitting = [item for item in candidates if self._fits(label, item)]
        if len(fitting) > 1:
            hint = (
                f"add `prompt`, `provider` or `repeat`, or give the id: {_few(item.id for item in fitting)}"
            )
            return Problem(f"this label matches {len(fitting)} outputs", _named_at(label), hint)
        if all(label.metric not in item.scores for item in candidates):
            message = f"`{label.metric}` is not judged for this output"
            return Problem(
                message, label.place.value("metric"), "remove the label, or pass --allow-unmatched"
            )
        candidates = [item for item in candidates if self._is_of_test(label.item, item)]
        if not candidates:
            where = label.place.value("test_key") or _named_at(label)
            return Problem("this label was made for another test", where, self._other_hint)
        if not any(self._is_of_output(label.item, item) for item in candidates):
            if label.item.output_sha256 is not None:
                message = "this label was made for another output"
                where = label.place.value("output_sha256")
                return Problem(message, where, self._other_hint)
            message = f"this label was made for the run `{label.item.run_id}` and has no `output_sha256`"
            return Problem(message, label.place.value("run_id"), self._other_hint)
        hint = f"this item has: {_few(f'{item.prompt[1]} / {item.provider[1]}' for item in candidates)}"
        message = "this item has no output for that prompt, provider or repeat"
        return Problem(message, _named_at(label), hint)


def _content_key(says: tuple[bool, bool, bool], item: ItemRef | JudgedItem) -> tuple[object, ...]:
    parts = (item.description, item.variables, item.output_sha256)
    return (says, *(part for part, is_said in zip(parts, says, strict=True) if is_said))


def _named_at(label: Label) -> Location | None:
    return label.place.value("id") or label.location


def _few(names: Iterable[str]) -> str:
    listed = list(dict.fromkeys(names))
    more = f" and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
    return ", ".join(listed[:_MOST_LISTED]) + more


def passed_at(score: float | None, verdict: bool | None, given: float | None, limit: float) -> bool:
    """Return the judge's verdict.

    If a threshold is `given`, or there is no verdict, the score is compared with `limit`.
    """
    return passes(score or 0.0, limit) if given is not None or verdict is None else verdict


class JudgedLabel(Struct):
    """A label with the judge's score of the same output.

    Attributes:
        cluster: filled in once all pairs are known.
        share: relative weight in a mean over all outputs of the run, compared with the other labels of the metric.
        is_kept: whether it is in the random subset in which all outputs are equally likely.
    """

    label: Label
    score: float | None
    document: str | None
    system: str | None
    words: int | None
    test: str
    match: Match | None = None
    cluster: str = ""
    share: float = 1.0
    is_kept: bool = True

    @property
    def output(self) -> str:
        """Return the id of the output; without a run, what identifies it in the label."""
        return self.test if self.match is None else self.match.item.id

    def passed_at(self, given: float | None, limit: float) -> bool:
        """Return the judge's verdict; see the function of the same name."""
        return passed_at(self.score, None if self.match is None else self.match.passed, given, limit)


def read_given(labels: "Labels") -> LabelFile:
    """Return labels as a LabelFile, read from a file or from rows if necessary."""
    if isinstance(labels, LabelFile):
        return labels
    return read_labels(Path(labels)) if isinstance(labels, Path | str) else labels_from_rows(labels)


Labels = LabelFile | Path | str | Iterable[Mapping[str, JsonValue]]
"""A file of labels, or its rows."""


def hint_of(name: str, known: Iterable[str], what: str = "known") -> str:
    """Return a hint for an unknown name: the most similar known name, else the known names."""
    return hint_among(name, known, what) or f"{what}: none"


class JudgedLabels(Struct, frozen=True):
    """Labels with the judge's scores of the same outputs.

    Attributes:
        unmatched: number of labels without an output.
        clustered_by: the column or metadata key that defines the clusters.
        thinned: number of labels left out by metric, since outputs of their kind were drawn more often.
    """

    file: LabelFile
    run_id: str
    pairs: Sequence[JudgedLabel]
    unmatched: int
    clustered_by: str
    thinned: Mapping[str, int] = {}

    def notes_of(self, metric: str) -> tuple[str, ...]:
        """Return a note on the left-out labels of a metric, if there are any."""
        count = self.thinned.get(metric, 0)
        if not count:
            return ()
        return (
            f"left out: {plural(count, 'label')}, at random, since `geval label --next` drew their kind more often",
        )

    def by_metric(self, only: Sequence[str] = ()) -> dict[str, list[JudgedLabel]]:
        """Return the labels of each metric, or of the metrics in `only` if it names any.

        Raises:
            UsageError: one of them has no labels.
        """
        found: dict[str, list[JudgedLabel]] = {}
        for pair in self.pairs:
            found.setdefault(pair.label.metric, []).append(pair)
        return {name: found[name] for name in chosen_metrics(found, only)}


def chosen_metrics(labelled: Iterable[str], only: Sequence[str]) -> list[str]:
    """Return the labelled metrics to use; all if `only` is empty.

    Raises:
        UsageError: one of them has no labels.
    """
    names = list(dict.fromkeys(labelled))
    for name in only:
        if name not in names:
            raise UsageError(f"there are no labels for `{name}`", hint=hint_of(name, names, "labelled"))
    return [name for name in names if not only or name in only]


def judged_labels(
    labels: Labels,
    run: RunReport | Iterable[CaseResult] | None,
    *,
    cluster: str | None,
    allow_unmatched: bool,
    uses_shares: bool = False,
) -> JudgedLabels:
    """Return labels with the judge's scores, from a run or, without one, from the labels themselves.

    Labels that were drawn with unequal chances are thinned to a random subset in which all outputs are equally likely;
    with `uses_shares` all of them are returned.

    Raises:
        ConfigError: rows are invalid or unmatched (with all problems), or labels that a draw was made after are
            missing.
        UsageError: there are no scores, or the cluster key does not exist.
    """
    file = read_given(labels)
    run_id, results = (run.run.id, run.results()) if isinstance(run, RunReport) else ("", run)
    pairs, unmatched = _pair_labels(file, results, run_id=run_id, allow_unmatched=allow_unmatched)
    kept = pairs if uses_shares else [pair for pair in pairs if pair.is_kept]
    thinned = Counter(pair.label.metric for pair in pairs) - Counter(pair.label.metric for pair in kept)
    return JudgedLabels(file, run_id, kept, unmatched, _assign_clusters(kept, cluster), thinned)


def threshold_of(used: Iterable[float | None], good: float, given: float | None = None) -> float:
    """Return the `given` threshold, else the one in use if there is only one, else `good`."""
    if given is not None:
        return given
    (only,) = found if len(found := set(used)) == 1 else (None,)
    return good if only is None else only


def _pair_labels(
    given: LabelFile, run: Iterable[CaseResult] | None, *, run_id: str, allow_unmatched: bool
) -> tuple[list[JudgedLabel], int]:
    outputs: Counter[str] = Counter()
    if run is not None:
        items = _counted(judged_items(run), outputs)
        found = match_labels(given.labels, items, run_id=run_id, allow_unmatched=allow_unmatched)
        pairs = [_of_match(match) for match in by_output(found.matches)]
        unmatched = len(found.unmatched)
    elif given.has_scores:
        pairs = [_of_label(label) for label in given.labels]
        unmatched = 0
    else:
        hint = "give the labelled run with --run, or add the judge's scores as `score`"
        raise UsageError(f"{given.path} has no judge scores", hint=hint)
    if is_weighted(given.labels):
        _weigh(pairs, outputs)
    return pairs, unmatched


def _counted(items: Iterable[JudgedItem], outputs: Counter[str]) -> Iterator[JudgedItem]:
    for item in items:
        outputs.update(metric for metric, score in item.scores.items() if score is not None)
        yield item


def _weigh(pairs: Sequence[JudgedLabel], outputs: Mapping[str, int]) -> None:
    """Set the shares of labels drawn with unequal chances, and which of them form an equal-probability sample.

    Raises:
        ConfigError: labels that a draw was made after are missing.
    """
    by_output: dict[str, dict[str, Label]] = defaultdict(dict)
    for pair in pairs:
        by_output[pair.label.metric].setdefault(pair.output, pair.label)
    for metric, labels in by_output.items():
        shares = shares_of_labels(labels, outputs.get(metric) or _ENDLESS)
        if shares is None:
            continue
        kept = equally_likely(shares)
        for pair in pairs:
            if pair.label.metric == metric:
                pair.share = shares[pair.output]
                pair.is_kept = pair.output in kept


def _of_match(match: Match) -> JudgedLabel:
    label, item = match.label, match.item
    return JudgedLabel(
        label,
        match.score,
        document=label.doc,
        system=label.system or f"{item.prompt[1]} / {item.provider[1]}",
        words=item.words,
        test=f"test {item.test_index}",
        match=match,
    )


def _of_label(label: Label) -> JudgedLabel:
    said = label.item
    content = (said.description, said.variables)
    name = said.id or (repr(content) if any(content) else said.output_sha256)
    return JudgedLabel(
        label,
        label.score,
        document=label.doc,
        system=label.system,
        words=label.words,
        test=str(name),
    )


def _assign_clusters(pairs: Sequence[JudgedLabel], key: str | None) -> str:
    """Assign each pair to its cluster, and return the key that defines the clusters."""
    if key is None:
        has_documents = all(pair.document is not None for pair in pairs)
        for pair in pairs:
            pair.document = pair.document if has_documents else pair.test
            pair.cluster = str(pair.document)
        return "doc" if has_documents else "test"
    lacking: list[JudgedLabel] = []
    known: dict[str, None] = {}
    for pair in pairs:
        pair.document = pair.document or pair.test
        metadata = {} if pair.match is None else pair.match.item.metadata
        own = {"doc": pair.label.doc, "system": pair.label.system, "id": pair.label.item.id}
        columns = {
            **metadata,
            **pair.label.columns,
            **{key: value for key, value in own.items() if value is not None},
        }
        known.update(dict.fromkeys(columns))
        if columns.get(key) is None:
            lacking.append(pair)
        pair.cluster = str(columns.get(key))
    if lacking:
        hint = hint_of(key, known)
        what = f"{len(lacking):,} of {len(pairs):,} labels have no `{key}`"
        raise UsageError(f"cannot group by `{key}`: {what}", hint=hint, location=lacking[0].label.location)
    return key

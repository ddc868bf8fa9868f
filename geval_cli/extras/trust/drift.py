"""Detect judge drift by judging anchors again without the cache: `geval drift`, and `anchors` in a config.

A run stores the result in its record, so that a comparison of two runs can tell whether the judge was the same.
"""

import asyncio
import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, MergedTest, ModelGradedAssertion, each_assertion
from geval_cli.assertions.geval_metric import GEvalFields, metric_name
from geval_cli.assertions.registry import CRITERION_PARTS, STEPS
from geval_cli.engine.case import JobContext, begin_job
from geval_cli.engine.plan import NOTHING_SAID, Job, assertions_of, key_of
from geval_cli.errors import NotDoneError
from geval_cli.events import ModelCalled, Noticed, RunEvent
from geval_cli.extras.plan import RunPlan
from geval_cli.extras.trust.anchors import (
    Anchor,
    AnchorSet,
    Look,
    MetricDrift,
    Rating,
    begin_look,
    keep_look,
    look_from_json,
    looks_before,
    only_look,
    ratings_of,
    unfinished_since,
)
from geval_cli.extras.trust.documents import Quote, ReportDocument, Section, Table
from geval_cli.extras.trust.statistics.drift import (
    MARGIN,
    Drift,
    DriftVerdict,
    RatedTwice,
    drift_of,
    least_for_steady,
    looks_at,
)
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.json_codec import encode_json
from geval_cli.judge.estimate import passes
from geval_cli.metrics import with_members
from geval_cli.numbers import fixed, format_cost, format_difference, plural
from geval_cli.records import TEST_TEXTS, JsonValue, Role, RunRecord, Usage, to_json
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.session import job_context, open_suite_session
from geval_cli.store.cache import ResponseCache

_AT_ONCE = 64


async def look(
    prepared: PreparedRun,
    anchors: AnchorSet,
    cache: ResponseCache,
    policy: CallPolicy,
    on_event: Callable[[RunEvent], None],
    *,
    home: Path | None,
    margin: float = MARGIN,
    count: Callable[[int], None] = lambda ratings: None,
) -> Look:
    """Judge anchors again with the assertions and judges of a prepared suite, and store the look in `home`.

    No response comes from the cache, unless a recent look did not finish: its ratings are used.

    If the budget is used up, or the run is stopped, the remaining anchors are left out, and the result says so. `count`
    is called with the number of ratings of each anchor as they come in.
    """
    fresh = uncached(prepared)
    policy = replace(policy, run_id=None, begin_batches=None)
    asking = asked_for(anchors, prepared)
    usage: list[Usage] = []
    judges = judges_digest(prepared)
    began_s = unfinished_since(home, anchors.digest, judges, cache.now())

    def listen(event: RunEvent) -> None:
        if isinstance(event, ModelCalled):
            usage.append(event.usage)
        on_event(event)

    asked = _AskedAgain()
    async with AsyncExitStack() as stack:
        is_noted = home is not None and stack.enter_context(only_look(home))
        if home is not None and is_noted and began_s is None:
            begin_look(home, anchors.digest, judges, cache.now())
        session = await stack.enter_async_context(
            open_suite_session(fresh, cache, policy, on_event=listen, began_s=began_s)
        )
        context = job_context(session, fresh)
        room = asyncio.Semaphore(_AT_ONCE)

        async def judge(item: AskedJob) -> None:
            await asked.judge(item.anchor, item.job, context, room)
            count(len(asked.ratings.get(item.anchor.id, ())))

        await asyncio.gather(*map(judge, asking))
        hide = session.secrets.hide
    can_rate = {name for item in asking for name in item.specs}
    found = Look(
        file=str(anchors.path),
        digest=anchors.digest,
        run=anchors.run,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        anchors=len(anchors.anchors),
        tests=anchors.tests,
        metrics=tuple(_metrics(anchors, asked, margin)),
        scores={
            name: {key: item.score for key, item in found.items()} for name, found in asked.ratings.items()
        },
        lost=sum(len(anchor.ratings) for anchor in anchors.anchors) - sum(len(item.specs) for item in asking),
        errored=asked.errored,
        usage=sum(usage, Usage()),
        stopped=hide(asked.stopped),
        first_error=hide(asked.first_error),
        lost_metrics=tuple(name for name in anchors.metrics if name not in can_rate),
    )
    if home is not None:
        found = with_looks(found, looks_before(home, found.digest))
        keep_look(home, found, judges)
    return found


def judges_digest(prepared: PreparedRun) -> str:
    """Return a digest of the judges: a look that did not finish is resumed by the same ones, in whatever config."""
    names = sorted(spec.public_id for spec in prepared.judges)
    return hashlib.sha256(encode_json(names)).hexdigest()[:16]


def uncached(prepared: PreparedRun) -> PreparedRun:
    """Return the prepared run, set not to read responses from the cache."""
    return replace(prepared, request=dataclasses.replace(prepared.request, reads_cache=False))


async def look_before_run(
    prepared: PreparedRun,
    cache: ResponseCache,
    policy: CallPolicy,
    on_event: Callable[[RunEvent], None],
    *,
    home: Path | None,
) -> JsonValue:
    """Judge a config's anchors before its run, and return the look for the run's record.

    None if the config has no anchors, if the run re-judges stored outputs, or with --offline.
    """
    anchors = prepared.anchors
    if prepared.request.judged is not None or not isinstance(anchors, AnchorSet):
        return None
    if prepared.request.is_offline:
        on_event(Noticed("the anchors were not judged: --offline sends nothing"))
        return None
    found = await look(prepared, anchors, cache, policy, on_event, home=home)
    for item in found.metrics:
        if item.drift.verdict is not DriftVerdict.STEADY or (item.looks and item.looks.moved):
            on_event(Noticed(f"anchors, {item.metric}: {sentence(item)}"))
    if found.lost or found.errored or found.stopped:
        on_event(Noticed(f"anchors: {_about(found, str)}"))
    return to_json(found)


class _AskedAgain(Struct):
    """The new ratings of anchors so far, by anchor id."""

    ratings: dict[str, Mapping[str, Rating]] = field(default_factory=dict)
    thresholds: dict[str, dict[str, tuple[float, bool]]] = field(default_factory=dict)
    """By anchor and metric; the flag marks a `not-` assertion, whose threshold is that of its positive form."""
    criteria: dict[str, set[bytes]] = field(default_factory=dict)
    """The criteria used, by metric, without the steps that a judge rewrites each time."""
    errored: int = 0
    stopped: str = ""
    first_error: str = ""

    async def judge(self, anchor: Anchor, job: Job, context: JobContext, room: asyncio.Semaphore) -> None:
        async with room:
            if self.stopped:
                return
            try:
                pending = await begin_job(job, replace(context, stored=lambda _: anchor.case))
            except NotDoneError as error:
                self.stopped = error.message
                return
        results = [item for item, _ in with_members(pending.result.assertions)]
        self.ratings[anchor.id] = {
            name: rating for name, rating in ratings_of(results).items() if name in anchor.ratings
        }
        self.thresholds[anchor.id] = {
            item.metric: (item.threshold, item.type.startswith("not-"))
            for item in results
            if item.metric and item.threshold is not None
        }
        for item in results:
            parts = item.detail.get(CRITERION_PARTS)
            if item.metric is not None and parts:
                named = sorted((name, part) for name, part in parts.items() if name != STEPS)
                self.criteria.setdefault(item.metric, set()).add(encode_json(named))
            if item.error is not None:
                self.errored += 1
                self.first_error = self.first_error or item.error.message


class AskedJob(Struct, frozen=True):
    """An anchor and the job that judges it; `specs` are the assertions as configured, by metric."""

    anchor: Anchor
    job: Job
    specs: Mapping[str, Assertion]


def asked_for(anchors: AnchorSet, prepared: PreparedRun) -> list[AskedJob]:
    """Return the job for each anchor that the current config can judge.

    The assertions are those of the anchor's own test if the config still has it, otherwise that of a metric if all
    tests
    share the same one. The texts are those that were judged originally, whatever the test says now.
    """
    own: defaultdict[str, list[tuple[Job, dict[str, Assertion]]]] = defaultdict(list)
    shared: dict[str, tuple[Job, Assertion] | None] = {}
    for job in chain.from_iterable(prepared.plan.queues):
        if job.repeat_index:
            continue
        specs = _graded(job, prepared)
        key = key_of(job.test)
        if key != NOTHING_SAID and specs:
            own[key].append((job, specs))
        for name, spec in specs.items():
            known = shared.setdefault(name, (job, spec))
            if known is not None and known[1] is not spec and known[1] != spec:
                shared[name] = None
    return [found for anchor in anchors.anchors if (found := _asking(anchor, own, shared)) is not None]


def _asking(
    anchor: Anchor,
    own: Mapping[str, Sequence[tuple[Job, dict[str, Assertion]]]],
    shared: Mapping[str, tuple[Job, Assertion] | None],
) -> AskedJob | None:
    mine = own.get(anchor.case.test_key or "", ())
    if mine:
        # Several tests may share a key but differ in context or output, and a test may have been edited since.
        unchanged = next((found for found in mine if _is_of(anchor, found[0].test)), None)
        job, specs = unchanged or mine[0]
        specs = {name: spec for name, spec in specs.items() if name in anchor.ratings}
        test = job.test if unchanged else replace(job.test, **_words_of(anchor))
        return _made(job, test, anchor, specs) if specs else None
    fitting = {name: found for name in anchor.ratings if (found := shared.get(name)) is not None}
    if not fitting:
        return None
    job = next(iter(fitting.values()))[0]
    test = replace(
        job.test,
        description=anchor.case.description,
        vars=anchor.case.vars,
        metadata=anchor.case.metadata,
        images=(),
        audio=(),
        turns=(),
        has_output=False,
        output=None,
        **_words_of(anchor),
    )
    return _made(job, test, anchor, {name: spec for name, (_, spec) in fitting.items()})


def _words_of(anchor: Anchor) -> dict[str, Any]:
    texts = {name: getattr(anchor.case.asked, name, None) for name in TEST_TEXTS}
    return {**texts, "trace": anchor.case.trace or None}


def _is_of(anchor: Anchor, test: MergedTest) -> bool:
    """Return whether a test has exactly the texts and the trace that were judged with the anchor's output."""
    return all((getattr(test, name) or None) == (word or None) for name, word in _words_of(anchor).items())


def _made(job: Job, test: MergedTest, anchor: Anchor, specs: Mapping[str, Assertion]) -> AskedJob:
    test = replace(test, assertions=tuple(map(_quiet, specs.values())), threshold=None)
    return AskedJob(anchor, replace(job, test=test, repeat_index=anchor.case.repeat_index), specs)


def _graded(job: Job, prepared: PreparedRun) -> dict[str, Assertion]:
    """Return the model-graded assertions that judge each output on its own, by metric; the first of each."""
    found: dict[str, Assertion] = {}
    for spec in each_assertion(assertions_of(job.prompt, job.test)):
        if isinstance(spec, ModelGradedAssertion) and not spec.compares_outputs:
            name = metric_name(spec, job.test, prepared.templates)
            if name is not None:
                found.setdefault(name, spec)
    return found


def _quiet(spec: Assertion) -> Assertion:
    """Return the assertion with reasons switched off: they cost money and are not used here."""
    return spec.model_copy(update={"explain": "never"}) if isinstance(spec, GEvalFields) else spec


def _metrics(anchors: AnchorSet, asked: _AskedAgain, margin: float) -> Iterator[MetricDrift]:
    for name in anchors.metrics:
        pairs, then, now = [], {}, {}
        thresholds: set[float] = set()
        for anchor in anchors.anchors:
            before, after = anchor.ratings.get(name), asked.ratings.get(anchor.id, {}).get(name)
            if before is None or after is None:
                continue
            marks: list[bool] = []
            if name in asked.thresholds[anchor.id]:
                limit, is_turned = asked.thresholds[anchor.id][name]
                thresholds.update(() if is_turned else (limit,))
                marks = [
                    not passes(1 - score, limit) if is_turned else passes(score, limit)
                    for score in (before.score, after.score)
                ]
            pairs.append(RatedTwice(anchor.cluster, before.score, after.score, *marks))
            then.update(dict.fromkeys(_names_of_judge(before)))
            now.update(dict.fromkeys(_names_of_judge(after)))
        found = drift_of(pairs, margin)
        if found is not None:
            shared = thresholds.pop() if len(thresholds) == 1 else None
            rated_by = hashlib.sha256(b"\n".join(sorted(asked.criteria.get(name, ())))).hexdigest()[:16]
            yield MetricDrift(
                name, found, shared, tuple(sorted(then)), tuple(sorted(now)), criterion=rated_by
            )


def _names_of_judge(rating: Rating) -> list[str]:
    """Return the judge's name in the config, with the models that answered if they add information."""
    told = []
    for item in rating.models:
        model = item.get("model") or ""
        mark = item.get("fingerprint")
        told.append(" ".join(filter(None, (model, mark))))
    alias = rating.judge or "a judge"
    shown = [name for name in told if name and name != alias.rpartition(":")[2]]
    return [f"{alias} ({', '.join(shown)})" if shown else alias]


def with_looks(found: Look, earlier: Sequence[Look]) -> Look:
    """Return a look with the combined result of all looks at its anchors by the same judge; `earlier` is oldest first.

    Looks with another judge or criterion are left out: their shifts say nothing about this one.
    """
    metrics = []
    for item in found.metrics:
        shifts = [
            other.drift.shift
            for one in earlier
            if one.digest == found.digest
            for other in one.metrics
            if other.metric == item.metric and other.criterion == item.criterion
        ]
        together = looks_at([*shifts, item.drift.shift], item.drift.margin) if shifts else None
        metrics.append(replace(item, looks=together))
    return replace(found, metrics=tuple(metrics))


def sentence(item: MetricDrift, quote: Quote = str) -> str:
    """Return a sentence with the finding for a metric; `quote` escapes the names of judges."""
    found = item.drift
    changed = flips = ""
    if item.judges_then != item.judges_now:
        then, now = (_listed(list(map(quote, names))) for names in (item.judges_then, item.judges_now))
        changed = f"; judged by {then} then, by {now} now"
    count = found.newly_failed + found.newly_passed
    if count:
        ways = f"{found.newly_failed:,} to fail, {found.newly_passed:,} to pass"
        flips = f"; {plural(count, 'verdict')} of {found.judged:,} flipped ({ways})"
    return f"{_HEADS[found.verdict]}: {shift_text(found)}{flips}{changed}"


_HEADS = {
    DriftVerdict.STEADY: "steady",
    DriftVerdict.MOVED: "the judge has moved",
    DriftVerdict.UNCLEAR: "unclear",
}


def shift_text(found: Drift) -> str:
    """Return the shift and its interval in words."""
    size = fixed(abs(found.shift), 2)
    way = "as before" if float(size) == 0 else f"{size} {'lower' if found.shift < 0 else 'higher'}"
    between = ""
    if found.interval is not None:
        low, high = found.interval
        between = f" (90 % interval of the shift {fixed(low, 2)} to {fixed(high, 2)})"
    verb = "scores" if found.n == 1 else "score"
    return f"the same {plural(found.n, 'output')} {verb} {way}{between}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "an unknown judge"


def drift_document(found: Look) -> ReportDocument:
    """Return a look as a report document."""
    sections = [
        Section(
            item.metric,
            partial(sentence, item),
            tables=[Table(_HEADER, [_row(item)])],
            brief=[
                Table(_HEADER, [_row(item)], least=100),
                Table([_HEADER[place] for place in _BRIEF], [[_row(item)[place] for place in _BRIEF]]),
            ],
            notes=list(_notes(item)),
        )
        for item in found.metrics
    ]
    if not sections:
        sections = [Section("", lambda quote: "no anchor could be judged", is_overview=True)]
    data = {"schema_version": 1, "kind": "drift", "verdict": found.verdict, **to_json(found)}
    return ReportDocument("Drift of the judge", lambda quote: _about(found, quote), sections, data)


_HEADER = ("then", "now", "shift", "90 % interval", "rank", "outputs", "tests", "flipped", "verdict")


_BRIEF = (0, 1, 2, 3, 4, 7, 8)
"""The columns shown on a narrow terminal."""


def _row(item: MetricDrift) -> list[str]:
    found = item.drift
    return [
        fixed(found.before, 2),
        fixed(found.after, 2),
        format_difference(found.shift),
        "-" if found.interval is None else f"{fixed(found.interval[0], 2)} to {fixed(found.interval[1], 2)}",
        "-" if found.rank is None else fixed(found.rank, 2),
        f"{found.n:,}",
        f"{found.clusters:,}",
        f"{found.newly_failed + found.newly_passed:,} of {found.judged:,}" if found.judged else "-",
        found.verdict.value,
    ]


def _notes(item: MetricDrift) -> Iterator[str]:
    least = least_for_steady(item.drift.margin)
    if item.drift.clusters < least:
        tests = plural(item.drift.clusters, "test")
        yield f"{tests} cannot show that a judge is steady within {item.drift.margin:g}: that takes {least:,}"
    if item.looks is not None:
        low, high = item.looks.interval
        told = (
            "a shift beyond the margin is shown"
            if item.looks.moved
            else "no shift beyond the margin is shown"
        )
        yield (
            f"over {plural(item.looks.count, 'look')}, however often: mean shift {format_difference(item.looks.mean)}"
            f" (anytime-valid 95 % interval {fixed(low, 2)} to {fixed(high, 2)}), {told}"
        )


def _about(found: Look, quote: Quote) -> str:
    parts = [f"{plural(found.anchors, 'anchor')} of {plural(found.tests, 'test')} in {quote(found.file)}"]
    if found.lost:
        lost = plural(found.lost, "rating")
        whole = f", all of {quote(', '.join(found.lost_metrics))}" if found.lost_metrics else ""
        parts.append(f"{lost} without an assertion in today's config{whole}")
    if found.errored:
        parts.append(f"{plural(found.errored, 'rating')} failed ({quote(found.first_error)})")
    if found.stopped:
        parts.append(f"stopped early: {quote(found.stopped)}")
    return ", ".join(parts) + "."


def between_runs(before: RunRecord, after: RunRecord, *, differs: bool) -> dict[str, JsonValue] | None:
    """Return whether the judge, the outputs or neither changed between two runs; None if one did not judge anchors.

    If the runs judged different anchors, the finding is `unknown`; if the evidence is too weak, `unclear`.

    Args:
        before: the earlier run.
        after: the later run.
        differs: whether the figures of the two runs are shown to differ.
    """
    first, second = look_from_json(before.anchors), look_from_json(after.anchors)
    if first is None or second is None:
        return None
    if first.digest != second.digest:
        text = "the two runs judged different anchors, so whether the judge moved between them is unknown"
        return {"finding": "unknown", "text": text, "metrics": {}}
    found = {item.metric: _between(item.metric, first, second) for item in second.metrics}
    drifts = {name: drift for name, drift in found.items() if drift is not None}
    if not drifts:
        return None
    moved = [name for name, drift in drifts.items() if drift.verdict is DriftVerdict.MOVED]
    is_steady = all(drift.verdict is DriftVerdict.STEADY for drift in drifts.values())
    if moved:
        finding = "the judge moved"
        then, now = _judges_of(first, moved), _judges_of(second, moved)
        who = f" (then {then}, now {now})" if then != now else ""
        what = "; ".join(f"{name}: {shift_text(drifts[name])}" for name in moved)
        text = f"{finding}{who}: {what}. A difference of that size comes from the judge, not from the outputs"
    elif is_steady:
        finding = "the outputs moved" if differs else "no drift"
        tail = "so the outputs changed" if differs else "and the outputs show no clear difference"
        text = f"{finding}: {_extreme(drifts)}, {tail}"
    else:
        finding = "unclear"
        text = f"unclear whether the judge moved: {_extreme(drifts)}; more anchors would tell"
    return {"finding": finding, "text": text, "metrics": to_json(drifts)}


def _extreme(drifts: Mapping[str, Drift]) -> str:
    """Return the largest shift of any metric in words."""
    name = max(drifts, key=lambda item: abs(drifts[item].shift))
    head = f"{name}: " if len(drifts) > 1 else ""
    return f"{head}{shift_text(drifts[name])} with the later run's judge"


def _between(metric: str, first: Look, second: Look) -> Drift | None:
    pairs = []
    for name, scores in second.scores.items():
        before, after = first.scores.get(name, {}).get(metric), scores.get(metric)
        if before is not None and after is not None:
            test, _, _ = name.partition(".")
            pairs.append(RatedTwice(test, before, after))
    return drift_of(pairs)


def _judges_of(found: Look, metrics: Sequence[str]) -> str:
    names = (name for item in found.metrics if item.metric in metrics for name in item.judges_now)
    return _listed(list(dict.fromkeys(names)))


class RatingCost(Struct, frozen=True):
    """The planned cost of a rating: its input tokens, and the most it can cost; None if unknown or unbounded."""

    reading_usd: float | None = None
    most_usd: float | None = None

    @classmethod
    def of(cls, plan: RunPlan, ratings_per_case: int) -> "RatingCost":
        """Return the cost of one rating, from the plan of a run with `ratings_per_case` ratings for each case."""
        judged = [counts for kind, counts in plan.counts.items() if kind.role is Role.JUDGE and counts.most]
        share = ratings_per_case * plan.cases
        if not judged or not share:
            return cls()
        scale = sum(counts.most + counts.cached for counts in judged) / sum(counts.most for counts in judged)
        reading, most = (
            None if None in costs else sum(cost or 0.0 for cost in costs) * scale / share
            for costs in (
                [counts.cost_least_usd for counts in judged],
                [counts.cost_most_usd for counts in judged],
            )
        )
        return cls(reading, most)

    def most_of(self, ratings: int) -> float | None:
        return None if self.most_usd is None else self.most_usd * ratings

    def facts(self, ratings: int) -> dict[str, JsonValue]:
        """Return the cost of `ratings` ratings, for programs."""
        reading = None if self.reading_usd is None else self.reading_usd * ratings
        return {"reading_cost_usd": reading, "cost_usd": self.most_of(ratings)}

    def text(self, ratings: int) -> str:
        """Return the cost of `ratings` ratings in words; "" if it is unknown or nothing."""
        if self.most_usd:
            return f", about {format_cost(self.most_usd * ratings)}"
        if self.reading_usd:
            return f", {format_cost(self.reading_usd * ratings)} for input alone"
        return ""


def planned_look(anchors: AnchorSet, prepared: PreparedRun, plan: RunPlan) -> tuple[int, RatingCost]:
    """Return the number of ratings that a look takes, and the planned cost of one."""
    ratings = sum(len(item.specs) for item in asked_for(anchors, prepared))
    return ratings, RatingCost.of(plan, len(anchors.metrics))

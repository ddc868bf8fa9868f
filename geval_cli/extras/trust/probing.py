"""Ask a judge about rewritten outputs: `geval probe` and `geval_cli.extras.trust.probe`.

The outputs are those of the config's own tests, given or generated as in a run, through the cache and the budget. What
the answers mean is in `trust.probes`, and the rewrites are in `trust.rewrites`.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import ModelGradedAssertion
from geval_cli.engine.case import JobContext
from geval_cli.errors import UsageError
from geval_cli.extras.trust.matching import match_labels
from geval_cli.extras.trust.probe_desk import Desk
from geval_cli.extras.trust.probe_findings import (
    LabelledScore,
    family_finding,
    skipped,
)
from geval_cli.extras.trust.probe_items import (
    APART,
    ProbeOptions,
    changed_spec,
    drawn_jobs,
    is_compared,
    is_hit,
    jobs_of,
    probed_output,
    specs_of,
    with_others,
)
from geval_cli.extras.trust.probes import (
    Finding,
    Kind,
    Probe,
    ProbeReport,
    chosen_probes,
)
from geval_cli.gateway.budget import Budget
from geval_cli.records import Role
from geval_cli.runs.dry_run import plan_run
from geval_cli.runs.jobs import job_context
from geval_cli.runs.preparation import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.session import call_policy, open_suite_session
from geval_cli.store.cache import ResponseCache
from geval_cli.store.state import open_state

NO_LABELS = "needs labels of outputs by two families of models"


class ProbePlan(Struct, frozen=True):
    """The ratings that a probe asks for at most, before it is known which rewrites change something.

    Attributes:
        items: outputs; `variants` of each of `metrics` are rated, beside the output as it is.
        ratings: all together; each is one request or more, by the judge's way of scoring.
        cost_usd: at most, estimated from the plan of a run; None when unknown.
    """

    items: int
    metrics: int
    variants: int
    ratings: int
    cost_usd: float | None


def probe(
    config: Path | str,
    *,
    options: ProbeOptions = ProbeOptions(),  # noqa: B008 - frozen
    home: Path | None = None,
    **run_options: Any,
) -> ProbeReport:
    """Return how a config's judges take rewritten outputs; `aprobe` is the same for async programs.

    Args:
        config: the config file.
        options: which probes, and on how many outputs.
        home: where the cache is; None for GEVAL_HOME, or `.geval` here.
        run_options: options of a run by their names in `RunOptions`: `grader`, `max_cost`, `max_requests`, ...

    Raises:
        ConfigError: with every problem of the config.
        UsageError: there is no such probe, or nothing in the config is judged by a model.
    """
    return asyncio.run(aprobe(config, options=options, home=home, **run_options))


async def aprobe(
    config: Path | str,
    *,
    options: ProbeOptions = ProbeOptions(),  # noqa: B008 - frozen
    home: Path | None = None,
    **run_options: Any,
) -> ProbeReport:
    """Return how a config's judges take rewritten outputs, as `probe` does."""
    chosen_probes(options.only)
    prepared = prepare(RunRequest(Path(config), os.environ, **run_options))
    with open_state(home, os.environ) as state:
        return await run_probe(prepared, state.cache, options)


async def plan_probe(prepared: PreparedRun, cache: ResponseCache | None, options: ProbeOptions) -> ProbePlan:
    """Return what a probe would ask for at most; nothing is sent.

    Raises:
        UsageError: there is no such probe, or nothing is judged by a model.
    """
    plan = _planned(prepared, options)
    run = await plan_run(prepared, cache)
    costs = [counts.cost_most_usd for kind, counts in run.rows if kind.role is Role.JUDGE]
    if not run.cases or None in costs:
        return plan
    each = sum(item or 0.0 for item in costs) / run.cases / max(1, plan.metrics)
    return replace(plan, cost_usd=each * plan.ratings)


def _planned(prepared: PreparedRun, options: ProbeOptions) -> ProbePlan:
    probes, jobs = chosen_probes(options.only), drawn_jobs(prepared, options)
    variants = ratings = most = 0
    for job in jobs:
        specs = specs_of(job, prepared)
        counts = [1 + _variants(probes, spec, options) for spec in specs.values()]
        ratings, variants, most = ratings + sum(counts), max([variants, *counts]), max(most, len(specs))
    kinds = {item.kind for item in probes}
    rows = {job.group for job in jobs_of(prepared) if is_compared(job)} if Kind.PLACE in kinds else set()
    compared = min(len(rows), options.items)
    is_about_families = bool(options.only) and Kind.FAMILY in kinds
    if not ratings and not compared and not is_about_families:
        raise _nothing_to_probe()
    return ProbePlan(len(jobs), most, max(0, variants - 1), ratings + 2 * compared, None)


def _nothing_to_probe() -> UsageError:
    hint = "add a g-eval or another assertion that asks a judge; `not-` ones are not probed"
    return UsageError(
        "no test has an assertion that a model judges, or --only asks for none of it", hint=hint
    )


def _variants(probes: Sequence[Probe], spec: ModelGradedAssertion, options: ProbeOptions) -> int:
    forms = 0
    for item in probes:
        if item.kind in APART or not is_hit(item, spec, options):
            continue
        if item.kind is Kind.REPETITION:
            forms += sum(changed_spec(spec, form, ("a step",)) is not None for form in item.forms)
        else:
            forms += len(item.forms)
    if any(item.kind is Kind.JOINT for item in probes) and getattr(spec, "dimension", None) is not None:
        forms += 2
    deceives = any(item.kind is Kind.DECEPTION for item in probes)
    return forms + (1 if deceives else 0)  # another test's output, to start from where the test's own passes


Listen = Callable[[int, int], None]
"""Is told how many ratings were made, and how many are planned at most."""


async def run_probe(
    prepared: PreparedRun,
    cache: ResponseCache,
    options: ProbeOptions,
    listen: Listen = lambda asked, planned: None,
) -> ProbeReport:
    """Probe the judges of a prepared suite; `listen` is called after each rating.

    Answers are kept in the cache, so that the same probe costs nothing the second time. When the budget is used up, the
    report is of what was asked by then, and says so.

    Raises:
        UsageError: there is no such probe, or nothing is judged by a model.
    """
    budget = prepared.request.budget or Budget(prepared.request.max_cost, prepared.request.max_requests)
    policy = call_policy(prepared, budget, run_id=None)
    async with open_suite_session(prepared, cache, policy) as session:
        report = await probe_with(job_context(session, prepared), prepared, options, listen)
        hide = session.secrets.hide
    return replace(report, stopped=hide(report.stopped), first_error=hide(report.first_error))


async def probe_with(
    context: JobContext,
    prepared: PreparedRun,
    options: ProbeOptions,
    listen: Listen = lambda asked, planned: None,
) -> ProbeReport:
    """Probe the judges that a context gives; as `run_probe`."""
    probes, plan = chosen_probes(options.only), _planned(prepared, options)
    desk = Desk(context, options, lambda asked: listen(asked, plan.ratings))
    is_asked = any(item.kind not in (Kind.PLACE, Kind.FAMILY) for item in probes)
    pending = await desk.answers(drawn_jobs(prepared, options)) if is_asked else []
    items = with_others([probed_output(found, prepared) for found in pending if found.subject is not None])
    findings = await desk.findings(probes, items)
    for item in probes:
        if item.kind is Kind.PLACE:
            findings += await desk.places(item, prepared)
        if item.kind is Kind.JOINT:
            findings += await desk.together(item, items)
    return ProbeReport(
        config=str(prepared.suite.path),
        judges=tuple(spec.public_id for spec in prepared.judges),
        items=len(items),
        tests=len({item.cluster for item in items}),
        seed=options.seed,
        planned=plan.ratings,
        asked=desk.asked,
        errored=desk.errored,
        usage=desk.usage,
        findings=(*findings, *_family_findings(probes, options)),
        unanswered=len(pending) - len(items),
        stopped=desk.stopped,
        first_error=desk.first_error,
    )


def _family_findings(probes: Sequence[Probe], options: ProbeOptions) -> list[Finding]:
    item = next((item for item in probes if item.kind is Kind.FAMILY), None)
    if item is None:
        return []
    if options.labels is None:
        return [skipped(item, "", NO_LABELS)]
    scores: dict[str, list[LabelledScore]] = {}
    for match in match_labels(options.labels.labels, options.labelled, allow_unmatched=True).matches:
        judge = match.item.judges.get(match.label.metric)
        if judge is None or match.score is None:
            continue
        is_own = family_of(judge) == family_of(match.item.provider[0])
        cluster = match.label.doc or str(match.item.test_index)
        error = match.score - match.label.human
        scores.setdefault(match.label.metric, []).append(LabelledScore(cluster, error, is_own))
    found = [family_finding(item, metric, members) for metric, members in scores.items()]
    return found or [skipped(item, "", NO_LABELS)]


def family_of(model: str) -> str:
    """Return the family of a model by its id: the vendor, or behind a gateway the vendor in its name."""
    vendor, _, name = model.partition(":")
    owner, slash, _ = name.rpartition("/")
    if slash:
        return owner.rpartition("/")[2].lower()
    return vendor.lower()

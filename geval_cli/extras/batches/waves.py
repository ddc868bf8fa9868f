"""A run in waves: what its jobs ask goes to providers as batches, and the jobs are done again when these have ended."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from geval_cli.assertions.base import each_assertion
from geval_cli.engine.check import Checked
from geval_cli.engine.conversation import is_order_bound, uses_conversation
from geval_cli.engine.plan import NO_PROVIDER
from geval_cli.engine.runner import EventStream, StopReason, StopSignal
from geval_cli.errors import (
    BudgetError,
    ConfigError,
    Location,
    Problem,
    ProviderError,
    Severity,
    StoreError,
    UsageError,
)
from geval_cli.events import Noticed
from geval_cli.extras.batches.api import BatchApi, could_have_batches, way_to_batches
from geval_cli.extras.batches.driver import BatchDriver, WaitOutcome
from geval_cli.extras.batches.layer import BatchPolicy
from geval_cli.extras.batches.store import Batch, BatchState
from geval_cli.gateway.gateway import BatchStart
from geval_cli.providers.base import batch_api
from geval_cli.providers.registry import build_provider, check_provider
from geval_cli.records import STOPPED, Role, RunBatch, RunRecord
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.specs.base import BatchSpec, ProviderSpec, seconds_of
from geval_cli.store.cache import ResponseCache
from geval_cli.store.state import State
from geval_cli.suite.suite import LoadedSuite

BOTH_ROLES = frozenset(Role)


async def batch_start(
    prepared: PreparedRun, state: State, run: RunRecord, *, is_resumed: bool
) -> BatchStart | None:
    """Return what begins the batches of a run; None for a run without any. A resumed run goes on as it began.

    Raises:
        UsageError: what is submitted could not be found again, or what was submitted cannot be found.
    """
    cache, roles = state.cache, prepared.request.batched_roles
    if cache.is_read_only:
        return None
    begun = await cache.batches.of_run(run.id) if is_resumed else ()
    # Check that the cache knows the batches that a resumed run waits for: else they would be paid for
    # again.
    known = {batch.id for batch in begun}
    if lost := [
        batch.id for batch in run.batches if BatchState(batch.state).is_open and batch.id not in known
    ]:
        raise UsageError(
            f"run {run.id} is waiting for batch {lost[0]}, which is not in this cache",
            hint="set --cache-dir to the folder of its cache, or start a new run without --resume",
        )
    if not roles:
        begun_roles = {batch.role for batch in begun}
        roles = BOTH_ROLES if Role.GENERATION in begun_roles else frozenset(begun_roles)
    if not roles:
        return None
    if cache.is_temporary or not state.keeps_runs:
        raise UsageError(
            "batches outlive this process, but there is nowhere to record them: nothing was submitted",
            hint="see the warning; choose other folders with --home and --cache-dir",
        )
    if prepared.request.is_shared:
        message = f"run {run.id} is waiting for batches, which cannot be combined with --workers or --ray"
        raise UsageError(message, hint="resume it in one process")
    policy = policy_of(
        prepared.suite,
        roles,
        run_id=run.id,
        joins_others=prepared.reads_cache,
        waits=prepared.request.waits,
    )
    return partial(BatchDriver.begin, policy)


def policy_of(suite: LoadedSuite, roles: frozenset[Role], **facts: Any) -> BatchPolicy:
    """Return the rules of a suite for batches; `facts` are those that the suite says nothing about."""
    options = suite.options.batch or BatchSpec()
    return BatchPolicy(
        roles,
        size=options.size,
        poll_s=options.poll_s,
        max_wait_s=seconds_of(options.max_wait),
        falls_back=options.fallback == "direct",
        config_path=str(suite.path),
        **facts,
    )


async def run_in_waves(
    driver: BatchDriver,
    run_pass: Callable[[], Awaitable[bool]],
    *,
    stop: StopSignal,
    events: EventStream,
) -> None:
    """Run `run_pass` again and again, with a wait for batches between, until it says that no answer is pending.

    What stops the waiting is told, with the ways to go on.
    """

    async def pause(delay_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), delay_s)
        return stop.is_requested

    while await run_pass() and not stop.is_requested:
        try:
            outcome = await driver.between_passes(pause)
        except BudgetError as error:
            events.emit(Noticed(f"{STOPPED}{error.message} ({error.hint})"))
            stop.request(StopReason.BUDGET)
        except (ProviderError, StoreError) as error:
            events.emit(Noticed(f"{STOPPED}{error.message} ({error.hint or 'submitted batches continue'})"))
            stop.request(StopReason.BATCHES)
        else:
            if outcome is WaitOutcome.CANCELLED:
                hint = f"{driver.way_on} sends its unanswered requests again"
                events.emit(Noticed(f"{STOPPED}a batch was cancelled ({hint})"))
                stop.request(StopReason.BATCHES)
            elif outcome is WaitOutcome.HANDED_IN:
                stop.request(StopReason.HANDED_IN)
    with suppress(StoreError):  # it is told where results are stored
        await driver.finish()
        if stop.is_requested and (open_batches := await driver.open_batches()):
            events.emit(Noticed(_ways_on(open_batches, driver.way_on)))


def _ways_on(batches: Sequence[Batch], way_on: str) -> str:
    requests = sum(batch.requests for batch in batches)
    names = " ".join(batch.id for batch in batches[:3]) + (" ..." if len(batches) > 3 else "")  # noqa: PLR2004
    counted = "1 batch" if len(batches) == 1 else f"{len(batches):,} batches"
    goes = "continues" if len(batches) == 1 else "continue"
    return (
        f"{STOPPED}{counted} with {requests:,} requests {goes} at the provider: {way_on} fetches the answers,"
        f" `geval batches cancel {names}` ends {'it' if len(batches) == 1 else 'them'}"
    )


async def run_batches(
    cache: ResponseCache, run_id: str, earlier: Sequence[RunBatch], driver: BatchDriver | None
) -> tuple[RunBatch, ...]:
    """Return the batches of a run for its record, as far as they can be read."""
    ids = [*(batch.id for batch in earlier), *(() if driver is None else driver.batch_ids)]
    try:
        return tuple(map(recorded_batch, await cache.batches.of_run(run_id, ids)))
    except StoreError:
        return tuple(earlier)


def recorded_batch(batch: Batch) -> RunBatch:
    """Return a batch as records have it."""
    return RunBatch(
        id=batch.id,
        remote_id=batch.remote_id,
        provider_id=batch.provider_id,
        role=batch.role,
        state=batch.state,
        requests=batch.requests,
        answered=batch.answered,
        failed=batch.failed,
        created_at=_iso(batch.created_at),
        ended_at=None if batch.ended_at is None else _iso(batch.ended_at),
    )


def _iso(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="milliseconds")


def batch_problems(
    suite: LoadedSuite, checked: Checked, request: RunRequest, by_role: dict[Role, list[ProviderSpec]]
) -> Iterator[Problem]:
    """Yield what keeps a run from going in batches, though the command line asks for it.

    Args:
        suite: what is to be run.
        checked: what the check of its tests found.
        request: the command line.
        by_role: the providers that would be asked.
    """
    roles = request.batched_roles
    if not roles:
        return
    if checked.is_serial:
        yield Problem(
            "tests that use the outputs of earlier ones cannot be sent in batches",
            _first_serial_place(suite),
            "run without --batch and --batch-judge",
        )
    if checked.users:
        yield Problem(
            "conversations with simulated users cannot be sent in batches: each turn waits for the one before it",
            checked.users[0].place.value(),
            "run without --batch and --batch-judge",
        )
    specs = [(role, spec) for role in sorted(roles) for spec in by_role.get(role, ())]
    apis = [(spec, api) for _, spec in specs if (api := _api_of(spec, suite)) is not None]
    if specs and not apis and all(_is_sound(spec, suite) for _, spec in specs):
        names = ", ".join(dict.fromkeys(f"`{spec.public_id}`" for _, spec in specs))
        yield Problem(
            f"none of these providers has a batch API: {names}",
            specs[0][1].place.value("id"),
            way_to_batches(specs[0][1].id, specs[0][1].config),
        )
    batched = {id(spec) for spec, _ in apis}
    direct = {
        spec.public_id: spec
        for _, spec in specs
        if id(spec) not in batched and could_have_batches(spec.id) and spec.config.get("batch") is not False
    }
    for spec in direct.values() if apis else ():
        yield Problem(
            f"{spec.public_id} is called directly, at the usual price",
            spec.place.value("id"),
            way_to_batches(spec.id),
            severity=Severity.WARNING,
        )
    options = suite.options.batch
    most = max((api.most_requests for _, api in apis), default=None)
    if options is not None and options.size is not None and most is not None and options.size > most:
        yield Problem(
            f"`size` is {options.size:,}, but a batch can have at most {most:,} requests",
            suite.options.place.value("batch", "size"),
            f"set it to at most {most}, or leave it out",
        )
    fewest = max((api.fewest_requests for _, api in apis), default=1)
    if options is not None and options.size is not None and options.size < fewest:
        yield Problem(
            f"`size` is {options.size:,}, but a batch must have at least {fewest:,} requests",
            suite.options.place.value("batch", "size"),
            f"set it to at least {fewest}, or leave it out",
        )
    if Role.GENERATION in roles and any(_api_of(spec, suite) for spec in by_role.get(Role.GENERATION, ())):
        yield from _latency_problems(suite)


def _first_serial_place(suite: LoadedSuite) -> Location | None:
    """Return where a prompt or a test first builds on what came before it."""
    prompt = next((prompt for prompt in suite.prompts if uses_conversation(prompt)), None)
    if prompt is not None:
        return prompt.place.value()
    with suppress(ConfigError):
        return next((test.place.value() for test in suite.tests if is_order_bound(test)), None)
    return None


def _latency_problems(suite: LoadedSuite) -> Iterator[Problem]:
    """Yield a problem for each place that asserts how long an answer took."""
    told: set[object] = set()
    with suppress(ConfigError):  # it is told where the tests are checked
        for test in suite.tests:
            for spec in each_assertion(test.assertions):
                place = spec.place.value("type")
                if spec.base_type == "latency" and str(place) not in told:
                    told.add(str(place))
                    yield Problem(
                        "`latency` cannot be checked for answers from a batch",
                        place,
                        "leave it out, or use --batch-judge",
                    )


def _is_sound(spec: ProviderSpec, suite: LoadedSuite) -> bool:
    """Return whether a provider has no problem, which would be told elsewhere."""
    return not check_provider(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access)


def _api_of(spec: ProviderSpec, suite: LoadedSuite) -> BatchApi | None:
    """Return the batch API of a provider; None when it has none, or has problems."""
    if spec.id == NO_PROVIDER.id or not _is_sound(spec, suite):
        return None
    provider = build_provider(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access)
    api: BatchApi | None = batch_api(provider)
    return api

"""Ask judges for the evaluation steps that a lock file lacks."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from msgspec import Struct

from geval_cli.gateway.budget import Budget
from geval_cli.gateway.gateway import CallPolicy, Gateway
from geval_cli.judge.grading import write_steps
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.prompt import prompt_version
from geval_cli.runs.judging import ProviderPool
from geval_cli.runs.lock_file import (
    LockEntry,
    NeededSteps,
    Needs,
    is_stale,
    needs_of_plan,
    unused_entries,
)
from geval_cli.runs.preparation import resolved
from geval_cli.runs.requests import PreparedRun
from geval_cli.store.cache import ResponseCache


class LockedSuites(Struct, frozen=True):
    """The outcome of writing a lock file.

    Attributes:
        entries: all that are in it now.
        asked: how many of them a judge, or the cache, was asked for.
        unused: entries that no config needs; they are removed by an update.
        unlocked: how many criteria name variables, and are not locked.
    """

    entries: tuple[LockEntry, ...]
    asked: int
    unused: tuple[LockEntry, ...]
    unlocked: int


async def lock_suites(
    suites: Sequence[PreparedRun], cache: ResponseCache, *, removes_unused: bool
) -> LockedSuites:
    """Return the entries that the configs of one folder need; judges are asked for those that are missing or stale.

    Raises:
        JudgeError, ProviderError: a judge did not answer.
        BudgetError: nothing more may be asked.
    """
    lock = suites[0].lock
    needs = [_needs(suite) for suite in suites]
    known = {entry.key: entry for entry in (() if lock is None else lock.entries)}
    unused = tuple(unused_entries(lock, needs))
    asked = 0
    for suite, need in zip(suites, needs, strict=True):
        missing = [item for item in need.found.values() if item.key not in known or is_stale(known[item.key])]
        for entry in await _ask(missing, suite, cache):
            known[entry.key] = entry
        asked += len(missing)
    if removes_unused:
        for entry in unused:
            del known[entry.key]
    unlocked = len({text for need in needs for text in need.unlocked})
    return LockedSuites(tuple(sorted(known.values())), asked, unused, unlocked)


def _needs(suite: PreparedRun) -> Needs:
    return needs_of_plan(
        suite.plan, suite.templates, suite.defaults, lambda spec: resolved(spec, suite.suite)
    )


async def _ask(
    missing: Sequence[NeededSteps], prepared: PreparedRun, cache: ResponseCache
) -> list[LockEntry]:
    request, suite = prepared.request, prepared.suite
    budget = request.budget or Budget(request.max_cost, request.max_requests)
    async with AsyncExitStack() as stack:
        pool = ProviderPool(suite.env, suite.base_dir, suite.access)
        stack.push_async_callback(pool.aclose)
        gateway = Gateway(
            cache=cache,
            on_event=lambda event: None,
            reads_since=None if request.reads_cache else cache.now(),
            policy=CallPolicy(budget, is_offline=request.is_offline),
        )
        stack.push_async_callback(gateway.aclose)
        memory = JudgeMemory()
        asked = [
            write_steps(item.criteria, item.params, gateway.model(pool.get(item.judge)), memory)
            for item in missing
        ]
        written = await asyncio.gather(*asked)
        return [
            LockEntry(
                criteria=item.criteria,
                params=item.params,
                judge=item.judge.public_id,
                prompt_version=prompt_version(),
                steps=tuple(map(pool.secrets.hide, steps)),
            )
            for item, steps in zip(missing, written, strict=True)
        ]

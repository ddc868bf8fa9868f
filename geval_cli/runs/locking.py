"""The evaluation steps that a plan needs: which they are, what a lock file lacks of them, and asking for that."""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from geval_cli.assertions.base import JudgeDefaults, Subject, Tools
from geval_cli.assertions.graded.geval import GEvalAssertion, metric_of
from geval_cli.assertions.graded.judges import judge_provider, members_of
from geval_cli.engine.check import assertions_of_plan
from geval_cli.engine.plan import Plan
from geval_cli.errors import Location, Problem
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Wire
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.judge.grading import steps_needed, write_steps
from geval_cli.judge.prompt import prompt_version
from geval_cli.runs.event_loop import all_or_first_error
from geval_cli.runs.lock_file import LOCK_NAME, LockEntry, LockFile, StepsKey, is_stale
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.session import open_suite_session, unasked_tools
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache
from geval_cli.suite.suite import LoadedSuite
from geval_cli.templating import Templates

_TAGS = ("{{", "{%", "{#")


class NeededSteps(Struct, frozen=True):
    """A criterion that a judge has to write steps for, and the assertion that it is of."""

    criteria: str
    params: tuple[str, ...]
    judge: ProviderSpec
    place: Location | None = None

    @property
    def key(self) -> StepsKey:
        """Return the key that its entry is found by."""
        return self.criteria, self.params, self.judge.public_id


class Needs(Struct):
    """The criteria that tests need steps for.

    Attributes:
        found: each once.
        uses: how many tests need each, a test counted once for each prompt.
        unlocked: criteria that name variables, as they are written; they are left out of `found` unless wanted.
    """

    found: dict[StepsKey, NeededSteps] = field(default_factory=dict)
    uses: Counter[StepsKey] = field(default_factory=Counter)
    unlocked: set[str] = field(default_factory=set)


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
    suites: Sequence[PreparedRun], cache: ResponseCache, *, removes_unused: bool, wire: Wire | None = None
) -> LockedSuites:
    """Return the entries that the configs of one folder need; judges are asked for those that are missing or stale.

    Requests leave through `wire`.

    Raises:
        JudgeError, ProviderError: a judge did not answer.
        BudgetError: nothing more may be asked.
    """
    lock = suites[0].lock
    needs = [needs_of_plan(suite.plan, suite.templates, suite.defaults) for suite in suites]
    known = {entry.key: entry for entry in (() if lock is None else lock.entries)}
    unused = tuple(unused_entries(lock, needs))
    asked = 0
    for suite, need in zip(suites, needs, strict=True):
        missing = [item for item in need.found.values() if item.key not in known or is_stale(known[item.key])]
        for entry in await _ask(missing, suite, cache, wire or Wire()):
            known[entry.key] = entry
        asked += len(missing)
    if removes_unused:
        for entry in unused:
            del known[entry.key]
    unlocked = len({text for need in needs for text in need.unlocked})
    return LockedSuites(tuple(sorted(known.values())), asked, unused, unlocked)


async def _ask(
    missing: Sequence[NeededSteps], prepared: PreparedRun, cache: ResponseCache, wire: Wire
) -> list[LockEntry]:
    request = prepared.request
    budget = request.budget or Budget(request.max_cost, request.max_requests)
    policy = CallPolicy(budget, is_offline=request.is_offline, wire=wire)
    async with open_suite_session(prepared, cache, policy, locked_steps={}) as session:
        asked = [
            write_steps(item.criteria, item.params, session.model_for(item.judge), session.memory)
            for item in missing
        ]
        written = await all_or_first_error(asked)
        return [
            LockEntry(
                criteria=item.criteria,
                params=item.params,
                judge=item.judge.public_id,
                prompt_version=prompt_version(),
                steps=tuple(map(session.secrets.hide, steps)),
            )
            for item, steps in zip(missing, written, strict=True)
        ]


def needs_of_plan(
    plan: Plan,
    templates: Templates,
    defaults: JudgeDefaults,
    *,
    with_variables: bool = False,
) -> Needs:
    """Return what the tests of `plan` need steps for; goes through all of them.

    With `with_variables`, criteria that name variables are there, too, as each test fills them.
    """
    tools = unasked_tools(plan.suite, templates, defaults)
    needs = Needs()
    for spec, subject in assertions_of_plan(plan, templates):
        if isinstance(spec, GEvalAssertion) and spec.applies_to(subject.test, templates):
            written = (spec.criteria,) if isinstance(spec.criteria, str) else spec.criteria or ()
            if not with_variables and any(tag in text for text in written for tag in _TAGS):
                needs.unlocked.update(written)
            else:
                _note_needs(spec, subject, tools, plan.suite, needs)
    return needs


def _note_needs(
    spec: GEvalAssertion, subject: Subject, tools: Tools, suite: LoadedSuite, needs: Needs
) -> None:
    judges = members_of(judge_provider(spec, subject.test, tools.defaults))
    for criteria, labels in steps_needed(metric_of(spec, subject.test, tools), spec.case(subject, tools)):
        for judge in judges:
            needed = NeededSteps(criteria, labels, suite.resolved(judge), spec.place.key())
            needs.found.setdefault(needed.key, needed)
            needs.uses[needed.key] += 1


def lock_problems(
    plan: Plan, lock: LockFile | None, templates: Templates, defaults: JudgeDefaults
) -> Iterator[Problem]:
    """Yield a problem for each criterion whose steps the lock file lacks, or has for other prompts."""
    entries = {entry.key: entry for entry in (() if lock is None else lock.entries)}
    for needed in needs_of_plan(plan, templates, defaults).found.values():
        entry = entries.get(needed.key)
        if entry is None or is_stale(entry):
            what = "has no steps for" if entry is None else "has steps from other judge prompts for"
            hint = f"`geval lock {plan.suite.path}` gets them from {needed.judge.public_id}"
            yield Problem(f"{LOCK_NAME} {what} a criterion that is judged with --locked", needed.place, hint)


def unused_entries(lock: LockFile | None, needs: Sequence[Needs]) -> list[LockEntry]:
    """Return the entries that no config needs."""
    used = {key for need in needs for key in need.found}
    return [entry for entry in (() if lock is None else lock.entries) if entry.key not in used]

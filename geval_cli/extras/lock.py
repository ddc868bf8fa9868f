"""`geval.lock`: the evaluation steps that judges wrote for a config's criteria, stored next to it.

With it, a criterion means the same in every run and on every machine, since its steps are not generated again.
Criteria with variables are not in it, because their text depends on the data of each test.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import JudgeDefaults
from geval_cli.assertions.geval import GEvalAssertion, metric_of
from geval_cli.assertions.judges import judge_provider, members_of
from geval_cli.engine.check import assertions_of_plan
from geval_cli.engine.plan import Plan
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Wire
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.judge.calls import JudgeCalls, LockedSteps
from geval_cli.judge.grading import steps_needed, write_steps
from geval_cli.judge.prompt import prompt_version
from geval_cli.records import JsonValue
from geval_cli.report.safe_file import SafeFile
from geval_cli.runs.event_loop import all_or_first_error
from geval_cli.runs.prepare import LOCK_NAME
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.session import inspection_tools, open_suite_session
from geval_cli.source.access import Access
from geval_cli.source.files import read_document
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache
from geval_cli.templating import Templates

_VERSION = 1
_KEYS = ("criteria", "params", "judge", "prompt_version", "steps")
_HINT = "write it again with `geval lock`"
_TAGS = ("{{", "{%", "{#")

StepsKey = tuple[str, tuple[str, ...], str]
"""The key of evaluation steps: criteria, the labels of what the judge sees, and the judge's id."""


class LockEntry(Struct, frozen=True, order=True):
    """The steps that a judge wrote for one criterion. `params` are the labels of the texts that the judge sees."""

    criteria: str
    params: tuple[str, ...]
    judge: str
    prompt_version: str
    steps: tuple[str, ...] = ()

    @property
    def key(self) -> StepsKey:
        return self.criteria, self.params, self.judge

    @property
    def is_stale(self) -> bool:
        """Return whether it was written with a different version of the judge prompts."""
        return self.prompt_version != prompt_version()


class LockFile(Struct, frozen=True):
    """The content of a lock file; if the file does not exist, it has no entries and no digest."""

    entries: tuple[LockEntry, ...] = ()
    is_there: bool = True

    @property
    def steps(self) -> LockedSteps:
        """Return the steps of all entries that match the current judge prompts."""
        return {entry.key: entry.steps for entry in self.entries if not entry.is_stale}

    @property
    def digest(self) -> str | None:
        """Return the SHA-256 of the entries, in hexadecimal; None if the file does not exist."""
        return hashlib.sha256(written_lock(self.entries).encode()).hexdigest() if self.is_there else None

    def problems(self, plan: Plan, templates: Templates, defaults: JudgeDefaults) -> Iterator[Problem]:
        """Yield a problem for each criterion whose steps are missing or stale."""
        entries = {entry.key: entry for entry in self.entries}
        for needed in needs_of_plan(plan, templates, defaults).found.values():
            entry = entries.get(needed.key)
            if entry is None or entry.is_stale:
                what = "has no steps for" if entry is None else "has steps from other judge prompts for"
                hint = f"`geval lock {plan.suite.path}` gets them from {needed.judge.public_id}"
                yield Problem(
                    f"{LOCK_NAME} {what} a criterion that is judged with --locked", needed.place, hint
                )


def lock_path(config: Path) -> Path:
    """Return the path of a config's lock file."""
    return config.parent / LOCK_NAME


def read_lock(config: Path, access: Access) -> LockFile:
    """Return the lock file next to a config.

    Raises:
        ConfigError: the file is invalid; lists every problem with its place.
    """
    path = lock_path(config)
    if not path.exists():
        return LockFile(is_there=False)
    document = read_document(path, access)
    problems: list[Problem] = []
    value, place = document.value, document.place
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(entries, list):
        raise ConfigError([Problem(f"{LOCK_NAME} must have `version` and `entries`", place.value(), _HINT)])
    if value.get("version") != _VERSION:
        message = f"{LOCK_NAME} does not have version {_VERSION}"
        raise ConfigError([Problem(message, place.value("version"), _HINT)])
    found: dict[StepsKey, LockEntry] = {}
    for index, item in enumerate(entries):
        entry = _entry(item, place.child("entries", index), problems)
        if entry is not None and entry.key in found:
            problems.append(
                Problem("the same criterion is locked twice", place.value("entries", index), _HINT)
            )
        elif entry is not None:
            found[entry.key] = entry
    if problems:
        raise ConfigError(problems)
    return LockFile(tuple(sorted(found.values())))


def _entry(item: JsonValue, place: SourcePath, problems: list[Problem]) -> LockEntry | None:
    before = len(problems)
    if not isinstance(item, dict):
        problems.append(Problem("an entry must be a mapping", place.value(), _HINT))
        return None
    for name in item.keys() - set(_KEYS):
        problems.append(
            Problem(f"an entry has no `{name}`", place.key(name), f"an entry has {', '.join(_KEYS)}")
        )
    for name in _KEYS:
        is_list = name in ("params", "steps")
        if not (_is_texts(item.get(name)) if is_list else isinstance(item.get(name), str)):
            what = "a list of non-empty strings" if is_list else "a text"
            where = place.value(name) if name in item else place.value()
            problems.append(Problem(f"`{name}` of an entry must be {what}", where, _HINT))
    if len(problems) > before:
        return None
    return LockEntry(
        criteria=item["criteria"],
        params=tuple(item["params"]),
        judge=item["judge"],
        prompt_version=item["prompt_version"],
        steps=tuple(item["steps"]),
    )


def _is_texts(value: JsonValue) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, str) and item.strip() for item in value)
    )


def written_lock(entries: Iterable[LockEntry]) -> str:
    """Return the text of a lock file: sorted, with one line per step, so that diffs are easy to read."""
    lines = [f"# Written by geval lock; commit it.\nversion: {_VERSION}\nentries:"]
    for entry in sorted(entries):
        lines.append(f"  - criteria: {_quoted(entry.criteria)}")
        lines.append(f"    params: [{', '.join(map(_quoted, entry.params))}]")
        lines.append(f"    judge: {_quoted(entry.judge)}")
        lines.append(f"    prompt_version: {_quoted(entry.prompt_version)}")
        lines.append("    steps:")
        lines += [f"      - {_quoted(step)}" for step in entry.steps]
    return "\n".join(lines if len(lines) > 1 else [f"{lines[0]} []"]) + "\n"


def _quoted(text: str) -> str:
    """Return a string literal for YAML and JSON on one line, with all characters escaped that may end a line."""
    return (
        json.dumps(text, ensure_ascii=False)
        .replace("\x85", "\\u0085")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def write_lock(config: Path, entries: Iterable[LockEntry]) -> None:
    """Write a config's lock file; the old one is replaced only when the new one is completely on disk.

    Raises:
        OutputError: it cannot be written.
    """
    with SafeFile(lock_path(config)) as file:
        file.write(written_lock(entries))


class NeededSteps(Struct, frozen=True):
    """A criterion that a judge must write steps for, and the place of its assertion."""

    criteria: str
    params: tuple[str, ...]
    judge: ProviderSpec
    place: Location | None = None

    @property
    def key(self) -> StepsKey:
        return self.criteria, self.params, self.judge.public_id


class Needs(Struct):
    """The criteria of tests that need steps.

    Attributes:
        found: the criteria, without duplicates.
        uses: the number of tests that need each one; a test counts once per prompt.
        unlocked: criteria with variables, as templates; they are not in `found`, unless requested.
    """

    found: dict[StepsKey, NeededSteps] = field(default_factory=dict)
    uses: Counter[StepsKey] = field(default_factory=Counter)
    unlocked: set[str] = field(default_factory=set)


class LockedSuites(Struct, frozen=True):
    """The result of updating a lock file.

    Attributes:
        entries: all entries that it now has.
        asked: the number of entries that a judge, or the cache, provided.
        unused: entries that no config needs; an update may remove them.
        unlocked: the number of criteria with variables, which are not locked.
    """

    entries: tuple[LockEntry, ...]
    asked: int
    unused: tuple[LockEntry, ...]
    unlocked: int


async def lock_suites(
    suites: Sequence[PreparedRun], lock: LockFile, cache: ResponseCache, *, removes_unused: bool, wire: Wire
) -> LockedSuites:
    """Return the entries that the configs in a folder need; judges write those that `lock` lacks or that are stale.

    Requests are sent through `wire`.

    Raises:
        JudgeError, ProviderError: a judge did not answer.
        BudgetError: the budget is used up.
    """
    needs = [needs_of_plan(suite.plan, suite.templates, suite.defaults) for suite in suites]
    known = {entry.key: entry for entry in lock.entries}
    needed = {key for need in needs for key in need.found}
    unused = tuple(entry for entry in lock.entries if entry.key not in needed)
    asked = 0
    for suite, need in zip(suites, needs, strict=True):
        missing = [item for item in need.found.values() if item.key not in known or known[item.key].is_stale]
        for entry in await _ask(missing, suite, cache, wire):
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
    async with open_suite_session(replace(prepared, locked_steps={}), cache, policy) as session:
        asked = [
            write_steps(item.criteria, item.params, JudgeCalls(session.model_for(item.judge), session.memory))
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
    """Return the criteria that need steps; goes through all tests of `plan`.

    `with_variables` also includes criteria with variables, filled in for each test.
    """
    tools = inspection_tools(plan.suite, templates, defaults)
    needs = Needs()
    for spec, subject in assertions_of_plan(plan, templates):
        if isinstance(spec, GEvalAssertion) and spec.applies_to(subject.test, templates):
            written = (spec.criteria,) if isinstance(spec.criteria, str) else spec.criteria or ()
            if not with_variables and any(tag in text for text in written for tag in _TAGS):
                needs.unlocked.update(written)
            else:
                judges = members_of(judge_provider(spec, subject.test, tools.defaults))
                for criteria, labels in steps_needed(
                    metric_of(spec, subject.test, tools), spec.case(subject, tools)
                ):
                    for judge in judges:
                        needed = NeededSteps(criteria, labels, plan.suite.resolved(judge), spec.place.key())
                        needs.found.setdefault(needed.key, needed)
                        needs.uses[needed.key] += 1
    return needs

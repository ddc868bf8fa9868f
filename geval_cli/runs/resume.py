"""Resumes an earlier run: finds it, checks that its suite is still the same, and tells which of its cases are done.

The inputs that decide a run's results are hashed part by part, so that a message can say what has changed.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby

from msgspec import Struct

from geval_cli.engine.aggregate import Tally
from geval_cli.engine.plan import DoneCases, Plan
from geval_cli.errors import UsageError
from geval_cli.gateway.budget import beyond, combined, larger
from geval_cli.judge.prompt import prompt_version
from geval_cli.records import CaseResult, JsonValue, Role, RunRecord, RunStatus, Status, Usage
from geval_cli.runs.options import DECIDED, declared_options, default_of
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.source.files import CONFIG_PART, FILE_PART, OVERRIDES_PART, ROWS_PART, digest_of
from geval_cli.source.secrets import is_secret_name, mask_bare
from geval_cli.store.runs import RunStore, StoredRun, config_file

_CHANGES_SHOWN = 12
_SHOWN_VALUE = 60
_VARIABLES = "variables"
"""The option that has a part of the fingerprint to itself."""

ONLY = "tests by number"
"""A selection of tests that is not made by an option: pytest's."""

GIVEN = "given"
REPEATED = (
    *(
        "merge",
        "batch",
        "batch_judge",
        "max_concurrency",
        "fail_fast",
        "is_locked",
        "allows_empty",
        "untrusted",
    ),
    *("untrusted_strict", "fail_under", "baseline", "margins", "max_errors"),
    *("max_cost", "max_requests", "reads_cache", "is_offline", "cache_ttl"),
)
"""Fields of options that decide no results, but the verdict, what may be spent or what a config may do."""

_JUDGED, _LOCK = "judged", "lock"
_SUITE, _OPTIONS, _VARS, _PROMPTS = "suite", "options", "vars", "judge_prompts"

UNFINISHED = frozenset({RunStatus.RUNNING, RunStatus.INTERRUPTED, RunStatus.ABORTED})


class ResumedRun(Struct, frozen=True):
    """An earlier run to resume, which no other process works on.

    Attributes:
        run: its record.
        done: the cases whose results stay.
        kept: the totals of these results.
        carried: what was spent on it beyond them: on cases without a result, and on those that are done again.
    """

    run: RunRecord
    done: DoneCases
    kept: Tally
    carried: Mapping[Role, Usage]

    @property
    def started_s(self) -> float:
        """Return when the run began, in seconds since 1970."""
        return datetime.fromisoformat(self.run.started_at).timestamp()


def resume_run(prepared: PreparedRun, runs: RunStore) -> ResumedRun:
    """Return the earlier run that `prepared` refers to, claimed for this process.

    Raises:
        UsageError: there is no such run, another process works on it, or its suite has changed.
        StoreError: the stored runs cannot be read, or the run cannot be claimed.
    """
    parts = fingerprint(prepared)
    digest = digest_of(parts)
    # Choose, claim, read again: between the first look and the claim another process may have added results.
    run_id = _chosen(prepared, runs, digest).run.id
    if not runs.claim(run_id):
        raise UsageError(
            f"run {run_id} is still in progress in {runs.holder(run_id) or 'another process'}",
            hint="wait for it to end, or stop it first",
        )
    try:
        stored = runs.find(run_id)  # read it again now that no other process can change it
        _check_same(stored.run, runs, prepared, parts)
        return _resumed(stored, runs, prepared)
    except BaseException:
        runs.release(run_id)
        raise


def find_run(prepared: PreparedRun, runs: RunStore) -> ResumedRun:
    """Return the earlier run that `prepared` refers to, for reading only: the run is not claimed.

    Raises:
        UsageError: there is no such run, or its suite has changed.
        StoreError: the stored runs cannot be read.
    """
    parts = fingerprint(prepared)
    stored = _chosen(prepared, runs, digest_of(parts))
    _check_same(stored.run, runs, prepared, parts)
    return _resumed(stored, runs, prepared)


def _chosen(prepared: PreparedRun, runs: RunStore, digest: str) -> StoredRun:
    request, path = prepared.request, prepared.suite.path
    if request.resume_from is not None:
        return runs.find(request.resume_from)
    # A run that judged stored outputs is not a run of the config: running `geval judge` again does what it lacks.
    stored_runs = runs.of_config(config_file(path), digest)
    found = [stored for stored in stored_runs if stored.run.judged_from is None]
    if request.resume_latest:
        found = [stored for stored in found if stored.run.status in UNFINISHED]
    if not found:
        which = "unfinished run" if request.resume_latest else "run"
        hint = "list the stored runs with `geval list`, or leave the option out to start a new run"
        raise UsageError(f"no {which} of {path} is stored here", hint=hint)
    return found[0]


def _check_same(
    run: RunRecord, runs: RunStore, prepared: PreparedRun, parts: Mapping[str, JsonValue]
) -> None:
    if run.config_digest == digest_of(parts):
        return
    origin = runs.origin(run.id)
    before = {} if origin is None else origin.covered
    lines = changes(before, parts, run.config, prepared.suite.snapshot) if before else []
    shown = lines[:_CHANGES_SHOWN]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown):,} more")
    what = "".join(f"\n  - {line}" for line in shown)
    raise UsageError(
        f"run {run.id} cannot be resumed, because its inputs have changed{what}",
        hint="undo the changes, or start a new run: the cache answers what is unchanged",
    )


def _resumed(stored: StoredRun, runs: RunStore, prepared: PreparedRun) -> ResumedRun:
    """Return the run, with its stored results divided into those that stay and those that are redone."""
    plan = prepared.plan
    done = done_cases(prepared)
    kept, everything = Tally(), Tally()

    for results, is_whole in _rows(runs.results(stored.run.id), plan):
        # A comparison needs all outputs of its group, so an incomplete group is redone as a whole.
        has_errors = any(result.status is Status.ERROR for result in results)
        is_redone = not is_whole or (prepared.request.retry_errors and has_errors)
        for result in results:
            everything.add(result)
            if not is_redone and done.add(result):
                kept.add(result)
    # Calls whose results were lost are only in the noted total; results stored after the last note, only in the sum.
    if stored.summary is not None:
        noted = stored.summary.usage
    else:
        origin = runs.origin(stored.run.id)
        noted = {} if origin is None or origin.spent is None else origin.spent
    spent = combined(everything.usage, noted, larger)
    return ResumedRun(stored.run, done, kept, combined(spent, kept.usage, beyond))


def done_cases(prepared: PreparedRun) -> DoneCases:
    """Return a record of done cases for a run in which none is done yet."""
    return DoneCases(repeats=prepared.plan.repeats, columns=len(prepared.plan.columns))


def _rows(results: Iterable[CaseResult], plan: Plan) -> Iterator[tuple[tuple[CaseResult, ...], bool]]:
    """Yield the stored results that stay or are redone together, and whether they are complete.

    That is each result by itself or, if outputs are compared, all results of a test and repeat.
    """
    if not plan.is_in_rows:
        yield from (((result,), True) for result in results)
        return
    tests = iter(plan.suite.tests)
    test = next(tests, None)
    for (index, _), members in groupby(results, key=lambda item: (item.test_index, item.repeat_index)):
        row = tuple(members)
        while test is not None and test.index < index:
            test = next(tests, None)
        yield row, test is not None and len(row) >= plan.cases_of(test)


def fingerprint(prepared: PreparedRun) -> dict[str, JsonValue]:
    """Return what decides the results of a run: hashes of the suite's parts, and the options that matter."""
    request, suite = prepared.request, prepared.suite
    found = {"repeats": prepared.plan.repeats, "dialect": str(suite.rules.name)}
    if prepared.plan.drawn is not None:
        found["stop_when"] = DECIDED
    judged = {} if request.judged is None else {_JUDGED: request.judged.facts}
    locked = {} if prepared.lock_digest is None else {_LOCK: prepared.lock_digest}
    return {
        **judged,
        **locked,
        _SUITE: dict(suite.parts),
        _OPTIONS: deciding_options(request, found),
        _VARS: dict(request.variables),
        _PROMPTS: prompt_version(),
    }


def deciding_options(request: RunRequest, found: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the options that decide results, by their flags; `found` holds those that the config can set too.

    Stored runs hold a hash of this: an option that they do not know is left out unless it is given.
    """
    # The name given to --filter-failing does not matter, only the tests that it selects.
    failing = None if request.failing is None else _hash(request.failing)
    values = {**vars(request), "filter_failing": failing, **found}
    written = {}
    for field, option in declared_options(type(request)):
        value = values[field.name]
        is_given = option.is_always_written or value != default_of(field)
        is_moot = bool(option.only_with) and all(values[name] is None for name in option.only_with)
        if option.decides_results and field.name != _VARIABLES and is_given and not is_moot:
            # Pairs are written as on the command line.
            is_pairs = isinstance(value, tuple)
            written[option.name] = [f"{name}={text}" for name, text in value] if is_pairs else value
    if request.only is not None:
        written[ONLY] = _hash(map(str, request.only))
    return written


def _hash(fingerprints: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(fingerprints)).encode()).hexdigest()[:16]


def changes(
    before: Mapping[str, JsonValue],
    now: Mapping[str, JsonValue],
    config_before: JsonValue,
    config_now: JsonValue,
) -> list[str]:
    """Return the inputs of a run that changed, one line each. Keys are not shown.

    Args:
        before: the fingerprint of the earlier run.
        now: the current fingerprint.
        config_before: the config as stored with the earlier run.
        config_now: the current config in the same form.
    """
    lines = [
        f"{name}: {_option(old)} -> {_option(new)}"
        for name, old, new in _pairs(before.get(_OPTIONS), now.get(_OPTIONS))
    ]
    lines += [
        f"--var {name}: {_shown(old, name)} -> {_shown(new, name)}"
        for name, old, new in _pairs(before.get(_VARS), now.get(_VARS), absent=_ABSENT)
    ]
    config_lines = list(_config_changes(config_before, config_now))
    lines += config_lines
    has_config_changes = bool(config_lines)
    for part, old, new in _pairs(before.get(_SUITE), now.get(_SUITE)):
        lines += _part_changes(part, old, new, has_config_changes=has_config_changes)
    if before.get(_LOCK) != now.get(_LOCK):
        lines.append("geval.lock: the evaluation steps in it")
    if before.get(_PROMPTS) != now.get(_PROMPTS):
        lines.append("the judge's prompts: another version of geval wrote them")
    return lines


class _Absent:
    """A marker for a value that is absent, and not even null."""


_ABSENT = _Absent()


def _pairs(
    before: JsonValue, now: JsonValue, absent: JsonValue = None
) -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """Yield each name whose values differ between the two mappings, with both values."""
    before, now = before or {}, now or {}
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name, absent), now.get(name, absent)
        if old is not new and _text(old) != _text(new):
            yield name, old, new


def _part_changes(part: str, old: JsonValue, new: JsonValue, *, has_config_changes: bool) -> Iterator[str]:
    """Yield a line for a changed hash, unless changes of the config, which are listed key by key, account for it."""
    if part.startswith(FILE_PART):
        name = part.removeprefix(FILE_PART)
        if old is None or new is None:
            if not has_config_changes:
                yield f"file {name}: {'now used' if old is None else 'no longer used'}"
        elif name == "...":
            yield "files used by the tests: their content"
        else:
            yield f"file {name}: its content"
    elif part == ROWS_PART or part.startswith(CONFIG_PART):
        if not has_config_changes:
            yield f"{part.removeprefix(CONFIG_PART)}: a value that comes from the environment or from another file"
    elif part != OVERRIDES_PART:
        yield part


def _config_changes(before: JsonValue, now: JsonValue, path: str = "") -> Iterator[str]:
    """Yield a line for every place in the config that differs: `tests/2/vars/name: "a" -> "b"`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, old, new in _pairs(before, now, absent=_ABSENT):
            yield from _config_changes(old, new, f"{path}/{name}" if path else str(name))
    elif isinstance(before, list) and isinstance(now, list):
        for index, (old, new) in enumerate(zip(before, now, strict=False)):
            yield from _config_changes(old, new, f"{path}/{index}")
        if len(before) != len(now):
            yield f"{path}: {len(before):,} -> {len(now):,} entries"
    elif _text(before) != _text(now):
        name = path.rpartition("/")[2]
        yield f"{path}: {_shown(before, name)} -> {_shown(now, name)}"


def _option(value: JsonValue) -> str:
    return "not given" if value is None else str(value)


def _shown(value: JsonValue, name: str) -> str:
    if value is _ABSENT:
        return "nothing"
    if is_secret_name(name):
        return "***"
    text = mask_bare(_text(value))
    return text if len(text) <= _SHOWN_VALUE else f"{text[: _SHOWN_VALUE - 3]}..."


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=lambda _: "")

"""Going on with an earlier run: which one, whether it is still the same suite, and what of it is done."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby

from msgspec import Struct

from geval_cli.assertions.base import MergedTest
from geval_cli.engine.aggregate import Tally
from geval_cli.engine.plan import DoneCases, Plan
from geval_cli.errors import UsageError
from geval_cli.records import CaseResult, JsonValue, Role, RunRecord, RunStatus, Status, Usage
from geval_cli.runs.fingerprint import changes, fingerprint, run_digest
from geval_cli.runs.requests import PreparedRun, Resumption
from geval_cli.runs.spending import beyond, combined, larger
from geval_cli.store.runs import RunStore, StoredRun, config_file

_CHANGES_SHOWN = 12

_UNFINISHED = frozenset({RunStatus.RUNNING, RunStatus.INTERRUPTED, RunStatus.ABORTED})


class ResumedRun(Struct, frozen=True):
    """An earlier run that is to be resumed, and that no other process works on.

    Attributes:
        run: its record.
        done: the cases whose results stay.
        kept: what these results add up to.
        carried: what was spent on it beyond them: on cases without a result, and on those that are done again.
    """

    run: RunRecord
    done: DoneCases
    kept: Tally
    carried: Mapping[Role, Usage]

    @property
    def started_s(self) -> float:
        """When the run was begun, in seconds since 1970."""
        return datetime.fromisoformat(self.run.started_at).timestamp()


def resume_run(prepared: PreparedRun, runs: RunStore) -> ResumedRun:
    """Return the earlier run that `prepared` asks for, claimed for this process.

    Raises:
        UsageError: there is no such run, another process works on it, or it is not the same suite any more.
        StoreError: the stored runs cannot be read, or the run not be claimed.
    """
    resumption = prepared.request.resumption or Resumption()
    parts = fingerprint(prepared)
    digest = run_digest(parts)
    # Choose, claim, read again: between the first look and the claim another process may have added results.
    run_id = _chosen(prepared, runs, resumption, digest).run.id
    if not runs.claim(run_id):
        raise UsageError(
            f"run {run_id} is still in progress in {runs.holder(run_id) or 'another process'}",
            hint="wait for it to end, or stop it first",
        )
    try:
        stored = runs.find(run_id)  # as it is now that no one else can change it
        _check_same(stored.run, runs, prepared, parts)
        return _resumed(stored, runs, prepared, retries_errors=resumption.retries_errors)
    except BaseException:
        runs.release(run_id)
        raise


def find_run(prepared: PreparedRun, runs: RunStore) -> ResumedRun:
    """Return the earlier run that `prepared` asks for as it is now, for looking at it: it is not claimed.

    Raises:
        UsageError: there is no such run, or it is not the same suite any more.
        StoreError: the stored runs cannot be read.
    """
    resumption = prepared.request.resumption or Resumption()
    parts = fingerprint(prepared)
    stored = _chosen(prepared, runs, resumption, run_digest(parts))
    _check_same(stored.run, runs, prepared, parts)
    return _resumed(stored, runs, prepared, retries_errors=resumption.retries_errors)


def _chosen(prepared: PreparedRun, runs: RunStore, resumption: Resumption, digest: str) -> StoredRun:
    if resumption.run is not None:
        return runs.find(resumption.run)
    path = prepared.suite.path
    # One that judged stored outputs is no run of the config: `geval judge` again does what it lacks.
    stored_runs = runs.of_config(config_file(path), digest)
    found = [stored for stored in stored_runs if stored.run.judged_from is None]
    if resumption.only_unfinished:
        found = [stored for stored in found if stored.run.status in _UNFINISHED]
    if not found:
        which = "unfinished run" if resumption.only_unfinished else "run"
        hint = "list the stored runs with `geval list`, or leave the option out to start a new run"
        raise UsageError(f"no {which} of {path} is stored here", hint=hint)
    return found[0]


def _check_same(
    run: RunRecord, runs: RunStore, prepared: PreparedRun, parts: Mapping[str, JsonValue]
) -> None:
    if run.config_digest == run_digest(parts):
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


def _resumed(stored: StoredRun, runs: RunStore, prepared: PreparedRun, *, retries_errors: bool) -> ResumedRun:
    """Go through the results that are there."""
    plan, done = prepared.plan, done_cases(prepared)
    kept, everything = Tally(), Tally()

    for row in _rows(runs.results(stored.run.id), plan):
        # A comparison needs all outputs of its group, so an incomplete group is redone as a whole.
        is_redone = not row.is_whole or (retries_errors and row.has_errors)
        for result in row.results:
            everything.add(result)
            if not is_redone and done.add(result):
                kept.add(result)
    # Calls whose results were lost are in the noted total only; results stored after the last note, only in the sum.
    spent = combined(everything.usage, _noted(stored, runs), larger)
    return ResumedRun(stored.run, done, kept, combined(spent, kept.usage, beyond))


def done_cases(prepared: PreparedRun) -> DoneCases:
    """Return the cases of a run, none of them done."""
    return DoneCases(repeats=prepared.plan.repeats, columns=len(prepared.plan.columns))


class _StoredRow(Struct, frozen=True):
    """Results that stay together or are redone together."""

    results: tuple[CaseResult, ...]
    is_whole: bool = True

    @property
    def has_errors(self) -> bool:
        return any(result.status is Status.ERROR for result in self.results)


def _rows(results: Iterable[CaseResult], plan: Plan) -> Iterator[_StoredRow]:
    """Yield the stored results: each for itself or, where outputs are compared, those of a test and repeat together."""
    if not plan.is_in_rows:
        yield from (_StoredRow((result,)) for result in results)
        return
    tests = iter(plan.suite.tests)
    test = next(tests, None)
    for (index, _), members in groupby(results, key=lambda item: (item.test_index, item.repeat_index)):
        row = tuple(members)
        test = _test_at(index, test, tests)
        yield _StoredRow(row, test is not None and len(row) >= plan.cases_of(test))


def _test_at(index: int, test: MergedTest | None, later: Iterator[MergedTest]) -> MergedTest | None:
    """Return `test`, or the first of those after it that has the index or a higher one."""
    while test is not None and test.index < index:
        test = next(later, None)
    return test


def _noted(stored: StoredRun, runs: RunStore) -> Mapping[Role, Usage]:
    """Return the stored cost of a run as a whole."""
    if stored.summary is not None:
        return stored.summary.usage
    origin = runs.origin(stored.run.id)
    return {} if origin is None or origin.spent is None else origin.spent

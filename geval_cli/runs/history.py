"""List stored runs, each with the change in pass rate since the previous run of its config."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from geval_cli.records import Column, RunRecord, RunStatus
from geval_cli.report.comparison import PASS_RATE, paired_cases, values_of
from geval_cli.report.matching import match_columns
from geval_cli.report.run_list import RunChange, RunListEntry
from geval_cli.statistics.paired import PairedSample, decide
from geval_cli.store.run_pages import RunChoice, RunOutline, RunPages, StoredVerdict
from geval_cli.store.runs import RunStore

_MOST_VERDICTS = 60_000
"""So many verdicts are read for one list, which takes about a second; the runs after that have no change."""


class RunHistory(Struct, frozen=True):
    """Some runs, newest first, of `total` that were chosen."""

    runs: tuple[RunListEntry, ...]
    total: int


Remember = Callable[[tuple[str, ...], Callable[[], RunChange | None]], RunChange | None]
"""Returns what was made before of the same ids and times, else what the function makes."""


def read_history(
    runs: RunStore,
    chosen: RunChoice,
    *,
    limit: int,
    offset: int = 0,
    remember: Remember = lambda _, make: make(),
    without: Sequence[str] = (),
) -> RunHistory:
    """Return the newest runs that are chosen, without the first `offset` of them and those whose ids are in `without`.

    Changes of runs that did not change themselves are taken from `remember`.

    Raises:
        StoreError: the database cannot be read.
    """
    pages = runs.pages(without=without)
    outlines, total = pages.outlines(chosen, offset=offset, limit=limit)
    changes = _Changes(runs, pages, remember)
    return RunHistory(
        tuple(RunListEntry(item.run, item.counts, item.config_file, changes.of(item)) for item in outlines),
        total,
    )


class _Changes:
    """Compares runs with those before them, as long as that is quick; a run's verdicts are read once."""

    def __init__(self, runs: RunStore, pages: RunPages, remember: Remember) -> None:
        self._runs = runs
        self._remember = remember
        self._pages = pages
        self._left = _MOST_VERDICTS
        self._last: tuple[str, list[StoredVerdict]] = ("", [])

    def of(self, item: RunOutline) -> RunChange | None:
        """Return the change against the run before; None for a run that is not complete, and where none can be told."""
        if item.run.status is not RunStatus.COMPLETED:
            return None
        before = self._pages.previous(item.run.id, finished=True)
        if before is None:
            return None
        older = self._runs.find(before).run
        made_of = (item.run.id, item.run.finished_at or "", older.id, older.finished_at or "")
        return self._remember(made_of, lambda: self._change(item, older))

    def _change(self, item: RunOutline, older: RunRecord) -> RunChange | None:
        before = older.id
        if not self._may_read(item.run.id, before):
            return None
        after = self._verdicts(item.run.id)
        return pass_rate_change(older, self._verdicts(before), after, item.run.columns)

    def _may_read(self, *run_ids: str) -> bool:
        unread = [run_id for run_id in run_ids if run_id != self._last[0]]
        self._left -= sum(self._pages.counts(run_id).total for run_id in unread)
        return self._left >= 0

    def _verdicts(self, run_id: str) -> list[StoredVerdict]:
        if run_id != self._last[0]:
            self._last = run_id, self._pages.verdicts(run_id)
        return self._last[1]


def pass_rate_change(
    older: RunRecord,
    before: Sequence[StoredVerdict],
    after: Sequence[StoredVerdict],
    columns: Sequence[Column],
) -> RunChange | None:
    """Return how the pass rate changed in the cases that were judged in both runs; None when there are none.

    Tests belong together by their content, and the cases of one test are a cluster.
    """
    sample = PairedSample()
    for pair in paired_cases(before, after, match_columns(older.columns, columns)).pairs:
        values = values_of(PASS_RATE, pair.before, pair.after)
        if values is not None:
            sample.add(pair.after.test_index, values, same=False)
    found = sample.test()
    if found is None:
        return None
    (decision,) = decide({PASS_RATE: found}, group=lambda _: None)
    return RunChange(older.id, found.delta, found.interval, found.n, found.clusters, decision.verdict)

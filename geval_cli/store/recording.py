"""Store a run as it goes on; results that a failing store does not take are not lost."""

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait

from geval_cli.errors import StoreError
from geval_cli.records import CaseResult, Role, RunRecord, RunSummary, Usage
from geval_cli.store.runs import RunOrigin, RunStore

UNCOMMITTED_MAX = 256
"""So many results may be on their way into the store; with more, `add` waits."""

_Place = tuple[int, int, int]


class Recording:
    """A run that is being stored. Results that the store does not take are held in memory until the end.

    From its first error on the store is left alone, since each further attempt may take seconds; the end tries once
    more to put everything there. Belongs to one event loop.

    Attributes:
        failure: why the store lacks something of this run; None as long as it lacks nothing.
    """

    def __init__(
        self, runs: RunStore, run: RunRecord, origin: RunOrigin | None = None, *, is_resumed: bool = False
    ) -> None:
        """Prepare the recording; nothing is stored yet, unless the run is resumed."""
        self.failure: StoreError | None = None
        self._runs = runs
        self._run_id = run.id
        self._origin = origin
        self._has_begun = is_resumed
        self._uncommitted: deque[tuple[CaseResult, Future[None]]] = deque()
        self._held: dict[_Place, CaseResult] = {}

    async def begin(self, run: RunRecord) -> None:
        """Store the run as it begins."""
        try:
            await asyncio.to_thread(self._runs.begin, run, self._origin)
            self._has_begun = True
        except StoreError as error:
            self.failure = error

    async def add(self, result: CaseResult) -> None:
        """Store a result; waits only when many are not committed yet."""
        if self.failure is not None:
            self._hold(result)
            return
        self._uncommitted.append((result, self._runs.add(self._run_id, result)))
        while len(self._uncommitted) > UNCOMMITTED_MAX:
            await asyncio.gather(asyncio.wrap_future(self._uncommitted[0][1]), return_exceptions=True)
            self._settle()
        self._settle()

    def note_spent(self, spent: Mapping[Role, Usage]) -> None:
        """Store what the calls of the run have cost so far, in case its process dies; lost where the store fails."""
        if self.failure is None:
            self._runs.note_spent(self._run_id, spent)

    async def settle(self) -> None:
        """Wait until every result so far is stored, or held."""
        await asyncio.to_thread(wait, [committed for _, committed in self._uncommitted])
        self._settle()

    async def finish(self, run: RunRecord, summary: RunSummary) -> None:
        """Store how the run ended, and what is held; `failure` says whether that worked."""
        await asyncio.to_thread(self._finish, run, summary)

    @property
    def unstored(self) -> Iterable[CaseResult]:
        """Return the results that the store does not have."""
        return self._held.values()

    def results(self) -> Iterator[CaseResult]:
        """Return all results by test, repeat and column.

        Raises:
            StoreError: the store cannot be read.
        """
        held = iter(sorted(self._held.values(), key=_place))
        if not self._has_begun:
            return held
        # A result may be both: held after an error, though it had been committed.
        stored = (item for item in self._runs.results(self._run_id) if _place(item) not in self._held)
        return heapq.merge(stored, held, key=_place)

    def _settle(self) -> None:
        """Forget what is committed, and hold what the store refused."""
        while self._uncommitted and self._uncommitted[0][1].done():
            result, committed = self._uncommitted.popleft()
            error = committed.exception()
            if isinstance(error, StoreError):
                self.failure = self.failure or error
                self._hold(result)
            elif error is not None:
                raise error

    def _finish(self, run: RunRecord, summary: RunSummary) -> None:
        wait([committed for _, committed in self._uncommitted])
        self._settle()
        try:
            if self.failure is not None:
                # It may be the beginning that failed; of a run that is there, only status and record are written anew.
                self._runs.begin(run, self._origin)
                self._has_begun = True
                committed = [self._runs.add(run.id, result) for result in self._held.values()]
                for item in committed:
                    item.result()
                self._held.clear()
                self.failure = None
            self._runs.finish(run, summary)
        except StoreError as error:
            self.failure = self.failure or error

    def _hold(self, result: CaseResult) -> None:
        self._held[_place(result)] = result


def _place(result: CaseResult) -> _Place:
    return result.test_index, result.repeat_index, result.column

"""Memories of a run: what it has found out about its judges, and the metrics that it has made."""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct, field

from geval_cli.errors import JudgeError
from geval_cli.gateway.capabilities import Discovery
from geval_cli.judge.metric import Judge, Metric, public_id_of
from geval_cli.records import JsonValue, ModelResponse

LOGPROBS = "logprobs"
"""The name in `ModelResponse.dropped` that says that a judge gave no token probabilities."""

_FEATURES = frozenset({LOGPROBS})
_PATIENCE_S = 10.0
_SHARED_KEPT = 1024  # of a config with criteria of its own in every test, the last ones

# Who cannot write steps would be asked in vain for each test. A session of `geval serve` may outlive the reason.
_MOST_FAILURES = 3
_FAILURES_HOLD_S = 30.0

Texts = tuple[str, ...] | None

Shared = TypeVar("Shared")


LockedSteps = Mapping[tuple[str, tuple[str, ...], str], tuple[str, ...]]
"""Evaluation steps by criteria, the labels of what the judge sees, and the judge's id, as `geval.lock` has them."""


class _Failures(Struct):
    """How often a judge's steps for a criterion could not be read, even after a retry, and when last."""

    error: JudgeError
    times: int
    at: float


class JudgeMemory:
    """A memory of the judges that give no token probabilities, and of those that need room for long answers.

    It also holds the steps that a lock file settles, which no judge is called for, and in `facts` what of each judge
    decides its answers.

    One per run and event loop. Judges that are equal are the same judge, whatever they are called.
    """

    def __init__(self, locked_steps: LockedSteps | None = None) -> None:
        self._locked_steps = locked_steps or {}
        self._without_logprobs: set[Judge] = set()
        self._needs_room: set[Judge] = set()
        self.facts: dict[Judge, JsonValue] = {}
        self._discoveries: defaultdict[Judge, Discovery] = defaultdict(Discovery)
        self._unwritten: dict[tuple[str, tuple[str, ...], Judge], _Failures] = {}

    def locked_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge) -> tuple[str, ...] | None:
        """Return the steps that a lock file has for a criterion; None when it has none."""
        if not self._locked_steps:
            return None
        return self._locked_steps.get((criteria, labels, public_id_of(judge)))

    def note_no_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge, error: JudgeError) -> None:
        """Remember that no steps of a judge could be read."""
        before = self._unwritten.get((criteria, labels, judge))
        times = 1 if before is None else before.times + 1
        self._unwritten[criteria, labels, judge] = _Failures(error, times, time.monotonic())

    def why_no_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge) -> JudgeError | None:
        """Return why a judge is not asked for steps now: it was asked several times in vain. None if it may be."""
        found = self._unwritten.get((criteria, labels, judge))
        if found is None or found.times < _MOST_FAILURES or time.monotonic() - found.at > _FAILURES_HOLD_S:
            return None
        error = found.error
        return type(error)(error.message, raw_text=error.raw_text, hint=error.hint)

    async def ask_with_logprobs(
        self,
        judge: Judge,
        ask: Callable[[], Awaitable[ModelResponse]],
        *,
        was_sampled: Callable[[], Awaitable[bool]] | None = None,
    ) -> ModelResponse | None:
        """Return the answer of `ask`, or None without asking when the judge is known to give no token probabilities.

        The first caller asks while others with the same judge wait for what it finds, but not longer than they must.
        `was_sampled` says whether an earlier run took samples for this question at once, because another question had
        found out by then: which one comes first differs from run to run.
        """
        discovery = self._discoveries[judge]
        claimed = await discovery.claim(_FEATURES, patience_s=_PATIENCE_S)
        known = frozenset[str]()
        try:
            if claimed and was_sampled is not None and await was_sampled():
                self._without_logprobs.add(judge)
            response = None if judge in self._without_logprobs else await ask()
            if response is not None and LOGPROBS in response.dropped:
                self._without_logprobs.add(judge)
            # Neither an answer without text nor one that failed says anything about it.
            gives_them = response is not None and any(choice.token_logprobs for choice in response.choices)
            if gives_them or judge in self._without_logprobs:
                known = claimed
            return response
        finally:
            discovery.settle(claimed, known=known)

    def needs_room(self, judge: Judge) -> bool:
        """Return whether the small token limit of scores-only forms is known to cut this judge's replies off."""
        return judge in self._needs_room

    def note_needs_room(self, judge: Judge) -> None:
        """Remember that the small token limit is too small for this judge, as it is for those that think first."""
        self._needs_room.add(judge)


class SharedByTests(Struct, Generic[Shared]):
    """Values by the objects of the config that they come from and their rendered texts. One for a run."""

    _kept: dict[tuple[object, ...], tuple[tuple[object, ...], Shared]] = field(default_factory=dict)

    def find(
        self, sources: tuple[object, ...], texts: tuple[Texts, ...], make: Callable[[], Shared]
    ) -> Shared:
        """Return the value of these very `sources` with these `texts`; `make` builds it at the first call."""
        key = (*map(id, sources), texts)
        kept = self._kept.get(key)
        if kept is not None:
            return kept[1]
        value = make()
        # The sources are held, so that no other object can get the identity of one of them.
        self._kept[key] = sources, value
        if len(self._kept) > _SHARED_KEPT:
            del self._kept[next(iter(self._kept))]
        return value


class SharedMetrics(SharedByTests[Metric]):
    """The metrics that g-evals were made into for other tests."""

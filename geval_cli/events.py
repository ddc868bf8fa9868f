"""What the engine says while it runs. Progress, store and reports listen; none of them is known here."""

from dataclasses import dataclass

from geval_cli.records import CaseResult, Role, RunRecord, RunSummary, Usage


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The suite is valid and work begins. `total` is the number of cases."""

    run: RunRecord
    total: int


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """A model answered (or the cache did, or it failed for good: then `failed`).

    `dropped`: parameters that were left out because the server does not take them.
    """

    role: Role
    provider_id: str
    usage: Usage
    failed: bool = False
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something that the user should know once and that is no error: a fallback, a parameter left out, a pause."""

    message: str


@dataclass(frozen=True, slots=True)
class CaseFinished:
    """One case has its result."""

    result: CaseResult


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is over; `run.status` says how."""

    run: RunRecord
    summary: RunSummary


RunEvent = RunStarted | ModelCalled | Noticed | CaseFinished | RunFinished

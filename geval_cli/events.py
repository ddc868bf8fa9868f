"""Define the events of a run. Progress, store and reports listen to them; none of these is known here."""

from collections.abc import Mapping

from msgspec import Struct

from geval_cli.records import (
    CaseResult,
    Choice,
    ErrorInfo,
    JsonValue,
    Message,
    Purpose,
    Role,
    RunRecord,
    RunSummary,
    Usage,
)


class RunStarted(Struct, frozen=True):
    """The suite is valid and work begins. `total` is the number of cases."""

    run: RunRecord
    total: int


class ModelCalled(Struct, frozen=True):
    """A model answered (or the cache did, or it failed for good: then `failed`).

    Attributes:
        dropped: parameters that were left out because the server does not take them.
        call: the number of the call within its run, by which its requests are found.
        duration_ms: how long whoever asked had to wait, pauses and repetitions included.
    """

    role: Role
    provider_id: str
    usage: Usage
    failed: bool = False
    dropped: tuple[str, ...] = ()
    call: int = 0
    duration_ms: float = 0.0


class CaseStarted(Struct, frozen=True):
    """Work on a case begins; emitted only on demand. `started_at` is seconds since 1970."""

    case: str
    started_at: float


class RequestDetail(Struct, frozen=True):
    """Facts about a request that traces show and the log of requests does not.

    Attributes:
        case: the case for which it was sent first; None outside of a case.
        model: as the request names it.
        response_model: as the answer names it.
        response_id: what the API calls its answer.
        settings: the parameters of the config and the request, as they are written there.
        endpoint: the address, without secrets; empty for what has none.
        is_shaped: whether JSON was asked for.
        cache_read_tokens, cache_write_tokens: of the vendor's prompt cache.
        messages, choices: what was asked and answered; empty unless they are wanted.
    """

    case: str | None
    model: str
    purpose: Purpose
    response_model: str | None = None
    response_id: str | None = None
    settings: Mapping[str, JsonValue] = {}  # msgspec copies it
    endpoint: str = ""
    is_shaped: bool = False
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    messages: tuple[Message, ...] = ()
    choices: tuple[Choice, ...] = ()


class RequestEnded(Struct, frozen=True):
    """A request was sent and answered, or failed; emitted only on demand. Holds no prompt and no key.

    Attributes:
        call: the number of the `ModelCalled` that it belongs to; one call may need several requests.
        attempt: counts from 1; repetitions of one request have one call.
        answers: how many were asked for.
        started_at: seconds since 1970.
        status: of the HTTP answer, where an error says it.
        request_id: by which the vendor finds it.
        finish_reasons: one for each answer that came.
        detail: more about it, where traces are written.
    """

    call: int
    attempt: int
    role: Role
    provider_id: str
    answers: int
    started_at: float
    latency_ms: float
    status: int | None = None
    error: ErrorInfo | None = None
    request_id: str | None = None
    usage: Usage = Usage()
    finish_reasons: tuple[str | None, ...] = ()
    detail: RequestDetail | None = None


class Noticed(Struct, frozen=True):
    """Something that the user should know once and that is no error: a fallback, a parameter left out, a pause."""

    message: str


class BatchesAdvanced(Struct, frozen=True):
    """The batches at providers that a run waits for, of one role.

    Attributes:
        number: the first one that has not ended, of `batches`, counted from 1.
        answered: of `requests` in all of them.
        expires_in_s: until the first of them ends unanswered; None when the provider does not say.
    """

    role: Role
    number: int
    batches: int
    answered: int
    requests: int
    expires_in_s: float | None = None


class CaseFinished(Struct, frozen=True):
    """One case has its result."""

    result: CaseResult


class RunFinished(Struct, frozen=True):
    """The run is over; `run.status` says how."""

    run: RunRecord
    summary: RunSummary


RunEvent = (
    RunStarted
    | CaseStarted
    | ModelCalled
    | RequestEnded
    | Noticed
    | BatchesAdvanced
    | CaseFinished
    | RunFinished
)

"""The events of a run. Progress, store and reports listen to them, but this module knows none of them."""

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
    """The suite is valid and work begins; `total` is the number of cases."""

    run: RunRecord
    total: int


class ModelCalled(Struct, frozen=True):
    """A model or the cache answered or, if `failed`, the call failed for good.

    Attributes:
        dropped: parameters that were left out because the server does not accept them.
        call: the number of the call within its run, which links its requests to it.
        duration_ms: how long the caller had to wait, including pauses and retries.
    """

    role: Role
    provider_id: str
    usage: Usage
    failed: bool = False
    dropped: tuple[str, ...] = ()
    call: int = 0
    duration_ms: float = 0.0


class CaseStarted(Struct, frozen=True):
    """Work on a case begins; emitted only on demand; `started_at` is in seconds since 1970."""

    case: str
    started_at: float


class RequestDetail(Struct, frozen=True):
    """Facts about a request that traces show, but the request log does not.

    Attributes:
        case: the case that sent it first; None outside of a case.
        model: as named in the request.
        response_model: as named in the answer.
        response_id: the API's id of its answer.
        settings: the parameters of the config and the request, as written there.
        endpoint: the address without secrets; empty if there is none.
        is_shaped: whether JSON was requested.
        cache_read_tokens, cache_write_tokens: of the vendor's prompt cache.
        messages, choices: the content of request and answer; empty unless it is wanted.
    """

    case: str | None
    model: str
    purpose: Purpose
    response_model: str | None = None
    response_id: str | None = None
    settings: Mapping[str, JsonValue] = {}  # msgspec copies it for each instance
    endpoint: str = ""
    is_shaped: bool = False
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    messages: tuple[Message, ...] = ()
    choices: tuple[Choice, ...] = ()


class RequestEnded(Struct, frozen=True):
    """A request was sent and answered, or failed; emitted only on demand; has no prompt and no key.

    Attributes:
        call: the number of the `ModelCalled` that it belongs to; one call may need several requests.
        attempt: counts from 1; the retries of a request belong to the same call.
        answers: how many answers were requested.
        started_at: seconds since 1970.
        status: the HTTP status, if an error has one.
        request_id: the vendor's id of the request.
        finish_reasons: one for each answer received.
        detail: further facts, if traces are written.
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
    """Something that the user should be told once, but not an error: a fallback, a dropped parameter, a pause."""

    message: str


class BatchesAdvanced(Struct, frozen=True):
    """The progress of the provider batches of one role that a run waits for.

    Attributes:
        number: the number, from 1, of the first of `batches` that has not ended.
        answered: how many of the `requests` in all batches are answered.
        expires_in_s: time until the first of them expires; None if the provider does not say.
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
    """The run has ended; `run.status` says how."""

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

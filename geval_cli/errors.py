"""Every exception of geval, the positions of problems in files, and the exit codes.

    GevalError(message, hint, location)
    ├─ ConfigError(problems)            the suite is not valid; holds every problem
    ├─ UsageError(problems)             the user's request cannot be carried out
    ├─ TemplateError(missing, known)    a template names something that does not exist
    ├─ ProviderError(provider_id, ...)  a model endpoint could not answer
    │  ├─ ProviderAuthError             key missing, refused, or out of quota: never retried
    │  ├─ ProviderRateLimitError        too many requests; may say how long to wait
    │  ├─ ProviderTimeoutError          no answer within the time limit
    │  ├─ ProviderUnavailableError      network trouble or a 5xx
    │  ├─ OfflineError                  the cache has no answer, and no model may be called
    │  ├─ ProviderRequestError          the request was refused (4xx) and would be again
    │  │  └─ UnsupportedParameterError  ... because of one parameter, which is named
    │  └─ ProviderResponseError         a 2xx whose body cannot be read
    │     └─ ProviderShapeError         ... or can be, but has no answer where one is expected
    ├─ NotDoneError                      what needs the answer is left undone for now, without an error
    │  ├─ BudgetError                   the run has reached its budget, so a request was not sent
    │  ├─ StoppedError                  the run was told to stop, so no more requests are sent
    │  └─ PendingError                  the answer comes with a provider's batch, in hours
    ├─ ApiError(status, body)           a ProviderError as a user of the library sees it
    ├─ MissingParamsError(params)       a metric needs parameters that the test case lacks
    ├─ JudgeError(raw_text)             the judge answered, but gave no verdict
    │  ├─ JudgeParseError               no score can be read from the reply
    │  └─ JudgeRangeError               the rating is outside the score range
    ├─ CheckTimeoutError                a check took too long on one output
    ├─ ModelFetchError(model)           a local model cannot be fetched
    ├─ CodeFailedError(detail)          code that the config names raised, took too long, or returned nonsense
    ├─ StoreError(path)                 the database cannot be read or written
    ├─ OutputError(path)                a results file cannot be written
    └─ MachineLimitError                memory, files, threads or disk space have run out

Lower layers raise; `engine/case.py` turns errors into values, and `cli/` turns them into exit codes.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any


class ExitCode(IntEnum):
    """The exit codes that a shell or CI sees; README.md explains them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_JUDGED = 3
    BUG = 4
    PENDING = 75
    INTERRUPTED = 130
    TERMINATED = 143


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, raised after work in progress has ended; code that cleans up after Ctrl-C handles it too."""


@dataclass(frozen=True, slots=True)
class Location:
    """A position in a text file; `line` and `column` count from 1, and `length` is the caret's width in characters."""

    file: str
    line: int
    column: int
    length: int = 1
    key_path: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Severity(StrEnum):
    """The severity of a problem: errors stop a run before any request is sent, warnings do not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a config: what, where, and what to do about it.

    `hint` is short and shown next to the caret; `notes` are further lines below it.
    """

    message: str
    location: Location | None = None
    hint: str = ""
    notes: tuple[str, ...] = field(default=())
    severity: Severity = Severity.ERROR

    def __post_init__(self) -> None:
        location: Any = self.location
        if location is not None and not isinstance(location, Location):  # a plugin passes `self.place`
            object.__setattr__(self, "location", location.value())


@dataclass(frozen=True, slots=True)
class MissingKey(Problem):
    """A missing API key of a provider; `variable` is the environment variable for it."""

    variable: str = ""


class GevalError(Exception):
    """The base of all errors that geval raises on purpose; `hint` says what to do next.

    `usage` is the usage of the requests that led to it, if a program asked for a single verdict; otherwise None.
    """

    exit_code = ExitCode.NOT_JUDGED

    usage: Mapping[str, Any] | None = None

    def __init__(self, message: str, *, hint: str = "", location: Location | None = None) -> None:
        super().__init__(message)
        if hint:
            self.add_note(hint)  # so that tracebacks also say what to do next
        self.message = message
        self.hint = hint
        self.location = location

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__  # without `__init__`


class ConfigError(GevalError):
    """The suite is not valid; `problems` holds every problem, in the order of the file."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(f"{count} problem{'' if count == 1 else 's'} in the configuration")


class UsageError(GevalError):
    """A request by the user cannot be carried out; `problems` holds every reason if there are several."""

    exit_code = ExitCode.USAGE

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        location: Location | None = None,
        problems: Iterable[Problem] = (),
    ) -> None:
        super().__init__(message, hint=hint, location=location)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, what: str, problems: Sequence[Problem]) -> "UsageError":
        """Return an error about `what` that lists all `problems`, with their hints; there must be at least one."""
        lines = [f"{item.message} ({item.hint})" if item.hint else item.message for item in problems]
        text = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n- {line}" for line in lines)
        return cls(f"{what}:{text}", problems=problems)


class TemplateError(GevalError):
    """A template is broken or names something undefined; `missing` is that name, `known` are the existing ones."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, missing: str = "", known: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.missing = missing
        self.known = tuple(known)


class ProviderError(GevalError):
    """A model endpoint could not answer.

    `is_retryable` tells the retry layer whether to retry; `request_id` is the vendor's id of the request, if known.
    `cost_usd`, `input_tokens` and `output_tokens` are what the request used all the same, if the reply says so.
    """

    is_retryable = False

    request_id: str | None = None

    cost_usd: float | None = None
    input_tokens = 0
    output_tokens = 0

    def __init__(
        self,
        message: str,
        *,
        provider_id: str,
        status: int | None = None,
        body: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.provider_id = provider_id
        self.status = status
        self.body = body

    def remark(self, text: str) -> None:
        """Add to the message what was done about the error: how often the request was retried, how long it took."""
        self.message = f"{self.message} ({text})"
        self.args = (self.message,)


class ProviderSettledError(ProviderError):
    """The provider refuses every request, so it is not called again."""


class ProviderAuthError(ProviderSettledError):
    """The key is missing or refused, or its quota is used up; retrying cannot help."""


class UnknownModelError(ProviderSettledError):
    """The server has no such model or deployment, or no API at this address."""


class ProviderRateLimitError(ProviderError):
    """There were too many requests; `retry_after_s` is the wait that the server asks for, if any."""

    is_retryable = True

    def __init__(
        self,
        message: str,
        *,
        provider_id: str,
        retry_after_s: float | None = None,
        status: int | None = None,
        body: str = "",
    ) -> None:
        super().__init__(message, provider_id=provider_id, status=status, body=body)
        self.retry_after_s = retry_after_s


class ProviderTimeoutError(ProviderError):
    """There was no complete answer within the time limit."""

    is_retryable = True


class ProviderUnavailableError(ProviderError):
    """The server cannot be reached, closed the connection, or answered with a 5xx.

    `has_begun` says whether an answer had begun, which is paid for even though its end is missing.
    """

    is_retryable = True

    retry_after_s: float | None = None
    has_begun = False


class OfflineError(ProviderError):
    """Only the cache may answer, and it has no answer; no request was sent."""


class ProviderRequestError(ProviderError):
    """The server understood the request and refused it, and would refuse it again."""


class UnsupportedParameterError(ProviderRequestError):
    """The server refused one request parameter, named in `parameter` (for example `temperature` or `logprobs`)."""

    def __init__(self, message: str, *, parameter: str, provider_id: str, status: int, body: str) -> None:
        super().__init__(message, provider_id=provider_id, status=status, body=body)
        self.parameter = parameter


class ProviderResponseError(ProviderError):
    """The status is a success, but the body is not what the protocol promises."""

    is_retryable = True


class ProviderShapeError(ProviderResponseError):
    """An answer has the wrong shape because of the config or the user's code, so the next one would have it too."""

    is_retryable = False


class NotDoneError(GevalError):
    """There is no answer for now, which is not a failure: what needs it is left undone, without a result."""


class BudgetError(NotDoneError):
    """The run has reached its limit of cost or requests, so what needs this request is left undone."""


class StoppedError(NotDoneError):
    """The run was told to stop, so no more requests are sent."""


class PendingError(NotDoneError):
    """The request waits for a provider's batch; the same request is answered once the batch has ended."""


class ApiError(GevalError):
    """A model endpoint could not answer a user of the library; the original ProviderError is its `__cause__`.

    `status` is the HTTP status, or None if no answer came; `body` is an excerpt of the answer without keys.
    """

    def __init__(self, message: str, *, status: int | None, body: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.body = body


class MissingParamsError(GevalError):
    """A metric's `evaluation_params` name something that the test case does not have."""

    exit_code = ExitCode.USAGE

    def __init__(self, params: Sequence[str], *, location: Location | None = None, hint: str = "") -> None:
        self.params = tuple(params)
        names = ", ".join(self.params)
        hint = hint or "give the test case these fields, or leave them out of evaluation_params"
        super().__init__(f"the test case lacks {names}", hint=hint, location=location)


class JudgeError(GevalError):
    """The judge answered, but no verdict could be read; `raw_text` is the unchanged reply."""

    def __init__(self, message: str, *, raw_text: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.raw_text = raw_text


class JudgeParseError(JudgeError):
    """No score (or no steps) could be read from the reply."""


class JudgeRangeError(JudgeError):
    """The rating is outside the score range; it is not clamped, as that would hide a judge that ignores its scale."""


class ModelFetchError(GevalError):
    """A local model's file could not be fetched, or is not as expected; `model` is its short name."""

    def __init__(self, message: str, *, model: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.model = model


class CheckTimeoutError(GevalError):
    """A check took too long on one output, so it has no verdict."""


class UnjudgeableError(GevalError):
    """An assertion needs something that this output does not have: a price, token probabilities, tools."""


class CodeFailedError(GevalError):
    """Code that the config names raised, took too long, or returned nonsense; `detail` is its traceback, if any."""

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.detail = detail


class StoreError(GevalError):
    """The database at `path` cannot be read or written."""

    def __init__(self, message: str, *, path: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class OutputError(GevalError):
    """The results file at `path` cannot be written; the results themselves are still in the store."""

    def __init__(self, message: str, *, path: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class MachineLimitError(GevalError):
    """The machine, or this process's limit on it, has run out of a resource."""

    @classmethod
    def of(cls, error: BaseException) -> "MachineLimitError | None":
        """Return which resource ran out, from a Python error or its causes; None if it has another reason."""
        found: BaseException | None = error
        while found is not None:
            if isinstance(found, MemoryError) or getattr(found, "errno", None) == errno.ENOMEM:
                return cls(
                    "the memory is used up", hint="run with a lower -j, or raise the limit (`ulimit -v`)"
                )
            if isinstance(found, RuntimeError) and "can't start new thread" in str(found.args):
                return cls(
                    "no more threads can be started",
                    hint="raise the limit of processes (`ulimit -u`) or of memory (`ulimit -v`)",
                )
            if getattr(found, "errno", None) in {errno.EMFILE, errno.ENFILE}:
                return cls(
                    "too many files are open", hint="run with a lower -j, or raise the limit (`ulimit -n`)"
                )
            if getattr(found, "errno", None) in {errno.ENOSPC, errno.EDQUOT}:
                name = getattr(found, "filename", None)
                where = f" for {name}" if name else ""
                return cls(
                    f"no space left{where}", hint="free some space, or set TMPDIR to a folder with space"
                )
            found = found.__cause__ or found.__context__
        return None

"""Refusals of well-formed requests."""

from geval_cli.errors import ExitCode, GevalError


class RefusedError(GevalError):
    """The server will not do this. `status` is the HTTP status; `retry_after_s` says when to come again, if ever."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, status: int, hint: str, retry_after_s: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.retry_after_s = retry_after_s

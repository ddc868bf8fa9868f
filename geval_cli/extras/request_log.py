"""The request log, without prompts and answers: JSON Lines for programs, one short line per request for people."""

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.text import Text

from geval_cli.errors import OutputError
from geval_cli.events import ModelCalled, Noticed, RequestEnded, RunEvent, RunFinished, RunStarted
from geval_cli.numbers import format_duration, plural
from geval_cli.records import JsonValue, to_json
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import open_in_place, output_error
from geval_cli.report.sanitize import one_line
from geval_cli.store.home import restrict_to_owner

_OWNER_ONLY = 0o600
_LINE_WIDTH = 400
_USUAL_ENDS = frozenset({None, "stop"})


class RequestLogFile:
    """Appends a line of JSON for every request and model call of a run to a file that only its owner may read.

    If the disk fills up, the log ends but the run continues; `finish` reports it.

    Raises:
        OutputError: on entering the block, if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._problem: OutputError | None = None
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = open_in_place(self._path, flags, mode=_OWNER_ONLY)
            restrict_to_owner(self._path)  # an earlier run's log may be readable by others
            self._file = os.fdopen(descriptor, "a", buffering=1, encoding="utf-8", newline="\n")
        except OSError as error:
            raise output_error(self._path, error, advice="choose a writable file") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                # Every line was flushed, and `finish` reported a full disk.
                file.close()

    def listen(self, event: RunEvent) -> None:
        """Append a line if the event belongs in the log."""
        entry = _entry(event)
        if entry is None or self._file is None:
            return
        try:
            self._file.write(json_text(entry) + "\n")
        except OSError as error:
            self._problem = output_error(self._path, error)
            file, self._file = self._file, None
            with suppress(OSError):
                file.close()

    def finish(self, report: RunReport) -> None:
        """Report a failure to write at the end of a run; one log may hold several runs.

        Raises:
            OutputError: not everything could be written.
        """
        problem, self._problem = self._problem, None
        if problem is not None:
            raise OutputError(f"{problem.message}; the log ends there", path=problem.path, hint=problem.hint)


class RequestLines:
    """Prints a line for every request when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def listen(self, event: RunEvent) -> None:
        """Print a line if the event is the end of a request."""
        if isinstance(event, RequestEnded):
            style = "yellow" if event.error is not None else "dim"
            self._console.print(Text(one_line(_line(event), _LINE_WIDTH), style=style))


def _entry(event: RunEvent) -> dict[str, JsonValue] | None:
    match event:
        case RequestEnded():
            started = datetime.fromtimestamp(event.started_at, UTC).isoformat(timespec="milliseconds")
            fields = {**to_json(event), "started_at": started}
            del fields["detail"]  # may hold prompts and answers
            return {"event": "request", **_rounded(fields)}
        case ModelCalled():
            is_cached = 0 < event.usage.requests == event.usage.cached_requests and not event.failed
            return {"event": "call", **_rounded(to_json(event)), "cached": is_cached}
        case Noticed():
            return {"event": "notice", "message": event.message}
        case RunStarted():
            return {"event": "run_started", "run": event.run.id, "time": event.run.started_at}
        case RunFinished():
            return {
                "event": "run_finished",
                "run": event.run.id,
                "time": event.run.finished_at,
                "status": event.run.status.value,
            }
    return None


def _rounded(fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the fields with floats rounded to three decimals: microseconds, for durations in milliseconds."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}


def _line(event: RequestEnded) -> str:
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    head = f"request {event.call}{attempt}: {event.role.value} {event.provider_id}"
    took = format_duration(event.latency_ms)
    if event.error is not None:
        what = f"{event.error.type} after {took}: {event.error.message}"
    else:
        ends = [reason for reason in event.finish_reasons if reason not in _USUAL_ENDS]
        ended = f", ended by {', '.join(dict.fromkeys(map(str, ends)))}" if ends else ""
        usage = event.usage
        tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
        what = f"{plural(len(event.finish_reasons), 'answer')} in {took}, {tokens}{ended}"
    return f"{head}: {what}" + (f" ({event.request_id})" if event.request_id else "")

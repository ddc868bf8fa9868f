"""Conversations between users and an assistant: from a run, from a file with one per line, or from traces."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ConfigError, Location, Problem, UsageError
from geval_cli.extras.traces.importing import MOST_PROBLEMS, TraceReading, messages, read_traces
from geval_cli.json_codec import decode_json
from geval_cli.numbers import plural
from geval_cli.records import Turn
from geval_cli.runs.stored import is_results_file, open_report
from geval_cli.source.access import TRUSTED, open_regular
from geval_cli.source.files import open_problem
from geval_cli.source.json_source import read_json

_LISTS = ("turns", "messages", "conversation")
_ROLES = ("user", "assistant", "system", "developer", "tool", "human", "ai", "model", "function")
_FORM = 'write one conversation per line: {"turns": [{"role": "user", "content": "..."}, ...]}'
_LONGEST_LINE = 64 * 1024 * 1024
_OF_RESULTS = frozenset({"test_index", "assertions", "prompt", "provider"})


class Transcript(Struct, frozen=True):
    """A conversation; `cluster` is the same for conversations that are not independent, such as those of one test."""

    turns: tuple[Turn, ...]
    cluster: str

    @property
    def said(self) -> tuple[str, ...]:
        """Return the user's messages without empty ones."""
        return tuple(turn.content for turn in self.turns if turn.role == "user" and turn.content.strip())


class Transcripts(Struct, frozen=True):
    """Conversations from one source in which the user writes something.

    Attributes:
        name: of the source, for a sentence: `run X` or a path.
        silent: the number of other conversations without a user message.
        failed: the number of other conversations of a run that ended with an error.
        earlier: the number of other conversations that are beginnings of these, as in logs where each call repeats the
            earlier messages.
    """

    name: str
    transcripts: tuple[Transcript, ...]
    silent: int = 0
    earlier: int = 0
    failed: int = 0

    @property
    def clusters(self) -> int:
        return len({transcript.cluster for transcript in self.transcripts})


def read_transcripts(named: str, home: Path | None) -> Transcripts:
    """Return the conversations of a run (an id, `latest`, a results file), or in a .jsonl file of them or of traces.

    Raises:
        ConfigError: some lines cannot be used; it has their places.
        UsageError: there is no such run or file, or it has no user messages.
    """
    path = Path(named)
    if path.suffix.lower() == ".jsonl" and not _has_results(path):
        found = _of_file(path)
        hint = f"{_FORM}; traces are read too"
    elif path.is_file() and not is_results_file(named):
        raise UsageError(
            f"{named} is not a file of conversations",
            hint="use a .jsonl file with a conversation per line, or a run",
        )
    else:
        hint = "use a run whose tests have `turns`"
        with open_report(named, home, os.environ) as (report, _):
            # The conversations of a run; those of a test are one cluster.
            transcripts, failed = [], 0
            for result in report.results():
                if result.turns and result.error is None:
                    transcripts.append(Transcript(result.turns, result.test_key or str(result.test_index)))
                failed += bool(result.turns) and result.error is not None
            found = replace(_speaking(report.file or f"run {report.run.id}", transcripts), failed=failed)
    if not found.transcripts:
        raise UsageError(f"{found.name} has no conversation in which a user says something", hint=hint)
    return found


def _speaking(name: str, transcripts: Iterable[Transcript], *, earlier: int = 0) -> Transcripts:
    every = list(transcripts)
    heard = tuple(transcript for transcript in every if transcript.said)
    return Transcripts(name, heard, len(every) - len(heard), earlier)


def _has_results(path: Path) -> bool:
    """Return whether a file is a results file, judging by its first line; an unreadable file is not."""
    try:
        with open_regular(path, TRUSTED) as stream:
            line = stream.readline(_LONGEST_LINE)
        value = decode_json(line)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and (value.keys() == {"test"} or value.keys() >= _OF_RESULTS)


def _of_file(path: Path) -> Transcripts:
    """Return the conversations in a file: one per line, or if its first line is not a conversation, from traces."""
    lines = _lines(path)
    first = next(lines, None)
    if first is not None and _is_trace(first[1]):
        return _of_traces(path)
    problems: list[Problem] = []
    transcripts, bad = [], 0
    for number, line in _lines(path):
        try:
            transcripts.append(Transcript(_turns_of(line, str(path), number), str(number)))
        except ConfigError as error:
            bad += 1
            problems += error.problems if bad <= MOST_PROBLEMS else ()
    if bad > MOST_PROBLEMS:
        problems.append(Problem(f"{plural(bad - MOST_PROBLEMS, 'more line')} cannot be used"))
    if problems:
        raise ConfigError(problems)
    return _speaking(str(path), transcripts)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines of a file with their numbers; lines that are too long are cut."""
    try:
        with open_regular(path, TRUSTED) as stream:
            number = 0
            while line := stream.readline(_LONGEST_LINE + 1):
                number += 1
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                rest = line
                while len(rest) > _LONGEST_LINE and not rest.endswith(b"\n"):
                    rest = stream.readline(_LONGEST_LINE + 1)
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError([open_problem(path, error, None)]) from error


def _is_trace(line: bytes) -> bool:
    try:
        value = decode_json(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not any(name in value for name in _LISTS)


def _of_traces(path: Path) -> Transcripts:
    """Return the conversations in traces or logs: each from its last call, with the answer to it."""
    reading = TraceReading()
    found: dict[tuple[str, ...], Transcript] = {}
    for number, answer in enumerate(read_traces(path, reading), start=1):
        told = [*answer.turns, answer.answer]
        transcript = Transcript(tuple(Turn(turn.role, turn.content) for turn in told), str(number))
        found[transcript.said] = transcript
    if reading.bad:
        if all("expected keys" in problem.message for problem in reading.problems):
            hint = f"{_FORM}; or use traces that `geval import traces` reads"
            problems = [
                Problem("this line is not a conversation", item.location, hint) for item in reading.problems
            ]
            raise ConfigError(problems)
        raise ConfigError(reading.problems)
    begun = {said[:length] for said in found for length in range(len(said))}
    whole = [transcript for said, transcript in found.items() if said not in begun or not said]
    return _speaking(str(path), whole, earlier=len(found) - len(whole))


def _turns_of(line: bytes, file: str, number: int) -> tuple[Turn, ...]:
    """Return the turns of the conversation on a line.

    Raises:
        ConfigError: the line is not a conversation; it has the place.
    """
    place = Location(file, number, 1, length=0)

    def refuse(what: str, hint: str = _FORM) -> ConfigError:
        return ConfigError([Problem(what, place, hint)])

    if len(line) > _LONGEST_LINE:
        raise refuse(f"this line is longer than {_LONGEST_LINE >> 20} MiB", "leave out what is no message")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise refuse(f"this line is not UTF-8 (byte {error.start + 1})", "save the file as UTF-8") from error
    try:
        value: Any = decode_json(line)
    except (ValueError, RecursionError):
        value = read_json(text.rstrip("\r\n"), file, first_line=number).value  # it says where and why
    if not isinstance(value, dict):
        raise refuse("a conversation must be a JSON object")
    name = next((name for name in _LISTS if name in value), None)
    if name is None:
        raise refuse("this line has no `turns`")
    if not isinstance(value[name], list):
        raise refuse(f"`{name}` is not a list")
    for position, item in enumerate(value[name], start=1):
        if not isinstance(item, dict):
            raise refuse(f"turn {position} is not an object with `role` and `content`")
        role = item.get("role")
        if role not in _ROLES:
            wrong = f"has the role `{role}`" if isinstance(role, str) else "has no role"
            raise refuse(f"turn {position} {wrong}", f"use one of: {', '.join(_ROLES[:5])}")
        if "content" not in item and "tool_calls" not in item and "parts" not in item:
            raise refuse(f"turn {position} has no `content`")
    return tuple(Turn(turn.role, turn.content) for turn in messages(value[name]))

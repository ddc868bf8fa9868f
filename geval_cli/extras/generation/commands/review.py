"""`geval review`: a person accepts, edits or drops tests with single keys; only accepted tests are written."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from geval_cli.cli.keyboard import Keyboard, go_through, is_terminal, keyboard
from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.generation.options import ReviewOptions
from geval_cli.extras.generation.reviewing import Decision, Review, ReviewDecision, Row, Sources, open_review
from geval_cli.numbers import plural
from geval_cli.records import JsonValue
from geval_cli.report.console import is_unicode, make_console, print_hanging
from geval_cli.report.report import check_output_path
from geval_cli.report.sanitize import clipped_lines, one_line, quoted, sanitized_lines, value_text

_LINES, _CHARACTERS = 20, 2_000
_AROUND = 240
_KEYS = " a accept   e edit   d drop   s skip   b back   m more   q quit"
_NAMES = {
    "input": "question",
    "expected_output": "expected output",
    "retrieval_context": "retrieval context",
    "expected_outcome": "expected outcome",
}
_SAID = {Decision.ACCEPT: "accepted", Decision.DROP: "dropped"}


def run_review(tests: Path, given: ReviewOptions) -> None:
    """Review a file of tests at a terminal.

    Raises:
        UsageError: there is no terminal, or a file would be replaced.
        ConfigError: the tests or the decisions cannot be read.
        OutputError: a file cannot be written.
    """
    review = open_review(tests)
    output = given.output or tests.with_suffix(".accepted.jsonl")
    if output.suffix.lower() != ".jsonl":
        raise UsageError(f"tests cannot be written to {output}", hint="use a name that ends in .jsonl")
    review.check_may_write(output, may_replace=given.may_replace)
    for path in (output, review.state):
        if (problem := check_output_path(path)) is not None:
            raise ConfigError([problem])
    if not is_terminal():
        hint = f"or edit {one_line(str(tests), 100)} in a text editor: it has one test per line"
        raise UsageError("geval review needs a terminal", hint=hint)
    console = make_console(sys.stdout, environ=os.environ)
    left = review.count(None)
    if left < len(review.rows):
        console.print(
            Text(f" {len(review.rows) - left:,} of {plural(len(review.rows), 'test')} decided before")
        )
    try:
        with keyboard() as keys:
            _Reviewer(review, keys, console).run()
    except EOFError:
        pass
    except KeyboardInterrupt:
        _finish(review, output, given, console)
        raise
    _finish(review, output, given, console)


def _finish(review: Review, output: Path, given: ReviewOptions, console: Console) -> None:
    """Write the accepted tests, and print the progress of the review."""
    count = review.write_accepted(output)
    left = review.count(None)
    dropped = review.count(Decision.DROP)
    console.print()
    more = f", {left:,} not decided" if left else ""
    console.print(Text(f" {count:,} accepted, {dropped:,} dropped{more}"))
    if count:
        console.print(Text(f" wrote {plural(count, 'test')} to {one_line(str(output), 200)}"), soft_wrap=True)
    if left:
        words = ["geval review", quoted(str(review.path))]
        words += ["-o", quoted(str(output))] if given.output is not None else []
        console.print(Text(f" {' '.join(words)}  continues where you stopped"), soft_wrap=True)
    elif count:
        console.print(
            Text(f" next: add `tests: file://{one_line(output.name, 100)}` to a config"), soft_wrap=True
        )
    if not left:
        console.print(Text(f" remove {one_line(str(review.state), 200)} to begin again"), soft_wrap=True)


class _Reviewer:
    """One person at one terminal. Each decision is on disk before the next test is shown."""

    def __init__(self, review: Review, keys: Keyboard, console: Console) -> None:
        self._review, self._keys, self._console = review, keys, console
        self._sources = Sources()

    def run(self) -> None:
        """Go through the undecided tests; `back` returns to those shown before."""
        rows, find = self._review.rows, self._review.find
        go_through(
            len(rows),
            lambda place: find(rows[place]) is not None,
            lambda place: self._ask(rows[place], place),
        )

    def _ask(self, row: Row, place: int) -> str:
        """Show one test and return what to do then: `next`, `back` or `quit`."""
        before = self._review.find(row)
        shown = row if before is None or before.row is None else before.row
        self._show(shown, place, before)
        while True:
            key = self._keys.key()
            if key in ("q", "b", "s"):
                return {"q": "quit", "b": "back", "s": "next"}[key]
            if key == "e":
                shown = self._edit(shown)
                self._show(shown, place, None)
            elif key == "m":
                for name, value in shown.items():
                    self._console.print(Text(f" {one_line(name, 60)}", style="dim"))
                    for line in sanitized_lines(value_text(value)):
                        print_hanging(Text(""), Text(line), self._console, indent=3)
            elif key in ("?", "h"):
                self._console.print(Text(_KEYS, style="bold"), soft_wrap=True)
            elif key in ("a", "d"):
                decision = Decision.ACCEPT if key == "a" else Decision.DROP
                self._review.keep(row, ReviewDecision(decision, None if shown == row else shown))
                self._console.print(Text(f" {_SAID[decision]}", style="bold"))
                return "next"

    def _edit(self, row: Row) -> Row:
        """Return the test with the texts that the person types; an empty line keeps a text unchanged."""
        changed = dict(row)
        names = [name for name in ("input", "expected_output") if isinstance(row.get(name, ""), str)]
        variables = {name: text for name, text in _mapping(row, "vars").items() if isinstance(text, str)}
        for name in names:
            if name == "input" and name not in row and variables:
                continue
            if text := self._typed(_NAMES[name]):
                changed[name] = text
        for name in variables:
            if text := self._typed(f"variable {one_line(name, 40)}"):
                variables[name] = text
        if variables:
            changed["vars"] = {**_mapping(row, "vars"), **variables}
        return changed

    def _typed(self, what: str) -> str:
        self._console.print(Text(f" {what} (Enter keeps it): "), end="")
        self._console.file.flush()
        return self._keys.line().strip()

    def _show(self, row: Row, place: int, before: ReviewDecision | None) -> None:
        console = self._console
        metadata = _mapping(row, "metadata")
        console.print()
        console.rule(style="dim")
        kind = one_line(value_text(metadata.get("kind", "")), 40)
        console.print(
            Text(
                f" {place + 1:,} of {len(self._review.rows):,}   {kind}   {origin_of(metadata)}".rstrip(),
                style="bold",
            )
        )
        if row.get("description"):
            console.print(Text(f" {one_line(value_text(row['description']), 200)}"))
        for name, value in _mapping(row, "vars").items():
            self._block(one_line(name, 40), value)
        for name, title in _NAMES.items():
            if row.get(name) is not None:
                self._block(title, row[name])
        if metadata.get("premise"):
            self._block("false premise", metadata["premise"])
        quotations = metadata.get("quotations")
        for item in quotations if isinstance(quotations, list) else ():
            if isinstance(item, dict):
                text, source, line = (value_text(item.get(name, "")) for name in ("text", "source", "line"))
                around = self._sources.around(
                    source, int(line) if re.fullmatch("[0-9]{1,9}", line) else 0, text, _AROUND
                )
                gone = "" if around.is_found else "   (the document is not here, or has changed)"
                self._console.print(
                    Text(f" quotation   {one_line(source, 100)}:{one_line(line, 12)}{gone}", style="dim")
                )
                marks = ("»", "«") if is_unicode(self._console) else (">>", "<<")
                # Sanitized in three parts, so that no mark of the document is taken for one of ours.
                body = Text()
                if around.before:
                    body.append(f"{one_line(_from_word(around.before), 4 * _AROUND)} ")
                body.append(f"{marks[0]}{one_line(around.text, 4_000)}{marks[1]}", style="bold")
                if around.after:
                    body.append(f" {one_line(_to_word(around.after), 4 * _AROUND)}")
                print_hanging(Text(""), body, self._console, indent=3)
        if not quotations and row.get("context") is not None:
            self._block("context", row["context"])
        if metadata.get("unanswered"):
            self._block("no answer in the document", metadata["unanswered"])
        if metadata.get("answered") is not None:
            self._block("answer at the time", metadata["answered"])
        outputs = metadata.get("outputs")
        for item in outputs if isinstance(outputs, list) else ():
            if isinstance(item, dict):
                column, status, reason = (
                    one_line(value_text(item.get(name, "")), 300) for name in ("column", "status", "reason")
                )
                self._block(f"output   {column}   {status}: {reason}", item.get("output"))
        if metadata.get("decide"):
            self._block("to decide", metadata["decide"])
        if before is not None:
            console.print(Text(f" you {_SAID[before.decision]} it before; s keeps that"))
        console.print(Text(_KEYS, style="bold"), soft_wrap=True)

    def _block(self, title: str, value: JsonValue) -> None:
        self._console.print(Text(f" {title}", style="dim"))
        text = "\n".join(map(value_text, value)) if isinstance(value, list) else value_text(value)
        for line in clipped_lines(text, line_count=_LINES, character_count=_CHARACTERS):
            print_hanging(Text(""), Text(line), self._console, indent=3)


def origin_of(metadata: Mapping[str, JsonValue]) -> str:
    """Return the origin of a test in a few words."""
    text = {name: one_line(value_text(metadata[name]), 80) for name in metadata if metadata[name] is not None}
    if "source" in text:
        return f"{text['source']}:{text.get('line', '')}".rstrip(":")
    if "run" in text:
        return f"run {text['run']} {text.get('case', '')}".rstrip()
    if "group" in text:
        size = text.get("group_size", "?")
        return f"group {text['group']} of {size} traces: {text.get('group_words', '')}"
    return text.get("trace_id", "")


def _mapping(row: Mapping[str, JsonValue], name: str) -> Mapping[str, JsonValue]:
    found = row.get(name)
    return found if isinstance(found, dict) else {}


def _from_word(text: str) -> str:
    return text.partition(" ")[2] if len(text) >= _AROUND else text


def _to_word(text: str) -> str:
    return text.rpartition(" ")[0] if len(text) >= _AROUND else text

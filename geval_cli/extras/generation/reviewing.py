"""The review of a file of tests: its rows, the decisions in a file beside it, and the accepted tests."""

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field

from geval_cli.errors import ConfigError, Location, Problem, UsageError
from geval_cli.extras.generation.documents import FoldedText, FoundSpan, SourceDocument, documents_in
from geval_cli.extras.traces.importing import line_of
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.records import JsonValue
from geval_cli.report.safe_file import SafeFile
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import MAX_CONFIG_BYTES, read_text

Row = Mapping[str, JsonValue]


class Decision(StrEnum):
    """The decisions about a test."""

    ACCEPT = "accept"
    DROP = "drop"


class ReviewDecision(Struct, frozen=True):
    """A decision; `row` is the test as edited by the person, None if it was not edited."""

    decision: Decision
    row: Row | None = None


class Review(Struct):
    """The tests of a file, and the decisions about them.

    The decisions are in a file beside the tests, under the content of each test: a test that changes is undecided
    again.
    """

    path: Path
    rows: Sequence[Row]
    lines: Sequence[str]
    decided: dict[str, ReviewDecision] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files that this review has written, by name."""

    @property
    def state(self) -> Path:
        """Return the file with the decisions."""
        return self.path.with_suffix(".review.jsonl")

    def find(self, row: Row) -> ReviewDecision | None:
        """Return the decision about a test."""
        return self.decided.get(key_of(row))

    def keep(self, row: Row, decided: ReviewDecision) -> None:
        """Store a decision. Returns when it is on disk."""
        self._read_state()  # the same file may be under review at another terminal
        self.decided[key_of(row)] = decided
        self._write_state()

    def count(self, decision: Decision | None) -> int:
        """Return the number of tests with this decision; None stands for undecided."""
        found = map(self.find, self.rows)
        return sum((None if item is None else item.decision) is decision for item in found)

    def accepted(self) -> list[str]:
        """Return the lines of the accepted tests in the order of the file, with their edits."""
        return [
            line if found.row is None else line_of(found.row)
            for row, line in zip(self.rows, self.lines, strict=True)
            if (found := self.find(row)) is not None and found.decision is Decision.ACCEPT
        ]

    def check_may_write(self, output: Path, *, may_replace: bool) -> None:
        """Raise UsageError if this would replace a file that differs from what this review wrote."""
        if output.resolve() == self.path.resolve():
            raise UsageError(f"{output} is under review", hint="write the accepted tests to another file")
        if output.resolve() == self.state.resolve():
            what = f"{output} is the file of this review's decisions"
            raise UsageError(what, hint="write the accepted tests to another file")
        if output.exists() and not may_replace and self.written.get(str(output)) != _digest_of(output):
            hint = "choose another file with -o, or add --force"
            raise UsageError(f"{output} already exists and was not changed", hint=hint)

    def write_accepted(self, output: Path) -> int:
        """Write the accepted tests, and return their number."""
        lines = self.accepted()
        if lines or output.exists():
            with SafeFile(output) as file:
                for line in lines:
                    file.write(line)
            self.written[str(output)] = _digest_of(output)
            self._write_state()
        return len(lines)

    def _read_state(self) -> None:
        if not self.state.exists():
            return
        for number, item, _ in _rows_of(self.state):
            try:
                if "output" in item:
                    self.written[item["output"]] = item["sha256"]
                else:
                    self.decided[item["test"]] = ReviewDecision(Decision(item["decision"]), item.get("row"))
            except (KeyError, TypeError, ValueError) as error:
                place = Location(str(self.state), number, 1, length=0)
                hint = f"remove {self.state} to begin the review again"
                raise ConfigError([Problem("this line is no decision of a review", place, hint)]) from error

    def _write_state(self) -> None:
        with SafeFile(self.state) as file:
            for name, digest in sorted(self.written.items()):
                file.write(encode_json({"output": name, "sha256": digest}).decode() + "\n")
            for key, decided in self.decided.items():
                changed = {} if decided.row is None else {"row": decided.row}
                line = {"test": key, "decision": str(decided.decision), **changed}
                file.write(encode_json(line).decode() + "\n")


def open_review(path: Path) -> Review:
    """Return the review of a file of tests, with the earlier decisions.

    Raises:
        ConfigError: the file cannot be read, or a line is not a test.
        UsageError: the file has no tests.
    """
    if path.suffix.lower() not in {".jsonl", ".ndjson"}:
        raise UsageError(f"{path} cannot be reviewed", hint="use a .jsonl file, one test per line")
    found = _rows_of(path)
    if not found:
        raise UsageError(f"there is no test in {path}", hint="write some with `geval generate tests`")
    review = Review(path, [row for _, row, _ in found], [line for _, _, line in found])
    review._read_state()
    return review


def _rows_of(path: Path) -> list[tuple[int, dict[str, JsonValue], str]]:
    rows, problems = [], []
    for number, line in enumerate(read_text(path, TRUSTED, max_bytes=MAX_CONFIG_BYTES).split("\n"), start=1):
        if not line.strip():
            continue
        place = Location(str(path), number, 1, length=0)
        try:
            row = decode_json(line)
        except ValueError:
            problems.append(Problem("this line is not JSON", place, "write one object per line"))
            continue
        if isinstance(row, dict):
            rows.append((number, row, line.rstrip("\r") + "\n"))
        else:
            problems.append(Problem("this line is not a JSON object", place, "write one object per line"))
    if problems:
        raise ConfigError(problems)
    return rows


def key_of(row: Row) -> str:
    """Return a hash of a test's content."""
    return hashlib.sha256(encode_json(sorted(row.items()))).hexdigest()[:24]


def _digest_of(path: Path) -> str:
    return hashlib.sha256(read_text(path, TRUSTED, max_bytes=MAX_CONFIG_BYTES).encode()).hexdigest()


class QuotationContext(Struct, frozen=True):
    """A quotation with the text around it in its document, if it is still found there."""

    before: str
    text: str
    after: str
    is_found: bool = True


class Sources:
    """The documents that quotations come from; each is read once."""

    def __init__(self) -> None:
        self._texts: dict[str, list[SourceDocument]] = {}

    def around(self, source: str, line: int, text: str, characters: int) -> QuotationContext:
        """Return a quotation with `characters` characters before and after it."""
        if source not in self._texts:
            try:
                self._texts[source] = [*documents_in(Path(source), None, joins_columns=True)]
            except (ConfigError, ValueError):  # a name with a zero byte is a ValueError
                self._texts[source] = []
        for document in self._texts[source]:
            if document.row not in {0, line}:
                continue
            start = first = document.text.find(text)
            while start >= 0 and document.line_at(start) != line:
                start = document.text.find(text, start + 1)
            start = max(start, first)  # on another line, where lines were added
            if start < 0:
                span = FoldedText(document.text).find(text, 1)
                if not isinstance(span, FoundSpan):
                    continue
                start = span.start
            end = start + len(text)
            return QuotationContext(
                document.text[max(0, start - characters) : start], text, document.text[end : end + characters]
            )
        return QuotationContext("", text, "", is_found=False)

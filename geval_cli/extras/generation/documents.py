"""Documents that tests are generated from: read, and cut into passages that one request can show."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field

from geval_cli.errors import ConfigError, Location, Problem, UsageError
from geval_cli.json_codec import decode_json
from geval_cli.numbers import plural
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import MAX_CONFIG_BYTES, PDF_SUFFIX, SourceFiles, matching_names, read_text
from geval_cli.version import install_hint

PASSAGE_CHARACTERS = 4_000

_TEXTS = frozenset({".txt", ".text", ".md", ".markdown", ".rst", PDF_SUFFIX})
_LINES = frozenset({".jsonl", ".ndjson"})
_KNOWN = f"geval reads .txt, .md, .rst, .jsonl and .pdf (for .pdf, install pypdf {install_hint('pdf')})"
_TEXT_COLUMNS = ("text", "content", "document", "source", "body", "passage", "page_content")
_SENTENCE_END = re.compile(r"[.!?][^\w\s]*\s|[\u3002\uff01\uff1f]")


class SourceDocument(Struct, frozen=True):
    """A text to ask about. `row` is its line in a .jsonl file, 0 for a whole file."""

    source: str
    text: str
    row: int = 0

    @property
    def name(self) -> str:
        return f"{self.source}:{self.row}" if self.row else self.source

    def line_at(self, offset: int) -> int:
        """Return the line of the file that a place in the text is on."""
        return self.row or self.text.count("\n", 0, offset) + 1


class Passage(Struct, frozen=True):
    """A piece of a document."""

    document: SourceDocument
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.document.text[self.start : self.end]

    @property
    def key(self) -> tuple[int, int]:
        """Return a name for it among the passages of all documents that are held."""
        return id(self.document), self.start


class DocumentReading(Struct):
    """The documents, and counts of the rest: files by ending, empty and repeated texts, and files with a problem."""

    documents: list[SourceDocument] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    repeated: int = 0
    outside: int = 0
    problems: list[Problem] = field(default_factory=list)

    def left_out(self) -> list[str]:
        """Return a sentence for each reason why something was not read."""
        found = []
        if self.unknown:
            kinds = ", ".join(f"{count:,} {ending}" for ending, count in sorted(self.unknown.items()))
            found.append(f"not read: {kinds}; convert them to text or Markdown ({_KNOWN})")
        if self.problems:
            found.append(f"{plural(len(self.problems), 'file')} could not be read")
        if self.empty:
            found.append(f"{plural(self.empty, 'document')} without text skipped")
        if self.outside:
            links = plural(self.outside, "link")
            found.append(f"{links} to files outside the folder skipped; name such a file with --from")
        if self.repeated:
            found.append(f"{plural(self.repeated, 'document')} skipped: same text as another")
        return found


def read_documents(
    paths: Sequence[Path], text_column: str | None = None, output: Path | None = None
) -> DocumentReading:
    """Return the documents that these files and the visible files of these folders hold, in the order of their names.

    The `output` of an earlier time is no document, though it may be in such a folder.

    Raises:
        ConfigError: a file that was named cannot be read; of a folder's files, all others are read.
        UsageError: there is no text in any of them.
    """
    reading, seen = DocumentReading(), set[str]()
    for path in paths:
        if not path.is_dir():
            if path.suffix.lower() not in _TEXTS | _LINES and path.exists():
                raise UsageError(f"{path} is not a kind of document that geval reads", hint=_KNOWN)
            for document in documents_in(path, text_column):
                _take(document, reading, seen)
            continue
        for file in [path / name for name in sorted(matching_names("**", path)) if (path / name).is_file()]:
            if output is not None and output.exists() and file.samefile(output):
                continue
            if not file.resolve().is_relative_to(path.resolve()):
                reading.outside += 1  # a document may be a stranger's, and what it links to goes to a model
                continue
            ending = file.suffix.lower()
            if ending not in _TEXTS | _LINES:
                reading.unknown[ending or "without an ending"] += 1
                continue
            try:
                found = [*documents_in(file, text_column)]
            except ConfigError as error:
                reading.problems += error.problems
                continue
            for document in found:
                _take(document, reading, seen)
    if not reading.documents:
        named = ", ".join(map(str, paths))
        raise UsageError(
            f"there is no document in {named}", hint="; ".join(reading.left_out()) or f"add some: {_KNOWN}"
        )
    return reading


def _take(document: SourceDocument, reading: DocumentReading, seen: set[str]) -> None:
    words = " ".join(document.text.split())
    digest = hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()
    if not words:
        reading.empty += 1
    elif digest in seen:
        reading.repeated += 1
    else:
        seen.add(digest)
        reading.documents.append(document)


def documents_in(
    path: Path, text_column: str | None, *, joins_columns: bool = False
) -> Iterator[SourceDocument]:
    """Yield the documents of a file; those of a .jsonl file are one column, or all columns that have a text.

    Raises:
        ConfigError: it cannot be read.
    """
    source = path.as_posix()
    if path.suffix.lower() not in _LINES:
        text = SourceFiles(Path(), TRUSTED).text_at(path, None)
        if "\0" in text:
            raise ConfigError([Problem(f"`{path}` is not text: it has zero bytes", hint=_KNOWN)])
        yield SourceDocument(source, text)
        return
    column = text_column
    lines = read_text(path, TRUSTED, max_bytes=MAX_CONFIG_BYTES).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = Location(str(path), number, 1, length=0)
        try:
            row = decode_json(line)
        except ValueError as error:
            raise ConfigError(
                [Problem("this line is not JSON", place, "write one object per line")]
            ) from error
        if not isinstance(row, dict):
            raise ConfigError([Problem("this line is not a JSON object", place, "write one object per line")])
        if joins_columns:
            yield SourceDocument(
                source, "\n\n".join(item for item in row.values() if isinstance(item, str)), number
            )
            continue
        column = column or next((name for name in _TEXT_COLUMNS if isinstance(row.get(name), str)), None)
        if column is None or not isinstance(row.get(column, ""), str):
            texts = ", ".join(name for name, value in row.items() if isinstance(value, str)) or "none"
            what = "no column is known to hold the text" if column is None else f"`{column}` is not a text"
            hint = f"name the column with --text-column; columns with text: {texts}"
            raise ConfigError([Problem(what, place, hint)])
        yield SourceDocument(source, row.get(column, ""), number)


def passages_of(document: SourceDocument, most_characters: int = PASSAGE_CHARACTERS) -> list[Passage]:
    """Return the document cut between paragraphs, else between sentences, else between words."""
    text, start = document.text, 0
    found = []
    while start < len(text):
        end = min(start + most_characters, len(text))
        if end < len(text):
            end = _cut(text, start + most_characters // 2, end)
        if text[start:end].strip():
            found.append(Passage(document, start, end))
        start = end
    return found


def _cut(text: str, least: int, most: int) -> int:
    """Return the best place between two others to cut a text at."""
    paragraph = text.rfind("\n\n", least, most)
    if paragraph >= 0:
        return paragraph + 2
    sentences = [match.end() for match in _SENTENCE_END.finditer(text, least, most)]
    if sentences:
        return sentences[-1]
    spaces = [match.end() for match in re.finditer(r"\s", text[least:most])]
    return least + spaces[-1] if spaces else most

"""The documents that tests are generated from: cut into passages for requests, and searched for quotations."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field

from geval_cli.errors import ConfigError, Location, Problem, UsageError
from geval_cli.json_codec import decode_json
from geval_cli.numbers import plural
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import MAX_CONFIG_BYTES, PDF_SUFFIX, SourceFiles, matching_names, read_text
from geval_cli.version import install_hint

LEAST_WORDS, MOST_WORDS = 5, 120

_QUOTES = frozenset("\"'`\u00b4\u2032\u2033\u201a\u201b\u201e\u201f")
_HYPHENS = frozenset("-\u2010\u2011\u2212")
_EDGES = " '.,;:!?()[]{}"
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x2E80, 0x9FFF),
    (0xAC00, 0xD7AF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
"""Scripts without spaces between words, or with particles joined to them."""
_JAMO = range(0x1160, 0x1200)
_AROUND = 30
_BEGUN_NUMBER = re.compile(r"\d[^\w\s]$|[-+]$|[<>≤≥±~≈≠] ?$|(?:^|\W)\.$|\d - $")
_REST_OF_NUMBER = re.compile(
    r"[^\w\s(\[]\d|-\w| - \d| ?[\u00d7^%‰°]| \d+/\d| (?:hundred|thousand|(?:m|b|tr)illion|per ?cent)(?!\w)"
)
_BEGUN_GROUP, _GROUP = re.compile(r"(?<!\d)\d{1,3}(?: \d{3})* $"), re.compile(r"\d{3}(?!\d)")
"""The digits before a space that separates thousands, and those after it."""
_BEGUN_WORD = re.compile(r"[^\W\d_](?:[*]+|[')\]}]|</?\w{1,20}>)$")
_REST_OF_WORD = re.compile(r"(?:'|[*]+|</?\w{1,20}>)[^\W\d_]")
_LINK = re.compile(r"(?<!\!)(\[)[^\]\n]{1,500}(\]\([^)\s]{0,2000}\))")


class FoundSpan(Struct, frozen=True):
    """The place of a quotation in a text."""

    start: int
    end: int


class QuotationFault(StrEnum):
    """The reason why a quotation does not count."""

    ABSENT = "their quotation is not in the document"
    JOINED = "their quotation joins two places with an ellipsis"
    SHORT = "their quotation is too short"
    LONG = "their quotation is too long"


class FoldedText:
    """A text normalised for finding quotations, with the original position of each character."""

    def __init__(self, text: str) -> None:
        ignored = {
            place for link in _LINK.finditer(text) for group in (1, 2) for place in range(*link.span(group))
        }
        characters = _without_hyphens(_joined(_without_emphasis([*_characters(text, ignored)])))
        self.text = "".join(character for character, _, _ in characters)
        self._spans = [(start, end) for _, start, end in characters]

    def find(self, quotation: str, least_words: int = LEAST_WORDS) -> FoundSpan | QuotationFault:
        """Return the first occurrence of a quotation, or the reason why it does not count."""
        sought = FoldedText(quotation).text.lstrip(" '")
        if not re.match(r"[-.]\d", sought):
            sought = sought.lstrip(f"-{_EDGES}")
        sought = sought.rstrip(f"-{_EDGES}")
        words = count_words(sought)
        if words < least_words:
            return QuotationFault.SHORT
        if words > MOST_WORDS:
            return QuotationFault.LONG
        start = self.text.find(sought)
        while start >= 0:
            end = start + len(sought)
            if not (_begins_inside(self.text, start) or _ends_inside(self.text, end)):
                return FoundSpan(self._spans[start][0], self._spans[end - 1][1])
            start = self.text.find(sought, start + 1)
        return QuotationFault.JOINED if ".." in sought else QuotationFault.ABSENT


def count_words(text: str) -> int:
    """Return the number of words; in scripts without spaces, two characters count as a word."""
    unspaced = sum(map(_is_unspaced, text))
    spaced = re.findall(r"\w+", "".join(" " if _is_unspaced(item) else item for item in text))
    return len(spaced) + unspaced // 2


_Character = tuple[str, int, int]
"""A folded character, and the start and end of what it stands for."""


def _characters(text: str, ignored: set[int]) -> Iterator[_Character]:
    place = 0
    while place < len(text):
        start, first = place, text[place]
        place += 1
        while place < len(text) and not text[place].isascii() and _is_attached(text[place]):
            place += 1
        if start in ignored:
            continue
        if first.isascii() and place == start + 1:
            yield from _folded(first.lower(), start, place)
            continue
        kind = unicodedata.category(first)
        if kind in {"Cf", "Cc"} and not first.isspace():
            continue
        if first in _QUOTES or kind in {"Pi", "Pf"}:  # before NFKC, which makes two of `″`
            yield "'", start, place
            continue
        # A raised or Roman number is not the number: 10² is not 102.
        written = text[start:place]
        if kind in {"No", "Nl"}:
            written = unicodedata.normalize("NFC", written)
        else:
            written = unicodedata.normalize("NFKC", written)
        yield from _folded(written.casefold(), start, place)


def _folded(characters: str, start: int, end: int) -> Iterator[_Character]:
    for character in characters:
        if character in _QUOTES or unicodedata.category(character) in {"Pi", "Pf"}:
            yield "'", start, end
        elif character in _HYPHENS:
            yield "-", start, end
        elif character in "\u2012\u2013":
            yield "\u2013", start, end
        elif unicodedata.category(character) == "Pd":
            yield "—", start, end
        elif character.isspace():
            yield "\n" if character == "\n" else " ", start, end
        else:
            yield character, start, end


def _is_attached(character: str) -> bool:
    return unicodedata.combining(character) > 0 or ord(character) in _JAMO or character in "\ufe0e\ufe0f"


def _without_emphasis(characters: list[_Character]) -> list[_Character]:
    """Remove `*` and `_`, except inside a word or a product."""
    found, place = [], 0
    while place < len(characters):
        mark = characters[place][0]
        if mark not in "*_":
            found.append(characters[place])
            place += 1
            continue
        end = place
        while end < len(characters) and characters[end][0] == mark:
            end += 1
        is_inside = bool(found) and found[-1][0].isalnum() and end < len(characters)
        if is_inside and characters[end][0].isalnum():
            found += characters[place:end]
        place = end
    return found


def _joined(characters: list[_Character]) -> list[_Character]:
    """Merge consecutive spaces, quotation marks or dashes into one; a space with a line break stays a line break."""
    found: list[_Character] = []
    for character, start, end in characters:
        before = found[-1][0] if found else ""
        if character in " \n" and before in {" ", "\n"}:
            found[-1] = ("\n" if "\n" in (character, before) else " ", found[-1][1], end)
        elif character in "'-\u2013—" and before == character:
            found[-1] = ("'" if character == "'" else "—", found[-1][1], end)
        else:
            found.append((character, start, end))
    return found


def _without_hyphens(characters: list[_Character]) -> list[_Character]:
    """Remove hyphens between letters, also before a line break, and put spaces around dashes."""
    found: list[_Character] = []
    place = 0
    while place < len(characters):
        character, start, end = characters[place]
        before = found[-1][0] if found else " "
        place += 1
        behind = characters[place][0] if place < len(characters) else " "
        if character in "-\u2013" and before.isalpha():
            next_line = place + (behind == "\n" and character == "-")
            if next_line < len(characters) and characters[next_line][0].isalpha():
                place = next_line
                continue
        is_of_number = behind.isdigit() and (before.isdigit() or (character == "\u2013" and before in " \n("))
        if character in "\u2013—" and not is_of_number:
            found += [(" ", start, end)] * (before != " ")
            found.append(("-", start, end))
            found += [(" ", start, end)] * (behind not in " \n")
        else:
            found.append(({"\n": " ", "—": "-", "\u2013": "-"}.get(character, character), start, end))
    return found


def _is_unspaced(character: str) -> bool:
    code = ord(character)
    return code >= _UNSPACED[0][0] and any(low <= code <= high for low, high in _UNSPACED)


def _is_one_word(first: str, second: str) -> bool:
    """Return whether two consecutive characters belong to the same word or number."""
    if _is_unspaced(first) or _is_unspaced(second):
        return all(unicodedata.numeric(item, None) is not None for item in (first, second))
    # Vowel signs are marks, not letters: an Indic word goes on behind them.
    return all(
        item.isalnum() or item == "_" or unicodedata.category(item)[0] == "M" for item in (first, second)
    )


def _begins_inside(text: str, start: int) -> bool:
    """Return whether a position is inside a word or a number, or after a number's sign."""
    if start == 0:
        return False
    if _is_one_word(text[start - 1], text[start]):
        return True
    before = text[max(0, start - _AROUND) : start]
    rest = text[start : start + _AROUND]
    if rest[0].isdigit() or unicodedata.category(rest[0]) == "Sc":
        return bool(_BEGUN_NUMBER.search(before) or (_BEGUN_GROUP.search(before) and _GROUP.match(rest)))
    return rest[0].isalpha() and _BEGUN_WORD.search(before) is not None


def _ends_inside(text: str, end: int) -> bool:
    if end == len(text):
        return False
    if _is_one_word(text[end - 1], text[end]):
        return True
    before = text[max(0, end - _AROUND) : end]
    rest = text[end : end + _AROUND]
    if before[-1].isdigit():
        is_grouped = _BEGUN_GROUP.search(f"{before} ") and _GROUP.match(rest[1:]) and rest[0] == " "
        return bool(is_grouped or _REST_OF_NUMBER.match(rest))
    return before[-1].isalpha() and _REST_OF_WORD.match(rest) is not None


PASSAGE_CHARACTERS = 4_000

_TEXTS = frozenset({".txt", ".text", ".md", ".markdown", ".rst", PDF_SUFFIX})
_LINES = frozenset({".jsonl", ".ndjson"})
_KNOWN = f"geval reads .txt, .md, .rst, .jsonl and .pdf (for .pdf, install pypdf {install_hint('pdf')})"
_TEXT_COLUMNS = ("text", "content", "document", "source", "body", "passage", "page_content")
_SENTENCE_END = re.compile(r"[.!?][^\w\s]{0,8}\s|[\u3002\uff01\uff1f]")


class SourceDocument(Struct, frozen=True):
    """A text that tests are generated from. `row` is its line in a .jsonl file; 0 stands for a whole file."""

    source: str
    text: str
    row: int = 0

    @property
    def name(self) -> str:
        return f"{self.source}:{self.row}" if self.row else self.source

    def line_at(self, offset: int) -> int:
        """Return the line in the file of a position in the text."""
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
        """Return a key that identifies the passage among those of all documents in memory."""
        return id(self.document), self.start


class DocumentReading(Struct):
    """The documents, and counts of what was skipped: files by suffix, empty or duplicate texts, problem files."""

    documents: list[SourceDocument] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    repeated: int = 0
    outside: int = 0
    problems: list[Problem] = field(default_factory=list)

    def left_out(self) -> list[str]:
        """Return a sentence for each reason why something was skipped."""
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
    """Return the documents in these files, and in the visible files of these folders, sorted by name.

    The `output` file of an earlier run is skipped, since it may be in such a folder.

    Raises:
        ConfigError: a file named by the user cannot be read; unreadable files in folders are only counted.
        UsageError: none of them contains text.
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
                reading.outside += 1  # a document may be untrusted, and what it links to goes to a model
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
    """Yield the documents in a file; for .jsonl, each is one column of a row, or all columns with text.

    Raises:
        ConfigError: the file cannot be read.
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
    """Return the document cut between paragraphs, or if they are too long, between sentences or words."""
    text, start = document.text, 0
    found = []
    while start < len(text):
        end = min(start + most_characters, len(text))
        if end < len(text):
            # The best place between two others to cut a text at.
            least = start + most_characters // 2
            paragraph = text.rfind("\n\n", least, end)
            if paragraph >= 0:
                end = paragraph + 2
            else:
                sentences = [match.end() for match in _SENTENCE_END.finditer(text, least, end)]
                if sentences:
                    end = sentences[-1]
                else:
                    spaces = [match.end() for match in re.finditer(r"\s", text[least:end])]
                    end = least + spaces[-1] if spaces else end
        if text[start:end].strip():
            found.append(Passage(document, start, end))
        start = end
    return found

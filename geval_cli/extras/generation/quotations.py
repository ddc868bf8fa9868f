"""Find a quotation in a text by code.

What is typeset in another way is equal: white space, quotation marks, dashes, hyphenation, capitals, emphasis, links,
and the forms of Unicode. Another word is not.
"""

import re
import unicodedata
from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

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
"""Scripts that put no spaces between words, or join particles to them."""
_JAMO = range(0x1160, 0x1200)
_AROUND = 30
_BEGUN_NUMBER = re.compile(r"\d[^\w\s]$|[-+]$|[<>≤≥±~≈≠] ?$|(?:^|\W)\.$|\d - $")
_REST_OF_NUMBER = re.compile(
    r"[^\w\s(\[]\d|-\w| - \d| ?[\u00d7^%‰°]| \d+/\d| (?:hundred|thousand|(?:m|b|tr)illion|per ?cent)(?!\w)"
)
_BEGUN_GROUP, _GROUP = re.compile(r"(?<!\d)\d{1,3}(?: \d{3})* $"), re.compile(r"\d{3}(?!\d)")
"""Digits before a space that separates thousands, and those behind it."""
_BEGUN_WORD = re.compile(r"[^\W\d_](?:[*]+|[')\]}]|</?\w{1,20}>)$")
_REST_OF_WORD = re.compile(r"(?:'|[*]+|</?\w{1,20}>)[^\W\d_]")
_LINK = re.compile(r"(?<!\!)(\[)[^\]\n]{1,500}(\]\([^)\s]{0,2000}\))")


class FoundSpan(Struct, frozen=True):
    """Where a quotation stands in a text."""

    start: int
    end: int


class Unfound(StrEnum):
    """Why a quotation does not count."""

    ABSENT = "their quotation is not in the document"
    JOINED = "their quotation joins two places with an ellipsis"
    SHORT = "their quotation is too short"
    LONG = "their quotation is too long"


class FoldedText:
    """A text with what does not count in a quotation made equal, and where each of its characters comes from."""

    def __init__(self, text: str) -> None:
        ignored = {
            place for link in _LINK.finditer(text) for group in (1, 2) for place in range(*link.span(group))
        }
        characters = _without_hyphens(_joined(_without_emphasis([*_characters(text, ignored)])))
        self.text = "".join(character for character, _, _ in characters)
        self._spans = [(start, end) for _, start, end in characters]

    def find(self, quotation: str, least_words: int = LEAST_WORDS) -> FoundSpan | Unfound:
        """Return the first place of a quotation, or why it does not count."""
        sought = FoldedText(quotation).text.lstrip(" '")
        if not re.match(r"[-.]\d", sought):
            sought = sought.lstrip(f"-{_EDGES}")
        sought = sought.rstrip(f"-{_EDGES}")
        words = count_words(sought)
        if words < least_words:
            return Unfound.SHORT
        if words > MOST_WORDS:
            return Unfound.LONG
        start = self.text.find(sought)
        while start >= 0:
            end = start + len(sought)
            if not (_begins_inside(self.text, start) or _ends_inside(self.text, end)):
                return FoundSpan(self._spans[start][0], self._spans[end - 1][1])
            start = self.text.find(sought, start + 1)
        return Unfound.JOINED if ".." in sought else Unfound.ABSENT


def count_words(text: str) -> int:
    """Return the number of words; of scripts without spaces, two characters count as one."""
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
    """Leave out `*` and `_` that are not inside a word or a product."""
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
    """Make one of several spaces, quotation marks or dashes; a space that breaks a line stays a line break."""
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
    """Leave out hyphens between letters, also with a line break behind them, and put spaces around dashes."""
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
    """Return whether two characters that follow one another are of the same word or number."""
    if _is_unspaced(first) or _is_unspaced(second):
        return all(unicodedata.numeric(item, None) is not None for item in (first, second))
    # Vowel signs are marks, not letters: an Indic word goes on behind them.
    return all(
        item.isalnum() or item == "_" or unicodedata.category(item)[0] == "M" for item in (first, second)
    )


def _begins_inside(text: str, start: int) -> bool:
    """Return whether a place is inside a word or a number, or behind the sign of one."""
    if start == 0:
        return False
    if _is_one_word(text[start - 1], text[start]):
        return True
    before, rest = text[max(0, start - _AROUND) : start], text[start : start + _AROUND]
    if rest[0].isdigit() or unicodedata.category(rest[0]) == "Sc":
        return bool(_BEGUN_NUMBER.search(before) or (_BEGUN_GROUP.search(before) and _GROUP.match(rest)))
    return rest[0].isalpha() and _BEGUN_WORD.search(before) is not None


def _ends_inside(text: str, end: int) -> bool:
    if end == len(text):
        return False
    if _is_one_word(text[end - 1], text[end]):
        return True
    before, rest = text[max(0, end - _AROUND) : end], text[end : end + _AROUND]
    if before[-1].isdigit():
        is_grouped = _BEGUN_GROUP.search(f"{before} ") and _GROUP.match(rest[1:]) and rest[0] == " "
        return bool(is_grouped or _REST_OF_NUMBER.match(rest))
    return before[-1].isalpha() and _REST_OF_WORD.match(rest) is not None

"""Untrusted text made harmless and visible: no control sequence, bidi override, hidden character or markup."""

import hashlib
import html
import json
import re
import shlex
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size

from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue

TAB = "    "
# Printable for Python, yet drawn as nothing: fillers, joiners and variation selectors, all known from smuggled text.
_INVISIBLE = frozenset(
    [
        0x034F,
        0x115F,
        0x1160,
        0x17B4,
        0x17B5,
        0x2800,
        0x3164,
        0xFFA0,
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
    ]
) | frozenset(range(0xE0100, 0xE01F0))
_LATIN_1_MAX, _BASIC_PLANE_MAX = 0xFF, 0xFFFF
_PRESENTATION = compile_later("(?<=[^\ufe00-\ufe0f])[\ufe0e\ufe0f]")
# Within words of many scripts, and between the parts of an emoji, joiners are spelling and not a trick.
_SPELLING_JOINER = compile_later(
    r"(?<=[^\x00-\x7f\s\u200b-\u200f])[\u200c\u200d](?=[^\x00-\x7f\s\u200b-\u200f])"
)
_SOFT_HYPHEN = compile_later(r"(?<=\w)\xad(?=\w)")


def markdown_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, names: int = 1) -> str:
    """Return a table whose first columns, `names` of them, are aligned left; a cell may hold anything but markup."""
    lines = [header, tuple("---" if index < names else "---:" for index, _ in enumerate(header)), *rows]
    # A bar ends a cell even inside a code span.
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines)


def code_span(text: str) -> str:
    """Return a code span that holds `text` whatever it contains."""
    text = " ".join(text.split())
    if not text:
        return ""
    fence = "`" * (longest_run(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def html_text(text: str) -> str:
    """Return a text as it stands in HTML and SVG, in elements and in attributes; line breaks stay."""
    plain = text.isascii() and text.isprintable()  # drawings are made of thousands of short names
    return html.escape(text if plain else "\n".join(sanitized_lines(text)))


def figures_in_markdown(text: str) -> str:
    """Return figures of ours as Markdown: `<` would begin a tag for some readers."""
    return text.replace("<", "&lt;")


def longest_run(text: str) -> int:
    """Return how many backticks stand in a row at most."""
    return max((len(run) for run in re.findall("`+", text)), default=0)


def output_digest(output: JsonValue) -> str:
    """Return the `output_sha256` by which labels name an output; one that is no text is hashed as compact JSON."""
    return hashlib.sha256(value_text(output).encode("utf-8", errors="surrogatepass")).hexdigest()


def sanitize(text: str) -> str:
    r"""`text` with everything that a terminal would act on, or not show, written out as an escape such as `\x1b`.

    Line breaks are escaped too: use `sanitized_lines` where they shall be kept, `one_line` where they may go.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _SOFT_HYPHEN.sub("", _PRESENTATION.sub("", text))
    joiners = {match.start() for match in _SPELLING_JOINER.finditer(text)}
    return "".join(
        character if index in joiners else _visible(character) for index, character in enumerate(text)
    )


def sanitized_lines(text: str) -> list[str]:
    """Return the lines of `text`, each sanitized; tabs become four spaces. Never empty."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [sanitize(line.replace("\t", TAB)) for line in lines]


def whole_text(text: str) -> str:
    """Replace halves of surrogate pairs, which UTF-8 cannot hold, by question marks."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode()


def one_line(text: str, width: int) -> str:
    """`text` sanitized on one line, white space collapsed, cut with an ellipsis to at most `width` cells."""
    # Each cell needs at most a few characters; the rest of a huge output is never looked at.
    start = " ".join(text[: width * 8 + 200].split())
    shown = sanitize(start)
    if cell_len(shown) <= width and len(text) <= width * 8 + 200:
        return shown
    return set_cell_size(shown, max(width - 1, 0)).rstrip() + "…"


def clipped_lines(text: str, *, line_count: int, character_count: int) -> list[str]:
    """Return the first lines of `text`, sanitized, and a last one that counts the rest. Empty for blank text."""
    if not text.strip():
        return []
    kept = text.rstrip()[:character_count]
    lines = sanitized_lines(kept)[:line_count]
    shown = sum(len(line) + 1 for line in kept.split("\n")[:line_count]) - 1
    left_out = len(text.rstrip()) - shown
    return [*lines, f"... {left_out:,} more characters"] if left_out > 0 else lines


_PLAIN_WORD = compile_later(r"[\w@%+=:,./-][\w@%+=:,./~-]*")


def quoted(word: str) -> str:
    """Return a name or folder as a shell takes it; `latest~1` needs no quotes there."""
    word = sanitize(word)
    return word if _PLAIN_WORD.fullmatch(word) else shlex.quote(word)


def home_option(home: Path | None) -> str:
    """Return the option that leads another command to the same runs; "" where none was given."""
    return "" if home is None else f" --home {quoted(str(home))}"


def folder_options(home: Path | None, cache_folder: Path | None) -> str:
    """Return the options that lead another command to the same runs, answers and batches; "" where none was given."""
    cache = "" if cache_folder is None else f" --cache-dir {quoted(str(cache_folder))}"
    return home_option(home) + cache


def resume_command(config_path: str, options: str) -> str:
    """Return what continues a run of a config; `options` are those of `folder_options`."""
    return f"geval run {quoted(config_path)} --resume{options}"


def value_text(value: JsonValue) -> str:
    """Return a var or an output as text: strings as they are, all else as compact JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=repr)


def _visible(character: str) -> str:
    code = ord(character)
    if character.isprintable() and code not in _INVISIBLE:
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    if code <= _LATIN_1_MAX:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _BASIC_PLANE_MAX else f"\\U{code:08x}"

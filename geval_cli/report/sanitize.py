"""Make untrusted text harmless and visible: no control sequences, bidi overrides, hidden characters or markup."""

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
# Printable according to Python, yet drawn as nothing: fillers, joiners and variation selectors used to smuggle text.
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
# Within words of many scripts, and between the parts of an emoji, joiners are correct spelling, not a trick.
_SPELLING_JOINER = compile_later(
    r"(?<=[^\x00-\x7f\s\u200b-\u200f])[\u200c\u200d](?=[^\x00-\x7f\s\u200b-\u200f])"
)
_SOFT_HYPHEN = compile_later(r"(?<=\w)\xad(?=\w)")


def markdown_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, names: int = 1) -> str:
    """Return a Markdown table with the first `names` columns left-aligned; only `|` is escaped in cells."""
    lines = [header, tuple("---" if index < names else "---:" for index, _ in enumerate(header)), *rows]
    # A bar ends a cell even inside a code span.
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines)


def code_span(text: str) -> str:
    """Return a Markdown code span that shows `text` whatever it contains, white space collapsed; "" for blank text."""
    text = " ".join(text.split())
    if not text:
        return ""
    fence = "`" * (longest_run(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def html_text(text: str) -> str:
    """Return `text` escaped for HTML and SVG, in elements and in attributes; line breaks are kept."""
    # Drawings consist of thousands of short names, so plain ones take a fast path.
    plain = text.isascii() and text.isprintable()
    return html.escape(text if plain else "\n".join(sanitized_lines(text)))


def figures_in_markdown(text: str) -> str:
    """Return our own figures as Markdown, with `<` escaped: some renderers would take it for a tag."""
    return text.replace("<", "&lt;")


def longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)


def output_digest(output: JsonValue) -> str:
    """Return the `output_sha256` by which labels refer to an output: the hash of its `value_text`."""
    return hashlib.sha256(value_text(output).encode("utf-8", errors="surrogatepass")).hexdigest()


def sanitize(text: str) -> str:
    r"""Return `text` with everything that a terminal would act on, or not show, written as an escape such as `\x1b`.

    Line breaks are escaped too: use `sanitized_lines` to keep them, or `one_line` to turn them into spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _SOFT_HYPHEN.sub("", _PRESENTATION.sub("", text))
    joiners = {match.start() for match in _SPELLING_JOINER.finditer(text)}
    return "".join(
        character if index in joiners else _visible(character) for index, character in enumerate(text)
    )


def sanitized_lines(text: str) -> list[str]:
    """Return the lines of `text`, each sanitized, with tabs as four spaces; the list is never empty."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [sanitize(line.replace("\t", TAB)) for line in lines]


def whole_text(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with question marks."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode()


def one_line(text: str, width: int) -> str:
    """Return `text` sanitized on one line: white space collapsed, cut with an ellipsis to at most `width` cells."""
    # A cell holds at most a few characters, so the rest of a huge output need not be read.
    start = " ".join(text[: width * 8 + 200].split())
    shown = sanitize(start)
    if cell_len(shown) <= width and len(text) <= width * 8 + 200:
        return shown
    return set_cell_size(shown, max(width - 1, 0)).rstrip() + "…"


def clipped_lines(text: str, *, line_count: int, character_count: int) -> list[str]:
    """Return the first lines of `text`, sanitized, and a last line that counts the rest; empty for blank text."""
    if not text.strip():
        return []
    kept = text.rstrip()[:character_count]
    lines = sanitized_lines(kept)[:line_count]
    shown = sum(len(line) + 1 for line in kept.split("\n")[:line_count]) - 1
    left_out = len(text.rstrip()) - shown
    return [*lines, f"... {left_out:,} more characters"] if left_out > 0 else lines


_PLAIN_WORD = compile_later(r"[\w@%+=:,./-][\w@%+=:,./~-]*")


def quoted(word: str) -> str:
    """Return a name or folder quoted for a shell; `latest~1` needs no quotes."""
    word = sanitize(word)
    return word if _PLAIN_WORD.fullmatch(word) else shlex.quote(word)


def home_option(home: Path | None) -> str:
    """Return the --home option that makes another command use the same runs; "" if it was not given."""
    return "" if home is None else f" --home {quoted(str(home))}"


def folder_options(home: Path | None, cache_folder: Path | None) -> str:
    """Return the options that make another command use the same runs, answers and batches; "" if none was given."""
    cache = "" if cache_folder is None else f" --cache-dir {quoted(str(cache_folder))}"
    return home_option(home) + cache


def resume_command(config_path: str, options: str) -> str:
    """Return the command that resumes a run of a config; `options`, such as those of `folder_options`, are appended."""
    return f"geval run {quoted(config_path)} --resume{options}"


def value_text(value: JsonValue) -> str:
    """Return a variable or an output as text: strings unchanged, everything else as JSON on one line."""
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

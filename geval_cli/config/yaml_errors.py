"""What a YAML parser complains about, said so that the writer of the file knows what to do."""

import yaml

from geval_cli.config.spots import SpotTree
from geval_cli.errors import Problem

_QUOTES = "put quotes around the text"

# First match wins: a part of the parser's words (libyaml's or PyYAML's), our sentence, our hint.
_SENTENCES: tuple[tuple[str, str, str], ...] = (
    ("mapping values are not allowed", "a `: ` is not allowed here", f"check the indentation, or {_QUOTES}"),
    ("while scanning a quoted scalar", "the quote that opens here is never closed", "close it"),
    ("unknown escape", "unknown escape in a double-quoted text", "double the backslash, or use single quotes"),
    ("while scanning an alias", "`*` begins a YAML alias, but this is not one", _QUOTES),
    ("while scanning an anchor", "`&` begins a YAML anchor, but this is not one", _QUOTES),
    ("while scanning a directive", "`%` begins a YAML directive, but this is not one", _QUOTES),
    ("while parsing a tag", "`!` begins a YAML tag, but this is not one", _QUOTES),
    ("while scanning a tag", "`!` begins a YAML tag, but this is not one", _QUOTES),
    ("while scanning a block scalar", "this block text is broken", "indent its lines alike, with spaces"),
    ("could not find expected ':'", "this line is not `key: value`", "add `: `, or indent it under the text above"),
    ("sequence entries are not allowed", "a `- ` is not allowed here", f"check the indentation, or {_QUOTES}"),
    ("parsing a flow sequence", "the list that opens here with `[` is not closed", "check commas and `]`"),
    ("parsing a flow mapping", "the mapping that opens here with `{` is not closed", "check commas and `}`"),
    ("parsing a block mapping", "this does not belong to the mapping above it", "check indentation and quotes"),
    ("parsing a block collection", "this does not belong to the list above it", "check indentation and quotes"),
    ("expected <document start>", "this does not belong to what stands above it", "check the indentation"),
    ("document start", "this does not belong to what stands above it", "check the indentation"),
)  # fmt: skip

# Where the beginning of the construct tells more than the spot where the parser gave up.
_POINTS_AT_BEGINNING = ("scanning a quoted scalar", "scanning a simple key", "flow sequence", "flow mapping")


def explain_yaml_error(error: yaml.YAMLError, text: str, tree: SpotTree) -> Problem:
    """A parser's error as a problem with its place in `text`."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(f"the YAML cannot be read: {error}", tree.locate(0, 1))
    context, problem = error.context or "", error.problem or ""
    words = f"{context}; {problem}"
    mark = error.problem_mark or error.context_mark
    if (
        error.context_mark
        and "escape" not in problem
        and any(part in context for part in _POINTS_AT_BEGINNING)
    ):
        mark = error.context_mark
    offset = mark.index if mark else 0
    location = tree.locate(min(offset, len(text)), offset + 1)
    if _is_tab_trouble(words, text, offset):
        return Problem("a tab cannot be used for indentation in YAML", location, "use spaces")
    if "cannot start any token" in problem:
        return Problem(f'a plain text cannot begin with "{text[offset]}"', location, _QUOTES)
    for part, sentence, hint in _SENTENCES:
        if part in words:
            return Problem(sentence, location, hint)
    return Problem(f"the YAML cannot be read: {problem or context}", location)


def _is_tab_trouble(words: str, text: str, offset: int) -> bool:
    if "tab character" in words:
        return True
    if "cannot start any token" in words:
        return text[offset : offset + 1] == "\t"
    line_start = text.rfind("\n", 0, offset) + 1
    indentation = text[line_start : len(text)].split("\n", 1)[0]
    blank = indentation[: len(indentation) - len(indentation.lstrip())]
    return "\t" in blank

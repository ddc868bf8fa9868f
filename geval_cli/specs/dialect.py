"""Whose rules a config follows: geval's own, or promptfoo's."""

import re
from enum import StrEnum
from pathlib import Path

from geval_cli.errors import ConfigError, Problem
from geval_cli.source.access import Access
from geval_cli.source.files import read_document
from geval_cli.source.safe_open import open_regular
from geval_cli.source.source_map import Document

_PROGRAMS = frozenset({".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".py"})
_PROMPTFOO_NAME = "promptfooconfig"
_PROMPTFOO_SCHEMA = re.compile(r"#.*\$schema\s*[=:]\s*\S*promptfoo\S*config-schema\.json")


class Dialect(StrEnum):
    """In promptfoo's, undefined names are empty, values are written as JavaScript does, unknown keys are warnings."""

    GEVAL = "geval"
    PROMPTFOO = "promptfoo"


def dialect_of(path: Path, document: Document, first_line: str, asked: Dialect | None = None) -> Dialect:
    """Whose rules `path` follows: as asked for, as its `dialect` says, by its schema comment, by its name.

    Args:
        path: the config file.
        document: its content.
        first_line: of its text; an editor's schema comment stands there.
        asked: on the command line.
    """
    if asked is not None:
        return asked
    value = document.value if isinstance(document.value, dict) else {}
    if isinstance(value.get("dialect"), str):
        return Dialect.PROMPTFOO if value["dialect"] == Dialect.PROMPTFOO else Dialect.GEVAL
    schema = value.get("$schema")
    is_named = isinstance(schema, str) and "promptfoo" in schema
    if is_named or _PROMPTFOO_SCHEMA.match(first_line) or path.name.startswith(f"{_PROMPTFOO_NAME}."):
        return Dialect.PROMPTFOO
    return Dialect.GEVAL


def read_with_dialect(path: Path, access: Access, asked: Dialect | None = None) -> tuple[Document, Dialect]:
    """Return the content of a config file, and whose rules it follows.

    Raises:
        ConfigError: the file cannot be read, or its content is broken.
    """
    if path.suffix.lower() in _PROGRAMS:
        hint = "write the config as YAML or JSON; tests may come from a .jsonl file that the program writes"
        raise ConfigError([Problem(f"configs that are programs are not run: `{path}`", None, hint)])
    document = read_document(path, access)
    return document, dialect_of(path, document, _first_line(path, access), asked)


def _first_line(path: Path, access: Access) -> str:
    with open_regular(path, access) as stream:
        return stream.readline().decode("utf-8-sig", "replace")

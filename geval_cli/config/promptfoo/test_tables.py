"""Files of tables, CSV and XLSX, as rows of texts with their line numbers."""

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from geval_cli.config.access import Access
from geval_cli.config.promptfoo.js_text import js_string
from geval_cli.config.regular_file import open_regular
from geval_cli.config.source_file import MAX_TEXT_BYTES, open_problem
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.version import install_hint

Rows = Iterator[tuple[int, list[str]]]
"""Rows as texts, each with the number of the line that it ends on, from 1."""


def csv_rows(path: Path, access: Access, asked_at: Location | None, *, delimiter: str = ",") -> Rows:
    """The rows of a CSV file, line by line, the header among them; spaces belong to the texts.

    Raises:
        ConfigError: the file cannot be read or is no UTF-8 text, or a row has more or fewer cells than the header.
    """
    csv.field_size_limit(MAX_TEXT_BYTES)
    try:
        with io.TextIOWrapper(open_regular(path, access), "utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=delimiter)
            width = None
            for cells in reader:
                if not cells:
                    continue
                if width is not None and len(cells) != width:
                    raise ConfigError([_uneven(path, reader.line_num, len(cells), width)])
                width = len(cells)
                yield reader.line_num, cells
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(f"`{path}` is not UTF-8 text", asked_at, "save it as UTF-8")]) from error
    except csv.Error as error:
        where = Location(str(path), reader.line_num, 1, length=0)
        raise ConfigError([Problem(f"this line cannot be read: {error}", where)]) from error


def sheet_rows(path: Path, sheet: str, access: Access, asked_at: Location | None) -> Rows:
    """The rows of a sheet (the first one when `sheet` is empty), values as texts.

    Raises:
        ConfigError: the file cannot be read, has no such sheet, or the package for it is missing.
    """
    try:
        import openpyxl  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        hint = f"install it {install_hint('xlsx')}; or save the sheet as .csv"
        raise ConfigError(
            [Problem("reading .xlsx files needs the package openpyxl", asked_at, hint)]
        ) from error
    try:
        with open_regular(path, access) as stream:
            content = io.BytesIO(stream.read())
        book = openpyxl.load_workbook(content, read_only=True, data_only=True)
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    except (
        ValueError,
        KeyError,
        zipfile.BadZipFile,
        openpyxl.utils.exceptions.InvalidFileException,
    ) as error:
        raise ConfigError([Problem(f"`{path}` is no sheet: {error}", asked_at, "save it as .csv")]) from error
    if sheet and sheet not in book.sheetnames:
        hint = f"it has: {', '.join(book.sheetnames)}"
        raise ConfigError([Problem(f"`{path.name}` has no sheet `{sheet}`", asked_at, hint)])
    try:
        table = book[sheet] if sheet else book[book.sheetnames[0]]
        for number, cells in enumerate(table.iter_rows(values_only=True), start=1):
            yield number, [_cell_text(cell) for cell in cells]
    finally:
        book.close()


def _cell_text(value: object) -> str:
    return js_string(value).strip() if isinstance(value, str | int | float | bool | None) else str(value)


def _uneven(path: Path, line: int, count: int, width: int) -> Problem:
    where = Location(str(path), line, 1, length=0)
    hint = "put quotes around texts with commas in them, without spaces before the quotes"
    return Problem(f"this row has {count} cells, but the header has {width}", where, hint)

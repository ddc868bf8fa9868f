"""Tests in the sheets of .xlsx files, read row by row with the position of each cell."""

import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import time
from functools import reduce
from itertools import repeat
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.source.access import Access, open_regular
from geval_cli.source.files import MAX_CONFIG_BYTES, MAX_LINE_BYTES, open_problem
from geval_cli.suite.tables import MAX_COLUMNS, TableRow, cell_text, too_wide
from geval_cli.version import install_hint

_MAX_UNPACKED_BYTES = 1 << 28
"""The size limit of a sheet's file: one that packs more into 64 MB is made to fill the memory."""

_CHUNK = 1 << 20
_MAX_CELLS = 50_000_000
_MAX_SHEET_ROWS = 1_048_576  # the limit of the format
_MAX_ELEMENTS, _MAX_DEPTH = 4_000_000, 100
_MAX_TAG_BYTES = 4 << 20
"""The size limit of tags in an untrusted sheet, attributes included: each takes a hundred bytes in memory for five
here.
"""

_FORMULA = re.compile(rb"<(?:\w+:)?f[\s/>]")
_UNSAVED = re.compile(rb"(?:</(?:\w+:)?f|<(?:\w+:)?f\b[^<>]*/)>\s*</(?:\w+:)?c>")
"""A formula, and one beside which there is no value."""
_FORMULA_MAX = 300
"""The size limit of the text that these match."""
_ESCAPE = re.compile(r"_x000[Dd]_(?=\n)|_x(00[01][0-9A-Fa-f])_")
_FORMATS = re.compile(
    rb'formatCode="(?:(?:\[[^]"]*\])?00+[;"]|[^"]*(?:%|hh?:mm))|<(?:\w+:)?xf\b[^>]*\bnumFmtId="(?:9|10|18|20)"'
)
"""Formats that decide how a number is read."""
_ZEROS = re.compile(r"(?:\[[^]]*\])?(00+)(?:;.*)?", re.DOTALL)
"""Number formats with a fixed count of digits, such as postcodes."""
_PERCENT = re.compile(r"(?:\[[^]]*\])?[#0,]*0(?:\.0+)?\s?%(?:;.*)?", re.DOTALL)
_HOURS = re.compile(r"(?:\[\$[^]]*\])?(hh?):mm( AM/PM)?(?:;@)?", re.IGNORECASE)
"""Number formats of times without seconds: what a spreadsheet program makes of a typed 10:30."""
_MERGED = re.compile(rb'<(?:\w+:)?mergeCell\s[^>]{0,99}?\bref="([A-Z]{1,3})(\d{1,7}):[A-Z]{1,3}(\d{1,7})"')
_MERGED_MAX = 150
"""The size limit of the text that this matches."""

_BROKEN_SHEET = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    SyntaxError,  # in the XML inside
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors that openpyxl raises on broken files."""


def sheet_rows(
    path: Path, sheet: str, access: Access, asked_at: Location | None, *, is_strict: bool = False
) -> Iterator[TableRow]:
    """Yield the rows of a sheet one by one; formulas have their saved values.

    `sheet` is its name or its number from 1; "" is the first one. With `is_strict`, that is the first visible one,
    merged cells have their value in each row, and numbers the digits that a sheet can show. Rows below the header are
    as wide as the header, or as the sheet says.

    Raises:
        ConfigError: the file cannot be read, has no such sheet, or the package for it is missing; the value of a
            formula was never saved; a row is wider than the header.
    """
    openpyxl = _package(asked_at)
    try:
        with open_regular(path, access) as stream:
            content = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    books: list[Any] = []
    try:
        _check_size(content, path, access, asked_at)
        book = _opened(openpyxl, content, books, data_only=True)
        if sheet not in book.sheetnames and sheet.isdecimal() and 0 < int(sheet) <= len(book.sheetnames):
            sheet = book.sheetnames[int(sheet) - 1]
        if sheet and sheet not in book.sheetnames:
            hint = f"it has: {', '.join(book.sheetnames)}"
            raise ConfigError([Problem(f"`{path.name}` has no sheet `{sheet}`", asked_at, hint)])
        of_cells = [item.title for item in book.worksheets]  # others have only a chart
        if not of_cells or (sheet and sheet not in of_cells):
            message = f"the sheet `{sheet}` of `{path.name}` holds a chart and no cells"
            hint = f"name one of: {', '.join(of_cells)}" if of_cells else ""
            raise ConfigError([Problem(message if sheet else f"`{path.name}` has no cells", asked_at, hint)])
        visible = [item.title for item in book.worksheets if item.sheet_state == "visible"]
        name = sheet or [*(visible if is_strict else ()), *of_cells][0]
        sheet_size = (book[name].max_row or 0, book[name].max_column or 0)
        if sheet_size[1] > MAX_COLUMNS:
            raise ConfigError([too_wide(sheet_size[1], asked_at)])
        if sheet_size[0] * sheet_size[1] > _MAX_CELLS:
            message = (
                f"the sheet `{name}` has {sheet_size[0]:,} rows of {sheet_size[1]:,} cells, which is "
                "too large"
            )
            raise ConfigError([Problem(message, asked_at, "save it as .csv, which is read row by row")])
        written: Iterator[tuple[Any, ...]] = repeat(())
        has_formulas = _finds(_FORMULA, content)
        if has_formulas:
            written = _rows(_opened(openpyxl, content, books, data_only=False)[name], values_only=True)
        merged = _merged(content, book[name]) if is_strict else {}
        covering: dict[int, tuple[int, Any]] | None = None  # None until the header
        width = sheet_size[1]
        empty_type = "str" if has_formulas and not _finds(_UNSAVED, content) else None
        is_formatted = is_strict and _has_formats(content)
        read = _rows(book[name], values_only=not is_formatted and empty_type is None)
        shown = read
        if is_formatted or empty_type is not None:
            shown = (
                tuple(_value(cell, empty_type, is_formatted=is_formatted) for cell in cells) for cells in read
            )
        rows = zip(shown, written, strict=False)
        for number, (cells, formulas) in enumerate(rows, start=1):
            if not cells and not formulas and number <= _MAX_SHEET_ROWS:  # a gap above a cell far below
                continue
            if len(cells) > MAX_COLUMNS:  # the sheet does not state its size
                raise ConfigError([too_wide(len(cells), asked_at)])
            if (
                number > _MAX_SHEET_ROWS
                or sum(len(cell) for cell in cells if isinstance(cell, str)) > MAX_LINE_BYTES
            ):
                message = f"row {number:,} of the sheet `{name}` is more than a sheet can hold"
                raise ConfigError([Problem(message, asked_at, "save it as .csv, which is read row by row")])
            row = TableRow([_as_shown(cell, is_strict) for cell in cells], number, number, sheet=name)
            _check_formulas(row, formulas, path)
            if row.is_empty:
                continue
            if covering is None:
                width = max(width, len(cells))
            _fit(row, width, path)
            if covering is not None:
                _fill_merged(row.cells, number, merged, covering)
            else:
                covering = {}
            yield row
    except (*_BROKEN_SHEET, openpyxl.utils.exceptions.InvalidFileException) as error:
        hint = "save it again as .xlsx, or as .csv"
        raise ConfigError([Problem(f"`{path}` is not a spreadsheet: {error}", asked_at, hint)]) from error
    finally:
        for book in books:
            book.close()


def _opened(openpyxl: Any, content: bytes, books: list[Any], *, data_only: bool) -> Any:
    """Open the workbook, with formulas or with their values, and add it to `books`, which the caller closes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about parts that are not read
        books.append(openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=data_only))
    return books[-1]


def _rows(sheet: Any, *, values_only: bool) -> Iterator[tuple[Any, ...]]:
    """Return all rows: many programs write a size that is smaller than the sheet, and openpyxl would stop there."""
    sheet.reset_dimensions()
    return sheet.iter_rows(values_only=values_only)  # type: ignore[no-any-return]


def _fit(row: TableRow, width: int, path: Path) -> None:
    """Give the row as many cells as the header: files need not have empty cells at the end of a row."""
    row.cells.extend([None] * (width - len(row.cells)))
    beyond = next((place for place, cell in enumerate(row.cells[width:], width) if cell is not None), None)
    if beyond is not None:
        hint = "name the column in the first row, or clear it"
        message = "this cell is in a column without a name"
        raise ConfigError([Problem(message, row.location(path, beyond), hint)])
    del row.cells[width:]


def _finds(pattern: "re.Pattern[bytes]", content: bytes) -> bool:
    """Return whether a sheet may contain a formula that matches. Scans it in chunks."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            if not name.startswith("xl/worksheets/"):
                continue
            end = b""
            with archive.open(name) as stream:
                while chunk := stream.read(_CHUNK):
                    if pattern.search(end + chunk):
                        return True
                    end = chunk[-_FORMULA_MAX:]
    return False


def _has_formats(content: bytes) -> bool:
    """Return whether a format may decide how a number is read; only then are cell formats read."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        styles = "xl/styles.xml"
        return styles in archive.namelist() and _FORMATS.search(archive.read(styles)) is not None


def _as_shown(value: Any, is_strict: bool) -> Any:
    """Return a value without XML's escapes of control characters and, if strict, without digits that no sheet shows."""
    if isinstance(value, str):
        return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", value)
    return float(f"{value:.15g}") if is_strict and isinstance(value, float) else value


def _value(cell: Any, empty_type: str | None, *, is_formatted: bool) -> Any:
    """Return the value of a cell; what is shown as 02134, 15% or 10:30 as a string.

    A cell of the type `empty_type` without a value has a formula whose value is an empty text.
    """
    value = cell.value
    if value is None and cell.data_type == empty_type:
        return ""
    if not is_formatted or value is None:
        return value
    written = cell.number_format or ""
    if isinstance(value, time) and not value.second and (hours := _HOURS.fullmatch(written)):
        is_late, hour = divmod(value.hour, 12)
        shown, half = (hour or 12, " PM" if is_late else " AM") if hours[2] else (value.hour, "")
        return f"{shown:0{len(hours[1])}}:{value.minute:02}{half}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if _PERCENT.fullmatch(written):
        return f"{cell_text(float(f'{value * 100:.12g}'))}%"
    zeros = None if value < 0 or value % 1 else _ZEROS.fullmatch(written)
    return f"{int(value):0{len(zeros[1])}}" if zeros else value


def _merged(content: bytes, sheet: Any) -> dict[int, list[tuple[int, int]]]:
    """Return the vertically merged cells by their first row: the column and the last row of each."""
    found: dict[int, list[tuple[int, int]]] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(sheet._worksheet_path) as stream:
        end = b""
        while chunk := stream.read(_CHUNK):
            text = end + chunk
            end = text[-_MERGED_MAX:]
            for match in _MERGED.finditer(text):
                column = reduce(lambda before, letter: before * 26 + letter - 64, match[1], 0)
                found.setdefault(int(match[2]), []).append((column - 1, int(match[3])))
    return found


def _fill_merged(
    cells: list[Any],
    number: int,
    merged: dict[int, list[tuple[int, int]]],
    covering: dict[int, tuple[int, Any]],
) -> None:
    """Copy the value of a merged cell to the cells below that it covers, except in rows that are otherwise empty.

    `covering` maps columns to the last row and the value of their merged cell.
    """
    if any(cell is not None for cell in cells):
        for column in [column for column, (last, _) in covering.items() if last < number]:
            del covering[column]
        for column, (_, value) in covering.items():
            cells += [None] * (column + 1 - len(cells))
            cells[column] = value if cells[column] is None else cells[column]
    for column, last in merged.pop(number, ()):
        if column < len(cells) and cells[column] is not None:
            covering[column] = (last, cells[column])


def _check_formulas(row: TableRow, formulas: tuple[Any, ...], path: Path) -> None:
    for column, (value, formula) in enumerate(zip(row.cells, formulas, strict=False)):
        if value is None and formula is not None:
            hint = "open the file in a spreadsheet program and save it, or write the values"
            message = "this cell contains a formula whose value was never saved"
            raise ConfigError([Problem(message, row.location(path, column), hint)])


def _package(asked_at: Location | None) -> Any:
    try:
        import openpyxl  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        hint = f"install it {install_hint('xlsx')}; or save the sheet as .csv"
        message = "reading .xlsx files needs the package openpyxl"
        raise ConfigError([Problem(message, asked_at, hint)]) from error
    return openpyxl


def _check_size(content: bytes, path: Path, access: Access, asked_at: Location | None) -> None:
    """Reject a file that would take far more memory than its size; untrusted XML elements are counted as well."""
    too_large = Problem(
        f"`{path}` is too large for a sheet", asked_at, "save it as .csv, which is read row by row"
    )
    if len(content) > MAX_CONFIG_BYTES:
        raise ConfigError([too_large])
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > _MAX_UNPACKED_BYTES:
            raise ConfigError([too_large])
        if access.is_untrusted:
            left = _MAX_ELEMENTS
            for member in members:
                with archive.open(member) as stream:
                    left = _elements_left(stream, left)
                if left < 0:
                    raise ConfigError([too_large])


def _elements_left(stream: IO[bytes], left: int) -> int:
    """Return how many XML elements are left of the limit after a document; below 0 if it is nested too deeply.

    Anything that is not XML is left for openpyxl to reject.
    """
    parser = expat.ParserCreate()
    depth = 0

    def started(_: str, attributes: list[str]) -> None:
        nonlocal depth, left
        depth += 1
        left -= 1 + len(attributes)
        if depth > _MAX_DEPTH or left < 0:
            left = -1
            raise EOFError

    def ended(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser.ordered_attributes = True
    parser.StartElementHandler, parser.EndElementHandler = started, ended
    fed = 0
    with suppress(EOFError, expat.ExpatError):
        while chunk := stream.read(_CHUNK):
            parser.Parse(chunk)
            fed += len(chunk)
            if (
                fed - parser.CurrentByteIndex > _MAX_TAG_BYTES
            ):  # an unfinished tag is parsed from its start each time
                return -1
    return left

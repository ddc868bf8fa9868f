"""Reading files that a config names: every way in which that fails becomes a problem with a place and a way out."""

import errno
import fnmatch
import hashlib
import io
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import Access, OutsideError, SpecialFileError, open_regular
from geval_cli.source.json_source import read_json
from geval_cli.source.problems import did_you_mean
from geval_cli.source.source_map import Document
from geval_cli.source.yaml_source import read_yaml
from geval_cli.version import install_hint

PDF_SUFFIX, PARQUET_SUFFIX = ".pdf", ".parquet"
MAX_PAGES = 2_000


def pdf_text(content: bytes, path: Path, asked_at: Location | None, *, max_characters: int) -> str:
    """Return the text of all pages, an empty line between them.

    Args:
        content: of the file.
        path: what messages call it.
        asked_at: where the config names it.
        max_characters: more text than this is a problem.

    Raises:
        ConfigError: one problem: the package is missing, the file is broken, locked or too long, or holds no text.
    """
    package = _package(path, asked_at)
    try:
        with _silent(package.__name__):
            reader = package.PdfReader(io.BytesIO(content))
            if reader.is_encrypted and not reader.decrypt(""):
                raise ConfigError([Problem(f"`{path}` is locked with a password", asked_at, "unlock it")])
            if len(reader.pages) > MAX_PAGES:
                raise ConfigError([_too_long(path, f"{MAX_PAGES:,} pages", asked_at)])
            pages: list[str] = []
            for page in reader.pages:
                pages.append(page.extract_text().strip())
                if sum(map(len, pages)) > max_characters:
                    raise ConfigError([_too_long(path, f"{max_characters:,} characters", asked_at)])
    except (package.errors.PyPdfError, *_BROKEN) as error:
        message = f"`{path}` cannot be read as PDF: {str(error) or type(error).__name__}"
        raise ConfigError([Problem(message, asked_at, "save it again, or convert it to text")]) from error
    text = "\n\n".join(pages).strip()
    if not text:
        hint = "it may contain scanned text: run OCR on it first and use the result"
        raise ConfigError([Problem(f"`{path}` contains no text", asked_at, hint)])
    return text


_BROKEN = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,
    AssertionError,
)
"""Further errors that openpyxl raises on broken files."""


def _package(path: Path, asked_at: Location | None) -> Any:
    try:
        import pypdf  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        message = f"reading `{path.name}` needs the package pypdf"
        hint = f"install it {install_hint('pdf')}; or convert it to text, for example with pdftotext"
        raise ConfigError([Problem(message, asked_at, hint)]) from error
    return pypdf


def _too_long(path: Path, limit: str, asked_at: Location | None) -> Problem:
    return Problem(f"`{path}` has more than {limit}", asked_at, "use a shorter file")


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Silence the package's warnings about oddities of a file that it can read all the same."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


FILE_PREFIX = "file://"

MAX_CONFIG_BYTES = 64 * 1024 * 1024
MAX_TEXT_BYTES = 16 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Of a line of .jsonl, or a row of .csv: files of any size are read so, and each is in memory as a whole."""
_KEPT_FILES = 64
_KEPT_CHARACTERS = 4 * 1024 * 1024
_HASH_CHUNK = 1024 * 1024
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def as_reference(path: str) -> str:
    """Return the path of a file as a reference, which it may be already."""
    return path if is_file_reference(path) else f"{FILE_PREFIX}{path}"


def is_file_reference(value: object) -> TypeGuard[str]:
    """Return whether a config value asks for the content of a file."""
    return isinstance(value, str) and value.startswith(FILE_PREFIX)


def read_document(
    path: Path, access: Access, *, asked_at: Location | None = None, prefix: str = ""
) -> Document:
    """Return the content of a YAML or (by its name) JSON file, with positions.

    Raises:
        ConfigError: the file cannot be read (placed at `asked_at`) or its content is broken.
    """
    text = read_text(path, access, asked_at=asked_at, max_bytes=MAX_CONFIG_BYTES)
    return parse_document(text, path, prefix=prefix)


def parse_document(text: str, path: Path, *, prefix: str = "") -> Document:
    """Parse `text` as the content of the YAML or (by its name) JSON file `path`, which is not read.

    Raises:
        ConfigError: it is broken.
    """
    if path.suffix.lower() == ".json":
        return read_json(text, str(path), prefix=prefix)
    return read_yaml(text, str(path), prefix=prefix)


def read_text(
    path: Path, access: Access, *, asked_at: Location | None = None, max_bytes: int = MAX_TEXT_BYTES
) -> str:
    """Return the UTF-8 text of a file, without a byte order mark.

    Raises:
        ConfigError: one problem, placed at `asked_at`, or in the file itself when nothing asked for it.
    """
    content = _read_bytes(path, access, asked_at, max_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        offset = error.start
        looks = "it looks like UTF-16; " if content.startswith(_UTF16_MARKS) else ""
        hint = f"{looks}save it as UTF-8"
        message = f"`{path}` is not UTF-8 text: byte 0x{content[offset]:02X} at offset {offset}"
        if asked_at is not None:
            not_utf8 = Problem(message, asked_at, hint)
        else:
            before = content[:offset].decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
            column = len(before) - (before.rfind("\n") + 1) + 1
            not_utf8 = Problem(message, Location(str(path), before.count("\n") + 1, column, length=0), hint)
        raise ConfigError([not_utf8]) from error


def open_problem(path: Path, error: OSError, asked_at: Location | None) -> Problem:
    """Why a file could not be opened, with what to do about it."""
    if isinstance(error, OutsideError):
        return error.problem(asked_at)
    if isinstance(error, FileNotFoundError):
        return Problem(f"there is no file `{path}`", asked_at, _missing_hint(path, asked_at))
    if isinstance(error, IsADirectoryError):
        return Problem(f"`{path}` is a folder, not a file", asked_at, "name a file in it")
    if isinstance(error, SpecialFileError):
        hint = "save its content in a file and use that"
        return Problem(f"`{path}` is a pipe or a device, not a file", asked_at, hint)
    if isinstance(error, PermissionError):
        return Problem(f"`{path}` may not be read", asked_at, "check the file's permissions")
    return Problem(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", asked_at)


def hash_file(path: Path, access: Access, *, max_bytes: int | None = None) -> str:
    """Return the SHA-256 of a file's content in hexadecimal, read piece by piece.

    Raises:
        OSError: it cannot be read, or is larger than `max_bytes`, which is seen before it is read.
    """
    digest = hashlib.sha256()
    with open_regular(path, access) as stream:
        if max_bytes is not None and os.fstat(stream.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MB")
        while chunk := stream.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


_FILE_NAME = compile_later(
    r"[^\s{}<>|*?\"']*\.(?:txt|md|ya?ml|json|jsonl|ndjson|j2|jinja2?|html?|xml|csv|tsv|xlsx|pdf|py|m?js)"
)
_MAGIC = compile_later(r"[*?\[]")
_MOST_FOLDERS = 100_000
_SEVERAL_FILES = compile_later(r"[^\s{}<>|\"']+(?:/|\.\w+)")


def is_bare_path(value: JsonValue, base_dir: Path, access: Access) -> TypeGuard[str]:
    """Return whether a text is the path of a file that is there, so that `file://` was probably forgotten before it."""
    if not isinstance(value, str) or "." not in value or _FILE_NAME.fullmatch(value) is None:
        return False
    path = base_dir / value
    try:
        return not access.is_outside(path) and path.is_file()
    except (OSError, ValueError):
        return False


def matching_names(pattern: str, folder: Path) -> set[str]:
    """Return the names, relative to `folder`, that fit a wildcard: `*` no hidden ones, `**` folders in no linked one.

    Each folder is looked at once for each part of the pattern, however many ways lead to it: `glob` walks them all,
    and with a few `**`, or with two links to the folder that they are in, that takes for ever.

    Raises:
        ValueError: through links, the parts before the last one fit too many folders.
    """
    parts = [part for part in pattern.split("/") if part and part != "."]
    found = {"/" if pattern.startswith("/") else ""}
    for index, part in enumerate(parts):
        if len(found) > _MOST_FOLDERS:
            raise ValueError(f"`{pattern}` matches more than {_MOST_FOLDERS:,} folders")
        if part == "**":
            found = _below(found, folder, with_files=index == len(parts) - 1)
        elif _MAGIC.search(part):
            fits = re.compile(fnmatch.translate(part)).match
            found = {
                f"{parent}{name}{'' if index == len(parts) - 1 else '/'}"
                for parent in found
                for name in _entries(folder / parent)
                if fits(name) and (part.startswith(".") or not name.startswith("."))
            }
        else:
            found = {f"{parent}{part}{'' if index == len(parts) - 1 else '/'}" for parent in found}
    return {name for name in found if name and (folder / name).exists()}


def _below(parents: set[str], folder: Path, *, with_files: bool) -> set[str]:
    """`parents` and all visible folders below them, and with `with_files` what is in these."""
    found, pending = set(parents), list(parents)
    files = set()
    while pending:
        parent = pending.pop()
        for name in _entries(folder / parent):
            path = folder / parent / name
            if name.startswith("."):
                continue
            if with_files:
                files.add(f"{parent}{name}")
            below = f"{parent}{name}/"
            if below not in found and path.is_dir() and not path.is_symlink():
                found.add(below)
                pending.append(below)
    return files if with_files else found


def _entries(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def is_bare_pattern(value: JsonValue, base_dir: Path, access: Access) -> TypeGuard[str]:
    """Return whether a text is a folder with `/` behind it, or a wildcard, for which there are files."""
    if not isinstance(value, str) or _SEVERAL_FILES.fullmatch(value) is None:
        return False
    if value.startswith("/") or ".." in value or access.is_outside(base_dir / value.partition("*")[0]):
        return False
    try:
        if value.endswith("/"):
            return (base_dir / value).is_dir()
        return "*" in value and any((base_dir / name).is_file() for name in matching_names(value, base_dir))
    except (OSError, ValueError):
        return False


class SourceFiles:
    """The files that one config names, relative to its folder; the last used ones are kept in memory."""

    def __init__(self, base_dir: Path, access: Access) -> None:
        self.base_dir = base_dir
        self.access = access
        self._texts: OrderedDict[Path, str] = OrderedDict()
        self._documents: OrderedDict[Path, Document] = OrderedDict()

    def resolve(self, reference: str, asked_at: Location | None) -> Path:
        """Return the path that a `file://` reference means.

        Raises:
            ConfigError: the path is empty or is made by a template, which is not known before the run.
        """
        name = reference.removeprefix(FILE_PREFIX)
        if not name.strip() or "\0" in name:
            raise ConfigError([Problem("`file://` has no path after it", asked_at, "write file://name.txt")])
        if "{{" in name:
            hint = "only `{{ env.NAME }}` works here, because files are read before the tests"
            raise ConfigError([Problem("a file:// path cannot contain a template", asked_at, hint)])
        path = self.base_dir / name
        if self.access.is_outside(path):
            raise ConfigError([self.access.outside_problem(path, asked_at)])
        return path

    def text(self, reference: str, asked_at: Location | None) -> str:
        """Return the text of a `file://` reference, without the line break at its end.

        Raises:
            ConfigError: one problem, placed at `asked_at`.
        """
        return self.text_at(self.resolve(reference, asked_at), asked_at)

    def text_at(self, path: Path, asked_at: Location | None) -> str:
        """Return the text of the file at `path`, without the line break at its end.

        Raises:
            ConfigError: one problem, placed at `asked_at`.
        """
        if path in self._texts:
            self._texts.move_to_end(path)
            return self._texts[path]
        if path.suffix.lower() == PDF_SUFFIX:
            content = _read_bytes(path, self.access, asked_at, MAX_TEXT_BYTES)
            text = pdf_text(content, path, asked_at, max_characters=_KEPT_CHARACTERS)
        else:
            text = read_text(path, self.access, asked_at=asked_at)
        text = text.removesuffix("\n").removesuffix("\r")
        self._texts[path] = text
        while len(self._texts) > _KEPT_FILES or sum(map(len, self._texts.values())) > _KEPT_CHARACTERS:
            self._texts.popitem(last=False)
        return text

    def document(self, reference: str, asked_at: Location | None) -> Document:
        """Return the content of a YAML or JSON file that is named by a `file://` reference.

        Raises:
            ConfigError: the file cannot be read, or its content is broken.
        """
        return self.document_at(self.resolve(reference, asked_at), asked_at)

    def document_at(self, path: Path, asked_at: Location | None) -> Document:
        """Return the content of the YAML or JSON file at `path`.

        Raises:
            ConfigError: the file cannot be read, or its content is broken.
        """
        if path not in self._documents:
            self._documents[path] = read_document(path, self.access, asked_at=asked_at)
            while len(self._documents) > _KEPT_FILES:
                self._documents.popitem(last=False)
        return self._documents[path]


def _read_bytes(path: Path, access: Access, asked_at: Location | None, max_bytes: int) -> bytes:
    try:
        with open_regular(path, access) as stream:
            content = stream.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    if len(content) > max_bytes:
        limit = f"{max_bytes // (1024 * 1024)} MB"
        hint = "put large test sets into a .jsonl file" if asked_at is None else "use a smaller file"
        raise ConfigError([Problem(f"`{path}` is larger than {limit}", asked_at, hint)])
    return content


def _missing_hint(path: Path, asked_at: Location | None) -> str:
    try:
        siblings = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"there is no folder `{path.parent}` either"
    near = did_you_mean(path.name, siblings)
    if near:
        return f"did you mean `{near}`?"
    base = "the folder of the config file" if asked_at else "the folder where the command runs"
    return f"paths are relative to {base}"

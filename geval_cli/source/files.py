"""Read files that a config names: every way in which that can fail becomes a problem with a location and a hint.

A text may name several files (wildcards, folders, sheets), and a suite is identified by hashes of all of them.
"""

import errno
import fnmatch
import hashlib
import io
import json
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from msgspec import Struct

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import Access, OutsideError, SpecialFileError, open_regular
from geval_cli.source.json_source import read_json
from geval_cli.source.problems import did_you_mean
from geval_cli.source.secrets import mask_config
from geval_cli.source.source_map import Document
from geval_cli.source.yaml_source import read_yaml
from geval_cli.version import install_hint

PDF_SUFFIX, PARQUET_SUFFIX = ".pdf", ".parquet"
MAX_PAGES = 2_000


def pdf_text(content: bytes, path: Path, asked_at: Location | None, *, max_characters: int) -> str:
    """Return the text of all pages, separated by blank lines.

    Args:
        content: the content of the file.
        path: the name of the file in messages.
        asked_at: where the config names it.
        max_characters: more text than this is a problem.

    Raises:
        ConfigError: one problem: the package is missing, or the file is broken, locked, too long or without text.
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
"""Further errors that a parser may raise on broken files."""


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
    """Silence the package's warnings about oddities in a file that it can read nonetheless."""
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
"""The size limit of a line of .jsonl or a row of .csv: such files may have any size, but each line is in memory."""
_KEPT_FILES = 64
_KEPT_CHARACTERS = 4 * 1024 * 1024
_HASH_CHUNK = 1024 * 1024
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def as_reference(path: str) -> str:
    """Return a path as a `file://` reference, unless it is one already."""
    return path if is_file_reference(path) else f"{FILE_PREFIX}{path}"


def is_file_reference(value: object) -> TypeGuard[str]:
    """Return whether a config value refers to the content of a file."""
    return isinstance(value, str) and value.startswith(FILE_PREFIX)


def read_document(
    path: Path, access: Access, *, asked_at: Location | None = None, prefix: str = ""
) -> Document:
    """Return the content of a YAML or JSON file (by its extension), with positions.

    Raises:
        ConfigError: the file cannot be read (located at `asked_at`), or its content is broken.
    """
    text = read_text(path, access, asked_at=asked_at, max_bytes=MAX_CONFIG_BYTES)
    return parse_document(text, path, prefix=prefix)


def parse_document(text: str, path: Path, *, prefix: str = "") -> Document:
    """Parse `text` as the content of the YAML or JSON file `path` (by its extension), which is not read.

    Raises:
        ConfigError: the content is broken.
    """
    if path.suffix.lower() == ".json":
        return read_json(text, str(path), prefix=prefix)
    return read_yaml(text, str(path), prefix=prefix)


def read_text(
    path: Path, access: Access, *, asked_at: Location | None = None, max_bytes: int = MAX_TEXT_BYTES
) -> str:
    """Return the UTF-8 text of a file, without a byte order mark.

    Raises:
        ConfigError: one problem, located at `asked_at`, or in the file itself if that is None.
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
    """Return the problem of a file that could not be opened, with a hint."""
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
    """Return the SHA-256 of a file's content in hexadecimal, reading it in chunks.

    Raises:
        OSError: it cannot be read, or is larger than `max_bytes`, which is checked before reading.
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
    """Return whether a text is the path of an existing file, so that `file://` was probably forgotten before it."""
    if not isinstance(value, str) or "." not in value or _FILE_NAME.fullmatch(value) is None:
        return False
    path = base_dir / value
    try:
        return not access.is_outside(path) and path.is_file()
    except (OSError, ValueError):
        return False


def matching_names(pattern: str, folder: Path) -> set[str]:
    """Return the names, relative to `folder`, that match a wildcard: `*` skips hidden ones, `**` follows no links.

    Each folder is listed once per part of the pattern, however many ways lead to it: `glob` walks all of them, which
    takes forever with a few `**`, or with two links to the folder that contains them.

    Raises:
        ValueError: through links, the parts before the last one match too many folders.
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
    """Return `parents` and all visible folders below them; with `with_files`, the visible entries of these instead."""
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
    """Return whether a text is an existing folder with `/` after it, or a wildcard that matches files."""
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
        """Return the path that a `file://` reference names.

        Raises:
            ConfigError: the path is empty, may not be read, or contains a template, which is unknown before the run.
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
        """Return the text of a `file://` reference, without its final line break.

        Raises:
            ConfigError: one problem, located at `asked_at`.
        """
        return self.text_at(self.resolve(reference, asked_at), asked_at)

    def text_at(self, path: Path, asked_at: Location | None) -> str:
        """Return the text of the file at `path`, without its final line break.

        Raises:
            ConfigError: one problem, located at `asked_at`.
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
        """Return the content of the YAML or JSON file that a `file://` reference names.

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


PYTHON_SUFFIXES = frozenset({".py"})
JAVASCRIPT_SUFFIXES = frozenset({".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx"})
OTHER_CODE_SUFFIXES = frozenset({".rb", ".go"})
RUNNABLE_SUFFIXES = PYTHON_SUFFIXES | {".js", ".mjs", ".cjs"}
CODE_SUFFIXES = PYTHON_SUFFIXES | JAVASCRIPT_SUFFIXES | OTHER_CODE_SUFFIXES

_WILDCARD = compile_later(r"[*?\[{]")
_BRACES = compile_later(r"\{([^{}]*,[^{}]*|-?\d{1,9}\.\.-?\d{1,9})\}")
_FUNCTION = compile_later(r"(?P<path>.+\.(?:py|js|mjs|cjs|ts|mts|cts|rb|go)):(?P<function>[A-Za-z_][\w.]*)$")
_MAX_NAME = 500
_MOST_TOLD = 20
_MOST_CHOICES = 1000
"""The maximum number of names that braces may expand to; more could be used to keep a machine busy."""


class NamedFile(Struct, frozen=True):
    """An existing file, with the function or sheet that is named in it ("" if none is)."""

    path: Path
    part: str = ""

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()


def is_wildcard(name: str) -> bool:
    """Return whether `name` may match several files."""
    return _WILDCARD.search(name) is not None


def find_files(
    reference: str, folder: Path, access: Access, asked_at: Location | None = None
) -> list[NamedFile]:
    """Return the files that `reference` names; an empty list if there are none, or if it cannot be a name.

    Files of a folder are sorted by name; those of wildcards come in promptfoo's order, last name first.

    Raises:
        ConfigError: one of them may not be read. A folder that may not be read is not listed either.
    """
    name, part = split_part(reference.removeprefix(FILE_PREFIX))
    if not name.strip() or len(name) > _MAX_NAME or "\n" in name or "\0" in name:
        return []
    if leads_outside(reference, folder, access):
        raise ConfigError([access.outside_problem(folder / name, asked_at)])
    found = _found_files(name, part, folder)
    outside = [file.path for file in found if access.is_outside(file.path)]
    if outside:
        raise ConfigError([access.outside_problem(path, asked_at) for path in outside[:_MOST_TOLD]])
    return found


def leads_outside(reference: str, folder: Path, access: Access) -> bool:
    """Return whether a reference, or a file that its wildcards match, is outside of the readable folders.

    Braces are checked both as written and expanded, and `..` after a wildcard counts as outside.
    """
    if access.folders is None:
        return False
    name, _ = split_part(reference.removeprefix(FILE_PREFIX))
    if access.is_outside(folder / name):
        return True
    if not is_wildcard(name):
        return False
    try:
        return any(_is_far(single, folder, access) for single in without_braces(name))
    except ValueError:
        return True


def _is_far(pattern: str, folder: Path, access: Access) -> bool:
    parts = Path(pattern).parts
    first = next((index for index, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
    return access.is_outside(folder.joinpath(*parts[:first])) or ".." in parts[first:]


def _found_files(name: str, part: str, folder: Path) -> list[NamedFile]:
    try:
        path = folder / name
        if path.is_dir():
            return [NamedFile(entry, part) for entry in sorted(path.iterdir()) if entry.is_file()]
        if path.is_file():
            return [NamedFile(path, part)]
        return [NamedFile(match, part) for match in _matches(name, folder)] if is_wildcard(name) else []
    except (OSError, ValueError, re.error):
        return []


def split_part(name: str) -> tuple[str, str]:
    """Split `checks.py:score` into path and function, `cases.xlsx#Sheet1` into path and sheet; "" if there is none."""
    found = _FUNCTION.match(name)
    if found:
        return found["path"], found["function"]
    path, mark, sheet = name.partition("#")
    return (path, sheet) if mark and path.lower().endswith((".xlsx", ".xlsm", ".xls")) else (name, "")


def missing_file(reference: str, folder: Path, access: Access, asked_at: Location | None) -> Problem:
    """Return the problem of a reference that names no file."""
    name, _ = split_part(reference.removeprefix(FILE_PREFIX))
    if is_wildcard(name):
        return Problem(f"no file matches `{name}`", asked_at, f"paths are relative to {folder}")
    path = folder / name
    if access.is_outside(path):
        return access.outside_problem(path, asked_at)
    try:
        near = did_you_mean(path.name, [entry.name for entry in path.parent.iterdir()])
    except OSError:
        return Problem(f"there is no file `{path}`", asked_at, f"there is no folder `{path.parent}` either")
    hint = f"did you mean `{near}`?" if near else f"paths are relative to {folder}"
    return Problem(f"there is no file `{path}`", asked_at, hint)


def _matches(pattern: str, folder: Path) -> list[Path]:
    found = {folder / name for single in without_braces(pattern) for name in matching_names(single, folder)}
    return sorted((path for path in found if path.is_file()), key=_walk_key, reverse=True)


def _walk_key(path: Path) -> tuple[tuple[bool, str], ...]:
    """Return the sort key of promptfoo's order, which is descending: last names first, files before folders."""
    *folders, name = path.parts
    return (*((False, folder) for folder in folders), (True, name))


def without_braces(pattern: str) -> list[str]:
    """Expand `a{1..3}.{txt,md}`, as Python's wildcards have no braces. Raises ValueError for too many names."""
    written_out, pending = [], [pattern]
    while pending:
        single = pending.pop()
        found = _BRACES.search(single)
        if not found:
            written_out.append(single)
        else:
            around = single[: found.start()], single[found.end() :]
            choices = found[1].split(",") if "," in found[1] else _counted(*found[1].split(".."))
            pending += [around[0] + choice + around[1] for choice in reversed(choices)]
        if len(written_out) + len(pending) > _MOST_CHOICES:
            raise ValueError(f"`{pattern}` expands to more than {_MOST_CHOICES:,} names")
    return written_out


def _counted(first: str, last: str) -> list[str]:
    """Return the numbers of `{first..last}`, padded to the width of the wider one if either begins with a zero."""
    start, end = int(first), int(last)
    if abs(end - start) >= _MOST_CHOICES:
        raise ValueError(f"`{first}..{last}` is more than {_MOST_CHOICES:,} numbers")
    has_zeros = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in (first, last))
    width = max(len(first), len(last)) if has_zeros else 0
    step = 1 if start <= end else -1
    return [str(number).zfill(width) for number in range(start, end + step, step)]


# Any word of a provider id may be a file name. Scripts and replies are small; a model of gigabytes is not read.
_MAX_PROVIDER_FILE = 16 * 1024 * 1024
_KEPT_HASHES = 1024
_PROVIDER_KEYS = ("providers", "provider")
_MOST_FILES = 1000  # files with a part of their own; a test set may name a file in each of its tests

CONFIG_PART = "config: "
FILE_PART = "file: "
ROWS_PART = "tests"
OVERRIDES_PART = "vars"


def suite_parts(
    filled: Mapping[str, JsonValue],
    rows: Iterable[JsonValue],
    files: SourceFiles,
    overrides: Mapping[str, JsonValue],
    masked: Mapping[str, JsonValue] | None = None,
) -> dict[str, str]:
    """Return hashes (SHA-256) of everything in the files that decides the results, part by part. Secrets do not count.

    There is a part for each key of the config, for each file that is named (but many files share one part), for the
    rows, and for the overrides.

    Args:
        filled: the config with env values filled in.
        rows: from a file of tests, all that name files or have env values, filled in.
        files: the folder that file names are relative to, and which files may be read.
        overrides: variables from the command line.
        masked: what `mask_config` returned for those parts that have no env values.
    """
    known = masked or {}
    parts = {f"{CONFIG_PART}{key}": _part_hash(key, value, known.get(key)) for key, value in filled.items()}
    parts[OVERRIDES_PART] = _hash(dict(overrides))
    row_digest, file_digest = hashlib.sha256(), hashlib.sha256()
    hashed = lru_cache(_KEPT_HASHES)(lambda name: hash_or_reason(files.base_dir / name, files.access))
    for part in chain([dict(filled)], _one_by_one(rows, row_digest)):
        for name in sorted(set(_named_files(part, files))):
            if f"{FILE_PART}{name}" in parts or len(parts) < _MOST_FILES:
                parts[f"{FILE_PART}{name}"] = hashed(name)
            else:
                file_digest.update(_canonical([name, hashed(name)]))
    parts[ROWS_PART] = row_digest.hexdigest()
    parts[f"{FILE_PART}..."] = file_digest.hexdigest()
    return parts


_STREAMED = frozenset({".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".pdf"})


def digest_of(parts: Mapping[str, JsonValue]) -> str:
    """Return the SHA-256, in hexadecimal, of all `parts` together."""
    return _hash(dict(parts))


def _part_hash(key: str, value: JsonValue, masked: JsonValue) -> str:
    if masked is not None and key != "env":
        canonical = _canonical({key: masked})
        # The two ways of masking differ only in headers.
        if b"headers" not in canonical.lower():
            return hashlib.sha256(canonical).hexdigest()
    # Of `env:`, only what is secret by its name is masked: all else may affect results, because programs see it.
    part = value if key == "env" else {key: value}
    return _hash(mask_config(part, hides_headers=False))


def _hash(value: JsonValue) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _one_by_one(rows: Iterable[JsonValue], digest: "hashlib._Hash") -> Iterator[JsonValue]:
    for row in rows:
        digest.update(_canonical(mask_config(row, hides_headers=False)))
        yield row


def _canonical(value: JsonValue) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _named_files(value: JsonValue, files: SourceFiles) -> Iterator[str]:
    """Yield the files that `value` and everything in it refer to, also those named by ids of providers and judges."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            if is_file_reference(part):
                name = part.removeprefix(FILE_PREFIX)
                before, _, function = name.rpartition(":")
                yield before if function.isidentifier() and _is_small_file(files, before) else name
        elif isinstance(part, dict):
            pending.extend(part.values())
            for key in _PROVIDER_KEYS:
                if key in part:
                    # Small files that the ids of providers and judges name: `scripted:replies.yaml`,
                    # `exec:./ask.sh --short`.
                    named = part[key]
                    for item in named if isinstance(named, list) else [named]:
                        provider_id = item.get("id") if isinstance(item, dict) else item
                        if isinstance(provider_id, str):
                            rest = provider_id.partition(":")[2].removeprefix("//")
                            candidates = {rest, rest.rpartition(":")[0], *rest.split()}
                            yield from (name for name in candidates if _is_small_file(files, name))
        elif isinstance(part, list):
            pending.extend(part)


def _is_small_file(files: SourceFiles, name: str) -> bool:
    try:
        path = files.base_dir / name
        return (
            name != ""
            and not files.access.is_outside(path)
            and path.is_file()
            and path.stat().st_size <= _MAX_PROVIDER_FILE
        )
    except (OSError, ValueError):
        return False


def hash_or_reason(path: Path, access: Access) -> str:
    """Return the file's hash, or a constant for a file that cannot be read, which is reported elsewhere."""
    try:
        # A file that is read as a whole may not be larger; that is reported elsewhere.
        is_streamed = path.suffix.lower() in _STREAMED
        return hash_file(path, access, max_bytes=None if is_streamed else MAX_CONFIG_BYTES)
    except (OSError, ValueError):
        return "unreadable"

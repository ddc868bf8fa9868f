"""Suites in the served folder: listed, read as they are, written back whole, never over someone else's change."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ConfigError, OutputError
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.extras.web.served_folder import CONFIG_SUFFIXES, served_config
from geval_cli.records import JsonValue
from geval_cli.report.safe_file import SafeFile, open_in_place
from geval_cli.source.access import TRUSTED, open_regular
from geval_cli.source.files import MAX_CONFIG_BYTES, is_file_reference, read_text
from geval_cli.source.json_source import read_json
from geval_cli.source.yaml_source import read_yaml
from geval_cli.suite.load import read_with_rules, rules_of
from geval_cli.suite.starter import choose_starter

SUITE_KEYS = frozenset({"prompts", "providers", "tests", "defaultTest", "default_test"})

_FORBIDDEN, _NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 403, 404, 409, 422
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_NEW_SUFFIXES = (".yaml", ".yml")
_NAME_LENGTH = 200


class SuiteFile(Struct, frozen=True):
    """A suite's file as it was when it was read. `digest` is the SHA-256 of its bytes."""

    path: Path
    text: str
    digest: str
    has_mark: bool

    def written(self, text: str) -> bytes:
        """Return the bytes of the file with another text."""
        return (_BYTE_ORDER_MARK if self.has_mark else b"") + text.encode()


def is_suite(value: JsonValue) -> bool:
    """Return whether the content of a file is that of a suite, as far as its keys say."""
    return isinstance(value, dict) and not SUITE_KEYS.isdisjoint(value)


def open_suite_file(folder: Path, name: str) -> SuiteFile:
    """Return the suite `name` of the served folder. One whose name says that it is one may be broken.

    Raises:
        RefusedError: no such file, no suite, or one that cannot be edited here.
        ConfigError: its text is broken.
    """
    path = served_config(folder, name)
    parts = path.resolve().relative_to(folder.resolve()).parts
    if any(part.startswith(".") for part in parts):
        hint = "files whose names start with a dot are not suites"
        raise RefusedError(f"{name} is hidden", status=_FORBIDDEN, hint=hint)
    try:
        with open_regular(path, TRUSTED) as stream:
            content = stream.read()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "check the file's permissions"
        raise RefusedError(f"{path.name} cannot be read: {reason}", status=_FORBIDDEN, hint=hint) from error
    text = read_text(path, TRUSTED, max_bytes=MAX_CONFIG_BYTES)
    try:
        check_text(path, name, text)
    except ConfigError:
        if not _is_named_suite(path):
            raise
    has_mark = content.startswith(_BYTE_ORDER_MARK)
    return SuiteFile(path, text, hashlib.sha256(content).hexdigest(), has_mark)


def check_text(path: Path, name: str, text: str) -> None:
    """Check that a text is a suite that can be edited here.

    Raises:
        RefusedError: it is none.
        ConfigError: it is no YAML or JSON.
    """
    document = (read_json if path.suffix.lower() == ".json" else read_yaml)(text, str(path))
    if not is_suite(document.value):
        hint = "a suite has `prompts`, `providers` or `tests`"
        raise RefusedError(f"{name} is not a suite", status=_NOT_FOUND, hint=hint)
    rules = rules_of(path, document, text.split("\n", 1)[0])
    if not rules.is_editable:
        hint = "edit it in an editor; `geval run` can run it"
        message = f"{name} follows {rules.name}'s rules, which this editor does not support"
        raise RefusedError(message, status=_UNPROCESSABLE, hint=hint)


def _is_named_suite(path: Path) -> bool:
    return path.stem.startswith(("geval", "promptfooconfig")) and path.suffix != ".json"


def digest_on_disk(path: Path) -> str:
    """Return the SHA-256 of a file's bytes now; empty when it is gone."""
    try:
        with open_regular(path, TRUSTED) as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def save_suite_file(path: Path, content: bytes, expected_digest: str) -> str:
    """Replace a file's content by `content`, unless it changed meanwhile; return the new digest.

    The file's mode stays, and a reader sees the old content or the new one, nothing between.

    Raises:
        RefusedError: it changed meanwhile, is read-only, or cannot be written.
    """
    if digest_on_disk(path) != expected_digest:
        hint = "reload it, or overwrite the file with your version"
        raise RefusedError(f"{path.name} changed on disk since it was opened", status=_CONFLICT, hint=hint)
    # The mode too: for root, `access` says that everything can be written.
    if not path.stat().st_mode & _WRITABLE or not os.access(path, os.W_OK):
        hint = "make it writable (chmod u+w), then save again"
        raise RefusedError(f"{path.name} is read-only", status=_FORBIDDEN, hint=hint)
    try:
        with SafeFile(path) as file:
            file.write(content.decode())
    except OutputError as error:
        hint = "fix it, then save again: your changes are still on this page"
        raise RefusedError(error.message, status=_FORBIDDEN, hint=hint) from error
    return hashlib.sha256(content).hexdigest()


def create_suite_file(folder: Path, name: str) -> str:
    """Write a starter suite under a new name; return the name with its suffix.

    Raises:
        RefusedError: the name is taken or none, or the folder cannot be written to.
    """
    name = name.strip()
    name = name if name.lower().endswith(_NEW_SUFFIXES) else f"{name}.yaml"
    hint = "choose a name such as `support.yaml`"
    base, path = folder.resolve(), folder / name
    stem = path.name.rpartition(".")[0]
    if (
        not stem
        or len(name) > _NAME_LENGTH
        or not name.isprintable()
        or any(part.startswith(".") for part in Path(name).parts)
    ):
        raise RefusedError("this is not a valid name for a suite", status=_UNPROCESSABLE, hint=hint)
    if not path.parent.resolve().is_relative_to(base):
        raise RefusedError(f"{name} is outside the served folder", status=_FORBIDDEN, hint=hint)
    try:
        # `x`, and no look beforehand: two who choose the same name at once must not both get it.
        descriptor = open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(choose_starter(os.environ, folder, TRUSTED).text)
    except FileExistsError as error:
        raise RefusedError(f"{name} already exists", status=_CONFLICT, hint="choose another name") from error
    except FileNotFoundError as error:
        raise RefusedError(f"there is no folder {path.parent.name}", status=_NOT_FOUND, hint=hint) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RefusedError(f"cannot write {name}: {reason}", status=_FORBIDDEN, hint=hint) from error
    return name


LISTED_MAX = 500
_FILES_MAX = 20_000
_LOOKED_INTO_BYTES = 1024 * 1024
_FOREIGN_FOLDERS = frozenset({"node_modules", "venv", "__pycache__", "site-packages"})
_RESULTS_KEYS = frozenset({"results", "summary"})


class ListedSuite(Struct, frozen=True):
    """A suite in the list.

    Attributes:
        name: its path within the folder, with `/`.
        description: what it says of itself.
        prompts: how many; `tests` too, None when they are in a file of their own.
        state: `ok`, `broken`, or the name of a dialect that is shown and not edited: `promptfoo`.
        modified_at: seconds since 1970.
    """

    name: str
    description: str
    prompts: int
    providers: int
    tests: int | None
    state: str
    modified_at: float


def list_suites(folder: Path) -> list[ListedSuite]:
    """List the suites below a folder by name, at most `LISTED_MAX`. Hidden folders are left out."""
    found: list[ListedSuite] = []
    for path in _config_files(folder):
        suite = _listed(folder, path)
        if suite is not None:
            found.append(suite)
        if len(found) >= LISTED_MAX:
            break
    return sorted(found, key=lambda suite: (suite.name.count("/"), suite.name))


def _config_files(folder: Path) -> Iterator[Path]:
    seen = 0
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _FOREIGN_FOLDERS
        )
        for name in sorted(files):
            seen += 1
            if seen > _FILES_MAX:
                return
            if name.lower().endswith(CONFIG_SUFFIXES) and not name.startswith("."):
                path = Path(where, name)
                if _has_address(path):
                    yield path


def _has_address(path: Path) -> bool:
    """Return whether a URL can name the file: on Linux a name may be bytes that are no text."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(folder: Path, path: Path) -> ListedSuite | None:
    name = path.relative_to(folder).as_posix()
    try:
        details = path.stat()
        is_small_file = stat.S_ISREG(details.st_mode) and details.st_size <= _LOOKED_INTO_BYTES
        if not is_small_file or not path.resolve().is_relative_to(folder.resolve()):
            return None
        document, rules = read_with_rules(path, TRUSTED)
    except ConfigError:
        if not _is_named_suite(path):
            return None
        return ListedSuite(
            name, "", prompts=0, providers=0, tests=None, state="broken", modified_at=details.st_mtime
        )
    except OSError:
        return None
    value = document.value
    if not isinstance(value, dict) or not is_suite(value) or _RESULTS_KEYS & set(value):
        return None
    described, tests = value.get("description"), value.get("tests")
    return ListedSuite(
        name=name,
        description=described if isinstance(described, str) else "",
        prompts=_count(value.get("prompts")),
        providers=_count(value.get("providers")),
        tests=_count_tests(tests),
        state="ok" if rules.is_editable else str(rules.name),
        modified_at=details.st_mtime,
    )


def _count_tests(tests: JsonValue) -> int | None:
    """Return how many tests there are; None when files hold some of them."""
    if not isinstance(tests, list):
        return None if tests else 0
    has_files = any(is_file_reference(item) or (isinstance(item, dict) and "path" in item) for item in tests)
    return None if has_files else len(tests)


def _count(value: object) -> int:
    if isinstance(value, list):
        return len(value)
    return 0 if value is None else 1

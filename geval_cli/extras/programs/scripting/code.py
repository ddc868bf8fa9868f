"""The code that a config names, a snippet or a function in a file; found and checked before anything runs."""

import ast
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from geval_cli.source.access import Access, OutsideError, open_regular
from geval_cli.source.command import ScriptError


class ScriptLimitError(ScriptError):
    """The code needs something it is not allowed: more memory, a module, the network, the environment."""


FILE_PREFIX = "file://"
MAX_FILE_BYTES = 4 * 1024 * 1024
JAVASCRIPT_SUFFIXES = frozenset({".js", ".cjs", ".mjs"})
# Listed separately so that the message can say what to do: the engine reads JavaScript only.
_TYPESCRIPT = frozenset({".ts", ".mts", ".cts", ".tsx", ".jsx"})
PYTHON_SUFFIXES = frozenset({".py"})


class Language(StrEnum):
    """The language of a config's code."""

    JAVASCRIPT = "javascript"
    PYTHON = "python"


class CodeError(Exception):
    """The code is missing or invalid. `line` counts the code's lines from 1; None if unknown."""

    def __init__(self, message: str, *, hint: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.line = line


class Code(Struct, frozen=True):
    """Code that can be run.

    Attributes:
        text: the snippet, or the content of a JavaScript file; empty for a Python file, which is imported.
        path: the file; None for a snippet.
        function: the function in the file; empty for the default one.
        calls_result: if the JavaScript evaluates to a function, whether to call it or to return it as the result.
    """

    language: Language
    text: str = ""
    path: Path | None = None
    function: str = ""
    calls_result: bool = True

    @property
    def name(self) -> str:
        """Return the name for messages."""
        if self.path is not None:
            return self.path.name + (f":{self.function}" if self.function else "")
        return "the JavaScript code" if self.language is Language.JAVASCRIPT else "the Python code"


def find_code(written: str, base_dir: Path, language: Language, access: Access) -> Code:
    """Return the code that a config's text contains or names.

    Args:
        written: a snippet, or `file://` and a path, optionally followed by `:function`.
        base_dir: the folder that the path is relative to.
        language: the language of snippets; files are recognized by their suffix.
        access: which files may be read for the config.

    Raises:
        CodeError: the text is empty, or the file cannot be read or is in another language.
    """
    if not written.startswith(FILE_PREFIX):
        if not written.strip():
            raise CodeError(
                "there is no code", hint="write an expression, or file:// with the path of a file"
            )
        return Code(language, written)
    name, function = _split_function(written.removeprefix(FILE_PREFIX).strip())
    if "\0" in name:
        raise CodeError("a file name cannot contain a null character", hint="use a .js or .py file")
    try:
        access.require_inside(base_dir / name)
    except OutsideError as error:
        problem = error.problem(None)
        raise CodeError(problem.message, hint=problem.hint) from error
    path = (base_dir / name).resolve()
    suffix = path.suffix.lower()
    if suffix in _TYPESCRIPT:
        raise CodeError(
            f"TypeScript is not supported: `{name}`", hint="compile it to JavaScript and use the .js file"
        )
    if suffix not in JAVASCRIPT_SUFFIXES | PYTHON_SUFFIXES:
        raise CodeError(f"`{name}` is not a JavaScript or Python file", hint="use a .js or .py file")
    text = _read(path, name, access)
    if suffix in PYTHON_SUFFIXES:
        return Code(Language.PYTHON, path=path, function=function)
    return Code(Language.JAVASCRIPT, text, path, function)


def check_python(code: Code, default_function: str, access: Access) -> None:
    """Compile the code without running it.

    Raises:
        CodeError: the code has a syntax error, or the file lacks the function.
    """
    text = code.text if code.path is None else _read(code.path, code.path.name, access)
    try:
        tree = ast.parse(text if code.path is not None else textwrap.dedent(text).strip())
    except (SyntaxError, ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise CodeError(f"{code.name} has a syntax error: {what}", line=line) from error
    if code.path is not None:
        function = code.function or default_function
        names = set(_top_names(tree))
        if function.partition(".")[0] not in names and "*" not in names:
            hint = f"define it, or use another: file://{code.path.name}:FUNCTION"
            raise CodeError(f"{code.path.name} has no function `{function}`", hint=hint)


def _top_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file defines or imports, at any depth: this also finds names inside `if` and `try`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _split_function(name: str) -> tuple[str, str]:
    path, separator, function = name.rpartition(":")
    if separator and Path(path).suffix and all(part.isidentifier() for part in function.split(".")):
        return path, function
    return name, ""


def _read(path: Path, name: str, access: Access) -> str:
    try:
        status = path.stat()
        if not path.is_file():
            raise CodeError(f"`{name}` is not a file", hint="use a .js or .py file")
        if status.st_size > MAX_FILE_BYTES:
            raise CodeError(f"`{name}` is larger than 4 MB", hint="use a smaller file")
        return _content(path, access, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise CodeError(f"`{name}` is not UTF-8 text", hint="save it as UTF-8") from error
        reason = error.strerror if isinstance(error, OSError) else error
        hint = "paths are relative to the folder of the config file"
        raise CodeError(f"the file `{name}` cannot be read: {reason}", hint=hint) from error


@lru_cache(256)
def _content(path: Path, access: Access, changed_ns: int, size: int) -> str:
    del changed_ns, size  # in the cache key only, so that an edited file is read again
    with open_regular(path, access) as stream:
        return stream.read().decode("utf-8-sig")

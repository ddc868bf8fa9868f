"""Runs the Python and JavaScript functions that generate parts of a config, while the config is read."""

import asyncio
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import CodeFailedError, ConfigError, Location, Problem
from geval_cli.extras.programs.scripting.code import (
    FILE_PREFIX,
    PYTHON_SUFFIXES,
    Code,
    CodeError,
    Language,
    ScriptLimitError,
    find_code,
)
from geval_cli.extras.programs.scripting.javascript import (
    INSTALL_HINT,
    Entry,
    call_javascript_now,
    check_javascript,
    is_installed,
)
from geval_cli.extras.programs.scripting.processes import PythonProcess
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.command import ScriptError
from geval_cli.specs.promptfoo import TemplateFilter
from geval_cli.store.home import make_temporary_folder, remove_folder
from geval_cli.suite.suite import LoadedSuite

TIME_LIMIT_S = 120.0
"""Time limit of one function call; reading the config waits for it."""

_MAKE_FILE = "have Node write the tests to a .jsonl file and use that"


@dataclass(slots=True, weakref_slot=True)
class LoadScripts:
    """Calls functions in separate processes and caches each result by function and arguments.

    Rows are kept in a temporary folder, which is removed together with this object.
    """

    env: Mapping[str, str] = field(repr=False)
    access: Access
    time_limit_s: float = TIME_LIMIT_S
    _results: dict[str, JsonValue] = field(default_factory=dict, repr=False)
    _rows: dict[tuple[Path, str], Path | ConfigError] = field(default_factory=dict, repr=False)
    _folder: Path | None = None

    def __call__(
        self, path: Path, function: str, arguments: list[JsonValue], asked_at: Location | None
    ) -> JsonValue:
        """See `geval_cli.suite.validation.ScriptCaller`."""
        self._require_code(path, asked_at)
        key = json.dumps([str(path), function, arguments])
        if key not in self._results:
            if path.suffix.lower() in PYTHON_SUFFIXES:
                self._results[key] = self._result_of(
                    lambda: asyncio.run(self._call(path.resolve(), function, arguments)),
                    path,
                    function,
                    asked_at,
                )
            else:
                self._results[key] = self._result_of(
                    lambda: self._call_javascript(path.resolve(), function, arguments),
                    path,
                    function,
                    asked_at,
                )
        return self._results[key]

    def provider_name(
        self, path: Path, export: str, options: Mapping[str, JsonValue], asked_at: Location | None
    ) -> JsonValue:
        """See `geval_cli.suite.validation.ScriptCaller`."""
        self._require_code(path, asked_at)
        return self._result_of(
            lambda: self._call_javascript(path.resolve(), export, [dict(options)], Entry.PROVIDER_NAME),
            path,
            export,
            asked_at,
        )

    def rows(self, path: Path, function: str, asked_at: Location | None) -> Path:
        """See `geval_cli.suite.validation.ScriptCaller`."""
        self._require_code(path, asked_at)
        key = (path, function)
        if key not in self._rows:
            if self._folder is None:
                # Readable by this user only: tests may hold private data.
                self._folder = make_temporary_folder("geval-tests-")
                weakref.finalize(self, remove_folder, self._folder)
            rows_folder = self._folder
            made = rows_folder / f"{len(self._rows)}.jsonl"
            try:
                self._result_of(
                    lambda: asyncio.run(self._call(path.resolve(), function, [], rows_into=made)),
                    path,
                    function,
                    asked_at,
                )
                self._rows[key] = made
            except ConfigError as error:
                self._rows[key] = error  # a failed function is not called again for this config
        found = self._rows[key]
        if isinstance(found, ConfigError):
            raise found
        return found

    def _require_code(self, path: Path, asked_at: Location | None) -> None:
        try:
            self.access.require_code(path.name)
        except CodeFailedError as error:
            raise ConfigError([Problem(error.message, asked_at, error.hint)]) from error

    def _result_of(
        self, call: Callable[[], JsonValue], path: Path, function: str, asked_at: Location | None
    ) -> JsonValue:
        # In a thread, since the caller may already be running an event loop.
        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(call).result()
            except CodeError as error:
                raise ConfigError([Problem(error.message, asked_at, error.hint)]) from error
            except ScriptError as error:
                what = f"`{function}` of {path.name}" if function else path.name
                hint = "see its error below" if error.detail else ""
                if isinstance(error, ScriptLimitError):
                    hint = f"{_MAKE_FILE}, or write it in Python"
                failure = Problem(
                    f"{what} failed: {error}", asked_at, hint, tuple(error.detail.rstrip().splitlines()[-3:])
                )
                raise ConfigError([failure]) from error

    async def _call(
        self, path: Path, function: str, arguments: list[JsonValue], *, rows_into: Path | None = None
    ) -> JsonValue:
        process = PythonProcess(path, env=self.env)
        try:
            return await process.call(function, arguments, timeout_s=self.time_limit_s, rows_into=rows_into)
        finally:
            await process.aclose()

    def _call_javascript(
        self, path: Path, function: str, arguments: list[JsonValue], entry: Entry = Entry.TESTS
    ) -> JsonValue:
        if not is_installed():
            raise CodeError(
                f"{path.name} needs a JavaScript engine, which is not installed", hint=INSTALL_HINT
            )
        code = find_code(
            f"{FILE_PREFIX}{path}" + (f":{function}" if function else ""),
            path.parent,
            Language.JAVASCRIPT,
            self.access,
        )
        try:
            check_javascript(code, ())
        except CodeError as error:
            raise CodeError(
                error.message, hint=f"{_MAKE_FILE}, or write it without" if error.hint else ""
            ) from error
        named = {f"argument{index}": value for index, value in enumerate(arguments)}
        return call_javascript_now(code, named, entry=entry)


class _JavaScriptFilter(Struct, frozen=True):
    """A template filter written in JavaScript. Raises ValueError, which the template reports as its own failure."""

    name: str
    code: Code

    def __call__(self, value: JsonValue, *further: JsonValue) -> JsonValue:
        arguments = {f"argument{index}": item for index, item in enumerate((value, *further))}
        try:
            return call_javascript_now(self.code, arguments)
        except ScriptError as error:
            raise ValueError(f"the filter `{self.name}` failed: {error}") from error


def template_filters(suite: LoadedSuite) -> dict[str, Callable[..., JsonValue]]:
    """Return the filters by name.

    A filter that may not run, or whose code or engine is missing, returns an empty string.
    """
    return {item.name: _built(item, suite) if suite.access.runs_code else _nothing for item in suite.filters}


def filter_problems(suite: LoadedSuite) -> Iterator[Problem]:
    """Yield the problems of the suite's filters."""
    for item in suite.filters:
        if not is_installed():
            yield Problem("the JavaScript engine is not installed", item.location, INSTALL_HINT)
            continue
        try:
            check_javascript(
                find_code(item.written, suite.base_dir, Language.JAVASCRIPT, suite.access), ("value",)
            )
        except CodeError as error:
            yield Problem(error.message, item.location, error.hint or "fix the code")


def _built(item: TemplateFilter, suite: LoadedSuite) -> Callable[..., JsonValue]:
    try:
        code = find_code(item.written, suite.base_dir, Language.JAVASCRIPT, suite.access)
    except CodeError:
        return _nothing
    return _JavaScriptFilter(item.name, code) if is_installed() else _nothing


def _nothing(*_: JsonValue) -> JsonValue:
    return ""

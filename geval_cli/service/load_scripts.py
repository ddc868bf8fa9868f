"""Runs the Python functions that make parts of a config, while the config is read."""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.records import JsonValue
from geval_cli.scripting.python_process import PythonProcess
from geval_cli.scripting.script_errors import ScriptError

TIME_LIMIT_S = 120.0
"""How long one function may take; nothing else happens meanwhile."""


@dataclass(slots=True)
class LoadScripts:
    """Calls each function once for equal arguments, in a process of its own, and keeps what it returned."""

    env: Mapping[str, str] = field(repr=False)
    time_limit_s: float = TIME_LIMIT_S
    _results: dict[str, JsonValue] = field(default_factory=dict, repr=False)

    def __call__(
        self, path: Path, function: str, arguments: list[JsonValue], asked_at: Location | None
    ) -> JsonValue:
        """See `geval_cli.config.scripts.ScriptCaller`."""
        key = json.dumps([str(path), function, arguments])
        if key not in self._results:
            # In a thread, since whoever reads a config may have an event loop of its own.
            with ThreadPoolExecutor(1) as thread:
                called = thread.submit(asyncio.run, self._call(path.resolve(), function, arguments))
                try:
                    self._results[key] = called.result()
                except ScriptError as error:
                    message = f"`{function}` of {path.name} failed: {error}"
                    hint = "see what it says below" if error.detail else ""
                    notes = tuple(error.detail.rstrip().splitlines()[-3:])
                    raise ConfigError([Problem(message, asked_at, hint, notes)]) from error
        return self._results[key]

    async def _call(self, path: Path, function: str, arguments: list[JsonValue]) -> JsonValue:
        process = PythonProcess(path, env=self.env)
        try:
            return await process.call(function, arguments, timeout_s=self.time_limit_s)
        finally:
            await process.aclose()

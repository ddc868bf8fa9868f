"""Several processes of one Python file, so that slow calls need not wait for one another."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geval_cli.scripting.python_process import PythonProcess


class PythonPool:
    """Calls functions of one Python file, up to `size` at a time. Belongs to the event loop of its first call.

    A process is started only when all the others are busy: one call after another stays in one process.
    """

    def __init__(
        self, path: Path, *, size: int, env: Mapping[str, str] | None = None, home: Path | None = None
    ) -> None:
        self._path = path
        self._env = env
        self._home = home
        self._turns = asyncio.Semaphore(size)
        self._processes: list[PythonProcess] = []
        self._idle: list[PythonProcess] = []

    async def call(self, function: str, arguments: list[Any], *, timeout_s: float) -> Any:
        """What `function` returns; see `PythonProcess.call`, whose errors it raises.

        The time runs from when the call's turn comes.
        """
        async with self._turns:
            process = self._idle.pop() if self._idle else self._add()
            try:
                return await process.call(function, arguments, timeout_s=timeout_s)
            finally:
                self._idle.append(process)

    async def aclose(self) -> None:
        """End the processes. Safe to call twice."""
        await asyncio.gather(*(process.aclose() for process in self._processes))

    def _add(self) -> PythonProcess:
        process = PythonProcess(self._path, env=self._env, home=self._home)
        self._processes.append(process)
        return process

"""Runs all code that a run executes: one JavaScript engine, and a pool of processes for each Python file."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from geval_cli.extras.programs.scripting.code import Code, Language
from geval_cli.extras.programs.scripting.javascript import JavaScriptEngine
from geval_cli.extras.programs.scripting.processes import PythonPool
from geval_cli.records import JsonValue
from geval_cli.source.access import Access

PYTHON_LIMIT_S = 60.0
"""Time limit of one call of Python code."""

_SNIPPETS = Path(__file__).with_name("python_snippets.py")
# Per Python file. Low, since assertions are short and each process repeats the file's imports.
_PROCESSES = 2


@dataclass(slots=True)
class Scripts:
    """Runs the code of one suite. Belongs to the event loop of its first call.

    `base_dir` is where Python snippets run and import from.
    """

    base_dir: Path
    access: Access
    env: Mapping[str, str] | None = field(default=None, repr=False)
    python_limit_s: float = PYTHON_LIMIT_S
    javascript: JavaScriptEngine = field(default_factory=JavaScriptEngine)
    _pools: dict[Path | None, PythonPool] = field(default_factory=dict)

    async def call(
        self,
        code: Code,
        arguments: Mapping[str, JsonValue],
        *,
        default_function: str = "get_assert",
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> JsonValue:
        """Call the code and return its result.

        Args:
            code: a snippet sees `arguments` by name; a function receives them in order, as many as it takes.
            arguments: JSON values.
            default_function: the function to call in a Python file when the config names none.
            begin: awaited when the call's turn has come, right before it is made; for Python files only.

        Raises:
            CodeFailedError: this suite may not run code.
            ScriptError: the code raised, its result is not JSON, or it needs something that it is not allowed.
        """
        self.access.require_code(code.name)
        if code.language is Language.JAVASCRIPT:
            return await self.javascript.call(code, arguments)
        path = code.path
        if path not in self._pools:
            home = self.base_dir.resolve() if path is None else None
            self._pools[path] = PythonPool(path or _SNIPPETS, size=_PROCESSES, env=self.env, home=home)
        pool = self._pools[path]
        if code.path is None:
            return await self._called(pool, "evaluate", [code.text, dict(arguments)])
        function = code.function or default_function
        return await self._called(pool, function, list(arguments.values()), begin)

    async def _called(
        self,
        pool: PythonPool,
        function: str,
        arguments: list[JsonValue],
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> JsonValue:
        result: JsonValue = await pool.call(function, arguments, timeout_s=self.python_limit_s, begin=begin)
        return result

    async def aclose(self) -> None:
        """End processes and threads. Safe to call twice."""
        self.javascript.close()
        for pool in self._pools.values():
            await pool.aclose()

"""`SchemaEvaluation`: validate outputs against a JSON Schema, like a test's `evaluation_schema`, without a judge."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from geval_cli.errors import UsageError

if TYPE_CHECKING:
    from geval_cli.assertions.base import Outcome


@dataclass(frozen=True, slots=True)
class SchemaResult:
    """The verdict on one output.

    Attributes:
        status: `passed`, `failed` or `not_evaluated` (the schema is empty).
        score: 1 if the output matches the schema, 0 if not, None if nothing was evaluated.
        reason: the reason in words; for an output that does not match, every error with its JSON path.
    """

    status: Literal["passed", "failed", "not_evaluated"]
    score: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class SchemaEvaluation:
    """A JSON Schema that outputs must match.

    Attributes:
        schema: a mapping, a boolean or JSON text; an empty schema evaluates nothing.
        parsing: `strict`: the output is JSON and nothing else; `tolerant`: code fences and prose may surround it.

    Raises:
        UsageError: the schema is not valid; names every problem.
    """

    schema: Mapping[str, Any] | bool | str
    parsing: Literal["strict", "tolerant"] = "strict"

    def __post_init__(self) -> None:
        from geval_cli.assertions.json_output import schema_problems
        from geval_cli.assertions.json_text import none_if_empty
        from geval_cli.source.source_map import SourcePath

        if self.parsing not in ("strict", "tolerant"):
            raise UsageError(
                f"`parsing` is strict or tolerant, not {self.parsing!r}", hint="strict is the default"
            )
        written = none_if_empty(self._written())
        problems = [] if written is None else schema_problems(written, "the schema", SourcePath.nowhere())
        if problems:
            raise UsageError.of("this schema cannot be used", problems)

    def evaluate(self, actual_output: Any) -> SchemaResult:
        """Return the verdict on an output, which is text or JSON data.

        Raises:
            UsageError: the output cannot be written as JSON.
            GevalError: a pattern in the schema takes too long on this output.
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:  # the caller may have a running event loop
            return thread.submit(asyncio.run, self.aevaluate(actual_output)).result()

    async def aevaluate(self, actual_output: Any) -> SchemaResult:
        """Do the same as `evaluate`, without blocking the event loop."""
        from geval_cli.assertions.json_output import evaluate_text
        from geval_cli.library.suite import SuiteWriter

        text = actual_output
        if not isinstance(text, str):
            writer = SuiteWriter()
            text = json.dumps(writer.plain(actual_output, ("actual_output",)), ensure_ascii=False)
            if writer.problems:
                raise UsageError.of("this output cannot be checked", writer.problems)
        outcome: Outcome = await evaluate_text(text, self._written(), self.parsing)
        return SchemaResult(outcome.status.value, outcome.score, outcome.reason)  # type: ignore[arg-type]  # never `error`

    def _written(self) -> dict[str, Any] | bool | str:
        return dict(self.schema) if isinstance(self.schema, Mapping) else self.schema

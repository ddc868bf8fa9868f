"""A test's turns, the steps of an agent, and the tools whose calls are answered."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import Field

from geval_cli.records import ToolDefinition
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import ProviderSpec, Spec

MAX_CALLS = 20
TurnRole = Literal["system", "developer", "user", "assistant", "tool"]


class TurnSpec(Spec):
    """One turn: `role` and `content` of a recorded message, or just `user` for a message to play."""

    role: TurnRole | None = Field(None, description="The author: system, developer, user, assistant or tool.")
    content: str | None = Field(None, description="The text, taken literally: no template, no file.")
    tool_calls: tuple[dict[str, Any], ...] = Field(
        (), description="The assistant's tool calls, as in chat APIs or as {name, args}."
    )
    tool_call_id: str | None = Field(None, description="The id of the call that this tool message answers.")
    user: str | None = Field(
        None, description="A user message in a played conversation; the model answers each one."
    )


StepType = Literal["tool", "llm", "step"]


class TraceStepSpec(Spec):
    """One step of an agent: a tool call, a model call or anything else."""

    type: StepType = Field(
        "tool", description="The kind of step: a tool call, a model call (llm) or another step."
    )
    name: Annotated[str, Field(min_length=1)] = Field(description="The name of the tool, model or step.")
    args: Any = Field(None, description="The arguments of the call.")
    output: Any = Field(None, description="The result.")
    error: str | None = Field(None, description="The error message, if it failed.")
    ms: Annotated[float, Field(ge=0)] | None = Field(None, description="The duration in milliseconds.")


class SimulatedToolsSpec(Spec):
    """A model that answers in place of tools."""

    provider: ProviderSpec = Field(description="The model that answers.")
    world: Annotated[str, Field(min_length=1)] = Field(
        description="What the tools know: a template with the test's variables; may be file://."
    )


class RecordedAnswerSpec(Spec):
    """One recorded answer of a tool: what it returned, or the error it gave."""

    name: Annotated[str, Field(min_length=1)] = Field(description="The name of the tool.")
    args: dict[str, Any] | None = Field(
        None, description="The arguments it answers, possibly among others; by default any."
    )
    result: Any = Field(None, description="What the tool returns.")
    error: str | None = Field(None, description="The error that the tool gives instead of a result.")


class ToolsSpec(Spec):
    """The tools of a test; `file://tools.py` is short for `functions`."""

    functions: str | tuple[str, ...] | None = Field(
        None,
        description="Python functions with type hints: file://tools.py (all public ones) or file://tools.py:NAME.",
    )
    definitions: Any = Field(
        None,
        description=(
            "Tools without a function: a list of {name, description, parameters}, also as the APIs write"
            " it; may be file://."
        ),
    )
    simulate: SimulatedToolsSpec | None = Field(
        None, description="A model that answers calls of the tools in `definitions`: {provider, world}."
    )
    recorded: tuple[RecordedAnswerSpec, ...] = Field(
        (), description="Recorded answers, used first: [{name, args, result}] or [{name, args, error}]."
    )
    max_calls: Annotated[int, Field(ge=1, le=1000)] = Field(
        MAX_CALLS, description="The most calls in one case; one more is an error of the case."
    )


class ToolSet(Struct, frozen=True):
    """The tools of a test.

    Attributes:
        definitions: as a model is told of them.
        functions: the Python file of each tool that is a function.
        named_functions: whether the config names any, also where they may not be read.
        simulator: who answers in place of the others; `world` is what it is told, a template.
    """

    place: SourcePath
    definitions: tuple[ToolDefinition, ...] = ()
    functions: Mapping[str, Path] = {}
    simulator: ProviderSpec | None = None
    world: str = ""
    recorded: tuple[RecordedAnswerSpec, ...] = ()
    max_calls: int = MAX_CALLS
    named_functions: bool = False

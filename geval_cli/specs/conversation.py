"""The turns of a conversation and the steps of an agent, as a test may have them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from geval_cli.specs.base import Spec

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

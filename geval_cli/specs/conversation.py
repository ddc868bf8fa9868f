"""The turns of a conversation and the steps of an agent, as a test may have them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from geval_cli.specs.base import Spec

TurnRole = Literal["system", "developer", "user", "assistant", "tool"]


class TurnSpec(Spec):
    """One turn: `role` and `content` of what was said, or `user` alone for what the user is going to say."""

    role: TurnRole | None = Field(
        None, description="Who said it: system, developer, user, assistant or tool."
    )
    content: str | None = Field(None, description="What was said, taken as it is: no template, no file.")
    tool_calls: tuple[dict[str, Any], ...] = Field(
        (), description="The tools that an assistant called, as chat APIs write them, or {name, args}."
    )
    tool_call_id: str | None = Field(None, description="Which of these calls a tool answers.")
    user: str | None = Field(
        None, description="What the user says in a conversation that is played: the model answers each."
    )


StepType = Literal["tool", "llm", "step"]


class TraceStepSpec(Spec):
    """One step of an agent: a tool or a model that it called, or anything else that it did."""

    type: StepType = Field("tool", description="What it was: a tool, a model (llm), or another step.")
    name: Annotated[str, Field(min_length=1)] = Field(
        description="The name of the tool, the model or the step."
    )
    args: Any = Field(None, description="What it was called with.")
    output: Any = Field(None, description="What came back.")
    error: str | None = Field(None, description="Why it failed, if it did.")
    ms: Annotated[float, Field(ge=0)] | None = Field(None, description="How long it took, in milliseconds.")

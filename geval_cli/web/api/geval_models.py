"""What `POST /api/geval` takes and gives."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

from geval_cli.records import JsonValue


def _listed(value: object) -> object:
    """One text as a list of one; nothing but white space as nothing at all."""
    if value is None or isinstance(value, str):
        return (value,) if value and value.strip() else None
    if not isinstance(value, list):
        raise ValueError("this must be a text or a list of texts")  # noqa: TRY004 - pydantic reports ValueErrors
    return tuple(value) or None


def _texts_schema(item: Mapping[str, JsonValue]) -> WithJsonSchema:
    listed = {"type": "array", "items": {"type": "string", **item}}
    return WithJsonSchema({"anyOf": [{"type": "string"}, listed, {"type": "null"}]})


_Filled = Annotated[str, StringConstraints(pattern=r"\S")]
_Texts = Annotated[tuple[str, ...] | None, BeforeValidator(_listed), _texts_schema({})]
_FilledTexts = Annotated[
    tuple[_Filled, ...] | None, BeforeValidator(_listed), _texts_schema({"pattern": r"\S"})
]


class GEvalRequest(BaseModel):
    """What is to be judged. The optional fields that are sent are what the judge sees beside input and output."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    name: _Filled = Field(description="Name of the evaluation.", examples=["order_relevance"])
    input: _Filled = Field(
        description="What the model was asked.", examples=["Python course roadmap for beginners first module"]
    )
    actual_output: str = Field(description="What the model answered.", examples=["- module 1: python basics"])
    criteria: _FilledTexts = Field(
        None,
        description="What is valued. Of several, each is judged for itself and the mean counts.",
        examples=["check if the course has the correct order for the intended audience"],
    )
    expected_output: _Texts = Field(
        None, description="A good answer, for comparison.", examples=["module 1: python basics"]
    )
    evaluation_steps: _FilledTexts = Field(
        None,
        description="The procedure that the judge follows. Without it the judge writes one from the criteria.",
        examples=[["Verify the order of modules", "Check if topics follow a logical progression"]],
    )
    context: _Texts = Field(
        None,
        description="What is true about the matter.",
        examples=["Python is a fundamental programming language."],
    )
    retrieval_context: _Texts = Field(None, description="What a search found for the input.")


class Details(BaseModel):
    """How a score came about."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel)

    estimator: str = Field(description="How the rating was found: logprobs, samples, single or mixed.")
    fallback: str | None = Field(None, description="Why it was not the way that was hoped for.")
    rating: float = Field(description="In the scale that the judge was asked for.")
    score_range: tuple[float, float] = Field(description="That scale.")
    criteria: list[str] = Field(description="What was valued; empty when only steps were sent.")
    criteria_from: str | None = Field(
        None, description="What the criteria were derived from when neither criteria nor steps were sent."
    )
    evaluation_steps: list[str] = Field(description="The procedure that the judge followed.")
    evaluation_params: list[str] = Field(description="What the judge saw, in its order.")
    judge: str = Field(description="Who judged.")
    usage: dict[str, Any] = Field(description="What the judge's requests cost; a cost of null is not known.")
    latency_ms: float = Field(description="From the request's arrival to the verdict, in milliseconds.")


class GEvalAnswer(BaseModel):
    """The verdict."""

    model_config = ConfigDict(frozen=True)

    score: float = Field(ge=0, le=1, description="0 is worst, 1 is best.")
    reason: str = Field(description="The judge's explanation.")
    details: Details | None = Field(None, description="With `?details=true`: how the score came about.")

"""What all assertions have, and what those have that ask a judge."""

from typing import Annotated, ClassVar

from pydantic import AliasChoices, Field

from geval_cli.config.spec import ProviderSpec, RubricPromptSpec, Score, Spec

Amount = Annotated[float, Field(ge=0)]


class AssertionSpec(Spec):
    """What every assertion has. `type` is written with `not-` before it to turn the verdict round."""

    type: str = Field(description="What is checked. With `not-` before it, the verdict is inverted.")
    metric: str | None = Field(None, description="The name under which scores are summed up over all tests.")
    weight: Annotated[float, Field(ge=0)] = Field(
        1.0, description="How much this counts in the test's score."
    )
    transform: str | None = Field(
        None, description="Code whose result is judged in place of the output: JavaScript, or file://."
    )

    @property
    def is_negated(self) -> bool:
        return self.type.startswith("not-")

    @property
    def base_type(self) -> str:
        return self.type.removeprefix("not-")


class ModelGradedSpec(AssertionSpec):
    """What every assertion that asks a judge has. `provider` is the judge.

    `judge_kinds` says what kinds of models it asks: for text, for embeddings, for classes.
    """

    judge_kinds: ClassVar[tuple[str, ...]] = ("text",)

    threshold: Score | None = Field(
        None, description="The lowest score, from 0 to 1, that passes; 0.5 when left out."
    )
    provider: ProviderSpec | None = Field(None, description="Who judges.")
    rubric_prompt: str | RubricPromptSpec | None = Field(
        None,
        validation_alias=AliasChoices("rubricPrompt", "rubric_prompt"),
        description="Replaces the judge's prompt: a template, file://, or {steps, evaluate}.",
    )

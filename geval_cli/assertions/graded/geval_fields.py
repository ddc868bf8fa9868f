"""The keys of a g-eval assertion."""

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from geval_cli.assertions.base import ModelGradedAssertion
from geval_cli.judge.dimensions import DIMENSIONS
from geval_cli.judge.metric import Over
from geval_cli.specs.base import EarlyStopSpec, JuryRulesSpec, JurySpec, SampleCount, Score, Scoring, Spec

EvaluationParam = Literal[
    "input",
    "images",
    "audio",
    "actual_output",
    "expected_output",
    "context",
    "retrieval_context",
    "turns",
    "scenario",
    "expected_outcome",
    "role",
    "trace",
    "tools_called",
]


class RubricBandSpec(Spec):
    """One band of a rubric: a rating or range of ratings, and its description."""

    low: float = Field(description="The lowest rating of this band.")
    high: float = Field(description="The highest rating of this band.")
    description: str = Field(description="What an output needs for this rating.")


class RatedDimensionSpec(Spec):
    """One of several dimensions that are rated in one call."""

    dimension: str = Field(description=" or ".join(", ".join(DIMENSIONS).rsplit(", ", 1)) + ".")
    threshold: Score | None = Field(None, description="The lowest passing score; by default the assertion's.")


class ChecklistItemSpec(Spec):
    """One item of a checklist."""

    item: str = Field(description="A statement that the judge answers with yes or no; a template.")
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        1.0, description="The weight of this item in the score."
    )
    required: bool = Field(False, description="Whether a no fails the output regardless of its score.")
    evidence: bool = Field(
        True,
        description=(
            "Whether a yes must quote the output as evidence; set it to false for things that should"
            " be absent."
        ),
    )


class RatedExampleSpec(Spec):
    """An output that people have rated, shown to the judge."""

    output: str = Field(description="The output.")
    rating: Annotated[float, Field(allow_inf_nan=False)] = Field(
        description="Its rating, in the range of the judge's ratings."
    )
    reason: str | None = Field(None, description="Why it has this rating.")
    input: str | None = Field(None, description="The input that led to the output.")


class GEvalFields(ModelGradedAssertion):
    """g-eval: a judge rates the output by a named `dimension`, your own `criteria` or a `checklist`."""

    dimension: str | None = Field(
        None,
        description=" or ".join(", ".join(DIMENSIONS).rsplit(", ", 1)) + ".",
    )
    dimensions: tuple[RatedDimensionSpec, ...] | None = Field(
        None,
        description="Several dimensions, rated in one call; each has its own metric and verdict.",
    )
    checklist: tuple[ChecklistItemSpec, ...] | None = Field(
        None, description="Statements that the judge answers with yes or no, all in one call."
    )
    criteria: str | tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("criteria", "value"),
        description=(
            "Your criteria in your own words; the items of a list are rated one by one. Template or file://."
        ),
    )
    evaluation_steps: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_steps", "evaluationSteps"),
        description="The judge's evaluation steps; by default generated from the criteria.",
    )
    evaluation_params: tuple[EvaluationParam, ...] | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_params", "evaluationParams"),
        description="The parts of the test that the judge sees.",
    )
    rubric: tuple[RubricBandSpec, ...] | None = Field(None, description="Descriptions of the ratings.")
    guidelines: tuple[str, ...] | None = Field(
        None, description="Sentences that tell the judge how to apply the criterion."
    )
    examples: tuple[RatedExampleSpec, ...] | None = Field(
        None,
        description="Rated outputs that the judge sees; a list, or file:// with a .jsonl, .json or .yaml file.",
    )
    score_range: tuple[float, float] | None = Field(
        None, description="The lowest and highest rating; [0, 10] by default."
    )
    score_step: Annotated[float, Field(gt=0)] | None = Field(
        None, description="The distance between two ratings."
    )
    strict_mode: bool = Field(False, description="All or nothing: the judge rates 0 or 1.")
    scoring: Scoring | None = Field(None, description="How to compute the score from the judge's ratings.")
    samples: SampleCount | EarlyStopSpec | None = Field(
        None, description="The number of ratings, or {upto: 20} to stop early; implies `scoring: samples`."
    )
    min_valid: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="The share of samples that must be readable."
    )
    explain: Literal["failed", "always", "never"] = Field(
        "failed", description="When to request a rationale for a dimension's score, in an extra call."
    )
    source: str | None = Field(None, description="The text that the output is based on; a template.")
    jury: JuryRulesSpec | None = Field(None, description="How to combine the verdicts of several judges.")
    over: Over | None = Field(
        None,
        description=(
            "What to rate in a test's `turns`: the whole conversation, or each answer; the score is"
            " then the mean."
        ),
    )
    window: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None,
        description=(
            "With `over: answers`, how many turns the judge sees, including the answer; 5 by default."
        ),
    )

    @property
    def parts(self) -> "tuple[GEvalFields, ...]":
        """Return this assertion, or one for each of its `dimensions`, which ask the same and read their own rating."""
        return tuple(
            self.model_copy(
                update={
                    "dimension": item.dimension,
                    "threshold": self.threshold if item.threshold is None else item.threshold,
                }
            )
            for item in self.dimensions or ()
        ) or (self,)

    @property
    def jury_rules(self) -> JuryRulesSpec | None:
        """Return how the verdicts of several judges become one; None when there is one judge."""
        if not isinstance(self.provider, JurySpec):
            return None
        return self.jury or JuryRulesSpec()

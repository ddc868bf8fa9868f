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
    """One band of a rubric: a rating, or a span of ratings, and what earns it."""

    low: float = Field(description="The lowest rating of this band.")
    high: float = Field(description="The highest rating of this band.")
    description: str = Field(description="What earns it.")


class RatedDimensionSpec(Spec):
    """One of several dimensions that are rated in one call."""

    dimension: str = Field(description=" or ".join(", ".join(DIMENSIONS).rsplit(", ", 1)) + ".")
    threshold: Score | None = Field(
        None, description="The lowest score that passes; that of the assertion when left out."
    )


class ChecklistItemSpec(Spec):
    """One thing that the output is to have."""

    item: str = Field(
        description="What is to be so, as a sentence that is answered with yes or no. Template."
    )
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        1.0, description="What a yes counts in the score, against the other items."
    )
    required: bool = Field(False, description="Whether a no fails the output, whatever its score is.")
    evidence: bool = Field(
        True,
        description="Whether a yes counts only with words of the output that show it; false for what is absent.",
    )


class GEvalFields(ModelGradedAssertion):
    """g-eval: an LLM judge rates the output, by a named `dimension`, custom `criteria` or a `checklist`."""

    dimension: str | None = Field(
        None,
        description=" or ".join(", ".join(DIMENSIONS).rsplit(", ", 1)) + ".",
    )
    dimensions: tuple[RatedDimensionSpec, ...] | None = Field(
        None,
        description="Several dimensions that are rated in one call; each is a metric with a verdict of its own.",
    )
    checklist: tuple[ChecklistItemSpec, ...] | None = Field(
        None, description="What the output is to have: each item is answered with yes or no, all in one call."
    )
    criteria: str | tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("criteria", "value"),
        description="What to value, in your own words; a list is rated one by one. Template or file://.",
    )
    evaluation_steps: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_steps", "evaluationSteps"),
        description="The steps that the judge follows; generated from the criteria when left out.",
    )
    evaluation_params: tuple[EvaluationParam, ...] | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_params", "evaluationParams"),
        description="Which parts of the test the judge sees.",
    )
    rubric: tuple[RubricBandSpec, ...] | None = Field(None, description="What earns which rating.")
    score_range: tuple[float, float] | None = Field(
        None, description="The lowest and the highest rating, [0, 10] when left out."
    )
    score_step: Annotated[float, Field(gt=0)] | None = Field(
        None, description="The distance between two ratings."
    )
    strict_mode: bool = Field(False, description="All or nothing: the judge answers 0 or 1.")
    scoring: Scoring | None = Field(None, description="How the judge's ratings become one score.")
    samples: SampleCount | EarlyStopSpec | None = Field(
        None, description="How many ratings to ask for, or {upto: 20}; means scoring: samples."
    )
    min_valid: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="The share of samples that must be readable."
    )
    explain: Literal["failed", "always", "never"] = Field(
        "failed", description="When to buy a rationale for a dimension's score."
    )
    source: str | None = Field(None, description="What the output was made from; a template.")
    jury: JuryRulesSpec | None = Field(None, description="How the verdicts of several judges become one.")
    over: Over | None = Field(
        None,
        description="What of a test's `turns` is rated: the conversation at once, or each of its answers; the score is"
        " then their mean.",
    )
    window: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None,
        description="With `over: answers`, how many turns the judge sees, the answer among them; 5 if left out.",
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

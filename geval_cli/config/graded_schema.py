"""The keys of the assertions that ask a judge for more than a g-eval rating, and of those that compare outputs."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field

from geval_cli.config.assertion_base import Amount, AssertionSpec, ModelGradedSpec
from geval_cli.config.spec import Score, Spec

_EMBEDDING = ("embedding",)


class LlmRubricSpec(ModelGradedSpec):
    """llm-rubric: a judge says whether the output meets a rubric in your own words, and how well."""

    value: Any = Field(None, description="The rubric: a template, or a list or a mapping. May be file://.")


class SearchRubricSpec(LlmRubricSpec):
    """search-rubric: as llm-rubric, by a judge that looks into the web first."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("search",)


class ClassifierSpec(ModelGradedSpec):
    """classifier: how much a classification model finds that the output belongs to a class."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("classification",)

    value: str | None = Field(
        None, description="The class, by the model's name of it; a template. The likeliest one when left out."
    )
    threshold: Score | None = Field(None, description="The lowest score that passes; 1 when left out.")


class ModerationSpec(ModelGradedSpec):
    """moderation: whether a moderator finds harm in the output."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("moderation",)

    value: tuple[str, ...] = Field((), description="The categories that count; all when left out.")
    threshold: Score | None = Field(
        None, description="How sure the moderator must be for a flagged category to count."
    )


class FactualitySpec(ModelGradedSpec):
    """factuality: how the facts of the output relate to those of a reference answer."""

    value: str | int | float = Field(description="The reference answer; a template. May be file://.")


class ClosedQaSpec(ModelGradedSpec):
    """model-graded-closedqa: whether the output meets one criterion, yes or no."""

    value: str = Field(description="The criterion; a template. May be file://.")


class AnswerRelevanceSpec(ModelGradedSpec):
    """answer-relevance: how close questions that the output would answer are to the one that was asked."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("text", "embedding")


class ContextSpec(ModelGradedSpec):
    """context-faithfulness, context-relevance: the output, or the question, held against the retrieved context."""

    context_transform: str | None = Field(
        None,
        validation_alias=AliasChoices("contextTransform", "context_transform"),
        description="Code that takes the context out of the output.",
    )


class ContextRecallSpec(ContextSpec):
    """context-recall: how much of what is known to be true the retrieved context says."""

    value: str = Field(description="What is known to be true; a template. May be file://.")


class ConversationSettingsSpec(Spec):
    """How a conversation is looked at."""

    window_size: Annotated[int, Field(ge=1, le=1000)] = Field(
        5,
        validation_alias=AliasChoices("windowSize", "window_size"),
        description="How many turns, the last included, an answer is held against; 5 when left out.",
    )


class ConversationRelevanceSpec(ModelGradedSpec):
    """conversation-relevance: the share of a conversation's answers that fit what was said before them."""

    config: ConversationSettingsSpec = Field(
        default_factory=ConversationSettingsSpec, description="How the conversation is looked at."
    )


class SimilarSpec(ModelGradedSpec):
    """similar: how near the output is to a text in meaning, by embeddings; of several texts any may be near."""

    judge_kinds: ClassVar[tuple[str, ...]] = _EMBEDDING

    value: str | int | float | tuple[str | int | float, ...] = Field(
        description="The text, a template, or several, of which one must be near."
    )
    threshold: Amount | None = Field(
        None,
        description="The lowest similarity (for similar:euclidean the greatest distance) that passes; 0.75.",
    )


class SelectBestSpec(ModelGradedSpec):
    """select-best: of all outputs of a test, a judge chooses the one that meets the criterion best."""

    value: str = Field(description="By what to choose; a template. May be file://.")


class MaxScoreRulesSpec(Spec):
    """How the scores of one output become one number."""

    method: Literal["average", "sum"] = Field(
        "average", description="The weighted mean, or the weighted sum."
    )
    weights: dict[str, Amount] = Field(
        default_factory=dict, description="How much each type of assertion counts; 1 when left out."
    )
    threshold: Amount | None = Field(None, description="What the best output must reach at least.")


class MaxScoreSpec(AssertionSpec):
    """max-score: of all outputs of a test, the one passes whose other assertions have the highest score."""

    value: MaxScoreRulesSpec = Field(
        default_factory=MaxScoreRulesSpec,
        description="How the scores become one: {method, weights, threshold}.",
    )


GRADED_SPECS: dict[str, type[AssertionSpec]] = {
    "llm-rubric": LlmRubricSpec,
    "search-rubric": SearchRubricSpec,
    "classifier": ClassifierSpec,
    "moderation": ModerationSpec,
    "factuality": FactualitySpec,
    "model-graded-factuality": FactualitySpec,
    "model-graded-closedqa": ClosedQaSpec,
    "answer-relevance": AnswerRelevanceSpec,
    "context-faithfulness": ContextSpec,
    "context-relevance": ContextSpec,
    "context-recall": ContextRecallSpec,
    "conversation-relevance": ConversationRelevanceSpec,
    "similar": SimilarSpec,
    "similar:cosine": SimilarSpec,
    "similar:dot": SimilarSpec,
    "similar:euclidean": SimilarSpec,
    "select-best": SelectBestSpec,
    "max-score": MaxScoreSpec,
}
"""Which keys each of these types takes."""

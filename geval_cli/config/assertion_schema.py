"""The keys of assertions, as frozen pydantic models, and which `type` takes which of them."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from geval_cli.config.assertion_base import Amount, AssertionSpec, ModelGradedSpec
from geval_cli.config.graded_schema import GRADED_SPECS
from geval_cli.config.spec import (
    EvaluationParsing,
    SampleCount,
    Score,
    Scoring,
    Spec,
    WrittenSchema,
)


class TextAssertionSpec(AssertionSpec):
    """contains, icontains, starts-with, ends-with, regex: the output against one text, itself a template."""

    value: str | int | float | bool = Field(description="What to look for; a template.")


class IsJsonAssertionSpec(AssertionSpec):
    """is-json, contains-json: the output is, or holds, JSON and, with a `value`, is valid against that JSON Schema."""

    value: WrittenSchema | None = Field(
        None, description="A JSON Schema that the output must fit, or file:// with the path of one."
    )


class EqualsAssertionSpec(AssertionSpec):
    """equals: the whole output is this text or, with a list or a mapping, this JSON value."""

    value: Any = Field(description="What the output must be; texts are templates. May be file://.")


Item = str | int | float | bool


class TextListAssertionSpec(AssertionSpec):
    """contains-all, contains-any and their forms for any case: the output against several texts."""

    value: Item | tuple[Item, ...] = Field(
        description="What to look for: a list of templates, or one text with commas between them."
    )


class XmlRulesSpec(Spec):
    """What an XML output must hold."""

    required_elements: tuple[str, ...] = Field(
        validation_alias=AliasChoices("requiredElements", "required_elements"),
        description="Elements that must be there, each with its parents: root.child.",
    )


class XmlAssertionSpec(AssertionSpec):
    """is-xml, contains-xml: well-formed XML that has certain elements."""

    value: str | tuple[str, ...] | XmlRulesSpec | None = Field(
        None, description="Elements that must be there, each with its parents: root.child."
    )


class BareAssertionSpec(AssertionSpec):
    """is-html, contains-html, is-refusal, guardrails, is-valid-...-call: the output alone decides."""


class ToolCallF1Spec(AssertionSpec):
    """tool-call-f1: which tools the output calls, against those that it should."""

    value: str | tuple[str, ...] = Field(
        description="The names of the tools, templates: a list, or one text with commas between them."
    )
    threshold: Score | None = Field(None, description="The lowest F1 that passes; 1 when left out.")


class SqlRulesSpec(Spec):
    """What an SQL output may use."""

    database_type: str = Field(
        "MySQL",
        validation_alias=AliasChoices("databaseType", "database_type"),
        description="Whose SQL it is: MySQL, PostgreSQL, SQLite, BigQuery, Snowflake, ...",
    )
    allowed_tables: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("allowedTables", "allowed_tables"),
        description="Tables by name, or as action::database::table (select::null::orders); may be patterns.",
    )
    allowed_columns: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("allowedColumns", "allowed_columns"),
        description="Columns by name, or as action::table::column (select::null::name); may be patterns.",
    )


class SqlAssertionSpec(AssertionSpec):
    """is-sql, contains-sql: SQL that can be parsed and uses nothing but what is allowed."""

    value: SqlRulesSpec | None = Field(None, description="Whose SQL it is, and what it may use.")


class LimitAssertionSpec(AssertionSpec):
    """latency, cost: what the answer took, in milliseconds or US dollars, is at most `threshold`."""

    threshold: Amount = Field(description="The most that passes: milliseconds for latency, dollars for cost.")


class WordRangeSpec(Spec):
    """How many words there may be."""

    min: Annotated[int, Field(ge=0)] | None = Field(None, description="The fewest words that pass.")
    max: Annotated[int, Field(ge=0)] | None = Field(None, description="The most words that pass.")


class WordCountAssertionSpec(AssertionSpec):
    """word-count: the output has exactly so many words, or as many as the range allows."""

    value: Annotated[int, Field(ge=0)] | str | WordRangeSpec = Field(
        description="The number of words, or {min, max}."
    )


class LevenshteinAssertionSpec(AssertionSpec):
    """levenshtein: at most `threshold` characters must be changed to get from the output to the text."""

    value: str | int | float = Field(description="The text to compare with; a template.")
    threshold: Amount = Field(5, description="The most changes that pass; 5 when left out.")


class TextMetricAssertionSpec(AssertionSpec):
    """rouge-n, bleu, gleu: how much of the output's wording is that of a reference."""

    value: str | tuple[str, ...] = Field(
        description="The reference, a template, or several, of which the best counts."
    )
    threshold: Score | None = Field(
        None, description="The lowest score that passes: 0.75 for rouge-n, else 0.5, when left out."
    )


class MeteorAssertionSpec(TextMetricAssertionSpec):
    """meteor: words and word stems that output and reference share, and whether they are in the same order."""

    alpha: Annotated[float, Field(ge=0, le=1)] = Field(0.9, description="How much recall counts.")
    beta: Amount = Field(3.0, description="How steeply scattered matches are punished.")
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="The most that scatter costs.")


class PerplexityAssertionSpec(AssertionSpec):
    """perplexity: how unsure the model was of its own tokens; 1 is certain. Needs token probabilities."""

    threshold: Amount | None = Field(
        None, description="The highest perplexity that passes; any when left out."
    )


class PerplexityScoreAssertionSpec(AssertionSpec):
    """perplexity-score: 1 / (1 + perplexity). Needs token probabilities."""

    threshold: Score | None = Field(None, description="The lowest score that passes; any when left out.")


class FinishReasonAssertionSpec(AssertionSpec):
    """finish-reason: why the model stopped: stop, length, content_filter, tool_calls."""

    value: str = Field(description="The reason that passes, in any case; a template.")


class WebhookAssertionSpec(AssertionSpec):
    """webhook: a server of yours judges. It is sent output, prompt and vars, and answers {pass, score, reason}."""

    value: str = Field(description="The URL that is POSTed to; a template.")


class CodeAssertionSpec(AssertionSpec):
    """javascript, python: code of yours judges; it sees `output` and `context`, and gives a verdict or a score."""

    value: str = Field(
        description="An expression, several lines with `return`, or file://checks.js:function."
    )
    threshold: float | None = Field(
        None, description="The lowest score that passes; without it, any above 0 does."
    )
    config: Any = Field(None, description="Anything; the code finds it as `context.config`.")


class AssertSetSpec(AssertionSpec):
    """assert-set: several assertions that count as one."""

    assertions: tuple[AssertionSpec, ...] = Field(
        validation_alias=AliasChoices("assert", "assertions"),
        description="The assertions of the set; a set cannot hold another set.",
    )
    threshold: Score | None = Field(
        None, description="With it, the weighted score of the set decides, not each of its assertions."
    )


class HumanAssertionSpec(AssertionSpec):
    """human: for a person to judge; it is kept with the result and not evaluated."""

    value: str | None = Field(None, description="What the person is to look at.")


EvaluationParam = Literal["input", "actual_output", "expected_output", "context", "retrieval_context"]


class RubricBandSpec(Spec):
    """One band of a rubric: a rating, or a span of ratings, and what earns it."""

    low: float = Field(description="The lowest rating of this band.")
    high: float = Field(description="The highest rating of this band.")
    description: str = Field(description="What earns it.")


class GEvalAssertionSpec(ModelGradedSpec):
    """g-eval: an LLM judge rates the output, by a named `dimension` or by custom `criteria`."""

    dimension: str | None = Field(
        None,
        description="fluency, coherence, consistency, relevance, engagingness, groundedness or naturalness.",
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
    samples: SampleCount | None = Field(
        None, description="How many ratings to ask for; means scoring: samples."
    )
    min_valid: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="The share of samples that must be readable."
    )
    explain: Literal["failed", "always", "never"] = Field(
        "failed", description="When to buy a rationale for a dimension's score."
    )
    source: str | None = Field(None, description="What the output was made from; a template.")


ASSERTION_SPECS: dict[str, type[AssertionSpec]] = {
    "contains": TextAssertionSpec,
    "icontains": TextAssertionSpec,
    "contains-all": TextListAssertionSpec,
    "contains-any": TextListAssertionSpec,
    "icontains-all": TextListAssertionSpec,
    "icontains-any": TextListAssertionSpec,
    "equals": EqualsAssertionSpec,
    "starts-with": TextAssertionSpec,
    "ends-with": TextAssertionSpec,
    "regex": TextAssertionSpec,
    "is-json": IsJsonAssertionSpec,
    "contains-json": IsJsonAssertionSpec,
    "is-xml": XmlAssertionSpec,
    "contains-xml": XmlAssertionSpec,
    "is-html": BareAssertionSpec,
    "contains-html": BareAssertionSpec,
    "is-sql": SqlAssertionSpec,
    "contains-sql": SqlAssertionSpec,
    "latency": LimitAssertionSpec,
    "cost": LimitAssertionSpec,
    "word-count": WordCountAssertionSpec,
    "levenshtein": LevenshteinAssertionSpec,
    "rouge-n": TextMetricAssertionSpec,
    "bleu": TextMetricAssertionSpec,
    "gleu": TextMetricAssertionSpec,
    "meteor": MeteorAssertionSpec,
    "perplexity": PerplexityAssertionSpec,
    "perplexity-score": PerplexityScoreAssertionSpec,
    "finish-reason": FinishReasonAssertionSpec,
    "is-refusal": BareAssertionSpec,
    "guardrails": BareAssertionSpec,
    "is-valid-function-call": BareAssertionSpec,
    "is-valid-openai-function-call": BareAssertionSpec,
    "is-valid-openai-tools-call": BareAssertionSpec,
    "tool-call-f1": ToolCallF1Spec,
    "webhook": WebhookAssertionSpec,
    "javascript": CodeAssertionSpec,
    "python": CodeAssertionSpec,
    "assert-set": AssertSetSpec,
    "human": HumanAssertionSpec,
    "g-eval": GEvalAssertionSpec,
    **GRADED_SPECS,
}
"""Which keys an assertion takes, by its `type` without `not-`."""


class LlmEvaluationSpec(GEvalAssertionSpec):
    """evaluation-llm: what a prompt in the mode `llm` asks of every answer. Its place is that of the criteria."""


class SchemaEvaluationSpec(AssertionSpec):
    """evaluation-schema: what a test asks of an answer in the mode `schema`. Its place is that of the schema."""

    value: WrittenSchema | None = None
    parsing: EvaluationParsing = "strict"


EVALUATION_SPECS: dict[str, type[AssertionSpec]] = {
    "evaluation-llm": LlmEvaluationSpec,
    "evaluation-schema": SchemaEvaluationSpec,
}
"""The assertions that evaluation modes stand for; no config writes them as a `type`."""

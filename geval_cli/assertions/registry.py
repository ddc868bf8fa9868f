"""Which assertions there are, and how any of them is checked before a run and judged in one.

The module of a type is imported on its first use, since some bring libraries that take long to load.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from msgspec.structs import replace

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, location_of, negated
from geval_cli.assertions.row import RowMember
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import (
    AssertSetSpec,
    GEvalAssertionSpec,
    LevenshteinAssertionSpec,
    LimitAssertionSpec,
    LlmEvaluationSpec,
    PerplexityAssertionSpec,
)
from geval_cli.config.dialect import Dialect
from geval_cli.config.place import Place
from geval_cli.config.spec import WrittenSchema
from geval_cli.config.suite import TestCase
from geval_cli.errors import GevalError, Problem, TemplateError
from geval_cli.judge.metric import Judge
from geval_cli.metrics import default_metric
from geval_cli.records import AssertionResult, ModelRequest
from geval_cli.templating import Templates

_HERE = "geval_cli.assertions"
_HAS_LIMIT = (LimitAssertionSpec, LevenshteinAssertionSpec, PerplexityAssertionSpec)
_SET = "assert-set"
_COMPARING = frozenset({"select-best", "max-score"})
_NEEDS_LOGPROBS = frozenset({"perplexity", "perplexity-score"})

TYPES: dict[str, str] = {
    "contains": f"{_HERE}.text",
    "icontains": f"{_HERE}.text",
    "contains-all": f"{_HERE}.text_lists",
    "contains-any": f"{_HERE}.text_lists",
    "icontains-all": f"{_HERE}.text_lists",
    "icontains-any": f"{_HERE}.text_lists",
    "equals": f"{_HERE}.equality",
    "starts-with": f"{_HERE}.text",
    "ends-with": f"{_HERE}.text",
    "regex": f"{_HERE}.text",
    "is-json": f"{_HERE}.structured",
    "contains-json": f"{_HERE}.structured",
    "is-xml": f"{_HERE}.xml_output",
    "contains-xml": f"{_HERE}.xml_output",
    "is-html": f"{_HERE}.html_output",
    "contains-html": f"{_HERE}.html_output",
    "is-sql": f"{_HERE}.sql_output",
    "contains-sql": f"{_HERE}.sql_output",
    "latency": f"{_HERE}.limits",
    "cost": f"{_HERE}.limits",
    "word-count": f"{_HERE}.word_count",
    "levenshtein": f"{_HERE}.edit_distance",
    "rouge-n": f"{_HERE}.wording",
    "bleu": f"{_HERE}.wording",
    "gleu": f"{_HERE}.wording",
    "meteor": f"{_HERE}.wording",
    "perplexity": f"{_HERE}.certainty",
    "perplexity-score": f"{_HERE}.certainty",
    "finish-reason": f"{_HERE}.finish_reason",
    "is-refusal": f"{_HERE}.refusal",
    "guardrails": f"{_HERE}.guardrails",
    "is-valid-function-call": f"{_HERE}.tool_calls",
    "is-valid-openai-function-call": f"{_HERE}.tool_calls",
    "is-valid-openai-tools-call": f"{_HERE}.tool_calls",
    "tool-call-f1": f"{_HERE}.tool_call_f1",
    "webhook": f"{_HERE}.webhook",
    "javascript": f"{_HERE}.code",
    "python": f"{_HERE}.code",
    "assert-set": f"{_HERE}.assert_set",
    "human": f"{_HERE}.human",
    "g-eval": f"{_HERE}.geval",
    "llm-rubric": f"{_HERE}.rubric",
    "search-rubric": f"{_HERE}.search_rubric",
    "classifier": f"{_HERE}.classifier",
    "moderation": f"{_HERE}.moderation",
    "factuality": f"{_HERE}.factuality",
    "model-graded-factuality": f"{_HERE}.factuality",
    "model-graded-closedqa": f"{_HERE}.closed_question",
    "answer-relevance": f"{_HERE}.answer_relevance",
    "context-faithfulness": f"{_HERE}.context_faithfulness",
    "context-relevance": f"{_HERE}.context_relevance",
    "context-recall": f"{_HERE}.context_recall",
    "conversation-relevance": f"{_HERE}.conversation",
    "similar": f"{_HERE}.similar",
    "similar:cosine": f"{_HERE}.similar",
    "similar:dot": f"{_HERE}.similar",
    "similar:euclidean": f"{_HERE}.similar",
    "select-best": f"{_HERE}.select_best",
    "max-score": f"{_HERE}.max_score",
    "evaluation-llm": f"{_HERE}.llm_evaluation",
    "evaluation-schema": f"{_HERE}.schema_evaluation",
}
"""The module of each type; `not-` before a type is dealt with here."""


class AssertionModule(Protocol):
    """What the module of a type offers."""

    def check(self, spec: AssertionSpec, context: CheckContext) -> list[Problem]:
        """Every problem of the assertion in one test, before anything is sent."""
        ...

    async def judge(self, spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
        """The verdict on one output.

        Raises:
            GevalError: it could not be judged.
        """
        ...


class RowModule(Protocol):
    """What the module of a type offers besides that compares the outputs of a test."""

    async def judge_row(
        self, spec: AssertionSpec, members: Sequence[RowMember], tools: Tools
    ) -> Sequence[Outcome]:
        """The verdicts, in the order of `members`.

        Raises:
            GevalError: they could not be judged.
        """
        ...


def check_assertion(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Every problem of one assertion in one test, of the members of a set too."""
    problems = _module(spec.base_type).check(spec, context)
    if spec.metric is not None:
        context.render(spec.metric, spec.place.value("metric"), problems)
    for member in members_of(spec):
        problems.extend(check_assertion(member, context))
    return problems


def members_of(spec: AssertionSpec) -> tuple[AssertionSpec, ...]:
    """The assertions of a set; any other has none."""
    return spec.assertions if spec.base_type == _SET and isinstance(spec, AssertSetSpec) else ()


def wants_logprobs(specs: Iterable[AssertionSpec]) -> bool:
    """Whether an assertion is about the probabilities of the answer's tokens, so that they must be asked for."""
    return any(spec.base_type in _NEEDS_LOGPROBS or wants_logprobs(members_of(spec)) for spec in specs)


def check_schema(written: WrittenSchema, name: str, place: Place) -> list[Problem]:
    """Every problem of a JSON Schema that stands outside assertions; `name` is how messages call it."""
    from geval_cli.assertions.json_schemas import schema_problems

    return schema_problems(written, name, place)


def compares_outputs(spec: AssertionSpec) -> bool:
    """Whether an assertion is about all outputs of a test together, so that it waits for the last of them."""
    return spec.base_type in _COMPARING


async def judge_row(
    spec: AssertionSpec, members: Sequence[RowMember], tools: Tools
) -> Sequence[AssertionResult]:
    """The verdicts of one assertion on outputs that are compared, in the order of `members`.

    Raises:
        GevalError: they could not be judged; the caller makes that results with status `error`.
    """
    outcomes = await cast(RowModule, import_module(TYPES[spec.base_type])).judge_row(spec, members, tools)
    return [
        _result(spec, outcome, member.subject, tools)
        for member, outcome in zip(members, outcomes, strict=True)
    ]


async def judge_assertion(spec: AssertionSpec, subject: Subject, tools: Tools) -> AssertionResult:
    """The verdict of one assertion on one output.

    Raises:
        GevalError: it could not be judged; the caller makes that a result with status `error`.
    """
    outcome = await _module(spec.base_type).judge(spec, subject, tools)
    return _result(spec, outcome, subject, tools)


def _result(spec: AssertionSpec, outcome: Outcome, subject: Subject, tools: Tools) -> AssertionResult:
    if spec.is_negated:
        outcome = negated(outcome)
    return AssertionResult(
        type=spec.type,
        metric=metric_name(spec, subject.test, tools.templates),
        status=outcome.status,
        score=outcome.score,
        threshold=outcome.threshold,
        threshold_is_default=outcome.threshold_is_default,
        weight=spec.weight,
        reason=outcome.reason,
        location=location_of(spec),
        latency_ms=outcome.latency_ms,
        detail=outcome.detail,
        assertions=outcome.assertions,
    )


def early_questions(
    spec: AssertionSpec, subject: Subject, tools: Tools
) -> Sequence[tuple[Judge, ModelRequest]]:
    """What the assertion will ask judges whatever the output is; `subject` has none yet. Nothing if that is unclear."""
    foresee = getattr(_module(spec.base_type), "foresee", None)
    try:
        return () if foresee is None else tuple(foresee(spec, subject, tools))
    except GevalError:  # it is told where the output is judged
        return ()


def score_threshold(spec: AssertionSpec) -> float | None:
    """The lowest score that passes, as written, and 1 in strict mode; a limit on another scale (dollars) is none."""
    if getattr(spec, "strict_mode", False):
        return 1.0
    return None if isinstance(spec, _HAS_LIMIT) else getattr(spec, "threshold", None)


def metric_name(spec: AssertionSpec, test: TestCase, templates: Templates) -> str | None:
    """Under which name scores are summed up: the `metric` that was written, or what a g-eval has for a default.

    A name is a template. One that is empty in a test is no name there; one that cannot be rendered stays as written.
    """
    if spec.metric is None:
        return _default_metric(spec, templates)
    try:
        return templates.render(spec.metric, test.variables).strip() or None
    except TemplateError:
        return spec.metric


def with_default_metrics(
    specs: Iterable[AssertionSpec], results: Iterable[AssertionResult], templates: Templates
) -> tuple[AssertionResult, ...]:
    """Return the results of `specs` with the default metrics that an older geval did not give them.

    They are in the order of `specs`, of which some may have no result.
    """
    rest, found = iter(specs), []
    for result in results:
        spec = next((item for item in rest if item.type == result.type), None)
        if spec is None:
            found.append(result)
            continue
        metric = _default_metric(spec, templates) if spec.metric is None else None
        members = with_default_metrics(members_of(spec), result.assertions, templates)
        found.append(replace(result, metric=result.metric or metric, assertions=members))
    return tuple(found)


def _default_metric(spec: AssertionSpec, templates: Templates) -> str | None:
    """Return the dimension of a g-eval, or in geval's own dialect the name of its criteria; None of anything else."""
    if not isinstance(spec, GEvalAssertionSpec):
        return None
    if spec.dimension is not None or templates.dialect is Dialect.PROMPTFOO:
        return spec.dimension
    if isinstance(spec, LlmEvaluationSpec) and not spec.criteria:
        return None
    return default_metric(spec.criteria, spec.evaluation_steps, is_negated=spec.is_negated)


@cache
def _module(base_type: str) -> AssertionModule:
    return cast(AssertionModule, import_module(TYPES[base_type]))

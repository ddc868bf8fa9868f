"""Every type of assertion, and how any of them is checked before a run and judged in one.

A class is imported on its first use, since some bring libraries that take long to load.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from msgspec.structs import replace

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    ModelGradedAssertion,
    Outcome,
    RowMember,
    Subject,
    Tools,
    each_assertion,
    location_of,
    negated,
)
from geval_cli.assertions.graded.geval_metric import metric_name
from geval_cli.assertions.graded.judges import check_judge
from geval_cli.assertions.rating_keys import earlier_outcomes, rating_keys
from geval_cli.errors import GevalError, Problem, UsageError
from geval_cli.json_codec import encode_json
from geval_cli.judge.metric import Judge
from geval_cli.plugins import ASSERTIONS, find_plugin, plugin_names
from geval_cli.records import AssertionResult, ModelRequest
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import WrittenSchema
from geval_cli.version import install_hint

_HERE = "geval_cli.assertions"
_EXTRAS = "geval_cli.extras"


class AssertionTypes(Mapping[str, type[Assertion]]):
    """The class of each type, imported when it is looked up; names alone load nothing.

    Types of installed packages can be looked up too, where `takes_plugins`; what is counted are geval's own.
    """

    def __init__(self, classes: Mapping[str, str], *, takes_plugins: bool = False) -> None:
        self._classes = classes
        self._takes_plugins = takes_plugins
        self._loaded: dict[str, type[Assertion]] = {}

    def __getitem__(self, name: str) -> type[Assertion]:
        if name in self._loaded:
            return self._loaded[name]
        if name not in self._classes and name in self:
            return _plugin_class(name)
        module, _, class_name = self._classes[name].partition(":")
        found: type[Assertion] = getattr(import_module(module), class_name)
        self._loaded[name] = found
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._classes or (self._takes_plugins and name in plugin_names(ASSERTIONS))

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


@cache
def _plugin_class(name: str) -> type[Assertion]:
    found = find_plugin(ASSERTIONS, name)
    if not (isinstance(found, type) and issubclass(found, Assertion)):
        raise UsageError(
            f"the plugin `{name}` is not an assertion",
            hint=f"its entry point must name a subclass of {Assertion.__module__}.{Assertion.__qualname__}",
        )
    return found


ASSERTION_TYPES = AssertionTypes(
    {
        "contains": f"{_HERE}.text.match:TextAssertion",
        "icontains": f"{_HERE}.text.match:TextAssertion",
        "contains-all": f"{_HERE}.text.match:TextListAssertion",
        "contains-any": f"{_HERE}.text.match:TextListAssertion",
        "icontains-all": f"{_HERE}.text.match:TextListAssertion",
        "icontains-any": f"{_HERE}.text.match:TextListAssertion",
        "equals": f"{_HERE}.text.match:EqualsAssertion",
        "starts-with": f"{_HERE}.text.match:TextAssertion",
        "ends-with": f"{_HERE}.text.match:TextAssertion",
        "regex": f"{_HERE}.text.match:TextAssertion",
        "is-json": f"{_HERE}.structured.json_output:IsJsonAssertion",
        "contains-json": f"{_HERE}.structured.json_output:IsJsonAssertion",
        "is-xml": f"{_EXTRAS}.markup:XmlAssertion",
        "contains-xml": f"{_EXTRAS}.markup:XmlAssertion",
        "is-html": f"{_EXTRAS}.markup:HtmlAssertion",
        "contains-html": f"{_EXTRAS}.markup:HtmlAssertion",
        "is-sql": f"{_EXTRAS}.sql.assertion:SqlAssertion",
        "contains-sql": f"{_EXTRAS}.sql.assertion:SqlAssertion",
        "latency": f"{_HERE}.response:LimitAssertion",
        "cost": f"{_HERE}.response:LimitAssertion",
        "word-count": f"{_HERE}.text.word_count:WordCountAssertion",
        "levenshtein": f"{_EXTRAS}.text_metrics:LevenshteinAssertion",
        "rouge-n": f"{_EXTRAS}.text_metrics:TextMetricAssertion",
        "bleu": f"{_EXTRAS}.text_metrics:TextMetricAssertion",
        "gleu": f"{_EXTRAS}.text_metrics:TextMetricAssertion",
        "meteor": f"{_EXTRAS}.text_metrics:MeteorAssertion",
        "perplexity": f"{_HERE}.response:PerplexityAssertion",
        "perplexity-score": f"{_HERE}.response:PerplexityScoreAssertion",
        "finish-reason": f"{_HERE}.response:FinishReasonAssertion",
        "is-refusal": f"{_HERE}.text.refusal:RefusalAssertion",
        "guardrails": f"{_HERE}.response:GuardrailsAssertion",
        "ended-by": f"{_HERE}.response:EndedByAssertion",
        "is-valid-function-call": f"{_EXTRAS}.tools.assertions:ToolCallAssertion",
        "is-valid-openai-function-call": f"{_EXTRAS}.tools.assertions:ToolCallAssertion",
        "is-valid-openai-tools-call": f"{_EXTRAS}.tools.assertions:ToolCallAssertion",
        "tool-call-f1": f"{_EXTRAS}.tools.assertions:ToolCallF1Assertion",
        "webhook": f"{_EXTRAS}.programs.assertions.webhook:WebhookAssertion",
        "javascript": f"{_EXTRAS}.programs.assertions.code:CodeAssertion",
        "python": f"{_EXTRAS}.programs.assertions.code:CodeAssertion",
        "decision-tree": f"{_HERE}.sets:DecisionTreeAssertion",
        "assert-set": f"{_HERE}.sets:AssertSet",
        "human": f"{_HERE}.human:HumanAssertion",
        "g-eval": f"{_HERE}.graded.geval:GEvalAssertion",
        "llm-rubric": f"{_HERE}.graded.rubric:LlmRubricAssertion",
        "search-rubric": f"{_HERE}.graded.rubric:SearchRubricAssertion",
        "classifier": f"{_EXTRAS}.classifiers:ClassifierAssertion",
        "moderation": f"{_EXTRAS}.classifiers:ModerationAssertion",
        "factuality": f"{_HERE}.graded.closed_questions:FactualityAssertion",
        "model-graded-factuality": f"{_HERE}.graded.closed_questions:FactualityAssertion",
        "model-graded-closedqa": f"{_HERE}.graded.closed_questions:ClosedQaAssertion",
        "choice": f"{_HERE}.graded.closed_questions:ChoiceAssertion",
        "answer-relevance": f"{_EXTRAS}.embeddings:AnswerRelevanceAssertion",
        "context-faithfulness": f"{_EXTRAS}.rag:ContextFaithfulnessAssertion",
        "context-relevance": f"{_EXTRAS}.rag:ContextRelevanceAssertion",
        "context-recall": f"{_EXTRAS}.rag:ContextRecallAssertion",
        "context-precision": f"{_EXTRAS}.rag:ContextPrecisionAssertion",
        "noise-sensitivity": f"{_EXTRAS}.rag:NoiseSensitivityAssertion",
        "citation-correctness": f"{_EXTRAS}.rag:CitationCorrectnessAssertion",
        "faithfulness": f"{_EXTRAS}.rag:ContextFaithfulnessAssertion",
        "contextual-recall": f"{_EXTRAS}.rag:ContextRecallAssertion",
        "contextual-precision": f"{_EXTRAS}.rag:ContextPrecisionAssertion",
        "conversation-relevance": f"{_EXTRAS}.conversations.relevance:ConversationRelevanceAssertion",
        "similar": f"{_EXTRAS}.embeddings:SimilarAssertion",
        "similar:cosine": f"{_EXTRAS}.embeddings:SimilarAssertion",
        "similar:dot": f"{_EXTRAS}.embeddings:SimilarAssertion",
        "similar:euclidean": f"{_EXTRAS}.embeddings:SimilarAssertion",
        "trajectory:tool-used": f"{_EXTRAS}.traces.trajectory:ToolUsedAssertion",
        "trajectory:tool-args-match": f"{_EXTRAS}.traces.trajectory:ToolArgumentsAssertion",
        "trajectory:tool-sequence": f"{_EXTRAS}.traces.trajectory:ToolSequenceAssertion",
        "trajectory:step-count": f"{_EXTRAS}.traces.trajectory:StepCountAssertion",
        "trajectory:goal-success": f"{_HERE}.graded.rubric:GoalSuccessAssertion",
        "trace-span-count": f"{_EXTRAS}.traces.trajectory:SpanCountAssertion",
        "trace-span-duration": f"{_EXTRAS}.traces.trajectory:SpanDurationAssertion",
        "trace-error-spans": f"{_EXTRAS}.traces.trajectory:ErrorSpansAssertion",
        "select-best": f"{_EXTRAS}.comparisons:SelectBestAssertion",
        "pairwise": f"{_EXTRAS}.comparisons:PairwiseAssertion",
        "max-score": f"{_EXTRAS}.comparisons:MaxScoreAssertion",
    },
    takes_plugins=True,
)
"""The types that a config may name, without `not-`, and the class of each: `module:Class`."""

EVALUATION_TYPES = AssertionTypes(
    {
        "evaluation-llm": f"{_HERE}.graded.geval:LlmEvaluation",
        "evaluation-schema": f"{_HERE}.structured.json_output:SchemaEvaluationAssertion",
    }
)
"""The assertions made from evaluation modes; no config can name them as a `type`."""


_JUDGE = "use g-eval, with criteria that say what to look for"
_CODE = "check it in your own assertion"
_TRACE = "geval sees a model's answer, not the trace of a program; check the answer"

_TRACE_TYPES = "for traces there are " + ", ".join(
    name for name in ASSERTION_TYPES if name.startswith(("trace-", "trajectory:"))
)

_UNSUPPORTED: dict[str, str] = {
    "agent-rubric": _JUDGE,
    "max-length": "use word-count, or a regex such as ^.{0,500}$",
    "min-length": "use word-count, or a regex such as ^.{20,}$",
    "pi": _JUDGE,
    "ruby": _CODE,
    "skill-used": _TRACE,
}
_UNSUPPORTED_FAMILIES: dict[str, str] = {
    "promptfoo:redteam": "geval does not do red teaming; " + _JUDGE,
    "trace-": _TRACE_TYPES,
    "trajectory:": _TRACE_TYPES,
}


def advice_on(kind: str) -> str | None:
    """Return the alternative to `kind`, a type without `not-`; None for a type that is simply unknown."""
    if kind in _UNSUPPORTED:
        return _UNSUPPORTED[kind]
    families = (advice for prefix, advice in _UNSUPPORTED_FAMILIES.items() if kind.startswith(prefix))
    return next(families, None)


def check_assertion(spec: Assertion, context: CheckContext) -> list[Problem]:
    """Return every problem of one assertion in one test, those of the members of a set too."""
    problems = [*_missing_libraries(spec), *spec.check(context)]
    if spec.metric is not None:
        context.render(spec.metric, partial(spec.place.value, "metric"), problems)
    if isinstance(spec, ModelGradedAssertion):
        problems.extend(check_judge(spec, context))
    for member in spec.members:
        problems.extend(check_assertion(member, context))
    return problems


def _missing_libraries(spec: Assertion) -> Iterator[Problem]:
    """Yield a problem where libraries of the type are not installed."""
    if any(find_spec(name) is None for name in spec.libraries):
        hint = f"install them {install_hint(spec.extra)}"
        yield Problem(
            f"{spec.base_type} needs libraries that are not installed", spec.place.value("type"), hint
        )


def wants_logprobs(specs: Iterable[Assertion]) -> bool:
    """Return whether an assertion needs the probabilities of the answer's tokens, which must be requested."""
    return any(spec.needs_logprobs for spec in each_assertion(specs))


def check_schema(written: WrittenSchema, name: str, place: SourcePath) -> list[Problem]:
    """Return every problem of a JSON Schema that is outside assertions; `name` is how messages call it."""
    from geval_cli.assertions.structured.json_output import schema_problems

    return schema_problems(written, name, place)


async def judge_row(
    spec: Assertion, members: Sequence[RowMember], tools: Tools
) -> Sequence[AssertionResult | GevalError]:
    """Return the results of one assertion on outputs that are compared, in the order of `members`.

    An output that alone could not be judged has an error, of which the caller makes a result with status `error`.

    Raises:
        GevalError: they could not be judged; the caller makes that results with status `error`.
    """
    subjects = [member.subject for member in members]
    outcomes = _earlier(spec, subjects, tools) or await spec.judge_row(members, tools)
    return [
        outcome
        if isinstance(outcome, GevalError)
        else _result(spec, _with_keys(spec, outcome, subjects, tools, place), member.subject, tools)
        for place, (member, outcome) in enumerate(zip(members, outcomes, strict=True))
    ]


async def judge_assertion(spec: Assertion, subject: Subject, tools: Tools) -> AssertionResult:
    """Return the result of one assertion on one output.

    Raises:
        GevalError: it could not be judged; the caller makes that a result with status `error`.
    """
    # Either is the outcome before `not-`, which `_result` applies.
    known = _earlier(spec, [subject], tools)
    outcome = known[0] if known else await spec.judge(subject, tools)
    return _result(spec, _with_keys(spec, outcome, [subject], tools), subject, tools)


def _earlier(spec: Assertion, subjects: Sequence[Subject], tools: Tools) -> Sequence[Outcome] | None:
    """Return the outcomes that are known from an earlier run, so that no judge is needed."""
    if not tools.earlier or not isinstance(spec, ModelGradedAssertion) or not subjects:
        return None
    return earlier_outcomes(spec, subjects, tools)


def _with_keys(
    spec: Assertion, outcome: Outcome, subjects: Sequence[Subject], tools: Tools, place: int = 0
) -> Outcome:
    if not isinstance(spec, ModelGradedAssertion) or outcome.score is None:
        return outcome
    keys = rating_keys(spec, subjects, tools, outcome.detail, place)
    return replace(outcome, detail={**outcome.detail, **keys})


def _result(spec: Assertion, outcome: Outcome, subject: Subject, tools: Tools) -> AssertionResult:
    if spec.is_negated:
        outcome = negated(outcome)
    result = AssertionResult(
        type=spec.type,
        metric=metric_name(spec, subject.test, tools.templates),
        status=outcome.status,
        score=outcome.score,
        threshold=outcome.threshold,
        threshold_is_default=outcome.threshold_is_default,
        weight=spec.weight,
        reason=_bounded(outcome.reason),
        location=location_of(spec),
        latency_ms=outcome.latency_ms,
        detail=_bounded(outcome.detail),
        assertions=outcome.assertions,
    )
    return tools.calibrations.mark(result)


_MAX_TEXT = 100_000


def _bounded(value: Any) -> Any:
    """Return what is to be stored with long texts cut, which models wrote: nobody reads megabytes of reasons."""
    return value if len(encode_json(value)) <= _MAX_TEXT else _cut(value)


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return (
            f"{value[:_MAX_TEXT]}... ({len(value):,} characters, of which these are the first {_MAX_TEXT:,})"
        )
    if isinstance(value, Mapping):
        return {key: _cut(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_cut, value)) if type(value) in {list, tuple} else value
    return value


def prefetch_requests(
    spec: Assertion, subject: Subject, tools: Tools
) -> Sequence[tuple[Judge, ModelRequest]]:
    """Return the judge requests of the assertion that do not depend on the output; none if that is unclear."""
    try:
        return tuple(spec.prefetch(subject, tools))
    except GevalError:  # it is told where the output is judged
        return ()


def score_threshold(spec: Assertion) -> float | None:
    """The lowest score that passes, as written, and 1 in strict mode; a limit on another scale (dollars) is none."""
    if getattr(spec, "strict_mode", False):
        return 1.0
    return None if not spec.threshold_is_score else getattr(spec, "threshold", None)

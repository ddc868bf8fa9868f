"""The registry of assertion types, and the functions that check an assertion before a run and judge with it.

A class is imported on first use, because some need libraries that take long to load.

Ratings of earlier runs are found by hashes of what a judge rates, and by which criterion.

`criterion_key` covers the judge, its wire parameters, the criterion and how ratings become a score. `rating_key` adds
the judged texts. Thresholds, weights and metric names are in neither, as they change what a rating means, not the
rating itself.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from msgspec.structs import replace

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    CriterionKey,
    ModelGradedAssertion,
    Outcome,
    RowMember,
    Subject,
    Tools,
    each_assertion,
    location_of,
    negated,
)
from geval_cli.assertions.geval_metric import metric_name
from geval_cli.assertions.judges import check_judge, judges_of
from geval_cli.errors import GevalError, Problem, UsageError
from geval_cli.json_codec import encode_json
from geval_cli.judge.metric import Judge, identity_of
from geval_cli.judge.prompt import prompt_version
from geval_cli.plugins import ASSERTIONS, extra, find_plugin, is_own, plugin_names, refuse_blocking
from geval_cli.providers.redaction import public_url
from geval_cli.records import AssertionResult, JsonValue, ModelRequest, Status
from geval_cli.source.secrets import mask_config
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import JurySpec, ProviderSpec, WrittenSchema
from geval_cli.version import install_hint

CRITERION_KEY, RATING_KEY, JUDGED_FROM = "criterion_key", "rating_key", "judged_from"
CRITERION_PARTS = "criterion_parts"

STEPS = "evaluation_steps"
"""The part of a criterion that a judge may have written, so that it is not known in advance."""

_PART_DIGITS = 8

_VERSION = 1
"""To be increased when the meaning of the hashes changes, so that ratings from before do not match."""

OWN_HASHES = (CRITERION_KEY, CRITERION_PARTS, RATING_KEY)
"""The keys of a detail that hold only hashes, and no text written by a person or a model."""

P_PASS, BORDERLINE = "p_pass", "borderline"
_OF_THIS_RUN = (*OWN_HASHES, P_PASS, BORDERLINE)


def rating_keys(
    spec: ModelGradedAssertion,
    subjects: Sequence[Subject],
    tools: Tools,
    detail: Mapping[str, JsonValue],
    place: int = 0,
) -> dict[str, JsonValue]:
    """Return both keys, each `sha256:` and 64 hexadecimal digits, and a short hash of each part of the first.

    Args:
        spec: the assertion.
        subjects: the output that it judges, or all outputs that it compares.
        tools: those of the run.
        detail: the detail of the rating, with the evaluation steps that a judge wrote for it.
        place: the index of the rated output among those compared.
    """
    criterion = criterion_key(spec, subjects[0], tools, detail)
    texts = [spec.judged_texts(subject, tools) for subject in subjects]
    votes = _votes_with_keys(spec, subjects[0], tools, detail)
    return {
        **({} if votes is None else {"judges": votes}),
        CRITERION_KEY: criterion.key,
        RATING_KEY: _hash([criterion.key, texts, place]),
        CRITERION_PARTS: criterion.parts,
    }


def criterion_key(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, detail: Mapping[str, JsonValue]
) -> CriterionKey:
    """Return the key of what an output is judged by; computed once for all tests that share it."""
    test = subject.test
    steps = _generated_steps(detail)
    sources = (spec.criterion_source(test, tools), spec, test.options, test.default_options)

    def make() -> CriterionKey:
        judges = [_facts_of(judge, tools) for judge in judges_of(spec, test, tools.defaults)]
        return _key_of(spec, judges, spec.criterion(test, tools), steps)

    return tools.criteria.find(sources, steps, make)


def member_key(
    spec: ModelGradedAssertion,
    judge: ProviderSpec,
    subject: Subject,
    tools: Tools,
    detail: Mapping[str, JsonValue],
) -> CriterionKey:
    """Return the key of what one judge of a jury rates by, the same as if it judged alone."""
    test = subject.test
    steps = _generated_steps(detail)
    sources = (spec.criterion_source(test, tools), spec, test.options, test.default_options, judge)

    def make() -> CriterionKey:
        return _key_of(spec, [_facts_of(judge, tools)], spec.criterion_alone(test, tools), steps)

    return tools.criteria.find(sources, steps, make)


def _key_of(
    spec: ModelGradedAssertion,
    judges: Sequence[JsonValue],
    written: JsonValue,
    steps: Sequence[Sequence[str]],
) -> CriterionKey:
    version = prompt_version()
    parts = {
        "type": spec.type,
        "judge": [judge[:-1] for judge in judges],
        "params": [judge[-1] for judge in judges],
        **spec.criterion_parts(written),
        STEPS: steps,
        "prompt_version": version,
    }
    return CriterionKey(
        _hash([_VERSION, version, spec.base_type, judges, written, steps]),
        {name: _short(part) for name, part in parts.items()},
    )


def _votes_with_keys(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, detail: Mapping[str, JsonValue]
) -> list[JsonValue] | None:
    """Return the votes of a jury, each with the key of its judge; None for a single judge."""
    votes = detail.get("judges")
    jury = spec.provider
    if not votes or not isinstance(jury, JurySpec):
        return None
    return [
        vote if vote["score"] is None else _with_key(vote, member_key(spec, judge, subject, tools, vote))
        for judge, vote in zip(jury.members, votes, strict=True)
    ]


def _with_key(vote: Mapping[str, JsonValue], found: CriterionKey) -> dict[str, JsonValue]:
    return {**vote, CRITERION_KEY: found.key, CRITERION_PARTS: found.parts}


def _facts_of(spec: ProviderSpec, tools: Tools) -> JsonValue:
    judge = tools.judge_for(spec)
    known = tools.judge_facts.facts
    if judge not in known:
        known[judge] = judge_facts(judge)
    return known[judge]


def judge_facts(judge: Judge) -> JsonValue:
    """Return what determines a judge's answers, without credentials, so that a new API key is not a new judge."""
    identity = identity_of(judge)
    if identity is None:
        return [judge.label, mask_config(dict(judge.provider_params))]
    endpoint = public_url(identity.endpoint) if "://" in identity.endpoint else identity.endpoint
    return [identity.kind, identity.model, endpoint, mask_config(dict(identity.params))]


def judge_parts(judge: Judge) -> dict[str, str]:
    """Return the parts of a key that identify a judge that judges alone."""
    facts = judge_facts(judge)
    return {"judge": _short([facts[:-1]]), "params": _short([facts[-1]])}


def earlier_outcomes(
    spec: ModelGradedAssertion, subjects: Sequence[Subject], tools: Tools
) -> Sequence[Outcome] | None:
    """Return the outcomes from the ratings of an earlier run, in the order of `subjects`; None if any is missing."""
    outcomes = []
    for place in range(len(subjects)):
        found = _earlier_result(spec, subjects, tools, place)
        again = None if found is None else spec.decide_again(_as_judged(found), subjects[place].test, tools)
        if again is None:
            return None
        outcomes.append(again)
    return outcomes


def _earlier_result(
    spec: ModelGradedAssertion, subjects: Sequence[Subject], tools: Tools, place: int
) -> AssertionResult | None:
    for result in tools.earlier:
        key = result.detail.get(RATING_KEY)
        if key is None or result.status is Status.ERROR or result.score is None:
            continue
        # Assume the steps of the earlier rating, so that the keys differ only if anything else does.
        if criterion_key(spec, subjects[0], tools, result.detail).key != result.detail.get(CRITERION_KEY):
            continue
        if not spec.is_still_valid(result, subjects[0], tools):
            continue
        if rating_keys(spec, subjects, tools, result.detail, place)[RATING_KEY] == key:
            return result
    return None


def _as_judged(result: AssertionResult) -> Outcome:
    """Return a stored result as an outcome, before `not-` was applied."""
    detail = {name: value for name, value in result.detail.items() if name not in _OF_THIS_RUN}
    outcome = Outcome(
        status=result.status,
        score=result.score,
        reason=result.reason or "",
        threshold=result.threshold,
        threshold_is_default=result.threshold_is_default,
        detail=detail,
        latency_ms=result.latency_ms or 0.0,
    )
    return negated(outcome) if result.type.startswith("not-") else outcome


def _generated_steps(detail: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], ...]:
    """Return the evaluation steps of a rating, or of each judge or criterion if there are several."""
    rated = detail.get("judges") or detail.get("parts") or [detail]
    return tuple(tuple(part.get("evaluation_steps") or ()) for part in rated)


def _short(part: JsonValue) -> str:
    return _hash(part).removeprefix("sha256:")[:_PART_DIGITS]


def _hash(facts: JsonValue) -> str:
    return f"sha256:{hashlib.sha256(encode_json(facts)).hexdigest()}"


_HERE = "geval_cli.assertions"
_EXTRAS = "geval_cli.extras"


class AssertionTypes(Mapping[str, type[Assertion]]):
    """The class of each type, imported on lookup; listing the names loads nothing.

    With `takes_plugins`, types from installed packages can be looked up too; iteration and length cover geval's own.
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
    refuse_blocking(found, ("judge", "judge_row"), f"the plugin `{name}` is an assertion")
    return found


ASSERTION_TYPES = AssertionTypes(
    {
        "contains": f"{_HERE}.match:TextAssertion",
        "icontains": f"{_HERE}.match:TextAssertion",
        "contains-all": f"{_HERE}.match:TextListAssertion",
        "contains-any": f"{_HERE}.match:TextListAssertion",
        "icontains-all": f"{_HERE}.match:TextListAssertion",
        "icontains-any": f"{_HERE}.match:TextListAssertion",
        "equals": f"{_HERE}.match:EqualsAssertion",
        "starts-with": f"{_HERE}.match:TextAssertion",
        "ends-with": f"{_HERE}.match:TextAssertion",
        "regex": f"{_HERE}.match:TextAssertion",
        "is-json": f"{_HERE}.json_output:IsJsonAssertion",
        "contains-json": f"{_HERE}.json_output:IsJsonAssertion",
        "is-xml": f"{_EXTRAS}.markup:XmlAssertion",
        "contains-xml": f"{_EXTRAS}.markup:XmlAssertion",
        "is-html": f"{_EXTRAS}.markup:HtmlAssertion",
        "contains-html": f"{_EXTRAS}.markup:HtmlAssertion",
        "is-sql": f"{_EXTRAS}.sql.assertion:SqlAssertion",
        "contains-sql": f"{_EXTRAS}.sql.assertion:SqlAssertion",
        "latency": f"{_EXTRAS}.answers:LimitAssertion",
        "cost": f"{_EXTRAS}.answers:LimitAssertion",
        "word-count": f"{_HERE}.match:WordCountAssertion",
        "levenshtein": f"{_EXTRAS}.text_metrics:LevenshteinAssertion",
        "rouge-n": f"{_EXTRAS}.text_metrics:TextMetricAssertion",
        "bleu": f"{_EXTRAS}.text_metrics:TextMetricAssertion",
        "gleu": f"{_EXTRAS}.text_metrics:TextMetricAssertion",
        "meteor": f"{_EXTRAS}.text_metrics:MeteorAssertion",
        "perplexity": f"{_EXTRAS}.answers:PerplexityAssertion",
        "perplexity-score": f"{_EXTRAS}.answers:PerplexityScoreAssertion",
        "finish-reason": f"{_EXTRAS}.answers:FinishReasonAssertion",
        "is-refusal": f"{_EXTRAS}.answers:RefusalAssertion",
        "guardrails": f"{_EXTRAS}.answers:GuardrailsAssertion",
        "ended-by": f"{_EXTRAS}.answers:EndedByAssertion",
        "is-valid-function-call": f"{_EXTRAS}.tools.assertions:ToolCallAssertion",
        "is-valid-openai-function-call": f"{_EXTRAS}.tools.assertions:ToolCallAssertion",
        "is-valid-openai-tools-call": f"{_EXTRAS}.tools.assertions:ToolCallAssertion",
        "tool-call-f1": f"{_EXTRAS}.tools.assertions:ToolCallF1Assertion",
        "webhook": f"{_EXTRAS}.programs.webhook:WebhookAssertion",
        "javascript": f"{_EXTRAS}.programs.assertions:CodeAssertion",
        "python": f"{_EXTRAS}.programs.assertions:CodeAssertion",
        "decision-tree": f"{_EXTRAS}.decision_trees:DecisionTreeAssertion",
        "assert-set": f"{_HERE}.sets:AssertSet",
        "human": f"{_HERE}.sets:HumanAssertion",
        "g-eval": f"{_HERE}.geval:GEvalAssertion",
        "llm-rubric": f"{_EXTRAS}.graded.rubric:LlmRubricAssertion",
        "search-rubric": f"{_EXTRAS}.graded.rubric:SearchRubricAssertion",
        "classifier": f"{_EXTRAS}.classifiers:ClassifierAssertion",
        "moderation": f"{_EXTRAS}.classifiers:ModerationAssertion",
        "factuality": f"{_EXTRAS}.graded.closed_questions:FactualityAssertion",
        "model-graded-factuality": f"{_EXTRAS}.graded.closed_questions:FactualityAssertion",
        "model-graded-closedqa": f"{_EXTRAS}.graded.closed_questions:ClosedQaAssertion",
        "choice": f"{_EXTRAS}.graded.closed_questions:ChoiceAssertion",
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
        "trajectory:goal-success": f"{_EXTRAS}.graded.rubric:GoalSuccessAssertion",
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
        "evaluation-llm": f"{_HERE}.geval:LlmEvaluation",
        "evaluation-schema": f"{_HERE}.json_output:SchemaEvaluationAssertion",
    }
)
"""The assertions created by evaluation modes; no config can name them as a `type`."""


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
    """Return every problem of one assertion in one test, including those of a set's members."""
    found = spec.check(context)
    problems = [
        *_missing_libraries(spec),
        *(found if is_own(spec) else extra("packages").problems_in(found, spec)),
    ]
    if spec.metric is not None:
        context.render(spec.metric, partial(spec.place.value, "metric"), problems)
    if isinstance(spec, ModelGradedAssertion):
        problems.extend(check_judge(spec, context))
    for member in spec.members:
        problems.extend(check_assertion(member, context))
    return problems


def _missing_libraries(spec: Assertion) -> Iterator[Problem]:
    """Yield a problem if a library that the type needs is not installed."""
    if any(find_spec(name) is None for name in spec.libraries):
        hint = f"install them {install_hint(spec.extra)}"
        yield Problem(
            f"{spec.base_type} needs libraries that are not installed", spec.place.value("type"), hint
        )


def wants_logprobs(specs: Iterable[Assertion]) -> bool:
    """Return whether an assertion needs the answer's token probabilities, which must be requested."""
    return any(spec.needs_logprobs for spec in each_assertion(specs))


def check_schema(written: WrittenSchema, name: str, place: SourcePath) -> list[Problem]:
    """Return every problem of a JSON Schema outside assertions; `name` is how messages refer to it."""
    from geval_cli.assertions.json_output import schema_problems, schema_slips

    return schema_problems(written, name, place) or schema_slips(written, place)


async def judge_row(
    spec: Assertion, members: Sequence[RowMember], tools: Tools
) -> Sequence[AssertionResult | GevalError]:
    """Return the results of one assertion on outputs that are compared, in the order of `members`.

    An output that could not be judged has an error instead, which the caller turns into a result with status `error`.

    Raises:
        GevalError: none could be judged; the caller turns that into results with status `error`.
    """
    subjects = [member.subject for member in members]
    asking = spec.judge_row if is_own(spec) else partial(extra("packages").outcomes_of, spec)
    outcomes = _earlier(spec, subjects, tools) or await asking(members, tools)
    return [
        outcome
        if isinstance(outcome, GevalError)
        else _result(spec, _with_keys(spec, outcome, subjects, tools, place), member.subject, tools)
        for place, (member, outcome) in enumerate(zip(members, outcomes, strict=True))
    ]


async def judge_assertion(spec: Assertion, subject: Subject, tools: Tools) -> AssertionResult:
    """Return the result of one assertion on one output.

    Raises:
        GevalError: it could not be judged; the caller turns that into a result with status `error`.
    """
    # Both are outcomes before `not-`, which `_result` applies.
    known = _earlier(spec, [subject], tools)
    if known or is_own(spec):
        outcome = known[0] if known else await spec.judge(subject, tools)
    else:
        outcome = await extra("packages").outcome_of(spec, subject, tools)
    return _result(spec, _with_keys(spec, outcome, [subject], tools), subject, tools)


def _earlier(spec: Assertion, subjects: Sequence[Subject], tools: Tools) -> Sequence[Outcome] | None:
    """Return the outcomes if they are known from an earlier run, so that no judge is needed; else None."""
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
    """Return a value to be stored, with very long texts cut: models may write megabytes."""
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
    """Return the assertion's judge requests that do not depend on the output; none if they cannot be determined."""
    try:
        return tuple(spec.prefetch(subject, tools))
    except GevalError:  # reported when the output is judged
        return ()


def score_threshold(spec: Assertion) -> float | None:
    """Return the lowest passing score as written, or 1 in strict mode; None for a limit on another scale (dollars)."""
    if getattr(spec, "strict_mode", False):
        return 1.0
    return None if not spec.threshold_is_score else getattr(spec, "threshold", None)

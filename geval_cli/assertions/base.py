"""Define assertions, and what they work with: the merged test, the subject, the tools and the outcome.

Each type of assertion is a class: its fields are the keys that a config may set, `check` finds problems before any
request is sent, and `judge` gives the verdict on one output. `registry` lists the classes. Tests hold assertions, and
assertions receive tests, so both are defined here.
"""

import csv
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import AliasChoices, Field, PrivateAttr

from geval_cli.assertions.json_text import calls_beside
from geval_cli.errors import GevalError, Location, Problem, Severity, TemplateError
from geval_cli.judge.calls import JudgeFacts, SharedMetrics, SharedValues
from geval_cli.judge.estimate import passes
from geval_cli.judge.metric import DEFAULT_THRESHOLD, Judge
from geval_cli.judge.source import ASSISTANT
from geval_cli.metrics import weighted_mean
from geval_cli.patterns import compile_later
from geval_cli.records import (
    TEST_TEXTS,
    AssertionResult,
    JsonValue,
    ModelRequest,
    ModelResponse,
    Status,
    TraceStep,
    Turn,
)
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import (
    EvaluationParsing,
    ProviderSpec,
    RubricPromptSpec,
    Samples,
    Score,
    Scoring,
    Spec,
    TestOptionsSpec,
    ToolSet,
    WrittenSchema,
)
from geval_cli.specs.dialect import DEFAULT_RULES, DialectRules
from geval_cli.specs.promptfoo import PromptfooTestOptions
from geval_cli.templating import Templates, template_problem
from geval_cli.templating.js_text import js_json

_OPPOSITE = {Status.PASSED: Status.FAILED, Status.FAILED: Status.PASSED}


class Verdict(Struct, frozen=True):
    """The verdict of several assertions; `score` is their weighted mean, None if one errored or none counted."""

    status: Status
    score: float | None


def verdict_of(assertions: Sequence[AssertionResult], threshold: float | None) -> Verdict:
    """Return one verdict for all assertions: all must pass or, with a `threshold`, their weighted score must reach it.

    An assertion with weight 0 is there for its metric, so whether it passes has no effect; if it could not be judged,
    the verdict is still an error. A set that fails has no score either if a member could not be judged.
    """
    statuses = {item.status for item in assertions if item.weight or item.status is Status.ERROR}
    is_unknown = Status.ERROR in statuses or any(item.weight and hides_error(item) for item in assertions)
    score = None if is_unknown else weighted_score(assertions)
    if threshold is not None:
        if score is None:
            return Verdict(Status.ERROR if is_unknown else Status.NOT_EVALUATED, score)
        return Verdict(Status.PASSED if passes(score, threshold) else Status.FAILED, score)
    for status in (Status.FAILED, Status.ERROR, Status.PASSED):
        if status in statuses:
            return Verdict(status, score)
    if any(item.score is not None and item.status is not Status.NOT_EVALUATED for item in assertions):
        return Verdict(Status.PASSED, None)
    return Verdict(Status.NOT_EVALUATED, score)


def weighted_score(assertions: Iterable[AssertionResult]) -> float | None:
    """Return sum(weight * score) / sum(weight) over the assertions with a score; None if the weights sum to 0."""
    return weighted_mean([(item.weight, item.score) for item in assertions if item.score is not None])


def hides_error(result: AssertionResult) -> bool:
    """Return whether an error within a set leaves it without a score, although its verdict is known."""
    return result.score is None and any(part.status is Status.ERROR for part in result.assertions)


class Outcome(Struct, frozen=True):
    """The outcome of an assertion before weight, metric and `not-` are applied; `score` is 0..1, or None if not scored.

    Attributes:
        assertions: the results of the assertions inside this one.
    """

    status: Status
    score: float | None
    reason: str
    threshold: float | None = None
    threshold_is_default: bool = False
    detail: Mapping[str, JsonValue] = field(default_factory=dict)
    latency_ms: float = 0.0
    assertions: tuple[AssertionResult, ...] = ()

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"the score of an assertion must be a finite number, not {self.score}")

    @classmethod
    def of(cls, passed: bool, reason: str, **detail: JsonValue) -> "Outcome":
        """Return a yes-or-no outcome with score 1 or 0."""
        return cls(Status.PASSED if passed else Status.FAILED, float(passed), reason, detail=detail)

    @classmethod
    def graded(
        cls, score: float, reason: str, threshold: float, *, is_default: bool = False, **detail: JsonValue
    ) -> "Outcome":
        """Return the outcome for a score in 0..1 that must reach a threshold."""
        status = Status.PASSED if passes(score, threshold) else Status.FAILED
        return cls(status, score, reason, threshold, is_default, detail)

    def against(self, threshold: float, *, is_default: bool = False) -> "Outcome":
        """Return the outcome decided by another threshold; the reason stays, since it does not mention one."""
        if self.score is None:
            return self
        status = Status.PASSED if passes(self.score, threshold) else Status.FAILED
        return replace(self, status=status, threshold=threshold, threshold_is_default=is_default)

    @classmethod
    def not_evaluated(cls, reason: str) -> "Outcome":
        """Return the outcome of an assertion that has nothing to evaluate."""
        return cls(Status.NOT_EVALUATED, None, reason)


def negated(outcome: Outcome) -> Outcome:
    """Return the outcome under `not-`: verdict and score are inverted; without a score, only a failure is."""
    if outcome.score is None and outcome.status is not Status.FAILED:
        return outcome
    status = _OPPOSITE.get(outcome.status, outcome.status)
    return replace(outcome, status=status, score=None if outcome.score is None else 1 - outcome.score)


def shortened(text: str, limit: int = 120) -> str:
    """Return `text` for use in a reason: on one line, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


Amount = Annotated[float, Field(ge=0)]
Weight = Annotated[float, Field(ge=0, le=10**9)]
"""Bounded, so that no sum of weights is infinite."""


class Calibrations:
    """The calibration of scores by human labels; this base class is for configs without a calibration file.

    Attributes:
        is_empty: whether no file is named, or nothing in it could be read.
        is_broken: whether a file could not be read, which is reported.
    """

    is_empty = True
    is_broken = False

    def mark(self, result: AssertionResult) -> AssertionResult:
        """Return the result with what its score means, if it was rated in the same way as the labelled ones."""
        return result

    def jury_weights(self, metric: str | None) -> tuple[Any, ...]:
        """Return the weights of the judges in a metric's jury (`JudgeWeight` of `extras.juries`)."""
        return ()

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each metric whose rating setup differs from that at calibration."""
        return iter(())


UNCALIBRATED = Calibrations()


class ValueRules(Spec):
    """A mapping that can be the `value` of an assertion."""

    def problems(self) -> Sequence[Problem]:
        """Return the problems of a mapping whose values all have the right types."""
        return ()


ValueForm = Literal["text", "texts", "data", "schema"] | tuple[type[ValueRules], str]
"""How `value` is read. text, texts: each text may be file://. data: a file may hold JSON or YAML. schema: a JSON
Schema. A pair: a mapping is read as that model; messages refer to it by the second item.
"""


class Assertion(Spec):
    """One entry of `assert`. The prefix `not-` in `type` inverts the verdict.

    Attributes:
        value_form: how `value` is read; None leaves it unchanged.
        value_may_be_null: whether null is a valid value rather than a mistake.
        threshold_is_score: whether `threshold` is the lowest passing score; otherwise it is a limit on another scale.
        compares_outputs: whether all outputs of a test are judged together, by `judge_row`.
        needs_logprobs: whether the model under test must return token probabilities.
        runs_code: whether code from the config decides, which untrusted configs must not contain.
        calls_server: whether outputs are sent to a server that the config names.
        libraries: modules that it needs and that only geval's extra `extra` installs.
    """

    value_form: ClassVar[ValueForm | None] = None
    value_may_be_null: ClassVar[bool] = False
    threshold_is_score: ClassVar[bool] = True
    compares_outputs: ClassVar[bool] = False
    needs_logprobs: ClassVar[bool] = False
    runs_code: ClassVar[bool] = False
    calls_server: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""

    type: str = Field(description="What to check. The prefix `not-` inverts the verdict.")
    metric: str | None = Field(None, description="The name under which scores are averaged over all tests.")
    weight: Weight = Field(1.0, description="The weight of this assertion in the test's score.")
    transform: str | None = Field(
        None, description="Code whose result is checked instead of the output: JavaScript or file://."
    )

    @property
    def is_negated(self) -> bool:
        return self.type.startswith("not-")

    @property
    def base_type(self) -> str:
        """Return the type without `not-`."""
        return self.type.removeprefix("not-")

    @property
    def members(self) -> "tuple[Assertion, ...]":
        """Return the assertions inside a set; empty for any other type."""
        return ()

    @property
    def compared_with(self) -> str | None:
        """Return the name of the column that all others are compared with; None if each is compared with each other."""
        return None

    @property
    def compared_by(self) -> str | None:
        """Return the criteria of a pairwise comparison, which also name its metric; None for any other assertion."""
        return None

    @property
    def needs_other_outputs(self) -> bool:
        """Return whether an output can be judged only next to another output of its test."""
        return self.compares_outputs

    def applies_to(self, test: "MergedTest", templates: Templates) -> bool:
        """Return False if the assertion evaluates nothing in `test`, so that no judge is needed."""
        return True

    def check(self, context: "CheckContext") -> list[Problem]:
        """Return every problem of this assertion in one test, before any request is sent."""
        return []

    async def judge(self, subject: "Subject", tools: "Tools") -> Outcome:
        """Return the verdict on one output.

        Raises:
            GevalError: the output could not be judged.
        """
        if self.compares_outputs:  # `judge_row` reports that a single output has nothing to be compared with
            [outcome] = await self.judge_row([RowMember(subject)], tools)
            if isinstance(outcome, GevalError):
                raise outcome
            return outcome
        raise NotImplementedError

    async def judge_row(
        self, members: "Sequence[RowMember]", tools: "Tools"
    ) -> Sequence[Outcome | GevalError]:
        """Return the verdicts on all outputs of a test, in the order of `members`; only if `compares_outputs`.

        If a single output could not be judged, its error takes the place of its outcome.

        Raises:
            GevalError: none of the outputs could be judged.
        """
        raise NotImplementedError

    def prefetch(self, subject: "Subject", tools: "Tools") -> Iterable[tuple[Judge, ModelRequest]]:
        """Return the judge requests that do not depend on the output; `subject` does not have one yet."""
        return ()


def each_assertion(specs: Iterable[Assertion]) -> Iterator[Assertion]:
    """Yield every assertion, each set followed by its members."""
    for spec in specs:
        yield spec
        yield from each_assertion(spec.members)


_DECIDES_NO_RATING = frozenset(
    {"type", "metric", "weight", "threshold", "provider", "rubric_prompt", "transform", "context_transform"}
)
"""Keys that affect only what a rating means, or that have been applied before an output is judged."""


class ModelGradedAssertion(Assertion):
    """An assertion that asks a judge, its `provider`.

    Attributes:
        judge_kinds: the kinds of models that it calls.
        default_threshold: the lowest passing score if the config sets none; None if the judge decides what passes.
    """

    judge_kinds: ClassVar[tuple[str, ...]] = ("text",)
    default_threshold: ClassVar[float | None] = None

    threshold: Score | None = Field(None, description="The lowest passing score; 0.5 by default.")
    provider: ProviderSpec | None = Field(None, description="The judge.")
    rubric_prompt: str | RubricPromptSpec | None = Field(
        None,
        validation_alias=AliasChoices("rubricPrompt", "rubric_prompt"),
        description="Your own judge prompt: a template, file://, chat messages, or {steps, evaluate}.",
    )

    _is_calibrated: bool = PrivateAttr(False)

    @property
    def is_calibrated(self) -> bool:
        """Return whether the threshold comes from a calibration file."""
        return self._is_calibrated

    def with_calibrated_threshold(self, threshold: float) -> Self:
        """Return the assertion with its threshold from a calibration file."""
        found = self.model_copy(update={"threshold": threshold})
        found._is_calibrated = True
        return found

    def criterion_source(self, test: "MergedTest", tools: "Tools") -> object:
        """Return the object that `criterion` is built from; tests with the same criterion share it."""
        return self

    def criterion(self, test: "MergedTest", tools: "Tools") -> "JsonValue":
        """Return the keys that affect a rating, templates unrendered: the judged texts include the variables."""
        levels = (self, test.options, test.default_options)
        own = next((level.rubric_prompt for level in levels if level.rubric_prompt is not None), None)
        written = own.model_dump(mode="json") if isinstance(own, RubricPromptSpec) else own
        return [self.model_dump(mode="json", exclude=set(_DECIDES_NO_RATING)), written]

    def criterion_alone(self, test: "MergedTest", tools: "Tools") -> "JsonValue":
        """Return `criterion` as it would be with a single judge instead of the jury."""
        return self.criterion(test, tools)

    def criterion_parts(self, written: "JsonValue") -> "Mapping[str, JsonValue]":
        """Return the parts of a `criterion` result, by the names that users know."""
        return {"criteria": written}

    def judged_texts(self, subject: "Subject", tools: "Tools") -> "JsonValue":
        """Return everything from a test and its output that a judge may be shown."""
        return [subject.text, subject.rendered_prompt, subject.system, subject.test.variables]

    def is_still_valid(self, rated: "AssertionResult", subject: "Subject", tools: "Tools") -> bool:
        """Return whether a rating of an earlier run is still valid: False if the settled steps have changed since."""
        return True

    def scored(self, score: float, reason: str, latency_ms: float, **detail: "JsonValue") -> "Outcome":
        """Return the outcome for a score in 0..1; only for types with a `default_threshold`."""
        assert self.default_threshold is not None
        is_default = self.threshold is None
        threshold = self.default_threshold if self.threshold is None else self.threshold
        outcome = Outcome.graded(score, reason, threshold, is_default=is_default, **detail)
        return replace(outcome, latency_ms=latency_ms)

    def decide_again(self, rated: "Outcome", test: "MergedTest", tools: "Tools") -> "Outcome | None":
        """Return the verdict on an output rated in an earlier run, by the current threshold.

        Return None if it cannot be known without calling a judge.
        """
        if self.default_threshold is None:
            return rated
        is_default = self.threshold is None
        threshold = self.default_threshold if self.threshold is None else self.threshold
        return rated.against(threshold, is_default=is_default)


def location_of(spec: Assertion) -> str | None:
    """Return `file:line:column` of an assertion, or of the key that it comes from; None if it is not in a file."""
    location = spec.place.key()
    return None if location is None else str(location)


class SimulatedUser(Struct, frozen=True):
    """A model that plays the user instead of scripted turns, with a goal and a profile.

    Attributes:
        goal, opening: templates; so is `done_when` if it is a sentence.
        done_when: a sentence for the user's model, or an assertion on each answer; None to go by the goal alone.
        max_turns: the maximum number of the user's turns.
    """

    place: SourcePath
    goal: str | None = None
    provider: ProviderSpec | None = None
    profile: str | Mapping[str, JsonValue] | None = None
    opening: str | None = None
    done_when: str | Assertion | None = None
    max_turns: int = 8

    @property
    def assertions(self) -> tuple[Assertion, ...]:
        """Return the assertion in `done_when`, if it is one."""
        return (self.done_when,) if isinstance(self.done_when, Assertion) else ()


_NO_OPTIONS = PromptfooTestOptions.model_construct()  # does not build the validator, which few suites need


class MergedTest(Struct, frozen=True):
    """One test with `defaultTest` merged into it.

    Attributes:
        options, default_options: kept apart because the options of the command line rank between them.
        output: counts only if `has_output`, because None is a valid output.
        schema_place: position of `evaluation_schema`, or of the test itself if it has none.
        provider: answers this test instead of the suite's providers.
        images, audio: markers (`source.media`); any other text may have images and recordings too.
        turns: a conversation: what the user is going to say if `plays_turns`, else what was said. If the assistant has
            the last word, that is the `output`.
        trace: the steps that led to the test's own output; None if unknown.
        tools: the tools whose calls are answered.
        user: the simulated user, if the turns are not scripted.
    """

    __test__ = False

    index: int
    place: SourcePath
    description: str | None = None
    vars: Mapping[str, JsonValue] = field(default_factory=dict)
    input: str | None = None
    has_output: bool = False
    output: JsonValue = None
    expected_output: str | None = None
    context: str | tuple[str, ...] | None = None
    retrieval_context: str | tuple[str, ...] | None = None
    images: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    threshold: float | None = None
    provider: ProviderSpec | None = None
    options: TestOptionsSpec = field(default_factory=TestOptionsSpec)
    default_options: TestOptionsSpec = field(default_factory=TestOptionsSpec)
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    evaluation_schema: WrittenSchema | None = None
    evaluation_parsing: EvaluationParsing | None = None
    schema_place: SourcePath = field(default_factory=SourcePath.nowhere)
    promptfoo: PromptfooTestOptions = _NO_OPTIONS
    turns: tuple[Turn, ...] = ()
    plays_turns: bool = False
    scenario: str | None = None
    expected_outcome: str | None = None
    role: str | None = None
    trace: tuple[TraceStep, ...] | None = None
    tools: ToolSet | None = None
    user: SimulatedUser | None = None

    @property
    def is_conversation(self) -> bool:
        """Return whether the output is the end of a conversation."""
        return bool(self.turns) or self.user is not None

    @property
    def all_assertions(self) -> tuple[Assertion, ...]:
        """Return the assertions of the test, including the one that ends its conversation."""
        return self.assertions if self.user is None else (*self.assertions, *self.user.assertions)

    @property
    def ends_with_answer(self) -> bool:
        """Return whether `turns` are a complete conversation, ready to be judged."""
        return bool(self.turns) and not self.plays_turns and self.turns[-1].role == ASSISTANT

    @property
    def transform(self) -> tuple[str, Location | None] | None:
        """Return the code that turns an answer into the output, and its position."""
        for options in (self.options, self.default_options):
            if options.transform is not None:
                return options.transform, options.place.value("transform")
        return None

    @property
    def transform_vars(self) -> tuple[str, Location | None] | None:
        """Return the code that changes the variables, and its position."""
        for options in (self.options, self.default_options):
            if options.transform_vars is not None:
                return options.transform_vars, options.place.spelled("transformVars", "transform_vars")
        return None

    @property
    def variables(self) -> dict[str, JsonValue]:
        """Return the variables for templates: the test's own fields by name, overridden by `vars`."""
        own: dict[str, JsonValue] = {
            name: text for name in TEST_TEXTS if (text := getattr(self, name)) is not None
        }
        if self.images:
            own["images"] = "\n".join(self.images)
        if self.audio:
            own["audio"] = "\n".join(self.audio)
        own.update(self.vars)
        return own


EXPECTED_OUTPUT = "expected_output"
"""The name of a test's expected output where outputs are compared with it."""
PAIRS = "pairs"
"""The key of a comparison's pairs in its detail, in the form of `PairResult.shown` (`extras.comparisons`)."""


class RowColumn(Struct, frozen=True):
    """The column of an output that is compared with others: its index, its label, and all names that it goes by."""

    index: int
    label: str
    names: frozenset[str] = frozenset()


class Subject(Struct, frozen=True):
    """One output with everything that is known about where it came from.

    Attributes:
        system: the system message of a `{system: ...}` prompt, whose user message is the test's input; else None.
        response: the response of the model under test, with usage, timing and finish reason; None for an output that
            comes with the test.
        provider: the provider that answered, as in the config; None for an output that comes with the test, unless the
            dialect says which provider would have answered.
        opaque: the variables of the test that models produced in earlier jobs; they are never inserted into code.
        rules: the rules of the config's dialect, which say how data is written as text.
        column: the column of the output if it is compared with others; else None.
        turns: what was said when the test's turns were played, with the output last; empty for other tests.
        reported: what a program returned with the output (metadata, raw, guardrails, sessionId, ...), and the `output`
            before an assertion's transform.
        called: the calls of the test's tools that led to the output; None for a test without `tools`.
        ended_by: how a simulated user ended the conversation; None without one.
    """

    test: MergedTest
    output: JsonValue
    rendered_prompt: str
    repeat_index: int = 0
    system: str | None = None
    response: ModelResponse | None = None
    provider: ProviderSpec | None = None
    opaque: frozenset[str] = frozenset()
    rules: DialectRules = DEFAULT_RULES
    column: RowColumn | None = None
    turns: tuple[Turn, ...] = ()
    reported: Mapping[str, JsonValue] = field(default_factory=dict)
    called: tuple[TraceStep, ...] | None = None
    ended_by: str | None = None

    @property
    def conversation(self) -> tuple[Turn, ...]:
        """Return the conversation to judge, with the output at its end; empty for a test without turns."""
        turns = self.turns or self.test.turns
        if not turns:
            return ()
        is_whole = bool(self.turns) or self.test.ends_with_answer
        return (*(turns[:-1] if is_whole else turns), Turn(ASSISTANT, self.text, self.tool_calls))

    @property
    def tool_calls(self) -> tuple[Mapping[str, JsonValue], ...]:
        """Return the tool calls that came with the output; empty if the output itself is nothing but calls."""
        if self.response is not None:
            calls = self.response.tool_calls
        else:
            calls = self.test.turns[-1].tool_calls if self.test.ends_with_answer else ()
        return calls_beside(self.output, calls)

    @property
    def text(self) -> str:
        """Return the output as text; data is written as JSON."""
        if isinstance(self.output, str):
            return self.output
        if self.rules.data_as_text == "javascript":
            return js_json(self.output)
        return json.dumps(self.output, ensure_ascii=False)


class JudgeDefaults(Struct, frozen=True):
    """The command line's judge options; they rank below a test's own options and above those of `defaultTest`.

    `threshold` is the dialect's default for a g-eval. `exact_metrics` are the metrics whose exact scores matter, so
    that a settled verdict is not enough; None for all.
    """

    grader: ProviderSpec | None = None
    scoring: Scoring | None = None
    samples: Samples | None = None
    threshold: float = DEFAULT_THRESHOLD
    exact_metrics: frozenset[str] | None = frozenset()


JudgeEach = Callable[[Sequence[Assertion], Subject], Awaitable[Sequence[AssertionResult]]]


async def judge_none(specs: Sequence[Assertion], subject: Subject) -> Sequence[AssertionResult]:
    """Raise NotImplementedError: the default of `Tools.judge_each`, where no assertions can be nested."""
    raise NotImplementedError(f"{len(specs)} assertions cannot be judged here")


class CriterionKey(Struct, frozen=True):
    """The hash of what a judge rates by, and a short hash of each of its parts to show which one differs."""

    key: str
    parts: Mapping[str, str]


class CodeRunner(Protocol):
    """A runner for the code that a config names; implemented in `extras.programs`."""

    base_dir: Path
    access: Access
    env: Mapping[str, str] | None

    async def call(
        self,
        code: Any,
        arguments: Mapping[str, JsonValue],
        *,
        default_function: str = "get_assert",
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> JsonValue:
        """Call the code and return its result; `begin` is awaited right before."""
        ...

    async def aclose(self) -> None:
        """Stop all processes and threads; safe to call twice."""
        ...


class Tools(Struct, frozen=True):
    """The tools of an assertion: templates, a judge for any provider spec, a way to judge nested assertions, ...

    Attributes:
        judge_each: judges several assertions on one output; errors are results too.
        scripts: returns the runner for code that the config names; None if no code is run.
        access: what may be read, run and reached for the config.
        metrics: the metrics already built from g-evals, shared by all tests.
        criteria: the keys of criteria, shared by all tests.
        calibrations: the calibration of scores by human labels.
        earlier: results for the same output or outputs in an earlier run, whose ratings are reused if still valid.
    """

    templates: Templates
    judge_for: Callable[[ProviderSpec], Judge]
    judge_facts: JudgeFacts
    defaults: JudgeDefaults = field(default_factory=JudgeDefaults)
    judge_each: JudgeEach = judge_none
    scripts: Callable[[], CodeRunner] | None = None
    access: Access = TRUSTED
    metrics: SharedMetrics = field(default_factory=SharedMetrics)
    criteria: SharedValues[CriterionKey] = field(default_factory=SharedValues[CriterionKey])
    earlier: tuple[AssertionResult, ...] = ()
    calibrations: Calibrations = UNCALIBRATED

    @property
    def rules(self) -> DialectRules:
        """Return the dialect rules of the config that the assertions are in."""
        return self.templates.rules


class CheckContext(Struct, frozen=True):
    """A test as known before any request is sent; `rendered_prompt` is None if it cannot be rendered.

    `base_dir` is the config's folder, to which names of code files are relative. `knows_variables` is False if code or
    earlier answers of the run will add variables.
    """

    test: MergedTest
    templates: Templates
    where: str
    rendered_prompt: str | None = None
    base_dir: Path = field(default_factory=Path)
    access: Access = TRUSTED
    defaults: JudgeDefaults = field(default_factory=JudgeDefaults)
    knows_variables: bool = True

    @property
    def rules(self) -> DialectRules:
        """Return the dialect rules of the config that the test is in."""
        return self.templates.rules

    def render(
        self,
        text: str,
        location: Location | SourcePath | Callable[[], Location | None] | None,
        problems: list[Problem],
        *,
        variables: Mapping[str, JsonValue] | None = None,
    ) -> str | None:
        """Return `text` rendered with the test's variables, unless others are given; None with a problem if that fails.

        Also return None if it is not known yet what a template renders to.
        """
        try:
            rendered = self.templates.render(text, self.test.variables if variables is None else variables)
        except TemplateError as error:
            if isinstance(location, SourcePath):
                location = location.value()
            place = location() if callable(location) else location
            problems.append(template_problem(error, where=self.where, location=place))
            return None
        return rendered if self.knows_variables or rendered == text else None


class RowMember(Struct, frozen=True):
    """One of the outputs that are compared, with the results of its other assertions."""

    subject: Subject
    assertions: tuple[AssertionResult, ...] = ()


_SHOWN = 60  # characters shown of each of several texts


def as_text(value: JsonValue) -> str:
    """Return a value as text; booleans are spelled as in YAML (`true`)."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def compact_json(value: JsonValue) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def render_deep(value: JsonValue, render: Callable[[str], str]) -> JsonValue:
    """Return `value` with every text in it rendered; keys are unchanged."""
    if isinstance(value, str):
        return render(value)
    if isinstance(value, dict):
        return {key: render_deep(item, render) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [render_deep(item, render) for item in value]
    return value


_EXPRESSION = compile_later(r"\{\{-?\s*(\w+)\b[^{}]*\}\}")


def unrendered(
    value: JsonValue, what: str, hint: str, context: CheckContext, location: Location | None
) -> Iterator[Problem]:
    """Yield a warning if a value that is not a template names a variable of the test in braces.

    Other braces may be intended. `what` describes the value; NAME in `hint` becomes the variable.
    """
    text = value if isinstance(value, str) else compact_json(value)
    for found in _EXPRESSION.finditer(text):
        if found[1] in context.test.variables:
            message = f"`{shortened(found[0], 60)}` in {what} is not rendered: it stays as it is"
            yield Problem(message, location, hint.replace("NAME", found[1]), severity=Severity.WARNING)
            return


_ONE_NAME = compile_later(
    r"""\s*\{\{-?\s*(\w+)((?:\.\w+|\[\s*(?:\d+|'[^'\\]*'|"[^"\\]*")\s*\])*)\s*-?\}\}\s*"""
)
_MEMBER = compile_later(r"""\.(\w+)|\[\s*(?:(\d+)|'([^']*)'|"([^"]*)")\s*\]""")


def _held(text: str, test: MergedTest, templates: Templates) -> JsonValue:
    """Return the value of a text that only names a variable or a part of it (`{{ order.items[0] }}`); "" for others."""
    found = _ONE_NAME.fullmatch(text) if templates.rules.template_language == "strict" else None
    if found is None:
        return ""
    value = test.variables.get(found[1], "")
    for name, index, *quoted in _MEMBER.findall(found[2]):
        key = name or "".join(quoted)
        if isinstance(value, Mapping):
            value = value.get(key, "") if not index else ""
        elif (
            isinstance(value, list | tuple)
            and (index or name).isdecimal()
            and int(index or name) < len(value)
        ):
            value = value[int(index or name)]
        else:
            return ""
    return list(value) if isinstance(value, tuple) else value


def variable_data(text: str, test: MergedTest, templates: Templates) -> JsonValue:
    """Return the list or mapping that a text stands for if it only names a variable or a part of it; else None.

    Rendering it would give one of many ways to write it as JSON. In nunjucks, it renders in JavaScript's way instead.
    """
    found = _held(text, test, templates)
    return found if isinstance(found, list | dict) else None


class VariableText(str):
    """A rendered text that named only a variable, and so may also mean the variable's value, `held`."""

    held: JsonValue


def filled(text: str, test: MergedTest, templates: Templates) -> str:
    """Return a text inside data, rendered: a `VariableText` if it is just `{{ id }}` for a number, list or the like."""
    rendered = templates.render(text, test.variables)
    held = _held(text, test, templates)
    if isinstance(held, str):
        return rendered
    found = VariableText(rendered)
    found.held = held
    return found


def rendered_texts(
    value: JsonValue, test: MergedTest, templates: Templates, *, split: bool = False
) -> list[str]:
    """Return the rendered texts of a `value` that is one text or a list; with `split`, one text is split at commas.

    Strict templates render a list as JSON. So `{{ words }}` stands for the texts of a list and, with `split`, a text
    that is a JSON list counts as a list.
    """
    is_list = isinstance(value, list | tuple)
    texts: list[str] = []
    for item in value if is_list else [value]:
        written = as_text(item)
        found = _flat_list(variable_data(written, test, templates))
        if found is None:
            text = templates.render(written, test.variables)
            found = [text]
            if split and not is_list:
                is_strict = templates.rules.template_language == "strict"
                listed_in_json = _json_list(text) if is_strict else None
                found = (
                    split_at_commas(text, in_lines=is_strict) if listed_in_json is None else listed_in_json
                )
        texts += map(as_text, found)
    return texts


def _json_list(text: str) -> Sequence[JsonValue] | None:
    """Return the flat list in a JSON text; None for other texts, and for `[1]`, which is a citation."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_citation = len(found) == 1 and not isinstance(found[0], str)
    return None if is_citation else _flat_list(found)


def _flat_list(found: JsonValue) -> Sequence[JsonValue] | None:
    is_flat = isinstance(found, list) and not any(isinstance(part, list | tuple | dict) for part in found)
    return found if is_flat else None


def check_texts(value: JsonValue, place: SourcePath, context: CheckContext, problems: list[Problem]) -> bool:
    """Report the problems of rendering the texts of a `value`, whose position is `place`.

    Return whether the rendered form of all of them is known.
    """
    if not isinstance(value, list | tuple):
        return context.render(as_text(value), place.value(), problems) is not None
    rendered = [
        context.render(as_text(item), place.value(index), problems) for index, item in enumerate(value)
    ]
    return None not in rendered


_PART = compile_later(r'[\s,]*(?:"((?:\\["\\]|""|[^"])*+)"\s*(?:,|\Z)|([^\s,"][^,]*))')
_QUOTE_WITHIN = compile_later(r'\\(["\\])|"(")')


def split_at_commas(text: str, *, in_lines: bool = True) -> list[str]:
    """Return the comma-separated parts of a text, without surrounding space; quotes protect a comma in a part.

    Empty parts are left out. With `in_lines`, line breaks separate parts too; otherwise, as in promptfoo, they are
    kept, and a backslash escapes a quote.
    """
    parts = None if in_lines else _parts_of_one_line(text)
    if parts is None:
        lines = [line for line in text.splitlines() if line.strip()]
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a part may be a whole document
        rows = csv.reader(lines, skipinitialspace=True)
        parts = [part.strip() for row in rows for part in row if part.strip()]
    return parts


def _parts_of_one_line(text: str) -> list[str] | None:
    """Return the parts by promptfoo's rules; None if a closing quote is not followed by a comma, an error there."""
    parts, position = [], 0
    while found := _PART.match(text, position):
        quoted = _QUOTE_WITHIN.sub(lambda sign: sign[1] or sign[2], found[1] or "")
        parts.append(quoted if found[2] is None else found[2].strip())
        position = found.end()
    return None if text[position:].strip(", \t\r\n") else parts


def listed(texts: Sequence[str], limit: int = 5) -> str:
    """Return some texts in quotes for use in a reason."""
    shown = ", ".join(f'"{shortened(text, _SHOWN)}"' for text in texts[:limit])
    return f"{shown} and {len(texts) - limit} more" if len(texts) > limit else shown

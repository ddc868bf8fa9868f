"""Define assertions, what they see and what they find: the test and the output, the tools, the outcome.

A type of assertion is one class in one file: its fields are the keys that a config may write, `check` finds what is
wrong before anything is sent, `judge` gives the verdict on one output. `registry` lists the classes. A test holds
assertions, and assertions are given tests: so they are defined together.
"""

import csv
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import AliasChoices, Field, PrivateAttr

from geval_cli.assertions.json_text import calls_beside
from geval_cli.errors import GevalError, Location, Problem, Severity, TemplateError
from geval_cli.judge.calls import JudgeMemory, SharedByTests, SharedMetrics
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
    """The verdict of several assertions: `score` is their weighted mean, None when one errored or none counted."""

    status: Status
    score: float | None


def verdict_of(assertions: Sequence[AssertionResult], threshold: float | None) -> Verdict:
    """Return one verdict from all assertions; with a `threshold` the weighted score decides instead of all-must-pass.

    An assertion with weight 0 is there for its metric: whether it passes decides nothing. That it could not be judged
    does, as ever.
    """
    statuses = {item.status for item in assertions if item.weight or item.status is Status.ERROR}
    score = None if Status.ERROR in statuses else weighted_score(assertions)
    if threshold is not None:
        return Verdict(_by_threshold(statuses, score, threshold), score)
    for status in (Status.FAILED, Status.ERROR, Status.PASSED):
        if status in statuses:
            return Verdict(status, score)
    if any(item.score is not None and item.status is not Status.NOT_EVALUATED for item in assertions):
        return Verdict(Status.PASSED, None)
    return Verdict(Status.NOT_EVALUATED, score)


def weighted_score(assertions: Iterable[AssertionResult]) -> float | None:
    """sum(weight * score) / sum(weight) over the assertions that have a score; None when no weight is left."""
    return weighted_mean([(item.weight, item.score) for item in assertions if item.score is not None])


def _by_threshold(statuses: set[Status], score: float | None, threshold: float) -> Status:
    if Status.ERROR in statuses:
        return Status.ERROR
    if score is None:
        return Status.NOT_EVALUATED
    return Status.PASSED if passes(score, threshold) else Status.FAILED


class Outcome(Struct, frozen=True):
    """A verdict before weight, metric and `not-` are applied. `score` is 0..1, None when nothing was scored.

    Attributes:
        assertions: the results of the assertions that this one holds.
    """

    status: Status
    score: float | None
    reason: str
    threshold: float | None = None
    threshold_is_default: bool = False
    detail: Mapping[str, JsonValue] = field(default_factory=dict)
    latency_ms: float = 0.0
    assertions: tuple[AssertionResult, ...] = ()

    @classmethod
    def of(cls, passed: bool, reason: str, **detail: JsonValue) -> "Outcome":
        """Return a yes-or-no verdict: score 1 or 0."""
        return cls(Status.PASSED if passed else Status.FAILED, float(passed), reason, detail=detail)

    @classmethod
    def graded(
        cls, score: float, reason: str, threshold: float, *, is_default: bool = False, **detail: JsonValue
    ) -> "Outcome":
        """Return a score on 0..1 against the threshold that it must reach."""
        status = Status.PASSED if passes(score, threshold) else Status.FAILED
        return cls(status, score, reason, threshold, is_default, detail)

    def against(self, threshold: float, *, is_default: bool = False) -> "Outcome":
        """Return the same score held against another threshold; its reason names none, so it stays as it is."""
        if self.score is None:
            return self
        status = Status.PASSED if passes(self.score, threshold) else Status.FAILED
        return replace(self, status=status, threshold=threshold, threshold_is_default=is_default)

    @classmethod
    def not_evaluated(cls, reason: str) -> "Outcome":
        """There is nothing to evaluate with."""
        return cls(Status.NOT_EVALUATED, None, reason)


def negated(outcome: Outcome) -> Outcome:
    """Return the outcome under `not-`: pass flips and the score is inverted. One without a score stays as it is."""
    if outcome.score is None:
        return outcome
    status = _OPPOSITE.get(outcome.status, outcome.status)
    return replace(outcome, status=status, score=1 - outcome.score)


def shortened(text: str, limit: int = 120) -> str:
    """`text` for use inside a reason: on one line, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


Amount = Annotated[float, Field(ge=0)]


class Calibrations:
    """The meaning of scores by human labels. This is that of a config without a calibration file: nothing.

    Attributes:
        is_empty: no file is named, or nothing of it could be read; `is_broken`: that is reported.
    """

    is_empty = True
    is_broken = False

    def mark(self, result: AssertionResult) -> AssertionResult:
        """Return a result with what its score means, where it was rated as the labelled ones were."""
        return result

    def jury_weights(self, metric: str | None) -> tuple[Any, ...]:
        """Return the weights of the judges of a metric's jury: `JudgeWeight` of `extras.juries`."""
        return ()

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each metric that was rated by something else than what was calibrated."""
        return iter(())


UNCALIBRATED = Calibrations()


class ValueRules(Spec):
    """A mapping that an assertion takes as its `value`."""

    def problems(self) -> Sequence[Problem]:
        """Return the problems of values that are each of the right type."""
        return ()


ValueForm = Literal["text", "texts", "data", "schema"] | tuple[type[ValueRules], str]
"""How `value` is read. text, texts: each text may be file://. data: a file may hold JSON or YAML. schema: a JSON
Schema. A pair: a mapping is read as that model, which messages call by the second item."""


class Assertion(Spec):
    """One entry of `assert`. `type` is written with `not-` before it to negate the verdict.

    Attributes:
        value_form: how `value` is read; None takes it as it is.
        value_may_be_null: null is a value of its own and not a mistake.
        threshold_is_score: `threshold` is the lowest score that passes; otherwise a limit on another scale.
        compares_outputs: all outputs of a test are judged together, by `judge_row`.
        needs_logprobs: the model under test is asked for the probabilities of its tokens.
        runs_code: code of the config decides, which untrusted configs may not bring.
        calls_server: outputs are sent to a server that the config names.
        libraries: modules that it needs and that only the `extra` of geval installs.
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
    weight: Annotated[float, Field(ge=0)] = Field(
        1.0, description="The weight of this assertion in the test's score."
    )
    transform: str | None = Field(
        None, description="Code whose result is checked instead of the output: JavaScript or file://."
    )

    @property
    def is_negated(self) -> bool:
        return self.type.startswith("not-")

    @property
    def base_type(self) -> str:
        """The type without `not-`."""
        return self.type.removeprefix("not-")

    @property
    def members(self) -> "tuple[Assertion, ...]":
        """The assertions of a set; any other has none."""
        return ()

    @property
    def compared_with(self) -> str | None:
        """The name of the column that all others are compared with; None where each is compared with each."""
        return None

    @property
    def compared_by(self) -> str | None:
        """The criteria of a comparison in pairs, which also name its metric; None for any other assertion."""
        return None

    @property
    def needs_other_outputs(self) -> bool:
        """Return whether an output can only be judged beside another one of its test."""
        return self.compares_outputs

    def applies_to(self, test: "MergedTest", templates: Templates) -> bool:
        """Return False when the assertion evaluates nothing in `test`, so that no judge is needed."""
        return True

    def check(self, context: "CheckContext") -> list[Problem]:
        """Return every problem of this assertion in one test, before anything is sent."""
        return []

    async def judge(self, subject: "Subject", tools: "Tools") -> Outcome:
        """Return the verdict on one output.

        Raises:
            GevalError: it could not be judged.
        """
        if self.compares_outputs:  # one output has nothing to be compared with; `judge_row` says so
            [outcome] = await self.judge_row([RowMember(subject)], tools)
            if isinstance(outcome, GevalError):
                raise outcome
            return outcome
        raise NotImplementedError

    async def judge_row(
        self, members: "Sequence[RowMember]", tools: "Tools"
    ) -> Sequence[Outcome | GevalError]:
        """Return the verdicts on all outputs of a test, in the order of `members`, where `compares_outputs`.

        In the place of an output that alone could not be judged is its error.

        Raises:
            GevalError: they could not be judged.
        """
        raise NotImplementedError

    def prefetch(self, subject: "Subject", tools: "Tools") -> Iterable[tuple[Judge, ModelRequest]]:
        """Return the judge requests that do not depend on the output; `subject` has none yet."""
        return ()


def each_assertion(specs: Iterable[Assertion]) -> Iterator[Assertion]:
    """Yield every assertion, each set followed by its members."""
    for spec in specs:
        yield spec
        yield from each_assertion(spec.members)


_DECIDES_NO_RATING = frozenset(
    {"type", "metric", "weight", "threshold", "provider", "rubric_prompt", "transform", "context_transform"}
)
"""Keys that say what a rating means, or that have done their part before an output is judged."""


class ModelGradedAssertion(Assertion):
    """An assertion that asks a judge, `provider`.

    Attributes:
        judge_kinds: the kinds of models that it asks.
        default_threshold: the lowest score that passes where none is written; None where the judge says what passes.
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
        """Return whether the threshold is that of a calibration file."""
        return self._is_calibrated

    def with_calibrated_threshold(self, threshold: float) -> Self:
        """Return the assertion with the threshold that a calibration file has for it."""
        found = self.model_copy(update={"threshold": threshold})
        found._is_calibrated = True
        return found

    def criterion_source(self, test: "MergedTest", tools: "Tools") -> object:
        """Return the object that `criterion` is made from: the same one for all tests that share the criterion."""
        return self

    def criterion(self, test: "MergedTest", tools: "Tools") -> "JsonValue":
        """Return the keys that decide a rating, templates as written: the texts of a rating hold the variables."""
        levels = (self, test.options, test.default_options)
        own = next((level.rubric_prompt for level in levels if level.rubric_prompt is not None), None)
        written = own.model_dump(mode="json") if isinstance(own, RubricPromptSpec) else own
        return [self.model_dump(mode="json", exclude=set(_DECIDES_NO_RATING)), written]

    def criterion_alone(self, test: "MergedTest", tools: "Tools") -> "JsonValue":
        """Return what `criterion` would be with any one of its judges in place of the jury."""
        return self.criterion(test, tools)

    def criterion_parts(self, written: "JsonValue") -> "Mapping[str, JsonValue]":
        """Return the parts of what `criterion` returned, by the names that users know."""
        return {"criteria": written}

    def judged_texts(self, subject: "Subject", tools: "Tools") -> "JsonValue":
        """Return everything of a test and its output that a judge may be shown."""
        return [subject.text, subject.rendered_prompt, subject.system, subject.test.variables]

    def holds_again(self, rated: "AssertionResult", subject: "Subject", tools: "Tools") -> bool:
        """Return False where a rating of an earlier run followed steps that are settled otherwise now."""
        return True

    def scored(self, score: float, reason: str, latency_ms: float, **detail: "JsonValue") -> "Outcome":
        """Return a score on 0..1 against the threshold, of a type with a `default_threshold`."""
        assert self.default_threshold is not None
        is_default = self.threshold is None
        threshold = self.default_threshold if self.threshold is None else self.threshold
        outcome = Outcome.graded(score, reason, threshold, is_default=is_default, **detail)
        return replace(outcome, latency_ms=latency_ms)

    def decide_again(self, rated: "Outcome", test: "MergedTest", tools: "Tools") -> "Outcome | None":
        """Return the verdict on an output that was rated in an earlier run, with the threshold of today.

        None: it cannot be known without a judge.
        """
        if self.default_threshold is None:
            return rated
        is_default = self.threshold is None
        threshold = self.default_threshold if self.threshold is None else self.threshold
        return rated.against(threshold, is_default=is_default)


def location_of(spec: Assertion) -> str | None:
    """Return `file:line:column` of an assertion, or of the key that stands for it; None when it is in no file."""
    location = spec.place.key()
    return None if location is None else str(location)


class SimulatedUser(Struct, frozen=True):
    """Who talks with the model under test in place of scripted turns: a model, by its goal and its profile.

    Attributes:
        goal, opening: templates, as is a `done_when` in words.
        done_when: a sentence for the user's model, or an assertion about each answer; None leaves it to the goal.
        max_turns: the user says no more than that.
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
        """The assertion that `done_when` is, if it is one."""
        return (self.done_when,) if isinstance(self.done_when, Assertion) else ()


_NO_OPTIONS = PromptfooTestOptions.model_construct()  # without building its validator, which few suites need


class MergedTest(Struct, frozen=True):
    """One test with `defaultTest` merged into it.

    `options` and `default_options` stay apart because options of the command line are between them.
    `output` counts only when `has_output`; None is a value that can be judged as it is. `schema_place` is where
    `evaluation_schema` is; for a test without one, the test itself. `provider` answers in place of the suite's.
    `images` and `audio` are markers (`source.media`), as are images and recordings in any of the texts.
    `turns` are a conversation: with `plays_turns` what the user is going to say, else what was said. Where the
    assistant said the last word, that is the `output`. `trace` are the steps that led to the test's own output; None
    where they are not known. `tools` are those whose calls are answered. `user` says the turns where no one has
    written them.
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
        """Return whether the output ends a conversation."""
        return bool(self.turns) or self.user is not None

    @property
    def all_assertions(self) -> tuple[Assertion, ...]:
        """The assertions of the test, and the one that ends its conversation."""
        return self.assertions if self.user is None else (*self.assertions, *self.user.assertions)

    @property
    def ends_with_answer(self) -> bool:
        """Return whether `turns` are a whole conversation, which is judged as it is."""
        return bool(self.turns) and not self.plays_turns and self.turns[-1].role == ASSISTANT

    @property
    def transform(self) -> tuple[str, Location | None] | None:
        """The code that makes of an answer the output, and where it is."""
        for options in (self.options, self.default_options):
            if options.transform is not None:
                return options.transform, options.place.value("transform")
        return None

    @property
    def transform_vars(self) -> tuple[str, Location | None] | None:
        """The code that changes the variables, and where it is."""
        for options in (self.options, self.default_options):
            if options.transform_vars is not None:
                return options.transform_vars, options.place.spelled("transformVars", "transform_vars")
        return None

    @property
    def variables(self) -> dict[str, JsonValue]:
        """Return the variables of templates: the test's own fields by name, and `vars`, which win over them."""
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
"""The name of the expected output of a test where outputs are compared with it."""
PAIRS = "pairs"
"""In the detail of a comparison: its pairs, as `PairResult.shown` has them (`extras.comparisons`)."""


class RowColumn(Struct, frozen=True):
    """The column of an output that is compared with others: its index, its label, and all names that it goes by."""

    index: int
    label: str
    names: frozenset[str] = frozenset()


class Subject(Struct, frozen=True):
    """One output with all that is known about where it came from.

    Attributes:
        system: the system message of a `{system: ...}` prompt, whose other side is the test's input; None for others.
        response: what the model under test answered, with usage, timing and finish reason; None for an output that
            the test brings.
        provider: who answered, as the config has it; None for an output that the test brings, unless the dialect
            says who would have answered.
        opaque: the variables of the test that models made in earlier jobs; they are put into no code.
        rules: of the config, which say how data is written as text.
        column: where it is compared with other outputs; else None.
        turns: what was said when the test's turns were played, the output at the end; empty for other tests.
        reported: what a program gave beside the output (metadata, raw, guardrails, sessionId, ...), and the `output`
            as it was before the transform of an assertion.
        called: the calls of the test's tools that led to the output; None for a test without `tools`.
        ended_by: how a simulated user ended the conversation; None where no one did.
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
        """The conversation that the output ends, as it is judged; empty for a test without turns."""
        turns = self.turns or self.test.turns
        if not turns:
            return ()
        is_whole = bool(self.turns) or self.test.ends_with_answer
        return (*(turns[:-1] if is_whole else turns), Turn(ASSISTANT, self.text, self.tool_calls))

    @property
    def tool_calls(self) -> tuple[Mapping[str, JsonValue], ...]:
        """The tool calls beside the output; empty where it is nothing but calls itself."""
        if self.response is not None:
            calls = self.response.tool_calls
        else:
            calls = self.test.turns[-1].tool_calls if self.test.ends_with_answer else ()
        return calls_beside(self.output, calls)

    @property
    def text(self) -> str:
        """The output as text: as it is, or as JSON when a provider answered with data."""
        if isinstance(self.output, str):
            return self.output
        if self.rules.data_as_text == "javascript":
            return js_json(self.output)
        return json.dumps(self.output, ensure_ascii=False)


class JudgeDefaults(Struct, frozen=True):
    """The command line's judge options; they rank below a test's own options and above `defaultTest`'s.

    `threshold` is what the dialect asks of a g-eval that names none. `exact_metrics` are those whose scores themselves
    are held against something, so that a verdict is not enough; None for all.
    """

    grader: ProviderSpec | None = None
    scoring: Scoring | None = None
    samples: Samples | None = None
    threshold: float = DEFAULT_THRESHOLD
    exact_metrics: frozenset[str] | None = frozenset()


JudgeEach = Callable[[Sequence[Assertion], Subject], Awaitable[Sequence[AssertionResult]]]


async def judge_none(specs: Sequence[Assertion], subject: Subject) -> Sequence[AssertionResult]:
    """Stands where assertions cannot hold others."""
    raise NotImplementedError(f"{len(specs)} assertions cannot be judged here")


class CriterionKey(Struct, frozen=True):
    """The hash of what a judge rates by, and a short hash of each of its parts, by which a difference is named."""

    key: str
    parts: Mapping[str, str]


class CodeRunner(Protocol):
    """Runs code that a config names; implemented in `extras.programs`."""

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
        """End processes and threads. Safe to call twice."""
        ...


class Tools(Struct, frozen=True):
    """Tools of an assertion: templates, a judge for any provider spec, and a way to have other assertions judged.

    Attributes:
        judge_each: the results of several assertions on one output, errors as results too.
        scripts: gives what runs the code that the config names; None where none is run.
        access: what may be read, run and reached for the config.
        metrics: what g-evals were made into for other tests.
        criteria: the keys of criteria that other tests have, too.
        calibrations: what scores mean by human labels.
        earlier: results of the same output, or outputs, in an earlier run, whose ratings hold where they are asked for
            again.
    """

    templates: Templates
    judge_for: Callable[[ProviderSpec], Judge]
    judge_memory: JudgeMemory
    defaults: JudgeDefaults = field(default_factory=JudgeDefaults)
    judge_each: JudgeEach = judge_none
    scripts: Callable[[], CodeRunner] | None = None
    access: Access = TRUSTED
    metrics: SharedMetrics = field(default_factory=SharedMetrics)
    criteria: SharedByTests[CriterionKey] = field(default_factory=SharedByTests[CriterionKey])
    earlier: tuple[AssertionResult, ...] = ()
    calibrations: Calibrations = UNCALIBRATED

    @property
    def rules(self) -> DialectRules:
        """The rules of the config that the assertions stand in."""
        return self.templates.rules


class CheckContext(Struct, frozen=True):
    """A test as it is known before anything is sent. `rendered_prompt` is None when it cannot be rendered.

    `base_dir` is the config's folder, to which names of code files are relative. Without `knows_variables`, code or
    earlier answers of the run add some.
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
        """The rules of the config that the test stands in."""
        return self.templates.rules

    def render(
        self,
        text: str,
        location: Location | SourcePath | Callable[[], Location | None] | None,
        problems: list[Problem],
        *,
        variables: Mapping[str, JsonValue] | None = None,
    ) -> str | None:
        """`text` rendered, with the test's variables unless others are given; None and a problem when that fails.

        None also where it is not known yet what a template becomes.
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
    """One output of a comparison group, with the results of its other assertions."""

    subject: Subject
    assertions: tuple[AssertionResult, ...] = ()


_SHOWN = 60  # characters of one of several texts


def as_text(value: JsonValue) -> str:
    """Return a value as text; YAML's `true` is written as in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def compact_json(value: JsonValue) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def render_deep(value: JsonValue, render: Callable[[str], str]) -> JsonValue:
    """`value` with every text in it rendered; keys stay as they are."""
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
    """Yield a warning where a value that is not rendered has a variable of the test in braces.

    Other braces may be meant as they are. `what` is the value in words; NAME in `hint` becomes the variable.
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
    """Return what a text holds that only names a variable or a part of it: `{{ order.items[0] }}`; "" of others."""
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


def held_data(text: str, test: MergedTest, templates: Templates) -> JsonValue:
    """Return the list or mapping that a text stands for, which only names a variable or a part of it; None of others.

    Rendered, it would be one of many ways to write it as JSON. In nunjucks, texts have JavaScript's form of it.
    """
    found = _held(text, test, templates)
    return found if isinstance(found, list | dict) else None


class Filled(str):
    """A text of data that named nothing but a variable, rendered: it may also mean what the variable holds."""

    held: JsonValue


def filled(text: str, test: MergedTest, templates: Templates) -> str:
    """Return a text of data rendered: `Filled` where `{{ id }}` alone stands for a number, a list or their like."""
    rendered = templates.render(text, test.variables)
    held = _held(text, test, templates)
    if isinstance(held, str):
        return rendered
    found = Filled(rendered)
    found.held = held
    return found


def rendered_texts(
    value: JsonValue, test: MergedTest, templates: Templates, *, split: bool = False
) -> list[str]:
    """The texts of a `value` that is one text or a list of them, rendered; with `split` one text is cut at commas.

    Strict templates render a list as JSON. So `{{ words }}` stands for the texts of a list, and with `split` what is
    written as a list of JSON is one.
    """
    is_list = isinstance(value, list | tuple)
    texts: list[str] = []
    for item in value if is_list else [value]:
        written = as_text(item)
        found = _flat_list(held_data(written, test, templates))
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
    """Return the flat list that a text is in JSON; None of others, and of `[1]`, which is a citation."""
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

    Return whether it is known what all of them become.
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
    """The parts of a text with commas between them, without the space around them; quotes keep a comma in a part.

    Nothing between two commas is no part. With `in_lines`, line breaks are like commas; else, as in promptfoo, they
    belong to a part, and a backslash before a quote keeps it.
    """
    parts = None if in_lines else _parts_of_one_line(text)
    if parts is None:
        lines = [line for line in text.splitlines() if line.strip()]
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a part may be a whole document
        rows = csv.reader(lines, skipinitialspace=True)
        parts = [part.strip() for row in rows for part in row if part.strip()]
    return parts


def _parts_of_one_line(text: str) -> list[str] | None:
    """Return the parts by promptfoo's rules; None where a quotation does not end before a comma, an error there."""
    parts, position = [], 0
    while found := _PART.match(text, position):
        quoted = _QUOTE_WITHIN.sub(lambda sign: sign[1] or sign[2], found[1] or "")
        parts.append(quoted if found[2] is None else found[2].strip())
        position = found.end()
    return None if text[position:].strip(", \t\r\n") else parts


def listed(texts: Sequence[str], limit: int = 5) -> str:
    """Return some texts for use inside a reason."""
    shown = ", ".join(f'"{shortened(text, _SHOWN)}"' for text in texts[:limit])
    return f"{shown} and {len(texts) - limit} more" if len(texts) > limit else shown

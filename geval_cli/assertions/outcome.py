"""What an assertion looks at, what it may use, and what it answers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from geval_cli.config.schema import AssertionSpec, LlmEvaluationSpec, ModelGradedSpec, ProviderSpec, Scoring
from geval_cli.config.suite import TestCase
from geval_cli.errors import Location, Problem, TemplateError
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.metric import Judge
from geval_cli.records import JsonValue, ModelResponse, Status
from geval_cli.templating import Templates, template_problem

DEFAULT_JUDGE = ProviderSpec(id="openai:gpt-4.1")
"""Who judges when nobody says."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One output with all that is known about where it came from.

    Attributes:
        system: the system message of a `{system: ...}` prompt, whose other side is the test's input; None for others.
        response: what the model under test answered, with usage, timing and finish reason; None for an output that
            the test brings.
    """

    test: TestCase
    output: JsonValue
    rendered_prompt: str
    repeat_index: int = 0
    system: str | None = None
    response: ModelResponse | None = None

    @property
    def text(self) -> str:
        """The output as text: as it is, or as JSON when a provider answered with data."""
        return self.output if isinstance(self.output, str) else json.dumps(self.output, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class JudgeDefaults:
    """What the command line says about judging; it stands between a test's own options and `defaultTest`'s."""

    grader: ProviderSpec | None = None
    scoring: Scoring | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """What assertions may use: templates, and a judge for any provider spec."""

    templates: Templates
    judge_for: Callable[[ProviderSpec], Judge]
    judge_memory: JudgeMemory
    defaults: JudgeDefaults = field(default_factory=JudgeDefaults)


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What is known of a test before anything is sent. `rendered_prompt` is None when it cannot be rendered."""

    test: TestCase
    templates: Templates
    where: str
    rendered_prompt: str | None = None

    def render(
        self,
        text: str,
        location: Location | None,
        problems: list[Problem],
        *,
        variables: Mapping[str, JsonValue] | None = None,
    ) -> str | None:
        """`text` rendered, with the test's variables unless others are given; None and a problem when that fails."""
        try:
            return self.templates.render(text, self.test.variables if variables is None else variables)
        except TemplateError as error:
            problems.append(template_problem(error, where=self.where, location=location))
            return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict before weight, metric and `not-` are applied. `score` is 0..1, None when nothing was scored."""

    status: Status
    score: float | None
    reason: str
    threshold: float | None = None
    threshold_is_default: bool = False
    detail: Mapping[str, JsonValue] = field(default_factory=dict)
    latency_ms: float = 0.0

    @classmethod
    def of(cls, passed: bool, reason: str, **detail: JsonValue) -> "Outcome":
        """A yes-or-no verdict: score 1 or 0."""
        return cls(Status.PASSED if passed else Status.FAILED, float(passed), reason, detail=detail)

    @classmethod
    def not_evaluated(cls, reason: str) -> "Outcome":
        """There is nothing to evaluate with."""
        return cls(Status.NOT_EVALUATED, None, reason)


_OPPOSITE = {Status.PASSED: Status.FAILED, Status.FAILED: Status.PASSED}


def negated(outcome: Outcome) -> Outcome:
    """The outcome under `not-`: pass flips and the score is turned round. What was not judged stays so."""
    return replace(
        outcome,
        status=_OPPOSITE.get(outcome.status, outcome.status),
        score=None if outcome.score is None else 1 - outcome.score,
    )


def shortened(text: str, limit: int = 120) -> str:
    """`text` for use inside a reason: on one line, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def location_of(spec: AssertionSpec) -> str | None:
    """`file:line:column` of an assertion, or of the key that stands for it; None when it does not stand in a file."""
    location = spec.place.key()
    return None if location is None else str(location)


def judge_provider(spec: ModelGradedSpec, test: TestCase, defaults: JudgeDefaults) -> ProviderSpec:
    """Who judges an assertion: the nearest that names one (GEVAL.md, section 3)."""
    return (
        spec.provider
        or test.options.provider
        or defaults.grader
        or test.default_options.provider
        or DEFAULT_JUDGE
    )


def has_criteria(spec: LlmEvaluationSpec, test: TestCase, templates: Templates) -> bool:
    """Whether the criteria say anything, once the test's variables are in them."""
    try:
        return bool(templates.render(str(spec.criteria), test.variables).strip())
    except TemplateError:
        return True  # somebody must be told

"""Define the input, the tools and the outcome of an assertion."""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, ModelGradedAssertion
from geval_cli.assertions.calibrated import Calibrations
from geval_cli.assertions.test_case import TestCase
from geval_cli.errors import Location, Problem, TemplateError, UnjudgeableError
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.metric import DEFAULT_THRESHOLD, Judge, Metric
from geval_cli.judge.scoring import passes
from geval_cli.providers.judge_kinds import (
    CLASSIFICATION,
    EMBEDDING,
    MODERATION,
    SEARCH,
    TEXT,
    can_search,
    kind_of,
)
from geval_cli.records import AssertionResult, JsonValue, ModelResponse, Status
from geval_cli.scripting.scripts import Scripts
from geval_cli.source.access import TRUSTED, Access
from geval_cli.specs.base import ProviderSpec, Scoring
from geval_cli.specs.dialect import DEFAULT_RULES, DialectRules
from geval_cli.specs.promptfoo import JudgesSpec
from geval_cli.templating import Templates, template_problem
from geval_cli.templating.js_text import js_json

_SHARED_KEPT = 256  # of a config with criteria of its own in every test, the last ones

Texts = tuple[str, ...] | None

Shared = TypeVar("Shared")


class SharedByTests(Struct, Generic[Shared]):
    """Values by the objects of the config that they come from and their rendered texts. One for a run."""

    _kept: dict[tuple[object, ...], tuple[tuple[object, ...], Shared]] = field(default_factory=dict)

    def find(
        self, sources: tuple[object, ...], texts: tuple[Texts, ...], make: Callable[[], Shared]
    ) -> Shared:
        """Return the value of these very `sources` with these `texts`; `make` builds it at the first call."""
        key = (*map(id, sources), texts)
        kept = self._kept.get(key)
        if kept is not None:
            return kept[1]
        value = make()
        # The sources are held, so that no other object can get the identity of one of them.
        self._kept[key] = sources, value
        if len(self._kept) > _SHARED_KEPT:
            del self._kept[next(iter(self._kept))]
        return value


class SharedMetrics(SharedByTests[Metric]):
    """The metrics that g-evals were made into for other tests."""


class CriterionKey(Struct, frozen=True):
    """The hash of what a judge rates by, and a short hash of each of its parts, by which a difference is named."""

    key: str
    parts: Mapping[str, str]


DEFAULT_JUDGE = ProviderSpec(id="openai:gpt-4.1")
"""The judge when none is named."""

DEFAULT_EMBEDDING = ProviderSpec(id="openai:embedding:text-embedding-3-large")
"""The embedding provider when none is named."""

DEFAULT_MODERATION = ProviderSpec(id="openai:moderation")
"""The moderator when none is named."""

DEFAULT_SEARCH = ProviderSpec(id="openai:responses:gpt-4.1", config={"tools": [{"type": "web_search"}]})
"""The judge with web search when none is named."""

_DEFAULTS: Mapping[str, ProviderSpec] = {
    TEXT: DEFAULT_JUDGE,
    EMBEDDING: DEFAULT_EMBEDDING,
    MODERATION: DEFAULT_MODERATION,
    SEARCH: DEFAULT_SEARCH,
}


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
    """

    test: TestCase
    output: JsonValue
    rendered_prompt: str
    repeat_index: int = 0
    system: str | None = None
    response: ModelResponse | None = None
    provider: ProviderSpec | None = None
    opaque: frozenset[str] = frozenset()
    rules: DialectRules = DEFAULT_RULES

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

    `threshold` is what the dialect asks of a g-eval that names none.
    """

    grader: ProviderSpec | None = None
    scoring: Scoring | None = None
    samples: int | None = None
    threshold: float = DEFAULT_THRESHOLD


JudgeEach = Callable[[Sequence[Assertion], Subject], Awaitable[Sequence[AssertionResult]]]


async def judge_none(specs: Sequence[Assertion], subject: Subject) -> Sequence[AssertionResult]:
    """Stands where assertions cannot hold others."""
    raise NotImplementedError(f"{len(specs)} assertions cannot be judged here")


class Tools(Struct, frozen=True):
    """Tools of an assertion: templates, a judge for any provider spec, and a way to have other assertions judged.

    Attributes:
        judge_each: the results of several assertions on one output, errors as results too.
        scripts: runs the code that the config names; None where none is run.
        access: what may be read, run and reached for the config.
        metrics: what g-evals were made into for other tests.
        criteria: the keys of criteria that other tests have, too.
        earlier: results of the same output, or outputs, in an earlier run, whose ratings hold where they are asked for
            again.
    """

    templates: Templates
    judge_for: Callable[[ProviderSpec], Judge]
    judge_memory: JudgeMemory
    defaults: JudgeDefaults = field(default_factory=JudgeDefaults)
    judge_each: JudgeEach = judge_none
    scripts: Scripts | None = None
    access: Access = TRUSTED
    metrics: SharedMetrics = field(default_factory=SharedMetrics)
    criteria: SharedByTests[CriterionKey] = field(default_factory=SharedByTests[CriterionKey])
    earlier: tuple[AssertionResult, ...] = ()
    calibrations: Calibrations = field(default_factory=lambda: Calibrations({}))

    @property
    def rules(self) -> DialectRules:
        """The rules of the config that the assertions stand in."""
        return self.templates.rules


class CheckContext(Struct, frozen=True):
    """A test as it is known before anything is sent. `rendered_prompt` is None when it cannot be rendered.

    `base_dir` is the config's folder, to which names of code files are relative.
    """

    test: TestCase
    templates: Templates
    where: str
    rendered_prompt: str | None = None
    base_dir: Path = field(default_factory=Path)
    access: Access = TRUSTED

    @property
    def rules(self) -> DialectRules:
        """The rules of the config that the test stands in."""
        return self.templates.rules

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
        """Return the same score held against another threshold, in the reason too where that names it."""
        if self.score is None:
            return self
        status = Status.PASSED if passes(self.score, threshold) else Status.FAILED
        reason = self.reason
        if self.threshold is not None:
            reason = reason.replace(threshold_in_words(self.threshold), threshold_in_words(threshold))
        return replace(
            self, status=status, reason=reason, threshold=threshold, threshold_is_default=is_default
        )

    @classmethod
    def not_evaluated(cls, reason: str) -> "Outcome":
        """There is nothing to evaluate with."""
        return cls(Status.NOT_EVALUATED, None, reason)


def threshold_in_words(threshold: float) -> str:
    """Return the part of a reason that names the threshold."""
    return f"the threshold is {threshold:g}"


_OPPOSITE = {Status.PASSED: Status.FAILED, Status.FAILED: Status.PASSED}


def negated(outcome: Outcome) -> Outcome:
    """Return the outcome under `not-`: pass flips and the score is inverted. An unjudged outcome stays as it is."""
    return replace(
        outcome,
        status=_OPPOSITE.get(outcome.status, outcome.status),
        score=None if outcome.score is None else 1 - outcome.score,
    )


def shortened(text: str, limit: int = 120) -> str:
    """`text` for use inside a reason: on one line, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def location_of(spec: Assertion) -> str | None:
    """Return `file:line:column` of an assertion, or of the key that stands for it; None when it is in no file."""
    location = spec.place.key()
    return None if location is None else str(location)


def judge_provider(
    spec: ModelGradedAssertion, test: TestCase, defaults: JudgeDefaults, kind: str = TEXT
) -> ProviderSpec:
    """Return the judge of an assertion: of the nearest level that names one of this kind (GEVAL.md, section 3).

    `kind` is what it must answer with (`providers.judge_kinds`).

    Raises:
        UnjudgeableError: none is named, and there is none by default.
    """
    found = find_judge(spec, test, defaults, kind)
    if found is None:
        raise UnjudgeableError(f"{spec.base_type} has no {kind} model to ask", hint="name one in `provider`")
    return found


def find_judge(
    spec: ModelGradedAssertion, test: TestCase, defaults: JudgeDefaults, kind: str = TEXT
) -> ProviderSpec | None:
    """Return the provider of `judge_provider`, or None where none is named."""
    own = None if spec.provider is None else _as_kind(spec.provider, kind)
    if own is not None:
        return own
    for level in (test.options.provider, defaults.grader, test.default_options.provider):
        found = None if level is None else _of_kind(level, kind)
        if found is not None:
            return found
    return _DEFAULTS.get(kind)


def judges_of(spec: ModelGradedAssertion, test: TestCase, defaults: JudgeDefaults) -> Iterator[ProviderSpec]:
    """Yield every provider that judges for an assertion."""
    for kind in spec.judge_kinds:
        found = find_judge(spec, test, defaults, kind)
        if found is not None:
            yield found


def _as_kind(provider: ProviderSpec, kind: str) -> ProviderSpec | None:
    """Return an assertion's own provider, which need not say its kind where there can be no doubt."""
    if isinstance(provider, JudgesSpec):
        return _of_kind(provider, kind)
    if kind == CLASSIFICATION:
        return provider  # anything that answers with scores of labels
    vendor, _, model = provider.id.partition(":")
    if kind == EMBEDDING and vendor == "local" and kind_of(provider.id) == TEXT:
        return provider.model_copy(update={"id": f"{vendor}:embedding:{model}"})
    return _of_kind(provider, kind)


def _of_kind(provider: ProviderSpec, kind: str) -> ProviderSpec | None:
    if isinstance(provider, JudgesSpec):
        found = provider.by_kind.get(TEXT if kind == SEARCH else kind)
        return found if found is None or kind != SEARCH or can_search(found) else None
    if kind == SEARCH:
        return provider if can_search(provider) else None
    return provider if kind_of(provider.id) == kind else None

"""Find the judge of an assertion.

It is the provider of the nearest level that names one, else a default.
"""

from collections.abc import Iterator, Mapping

from pydantic import AliasChoices, Field

from geval_cli.assertions.base import CheckContext, JudgeDefaults, MergedTest, ModelGradedAssertion
from geval_cli.errors import Problem, Severity, UnjudgeableError
from geval_cli.providers.base import CLASSIFICATION, EMBEDDING, MODERATION, SEARCH, TEXT, can_search, kind_of
from geval_cli.specs.base import JurySpec, ProviderSpec
from geval_cli.specs.promptfoo import JudgesSpec

DEFAULT_JUDGE = ProviderSpec(id="openai:gpt-4.1")
"""The judge if the config names none."""

DEFAULT_EMBEDDING = ProviderSpec(id="openai:embedding:text-embedding-3-large")
"""The embedding provider if the config names none."""

DEFAULT_MODERATION = ProviderSpec(id="openai:moderation")
"""The moderation model if the config names none."""

DEFAULT_SEARCH = ProviderSpec(id="openai:responses:gpt-4.1", config={"tools": [{"type": "web_search"}]})
"""The judge with web search if the config names none."""

_DEFAULTS: Mapping[str, ProviderSpec] = {
    TEXT: DEFAULT_JUDGE,
    EMBEDDING: DEFAULT_EMBEDDING,
    MODERATION: DEFAULT_MODERATION,
    SEARCH: DEFAULT_SEARCH,
}


def kind_by_default(judge: ProviderSpec) -> str | None:
    """Return the kind of a default judge; None for a judge named in the config."""
    return next((kind for kind, default in _DEFAULTS.items() if judge is default), None)


def judge_provider(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults, kind: str = TEXT
) -> ProviderSpec:
    """Return the judge of an assertion: the provider of the nearest level that names one of this kind.

    `kind` is the kind of answer that is needed (`providers.base`).

    Raises:
        UnjudgeableError: none is named, and there is no default.
    """
    found = find_judge(spec, test, defaults, kind)
    if found is None:
        raise UnjudgeableError(f"{spec.base_type} has no {kind} model to call", hint="name one in `provider`")
    return found


def find_judge(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults, kind: str = TEXT
) -> ProviderSpec | None:
    """Return the judge as `judge_provider` does, or None if there is none."""
    own = None if spec.provider is None else _as_kind(spec.provider, kind)
    if own is not None:
        return own
    for level in (test.options.provider, defaults.grader, test.default_options.provider):
        found = None if level is None else _of_kind(level, kind)
        if found is not None:
            return found
    return _DEFAULTS.get(kind)


def members_of(judge: ProviderSpec) -> tuple[ProviderSpec, ...]:
    """Return the judges of a jury, or the single judge."""
    return judge.members if isinstance(judge, JurySpec) else (judge,)


def judges_of(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults
) -> Iterator[ProviderSpec]:
    """Yield every provider that acts as a judge for an assertion."""
    for kind in spec.judge_kinds:
        found = find_judge(spec, test, defaults, kind)
        if found is not None:
            yield from members_of(found)


_CALLED = {EMBEDDING: "an embedding model", CLASSIFICATION: "a classifier", MODERATION: "a moderation model"}


def check_judge(spec: ModelGradedAssertion, context: CheckContext) -> Iterator[Problem]:
    """Yield a problem for an assertion's own judge if its kind of answer is not what the assertion needs.

    promptfoo then uses the default judge, and says so.
    """
    own = spec.provider
    if own is None or isinstance(own, JudgesSpec) or not {TEXT, MODERATION} & set(spec.judge_kinds):
        return
    for judge in members_of(own):
        if any(_as_kind(judge, kind) is not None for kind in spec.judge_kinds):
            continue
        wanted = spec.judge_kinds[0]
        what = _CALLED.get(kind_of(judge.id), "a model that writes text")
        message = f"`{judge.public_id}` is {what}, which cannot judge {spec.base_type}"
        severity = Severity.ERROR
        if context.rules.judges_by_kind:
            message = f"{message}; {_DEFAULTS[wanted].id} is used instead"
            severity = Severity.WARNING
        hint = f"name {'a chat model' if wanted == TEXT else _CALLED[wanted]}, for example {_DEFAULTS[wanted].id}"
        place = judge.place.value("id") or judge.place.value() or spec.place.value("provider")
        yield Problem(message, place, hint, severity=severity)


def check_writer(provider: ProviderSpec, role: str) -> Iterator[Problem]:
    """Yield a problem if a model that must write text, in the given role, is an embedding model."""
    if kind_of(provider.id) == EMBEDDING:
        message = f"`{provider.public_id}` is an embedding model: it returns vectors and cannot {role}"
        hint = "name a chat model; embedding models are for the `provider` of `similar`"
        yield Problem(message, provider.place.value("id") or provider.place.value(), hint)


def _as_kind(provider: ProviderSpec, kind: str) -> ProviderSpec | None:
    """Return an assertion's own provider if it is, or can only be meant as, a model of this kind; else None."""
    if isinstance(provider, JurySpec):
        return provider if kind == TEXT else None
    if isinstance(provider, JudgesSpec):
        return _of_kind(provider, kind)
    if kind == CLASSIFICATION:
        return provider  # any provider that answers with scores of labels
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


DEFAULT_THRESHOLD = 0.5
"""The default lowest passing score of assertions about retrieved context."""


class ContextAssertion(ModelGradedAssertion):
    """The base of the assertions about retrieved context."""

    default_threshold = DEFAULT_THRESHOLD

    context_transform: str | None = Field(
        None,
        validation_alias=AliasChoices("contextTransform", "context_transform"),
        description="Code that extracts the context from the output.",
    )

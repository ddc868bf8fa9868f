"""Plan the jobs of a run: lazily, with a queue for each provider. Pure."""

from collections.abc import Iterable, Iterator
from functools import cached_property

from msgspec import Struct

from geval_cli.assertions.base import TestCase
from geval_cli.records import Column, ProviderRef
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.suite.suite import Suite

_ANY = "*"


def answers_prompt(provider: ProviderSpec, prompt: PromptSpec) -> bool:
    """Return whether a provider gets a prompt at all; one that chooses nothing gets every prompt."""
    chosen = provider.prompts if isinstance(provider, FilteredProviderSpec) else None
    return chosen is None or _is_chosen(prompt_names(prompt), chosen)


def runs_with(test: TestCase, provider: ProviderSpec, prompt: PromptSpec) -> bool:
    """Return whether a test is run with a provider and a prompt."""
    promptfoo = test.promptfoo
    return (promptfoo.prompts is None or _is_chosen(prompt_names(prompt), promptfoo.prompts)) and (
        promptfoo.providers is None
        or _is_chosen((provider.label, provider.id, provider.public_id), promptfoo.providers)
    )


def prompt_names(prompt: PromptSpec) -> tuple[str, ...]:
    """Return all names by which a config may choose a prompt."""
    own = prompt.names if isinstance(prompt, NamedPromptSpec) else ()
    return (prompt.id, prompt.label, *own)


def _is_chosen(names: Iterable[str], chosen: Iterable[str]) -> bool:
    """Return whether one of `names` is chosen: as it is, by the group before its colon, or by a beginning and `*`."""
    known = [name for name in names if name]
    return any(
        name == chosen_name
        or name.startswith(f"{chosen_name}:")
        or (chosen_name.endswith(_ANY) and name.startswith(chosen_name.removesuffix(_ANY)))
        for chosen_name in chosen
        for name in known
    )


NO_PROVIDER = ProviderSpec(id="none")
"""Stands where nothing is generated: the test's own output is judged as it is (GEVAL.md, section 1)."""


class Job(Struct, frozen=True):
    """One prompt x provider x test case x repeat.

    `group` names the jobs that are in one row of the table: the same test and repeat. Assertions that compare
    answers with one another are judged by it. `label` is what results show for the provider in place of its own.
    """

    test: TestCase
    prompt: PromptSpec
    provider: ProviderSpec
    repeat_index: int
    column: int
    label: str = ""

    @property
    def shown_provider(self) -> ProviderRef:
        """Who answers, as results name it."""
        return ProviderRef(self.provider.public_id, self.label or self.provider.title)

    @property
    def id(self) -> str:
        return f"{self.group}.{self.column}"

    @property
    def group(self) -> str:
        return f"{self.test.index}.{self.repeat_index}"

    @property
    def generates(self) -> bool:
        """Return whether a model is asked for the output, or the test's own output is judged."""
        return self.provider.id != NO_PROVIDER.id and not self.test.promptfoo.output_replaces_answer


class Plan(Struct, frozen=True, dict=True):
    """All jobs of a run. Asking again gives equal jobs with equal ids; none of them is held.

    With `is_serial` a job may depend on those before it: they are done one by one. With `is_in_rows` outputs of a
    test are compared with one another: all of its jobs come one after another.
    """

    suite: Suite
    repeats: int = 1
    is_serial: bool = False
    is_in_rows: bool = False

    @property
    def providers(self) -> tuple[ProviderSpec, ...]:
        return self.suite.providers or (NO_PROVIDER,)

    @cached_property
    def pairs(self) -> tuple[tuple[ProviderSpec, PromptSpec], ...]:
        """Return the prompt x provider pairs of a run, provider by provider."""
        return tuple(
            (provider, prompt)
            for provider in self.providers
            for prompt in self.suite.prompts
            if answers_prompt(provider, prompt)
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """The pairs, as the table shows them."""
        return tuple(
            Column(index, prompt.label, provider.title) for index, (provider, prompt) in enumerate(self.pairs)
        )

    def cases_of(self, test: TestCase) -> int:
        """Return the number of a test's jobs, repeats counted once."""
        return sum(runs_with(test, provider, prompt) for provider, prompt in self.pairs)

    @property
    def queues(self) -> tuple[Iterator[Job], ...]:
        """The jobs in the order test, repeat, provider, prompt: a queue for each provider, or one where order counts.

        Each queue goes through the tests by itself.
        """
        if self.is_serial or self.is_in_rows:
            return (self._lane(None),)
        return tuple(self._lane(provider) for provider in self.providers)

    def answering(self, test: TestCase, provider: ProviderSpec) -> ProviderSpec:
        """Who answers a test in a provider's column: whom the test names, a configured one by label or id, if any."""
        own = test.provider
        if own is None:
            return provider
        named = (item for item in self.suite.providers if own.id in (item.label, item.id))
        return next(named, own) if _is_only_name(own) else own

    def _lane(self, only: ProviderSpec | None) -> Iterator[Job]:
        for test in self.suite.tests:
            yield from self.jobs_of(test, only)

    def jobs_of(self, test: TestCase, only: ProviderSpec | None = None) -> Iterator[Job]:
        """Yield the jobs of one test, of all providers or of one, in the order repeat, provider, prompt."""
        columns = [
            (column, provider, prompt)
            for column, (provider, prompt) in enumerate(self.pairs)
            if (only is None or provider is only) and runs_with(test, provider, prompt)
        ]
        for repeat_index in range(self.repeats):
            for column, provider, prompt in columns:
                answering = self.answering(test, provider)
                yield Job(test, prompt, answering, repeat_index, column, self._label(provider))

    def _label(self, provider: ProviderSpec) -> str:
        """Return the column's label where the dialect names a row's provider by it, whoever answers."""
        is_named = self.suite.rules.labels_rows_by_column and provider.id != NO_PROVIDER.id
        return provider.title if is_named else ""


def _is_only_name(spec: ProviderSpec) -> bool:
    """Return whether the config wrote nothing but an id, which may be the name of a provider that is elsewhere."""
    has_transform = isinstance(spec, FilteredProviderSpec) and spec.transform is not None
    return not spec.config and not has_transform and spec.label in {"", spec.id, spec.public_id}

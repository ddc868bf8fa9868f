"""What a run will do: jobs, lazily, a lane of them for each provider. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from geval_cli.config.schema import PromptSpec, ProviderSpec
from geval_cli.config.suite import Suite, TestCase
from geval_cli.records import Column

NO_PROVIDER = ProviderSpec(id="none")
"""Stands where nothing is generated: the test's own output is judged as it is (GEVAL.md, section 1)."""


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt x provider x test case x repeat.

    `group` names the jobs that stand in one row of the table: the same test and repeat. Assertions that compare
    answers with one another are judged by it.
    """

    test: TestCase
    prompt: PromptSpec
    provider: ProviderSpec
    repeat_index: int
    column: int

    @property
    def id(self) -> str:
        return f"{self.group}.{self.column}"

    @property
    def group(self) -> str:
        return f"{self.test.index}.{self.repeat_index}"

    @property
    def generates(self) -> bool:
        """Whether a model is asked for the output, or the test's own output is judged."""
        return self.provider.id != NO_PROVIDER.id


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs of a run. Asking again gives equal jobs with equal ids; none of them is held."""

    suite: Suite
    repeats: int = 1

    @property
    def providers(self) -> tuple[ProviderSpec, ...]:
        return self.suite.providers or (NO_PROVIDER,)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The prompt x provider pairs, provider by provider."""
        pairs = [(provider, prompt) for provider in self.providers for prompt in self.suite.prompts]
        return tuple(
            Column(index, prompt.label, provider.title) for index, (provider, prompt) in enumerate(pairs)
        )

    @property
    def lanes(self) -> tuple[Iterator[Job], ...]:
        """The jobs of each provider, in the order test, repeat, prompt; each lane goes through the tests by itself."""
        return tuple(self._lane(position) for position in range(len(self.providers)))

    def _lane(self, position: int) -> Iterator[Job]:
        provider, prompts = self.providers[position], self.suite.prompts
        for test in self.suite.tests:
            for repeat_index in range(self.repeats):
                for column, prompt in enumerate(prompts, start=position * len(prompts)):
                    yield Job(test, prompt, provider, repeat_index, column)

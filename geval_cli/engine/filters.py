"""Which prompts and providers a test is run with: what tests and providers of a config choose by name."""

from collections.abc import Iterable

from geval_cli.config.promptfoo.specs import FilteredProviderSpec, NamedPromptSpec
from geval_cli.config.schema import PromptSpec, ProviderSpec
from geval_cli.config.suite import TestCase

_ANY = "*"


def answers_prompt(provider: ProviderSpec, prompt: PromptSpec) -> bool:
    """Whether a provider is asked a prompt at all; one that chooses nothing is asked every prompt."""
    chosen = provider.prompts if isinstance(provider, FilteredProviderSpec) else None
    return chosen is None or _is_chosen(prompt_names(prompt), chosen)


def runs_with(test: TestCase, provider: ProviderSpec, prompt: PromptSpec) -> bool:
    """Whether a test is run with a provider and a prompt."""
    directions = test.directions
    return (directions.prompts is None or _is_chosen(prompt_names(prompt), directions.prompts)) and (
        directions.providers is None
        or _is_chosen((provider.label, provider.id, provider.public_id), directions.providers)
    )


def prompt_names(prompt: PromptSpec) -> tuple[str, ...]:
    """All names by which a config may choose a prompt."""
    own = prompt.names if isinstance(prompt, NamedPromptSpec) else ()
    return (prompt.id, prompt.label, *own)


def _is_chosen(names: Iterable[str], chosen: Iterable[str]) -> bool:
    """Whether one of `names` is chosen: as it is, by the group before its colon, or by a beginning and `*`."""
    known = [name for name in names if name]
    return any(
        name == wanted
        or name.startswith(f"{wanted}:")
        or (wanted.endswith(_ANY) and name.startswith(wanted.removesuffix(_ANY)))
        for wanted in chosen
        for name in known
    )

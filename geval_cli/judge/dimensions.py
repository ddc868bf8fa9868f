"""The seven dimensions of G-Eval, their ranges and definitions (Liu et al. 2023; the definitions are our own)."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from geval_cli.errors import UsageError
from geval_cli.judge.metric import ScoreRange
from geval_cli.judge.prompt import read_prompt
from geval_cli.source.problems import did_you_mean


class Dimension(Struct, frozen=True):
    """One aspect of quality. `label` is its name as shown to a judge, `Coherence`."""

    name: str
    score_range: ScoreRange

    @property
    def label(self) -> str:
        return self.name.capitalize()

    @property
    def definition(self) -> str:
        """Return the definition: a paragraph about what to reward and what to penalise."""
        return " ".join(read_prompt(f"dimensions/{self.name}").split())


_THREE: ScoreRange = (1.0, 3.0)
_FIVE: ScoreRange = (1.0, 5.0)

DIMENSIONS: Mapping[str, Dimension] = MappingProxyType(
    {
        name: Dimension(name, score_range)
        for name, score_range in (
            ("fluency", _THREE),
            ("coherence", _FIVE),
            ("consistency", _FIVE),
            ("relevance", _FIVE),
            ("engagingness", _THREE),
            ("groundedness", _FIVE),
            ("naturalness", _THREE),
        )
    }
)


def find_dimension(name: str) -> Dimension:
    """Return the dimension of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in DIMENSIONS:
        near = did_you_mean(name, DIMENSIONS)
        hint = f"did you mean `{near}`?" if near else f"one of: {', '.join(DIMENSIONS)}"
        raise UsageError(f"there is no dimension `{name}`", hint=hint)
    return DIMENSIONS[name]

"""Mark scores with what labels said before: how likely people find the output good, and whether that is clear."""

from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.judge.checklist import missed_required
from geval_cli.records import AssertionResult
from geval_cli.source.source_map import SourcePath
from geval_cli.statistics.calibration import Calibration

P_PASS, BORDERLINE = "p_pass", "borderline"
CALIBRATED = "calibrated"
"""What `threshold` says where the calibration file has the number."""

_KEY, _PARTS = "criterion_key", "criterion_parts"
_WORDS = {
    "type": "another type of assertion",
    "judge": "another judge",
    "params": "other parameters of the judge",
    "criteria": "other criteria",
    "evaluation_params": "other `evaluation_params`",
    "rubric": "another rubric",
    "score_range": "another range of ratings",
    "scoring": "another `scoring` or number of samples",
    "rubric_prompt": "another `rubric_prompt`",
    "evaluation_steps": "other evaluation steps",
    "prompt_version": "other prompts of geval",
}


class Calibrations(Struct):
    """The calibrations of a config, by metric; and, when the run is over, which of them did not fit after all."""

    entries: Mapping[str, Calibration]
    path: str = ""
    place: SourcePath = field(default_factory=SourcePath.nowhere)
    is_broken: bool = False
    _unfit: dict[str, set[str]] = field(default_factory=dict)

    def mark(self, result: AssertionResult) -> AssertionResult:
        """Return a result with its chance and its clearness, where its score was rated as the labelled ones were."""
        found = None if result.metric is None else self.entries.get(result.metric)
        if found is None or result.score is None or _KEY not in result.detail:
            return result
        if missed_required(result.detail):
            return result  # its score says nothing about the verdict
        differing = differing_parts(found, result.detail.get(_PARTS) or {})
        if differing or found.key != result.detail[_KEY]:
            self._unfit.setdefault(found.metric, set()).update(differing)
            return result
        marks = {P_PASS: found.p_pass(result.score), BORDERLINE: found.is_borderline(result.score)}
        known = {name: value for name, value in marks.items() if value is not None}
        return replace(result, detail={**result.detail, **known})

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each metric that was rated by something else than what was calibrated."""
        for metric, parts in self._unfit.items():
            yield f"{metric} was calibrated with {other_parts(parts)}, so results without P(pass) have none"


def differing_parts(found: Calibration, parts: Mapping[str, str]) -> list[str]:
    """Return the names of the parts that are known on both sides and differ."""
    return [name for name, part in found.parts.items() if parts.get(name, part) != part]


def other_parts(names: set[str] | list[str]) -> str:
    """Return the names of parts as words: `another judge and another rubric`."""
    words = [text for name, text in _WORDS.items() if name in names]
    return " and ".join(words) or "another criterion"

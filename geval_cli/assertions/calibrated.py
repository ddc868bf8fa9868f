"""Mark scores with what labels said before: how likely people find the output good, and whether that is clear."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.judge.checklist import missed_required
from geval_cli.records import AssertionResult, JsonValue
from geval_cli.source.source_map import SourcePath
from geval_cli.statistics.calibration import Calibration, JudgeWeight

P_PASS, BORDERLINE = "p_pass", "borderline"
CALIBRATED = "calibrated"
"""The word for `threshold` where the calibration file has the number, and for `combine` where it has the weights."""

_KEY, _PARTS = "criterion_key", "criterion_parts"
_WHO = ("judge", "params")
_WORDS = {
    "type": "another type of assertion",
    "judge": "another judge",
    "params": "other parameters of the judge",
    "criteria": "other criteria",
    "evaluation_params": "other `evaluation_params`",
    "rubric": "another rubric",
    "score_range": "another range of ratings",
    "scoring": "another `scoring` or number of samples, or another `over`",
    "rubric_prompt": "another `rubric_prompt`",
    "evaluation_steps": "other evaluation steps",
    "prompt_version": "other prompts of geval",
}


class Calibrations(Struct):
    """The calibrations of a config, by metric; and, when the run is over, which of them did not fit after all.

    `juries` are those of juries with `combine: calibrated`, whose scores are made with the weights of the file.
    """

    entries: Mapping[str, Calibration]
    juries: Mapping[str, Calibration] = {}
    path: str = ""
    place: SourcePath = field(default_factory=SourcePath.nowhere)
    is_broken: bool = False
    _unfit: dict[str, set[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Return whether no file is named, or nothing of it could be read."""
        return not (self.entries or self.juries)

    def mark(self, result: AssertionResult) -> AssertionResult:
        """Return a result with its chance and its clearness, where its score was rated as the labelled ones were.

        The score of a calibrated jury is, where all of its judges gave one.
        """
        is_jury = is_calibrated_jury(result.detail)
        found = (self.juries if is_jury else self.entries).get(result.metric or "")
        if found is None or result.score is None or _KEY not in result.detail:
            return result
        if missed_required(result.detail):
            return result  # its score says nothing about the verdict
        rated = [(found.key, found.parts, result.detail)]
        if is_jury:
            votes: Sequence[Mapping[str, JsonValue]] = result.detail["judges"]
            if any(vote["score"] is None for vote in votes):
                return result
            weights = weights_of([vote.get(_PARTS) or {} for vote in votes], found.judges)
            rated = [(one.key, one.parts, vote) for one, vote in zip(weights, votes, strict=True) if one]
        differing = {
            name for _, parts, detail in rated for name in differing_parts(parts, detail.get(_PARTS) or {})
        }
        if differing or any(key != detail.get(_KEY) for key, _, detail in rated):
            self._unfit.setdefault(found.metric, set()).update(differing)
            return result
        marks = {P_PASS: found.p_pass(result.score), BORDERLINE: found.is_borderline(result.score)}
        known = {name: value for name, value in marks.items() if value is not None}
        return replace(result, detail={**result.detail, **known})

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each metric that was rated by something else than what was calibrated."""
        for metric, parts in self._unfit.items():
            yield f"{metric} was calibrated with {other_parts(parts)}, so results without P(pass) have none"


def is_calibrated_jury(detail: Mapping[str, JsonValue]) -> bool:
    """Return whether a score was made of those of several judges with weights from labels."""
    return bool((detail.get("jury") or {}).get("combine") == CALIBRATED)


def weights_of(
    members: Sequence[Mapping[str, str]], judges: Sequence[JudgeWeight]
) -> list[JudgeWeight | None]:
    """Return the weight of each judge of a jury, known by the parts of its key that say who it is; None without one."""
    left = list(judges)
    found = []
    for parts in members:
        one = next(
            (one for one in left if all(one.parts.get(name) == parts.get(name) for name in _WHO)), None
        )
        if one is not None:
            left.remove(one)
        found.append(one)
    return found


def differing_parts(calibrated: Mapping[str, str], parts: Mapping[str, str]) -> list[str]:
    """Return the names of the parts that are known on both sides and differ."""
    return [name for name, part in calibrated.items() if parts.get(name, part) != part]


def other_parts(names: set[str] | list[str]) -> str:
    """Return the names of parts as words: `another judge and another rubric`."""
    words = [text for name, text in _WORDS.items() if name in names]
    return " and ".join(words) or "another criterion"

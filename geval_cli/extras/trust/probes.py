"""Probes of a judge: which rewrites must move its scores and which must not, and the outputs that are rewritten."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from geval_cli.errors import UsageError
from geval_cli.extras.trust.matching import hint_of
from geval_cli.records import JsonValue, Usage, to_json
from geval_cli.statistics.intervals import Estimate


class ProbeKind(StrEnum):
    """The kinds of probes, by what must become of the score."""

    DAMAGE = "score falls"
    HARMLESS = "score stays"
    PADDING = "score does not rise"
    DECEPTION = "a failed output stays failed"
    REPETITION = "same order"
    PLACE = "same winner"
    FAMILY = "own family is not favoured"
    JOINT = "the same as one by one"


class Probe(Struct, frozen=True):
    """One probe.

    Attributes:
        forms: names of the rewrites that it makes of an output, or of other changes.
        hits: dimensions whose scores the damage must lower; None for all.
        source: where the probe comes from.
        is_asked_for: whether it is made only where it is named.
    """

    name: str
    kind: ProbeKind
    forms: tuple[str, ...]
    source: str
    hits: frozenset[str] | None = None
    is_asked_for: bool = False


_DAMAGE = "Sai et al. 2021; FBI 2024"
_FORM = "FBI 2024; Sclar et al. 2024"
_SCORES = ("1 to 5", "0 to 10", "0 to 100")
_INJECTED = (
    "injected order",
    "injected system message",
    "injected reply",
    "injected verdict line",
    "injected end of block",
)


def _damage(name: str, *hits: str) -> Probe:
    return Probe(name, ProbeKind.DAMAGE, (name,), _DAMAGE, frozenset(hits) or None)


PROBES: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (
        _damage("shuffle", "coherence", "fluency", "naturalness"),
        _damage("cut", "coherence", "relevance"),
        _damage("repeat", "coherence", "relevance", "naturalness"),
        _damage("negate", "consistency", "groundedness"),
        _damage("swap", "consistency", "groundedness"),
        _damage("other", "consistency", "groundedness", "relevance"),
        _damage("empty"),
        _damage("prompt", "relevance", "engagingness", "naturalness"),
        Probe("whitespace", ProbeKind.HARMLESS, ("whitespace",), _FORM),
        Probe("markdown", ProbeKind.HARMLESS, ("markdown",), _FORM),
        Probe("typo", ProbeKind.HARMLESS, ("typo",), _FORM),
        Probe("padding", ProbeKind.PADDING, ("restated", "filler"), "Zheng et al. 2023"),
        Probe("authority", ProbeKind.DECEPTION, ("authority",), "Chen et al. 2024"),
        Probe("injected", ProbeKind.DECEPTION, _INJECTED, "Shi et al. 2024"),
        Probe("again", ProbeKind.REPETITION, ("again",), "Stureborg et al. 2024"),
        Probe("scale", ProbeKind.REPETITION, _SCORES, "Stureborg et al. 2024"),
        Probe("steps", ProbeKind.REPETITION, ("steps",), "Stureborg et al. 2024"),
        Probe("order", ProbeKind.PLACE, ("order",), "Wang et al. 2023"),
        Probe("family", ProbeKind.FAMILY, (), "Panickssery et al. 2024"),
        Probe("joint", ProbeKind.JOINT, (), "Thorndike 1920 (halo)", is_asked_for=True),
    )
}
"""All probes by name."""


def chosen_probes(only: Sequence[str]) -> list[Probe]:
    """Return the probes of these names; without any, all but those that are made only where they are named.

    Raises:
        UsageError: there is no such probe.
    """
    for name in only:
        if name not in PROBES:
            raise UsageError(f"there is no probe `{name}`", hint=hint_of(name, PROBES))
    return [probe for name, probe in PROBES.items() if name in only or not (only or probe.is_asked_for)]


class ProbeVerdict(StrEnum):
    """The outcome of a probe."""

    HOLDS = "holds"
    FAILS = "fails"
    UNCLEAR = "unclear"
    SKIPPED = "skipped"


class Finding(Struct, frozen=True):
    """One figure of one probe on one metric.

    Attributes:
        figure: its name: share fallen, shift, flips, rise, tau, agreement, difference, halo, loss.
        estimate: the figure; its interval covers 95 %, of a `shift` 90 % (two one-sided tests at 5 %).
        bar: where it must lie.
        skipped: outputs that are left out of it, by the reason.
    """

    probe: str
    metric: str
    must: ProbeKind
    figure: str
    estimate: Estimate
    bar: str
    verdict: ProbeVerdict
    note: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)


class ScoreChange(Struct, frozen=True):
    """An output's score before and after a change, 0..1, with its verdicts; pairs of one test are a `cluster`."""

    cluster: int
    before: float
    after: float
    passed_before: bool
    passed_after: bool


class ProbeReport(Struct, frozen=True):
    """The result of `geval probe`.

    Attributes:
        items: outputs that were probed; `tests` they come from, `unanswered` could not be had.
        planned: ratings at most; `asked` of them were made, `errored` of those failed; `first_error` says how one did.
        stopped: why not all were asked: the budget was used up.
        usage: of the judges.
    """

    config: str
    judges: tuple[str, ...]
    items: int
    tests: int
    seed: int
    planned: int
    asked: int
    errored: int
    usage: Usage
    findings: tuple[Finding, ...]
    unanswered: int = 0
    stopped: str = ""
    first_error: str = ""

    @property
    def verdicts(self) -> set[ProbeVerdict]:
        """All verdicts that there are."""
        return {item.verdict for item in self.findings}

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON document of `geval probe --json`."""
        document: dict[str, JsonValue] = to_json(self)
        return {"schema_version": 1, "kind": "probe", **document}

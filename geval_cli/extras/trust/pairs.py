"""Labels with the judge's scores of the same outputs, and the groups of outputs that belong together."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import UsageError
from geval_cli.extras.trust.labels.file import Label, LabelFile, labels_from_rows, read_labels
from geval_cli.extras.trust.labels.matching import Match, judged_items, match_labels
from geval_cli.records import CaseResult, JsonValue
from geval_cli.source.problems import did_you_mean

_DUST = 1e-9


class Pair(Struct):
    """A label with the judge's score of the same output; `cluster` is filled in when all pairs are known."""

    label: Label
    score: float | None
    document: str | None
    system: str | None
    words: int | None
    test: str
    match: Match | None = None
    cluster: str = ""

    def passed_at(self, given: float | None, limit: float) -> bool:
        """Return the judge's verdict; by its score where a threshold is `given`, or a run did not give one."""
        verdict = None if self.match is None else self.match.passed
        return (self.score or 0.0) >= limit - _DUST if given is not None or verdict is None else verdict


def read_given(labels: LabelFile | Path | str | Iterable[Mapping[str, JsonValue]]) -> LabelFile:
    """Return labels, from a file or from rows where they are not read yet."""
    if isinstance(labels, LabelFile):
        return labels
    return read_labels(Path(labels)) if isinstance(labels, Path | str) else labels_from_rows(labels)


def pair_labels(
    given: LabelFile, run: Iterable[CaseResult] | None, *, run_id: str, allow_unmatched: bool
) -> tuple[list[Pair], int]:
    """Return each label with its score, of the run or of the file itself, and how many labels have no output.

    Raises:
        ConfigError: labels are unmatched, and that is not allowed.
        UsageError: there are no scores.
    """
    if run is not None:
        found = match_labels(given.labels, judged_items(run), run_id=run_id, allow_unmatched=allow_unmatched)
        return [_of_match(match) for match in found.matches], len(found.unmatched)
    if not given.has_scores:
        hint = "name the run that was labelled (--run), or add the judge's scores as `score`"
        raise UsageError(f"{given.path} has no scores of a judge", hint=hint)
    return [_of_label(label) for label in given.labels], 0


def _of_match(match: Match) -> Pair:
    label, item = match.label, match.item
    return Pair(
        label,
        match.score,
        document=label.doc,
        system=label.system or f"{item.prompt[1]} / {item.provider[1]}",
        words=item.words,
        test=f"test {item.test_index}",
        match=match,
    )


def _of_label(label: Label) -> Pair:
    said = label.item
    content = (said.description, said.variables)
    name = said.id or (repr(content) if any(content) else said.output_sha256)
    return Pair(
        label,
        label.score,
        document=label.doc,
        system=label.system,
        words=label.words,
        test=str(name),
    )


def assign_clusters(pairs: Sequence[Pair], key: str | None) -> str:
    """Give each pair its cluster, and return what they are grouped by."""
    if key is None:
        has_documents = all(pair.document is not None for pair in pairs)
        for pair in pairs:
            pair.document = pair.document if has_documents else pair.test
            pair.cluster = str(pair.document)
        return "doc" if has_documents else "test"
    lacking: list[Pair] = []
    known: dict[str, None] = {}
    for pair in pairs:
        pair.document = pair.document or pair.test
        columns = _columns(pair)
        known.update(dict.fromkeys(columns))
        if columns.get(key) is None:
            lacking.append(pair)
        pair.cluster = str(columns.get(key))
    if lacking:
        near = did_you_mean(key, known)
        hint = f"did you mean `{near}`?" if near else f"known: {', '.join(known) or 'none'}"
        what = f"{len(lacking):,} of {len(pairs):,} labels have no `{key}`"
        raise UsageError(f"cannot group by `{key}`: {what}", hint=hint, location=lacking[0].label.location)
    return key


def _columns(pair: Pair) -> dict[str, JsonValue]:
    metadata = {} if pair.match is None else pair.match.item.metadata
    own = {"doc": pair.label.doc, "system": pair.label.system, "id": pair.label.item.id}
    return {
        **metadata,
        **pair.label.columns,
        **{key: value for key, value in own.items() if value is not None},
    }

"""Looks at anchors: what each found, and all of them in a file of the home folder.

They are kept so that looking often gives no more false alarms than looking once.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, ValidationError, convert

from geval_cli.records import JsonValue, Usage, to_json
from geval_cli.statistics.drift import Drift, DriftVerdict, Looks

FILE = "drift.jsonl"
IMPROVEMENTS = "improve.jsonl"
"""In the home folder; a line for each look, without the single scores."""


class MetricDrift(Struct, frozen=True):
    """A metric of the anchors, then and now.

    Attributes:
        threshold: of today; None where the metric has none.
        judges_then, judges_now: as configs name them, with the models that answered by their own account.
        looks: all looks at these anchors by the same judge together, this one last; None of a single one.
        criterion: a digest of the judge and all else that it rated by.
    """

    metric: str
    drift: Drift
    threshold: float | None
    judges_then: tuple[str, ...]
    judges_now: tuple[str, ...]
    looks: Looks | None = None
    criterion: str = ""


class Look(Struct, frozen=True):
    """The anchors judged once more.

    Attributes:
        file, digest: of the anchors; `run` is where their outputs are from.
        at: when, ISO 8601 in UTC.
        anchors: how many there are, of `tests` tests.
        scores: of today, by anchor and metric.
        lost: ratings that no assertion of today's config could repeat; `errored` ones could not be had.
        stopped: why not all were asked for; empty when all were.
    """

    file: str
    digest: str
    run: str
    at: str
    anchors: int
    tests: int
    metrics: tuple[MetricDrift, ...]
    scores: Mapping[str, Mapping[str, float]]
    lost: int = 0
    errored: int = 0
    usage: Usage = Usage()
    stopped: str = ""
    first_error: str = ""

    @property
    def verdict(self) -> DriftVerdict:
        """Return the finding over all metrics: moved if one has, steady if all are."""
        found = {item.drift.verdict for item in self.metrics}
        if DriftVerdict.MOVED in found or any(item.looks and item.looks.moved for item in self.metrics):
            return DriftVerdict.MOVED
        return DriftVerdict.STEADY if found == {DriftVerdict.STEADY} else DriftVerdict.UNCLEAR


def look_from_json(data: JsonValue) -> Look | None:
    """Return a look from what `to_json` made of it; None for what is none."""
    try:
        return convert(data, Look)
    except (ValidationError, TypeError):
        return None


def keep_look(home: Path, found: Look) -> None:
    """Add a look to those that are kept. Where that cannot be written, the next look knows one less."""
    line = json.dumps({**to_json(found), "scores": {}}, ensure_ascii=False)
    with suppress(OSError), (home / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def looks_before(home: Path, digest: str) -> list[Look]:
    """Return the looks at the anchors with this digest that are kept, oldest first; a broken line is passed over."""
    found = []
    with suppress(OSError), (home / FILE).open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError):
                look = look_from_json(json.loads(line))
                if look is not None and look.digest == digest:
                    found.append(look)
    return found


def count_look(home: Path, digest: str, judge: str) -> int:
    """Return which look at these labels this is, counted from 1, and record it.

    Each new judge is a look; a judge that was compared before keeps its number. If the file cannot be written, the next
    look is counted one too low.

    Args:
        home: the state folder.
        digest: of the labels.
        judge: a digest of the judge.
    """
    path, known = home / IMPROVEMENTS, dict[str, None]()
    with suppress(OSError), path.open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, AttributeError):
                row = json.loads(line)
                if row.get("labels") == digest:
                    known[str(row.get("judge"))] = None
    if judge not in known:
        known[judge] = None
        with suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps({'labels': digest, 'judge': judge})}\n")
    return list(known).index(judge) + 1

"""Anchors: outputs of a run saved with their scores, so that a judge can rate them again later.

Each new look at them is appended with its findings to a file in the home folder.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import replace

from geval_cli.assertions.registry import CRITERION_KEY
from geval_cli.engine.judge_output import JUDGE_MODELS
from geval_cli.engine.plan import NOTHING_SAID
from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.extras.trust.labels import draw, read_rows, write_rows
from geval_cli.extras.trust.statistics.drift import Drift, DriftVerdict, Looks
from geval_cli.json_codec import encode_json
from geval_cli.metrics import with_members
from geval_cli.records import AssertionResult, CaseResult, JsonValue, Usage, case_result_from_json, to_json
from geval_cli.source.access import TRUSTED, Access
from geval_cli.store.home import try_lock
from geval_cli.suite.suite import ConfiguredFile, LoadedSuite

FILE = "drift.jsonl"
IMPROVEMENTS = "improve.jsonl"
"""Files in the home folder: a line for each look, without individual scores."""
_LOCK = "drift.lock"
_BEGAN = "began_s"
_RECENT_S = 24 * 3600.0
"""An older look is not resumed: the judge may have changed since."""


class MetricDrift(Struct, frozen=True):
    """The drift of one metric of the anchors.

    Attributes:
        threshold: the current one; None if the metric has none, or several.
        judges_then, judges_now: as configs name them, with the models that they reported as answering.
        looks: all looks at these anchors by the same judge taken together, this one last; None if this is the first.
        criterion: a digest of the judge and everything else the ratings depend on.
    """

    metric: str
    drift: Drift
    threshold: float | None
    judges_then: tuple[str, ...]
    judges_now: tuple[str, ...]
    looks: Looks | None = None
    criterion: str = ""


class Look(Struct, frozen=True):
    """One re-judging of the anchors.

    Attributes:
        file, digest: of the anchors; `run` is the run their outputs come from.
        at: the time, ISO 8601 in UTC.
        anchors: how many there are, from `tests` tests.
        scores: the new ones, by anchor and metric.
        lost: ratings that no assertion in the current config can repeat; `errored`: ratings that failed.
        lost_metrics: the metrics of which all ratings are lost.
        stopped: why not all ratings were made; empty if they were.
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
    lost_metrics: tuple[str, ...] = ()

    @property
    def verdict(self) -> DriftVerdict:
        """Return the verdict over all metrics: moved if any has moved, steady if all are steady, otherwise unclear."""
        found = {item.drift.verdict for item in self.metrics}
        if DriftVerdict.MOVED in found or any(item.looks and item.looks.moved for item in self.metrics):
            return DriftVerdict.MOVED
        is_steady = found == {DriftVerdict.STEADY} and not self.lost_metrics
        return DriftVerdict.STEADY if is_steady else DriftVerdict.UNCLEAR


def look_from_json(data: JsonValue) -> Look | None:
    """Return a look from its `to_json` form; None if the data is not a look."""
    try:
        return convert(data, Look)
    except (ValidationError, TypeError):
        return None


def keep_look(home: Path, found: Look, judge: str) -> None:
    """Append a look by `judge` to the stored ones. If this fails, later looks do not know of this one."""
    _append(home / FILE, {**to_json(found), "scores": {}, "judge": judge})


def _append(path: Path, row: Mapping[str, JsonValue]) -> None:
    """Append a line if the file can be written; a line that a full disk cut off is ended first."""
    with suppress(OSError), path.open("ab+") as file:
        is_cut = file.tell() > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
        file.write(b"\n" * is_cut + encode_json(row) + b"\n")


def looks_before(home: Path, digest: str) -> list[Look]:
    """Return the finished looks at the anchors with this digest, oldest first."""
    looks = map(look_from_json, _lines_of(home, digest))
    return [look for look in looks if look is not None and not look.stopped]


def _lines_of(home: Path, digest: str) -> Iterator[Mapping[str, JsonValue]]:
    """Yield what is stored about the anchors with this digest, oldest first; broken lines are skipped."""
    with suppress(OSError), (home / FILE).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError, AttributeError):
                row = json.loads(line)
                if row.get("digest") == digest:
                    yield row


@contextmanager
def only_look(home: Path) -> Iterator[bool]:
    """Yield whether no other look is in progress in this home; while one is, none is noted or resumed."""
    with ExitStack() as stack:
        is_only = True
        with suppress(OSError):  # a folder that cannot be written, or without locks
            is_only = try_lock(stack.enter_context((home / _LOCK).open("ab")))
        yield is_only


def unfinished_since(home: Path | None, digest: str, judge: str, now: float) -> float | None:
    """Return when `judge` last began to look at these anchors, if it did not finish and is less than a day old.

    Times are in seconds since 1970, by the clock of the cache.
    """
    if home is None:
        return None
    with only_look(home) as is_only:
        began = None
        for row in _lines_of(home, digest) if is_only else ():
            if row.get("judge") == judge:
                began = row.get(_BEGAN) if _BEGAN in row else began if row.get("stopped") else None
    return began if isinstance(began, float) and 0 <= now - began < _RECENT_S else None


def begin_look(home: Path, digest: str, judge: str, now: float) -> None:
    """Note that a look begins, so that the next one can use its ratings if this one does not finish."""
    _append(home / FILE, {"digest": digest, "judge": judge, _BEGAN: now})


def count_look(home: Path, outputs: Iterable[str], compared: str) -> int:
    """Record a look at labelled outputs and return its number, counted from 1.

    All earlier looks at any of these outputs count, except those that compared the same. If the file cannot be written,
    the next look is numbered one too low.

    Args:
        home: the state folder.
        outputs: a digest of each labelled output.
        compared: a digest of what the look compares.
    """
    path = home / IMPROVEMENTS
    today = sorted({*outputs})
    known = dict[str, None]()
    with suppress(OSError), path.open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, AttributeError, TypeError):
                row = json.loads(line)
                if not {*today}.isdisjoint(row.get("outputs")):
                    known[str(row.get("compared"))] = None
    if compared not in known:
        known[compared] = None
        _append(path, {"outputs": today, "compared": compared})
    return list(known).index(compared) + 1


_VERSION = 1
_FORM = "`geval drift --save FILE --run RUN` writes such files"


class Rating(Struct, frozen=True):
    """One judgement of an output on one metric.

    Attributes:
        judge: as the config names it.
        models: as the responses report them: the model, and the fingerprint of the vendor's backend.
    """

    score: float
    judge: str = ""
    models: tuple[Mapping[str, str | None], ...] = ()


class Anchor(Struct, frozen=True):
    """An output with everything a judge needs to see of its test, and its original ratings by metric."""

    case: CaseResult
    ratings: Mapping[str, Rating]

    @property
    def id(self) -> str:
        return self.case.id

    @property
    def cluster(self) -> str:
        """Return the test: further outputs of the same test, in other columns or repeats, add little information."""
        key = self.case.test_key
        return f"test {self.case.test_index}" if key in {None, NOTHING_SAID} else str(key)


class AnchorSet(Struct, frozen=True):
    """A file of anchors.

    Attributes:
        run: the run the outputs come from; `config` is its file, relative to the folder of the anchors.
        digest: of the content, which tells whether two runs judged the same anchors.
    """

    path: Path
    run: str
    config: str
    digest: str
    anchors: tuple[Anchor, ...] = field(default_factory=tuple)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics that any of the anchors has a rating for."""
        return tuple(dict.fromkeys(name for anchor in self.anchors for name in anchor.ratings))

    @property
    def tests(self) -> int:
        return len({anchor.cluster for anchor in self.anchors})


def ratings_of(results: Iterable[AssertionResult]) -> dict[str, Rating]:
    """Return a judge's ratings among assertion results, by metric; the first of each."""
    found: dict[str, Rating] = {}
    for item, _ in with_members(results):
        is_by_model = "judge" in item.detail or CRITERION_KEY in item.detail or JUDGE_MODELS in item.detail
        if item.metric is None or item.score is None or not is_by_model:
            continue
        models = tuple(item.detail.get(JUDGE_MODELS) or ())
        found.setdefault(item.metric, Rating(item.score, str(item.detail.get("judge") or ""), models))
    return found


def drawn_anchors(results: Iterable[CaseResult], count: int, seed: int) -> list[Anchor]:
    """Return a random sample of `count` judged outputs, drawn regardless of their scores, in the order of the run.

    Raises:
        UsageError: no output was rated by a judge.
    """

    def rated() -> Iterator[Anchor]:
        for result in results:
            ratings = ratings_of(result.assertions)
            if ratings and result.error is None:
                yield Anchor(result, ratings)

    found = draw(rated(), count, seed=seed, id_of=lambda anchor: anchor.id)
    if not found:
        hint = "anchors are outputs scored by a judge: use a run with g-eval or similar assertions"
        raise UsageError("no output of this run was rated by a judge", hint=hint)
    return sorted(found, key=lambda item: (item.case.test_index, item.case.repeat_index, item.case.column))


def write_anchors(path: Path, anchors: Sequence[Anchor], *, run: str, config: str) -> None:
    """Write anchors as .jsonl; the file appears only once it is complete.

    Raises:
        ConfigError: the name does not end in .jsonl, or the file already exists.
        OutputError: the file cannot be written.
    """
    if path.suffix.lower() != ".jsonl":
        raise ConfigError(
            [Problem(f"cannot write anchors to {path}", None, "use a name that ends in .jsonl")]
        )
    if path.exists():
        hint = "choose another file: anchors must stay the same for runs to be comparable"
        raise ConfigError([Problem(f"`{path}` already exists; --save does not overwrite", None, hint)])
    config = os.path.relpath(config, path.parent) if config else ""
    write_rows(path, (_row(anchor, run, config) for anchor in anchors))


def _row(anchor: Anchor, run: str, config: str) -> dict[str, JsonValue]:
    case = to_json(replace(anchor.case, assertions=(), usage={}))
    return {
        "anchor_version": _VERSION,
        "run": run,
        "config": config,
        "ratings": to_json(anchor.ratings),
        "case": case,
    }


def read_anchors(path: Path, access: Access = TRUSTED) -> AnchorSet:
    """Return the anchors in a file; `access` is that of the config that names it.

    Raises:
        ConfigError: with every problem in the file.
    """
    problems: list[Problem] = []
    found: dict[str, Anchor] = {}
    digest = hashlib.sha256()
    run = config = ""
    try:
        for row, place in read_rows(path, problems, access):
            where = place.value()
            try:
                anchor = _anchor(row)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                if not found and "anchor_version" not in row:
                    problems.append(Problem(f"`{path}` is not a file of anchors", where, _FORM))
                    break
                problems.append(Problem(f"this is not an anchor: {error}", where, _FORM))
                continue
            if anchor.id in found:
                problems.append(Problem(f"case {anchor.id} occurs twice", where, "remove one of them"))
            found[anchor.id] = anchor
            run, config = run or str(row.get("run") or ""), config or str(row.get("config") or "")
            digest.update(encode_json([row["case"], row["ratings"]]))
    except ConfigError as error:
        problems += error.problems
    if problems:
        # The reader is that of labels, so some hints are about labels; they are replaced.
        told = (dataclasses.replace(item, hint=_FORM) if "label" in item.hint else item for item in problems)
        raise ConfigError(list(told))
    return AnchorSet(path, run, config, digest.hexdigest()[:16], tuple(found.values()))


def _anchor(row: Mapping[str, Any]) -> Anchor:
    if row.get("anchor_version") != _VERSION:
        raise ValueError(f"its `anchor_version` is not {_VERSION}")
    ratings = {
        str(metric): Rating(
            _score(item["score"]), str(item.get("judge") or ""), tuple(item.get("models") or ())
        )
        for metric, item in row["ratings"].items()
    }
    if not ratings:
        raise ValueError("it has no ratings")
    return Anchor(case_result_from_json({**row["case"], "assertions": [], "usage": {}}), ratings)


def _score(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"a score must be between 0 and 1, found {value!r}")
    return float(value)


def read_suite_anchors(suite: LoadedSuite) -> tuple[AnchorSet | None, list[Problem]]:
    """Return the anchors that a config names, None if it names none or they are broken, and the problems found."""
    named: ConfiguredFile | None = suite.anchors
    if named is None:
        return None, []
    place = named.place.value()
    if suite.access.is_outside(named.path):
        return None, [suite.access.outside_problem(named.path, place)]
    if not named.path.is_file():
        return None, [Problem(f"there is no file `{named.path}`", place, _FORM)]
    try:
        return read_anchors(named.path, suite.access), []
    except ConfigError as error:
        return None, [*error.problems]

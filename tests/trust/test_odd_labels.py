"""Labels of unusual shapes: no figure is NaN or outside its interval, all forms can be written, no sentence lies."""

import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sample_run import make_case, make_judged

from geval_cli.errors import ConfigError
from geval_cli.extras.trust.agreement import agree, agreement_document
from geval_cli.extras.trust.calibration import calibrate, calibration_document
from geval_cli.extras.trust.documents import print_document, write_document
from geval_cli.extras.trust.matching import scores_of
from geval_cli.extras.trust.probe_findings import repetition_findings
from geval_cli.extras.trust.probes import Probe, ProbeKind, ScoreChange
from geval_cli.extras.trust.statistics.drift import spearman
from geval_cli.extras.trust.true_figures import ScoredOutput, true_figures
from geval_cli.records import Status
from geval_cli.report.console import make_console

Made = list[dict[str, Any]]


def rows(
    count: int,
    scale: tuple[int, int] = (1, 5),
    *,
    people: int = 1,
    missing: float = 0.0,
    score: Callable[[int], float | None] | None = None,
    label: Callable[[int], Any] | None = None,
    **columns: Callable[[int], Any],
) -> Made:
    """Labels with the scores of a judge that sees the same as people, who err by one step of their scale."""
    draw, (low, high) = np.random.default_rng(1), scale
    made = []
    for number in range(count):
        truth = int(draw.integers(low, high + 1))
        given = {
            f"p{person}": label(number) if label else int(np.clip(truth + draw.integers(-1, 2), low, high))
            for person in range(people)
            if draw.random() >= missing
        }
        judged = score(number) if score else (truth - low) / (high - low)
        row = {"id": str(number), "metric": "m", "labels": given, "scale": list(scale), "score": judged}
        made.append({**row, **{name: value(number) for name, value in columns.items()}})
    return made


def of_one_person_each(made: Made) -> Made:
    return [{**row, "labels": {f"p{row['id']}": row["labels"]["p0"]}} for row in made]


SHAPES = {
    "1 to 10": rows(40, (1, 10)),
    "0 to 100": rows(40, (0, 100)),
    "-2 to 2": rows(40, (-2, 2)),
    "pass and fail": [
        {**row, "labels": {"p0": "pass" if row["labels"]["p0"] else "fail"}} for row in rows(40, (0, 1))
    ],
    "fractions": rows(40, label=lambda number: 1 + number * 0.1),
    "thirty people": rows(40, people=30),
    "thirty people, most labels missing": rows(40, people=30, missing=0.8),
    "most outputs without a label": rows(60, missing=0.9),
    "one person for each output": of_one_person_each(rows(40)),
    "one output": rows(1),
    "two outputs": rows(2),
    "three outputs and people": rows(3, people=3),
    "nine outputs": rows(9, people=3),
    "equal scores": rows(40, people=3, score=lambda number: 0.5),
    "equal labels": rows(40, people=3, label=lambda number: 3),
    "all equal": rows(40, people=3, score=lambda number: 0.5, label=lambda number: 3),
    "one document": rows(40, people=3, doc=lambda number: "one"),
    "two documents": rows(40, people=3, doc=lambda number: str(number % 2)),
    "systems": rows(40, people=3, doc=lambda number: str(number % 8), system=lambda number: str(number % 5)),
    "without a fault": rows(
        40, people=3, score=lambda number: number % 5 / 4, label=lambda number: number % 5 + 1
    ),
    "the wrong way round": rows(
        40, people=3, score=lambda number: 1 - number % 5 / 4, label=lambda number: number % 5 + 1
    ),
    "every second broke": rows(40, score=lambda number: None if number % 2 else 0.5),
    "all broke": rows(12, score=lambda number: None),
    "one bad output": rows(40, label=lambda number: 5 if number else 1),
    "empty and long texts": rows(40, output=lambda number: "wörd " * number**2),
}


REFUSED = {
    "most outputs without a label": "too few to calibrate",
    "one output": "too few to calibrate",
    "two outputs": "too few to calibrate",
    "three outputs and people": "too few to calibrate",
    "nine outputs": "too few to calibrate",
    "equal labels": "are bad",
    "all equal": "are bad",
    "all broke": "too few to calibrate",
}
"""What cannot be calibrated, and why."""


def estimates(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every figure with an interval in a JSON document, and check that no number is infinite or NaN."""
    if isinstance(value, float):
        assert math.isfinite(value)
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if isinstance(value, dict) and {"value", "interval", "n"} <= value.keys():
        yield value
    for member in members:
        yield from estimates(member)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("command", "document"),
    [(agree, agreement_document), (calibrate, calibration_document)],
    ids=["agree", "calibrate"],
)
def test_every_shape_is_told_or_refused(command: Any, document: Any, name: str, tmp_path: Path) -> None:
    if command is calibrate and name in REFUSED:
        with pytest.raises(ConfigError) as caught:
            calibrate(SHAPES[name])
        assert REFUSED[name] in caught.value.problems[0].message
        return
    found = command(SHAPES[name])
    figures = list(estimates(json.loads(json.dumps(found.to_json(), allow_nan=False))))
    for figure in figures:
        if figure["interval"] is not None:
            low, high = figure["interval"]
            assert low - 1e-9 <= figure["value"] <= high + 1e-9
    for ending in (".json", ".md", ".html"):
        write_document(tmp_path / f"found{ending}", document(found))
    told = io.StringIO()
    print_document(document(found), make_console(told, environ={"COLUMNS": "80", "NO_COLOR": "1"}))
    assert "nan" not in told.getvalue().lower().split()
    if name == "the wrong way round":
        said = " ".join(told.getvalue().split())
        assert ("no other threshold" in said) is (command is agree)
        assert ("do not let this judge decide" in said) is (command is calibrate)


def test_true_figures_of_any_shape_are_shares_within_their_intervals() -> None:
    draw = np.random.default_rng(2)
    for _ in range(400):
        count, is_constant = int(draw.integers(0, 15)), draw.random() < 0.3
        outputs = [
            ScoredOutput(
                str(number),
                f"test {number}",
                f"document {draw.integers(0, max(1, count // 2))}",
                None if draw.random() < 0.2 else 0.5 if is_constant else float(draw.integers(0, 5)) / 4,
                0.75 if draw.random() < 0.5 else None,
            )
            for number in range(count)
        ]
        marks = {one.id: float(draw.integers(0, 5)) / 4 for one in outputs if draw.random() < 0.5}
        found = true_figures(outputs, marks, good=0.75)
        for inference in filter(None, (found.mean, found.rate)):
            value, interval = inference.estimate.value, inference.estimate.interval
            assert value is not None
            low, high = interval or (value, value)
            assert 0 <= low <= value + 1e-9
            assert value - 1e-9 <= high <= 1


def _with_dust(score: float, number: int) -> float:
    """The same score, as other sums of floats make it."""
    ways = (score, 1 - (1 - score), (score / 3) * 3 + 1e-16, score / 10 * 7 + score / 10 * 3, score + 3e-12)
    return min(1.0, max(0.0, ways[number % len(ways)]))


def test_rounding_errors_of_scores_change_no_figure() -> None:
    """A run compares scores after rounding to nine decimals, so no threshold may lie between two that are equal."""
    tenths = [round(0.1 * (number * 7 % 11), 1) for number in range(120)]
    clean = rows(120, people=2, score=lambda number: tenths[number])
    dusty = [{**row, "score": _with_dust(row["score"], place)} for place, row in enumerate(clean)]
    assert {row["score"] for row in dusty} - set(tenths)

    assert agree(dusty).to_json() == agree(clean).to_json()
    assert calibrate(dusty).to_json() == calibrate(clean).to_json()

    results = [
        make_case(
            number,
            status=Status.PASSED,
            score=row["score"],
            named_scores={"m": row["score"]},
            assertions=(make_judged(Status.PASSED, row["score"], metric="m"),),
        )
        for number, row in enumerate(dusty)
    ]
    assert {score for item in results for score in scores_of(item).values()} == set(tenths)
    assert spearman([row["score"] for row in dusty], tenths) == pytest.approx(1, abs=1e-12)

    pairs = [
        [
            ScoreChange(place, old, new, True, True)
            for place, (old, new) in enumerate(zip(one, other, strict=True))
        ]
        for one, other in ((tenths, [row["score"] for row in dusty]), (tenths, tenths))
    ]
    probe = Probe("again", ProbeKind.REPETITION, ("again",), "")
    dusty_tau, tau = (repetition_findings(probe, "again", "m", made)[0] for made in pairs)
    assert dusty_tau.estimate == tau.estimate
    assert dusty_tau.estimate.value == pytest.approx(1, abs=1e-12)

"""Scores whose samples ended early are less exact: holding them against people says so."""

from typing import Any

import pytest
from msgspec.structs import replace

from geval_cli.extras.trust.agreement import agree
from geval_cli.extras.trust.calibration import calibrate
from geval_cli.records import AssertionResult, CaseResult, ProviderRef, RenderedPrompt, Status


def results(count: int, **detail: Any) -> list[CaseResult]:
    found = []
    for number in range(count):
        score = (number % 5) / 4
        judged = AssertionResult(
            "g-eval",
            "tone",
            Status.PASSED,
            score,
            threshold=0.5,
            detail={"judge": "m", "score_range": [1, 5], **detail},
        )
        found.append(
            CaseResult(
                id=f"case-{number}",
                test_index=number,
                repeat_index=0,
                column=0,
                description=None,
                prompt=RenderedPrompt("p", "p", "p"),
                provider=ProviderRef("m", "m"),
                vars={"x": number},
                output=f"text {number}",
                status=Status.PASSED,
                score=score,
                named_scores={"tone": score},
                assertions=(judged,),
            )
        )
    return found


def labels(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"case-{number}", "metric": "tone", "label": 1 + (number + 1) % 5, "scale": [1, 5]}
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("detail", "is_noted"),
    [
        ({"early_stop": {"taken": 4, "upto": 20}}, True),
        ({"early_stop": {"taken": 20, "upto": 20}}, False),
        ({"early_stop": None}, False),
        ({}, False),
        ({"judges": [{"early_stop": None}, {"early_stop": {"taken": 2, "upto": 20}}]}, True),
    ],
)
def test_samples_that_ended_early_are_noted(detail: dict[str, Any], is_noted: bool) -> None:
    (agreed,) = agree(labels(40), results(40, **detail)).metrics
    (calibrated,) = calibrate(labels(40), results(40, **detail)).metrics
    for notes in (agreed.notes, calibrated.notes):
        assert any(note.startswith("40 scores less exact: the samples ended") for note in notes) is is_noted


@pytest.mark.parametrize("is_inverted", [False, True])
def test_inverted_scores_are_noted_since_their_threshold_is_another_in_the_config(is_inverted: bool) -> None:
    run = results(20)
    if is_inverted:
        run = [
            replace(item, assertions=tuple(replace(part, type="not-g-eval") for part in item.assertions))
            for item in run
        ]
    for found in (agree(labels(20), run), calibrate(labels(20), run)):
        assert any("1 - T in the config" in note for note in found.metrics[0].notes) is is_inverted

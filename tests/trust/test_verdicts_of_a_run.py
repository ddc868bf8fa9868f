"""What people say is compared with the judge's verdicts, also where its score alone says something else."""

from typing import Any

import pytest

from geval_cli.extras.trust.agreement import agree
from geval_cli.extras.trust.calibration import calibrate
from geval_cli.extras.trust.estimation import estimate
from geval_cli.extras.trust.labelling import beside_judge, review
from geval_cli.extras.trust.matching import judged_items
from geval_cli.extras.trust.options import AgreeOptions, EstimateOptions
from geval_cli.extras.trust.true_figures import scored_outputs, true_figures
from geval_cli.records import AssertionResult, CaseResult, ProviderRef, RenderedPrompt, Status
from geval_cli.report.sanitize import output_digest
from geval_cli.store.runs import StoredLabel

PASSED, FAILED = Status.PASSED, Status.FAILED


def judged(*assertions: AssertionResult, number: int = 0) -> CaseResult:
    scores = [item.score for item in assertions if item.score is not None]
    mean = sum(scores) / len(scores) if scores else None
    return CaseResult(
        id=f"{number}.0.0",
        test_index=number,
        repeat_index=0,
        column=0,
        description=None,
        prompt=RenderedPrompt("p", "prompt", "Say it."),
        provider=ProviderRef("echo", "echo"),
        vars={"x": number},
        output=f"output {number}",
        status=FAILED,
        score=mean,
        named_scores={} if mean is None else {"tone": mean},
        assertions=assertions,
    )


def said(
    status: Status, score: float | None, threshold: float | None, kind: str = "g-eval", **more: Any
) -> Any:
    return AssertionResult(kind, "tone", status, score, threshold, **more)


WAYS: dict[str, tuple[AssertionResult, ...]] = {
    "a required item is missing": (said(FAILED, 0.4, 0.4),),
    "most judges of the jury fail it": (said(FAILED, 0.9, 0.5),),
    "its own threshold": (said(FAILED, 0.8, 0.9),),
    "no threshold": (said(FAILED, 0.8, None, "llm-rubric"),),
    "turned round": (said(FAILED, 0.6, 0.3, "not-g-eval"),),
    "one of two": (said(PASSED, 1.0, 0.5), said(FAILED, 0.9, 0.95)),
    "a yes": (said(PASSED, 0.2, None, "llm-rubric"),),
    "above nothing": (said(PASSED, 0.5, None, "factuality"),),
    "strict": (said(FAILED, 0.99, 1.0),),
    "in a set": (AssertionResult("assert-set", None, PASSED, 0.9, assertions=(said(FAILED, 0.9, 0.5),)),),
}


def verdict(assertions: tuple[AssertionResult, ...]) -> bool:
    members = [item for one in assertions for item in (one.assertions or (one,))]
    return all(item.status is PASSED for item in members)


@pytest.mark.parametrize("way", WAYS)
def test_the_judges_verdict_is_its_status(way: str) -> None:
    results = [judged(*WAYS[way], number=number) for number in range(20)]
    passed = verdict(WAYS[way])
    rows = [
        {"id": item.id, "metric": "tone", "label": float(place % 2), "annotator": "anna"}
        for place, item in enumerate(results)
    ]
    kept = [
        StoredLabel(item.id, "tone", "anna", output_digest(item.output), row)
        for item, row in zip(results, rows, strict=True)
    ]

    beside = review(results, kept)
    assert {row.passed for row in beside} == {passed}
    own = next(
        (one.threshold for one in WAYS[way] if one.threshold and not one.type.startswith("not-")), None
    )
    if way != "in a set":
        assert {row.threshold for row in beside} == {own}  # no line is drawn where none decides by the score
    assert {(row.human, row.is_flipped) for row in beside} == {(1.0, not passed), (0.0, passed)}

    drawn = next(beside_judge(results, kept).charts(lambda choice: "/"))
    assert drawn.figures is not None
    assert sum(int(row[-1]) for row in drawn.figures.rows) == 10
    agreement = agree(rows, results).metrics[0]
    assert [(point.label, point.differs(0.75)) for point in agreement.points] == [
        (float(place % 2), bool(place % 2) != passed) for place in range(20)
    ]
    verdicts = agreement.verdicts.counts
    assert (verdicts.false_pass, verdicts.false_fail) == ((10, 0) if passed else (0, 10))
    if len(WAYS[way]) == 1:  # a mean of several assertions is not calibrated
        today = calibrate(rows, results).metrics[0]
        assert today.checked is not None
        for counts in (today.at_present.counts, today.checked.present_counts):
            assert (counts.false_pass, counts.false_fail) == ((10, 0) if passed else (0, 10))

    assert estimate(rows, results).metrics[0].judge_pass_rate == float(passed)
    found = true_figures(scored_outputs("tone", judged_items(results)), {}, good=0.75)
    assert found.judged_rate == float(passed)

    scores = [{**row, "score": row["label"]} for row in rows]
    by_error = estimate(scores, results, options=EstimateOptions(method="rogan-gladen"))
    assert by_error.metrics[0].judge_pass_rate == float(passed)


def test_a_threshold_that_is_named_decides_by_the_score() -> None:
    results = [judged(said(FAILED, 0.4, 0.4), number=number) for number in range(20)]
    rows = [{"id": item.id, "metric": "tone", "label": place % 2} for place, item in enumerate(results)]
    assert (
        agree(rows, results, options=AgreeOptions(threshold=0.3)).metrics[0].verdicts.counts.false_fail == 0
    )
    assert estimate(rows, results, options=EstimateOptions(threshold=0.3)).metrics[0].judge_pass_rate == 1


@pytest.mark.parametrize("status", [Status.ERROR, Status.NOT_EVALUATED])
def test_what_decides_nothing_has_no_verdict(status: Status) -> None:
    [item] = judged_items([judged(said(status, 0.4, None))])
    assert "tone" not in item.verdicts

"""`geval label --next`: which outputs are drawn, with which chances, and what labels of unequal chances mean."""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from support.geval_command import run_geval
from support.sample_run import COLUMNS

from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.compare.comparison import EarlierRun
from geval_cli.extras.trust.agreement import agree
from geval_cli.extras.trust.calibration import calibrate
from geval_cli.extras.trust.estimation import estimate
from geval_cli.extras.trust.improving import AgreementMeasure, ComparedLabels, agreement_of
from geval_cli.extras.trust.labelling import (
    GivenLabel,
    LabelChoice,
    label_row,
    outputs_to_label,
    stored_label,
)
from geval_cli.extras.trust.labels import labels_from_rows
from geval_cli.extras.trust.matching import judged_items
from geval_cli.extras.trust.options import CorrectOptions, EstimateOptions
from geval_cli.extras.trust.statistics.estimate import Item, infer_mean, infer_rate
from geval_cli.extras.trust.true_differences import correct
from geval_cli.extras.trust.weighted_draw import (
    Stratum,
    UnlabelledOutput,
    chances,
    draw_spread,
    infer_by_shares,
    shares_of_labels,
    sizes,
    spread_of,
)
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    ProviderRef,
    RenderedPrompt,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
)
from geval_cli.report.report import RunReport

METRIC = "tone"


def case(number: int, score: float | None, **more: Any) -> CaseResult:
    status = Status.ERROR if score is None else Status.PASSED if score >= 0.75 else Status.FAILED
    judged = AssertionResult(type="g-eval", metric=METRIC, status=status, score=score, threshold=0.75)
    values = {"named_scores": {} if score is None else {METRIC: score}, "assertions": (judged,), **more}
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
        status=status,
        score=score,
        **values,
    )


def run_of(count: int = 240, seed: int = 3) -> tuple[list[CaseResult], list[float]]:
    """Results of a judge that is sure where it is right, and what people would say of each output."""
    random = Random(seed)
    scores = random.choices((0.0, 0.25, 0.5, 0.75, 1.0), (5, 5, 20, 20, 50), k=count)
    good_at = {0.0: 0.02, 0.25: 0.1, 0.5: 0.4, 0.75: 0.6, 1.0: 0.97}
    truth = [float(random.random() < good_at[score]) for score in scores]
    return [case(number, score) for number, score in enumerate(scores)], truth


def labelled(
    results: Sequence[CaseResult], truth: Sequence[float], *counts: int, seed: int = 0
) -> list[dict[str, Any]]:
    """Rows of labels by as many draws as there are counts, each made after the labels before it."""
    rows: list[dict[str, Any]] = []
    for count in counts:
        kept = [stored_label(row) for row in rows]
        sheet = outputs_to_label(results, LabelChoice((METRIC,), count, seed, kept))
        for output in sheet.outputs:
            [item] = judged_items([results[output.test_index]])
            given = GivenLabel(
                truth[output.test_index],
                draw=sheet.draws[METRIC],
                weight=sheet.weights[output.id],
            )
            rows.append(label_row(item, METRIC, "", given))
    return rows


class TestDraw:
    def test_every_output_is_drawn_with_its_chance_and_the_number_is_kept(self) -> None:
        random = Random(7)
        wanted = chances([random.choice((0.1, 0.2, 0.4, 3.0)) for _ in range(40)], 12)
        places = [Stratum(str(number // 4), number % 2, random.random()) for number in range(40)]
        times = 1_500
        drawn = Counter[int]()
        for seed in range(times):
            found = draw_spread(wanted, places, Random(seed))
            assert len(found) == 12
            drawn.update(found)
        for number, chance in enumerate(wanted):
            error = math.sqrt(chance * (1 - chance) / times)
            assert abs(drawn[number] / times - chance) <= 4.5 * error + 1e-9, (number, chance)

    @pytest.mark.parametrize("count", [1, 5, 39, 40])
    def test_chances_follow_sizes_and_add_up(self, count: int) -> None:
        found = [0.01, 5.0, *[1.0] * 38]
        wanted = chances(found, count)
        assert math.fsum(wanted) == pytest.approx(count)
        assert max(wanted) <= 1
        free = [(size, chance) for size, chance in zip(found, wanted, strict=True) if chance < 1]
        assert len({round(chance / size, 9) for size, chance in free}) <= 1

    @pytest.mark.parametrize("outputs_of_a_document", [4, 1])
    def test_documents_are_spread_and_then_scores(self, outputs_of_a_document: int) -> None:
        places = [Stratum(str(number // outputs_of_a_document), 0, (number % 4) / 3) for number in range(80)]
        for seed in range(50):
            found = draw_spread([0.25] * 80, places, Random(seed))
            assert len({places[number].document for number in found}) == 20
            of_score = Counter(places[number].score for number in found)
            if outputs_of_a_document == 1:
                assert set(of_score.values()) == {5}

    def test_what_is_hard_to_foresee_is_larger_and_labels_teach_where_that_is(self) -> None:
        found = [UnlabelledOutput(score, 0.75) for score in (0.0, 0.5, 0.75, 1.0)]
        before = sizes(found, [])
        assert before[0] < before[1] < before[2] > before[3]
        spread = sizes([UnlabelledOutput(1.0, 0.75), UnlabelledOutput(1.0, 0.75, spread=0.3)], [])
        assert spread[0] < spread[1]
        known = sizes([UnlabelledOutput(0.9, chance=0.5), UnlabelledOutput(0.9, chance=0.99)], [])
        assert known[0] > known[1]
        # It passes half of what is bad: at 1 labels differ, at 0.75 they do not.
        taught = sizes(found, [(1.0, 1.0), (1.0, 0.0)] * 20 + [(0.75, 1.0)] * 20)
        assert taught[3] > taught[2]
        assert max(taught) <= 4 * min(taught) + 1e-9

    def test_the_spread_of_a_judge_s_ratings_is_read(self) -> None:
        def of(**detail: Any) -> float:
            return spread_of(
                AssertionResult(type="g-eval", metric=METRIC, status=Status.PASSED, score=1.0, detail=detail)
            )

        assert of(distribution={"1": 0.5, "5": 0.5}, score_range=[1, 5]) == pytest.approx(0.5)
        assert of(spread=0.4, judges=[]) == pytest.approx(0.2)
        assert of() == 0

    def test_what_is_labelled_is_not_drawn_again_until_nothing_is_left(self) -> None:
        results, truth = run_of(40)
        rows = labelled(results, truth, 15, 15, 15)
        assert [row["draw"].split(",")[0] for row in (rows[0], rows[15], rows[30])] == [
            "next 1 after 0",
            "next 2 after 15",
            "next 3 after 30",
        ]
        assert len({row["id"] for row in rows}) == len(rows) == 40
        with pytest.raises(UsageError, match="all outputs of this run"):
            labelled(results, truth, 20, 20, 1)

    def test_outputs_that_the_judge_could_not_score_are_left_out(self) -> None:
        results, truth = run_of(20)
        broken = [replace(results[0], assertions=case(0, None).assertions, named_scores={}), *results[1:]]
        assert "0.0.0" not in {row["id"] for row in labelled(broken, truth, 20)}

    def test_labels_of_some_metrics_only_are_refused(self) -> None:
        results, truth = run_of(20)
        two = [
            replace(
                item,
                named_scores={**item.named_scores, "style": 0.5},
                assertions=(*item.assertions, replace(item.assertions[0], metric="style")),
            )
            for item in results
        ]
        kept = [stored_label(row) for row in labelled(results, truth, 5)]
        with pytest.raises(UsageError, match="none for `style`") as refused:
            outputs_to_label(two, LabelChoice((), 5, 0, kept))
        assert "--metric style" in refused.value.hint


@pytest.mark.parametrize("counts", [(40,), (20, 20)])
def test_estimates_are_unbiased_where_the_plain_mean_of_the_labels_is_not(counts: tuple[int, ...]) -> None:
    results, truth = run_of(120)
    found: dict[str, list[float]] = {"rate": [], "mean": [], "plain": []}
    for seed in range(30):
        rows = labelled(results, truth, *counts, seed=seed)
        (item,) = estimate(rows, results).metrics
        assert item.labels_mean is not None
        assert item.mean is not None
        found["rate"].append(item.labels_mean.value or 0.0)
        found["mean"].append(item.mean.value or 0.0)
        found["plain"].append(fmean(float(row["label"] in ("pass", 1.0)) for row in rows))
    off = {name: fmean(values) - fmean(truth) for name, values in found.items()}
    error = {name: stdev(values) / math.sqrt(30) for name, values in found.items()}
    assert abs(off["plain"]) > 4 * error["plain"], off
    assert abs(off["rate"]) < 3.5 * error["rate"], off
    assert abs(off["mean"]) < 3.5 * error["mean"], off


def test_labels_that_count_the_same_give_the_figures_of_a_random_draw() -> None:
    results, truth = run_of(1_000)
    items = [
        Item(item.score or 0.0, mark if number < 80 else None, str(number))
        for number, (item, mark) in enumerate(zip(results, truth, strict=True))
    ]
    shares = [1 / 80 if item.human is not None else 0.0 for item in items]
    for plain, is_rate in ((infer_mean, False), (infer_rate, True)):
        one, other = plain(items), infer_by_shares(items, shares, is_rate=is_rate)
        assert one is not None
        assert other is not None
        assert other.estimate.value == pytest.approx(one.estimate.value, abs=0.002)
        assert other.estimate.interval == pytest.approx(one.estimate.interval, abs=0.006)
        assert other.labels.value == pytest.approx(one.labels.value, abs=0.03 if is_rate else 1e-9)


class TestShares:
    def labels(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {str(label.item.id): label for label in labels_from_rows(rows).labels}

    def row(self, number: int, draw: str | None = None, weight: float | None = None) -> dict[str, Any]:
        given = {"draw": draw, "weight": weight}
        return {
            "id": str(number),
            "metric": METRIC,
            "label": 1,
            **{k: v for k, v in given.items() if v is not None},
        }

    def test_draws_count_by_their_labels_and_know_the_ones_before(self) -> None:
        rows = [self.row(number, "seed 7") for number in range(10)]
        rows += [
            self.row(number, "next 1 after 10, seed 0", 3.0 if number < 15 else 1.5)
            for number in range(10, 20)
        ]
        shares = shares_of_labels(self.labels(rows), 40) or {}
        assert math.fsum(shares.values()) == pytest.approx(1)
        # By the first draw all count 1 / 10; by the second the ten count 1 / 40 each, and its own the other 30 / 40.
        assert shares["0"] == pytest.approx(0.5 / 10 + 0.5 / 40)
        assert shares["10"] == pytest.approx(2 * shares["15"])
        assert shares["10"] == pytest.approx(0.5 * 0.75 * 3 / 22.5)

    def test_labels_of_no_draw_stand_for_their_own_outputs(self) -> None:
        rows = [self.row(number) for number in range(10)]
        rows += [self.row(number, "next 1 after 10, seed 0", 3.0) for number in range(10, 20)]
        shares = shares_of_labels(self.labels(rows), 40) or {}
        assert shares["0"] == pytest.approx(1 / 40)
        later = [*rows[:10], *(self.row(number, "next 1 after 0, seed 0", 3.0) for number in range(10, 20))]
        assert (shares_of_labels(self.labels(later), 40) or {})["0"] == 0

    def test_labels_before_a_draw_must_be_there(self) -> None:
        rows = [self.row(number, "next 2 after 10, seed 0", 3.0) for number in range(10, 20)]
        with pytest.raises(ConfigError) as refused:
            shares_of_labels(self.labels(rows), 40)
        assert "after 10 labels of `tone`, but here are 0" in refused.value.problems[0].message
        assert shares_of_labels(self.labels([self.row(1, "seed 7"), self.row(2)]), 40) is None

    def test_a_weight_stays_with_its_output_whoever_labels_it_again(self) -> None:
        drawn = self.row(1, "next 2 after 10, seed 0", 3.0)
        for rows in (
            [{**self.row(1, "seed 7"), "annotator": "ben"}, drawn],
            [drawn, {**self.row(1), "annotator": "ben"}],
        ):
            [label] = labels_from_rows(rows).labels
            assert (len(label.marks), label.weight, label.columns["draw"]) == (2, 3.0, drawn["draw"])
        [item] = judged_items([case(1, 1.0)])
        given = GivenLabel(1.0, draw="next 1 after 0, seed 0", weight=3.0)
        first = stored_label(label_row(item, METRIC, "r", given))
        again = stored_label(label_row(item, METRIC, "r", GivenLabel(0.0)), first)
        assert (again.row["label"], again.row["weight"], again.row["draw"]) == ("fail", 3.0, given.draw)
        other = stored_label(
            {**label_row(item, METRIC, "r", GivenLabel(0.0)), "output_sha256": "0" * 64}, first
        )
        assert "weight" not in other.row

    @pytest.mark.parametrize("weight", ["2", 0.5, -1, True, math.nan])
    def test_a_weight_is_a_number_of_at_least_1(self, weight: Any) -> None:
        with pytest.raises(ConfigError) as refused:
            labels_from_rows([{**self.row(1), "weight": weight}])
        assert "`weight` must be a number of at least 1" in refused.value.problems[0].message

    def test_a_row_of_such_a_draw_has_a_weight(self) -> None:
        with pytest.raises(ConfigError) as refused:
            labels_from_rows([{**self.row(1), "draw": "next 1 after 0, seed 7", "weight": None}])
        assert "`weight` is missing from a row of this draw" in refused.value.problems[0].message


class TestElsewhere:
    """Labels that were drawn with unequal chances are weighed, thinned or refused, never taken as a random draw."""

    def test_agree_and_calibrate_take_a_part_in_which_all_are_as_likely(self) -> None:
        results, truth = run_of(600)
        rows = labelled(results, truth, 300)
        found = agree(rows, results)
        (item,) = found.metrics
        assert 100 < item.n < 300
        assert f"left out: {300 - item.n} labels, at random" in " ".join(item.notes)
        sure = fmean(result.score == 1 for result in results)
        assert abs(fmean(point.score == 1 for point in item.points) - sure) < 0.08
        drawn = fmean(results[int(str(row["id"]).split(".")[0])].score == 1 for row in rows)
        assert drawn < sure - 0.1
        (calibrated,) = calibrate(rows, results).metrics
        assert calibrated.calibration.n == item.n
        assert any(note.startswith("left out: ") for note in calibrated.notes)

    @pytest.mark.parametrize("measure", list(AgreementMeasure))
    def test_improve_weighs_agreement(self, measure: AgreementMeasure) -> None:
        random = np.random.default_rng(5)
        human = random.integers(0, 2 if measure is AgreementMeasure.BALANCED_ACCURACY else 5, 60).astype(
            float
        )
        human /= human.max()
        scores = np.clip(human + random.normal(0, 0.3, 60), 0, 1)
        times = random.integers(0, 4, 60)

        def of(scores: Any, human: Any, shares: Any) -> float | None:
            return agreement_of(measure, scores, ComparedLabels(human, shares, ("d",) * len(human)), 0.5)

        # What counts twice is there twice.
        repeated = of(np.repeat(scores, times), np.repeat(human, times), np.ones(times.sum()))
        assert of(scores, human, times.astype(float)) == pytest.approx(repeated)
        assert of(scores, human, np.ones(60)) != pytest.approx(repeated, abs=1e-4)

    def test_a_difference_of_runs_and_rates_of_errors_refuse_them(self) -> None:
        results, truth = run_of(60)
        rows = labelled(results, truth, 40)
        with pytest.raises(UsageError, match="rogan-gladen needs labels"):
            estimate(rows, results, options=EstimateOptions(method="rogan-gladen"))
        run = RunRecord(
            "r",
            RunStatus.COMPLETED,
            "2026-11-22T10:00:00+00:00",
            None,
            None,
            "0",
            "c.yaml",
            "d",
            {},
            columns=COLUMNS,
        )
        report = RunReport(run, RunSummary(), lambda: iter(results))
        with pytest.raises(ConfigError) as refused:
            correct(rows, EarlierRun(report), report, CorrectOptions())
        assert "cannot correct a difference" in refused.value.problems[0].message
        free = [number for number in range(60) if f"{number}.0.0" not in {row["id"] for row in rows}]
        plain = [
            {"id": f"{n}.0.0", "metric": METRIC, "label": truth[n], "output": f"output {n}"} for n in free
        ]
        found = correct([*rows, *plain], EarlierRun(report), report, CorrectOptions())
        assert "not used: 40 labels that `geval label --next` drew" in found.notes
        assert found.rows[0].labelled == (20, 20)


def store(folder: Path, results: Sequence[CaseResult]) -> None:
    lines = folder / "results.jsonl"
    lines.write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in results))
    imported = run_geval("import", "run", "results.jsonl", cwd=folder)
    assert imported.code == 0, imported.stderr


def read_sheet(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(text)))
    return [json.loads(line) for line in text.splitlines()]


def write_sheet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_from_sheet_to_sheet(tmp_path: Path, ending: str) -> None:
    results, truth = run_of(60)
    store(tmp_path, results)
    sheet, filled = tmp_path / f"sheet.{ending}", tmp_path / f"filled.{ending}"

    def fill(count: int) -> list[dict[str, Any]]:
        sheet.unlink(missing_ok=True)
        drawn = run_geval("label", "latest", "--next", str(count), "--export", sheet.name, cwd=tmp_path)
        assert drawn.code == 0, drawn.stderr
        assert f"{count} of them still empty" in drawn.stdout
        rows = read_sheet(sheet)
        for row in rows:
            row["label"] = "pass" if truth[int(row["id"].split(".")[0])] else "fail"
        write_sheet(filled, rows)
        return rows

    def estimated() -> Any:
        told = run_geval("estimate", filled.name, "--json", cwd=tmp_path)
        assert told.code == 0, told.stderr
        return json.loads(told.stdout)["metrics"][0]

    assert len(fill(20)) == 20
    found = estimated()
    assert found["labelled"] == 20
    assert (
        "labels are weighted by the probability with which `geval label --next` drew their outputs"
        in found["notes"]
    )
    assert run_geval("label", "latest", "--import", filled.name, cwd=tmp_path).code == 0

    rows = fill(15)  # with the labels before it, without which they mean nothing
    assert len(rows) == 35
    assert estimated()["labelled"] == 35
    write_sheet(filled, [row for row in rows if row["draw"].startswith("next 2")])
    lacking = run_geval("estimate", filled.name, cwd=tmp_path)
    assert lacking.code == 2
    assert "after 20 labels of `tone`, but here are 0 of these" in lacking.stderr
    assert "--export" in lacking.stderr


def test_what_does_not_go_with_next(tmp_path: Path) -> None:
    store(tmp_path, run_of(10)[0])
    for words, said in (
        (("--next", "3", "--draw", "3"), "--next and --draw cannot be combined"),
        (("--next", "3", "--review"), "--next and --review cannot be combined"),
        (("--next", "0"), "--next"),
        (("--next", "three"), "--next"),
    ):
        finished = run_geval("label", "latest", *words, cwd=tmp_path)
        assert (finished.code, said in finished.stderr) == (2, True), finished.stderr
    both = run_geval("label", "latest,latest", "--next", "3", cwd=tmp_path)
    assert "--next takes one run" in both.stderr
    assert "--draw 3" in both.stderr

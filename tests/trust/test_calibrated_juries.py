"""Juries whose judges weigh as much as they follow people: the weights, the file, runs, and what is refused."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats
from support.geval_command import clean_environment, run_geval
from support.stored_runs import store_run

from geval_cli.errors import ConfigError, Problem
from geval_cli.extras.juries import JudgeWeight, Member, heard_shares, verdict_of_jury, weighted_score
from geval_cli.extras.juries import Vote as JuryVote
from geval_cli.extras.trust.agreement import agree
from geval_cli.extras.trust.calibration import calibrate, write_calibration
from geval_cli.extras.trust.juries import JuryScores, jury_agreement, jury_sentence
from geval_cli.extras.trust.matching import JudgeVote
from geval_cli.judge.estimate import Grade, RatingEstimate
from geval_cli.records import CaseResult, Status
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.specs.base import JuryRulesSpec
from geval_cli.store.state import open_runs

EXAMPLES = Path(__file__).parents[2] / "examples" / "trust"
JUDGES = ("scripted:judge.yaml", "scripted:judge-polite.yaml", "scripted:judge-moody.yaml")


def judge(weight: float, mean: float, sd: float) -> JudgeWeight:
    return JudgeWeight("j", None, {}, 10, 0.5, weight, mean, sd)


TWO = (judge(1, 0.5, 0.2), judge(3, 0.8, 0.1))


class TestWeightedScore:
    @pytest.mark.parametrize(
        ("scores", "score"),
        [
            ([0, 0], 0),
            ([1, 1], 1),
            # Of standardised scores the mean: weights 1/0.2 and 3/0.1 of the plain ones.
            ([0.5, 0.8], (5 * 0.5 + 30 * 0.8) / 35),
            ([1, 0], 5 / 35),
            # Alone, 1 is 2.5 deviations above its mean; so would be the other at 1.05, and 35 deviations make 0 to 1.
            ([1, None], (5 * 1 + 30 * 1.05) / 35),
            ([0.5, None], (5 * 0.5 + 30 * 0.8) / 35),
            ([0, None], (5 * 0 + 30 * 0.55) / 35),
            ([None, 0.8], (5 * 0.5 + 30 * 0.8) / 35),
            ([None, None], None),
        ],
    )
    def test_golden(self, scores: list[float | None], score: float | None) -> None:
        expected = None if score is None else pytest.approx(min(1, score))
        assert weighted_score(TWO, scores) == expected

    def test_whoever_has_no_weight_has_no_say(self) -> None:
        jury = (judge(0, 0.5, 0.2), judge(2, 0.5, 0.1), judge(1, 0.5, 0))
        assert weighted_score(jury, [1, 0.3, 1]) == weighted_score(jury, [None, 0.3, 0]) == pytest.approx(0.3)
        assert weighted_score(jury, [1, None, 1]) is None

    @pytest.mark.parametrize(
        ("scores", "shares"), [([1, 1], [0.25, 0.75]), ([1, None], [1, 0]), ([None, None], [0, 0])]
    )
    def test_shares_are_of_those_who_spoke(self, scores: list[float | None], shares: list[float]) -> None:
        assert heard_shares(TWO, scores) == shares

    def test_rounding_breaks_no_ties(self) -> None:
        draw = np.random.default_rng(4)
        for _ in range(100):
            jury = [judge(*map(float, draw.uniform(0.01, 1, 3))) for _ in range(3)]
            assert (weighted_score(jury, [1, 1, 1]), weighted_score(jury, [0, 0, 0])) == (1, 0)

    def test_it_stays_a_score_whoever_breaks(self) -> None:
        draw = np.random.default_rng(3)
        for _ in range(300):
            jury = [judge(*map(float, draw.uniform(0.01, 1, 3))) for _ in range(4)]
            scores = [None if draw.random() < 0.4 else float(draw.random()) for _ in jury]
            found = weighted_score(jury, scores)
            assert (found is None) == all(score is None for score in scores)
            assert found is None or 0 <= found <= 1


@pytest.mark.parametrize(("required", "status"), [(True, "failed"), (False, "passed")])
def test_items_of_a_checklist_are_weighted_too(required: bool, status: str) -> None:
    """The heavier judge finds the item missed; where it is required, the output fails whatever its score is."""

    def vote(name: str, met: bool) -> JuryVote:
        item = {"item": "A price", "weight": 1, "required": required, "met": met, "score": float(met)}
        grade = Grade(
            Status.PASSED, 0.8, 0.5, "", RatingEstimate(8, "", "single"), detail={"checklist": [item]}
        )
        return JuryVote(Member(name, name, no_question), grade)

    rules = JuryRulesSpec(combine="calibrated")
    found = verdict_of_jury([vote("a", True), vote("b", False)], rules, TWO)
    assert found.detail["checklist"][0]["score"] == 0.25
    assert found.detail["checklist"][0]["met"] is False
    assert found.status == status


async def no_question() -> Grade:
    raise NotImplementedError


def simulated(noises: tuple[float, ...], *, documents: int = 60, per: int = 4, seed: int = 5) -> JuryScores:
    """Judges that see the truth through noise of their own, and on scales of their own."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=documents * per)
    rows = [
        0.5 + (0.05 + 0.02 * place) * (truth + noise * draw.normal(size=len(truth)))
        for place, noise in enumerate(noises)
    ]
    clusters = [str(number // per) for number in range(len(truth))]
    votes = tuple(JudgeVote(f"j{place}", 0.5) for place in range(len(noises)))
    names, noise = tuple(vote.judge for vote in votes), np.zeros(len(truth))
    return JuryScores(names, np.array(rows), truth, clusters, votes, noise)


class TestLearning:
    def test_weights_are_those_of_their_correlation(self) -> None:
        jury = simulated((0.5, 1.0, 3.0))
        weights = jury.weights(np.ones(240, dtype=bool))
        for one, row in zip(weights, jury.scores, strict=True):
            r = stats.pearsonr(row, jury.human).statistic
            assert one.r == pytest.approx(r)
            assert one.weight == pytest.approx(r**2 / (1 - r**2))
            assert (one.mean, one.sd, one.n) == (pytest.approx(row.mean()), pytest.approx(row.std()), 240)

    def test_the_score_is_the_mean_of_standardised_scores(self) -> None:
        jury = simulated((0.5, 1.0, 3.0))
        everything = np.ones(240, dtype=bool)
        weights = np.array([one.weight for one in jury.weights(everything)])
        standard = stats.zscore(jury.scores, axis=1)
        expected = weights @ standard / weights.sum()
        assert stats.pearsonr(jury.weighted(everything), expected).statistic == pytest.approx(1)

    def test_held_back_scores_do_not_know_their_labels(self) -> None:
        jury = simulated((1.0, 1.0), documents=12)
        before = jury.held_back()
        other = jury.human.copy()
        other[:4] = other[:4][::-1] + 100  # the labels of the first document
        after = JuryScores(jury.judges, jury.scores, other, jury.clusters, jury.votes, jury.noise).held_back()
        assert before[:4] == pytest.approx(after[:4])
        assert before[4:] != pytest.approx(after[4:])

    def test_unequal_judges_are_better_weighted_than_averaged(self) -> None:
        """Of a good judge and three poor ones, the plain mean is worse than the good one, and the weighted is not."""
        jury = simulated((0.6, 4.0, 4.0, 4.0), documents=100)
        mean = jury_agreement(jury, jury.scores.mean(axis=0), "mean")
        weighted = jury_agreement(jury, jury.held_back(), "weights from other labels")
        assert mean.best == weighted.best == "j0"
        assert "the jury is worse" in jury_sentence(mean)
        assert mean.jury.value is not None
        assert weighted.jury.value is not None
        assert weighted.jury.value > mean.jury.value + 0.1
        assert weighted.gain.value is not None
        assert weighted.gain.value > -0.01

    def test_equal_judges_are_better_together(self) -> None:
        jury = simulated((1.5, 1.5, 1.5, 1.5), documents=100)
        found = jury_agreement(jury, jury.held_back(), "weights from other labels")
        assert found.gain.interval is not None
        assert found.gain.interval[0] > 0.05
        assert "the jury is better" in jury_sentence(found)

    @pytest.mark.parametrize("kind", ["constant", "against", "silent"])
    def test_a_judge_that_does_not_follow_people_has_no_say(self, kind: str) -> None:
        jury = simulated((0.5, 1.0))
        bad = {"constant": jury.human * 0 + 0.5, "against": -jury.human, "silent": jury.human * np.nan}[kind]
        jury = JuryScores(
            ("j0", "bad"), np.array([jury.scores[0], bad]), jury.human, jury.clusters, jury.votes, jury.noise
        )
        good, other = jury.weights(np.ones(240, dtype=bool))
        assert good.counts
        assert not other.counts
        assert not math.isnan(other.mean + other.sd)
        assert not np.isnan(jury.held_back()).any()

    def test_a_judge_without_a_fault_does_not_count_infinitely(self) -> None:
        jury = simulated((0.0, 1.0))
        perfect, other = jury.weights(np.ones(240, dtype=bool))
        assert perfect.r == pytest.approx(1)
        assert other.weight < perfect.weight < 50

    def test_nothing_is_said_of_judges_and_labels_without_any_order(self) -> None:
        jury = simulated((1.0, 1.0))
        flat = JuryScores(
            jury.judges, jury.scores * 0 + 0.5, jury.human, jury.clusters, jury.votes, jury.noise
        )
        found = jury_agreement(flat, flat.scores[0], "mean")
        assert (found.best, found.jury.value) == (None, None)
        assert jury_sentence(found).startswith("No judge of the jury can be compared with human labels")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example after `geval run jury.yaml` and `geval calibrate`, of which each test gets a copy."""
    folder = tmp_path_factory.mktemp("shop") / "made"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns(".geval"))
    run_id = store_run(folder / "jury.yaml")
    found = calibrate(folder / "answer-labels.jsonl", run_id, home=folder / ".geval")
    write_calibration(folder / "jury.cal.json", found)
    return folder


@pytest.fixture
def shop(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "shop", ignore=shutil.ignore_patterns("running"))


def change(folder: Path, **keys: Any) -> str:
    config = yaml.safe_load((folder / "jury-calibrated.yaml").read_text(encoding="utf-8"))
    of_suite = {"calibration": keys.pop("calibration", config["calibration"])}
    assertion = config["defaultTest"]["assert"][0]
    for part, changes in ((assertion, keys), (config, of_suite)):
        part.update(changes)
        for name in [name for name, value in part.items() if value is None]:
            del part[name]
    (folder / "changed.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return "changed.yaml"


def problems(folder: Path, name: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(folder / name, {}), is_going_to_run=True)
    return caught.value.problems


def results(folder: Path, name: str) -> list[CaseResult]:
    run_id = store_run(folder / name)
    with open_runs(folder / ".geval", {}) as runs:
        report = load_report(runs, run_id)
        assert report.run.warnings == ()
        return list(report.results())


class TestTheFile:
    def test_it_has_the_score_of_the_run_and_the_weighted_one(self, made: Path) -> None:
        plain, weighted = json.loads((made / "jury.cal.json").read_text(encoding="utf-8"))["entries"]
        assert (plain["metric"], weighted["metric"]) == ("helpful", "helpful")
        assert "judges" not in plain
        assert [one["judge"] for one in weighted["judges"]] == list(JUDGES)
        assert [one["n"] for one in weighted["judges"]] == [60, 60, 60]
        assert len({one["key"] for one in weighted["judges"]} - {None}) == 3
        for one in weighted["judges"]:
            share = max(0.0, one["r"]) ** 2
            assert one["weight"] == pytest.approx(share / (1 - share))

    def test_the_key_of_a_judge_is_the_one_that_it_has_alone(self, made: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(made, tmp_path / "alone", ignore=shutil.ignore_patterns("running"))
        run_id = store_run(
            folder / change(folder, provider=JUDGES[0], jury=None, threshold=0.5, calibration=None)
        )
        with open_runs(folder / ".geval", {}) as runs:
            (alone,) = next(iter(load_report(runs, run_id).results())).assertions
        entry = json.loads((made / "jury.cal.json").read_text(encoding="utf-8"))["entries"][1]
        assert alone.detail["criterion_key"] == entry["judges"][0]["key"]
        assert alone.detail["criterion_parts"] == entry["judges"][0]["parts"]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"weight": -1}, "`weight` must be"),
            ({"weight": "much"}, "`weight` must be"),
            ({"sd": 0}, "a judge with a weight needs an `sd` above 0"),
            ({"mean": 2}, "`mean` must be"),
            ({"r": 3}, "`r` must be"),
            ({"wait": 1}, "unknown key `wait`"),
        ],
    )
    def test_a_broken_weight_has_a_place(self, shop: Path, changes: dict[str, Any], message: str) -> None:
        path = shop / "jury.cal.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["entries"][1]["judges"][0].update(changes)
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        first = problems(shop, "jury-calibrated.yaml")[0]
        assert message in first.message
        assert first.location is not None
        assert str(first.location).startswith(str(path)) or "jury.cal.json:" in str(first.location)

    @pytest.mark.parametrize("judges", [3, ["openai:a"], [{}]])
    def test_weights_that_are_none(self, shop: Path, judges: Any) -> None:
        path = shop / "jury.cal.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["entries"][1]["judges"] = judges
        path.write_text(json.dumps(content), encoding="utf-8")
        assert problems(shop, "jury-calibrated.yaml")


def calibrate_again(folder: Path) -> None:
    run_id = store_run(folder / "jury.yaml")
    found = calibrate(folder / "answer-labels.jsonl", run_id, home=folder / ".geval")
    write_calibration(folder / "jury.cal.json", found)


def break_on_the_radio(judge_file: Path) -> None:
    broken = "- match: Please send the radio\n  error: { status: 400, message: no }\n"
    judge_file.write_text(broken + judge_file.read_text(encoding="utf-8"), encoding="utf-8")


def of_the_radio(cases: list[CaseResult]) -> CaseResult:
    (found,) = [one for one in cases if str(one.output).startswith("Please send the radio")]
    return found


class TestInARun:
    def test_scores_are_weighted_and_say_how(self, shop: Path) -> None:
        entry = json.loads((shop / "jury.cal.json").read_text(encoding="utf-8"))["entries"][1]
        pull = np.array([one["weight"] / one["sd"] for one in entry["judges"]])
        total = sum(one["weight"] for one in entry["judges"])
        for case in results(shop, "jury-calibrated.yaml"):
            (verdict,) = case.assertions
            given = [vote["score"] for vote in verdict.detail["judges"]]
            assert verdict.score == pytest.approx(pull @ given / pull.sum())
            assert verdict.threshold == entry["threshold"]
            assert verdict.detail["jury"]["combine"] == "calibrated"
            assert verdict.detail["jury"]["reweighted"] is False
            assert [vote["weight"] for vote in verdict.detail["judges"]] == pytest.approx(
                [one["weight"] / total for one in entry["judges"]], abs=1e-8
            )
            slope, intercept = entry["logistic"]
            chance = 1 / (1 + math.exp(-(slope * verdict.score + intercept)))
            assert verdict.detail["p_pass"] == pytest.approx(chance)
            assert isinstance(verdict.detail["borderline"], bool)

    def test_a_judge_that_breaks_leaves_its_weight_to_the_others(self, shop: Path) -> None:
        break_on_the_radio(shop / "judge-polite.yaml")
        calibrate_again(shop)
        cases = results(shop, "jury-calibrated.yaml")
        (verdict,) = of_the_radio(cases).assertions
        assert verdict.detail["jury"] == {
            "combine": "calibrated",
            "judged": 2,
            "asked": 3,
            "reweighted": True,
        }
        assert [vote["weight"] for vote in verdict.detail["judges"]] == [1, 0, 0]
        assert "p_pass" not in verdict.detail
        entry = json.loads((shop / "jury.cal.json").read_text(encoding="utf-8"))["entries"][1]
        weights = [judge(one["weight"], one["mean"], one["sd"]) for one in entry["judges"]]
        given = [vote["score"] for vote in verdict.detail["judges"]]
        assert given[1] is None
        assert verdict.score == pytest.approx(weighted_score(weights, given))
        again = calibrate(shop / "answer-labels.jsonl", cases)
        assert [one.n for one in again.metrics[0].calibration.judges] == [60, 59, 60]
        assert None not in [one.key for one in again.metrics[0].calibration.judges]

    def test_no_verdict_without_a_judge_that_counts(self, shop: Path) -> None:
        for name in ("judge.yaml", "judge-polite.yaml"):
            break_on_the_radio(shop / name)
        calibrate_again(shop)
        cases = results(shop, change(shop, jury={"combine": "calibrated", "min_judges": 1}))
        (verdict,) = of_the_radio(cases).assertions
        assert verdict.status == "error"
        assert verdict.error is not None
        assert "no judge whose weight is above 0 gave a verdict" in verdict.error.message

    def test_a_run_with_weights_is_calibrated_anew(self, shop: Path) -> None:
        run_id = store_run(shop / "jury-calibrated.yaml")
        found = calibrate(shop / "answer-labels.jsonl", run_id, home=shop / ".geval")
        (entry,) = found.to_file()["entries"]
        before = json.loads((shop / "jury.cal.json").read_text(encoding="utf-8"))["entries"][1]
        assert list(entry["judges"]) == before["judges"]
        assert entry["threshold"] == before["threshold"]

    def test_a_config_with_the_mean_takes_the_other_entry(self, shop: Path) -> None:
        name = change(shop, jury={"combine": "mean"})
        entry = json.loads((shop / "jury.cal.json").read_text(encoding="utf-8"))["entries"][0]
        cases = results(shop, name)
        assert {case.assertions[0].threshold for case in cases} == {entry["threshold"]}
        assert all("p_pass" in case.assertions[0].detail for case in cases)

    def test_judging_again_costs_nothing(self, shop: Path) -> None:
        run_id = store_run(shop / "jury-calibrated.yaml")
        words = ("judge", run_id, "jury-calibrated.yaml", "-o", "again.json")
        finished = run_geval(*words, cwd=shop, env=clean_environment(COLUMNS="80"))
        assert finished.code == 1, finished.stderr
        cases = json.loads((shop / "again.json").read_text(encoding="utf-8"))["results"]
        assert all("judged_from" in case["assertions"][0]["detail"] for case in cases)

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"criteria": "The answer is short."}, "were found with other criteria"),
            ({"score_range": [1, 9]}, "were found with another range of ratings"),
            ({"evaluation_steps": ["Look."]}, "were found with other evaluation steps"),
            ({"scoring": "samples"}, "were found with another `scoring` or number of samples"),
            ({"provider": [*JUDGES[:2], "echo"]}, "has no weight for the judge `echo` for `helpful`"),
            ({"provider": list(JUDGES[:2])}, f"are for a jury with more judges: {JUDGES[2]}"),
            ({"provider": [*JUDGES, "echo"]}, "has no weight for the judge `echo`"),
            ({"metric": "kind"}, "has no calibration of `kind`"),
            ({"metric": None}, "needs a metric"),
            ({"calibration": None}, "`combine: calibrated`, but the config has no calibration file"),
            ({"type": "not-g-eval", "threshold": 0.5}, "`combine: calibrated` is not for not-g-eval"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("threshold", ["calibrated", 0.5])
    def test_other_weights_are_refused_before_anything_is_sent(
        self, shop: Path, keys: dict[str, Any], message: str, threshold: Any
    ) -> None:
        found = problems(shop, change(shop, **{"threshold": threshold, **keys}))
        assert any(message in item.message for item in found), [item.message for item in found]
        assert all(item.location is not None for item in found)

    def test_other_parameters_of_a_judge_are_named(self, shop: Path) -> None:
        path = shop / "judge-moody.yaml"  # a scripted judge is its script
        path.write_text(path.read_text(encoding="utf-8") + "# changed\n- default: '3'\n", encoding="utf-8")
        (found,) = problems(shop, "jury-calibrated.yaml")
        assert found.message == (
            "the weight of `scripted:judge-moody.yaml` in jury.cal.json was found with other judge parameters"
        )

    def test_the_order_of_the_judges_is_nothing(self, shop: Path) -> None:
        first = results(shop, "jury-calibrated.yaml")
        turned = results(shop, change(shop, provider=list(reversed(JUDGES))))
        assert [case.score for case in first] == pytest.approx([case.score for case in turned])

    def test_a_file_of_one_judge_has_no_weights(self, shop: Path) -> None:
        path = shop / "jury.cal.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**content, "entries": content["entries"][:1]}), encoding="utf-8")
        found = problems(shop, "jury-calibrated.yaml")
        assert "has no judge weights for `helpful`" in found[0].message

    def test_votes_without_criteria_have_no_keys(self, shop: Path) -> None:
        cases = results(shop, "jury.yaml")
        for case in cases:
            for vote in case.assertions[0].detail["judges"]:
                vote.pop("criterion_key")
        found = calibrate(shop / "answer-labels.jsonl", cases)
        assert any("runs would reject these weights" in note for note in found.metrics[1].notes)
        found = found.to_file()
        (shop / "jury.cal.json").write_text(json.dumps(found), encoding="utf-8")
        assert ("it is unknown which judges they belong to") in problems(shop, "jury-calibrated.yaml")[
            0
        ].message


class TestAgree:
    def test_it_holds_the_jury_against_its_best_judge(self, made: Path) -> None:
        (item,) = agree(made / "answer-labels.jsonl", "latest", home=made / ".geval").metrics
        assert item.jury is not None
        assert (item.jury.best, item.jury.combine) == (JUDGES[0], "mean")
        assert item.jury.jury.value == item.dataset.spearman.value
        assert item.jury.best_alone == item.jury.judges[0].spearman
        assert item.jury.gain.value == pytest.approx(item.jury.jury.value - item.jury.best_alone.value)

    def test_a_jury_of_one_that_counts_is_its_best_judge(self) -> None:
        jury = simulated((0.5, 1.0))
        found = jury_agreement(jury, jury.scores[0], "calibrated")
        assert jury_sentence(found).endswith("alone 0.88: there is no difference.")

    def test_every_form_says_both(self, shop: Path) -> None:
        words = (
            "agree",
            "answer-labels.jsonl",
            "--run",
            "latest",
            "-o",
            "a.md",
            "-o",
            "a.html",
            "-o",
            "a.json",
        )
        finished = run_geval(*words, cwd=shop, env=clean_environment(COLUMNS="80"))
        told = " ".join(finished.stdout.split())
        sentence = "The jury (mean) has rho 0.80, its best judge scripted:judge.yaml alone 0.86"
        assert sentence in told
        assert "the jury is worse" in told
        assert sentence in (shop / "a.html").read_text(encoding="utf-8")
        assert sentence.split(",", maxsplit=1)[0] in (shop / "a.md").read_text(encoding="utf-8")
        jury = json.loads((shop / "a.json").read_text(encoding="utf-8"))["metrics"][0]["jury"]
        assert set(jury) == {"combine", "judges", "best", "jury", "best_alone", "gain", "votes"}
        assert "3 judges are worth 1.97" in told
        assert jury["votes"]["value"] == pytest.approx(1.97, abs=0.005)
        assert [round(judge["votes_without"], 2) for judge in jury["judges"]] == [1.61, 1.71, 1.35]
        errors = [judge["error_correlations"] for judge in jury["judges"]]
        assert errors == [list(column) for column in zip(*errors, strict=True)]
        assert [errors[place][place] for place in range(3)] == pytest.approx([1, 1, 1])
        assert set(jury["gain"]) == {"value", "interval", "n", "clusters"}

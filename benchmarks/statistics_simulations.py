"""How often the statistics keep their promises, by simulation: `python -m benchmarks simulations [NAME ...]`.

Each entry of `SIMULATIONS` prints one table, from a fixed seed; `--quick` does a tenth of the runs. To add one, write a
function, give it a name there, and say in its docstring what the figures should be.
"""

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
from numpy.random import Generator

from geval_cli.cli.compare import compare_runs
from geval_cli.cli.main import main as geval_command
from geval_cli.cli.options import CompareOptions
from geval_cli.cli.runs import export_run, import_run
from geval_cli.extras.compare.comparison import judge_difference
from geval_cli.extras.conversations.realism import draw_pairs
from geval_cli.extras.conversations.transcripts import Transcript, Transcripts
from geval_cli.extras.conversations.two_samples import (
    ComparedPair,
    Sample,
    crossed_share,
    distribution_gap,
    mean_difference,
)
from geval_cli.extras.trust import labels as label_files
from geval_cli.extras.trust import weighted_draw
from geval_cli.extras.trust.improving import (
    AgreementMeasure,
    CandidateRatings,
    ComparedLabels,
    JudgeCandidate,
    LabelledCase,
    agreement_on,
    choose,
    held_out_gain,
    with_error,
)
from geval_cli.extras.trust.labels import DRAW_COLUMN, GOOD_AT, ItemRef, Label
from geval_cli.extras.trust.statistics.drift import MARGIN, looks_at
from geval_cli.extras.trust.statistics.estimate import (
    CarriesOver,
    Inference,
    Item,
    TrueDifference,
    carry_over_of,
    infer_difference,
    infer_mean,
    infer_rate,
    infer_shift,
)
from geval_cli.extras.trust.statistics.plain import Estimate, clustered_estimate
from geval_cli.extras.trust.statistics.sequential import SequentialMean
from geval_cli.records import AssertionResult, CaseResult, ProviderRef, RenderedPrompt, Status, Turn, Usage
from geval_cli.source.source_map import SourcePath
from geval_cli.statistics.intervals import ClusteredMean, mean_interval, t_quantile
from geval_cli.statistics.paired import (
    SIGNIFICANCE,
    PairedDifferences,
    PairedSample,
    PairedTest,
    decide,
    holm,
)
from geval_cli.suite.gates import Gate, corrected, parse_gate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.loopback import LoopbackServer, Reply, chat_reply

RUNS = 3_000
"""Runs of a cell through the functions of the library."""
COMMAND_RUNS = 300
"""Runs of a cell through the command line."""
SEED = 20_261_126


def run(*names: str, quick: bool = False) -> None:
    """Print the tables with these names, or all of them."""
    runs = RUNS // 10 if quick else RUNS
    unknown = sorted(set(names) - set(SIMULATIONS))
    if unknown:
        raise SystemExit(f"no simulation named {', '.join(unknown)}; one of: {', '.join(SIMULATIONS)}")
    for name in names or SIMULATIONS:
        print(f"-- {name}: {(SIMULATIONS[name].__doc__ or '').splitlines()[0]}")
        SIMULATIONS[name](runs)


def run_quick() -> None:
    run(quick=True)


Draw = Callable[[Generator, int], Sequence[np.ndarray] | np.ndarray]
"""Scores of so many tests, a row each, with a column for each repeat."""


def _single(draw: Callable[[Generator, tuple[int, int]], Any]) -> Draw:
    return lambda random, tests: np.asarray(draw(random, (tests, 1)), dtype=np.float64)


def _repeated(random: Generator, tests: int) -> np.ndarray:
    chances = random.beta(1.4, 0.6, (tests, 1))
    return (random.random((tests, 5)) < chances).astype(np.float64)


def _of_sizes(sizes: Callable[[Generator, int], Iterable[int]]) -> Draw:
    def draw(random: Generator, tests: int) -> list[np.ndarray]:
        chances = random.beta(1.4, 0.6, tests)
        return [
            (random.random(size) < chance).astype(np.float64)
            for size, chance in zip(sizes(random, tests), chances, strict=True)
        ]

    return draw


FIVE = (3, 5, 10, 20, 50)
MEANS: dict[str, tuple[Draw, float, Sequence[int]]] = {
    "0 or 1, p = 0.9": (_single(lambda random, size: random.random(size) < 0.9), 0.9, (2, *FIVE)),
    "0 or 1, p = 0.98": (_single(lambda random, size: random.random(size) < 0.98), 0.98, FIVE),
    "1 to 5, 80 % fives": (
        _single(lambda random, size: random.choice(5, size, p=[0.05, 0.05, 0.05, 0.05, 0.8]) / 4),
        (0.05 * 1.5 + 0.8),
        (2, *FIVE),
    ),
    "1 to 5, evenly": (_single(lambda random, size: random.integers(0, 5, size) / 4), 0.5, FIVE),
    "beta(8, 2)": (_single(lambda random, size: random.beta(8, 2, size)), 0.8, FIVE),
    "beta(0.5, 0.1)": (_single(lambda random, size: random.beta(0.5, 0.1, size)), 0.5 / 0.6, FIVE),
    "0.9999 or 0, p = 0.9": (
        _single(lambda random, size: 0.9999 * (random.random(size) < 0.9)),
        0.9 * 0.9999,
        FIVE,
    ),
    "five repeats, beta(1.4, 0.6)": (_repeated, 0.7, (2, 3, 5, 10, 20)),
    "the same, lognormal sizes": (
        _of_sizes(lambda random, tests: 1 + random.lognormal(2.5, 1, tests).astype(int)),
        0.7,
        FIVE,
    ),
    "the same, one of 200, others of 5": (
        _of_sizes(lambda _, tests: [200, *[5] * (tests - 1)]),
        0.7,
        FIVE,
    ),
}


def means(runs: int) -> None:
    """Share of 95 % intervals of a mean that contain the truth (t: mean ± t standard errors; ~ mean width)."""
    random = np.random.default_rng(SEED)
    for name, (draw, truth, sizes) in MEANS.items():
        cells = []
        for tests in sizes:
            held = plain = width = 0.0
            for _ in range(runs):
                scores = draw(random, tests)
                found = _mean_of(scores)
                low, high = found.interval() or (0.0, 1.0)
                held += low <= truth <= high
                width += high - low
                spread = t_quantile(0.975, tests - 1) * (found.standard_error() or 0.0)
                plain += abs((found.mean or 0.0) - truth) <= spread
            cells.append(f"n={tests} {held / runs:.3f} (t {plain / runs:.2f}; ~{width / runs:.2f})")
        print(f"{name:<33} {'  '.join(cells)}")


def _mean_of(scores: Iterable[np.ndarray]) -> ClusteredMean:
    found = ClusteredMean()
    for test, row in enumerate(scores):
        for score in row.tolist():
            found.add(test, score)
    return found


def differences(runs: int) -> None:
    """Share of 90 % intervals of a mean difference, on -1 to 1, that contain the truth."""
    random = np.random.default_rng(SEED + 1)
    for name, draw, truth in (
        (
            "rarely another rating",
            lambda size: random.choice([-0.25, 0, 0.25], size, p=[0.1, 0.85, 0.05]),
            -0.0125,
        ),
        ("uniform in ± 0.5", lambda size: random.random(size) - 0.5, 0.0),
        (
            "verdicts, 8 % broken, 2 % fixed",
            lambda size: random.choice([-1, 0, 1], size, p=[0.08, 0.9, 0.02]),
            -0.06,
        ),
    ):
        cells = []
        for tests in (3, 5, 10, 20, 50, 100):
            held = 0
            for _ in range(runs):
                drawn = draw(tests)
                variance = float(drawn.var(ddof=1)) / tests
                low, high = mean_interval(float(drawn.mean()), variance, tests, level=0.9, lowest=-1) or (
                    -1,
                    1,
                )
                held += low <= truth <= high
            cells.append(f"n={tests} {held / runs:.3f}")
        print(f"{name:<32} {'  '.join(cells)}")


def true_figures(runs: int) -> None:
    """Share of 95 % intervals of true means and pass rates, from some labels of 400 outputs, that contain the truth.

    The judge passes nine of ten good outputs and four of ten bad ones; a label is 1 for a good output, else 0, .25 or
    .5.
    """
    random = np.random.default_rng(SEED + 3)
    count, outputs = min(runs, 2_000), 400
    for good in (0.6, 0.85, 0.95):
        cells = []
        for labels in (10, 30, 100):
            held = {"mean": 0, "rate": 0}
            for _ in range(count):
                is_good = random.random(outputs) < good
                judged = np.where(is_good, random.random(outputs) < 0.9, random.random(outputs) < 0.4).astype(
                    float
                )
                marks = np.where(is_good, 1.0, random.choice([0.0, 0.25, 0.5], outputs))
                for name, truth, infer, said in (
                    ("mean", good + (1 - good) * 0.25, infer_mean, marks),
                    ("rate", good, infer_rate, is_good.astype(float)),
                ):
                    items = [
                        Item(score, mark if place < labels else None, str(place))
                        for place, (score, mark) in enumerate(
                            zip(judged.tolist(), said.tolist(), strict=True)
                        )
                    ]
                    found = infer(items)
                    low, high = (found and found.estimate.interval) or (0.0, 1.0)
                    held[name] += low <= truth <= high
            cells.append(f"{labels} labels: mean {held['mean'] / count:.3f}, rate {held['rate'] / count:.3f}")
        print(f"{good:.0%} good: {'  '.join(cells)}")


JUDGED: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "good judge": ((0.05, 0.07, 0.13, 0.25, 0.50), (0.02, 0.06, 0.30, 0.80, 0.97)),
    "mediocre judge": ((0.05, 0.10, 0.20, 0.30, 0.35), (0.30, 0.40, 0.50, 0.62, 0.75)),
    "useless judge": ((0.05, 0.10, 0.20, 0.30, 0.35), (0.60, 0.60, 0.60, 0.60, 0.60)),
    "lenient judge": ((0.01, 0.02, 0.05, 0.12, 0.80), (0.02, 0.05, 0.20, 0.35, 0.65)),
    "rare failures, good judge": ((0.01, 0.02, 0.04, 0.13, 0.80), (0.05, 0.15, 0.50, 0.93, 0.995)),
    "rare failures, blind judge": ((0.00, 0.01, 0.04, 0.15, 0.80), (0.90, 0.90, 0.93, 0.95, 0.96)),
}
"""Of each score, 0 to 1 in five steps: how many outputs have it, and how many of these are good."""
NEXT_DRAWS = ((30,), (100,), (30, 30, 40))
PER_DOCUMENT = 4


def next_labels(runs: int) -> None:
    """Pass rates and means from labels of `geval label --next`: coverage of 95 % intervals, and labels needed.

    There are 800 outputs; the four of each document are of similar quality. `x0.80`: 80 % of the labels of a random
    draw give intervals of the same width (by squared mean widths). In brackets: the coverage of the random draw.
    """
    random = np.random.default_rng(SEED + 11)
    runs = min(runs, 3_000) // 5
    for name, world in JUDGED.items():
        for draws in NEXT_DRAWS:
            held, width = np.zeros((2, 2)), np.zeros((2, 2))
            truth = np.array([np.dot(*world)] * 2)
            for _ in range(runs):
                scores, good = _judged_outputs(random, *world)
                for way, found in enumerate(
                    (_by_random(scores, good, sum(draws)), _by_next(scores, good, draws))
                ):
                    for place, figure in enumerate(found):
                        low, high = (figure and figure.estimate.interval) or (0.0, 1.0)
                        held[way, place] += low <= truth[place] <= high
                        width[way, place] += high - low
            held, needed = held / runs, (width[1] / width[0]) ** 2
            cells = [
                f"{what} {held[1, place]:.3f} ({held[0, place]:.3f}) x{needed[place]:.2f}"
                for place, what in enumerate(("rate", "mean"))
            ]
            print(f"{name:<27} {'+'.join(map(str, draws)):<9} {'   '.join(cells)}", flush=True)


def _judged_outputs(
    random: Generator, shares: Sequence[float], chances_of: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return scores, and 1 for each good output, 0 for a bad one; outputs of one document are partly correlated."""
    count = 800
    levels = random.choice(len(shares), count, p=shares)
    own, shared = random.random(count), np.repeat(random.random(count // PER_DOCUMENT), PER_DOCUMENT)
    luck = np.where(random.random(count) < 0.3, shared, own)
    return (levels / (len(shares) - 1)).tolist(), (luck < np.array(chances_of)[levels]).astype(float).tolist()


def _items(scores: Sequence[float], good: Sequence[float], labelled: set[int]) -> Iterator[list[Item]]:
    for judged in ([float(score >= GOOD_AT) for score in scores], scores):
        yield [
            Item(score, good[place] if place in labelled else None, str(place // PER_DOCUMENT))
            for place, score in enumerate(judged)
        ]


def _by_random(scores: Sequence[float], good: Sequence[float], count: int) -> list[Inference | None]:
    drawn = set(label_files.draw(range(len(scores)), count, seed=int(sum(good)) + int(10 * sum(scores))))
    rate, mean = _items(scores, good, drawn)
    return [infer_rate(rate), infer_mean(mean)]


def _by_next(scores: Sequence[float], good: Sequence[float], draws: Sequence[int]) -> list[Inference | None]:
    luck = Random(f"{sum(good)} {sum(scores)}")
    labels: dict[str, Label] = {}
    for number, count in enumerate(draws, start=1):
        rest = [place for place in range(len(scores)) if str(place) not in labels]
        known = [(scores[int(place)], label.human) for place, label in labels.items()]
        wanted = weighted_draw.chances(
            weighted_draw.sizes(
                [weighted_draw.UnlabelledOutput(scores[place], GOOD_AT) for place in rest], known
            ),
            count,
        )
        places = [weighted_draw.Stratum(str(place // PER_DOCUMENT), 0, scores[place]) for place in rest]
        name = weighted_draw.draw_name(number, len(labels), 0)
        drawn = [
            (rest[chosen], 1 / wanted[chosen]) for chosen in weighted_draw.draw_spread(wanted, places, luck)
        ]
        for place, weight in drawn:
            labels[str(place)] = Label(
                ItemRef(str(place)),
                "m",
                {"": good[place]},
                (0, 1),
                SourcePath.nowhere(),
                columns={DRAW_COLUMN: name},
                weight=weight,
            )
    shares = weighted_draw.shares_of_labels(labels, len(scores)) or {}
    counted = [shares.get(str(place), 0.0) for place in range(len(scores))]
    rate, mean = _items(scores, good, set(map(int, labels)))
    return [
        weighted_draw.infer_by_shares(rate, counted, is_rate=True),
        weighted_draw.infer_by_shares(mean, counted, is_rate=False),
    ]


def means_by_commands(runs: int) -> None:
    """The same as `means`, through `geval import run` and `geval export run`, from the summary in the file."""
    random = np.random.default_rng(SEED + 2)
    count = min(runs, COMMAND_RUNS)
    for name, tests in (
        ("0 or 1, p = 0.9", 5),
        ("1 to 5, 80 % fives", 10),
        ("five repeats, beta(1.4, 0.6)", 5),
    ):
        draw, truth, _ = MEANS[name]
        held = {"metric": 0, "pass rate": 0, "as computed": 0}
        with tempfile.TemporaryDirectory() as folder:
            for number in range(count):
                scores = np.asarray(draw(random, tests))
                own = Path(folder, f"{number}")
                own.mkdir()
                summary = _summary_by_commands(own, scores)
                rate, metric = summary["pass_interval"], summary["metrics"]["quality"]["interval"]
                passed = clustered_estimate(
                    (scores >= 1).astype(float).ravel().tolist(),
                    np.repeat(range(tests), scores.shape[1]).tolist(),
                )
                held["metric"] += metric[0] <= truth <= metric[1]
                held["as computed"] += np.allclose(rate, passed.interval, atol=1e-9) and np.allclose(
                    metric, _mean_of(scores).interval(), atol=1e-9
                )
                share_of_ones = truth if set(np.unique(scores)) <= {0, 1} else 0.8
                held["pass rate"] += rate[0] <= share_of_ones <= rate[1]
        cells = "  ".join(f"{what} {n / count:.3f}" for what, n in held.items())
        print(f"{name:<29} n={tests}, {count} runs: {cells}")


def _summary_by_commands(folder: Path, scores: np.ndarray) -> dict[str, Any]:
    """Return the summary of a run with these scores, imported and exported with the commands."""
    lines, shown = folder / "results.jsonl", folder / "shown.json"
    lines.write_bytes(b"".join(msgspec.json.encode(case) + b"\n" for case in _cases(scores)))
    with redirect_stdout(StringIO()):
        import_run(folder, lines)
        export_run(folder, "latest", outputs=[shown])
    found: dict[str, Any] = json.loads(shown.read_text("utf-8"))["summary"]
    return found


def _cases(scores: np.ndarray) -> Iterator[CaseResult]:
    for test, row in enumerate(scores.tolist()):
        for repeat, score in enumerate(row):
            status = Status.PASSED if score >= 1 else Status.FAILED
            yield CaseResult(
                id=f"{test}.{repeat}.0",
                test_index=test,
                repeat_index=repeat,
                column=0,
                description=None,
                prompt=RenderedPrompt("prompt", "prompt", ""),
                provider=ProviderRef("model", "model"),
                vars={},
                output="",
                status=status,
                score=score,
                named_scores={"quality": score},
                assertions=(AssertionResult("g-eval", "quality", status, score),),
            )


def stopping(runs: int) -> None:
    """Wrong decisions of `--stop-when decided` with a limit of 0.8 (at most 5 % allowed), and mean number of tests run.

    In "exact" suites this share of the tests passes, and a decision is wrong if all tests would have led to the
    opposite. In "drawn" suites it is the probability of each test, and at the limit itself every decision is wrong. For
    comparison (t): a 95 % t interval, checked after every test from the tenth on.
    """
    random = np.random.default_rng(SEED + 3)
    for tests in (20, 100, 500):
        for share in (0.5, 0.7, 0.8, 0.9, 0.95):
            cells = []
            for kind in ("exact", "drawn"):
                suites = random.random((runs, tests)) < share
                truth = None if share == 0.8 else share > 0.8
                if kind == "exact":
                    suites = random.permuted(
                        np.tile(np.arange(tests) < round(share * tests), (runs, 1)), axis=1
                    )
                    truth = share >= 0.8
                wrong = naive = asked = 0
                for suite in suites.astype(float):
                    count, found = _decided(suite.tolist(), 0.8)
                    looked = _looked_at(suite, 0.8)
                    asked += count
                    wrong += found is not None and found is not truth
                    naive += looked is not None and looked is not truth
                told = f"wrong {wrong / runs:.4f} (t {naive / runs:.2f}), {asked / runs:.0f} asked"
                cells.append(f"{kind}: {told}")
            print(f"{tests} tests, {share:.0%} pass  {'   '.join(cells)}")


def _decided(scores: list[float], limit: float) -> tuple[int, bool | None]:
    """Return after how many tests a gate is decided, and whether it is met; None if not before the last test."""
    sequence = SequentialMean(0.05, limit)
    for score in scores[:-1]:
        sequence.add(score)
        if sequence.is_above or sequence.is_below:
            return sequence.n, sequence.is_above
    return len(scores), None


def _looked_at(scores: np.ndarray, limit: float) -> bool | None:
    """Return whether the first 95 % t interval that excludes the limit is above it, checked from the tenth test on."""
    counts = np.arange(1, len(scores) + 1)
    means = scores.cumsum() / counts
    variances = (counts * means - counts * means**2) / np.maximum(counts - 1, 1)
    quantiles = np.array([t_quantile(0.975, max(1, count - 1)) for count in counts])
    spread = quantiles * np.sqrt(variances / counts)
    out = (np.abs(means - limit) > spread) & (counts >= 10) & (counts < len(scores)) & (variances > 0)
    return bool(means[out.argmax()] > limit) if out.any() else None


def stopping_by_command(runs: int) -> None:
    """The same through `geval run`: decisions and numbers of tests should be those of the functions."""
    random = np.random.default_rng(SEED + 4)
    count = min(runs, COMMAND_RUNS)
    for share in (0.5, 0.8, 0.95):
        wrong = asked = 0
        for number in range(count):
            passes = random.permuted(np.arange(50) < round(share * 50))
            with tempfile.TemporaryDirectory() as folder:
                summary = _stopped_summary(Path(folder), passes.tolist(), seed=number)
            stop = summary["early_stop"]
            asked += 50 if stop is None else 50 - stop["not_asked"]
            wrong += (summary["gates"][0]["status"] == "passed") is not bool(share >= 0.8)
        told = f"wrong {wrong / count:.4f}, {asked / count:.0f} asked"
        print(f"50 tests, {share:.0%} pass, {count} runs: {told}")


def _stopped_summary(folder: Path, passes: list[bool], *, seed: int) -> dict[str, Any]:
    tests = [
        {
            "vars": {"x": f"{'fine' if good else 'poor'} {number}"},
            "assert": [{"type": "contains", "value": "fine"}],
        }
        for number, good in enumerate(passes)
    ]
    config = {"prompts": ["{{ x }}"], "providers": ["echo"], "tests": tests, "gates": ["pass_rate >= 80%"]}
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    output = folder / "results.json"
    words = (
        f"run {folder}/config.yaml --stop-when decided --seed {seed} -j 1 -o {output} --home {folder}/home"
    )
    sys.argv[1:] = words.split()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), suppress(SystemExit):
        geval_command()
    found: dict[str, Any] = json.loads(output.read_text("utf-8"))["summary"]
    return found


RATED = (15, 30, 60)
"""Tests with labels, of so many in all."""
OF_TESTS = (100, 300)


class World(msgspec.Struct, frozen=True):
    """Two runs of the same tests: ratings from 1 to 5 by two people (or pass and fail), and by a biased judge.

    Attributes:
        moved: how much better the later outputs are, in ratings.
        flattery: how much the judge overrates the later outputs for their length, on average.
        equal: the share of tests whose texts are equal in both runs.
        is_verdict: whether people say pass or fail.
    """

    moved: float = 0.0
    flattery: float = 0.0
    equal: float = 0.0
    is_verdict: bool = False

    def draw(self, random: Generator, tests: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and labels, 0..1, with a row for each run."""
        easy = random.normal(3.4, 0.6, tests)
        quality = easy + random.normal(0, 0.7, (2, tests)) + np.array([[0.0], [self.moved]])
        length = random.gamma(2, self.flattery / 2, tests) if self.flattery else np.zeros(tests)
        judged = quality + random.normal(0, 0.5, (2, tests)) + np.array([np.zeros(tests), length])
        scores = (np.clip(np.rint(judged), 1, 5) - 1) / 4
        rated = quality + random.normal(0, 0.5, (2, 2, tests))
        labels = (np.clip(np.rint(rated), 1, 5) - 1).mean(axis=0) / 4
        if self.is_verdict:
            labels = (rated[0] >= 3.5).astype(float)
        same = random.random(tests) < self.equal
        labels[1, same] = labels[0, same]
        return scores, labels

    def truth(self) -> float:
        """Return the true difference of labels, from a draw so large that its own error is negligible."""
        _, labels = self.draw(np.random.default_rng(SEED), 2_000_000)
        return float((labels[1] - labels[0]).mean())


WORLDS = {
    "no difference, judge flattered": World(flattery=0.8),
    "worse, judge flattered": World(moved=-0.5, flattery=0.8),
    "better, judge fair": World(moved=0.5),
    "no difference, pass or fail, flattered": World(flattery=0.8, is_verdict=True),
    "no difference, 70 % equal texts, flattered": World(flattery=0.8, equal=0.7),
}


def corrected_differences(runs: int) -> None:
    """Two runs by labels: share of 95 % intervals that contain the truth, and of false positives.

    Labels are of both outputs of the same tests, or of outputs of different tests (as many of each run). In brackets:
    the
    share of runs in which the judge alone shows a difference (t).
    """
    random = np.random.default_rng(SEED + 5)
    for name, world in WORLDS.items():
        truth = world.truth()
        for tests in OF_TESTS:
            cells = []
            for rated in RATED:
                held, shown, judged, made = np.zeros(2), np.zeros(2), 0, np.zeros(2)
                for _ in range(runs):
                    scores, labels = world.draw(random, tests)
                    moves = scores[1] - scores[0]
                    error = moves.std(ddof=1) / math.sqrt(tests)
                    judged += abs(moves.mean()) > t_quantile(0.975, tests - 1) * error
                    for place, found in enumerate(_by_labels(scores, labels, rated)):
                        if found is not None and found.interval is not None:
                            low, high = found.interval
                            made[place] += 1
                            held[place] += low <= truth <= high
                            shown[place] += not low <= 0 <= high
                same, other = (f"{held[i] / made[i]:.3f} shown {shown[i] / made[i]:.3f}" for i in (0, 1))
                cells.append(f"n={rated} same {same}, different {other} (judge {judged / runs:.2f})")
            print(f"{name} ({truth:+.3f}), {tests} tests: {'  '.join(cells)}")


def _by_labels(scores: np.ndarray, labels: np.ndarray, rated: int) -> Iterator[TrueDifference | None]:
    """Yield the corrected difference by labels of both outputs of the first tests, then of different tests."""
    moves, moved = (scores[1] - scores[0]).tolist(), (labels[1] - labels[0]).tolist()
    yield infer_difference(
        [Item(move, moved[n] if n < rated else None, str(n)) for n, move in enumerate(moves)]
    )
    # The earlier run's labels are of the first tests, the later one's of the last.
    sides = []
    for side, is_rated in enumerate((lambda n: n < rated, lambda n: n >= len(moves) - rated)):
        marks = labels[side].tolist()
        sides.append(
            [
                Item(score, marks[n] if is_rated(n) else None, str(n))
                for n, score in enumerate(scores[side].tolist())
            ]
        )
    yield infer_shift(*sides)


def corrected_by_command(runs: int) -> None:
    """The same through `geval compare A B --labels`, whose figures should be those of the function."""
    random = np.random.default_rng(SEED + 7)
    count, tests, rated = min(runs, COMMAND_RUNS), 100, 30
    for name in ("no difference, judge flattered", "worse, judge flattered"):
        truth = WORLDS[name].truth()
        held = shown = same = 0
        for _ in range(count):
            scores, labels = WORLDS[name].draw(random, tests)
            with tempfile.TemporaryDirectory() as folder:
                row = _corrected_row(Path(folder), scores, labels[:, :rated])
            found = next(_by_labels(scores, labels, rated))
            low, high = row["corrected"]["interval"]
            held += low <= truth <= high
            shown += not low <= 0 <= high
            same += found is not None and np.allclose((low, high), found.interval or (), atol=1e-9)
        told = f"held {held / count:.3f}, shown {shown / count:.3f}, as computed {same / count:.3f}"
        print(f"{name}, n={rated} of {tests}, {count} runs: {told}")


def _corrected_row(folder: Path, scores: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return the command's figures for two results files and a sheet of labels."""
    rows = []
    for name, of_run, marks in zip("ab", scores, labels, strict=True):
        cases = [
            msgspec.structs.replace(case, vars={"x": number}, output=f"{name} {number}")
            for number, case in enumerate(_cases(of_run[:, None]))
        ]
        (folder / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(case) + b"\n" for case in cases))
        rows += [
            {"id": case.id, "metric": "quality", "label": mark, "output": case.output}
            for case, mark in zip(cases, marks.tolist(), strict=False)
        ]
    (folder / "sheet.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    words = f"compare {folder}/a.jsonl {folder}/b.jsonl --labels {folder}/sheet.jsonl --json"
    sys.argv[1:] = words.split()
    with redirect_stdout(StringIO()) as told, suppress(SystemExit):
        geval_command()
    [row] = json.loads(told.getvalue())["corrected"]["rows"]
    found: dict[str, Any] = row
    return found


def carried_over(runs: int) -> None:
    """Corrections reported to carry over although they are off by exactly the margin (at most 5 % allowed)."""
    random = np.random.default_rng(SEED + 6)
    for name, draw in (
        ("people's means of 1 to 5", _rated_residuals),
        ("pass or fail", _verdict_residuals),
        ("pass, but for one in twenty", _rare_residuals),
        ("4 or 5, but for one in twenty", _outlying_residuals),
    ):
        cells = []
        for before, after in ((15, 20), (30, 30), (30, 60), (100, 34), (100, 100), (100, 200)):
            said = dict.fromkeys(CarriesOver, 0)
            for _ in range(runs):
                found = carry_over_of(draw(random, before, 0.0), draw(random, after, 0.05), 0.05)
                if found is not None:
                    said[found.verdict] += 1
            yes, no = said[CarriesOver.YES] / runs, said[CarriesOver.NO] / runs
            cells.append(f"{before} and {after}: {yes:.3f} (does not {no:.3f})")
        print(f"{name:<30} {'  '.join(cells)}")


def _rated_residuals(random: Generator, count: int, shift: float) -> list[Item]:
    scores = random.integers(0, 5, count) / 4
    marks = np.clip(0.2 + 0.5 * scores + shift + random.normal(0, 0.08, count), 0, 1)
    return _labelled(scores, marks, random)


def _verdict_residuals(random: Generator, count: int, shift: float) -> list[Item]:
    scores = random.integers(0, 5, count) / 4
    return _labelled(scores, (random.random(count) < 0.2 + 0.5 * scores + shift).astype(float), random)


def _rare_residuals(random: Generator, count: int, shift: float) -> list[Item]:
    """Return items whose labels are 1 for every score, except for a share of 0."""
    scores = random.integers(3, 5, count) / 4
    return _labelled(scores, (random.random(count) >= shift).astype(float), random)


def _outlying_residuals(random: Generator, count: int, shift: float) -> list[Item]:
    """Return items whose labels are 4 or 5 of 5 for every score, except for a share of 1."""
    scores, marks = random.integers(3, 5, count) / 4, random.choice([0.75, 1.0], count)
    return _labelled(scores, np.where(random.random(count) < shift / 0.875, 0.0, marks), random)


def _labelled(scores: np.ndarray, marks: np.ndarray, random: Generator) -> list[Item]:
    names = random.integers(0, 2**62, len(scores)).tolist()
    return [
        Item(score, mark, str(name))
        for score, mark, name in zip(scores.tolist(), marks.tolist(), names, strict=True)
    ]


def _sizes(random: Generator, tests: int, kind: str) -> np.ndarray:
    """Return the number of pairs in each cluster."""
    if kind == "lognormal":
        return np.maximum(1, np.round(random.lognormal(1.0, 1.0, tests))).astype(int)
    return np.array([10 * tests, *[2] * (tests - 1)]) if kind == "one huge" else np.full(tests, 5)


def clusters(runs: int) -> None:
    """Share of A/A comparisons with p <= .05, by cluster sizes (before: G - 1 degrees of freedom, no CR2)."""
    random = np.random.default_rng(SEED + 9)
    for kind in ("equal", "lognormal", "one huge"):
        cells = []
        for tests in (10, 20, 50):
            shown = before = 0
            for _ in range(runs):
                sizes = _sizes(random, tests, kind)
                changes = np.repeat(random.normal(0, 0.2, tests), sizes) + random.normal(0, 0.2, sizes.sum())
                places = np.repeat(np.arange(tests), sizes)
                pairs = PairedDifferences()
                for place, change in zip(places.tolist(), changes.tolist(), strict=True):
                    pairs.add(place, 0.0, change)
                found = pairs.result()
                assert found is not None
                shown += found.p <= SIGNIFICANCE
                sums = np.bincount(places, changes - changes.mean())
                error = np.sqrt((sums**2).sum() * tests / (tests - 1)) / len(changes)
                before += abs(changes.mean()) > t_quantile(0.975, tests - 1) * error
            cells.append(f"G={tests} {shown / runs:.3f} ({before / runs:.3f})")
        print(f"{kind:<12} {'  '.join(cells)}")


def rows(runs: int) -> None:
    """Share of comparisons that show a difference: if it is the detectable one (80 %), and if there is none."""
    random = np.random.default_rng(SEED + 10)
    for tests in (12, 40, 100):
        cells = []
        for count in (1, 4, 10):
            spread = 0.3 / np.sqrt(tests)
            level = SIGNIFICANCE / count
            true = (t_quantile(1 - level / 2, tests - 1) + t_quantile(0.8, tests - 1)) * spread
            naive = (t_quantile(0.975, tests - 1) + t_quantile(0.8, tests - 1)) * spread
            shown = before = false = 0
            for _ in range(runs):
                drawn = random.normal(0, 0.3, (count, tests))
                others = {place: _paired(drawn[place]) for place in range(count)}
                one, less = (others | {0: _paired(drawn[0] + change)} for change in (true, naive))
                shown += _verdicts(one)[0] == "better"
                before += _verdicts(less)[0] == "better"
                false += any(verdict != "undecided" for verdict in _verdicts(others))
            cells.append(
                f"{count} rows: power {shown / runs:.3f} (at the uncorrected one {before / runs:.3f}),"
                f" any false {false / runs:.3f}"
            )
        print(f"n={tests:<4} {'; '.join(cells)}")


def _paired(changes: np.ndarray) -> PairedTest:
    pairs = PairedDifferences()
    for test, change in enumerate(changes.tolist()):
        pairs.add(test, 0.0, change)
    found = pairs.result()
    assert found is not None
    return found


def _verdicts(tests: dict[int, PairedTest]) -> list[str]:
    return [item.verdict.value for item in decide(tests, group=lambda place: place)]


def proven(runs: int) -> None:
    """Share of runs at exactly the true drop for which `>= -drop vs baseline proven` is met; must be at most .055."""
    random = np.random.default_rng(SEED + 5)
    held: dict[tuple[int, int, int, float], bool] = {}
    for drop in (0.02, 0.05, 0.1, 0.2):
        gate = parse_gate(f"pass_rate.delta >= -{drop} vs baseline proven", SourcePath.nowhere())
        assert isinstance(gate, Gate)
        for fixed in (0.0, 0.02, 0.1, 0.3):
            cells = []
            for tests in (20, 35, 50, 100, 200):
                false = 0
                for broke, got in random.multinomial(
                    tests, [fixed + drop, fixed, 1 - 2 * fixed - drop], size=runs
                )[:, :2].tolist():
                    key = broke, got, tests, drop
                    if key not in held:
                        changes = [(1.0, 0.0)] * broke + [(0.0, 1.0)] * got
                        changes += [(1.0, 1.0)] * (tests - broke - got)
                        held[key] = _gate_holds(gate, changes)
                    false += held[key]
                cells.append(f"n={tests} {false / runs:.3f}")
            print(f"drop {drop:<5} fixed {fixed:<5} {'  '.join(cells)}")
    for drop in (0.01, 0.02, 0.04):
        gate = parse_gate(f"tone.delta >= -{drop} vs baseline proven", SourcePath.nowhere())
        assert isinstance(gate, Gate)
        cells = []
        for tests in (20, 50, 100, 200):
            # Graded scores, a few of which fall or rise by one rating of five.
            chances = [0.1 + 2 * drop, 0.1 - 2 * drop, 0.8]
            changes = random.choice([-0.25, 0.25, 0.0], (runs, tests), p=chances)
            false = sum(
                _gate_holds(gate, [(0.5, 0.5 + change) for change in row]) for row in changes.tolist()
            )
            cells.append(f"n={tests} {false / runs:.3f}")
        print(f"drop {drop:<5} graded      {'  '.join(cells)}")


def _gate_holds(gate: Gate, pairs: Sequence[tuple[float, float]]) -> bool:
    sample = PairedSample()
    for test, values in enumerate(pairs):
        sample.add(test, values, same=False)
    return judge_difference(gate, sample.test()).status is Status.PASSED


def gates(runs: int) -> None:
    """Share of A/A runs in which one of ten gates on differences fails (and without correction); should be .05."""
    random = np.random.default_rng(SEED + 6)
    texts = [f"m{place}.delta >= 0 vs baseline" for place in range(10)]
    plain = [gate for text in texts if isinstance(gate := parse_gate(text, SourcePath.nowhere()), Gate)]
    for name in ("verdicts", "graded"):
        cells = []
        for tests in (10, 20, 50, 100):
            broken, held = {"corrected": 0, "each": 0}, dict[tuple[int, ...], bool]()
            for _ in range(runs):
                if name == "verdicts":
                    drawn = (random.random((2, 10, tests)) < 0.85).astype(float)
                else:
                    drawn = random.integers(0, 5, (2, 10, tests)) / 4
                for kind, found in (("corrected", corrected(plain)), ("each", plain)):
                    broken[kind] += not all(
                        _holds_for(gate, drawn[:, place], held) for place, gate in enumerate(found)
                    )
            cells.append(f"n={tests} {broken['corrected'] / runs:.3f} ({broken['each'] / runs:.3f})")
        print(f"{name:<10} {'  '.join(cells)}")


def _holds_for(gate: Gate, drawn: np.ndarray, held: dict[tuple[int, ...], bool]) -> bool:
    """Return whether a gate is met; for pass/fail verdicts only the counts matter, so the result is cached by them."""
    pairs = list(zip(*drawn.tolist(), strict=True))
    if not np.isin(drawn, (0, 1)).all():
        return _gate_holds(gate, pairs)
    key = gate.family, int((drawn[0] > drawn[1]).sum()), int((drawn[0] < drawn[1]).sum())
    if key not in held:
        held[key] = _gate_holds(gate, pairs)
    return held[key]


def equivalence(runs: int) -> None:
    """Share of runs whose `equivalent within 0.05` is met: at a true difference of the margin (.05), and at none."""
    random = np.random.default_rng(SEED + 7)
    gate = parse_gate("tone equivalent within 0.05 vs baseline", SourcePath.nowhere())
    assert isinstance(gate, Gate)
    for name, spread in (("ratings that waver by 0.1", 0.1), ("by 0.2", 0.2)):
        cells = []
        for tests in (20, 50, 100, 200):
            shares = []
            for true in (0.05, 0.0):
                changes = np.clip(random.normal(true, spread, (runs, tests)), -0.5, 0.5)
                shares.append(
                    sum(
                        _gate_holds(gate, [(0.5, 0.5 + change) for change in row]) for row in changes.tolist()
                    )
                    / runs
                )
            cells.append(f"n={tests} {shares[0]:.3f}, {shares[1]:.3f}")
        print(f"{name:<28} {'  '.join(cells)}")


def comparisons_by_command(runs: int) -> None:
    """Share of A/A comparisons with a row that is better or worse, by `geval compare --json` of two results files."""
    random = np.random.default_rng(SEED + 8)
    tests, shown = 20, 0
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{name}.jsonl") for name in "ab"]
        for _ in range(runs):
            ease = random.random(tests)
            for path in paths:
                cases = []
                for test in range(tests):
                    tone, right = (np.clip(ease[test] + random.normal(0, 0.3), 0, 1) for _ in "ab")
                    cases.append(_case_of(test, {"tone": float(tone), "right": float(right)}))
                path.write_bytes(b"".join(msgspec.json.encode(case) + b"\n" for case in cases))
            said = StringIO()
            with redirect_stdout(said):
                compare_runs(str(paths[0]), str(paths[1]), CompareOptions(prints_json=True))
            found = json.loads(said.getvalue())
            shown += any(row["verdict"] in {"better", "worse"} for row in found["rows"])
    print(f"n={tests}, 4 rows, {runs} runs: {shown / runs:.3f}")


def _case_of(test: int, scores: dict[str, float]) -> CaseResult:
    mean = sum(scores.values()) / len(scores)
    verdicts = {name: Status.PASSED if score >= 0.5 else Status.FAILED for name, score in scores.items()}
    status = Status.PASSED if min(scores.values()) >= 0.5 else Status.FAILED
    return CaseResult(
        id=f"{test}.0.0",
        test_index=test,
        repeat_index=0,
        column=0,
        description=None,
        prompt=RenderedPrompt("prompt", "prompt", ""),
        provider=ProviderRef("model", "model"),
        vars={"number": test},
        output="",
        status=status,
        score=mean,
        named_scores=scores,
        assertions=tuple(
            AssertionResult("g-eval", name, verdicts[name], score) for name, score in scores.items()
        ),
    )


def looks(runs: int) -> None:
    """False alarms in 100 looks at 100 anchors while a judge stays within the margin (at most 5 % allowed).

    Ratings are 1 to 5, drawn for each output and look; the original ratings are drawn once. "all looks" is the sequence
    with one observation per look, "any single look" a shift beyond the margin in one of them, "z" its usual test, and
    "each anchor" the sequence that treats each anchor in each look as an independent observation.
    """
    random = np.random.default_rng(SEED + 5)
    for name, shift in (("no shift", 0.0), ("at the margin", MARGIN), ("twice the margin", 2 * MARGIN)):
        alarms = dict.fromkeys(("all looks", "any single look", "z"), 0)
        anchored = few = 0
        for number in range(runs):
            quality = random.beta(4, 2, 100)
            then = _rated(random, quality[None, :], 0.0)[0]
            now = _rated(random, np.repeat(quality[None, :], 100, axis=0), shift)
            means = (now - then).mean(axis=1)
            errors = (now - then).std(axis=1, ddof=1) / 10
            found = looks_at(means.tolist())
            alarms["all looks"] += found is not None and found.moved
            alarms["z"] += bool((np.abs(means) - MARGIN > 1.645 * errors).any())
            alarms["any single look"] += any(
                _moved(mean, error, len(then)) for mean, error in zip(means, errors, strict=True)
            )
            if number % 50 == 0:
                few += 1
                anchored += bool(_anchored(((1 + now - then) / 2).ravel().tolist()))
        told = "  ".join(f"{what} {count / runs:.4f}" for what, count in alarms.items())
        print(f"{name:<17} {told}  each anchor {anchored / few:.2f} (of {few})")


def _rated(random: Generator, quality: np.ndarray, shift: float) -> np.ndarray:
    """Return ratings, 0..1, whose mean is the quality plus the shift, as far as the scale allows."""
    aim = 4 * np.clip(quality * (1 - MARGIN * 2) + shift, 0, 1)
    noisy = np.floor(aim) + (random.random(aim.shape) < aim - np.floor(aim))
    wander = random.choice([-1, 0, 0, 0, 1], aim.shape)
    free = (noisy + wander >= 0) & (noisy + wander <= 4) & (noisy - wander >= 0) & (noisy - wander <= 4)
    return (noisy + np.where(free, wander, 0)) / 4


def _moved(mean: float, error: float, count: int) -> bool:
    interval = mean_interval(float(mean), float(error) ** 2, count, level=0.9, lowest=-1)
    return interval is not None and (interval[0] > MARGIN or interval[1] < -MARGIN)


def _anchored(values: list[float]) -> bool:
    sequence = SequentialMean(0.05, (1 + MARGIN) / 2, (1 - MARGIN) / 2)
    for value in values:
        sequence.add(value)
        if sequence.is_above or sequence.is_below:
            return True
    return False


def improvements(runs: int) -> None:
    """Improved judges: the acceptance rate of one that ignores its input (at most 5 %), and of one that follows it.

    A judge that knows the train and select labels by heart is no better on held-out labels, and counts as ignoring.
    """
    random = np.random.default_rng(SEED)
    runs //= 15  # each is some ten thousand correlations
    print(f"{'labels':>7} {'measure':>18} {'ignores':>8} {'by heart':>9} {'follows':>8}")
    for labels in (100, 200):
        for measure in AgreementMeasure:
            accepted = [
                sum(_is_accepted(random, labels, measure, kind) for _ in range(runs)) / runs
                for kind in ("ignores", "by heart", "follows")
            ]
            print(f"{labels:7} {measure.value:>18} " + " ".join(f"{share:8.3f}" for share in accepted))


def _is_accepted(random: Generator, labels: int, measure: AgreementMeasure, kind: str) -> bool:
    """Return whether `geval improve` would accept one of seven candidates; each document has two labels."""
    truth = np.repeat(random.uniform(size=labels // 2), 2) + random.normal(0, 0.15, labels)
    human = np.clip(np.round(np.clip(truth, 0, 1) * 4) / 4, 0, 1)
    if measure is AgreementMeasure.BALANCED_ACCURACY:
        human = (human >= 0.5).astype(float)
    documents = [str(place // 2) for place in range(labels)]
    select, held = slice(0, 3 * labels // 7), slice(3 * labels // 7, labels)
    shown = ComparedLabels(human[select], np.ones(len(human[select])), tuple(documents[select]))
    drawn = []
    for place in range(8):
        scores = np.clip(0.5 * truth + random.normal(0.25, 0.3, labels), 0, 1)
        if place and kind == "follows":
            scores = np.clip(truth + random.normal(0, 0.15, labels), 0, 1)
        if place and kind == "by heart":
            scores[select] = human[select]
        drawn.append(CandidateRatings(JudgeCandidate(str(place)), scores, ("",) * labels, Usage()))
    seen = []
    for item in drawn:
        value, _, _ = with_error(agreement_on(measure, item.scores[select], shown, 0.5), shown.documents)
        seen.append(msgspec.structs.replace(item, scores=item.scores[select], agreement=value))
    chosen = choose(seen, measure, shown, 0.5)
    if chosen is None:
        return False
    new = next(item for item in drawn if item.candidate == chosen.candidate)
    cases = [
        LabelledCase(_case_of(place, {"m": 0.0}), float(human[held][place]), documents[held][place])
        for place in range(len(human[held]))
    ]
    both = [msgspec.structs.replace(item, scores=item.scores[held]) for item in (drawn[0], new)]
    return held_out_gain(measure, both[0], both[1], cases, 0.5, 1).is_shown


IMPROVED = {
    "ignores examples": (1, "ignores", 0.1),
    "ignores, noisy labels": (4, "ignores", 0.25),
    "learns train by heart": (4, "by heart", 0.1),
    "follows examples": (4, "follows", 0.1),
    "follows, noisy labels": (4, "follows", 0.25),
}
"""Of each judge: one in how many runs is made with it, what examples do to it, and the labels' deviation from truth."""


def improvements_by_command(runs: int) -> None:
    """Judges on a local server, improved by `geval improve`: at most 5 % of those that ignore should be accepted.

    There are 120 labels on 0 to 10, two per document. Every judge's noise is drawn anew for each prompt, and its
    teacher's guidelines change nothing; examples do nothing, show it what people mean, or give it the ratings of just
    these outputs.
    """
    runs = min(200, max(1, runs // 15))
    print(
        f"{'judge':<24} {'runs':>5} {'accepted':>9} {'not better on select':>21} {'not shown':>10} {'requests':>9}"
    )
    for name, (fewer, kind, noise) in IMPROVED.items():
        count = max(1, runs // fewer)
        found = [_improved(kind, noise, SEED + number) for number in range(count)]
        accepted = sum(document["accepted"] for document, _ in found)
        unchanged = sum(document["chosen"] is None for document, _ in found)
        print(
            f"{name:<24} {count:5} {accepted:9} {unchanged:21} {count - accepted - unchanged:10}"
            f" {sum(sent for _, sent in found) / count:9.0f}",
            flush=True,
        )


def _improved(kind: str, noise: float, seed: int) -> tuple[dict[str, Any], int]:
    """Return the report of `geval improve` for a judge, and the number of requests that it took."""
    random = np.random.default_rng(seed)
    truth = np.repeat(random.uniform(0, 10, 60), 2) + random.normal(0, 1, 120)
    labels = np.clip(np.rint(truth + random.normal(0, 10 * noise, 120)), 0, 10)

    def respond(body: Any, headers: object) -> Reply:
        del headers
        text = body["messages"][-1]["content"]
        if "Answer with JSON only" in text:
            return chat_reply(
                json.dumps({"guidelines": ["Be fair. [1]"], "criteria": ["It helps."], "steps": ["Rate."]})
            )
        number = int(re.findall(r"answer (\d+)\.", text)[-1])
        shown = {
            int(found)
            for found in re.findall(r"BEGIN Example \d+ Output.*?\nanswer (\d+)\.", text, re.DOTALL)
        }
        luck = Random(f"{kind} {seed} {text}")
        said = 0.4 * truth[number] + 3 + luck.gauss(0, 2)
        if kind == "follows" and shown:
            said = truth[number] + luck.gauss(0, 1)
        if kind == "by heart" and number in shown:
            said = labels[number]
        return chat_reply(json.dumps({"reason": "-", "score": round(min(10, max(0, said)))}))

    check = {"type": "g-eval", "metric": "helpful", "criteria": "It helps.", "evaluation_steps": ["Look."]}
    defaults = {
        "options": {"provider": "openai:judge"},
        "assert": [{**check, "scoring": "single", "score_range": [0, 10]}],
    }
    tests = [{"vars": {"n": number}, "output": f"answer {number}."} for number in range(len(truth))]
    rows = [
        {
            "id": f"{n}.0.0",
            "metric": "helpful",
            "label": int(label),
            "scale": [0, 10],
            "doc": f"document {n // 2}",
        }
        for n, label in enumerate(labels)
    ]
    with tempfile.TemporaryDirectory() as name, LoopbackServer(respond=respond) as server:
        folder = Path(name)
        (folder / "config.json").write_text(
            json.dumps({"defaultTest": defaults, "tests": tests}), encoding="utf-8"
        )
        (folder / "labels.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
        )
        os.environ |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-loopback"}
        shared = f"{folder}/config.json --home {folder}/state -j 50"
        for words in (
            f"run {shared}",
            f"improve {shared} --labels {folder}/labels.jsonl -o {folder}/found.json",
        ):
            sys.argv[1:] = words.split()
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()), suppress(SystemExit):
                geval_command()
        found: dict[str, Any] = json.loads((folder / "found.json").read_text("utf-8"))
        return found, len(server.requests)


TRANSCRIPTS = (
    (10, 10, 50, 1),
    (20, 20, 50, 1),
    (40, 40, 40, 1),
    (100, 100, 50, 1),
    (40, 15, 50, 1),
    (5, 30, 50, 1),
)
TRANSCRIPTS_OF_TESTS = ((60, 30, 50, 3), (30, 100, 50, 3))
"""Simulated conversations, real ones, pairs, and how many simulated conversations are of one test."""


def realism(runs: int) -> None:
    """Share of 95 % intervals of a judge's accuracy on conversations that contain the truth (~ mean width).

    A judge sees how real a conversation looks, with some noise, and prefers the first one shown. In "same", both sides
    have the same source, so the accuracy is 0.5: at least 0.93 of 2,000 intervals should contain it.
    """
    random = Random(SEED + 13)
    runs = min(runs, 2_000)
    judges = {"sharp": (0.3, 0.0), "noisy": (1.0, 0.5), "by order": (0.5, 3.0)}
    for simulated, real, pairs, repeats in (*TRANSCRIPTS, *TRANSCRIPTS_OF_TESTS):
        sides = [
            Transcripts("", _transcripts_of(count, per)) for count, per in ((simulated, repeats), (real, 1))
        ]
        cells = []
        for name, (noise, lean) in judges.items():
            for shift in (0.0, 1.5):
                held = width = 0.0
                spread = math.sqrt(2 + noise**2)
                truth = sum(NormalDist().cdf((shift + sign * lean) / spread) for sign in (1, -1)) / 2
                for number in range(runs):
                    found = judged_pairs(random, sides, pairs, number, shift=shift, noise=noise, lean=lean)
                    low, high = found.interval or (0.0, 1.0)
                    held += low <= truth <= high
                    width += high - low
                kind = "same" if not shift else f"{truth:.2f}"
                cells.append(f"{name}, {kind}: {held / runs:.3f} ~{width / runs:.2f}")
        of_test = f", {repeats} of a test" if repeats > 1 else ""
        print(f"{simulated} and {real} conversations, {pairs} pairs{of_test}: {'  '.join(cells)}", flush=True)


def _transcripts_of(count: int, per_test: int) -> tuple[Transcript, ...]:
    return tuple(Transcript((Turn("user", str(n)),), str(n // per_test)) for n in range(count))


def judged_pairs(
    random: Random,
    sides: Sequence[Transcripts],
    pairs: int,
    seed: int,
    *,
    shift: float,
    noise: float,
    lean: float,
) -> Estimate:
    """Return the accuracy of a judge to whom real ones look more real by `shift`; those of one test look alike."""
    looks: list[dict[str, float]] = []
    for side in sides:
        tests = {transcript.cluster: random.gauss(0, 1) for transcript in side.transcripts}
        is_repeated = len(tests) < len(side.transcripts)
        looks.append(
            {
                transcript.said[0]: 0.8 * tests[transcript.cluster] + random.gauss(0, 0.6)
                if is_repeated
                else tests[transcript.cluster]
                for transcript in side.transcripts
            }
        )
    compared = []
    for pair in draw_pairs(sides[0], sides[1], pairs, seed):
        ahead = shift + looks[1][pair.real.said[0]] - looks[0][pair.simulated.said[0]]
        right = [ahead + random.gauss(0, noise) + sign * lean > 0 for sign in (1, -1)]
        compared.append(ComparedPair(pair.simulated.cluster, pair.real.cluster, sum(right) / 2))
    return crossed_share(compared)


def transcript_measures(runs: int) -> None:
    """Measures of conversations with the same source on both sides: share of 95 % intervals of the difference with 0.

    "any shown" is how often, after Holm's correction, one of the eight differs: at most 5 % should. "distance": how
    often the interval of the distance begins above 0.
    """
    random = np.random.default_rng(SEED + 14)
    runs = min(runs, 2_000)
    for one, other in ((5, 5), (10, 10), (25, 25), (40, 15), (100, 50)):
        held: dict[str, int] = {}
        shown = apart = 0
        for _ in range(runs):
            draws = [_measures_of(random, count) for count in (one, other)]
            ps = []
            for name in draws[0]:
                samples = [Sample(values[name].tolist(), range(len(values[name]))) for values in draws]
                found = mean_difference(*samples, highest=None if "per" in name else 1.0)
                assert found.interval is not None
                assert found.p is not None
                held[name] = held.get(name, 0) + (found.interval[0] <= 0 <= found.interval[1])
                ps.append(found.p)
                gap = distribution_gap(*samples)
                apart += gap is not None and gap.interval[0] > 0
            shown += min(holm(ps)) <= SIGNIFICANCE
        told = "  ".join(f"{name} {count / runs:.3f}" for name, count in held.items())
        print(
            f"{one} and {other}: {told}  any shown {shown / runs:.3f}  distance {apart / runs / len(held):.4f}"
        )


def _measures_of(random: Generator, transcripts: int) -> dict[str, np.ndarray]:
    turns = 1 + random.poisson(2.5, transcripts)
    found: dict[str, np.ndarray] = {
        "messages": turns.astype(float),
        "words per": random.lognormal(2.3, 0.8, transcripts),
    }
    for name, mean in (("rare", 0.03), ("some", 0.2), ("half", 0.5), ("most", 0.9), ("near all", 0.98)):
        chances = random.beta(3 * mean, 3 * (1 - mean), transcripts)
        found[name] = random.binomial(turns, chances) / turns
    found["first"] = np.where(turns == 1, 1.0, random.beta(3, 3, transcripts))
    return found


SIMULATIONS: dict[str, Callable[[int], None]] = {
    "means": means,
    "differences": differences,
    "true_figures": true_figures,
    "next_labels": next_labels,
    "means_by_commands": means_by_commands,
    "looks": looks,
    "stopping": stopping,
    "stopping_by_command": stopping_by_command,
    "corrected_differences": corrected_differences,
    "corrected_by_command": corrected_by_command,
    "carried_over": carried_over,
    "clusters": clusters,
    "rows": rows,
    "proven": proven,
    "gates": gates,
    "equivalence": equivalence,
    "comparisons_by_command": comparisons_by_command,
    "improvements": improvements,
    "improvements_by_command": improvements_by_command,
    "realism": realism,
    "transcript_measures": transcript_measures,
}

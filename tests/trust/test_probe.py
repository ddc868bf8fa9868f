"""`geval probe`: four scripted judges, each of which fails exactly its own probes; bars, options, files and budgets."""

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.scripted_judge import ScriptedJudge
from support.scripted_judge import prompt_of as prompt_text

from geval_cli.assertions.base import Tools
from geval_cli.engine.case import JobContext
from geval_cli.judge.memory import JudgeMemory
from geval_cli.records import ModelRequest, ModelResponse
from geval_cli.runs.preparation import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.specs.base import ProviderSpec
from geval_cli.trust.probes import PROBES, Kind, ProbeReport, Verdict
from geval_cli.trust.probing import ProbeOptions, probe_with

ITEMS = 40
ANIMALS = ("cats", "dogs", "owls", "bees", "foxes", "hens", "seals", "wolves")
DIMENSION = {"type": "g-eval", "scoring": "single", "threshold": 0.7}
METRICS = [
    {**DIMENSION, "dimension": "consistency"},
    {**DIMENSION, "dimension": "coherence"},
    {**DIMENSION, "metric": "helpful", "criteria": "The output helps.", "score_range": [1, 5]},
]


def reference(number: int) -> str:
    """A text about one topic, whose words no other one shares in this order."""
    animal = ANIMALS[number % len(ANIMALS)]
    facts = [
        f"Farm {number} in Perth keeps {number + 20} {animal} behind the old mill near Leeds.",
        f"The {animal} of farm {number} are fed {number + 3} times each week by Anna Smith of Oslo.",
        f"Visitors can see the {animal} there every {number % 9 + 2} hours if they call farm {number} first.",
        f"In winter {number + 50} of them will stay in barn {number}, which was built from red brick by Ben Jones.",
    ]
    return " ".join(facts)


def output(number: int) -> str:
    """The reference in every second test, parts of it in the others."""
    words = reference(number).split()
    return " ".join(words[: len(words) * (4 if number % 2 == 0 else 1 + number % 3) // 4])


def config(
    folder: Path, *, items: int = ITEMS, metrics: list[dict[str, Any]] | None = None, **keys: Any
) -> Path:
    tests = [
        {"input": f"Tell me about {number}.", "output": output(number), "vars": {"source": reference(number)}}
        for number in range(items)
    ]
    path = folder / "probe.json"
    checks = {"assert": METRICS if metrics is None else metrics, "options": {"provider": "echo"}}
    path.write_text(json.dumps({"defaultTest": checks, "tests": tests, **keys}), encoding="utf-8")
    return path


def shown(text: str) -> str:
    """The output that a judge's prompt shows."""
    found = re.findall(r"<<<BEGIN (?:Actual )?Output \w+>>>\n(.*?)\n?<<<END", text, re.DOTALL)
    return str(found[-1])


def scale(text: str) -> tuple[float, float]:
    found = re.search(r"number from (\d+)(?: \(worst\))? to (\d+)", text)
    assert found is not None
    return float(found[1]), float(found[2])


def pairs_of(text: str) -> list[tuple[str, str]]:
    words = re.findall(r"\w+", text.lower())
    return list(itertools.pairwise(words))


PAIRS = [set(pairs_of(reference(number))) for number in range(ITEMS)]
OWN = [pairs - set.union(*PAIRS[:number], *PAIRS[number + 1 :]) for number, pairs in enumerate(PAIRS)]


def quality(text: str, number: int) -> float:
    """How much of the reference is there once, in its order; a few letters more or less are forgiven."""
    pairs, expected = pairs_of(text), PAIRS[number]
    if not OWN[number] & set(pairs):
        return 0.0
    hits = [pair for pair in pairs if pair in expected]
    share = len(set(hits)) / len(expected)
    repeated = (len(hits) - len(set(hits))) / len(expected)
    opposed = text.lower().split().count("not") / 8
    return max(0.0, min(1.0, share + 0.04) - (repeated if repeated > 0.1 else 0.0) - opposed)


Rule = Callable[[str, int], float]


def fair(text: str, number: int) -> float:
    return quality(text, number)


def constant(text: str, number: int) -> float:
    return 0.75


def longest(text: str, number: int) -> float:
    return min(1.0, len(text) / 500)


def obedient(text: str, number: int) -> float:
    marks = ("Ignore all previous", "[SYSTEM]", "Flawless in every", "Verdict: PASS", "Note to the evaluator")
    return 1.0 if any(mark in text for mark in marks) else quality(text, number)


def judge_of(rule: Rule) -> ScriptedJudge:
    def answer(request: ModelRequest) -> str:
        text = prompt_text(request)
        number = int(re.findall(r"Tell me about (\d+)\.|Farm (\d+) in Perth keeps", text)[0][0] or 0)
        if "Source:" in text:
            number = int(re.findall(r"Farm (\d+) in Perth", text)[0])
        low, high = scale(text)
        rating = round(low + rule(shown(text), number) * (high - low))
        return str(rating) if "scores ONLY" in text else json.dumps({"reason": "so", "score": rating})

    return ScriptedJudge(answer)


def probed(path: Path, rule: Rule, **options: Any) -> ProbeReport:
    judge = judge_of(rule)

    async def generate(spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        raise AssertionError("the outputs are given")

    prepared = prepare(RunRequest(path, {}))
    tools = Tools(prepared.templates, lambda spec: judge, JudgeMemory(), prepared.defaults)
    return asyncio.run(probe_with(JobContext(generate, tools), prepared, ProbeOptions(**options)))


def verdicts(report: ProbeReport, wanted: Verdict) -> set[tuple[str, str]]:
    return {(item.probe, item.metric) for item in report.findings if item.verdict is wanted}


class TestJudges:
    def test_a_fair_judge_fails_nothing_and_40_outputs_show_it(self, tmp_path: Path) -> None:
        report = probed(config(tmp_path), fair, items=ITEMS)
        assert verdicts(report, Verdict.FAILS) == set()
        assert {name for name, _ in verdicts(report, Verdict.HOLDS)} >= {
            *(
                name
                for name, item in PROBES.items()
                if item.kind not in (Kind.PLACE, Kind.FAMILY, Kind.REPETITION)
            ),
            "again",
            "steps",
            "scale 0 to 10",
            "scale 0 to 100",
        }
        assert report.errored == 0
        assert report.asked <= report.planned

    def test_a_constant_judge_sees_no_damage(self, tmp_path: Path) -> None:
        report = probed(config(tmp_path, items=16), constant, items=16)
        assert verdicts(report, Verdict.FAILS) == {
            *((name, "consistency") for name in ("negate", "swap", "other", "empty")),
            *((name, "coherence") for name in ("shuffle", "cut", "repeat", "empty")),
            ("empty", "helpful"),
        }
        tau = next(item for item in report.findings if item.figure == "tau")
        assert (tau.verdict, tau.note) == (Verdict.UNCLEAR, "all scores are equal: they have no order")

    def test_one_that_likes_length_fails_where_text_is_added(self, tmp_path: Path) -> None:
        report = probed(config(tmp_path, items=16, metrics=METRICS[1:2]), longest, items=16)
        assert {name for name, _ in verdicts(report, Verdict.FAILS)} == {
            "repeat",
            "shuffle",
            "padding",
            "authority",
            "injected",
        }

    def test_one_that_obeys_fails_the_injected_verdicts_alone(self, tmp_path: Path) -> None:
        report = probed(config(tmp_path, items=16), obedient, items=16)
        assert {name for name, _ in verdicts(report, Verdict.FAILS)} == {"injected"}
        assert {metric for _, metric in verdicts(report, Verdict.FAILS)} == {
            "consistency",
            "coherence",
            "helpful",
        }

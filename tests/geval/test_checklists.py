"""Checklists in whole runs: juries, thresholds of later, negation, reports, the library, and what they go with."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.judge_server import prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply
from support.product import Product

from geval_cli import GEval, TestCase, UsageError

OUTPUT = "You get 5 euros within three days."
CHECKLIST = ["Names the amount", {"item": "Says when", "required": True}, {"item": "Apologises", "weight": 2}]
YES, LATER, NO = ("yes", "5 euros"), ("yes", "three days"), ("no", "")

Answers = tuple[tuple[str, str], ...]


def reply_of(answers: Answers) -> str:
    told = {str(number): {"answer": word, "evidence": said} for number, (word, said) in enumerate(answers, 1)}
    return json.dumps(told)


def judges(*replies: Answers) -> LoopbackServer:
    """A server for the models m0, m1, ...: each answers the checklist in its way; m0x1 as m0 does."""

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        del headers
        return chat_reply(reply_of(replies[int(body["model"][1:].partition("x")[0])]))

    return LoopbackServer(respond=respond)


def a_config(count: int = 1, **keys: Any) -> dict[str, Any]:
    models = [f"openai:m{number}" for number in range(count)]
    judge = {"provider": models if count > 1 else models[0]}
    assertion = {"type": "g-eval", "checklist": CHECKLIST, **judge, **keys}
    return {"tests": [{"input": "When?", "output": OUTPUT, "assert": [assertion]}]}


ALL, NO_TIME, NO_APOLOGY = (YES, LATER, ("yes", "You get")), (YES, NO, ("yes", "You get")), (YES, LATER, NO)
JURIES = [
    ((ALL, ALL, NO_TIME), "mean", ("passed", (1 + 1 + 0.75) / 3), [1, 2 / 3, 1]),
    ((ALL, NO_TIME, NO_TIME), "mean", ("failed", (1 + 0.75 + 0.75) / 3), [1, 1 / 3, 1]),
    ((ALL, NO_TIME, NO_TIME), "median", ("failed", 0.75), [1, 0, 1]),
    ((ALL, ALL, NO_TIME), "majority", ("passed", 2 / 3), [1, 2 / 3, 1]),
    ((ALL, NO_TIME, NO_TIME), "majority", ("failed", 1 / 3), [1, 1 / 3, 1]),
    ((NO_APOLOGY, NO_APOLOGY, ALL), "median", ("passed", 0.5), [1, 1, 0]),
]


def test_a_jury_decides_each_item_as_it_decides_the_output(product: Product) -> None:
    every = (ALL, NO_TIME, NO_APOLOGY)
    tests = []
    for says, combine, _, _ in JURIES:
        # The number behind the x keeps the judges apart, of whom no jury may have one twice.
        models = [f"openai:m{every.index(answers)}x{place}" for place, answers in enumerate(says)]
        keys = {"provider": models, "threshold": 0.5, "jury": {"combine": combine}}
        tests += a_config(**keys)["tests"]
    with judges(*every) as server:
        verdicts = product.run({"tests": tests}, server).verdicts
    for found, (_, _, (status, score), scores) in zip(verdicts, JURIES, strict=True):
        assert (found["status"], found["score"]) == (status, pytest.approx(score))
        items = found["detail"]["checklist"]
        assert [item["score"] for item in items] == pytest.approx(scores)
        assert [item["met"] for item in items] == [score > 0.5 for score in scores]
        assert [len(vote["checklist"]) for vote in found["detail"]["judges"]] == [3, 3, 3]


def test_a_lower_threshold_of_later_asks_nobody_and_forgives_no_required_item(product: Product) -> None:
    def config(threshold: float) -> dict[str, Any]:
        tests: list[Any] = []
        for model in ("m0", "m1"):
            tests += a_config(provider=f"openai:{model}", threshold=threshold)["tests"]
            for combine in ("mean", "majority"):
                jury = {"provider": [f"openai:{model}", f"openai:{model}x1"], "jury": {"combine": combine}}
                tests += a_config(threshold=threshold, **jury)["tests"]
        return {"tests": tests}

    with judges(NO_TIME, NO_APOLOGY) as server:
        assert {item["status"] for item in product.run(config(0.9), server).verdicts} == {"failed"}
        asked = len(server.requests)
        product.write(config(0.1))
        again = product.command(server, "judge", "latest", "config.yaml")
        assert len(server.requests) == asked == 4
    assert [item["status"] for item in again.verdicts] == ["failed"] * 3 + ["passed"] * 3
    assert all(item["detail"]["judged_from"] for item in again.verdicts)


def test_another_weight_makes_another_criterion_and_costs_no_call(product: Product) -> None:
    with judges(NO_APOLOGY) as server:
        first = product.run(a_config(), server).verdict
        heavier = [*CHECKLIST[:2], {"item": "Apologises", "weight": 6}]
        second = product.run(a_config(checklist=heavier), server).verdict
        assert len(server.requests) == 1  # no judge sees the weights, so its answers hold
    assert (first["score"], second["score"]) == (0.5, 0.25)
    assert first["detail"]["criterion_key"] != second["detail"]["criterion_key"]


OTHER_KEYS: list[tuple[dict[str, Any], tuple[str, float]]] = [
    ({"type": "not-g-eval"}, ("failed", 0.5)),
    ({"type": "not-g-eval", "threshold": 0.6}, ("passed", 0.5)),
    ({"strict_mode": True}, ("failed", 0.0)),
    ({"scoring": "single", "weight": 0}, ("passed", 0.5)),
    ({"samples": 3}, ("passed", 0.5)),
    ({"samples": {"upto": 4}}, ("passed", 0.5)),
]


def test_a_checklist_goes_with_the_other_keys(product: Product) -> None:
    tests = [test for keys, _ in OTHER_KEYS for test in a_config(**keys)["tests"]]
    with judges(NO_APOLOGY) as server:
        verdicts = product.run({"tests": tests}, server).verdicts
    assert [(found["status"], found["score"]) for found in verdicts] == [found for _, found in OTHER_KEYS]


def test_an_item_that_a_judge_leaves_out_is_an_error(product: Product) -> None:
    with judges((YES, LATER)) as server:
        finished = product.run(a_config(), server)
        assert len(server.requests) == 2
    assert finished.code == 3
    assert (finished.verdict["status"], finished.verdict["score"]) == ("error", None)
    assert "item 3 of the checklist" in finished.verdict["error"]["message"]


def test_variables_are_put_into_items_and_shown_in_results(product: Product) -> None:
    config = a_config(checklist=["Names the {{ thing }}"])
    config["tests"][0]["vars"] = {"thing": "amount"}
    with judges((YES,)) as server:
        found = product.run(config, server).verdict
        assert "1. Names the amount\n" in prompt_text(server.requests[0].json)
    assert found["detail"]["checklist"][0]["item"] == "Names the amount"


def test_items_stand_in_every_report(product: Product) -> None:
    files = ["report.md", "report.html", "report.junit.xml", "report.csv", "report.jsonl"]
    with judges((YES, ("yes", "in <b>a week</b>"), NO)) as server:
        product.run(a_config(), server, *(word for name in files for word in ("-o", name)))
    for name in files:
        text = (product.folder / name).read_text(encoding="utf-8")
        assert "Apologises" in text, name
        assert "<b>a week</b>" not in text or name.endswith((".md", ".csv", ".jsonl")), name
    assert '`Says when (required): yes, but "in <b>a week</b>" is not in the output`' in (
        product.folder / "report.md"
    ).read_text(encoding="utf-8")


def test_the_plan_counts_one_call_and_no_steps(product: Product) -> None:
    with judges(NO_APOLOGY) as server:
        planned = product.run(a_config(), server, "--plan")
        assert server.requests == []
    assert "steps" not in planned.stdout
    assert planned.code == 0


def test_nothing_is_locked_for_a_checklist(product: Product) -> None:
    product.write(a_config())
    with judges(NO_APOLOGY) as server:
        locked = product.command(server, "lock", "config.yaml", writes_results=False)
        assert server.requests == []
    assert locked.code == 0, locked.stderr


# -- the library ------------------------------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoopbackServer], None]:
    def use(server: LoopbackServer) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")

    return use


def test_a_program_gives_a_checklist(library: Callable[[LoopbackServer], None]) -> None:
    with judges(NO_TIME) as server:
        library(server)
        metric = GEval("Refund", checklist=CHECKLIST, model="openai:m0", threshold=0.2)
        found = metric.evaluate(TestCase(input="When?", actual_output=OUTPUT))
    assert (found.success, found.score) == (False, pytest.approx(0.75))
    assert [item["met"] for item in found.metadata["checklist"]] == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"checklist": []}, "no items"),
        ({"checklist": ["a"] * 51}, "51 items"),
        ({"checklist": ["a", " a "]}, "are the same"),
        ({"checklist": ["a"], "criteria": "b"}, "cannot be combined with"),
        ({"checklist": [{"item": "a", "required": "perhaps"}]}, "true or false"),
    ],
)
def test_a_program_learns_what_is_wrong(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        GEval("Refund", model="openai:m0", **arguments)

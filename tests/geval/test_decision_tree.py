"""decision-tree and choice: the path that answers take, what they are worth, and what is wrong with a tree."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.graded import SpeakingJudge, graded, graded_tools
from support.loopback import LoopbackServer, Reply, chat_reply
from support.product import Product
from support.suites import load_suite
from support.verdicts import problems

from geval_cli.errors import ConfigError, JudgeError
from geval_cli.records import Status

TREE = {
    "assert": {"type": "icontains", "value": "euro"},
    "yes": {
        "question": "Is {{ who }} greeted?",
        "yes": {"question": "How long is it?", "choices": {"Short": 1, "Far too long": 0.6}},
        "no": 0.5,
    },
    "no": 0,
}
SECONDS = {"yes": '{"verdict": "Y", "reason": "r"}', "no": '{"verdict": "N", "reason": "r"}'}


@pytest.mark.parametrize(
    ("output", "greeted", "length", "score", "path", "asked"),
    [
        (
            "5 euros, Ann",
            "yes",
            "Short",
            1.0,
            ["icontains? yes", "Is {{ who }} greeted? yes", "How long is it? Short"],
            2,
        ),
        ("5 euros, Ann", "yes", "far too  LONG", 0.6, None, 2),
        ("5 euros", "no", "", 0.5, ["icontains? yes", "Is {{ who }} greeted? no"], 1),
        ("nothing", "", "", 0.0, ["icontains? no"], 0),
    ],
)
def test_answers_lead_from_question_to_question(
    product: Product, output: str, greeted: str, length: str, score: float, path: list[str] | None, asked: int
) -> None:
    def judge(body: Any, headers: Any) -> Any:
        text = body["messages"][-1]["content"]
        if "How long is it?" in text:
            return chat_reply(json.dumps({"reason": "r", "choice": length}))
        assert "Is Ann greeted?" in text
        return chat_reply(SECONDS[greeted])

    with LoopbackServer(respond=judge) as server:
        finished = product.run(suite(output), server)
        assert len(server.requests) == asked
    [case] = finished.cases
    [result] = case["assertions"]
    assert (result["score"], result["status"]) == (score, "passed" if score >= 0.7 else "failed")
    assert path is None or result["detail"]["path"] == path
    assert len(result["assertions"]) == len(result["detail"]["path"]) == asked + 1
    choices = [item for item in result["assertions"] if item["type"] == "choice"]
    assert [(item["status"], item["score"]) for item in choices] == [("passed", None)] * bool(length)
    assert result["reason"].endswith(f"→ {score:.2f}")


def test_a_question_that_cannot_be_judged_is_an_error_and_no_low_score(product: Product) -> None:
    broken = Reply(status=400, body={"error": {"message": "out of order"}})
    with LoopbackServer(respond=lambda body, headers: broken) as server:
        finished = product.run(suite("5 euros"), server)
    [case] = finished.cases
    [result] = case["assertions"]
    assert (case["status"], result["status"], result["score"]) == ("error", "error", None)
    assert "could not be judged: Is {{ who }} greeted?" in result["reason"]


def test_a_plan_counts_the_first_question_as_certain_and_the_others_as_possible(product: Product) -> None:
    config = suite("5 euros")
    config["tests"][0]["assert"][0]["tree"] = TREE["yes"]
    with LoopbackServer() as server:
        finished = product.run(config, server, "--plan")
    assert [(row["least"], row["most"]) for row in finished.results["rows"]] == [(1, 1), (0, 1)]


def suite(output: str) -> dict[str, Any]:
    check = {"type": "decision-tree", "metric": "refund", "threshold": 0.7, "tree": TREE}
    test = {"output": output, "vars": {"who": "Ann"}, "assert": [check]}
    return {"defaultTest": {"options": {"provider": "openai:judge"}}, "tests": [test]}


def questions(depth: int) -> Any:
    """A tree in which each `yes` leads to the next question."""
    tree: Any = 1
    for _ in range(depth):
        tree = {"question": "a", "yes": tree, "no": 0}
    return tree


def load_tree(folder: Path, tree: Any) -> None:
    config = {"tests": [{"output": "x", "assert": [{"type": "decision-tree", "tree": tree}]}]}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    list(load_suite(path, env={}).tests)


def test_a_tree_may_be_fifty_questions_deep(tmp_path: Path) -> None:
    load_tree(tmp_path, questions(50))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (3, ["a node of a decision tree must be a mapping, found the number 3"]),
        (
            {"question": "a"},
            ["a node of a decision tree has no `yes`", "a node of a decision tree has no `no`"],
        ),
        (
            {"question": "a", "yes": 2, "no": True},
            ["must be a score from 0 to 1, found the number 2", "from 0 to 1, found true"],
        ),
        ({"yes": 1, "no": 0}, ["has neither `question` nor `assert`"]),
        (
            {"question": "a", "assert": {"type": "is-json"}, "yes": 1, "no": 0},
            ["has both `question` and `assert`"],
        ),
        ({"question": "a", "choices": {"x": 1, "y": 0}, "yes": 1}, ["cannot have both `choices` and `yes`"]),
        (
            {"assert": {"type": "is-json"}, "choices": {"x": 1, "y": 0}},
            ["cannot have both `choices` and `assert`"],
        ),
        ({"question": "a", "choices": {"x": 1}}, ["`choices` must be a mapping of at least two choices"]),
        ({"assert": {"type": "select-best", "value": "x"}, "yes": 1, "no": 0}, ["select-best cannot decide"]),
        ({"assert": {"type": "human"}, "yes": 1, "no": 0}, ["human cannot decide"]),
        ({"question": " ", "yes": 1, "no": 0}, ["the question of a node must be a text"]),
        ({"question": "a", "yes": 1, "no": 0, "maybe": 0}, ["unknown key `maybe`"]),
        (questions(51), ["a decision tree can be 50 questions deep at most"]),
    ],
)
def test_every_mistake_of_a_tree_has_its_place(tmp_path: Path, tree: Any, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tree(tmp_path, tree)
    found = caught.value.problems
    assert len(found) == len(said)
    for problem, words in zip(found, said, strict=True):
        assert words in problem.message
        assert problem.location is not None
        assert "tree" in problem.location.key_path


CHOICES = {"formal": 1, "friendly": 0.8, "rude": 0}


@pytest.mark.parametrize(
    ("reply", "score", "status"),
    [
        ('{"reason": "r", "choice": "friendly"}', 0.8, Status.PASSED),
        ('{"choice": " RUDE. "}', 0.0, Status.FAILED),
        ("Formal", 1.0, Status.PASSED),
        ("**rude**", 0.0, Status.FAILED),
    ],
)
def test_a_choice_is_worth_its_score(reply: str, score: float, status: Status) -> None:
    judge = SpeakingJudge([reply])
    result = graded("choice", graded_tools(judge=judge), value="Which tone?", choices=CHOICES)
    assert (result.score, result.status) == (score, status)
    assert "- friendly" in judge.prompts[0]


@pytest.mark.parametrize(
    "reply",
    ['{"choice": "nice"}', "It is formal, not rude.", '{"choice": "rude"} {"choice": "formal"}', "{}", ""],
)
def test_what_names_no_choice_is_an_error(reply: str) -> None:
    with pytest.raises(JudgeError):
        graded("choice", graded_tools(reply), value="Which tone?", choices=CHOICES)


@pytest.mark.parametrize("choices", [{"a": 1}, {"a": 1, "A ": 0}])
def test_choices_must_differ(choices: dict[str, float]) -> None:
    [problem] = problems("choice", value="?", choices=choices)
    assert "at least two choices" in problem.message

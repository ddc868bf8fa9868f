"""Several dimensions in one call: one request, one rating each, and nothing of one counts for another."""

import json
import math
from typing import Any

import pytest
from support.judge_server import STEPS_TEXT, prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply, choices_reply
from support.product import Product

from geval_cli import GEval, JudgeError, TestCase, UsageError
from geval_cli.judge.prompt import Block, rotation
from geval_cli.judge.replies import parse_member_rating

JOINT = {"type": "g-eval", "dimensions": ["fluency", "coherence"], "explain": "never"}


def a_config(*outputs: str, **keys: Any) -> dict[str, Any]:
    return {
        "defaultTest": {"assert": [{**JOINT, **keys}]},
        "tests": [{"output": text} for text in outputs or ["A."]],
    }


def replying(*texts: str, logprobs: Any = None) -> LoopbackServer:
    """A judge that writes steps, and to each request for ratings the next of these; the last one again and again."""
    left = list(texts)

    def respond(body: Any, headers: Any) -> Reply:
        del headers
        if '"steps"' in prompt_text(body):
            return chat_reply(STEPS_TEXT)
        text = left.pop(0) if len(left) > 1 else left[0]
        count = body.get("n", 1)
        tokens = logprobs if body.get("logprobs") else None
        return chat_reply(text, logprobs=tokens) if count == 1 else choices_reply([text] * count)

    return LoopbackServer(respond=respond)


def rating_requests(server: LoopbackServer) -> list[Any]:
    return [request.json for request in server.requests if prompt_text(request.json).startswith("You rate")]


def test_one_call_gives_each_dimension_a_verdict_of_its_own(product: Product) -> None:
    dimensions = ["fluency", {"dimension": "coherence", "threshold": 0.9}]
    with replying('{"Fluency": 3, "Coherence": 4}') as server:
        finished = product.run(a_config(dimensions=dimensions, threshold=0.4, scoring="single"), server)
        again = product.run(a_config(dimensions=dimensions, threshold=0.4, scoring="single"), server)
    assert len(rating_requests(server)) == 1
    assert len(server.requests) == 3
    shown = [(one["metric"], one["status"], one["score"], one["threshold"]) for one in finished.verdicts]
    assert shown == [("fluency", "passed", 1, 0.4), ("coherence", "failed", 0.75, 0.9)]
    assert set(finished.results["summary"]["metrics"]) == {"fluency", "coherence"}
    assert [one["score"] for one in again.verdicts] == [one["score"] for one in finished.verdicts]
    assert {tuple(sorted(one["detail"]["joint"])) for one in finished.verdicts} == {("Coherence", "Fluency")}
    assert [one["detail"]["score_range"] for one in finished.verdicts] == [[1, 3], [1, 5]]


def test_the_prompt_shows_each_criterion_with_its_scale_and_no_json_to_copy(product: Product) -> None:
    with replying('{"Fluency": 3, "Coherence": 4}') as server:
        product.run(a_config("A text about ferries.", scoring="single"), server)
    [body] = rating_requests(server)
    prompt = prompt_text(body)
    for words in (
        "Dimension: Fluency (1-3)",
        "Dimension: Coherence (1-5)",
        "A text about ferries.",
        "BEGIN Output",
    ):
        assert words in prompt
    assert '"Coherence": <your rating from 1 (worst) to 5 (best), as a number>' in prompt
    assert prompt.count("Evaluation Steps:") == 2
    form = prompt[prompt.index("Form of the JSON:\n") :].partition("\n\n")[0].split("\n", 1)[1]
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(form)
    assert body["max_tokens"] == 60


def test_each_rating_is_weighed_by_the_tokens_at_its_own_place(product: Product) -> None:
    def split(*shares: tuple[str, float]) -> dict[str, float]:
        return {token: math.log(share) for token, share in shares}

    sure = [{text: 0.0} for text in ('{"', "Fluency", '":', " ")]
    tokens = [
        *sure,
        split(("3", 0.5), ("2", 0.5)),
        *[{text: 0.0} for text in (', "', "Coherence", '":', " ")],
        split(("4", 0.75), ("5", 0.25)),
        {"}": 0.0},
    ]
    with replying('{"Fluency": 3, "Coherence": 4}', logprobs=tokens) as server:
        finished = product.run(a_config(threshold=0.1), server)
    details = {one["metric"]: one["detail"] for one in finished.verdicts}
    assert len(rating_requests(server)) == 1
    assert {one["estimator"] for one in details.values()} == {"logprobs"}
    assert details["fluency"]["rating"] == pytest.approx(2.5)
    assert details["coherence"]["rating"] == pytest.approx(4.25)
    assert details["coherence"]["distribution"] == pytest.approx({"4": 0.75, "5": 0.25})


def test_samples_are_shared_and_may_end_early(product: Product) -> None:
    with replying('{"Fluency": 3, "Coherence": 1}') as server:
        finished = product.run(a_config(samples={"upto": 20}, threshold=0.45), server)
    assert [body["n"] for body in rating_requests(server)] == [2]
    assert [(one["status"], one["detail"]["requested"]) for one in finished.verdicts] == [
        ("passed", 2),
        ("failed", 2),
    ]


def test_a_missing_rating_is_an_error_of_that_metric_alone(product: Product) -> None:
    with replying('{"Fluency": 3}') as server:
        finished = product.run(a_config(scoring="single"), server)
    fluency, coherence = finished.verdicts
    assert (fluency["status"], fluency["score"]) == ("passed", 1)
    assert (coherence["status"], coherence["score"]) == ("error", None)
    assert "no rating of Coherence can be read" in coherence["error"]["message"]
    assert "even after a retry" in coherence["error"]["message"]
    assert len(rating_requests(server)) == 2
    assert finished.code == 3


def test_the_texts_rotate_the_order_and_nothing_else_does(product: Product) -> None:
    outputs = [f"Text {number}." for number in range(8)]
    with replying('{"Fluency": 3, "Coherence": 4}') as server:
        product.run(a_config(*outputs, scoring="single"), server)
        product.run(a_config(*outputs, scoring="single"), server, "--no-cache")
    prompts = [prompt_text(body) for body in rating_requests(server)]
    first = [prompt.index("Dimension: Fluency") < prompt.index("Dimension: Coherence") for prompt in prompts]
    assert len(prompts) == 16
    assert 0 < sum(first) < 16
    assert sorted(prompts[:8]) == sorted(prompts[8:])
    schemas = [
        list(body["response_format"]["json_schema"]["schema"]["properties"])
        for body in rating_requests(server)
    ]
    assert [names[0] == "Fluency" for names in schemas] == first
    assert {rotation([Block("Output", text)], 3) for text in outputs} == {0, 1, 2}


def test_the_plan_counts_one_call_for_all(product: Product) -> None:
    config = a_config("One.", "Two.", scoring="single")
    with replying('{"Fluency": 3, "Coherence": 4}') as server:
        told = product.run(config, server, "--plan").results["total"]
        assert server.requests == []
        product.run(config, server)
    assert told["least"] == told["most"] == len(server.requests) == 4


def test_gates_and_sets_know_each_dimension(product: Product) -> None:
    config = a_config(scoring="single")
    config["defaultTest"]["assert"] = [{"type": "assert-set", "assert": config["defaultTest"]["assert"]}]
    with replying('{"Fluency": 3, "Coherence": 4}') as server:
        finished = product.run({**config, "gates": ["coherence.mean >= 0.7", "fluency.mean >= 1"]}, server)
    assert finished.code == 0
    assert [one["metric"] for one in finished.verdict["assertions"]] == ["fluency", "coherence"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dimensions": ["fluency", "coherance"]}, "there is no dimension `coherance`"),
    ({"dimensions": ["fluency", "fluency"]}, "`fluency` is listed twice"),
    ({"dimensions": ["fluency"]}, "`dimensions` needs at least two"),
    ({"dimensions": []}, "`dimensions` needs at least two"),
    ({"dimensions": "fluency"}, "must be a list of dimensions"),
    ({"dimensions": ["fluency", 3]}, "must be a mapping, found the number 3"),
    (
        {"dimensions": ["fluency", {"dimension": "coherence", "threshold": 4}]},
        "`threshold` must be a number from 0 to 1",
    ),
    ({"dimensions": ["fluency", {"threshold": 0.4}]}, "needs `dimension`"),
    ({"dimension": "relevance"}, "`dimension` and `dimensions` cannot be combined"),
    ({"criteria": "It is kind."}, "either a `dimension` or `criteria`"),
    ({"metric": "all"}, "`metric` cannot be combined with `dimensions`"),
    ({"evaluation_steps": ["Read it."]}, "`evaluation_steps` cannot be combined with `dimensions`"),
    ({"strict_mode": True}, "`strict_mode` cannot be combined with `dimensions`"),
    ({"rubricPrompt": "Rate {{ output }}"}, "`rubricPrompt` cannot be combined with `dimensions`"),
    ({"rubric": {1: "bad", 3: "good"}}, "`rubric` cannot be combined with `dimensions`"),
    ({"score_range": [1, 5]}, "`score_range` works only with `criteria`"),
]


@pytest.mark.parametrize(("keys", "problem"), REFUSED, ids=str)
def test_what_cannot_be_rated_together_is_a_problem_with_a_place(
    product: Product, keys: dict[str, Any], problem: str
) -> None:
    with LoopbackServer() as server:
        finished = product.run(a_config(**keys), server)
    assert (finished.code, server.requests) == (2, [])
    told = " ".join(finished.stderr.split())
    assert problem in told
    assert "-->" in told
    assert finished.stderr.count("error: ") == 1


def test_a_judge_prompt_from_further_away_is_a_problem_too(product: Product) -> None:
    config = a_config()
    config["defaultTest"]["options"] = {"rubricPrompt": "Rate {{ output }}"}
    with LoopbackServer() as server:
        finished = product.run(config, server)
    assert "a `rubricPrompt` cannot rate several `dimensions`" in finished.stderr


READ: list[tuple[str, float]] = [
    ('{"Fluency": 2, "Coherence": 4}', 4),
    ('```json\n{"coherence": 4, "fluency": 2}\n```', 4),
    ('Here: {"ratings": {"Fluency": 2, "Coherence": "4"}} Done.', 4),
    ('{"Fluency": 2, "Coherence": {"rating": 4}}', 4),
    ('{"Coherence": 4, "Fluency": 2', 4),
    ('<think>{"Coherence": 1}</think>\n{"Coherence": 4}', 4),
]
NOT_READ = [
    '{"Fluency": 2}',
    "Coherence: 4",
    '{"Coherence": 4, "Coherence": 2}',
    '{"Coherence": "good"}',
    '{"Coherence": true}',
    '{"Coherence": null}',
    '{"Coherence": 9}',
    '{"Coherence": 0}',
    '{"Fluency": 2, "Coherence": 4',
    '{"Coherence": <your rating from 1 (worst) to 5 (best), as a number>}',
    "",
]


@pytest.mark.parametrize(("text", "rating"), READ)
def test_a_rating_is_read_by_its_key(text: str, rating: float) -> None:
    found = parse_member_rating(text, score_range=(1, 5), name="Coherence")
    assert found.rating == rating
    assert text[found.score_start : found.score_end].strip('"') == "4"


@pytest.mark.parametrize("text", NOT_READ)
def test_what_is_no_rating_of_the_dimension_is_not_read(text: str) -> None:
    with pytest.raises(JudgeError):
        parse_member_rating(text, score_range=(1, 5), name="Coherence")


def test_the_library_rates_several_dimensions_in_one_call() -> None:
    with replying('{"Fluency": 3, "Coherence": 4}') as server:
        judge = {"id": "openai:judge", "config": {"base_url": server.base_url, "api_key": "k"}}
        metrics = GEval.for_dimensions({"fluency": 0.4, "coherence": 0.9}, model=judge, scoring="single")
        results = [metric.evaluate(TestCase(input="in", actual_output="out")) for metric in metrics]
    shown = [(one.metric, one.score, one.success, one.threshold) for one in results]
    assert shown == [("Fluency [GEval]", 1, True, 0.4), ("Coherence [GEval]", 0.75, False, 0.9)]
    assert len(rating_requests(server)) == 1


def test_the_library_refuses_dimensions_that_cannot_be_rated_together() -> None:
    for dimensions in (["fluency"], ["fluency", "fluency"], ["fluency", "coherance"]):
        with pytest.raises(UsageError):
            GEval.for_dimensions(dimensions)
    with pytest.raises(UsageError, match="`joint` must include `dimension`"):
        GEval("One", dimension="relevance", joint=["fluency", "coherence"])
    with pytest.raises(UsageError, match="cannot be combined with"):
        GEval.for_dimensions(["fluency", "coherence"], strict_mode=True)

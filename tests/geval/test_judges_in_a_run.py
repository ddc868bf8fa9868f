"""What a run remembers of its judges, and what later runs must not inherit."""

from typing import Any

import pytest
from support.loopback import chat_reply
from support.model_server import STEPS, ModelServer, verdict, weighed
from support.product import Product

CRITERIA = {"type": "g-eval", "criteria": "The output says when the shop opens."}
FLUENCY = {"type": "g-eval", "dimension": "fluency", "evaluation_steps": ["Read it aloud."]}


def a_config(assertion: dict[str, Any], tests: int = 6) -> dict[str, Any]:
    outputs = [{"output": f"We open at {hour}."} for hour in range(tests)]
    return {"defaultTest": {"assert": [assertion]}, "tests": outputs}


@pytest.mark.parametrize("kind", ["steps", "evaluate", "form"])
def test_a_judge_that_was_ill_is_asked_again_by_the_next_run(product: Product, kind: str) -> None:
    is_ill = True
    well = {"steps": f'{{"steps": ["{STEPS[0]}"]}}', "evaluate": verdict(9), "form": "3"}
    says = {name: lambda _, text=text: "" if is_ill else text for name, text in well.items()}
    config = a_config(FLUENCY if kind == "form" else CRITERIA, tests=2)
    with ModelServer(**says) as server:
        before = product.run(config, server)
        is_ill = False
        after = product.run(config, server)

    assert (before.code, after.code) == (3, 0)
    assert after.results["summary"]["passed"] == 2


def test_an_empty_form_does_not_make_a_judge_one_without_probabilities(product: Product) -> None:
    replies = iter([chat_reply("", finish_reason="length")])
    with ModelServer(form=lambda body: next(replies, None) or weighed({"3": 0.9, "2": 0.1}, body)) as server:
        finished = product.run(a_config(FLUENCY), server)

    assert {one["detail"]["estimator"] for one in finished.verdicts} == {"logprobs"}
    assert len(server.asked("form")) == 7


def test_judges_of_one_name_are_found_out_each_for_itself(product: Product) -> None:
    def form(body: Any) -> Any:
        return weighed({"3": 0.9, "2": 0.1}, {**body, "logprobs": body["model"] == "telling"})

    judges = [{"id": f"openai:{name}", "label": "judge"} for name in ("silent", "telling")]
    tests = [{"output": "Hello.", "assert": [{**FLUENCY, "provider": judge}]} for judge in judges]
    with ModelServer(form=form) as server:
        finished = product.run({"tests": tests}, server, "-j", "1")

    assert [one["detail"]["estimator"] for one in finished.verdicts] == ["samples", "logprobs"]


def test_a_function_that_judges_writes_the_steps_once_for_all_tests(product: Product) -> None:
    code = """
import json, pathlib
def call_api(prompt, options, context):
    seen = pathlib.Path(__file__).with_name("seen.txt")
    with seen.open("a") as file:
        file.write("x")
    if '"steps"' in prompt:
        return json.dumps({"steps": [f"step of call {seen.stat().st_size}"]})
    return json.dumps({"reason": "fine", "score": 8})
"""
    (product.folder / "judge.py").write_text(code, encoding="utf-8")
    with ModelServer() as server:
        finished = product.run(a_config({**CRITERIA, "provider": "python:judge.py"}), server)

    assert finished.code == 0
    assert {tuple(one["detail"]["evaluation_steps"]) for one in finished.verdicts} == {("step of call 1",)}
    assert (product.folder / "seen.txt").read_text(encoding="utf-8") == "x" * 7

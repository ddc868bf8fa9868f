"""Judges that refuse what they are asked with: the parameter is left out or replaced, found out once, told once."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.loopback import Reply, chat_reply, error_reply
from support.model_server import STEPS, ModelServer, verdict
from support.product import Product

NOT_SUPPORTED = "Unsupported parameter: '{}' is not supported with this model."


class Reasoner:
    """A model that thinks before it answers, and refuses what such models refuse."""

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self.refusals: list[str] = []

    def __call__(self, body: Any) -> Reply:
        refused = self._refused(body)
        if refused:
            parameter, message = refused
            self.refusals.append(parameter)
            code = "unsupported_value" if parameter == "temperature" else "unsupported_parameter"
            return error_reply(400, message, type="invalid_request_error", param=parameter, code=code)
        if body.get("max_completion_tokens", 1000) < 1000:
            return chat_reply("", n=body.get("n", 1), finish_reason="length")
        return chat_reply(self._answer, n=body.get("n", 1))

    @staticmethod
    def _refused(body: Mapping[str, Any]) -> tuple[str, str] | None:
        if "max_tokens" in body:
            return "max_tokens", f"{NOT_SUPPORTED.format('max_tokens')} Use 'max_completion_tokens' instead."
        if body.get("temperature", 1) != 1:
            message = (
                "'temperature' does not support 0 with this model. Only the default (1) value is supported."
            )
            return "temperature", f"Unsupported value: {message}"
        if "logprobs" in body:
            return "logprobs", NOT_SUPPORTED.format("logprobs")
        return None


def a_config(tests: int = 6, **assertion: Any) -> dict[str, Any]:
    return {
        "defaultTest": {"assert": [{"type": "g-eval", **assertion}]},
        "tests": [{"output": f"Text {number}."} for number in range(tests)],
    }


PINNED = ["Look for a thread."]


def test_a_reasoning_model_rates_by_samples_and_gets_room_to_think(product: Product) -> None:
    model = Reasoner("4")
    config = a_config(dimension="coherence", evaluation_steps=PINNED, samples=3, scoring="auto")
    with ModelServer(form=model) as server:
        # One at a time, so that what was found out is known to all that follow.
        finished = product.run(config, server, "-j", "1")

    assert finished.code == 0, finished.stdout
    assert {one["detail"]["estimator"] for one in finished.verdicts} == {"samples"}
    assert sorted(model.refusals) == ["logprobs", "max_tokens", "temperature"]
    assert not any("max_completion_tokens" in body for body in server.asked("form")[-3:])


def test_a_reasoning_model_judges_by_criteria_and_each_refusal_is_told_once(product: Product) -> None:
    model = Reasoner(verdict(9))
    with ModelServer(evaluate=model, steps=Reasoner(f'{{"steps": ["{STEPS[0]}"]}}')) as server:
        finished = product.run(a_config(criteria="It says something."), server)

    assert finished.code == 0, finished.stdout
    assert {one["detail"]["estimator"] for one in finished.verdicts} == {"single"}
    assert model.refusals == ["logprobs"]
    assert (
        len(server.requests) == 6 + 1 + 2
    )  # verdicts, steps, and one refusal each of temperature and logprobs
    for told in ("does not accept `temperature`", "gives no token log-probabilities"):
        assert finished.stderr.count(told) == 1


def test_a_user_s_own_limit_and_temperature_are_left_alone(product: Product) -> None:
    provider = {"id": "openai:gpt-4.1", "config": {"temperature": 0.3, "max_tokens": 55}}
    config = a_config(tests=1, dimension="coherence", provider=provider, evaluation_steps=PINNED)
    with ModelServer() as server:
        product.run(config, server)

    [body] = server.asked("form")
    assert (body["temperature"], body["max_tokens"]) == (0.3, 55)


@pytest.mark.parametrize(
    ("takes", "asked_for"),
    [
        (("json_schema", "json_object"), ["json_schema"] * 6),
        (("json_object",), ["json_schema", *["json_object"] * 6]),
        ((), ["json_schema", "json_object", *[None] * 6]),
    ],
)
def test_json_is_asked_for_in_the_strictest_form_that_the_server_takes(
    takes: tuple[str, ...], asked_for: list[str | None], product: Product
) -> None:
    def evaluate(body: Any) -> str | Reply:
        form = body.get("response_format", {}).get("type")
        if form is None or form in takes:
            return verdict(9)
        return error_reply(400, f"response_format type '{form}' is not supported", param="response_format")

    config = a_config(criteria="It says something.", evaluation_steps=PINNED, scoring="single")
    with ModelServer(evaluate=evaluate) as server:
        finished = product.run(config, server)

    forms = [body.get("response_format", {}).get("type") for body in server.asked("evaluate")]
    assert (finished.code, forms) == (0, asked_for)


def test_the_schema_of_a_verdict_names_reason_and_score(product: Product) -> None:
    config = a_config(tests=1, criteria="It says something.", evaluation_steps=PINNED)
    with ModelServer() as server:
        product.run(config, server)

    [body] = server.asked("evaluate")
    schema = body["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["reason", "score"]
    assert schema["properties"]["score"]["type"] == "integer"
    assert (body["temperature"], body["logprobs"], body["top_logprobs"]) == (0, True, 20)

"""`--plan`: what it says is what a run then asks for, and it asks for nothing itself."""

from typing import Any

import pytest
from support.judge_server import judge_sensibly, prompt_text
from support.loopback import LoopbackServer, chat_reply
from support.product import Product

JUDGE = {"id": "openai:judge", "config": {"price": {"input": 10, "output": 10}, "max_tokens": 50}}


def respond(body: Any, headers: Any) -> Any:
    if prompt_text(body).startswith("Say"):
        return chat_reply(f"fine {prompt_text(body)}")
    return judge_sensibly(body, headers)


def config(*checks: dict[str, Any], tests: int = 4) -> dict[str, Any]:
    return {
        "prompts": ["Say {{ x }}"],
        "providers": [
            {"id": "openai:m", "config": {"price": {"input": 10, "output": 10}, "max_tokens": 100}}
        ],
        "defaultTest": {"assert": [{"provider": JUDGE, **check} for check in checks]},
        "tests": [{"vars": {"x": number}} for number in range(tests)],
    }


def plan(product: Product, whole: dict[str, Any], server: LoopbackServer, *options: str) -> Any:
    """The plan as JSON, with the table as `text`."""
    before = len(server.requests)
    finished = product.run(whole, server, "--plan", *options)
    assert finished.code == 0, finished.stderr
    assert len(server.requests) == before
    return {**finished.results, "text": finished.stdout}


CRITERIA = {"type": "g-eval", "criteria": "It is good."}


@pytest.mark.parametrize(
    "checks",
    [
        [CRITERIA],
        [{**CRITERIA, "scoring": "samples", "samples": 7}],
        [{**CRITERIA, "scoring": "single"}, {"type": "g-eval", "criteria": ["a", "b"]}],
        [{**CRITERIA, "evaluation_steps": ["Read it."]}],
        [
            {
                "type": "g-eval",
                "dimension": "coherence",
                "scoring": "samples",
                "samples": 3,
                "explain": "always",
            }
        ],
        [{"type": "g-eval", "dimension": "coherence", "scoring": "single", "explain": "never"}],
    ],
    ids=["auto", "samples", "criteria list", "own steps", "explained", "form"],
)
def test_where_the_estimator_is_explicit_the_plan_is_exact(
    product: Product, checks: list[dict[str, Any]]
) -> None:
    with LoopbackServer(respond=respond) as server:
        told = plan(product, config(*checks), server)["total"]
        usage = product.run(config(*checks), server).results["summary"]["usage"]
    asked = sum(item["requests"] - item["cached_requests"] for item in usage.values())
    assert told["least"] == told["most"] == asked


def test_an_automatic_estimator_gives_a_span(product: Product) -> None:
    whole = config({"type": "g-eval", "dimension": "coherence"})
    with LoopbackServer(respond=respond) as server:
        told = plan(product, whole, server)
        usage = product.run(whole, server).results["summary"]["usage"]
    rows = {row["purpose"]: row for row in told["rows"]}
    assert (rows["ratings"]["least"], rows["ratings"]["most"]) == (4, 4)
    assert (rows["fallback samples"]["least"], rows["fallback samples"]["most"]) == (0, 80)
    assert "if the judge gives no usable token probabilities" in rows["fallback samples"]["assumption"]
    assert (rows["explanations"]["least"], rows["explanations"]["most"]) == (0, 4)
    asked = sum(item["requests"] - item["cached_requests"] for item in usage.values())
    assert told["total"]["least"] <= asked <= told["total"]["most"]


def test_what_the_cache_knows_is_counted_apart(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        product.run(config(CRITERIA, tests=3), server)
        told = plan(product, config(CRITERIA, tests=5), server)["total"]
        fresh = plan(product, config(CRITERIA, tests=5), server, "--no-cache")["total"]
    assert (told["least"], told["most"], told["cached"]) == (4, 4, 7)
    assert (fresh["least"], fresh["most"], fresh["cached"]) == (11, 11, 0)


def test_a_cost_is_bounded_where_answers_are(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        told = plan(product, config(CRITERIA), server)["total"]
        usage = product.run(config(CRITERIA), server).results["summary"]["usage"]
    spent = sum(item["cost_usd"] for item in usage.values())
    assert told["cost_least_usd"] > 0
    assert spent <= told["cost_most_usd"]


def test_an_unknown_price_is_unknown_and_not_nothing(product: Product) -> None:
    whole = config(CRITERIA)
    whole["providers"] = ["openai:m"]
    with LoopbackServer() as server:
        told = plan(product, whole, server)
    assert told["total"]["cost_least_usd"] is None
    assert "price unknown" in told["text"]


def test_a_plan_needs_no_key_and_makes_no_state(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config(CRITERIA)
    whole["providers"] = ["groq:some-model"]
    with LoopbackServer() as server:
        plan(product, whole, server)
    assert not (product.folder / "state").exists()


def test_a_plan_runs_no_code_and_calls_nobody(product: Product) -> None:
    (product.folder / "provider.py").write_text("raise SystemExit('this must not run')\n", encoding="utf-8")
    whole = config(CRITERIA)
    whole["providers"] = ["python:provider.py", "exec:touch ran"]
    with LoopbackServer() as server:
        told = plan(product, whole, server)
    assert told["cases"] == 8
    assert not (product.folder / "ran").exists()


def test_repeats_and_equal_questions(product: Product) -> None:
    whole = config(tests=1)
    whole["tests"] = [{"vars": {"x": "same"}}] * 5
    with LoopbackServer(respond=respond) as server:
        assert plan(product, whole, server)["total"]["least"] == 1
        product.run(whole, server)
    assert len(server.requests) == 1


def test_a_run_that_asks_for_nothing_costs_nothing_whatever_the_price(product: Product) -> None:
    whole = config(tests=2)
    with LoopbackServer(respond=respond) as server:
        product.run(whole, server)
        found = plan(product, whole, server)
    assert (found["total"]["most"], found["total"]["cost_most_usd"]) == (0, 0)
    assert "would make 0 calls" in found["text"]
    assert "the cache has all" in found["text"]


def test_a_plan_is_written_as_json_only(product: Product) -> None:
    with LoopbackServer() as server:
        finished = product.run(config(CRITERIA), server, "--plan", "-o", "plan.csv")
    assert finished.code == 2
    assert "it is written as JSON" in finished.stderr


def test_the_table_names_roles_providers_purposes_and_what_a_count_hangs_on(product: Product) -> None:
    with LoopbackServer() as server:
        text = plan(product, config(CRITERIA, {"type": "g-eval", "dimension": "coherence"}), server)["text"]
    whole = " ".join(text.split())
    for words in (
        "openai:judge",
        "answers",
        "judge's steps",
        "judge's explanations: one per output that fails",
        "judge's fallback samples: per rating, if the judge gives no usable token probabilities",
        "Equal requests are sent once",
        "nothing was sent",
        "would make 14-98 calls for 4 cases",
    ):
        assert words in whole


def test_what_is_asked_for_under_a_condition_has_no_bound_either(product: Product) -> None:
    judge = {"id": "openai:judge", "config": {"price": {"input": 10, "output": 10}}}
    whole = config({"type": "llm-rubric", "value": "fine", "transform": "output + '!'", "provider": judge})
    whole["dialect"] = "promptfoo"
    with LoopbackServer(respond=respond) as server:
        product.run(whole, server)
        [row] = [row for row in plan(product, whole, server)["rows"] if row["purpose"] == "verdicts"]
    assert (row["least"], row["most"], row["tokens"]["output_most"]) == (0, 4, None)
    assert row["cost_most_usd"] is None


def test_each_request_is_priced_by_its_own_length(product: Product) -> None:
    """Some vendors take more for each token of a long prompt; many short ones are no long one."""
    whole = config()
    whole["providers"] = [{"id": "google:gemini-2.5-pro", "config": {"max_tokens": 10}}]
    whole["prompts"] = [f"Say {{{{ x }}}} {'word ' * 2000}"]
    with LoopbackServer() as server:
        one = plan(product, {**whole, "tests": [{"vars": {"x": 100}}]}, server)["total"]
        many = plan(
            product, {**whole, "tests": [{"vars": {"x": 100 + number}} for number in range(200)]}, server
        )["total"]
    for name in ("cost_least_usd", "cost_most_usd"):
        assert many[name] == pytest.approx(200 * one[name])


LONG = "long " * 2000
_TOOL = {"name": "look_up", "description": LONG, "parameters": {"type": "object", "properties": {}}}
BESIDE_THE_PROMPT = {
    "system": ("anthropic:m", {"system": LONG}),
    "blocks": ("anthropic:m", {"system": [{"type": "text", "text": LONG}]}),
    "instruction": ("google:m", {"systemInstruction": {"parts": [{"text": LONG}]}}),
    "instructions": ("openai:responses:m", {"instructions": LONG}),
    "tools": ("openai:m", {"tools": [{"type": "function", "function": _TOOL}]}),
    "schema": (
        "openai:m",
        {"response_format": {"type": "json_schema", "json_schema": {"description": LONG}}},
    ),
}


@pytest.mark.parametrize("name", [*BESIDE_THE_PROMPT, "a test's tools", "Chinese"])
def test_all_that_a_model_reads_is_counted(product: Product, name: str) -> None:
    """In bytes: a token is about four letters, but about one Chinese character."""
    whole = config()
    if name == "a test's tools":
        whole["defaultTest"]["tools"] = {
            "definitions": [_TOOL],
            "recorded": [{"name": "look_up", "args": {}, "result": 1}],
        }
    elif name == "Chinese":
        whole["prompts"] = [f"Say {{{{ x }}}} {'中文三' * 1000}"]
    else:
        kind, settings = BESIDE_THE_PROMPT[name]
        whole["providers"] = [
            {"id": kind, "config": {"max_tokens": 10, "price": {"input": 1, "output": 1}, **settings}}
        ]
    with LoopbackServer() as server:
        row = plan(product, whole, server)["rows"][0]
    assert row["tokens"]["input_most"] == pytest.approx(4 * len(LONG) / 4, rel=0.15)
    assert row["cost_most_usd"] > row["tokens"]["input_most"] * 1e-6


def test_vectors_have_no_output_that_could_be_without_bound(product: Product) -> None:
    model = {"id": "openai:embedding:vectors", "config": {"price": {"input": 1, "output": 0}}}
    whole = config({"type": "similar", "value": "fine", "provider": model})
    with LoopbackServer() as server:
        total = plan(product, whole, server)["total"]
    assert total["tokens"]["output_most"] == 4 * 100
    assert total["cost_most_usd"] is not None


@pytest.mark.parametrize("kind", ["g-eval", "not-g-eval"])
@pytest.mark.parametrize("scoring", ["auto", "logprobs", "samples", "single"])
@pytest.mark.parametrize(("explain", "span"), [("failed", (0, 4)), ("always", (4, 4)), ("never", None)])
def test_explanations_are_foreseen_with_every_estimator(
    product: Product, kind: str, scoring: str, explain: str, span: tuple[int, int] | None
) -> None:
    check = {"type": kind, "dimension": "fluency", "scoring": scoring, "explain": explain}
    with LoopbackServer() as server:
        rows = {row["purpose"]: row for row in plan(product, config(check), server)["rows"]}
    assert ("fallback samples" in rows) == (scoring == "auto")
    assert ("explanations" in rows) == (span is not None)
    if span is not None:
        assert (rows["explanations"]["least"], rows["explanations"]["most"]) == span

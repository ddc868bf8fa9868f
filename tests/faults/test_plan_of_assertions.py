"""`--plan` against what a run then asks for: every kind of assertion that asks somebody, and all that makes more cases.

The server counts answers: a request for several at once is as many.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from support.graded_server import answer_anything
from support.loopback import LoopbackServer, chat_reply
from support.product import Product

JUDGE = "openai:judge"
EMBEDDING = "openai:embedding:vectors"
CRITERIA = {"type": "g-eval", "criteria": "It is good.", "scoring": "single"}
CONTEXT = {"query": "What is it?", "context": ["It is one.", "It is two."]}
TURNS = [{"input": "Hello", "output": "Hi"}, {"input": "How are you?", "output": "Well"}]
COMPARED = [{"type": "select-best", "value": "the better one"}]


def judged(check: Mapping[str, Any]) -> Mapping[str, Any]:
    """The assertion with its judge."""
    if check["type"] in {"assert-set", "max-score", "perplexity", "contains"}:
        return check
    return {"provider": EMBEDDING if check["type"] == "similar" else JUDGE, **check}


def config(
    *checks: Mapping[str, Any],
    tests: int = 3,
    variables: Mapping[str, Any] | None = None,
    models: tuple[str, ...] = ("m",),
    **keys: Any,
) -> dict[str, Any]:
    return {
        "prompts": ["Tell me of {{ x }}"],
        "providers": [f"openai:{model}" for model in models],
        "defaultTest": {"assert": [judged(check) for check in checks]},
        "tests": [{"vars": {"x": number, **(variables or {})}} for number in range(tests)],
        **keys,
    }


def asked(server: LoopbackServer) -> int:
    return sum(request.json.get("n", 1) for request in server.requests)


def total(product: Product, whole: Mapping[str, Any] | Path, server: LoopbackServer, *options: str) -> Any:
    finished = product.run(whole, server, "--plan", *options)
    assert finished.code == 0, finished.stderr
    return {"cases": finished.results["cases"], **finished.results["total"]}


EXACT = {
    "llm-rubric": config({"type": "llm-rubric", "value": "It is fine."}),
    "factuality": config({"type": "factuality", "value": "It is one."}),
    "closedqa": config({"type": "model-graded-closedqa", "value": "It is fine."}),
    "context-recall": config({"type": "context-recall", "value": "It is one."}, variables=CONTEXT),
    "context-relevance, which sees no output": config({"type": "context-relevance"}, variables=CONTEXT),
    "one answer of a conversation": config({"type": "conversation-relevance"}),
    "a conversation": config({"type": "conversation-relevance"}, tests=1, variables={"_conversation": TURNS}),
    "similar": config({"type": "similar", "value": ["one", "two"]}),
    "select-best": config(*COMPARED, models=("m", "k")),
    "select-best beside others, repeated": config(
        *COMPARED, {"type": "llm-rubric", "value": "It is fine."}, CRITERIA, models=("m", "k", "l")
    ),
    "pairs": config({"type": "pairwise", "criteria": "good"}, models=("m", "k", "l")),
    "pairs, repeated": config(
        {"type": "pairwise", "criteria": "good", "against": "openai:k"}, models=("m", "k", "l")
    ),
    "pairs with what is expected": config(
        {"type": "pairwise", "criteria": "good", "against": "expected_output"},
        tests=0,
    )
    | {"tests": [{"vars": {"x": number}, "expected_output": "one"} for number in range(2)]},
    "max-score": config(CRITERIA, {"type": "max-score"}, models=("m", "k")),
    "a set": config(
        {
            "type": "assert-set",
            "assert": [{**CRITERIA, "provider": JUDGE}, {"type": "contains", "value": "x"}],
        }
    ),
    "a set of two": config(
        {
            "type": "assert-set",
            "assert": [
                {"type": "llm-rubric", "value": "It is fine.", "provider": JUDGE},
                {"type": "similar", "value": "one", "provider": EMBEDDING},
            ],
        }
    ),
    "criteria, steps once for each": config({**CRITERIA, "criteria": ["It is good.", "It is short."]}),
    "two judges": config(CRITERIA, {**CRITERIA, "provider": "openai:judge-two"}),
    "an evaluation mode": config(
        prompts=[
            {"raw": "Tell me of {{ x }}", "evaluation_mode": "llm", "evaluation_criteria": "It is good."}
        ],
        defaultTest={"options": {"provider": JUDGE, "scoring": "single"}},
    ),
    "a mode without criteria": config(prompts=[{"raw": "Tell me of {{ x }}", "evaluation_mode": "llm"}]),
    "the schema mode": config(
        prompts=[{"raw": "Tell me of {{ x }}", "evaluation_mode": "schema"}],
        defaultTest={"evaluation_schema": {"type": "object"}},
    ),
    "outputs that tests bring": {
        "tests": [
            {"output": text, "assert": [{"type": "llm-rubric", "value": "fine", "provider": JUDGE}]}
            for text in ("one", "two", "two")
        ]
    },
    "moderation": config({"type": "moderation", "provider": "openai:moderation"}),
    "a rubric that is looked up": config(
        {"type": "search-rubric", "value": "It is true.", "provider": "openai:judge-search-preview"}
    ),
    "a test that asks someone else": {
        **config({"type": "llm-rubric", "value": "It is fine."}, models=("m", "k")),
        "tests": [{"vars": {"x": 1}, "provider": "openai:l"}, {"vars": {"x": 1}}],
    },
    "token probabilities of the answers": config({"type": "perplexity", "threshold": 100}),
}


@pytest.mark.parametrize("name", EXACT)
def test_where_nothing_depends_on_answers_a_plan_is_exact(product: Product, name: str) -> None:
    options = ("--repeat", "2") if "repeated" in name else ()
    with LoopbackServer(respond=answer_anything) as server:
        told = total(product, EXACT[name], server, *options)
        assert asked(server) == 0
        finished = product.run(EXACT[name], server, *options)
        assert len(finished.cases) == told["cases"]
        assert told["least"] == told["most"] == asked(server), finished.stdout
        assert asked(server) > 0
        again = total(product, EXACT[name], server, *options)
    assert (again["least"], again["most"], again["cached"]) == (0, 0, told["most"])


PURPOSES: dict[str, dict[str, int]] = {
    "llm-rubric": {"answers": 3, "verdicts": 3},
    "similar": {"answers": 3, "embeddings": 5},
    "select-best": {"answers": 6, "choices": 3},
    "pairs": {"answers": 9, "choices": 18},
    "moderation": {"answers": 3, "verdicts": 3},
    "a conversation": {"answers": 1, "verdicts": 2},
    "criteria, steps once for each": {"answers": 3, "steps": 2, "ratings": 6},
    "answer-relevance": {"answers": 3, "questions": 9, "embeddings": 10},
    "context-faithfulness": {"answers": 3, "claims": 3, "verdicts": 3},
    "a dimension": {"answers": 1, "steps": 1, "ratings": 1, "fallback samples": 20, "explanations": 1},
}


@pytest.mark.parametrize("name", PURPOSES)
def test_requests_are_counted_by_what_they_are_for(product: Product, name: str) -> None:
    with LoopbackServer() as server:
        finished = product.run({**EXACT, **SPANS}[name], server, "--plan")
    counts: Counter[str] = Counter()
    for row in finished.results["rows"]:
        counts[row["purpose"]] += row["most"]
    assert counts == PURPOSES[name]


def test_the_user_s_own_prompts_change_no_purpose(product: Product) -> None:
    own = {"steps": "Write JSON steps for {{ criteria }}", "evaluate": "{{ steps }} Rate {{ output }}"}
    with LoopbackServer() as server:
        finished = product.run(config({**CRITERIA, "rubric_prompt": own}, tests=1), server, "--plan")
    assert [row["purpose"] for row in finished.results["rows"]] == ["answers", "steps", "ratings"]


SPANS = {
    "answer-relevance": config(
        {"type": "answer-relevance", "provider": {"text": JUDGE, "embedding": EMBEDDING}},
        variables={"query": "What is it?"},
        dialect="promptfoo",
    ),
    "context-faithfulness": config({"type": "context-faithfulness"}, variables=CONTEXT),
    # One test: of several, whichever asks first finds out that the judge gives no token probabilities.
    "a dimension": config({"type": "g-eval", "dimension": "coherence"}, tests=1),
    # Whether the first request knows the answers of the other depends on which of them ends first.
    "more samples of the same question": config(
        {**CRITERIA, "scoring": "samples", "samples": 2}, {**CRITERIA, "scoring": "samples", "samples": 5}
    ),
}


@pytest.mark.parametrize("name", SPANS)
def test_what_depends_on_answers_is_a_span(product: Product, name: str) -> None:
    with LoopbackServer(respond=answer_anything) as server:
        told = total(product, SPANS[name], server)
        product.run(SPANS[name], server)
        assert told["least"] <= asked(server) <= told["most"]
        assert told["least"] < told["most"]
        again = total(product, SPANS[name], server)
    assert (again["least"], again["most"]) == (0, 0)


def test_a_judge_that_finds_no_claim_is_asked_as_little_as_the_plan_allows(product: Product) -> None:
    def claim_nothing(body: Any, headers: Any) -> Any:
        if str(body["model"]).startswith("judge"):
            return chat_reply(json.dumps({"statements": []}))
        return answer_anything(body, headers)

    with LoopbackServer(respond=claim_nothing) as server:
        told = total(product, SPANS["context-faithfulness"], server)
        product.run(SPANS["context-faithfulness"], server)
    assert told["least"] == asked(server)


RAG = {
    "context-faithfulness": {},
    "noise-sensitivity": {"value": "It is three."},
    "citation-correctness": {},
}
SAYS = {
    "nothing is claimed": (False, "yes"),
    "all is supported": (True, "yes"),
    "nothing is supported": (True, "no"),
}


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("kind", RAG)
def test_a_plan_of_retrieval_bounds_what_is_asked_whatever_is_claimed_and_supported(
    product: Product, kind: str, says: str
) -> None:
    has_claims, verdict = SAYS[says]

    def answer(body: Any, headers: Any) -> Any:
        prompt = str(body["messages"][-1]["content"])
        if str(body["model"]).startswith("judge"):
            if '"verdicts"' in prompt:
                return chat_reply(json.dumps({"verdicts": [{"verdict": verdict}]}))
            claims = [f"It is {crc32(prompt.encode())}."]
            return chat_reply(json.dumps({"statements": claims if has_claims else []}))
        return chat_reply(f"{prompt} is one{' [1]' if has_claims else ''}.")

    whole = config({"type": kind, **RAG[kind]}, variables=CONTEXT)
    with LoopbackServer(respond=answer) as server:
        told = total(product, whole, server)
        product.run(whole, server)
        assert told["least"] <= asked(server) <= told["most"]
        if says == "nothing is claimed":
            assert asked(server) == told["least"]
        if says == "nothing is supported":
            assert asked(server) == told["most"]
        again = total(product, whole, server)
    assert (again["least"], again["most"]) == (0, 0)


def test_a_plan_of_citations_knows_those_of_recorded_answers(product: Product) -> None:
    check = {"type": "citation-correctness", "provider": JUDGE}
    outputs = ["It is one [1].", "It is two [2].", "It is nothing."]
    whole = {
        "defaultTest": {"assert": [check], "vars": CONTEXT},
        "tests": [{"output": output} for output in outputs],
    }
    with LoopbackServer(respond=answer_anything) as server:
        told = total(product, whole, server)
    assert (told["least"], told["most"]) == (2, 2)


def test_made_up_questions_that_are_all_the_same_cost_as_little_as_the_plan_allows(product: Product) -> None:
    def ask_the_same(body: Any, headers: Any) -> Any:
        if "input" in body or not str(body["model"]).startswith("judge"):
            return answer_anything(body, headers)
        return chat_reply("What is it?", n=body.get("n", 1))

    with LoopbackServer(respond=ask_the_same) as server:
        told = total(product, SPANS["answer-relevance"], server)
        product.run(SPANS["answer-relevance"], server)
    assert told["least"] == asked(server)


def test_filters_and_choices_of_tests_make_fewer_cases(product: Product) -> None:
    whole = config({"type": "llm-rubric", "value": "It is fine."}, models=("m", "k"))
    whole["tests"][0]["description"] = "the first"
    filters = ("--filter-pattern", "first", "--filter-providers", "openai:k")
    with LoopbackServer(respond=answer_anything) as server:
        told = total(product, whole, server, *filters)
        product.run(whole, server, *filters)
    assert (told["cases"], told["least"], told["most"]) == (1, 2, 2)
    assert asked(server) == 2


def test_ratings_that_the_cache_has_leave_only_what_follows_them(product: Product) -> None:
    rated = config({"type": "g-eval", "dimension": "coherence", "scoring": "single", "explain": "never"})
    explained = config({"type": "g-eval", "dimension": "coherence", "scoring": "single", "explain": "always"})
    with LoopbackServer(respond=answer_anything) as server:
        product.run(rated, server)
        before = asked(server)
        told = product.run(explained, server, "--plan").results
        product.run(explained, server)
    rows = {row["purpose"]: row for row in told["rows"]}
    assert (rows["explanations"]["least"], rows["explanations"]["most"]) == (3, 3)
    assert (rows["ratings"]["most"], rows["ratings"]["cached"]) == (0, 3)
    assert asked(server) - before == told["total"]["least"] == told["total"]["most"] == 3


PROMPTFOO: dict[str, dict[str, Any]] = {
    "former turns": {
        "prompts": ["{% for turn in _conversation %}{{ turn.output }}{% endfor %}Say {{ x }}"],
        "tests": [{"vars": {"x": "more"}}, {"vars": {"x": "more"}}, {"vars": {"x": "more"}}],
    },
    "an output that is kept": {
        "prompts": ["Say {{ x }}{{ kept }}"],
        "tests": [{"vars": {"x": 1}, "options": {"storeOutputAs": "kept"}}, {"vars": {"x": 1}}],
    },
    "a transform": {
        "prompts": ["Say {{ x }}"],
        "defaultTest": {
            "options": {"transform": "output + '!'"},
            "assert": [{"type": "llm-rubric", "value": "fine", "provider": JUDGE}],
        },
        "tests": [{"vars": {"x": 1}}, {"vars": {"x": 2}}],
    },
    "a context out of the output": {
        "prompts": ["Say {{ x }}"],
        "defaultTest": {
            "vars": {"query": "What is it?"},
            "assert": [
                {
                    "type": "context-recall",
                    "contextTransform": "[output, 'more']",
                    "value": "It is one.",
                    "provider": JUDGE,
                }
            ],
        },
        "tests": [{"vars": {"x": 1}}, {"vars": {"x": 2}}],
    },
    "changed variables": {
        "prompts": ["Say {{ y }}"],
        "defaultTest": {"options": {"transformVars": "({ ...vars, y: vars.x + 1 })"}},
        "tests": [{"vars": {"x": 1}}, {"vars": {"x": 2}}, {"vars": {"x": 3}}],
    },
}


@pytest.mark.parametrize("name", PROMPTFOO)
def test_what_only_a_run_can_know_is_taken_to_differ(product: Product, name: str) -> None:
    whole = {"dialect": "promptfoo", "providers": ["openai:m"], **PROMPTFOO[name]}
    with LoopbackServer(respond=answer_anything) as server:
        told = total(product, whole, server)
        finished = product.run(whole, server)
        assert told["least"] == told["most"] == asked(server), finished.stdout + finished.stderr
        again = total(product, whole, server)
    # What is asked after code has run may be in the cache, and a plan runs no code.
    assert again["least"] == 0
    assert again["most"] <= told["most"]


def test_prompts_that_a_program_makes_are_taken_to_differ(product: Product) -> None:
    (product.folder / "prompt.py").write_text(
        "def make(context):\n    return f\"Say {context['vars']['x']}\"\n", encoding="utf-8"
    )
    whole = {
        "dialect": "promptfoo",
        "providers": ["openai:m"],
        "prompts": ["file://prompt.py:make"],
        "tests": [{"vars": {"x": 1}}, {"vars": {"x": 2}}],
    }
    with LoopbackServer(respond=answer_anything) as server:
        told = total(product, whole, server)
        finished = product.run(whole, server)
    assert told["least"] == told["most"] == asked(server) == 2, finished.stderr


def test_a_config_that_wants_no_cache_is_planned_without(product: Product) -> None:
    whole = {
        "dialect": "promptfoo",
        "providers": ["openai:m"],
        "prompts": ["Say {{ x }}"],
        "tests": [{"vars": {"x": 1}}],
        "evaluateOptions": {"cache": False},
    }
    with LoopbackServer(respond=answer_anything) as server:
        product.run(whole, server)
        assert total(product, whole, server)["least"] == 1
        product.run(whole, server)
    assert asked(server) == 2


def test_expired_answers_are_not_counted_as_known(product: Product) -> None:
    whole = config()
    with LoopbackServer(respond=answer_anything) as server:
        product.run(whole, server)
        assert total(product, whole, server, "--cache-ttl", "0s")["least"] == 3
        assert total(product, whole, server, "--cache-ttl", "never")["least"] == 0


def test_a_plan_without_a_network_is_refused(product: Product) -> None:
    with LoopbackServer() as server:
        finished = product.run(config(), server, "--plan", "--offline")
    assert finished.code == 2
    assert "--plan and --offline cannot be combined" in finished.stderr


def interrupted(product: Product, whole: Mapping[str, Any], server: LoopbackServer, *options: str) -> None:
    finished = product.run(whole, server, "-j", "1", *options)
    assert finished.code == 3, finished.stdout + finished.stderr


@pytest.mark.parametrize("freshness", [(), ("--no-cache",)], ids=["cache", "no cache"])
def test_a_plan_of_going_on_leaves_out_what_is_done(product: Product, freshness: tuple[str, ...]) -> None:
    whole = config({"type": "llm-rubric", "value": "It is fine."}, tests=6)
    with LoopbackServer(respond=answer_anything) as server:
        interrupted(product, whole, server, "--max-requests", "7", *freshness)
        before = asked(server)
        finished = product.run(whole, server, "--plan", "--resume", *freshness)
        told = {"cases": finished.results["cases"], **finished.results["total"]}
        assert "are done" in finished.stderr
        assert asked(server) == before
        product.run(whole, server, "--resume", *freshness)
    assert told["least"] == told["most"] == asked(server) - before
    assert 0 < told["cases"] < 6


def test_a_plan_of_doing_errors_again_is_of_them_alone(product: Product) -> None:
    broken = {"5"}

    def respond(body: Any, headers: Any) -> Any:
        if any(f"of {number}" in str(body.get("messages")) for number in broken):
            return 400, {}, {"error": {"message": "no"}}
        return answer_anything(body, headers)

    whole = config({"type": "llm-rubric", "value": "It is fine."}, tests=6)
    with LoopbackServer(respond=respond) as server:
        interrupted(product, whole, server)
        broken.clear()
        before = asked(server)
        told = total(product, whole, server, "--retry-errors")
        product.run(whole, server, "--retry-errors")
    assert (told["cases"], told["least"], told["most"]) == (1, 2, 2)
    assert asked(server) - before == 2


def test_a_plan_of_going_on_with_what_is_not_there_is_refused(product: Product) -> None:
    with LoopbackServer(respond=answer_anything) as server:
        nothing = product.run(config(), server, "--plan", "--resume")
        product.run(config(), server)
        finished = product.run(config(), server, "--plan", "--resume")
        other = product.run(config(tests=2), server, "--plan", "--resume-from", "latest")
    assert (nothing.code, finished.code, other.code) == (2, 2, 2)
    assert "no runs are stored" in nothing.stderr
    assert "no unfinished run" in finished.stderr
    assert "because its inputs have changed" in other.stderr

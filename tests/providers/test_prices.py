"""Prices of models that have been the same for years; the table may change those of the others at any time."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.errors import ProviderResponseError
from geval_cli.providers.preset_table import PRESETS
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.prices import FREE, FREE_KINDS, FixedPrice, ListPrice, Price, Priced, price_of
from geval_cli.providers.registry import check_provider
from geval_cli.providers.wire.openai import OpenAICompatibleProvider
from geval_cli.providers.wire.token_usage import TokenUsage
from geval_cli.specs.base import ProviderSpec

GPT_4 = ListPrice("openai", "gpt-4-0613")
GPT_4O = ListPrice("openai", "gpt-4o-2024-11-20")
CLAUDE = ListPrice("anthropic", "claude-3-5-sonnet-20241022")


@pytest.mark.parametrize(
    ("price", "tokens", "cost_usd"),
    [
        (GPT_4, TokenUsage(1000, 100), 0.036),
        (GPT_4O, TokenUsage(1000, 0), 0.0025),
        (GPT_4O, TokenUsage(1000, 0, cache_read_tokens=800), 0.0005 + 0.001),
        (CLAUDE, TokenUsage(1000, 100), 0.0045),
        (CLAUDE, TokenUsage(1000, 0, cache_read_tokens=600, cache_write_tokens=400), 0.00018 + 0.0015),
        (CLAUDE, TokenUsage(400, 0, cache_write_tokens=400, long_cache_write_tokens=400), 0.0024),
        (GPT_4, TokenUsage(0, 0), 0.0),
    ],
)
def test_list_prices_know_cached_input(price: Price, tokens: TokenUsage, cost_usd: float) -> None:
    assert price.cost_usd(tokens) == pytest.approx(cost_usd, abs=1e-12)


@pytest.mark.parametrize(
    ("price", "tokens"),
    [
        (GPT_4, None),
        (ListPrice("openai", "gpt-99-imagined"), TokenUsage(1000, 100)),
        (ListPrice("openai", "whisper-1"), TokenUsage(1000, 100)),
        (ListPrice("groq", "gpt-4-0613"), TokenUsage(1000, 100)),
        (ListPrice("nobody", "gpt-4-0613"), TokenUsage(1000, 100)),
        (ListPrice("azure", ""), TokenUsage(1000, 100)),
        (GPT_4O, TokenUsage(10, 1, cache_read_tokens=20)),
        (GPT_4O, TokenUsage(10, 1, input_audio_tokens=5)),
    ],
    ids=["no counts", "model", "no text model", "other vendor", "vendor", "deployment", "nonsense", "sound"],
)
def test_what_cannot_be_priced_is_unknown_and_not_0(price: Price, tokens: TokenUsage | None) -> None:
    assert price.cost_usd(tokens) is None


def test_the_model_that_answered_is_paid_not_the_one_that_was_named() -> None:
    alias = ListPrice("openai", "gpt-4o-2024-11-20")
    assert alias.cost_usd(TokenUsage(1000, model="gpt-4-0613")) == pytest.approx(0.03)
    assert alias.cost_usd(TokenUsage(1000, model="a-name-nobody-knows")) == pytest.approx(0.0025)
    assert ListPrice("azure", "").cost_usd(TokenUsage(1000, model="gpt-4-0613")) == pytest.approx(0.03)


def test_a_service_tier_has_its_own_price() -> None:
    standard, flex = (
        ListPrice("openai", "o3").cost_usd(TokenUsage(1000, conditions=conditions))
        for conditions in ({}, {"service_tier": "flex"})
    )
    assert standard is not None
    assert flex == pytest.approx(standard / 2)


@pytest.mark.parametrize(
    ("price", "conditions", "share"),
    [
        (ListPrice("google", "gemini-2.5-flash"), {"service_tier": "flex"}, 0.5),
        (ListPrice("google", "gemini-2.5-flash"), {"service_tier": "priority"}, None),
        (ListPrice("google", "gemini-2.5-flash"), {"service_tier": "standard"}, 1.0),
        (ListPrice("groq", "llama-3.3-70b-versatile"), {"service_tier": "flex"}, 1.0),
        (ListPrice("azure", "gpt-4-0613"), {"service_tier": "priority"}, None),
        (ListPrice("azure", "gpt-4-0613"), {"service_tier": "default"}, 1.0),
        (ListPrice("aws", "anthropic.claude-3-5-sonnet-20241022-v2:0"), {"service_tier": "flex"}, None),
        (ListPrice("aws", "anthropic.claude-3-5-sonnet-20241022-v2:0"), {"service_tier": "default"}, 1.0),
        *[
            (ListPrice("google", "gemini-2.5-flash"), {"service_tier": tier}, None)
            for tier in ("provisioned_throughput", "offpeak")
        ],
        *[
            (GPT_4, {"service_tier": tier}, None)
            for tier in ("flex", "priority", "scale", "ultrafast", "reserved")
        ],
        *[(GPT_4, {"service_tier": tier}, 1.0) for tier in ("default", "standard", "auto")],
        (ListPrice("anthropic", "claude-opus-5"), {"speed": "fast"}, 2.0),
        (CLAUDE, {"speed": "fast"}, None),  # not in the table
        (CLAUDE, {"speed": "standard", "service_tier": "standard"}, 1.0),
        (CLAUDE, {"inference_geo": "us"}, 1.1),
        (CLAUDE, {"inference_geo": "global"}, 1.0),
    ],
)
def test_what_the_table_does_not_know_of_tiers_and_places_is_reckoned_or_unknown(
    price: ListPrice, conditions: dict[str, str], share: float | None
) -> None:
    usual = price.cost_usd(TokenUsage(1000, 100))
    assert usual
    found = price.cost_usd(TokenUsage(1000, 100, conditions=conditions))
    assert found == (None if share is None else pytest.approx(usual * share))


@pytest.mark.parametrize(
    ("vendor", "model", "share"),
    [
        ("azure", "gpt-4-0613", 0.5),
        ("google", "gemini-2.5-flash", 0.5),
        ("mistral", "mistral-large-latest", 0.5),
        ("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo", None),
    ],
)
def test_batches_cost_half_where_the_vendor_says_so_for_all_models(
    vendor: str, model: str, share: float | None
) -> None:
    tokens = TokenUsage(1000, 100)
    direct, batched = (ListPrice(vendor, model, is_batch=flag).cost_usd(tokens) for flag in (False, True))
    assert direct
    assert batched == (None if share is None else pytest.approx(direct * share))


@pytest.mark.parametrize(
    ("cached", "of_audio", "cost_usd"),
    [
        (0, None, 0.4 * 0.3 + 0.6 * 1.0),
        (300, [], None),  # which of the two was cached is not said
        (300, [{"modality": "TEXT", "tokenCount": 300}], 0.1 * 0.3 + 0.3 * 0.03 + 0.6 * 1.0),
        (300, [{"modality": "AUDIO", "tokenCount": 300}], 0.4 * 0.3 + 0.3 * 1.0 + 0.3 * 0.1),
        (300, [{"modality": "AUDIO", "tokenCount": "300"}], None),
        (300, [{"modality": "AUDIO", "tokenCount": 301}], None),
    ],
)
def test_what_gemini_heard_before_costs_less(
    cached: int, of_audio: list[Any] | None, cost_usd: float | None
) -> None:
    usage = {
        "promptTokenCount": 1000,
        "candidatesTokenCount": 0,
        "promptTokensDetails": [
            {"modality": "AUDIO", "tokenCount": 600},
            {"modality": "TEXT", "tokenCount": 400},
        ],
        "cachedContentTokenCount": cached,
        "cacheTokensDetails": of_audio,
    }
    model: Any = provider("google:gemini-2.5-flash", {"apiKey": "k"})
    found = model.price.cost_usd(model.tokens({"usageMetadata": usage}))
    assert found == (None if cost_usd is None else pytest.approx(cost_usd / 1000))


def test_claude_has_its_list_price_at_vertex_where_it_costs_the_same_everywhere() -> None:
    name, tokens = "claude-sonnet-4-5@20250929", TokenUsage(1_000, 1_000)
    price = price_of({}, url="https://aiplatform.googleapis.com/v1/x", model=name)
    assert price is not None
    assert price.cost_usd(tokens) == pytest.approx(0.018)
    assert price_of({}, url="https://us-east5-aiplatform.googleapis.com/v1/x", model=name) is None


def test_only_vendors_that_tell_their_bill_are_believed_what_they_charged() -> None:
    tokens = TokenUsage(1000, charged_usd=0.7)
    for vendor, model in (("openrouter", "openai/gpt-4"), ("perplexity", "sonar"), ("x-ai", "grok-3")):
        assert ListPrice(vendor, model).cost_usd(tokens) == 0.7
    assert GPT_4.cost_usd(tokens) == pytest.approx(0.03)


@pytest.mark.parametrize(
    "model", ["gpt-4o-search-preview", "gpt-5-search-api", "gpt-4o-mini-search-preview-2025-03-11"]
)
def test_a_model_that_searches_for_each_answer_never_costs_its_tokens_alone(model: str) -> None:
    found = ListPrice("openai", model).cost_usd(TokenUsage(1000, 100))
    assert found is None or found >= 0.01
    assert ListPrice("openrouter", f"openai/{model}").cost_usd(TokenUsage(9, 1, charged_usd=0.04)) == 0.04


@pytest.mark.parametrize(
    ("price", "tokens", "cost_usd"),
    [
        (FixedPrice(3, 15), TokenUsage(1_000_000, 100_000), 4.5),
        (FixedPrice(3, 15), TokenUsage(1_000_000, 0, cache_read_tokens=500_000), 3.0),
        (FixedPrice(3, 15, 0.3), TokenUsage(1_000_000, 0, cache_read_tokens=500_000), 1.65),
        (FixedPrice(3, 15, 0), TokenUsage(1_000_000, 0, cache_read_tokens=2_000_000), 0.0),
        (FixedPrice(3, 15), None, None),
        (FREE, None, 0.0),
    ],
)
def test_a_price_of_ones_own_is_per_million_tokens(
    price: Price, tokens: TokenUsage | None, cost_usd: float | None
) -> None:
    assert price.cost_usd(tokens) == (None if cost_usd is None else pytest.approx(cost_usd))


@pytest.mark.parametrize(
    ("price", "is_told"),
    [
        ({"input": 0.0000025, "output": 0.00001}, True),
        ({"input": 0.00015, "output": 0.0006}, True),
        ({"input": 0.15, "output": 0.6, "cached_input": 0.000075}, True),
        ({"input": 0.15, "output": 0.6, "cached_input": 0.0011}, False),
        ({"input": 0, "output": 0}, False),
    ],
)
@pytest.mark.parametrize("name", ["openai:m", "https://x.example", "python:app.py"])
def test_a_price_per_token_is_told(name: str, price: Any, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def call_api(prompt):\n    return 'x'\n", encoding="utf-8")
    spec = ProviderSpec(id=name, config={"price": price})
    problems = check_provider(spec, env={}, base_dir=tmp_path)
    assert any("per million tokens, so 0.0" in problem.message for problem in problems) is is_told


def test_every_vendor_whose_prices_are_listed_is_named() -> None:
    listed = {vendor.id for vendor in get_snapshot().providers}
    named = {preset.price_vendor for preset in PRESETS.values()} - {""}
    assert named <= listed
    # Azure and Databricks have an address for each user; the first is known by its domains.
    assert listed & PRESETS.keys() - named == {"azure", "databricks"}


@pytest.mark.parametrize(
    ("url", "vendor"),
    [
        *((preset.base_url, preset.price_vendor) for preset in PRESETS.values() if preset.price_vendor),
        ("https://me.openai.azure.com/openai/deployments/d/chat/completions", "azure"),
        ("https://API.OpenAI.com:443/v1", "openai"),
        ("https://aiplatform.googleapis.com/v1/projects/p", "google"),
        ("https://europe-west4-aiplatform.googleapis.com/v1/projects/p", "google"),
        ("https://aiplatform.eu.rep.googleapis.com/v1/projects/p", "google"),
    ],
)
def test_the_host_says_who_sends_the_bill(url: str, vendor: str) -> None:
    price = price_of({}, url=url, model="m")
    assert isinstance(price, ListPrice)
    assert price.vendor == vendor
    assert price.model == ("" if vendor == "azure" else "m")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "http://localhost:11434/v1",
        "https://llm.example.com/v1",
        "https://api.openai.com.example.net/v1",
        "https://example.net/api.openai.com/v1",
        "https://openai.azure.com.example.net/v1",
        "",
    ],
)
def test_a_server_that_is_not_the_vendors_has_no_price(url: str) -> None:
    assert price_of({}, url=url, model="gpt-4-0613") is None


def test_the_configs_price_wins() -> None:
    settings = {"price": {"input": 1, "output": 2, "cached_input": 0.5}}
    assert price_of(settings, url="https://api.openai.com/v1", model="gpt-4-0613") == FixedPrice(1, 2, 0.5)


def ask_priced(reply: Reply, price: Price | None) -> float | None:
    with LoopbackServer(reply) as server:
        endpoint = Endpoint(
            id="openai:m",
            label="m",
            kind="openai",
            model="m",
            url=f"{server.base_url}/chat/completions",
            price=price,
        )
        [response] = run(answer(OpenAICompatibleProvider(endpoint)))
    return response.usage.cost_usd


def test_an_answer_is_priced_by_what_the_server_counted() -> None:
    reply = chat_reply("x", usage=(1000, 100))
    assert ask_priced(reply, GPT_4) == pytest.approx(0.036)
    assert ask_priced(reply, None) is None


def test_an_answer_without_counts_costs_something_unknown() -> None:
    reply = chat_reply("x")
    body = {name: value for name, value in reply.body.items() if name != "usage"}
    assert ask_priced(Reply(body=body), FixedPrice(1, 1)) is None
    assert ask_priced(Reply(body=body), FREE) == 0


@pytest.mark.parametrize(
    ("provider_id", "config", "cost_usd"),
    [
        ("http", {}, None),
        ("http", {"price": {"input": 0, "output": 0}}, 0.0),
        ("http", {"price": {"input": 1_000_000, "output": 0}}, 7.0),
    ],
)
def test_an_http_api_costs_what_the_config_says(
    provider_id: str, config: dict[str, Any], cost_usd: float | None
) -> None:
    with LoopbackServer(chat_reply("x")) as server:
        [response] = run(answer(provider(f"{server.url}/ask", config)))
    assert response.usage.cost_usd == cost_usd
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 3)


WATCHED = """
import sys
from pathlib import Path

def refuse_network(event, args):
    if event in {"socket.connect", "socket.getaddrinfo", "socket.bind"}:
        raise AssertionError(f"{event} {args}")

sys.addaudithook(refuse_network)
import geval_cli.runs
import geval_cli.cli.app
import geval_cli.providers.wire.openai
from geval_cli.providers.prices import ListPrice, price_of
from geval_cli.providers.wire.token_usage import TokenUsage

price = price_of({}, url="https://api.openai.com/v1", model="gpt-4-0613")
before = {"genai_prices", "httpx2"} & set(sys.modules)
price.prepare()
import threading
print(sorted(before), price.cost_usd(TokenUsage(1000)), threading.active_count())
"""


def test_the_table_is_imported_late_and_reaches_for_no_network() -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", WATCHED], capture_output=True, text=True, check=False
    )
    assert (finished.stdout, finished.stderr) == ("[] 0.03 1\n", "")


def test_the_kinds_that_are_said_to_be_free_are_those_whose_providers_are(tmp_path: Path) -> None:
    (tmp_path / "replies.yaml").write_text("- {match: x, reply: y}\n", encoding="utf-8")
    named = {"echo": "echo", "scripted": "scripted:replies.yaml", "local": "local:smollm2"}
    assert named.keys() == FREE_KINDS
    for provider_id in named.values():
        model = provider(provider_id, base_dir=tmp_path)
        assert isinstance(model, Priced)
        assert model.price == FREE


def test_an_answer_of_a_batch_that_cannot_be_used_costs_what_batches_cost() -> None:
    config = {"price": {"input": 10, "output": 20, "batch": {"input": 5, "output": 10}}}
    model: Any = provider("openai:m", config, env={"OPENAI_API_KEY": "k"})
    body = chat_reply(None, usage=(100_000, 50_000)).body
    with pytest.raises(ProviderResponseError) as error:
        model.batched_response(ask(), 200, body)
    assert error.value.cost_usd == 1.0
    run(model.aclose())


@pytest.mark.parametrize(
    ("name", "config", "cost_usd"),
    [
        ("azure:d", {"base_url": "https://gateway.example", "price": "list"}, 0.03),
        ("azure:d", {"base_url": "https://mine.openai.azure.com", "price": "list"}, 0.03),
        ("azure:d", {"base_url": "https://mine.openai.azure.com"}, 0.03),
        ("azure:d", {"base_url": "https://gateway.example"}, None),
        ("openai:gpt-4-0613", {"base_url": "https://gateway.example", "price": "list"}, 0.03),
        ("openai:gpt-4-0613", {"base_url": "https://gateway.example"}, None),
        ("databricks:d", {"base_url": "https://gateway.example", "price": "list"}, None),
    ],
)
def test_a_list_price_is_that_of_the_vendor_whoever_answers(
    name: str, config: dict[str, Any], cost_usd: float | None
) -> None:
    model: Any = provider(name, {"api_key": "k-0123456789", **config})
    tokens = TokenUsage(1000, model="gpt-4-0613")
    found = None if model.price is None else model.price.cost_usd(tokens)
    assert found == (None if cost_usd is None else pytest.approx(cost_usd))


@pytest.mark.parametrize("name", ["vertex:gemini-2.5-flash", "vertex:claude-sonnet-4-5"])
def test_a_gateway_before_vertex_may_cost_what_google_lists(name: str) -> None:
    config = {"base_url": "https://gateway.example", "api_key": "k-0123456789", "project_id": "p"}
    model: Any = provider(name, config)
    assert model.price is None
    model = provider(name, {**config, "price": "list"})
    assert model.price.cost_usd(TokenUsage(1000, 100))


def _of_claude(searches: int) -> Any:
    usage = {"input_tokens": 1000, "output_tokens": 100}
    found = {"server_tool_use": {"web_search_requests": searches}} if searches else {}
    content = [{"type": "text", "text": "It is so."}]
    return {"content": content, "stop_reason": "end_turn", "usage": {**usage, **found}}


def _of_responses(searches: int) -> Any:
    def call(action: str) -> dict[str, Any]:
        return {"type": "web_search_call", "status": "completed", "action": {"type": action}}

    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is so."}]}
    opened = [call("open_page"), call("find_in_page")] if searches else []
    output = [*(call("search") for _ in range(searches)), *opened, said]
    usage = {"input_tokens": 1000, "output_tokens": 100}
    return {"status": "completed", "output": output, "usage": usage}


def _of_gemini(searches: int) -> Any:
    grounding = {"groundingMetadata": {"webSearchQueries": ["", *["so?"] * searches]}}
    content = {"role": "model", "parts": [{"text": "It is so."}]}
    candidate = {"content": content, "finishReason": "STOP", **grounding}
    usage = {"promptTokenCount": 1000, "candidatesTokenCount": 100}
    return {"candidates": [candidate], "usageMetadata": usage}


@pytest.mark.parametrize(
    ("name", "body", "paid_searches"),
    [
        ("anthropic:claude-sonnet-4-5", _of_claude, 3),
        ("openai:responses:gpt-4.1", _of_responses, 3),
        ("google:gemini-2.5-pro", _of_gemini, 1),  # by the answer, however many queries it took
        ("google:gemini-3-pro-preview", _of_gemini, 3),
    ],
)
def test_searches_of_the_web_are_paid_for(name: str, body: Callable[[int], Any], paid_searches: int) -> None:
    def cost_usd(searches: int) -> float:
        with LoopbackServer(Reply(body=body(searches))) as server:
            url = server.url if name.startswith("anthropic") else server.base_url
            keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "k")
            model = provider(name, {"base_url": url, "price": "list"}, env=keys)
            [response] = run(answer(model, ask()))
        assert response.usage.cost_usd is not None
        return response.usage.cost_usd

    vendor, _, model_name = name.replace("responses:", "").partition(":")
    [listed] = [
        found
        for entry in get_snapshot().providers
        if entry.id == vendor
        for found in [entry.find_model(model_name)]
        if found is not None
    ]
    each_usd = float(listed.get_prices(datetime.now(UTC)).web_searches_kcount) / 1000
    assert cost_usd(3) - cost_usd(0) == pytest.approx(paid_searches * each_usd)


def _with_call(kind: str) -> Any:
    body = _of_responses(0)
    return {**body, "output": [{"type": kind, "id": "c", "status": "completed"}, *body["output"]]}


def _drawn(count: Any, modality: Any = "IMAGE") -> Any:
    body = _of_gemini(0)
    details = [{"modality": "TEXT", "tokenCount": 9}, {"modality": modality, "tokenCount": count}]
    return {**body, "usageMetadata": {**body["usageMetadata"], "candidatesTokensDetails": details}}


def _grounded(chunk: Any) -> Any:
    [candidate] = _of_gemini(0)["candidates"]
    return {
        **_of_gemini(0),
        "candidates": [{**candidate, "groundingMetadata": {"groundingChunks": [None, chunk]}}],
    }


def _advised(kind: str) -> Any:
    body = _of_claude(0)
    steps = [None, {"type": kind, "model": "claude-opus-5", "input_tokens": 9, "output_tokens": 900}]
    return {**body, "usage": {**body["usage"], "iterations": steps}}


@pytest.mark.parametrize(
    ("name", "body", "is_known"),
    [
        ("openai:responses:gpt-4.1", _with_call("file_search_call"), False),
        ("openai:responses:gpt-4.1", _with_call("code_interpreter_call"), False),
        ("openai:responses:gpt-4.1", _with_call("image_generation_call"), False),
        ("openai:responses:gpt-4.1", _with_call("mcp_call"), True),
        ("google:gemini-2.5-flash-image", _drawn(1290), False),
        ("google:gemini-2.5-flash-image", _drawn(0), True),
        *[
            ("google:gemini-2.5-flash", _drawn(90, modality), modality in ("TEXT", None, [], {}))
            for modality in ("AUDIO", "VIDEO", "TEXT", None, [], {})
        ],
        ("google:gemini-2.5-flash", _grounded({"maps": {"uri": "https://maps.google.com/?cid=1"}}), False),
        ("google:gemini-2.5-flash", _grounded({"web": {"uri": "https://example.com"}}), True),
        ("anthropic:claude-sonnet-4-5", _advised("advisor_message"), False),
        ("anthropic:claude-sonnet-4-5", _advised("message"), True),
        ("anthropic:claude-sonnet-4-5", _advised("never heard of"), True),
    ],
)
def test_what_is_not_paid_by_tokens_has_no_list_price(name: str, body: Any, is_known: bool) -> None:
    own: Any = {"input": 1, "output": 1}
    for price in ("list", own):
        with LoopbackServer(Reply(body=body)) as server:
            keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "k")
            model = provider(name, {"base_url": server.base_url, "price": price}, env=keys)
            [response] = run(answer(model, ask()))
        assert (response.usage.cost_usd is not None) is (is_known or price is own)
        assert response.usage.input_tokens == 1000


def test_the_cost_of_searches_whose_price_nobody_knows_is_unknown() -> None:
    assert GPT_4.cost_usd(TokenUsage(1000, 100, web_searches=1)) is None


def test_the_bill_in_an_answer_of_perplexity_is_what_it_costs() -> None:
    reply = chat_reply("It is so.", usage=(1000, 100))
    reply.body["usage"]["cost"] = {"input_tokens_cost": 0.001, "request_cost": 0.006, "total_cost": 0.0071}
    with LoopbackServer(reply) as server:
        config = {"base_url": server.base_url, "price": "list"}
        model = provider("perplexity:sonar", config, env={"PERPLEXITY_API_KEY": "k"})
        [response] = run(answer(model, ask()))
    assert response.usage.cost_usd == 0.0071

"""Every kind of provider through the whole command, against a server on this machine."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from genai_prices import Usage, calc_price
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, Reply, chat_reply

KEYS = {
    f"{name}_API_KEY": f"{name.lower()}-key-0123456789"
    for name in (
        "OPENAI",
        "ANTHROPIC",
        "AZURE_OPENAI",
        "OPENROUTER",
        "GROQ",
        "DEEPSEEK",
        "MISTRAL",
        "XAI",
        "TOGETHER",
        "FIREWORKS",
    )
}
APP = """
async def call_api(prompt, options, context):
    return {"output": f"{prompt}|{context['vars']['user']}", "token_usage": {"prompt": 4, "completion": 2}}
"""
PROGRAM = """
import sys
print("|".join(sys.argv[1:]))
"""


def respond(body: Any, headers: Mapping[str, str]) -> Any:
    """Says who was asked, in the wire format of who was asked."""
    if "messages" not in body:
        return {"reply": {"text": f"{body['q']}|{body['user']}"}}
    name = body["model"]
    if "anthropic-version" not in headers:
        return chat_reply(f"I am {name}")
    return {
        "model": name,
        "content": [{"type": "text", "text": f"I am {name}"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }


def providers(server: LoopbackServer) -> list[dict[str, Any]]:
    here = {"base_url": server.base_url}
    own_body = {"body": {"q": "{{ prompt }}", "user": "{{ vars.user }}"}, "response_path": "reply.text"}
    program = f"exec:{sys.executable} program.py {{{{ vars.user }}}}"
    return [
        {"id": "openai:m-openai"},
        {"id": "anthropic:m-anthropic"},
        {"id": "azure:m-azure"},
        {"id": "ollama:m-ollama"},
        {"id": "vllm:m-vllm"},
        {"id": "openrouter:m/openrouter", "config": here},
        {"id": "groq:m-groq", "config": here},
        {"id": "deepseek:m-deepseek", "config": here},
        {"id": "mistral:m-mistral", "config": here},
        {"id": "xai:m-xai", "config": here},
        {"id": "together:m/together", "config": here},
        {"id": "fireworks:accounts/m/models/fireworks", "config": here},
        {"id": f"{server.url}/ask", "label": "http", "config": own_body},
        {"id": "python:app.py", "label": "python"},
        {"id": program, "label": "exec"},
        {"id": "echo"},
    ]


TESTS = [{"vars": {"question": "why?", "user": "u-1"}, "assert": [{"type": "contains", "value": ""}]}]


def run_config(folder: Path, config: dict[str, Any], *, code: int = 0, **env: str) -> dict[str, Any]:
    """The results file of a run of `config`."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    finished = run_geval(
        "run", "config.yaml", "-o", "out.json", cwd=folder, env=clean_environment(**KEYS, **env)
    )
    assert finished.code == code, finished.stdout + finished.stderr
    results: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    return results


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], LoopbackServer]:
    """One run that asks a provider of every kind: its results by label, and the server that was asked."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "app.py").write_text(APP, encoding="utf-8")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    with LoopbackServer(respond=respond) as server:
        config = {"prompts": ["{{ question }}"], "providers": providers(server), "tests": TESTS}
        found = run_config(
            folder,
            config,
            OPENAI_BASE_URL=server.base_url,
            ANTHROPIC_BASE_URL=server.url,
            AZURE_OPENAI_ENDPOINT=server.url,
            OLLAMA_BASE_URL=server.url,
            VLLM_BASE_URL=server.url,
        )
    return {result["provider"]["label"]: result for result in found["results"]}, server


@pytest.mark.parametrize(
    ("label", "path", "key_header", "key"),
    [
        ("openai:m-openai", "/v1/chat/completions", "authorization", "Bearer openai-key-0123456789"),
        ("anthropic:m-anthropic", "/v1/messages", "x-api-key", "anthropic-key-0123456789"),
        (
            "azure:m-azure",
            "/openai/deployments/m-azure/chat/completions?api-version=2024-10-21",
            "api-key",
            "azure_openai-key-0123456789",
        ),
        ("ollama:m-ollama", "/v1/chat/completions", "authorization", None),
        ("vllm:m-vllm", "/v1/chat/completions", "authorization", None),
        (
            "openrouter:m/openrouter",
            "/v1/chat/completions",
            "authorization",
            "Bearer openrouter-key-0123456789",
        ),
        ("groq:m-groq", "/v1/chat/completions", "authorization", "Bearer groq-key-0123456789"),
        ("deepseek:m-deepseek", "/v1/chat/completions", "authorization", "Bearer deepseek-key-0123456789"),
        ("mistral:m-mistral", "/v1/chat/completions", "authorization", "Bearer mistral-key-0123456789"),
        ("xai:m-xai", "/v1/chat/completions", "authorization", "Bearer xai-key-0123456789"),
        ("together:m/together", "/v1/chat/completions", "authorization", "Bearer together-key-0123456789"),
        (
            "fireworks:accounts/m/models/fireworks",
            "/v1/chat/completions",
            "authorization",
            "Bearer fireworks-key-0123456789",
        ),
    ],
)
def test_a_model_is_asked_where_and_as_its_vendor_wants(
    ran: tuple[dict[str, Any], LoopbackServer], label: str, path: str, key_header: str, key: str | None
) -> None:
    results, server = ran
    model = label.partition(":")[2]
    [sent] = [item for item in server.requests if item.json.get("model") == model]
    assert (sent.path, sent.headers.get(key_header)) == (path, key)
    assert sent.json["messages"] == [{"role": "user", "content": "why?"}]
    result = results[label]
    assert (result["status"], result["output"]) == ("passed", f"I am {model}")
    usage = result["usage"]["generation"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["cost_usd"]) == (7, 3, None)


@pytest.mark.parametrize(
    ("label", "output", "cost_usd"),
    [
        ("http", "why?|u-1", None),
        ("python", "why?|u-1", None),
        ("exec", "u-1|why?", None),
        ("echo", "why?", 0.0),
    ],
)
def test_an_application_gets_prompt_and_variables(
    ran: tuple[dict[str, Any], LoopbackServer], label: str, output: str, cost_usd: float | None
) -> None:
    result = ran[0][label]
    assert (result["status"], result["output"]) == ("passed", output)
    assert result["usage"]["generation"]["cost_usd"] == cost_usd


def test_no_key_is_in_the_results(ran: tuple[dict[str, Any], LoopbackServer]) -> None:
    assert "0123456789" not in json.dumps(ran[0])


def cost_config(server: LoopbackServer, price: dict[str, float] | None, **config: Any) -> dict[str, Any]:
    own = {"base_url": server.base_url, **config, **({"price": price} if price else {})}
    return {
        "prompts": ["{{ question }}"],
        "providers": [{"id": "openai:gpt-4-0613", "config": own}],
        "tests": [{"vars": {"question": text}} for text in ("a", "b")],
    }


def test_the_configs_price_becomes_the_cost_and_an_answer_from_the_cache_is_free(tmp_path: Path) -> None:
    with LoopbackServer(respond=lambda body, headers: chat_reply("x", usage=(1000, 100))) as server:
        config = cost_config(server, {"input": 2, "output": 10})
        first, second = run_config(tmp_path, config), run_config(tmp_path, config)
    assert first["summary"]["usage"]["generation"]["cost_usd"] == pytest.approx(2 * 0.003)
    assert first["results"][0]["usage"]["generation"]["cost_usd"] == pytest.approx(0.003)
    usage = second["summary"]["usage"]["generation"]
    assert (usage["cost_usd"], usage["cached_requests"], usage["input_tokens"]) == (0, 2, 0)
    assert len(server.requests) == 2


def test_the_vendors_price_is_for_the_vendors_own_host_only(tmp_path: Path) -> None:
    def reply(body: Any, headers: Mapping[str, str]) -> Reply:
        return chat_reply("x", usage=(1000, 100))

    with LoopbackServer(respond=reply) as server:
        elsewhere = run_config(tmp_path, cost_config(server, None))
        # A proxy leads the vendor's own address to this machine.
        vendors = {"base_url": "http://api.openai.com/v1"}
        at_home = run_config(tmp_path, cost_config(server, None, **vendors), http_proxy=server.url)
    assert server.requests[-1].path == "http://api.openai.com/v1/chat/completions"
    listed = calc_price(Usage(input_tokens=1000, output_tokens=100), "gpt-4-0613", provider_id="openai")
    assert elsewhere["summary"]["usage"]["generation"]["cost_usd"] is None
    assert at_home["summary"]["usage"]["generation"]["cost_usd"] == pytest.approx(
        2 * float(listed.total_price)
    )


def test_one_unknown_price_makes_the_sum_unknown(tmp_path: Path) -> None:
    with LoopbackServer(respond=lambda body, headers: chat_reply("x")) as server:
        config = cost_config(server, {"input": 2, "output": 10})
        config["providers"].append({"id": "openai:other", "config": {"base_url": server.base_url}})
        found = run_config(tmp_path, config)
    assert found["summary"]["usage"]["generation"]["cost_usd"] is None
    known = [result["usage"]["generation"]["cost_usd"] for result in found["results"]]
    assert [cost is None for cost in known] == [False, True, False, True]


def test_a_variable_that_one_test_lacks_is_an_error_of_that_test(tmp_path: Path) -> None:
    with LoopbackServer(respond=lambda body, headers: {"output": "x"}) as server:
        own = {"id": f"{server.url}/ask", "config": {"body": {"u": "{{ vars.user }}"}}}
        config = {"prompts": ["p"], "providers": [own], "tests": [{}, {"vars": {"user": "u"}}]}
        config["tests"] = [
            {**test, "assert": [{"type": "contains", "value": "x"}]} for test in config["tests"]
        ]
        found = run_config(tmp_path, config, code=3)
    lacking, having = found["results"]
    assert "no variable for `{{ vars.user }}`" in lacking["error"]["message"]
    assert (lacking["status"], having["status"]) == ("error", "passed")
    assert len(server.requests) == 1

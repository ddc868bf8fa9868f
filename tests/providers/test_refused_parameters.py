"""What vendors say when they refuse a parameter, and what becomes of it.

What geval added is left out of the next request; what the user wrote is an error that names it, its value and place.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.calls import ask, provider, run
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderRequestError, UnsupportedParameterError
from geval_cli.events import RunEvent
from geval_cli.gateway.gateway import Gateway
from geval_cli.providers.wire.endpoint_provider import EndpointProvider
from geval_cli.records import ModelRequest, ModelResponse, Role

SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


class Refusal(NamedTuple):
    """A refusal as a vendor words it.

    Attributes:
        written: what the config has. The refusal is of one of these when `parameter` is among them.
    """

    vendor: str
    provider: str
    body: Any
    parameter: str
    written: Mapping[str, Any] = {}
    status: int = 400


def chat(message: str, **error: Any) -> dict[str, Any]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **error}
    }


def claude(message: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": message},
        "request_id": "req_1",
    }


def gemini(message: str) -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


def vertex(message: str) -> dict[str, Any]:
    return gemini(
        f"Unable to submit request because {message} Learn more: https://cloud.google.com/vertex-ai/"
    )


def forbidden(*path: str, value: Any = None) -> dict[str, Any]:
    return {
        "type": "extra_forbidden",
        "loc": ["body", *path],
        "msg": "Extra inputs are not permitted",
        "input": value,
    }


def behind(provider_name: str, raw: Any) -> dict[str, Any]:
    """A refusal as OpenRouter passes it on."""
    metadata = {"raw": raw if isinstance(raw, str) else json.dumps(raw), "provider_name": provider_name}
    return {
        "error": {"message": "Provider returned error", "code": 400, "metadata": metadata},
        "user_id": "user_1",
    }


GPT, RESPONSES, CLAUDE, GEMINI, GEMINI_3 = (
    "openai:gpt-5",
    "openai:responses:gpt-5",
    "anthropic:claude-opus-4-6",
    "google:gemini-2.5-flash",
    "google:gemini-3-flash",
)
EFFORT = {"reasoning_effort": "minimal"}
UNSUPPORTED_TEMPERATURE = "Unsupported parameter: 'temperature' is not supported with this model."

REFUSALS = [
    Refusal("OpenAI", GPT, chat(UNSUPPORTED_TEMPERATURE, param="temperature", code="unsupported_parameter"), "temperature"),
    Refusal("OpenAI", GPT, chat("Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.", param="temperature", code="unsupported_value"), "temperature"),
    Refusal("OpenAI", GPT, chat("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", param="max_tokens", code="unsupported_parameter"), "max_tokens"),
    Refusal("OpenAI", GPT, chat("Unrecognized request argument supplied: logprobs"), "logprobs"),
    Refusal("OpenAI", GPT, chat("This model does not support the 'logprobs' parameter.", param="logprobs"), "logprobs"),
    Refusal("OpenAI", GPT, chat("You are not allowed to request logprobs from this model"), "logprobs", status=403),
    Refusal("OpenAI", GPT, chat("Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model. Learn more about supported models.", param=None), "response_format"),
    Refusal("OpenAI", GPT, chat("Unsupported parameter: 'n' is not supported with this model.", param="n", code="unsupported_parameter"), "n"),
    Refusal("OpenAI", GPT, chat("Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. Supported values are: 'low', 'medium', and 'high'.", param="reasoning_effort", code="unsupported_value"), "reasoning_effort", EFFORT),
    Refusal("OpenAI", GPT, chat("Unsupported parameter: 'stop' is not supported with this model.", param="stop", code="unsupported_parameter"), "stop", {"stop": "END"}),
    Refusal("OpenAI", GPT, chat("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.", code="invalid_parameter_combination"), "max_tokens", {"max_tokens": 9, "max_completion_tokens": 9}),
    Refusal("OpenAI Responses", RESPONSES, chat(UNSUPPORTED_TEMPERATURE, param="temperature"), "temperature"),
    Refusal("OpenAI Responses", RESPONSES, chat("logprobs are not supported with reasoning models.", param="include"), "logprobs"),
    Refusal("OpenAI Responses", RESPONSES, chat("Unsupported parameter: 'top_logprobs' is not supported with this model.", param="top_logprobs", code="unsupported_parameter"), "logprobs"),
    Refusal("OpenAI Responses", RESPONSES, chat("Invalid value: 'text.format' of type 'json_schema' is not supported with this model.", param="text.format"), "response_format"),
    Refusal("OpenAI Responses", RESPONSES, chat("Unsupported value: 'minimal' is not supported with the 'gpt-5-pro' model. Supported values are: 'high'.", param="reasoning.effort", code="unsupported_value"), "reasoning_effort", EFFORT),
    Refusal("OpenAI Responses", RESPONSES, chat("Unknown parameter: 'seed'.", param="seed", code="unknown_parameter"), "seed", {"seed": 1}),
    Refusal("OpenAI Responses", RESPONSES, chat("Unsupported parameter: 'text.verbosity' is not supported with this model.", param="text.verbosity"), "verbosity", {"verbosity": "low"}),
    Refusal("Azure", "azure:d", chat("Unrecognized request arguments supplied: logprobs, top_logprobs"), "logprobs"),
    Refusal("Azure", "azure:d", chat("response_format value as json_schema is enabled only for api versions 2024-08-01-preview and later", code="BadRequest"), "response_format"),
    Refusal("Azure", "azure:d", chat("Invalid parameter: 'response_format' must be one of 'json_object', 'text'.", param="response_format"), "response_format"),
    Refusal("Azure", "azure:d", chat("logprobs, best_of and echo parameters are not available on this model. Please remove the parameter and try again.", param=None), "logprobs"),
    Refusal("Anthropic", CLAUDE, claude("`temperature` may only be set to 1 when thinking is enabled or in adaptive mode. Please consult our documentation"), "temperature", {"thinking": {"type": "disabled"}}),
    Refusal("Anthropic", CLAUDE, claude("`temperature` may only be set to 1 when thinking is enabled."), "temperature"),
    Refusal("Anthropic", CLAUDE, claude("temperature is not supported when thinking is enabled"), "temperature"),
    Refusal("Anthropic", CLAUDE, claude("`temperature` is deprecated for this model."), "temperature"),
    Refusal("Anthropic", CLAUDE, claude("`temperature` and `top_p` cannot both be specified for this model. Please use only one."), "temperature", {"top_k": 4}),
    Refusal("Anthropic", CLAUDE, claude("output_config.format: Extra inputs are not permitted"), "response_format"),
    Refusal("Anthropic", CLAUDE, claude("output_config: Extra inputs are not permitted"), "response_format"),
    Refusal("Anthropic", CLAUDE, claude("'claude-x' does not support output format."), "response_format"),
    Refusal("Anthropic", CLAUDE, claude('"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'), "thinking", {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
    Refusal("Anthropic", CLAUDE, claude("adaptive thinking is not supported on this model"), "thinking", {"thinking": {"type": "adaptive"}}),
    Refusal("Anthropic", CLAUDE, claude("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"), "thinking", {"thinking": {"type": "enabled", "budget_tokens": 3}}),
    Refusal("Anthropic", CLAUDE, claude("`top_k` must be unset when thinking is enabled. Please consult our documentation"), "top_k", {"thinking": {"type": "adaptive"}, "top_k": 4}),
    Refusal("Anthropic", CLAUDE, claude("This model does not support the effort parameter."), "reasoning_effort", {"reasoning_effort": "low"}),
    Refusal("Anthropic", CLAUDE, claude("This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium."), "reasoning_effort", {"reasoning_effort": "xhigh"}),
    Refusal("Anthropic", CLAUDE, claude("frequency_penalty: Extra inputs are not permitted"), "frequency_penalty", {"frequency_penalty": 1}),
    Refusal("Anthropic", CLAUDE, claude("top_p cannot be set to -1 for this model."), "top_p", {"top_p": 0.5}),
    Refusal("Gemini", GEMINI, gemini("Logprobs is not enabled for models/gemini-2.5-pro"), "logprobs"),
    Refusal("Gemini", GEMINI, gemini("Logprobs is not supported for the current model."), "logprobs"),
    Refusal("Gemini", GEMINI, gemini("JSON mode is not enabled for this model"), "response_format"),
    Refusal("Gemini", GEMINI, gemini("Invalid JSON payload received. Unknown name \"responseJsonSchema\" at 'generation_config': Cannot find field."), "response_format"),
    Refusal("Gemini", GEMINI, [gemini("Invalid JSON payload received. Unknown name \"responseLogprobs\" at 'generation_config': Cannot find field.")], "logprobs"),
    Refusal("Gemini", GEMINI, gemini("* GenerateContentRequest.generation_config.response_schema: not supported for this model"), "response_format"),
    Refusal("Gemini", GEMINI, gemini("Penalty is not enabled for models/gemini-2.5-flash"), "presence_penalty", {"presence_penalty": 1}),
    Refusal("Gemini", GEMINI, gemini("Penalty is not enabled for this model"), "frequencyPenalty", {"frequencyPenalty": 1}),
    Refusal("Gemini", GEMINI, gemini("Invalid JSON payload received. Unknown name \"logitBias\" at 'generation_config': Cannot find field."), "logit_bias", {"logit_bias": {"1": 2}}),
    Refusal("Gemini", GEMINI_3, gemini("Thinking level is not supported for this model."), "reasoning_effort", EFFORT),
    Refusal("Gemini", GEMINI_3, gemini("Thinking level MEDIUM is not supported for this model."), "reasoning_effort", {"reasoning_effort": "medium"}),
    Refusal("Gemini", GEMINI, gemini("Budget 0 is invalid. This model only works in thinking mode. thinking_budget out of range"), "reasoning_effort", {"reasoning_effort": "none"}),
    Refusal("Gemini", GEMINI, gemini("Thinking is not enabled for this model."), "thinkingConfig", {"thinkingConfig": {"thinkingBudget": 9}}),
    Refusal("Vertex", "vertex:gemini-3.5-flash", vertex("Logprobs is not supported for this model."), "logprobs"),
    Refusal("Vertex", "vertex:gemini-3-pro", vertex("thinking_level MEDIUM is not supported by this model."), "reasoning_effort", {"reasoning_effort": "medium"}),
    Refusal("Vertex", "vertex:gemini-2.5-pro", vertex("logprobs must be in the range of 1 to 5, got x."), "logprobs"),
    Refusal("Mistral", "mistral:m", {"object": "error", "message": {"detail": [forbidden("logprobs", value=True), forbidden("top_logprobs")]}, "type": "invalid_request_error", "param": None, "code": None}, "logprobs", status=422),
    Refusal("Mistral", "mistral:m", {"object": "error", "message": json.dumps({"detail": [forbidden("frequency_penalty")]}), "type": "internal_error_proxy", "code": "1000"}, "frequency_penalty", {"frequency_penalty": 0.5}, 422),
    Refusal("Mistral", "mistral:m", {"object": "Error", "detail": [forbidden("seed")], "message": [forbidden("seed")], "type": "invalid_request_error", "code": 3001}, "seed", {"seed": 1}, 422),
    Refusal("Mistral", "mistral:m", {"detail": [forbidden("response_format", "json_schema")]}, "response_format", status=422),
    Refusal("xAI", "xai:grok-4", {"code": "Client specified an invalid argument", "error": "Argument not supported on this model: presencePenalty"}, "presence_penalty", {"presence_penalty": 1}),
    Refusal("xAI", "xai:grok-4", {"code": "invalid-argument", "error": "Model grok-4.5 does not support parameter frequencyPenalty."}, "frequency_penalty", {"frequency_penalty": 1}),
    Refusal("xAI", "xai:grok-4", {"code": "invalid-argument", "error": "Model grok-4.20-0309-reasoning does not support parameter reasoningEffort."}, "reasoning_effort", EFFORT),
    Refusal("xAI", "xai:grok-4", {"code": "invalid-argument", "error": "Argument not supported on this model: topLogprobs"}, "logprobs"),
    Refusal("xAI", "xai:grok-4", {"code": "invalid-argument", "error": "Argument not supported on this model: stop"}, "stop", {"stop": "END"}),
    Refusal("Groq", "groq:llama", chat("`logprobs` is not supported with this model"), "logprobs"),
    Refusal("Groq", "groq:llama", chat("property 'logprobs' is unsupported"), "logprobs"),
    Refusal("Groq", "groq:llama", chat("property 'store' is unsupported, did you mean 'stop'?"), "store", {"store": True}),
    Refusal("Groq", "groq:llama", chat("'n' : number must be at most 1"), "n"),
    Refusal("Groq", "groq:llama", chat("This model does not support response format `json_schema`. See supported models", param="response_format"), "response_format"),
    Refusal("Groq", "groq:llama", chat("`reasoning_effort` must be one of `none` or `default`"), "reasoning_effort", EFFORT),
    Refusal("Groq", "groq:llama", chat("'reasoning_effort' : value is not one of the allowed values ['none', 'default', 'low']"), "reasoning_effort", EFFORT),
    Refusal("Groq", "groq:llama", chat("Failed to generate JSON. Please adjust your prompt. See 'failed_generation' for more details.", code="json_validate_failed"), "response_format"),
    Refusal("Groq", "groq:llama", chat("Failed to validate JSON. Please adjust your prompt.", code="json_validate_failed"), "response_format"),
    Refusal("Groq", "groq:llama", chat("Generated JSON does not match the expected schema. Please adjust your prompt.", code="json_validate_failed"), "response_format"),
    Refusal("DeepSeek", "deepseek:deepseek-reasoner", chat("deepseek-reasoner does not support the parameter `temperature`"), "temperature"),
    Refusal("DeepSeek", "deepseek:deepseek-reasoner", chat("deepseek-reasoner does not support the parameter `logprobs`"), "logprobs"),
    Refusal("DeepSeek", "deepseek:deepseek-chat", chat("This response_format type is unavailable now"), "response_format"),
    Refusal("DeepSeek", "deepseek:deepseek-chat", chat("Invalid n value (currently only n = 1 is supported)"), "n"),
    Refusal("Together", "together:m", chat("20 is greater than the maximum of x - 'logprobs'", param="logprobs"), "logprobs"),
    Refusal("Together", "together:m", chat("logprobs is not supported for this model", type="invalid_request_error"), "logprobs"),
    Refusal("Fireworks", "fireworks:m", chat("Extra inputs are not permitted, field: 'logprobs', value: True"), "logprobs"),
    Refusal("Fireworks", "fireworks:m", {"error": {"object": "error", "type": "invalid_request_error", "message": "Extra inputs are not permitted, field: 'store', value: True"}}, "store", {"store": True}),
    Refusal("OpenRouter", "openrouter:m", behind("OpenAI", chat(UNSUPPORTED_TEMPERATURE, param="temperature")), "temperature"),
    Refusal("OpenRouter", "openrouter:m", behind("Anthropic", claude("`temperature` is deprecated for this model.")), "temperature"),
    Refusal("OpenRouter", "openrouter:m", behind("xAI", {"code": "x", "error": "Argument not supported on this model: presencePenalty"}), "presence_penalty", {"presence_penalty": 1}),
    Refusal("OpenRouter", "openrouter:m", behind("Google", gemini("Logprobs is not supported for this model.")), "logprobs"),
    Refusal("OpenRouter", "openrouter:m", {"error": {"message": "No endpoints found that support the requested parameter logprobs: not supported", "code": 404}}, "logprobs", status=404),
    Refusal("vLLM", "vllm:m", {"object": "error", "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'max_completion_tokens'), 'msg': 'Extra inputs are not permitted', 'input': 800}]", "type": "BadRequestError", "param": None, "code": 400}, "max_completion_tokens", {"max_completion_tokens": 9}),
    Refusal("vLLM", "vllm:m", {"object": "error", "message": "This model's server was started without log probabilities: logprobs not supported", "type": "BadRequestError", "code": 400}, "logprobs"),
    Refusal("vLLM", "vllm:m", {"error": {"message": "temperature must be non-negative, got x", "type": "BadRequestError", "param": "temperature", "code": 400}}, "temperature"),
    Refusal("vLLM", "vllm:m", {"detail": [{"type": "extra_forbidden", "loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]}, "response_format", status=422),
    Refusal("Ollama", "ollama:m", chat("\"llama3\" does not support thinking", type="api_error"), "reasoning_effort", EFFORT),
    Refusal("Ollama", "ollama:m", chat("invalid reasoning value: 'minimal' (must be \"high\", \"medium\", \"low\", or \"none\")", type="api_error"), "reasoning_effort", EFFORT),
    Refusal("Ollama", "ollama:m", chat("think value \"medium\" is not supported for this model", type="api_error"), "reasoning_effort", {"reasoning_effort": "medium"}),
    Refusal("LiteLLM", "litellm:m", chat("litellm.UnsupportedParamsError: openai does not support parameters: ['logprobs', 'top_logprobs'], for model=gpt-5-mini. To drop these, set `litellm.drop_params=True`", code="400"), "logprobs"),
    Refusal("LiteLLM", "litellm:m", chat("litellm.UnsupportedParamsError: gpt-5-nano doesn't support temperature=0 while reasoning is active. Only temperature=1 is supported", code="400"), "temperature"),
    Refusal("LiteLLM", "litellm:m", chat("litellm.UnsupportedParamsError: anthropic does not support parameters: {'n': 2}, for model=claude.", code="400"), "n"),
    Refusal("LiteLLM", "litellm:m", chat("litellm.BadRequestError: Vertex_aiException BadRequestError - " + json.dumps(vertex("Logprobs is not supported for this model.")), code="400"), "logprobs"),
    Refusal("LiteLLM", "litellm:m", chat("litellm.UnsupportedParamsError: together_ai does not support parameters: {'response_format': {'type': 'json_object'}}, for model=m.", code="400"), "response_format"),
    Refusal("LiteLLM", "litellm:m", chat("litellm.BadRequestError: XaiException - {\"code\":\"x\",\"error\":\"Argument not supported on this model: frequencyPenalty\"}", code="400"), "frequency_penalty", {"frequency_penalty": 1}),
    Refusal("Hugging Face", "huggingface:chat:m", {"error": "Input validation error: `temperature` must be strictly positive", "error_type": "validation"}, "temperature", status=422),
    Refusal("llama.cpp", "openai:m", {"error": {"code": 501, "message": "logprobs is not supported by this server", "type": "not_supported_error"}}, "logprobs", status=501),
    Refusal("Cerebras", "cerebras:m", chat("property 'body.logprobs' is unsupported: logprobs", param="logprobs", code="wrong_api_format"), "logprobs"),
    *[
        Refusal("in no vendor's words", "openai:m", chat(message), parameter, written)
        for message, parameter, written in (
            ("This deployment pins its heat; kindly drop 'temperature'.", "temperature", {}),
            ("Der Parameter „temperature“ ist für dieses Modell gesperrt.", "temperature", {}),
            ("参数 temperature 不可用", "temperature", {}),
            ("temperature: expected 1, got 0", "temperature", {}),
            ("Sampling controls are switched off here.", "temperature", {}),
            ("logprobs: we do not hand those out", "logprobs", {}),
            ("Token likelihoods stay with us.", "logprobs", {}),
            ("max_tokens is gone; write max_completion_tokens", "max_tokens", {}),
            ("response_format unheard of", "response_format", {}),
            ("response_format.type: 'json_schema' is no member of ['text', 'json_object']", "response_format", {}),
            ("Structured outputs are off for this model", "response_format", {}),
            ("Just one completion per request, please: you sent 2", "n", {}),
            ("temperature is frozen on this model", "temperature", {"temperature": 0.3}),
            ("'glimmer' is no known knob", "glimmer", {"glimmer": 3}),
        )
    ],
]  # fmt: skip


def refused(row: Refusal) -> ProviderRequestError:
    """The error that a judge's request ends in."""
    request: ModelRequest = ask(
        params={
            name: value
            for name, value in {"temperature": 0, "max_tokens": 20}.items()
            if not {name, "max_completion_tokens"} & row.written.keys()
        },
        want_logprobs=True,
        response_schema=SCHEMA,
        sample_indexes=(0, 1),
        role=Role.JUDGE,
    )
    model = provider(row.provider, {"base_url": "http://127.0.0.1:9", "apiKey": "key-123", **row.written})
    assert isinstance(model, EndpointProvider)
    with pytest.raises(ProviderRequestError) as caught:
        model.batched_response(request, row.status, row.body)
    return caught.value


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.vendor}-{row.parameter}")
def test_each_vendor_s_words_are_understood(row: Refusal) -> None:
    error = refused(row)

    if row.parameter in row.written:
        assert not isinstance(error, UnsupportedParameterError)
        value = row.written[row.parameter]
        shown = value if isinstance(value, str) else json.dumps(value)
        assert f"refuses `{row.parameter}: {shown[:40]}" in error.message
        assert f"`{row.parameter}`" in error.hint
    else:
        assert isinstance(error, UnsupportedParameterError), error.message
        assert error.parameter == row.parameter


def test_the_table_has_the_words_of_many_vendors() -> None:
    assert len(Counter(row.vendor for row in REFUSALS)) >= 16


ANSWERS = {
    "anthropic": {"content": [{"type": "text", "text": "8"}], "stop_reason": "end_turn"},
    "google": {"candidates": [{"content": {"parts": [{"text": "8"}]}, "finishReason": "STOP"}]},
    "openai": {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "8"}]}],
        "status": "completed",
    },
}
LEARNING = [
    ("anthropic:claude-opus-4-6", "temperature", claude("`temperature` is deprecated for this model."), "temperature"),
    ("anthropic:m", "output_config", claude("output_config: Extra inputs are not permitted"), "json_schema"),
    ("google:gemini-2.5-pro", "generationConfig.responseLogprobs", gemini("Logprobs is not enabled for models/gemini-2.5-pro"), "logprobs"),
    ("google:gemma-3", "generationConfig.responseJsonSchema", gemini("Unknown name \"responseJsonSchema\" at 'generation_config': Cannot find field."), "json_schema"),
    ("google:gemma-3", "generationConfig.responseMimeType", gemini("JSON mode is not enabled for models/gemma-3"), "response_format"),
    ("openai:responses:gpt-5", "top_logprobs", chat("logprobs are not supported with reasoning models.", param="include"), "logprobs"),
    ("openai:responses:gpt-5", "temperature", chat(UNSUPPORTED_TEMPERATURE, param="temperature"), "temperature"),
]  # fmt: skip


def at(body: Any, path: str) -> Any:
    for key in path.split("."):
        body = body.get(key) if isinstance(body, dict) else None
    return body


@pytest.mark.parametrize(("name", "path", "refusal", "dropped"), LEARNING)
def test_a_refusal_is_paid_for_once_and_the_judge_is_asked_without(
    name: str, path: str, refusal: Any, dropped: str
) -> None:
    vendor = name.partition(":")[0]

    def respond(body: Any, _: Mapping[str, str]) -> Reply:
        return Reply(body=ANSWERS[vendor]) if at(body, path) is None else Reply(400, body=refusal)

    requests = [
        ask(text, params={"temperature": 0}, want_logprobs=True, response_schema=SCHEMA, role=Role.JUDGE)
        for text in ("a", "b", "c")
    ]
    events: list[RunEvent] = []
    with LoopbackServer(respond=respond) as server:
        config = {"base_url": server.base_url if vendor == "openai" else server.url, "apiKey": "key-123"}
        model = provider(name, config)

        async def ask_all() -> list[ModelResponse]:
            gateway = Gateway(cache=None, on_event=events.append)
            try:
                return [await gateway.complete(model, request) for request in requests]
            finally:
                await model.aclose()

        responses = run(ask_all())
    assert [response.text for response in responses] == ["8"] * 3
    assert all(dropped in response.dropped for response in responses)
    refusals = [request for request in server.requests if at(request.json, path) is not None]
    assert len(refusals) == (2 if path.endswith("responseMimeType") else 1)
    assert len(server.requests) == 3 + len(refusals)


@pytest.mark.parametrize(
    ("where", "written", "key"),
    [
        ("config", "reasoning_effort: minimal", "reasoning_effort"),
        ("config", "passthrough: {reasoning_effort: minimal}", "reasoning_effort"),
        ("config", "temperature: 0.25", "temperature"),
        ("config", "response_format: {type: json_object}", "response_format"),
    ],
)
def test_a_setting_that_is_refused_is_an_error_with_its_place(
    tmp_path: Path, where: str, written: str, key: str
) -> None:
    refusal = chat(
        f"Unsupported value: '{key}' does not support this with this model.",
        param=key,
        code="unsupported_value",
    )
    (tmp_path / "suite.yaml").write_text(
        f"prompts: [Hi]\nproviders:\n  - id: openai:gpt-5\n    {where}:\n      {written}\n"
        "tests: [{assert: [{type: contains, value: x}]}]\n"
    )
    with LoopbackServer(respond=lambda *_: Reply(400, body=refusal)) as server:
        env = clean_environment(OPENAI_API_KEY="key-123", OPENAI_BASE_URL=server.base_url)
        done = run_geval("run", "suite.yaml", "-o", "out.json", cwd=tmp_path, env=env)
    assert done.code == 3, done
    assert len(server.requests) == 1
    [case] = json.loads((tmp_path / "out.json").read_text())["results"]
    said = json.dumps(case)
    assert f"refuses `{key}: " in said
    assert "suite.yaml:5:" in said

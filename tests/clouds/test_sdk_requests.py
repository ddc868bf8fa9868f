"""What geval sends to Google, Vertex and Azure, beside what the vendors' own clients send for the same."""

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, RecordedRequest, Reply, chat_reply
from support.pictures import png
from support.recordings import audio_url, wav

from geval_cli.records import Message, ModelRequest
from geval_cli.source.media import data_url_media, with_media

TOKEN = "ya29.token-of-the-cloud"
GEMINI = {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
CLAUDE = {
    "content": [{"type": "text", "text": "hi"}],
    "role": "assistant",
    "stop_reason": "end_turn",
    "type": "message",
}
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}
PICTURE = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
SYSTEM = ModelRequest((Message("system", "Be brief."), Message("user", "Say hi.")))
TALK = ModelRequest(
    (
        Message("system", "Be brief."),
        Message("user", "Say hi."),
        Message("assistant", "Hi."),
        Message("user", "And again?"),
    )
)
REQUESTS: Mapping[str, ModelRequest] = {
    "text": ask("Say hi."),
    "system": SYSTEM,
    "conversation": TALK,
    "schema": ask("Rate it.", response_schema=SCHEMA),
    "image": ask(f"What is this?\n{PICTURE}"),
    "audio": ask(f"What is this?\n{audio_url(wav())}"),
}
SEEN = [kind for kind in REQUESTS if kind != "audio"]
SETTINGS = {"temperature": 0, "max_tokens": 50, "stop": ["END"], "top_p": 0.5}


def sent_by_geval(
    name: str, config: Mapping[str, Any], request: ModelRequest, reply: Reply
) -> RecordedRequest:
    held = data_url_media(PICTURE, None)
    assert held is not None
    with LoopbackServer(reply) as server:
        settings = {key: server.url if value == "URL" else value for key, value in config.items()}
        run(answer(provider(name, settings), with_media(request)))
        return server.requests[0]


def text_of(message: Message) -> str:
    assert isinstance(message.content, str)
    return message.content


@pytest.mark.parametrize("kind", list(REQUESTS))
@pytest.mark.parametrize("is_vertex", [False, True], ids=["gemini", "vertex"])
def test_gemini_is_sent_what_googles_client_sends(kind: str, is_vertex: bool) -> None:
    genai = pytest.importorskip("google.genai")
    types = genai.types
    request = REQUESTS[kind]
    config: dict[str, Any] = {"base_url": "URL", "api_key": TOKEN, **SETTINGS}
    if is_vertex:
        headers = {"authorization": f"Bearer {TOKEN}"}
        config = {
            "base_url": "URL",
            "headers": headers,
            "project_id": "p-1",
            "region": "europe-west4",
            **SETTINGS,
        }
    ours = sent_by_geval(
        f"{'vertex' if is_vertex else 'google'}:gemini-x", config, request, Reply(body=GEMINI)
    )

    said = [message for message in request.messages if message.role != "system"]
    contents = []
    for message in said:
        text = text_of(message).partition("data:")[0]
        parts = [types.Part(text=text)]
        if kind == "image":
            parts.append(types.Part.from_bytes(data=png(), mime_type="image/png"))
        if kind == "audio":
            parts.append(types.Part.from_bytes(data=wav(), mime_type="audio/wav"))
        contents.append(types.Content(role="model" if message.role == "assistant" else "user", parts=parts))
    settings: dict[str, Any] = {
        "temperature": 0,
        "max_output_tokens": 50,
        "stop_sequences": ["END"],
        "top_p": 0.5,
    }
    if len(said) < len(request.messages):
        settings["system_instruction"] = types.Content(parts=[types.Part(text="Be brief.")])
    if kind == "schema":
        settings |= {"response_mime_type": "application/json", "response_json_schema": SCHEMA}
    with LoopbackServer(Reply(body=GEMINI)) as server:
        options = types.HttpOptions(base_url=server.url, api_version="v1beta")
        if is_vertex:
            from google.oauth2.credentials import Credentials

            whose = {
                "vertexai": True,
                "project": "p-1",
                "location": "europe-west4",
                "credentials": Credentials(TOKEN),
            }
            options = types.HttpOptions(base_url=server.url, api_version="v1")
        else:
            whose = {"api_key": TOKEN}
        with genai.Client(http_options=options, **whose) as client:
            client.models.generate_content(
                model="gemini-x", contents=contents, config=types.GenerateContentConfig(**settings)
            )
        [theirs] = server.requests
    body = theirs.json
    for part in body["contents"][-1]["parts"]:
        if "inlineData" in part:  # Google takes both spellings of the type, and both alphabets of base64
            inline = part["inlineData"]
            data = base64.b64encode(base64.urlsafe_b64decode(inline["data"])).decode()
            part["inlineData"] = {"mimeType": inline["mime_type"], "data": data}
    assert (ours.method, ours.path, ours.json) == (theirs.method, theirs.path, body)
    key = "authorization" if is_vertex else "x-goog-api-key"
    assert ours.headers[key] == theirs.headers[key]


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("region", ["us-east5", "global"])
def test_claude_at_vertex_is_sent_what_anthropics_client_sends(kind: str, region: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    request = REQUESTS[kind]
    headers = {"authorization": f"Bearer {TOKEN}"}
    config: dict[str, Any] = {"base_url": "URL", "headers": headers, "project_id": "p-1"}
    if region != "global":
        config["region"] = region
    name = "claude-sonnet-4-5@20250929"
    ours = sent_by_geval(f"vertex:{name}", {**config, "max_tokens": 50}, request, Reply(body=CLAUDE))

    messages = []
    for message in request.messages:
        if message.role == "system":
            continue
        content: Any = message.content
        if kind == "image":
            source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
            text = {"type": "text", "text": text_of(message).partition("data:")[0]}
            content = [text, {"type": "image", "source": source}]
        messages.append({"role": message.role, "content": content})
    more: dict[str, Any] = {"system": "Be brief."} if len(messages) < len(request.messages) else {}
    if kind == "schema":
        more["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    with LoopbackServer(Reply(body=CLAUDE)) as server:
        whose = {"project_id": "p-1", "region": region, "access_token": TOKEN, "base_url": f"{server.url}/v1"}
        with anthropic.AnthropicVertex(**whose) as client:
            client.messages.create(model=name, max_tokens=50, messages=messages, **more)
        [theirs] = server.requests
    body = {**theirs.json, "anthropic_version": "vertex-2023-10-16"}  # as Google documents it
    assert (ours.method, ours.path, ours.json) == (theirs.method, theirs.path, body)
    assert ours.headers["authorization"] == theirs.headers["authorization"]


@pytest.mark.parametrize("kind", list(REQUESTS))
@pytest.mark.parametrize("is_v1", [False, True], ids=["deployment", "v1"])
def test_azure_is_sent_what_openais_client_sends(kind: str, is_v1: bool) -> None:
    import openai

    request = REQUESTS[kind]
    path = "/openai/v1" if is_v1 else ""
    headers = {"authorization": f"Bearer {TOKEN}"}
    with LoopbackServer(chat_reply("hi"), chat_reply("hi")) as server:
        config = {"base_url": f"{server.url}{path}", "headers": headers, **SETTINGS}
        run(answer(provider("azure:my-gpt", config), with_media(request)))
        messages: list[Any] = []
        for message in request.messages:
            content: Any = message.content
            if kind == "image":
                text = {"type": "text", "text": text_of(message).partition("data:")[0]}
                content = [text, {"type": "image_url", "image_url": {"url": PICTURE}}]
            if kind == "audio":
                data = base64.b64encode(wav()).decode()
                text = {"type": "text", "text": text_of(message).partition("data:")[0]}
                content = [text, {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
            messages.append({"role": message.role, "content": content})
        more: dict[str, Any] = dict(SETTINGS)
        if kind == "schema":
            named = {"name": "answer", "strict": True, "schema": SCHEMA}
            more["response_format"] = {"type": "json_schema", "json_schema": named}
        whose: dict[str, Any] = {"api_version": "2024-10-21", "azure_ad_token_provider": lambda: TOKEN}
        client: openai.OpenAI
        if is_v1:
            client = openai.OpenAI(base_url=f"{server.url}{path}", api_key=TOKEN)
        else:
            client = openai.AzureOpenAI(azure_endpoint=server.url, **whose)
        with client:
            client.chat.completions.create(model="my-gpt", messages=messages, **more)
        ours, theirs = server.requests
    assert (ours.method, ours.path, ours.json) == (theirs.method, theirs.path, theirs.json)
    assert ours.headers["authorization"] == theirs.headers["authorization"] == f"Bearer {TOKEN}"

"""`geval models check`: ask a model a few short questions to find out what it supports as a judge and in prompts."""

import base64
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ProviderAuthError, ProviderError, ProviderRequestError
from geval_cli.extras.batches.api import way_to_batches
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.gateway import BoundModel
from geval_cli.json_codec import decode_json
from geval_cli.providers.base import batch_api
from geval_cli.providers.preset_table import KIND_ALIASES, PRESETS
from geval_cli.records import JsonValue, Message, ModelRequest, ModelResponse, Purpose, Role, Usage
from geval_cli.report.sanitize import one_line
from geval_cli.source.media import data_url_media

_SCHEMA: Mapping[str, JsonValue] = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}
_QUESTION = "How friendly is the sentence 'Good morning, my dear friends!', from 1 (cold) to 5 (warm)?"
_CITY: Mapping[str, JsonValue] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
_TOOLS: Mapping[str, JsonValue] = {
    "openai": [
        {
            "type": "function",
            "function": {"name": "get_weather", "description": "Weather of a city", "parameters": _CITY},
        }
    ],
    "responses": [
        {"type": "function", "name": "get_weather", "description": "Weather of a city", "parameters": _CITY}
    ],
    "anthropic": [{"name": "get_weather", "description": "Weather of a city", "input_schema": _CITY}],
    "google": [
        {
            "functionDeclarations": [
                {"name": "get_weather", "description": "Weather of a city", "parameters": _CITY}
            ]
        }
    ],
}
_NAME_CHARS, _ERROR_CHARS = 60, 160
_MAX_TOKENS = 1024
"""Room for models that think before they answer; the others write about ten tokens."""


class ModelFeature(Struct, frozen=True):
    """One feature of a model.

    Attributes:
        feature: the name of the feature.
        can: whether the model has it; None if that could not be determined.
        detail: the observation behind `can`.
    """

    feature: str
    can: bool | None
    detail: str


class ModelCheck(Struct, frozen=True):
    """The features of a model, judging by its answers.

    Attributes:
        provider: the provider id that was checked.
        model: the model name in its first answer; None if it gave none.
        latency_ms: the latency of the first answer.
        requests: the number of requests sent, including rejected ones.
        usage: the tokens and cost of the answers; the cost is None if it is unknown.
        findings: the features, in the order in which they are shown.
    """

    provider: str
    model: str | None
    latency_ms: float | None
    requests: int
    usage: Usage
    findings: tuple[ModelFeature, ...]


async def check_model(model: BoundModel, budget: Budget) -> ModelCheck:
    """Test a model: one rating, two ratings in one request, an image, a recording and a tool call.

    `budget` is the gateway's; it counts the requests.

    Raises:
        ProviderError: the model does not answer at all.
    """
    rating = _request(
        f'{_QUESTION} Answer with JSON: {{"score": N}}', response_schema=_SCHEMA, want_logprobs=True
    )
    first = await model.complete(rating)
    # The second request omits what the first found unsupported, so if it is rejected, that is because of `n`.
    sent = budget.requests
    second = await model.complete(replace(rating, repeat_index=1, sample_indexes=(0, 1)))
    takes_one = budget.requests == sent + 1
    said = "all samples come from one request" if takes_one else "each sample is a separate request"
    several = ModelFeature("several answers", takes_one, said)
    image, usage = await _check_images(model, first.usage + second.usage)
    audio, usage = await _check_audio(model, usage)
    tool, usage = await _check_tools(model, usage)
    can = any(choice.token_logprobs for choice in first.choices)
    probabilities = ModelFeature(
        "token probabilities",
        can,
        "ratings are weighted by probability, in one request" if can else "ratings are means of samples",
    )
    can = batch_api(model.provider) is not None
    batches = ModelFeature(
        "batches",
        can,
        "`geval run --batch` sends them, usually at half the price"
        if can
        else f"none: {way_to_batches(model.provider.id)}",
    )
    findings = (_structured(first), probabilities, several, image, audio, tool, batches)
    name = None if first.model is None else one_line(first.model, _NAME_CHARS)
    return ModelCheck(model.public_id, name, first.latency_ms, budget.requests, usage, findings)


def _request(text: str, **options: Any) -> ModelRequest:
    # Optional parameters of a judge's request are dropped if the server rejects them.
    return ModelRequest(
        (Message("user", text),),
        {"max_tokens": _MAX_TOKENS},
        role=Role.JUDGE,
        purpose=Purpose.VERDICT,
        added=frozenset({"max_tokens"}),
        **options,
    )


def _structured(first: ModelResponse) -> ModelFeature:
    name = "structured output"
    dropped = {"json_schema", "response_format"} & {*first.dropped}
    try:
        found = decode_json(first.text)
    except ValueError:
        found = None
    follows = isinstance(found, dict) and type(found.get("score")) is int
    if dropped:
        return ModelFeature(name, False, "rejects a JSON Schema; judges are asked for JSON in the prompt")
    if not follows:
        return ModelFeature(name, False, "accepts a JSON Schema, but its answer does not follow it")
    return ModelFeature(name, True, "follows a JSON Schema")


async def _answer_about(data_url: str, question: str, model: BoundModel) -> ModelResponse | str:
    """Return a model's answer about an image or a recording, or the error message if it fails."""
    item = data_url_media(data_url, None)
    try:
        return await model.complete(_request(f"{item.marker}\n{question}"))
    except ProviderAuthError:
        raise
    except ProviderError as error:
        return one_line(str(error), _ERROR_CHARS)


async def _check_images(model: BoundModel, usage: Usage) -> tuple[ModelFeature, Usage]:
    name = "images"
    if not getattr(model.provider, "sees_images", False):
        return ModelFeature(name, False, "this provider sends none"), usage
    answer = await _answer_about(_red_square(), "Which colour is this? Answer with one word.", model)
    if isinstance(answer, str):
        return ModelFeature(name, False, answer), usage
    sees = "red" in answer.text.lower()
    return ModelFeature(
        name,
        sees,
        "saw a red square"
        if sees
        else f'accepts images, but described a red square as "{one_line(answer.text, _NAME_CHARS)}"',
    ), usage + answer.usage


async def _check_audio(model: BoundModel, usage: Usage) -> tuple[ModelFeature, Usage]:
    name = "audio"
    if not getattr(model.provider, "hears", frozenset()):
        return ModelFeature(name, False, "this provider sends none"), usage
    answer = await _answer_about(_three_beeps(), "How many beeps do you hear? Answer with one word.", model)
    if isinstance(answer, str):
        return ModelFeature(name, False, answer), usage
    said = answer.text.lower()
    heard = "3" in said or "three" in said
    # Models count badly, so a wrong number does not mean that the model cannot process audio.
    what = (
        "heard three beeps"
        if heard
        else f'accepts audio, but said of three beeps "{one_line(said, _NAME_CHARS)}"'
    )
    return ModelFeature(name, True, what), usage + answer.usage


async def _check_tools(model: BoundModel, usage: Usage) -> tuple[ModelFeature, Usage]:
    name = "tools"
    kind, _, rest = model.provider.id.partition(":")
    preset = PRESETS.get(KIND_ALIASES.get(kind, kind))
    if preset is None and kind != "vertex":
        return ModelFeature(name, None, "not tested with this kind of provider"), usage
    form: str = (
        ("anthropic" if rest.startswith("claude") else "google")
        if preset is None
        else "openai"
        if preset.wire_format == "azure"
        else preset.wire_format
    )
    if rest.startswith("responses:"):
        form = "responses"
    if form not in _TOOLS:
        return ModelFeature(name, None, "not tried with this API"), usage
    asked = _request("What is the weather in Paris? Use the tool.")
    # In a generation request, unlike a judge's, a rejected parameter is an error.
    params = {**asked.params, "tools": _TOOLS[form]}
    asked = replace(asked, params=params, role=Role.GENERATION)
    try:
        answer = await model.complete(asked)
    except ProviderAuthError:
        raise
    except ProviderRequestError as error:
        return ModelFeature(name, False, one_line(str(error), _ERROR_CHARS)), usage
    except ProviderError as error:
        return ModelFeature(name, None, one_line(str(error), _ERROR_CHARS)), usage
    calls = any(choice.tool_calls for choice in answer.choices)
    return ModelFeature(
        name, calls, "called a tool" if calls else "accepts tools, but answered without a call"
    ), usage + answer.usage


def _three_beeps(rate: int = 8_000) -> str:
    """Return a WAV recording of three tones separated by pauses, as a data URL."""
    tone = [round(12_000 * math.sin(2 * math.pi * 880 * index / rate)) for index in range(rate // 4)]
    samples = [*tone, *[0] * (rate // 4)] * 3
    data = struct.pack(f"<{len(samples)}h", *samples)
    header = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", len(data))
    wav = b"RIFF" + struct.pack("<I", 4 + len(header) + len(data)) + b"WAVE" + header + data
    return f"data:audio/wav;base64,{base64.b64encode(wav).decode()}"


def _red_square(side: int = 64) -> str:
    """Return a PNG of a red square as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xe0\x10\x10" * side) * side
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"

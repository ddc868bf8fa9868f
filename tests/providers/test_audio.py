"""Recordings on the wire of each vendor, how they are known, and what of them is in cache keys."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply, chat_reply
from support.pictures import GIF, JPEG, WEBP, png
from support.recordings import FLAC, MP3, MP3_WITH_TAGS, OGG, audio_url, wav

from geval_cli.errors import ConfigError, UnjudgeableError
from geval_cli.gateway.cache import choice_keys
from geval_cli.gateway.gateway import with_media_for
from geval_cli.providers.base import ProviderIdentity
from geval_cli.providers.registry import accepted_audio
from geval_cli.records import Message, ModelRequest
from geval_cli.source.access import TRUSTED
from geval_cli.source.media import Media, data_url_media, media_type_of, read_media, with_media
from geval_cli.specs.base import ProviderSpec

WAV = wav()
ENCODED = base64.b64encode(WAV).decode()
GEMINI = {"candidates": [{"content": {"parts": [{"text": "A dog."}]}, "finishReason": "STOP"}]}


@pytest.fixture
def recording(tmp_path: Path) -> Media:
    path = tmp_path / "call.wav"
    path.write_bytes(WAV)
    return read_media(path, "call.wav", TRUSTED, None)


def sent(name: str, request: ModelRequest) -> Any:
    """What a vendor's server gets: the parts of the last message."""
    is_gemini = not name.startswith("openai")
    reply = Reply(body=GEMINI) if is_gemini else chat_reply("A dog.")
    with LoopbackServer(reply) as server:
        config = {"base_url": server.url if is_gemini else server.base_url, "apiKey": "sk-1"}
        model = provider(name, config)
        [response] = run(answer(model, with_media_for(model, request)))
        assert response.text == "A dog."
        [asked] = server.requests
    messages = asked.json["contents" if is_gemini else "messages"]
    return messages[-1].get("content", messages[-1].get("parts"))


def openai_part(data: str = ENCODED, kind: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}


def gemini_part(data: str = ENCODED, kind: str = "audio/wav") -> dict[str, Any]:
    return {"inlineData": {"mimeType": kind, "data": data}}


@pytest.mark.parametrize("name", ["openai:gpt-audio", "google:gemini-2.5-flash", "vertex:gemini-2.5-flash"])
def test_a_recording_is_sent_in_the_vendors_form(name: str, recording: Media) -> None:
    before, heard, after = sent(name, ask(f"What is {recording.marker}?"))
    assert (before["text"], after["text"]) == ("What is ", "?")
    assert heard == (openai_part() if name.startswith("openai") else gemini_part())


@pytest.mark.parametrize(
    ("content", "media_type", "openai", "gemini"),
    [
        (wav(), "audio/wav", "wav", "audio/wav"),
        (MP3, "audio/mpeg", "mp3", "audio/mp3"),
        (MP3_WITH_TAGS, "audio/mpeg", "mp3", "audio/mp3"),
        (FLAC, "audio/flac", None, "audio/flac"),
        (OGG, "audio/ogg", None, "audio/ogg"),
    ],
)
def test_the_form_of_a_recording_is_that_of_its_bytes(
    content: bytes, media_type: str, openai: str | None, gemini: str
) -> None:
    recording = data_url_media(audio_url(content, media_type.partition("/")[2]), None)
    assert recording.media_type == media_type
    data = base64.b64encode(content).decode()
    assert sent("google:gemini-x", ask(recording.marker)) == [gemini_part(data, gemini)]
    if openai is not None:
        assert sent("openai:gpt-audio", ask(recording.marker)) == [openai_part(data, openai)]
    else:
        with pytest.raises(UnjudgeableError, match=r"cannot hear audio as (FLAC|OGG)"):
            sent("openai:gpt-audio", ask(recording.marker))


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffhello there".encode("utf-16-le"),
        b"\xff\xf1\x50\x80" + bytes(40),  # AAC
        b"\xff\xfb\xf0\x64",  # a bit rate that is none
        b"\xff\xfb\x9c\x64",  # a sample rate that is none
        b"\xff\xeb\x90\x64",  # a version that is none
        b"RIFF\x00\x00\x00\x00AVI ",
        b"<html>",
        b"",
    ],
)
def test_what_is_no_recording_is_not_taken_for_one(content: bytes) -> None:
    assert media_type_of(content) is None


@pytest.mark.parametrize("content", [png(), JPEG, GIF, WEBP])
def test_an_image_is_no_recording(content: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        data_url_media(audio_url(content), None)
    [problem] = caught.value.problems
    assert problem.message.startswith("the data URL is named WAV but contains")


WRITTEN: list[Callable[[str], Any]] = [
    openai_part,
    gemini_part,
    lambda data: {"inline_data": {"mime_type": "audio/x-wav", "data": data}},
    lambda data: {"type": "text", "text": data if data.startswith(("[", "data:")) else audio_url(WAV)},
]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("form", ["marker", "url", "base64"])
@pytest.mark.parametrize("name", ["openai:gpt-audio", "google:gemini-x"])
def test_a_recording_that_a_chat_has_in_one_form_is_sent_in_any(
    name: str, written: Callable[[str], Any], form: str, recording: Media
) -> None:
    text = {"marker": recording.marker, "url": audio_url(WAV), "base64": ENCODED}[form]
    [part] = sent(name, ModelRequest((Message("user", [written(text)]),)))
    assert part == (openai_part() if name.startswith("openai") else gemini_part())


def test_a_data_url_that_a_model_wrote_is_a_text_to_who_cannot_hear_it() -> None:
    said = f"The output: {audio_url(WAV)}"
    model = provider("anthropic:claude-x", {"apiKey": "sk-1"})
    assert with_media_for(model, ask(said)) == ask(said)


def keys(request: ModelRequest) -> tuple[str, ...]:
    return choice_keys(ProviderIdentity("openai", "m", "e"), with_media(request))


def test_cache_keys_have_the_hash_and_neither_bytes_nor_name(tmp_path: Path, recording: Media) -> None:
    request = with_media(ask(f"What is {recording.marker}?"))
    assert hashlib.sha256(WAV).hexdigest() in str(request.messages)
    assert ENCODED not in str(request.messages)
    other = tmp_path / "other.wav"
    other.write_bytes(WAV)
    renamed = read_media(other, "other.wav", TRUSTED, None)
    assert keys(ask(renamed.marker)) == keys(ask(audio_url(WAV))) == keys(ask(recording.marker))
    other.write_bytes(wav(level=7))
    changed = read_media(other, "other.wav", TRUSTED, None)
    assert keys(ask(changed.marker)) != keys(ask(recording.marker))


@pytest.mark.parametrize(("seconds", "tokens"), [(1, 32), (60, 60 * 32)])
def test_a_second_is_reckoned_as_about_32_tokens(seconds: int, tokens: int) -> None:
    recording = data_url_media(audio_url(wav(seconds)), None)
    found = with_media(ask(recording.marker)).characters / 4
    assert tokens <= found <= 1.5 * tokens + 100


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("openai:gpt-audio", "mpeg wav"),
        ("azure:my-audio", "mpeg wav"),
        ("vllm:x", "mpeg wav"),
        ("google:gemini-x", "flac mpeg ogg wav"),
        ("gemini:gemini-x", "flac mpeg ogg wav"),
        ("vertex:gemini-x", "flac mpeg ogg wav"),
        ("scripted:x.yaml", "flac mpeg ogg wav"),
        ("vertex:claude-x", ""),
        ("anthropic:claude-x", ""),
        ("openai:responses:gpt-x", ""),
        ("bedrock:anthropic.claude-x", ""),
        ("local:smollm2", ""),
        ("exec:cat", ""),
        ("http://127.0.0.1:1/x", ""),
    ],
)
def test_who_hears_what(name: str, kinds: str) -> None:
    heard = accepted_audio(ProviderSpec(id=name))
    assert heard == {f"audio/{kind}" for kind in kinds.split()}
    if name.startswith(("openai", "google", "vertex", "anthropic")):
        config: Mapping[str, Any] = {"project_id": "p"} if "vertex" in name else {}
        model = provider(name, {"apiKey": "k-1", **config} if "claude" not in name else config)
        assert getattr(model, "hears", None) == heard


def test_audio_tokens_of_gemini_are_priced_as_such() -> None:
    body = {
        **GEMINI,
        "usageMetadata": {
            "promptTokenCount": 1_000_000,
            "candidatesTokenCount": 10,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 0},
                {"modality": "AUDIO", "tokenCount": 1_000_000},
            ],
        },
    }

    def cost(body: Any) -> float:
        with LoopbackServer(Reply(body=body)) as server:
            config = {"base_url": server.url, "apiKey": "sk-1", "price": "list"}
            [response] = run(answer(provider("google:gemini-2.5-flash", config)))
        assert response.usage.cost_usd is not None
        return response.usage.cost_usd

    counted = {name: count for name, count in body["usageMetadata"].items() if name != "promptTokensDetails"}
    assert cost(body) > 2 * cost({**GEMINI, "usageMetadata": counted})

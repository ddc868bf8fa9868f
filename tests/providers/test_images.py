"""Images on the wire of each vendor, and what of them is in cache keys."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply, chat_reply
from support.pictures import BLUE, GIF, JPEG, WEBP, data_url, png

from geval_cli.errors import UnjudgeableError
from geval_cli.gateway.cache import choice_keys
from geval_cli.providers.base import ProviderIdentity
from geval_cli.providers.preset_table import PRESETS, WIRE_FORMATS
from geval_cli.providers.registry import sees_images
from geval_cli.records import Message, ModelRequest
from geval_cli.source.access import TRUSTED
from geval_cli.source.media import Media, data_url_media, read_media, with_media
from geval_cli.specs.base import ProviderSpec

PNG = png()
ENCODED = base64.b64encode(PNG).decode()
URL = data_url(PNG)


@pytest.fixture
def image(tmp_path: Path) -> Media:
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    return read_media(path, "cat.png", TRUSTED, None)


def responses_reply() -> Reply:
    parts = [{"type": "output_text", "text": "A cat."}]
    return Reply(body={"status": "completed", "output": [{"type": "message", "content": parts}]})


def anthropic_reply() -> Reply:
    return Reply(body={"content": [{"type": "text", "text": "A cat."}], "stop_reason": "end_turn"})


def google_reply() -> Reply:
    found = {"content": {"parts": [{"text": "A cat."}]}, "finishReason": "STOP"}
    return Reply(body={"candidates": [found]})


def converse_reply() -> Reply:
    message = {"role": "assistant", "content": [{"text": "A cat."}]}
    return Reply(body={"output": {"message": message}, "stopReason": "end_turn"})


Vendor = tuple[str, Callable[[], Reply], str, list[Any]]
VENDORS: dict[str, Vendor] = {
    "openai": (
        "openai:gpt-4.1",
        lambda: chat_reply("A cat."),
        "messages",
        [
            {"type": "text", "text": "What is "},
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "text", "text": "?"},
        ],
    ),
    "responses": (
        "openai:responses:gpt-4.1",
        responses_reply,
        "input",
        [
            {"type": "input_text", "text": "What is "},
            {"type": "input_image", "image_url": URL, "detail": "auto"},
            {"type": "input_text", "text": "?"},
        ],
    ),
    "anthropic": (
        "anthropic:claude-sonnet-4-5",
        anthropic_reply,
        "messages",
        [
            {"type": "text", "text": "What is "},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
            {"type": "text", "text": "?"},
        ],
    ),
    "google": (
        "google:gemini-2.5-flash",
        google_reply,
        "contents",
        [
            {"text": "What is "},
            {"inlineData": {"mimeType": "image/png", "data": ENCODED}},
            {"text": "?"},
        ],
    ),
    "converse": (
        "bedrock:converse:amazon.nova-lite-v1:0",
        converse_reply,
        "messages",
        [
            {"text": "What is "},
            {"image": {"format": "png", "source": {"bytes": ENCODED}}},
            {"text": "?"},
        ],
    ),
}


def test_every_api_is_among_them() -> None:
    seeing = [preset for kind, preset in PRESETS.items() if sees_images(ProviderSpec(id=f"{kind}:m"))]
    apis = {WIRE_FORMATS[preset.wire_format].module for preset in seeing}
    told = "add these APIs to VENDORS; of one without images, tell `sees_images` of providers.registry"
    assert apis - VENDORS.keys() == set(), told


def sent(vendor: Vendor, request: ModelRequest) -> Any:
    """What a vendor's server gets for `request`: the parts of the last message."""
    model, reply, key, _ = vendor
    with LoopbackServer(reply()) as server:
        config = {"base_url": server.base_url, "apiKey": "sk-1"}
        [response] = run(answer(provider(model, config), with_media(request)))
    assert response.text == "A cat."
    message = server.requests[0].json[key][-1]
    return message.get("content", message.get("parts"))


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=VENDORS)
def test_each_vendor_gets_an_image_in_its_own_form(vendor: Vendor, image: Media) -> None:
    assert sent(vendor, ask(f"What is {image.marker}?")) == vendor[3]


WRITTEN: list[Callable[[str], Any]] = [
    lambda url: {"type": "image_url", "image_url": {"url": url}},
    lambda url: {"type": "input_image", "image_url": url},
    lambda url: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url}},
    lambda url: {"inlineData": {"mimeType": "image/png", "data": url}},
    lambda url: {"inline_data": {"mime_type": "image/png", "data": url}},
    lambda url: {"type": "text", "text": url},
]


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=VENDORS)
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("form", ["marker", "url", "base64"])
def test_an_image_that_a_chat_has_in_one_form_is_sent_in_any(
    vendor: Vendor, written: Callable[[str], Any], form: str, image: Media
) -> None:
    if form == "base64" and written("x").get("type") in ("image_url", "input_image", "text"):
        return  # these forms have addresses or texts, not bare base64
    text = {"marker": image.marker, "url": URL, "base64": ENCODED}[form]
    content = [{"type": "text", "text": "What is "}, written(text), {"type": "text", "text": "?"}]
    assert sent(vendor, ModelRequest((Message("user", content),))) == vendor[3]


def test_the_detail_that_openai_takes_is_kept(image: Media) -> None:
    part = {"type": "image_url", "image_url": {"url": image.marker, "detail": "low"}}
    [found] = sent(VENDORS["openai"], ModelRequest((Message("user", [part]),)))
    assert found["image_url"]["detail"] == "low"


def test_an_address_in_a_chat_goes_as_it_is() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
    assert sent(VENDORS["openai"], ModelRequest((Message("user", [part]),))) == [part]


@pytest.mark.parametrize(("content", "kind"), [(JPEG, "jpeg"), (GIF, "gif"), (WEBP, "webp"), (PNG, "png")])
def test_the_kind_of_an_image_is_that_of_its_bytes(content: bytes, kind: str) -> None:
    image = data_url_media(data_url(content, kind), None)
    assert image.media_type == f"image/{kind}"
    [part] = sent(VENDORS["anthropic"], ask(image.marker))
    assert part["source"]["media_type"] == f"image/{kind}"


def keys(request: ModelRequest) -> tuple[str, ...]:
    return choice_keys(ProviderIdentity("openai", "m", "e"), with_media(request))


def test_cache_keys_have_the_hash_and_neither_bytes_nor_name(tmp_path: Path, image: Media) -> None:
    request = with_media(ask(f"What is {image.marker}?"))
    assert hashlib.sha256(PNG).hexdigest() in str(request.messages)
    assert ENCODED not in str(request.messages)
    other = tmp_path / "other.png"
    other.write_bytes(PNG)
    renamed = read_media(other, "other.png", TRUSTED, None)
    assert (
        keys(ask(f"What is {renamed.marker}?"))
        == keys(ask(f"What is {URL}?"))
        == keys(ask(f"What is {image.marker}?"))
    )
    other.write_bytes(png(BLUE))
    changed = read_media(other, "other.png", TRUSTED, None)
    assert keys(ask(f"What is {changed.marker}?")) != keys(ask(f"What is {image.marker}?"))


def test_a_marker_that_nobody_holds_stays_text() -> None:
    request = ask(f"I saw [image: cat.png sha256:{'0' * 64}] there, and data:image/png;base64,AAAA")
    assert with_media(request) is request


def test_a_file_that_changes_during_a_run_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(png((3, 5, 7)))  # no other test has this one: an equal file elsewhere would be read
    image = read_media(path, "cat.png", TRUSTED, None)
    request = with_media(ask(image.marker))
    path.write_bytes(png(BLUE))
    with LoopbackServer() as server:
        model = provider("openai:m", {"base_url": server.base_url, "apiKey": "sk-1"})
        with pytest.raises(UnjudgeableError, match=r"`cat\.png` has changed since the run began"):
            run(answer(model, request))
        assert server.requests == []


@pytest.mark.parametrize("happens", [lambda path: path.unlink(), lambda path: path.write_bytes(png(BLUE))])
def test_an_equal_image_in_another_folder_is_read_there_if_the_first_is_gone(
    tmp_path: Path, image: Media, happens: Callable[[Path], object]
) -> None:
    path = tmp_path / "other" / "cat.png"
    path.parent.mkdir()
    path.write_bytes(PNG)
    assert read_media(path, "cat.png", TRUSTED, None) is image
    happens(tmp_path / "cat.png")
    other = read_media(path, "cat.png", TRUSTED, None)
    [found] = with_media(ModelRequest((Message("user", f"What is {image.marker}?"),))).media
    assert (found, found.read()) == (other, PNG)


def test_an_image_is_reckoned_as_about_a_thousand_tokens(image: Media) -> None:
    assert with_media(ask(image.marker)).characters > 4 * 1000

"""Images in tests: read and checked once, named by their hash everywhere, and sent as bytes to models alone.

In texts (variables, prompts, results, logs) an image is its marker, `[image: cat.png sha256:...]`. What sends a request
puts the images themselves in the places of their markers (`with_images`). So templates, judges and reports handle an
image as they handle a word, and the bytes are nowhere but in the file and on their way to the model.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ConfigError, Location, Problem, UnjudgeableError
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue, Message, ModelRequest
from geval_cli.source.access import TRUSTED, Access, open_regular
from geval_cli.source.files import FILE_PREFIX, SourceFiles, open_problem

MAX_IMAGES = 20
"""So many images one request may hold."""

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""So many bytes the images of one request may have together."""

DATA_URL_NAME = "data URL"
"""The name of an image that is written out where a file would be named."""

_MB = 1024 * 1024
_SUFFIXES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_FORMATS = "png, jpeg, gif or webp"
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_LONGEST_NAME = 200
_MARKER = compile_later(r"\[image: [^\[\]\n]{1,200} sha256:[0-9a-f]{64}\]")
_PIECE = compile_later(
    r"\[image: [^\[\]\n]{1,200} sha256:[0-9a-f]{64}\]|data:image/[\w.+-]{1,40};base64,[A-Za-z0-9+/]+={0,2}"
)
_DATA_URL = compile_later(r"data:(image/[\w.+-]{1,40});base64,(.*)\Z")
_NOT_IN_NAMES = compile_later(r"[\[\]\x00-\x1f\x7f]")
_SYSTEM_ROLES = frozenset({"system", "developer"})


class Image(Struct, frozen=True, weakref=True):
    """An image whose form was checked. Its bytes are in the file at `path`, or else in `data`.

    Attributes:
        name: the path as the config has it.
        sha256: of the bytes, in hexadecimal.
        size: in bytes.
    """

    name: str
    media_type: str
    sha256: str
    size: int
    path: Path | None = None
    access: Access = TRUSTED
    data: bytes = b""

    @property
    def marker(self) -> str:
        """Return what stands for the image in texts."""
        return f"[image: {_NOT_IN_NAMES.sub('_', self.name)[:_LONGEST_NAME]} sha256:{self.sha256}]"

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            UnjudgeableError: the file is gone, or holds something else than when it was checked.
        """
        if self.path is None:
            return self.data
        try:
            with open_regular(self.path, self.access) as stream:
                content = stream.read(MAX_IMAGE_BYTES + 1)
        except OSError as error:
            raise UnjudgeableError(open_problem(self.path, error, None).message) from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise UnjudgeableError(
                f"the image `{self.name}` has changed since the run began", hint="run again"
            )
        return content


_KNOWN: WeakValueDictionary[str, Image] = WeakValueDictionary()
"""Every image that somebody holds, by its marker: a config's files as long as the config is in use."""


def keep(image: Image) -> Image:
    """Return the image that its marker leads to as long as somebody holds it: an equal one, or this."""
    return _KNOWN.setdefault(image.marker, image)


def find_image(marker: str) -> Image | None:
    """Return the image that a marker stands for; None when nobody holds it."""
    return _KNOWN.get(marker)


def names_image(value: JsonValue) -> bool:
    """Return whether a text is a `file://` with the ending of an image, or an image written out as a data URL."""
    if not isinstance(value, str):
        return False
    if value.startswith(FILE_PREFIX):
        return PurePosixPath(value).suffix.lower() in _SUFFIXES
    return value.startswith("data:image/")


def is_marker(value: JsonValue) -> bool:
    """Return whether a text is the marker of an image and nothing else."""
    return isinstance(value, str) and value.startswith("[image: ") and _MARKER.fullmatch(value) is not None


def named_and_hashed(marker: str) -> tuple[str, str]:
    """Return the name and the SHA-256 of a marker."""
    name, _, digest = marker.removeprefix("[image: ").removesuffix("]").rpartition(" sha256:")
    return name, digest


def markers_in(value: JsonValue) -> Iterator[str]:
    """Yield the markers in a text, or in the texts of a list or mapping, as often as they are there."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if "[image: " in item:
                yield from _MARKER.findall(item)
        elif isinstance(item, list | tuple):
            pending.extend(reversed(item))
        elif isinstance(item, Mapping):
            pending.extend(reversed([*item.values()]))


def read_image(path: Path, name: str, access: Access, asked_at: Location | None) -> Image:
    """Return the image in a file.

    Args:
        path: of the file.
        name: the path as it is written.
        access: what may be read.
        asked_at: where the file is named.

    Raises:
        ConfigError: one problem: the file cannot be read, is too large, or is no image of a known form.
    """
    try:
        with open_regular(path, access) as stream:
            content = stream.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    media_type = _checked(content, f"`{path}`", _SUFFIXES.get(path.suffix.lower()), asked_at)
    digest = hashlib.sha256(content).hexdigest()
    return keep(Image(name, media_type, digest, len(content), path, access))


def data_url_image(url: str, asked_at: Location | None) -> Image:
    """Return the image that a data URL spells.

    Raises:
        ConfigError: one problem: it is no base64, is too large, or is no image of a known form.
    """
    match = _DATA_URL.fullmatch(url.strip())
    try:
        content = base64.b64decode(match[2], validate=True) if match else b""
    except binascii.Error:
        match = None
    if match is None:
        hint = "write data:image/png;base64,... or use a file: file://picture.png"
        raise ConfigError([Problem("this data URL is not a base64 image", asked_at, hint)])
    media_type = _checked(content, "the data URL", match[1].lower().replace("jpg", "jpeg"), asked_at)
    digest = hashlib.sha256(content).hexdigest()
    return keep(Image(DATA_URL_NAME, media_type, digest, len(content), data=content))


class ConfigImages:
    """The images that one config names, held as long as the config is in use."""

    def __init__(self) -> None:
        self._held: dict[Path | str, Image] = {}
        self._written_out = 0

    def find(self, value: str, files: SourceFiles, asked_at: Location | None) -> Image:
        """Return the image that a config names: a file, which is read once, or a data URL.

        Raises:
            ConfigError: one problem: it cannot be read, is no image, or is the marker of an image that no one has.
        """
        if is_marker(value):
            hint = "use the config file, which has the whole image"
            raise ConfigError([Problem("the run kept only the hash of this image", asked_at, hint)])
        if not value.startswith(FILE_PREFIX):
            return self._written(data_url_image(value, asked_at), asked_at)
        path = files.resolve(value, asked_at)
        if path not in self._held:
            self._held[path] = read_image(path, value.removeprefix(FILE_PREFIX), files.access, asked_at)
        return self._held[path]

    def _written(self, image: Image, asked_at: Location | None) -> Image:
        if image.sha256 not in self._held:
            self._written_out += image.size
            if self._written_out > _MOST_WRITTEN_OUT:
                message = f"the data URLs of the tests add up to more than {_MOST_WRITTEN_OUT // _MB} MB"
                raise ConfigError([Problem(message, asked_at, "use files instead: file://picture.png")])
            self._held[image.sha256] = image
        return image


_MOST_WRITTEN_OUT = 256 * _MB


def _checked(content: bytes, what: str, expected: str | None, asked_at: Location | None) -> str:
    """Return the media type by the first bytes, which must be the one that the name promises."""
    found = media_type_of(content)
    if not content:
        message, hint = f"{what} is empty", "use an image"
    elif len(content) > MAX_IMAGE_BYTES:
        message, hint = f"{what} is larger than {MAX_IMAGE_BYTES // _MB} MB", "make the image smaller"
    elif found is None:
        message, hint = f"{what} is not an image, judging by its first bytes", f"images are {_FORMATS}"
    elif expected is not None and found != expected:
        message = f"{what} is named {_called(expected)} but contains {_called(found)}"
        hint = "give it the right file extension or media type"
    else:
        return found
    raise ConfigError([Problem(message, asked_at, hint)])


def media_type_of(content: bytes) -> str | None:
    """Return the media type of an image by its first bytes; None for what is no image of a known form."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _STARTS if content.startswith(start)), None)


def _called(media_type: str) -> str:
    return media_type.removeprefix("image/").upper()


# -- in requests ------------------------------------------------------------------------------------------------


def with_images(request: ModelRequest) -> ModelRequest:
    """Return a request with images in the places of their markers and data URLs; the same one where there are none.

    A part of a message that is an image then holds its hash and its kind, by which equal requests are found, and the
    request holds the images.

    Raises:
        UnjudgeableError: it holds more images, or larger ones, than a request may.
    """
    found: dict[str, Image] = {}
    messages = tuple(_with_parts(message, found) for message in request.messages)
    if not found:
        return request
    problem = too_many(shown_images(messages, found))
    if problem:
        raise UnjudgeableError(problem, hint="show fewer or smaller images")
    return replace(request, messages=messages, images=tuple(found.values()))


def too_many(images: Sequence[Image]) -> str:
    """Return why a request may not hold these images, of which one may be there twice; "" when it may."""
    if len(images) > MAX_IMAGES:
        return f"one request has {len(images)} images; at most {MAX_IMAGES} are allowed"
    size = sum(image.size for image in images)
    if size > MAX_IMAGE_BYTES:
        most = MAX_IMAGE_BYTES // _MB
        return f"the images of one request add up to {size / _MB:.1f} MB; at most {most} MB are allowed"
    return ""


def shown_images(messages: tuple[Message, ...], images: Mapping[str, Image]) -> list[Image]:
    """Return the images of messages in order, as often as they are there; `images` are theirs, by hash."""
    return [images[part["sha256"]] for message in messages for part in image_parts(message)]


def images_of_messages(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], dict[str, Image]]:
    """Return messages with images in the places of their markers and data URLs, and these images by their hash."""
    found: dict[str, Image] = {}
    return tuple(_with_parts(message, found) for message in messages), found


def image_parts(message: Message) -> list[dict[str, JsonValue]]:
    """Return the parts of a message that are images, as `with_images` leaves them."""
    content = message.content if isinstance(message.content, list) else []
    return [part for part in content if is_image_part(part)]


def is_image_part(part: JsonValue) -> bool:
    """Return whether a part of a message is an image, as `with_images` leaves it."""
    return isinstance(part, dict) and part.get("type") == "image" and "sha256" in part


def with_parts_of(
    request: ModelRequest, form: Callable[[str, str, Mapping[str, JsonValue]], JsonValue]
) -> tuple[Message, ...]:
    """Return the messages with each image in the form of an API.

    Args:
        request: as `with_images` leaves it.
        form: makes a part of the media type, the bytes in base64, and the part as it was.

    Raises:
        UnjudgeableError: an image cannot be read any more.
    """
    if not request.images:
        return request.messages
    encoded = {image.sha256: base64.b64encode(image.read()).decode("ascii") for image in request.images}

    def converted(part: JsonValue) -> JsonValue:
        return form(part["media_type"], encoded[part["sha256"]], part) if is_image_part(part) else part

    return tuple(
        replace(message, content=[converted(part) for part in message.content])
        if isinstance(message.content, list)
        else message
        for message in request.messages
    )


def _with_parts(message: Message, found: dict[str, Image]) -> Message:
    content = message.content
    if message.role in _SYSTEM_ROLES or not _may_hold_image(content):
        return message
    if isinstance(content, str):
        parts = _parts_of_text(content, found)
    else:
        parts = [item for part in content for item in _parts_of_part(part, found)]
    if not any(map(is_image_part, parts)):
        return message
    return replace(message, content=parts)


def _may_hold_image(content: JsonValue) -> bool:
    if isinstance(content, str):
        return "[image: " in content or "data:image/" in content
    return isinstance(content, list)


def _parts_of_text(text: str, found: dict[str, Image]) -> list[JsonValue]:
    """Return a text cut at its images, each of which is a part of its own."""
    parts: list[JsonValue] = []
    position = 0
    for match in _PIECE.finditer(text):
        image = _image_of(match[0])
        if image is None:
            continue
        if match.start() > position:
            parts.append({"type": "text", "text": text[position : match.start()]})
        parts.append(_part_of(image, found))
        position = match.end()
    if position < len(text):
        parts.append({"type": "text", "text": text[position:]})
    return parts


def _parts_of_part(part: JsonValue, found: dict[str, Image]) -> list[JsonValue]:
    """Return a part of a message, or what it is cut into: a text, or an image in the form of any of the APIs."""
    if isinstance(part, str):
        return _parts_of_text(part, found) if _may_hold_image(part) else [part]
    if not isinstance(part, dict):
        return [part]
    if isinstance(part.get("text"), str) and part.get("type") in (None, "text", "input_text"):
        cut = _parts_of_text(part["text"], found) if _may_hold_image(part["text"]) else [part]
        return cut if len(cut) > 1 or any(map(is_image_part, cut)) else [part]
    written, detail = _written_image(part)
    image = None if written is None else _image_of(written)
    return [part] if image is None else [{**_part_of(image, found), **detail}]


def _written_image(part: Mapping[str, JsonValue]) -> tuple[str | None, dict[str, JsonValue]]:
    """Return the marker or data URL that an image's part has in the form of one of the APIs, and what OpenAI adds."""
    url = part.get("image_url")
    if isinstance(url, dict):
        detail = {"detail": url["detail"]} if "detail" in url else {}
        return (url["url"] if isinstance(url.get("url"), str) else None), detail
    if isinstance(url, str):
        return url, {"detail": part["detail"]} if "detail" in part else {}
    source = part.get("source") or part.get("inlineData") or part.get("inline_data")
    if not isinstance(source, dict) or not isinstance(source.get("data"), str):
        return None, {}
    data, kind = source["data"], source.get("media_type") or source.get("mimeType") or source.get("mime_type")
    return (data if data.startswith(("data:", "[image: ")) else f"data:{kind};base64,{data}"), {}


def _part_of(image: Image, found: dict[str, Image]) -> dict[str, JsonValue]:
    found[image.sha256] = image
    return {"type": "image", "media_type": image.media_type, "sha256": image.sha256}


def _image_of(written: str) -> Image | None:
    """Return the image of a marker or a data URL; None for what is neither, which stays what it is."""
    if written.startswith("[image: "):
        return find_image(written)
    if not written.startswith("data:image/"):
        return None
    try:
        return data_url_image(written, None)
    except ConfigError:
        return None


def written_out(value: JsonValue) -> JsonValue:
    """Return data with data URLs in the places of the markers that its texts are, for a file that stands for itself.

    Raises:
        UnjudgeableError: an image cannot be read any more.
    """
    if isinstance(value, str):
        image = find_image(value) if is_marker(value) else None
        if image is None:
            return value
        return f"data:{image.media_type};base64,{base64.b64encode(image.read()).decode('ascii')}"
    if isinstance(value, list | tuple):
        return [written_out(item) for item in value]
    if isinstance(value, dict):
        return {key: written_out(item) for key, item in value.items()}
    return value


# -- in results -------------------------------------------------------------------------------------------------


def without_image_data(value: JsonValue) -> JsonValue:
    """Return data with markers in the places of the data URLs in its texts: no result and no log holds bytes."""
    return _without(value) if _holds_image_data(value) else value


def _holds_image_data(value: JsonValue) -> bool:
    if isinstance(value, str):
        return "data:image/" in value
    if isinstance(value, list | tuple):
        return any(map(_holds_image_data, value))
    return isinstance(value, dict) and any(map(_holds_image_data, value.values()))


def _without(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _DATA_URLS.sub(_hashed, value)
    if isinstance(value, list | tuple):
        return [_without(item) for item in value]
    if isinstance(value, dict):
        return {key: _without(item) for key, item in value.items()}
    return value


_DATA_URLS = compile_later(r"data:image/[\w.+-]{1,40};base64,([A-Za-z0-9+/]+={0,2})")


def _hashed(match: re.Match[str]) -> str:
    text = match[1]
    try:
        content = base64.b64decode(text)
    except binascii.Error:
        content = text.encode()
    return f"[image: {DATA_URL_NAME} sha256:{hashlib.sha256(content).hexdigest()}]"

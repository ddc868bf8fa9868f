"""Images and audio in tests: read and checked once, identified by their hash, sent as bytes to models only.

In texts (variables, prompts, results, logs), an image is its marker, `[image: cat.png sha256:...]`, and a recording is
`[audio: call.wav sha256:...]`. Whatever sends a request replaces the markers by the bytes (`with_media`). So templates,
judges and reports handle both like a word, and the bytes are only in the file and on their way to the model.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ConfigError, Location, Problem, UnjudgeableError
from geval_cli.patterns import compile_later
from geval_cli.records import CHARACTERS_PER_IMAGE, CHARACTERS_PER_SECOND, JsonValue, Message, ModelRequest
from geval_cli.source.access import TRUSTED, Access, open_regular
from geval_cli.source.files import FILE_PREFIX, SourceFiles, open_problem

MAX_MEDIA = 20
"""How many images and recordings one request may have."""

MAX_MEDIA_BYTES = 20 * 1024 * 1024
"""How many bytes these may have together."""

DATA_URL_NAME = "data URL"
"""The name of media that is written out in the config instead of naming a file."""

_MB = 1024 * 1024
_SUFFIXES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
}
FORMATS = {
    "image": "images are png, jpeg, gif or webp",
    "audio": "audio is wav, mp3, flac or ogg",
}
EXAMPLES = {"image": "file://cat.png", "audio": "file://call.wav"}
DATA_URL_EXAMPLES = {"image": "data:image/png;base64,...", "audio": "data:audio/wav;base64,..."}
MEDIA_FIELDS: Mapping[str, str] = {"images": "image", "audio": "audio"}
"""The fields of a test that hold images or recordings, each with its kind of media."""
_A = {"image": "an image", "audio": "audio"}
_OTHER_NAMES = {
    "image/jpg": "image/jpeg",
    **dict.fromkeys(("audio/x-wav", "audio/wave", "audio/vnd.wave"), "audio/wav"),
    **dict.fromkeys(("audio/mp3", "audio/x-mp3"), "audio/mpeg"),
    "audio/x-flac": "audio/flac",
}
"""Alternative names of media types, with the usual ones."""
_STARTS = (
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_LONGEST_NAME = 200
_MARKER = compile_later(r"\[(?:image|audio): [^\[\]\n]{1,200} sha256:[0-9a-f]{64}\]")
_PIECE = compile_later(
    r"\[(?:image|audio): [^\[\]\n]{1,200} sha256:[0-9a-f]{64}\]"
    r"|data:(?:image|audio)/[\w.+-]{1,40};base64,[A-Za-z0-9+/]+={0,2}"
)
_DATA_URL = compile_later(r"data:((?:image|audio)/[\w.+-]{1,40});base64,(.*)\Z")
_MARKER_STARTS = ("[image: ", "[audio: ")
_DATA_URL_STARTS = ("data:image/", "data:audio/")
# Each marker and each data URL contains one of these: texts without them, which are nearly all, need no search.
_IN_MARKERS, _IN_DATA_URLS = " sha256:", ";base64,"
_NOT_IN_NAMES = compile_later(r"[\[\]\x00-\x1f\x7f]")
_SYSTEM_ROLES = frozenset({"system", "developer"})


class Media(Struct, frozen=True, weakref=True):
    """An image or a recording whose format was checked; its bytes are in the file at `path`, or else in `data`.

    Attributes:
        name: the path as written in the config.
        sha256: of the bytes, in hexadecimal.
        size: in bytes.
        bytes_per_s: of a recording, approximately.
    """

    name: str
    media_type: str
    sha256: str
    size: int
    path: Path | None = None
    access: Access = TRUSTED
    data: bytes = b""
    bytes_per_s: int = 0

    @property
    def kind(self) -> str:
        """Return `image` or `audio`."""
        return self.media_type.partition("/")[0]

    @property
    def characters(self) -> int:
        """Return the approximate length of a text that takes as many tokens."""
        if self.kind == "image":
            return CHARACTERS_PER_IMAGE
        return CHARACTERS_PER_SECOND * (1 + self.size // max(1, self.bytes_per_s))

    @property
    def marker(self) -> str:
        """Return the marker that represents it in texts."""
        return f"[{self.kind}: {_NOT_IN_NAMES.sub('_', self.name)[:_LONGEST_NAME]} sha256:{self.sha256}]"

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            UnjudgeableError: the file is gone, or its content has changed since it was checked.
        """
        if self.path is None:
            return self.data
        try:
            with open_regular(self.path, self.access) as stream:
                content = stream.read(MAX_MEDIA_BYTES + 1)
        except OSError as error:
            raise UnjudgeableError(open_problem(self.path, error, None).message) from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise UnjudgeableError(f"`{self.name}` has changed since the run began", hint="run again")
        return content


_KNOWN: WeakValueDictionary[str, Media] = WeakValueDictionary()
"""All media in use, by marker: a config's files are here as long as the config is in use."""


def keep(item: Media) -> Media:
    """Register an item by its marker while it is in use; return it, or an equal one that is already registered.

    An equal one from another path is replaced if it cannot be read.
    """
    known = _KNOWN.setdefault(item.marker, item)
    if known.path not in (None, item.path):
        try:
            known.read()
        except UnjudgeableError:
            _KNOWN[item.marker] = known = item
    return known


def find_media(marker: str) -> Media | None:
    """Return the media that a marker stands for; None if it is not in use."""
    return _KNOWN.get(marker)


def named_kind(value: JsonValue) -> str:
    """Return `image` or `audio` for a `file://` of that kind, such a data URL or such a marker; else ""."""
    if not isinstance(value, str):
        return ""
    if value.startswith(FILE_PREFIX):
        return _SUFFIXES.get(PurePosixPath(value).suffix.lower(), "").partition("/")[0]
    if value.startswith(_DATA_URL_STARTS):
        return value[5:10]
    return value[1:6] if is_marker(value) else ""


def names_media(value: JsonValue) -> bool:
    """Return whether a text is a `file://` with the extension of an image or of audio, or such a data URL."""
    return bool(named_kind(value)) and not is_marker(value)


def is_marker(value: JsonValue) -> bool:
    """Return whether a text is one marker and nothing else."""
    return (
        isinstance(value, str) and value.startswith(_MARKER_STARTS) and _MARKER.fullmatch(value) is not None
    )


def named_and_hashed(marker: str) -> tuple[str, str]:
    """Return the name and the SHA-256 in a marker."""
    name, _, digest = marker.partition(": ")[2].removesuffix("]").rpartition(" sha256:")
    return name, digest


def markers_in(value: JsonValue) -> Iterator[str]:
    """Yield the markers in a text, or in the texts of a list or mapping, including repeated ones."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if _IN_MARKERS in item:
                yield from _MARKER.findall(item)
        elif isinstance(item, list | tuple):
            pending.extend(reversed(item))
        elif isinstance(item, dict | Mapping):
            pending.extend(reversed([*item.values()]))


def read_media(path: Path, name: str, access: Access, asked_at: Location | None) -> Media:
    """Return the image or recording in a file.

    Args:
        path: of the file.
        name: the path as written in the config.
        access: what may be read.
        asked_at: where the file is named.

    Raises:
        ConfigError: one problem: the file cannot be read, is too large, or has an unknown format.
    """
    try:
        with open_regular(path, access) as stream:
            content = stream.read(MAX_MEDIA_BYTES + 1)
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    media_type = _checked(content, f"`{path}`", _SUFFIXES.get(path.suffix.lower(), "image/"), asked_at)
    digest = hashlib.sha256(content).hexdigest()
    return keep(
        Media(
            name,
            media_type,
            digest,
            len(content),
            path,
            access,
            bytes_per_s=_bytes_per_s(content, media_type),
        )
    )


def data_url_media(url: str, asked_at: Location | None) -> Media:
    """Return the image or recording in a data URL.

    Raises:
        ConfigError: one problem: it is another kind of URL, is not base64, is too large, or has an unknown format.
    """
    if url.lower().startswith(("http://", "https://")):
        message, hint = "images and audio are not fetched from URLs", "save the file and pass its path"
        raise ConfigError([Problem(message, asked_at, hint)])
    match = _DATA_URL.fullmatch(url.strip())
    try:
        content = base64.b64decode(match[2], validate=True) if match else b""
    except binascii.Error:
        match = None
    if match is None:
        kind = "audio" if url.strip().startswith("data:audio/") else "image"
        message = f"this data URL is not {'a base64 image' if kind == 'image' else 'base64 audio'}"
        hint = f"write {DATA_URL_EXAMPLES[kind]} or use a file: {EXAMPLES[kind]}"
        raise ConfigError([Problem(message, asked_at, hint)])
    written = match[1].lower()
    media_type = _checked(content, "the data URL", _OTHER_NAMES.get(written, written), asked_at)
    digest = hashlib.sha256(content).hexdigest()
    speed = _bytes_per_s(content, media_type)
    return keep(Media(DATA_URL_NAME, media_type, digest, len(content), data=content, bytes_per_s=speed))


class ConfigMedia:
    """The images and recordings that one config names, held as long as the config is in use."""

    def __init__(self) -> None:
        self._held: dict[Path | str, Media] = {}
        self._written_out = 0

    def find(self, value: str, files: SourceFiles, asked_at: Location | None) -> Media:
        """Return the media that a config names: a file, which is read once, or a data URL.

        Raises:
            ConfigError: one problem: it cannot be read, has an unknown format, or is a marker, which is only a hash;
                or the data URLs of the config are too large in total.
        """
        if is_marker(value):
            hint = "use the config file, which has all of it"
            what = "this image" if named_kind(value) == "image" else "this audio"
            raise ConfigError([Problem(f"the run kept only the hash of {what}", asked_at, hint)])
        if not value.startswith(FILE_PREFIX):
            return self._written(data_url_media(value, asked_at), asked_at)
        path = files.resolve(value, asked_at)
        if path not in self._held:
            self._held[path] = read_media(path, value.removeprefix(FILE_PREFIX), files.access, asked_at)
        return self._held[path]

    def _written(self, item: Media, asked_at: Location | None) -> Media:
        if item.sha256 not in self._held:
            self._written_out += item.size
            if self._written_out > _MOST_WRITTEN_OUT:
                message = f"the data URLs of the tests add up to more than {_MOST_WRITTEN_OUT // _MB} MB"
                hint = f"use files instead: {EXAMPLES[item.kind]}"
                raise ConfigError([Problem(message, asked_at, hint)])
            self._held[item.sha256] = item
        return item


_MOST_WRITTEN_OUT = 256 * _MB


def _checked(content: bytes, what: str, expected: str, asked_at: Location | None) -> str:
    """Return the media type by the first bytes; it must match the type that the name promises, if it promises one."""
    kind = expected.partition("/")[0]
    found = media_type_of(content)
    if not content:
        message = f"{what} is empty"
        hint = "use another image" if kind == "image" else "use another recording"
    elif len(content) > MAX_MEDIA_BYTES:
        smaller = "make the image smaller" if kind == "image" else "use a shorter or compressed recording"
        message = f"{what} is larger than {MAX_MEDIA_BYTES // _MB} MB"
        hint = smaller
    elif found is None:
        message = f"{what} is not {_A[kind]}, judging by its first bytes"
        hint = FORMATS[kind]
    elif found != expected and not expected.endswith("/"):
        message = f"{what} is named {called(expected)} but contains {called(found)}"
        hint = "give it the right file extension or media type"
    else:
        return found
    raise ConfigError([Problem(message, asked_at, hint)])


def media_type_of(content: bytes) -> str | None:
    """Return the media type of an image or recording by its first bytes; None for an unknown format."""
    if content[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(content[8:12])
    if _is_mp3_frame(content[:4]):
        return "audio/mpeg"
    return next((kind for start, kind in _STARTS if content.startswith(start)), None)


def _is_mp3_frame(start: bytes) -> bool:
    """Return whether a file begins with a frame of MPEG audio, layer III, with a valid bit rate and sample rate."""
    is_layer_3 = len(start) > 2 and start[0] == 0xFF and start[1] & 0xE6 == 0xE2 and start[1] & 0x18 != 0x08  # noqa: PLR2004
    return is_layer_3 and 0x10 <= start[2] < 0xF0 and start[2] & 0x0C != 0x0C  # noqa: PLR2004


def _bytes_per_s(content: bytes, media_type: str) -> int:
    """Return the bytes per second of a recording, read from a WAV file, or a usual rate for other formats."""
    if media_type == "audio/wav" and content[12:16] == b"fmt ":
        return int.from_bytes(content[28:32], "little") or _USUAL_BYTES_PER_S
    return _USUAL_BYTES_PER_S


_USUAL_BYTES_PER_S = 16_000


def called(media_type: str) -> str:
    """Return the name of a format as people write it."""
    return "MP3" if media_type == "audio/mpeg" else media_type.partition("/")[2].upper()


# -- in requests ------------------------------------------------------------------------------------------------


def with_media(request: ModelRequest, without: Collection[str] = ()) -> ModelRequest:
    """Return a request with images and recordings in place of their markers and data URLs, if it has any.

    Each becomes a part of its message that holds its hash and kind, by which equal requests are found, while the
    request holds the media itself. Media of the types in `without` stay text.

    Raises:
        UnjudgeableError: it has more or larger media than a request may have.
    """
    found: dict[str, Media] = {}
    messages = tuple(_with_parts(message, found, without) for message in request.messages)
    if not found:
        return request
    problem = too_many(shown_media(messages, found))
    if problem:
        raise UnjudgeableError(problem, hint=FEWER_HINT)
    return replace(request, messages=messages, media=tuple(found.values()))


FEWER_HINT = "use fewer or smaller files"


def too_many(shown: Sequence[Media]) -> str:
    """Return why a request may not have all these media, some of which may be repeated; "" if it may."""
    words = {"image": "images", "audio": "recordings"}
    named = " and ".join(word for kind, word in words.items() if any(item.kind == kind for item in shown))
    if len(shown) > MAX_MEDIA:
        return f"one request has {len(shown)} {named}; at most {MAX_MEDIA} are allowed"
    size = sum(item.size for item in shown)
    if size > MAX_MEDIA_BYTES:
        most = MAX_MEDIA_BYTES // _MB
        return f"the {named} of one request add up to {size / _MB:.1f} MB; at most {most} MB are allowed"
    return ""


def counted(shown: Sequence[Media]) -> str:
    """Return the number of images and recordings in words."""
    images = sum(item.kind == "image" for item in shown)
    recordings = len(shown) - images
    words = [
        "an image" if images == 1 else f"{images} images",
        "a recording" if recordings == 1 else f"{recordings} recordings",
    ]
    return " and ".join(word for word, count in zip(words, (images, recordings), strict=True) if count)


def shown_media(messages: tuple[Message, ...], found: Mapping[str, Media]) -> list[Media]:
    """Return the images and recordings of messages in order, including repeated ones; `found` has them by hash."""
    return [found[part["sha256"]] for message in messages for part in media_parts(message)]


def media_of_messages(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], dict[str, Media]]:
    """Return messages with images and recordings in place of their markers, and these by their hash."""
    found: dict[str, Media] = {}
    return tuple(_with_parts(message, found) for message in messages), found


def media_parts(message: Message) -> list[dict[str, JsonValue]]:
    """Return the parts of a message that are images or recordings in the form that `with_media` returns."""
    content = message.content if isinstance(message.content, list) else []
    return [part for part in content if is_media_part(part)]


def is_media_part(part: JsonValue) -> bool:
    """Return whether a part of a message is an image or a recording in the form that `with_media` returns."""
    return isinstance(part, dict) and part.get("type") in ("image", "audio") and "sha256" in part


def with_parts_of(
    request: ModelRequest, form: Callable[[str, str, Mapping[str, JsonValue]], JsonValue]
) -> tuple[Message, ...]:
    """Return the messages with each image and recording in the format of an API.

    Args:
        request: as returned by `with_media`.
        form: makes the API's part from the media type, the bytes in base64, and the original part.

    Raises:
        UnjudgeableError: a file cannot be read.
    """
    if not request.media:
        return request.messages
    encoded = {item.sha256: base64.b64encode(item.read()).decode("ascii") for item in request.media}

    def converted(part: JsonValue) -> JsonValue:
        return form(part["media_type"], encoded[part["sha256"]], part) if is_media_part(part) else part

    return tuple(
        replace(message, content=[converted(part) for part in message.content])
        if isinstance(message.content, list)
        else message
        for message in request.messages
    )


def _with_parts(message: Message, found: dict[str, Media], without: Collection[str] = ()) -> Message:
    content = message.content
    if message.role in _SYSTEM_ROLES or not _may_hold_media(content):
        return message
    if isinstance(content, str):
        parts = _parts_of_text(content, found, without)
    else:
        parts = [item for part in content for item in _parts_of_part(part, found, without)]
    if not any(map(is_media_part, parts)):
        return message
    return replace(message, content=parts)


def _may_hold_media(content: JsonValue) -> bool:
    if isinstance(content, str):
        return _IN_MARKERS in content or _IN_DATA_URLS in content
    return isinstance(content, list)


def _parts_of_text(text: str, found: dict[str, Media], without: Collection[str]) -> list[JsonValue]:
    """Split a text at its images and recordings, each of which becomes a part of its own."""
    parts: list[JsonValue] = []
    position = 0
    for match in _PIECE.finditer(text):
        item = _media_of(match[0])
        if item is None or item.media_type in without:
            continue
        if match.start() > position:
            parts.append({"type": "text", "text": text[position : match.start()]})
        parts.append(_part_of(item, found))
        position = match.end()
    if position < len(text):
        parts.append({"type": "text", "text": text[position:]})
    return parts


def _parts_of_part(part: JsonValue, found: dict[str, Media], without: Collection[str]) -> list[JsonValue]:
    """Return a part of a message, or the parts it is split into: text, or an image or audio in any API's format."""
    if isinstance(part, str):
        return _parts_of_text(part, found, without) if _may_hold_media(part) else [part]
    if not isinstance(part, dict):
        return [part]
    if isinstance(part.get("text"), str) and part.get("type") in (None, "text", "input_text"):
        cut = _parts_of_text(part["text"], found, without) if _may_hold_media(part["text"]) else [part]
        return cut if len(cut) > 1 or any(map(is_media_part, cut)) else [part]
    written, detail = _written_media(part)
    item = None if written is None else _media_of(written)
    return [part] if item is None or item.media_type in without else [{**_part_of(item, found), **detail}]


def _written_media(part: Mapping[str, JsonValue]) -> tuple[str | None, dict[str, JsonValue]]:
    """Return the marker or data URL in a part in the format of one of the APIs, and the detail that OpenAI adds."""
    url = part.get("image_url")
    if isinstance(url, dict):
        detail = {"detail": url["detail"]} if "detail" in url else {}
        return (url["url"] if isinstance(url.get("url"), str) else None), detail
    if isinstance(url, str):
        return url, {"detail": part["detail"]} if "detail" in part else {}
    source = (
        part.get("source") or part.get("inlineData") or part.get("inline_data") or part.get("input_audio")
    )
    if not isinstance(source, dict) or not isinstance(source.get("data"), str):
        return None, {}
    data = source["data"]
    kind = source.get("media_type") or source.get("mimeType") or source.get("mime_type")
    if kind is None and isinstance(source.get("format"), str):
        kind = f"audio/{source['format']}"
    return (data if data.startswith(("data:", *_MARKER_STARTS)) else f"data:{kind};base64,{data}"), {}


def _part_of(item: Media, found: dict[str, Media]) -> dict[str, JsonValue]:
    found[item.sha256] = item
    return {"type": item.kind, "media_type": item.media_type, "sha256": item.sha256}


def _media_of(written: str) -> Media | None:
    """Return the media that a marker or a data URL stands for; None for anything else, which is left unchanged."""
    if written.startswith(_MARKER_STARTS):
        return find_media(written)
    if not written.startswith(_DATA_URL_STARTS):
        return None
    try:
        return data_url_media(written, None)
    except ConfigError:
        return None


def written_out(value: JsonValue) -> JsonValue:
    """Return data with each text that is a marker replaced by a data URL, for a file that must be self-contained.

    Raises:
        UnjudgeableError: a file cannot be read.
    """
    if isinstance(value, str):
        item = find_media(value) if is_marker(value) else None
        if item is None:
            return value
        return f"data:{item.media_type};base64,{base64.b64encode(item.read()).decode('ascii')}"
    if isinstance(value, list | tuple):
        return [written_out(item) for item in value]
    if isinstance(value, dict):
        return {key: written_out(item) for key, item in value.items()}
    return value


# -- in results -------------------------------------------------------------------------------------------------


def without_media_data(value: JsonValue) -> JsonValue:
    """Return data with the data URLs in its texts replaced by markers: results and logs hold no bytes."""
    return _without(value) if _holds_data_url(value) else value


def _holds_data_url(value: JsonValue) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if _IN_DATA_URLS in item:
                return True
        elif isinstance(item, list | tuple):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
    return False


def _without(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _DATA_URLS.sub(_hashed, value)
    if isinstance(value, list | tuple):
        return [_without(item) for item in value]
    if isinstance(value, dict):
        return {key: _without(item) for key, item in value.items()}
    return value


_DATA_URLS = compile_later(r"data:(image|audio)/[\w.+-]{1,40};base64,([A-Za-z0-9+/]+={0,2})")


def _hashed(match: re.Match[str]) -> str:
    text = match[2]
    try:
        content = base64.b64decode(text)
    except binascii.Error:
        content = text.encode()
    return f"[{match[1]}: {DATA_URL_NAME} sha256:{hashlib.sha256(content).hexdigest()}]"

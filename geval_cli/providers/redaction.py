"""Keeps keys out of everything that is shown to people or written to files."""

import hashlib
import html
import json
import zlib
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import lru_cache
from itertools import chain
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlencode, urlunsplit

from msgspec import structs

from geval_cli.patterns import compile_later
from geval_cli.providers.network.addresses import split_url
from geval_cli.records import Choice, JsonValue
from geval_cli.source.secrets import MASK, is_ordinary_word, is_secret_parameter, mask_bare

EXCERPT_CHARS = 2_000
"""The maximum length of the excerpt of a server's answer in an error."""

_MIN_SECRET_CHARS = 4
"""Shorter values are not masked: replacing every "x" would make messages unreadable."""


MIN_ECHOED_CHARS = 12
"""The minimum length of a value that is masked in answers, too."""

_LEARNT: dict[str, tuple[str, ...]] = {}


def learn_secret(value: str) -> None:
    """Hide `value`, which is in neither a config nor the environment, wherever this process hides secrets."""
    if len(value) >= _MIN_SECRET_CHARS and not is_ordinary_word(value):
        _LEARNT[value] = tuple(sorted({*_spellings(value)}, key=len, reverse=True))


class Secrets:
    """The values that must not be shown. `repr` does not show them either."""

    __slots__ = ("_long", "_long_plain", "_plain", "_shortest", "_values", "_words")

    def __init__(self, values: Iterable[str | None] = ()) -> None:
        known = {value for value in values if value and len(value) >= _MIN_SECRET_CHARS}
        self._words = tuple(sorted(filter(is_ordinary_word, known), key=len, reverse=True))
        secrets = known.difference(self._words)
        self._plain = _unquoted(secrets)
        spellings = {spelling for value in secrets for spelling in _spellings(value)}
        # Longest first: masking a key that is part of a longer one would leave the rest of that one readable.
        self._values = tuple(sorted(spellings, key=len, reverse=True))
        long = {value for value in secrets if len(value) >= MIN_ECHOED_CHARS}
        of_long = {spelling for value in long for spelling in _spellings(value)}
        self._long = tuple(value for value in self._values if value in of_long)
        self._long_plain = _unquoted(long)
        # A text shorter than this, such as most model names, cannot contain a secret in any spelling.
        self._shortest = min([_MIN_PACKED_CHARS, *map(len, self._values), *map(len, self._plain)])

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} hidden)"

    def redact(self, text: str) -> str:
        """Return `text` with every known secret, and everything that looks like a key, masked: for errors."""
        text = self.hide(text)
        for word in self._words:
            text = text.replace(word, MASK)
        return mask_bare(text)

    def hide(self, text: str) -> str:
        """Return `text` with only the known secrets masked: for prose, which may well talk about keys.

        Secrets that are ordinary words are not: `postgres` would change texts that are judged again.
        """
        if not _LEARNT and len(text) < self._shortest:
            return text
        for value in chain(self._values, *_LEARNT.values()) if _LEARNT else self._values:
            text = text.replace(value, MASK)
        return _hide_escaped(text, {*self._plain, *_unquoted(_LEARNT)} if _LEARNT else self._plain)

    def hide_echo(self, choice: Choice) -> Choice:
        """Return an answer without the keys of its request, which a server may echo.

        Only long values are masked: masking a password that is an ordinary word would change answers by chance.
        """
        said = self._without_long(choice.text)
        calls = tuple(self._calls_without_long(call) for call in choice.tool_calls)
        message = choice.message
        if message is not None:
            parts = {"content": message.content, "further": message.further}
            message = structs.replace(message, **self._calls_without_long(parts))
        if said == choice.text and calls == choice.tool_calls and message == choice.message:
            return choice
        return structs.replace(choice, text=said, tool_calls=calls, message=message)

    def _without_long(self, text: str) -> str:
        learnt = (
            {key: found for key, found in _LEARNT.items() if len(key) >= MIN_ECHOED_CHARS} if _LEARNT else {}
        )
        for value in chain(self._long, *learnt.values()):
            text = text.replace(value, MASK)
        return _hide_escaped(text, {*self._long_plain, *_unquoted(learnt)} if learnt else self._long_plain)

    def _calls_without_long(self, call: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        written = json.dumps(call, ensure_ascii=False)
        said = self._without_long(written)
        if said == written:
            return call
        try:
            found: Mapping[str, JsonValue] = json.loads(said)
        except ValueError:  # part of an escape looked like the beginning of the key
            found = dict.fromkeys(call, MASK)
        return found

    def hide_in(self, value: JsonValue) -> JsonValue:
        """Return JSON data with every known secret in its texts masked; data without secrets is returned unchanged."""
        # Nearly all data is free of secrets, and searching all texts at once takes a tenth of the time.
        texts = "\0".join(_texts_in(value))
        return value if self.hide(texts) == texts else self._hidden(value)

    def _hidden(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {key: self._hidden(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(item) for item in value]
        return value

    def excerpt(self, text: str) -> str:
        """Return the redacted beginning of `text`, at most `EXCERPT_CHARS` long."""
        redacted = self.redact(text)
        if len(redacted) <= EXCERPT_CHARS:
            return redacted
        return redacted[: EXCERPT_CHARS - 1] + "…"


def public_url(url: str) -> str:
    """Return `url` without user name, password and secret query parameters."""
    parts = split_url(url)
    if not parts.scheme:  # its structure is unknown, so drop everything that may be a password
        return url.rpartition("@")[2].partition("?")[0]
    query = urlencode(
        [(name, value) for name, value in parse_qsl(parts.query) if not is_secret_parameter(name)]
    )
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def keyed_url(url: str) -> str:
    """Return `url` for a cache key: secrets in it become hashes, since another account may get other answers."""
    parts = split_url(url)
    user, at, host = parts.netloc.rpartition("@")
    query = parse_qsl(parts.query, keep_blank_values=True)
    keyed = urlencode([(name, keyed_value(name, value)) for name, value in query])
    netloc = f"{_hash(user)}@{host}" if at else host
    return urlunsplit((parts.scheme, netloc, parts.path, keyed, ""))


def keyed_value(name: str, value: str) -> str:
    """Return a header or query value for a cache key: its hash if the name says that it is secret."""
    return _hash(value) if is_secret_parameter(name) else value


def _hash(value: str) -> str:
    return f"sha256:{hashlib.sha256(value.encode('utf-8', 'replace')).hexdigest()}"


def _spellings(value: str) -> Iterable[str]:
    """Yield the spellings of a secret: plain, in URLs, HTML, JSON, nested JSON, hex and Base64 (also within more)."""
    plain = unquote(value)
    quoted = quote(plain, safe="")
    yield from (value, plain, quoted, quote_plus(plain), _PERCENT.sub(lambda found: found[0].lower(), quoted))
    # `[1:-1]`: JSON's spelling without the quotes, since the value may be part of a longer text.
    once = json.dumps(value)[1:-1]
    yield from (once, json.dumps(once)[1:-1], once.replace("/", "\\/"), html.escape(value))
    yield once.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    for written in {value, plain}:  # a `%6d` may be part of a key, or the escape of a letter
        digits, middles = _encoded(written)
        found = (digits, digits.upper(), *middles, *(one.translate(_TO_URL) for one in middles))
        yield from filter(None, found)
    # The form in which Basic authentication sends the user and password of a URL.
    if ":" in plain:
        yield b64encode(plain.encode("utf-8", "replace")).decode()


def _texts_in(value: JsonValue) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is str:
            yield item
        elif kind is dict:
            pending.extend(item.values())
        elif kind is list or kind is tuple:
            pending.extend(item)
        elif item is None or kind is bool or kind is int or kind is float:
            continue
        elif isinstance(item, str):
            yield str(item)
        elif isinstance(item, Mapping):
            pending.extend(item.values())


def _unquoted(secrets: Iterable[str]) -> frozenset[str]:
    """Return `secrets` both unchanged and without the escapes of a URL."""
    return frozenset(written for value in secrets for written in (value, unquote(value)))


def _hide_escaped(text: str, secrets: Set[str]) -> str:
    """Mask `secrets` written with unnecessary escapes, or as bytes or Base64 in groups or on several lines."""
    if not secrets:
        return text
    escapes = list(_ESCAPE.finditer(text)) if "\\" in text or "%" in text or "&" in text else []
    spans = [*_in_groups(text, secrets), *_packed(text, secrets)]
    if not escapes and not spans:
        return text
    characters: list[str] = []
    starts: list[int] = []
    end = 0
    for found in escapes:
        characters += text[end : found.start()]
        starts += range(end, found.start())
        end = found.end()
        number = next((group for group in found.group(1, 2, 3, 4, 5) if group), None)
        code = int(found[6]) if found[6] else int(number, 16) if number else None
        said = (
            found[7] or html.unescape(f"&{found[8]};")
            if code is None
            else chr(code)
            if code < _CODES
            else "?"
        )
        characters += said
        starts += [found.start()] * len(said)
    characters += text[end:]
    starts += range(end, len(text) + 1)
    plain = "".join(characters)
    for secret in secrets if escapes else ():
        at = plain.find(secret)
        while at >= 0:
            spans.append((starts[at], starts[at + len(secret)]))
            at = plain.find(secret, at + len(secret))
    kept = len(text)
    for start, end in sorted(spans, key=lambda span: span[1], reverse=True):
        if start < kept:  # otherwise it is within a span that is masked already
            text = f"{text[:start]}{MASK}{text[end:] if end <= kept else text[kept:].removeprefix(MASK)}"
            kept = start
    return text


def _in_groups(text: str, secrets: Set[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans where the bytes or the Base64 of a secret are written in groups or on several lines."""
    # Every answer is checked here. Searching the text without separators takes a tenth of the patterns' time.
    joined = "".join(text.split())
    lines = joined.replace("\\n", "").replace("\\r", "").replace("-", "+").replace("_", "/")
    digits = joined.replace("0x", "").replace("\\x", "")
    digits = digits.replace(":", "").replace(",", "").replace("-", "").lower()
    for secret in secrets:
        digits_of, lines_of = _encoded(secret)
        if digits_of and digits_of in digits:
            for found in _HEXADECIMAL.finditer(text):
                if digits_of in _BETWEEN_BYTES.sub("", found[0]).lower():
                    yield found.span()
        if lines_of and (lines_of[0] in lines or lines_of[1] in lines or lines_of[2] in lines):
            for found in _BROKEN_BASE64.finditer(text):
                run = _BETWEEN_LINES.sub("", found[0]).translate(_FROM_URL)
                if any(one in run for one in lines_of):
                    yield found.span()


@lru_cache(maxsize=1024)
def _encoded(secret: str) -> tuple[str, tuple[str, ...]]:
    """Return a secret in hexadecimal, and in Base64 for each position within a group; nothing for a short one."""
    data = secret.encode("utf-8", "replace")
    if len(data) < _MIN_ENCODED_BYTES:
        return "", ()
    middles = (
        b64encode(bytes(before) + data).decode()[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        for before in range(3)
    )
    return data.hex(), tuple(middles)


def _packed(text: str, secrets: Set[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of Base64 of gzip or zlib data that contains a secret."""
    if "H4sI" in text or "eJ" in text or "eN" in text or "eA" in text or "eF" in text:
        for found in _PACKED.finditer(text):
            said = _unpacked(found[0])
            if any(secret.encode("utf-8", "replace") in said for secret in secrets):
                yield found.span()


def _unpacked(text: str) -> bytes:
    """Return the beginning of the gzip or zlib data in a Base64 text; empty if it is something else."""
    try:
        data = urlsafe_b64decode(text.translate(_TO_URL).rstrip("=") + "==")
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, _MOST_UNPACKED_BYTES)
    except (zlib.error, ValueError):
        return b""


_CODES = 0x110000
_MOST_UNPACKED_BYTES = 1 << 20
_TO_URL = str.maketrans("+/", "-_")
_MIN_PACKED_CHARS = 22
_PACKED = compile_later(r"(?:H4sI|e[JNAF])[\w+/-]{20,}={0,2}")
_FROM_URL = str.maketrans("-_", "+/")
_ESCAPE = compile_later(
    # The escapes of JSON, Python, JavaScript, URLs and HTML for a character, including double escapes.
    r"\\\\{0,7}(?:u\{0{0,4}([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))"
    r"|%(?:25){0,3}([0-9a-fA-F]{2})|&(?:amp;){0,3}#(?:[xX]0{0,8}([0-9a-fA-F]{1,6})|0{0,8}([0-9]{1,7}));?"
    r"|\\\\{0,7}([^\w\s\\])|&(?:amp;){0,3}([a-zA-Z]{2,8});"
)
_HEXADECIMAL = compile_later(
    r"(?<!\\)(?<!\\u)[0-9a-fA-F]{2}(?:(?:[\s:,-]{1,2}(?:0x|\\x)?|0x|\\x)?[0-9a-fA-F]{2}){7,}"
)
_BROKEN_BASE64 = compile_later(
    r"(?:\\[rn]|(?<![\\\w+/=-]))[\w+/=-]{4,}(?:(?:[\r\n]{1,2}|(?:\\[rn]){1,2})[\w+/=-]+)+"
)
_BETWEEN_BYTES = compile_later(r"0x|\\x|[\s:,-]")
_BETWEEN_LINES = compile_later(r"\\[rn]|\s")
_PERCENT = compile_later("%[0-9A-F]{2}")
_MIN_ENCODED_BYTES = 8

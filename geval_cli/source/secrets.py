"""Find secrets (keys and passwords), which are never shown or stored, by their name, their place or their form."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from urllib.parse import unquote

from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue

MASK = "***"

_WORD = compile_later(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_KEY_WORDS = frozenset({"key", "keys", "apikey", "apikeys", "accesskey", "authkey", "secretkey"})
_SECRET_WORDS = _KEY_WORDS | {
    "auth", "authentication", "oauth", "bearer", "jwt", "pass", "passphrase", "pwd", "sig"
}  # fmt: skip
_SECRET_ENDINGS = (
    "authorization", "connectionstring", "cookie", "cookies", "credential", "credentials", "passwd", "password",
    "passwords", "secret", "secrets", "signature", "token",
)  # fmt: skip
# Suffixes that leave a name a secret: OPENAI_API_KEY_PROD. In `api_key_env` and `token_url` the suffix says otherwise.
_TAILS = frozenset({"base", "default", "dev", "new", "old", "prod", "production", "staging", "test", "value"})
_OTHER_KEYS = frozenset(
    {
        "answer", "cache", "chat", "content", "context", "document", "documents", "foreign", "group", "history",
        "idempotency", "input", "memory", "message", "messages", "output", "partition", "primary", "prompt", "public",
        "question", "response", "result", "routing", "sort", "text",
    }
)  # fmt: skip
_OTHER_TOKENS = frozenset(
    {
        "bos", "cls", "end", "eos", "first", "last", "mask", "max", "min", "next", "pad", "per", "sep", "start", "stop",
        "unk",
    }
)  # fmt: skip
# Two folders, and the path of a file.
_NO_SECRETS = frozenset({"PWD", "OLDPWD", "GOOGLE_APPLICATION_CREDENTIALS"})
_SECRET_PARAMETERS = frozenset({"code", "key"})  # Azure Functions and Google take their keys in these

_PLACE = r"\{\{[^{}]*\}\}"
_QUOTED = r"\"(?:\\.|[^\"\\])*\"?|'(?:''|[^'])*'?"
_REFERENCE = compile_later(
    r"(?:(?:Bearer|Basic|Token|Digest|ApiKey|Key) )?(?:\{\{[^{}'\"]*\}\}[:@]?)+", re.IGNORECASE
)
_NAMED = compile_later(r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]*)(?:\\?[\"'])?\s*[:=]\s*\\?")
_NAMED_VALUE = compile_later(
    rf"{_QUOTED}|\[(?:[^\[\]]|\[[^\[\]]*\])*\]?|\{{(?!\{{)(?:[^{{}}]|\{{[^{{}}]*\}})*\}}?"
    rf"|(?:{_PLACE}|[^\s,}}\]])(?:{_PLACE}|[^,}}\]\r\n]|[,}}\]](?=[\w!#$%*+./:;=?@^~-]))*"
)
_FLAG = compile_later(
    rf"(?<![^\s\"',\[])--?(?P<name>[A-Za-z][\w-]*)(?:=|[\"']?,\s*|\s+)(?P<value>{_QUOTED}|[^\s,\]]\S*)"
)
_FLAG_ALONE = compile_later(r"--?(?P<name>[A-Za-z][\w-]*)")
_PARAMETER = compile_later(rf"[?&#;](?P<name>[\w.~%-]+)=(?P<value>(?:{_PLACE}|[^&#;\s\"'<>\\{{}}])+)")
_USER_INFO = compile_later(rf"(?<=://)(?P<value>(?:{_PLACE}|[^/?#\s\"'{{}}])+)(?=@)")
_FALLBACK = compile_later(rf"\benv\.(?P<name>\w+)\s*\|\s*default\(\s*(?P<value>{_QUOTED})")
_BARE = compile_later(
    r"\b(?:sk|pk|rk|gsk|xai)-[\w*.-]{8,}|\bgsk_\w{6,}|\bAIza[\w-]{20,}|\bgh[pousr]_\w{20,}|\bhf_\w{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?<=[Bb]earer )(?=\S*(?:[0-9A-Z_+/=*-]|\.\w))[\w.~+/=*-]{6,}|(?<=[Bb]asic )(?=\S*[0-9=+/])[\w+/=-]{8,}"
)
_PLAIN_HEADERS = frozenset(
    {
        "accept", "accept-charset", "accept-encoding", "accept-language", "anthropic-beta", "anthropic-version",
        "cache-control", "connection", "content-encoding", "content-language", "content-type", "host", "http-referer",
        "openai-beta", "openai-organization", "openai-project", "origin", "pragma", "prefer", "referer", "user-agent",
        "x-title",
    }
)  # fmt: skip
_ORDINARY = compile_later(
    r"true|false|yes|no|on|off|null|none|auto|default|v?\d{1,5}(?:\.\d+)*|\d{4}-\d\d-\d\d(?:-preview)?"
    r"|[a-z]{2}(?:-[A-Z]{2})?|(?:application|audio|image|multipart|text|\*)/[\w.+*-]+(?:\s*;.*)?",
    re.IGNORECASE,
)
_WORDS = compile_later(r"[A-Z]?[a-z]{1,14}(?:[ ._-][A-Z]?[a-z]{1,14})*|[A-Z]{1,8}|\d{1,7}")
_MIN_HEADER = 6
"""Of headers without a secret name, shorter values are masked only in place, not wherever they occur in a text."""

_MOST_HEADERS = 200  # how many lines above a header are searched for `headers:`

_HEADERS_BLOCK = compile_later(rf"""(?<![\w.-])headers["']?\s*:\s*\{{(?P<inside>(?:{_PLACE}|[^{{}}])*)""")
_HEADER_PAIR = compile_later(
    rf"""(?P<name>(?<![\w-])[\w-]+|"[^"]*"|'[^']*')\s*:\s*(?P<value>{_QUOTED}|(?:{_PLACE}|[^,{{}}\s])(?:{_PLACE}|[^,{{}}])*)"""
)
_PARENT_LINE = compile_later(r"""\s*(?:- )?["']?(?P<name>[\w.-]+)["']?\s*:\s*(?:[{[&|>].*|)$""")
_FREE_TEXT_KEYS = frozenset({"vars", "metadata"})
_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_PUBLIC = frozenset({"audience", "granttype", "scope", "scopes", "tokenurl", "type"})  # in `auth: {...}`
_PARAMETERS = frozenset({"query", "query_params", "queryparams"})
_VARIABLE_KEYS = frozenset({"api_key_env", "apiKeyEnvar"})
_KEY_LIKE = "0123456789abcdef"  # a name has no such word: as long, with a digit
_VARIABLE = compile_later(r"\benv\.(\w+)")
_PROVIDER_KEYS = frozenset({"providers", "provider"})
_MIN_PART = 8  # characters of a part of a cookie or credential; shorter words would be masked everywhere
_BETWEEN_PARTS = compile_later(r"(?:\\[nr]|[\s;,:=\"'{}\[\]])+")
_NO_PART = compile_later(r"//.*|[A-Za-z._/-]+")  # addresses, names and words in a connection string
_MAX_WORDS_CHARS = 18  # as many as `client_credentials` has; longer ones may be a passphrase


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a config key, environment variable, header or query parameter of this name is a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1] in _TAILS:
        words.pop()
    if not words or words == ["key"] or name in _NO_SECRETS:
        return False
    before, last = ["", *words][-2:]
    if last in _KEY_WORDS:
        return before not in _OTHER_KEYS and (
            last != "keys" or before in {"api", "access", "secret", "private"}
        )
    if last == "token":
        return before not in _OTHER_TOKENS
    return (
        last in _SECRET_WORDS or last.endswith(_SECRET_ENDINGS) or (before, last) == ("connection", "string")
    )


def is_ordinary_word(value: str) -> bool:
    """Return whether a secret is a word or two or a short number, such as `postgres`, which any text may contain."""
    return len(value) <= _MAX_WORDS_CHARS and _WORDS.fullmatch(value) is not None


def is_variable_name(value: object) -> bool:
    """Return whether `value` may be the name of a variable, where some write the key itself."""
    parts = value.split("_") if isinstance(value, str) and value and not _BARE.search(value) else [_KEY_LIKE]
    return all(len(part) < len(_KEY_LIKE) or not re.search(r"\d", part) for part in parts)


def is_secret_parameter(name: str) -> bool:
    """Return whether a header or query parameter, named as in a URL, is secret: `code` and `key` count as keys here."""
    plain = unquote(name)
    return is_secret_name(plain) or plain.lower() in _SECRET_PARAMETERS


def secret_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of secrets in a text (a source line, a URL, a command): sorted (start, end), no overlaps."""
    return _joined([*_marked_places(text), *_named_places(text)])


def mask_text(text: str) -> str:
    """Return `text` with everything that looks like a secret replaced by `***`."""
    return _without(text, secret_spans(text))


def mask_bare(text: str) -> str:
    """Return `text` with everything masked that has the form of a key: for prose, in which names mean nothing."""
    return _BARE.sub(MASK, text)


def mask_config(value: JsonValue, *, hides_headers: bool = True) -> JsonValue:
    """Return a config as data, with its secrets masked. The variables of tests are kept, whatever they are called.

    Without `hides_headers`, headers without a secret name keep their values: the rule that digests are computed with.
    """
    return _masked(value, is_secret=False, may_be_free=True, hides_headers=hides_headers)


def is_plain_header(name: str, value: JsonValue) -> bool:
    """Return whether a header cannot hold a secret, judging by its name or its value.

    Any other header in a config may be what a company's gateway identifies its users by, whatever it is called.
    """
    if is_secret_parameter(name):
        return False
    text = str(value).strip()
    return name.lower() in _PLAIN_HEADERS or not text or _ORDINARY.fullmatch(text) is not None


def header_values(headers: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the header values to hide wherever they occur: those that other text does not contain by chance."""
    for name, value in headers.items():
        text = str(value).strip()
        if is_plain_header(name, text) or _is_reference(text):
            continue
        if len(text) >= _MIN_HEADER and not _WORDS.fullmatch(text):
            yield text
            parts = re.split(r"[\s;,=\"']+", text)
            yield from (part for part in parts if len(part) >= _MIN_PART and re.search(r"\d", part))


def header_line_spans(before: Iterable[str], line: str) -> list[tuple[int, int]]:
    """Return the span of a secret in a source line under `headers:` or a secret name; `before`: nearest lines first.

    Empty if the line is under neither, or its value cannot be a secret.
    """
    depth = inner = _depth(line)
    pair = _HEADER_PAIR.match(line, depth)
    for above in islice(before, _MOST_HEADERS):
        if not above.strip() or _depth(above) >= inner:
            continue
        parent = _PARENT_LINE.fullmatch(above.rstrip())
        name = parent["name"] if parent else ""
        is_secret = is_secret_name(name) and not _PARENT_LINE.fullmatch(line.rstrip())
        if is_secret and not pair:
            return [(len(line) - len(line.lstrip()), len(line.rstrip()))]
        if pair and (is_secret or (name == "headers" and inner == depth)):
            is_plain = not is_secret and is_plain_header(
                pair["name"].strip("\"'"), pair["value"].strip("\"'")
            )
            return [] if is_plain or _is_reference(pair["value"]) else [pair.span("value")]
        inner = _depth(above)
    return []


def _depth(line: str) -> int:
    """Return how far a line is indented; a list may be indented as far as its key."""
    text = line.lstrip()
    return len(line) - len(text) + text.startswith("- ")


def secret_variables(value: JsonValue, *, is_secret: bool = False, under: str = "") -> Iterator[str]:
    """Yield the names of variables that a part of a config uses as keys: in `api_key_env`, or under a secret name."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if key in _VARIABLE_KEYS and isinstance(entry, str):
                yield entry
            # A header filled from a variable counts as secret whatever its name: why else would it be in a variable?
            hides = is_secret or _hides(key, entry, under) or under.lower() == "headers"
            yield from secret_variables(entry, is_secret=hides, under=key)
    elif isinstance(value, list):
        for item in value:
            yield from secret_variables(item, is_secret=is_secret)
    elif is_secret and isinstance(value, str):
        yield from _VARIABLE.findall(value)
    elif isinstance(value, str):
        texts = [found["value"] for found in _PARAMETER.finditer(value) if is_secret_parameter(found["name"])]
        texts += [match["value"] for match in _USER_INFO.finditer(value)]
        yield from (name for text in texts for name in _VARIABLE.findall(text))


def environment_secrets(environ: Mapping[str, str]) -> list[str]:
    """Return the secrets in variables: by name, in headers (OTEL_EXPORTER_OTLP_HEADERS), credentials in addresses.

    Short values are left out: `USE_AUTH=true` would remove the word "true" from every message.
    """
    found: list[JsonValue] = []
    whole: list[str] = []
    for name, value in environ.items():
        if len(value) < _MIN_PART:
            continue
        if is_secret_name(name):
            found.append({name: value})
        elif name.upper().endswith("_HEADERS"):
            pairs = (pair.partition("=") for pair in value.split(","))
            found.append({"headers": {key.strip(): unquote(text).strip() for key, _, text in pairs}})
            whole.append(value)
        elif "://" in value:
            found.append(value)
        elif name.upper().endswith("_PROXY"):  # user:password@host:port
            found.append(f"http://{value}")
    return [*whole, *(text for text in secret_values(found) if len(text) >= _MIN_PART)]


def secret_values(value: JsonValue) -> list[str]:
    """Return the secrets in a part of a config whose env values are filled in.

    A secret of several parts (`Bearer KEY`, a cookie) is returned as a whole and in parts.
    """
    return list(dict.fromkeys(_values(value, is_secret=False)))


def _masked(
    value: JsonValue, *, is_secret: bool, may_be_free: bool, hides_headers: bool, under: str = ""
) -> JsonValue:
    if isinstance(value, dict):
        return {
            key: entry
            if may_be_free and key in _FREE_TEXT_KEYS
            else _masked(
                entry,
                is_secret=is_secret
                or _hides(key, entry, under)
                or (hides_headers and not may_be_free and _is_header(key, entry, under)),
                may_be_free=may_be_free and key not in _PROVIDER_KEYS,
                under=key,
                hides_headers=hides_headers,
            )
            for key, entry in value.items()
        }
    if isinstance(value, list):
        inner = partial(_masked, may_be_free=may_be_free, hides_headers=hides_headers)
        flags = (is_secret or _is_flagged(value, index) for index in range(len(value)))
        return [inner(item, is_secret=flag) for item, flag in zip(value, flags, strict=True)]
    if is_secret and value is not None and not isinstance(value, bool) and not _is_reference(str(value)):
        return MASK
    if not isinstance(value, str):
        return value
    # Prose may well say "password: none"; in a provider, such words name a header, a command's option or a field.
    return _without(value, _marked_places(value) if may_be_free else secret_spans(value))


def _values(value: JsonValue, *, is_secret: bool, under: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, entry in value.items():
            hides = _hides(key, entry, under) or (is_secret and key.replace("_", "").lower() not in _PUBLIC)
            yield from _values(entry, is_secret=hides, under=key)
        if under.lower() == "headers":
            yield from header_values(value)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _values(item, is_secret=is_secret or _is_flagged(value, index))
    elif is_secret and value is not None and not isinstance(value, bool):
        text = str(value)
        # Servers may echo only a part: the key of `Bearer KEY`, the password of `user:password`.
        yield from (text, text.rpartition(" ")[2], text.rpartition(":")[2])
        yield from (part for match in _USER_INFO.finditer(text) for part in _values(match[0], is_secret=True))
        parts = _BETWEEN_PARTS.split(text)
        for name, part in zip(["", *parts], parts, strict=False):
            is_named = "/" not in name and is_secret_name(name)
            if is_named or (len(part) >= _MIN_PART and not _NO_PART.fullmatch(part)):
                yield part
    elif isinstance(value, str):
        for start, end in secret_spans(value):
            yield from _values(value[start:end].strip("\"'"), is_secret=True)


def _is_flagged(words: Sequence[JsonValue], index: int) -> bool:
    """Return whether a list item follows an option that takes a secret, as in `[login, --password, ...]`."""
    before = words[index - 1] if index else None
    option = _FLAG_ALONE.fullmatch(before) if isinstance(before, str) else None
    return option is not None and is_secret_name(option["name"])


def _is_header(key: str, entry: JsonValue, under: str) -> bool:
    return (
        under.lower() == "headers" and not isinstance(entry, dict | list) and not is_plain_header(key, entry)
    )


def _hides(key: str, entry: JsonValue, under: str) -> bool:
    """Return whether `key`, in a mapping named `under`, makes all texts in `entry` secret."""
    if isinstance(entry, dict):
        if under in _SCHEMAS:  # a JSON Schema may well describe a property named `password`
            return False
        if key == "env":
            return True
    is_parameter = under.lower() in _PARAMETERS and is_secret_parameter(key)
    return is_secret_name(key) or key.lower() == "key" or is_parameter


def _marked_places(text: str) -> list[tuple[int, int]]:
    """Return the spans of secrets recognised by their form, or by the syntax of a URL or template around them."""
    found = [match.span() for match in _BARE.finditer(text)]
    if "://" in text:
        found += [
            match.span("value") for match in _USER_INFO.finditer(text) if not _is_reference(match["value"])
        ]
    if "=" in text:
        found += [
            match.span("value")
            for match in _PARAMETER.finditer(text)
            if is_secret_parameter(match["name"]) and not _is_reference(match["value"])
        ]
    if "default(" in text:
        found += [match.span("value") for match in _FALLBACK.finditer(text) if is_secret_name(match["name"])]
    return _joined(found)


def _named_places(text: str) -> Iterator[tuple[int, int]]:
    """Yield values' spans after a secret name: `apiKey: ...` in YAML, JSON and headers, `--token ...` in commands."""
    for flag in _FLAG.finditer(text):
        if is_secret_name(flag["name"]) and not _is_reference(flag["value"]):
            yield flag.span("value")
    if "headers" in text:
        # Values of headers on one line: `headers: {X-Corp: ...}`.
        for block in _HEADERS_BLOCK.finditer(text):
            for pair in _HEADER_PAIR.finditer(text, *block.span("inside")):
                is_plain = is_plain_header(pair["name"].strip("\"'"), pair["value"].strip("\"'"))
                if not is_plain and not _is_reference(pair["value"]):
                    yield pair.span("value")
    position = 0
    while match := _NAMED.search(text, position):
        position = match.end()
        is_parameter = text[match.start() - 1 : match.start()] in {"?", "&", "#", ";"}
        names_variable = match["name"] in _VARIABLE_KEYS
        if is_parameter or not (names_variable or is_secret_name(match["name"])):
            continue
        value = _NAMED_VALUE.match(text, position)
        if value:
            position = value.end()
            is_harmless = names_variable and is_variable_name(value.group().strip("\"' "))
            if not is_harmless and not _is_reference(value.group()):
                yield value.span()


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(spans) < 2:  # noqa: PLR2004 - nearly all texts
        return spans
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    if not spans:
        return text
    pieces, cursor = list[str](), 0
    for start, end in spans:  # sorted, without overlaps
        pieces += (text[cursor:start], MASK)
        cursor = end
    return "".join([*pieces, text[cursor:]])


def _is_reference(value: str) -> bool:
    return _REFERENCE.fullmatch(value.strip("\"' ")) is not None

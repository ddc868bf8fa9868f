"""geval's own keys in a provider's config: spellings, types and meaning. All other keys are sent to the API."""

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from geval_cli.errors import Problem, Severity
from geval_cli.patterns import compile_later
from geval_cli.providers.base import ProviderLimits, ProviderSource
from geval_cli.source.problems import did_you_mean
from geval_cli.source.secrets import is_variable_name, mask_text
from geval_cli.specs.base import WIRE_SETTINGS, describe_value


class OwnKey(Struct, frozen=True):
    """One of geval's own config keys. The first of its `spellings` is the name that code uses.

    `hint` returns what to write instead of an invalid value.
    """

    spellings: tuple[str, ...]
    expected: str
    is_valid: Callable[[Any], bool]
    hint: Callable[[Any], str] = lambda _: ""


def is_text(value: Any) -> bool:
    """Return whether `value` is a non-empty text."""
    return isinstance(value, str) and value != ""


def is_positive(value: Any) -> bool:
    """Return whether `value` is a number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def is_count(value: Any) -> bool:
    """Return whether `value` is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_text_mapping(value: Any) -> bool:
    """Return whether `value` maps names to texts or numbers."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(item, str | int | float) for name, item in value.items()
    )


def is_words(value: Any) -> bool:
    """Return whether `value` is a non-empty list of non-empty texts."""
    return isinstance(value, list) and bool(value) and all(is_text(item) for item in value)


_LEAST_PRICE_USD = 0.0005  # no vendor asks for less


def is_price(value: Any) -> bool:
    """Return whether `value` maps `input`, `output` and optionally `cached_input` to amounts of at least 0."""
    return (
        isinstance(value, dict)
        and set(value) - {"cached_input"} == {"input", "output"}
        and all(is_positive(item) or item == 0 for item in value.values())
    )


def is_endpoint_price(value: Any) -> bool:
    """Return whether `value` is `list`, or a price, optionally with another one under `batch`."""
    if not isinstance(value, dict):
        return bool(value == "list")
    direct = {name: item for name, item in value.items() if name != "batch"}
    return is_price(direct) and ("batch" not in value or is_price(value["batch"]))


def _is_batch_choice(value: Any) -> bool:
    return value is False or value == "openai"


def _is_retry_count(value: Any) -> bool:
    return is_count(value) or (value == 0 and not isinstance(value, bool))


def _is_duration(value: Any) -> bool:
    return is_positive(value) or (value == 0 and not isinstance(value, bool))


def _is_http_url(value: Any) -> bool:
    if not is_text(value):
        return False
    try:
        parts = urlsplit(value)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != -1
    except ValueError:
        return False


PASSTHROUGH = OwnKey(("passthrough",), "a mapping of wire parameters", lambda value: isinstance(value, dict))
LIMIT_KEYS = (
    OwnKey(("timeout_s", "timeoutS"), "a number of seconds above 0", is_positive),
    OwnKey(("max_retries", "maxRetries"), "a whole number of at least 0", _is_retry_count),
    OwnKey(("max_concurrency", "maxConcurrency"), "a whole number of at least 1", is_count),
    OwnKey(("requests_per_minute", "requestsPerMinute"), "a number above 0", is_positive),
    OwnKey(("tokens_per_minute", "tokensPerMinute"), "a number above 0", is_positive),
    OwnKey(("delay_ms", "delayMs"), "a number of milliseconds of at least 0", _is_duration),
    OwnKey(
        ("price",),
        "a mapping with `input` and `output` (and `cached_input`), USD per million tokens",
        is_price,
    ),
)
CERTIFICATE_KEYS = (
    OwnKey(("client_cert", "clientCert"), "the path of a PEM file", is_text),
    OwnKey(("client_key", "clientKey"), "the path of a PEM file", is_text),
)
"""The keys of a client certificate."""


def _as_list(value: Any) -> str:
    """Return a hint that shows a command line as the list that is expected."""
    words = ["az", "account", "get-access-token"]
    if isinstance(value, str):
        with suppress(ValueError):
            words = shlex.split(value) or words
    return f"it runs without a shell: write {mask_text(json.dumps(words, ensure_ascii=False))}"


KEY_COMMAND = OwnKey(
    ("api_key_command", "apiKeyCommand"), "a list of strings, a program and its arguments", is_words, _as_list
)
"""The program that prints the key."""
CLOUD_LOGIN = "cloud_login"
"""The setting that requests a cloud's own credentials even if there is a key, or at an address that is not the cloud's
own; false forbids them.
"""


ENDPOINT_KEYS = (
    OwnKey(("base_url", "apiBaseUrl"), "an http:// or https:// URL", _is_http_url),
    OwnKey(("api_endpoint", "apiEndpoint"), "an http:// or https:// URL", _is_http_url),
    OwnKey(("api_host", "apiHost"), "a host name", is_text),
    OwnKey(("api_key_env", "apiKeyEnvar"), "the name of an environment variable", is_variable_name),
    OwnKey(("api_key", "apiKey"), "a text", is_text),
    KEY_COMMAND,
    OwnKey((CLOUD_LOGIN, "cloudLogin"), "true or false", lambda value: isinstance(value, bool)),
    OwnKey(("token_scope", "azureTokenScope"), "a text", is_text),
    OwnKey(("api_version", "apiVersion"), "a text", is_text),
    OwnKey(("account_id", "accountId"), "a text", is_text),
    OwnKey(("region",), "a text", is_text),
    OwnKey(("organization",), "a text", is_text),
    OwnKey(("headers",), "a mapping of header names to strings", is_text_mapping),
    *CERTIFICATE_KEYS,
    PASSTHROUGH,
    *(key for key in LIMIT_KEYS if "price" not in key.spellings),
    OwnKey(
        ("price",),
        "`list`, or a mapping with `input` and `output` (and `cached_input`), USD per million tokens; "
        "`batch` may hold another such mapping",
        is_endpoint_price,
    ),
    OwnKey(("batch",), "`openai` (the server has OpenAI's batch API) or false", _is_batch_choice),
    OwnKey(("batch_deployment", "batchDeployment"), "the name of a deployment", is_text),
)

SET_BY_GEVAL = {
    **dict.fromkeys(
        ("n", "candidateCount", "candidate_count"),
        "set `samples` or `repeat` instead",
    ),
    "stream": "answers are read whole",
    "background": "answers are awaited",
    "messages": "the prompt comes from `prompts`",
    "model": "the model is part of the provider's id",
}
"""Keys of a model's config that are not sent as they are, and why."""


_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding", "te", "trailer", "upgrade"})
"""Headers that determine where a message ends on a connection: only the HTTP client can set them."""

# With these an untrusted config could send the request, and its key, to another server behind the same proxy.
_ROUTING_HEADERS = frozenset(
    {"host", "forwarded", "via", "connection", "x-host", "x-real-ip", "x-rewrite-url"}
)
_ROUTING_BEGINNINGS = ("proxy-", "x-forwarded-", "x-original-", "x-envoy-", "x-http-method")
_HEADER_NAME = compile_later(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_KEYS = ("api_key", "organization", "api_version")
"""Keys whose values are sent in headers."""


def is_routing_header(name: str) -> bool:
    """Return whether proxies and servers may use a header to decide where a request goes, or who sent it."""
    name = name.strip().lower()
    return name in _ROUTING_HEADERS or name.startswith(_ROUTING_BEGINNINGS)


def header_problems(source: ProviderSource, keys: tuple[OwnKey, ...]) -> list[Problem]:
    """Return a problem for each header that is invalid, has a line break, or can only be set by the HTTP client."""
    config = source.spec.config
    settings = own_settings(config, keys)
    headers = settings.get("headers")
    problems = []
    for name, value in (headers or {}).items() if is_text_mapping(headers) else ():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _FRAMING_HEADERS:
            what = f"the header `{name[:60].splitlines()[0] if name.strip() else name!r}` cannot be set"
            hint = "leave it out: the HTTP client sets it"
            problems.append(source.problem(what, key="headers", hint=hint))
        elif _is_cut(str(value)):
            hint = "write its text on one line"
            problems.append(
                source.problem(f"the header `{name}` has a line break in it", key="headers", hint=hint)
            )
    for key in _HEADER_KEYS:
        if _is_cut(str(settings.get(key, ""))):
            written = spelling_in(config, key, keys)
            message = f"`{written}` has a line break in it"
            problems.append(source.problem(message, key=written, hint="write it on one line"))
    return problems


def _is_cut(text: str) -> bool:
    return any(mark in text for mark in "\r\n\0")


def spelling_in(config: Mapping[str, Any], name: str, keys: Iterable[OwnKey]) -> str:
    """Return the spelling in `config` of the one of `keys` whose first spelling is `name`; `name` if it is not set."""
    key = next(key for key in keys if key.spellings[0] == name)
    return next((spelling for spelling in key.spellings if config.get(spelling) is not None), name)


def own_settings(config: Mapping[str, Any], keys: tuple[OwnKey, ...]) -> dict[str, Any]:
    """Return the non-null values of geval's own `keys` in `config`, by their first spelling."""
    settings: dict[str, Any] = {}
    for key in keys:
        for spelling in key.spellings:
            if config.get(spelling) is not None:
                settings.setdefault(key.spellings[0], config[spelling])
    return settings


def has_key_command(config: Mapping[str, Any]) -> bool:
    """Return whether a provider's config names a program that prints its key."""
    return bool(own_settings(config, (KEY_COMMAND,)))


def key_command_source(config: Mapping[str, Any]) -> str:
    """Return, for messages, where the key comes from in a config with such a program."""
    return f"the program of `{spelling_in(config, KEY_COMMAND.spellings[0], (KEY_COMMAND,))}`"


def wire_parameters(config: Mapping[str, Any], keys: tuple[OwnKey, ...]) -> dict[str, Any]:
    """Return the part of `config` that is sent: all but geval's own `keys`, what geval sets itself, and nulls."""
    ours = {spelling for key in keys for spelling in key.spellings} | set(SET_BY_GEVAL)
    wire = {name: value for name, value in config.items() if name not in ours and value is not None}
    return {**wire, **(config.get("passthrough") or {})} if "passthrough" in ours else wire


def limits_of(settings: Mapping[str, Any], **defaults: Any) -> ProviderLimits:
    """Return the limits named in `settings`, falling back to `defaults` and then to those of `ProviderLimits`."""
    named = {name: settings[name] for name in ProviderLimits.__struct_fields__ if name in settings}
    return ProviderLimits(**{**defaults, **named})


class OtherKeys(Enum):
    """How keys that are not geval's own are treated."""

    SENT = "sent"
    HANDED_OVER = "handed to the program"
    UNUSED = "unused"


def check_settings(
    source: ProviderSource,
    keys: tuple[OwnKey, ...],
    others: OtherKeys = OtherKeys.UNUSED,
    *,
    further: Collection[str] = (),
) -> list[Problem]:
    """Return every problem of the keys: wrong types, duplicates, near misses, and one warning about the unknown ones.

    Args:
        source: the provider.
        keys: geval's own keys.
        others: how all other keys are treated.
        further: names of keys that are checked elsewhere.
    """
    problems = [*_own_problems(source, keys), *_other_problems(source, keys, others, further)]
    if others is not OtherKeys.HANDED_OVER:
        problems += [
            source.problem(f"`{name}` is ignored: {why}", key=name, severity=Severity.WARNING)
            for name, why in SET_BY_GEVAL.items()
            if source.spec.config.get(name) is not None
        ]
    if others is OtherKeys.SENT:
        # A problem for each model parameter of the wrong type; if it is only a warning, the value is still sent.
        for name, value in source.spec.config.items():
            kind = WIRE_SETTINGS.get(name)
            if kind is not None and value is not None and not kind.is_valid(value):
                message = f"`{name}` must be {kind.expected}, found {describe_value(value)}"
                problems.append(
                    source.problem(message, key=name, hint=_AS_IT_IS, severity=source.rules.odd_params)
                )
    return problems


def _other_problems(
    source: ProviderSource, keys: tuple[OwnKey, ...], others: OtherKeys, further: Collection[str]
) -> Iterator[Problem]:
    own = {spelling for key in keys for spelling in key.spellings}
    known = {*own, *further, *(WIRE_SETTINGS if others is OtherKeys.SENT else ())}
    known |= SET_BY_GEVAL.keys() if others is not OtherKeys.HANDED_OVER else set()
    unknown = []
    for name in source.spec.config:
        if name in known:
            continue
        in_its_style = sorted(known, key=lambda word: (word.islower() != name.islower(), word))
        near = did_you_mean(name, in_its_style)
        if near is None:
            unknown.append(name)
            continue
        hint = f"did you mean `{near}`?"
        if others is OtherKeys.SENT:
            hint = f"{hint} {_AS_IT_IS}"
        # A program may well have settings of its own that resemble geval's.
        severity = Severity.WARNING if others is OtherKeys.HANDED_OVER else source.rules.odd_params
        yield source.key_problem(f"unknown key `{name}` in `config`", key=name, hint=hint, severity=severity)
    if unknown and others is not OtherKeys.HANDED_OVER:
        names = ", ".join(f"`{name}`" for name in unknown)
        message = f"geval does not know {names} of `config` ({source.id}): {_FATES[others]}"
        hint = (
            "put it under `passthrough` to send it without this warning"
            if others is OtherKeys.SENT
            else "leave it out"
        )
        yield source.key_problem(message, key=unknown[0], hint=hint, severity=Severity.WARNING)


_AS_IT_IS = "put parameters to send unchanged under `passthrough`"
_FATES = {OtherKeys.SENT: "sent as it is", OtherKeys.UNUSED: "it has no effect"}


def _own_problems(source: ProviderSource, keys: tuple[OwnKey, ...]) -> list[Problem]:
    config = source.spec.config
    problems = []
    for key in keys:
        present = [spelling for spelling in key.spellings if config.get(spelling) is not None]
        problems += [
            source.problem(
                f"`{spelling}` must be {key.expected}", key=spelling, hint=key.hint(config[spelling])
            )
            for spelling in present
            if not key.is_valid(config[spelling])
        ]
        if len(present) > 1:
            both = " and ".join(f"`{spelling}`" for spelling in present)
            problems.append(source.problem(f"{both} mean the same: keep one", key=present[1]))
    price = config.get("price")
    amounts = [item for item in price.values() if is_positive(item)] if isinstance(price, dict) else []
    if amounts and min(amounts) < _LEAST_PRICE_USD:
        written = f"{min(amounts):.15f}".rstrip("0")
        message = f"`price` is in US dollars per million tokens, so {written} is next to nothing"
        hint = "multiply a price per token by 1,000,000, and one per thousand tokens by 1,000"
        problems.append(source.problem(message, key="price", hint=hint, severity=Severity.WARNING))
    return [*problems, *header_problems(source, keys)]

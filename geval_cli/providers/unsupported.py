"""Finds out of a refusal which request parameter the server will not take."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from geval_cli.patterns import compile_later

# How OpenAI, Azure, vLLM, llama.cpp, Mistral, Groq, DeepSeek, Gemini and FastAPI servers word it.
_REFUSAL = compile_later(
    r"""unsupported|not\ssupport|n't\ssupport|only\ssupported|not\s(?:currently\s)?(?:yet\s)?supported|not\simplemented
    |unknown|unrecogni[sz]ed|unexpected|cannot\sfind\sfield|extra\s(?:inputs?|fields?)|not\s(?:permitted|allowed)
    |unavailable|not\savailable|only\sthe\sdefault|deprecated|removed|not\senabled|incompatible|cannot\sbe\sused
    |invalid\s(?:parameter|argument|field)""",
    re.IGNORECASE | re.VERBOSE,
)
# Only for what geval adds of its own accord: a user's own value out of range must not be dropped.
_OUT_OF_RANGE = compile_later(
    r"must\sbe|between|greater\sthan|less\sthan|at\smost|maximum|exceed|max\sallowed|only\sone|invalid",
    re.I | re.X,
)
_OWN_WISHES = frozenset({"n", "logprobs", "top_logprobs", "response_format"})
_REFUSAL_CODES = frozenset(
    {"unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden"}
)
_CODE_KEYS = ("code", "type", "status")
_SENTENCE_KEYS = ("message", "detail")
_NEVER_OPTIONAL = frozenset({"model", "messages"})
# Parameters that are words of any sentence: they count where they are named as such or stand in quotes.
_ENGLISH_WORDS = frozenset(
    {"n", "stop", "seed", "user", "tools", "store", "stream", "metadata", "modalities"}
)
# Some servers name the feature that they lack, and not the parameter that asks for it.
_ALIASES = {"json_schema": "response_format", "structured outputs": "response_format"}
_N_NAMED = compile_later(
    r"\b(?:parameter|param|field|argument)s?:?\s+n\b|\bn\s*(?:>|!=|==?|must|is\b|should)"
)
_CAP = compile_later(
    r"(?:max(?:imum)?(?:\s(?:allowed|value))?(?:\s(?:is|of))?|at most|less than or equal to|<=|up to|and)"
    r"[\s:'`]*(\d{1,2})\b",
    re.IGNORECASE,
)


def find_unsupported_parameter(body: str, sent: Collection[str]) -> str | None:
    """Return the one of the `sent` parameters that a 4xx `body` refuses; None when it complains of other things."""
    candidates = [name for name in sent if name not in _NEVER_OPTIONAL]
    for named, code, text in _complaints(body):
        parameter = named if named in candidates else None
        if parameter and (code in _REFUSAL_CODES or _is_refusal(text, parameter)):
            return parameter
        if named is None or parameter is None:
            parameter = _first_mentioned(text, candidates)
            if parameter and _is_refusal(text, parameter):
                return parameter
    return None


def find_cap(body: str) -> int | None:
    """Return the largest value that a refusal says would be taken ("must be between 0 and 5"), if it says one."""
    for _, _, text in _complaints(body):
        caps = [int(number) for number in _CAP.findall(text)]
        if caps:
            return min(caps)
    return None


def error_message(body: str) -> str:
    """Return the server's own sentence out of an error body of any common form, else the body itself."""
    texts = [text for _, _, text in _complaints(body)]
    return "; ".join(texts) if texts else body.strip()


def error_words(body: str) -> tuple[str, str]:
    """The codes that an error body gives, and the server's own sentence; what it quotes of the request is in neither.

    A body that is no JSON counts as the sentence.
    """
    try:
        parsed = json.loads(body)
    except ValueError:
        return "", body
    items = [item for item in (parsed if isinstance(parsed, list) else [parsed]) if isinstance(item, dict)]
    errors = [item.get("error") or item for item in items]
    found = [error for error in errors if isinstance(error, dict)]
    codes = [error.get(name) for error in found for name in _CODE_KEYS]
    words = [error.get(name) for error in found for name in _SENTENCE_KEYS]
    words += [error for error in errors if isinstance(error, str)]
    return _joined(codes), _joined(words)


def _joined(texts: list[Any]) -> str:
    return " ".join(text for text in texts if isinstance(text, str))


def _is_refusal(text: str, parameter: str) -> bool:
    if _REFUSAL.search(text):
        return True
    return parameter in _OWN_WISHES and _OUT_OF_RANGE.search(text) is not None


def _first_mentioned(text: str, candidates: Collection[str]) -> str | None:
    places = {name: place for name in candidates if (place := _mention(text, name)) is not None}
    return min(places, key=places.__getitem__, default=None)


def _mention(text: str, name: str) -> int | None:
    escaped = re.escape(name)
    quoted = re.search(rf"""["'`]{escaped}(?:[.\[][^"'`]*)?["'`]""", text)
    if quoted:
        return quoted.start()
    if name == "n":
        found = _N_NAMED.search(text)
        return found.start() if found else None
    if name in _ENGLISH_WORDS:
        return None
    spellings = [escaped, *(re.escape(alias) for alias, target in _ALIASES.items() if target == name)]
    bare = re.search(rf"\b(?:{'|'.join(spellings)})\b", text)
    return bare.start() if bare else None


def _complaints(body: str) -> Iterator[tuple[str | None, str | None, str]]:
    """(parameter named by the body, its error code, the sentence) of each error in `body`."""
    try:
        parsed = json.loads(body)
    except ValueError:
        if body.strip():
            yield None, None, body.strip()
        return
    items = parsed if isinstance(parsed, list) else [parsed]
    for item in items:
        if isinstance(item, dict):
            yield from _complaints_of(item)


def _complaints_of(item: Mapping[str, Any]) -> Iterator[tuple[str | None, str | None, str]]:
    error = item.get("error", item)
    if isinstance(error, str):
        yield None, None, error
        return
    if not isinstance(error, dict):
        return
    detail = error.get("detail")
    if isinstance(detail, list):
        for entry in detail:
            if isinstance(entry, dict):
                path = [str(part) for part in entry.get("loc", ()) if part != "body"]
                yield (
                    (path[0] if path else None),
                    entry.get("type"),
                    f"{'.'.join(path)}: {entry.get('msg', '')}",
                )
        return
    message = error.get("message") or (detail if isinstance(detail, str) else None)
    if message:
        param = error.get("param")
        named = re.split(r"[.\[]", param)[0] if isinstance(param, str) and param else None
        code = error.get("code")
        yield named, code if isinstance(code, str) else None, str(message)

"""Finds the request parameter that a server's refusal is about."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from geval_cli.json_codec import decode_json
from geval_cli.patterns import compile_later

# The wording of OpenAI, Azure, Anthropic, vLLM, llama.cpp, Mistral, Groq, DeepSeek, xAI, Gemini and FastAPI servers.
_REFUSAL = compile_later(
    r"""unsupported|not\ssupport|n't\ssupport|only\ssupport|not\s(?:currently\s)?(?:yet\s)?supported|not\simplemented
    |unknown|unrecogni[sz]ed|unexpected|cannot\sfind\sfield|extra\s(?:inputs?|fields?)|not\s(?:permitted|allowed)
    |unavailable|not\savailable|only\sthe\sdefault|deprecated|removed|not\senabled|only\senabled|enabled\sonly|incompatible
    |cannot\s(?:both\s)?be\s(?:used|set|specified)|may\sonly\sbe|must\sbe\sunset|no\slonger
    |invalid\s(?:parameter|argument|field)""",
    re.IGNORECASE | re.VERBOSE,
)
# Only for parameters that geval adds: about a value that the user sets, it says nothing about the parameter itself.
_OUT_OF_RANGE = compile_later(
    r"must\sbe|between|greater\sthan|less\sthan|at\s(?:most|least)|maximum|exceed|max\sallowed|only\sone|invalid|too\s(?:large|many)"
    r"|not\s(?:one|among|a\svalid)",
    re.I | re.X,
)
_OWN_WISHES = frozenset({"n", "logprobs", "top_logprobs", "response_format"})
_REFUSAL_CODES = frozenset(
    {"unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden"}
)
_CODE_KEYS = ("code", "type", "status", "__type")
_SENTENCE_KEYS = ("message", "detail", "msg", "status_msg", "error_msg", "error_message")
_NEVER_OPTIONAL = frozenset({"model", "messages"})
# Parameters that are ordinary words: they count only when called a parameter or put in quotes.
_ENGLISH_WORDS = frozenset(
    {
        "conversation", "effort", "format", "include", "input", "instructions", "labels", "metadata", "modalities",
        "n", "prompt", "reasoning", "route", "seed", "stop", "store", "stream", "suffix", "system", "text",
        "thinking", "tools", "transforms", "truncation", "user",
    }
)  # fmt: skip
# Some servers name the feature that they lack, rather than the parameter that requests it.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "response_format": (
        "json_schema",
        "json_object",
        "structured_outputs?",
        "json_mode",
        "output_format",
        "output_schema",
        "response_schema",
        "response_mime_type",
        r"output_config(?![.\w])",
        "(?:generated?|validate)_json",
    ),
    "presence_penalty": ("penalty",),
    "frequency_penalty": ("penalty",),
    "logprobs": ("log_probabilities", "token_(?:likelihoods|probabilities)"),
    "temperature": ("sampling_(?:controls?|parameters?|settings?|options?)",),
    "reasoning_effort": (
        "thinking_(?:level|budget|value)",
        "think_value",
        "reasoning_value",
        "effort_(?:parameter|level)",
        "support_(?:thinking|reasoning)",
    ),
    "effort": ("effort_(?:parameter|level)",),
    "thinking": ("adaptive_thinking", "extended_thinking", "budget_tokens", "thinking_(?:budget|mode)"),
    "thinking_config": ("thinking_(?:level|budget)", "thinking_is"),
    "n": ("multiple_(?:candidates|choices|completions|responses)", "candidate_count", "one_completion"),
}
_N_NAMED = compile_later(
    r"\b(?:parameter|param|field|argument)s?:?\s+n\b|\bn\s*(?:>|!=|==?|must|is\b|should)"
)
_CAP = compile_later(
    r"(?:max(?:imum)?(?:\s(?:allowed|value))?(?:\s(?:is|of))?|at most|less than or equal to|<=|up to|and)"
    r"[\s:'`]*(\d{1,2})\b",
    re.IGNORECASE,
)

Sent = Collection[str] | Mapping[str, Collection[str]]
"""The parameters of a request, with the other names that its API has for each, if known."""


def find_unsupported_parameter(body: str, sent: Sent, *, added: Collection[str] = ()) -> str | None:
    """Return the one of the `sent` parameters that a 4xx `body` refuses; None when it complains about something else.

    Args:
        body: the body of the response.
        sent: the parameters of the request.
        added: those of them that the request can do without. For these a value out of range counts as a refusal, too,
            and they take precedence when a sentence names several parameters.
    """
    spellings = {
        name: (name, *(sent[name] if isinstance(sent, Mapping) else ()))
        for name in sent
        if name not in _NEVER_OPTIONAL
    }
    for path, code, text in _complaints(body):
        if path is None:
            named = None
        else:
            # The parameter that a path such as `reasoning.effort` or `generation_config.topK` leads to.
            plain = _plain(path)
            found = [
                (len(spelling), name)
                for name, names in spellings.items()
                for spelling in map(_plain, names)
                if plain == spelling
                or plain.startswith((f"{spelling}.", f"{spelling}["))
                or plain.endswith(f".{spelling}")
            ]
            named = max(found)[1] if found else None
        if named and (code in _REFUSAL_CODES or _is_refusal(text, named, added)):
            # A value may be refused because of another parameter, which the sentence then names as well.
            return named
        if named is None:
            mentioned = _mentioned(text, spellings)
            for name in [*(name for name in mentioned if name in added), *mentioned]:
                if _is_refusal(text, name, added):
                    return name
    return None


def find_cap(body: str) -> int | None:
    """Return the largest value that a refusal says would be accepted ("must be between 0 and 5"), if it names one."""
    for _, _, text in _complaints(body):
        caps = [int(number) for number in _CAP.findall(text)]
        if caps:
            return min(caps)
    return None


def error_message(body: str) -> str:
    """Return the server's own sentence from an error body of any common form, else the body itself."""
    texts = [text for _, _, text in _complaints(body)]
    return "; ".join(dict.fromkeys(texts)) if texts else body.strip()


def error_words(body: str) -> tuple[str, str]:
    """Return the codes in an error body and the server's own sentence, without what it quotes of the request.

    A body that is not JSON counts as the sentence.
    """
    try:
        parsed = decode_json(body)
    except ValueError:
        return "", body
    items = [item for item in (parsed if isinstance(parsed, list) else [parsed]) if isinstance(item, dict)]
    said = [item.get("error") or item.get("errors") or item.get("base_resp") or item for item in items]
    errors = [error for entry in said for error in (entry if isinstance(entry, list) else [entry])]
    found = [error for error in errors if isinstance(error, dict)]
    codes = [error.get(name) for error in found for name in _CODE_KEYS]
    words = [error.get(name) for error in found for name in _SENTENCE_KEYS]
    words += [error for error in errors if isinstance(error, str)]
    behind = [error_words(raw) for error in found if (raw := _nested_message(error))]
    return _joined([*codes, *(code for code, _ in behind)]), _joined([*words, *(said for _, said in behind)])


def _nested_message(error: Mapping[str, Any]) -> str:
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return raw if isinstance(raw, str) else json.dumps(raw) if isinstance(raw, dict) else ""


def _joined(texts: list[Any]) -> str:
    return " ".join(text for text in texts if isinstance(text, str))


def _is_refusal(text: str, parameter: str, added: Collection[str]) -> bool:
    # Servers use any wording and language. Leaving out what geval added costs nothing, so its name is enough.
    if parameter in added or _REFUSAL.search(text):
        return True
    return parameter in _OWN_WISHES and _OUT_OF_RANGE.search(text) is not None


def _plain(name: str) -> str:
    """Return a name without the differences between snake_case and camelCase."""
    return name.replace("_", "").lower()


def _mentioned(text: str, spellings: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the parameters that a sentence names, in the order in which it names them."""
    places = {
        name: min(found)
        for name, names in spellings.items()
        if (found := [place for item in names if (place := _mention(text, item)) is not None])
    }
    for name in spellings.keys() - places.keys():
        found = [
            match.start()
            for alias in _ALIASES.get(_snake(name), ())
            if (match := re.search(rf"\b{alias.replace('_', '[_ -]?')}\b", text, re.IGNORECASE))
        ]
        if found:
            places[name] = min(found)
    return sorted(places, key=places.__getitem__)


def _mention(text: str, name: str) -> int | None:
    quoted = re.search(rf"""["'`]{_spelled(name)}(?:[.\[][^"'`]*)?["'`]""", text, re.IGNORECASE)
    if quoted:
        return quoted.start()
    if name == "n":
        found = _N_NAMED.search(text)
        return found.start() if found else None
    if name in _ENGLISH_WORDS:
        named = re.search(
            rf"\b(?:parameter|param|field|argument|propert(?:y|ie)|supplied|model|option)s?:?\s+(?:[\w.]+,\s)*{name}\b"
            rf"|^{name}(?:\.\w+)*:\s",
            text,
        )
        return named.start() if named else None
    bare = re.search(rf"\b{_spelled(name)}\b", text, re.IGNORECASE)
    return bare.start() if bare else None


def _spelled(name: str) -> str:
    """Return a pattern for a name in snake_case, camelCase or separate words."""
    return "[_ -]?".join(re.escape(part) for part in _snake(name).split("_"))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _complaints(body: str) -> Iterator[tuple[str | None, str | None, str]]:
    """Yield for each error in `body`: the path of the parameter it names, its error code, and the sentence."""
    try:
        parsed = decode_json(body)
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
    # A gateway puts the message of the server behind it there; its own says only that something went wrong.
    raw = _nested_message(error)
    if raw:
        yield from _complaints(raw)
    message = error.get("message")
    detail = error.get("detail")
    # Mistral puts the list of problems into `message`, as an object, a list or JSON text.
    nested = _loaded(message)
    if isinstance(nested, dict):
        detail = nested.get("detail", detail)
        message = nested.get("message", message)
    listed = nested if isinstance(nested, list) else detail
    if isinstance(listed, list):
        for entry in listed:
            if isinstance(entry, dict):
                loc = entry.get("loc")
                path = [str(part) for part in (loc if isinstance(loc, list) else ()) if part != "body"]
                yield (
                    (".".join(path) if path else None),
                    kind if isinstance(kind := entry.get("type"), str) else None,
                    f"{'.'.join(path)}: {entry.get('msg', '')}",
                )
        return
    message = message or (detail if isinstance(detail, str) else None)
    if message:
        param = error.get("param")
        code = error.get("code")
        yield (
            param if isinstance(param, str) and param else None,
            code if isinstance(code, str) else None,
            str(message),
        )


def _loaded(message: Any) -> Any:
    """Return the parsed content of a message that is JSON itself; any other message unchanged."""
    if not isinstance(message, str) or not message.lstrip().startswith(("{", "[")):
        return message
    try:
        return decode_json(message)
    except ValueError:
        return message

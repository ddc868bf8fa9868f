"""What must never be shown or kept: literal keys and passwords, found by the name they stand under or by their form."""

import re

from geval_cli.records import JsonValue

MASK = "***"

_NAME = r"[\w.-]*(?:api[_-]?key|token|authorization|password|passwd|secret|credentials?)"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_NAMED = re.compile(
    rf"(?<![\w.-])[\"']?{_NAME}[\"']?\s*[:=]\s*(?P<value>\"(?:\\.|[^\"\\])*\"?|'(?:''|[^'])*'?|[^\s,}}\]][^,}}\]\r\n]*)",
    re.IGNORECASE,
)
_BARE = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}|\bAIza[\w-]{20,}|\bgh[pousr]_\w{20,}|\bhf_\w{20,}|(?<=Bearer )[\w.~+/=-]{8,}"
)
_FREE_TEXT_KEYS = frozenset({"vars", "metadata"})


def is_secret_name(name: str) -> bool:
    """Whether a key or an environment variable of this name holds a secret (`apiKey`, `OPENAI_API_KEY`, ...)."""
    return _SECRET_NAME.fullmatch(name) is not None


def secret_spans(line: str) -> list[tuple[int, int]]:
    """The stretches of a source line that hold secrets, as sorted (start, end) without overlaps."""
    found = [
        match.span("value") for match in _NAMED.finditer(line) if not _is_reference(match.group("value"))
    ]
    found += [match.span() for match in _BARE.finditer(line)]
    spans: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def mask_text(text: str) -> str:
    """`text` with everything that looks like a secret replaced by `***`."""
    for start, end in reversed(secret_spans(text)):
        text = text[:start] + MASK + text[end:]
    return text


def mask_snapshot(value: JsonValue, *, name: str = "") -> JsonValue:
    """A config as data without its literal secrets. Test variables are kept, whatever they are called."""
    if isinstance(value, dict):
        return {
            key: entry if key in _FREE_TEXT_KEYS else mask_snapshot(entry, name=key)
            for key, entry in value.items()
        }
    if isinstance(value, list):
        return [mask_snapshot(item, name=name) for item in value]
    if is_secret_name(name) and value is not None and not _is_reference(str(value)):
        return MASK
    return _BARE.sub(MASK, value) if isinstance(value, str) else value


def _is_reference(value: str) -> bool:
    return value.strip("\"' ").startswith("{{")

"""Fences around judged text that the text itself cannot contain, because they are derived from its hash."""

import hashlib

_CODE_LENGTH = 16


def fence(label: str, text: str) -> str:
    """`text` between a BEGIN and an END line that carry a code made from it.

    Equal texts get equal fences. To hold its own END line, a text would have to contain a piece of its own SHA-256.
    """
    code = marker_code(text)
    return f"<<<BEGIN {label} {code}>>>\n{text}\n<<<END {label} {code}>>>"


def marker_code(text: str) -> str:
    """The code of a text: a piece of its hash that does not occur in it."""
    code = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_CODE_LENGTH]
    while code in text:
        code = hashlib.sha256(f"{code}{text}".encode("utf-8", "surrogatepass")).hexdigest()[:_CODE_LENGTH]
    return code

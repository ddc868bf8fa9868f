"""Put texts between markers that they cannot contain themselves, so that nothing in them ends the quotation."""

import hashlib

_CODE_LENGTH = 16


def fence(label: str, text: str) -> str:
    """Return `text` between a BEGIN and an END line that carry a code made from it.

    Equal texts get equal fences. To hold its own END line, a text would have to contain a piece of its own SHA-256.
    """
    code = marker_code(text)
    return f"<<<BEGIN {label} {code}>>>\n{text}\n<<<END {label} {code}>>>"


def marker_code(text: str) -> str:
    """Return the code of a text: a piece of its hash that does not occur in it."""
    code = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_CODE_LENGTH]
    while code in text:
        code = hashlib.sha256(f"{code}{text}".encode("utf-8", "surrogatepass")).hexdigest()[:_CODE_LENGTH]
    return code

"""Values as JavaScript writes them: in a text (`String(x)`) and as JSON (`JSON.stringify(x)`)."""

import json
import math
from collections.abc import Iterable, Mapping

from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue

_EXPONENT = compile_later(r"e([+-])0*(\d+)$")
_LONE_SURROGATE = compile_later("[\ud800-\udfff]")
_PLAIN_UP_TO = 21  # JavaScript writes plain digits for decimal exponents between these two
_PLAIN_DOWN_TO = -7


def js_string(value: JsonValue) -> str:
    """Return `value` as JavaScript inserts it into a text; empty for null, as in templates."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return js_number(value)
    if isinstance(value, Mapping):
        return "[object Object]"
    if isinstance(value, Iterable):
        return ",".join(js_string(item) for item in value)
    return str(value)


def js_number(value: float) -> str:
    """Return a number in the fewest digits that identify it: 1.0 is `1`, 1e21 is `1e+21`. Integers keep all digits."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent_text = f"{_shortest(abs(value))}".partition("e")
    digits = mantissa.replace(".", "")
    exponent = int(exponent_text)
    return sign + _placed(digits.rstrip("0") or "0", exponent)


def js_json(value: JsonValue, indent: int | str = 0) -> str:
    """Return `value` as JSON text as JavaScript writes it.

    With `indent`, a number of spaces or a text, each entry is on its own line.
    """
    return _json_text(value, indent if isinstance(indent, str) else " " * indent, "\n")


def _shortest(value: float) -> str:
    """Return `d.ddde±x` with the digits of Python's repr, which are the shortest possible, as in JavaScript."""
    text = repr(value)
    if "e" in text:
        return _EXPONENT.sub(lambda found: f"e{found[1]}{found[2]}", text)
    whole, _, fraction = text.partition(".")
    digits = (whole + fraction).lstrip("0")
    exponent = len(whole) - 1 if whole != "0" else -(len(fraction) - len(fraction.lstrip("0")) + 1)
    return f"{digits[0]}.{digits[1:] or '0'}e{exponent}"


def _placed(digits: str, exponent: int) -> str:
    """Return `digits`, with the decimal point after the first one, times ten to the `exponent`."""
    if 0 <= exponent < _PLAIN_UP_TO:
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        fraction = digits[exponent + 1 :]
        return f"{whole}.{fraction}" if fraction else whole
    if _PLAIN_DOWN_TO < exponent < 0:
        return f"0.{'0' * (-exponent - 1)}{digits}"
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{mantissa}e{'+' if exponent > 0 else '-'}{abs(exponent)}"


def _json_text(value: JsonValue, step: str, line: str) -> str:
    if isinstance(value, Mapping):
        parts = [f"{_quoted(str(key))}:{' ' * bool(step)}" for key in value]
        entries = [
            part + _json_text(item, step, line + step)
            for part, item in zip(parts, value.values(), strict=True)
        ]
        return _bracketed("{}", entries, step, line)
    if isinstance(value, list | tuple):
        return _bracketed("[]", [_json_text(item, step, line + step) for item in value], step, line)
    if isinstance(value, str):
        return _quoted(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "null"
    return js_string(value)


def _bracketed(brackets: str, entries: list[str], step: str, line: str) -> str:
    if not entries:
        return brackets
    if not step:
        return brackets[0] + ",".join(entries) + brackets[1]
    return brackets[0] + ",".join(f"{line}{step}{entry}" for entry in entries) + line + brackets[1]


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)

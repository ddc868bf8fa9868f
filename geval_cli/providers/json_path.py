"""A small path into JSON: `choices[0].message.content`, and the keys of HTTP providers that hold one."""

from collections.abc import Mapping
from typing import Any

from geval_cli.patterns import compile_later

RESPONSE_KEYS = ("response_path", "responsePath", "transformResponse", "responseParser")
"""A pattern that tells a path to the answer of an HTTP API from JavaScript."""

_STEP = compile_later(r"""\.?([A-Za-z_$][\w$-]*)|\[(-?\d+)\]|\[(?:'([^']*)'|"([^"]*)")\]""")
_ROOTS = ("json", "$")

PathStep = str | int


def parse_path(path: str) -> tuple[PathStep, ...]:
    """Parse `path` into keys and indexes. A leading `json` or `$` is the whole document.

    Raises:
        ValueError: it is not such a path.
    """
    steps: list[PathStep] = []
    position = 0
    while position < len(path):
        found = _STEP.match(path, position)
        if found is None:
            raise ValueError(f"not a path at {path[position:]!r}")
        name, index, *quoted = found.groups()
        steps.append(int(index) if index is not None else next(k for k in (name, *quoted) if k is not None))
        position = found.end()
    return tuple(steps[1:] if steps and steps[0] in _ROOTS else steps)


def follow_path(value: Any, steps: tuple[PathStep, ...]) -> Any:
    """Return the part of `value` at the end of the path.

    Raises:
        LookupError: the path leads nowhere; the text names the step.
    """
    for step in steps:
        if not _has_step(value, step):
            raise LookupError(f"there is no {step!r} in it")
        value = value[step]
    return value


def _has_step(value: Any, step: PathStep) -> bool:
    if isinstance(step, int):
        return isinstance(value, list) and -len(value) <= step < len(value)
    return isinstance(value, dict) and step in value


def is_path(written: str) -> bool:
    """Return whether `written` is a path, which needs no engine."""
    try:
        return bool(parse_path(written))
    except ValueError:
        return False


def has_response_code(config: Mapping[str, Any]) -> bool:
    """Return whether an HTTP provider takes the answer out of what comes back by code of the config's own."""
    written = [config.get(key) for key in RESPONSE_KEYS]
    return any(isinstance(item, str) and item != "" and not is_path(item) for item in written)

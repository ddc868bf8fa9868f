"""Assertion types that other tools have and geval has not, with what to do instead."""

_JUDGE = "ask a judge with g-eval, whose criteria say what to look for"
_CODE = "check it in an assertion of your own"
_TRACE = "geval sees the answer of a model and not the trace of a program; check the answer"

_UNSUPPORTED: dict[str, str] = {
    "agent-rubric": _JUDGE,
    "max-length": "use word-count, or a regex such as ^.{0,500}$",
    "min-length": "use word-count, or a regex such as ^.{20,}$",
    "pi": _JUDGE,
    "ruby": _CODE,
    "skill-used": _TRACE,
}
_UNSUPPORTED_FAMILIES: dict[str, str] = {
    "promptfoo:redteam": "geval does no red teaming; " + _JUDGE,
    "trace-": _TRACE,
    "trajectory:": _TRACE,
}


def advice_on(kind: str) -> str | None:
    """What to do instead of `kind`, a type without `not-`; None for a type that is simply unknown."""
    if kind in _UNSUPPORTED:
        return _UNSUPPORTED[kind]
    families = (advice for prefix, advice in _UNSUPPORTED_FAMILIES.items() if kind.startswith(prefix))
    return next(families, None)

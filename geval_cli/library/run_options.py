"""Check the names, types and ranges of the options of `run`, before anything is read or sent."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import regex

from geval_cli.assertions.patterns import compiled
from geval_cli.errors import Problem, UsageError
from geval_cli.library.run import RunKeywords
from geval_cli.numbers import seconds_of_age
from geval_cli.runs.options import DECIDED, RunOptions, declared_options
from geval_cli.runs.requests import UNTRUSTED_VARIABLE, RunRequest, is_untrusted
from geval_cli.source.problems import hint_among
from geval_cli.specs.base import Scoring
from geval_cli.store.cache import DEFAULT_TTL_S
from geval_cli.store.state import CacheChoice

_PATTERNS = frozenset(
    field.name for field, option in declared_options(RunOptions) if option.syntax == "REGEX"
)
_SHARES = {
    "fail_under": (1.0, "a share between 0 and 1"),
    "max_cost": (math.inf, "an amount in USD of at least 0"),
}


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of a run.

    Raises:
        UsageError: the options are not valid; names every problem.
    """
    problems = [*_unknown(options), *_wrong(options), *_contradictions(options)]
    if problems:
        raise UsageError.of("these options are not valid", problems)


def check_is_own(environ: Mapping[str, str]) -> None:
    """Check that suites are the program's own.

    Raises:
        UsageError: GEVAL_UNTRUSTED declares every config untrusted, and this process is not confined.
    """
    if is_untrusted(environ):
        hint = "`geval run --untrusted` runs an untrusted config; unset the variable for your own"
        raise UsageError(f"{UNTRUSTED_VARIABLE} is set, and a Python program cannot be confined", hint=hint)


def run_cache(request: RunRequest) -> CacheChoice:
    """Return the cache, and how it is used, for a run with checked options."""
    ttl = request.cache_ttl
    age_s = DEFAULT_TTL_S if ttl is None else seconds_of_age(ttl)  # None is for `never`
    return CacheChoice(request.cache_folder, age_s, is_offline=request.is_offline)


def _unknown(options: Mapping[str, Any]) -> Iterator[Problem]:
    known = RunKeywords.__annotations__
    for name in options.keys() - known.keys():
        yield Problem(
            f"`run` has no option `{name}`",
            hint=hint_among(name, known, everything="docs/reference/library.md"),
        )


def _wrong(options: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in options.items():
        expected = (
            _expected(name, value) if name in RunKeywords.__annotations__ and value is not None else None
        )
        if expected is not None:
            yield Problem(f"`{name}` must be {expected}, found {value!r:.80}")


def _expected(name: str, value: Any) -> str | None:
    """Return what an option must be, by its annotation in `RunKeywords`, if `value` is not that; else None."""
    if name in _SHARES:
        most, what = _SHARES[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if is_number and 0 <= value <= most and math.isfinite(value) else what
    for own, known in (("scoring", get_args(Scoring)), ("stop_when", (DECIDED,))):
        if name == own:
            return None if value in known else f"{'one of ' * (len(known) > 1)}{', '.join(known)}"
    if name == "cache_ttl" and (
        not isinstance(value, str) or (value != "never" and seconds_of_age(value) is None)
    ):
        return "an age such as 12h, 30d or never"
    if name in _PATTERNS and not (isinstance(value, str) and value and _is_pattern(value)):
        return "a regular expression that is not empty"  # an empty one would select, and pay for, everything
    if value == "":
        return "left out, or not empty"
    if name == "output":
        return (
            None
            if all(
                isinstance(item, str | Path)
                for item in (value if isinstance(value, list | tuple) else [value])
            )
            else "a path or a list of paths"
        )
    if name == "filter_metadata" and not (
        isinstance(value, Mapping) and all(isinstance(text, str) for item in value.items() for text in item)
    ):
        return "a mapping of texts"
    annotation = RunKeywords.__annotations__[name]
    kinds = tuple(get_origin(kind) or kind for kind in get_args(annotation) or (annotation,))
    if int in kinds:
        option = next(option for declared, option in declared_options(RunOptions) if declared.name == name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        least = -math.inf if option.minimum is None else option.minimum
        if is_whole and least <= value <= (option.maximum or math.inf):
            return None
        least_text = "" if option.minimum is None else f" from {option.minimum}"
        return f"a whole number{least_text}" + (f" to {option.maximum}" if option.maximum else "")
    if isinstance(value, kinds):
        return None
    return "a path" if Path in kinds else ", or ".join(_WORDS[kind] for kind in kinds if kind in _WORDS)


_WORDS = {bool: "True or False", str: "text", Mapping: "a mapping"}


def _contradictions(options: Mapping[str, Any]) -> Iterator[Problem]:
    if options.get("offline") and options.get("cache") is False:
        yield Problem("offline=True and cache=False cannot be combined: offline, only the cache answers")
    if options.get("offline") and options.get("cache_ttl") is not None:
        yield Problem("offline=True and `cache_ttl` cannot be combined: offline, answers never expire")
    if options.get("samples") is not None and options.get("scoring") not in (None, "samples"):
        yield Problem(f"`samples` means scoring='samples', not {options['scoring']!r}")


def _is_pattern(text: str) -> bool:
    try:
        compiled(text)
    except regex.error:
        return False
    return True

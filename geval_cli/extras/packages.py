"""Check what installed packages give to geval: a result other than what its class promises is a bug of the package."""

import asyncio
import math
from collections.abc import Awaitable, Iterable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from msgspec import convert, to_builtins

from geval_cli.assertions.base import Assertion, Outcome, RowMember, Subject, Tools
from geval_cli.errors import GevalError, Problem, ProviderRequestError, UsageError
from geval_cli.plugins import refuse_blocking
from geval_cli.providers.base import Provider, ProviderIdentity, ProviderLimits, is_being_cancelled
from geval_cli.providers.wire.finish_reasons import known_end
from geval_cli.providers.wire.token_usage import finite_amount
from geval_cli.records import ModelRequest, ModelResponse

T = TypeVar("T")

_ROUNDING = 1e-9

_PARTS = ("id", "label", "identity", "limits", "is_cacheable", "complete", "aclose")
_CLASSES = {
    "id": str,
    "label": str,
    "identity": ProviderIdentity,
    "limits": ProviderLimits,
    "is_cacheable": bool,
}


class WrongResultError(TypeError):
    """A method of an assertion or a provider did something other than its class promises."""

    def __init__(self, giver: object, method: str, what: str) -> None:
        name = getattr(giver, "__name__", type(giver).__qualname__)
        super().__init__(f"`{method}` of {name} {what}")
        self.module_with_bug = name if isinstance(giver, ModuleType) else type(giver).__module__


def check_parts(provider: Provider, name: str) -> None:
    """Raise UsageError if an object that a plugin built is not a provider."""
    missing = next((part for part in _PARTS if not hasattr(provider, part)), None)
    if missing is not None:
        raise UsageError(
            f"the plugin `{name}` builds a provider without `{missing}`",
            hint=f"give it all that geval_cli.providers.base.Provider has: {', '.join(_PARTS)}",
        )
    refuse_blocking(provider, ("complete", "aclose"), f"the plugin `{name}` builds a provider")
    for part, wanted in _CLASSES.items():
        found = getattr(provider, part)
        try:
            wrong = "" if isinstance(found, wanted) else f"it is {type(found).__name__}"
            whole(found, wanted)
        except ValueError as error:
            wrong = wrong or str(error)
        if wrong:
            what = f"the plugin `{name}` builds a provider whose `{part}` is invalid: {wrong}"
            raise UsageError(what, hint=f"make it a valid {wanted.__name__}")


async def answer_of(provider: Provider, request: ModelRequest) -> ModelResponse:
    """Return the answer of a package's provider.

    Raises:
        ProviderRequestError: its finish reason says that it is not complete.
        WrongResultError: it is no answer.
    """
    response = await _result_of(provider.complete(request), provider, "complete", ModelResponse)
    reasons = (choice.finish_reason for choice in response.choices if choice.finish_reason)
    broken = next((reason for reason in reasons if (end := known_end(reason)) and not end.is_answer), None)
    if broken is None:
        return response
    error = ProviderRequestError(
        f"{provider.id} returned no whole answer (finish reason: {broken})", provider_id=provider.id
    )
    error.cost_usd = response.usage.cost_usd
    error.input_tokens, error.output_tokens = response.usage.input_tokens, response.usage.output_tokens
    raise error


async def outcome_of(spec: Assertion, subject: Subject, tools: Tools) -> Outcome:
    """Return the outcome of a package's assertion.

    Raises:
        WrongResultError: it is none.
    """
    return await _result_of(spec.judge(subject, tools), spec, "judge", Outcome)


async def outcomes_of(
    spec: Assertion, members: Sequence[RowMember], tools: Tools
) -> Sequence[Outcome | GevalError]:
    """Return the outcomes of a package's assertion that compares outputs, in the order of `members`.

    Raises:
        WrongResultError: there is not one for each, or one that is not valid.
    """
    found = await _awaited(spec.judge_row(members, tools), spec, "judge_row")
    if not isinstance(found, list | tuple) or len(found) != len(members):
        raise WrongResultError(spec, "judge_row", f"did not return a list of {len(members)} outcomes")
    return [
        item if isinstance(item, GevalError) else _valid(item, spec, "judge_row", Outcome) for item in found
    ]


def problems_in(found: object, giver: object) -> list[Problem]:
    """Return the problems that the `check` of a package's assertion or provider found.

    Raises:
        WrongResultError: it returned something else.
    """
    items = [*found] if isinstance(found, Iterable) else [] if found is None else [found]
    problems = [item for item in items if isinstance(item, Problem)]
    if len(problems) < len(items):
        raise WrongResultError(giver, "check", "must return a list of Problem")
    return problems


async def _result_of(called: Awaitable[object], giver: object, method: str, wanted: type[T]) -> T:
    return _valid(await _awaited(called, giver, method), giver, method, wanted)


async def _awaited(called: Awaitable[object], giver: object, method: str) -> object:
    """Return the result of a method; what it raises must end neither geval, such as `sys.exit()`, nor the task."""
    try:
        return await called
    except (GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
            raise
        if isinstance(error, Exception) and _is_shown(error):
            raise
        raise WrongResultError(giver, method, f"raised {type(error).__name__}") from error


def _valid(found: object, giver: object, method: str, wanted: type[T]) -> T:
    if not isinstance(found, wanted):
        what = f"returned {type(found).__name__}; it must return {wanted.__name__}"
        raise WrongResultError(giver, method, what)
    try:
        return whole(found, wanted)
    except ValueError as error:
        raise WrongResultError(giver, method, f"returned an invalid {wanted.__name__}: {error}") from error


def _is_shown(error: Exception) -> bool:
    try:
        return isinstance(str(error), str)
    except Exception:  # noqa: BLE001 - whatever the code of a package raises
        return False


def whole(found: object, wanted: type[T]) -> T:
    """Return an object whose parts all have the form of its type. A ValueError says which part does not."""
    try:
        plain = to_builtins(found, builtin_types=(bytes, bytearray, memoryview), enc_hook=_plain)
        made = convert(plain, wanted)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if isinstance(made, ModelResponse):
        check_response(made)
    if isinstance(made, Outcome):
        if made.score is not None and not -_ROUNDING <= made.score <= 1 + _ROUNDING:
            raise ValueError(f"the score must be between 0 and 1, not {made.score:g}")
        if made.threshold is not None and not math.isfinite(made.threshold):
            raise ValueError(f"the threshold must be a finite number, not {made.threshold:g}")
    return made


def _plain(value: object) -> object:
    """Return numpy's numbers and arrays, and values of classes derived from Python's own, as those."""
    if hasattr(value, "tolist"):
        return value.tolist()
    kinds: tuple[Any, ...] = (str, int, float, dict, list)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} is not data")


def check_response(response: ModelResponse) -> None:
    """Raise ValueError if an answer has no choice, or amounts that no answer can have."""
    if not response.choices:
        raise ValueError("it has no choices")
    usage = response.usage
    for name, amount in (
        ("latency_ms", response.latency_ms),
        *((name, getattr(usage, name)) for name in ("input_tokens", "output_tokens", "cost_usd")),
    ):
        if amount is not None and finite_amount(amount) is None:
            raise ValueError(f"`{name}` must be a number of at least 0, not {amount:g}")

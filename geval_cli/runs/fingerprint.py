"""Hash the inputs that decide a run's results, part by part, and say in words how two runs differ."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from geval_cli.errors import UsageError
from geval_cli.judge.prompt import prompt_version
from geval_cli.records import JsonValue
from geval_cli.runs.options import DECIDED, RunOptions, declared_options, default_of
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.source.digest import CONFIG_PART, FILE_PART, OVERRIDES_PART, ROWS_PART, digest_of
from geval_cli.source.secrets import is_secret_name, mask_bare
from geval_cli.specs.dialect import Dialect

_SHOWN_VALUE = 60
_VARIABLES = "variables"
"""The option that has a part of the fingerprint to itself."""

_ONLY = "tests by number"
"""A choice of tests that no option makes: pytest's."""

_JUDGED, _LOCK = "judged", "lock"
_SUITE, _OPTIONS, _VARS, _PROMPTS = "suite", "options", "vars", "judge_prompts"


def fingerprint(prepared: PreparedRun) -> dict[str, JsonValue]:
    """Return what decides the results of a run: the suite's parts as hashes, and the options that matter."""
    request, suite = prepared.request, prepared.suite
    found = {"repeats": prepared.plan.repeats, "dialect": str(suite.rules.name)}
    if prepared.plan.drawn is not None:
        found["stop_when"] = DECIDED
    judged = {} if request.judged is None else {_JUDGED: request.judged.facts}
    locked = {} if prepared.lock_digest is None else {_LOCK: prepared.lock_digest}
    return {
        **judged,
        **locked,
        _SUITE: dict(suite.parts),
        _OPTIONS: deciding_options(request, found),
        _VARS: dict(request.variables),
        _PROMPTS: prompt_version(),
    }


def deciding_options(request: RunRequest, found: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the options that decide results, by their flags; `found` holds what the config had a say in.

    Stored runs hold a hash of this: an option that they do not know is left out where it is not given.
    """
    # A file named by --filter-failing says nothing: what counts is which tests it selects.
    failing = None if request.failing is None else _hash(request.failing)
    values = {**vars(request), "filter_failing": failing, **found}
    written = {}
    for field, option in declared_options(type(request)):
        value = values[field.name]
        is_given = option.is_always_written or value != default_of(field)
        is_moot = bool(option.only_with) and all(values[name] is None for name in option.only_with)
        if option.decides_results and field.name != _VARIABLES and is_given and not is_moot:
            written[option.name] = _as_json(value)
    if request.only is not None:
        written[_ONLY] = _hash(map(str, request.only))
    return written


def options_of(covered: Mapping[str, JsonValue]) -> RunOptions:
    """Return the options that decide results of the run with this fingerprint, to ask for the same once more.

    Raises:
        UsageError: its tests were chosen by a list of which only a hash is kept.
    """
    written = covered.get(_OPTIONS) or {}
    values: dict[str, Any] = {_VARIABLES: dict(covered.get(_VARS) or {})}
    for field, option in declared_options(RunOptions):
        value = written.get(option.name)
        if option.decides_results and value is not None:
            values[field.name] = _from_json(field.name, value)
    if "filter_failing" in values or _ONLY in written:
        hint = "select them again in a terminal, with `geval run --filter-failing RUN`"
        raise UsageError(
            "this run had only some of its suite's tests, and which ones was not recorded", hint=hint
        )
    return RunOptions(**values)


def _from_json(name: str, value: Any) -> Any:
    """Return the value of an option from `deciding_options`."""
    if name == "dialect":
        return Dialect(value)
    return tuple(tuple(pair.split("=", 1)) for pair in value) if isinstance(value, list) else value


def _hash(fingerprints: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(fingerprints)).encode()).hexdigest()[:16]


def _as_json(value: JsonValue) -> JsonValue:
    """Return pairs as they were written, everything else as it is."""
    return [f"{name}={text}" for name, text in value] if isinstance(value, tuple) else value


def run_digest(parts: Mapping[str, JsonValue]) -> str:
    """Return SHA-256, in hexadecimal, of a fingerprint."""
    return digest_of(parts)


def changes(
    before: Mapping[str, JsonValue],
    now: Mapping[str, JsonValue],
    config_before: JsonValue,
    config_now: JsonValue,
) -> list[str]:
    """Return the inputs of a run that changed, a line each. Keys are not shown.

    Args:
        before: the fingerprint of the earlier run.
        now: that of today.
        config_before: the config as the earlier run kept it.
        config_now: the config of today in the same form.
    """
    lines = [
        f"{name}: {_option(old)} -> {_option(new)}"
        for name, old, new in _pairs(before.get(_OPTIONS), now.get(_OPTIONS))
    ]
    lines += [
        f"--var {name}: {_shown(old, name)} -> {_shown(new, name)}"
        for name, old, new in _pairs(before.get(_VARS), now.get(_VARS), absent=_ABSENT)
    ]
    config_lines = list(_config_changes(config_before, config_now))
    lines += config_lines
    has_config_changes = bool(config_lines)
    for part, old, new in _pairs(before.get(_SUITE), now.get(_SUITE)):
        lines += _part_changes(part, old, new, has_config_changes=has_config_changes)
    if before.get(_LOCK) != now.get(_LOCK):
        lines.append("geval.lock: the evaluation steps in it")
    if before.get(_PROMPTS) != now.get(_PROMPTS):
        lines.append("the judge's prompts: another version of geval wrote them")
    return lines


class _Absent:
    """Stands where there is no value, not even null."""


_ABSENT = _Absent()


def _pairs(
    before: JsonValue, now: JsonValue, absent: JsonValue = None
) -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """Yield each name under which the two mappings hold different values, with both."""
    before, now = before or {}, now or {}
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name, absent), now.get(name, absent)
        if old is not new and _text(old) != _text(new):
            yield name, old, new


def _part_changes(part: str, old: JsonValue, new: JsonValue, *, has_config_changes: bool) -> Iterator[str]:
    """Yield a line for each changed hash. A changed config is described key by key."""
    if part.startswith(FILE_PART):
        name = part.removeprefix(FILE_PART)
        if old is None or new is None:
            if not has_config_changes:
                yield f"file {name}: {'now used' if old is None else 'no longer used'}"
        elif name == "...":
            yield "files used by the tests: their content"
        else:
            yield f"file {name}: its content"
    elif part == ROWS_PART or part.startswith(CONFIG_PART):
        if not has_config_changes:
            yield f"{part.removeprefix(CONFIG_PART)}: a value that comes from the environment or from another file"
    elif part != OVERRIDES_PART:
        yield part


def _config_changes(before: JsonValue, now: JsonValue, path: str = "") -> Iterator[str]:
    """Yield every place in the config that differs, `tests/2/vars/name: "a" -> "b"`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, old, new in _pairs(before, now, absent=_ABSENT):
            yield from _config_changes(old, new, f"{path}/{name}" if path else str(name))
    elif isinstance(before, list) and isinstance(now, list):
        for index, (old, new) in enumerate(zip(before, now, strict=False)):
            yield from _config_changes(old, new, f"{path}/{index}")
        if len(before) != len(now):
            yield f"{path}: {len(before):,} -> {len(now):,} entries"
    elif _text(before) != _text(now):
        name = path.rpartition("/")[2]
        yield f"{path}: {_shown(before, name)} -> {_shown(now, name)}"


def _option(value: JsonValue) -> str:
    return "not given" if value is None else str(value)


def _shown(value: JsonValue, name: str) -> str:
    if value is _ABSENT:
        return "nothing"
    if is_secret_name(name):
        return "***"
    text = mask_bare(_text(value))
    return text if len(text) <= _SHOWN_VALUE else f"{text[: _SHOWN_VALUE - 3]}..."


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=lambda _: "")

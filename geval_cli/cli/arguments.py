"""Parse option values that are more than a word or a number, and check for options that contradict each other."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from geval_cli.cli.problems import print_warnings
from geval_cli.errors import UsageError
from geval_cli.gateway.budget import MORE_HINT, RESUME_HINT, Budget
from geval_cli.numbers import percent_hint, seconds_of_age, share_of_percentage
from geval_cli.patterns import compile_later
from geval_cli.report.sanitize import quoted
from geval_cli.runs.options import (
    AUTO,
    DECIDED,
    Option,
    OptionGroup,
    RunOptions,
    declared_options,
    default_of,
)
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import find_files, is_wildcard
from geval_cli.specs.base import UPTO, Scoring
from geval_cli.specs.dialect import Dialect
from geval_cli.store.cache import DEFAULT_TTL_S
from geval_cli.store.state import CacheChoice

if TYPE_CHECKING:
    from geval_cli.report.failures import GroupBy

_CASE = compile_later(r"#?(\d{1,9})(?:\.(\d{1,9}))?")
_SCALE = compile_later(r"\s*(-?\d{1,9}(?:\.\d{1,6})?)\s*(?:,|-|to)\s*(-?\d{1,9}(?:\.\d{1,6})?)\s*")
_NEVER = "never"
_MOST_DIGITS = 9
_CONFIG_NAMES = (
    "gevalconfig.yaml",
    "gevalconfig.yml",
    "gevalconfig.json",
    "promptfooconfig.yaml",
    "promptfooconfig.yml",
    "promptfooconfig.json",
)


def parse_option(option: Option, default: object, written: Any) -> Any:
    """Parse the value of an option. A `default` that is a mapping or a tuple means that it can be given repeatedly.

    Raises:
        UsageError: the value does not match the syntax of the option.
    """
    parse = PARSERS.get(option.syntax or "", _as_is)
    if isinstance(default, Mapping):
        return dict(parse(option, item) for item in written)
    if isinstance(default, tuple):
        return tuple(parse(option, item) for item in written)
    return parse(option, written)


def _as_is(_: Option, value: Any) -> Any:
    return value


def _parse_pair(option: Option, text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        hint = f"for example {option.name} {option.example}"
        raise UsageError(f"{option.name} must be NAME=VALUE, not `{text}`", hint=hint)
    return name, value


def parse_tags(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names and values of tags.

    Raises:
        UsageError: one is not NAME=VALUE.
    """
    option = Option("--tag", syntax="NAME=VALUE", example="model=candidate")
    return [_parse_pair(option, text) for text in texts]


def parse_case(text: str | None) -> str | None:
    """Return the number of a case as tables show it, `#3` or `#3.2`.

    Raises:
        UsageError: the text is not the number of a case.
    """
    if text is None:
        return None
    found = _CASE.fullmatch(text.strip())
    if found is None:
        hint = "use the number in the table: 3, or 3.2 for the second repeat of test 3"
        raise UsageError(f"--case must be the number of a case, not `{text}`", hint=hint)
    repeat = f".{int(found[2])}" if found[2] and int(found[2]) > 1 else ""
    return f"#{int(found[1])}{repeat}"


def parse_grouping(text: str) -> "GroupBy":
    """Return how failures are grouped.

    Raises:
        UsageError: the text is not one of the choices.
    """
    from geval_cli.report.failures import GroupBy  # rich takes a while to import

    if text in set(GroupBy):
        return GroupBy(text)
    raise UsageError(f"--by must be {' or '.join(GroupBy)}, not `{text}`", hint="`assertion` is the default")


def _parse_margin(option: Option, text: str) -> str:
    from geval_cli.statistics.paired import NO_MARGINS

    try:
        NO_MARGINS.with_given([text])
    except ValueError:
        message = f"{option.name} must be a number between 0 and 1 or METRIC=NUMBER, not `{text}`"
        raise UsageError(message, hint=f"for example {option.name} 0.05") from None
    return text


def _parse_pattern(option: Option, text: str) -> str:
    import regex  # few runs have patterns, and the package's own take a while to compile

    from geval_cli.assertions.patterns import compiled

    if not text:  # it would match everything, and all of it would be paid for
        raise UsageError(f"{option.name} is empty", hint="leave it out, or set the variable of your shell")
    try:
        compiled(text)
    except regex.error as error:
        hint = "put a backslash before characters that should match literally"
        message = f"{option.name} must be a regular expression, not `{text}`: {error}"
        raise UsageError(message, hint=hint) from error
    return text


def _parse_dialect(_: Option, text: str) -> Dialect:
    if text in set(Dialect):
        return Dialect(text)
    raise UsageError(f"unknown dialect `{text}`", hint=f"use {' or '.join(Dialect)}")


def _parse_dollars(option: Option, amount: float) -> float:
    if not (math.isfinite(amount) and amount >= 0):
        hint = f"for example {option.name} {option.example}"
        raise UsageError(f"{option.name} must be an amount in USD of at least 0, not `{amount:g}`", hint=hint)
    return amount


def _parse_scoring(_: Option, text: str) -> Scoring:
    _check_known(text)
    return cast("Scoring", text)


def _check_known(scoring: str | None) -> None:
    known = get_args(Scoring)
    if scoring not in (None, *known):
        message = f"--scoring must be one of {', '.join(known)}, not `{scoring}`"
        raise UsageError(message, hint="`auto` is the default")


def _parse_samples(option: Option, text: str) -> int | str:
    number = text.removeprefix(UPTO)
    least = 1 if number == text else 2
    count = int(number) if number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS else 0
    if not least <= count <= (option.maximum or 0):
        hint = f"for example {option.name} 20, or {option.name} {UPTO}20 to stop when the verdict is settled"
        raise UsageError(
            f"{option.name} must be a number up to {option.maximum}, optionally after {UPTO}, not `{text}`",
            hint=hint,
        )
    return count if number == text else f"{UPTO}{count}"


def _parse_workers(option: Option, text: str) -> int | str:
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0
    if text != AUTO and not 1 <= count <= (option.maximum or 0):
        hint = f"for example {option.name} 4, or {option.name} {AUTO} for one per processor"
        raise UsageError(
            f"{option.name} must be a number up to {option.maximum} or {AUTO}, not `{text}`", hint=hint
        )
    return count or AUTO


def _parse_stop_when(option: Option, text: str) -> str:
    if text == DECIDED:
        return text
    raise UsageError(
        f"{option.name} must be `{DECIDED}`, not `{text}`", hint=f"write {option.name} {DECIDED}"
    )


def _parse_share(option: Option, text: str) -> float:
    return parse_share(option.name, text)


def _parse_scale(option: Option, text: str) -> tuple[float, float]:
    found = _SCALE.fullmatch(text)
    low, high = (float(found[1]), float(found[2])) if found is not None else (math.nan, math.nan)
    if not low < high:
        hint = f"for example {option.name} 1,5"
        raise UsageError(f"{option.name} must be the lowest and the highest label, not `{text}`", hint=hint)
    return low, high


def _parse_costs(option: Option, text: str) -> tuple[float, float]:
    first, separator, second = text.partition(":")
    try:
        costs = float(first), float(second)
    except ValueError:
        costs = 0.0, 0.0
    if not separator or not all(0 < cost < float("inf") for cost in costs):
        hint = f"for example {option.name} 3:1 if a bad output that passes is three times as bad"
        raise UsageError(f"{option.name} must be two positive numbers, not `{text}`", hint=hint)
    return costs


PARSERS: Mapping[str, Callable[[Option, Any], Any]] = {
    "NAME=VALUE": _parse_pair,
    "REGEX": _parse_pattern,
    "DIALECT": _parse_dialect,
    "USD": _parse_dollars,
    "HOW": _parse_scoring,
    "N|upto:N": _parse_samples,
    "N|auto": _parse_workers,
    "SHARE": _parse_share,
    "[METRIC=]MARGIN": _parse_margin,
    DECIDED: _parse_stop_when,
    "LOW,HIGH": _parse_scale,
    "A:B": _parse_costs,
}
"""How a value is parsed, by the syntax that its option declares; values of any other syntax are taken unchanged."""


def named_or_found(configs: Sequence[Path] | None) -> list[Path]:
    """Return the given configs, else the one in the current folder.

    Raises:
        UsageError: none was given, and the folder has none.
    """
    if configs:
        return list(configs)
    found = next((Path(name) for name in _CONFIG_NAMES if Path(name).is_file()), None)
    if found is None:
        message = f"no config given, and no {_CONFIG_NAMES[0]} or {_CONFIG_NAMES[3]} in this folder"
        raise UsageError(message, hint="pass a config, or write one with `geval init`")
    return [found]


def config_groups(configs: Sequence[Path], *, merge: bool) -> list[tuple[Path, ...]]:
    """Return the configs grouped by suite: the files of a wildcard or, with `merge`, all configs are one suite.

    A folder stands for the config in it.

    Raises:
        UsageError: a wildcard matches no file.
    """
    groups = [_files_of(config) for config in configs]
    return [tuple(file for group in groups for file in group)] if merge else groups


def _files_of(config: Path) -> tuple[Path, ...]:
    if config.is_dir():
        return (next((found for name in _CONFIG_NAMES if (found := config / name).is_file()), config),)
    if config.exists() or not is_wildcard(str(config)):
        return (config,)
    files = tuple(file.path for file in find_files(str(config), Path(), TRUSTED))
    if not files:
        raise UsageError(f"no file matches `{config}`", hint="put the wildcard in quotes, or list the files")
    return files


_NOT_FOR_RESUME = {"plan", "watch", "home", "cache_folder"}
"""Options that a resumed run does not need, or that are added separately."""


def repeated_options(options: RunOptions) -> str | None:
    """Return the options to write after `--resume` to resume a run with these options: it keeps its budget and sandbox.

    None if they cannot be written as easily: named values may be secret, and `latest` refers to another run by then.
    """
    words = []
    for declared, option in declared_options(RunOptions):
        value = getattr(options, declared.name)
        is_left_out = declared.name in _NOT_FOR_RESUME or option.group in (
            OptionGroup.RESULTS,
            OptionGroup.RESUMING,
        )
        if is_left_out or value == default_of(declared):
            continue
        if isinstance(value, Mapping | tuple) or declared.name in ("filter_failing", "merge"):
            return None
        words.append(option.name if isinstance(value, bool) else f"{option.name} {quoted(_plain(value))}")
    return "".join(f" {word}" for word in words)


def _plain(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def budget_of(options: RunOptions, *, can_resume: bool) -> Budget | None:
    """Return the budget that all runs of a command share; None if spending is not limited."""
    if options.max_cost is None and options.max_requests is None:
        return None
    hint = RESUME_HINT if can_resume else MORE_HINT
    return Budget(options.max_cost, options.max_requests, hint=hint)


def parse_share(option: str, text: str) -> float:
    """Return a share from 0 to 1, written as a number or in per cent.

    Raises:
        UsageError: the text is not a share.
    """
    share = share_of_percentage(text)
    if share is not None and 0 < share < 0.01:  # noqa: PLR2004
        hint = f"write {100 * share:g} or {10_000 * share:g}%"
        raise UsageError(f"{option} must be 0 or at least 1 %, not `{text}`", hint=hint)
    if share is not None:
        return share
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if 0 <= number <= 1:
        return number
    meant = percent_hint(number)
    hint = f"{meant} or {number:g}%" if meant else "for example 0.9, or 90%"
    raise UsageError(f"{option} must be between 0 and 1, not `{text}`", hint=hint)


def check_scoring(scoring: Scoring | None, samples: int | str | None) -> None:
    """Check that the scoring method exists, and that a number of samples does not contradict it.

    Raises:
        UsageError: there is no such method, or the two contradict each other.
    """
    _check_known(scoring)
    if samples is not None and scoring not in (None, "samples"):
        message = f"--samples cannot be combined with --scoring {scoring}"
        raise UsageError(message, hint="remove one of the two")


def parse_age(option: str, text: str) -> float:
    """Return an age in seconds, from a text such as `30d`.

    Raises:
        UsageError: the text is not an age.
    """
    age_s = seconds_of_age(text)
    if age_s is None:
        hint = f"use a number with s, m, h, d or w (seconds to weeks): {option} 30d"
        raise UsageError(f"{option} must be an age, not `{text}`", hint=hint)
    return age_s


def cache_choice(options: RunOptions) -> CacheChoice:
    """Return the folder, the age limit and the mode of the cache.

    Raises:
        UsageError: the options contradict each other, or the time limit is not an age.
    """
    folder, ttl = options.cache_folder, options.cache_ttl
    if options.is_offline and not options.reads_cache:
        hint = "remove one of the two"
        raise UsageError(
            "--offline and --no-cache cannot be combined: offline, only the cache answers", hint=hint
        )
    if options.is_offline and ttl is not None:
        hint = "remove --cache-ttl: with --offline, answers never expire"
        raise UsageError("--offline and --cache-ttl cannot be combined", hint=hint)
    ttl_s = DEFAULT_TTL_S if ttl is None else None if ttl == _NEVER else parse_age("--cache-ttl", ttl)
    return CacheChoice(folder, ttl_s, is_offline=options.is_offline)


def check_options(options: RunOptions) -> None:
    """Check that no two options of a run contradict each other.

    Raises:
        UsageError: two of them do.
    """
    check_scoring(options.scoring, options.samples)
    if options.resume_latest and options.resume_from is not None:
        hint = "use --resume for the latest unfinished run of the config, --resume-from RUN for a certain run"
        raise UsageError("--resume and --resume-from cannot be combined", hint=hint)
    is_batched = options.batch or options.batch_judge
    if is_batched and options.is_offline:
        raise UsageError(
            "batches cannot be combined with --offline, which sends nothing", hint="remove one of the two"
        )
    if options.batch and options.batch_judge:
        hint = "use --batch for models and judges, --batch-judge for judges only"
        raise UsageError("--batch and --batch-judge cannot be combined", hint=hint)
    resumes = options.resume_latest or options.resume_from is not None or options.retry_errors
    if not options.waits and not is_batched and not resumes:
        raise UsageError("--no-wait needs --batch or --batch-judge", hint="add one, or remove --no-wait")
    if is_batched and (options.workers is not None or options.ray is not None):
        hint = "use one process: there is nothing to compute while batches are in progress"
        name = "--workers" if options.ray is None else "--ray"
        raise UsageError(f"{name} cannot be combined with batches", hint=hint)
    if options.watch and is_batched:
        raise UsageError(
            "--watch cannot be combined with batches", hint="remove one of them: batches take hours"
        )


def asked_dialect(named: Dialect | None, *, as_promptfoo: bool) -> Dialect | None:
    """Return the dialect that the command line requests; `--promptfoo` wins over `--dialect`."""
    return Dialect.PROMPTFOO if as_promptfoo else named


def failing_in(run: str | None, home: Path | None) -> frozenset[str] | None:
    """Return the names of the tests that failed or errored in a run or a results file; None if no run is given.

    Raises:
        UsageError: there is no such run or file.
    """
    if run is None:
        return None
    from geval_cli.engine.plan import failing_tests
    from geval_cli.records import RunStatus
    from geval_cli.runs.stored import open_report

    with open_report(run, home, os.environ) as (report, warnings):
        print_warnings(warnings)
        if report.run.status is not RunStatus.COMPLETED:
            verb = "is still" if report.run.status is RunStatus.RUNNING else "was"
            said = f"run {report.run.id} {verb} {report.run.status}: tests that it has not finished are not selected"
            print_warnings([said])
        return failing_tests(report.results())

"""Options that are more than a word or a number, as values."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from geval_cli.errors import UsageError
from geval_cli.gateway.budget import Budget
from geval_cli.numbers import percent_hint, share_of_percentage
from geval_cli.patterns import compile_later
from geval_cli.runs.requests import Resumption
from geval_cli.source.access import TRUSTED
from geval_cli.specs.base import Scoring
from geval_cli.specs.dialect import Dialect
from geval_cli.store.cache import DEFAULT_TTL_S
from geval_cli.store.state import CacheChoice
from geval_cli.suite.promptfoo.paths import find_files, is_wildcard

_AGE = compile_later(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_NEVER = "never"
_CONFIG_NAMES = (
    "gevalconfig.yaml",
    "gevalconfig.yml",
    "gevalconfig.json",
    "promptfooconfig.yaml",
    "promptfooconfig.yml",
    "promptfooconfig.json",
)


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping.

    Raises:
        UsageError: a text has no `=`, or nothing before it.
    """
    variables = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UsageError(f"--var takes NAME=VALUE, not `{text}`", hint="for example --var city=Paris")
        variables[name] = value
    return variables


def parse_dialect(text: str | None) -> Dialect | None:
    """Whose rules configs follow; None: as each says itself.

    Raises:
        UsageError: there is no such dialect.
    """
    if text is None or text in set(Dialect):
        return None if text is None else Dialect(text)
    raise UsageError(f"unknown dialect `{text}`", hint=f"one of: {', '.join(Dialect)}")


def named_or_found(configs: Sequence[Path] | None) -> list[Path]:
    """Return the configs that were named, else the one in the current folder.

    Raises:
        UsageError: none was named, and there is none.
    """
    if configs:
        return list(configs)
    found = next((Path(name) for name in _CONFIG_NAMES if Path(name).is_file()), None)
    if found is None:
        message = (
            f"no config is named, and there is no {_CONFIG_NAMES[0]} or {_CONFIG_NAMES[3]} in this folder"
        )
        raise UsageError(message, hint="name one, or write one with `geval init`")
    return [found]


def config_groups(configs: Sequence[Path], *, merge: bool) -> list[tuple[Path, ...]]:
    """Return the configs that are one suite each: a wildcard or, with `merge`, all configs together are one.

    A folder stands for the config in it.

    Raises:
        UsageError: a wildcard fits no file.
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
        raise UsageError(f"no file fits `{config}`", hint="put the wildcard into quotes, or name the files")
    return files


def parse_budget(max_cost_usd: float | None, max_requests: int | None) -> Budget | None:
    """Return a budget; None when nothing bounds what may be spent.

    Raises:
        UsageError: a bound is no amount.
    """
    if max_cost_usd is None and max_requests is None:
        return None
    if max_cost_usd is not None and not (math.isfinite(max_cost_usd) and max_cost_usd >= 0):
        hint = "for example --max-cost 2.50"
        raise UsageError(f"--max-cost takes US dollars from 0, not `{max_cost_usd:g}`", hint=hint)
    return Budget(max_cost_usd, max_requests)


def parse_share(option: str, text: str | None) -> float | None:
    """Return a share from 0 to 1, written as one or in per cent; None when none was given.

    Raises:
        UsageError: the text is no share.
    """
    if text is None:
        return None
    share = share_of_percentage(text)
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
    raise UsageError(f"{option} takes a share from 0 to 1, not `{text}`", hint=hint)


def parse_scoring(text: str | None, samples: int | None) -> Scoring | None:
    """Return a way of scoring; None when none was given.

    Raises:
        UsageError: there is no such way, or it is at odds with a number of samples.
    """
    known = get_args(Scoring)
    if text is not None and text not in known:
        raise UsageError(f"--scoring takes {', '.join(known)}, not `{text}`", hint="`auto` is the default")
    if samples is not None and text not in (None, "samples"):
        raise UsageError(f"--samples means --scoring samples, not {text}", hint="leave one of the two out")
    return cast("Scoring | None", text)


def parse_age(option: str, text: str) -> float:
    """Return an age in seconds, from a text such as `30d`.

    Raises:
        UsageError: the text is no age.
    """
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        hint = f"a number and s, m, h, d or w for seconds to weeks: {option} 30d"
        raise UsageError(f"{option} takes an age, not `{text}`", hint=hint)
    return float(found[1]) * _UNIT_S[found[2]]


def parse_cache_choice(
    folder: Path | None, ttl: str | None, *, is_offline: bool, reads_cache: bool
) -> CacheChoice:
    """Return which cache to use, and how.

    Raises:
        UsageError: the options are at odds, or the time limit is no age.
    """
    if is_offline and not reads_cache:
        hint = "leave one of the two out"
        raise UsageError("with --offline only the cache answers, and --no-cache does not read it", hint=hint)
    if is_offline and ttl is not None:
        hint = "leave --cache-ttl out: with --offline answers never expire"
        raise UsageError("--offline and --cache-ttl say different things", hint=hint)
    ttl_s = DEFAULT_TTL_S if ttl is None else None if ttl == _NEVER else parse_age("--cache-ttl", ttl)
    return CacheChoice(folder, ttl_s, is_offline=is_offline)


def parse_resumption(resume: bool, resume_from: str | None, retry_errors: bool) -> Resumption | None:
    """Return which earlier run to go on with; None for a new run.

    Raises:
        UsageError: two runs are asked for.
    """
    if resume and resume_from is not None:
        hint = "--resume takes the latest unfinished run of the config, --resume-from the run that it names"
        raise UsageError("--resume and --resume-from name two runs", hint=hint)
    if not (resume or resume_from is not None or retry_errors):
        return None
    return Resumption(resume_from, only_unfinished=resume, retries_errors=retry_errors)

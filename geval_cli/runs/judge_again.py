"""`geval judge`: which run and which config are meant, and the request that judges the one by the other."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_struct

from geval_cli.errors import UsageError
from geval_cli.records import JsonValue
from geval_cli.runs.import_run import read_importable, store_run
from geval_cli.runs.judged import JudgedMetrics, JudgedSource
from geval_cli.runs.options import RunOptions, declared_options, values_of
from geval_cli.runs.requests import RunRequest, open_config
from geval_cli.runs.results_file import is_results_file
from geval_cli.source.digest import FILE_PART
from geval_cli.source.secrets import mask_text
from geval_cli.specs.dialect import RULES
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs

_TAKEN_OVER = ("grader", "scoring", "samples", "variables")
"""Options that the run was begun with and that hold again, unless others are given now."""


@contextmanager
def open_source(
    name: str, given: RunOptions, environ: Mapping[str, str], metrics: JudgedMetrics
) -> Iterator[JudgedSource]:
    """Open the run that `name` means until the end of the block: an id, its beginning, `latest~1`, a results file.

    Raises:
        UsageError: there is no such run.
        ConfigError: the file cannot be read as results.
        StoreError: the stored runs cannot be read.
    """
    if is_results_file(name):
        with RunStore.open_in_memory() as runs:
            run = store_run(read_importable(Path(name)), runs)
            runs.close()
            yield JudgedSource(run, runs, {}, metrics)
        return
    with open_runs(given.home, environ) as runs:
        # Nothing is written to it, and its thread would keep the kernel from confining a stranger's config.
        runs.close()
        stored = runs.find(name)
        origin = runs.origin(stored.run.id)
        parts = {} if origin is None else origin.covered.get("suite", {})
        yield JudgedSource(stored.run, runs, parts, metrics)


def judging_request(
    source: JudgedSource, config: Path | None, given: RunOptions, environ: Mapping[str, str], **more: Any
) -> RunRequest:
    """Return the request that judges the outputs of `source` by `config`, or by the config that it was made with.

    The config file of the run is read when it says what it said then; else the snapshot that the run has, in which
    keys are masked, with the files and the environment of today.

    Raises:
        UsageError: the run has no config, or files that it names have changed.
        ConfigError: the config cannot be read.
    """
    source = with_earlier_metrics(source, config)
    values = {**_options_of(source, values_of(given), is_same_config=config is None), **more}
    if config is not None:
        return RunRequest(config, environ, judged=source, **values)
    path = _path_of(source)
    request = RunRequest(path, environ, judged=source, **values)
    if path.is_file() and source.parts and _parts_of(request) == dict(source.parts):
        return request
    if not isinstance(source.run.config, dict) or not source.run.config:
        hint = f"pass one: geval judge {source.run.id} CONFIG"
        raise UsageError(f"run {source.run.id} has no config", hint=hint)
    request = replace(request, draft=json.dumps(source.run.config, indent=2, ensure_ascii=False))
    changed = [] if not source.parts else list(_changed_files(_parts_of(request), source.parts))
    if changed:
        what = ", ".join(f"`{name}`" for name in changed)
        hint = f"judge with the current config: geval judge {source.run.id} {path}"
        raise UsageError(f"files used by run {source.run.id} have changed: {what}", hint=hint)
    return request


def with_earlier_metrics(source: JudgedSource, config: Path | None) -> JudgedSource:
    """Return a run that was itself judged with its `--threshold` and `--only`, which hold unless others are given.

    A config that is named says by itself which metrics there are, and what passes.
    """
    origin = source.runs.origin(source.run.id)
    before = {} if origin is None or config is not None else origin.covered.get("judged") or {}
    given = source.metrics
    thresholds = {**before.get("thresholds", {}), **given.thresholds}
    only = given.only or tuple(before.get("only", ()))
    kept = {
        name: value
        for name, value in thresholds.items()
        if not only or name in only or name in given.thresholds
    }
    return replace_struct(source, metrics=JudgedMetrics(only, kept))


def held_options(source: JudgedSource, request: RunRequest, given: RunOptions) -> list[str]:
    """Return the options of the earlier run that hold again, as they are written on a command line."""
    found, values = [], values_of(given)
    for field, option in declared_options(RunOptions):
        value = getattr(request, field.name)
        if field.name == "variables":
            own = {name for name, _ in values["variables"].items()}
            found += [mask_text(f"--var {name}={text}") for name, text in value.items() if name not in own]
        elif field.name in _TAKEN_OVER and value and not values[field.name]:
            found.append(mask_text(f"{option.name} {value}"))
    metrics = source.metrics if request.judged is None else request.judged.metrics
    if not source.metrics.only:
        found += [f"--only {name}" for name in metrics.only]
    return found + [
        f"--threshold {name}={value:g}"
        for name, value in metrics.thresholds.items()
        if name not in source.metrics.thresholds
    ]


def _path_of(source: JudgedSource) -> Path:
    origin = source.runs.origin(source.run.id)
    written = Path(source.run.config_path)
    return written if origin is None or written.is_file() else Path(origin.config_file)


def _options_of(source: JudgedSource, values: dict[str, Any], *, is_same_config: bool) -> dict[str, Any]:
    """Return the options with those that the run was begun with, where they say nothing else."""
    origin = source.runs.origin(source.run.id)
    covered = {} if origin is None else origin.covered
    known = {
        field.name: covered.get("options", {}).get(option.name)
        for field, option in declared_options(RunOptions)
    }
    before: dict[str, JsonValue] = {**known, "variables": covered.get("vars")}
    values["variables"] = {**(before["variables"] or {}), **values["variables"]}
    for name in _TAKEN_OVER:
        if not values[name] and before.get(name):
            values[name] = before[name]
    if is_same_config and values["dialect"] is None and before["dialect"] in RULES:
        values["dialect"] = RULES[before["dialect"]].name
    if values["scoring"] is not None and values["scoring"] != "samples":
        values["samples"] = None
    return values


def _parts_of(request: RunRequest) -> dict[str, str]:
    return dict(open_config(request, needs_keys=False).suite.parts)


def _changed_files(now: Mapping[str, str], before: Mapping[str, JsonValue]) -> Iterator[str]:
    for name in sorted({*now, *before}):
        if name.startswith(FILE_PART) and now.get(name) != before.get(name):
            yield name.removeprefix(FILE_PART)

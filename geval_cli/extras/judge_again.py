"""`geval judge`: find the run and its config, match its cases to jobs, and select the assertions to judge."""

import dataclasses
import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, MergedTest
from geval_cli.assertions.geval_metric import metric_name
from geval_cli.assertions.registry import JUDGED_FROM, RATING_KEY
from geval_cli.assertions.sets import AssertSet
from geval_cli.engine.columns import same_labels
from geval_cli.engine.plan import NO_PROVIDER, Job, Plan, key_of, runs_with
from geval_cli.engine.prompt import render_prompt, seen_by_templates
from geval_cli.engine.transforms import output_code
from geval_cli.errors import ConfigError, GevalError, Problem, UsageError
from geval_cli.extras.results_files import read_importable, store_run
from geval_cli.extras.run_pages import RunPages
from geval_cli.json_codec import encode_json
from geval_cli.judge.calls import LockedSteps
from geval_cli.judge.prompt import DIMENSION_PARAMS, label_params, prompt_version
from geval_cli.judge.source import ASSISTANT, USER
from geval_cli.records import AssertionResult, CaseResult, JsonValue, Turn, to_json
from geval_cli.runs.options import RunOptions, declared_options, values_of
from geval_cli.runs.requests import JudgedMetrics, JudgedSource, RunRequest, open_config
from geval_cli.runs.resume import UNFINISHED
from geval_cli.runs.stored import is_results_file
from geval_cli.source.files import FILE_PART
from geval_cli.source.media import without_media_data
from geval_cli.source.problems import hint_among
from geval_cli.source.secrets import MASK, mask_text
from geval_cli.specs.base import PromptSpec
from geval_cli.specs.dialect import RULES
from geval_cli.store.runs import LATEST, RunStore, StoredRun
from geval_cli.store.state import open_runs
from geval_cli.suite.suite import TestSource
from geval_cli.templating import Templates

_TAKEN_OVER = ("grader", "scoring", "samples", "variables")
"""Options of the original run that still hold, unless others are given."""

_ROWS_KEPT = 256

_NOT_JUDGED_BY = frozenset(
    {"description", "env", "label", "metadata", "provider", "providers", "tags", "targets", "vars"}
)
"""Keys of a stored config under which a mask changes no verdict, or is reported when a judge is called."""

Place = tuple[int, int, int]
"""The test, repeat and column of a case."""


@contextmanager
def open_source(
    name: str, given: RunOptions, environ: Mapping[str, str], metrics: JudgedMetrics
) -> Iterator[JudgedSource]:
    """Open the run that `name` refers to, inside the block: an id or its prefix, `latest~1`, or a results file.

    Raises:
        UsageError: there is no such run.
        ConfigError: the results file cannot be read.
        StoreError: the stored runs cannot be read.
    """
    if is_results_file(name):
        with RunStore.open_in_memory() as runs:
            run = store_run(read_importable(Path(name)), runs)
            runs.close()
            yield JudgedSource(run, runs, {}, metrics)
        return
    with open_runs(given.home, environ) as runs:
        # Nothing is written, and the writer thread would keep the kernel from confining an untrusted config.
        runs.close()
        try:
            stored = runs.find(name)
        except UsageError as error:  # a damaged database may have been moved aside
            raise UsageError("; ".join((error.message, *runs.warnings)), hint=error.hint) from error
        if name == LATEST:
            stored = _whole(stored, runs)
        origin = runs.origin(stored.run.id)
        parts = {} if origin is None else origin.covered.get("suite", {})
        yield JudgedSource(stored.run, runs, parts, metrics)


def _whole(stored: StoredRun, runs: RunStore) -> StoredRun:
    """Return the run itself; if its judging did not finish, the run whose outputs it judged, as long as it is stored.

    So the same `geval judge latest` after an interruption judges all outputs, and not only those that it came to.
    """
    with suppress(UsageError):
        while stored.run.judged_from is not None and stored.run.status in UNFINISHED:
            stored = runs.find(stored.run.judged_from)
    return stored


def judging_request(
    source: JudgedSource, config: Path | None, given: RunOptions, environ: Mapping[str, str], **more: Any
) -> RunRequest:
    """Return the request that judges the outputs of `source` with `config`, or with the run's own config.

    The run's config file is used if it has not changed since; else the snapshot in the run, in which keys are masked,
    with the current files and environment.

    Raises:
        UsageError: the run has no config, it lacks a text to judge by, or files used by it have changed.
        ConfigError: the config cannot be read.
    """
    source = with_earlier_metrics(source, config)
    values = {**_options_of(source, values_of(given), is_same_config=config is None), **more}
    if config is not None:
        return RunRequest(config, environ, judged=source, **values)
    origin = source.runs.origin(source.run.id)
    written = Path(source.run.config_path)
    path = written if origin is None or written.is_file() else Path(origin.config_file)
    request = RunRequest(path, environ, judged=source, **values)
    if path.is_file() and source.parts:
        with suppress(ConfigError):  # a config that can no longer be read has changed
            if _parts_of(request) == dict(source.parts):
                return request
    if not isinstance(source.run.config, dict) or not source.run.config:
        hint = f"pass one: geval judge {source.run.id} CONFIG"
        raise UsageError(f"run {source.run.id} has no config", hint=hint)
    masked = next(_masked_places(source.run.config), None)
    if masked is not None:
        what = f"the stored config of run {source.run.id} has `***` in `{masked}`, which looked like it holds a key"
        raise UsageError(what, hint=f"pass the config: geval judge {source.run.id} CONFIG")
    request = dataclasses.replace(request, draft=json.dumps(source.run.config, indent=2, ensure_ascii=False))
    now = _parts_of(request) if source.parts else {}
    changed = [
        name.removeprefix(FILE_PART)
        for name in sorted({*now, *source.parts})
        if name.startswith(FILE_PART) and now.get(name) != source.parts.get(name)
    ]
    if changed:
        what = ", ".join(f"`{name}`" for name in changed)
        hint = f"judge with the current config: geval judge {source.run.id} {path}"
        raise UsageError(f"files used by run {source.run.id} have changed: {what}", hint=hint)
    return request


def _masked_places(config: JsonValue, place: str = "") -> Iterator[str]:
    """Yield the places in a stored config where a mask would be judged by: `not-contains: ***` always passes."""
    if isinstance(config, dict):
        for key, value in config.items():
            if key not in _NOT_JUDGED_BY:
                yield from _masked_places(value, f"{place}.{key}" if place else key)
    elif isinstance(config, list):
        for index, item in enumerate(config):
            yield from _masked_places(item, f"{place}[{index}]")
    elif isinstance(config, str) and MASK in config:
        yield place


def with_earlier_metrics(source: JudgedSource, config: Path | None) -> JudgedSource:
    """Add the `--threshold` and `--only` that a judged run was itself judged with, unless others are given.

    An explicit `config` determines the metrics and thresholds itself, so nothing is added.
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
    return replace(source, metrics=JudgedMetrics(only, kept))


def held_options(source: JudgedSource, request: RunRequest, given: RunOptions) -> list[str]:
    """Return the options of the earlier run that apply again, in command-line form."""
    found, values = [], values_of(given)
    for declared, option in declared_options(RunOptions):
        value = getattr(request, declared.name)
        if declared.name == "variables":
            own = {name for name, _ in values["variables"].items()}
            found += [mask_text(f"--var {name}={text}") for name, text in value.items() if name not in own]
        elif declared.name in _TAKEN_OVER and value and not values[declared.name]:
            found.append(mask_text(f"{option.name} {value}"))
    metrics = source.metrics if request.judged is None else request.judged.metrics
    if not source.metrics.only:
        found += [f"--only {name}" for name in metrics.only]
    return found + [
        f"--threshold {name}={value:g}"
        for name, value in metrics.thresholds.items()
        if name not in source.metrics.thresholds
    ]


def _options_of(source: JudgedSource, values: dict[str, Any], *, is_same_config: bool) -> dict[str, Any]:
    """Return the options, completed with those that the run was started with."""
    origin = source.runs.origin(source.run.id)
    covered = {} if origin is None else origin.covered
    known = {
        declared.name: covered.get("options", {}).get(option.name)
        for declared, option in declared_options(RunOptions)
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


class JudgedTests(Struct):
    """The tests of a suite, with only the assertions to judge and with changed thresholds.

    Attributes:
        seen: the metrics of all assertions seen so far.
        changed: the metrics of judged assertions that got a different threshold.
        refused: the metrics whose assertions do not accept the threshold, with the reason.
    """

    source: TestSource
    judged: JudgedSource
    templates: Templates
    seen: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    _made: dict[tuple[int, str | None, bool], tuple[Assertion, Assertion | None]] = field(
        default_factory=dict
    )

    def __iter__(self) -> Iterator[MergedTest]:
        for test in self.source:
            kept = tuple(filter(None, (self._judged(spec, test) for spec in test.assertions)))
            yield replace(test, assertions=kept)

    def _judged(self, spec: Assertion, test: MergedTest, *, is_of_judged: bool = False) -> Assertion | None:
        """Return an assertion as it is to be judged, or None; tests that share the assertion share the result.

        `is_of_judged`: it is a member of a set that is judged as a whole.
        """
        name = metric_name(spec, test, self.templates)
        key = id(spec), name, is_of_judged
        if spec.members:
            names = [metric_name(item, test, self.templates) for item in spec.members]
            key = id(spec), f"{name} {names}", is_of_judged
        known = self._made.get(key)
        if known is None:
            # Keep a reference to the assertion, so that its id is not reused.
            known = spec, self._changed(spec, name, test, is_of_judged=is_of_judged)
            self._made[key] = known
            if len(self._made) > _ROWS_KEPT:
                del self._made[next(iter(self._made))]
        return known[1]

    def _changed(
        self, spec: Assertion, name: str | None, test: MergedTest, *, is_of_judged: bool
    ) -> Assertion | None:
        if name is not None:
            self.seen.add(name)
        changes: dict[str, object] = {}
        only = self.judged.metrics.only
        is_wanted = is_of_judged or not only or name in only
        if spec.members:
            found = (self._judged(member, test, is_of_judged=is_wanted) for member in spec.members)
            members = tuple(member for member in found if member is not None)
            is_wanted = is_wanted or bool(members)
            if isinstance(spec, AssertSet):  # in a tree, any answer may lead to any node
                changes["assertions"] = members
        if name is not None and name in self.judged.metrics.thresholds:
            threshold = self.judged.metrics.thresholds[name]
            if "threshold" not in type(spec).model_fields:
                why = f"{spec.base_type} has no threshold"
            elif spec.threshold_is_score and not 0 <= threshold <= 1:
                why = f"the threshold of {spec.base_type} must be between 0 and 1, not {threshold:g}"
            else:
                why = ""
            if why:
                self.refused.setdefault(name, why)
            changes["threshold"] = threshold
            if is_wanted:
                self.changed.add(name)
        if not is_wanted:
            return None
        return spec.model_copy(update=changes) if changes else spec

    def problems(self) -> Iterator[Problem]:
        """Yield the problems with the named metrics; call it after a full pass over the tests."""
        named = [("--only", name) for name in self.judged.metrics.only]
        named += [("--threshold", name) for name in self.judged.metrics.thresholds]
        for option, name in named:
            if name not in self.seen:
                hint = hint_among(name, sorted(self.seen)) or "no metric has a name"
                yield Problem(f"{option}: no assertion has the metric `{name}`", hint=hint)
        for name in self.judged.metrics.thresholds:
            if name in self.seen - self.changed:
                hint = f"remove one of the two, or add --only {name}"
                yield Problem(f"--threshold: --only leaves the metric `{name}` out", hint=hint)
        for name, why in self.refused.items():
            yield Problem(f"--threshold: {why}", hint=f"leave `{name}` out, or change it in the config")


class StoredOutputs(Struct):
    """The cases of an earlier run, matched to jobs.

    Attributes:
        source: the run.
        columns: the run's column for each of ours.
        tests: the run's test for each of our test indexes; None if they are the same.
        repeats: the number of repeats of each test.
        known: the cases in the run.
        left_out: the number of tests without a case in the run.
        lacking: the number of cases that the run lacks of other tests, for example because it was interrupted.
        total: the number of cases to judge.
        has_transforms: whether a different config has transforms, which are not applied to stored outputs.
        steps: the evaluation steps that judges wrote in the run, if its config is the same; they also apply to ratings
            that the run lacks.
    """

    source: JudgedSource
    columns: Mapping[int, int]
    tests: Mapping[int, int] | None
    repeats: int
    known: frozenset[Place]
    left_out: int = 0
    lacking: int = 0
    total: int = 0
    has_transforms: bool = False
    steps: LockedSteps = field(default_factory=dict)
    _rows: dict[tuple[int, int], Sequence[CaseResult]] = field(default_factory=dict)

    def notes(self) -> Iterator[str]:
        """Yield notes about the match for the user."""
        if self.left_out:
            verbs = ("test has", "is") if self.left_out == 1 else ("tests have", "are")
            what = f"{self.left_out:,} {verbs[0]} no output in run {self.source.run.id}"
            yield f"{what}, and {verbs[1]} not judged"
        if self.lacking:
            other = "other case" if self.left_out else "case"
            verbs = (f"{other} has", "is") if self.lacking == 1 else (f"{other}s have", "are")
            what = f"{self.lacking:,} {verbs[0]} no output in run {self.source.run.id}"
            yield f"{what}, and {verbs[1]} not judged"
        missing = len(self.source.run.columns) - len(self.columns)
        if missing:
            what = "1 column of the run is" if missing == 1 else f"{missing:,} columns of the run are"
            yield f"{what} not in the config, and not judged"
        if self.has_transforms:
            yield "`transform` of the config is not applied: outputs are judged as the run stored them"

    def has(self, job: Job) -> bool:
        """Return whether the run has a case for this job."""
        return self._place(job) in self.known

    def find(self, job: Job) -> CaseResult:
        """Return the stored case for a job, with its ratings marked with the id of the run.

        Raises:
            UsageError: the run has no case for this job.
            StoreError: the store cannot be read.
        """
        test, repeat, column = place = self._place(job)
        if place not in self.known:
            raise UsageError(f"run {self.source.run.id} has no case {job.id}")
        row = self._rows.get((test, repeat))
        if row is None:
            row = RunPages(self.source.runs).row(self.source.run.id, test, repeat)
            self._rows[test, repeat] = row
            if len(self._rows) > _ROWS_KEPT:
                del self._rows[next(iter(self._rows))]
        found = next(case for case in row if case.column == column)
        return replace(found, assertions=tuple(self._marked(item) for item in found.assertions))

    def _marked(self, result: AssertionResult) -> AssertionResult:
        members = tuple(self._marked(item) for item in result.assertions)
        detail = result.detail
        if RATING_KEY in detail:
            detail = {JUDGED_FROM: self.source.run.id, **detail}
        return replace(result, detail=detail, assertions=members)

    def _place(self, job: Job) -> Place:
        index = job.test.index
        test = index if self.tests is None else self.tests.get(index, -1)
        return test, job.repeat_index, self.columns.get(job.column, -1)


def match_outputs(plan: Plan, source: JudgedSource, templates: Templates) -> StoredOutputs:
    """Return the stored outputs in `source` for the tests and columns of `plan`.

    With the same config, the tests are the same; otherwise they are matched by their variables and rendered prompts.

    Raises:
        UsageError: there are no matching outputs.
        StoreError: the store cannot be read.
    """
    columns = {mine.index: theirs.index for theirs, mine in same_labels(source.run.columns, plan.columns)}
    known, repeats = [], 1
    is_same = bool(source.parts) and dict(source.parts) == dict(plan.suite.parts)
    index: defaultdict[bytes, deque[int]] = defaultdict(deque)
    steps = _StepsOfRun()
    for case in source.runs.results(source.run.id):
        known.append((case.test_index, case.repeat_index, case.column))
        repeats = max(repeats, case.repeat_index + 1)
        if is_same:
            steps.record(case.assertions)
        if not is_same and case.repeat_index == 0:
            asked: tuple[str | None, ...] = (None if plan.is_serial else case.prompt.rendered,)
            if case.turns:
                asked = (_said_by_user(case.turns), _said_before(case.turns))
            if case.ended_by or case.error is not None:  # the turns of a simulated user are not in the config
                asked = (*asked, f"simulated {case.test_key}")
            for rendered in asked:
                index[_key(case.column, case.vars, rendered, case.output)].append(case.test_index)
                index[_key(case.column, case.vars, rendered, None)].append(case.test_index)
    tests = None if is_same else _matched_tests(plan, columns, index, templates)
    found = StoredOutputs(source, columns, tests, repeats, frozenset(known))
    again = replace(plan, repeats=repeats, has_output=found.has)
    whole = replace(plan, repeats=repeats)
    left_out, lacking, total, has_transforms = 0, 0, 0, False
    for test in plan.suite.tests:
        jobs = list(again.jobs_of(test))
        total += len(jobs)
        left_out += not jobs
        if jobs:
            lacking += sum(job.column in columns for job in whole.jobs_of(test)) - len(jobs)
        has_transforms |= any(output_code(job.provider, job.test) for job in jobs)
    if not total:
        hint = "pass the config of that run, or one with the same prompts, providers and tests"
        raise UsageError(f"run {source.run.id} has no output for any test of {plan.suite.path}", hint=hint)
    return replace(
        found,
        left_out=left_out,
        lacking=lacking,
        total=total,
        has_transforms=has_transforms and not (is_same and source.run.judged_from is None),
        steps=steps.agreed(),
    )


class _StepsOfRun(Struct):
    """The evaluation steps in a run's ratings; a criterion with several versions of them is left out."""

    _found: dict[tuple[str, tuple[str, ...], str], set[tuple[str, ...]]] = field(default_factory=dict)

    def record(self, results: Iterable[AssertionResult]) -> None:
        """Record the steps of all ratings in `results`."""
        for result in results:
            self.record(result.assertions)
            for part in result.detail.get("parts") or [result.detail]:
                steps = tuple(part.get("evaluation_steps") or ())
                if steps and part.get("prompt_version") == prompt_version():
                    params = part.get("evaluation_params")
                    labels = DIMENSION_PARAMS if params is None else label_params(params)
                    self._found.setdefault((part["criteria"], labels, part["judge"]), set()).add(steps)

    def agreed(self) -> LockedSteps:
        """Return the steps of each criterion that has only one version of them."""
        return {key: next(iter(found)) for key, found in self._found.items() if len(found) == 1}


def _matched_tests(
    plan: Plan, columns: Mapping[int, int], index: Mapping[bytes, deque[int]], templates: Templates
) -> dict[int, int]:
    taken: set[int] = set()
    found: dict[int, int] = {}
    for test in plan.suite.tests:
        for key in _keys_of_test(plan, test, columns, templates):
            other = next((item for item in index.get(key, ()) if item not in taken), None)
            if other is not None:
                taken.add(other)
                found[test.index] = other
                break
    return found


def _keys_of_test(
    plan: Plan, test: MergedTest, columns: Mapping[int, int], templates: Templates
) -> Iterator[bytes]:
    """Yield the keys of a test in each column that the run has; a test's own output is part of its key."""
    for number, (provider, prompt) in enumerate(plan.pairs):
        if number not in columns or not runs_with(test, provider, prompt):
            continue
        try:
            rendered = (
                None if plan.is_serial and not test.is_conversation else _asked(test, prompt, templates)
            )
        except GevalError:
            continue  # reported by the check
        generates = plan.answering(test, provider).id != NO_PROVIDER.id and not test.ends_with_answer
        own = None if generates else test.output if test.has_output else test.vars.get("output")
        yield _key(columns[number], test.vars, rendered, own)


def _asked(test: MergedTest, prompt: PromptSpec, templates: Templates) -> str:
    """Return the text that identifies a test: its rendered prompt, or its turns without the answer to judge."""
    if test.user is not None:
        return f"simulated {key_of(test)}"
    if test.plays_turns:
        return _said_by_user(test.turns)
    if test.turns:
        return _said_before(test.turns)
    return render_prompt(prompt, seen_by_templates(test, templates), templates).text


def _said_by_user(turns: Iterable[Turn]) -> str:
    """Return the text that identifies a played conversation: the user's turns, whatever the answers."""
    return json.dumps(["played", *(turn.content for turn in turns if turn.role == USER)])


def _said_before(turns: Sequence[Turn]) -> str:
    """Return the text that identifies a recorded conversation: everything before its last answer."""
    before = turns[:-1] if turns[-1].role == ASSISTANT else turns
    return json.dumps(["held", *map(to_json, before)], default=str)


def _key(column: int, variables: Mapping[str, JsonValue], rendered: str | None, output: JsonValue) -> bytes:
    facts = without_media_data([column, dict(variables), rendered, output])  # as in stored results
    return hashlib.blake2b(encode_json(facts), digest_size=16).digest()

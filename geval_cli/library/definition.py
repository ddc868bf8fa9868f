"""Turn the arguments of `GEval` into a metric and its judge, by the same rules as for config files."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from msgspec.structs import replace

from geval_cli.assertions.geval_metric import (
    GEvalFields,
    ScoringChoice,
    check_metric,
    check_threshold_on_rating,
    metric_from_spec,
)
from geval_cli.assertions.judges import DEFAULT_JUDGE, check_writer
from geval_cli.errors import Problem, Severity, UsageError
from geval_cli.judge.metric import DEFAULT_SCORE_RANGE, DEFAULT_THRESHOLD, Judge, Metric
from geval_cli.providers.base import HINT, ClientModel
from geval_cli.records import JsonValue, TraceStep, Turn
from geval_cli.runs.session import judge_problems
from geval_cli.source.access import TRUSTED
from geval_cli.source.env import EnvValues
from geval_cli.source.files import SourceFiles, is_file_reference
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import JuryRulesSpec, ProviderSpec, describe_value
from geval_cli.suite.assertions import read_assertion, read_provider
from geval_cli.suite.schema import SimulationSpec
from geval_cli.suite.tests import read_trace, read_turns, trace_of_spec, turns_of
from geval_cli.suite.validation import Fields, LoadContext, read_spec

Model = str | tuple[str, str] | tuple[Any, str] | Mapping[str, Any] | Judge

_DEFAULT_KIND = "openai"
_JUDGE_PARTS = ("label", "provider_params", "complete")
_PAIR = 2
_NOT_IN_YAML = frozenset({"name", "model", "judges", "jury", "cache"})


@dataclass(frozen=True, slots=True)
class Jury:
    """Several judges, and how their verdicts are combined."""

    members: tuple[ProviderSpec | ClientModel | Judge, ...]
    rules: JuryRulesSpec


@dataclass(frozen=True, slots=True)
class Definition:
    """A valid metric, its judge, and warnings about it."""

    metric: Metric
    judge: ProviderSpec | ClientModel | Judge | Jury
    doubts: tuple[str, ...] = ()


def define(arguments: Mapping[str, Any]) -> Definition:
    """Return the metric and the judge that the arguments of `GEval` define.

    Raises:
        UsageError: the arguments are not valid; names every problem.
    """
    reading = _new_reading()
    spec = _read_spec(arguments, reading)
    problems = reading.problems + ([] if spec is None else [*check_metric(spec), *_check_threshold(spec)])
    judge = _read_jury(arguments, problems) or _read_judge(arguments["model"], None, problems)
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors or spec is None or judge is None:
        raise UsageError.of(f"the metric {arguments['name']!r} is not valid", errors)
    doubts = tuple(problem.message for problem in problems)
    metric = replace(metric_from_spec(spec), name=arguments["name"])
    if isinstance(judge, Jury) and judge.rules.combine != "majority":
        metric = replace(metric, stop_error=None)  # scores are combined, so a settled verdict is not enough
    return Definition(metric, judge, doubts)


def _read_jury(arguments: Mapping[str, Any], problems: list[Problem]) -> Jury | None:
    """Return the jury defined by `judges` and `jury`; None if there is none, or after adding a problem."""
    written = arguments.get("judges") or ()
    rules = arguments.get("jury")
    if isinstance(written, str) or len(written) == 1 or (rules is not None and not written):
        problems.append(Problem("`judges` needs at least two judges", hint="for a single judge use `model`"))
    if not written or isinstance(written, str):
        return None
    if arguments["model"] is not None:
        problems.append(Problem("`model` and `judges` cannot be combined", hint="leave one of them out"))
    members = [_read_judge(model, None, problems) for model in written]
    for index, model in enumerate(written):
        if model in written[:index]:
            problems.append(Problem("`judges` has a judge twice, which would count double"))
    reading = _new_reading()
    spec = read_spec(JuryRulesSpec, _as_in_yaml(rules or {}), SourcePath.nowhere(), "`jury`", reading)
    problems += reading.problems
    if spec is not None and spec.combine == "calibrated":
        problems.append(
            Problem(
                "`combine: calibrated` needs a weight for each judge, but there are none",
                hint="put the calibration file with the weights into a config as `calibration:`",
            )
        )
    if spec is not None and (spec.min_judges or 0) > len(members):
        problems.append(
            Problem(f"`min_judges` is {spec.min_judges}, but there are only {len(members)} judges")
        )
    return None if spec is None else Jury(tuple(item for item in members if item is not None), spec)


def _check_threshold(spec: GEvalFields) -> list[Problem]:
    """Return warnings about the threshold; one that equals the default counts as not set."""
    if spec.threshold == DEFAULT_THRESHOLD:
        return []
    return check_threshold_on_rating(spec, (ScoringChoice(spec.scoring, spec.samples),))


def choose_judge(model: Model | None, adapter: str | None) -> ProviderSpec | ClientModel | Judge:
    """Return the judge for the `model` and `adapter` of a single evaluation.

    Raises:
        UsageError: they do not name a judge.
    """
    problems: list[Problem] = []
    judge = _read_judge(model, adapter, problems)
    if problems or judge is None:
        raise UsageError.of("there is no such judge", problems)
    return judge


def _new_reading() -> LoadContext:
    return LoadContext(SourceFiles(Path(), TRUSTED), EnvValues({}))


def read_turns_of_case(written: JsonValue, problems: list[Problem]) -> tuple[Turn, ...]:
    """Return the turns of a test case, and add a problem for each mistake in them."""
    found = _read_list("turns", written, read_turns, problems)
    if isinstance(found, SimulationSpec):
        hint = "give the turns that were said; `run` plays conversations with simulated users"
        problems.append(Problem("a stored output has no simulated user", None, hint))
    return turns_of(found)


def read_trace_of_case(written: JsonValue, problems: list[Problem]) -> tuple[TraceStep, ...] | None:
    """Return the trace of a test case, and add a problem for each mistake in it."""
    return trace_of_spec(_read_list("trace", written, read_trace, problems))


def _read_list(
    name: str,
    written: JsonValue,
    read: Callable[[Fields, LoadContext], None],
    problems: list[Problem],
) -> Any:
    reading = _new_reading()
    fields = Fields("a test case", SourcePath.nowhere(), {name: written}, {name: name})
    read(fields, reading)
    problems += reading.problems
    return fields.values.get(name)


def written_form(arguments: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the arguments of `GEval` as the keys of a g-eval assertion, without its name and judges."""
    values = {name: _as_in_yaml(value) for name, value in arguments.items() if name not in _NOT_IN_YAML}
    if values["score_range"] == list(DEFAULT_SCORE_RANGE):
        values["score_range"] = None
    if values["strict_mode"] is True and values["threshold"] == DEFAULT_THRESHOLD:
        values["threshold"] = None
    joint = values.pop("joint", None)
    if joint:
        values |= {"dimensions": joint, "dimension": None}
    return {name: value for name, value in values.items() if value is not None}


def _read_spec(arguments: Mapping[str, Any], reading: LoadContext) -> GEvalFields | None:
    given = written_form(arguments)
    name = arguments["name"]
    joint = arguments.get("joint")
    if not (isinstance(name, str) and name.strip()):
        message = f"`name` must be a non-empty string, found {describe_value(name)}"
        reading.problems.append(Problem(message))
    value = given.get("criteria")
    listed = value if isinstance(value, list) else [value]
    for text in listed:
        if is_file_reference(text):
            reading.problems.append(Problem("`criteria` is a file reference", hint="pass its text instead"))
            return None
    if is_file_reference(given.get("examples")):
        reading.problems.append(Problem("`examples` is a file reference", hint="give its entries instead"))
        return None
    spec = read_assertion({"type": "g-eval", **given}, SourcePath.nowhere(), reading)
    assert spec is None or isinstance(spec, GEvalFields)
    if spec is None or not joint:
        return spec
    one = next((part for part in spec.parts if part.dimension == arguments["dimension"]), None)
    if one is None:
        reading.problems.append(
            Problem("`joint` must include `dimension`, which is read from the same reply")
        )
    return one


def _read_judge(
    model: Model | None, adapter: str | None, problems: list[Problem]
) -> ProviderSpec | ClientModel | Judge | None:
    if adapter is not None:
        if not isinstance(model, str):
            message = "`adapter` also needs `model`, the name of one of its models"
            problems.append(
                Problem(message, hint='for example adapter="anthropic", model="claude-sonnet-4-5"')
            )
            return None
        model = (adapter, model)
    if is_judge(model):
        return model
    if is_openai_client(model) or (isinstance(model, tuple | list) and any(map(is_openai_client, model))):
        return client_model(model, problems)
    written = provider_form(model)
    if written is None:
        known = isinstance(model, str | int | float | list | dict)
        shown = describe_value(model) if known else f"an object of the class {type(model).__name__}"
        message = f"`model` must be a string, a pair of strings, a mapping or a judge, found {shown}"
        problems.append(Problem(message, hint='for example "openai:gpt-4.1"'))
        return None
    reading = _new_reading()
    spec = read_provider(written, SourcePath.nowhere(), reading)
    problems += reading.problems
    if spec is not None:
        problems += judge_problems(spec, env=os.environ, base_dir=Path(), is_going_to_judge=False)
        problems += check_writer(spec, "judge")
    return spec


def is_openai_client(value: object) -> bool:
    """Return whether `value` is a client of the `openai` library, which is then already imported."""
    library: Any = sys.modules.get("openai")
    return library is not None and isinstance(value, library.OpenAI | library.AsyncOpenAI)


def client_model(model: Any, problems: list[Problem]) -> ClientModel | None:
    """Return the client and the model of a pair; None after adding a problem if `model` is not such a pair."""
    is_pair = isinstance(model, tuple | list) and len(model) == _PAIR and is_openai_client(model[0])
    if not is_pair or not isinstance(model[1], str) or not model[1].strip():
        problems.append(Problem("`model` is a client without a model name", hint=HINT))
        return None
    from geval_cli.extras.programs.providers.openai_client import client_problem

    problem = client_problem(model[0])
    if problem is not None:
        problems.append(Problem(problem[0], hint=problem[1]))
        return None
    return ClientModel(model[0], model[1])


def provider_form(model: Model | None) -> JsonValue:
    """Return `model` as in a config file; None if it cannot be written in one."""
    if model is None:
        return DEFAULT_JUDGE.id
    if isinstance(model, str):
        return model if ":" in model or not model.strip() else f"{_DEFAULT_KIND}:{model}"
    if isinstance(model, tuple | list):
        is_pair = len(model) == _PAIR and all(isinstance(part, str) for part in model)
        return ":".join(model) if is_pair else None
    return _as_in_yaml(model) if isinstance(model, Mapping) else None


def is_judge(model: object) -> TypeGuard[Judge]:
    """Return whether an object has the attributes of a judge."""
    return all(hasattr(model, name) for name in _JUDGE_PARTS)


def _as_in_yaml(value: Any) -> JsonValue:
    """Convert `value` to what a YAML file would give: tuples become lists, and keys texts."""
    if isinstance(value, Mapping):
        return {str(key): _as_in_yaml(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_in_yaml(item) for item in value]
    return value

"""The tools of a test: read from a config, and checked together with the providers that get them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from geval_cli.assertions.base import CheckContext
from geval_cli.assertions.json_output import schema_problems
from geval_cli.errors import CodeFailedError, ConfigError, Problem
from geval_cli.providers.registry import takes_tools
from geval_cli.records import JsonValue, ToolDefinition
from geval_cli.source.files import FILE_PREFIX, is_file_reference
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import (
    ProviderSpec,
    RecordedAnswerSpec,
    SimulatedToolsSpec,
    ToolSet,
    ToolsSpec,
    describe_value,
)
from geval_cli.suite.assertions import read_provider
from geval_cli.suite.validation import LoadContext, build_spec, read_fields, read_spec

_DESCRIBER = Path(__file__).with_name("functions.py")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PYTHON = re.compile(r"(?P<path>.+\.py)(?::(?P<name>[A-Za-z_]\w*))?", re.DOTALL)
_SCHEMA_KEYS = ("parameters", "input_schema", "parametersJsonSchema", "inputSchema")
_NO_ARGUMENTS: dict[str, JsonValue] = {"type": "object", "properties": {}}


def read_tools(value: JsonValue, place: SourcePath, reading: LoadContext) -> ToolSet | None:
    """Return the tools that a config names, with a problem for each mistake; None where they cannot be used."""
    known = reading.errors
    if isinstance(value, str | list | tuple):
        written, at_functions = {"functions": value}, place
    elif isinstance(value, dict):
        written, at_functions = value, place.child("functions")
    else:
        hint = "name a Python file, for example file://tools.py"
        reading.report(
            f"`tools` must be text, a list or a mapping, found {describe_value(value)}", place.value(), hint
        )
        return None
    fields = read_fields(ToolsSpec, written, place, "`tools`", reading)
    if fields is None:
        return None
    definitions, places_of = _definitions(
        fields.values.pop("definitions", None), place.child("definitions"), reading
    )
    simulated = fields.values.pop("simulate", None)
    simulation = None if simulated is None else _simulation(simulated, place.child("simulate"), reading)
    recorded = _recorded(fields.values.pop("recorded", None), place.child("recorded"), reading)
    spec = build_spec(ToolsSpec, fields, reading)
    if spec is None:
        return None
    is_one = isinstance(spec.functions, str)
    named = (spec.functions,) if isinstance(spec.functions, str) else spec.functions or ()
    functions: dict[str, Path] = {}
    for index, item in enumerate(named):
        at = at_functions if is_one else at_functions.child(index)
        for tool, path in _functions(item, at, reading):
            functions[tool.name] = path
            definitions.append(tool)
            places_of.append(at)
    _check_names(definitions, places_of, reading)
    if not definitions and reading.errors == known and _may_run(reading):
        hint = "name functions (file://tools.py), or `definitions` of tools"
        reading.report("`tools` has no tools", place.value(), hint)
    answered = {*functions, *(item.name for item in recorded)}
    is_sound = reading.errors == known
    for tool, at in zip(definitions, places_of, strict=True):
        if is_sound and simulated is None and tool.name not in answered:
            message = f"nothing answers calls of the tool `{tool.name}`"
            reading.report(message, at.value(), "add `simulate`, or an answer to `recorded`")
    if _may_run(reading):
        _check_recorded(recorded, definitions, place, reading)
    if simulation is not None and len(functions) == len(definitions) and reading.errors == known:
        hint = "put the tools that have no function under `definitions`"
        reading.report("`simulate` has no tools to simulate", place.key("simulate"), hint)
    if reading.errors > known:
        return None
    return ToolSet(
        place,
        tuple(definitions),
        functions,
        simulator=None if simulation is None else simulation.provider,
        world="" if simulation is None else simulation.world,
        recorded=recorded,
        max_calls=spec.max_calls,
        named_functions=bool(named),
    )


def _may_run(reading: LoadContext) -> bool:
    return reading.files.access.runs_code


def _functions(
    written: str, place: SourcePath, reading: LoadContext
) -> Iterator[tuple[ToolDefinition, Path]]:
    """Yield the functions that a reference names as tools; without leave to run code, none, which is told elsewhere."""
    location = place.value()
    found = _PYTHON.fullmatch(written.removeprefix(FILE_PREFIX)) if is_file_reference(written) else None
    if found is None:
        hint = "write file://tools.py, or file://tools.py:NAME for one function"
        reading.report(
            f"tools are functions of a Python file, found {describe_value(written)}", location, hint
        )
        return
    try:
        path = reading.files.resolve(f"{FILE_PREFIX}{found['path']}", location)
        reading.files.text_at(path, location)  # so that a missing file is told as one
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return
    try:
        reading.files.access.require_code(f"`{path.name}`")
    except CodeFailedError:
        return
    if reading.scripts is None:
        reading.report(f"functions are not read here: `{path.name}`", location, "use `definitions`")
        return
    try:
        arguments: list[JsonValue] = [str(path.resolve()), found["name"] or ""]
        described: Any = reading.scripts()(_DESCRIBER, "describe", arguments, location)
    except ConfigError as error:
        for problem in error.problems:
            message = problem.message.replace(
                f"`describe` of {_DESCRIBER.name} failed", f"{path.name} cannot be loaded"
            ).replace(_DESCRIBER.name, path.name)
            reading.report(message, problem.location, problem.hint, notes=problem.notes)
        return
    for problem in described["problems"]:
        hint = (
            "tools are called by name, with arguments that have type hints" if "type hint" in problem else ""
        )
        reading.report(problem, location, hint)
    if not described["tools"] and not described["problems"]:
        reading.report(f"{path.name} has no public functions", location, "define one, with type hints")
    for tool in described["tools"]:
        if not tool["description"]:
            hint = "the docstring tells the model what the tool does"
            reading.warn(f"`{tool['name']}` of {path.name} has no docstring", location, hint)
        yield ToolDefinition(tool["name"], tool["description"], tool["parameters"]), path.resolve()


def _definitions(
    value: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[list[ToolDefinition], list[SourcePath]]:
    if value is None:
        return [], []
    if is_file_reference(value):
        try:
            document = reading.files.document(value, place.value())
        except ConfigError as error:
            reading.problems.extend(error.problems)
            return [], []
        value, place = document.value, document.place
    if isinstance(value, dict) and isinstance(
        value.get("functionDeclarations"), list
    ):  # as Gemini's API has them
        value, place = value["functionDeclarations"], place.child("functionDeclarations")
    if not isinstance(value, list | tuple):
        hint = "for example [{name: find_order, description: ..., parameters: {type: object, ...}}]"
        reading.report(f"`definitions` must be a list, found {describe_value(value)}", place.value(), hint)
        return [], []
    found, places = [], []
    for index, item in enumerate(value):
        at = place.child(index)
        tool = _definition(item, at, reading)
        if tool is not None:
            found.append(tool)
            places.append(at)
    return found, places


def _definition(item: JsonValue, place: SourcePath, reading: LoadContext) -> ToolDefinition | None:
    inner = item.get("function") if isinstance(item, dict) else None
    if isinstance(inner, dict):
        item, place = inner, place.child("function")
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(name, str):
        reading.report(
            "the definition of a tool needs a `name`", place.value(), "write {name, description, parameters}"
        )
        return None
    key = next((key for key in _SCHEMA_KEYS if item.get(key) is not None), None)
    schema = _NO_ARGUMENTS if key is None else item[key]
    problems = [] if key is None else schema_problems(schema, f"`{key}` of `{name}`", place.child(key))
    if not problems and not (isinstance(schema, Mapping) and schema.get("type") == "object"):
        hint = "write {type: object, properties: {...}}"
        problems = [
            Problem(f"`{key}` of `{name}` does not describe an object", place.value(key or "name"), hint)
        ]
    reading.problems.extend(problems)
    described = item.get("description")
    return None if problems else ToolDefinition(name, described if isinstance(described, str) else "", schema)


def _check_names(tools: list[ToolDefinition], places: list[SourcePath], reading: LoadContext) -> None:
    seen: set[str] = set()
    for tool, place in zip(tools, places, strict=True):
        if tool.name in seen:
            reading.report(
                f"two tools are called `{tool.name}`", place.value(), "rename or remove one of them"
            )
        elif not _NAME.fullmatch(tool.name):
            hint = "use at most 64 letters, digits, `_` and `-`"
            reading.report(f"`{tool.name}` cannot be the name of a tool", place.value(), hint)
        seen.add(tool.name)


def _simulation(value: JsonValue, place: SourcePath, reading: LoadContext) -> SimulatedToolsSpec | None:
    fields = read_fields(SimulatedToolsSpec, value, place, "`simulate`", reading)
    if fields is None:
        return None
    if "provider" in fields.values:
        provider = read_provider(fields.values["provider"], fields.child("provider"), reading)
        if provider is None:
            return None
        fields.values["provider"] = provider
    if "world" in fields.values:
        fields.values["world"] = reading.text(
            fields.values["world"], lambda: fields.child("world").value(), is_for_models=True
        )
        if fields.values["world"] is None:
            return None
    return build_spec(SimulatedToolsSpec, fields, reading)


def _recorded(value: JsonValue, place: SourcePath, reading: LoadContext) -> tuple[RecordedAnswerSpec, ...]:
    if value is None:
        return ()
    if is_file_reference(value):
        try:
            document = reading.files.document(value, place.value())
        except ConfigError as error:
            reading.problems.extend(error.problems)
            return ()
        value, place = document.value, document.place
    if not isinstance(value, list | tuple):
        hint = "for example [{name: find_order, result: {order: 7}}]"
        reading.report(
            f"`recorded` must be a list of answers, found {describe_value(value)}", place.value(), hint
        )
        return ()
    found = []
    for index, item in enumerate(value):
        at = place.child(index)
        written = (
            {key: part for key, part in item.items() if part is not None} if isinstance(item, dict) else item
        )
        spec = read_spec(RecordedAnswerSpec, written, at, "a recorded answer", reading)
        if spec is None:
            continue
        if ("result" in item) == ("error" in item):
            what = "has both `result` and `error`" if "error" in item else "has no `result`"
            hint = "write what the tool returned, or the `error` it gave"
            reading.report(f"the recorded answer of `{spec.name}` {what}", at.value(), hint)
        found.append(spec)
    return tuple(found)


def _check_recorded(
    recorded: tuple[RecordedAnswerSpec, ...],
    tools: list[ToolDefinition],
    place: SourcePath,
    reading: LoadContext,
) -> None:
    known = {tool.name for tool in tools}
    for index, answer in enumerate(recorded):
        if answer.name not in known:
            where = place.child("recorded").value(index) or place.value("recorded")
            message = f"`recorded` answers the tool `{answer.name}`, which is not among the tools"
            reading.report(message, where, "add it to `definitions`")


def check_tools(
    tools: ToolSet, answerers: Mapping[str, ProviderSpec], context: CheckContext
) -> Iterator[Problem]:
    """Yield what keeps the tools of a test from being called: by its providers, its turns, or its variables."""
    if tools.simulator is not None:
        problems: list[Problem] = []
        context.render(tools.world, tools.place.child("simulate").value("world"), problems)
        yield from problems
    for provider in answerers.values():
        if not takes_tools(provider):
            message = f"`{provider.public_id}` cannot be given `tools` ({context.where})"
            yield Problem(message, tools.place.key(), "use the chat model of an API, or leave `tools` out")
            continue
        for name in _own_functions(provider.config.get("tools")):
            message = f"nothing answers the function `{name}` in the provider's own `tools`"
            hint = "move it to `definitions` of the test's `tools`"
            yield Problem(message, provider.place.value("config", "tools"), hint)
            break


def _own_functions(written: JsonValue) -> Iterator[str]:
    """Yield the functions in the tools of a provider's config; those that run at the vendor are no such."""
    for tool in written if isinstance(written, list) else ():
        if not isinstance(tool, dict):
            continue
        declared = tool.get("functionDeclarations") or tool.get("function_declarations")
        is_function = tool.get("type", "function") in ("function", "custom")
        listed = (
            declared if isinstance(declared, list) else [tool.get("function") or tool] if is_function else []
        )
        yield from (
            item["name"] for item in listed if isinstance(item, dict) and isinstance(item.get("name"), str)
        )

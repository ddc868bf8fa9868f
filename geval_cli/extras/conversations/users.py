"""Reads and checks the simulated users of a config (`turns: {simulate: ...}`, `profiles`)."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from geval_cli.assertions.base import CheckContext, MergedTest, SimulatedUser
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.numbers import plural
from geval_cli.records import JsonValue
from geval_cli.source.files import is_file_reference, read_document
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import describe_value
from geval_cli.suite.assertions import read_assertion, read_provider
from geval_cli.suite.schema import SimulatedUserSpec, SimulationSpec
from geval_cli.suite.tables import csv_rows
from geval_cli.suite.test_files import JsonLinesRows, named_files
from geval_cli.suite.tests import PROFILE, Profiles, drop_faulty_turns
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields

_TEXTS = ("goal", "profile", "opening", "done_when")
_TEMPLATES = ("goal", "opening", "done_when")
_NEVER_DECIDE = ("ended-by", "human")
_FORM = "for example [{age: 70, patience: little}, A student in a hurry.]"
_KNOWN = "known: .csv, .tsv, .jsonl, .ndjson, .json, .yaml, .yml"


def read_simulation(fields: Fields, reading: LoadContext) -> None:
    """Replace the `turns` of a test by the simulated user that they describe, or drop them and report each mistake."""
    before = reading.errors
    place = fields.child("turns")
    outer = read_fields(SimulationSpec, fields.values["turns"], place, "`turns`", reading)
    spec = None
    if outer is not None and "simulate" in outer.values:
        written = outer.values["simulate"]
        inner = read_fields(SimulatedUserSpec, written, outer.child("simulate"), "a simulated user", reading)
        if inner is not None:
            _read_parts(inner, reading)
            user = build_spec(SimulatedUserSpec, inner, reading)
            spec = None if user is None else SimulationSpec(simulate=user, place=place)
    if spec is None or reading.errors > before:
        drop_faulty_turns(fields)
    else:
        fields.values["turns"] = spec


def _read_parts(fields: Fields, reading: LoadContext) -> None:
    for name in _TEXTS:
        value = fields.values.get(name)
        if is_file_reference(value) and not reading.is_built:
            fields.values[name] = reading.text(value, fields.child(name).value)
        if isinstance(fields.values.get(name), str) and not fields.values[name].strip():
            reading.report(
                f"`{fields.written[name]}` is empty", fields.child(name).value(), "fill it in, or remove it"
            )
    if "user" in fields.values:
        fields.values["user"] = read_provider(fields.values["user"], fields.child("user"), reading)
    if isinstance(written := fields.values.get("done_when"), dict):
        at = fields.child("done_when")
        spec = read_assertion(written, at, reading)
        if spec is not None and (spec.compares_outputs or getattr(spec, "dimensions", None)):
            hint = "name one assertion about one answer"
            reading.report("`done_when` cannot compare outputs or rate several dimensions", at.value(), hint)
        elif spec is not None and spec.base_type in _NEVER_DECIDE:
            hint = "name an assertion about the last answer"
            message = f"`done_when` decides the end, so it cannot be `{spec.base_type}`"
            reading.report(message, at.value("type"), hint)
        fields.values["done_when"] = spec


def merged_user(written: SimulationSpec, below: object) -> SimulatedUser:
    """Return the user of a test; keys that it lacks come from `defaultTest`, whose turns are `below`."""
    own = written.simulate
    default = below.simulate if isinstance(below, SimulationSpec) else own

    def pick(name: str) -> JsonValue:
        return getattr(own if name in own.model_fields_set else default, name)

    return SimulatedUser(
        own.place,
        goal=pick("goal"),
        provider=pick("user"),
        profile=pick("profile"),
        opening=pick("opening"),
        done_when=pick("done_when"),
        max_turns=pick("max_turns"),
    )


def check_user(test: MergedTest, context: CheckContext) -> Iterator[Problem]:
    """Yield the problems of a simulated user: missing keys and broken texts; `done_when` is checked as an assertion."""
    user = test.user
    assert user is not None
    whose = context.where.removeprefix("in ")
    if user.goal is None:
        hint = "say what the user wants: `goal: Get a refund for the broken teapot`"
        yield Problem(f"the simulated user of {whose} has no `goal`", user.place.value(), hint)
    if user.provider is None:
        hint = (
            "name the model that plays the user, in the test or in `defaultTest`: `user: openai:gpt-4.1-mini`"
        )
        yield Problem(f"the simulated user of {whose} has no `user`", user.place.value(), hint)
    if user.profile is not None and test.vars.get(PROFILE) != user.profile:
        yield Problem(
            f"the variable `{PROFILE}` hides the profile of the simulated user ({whose})",
            test.place.value("vars", PROFILE) or user.place.value(),
            "give the variable another name",
        )
    problems: list[Problem] = []
    for name in _TEMPLATES:
        if isinstance(text := getattr(user, name), str):
            rendered = context.render(text, user.place.value(name), problems)
            if rendered is not None and not rendered.strip():
                hint = "fill in its variables, or remove it"
                yield Problem(f"`{name}` of {whose} is empty once rendered", user.place.value(name), hint)
    yield from problems


def read_profiles(value: JsonValue, place: SourcePath, reading: LoadContext) -> Profiles:
    """Return the profiles of a config, in order, and report those that cannot be read."""
    if is_file_reference(value):
        return tuple(_profiles(_rows_of_files(value, place.value(), reading), reading))
    if not isinstance(value, list) or not value:
        found = "an empty list" if isinstance(value, list) else describe_value(value)
        reading.report(f"`profiles` must be a list of profiles, found {found}", place.value(), _FORM)
        return ()
    items = ((item, place.child(index)) for index, item in enumerate(value))
    return tuple(_profiles(items, reading))


def _profiles(
    rows: Iterator[tuple[JsonValue, SourcePath]], reading: LoadContext
) -> Iterator[str | Mapping[str, JsonValue]]:
    for item, place in rows:
        if is_file_reference(item):
            yield from _profiles(_rows_of_files(item, place.value(), reading), reading)
        elif isinstance(item, dict) and item and not set(item) - {PROFILE} and isinstance(item[PROFILE], str):
            yield item[PROFILE]  # a table with one column
        elif (isinstance(item, str) and item.strip()) or (isinstance(item, dict) and item):
            yield item
        else:
            found = "an empty mapping" if item == {} else describe_value(item)
            reading.report(f"a profile must be text or traits, found {found}", place.value(), _FORM)


def _rows_of_files(
    reference: str, asked_at: Location | None, reading: LoadContext
) -> Iterator[tuple[JsonValue, SourcePath]]:
    known, is_empty = reading.errors, True
    try:
        for file in named_files(reference, asked_at, reading):
            for row in _rows_of_file(file.path, asked_at, reading):
                is_empty = False
                yield row
    except ConfigError as error:
        reading.problems.extend(error.problems)
    if is_empty and reading.errors == known:
        reading.report(f"`{reference}` contains no profiles", asked_at, _FORM)


def _rows_of_file(
    path: Path, asked_at: Location | None, reading: LoadContext
) -> Iterator[tuple[JsonValue, SourcePath]]:
    suffix = path.suffix.lower()
    if suffix in {".jsonl", ".ndjson"}:
        yield from JsonLinesRows(path, asked_at, "profiles").rows(reading)
    elif suffix in {".json", ".yaml", ".yml"}:
        document = read_document(path, reading.files.access, asked_at=asked_at, prefix="profiles")
        if not isinstance(document.value, list):
            message = f"`{path.name}` must contain a list of profiles, found {describe_value(document.value)}"
            reading.report(message, document.place.value(), _FORM)
            return
        yield from ((item, document.place.child(index)) for index, item in enumerate(document.value))
    elif suffix in {".csv", ".tsv"}:
        delimiter = "\t" if suffix == ".tsv" else None
        rows = csv_rows(path, reading.files.access, asked_at, delimiter=delimiter, is_strict=True)
        filled = (row for row in rows if not row.is_empty)
        header = next(filled, None)
        names = [] if header is None else [str(cell).strip() for cell in header.cells]
        for row in filled:
            if len(row.cells) > len(names):
                message = f"this row has {plural(len(row.cells), 'cell')}, but the header has {len(names)}"
                reading.report(message, row.location(path), "put quotes around a text with a comma")
            cells = dict(zip(names, row.cells, strict=False))
            traits = {name: cell for name, cell in cells.items() if name and cell}
            yield reading.env.literal(traits), SourcePath.nowhere()
    else:
        reading.report(f"`{path.name}` is not a file of profiles", asked_at, _KNOWN)

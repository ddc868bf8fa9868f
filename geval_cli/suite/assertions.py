"""Reads an assertion in any of the forms that a config may have, and the value that it compares with.

It also reads providers in all of their forms: a name, `{id, label, config}`, or a list.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeGuard

from geval_cli.assertions.base import Assertion, ValueRules
from geval_cli.assertions.geval_metric import (
    ChecklistItemSpec,
    GEvalFields,
    RatedDimensionSpec,
    RatedExampleSpec,
    RubricBandSpec,
)
from geval_cli.assertions.registry import ASSERTION_TYPES, advice_on
from geval_cli.errors import ConfigError
from geval_cli.json_codec import encode_json
from geval_cli.judge.grading import MOST_ITEMS
from geval_cli.judge.prompt import DIMENSIONS
from geval_cli.plugins import ASSERTIONS, extra, plugin_names
from geval_cli.providers.preset_table import PRESETS
from geval_cli.records import JsonValue
from geval_cli.source.env import unknown_expression
from geval_cli.source.files import is_file_reference
from geval_cli.source.json_source import read_json
from geval_cli.source.problems import did_you_mean, hint_among, listing
from geval_cli.source.secrets import mask_text
from geval_cli.source.source_map import SourcePath
from geval_cli.source.yaml_source import ScalarError, read_yaml, resolve_plain
from geval_cli.specs.base import (
    CALIBRATED,
    EarlyStopSpec,
    FunctionSpec,
    JuryRulesSpec,
    JurySpec,
    ProviderSpec,
    RubricPromptSpec,
    TestOptionsSpec,
    describe_value,
    spec_in,
    tuple_fields,
)
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields, read_spec

_FEWEST_JUDGES = 2
JURY = "jury"
"""The id of a jury, which does not name a model."""


def read_providers(value: JsonValue, place: SourcePath, reading: LoadContext) -> tuple[ProviderSpec, ...]:
    """Return the providers under test, in the order of the file; those with problems are left out."""
    if not isinstance(value, list):
        provider = read_provider(value, place, reading)
        return () if provider is None else (provider,)
    if not value:
        reading.report("`providers` has no entries", place.value(), "add one, or leave the key out")
    found = [read_provider(item, place.child(index), reading) for index, item in enumerate(value)]
    return tuple(provider for provider in found if provider is not None)


def read_judges(value: JsonValue, place: SourcePath, reading: LoadContext) -> ProviderSpec | None:
    """Return the judge: a single provider, or a jury when a list is given (promptfoo has no juries)."""
    if not isinstance(value, list) or reading.rules.judges_by_kind:
        return read_provider(value, place, reading)
    if len(value) < _FEWEST_JUDGES:
        hint = "name at least two" if not value else "write it without the brackets, or name more"
        reading.report("a list of judges is a jury and needs at least two", place.value(), hint)
        return None
    known = reading.errors
    members = [read_provider(item, place.child(index), reading) for index, item in enumerate(value)]
    judges = [judge for judge in members if judge is not None]
    seen: dict[bytes, int] = {}
    for index, judge in enumerate(judges):
        first = seen.setdefault(encode_json([judge.id, judge.config]), index)
        if first != index:
            message = f"the jury has `{judge.title}` twice, so one judge would count double"
            reading.report(message, place.value(index), "keep one of them, or give it other settings")
    if reading.errors > known:
        return None
    label = ", ".join(judge.title for judge in judges)
    return JurySpec(id=JURY, label=label, members=tuple(judges), place=place)


def read_provider(value: JsonValue, place: SourcePath, reading: LoadContext) -> ProviderSpec | None:
    """Return one provider; its label is its id without keys, unless one is given."""
    if reading.rules.judges_by_kind:
        judge: ProviderSpec | None = extra("judges by kind").read_judge(value, place, reading)
        return judge
    if isinstance(value, str):
        value = {"id": value}
    elif isinstance(value, dict) and _is_keyed(value):
        [(name, settings)] = value.items()
        value = {**(settings or {}), "id": name}
        place = place.child(name)
    elif isinstance(value, dict) and _is_split(value):
        [(name, model)] = value.items()
        message = f"`{name}: {model}` is a mapping, because of the space after the colon"
        reading.report(message, place.value(), f"write `{name}:{model}`")
        return None
    elif not isinstance(value, dict):
        message = f"a provider must be text or a mapping, found {describe_value(value)}"
        reading.report(message, place.value(), "write its id, for example openai:gpt-4.1")
        return None
    fields = read_fields(ProviderSpec, value, place, "a provider", reading)
    if fields is None:
        return None
    name = fields.values.get("id")
    if isinstance(name, str):
        if not name.strip():
            reading.report(
                "a provider's id is empty", fields.child("id").value(), "for example openai:gpt-4.1"
            )
            return None
        fields.values.setdefault("label", mask_text(name))
    spec = build_spec(ProviderSpec, fields, reading)
    if spec is not None:
        for key in ("id", "config"):
            _report_unfilled(
                fields.values.get(key), fields.child(key) if key in fields.written else place, reading
            )
    if spec is None or spec.id not in reading.functions:
        return spec
    return FunctionSpec(
        id=spec.id,
        label=spec.label,
        config=spec.config,
        place=spec.place,
        function=reading.functions[spec.id],
    )


def _report_unfilled(value: JsonValue, place: SourcePath, reading: LoadContext) -> None:
    """Report expressions for env values that are not templates here, and would be sent as they are written."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _report_unfilled(entry, place.child(key), reading)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _report_unfilled(item, place.child(index), reading)
    elif isinstance(value, str) and (found := unknown_expression(value)):
        hint = "write {{ env.NAME }} or {{ env.NAME | default('text') }}"
        reading.report(f"`{found}` would be sent as it is written", place.value(), hint)


def _is_split(value: dict[str, JsonValue]) -> bool:
    """Return whether a mapping is a provider's id with a space after its colon: `openai: gpt-4.1`."""
    if len(value) != 1:
        return False
    [(name, model)] = value.items()
    return isinstance(model, str) and str(name).lower() in {*PRESETS, "local", "http", "https"}


def _is_keyed(value: dict[str, JsonValue]) -> bool:
    """Return whether a mapping is from an id to its settings: `openai:gpt-4.1: {config: ...}`."""
    if len(value) != 1:
        return False
    [(name, settings)] = value.items()
    return ":" in name and isinstance(settings, dict | None) and "id" not in (settings or {})


_DOCUMENTS = frozenset({".json", ".yaml", ".yml"})
_PROGRAMS = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".rb"})


def read_value(model: type[Assertion], fields: Fields, reading: LoadContext) -> None:
    """Read `value` in `fields` by the rules of the assertion type; an invalid one is reported and dropped."""
    form = model.value_form
    if form is None or fields.values.get("value") is None:
        return
    if form == "schema":
        read_json_schema("value", fields, reading)
        return
    written = fields.values["value"]
    place = fields.child("value")
    if isinstance(form, tuple):
        rules, what = form
        value = _read_rules(rules, written, place, what, reading) if isinstance(written, dict) else written
    else:
        value = _VALUE_READERS[form](written, place, reading)
    if value is None:
        fields.drop("value")
    else:
        is_tuple = isinstance(value, list) and "value" in tuple_fields(model)
        fields.values["value"] = tuple(value) if is_tuple else value


def read_json_schema(name: str, fields: Fields, reading: LoadContext) -> None:
    """Replace the file or the YAML text of a schema by the schema itself, in any field of a config."""
    value = fields.values.get(name)
    if not isinstance(value, str):
        return
    if is_file_reference(value):
        found = _document(value, fields.child(name), reading)
        if found is None:
            fields.drop(name)
        else:
            fields.values[name] = found
    elif value.strip():
        fields.values[name] = _written_as_yaml(value)


def _written_as_yaml(text: str) -> JsonValue:
    """Parse a YAML text as a schema; return the text itself if it is anything else, for the check of schemas."""
    if _is_json(text):
        return text
    try:
        found = read_yaml(text, "value").value
    except ConfigError:
        return text
    return found if isinstance(found, dict | bool) else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _document(reference: str, place: SourcePath, reading: LoadContext) -> JsonValue:
    try:
        return reading.files.document(reference, place.value()).value
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return None


def _read_text(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    if is_file_reference(value):
        # The content of the file: data for JSON and YAML, otherwise its text without surrounding whitespace.
        suffix = PurePosixPath(value).suffix.lower().partition(":")[0]
        if suffix in _PROGRAMS:
            hint = "write the expected value, or check it in a `python` or `javascript` assertion"
            reading.report("a program cannot be the `value` of this assertion", place.value(), hint)
            return None
        if suffix in _DOCUMENTS:
            return _document(value, place, reading)
        text = reading.text(value, place.value)
        return text.strip() if isinstance(text, str) else text
    return value


def _read_value_texts(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    if not isinstance(value, tuple | list):
        return _read_text(value, place, reading)
    items = [_read_text(item, place.child(index), reading) for index, item in enumerate(value)]
    if any(item is None and written is not None for item, written in zip(items, value, strict=True)):
        return None
    return items


def _read_data(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    if isinstance(value, list):
        return _read_value_texts(value, place, reading)
    return _read_text(value, place, reading)


_VALUE_READERS: Mapping[str, Callable[[JsonValue, SourcePath, LoadContext], JsonValue]] = {
    "text": _read_text,
    "texts": _read_value_texts,
    "data": _read_data,
}


def _read_rules(
    model: type[ValueRules], value: JsonValue, place: SourcePath, what: str, reading: LoadContext
) -> ValueRules | None:
    found = read_spec(model, value, place, what, reading)
    problems = found.problems() if found is not None else ()
    reading.problems.extend(problems)
    return None if problems else found


_PAIR = 2
_FORMS = (
    'a rubric is a mapping {10: "..."}, or a list of [10, "..."], of {score: 10, description: "..."}, '
    'or of {score_range: [8, 10], expected_outcome: "..."}',
)


def read_rubric(
    value: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[RubricBandSpec, ...] | None:
    """Return the bands in the order of the file; None, with a problem for each wrong band."""
    known = reading.errors
    if isinstance(value, dict):
        bands = [_band_of_key(key, entry, place.child(key), reading) for key, entry in value.items()]
    elif isinstance(value, (list, tuple)):
        bands = [_band_of_item(item, place.child(index), reading) for index, item in enumerate(value)]
    else:
        message = f"`rubric` must be a mapping or a list, found {describe_value(value)}"
        reading.report(message, place.value(), notes=_FORMS)
        return None
    if not value:
        reading.report("`rubric` has no bands", place.value(), notes=_FORMS)
    if reading.errors > known:
        return None
    return tuple(band for band in bands if band is not None)


def _band_of_key(
    key: str, entry: JsonValue, place: SourcePath, reading: LoadContext
) -> RubricBandSpec | None:
    try:
        rating = resolve_plain(key)
    except ScalarError:
        rating = None
    if not _is_number(rating):
        message = f"a rating in `rubric` must be a number, found the key `{key}`"
        reading.report(message, place.key(), notes=_FORMS)
        return None
    return _band((rating, rating), entry, place, place, reading)


def _band_of_item(item: JsonValue, place: SourcePath, reading: LoadContext) -> RubricBandSpec | None:
    if isinstance(item, list) and len(item) == _PAIR:
        return _rated_band(item[0], item[1], (place, place.child(0), place.child(1)), reading)
    if isinstance(item, dict) and set(item) == {"score", "description"}:
        places = (place, place.child("score"), place.child("description"))
        return _rated_band(item["score"], item["description"], places, reading)
    if isinstance(item, dict) and set(item) == {"score_range", "expected_outcome"}:
        span = item["score_range"]
        at = place.child("score_range")
        if isinstance(span, list) and len(span) == _PAIR and all(map(_is_number, span)):
            return _band(
                (span[0], span[1]), item["expected_outcome"], place, place.child("expected_outcome"), reading
            )
        message = "the `score_range` of a band must be a list of two numbers"
        reading.report(message, at.value(), "for example [8, 10]")
        return None
    reading.report("this is not a band of a rubric", place.value(), notes=_FORMS)
    return None


def _rated_band(
    rating: JsonValue,
    text: JsonValue,
    places: tuple[SourcePath, SourcePath, SourcePath],
    reading: LoadContext,
) -> RubricBandSpec | None:
    """Return a band for a single rating; `places` are those of the band, the rating and the text."""
    if _is_number(rating):
        return _band((rating, rating), text, places[0], places[2], reading)
    message = f"the rating of a band must be a number, found {describe_value(rating)}"
    reading.report(message, places[1].value(), notes=_FORMS)
    return None


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _band(
    span: tuple[float, float],
    text: JsonValue,
    place: SourcePath,
    text_place: SourcePath,
    reading: LoadContext,
) -> RubricBandSpec | None:
    if not isinstance(text, str) or not text.strip():
        message = f"the description of a band must be text, found {describe_value(text)}"
        reading.report(message, text_place.value(), notes=_FORMS)
        return None
    read = reading.text(text, text_place.value, is_for_models=True)
    return read and RubricBandSpec(low=span[0], high=span[1], description=read, place=place)


_NEGATION = "not-"
_PAIRWISE = "pairwise"


def read_assertions(value: JsonValue, place: SourcePath, reading: LoadContext) -> tuple[Assertion, ...]:
    """Return the assertions of a list, in its order; those with problems are left out."""
    if not isinstance(value, list):
        hint = "put `- ` before each assertion" if isinstance(value, dict) else ""
        message = f"`assert` must be a list of assertions, found {describe_value(value)}"
        reading.report(message, place.value(), hint)
        return ()
    found = [read_assertion(item, place.child(index), reading) for index, item in enumerate(value)]
    parts: list[Assertion] = []
    for assertion in found:
        if isinstance(assertion, GEvalFields):
            # One assertion per dimension, with its own metric and verdict
            parts.extend(assertion.parts)
        elif assertion is not None:
            parts.append(assertion)
    return tuple(parts)


def read_assertion(value: JsonValue, place: SourcePath, reading: LoadContext) -> Assertion | None:
    """Return an assertion as the spec class of its type in `ASSERTION_TYPES`; None, with a problem for each mistake."""
    if not isinstance(value, dict):
        hint = f"write `type: {value}`" if isinstance(value, str) and _is_known(value) else ""
        reading.report(f"an assertion must be a mapping, found {describe_value(value)}", place.value(), hint)
        return None
    kind = _read_type(value, place, reading)
    if kind is None:
        return None
    base = kind.removeprefix(_NEGATION)
    model = ASSERTION_TYPES[base]
    article = "an" if base[0] in "aeiou" else "a"
    nullable = ("value",) if model.value_may_be_null else ()
    fields = read_fields(model, value, place, f"{article} {base} assertion", reading, nullable=nullable)
    if fields is None:
        return None
    _write_out(fields, reading)
    if not issubclass(model, GEvalFields):
        _refuse_jury(fields, f"{base} takes", reading)
    for name in ("dimensions", "checklist", "criteria", "evaluation_steps"):
        if name in fields.written and name not in fields.values:
            return None  # their mistakes are already reported
    if "dimension" in fields.values and "dimensions" in fields.values:
        hint = "leave `dimension` out and list it in `dimensions`"
        reading.report("`dimension` and `dimensions` cannot be combined", fields.place.key("dimension"), hint)
        return None
    _read_members(fields, reading)
    read_value(model, fields, reading)
    if not _read_parts(model, fields, reading):
        return None
    is_calibrated = reading.calibrations is not None and fields.values.get("threshold") == CALIBRATED
    if is_calibrated:
        fields.drop("threshold")
    spec = build_spec(model, fields, reading)
    if spec is None:
        return None
    if isinstance(spec, GEvalFields) and spec.jury_rules and spec.jury_rules.combine == CALIBRATED:
        extra("calibration").check_weights(spec, reading)
    if not is_calibrated:
        return spec
    found: Assertion | None = extra("calibration").with_threshold(spec, fields.child("threshold"), reading)
    return found


def read_test_options(value: JsonValue, place: SourcePath, reading: LoadContext) -> TestOptionsSpec | None:
    """Return the `options` of a test, with their short forms expanded."""
    fields = read_fields(TestOptionsSpec, value, place, "the options of a test", reading)
    if fields is None:
        return None
    _write_out(fields, reading)
    _refuse_jury(fields, "the options of a test take", reading)
    return build_spec(TestOptionsSpec, fields, reading)


def _read_parts(model: type[Assertion], fields: Fields, reading: LoadContext) -> bool:
    """Read each value that is still a mapping as the spec of its field; return whether all of them are valid."""
    written = [name for name, entry in fields.values.items() if isinstance(entry, dict)]
    parts = {name: part for name in written if (part := spec_in(model.model_fields[name])) is not None}
    for name, part in parts.items():
        what = f"`{fields.written.get(name, name)}`"
        fields.values[name] = read_spec(part, fields.values[name], fields.child(name), what, reading)
    return all(fields.values[name] is not None for name in parts)


def _read_members(fields: Fields, reading: LoadContext) -> None:
    """Replace the written assertions of a set by their specs."""
    written = fields.values.get("assertions")
    if written is None:
        return
    place = fields.child("assertions")
    members = read_assertions(list(written) if isinstance(written, tuple) else written, place, reading)
    for member in members:
        if member.members:
            message = "an assert-set cannot hold an assert-set or a decision-tree"
            reading.report(message, member.place.value("type"), "put it next to the set")
        if member.compares_outputs:
            message = f"{member.base_type} compares whole outputs and cannot be in an assert-set"
            reading.report(message, member.place.value("type"), "put it next to the set")
    if written == ():
        hint = "add assertions, or leave the set out"
        reading.report("an assert-set needs at least one assertion", place.value(), hint)
    fields.values["assertions"] = members


def _read_tree(value: JsonValue, place: SourcePath, reading: LoadContext) -> Any:
    return extra("decision trees").read_tree(value, place, reading)


def _is_known(kind: str) -> bool:
    return kind.removeprefix(_NEGATION) in ASSERTION_TYPES


def _read_type(value: Mapping[str, JsonValue], place: SourcePath, reading: LoadContext) -> str | None:
    kind = value.get("type")
    if (
        isinstance(kind, str)
        and _is_known(kind)
        and (reading.rules.compares_in_pairs or kind.removeprefix(_NEGATION) != _PAIRWISE)
    ):
        return kind
    notes = (
        listing("known types", str(kind), ASSERTION_TYPES, "docs/assertions.md"),
        "prefix a type with `not-` to invert its verdict",
    )
    if "type" not in value:
        named = next((key for key in value if _is_known(key)), None)
        hint = f"write `type: {named}`" if named else "add `type`"
        reading.report("an assertion needs `type`", place.value(), hint, notes=notes)
        return None
    if not isinstance(kind, str):
        reading.report(f"`type` must be text, found {describe_value(kind)}", place.value("type"), notes=notes)
        return None
    if _is_known(kind):
        hint = "use select-best, or write the config in geval's own form"
        reading.report(f"promptfoo has no assertion type `{kind}`", place.value("type"), hint)
        return None
    advice = advice_on(kind.removeprefix(_NEGATION))
    if advice is not None:
        reading.report(f"geval has no assertion type `{kind}`", place.value("type"), advice)
        return None
    near = nearest_type(kind)
    hint = f"did you mean `{near}`?" if near else ""
    reading.report(f"unknown assertion type `{kind}`", place.value("type"), hint, notes=() if near else notes)
    return None


def nearest_type(kind: str) -> str | None:
    """Return the assertion type that was most likely meant, negated if the word is: `!contains`, `not_contains`."""
    positive = re.sub(r"^(?:not[\s_-]*|!\s*)", "", kind, flags=re.IGNORECASE)
    near = did_you_mean(positive, (*ASSERTION_TYPES, *plugin_names(ASSERTIONS)))
    return near if near is None or positive == kind else f"{_NEGATION}{near}"


def _write_out(fields: Fields, reading: LoadContext) -> None:
    """Expand short forms; invalid values are reported and removed."""
    for name, read in _READERS.items():
        if name in fields.values:
            value = read(fields.values[name], fields.child(name), reading)
            if value is None:
                fields.drop(name)
            else:
                fields.values[name] = value


def _read_texts(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    """Return one or more texts, each of which may be a file; other types are left for the spec to refuse."""
    if not isinstance(value, tuple):
        return reading.text(value, place.value, is_for_models=True)
    texts = tuple(
        reading.text(item, partial(place.value, index), is_for_models=True)
        for index, item in enumerate(value)
    )
    return texts if None not in texts or None in value else None


def _read_dimensions(
    value: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[RatedDimensionSpec, ...] | None:
    """Return several dimensions, each a name or a mapping; None, with a problem for each wrong one."""
    if not isinstance(value, list | tuple):
        message = f"`dimensions` must be a list of dimensions, found {describe_value(value)}"
        reading.report(message, place.value(), "for a single one use `dimension`")
        return None
    known, found = reading.errors, dict[str, RatedDimensionSpec]()
    for index, item in enumerate(value):
        at = place.child(index)
        written = {"dimension": item} if isinstance(item, str) else item
        spec = read_spec(RatedDimensionSpec, written, at, "an entry of `dimensions`", reading)
        if spec is None:
            continue
        if spec.dimension not in DIMENSIONS:
            hint = hint_among(spec.dimension, DIMENSIONS)
            reading.report(f"there is no dimension `{spec.dimension}`", at.value("dimension"), hint)
        elif spec.dimension in found:
            message = f"`{spec.dimension}` is listed twice"
            reading.report(message, at.value("dimension"), "leave one of them out")
        found.setdefault(spec.dimension, spec)
    if len(value) < _PAIR and reading.errors == known:
        reading.report("`dimensions` needs at least two", place.value(), "for a single one use `dimension`")
    return tuple(found.values()) if reading.errors == known else None


def _read_checklist(
    value: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[ChecklistItemSpec, ...] | None:
    """Return the items, each a text or a mapping; None, with a problem for each wrong one."""
    if not isinstance(value, list | tuple):
        message = f"`checklist` must be a list of items, found {describe_value(value)}"
        hint = "for example `checklist: [Names the price, {item: Says when it arrives, required: true}]`"
        reading.report(message, place.value(), hint)
        return None
    found = []
    for index, item in enumerate(value):
        written, keys = ({"item": item}, ()) if isinstance(item, str) else (item, ("item",))
        spec = read_spec(ChecklistItemSpec, written, place.child(index), "an item of `checklist`", reading)
        text = spec and reading.text(spec.item, partial(place.value, index, *keys), is_for_models=True)
        if spec is not None and text is not None:
            found.append(spec.model_copy(update={"item": text}))
    if not value:
        reading.report("`checklist` has no items", place.value(), "list what the output must have")
        return None
    if len(value) > MOST_ITEMS:
        message = f"`checklist` has {len(value)} items; the most that one reply can answer is {MOST_ITEMS}"
        reading.report(message, place.value(), "split them into several assertions")
        return None
    return tuple(found) if len(found) == len(value) else None


def _read_examples(
    value: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[RatedExampleSpec, ...] | None:
    """Return rated examples, from a list or a file; None, with a problem for each wrong one."""
    if is_file_reference(value):
        items = _example_rows(value, place, reading)
        if items is None:
            return None
    elif isinstance(value, list | tuple):
        items = [(item, place.child(index)) for index, item in enumerate(value)]
    else:
        hint = "for example `examples: [{output: Paris., rating: 5}]`, or file://examples.jsonl"
        reading.report(f"`examples` must be a list, found {describe_value(value)}", place.value(), hint)
        return None
    known, found = reading.errors, []
    for item, at in items:
        found.append(read_spec(RatedExampleSpec, item, at, "an entry of `examples`", reading))
    return None if reading.errors > known else tuple(item for item in found if item is not None)


def _example_rows(
    reference: str, place: SourcePath, reading: LoadContext
) -> list[tuple[JsonValue, SourcePath]] | None:
    """Return the entries of a file of examples, each with its place; None, with a problem, if it cannot be read."""
    suffix = PurePosixPath(reference).suffix.lower()
    try:
        if suffix in _DOCUMENTS:
            document = reading.files.document(reference, place.value())
            if isinstance(document.value, list):
                return [(item, document.place.child(index)) for index, item in enumerate(document.value)]
            message = f"an examples file must contain a list, found {describe_value(document.value)}"
            reading.report(message, place.value())
        elif suffix == ".jsonl":
            path = reading.files.resolve(reference, place.value())
            # Not splitlines: a JSON string may contain U+2028.
            texts = reading.files.text_at(path, place.value()).split("\n")
            lines = [
                read_json(line, str(path), first_line=number)
                for number, line in enumerate(texts, start=1)
                if line.strip()
            ]
            return [(line.value, line.place) for line in lines]
        else:
            reading.report("examples are read from .jsonl, .json and .yaml files", place.value())
    except ConfigError as error:
        reading.problems.extend(error.problems)
    return None


def _read_jury(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    return read_spec(JuryRulesSpec, value, place, "`jury`", reading)


def _refuse_jury(fields: Fields, what: str, reading: LoadContext) -> None:
    """Report several judges where only one is allowed."""
    if isinstance(fields.values.get("provider"), JurySpec):
        message = f"{what} one judge, but `provider` is a list"
        reading.report(
            message, fields.child("provider").value(), "name one; only a g-eval assertion can have several"
        )
        fields.drop("provider")


def _read_rubric_prompt(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    if isinstance(value, list | tuple) and value and all(isinstance(item, dict) for item in value):
        # A chat, whose texts are templates.
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict):
        return reading.text(value, place.value, is_for_models=True)
    fields = read_fields(RubricPromptSpec, value, place, "a rubricPrompt", reading)
    if fields is None:
        return None
    for name, entry in list(fields.values.items()):
        text = reading.text(entry, fields.child(name).value, is_for_models=True)
        if text is None:
            return None
        fields.values[name] = text
    return build_spec(RubricPromptSpec, fields, reading)


def _read_samples(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    """Return `{upto: 20}` as its spec; other types are left for the spec to refuse."""
    return read_spec(EarlyStopSpec, value, place, "`samples`", reading) if isinstance(value, dict) else value


_READERS: dict[str, Callable[[JsonValue, SourcePath, LoadContext], JsonValue]] = {
    "criteria": _read_texts,
    "evaluation_steps": _read_texts,
    "guidelines": _read_texts,
    "rubric": read_rubric,
    "samples": _read_samples,
    "jury": _read_jury,
    "dimensions": _read_dimensions,
    "checklist": _read_checklist,
    "examples": _read_examples,
    "provider": read_judges,
    "rubric_prompt": _read_rubric_prompt,
    "tree": _read_tree,
}

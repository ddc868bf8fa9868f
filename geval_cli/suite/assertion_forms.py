"""Show assertions as forms, and write what is changed in a form back into their YAML: nothing else in it moves.

The forms are made from the JSON Schema of configs, so every type of assertion has one.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, ValueForm
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.records import JsonValue
from geval_cli.source.edit.targets import EditedItem, EditedList, TargetValue
from geval_cli.source.edit.yaml_list import (
    as_written,
    no_form,
    read_list,
    with_item,
    without_item,
    write_list,
)
from geval_cli.specs.base import spellings
from geval_cli.suite.assertion_inputs import FormValue, InputKind, form_value, read_input
from geval_cli.suite.json_schema import JsonSchema, config_json_schema

OFTEN_USED = (
    "g-eval", "contains", "icontains", "equals", "regex", "is-json", "llm-rubric", "similar", "javascript", "latency",
    "cost",
)  # fmt: skip
"""Types that a list of all begins with."""

_FIRST = (
    "assert", "dimension", "criteria", "checklist", "value", "evaluation_steps", "rubric", "score_range", "threshold",
    "provider", "metric",
)  # fmt: skip
_LABELS = {"provider": "Judge", "score_range": "Range of ratings", "rubric_prompt": "Judge's prompt"}
_NOT = "not-"


class FormInput(Struct, frozen=True):
    """One key of a type: how it is shown while it has no value, in words, and among the first or under "more"."""

    key: str
    label: str
    kind: InputKind
    hint: str = ""
    choices: tuple[str, ...] = ()
    default: JsonValue = None
    is_first: bool = False
    is_required: bool = False


class AssertionKind(Struct, frozen=True):
    """A type of assertion with the keys that it knows. `also` gives the key that another spelling means."""

    type: str
    about: str
    inputs: tuple[FormInput, ...]
    also: Mapping[str, str]


class AssertionForm(Struct, frozen=True):
    """One assertion of a list.

    Attributes:
        type: as it is written, without `not-`; empty where there is none, or no mapping at all.
        values: by key, in its preferred spelling; without that of `members`.
        left_over: keys that mean nothing to the type.
        members: the assertions of a set; None where it has no list of them.
    """

    type: str
    is_negated: bool = False
    values: Mapping[str, FormValue] = {}
    left_over: tuple[str, ...] = ()
    members: "tuple[AssertionForm, ...] | None" = None


class AssertionChange(Struct, frozen=True):
    """One change to a list of assertions.

    Attributes:
        index: which one; None for one that is added at the end.
        within: the set whose list it is about; None for the list itself.
        type: what it is to be, with `not-` where it is negated; None leaves it.
        key: that is to have `value`, which is of `kind`; a value of None takes the key away.
        drop: keys to take away.
        is_removed: whether the whole assertion is to go.
    """

    index: int | None = None
    within: int | None = None
    type: str | None = None
    key: str | None = None
    kind: InputKind = "text"
    value: JsonValue = None
    drop: tuple[str, ...] = ()
    is_removed: bool = False


@cache
def assertion_kinds() -> tuple[AssertionKind, ...]:
    """Return every type of assertion, those that are used most first."""
    schema = config_json_schema()
    definitions = schema["$defs"]
    by_type: dict[str, JsonSchema] = {}
    for branch in definitions["assertion"]["allOf"]:
        by_type |= dict.fromkeys(branch["if"]["properties"]["type"]["enum"], branch["then"])
    others = [name for name in ASSERTION_TYPES if name not in OFTEN_USED]
    return tuple(_kind(name, by_type[name], definitions) for name in (*OFTEN_USED, *others))


@cache
def _kinds_by_type() -> Mapping[str, AssertionKind]:
    return {kind.type: kind for kind in assertion_kinds()}


def _kind(name: str, schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> AssertionKind:
    model = ASSERTION_TYPES[name]
    preferred: dict[str, str] = {}
    also: dict[str, str] = {}
    for spelling, field in spellings(model).items():
        also[spelling] = preferred.setdefault(field, spelling)
    required = _required(schema)
    inputs = [
        FormInput(
            key=key,
            label=_LABELS.get(field, field.replace("_", " ").capitalize()),
            kind=_kind_of_value(model, options) if field == "value" else _kind_of(options),
            hint=str(schema["properties"][key].get("description", "")),
            choices=_choices(options),
            default=default if isinstance(default := model.model_fields[field].default, bool) else None,
            is_first=field in _FIRST or key in required,
            is_required=key in required,
        )
        for field, key in preferred.items()
        if key != "type"
        for options in [list(_options(schema["properties"][key], definitions))]
    ]
    inputs.sort(key=lambda item: _FIRST.index(item.key) if item.key in _FIRST else len(_FIRST))
    about = str(schema["description"]).partition(": ")[2].partition("\n")[0]
    return AssertionKind(name, about[:1].upper() + about[1:], tuple(inputs), also)


def _required(schema: JsonSchema) -> set[str]:
    either = [names for group in schema.get("allOf", ()) for names in group.get("anyOf", ())]
    return {*schema.get("required", ()), *(name for names in either for name in names["required"])}


def _options(schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> Iterator[JsonSchema]:
    """Yield the forms that a value may have, references followed; null is none."""
    name = schema.get("$ref", "").rpartition("/")[2]
    found = definitions[name] if name else schema
    for option in found.get("anyOf", [found]):
        if option is not found:
            yield from _options(option, definitions)
        elif option.get("type") != "null":
            yield option


def _kind_of_value(model: type[Assertion], options: Sequence[JsonSchema]) -> InputKind:
    """Return the kind of `value`, of which the class says more than its schema."""
    kinds: dict[ValueForm | None, InputKind] = {"schema": "yaml", "data": "text", "texts": "texts"}
    return kinds.get(model.value_form) or _kind_of(options)


def _kind_of(options: Sequence[JsonSchema]) -> InputKind:
    if any("enum" in option for option in options):
        return "choice"
    return next((kind for kind in map(_simple_kind, options) if kind is not None), "yaml")


def _choices(options: Sequence[JsonSchema]) -> tuple[str, ...]:
    """Return the words that a value, or each item of it, is one of."""
    listed = [option.get("items", option) for option in options if option.get("items") is not False]
    return tuple(str(word) for option in listed for word in option.get("enum", ()))


def _simple_kind(schema: JsonSchema) -> InputKind | None:
    match schema:
        case {"type": "array", "items": {"$ref": "#/$defs/assertion"}}:
            return "assertions"
        case {"type": "array", "items": {"anyOf": [_, {"properties": {"item": _}}]}}:
            return "checklist"
        case {"type": "array", "items": {"type": "number" | "integer"}}:
            return "numbers"
        case {"type": "array", "items": {"type": "string"}} | {"type": "array", "items": {"enum": _}}:
            return "texts"
        case {"type": "object", "additionalProperties": {"type": "string"}}:
            return "pairs"
        case {"type": "string"}:
            return "text"
        case {} if "type" not in schema:  # anything
            return "text"
        case {"type": "number" | "integer"}:
            return "number"
        case {"type": "boolean"}:
            return "flag"
    return None


def assertion_forms(text: str) -> list[AssertionForm]:
    """Return the assertions of a YAML list; none for an empty text.

    Raises:
        ConfigError: the text is broken, or no list.
    """
    return [_form_with_members(item) for item in read_list(text, "assertions")]


def _form_with_members(item: JsonValue) -> AssertionForm:
    form = _form(item)
    key = next(iter(_member_keys(form.type, item)), "")
    members = item.get(key) if isinstance(item, dict) else None
    if not isinstance(members, list):
        return form
    # A set within a set is refused, so it has no forms: only its own YAML.
    values = {
        name: value for name, value in form.values.items() if name != _kinds_by_type()[form.type].also[key]
    }
    return replace(form, values=values, members=tuple(_form(member) for member in members))


def _member_keys(name: str, item: JsonValue) -> list[str]:
    """Return the keys of an assertion under which it holds others: at most one, where it is sound."""
    kind = _kinds_by_type().get(name)
    if kind is None or not isinstance(item, dict):
        return []
    holding = {entry.key for entry in kind.inputs if entry.kind == "assertions"}
    return [key for key in item if kind.also.get(key) in holding]


def _form(item: JsonValue) -> AssertionForm:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return AssertionForm("")
    written = item["type"]
    name = written.removeprefix(_NOT)
    kind = _kinds_by_type().get(name)
    if kind is None:
        return AssertionForm(name, written != name)
    inputs = {entry.key: entry for entry in kind.inputs}
    values = {
        kind.also[key]: form_value(inputs[kind.also[key]].kind, value)
        for key, value in item.items()
        if key != "type" and key in kind.also
    }
    left_over = tuple(str(key) for key in item if key not in kind.also)
    return AssertionForm(name, written != name, values, left_over)


def changed_assertions(text: str, change: AssertionChange) -> str:
    """Return the YAML of a list of assertions with one change; every other byte of it stays.

    Raises:
        ConfigError: the text, or the YAML of a value, is broken.
        UsageError: there is no such assertion, or its layout does not allow the change.
    """
    items = read_list(text, "assertions")
    if change.within is None:
        return write_list(text, items, _edited(items, change))
    edited = with_item(items, change.within, lambda item: _changed_set(item, change), "assertion")
    return write_list(text, items, edited)


def _changed_set(item: JsonValue, change: AssertionChange) -> TargetValue:
    outer = _mapping(item)
    key = next(iter(_member_keys(str(outer.get("type", "")).removeprefix(_NOT), outer)), "assert")
    members = outer.get(key)
    inner = _edited(members if isinstance(members, list) else [], change)
    return {**outer, key: EditedList(tuple(inner))}


def _edited(items: list[JsonValue], change: AssertionChange) -> list[EditedItem]:
    """Return a list of assertions with a change to one of them."""
    if change.index is None:
        return [*as_written(items), EditedItem(_entries({}, change))]
    if change.is_removed:
        return without_item(items, change.index, "assertion")
    return with_item(items, change.index, lambda item: _entries(_mapping(item), change), "assertion")


def _mapping(item: JsonValue) -> dict[str, JsonValue]:
    if isinstance(item, dict):
        return item
    raise no_form("assertion")


def _entries(entries: Mapping[str, JsonValue], change: AssertionChange) -> JsonValue:
    found = {key: value for key, value in entries.items() if key not in change.drop}
    if change.type is not None:
        found = {"type": change.type, **found, **({"type": change.type} if "type" in found else {})}
    if change.key is None:
        return found
    name = str(found.get("type", "")).removeprefix(_NOT)
    kind = _kinds_by_type().get(name)
    also = {} if kind is None else kind.also
    spelled = next((key for key in found if also.get(key, key) == change.key), change.key)
    value = read_input(change.kind, change.value, found.get(spelled))
    if value is None:
        return {key: entry for key, entry in found.items() if key != spelled}
    return {**found, spelled: value}

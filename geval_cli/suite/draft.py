"""Show a suite as a form, and write the changed form back into the text of the file."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.records import JsonValue
from geval_cli.source.edit.targets import EditedItem, EditedList, TargetValue, Written, plain_value
from geval_cli.source.edit.yaml_edit import EditableText, editable_text
from geval_cli.source.edit.yaml_layout import indented
from geval_cli.source.edit.yaml_style import json_text, same
from geval_cli.source.yaml_source import read_yaml
from geval_cli.suite.draft_fields import (
    BODIES,
    DEFAULT_TEST,
    DEFAULT_TEST_PART,
    ITEM_FIELDS,
    LIST_FIELDS,
    SUITE_FIELDS,
    FieldError,
    FieldKind,
    FieldSpec,
    read_field,
    shown_field,
    shown_value,
)

Fields = Mapping[str, str]

_SHORT = {"prompts": "raw", "providers": "id"}
_MORE = "more"
_TOP_ORDER = ("description", "prompts", "providers", "defaultTest", "default_test", "tests")


class ItemForm(Struct, frozen=True):
    """A prompt, provider or test as its fields show it; not `is_editable` in an unknown form."""

    fields: Fields
    is_editable: bool = True


class SuiteForm(Struct, frozen=True):
    """A suite as an editor shows it. `tests_file` names the file or the address of its tests, which are then not shown.

    `default_test`, what every test has, is a test too: without any key where the file has none.
    """

    fields: Fields
    default_test: ItemForm = ItemForm({})
    prompts: tuple[ItemForm, ...] = ()
    providers: tuple[ItemForm, ...] = ()
    tests: tuple[ItemForm, ...] = ()
    tests_file: str = ""


class ItemDraft(Struct, frozen=True):
    """An item as it is to be. Fields that are not given are as in the item `origin`, or empty when there is none."""

    fields: Fields = field(default_factory=dict)
    origin: int | None = None
    is_copy: bool = False


class SuiteDraft(Struct, frozen=True):
    """A suite as it is to be. Fields that are not given, and parts that are None, stay as they are."""

    fields: Fields = field(default_factory=dict)
    default_test: ItemDraft | None = None
    prompts: tuple[ItemDraft, ...] | None = None
    providers: tuple[ItemDraft, ...] | None = None
    tests: tuple[ItemDraft, ...] | None = None


class FieldProblem(Struct, frozen=True):
    """A field whose text has no valid value. `item` is the list and number of its item; None for the suite's own."""

    item: tuple[str, int] | None
    field: str
    problem: Problem


class ComposedSuite(Struct, frozen=True):
    """The text of the file as a draft has it; a field with a problem is in it as it was before."""

    text: str
    problems: tuple[FieldProblem, ...] = ()


def suite_form(source: EditableText) -> SuiteForm:
    """Return the fields of everything in a config that can be changed in an editor."""
    top = source.value if isinstance(source.value, dict) else {}
    return SuiteForm(
        {spec.name: shown_field(spec, top, source, ()) for spec in SUITE_FIELDS},
        default_test=_default_form(top, source),
        prompts=tuple(_item_forms("prompts", source)),
        providers=tuple(_item_forms("providers", source)),
        tests=tuple(_item_forms("tests", source)),
        tests_file=_place_of_tests(top.get("tests")),
    )


def _place_of_tests(tests: JsonValue) -> str:
    """Return where the tests are that do not stand in the config; empty where they do."""
    if tests is None or isinstance(tests, list):
        return ""
    return tests if isinstance(tests, str) else json_text(tests)


def _default_form(top: Mapping[str, JsonValue], source: EditableText) -> ItemForm:
    key = DEFAULT_TEST.key_in(top)
    value = top.get(key)
    return _item_form(DEFAULT_TEST_PART, {} if value is None else value, source, (key,))


def compose_suite(source: EditableText, draft: SuiteDraft) -> ComposedSuite:
    """Return the text of the file with the changes of a draft; everything else stays as it is written.

    Raises:
        UsageError: the file is laid out so that a change cannot be made in it, or lacks an item that the draft names.
    """
    top = source.value if isinstance(source.value, dict) else {}
    problems: list[FieldProblem] = []
    target: dict[str, TargetValue] = dict(top)
    shown = suite_form(source)
    for spec in SUITE_FIELDS:
        text = draft.fields.get(spec.name)
        if text is not None and text != shown.fields[spec.name]:
            try:
                target = _with_field(target, spec, text, _TOP_ORDER)
            except FieldError as error:
                problems.append(FieldProblem(None, spec.name, error.problem))
    if draft.default_test is not None and shown.default_test.is_editable:
        target = _with_default(target, draft.default_test, shown.default_test, problems)
    for name in LIST_FIELDS:
        items: tuple[ItemDraft, ...] | None = getattr(draft, name)
        is_elsewhere = name == "tests" and shown.tests_file
        if items is not None and not is_elsewhere and (items or top.get(name) is not None):
            target = _with_list(target, name, items, getattr(shown, name), problems)
    return ComposedSuite(source.with_value(target), tuple(problems))


def _items(name: str, top: Mapping[str, JsonValue]) -> tuple[list[JsonValue], bool]:
    """Return the items of a list, and whether they are in one: a single prompt or provider needs no list."""
    value = top.get(name)
    if isinstance(value, list):
        return value, True
    if value is None or name == "tests":
        return [], True
    return [value], False


def _item_forms(name: str, source: EditableText) -> Iterator[ItemForm]:
    top = source.value if isinstance(source.value, dict) else {}
    items, is_list = _items(name, top)
    for index, item in enumerate(items):
        path = (name, index) if is_list else (name,)
        yield _item_form(name, item, source, path)


def _item_form(name: str, item: JsonValue, source: EditableText, path: Sequence[str | int]) -> ItemForm:
    entries = _as_mapping(name, item)
    if entries is None:
        return ItemForm({}, is_editable=False)
    fields = {spec.name: shown_field(spec, entries, source, path) for spec in ITEM_FIELDS[name]}
    if name == "prompts":
        if fields["evaluation_criteria"] and not fields["evaluation_mode"]:
            fields["evaluation_mode"] = "llm"  # criteria without a mode mean it
        body = next((key for key in BODIES if key in entries), "raw")
        at = path if isinstance(item, list) else (*path, body)
        fields["kind"] = body
        fields["body"] = shown_value(_body_kind(body), entries.get(body), source, at)
    rest = {key: value for key, value in entries.items() if key not in _own_keys(name)}
    fields[_MORE] = source.entries(path, tuple(rest)) or shown_value(
        FieldKind.MAPPING, rest or None, source, ("",)
    )
    return ItemForm(fields)


def _as_mapping(name: str, item: JsonValue) -> dict[str, JsonValue] | None:
    """Return an item with its short form written out; None for what is no item at all, as an entry of files."""
    if isinstance(item, dict):
        return None if name == "tests" and "path" in item else item
    if isinstance(item, str) and name in _SHORT:
        return {_SHORT[name]: item}
    if isinstance(item, list) and name == "prompts":
        return {"messages": item}
    return None


def _own_keys(name: str) -> set[str]:
    keys = {key for spec in ITEM_FIELDS[name] for key in spec.spellings}
    return keys | set(BODIES) if name == "prompts" else keys


def _body_kind(body: str) -> FieldKind:
    return FieldKind.LIST if body == "messages" else FieldKind.TEXT


def _with_list(
    target: dict[str, TargetValue],
    name: str,
    drafts: Sequence[ItemDraft],
    forms: Sequence[ItemForm],
    problems: list[FieldProblem],
) -> dict[str, TargetValue]:
    old, is_list = _items(name, {key: plain_value(value) for key, value in target.items() if key == name})
    taken = {draft.origin for draft in drafts if not draft.is_copy}
    edited = []
    for index, draft in enumerate(drafts):
        origin = draft.origin if draft.origin is not None and draft.origin < len(old) else None
        form = ItemForm({}) if origin is None else forms[origin]
        item = None if origin is None else old[origin]
        found = _Item(name, item, form.fields, (name, index), problems)
        value = found.with_fields(draft.fields) if form.is_editable else item
        edited.append(EditedItem(value, origin, draft.is_copy and origin in taken))
    if not is_list and len(edited) == 1 and edited[0].origin == 0:
        return {**target, name: edited[0].value}
    return _placed(target, name, EditedList(tuple(edited)), _TOP_ORDER)


def _with_default(
    target: dict[str, TargetValue], draft: ItemDraft, form: ItemForm, problems: list[FieldProblem]
) -> dict[str, TargetValue]:
    """Return the suite with the changed default test; without the key when nothing is left in it."""
    key = DEFAULT_TEST.key_in(target)
    old = plain_value(target.get(key))
    value = _Item(DEFAULT_TEST_PART, old, form.fields, (DEFAULT_TEST_PART, 0), problems).with_fields(
        draft.fields
    )
    if value is old or (not value and not old):
        return target
    if not value:
        return {name: entry for name, entry in target.items() if name != key}
    return _placed(target, key, value, _TOP_ORDER)


class _Item(Struct, frozen=True):
    """An item of the file (None: a new one), what its fields show, and where its problems go."""

    name: str
    value: JsonValue
    shown: Fields
    at: tuple[str, int]
    problems: list[FieldProblem]

    def with_fields(self, fields: Fields) -> TargetValue:
        changes = {key: text.replace("\r\n", "\n") for key, text in fields.items()}
        changes = {key: text for key, text in changes.items() if text != self.shown.get(key, "")}
        if not changes and self.value is not None:
            return self.value
        entries: dict[str, TargetValue] = dict(_as_mapping(self.name, self.value) or {})
        if self.name == "prompts":
            entries = self._with_body(entries, changes)
        order = _order(self.name)
        for spec in ITEM_FIELDS[self.name]:
            if spec.name in changes:
                entries = self._tried(entries, spec, changes[spec.name], order)
        if _MORE in changes:
            entries = self._with_more(entries, changes[_MORE])
        return self._shortest(entries)

    def _tried(
        self, entries: dict[str, TargetValue], spec: FieldSpec, text: str, order: Sequence[str]
    ) -> dict[str, TargetValue]:
        try:
            return _with_field(entries, spec, text, order)
        except FieldError as error:
            self.problems.append(FieldProblem(self.at, spec.name, error.problem))
            return entries

    def _with_body(self, entries: dict[str, TargetValue], changes: Fields) -> dict[str, TargetValue]:
        before = next((key for key in BODIES if key in entries), None)
        kind = changes.get("kind") or self.shown.get("kind") or "raw"
        if before is not None and not {"kind", "body"} & set(changes):
            return entries
        text = changes.get("body", self.shown.get("body", ""))
        try:
            body = text if kind != "messages" else _read_messages(text, entries.get(before or ""))
        except FieldError as error:
            self.problems.append(FieldProblem(self.at, "body", error.problem))
            return entries
        if before is None:
            return _placed(entries, kind, body, _order(self.name))
        return {
            kind if key == before else key: body if key == before else value for key, value in entries.items()
        }

    def _with_more(self, entries: dict[str, TargetValue], text: str) -> dict[str, TargetValue]:
        own = _own_keys(self.name)
        try:
            found = _read_more(text, self.shown.get(_MORE, ""), entries)
        except FieldError as error:
            self.problems.append(FieldProblem(self.at, _MORE, error.problem))
            return entries
        stray = next((key for key in found if key in own), None)
        if stray is not None:
            problem = Problem(f"`{stray}` has a field of its own", None, "write it there")
            self.problems.append(FieldProblem(self.at, _MORE, problem))
            return entries
        kept = {key: value for key, value in entries.items() if key in own or key in found}
        return {**kept, **found}

    def _shortest(self, entries: dict[str, TargetValue]) -> TargetValue:
        """Return the short form, where the item had it or is new and needs no other."""
        short = _SHORT.get(self.name, "")
        if not isinstance(self.value, dict) and set(entries) == {short}:
            return entries[short]
        if isinstance(self.value, list) and set(entries) == {"messages"}:
            return entries["messages"]
        return entries


def _read_more(text: str, shown: str, old: Mapping[str, TargetValue]) -> dict[str, TargetValue]:
    """Return the other keys of an item; a collection whose lines changed goes in as it is written, comments too."""
    if not text.strip():
        return {}
    found = plain_value(read_field(FieldKind.MAPPING, text, None))
    if not isinstance(found, dict):  # a reference to a file
        problem = Problem(
            "this must be a mapping: `name: value` lines", None, "write one `name: value` a line"
        )
        raise FieldError(problem)
    try:
        now, before = editable_text(text, ""), editable_text(shown or "{}", "")
    except (ConfigError, UsageError):
        return dict(found)
    return {key: _as_written(key, value, now, before, old) for key, value in found.items()}


def _as_written(
    key: str, value: JsonValue, now: EditableText, before: EditableText, old: Mapping[str, TargetValue]
) -> TargetValue:
    if key not in old:
        entry = now.entries((), (key,))
        return (
            value
            if entry is None or not _can_move(entry, key, value)
            else Written(value, entry, has_key=True)
        )
    lines = now.source(key)
    if lines is not None:
        is_same = lines == before.source(key) and same(value, plain_value(old.get(key)))
        return value if is_same else Written(value, lines)
    entry, shown = now.entries((), (key,)), before.entries((), (key,))
    if entry is None or shown is None or entry == shown or "\n" in entry + shown or "#" not in entry:
        return value  # the comment that is behind it in the file stays
    return Written(value, entry, has_key=True)  # one line, with the comment behind it


def _can_move(entry: str, key: str, value: JsonValue) -> bool:
    """Return whether the lines of a key mean the same further to the right, as lines within quotes may not."""
    try:
        return same(read_yaml(f"in:\n{indented(entry, 2, first=True)}\n", "").value, {"in": {key: value}})
    except ConfigError:
        return False


def _read_messages(text: str, old: TargetValue) -> TargetValue:
    if not text.strip():
        return []
    return read_field(FieldKind.LIST, text, plain_value(old))


def _order(name: str) -> tuple[str, ...]:
    names = [spec.name for spec in ITEM_FIELDS[name]]
    if name == "prompts":
        names[2:2] = BODIES
    return tuple(names)


def _with_field(
    entries: dict[str, TargetValue], spec: FieldSpec, text: str, order: Sequence[str]
) -> dict[str, TargetValue]:
    """Return the mapping with the field's key set to the value of `text`; without the key when that is empty."""
    key = spec.key_in(entries)
    if not text.strip():
        return {name: value for name, value in entries.items() if name != key}
    return _placed(entries, key, read_field(spec.kind, text, plain_value(entries.get(key))), order)


def _placed(
    entries: dict[str, TargetValue], key: str, value: TargetValue, order: Sequence[str]
) -> dict[str, TargetValue]:
    """Return the mapping with `key`; a new key comes behind the last of those that are before it in `order`."""
    if key in entries or key not in order:
        return {**entries, key: value}
    earlier = order[: order.index(key)]
    after = [name for name in entries if name in earlier]
    if not after and not any(name in order for name in entries):
        return {**entries, key: value}
    placed: dict[str, TargetValue] = {} if after else {key: value}
    for name, entry in entries.items():
        placed[name] = entry
        if after and name == after[-1]:
            placed[key] = value
    return placed

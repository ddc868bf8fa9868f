"""The tests of a suite: reading one with its turns and its trace, merging it with `defaultTest`, iterating over all."""

import json
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import structs

from geval_cli.assertions.base import MergedTest
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.json_codec import data_in
from geval_cli.judge.source import ASSISTANT, USER
from geval_cli.plugins import extra
from geval_cli.records import TEST_TEXTS, JsonValue, TraceStep, Turn
from geval_cli.source.files import is_file_reference
from geval_cli.source.media import (
    DATA_URL_EXAMPLES,
    EXAMPLES,
    FORMATS,
    MEDIA_FIELDS,
    is_marker,
    named_kind,
    names_media,
)
from geval_cli.source.problems import sort_problems
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import TestOptionsSpec, TraceStepSpec, TurnSpec, describe_value
from geval_cli.suite.assertions import read_assertions, read_json_schema, read_provider, read_test_options
from geval_cli.suite.schema import SimulationSpec, TestSpec
from geval_cli.suite.test_files import RowSource
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields, read_spec

_TWO_FORMS = "use either `role` and `content` in all of them, or only `user`"
_ENDS = ("end with a user or tool turn for the model to answer, or with an assistant turn to judge",)


def read_turns(fields: Fields, reading: LoadContext) -> None:
    """Replace the written turns of a test by their specs, or drop them with a problem for each mistake."""
    if "turns" not in fields.values:
        return
    value = fields.values["turns"]
    place = fields.child("turns")
    if isinstance(value, dict) and "simulate" in value:
        extra("simulated users").read_simulation(fields, reading)
        if "turns" in fields.values and "output" in fields.values:
            _check_output(fields.values["turns"], "", fields.place, reading)
        return
    before = reading.errors
    turns = _read_list(value, place, reading)
    if turns is not None and reading.errors == before:
        _check_whole(turns, fields, place, reading)
    if turns is None or reading.errors > before:
        drop_faulty_turns(fields)
    else:
        fields.values["turns"] = turns


def drop_faulty_turns(fields: Fields) -> None:
    """Drop turns that are already reported as wrong, and give prompts an empty `input`, so that they do not miss it."""
    fields.drop("turns")
    fields.values.setdefault("input", "")


def read_trace(fields: Fields, reading: LoadContext) -> None:
    """Replace the written steps of a trace by their specs, or drop them with a problem for each mistake."""
    if "trace" not in fields.values:
        return
    value = fields.values.pop("trace")
    place = fields.child("trace")
    if not isinstance(value, list | tuple):
        hint = "for example [{name: search, args: {query: tea}}]"
        reading.report(f"`trace` must be a list of steps, found {describe_value(value)}", place.value(), hint)
        return
    steps = []
    for index, item in enumerate(value):
        # An empty error means no error.
        if isinstance(item, dict):
            known = {
                key: part
                for key, part in item.items()
                if part is not None and not (key == "error" and part == "")
            }
        else:
            known = item
        steps.append(read_spec(TraceStepSpec, known, place.child(index), "a step of a trace", reading))
    if None not in steps:
        fields.values["trace"] = tuple(steps)


def trace_of_spec(written: Sequence[TraceStepSpec] | None) -> tuple[TraceStep, ...] | None:
    """Return the steps of a trace as records; None where there is none."""
    if written is None:
        return None
    return tuple(
        TraceStep(step.type, step.name, data_in(step.args), step.output, step.error, step.ms)
        for step in written
    )


def turns_of(written: Sequence[TurnSpec] | SimulationSpec | None) -> tuple[Turn, ...]:
    """Return turns as records; none for a simulated user."""
    if isinstance(written, SimulationSpec):
        return ()
    return tuple(
        Turn(USER, item.user)
        if item.user is not None
        else Turn(item.role or USER, item.content or "", item.tool_calls, item.tool_call_id)
        for item in written or ()
    )


def are_user_turns(written: Sequence[TurnSpec] | SimulationSpec | None) -> bool:
    """Return whether the turns are what the user will say."""
    if isinstance(written, SimulationSpec):
        return True
    return bool(written) and all(item.user is not None for item in written or ())


def output_of(last: Turn) -> str:
    """Return the output in an assistant's last turn: its text, else its tool calls as JSON."""
    if last.content or not last.tool_calls:
        return last.content
    return json.dumps([dict(call) for call in last.tool_calls], ensure_ascii=False, default=str)


def _read_list(value: JsonValue, place: SourcePath, reading: LoadContext) -> tuple[TurnSpec, ...] | None:
    if not isinstance(value, list | tuple) or not value:
        found = "an empty list" if isinstance(value, list | tuple) else describe_value(value)
        hint = "for example [{user: Hello}, {user: And on Sundays?}]"
        reading.report(f"`turns` must be a list of turns, found {found}", place.value(), hint)
        return None
    turns = []
    for index, item in enumerate(value):
        at = place.child(index)
        # APIs write null for the content of a turn that only calls tools.
        known = read_fields(TurnSpec, item, at, "a turn", reading, nullable=("content",))
        turn = None if known is None else build_spec(TurnSpec, known, reading)
        if turn is not None:
            turns.append(turn)
            _check_turn(turn, index + 1, at, reading)
    return tuple(turns)


def _check_turn(turn: TurnSpec, number: int, place: SourcePath, reading: LoadContext) -> None:
    if turn.user is not None:
        for name in ("role", "content", "tool_calls", "tool_call_id"):
            if getattr(turn, name):
                reading.report(f"turn {number} has `user` and `{name}`", place.key(name), _TWO_FORMS)
                return
        if not turn.user.strip():
            reading.report(
                f"the user's text in turn {number} is empty", place.value("user"), "write what is said"
            )
        return
    if turn.role is None:
        reading.report(f"turn {number} does not say who speaks", place.value(), _TWO_FORMS)
    elif turn.tool_calls and turn.role != ASSISTANT:
        hint = "only an assistant can call tools"
        reading.report(
            f"turn {number} has the role {turn.role} but also `tool_calls`", place.key("tool_calls"), hint
        )
    elif turn.content is None and not turn.tool_calls:
        reading.report(f"turn {number} has no `content`", place.value(), "write what was said")
    for index, call in enumerate(turn.tool_calls):
        # APIs write the name in a mapping, beside the id and the type of the call.
        parts = [call, *(part for part in call.values() if isinstance(part, Mapping))]
        names = [part.get("name") for part in parts]
        names_tool = any(isinstance(name, str) and name.strip() for name in names)
        if not names_tool:
            at = place.child("tool_calls", index).value()
            hint = "write {name, args}, or the call as a chat API writes it"
            reading.report(f"a call in turn {number} has no tool name", at, hint)


def _check_whole(turns: Sequence[TurnSpec], fields: Fields, place: SourcePath, reading: LoadContext) -> None:
    """Check the turns of a test as a whole."""
    played = [turn.user is not None for turn in turns]
    if any(played) and not all(played):
        at = place.child(played.index(not played[0])).value()
        reading.report("`turns` mixes recorded turns with `user` turns to play", at, _TWO_FORMS)
        return
    last = turns[-1]
    if not all(played) and last.role in {"system", "developer"}:
        reading.report(
            f"the last turn has the role {last.role}, so nothing is sent",
            place.child(len(turns) - 1).value("role"),
            notes=_ENDS,
        )
    if "output" in fields.values:
        _check_output(turns, "", fields.place, reading)


def check_output_of_test(test: TestSpec, default: TestSpec | None, reading: LoadContext) -> None:
    """Report the `output` of a test whose turns, inherited from `defaultTest`, rule out an output."""
    is_own = "output" in test.model_fields_set and "turns" not in test.model_fields_set
    if is_own and default is not None and default.turns:
        _check_output(default.turns, " of defaultTest", test.place, reading)


def _check_output(
    turns: Sequence[TurnSpec] | SimulationSpec, whose: str, place: SourcePath, reading: LoadContext
) -> None:
    if isinstance(turns, SimulationSpec) or are_user_turns(turns) or turns[-1].role == ASSISTANT:
        why = (
            "answers come from the model"
            if are_user_turns(turns)
            else "leave it out: the assistant's last turn is the output"
        )
        reading.report(f"a test with these `turns`{whose} cannot have an `output`", place.key("output"), why)


_PICKED = (*TEST_TEXTS, "description", "threshold", "evaluation_schema", "evaluation_parsing", "tools")
"""Fields that a test takes as a whole from defaultTest if it does not have them itself."""
# Without validation, so that the validators of parts that a config does not have are never built.
_NO_OPTIONS = TestOptionsSpec.model_construct()
NO_DEFAULT = TestSpec.model_construct(options=_NO_OPTIONS)


def read_test(value: JsonValue, place: SourcePath, what: str, reading: LoadContext) -> TestSpec | None:
    """Return one test with its files loaded, and report each mistake in it.

    A test with mistakes is returned without the wrong parts, so that the rest of it can be checked too; None if nothing
    sensible is left. The caller that collects the problems must make sure that such a test never runs.

    Args:
        value: the test as in the file, with env values filled in.
        place: its place.
        what: its name in messages: "a test" or "defaultTest".
        reading: collects the problems.
    """
    if is_file_reference(value):
        message = "a single test cannot be a file"
        hint = "use `tests: file://...` to load all tests from one file"
        if what == "defaultTest":
            message = "defaultTest cannot be a file"
            hint = "write it in the config; with `dialect: promptfoo`, it can be one"
        reading.report(message, place.value(), hint)
        return None
    fields = read_fields(TestSpec, value, place, what, reading, nullable=("evaluation_schema",))
    if fields is None:
        return None
    _load_texts(fields, reading)
    read_turns(fields, reading)
    read_trace(fields, reading)
    read_json_schema("evaluation_schema", fields, reading)
    if "tools" in fields.values:
        found = extra("tools of a config").read_tools(fields.values["tools"], fields.child("tools"), reading)
        fields.values["tools"] = found
    if "assertions" in fields.values:
        written = fields.values["assertions"]
        written = list(written) if isinstance(written, tuple) else written
        fields.values["assertions"] = read_assertions(written, fields.child("assertions"), reading)
    if "options" in fields.values:
        options = read_test_options(fields.values["options"], fields.child("options"), reading)
        fields.values["options"] = options or _NO_OPTIONS
    elif "options" not in fields.written:
        fields.values["options"] = _NO_OPTIONS
    if "provider" in fields.values:
        _read_answerer(fields, what, reading)
    spec = build_spec(TestSpec, fields, reading)
    if "vars" in fields.written and not isinstance(fields.values.get("vars"), dict):
        return (
            None  # otherwise every variable would be reported as missing, although there is only one mistake
        )
    return spec


def merge_test(
    index: int, test: TestSpec, default: TestSpec | None, overrides: Mapping[str, JsonValue]
) -> MergedTest:
    """Return the test case made of the test and `defaultTest`; `overrides` are vars that take precedence over both.

    The test's own values come before those of the default; but assertions of the default come first, and vars and
    metadata are merged key by key.
    """
    below = default or NO_DEFAULT
    own = test.model_fields_set
    given = below.model_fields_set | test.model_fields_set

    def pick(name: str) -> JsonValue:
        return getattr(test if name in own else below, name)

    written = pick("turns")
    user = None
    if isinstance(written, SimulationSpec):
        user = extra("simulated users").merged_user(written, below.turns)
    turns = turns_of(written)
    plays = are_user_turns(written)
    answer = output_of(turns[-1]) if turns and not plays and turns[-1].role == ASSISTANT else None
    return MergedTest(
        index=index,
        place=test.place,
        vars={**below.vars, **test.vars, **overrides},
        has_output="output" in given or answer is not None,
        output=pick("output") if answer is None else answer,
        images=pick("images") or (),
        audio=pick("audio") or (),
        assertions=(*below.assertions, *test.assertions),
        provider=test.provider,
        options=test.options,
        default_options=below.options,
        metadata={**below.metadata, **test.metadata},
        schema_place=_schema_place(test, below),
        turns=turns,
        plays_turns=plays,
        trace=trace_of_spec(pick("trace")),
        user=user,
        **{name: pick(name) for name in _PICKED},
    )


def _read_answerer(fields: Fields, what: str, reading: LoadContext) -> None:
    place = fields.child("provider")
    answerer = None
    if what == "defaultTest":
        hint = "put models under `providers`, and the judge under `options` of defaultTest"
        reading.report("`provider` of defaultTest is ambiguous", fields.place.key("provider"), hint)
    else:
        answerer = read_provider(fields.values["provider"], place, reading)
    if answerer is None:
        fields.drop("provider")
    else:
        fields.values["provider"] = answerer


def _schema_place(test: TestSpec, below: TestSpec) -> SourcePath:
    owner = next((spec for spec in (test, below) if "evaluation_schema" in spec.model_fields_set), None)
    return test.place if owner is None else owner.place.child("evaluation_schema")


def _load_texts(fields: Fields, reading: LoadContext) -> None:
    """Replace the names of files by their texts, in the test's own fields and in the values of `vars`.

    Images and audio are replaced by their markers.
    """
    for name, kind in MEDIA_FIELDS.items():
        if isinstance(fields.values.get(name), str):
            fields.values[name] = (fields.values[name],)
        written = fields.values.get(name)
        place = fields.child(name)
        if not isinstance(written, tuple):
            continue
        found = []
        for index, item in enumerate(written):
            location = place.value(index) or place.value()
            if named_kind(item) == kind:
                found.append(reading.media(item, location))
            else:
                reading.report(*_no_media(item, kind, location))
                found.append(None)
        fields.values[name] = tuple(item for item in found if item is not None)
    if reading.is_built:  # a model's stored answer may begin with file://
        return
    for name in ("output", *TEST_TEXTS):
        if name in fields.values:
            _load_field(name, fields, reading)
    variables = fields.values.get("vars")
    if isinstance(variables, dict) and any(map(_names_content, variables.values())):
        at = fields.child("vars")
        fields.values["vars"] = {
            key: _content(entry, at.child(key), reading) for key, entry in variables.items()
        }


def _names_content(value: JsonValue) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_names_content, value))
    return is_file_reference(value) or names_media(value) or is_marker(value)


def _content(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    """Return a value of a test: the text of the file or the marker of the media that it names, or the value itself.

    In lists, this is done for each item.
    """
    if isinstance(value, list | tuple):
        return type(value)(
            _content(item, place.child(index), reading) if _names_content(item) else item
            for index, item in enumerate(value)
        )
    if reading.rules.marks_images and (names_media(value) or is_marker(value)):
        return reading.media(value, place.value())
    return reading.text(value, place.value)


def _no_media(item: JsonValue, kind: str, location: Location | None) -> tuple[str, Location | None, str]:
    what = "an image" if kind == "image" else "audio"
    if not isinstance(item, str):
        return f"{what} must be text, found {describe_value(item)}", location, f"for example {EXAMPLES[kind]}"
    if item.lower().startswith(("http://", "https://")):
        message = f"{'images are' if kind == 'image' else 'audio is'} not fetched from URLs"
        return message, location, f"save the file and name it: {EXAMPLES[kind]}"
    shown = item if len(item) <= _SHOWN else f"{item[:_SHOWN]}..."
    other = named_kind(item)
    if other:
        return (
            f"`{shown}` is not {what}",
            location,
            f"put it under `{'images' if other == 'image' else 'audio'}`",
        )
    hint = f"{FORMATS[kind]}: {EXAMPLES[kind]}, or {DATA_URL_EXAMPLES[kind]}"
    return f"`{shown}` is not {what}", location, hint


def _load_field(name: str, fields: Fields, reading: LoadContext) -> None:
    value = fields.values[name]
    if not _names_content(value):
        return
    fields.values[name] = content = _content(value, fields.child(name), reading)
    pairs = zip(content, value, strict=True) if isinstance(value, tuple) else [(content, value)]
    if any(text is None and item is not None for text, item in pairs):
        fields.drop(name)


PROFILE = "profile"
_SHOWN = 80

MAX_PROBLEMS = 1000
"""How many problems one pass collects before it gives up: more are of no use, and memory stays flat."""

Profiles = tuple[str | Mapping[str, JsonValue], ...]
"""Users that a model can play, each given by a text or by traits."""


def profiled(test: MergedTest, profiles: Profiles | None) -> Iterator[MergedTest]:
    """Yield a test with a simulated user once for each profile, which becomes the variable `profile`."""
    assert test.user is not None
    is_multiplied = test.user.profile is None and bool(profiles)
    for number, profile in enumerate(profiles if is_multiplied and profiles else (test.user.profile,)):
        name = test.description
        if is_multiplied:
            text = str(profile)
            if isinstance(profile, Mapping):
                named = profile.get("name")
                text = (
                    str(named) if named else ", ".join(f"{name} {value}" for name, value in profile.items())
                )
            short = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            name = f"{name} ({short})" if name else short
        yield structs.replace(
            test,
            index=test.index + number,
            description=name,
            vars=test.vars if profile is None else {PROFILE: profile, **test.vars},
            user=structs.replace(test.user, profile=profile),
        )


class SuiteTests(msgspec.Struct, frozen=True):
    """The tests of a suite; each pass yields equal tests.

    If they take little memory, they are kept after the first complete pass; otherwise, each pass reads the rows again.
    `default` is None if there is no defaultTest, or if it has problems of its own. A test with a simulated user becomes
    one test for each of the `profiles`, unless it has its own. `warnings` are those of the passes so far; they stop no
    pass.
    """

    source: RowSource
    reading: LoadContext
    default: TestSpec | None
    overrides: Mapping[str, JsonValue]
    profiles: Profiles | None = None
    profiles_place: SourcePath = msgspec.field(default_factory=SourcePath.nowhere)
    warnings: dict[tuple[str, int], Problem] = msgspec.field(default_factory=dict)
    _kept: list[MergedTest] = msgspec.field(default_factory=list)

    def __iter__(self) -> Iterator[MergedTest]:
        if self._kept:
            yield from self._kept
            return
        first: list[MergedTest] = []
        is_kept = self.source.is_small
        added = 0
        for index, spec in self.specs():
            test = merge_test(index + added, spec, self.default, self.overrides)
            for each in (test,) if test.user is None else profiled(test, self.profiles):
                added = each.index - index
                if is_kept:
                    first.append(each)
                yield each
        if not self._kept:
            self._kept.extend(first)

    def specs(self) -> Iterator[tuple[int, TestSpec]]:
        """Yield every test as written, with its number; raises like iterating over the test cases."""
        reading = self.reading.with_problems([])
        for index, (value, place) in enumerate(self.source.rows(reading)):
            spec = read_test(value, place, "a test", reading)
            if spec is not None:
                check_output_of_test(spec, self.default, reading)
                yield index, spec
            reading.hold_back_warnings(self.warnings)
            if reading.errors >= MAX_PROBLEMS:
                reading.report(
                    f"more than {MAX_PROBLEMS:,} problems: nothing after tests[{index}] is checked", None
                )
                break
        if reading.problems:
            raise ConfigError(sort_problems(map(reading.env.hide, reading.problems)))

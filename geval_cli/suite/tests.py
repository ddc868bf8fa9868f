"""The tests of a suite: reading one, merging it with `defaultTest`, and going through all of them."""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import structs

from geval_cli.assertions.base import MergedTest
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.judge.conversation import ASSISTANT
from geval_cli.plugins import extra
from geval_cli.records import JsonValue
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
from geval_cli.specs.base import TestOptionsSpec
from geval_cli.specs.type_messages import describe_value
from geval_cli.suite.assertions import read_assertions, read_json_schema, read_test_options
from geval_cli.suite.providers import read_provider
from geval_cli.suite.schema import SimulationSpec, TestSpec
from geval_cli.suite.test_files import RowSource
from geval_cli.suite.turns import (
    are_played,
    check_output_of_test,
    output_of,
    read_trace,
    read_turns,
    trace_of_spec,
    turns_of,
)
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields

_TEXT_FIELDS = (
    "input", "output", "expected_output", "context", "retrieval_context", "scenario", "expected_outcome", "role",
)  # fmt: skip
# Without validation, so that the validators of what a config does not have are never built.
_NO_OPTIONS = TestOptionsSpec.model_construct()
NO_DEFAULT = TestSpec.model_construct(options=_NO_OPTIONS)


def read_test(value: JsonValue, place: SourcePath, what: str, reading: LoadContext) -> TestSpec | None:
    """Return one test, its files loaded, with a problem for each mistake in it.

    A test with mistakes comes without the parts that are wrong, so that the rest of it can be checked too; None when
    nothing sensible is left. Whoever collects the problems sees to it that such a test is never run.

    Args:
        value: as it is in the file, env values filled in.
        place: where.
        what: how messages call it: "a test" or "defaultTest".
        reading: takes the problems.
    """
    if is_file_reference(value):
        hint = "use `tests: file://...` to load all tests from one file"
        reading.report("a single test cannot be a file", place.value(), hint)
        return None
    fields = read_fields(TestSpec, value, place, what, reading, nullable=("output", "evaluation_schema"))
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
        return None  # every variable would be missed where there is only one mistake
    return spec


def merge_test(
    index: int, test: TestSpec, default: TestSpec | None, overrides: Mapping[str, JsonValue]
) -> MergedTest:
    """Return the test case of the test, then of `defaultTest`; `overrides` are vars that win over both.

    Assertions of the default come first; vars and metadata are merged key by key.
    """
    below = default or NO_DEFAULT
    own, given = test.model_fields_set, below.model_fields_set | test.model_fields_set

    def pick(name: str) -> JsonValue:
        return getattr(test if name in own else below, name)

    written = pick("turns")
    user = None
    if isinstance(written, SimulationSpec):
        user = extra("simulated users").merged_user(written, below.turns)
    turns, plays = turns_of(written), are_played(written)
    answer = output_of(turns[-1]) if turns and not plays and turns[-1].role == ASSISTANT else None
    return MergedTest(
        index=index,
        place=test.place,
        description=pick("description"),
        vars={**below.vars, **test.vars, **overrides},
        input=pick("input"),
        has_output="output" in given or answer is not None,
        output=pick("output") if answer is None else answer,
        expected_output=pick("expected_output"),
        context=pick("context"),
        retrieval_context=pick("retrieval_context"),
        images=pick("images") or (),
        audio=pick("audio") or (),
        assertions=(*below.assertions, *test.assertions),
        threshold=pick("threshold"),
        provider=test.provider,
        options=test.options,
        default_options=below.options,
        metadata={**below.metadata, **test.metadata},
        evaluation_schema=pick("evaluation_schema"),
        evaluation_parsing=pick("evaluation_parsing"),
        schema_place=_schema_place(test, below),
        turns=turns,
        plays_turns=plays,
        scenario=pick("scenario"),
        expected_outcome=pick("expected_outcome"),
        role=pick("role"),
        trace=trace_of_spec(pick("trace")),
        tools=pick("tools"),
        user=user,
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
    """Put the texts of files in the place of their names: in the test's own fields, and in the values of `vars`.

    Images and audio are put there as their markers.
    """
    for name, kind in MEDIA_FIELDS.items():
        if isinstance(fields.values.get(name), str):
            fields.values[name] = (fields.values[name],)
        _load_media(name, kind, fields, reading)
    if reading.is_built:  # a model's stored answer may begin with file://
        return
    for name in _TEXT_FIELDS:
        if name in fields.values:
            _load_field(name, fields, reading)
    variables = fields.values.get("vars")
    if isinstance(variables, dict) and any(map(_names_content, variables.values())):
        at = fields.child("vars")
        fields.values["vars"] = {
            key: _content(entry, at.value(key), reading) for key, entry in variables.items()
        }


def _names_content(value: JsonValue) -> bool:
    return is_file_reference(value) or names_media(value) or is_marker(value)


def _content(value: JsonValue, location: Location | None, reading: LoadContext) -> JsonValue:
    """Return a text of a test: of the file that it names, the marker of the image or audio that it names, or itself."""
    if reading.rules.marks_images and (names_media(value) or is_marker(value)):
        return reading.media(value, location)
    return reading.text(value, lambda: location)


def _load_media(name: str, kind: str, fields: Fields, reading: LoadContext) -> None:
    written, place = fields.values.get(name), fields.child(name)
    if not isinstance(written, tuple):
        return
    found = []
    for index, item in enumerate(written):
        location = place.value(index) or place.value()
        if named_kind(item) == kind:
            found.append(reading.media(item, location))
        else:
            reading.report(*_no_media(item, kind, location))
            found.append(None)
    fields.values[name] = tuple(item for item in found if item is not None)


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
    value, place = fields.values[name], fields.child(name)
    if isinstance(value, tuple):
        fields.values[name] = tuple(
            _content(item, place.value(index), reading) if _names_content(item) else item
            for index, item in enumerate(value)
        )
        if any(
            text is None and item is not None for text, item in zip(fields.values[name], value, strict=True)
        ):
            fields.drop(name)
    elif _names_content(value):
        text = _content(value, place.value(), reading)
        if text is None:
            fields.drop(name)
        else:
            fields.values[name] = text


PROFILE = "profile"
_SHOWN = 80

MAX_PROBLEMS = 1000
"""How many problems one pass collects before it gives up: nobody reads more, and memory stays flat."""

Profiles = tuple[str | Mapping[str, JsonValue], ...]
"""Users whom a model can play, each by a text or by traits."""


def profiled(test: MergedTest, profiles: Profiles | None) -> Iterator[MergedTest]:
    """Yield a test with a simulated user once for each profile, which it shows as the variable `profile`."""
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

    So many as take little memory are kept from the first whole pass on; of more, each pass reads the rows anew.
    `default` is None when there is no defaultTest, or when it has problems of its own. A test whose user is simulated
    is one test for each of the `profiles`, unless it has its own. `warnings` are those of the passes so far, the first
    of each kind; they stop no pass.
    """

    source: RowSource
    reading: LoadContext
    default: TestSpec | None
    overrides: Mapping[str, JsonValue]
    profiles: Profiles | None = None
    profiles_place: SourcePath = msgspec.field(default_factory=SourcePath.nowhere)
    warnings: list[Problem] = msgspec.field(default_factory=list)
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
        """Yield every test as it is written, with its number; raises as iterating over the test cases does."""
        reading = self.reading.with_problems([])
        for index, (value, place) in enumerate(self.source.rows(reading)):
            spec = read_test(value, place, "a test", reading)
            if spec is not None:
                check_output_of_test(spec, self.default, reading)
                yield index, spec
            self._put_warnings_aside(reading)
            if len(reading.problems) >= MAX_PROBLEMS:
                reading.report(
                    f"more than {MAX_PROBLEMS:,} problems: nothing after tests[{index}] is checked", None
                )
                break
        if reading.problems:
            raise ConfigError(sort_problems(map(reading.env.hide, reading.problems)))

    def _put_warnings_aside(self, reading: LoadContext) -> None:
        found = [problem for problem in reading.problems if problem.severity is Severity.WARNING]
        for problem in found:
            reading.problems.remove(problem)
            if all(known.message != problem.message for known in self.warnings):
                self.warnings.append(reading.env.hide(problem))

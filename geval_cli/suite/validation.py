"""From the keys of a mapping to a spec: unknown, duplicate, missing and mistyped keys are reported in plain words."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field, structs
from pydantic import ValidationError

from geval_cli.assertions.base import Calibrations
from geval_cli.assertions.geval import GEvalAssertion
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.records import JsonValue
from geval_cli.source.env import EnvValues
from geval_cli.source.files import SourceFiles, is_bare_path, is_file_reference
from geval_cli.source.media import ConfigMedia
from geval_cli.source.problems import did_you_mean, listing
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import (
    ProviderSpec,
    Spec,
    TestOptionsSpec,
    annotation_at,
    describe_value,
    expected_text,
    mismatch_hint,
    spellings,
    tuple_fields,
)
from geval_cli.specs.dialect import DEFAULT_RULES, DialectRules
from geval_cli.suite.schema import SimulatedUserSpec, SimulationSpec, SuiteSpec, TestSpec


class ScriptCaller(Protocol):
    """A caller of functions in a user's file while a config is read. Equal calls are made once."""

    def __call__(
        self, path: Path, function: str, arguments: list[JsonValue], asked_at: Location | None
    ) -> JsonValue:
        """Call the function and return its result.

        Args:
            path: the Python file.
            function: its name.
            arguments: the function gets as many of them as it takes.
            asked_at: where the config names the file.

        Raises:
            ConfigError: with one problem, placed at `asked_at`: the function failed, or took too long.
        """
        ...

    def provider_name(
        self, path: Path, export: str, options: Mapping[str, JsonValue], asked_at: Location | None
    ) -> JsonValue:
        """Return the result of a JavaScript provider's `id()`; None for a function.

        Raises:
            ConfigError: as above.
        """
        ...

    def rows(self, path: Path, function: str, asked_at: Location | None) -> Path:
        """Have a Python function make the rows of tests, and return a JSON Lines file of them.

        The function returns or yields mappings, which are never all held in memory. The file lives as long as this
        object.

        Raises:
            ConfigError: as above, and also if a row is not JSON.
        """
        ...


class FetchedSource(Struct, frozen=True):
    """A local copy of test data from elsewhere: its path, and the SHA-256 of its content in hexadecimal."""

    path: Path
    sha256: str


class SourceFetcher(Protocol):
    """A fetcher of test data that a config names by an address. Equal addresses are fetched once."""

    def __call__(
        self, reference: str, environ: Mapping[str, str], asked_at: Location | None
    ) -> FetchedSource:
        """Fetch the data and return where the copy is.

        Args:
            reference: an address: https://, s3:// or huggingface://datasets/.
            environ: the config's environment, with the token for private data sets.
            asked_at: where the config names the address.

        Raises:
            ConfigError: with one problem, placed at `asked_at`: it cannot be fetched.
        """
        ...


SpecT = TypeVar("SpecT", bound=Spec)

_OF_PROVIDERS = frozenset(
    {"model", "temperature", "max_tokens", "maxTokens", "base_url", "apiKey", "api_key_env"}
)

_MEANT = {"expected": "expected_output"}
"""Keys with which several others begin, and the one that people mean."""

_CALLED_HERE = {
    **dict.fromkeys(("models", "targets", "target"), "call it `providers`"),
    **dict.fromkeys(
        ("judge", "judges", "grader", "evaluator", "judge_model"),
        "name the judge with `defaultTest: {options: {provider: ...}}`",
    ),
    **dict.fromkeys(("cases", "test_cases", "testCases", "dataset", "data", "examples"), "call it `tests`"),
    **dict.fromkeys(
        ("assertions", "asserts", "metrics", "evaluators", "scorers", "criteria"),
        "write assertions with `defaultTest: {assert: [...]}`",
    ),
}
"""Keys of a config under the names that other tools have for them, with hints."""

_STRAY_HINTS: dict[type[Spec], str] = {ProviderSpec: "put model settings under `config`"}


_MOST_ALIKE = 10


class LoadContext(Struct, frozen=True):
    """The state shared by the readers of a config's parts: the problems so far, its files, its environment values.

    Without `scripts`, whatever a program would make is refused; without `fetch`, so is data from elsewhere. Without
    `calibrations`, the dialect has none. `functions` are those that a suite made by a program names as its providers;
    with `is_built`, the tests are such a program's data, in which `file://` is ordinary text.
    `held` has the images and recordings of the tests.
    """

    files: SourceFiles
    env: EnvValues
    problems: list[Problem] = field(default_factory=list)
    rules: DialectRules = DEFAULT_RULES
    scripts: Callable[[], ScriptCaller] | None = None
    fetch: Callable[[], SourceFetcher] | None = None
    calibrations: Calibrations | None = None
    functions: Mapping[str, Any] = field(default_factory=dict)
    is_built: bool = False
    held: ConfigMedia = field(default_factory=ConfigMedia)

    @property
    def errors(self) -> int:
        """Return the number of errors so far; a warning does not make any part of a config invalid."""
        return sum(problem.severity is Severity.ERROR for problem in self.problems)

    def report(
        self, message: str, location: Location | None, hint: str = "", *, notes: tuple[str, ...] = ()
    ) -> None:
        self.problems.append(Problem(message, location, hint, notes))

    def warn(self, message: str, location: Location | None, hint: str = "") -> None:
        self.problems.append(Problem(message, location, hint, severity=Severity.WARNING))

    def hold_back_warnings(self, kept: dict[tuple[str, int], Problem]) -> None:
        """Move the warnings so far to `kept`, by message and number; at most ten alike, as each row may have it."""
        for problem in [item for item in self.problems if item.severity is Severity.WARNING]:
            self.problems.remove(problem)
            found = self.env.hide(problem)
            for number in range(_MOST_ALIKE):
                if kept.setdefault((found.message, number), found) == found:
                    break

    def with_problems(self, problems: list[Problem]) -> "LoadContext":
        return structs.replace(self, problems=problems)

    def text(
        self, value: JsonValue, find_location: Callable[[], Location | None], *, is_for_models: bool = False
    ) -> JsonValue:
        """Return `value`, or the text of the file that it names; None, with a problem, if that cannot be read.

        If the text `is_for_models`, as prompts and criteria are, the bare path of an existing file is reported.
        """
        if not is_file_reference(value):
            if (
                is_for_models
                and self.rules.suspects_bare_paths
                and is_bare_path(value, self.files.base_dir, self.files.access)
            ):
                hint = f"write file://{value}"
                self.report(
                    f"the path `{value}` itself would be sent, not the content of the file",
                    find_location(),
                    hint,
                )
            return value
        try:
            return self.files.text(value, find_location())
        except ConfigError as error:
            self.problems.extend(error.problems)
            return None

    def media(self, value: str, location: Location | None) -> str | None:
        """Return the marker of the image or recording that `value` names; None, with a problem, if that fails."""
        try:
            return self.held.find(value, self.files, location).marker
        except ConfigError as error:
            self.problems.extend(error.problems)
            return None


class Fields(Struct, frozen=True):
    """A mapping whose keys were checked: values by field name, and the spelling of each field in the file."""

    what: str
    place: SourcePath
    values: dict[str, JsonValue]
    written: Mapping[str, str]

    def child(self, name: str) -> SourcePath:
        return self.place.child(self.written.get(name, name))

    def drop(self, name: str) -> None:
        """Drop a value that is already reported as wrong."""
        self.values.pop(name, None)


@cache
def preferred_spellings(model: type[Spec]) -> tuple[str, ...]:
    """Return one spelling per field, for lists of allowed keys: `type`, then the spec's own, then inherited ones."""
    first: dict[str, str] = {}
    for spelling, name in spellings(model).items():
        first.setdefault(name, spelling)
    own_first = [name for part in model.__mro__ for name in inspect.get_annotations(part)]
    return tuple(first[name] for name in dict.fromkeys(["type", *own_first]) if name in first)


def read_fields(
    model: type[Spec], value: JsonValue, place: SourcePath, what: str, reading: LoadContext,
    *, nullable: tuple[str, ...] = (),
) -> Fields | None:  # fmt: skip
    """Return the checked keys of a mapping; None, with a problem, if the value is not a mapping.

    Args:
        model: the spec whose fields the keys are.
        value: the value as in the file.
        place: its place.
        what: the name of the part in messages, with its article ("a test").
        reading: collects the problems.
        nullable: fields for which null is a value and not a mistake.
    """
    if not isinstance(value, dict):
        reading.report(f"{what} must be a mapping, found {describe_value(value)}", place.value())
        return None
    known = spellings(model)
    tuples = tuple_fields(model)
    values: dict[str, JsonValue] = {}
    written: dict[str, str] = {}
    meant: dict[str, str] = {}
    guessed: dict[str, JsonValue] = {}
    for key, entry in value.items():
        name = known.get(key)
        if entry is None and reading.rules.skips_null and name not in (None, *nullable):
            continue
        if name is None:
            near = did_you_mean(key, known) or next(iter({_MEANT.get(key)} & known.keys()), None)
            location = place.key(key)
            elsewhere = _home_of(key, model)
            if issubclass(model, SuiteSpec) and key in _CALLED_HERE:
                hint = _CALLED_HERE[key]
            elif elsewhere and not (near or "").startswith(key):
                hint = f"put it under {elsewhere}"
            else:
                hint = f"did you mean `{near}`?" if near else _STRAY_HINTS.get(model, "")
            is_own = model.__module__.partition(".")[0] == __name__.partition(".")[0]
            everything = "docs/reference/config-keys.md" if is_own else "the output of `geval schema`"
            allowed = listing("allowed", key, preferred_spellings(model), everything)
            unknown = Problem(f"unknown key `{key}` in {what}", location, hint, () if hint else (allowed,))
            reading.problems.append(replace(unknown, severity=reading.rules.unknown_keys))
            if near is not None and reading.rules.unknown_keys is Severity.ERROR:
                meant.setdefault(known[near], key)
                if entry is not None and unknown.hint == f"did you mean `{near}`?":
                    guessed.setdefault(known[near], entry)
        elif name in written:
            message = f"`{written[name]}` and `{key}` are two spellings of one key in {what}"
            reading.report(message, place.key(key), "keep one of them")
        else:
            written[name] = key
            if entry is not None or name in nullable:
                values[name] = tuple(entry) if name in tuples and isinstance(entry, list) else entry
            else:
                reading.report(f"`{key}` has no value", place.value(key), "give it one, or leave the key out")
    # A misspelt key is not missing as well, and its value may contain further mistakes.
    for name, entry in guessed.items():
        if name not in written:
            values[name] = tuple(entry) if name in tuples and isinstance(entry, list) else entry
    return Fields(what, place, values, {**meant, **written})


def build_spec(model: type[SpecT], fields: Fields, reading: LoadContext) -> SpecT | None:
    """Return the spec; None, with a problem for each missing or wrong value."""
    try:
        return model.model_validate({**fields.values, "place": fields.place}, strict=True)
    except ValidationError as error:
        # The distinct paths in pydantic's errors; if one leads on from another, as in unions, only the longer.
        paths = [
            _strip_union_tags(detail["loc"], fields.values) for detail in error.errors(include_url=False)
        ]
        error_paths = [
            path
            for path in dict.fromkeys(paths)
            if not any(len(other) > len(path) and other[: len(path)] == path for other in paths)
        ]
        for path in error_paths:
            problem = _explain(model, fields, path)
            if problem is not None:
                reading.problems.append(problem)
        return None


def read_spec(
    model: type[SpecT], value: JsonValue, place: SourcePath, what: str, reading: LoadContext
) -> SpecT | None:
    """Do `read_fields` and `build_spec` in one, for parts without short forms."""
    fields = read_fields(model, value, place, what, reading)
    return None if fields is None else build_spec(model, fields, reading)


def _home_of(key: str, model: type[Spec]) -> str:
    """Return where a key of another level belongs; empty if unknown."""
    if issubclass(model, SuiteSpec):
        if key in spellings(TestSpec):
            return "`tests` or `defaultTest`"
        if key in spellings(TestOptionsSpec):
            return "`options` of `defaultTest`"
        if key in _OF_PROVIDERS:
            return "`providers`, or `config` of one of them"
    if issubclass(model, SimulationSpec) and key in spellings(SimulatedUserSpec):
        return "`simulate`"
    if issubclass(model, TestSpec):
        if key in spellings(TestOptionsSpec):
            return "`options` of the test"
        if key in spellings(GEvalAssertion):
            return "an assertion of `assert`"
    return ""


def _strip_union_tags(loc: tuple[str | int, ...], values: JsonValue) -> tuple[str | int, ...]:
    """Return `loc` without the parts that name a branch of a union instead of something in the value."""
    name, *rest = loc
    path: list[str | int] = [name]
    value = values.get(name)
    for part in rest:
        is_index = isinstance(part, int) and isinstance(value, (list, tuple)) and 0 <= part < len(value)
        if is_index or (isinstance(value, dict) and part in value):
            path.append(part)
            value = value[part]
    return tuple(path)


def _explain(model: type[Spec], fields: Fields, path: tuple[str | int, ...]) -> Problem | None:
    name = str(path[0])
    if name not in fields.values:
        name = spellings(model).get(name, name)  # a missing key is called by its preferred spelling
        if name in fields.written:
            return None
        key = next(spelling for spelling, field_name in spellings(model).items() if field_name == name)
        expected = expected_text(model.model_fields[name])
        return Problem(f"{fields.what} needs `{key}`", fields.place.value(), f"add `{key}`: {expected}")
    value: JsonValue = fields.values
    for part in path:
        value = value[part]
    annotation = annotation_at(model.model_fields[name], path[1:])
    location = fields.child(name).value(*path[1:])
    shown = fields.written[name] + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[1:]
    )
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        hint = "write the character itself, or both halves of the pair"
        return Problem(f"`{shown}` is not valid text: it contains half of a surrogate pair", location, hint)
    message = f"`{shown}` must be {expected_text(annotation)}, found {describe_value(value)}"
    return Problem(message, location, mismatch_hint(annotation, value))

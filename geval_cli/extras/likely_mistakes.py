"""Warnings about likely mistakes in a suite: unused variables, single braces in prompts, columns with the same name."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from geval_cli.assertions.base import (
    EXPECTED_OUTPUT,
    Assertion,
    MergedTest,
    ModelGradedAssertion,
    each_assertion,
)
from geval_cli.assertions.geval_metric import GEvalFields, range_of, written_criteria
from geval_cli.assertions.json_text import none_if_empty, parse_schema
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.engine.conversation import CONVERSATION_ID, uses_conversation
from geval_cli.engine.plan import Plan, SelectedTests, names_of
from geval_cli.errors import Location, Problem, Severity
from geval_cli.judge.metric import JudgedCase
from geval_cli.judge.prompt import COMPARED
from geval_cli.judge.source import resolve_source
from geval_cli.numbers import plural
from geval_cli.patterns import compile_later
from geval_cli.providers.preset_table import PRESETS
from geval_cli.providers.redaction import MIN_ECHOED_CHARS
from geval_cli.records import TEST_TEXTS, JsonValue
from geval_cli.source.files import FILE_PREFIX, is_file_reference
from geval_cli.source.problems import read_lines
from geval_cli.source.secrets import environment_secrets, is_ordinary_word, secret_values
from geval_cli.source.source_map import KeyPath, SourcePath, format_key_path
from geval_cli.specs.base import PromptSpec, Spec, WrittenSchema
from geval_cli.specs.promptfoo import NamedPromptSpec
from geval_cli.suite.tests import PROFILE, SuiteTests

_NAMES_MAX = 200
_SHOWN_MAX = 60
_NAMES_LISTED = 4
# Without another opening inside, so that texts with thousands of them take no quadratic time.
_TAG = compile_later(
    r"\{\{([^{}]*(?:(?:\{(?!\{)|\}(?!\}))[^{}]*)*)\}\}|\{%([^{%]*(?:(?:\{(?!%)|%(?!\}))[^{%]*)*)%\}"
)
_SEPARATOR = compile_later(r"^---[ \t]*$", re.MULTILINE)
_LOOP = compile_later(r"\{%-?\s*for\s[^%]*?\sin\s+(\w+)\s*-?%\}|\{\{-?\s*(\w+)\s*\|\s*join\b")
_WORD = compile_later(r"[^\W\d]\w*")
_BRACES = (
    compile_later(r"(?<![{$%\w])\{\s*([^\W\d]\w*)\s*\}(?!\})"),
    compile_later(r"\$\{\s*([^\W\d]\w*)\s*\}"),
    compile_later(r"<([^\W\d]\w*)>"),
)
_BRACE_OPENINGS = ("{", "$")
_BRACES_WITHIN = _BRACES[:2]
_EXPECTED = compile_later(
    r"\bexpected[ _](?:output|answer|response|result)s?\b"
    r"(?!['\"]?\s*(?:is|are|should|must|:|=|format|style|structure|language|length|type|schema))"
    r"|\bground[- ]truth\b|\b(?:reference|gold|golden)\s(?:answer|output|response|summary|translation)s?\b",
    re.IGNORECASE,
)
_SCALE = compile_later(
    r"\b(?:rat(?:e|es|ing)|scor(?:e|es|ing)|scale|grade)\b[^.;{}\n]{0,40}?\b([01])\s*(?:-|\u2013|to|and)\s*(\d{1,3})\b"
    r"(?!\s*\w*(?:word|sentence|item|point out|example|paragraph|second|minute|%|year))"
    r"|\b([01])\s*(?:-|\u2013|to)\s*(\d{1,3})[ -](?:point |Likert )?(?:scale|score|rating)\b",
    re.IGNORECASE,
)
_ESCAPED_TWICE = compile_later(r"\\\\[bB]\Z|\\\\[dDsSwW](?=[+*?{)]|\Z)")
_NEARLY_FILE = compile_later(r"\s*file:(?:/|\\)*[\w.~-]\S*\.\w+(?::\w+)?\s*", re.IGNORECASE)
_FILE_WITHIN = compile_later(r"file://([^\s\"'<>{}]+)")
_UNCLOSED = compile_later(r"(?:\{%[^%]*|\{\{[^}]*)$")
_WHOLE_VARS = compile_later(
    r"\bvars\b(?!\s*(?:\?\.|\.)\s*(?:get\(\s*['\"])?\w|\s*(?:\?\.)?\[\s*['\"]|['\"]\s*\]\s*(?:\[\s*['\"]|\.get\(\s*['\"]))"
)
_OPENING = frozenset("\u201c\u201d\u201e\u2018\u2019\u201a")
_CLOSING = frozenset("\u201d\u201c\u2019\u2018")
_READ_BY_NAME = frozenset({
    "input", "output", "expected_output", "context", "retrieval_context", "query", "prompt", "question",
    "knowledge", "Document", "document", "source", "article", "conversation", "text", "turns", "messages",
    "audio", "images", "sessionId",
})  # fmt: skip
"""Variables that judges and assertions look for by themselves."""

_CELL_MAX = 32_767
"""The most UTF-16 units in a cell of a sheet: libraries such as pandas cut longer texts off without a word."""
_NUMBER_MAX = 40
_SHORTENED = compile_later(r"-?\d(?:[.,]\d+)?E\+\d\d")
_ROUNDED = compile_later(r"-?\d{14}[1-9]0+")
"""Whole numbers of which a spreadsheet program has kept what it shows, or 15 digits."""
_CHECKS = frozenset({"assert", "assertions"})
_STAND_INS = frozenset({"echo", "scripted"})
"""Providers whose answers are judged as they are."""

_LOOKED_FOR = frozenset(
    {"equals", "starts-with", "ends-with", "regex", "levenshtein"}
    | {f"{case}contains{which}" for case in ("", "i") for which in ("", "-all", "-any")}
)
"""The types that compare characters, so that one which nobody sees decides the verdict."""
_ONE_NAME = compile_later(r"\s*\{\{-?\s*(\w+)\s*-?\}\}\s*")
_UNSEEN = compile_later(r"[\r\xa0\xad\u2007\u200b\u202f\u2060\ufeff]")
_UNSEEN_IN_ASCII = compile_later(r"[\u200c-\u200f\u202a-\u202e\u2066-\u2069]")
"""Marks that Arabic, Hebrew, Persian and emoji need."""
_CHARACTER_CLASS = compile_later(r"\[(?:\\.|[^\]\\])*\]?")
_SLASHES = compile_later(r"/.+/[gim]{1,3}|/(?=.*[\\\[(|^$*+]).+/[gimsuy]*")
_VERBOSE = compile_later(r"\(\?\w*x")
_TABLES = (".csv", ".tsv", ".xlsx", ".parquet")
_COMMENT = compile_later(r"\s+(#\d.*)")
_ODD = compile_later(r"\s#\d|\b(?:True|TRUE|False|FALSE)\b")
_LONGEST_LINE = 2_000
_LONGEST_INDICATOR = len("|2+")

_OF_OUTPUT = frozenset({
    "output", "actual_output", "completion", "answer", "statements", "claims", "messages", "outputs", "output_1",
    "output_2", "context", "trajectory", "response", "Summary", "summary", "turns", "conversation", "trace",
    "tools_called", "images", "audio", "retrieval_context",
})  # fmt: skip
"""The names in a judge prompt by which the judge sees something of the output."""
_ONLY_OUTPUT = {
    **dict.fromkeys(("llm-rubric", "search-rubric", "choice"), "output"),
    **dict.fromkeys(("factuality", "model-graded-factuality", "model-graded-closedqa"), "completion"),
}
_FUNCTIONS_KEYS = {
    "is-valid-openai-tools-call": ("tools",),
    "is-valid-openai-function-call": ("functions",),
    "is-valid-function-call": ("functions", "tools"),
}

_TYPES_OF_SCHEMAS = frozenset({"is-json", "contains-json"})
_OF_TYPE = {
    **dict.fromkeys(
        (
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "minProperties",
            "maxProperties",
        ),
        "object",
    ),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}
"""Keywords of a JSON Schema that hold for values of one type, so that any other value passes."""
_DECIDE_TYPE = frozenset(
    {"type", "enum", "const", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "nullable"}
)

_OTHER_MODELS = frozenset({"bedrock", "vertex", "local"})
_SHOWN_TO_NO_TEMPLATE = frozenset({"echo", "http", "https", "local", "none", "huggingface"})


class _Unused(Struct):
    """A variable that may be unused: where it first occurs, the test's other variables, and the number of tests."""

    place: SourcePath | Location
    is_in_config: bool
    beside: frozenset[str]
    tests: int = 1


class BracedName(NamedTuple):
    """A test variable that a prompt refers to in braces that are not template syntax."""

    prompt: PromptSpec
    written: str
    name: str


class LikelyMistakes(Struct):
    """Collects the names in tests, prompts and assertions, and reports mismatches; see `record` and `problems`.

    If code or a program gets all variables (`sees_all`), unused variables are not reported.
    """

    plan: Plan
    sees_all: bool = False
    _used: set[str] = field(default_factory=set)
    _tags: set[str] = field(default_factory=set)
    _read_last: dict[int, object] = field(default_factory=dict)
    _quoted: dict[str, Location | None] = field(default_factory=dict)
    _braced: dict[str, tuple[str, Location | None]] = field(default_factory=dict)
    _unclosed: dict[str, Location | None] = field(default_factory=dict)
    _nearly_files: dict[str, Location | None] = field(default_factory=dict)
    _counted: dict[tuple[str, str], tuple[Location | None, int]] = field(default_factory=dict)
    _unread_files: dict[str, tuple[Location | None, bool]] = field(default_factory=dict)
    _changed: dict[tuple[str, str], Location] = field(default_factory=dict)
    _commented: dict[tuple[str, str], Location] = field(default_factory=dict)
    _lines: dict[str, dict[int, str]] = field(default_factory=dict)
    _padded: dict[tuple[str, str], tuple[Location, int, bool]] = field(default_factory=dict)
    _unseen: dict[tuple[str, str], Location | None] = field(default_factory=dict)
    _blind: dict[str, tuple[Location | None, str]] = field(default_factory=dict)
    _blank: dict[str, Location] = field(default_factory=dict)
    _looped: set[str] = field(default_factory=set)
    _letters: dict[str, tuple[Location | None, int]] = field(default_factory=dict)
    _keys: tuple[str, ...] = ()
    _hidden: dict[Location | None, None] = field(default_factory=dict)
    _shown: dict[str, Location | None] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _misplaced: dict[str, tuple[str, Location | None, int]] = field(default_factory=dict)
    _metrics: set[str] = field(default_factory=set)
    _has_turns: bool = False
    _next_test: int = 0
    _lacks_turns: tuple[int, Location | None] | None = None
    _has_users: bool = False
    _profiles_are_used: bool = False
    _unused: dict[str, _Unused] = field(default_factory=dict)
    _unrendered: dict[tuple[str, str], tuple[SourcePath | Location, KeyPath, int]] = field(
        default_factory=dict
    )
    _real_paths: dict[str, str] = field(default_factory=dict)
    _first_rows: dict[str, tuple[int, Location | None]] = field(default_factory=dict)
    _read_again: dict[str, Location | None] = field(default_factory=dict)
    _lacks_source: dict[str, tuple[Location | None, int]] = field(default_factory=dict)
    _cut: dict[str, tuple[Location | None, int]] = field(default_factory=dict)
    _rounded: dict[str, tuple[str, Location | None, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        suite = self.plan.suite
        self._has_turns = any(map(uses_conversation, suite.prompts))
        for prompt in suite.prompts:
            self._note_file(prompt.raw, prompt.place, "raw")
            self.sees_all = self.sees_all or (isinstance(prompt, NamedPromptSpec) and bool(prompt.made_by))
            self._read(prompt)
            for text in _texts_of_prompt(prompt):
                self._looped.update("".join(names) for names in _LOOP.findall(text))
        for provider in suite.providers:
            kind = provider.id.partition(":")[0].lower()
            self.sees_all = self.sees_all or (kind not in PRESETS and kind not in _SHOWN_TO_NO_TEMPLATE)
            self._read(provider)
        if any(provider.id.partition(":")[0].lower() not in _STAND_INS for provider in suite.providers):
            own = secret_values([[provider.id, dict(provider.config)] for provider in suite.providers])
            self._keys = tuple(
                key
                for key in {*own, *environment_secrets(suite.env)}
                if len(key) >= MIN_ECHOED_CHARS and not is_ordinary_word(key)
            )
        for gate in suite.gates:
            self._used.update(_WORD.findall(gate.text))
        default = self._all_tests.default if self._all_tests is not None else None
        if default is not None:
            self._note_changed(default.place, _by_key(default.vars))

    def record(self, test: MergedTest) -> None:
        """Record the next test."""
        left_out, self._next_test = test.index - self._next_test, test.index + 1
        if left_out and self._has_turns and not (self._lacks_turns or test.metadata.get(CONVERSATION_ID)):
            self._lacks_turns = left_out, test.place.value()
        self._note_file_of_tests(test)
        self._note_unrendered(test)
        self._note_changed(test.place, {("output",): test.output, **_by_key(test.vars)})
        if test.evaluation_schema is not None:
            self._note_schema(test.evaluation_schema, test.schema_place)
        for spec in each_assertion(test.assertions):
            if isinstance(spec, GEvalFields):
                self._note_source(test, spec)
            self._note_blind_judge(test, spec)
            self._note_functions(test, spec)
            if spec.base_type in _TYPES_OF_SCHEMAS:
                self._note_schema(vars(spec).get("value"), spec.place, "value")
            if isinstance(spec, ModelGradedAssertion):
                self._note_criteria(test, spec)
            if spec.metric is not None:
                self._metrics.add(spec.metric)
            value = vars(spec).get("value")  # in pydantic, a missing attribute is slow
            for name, written in (("value", value), ("criteria", vars(spec).get("criteria"))):
                if isinstance(written, str):
                    self._note_changed(spec.place, {(name,): written})
            if isinstance(value, str):
                self._note_looked_for(test, value, spec, "value")
                self._note_quotes(value, spec, "value")
                if spec.base_type == "regex":
                    self._note_pattern(value, spec.place)
                self._note_keys(test, value, spec, "value")
                self._note_braces(test, value, spec, "value")
                self._note_unclosed(value, spec, "value")
                self._note_file(value, spec.place, "value")
            elif isinstance(value, list | tuple):
                for index, item in enumerate(value):
                    self._note_looked_for(test, item, spec, "value", index)
                    self._note_quotes(item, spec, "value", index)
                    self._note_keys(test, item, spec, "value", index)
                    self._note_braces(test, item, spec, "value", index)
                    self._note_unclosed(item, spec, "value", index)
                    self._note_changed(spec.place, {("value", index): item})
                    self._note_file(item, spec.place, "value", index)
            elif isinstance(value, int | float) or spec.base_type == "equals":
                self._note_looked_for(test, value, spec, "value")
                self._note_changed(spec.place, {("value",): value})
        for name, text in test.vars.items():
            self._note_file(text, test.place, "vars", name)
            self._note_unread_file(test, text, "vars", name)
            self._note_cut(test, text, "vars", name)
        for part, entries in (("vars", test.vars), ("metadata", test.metadata)):
            for name, value in entries.items():
                # promptfoo's reader tells of `vars.assert` itself
                is_told = (
                    name == "assert"
                    and part == "vars"
                    and self.plan.suite.rules.template_language != "strict"
                )
                if isinstance(value, list | Mapping) and not is_told:
                    self._note_checks(test, value, part, name)
        self._names.update(test.vars)
        for name in test.vars.keys() - self._shown.keys() if self._keys else ():
            text = test.vars[name]
            if isinstance(text, str) and any(key in text for key in self._keys):
                self._shown[name] = _location(self._home(test, ("vars", name)), ("vars", name))
        for name in self._looped & test.vars.keys():
            value = test.vars[name]
            if isinstance(value, str) and value:
                at, count = self._letters.get(name) or (
                    _location(self._home(test, ("vars", name)), ("vars", name)),
                    0,
                )
                self._letters[name] = at, count + 1
        if test.user is not None:
            self._has_users = True
            profiles = () if self._profiles_are_used or self._all_tests is None else self._all_tests.profiles
            self._profiles_are_used = self._profiles_are_used or test.user.profile in (profiles or ())
        if self.sees_all:
            return
        if test.transform_vars is not None or test.promptfoo.made_vars:
            self.sees_all = True
            return
        told = {key.removeprefix("vars.") for key in self._misplaced}
        new = [name for name in test.vars if name not in self._used | _READ_BY_NAME | told]
        if new:
            self._read_test(test)
        for name in new:
            if name in self._used:
                self._unused.pop(name, None)
            elif name in self._unused:
                self._unused[name].tests += 1
            elif len(self._unused) < _NAMES_MAX:
                place = self._home(test, ("vars", name))
                # Whether the variable is in a YAML file, not in a table of tests.
                location = _location(place, ("vars", name))
                self._unused[name] = _Unused(
                    place,
                    location is not None and location.file.endswith((".yaml", ".yml")),
                    frozenset(test.vars),
                )

    def _note_source(self, test: MergedTest, spec: GEvalFields) -> None:
        """Record a dimension that compares an output with a source, in a test without one."""
        has_prompt = any(prompt.raw or prompt.messages or prompt.system for prompt in self.plan.suite.prompts)
        if not test.has_output or has_prompt or test.transform_vars is not None:
            return
        name = spec.dimension
        if name not in COMPARED or spec.source is not None or test.turns:
            return
        texts = {key: getattr(test, key) for key in ("input", "context", "retrieval_context")}
        found = resolve_source(JudgedCase(actual_output=None, vars=test.vars, **texts))
        if not found.text and found.knowledge is None:
            place = spec.place.value("dimension") or spec.place.value()
            at, count = self._lacks_source.get(name, (place, 0))
            self._lacks_source[name] = at, count + 1

    def _note_file_of_tests(self, test: MergedTest) -> None:
        """Record a file whose first test comes again: files are named several times, by wildcards or links, too."""
        file = test.place.positions.file
        if file == str(self.plan.suite.path):
            return
        if file not in self._real_paths:
            self._real_paths[file] = str(Path(file).resolve())
        real = self._real_paths[file]
        mark = hash((test.description, *test.vars, *map(str, test.vars.values())))
        first = self._first_rows.get(real)
        if first is None:
            self._first_rows[real] = mark, test.place.value()
        elif mark == first[0] and real not in self._read_again:
            at = test.place.value()
            if at and first[1] and (at.line, at.key_path) == (first[1].line, first[1].key_path):
                self._read_again[real] = at

    def _note_cut(self, test: MergedTest, value: JsonValue, *keys: str) -> None:
        """Record a text or a number of which a sheet may have lost the end."""
        if not isinstance(value, str):
            return
        if len(value) < _NUMBER_MAX and value[-1:].isdecimal() and self._is_rounded(test, value):
            first, at, count = self._rounded.get(keys[-1]) or (
                value,
                _location(self._home(test, keys), keys),
                0,
            )
            self._rounded[keys[-1]] = first, at, count + 1
        elif _CELL_MAX // 2 <= len(value) <= _CELL_MAX:
            if len(value.encode("utf-16-le", "surrogatepass")) // 2 != _CELL_MAX != len(value):
                return
            at, count = self._cut.get(keys[-1]) or (_location(self._home(test, keys), keys), 0)
            self._cut[keys[-1]] = at, count + 1

    def _is_rounded(self, test: MergedTest, value: str) -> bool:
        ending = test.place.positions.file[-5:].lower()
        pattern = _ROUNDED if ending == ".xlsx" else _SHORTENED if ending.endswith((".csv", ".tsv")) else None
        return pattern is not None and pattern.fullmatch(value) is not None

    def _home(self, test: MergedTest, keys: KeyPath) -> SourcePath | Location:
        """Return where a key of a test is defined: in the test itself, else in `defaultTest`."""
        default = self._all_tests.default if self._all_tests is not None else None
        if not isinstance(test.place, SourcePath) or default is None or test.place.has(*keys):
            return test.place
        return default.place if default.place.has(*keys) else test.place

    @property
    def _all_tests(self) -> SuiteTests | None:
        """Return the tests as in the config; None if the run leaves some out."""
        tests = self.plan.suite.tests
        return tests if isinstance(tests, SuiteTests) else None

    def braces(self) -> list[BracedName]:
        """Return the test variables that prompts have in braces that are no templates, each once per prompt."""
        return [
            BracedName(prompt, written, name)
            for prompt in self.plan.suite.prompts
            for written, name in self._braces_of(prompt)
        ]

    def problems(self, braces: Iterable[BracedName], *, has_fixed_prompts: bool) -> Iterator[Problem]:
        """Yield a warning for each likely mistake.

        `has_fixed_prompts`: another check reports that prompts use no variables, so unused ones are not reported.
        """
        braced: set[str] = set()
        for prompt, written, name in braces:
            braced.add(name)
            at = prompt.place
            yield Problem(
                f"the prompt `{_short(prompt.label or prompt.id)}` has `{written}`, which is sent as is",
                at.value("raw") or at.value("system") or at.value("messages") or at.value(),
                f"write {{{{ {name} }}}} for the variable `{name}` of the tests",
                severity=Severity.WARNING,
            )
        if not has_fixed_prompts:
            yield from self._of_unused(name for name in self._unused if name not in braced)
        yield from self._of_gone()
        if self._lacks_turns is not None:
            count, location = self._lacks_turns
            are = "is" if count == 1 else "are"
            yield Problem(
                f"{plural(count, 'test')} before this one {are} left out, so `_conversation` lacks their turns",
                location,
                "run the whole conversation; `metadata: {conversationId: ...}` tells conversations apart",
                severity=Severity.WARNING,
            )
        for (where, written), (place, keys, count) in self._unrendered.items():
            is_for_judge = keys[0] in {"guidelines", "rubric"}
            what, home = ("guidelines and rubrics", "criteria") if is_for_judge else ("test values", "prompt")
            yield Problem(
                f"`{written}` in `{where}` is not rendered{f' ({count:,} tests)' if count > 1 else ''}",
                _location(place, keys),
                f"{what} are not templates: put it into the {home}, or write the value out",
                severity=Severity.WARNING,
            )
        for name, (location, count) in self._lacks_source.items():
            yield Problem(
                f"`{name}` compares outputs with a source, which {plural(count, 'test')} "
                f"{'lacks' if count == 1 else 'lack'}: the output is rated by itself",
                location,
                "set `input` or `context` in the test, a variable such as `article`, or the assertion's `source`",
                severity=Severity.WARNING,
            )
        for name, (location, count) in self._letters.items():
            of_tests = f" ({count:,} tests)" if count > 1 else ""
            yield Problem(
                f"`{name}` is text, so the loop in the prompt goes through its characters{of_tests}",
                location,
                f"write it as a list, or `{name}.split(',')` in the prompt",
                severity=Severity.WARNING,
            )
        for prompt in self.plan.suite.prompts:
            if self.plan.suite.rules.template_language == "strict" and _may_be_several(prompt.raw or ""):
                yield Problem(
                    f"the prompt `{_short(prompt.label or prompt.id)}` is one prompt: `---` in it separates none",
                    prompt.place.value("raw") or prompt.place.value(),
                    "write each prompt to a file of its own; with `dialect: promptfoo`, `---` separates them",
                    severity=Severity.WARNING,
                )
        for (key, number), written_at in self._changed.items():
            yield Problem(
                f"`{key}` is {number}, which is not how it is written",
                written_at,
                "put quotes around it to keep it as it is",
                severity=Severity.WARNING,
            )
        for (key, comment), written_at in self._commented.items():
            yield Problem(
                f"`{key}` ends before `{comment}`, which is a comment",
                written_at,
                "put quotes around the text if that is part of it",
                severity=Severity.WARNING,
            )
        for (key, _), (location, count, is_in_cell) in self._padded.items():
            what = "begins or ends with white space" if is_in_cell else "ends with a line break"
            yield Problem(
                f"`{key}` {what}, which is looked for too{f' ({count:,} tests)' if count > 1 else ''}",
                location,
                "remove it from the cell"
                if is_in_cell
                else "write `|-` or `>-`: `|` and `>` keep the line break",
                severity=Severity.WARNING,
            )
        for (key, character), location in self._unseen.items():
            name = unicodedata.name(character, "carriage return").lower()
            message = f"`{key}` contains U+{ord(character):04X} ({name}), which cannot be seen"
            hint = "save it with Unix line breaks" if character == "\r" else "type the text again"
            yield Problem(message, location, hint, severity=Severity.WARNING)
        for kind, (location, variable) in self._blind.items():
            message = (
                f"this prompt does not show the output to the judge of {kind}, which rates what it is shown"
            )
            name = _ONLY_OUTPUT.get(kind, "output" if kind == "g-eval" else "")
            hint = f"write {{{{ {name} }}}} into it" if name else "its variables are in docs/assertions.md"
            if variable:
                hint = f"give the variable `{variable}` of the tests another name: it takes the place of the output"
            yield Problem(message, location, hint, severity=Severity.WARNING)
        for key, blank_at in self._blank.items():
            hint = 'write "" for no text, or put quotes around a text that begins with `#`'
            yield Problem(f"`{key}` has no value", blank_at, hint, severity=Severity.WARNING)
        for name, location in self._shown.items():
            yield Problem(
                f"the variable `{name}` holds a key, and variables are shown in results as they are",
                location,
                "write the key into the provider's config, where it is masked",
                severity=Severity.WARNING,
            )
        for key, (name, location, count) in self._misplaced.items():
            of_tests = f" of {count:,} tests" if count > 1 else ""
            message = f"`{key}`{of_tests} is data, so its assertions check nothing"
            beside = f"beside `{key.partition('.')[0]}`, not below it"
            hint = f"write `{name}` {beside}" if name in _CHECKS else f"write them as `assert` {beside}"
            yield Problem(message, location, hint, severity=Severity.WARNING)
        for location in self._hidden:
            message = "a secret of the config or the environment is masked in answers, so this is never found"
            yield Problem(message, location, "test for leaks with a made-up key that no provider uses")
        for value, (name, location) in self._braced.items():
            message = f"`{_short(value)}` is no template: it is looked for as it is"
            yield Problem(message, location, f"write {{{{ {name} }}}}", severity=Severity.WARNING)
        if self.plan.suite.rules.template_language == "strict":
            yield from self._of_settings()
        for value, location in self._nearly_files.items():
            message = f"`{_short(value)}` itself is used, not the content of a file"
            yield Problem(message, location, "begin it with file://", severity=Severity.WARNING)
        for reference, (location, is_there) in self._unread_files.items():
            if is_there:
                message = f"`{_short(reference)}` itself is used, not the content of the file"
                hint = "only a whole variable, or an item of a list, is read from a file"
                yield Problem(message, location, hint, severity=Severity.WARNING)
        if self.plan.suite.rules.template_language != "strict":
            yield from self._of_unclosed()
        for (message, hint), (location, count) in self._counted.items():
            tests_told = f" ({count:,} tests)" if count > 1 else ""
            yield Problem(f"{message}{tests_told}", location, hint, severity=Severity.WARNING)
        for value, location in self._quoted.items():
            message = f"the typographic quotes around `{_short(value)}` are part of the value"
            yield Problem(message, location, 'write straight quotes ("), or none', severity=Severity.WARNING)
        for name, (location, count) in self._cut.items():
            yield Problem(
                f"`{name}` has as many characters as fit into a cell, so its end is probably cut off"
                f"{f' ({count:,} tests)' if count > 1 else ''}",
                location,
                "save long texts as .csv or .jsonl, or in files that cells name with file://",
                severity=Severity.WARNING,
            )
        for name, (number, location, count) in self._rounded.items():
            yield Problem(
                f"`{name}` is {number}: a spreadsheet keeps only the first digits of a number as long as that"
                f"{f' ({count:,} tests)' if count > 1 else ''}",
                location,
                "format the cells as text before the numbers are written into them",
                severity=Severity.WARNING,
            )
        for location in self._read_again.values():
            yield Problem(
                "this file is read more than once, so each of its tests counts as several",
                location,
                "name it once in `tests`; `--repeat` runs tests several times",
                severity=Severity.WARNING,
            )
        tests = self._all_tests
        if tests is not None and tests.profiles and not self._profiles_are_used:
            of_tests = (
                "all simulated users have their own `profile`"
                if self._has_users
                else "no test has a simulated user"
            )
            yield Problem(
                f"`profiles` is not used: {of_tests}",
                _location(tests.profiles_place, ()),
                "remove it" if self._has_users else "give tests `turns: {simulate: ...}`, or remove it",
                severity=Severity.WARNING,
            )
        for name, value in (tests.overrides if tests is not None else {}).items():
            if is_file_reference(value):
                message = f"the variable `{name}` is the text `{_short(value)}`, not the content of the file"
                hint = f'write --var {name}="$(cat FILE)", or name the file in the config'
                yield Problem(message, None, hint, severity=Severity.WARNING)
        for metric in self.plan.suite.derived_metrics:
            if metric.name in self._metrics:
                yield Problem(
                    f"`{metric.name}` is also a metric of assertions, and gates and comparisons use that one",
                    metric.place.value("name"),
                    "give the derived metric another name",
                    severity=Severity.WARNING,
                )
        yield from _columns_named_alike(self.plan)

    def _of_unused(self, names: Iterable[str]) -> Iterator[Problem]:
        if self.sees_all:
            return
        together: dict[Location | None, list[str]] = {}
        for name in names:
            found = self._unused[name]
            if name in self._used or any(name in tag for tag in self._tags):
                continue
            others = [used for used in self._used if used not in found.beside]
            near = next(iter(get_close_matches(name, others, 1, 0.75)), None)
            if near is not None:
                yield _unused(
                    [name], found, _location(found.place, ("vars", name)), f"did you mean `{near}`?"
                )
            elif _is_clearly_a_type(name):
                at = _location(found.place, ("vars", name))
                how = "write it under `assert`" if found.is_in_config else f"call it `assert.{name}`"
                yield _unused([name], found, at, f"to check by it, {how}")
            elif found.is_in_config:  # tables may also have columns meant for people
                together.setdefault(_location(found.place, ()), []).append(name)
        for unused in together.values():
            first = self._unused[unused[0]]
            place = _location(first.place, ("vars", unused[0]))
            yield _unused(unused, first, place, "use it in a prompt or an assertion, or remove it")

    def _of_unclosed(self) -> Iterator[Problem]:
        """Yield a warning for each text that nunjucks would render if its last expression were closed."""
        prompts = {
            text: prompt.place.value("raw") or prompt.place.value()
            for prompt in self.plan.suite.prompts
            for text in _texts_of_prompt(prompt)
            if _UNCLOSED.search(text)
            and any(self._names.intersection(_WORD.findall("".join(tag))) for tag in _TAG.findall(text))
        }
        for text, location in (prompts | self._unclosed).items():
            yield Problem(
                f"`{_short(text)}` is used as it is, with all its braces: its last one is never closed",
                location,
                "close it, or put {% raw %}...{% endraw %} around braces that are text",
                severity=Severity.WARNING,
            )

    def _of_settings(self) -> Iterator[Problem]:
        """Yield a warning for each setting of a model that has a template expression with a variable of the tests."""
        for provider in self.plan.suite.providers:
            kind = provider.id.partition(":")[0].lower()
            for key, value in provider.config.items() if kind in PRESETS or kind in _OTHER_MODELS else ():
                for found in _TAG.finditer(json.dumps(value, ensure_ascii=False, default=str)):
                    if self._names.intersection(_WORD.findall(found[0])):
                        yield Problem(
                            f"`{_short(found[0])}` in `{key}` is sent as it is written",
                            provider.place.value("config", key) or provider.place.value(),
                            "settings of models are not templates: put it into the prompt",
                            severity=Severity.WARNING,
                        )
                        break

    def _braces_of(self, prompt: PromptSpec) -> Iterator[tuple[str, str]]:
        """Yield the test variables that a prompt has in braces that are no templates, each once."""
        if isinstance(prompt, NamedPromptSpec) and prompt.made_by:
            return
        text = "\n".join(_texts_of_prompt(prompt))
        known = {word for tag in _TAG.findall(text) for part in tag for word in _WORD.findall(part)}
        told: set[str] = set()
        for pattern in _BRACES:
            for match in pattern.finditer(text):
                name = match[1]
                is_element = match[0] == f"<{name}>" and f"</{name}>" in text
                if name in self._names and name not in known | told and not is_element:
                    told.add(name)
                    yield match[0], name

    def _note_quotes(self, value: JsonValue, spec: Assertion, *keys: str | int) -> None:
        """Record a value that is wrapped in typographic quotes, unless it consists only of quotes."""
        if not isinstance(value, str) or value[:1] not in _OPENING or value[-1:] not in _CLOSING:
            return
        if len(value) > len("\u201c\u201d") and len(self._quoted) < _NAMES_MAX:
            self._quoted.setdefault(value, spec.place.value(*keys))

    def _note_braces(self, test: MergedTest, value: JsonValue, spec: Assertion, *keys: str | int) -> None:
        """Record a value that is only the name of a variable, in braces that are not template syntax."""
        if not isinstance(value, str) or value[:1] not in _BRACE_OPENINGS or spec.runs_code:
            return
        found = next(filter(None, (pattern.fullmatch(value) for pattern in _BRACES)), None)
        if found and found[1] in test.variables and len(self._braced) < _NAMES_MAX:
            self._braced.setdefault(value, (found[1], spec.place.value(*keys)))

    def _note_pattern(self, pattern: str, place: SourcePath) -> None:
        """Record a pattern that looks for its own slashes, or for a backspace or a backslash because of its quotes."""
        if pattern[:1] == "/" and _SLASHES.fullmatch(pattern):
            message = (
                f"the slashes of `{_short(pattern)}` are part of the pattern, and so is what follows them"
            )
            self._note_once(message, "leave them out; (?i:...) ignores case", place, "value")
        if "\b" in pattern:
            message = "`\\b` within double quotes is a backspace, not the edge of a word"
            self._note_once(message, "write the pattern in single quotes", place, "value")
        elif "\\\\" in pattern and (twice := _ESCAPED_TWICE.search(pattern)):
            message = f"`{twice[0]}` looks for a backslash and the letter {twice[0][-1]}"
            hint = f"write `{twice[0][1:]}`: only double quotes need a second backslash"
            self._note_once(message, hint, place, "value")

    def _note_criteria(self, test: MergedTest, spec: ModelGradedAssertion) -> None:
        """Record texts for a judge that name a variable in braces, what it is not shown, or another scale."""
        texts: list[tuple[str, str, tuple[str, ...]]]
        if isinstance(spec, GEvalFields):
            texts = [(text, "criteria", ("criteria", "value")) for text in written_criteria(spec)]
            steps = ("evaluation_steps", "evaluationSteps")
            texts += [(text, "evaluation steps", steps) for text in spec.evaluation_steps or ()]
            texts += [(item.item, "checklist", ("checklist",)) for item in spec.checklist or ()]
        else:
            value = vars(spec).get("value")
            texts = [(value, "value", ("value",))] if isinstance(value, str) else []
        for text, part, keys in texts:
            braces, mentions_expected, scale = _said_to_judge(text)
            for found in braces:
                # `_note_braces` tells of a value that is nothing else
                if found[1] in test.variables and (part != "value" or found[0] != text.strip()):
                    message = f"`{found[0]}` is no template: the judge sees it as it is"
                    self._note_once(message, f"write {{{{ {found[1]} }}}}", spec.place, *keys)
            if not isinstance(spec, GEvalFields) or _has_own_prompt(test, spec) or "{{" in text:
                continue
            mention = "mentions" if part == "checklist" else "mention"
            params = spec.evaluation_params
            is_shown = test.expected_output is not None and (params is None or EXPECTED_OUTPUT in params)
            # What a conversation is compared with is its `expected_outcome`.
            if mentions_expected and not (is_shown or test.turns):
                if test.expected_output is not None:
                    hint = "add `expected_output` to evaluation_params"
                elif EXPECTED_OUTPUT in test.vars:
                    hint = "move expected_output from `vars` to the test itself"
                else:
                    hint = "give the test `expected_output`, or say in the criteria what is expected"
                message = f"the {part} {mention} what is expected, but the judge isn't shown it"
                self._note_once(message, hint, spec.place, *keys)
            low, high = (0.0, 1.0) if spec.strict_mode else range_of(spec)
            if scale and spec.checklist is None and float(scale[2] or scale[4]) != high:
                named = f"{scale[1] or scale[3]} to {scale[2] or scale[4]}"
                self._note_once(
                    f"the {part} name a scale of {named}, but the judge rates from {low:g} to {high:g}",
                    f"set `score_range: [{named.replace(' to ', ', ')}]`, or name no scale",
                    spec.place,
                    *keys,
                )

    def _note_once(self, message: str, hint: str, place: SourcePath, *spellings: str) -> None:
        """Record a warning about a key of an assertion; one that comes again, of another test, is counted."""
        first, count = self._counted.get((message, hint), (None, 0))
        if count or len(self._counted) < _NAMES_MAX:
            self._counted[message, hint] = first if count else place.spelled(*spellings), count + 1

    def _note_keys(self, test: MergedTest, value: JsonValue, spec: Assertion, *keys: str | int) -> None:
        """Record a value with a key in it: `not-contains` would pass the answers of a model that reveals the key."""
        if not self._keys or not isinstance(value, str) or spec.calls_server or test.output is not None:
            return
        filled = (text for name, text in test.vars.items() if isinstance(text, str) and name in value)
        texts = [value, *(filled if "{{" in value else ())]
        if any(key in text for text in texts for key in self._keys) and len(self._hidden) < _NAMES_MAX:
            self._hidden.setdefault(spec.place.value(*keys))

    def _note_file(self, value: JsonValue, place: SourcePath | Location, *keys: str | int) -> None:
        """Record a text that was probably meant to be `file://` and a path."""
        if not isinstance(value, str) or ":" not in value or value.startswith("file://"):
            return
        if (
            value not in self._nearly_files
            and len(self._nearly_files) < _NAMES_MAX
            and _NEARLY_FILE.fullmatch(value)
        ):
            self._nearly_files[value] = (
                (place.value(*keys) or place.value()) if isinstance(place, SourcePath) else place
            )

    def _note_unread_file(self, test: MergedTest, value: JsonValue, *keys: str | int) -> None:
        """Record existing files that are named within a mapping or a longer text, where no file is read."""
        if isinstance(value, list | Mapping):
            for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
                self._note_unread_file(test, item, *keys, key)
        elif isinstance(value, str) and FILE_PREFIX in value and isinstance(test.place, SourcePath):
            for found in _FILE_WITHIN.finditer(value):
                name, folder = found[1].rstrip(".,;:)"), self.plan.suite.base_dir
                reference = f"{FILE_PREFIX}{name}"
                if reference in self._unread_files or len(self._unread_files) >= _NAMES_MAX:
                    continue
                try:
                    is_there = (
                        not self.plan.suite.access.is_outside(folder / name) and (folder / name).is_file()
                    )
                except (OSError, ValueError):  # a name that is too long, or that no file can have
                    is_there = False
                self._unread_files[reference] = (
                    _location(self._home(test, keys[:2]), keys) if is_there else None,
                    is_there,
                )

    def _note_checks(self, test: MergedTest, value: JsonValue, part: str, name: str) -> None:
        """Record assertions that are data of the test, which is only a matter of two spaces in YAML."""
        items = value if isinstance(value, list) else [value]
        types = [item.get("type") for item in items if isinstance(item, Mapping)]
        if any(_is_clearly_a_type(kind) or (kind is not None and name in _CHECKS) for kind in types):
            at = _location(self._home(test, (part, name)), (part, name))
            _, at, count = self._misplaced.get(f"{part}.{name}") or (name, at, 0)
            self._misplaced[f"{part}.{name}"] = name, at, count + 1

    def _note_unclosed(self, value: JsonValue, spec: Assertion, *keys: str | int) -> None:
        """Record a value whose last template expression is never closed."""
        is_text = isinstance(value, str) and "{" in value and not spec.runs_code
        if is_text and len(self._unclosed) < _NAMES_MAX and _UNCLOSED.search(value):
            self._unclosed.setdefault(value, spec.place.value(*keys))

    def _note_changed(self, place: SourcePath | Location, values: Mapping[KeyPath, JsonValue]) -> None:
        """Record numbers that YAML reads differently: 02134, 1.10 or 1e3 may be a code, a version or a price.

        Also record what has no value at all, which may be a text that begins with `#`.

        Only YAML is checked, since people write it; programs write JSON, and a number in a Parquet file has no digits.
        """
        if not isinstance(place, SourcePath) or not place.positions.file.endswith((".yaml", ".yml")):
            return
        for keys, value in values.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and len(self._changed) < _NAMES_MAX and place.has(*keys):
                location = place.value(*keys)
                if location is not None and location.length != len(str(value)):
                    self._changed.setdefault((format_key_path(keys), f"the number {value}"), location)
            elif isinstance(value, str):
                self._note_comment(place, keys, value)
            elif value is None and len(self._blank) < _NAMES_MAX and place.has(*keys):
                key, location = place.key(*keys), place.value(*keys)
                follows = key is not None and (key.line, key.column + key.length + len(":"))
                if location is not None and (location.line, location.column) == follows:
                    self._blank.setdefault(format_key_path(keys), location)

    def _note_blind_judge(self, test: MergedTest, spec: Assertion) -> None:
        """Record a prompt of the user's own that shows the judge nothing of the output."""
        if "rubric_prompt" not in vars(spec):
            return
        levels = (spec, test.options, test.default_options)
        owner = next((level for level in levels if getattr(level, "rubric_prompt", None) is not None), None)
        written = getattr(owner, "rubric_prompt", None)
        if owner is None or (isinstance(spec, GEvalFields) and self.plan.suite.rules.nested_variables):
            return
        text = written if isinstance(written, str) else written.evaluate if written is not None else None
        kind = spec.base_type
        if not text or kind in self._blind:
            return
        names = {word for tag in _TAG.findall(text) for word in _WORD.findall("".join(tag))}
        names &= {_ONLY_OUTPUT[kind]} if kind in _ONLY_OUTPUT else _OF_OUTPUT
        # Variables of a test come before the names of g-eval, but not before those of other types.
        if not (names - test.vars.keys() if isinstance(spec, GEvalFields) else names):
            place = owner.place.spelled("rubricPrompt", "rubric_prompt")
            self._blind[kind] = place, next(iter(sorted(names)), "")

    def _note_schema(self, value: WrittenSchema | None, place: SourcePath, *spellings: str) -> None:
        """Record the first part of a JSON Schema that lets values of another type pass, as `{required: [city]}` does.

        A list of such objects is a common answer, and it passed.
        """
        written = none_if_empty(value)
        try:
            schema = None if written is None else parse_schema(written)
        except ValueError:  # a template, or already reported
            return
        pending: list[tuple[str, JsonValue]] = [("$", schema)]
        while pending:
            at, part = pending.pop()
            if not isinstance(part, dict):
                continue
            keyword = next((key for key in part if key in _OF_TYPE), None)
            if keyword and _DECIDE_TYPE.isdisjoint(part):
                kind = _OF_TYPE[keyword]
                message = f"`{keyword}` at {at} checks {kind}s only, so any other value passes"
                self._note_once(message, f"add `type: {kind}` beside it", place, *spellings)
                return
            inner = part.get("properties")
            pending += (
                [(f"{at}.{name}", item) for name, item in inner.items()] if isinstance(inner, dict) else []
            )
            pending.append((f"{at}[*]", part.get("items")))

    def _note_functions(self, test: MergedTest, spec: Assertion) -> None:
        """Record that calls are to be checked against functions, and that no provider has any."""
        keys = _FUNCTIONS_KEYS.get(spec.base_type)
        if keys is None or test.tools is not None or test.output is not None:
            return
        providers = [test.provider] if test.provider is not None else self.plan.suite.providers
        of_prompts = [getattr(prompt, "params", None) or {} for prompt in self.plan.suite.prompts]
        if not any(
            config.get(key) for config in (*(it.config for it in providers), *of_prompts) for key in keys
        ):
            message = (
                f"{spec.base_type} has nothing to check calls against: no provider has {' or '.join(keys)}"
            )
            self._note_once(message, "list the functions in the provider's `config`", spec.place, "type")

    def _odd_lines(self, file: str) -> dict[int, str]:
        """Return the lines of a YAML file that may differ from what YAML reads."""
        if file not in self._lines:
            self._lines[file] = {
                number: line
                for number, line in enumerate(read_lines(file), 1)
                if len(line) <= _LONGEST_LINE and _ODD.search(line)
            }
        return self._lines[file]

    def _written(self, place: SourcePath, keys: KeyPath) -> tuple[str, Location | None]:
        """Return the rest of an odd line from a value on, and the value's location; "" and None for others."""
        lines = self._odd_lines(place.positions.file)
        location = place.value(*keys) if lines and place.has(*keys) else None
        return (lines.get(location.line, "")[location.column - 1 :], location) if location else ("", None)

    def _note_comment(self, place: SourcePath, keys: KeyPath, value: str) -> None:
        """Record a text that YAML ends before `#12`, as in `contains: ticket #12`."""
        line, location = self._written(place, keys)
        comment = _COMMENT.match(line, len(value)) if line.startswith(value) else None
        if comment and location and len(self._commented) < _NAMES_MAX:
            self._commented.setdefault((format_key_path(keys), comment[1]), location)

    def _note_looked_for(self, test: MergedTest, value: JsonValue, spec: Assertion, *keys: str | int) -> None:
        """Record a text that is compared by characters, and that is not quite what a reader sees in the file."""
        if spec.base_type not in _LOOKED_FOR:
            return
        home: SourcePath | Location = spec.place
        name = _ONE_NAME.fullmatch(value) if isinstance(value, str) and "{{" in value else None
        if name:
            value = test.variables.get(name[1])
            keys = ("vars", name[1]) if name[1] in test.vars else (name[1],)
            home = self._home(test, keys)
        if isinstance(value, bool):
            self._note_boolean(home, value, keys)
        if not isinstance(value, str) or (value.isascii() and value == value.strip() and "\r" not in value):
            return
        location = _value_location(home, keys)
        key = format_key_path(keys)
        is_split = spec.base_type.endswith(("-all", "-any")) and isinstance(vars(spec).get("value"), str)
        text = value.replace("\r\n", "\n") if is_split else value
        text = _CHARACTER_CLASS.sub("", text) if spec.base_type == "regex" else text
        seen = _UNSEEN_IN_ASCII.sub("", text)
        found = _UNSEEN.search(text) or (_UNSEEN_IN_ASCII.search(text) if seen.isascii() else None)
        if found and _UNSEEN.sub("", seen).strip():
            if len(self._unseen) < _NAMES_MAX:
                self._unseen.setdefault((key, found[0]), location)
        elif value.strip() and value != value.strip() and location is not None:
            is_in_cell = location.file.lower().endswith(_TABLES)
            is_block = value.endswith("\n") and location.length <= _LONGEST_INDICATOR
            is_yaml = location.file.endswith((".yaml", ".yml"))
            if not (is_split or _VERBOSE.match(value)) and (is_in_cell or (is_block and is_yaml)):
                row = location.file if is_in_cell else str(location)
                at, count, _ = self._padded.get((key, row)) or (location, 0, False)
                if count or len(self._padded) < _NAMES_MAX:
                    self._padded[key, row] = at, count + 1, is_in_cell

    def _note_boolean(self, home: SourcePath | Location, value: bool, keys: KeyPath) -> None:
        """Record `True`, which is looked for as `true`."""
        if isinstance(home, SourcePath) and home.positions.file.endswith((".yaml", ".yml")):
            line, location = self._written(home, keys)
            if location and line.startswith((str(value), str(value).upper())):
                self._changed.setdefault((format_key_path(keys), str(value).lower()), location)

    def _of_gone(self) -> Iterator[Problem]:
        """Warn of tests that `--filter-failing` selects, but that the suite does not have any more."""
        tests = self.plan.suite.tests
        if not isinstance(tests, SelectedTests) or not tests.selection.failing:
            return
        gone = set(tests.selection.failing)
        for test in tests.source:
            gone.difference_update(names_of(test))
        if gone:
            are = "are" if len(gone) > 1 else "is"
            message = f"{plural(len(gone), 'test')} of --filter-failing {are} not in the config, so not run"
            hint = "run all tests if their texts or variables have changed since"
            yield Problem(message, None, hint, severity=Severity.WARNING)

    def _note_unrendered(self, test: MergedTest) -> None:
        named: list[tuple[KeyPath, JsonValue]] = []
        for name in TEST_TEXTS:
            value = getattr(test, name)
            self._note_cut(test, value, name)
            named += (
                [((name, index), item) for index, item in enumerate(value)]
                if isinstance(value, tuple)
                else [((name,), value)]
            )
        named += [(("turns", index), turn.content) for index, turn in enumerate(test.turns)]
        if not self.plan.suite.rules.nested_variables:
            named += [(("vars", name), value) for name, value in test.vars.items()]
        for keys, value in named:
            if isinstance(value, str) and "{{" in value:
                self._note_expressions(test, value, keys, self._home(test, keys))
        for spec in each_assertion(test.assertions):
            if isinstance(spec, GEvalFields) and not self.plan.suite.rules.nested_variables:
                of_judge = [(("guidelines", index), text) for index, text in enumerate(spec.guidelines or ())]
                of_judge += [
                    (("rubric", index), band.description) for index, band in enumerate(spec.rubric or ())
                ]
                for keys, text in of_judge:
                    if "{{" in text:
                        self._note_expressions(test, text, keys, spec.place)

    def _note_expressions(
        self, test: MergedTest, text: str, keys: KeyPath, home: SourcePath | Location
    ) -> None:
        for match in _TAG.finditer(text):
            word = _WORD.match((match[1] or "").strip())
            if word is not None and word[0] in test.variables:
                key = format_key_path(keys), match[0]
                place, at, count = self._unrendered.get(key) or (home, keys, 0)
                if count or len(self._unrendered) < _NAMES_MAX:
                    self._unrendered[key] = place, at, count + 1

    def _read_test(self, test: MergedTest) -> None:
        # Tests share objects, which are read only once: the last test's are kept, so that their ids are not reused.
        before, self._read_last = self._read_last, {}
        for spec in each_assertion(test.all_assertions):
            self._read_last[id(spec)] = spec
            if id(spec) in before:
                continue
            is_own = type(spec).__module__.startswith("geval_cli.")
            self.sees_all = self.sees_all or spec.calls_server or not is_own
            self._read(spec, is_code=spec.runs_code)
        for options in (test.options, test.default_options, test.promptfoo, test.provider):
            if options is not None:
                self._read_last[id(options)] = options
                if id(options) not in before:
                    self._read(options)
        for value in (*test.vars.values(), test.description, dict(test.metadata)):
            self._read_value(value)
        if test.tools is not None:
            self.sees_all = self.sees_all or bool(test.tools.functions)
            self._read_value(test.tools.world)
        if test.user is not None:
            self._used.add(PROFILE)
            for text in (test.user.goal, test.user.opening, test.user.done_when):
                self._read_value(text)

    def _read(self, spec: Spec, *, is_code: bool = False) -> None:
        dumped = spec.model_dump(mode="python", exclude={"place"}, serialize_as_any=True, exclude_none=True)
        self._read_value(dumped, is_code=is_code)

    def _read_value(self, value: JsonValue, *, is_code: bool = False) -> None:
        if isinstance(value, str):
            if is_code:
                self.sees_all = self.sees_all or value.startswith("file://")
                self._used.update(_WORD.findall(value))
                self.sees_all = self.sees_all or _WHOLE_VARS.search(value) is not None
            elif "{" in value:
                for tag in _TAG.findall(value):
                    self._read_tag("".join(tag))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                is_transform = str(key).endswith(("ransform", "transform_vars", "transformVars"))
                self._read_value(item, is_code=is_code or is_transform)
                self._read_value(str(key))
        elif isinstance(value, list | tuple | set | frozenset):
            for item in value:
                self._read_value(item, is_code=is_code)

    def _read_tag(self, tag: str) -> None:
        words = _WORD.findall(tag)
        self._used.update(words)
        if not tag.isascii() or "-" in tag or "[" in tag:  # it may contain names that are not words
            self._tags.add(tag)
        self.sees_all = self.sees_all or "vars" in words


def _is_clearly_a_type(name: object) -> bool:
    """Return whether a name is one of an assertion type, and hardly means anything else, as `cost` may."""
    base = name.removeprefix("not-") if isinstance(name, str) else ""
    return base in ASSERTION_TYPES and (
        "-" in str(name) or base in {"contains", "icontains", "equals", "regex"}
    )


def _by_key(variables: Mapping[str, JsonValue]) -> dict[KeyPath, JsonValue]:
    return {("vars", name): value for name, value in variables.items()}


def _may_be_several(text: str) -> bool:
    """Return whether lines of `---` seem to separate prompts, because the parts use the same variables."""
    if "---" not in text:
        return False
    parts = [part for part in _SEPARATOR.split(text) if part.strip()]
    names = {frozenset(_WORD.findall("".join(map("".join, _TAG.findall(part))))) for part in parts}
    return len(parts) > 1 and len(names) == 1 and any(names)


def _texts_of_prompt(prompt: PromptSpec) -> Iterator[str]:
    yield prompt.raw or ""
    yield prompt.system or ""
    for message in prompt.messages or ():
        yield str(message.content)


def _unused(names: Sequence[str], found: _Unused, place: Location | None, hint: str) -> Problem:
    shown = ", ".join(f"`{name}`" for name in names[:_NAMES_LISTED])
    more = f" and {len(names) - _NAMES_LISTED:,} more" if len(names) > _NAMES_LISTED else ""
    of_tests = f" of {found.tests:,} tests" if found.tests > 1 else ""
    said = (
        f"the variable {shown}{of_tests} is"
        if len(names) == 1
        else f"the variables {shown}{more}{of_tests} are"
    )
    return Problem(
        f"{said} not used",
        place,
        hint if len(names) == 1 else hint.replace("use it", "use them").replace("remove it", "remove them"),
        severity=Severity.WARNING,
    )


def _has_own_prompt(test: MergedTest, spec: ModelGradedAssertion) -> bool:
    return any(level.rubric_prompt is not None for level in (spec, test.options, test.default_options))


@lru_cache(maxsize=1024)  # most tests share their criteria
def _said_to_judge(text: str) -> tuple[list[re.Match[str]], bool, re.Match[str] | None]:
    """Return the names in braces, whether something expected is mentioned, and the scale that is named."""
    braces = [match for pattern in _BRACES_WITHIN for match in pattern.finditer(text)] if "{" in text else []
    return braces, _EXPECTED.search(text) is not None, _SCALE.search(text)


def _location(place: SourcePath | Location, keys: KeyPath) -> Location | None:
    if not isinstance(place, SourcePath):
        return place
    return place.key(*keys) or place.value(*keys) or place.value()


def _value_location(place: SourcePath | Location, keys: KeyPath) -> Location | None:
    return place.value(*keys) if isinstance(place, SourcePath) else place


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_MAX else f"{line[: _SHOWN_MAX - 1]}…"


def _columns_named_alike(plan: Plan) -> Iterator[Problem]:
    """Yield a warning for providers or prompts with the same name, which results could not distinguish."""
    for what, specs in (("providers", plan.providers), ("prompts", plan.suite.prompts)):
        names = [spec.title if what == "providers" else spec.label for spec in specs]  # type: ignore[union-attr]
        for name, count in Counter(names).items():
            if count > 1 and name:
                second = [spec for spec, own in zip(specs, names, strict=True) if own == name][1]
                yield Problem(
                    f"{count} {what} have the name `{_short(name)}`, so their columns look alike",
                    second.place.value("id") or second.place.value("label") or second.place.value(),
                    "give each its own `label`",
                    severity=Severity.WARNING,
                )

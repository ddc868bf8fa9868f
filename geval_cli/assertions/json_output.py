"""is-json, contains-json, evaluation-schema: the output is or contains JSON, and matches the schema, if any.

The draft of a schema is the one named by `$schema`, 2020-12 by default. Formats are checked, and patterns are
JavaScript's. References are followed within the schema; nothing is ever fetched.
"""

import asyncio
import json
import math
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from functools import cache, lru_cache
from itertools import islice
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped] # jsonschema's own, without stubs
from msgspec import Struct
from pydantic import Field
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with
from rfc3339_validator import validate_rfc3339  # type: ignore[import-untyped]

from geval_cli.assertions.base import Assertion, CheckContext, Outcome, Subject, Tools, shortened, unrendered
from geval_cli.assertions.json_text import (
    FoundJson,
    Schema,
    every_json,
    find_json,
    none_if_empty,
    parse_schema,
    parse_strict_json,
)
from geval_cli.assertions.match import is_javascript_pattern, python_pattern
from geval_cli.assertions.patterns import CHECK_TIMEOUT_S, compiled, is_found, within
from geval_cli.errors import CheckTimeoutError, ConfigError, Problem, Severity, UnjudgeableError
from geval_cli.records import JsonValue
from geval_cli.source.problems import did_you_mean
from geval_cli.source.source_map import KeyPath, SourcePath
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import EvaluationParsing, WrittenSchema

_ERRORS_SHOWN = 20
_MAX_ERRORS = 1_000
_MESSAGE_SHOWN = 300  # characters; jsonschema repeats the offending value, which may be the whole output
_REFERENCES = ("$ref", "$dynamicRef")


class _SchemaProblem(Struct, frozen=True):
    """A problem of a schema; `path` leads to its position in the schema."""

    message: str
    hint: str
    path: KeyPath = ()


def schema_problems(written: WrittenSchema, name: str, place: SourcePath) -> list[Problem]:
    """Return the problems of a schema: it is not valid, or the target of a reference is missing.

    Args:
        written: the schema as in the config.
        name: how messages refer to it, for example "`evaluation_schema`".
        place: its position; problems point into it as deeply as the file allows.
    """
    try:
        flaws = within(CHECK_TIMEOUT_S, "looking through it", _flaws, json.dumps(parse_schema(written)))
    except CheckTimeoutError as error:
        return [Problem(f"{name} is too large or too deep: {error.message}", place.value(), error.hint)]
    except ValueError as error:
        is_name = isinstance(written, str) and "." in written and not set(written) & set("{} \n")
        hint = f"write file://{written} if this is a file" if is_name else "write a JSON Schema"
        return [Problem(f"{name} is not a JSON Schema: {error}", place.value(), hint)]
    whole = place.key() if isinstance(written, dict) else place.value()
    return [
        Problem(flaw.message, place.value(*flaw.path) if flaw.path else whole, flaw.hint) for flaw in flaws
    ]


_NAMES = (
    "$anchor $comment $defs $dynamicAnchor $dynamicRef $id $recursiveAnchor $recursiveRef $ref $schema $vocabulary "
    "additionalItems additionalProperties allOf anyOf const contains contentEncoding contentMediaType contentSchema "
    "default definitions dependencies dependentRequired dependentSchemas deprecated description else enum examples "
    "exclusiveMaximum exclusiveMinimum format id if items maxContains maxItems maxLength maxProperties maximum "
    "minContains minItems minLength minProperties minimum multipleOf not nullable oneOf pattern patternProperties "
    "prefixItems properties propertyNames readOnly required then title type unevaluatedItems unevaluatedProperties "
    "uniqueItems writeOnly"
)
_KEYWORDS = frozenset(_NAMES.split())
_ELSEWHERE = frozenset({"discriminator", "example", "externalDocs", "name", "strict", "summary", "xml"})
"""Keywords of OpenAPI and of model APIs that validate nothing."""
_MOST_SLIPS = 20


def schema_slips(written: WrittenSchema, place: SourcePath) -> list[Problem]:
    """Return warnings about a valid schema that checks less than it seems to, such as misspelt keywords."""
    schema = parse_schema(written)
    unknown = unknown_keywords(json.dumps(schema))
    told = [
        (f"JSON Schema does not define `{key}`, so it checks nothing", f"did you mean `{near}`?")
        for key in unknown[:_MOST_SLIPS]
        if key not in _ELSEWHERE and (near := did_you_mean(key, _KEYWORDS) or _nearest_format(key))
    ]
    if not told and isinstance(schema, dict) and schema and _KEYWORDS.isdisjoint(schema):
        hint = "put the names of properties under `properties`"
        told.append(("this schema allows every value: it has no keyword of JSON Schema", hint))
    where = place.key() if isinstance(written, dict) else place.value()
    return [Problem(message, where, hint, severity=Severity.WARNING) for message, hint in told]


@lru_cache(maxsize=256)
def unknown_keywords(schema_text: str) -> tuple[str, ...]:
    """Return the keys of a valid schema that are not keywords, which validation ignores; each once.

    Misspelt formats are included, in the form `format: emial`.
    """
    schema: Schema = json.loads(schema_text)
    specification = specification_with(_validator_class(schema).META_SCHEMA["$schema"])
    pending = [specification.create_resource(schema)]
    found = dict[str, None]()
    while pending:
        part = pending.pop()
        if isinstance(part.contents, dict):
            found |= dict.fromkeys(key for key in part.contents if key not in _KEYWORDS)
            if _nearest_format(form := f"format: {part.contents.get('format')}"):
                found[form] = None
        pending.extend(part.subresources())
    return tuple(found)


def _nearest_format(written: str) -> str | None:
    """Return the format that `format: emial` probably means; None for a known format, or if nothing is similar."""
    start, _, name = written.partition(": ")
    is_known = start != "format" or name in _FORMATS.checkers or name.startswith("iri")
    return None if is_known else did_you_mean(name, _FORMATS.checkers)


def schema_errors(value: JsonValue, schema: Schema) -> list[str]:
    """Return the ways in which `value` violates a valid `schema`, each as `path: message`; at most a thousand.

    Raises:
        CheckTimeoutError: validation takes too long.
    """
    return within(CHECK_TIMEOUT_S, "validating against the JSON Schema", raw_schema_errors, value, schema)


def raw_schema_errors(value: JsonValue, schema: Schema) -> list[str]:
    """Return the same as `schema_errors`, without a time limit: for callers that set their own."""
    try:
        found = islice(_validator(json.dumps(schema)).iter_errors(value), _MAX_ERRORS)
        errors = sorted(found, key=lambda error: error.json_path)
    except Unresolvable as error:
        message = f"the JSON Schema refers to something that it does not contain: {error}"
        raise UnjudgeableError(message, hint="put it under `$defs`") from error
    except BaseException as error:
        if not _is_too_deep(error):
            raise
        message = "the output, or the JSON Schema, is nested too deeply to be validated"
        raise UnjudgeableError(message, hint="limit the depth that the schema allows") from error
    return [f"{error.json_path}: {shortened(error.message, _MESSAGE_SHOWN)}" for error in errors]


async def schema_verdict(value: JsonValue, schema: Schema, **detail: JsonValue) -> Outcome:
    """Return score 1 for a valid value, else 0; the reason shows the first errors, `detail["errors"]` has all of them.

    Raises:
        CheckTimeoutError: validation takes too long.
    """
    errors = await asyncio.to_thread(schema_errors, value, schema)
    if not errors:
        return Outcome.of(True, "the output is JSON and valid against the schema", **detail)
    shown = "; ".join(errors[:_ERRORS_SHOWN])
    more = f"; and {len(errors) - _ERRORS_SHOWN} more" if len(errors) > _ERRORS_SHOWN else ""
    reason = f"the output is JSON, but not valid against the schema: {shown}{more}"
    return Outcome.of(False, reason, errors=errors, **detail)


def _is_too_deep(error: BaseException) -> bool:
    # jsonschema's Rust parts panic when Python's stack overflows inside them; that is not an `Exception`.
    return isinstance(error, RecursionError) or type(error).__name__ == "PanicException"


@lru_cache(maxsize=256)
def _flaws(schema_text: str) -> tuple[_SchemaProblem, ...]:
    """Return the problems of a schema, given as text for the cache: many tests share one, and checks are slow."""
    schema: Schema = json.loads(schema_text)
    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        message = "broken JSON Schema: `$schema` must be text"
        return (_SchemaProblem(message, "name a draft, or leave it out", ("$schema",)),)
    try:
        _validator_class(schema).check_schema(schema, format_checker=_FORMATS)
        flaws = tuple(_reference_flaws(schema))
        if not flaws:
            # Endless self-references show with any value.
            _validator(schema_text).is_valid(None)
    except SchemaError as error:
        where = f" (at {error.json_path})" if error.json_path != "$" else ""
        message = f"broken JSON Schema: {error.message}{where}"
        return (_SchemaProblem(message, "fix the schema", tuple(error.absolute_path)),)
    except BaseException as error:
        if not _is_too_deep(error):
            raise
        message = "broken JSON Schema: it refers to itself endlessly, or is nested too deeply"
        return (_SchemaProblem(message, "fix the schema"),)
    return flaws


def _reference_flaws(schema: Schema) -> Iterator[_SchemaProblem]:
    specification = specification_with(_validator_class(schema).META_SCHEMA["$schema"])
    resource: Resource[Any] = specification.create_resource(schema)
    resolver = REGISTRY.resolver_with_root(resource)
    pending = [(resource, resolver)]
    seen: set[str] = set()
    while pending:
        part, scope = pending.pop()
        for reference in _references(part.contents):
            try:
                scope.lookup(reference)
            except (Unresolvable, ValueError):
                if reference not in seen:
                    yield _unresolved(reference)
                seen.add(reference)
        yield from _pattern_flaws(part.contents)
        for inner in part.subresources():
            pending.append((inner, scope.in_subresource(inner)))


def _pattern_flaws(contents: JsonValue) -> Iterator[_SchemaProblem]:
    if not isinstance(contents, dict):
        return
    named = contents.get("patternProperties")
    for pattern in (contents.get("pattern"), *(named if isinstance(named, dict) else ())):
        try:
            if isinstance(pattern, str):
                compiled(_as_python(pattern))
        except regex.error as error:
            yield _SchemaProblem(
                f"broken pattern `{shortened(pattern)}` in the schema: {error}", "fix the pattern"
            )


def _references(contents: JsonValue) -> list[str]:
    if not isinstance(contents, dict):
        return []
    return [contents[name] for name in _REFERENCES if isinstance(contents.get(name), str)]


def _unresolved(reference: str) -> _SchemaProblem:
    if reference.startswith("#"):
        return _SchemaProblem(
            f"the schema refers to `{reference}`, which it does not contain", "add it under $defs"
        )
    hint = "put the schema it names into this one, under $defs"
    return _SchemaProblem(f"the schema refers to `{reference}`, which is not fetched", hint)


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Validator:
    schema: Any = json.loads(schema_text)
    # Without an explicit registry, jsonschema fetches remote references itself.
    validator: Validator = _validator_class(schema)(schema, registry=Registry(), format_checker=_FORMATS)
    return validator


def _validator_class(schema: Schema) -> Any:
    """Return the validator of the draft in `$schema`, else of 2020-12; `Any`, as the stubs lack boolean schemas."""
    return _with_time_limits(validator_for(schema, default=Draft202012Validator))


@cache
def _with_time_limits(draft: Any) -> Any:
    """Return the draft with regular expressions that time out: a match by `re` cannot be interrupted."""
    checks = {name: _rebound(check) for name, check in draft.VALIDATORS.items()}
    check_type = checks["type"]
    # `nullable` is OpenAPI's keyword, which AJV supports too.
    checks["type"] = lambda validator, types, value, schema: (
        ()
        if value is None and schema.get("nullable") is True
        else check_type(validator, types, value, schema)
    )
    return extend(draft, {**checks, "multipleOf": _multiple_of})  # type: ignore[no-untyped-call]  # the stubs leave it open


def _multiple_of(_: Validator, step: float, value: JsonValue, __: Schema) -> Iterator[ValidationError]:
    """Yield an error unless a number is a multiple in decimal notation: 19.99 is one of 0.01, but not as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if abs(value) == math.inf or (Fraction(str(value)) / Fraction(str(step))).denominator != 1:
        yield ValidationError(f"{value!r} is not a multiple of {step}")


_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ATOM = "[a-z0-9!#$%&'*+/=?^_`{|}~-]+"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_VARIABLE = "(?:[a-z0-9_.]|%[0-9a-f]{2})+(?::[1-9][0-9]{0,3}|[*])?"
_WRITTEN = {
    "duration": r"P(?!$)(?:\d+W|(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+S)?)?)",
    "email": rf'(?:{_ATOM}(?:[.]{_ATOM})*|"(?:[^"\\]|\\.)*")@(?:{_LABEL}(?:[.]{_LABEL})*|\[[0-9a-f:.]+\])',
    "hostname": rf"(?=.{{1,254}}$){_LABEL}(?:[.]{_LABEL})*[.]?",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "uri-template": (
        r"""(?:[^\x00-\x20"'<>%\\^`{|}]|%[0-9a-f]{2}|"""
        rf"""\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"""
    ),
}
"""Patterns for the formats that jsonschema checks loosely, or only with optional packages."""


def _formats() -> FormatChecker:
    formats = FormatChecker()
    for name, written in _WRITTEN.items():
        flags = re.ASCII if name == "duration" else re.IGNORECASE | re.ASCII | re.DOTALL
        fits = re.compile(written, flags).fullmatch
        formats.checks(name)(lambda value, fits=fits: not isinstance(value, str) or bool(fits(value)))
    # A FormatChecker for all drafts uses draft 3's `time`, which has no time zone.
    formats.checks("time")(
        lambda value: not isinstance(value, str) or validate_rfc3339(f"1970-01-01T{value.upper()}")
    )
    formats.checks("regex", raises=regex.error)(
        lambda value: not isinstance(value, str) or bool(compiled(_as_python(value)))
    )
    return formats


@lru_cache(maxsize=512)
def _as_python(pattern: str) -> str:
    """Return a schema's JavaScript pattern translated for the module `regex`; Python-only patterns are unchanged."""
    escapes = (found[1] for found in re.finditer(r"\\(.)", pattern, re.DOTALL))
    is_foreign = any(letter.isalpha() and letter not in "dDwWsSbBfnrtvcxukpP" for letter in escapes)
    if is_foreign or not is_javascript_pattern(pattern):
        return pattern
    return python_pattern(pattern, is_unicode=True)


_FORMATS = _formats()


class _LimitedPatterns:
    """A stand-in for the module `re` in jsonschema's checks, which use nothing else of it."""

    @staticmethod
    def search(pattern: str, text: str) -> bool:
        return is_found(_as_python(pattern), text)


def _rebound(check: Any) -> Any:
    """Return a copy of a jsonschema function that uses `_LimitedPatterns` instead of `re`."""
    if not isinstance(check, FunctionType) or not check.__module__.startswith("jsonschema."):
        return check
    scope = _limited_scope(check.__module__)
    return FunctionType(check.__code__, scope, check.__name__, check.__defaults__, check.__closure__)


@cache
def _limited_scope(module: str) -> dict[str, Any]:
    """Return the namespace of a jsonschema module, with its own functions and those that it imports rebound."""
    own = vars(sys.modules[module])
    scope = {**own, "re": _LimitedPatterns}
    for name, value in own.items():
        if isinstance(value, FunctionType) and value.__module__ == module:
            scope[name] = FunctionType(
                value.__code__, scope, value.__name__, value.__defaults__, value.__closure__
            )
        elif isinstance(value, FunctionType):
            scope[name] = _rebound(value)
        elif isinstance(value, ModuleType) and value.__name__.startswith("jsonschema._"):
            scope[name] = SimpleNamespace(**_limited_scope(value.__name__))
    return scope


_LONGEST = 100_000  # characters of one object
# Characters in total, as each unclosed brace is read to the end of the text.
_MOST_READ = 300_000


class SchemaEvaluationAssertion(Assertion):
    """evaluation-schema: the schema of a test for an answer in the mode `schema`; located at the schema."""

    value: WrittenSchema | None = None
    parsing: EvaluationParsing = "strict"

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the test's schema; an empty schema has none."""
        written = none_if_empty(self.value)
        if written is None:
            return []
        return schema_problems(written, "`evaluation_schema`", self.place) or schema_slips(
            written, self.place
        )

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Parse the output, strictly or tolerantly, and validate it; without a schema nothing is evaluated."""
        return await evaluate_text(subject.text, self.value, self.parsing)


async def evaluate_text(text: str, schema: WrittenSchema | None, parsing: EvaluationParsing) -> Outcome:
    """Return the verdict on a text by a schema without problems; an empty schema evaluates nothing."""
    written = none_if_empty(schema)
    if written is None:
        return Outcome.not_evaluated("the test has no `evaluation_schema`")
    try:
        is_tolerant = parsing == "tolerant"
        found = find_json(text) if is_tolerant else FoundJson(parse_strict_json(text), "whole output")
    except ValueError as error:
        hint = _hint(text, parsing)
        return Outcome.of(False, f"the output is not JSON: {error}{hint}", parsing=parsing)
    return await schema_verdict(found.value, parse_schema(written), parsing=parsing, found_in=found.found_in)


def _hint(text: str, parsing: EvaluationParsing) -> str:
    """Return a hint for an answer with text around its JSON; empty for others."""
    if parsing == "tolerant":
        return ""
    try:
        found = find_json(text)
    except ValueError:
        return ""
    return f" (there is JSON in it, in a {found.found_in}; `evaluation_parsing: tolerant` reads that)"


def loose_objects(text: str) -> Iterator[JsonValue]:
    """Yield the outermost objects in a text; braces missing at the end of the text are added.

    Unquoted keys, single quotes and extra commas are accepted. Lists are skipped, but not the objects in them.
    """
    start = text.find("{")
    effort = _MOST_READ
    while start >= 0 and effort > 0:
        end, missing = _end_of(text, start)
        effort -= end - start
        found = _read(text[start:end] + "}" * missing)
        if found is None:
            start = text.find("{", start + 1)
        else:
            yield found
            start = text.find("{", end)


def _end_of(text: str, start: int) -> tuple[int, int]:
    """Return where the brace at `start` closes, or the text or the limit ends, and how many braces are missing."""
    depth = 0
    last = min(start + _LONGEST, len(text))
    for place in range(start, last):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place + 1, 0
    return last, depth


def _read(written: str) -> JsonValue:
    """Return the value parsed as JSON, else the object or list parsed as YAML, else None."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        pass
    try:
        found = read_yaml(written, "output").value
    except (ConfigError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


class IsJsonAssertion(Assertion):
    """is-json, contains-json: the output is, or contains, JSON that matches the schema in `value`, if set."""

    value_form = "schema"
    value_may_be_null = True

    value: WrittenSchema | None = Field(
        None, description="A JSON Schema for the output, or file:// with one."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the schema itself: it must be valid and refer only to itself."""
        problems: list[Problem] = []
        written = _schema_of(self)
        if isinstance(written, str) and context.rules.schema_is_template:
            written = context.render(written, self.place.value("value"), problems)
        if written is None:
            return problems
        problems = schema_problems(written, f"the `value` of {self.base_type}", self.place.child("value"))
        if not problems:
            problems = schema_slips(written, self.place.child("value"))
        if not problems and not context.rules.schema_is_template:
            hint = "write the value out, or use a python assertion"
            problems += unrendered(written, "the schema", hint, context, self.place.value("value"))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Find the JSON and validate it; the reason lists the errors with their JSON paths.

        Raises:
            CheckTimeoutError: it takes too long.
        """
        written = _schema_of(self)
        if isinstance(written, str) and tools.rules.schema_is_template:
            written = tools.templates.render(written, subject.test.variables)
        schema = None if written is None else parse_schema(written)
        if self.base_type == "contains-json":
            find = loose_objects if tools.rules.finds_loose_json else every_json
            what = "looking for JSON in the output"
            return await asyncio.to_thread(
                within, CHECK_TIMEOUT_S, what, _some_json, find(subject.text), schema
            )
        try:
            value = parse_strict_json(subject.text)
        except ValueError as error:
            return Outcome.of(False, f"the output is not JSON: {error}")
        return (
            Outcome.of(True, "the output is JSON") if schema is None else await schema_verdict(value, schema)
        )


def _some_json(values: Iterator[JsonValue], schema: Schema | None) -> Outcome:
    """Check that one of the JSON values is valid; if none is, give the errors of the one with the fewest."""
    nearest: list[str] | None = None
    count = 0
    for value in values:
        count += 1
        errors = [] if schema is None else raw_schema_errors(value, schema)
        if not errors:
            kind = "list" if isinstance(value, list) else "object"
            fits = "" if schema is None else " that is valid against the schema"
            found_reason = shortened(f"the output contains a JSON {kind}{fits}")
            return Outcome.of(True, found_reason)
        if nearest is None or len(errors) < len(nearest):
            nearest = errors
    if nearest is None:
        return Outcome.of(False, "there is no JSON object or list in the output")
    which = "the JSON in the output" if count == 1 else f"none of the {count} JSON values in the output"
    is_not = "is not valid" if count == 1 else "is valid"
    reason = f"{which} {is_not} against the schema: {'; '.join(nearest[:5])}"
    return Outcome.of(False, reason, errors=list(nearest))


def _schema_of(spec: IsJsonAssertion) -> dict[str, JsonValue] | bool | str | None:
    """Return the schema as written; None for blank text."""
    return none_if_empty(spec.value) if isinstance(spec.value, str) else spec.value

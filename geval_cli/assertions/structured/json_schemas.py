"""JSON Schemas of a config: whether one can work at all, and every way in which a value breaks it.

The draft is the one that `$schema` names, 2020-12 otherwise. Formats are checked. References are followed within the
schema; nothing is ever fetched.
"""

import asyncio
import json
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped] # jsonschema's own, without stubs
from msgspec import Struct
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from geval_cli.assertions.outcome import Outcome, shortened
from geval_cli.assertions.patterns import is_found
from geval_cli.assertions.structured.json_text import Schema, parse_schema
from geval_cli.errors import Problem
from geval_cli.records import JsonValue
from geval_cli.source.source_map import KeyPath, SourcePath
from geval_cli.specs.base import WrittenSchema

_ERRORS_SHOWN = 20
_MESSAGE_SHOWN = 300  # characters; jsonschema repeats the offending value, which may be the whole output
_TOO_DEEP = "$: it is nested too deeply to be validated"
_REFERENCES = ("$ref", "$dynamicRef")


class _Flaw(Struct, frozen=True):
    """A problem of a schema; `path` leads to the place within it."""

    message: str
    hint: str
    path: KeyPath = ()


def schema_problems(written: WrittenSchema, name: str, place: SourcePath) -> list[Problem]:
    """Return the problems of a schema: it is not valid, or a reference in it has no target.

    Args:
        written: the schema as the config has it.
        name: how messages call it, for example "`evaluation_schema`".
        place: where it is; problems point into it as deep as the file allows.
    """
    try:
        flaws = _flaws(json.dumps(parse_schema(written)))
    except ValueError as error:
        is_name = isinstance(written, str) and "." in written and not set(written) & set("{} \n")
        hint = f"write file://{written} if this is a file" if is_name else "write a JSON Schema"
        return [Problem(f"{name} is not a JSON Schema: {error}", place.value(), hint)]
    whole = place.key() if isinstance(written, dict) else place.value()
    return [
        Problem(flaw.message, place.value(*flaw.path) if flaw.path else whole, flaw.hint) for flaw in flaws
    ]


def schema_errors(value: JsonValue, schema: Schema) -> list[str]:
    """Return every way in which `value` breaks a sound `schema`, each as `path: message`."""
    try:
        errors = sorted(_validator(json.dumps(schema)).iter_errors(value), key=lambda error: error.json_path)
    except Unresolvable as error:
        return [f"$: the schema refers to something that it does not hold: {error}"]
    except RecursionError:
        return [_TOO_DEEP]
    return [_described(error) for error in errors]


async def schema_verdict(value: JsonValue, schema: Schema, **detail: JsonValue) -> Outcome:
    """Valid is score 1, else 0; the reason names the first errors, `detail["errors"]` holds all of them.

    Raises:
        CheckTimeoutError: a `pattern` of the schema takes too long on the value.
    """
    # In a thread: a pattern may take seconds, and a large value against a large schema too.
    errors = await asyncio.to_thread(schema_errors, value, schema)
    if not errors:
        return Outcome.of(True, "the output is JSON and valid against the schema", **detail)
    shown = "; ".join(errors[:_ERRORS_SHOWN])
    more = f"; and {len(errors) - _ERRORS_SHOWN} more" if len(errors) > _ERRORS_SHOWN else ""
    reason = f"the output is JSON, but not valid against the schema: {shown}{more}"
    return Outcome.of(False, reason, errors=errors, **detail)


@lru_cache(maxsize=256)
def _flaws(schema_text: str) -> tuple[_Flaw, ...]:
    """Return the schema as text: many tests have the same one, and looking through it takes milliseconds."""
    schema: Schema = json.loads(schema_text)
    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        message = "broken JSON Schema: `$schema` must be text"
        return (_Flaw(message, "name a draft, or leave it out", ("$schema",)),)
    try:
        _validator_class(schema).check_schema(schema)
        flaws = tuple(_reference_flaws(schema))
        if not flaws:
            # A schema that only leads back to itself does so on any value.
            _validator(schema_text).is_valid(None)
    except SchemaError as error:
        where = f" (at {error.json_path})" if error.json_path != "$" else ""
        message = f"broken JSON Schema: {error.message}{where}"
        return (_Flaw(message, "fix the schema", tuple(error.absolute_path)),)
    except RecursionError:
        message = "broken JSON Schema: it refers to itself without end, or is nested too deeply"
        return (_Flaw(message, "fix the schema"),)
    return flaws


def _reference_flaws(schema: Schema) -> Iterator[_Flaw]:
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
        for inner in part.subresources():
            pending.append((inner, scope.in_subresource(inner)))


def _references(contents: JsonValue) -> list[str]:
    if not isinstance(contents, dict):
        return []
    return [contents[name] for name in _REFERENCES if isinstance(contents.get(name), str)]


def _unresolved(reference: str) -> _Flaw:
    if reference.startswith("#"):
        return _Flaw(f"the schema refers to `{reference}`, which it does not hold", "add it under $defs")
    hint = "put the schema it names into this one, under $defs"
    return _Flaw(f"the schema refers to `{reference}`, which is not fetched", hint)


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Validator:
    schema: Any = json.loads(schema_text)
    # An explicit registry keeps jsonschema from fetching remote references by itself.
    validator: Validator = _validator_class(schema)(
        schema, registry=Registry(), format_checker=FormatChecker()
    )
    return validator


def _validator_class(schema: Schema) -> Any:
    """Return the draft that `$schema` names, 2020-12 otherwise. Its type stubs know no boolean schemas, hence Any."""
    return _with_time_limits(validator_for(schema, default=Draft202012Validator))


@cache
def _with_time_limits(draft: Any) -> Any:
    """Return the draft with regular expressions that give up, since its own would hold up everything else for ever."""
    limited = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties(draft.VALIDATORS.get("additionalProperties")),
    }
    limited = {name: check for name, check in limited.items() if name in draft.VALIDATORS}
    return extend(draft, limited)  # type: ignore[no-untyped-call]  # the stubs leave it open


def _pattern(validator: Any, pattern: str, value: JsonValue, schema: Schema) -> Iterator[ValidationError]:
    if isinstance(value, str) and not is_found(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Schema], value: JsonValue, schema: Schema
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, subschema in patterns.items():
            for name in (name for name in value if is_found(pattern, name)):
                yield from validator.descend(value[name], subschema, path=name, schema_path=pattern)


def _additional_properties(own: Any) -> Any:
    """Yield the draft's own check, which searches for patterns itself where there are some."""

    def check(validator: Any, subschema: Schema, value: JsonValue, schema: Any) -> Iterator[ValidationError]:
        patterns = sorted(schema.get("patternProperties", {}))
        if not patterns or not isinstance(value, dict):
            yield from own(validator, subschema, value, schema)
            return
        known = schema.get("properties", {})
        others = [
            name for name in value if name not in known and not any(is_found(text, name) for text in patterns)
        ]
        if isinstance(subschema, dict):
            for name in others:
                yield from validator.descend(value[name], subschema, path=name)
        elif not subschema and others:
            names = ", ".join(map(repr, sorted(others)))
            verb = "does" if len(others) == 1 else "do"
            regexes = ", ".join(map(repr, patterns))
            yield ValidationError(f"{names} {verb} not match any of the regexes: {regexes}")

    return check


def _described(error: ValidationError) -> str:
    return f"{error.json_path}: {shortened(error.message, _MESSAGE_SHOWN)}"

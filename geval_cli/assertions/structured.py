"""is-json: the whole output is JSON and, where a schema is given, valid against it."""

import json
from functools import lru_cache
from typing import Any, NoReturn

from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, shortened
from geval_cli.config.schema import AssertionSpec, IsJsonAssertionSpec
from geval_cli.errors import Problem
from geval_cli.records import JsonValue

Schema = dict[str, Any] | bool

_ERRORS_SHOWN = 20
_MESSAGE_SHOWN = 300  # characters; jsonschema repeats the offending value, which may be the whole output


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the schema itself: it must be one, and refer only to itself."""
    assert isinstance(spec, IsJsonAssertionSpec)
    place = spec.place.value("value")
    try:
        schema = schema_of(spec)
        if schema is None:
            return []
        _validator_class(schema).check_schema(schema)
        remote = sorted(_remote_references(schema))
    except ValueError as error:
        return [
            Problem(f"the `value` of is-json is not a JSON Schema: {error}", place, "write a JSON Schema")
        ]
    except SchemaError as error:
        where = f" (at {error.json_path})" if error.json_path != "$" else ""
        return [Problem(f"broken JSON Schema: {error.message}{where}", place, "mend the schema")]
    hint = "put the schema it names into this one, under $defs"
    return [Problem(f"the schema refers to `{name}`, which is not fetched", place, hint) for name in remote]


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Parse the output strictly and validate it; the reason lists every error with its JSON path."""
    assert isinstance(spec, IsJsonAssertionSpec)
    try:
        value = parse_strict_json(subject.text)
    except ValueError as error:
        return Outcome.of(False, f"the output is not JSON: {error}")
    schema = schema_of(spec)
    if schema is None:
        return Outcome.of(True, "the output is JSON")
    errors = schema_errors(value, schema)
    if not errors:
        return Outcome.of(True, "the output is JSON and valid against the schema")
    shown = "; ".join(errors[:_ERRORS_SHOWN])
    more = f"; and {len(errors) - _ERRORS_SHOWN} more" if len(errors) > _ERRORS_SHOWN else ""
    return Outcome.of(
        False, f"the output is JSON, but not valid against the schema: {shown}{more}", errors=errors
    )


def schema_of(spec: IsJsonAssertionSpec) -> Schema | None:
    """The schema of an assertion; a text value is JSON. None when there is none.

    Raises:
        ValueError: the text is not JSON, or not an object or a boolean.
    """
    if spec.value is None or isinstance(spec.value, dict | bool):
        return spec.value
    schema = parse_strict_json(spec.value)
    if not isinstance(schema, dict | bool):
        raise ValueError("it must be an object or a boolean")  # noqa: TRY004 - one kind of error for one kind of problem
    return schema


def parse_strict_json(text: str) -> JsonValue:
    """The value of a JSON text; NaN and Infinity are no JSON.

    Raises:
        ValueError: with line and column.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def schema_errors(value: JsonValue, schema: Schema) -> list[str]:
    """Every way in which `value` breaks `schema`, each as `path: message`; formats are checked."""
    try:
        errors = sorted(_validator(json.dumps(schema)).iter_errors(value), key=lambda error: error.json_path)
    except Unresolvable as error:
        return [f"$: the schema refers to something that it does not hold: {error}"]
    return [_described(error) for error in errors]


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Validator:
    schema: Any = json.loads(schema_text)
    # An explicit registry keeps jsonschema from fetching remote references by itself.
    validator: Validator = _validator_class(schema)(
        schema, registry=Registry(), format_checker=FormatChecker()
    )
    return validator


def _validator_class(schema: Schema) -> Any:
    """The draft that `$schema` names, 2020-12 otherwise. Its type stubs know no boolean schemas, hence Any."""
    return validator_for(schema, default=Draft202012Validator)


def _described(error: ValidationError) -> str:
    return f"{error.json_path}: {shortened(error.message, _MESSAGE_SHOWN)}"


def _remote_references(schema: JsonValue) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(_remote_references, schema))
    if not isinstance(schema, dict):
        return set()
    found = set().union(*map(_remote_references, schema.values()))
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        found.add(reference)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")

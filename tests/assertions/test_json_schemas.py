import json
from typing import Any

import pytest

from geval_cli.assertions import patterns
from geval_cli.assertions.json_output import schema_errors, schema_problems, schema_slips
from geval_cli.errors import CheckTimeoutError, UnjudgeableError
from geval_cli.source.source_map import SourcePath
from geval_cli.source.yaml_source import read_yaml


def messages(schema: Any) -> list[str]:
    return [
        problem.message for problem in schema_problems(schema, "`evaluation_schema`", SourcePath.nowhere())
    ]


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}},
        {"$ref": "#node", "$defs": {"n": {"$anchor": "node"}}},
        {"$id": "https://example.com/a", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "string"}}},
        {"properties": {"next": {"$ref": "#"}}},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"const": {"$ref": "https://example.com/no-reference-but-a-value"}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
        {"$schema": "https://example.com/a-draft-of-ours", "type": "object"},
        '{"type": "object"}',
    ],
)  # fmt: skip
def test_a_sound_schema_has_no_problems(schema: Any) -> None:
    assert messages(schema) == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strng"}, "broken JSON Schema: 'strng' is not valid under any of the given schemas (at $.type)"),
        ({"pattern": "("}, "broken JSON Schema: '(' is not a 'regex' (at $.pattern)"),
        ({"$schema": 7}, "broken JSON Schema: `$schema` must be text"),
        ({"$schema": ["a"]}, "broken JSON Schema: `$schema` must be text"),
        ({"$ref": "#/$defs/gone"}, "the schema refers to `#/$defs/gone`, which it does not contain"),
        ({"items": {"$ref": "other.json"}}, "the schema refers to `other.json`, which is not fetched"),
        ({"properties": {"default": {"$ref": "file:///x"}}}, "the schema refers to `file:///x`, which is not fetched"),
        ({"$ref": "#"}, "broken JSON Schema: it refers to itself endlessly, or is nested too deeply"),
        ({"$schema": "http://[bad"}, "`evaluation_schema` is not a JSON Schema: Invalid IPv6 URL"),
        ("{broken", "`evaluation_schema` is not a JSON Schema: Expecting property name enclosed in double quotes"),
        ("[1]", "`evaluation_schema` is not a JSON Schema: it must be an object or a boolean"),
        ("null", "`evaluation_schema` is not a JSON Schema: it must be an object or a boolean"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_work_is_one_problem(schema: Any, message: str) -> None:
    [found] = messages(schema)
    assert found.startswith(message)


def test_each_reference_that_leads_nowhere_is_told_once() -> None:
    schema = {"items": {"$ref": "a.json"}, "not": {"$ref": "a.json"}, "contains": {"$ref": "#/b"}}
    assert len(messages(schema)) == 2


def test_a_problem_points_at_the_line_within_the_schema() -> None:
    document = read_yaml("schema:\n  properties:\n    age:\n      type: integr\n", "config.yaml")
    [problem] = schema_problems(document.value["schema"], "`schema`", document.place.child("schema"))
    assert str(problem.location) == "config.yaml:4:13"


def test_a_problem_of_a_whole_mapping_points_at_its_key() -> None:
    document = read_yaml("\nschema:\n  $ref: '#'\n", "config.yaml")
    [problem] = schema_problems(document.value["schema"], "`schema`", document.place.child("schema"))
    assert str(problem.location) == "config.yaml:2:1"


@pytest.mark.parametrize(
    ("schema", "value", "errors"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}, 1,
         ["$: 1 is less than or equal to the minimum of 1"]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}, [1],
         ["$[0]: 1 is not of type 'string'"]),
        ({"prefixItems": [{"type": "string"}]}, [1], ["$[0]: 1 is not of type 'string'"]),
        ({"format": "email"}, "nobody", ["$: 'nobody' is not a 'email'"]),
        ({"format": "date-time"}, "yesterday", ["$: 'yesterday' is not a 'date-time'"]),
        ({"format": "uri"}, "not a uri", ["$: 'not a uri' is not a 'uri'"]),
        ({"$defs": {"n": {"minimum": 3}}, "additionalProperties": {"$ref": "#/$defs/n"}}, {"a": 1, "b": 2},
         ["$.a: 1 is less than the minimum of 3", "$.b: 2 is less than the minimum of 3"]),
        ({"format": "time"}, "12:00:00Z", []),
        ({"format": "time"}, "12:00:00", ["$: '12:00:00' is not a 'time'"]),
        ({"format": "email"}, '"a b"@c.de', []),
        ({"format": "email"}, "a b@c.de", ["$: 'a b@c.de' is not a 'email'"]),
        ({"format": "email"}, "a@b@c.de", ["$: 'a@b@c.de' is not a 'email'"]),
        ({"format": "hostname"}, "a-b.example", []),
        ({"format": "hostname"}, "a_b.example", ["$: 'a_b.example' is not a 'hostname'"]),
        ({"format": "duration"}, "P1DT2H", []),
        ({"format": "duration"}, "1 day", ["$: '1 day' is not a 'duration'"]),
        ({"format": "duration"}, "P", ["$: 'P' is not a 'duration'"]),
        ({"format": "json-pointer"}, "/a~1b", []),
        ({"format": "json-pointer"}, "a", ["$: 'a' is not a 'json-pointer'"]),
        ({"format": "relative-json-pointer"}, "1/a", []),
        ({"format": "relative-json-pointer"}, "01/a", ["$: '01/a' is not a 'relative-json-pointer'"]),
        ({"format": "uri-template"}, "/a/{b,c:3}{?d*}", []),
        ({"format": "uri-template"}, "/a/{b", ["$: '/a/{b' is not a 'uri-template'"]),
        ({"format": "regex"}, r"^\p{L}$", []),
        ({"format": "regex"}, "[", ["$: '[' is not a 'regex'"]),
        ({"multipleOf": 0.01}, 19.99, []),
        ({"multipleOf": 0.01}, 19.999, ["$: 19.999 is not a multiple of 0.01"]),
        ({"multipleOf": 2}, 10**400, []),
        ({"multipleOf": 0.1}, float("inf"), ["$: inf is not a multiple of 0.1"]),
        ({"multipleOf": 2}, True, []),
        ({"type": "string", "nullable": True}, None, []),
        ({"type": "string", "nullable": True}, 1, ["$: 1 is not of type 'string'"]),
        ({"type": "string", "nullable": False}, None, ["$: None is not of type 'string'"]),
        ({"type": "string", "nullable": True, "enum": ["a"]}, None, ["$: None is not one of ['a']"]),
        ({"pattern": "^a$"}, "a\n", ["$: 'a\\n' does not match '^a$'"]),
        ({"pattern": r"^\d$"}, "\u0661", ["$: '\u0661' does not match '^\\\\d$'"]),
        ({"pattern": r"^[\p{L}\u{1f600}]+$"}, "é😀", []),
        ({"pattern": r"(?i)\Aé\Z"}, "É", []),  # only Python knows these
        ({"patternProperties": {"^a$": False}}, {"a\n": 1}, []),
        (False, 1, ["$: False schema does not allow 1"]),
        (True, 1, []),
    ],
)  # fmt: skip
def test_values_are_validated_by_the_draft_that_the_schema_names(
    schema: Any, value: object, errors: list[str]
) -> None:
    assert schema_errors(value, schema) == errors


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (json.loads('{"next": ' * 400 + "1" + "}" * 400), {"properties": {"next": {"$ref": "#"}}}),
        ([1], {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}),
    ],
    ids=["output", "schema"],
)
def test_what_is_nested_too_deeply_is_neither_valid_nor_invalid(value: object, schema: Any) -> None:
    with pytest.raises(UnjudgeableError, match="nested too deeply"):
        schema_errors(value, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": False, "patternProperties": {"^(a|aa)+$": {}}},
        {"patternProperties": {"^(a|aa)+$": {}}, "additionalProperties": {"type": "string"}},
        {"additionalProperties": {"additionalProperties": False, "patternProperties": {"(a|aa)+$": {}}}},
        {"propertyNames": {"pattern": "^(a|aa)+$"}},
    ],
)
def test_a_pattern_for_names_that_never_ends_is_stopped(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "REGEX_TIMEOUT_S", 0.1)
    name = "a" * 60 + "!"
    with pytest.raises(CheckTimeoutError):
        schema_errors({name: {name: 1}}, schema)


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"additionalProperties": False, "patternProperties": {"^x": {}}}, {"x1": 1}, []),
        (
            {
                "additionalProperties": False,
                "patternProperties": {"^x": {}, "^w": {}},
                "properties": {"a": {}},
            },
            {"a": 1, "c": 2, "b": 3},
            ["$: 'b', 'c' do not match any of the regexes: '^w', '^x'"],
        ),
        (
            {"additionalProperties": {"type": "string"}, "patternProperties": {"^x": {}}},
            {"x": 1, "b": 3},
            ["$.b: 3 is not of type 'string'"],
        ),
        ({"additionalProperties": True, "patternProperties": {"^x": {}}}, {"b": 3}, []),
        (
            {"additionalProperties": False},
            {"b": 3},
            ["$: Additional properties are not allowed ('b' was unexpected)"],
        ),
    ],
)
def test_properties_beyond_those_named(schema: Any, value: Any, expected: list[str]) -> None:
    assert schema_errors(value, schema) == expected


@pytest.mark.parametrize(
    ("schema", "hints"),
    [
        ({"type": "object", "reqired": ["a"]}, ["did you mean `required`?"]),
        ({"anyOf": [{"items": {"min_length": 3}}]}, ["did you mean `minLength`?"]),
        ('{"type": "object", "property": {"a": {}}}', ["did you mean `properties`?"]),
        ({"requird": ["a"]}, ["did you mean `required`?"]),
        ({"name_of": "string", "age": "number"}, ["put the names of properties under `properties`"]),
        ({"properties": {"reqired": {"type": "string"}}, "required": ["reqired"]}, []),
        ({"properties": {"a": {"type": "string", "format": "emial"}}}, ["did you mean `email`?"]),
        ({"items": {"format": "date_time"}}, ["did you mean `date-time`?"]),
        ({"type": "integer", "format": "int32"}, []),
        ({"type": "string", "format": "iri"}, []),
        ({"properties": {"format": {"const": "emial"}}}, []),
        ({"$defs": {"typ": {"x-order": 1, "example": 2}}, "const": {"typ": 1}, "default": {"enums": 1}}, []),
        ({}, []),
        (True, []),
    ],
)
def test_a_misspelt_keyword_is_told(schema: Any, hints: list[str]) -> None:
    assert messages(schema) == []
    assert [problem.hint for problem in schema_slips(schema, SourcePath.nowhere())] == hints

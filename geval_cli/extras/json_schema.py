"""The JSON Schema (2020-12) of a config file, for editors: generated from the specs, plus the short forms.

It rejects what an editor can check within one file. Checks that need more (files, environment, how values fit
together) are left to the readers.
"""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin

from geval_cli.assertions.base import Assertion, ModelGradedAssertion
from geval_cli.assertions.geval_metric import (
    ChecklistItemSpec,
    GEvalFields,
    RatedDimensionSpec,
    RatedExampleSpec,
)
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import UsageError
from geval_cli.extras.decision_trees import TreeNode
from geval_cli.extras.tools.calling import SimulatedToolsSpec, ToolsSpec
from geval_cli.judge.grading import MOST_ITEMS
from geval_cli.judge.prompt import DIMENSIONS
from geval_cli.plugins import ASSERTIONS, plugin_names
from geval_cli.records import JsonValue
from geval_cli.specs.base import (
    CALIBRATED,
    WIRE_SETTINGS,
    ChatMessageSpec,
    PromptSpec,
    ProviderSpec,
    RecordedAnswerSpec,
    RubricPromptSpec,
    RunOptionsSpec,
    Score,
    Spec,
    TestOptionsSpec,
    TraceStepSpec,
    TurnSpec,
    field_options,
    spellings,
)
from geval_cli.suite.gates import DerivedMetric, GatesSpec
from geval_cli.suite.schema import SimulatedUserSpec, SimulationSpec, SuiteSpec, TestFilesSpec, TestSpec

JsonSchema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE: dict[Any, JsonSchema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Any: {},
}
_TEST_FILE: JsonSchema = {
    "type": "string",
    "pattern": "^(file|https?|s3|huggingface)://.",
    "description": "A tests file or its URL.",
}


def config_json_schema(*, with_plugins: bool = False) -> JsonSchema:
    """Return the schema of a whole config file, including every short form and spelling.

    `with_plugins` adds the assertions of installed packages; those that fail to load are skipped.
    """
    types = dict(ASSERTION_TYPES)
    for name in plugin_names(ASSERTIONS) if with_plugins else ():
        with suppress(UsageError):
            types.setdefault(name, ASSERTION_TYPES[name])
    gates = _list_of({"type": "string"})
    profile = {"anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1}]}
    margin = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    return {
        "$schema": _DIALECT,
        "title": "geval config",
        **_spec_schema(
            SuiteSpec,
            {
                "prompts": _one_or_list(_reference("prompt")),
                "providers": _one_or_list(_reference("provider")),
                "default_test": _reference("test"),
                "tests": {"anyOf": [_TEST_FILE, _list_of(_test_entry(), at_least=1)]},
                "tools": _reference("tools"),
                "profiles": {
                    "anyOf": [{"type": "string", "pattern": "^file://."}, _list_of(profile, at_least=1)]
                },
                "options": _spec_schema(RunOptionsSpec, {}),
                "derived_metrics": _list_of(_spec_schema(DerivedMetric, {})),
                "margin": {"anyOf": [margin, {"type": "object", "additionalProperties": margin}]},
                "gates": {"anyOf": [gates, _spec_schema(GatesSpec, {"conditions": gates})]},
            },
        ),
        "$defs": {
            "prompt": _prompt_schema(),
            "chatMessages": _list_of(_spec_schema(ChatMessageSpec, {}), at_least=1),
            "provider": _provider_schema(),
            "test": _spec_schema(TestSpec, _test_forms()),
            "tools": _tools_schema(),
            "treeNode": _tree_schema(),
            "testOptions": _spec_schema(TestOptionsSpec, _judge_forms()),
            "assertion": _assertion_schema(types),
            "jsonSchema": {"type": ["object", "boolean", "string", "null"]},
            "rubric": _rubric_schema(),
            "rubricPrompt": {
                "anyOf": [{"type": "string"}, _reference("chatMessages"), _spec_schema(RubricPromptSpec, {})]
            },
        },
    }


def _reference(name: str) -> JsonSchema:
    return {"$ref": f"#/$defs/{name}"}


def _list_of(item: JsonSchema, *, at_least: int = 0) -> JsonSchema:
    return {"type": "array", "items": item, **({"minItems": at_least} if at_least else {})}


def _one_or_list(item: JsonSchema) -> JsonSchema:
    return {"anyOf": [item, _list_of(item, at_least=1)]}


def _test_entry() -> JsonSchema:
    columns = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
    files = _spec_schema(TestFilesSpec, {"path": _TEST_FILE, "columns": columns})
    return {
        "if": {"type": "object", "required": ["path"]},
        "then": files,
        "else": {"anyOf": [_reference("test"), _TEST_FILE]},
    }


def _test_forms() -> dict[str, JsonSchema]:
    image = {"type": "string", "pattern": "^(file://|data:image/)"}
    recording = {"type": "string", "pattern": "^(file://|data:audio/)"}
    return {
        "assertions": _list_of(_reference("assertion")),
        "options": _reference("testOptions"),
        "evaluation_schema": _reference("jsonSchema"),
        "images": {"anyOf": [image, _list_of(image, at_least=1)]},
        "audio": {"anyOf": [recording, _list_of(recording, at_least=1)]},
        "provider": _reference("provider"),
        "trace": _list_of(_spec_schema(TraceStepSpec, {})),
        "turns": {
            "anyOf": [
                _list_of(_spec_schema(TurnSpec, {}), at_least=1),
                _spec_schema(SimulationSpec, {"simulate": _simulated_user_schema()}),
            ]
        },
        "tools": _reference("tools"),
    }


def _tools_schema() -> JsonSchema:
    functions = {"type": "string", "pattern": r"^file://.+\.py(:\w+)?$"}
    file = {"type": "string", "pattern": "^file://"}
    listed = _list_of(functions, at_least=1)
    forms = {
        "functions": {"anyOf": [functions, listed]},
        "definitions": {"anyOf": [file, {"type": "object"}, _list_of({"type": "object"}, at_least=1)]},
        "simulate": _spec_schema(SimulatedToolsSpec, {"provider": _reference("provider")}),
        "recorded": {"anyOf": [file, _list_of(_spec_schema(RecordedAnswerSpec, {}), at_least=1)]},
    }
    return {"anyOf": [functions, listed, _spec_schema(ToolsSpec, forms)]}


def _simulated_user_schema() -> JsonSchema:
    forms: dict[str, JsonSchema] = {
        "user": _reference("provider"),
        "profile": {"anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1}]},
        "done_when": {"anyOf": [{"type": "string"}, _reference("assertion")]},
    }
    return _spec_schema(SimulatedUserSpec, forms)


def _judge_forms() -> dict[str, JsonSchema]:
    return {
        "provider": _reference("provider"),
        "rubric_prompt": _reference("rubricPrompt"),
        "rubric": _reference("rubric"),
        "assertions": _list_of(_reference("assertion"), at_least=1),
        "tree": _reference("treeNode"),
    }


def _prompt_schema() -> JsonSchema:
    forms = {
        "messages": _reference("chatMessages"),
        "evaluation_criteria": {"type": ["string", "null"]},
        "expected_schema": {"type": ["object", "string", "null"]},
    }
    written_out = _spec_schema(PromptSpec, forms)
    written_out["oneOf"] = [{"required": [name]} for name in ("raw", "messages", "system")]
    return {"anyOf": [{"type": "string"}, _reference("chatMessages"), written_out]}


def _provider_schema() -> JsonSchema:
    written_out = _spec_schema(ProviderSpec, {"config": {"type": "object", "properties": config_schema()}})
    others = {name: form for name, form in written_out["properties"].items() if name != "id"}
    keyed = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": {"pattern": ":"},
        "additionalProperties": {
            "type": ["object", "null"],
            "properties": others,
            "additionalProperties": False,
        },
    }
    return {"anyOf": [{"type": "string", "minLength": 1}, written_out, keyed]}


def _assertion_schema(types: Mapping[str, type[Assertion]]) -> JsonSchema:
    """Return a branch for each assertion class, selected by `type`, so that editors report errors for the right one."""
    kinds: dict[type[Assertion], list[str]] = {}
    for name, model in types.items():
        kinds.setdefault(model, []).extend([name, f"not-{name}"])
    names = [name for group in kinds.values() for name in group]
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": names}},
        "allOf": [
            {
                "if": {"required": ["type"], "properties": {"type": {"enum": group}}},
                "then": _kind_schema(model),
            }
            for model, group in kinds.items()
        ],
    }


def _tree_schema() -> JsonSchema:
    end = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, _reference("treeNode")]}
    choices = {"type": "object", "minProperties": 2, "additionalProperties": end}
    forms = {"assertion": _reference("assertion"), "yes": end, "no": end, "choices": choices}
    return {
        **_spec_schema(TreeNode, forms),
        "oneOf": [{"required": ["question"]}, {"required": ["assert"]}],
        "anyOf": [{"required": ["yes", "no"]}, {"required": ["question", "choices"]}],
    }


def _kind_schema(model: type[Assertion]) -> JsonSchema:
    forms = _judge_forms()
    if issubclass(model, GEvalFields):
        rated = {"anyOf": [{"enum": list(DIMENSIONS)}, _spec_schema(RatedDimensionSpec, {})]}
        forms["dimension"] = {"enum": list(DIMENSIONS)}
        forms["dimensions"] = _list_of(rated, at_least=2)
        item = {"anyOf": [{"type": "string", "minLength": 1}, _spec_schema(ChecklistItemSpec, {})]}
        forms["checklist"] = {**_list_of(item, at_least=1), "maxItems": MOST_ITEMS}
        examples = _list_of(_spec_schema(RatedExampleSpec, {}), at_least=1)
        forms["examples"] = {"anyOf": [{"type": "string", "pattern": "^file://"}, examples]}
        forms["provider"] = {"anyOf": [forms["provider"], _list_of(forms["provider"], at_least=2)]}
    if issubclass(model, ModelGradedAssertion):
        forms["threshold"] = {"anyOf": [_field_schema(Score), {"const": CALIBRATED}]}
    schema = _spec_schema(model, forms)
    schema["description"] = inspect.cleandoc(model.__doc__ or "")
    return schema


def _rubric_schema() -> JsonSchema:
    text = {"type": "string", "minLength": 1}
    number = {"type": "number"}
    pair = {"type": "array", "prefixItems": [number, text], "items": False, "minItems": 2}
    span = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
    return {
        "anyOf": [
            {"type": "object", "minProperties": 1, "additionalProperties": text},
            _list_of(
                {
                    "anyOf": [
                        pair,
                        _closed({"score": number, "description": text}),
                        _closed({"score_range": span, "expected_outcome": text}),
                    ]
                },
                at_least=1,
            ),
        ]
    }


def _closed(properties: Mapping[str, JsonSchema]) -> JsonSchema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _spec_schema(model: type[Spec], forms: Mapping[str, JsonSchema]) -> JsonSchema:
    """Return the object schema of a spec; `forms` replaces the schemas of fields that have short forms."""
    properties: dict[str, JsonSchema] = {}
    required: dict[str, list[str]] = {}
    for spelling, name in spellings(model).items():
        info = model.model_fields[name]
        schema_of_key = forms.get(name) or _field_schema(info)
        if info.description:
            schema_of_key = {"description": info.description, **schema_of_key}
        properties[spelling] = schema_of_key
        if info.is_required():
            required.setdefault(name, []).append(spelling)
    schema: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, **_required(required.values())}


def _required(keys: Iterable[list[str]]) -> JsonSchema:
    """Return a schema that requires one spelling from each list in `keys`."""
    single = [spelling for spelling, *others in keys if not others]
    several = [{"anyOf": [{"required": [name]} for name in names]} for names in keys if len(names) > 1]
    return {**({"required": single} if single else {}), **({"allOf": several} if several else {})}


def _field_schema(annotation: Any) -> JsonSchema:
    options = [_option_schema(base, limits) for base, limits in field_options(annotation)]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _option_schema(base: Any, limits: Mapping[str, float]) -> JsonSchema:
    origin = get_origin(base)
    arguments = get_args(base)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is dict:
        entries = _field_schema(arguments[1])
        return {"type": "object", **({"additionalProperties": entries} if entries else {})}
    if origin is tuple and Ellipsis not in arguments:
        count = len(arguments)
        return {"type": "array", "items": _field_schema(arguments[0]), "minItems": count, "maxItems": count}
    if origin in (tuple, list):
        return _list_of(_field_schema(arguments[0]))
    if base in _SIMPLE:
        return {**_SIMPLE[base], **limits}
    # Plugins may use any type.
    return _spec_schema(base, {}) if isinstance(base, type) and issubclass(base, Spec) else {}


_SECONDS = {"type": "number", "exclusiveMinimum": 0}
_CAP = {"type": "number", "exclusiveMinimum": 0}
_PLAIN = ("number", "integer", "boolean")
OWN_SETTINGS: Mapping[tuple[str, ...], tuple[Mapping[str, JsonValue], str]] = {
    ("base_url", "apiBaseUrl"): ({"type": "string"}, "The base address of the API."),
    ("client_cert", "clientCert"): (
        {"type": "string"},
        "A client certificate (a PEM file), if the server requires one.",
    ),
    ("client_key", "clientKey"): (
        {"type": "string"},
        "The private key of `client_cert`, unless that file contains it.",
    ),
    ("api_endpoint", "apiEndpoint"): (
        {"type": "string"},
        "The full address of the endpoint; nothing is added to it.",
    ),
    ("api_host", "apiHost"): ({"type": "string"}, "The host of the API, without https://."),
    ("api_key_env", "apiKeyEnvar"): ({"type": "string"}, "The environment variable with the API key."),
    ("api_key", "apiKey"): ({"type": "string"}, "The API key itself. Prefer `api_key_env`."),
    ("api_key_command", "apiKeyCommand"): (
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "A program with its arguments that prints the API key, for tokens that expire.",
    ),
    ("cloud_login", "cloudLogin"): (
        {"type": "boolean"},
        "`true`: use this machine's login at Google Cloud (`vertex:`) or Azure (`azure:`) even if a variable holds a"
        " key or the address is not the cloud's; `false`: never.",
    ),
    ("token_scope", "azureTokenScope"): (
        {"type": "string"},
        "The scope of Azure's tokens, if not that of the address; or AZURE_TOKEN_SCOPE.",
    ),
    ("api_version", "apiVersion"): (
        {"type": "string"},
        "The version of the API; by default 2024-10-21 (or OPENAI_API_VERSION, AZURE_API_VERSION) for Azure,"
        " 2023-06-01 for Anthropic.",
    ),
    ("headers",): ({"type": "object"}, "Additional request headers."),
    ("passthrough",): (
        {"type": "object"},
        "Parameters to send unchecked, even if geval has a setting of the same name.",
    ),
    ("timeout_s", "timeoutS"): (
        _SECONDS,
        "Time limit of a request in seconds; 300 by default, 900 for `local:`.",
    ),
    ("max_retries", "maxRetries"): (
        {"type": "integer", "minimum": 0},
        "How often to retry a request after a temporary error; 4 by default.",
    ),
    ("max_concurrency", "maxConcurrency"): (
        {"type": "integer", "minimum": 1},
        "Maximum concurrent requests; by default the run's (20), 4 for `python:` and `exec:`, `n_parallel` for"
        " `local:`.",
    ),
    ("requests_per_minute", "requestsPerMinute"): (_CAP, "Most requests per minute."),
    ("tokens_per_minute", "tokensPerMinute"): (_CAP, "Most tokens per minute."),
    ("delay_ms", "delayMs"): (
        {"type": "number", "minimum": 0},
        "Pause between two requests in milliseconds; 0 by default.",
    ),
    ("price",): (
        {"type": ["object", "string"]},
        "US dollars per million tokens: {input, output, cached_input, batch}; or `list` for the vendor's list price.",
    ),
    ("batch",): (
        {"enum": ["openai", False]},
        "The server's batch API for --batch: `openai`, or false to send requests directly.",
    ),
    ("batch_deployment", "batchDeployment"): (
        {"type": "string"},
        "Azure: the Global Batch deployment of the same model, for --batch.",
    ),
    ("batch_s3", "batchS3"): ({"type": "string"}, "Bedrock: the folder in S3 for the files of --batch."),
    ("batch_role_arn", "batchRoleArn"): (
        {"type": "string"},
        "Bedrock: the ARN of the role that reads and writes these files.",
    ),
}
"""geval's own keys by their spellings, for editors; `providers.options` checks them."""


def config_schema() -> dict[str, JsonValue]:
    """Return the JSON Schemas of the keys in a provider's `config`; other keys are allowed, too.

    Of the request parameters, only numbers and flags are included: a program used as a provider may give strings and
    objects another meaning.
    """
    own = {
        spelling: {**schema, "description": description}
        for spellings, (schema, description) in OWN_SETTINGS.items()
        for spelling in spellings
    }
    wire = {
        name: dict(kind.schema) for name, kind in WIRE_SETTINGS.items() if kind.schema.get("type") in _PLAIN
    }
    return {**wire, **own}

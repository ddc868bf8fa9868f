from pathlib import Path

import jsonschema
import pytest

from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.extras.starter import starter_config
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import read_document
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import ProviderSpec
from geval_cli.suite.schema import SuiteSpec, TestSpec

INVALID = Path(__file__).parent / "invalid"
# What is wrong with these an editor can see without reading other files.
VISIBLE_IN_A_SCHEMA = [
    "unknown_assertion_key",
    "unknown_top_level_key",
    "unknown_test_key",
    "unknown_provider_key",
    "unknown_option_keys",
    "place_is_no_key",
    "threshold_is_text",
    "threshold_seven",
    "wrong_types",
    "bad_choice",
    "out_of_range",
    "unknown_assertion_type",
    "missing_type",
    "missing_value",
    "assert_is_null",
    "assert_is_mapping",
    "no_values",
    "empty_lists",
    "list_at_top",
    "text_at_top",
    "unicode_before_caret",
    "tab_before_caret",
    "secret_in_the_line",
    "prompt_bodies",
    "bad_providers",
    "bad_rubrics",
    "bad_rubric_prompt",
    "env_is_not_text",
    "unknown_dialect",
    "tests_of_wrong_kind",
    "test_is_text",
    "default_test_problems",
    "alias_points_home",
    "many_problems",
]


def test_it_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(config_json_schema())


@pytest.mark.parametrize("name", VISIBLE_IN_A_SCHEMA)
def test_it_refuses_what_an_editor_can_see(name: str) -> None:
    value = read_document(INVALID / f"{name}.yaml", TRUSTED).value
    assert not jsonschema.Draft202012Validator(config_json_schema()).is_valid(value)


def test_it_takes_the_starter_config() -> None:
    jsonschema.Draft202012Validator(config_json_schema()).validate(
        read_yaml(starter_config("local:smollm2"), "x").value
    )


@pytest.mark.parametrize(
    "model", [SuiteSpec, TestSpec, ProviderSpec, *dict.fromkeys(ASSERTION_TYPES.values())]
)
def test_every_key_is_described(model: type[SuiteSpec]) -> None:
    bare = [name for name, info in model.model_fields.items() if name != "place" and not info.description]
    assert bare == []


def test_types_are_listed_with_their_negation() -> None:
    names = config_json_schema()["$defs"]["assertion"]["properties"]["type"]["enum"]
    assert set(names) == set(ASSERTION_TYPES) | {f"not-{name}" for name in ASSERTION_TYPES}

"""Each good config in `valid/` and the suite that it becomes, written out with every short form resolved."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.suites import load_suite

from geval_cli.assertions.base import MergedTest
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import read_document
from geval_cli.specs.base import Spec
from geval_cli.suite.suite import LoadedSuite

VALID = Path(__file__).parent / "valid"
CONFIGS = sorted(path for path in VALID.iterdir() if path.suffix == ".yaml" or path.name == "suite.json")
ENV = {"CITY": "Rome"}


def plain(value: object) -> Any:
    """A spec or a test case as JSON data, without what was not given."""
    if isinstance(value, Spec):
        return {name: plain(getattr(value, name)) for name in sorted(value.model_fields_set - {"place"})}
    if isinstance(value, MergedTest):
        entries = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        for name in ("place", "schema_place"):
            del entries[name]
        return {name: entry for name, entry in entries.items() if entry not in (None, [], {})}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value


def described(suite: LoadedSuite) -> str:
    parts = {
        "description": suite.description,
        "prompts": plain(suite.prompts),
        "providers": plain(suite.providers),
        "options": plain(suite.options),
        "tests": plain(list(suite.tests)),
        "snapshot": suite.snapshot,
    }
    return json.dumps(parts, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_valid_config_becomes_the_expected_suite(
    path: Path, monkeypatch: pytest.MonkeyPatch, update_expected: bool
) -> None:
    monkeypatch.chdir(VALID)
    expected = path.with_name(f"{path.name}.expected")

    shown = described(load_suite(Path(path.name), env=ENV))

    if update_expected:
        expected.write_text(shown, encoding="utf-8")
    assert shown == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_valid_config_fits_the_editors_schema(path: Path) -> None:
    jsonschema.Draft202012Validator(config_json_schema()).validate(read_document(path, TRUSTED).value)


def test_every_pass_over_the_tests_yields_equal_tests() -> None:
    tests = load_suite(VALID / "tests_in_json_lines.yaml", env=ENV).tests
    assert list(tests) == list(tests)

from pathlib import Path
from typing import Any

import pytest
from support.suites import load_suite

from geval_cli.assertions.base import Assertion
from geval_cli.assertions.structured.markup import XmlRules
from geval_cli.assertions.structured.sql_output import SqlRules
from geval_cli.assertions.text.word_count import WordRange
from geval_cli.source.edit.yaml_style import write_yaml


def read(folder: Path, **assertion: Any) -> Assertion:
    path = folder / "config.yaml"
    path.write_text(write_yaml({"tests": [{"output": "x", "assert": [assertion]}]}), encoding="utf-8")
    [test] = load_suite(path, env={}).tests
    [spec] = test.assertions
    return spec


def value_of(folder: Path, **assertion: Any) -> Any:
    spec: Any = read(folder, **assertion)
    return spec.value


def test_a_text_file_is_put_in_without_the_space_around_it(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\nParis \n", encoding="utf-8")
    assert value_of(tmp_path, type="contains", value="file://t.txt") == "Paris"
    assert value_of(tmp_path, type="equals", value="file://t.txt") == "Paris"


@pytest.mark.parametrize("name", ["v.json", "v.yaml"])
def test_a_file_of_data_is_put_in_as_data(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('["a", "b"]', encoding="utf-8")
    assert value_of(tmp_path, type="contains-any", value=f"file://{name}") == ("a", "b")
    assert value_of(tmp_path, type="equals", value=f"file://{name}") == ["a", "b"]


def test_a_list_may_hold_texts_and_files(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("from file", encoding="utf-8")
    assert value_of(tmp_path, type="contains-all", value=["a", "file://t.txt"]) == ("a", "from file")
    assert value_of(tmp_path, type="bleu", value=["file://t.txt", "b"]) == ("from file", "b")


def test_a_schema_may_be_a_mapping_a_file_or_json_or_yaml_text(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["a"]}
    (tmp_path / "s.yaml").write_text(write_yaml(schema), encoding="utf-8")
    assert value_of(tmp_path, type="contains-json", value=schema) == schema
    assert value_of(tmp_path, type="contains-json", value="file://s.yaml") == schema
    assert value_of(tmp_path, type="is-json", value="type: object\nrequired: [a]\n") == schema
    assert value_of(tmp_path, type="is-json", value='{"type": "object"}') == '{"type": "object"}'


def test_rules_take_both_spellings(tmp_path: Path) -> None:
    rules = {"databaseType": "SQLite", "allowed_tables": ["t"]}
    found = value_of(tmp_path, type="is-sql", value=rules)
    assert isinstance(found, SqlRules)
    assert (found.database_type, found.allowed_tables, found.allowed_columns) == ("SQLite", ("t",), None)
    assert isinstance(value_of(tmp_path, type="is-xml", value={"requiredElements": ["a"]}), XmlRules)
    words = value_of(tmp_path, type="word-count", value={"min": 2})
    assert isinstance(words, WordRange)
    assert (words.min, words.max) == (2, None)


def test_null_is_a_value_for_equals(tmp_path: Path) -> None:
    assert value_of(tmp_path, type="equals", value=None) is None


def test_the_members_of_a_set_know_their_place(tmp_path: Path) -> None:
    spec: Any = read(tmp_path, type="assert-set", threshold=0.5, **{"assert": [{"type": "is-html"}]})
    [member] = spec.assertions
    assert member.type == "is-html"
    assert member.place.value("type").key_path == "tests[0].assert[0].assert[0].type"

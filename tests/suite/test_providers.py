from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.suites import load_suite

from geval_cli.errors import ConfigError
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import ProviderSpec

_REST = "\ntests:\n  - assert: [{type: contains, value: x}]\nprompts: [x]\n"


def read(folder: Path, providers: str) -> tuple[ProviderSpec, ...]:
    path = folder / "gevalconfig.yaml"
    path.write_text(f"providers:\n{providers}{_REST}", encoding="utf-8")
    return load_suite(path, env={}).providers


@pytest.mark.parametrize(
    ("written", "config", "label"),
    [
        ("  - openai:m: {config: {temperature: 0}, label: cold}", {"temperature": 0}, "cold"),
        ("  - openai:m:\n      config:\n        temperature: 0", {"temperature": 0}, "openai:m"),
        ("  - openai:m:", {}, "openai:m"),
        ("  openai:m: {config: {seed: 1}}", {"seed": 1}, "openai:m"),
        ("  - {id: 'openai:m', config: {seed: 1}}", {"seed": 1}, "openai:m"),
    ],
)
def test_an_id_may_stand_before_its_settings(
    written: str, config: dict[str, Any], label: str, tmp_path: Path
) -> None:
    [spec] = read(tmp_path, written)
    assert (spec.id, spec.label, spec.config) == ("openai:m", label, config)
    whole = read_yaml((tmp_path / "gevalconfig.yaml").read_text(encoding="utf-8"), "x").value
    Draft202012Validator(config_json_schema()).validate(whole)


def test_a_mistake_in_the_settings_is_shown_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "  - echo\n  - openai:m:\n      konfig: {}")
    [problem] = caught.value.problems
    assert problem.location is not None
    assert (problem.location.line, "konfig" in problem.message) == (4, True)


@pytest.mark.parametrize("written", ["  - {config: {}}", "  - {openai: {config: {}}}", "  - {'a:b': 3}"])
def test_what_is_no_id_with_settings_is_a_problem(written: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path, written)


@pytest.mark.parametrize(
    ("written", "line", "column"),
    [
        ("  - id: 'openai:{{ env.X | lower }}'", 2, 9),
        ("  - \"openai:{{ env['X'] }}\"", 2, 5),
        ("  - openai:m:\n      config:\n        base_url: 'https://{{ env.X or 1 }}/v1'", 4, 19),
        ("  - openai:m:\n      config: {headers: {A: '{{ env.X }} {{env.X|default(1)}}'}}", 3, 29),
        ("  - openai:m:\n      config: {stop: [a, \"{{- env['X'] -}}\"]}", 3, 26),
    ],
)
def test_env_expressions_that_are_not_filled_in_are_refused(
    written: str, line: int, column: int, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("X=y\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, written)
    [problem] = caught.value.problems
    assert "would be sent as it is written" in problem.message
    assert problem.location is not None
    assert (problem.location.line, problem.location.column) == (line, column)


@pytest.mark.parametrize(
    "written", ["{{ prompt }}", "{{ environment.X }}", "{{ env.X }}", "{{env.N|default('x')}}"]
)
def test_other_templates_in_settings_stay(written: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("X=y\n", encoding="utf-8")
    [spec] = read(tmp_path, f'  - http://127.0.0.1: {{config: {{body: {{a: "{written}"}}}}}}')
    filled = {"{{ env.X }}": "y", "{{env.N|default('x')}}": "x"}
    assert spec.config["body"] == {"a": filled.get(written, written)}

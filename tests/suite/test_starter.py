"""`geval init` writes what runs on this machine."""

from pathlib import Path

import jsonschema
import pytest
from support.geval_command import run_geval

from geval_cli.errors import Severity
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.extras.starter import _VENDORS, choose_starter, starter_config
from geval_cli.providers.preset_table import PRESETS
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.access import TRUSTED
from geval_cli.source.yaml_source import read_yaml

KEYS = [(name, variable) for name in _VENDORS for variable in PRESETS[name].key_envs]


@pytest.mark.parametrize(("vendor", "variable"), KEYS)
def test_a_key_chooses_its_vendor_and_the_config_is_ready(tmp_path: Path, vendor: str, variable: str) -> None:
    starter = choose_starter({variable: "k"}, tmp_path, TRUSTED)
    (tmp_path / "x.yaml").write_text(starter.text)

    prepared = prepare(RunRequest(tmp_path / "x.yaml", {variable: "k"}))

    assert [spec.id for spec in prepared.suite.providers] == [PRESETS[vendor].example]
    assert [item for item in prepared.warnings if item.severity is Severity.ERROR] == []
    assert variable in starter.why


def test_a_key_in_the_folders_env_file_counts(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ANTHROPIC_API_KEY=k\n")
    assert "anthropic:" in choose_starter({}, tmp_path, TRUSTED).text


def test_the_first_of_several_vendors_wins(tmp_path: Path) -> None:
    assert (
        "OPENAI_API_KEY"
        in choose_starter({"GEMINI_API_KEY": "k", "OPENAI_API_KEY": "k"}, tmp_path, TRUSTED).why
    )


def test_without_keys_and_models_it_runs_offline(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(starter_config(None))
    done = run_geval("run", "x.yaml", cwd=tmp_path)

    assert (done.code, "PASSED" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("model", ["openai:gpt-4.1-mini", "local:smollm2", None])
def test_every_starter_fits_the_schema_and_has_no_gaps(model: str | None) -> None:
    text = starter_config(model)

    jsonschema.Draft202012Validator(config_json_schema()).validate(read_yaml(text, "x").value)
    for mark in ("ANSWERER", "JUDGE", "COMMENT", "DEFAULT_TEST"):
        assert mark not in text


def test_init_says_what_it_chose(tmp_path: Path) -> None:
    done = run_geval("init", cwd=tmp_path, env={"OPENAI_API_KEY": "k"})

    assert done.code == 0
    assert "because OPENAI_API_KEY is set" in done.stdout
    assert "openai:" in (tmp_path / "gevalconfig.yaml").read_text()

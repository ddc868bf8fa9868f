"""What `geval run` loads before it knows what a config needs: only what every run needs."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_group

from geval_cli.cli.app import EXTRA_COMMANDS


def modules_after(program: str) -> set[str]:
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.fixture(scope="module")
def loaded_to_run() -> set[str]:
    return modules_after("import geval_cli.cli.run, geval_cli.cli.arguments")


@pytest.mark.parametrize(
    "name",
    [
        "aiohttp",
        "genai_prices",
        "jsonschema",
        "platformdirs",
        "rapidfuzz",
        "regex",
        "rich.console",
        "sqlglot",
        "urllib.request",
        "geval_cli.extras.promptfoo.load",
        "geval_cli.extras.html.file",
        "geval_cli.extras.pull_requests.junit_file",
        "geval_cli.extras.plan",
        "geval_cli.extras.promptfoo.nunjucks",
    ],
)
def test_what_few_runs_need_is_not_loaded(name: str, loaded_to_run: set[str]) -> None:
    assert "geval_cli.runs.evaluate" in loaded_to_run
    assert name not in loaded_to_run


def test_the_models_of_a_config_are_built_when_they_are_used() -> None:
    program = """
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.specs.base import ProviderSpec
assert not ASSERTION_TYPES["contains-xml"].__pydantic_complete__
assert ProviderSpec(id="echo").id == "echo"
assert ProviderSpec.__pydantic_complete__
"""
    assert "pydantic" in modules_after(program)


def modules_of_command(*arguments: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "geval_cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_help_is_shown_without_what_a_run_needs() -> None:
    loaded = modules_of_command("--help")
    assert "geval_cli.runs.options" in loaded
    heavy = {
        "msgspec",
        "pydantic",
        "rich",
        "yaml",
        "jinja2",
        "geval_cli.specs.base",
        "geval_cli.runs.requests",
    }
    assert loaded & heavy == set()
    assert {name for name in loaded if name.startswith("geval_cli.extras.")} == set()


def test_a_suite_without_code_is_validated_without_an_http_client(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        'prompts: [hi]\nproviders: [echo]\ntests: [{assert: [{type: contains, value: "hi"}]}]\n'
    )
    loaded = modules_of_command("validate", str(config))
    assert "geval_cli.cli.configs" in loaded
    assert "aiohttp" not in loaded


@pytest.mark.parametrize("name", EXTRA_COMMANDS)
def test_the_help_of_geval_says_of_each_command_of_an_extra_what_its_own_help_says(name: str) -> None:
    module, summary = EXTRA_COMMANDS[name]
    command = get_group(import_module(module).commands).commands[name]
    assert command.get_short_help_str(limit=60) == summary

"""What `geval run` loads before it knows what a config needs: only what every run needs."""

import subprocess
import sys

import pytest


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


def test_help_is_shown_without_what_a_run_needs() -> None:
    loaded = modules_after("import geval_cli.cli.app")
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

"""The pages about providers: every block of them is valid and runs, and nothing is missing from them."""

import json
import os
import re
from pathlib import Path

import pytest
import trustme
import yaml
from support.geval_command import run_geval

from geval_cli.extras.aws.signing import SIGNING_KEYS
from geval_cli.extras.clouds import VERTEX, VERTEX_KEYS
from geval_cli.extras.http_provider.provider import HTTP_KEYS
from geval_cli.extras.local.llama_server import LlamaSettings
from geval_cli.extras.local.models import LOCAL_KEYS
from geval_cli.extras.programs.scripting.processes import DEFAULT_PARALLEL
from geval_cli.providers.base import ProviderLimits
from geval_cli.providers.options import ENDPOINT_KEYS, OwnKey
from geval_cli.providers.preset_table import PRESETS, WIRE_FORMATS
from geval_cli.providers.presets import AZURE_API_VERSION
from geval_cli.providers.registry import NONE_PROVIDER, OWN_KINDS
from geval_cli.providers.trust import MODELS_DIR_VARIABLE
from geval_cli.providers.wire.anthropic import DEFAULT_MAX_TOKENS
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.yaml_source import read_yaml

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join(
    (DOCS / name).read_text(encoding="utf-8") for name in ("providers.md", "reference/provider-settings.md")
)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
CONFIGS = [text for language, text in BLOCKS if language == "yaml" and not text.startswith("# ")]
AROUND = {
    "prompts": ["{{ question }}"],
    "tests": [
        {
            "vars": {"question": "What of tides?", "user": "Ada", "lang": "en"},
            "assert": [{"type": "contains", "value": "tides"}],
        }
    ],
}
KEYS = {
    **{name: "key-0123456789" for preset in (*PRESETS.values(), VERTEX) for name in preset.key_envs},
    **dict.fromkeys(("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "us-east-1"),
    **dict.fromkeys(("TEAM_OPENAI_KEY", "GATEWAY_KEY", "APP_TOKEN"), "key-0123456789"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the page shows, and a model file that need not be good."""
    for _, text in BLOCKS:
        named = re.match(r"(?:#|//) (\w+\.\w+)\n", text)
        if named:
            (tmp_path / named[1]).write_text(text, encoding="utf-8")
    own = trustme.CA().issue_cert("me@models.example")
    (tmp_path / "certs").mkdir()
    own.cert_chain_pems[0].write_to_path(tmp_path / "certs" / "me.pem")
    own.private_key_pem.write_to_path(tmp_path / "certs" / "me.key")
    (tmp_path / "aws").write_text(
        "[profile evaluation]\naws_access_key_id = AKID\naws_secret_access_key = key\n"
    )
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "my-model.gguf").write_bytes(b"GGUF")
    return tmp_path


def write_config(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    shown = read_yaml(text, "config.yaml").value
    missing = {name: value for name, value in AROUND.items() if name not in shown}
    if shown.get("providers") == NONE_PROVIDER:
        missing.pop("prompts", None)
    path.write_text(text + (yaml.safe_dump(missing) if missing else ""), encoding="utf-8")
    return path


@pytest.mark.parametrize("text", CONFIGS, ids=range(len(CONFIGS)))
def test_every_config_is_valid_and_without_warnings(text: str, folder: Path) -> None:
    for name in ("az", "gcloud", "databricks"):
        (folder / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    environ = {**KEYS, "AWS_CONFIG_FILE": str(folder / "aws"), "PATH": f"{folder}:{os.environ['PATH']}"}
    request = RunRequest(write_config(folder, text), environ=environ)
    found = prepare(request, is_going_to_run=False).warnings
    # The variables of `AROUND` are for the configs that use them.
    assert [
        item.message for item in found if "`lang`" not in item.message and "`user`" not in item.message
    ] == []


@pytest.mark.parametrize(
    ("words", "outputs"),
    [
        ("python:app.py:shout", ["Hello Ada, you asked: What of tides?", "WHAT OF TIDES?"]),
        ("javascript:app.js", ["friendly, Ada: What of tides?"]),
        ("exec:sh", ["You asked in en: What of tides?"]),
        ("scripted:replies.yaml", ["What of tides?", "The moon pulls at the sea."]),
        ("providers: none", ["The moon pulls at the sea."]),
    ],
)
def test_what_runs_on_this_machine_runs(words: str, outputs: list[str], folder: Path) -> None:
    [text] = [text for text in CONFIGS if words in text]
    write_config(folder, text)
    run_geval("run", "config.yaml", "-o", "out.json", cwd=folder)
    results = json.loads((folder / "out.json").read_text(encoding="utf-8"))["results"]
    assert [result["output"] for result in results] == outputs


def test_every_kind_without_a_preset_has_an_example_and_its_address() -> None:
    for name, kind in OWN_KINDS.items():  # the rows of presets are generated
        assert kind.example in PAGE or name in {
            "http",
            "https",
            "javascript",
            "python",
            "file",
            "exec",
            "scripted",
            "local",
        }
        assert f"`{name}" in PAGE
        assert kind.base_url in PAGE


def test_every_vendor_with_batches_is_in_their_table() -> None:
    page = (DOCS / "reference" / "costs.md").read_text(encoding="utf-8")
    table = page[page.index("| | one batch |") :].partition("\n\n")[0]
    missing = {kind for kind, preset in PRESETS.items() if preset.batch and f"`{kind}:`" not in table}
    assert missing == set(), "add them to the table in docs/reference/costs.md"


def test_every_variable_that_no_preset_has_is_named() -> None:
    for variable in (*VERTEX.key_envs, *VERTEX.base_url_envs, *VERTEX.account_envs):
        assert f"`{variable}`" in PAGE
    assert f"`{MODELS_DIR_VARIABLE}`" in PAGE


@pytest.mark.parametrize(
    "key",
    [*ENDPOINT_KEYS, *HTTP_KEYS, *LOCAL_KEYS, *VERTEX_KEYS[:2], *SIGNING_KEYS],
    ids=lambda key: key.spellings[0],
)
def test_every_spelling_of_every_key_is_named(key: OwnKey) -> None:
    for spelling in key.spellings:
        assert f"`{spelling}`" in PAGE


def test_the_defaults_are_those_of_the_code() -> None:
    limits, llama = ProviderLimits(), LlamaSettings(Path())
    rows = {re.match(r"\| `(\w+)`", row)[1]: row for row in PAGE.splitlines() if re.match(r"\| `\w+`", row)}
    assert f" {limits.timeout_s:g} by default" in rows["timeout_s"]
    assert f" {limits.max_retries} by default" in rows["max_retries"]
    assert f"{DEFAULT_PARALLEL} for `python:` and `exec:`" in rows["max_concurrency"]
    assert f"{AZURE_API_VERSION} " in rows["api_version"]
    for rules in WIRE_FORMATS.values():
        assert f"{rules.version} " in rows["api_version"], "name it in docs/reference/provider-settings.md"
    assert f"| {llama.n_ctx} |" in rows["n_ctx"]
    assert f"| {llama.n_parallel} |" in rows["n_parallel"]
    assert f"is {DEFAULT_MAX_TOKENS} unless" in PAGE

"""The commands of docs/reference/costs.md run, and its YAML is a config."""

import json
import re
import shlex
from pathlib import Path

import yaml
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, chat_reply

from geval_cli.gateway.retry import (
    BASE_DELAY_S,
    FIRST_PAUSE_S,
    LEAST_PATIENCE_S,
    LONGEST_DELAY_S,
    LONGEST_PAUSE_S,
)
from geval_cli.providers.base import ProviderLimits

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "costs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    providers, _ = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
    commands = [
        shlex.split(line, comments=True)
        for language, text in BLOCKS
        if language == "sh"
        for line in text.splitlines()
    ]
    with LoopbackServer(respond=lambda *_: chat_reply("fine")) as server:
        providers["providers"][0]["config"]["base_url"] = server.base_url
        config = {
            **providers,
            "prompts": ["Say {{ x }}"],
            "tests": [{"vars": {"x": 1}, "assert": [{"type": "contains", "value": "fine"}]}],
        }
        (tmp_path / "gevalconfig.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        for words in commands:
            finished = run_geval(*words[1:], cwd=tmp_path, env=clean_environment())
            assert finished.code == 0, (words, finished.stderr)
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["total"]["least"] == 1
    log = [
        json.loads(line) for line in (tmp_path / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [entry["event"] for entry in log] == ["run_started", "call", "run_finished"]


def test_the_page_names_the_times_that_are_kept() -> None:
    limits = ProviderLimits()
    patience = f"{limits.timeout_s * (limits.max_retries + 1) / 60:g} minutes by default"
    assert LEAST_PATIENCE_S == 120
    words = " ".join(PAGE.split())
    assert f"`timeout_s` * (`max_retries` + 1), {patience}" in words
    assert "at least two minutes" in words
    first_s, longest_s = FIRST_PAUSE_S, LONGEST_PAUSE_S
    assert f"else {first_s:g} s, {2 * first_s:g} s, {4 * first_s:g} s, ... up to {longest_s:g} s" in words
    assert f"after {BASE_DELAY_S:g} s, {2 * BASE_DELAY_S:g} s, {4 * BASE_DELAY_S:g} s, ..." in words
    assert f"(at most {LONGEST_DELAY_S:g} s, each with jitter)" in words

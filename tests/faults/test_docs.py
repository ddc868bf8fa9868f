"""The commands of docs/budget-and-faults.md run, and its YAML is a config."""

import json
import re
import shlex
from pathlib import Path

import yaml
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, chat_reply

PAGE = (Path(__file__).parents[2] / "docs" / "budget-and-faults.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    [providers] = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
    commands = [
        shlex.split(line) for language, text in BLOCKS if language == "sh" for line in text.splitlines()
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

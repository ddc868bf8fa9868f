"""docs/comparing.md, two runs: its commands run, and its gates can be read."""

import json
import re
import shlex
from pathlib import Path

from support.geval_command import run_geval

from geval_cli.source.source_map import SourcePath
from geval_cli.suite.gates import Gate, parse_gate

PAGE = (
    (Path(__file__).parents[1] / "docs/comparing.md")
    .read_text(encoding="utf-8")
    .partition("\n## Two runs\n")[2]
)
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    for model in ("gpt-4o", "gpt-4.1"):
        config = {
            "prompts": ["{{ x }}"],
            "providers": [{"id": "echo", "label": model}],
            "tests": [{"vars": {"x": 1}, "assert": [{"type": "contains", "value": "1"}]}],
        }
        (tmp_path / "gevalconfig.yaml").write_text(json.dumps(config), encoding="utf-8")
        assert run_geval("run", "-o", "results.json", cwd=tmp_path).code == 0
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "results.json").write_bytes((tmp_path / "results.json").read_bytes())
    for words in COMMANDS:
        finished = run_geval(*words, cwd=tmp_path)
        assert finished.code == 0, (words, finished.stderr)
    assert len(COMMANDS) >= 4


def test_every_gate_of_the_page_can_be_read() -> None:
    block = next(block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "gates:" in block)
    gates = [line.removeprefix("  - ") for line in block.splitlines()[1:]]

    assert len(gates) == 3
    assert all(isinstance(parse_gate(text, SourcePath.nowhere()), Gate) for text in gates)

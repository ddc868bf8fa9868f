"""docs/reference/gates-and-filters.md: its config is valid, its commands run, and the gates in its table exist."""

import re
import shlex
from pathlib import Path

from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer
from test_examples import respond

from geval_cli.source.source_map import SourcePath
from geval_cli.suite.gates import Gate, parse_gate

PAGE = (Path(__file__).parents[1] / "docs/reference/gates-and-filters.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    configs = re.findall(r"```yaml\n# (\w+\.yaml)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in configs] == ["gevalconfig.yaml", "decided.yaml"]
    for name, text in configs:
        (tmp_path / name).write_text(text, encoding="utf-8")
    questions = "".join(f"Where is invoice {number}?\n" for number in range(12))
    (tmp_path / "questions.csv").write_text(f"question\n{questions}", encoding="utf-8")
    with LoopbackServer(respond=respond) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-of-the-page")
        for words in COMMANDS:
            finished = run_geval(*words, "--allow-empty", cwd=tmp_path, env=env)
            assert finished.code in {0, 1, 3}, (words, finished.stderr)
            assert "Traceback" not in finished.stderr


def test_every_gate_of_the_table_exists() -> None:
    table = PAGE[PAGE.index("| gate on |") : PAGE.index("`[name=value]`")]
    named = re.findall(r"`([\w.]+)`", table)
    names = [f"latency{name}" if name.startswith(".") else name.replace("METRIC", "tone") for name in named]

    assert len(names) > 10
    for name in names:
        assert isinstance(parse_gate(f"{name} >= 0.5", SourcePath.nowhere()), Gate), name

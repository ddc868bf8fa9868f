"""docs/reference/data.md and examples/data: the example runs, and so does all that the page shows."""

import json
import re
import shutil
from pathlib import Path

from jsonschema import Draft202012Validator
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer
from test_examples import respond

from geval_cli.extras.json_schema import config_json_schema
from geval_cli.source.yaml_source import read_yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/reference/data.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/data"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def copied(folder: Path) -> Path:
    return shutil.copytree(EXAMPLE, folder / "data", ignore=shutil.ignore_patterns(".geval", "__pycache__"))


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    finished = run_geval("run", "gevalconfig.yaml", "-o", "results.json", cwd=copied(tmp_path))
    assert (finished.code, finished.stderr.count("error:")) == (1, 0)
    results = json.loads((tmp_path / "data/results.json").read_text(encoding="utf-8"))
    failed = {case["description"] for case in results["results"] if case["status"] == "failed"}
    assert (results["summary"]["passed"], failed) == (16, {"the square of 25"})
    assert {case["prompt"]["label"] for case in results["results"]} == {"plain", "tutor"}


def test_editors_accept_the_example_and_the_page() -> None:
    validator = Draft202012Validator(config_json_schema())
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for text in ((EXAMPLE / "gevalconfig.yaml").read_text(encoding="utf-8"), *blocks):
        validator.validate(read_yaml(text, "x").value)


def test_the_files_and_commands_of_the_page_work(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (folder / "gevalconfig.yaml").write_text(block("yaml"), encoding="utf-8")
    (folder / "questions.csv").write_text(block("csv"), encoding="utf-8")
    (folder / "squares.py").write_text(block("python"), encoding="utf-8")
    commands = [line.split("#")[0].split()[1:] for line in block("sh").splitlines()]
    assert [words[0] for words in commands] == ["validate", "run"]
    with LoopbackServer(respond=respond) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-of-the-page")
        first, second = (run_geval(*words, cwd=folder, env=env) for words in commands)
    assert first.code == 0
    assert "8 tests x 2 columns = 16 cases" in first.stdout
    assert "error:" not in second.stderr


def test_the_message_on_the_page_is_the_real_one(tmp_path: Path) -> None:
    table = "question;threshold\nWhy are there tides?;0.7\nWhy are there seasons?;0,7\n"
    (tmp_path / "questions.csv").write_text(table, encoding="utf-8")
    config = 'prompts: "{{ question }}"\nproviders: echo\ntests: file://questions.csv\n'
    (tmp_path / "gevalconfig.yaml").write_text(config, encoding="utf-8")
    shown = run_geval("validate", "gevalconfig.yaml", cwd=tmp_path)
    assert shown.code == 2
    assert block("text").strip() in shown.stderr

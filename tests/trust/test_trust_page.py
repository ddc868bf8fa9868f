"""The page about trust tells the truth: its commands run on the example, and print what it shows."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.geval_command import clean_environment, run_geval

from geval_cli.extras.trust.agreement import STATISTICS
from geval_cli.extras.trust.estimation import STATISTICS as TRUE_FIGURES
from geval_cli.extras.trust.labels import KEYS, VAR_COLUMN, read_labels
from geval_cli.extras.trust.probes import PROBES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [shlex.split(line) for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
EXAMPLES = ROOT / "examples" / "trust"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".geval"))
    return tmp_path


ALONE = [words for words in COMMANDS if words[1] in {"agree", "probe"}]
"""Commands that need no run before them."""


def test_the_walk_through_the_example_suite_prints_what_the_page_shows(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES, tmp_path / "trust", ignore=shutil.ignore_patterns(".geval"))
    printed = []
    for words in [words for words in COMMANDS if words not in ALONE]:
        finished = run_geval(*words[1:], cwd=folder, env=clean_environment(COLUMNS="80"))
        assert finished.code == (1 if words[1] in {"run", "improve"} else 0), finished.stderr
        printed.append(finished.stdout)
    shown = [text for kind, text in BLOCKS if kind == "text" and text.startswith(("helpful", "60 anchors"))]
    assert len(shown) == 6
    assert [text for text in shown if text.strip() not in "".join(printed)] == []
    config = next(text for kind, text in BLOCKS if kind == "yaml")
    whole = (folder / "calibrated.yaml").read_text(encoding="utf-8")
    assert [line for line in config.splitlines()[1:] if line not in whole.splitlines()] == []
    finished = run_geval("run", "calibrated.yaml", "-v", cwd=folder, env=clean_environment(COLUMNS="80"))
    assert finished.code == 0
    assert "0.50 < 0.625  P(pass) 0.11" in finished.stdout


@pytest.mark.parametrize("words", ALONE, ids=" ".join)
def test_every_command_runs_on_the_example(words: list[str], folder: Path) -> None:
    finished = run_geval(*words[1:], cwd=folder, env=clean_environment(COLUMNS="80"))
    is_probe = words[1] == "probe"  # whose judge fails, and which says beforehand what it will ask
    assert finished.code == (1 if is_probe else 0)
    assert finished.stderr.startswith("note: 12 outputs") if is_probe else finished.stderr == ""
    beginning = "The judge fails" if is_probe else "For helpfulness"
    shown = next(text for kind, text in BLOCKS if kind == "text" and text.startswith(beginning))
    assert shown.strip() in finished.stdout
    assert all((folder / name).exists() for name in words if name.startswith("agreement."))


def test_the_rows_on_the_page_are_rows(tmp_path: Path) -> None:
    json_rows = next(text for kind, text in BLOCKS if kind == "json")
    csv_rows = next(text for kind, text in BLOCKS if kind == "text" and text.startswith("id,"))
    (tmp_path / "labels.jsonl").write_text(json_rows, encoding="utf-8")
    (tmp_path / "labels.csv").write_text(csv_rows, encoding="utf-8")
    assert [label.human for label in read_labels(tmp_path / "labels.jsonl").labels] == [0.75, 0.375, 1.0]
    assert [dict(label.marks) for label in read_labels(tmp_path / "labels.csv").labels] == [
        {"anna": 0.25, "ben": 0.5}
    ]


def test_every_key_and_every_figure_is_on_the_page() -> None:
    table = PAGE[PAGE.index("| key |") : PAGE.index("A label applies")]
    assert [key for key in KEYS if f"`{key}`" not in table] == []
    assert f"`{VAR_COLUMN}NAME`" in table
    assert [name for name in (*STATISTICS, *TRUE_FIGURES) if f"`{name}`" not in PAGE] == []


def test_the_python_on_the_page_prints_what_it_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    sources = [text for kind, text in BLOCKS if kind == "python"]
    assert len(sources) == 2
    for source in sources:
        exec(compile(source, "docs/trust.md", "exec"), {})
        assert capsys.readouterr().out.split() == re.findall(r"# (\w+)$", source, re.MULTILINE)


def test_every_probe_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "statistics.md").read_text(encoding="utf-8")
    table = page[page.index("| probe |") : page.index("- geval damages")]
    assert [name for name in PROBES if f"`{name}`" not in table] == []

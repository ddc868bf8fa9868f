"""The first commands of someone who has just installed geval: the demo, and a base that is small."""

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.geval_command import run_geval

from geval_cli.assertions.base import CheckContext, MergedTest
from geval_cli.assertions.registry import ASSERTION_TYPES, check_assertion
from geval_cli.cli.configs import demo_config
from geval_cli.errors import UsageError
from geval_cli.extras.starter import DEMO_CONFIG
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.source_map import SourcePath
from geval_cli.templating import Templates

ROOT = Path(__file__).parents[2]

MOST_PACKAGES = 50
MOST_BYTES = 100_000_000


def required(lines: Iterable[str], extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """Yield the requirements that hold on this machine, those of `extras` among them."""
    for needed in map(Requirement, lines):
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield needed


def base_packages() -> dict[str, Distribution]:
    """Return every distribution that the base install of this clone brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, Distribution] = {"geval-cli": distribution("geval-cli")}
    waiting = list(required(project["dependencies"]))
    while waiting:
        needed = waiting.pop()
        package = distribution(needed.name)
        if package.name not in found or needed.extras:
            found[package.name] = package
            waiting.extend(required(package.requires or (), needed.extras))
    return found


def installed_bytes(package: Distribution) -> Iterator[int]:
    for file in package.files or ():
        path = Path(str(file.locate()))
        if path.is_file():
            yield path.stat().st_size


def test_the_base_install_is_small() -> None:
    packages = base_packages()
    assert {"aiohttp", "openai", "typer"} <= {name.lower() for name in packages}
    assert len(packages) <= MOST_PACKAGES, sorted(packages)
    assert sum(size for package in packages.values() for size in installed_bytes(package)) <= MOST_BYTES


def test_the_demo_is_a_valid_suite() -> None:
    prepared = prepare(RunRequest(DEMO_CONFIG, {}), is_going_to_run=False)
    assert (prepared.tests, prepared.total) == (7, 14)


def test_the_demo_names_the_one_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # what Python keeps for a module that is not there
    with pytest.raises(UsageError, match="is not installed") as refused:
        demo_config()
    assert 'pip install ".[local]"' in refused.value.hint


def shape(text: str) -> list[str]:
    """Return the lines of a demo without what differs between runs: scores, order of failures, id, path, time."""
    text = re.sub(r"\d\.\d\d\b", "0.00", text[text.index(" demo.yaml") :])
    text = re.sub(r" run  .*", " run", re.sub(r"gates? met .*", "gates met", text))
    lines = [line.rstrip() for line in re.sub(r"--case \d", "--case N", text).strip().splitlines()]
    failures = sorted(line for line in lines if line.startswith("  #"))
    return [line for line in lines if not line.startswith("  #")] + failures


@pytest.mark.local_model
def test_the_demo_tells_polite_from_rude_and_prints_what_the_readme_shows(tmp_path: Path) -> None:
    done = run_geval("demo", "--no-progress", "-o", "demo.json", cwd=tmp_path, timeout_s=600)
    assert done.code == 0, done.stderr
    results = json.loads((tmp_path / "demo.json").read_text("utf-8"))["results"]
    assert {(case["prompt"]["label"], case["status"]) for case in results} == {
        ("rude bot", "failed"),
        ("polite bot", "passed"),
    }
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (block,) = re.findall(r"^```text\n( demo\.yaml .*?)^```", readme, re.MULTILINE | re.DOTALL)
    shown = "\n".join(line for line in done.stdout.splitlines() if "wrote" not in line)
    assert shape(shown) == shape(block)


@pytest.mark.parametrize(
    ("type_name", "value", "library", "extra"),
    [
        ("levenshtein", "a longer text", "rapidfuzz", "text-metrics"),
        ("bleu", "x", "nltk", "text-metrics"),
        ("rouge-n", "x", "rouge_score", "text-metrics"),
        ("is-sql", None, "sqlglot", "sql"),
        ("contains-sql", None, "sqlglot", "sql"),
    ],
)
def test_an_assertion_whose_library_is_missing_says_how_to_install_it(
    type_name: str, value: str | None, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    spec = ASSERTION_TYPES[type_name](type=type_name, **({} if value is None else {"value": value}))
    (problem,) = check_assertion(
        spec, CheckContext(MergedTest(0, SourcePath.nowhere()), Templates(), "test 1")
    )
    assert problem.message == f"{type_name} needs libraries that are not installed"
    assert f'pip install ".[{extra}]"' in problem.hint

"""The face of the library: what is exported, what it costs to import, and what a metric shows of itself."""

import dataclasses
import subprocess
import sys

import pytest
from support.scripted_judge import ScriptedJudge

import geval_cli
from geval_cli import GEval, TestCase

HEAVY = (
    "asyncio",
    "pydantic",
    "yaml",
    "jinja2",
    "aiohttp",
    "jsonschema",
    "rich",
    "typer",
    "sqlite3",
    "logging",
)


def loaded_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    finished = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(finished.stdout.split())


def test_every_public_name_exists() -> None:
    assert {name for name in geval_cli.__all__ if not hasattr(geval_cli, name)} == set()
    assert dir(geval_cli) == geval_cli.__all__ == sorted(geval_cli.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'geval_cli' has no attribute 'Geval'"):
        _ = geval_cli.Geval


def test_importing_the_library_imports_nothing_heavy() -> None:
    loaded = loaded_after(f"from geval_cli import {', '.join(geval_cli.__all__)}")
    assert loaded.isdisjoint(HEAVY)
    assert not [
        name
        for name in loaded
        if name.startswith(("geval_cli.judge", "geval_cli.source", "geval_cli.specs", "geval_cli.suite"))
    ]


def test_the_check_of_heavy_imports_can_fail() -> None:
    assert "asyncio" in loaded_after("import geval_cli.runs.evaluate")


def test_a_metric_is_built_without_the_network_libraries() -> None:
    loaded = loaded_after("from geval_cli import GEval\nGEval('Tone', 'Be kind.')")
    assert loaded.isdisjoint({"aiohttp", "rich", "typer"})


def test_repr_shows_the_yardstick_and_no_key() -> None:
    model = {"id": "openai:gpt-4o", "config": {"api_key": "sk-very-secret-key"}}
    shown = repr(GEval("Tone", "Be kind.", model=model))
    assert shown.startswith("GEval(name='Tone', criteria='Be kind.', dimension=None")
    assert "secret" not in shown


def test_a_metric_cannot_be_changed_but_replaced() -> None:
    metric = GEval("Tone", "Be kind.", model=ScriptedJudge(lambda request: '{"reason": "r", "score": 6}'))
    with pytest.raises(dataclasses.FrozenInstanceError):
        metric.threshold = 0.7  # type: ignore[misc]
    stricter = dataclasses.replace(metric, threshold=0.7)
    case = TestCase("q", "a")
    assert metric.evaluate(case).success
    assert not stricter.evaluate(case).success

"""Whatever stands in a config, it is either a suite or a list of problems that can be shown; never a crash."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.suites import load_suite

from geval_cli.errors import ConfigError
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import read_document
from geval_cli.source.problems import render_problems

VALID = Path(__file__).parent / "valid"
ODD_VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        7.5,
        10**30,
        "",
        " ",
        "x",
        "file://",
        "file://nowhere",
        "file:///",
        "{{ env.NOPE }}",
    ),
    *([], {}, [[]], [None], {"": None}, {"type": "g-eval"}, {"id": ""}, [{"role": "user", "content": None}]),
    *("\x00", "\u202e", "\ud800", "not-", "not-not-is-json", {"value": {"a": [1]}}, [1, "a", [2]]),
]


def inner_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [path, *(found for key, entry in entries for found in inner_paths(entry, (*path, key)))]


def disturb(value: Any, chance: random.Random) -> Any:
    """A copy of a config with one place changed: another value, a key too many, or a key too few."""
    path = chance.choice(inner_paths(value))
    if not path:
        return chance.choice(ODD_VALUES)
    value = copy.deepcopy(value)
    parent = value
    for part in path[:-1]:
        parent = parent[part]
    kind = chance.randrange(4)
    if kind == 0:
        del parent[path[-1]]
    elif kind == 1 and isinstance(parent, dict):
        parent[str(path[-1])[::-1]] = chance.choice(ODD_VALUES)
    else:
        parent[path[-1]] = chance.choice(ODD_VALUES)
    return value


@pytest.mark.parametrize("path", sorted(VALID.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_disturbed_config_never_crashes(path: Path, tmp_path: Path) -> None:
    chance = random.Random(path.stem)
    whole = read_document(path, TRUSTED).value
    for _ in range(40):
        config = tmp_path / "suite.json"
        config.write_text(json.dumps(disturb(whole, chance)), encoding="utf-8")
        problems = ()
        try:
            list(load_suite(config, env={"CITY": "Rome"}).tests)
        except ConfigError as error:
            problems = error.problems
        assert render_problems(problems).count("error: ") == len(problems)


def test_the_schema_is_made_anew_for_each_caller() -> None:
    config_json_schema()["properties"].clear()
    assert config_json_schema()["properties"]

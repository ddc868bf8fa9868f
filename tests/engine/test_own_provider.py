"""A test's own provider answers it, in both dialects."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.code_runs import rows_of
from support.geval_command import run_geval

from geval_cli.errors import ConfigError
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest

_REPLIES = "default: scripted\n"


@pytest.mark.parametrize("dialect", ["geval", "promptfoo"])
def test_the_provider_that_a_test_names_answers_it(tmp_path: Path, dialect: str) -> None:
    (tmp_path / "replies.yaml").write_text(_REPLIES, encoding="utf-8")
    content: dict[str, Any] = {
        "dialect": dialect,
        "prompts": ["hello"],
        "providers": ["echo", {"id": "scripted:replies.yaml", "label": "other"}],
        "tests": [
            {"description": "columns"},
            {"provider": "echo"},
            {"provider": "other"},
            {
                "provider": {"id": "scripted:replies.yaml", "label": "mine"},
                "assert": [{"type": "equals", "value": "scripted"}],
            },
        ],
    }
    rows = rows_of(tmp_path, content)
    answers = {(row["test_index"], row["column"]): (row["provider"]["id"], row["output"]) for row in rows}
    echoed, scripted = ("echo", "hello"), ("scripted:replies.yaml", "scripted")
    assert answers == {
        (0, 0): echoed,
        (0, 1): scripted,
        (1, 0): echoed,
        (1, 1): echoed,
        (2, 0): scripted,
        (2, 1): scripted,
        (3, 0): scripted,
        (3, 1): scripted,
    }
    labels = {(row["test_index"], row["column"]): row["provider"]["label"] for row in rows}
    of_columns = {place: ("echo", "other")[place[1]] for place in labels}
    own = {(1, 1): "echo", (2, 0): "other", (3, 0): "mine", (3, 1): "mine"}
    # By promptfoo's rules a row is named by its column, whoever answers it.
    assert labels == (of_columns if dialect == "promptfoo" else of_columns | own)


@pytest.mark.parametrize(
    "labels", [("", "scripted:a.yaml"), ("scripted:b.yaml", ""), ("scripted:b.yaml", "scripted:a.yaml")]
)
def test_a_column_is_answered_by_its_own_provider_whatever_others_are_called(
    tmp_path: Path, labels: tuple[str, str]
) -> None:
    providers: list[dict[str, str]] = []
    for name, label in zip("ab", labels, strict=True):
        (tmp_path / f"{name}.yaml").write_text(f"default: says {name}\n", encoding="utf-8")
        providers.append({"id": f"scripted:{name}.yaml", **({"label": label} if label else {})})
    content = {"prompts": ["hello"], "providers": providers, "tests": [{}]}

    assert [row["output"] for row in rows_of(tmp_path, content)] == ["says a", "says b"]


def test_without_columns_a_test_s_own_provider_has_its_own_label(tmp_path: Path) -> None:
    content = {
        "dialect": "promptfoo",
        "prompts": ["hi"],
        "tests": [{"provider": {"id": "echo", "label": "me"}}],
    }
    assert [row["provider"]["label"] for row in rows_of(tmp_path, content)] == ["me"]


def test_an_own_provider_has_its_transform_in_promptfoo_s_dialect(tmp_path: Path) -> None:
    content = {
        "dialect": "promptfoo",
        "prompts": ["hello"],
        "providers": ["echo"],
        "tests": [{"provider": {"id": "echo", "transform": "output.toUpperCase()"}}],
    }
    assert rows_of(tmp_path, content)[0]["output"] == "HELLO"


def test_a_config_needs_no_provider_where_each_test_names_its_own(tmp_path: Path) -> None:
    content = {"prompts": ["hello"], "tests": [{"provider": "echo"}]}
    rows = rows_of(tmp_path, content)
    assert [(row["output"], row["provider"]["id"]) for row in rows] == [("hello", "echo")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"prompts": ["x"], "tests": [{"provider": "opnai:gpt"}]}, "unknown provider `opnai:gpt`"),
        ({"tests": [{"provider": "echo", "input": "x"}]}, "would get no prompt"),
        (
            {"prompts": ["x"], "providers": "echo", "defaultTest": {"provider": "echo"}, "tests": [{}]},
            "`provider` of defaultTest is ambiguous",
        ),
        ({"prompts": ["x"], "tests": [{"provider": 7}]}, "a provider must be text or a mapping"),
        ({"prompts": ["x"], "tests": [{"provider": "none"}]}, "nothing to judge in test 1"),
    ],
)
def test_an_own_provider_is_checked_like_any_other(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(config, {}))
    assert any(message in problem.message for problem in caught.value.problems)


def test_a_stranger_s_test_may_not_be_answered_by_a_program(tmp_path: Path) -> None:
    (tmp_path / "gevalconfig.yaml").write_text(
        "prompts: [a]\ntests:\n  - provider: 'exec:echo hi'\n", encoding="utf-8"
    )
    done = run_geval("run", "--untrusted", "gevalconfig.yaml", cwd=tmp_path)
    assert done.code == 2
    assert "`exec:echo hi` runs code, which --untrusted does not allow" in done.stderr
    assert "gevalconfig.yaml:3:15" in done.stderr

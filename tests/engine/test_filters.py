from pathlib import Path

import pytest
from support.promptfoo import load

from geval_cli.engine.plan import Plan, Selection

PROMPTS = [
    {"id": "p-one", "label": "First", "raw": "one"},
    {"label": "group:a", "raw": "two"},
    {"label": "group:b", "raw": "three"},
]


def jobs(folder: Path, **keys: object) -> list[tuple[str, str]]:
    content = {"prompts": PROMPTS, "providers": ["echo", {"id": "echo", "label": "x:1"}], **keys}
    plan = Plan(load(folder, content))
    found = [(job.provider.title, job.prompt.raw or "") for queue in plan.queues for job in queue]
    assert len(found) == sum(map(plan.cases_of, plan.suite.tests))
    return found


@pytest.mark.parametrize(
    ("chosen", "raws"),
    [
        (["First"], ["one"]),
        (["p-one"], ["one"]),
        (["group"], ["two", "three"]),
        (["group:*"], ["two", "three"]),
        (["group:b", "First"], ["one", "three"]),
        ("group:a", ["two"]),
        (["two"], ["two"]),
        ([], []),
    ],
)
def test_a_test_chooses_prompts(tmp_path: Path, chosen: object, raws: list[str]) -> None:
    found = jobs(tmp_path, tests=[{"prompts": chosen}], providers=["echo"])
    assert [raw for _, raw in found] == raws


@pytest.mark.parametrize(
    ("chosen", "titles"),
    [(["echo"], {"echo", "x:1"}), (["x:1"], {"x:1"}), (["x:*"], {"x:1"}), (["x"], {"x:1"}), ([], set())],
)
def test_a_test_chooses_providers(tmp_path: Path, chosen: object, titles: set[str]) -> None:
    assert {title for title, _ in jobs(tmp_path, tests=[{"providers": chosen}])} == titles


def test_a_provider_chooses_prompts_and_has_no_column_for_the_others(tmp_path: Path) -> None:
    providers = [
        {"id": "echo", "label": "a", "prompts": ["group"]},
        {"id": "echo", "label": "b", "prompts": ["First"]},
    ]
    plan = Plan(load(tmp_path, {"prompts": PROMPTS, "providers": providers}))
    shown = [(column.index, column.provider_label) for column in plan.columns]
    assert shown == [(0, "a"), (1, "a"), (2, "b")]
    assert [job.column for queue in plan.queues for job in queue] == [0, 1, 2]


def test_the_default_test_chooses_for_tests_that_do_not(tmp_path: Path) -> None:
    found = jobs(
        tmp_path, providers=["echo"], defaultTest={"prompts": ["First"]}, tests=[{}, {"prompts": ["group:b"]}]
    )
    assert [raw for _, raw in found] == ["one", "three"]


def test_a_serial_plan_has_one_lane_in_the_order_of_the_tests(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        {"prompts": ["a", "b"], "providers": ["echo", {"id": "echo", "label": "x"}], "tests": [{}, {}]},
    )
    (queue,) = Plan(suite, is_serial=True).queues
    assert [(job.test.index, job.column) for job in queue] == [
        (test, column) for test in (0, 1) for column in range(4)
    ]


@pytest.mark.parametrize(
    ("pattern", "titles"), [("^echo$", {"echo", "x:1"}), ("^x:", {"x:1"}), ("1$", {"x:1"}), ("openai", set())]
)
def test_providers_are_chosen_by_id_or_label(tmp_path: Path, pattern: str, titles: set[str]) -> None:
    suite = load(
        tmp_path, {"prompts": ["a"], "providers": ["echo", {"id": "echo", "label": "x:1"}], "tests": [{}]}
    )
    found = Selection(providers=pattern).apply(suite).providers
    assert {spec.label or spec.id for spec in found} == titles

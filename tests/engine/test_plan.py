from support.specs import case, suite

from geval_cli.config.schema import PromptSpec, ProviderSpec
from geval_cli.engine.plan import Plan

PROMPTS = (PromptSpec(id="p1", label="short", raw=""), PromptSpec(id="p2", label="long", raw=""))
PROVIDERS = (ProviderSpec(id="echo"), ProviderSpec(id="openai:x", label="X"))


def test_columns_are_numbered_provider_by_provider() -> None:
    columns = Plan(suite([], prompts=PROMPTS, providers=PROVIDERS)).columns
    assert [(c.index, c.provider_label, c.prompt_label) for c in columns] == [
        (0, "echo", "short"),
        (1, "echo", "long"),
        (2, "X", "short"),
        (3, "X", "long"),
    ]


def test_jobs_come_test_by_test_then_repeat_then_column() -> None:
    plan = Plan(suite([case(0), case(1)], prompts=PROMPTS, providers=PROVIDERS[:1]), repeats=2)
    assert [job.id for job in plan] == [
        "0.0.0",
        "0.0.1",
        "0.1.0",
        "0.1.1",
        "1.0.0",
        "1.0.1",
        "1.1.0",
        "1.1.1",
    ]


def test_iterating_again_gives_the_same_jobs() -> None:
    plan = Plan(suite([case(0), case(1)]))
    assert list(plan) == list(plan)


def test_jobs_of_one_row_share_a_group() -> None:
    plan = Plan(suite([case(0), case(1)], prompts=PROMPTS))
    assert [job.group for job in plan] == ["0.0", "0.0", "1.0", "1.0"]


def test_without_providers_nothing_is_generated() -> None:
    [job] = Plan(suite([case(0, has_output=True, output="x")], providers=()))
    assert not job.generates

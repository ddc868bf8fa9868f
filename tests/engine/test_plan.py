from support.specs import case, suite

from geval_cli.engine.plan import Plan
from geval_cli.specs.base import PromptSpec, ProviderSpec

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


def test_the_jobs_of_a_provider_come_test_by_test_then_repeat_then_prompt() -> None:
    [queue] = Plan(suite([case(0), case(1)], prompts=PROMPTS, providers=PROVIDERS[:1]), repeats=2).queues
    assert [job.id for job in queue] == [
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
    plan = Plan(suite([case(0), case(1)], providers=PROVIDERS))
    assert [list(queue) for queue in plan.queues] == [list(queue) for queue in plan.queues]


def test_each_provider_has_a_lane_with_its_columns() -> None:
    queues = Plan(suite([case(0)], prompts=PROMPTS, providers=PROVIDERS)).queues
    assert [[(job.provider.id, job.column) for job in queue] for queue in queues] == [
        [("echo", 0), ("echo", 1)],
        [("openai:x", 2), ("openai:x", 3)],
    ]


def test_jobs_of_one_row_share_a_group() -> None:
    [queue] = Plan(suite([case(0), case(1)], prompts=PROMPTS)).queues
    assert [job.group for job in queue] == ["0.0", "0.0", "1.0", "1.0"]


def test_without_providers_nothing_is_generated() -> None:
    [[job]] = Plan(suite([case(0, has_output=True, output="x")], providers=())).queues
    assert not job.generates

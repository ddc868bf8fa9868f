import asyncio
from collections.abc import Sequence

from support.specs import assertion, case, suite, tools

from geval_cli.assertions.base import Assertion
from geval_cli.engine.case import JobContext, run_job
from geval_cli.engine.plan import Plan
from geval_cli.errors import ProviderAuthError
from geval_cli.records import CaseResult, Choice, JsonValue, ModelRequest, ModelResponse, Role, Status, Usage
from geval_cli.specs.base import PromptSpec, ProviderSpec


class Model:
    """Answers with what it is told to, or raises it."""

    def __init__(self, reply: str | Exception) -> None:
        self.reply = reply
        self.requests: list[ModelRequest] = []

    async def __call__(self, spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        if isinstance(self.reply, Exception):
            raise self.reply
        return ModelResponse((Choice(self.reply),), Usage(1, 10, 5, 0, None), latency_ms=12.0)


def run(
    reply: str | Exception,
    assertions: Sequence[Assertion] = (),
    *,
    prompt: str = "Say {{ x }}",
    providers: tuple[ProviderSpec, ...] = (ProviderSpec(id="openai:m", label="M"),),
    **fields: JsonValue,
) -> CaseResult:
    test = case(0, **{"vars": {"x": "hello"}, **fields}, assertions=tuple(assertions))
    prompts = (PromptSpec(id="p", label="P", raw=prompt),)
    [[job]] = Plan(suite([test], prompts=prompts, providers=providers)).queues
    return asyncio.run(run_job(job, JobContext(Model(reply), tools())))


def test_a_result_says_what_was_asked_answered_and_found() -> None:
    result = run("hello there", [assertion("contains", value="hello", metric="polite")])
    assert (result.status, result.score, result.named_scores) == (Status.PASSED, 1.0, {"polite": 1.0})
    assert (result.prompt.rendered, result.output, result.provider.label) == ("Say hello", "hello there", "M")
    assert result.usage[Role.GENERATION].input_tokens == 10
    assert result.latency_ms == 12.0


def test_a_provider_error_is_an_error_result_and_nothing_is_judged() -> None:
    broken = ProviderAuthError(
        "the key was refused", provider_id="openai:m", status=401, body='{"error": 1}', hint="h"
    )
    result = run(broken, [assertion("contains", value="hello")])
    assert (result.status, result.score, result.assertions) == (Status.ERROR, None, ())
    assert result.error is not None
    assert (result.error.type, result.error.hint, result.error.raw) == (
        "ProviderAuthError",
        "h",
        '{"error": 1}',
    )
    assert result.prompt.rendered == "Say hello"


def test_one_assertion_that_breaks_leaves_the_others_their_verdict() -> None:
    result = run("hello", [assertion("contains", value="hello"), assertion("contains", value="{{ gone }}")])
    assert [item.status for item in result.assertions] == [Status.PASSED, Status.ERROR]
    assert (result.status, result.score) == (Status.ERROR, None)


def test_a_bug_in_a_check_is_an_error_of_its_own_kind_and_not_a_verdict() -> None:
    # A judge that was never configured makes `tools()` fail an assertion of its own: a stand-in for any bug.
    result = run("hello", [assertion("g-eval", criteria="c")])
    assert result.status is Status.ERROR
    error = result.assertions[0].error
    assert error is not None
    assert error.is_bug
    assert error.raw is not None
    assert error.raw.splitlines()[-1] == "AssertionError: this test has no judge"
    assert "in judge_for" in error.raw


def test_a_bug_on_the_way_to_the_model_is_told_with_its_traceback() -> None:
    result = run(KeyError("gone"), [assertion("contains", value="hello")])
    assert result.error is not None
    assert result.error.is_bug
    assert result.error.raw is not None
    assert "in __call__" in result.error.raw


def test_an_output_that_the_test_brings_is_judged_without_asking_a_model() -> None:
    result = run(
        AssertionError("asked"),
        [assertion("equals", value="mine")],
        providers=(),
        has_output=True,
        output="mine",
    )
    assert result.status is Status.PASSED
    assert result.usage[Role.GENERATION] == Usage()


def test_the_output_may_stand_in_the_vars() -> None:
    result = run(
        AssertionError("asked"),
        [assertion("equals", value="mine")],
        providers=(),
        vars={"output": "mine", "x": 1},
    )
    assert result.status is Status.PASSED


def test_without_assertions_nothing_is_evaluated() -> None:
    result = run("hello")
    assert (result.status, result.score) == (Status.NOT_EVALUATED, None)


def test_a_threshold_of_the_test_decides_by_the_weighted_score() -> None:
    checks = [assertion("contains", value="hello", weight=3), assertion("contains", value="absent")]
    assert run("hello", checks).status is Status.FAILED
    assert run("hello", checks, threshold=0.75).status is Status.PASSED
    assert run("hello", checks, threshold=0.76).status is Status.FAILED


def test_model_output_is_never_rendered_as_a_template() -> None:
    result = run("{{ 7 * 7 }}", [assertion("equals", value="{% raw %}{{ 7 * 7 }}{% endraw %}")])
    assert (result.output, result.status) == ("{{ 7 * 7 }}", Status.PASSED)

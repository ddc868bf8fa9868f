import asyncio
from typing import Any

import pytest
from support.specs import TEMPLATES, assertion, case, suite, tools

from geval_cli.assertions.base import JudgeDefaults, MergedTest
from geval_cli.engine.case import JobContext, run_job
from geval_cli.engine.check import Checked, check_plan
from geval_cli.engine.plan import Plan, assertions_of
from geval_cli.errors import Severity
from geval_cli.records import CaseResult, Choice, ModelRequest, ModelResponse, Status, Usage
from geval_cli.specs.base import PromptSpec, ProviderSpec

SCHEMA = {"type": "object", "required": ["a"]}


def prompt(**keys: Any) -> PromptSpec:
    return PromptSpec(**{"id": "p", "label": "p", "system": "Be brief.", **keys})


def types_of(prompt_spec: PromptSpec, test: MergedTest) -> list[str]:
    return [spec.type for spec in assertions_of(prompt_spec, test)]


@pytest.mark.parametrize(
    ("keys", "types"),
    [
        ({}, []),
        ({"evaluation_mode": "llm"}, ["evaluation-llm"]),
        ({"evaluation_mode": "schema"}, ["evaluation-schema"]),
        ({"evaluation_criteria": "It is good."}, ["evaluation-llm"]),
        ({"evaluation_criteria": "", "evaluation_mode": "schema"}, ["evaluation-schema"]),
        ({"expected_schema": SCHEMA}, []),
    ],
)
def test_the_mode_of_a_prompt_is_one_assertion_and_criteria_mean_llm(
    keys: dict[str, Any], types: list[str]
) -> None:
    assert types_of(prompt(**keys), case(evaluation_schema=SCHEMA)) == types


@pytest.mark.parametrize(
    ("keys", "at"),
    [
        ({"evaluation_criteria": "It is good."}, "evaluation_criteria"),
        ({"evaluation_mode": "llm"}, "evaluation_mode"),
    ],
)
def test_an_evaluation_is_placed_where_it_is_written(keys: dict[str, Any], at: str) -> None:
    written = prompt(**keys)
    [spec] = assertions_of(written, case())
    assert spec.place == written.place.child(at)


def test_a_mode_and_assert_stand_side_by_side() -> None:
    test = case(assertions=(assertion("contains", value="a"),))
    assert types_of(prompt(evaluation_mode="schema"), test) == ["evaluation-schema", "contains"]


@pytest.mark.parametrize(
    ("by_prompt", "by_test", "parsing"),
    [
        (None, None, "strict"),
        ("tolerant", None, "tolerant"),
        (None, "tolerant", "tolerant"),
        ("tolerant", "strict", "strict"),
    ],
)
def test_the_test_says_how_answers_are_parsed_then_the_prompt(
    by_prompt: Any, by_test: Any, parsing: str
) -> None:
    [spec] = assertions_of(
        prompt(evaluation_mode="schema", evaluation_parsing=by_prompt),
        case(evaluation_schema=SCHEMA, evaluation_parsing=by_test),
    )
    assert spec.model_dump()["parsing"] == parsing


class Model:
    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.requests: list[ModelRequest] = []

    async def __call__(self, spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        return ModelResponse((Choice(self.answer),), Usage(1, 10, 5, 0, None))


def run(prompt_spec: PromptSpec, test: MergedTest, answer: str = '{"a": 1}') -> tuple[CaseResult, Model]:
    model = Model(answer)
    [[job]] = Plan(suite([test], prompts=(prompt_spec,))).queues
    return asyncio.run(run_job(job, JobContext(model, tools()))), model


def test_the_prompt_is_the_system_message_and_the_input_the_user_message() -> None:
    result, model = run(prompt(evaluation_mode="schema"), case(input="Hi.", evaluation_schema=SCHEMA))
    assert [(message.role, message.content) for message in model.requests[0].messages] == [
        ("system", "Be brief."),
        ("user", "Hi."),
    ]
    assert (result.status, result.score) == (Status.PASSED, 1.0)


def test_both_the_evaluation_and_the_assertions_count() -> None:
    missing = assertion("contains", value="b")
    result, _ = run(
        prompt(evaluation_mode="schema"), case(input="Hi.", evaluation_schema=SCHEMA, assertions=(missing,))
    )
    assert (result.status, result.score) == (Status.FAILED, 0.5)


def test_what_is_not_evaluated_leaves_the_score_to_the_assertions() -> None:
    found = assertion("contains", value="a")
    result, _ = run(prompt(evaluation_mode="llm"), case(input="Hi.", assertions=(found,)))
    assert (result.status, result.score) == (Status.PASSED, 1.0)
    assert [item.status for item in result.assertions] == [Status.NOT_EVALUATED, Status.PASSED]


@pytest.mark.parametrize("mode", ["llm", "schema"])
def test_an_evaluation_without_anything_to_go_by_still_generates_the_output(mode: Any) -> None:
    result, model = run(prompt(evaluation_mode=mode), case(input="Hi."), "an answer")
    assert (result.status, result.score, result.output) == (Status.NOT_EVALUATED, None, "an answer")
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("written", "sent"), [(SCHEMA, SCHEMA), ('{"type": "array"}', {"type": "array"}), ("", None), ({}, None)]
)
def test_the_expected_schema_shapes_the_answer_and_evaluates_nothing(written: Any, sent: Any) -> None:
    result, model = run(prompt(expected_schema=written), case(input="Hi."), "not even JSON")
    assert model.requests[0].response_schema == sent
    assert (result.status, result.assertions) == (Status.NOT_EVALUATED, ())


def check(test: MergedTest, *prompts: PromptSpec, grader: ProviderSpec | None = None) -> Checked:
    return check_plan(Plan(suite([test], prompts=prompts)), TEMPLATES, JudgeDefaults(grader))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"evaluation_mode": "llm"}, "`evaluation_schema` is not used: the evaluation mode of the prompts is llm"),
        ({"evaluation_criteria": "x"}, "`evaluation_schema` is not used: the evaluation mode of the prompts is llm"),
        ({}, "`evaluation_schema` is not used: no prompt has the evaluation mode schema"),
    ],
)  # fmt: skip
def test_a_schema_that_no_prompt_uses_is_a_warning(keys: dict[str, Any], message: str) -> None:
    [problem] = check(case(input="Hi.", evaluation_schema=SCHEMA), prompt(**keys)).problems
    assert (problem.message, problem.severity) == (message, Severity.WARNING)


def test_a_schema_that_one_of_the_prompts_uses_is_none() -> None:
    prompts = (prompt(evaluation_mode="llm"), prompt(label="q", evaluation_mode="schema"))
    assert check(case(input="Hi.", evaluation_schema=SCHEMA), *prompts).problems == ()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"evaluation_mode": "schema", "evaluation_criteria": "Good."},
            "`evaluation_criteria` of prompt `p` is not used: the evaluation mode is schema",
        ),
        (
            {"evaluation_parsing": "tolerant"},
            "`evaluation_parsing` of prompt `p` is not used: the evaluation mode is not schema",
        ),
    ],
)
def test_keys_of_the_other_mode_are_warnings(keys: dict[str, Any], message: str) -> None:
    [problem] = check(case(input="Hi."), prompt(**keys)).problems
    assert (problem.message, problem.severity) == (message, Severity.WARNING)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "`expected_schema` is not a JSON Schema: Expecting property name"),
        ({"type": "strng"}, "broken JSON Schema: 'strng'"),
        ("true", "`expected_schema` must be an object, not a boolean"),
    ],
)
def test_a_broken_expected_schema_is_a_problem(schema: Any, message: str) -> None:
    [problem] = check(case(input="Hi."), prompt(expected_schema=schema)).problems
    assert problem.message.startswith(message)
    assert problem.severity is Severity.ERROR


def test_a_broken_schema_of_a_test_is_a_problem_under_a_schema_prompt() -> None:
    [problem] = check(case(input="Hi.", evaluation_schema="{"), prompt(evaluation_mode="schema")).problems
    assert (problem.severity, problem.message[:43]) == (
        Severity.ERROR,
        "`evaluation_schema` is not a JSON Schema: E",
    )


def test_a_judge_is_needed_only_where_there_are_criteria() -> None:
    grader = ProviderSpec(id="openai:grader")
    without = check(case(input="Hi."), prompt(evaluation_mode="llm"), grader=grader)
    blank = check(case(input="Hi.", vars={"c": ""}), prompt(evaluation_criteria="{{ c }}"), grader=grader)
    asked = check(case(input="Hi."), prompt(evaluation_criteria="Good."), grader=grader)
    assert [len(checked.judges) for checked in (without, blank, asked)] == [0, 0, 1]

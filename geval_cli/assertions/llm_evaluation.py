"""evaluation-llm: the evaluation mode `llm`, in which a judge rates an output by the criteria of its prompt."""

from collections.abc import Iterator

from msgspec.structs import replace

from geval_cli.assertions import geval
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, has_criteria
from geval_cli.config.schema import AssertionSpec, LlmEvaluationSpec
from geval_cli.errors import Problem
from geval_cli.judge.metric import Judge, JudgedCase
from geval_cli.records import ModelRequest


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the criteria in one test; empty ones have none."""
    assert isinstance(spec, LlmEvaluationSpec)
    return geval.check(spec, context) if has_criteria(spec, context.test, context.templates) else []


def foresee(spec: AssertionSpec, subject: Subject, tools: Tools) -> Iterator[tuple[Judge, ModelRequest]]:
    """The requests for the judge's steps, which hold nothing of an output."""
    assert isinstance(spec, LlmEvaluationSpec)
    if has_criteria(spec, subject.test, tools.templates):
        case = _with_prompt(geval.judged_case(spec, subject, tools), subject)
        yield from geval.foresee_case(spec, case, subject.test, tools)


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Have the judge rate the output, with prompt and input before its eyes; without criteria it is not asked.

    Raises:
        JudgeError, ProviderError: no verdict could be had.
    """
    assert isinstance(spec, LlmEvaluationSpec)
    if not has_criteria(spec, subject.test, tools.templates):
        return Outcome.not_evaluated("the prompt has no `evaluation_criteria`")
    case = _with_prompt(geval.judged_case(spec, subject, tools), subject)
    return await geval.judge_case(spec, case, subject.test, tools)


def _with_prompt(case: JudgedCase, subject: Subject) -> JudgedCase:
    """The case with the prompt beside the input; a prompt that is all of the input is not shown twice."""
    if subject.system is not None:
        return replace(case, prompt=subject.system)
    if case.input or case.vars.get("input"):
        return replace(case, prompt=case.rendered_prompt)
    return case

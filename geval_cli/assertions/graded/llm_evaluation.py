"""evaluation-llm: the evaluation mode `llm`, in which a judge rates an output by the criteria of its prompt."""

from collections.abc import Iterator

from msgspec.structs import replace

from geval_cli.assertions.base import CheckContext, Subject, TestCase, Tools
from geval_cli.assertions.graded.geval import GEvalAssertion
from geval_cli.assertions.outcome import Outcome
from geval_cli.errors import Problem, TemplateError
from geval_cli.judge.metric import Judge, JudgedCase
from geval_cli.records import ModelRequest
from geval_cli.templating import Templates


class LlmEvaluation(GEvalAssertion):
    """evaluation-llm: the criteria that a prompt in the mode `llm` has for every answer; located at the criteria."""

    def applies_to(self, test: TestCase, templates: Templates) -> bool:
        """Return True when the criteria say anything, once the test's variables are in them."""
        try:
            return bool(templates.render(str(self.criteria), test.variables).strip())
        except TemplateError:
            return True  # somebody must be told

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the criteria in one test; empty ones have none."""
        return super().check(context) if self.applies_to(context.test, context.templates) else []

    def prefetch(self, subject: Subject, tools: Tools) -> Iterator[tuple[Judge, ModelRequest]]:
        """Yield the requests for the judge's steps, which hold nothing of an output."""
        if self.applies_to(subject.test, tools.templates):
            yield from super().prefetch(subject, tools)

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Have the judge rate the output, given prompt and input; without criteria no judge is called.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
        """
        if not self.applies_to(subject.test, tools.templates):
            return Outcome.not_evaluated("the prompt has no `evaluation_criteria`")
        return await super().judge(subject, tools)

    def case(self, subject: Subject, tools: Tools) -> JudgedCase:
        """Return the parts of a test and its output that the judge sees, the prompt among them."""
        return _with_prompt(super().case(subject, tools), subject)


def _with_prompt(case: JudgedCase, subject: Subject) -> JudgedCase:
    """Return the case with the prompt beside the input; a prompt that is all of the input is not shown twice."""
    if subject.system is not None:
        return replace(case, prompt=subject.system)
    if case.input or case.vars.get("input"):
        return replace(case, prompt=case.rendered_prompt)
    return case

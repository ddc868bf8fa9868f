"""contains-all, contains-any and their forms for any case: the output's text against several expected texts."""

from pydantic import Field

from geval_cli.assertions.base import Assertion, CheckContext, Subject, TestCase, Tools
from geval_cli.assertions.outcome import Outcome
from geval_cli.assertions.values import check_texts, listed, rendered_texts
from geval_cli.errors import Problem
from geval_cli.templating import Templates

Item = str | int | float | bool


class TextListAssertion(Assertion):
    """contains-all, contains-any and their forms for any case: the output against several texts."""

    value_form = "texts"

    value: Item | tuple[Item, ...] = Field(
        description="What to look for: a list of templates, or one text with commas between them."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the expected texts: none is given, or a template is broken."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        if not problems and not _expected_texts(self, context.test, context.templates):
            message = f"{self.base_type} has nothing to look for ({context.where})"
            problems.append(Problem(message, self.place.value("value"), "list at least one text in `value`"))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Look for every text; the reason names those that are missing, or the one that was found."""
        expected = _expected_texts(self, subject.test, tools.templates)
        output, ignores_case = subject.text, self.base_type.startswith("i")
        if ignores_case:
            output = output.casefold()
        missing = [text for text in expected if (text.casefold() if ignores_case else text) not in output]
        case = ", in any case," if ignores_case else ""
        if self.base_type.endswith("-all"):
            if missing:
                return Outcome.of(False, f"the output does not contain{case} {listed(missing)}")
            return Outcome.of(True, f"the output contains{case} all of {listed(expected)}")
        found = [text for text in expected if text not in missing]
        if found:
            return Outcome.of(True, f"the output contains{case} {listed(found)}")
        return Outcome.of(False, f"the output contains{case} none of {listed(expected)}")


def _expected_texts(spec: TextListAssertion, test: TestCase, templates: Templates) -> list[str]:
    return rendered_texts(spec.value, test, templates, split=True)

"""search-rubric: as llm-rubric, by a judge that looks into the web before it says what it thinks."""

from typing import ClassVar

from geval_cli.assertions.graded.rubric import LlmRubricAssertion, judged_by_rubric
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.errors import Problem
from geval_cli.providers.judge_kinds import can_search
from geval_cli.specs.promptfoo import JudgesSpec


class SearchRubricAssertion(LlmRubricAssertion):
    """search-rubric: as llm-rubric, by a judge that looks into the web first."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("search",)

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the rubric, and a provider that cannot search."""
        problems = super().check(context)
        own = self.provider
        if own is not None and not isinstance(own, JudgesSpec) and not can_search(own):
            message = f"`{own.public_id}` does not search the web, as search-rubric needs"
            hint = "name perplexity:sonar, or give openai:responses:MODEL the tool `{type: web_search}`"
            problems.append(Problem(message, self.place.value("provider"), hint))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """As llm-rubric.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
        """
        # Gemini, for one, takes no schema beside a search.
        return await judged_by_rubric(self, subject, tools, name="search_rubric", schema=None)

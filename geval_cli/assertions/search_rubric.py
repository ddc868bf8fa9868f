"""search-rubric: as llm-rubric, by a judge that looks into the web before it says what it thinks."""

from geval_cli.assertions import rubric
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.graded_schema import SearchRubricSpec
from geval_cli.config.promptfoo.specs import JudgesSpec
from geval_cli.errors import Problem
from geval_cli.providers.judge_kinds import can_search


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the rubric, and a provider that cannot search."""
    assert isinstance(spec, SearchRubricSpec)
    problems = rubric.check(spec, context)
    own = spec.provider
    if own is not None and not isinstance(own, JudgesSpec) and not can_search(own):
        message = f"`{own.public_id}` does not search the web, as search-rubric needs"
        hint = "name perplexity:sonar, or give openai:responses:MODEL the tool `{type: web_search}`"
        problems.append(Problem(message, spec.place.value("provider"), hint))
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """As llm-rubric.

    Raises:
        JudgeError, ProviderError: no verdict could be had.
    """
    # Gemini, for one, takes no schema beside a search.
    return await rubric.judged_by_rubric(spec, subject, tools, name="search_rubric", schema=None)

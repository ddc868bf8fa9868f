import pytest
from support.graded import SpeakingJudge, graded, graded_tools
from support.verdicts import problems

from geval_cli.assertions.judges import DEFAULT_SEARCH
from geval_cli.errors import JudgeError
from geval_cli.providers.base import can_search
from geval_cli.records import Status
from geval_cli.specs.base import ProviderSpec, TestOptionsSpec
from geval_cli.specs.promptfoo import JudgesSpec

VERDICT = '{"reason": "The site says so.", "pass": true, "score": 0.8}'
SONAR = ProviderSpec(id="perplexity:sonar")
PLAIN = ProviderSpec(id="openai:gpt-4.1")


def test_a_judge_is_told_to_search_and_its_verdict_counts() -> None:
    judge = SpeakingJudge([f"I searched. {VERDICT}"])
    result = graded("search-rubric", graded_tools(judge=judge), value="is up to date", threshold=0.7)
    assert (result.status, result.score, result.reason) == (Status.PASSED, 0.8, "The site says so.")
    [request] = judge.requests
    assert "search the web" in judge.prompts[0]
    assert "is up to date" in judge.prompts[0]
    assert request.response_schema is None
    failed = graded("search-rubric", graded_tools(VERDICT), value="x", threshold=0.9)
    assert failed.status is Status.FAILED


def test_a_reply_without_a_verdict_is_an_error() -> None:
    with pytest.raises(JudgeError):
        graded("search-rubric", graded_tools("I found nothing."), value="x")


@pytest.mark.parametrize(
    ("keys", "options", "asked"),
    [
        ({}, None, DEFAULT_SEARCH.id),
        ({"provider": SONAR}, PLAIN, SONAR.id),
        ({}, SONAR, SONAR.id),
        ({}, PLAIN, DEFAULT_SEARCH.id),
        ({}, JudgesSpec(id=SONAR.id, by_kind={"text": SONAR}), SONAR.id),
        ({}, JudgesSpec(id=PLAIN.id, by_kind={"text": PLAIN}), DEFAULT_SEARCH.id),
    ],
)
def test_the_nearest_judge_that_can_search_is_asked(
    keys: dict[str, ProviderSpec], options: ProviderSpec | None, asked: str
) -> None:
    seen: list[str] = []
    test = {} if options is None else {"options": TestOptionsSpec(provider=options)}
    graded("search-rubric", graded_tools(VERDICT, asked=seen), value="x", test=test, **keys)
    assert seen == [asked]


@pytest.mark.parametrize(
    ("name", "config", "can"),
    [
        ("perplexity:sonar", {}, True),
        ("openrouter:openai/gpt-4.1:online", {}, True),
        ("openai:gpt-4o-search-preview", {}, True),
        ("openai:responses:gpt-5", {"tools": [{"type": "web_search"}]}, True),
        ("anthropic:claude-x", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, True),
        ("google:gemini-x", {"tools": [{"google_search": {}}]}, True),
        ("xai:grok-4", {"search_parameters": {"mode": "on"}}, True),
        ("python:judge.py", {}, True),
        ("openai:gpt-4.1", {}, False),
        ("openai:responses:gpt-5", {"tools": [{"type": "function", "name": "f"}, "x"]}, False),
        ("google:gemini-x", {"tools": "file://tools.json"}, False),
    ],
)
def test_who_can_search(name: str, config: dict[str, object], can: bool) -> None:
    spec = ProviderSpec(id=name, config=config)
    assert can_search(spec) is can
    assert (problems("search-rubric", value="x", provider=spec) == []) is can


def test_it_needs_a_rubric() -> None:
    [problem] = problems("search-rubric")
    assert "no rubric" in problem.message

"""webhook: a server of the user's judges the output."""

from msgspec.structs import replace

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import WebhookAssertionSpec
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.providers.webhook import ask_webhook, url_problem
from geval_cli.records import JsonValue


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the URL, with the test's variables in it."""
    assert isinstance(spec, WebhookAssertionSpec)
    place = spec.place.value("value")
    problems: list[Problem] = []
    url = context.render(spec.value, place, problems)
    if url is not None and url_problem(url):
        problems.append(
            Problem(url_problem(url), place, "write the URL of your server, with http:// or https://")
        )
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """POST the output with prompt and vars; the answer's `pass`, `score` and `reason` are the verdict.

    Raises:
        ProviderError: the server cannot be reached, or refuses.
        UnjudgeableError: it answers with something else.
    """
    assert isinstance(spec, WebhookAssertionSpec)
    url = tools.templates.render(spec.value, subject.test.variables)
    context = {"prompt": subject.rendered_prompt, "vars": dict(subject.test.vars)}
    answer = await ask_webhook(url, {"output": subject.output, "context": context}, tools.access)
    if not isinstance(answer, dict) or not isinstance(answer.get("pass"), bool):
        raise UnjudgeableError(
            "the webhook did not answer with a verdict", hint='it must answer {"pass": true or false, ...}'
        )
    passed = answer["pass"]
    reason = answer.get("reason")
    outcome = Outcome.of(passed, reason if isinstance(reason, str) and reason else _default_reason(passed))
    return replace(outcome, score=_score(answer.get("score"), outcome.score))


def _score(written: JsonValue, default: float | None) -> float | None:
    if written is None:
        return default
    if isinstance(written, bool) or not isinstance(written, int | float) or not 0 <= written <= 1:
        raise UnjudgeableError(
            f"the webhook's `score` is {str(written)[:60]}", hint="it must be a number from 0 to 1"
        )
    return float(written)


def _default_reason(passed: bool) -> str:
    return f"the webhook says that it {'passes' if passed else 'fails'}"

"""The `webhook` assertion: your own server returns a verdict, and a score if it has one."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import Assertion, CheckContext, Outcome, Subject, Tools, shortened
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.providers.network.messages import HttpCall
from geval_cli.providers.network.transport import Transport
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.refusals import CallContext
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.secrets import mask_text, secret_values

WEBHOOK_TIMEOUT_S = 30.0


def url_problem(url: str) -> str:
    """Return what is wrong with `url`; empty if it can be called."""
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_complete = False
    return "" if is_complete else f"`{mask_text(url)[:200]}` is not a valid URL"


async def ask_webhook(url: str, payload: Mapping[str, Any], access: Access) -> JsonValue:
    """POST `payload` to `url` as JSON and return the answer, with the secrets of `url` masked.

    Raises:
        UnjudgeableError: the config may not send outputs to other servers.
        ProviderError: the server cannot be reached, takes longer than `WEBHOOK_TIMEOUT_S`, or returns an error status.
        ProviderResponseError: the answer is not JSON.
    """
    access.require_host("a webhook")
    secrets = secret_values([url])
    context = CallContext(
        f"the webhook {mask_text(url)}",
        Secrets(secrets),
        key_source="its URL" if secrets else "",
        key_hint="put it into the URL",
        address="the webhook's URL",
    )
    transport = Transport()
    try:
        answer, _ = await transport.post_json(HttpCall(url, timeout_s=WEBHOOK_TIMEOUT_S), payload, context)
    finally:
        await transport.aclose()
    return context.secrets.hide_in(answer)  # its text is shown, and may repeat the URL


class WebhookAssertion(Assertion):
    """webhook: your own server decides. It receives output, prompt and vars and returns {pass, score, reason}."""

    calls_server = True

    value: str = Field(description="The URL to POST to; a template.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the URL after the test's variables are filled in."""
        place = self.place.value("value")
        problems: list[Problem] = []
        url = context.render(self.value, place, problems)
        if url is not None and url_problem(url):
            problems.append(
                Problem(url_problem(url), place, "use the URL of your server, with http:// or https://")
            )
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """POST the output with the prompt and vars, and return the verdict, score and reason in the answer.

        Raises:
            ProviderError: the server cannot be reached, or refuses the request.
            UnjudgeableError: the answer is not a verdict.
        """
        url = tools.templates.render(self.value, subject.test.variables)
        context = {"prompt": subject.rendered_prompt, "vars": dict(subject.test.vars)}
        if subject.reported.get("metadata") is not None:
            context["metadata"] = subject.reported["metadata"]
        answer = await ask_webhook(url, {"output": subject.output, "context": context}, tools.access)
        if not isinstance(answer, dict) or not isinstance(answer.get("pass"), bool):
            raise UnjudgeableError(
                "the webhook did not answer with a verdict",
                hint='it must answer {"pass": true or false, ...}',
            )
        if error := answer.get("error"):
            message = f"the webhook reported an error: {shortened(str(error), 400)}"
            raise UnjudgeableError(message, hint="leave `error` out where there is a verdict")
        passed = answer["pass"]
        reason = answer.get("reason")
        outcome = Outcome.of(
            passed,
            reason
            if isinstance(reason, str) and reason
            else f"the webhook says it {'passes' if passed else 'fails'}",
        )
        written = answer.get("score")
        if written is None:
            return outcome
        if isinstance(written, bool) or not isinstance(written, int | float) or not 0 <= written <= 1:
            raise UnjudgeableError(
                f"the webhook's `score` is {str(written)[:60]}", hint="return a number from 0 to 1"
            )
        return replace(outcome, score=float(written))

"""A server of the user's that judges outputs: one POST, one JSON answer."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from geval_cli.config.access import Access
from geval_cli.config.secrets import mask_text, secret_values
from geval_cli.providers.http_client import HttpCall
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.refusals import CallContext
from geval_cli.providers.transport import Transport
from geval_cli.records import JsonValue

WEBHOOK_TIMEOUT_S = 30.0


def url_problem(url: str) -> str:
    """What keeps `url` from being asked; empty when nothing does."""
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_complete = False
    return "" if is_complete else f"`{mask_text(url)[:200]}` is no URL that can be asked"


async def ask_webhook(url: str, payload: Mapping[str, Any], access: Access) -> JsonValue:
    """What the server at `url` answers when it is sent `payload`, both JSON, without the secrets of `url`.

    Raises:
        UnjudgeableError: no server of the config's own may be asked.
        ProviderError: it cannot be reached, takes longer than `WEBHOOK_TIMEOUT_S`, or answers with an error status.
        ProviderResponseError: its answer is not JSON.
    """
    access.require_host("a webhook")
    context = CallContext(f"the webhook {mask_text(url)}", Secrets(secret_values([url])))
    transport = Transport()
    try:
        answer, _ = await transport.post_json(HttpCall(url, timeout_s=WEBHOOK_TIMEOUT_S), payload, context)
    finally:
        await transport.aclose()
    return context.secrets.hide_in(answer)  # its words are shown, and it may say back its own address

"""Headers of a config: none ends early or says how a request is framed; a stranger's leads no request elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from geval_cli.errors import ConfigError
from geval_cli.providers.registry import build_provider, check_provider, provider_access_problem
from geval_cli.source.access import untrusted_access
from geval_cli.specs.base import ProviderSpec

ROUTING = (
    "Host",
    "hOST",
    "Forwarded",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "Proxy-Authorization",
    "Via",
    "Proxy-Connection",
    "X-Original-URL",
    "X-Rewrite-URL",
    "X-Host",
    "X-Real-IP",
    "Connection",
    "X-HTTP-Method-Override",
)
BROKEN = (
    ":authority",
    ":path",
    "X A",
    "",
    "X-A\r\nHost",
    "X-A:",
    "Content-Length",
    "transfer-encoding",
    "TE",
    "Trailer",
    "Upgrade",
)
PROVIDERS = ("openai:m", "anthropic:m", "google:m", "vertex:gemini-x", "https://x.example/")


def messages(provider: str, **config: Any) -> list[str]:
    spec = ProviderSpec(id=provider, config=config)
    return [problem.message for problem in check_provider(spec, env={}, base_dir=Path())]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("name", BROKEN)
def test_what_only_the_client_can_say_is_refused_in_any_config(provider: str, name: str) -> None:
    assert any("cannot be set" in message for message in messages(provider, headers={name: "x"}))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("value", ["a\r\nHost: x", "a\nb", "a\rb", "a\0b"])
def test_a_header_stays_on_its_line(provider: str, value: str) -> None:
    assert any("line break" in message for message in messages(provider, headers={"X-A": value}))


@pytest.mark.parametrize("key", ["apiKey", "api_key", "organization", "apiVersion"])
def test_keys_that_become_headers_stay_on_their_lines(key: str) -> None:
    assert f"`{key}` has a line break in it" in messages("openai:m", **{key: "a\r\nHost: x"})


@pytest.mark.parametrize("name", ROUTING)
def test_headers_that_decide_where_a_request_goes_are_the_users_to_set(name: str) -> None:
    headers = {name: "x.example"}
    assert messages("openai:m", headers=headers) == []
    spec = ProviderSpec(id="openai:m", config={"headers": headers})
    access = untrusted_access([Path()])
    problem = provider_access_problem(spec, env={}, base_dir=Path(), access=access)
    assert problem is not None
    assert "may send requests elsewhere" in problem.message
    with pytest.raises(ConfigError):
        build_provider(spec, env={}, base_dir=Path(), access=access)


def test_other_headers_are_a_strangers_too() -> None:
    spec = ProviderSpec(id="openai:m", config={"headers": {"X-Title": "mine", "OpenAI-Project": "p"}})
    assert provider_access_problem(spec, env={}, base_dir=Path(), access=untrusted_access([Path()])) is None

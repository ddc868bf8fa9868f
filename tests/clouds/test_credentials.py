"""Tokens of Google Cloud and Azure: the clouds' own libraries, against servers on loopback that hand out tokens."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply

from geval_cli.errors import ProviderAuthError, ProviderUnavailableError
from geval_cli.extras.clouds import CLOUDS, CloudCredentials
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.network.messages import HttpCall
from geval_cli.providers.registry import build_provider, check_provider, check_ready, provider_access_problem
from geval_cli.source.access import TRUSTED, access_in, untrusted_access
from geval_cli.specs.base import ProviderSpec

GEMINI = {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
AZURE = "https://team.openai.azure.com"
VERTEX = "https://us-central1-aiplatform.googleapis.com/v1/x"
NONE_LEFT = {
    "AZURE_CLIENT_ID": "",
    "AZURE_CLIENT_SECRET": "",
    "AZURE_TENANT_ID": "",
    "IDENTITY_ENDPOINT": "",
    "GOOGLE_APPLICATION_CREDENTIALS": "",
    "NO_GCE_CHECK": "true",
}


def needs(name: str) -> None:
    """Skip what is about Azure where its library is not installed; Google's is there for the tests of its requests."""
    if name.startswith("azure"):
        pytest.importorskip("azure.identity", reason="azure-identity is not installed")


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in NONE_LEFT.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no gcloud, no az


class Tokens(LoopbackServer):
    """Hands out tokens of both clouds, numbered; `lives_s` says for how long they are good."""

    def __init__(self, *, lives_s: float = 3600, same: bool = False) -> None:
        self.lives_s, self.given = lives_s, 0
        self.is_same = same
        super().__init__(respond=self.give)

    def give(self, body: Any, headers: Mapping[str, str]) -> Reply:
        self.given += 1
        token = f"ya29.token-{1 if self.is_same else self.given}-of-the-cloud"
        if "x-identity-header" in headers:
            ends = str(int(time.time() + self.lives_s))
            return Reply(body={"access_token": token, "expires_on": ends, "token_type": "Bearer"})
        return Reply(
            body={
                "access_token": token,
                "expires_in": self.lives_s,
                "token_type": "Bearer",
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            }
        )


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    with Tokens() as server:
        yield server


def service_account(folder: Path, tokens: LoopbackServer, private_key: str, **more: str) -> dict[str, str]:
    """The environment of someone with a key file of Google's."""
    path = folder / "service-account.json"
    known = {
        "type": "service_account",
        "client_email": "geval@p-1.iam.gserviceaccount.com",
        "private_key": private_key,
        "token_uri": f"{tokens.url}/token",
        **more,
    }
    path.write_text(json.dumps(known), encoding="utf-8")
    return {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}


def vertex(server: LoopbackServer, env: Mapping[str, str], **config: Any) -> Any:
    settings = {"project_id": "p-1", "base_url": server.url, "cloud_login": True, **config}
    return provider("vertex:gemini-x", settings, env=env)


def source_of(name: str, env: Mapping[str, str] | None = None, **config: Any) -> ProviderSource:
    return ProviderSource(ProviderSpec(id=name, config=config), env or {}, Path(), TRUSTED)


def sent(server: LoopbackServer) -> list[str]:
    return [request.headers.get("authorization", "") for request in server.requests]


# -- where tokens come from --------------------------------------------------------------------------------------


def test_a_key_file_of_google_gives_a_token_for_the_whole_cloud_and_its_quota_project(
    tmp_path: Path, tokens: Tokens, private_key: str
) -> None:
    env = {**service_account(tmp_path, tokens, private_key), "GOOGLE_CLOUD_QUOTA_PROJECT": "billed-here"}
    with LoopbackServer(Reply(body=GEMINI)) as server:
        [response] = run(answer(vertex(server, env)))
        assert response.text == "hi"
        assert sent(server) == ["Bearer ya29.token-1-of-the-cloud"]
        assert server.requests[0].headers["x-goog-user-project"] == "billed-here"
    [request] = tokens.requests
    asked = parse_qs(request.body.decode())
    assert asked["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    claims = asked["assertion"][0].split(".")[1]
    assert "https://www.googleapis.com/auth/cloud-platform" in decoded(claims)


def decoded(part: str) -> str:
    import base64

    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode()


def test_a_federated_workload_changes_its_token_for_one_of_google(tmp_path: Path, tokens: Tokens) -> None:
    (tmp_path / "oidc").write_text("token-of-the-runner", encoding="utf-8")
    known = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{tokens.url}/sts",
        "credential_source": {"file": str(tmp_path / "oidc")},
    }
    (tmp_path / "wif.json").write_text(json.dumps(known), encoding="utf-8")
    with LoopbackServer(Reply(body=GEMINI)) as server:
        run(answer(vertex(server, {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "wif.json")})))
        assert sent(server) == ["Bearer ya29.token-1-of-the-cloud"]
    [request] = tokens.requests
    assert parse_qs(request.body.decode())["subject_token"] == ["token-of-the-runner"]


@pytest.mark.parametrize(
    ("base_url", "scope", "resource"),
    [
        (AZURE, None, "https://cognitiveservices.azure.com"),
        ("https://team.openai.azure.us", None, "https://cognitiveservices.azure.us"),
        ("https://team.cognitiveservices.azure.cn", None, "https://cognitiveservices.azure.cn"),
        ("https://team.services.ai.azure.com/openai/v1", None, "https://cognitiveservices.azure.com"),
        ("https://team.services.ai.azure.com/api/projects/p/openai/v1", None, "https://ai.azure.com"),
        (AZURE, "api://own/.default", "api://own"),
    ],
)
def test_a_managed_identity_of_azure_gives_a_token_for_the_address(
    base_url: str, scope: str | None, resource: str, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("azure")
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{tokens.url}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "the-header")
    credentials = CloudCredentials(
        source_of("azure:m", {"AZURE_TENANT_ID": f"only-for-{resource}{base_url}"}),
        CLOUDS["azure"],
        base_url,
        scope=scope or "",
    )
    call = run(credentials.sign(HttpCall(base_url)))
    assert call.headers == {"authorization": "Bearer ya29.token-1-of-the-cloud"}
    [request] = tokens.requests
    assert request.path == f"/msi/token?api-version=2019-08-01&resource={resource}"
    assert request.headers["x-identity-header"] == "the-header"


def test_a_service_principal_in_a_config_signs_in_and_is_not_sent_to_the_model(tmp_path: Path) -> None:
    needs("azure")
    config = {
        "azureTenantId": "the-tenant",
        "azureClientId": "the-client",
        "azureClientSecret": "the-secret-of-the-client",
        "azureAuthorityHost": "http://127.0.0.1:1",  # Azure's library refuses it, and so says that it came there
        "base_url": AZURE,
    }
    spec = ProviderSpec(id="azure:m", config=config)
    assert check_provider(spec, env={}, base_dir=tmp_path) == []
    [problem] = missing("azure:m", {}, **config)
    assert "'http://127.0.0.1:1' is an invalid authority" in problem
    with LoopbackServer(chat_reply("hi")) as server:
        run(answer(provider("azure:m", {**config, "base_url": server.url, "apiKey": "k-123"})))
        assert set(server.requests[0].json) == {"model", "messages"}


# -- how long they are used --------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("cloud", ["google", "azure"])
def test_a_token_is_renewed_shortly_before_its_end(
    cloud: Any, tmp_path: Path, tokens: Tokens, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(cloud)
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{tokens.url}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "the-header")
    env = {**service_account(tmp_path, tokens, private_key), "AZURE_TENANT_ID": str(tmp_path)}
    clock = Clock()
    url = VERTEX if cloud == "google" else AZURE
    credentials = CloudCredentials(source_of(f"{cloud}:m", env), CLOUDS[cloud], url, clock=clock)

    def number() -> str:
        return run(credentials.sign(HttpCall(url))).headers["authorization"].split("-")[1]

    assert number() == number() == "1"
    clock.now += 3600 - 240
    assert number() == "1"
    clock.now += 30
    assert number() == number() == "2"
    assert tokens.given == 2


def test_two_hundred_requests_wait_for_one_token_and_for_one_more_when_it_is_refused(
    tmp_path: Path, tokens: Tokens, private_key: str
) -> None:
    env = service_account(tmp_path, tokens, private_key)

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        is_old = "token-1-" in headers["authorization"]
        return error_reply(401, "the token has expired") if is_old else Reply(body=GEMINI)

    async def ask_many(*models: Any) -> set[str]:
        try:
            replies = await asyncio.gather(
                *(one.complete(ask(f"{index}")) for index in range(100) for one in models)
            )
        finally:
            for one in models:
                await one.aclose()
        return {reply.text for reply in replies}

    with LoopbackServer(respond=respond) as server:
        # The model under test and its judge use the same credentials.
        assert run(ask_many(vertex(server, env), vertex(server, env))) == {"hi"}
        assert len(server.requests) <= 400
    assert tokens.given == 2


def test_event_loops_of_several_threads_share_a_token(
    tmp_path: Path, tokens: Tokens, private_key: str
) -> None:
    env = service_account(tmp_path, tokens, private_key)
    found: list[str] = []

    def sign() -> None:
        credentials = CloudCredentials(source_of("vertex:gemini-x", env), CLOUDS["google"], VERTEX)
        found.append(run(credentials.sign(HttpCall(VERTEX))).headers["authorization"])

    threads = [Thread(target=sign) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {"Bearer ya29.token-1-of-the-cloud"}
    assert (len(found), tokens.given) == (8, 1)


@pytest.mark.parametrize(
    ("status", "is_same", "requests", "hint"),
    [
        (401, False, 2, "the server refuses Google Cloud's default credentials: check the account"),
        (401, True, 1, "the same token again: run `gcloud auth application-default login`"),
        (403, False, 1, "roles/aiplatform.user"),
    ],
)
def test_what_a_newer_token_does_not_cure_is_an_error_that_shows_none(
    status: int, is_same: bool, requests: int, hint: str, tmp_path: Path, private_key: str
) -> None:
    refused = error_reply(status, "Permission denied: token ya29.token-1-of-the-cloud")
    with Tokens(same=is_same) as tokens, LoopbackServer(refused, refused) as server:
        env = service_account(tmp_path, tokens, private_key)
        with pytest.raises(ProviderAuthError) as caught:
            run(answer(vertex(server, env)))
        assert len(server.requests) == requests
    assert hint in caught.value.hint
    assert "of-the-cloud" not in f"{caught.value.message} {caught.value.hint} {caught.value.body}"


# -- where they may go -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cloud", "url", "may_go"),
    [
        ("google", "https://aiplatform.googleapis.com/v1", True),
        ("google", "https://europe-west4-aiplatform.googleapis.com/v1", True),
        ("google", "https://aiplatform.eu.rep.googleapis.com/v1", True),
        ("google", "http://aiplatform.googleapis.com/v1", False),
        ("google", "https://aiplatform.googleapis.com:8443/v1", False),
        ("google", "https://aiplatform.googleapis.com.evil.example/v1", False),
        ("google", "https://evilgoogleapis.com/v1", False),
        ("google", "https://evil.example/aiplatform.googleapis.com", False),
        ("google", "https://aiplatform.googleapis.com@evil.example/", False),
        ("google", "https://evil.example\\@aiplatform.googleapis.com/", False),
        ("google", "https://evil.example#.googleapis.com", False),
        ("google", "https://evil.example?.googleapis.com", False),
        ("google", "http://127.0.0.1:8000", False),
        ("google", "https://team.openai.azure.com", False),
        ("azure", "https://team.openai.azure.com", True),
        ("azure", "https://team.cognitiveservices.azure.us/openai", True),
        ("azure", "https://team.services.ai.azure.com/openai/v1", True),
        ("azure", "https://openai.azure.com.evil.example", False),
        ("azure", "https://team.azure-api.net", False),  # anyone's gateway
        ("azure", "https://team.azurewebsites.net", False),
        ("azure", "https://team.openai.azure.com:444", False),
    ],
)
def test_a_token_goes_to_the_hosts_of_its_cloud_alone(
    cloud: Any, url: str, may_go: bool, tmp_path: Path, tokens: Tokens, private_key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    needs(cloud)
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{tokens.url}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "the-header")
    env = {**service_account(tmp_path, tokens, private_key), "AZURE_TENANT_ID": str(tmp_path)}
    credentials = CloudCredentials(source_of(f"{cloud}:m", env), CLOUDS[cloud], url)
    if may_go:
        assert "authorization" in run(credentials.sign(HttpCall(url))).headers
    else:
        with pytest.raises(ProviderAuthError, match="are for its own hosts"):
            run(credentials.sign(HttpCall(url)))
        assert tokens.given == 0


@pytest.mark.parametrize("name", ["vertex:gemini-x", "azure:m"])
@pytest.mark.parametrize("key", ["base_url", "api_endpoint"])
def test_a_config_that_names_another_server_gets_no_token_unless_it_says_so(
    name: str, key: str, tmp_path: Path, tokens: Tokens, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(name)
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{tokens.url}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "the-header")
    env = {**service_account(tmp_path, tokens, private_key), "AZURE_TENANT_ID": str(tmp_path)}
    said = GEMINI if name.startswith("vertex") else chat_reply("hi").body
    with LoopbackServer(respond=lambda body, headers: Reply(body=said)) as server:
        config = {"project_id": "p-1", key: server.url} if "vertex" in name else {key: server.url}
        run(answer(provider(name, config, env=env)))
        assert sent(server) == [""]
        assert tokens.given == 0
        run(answer(provider(name, {**config, "cloud_login": True}, env=env)))
        assert sent(server)[1:] == ["Bearer ya29.token-1-of-the-cloud"]


def test_a_header_that_may_lead_elsewhere_keeps_the_token_back(
    tmp_path: Path, tokens: Tokens, private_key: str
) -> None:
    config = {"project_id": "p-1", "headers": {"X-Forwarded-Host": "evil.example"}}
    [problem] = missing("vertex:gemini-x", service_account(tmp_path, tokens, private_key), **config)
    assert "sent to its own hosts only" in problem
    assert tokens.given == 0


def test_a_stranger_gets_no_token_of_this_machine(tmp_path: Path, tokens: Tokens, private_key: str) -> None:
    env = service_account(tmp_path, tokens, private_key)
    stranger = untrusted_access([tmp_path])
    plain = ProviderSpec(id="vertex:gemini-x", config={"project_id": "p"})
    [problem] = check_ready(plain, env=env, base_dir=tmp_path, access=stranger)
    assert (problem.message, problem.hint) == (
        "no credentials for vertex:gemini-x",
        "set VERTEX_ACCESS_TOKEN",
    )
    build_provider(plain, env=env, base_dir=tmp_path, access=stranger)
    explicit = ProviderSpec(id="vertex:gemini-x", config={"project_id": "p", "cloud_login": True})
    refused = provider_access_problem(explicit, env=env, base_dir=tmp_path, access=stranger)
    assert refused is not None
    assert "uses the cloud login of this machine, which --untrusted does not allow" in refused.message
    assert tokens.given == 0


def test_a_served_config_gets_a_token_for_the_cloud_alone(
    tmp_path: Path, tokens: Tokens, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = service_account(tmp_path, tokens, private_key)
    mine = ProviderSpec(id="vertex:gemini-x", config={"project_id": "p"})
    # The key file of a config could have any file of the machine sent to any server.
    [problem] = check_ready(mine, env=env, base_dir=tmp_path, access=access_in(tmp_path))
    assert "default credentials were not found" in problem.message
    (tmp_path / "mine").mkdir()
    env = service_account(tmp_path / "mine", tokens, private_key)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", env["GOOGLE_APPLICATION_CREDENTIALS"])
    config = {"project_id": "p", "cloud_login": True, "base_url": tokens.url}
    elsewhere = ProviderSpec(id="vertex:gemini-x", config=config)
    [problem] = check_ready(elsewhere, env=env, base_dir=tmp_path, access=access_in(tmp_path))
    assert "this server does not allow the credentials of Google Cloud at another address" in problem.message
    there = ProviderSpec(id="vertex:gemini-x", config={"project_id": "p"})
    assert tokens.given == 0
    assert check_ready(there, env=env, base_dir=tmp_path, access=access_in(tmp_path)) == []


def test_a_config_cannot_have_the_secret_of_this_machine_sent_to_another_authority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs("azure")
    mine = {
        "AZURE_TENANT_ID": "t",
        "AZURE_CLIENT_ID": "c",
        "AZURE_CLIENT_SECRET": "the-secret-of-this-machine",
    }
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    evil = "http://127.0.0.1:1"  # Azure's library says so if it is given this one
    found = missing("azure:m", {**mine, "AZURE_AUTHORITY_HOST": evil}, base_url=AZURE)
    found += missing("azure:m", mine, base_url=AZURE, azureAuthorityHost=evil)
    assert len(found) == 2
    assert "authority" not in " ".join(found)


# -- what is said when there are none ----------------------------------------------------------------------------


def missing(name: str, env: Mapping[str, str], **config: Any) -> list[str]:
    found = check_ready(ProviderSpec(id=name, config=config), env=env, base_dir=Path())
    return [f"{problem.message} | {problem.hint}" for problem in found]


NOTHING = {"project_id": "p"}


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        (
            "vertex:gemini-x",
            NOTHING,
            "no credentials for vertex:gemini-x: VERTEX_ACCESS_TOKEN is not set, and Google Cloud's default "
            "credentials were not found | run `gcloud auth application-default login`; or set "
            "VERTEX_ACCESS_TOKEN",
        ),
        (
            "vertex:claude-x",
            {**NOTHING, "cloud_login": True},
            "no credentials for vertex:claude-x: Google Cloud's default credentials were not found | "
            "run `gcloud auth application-default login`",
        ),
        (
            "azure:m",
            {"base_url": AZURE, "token_scope": "api://nothing"},
            "no credentials for azure:m: AZURE_OPENAI_API_KEY is not set, and Azure's default credentials were "
            "not found | run `az login`; or set AZURE_OPENAI_API_KEY",
        ),
        (
            "azure:m",
            {"base_url": "https://gateway.example"},
            "no credentials for azure:m: AZURE_OPENAI_API_KEY is not set, and the credentials of Azure are sent "
            "to its own hosts only | set `cloud_login: true` in its config to send a token to this address "
            "all the same; or set AZURE_OPENAI_API_KEY",
        ),
        (
            "vertex:claude-x",
            {},
            "no Google Cloud project for vertex:claude-x | set `project_id` in the config, or "
            "GOOGLE_CLOUD_PROJECT",
        ),
        (
            "vertex:gemini-x",
            {},
            "no credentials for vertex:gemini-x | set VERTEX_API_KEY, or `project_id` to use your Google Cloud "
            "credentials",
        ),
    ],
)
def test_who_has_no_credentials_is_told_what_to_run(name: str, config: dict[str, Any], said: str) -> None:
    needs(name)
    assert missing(name, {}, **config) == [said]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "File FILE was not found | fix GOOGLE_APPLICATION_CREDENTIALS, or unset it; or set VERTEX_A"),
        ("{}", "The file FILE does not have a valid type"),
        ("no json", ""),
    ],
)  # fmt: skip
def test_a_broken_key_file_is_named(content: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    [problem] = missing("vertex:gemini-x", {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}, **NOTHING)
    assert f"GOOGLE_APPLICATION_CREDENTIALS: {said.replace('FILE', str(path))}" in problem


def test_a_refused_and_an_unreachable_token_server_are_told_apart(
    tmp_path: Path, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked = Reply(400, body={"error": "invalid_grant", "error_description": "account was deleted"})
    with LoopbackServer(respond=lambda body, headers: revoked) as tokens:
        env = service_account(tmp_path, tokens, private_key)
        [problem] = missing("vertex:gemini-x", env, **NOTHING)
        assert "Google Cloud gives no token: invalid_grant: account was deleted | run `gcloud" in problem
        with LoopbackServer() as server, pytest.raises(ProviderAuthError, match="account was deleted"):
            run(answer(vertex(server, env)))
    assert missing("vertex:gemini-x", env, **NOTHING) == [problem]  # a while it is not tried again
    (tmp_path / "gone").mkdir()
    env = service_account(tmp_path / "gone", tokens, private_key)
    [problem] = missing("vertex:gemini-x", env, **NOTHING)
    assert "the token server of Google Cloud cannot be reached (127.0.0.1: connection refused)" in problem
    assert " | check the network; or set VERTEX_ACCESS_TOKEN" in problem
    with LoopbackServer() as server, pytest.raises(ProviderUnavailableError):
        run(answer(vertex(server, env)))


@pytest.mark.parametrize(
    ("name", "config", "modules", "said"),
    [
        ("vertex:gemini-x", NOTHING, "google", 'google-auth | to use them, install it in your clone of geval'),
        ("azure:m", {"base_url": AZURE}, "azure", 'azure-identity | to use them, install it in your clone of geval'),
    ],
)  # fmt: skip
def test_a_package_that_is_not_installed_is_named(
    name: str, config: dict[str, Any], modules: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    class Absent:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == modules:
                raise ModuleNotFoundError(name)

    for loaded in [item for item in sys.modules if item.partition(".")[0] == modules]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    [problem] = missing(name, {}, **config)
    assert f"needs the package {said}" in problem


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("azure:m", {"cloud_login": True, "api_key": "k"}, "`cloud_login` and `api_key` both supply a key"),
        ("vertex:gemini-x", {"cloud_login": "adc"}, "`cloud_login` must be true or false"),
        ("openai:m", {"cloud_login": True}, "openai: has no `cloud_login`"),
    ],
)  # fmt: skip
def test_settings_of_credentials_are_checked(name: str, config: dict[str, Any], said: str) -> None:
    config = {"base_url": AZURE, **config} if name.startswith("azure") else config
    found = check_provider(ProviderSpec(id=name, config=config), env={}, base_dir=Path())
    assert any(said in problem.message for problem in found)

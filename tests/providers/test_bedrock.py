"""Amazon's cloud: requests held against those of botocore's own clients, credentials found and renewed, Converse."""

import datetime
import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from botocore import auth, awsrequest, credentials
from botocore.config import Config
from botocore.loaders import Loader
from botocore.session import Session
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batch_server import BatchServer
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, RecordedRequest, Reply

from geval_cli.errors import (
    ConfigError,
    Problem,
    ProviderAuthError,
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderUnavailableError,
    UnknownModelError,
    UnsupportedParameterError,
)
from geval_cli.extras.aws import signing
from geval_cli.providers.registry import check_provider, check_ready, needs_of, provider_access_problem
from geval_cli.providers.wire.endpoint_provider import EndpointProvider
from geval_cli.records import Message, ModelRequest, Role
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.access import TRUSTED, Access, access_in, untrusted_access
from geval_cli.source.env import gather_env
from geval_cli.specs.base import ProviderSpec

NOW = datetime.datetime(2026, 11, 26, 12, 0, 0, tzinfo=datetime.UTC)
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"}
TOKEN = {"AWS_SESSION_TOKEN": "IQoJb3JpZ2luX2VjEXAMPLE//TOKEN=="}
REGION = {"AWS_REGION": "eu-west-1"}
MODEL = "bedrock:converse:us.anthropic.claude-sonnet-4-5-20250929-v1:0"
REPLY = {
    "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10},
    "metrics": {"latencyMs": 1},
}
BEARER = {"AWS_BEARER_TOKEN_BEDROCK": "bedrock-api-key-0123456789"}


class Clock:
    """What botocore takes for the time, where it signs and where it asks whether credentials end."""

    def __init__(self) -> None:
        self.now = NOW

    def signing_time(self, remove_tzinfo: bool = True) -> datetime.datetime:
        return self.now.replace(tzinfo=None) if remove_tzinfo else self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    """A stopped clock, and a machine on which only the test's own credentials are found."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    stopped = Clock()
    monkeypatch.setattr(auth, "get_current_datetime", stopped.signing_time)
    refreshed = credentials.RefreshableCredentials.__init__

    def with_clock(self: Any, *args: Any, **options: Any) -> None:
        refreshed(self, *args, **{**options, "time_fetcher": lambda: stopped.now})

    monkeypatch.setattr(credentials.RefreshableCredentials, "__init__", with_clock)
    monkeypatch.setattr(signing, "_CHAINS", {})
    return stopped


def client_of(service: str, url: str, env: Mapping[str, str]) -> Any:
    return Session().create_client(
        service,
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=env.get("AWS_SESSION_TOKEN"),
        config=Config(retries={"max_attempts": 0}, parameter_validation=False),
    )


def verified(request: RecordedRequest, url: str, env: Mapping[str, str], service: str) -> str:
    """Return the Authorization that botocore computes for what arrived, from its path and signed headers."""
    names = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    arrived = awsrequest.AWSRequest(
        method=request.method,
        url=url + request.path,
        headers={name: request.headers[name] for name in names if name not in ("host", "x-amz-date")},
        data=request.body,
    )
    keys = credentials.Credentials(
        env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN")
    )
    signer = auth.S3SigV4Auth if service == "s3" else auth.SigV4Auth
    signer(keys, service, "eu-west-1").add_auth(arrived)
    return str(arrived.headers["Authorization"])


def signed_names(request: RecordedRequest) -> str:
    return request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0]


MODEL_IDS = st.one_of(
    st.from_regex(r"(us\.|eu\.|global\.)?[a-z0-9-]{1,12}\.[a-z0-9.-]{1,30}(:[0-9]{1,2})?", fullmatch=True),
    st.from_regex(
        r"arn:aws(-cn)?:bedrock:us-east-1:123456789012:(inference-profile|provisioned-model)/[a-zA-Z0-9.:-]{1,20}",
        fullmatch=True,
    ),
)
EXAMPLES = settings(max_examples=25)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@pytest.mark.parametrize("env", [{**KEYS, **REGION}, {**KEYS, **TOKEN, **REGION}], ids=["keys", "token"])
def test_requests_are_those_of_botocores_own_client(env: dict[str, str]) -> None:
    with LoopbackServer(respond=lambda *_: REPLY) as server:
        theirs, url = client_of("bedrock-runtime", server.url, env), server.url

        @EXAMPLES
        @given(MODEL_IDS, WORDS, WORDS)
        def hold(model: str, system: str, text: str) -> None:
            server.requests.clear()
            messages = [{"role": "user", "content": [{"text": text}]}]
            inference = {"maxTokens": 5, "temperature": 0.5, "topP": 0.25, "stopSequences": [system]}
            theirs.converse(
                modelId=model, messages=messages, system=[{"text": system}], inferenceConfig=inference
            )
            config = {"base_url": url, "max_tokens": 5, "temperature": 0.5, "top_p": 0.25, "stop": system}
            ours = provider(f"bedrock:converse:{model}", config, env=env)
            asked = ModelRequest((Message("system", system), Message("user", text)))
            run(answer(ours, asked))
            expected, sent = server.requests
            assert (sent.method, sent.path, sent.json) == (expected.method, expected.path, expected.json)
            assert signed_names(sent) == signed_names(expected)
            for name in signed_names(sent).split(";"):
                assert sent.headers[name] == expected.headers[name]
            for request in (expected, sent):
                assert request.headers["authorization"] == verified(request, url, env, "bedrock")

        hold()


def test_an_endpoint_of_sagemaker_is_asked_byte_for_byte_as_by_botocore() -> None:
    env = {**KEYS, **TOKEN}
    with LoopbackServer(respond=lambda *_: {"text": "hi"}) as server:
        theirs = client_of("sagemaker-runtime", server.url, env)
        config = {
            "sign": {"aws": {"service": "sagemaker", "region": "eu-west-1"}},
            "headers": {"Content-Type": "text/plain", "X-Amzn-SageMaker-Inference-Component": "part"},
            "body": "about {{ prompt }}",
        }

        @EXAMPLES
        @given(WORDS)
        def hold(text: str) -> None:
            server.requests.clear()
            body = f"about {text}".encode()
            theirs.invoke_endpoint(
                EndpointName="e-1", ContentType="text/plain", InferenceComponentName="part", Body=body
            )
            [response] = run(
                answer(provider(f"{server.url}/endpoints/e-1/invocations", config, env=env), ask(text))
            )
            assert response.text == "hi"
            expected, sent = server.requests
            assert (sent.method, sent.path, sent.body) == (expected.method, expected.path, expected.body)
            for name in ("authorization", *signed_names(expected).split(";")):
                assert sent.headers[name] == expected.headers[name]

        hold()


@pytest.mark.parametrize("query", ["?a=b:c&d=", "?q=%20x&q=1", "?x=ä", "?b=2&a=1+1"])
def test_a_query_is_sent_as_it_was_signed(query: str) -> None:
    with LoopbackServer(Reply(body={"text": "hi"})) as server:
        config = {"sign": {"aws": {"service": "execute-api", "region": "eu-west-1"}}, "body": {}}
        run(answer(provider(f"{server.url}/a b/c:d{query}", config, env=KEYS)))
        [sent] = server.requests
        assert sent.headers["authorization"] == verified(sent, server.url, KEYS, "execute-api")
    assert all(letter.isascii() and letter not in " :+" for letter in sent.path.partition("?")[2])


@pytest.mark.parametrize(
    ("address", "service", "region"),
    [
        ("https://runtime.sagemaker.us-east-1.amazonaws.com/x", "sagemaker", "us-east-1"),
        ("https://runtime-fips.sagemaker.us-gov-west-1.amazonaws.com/x", "sagemaker", "us-gov-west-1"),
        ("https://bedrock-runtime.eu-central-1.amazonaws.com/x", "bedrock", "eu-central-1"),
        ("https://abc123.execute-api.eu-west-1.amazonaws.com/prod", "execute-api", "eu-west-1"),
        ("https://abc.lambda-url.eu-west-1.on.aws/", "lambda", "eu-west-1"),
        ("https://runtime.sagemaker.cn-north-1.amazonaws.com.cn/x", "sagemaker", "cn-north-1"),
    ],
)
def test_an_address_of_amazons_names_service_and_region(address: str, service: str, region: str) -> None:
    spec = ProviderSpec(id=address, config={"sign": "aws"})
    source = signing.ProviderSource(spec, KEYS, Path(), TRUSTED)
    assert check_provider(spec, env=KEYS, base_dir=Path()) == []
    assert repr(signing.signer_of(source)) == f"AwsSigner({service!r}, {region!r})"


def folder_with(tmp_path: Path, config: str, shared: str = "") -> dict[str, str]:
    """Write the files of Amazon's tools, and return the variables that lead to them."""
    (tmp_path / "config").write_text(config, encoding="utf-8")
    (tmp_path / "credentials").write_text(shared, encoding="utf-8")
    return {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }


def credential_of(request: RecordedRequest) -> tuple[str, str]:
    """Return the access key and the region that a request was signed with."""
    key, _, region, *_ = request.headers["authorization"].partition("Credential=")[2].split("/")
    return key, region


def keys_of(name: str) -> str:
    return f"aws_access_key_id = {name}\naws_secret_access_key = secret-of-{name}\n"


@pytest.mark.parametrize(
    ("config", "env", "used"),
    [
        ({}, {}, ("AKIDDEFAULT", "us-west-2")),
        ({"profile": "dev"}, KEYS, ("AKIDDEV", "eu-north-1")),
        ({}, {"AWS_PROFILE": "dev"}, ("AKIDDEV", "eu-north-1")),
        ({}, {"AWS_PROFILE": "dev", **KEYS, **REGION}, ("AKIDEXAMPLE", "eu-west-1")),
        ({"region": "us-east-2"}, {**KEYS, **REGION}, ("AKIDEXAMPLE", "us-east-2")),
        ({}, {**KEYS, "AWS_DEFAULT_REGION": "sa-east-1"}, ("AKIDEXAMPLE", "sa-east-1")),
        ({"accessKeyId": "AKIDOWN", "secretAccessKey": "own"}, KEYS, ("AKIDOWN", "us-west-2")),
        ({"profile": "process"}, {}, ("AKIDPROCESS", "us-west-2")),
    ],
)
def test_credentials_and_region_are_found_where_amazons_tools_find_them(
    tmp_path: Path, config: dict[str, Any], env: dict[str, str], used: tuple[str, str]
) -> None:
    printed = json.dumps({"Version": 1, "AccessKeyId": "AKIDPROCESS", "SecretAccessKey": "secret"})
    (tmp_path / "keys.json").write_text(printed, encoding="utf-8")
    files = folder_with(
        tmp_path,
        "[default]\nregion = us-west-2\n[profile dev]\nregion = eu-north-1\n"
        f"[profile process]\nregion = us-west-2\ncredential_process = cat {tmp_path}/keys.json\n",
        f"[default]\n{keys_of('AKIDDEFAULT')}[dev]\n{keys_of('AKIDDEV')}",
    )
    spec = ProviderSpec(id=MODEL, config=config)
    assert check_ready(spec, env={**files, **env}, base_dir=Path()) == []
    with LoopbackServer(Reply(body=REPLY)) as server:
        run(answer(provider(MODEL, {"base_url": server.url, **config}, env={**files, **env})))
    assert credential_of(server.requests[0]) == used


LATER = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=6)).isoformat()
ISSUED = {
    "AccessKeyId": "ASIAISSUED",
    "SecretAccessKey": "issued",
    "Token": "issued-token",
    "Expiration": LATER,
}
ASSUMED = (
    '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
    "<AccessKeyId>ASIAISSUED</AccessKeyId><SecretAccessKey>issued</SecretAccessKey>"
    f"<SessionToken>issued-token</SessionToken><Expiration>{LATER}</Expiration>"
    "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
)
ROLE = "role_arn = arn:aws:iam::123456789012:role/evaluation"
ISSUERS: dict[str, tuple[str, dict[str, str], list[Reply]]] = {
    "container": ("", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{url}/keys"}, [Reply(body=ISSUED)]),
    "machine": (
        "",
        {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "{url}", "AWS_EC2_METADATA_DISABLED": "false"},
        [Reply(body=b"imds-token"), Reply(body=b"my-role"), Reply(body={**ISSUED, "Code": "Success"})],
    ),
    "role": (
        f"[profile source]\n{keys_of('AKIDSOURCE')}[profile p]\n{ROLE}\nsource_profile = source\n",
        {"AWS_ENDPOINT_URL_STS": "{url}", "AWS_PROFILE": "p"},
        [Reply(headers={"content-type": "text/xml"}, body=ASSUMED)],
    ),
    "web identity": (
        f"[profile p]\n{ROLE}\nweb_identity_token_file = {{folder}}/config\n",
        {"AWS_ENDPOINT_URL_STS": "{url}", "AWS_PROFILE": "p"},
        [
            Reply(
                headers={"content-type": "text/xml"},
                body=ASSUMED.replace("AssumeRole", "AssumeRoleWithWebIdentity"),
            )
        ],
    ),
}


@pytest.mark.parametrize(("config", "variables", "replies"), ISSUERS.values(), ids=ISSUERS)
def test_credentials_that_a_server_issues_are_asked_for_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    variables: dict[str, str],
    replies: list[Reply],
) -> None:
    with LoopbackServer(*replies, Reply(body=REPLY), Reply(body=REPLY)) as server:
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(url=server.url))
        env = {**os.environ, **folder_with(tmp_path, config.format(folder=tmp_path)), **REGION}
        for _ in range(2):
            run(answer(provider(MODEL, {"base_url": server.url}, env=env)))
    asked = server.requests[len(replies) :]
    assert [credential_of(request) for request in asked] == [("ASIAISSUED", "eu-west-1")] * 2
    assert [request.headers["x-amz-security-token"] for request in asked] == ["issued-token"] * 2


def test_where_there_are_no_credentials_they_are_looked_for_once_for_all_models_and_later_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**folder_with(tmp_path, ""), **REGION}
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    with LoopbackServer(Reply(404), Reply(404)) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        counts = []
        for _ in range(3):
            [problem] = check_ready(ProviderSpec(id=MODEL), env=env, base_dir=Path())
            assert "were found" in problem.message
            counts.append(len(server.requests))
            (tmp_path / "credentials").write_text(f"[default]\n{keys_of('AKIDLATER')}", encoding="utf-8")
        assert counts[0] > 0
        assert set(counts) == {counts[0]}
    monkeypatch.setattr(signing, "time", SimpleNamespace(monotonic=lambda: float("inf")))
    assert check_ready(ProviderSpec(id=MODEL), env=env, base_dir=Path()) == []


class Issuer:
    """A program that a profile names for its credentials: each time it runs it prints the next ones."""

    def __init__(self, folder: Path, clock: Clock, *, lifetime_s: float) -> None:
        self.folder = folder
        end = (clock.now + datetime.timedelta(seconds=lifetime_s)).isoformat()
        later = (clock.now + datetime.timedelta(days=1)).isoformat()
        script = (
            "import json, pathlib, sys\n"
            f"log = pathlib.Path({str(folder / 'log')!r})\n"
            "count = len(log.read_text()) + 1 if log.exists() else 1\n"
            "log.write_text('x' * count)\n"
            f"ends = {end!r} if count == 1 else {later!r}\n"
            "print(json.dumps({'Version': 1, 'AccessKeyId': f'AKID{count}', 'SecretAccessKey': f'secret-{count}',\n"
            "    'SessionToken': f'session-{count}', 'Expiration': ends}))\n"
        )
        (folder / "issue.py").write_text(script, encoding="utf-8")
        process = f"{sys.executable} {folder / 'issue.py'}"
        self.env = folder_with(folder, f"[default]\nregion = eu-west-1\ncredential_process = {process}\n")

    @property
    def runs(self) -> int:
        return len((self.folder / "log").read_text(encoding="utf-8"))


def test_credentials_are_renewed_before_they_end(tmp_path: Path, clock: Clock) -> None:
    issuer = Issuer(tmp_path, clock, lifetime_s=3600)

    async def converse(url: str) -> None:
        model = provider(MODEL, {"base_url": url}, env=issuer.env)
        await model.complete(ask("one"))
        clock.now += datetime.timedelta(minutes=30)
        await model.complete(ask("two"))
        clock.now += datetime.timedelta(minutes=25)
        await answer(model, ask("three"))

    with LoopbackServer(respond=lambda *_: REPLY) as server:
        run(converse(server.url))
    assert [credential_of(request)[0] for request in server.requests] == ["AKID1", "AKID1", "AKID2"]
    assert server.requests[2].headers["x-amz-security-token"] == "session-2"


EXPIRED = Reply(
    403,
    {"x-amzn-errortype": "ExpiredTokenException"},
    {"message": "The security token included in the request is expired"},
)


def test_an_expired_token_is_renewed_once_and_the_request_repeated_once(tmp_path: Path, clock: Clock) -> None:
    issuer = Issuer(tmp_path, clock, lifetime_s=7200)
    with LoopbackServer(EXPIRED, Reply(body=REPLY)) as server:
        [response] = run(answer(provider(MODEL, {"base_url": server.url}, env=issuer.env)))
        assert response.text == "hi"
        assert [credential_of(request)[0] for request in server.requests] == ["AKID1", "AKID2"]
        assert issuer.runs == 2
        server.add(EXPIRED, EXPIRED)
        with pytest.raises(ProviderAuthError):
            run(answer(provider(MODEL, {"base_url": server.url}, env=issuer.env)))
    assert [credential_of(request)[0] for request in server.requests[2:]] == ["AKID2", "AKID3"]


def test_requests_at_the_same_time_share_one_renewal(tmp_path: Path, clock: Clock) -> None:
    issuer = Issuer(tmp_path, clock, lifetime_s=7200)

    def reply(_: Any, headers: Mapping[str, str]) -> Any:
        return EXPIRED if headers["x-amz-security-token"] == "session-1" else REPLY

    async def ask_all(url: str) -> None:
        import asyncio

        model = provider(MODEL, {"base_url": url}, env=issuer.env)
        await asyncio.gather(*(model.complete(ask(str(number))) for number in range(8)))
        await model.aclose()

    with LoopbackServer(respond=reply) as server:
        run(ask_all(server.url))
    assert issuer.runs == 2


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({}, "run `aws sso login --profile dev`"),
        ({"accessKeyId": "AKIDOWN", "secretAccessKey": "own"}, "write new ones"),
    ],
)
def test_credentials_that_nothing_renews_are_not_tried_again(
    tmp_path: Path, config: dict[str, Any], hint: str
) -> None:
    files = folder_with(tmp_path, f"[profile dev]\nregion = eu-west-1\n{keys_of('AKIDDEV')}")
    with LoopbackServer(EXPIRED) as server:
        model = provider(MODEL, {"base_url": server.url, **config}, env={**files, "AWS_PROFILE": "dev"})
        with pytest.raises(ProviderAuthError) as caught:
            run(answer(model))
    assert hint in caught.value.hint
    assert len(server.requests) == 1


def ready(name: str, config: dict[str, Any], env: Mapping[str, str]) -> list[Problem]:
    return check_ready(ProviderSpec(id=name, config=config), env=env, base_dir=Path())


@pytest.mark.parametrize(
    ("name", "config", "env", "message", "hint"),
    [
        (MODEL, {}, REGION, "no AWS credentials for", "AWS_BEARER_TOKEN_BEDROCK"),
        (MODEL, {}, KEYS, "no `region` for", "AWS_REGION"),
        (MODEL, {"base_url": "https://vpc.example"}, KEYS, "no `region` for", "AWS_REGION"),
        (MODEL, {"profile": "nobody"}, REGION, "there is no AWS profile `nobody`", "list-profiles"),
        (MODEL, {}, {**KEYS, "AWS_REGION": "x.example/"}, "is not the name of a region", "us-east-1"),
        (MODEL, {"api_key_env": "OTHER"}, REGION, "OTHER is not set", "set OTHER"),
        ("https://x.example/y", {"sign": {"aws": {"service": "lambda"}}}, KEYS, "no `region`", "AWS_REGION"),
        (
            "https://x.execute-api.eu-west-1.amazonaws.com",
            {"sign": "aws"},
            {},
            "no AWS credentials",
            "aws configure",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_is_sent(
    tmp_path: Path, name: str, config: dict[str, Any], env: dict[str, str], message: str, hint: str
) -> None:
    [problem] = ready(name, config, {**folder_with(tmp_path, ""), **env})
    assert message in problem.message
    assert hint in problem.hint


BROKEN = {
    "half": ("[profile p]\naws_access_key_id = AKID\n", "missing: aws_secret_access_key", "until `aws sts"),
    "program": ("[profile p]\ncredential_process = /no/such/program\n", "No such file", "until `aws sts"),
    "output": ("[profile p]\ncredential_process = echo hello\n", "Expecting value", "until `aws sts"),
    "refusal": (
        '[profile p]\ncredential_process = sh -c "echo sealed >&2; exit 3"\n',
        "sealed",
        "until `aws sts",
    ),
    "loop": (
        "[profile p]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = q\n",
        '"q" referenced',
        "until `aws sts",
    ),
    "identity": (
        "[profile p]\nrole_arn = arn:aws:iam::1:role/x\nweb_identity_token_file = /no/token\n",
        "No such file",
        "until `aws sts",
    ),
    "login": (
        "[profile p]\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\n"
        "[sso-session s]\nsso_region = eu-west-1\nsso_start_url = https://x.example\n",
        "Token for s does not exist",
        "run `aws sso login --profile p`",
    ),
    "syntax": ("broken [", "Unable to parse config file", "until `aws sts"),
}


@pytest.mark.parametrize(("config", "message", "hint"), BROKEN.values(), ids=BROKEN)
def test_credentials_that_cannot_be_had_are_a_problem_in_amazons_words(
    tmp_path: Path, config: str, message: str, hint: str
) -> None:
    env = {**folder_with(tmp_path, config), **REGION, "AWS_PROFILE": "p"}
    [problem] = ready(MODEL, {}, env)
    assert message in problem.message
    assert hint in problem.hint
    with pytest.raises(ProviderAuthError) as caught:
        run(answer(provider(MODEL, {"base_url": "http://127.0.0.1:9"}, env=env)))
    assert message in str(caught.value)


def test_an_endpoint_of_sagemaker_says_which_permission_is_missing() -> None:
    refusal = error(
        403, "AccessDeniedException", "User: a is not authorized to perform: sagemaker:InvokeEndpoint"
    )
    with LoopbackServer(refusal, error(403, "InvalidSignatureException", "wrong signature")) as server:
        config = {"sign": {"aws": {"service": "sagemaker", "region": "eu-west-1"}}}
        for hint in ("allow `sagemaker:InvokeEndpoint`", "check the AWS credentials"):
            with pytest.raises(ProviderAuthError) as caught:
                run(answer(provider(f"{server.url}/x", config, env=KEYS)))
            assert hint in caught.value.hint


def test_without_the_package_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "find_spec", lambda name: None if name == "botocore" else find_spec(name))
    [problem] = ready(MODEL, {}, {**KEYS, **REGION})
    assert 'pip install ".[aws]"' in problem.hint
    assert ready(MODEL, {}, {**BEARER, **REGION}) == []


AT_AMAZON = "https://runtime.sagemaker.eu-west-1.amazonaws.com/x"


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        (MODEL, {"accessKeyId": "A"}, "`accessKeyId` needs `secret_access_key` beside it"),
        (MODEL, {"profile": "a", "accessKeyId": "A", "secretAccessKey": "s"}, "both supply credentials"),
        (MODEL, {"headers": {"Authorization": "x"}}, "the header `Authorization` is set by the signature"),
        (MODEL, {"region": "eu-west-1.example/"}, "`region` must be the name of a region"),
        ("bedrock:converse:", {}, "has no model name"),
        ("bedrock:chat:m", {"secretAccessKey": "s"}, "`secretAccessKey` is for Bedrock's Converse API"),
        ("bedrock:embedding:m", {"profile": "a"}, "`profile` is for Bedrock's Converse API"),
        (AT_AMAZON, {"sign": "gcp"}, "`sign` must be `aws`, or a mapping"),
        (AT_AMAZON, {"sign": {"aws": {"servise": "x"}}}, "`sign` must be `aws`, or a mapping"),
        (AT_AMAZON, {"sign": {"aws": {"accessKeyId": "A"}}}, "`access_key_id` and `secret_access_key`, both"),
        (
            AT_AMAZON,
            {"sign": "aws", "headers": {"x-amz-date": "x"}},
            "the header `x-amz-date` is set by the signature",
        ),
        ("https://x.example/", {"sign": "aws"}, "`sign: aws` needs a service"),
    ],
)
def test_settings_that_exclude_each_other_are_a_problem(
    name: str, config: dict[str, Any], words: str
) -> None:
    spec = ProviderSpec(id=name, config=config)
    [problem] = check_provider(spec, env={**KEYS, **REGION}, base_dir=Path())
    assert words in problem.message


@pytest.mark.parametrize(
    ("name", "config", "env", "url"),
    [
        ("bedrock:us.anthropic.claude-x-v1:0", {}, BEARER, "bedrock-runtime.eu-west-1.amazonaws.com"),
        ("bedrock:openai.gpt-oss-120b", {}, BEARER, "bedrock-mantle.eu-west-1.api.aws"),
        ("bedrock:openai.gpt-oss-120b-1:0", {}, KEYS, "bedrock-runtime.eu-west-1.amazonaws.com"),
        ("bedrock:openai.gpt-oss-120b", {"profile": "a"}, BEARER, "bedrock-runtime.eu-west-1"),
        ("bedrock:converse:openai.gpt-oss-120b-1:0", {}, BEARER, "bedrock-runtime.eu-west-1.amazonaws.com"),
        ("bedrock:chat:openai.gpt-oss-120b", {}, KEYS, "bedrock-mantle.eu-west-1.api.aws"),
        ("bedrock:arn:aws:bedrock:eu-west-1:1:x/y", {}, BEARER, "x%2Fy/converse"),
        (
            MODEL,
            {},
            {**KEYS, "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "https://vpc.example/"},
            "https://vpc.example/model/us",
        ),
        (MODEL, {"region": "cn-north-1"}, KEYS, "bedrock-runtime.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_id_and_credentials_decide_which_api_is_called(
    name: str, config: dict[str, Any], env: dict[str, str], url: str
) -> None:
    assert url in provider(name, config, env={**REGION, **env}).identity.endpoint


@pytest.mark.parametrize(
    ("name", "config", "env", "is_refused"),
    [
        (MODEL, {}, KEYS, True),
        (MODEL, {"profile": "admin"}, BEARER, True),
        ("bedrock:openai.gpt-oss-120b-1:0", {}, {}, True),
        (MODEL, {}, BEARER, False),
        (MODEL, {"accessKeyId": "AKIDOWN", "secretAccessKey": "own"}, {}, False),
        ("https://lambda.eu-west-1.amazonaws.com/x", {"sign": "aws"}, KEYS, True),
    ],
)
def test_a_config_that_is_not_trusted_gets_no_credentials_of_the_machine(
    name: str, config: dict[str, Any], env: dict[str, str], is_refused: bool
) -> None:
    spec, access = ProviderSpec(id=name, config=config), untrusted_access([Path()])
    problem = provider_access_problem(spec, env={**REGION, **env}, base_dir=Path(), access=access)
    assert (problem is not None and "uses the AWS credentials" in problem.message) is is_refused


@pytest.mark.parametrize(
    ("name", "config", "what"),
    [
        (MODEL, {}, ""),
        (MODEL, {"profile": "admin"}, "uses a profile of this machine"),
        (MODEL, {"base_url": "https://x.example"}, "uses the AWS credentials of this machine"),
        ("https://iam.amazonaws.com/?Action=CreateUser", {"sign": "aws"}, "uses the AWS credentials"),
    ],
)
def test_a_config_on_a_server_calls_bedrock_and_nothing_else_of_the_account(
    name: str, config: dict[str, Any], what: str
) -> None:
    spec = ProviderSpec(id=name, config=config)
    problem = provider_access_problem(spec, env={**KEYS, **REGION}, base_dir=Path(), access=access_in(Path()))
    assert (problem.message if problem else "").count(what or "uses") == bool(what)
    assert problem is None or "--allow-code" in problem.hint


@pytest.mark.parametrize(
    ("provider_id", "config", "what"),
    [
        (MODEL, {"region": "eu-west-1", "profile": "admin"}, "a profile"),
        (MODEL, {"region": "eu-west-1", "base_url": "https://x.example"}, "the AWS credentials"),
        ("https://iam.amazonaws.com/", {"sign": "aws"}, "the AWS credentials"),
    ],
)
def test_what_a_server_refuses_of_an_account_is_said_before_the_run(
    tmp_path: Path, provider_id: str, config: dict[str, Any], what: str
) -> None:
    document = {
        "prompts": ["hi"],
        "providers": ["echo", {"id": provider_id, "config": config}],
        "tests": [{"assert": [{"type": "contains", "value": "hi"}]}],
    }
    (tmp_path / "geval.yaml").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(tmp_path / "geval.yaml", KEYS, served=tmp_path))
    [problem] = caught.value.problems
    assert f"uses {what} of this machine, which this server does not allow" in problem.message
    assert problem.location is not None


CONFIGS = {
    "env": "prompts: [hi]\nproviders: [{id: MODEL}]\nenv: {ENV}\ntests: [{}]\n",
    "env of promptfoo": "prompts: [hi]\nproviders: [{id: MODEL}]\nenv: {ENV}\ntests: [{vars: {}}]\n",
    "env of a provider": "prompts: [hi]\nproviders: [{id: MODEL, env: {ENV}}]\ntests: [{vars: {}}]\n",
    "a file beside it": "prompts: [hi]\nproviders: [{id: MODEL}]\ntests: [{}]\n",
    "env, and a judge of the server's": "prompts: [hi]\nproviders: [echo]\nenv: {ENV}\n"
    "tests: [{assert: [{type: llm-rubric, value: polite}]}]\n",
}


@pytest.mark.parametrize("is_served", [True, False])
@pytest.mark.parametrize("where", list(CONFIGS))
def test_a_config_on_a_server_leads_amazons_library_to_no_program(
    tmp_path: Path, where: str, is_served: bool
) -> None:
    ran, shared = tmp_path / "ran", tmp_path / "aws.ini"
    reply = json.dumps({"Version": 1, "AccessKeyId": "AKID", "SecretAccessKey": "secret-0123456789"})
    program = tmp_path / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {ran}\necho '{reply}'\n")
    program.chmod(0o755)
    shared.write_text(f"[default]\nregion = eu-west-1\ncredential_process = {program}\n")
    name = "promptfooconfig.yaml" if "promptfoo" in where or "provider" in where else "geval.yaml"
    text = CONFIGS[where].replace("MODEL", MODEL).replace("{ENV}", f"{{AWS_CONFIG_FILE: {shared}}}")
    (tmp_path / name).write_text(text)
    if "file" in where:
        (tmp_path / ".env").write_text(f"AWS_CONFIG_FILE={shared}\n")
    request = RunRequest(
        tmp_path / name,
        {},
        grader=MODEL if "judge" in where else None,
        served=tmp_path if is_served else None,
    )
    outcome: Any = pytest.raises(ConfigError, match="problem") if is_served else nullcontext()
    with outcome:
        prepare(request)
    assert ran.exists() is not is_served


@pytest.mark.parametrize(
    "name", ["AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS"]
)
def test_only_the_user_says_where_the_credentials_of_a_machine_are_and_go(tmp_path: Path, name: str) -> None:
    (tmp_path / ".env").write_text(f"{name}=mine\nOTHER=1\n")
    given = tmp_path / "given.env"
    given.write_text(f"{name}=theirs\n")

    def found(access: Access, env_file: Path | None = None) -> dict[str, str]:
        return gather_env({}, base_dir=tmp_path, env_file=env_file, access=access)

    assert found(TRUSTED) == {name: "mine", "OTHER": "1"}
    assert found(access_in(tmp_path)) == {"OTHER": "1"}
    assert found(access_in(tmp_path), given) == {name: "theirs", "OTHER": "1"}


def test_a_judge_that_the_user_named_keeps_its_credentials_beside_a_strangers_config() -> None:
    env = {**KEYS, **REGION, "OTHER_KEY": "k-0123456789"}
    names, ports = needs_of([ProviderSpec(id=MODEL)], env=env, base_dir=Path(), access=TRUSTED)
    assert names == {*KEYS, *REGION}
    assert ports == {443}


def payload(
    config: Mapping[str, Any], request: ModelRequest | None = None, model: str = MODEL
) -> dict[str, Any]:
    ours = provider(model, config, env={**KEYS, **REGION})
    assert isinstance(ours, EndpointProvider)
    return dict(ours.payload(request or ask()))


SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}}
SPEC = {"name": "f", "inputSchema": {"json": SCHEMA}}


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({"max_tokens": 5}, {"inferenceConfig": {"maxTokens": 5}}),
        (
            {"maxTokens": 5, "topP": 0.5, "stop": "x"},
            {"inferenceConfig": {"maxTokens": 5, "topP": 0.5, "stopSequences": ["x"]}},
        ),
        (
            {"top_k": 3, "thinking": {"type": "enabled"}},
            {"additionalModelRequestFields": {"top_k": 3, "thinking": {"type": "enabled"}}},
        ),
        ({"additionalModelRequestFields": {"a": 1}}, {"additionalModelRequestFields": {"a": 1}}),
        (
            {"guardrailIdentifier": "g", "guardrailVersion": "1"},
            {"guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"}},
        ),
        ({"performanceConfig": {"latency": "optimized"}}, {"performanceConfig": {"latency": "optimized"}}),
        ({"service_tier": "flex"}, {"serviceTier": {"type": "flex"}}),
        ({"reasoning_effort": "high"}, {"outputConfig": {"effort": "high"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {
                "outputConfig": {
                    "textFormat": {
                        "type": "json_schema",
                        "structure": {"jsonSchema": {"schema": json.dumps(SCHEMA), "name": "n"}},
                    }
                }
            },
        ),
        (
            {"tools": [{"toolSpec": SPEC}], "toolChoice": {"tool": {"name": "f"}}},
            {"toolConfig": {"tools": [{"toolSpec": SPEC}], "toolChoice": {"tool": {"name": "f"}}}},
        ),
        (
            {
                "tools": [{"name": "f", "input_schema": SCHEMA}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
            {"toolConfig": {"tools": [{"toolSpec": SPEC}], "toolChoice": {"tool": {"name": "f"}}}},
        ),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
                "tool_choice": "none",
            },
            {},
        ),
    ],
)
def test_parameters_go_where_converse_has_them_and_botocore_knows_each(
    config: dict[str, Any], sent: dict[str, Any]
) -> None:
    messages = [{"role": "user", "content": [{"text": "Say hi."}]}]
    written = payload(config)
    assert written == {"messages": messages, **sent}
    assert misfits(written) == ""


def misfits(written: Mapping[str, Any]) -> str:
    """Return what botocore's description of the service says against a body; empty where it fits."""
    model = Session().get_service_model("bedrock-runtime")
    shape = model.operation_model("Converse").input_shape
    unknown = set(written) - set(shape.members)
    report = ParamValidator().validate({"modelId": "m", **written}, shape)
    return f"{sorted(unknown) or ''}{report.generate_report()}"


def test_a_whole_conversation_fits_the_description_of_the_service() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    request = ModelRequest(
        (
            Message("developer", "Be brief."),
            Message("user", [{"type": "text", "text": "one"}, {"text": "two"}]),
            Message("assistant", None, {"tool_calls": [call]}),
            Message("tool", "result", {"tool_call_id": "c1"}),
        ),
        response_schema=SCHEMA,
        role=Role.JUDGE,
    )
    written = payload({"tools": [{"toolSpec": SPEC}]}, request)
    assert misfits(written) == ""
    assert written["system"] == [{"text": "Be brief."}]
    assert [item["role"] for item in written["messages"]] == ["user", "assistant", "user"]
    assert written["messages"][1]["content"] == [
        {"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": 1}}}
    ]
    assert "textFormat" in written["outputConfig"]
    older = payload({}, request, "bedrock:anthropic.claude-3-haiku-20240307-v1:0")
    assert "outputConfig" not in older


def exchange(reply: Reply, name: str = MODEL, **config: Any) -> Any:
    with LoopbackServer(reply) as server:
        model = provider(name, {"base_url": server.url, **config}, env={**KEYS, **REGION})
        [response] = run(answer(model))
    return response


def said(*blocks: Any, reason: str = "end_turn", **usage: Any) -> Reply:
    counts = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10, **usage}
    message = {"role": "assistant", "content": list(blocks)}
    return Reply(body={"output": {"message": message}, "stopReason": reason, "usage": counts})


THOUGHT = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}


@pytest.mark.parametrize(
    ("reply", "text", "reason"),
    [
        (said(THOUGHT, {"text": "a"}, {"text": "b"}), "ab", "stop"),
        (said({"text": "a"}, reason="stop_sequence"), "a", "stop"),
        (said({"text": "a"}, reason="max_tokens"), "a", "length"),
        (said(THOUGHT, reason="max_tokens"), "", "length"),
        (said({"text": "a"}, reason="model_context_window_exceeded"), "a", "length"),
        (said({"text": "blocked"}, reason="guardrail_intervened"), "blocked", "content_filter"),
        (said(reason="content_filtered"), "", "content_filter"),
        (said({"citationsContent": {"content": [{"text": "cited"}], "citations": []}}), "cited", "stop"),
    ],
)
def test_answers_are_read(reply: Reply, text: str, reason: str) -> None:
    choice = exchange(reply).choices[0]
    assert (choice.text, choice.finish_reason) == (text, reason)


@pytest.mark.parametrize(
    "reply",
    [
        said(THOUGHT),
        said(),
        said({"text": None}),
        said({"text": "a"}, reason="malformed_tool_use"),
        said({"text": "a"}, reason="something_new"),
        said(reason="tool_use"),
        said({"toolUse": {"toolUseId": "1", "name": 7}}, reason="tool_use"),
        Reply(body={"output": {}, "stopReason": "end_turn"}),
    ],
)
def test_what_is_no_answer_is_an_error(reply: Reply) -> None:
    with pytest.raises(ProviderError):
        exchange(reply)


@pytest.mark.parametrize(
    ("configured", "is_known"),
    [
        (None, True),
        ({}, True),
        ("optimized", True),
        ({"latency": "standard"}, True),
        ({"latency": "optimized"}, False),
    ],
)
def test_a_faster_answer_costs_more_than_the_table_says(configured: Any, is_known: bool) -> None:
    body = {**said({"text": "a"}).body, "performanceConfig": configured}
    found = exchange(Reply(body=body), price="list")
    assert (found.usage.cost_usd is not None) is is_known


@pytest.mark.parametrize(
    "guardrail",
    [
        {"guardrailIdentifier": "g", "guardrailVersion": "1"},
        {"guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"}},
    ],
)
def test_an_answer_that_a_guardrail_checked_costs_more_than_its_tokens(guardrail: dict[str, Any]) -> None:
    own = {"input": 1, "output": 1}
    costs = [
        exchange(said({"text": "a"}), price=price, **guardrail).usage.cost_usd for price in ("list", own)
    ]
    assert costs == [None, pytest.approx(10 / 1e6)]


def test_tokens_from_the_vendors_cache_are_counted_and_priced() -> None:
    price = {"price": "list"}
    plain = exchange(said({"text": "a"}), **price)
    assert plain.usage.cost_usd == pytest.approx((7 * 3.3 + 3 * 16.5) / 1e6)
    details = [{"ttl": "1h", "inputTokens": 200}, {"ttl": "5m", "inputTokens": 300}]
    cached = exchange(
        said(
            {"text": "a"},
            cacheReadInputTokens=1000,
            cacheWriteInputTokens=500,
            cacheDetails=details,
            totalTokens=1510,
        )
    )
    assert (cached.usage.input_tokens, cached.cache_read_tokens, cached.cache_write_tokens) == (
        1507,
        1000,
        500,
    )
    within = exchange(said({"text": "a"}, inputTokens=1507, cacheReadInputTokens=1000, totalTokens=1510))
    assert (within.usage.input_tokens, within.cache_read_tokens) == (1507, 1000)


def error(status: int, code: str, message: str, **body: Any) -> Reply:
    return Reply(
        status,
        {"x-amzn-errortype": f"{code}:http://internal.amazon.com/", "retry-after": "2"},
        {"message": message, **body},
    )


@pytest.mark.parametrize(
    ("reply", "kind", "hint"),
    [
        (
            error(429, "ThrottlingException", "Too many tokens, please wait before trying again."),
            ProviderRateLimitError,
            "",
        ),
        (
            error(400, "ThrottlingException", "Too many tokens, please wait before trying again."),
            ProviderRateLimitError,
            "",
        ),
        (
            error(400, "ServiceQuotaExceededException", "You have too many jobs."),
            ProviderRequestError,
            "",
        ),
        (
            error(429, "ModelNotReadyException", "The model is not ready for inference."),
            ProviderRateLimitError,
            "",
        ),
        (error(503, "ServiceUnavailableException", "Try your request again."), ProviderUnavailableError, ""),
        (error(408, "ModelTimeoutException", "The request took too long."), ProviderUnavailableError, ""),
        (error(500, "InternalServerException", "Oops."), ProviderUnavailableError, ""),
        (
            error(424, "ModelErrorException", "The model failed.", originalStatusCode=503),
            ProviderUnavailableError,
            "",
        ),
        (
            error(424, "ModelErrorException", "The model failed.", originalStatusCode=400),
            ProviderRequestError,
            "",
        ),
        (
            error(400, "ValidationException", "The provided model identifier is invalid."),
            UnknownModelError,
            "check the model",
        ),
        (
            error(
                404,
                "ResourceNotFoundException",
                "Could not resolve the foundation model from the provided model identifier.",
            ),
            UnknownModelError,
            "check the model",
        ),
        (
            error(
                400,
                "ValidationException",
                "Invocation of model ID x with on-demand throughput isn\u2019t supported. Retry your "
                "request with the ID or ARN of an inference profile that contains this model.",
            ),
            ProviderRequestError,
            "inference profile",
        ),
        (
            error(
                403,
                "AccessDeniedException",
                "You don't have access to the model with the specified model ID.",
            ),
            ProviderAuthError,
            "request access",
        ),
        (
            error(
                403,
                "AccessDeniedException",
                "User: arn:aws:iam::1:user/a is not authorized to perform: bedrock:InvokeModel on resource: x",
            ),
            ProviderAuthError,
            "bedrock:InvokeModel",
        ),
        (
            error(
                403, "UnrecognizedClientException", "The security token included in the request is invalid."
            ),
            ProviderAuthError,
            "aws sso login",
        ),
        (
            error(
                403,
                "InvalidSignatureException",
                "Signature expired: 20261126T120000Z is now earlier than 20261126T121000Z",
            ),
            ProviderAuthError,
            "clock",
        ),
    ],
)
def test_each_error_of_the_service_is_retried_or_explained(
    reply: Reply, kind: type[ProviderError], hint: str
) -> None:
    with pytest.raises(kind) as caught:
        exchange(reply)
    assert type(caught.value) is kind
    assert hint in caught.value.hint
    if kind in (ProviderRateLimitError, ProviderUnavailableError) and reply.status != 424:
        assert caught.value.retry_after_s == 2


@pytest.mark.parametrize(
    ("message", "parameter"),
    [
        ("output_config.format: Extra inputs are not permitted", "response_format"),
        ("This model doesn't support the outputConfig.textFormat field.", "response_format"),
        ("`temperature` and `top_p` cannot both be specified for this model.", "temperature"),
        ("Malformed input request: #: extraneous key [temperature] is not permitted", "temperature"),
    ],
)
def test_what_a_judge_can_do_without_is_named_by_the_refusal(message: str, parameter: str) -> None:
    said = f"The model returned the following errors: {message}"
    with LoopbackServer(error(400, "ValidationException", said)) as server:
        model = provider("bedrock:converse:m", {"base_url": server.url}, env={**KEYS, **REGION})
        with pytest.raises(UnsupportedParameterError) as caught:
            run(answer(model, ask(role=Role.JUDGE, params={"temperature": 0}, response_schema=SCHEMA)))
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    ("model", "config", "is_sent"),
    [
        (MODEL, {}, True),
        (MODEL, {"top_p": 0.5}, False),
        ("bedrock:amazon.nova-lite-v1:0", {"topP": 0.5}, True),
        (MODEL, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, False),
        ("bedrock:us.anthropic.claude-opus-4-7-v1:0", {}, False),
    ],
)
def test_a_judge_sends_the_temperature_that_the_model_takes(
    model: str, config: dict[str, Any], is_sent: bool
) -> None:
    request = ask(role=Role.JUDGE, params={"temperature": 0})
    assert ("temperature" in payload(config, request, model).get("inferenceConfig", {})) is is_sent


BATCH = {"batch_s3": "s3://geval-bucket/runs", "batch_role_arn": "arn:aws:iam::123456789012:role/batches"}


ASKED = b'{"messages": [{"role": "user", "content": [{"text": "topic 1."}]}]}'


async def one_batch(env: dict[str, str]) -> str:
    """Submit a batch, look at it, look for it, read it and stop it; return the id of its job."""
    model = provider("bedrock:converse:m", BATCH, env=env)
    assert isinstance(model, EndpointProvider)
    api = model.batches
    assert api is not None
    try:
        file_id = await api.upload("0123", io.BytesIO(api.line("a" * 64, ASKED)))
        batch = await api.create("0123", file_id, None)
        batch = await api.get(batch.id)
        assert await api.find("0123", since=0.0, requests=1, file_id=file_id) == [batch]
        assert [line.custom_id async for line in api.results(batch)] == ["a" * 64]
        await api.cancel(batch.id)
    finally:
        await model.aclose()
    return batch.id


def test_the_requests_of_a_batch_are_those_of_botocores_own_clients() -> None:
    with BatchServer() as server:
        server.looks, server.calls = 1, []
        url = f"http://127.0.0.1:{server.port}/bedrock"
        env = {**KEYS, **TOKEN, **REGION, "AWS_ENDPOINT_URL_BEDROCK": url, "AWS_ENDPOINT_URL_S3": f"{url}/s3"}
        job = run(one_batch(env))
        sent, server.calls = server.calls, []
        jobs, files = client_of("bedrock", url, env), client_of("s3", f"{url}/s3", env)
        line = b'{"recordId": "' + b"a" * 64 + b'", "modelInput": ' + ASKED + b"}\n"
        bucket, name = "geval-bucket", "runs/geval-0123.jsonl"
        files.put_object(Bucket=bucket, Key=name, Body=line, ContentType="application/jsonl")
        jobs.create_model_invocation_job(
            jobName="geval-0123",
            roleArn=BATCH["batch_role_arn"],
            clientRequestToken="0123",
            modelId="m",
            modelInvocationType="Converse",
            inputDataConfig={"s3InputDataConfig": {"s3Uri": f"s3://{bucket}/{name}"}},
            outputDataConfig={"s3OutputDataConfig": {"s3Uri": f"s3://{bucket}/runs/results/"}},
        )
        jobs.get_model_invocation_job(jobIdentifier=job)
        jobs.list_model_invocation_jobs(maxResults=100, nameContains="geval-0123")
        files.get_object(Bucket=bucket, Key=f"runs/results/{job}/geval-0123.jsonl.out")["Body"].read()
        jobs.stop_model_invocation_job(jobIdentifier=job)
        theirs = server.calls
        assert len(server.batches) == 1
    assert [call[:4] for call in sent] == [call[:4] for call in theirs]
    assert [call[5] for call in sent] == [call[5] for call in theirs]
    for operation, method, path, query, headers, content in sent:
        lower = {name.lower(): value for name, value in headers.items()}
        written = json.dumps(content, separators=(",", ":")) if content else ""
        if operation == "object":
            written = json.dumps(content) + "\n"
        target = f"{path}?{urlencode(query)}" if query else path
        request = RecordedRequest(method, target, lower, written.encode(), None)
        service = "s3" if operation in ("object", "content") else "bedrock"
        assert lower["authorization"] == verified(
            request, url.removesuffix("/bedrock"), {**KEYS, **TOKEN}, service
        )


@pytest.mark.parametrize(
    ("config", "env", "words"),
    [
        ({"batch_s3": "s3://bucket/x"}, KEYS, "`batch_s3` needs `batch_role_arn` beside it"),
        ({"batchRoleArn": BATCH["batch_role_arn"]}, KEYS, "`batchRoleArn` needs `batch_s3` beside it"),
        ({**BATCH, "batch_s3": "bucket/x"}, KEYS, "`batch_s3` must be an address such as s3://"),
        ({**BATCH, "batch_role_arn": "me"}, KEYS, "`batch_role_arn` must be the ARN of a role"),
        (BATCH, BEARER, "batches need AWS credentials"),
    ],
)
def test_batches_need_a_bucket_a_role_and_credentials(
    config: dict[str, Any], env: dict[str, str], words: str
) -> None:
    spec = ProviderSpec(id=MODEL, config=config)
    [problem] = check_provider(spec, env={**REGION, **env}, base_dir=Path())
    assert words in problem.message


def test_what_s3_refuses_is_said_in_its_words() -> None:
    refusal = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    with LoopbackServer(Reply(403, {"content-type": "application/xml"}, refusal)) as server:
        env = {**KEYS, **REGION, "AWS_ENDPOINT_URL_S3": server.url}
        with pytest.raises(ProviderAuthError) as caught:
            run(one_batch(env))
    assert str(caught.value) == "bedrock:converse:m: S3 answered HTTP 403: AccessDenied: Access Denied"
    assert "check `batch_s3` (s3://geval-bucket)" in caught.value.hint


def test_the_words_for_the_end_are_those_of_the_installed_description() -> None:
    from geval_cli.providers.wire.finish_reasons import CONVERSE, VOCABULARIES

    service = Loader().load_service_model("bedrock-runtime", "service-2")
    [known] = [words for words in VOCABULARIES if words.wire == CONVERSE]
    assert set(service["shapes"]["StopReason"]["enum"]) == known.reasons.keys()


@pytest.mark.parametrize("is_written", [False, True], ids=["found", "in the config"])
def test_a_secret_is_shown_nowhere(is_written: bool) -> None:
    secret, token = f"{is_written}-secret/0123456789", f"{is_written}-token//0123456789=="
    env = {**REGION, "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": token}
    config = {"accessKeyId": "A", "secretAccessKey": secret, "sessionToken": token} if is_written else {}
    reply = error(403, "SignatureDoesNotMatch", f"wrong signature by {secret} and {token}")
    with LoopbackServer(reply) as server:
        model = provider(MODEL, {"base_url": server.url, **config}, env=REGION if is_written else env)
        with pytest.raises(ProviderAuthError) as caught:
            run(answer(model))
    failure = caught.value
    shown = f"{failure} {failure.hint} {failure.body} {failure.__notes__} {model!r}"
    assert secret not in shown
    assert token not in shown
    assert server.requests[0].headers["x-amz-security-token"] == token

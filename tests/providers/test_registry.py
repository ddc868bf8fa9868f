import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.calls import provider

from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.extras.aws.bedrock import converse_endpoint
from geval_cli.extras.local.provider import LocalProvider
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.presets import endpoint_of
from geval_cli.providers.redaction import public_url
from geval_cli.providers.registry import (
    begin_loading,
    build_provider,
    check_provider,
    check_ready,
    provider_access_problem,
    provider_kinds,
)
from geval_cli.source.access import access_in, untrusted_access
from geval_cli.source.source_map import Positions, SourcePath
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.promptfoo import EnvProviderSpec


def problems(
    provider_id: str, config: dict[str, Any] | None = None, base_dir: Path = Path()
) -> list[Problem]:
    return check_provider(ProviderSpec(id=provider_id, config=config or {}), env={}, base_dir=base_dir)


def missing(provider_id: str, config: dict[str, Any] | None = None, **env: str) -> list[Problem]:
    spec = ProviderSpec(id=provider_id, config=config or {})
    return check_ready(spec, env=env, base_dir=Path("/nowhere"))


@pytest.mark.parametrize(
    "kind", [name for name in provider_kinds() if name not in {"file", "javascript", "python", "scripted"}]
)
def test_the_example_of_every_kind_is_valid_and_can_be_built(kind: str) -> None:
    example = provider_kinds()[kind].example
    assert problems(example) == []
    config = {"base_url": "https://x.example"} if kind == "azure" else {}
    assert provider(example, config).label == example


@pytest.mark.parametrize(
    ("provider_id", "hint"),
    [
        ("opnai:gpt-4.1", "did you mean `openai:gpt-4.1`?"),
        ("gpt-4.1", "write the kind before the model, for example `openai:gpt-4.1`"),
        ("eco", "did you mean `echo`?"),
        ("acme:x", "for a server with OpenAI's chat API, write `openai:MODEL` and set base_url"),
    ],
)
def test_an_unknown_kind_gets_a_way_out(provider_id: str, hint: str) -> None:
    [problem] = problems(provider_id)
    assert problem.hint == hint
    # A list of all kinds only where there is no good guess.
    assert bool(problem.notes) is (not hint.startswith("did you mean"))
    assert all("openai" in note for note in problem.notes)
    with pytest.raises(ConfigError):
        build_provider(ProviderSpec(id=provider_id), env={}, base_dir=Path())


@pytest.mark.parametrize(
    "name",
    [
        "sagemaker:x",
        "replicate:a/b",
        "palm:x",
    ],
)
def test_a_vendor_that_is_not_asked_gets_another_way(name: str) -> None:
    [problem] = problems(name)
    assert "is not supported" in problem.message
    assert any(way in problem.hint for way in ("litellm:", "google:", "sign: aws"))


def test_none_is_no_problem() -> None:
    assert problems("none") == []


@pytest.mark.parametrize(
    ("provider_id", "config", "words"),
    [
        ("openai:m", {"base_url": "localhost:8000"}, "`base_url` must be an http:// or https:// URL"),
        ("openai:m", {"timeout_s": "60"}, "`timeout_s` must be a number of seconds above 0"),
        ("openai:m", {"max_retries": -1}, "`max_retries` must be a whole number of at least 0"),
        ("openai:m", {"maxConcurrency": True}, "`maxConcurrency` must be a whole number of at least 1"),
        ("openai:m", {"price": 3}, "`price` must be `list`, or a mapping"),
        ("openai:m", {"headers": ["x"]}, "`headers` must be a mapping"),
        ("openai:m", {"apiKeyEnvar": "A", "api_key_env": "B"}, "mean the same"),
        ("openai:", {}, "has no model name"),
        ("openai:image:dall-e-3", {}, "is not supported"),
        (
            "bedrock:openai.gpt-oss-120b",
            {"secretAccessKey": "s3cr3t-k3y"},
            "`secretAccessKey` needs `access_key_id` beside it",
        ),
        ("local:smolm2", {}, "there is no local model `smolm2`"),
        ("local:smollm2", {"n_ctx": 0}, "`n_ctx` must be"),
        ("http://x.example", {"method": "FETCH"}, "`method` must be one of"),
        ("http://x.example", {"response_path": "a..b"}, "`response_path` is neither a path nor valid code"),
        ("scripted:", {}, "has no replies file"),
        ("scripted:nowhere.yaml", {}, "cannot be read"),
        ("python:nowhere.py", {}, "does not exist"),
        ("file://custom.js", {}, "the file `/"),
        ("javascript:custom.py", {}, "cannot be read"),
        ("python:custom.js", {}, "has no Python file"),
        ("exec:", {}, "has no command"),
        ("exec:a 'b", {}, "cannot be read"),
    ],
)
def test_a_wrong_config_is_one_problem_that_says_what(
    provider_id: str, config: dict[str, Any], words: str
) -> None:
    [problem] = problems(provider_id, config)
    assert words in problem.message


def test_a_key_that_geval_sets_itself_gets_a_warning() -> None:
    [problem] = problems("openai:m", {"n": 3})
    assert problem.severity is Severity.WARNING


@pytest.mark.parametrize("key", ["api_key_env", "apiKeyEnvar"])
@pytest.mark.parametrize("provider", ["openai:m", "bedrock:amazon.nova-lite-v1:0"])
def test_a_missing_key_is_shown_where_its_variable_is_named(provider: str, key: str) -> None:
    here = Location("c.yaml", 4, 7)
    positions = Positions("c.yaml", values={(): Location("c.yaml", 1, 1), ("config", key): here})
    config = {key: "NOWHERE", "region": "us-east-1"} if "bedrock" in provider else {key: "NOWHERE"}
    spec = ProviderSpec(id=provider, config=config, place=SourcePath(positions))
    found = [item for item in check_ready(spec, env={}, base_dir=Path()) if "NOWHERE" in item.message]
    assert [item.location for item in found] == [here]


@pytest.mark.parametrize("key", ["api_key_command", "apiKeyCommand"])
@pytest.mark.parametrize("provider", ["openai:m", "bedrock:amazon.nova-lite-v1:0"])
def test_a_program_for_a_key_is_named_as_the_config_spells_it(provider: str, key: str) -> None:
    spec = ProviderSpec(id=provider, config={key: ["true"], "region": "us-east-1"})
    source = ProviderSource(spec, {}, Path())
    endpoint = converse_endpoint(source) if "bedrock" in provider else endpoint_of(source)
    assert endpoint.key_source == f"the program of `{key}`"


def test_a_problem_points_at_its_key() -> None:
    here = Location("c.yaml", 4, 7)
    positions = Positions("c.yaml", values={(): Location("c.yaml", 1, 1), ("config", "timeout_s"): here})
    spec = ProviderSpec(id="openai:m", config={"timeout_s": 0}, place=SourcePath(positions))
    [problem] = check_provider(spec, env={}, base_dir=Path())
    assert problem.location == here


def test_a_missing_key_is_named_with_the_ways_out() -> None:
    [problem] = missing("openai:gpt-4.1")
    assert "OPENAI_API_KEY is not set" in problem.message
    assert "OPENAI_API_KEY" in problem.hint
    assert any("local:smollm2" in note for note in problem.notes)


def test_the_configured_variable_is_named() -> None:
    [problem] = missing("openai:gpt-4.1", {"api_key_env": "TEAM_KEY", "base_url": "http://localhost:1/v1"})
    assert "TEAM_KEY is not set" in problem.message


@pytest.mark.parametrize(
    ("provider_id", "config", "env"),
    [
        ("openai:m", {}, {"OPENAI_API_KEY": "k"}),
        ("openai:m", {"apiKey": "k"}, {}),
        ("openai:m", {"base_url": "http://localhost:8000/v1"}, {}),
        ("openai:m", {"base_url": "https://models.example/v1"}, {}),
        ("openai:m", {}, {"OPENAI_BASE_URL": "http://localhost:8000/v1"}),
        ("openai:m", {"headers": {"Authorization": "Bearer k"}}, {}),
        ("ollama:llama3.2", {}, {}),
        ("azure:d", {"apiHost": "x.openai.azure.com"}, {"AZURE_API_KEY": "k"}),
        ("echo", {}, {}),
    ],
)
def test_a_provider_with_its_key_or_without_need_of_one_is_ready(
    provider_id: str, config: dict[str, Any], env: dict[str, str]
) -> None:
    assert missing(provider_id, config, **env) == []


def test_an_empty_variable_counts_as_missing() -> None:
    assert len(missing("groq:llama", GROQ_API_KEY="")) == 1


def test_azure_without_an_address_says_where_to_put_it() -> None:
    [problem] = missing("azure:d", AZURE_API_KEY="k")
    assert "AZURE_OPENAI_ENDPOINT" in problem.hint


def test_a_missing_model_file_and_program_are_found() -> None:
    assert "does not exist" in missing("local:models/x.gguf")[0].message
    assert "`no-such-program-here`" in missing("exec:no-such-program-here", PATH="/bin")[0].message


def test_the_key_is_in_no_repr() -> None:
    key = "sk-0123456789abcdef"
    spec_config = {"apiKey": key, "headers": {"X-Api-Key": "abcdefgh"}}
    shown = repr(provider("openai:m", spec_config, env={"OPENAI_API_KEY": key}))
    assert key not in shown
    assert "abcdefgh" not in shown


@pytest.mark.parametrize(
    ("provider_id", "config", "env", "endpoint"),
    [
        ("openai:m", {}, {}, "https://api.openai.com/v1/chat/completions"),
        ("openai:chat:m", {"apiHost": "x.example"}, {}, "https://x.example/v1/chat/completions"),
        (
            "openai:m",
            {"apiBaseUrl": "https://u:p@x.example/v1/"},
            {},
            "https://x.example/v1/chat/completions",
        ),
        (
            "openai:m",
            {"base_url": "https://x.example/v1?api-key=abcd&v=2"},
            {},
            "https://x.example/v1/chat/completions?v=2",
        ),
        (
            "openai:m",
            {"base_url": "https://x.example/v1/chat/completions"},
            {},
            "https://x.example/v1/chat/completions",
        ),
        (
            "ollama:m",
            {},
            {"OLLAMA_BASE_URL": "http://box:11434"},
            "http://box:11434/v1/chat/completions",
        ),
        (
            "azure:chat:d",
            {"base_url": "https://x.example", "apiVersion": "2025-01-01"},
            {},
            "https://x.example/openai/deployments/d/chat/completions?api-version=2025-01-01",
        ),
        (
            "azure:d",
            {"base_url": "https://x.example/openai/v1"},
            {},
            "https://x.example/openai/v1/chat/completions",
        ),
        ("anthropic:messages:c", {}, {}, "https://api.anthropic.com/v1/messages"),
        (
            "cloudflare-ai:m",
            {"accountId": "a/1"},
            {"CLOUDFLARE_ACCOUNT_ID": "b"},
            "https://api.cloudflare.com/client/v4/accounts/a%2F1/ai/v1/chat/completions",
        ),
        (
            "cloudflare-ai:m",
            {},
            {"CLOUDFLARE_ACCOUNT_ID": "b"},
            "https://api.cloudflare.com/client/v4/accounts/b/ai/v1/chat/completions",
        ),
        (
            "cloudflare-ai:m",
            {"base_url": "https://x.example/v1"},
            {},
            "https://x.example/v1/chat/completions",
        ),
        (
            "bedrock:m",
            {"region": "us-west-2"},
            {"AWS_BEARER_TOKEN_BEDROCK": "k"},
            "https://bedrock-mantle.us-west-2.api.aws/v1/chat/completions",
        ),
        (
            "bedrock:m",
            {},
            {"AWS_REGION": "eu-west-1", "AWS_BEARER_TOKEN_BEDROCK": "k"},
            "https://bedrock-mantle.eu-west-1.api.aws/v1/chat/completions",
        ),
        (
            "watsonx:m",
            {"region": "us-south"},
            {},
            "https://us-south.ml.cloud.ibm.com/ml/gateway/v1/chat/completions",
        ),
        ("docker:m", {}, {}, "http://localhost:12434/engines/v1/chat/completions"),
        ("lmstudio:m", {}, {"LM_STUDIO_BASE_URL": "http://box:1234"}, "http://box:1234/v1/chat/completions"),
        ("localai:chat:m", {}, {}, "http://localhost:8080/v1/chat/completions"),
        ("voyage:m", {}, {}, "https://api.voyageai.com/v1/embeddings"),
        ("cohere:embedding:m", {}, {}, "https://api.cohere.ai/v2/embed"),
        ("openai:m", {"api_endpoint": "https://x.example/ask"}, {}, "https://x.example/ask"),
        ("anthropic:c", {"base_url": "https://x.example/v1"}, {}, "https://x.example/v1/messages"),
    ],
)
def test_the_endpoint_follows_from_config_and_environment(
    provider_id: str, config: dict[str, Any], env: dict[str, str], endpoint: str
) -> None:
    built = provider(provider_id, config, env=env)
    assert public_url(built.identity.endpoint) == endpoint
    assert built.identity.model in {"m", "d", "c"}


def test_another_key_of_geval_s_own_is_the_same_model_but_another_header_is_not() -> None:
    def identity(key: str, **headers: str) -> Any:
        return provider("openai:m", {"headers": headers}, env={"OPENAI_API_KEY": key}).identity

    assert identity("one-0123") == identity("two-0123")
    assert identity("one-0123", Cookie="me") != identity("one-0123", Cookie="you")
    assert identity("", Authorization="Bearer me") != identity("", Authorization="Bearer you")


def test_limits_come_from_the_config() -> None:
    config = {"timeout_s": 5, "maxRetries": 0, "max_concurrency": 2, "requests_per_minute": 30}
    limits = provider("openai:m", config).limits
    assert (limits.timeout_s, limits.max_retries, limits.max_concurrency) == (5, 0, 2)
    assert (limits.requests_per_minute, limits.tokens_per_minute) == (30, None)


def test_a_local_model_answers_as_many_at_once_as_it_has_slots() -> None:
    built = provider("local:smollm2", {"n_parallel": 2})
    assert isinstance(built, LocalProvider)
    assert built.limits.max_concurrency == 2


CERTIFICATE_KINDS = ("openai:m", "vertex:gemini-2.5-flash", "https://models.example/answer", "anthropic:m")


@pytest.mark.parametrize("provider_id", CERTIFICATE_KINDS)
class TestClientCertificates:
    def found(self, provider_id: str, folder: Path, **config: str) -> list[Problem]:
        spec = ProviderSpec(id=provider_id, config=config)
        return check_provider(spec, env={}, base_dir=folder)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        issued, other = (trustme.CA().issue_cert("me@models.example") for _ in range(2))
        issued.cert_chain_pems[0].write_to_path(tmp_path / "me.pem")
        issued.private_key_pem.write_to_path(tmp_path / "me.key")
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
        other.private_key_pem.write_to_path(tmp_path / "other.key")
        (tmp_path / "text.pem").write_text("no certificate")
        return tmp_path

    @pytest.mark.parametrize(
        "config",
        [
            {"client_cert": "me.pem", "client_key": "me.key"},
            {"clientCert": "file://me.pem", "clientKey": "./me.key"},
            {"client_cert": "both.pem"},
        ],
        ids=str,
    )
    def test_one_beside_the_config_is_found(
        self, provider_id: str, config: dict[str, str], folder: Path
    ) -> None:
        assert self.found(provider_id, folder, **config) == []
        spec = ProviderSpec(id=provider_id, config=config)
        built: Any = build_provider(spec, env={}, base_dir=folder)
        assert built._transport._certificate.certificate.startswith(str(folder))

    @pytest.mark.parametrize(
        ("config", "said"),
        [
            (
                {"client_cert": "no.pem", "client_key": "me.key"},
                "`client_cert` is no.pem, which is not a file",
            ),
            ({"client_cert": "me.pem", "clientKey": "no.key"}, "`clientKey` is no.key, which is not a file"),
            ({"client_cert": "."}, "`client_cert` is ., which is not a file"),
            ({"client_key": "me.key"}, "`client_key` needs the `client_cert` that it belongs to"),
            ({"client_cert": "me.pem"}, "`client_cert` and its key cannot be used"),
            ({"client_cert": "text.pem"}, "`client_cert` and its key cannot be used"),
            (
                {"client_cert": "me.pem", "client_key": "other.key"},
                "`client_cert` and its key cannot be used",
            ),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_told_with_its_place(
        self, provider_id: str, config: dict[str, str], said: str, folder: Path
    ) -> None:
        places = {("config", key): Location("c.yaml", 4, 1 + len(key)) for key in config}
        key = said.split("`")[1]
        place = SourcePath(Positions("c.yaml", values={(): Location("c.yaml", 1, 1), **places}))
        spec = ProviderSpec(id=provider_id, config=config, place=place)
        [problem] = check_provider(spec, env={}, base_dir=folder)
        assert problem.message.startswith(said)
        assert problem.location == places["config", key]

    def test_a_strangers_config_may_name_none(self, provider_id: str, folder: Path) -> None:
        spec = ProviderSpec(id=provider_id, config={"client_cert": "both.pem"})
        stranger = untrusted_access([folder])
        assert provider_access_problem(spec, env={}, base_dir=folder, access=stranger) is not None
        served = access_in(folder / "elsewhere")
        [problem] = check_provider(spec, env={}, base_dir=folder, access=served)
        assert "outside the served folder" in problem.message


@pytest.mark.parametrize(
    ("provider_id", "before", "is_loaded"),
    [
        ("openai:m", "", True),
        ("echo", "", False),
        ("opnai:m", "", False),
        ("openai:m", "import _pytest.assertion.rewrite", sys.version_info >= (3, 13)),
    ],
)
def test_what_a_provider_needs_is_loaded_beforehand_and_nothing_else(
    provider_id: str, before: str, is_loaded: bool
) -> None:
    program = f"""
import sys, threading
{before}
from pathlib import Path
from geval_cli.specs.promptfoo import EnvProviderSpec
from geval_cli.specs.base import ProviderSpec
from geval_cli.providers.registry import begin_loading
assert "aiohttp" not in sys.modules
begin_loading([ProviderSpec(id={provider_id!r})], env={{}}, base_dir=Path())
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
assert ("aiohttp" in sys.modules) is {is_loaded}
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_loading_beforehand_leaves_mistakes_to_the_check() -> None:
    begin_loading([ProviderSpec(id="opnai:m")], env={}, base_dir=Path())
    assert len(problems("opnai:m")) == 1


NO_MODELS = """
openai:assistant:asst_1 openai:realtime openai:realtime:x openai:live:x openai:image:x openai:tts:x
openai:speech:x openai:audio:x openai:voice:x openai:video:x openai:transcription:x openai:completion:x
openai:codex openai:codex-sdk openai:codex-sdk:x openai:codex-app-server openai:codex-desktop
openai:codex-security:x openai:agents:x openai:agents-api:x openai:chatkit:x anthropic:claude-agent-sdk
anthropic:claude-code anthropic:claude-agent-sdk:x anthropic:completion:x google:live:x google:image:x
google:video:x vertex:live:x azure:assistant:x azureopenai:image:x azure:foundry-agent:x azure:realtime:x
azure:completion:x xai:image:x xai:voice:x togetherai:image:x mistral:agent:x groq:audio:x
ollama:completion:x huggingface:text-generation:x bedrock-agent:x sagemaker:x replicate:x palm:x
browser mcp mcp:x sequence promptfoo:simulated-user promptfoo:manual-input
promptfoo:redteam:x simulated-user manual-input package:a:b golang:a.go ruby:a.rb websocket ws://x
wss://x webhook:http://x slack:C1 n8n:x a2a:http://x openinterpreter opencode:sdk openclaw:x
elevenlabs:tts:x fal:image:x transformers:x transformers.js:x llama:7b
agentic:memory-poisoning openai:tts-1 openai:tts-1-hd-1106 openai:gpt-4o-mini-tts openai:gpt-realtime
openai:gpt-4o-mini-tts-2025-12-15 openai:gpt-realtime-2.1-mini openai:gpt-live-1
openai:gpt-4o-mini-realtime-preview-2024-12-17
"""


@pytest.mark.parametrize("name", NO_MODELS.split())
@pytest.mark.parametrize("spec_of", [ProviderSpec, EnvProviderSpec])
def test_what_is_no_model_behind_a_chat_api_is_refused_with_what_to_do_instead(
    name: str, spec_of: type[ProviderSpec]
) -> None:
    (problem,) = check_provider(spec_of(id=name), env={}, base_dir=Path())
    assert "not supported" in problem.message or "is not a Gemini or Claude model" in problem.message
    assert problem.hint
    assert "did you mean" not in problem.hint
    assert "before the model" not in problem.hint


MODELS = """
openai:gpt-4.1 openai:chat:x openai:responses:x openai:embedding:x openai:moderation
openai:codex-mini-latest openai:ft:gpt-4.1:org::id openai:agents-are-models anthropic:claude-x
anthropic:messages:x google:gemini-x azure:my-codex azure:image ollama:llama3:8b ollama:agent:7b
vllm:org/model:tag openrouter:a/b xai:responses:x openai:chat:tts-1 openai:gpt-audio openai:gpt-image-1
openai:dall-e-3 openai:whisper-1 openai:sora-2 openai:gpt-lively openai:tts-10
vllm:tts-1
"""


@pytest.mark.parametrize("name", MODELS.split())
def test_names_of_models_are_no_modes(name: str) -> None:
    assert check_provider(ProviderSpec(id=name), env={}, base_dir=Path()) == []

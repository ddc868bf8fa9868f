"""The model servers that geval knows, as data."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

from geval_cli.patterns import compile_later

WireFormat = Literal["openai", "azure", "anthropic", "google"]
BatchApiName = Literal["", "openai", "azure", "anthropic", "google", "mistral", "together"]


class WireRules(Struct, frozen=True):
    """The differences between vendors' APIs that matter before a request is written.

    Attributes:
        module: the module of `providers.wire` whose `build` makes the provider.
        key_header: the header that holds the key; `authorization` holds it as a bearer token.
        path: where requests go, below `base_url`, with `{model}`; empty for OpenAI's APIs, which have several.
        version_header, version: the header that names the API's version, and its value unless the config sets
            `api_version`.
    """

    module: str
    key_header: str = "authorization"
    path: str = ""
    version_header: str = ""
    version: str = ""


WIRE_FORMATS: Mapping[WireFormat, WireRules] = {
    "openai": WireRules("openai"),
    "azure": WireRules("openai", "api-key"),
    "anthropic": WireRules("anthropic", "x-api-key", "/v1/messages", "anthropic-version", "2023-06-01"),
    "google": WireRules("google", "x-goog-api-key", "/v1beta/models/{model}:generateContent"),
}


class Preset(Struct, frozen=True):
    """A model server that geval knows.

    Attributes:
        title: its name for people.
        base_url: where its API begins; empty when every user has a different one.
        key_envs: the variables that may hold the key, the usual one first.
        base_url_envs: the variables that may hold another `base_url`.
        example: an id to copy.
        needs_key: False if a key is optional.
        account_url, account_envs: for vendors with an address per account or region: where the API of an `{account}`
            begins, and the variables that may hold the account.
        account_key: the setting that names the account.
        price_vendor: the vendor's name in the list prices of genai-prices; empty if they do not include it.
        batch: the batch API that the server is known to have; empty for none.
    """

    title: str
    base_url: str
    key_envs: tuple[str, ...]
    example: str
    base_url_envs: tuple[str, ...] = ()
    wire_format: WireFormat = "openai"
    needs_key: bool = True
    account_url: str = ""
    account_envs: tuple[str, ...] = ()
    account_key: Literal["account_id", "region"] = "account_id"
    price_vendor: str = ""
    batch: BatchApiName = ""


PRESETS: Mapping[str, Preset] = {
    "openai": Preset(
        "OpenAI, and every server that speaks its chat API (set base_url)",
        "https://api.openai.com/v1",
        ("OPENAI_API_KEY",),
        "openai:gpt-4.1",
        ("OPENAI_BASE_URL", "OPENAI_API_BASE_URL"),
        price_vendor="openai",
        batch="openai",
    ),
    "anthropic": Preset(
        "Anthropic",
        "https://api.anthropic.com",
        ("ANTHROPIC_API_KEY",),
        "anthropic:claude-sonnet-4-5",
        ("ANTHROPIC_BASE_URL",),
        "anthropic",
        price_vendor="anthropic",
        batch="anthropic",
    ),
    "azure": Preset(
        "Azure OpenAI (the id contains the deployment name)",
        "",
        ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"),
        "azure:my-deployment",
        ("AZURE_OPENAI_ENDPOINT", "AZURE_API_BASE_URL", "AZURE_API_HOST"),
        "azure",
        batch="azure",
    ),
    "ollama": Preset(
        "Ollama on this machine",
        "http://localhost:11434/v1",
        ("OLLAMA_API_KEY",),
        "ollama:llama3.2",
        ("OLLAMA_BASE_URL",),
        needs_key=False,
    ),
    "vllm": Preset(
        "vLLM",
        "http://localhost:8000/v1",
        ("VLLM_API_KEY",),
        "vllm:meta-llama/Llama-3.1-8B-Instruct",
        ("VLLM_BASE_URL",),
        needs_key=False,
    ),
    "openrouter": Preset(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        "openrouter:openai/gpt-4.1",
        price_vendor="openrouter",
    ),
    "groq": Preset(
        "Groq",
        "https://api.groq.com/openai/v1",
        ("GROQ_API_KEY",),
        "groq:llama-3.3-70b-versatile",
        price_vendor="groq",
        batch="openai",
    ),
    "deepseek": Preset(
        "DeepSeek",
        "https://api.deepseek.com/v1",
        ("DEEPSEEK_API_KEY",),
        "deepseek:deepseek-chat",
        price_vendor="deepseek",
    ),
    "mistral": Preset(
        "Mistral",
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        "mistral:mistral-large-latest",
        price_vendor="mistral",
        batch="mistral",
    ),
    "xai": Preset("xAI", "https://api.x.ai/v1", ("XAI_API_KEY",), "xai:grok-4", price_vendor="x-ai"),
    "together": Preset(
        "Together AI",
        "https://api.together.xyz/v1",
        ("TOGETHER_API_KEY",),
        "together:meta-llama/Llama-3.3-70B-Instruct-Turbo",
        price_vendor="together",
        batch="together",
    ),
    "fireworks": Preset(
        "Fireworks AI",
        "https://api.fireworks.ai/inference/v1",
        ("FIREWORKS_API_KEY",),
        "fireworks:accounts/fireworks/models/llama-v3p1-8b-instruct",
        price_vendor="fireworks",
    ),
    "google": Preset(
        "Google's Gemini API",
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "google:gemini-2.5-flash",
        ("GOOGLE_API_BASE_URL",),
        "google",
        price_vendor="google",
        batch="google",
    ),
    "perplexity": Preset(
        "Perplexity",
        "https://api.perplexity.ai",
        ("PERPLEXITY_API_KEY",),
        "perplexity:sonar",
        price_vendor="perplexity",
    ),
    "cohere": Preset(
        "Cohere (embeddings: `cohere:embed-v4.0`)",
        "https://api.cohere.ai/compatibility/v1",
        ("COHERE_API_KEY",),
        "cohere:command-a-03-2025",
        price_vendor="cohere",
    ),
    "cerebras": Preset(
        "Cerebras",
        "https://api.cerebras.ai/v1",
        ("CEREBRAS_API_KEY",),
        "cerebras:llama3.1-8b",
        price_vendor="cerebras",
    ),
    "github": Preset(
        "GitHub Models", "https://models.github.ai/inference", ("GITHUB_TOKEN",), "github:openai/gpt-4.1"
    ),
    "huggingface": Preset(
        "Hugging Face's router",
        "https://router.huggingface.co/v1",
        ("HF_TOKEN", "HF_API_TOKEN"),
        "huggingface:chat:meta-llama/Llama-3.1-8B-Instruct",
    ),
    "nvidia": Preset(
        "NVIDIA",
        "https://integrate.api.nvidia.com/v1",
        ("NVIDIA_API_KEY",),
        "nvidia:meta/llama-3.1-8b-instruct",
    ),
    "helicone": Preset(
        "Helicone's gateway",
        "https://ai-gateway.helicone.ai/v1",
        ("HELICONE_API_KEY",),
        "helicone:openai/gpt-4.1",
    ),
    "databricks": Preset(
        "Databricks (set base_url to https://WORKSPACE/serving-endpoints)",
        "",
        ("DATABRICKS_TOKEN",),
        "databricks:databricks-llama-4-maverick",
        ("DATABRICKS_BASE_URL",),
    ),
    "cloudflare-ai": Preset(
        "Cloudflare Workers AI (set account_id)",
        "",
        ("CLOUDFLARE_API_KEY",),
        "cloudflare-ai:@cf/meta/llama-3.1-8b-instruct",
        ("CLOUDFLARE_BASE_URL",),
        account_url="https://api.cloudflare.com/client/v4/accounts/{account}/ai/v1",
        account_envs=("CLOUDFLARE_ACCOUNT_ID",),
    ),
    "litellm": Preset(
        "a LiteLLM proxy",
        "http://localhost:4000/v1",
        ("LITELLM_API_KEY",),
        "litellm:gpt-4.1",
        ("LITELLM_BASE_URL",),
        needs_key=False,
    ),
    "bedrock": Preset(
        "Amazon Bedrock (set region)",
        "",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        account_url="https://bedrock-mantle.{account}.api.aws/v1",
        account_envs=("AWS_REGION", "AWS_DEFAULT_REGION"),
        account_key="region",
    ),
    "watsonx": Preset(
        "IBM watsonx.ai's model gateway (set region)",
        "",
        ("WATSONX_AI_BEARER_TOKEN", "WATSONX_TOKEN"),
        "watsonx:openai/gpt-4.1",
        ("WATSONX_AI_GATEWAY_URL",),
        account_url="https://{account}.ml.cloud.ibm.com/ml/gateway/v1",
        account_envs=("WATSONX_AI_REGION",),
        account_key="region",
    ),
    "lmstudio": Preset(
        "LM Studio on this machine",
        "http://localhost:1234/v1",
        ("LM_STUDIO_API_KEY",),
        "lmstudio:qwen/qwen3-4b",
        ("LM_STUDIO_BASE_URL", "LM_STUDIO_API_BASE"),
        needs_key=False,
    ),
    "docker": Preset(
        "Docker Model Runner on this machine",
        "http://localhost:12434/engines/v1",
        ("DOCKER_MODEL_RUNNER_API_KEY",),
        "docker:ai/smollm2",
        needs_key=False,
    ),
    "llamafile": Preset(
        "a llamafile, or llama.cpp's server",
        "http://localhost:8080/v1",
        ("LLAMAFILE_API_KEY",),
        "llamafile:LLaMA_CPP",
        ("LLAMAFILE_BASE_URL", "LLAMAFILE_API_BASE"),
        needs_key=False,
    ),
    "localai": Preset(
        "LocalAI",
        "http://localhost:8080/v1",
        ("LOCALAI_API_KEY",),
        "localai:llama-3.2-1b-instruct",
        ("LOCALAI_BASE_URL",),
        needs_key=False,
    ),
    "moonshot": Preset(
        "Moonshot AI (Kimi)",
        "https://api.moonshot.ai/v1",
        ("MOONSHOT_API_KEY",),
        "moonshot:kimi-k2-0905-preview",
        ("MOONSHOT_API_BASE",),
        price_vendor="moonshotai",
    ),
    "alibaba": Preset(
        "Alibaba Cloud Model Studio (Qwen)",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        ("DASHSCOPE_API_KEY",),
        "alibaba:qwen-plus",
        ("DASHSCOPE_API_BASE",),
    ),
    "deepinfra": Preset(
        "DeepInfra",
        "https://api.deepinfra.com/v1/openai",
        ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
        "deepinfra:meta-llama/Llama-3.3-70B-Instruct",
    ),
    "sambanova": Preset(
        "SambaNova",
        "https://api.sambanova.ai/v1",
        ("SAMBANOVA_API_KEY",),
        "sambanova:Meta-Llama-3.3-70B-Instruct",
    ),
    "hyperbolic": Preset(
        "Hyperbolic",
        "https://api.hyperbolic.xyz/v1",
        ("HYPERBOLIC_API_KEY",),
        "hyperbolic:meta-llama/Llama-3.3-70B-Instruct",
    ),
    "novita": Preset(
        "Novita AI",
        "https://api.novita.ai/v3/openai",
        ("NOVITA_API_KEY",),
        "novita:meta-llama/llama-3.3-70b-instruct",
        price_vendor="novita",
    ),
    "nscale": Preset(
        "Nscale",
        "https://inference.api.nscale.com/v1",
        ("NSCALE_SERVICE_TOKEN", "NSCALE_API_KEY"),
        "nscale:meta-llama/Llama-3.3-70B-Instruct",
    ),
    "portkey": Preset(
        "Portkey's gateway",
        "https://api.portkey.ai/v1",
        ("PORTKEY_API_KEY",),
        "portkey:@openai-prod/gpt-4.1",
    ),
    "vercel": Preset(
        "Vercel's AI gateway",
        "https://ai-gateway.vercel.sh/v1",
        ("AI_GATEWAY_API_KEY", "VERCEL_AI_GATEWAY_API_KEY"),
        "vercel:openai/gpt-4.1",
    ),
    "voyage": Preset(
        "Voyage AI's embeddings",
        "https://api.voyageai.com/v1",
        ("VOYAGE_API_KEY",),
        "voyage:voyage-3.5",
        price_vendor="voyageai",
    ),
}

KIND_ALIASES: Mapping[str, str] = {
    "togetherai": "together",
    "azureopenai": "azure",
    "gemini": "google",
}


class OtherMode(StrEnum):
    """A mode that an id may name after the vendor, for models that have no chat API."""

    OLD_API = "old-api"
    MEDIA = "media"
    PROGRAM = "program"
    SERVICE = "service"


COMMON_MODES: Mapping[str, OtherMode] = {
    "completion": OtherMode.OLD_API,
    **dict.fromkeys(
        ("audio", "image", "live", "realtime", "speech", "transcription", "tts", "video", "voice"),
        OtherMode.MEDIA,
    ),
    **dict.fromkeys(("agent", "agents", "assistant", "foundry-agent"), OtherMode.SERVICE),
}
"""Modes of an id that other tools offer and geval does not, by the word between vendor and model."""

OTHER_MODES: Mapping[str, Mapping[str, OtherMode]] = {
    "openai": {
        **COMMON_MODES,
        **dict.fromkeys(
            ("codex", "codex-app-server", "codex-desktop", "codex-sdk", "codex-security"), OtherMode.PROGRAM
        ),
        **dict.fromkeys(("agents-api", "chatkit"), OtherMode.SERVICE),
        "agents": OtherMode.PROGRAM,
    },
    "anthropic": {
        "completion": OtherMode.OLD_API,
        **dict.fromkeys(("claude-agent-sdk", "claude-code"), OtherMode.PROGRAM),
    },
    "huggingface": dict.fromkeys(
        ("text-generation", "feature-extraction", "sentence-similarity", "token-classification"),
        OtherMode.OLD_API,
    ),
}
"""The same for single vendors, where the word counts even without a model after it."""

MEDIA_FAMILIES = (
    "gpt-4o-mini-realtime-",
    "gpt-4o-mini-tts-",
    "gpt-4o-realtime-",
    "gpt-live-",
    "gpt-realtime-",
    "tts-1-",
)
"""Prefixes, each ending in `-`, of OpenAI's models that have APIs of their own and are named without a mode."""

VERTEX = Preset(
    "Gemini and Claude models at Google's Vertex AI",
    "https://aiplatform.googleapis.com",
    ("VERTEX_API_KEY", "VERTEX_ACCESS_TOKEN", "GOOGLE_OAUTH_ACCESS_TOKEN"),
    "vertex:gemini-2.5-flash",
    wire_format="google",
)

_REGION = compile_later(r"[a-z][a-z0-9-]{0,62}")


def is_region(value: Any) -> bool:
    """Return whether `value` can be the name of a region, without characters that would end a host name."""
    return isinstance(value, str) and _REGION.fullmatch(value) is not None

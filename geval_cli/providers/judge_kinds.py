"""Tell from a provider's id what its model returns: texts, vectors, classes, or a moderator's flags."""

from collections.abc import Mapping

from geval_cli.specs.base import ProviderSpec

TEXT = "text"
EMBEDDING = "embedding"
CLASSIFICATION = "classification"
MODERATION = "moderation"
SEARCH = "search"
"""Texts of a model that looks into the web first."""

_KINDS: Mapping[str, str] = {
    "embedding": EMBEDDING,
    "embeddings": EMBEDDING,
    "text-classification": CLASSIFICATION,
    "moderation": MODERATION,
}
"""By what is between the vendor and the model: `openai:embedding:MODEL`."""

_WITHOUT_MODEL = frozenset({MODERATION})
_EMBEDDING_VENDORS = frozenset({"voyage"})
"""All of whose models return vectors: `voyage:MODEL`."""
_EMBEDDING_MODELS: Mapping[str, str] = {
    "cohere": "embed-",
    "mistral": "mistral-embed",
    "openai": "text-embedding-",
}
"""How the names of models begin that return vectors, by vendor."""
_OTHER_NAMES = frozenset({"http", "https", "exec", "python", "javascript", "file", "scripted", "function"})
"""Kinds of providers whose ids name no model."""

_PROGRAMS = frozenset({"exec", "python", "javascript", "file"})
_NEVER_DATA = _OTHER_NAMES | {"echo", "local", "mistral", "cohere", "ollama", "google", "gemini", "vertex"}
"""Whose answers promptfoo leaves as texts, whatever format was asked for."""

_SEARCHING_VENDORS = frozenset({"perplexity"})
_SEARCHING_MODELS = ("search-preview", "search-api", ":online", "perplexity/sonar")
_SEARCHING_KEYS = frozenset({"web_search_options", "search_parameters", "web_search"})
_SEARCH_TOOLS = frozenset(
    {"googleSearch", "google_search", "googleSearchRetrieval", "google_search_retrieval"}
)


def kind_of(provider_id: str) -> str:
    """Return the kind of answer of the model that an id names."""
    vendor, _, rest = provider_id.partition(":")
    if vendor in _EMBEDDING_VENDORS:
        return EMBEDDING
    if vendor in _EMBEDDING_MODELS and rest.startswith(_EMBEDDING_MODELS[vendor]):
        return EMBEDDING
    mode, separator, _ = rest.partition(":")
    kind = _KINDS.get(mode, TEXT)
    is_written_out = separator or kind in _WITHOUT_MODEL
    return kind if is_written_out and vendor not in _OTHER_NAMES else TEXT


def local_name(provider_id: str) -> str:
    """Return the model or the file that a `local:` id names, also as `local:embedding:MODEL`."""
    name = provider_id.partition(":")[2]
    for mode in ("embedding:", "embeddings:"):
        name = name.removeprefix(mode)
    return name.removeprefix("file://")


def is_embedding(provider_id: str) -> bool:
    """Return whether an id names a model that turns texts into vectors (`openai:embedding:MODEL`)."""
    return kind_of(provider_id) == EMBEDDING


def is_program(provider: ProviderSpec) -> bool:
    """Return whether a provider is a program or a function of the user's own."""
    return provider.id.partition(":")[0].lower() in _PROGRAMS


def takes_text(provider: ProviderSpec) -> bool:
    """Return whether a provider gets a prompt as the text that it is, be it a chat or not."""
    return provider.id.partition(":")[0].lower() in _OTHER_NAMES | {"echo"}


def structured_output_key(provider_id: str) -> str | None:
    """The parameter in which promptfoo looks whether a JSON Schema was asked for; None where it does not look."""
    vendor = provider_id.partition(":")[0].lower()
    if vendor in _NEVER_DATA:
        return None
    return "output_format" if vendor == "anthropic" else "response_format"


def overlooks_schema_files(provider_id: str) -> bool:
    """Return whether promptfoo leaves an answer as text when its format is in a file: so with chat APIs."""
    vendor, _, rest = provider_id.partition(":")
    return vendor.lower() != "anthropic" and not rest.startswith("responses:")


def can_search(provider: ProviderSpec) -> bool:
    """Return whether a model looks into the web: by its nature, by its config; an application of the user's own may."""
    vendor = provider.id.partition(":")[0]
    if vendor in _SEARCHING_VENDORS | _OTHER_NAMES or any(name in provider.id for name in _SEARCHING_MODELS):
        return True
    if not _SEARCHING_KEYS.isdisjoint(provider.config):
        return True
    tools = provider.config.get("tools")
    return isinstance(tools, list) and any(map(_is_search, tools))


def _is_search(tool: object) -> bool:
    if not isinstance(tool, dict):
        return False
    return str(tool.get("type", "")).startswith("web_search") or not _SEARCH_TOOLS.isdisjoint(tool)

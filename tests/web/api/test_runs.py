import asyncio
import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import run_geval
from support.loopback import LoopbackServer, chat_reply
from support.web_server import RunningServer, judge_environ, running_server

from geval_cli.extras.web.api.runs import event_stream

SUITE = """\
prompts: ["Say {{ word }}."]
providers: [echo]
tests:
""" + "".join(
    f"  - {{ vars: {{ word: word-{number} }}, assert: [{{ type: contains, value: {word} }}] }}\n"
    for number, word in enumerate(["word", "word", "nothing", "word", "word"])
)
SLOW_SUITE = """\
prompts: ["{{ word }}"]
providers: ["openai:slow"]
tests:
  - { vars: { word: one }, assert: [{ type: contains, value: fine }] }
  - { vars: { word: two }, assert: [{ type: contains, value: fine }] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One for all tests that do not mind what the others run."""
    folder = tmp_path_factory.mktemp("parent") / "served"
    folder.mkdir()
    (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    with running_server(folder) as running:
        yield running


@pytest.fixture(scope="module")
def run_id(server: RunningServer) -> str:
    """A run that is over."""
    return run_to_end(server)


@pytest.fixture
def model() -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=lambda body, headers: chat_reply("fine")) as model:
        yield model


@pytest.fixture
def slow_server(tmp_path: Path, model: LoopbackServer) -> Iterator[RunningServer]:
    """A server whose runs wait for `model.release()`."""
    (tmp_path / "slow.yaml").write_text(SLOW_SUITE, encoding="utf-8")
    model.hold()
    with running_server(tmp_path, environ=judge_environ(model), max_runs=1) as running:
        yield running
        model.release()


def run_to_end(server: RunningServer, config: str = "suite.yaml", **options: Any) -> str:
    started = server.post("/api/runs", {"config": config, **options})
    assert started.status == 201, started.text
    list(server.events(started.json["events"]))
    return str(started.json["id"])


def test_head_is_get_without_a_body(server: RunningServer, run_id: str) -> None:
    for path in ("/", f"/runs/{run_id}", "/api/runs", f"/api/runs/{run_id}", "/api/runs/missing", "/healthz"):
        head, get = server.send("HEAD", path), server.get(path)
        assert (head.status, head.body) == (get.status, b"")
        assert head.headers["content-type"].partition(";")[0] == get.headers["content-type"].partition(";")[0]
        assert head.headers["content-length"] == get.headers["content-length"]
    assert server.send("HEAD", f"/api/runs/{run_id}/events").status == 405


def test_a_missing_body_is_told_as_the_whole_body(server: RunningServer) -> None:
    answer = server.send("POST", "/api/runs", b"", {"content-type": "application/json"})
    assert answer.json["errors"] == [{"detail": "this is required", "pointer": "#"}]


class TestStart:
    def test_says_where_the_run_is_found(self, server: RunningServer) -> None:
        answer = server.post("/api/runs", {"config": "suite.yaml"})
        run_id = answer.json["id"]
        assert answer.status == 201
        assert answer.headers["location"] == f"/api/runs/{run_id}"
        assert answer.json == {
            "id": run_id,
            "url": f"/api/runs/{run_id}",
            "events": f"/api/runs/{run_id}/events",
            "results": f"/api/runs/{run_id}/results",
        }
        assert server.get(answer.json["url"]).status == 200

    def test_problems_of_the_config_come_at_once_with_their_places(self, server: RunningServer) -> None:
        before = server.get("/api/runs").json["total"]
        config = server.settings.folder / "broken.yaml"
        config.write_text(
            SUITE.replace("contains", "contians").replace("providers", "provders"), encoding="utf-8"
        )
        answer = server.post("/api/runs", {"config": "broken.yaml"})
        assert answer.status == 422
        assert answer.headers["content-type"] == "application/problem+json"
        lines = {item["line"] for item in answer.json["errors"]}
        assert {2, 4, 5, 6, 7, 8} <= lines
        assert server.get("/api/runs").json["total"] == before

    def test_options_are_those_of_the_command(self, server: RunningServer) -> None:
        run_id = run_to_end(server, repeats=2, variables={"word": "word"})
        results = server.get(f"/api/runs/{run_id}/results").json
        assert results["total"] == 10
        assert {item["vars"]["word"] for item in results["results"]} == {"word"}

    @pytest.mark.parametrize(
        "options",
        [
            {"samples": 0},
            {"repeats": 0},
            {"repeats": 10_000},
            {"scoring": "guess"},
            {"variables": {"a": 1}},
        ],
    )
    def test_options_that_make_no_sense(self, server: RunningServer, options: dict[str, Any]) -> None:
        assert server.post("/api/runs", {"config": "suite.yaml", **options}).status == 422

    @pytest.mark.parametrize(
        ("name", "status"),
        [
            ("../outside.yaml", 403),
            ("/etc/passwd", 403),
            ("link.yaml", 403),
            ("linked/outside.yaml", 403),
            ("loop.yaml", 404),
            ("missing.yaml", 404),
            ("notes.txt", 404),
            (".", 404),
            ("a\x00b.yaml", 404),
            ("x" * 900 + ".yaml", 404),
        ],
    )
    def test_no_path_leads_out_of_the_served_folder(
        self, server: RunningServer, traps: None, name: str, status: int
    ) -> None:
        answer = server.post("/api/runs", {"config": name})
        assert answer.status == status
        assert answer.json["hint"]

    @pytest.mark.parametrize("named", ["file://../secret.txt", "file://linked/secret.txt"])
    @pytest.mark.parametrize("place", ["prompts: [{}]", "prompts: [x]\ntests: [{{ vars: {{ x: {} }} }}]"])
    def test_nor_does_a_path_in_a_config(
        self, server: RunningServer, traps: None, named: str, place: str
    ) -> None:
        config = server.settings.folder / "reads.yaml"
        config.write_text(f"providers: [echo]\n{place.format(named)}\n", encoding="utf-8")
        answer = server.post("/api/runs", {"config": "reads.yaml"})
        assert answer.status == 422
        assert "outside the served folder" in answer.json["errors"][0]["detail"]
        assert "--allow-code" in answer.json["errors"][0]["hint"]

    def test_unless_every_config_is_trusted(self, tmp_path: Path) -> None:
        folder = tmp_path / "served"
        folder.mkdir()
        (tmp_path / "prompt.txt").write_text("Hello", encoding="utf-8")
        config = "prompts: [file://../prompt.txt]\nproviders: [echo]\ntests: [{}]\n"
        (folder / "suite.yaml").write_text(config, encoding="utf-8")
        with running_server(folder, allows_code=True) as server:
            assert server.post("/api/runs", {"config": "suite.yaml"}).status == 201

    def test_env_files_may_lie_anywhere(self, tmp_path: Path) -> None:
        folder, env_file = tmp_path / "served", tmp_path / "keys.env"
        folder.mkdir()
        env_file.write_text("WORD=Hello\n", encoding="utf-8")
        config = "prompts: ['{{ env.WORD }}']\nproviders: [echo]\ntests: [{}]\n"
        (folder / "suite.yaml").write_text(config, encoding="utf-8")
        with running_server(folder, env_file=env_file) as server:
            assert server.post("/api/runs", {"config": "suite.yaml"}).status == 201

    def test_links_within_the_folder_are_followed(self, server: RunningServer) -> None:
        (server.settings.folder / "inner.yaml").symlink_to("suite.yaml")
        assert server.post("/api/runs", {"config": "inner.yaml"}).status == 201

    def test_a_bounded_number_of_runs_goes_on_at_a_time(
        self, slow_server: RunningServer, model: LoopbackServer
    ) -> None:
        first = slow_server.post("/api/runs", {"config": "slow.yaml"})
        refused = slow_server.post("/api/runs", {"config": "slow.yaml"})
        model.release()
        list(slow_server.events(first.json["events"]))
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert slow_server.post("/api/runs", {"config": "slow.yaml"}).status == 201

    def test_the_bound_holds_for_runs_that_are_repeated_at_once(
        self, tmp_path: Path, model: LoopbackServer
    ) -> None:
        (tmp_path / "slow.yaml").write_text(SLOW_SUITE, encoding="utf-8")
        with running_server(tmp_path, environ=judge_environ(model), max_runs=1) as server:
            first = run_to_end(server, "slow.yaml")
            (tmp_path / "slow.yaml").write_text(SLOW_SUITE.replace("one", "three"), encoding="utf-8")
            model.hold()
            with ThreadPoolExecutor(8) as pool:
                address = f"/api/runs/{first}/again"
                answers = [pool.submit(server.post, address, {}) for _ in range(8)]
                statuses = sorted(answer.result().status for answer in answers)
            model.release()
        assert statuses == [201, *[429] * 7]


@pytest.fixture(scope="module")
def traps(server: RunningServer) -> None:
    """What leads out of the served folder, or nowhere."""
    folder = server.settings.folder
    (folder.parent / "outside.yaml").write_text(SUITE, encoding="utf-8")
    (folder.parent / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "notes.txt").write_text(SUITE, encoding="utf-8")
    (folder / "link.yaml").symlink_to(folder.parent / "outside.yaml")
    (folder / "linked").symlink_to(folder.parent)
    (folder / "loop.yaml").symlink_to(folder / "loop.yaml")


class TestCode:
    @pytest.mark.parametrize(
        "config",
        [
            'providers: ["exec:echo hi"]\nprompts: [x]\ntests: [{}]\n',
            'providers: ["EXEC:echo hi"]\nprompts: [x]\ntests: [{}]\n',
            'providers: [{ id: "python:answer.py" }]\nprompts: [x]\ntests: [{}]\n',
            'providers: ["file://answer.py:call_api"]\nprompts: [x]\ntests: [{}]\n',
            'env: { WHO: "exec:echo hi" }\nproviders: ["{{ env.WHO }}"]\nprompts: [x]\ntests: [{}]\n',
            "providers: [echo]\nprompts: [x]\ntests:\n"
            "  - assert: [{ type: g-eval, criteria: y, provider: 'exec:judge' }]\n",
            "providers: [echo]\nprompts: [x]\ntests: file://tests.json\n",
            "providers: [echo]\nprompts: [x]\ntests: [{ assert: [{ type: javascript, value: 'true' }] }]\n",
            "providers: [echo]\nprompts: [x]\ntests: [{ assert: [{ type: not-python, value: 'True' }] }]\n",
        ],
    )
    def test_of_a_config_is_not_run_unless_the_server_may(self, server: RunningServer, config: str) -> None:
        folder = server.settings.folder
        (folder / "code.yaml").write_text(config, encoding="utf-8")
        graded = {"type": "g-eval", "criteria": "y", "provider": "python:judge.py"}
        (folder / "tests.json").write_text(json.dumps([{"assert": [graded]}]), encoding="utf-8")
        answer = server.post("/api/runs", {"config": "code.yaml"})
        assert answer.status == 403, answer.text
        assert "--allow-code" in answer.json["hint"]

    def test_of_a_judge_that_a_client_names_is_not_run_either(self, server: RunningServer) -> None:
        answer = server.post("/api/runs", {"config": "suite.yaml", "grader": "exec:cat /etc/passwd"})
        assert answer.status == 403

    def test_runs_when_the_server_may(self, tmp_path: Path) -> None:
        (tmp_path / "suite.yaml").write_text(SUITE.replace("echo", '"exec:echo"'), encoding="utf-8")
        with running_server(tmp_path, allows_code=True) as server:
            run_id = run_to_end(server)
            assert server.get(f"/api/runs/{run_id}").json["summary"]["passed"] == 4

    def test_where_everything_is_untrusted_nothing_allows_it(self, tmp_path: Path) -> None:
        (tmp_path / "code.yaml").write_text(SUITE.replace("echo", '"exec:echo"'), encoding="utf-8")
        (tmp_path / "suite.yaml").write_text(
            SUITE + "defaultTest: {assert: [{type: llm-rubric, value: x}]}\n"
        )
        with running_server(tmp_path, allows_code=True, environ={"GEVAL_UNTRUSTED": "1"}) as server:
            for body in (
                {"config": "code.yaml"},
                {"config": "suite.yaml", "grader": "exec:echo"},
                {"config": "suite.yaml", "grader": "http://127.0.0.1:1/"},
            ):
                answer = server.post("/api/runs", body)
                assert answer.status == 422
                assert "--untrusted does not allow" in answer.text

    def test_a_config_without_code_is_no_code(self, server: RunningServer) -> None:
        text = SUITE.replace("word-0", "'see exec:this and run.py'")
        (server.settings.folder / "harmless.yaml").write_text(text, encoding="utf-8")
        assert server.post("/api/runs", {"config": "harmless.yaml"}).status == 201

    def test_of_the_judge_that_the_server_was_started_with_is_trusted(self, tmp_path: Path) -> None:
        (tmp_path / "suite.yaml").write_text(SUITE, encoding="utf-8")
        with running_server(tmp_path, grader="exec:echo") as server:
            assert server.post("/api/runs", {"config": "suite.yaml"}).status == 201


class TestRead:
    def test_is_what_a_results_file_holds(self, server: RunningServer, run_id: str) -> None:
        folder = server.settings.folder
        written = folder / "results.json"
        shown = run_geval("show", run_id, "-o", str(written), "--home", str(folder / ".geval"), cwd=folder)
        assert shown.code == 0, shown.stderr
        document = json.loads(written.read_text(encoding="utf-8"))
        assert server.get(f"/api/runs/{run_id}?results=true").json == document
        results = document.pop("results")
        tests = document.pop("tests")
        assert server.get(f"/api/runs/{run_id}").json == document
        page = server.get(f"/api/runs/{run_id}/results").json
        assert (page["tests"], page["results"]) == (tests, results)

    def test_results_come_in_pages(self, server: RunningServer, run_id: str) -> None:
        pages = [server.get(f"/api/runs/{run_id}/results?offset={at}&limit=2").json for at in (0, 2, 4, 6)]
        assert [[item["test_index"] for item in page["results"]] for page in pages] == [
            [0, 1],
            [2, 3],
            [4],
            [],
        ]
        assert {page["total"] for page in pages} == {5}

    @pytest.mark.parametrize("query", ["limit=0", "limit=1001", "offset=-1", "offset=1e3", "limit=all"])
    def test_pages_that_make_no_sense(self, server: RunningServer, run_id: str, query: str) -> None:
        answer = server.get(f"/api/runs/{run_id}/results?{query}")
        assert answer.status == 422
        assert answer.json["errors"][0]["query"] == query.partition("=")[0]

    def test_runs_are_found_by_their_tags(self, server: RunningServer) -> None:
        ids = [run_to_end(server, tags=tags) for tags in ({"a": "1"}, {"a": "1", "b": "x=y&z"}, {"a": "2"})]
        for query, expected in (
            ("tag=a=1", ids[1::-1]),
            ("tag=a=1&tag=b=x%3Dy%26z", [ids[1]]),
            ("tag=a=", []),
        ):
            listed = server.get(f"/api/runs?{query}").json
            assert [item["run"]["id"] for item in listed["runs"]] == expected
            assert listed["total"] == len(expected)
        assert server.get("/api/runs?tag=a=2").json["runs"][0]["run"]["tags"] == {"a": "2"}
        assert [server.get(f"/api/runs?tag={tag}").status for tag in ("a", "=1", "")] == [422] * 3

    def test_runs_are_listed_newest_first_without_their_configs(self, server: RunningServer) -> None:
        before = server.get("/api/runs").json["total"]
        first, second = run_to_end(server), run_to_end(server)
        listed = server.get("/api/runs?limit=2").json
        assert [item["run"]["id"] for item in listed["runs"]] == [second, first]
        assert listed["total"] == before + 2
        assert "config" not in listed["runs"][0]["run"]
        assert listed["runs"][0]["summary"]["failed"] == 1
        assert [item["run"]["id"] for item in server.get("/api/runs?offset=1&limit=1").json["runs"]] == [
            first
        ]

    def test_runs_of_the_command_are_there_too(self, server: RunningServer) -> None:
        folder = server.settings.folder
        run_geval("run", "suite.yaml", "--home", str(folder / ".geval"), cwd=folder)
        assert server.get("/api/runs/latest").json["summary"]["total"] == 5

    @pytest.mark.parametrize("rest", ["", "/results", "/events"])
    @pytest.mark.parametrize("name", ["nothing", "%00", "..%2f..", "é", "x" * 500])
    def test_what_is_not_there_is_404(self, server: RunningServer, name: str, rest: str) -> None:
        answer = server.get(f"/api/runs/{name.replace('é', '%C3%A9')}{rest}")
        assert answer.status in (404, 422)
        assert answer.headers["content-type"] == "application/problem+json"


class TestEvents:
    def test_tell_a_whole_run(self, slow_server: RunningServer, model: LoopbackServer) -> None:
        started = slow_server.post("/api/runs", {"config": "slow.yaml"}).json
        events = slow_server.events(started["events"])
        state = next(events)
        model.release()
        rest = list(events)
        assert state["type"] == "state"
        assert state["counts"] == {
            "done": 0,
            "total": 2,
            "passed": 0,
            "failed": 0,
            "errored": 0,
            "not_evaluated": 0,
        }
        assert [event["type"] for event in rest if event["type"] != "notice"] == ["case", "case", "finished"]
        assert rest[-2]["counts"]["passed"] == 2
        assert rest[-1]["run"]["status"] == "completed"
        assert rest[-1]["summary"]["total"] == 2

    def test_are_told_to_everybody_who_listens(
        self, slow_server: RunningServer, model: LoopbackServer
    ) -> None:
        started = slow_server.post("/api/runs", {"config": "slow.yaml"}).json
        listeners = [slow_server.events(started["events"]) for _ in range(3)]
        assert [next(events)["type"] for events in listeners] == ["state"] * 3
        model.release()
        assert [list(events)[-1]["type"] for events in listeners] == ["finished"] * 3

    def test_a_finished_run_says_that_it_is(self, server: RunningServer, run_id: str) -> None:
        (event,) = server.events(f"/api/runs/{run_id}/events")
        assert event["type"] == "finished"
        assert event["run"]["id"] == run_id

    def test_a_listener_that_goes_ends_nothing(
        self, slow_server: RunningServer, model: LoopbackServer
    ) -> None:
        started = slow_server.post("/api/runs", {"config": "slow.yaml"}).json
        events = slow_server.events(started["events"])
        next(events)
        events.close()
        model.release()
        assert list(slow_server.events(started["events"]))[-1]["type"] == "finished"

    def test_silence_is_filled_with_comments(self, slow_server: RunningServer, model: LoopbackServer) -> None:
        started = slow_server.post("/api/runs", {"config": "slow.yaml"}).json

        async def first_parts() -> list[bytes]:
            state = slow_server.app.state
            stream = event_stream(state.live_runs, state.state.runs.find(started["id"]), heartbeat_s=0.01)
            parts = [await anext(stream) for _ in range(3)]
            await stream.aclose()
            return parts

        parts = asyncio.run_coroutine_threadsafe(first_parts(), slow_server.loop).result(20)
        assert parts[0].startswith(b"event: state\n")
        assert parts[1:] == [b": still here\n\n"] * 2

    def test_say_what_did_not_pass_and_why(self, tmp_path: Path, model: LoopbackServer) -> None:
        suite = SLOW_SUITE.replace("fine", "splendid")
        (tmp_path / "slow.yaml").write_text(suite, encoding="utf-8")
        model.hold()
        with running_server(tmp_path, environ=judge_environ(model)) as server:
            started = server.post("/api/runs", {"config": "slow.yaml"}).json
            events = server.events(started["events"])
            next(events)
            model.release()
            cases = [event["case"] for event in events if event["type"] == "case"]
        assert {case["status"] for case in cases} == {"failed"}
        assert all("splendid" in case["reason"] for case in cases)


class TestStop:
    def test_keeps_what_is_finished(self, slow_server: RunningServer) -> None:
        started = slow_server.post("/api/runs", {"config": "slow.yaml"}).json
        events = slow_server.events(started["events"])
        next(events)
        where = f"{started['url']}/stop"
        assert slow_server.post(where, {}).status == 202
        assert slow_server.post(where, {}).status == 202  # at once, without grace
        rest = list(events)
        assert [event["type"] for event in rest if event["type"] != "notice"] == [
            "stopping",
            "stopping",
            "finished",
        ]
        assert rest[-1]["run"]["status"] == "interrupted"
        assert slow_server.get(started["url"]).json["run"]["status"] == "interrupted"

    def test_of_a_run_that_is_over_is_409(self, server: RunningServer, run_id: str) -> None:
        answer = server.post(f"/api/runs/{run_id}/stop", {})
        assert answer.status == 409
        assert answer.json["hint"]

    def test_of_a_run_that_never_was_is_404(self, server: RunningServer) -> None:
        assert server.post("/api/runs/nothing/stop", {}).status == 404


def test_a_server_whose_stored_runs_were_deleted_says_so_and_starts_none(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text("prompts: [x]\nproviders: [echo]\ntests: [{}]\n", encoding="utf-8")
    with running_server(tmp_path) as server:
        run_to_end(server)
        shutil.rmtree(server.settings.home or tmp_path / ".geval")
        answer = server.post("/api/runs", {"config": "suite.yaml"})
        assert answer.status == 503
        assert "was deleted while the server ran" in answer.text
        assert "restart the server" in answer.text


@pytest.mark.parametrize("refused", ["INSERT ON results", "UPDATE ON runs"])
def test_a_run_whose_end_cannot_be_stored_is_over_and_can_be_resumed(
    slow_server: RunningServer, model: LoopbackServer, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    """As on a full disk: the database refuses what is written, until there is room again."""
    started = slow_server.post("/api/runs", {"config": "slow.yaml"}).json
    events = slow_server.events(started["events"])
    assert next(events)["type"] == "state"
    home = slow_server.settings.home
    assert home is not None
    with contextlib.closing(sqlite3.connect(home / "geval.db", timeout=60, isolation_level=None)) as database:
        database.execute(f"CREATE TRIGGER full BEFORE {refused} BEGIN SELECT RAISE(ABORT, 'no room'); END")
        model.release()
        *_, last = events
        assert last["type"] == "finished"
        assert "not all of this run is stored" in last["run"]["warnings"][-1]
        database.execute("DROP TRIGGER full")
    assert wait_for_end(slow_server, started["url"])["run"]["status"] in {"interrupted", "aborted"}
    assert "not all of this run is stored" in caplog.text
    resumed = slow_server.post(f"{started['url']}/resume", {})
    assert resumed.status == 202, resumed.text
    *_, last = slow_server.events(started["events"])
    assert (last["run"]["status"], last["summary"]["passed"]) == ("completed", 2)


def wait_for_end(server: RunningServer, url: str) -> Any:
    """Return the run once the server is done with it, shortly after its last event."""
    for _ in range(100):
        found = server.get(url).json
        if found["run"]["status"] != "running":
            return found
        time.sleep(0.05)
    pytest.fail("the run is still in progress")

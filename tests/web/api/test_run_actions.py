"""Actions with a stored run over HTTP: name it, tag it, start it again, resume it, remove it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.geval_command import run_geval
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply
from support.sample_run import RUN, make_case
from support.web_server import HttpAnswer, RunningServer, judge_environ, running_server

from geval_cli.records import RunStatus, RunSummary
from geval_cli.store.runs import RunOrigin, RunStore

SUITE = """\
prompts: ["Say {{ word }}."]
providers: [echo]
tests:
  - { vars: { word: one }, assert: [{ type: contains, value: one }] }
  - { vars: { word: two }, assert: [{ type: contains, value: three }] }
"""
ASKING = """\
prompts: ["{{ word }}"]
providers: [{ id: "openai:m", config: { max_retries: 0 } }]
tests:
  - { vars: { word: one }, assert: [{ type: contains, value: fine }] }
  - { vars: { word: two }, assert: [{ type: contains, value: fine }] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    with running_server(folder) as running:
        yield running


class Model:
    """A model on loopback; what it says can be changed while it runs."""

    def __init__(self) -> None:
        self.errs = False
        self.server = LoopbackServer(respond=self._respond)

    def _respond(self, body: Any, headers: Any) -> Reply:
        is_two = body["messages"][0]["content"] == "two"
        return error_reply(503, "overloaded") if self.errs and is_two else chat_reply("fine")


@pytest.fixture
def model() -> Iterator[Model]:
    found = Model()
    with found.server:
        yield found


@pytest.fixture
def asking(tmp_path: Path, model: Model) -> Iterator[RunningServer]:
    """A server whose suite asks `model`."""
    (tmp_path / "asking.yaml").write_text(ASKING, encoding="utf-8")
    with running_server(tmp_path, environ=judge_environ(model.server)) as running:
        yield running
        model.server.release()


def send(server: RunningServer, method: str, path: str, value: str) -> HttpAnswer:
    return server.send(method, path, value.encode(), {"content_type": "application/json"})


def run_to_end(server: RunningServer, config: str = "suite.yaml", **options: Any) -> str:
    return ended(server, server.post("/api/runs", {"config": config, **options}))


def ended(server: RunningServer, started: HttpAnswer) -> str:
    assert started.status in (201, 202), started.text
    list(server.events(started.json["events"]))
    return str(started.json["id"])


def stored(folder: Path, origin: RunOrigin | None = None, **fields: Any) -> str:
    """A run in the store that this server did not make, over unless `fields` say otherwise."""
    runs = RunStore.open(folder / ".geval")
    run = replace(RUN, **fields)
    runs.begin(run, origin)
    runs.add(run.id, make_case()).result()
    if run.status is not RunStatus.RUNNING:
        runs.finish(run, RunSummary(total=1, passed=1, pass_rate=1.0))
    runs.close()
    return run.id


class TestAnnotate:
    def test_title_and_tags_stay_where_they_are_left_out(self, server: RunningServer) -> None:
        run_id = run_to_end(server, tags={"model": "old"})
        path = f"/api/runs/{run_id}"
        named = send(server, "PATCH", path, '{"title": " Before the new prompt ✓ "}')
        assert named.status == 200
        assert named.json["title"] == "Before the new prompt ✓"
        assert named.json["tags"] == {"model": "old"}
        send(server, "PATCH", path, '{"tags": {"stage": "2", "api_key": "sk-secret-0123456789abcdef"}}')
        run = server.get(path).json["run"]
        assert run["title"] == "Before the new prompt ✓"
        assert run["tags"] == {"stage": "2", "api_key": "***"}
        assert server.get("/api/runs?tag=stage=2").json["total"] == 1
        assert send(server, "PATCH", path, '{"title": ""}').json["title"] is None

    def test_what_it_says_is_what_the_command_lists(self, server: RunningServer) -> None:
        run_id = run_to_end(server)
        send(server, "PATCH", f"/api/runs/{run_id}", '{"title": "Good one"}')
        folder = server.settings.folder
        listed = run_geval("list", "--home", str(folder / ".geval"), cwd=folder)
        assert "Good one" in listed.stdout

    @pytest.mark.parametrize(
        "body",
        [
            '{"title": 7}',
            '{"tags": {"a=b": "1"}}',
            '{"tags": {"": "1"}}',
            '{"tags": {"a": 1}}',
            '{"name": "x"}',
            '{"title": "' + "x" * 201 + '"}',
            '{"tags": {' + ", ".join(f'"n{n}": ""' for n in range(51)) + "}}",
            '{"title": "\\ud800"}',
        ],
    )
    def test_what_makes_no_sense_changes_nothing(self, server: RunningServer, body: str) -> None:
        run_id = run_to_end(server)
        before = server.get(f"/api/runs/{run_id}").body
        assert send(server, "PATCH", f"/api/runs/{run_id}", body).status == 422
        assert server.get(f"/api/runs/{run_id}").body == before

    def test_a_run_under_way_is_left_alone(self, asking: RunningServer, model: Model) -> None:
        model.server.hold()
        started = asking.post("/api/runs", {"config": "asking.yaml"}).json
        answer = send(asking, "PATCH", started["url"], '{"title": "x"}')
        assert answer.status == 409
        assert "is in progress" in answer.json["detail"]


class TestAgain:
    def test_takes_the_options_that_decided_the_results(self, server: RunningServer) -> None:
        first = run_to_end(server, repeats=2, variables={"word": "one"})
        second = ended(server, server.post(f"/api/runs/{first}/again", {}))
        assert second != first
        results = server.get(f"/api/runs/{second}/results").json
        assert results["total"] == 4
        assert {item["vars"]["word"] for item in results["results"]} == {"one"}

    def test_takes_the_options_of_the_command_too(self, server: RunningServer) -> None:
        folder = server.settings.folder
        run_geval("run", "suite.yaml", "--filter-first-n", "1", "--home", str(folder / ".geval"), cwd=folder)
        again = ended(server, server.post("/api/runs/latest/again", {}))
        assert server.get(f"/api/runs/{again}").json["summary"]["total"] == 1

    def test_takes_the_gates_and_budget_of_the_command_too(self, asking: RunningServer, model: Model) -> None:
        """A run that failed by `--fail-under` was green when it was run again, or its errors were redone."""
        folder = asking.settings.folder
        bounds = ("--fail-under", "100%", "--max-errors", "1", "--max-requests", "1", "--no-cache", "-j", "1")
        home = ("--home", str(folder / ".geval"))
        run_geval("run", "asking.yaml", *bounds, *home, cwd=folder, env=judge_environ(model.server))
        first = asking.get("/api/runs/latest").json
        gates = [gate["gate"] for gate in first["summary"]["gates"]]
        assert gates == ["passed >= 100%", "errors <= 1"]
        again = ended(asking, asking.post("/api/runs/latest/again", {}))
        resumed = ended(asking, asking.post(f"/api/runs/{first['run']['id']}/resume", {}))
        for run_id, requests in ((again, 1), (resumed, 2)):
            summary = asking.get(f"/api/runs/{run_id}").json["summary"]
            assert [gate["gate"] for gate in summary["gates"]] == gates
            assert sum(used["requests"] for used in summary["usage"].values()) == requests

    def test_latest_is_the_baseline_that_it_was_when_the_run_began(
        self, asking: RunningServer, model: Model
    ) -> None:
        """Resumed, the run would be compared with itself, or with a later one."""
        folder = asking.settings.folder
        first, second = run_to_end(asking, "asking.yaml"), run_to_end(asking, "asking.yaml")
        bounds = ("--max-requests", "1", "--no-cache", "-j", "1", "--home", str(folder / ".geval"))
        for name, meant in (("latest", second), ("latest~3", first)):
            baseline = ("--baseline", name)
            run_geval("run", "asking.yaml", *bounds, *baseline, cwd=folder, env=judge_environ(model.server))
            stopped = asking.get("/api/runs/latest").json["run"]["id"]
            run_to_end(asking, "asking.yaml")
            ended(asking, asking.post(f"/api/runs/{stopped}/resume", {}))
            summary = asking.get(f"/api/runs/{stopped}").json["summary"]
            assert summary["baseline"]["a"]["id"] == meant, name

    def test_tests_that_are_not_known_any_more_are_not_guessed(self, server: RunningServer) -> None:
        run_to_end(server)
        folder = server.settings.folder
        home = str(folder / ".geval")
        run_geval("run", "suite.yaml", "--filter-failing", "latest", "--home", home, cwd=folder)
        answer = server.post("/api/runs/latest/again", {})
        assert answer.status == 409
        assert "only some of its suite's tests" in answer.json["detail"]

    @pytest.mark.parametrize(
        ("fields", "config", "status", "said"),
        [
            ({}, None, 409, "has no config that can be run again"),
            ({"judged_from": "other"}, "suite.yaml", 409, "judged stored outputs"),
            ({}, "gone.yaml", 404, "no config"),
            ({}, "../outside.yaml", 403, "outside the served folder"),
        ],
    )
    def test_of_what_cannot_be_run_here(
        self, tmp_path: Path, fields: dict[str, Any], config: str | None, status: int, said: str
    ) -> None:
        (tmp_path / "suite.yaml").write_text(SUITE, encoding="utf-8")
        origin = None if config is None else RunOrigin(str(tmp_path / config), 1, {})
        run_id = stored(tmp_path, origin, status=RunStatus.INTERRUPTED, **fields)
        with running_server(tmp_path) as server:
            for action in ("again", "resume"):
                answer = server.post(f"/api/runs/{run_id}/{action}", {})
                assert (answer.status, said in answer.text) == (status, True), answer.text

    def test_of_a_config_that_runs_code_by_now(self, tmp_path: Path) -> None:
        config = tmp_path / "suite.yaml"
        config.write_text(SUITE, encoding="utf-8")
        with running_server(tmp_path) as server:
            run_id = run_to_end(server)
            config.write_text(SUITE.replace("echo", '"exec:echo"'), encoding="utf-8")
            assert server.post(f"/api/runs/{run_id}/again", {}).status == 403


class TestResume:
    def test_does_what_is_missing_under_the_same_id(self, asking: RunningServer, model: Model) -> None:
        model.server.hold()
        started = asking.post("/api/runs", {"config": "asking.yaml"}).json
        events = asking.events(started["events"])
        next(events)
        for _ in range(2):
            asking.post(f"{started['url']}/stop", {})
        assert list(events)[-1]["run"]["status"] == "interrupted"
        model.server.release()
        answer = asking.post(f"{started['url']}/resume", {})
        assert answer.status == 202
        assert ended(asking, answer) == started["id"]
        found = asking.get(started["url"]).json
        assert found["run"]["status"] == "completed"
        assert found["summary"]["passed"] == 2

    def test_counts_what_was_there_before(self, asking: RunningServer, model: Model) -> None:
        model.errs = True
        run_id = run_to_end(asking, "asking.yaml")
        model.errs = False
        model.server.hold()
        answer = asking.post(f"/api/runs/{run_id}/resume", {"retry_errors": True})
        events = asking.events(answer.json["events"])
        counts = next(events)["counts"]
        assert (counts["done"], counts["total"], counts["passed"], counts["errored"]) == (1, 2, 1, 0)
        again = asking.post(f"/api/runs/{run_id}/resume", {})
        assert again.status == 409
        assert "in progress" in again.json["detail"]
        model.server.release()
        assert list(events)[-1]["summary"]["passed"] == 2

    def test_of_a_complete_run_is_refused(self, server: RunningServer) -> None:
        run_id = run_to_end(server)
        for body, said in (
            ({}, "nothing is missing"),
            ({"retry_errors": True}, "no case of it ended in an error"),
        ):
            answer = server.post(f"/api/runs/{run_id}/resume", body)
            assert answer.status == 409
            assert said in answer.json["detail"]

    def test_of_a_suite_that_changed_says_what(self, asking: RunningServer, model: Model) -> None:
        model.errs = True
        run_id = run_to_end(asking, "asking.yaml")
        config = asking.settings.folder / "asking.yaml"
        config.write_text(ASKING.replace("value: fine", "value: good"), encoding="utf-8")
        answer = asking.post(f"/api/runs/{run_id}/resume", {"retry_errors": True})
        assert answer.status == 409
        assert 'tests/0/assert/0/value: "fine" -> "good"' in answer.json["detail"]
        with closing(RunStore.open(asking.settings.folder / ".geval")) as other:
            assert other.claim(run_id), "others may resume it"
            other.release(run_id)
        config.write_text(ASKING, encoding="utf-8")
        model.errs = False
        assert ended(asking, asking.post(f"/api/runs/{run_id}/resume", {"retry_errors": True})) == run_id

    def test_of_a_run_whose_process_died(self, tmp_path: Path) -> None:
        """The store holds it as running, and nobody has its lock."""
        (tmp_path / "suite.yaml").write_text(SUITE, encoding="utf-8")
        with running_server(tmp_path) as server:
            done = run_to_end(server)
            runs = RunStore.open(tmp_path / ".geval")
            found = runs.find(done)
            runs.begin(replace(found.run, status=RunStatus.RUNNING, finished_at=None))
            runs.close()
            (event,) = server.events(f"/api/runs/{done}/events")
            assert event["type"] == "finished"
            assert event["run"]["status"] == "interrupted"
            assert event["summary"]["total"] == 2
            assert ended(server, server.post(f"/api/runs/{done}/resume", {})) == done
            assert server.get(f"/api/runs/{done}").json["run"]["status"] == "completed"


class TestRemove:
    def test_takes_results_and_the_answers_that_nothing_else_used(
        self, asking: RunningServer, model: Model
    ) -> None:
        first = run_to_end(asking, "asking.yaml")
        answer = send(asking, "DELETE", f"/api/runs/{first}", "{}")
        assert answer.status == 200
        assert answer.json == {
            "id": first,
            "answers_removed": 2,
            "labels_removed": 0,
            "labels_kept": 0,
        }
        assert asking.get(f"/api/runs/{first}").status == 404
        asked = len(model.server.requests)
        second = run_to_end(asking, "asking.yaml")
        assert len(model.server.requests) == asked + 2
        kept = send(asking, "DELETE", f"/api/runs/{second}", '{"keep_answers": true}')
        assert kept.json["answers_removed"] == 0
        run_to_end(asking, "asking.yaml")
        assert len(model.server.requests) == asked + 2

    def test_wants_the_whole_id(self, server: RunningServer) -> None:
        run_id = run_to_end(server)
        for name in ("latest", run_id[:-1]):
            answer = send(server, "DELETE", f"/api/runs/{name}", "{}")
            assert answer.status == 409
            assert run_id in answer.json["hint"]
        assert server.get(f"/api/runs/{run_id}").status == 200

    def test_of_a_run_under_way_is_refused(self, asking: RunningServer, model: Model) -> None:
        model.server.hold()
        started = asking.post("/api/runs", {"config": "asking.yaml"}).json
        assert send(asking, "DELETE", started["url"], "{}").status == 409
        assert asking.get(started["url"]).status == 200


class TestProtections:
    ACTIONS = (("PATCH", ""), ("DELETE", ""), ("POST", "/again"), ("POST", "/resume"))

    @pytest.mark.parametrize(("method", "rest"), ACTIONS)
    def test_another_site_can_do_nothing(self, server: RunningServer, method: str, rest: str) -> None:
        run_id = run_to_end(server)
        path = f"/api/runs/{run_id}{rest}"
        json_type = {"content_type": "application/json"}
        assert server.send(method, path, b"{}", {**json_type, "origin": "http://evil.test"}).status == 403
        assert server.send(method, path, b"{}", {"content_type": "text/plain"}).status == 415
        assert server.send(method, "/api/runs/nothing" + rest, b"{}", json_type).status == 404
        assert server.get(f"/api/runs/{run_id}").json["run"]["title"] is None

    def test_nor_can_anybody_without_the_token(self, tmp_path: Path) -> None:
        run_id = stored(tmp_path)
        with running_server(tmp_path, token="the-token-of-this-server") as server:
            for method, rest in self.ACTIONS:
                assert send(server, method, f"/api/runs/{run_id}{rest}", "{}").status == 401


class TestTwice:
    def test_a_second_run_of_a_suite_can_be_refused(self, asking: RunningServer, model: Model) -> None:
        model.server.hold()
        body = {"config": "asking.yaml", "unless_running": True}
        first = asking.post("/api/runs", body)
        second = asking.post("/api/runs", body)
        assert second.status == 409
        assert second.json["running"] == first.json["id"]
        again = asking.post(f"/api/runs/{first.json['id']}/again", {"unless_running": True})
        assert (again.status, again.json["running"]) == (409, first.json["id"])
        assert asking.post("/api/runs", {"config": "asking.yaml"}).status == 201

    def test_also_when_another_process_runs_it(self, tmp_path: Path) -> None:
        (tmp_path / "suite.yaml").write_text(SUITE, encoding="utf-8")
        runs = RunStore.open(tmp_path / ".geval")
        running = replace(RUN, status=RunStatus.RUNNING, finished_at=None)
        runs.begin(running, RunOrigin(str(tmp_path / "suite.yaml"), 9, {}))
        with running_server(tmp_path) as server:
            body = {"config": "suite.yaml", "unless_running": True}
            refused = server.post("/api/runs", body)
            assert (refused.status, refused.json["running"]) == (409, RUN.id)
            stop = server.post(f"/api/runs/{RUN.id}/stop", {})
            assert stop.status == 409
            assert "process" in stop.json["detail"]
            runs.close()
            assert server.post("/api/runs", body).status == 201


class TestElsewhere:
    def test_a_run_of_another_process_is_told_to_its_end(self, tmp_path: Path) -> None:
        runs = RunStore.open(tmp_path / ".geval")
        running = replace(RUN, status=RunStatus.RUNNING, finished_at=None)
        runs.begin(running, RunOrigin(str(tmp_path / "suite.yaml"), 2, {}))
        with running_server(tmp_path) as server:
            events = server.events(f"/api/runs/{RUN.id}/events")
            first = next(events)
            assert (first["type"], first["counts"]["done"], first["counts"]["total"]) == ("state", 0, 2)
            assert first["holder"].startswith("process ")
            runs.add(RUN.id, make_case()).result()
            assert next(events)["counts"]["passed"] == 1
            runs.finish(RUN, RunSummary(total=1, passed=1, pass_rate=1.0))
            runs.close()
            assert [event["type"] for event in events] == ["finished"]

    def test_a_watcher_does_not_keep_the_server_from_ending(self, tmp_path: Path) -> None:
        runs = RunStore.open(tmp_path / ".geval")
        runs.begin(replace(RUN, status=RunStatus.RUNNING, finished_at=None))
        with running_server(tmp_path) as server:
            events = server.events(f"/api/runs/{RUN.id}/events")
            next(events)
        assert list(events) == []
        runs.close()

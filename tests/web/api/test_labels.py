"""Labels over HTTP: the sheet, what is kept and refused, the file, and people beside the judge."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import run_geval
from support.stored_runs import hostile_tests, store_judged_run, store_run, write_config
from support.web_server import RunningServer, running_server

from geval_cli.extras.trust.agreement import agree
from geval_cli.extras.trust.labels import read_labels
from geval_cli.store.runs import RunStore


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One for all requests that change nothing; it has one run."""
    folder = tmp_path_factory.mktemp("refusing")
    store_judged_run(folder)
    with running_server(folder) as running:
        yield running


@pytest.fixture
def judged(tmp_path: Path) -> str:
    return store_judged_run(tmp_path)


@pytest.fixture
def server(tmp_path: Path, judged: str) -> Iterator[RunningServer]:
    with running_server(tmp_path) as running:
        yield running


def keep(server: RunningServer, run_id: str, *labels: dict[str, Any]) -> Any:
    return server.post(f"/api/runs/{run_id}/labels", {"labels": list(labels)})


def one(**changes: Any) -> dict[str, Any]:
    return {"id": "0.0.0", "metric": "coherence", "label": "pass", **changes}


class TestSheet:
    def test_it_lists_outputs_with_the_criteria_and_no_verdict(
        self, server: RunningServer, judged: str
    ) -> None:
        answer = server.get(f"/api/runs/{judged}/labels/sheet")
        [metric] = answer.json["metrics"]
        assert (metric["name"], metric["scale"], metric["steps"]) == (
            "coherence",
            [0, 1],
            ["Read it.", "Rate it."],
        )
        assert metric["criteria"].startswith("how well the sentences")
        outputs = answer.json["outputs"]
        assert [item["id"] for item in outputs] == ["0.0.0", "0.0.1", "1.0.0", "1.0.1"]
        assert not {"score", "status", "threshold", "reason"} & {key for item in outputs for key in item}
        assert "0.9" not in answer.text

    def test_a_draw_is_the_same_as_on_the_command_line(self, server: RunningServer, judged: str) -> None:
        drawn = server.get(f"/api/runs/{judged}/labels/sheet?draw=3&seed=7").json
        folder = server.settings.folder
        asked = ["label", judged, "--draw", "3", "--seed", "7", "--export", "sheet.jsonl"]
        assert run_geval(*asked, cwd=folder).code == 0
        rows = [json.loads(line) for line in (folder / "sheet.jsonl").read_text().splitlines()]
        assert [item["id"] for item in drawn["outputs"]] == [row["id"] for row in rows]
        assert drawn["draw"] == rows[0]["draw"] == "seed 7"

    def test_of_two_runs_both_outputs_are_there_and_equal_ones_once(
        self, server: RunningServer, judged: str, tmp_path: Path
    ) -> None:
        later = store_judged_run(tmp_path, good=("one",))
        sheet = f"/api/runs/{later}/labels/sheet?against={judged}&draw=9&annotator=anna"
        outputs = server.get(sheet).json["outputs"]
        found = sorted((item["id"], item["run_id"]) for item in outputs)
        both = [(f"1.0.{column}", run_id) for column in (0, 1) for run_id in sorted((judged, later))]
        assert [item for item in found if item[0][0] == "1"] == both
        assert [name for name, _ in found if name[0] == "0"] == ["0.0.0", "0.0.1"]
        [chosen] = [item for item in outputs if (item["id"], item["run_id"]) == ("1.0.0", judged)]
        assert keep(server, judged, one(id="1.0.0", annotator="anna")).status == 200
        again = {(item["id"], item["run_id"]): item["label"] for item in server.get(sheet).json["outputs"]}
        assert (again["1.0.0", judged], again["1.0.0", later]) == ("pass", None)
        page = f"/runs/{judged}/label/output?id=1.0.0&metric=coherence"
        assert "Tell me about two" in server.get(page).text
        assert "Tell me about two" not in server.get(f"{page}&blind=true").text
        assert chosen["label"] is None

    def test_own_labels_stand_beside_the_outputs_and_those_of_others_do_not(
        self, server: RunningServer, judged: str
    ) -> None:
        keep(server, judged, one(annotator="anna", note="kurz"), one(annotator="ben", label="fail"))
        found = server.get(f"/api/runs/{judged}/labels/sheet?annotator=anna").json["outputs"]
        assert [(item["label"], item["note"]) for item in found[:2]] == [("pass", "kurz"), (None, "")]

    @pytest.mark.parametrize(
        ("query", "status", "words"),
        [
            ("metric=cohrence", 404, "did you mean `coherence`?"),
            ("scale=5,1", 422, "not a scale"),
            ("scale=1", 422, "this must match"),
            ("draw=0", 422, "1 or more"),
            ("draw=many", 422, "whole number"),
            ("seed=-1", 422, "0 or more"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, refusing: RunningServer, query: str, status: int, words: str
    ) -> None:
        answer = refusing.get(f"/api/runs/latest/labels/sheet?{query}")
        assert answer.status == status
        assert words in answer.text


class TestKeeping:
    def test_labels_are_in_the_store_of_the_command(self, server: RunningServer, judged: str) -> None:
        answer = keep(server, judged, one(annotator=" anna ", note="gut", seed=7))
        assert (answer.status, answer.json) == (200, {"kept": 1, "replaced": 0})
        folder = server.settings.folder
        assert run_geval("label", judged, "--export", "out.jsonl", cwd=folder).code == 0
        [row] = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        assert (row["annotator"], row["label"], row["note"], row["draw"]) == ("anna", "pass", "gut", "seed 7")
        assert row["run_id"] == judged
        assert len(row["output_sha256"]) == 64

    def test_a_label_takes_the_place_of_the_same_persons(self, server: RunningServer, judged: str) -> None:
        keep(server, judged, one(annotator="anna"), one(annotator="ben"))
        assert keep(server, judged, one(annotator="anna", label="fail")).json == {"kept": 1, "replaced": 1}
        assert keep(server, judged, one(annotator="anna", label=0)).json == {"kept": 1, "replaced": 0}
        rows = server.get(f"/api/runs/{judged}/labels").json["labels"]
        assert [(row["annotator"], row["label"]) for row in rows] == [("anna", "fail"), ("ben", "pass")]

    def test_a_scale_is_chosen_once(self, server: RunningServer, judged: str) -> None:
        assert keep(server, judged, one(label=4, scale=[1, 5])).status == 200
        assert keep(server, judged, one(id="1.0.0", label=2)).status == 200
        answer = keep(server, judged, one(id="1.0.0", label=2, scale=[0, 10]))
        assert answer.status == 409
        assert "from 1 to 5 are kept" in answer.json["detail"]
        assert server.get(f"/api/runs/{judged}/labels/sheet?scale=1,7").status == 409
        assert server.get(f"/api/runs/{judged}/labels/sheet").json["metrics"][0]["scale"] == [1, 5]

    @pytest.mark.parametrize(
        ("label", "status", "words"),
        [
            (one(id="9.0.0"), 404, "no output 9.0.0"),
            (one(id="2.0.0"), 404, "no output 2.0.0"),  # the model broke there
            (one(metric="tone"), 404, "use one of: coherence"),
            (one(label=1.5), 422, "1.5 is not a label from 0 to 1"),
            (one(label=6, scale=[1, 5]), 422, "6 is not a label from 1 to 5"),
            (one(label="pass", scale=[1, 5]), 422, "pass is not a label from 1 to 5"),
            (one(scale=[5, 1]), 422, "this is not a scale"),
            (one(scale=[1]), 422, "/labels/0/scale"),
            (one(label=True), 422, "/labels/0/label"),
            (one(label="PASS"), 422, "/labels/0/label"),
            (one(label=None), 422, "/labels/0/label"),
            ({"id": "0.0.0", "metric": "coherence"}, 422, "this is required"),
            (one(output_sha256="0" * 64), 409, "another output"),
            (one(output_sha256="short"), 422, "/labels/0/output_sha256"),
            (one(annotator="a" * 201), 422, "at most 200 characters"),
            (one(note="\ud800"), 422, "half of a surrogate pair"),
            (one(who="anna"), 422, "there is no such field"),
            (one(id="1.0.0", label="fail"), 422, "by one annotator for one output"),
        ],
    )
    def test_what_is_no_label_is_refused_and_none_of_its_request_is_kept(
        self, refusing: RunningServer, label: dict[str, Any], status: int, words: str
    ) -> None:
        first = one(id="1.0.0", label=1, scale=[1, 5] if label.get("scale") == [1, 5] else None)
        answer = keep(refusing, "latest", first, label)
        assert answer.status == status
        assert words in answer.text.replace("/labels/1/", "/labels/0/")
        assert refusing.get("/api/runs/latest/labels").json["labels"] == []

    def test_infinity_and_too_many_are_refused(self, refusing: RunningServer) -> None:
        body = b'{"labels": [{"id": "0.0.0", "metric": "coherence", "label": Infinity}]}'
        sent = refusing.send("POST", "/api/runs/latest/labels", body, {"content-type": "application/json"})
        assert sent.status == 422
        assert keep(refusing, "latest", *[one()] * 1001).status == 422
        assert keep(refusing, "latest").status == 422

    def test_the_text_that_a_label_was_given_to_is_what_counts(
        self, server: RunningServer, judged: str, tmp_path: Path
    ) -> None:
        keep(server, judged, one(annotator="anna"))
        with_other_text(tmp_path, judged)
        assert (
            server.get(f"/api/runs/{judged}/labels/sheet?annotator=anna").json["outputs"][0]["label"] is None
        )
        assert server.get(f"/api/runs/{judged}/labels/review").json["rows"] == []


def with_other_text(folder: Path, run_id: str) -> None:
    """Let a kept label be about another text than the run's, as after outputs were replaced by hand."""
    runs = RunStore.open(folder / ".geval")
    labels = runs.labels()
    kept = [
        item.__class__(item.case_id, item.metric, item.annotator, "f" * 64, item.row)
        for item in labels.of_run(run_id)
    ]
    labels.put(run_id, kept)
    runs.close()


class TestAfterwards:
    def test_the_file_goes_back_into_the_command_and_into_agree(
        self, server: RunningServer, judged: str, tmp_path: Path
    ) -> None:
        sheet = server.get(f"/api/runs/{judged}/labels/sheet").json["outputs"]
        keep(server, judged, *(one(id=item["id"], annotator="anna", label="fail") for item in sheet))
        answer = server.get(f"/api/runs/{judged}/labels.jsonl")
        assert f'filename="labels-{judged}.jsonl"' in answer.headers["content-disposition"]
        file = tmp_path / "labels.jsonl"
        file.write_bytes(answer.body)
        assert len(read_labels(file).labels) == 4
        RunStore.open(tmp_path / ".geval").labels().remove(judged)
        imported = run_geval("label", judged, "--import", "labels.jsonl", cwd=tmp_path)
        assert imported.code == 0
        assert "kept 4 labels" in imported.stdout
        found = agree(file, judged, home=tmp_path / ".geval")
        assert found.matched == 4

    def test_disagreements_come_first_as_in_the_commands_review(
        self, server: RunningServer, judged: str
    ) -> None:
        keep(server, judged, one(), one(id="1.0.0"), one(id="0.0.1", label="fail", note="lies"))
        answer = server.get(f"/api/runs/{judged}/labels/review").json
        listed = json.loads(
            run_geval("label", judged, "--review", "--json", cwd=server.settings.folder).stdout
        )
        shown = [{**row, "output": None} for row in answer["rows"]]
        assert shown == [{**row, "output": None} for row in listed["rows"]]
        assert answer["rows"][0]["id"] == "0.0.1"
        assert (answer["flipped"], answer["broken"]) == (1, 0)

    def test_labels_of_a_removed_run_are_still_read(self, server: RunningServer, judged: str) -> None:
        keep(server, judged, one())
        assert run_geval("rm", judged, "--yes", cwd=server.settings.folder).code == 0
        assert len(server.get(f"/api/runs/{judged}/labels").json["labels"]) == 1
        assert server.get(f"/api/runs/{judged}/labels/sheet").status == 404


def test_a_run_without_metrics_says_how_to_get_one(server: RunningServer, tmp_path: Path) -> None:
    run = store_run(write_config(tmp_path, "plain.json", hostile_tests()))
    answer = server.get(f"/api/runs/{run}/labels/sheet")
    assert answer.status == 404
    assert "give an assertion a `metric`" in answer.json["hint"]
    assert server.get(f"/api/runs/{run}/labels").json["labels"] == []
    assert server.get("/api/runs/nothing/labels").status == 404


def test_labels_are_behind_the_servers_protections(tmp_path: Path) -> None:
    run = store_judged_run(tmp_path)
    with running_server(tmp_path, token="a-token-of-some-length") as server:
        path = f"/api/runs/{run}/labels"
        assert [server.get(path + end).status for end in ("", ".jsonl", "/sheet", "/review")] == [401] * 4
        assert keep(server, run, one()).status == 401
        allowed = {"authorization": "Bearer a-token-of-some-length"}
        body = json.dumps({"labels": [one()]}).encode()
        as_form = {**allowed, "content-type": "text/plain"}
        assert server.send("POST", path, body, as_form).status == 415
        from_elsewhere = {**allowed, "content-type": "application/json", "origin": "http://evil.example"}
        assert server.send("POST", path, body, from_elsewhere).status == 403
        assert server.get(path, **allowed).json["labels"] == []

import itertools
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.judge_server import STEPS, judge_sensibly, prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply
from support.web_server import KEY, HttpAnswer, RunningServer, judge_environ, running_server

import geval_cli
from geval_cli.assertions.geval_metric import GEvalFields, MetricDefaults, ScoringChoice, metric_from_spec
from geval_cli.extras.web.api.geval import GEvalRequest, _metric
from geval_cli.extras.web.api.runs import StartRequest
from geval_cli.extras.web.settings import ServerSettings
from geval_cli.specs.base import Scoring

NUMBERS = itertools.count(1)


def minimal() -> dict[str, Any]:
    """No more than is needed. Never asked before, so that the judge is asked and not the cache."""
    return {"name": "clarity", "input": f"What is 2 + 2? ({next(NUMBERS)})", "actualOutput": "It is 4."}


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=judge_sensibly) as judge:
        yield judge


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shared_judge: LoopbackServer) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("served")
    with running_server(folder, environ=judge_environ(shared_judge), scoring="single") as running:
        yield running


@pytest.fixture
def judge(shared_judge: LoopbackServer) -> LoopbackServer:
    """The judge of the server, with nothing recorded yet."""
    shared_judge.requests.clear()
    return shared_judge


def prompts(judge: LoopbackServer) -> str:
    return "\n".join(prompt_text(request.json) for request in judge.requests)


class TestAnswer:
    def test_is_a_score_from_0_to_1_and_a_reason(self, server: RunningServer) -> None:
        answer = server.post("/api/geval", {**minimal(), "criteria": "Is it right?"})
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json == {"score": 0.9, "reason": "Every step is there, in order."}

    def test_holds_how_it_came_about_on_request(self, server: RunningServer) -> None:
        answer = server.post("/api/geval?details=true", {**minimal(), "criteria": "Is it right?"})
        details = answer.json["details"]
        assert details["estimator"] == "single"
        assert details["rating"] == 9
        assert details["scoreRange"] == [0, 10]
        assert details["criteria"] == ["Is it right?"]
        assert details["criteriaFrom"] is None
        assert details["evaluationSteps"] == list(STEPS)
        assert details["evaluationParams"] == ["input", "actualOutput"]
        assert details["judge"] == "openai:gpt-4.1"
        assert details["usage"]["requests"] == 2
        assert details["latencyMs"] > 0

    def test_asks_the_default_judge_unless_the_server_has_another(
        self, tmp_path: Path, judge: LoopbackServer
    ) -> None:
        with running_server(tmp_path, environ=judge_environ(judge), grader="openai:tiny") as server:
            assert server.post("/api/geval", {**minimal(), "evaluationSteps": ["Look."]}).status == 200
        assert {request.json["model"] for request in judge.requests} == {"tiny"}

    def test_names_openai_gpt_4_1_by_default(self, server: RunningServer, judge: LoopbackServer) -> None:
        server.post("/api/geval", {**minimal(), "evaluationSteps": ["Look."]})
        assert {request.json["model"] for request in judge.requests} == {"gpt-4.1"}

    def test_says_so_when_the_judge_gives_no_reason(self, tmp_path: Path) -> None:
        with (
            LoopbackServer(respond=lambda body, headers: chat_reply('{"score": 5}')) as judge,
            running_server(tmp_path, environ=judge_environ(judge), scoring="single") as server,
        ):
            answer = server.post("/api/geval", {**minimal(), "evaluationSteps": ["Look."]})
        assert answer.json == {"score": 0.5, "reason": "The judge gave no reason."}


class TestFields:
    def test_sent_ones_are_what_the_judge_sees(self, server: RunningServer, judge: LoopbackServer) -> None:
        sent = {
            **minimal(),
            "criteria": "Is it right?",
            "expectedOutput": "Four, as EXPECTED",
            "context": "CONTEXT of sums",
            "retrievalContext": "RETRIEVED from a book",
        }
        answer = server.post("/api/geval?details=true", sent)
        assert answer.json["details"]["evaluationParams"] == [
            "input",
            "actualOutput",
            "expectedOutput",
            "context",
            "retrievalContext",
        ]
        for text in ("What is 2 + 2?", "It is 4.", "Four, as EXPECTED", "CONTEXT of sums", "RETRIEVED from"):
            assert text in prompts(judge)

    @pytest.mark.parametrize("field", ["expectedOutput", "context", "retrievalContext"])
    def test_not_sent_null_and_blank_are_the_same(
        self, server: RunningServer, judge: LoopbackServer, field: str
    ) -> None:
        asked = {**minimal(), "criteria": "Is it right?"}
        answers = [
            server.post("/api/geval?details=true", {**asked, **extra}).json["details"]["evaluationParams"]
            for extra in ({}, {field: None}, {field: "  "}, {field: []})
        ]
        assert answers == [["input", "actualOutput"]] * 4

    @pytest.mark.parametrize("field", ["expectedOutput", "context", "retrievalContext"])
    def test_take_a_list_of_texts_too(self, server: RunningServer, judge: LoopbackServer, field: str) -> None:
        sent = {**minimal(), "criteria": "Is it right?", field: ["the first one", "the second one"]}
        assert server.post("/api/geval", sent).status == 200
        assert "the first one" in prompts(judge)
        assert "the second one" in prompts(judge)

    def test_steps_that_were_sent_are_followed_as_they_are(
        self, server: RunningServer, judge: LoopbackServer
    ) -> None:
        sent = {**minimal(), "criteria": "Is it right?", "evaluationSteps": ["Add it up.", "Compare."]}
        answer = server.post("/api/geval?details=true", sent)
        assert answer.json["details"]["evaluationSteps"] == ["Add it up.", "Compare."]
        assert len(judge.requests) == 1

    def test_one_step_may_be_a_text(self, server: RunningServer) -> None:
        answer = server.post("/api/geval?details=true", {**minimal(), "evaluationSteps": "Add it up."})
        assert answer.json["details"]["evaluationSteps"] == ["Add it up."]

    def test_several_criteria_are_judged_each_for_itself(self, server: RunningServer) -> None:
        answer = server.post(
            "/api/geval?details=true", {**minimal(), "criteria": ["Is it right?", "Is it short?"]}
        )
        details = answer.json["details"]
        assert details["criteria"] == ["Is it right?", "Is it short?"]
        assert [part["score"] for part in details["parts"]] == [0.9, 0.9]
        # Names are spelled as in requests, however deep they are.
        assert not re.findall(r'"(\w+_\w+)"(?=[:,\]])', json.dumps(details))

    def test_the_mean_of_equal_scores_is_that_score(self, tmp_path: Path) -> None:
        """Clients compare it: the mean of three times 0.7 was 0.6999999999999998."""
        reply = chat_reply('{"score": 7, "reason": "It is right."}')
        with (
            LoopbackServer(respond=lambda body, headers: reply) as judge,
            running_server(tmp_path, environ=judge_environ(judge), scoring="single") as server,
        ):
            for count in (3, 6):
                criteria = [f"Is it right in respect {number}?" for number in range(count)]
                asked = {**minimal(), "criteria": criteria, "evaluationSteps": ["Read it."]}
                assert server.post("/api/geval", asked).json["score"] == 0.7, count

    def test_without_criteria_and_steps_the_name_is_the_criterion(
        self, server: RunningServer, judge: LoopbackServer
    ) -> None:
        answer = server.post("/api/geval?details=true", {**minimal(), "name": "order_relevance"})
        assert answer.json["details"]["criteriaFrom"] == "name"
        assert "order relevance" in answer.json["details"]["criteria"][0]
        assert "order relevance" in prompts(judge)

    def test_and_so_is_the_expected_output(self, server: RunningServer) -> None:
        answer = server.post("/api/geval?details=true", {**minimal(), "expectedOutput": "4"})
        assert answer.json["details"]["criteriaFrom"] == "name, expectedOutput"
        assert "expected output" in answer.json["details"]["criteria"][0]

    def test_an_empty_output_is_judged(self, server: RunningServer) -> None:
        assert server.post("/api/geval", {**minimal(), "actualOutput": ""}).status == 200

    @pytest.mark.parametrize("text", ["\u202eright to left", "é😀中", "a\x00b", "{{ 7 * 7 }}", "x" * 300_000])
    def test_any_text_is_judged(self, server: RunningServer, judge: LoopbackServer, text: str) -> None:
        assert server.post("/api/geval", {**minimal(), "actualOutput": text}).status == 200
        assert "49" not in prompts(judge)


class TestBadInput:
    def problems(self, server: RunningServer, value: Any) -> dict[str, str]:
        answer = server.post("/api/geval", value)
        assert answer.status == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["status"] == 422
        return {item["pointer"]: item["detail"] for item in answer.json["errors"]}

    def test_lists_every_problem_with_its_place(self, server: RunningServer, judge: LoopbackServer) -> None:
        found = self.problems(
            server, {"name": " ", "input": 7, "evaluationSteps": ["a", "", 3], "context": {}, "typo/~": 1}
        )
        assert found == {
            "#/name": "this must not be empty",
            "#/input": "this must be a string",
            "#/actualOutput": "this is required",
            "#/evaluationSteps/1": "this must not be empty",
            "#/evaluationSteps/2": "this must be a string",
            "#/context": "this must be a string or a list of strings",
            "#/typo~1~0": "there is no such field",
        }
        assert judge.requests == []

    @pytest.mark.parametrize("field", ["name", "input", "actualOutput"])
    def test_required_fields(self, server: RunningServer, field: str) -> None:
        rest = {name: value for name, value in minimal().items() if name != field}
        assert self.problems(server, rest) == {f"#/{field}": "this is required"}
        assert list(self.problems(server, {**minimal(), field: None})) == [f"#/{field}"]

    @pytest.mark.parametrize("value", [None, [], "text", 3])
    def test_a_body_that_is_no_object(self, server: RunningServer, value: Any) -> None:
        assert self.problems(server, value) == {"#": "this must be a JSON object"}

    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"",
            b"\xff\xfe",
            b'{"name": "\xed\xa0\x80"}',
            b"[" * 100_000,
            b'{"name": ' + b"1" * 9000 + b"}",
        ],
    )
    def test_a_body_that_is_no_json(self, server: RunningServer, body: bytes) -> None:
        answer = server.send("POST", "/api/geval", body, {"content-type": "application/json"})
        assert answer.status in (400, 422)
        assert answer.headers["content-type"] == "application/problem+json"

    @pytest.mark.parametrize(("field", "status"), [("actualOutput", 200), ("name", 422)])
    def test_half_of_a_surrogate_pair(self, server: RunningServer, field: str, status: int) -> None:
        body = json.dumps({**minimal(), field: "?"}).replace('"?"', '"\\ud800"').encode()
        answer = server.send("POST", "/api/geval", body, {"content-type": "application/json"})
        assert answer.status == status

    def test_a_query_that_makes_no_sense(self, server: RunningServer) -> None:
        answer = server.post("/api/geval?details=perhaps", minimal())
        assert answer.status == 422
        assert answer.json["errors"][0]["query"] == "details"


class TestJudgeTrouble:
    def answer_of(self, tmp_path: Path, reply: Reply) -> HttpAnswer:
        with (
            LoopbackServer(respond=lambda body, headers: reply) as judge,
            running_server(tmp_path, environ=judge_environ(judge)) as server,
        ):
            return server.post("/api/geval", {**minimal(), "evaluationSteps": ["Look."]})

    def test_a_missing_key_is_503_with_what_to_do(self, tmp_path: Path) -> None:
        with running_server(tmp_path) as server:
            answer = server.post("/api/geval", minimal())
        assert answer.status == 503
        assert "OPENAI_API_KEY" in answer.json["detail"]
        assert answer.json["hint"]

    def test_an_unknown_judge_is_503(self, tmp_path: Path) -> None:
        with running_server(tmp_path, grader="opnai:gpt-4.1") as server:
            answer = server.post("/api/geval", minimal())
        assert answer.status == 503
        assert "opnai" in answer.json["detail"]

    def test_a_refused_key_is_502_without_the_key(self, tmp_path: Path) -> None:
        answer = self.answer_of(tmp_path, error_reply(401, f"Incorrect API key provided: {KEY}."))
        assert answer.status == 502
        assert KEY not in answer.text
        assert answer.json["detail"]

    def test_a_request_that_the_judge_refuses_is_502(self, tmp_path: Path) -> None:
        answer = self.answer_of(tmp_path, error_reply(404, "The model `gpt-4.1` does not exist"))
        assert answer.status == 502
        assert "does not exist" in answer.text

    def test_a_reply_without_verdict_is_502_with_an_excerpt(self, tmp_path: Path) -> None:
        answer = self.answer_of(tmp_path, chat_reply("I would rather not."))
        assert answer.status == 502
        assert "I would rather not." in answer.text

    def test_a_judge_that_cannot_be_reached_is_503(self, tmp_path: Path) -> None:
        environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
        with running_server(tmp_path, environ=environ, evaluation_timeout_s=0.3) as server:
            answer = server.post("/api/geval", minimal())
        assert answer.status == 503
        assert answer.headers["content-type"] == "application/problem+json"


class TestLoad:
    def test_a_client_that_goes_takes_its_work_with_it(self, tmp_path: Path) -> None:
        with (
            LoopbackServer(respond=lambda body, headers: Reply(hang=True)) as judge,
            running_server(tmp_path, environ=judge_environ(judge)) as server,
        ):
            curl = subprocess.Popen(
                [
                    "curl",
                    "-s",
                    "-H",
                    "content-type: application/json",
                    "-d",
                    json.dumps(minimal()),
                    f"{server.url}/api/geval",
                ]
            )
            judge.wait_for_requests(1)
            curl.kill()
            curl.wait()
            judge.wait_for_hang_ups(1)

    def test_a_client_that_goes_leaves_the_same_work_of_others(self, tmp_path: Path) -> None:
        with (
            LoopbackServer(respond=judge_sensibly) as judge,
            running_server(tmp_path, environ=judge_environ(judge), scoring="single") as server,
        ):
            judge.hold()
            asked = {**minimal(), "evaluationSteps": ["Look."]}
            command = ["curl", "-s", "-H", "content-type: application/json", "-d", json.dumps(asked)]
            curls = [
                subprocess.Popen([*command, f"{server.url}/api/geval"], stdout=subprocess.PIPE)
                for _ in range(2)
            ]
            judge.wait_for_requests(1)
            curls[0].kill()
            judge.release()
            answers = [curl.communicate(timeout=60)[0] for curl in curls]
        assert json.loads(answers[1])["score"] == 0.9

    def test_too_much_at_once_is_429_with_when_to_come_again(self, tmp_path: Path) -> None:
        with (
            LoopbackServer(respond=judge_sensibly) as judge,
            running_server(tmp_path, environ=judge_environ(judge), max_evaluations=1) as server,
        ):
            judge.hold()
            waiting = threading.Thread(target=server.post, args=("/api/geval", minimal()))
            waiting.start()
            judge.wait_for_requests(1)
            answer = server.post("/api/geval", minimal())
            judge.release()
            waiting.join()
            assert server.post("/api/geval", minimal()).status == 200
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1

    def test_a_judge_that_takes_too_long_is_503(self, tmp_path: Path) -> None:
        with (
            LoopbackServer(respond=lambda body, headers: Reply(hang=True)) as judge,
            running_server(tmp_path, environ=judge_environ(judge), evaluation_timeout_s=0.2) as server,
        ):
            answer = server.post("/api/geval", minimal())
            judge.wait_for_hang_ups(1)
        assert answer.status == 503
        assert "0.2 s" in answer.json["detail"]


class TestDocumentedCalls:
    """The calls of the user documentation, by curl, as they stand there."""

    DOCS = Path(__file__).parents[3] / "docs" / "reference" / "http-api.md"
    COMMANDS = re.findall(
        r"^curl -X POST .*?^}'$", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )

    def test_their_fields_are_those_of_the_table(self) -> None:
        table = self.DOCS.read_text(encoding="utf-8").partition("| field | |")[2].partition("\n\n")[0]
        named = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE))
        assert named == {
            field.alias: "required" if field.is_required() else "optional"
            for field in GEvalRequest.model_fields.values()
        }

    def test_the_options_of_a_run_are_those_that_the_page_names(self) -> None:
        page = self.DOCS.read_text(encoding="utf-8")
        [listed] = re.findall(r"It also takes (.*?), as in\s+`geval run`", page, re.DOTALL)
        taken = StartRequest.model_fields.keys() - {"config", "unless_running"}
        assert set(re.findall(r"`(\w+)`", listed)) == taken
        assert '`"unless_running": true`' in page

    def test_there_are_two(self) -> None:
        assert len(self.COMMANDS) == 2

    @pytest.mark.parametrize("command", COMMANDS)
    def test_run_as_written(self, server: RunningServer, command: str) -> None:
        assert "http://localhost:3001/api/geval" in command
        here = command.replace("http://localhost:3001", server.url)
        finished = subprocess.run(
            ["bash", "-c", here], capture_output=True, text=True, timeout=60, check=True
        )
        answer = json.loads(finished.stdout)
        assert set(answer) == {"score", "reason"}
        assert 0 <= answer["score"] <= 1
        assert isinstance(answer["reason"], str)


@pytest.mark.parametrize("scoring", [None, "single", "samples"])
@pytest.mark.parametrize("samples", [None, 3])
def test_a_request_makes_the_metric_of_an_assertion(scoring: Scoring | None, samples: int | None) -> None:
    settings = ServerSettings(folder=Path(), environ={}, scoring=scoring, samples=samples)
    body = {
        "name": "order",
        "input": "q",
        "actualOutput": "a",
        "criteria": "as {{it}} is",
        "evaluationSteps": ["x"],
    }
    metric, derived_from = _metric(GEvalRequest.model_validate(body), settings)
    spec = GEvalFields(type="g-eval", metric="order", criteria="as {{it}} is", evaluation_steps=("x",))
    choice = MetricDefaults(scoring=(ScoringChoice(scoring, samples),))
    assert metric == metric_from_spec(spec, defaults=choice)
    assert derived_from is None


def test_all_samples_are_taken_for_an_answer_without_a_verdict() -> None:
    settings = ServerSettings(folder=Path(), environ={}, samples="upto:12")
    body = {"name": "order", "input": "q", "actualOutput": "a", "criteria": "It is so."}
    metric, _ = _metric(GEvalRequest.model_validate(body), settings)
    assert (metric.scoring, metric.samples, metric.stop_error) == ("samples", 12, None)


def test_one_function_makes_metrics() -> None:
    package = Path(geval_cli.__file__).parent
    makers = [
        path.name
        for path in package.rglob("*.py")
        if re.search(r"(?<!class )\bMetric\(", path.read_text("utf-8"))
    ]
    assert makers == ["geval_metric.py"]

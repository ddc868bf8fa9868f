"""What judges are asked before there is an output: seen from the server, and in who pays for it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.geval_command import clean_environment, run_geval
from support.judge_server import is_steps_request, judge_sensibly
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply

TESTS = 4
CONFIG = """\
prompts: ["Write about {{ topic }}."]
providers: [{ id: "openai:m", config: { max_retries: 0 } }]
defaultTest:
  options: { provider: openai:judge }
  assert: [{ type: g-eval, criteria: The output is about the topic. }]
tests: [{ vars: { topic: a } }, { vars: { topic: b } }, { vars: { topic: c } }, { vars: { topic: d } }]
"""


def run(folder: Path, server: LoopbackServer) -> dict[str, object]:
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="k")
    words = ("run", "config.yaml", "--no-progress", "-o", "results.json")
    finished = run_geval(*words, cwd=folder, env=env)
    assert finished.code in (0, 3), finished
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def answer(body, headers) -> Reply:
    return chat_reply("Some text.") if body["model"] == "m" else judge_sensibly(body, headers)


def test_steps_are_asked_for_once_while_no_output_is_there_yet(tmp_path):
    with LoopbackServer(respond=answer) as server, ThreadPoolExecutor(1) as pool:
        server.hold()
        running = pool.submit(run, tmp_path, server)
        server.wait_for_requests(TESTS + 1)
        before_any_answer = [request.json for request in server.requests]
        server.release()
        results = running.result()
    assert [is_steps_request(body) for body in before_any_answer if body["model"] == "judge"] == [True]
    assert sum(is_steps_request(request.json) for request in server.requests) == 1
    assert len(server.requests) == 2 * TESTS + 1
    assert results["summary"]["passed"] == TESTS


def test_what_was_asked_early_is_paid_for_once(tmp_path):
    with LoopbackServer(respond=answer) as server:
        usage = run(tmp_path, server)["summary"]["usage"]["judge"]
    assert (usage["requests"], usage["cached_requests"]) == (TESTS + 1, 0)
    assert usage["input_tokens"] == 7 * (TESTS + 1)


def test_steps_are_not_paid_for_when_the_model_refuses_at_once(tmp_path):
    def refuse_to_write(body, headers):
        return error_reply(400, "not today") if body["model"] == "m" else judge_sensibly(body, headers)

    with LoopbackServer(respond=refuse_to_write) as server:
        summary = run(tmp_path, server)["summary"]
    assert summary["errored"] == TESTS
    assert summary["usage"]["judge"]["requests"] == 0


def test_steps_that_no_output_came_to_be_judged_by_are_accounted_for(tmp_path):
    def refuse_to_write(body, headers):
        return error_reply(400, "not today") if body["model"] == "m" else judge_sensibly(body, headers)

    with LoopbackServer(respond=refuse_to_write) as server, ThreadPoolExecutor(1) as pool:
        server.hold()
        running = pool.submit(run, tmp_path, server)
        server.wait_for_requests(TESTS + 1)
        server.release()
        summary = running.result()["summary"]
    assert summary["errored"] == TESTS
    assert summary["usage"]["judge"]["input_tokens"] == 7
    assert summary["usage"]["judge"]["requests"] == 1


def test_a_judge_that_cannot_write_steps_is_told_of_in_every_test_and_asked_no_more_than_needed(tmp_path):
    def refuse_to_judge(body, headers):
        return answer(body, headers) if body["model"] == "m" else error_reply(400, "no steps here")

    with LoopbackServer(respond=refuse_to_judge) as server:
        results = run(tmp_path, server)["results"]
    errors = [result["assertions"][0]["error"]["message"] for result in results]
    assert len(errors) == TESTS
    assert all("no steps here" in message for message in errors)
    assert sum(request.json["model"] == "judge" for request in server.requests) <= TESTS

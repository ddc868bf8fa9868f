"""Going on with runs: `--resume`, `--resume-from`, `--retry-errors`, by the real command."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.loopback import LoopbackServer, chat_reply, error_reply
from support.product import Finished, Product

from geval_cli.engine.runner import StopSignal
from geval_cli.records import RunStatus
from geval_cli.report.sanitize import output_digest
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import resume_run
from geval_cli.store.locks import RunLocks
from geval_cli.store.runs import RunStore, StoredLabel
from geval_cli.store.state import open_state

TESTS = 6


def config(**changes: Any) -> dict[str, Any]:
    tests = [
        {"vars": {"x": f"word {number}"}, "assert": [{"type": "contains", "value": "fine"}]}
        for number in range(TESTS)
    ]
    provider = {"id": "openai:m", "config": {"max_retries": 0}}
    return {"prompts": ["{{ x }}"], "providers": [provider], "tests": tests, **changes}


class Model:
    """Says that all is fine, except to the words that it fails on."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.asked: list[str] = []

    def respond(self, body: Any, headers: Mapping[str, str]) -> Any:
        del headers
        word = body["messages"][0]["content"]
        self.asked.append(word)
        if word in self.failing:
            return error_reply(400, "this I refuse")
        return chat_reply(f"{word} is fine")


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def server(model: Model) -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=model.respond) as server:
        yield server


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


def run_id(finished: Finished) -> str:
    return str(finished.results["run"]["id"])


def statuses(finished: Finished) -> list[str]:
    return [case["status"] for case in finished.cases]


def make_unfinished(product: Product, lost: int) -> None:
    """Have the latest run look as a kill leaves it: still running, without the last `lost` results.

    It ends before it notes what it spent, which a run does now and then: on a busy machine also one as short as these.
    """
    home = product.folder / "state"
    with RunStore.open(home)._database.connect() as connection:
        connection.execute("DELETE FROM results WHERE test_index >= ?", (TESTS - lost,))
        connection.execute("UPDATE origins SET spent = NULL")
        connection.execute(
            "UPDATE runs SET status = 'running', summary = NULL,"
            " record = json_set(record, '$.status', 'running', '$.finished_at', NULL, '$.duration_ms', NULL)"
        )
    connection.close()


def test_only_what_is_missing_is_asked_and_the_run_keeps_its_id(
    product: Product, server: LoopbackServer, model: Model
) -> None:
    first = product.run(config(), server)
    make_unfinished(product, lost=2)
    model.asked.clear()
    resumed = product.run(config(), server, "--resume", "--cache-dir", str(product.folder / "empty"))
    assert sorted(model.asked) == ["word 4", "word 5"]
    assert "4 of 6 cases are done" in resumed.stderr
    assert run_id(resumed) == run_id(first)
    assert [case["output"] for case in resumed.cases] == [case["output"] for case in first.cases]
    assert resumed.results["summary"]["total"] == TESTS
    assert resumed.results["summary"]["usage"] == first.results["summary"]["usage"]
    assert resumed.results["run"]["status"] == "completed"


def test_report_of_a_resumed_run_draws_the_labels_that_it_has(
    product: Product, server: LoopbackServer
) -> None:
    test = {"vars": {"x": "word"}, "assert": [{"type": "contains", "value": "fine", "metric": "tone"}]}
    tests = [{**test, "vars": {"x": f"word {number}"}} for number in range(TESTS)]
    first = product.run(config(tests=tests), server)
    make_unfinished(product, lost=2)
    labelled = first.cases[0]
    digest = output_digest(labelled["output"])
    row = {"id": labelled["id"], "metric": "tone", "label": "pass", "output_sha256": digest}
    with closing(RunStore.open(product.folder / "state")) as runs:
        runs.labels().put(run_id(first), [StoredLabel(labelled["id"], "tone", "", digest, row)])
    report = product.folder / "report.html"
    product.run(config(tests=tests), server, "--resume", "-o", str(report))
    assert "Judge and human labels: tone" in report.read_text("utf-8")
    product.run(config(tests=tests), server, "-o", str(report))
    assert "Judge and human labels: tone" not in report.read_text("utf-8")


def test_answers_of_a_killed_run_are_found_again_without_the_cache_of_others(
    product: Product, server: LoopbackServer, model: Model
) -> None:
    product.run(config(), server)
    product.run(config(), server, "--no-cache")
    make_unfinished(product, lost=2)
    model.asked.clear()
    resumed = product.run(config(), server, "--no-cache", "--resume")
    assert model.asked == []
    assert resumed.code == 0


def test_without_the_cache_a_resumed_run_reads_nothing_that_is_older_than_itself(
    product: Product, server: LoopbackServer, model: Model
) -> None:
    product.run(config(), server)
    product.run(config(), server, "--no-cache", "--cache-dir", str(product.folder / "other"))
    make_unfinished(product, lost=1)
    model.asked.clear()
    product.run(config(), server, "--no-cache", "--resume-from", "latest")
    assert model.asked == ["word 5"]


_SAID = '{"role": "user", "content": {{ turn.input | dump }}}'
_ANSWERED = '{"role": "assistant", "content": {{ turn.output | dump }}}'
BOUND_PROMPTS = {
    "turns as text": "{% for turn in _conversation %}({{ turn.input }}: {{ turn.output }}) {% endfor %}{{ x }}",
    "turns as messages": f"[{{% for turn in _conversation %}}{_SAID}, {_ANSWERED}, {{% endfor %}}"
    '{"role": "user", "content": "{{ x }}"}]',
    "a stored output": "{{ said }} {{ x }}",
}


@pytest.mark.parametrize("prompt", BOUND_PROMPTS.values(), ids=BOUND_PROMPTS)
@pytest.mark.parametrize("lost", [1, 3, TESTS - 1])
def test_tests_that_depend_on_earlier_ones_are_asked_as_in_a_run_that_was_not_interrupted(
    lost: int, prompt: str, product: Product, server: LoopbackServer
) -> None:
    bound = config(
        prompts=[prompt], dialect="promptfoo", defaultTest={"options": {"transform": "output + '!'"}}
    )
    for number, test in enumerate(bound["tests"]):
        test["metadata"] = {"conversationId": str(number % 2)}
        if "said" in prompt:
            test["options"] = {"storeOutputAs": "said"}
    first = product.run(bound, server, "--repeat", "2")
    before = [request.json["messages"] for request in server.requests]
    make_unfinished(product, lost=lost)
    server.requests.clear()
    resumed = product.run(
        bound, server, "--resume", "--repeat", "2", "--cache-dir", str(product.folder / "new")
    )
    assert [request.json["messages"] for request in server.requests] == before[-2 * lost :]
    assert [case["output"] for case in resumed.cases] == [case["output"] for case in first.cases]
    assert [case["prompt"] for case in resumed.cases] == [case["prompt"] for case in first.cases]


def test_errored_cases_are_done_again_in_their_run(
    product: Product, server: LoopbackServer, model: Model
) -> None:
    model.failing = {"word 1", "word 3"}
    first = product.run(config(), server)
    assert first.code == 3
    model.failing = {"word 3"}
    model.asked.clear()
    second = product.run(config(), server, "--retry-errors")
    assert sorted(model.asked) == ["word 1", "word 3"]
    assert (run_id(second), second.code) == (run_id(first), 3)
    assert statuses(second) == ["passed"] * 3 + ["error"] + ["passed"] * 2


def test_a_finished_run_cannot_be_resumed_by_the_flag_but_shown_by_its_id(
    product: Product, server: LoopbackServer, model: Model
) -> None:
    first = product.run(config(), server)
    flag = product.run(config(), server, "--resume")
    assert (flag.code, "no unfinished run" in flag.stderr) == (2, True)
    model.asked.clear()
    named = product.run(config(), server, "--resume-from", run_id(first))
    assert (named.code, model.asked, statuses(named)) == (0, [], ["passed"] * TESTS)


def test_a_run_of_another_config_is_not_taken_for_this_one(product: Product, server: LoopbackServer) -> None:
    product.run(config(), server)
    make_unfinished(product, lost=1)
    other = product.folder / "other.yaml"
    other.write_text(json.dumps(config(description="another")), encoding="utf-8")
    finished = product.run(other, server, "--resume")
    assert (finished.code, "no unfinished run of other.yaml" in finished.stderr) == (2, True)


def test_what_changed_is_said_and_nothing_is_sent(
    product: Product, server: LoopbackServer, model: Model
) -> None:
    (product.folder / "context.txt").write_text("old", encoding="utf-8")
    tests = [{"vars": {"x": "word", "api_key": "sk-very-secret-1"}, "context": "file://context.txt"}]
    before = config(tests=tests, env={"OPENAI_API_KEY": "sk-very-secret-2"})
    product.run(before, server, "--var", "city=Paris")
    make_unfinished(product, lost=TESTS)
    model.asked.clear()
    (product.folder / "context.txt").write_text("new", encoding="utf-8")
    tests = [{"vars": {"x": "other", "api_key": "sk-very-secret-3"}, "context": "file://context.txt"}]
    after = config(tests=tests, env={"OPENAI_API_KEY": "sk-very-secret-4"})
    refused = product.run(after, server, "--resume", "--grader", "echo", "--var", "city=Rome")
    assert (refused.code, model.asked) == (2, [])
    for line in (
        "- --grader: not given -> echo",
        '- --var city: "Paris" -> "Rome"',
        '- tests/0/vars/x: "word" -> "other"',
        "- tests/0/vars/api_key: *** -> ***",
        "- file context.txt: its content",
    ):
        assert line in refused.stderr
    assert "very-secret" not in refused.stderr


def test_another_key_is_the_same_run(
    product: Product, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"id": "openai:m", "config": {"api_key": "{{ env.THE_KEY }}"}}
    monkeypatch.setenv("THE_KEY", "sk-one-0123456789")
    product.run(config(providers=[named]), server)
    make_unfinished(product, lost=1)
    monkeypatch.setenv("THE_KEY", "sk-two-0123456789")
    assert product.run(config(providers=[named]), server, "--resume").code == 0


def test_an_env_value_that_changed_is_said(
    product: Product, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TONE", "kind")
    product.run(config(prompts=["{{ env.TONE }} {{ x }}"]), server)
    make_unfinished(product, lost=1)
    monkeypatch.setenv("TONE", "harsh")
    refused = product.run(config(prompts=["{{ env.TONE }} {{ x }}"]), server, "--resume")
    assert "- prompts: a value that comes from the environment" in refused.stderr


def test_a_run_that_is_really_going_on_is_left_alone(product: Product, server: LoopbackServer) -> None:
    first = product.run(config(), server)
    make_unfinished(product, lost=1)
    locks = RunLocks(product.folder / "state")
    assert locks.acquire(run_id(first))
    refused = product.run(config(), server, "--resume")
    assert refused.code == 2
    assert f"is still in progress in process {os.getpid()} on" in refused.stderr
    locks.release_all()
    assert product.run(config(), server, "--resume").code == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--resume", "--resume-from", "x"], "cannot be combined"),
        (["--resume-from", "x"], "there is no run `x`"),
        (["--resume"], "no unfinished run of config.yaml"),
        (["--retry-errors"], "no run of config.yaml"),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    product: Product, server: LoopbackServer, options: list[str], what: str
) -> None:
    refused = product.run(config(), server, *options)
    assert (refused.code, what in refused.stderr) == (2, True)
    assert server.requests == []


def test_a_run_of_an_older_geval_is_not_resumed_but_shown(product: Product, server: LoopbackServer) -> None:
    first = product.run(config(), server)
    home = product.folder / "state"
    store = RunStore.open(home)
    stored = store.find(run_id(first)).run
    store.begin(structs.replace(stored, id="older", config_digest="0", status=RunStatus.RUNNING))
    store.close()
    refused = product.run(config(), server, "--resume-from", "older")
    assert (refused.code, "run older cannot be resumed" in refused.stderr) == (2, True)


def test_repeats_and_columns_have_a_place_each(tmp_path: Path, server: LoopbackServer, model: Model) -> None:
    path = tmp_path / "config.yaml"
    provider = {"id": "openai:m", "config": {"base_url": server.base_url}}
    both = config(prompts=["{{ x }}", "again {{ x }}"], providers=[provider])
    path.write_text(json.dumps(both), encoding="utf-8")
    request = RunRequest(path, {**os.environ, "OPENAI_API_KEY": "sk-x"}, repeats=3)

    def done(home: Path, resume_from: str | None) -> list[tuple[int, int, int]]:
        prepared = prepare(replace(request, resume_from=resume_from))
        with open_state(home, {}) as state:
            resumed = resume_run(prepared, state.runs) if resume_from else None
            report = asyncio.run(
                run_evaluation(prepared, state, listen=lambda _: None, stop=StopSignal(), resumed=resumed)
            )
            return [(item.test_index, item.repeat_index, item.column) for item in report.results()]

    places = done(tmp_path / "home", None)
    assert len(set(places)) == len(places) == TESTS * 3 * 2
    store = RunStore.open(tmp_path / "home")
    with store._database.connect() as connection:
        connection.execute("DELETE FROM results WHERE (test_index + repeat_index + column_index) % 3 = 0")
    connection.close()
    store.close()
    model.asked.clear()
    assert done(tmp_path / "home", "latest") == places
    assert model.asked == []


def test_the_latest_of_several_unfinished_runs_goes_on(
    product: Product, server: LoopbackServer, model: Model
) -> None:
    first, second = (product.run(config(), server) for _ in range(2))
    make_unfinished(product, lost=1)
    resumed = product.run(config(), server, "--resume")
    assert run_id(resumed) == run_id(second)
    assert run_id(product.run(config(), server, "--resume")) == run_id(first)


def test_what_a_killed_run_had_spent_beyond_its_results_counts_on(
    product: Product, server: LoopbackServer
) -> None:
    """A kill takes results that were paid for; what was noted of their cost stays with the run."""
    priced = {
        "id": "openai:m",
        "config": {"price": {"input": 10_000, "output": 10_000}},
    }  # 10 cents an answer
    whole = config(providers=[priced])
    product.run(whole, server)
    make_unfinished(product, lost=2)
    spent = {
        "generation": {"requests": 6, "input_tokens": 42, "output_tokens": 18, "cost_usd": 0.6},
        "judge": {"requests": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0},
    }
    noted = {role: {**usage, "cached_requests": 0} for role, usage in spent.items()}
    with RunStore.open(product.folder / "state")._database.connect() as connection:
        connection.execute("UPDATE origins SET spent = ?", (json.dumps(noted),))
    connection.close()
    resumed = product.run(whole, server, "--resume", "--cache-dir", str(product.folder / "empty"))
    usage = resumed.results["summary"]["usage"]["generation"]
    assert usage["cost_usd"] == pytest.approx(0.8)
    assert (usage["requests"], usage["input_tokens"]) == (8, 56)


def test_answers_of_a_killed_run_that_are_done_again_stay_paid_for(product: Product, model: Model) -> None:
    """Their results go; the money does not come back."""
    is_refused = True

    def respond(body: Any, headers: Mapping[str, str]) -> Any:
        if body["model"] != "judge":
            return model.respond(body, headers)
        if is_refused and "word 1" in json.dumps(body["messages"]):
            return error_reply(400, "this I refuse")
        return chat_reply('{"reason": "good", "pass": true, "score": 1}')

    judge = {"id": "openai:judge", "config": {"max_retries": 0}}
    rubric = {"type": "llm-rubric", "value": "It is fine.", "provider": judge}
    priced = {
        "id": "openai:m",
        "config": {"price": {"input": 10_000, "output": 10_000}},
    }  # 10 cents an answer
    whole = config(providers=[priced], defaultTest={"assert": [rubric]})
    with LoopbackServer(respond=respond) as server:
        first = product.run(whole, server)
        assert statuses(first).count("error") == 1
        make_unfinished(product, lost=0)
        is_refused = False
        empty = ("--cache-dir", str(product.folder / "empty"))
        resumed = product.run(whole, server, "--resume-from", "latest", "--retry-errors", *empty)
    assert statuses(resumed) == ["passed"] * TESTS
    usage = resumed.results["summary"]["usage"]["generation"]
    assert (usage["requests"], usage["cost_usd"]) == (7, pytest.approx(0.7))


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (["--filter-first-n", "4"], ["--filter-first-n", "5"], "--filter-first-n"),
        (["--filter-pattern", "word"], ["--filter-pattern", "wor"], "--filter-pattern"),
        (["--filter-metadata", "kind=a"], ["--filter-metadata", "kind=aa"], "--filter-metadata"),
        (["--filter-providers", "openai"], ["--filter-providers", "m"], "--filter-providers"),
        (["--filter-prompts", "x"], ["--filter-prompts", "[x]"], "--filter-prompts"),
        (["--filter-sample", "4"], ["--filter-sample", "5"], "--filter-sample"),
        (["--filter-sample", "4", "--seed", "1"], ["--filter-sample", "4", "--seed", "2"], "--seed"),
        (["--filter-first-n", "4"], [], "--filter-first-n"),
        ([], ["--filter-first-n", "4"], "--filter-first-n"),
    ],
)
def test_another_selection_is_another_run(
    product: Product, server: LoopbackServer, model: Model, before: list[str], now: list[str], named: str
) -> None:
    whole = config()
    for number, test in enumerate(whole["tests"]):
        test |= {"description": f"word {number}", "metadata": {"kind": "aaa"}}
    product.run(whole, server, *before, "--max-requests", "2", "-j", "1")
    model.asked.clear()
    refused = product.run(whole, server, *now, "--resume")
    assert (refused.code, model.asked) == (2, [])
    assert named in refused.stderr
    assert product.run(whole, server, *before, "--resume").code == 0

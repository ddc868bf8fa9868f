"""Runs in batches: what they ask, what they pay for, what they survive, and that their results are those of any run."""

import asyncio
import base64
import json
import os
import re
import zlib
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from typing import Any, get_args

import pytest
from aiohttp import web
from support.batch_server import BatchServer
from support.batch_trial import BatchSuite, Ended, comparable
from support.batch_vendors import VENDORS, RemoteBatch
from support.pictures import png

from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.errors import ConfigError, ExitCode, UsageError
from geval_cli.events import BatchesAdvanced, RunEvent
from geval_cli.extras.aws.batches import BedrockBatches
from geval_cli.extras.batches import driver
from geval_cli.extras.batches.care import BatchKeeper
from geval_cli.gateway.budget import Budget
from geval_cli.providers.preset_table import BatchApiName
from geval_cli.records import RunStatus
from geval_cli.runs.evaluate import exit_code
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.store.cache import ResponseCache

WIRES = tuple(VENDORS)
READERS = ("openai", "anthropic", "google")
"""Those whose results have each a form of its own."""


TESTS = 12
"""As many are enough where eight requests make a batch."""

BATCHED = TESTS - 1
"""The answers, and the verdicts, that come from batches: the first of each is asked for directly."""

FEWEST_IN_A_BATCH = driver.FEWEST_IN_A_BATCH


@dataclass
class Suite(BatchSuite):
    tests: int = TESTS


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few tests make batches, and Bedrock, which takes none of less than 100 requests, take part in all tables."""
    monkeypatch.setattr(driver, "FEWEST_IN_A_BATCH", 8)
    monkeypatch.setattr(BedrockBatches, "fewest_requests", 1)


@pytest.fixture
def server() -> Any:
    with BatchServer() as server:
        yield server


def test_every_batch_api_is_among_them() -> None:
    assert {*get_args(BatchApiName)} - {"", *WIRES} == set(), (
        "describe them in tests/support/batch_vendors.py"
    )


def paid_once(server: BatchServer, requests: int) -> bool:
    """Whether `requests` were answered by batches, each once."""
    return len(server.paid) == requests and set(server.paid.values()) == {1}


def asked_twice(server: BatchServer) -> dict[str, int]:
    """The answers that were given more than once, directly or by a batch."""
    return {text: count for text, count in server.asked.items() if count > 1}


@pytest.fixture(scope="module")
def direct_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """A direct run, by wire."""
    found = {}
    for wire in (*WIRES, "groq"):
        with BatchServer() as server:
            suite = Suite(tmp_path_factory.mktemp(wire), server, wire=wire)
            found[wire] = suite.run(is_batched=False)
    return found


def without_keys(results: Any) -> Any:
    """Results without what hangs on the address of the server, and on the cache."""
    differs = {"criterion_key", "criterion_parts", "rating_key", "location"}
    if isinstance(results, dict):
        return {key: without_keys(item) for key, item in results.items() if key not in differs}
    return [without_keys(item) for item in results] if isinstance(results, list) else results


@pytest.mark.parametrize("wire", [*WIRES, "groq"])
def test_results_are_those_of_a_direct_run_at_half_the_price(tmp_path, server, direct_runs, wire):
    direct = direct_runs[wire]
    batched = Suite(tmp_path, server, wire=wire).run()
    assert comparable(without_keys(batched.results)) == comparable(without_keys(direct.results))
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)
    assert (
        batched.usage["generation"]["batched_requests"]
        == batched.usage["judge"]["batched_requests"]
        == BATCHED
    )
    assert batched.usage["generation"]["requests"] == direct.usage["generation"]["requests"] == TESTS
    # One scout at the full price of $0.00012, the others at half of it.
    assert direct.usage["generation"]["cost_usd"] == pytest.approx(TESTS * 0.00012)
    assert batched.usage["generation"]["cost_usd"] == pytest.approx((1 + BATCHED / 2) * 0.00012)
    assert batched.results[0]["latency_ms"] > 0
    assert [item["latency_ms"] for item in batched.results[1:]] == [None] * BATCHED
    assert batched.results[5]["assertions"][0]["latency_ms"] is None
    kinds = [
        (item["role"], item["state"], item["requests"], item["answered"]) for item in batched.run["batches"]
    ]
    assert kinds == [("generation", "completed", BATCHED, BATCHED), ("judge", "completed", BATCHED, BATCHED)]
    assert all(item["remote_id"] and item["ended_at"] for item in batched.run["batches"])
    assert exit_code(batched.report) == exit_code(direct.report)


def test_only_the_judge_goes_into_batches_when_that_is_asked_for(tmp_path, server):
    ended = Suite(tmp_path, server).run(is_batched=False, batch_judge=True)
    assert [item["role"] for item in ended.run["batches"]] == ["judge"]
    assert ended.usage["generation"]["batched_requests"] == 0
    assert all(item["latency_ms"] for item in ended.results)


def test_a_version_of_the_library_without_aiohttp_will_do(tmp_path, server, monkeypatch):
    import openai

    def absent(**options: Any) -> None:
        raise RuntimeError(
            "To use the aiohttp client you must have installed the package with the `aiohttp` extra"
        )

    monkeypatch.setattr(openai, "DefaultAioHttpClient", absent)
    Suite(tmp_path, server).run()
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)


def test_keys_stand_in_no_file_of_the_home_folder(tmp_path, server, monkeypatch):
    monkeypatch.setenv("OPENAI_ORG_ID", "somebody-elses")
    Suite(tmp_path, server).run()
    assert {tuple(headers.getall("authorization")) for headers in server.headers} == {("Bearer sk-batch",)}
    assert not any("openai-organization" in headers for headers in server.headers)
    for path in (tmp_path / "home").rglob("*"):
        assert not path.is_file() or b"sk-batch" not in path.read_bytes(), path


KILLS = {
    "openai": (
        ("chat", "before"),
        ("upload", "before"),
        *(("upload", "after"), ("create", "before"), ("create", "after")),
        *(("get", "after"), ("content", "before"), ("content", "after")),
        *(("upload", "after"), ("create", "after"), ("content", "after")),
    ),
    "anthropic": (("create", "before"), ("create", "after"), ("get", "after"), ("content", "after")),
    "azure": (("file", "after"), ("create", "after"), ("content", "after")),
    "google": (("put", "after"), ("create", "after"), ("content", "after")),
    "mistral": (("upload", "after"), ("create", "after"), ("content", "after")),
    "bedrock": (
        *(("object", "before"), ("object", "after"), ("create", "before"), ("create", "after")),
        *(("get", "after"), ("content", "before"), ("content", "after")),
        *(("create", "after"), ("content", "after")),
    ),
    "together": (("put", "after"), ("preprocess", "after"), ("create", "after"), ("content", "after")),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(("wire", "kills"), KILLS.items(), ids=KILLS)
def test_a_run_that_is_killed_in_every_state_pays_for_each_request_once(
    tmp_path, server, direct_runs, wire, kills
):
    import openai  # noqa: F401 - once here, and not in each process

    suite = Suite(tmp_path, server, wire=wire)
    for number, (operation, when) in enumerate(kills):
        assert suite.run_until_killed(operation, when, resume_latest=number > 0), (operation, when)
    ended = suite.run(resume_latest=True)
    assert set(server.paid.values()) == {1}
    assert without_keys(strip(ended.results)) == without_keys(strip(direct_runs[wire].results))
    batches = server.batches.values()
    names = [batch.vendor.read(item)[0] for batch in batches for item in batch.requests]
    assert len(names) == len(set(names)), "a request was submitted twice"


def strip(value: Any) -> Any:
    """A result without what a kill may change: what came from the cache, and what was paid before."""
    if isinstance(value, dict):
        return {
            key: strip(item)
            for key, item in value.items()
            if key not in {"cached", "usage", "latency_ms", "cost_usd_generated"}
        }
    return [strip(item) for item in value] if isinstance(value, list) else value


FAULTS = [
    ("openai", {"upload": ["503", "lost"], "create": ["lost"], "content": ["503", "lost", "cut"]}),
    ("openai", {"create": ["500"], "get": ["503", "429", "lost", "404"]}),
    ("openai", {"create": ["429", "lost"]}),
    ("anthropic", {"create": ["lost"], "content": ["503", "lost", "cut"]}),
    ("anthropic", {"create": ["429", "500"], "get": ["503", "lost", "404"]}),
    ("azure", {"file": ["503", "lost"], "create": ["503", "500"]}),
    ("google", {"upload": ["503", "lost"], "create": ["429", "500"], "content": ["503", "lost", "cut"]}),
    ("google", {"put": ["429", "lost"], "get": ["503", "lost", "404"]}),
    ("mistral", {"create": ["429", "lost"], "content": ["503", "lost", "cut"]}),
    ("together", {"upload": ["503", "lost"], "preprocess": ["429", "500"]}),
    ("together", {"put": ["503", "307", "lost"], "create": ["503", "500"]}),
    ("bedrock", {"object": ["503", "lost"], "create": ["429", "lost"], "content": ["503", "lost", "cut"]}),
    ("bedrock", {"create": ["500"], "get": ["503", "lost", "404"]}),
]


@pytest.mark.parametrize(
    ("wire", "faults"), FAULTS, ids=[f"{wire} {' '.join(faults)}" for wire, faults in FAULTS]
)
def test_faults_of_the_batch_api_cost_nothing_twice_and_lose_nothing(tmp_path, server, wire, faults):
    server.faults.update({operation: list(what) for operation, what in faults.items()})
    ended = Suite(tmp_path, server, wire=wire).run()
    assert not any(server.faults.values())
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)
    assert {item["status"] for item in ended.results} <= {"passed", "failed"}


@pytest.mark.parametrize(
    ("fewest", "size", "batched"), [(9, 9, [9, 9]), (BATCHED, None, [BATCHED, BATCHED]), (40, None, [])]
)
def test_what_is_too_little_for_a_vendors_batch_is_sent_directly(
    tmp_path, server, monkeypatch, fewest, size, batched
):
    monkeypatch.setattr(BedrockBatches, "fewest_requests", fewest)
    options = {} if size is None else {"size": size}
    ended = Suite(tmp_path, server, wire="bedrock", options=options).run()
    assert [item["requests"] for item in ended.run["batches"]] == batched
    assert len(server.direct) + sum(server.paid.values()) == 2 * TESTS + 1  # with that for evaluation steps
    assert not asked_twice(server)
    told = "bedrock:converse:m takes batches of at least 40 requests; 11 are sent directly"
    assert (told in ended.notices) is (not batched)


def test_a_size_that_is_too_little_for_a_vendors_batch_is_a_problem(tmp_path, server, monkeypatch):
    monkeypatch.setattr(BedrockBatches, "fewest_requests", 100)
    with pytest.raises(ConfigError) as caught:
        Suite(tmp_path, server, wire="bedrock", options={"size": 50}).run()
    [problem] = caught.value.problems
    assert problem.message == "`size` is 50, but a batch must have at least 100 requests"


@pytest.mark.parametrize("wire", WIRES)
def test_what_expired_is_asked_again_and_nothing_else(tmp_path, server, wire):
    server.expired_share = 0.7
    ended = Suite(tmp_path, server, wire=wire).run()
    assert [item["state"] for item in ended.run["batches"]][:2] == ["expired", "completed"]
    assert [item["answered"] for item in ended.run["batches"]][:1] == [3]
    assert not asked_twice(server)
    assert len(ended.results) == TESTS


def test_what_expired_twice_is_sent_directly(tmp_path):
    class Expiring(BatchServer):
        def _finish(self, batch: Any) -> None:
            batch.expired_share = 1.0
            super()._finish(batch)

    with Expiring() as expiring:
        ended = Suite(tmp_path, expiring).run()
        assert len(expiring.direct) == 2 * TESTS + 1
        assert not expiring.paid
    assert ended.usage["generation"]["batched_requests"] == 0
    assert len(ended.results) == TESTS


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        *(("openai", 400), ("openai", 429), ("openai", 500), ("anthropic", 400), ("anthropic", 500)),
        *(("google", 400), ("google", 429), ("mistral", 400), ("bedrock", 400)),
    ],
)
@pytest.mark.parametrize("codes", ["numbers", "texts"])
def test_an_error_in_the_results_is_that_of_a_direct_answer(tmp_path, server, wire, status, codes):
    server.status_of = lambda body: status if "topic 7." in json.dumps(body) else 200
    if codes == "texts":
        server.spoil_file = lambda file: re.sub(
            rb'("(?:status_code|code|errorCode)": )(\d+)', rb'\1"\2"', file
        )
    ended = Suite(tmp_path, server, wire=wire, config={"max_retries": 1}).run()
    by_status = [item for item in ended.results if item["status"] == "error"]
    if status == 400:
        assert len(by_status) == 1
        assert by_status[0]["error"]["type"] == "ProviderRequestError"
        assert f"answered HTTP {status}: a line of {status}" in by_status[0]["error"]["message"]
        assert by_status[0]["score"] is None
    else:  # a repetition is sent directly, where nothing is wrong
        assert not by_status
        assert any("topic 7." in json.dumps(body) for body in server.direct)
    assert set(server.paid.values()) == {1}
    assert not asked_twice(server)


@pytest.mark.parametrize("wire", [*READERS, "bedrock"])
def test_an_answer_that_a_content_filter_took_away_is_that_of_a_direct_run(tmp_path, server, wire):
    server.is_filtered = lambda body: "about topic 7." in json.dumps(body) and "score" not in json.dumps(body)
    direct = Suite(tmp_path / "direct", server, wire=wire).run(is_batched=False)
    batched = Suite(tmp_path / "batched", server, wire=wire).run()
    assert comparable(batched.results) == comparable(direct.results)
    assert "about topic 7" not in batched.results[7]["output"]
    assert set(server.paid.values()) == {1}


def test_a_verdict_that_a_content_filter_took_away_is_an_error_in_batches_too(tmp_path, server):
    server.is_filtered = lambda body: "about topic 7." in json.dumps(body) and "score" in json.dumps(body)
    direct = Suite(tmp_path / "direct", server).run(is_batched=False)
    batched = Suite(tmp_path / "batched", server).run()
    assert comparable(batched.results) == comparable(direct.results)
    assert "withheld" in batched.results[7]["assertions"][0]["error"]["message"]
    assert set(server.paid.values()) == {1}


class CrowdedServer(BatchServer):
    """Others make batches of their own, so that ours is no longer on the first page of the list."""

    async def _list(self, request: Any) -> Any:
        if "create" in self.log and len(self.batches) == 1:
            vendor = self._vendor(request)
            for number in range(5):
                other = RemoteBatch(f"{vendor.id_prefix}other_{number}", vendor, [], "another", "file-x")
                self.batches[other.id] = other
                self._finish(other)
        return await super()._list(request)


@pytest.mark.parametrize("wire", WIRES)
def test_a_batch_is_found_on_any_page_of_a_list(tmp_path, wire):
    with CrowdedServer() as server:
        server.page_size = 2
        server.faults["create"] = ["lost"]
        Suite(tmp_path, server, wire=wire).run()
        assert "other_4" in str(server.batches)
        assert server.log.count("list") >= (1 if wire in ("together", "bedrock") else 3)
        assert paid_once(server, 2 * BATCHED)
        assert server.log.count("create") == 2


class StuckServer(BatchServer):
    """Whichever page of the list is asked for: it has the same batches of others, or none, and names a next one."""

    is_stuck = True
    shown = 3

    async def _list(self, request: web.Request) -> web.Response:
        if not self.is_stuck:
            return await super()._list(request)
        vendor = self._vendor(request)
        others = [
            RemoteBatch(f"{vendor.id_prefix}other_{number}", vendor, [], "another", "file-x")
            for number in range(self.shown)
        ]
        page = vendor.listed(others, {**request.query, vendor.page_key: "", "nameContains": ""}, 100)
        return web.json_response({**page, "has_more": True, vendor.next_key: f"page-{len(self.log)}"})


@pytest.mark.parametrize(
    ("wire", "shown"),
    [*((wire, 3) for wire in WIRES if wire != "together"), ("google", 0), ("bedrock", 0)],
)
def test_a_list_without_end_is_left_and_no_batch_is_created_again(tmp_path, wire, shown):
    with StuckServer() as server:
        server.shown = shown
        server.faults["create"] = ["lost"]
        suite = Suite(tmp_path, server, wire=wire)
        stopped = suite.run()
        assert stopped.reason is StopReason.BATCHES
        what = "only repeats earlier ones" if shown else "is as empty as those before"
        assert any(f"a page of its list of batches that {what}" in text for text in stopped.notices)
        assert any("the batch was checked 5 times" in text for text in stopped.notices)
        assert server.log.count("list") == 5 * (2 if shown else 100)
        assert server.log.count("create") == 1
        server.is_stuck = False
        assert len(suite.run(resume_latest=True).results) == TESTS
        assert set(server.paid.values()) == {1}
        assert not asked_twice(server)


def test_lines_that_are_there_twice_or_of_others_change_nothing(tmp_path, server):
    def spoil(lines: list[Any]) -> list[Any]:
        foreign = [{**lines[0], "custom_id": name} for name in ("f" * 64, "x", "")]
        return [*foreign, *lines, *reversed(lines)]

    server.spoil = spoil
    ended = Suite(tmp_path, server).run()
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)
    assert all(item["answered"] == BATCHED for item in ended.run["batches"])


@pytest.mark.parametrize("is_first", [True, False])
def test_of_an_error_and_an_answer_for_one_request_the_answer_counts(tmp_path, server, is_first):
    def spoil(lines: list[Any]) -> list[Any]:
        error = {"code": "server_error", "message": "try again"}
        broken = [{**line, "response": None, "error": error} for line in lines]
        return [*broken, *lines] if is_first else [*lines, *broken]

    server.spoil = spoil
    ended = Suite(tmp_path, server).run()
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)
    assert all((item["answered"], item["failed"]) == (BATCHED, 0) for item in ended.run["batches"])


def a_judge_that_is_often_unreadable(body: Any) -> str:
    """Answer a chat request; no verdict can be read from every third verdict, not even from the second try."""
    text = "\n".join(str(message["content"]) for message in body["messages"])
    number = zlib.crc32(text.partition("An earlier reply")[0].encode())
    if '"winner"' in text or '"best"' in text:
        return json.dumps({"reason": "so", "winner": str(1 + number % 2), "best": 1 + number % 2})
    if '"steps"' in text:
        return json.dumps({"steps": ["Read it.", "Rate it."]})
    if '"score"' in text:
        verdict = {"reason": "so", "pass": True, "score": 1}
        return "no idea" if number % 3 == 0 else json.dumps(verdict)
    return f"answer {number}"


_RUBRIC = {"type": "llm-rubric", "value": "It is about the topic."}
_BEST = {"type": "select-best", "value": "The best one."}
_EACH = {"type": "pairwise", "criteria": "The better one.", "against": "all"}


@pytest.mark.parametrize("checks", [[_RUBRIC, _BEST], [_EACH, _RUBRIC], [_RUBRIC, _EACH, _BEST]])
def test_a_reply_that_cannot_be_read_is_paid_for_once_however_long_its_case_waits(tmp_path, checks):
    """Outputs that are compared wait for further waves, in which all that is known of them is done again."""
    with BatchServer(a_judge_that_is_often_unreadable) as server:
        suites = [BatchSuite(tmp_path / name, server, tests=25) for name in ("batched", "direct")]
        for suite in suites:
            document = json.loads(suite.path.read_text(encoding="utf-8"))
            document["prompts"].append("Say one sentence about topic {{ number }}.")
            document["defaultTest"]["assert"] = checks
            suite.path.write_text(json.dumps(document), encoding="utf-8")
        batched = suites[0].run()
        assert max(server.paid.values()) == 1
        direct = suites[1].run(is_batched=False)
    assert comparable(without_keys(batched.results)) == comparable(without_keys(direct.results))
    errors = [item["error"] for result in direct.results for item in result["assertions"] if item["error"]]
    assert len(errors) > 2
    for counted in ("requests", "cached_requests", "input_tokens", "output_tokens"):
        assert batched.usage["judge"][counted] == direct.usage["judge"][counted]


CHANGING = {
    "a prompt": ("generation", "A sentence about topic {{ number }} {{ range(9999) | random }}.", {}),
    "an output": ("judge", "A sentence about topic {{ number }}.", {"transform": "file://t.py"}),
}
"""What makes another request each time, with the role of the one it is sent to."""


@pytest.mark.parametrize("is_left", [False, True], ids=["waits", "is resumed again and again"])
@pytest.mark.parametrize("name", CHANGING)
def test_requests_that_differ_each_time_are_batched_in_vain_once(tmp_path, server, name, is_left):
    role, prompt, options = CHANGING[name]
    suite = Suite(tmp_path, server)
    document = json.loads(suite.path.read_text(encoding="utf-8"))
    document["prompts"] = [prompt]
    document["defaultTest"]["options"] |= options
    suite.path.write_text(json.dumps(document), encoding="utf-8")
    code = "import time\n\ndef get_transform(output, context):\n    return f'{output} {time.time_ns()}'\n"
    (tmp_path / "t.py").write_text(code, encoding="utf-8")
    ended = suite.run(waits=not is_left)
    for _ in range(4):
        if ended.reason is not None:
            ended = suite.run(waits=False, resume_latest=True)
    assert len(ended.results) == TESTS
    assert not any(item["error"] for item in ended.results)
    assert [item["role"] for item in ended.run["batches"]].count(role) == 1
    assert sum("are paid for in vain" in text for text in ended.notices) == 1
    assert ended.usage[role]["batched_requests"] == 0


@pytest.mark.parametrize("money", [0.007, 0.01])
def test_a_batch_that_was_refused_takes_no_part_of_a_budget(tmp_path, server, money):
    server.token_limit, server.refusal = 0, "invalid_file"
    ended = Suite(tmp_path, server).run(budget=Budget(max_cost_usd=money), max_cost=money)
    assert any("failed: too much" in text for text in ended.notices)
    assert (ended.reason, len(ended.results)) == (None, TESTS)
    assert not server.paid


def test_a_result_that_stays_missing_is_told_and_asked_again(tmp_path, server):
    server.spoil = lambda lines: [line for line in lines if "topic 7." not in json.dumps(line)]
    ended = Suite(tmp_path, server).run()
    assert len(ended.results) == TESTS
    assert any("1 results are missing" in text for text in ended.notices)
    assert (
        server.asked["A sentence about topic 7."] == 2
    )  # once in the batch whose line got lost, once directly


@pytest.mark.parametrize("wire", ["openai", "mistral", "together", "google"])
def test_an_answer_with_an_error_beside_it_is_none(tmp_path, server, wire):
    """As in a direct reply."""

    def spoil(lines: list[Any]) -> list[Any]:
        error = {"code": 500, "message": "the answer broke off"}
        return [{**line, "error": error} if "topic 7." in json.dumps(line) else line for line in lines]

    server.spoil = spoil
    ended = Suite(tmp_path, server, wire=wire).run()
    assert asked_twice(server) == {"A sentence about topic 7.": 2}  # once in the batch, once directly
    assert {item["status"] for item in ended.results} <= {"passed", "failed"}
    assert [batch["failed"] for batch in ended.run["batches"]] == [1, 0]


class TwoFilesServer(BatchServer):
    """Answers about Google's batches name two files: the first lines of results, and the others."""

    async def _get(self, request: web.Request) -> web.Response:
        shown = json.loads((await super()._get(request)).text or "")
        if (named := shown.get("response")) is not None:
            shown["response"] = {"responsesFile": f"{named['responsesFile']}-rest"}
        return web.json_response(shown)

    async def _content(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        request.match_info["id"] = name.removesuffix("-rest")
        lines = ((await super()._content(request)).text or "").splitlines(keepends=True)
        is_rest, half = name.endswith("-rest"), len(lines) // 2
        return web.Response(text="".join(lines[half:] if is_rest else ["<html>\n", *lines[:half]]))


def test_a_broken_line_in_the_first_of_two_files_costs_none_of_the_second(tmp_path):
    with TwoFilesServer() as server:
        ended = Suite(tmp_path, server, wire="google").run()
        assert len(ended.results) == TESTS
        assert not asked_twice(server)


def without_id(line: bytes) -> bytes:
    return json.dumps({**json.loads(line), "custom_id": None, "key": None, "recordId": None}).encode()


def unanswered(line: bytes) -> bytes:
    named = {key: value for key, value in json.loads(line).items() if key in {"custom_id", "key", "recordId"}}
    return json.dumps(named).encode()


SPOILT_LINES = {
    "truncated": lambda line: line[: len(line) // 2],
    "garbage": lambda _: b"\x00\xff\xfe garbage",
    "bad UTF-8": lambda line: line.replace(b"topic ", b"topic \xff"),
    "HTML": lambda _: b"<html><body>Bad gateway</body></html>",
    "an empty line": lambda _: b"",
    "another JSON": lambda _: b"[1, 2]",
    "null": lambda _: b"null",
    "id null": without_id,
    "neither answer nor error": unanswered,
    "many digits": lambda _: b"9" * 5000,
}


def spoil_lines(file: bytes) -> bytes:
    """Spoil the lines of the first topics, each in a way of its own."""
    lines = file.split(b"\n")
    for number, how in enumerate(SPOILT_LINES.values(), start=1):
        lines = [how(line) if b"topic %d." % number in line else line for line in lines]
    return b"\n".join(lines)


@pytest.mark.parametrize("wire", READERS)
def test_a_line_that_cannot_be_read_costs_no_other_line(tmp_path, server, wire):
    server.spoil_file = spoil_lines
    ended = Suite(tmp_path, server, wire=wire).run()
    assert {item["status"] for item in ended.results} <= {"passed", "failed"}
    # Once in the batch whose line cannot be read, once directly; the lines of verdicts do not name the topic.
    topics = {f"A sentence about topic {number}.": kind for number, kind in enumerate(SPOILT_LINES, start=1)}
    assert {topics[text]: times for text, times in asked_twice(server).items()} == dict.fromkeys(
        SPOILT_LINES, 2
    )
    assert any(f"{len(topics)} of {BATCHED} requests are sent again" in text for text in ended.notices)


@pytest.mark.parametrize("wire", READERS)
def test_a_line_that_can_be_read_the_second_time_is_not_paid_for_again(tmp_path, server, wire):
    reads = []

    def spoil(file: bytes) -> bytes:
        reads.append(file)
        return spoil_lines(file) if len(reads) == 1 else file

    server.spoil_file = spoil
    Suite(tmp_path, server, wire=wire).run()
    assert len(reads) == 3
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)


HARMLESS_FILES = {
    "CRLF": lambda file: file.replace(b"\n", b"\r\n"),
    "a byte order mark": lambda file: b"\xef\xbb\xbf" + file,
    "the other way round": lambda file: b"\n".join(reversed(file.split(b"\n"))),
    "every line twice": lambda file: file + file,
    "blank lines": lambda file: file.replace(b"\n", b"\n\n \n"),
    "no end of line": lambda file: file.rstrip(b"\n"),
    "garbage at the end": lambda file: file + b"<!-- cache miss -->",
    "ends of lines within answers": lambda file: file.replace(
        b"A sentence", "A\u2028\u2029\u0085 sentence".encode()
    ),
}


@pytest.mark.parametrize(("kind", "wire"), [*zip(HARMLESS_FILES, cycle(WIRES), strict=False)])
def test_a_file_of_another_form_is_read_at_once(tmp_path, server, wire, kind):
    server.spoil_file = HARMLESS_FILES[kind]
    ended = Suite(tmp_path, server, wire=wire).run()
    assert server.log.count("content") == 2
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)
    assert len(ended.results) == TESTS


UNREADABLE_FILES = (b"", b"<html>\n<p>Sign in</p>\n</html>", b"{}", b"[]", b"null", b"\x1f\x8b\x00")


@pytest.mark.parametrize(("file", "wire"), [*zip(UNREADABLE_FILES, cycle(WIRES), strict=False)])
def test_a_file_of_which_nothing_can_be_read_stops_the_run_and_is_fetched_when_it_is_resumed(
    tmp_path, server, wire, file
):
    server.spoil_file = lambda _: file
    suite = Suite(tmp_path, server, wire=wire)
    stopped = suite.run()
    assert stopped.reason is StopReason.BATCHES
    assert any("no result of batch" in text for text in stopped.notices), stopped.notices
    server.spoil_file = lambda file: file
    ended = suite.run(resume_latest=True)
    assert len(ended.results) == TESTS
    assert set(server.paid.values()) == {1}
    assert not asked_twice(server)


ODD_BODIES = ("<html><body>Sign in</body></html>", "", "{}", "[]", "null", '"ok"', "7", '{"id": null}')
ODD_OPERATIONS = {"openai": ("upload", "create", "get"), "anthropic": ("create", "get")}
ODD_ELSEWHERE = [
    *(("google", name) for name in ("upload", "put", "create", "get")),
    *(("together", name) for name in ("upload", "preprocess", "create")),
    *(("azure", "file"), ("mistral", "create")),
]


ODD_ANSWERS = [
    (wire, operation, ODD_BODIES[first : first + many], shift)
    for shift, (wire, operations) in enumerate(ODD_OPERATIONS.items())
    for operation in operations
    # Four in a row are not yet too many; a batch that could not be created is looked for in the list in between.
    for many in ([2] if operation == "create" else [4])
    for first in range(0, len(ODD_BODIES), many)
]


@pytest.mark.parametrize(("wire", "operation", "bodies", "shift"), ODD_ANSWERS)
def test_an_odd_answer_of_the_batch_api_costs_nothing_twice(tmp_path, server, wire, operation, bodies, shift):
    """Where one API has done what was asked, the other one has not; their odd answers take turns."""
    hows = ["page" if (place + shift) % 2 else "done" for place in range(len(bodies))]
    server.faults[operation] = [f"{how}:{body}" for how, body in zip(hows, bodies, strict=True)]
    server.faults["list"] = [f"page:{bodies[0]}"]
    ended = Suite(tmp_path, server, wire=wire).run()
    assert not server.faults[operation]
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)
    assert {item["status"] for item in ended.results} <= {"passed", "failed"}
    assert any("the batch is checked again later" in text for text in ended.notices)


def test_a_list_of_batches_without_anything_around_it_is_the_whole_list(tmp_path, server):
    server.faults["create"] = ["503"]
    server.faults["list"] = ['page:[{"id": "other", "status": "completed"}]']
    Suite(tmp_path, server).run()
    assert not server.faults["list"]
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)


@pytest.mark.parametrize(("wire", "operation"), ODD_ELSEWHERE)
def test_an_odd_answer_of_any_vendor_costs_nothing_twice(tmp_path, server, wire, operation):
    server.faults[operation] = ["page:<html>Sign in</html>", "done:[]"]
    server.faults["list"] = ["page:null"]
    ended = Suite(tmp_path, server, wire=wire).run()
    assert not server.faults[operation]
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)
    assert any("the batch is checked again later" in text for text in ended.notices)


@pytest.mark.parametrize(
    ("wire", "operation"), [(w, o) for w, names in ODD_OPERATIONS.items() for o in names]
)
def test_a_batch_api_that_answers_oddly_on_and_on_is_given_up(tmp_path, server, wire, operation):
    server.faults[operation] = [f"page:{body}" for body in ODD_BODIES * 125]
    suite = Suite(tmp_path, server, wire=wire)
    stopped = suite.run()
    tries = 1000 - len(server.faults[operation])
    if operation == "upload":  # no batch can be there: what was asked is sent directly
        assert stopped.reason is None
        assert (len(server.direct), len(stopped.results)) == (2 * TESTS + 1, TESTS)
        assert tries <= 10
    else:
        assert stopped.reason is StopReason.BATCHES
        assert tries == 5
        assert any("the batch was checked 5 times" in text for text in stopped.notices), stopped.notices
        server.faults[operation] = []
        assert len(suite.run(resume_latest=True).results) == TESTS
    assert not asked_twice(server)


@pytest.mark.parametrize("wire", ["openai", "google"])
def test_a_provider_that_takes_fewer_tokens_gets_smaller_batches_one_by_one(tmp_path, server, wire):
    server.token_limit = 10
    ended = Suite(tmp_path, server, wire=wire).run()
    assert paid_once(server, 2 * BATCHED)
    assert not asked_twice(server)
    done = [len(batch.requests) for batch in server.batches.values() if batch.state == "completed"]
    assert max(done) <= 10
    assert any("accepts no more tokens at once" in text for text in ended.notices)


def test_a_file_that_azure_still_reads_is_no_trouble_and_one_that_it_never_reads_is_given_up(
    tmp_path, server
):
    assert Suite(tmp_path / "slow", server, wire="azure").run().notices == ()
    assert server.log.count("file") > len(server.batches)
    assert server.log.count("list") == 0
    server.batches.clear()
    server.faults["file"] = ['page:{"status": "pending"}'] * 1000
    ended = Suite(tmp_path / "stuck", server, wire="azure", options={"max_wait": "0s"}).run()
    assert not server.batches
    assert any("its file was not read in time" in text for text in ended.notices)
    assert {item["status"] for item in ended.results} <= {"passed", "failed"}


def test_batches_are_no_larger_than_the_config_says(tmp_path, server):
    Suite(tmp_path, server, options={"size": 8}).run()
    assert sorted(len(batch.requests) for batch in server.batches.values()) == [3, 3, 8, 8]
    assert paid_once(server, 2 * BATCHED)


def test_few_requests_are_sent_directly(tmp_path, server, monkeypatch):
    monkeypatch.setattr(driver, "FEWEST_IN_A_BATCH", FEWEST_IN_A_BATCH)
    ended = Suite(tmp_path, server, tests=15).run()
    assert not server.batches
    assert len(server.direct) == 31
    assert ended.run["batches"] == []


def test_the_first_request_shows_at_once_that_a_key_is_refused(tmp_path, server):
    server.faults["chat"] = ["401"] * 3
    ended = Suite(tmp_path, server).run()
    assert not server.batches
    assert {item["error"]["type"] for item in ended.results} == {"ProviderAuthError"}


def test_two_runs_that_ask_the_same_share_their_batches(tmp_path, server):
    first, second = (Suite(tmp_path, server) for _ in range(2))

    async def both() -> list[Any]:
        return await asyncio.gather(first.arun(), second.arun())

    ended = asyncio.run(both())
    assert set(server.paid.values()) == {1}
    assert comparable(strip(ended[0].results)) == comparable(strip(ended[1].results))
    assert len({item["id"] for run in ended for item in run.run["batches"]}) == len(server.batches)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_runs_that_left_with_the_same_batch_are_both_resumed(tmp_path, server, order):
    suite = Suite(tmp_path, server)
    server.is_held = True
    left = [suite.run(waits=False).run["id"] for _ in range(2)]
    assert len(server.batches) == 1
    server.is_held = False
    for place in order:
        ended = suite.run(is_batched=False, resume_from=left[place])
        assert (ended.reason, len(ended.results)) == (None, TESTS)
        assert any(item["role"] == "judge" for item in ended.run["batches"]) == (place == order[0])
    assert set(server.paid.values()) == {1}


def test_what_another_run_is_about_to_submit_is_taken_off_its_list_before_it_is_sent_directly(
    tmp_path, server
):
    server.is_held = True
    suite = Suite(tmp_path, server)
    suite.run(waits=False)
    with (
        closing(ResponseCache.open(tmp_path / "home")) as cache,
        closing(cache._database.connect()) as connection,
    ):
        with connection:  # as it is between a run's asking and its batch
            connection.execute("UPDATE batch_requests SET batch_id = NULL WHERE rowid = 1")
        of_the_row = "SELECT count(*) FROM batch_requests WHERE rowid = 1"
        assert connection.execute(of_the_row).fetchone()[0] == 1
        directly = len(server.direct)
        suite.run(waits=False)  # all but this one are in a batch: it is the first of its kind to be sent
        assert len(server.direct) > directly
        assert connection.execute(of_the_row).fetchone()[0] == 0


def test_a_run_without_the_cache_joins_no_other(tmp_path, server):
    Suite(tmp_path, server).run()
    Suite(tmp_path, server).run(reads_cache=False)
    assert len(server.paid) == 4 * BATCHED
    assert set(server.paid.values()) == {1}


def test_nobody_waits_with_no_wait_and_resuming_goes_on(tmp_path, server):
    suite = Suite(tmp_path, server)
    server.is_held = True
    first = suite.run(waits=False)
    assert (first.reason, exit_code(first.report, first.reason)) == (StopReason.SUBMITTED, ExitCode.PENDING)
    assert first.report.run.status is RunStatus.INTERRUPTED
    assert [item["state"] for item in first.run["batches"]] == ["submitted"]
    assert any(
        f"`geval run {suite.path} --resume`" in text and "`geval batches cancel" in text
        for text in first.notices
    )
    # Without --batch: a run goes on as it began.
    again = suite.run(is_batched=False, waits=False, resume_latest=True)
    assert again.reason is StopReason.SUBMITTED
    server.is_held = False
    last = suite.run(is_batched=False, resume_latest=True)
    assert last.reason is None
    assert len(last.results) == TESTS
    assert paid_once(
        server, 2 * BATCHED - 1
    )  # what was scouted is judged directly, as the second run's first request
    assert not any("at the provider" in text or "continue" in text for text in last.notices)


def test_a_stop_leaves_the_batches_and_names_both_ways_on(tmp_path, server):
    def stop_when_waiting(event: RunEvent, stop: StopSignal) -> None:
        if isinstance(event, BatchesAdvanced):
            stop.request(StopReason.SIGINT)

    server.is_held = True
    suite = Suite(tmp_path, server)
    ended = suite.run(listen=stop_when_waiting)
    assert exit_code(ended.report, ended.reason) is ExitCode.INTERRUPTED
    assert any(f"1 batch with {BATCHED} requests continues" in text for text in ended.notices)
    assert not any(batch.is_cancelled for batch in server.batches.values())
    server.is_held = False
    assert len(suite.run(resume_latest=True).results) == TESTS
    assert set(server.paid.values()) == {1}


def test_a_batch_that_takes_too_long_is_given_up(tmp_path, server):
    server.is_held = True
    server.looks = 0  # a cancelled batch ends at its next look
    ended = Suite(tmp_path, server, options={"max_wait": "0s", "fallback": "error"}).run()
    errors = [item["error"]["message"] for item in ended.results if item["status"] == "error"]
    assert all("longer than `max_wait` allows" in text for text in errors)
    assert set(server.paid.values()) == {1}, "what it had answered is used"
    assert len(errors) + sum(1 for item in ended.results if item["status"] != "error") == TESTS


@pytest.mark.parametrize("bound", ["requests", "money"])
def test_a_budget_is_kept(tmp_path, server, bound):
    # An answer of a batch costs $0.00006, and is expected to cost $0.00052 at most: 1,024 tokens, and the prompt.
    budget = Budget(max_requests=20) if bound == "requests" else Budget(max_cost_usd=0.005)
    options = {} if bound == "requests" else {"max_cost": 0.005}
    ended = Suite(tmp_path, server, tests=50).run(budget=budget, **options)
    assert ended.reason is StopReason.BUDGET
    assert ended.report.run.status is RunStatus.ABORTED
    asked = sum(server.paid.values()) + len(server.direct)
    if bound == "requests":
        assert asked == 20
    else:
        cost = sum(part["cost_usd"] for part in ended.usage.values())
        assert cost <= 0.005 + 2 * 0.00012  # at most one direct request of each kind more
        assert asked > 20
    assert set(server.paid.values()) == {1}


INVALID = [
    ({"providers": ["echo"]}, {}, "has a batch API", "echo"),
    ({"providers": ["vertex:gemini-2.5-flash"]}, {}, "has a batch API", "vertex"),
    ({"providers": [{"id": "azure:m", "config": {"base_url": "http://h"}}]}, {}, "has a batch API", "azure"),
    ({"providers": ["mistral:responses:m"]}, {}, "has a batch API", "mistral"),
    (
        {"providers": [{"id": "together:m", "config": {"batch": "openai"}}]},
        {},
        "is for servers with",
        "batch",
    ),
    (
        {"providers": [{"id": "openai:m", "config": {"batch_deployment": "b"}}]},
        {},
        "is for azure",
        "deployment",
    ),
    (
        {"defaultTest": {"assert": [{"type": "latency", "threshold": 5}]}},
        {},
        "`latency` cannot be checked",
        "latency",
    ),
    (
        {"gates": ["latency.p95 <= 5000"]},
        {},
        "no latency, which the gate `latency.p95 <= 5000` limits",
        "p95",
    ),
    ({"options": {"batch": {"size": 200000}}}, {}, "a batch can have at most 50,000 requests", "200000"),
    ({"options": {"batch": {"poll_s": 0}}}, {}, "poll_s", "poll_s"),
    ({"options": {"batch": {"max_wait": "soon"}}}, {}, "max_wait", "max_wait"),
    ({"options": {"batch": {"fallback": "maybe"}}}, {}, "fallback", "fallback"),
    ({"options": {"batch": {"sise": 5}}}, {}, "sise", "sise"),
    ({"options": {"batch": 5}}, {}, "batch", "batch"),
    ({"providers": [{"id": "openai:m", "config": {"batch": "yes"}}]}, {}, "`batch` must be", "batch"),
    (
        {"providers": [{"id": "anthropic:m", "config": {"batch": "openai"}}]},
        {},
        "is for servers with",
        "batch",
    ),
    (
        {"providers": [{"id": "openai:m", "config": {"price": {"input": 1, "output": 2, "batch": 3}}}]},
        {},
        "price",
        "",
    ),
]


@pytest.mark.parametrize(("keys", "options", "words", "place"), INVALID, ids=[row[2][:30] for row in INVALID])
def test_what_cannot_go_in_batches_is_told_with_its_place_before_anything_is_sent(
    tmp_path, server, keys, options, words, place
):
    suite = Suite(tmp_path, server)
    document = json.loads(suite.path.read_text(encoding="utf-8"))
    document["defaultTest"] = {"assert": [{"type": "contains", "value": "a"}]}
    document.update(keys)
    suite.path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        suite.run(**options)
    problem = next(item for item in caught.value.problems if words in item.message)
    assert problem.location is not None
    assert place in suite.path.read_text(encoding="utf-8").splitlines()[problem.location.line - 1]
    assert problem.hint or "config" not in words
    assert not server.log


def test_a_model_that_needs_more_for_batches_is_named_before_it_is_called_at_the_usual_price(
    tmp_path, server
):
    suite = Suite(tmp_path, server)
    document = json.loads(suite.path.read_text(encoding="utf-8"))
    azure = {"base_url": "https://x.openai.azure.com"}
    document["providers"] += [
        {"id": "azure:one", "config": azure},
        {"id": "azure:two", "config": {**azure, "batch_deployment": "two-batch"}},
        {"id": "azure:three", "config": {**azure, "batch": False}},
        "echo",
    ]
    suite.path.write_text(json.dumps(document), encoding="utf-8")
    (warning,) = prepare(RunRequest(suite.path, suite.environ, batch=True)).warnings
    assert warning.message == "azure:one is called directly, at the usual price"
    assert "`batch_deployment`" in warning.hint


def test_tests_that_build_on_one_another_cannot_go_in_batches(tmp_path, server):
    suite = Suite(tmp_path, server)
    document = json.loads(suite.path.read_text(encoding="utf-8"))
    document["dialect"] = "promptfoo"
    document["tests"][0]["options"] = {"storeOutputAs": "first"}
    suite.path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        suite.run()
    problem = next(item for item in caught.value.problems if "use the outputs" in item.message)
    assert problem.location is not None
    assert problem.location.file.endswith("config.json")


def test_a_batch_that_the_provider_does_not_have_is_not_adopted(tmp_path, server):
    async def adopt() -> int:
        environ = Suite(tmp_path, server).environ
        async with BatchKeeper.opened(cache, None, environ) as keeper:
            return await keeper.adopt("nope", "openai:m")

    cache = ResponseCache.open(tmp_path / "home")
    try:
        with pytest.raises(UsageError, match="openai:m has no batch `nope`"):
            asyncio.run(adopt())
    finally:
        cache.close()


def test_answers_leave_no_rows_behind(tmp_path, server):
    Suite(tmp_path, server).run()
    cache = ResponseCache.open(tmp_path / "home")
    try:
        with closing(cache._database.connect()) as connection:
            left = connection.execute("SELECT count(*) FROM batch_requests").fetchone()[0]
    finally:
        cache.close()
    assert left == 0


@pytest.mark.parametrize("file", ["cache.db", "geval.db"])
def test_what_could_not_be_found_again_is_not_handed_in(tmp_path, server, file):
    suite = Suite(tmp_path, server)
    (tmp_path / "home" / file).mkdir(parents=True)
    with pytest.raises(UsageError, match="there is nowhere to record them"):
        suite.run()
    assert not server.log


def test_a_resumed_run_asks_nothing_again_when_its_batches_are_in_another_cache(tmp_path, server):
    server.is_held = True
    suite = Suite(tmp_path, server)
    suite.run(waits=False)
    asked = len(server.log)
    (tmp_path / "home" / "cache.db").rename(tmp_path / "cache.db")
    for leftover in (tmp_path / "home").glob("cache.db-*"):
        leftover.unlink()
    for is_batched in (False, True):
        with pytest.raises(UsageError, match="which is not in this cache"):
            suite.run(is_batched=is_batched, resume_latest=True)
    assert len(server.log) == asked


@pytest.mark.parametrize(("wire", "mark"), [("openai", "data:image/png;base64,"), ("anthropic", '"base64"')])
def test_images_go_into_batches_as_bytes_and_are_noted_by_their_names(tmp_path, server, wire, mark):
    suite = Suite(tmp_path, server, wire=wire)
    document = json.loads(suite.path.read_text(encoding="utf-8"))
    document["prompts"] = ["Describe {{ picture }} for topic {{ number }}."]
    picture = png(padding=2000)
    (tmp_path / "red.png").write_bytes(picture)
    for test in document["tests"]:
        test["vars"]["picture"] = "file://red.png"
    suite.path.write_text(json.dumps(document), encoding="utf-8")
    ended = suite.run()
    bodies = [json.dumps(item) for batch in server.batches.values() for item in batch.requests]
    assert len(bodies) == 2 * BATCHED
    content = base64.b64encode(picture).decode()
    assert all(mark in body and content in body and "sha256:" not in body for body in bodies)
    assert content not in json.dumps(ended.results)

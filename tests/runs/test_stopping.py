"""`--stop-when decided`: what decides, what does not, and what a run that stopped early says of itself."""

import html
import random
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.counting_server import CountingServer
from support.kill_trial import KillableRun, disturbed
from support.loopback import LoopbackServer, chat_reply, error_reply
from support.product import Finished, Product
from support.stored_runs import store_run, write_config

from geval_cli.errors import ConfigError
from geval_cli.extras.stopping import Decisions
from geval_cli.records import CaseResult, ErrorInfo, Status
from geval_cli.runs.baseline import gates_of
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.store.state import open_runs

TESTS = 100


def some_tests(count: int, good: Sequence[int]) -> list[dict[str, Any]]:
    """Return tests of which those numbered in `good` pass."""
    return [
        {
            "vars": {"x": f"{'fine' if number in good else 'poor'} {number}"},
            "metadata": {"half": "even" if number % 2 == 0 else "odd"},
            "assert": [{"type": "contains", "value": "fine", "metric": "right"}],
        }
        for number in range(count)
    ]


def some(count: int, of: int = TESTS, seed: int = 1) -> list[int]:
    return random.Random(seed).sample(range(of), count)


def decisions_of(config: Path, results: Sequence[CaseResult], **options: Any) -> Decisions:
    """Return what a run that stops early knows once it was told of results, in their order."""
    prepared = prepare(RunRequest(config, {}, stop_when="decided", **options))
    found = Decisions(prepared, gates_of(prepared.request, prepared.suite)[0], None)
    for result in results:
        found.add(result)
    return found


def results_of(folder: Path, run_id: str) -> list[CaseResult]:
    with open_runs(folder / ".geval", {}) as runs:
        return list(load_report(runs, run_id).results())


def test_the_order_in_which_tests_finish_decides_nothing(tmp_path: Path) -> None:
    gates = {"gates": ["pass_rate >= 80%", "right.mean >= 0.7"]}
    config = write_config(tmp_path, "c.json", some_tests(TESTS, some(50)), **gates)
    results = results_of(tmp_path, store_run(config, repeats=2))
    found = set()
    for seed in range(6):
        shuffled = random.Random(seed).sample(results, len(results))
        decisions = decisions_of(config, shuffled, repeats=2)
        assert decisions.is_enough
        stop = decisions.early_stop
        found.add((stop.after, stop.decisions))
    assert len(found) == 1
    # Another seed draws another order, so other tests come first.
    other = decisions_of(config, results, repeats=2, seed=3).early_stop
    assert (other.after, other.decisions) not in found


def test_of_two_gates_each_has_half_of_the_chance_to_be_wrong(tmp_path: Path) -> None:
    one = write_config(tmp_path, "one.json", some_tests(TESTS, some(50)), gates=["pass_rate >= 80%"])
    two = write_config(
        tmp_path, "two.json", some_tests(TESTS, some(50)), gates=["pass_rate >= 80%", "right.mean >= 0.8"]
    )
    results = results_of(tmp_path, store_run(one))
    first, second = (decisions_of(config, results).early_stop for config in (one, two))
    assert first.after < second.after
    assert [item.outcome for item in second.decisions] == ["fails", "fails"]


def test_an_error_is_neither_a_pass_nor_a_failure(tmp_path: Path) -> None:
    """With a quarter of errors a run of good answers takes longer to decide, and a run of errors never is."""
    config = write_config(tmp_path, "c.json", some_tests(TESTS, range(TESTS)), gates=["pass_rate >= 60%"])
    results = results_of(tmp_path, store_run(config))
    stops = []
    for every in (0, 4, 1):
        spoilt = [
            _as_error(result) if every and result.test_index % every == 0 else result for result in results
        ]
        decisions = decisions_of(config, spoilt)
        stops.append(decisions.early_stop.after)
        (record,) = decisions.early_stop.decisions
        assert record.outcome == ("undecided" if every == 1 else "holds")
    assert stops[0] < stops[1] < stops[2] == TESTS


@pytest.mark.parametrize("gate", ["score.mean >= 0.6", "right.mean >= 0.6", "right.pass_rate >= 60%"])
def test_an_error_that_a_failed_assertion_hides_is_neither(tmp_path: Path, gate: str) -> None:
    """Of all tests half have no score, since the check is an error and another one failed."""
    config = write_config(tmp_path, "c.json", some_tests(TESTS, range(TESTS)), gates=[gate])
    results = results_of(tmp_path, store_run(config))
    (assertion,) = results[0].assertions
    hidden = (
        replace(assertion, metric="other", status=Status.FAILED, score=0.0),
        replace(assertion, status=Status.ERROR, score=None),
    )
    spoilt = [
        replace(item, status=Status.FAILED, score=None, named_scores={"other": 0.0}, assertions=hidden)
        if item.test_index % 2
        else item
        for item in results
    ]
    outcomes = [decisions_of(config, found).early_stop.decisions[0].outcome for found in (results, spoilt)]
    assert outcomes == ["holds", "undecided"]


def test_scores_that_leave_the_scale_decide_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path, "c.json", some_tests(TESTS, ()), gates=["right.mean >= 0.5"])
    results = results_of(tmp_path, store_run(config))
    odd = [replace(result, named_scores={"right": -0.5}) for result in results]
    decisions = decisions_of(config, odd)
    assert not decisions.is_enough
    assert decisions_of(config, results).is_enough


def _as_error(result: CaseResult) -> CaseResult:
    error = ErrorInfo("ProviderError", "no answer")
    return replace(result, status=Status.ERROR, score=None, named_scores={}, assertions=(), error=error)


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        ({"gates": ["pass_rate >= 80%"]}, {"workers": 2}, "--workers cannot be combined with --stop-when"),
        ({"gates": ["pass_rate >= 80%"]}, {"ray": "local"}, "--ray cannot be combined with --stop-when"),
        ({"gates": ["pass_rate >= 80%"]}, {"batch": True}, "--stop-when cannot be combined with batches"),
        ({"gates": ["pass_rate >= 80%"]}, {"batch_judge": True}, "cannot be combined with batches"),
        ({"gates": ["pass_rate >= 80%", "latency.p95 <= 900"]}, {}, "the gate `latency.p95 <= 900` can be"),
        ({"gates": ["failures <= 3"]}, {}, "the gate `failures <= 3` can be checked only after all tests"),
        ({"gates": ["errors <= 1%"]}, {}, "--stop-when has nothing to wait for"),
        ({}, {}, "--stop-when has nothing to wait for"),
        ({}, {"max_errors": 2}, "the gate `failures <= 0` can be checked only after all tests have run"),
        (
            {"gates": ["right equivalent within 0.05 vs baseline"]},
            {"baseline": "x.json"},
            "the gate `right equivalent within 0.05 vs baseline` can be checked",
        ),
        ({"gates": ["pass_rate >= 80%"], "prompts": ["{{ _conversation }}"]}, {}, "in random order"),
    ],
)
def test_what_cannot_be_decided_early_is_said_before_anything_is_sent(
    tmp_path: Path, keys: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    config = write_config(tmp_path, "c.json", some_tests(20, range(20)), **keys)
    with pytest.raises(ConfigError) as raised:
        prepare(RunRequest(config, {}, stop_when="decided", **options))
    assert message in " ".join(problem.message for problem in raised.value.problems)


@pytest.mark.parametrize(("tests", "asked"), [(2, 2), (9, 9), (12, 9)])
def test_a_suite_of_fewer_than_ten_tests_never_stops_early(tmp_path: Path, tests: int, asked: int) -> None:
    config = write_config(
        tmp_path,
        "c.json",
        some_tests(tests, ()),
        gates=["pass_rate >= 90%"],
        options={"stop_when": "decided"},
    )
    results = results_of(tmp_path, store_run(config, max_concurrency=1))
    assert len(results) == tests
    assert sum(result.status == "failed" for result in results) <= asked
    assert any(result.status == "not_evaluated" for result in results) is (tests >= 10)


class Model:
    """Answers that a number is fine, unless it is one of those that it fails."""

    def __init__(self, good: Sequence[int]) -> None:
        self.good = frozenset(good)
        self.asked: list[int] = []

    def respond(self, body: Any, headers: Mapping[str, str]) -> Any:
        del headers
        found = re.search(r"\d+", body["messages"][0]["content"])
        assert found is not None
        self.asked.append(int(found[0]))
        if self.asked[-1] < 0:
            return error_reply(400, "this I refuse")
        return chat_reply("fine" if self.asked[-1] in self.good else "poor")


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


def config(**keys: Any) -> dict[str, Any]:
    tests = [
        {
            "vars": {"x": f"number {number}"},
            "assert": [{"type": "equals", "value": "fine", "metric": "right"}],
        }
        for number in range(TESTS)
    ]
    return {
        "prompts": ["{{ x }}"],
        "providers": [{"id": "openai:m", "config": {"max_retries": 0}}],
        "tests": tests,
        "gates": ["pass_rate >= 80%"],
        **keys,
    }


@pytest.mark.parametrize(("good", "outcome", "code"), [(50, "fails", 1), (99, "holds", 0)])
def test_a_run_that_stops_early_says_so_everywhere_and_asks_no_more(
    product: Product, good: int, outcome: str, code: int
) -> None:
    model = Model(some(good))
    files = ("r.junit.xml", "r.md", "r.html", "r.csv")
    with LoopbackServer(respond=model.respond) as server:
        options = [part for name in files for part in ("-o", name)]
        done = product.run(config(), server, "--stop-when", "decided", "-j", "2", *options)
    assert done.code == code
    stop = done.results["summary"]["early_stop"]
    rows = [case for case in done.cases if case["status"] == "not_evaluated"]
    assert len(done.cases) == TESTS
    assert stop["not_asked"] == stop["saved_requests"] == len(rows) == TESTS - len(model.asked) > 0
    # At most what was under way when the run was decided was asked beyond it.
    assert stop["after"] <= len(model.asked) <= stop["after"] + 4
    (gate, _) = done.results["summary"]["gates"]
    assert gate["status"] == {"fails": "failed", "holds": "passed"}[outcome]
    assert gate["note"].startswith(f"decided after {stop['after']} of 100 tests, anytime-valid 95 % interval")
    low, high = stop["decisions"][0]["interval"]
    assert high < 0.8 if outcome == "fails" else low > 0.8
    # One that was looked at after every test says what holds for it, and what does not.
    sentence = f"decided after {stop['after']} of 100 tests: `pass_rate >= 80%` {outcome} ("
    reason = f"not needed: the run was decided after {stop['after']} of 100 tests"
    texts = {name: (product.folder / name).read_text(encoding="utf-8") for name in files}
    texts["r.html"] = re.sub("</?code[^>]*>", "`", html.unescape(texts["r.html"]))
    texts["terminal"] = " ".join(done.stdout.split())
    for name in ("terminal", "r.md", "r.html"):
        assert sentence in texts[name], name
        assert "only its anytime-valid intervals hold" in texts[name], name
    for name in ("r.junit.xml", "r.csv"):
        assert reason in texts[name], name
    assert rows[0]["assertions"][0]["reason"] == reason
    assert texts["r.junit.xml"].count("<skipped message=") == len(rows)
    shown = " ".join(
        product.command(server, "show", "latest", "--case", str(rows[0]["test_index"] + 1)).stdout.split()
    )
    assert reason in shown


def test_columns_without_gates_are_decided_against_the_first(product: Product) -> None:
    model = Model(range(TESTS))
    both = config(gates=[], prompts=["{{ x }}", "poor {{ x }}"])

    def respond(body: Any, headers: Mapping[str, str]) -> Any:
        if body["messages"][0]["content"].startswith("poor"):
            return chat_reply("poor")
        return model.respond(body, headers)

    with LoopbackServer(respond=respond) as server:
        done = product.run(both, server, "--stop-when", "decided", "-j", "2")
    stop = done.results["summary"]["early_stop"]
    (found,) = stop["decisions"]
    assert (found["subject"], found["outcome"], found["mean"]) == ("poor {{ x }}", "worse", -1.0)
    assert stop["after"] < 20
    assert "`poor {{ x }}` is worse (-100 points, anytime-valid 95 % interval" in " ".join(
        done.stdout.split()
    )


def test_a_drop_from_the_baseline_is_decided_early(product: Product) -> None:
    gates = ["right.delta >= -0.05 vs baseline"]
    with LoopbackServer(respond=Model(range(TESTS)).respond) as server:
        product.run(config(gates=[]), server, "-o", "main.json")
        server_now = Model(some(40))
        server._respond = server_now.respond
        options = ("--stop-when", "decided", "--baseline", "main.json", "--no-cache", "-j", "2")
        done = product.run(config(gates=gates), server, *options)
    (gate, _) = done.results["summary"]["gates"]
    assert (gate["status"], done.code) == ("failed", 1)
    assert len(server_now.asked) < TESTS
    low, high = done.results["summary"]["early_stop"]["decisions"][0]["interval"]
    assert -1 <= low < gate["actual"] < high < -0.05


def test_a_budget_ends_such_a_run_and_resuming_it_comes_to_the_same_decision(product: Product) -> None:
    model = Model(some(50))
    options = ("--stop-when", "decided", "-j", "1")
    with LoopbackServer(respond=model.respond) as server:
        undisturbed = product.run(config(), server, *options, "--home", "other")
        asked = len(model.asked)
        cut = product.run(config(), server, *options, "--max-requests", "8")
        assert (cut.results["run"]["status"], cut.results["summary"]["early_stop"]) == ("aborted", None)
        resumed = product.run(config(), server, *options, "--resume")
        again = product.run(config(), server, *options)  # the cache answers
        total = len(model.asked)
    assert _decision(resumed) == _decision(undisturbed) == _decision(again)
    assert total <= 2 * asked + 4
    other = product.command(server, "run", "config.yaml", "--resume-from", resumed.results["run"]["id"])
    assert "--stop-when: decided -> not given" in other.stderr


def _decision(done: Finished) -> tuple[Any, Any, int]:
    stop = done.results["summary"]["early_stop"]
    return stop["after"], stop["decisions"], done.code


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
def test_a_run_that_is_killed_comes_to_the_same_decision(tmp_path: Path) -> None:
    options = ("--stop-when", "decided", "--fail-under", "0.95")
    with CountingServer() as server:
        (tmp_path / "whole").mkdir()
        whole = KillableRun(tmp_path / "whole", server, 60, options=options).finish()
        killed = KillableRun(tmp_path, server, 60, options=options)
        trial = disturbed(killed, kills=1, chance=random.Random(8), requests=(12, 16))
        stop = killed.document["summary"]["early_stop"]
    assert stop["decisions"] == whole["summary"]["early_stop"]["decisions"]
    assert stop["after"] == whole["summary"]["early_stop"]["after"] < 60
    assert len(trial.results) == 60
    assert sum(kill.paid_twice for kill in trial.kills) == 0


def test_an_option_with_another_word_is_refused(product: Product) -> None:
    with LoopbackServer() as server:
        done = product.run(config(), server, "--stop-when", "bored")
    assert done.code == 2
    assert "--stop-when must be `decided`, not `bored`" in done.stderr

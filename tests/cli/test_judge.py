"""`geval judge`: outputs of a run judged again, by the real command against a server that counts what is asked."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply
from support.product import Finished, Product

from geval_cli.cli.main import main
from geval_cli.extras.judge_again import open_source
from geval_cli.runs.options import RunOptions
from geval_cli.runs.requests import JudgedMetrics

_BEST = "choose"


class Models:
    """One server plays the models under test and the judges, and keeps who was asked what."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.score = 6
        self.unreadable: str | None = None

    def respond(self, body: Any, headers: Any) -> Reply:
        del headers
        model, prompt = body["model"], str(body["messages"][-1]["content"])
        self.asked.append((model, prompt))
        if model.startswith("answerer"):
            return (
                error_reply(400, "this I refuse") if "refused" in prompt else chat_reply(f"{model}: {prompt}")
            )
        if '"winner"' in prompt:
            longer = "2" if prompt.find("answerer-b") > prompt.find("Output 2:") else "1"
            return chat_reply(json.dumps({"reason": "longer", "winner": longer}))
        if '"best"' in prompt:
            return chat_reply('{"reason": "shorter", "best": 2}')
        if '"pass"' in prompt:
            return chat_reply(json.dumps({"reason": "fine", "pass": True, "score": self.score / 10}))
        if '"score"' in prompt and self.unreadable and self.unreadable in prompt:
            return chat_reply("no idea")
        if '"score"' in prompt:
            return chat_reply(json.dumps({"reason": "fair", "score": self.score}))
        return chat_reply('{"steps": ["Read it.", "Rate it."]}')

    def of(self, model: str) -> list[str]:
        return [prompt for asked, prompt in self.asked if asked == model]


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def server(models: Models) -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=models.respond) as server:
        yield server


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


_JUDGED = (
    {"type": "g-eval", "criteria": "Polite to {{ x }}.", "metric": "polite", "threshold": 0.5},
    {"type": "not-llm-rubric", "value": "rude", "metric": "rude", "threshold": 0.5},
    {"type": "contains", "value": "word", "metric": "word"},
    {
        "type": "assert-set",
        "metric": "both",
        "assert": [
            {"type": "g-eval", "criteria": ["Short.", "Clear."], "metric": "clear"},
            {"type": "latency", "threshold": 60_000},
        ],
    },
)


def config(*words: str, **changes: Any) -> dict[str, Any]:
    tests = [{"vars": {"x": word}} for word in words or ("word 0", "word 1", "word 2")]
    return {
        "prompts": ["Say {{ x }}"],
        "providers": ["openai:answerer", {"id": "openai:answerer-b", "label": "second"}],
        "defaultTest": {
            "assert": [*_JUDGED, {"type": "select-best", "value": _BEST, "metric": "best"}],
            "options": {"provider": {"id": "openai:judge", "config": {"max_retries": 0}}},
        },
        "tests": tests,
        **changes,
    }


def verdicts(finished: Finished, metric: str) -> list[tuple[str, float | None]]:
    own = [item for case in finished.cases for item in case["assertions"]]
    found = [part for item in own for part in (item, *item["assertions"])]
    return [(item["status"], item["score"]) for item in found if item["metric"] == metric]


def _empty_cache(product: Product) -> tuple[str, str]:
    return "--cache-dir", str(product.folder / "empty")


def test_another_threshold_costs_no_request_with_an_empty_cache(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    first = product.run(config(), server)
    assert first.code == 1  # of two compared outputs one is not the best
    models.asked.clear()

    again = product.command(server, "judge", "latest", "--threshold", "polite=0.9", *_empty_cache(product))

    assert models.asked == []
    assert verdicts(first, "polite") == [("passed", 0.6)] * 6
    assert verdicts(again, "polite") == [("failed", 0.6)] * 6
    for metric in ("rude", "word", "both", "clear", "best"):
        assert verdicts(again, metric) == verdicts(first, metric)
        assert len(verdicts(again, metric)) == 6
    assert again.code == 1
    assert again.results["run"]["judged_from"] == first.results["run"]["id"]
    assert again.judge_usage["requests"] == 0
    assert [case["output"] for case in again.cases] == [case["output"] for case in first.cases]
    detail = again.verdicts[0]["detail"]
    assert detail["judged_from"] == first.results["run"]["id"]
    assert detail["rating_key"] == first.verdicts[0]["detail"]["rating_key"]


def test_comparisons_in_pairs_hold_as_long_as_all_outputs_of_the_test_do(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    pairwise = {"type": "pairwise", "criteria": "the better one", "metric": "better"}
    written = config()
    written["defaultTest"]["assert"] = [pairwise]
    written["providers"].append({"id": "openai:answerer-c", "label": "third"})
    first = product.run(written, server)
    assert first.code == 0
    assert [score for _, score in verdicts(first, "better")] == [0.25, 1.0, 0.25] * 3
    models.asked.clear()

    again = product.command(server, "judge", "latest", "--threshold", "better=0.5", *_empty_cache(product))

    assert models.asked == []
    assert verdicts(again, "better") == [("failed", 0.25), ("passed", 1.0), ("failed", 0.25)] * 3
    assert again.results["summary"]["rankings"] == first.results["summary"]["rankings"]
    [entries] = again.results["summary"]["rankings"].values()
    assert (entries[0]["label"], entries[0]["wins"]) == ("second", 6)
    assert again.results["summary"]["order_consistency"] == {"better": pytest.approx(2 / 3)}
    shown = product.command(server, "show", "latest")
    assert shown.results["summary"] == again.results["summary"]
    assert "ranking: better" in shown.stdout

    product.command(server, "judge", "latest", "--grader", "openai:other", *_empty_cache(product))

    assert len(models.of("other")) == 3 * 6


def test_the_network_may_be_cut(product: Product, server: LoopbackServer, models: Models) -> None:
    product.run(config(), server)
    models.asked.clear()
    again = product.command(
        server, "judge", "latest", "--threshold", "polite=0.9", "--offline", *_empty_cache(product)
    )

    assert (again.code, models.asked) == (1, [])
    assert verdicts(again, "polite") == [("failed", 0.6)] * 6


def test_another_judge_is_asked_for_ratings_and_its_steps_only(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    written = config()
    written["defaultTest"]["options"] = {}
    written["defaultTest"]["assert"] = [*_JUDGED[:1], *_JUDGED[2:3]]
    first = product.run(written, server, "--grader", "openai:judge")
    models.asked.clear()
    models.score = 9

    again = product.command(server, "judge", "latest", "--grader", "openai:other", *_empty_cache(product))

    assert {model for model, _ in models.asked} == {"other"}
    assert sum('"steps"' in prompt for prompt in models.of("other")) == 3  # the criteria name a variable
    assert len(models.asked) == 3 + 6
    assert verdicts(first, "polite") == [("passed", 0.6)] * 6
    assert verdicts(again, "polite") == [("passed", 0.9)] * 6


def test_the_grader_of_the_run_holds_when_no_other_is_named(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    written = config()
    written["defaultTest"]["options"] = {}
    product.run(written, server, "--grader", "openai:judge", "--repeat", "2")
    models.asked.clear()

    again = product.command(server, "judge", "latest", *_empty_cache(product))

    assert models.asked == []
    assert len(again.cases) == 12


def test_errors_stay_errors_and_ratings_that_failed_are_asked_for_again(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    first = product.run(config("word 0", "refused"), server)
    models.asked.clear()

    again = product.command(server, "judge", "latest", *_empty_cache(product))

    assert models.asked == []
    assert [case["status"] for case in again.cases] == [case["status"] for case in first.cases]
    errored = [case for case in again.cases if case["status"] == "error"]
    assert [case["error"]["type"] for case in errored] == ["ProviderRequestError"] * 2
    assert all(case["output"] is None and case["score"] is None for case in errored)


def test_a_rating_that_failed_is_asked_for_again_by_the_steps_of_the_run(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    written = config("word 0", "word 1")
    written["defaultTest"]["assert"] = [{"type": "g-eval", "criteria": "Polite.", "metric": "polite"}]
    models.unreadable = "word 1"
    first = product.run(written, server)
    assert verdicts(first, "polite") == [("passed", 0.6)] * 2 + [("error", None)] * 2
    models.asked.clear()
    models.unreadable = None

    again = product.command(server, "judge", "latest", *_empty_cache(product))

    assert verdicts(again, "polite") == [("passed", 0.6)] * 4
    assert len(models.asked) == 2
    assert not any('"steps"' in prompt for _, prompt in models.asked)
    assert len({str(item["detail"]["evaluation_steps"]) for item in again.verdicts}) == 1


def test_another_config_finds_its_tests_by_their_content(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    product.run(config("word 0", "word 1", "word 2"), server)
    models.asked.clear()
    other = config(
        "word 2",
        "new",
        "word 0",
        providers=["openai:answerer-c", {"id": "openai:answerer-b", "label": "second"}],
    )
    other["defaultTest"]["assert"] = [{"type": "contains", "value": "word 2", "metric": "two"}, _JUDGED[0]]
    path = product.folder / "other.yaml"
    path.write_text(json.dumps(other), encoding="utf-8")

    again = product.command(server, "judge", "latest", str(path), *_empty_cache(product))

    assert models.asked == []
    assert verdicts(again, "two") == [("passed", 1.0), ("failed", 0.0)]
    assert [case["output"] for case in again.cases] == ["answerer-b: Say word 2", "answerer-b: Say word 0"]
    assert "1 test has no output in run" in again.stdout
    assert "1 column of the run is not in the config" in again.stdout


def test_outputs_are_not_transformed_again_and_that_is_said(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    was = {"transform": "'was ' + output"}
    product.run({**config("word 0"), "defaultTest": {"options": was}}, server)
    said = "`transform` of the config is not applied"
    for options, is_said in (
        (was, False),
        ({"transform": "'now ' + output"}, True),
        ({}, False),
        (was, True),
    ):
        path = product.folder / "other.yaml"
        path.write_text(
            json.dumps({**config("word 0"), "defaultTest": {"options": options}, "tags": {"n": "1"}})
        )
        again = product.command(
            server, "judge", "latest", *([] if options is was and not is_said else [str(path)])
        )
        assert (said in again.stdout) is is_said
        assert {case["output"] for case in again.cases} == {
            "was answerer: Say word 0",
            "was answerer-b: Say word 0",
        }


def test_nothing_in_common_is_told_and_not_a_run_of_nothing(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    product.run(config(), server)
    path = product.folder / "other.yaml"
    path.write_text(json.dumps(config("something else")), encoding="utf-8")

    again = product.command(server, "judge", "latest", str(path))

    assert again.code == 2
    assert "has no output for any test of" in again.stderr


def test_only_some_metrics_are_judged(product: Product, server: LoopbackServer, models: Models) -> None:
    product.run(config(), server)
    models.asked.clear()

    again = product.command(
        server, "judge", "latest", "--only", "clear", "--only", "word", *_empty_cache(product)
    )

    assert models.asked == []
    assert set(again.results["summary"]["metrics"]) == {"clear", "word", "both"}


def test_a_threshold_holds_also_within_a_set_that_is_chosen_as_a_whole(
    product: Product, server: LoopbackServer
) -> None:
    product.run(config("word 0"), server)

    again = product.command(server, "judge", "latest", "--only", "both", "--threshold", "clear=0.9")
    left_out = product.command(server, "judge", "latest", "--only", "word", "--threshold", "clear=0.9")

    assert verdicts(again, "clear") == [("failed", 0.6)] * 2
    assert set(again.results["summary"]["metrics"]) == {"clear", "both"}
    assert left_out.code == 2
    assert "--only leaves the metric `clear` out" in left_out.stderr


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--only", "polit", "no assertion has the metric `polit`"),
        ("--threshold", "polit=0.5", "no assertion has the metric `polit`"),
        ("--threshold", "polite=1.5", "the threshold of g-eval must be between 0 and 1, not 1.5"),
        ("--threshold", "word=0.5", "contains has no threshold"),
        ("--threshold", "polite", "takes METRIC=SCORE"),
        ("--threshold", "=0.5", "takes METRIC=SCORE"),
        ("--threshold", "polite=nan", "takes METRIC=SCORE"),
        ("--threshold", "polite=-1", "takes METRIC=SCORE"),
    ],
)
def test_a_metric_that_is_not_there_is_a_problem_before_anything_is_asked(
    product: Product, server: LoopbackServer, models: Models, option: str, value: str, says: str
) -> None:
    product.run(config("word 0"), server)
    models.asked.clear()

    again = product.command(server, "judge", "latest", option, value, "--grader", "openai:other")

    assert (again.code, models.asked) == (2, [])
    assert says in again.stderr
    assert "polit`" not in says or "did you mean `polite`?" in again.stderr


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_config_that_was_edited_is_judged_as_the_run_had_it(
    product: Product, server: LoopbackServer, models: Models, is_broken: bool
) -> None:
    first = product.run(config(), server)
    written = product.write(config("something", "else"))
    if is_broken:
        written.write_text("tests: [", encoding="utf-8")
    models.asked.clear()

    again = product.command(server, "judge", "latest", *_empty_cache(product))

    assert models.asked == []
    assert [case["status"] for case in again.cases] == [case["status"] for case in first.cases]


def test_a_file_that_changed_since_is_named(product: Product, server: LoopbackServer, models: Models) -> None:
    rows = product.folder / "tests.jsonl"
    rows.write_text('{"vars": {"x": "word 0"}}\n', encoding="utf-8")
    product.run(config(tests="file://tests.jsonl"), server)
    rows.write_text('{"vars": {"x": "word 1"}}\n', encoding="utf-8")

    again = product.command(server, "judge", "latest")

    assert again.code == 2
    assert "have changed: `tests.jsonl`" in again.stderr


def test_a_judge_whose_key_stood_in_the_config_needs_the_config(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    written = config("word 0")
    written["defaultTest"]["options"] = {
        "provider": {"id": "openai:judge", "config": {"apiKey": "sk-abcdefgh1"}}
    }
    product.run(written, server)
    product.write(config("else"))
    models.asked.clear()

    again = product.command(server, "judge", "latest")

    assert (again.code, models.asked) == (2, [])
    assert "lacks a key of openai:judge" in again.stderr


@pytest.mark.parametrize(
    ("check", "place"),
    [
        ({"type": "contains", "value": "sk-abcdefgh1"}, "value"),
        ({"type": "not-contains", "value": "sk-abcdefgh1"}, "value"),
        ({"type": "contains-all", "value": ["word", "https://x.example/?code=abc"]}, "value[1]"),
        ({"type": "llm-rubric", "value": "It says Bearer abcdefgh12"}, "value"),
    ],
)
def test_no_output_is_judged_by_a_mask(
    product: Product, server: LoopbackServer, models: Models, check: dict[str, Any], place: str
) -> None:
    """What looks like a key is masked in the stored config; `not-contains: ***` would pass every output."""
    written = config("word 0")
    written["tests"][0]["assert"] = [check]
    first = product.run(written, server)
    kept = product.folder / "kept.json"
    kept.write_text(json.dumps(first.results), encoding="utf-8")
    product.write(config("else"))
    models.asked.clear()

    for name in ("latest", str(kept)):
        again = product.command(server, "judge", name)
        assert (again.code, models.asked) == (2, [])
        assert f"has `***` in `tests[0].assert[0].{place}`" in again.stderr


def test_a_mask_in_a_variable_or_a_provider_is_no_text_to_judge_by(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    written = config("***")
    written["env"] = {"OUR_KEY": "abcdefgh12"}
    product.run(written, server)
    product.write(config("else"))

    assert product.command(server, "judge", "latest").code in (0, 1)


def test_a_results_file_and_an_earlier_run_can_be_judged(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    first = product.run(config("word 0"), server)
    kept = product.folder / "kept.json"
    kept.write_text(json.dumps(first.results), encoding="utf-8")
    product.run(config("word 1"), server)
    models.asked.clear()

    for name in ("latest~1", str(kept)):
        product.write(config("word 0"))
        again = product.command(server, "judge", name, *_empty_cache(product))
        assert again.results["run"]["judged_from"] == first.results["run"]["id"]
        assert [case["status"] for case in again.cases] == [case["status"] for case in first.cases]
        if name != "latest~1":
            product.command(server, "judge", name, "--plan", *_empty_cache(product))
    assert models.asked == []
    assert product.command(server, "judge", "latest~99").code == 2


def test_a_judged_run_is_none_to_resume(product: Product, server: LoopbackServer, models: Models) -> None:
    first = product.run(config("word 0"), server)
    product.command(server, "judge", "latest")
    models.asked.clear()

    again = product.run(config("word 0"), server, "--retry-errors")

    assert again.results["run"]["id"] == first.results["run"]["id"]


@pytest.mark.parametrize("cuts", [1, 2])
def test_the_same_command_after_an_interruption_judges_all_outputs(
    product: Product, server: LoopbackServer, cuts: int
) -> None:
    first = product.run(config(), server).results["run"]["id"]
    whole = product.command(server, "judge", first, "--grader", "openai:judge-b", *_empty_cache(product))
    product.command(server, "rm", whole.results["run"]["id"], "--yes", writes_results=False)
    words = ("judge", "latest", "--grader", "openai:judge-b")
    for count in range(cuts):
        cut = product.command(server, *words, "--max-requests", str(9 + 9 * count))
        assert (cut.code, cut.results["run"]["status"]) == (3, "aborted")
        assert 0 <= len(cut.cases) < len(whole.cases)
    again = product.command(server, *words)
    assert again.results["run"]["judged_from"] == first
    assert [case["status"] for case in again.cases] == [case["status"] for case in whole.cases]
    assert again.code == whole.code
    # A judging that did finish is a run like others.
    last = product.command(server, "judge", "latest", "--threshold", "polite=0.9")
    assert last.results["run"]["judged_from"] == again.results["run"]["id"]


def test_a_plan_says_what_would_be_asked(product: Product, server: LoopbackServer, models: Models) -> None:
    product.run(config(), server)
    models.asked.clear()
    same = product.command(server, "judge", "latest", "--plan", *_empty_cache(product))
    other = product.command(
        server,
        "judge",
        "latest",
        "--plan",
        "--threshold",
        "polite=0.9",
        "--scoring",
        "single",
        *_empty_cache(product),
    )

    assert models.asked == []
    assert same.results["total"]["most"] == 0
    assert other.results["total"]["most"] > 0


def test_conversations_and_sums_over_the_run_are_judged_from_what_is_stored(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    written = config(
        "word 0",
        "word 1",
        prompts=["{% for turn in _conversation %}{{ turn.output }} {% endfor %}Say {{ x }}"],
        derivedMetrics=[{"name": "twice", "value": "polite * 2"}],
    )
    path = product.folder / "promptfooconfig.yaml"
    path.write_text(json.dumps(written), encoding="utf-8")
    first = product.run(path, server)
    models.asked.clear()

    again = product.command(server, "judge", "latest", "--threshold", "polite=0.9", *_empty_cache(product))

    assert models.asked == []
    assert [case["prompt"] for case in again.cases] == [case["prompt"] for case in first.cases]
    assert verdicts(again, "polite") == [("failed", 0.6)] * 4
    assert again.results["summary"]["derived"] == first.results["summary"]["derived"]


def test_gates_decide_again(product: Product, server: LoopbackServer) -> None:
    written = config(gates=["polite.mean >= 0.5"])
    assert product.run(written, server).results["summary"]["gates"][0]["status"] == "passed"

    again = product.command(server, "judge", "latest", "--threshold", "polite=0.9", "--fail-under", "0.9")

    assert [gate["status"] for gate in again.results["summary"]["gates"]] == ["passed", "failed", "passed"]
    assert again.code == 1


def test_it_is_held_against_a_baseline_and_has_tags_of_its_own(
    product: Product, server: LoopbackServer
) -> None:
    gate = "polite.delta >= 0 vs baseline"
    source = product.run(config(gates=[gate]), server, "--baseline", "none").results["run"]["id"]

    refused = product.command(server, "judge", source)
    again = product.command(server, "judge", source, "--baseline", source, "--tag", "judge=old")
    left_out = product.command(server, "judge", source, "--baseline", "none")

    assert (refused.code, refused.results) == (2, {})
    assert "needs a baseline, but there is none" in refused.stderr
    gates = {item["gate"]: item["status"] for item in again.results["summary"]["gates"]}
    assert gates[gate] == "passed"
    assert again.results["summary"]["baseline"]["a"]["id"] == source
    assert again.results["run"]["tags"] == {"judge": "old"}
    assert left_out.results["summary"].get("baseline") is None


def test_a_stranger_s_config_stays_a_stranger_s(
    product: Product, server: LoopbackServer, models: Models
) -> None:
    product.run(config("word 0"), server)
    models.asked.clear()
    hostile = config("word 0")
    hostile["defaultTest"]["assert"] = [{"type": "python", "value": "__import__('os').system('touch owned')"}]
    path = product.folder / "hostile.yaml"
    path.write_text(json.dumps(hostile), encoding="utf-8")

    again = product.command(server, "judge", "latest", str(path), "--untrusted")

    assert again.code == 2
    assert models.asked == []
    assert not (product.folder / "owned").exists()


def test_the_store_of_a_stranger_s_folder_is_not_read(product: Product, server: LoopbackServer) -> None:
    product.run(config("word 0"), server)
    shutil.copytree(product.folder / "state", product.folder / ".geval")
    product.monkeypatch.delenv("GEVAL_HOME", raising=False)
    product.monkeypatch.setenv("XDG_STATE_HOME", str(product.folder.parent / "own-state"))
    product.monkeypatch.setattr("sys.argv", ["geval", "judge", "latest", "--untrusted"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    assert "no runs are stored in" in product.capsys.readouterr().err


def test_reading_the_source_leaves_no_thread_that_a_wall_cannot_hold(
    product: Product, server: LoopbackServer
) -> None:
    product.run(config("word 0"), server)
    kept = product.folder / "kept.json"
    shutil.copy(product.folder / "results.json", kept)
    given = RunOptions(home=product.folder / "state")
    before = set(threading.enumerate())

    for name in ("latest", str(kept)):
        with open_source(name, given, {}, JudgedMetrics()) as source:
            assert set(threading.enumerate()) <= before
            assert len(list(source.runs.results(source.run.id))) == 2


class TestJudgedRuns:
    """A run that was itself judged is judged again as it was, but for what is named now."""

    def test_its_thresholds_and_metrics_hold(
        self, product: Product, server: LoopbackServer, models: Models
    ) -> None:
        product.run(config(), server)
        models.score = 7
        judged = product.command(
            server, "judge", "latest", "--threshold", "polite=0.65", "--only", "polite", "--only", "rude"
        )
        assert verdicts(judged, "polite") == [("failed", 0.6)] * 6
        again = product.command(server, "judge", "latest", "--grader", "openai:judge-b")
        assert (
            verdicts(again, "polite") == [("passed", 0.7)] * 6
            or verdicts(again, "polite") == [("failed", 0.6)] * 6
        )
        assert {item["threshold"] for item in again.verdicts if item["metric"] == "polite"} == {0.65}
        assert {item["metric"] for item in again.verdicts} == {"polite", "rude"}
        assert "as that run was: --only polite, --only rude, --threshold polite=0.65" in again.stderr

    def test_what_is_named_now_wins(self, product: Product, server: LoopbackServer) -> None:
        product.run(config(), server)
        product.command(server, "judge", "latest", "--threshold", "polite=0.9", "--threshold", "rude=0.1")
        again = product.command(server, "judge", "latest", "--threshold", "polite=0.2")
        assert verdicts(again, "polite") == [("passed", 0.6)] * 6
        assert {item["threshold"] for item in again.verdicts if item["metric"] == "rude"} == {0.1}
        assert "as that run was: --threshold rude=0.1\n" in again.stderr
        other = product.command(server, "judge", "latest", "--only", "word")
        assert {item["metric"] for item in other.verdicts} == {"word"}

    def test_a_config_that_is_named_says_what_passes(self, product: Product, server: LoopbackServer) -> None:
        product.run(config(), server)
        product.command(server, "judge", "latest", "--threshold", "polite=0.9")
        by_config = product.command(server, "judge", "latest", "config.yaml")
        assert verdicts(by_config, "polite") == [("passed", 0.6)] * 6
        assert "as that run was" not in by_config.stderr

    def test_its_judge_and_variables_hold(
        self, product: Product, server: LoopbackServer, models: Models
    ) -> None:
        written = config("word 0", defaultTest={"assert": [_JUDGED[0]]})
        product.run(written, server, "--grader", "openai:judge", "--var", "tone=kind", "--var", "x=all")
        product.command(server, "judge", "latest", "--samples", "3", "--scoring", "samples")
        models.asked.clear()
        again = product.command(server, "judge", "latest")
        said = "as that run was: "
        assert said in again.stderr, again.stderr
        [line] = [text for text in again.stderr.splitlines() if text.startswith(said)]
        assert set(line.removeprefix(said).split(", ")) == {
            "--grader openai:judge",
            "--scoring samples",
            "--samples 3",
            "--var x=all",
            "--var tone=kind",
        }
        assert not models.of("answerer")


@pytest.mark.parametrize(
    ("answers", "whole", "others"),
    [
        (1, "2 tests have", "1 case has|1 other case has"),
        (2, "2 tests have", ""),
        (3, "1 test has", "1 other case has"),
        (5, "", "1 case has"),
        (6, "", ""),
    ],
)
def test_every_case_that_a_stopped_run_lacks_is_counted(
    product: Product, server: LoopbackServer, answers: int, whole: str, others: str
) -> None:
    """Of three tests in two columns."""
    suite = config("word 0", "word 1", "word 2")
    suite["defaultTest"]["assert"] = [{"type": "contains", "value": "word"}]
    product.run(suite, server, "-j", "1", "--max-requests", str(answers))

    again = product.command(server, "judge", "latest")

    assert len(again.cases) == answers
    assert again.code == (3 if answers < 6 else 0)
    assert ("did not finish, so its other cases are not judged" in again.stderr) == (answers < 6)
    said = [
        line.split("no output in run")[0] for line in again.stdout.splitlines() if "no output in run" in line
    ]
    assert [text for text in said if "test" in text] == ([f" warning  {whole} "] if whole else [])
    assert len([text for text in said if "case" in text]) == (1 if others else 0)
    assert all(any(other in text for other in others.split("|")) for text in said if "case" in text)


_LOOKS_AT_COSTS = (
    {"type": "cost", "threshold": 0.000001},
    {"type": "cost", "threshold": 1},
    {"type": "python", "value": "context['providerResponse']['cost'] <= 0.000001"},
    {"type": "javascript", "value": "context.providerResponse.cost <= 0.000001"},
    {"type": "javascript", "value": "context.providerResponse.cost > 0"},
)
_LOOKS_AT_ANSWERS = (
    *_LOOKS_AT_COSTS,
    {"type": "latency", "threshold": 60_000},
    {"type": "latency", "threshold": 0.000001},
    {"type": "not-finish-reason", "value": "length"},
    {"type": "python", "value": "context['providerResponse']['cached']"},
)


def test_limits_on_tokens_hold_for_answers_that_others_paid_for(
    product: Product, server: LoopbackServer
) -> None:
    """Of equal tests only one pays for the answer; what a stored answer took that another one paid for is unknown."""
    checks = [
        {"type": "python", "value": "context['providerResponse']['tokenUsage']['total'] < 1"},
        {"type": "javascript", "value": "context.providerResponse.tokenUsage.total < 1"},
        {"type": "javascript", "value": "context.providerResponse.tokenUsage.completion > 0"},
    ]
    suite = {
        "prompts": ["Say {{ x }}"],
        "providers": ["openai:answerer"],
        "defaultTest": {"assert": checks},
        "tests": [{"vars": {"x": word}} for word in ("one", "one", "two")],
    }

    def marks(finished: Finished) -> list[list[str]]:
        return [[item["status"] for item in case["assertions"]] for case in finished.cases]

    paid = ["failed", "failed", "passed"]
    assert [marks(product.run(suite, server)) for _ in range(2)] == [[paid] * 3] * 2
    assert marks(product.command(server, "judge", "latest")) == [["error", "failed", "failed"]] * 3


@pytest.mark.parametrize("price", [None, {"input": 1, "output": 1}], ids=["price unknown", "price known"])
def test_what_came_with_an_answer_gets_the_marks_of_the_run(
    product: Product, server: LoopbackServer, price: dict[str, int] | None
) -> None:
    """Of equal tests only one pays for the answer, and of a second run none does: all know what it cost."""
    settings = {"price": price} if price else {}
    suite = {
        "prompts": ["Say {{ x }}"],
        "providers": [{"id": "openai:answerer", "config": settings}],
        "defaultTest": {"assert": list(_LOOKS_AT_ANSWERS)},
        "tests": [{"vars": {"x": word}} for word in ("one", "one", "two", "refused", "one")],
    }

    def marks(finished: Finished) -> list[Any]:
        return [(case["status"], [item["status"] for item in case["assertions"]]) for case in finished.cases]

    for _ in range(2):
        run = product.run(suite, server)
        of_costs = [statuses[: len(_LOOKS_AT_COSTS)] for status, statuses in marks(run) if statuses]
        assert len(of_costs) == 4
        if price is None:
            assert of_costs == [["error", "error", "error", "failed", "failed"]] * 4
        else:
            assert of_costs == [["failed", "passed", "failed", "failed", "passed"]] * 4
        assert marks(product.command(server, "judge", "latest")) == marks(run)

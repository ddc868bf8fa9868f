"""Several judges rate one output: how their verdicts become one, what is kept of each, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.judge_server import STEPS_TEXT, prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply
from support.product import Product

from geval_cli import GEval, JudgeError, TestCase, UsageError
from geval_cli.extras.web.config_code import runs_code
from geval_cli.runs.requests import RunRequest

CRITERIA = {"type": "g-eval", "criteria": "It is kind.", "scoring": "single"}
ERROR = "broken"


def jury_of(*says: Any) -> LoopbackServer:
    """A server for the models m0, m1, ...: each gives its rating, or an error."""

    def respond(body: Any, headers: Any) -> Reply:
        del headers
        rating = says[int(body["model"][1:])]
        if rating == ERROR:
            return error_reply(401, "no such key")
        if '"score"' not in prompt_text(body):
            return chat_reply(STEPS_TEXT)
        return chat_reply(f'{{"reason": "As {body["model"]} sees it.", "score": {rating}}}')

    return LoopbackServer(respond=respond)


def a_config(count: int, **keys: Any) -> dict[str, Any]:
    judges = [f"openai:m{number}" for number in range(count)]
    return {"tests": [{"output": "A text.", "assert": [{**CRITERIA, "provider": judges, **keys}]}]}


VERDICTS = [
    ((9, 6, 3), {"threshold": 0.6}, ("passed", 0.6)),
    ((9, 6, 2), {"threshold": 0.6}, ("failed", 17 / 30)),
    ((9, 6, 2), {"threshold": 0.6, "jury": {"combine": "median"}}, ("passed", 0.6)),
    ((9, 6, 5, 2), {"threshold": 0.55, "jury": {"combine": "median"}}, ("passed", 0.55)),
    ((9, 6, 2), {"threshold": 0.6, "jury": {"combine": "majority"}}, ("passed", 2 / 3)),
    ((9, 5, 2), {"threshold": 0.6, "jury": {"combine": "majority"}}, ("failed", 1 / 3)),
    ((9, 5), {"threshold": 0.6, "jury": {"combine": "majority"}}, ("failed", 1 / 2)),
    ((9, ERROR, 7), {"threshold": 0.6}, ("passed", 0.8)),
    ((9, ERROR, 7), {"threshold": 0.6, "jury": {"combine": "majority"}}, ("passed", 1)),
    ((9, ERROR, ERROR), {"threshold": 0.6, "jury": {"min_judges": 1}}, ("passed", 0.9)),
    ((9, ERROR, ERROR), {"threshold": 0.6}, ("error", None)),
    ((9, ERROR), {"threshold": 0.6}, ("error", None)),
    ((9, ERROR, 7), {"threshold": 0.6, "jury": {"min_judges": 3}}, ("error", None)),
    ((9, 6, 3), {"threshold": 0.6, "type": "not-g-eval"}, ("failed", 0.4)),
]


@pytest.mark.parametrize(("says", "keys", "verdict"), VERDICTS, ids=str)
def test_one_verdict_of_several(
    product: Product, says: tuple[Any, ...], keys: dict[str, Any], verdict: tuple[str, float | None]
) -> None:
    with jury_of(*says) as server:
        found = product.run(a_config(len(says), **keys), server).verdict
    assert (found["status"], found["score"]) == (verdict[0], pytest.approx(verdict[1]))
    if verdict[0] == "error":
        assert "judges gave a verdict" in found["error"]["message"]
        assert "no such key" in found["error"]["message"]
        return
    shown = found["detail"]["judges"]
    assert [one["id"] for one in shown] == [f"openai:m{number}" for number in range(len(says))]
    assert [one["score"] for one in shown] == [None if one == ERROR else one / 10 for one in says]
    assert [one["status"] == "error" for one in shown] == [one == ERROR for one in says]
    assert all((one["error"] is None) != (one["reason"] is None) for one in shown)


@pytest.mark.parametrize(
    ("says", "spread", "split"), [((9, 4), 0.5, True), ((9, 5), 0.4, False), ((0, 10, 5), 1.0, True)]
)
def test_judges_that_are_far_apart_are_marked(
    product: Product, says: tuple[int, ...], spread: float, split: bool
) -> None:
    with jury_of(*says) as server:
        finished = product.run(a_config(len(says), threshold=0.95), server, "-v")
    detail = finished.verdict["detail"]
    assert (detail["spread"], detail["split"]) == (spread, split)
    assert ("  split" in finished.stdout) == split
    assert ("/ the judges' scores are 0.5 or more apart" in finished.stdout) == split
    assert "judge 1" in finished.stdout
    nearest = "m2" if len(says) > 2 else "m0"
    assert f"openai:{nearest}: As {nearest} sees it." in finished.stdout


def test_each_judge_writes_steps_of_its_own_and_the_cost_is_the_sum(product: Product) -> None:
    config = a_config(3)
    config["tests"] *= 2
    with jury_of(7, 8, 9) as server:
        planned = product.run(config, server, "--plan").results["total"]
        assert server.requests == []
        first = product.run(config, server)
        again = product.run(config, server)
    assert planned["least"] == planned["most"] == 6
    assert len(server.requests) == 6
    assert first.judge_usage["requests"] - first.judge_usage["cached_requests"] == 6
    assert again.judge_usage["requests"] == again.judge_usage["cached_requests"]
    assert first.verdicts[0]["detail"]["usage"]["requests"] == 6


def test_the_grader_of_the_command_line_does_not_replace_a_jury(product: Product) -> None:
    with jury_of(7, 8, 9) as server:
        finished = product.run(a_config(3), server, "--grader", "openai:m0")
    assert {request.json["model"] for request in server.requests} == {"m0", "m1", "m2"}
    assert "--grader" in finished.stderr + finished.stdout


def test_a_budget_stops_all_judges(product: Product) -> None:
    with jury_of(7, 8, 9) as server:
        finished = product.run(a_config(3), server, "--max-requests", "2")
    assert finished.code == 3
    assert len(server.requests) <= 2


def test_samples_end_early_where_verdicts_are_counted_and_not_where_scores_are(product: Product) -> None:
    keys = {"scoring": None, "samples": {"upto": 20}, "evaluation_steps": ["Read it."], "threshold": 0.55}
    counted = a_config(2, jury={"combine": "majority"}, **keys)
    averaged = a_config(2, **keys)
    for config in (counted, averaged):
        del config["tests"][0]["assert"][0]["scoring"]
    with jury_of(1, 1) as server:
        some = product.run(counted, server)
        every = product.run(averaged, server)
    assert [one["requested"] for one in some.verdict["detail"]["judges"]] == [2, 2]
    assert [one["requested"] for one in every.verdict["detail"]["judges"]] == [20, 20]
    assert "the scores of several judges are combined" in " ".join(every.stderr.split())


REFUSED = [
    ({"provider": ["openai:a", "openai:b", "openai:a"]}, "the jury has `openai:a` twice"),
    (
        {"provider": ["openai:a", {"id": "openai:a", "label": "another"}]},
        "twice, so one judge would count double",
    ),
    ({"provider": ["openai:a"]}, "a list of judges is a jury and needs at least two"),
    ({"provider": []}, "a list of judges is a jury and needs at least two"),
    ({"provider": ["openai:a", 3]}, "a provider must be text or a mapping, found the number 3"),
    ({"provider": ["openai:a", "none"]}, "`none` cannot judge"),
    ({"provider": "openai:a", "jury": {"combine": "mean"}}, "`jury` needs several judges"),
    (
        {"provider": ["openai:a", "openai:b"], "jury": {"combine": "calibrated"}},
        "`combine: calibrated`, but the config has no calibration file",
    ),
    ({"provider": ["openai:a", "openai:b"], "jury": {"combine": "best"}}, "one of `mean`, `median`"),
    ({"provider": ["openai:a", "openai:b"], "jury": {"min_judges": 3}}, "the jury has only 2 judges"),
    ({"provider": ["openai:a", "openai:b"], "jury": {"min_judges": 0}}, "of at least 1"),
    ({"provider": ["openai:a", "openai:b"], "jury": "mean"}, "must be a mapping"),
    ({"type": "llm-rubric", "provider": ["openai:a", "openai:b"]}, "llm-rubric takes one judge"),
]


@pytest.mark.parametrize(("keys", "problem"), REFUSED, ids=str)
def test_what_is_no_jury_is_a_problem_with_a_place(
    product: Product, keys: dict[str, Any], problem: str
) -> None:
    check = {"type": "g-eval", "value": "It is kind.", **keys}
    with LoopbackServer() as server:
        finished = product.run({"tests": [{"output": "A text.", "assert": [check]}]}, server)
    assert (finished.code, server.requests) == (2, [])
    told = " ".join(finished.stderr.split())
    assert problem in told
    assert "-->" in told


def test_options_and_promptfoo_know_no_juries(product: Product) -> None:
    judges = ["openai:a", "openai:b"]
    check = {"type": "g-eval", "value": "It is kind."}
    with LoopbackServer() as server:
        of_options = product.run(
            {"tests": [{"output": "A text.", "options": {"provider": judges}, "assert": [check]}]}, server
        )
        of_promptfoo = product.run(
            {
                "dialect": "promptfoo",
                "providers": ["echo"],
                "tests": [{"vars": {"prompt": "x"}, "assert": [{**check, "provider": judges}]}],
            },
            server,
        )
    assert "the options of a test take one judge" in of_options.stderr
    assert "a provider must be text or a mapping, found a list" in of_promptfoo.stderr


def of_library(server: LoopbackServer, count: int) -> list[dict[str, Any]]:
    config = {"base_url": server.base_url, "api_key": "k", "max_retries": 0}
    return [{"id": f"openai:m{number}", "config": config} for number in range(count)]


def test_the_library_has_juries() -> None:
    case = TestCase(input="in", actual_output="out")
    with jury_of(9, 6, ERROR) as server:
        judges = of_library(server, 3)
        mean = GEval("Kind", "It is kind.", judges=judges, scoring="single", threshold=0.75)
        count = GEval("Kind", "It is kind.", judges=judges, jury={"combine": "majority"}, threshold=0.75)
        all_three = GEval("Kind", "It is kind.", judges=judges, jury={"min_judges": 3})
        found, counted = mean.evaluate(case), count.evaluate(case)
        with pytest.raises(JudgeError, match="only 2 of 3 judges gave a verdict"):
            all_three.evaluate(case)
    assert (found.success, found.score, found.threshold) == (True, 0.75, 0.75)
    assert (counted.success, counted.score) == (False, 0.5)
    assert [one["score"] for one in found.metadata["judges"]] == [0.9, 0.6, None]
    assert (found.metric, found.metadata["spread"]) == ("Kind [GEval]", 0.3)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"judges": ["openai:a"]}, "`judges` needs at least two"),
        ({"judges": "openai:a"}, "`judges` needs at least two"),
        ({"jury": {"combine": "mean"}}, "`judges` needs at least two"),
        ({"judges": ["openai:a", "openai:a"]}, "would count double"),
        ({"judges": ["openai:a", "openai:b"], "model": "openai:c"}, "cannot be combined"),
        ({"judges": ["openai:a", "openai:b"], "jury": {"combine": "calibrated"}}, "needs a weight"),
        ({"judges": ["openai:a", "openai:b"], "jury": {"combine": "best"}}, "`combine` must be one of"),
        ({"judges": ["openai:a", "openai:b"], "jury": {"min_judges": 3}}, "there are only 2 judges"),
        ({"judges": ["openai:a", ""]}, "a provider's id is empty"),
    ],
    ids=str,
)
def test_the_library_refuses_what_is_no_jury(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        GEval("Kind", "It is kind.", **arguments)


@pytest.mark.parametrize("in_a_set", [False, True])
def test_a_program_in_a_jury_of_a_test_file_is_code_of_the_config(tmp_path: Path, in_a_set: bool) -> None:
    check = {**CRITERIA, "provider": ["openai:a", "exec:./judge.sh"]}
    checks = [{"type": "assert-set", "assert": [check]}] if in_a_set else [check]
    (tmp_path / "tests.jsonl").write_text(json.dumps({"output": "A.", "assert": checks}), encoding="utf-8")
    config = tmp_path / "config.json"
    config.write_text('{"tests": "file://tests.jsonl"}', encoding="utf-8")
    assert "exec:./judge.sh" in runs_code(RunRequest(config, {}))


def test_a_stranger_may_name_no_program_in_a_jury(product: Product) -> None:
    config = a_config(2)
    config["tests"][0]["assert"][0]["provider"][1] = "exec:touch ran"
    with jury_of(9, 9) as server:
        finished = product.run(config, server, "--untrusted")
    assert (finished.code, server.requests) == (2, [])
    assert not (product.folder / "ran").exists()


def test_failures_of_a_jury_are_grouped_by_the_reason_of_its_judge(product: Product) -> None:
    with jury_of(2, 6, 9) as server:
        whole = a_config(3, threshold=0.7, metric="kind")
        product.run({"tests": whole["tests"] * 2}, server)
        shown = product.command(server, "show", "--failed", "--by", "reason", writes_results=False)
    told = [line.strip() for line in shown.stdout.splitlines()]
    assert "kind: openai:mN: as mN sees it: 2 cases" in told, shown.stdout
    assert "(openai:m0 0.20, openai:m1 0.60, openai:m2 0.90)" in told

"""Evaluation modes as users have them: the command against a server, and docs/reference/evaluation-modes.md is true."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import run_geval
from support.judge_server import STEPS_TEXT, is_steps_request, prompt_text
from support.loopback import LoopbackServer, RecordedRequest, Reply, chat_reply
from support.product import Product

from geval_cli.specs.base import PromptSpec, spellings
from geval_cli.suite.schema import TestSpec

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "evaluation-modes.md").read_text(encoding="utf-8")

SYSTEM = "You answer customers of a bakery."
CRITERIA = "The answer is friendly."
ORDER = {"type": "object", "required": ["item"]}


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


def respond(body: Any, headers: Mapping[str, str]) -> Reply:
    """A model that says little, and a judge that likes what greets."""
    if is_steps_request(body):
        return chat_reply(STEPS_TEXT)
    text = prompt_text(body)
    if '"score"' in text:
        score = 9 if "Welcome" in text else 2
        return chat_reply(json.dumps({"reason": "It is as it is.", "score": score}))
    if "JSON" in text:
        return chat_reply('{"item": "rye loaf"}')
    return chat_reply("Welcome!" if "Hello" in text else "What?")


def config(prompt: Mapping[str, Any], *tests: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "prompts": [{"system": SYSTEM, **prompt}],
        "providers": ["openai:gpt-4.1-mini"],
        "tests": list(tests) or [{"input": "Hello!"}],
        **more,
    }


def judge_requests(server: LoopbackServer) -> list[RecordedRequest]:
    return [request for request in server.requests if request.json["model"] != "gpt-4.1-mini"]


class TestModeLlm:
    def test_the_grader_gets_prompt_input_output_and_criteria(self, product: Product) -> None:
        with LoopbackServer(respond=respond) as server:
            finished = product.run(
                config({"evaluation_mode": "llm", "evaluation_criteria": CRITERIA}), server
            )
        [generated] = [item.json for item in server.requests if item.json["model"] == "gpt-4.1-mini"]
        assert [item["content"] for item in generated["messages"]] == [SYSTEM, "Hello!"]
        asked = prompt_text(judge_requests(server)[-1].json)
        assert all(text in asked for text in (SYSTEM, "Hello!", "Welcome!", CRITERIA))
        assert finished.code == 0

    def test_decision_score_reason_and_artefacts_are_stored(self, product: Product) -> None:
        with LoopbackServer(respond=respond) as server:
            finished = product.run(config({"evaluation_criteria": CRITERIA}), server)
        verdict = finished.verdict
        shown = {name: verdict[name] for name in ("type", "status", "score", "reason", "threshold")}
        assert shown == {
            "type": "evaluation-llm",
            "status": "passed",
            "score": 0.9,
            "reason": "It is as it is.",
            "threshold": 0.5,
        }
        assert verdict["detail"]["criteria"] == CRITERIA
        assert verdict["detail"]["evaluation_steps"]
        assert verdict["location"] == "config.yaml:3:3"

    def test_a_low_score_fails(self, product: Product) -> None:
        with LoopbackServer(respond=respond) as server:
            finished = product.run(config({"evaluation_criteria": CRITERIA}, {"input": "Bye."}), server)
        assert (finished.code, finished.verdict["status"], finished.verdict["score"]) == (1, "failed", 0.2)

    @pytest.mark.parametrize("criteria", [{}, {"evaluation_criteria": ""}, {"evaluationCriteria": " "}])
    def test_without_criteria_the_output_is_generated_and_no_judge_is_called(
        self, product: Product, criteria: dict[str, str]
    ) -> None:
        with LoopbackServer(respond=respond) as server:
            finished = product.run(config({"evaluation_mode": "llm", **criteria}), server)
        [case] = finished.cases
        assert (finished.code, case["output"], case["status"], case["score"]) == (
            0,
            "Welcome!",
            "not_evaluated",
            None,
        )
        assert (finished.verdict["status"], finished.verdict["score"]) == ("not_evaluated", None)
        assert finished.results["summary"]["not_evaluated"] == 1
        assert "n/e" in finished.stdout
        assert (judge_requests(server), finished.judge_usage["requests"]) == ([], 0)

    def test_a_missing_key_of_the_default_judge_does_not_matter_without_criteria(
        self, tmp_path: Path
    ) -> None:
        text = "prompts: [{raw: x, evaluation_mode: llm}]\nproviders: [echo]\ntests: [{}]\n"
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        finished = run_geval("run", "config.yaml", cwd=tmp_path)
        assert (finished.code, "1 not evaluated" in finished.stdout) == (0, True)

    def test_the_judge_is_found_as_for_any_judged_assertion(self, product: Product) -> None:
        by_default = {"options": {"provider": "openai:by-default"}}
        by_test = {"input": "Hello!", "options": {"provider": "openai:by-test"}}
        suite = config(
            {"evaluation_criteria": CRITERIA}, by_test, {"input": "Hello?"}, defaultTest=by_default
        )
        with LoopbackServer(respond=respond) as server:
            product.run(suite, server)
            product.run(suite, server, "--grader", "openai:by-grader", "--no-cache")
        models = {request.json["model"] for request in judge_requests(server)}
        assert models == {"by-test", "by-default", "by-grader"}

    def test_steps_are_bought_once_for_all_tests(self, product: Product) -> None:
        tests = [{"input": f"Hello {number}"} for number in range(5)]
        with LoopbackServer(respond=respond) as server:
            product.run(config({"evaluation_criteria": CRITERIA}, *tests), server)
        steps = [request for request in server.requests if is_steps_request(request.json)]
        assert len(steps) == 1

    def test_a_judge_that_is_down_is_an_error_and_no_low_score(self, product: Product) -> None:
        def no_judge(body: Any, headers: Mapping[str, str]) -> Any:
            return (400, {}, {"error": {"message": "no"}}) if '"s' in prompt_text(body) else chat_reply("Hi")

        with LoopbackServer(respond=no_judge) as server:
            finished = product.run(config({"evaluation_criteria": CRITERIA}), server)
        assert (finished.code, finished.verdict["status"], finished.verdict["score"]) == (3, "error", None)


class TestModeSchema:
    def test_each_test_is_validated_against_its_own_schema(self, product: Product) -> None:
        tests = (
            {"input": "JSON please", "evaluation_schema": ORDER},
            {"input": "JSON, please", "evaluationSchema": json.dumps({"required": ["price", "date"]})},
            {"input": "No such thing.", "evaluation_schema": ORDER},
            {"input": "JSON or nothing"},
        )
        with LoopbackServer(respond=respond) as server:
            finished = product.run(config({"evaluationMode": "schema"}, *tests), server)
        verdicts = [(item["type"], item["status"], item["score"]) for item in finished.verdicts]
        assert verdicts == [
            ("evaluation-schema", "passed", 1.0),
            ("evaluation-schema", "failed", 0.0),
            ("evaluation-schema", "failed", 0.0),
            ("evaluation-schema", "not_evaluated", None),
        ]
        assert finished.verdicts[1]["detail"]["errors"] == [
            "$: 'price' is a required property",
            "$: 'date' is a required property",
        ]
        assert finished.verdicts[2]["reason"].startswith("the output is not JSON")
        assert (finished.code, judge_requests(server)) == (1, [])

    @pytest.mark.parametrize("schema", ["", "  ", {}, None])
    def test_an_empty_schema_is_not_evaluated_and_no_failure(self, product: Product, schema: Any) -> None:
        with LoopbackServer(respond=respond) as server:
            suite = config({"evaluation_mode": "schema"}, {"input": "x", "evaluation_schema": schema})
            finished = product.run(suite, server)
        assert (finished.code, finished.verdict["status"], finished.verdict["score"]) == (
            0,
            "not_evaluated",
            None,
        )

    def test_the_expected_schema_shapes_the_answer_and_has_no_part_in_the_evaluation(
        self, product: Product
    ) -> None:
        shape = {"type": "object", "properties": {"other": {"type": "string"}}, "required": ["other"]}
        prompt = {"evaluation_mode": "schema", "expectedSchema": shape}
        with LoopbackServer(respond=respond) as server:
            finished = product.run(config(prompt, {"input": "JSON", "evaluation_schema": ORDER}), server)
        assert server.requests[0].json["response_format"]["json_schema"]["schema"] == shape
        assert (finished.code, finished.verdict["status"]) == (0, "passed")

    def test_a_broken_schema_is_shown_with_its_line_and_nothing_is_sent(self, product: Product) -> None:
        suite = config({"evaluation_mode": "schema"}, {"input": "x", "evaluation_schema": {"type": "strng"}})
        with LoopbackServer(respond=respond) as server:
            finished = product.run(suite, server)
        assert (finished.code, server.requests) == (2, [])
        assert "broken JSON Schema: 'strng'" in finished.stderr
        assert "config.yaml:9:11   tests[0].evaluation_schema.type" in finished.stderr

    def test_a_schema_under_an_llm_prompt_is_not_used_with_a_warning(self, product: Product) -> None:
        suite = config({"evaluation_criteria": CRITERIA}, {"input": "Hello!", "evaluation_schema": ORDER})
        with LoopbackServer(respond=respond) as server:
            finished = product.run(suite, server)
        assert finished.verdict["type"] == "evaluation-llm"
        assert "warning: `evaluation_schema` is not used" in finished.stderr


def test_the_example_shows_all_four_outcomes(tmp_path: Path) -> None:
    finished = run_geval(
        "run",
        "evaluation-modes.yaml",
        *("--home", str(tmp_path / "home"), "-o", str(tmp_path / "results.json")),
        cwd=ROOT / "examples" / "configs",
    )
    assert (finished.code, "2 passed, 2 failed, 1 error, 4 not evaluated" in finished.stdout) == (1, True)
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["results"]
    assert [case["status"] for case in results] == [
        *("passed", "passed", "not_evaluated"),
        *("failed", "failed", "not_evaluated"),
        *("error", "not_evaluated", "not_evaluated"),
    ]
    assert [case["score"] for case in results] == [0.9, 1.0, None, 0.1, 0.0, None, None, None, None]


class TestExportAndImport:
    def test_the_commands_of_the_page_run_and_give_the_same_suite(self, tmp_path: Path) -> None:
        (tmp_path / "modes.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
        commands = [line[2:].split()[1:] for block in blocks("console")[1:] for line in block.splitlines()]
        assert [words[0] for words in commands] == ["export", "import"]
        for words in commands:
            assert run_geval(*words, cwd=tmp_path).code == 0
        again = run_geval("export", "suite", "modes-again.yaml", cwd=tmp_path)
        suite = (tmp_path / "suite.json").read_text(encoding="utf-8")
        assert again.stdout == suite
        assert json.loads(suite)["tests"][0] == json.loads(blocks("json")[1])

    def test_an_exported_suite_runs_as_it_is(self, tmp_path: Path) -> None:
        folder = ROOT / "examples" / "configs"
        assert (
            run_geval("export", "suite", str(folder / "schema.yaml"), "-o", "s.json", cwd=tmp_path).code == 0
        )
        (tmp_path / "replies").mkdir()
        replies = (folder / "replies" / "orders.yaml").read_text(encoding="utf-8")
        (tmp_path / "replies" / "orders.yaml").write_text(replies, encoding="utf-8")
        finished = run_geval("run", "s.json", cwd=tmp_path)
        assert (finished.code, "1 passed, 1 failed" in finished.stdout) == (1, True)

    def test_a_config_is_never_written_over_unless_somebody_says_so(self, tmp_path: Path) -> None:
        mine = tmp_path / "mine.yaml"
        mine.write_text("prompts: [mine] # and a comment\ntests: [{}]\n", encoding="utf-8")
        assert run_geval("export", "suite", "mine.yaml", "-o", "mine.yaml", cwd=tmp_path).code == 2
        assert run_geval("export", "suite", "mine.yaml", "-o", "suite.json", cwd=tmp_path).code == 0
        assert run_geval("import", "suite.json", "-o", "mine.yaml", cwd=tmp_path).code == 2
        assert "a comment" in mine.read_text(encoding="utf-8")
        assert run_geval("import", "suite.json", "-o", "mine.yaml", "--force", cwd=tmp_path).code == 0
        assert "a comment" not in mine.read_text(encoding="utf-8")

    def test_a_folder_that_does_not_exist_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("prompts: [x]\ntests: [{}]\n", encoding="utf-8")
        finished = run_geval("export", "suite", "config.yaml", "-o", "gone/suite.json", cwd=tmp_path)
        assert (finished.code, "cannot write gone/suite.json" in finished.stderr) == (2, True)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


class TestPage:
    def test_its_config_runs(self, product: Product) -> None:
        path = product.folder / "modes.yaml"
        path.write_text(blocks("yaml")[0], encoding="utf-8")
        with LoopbackServer(respond=respond) as server:
            finished = product.run(path, server)
        assert [case["status"] for case in finished.cases] == ["failed", "failed", "failed", "not_evaluated"]
        assert "warning:" not in finished.stderr

    def test_its_errors_are_those_of_the_program(self, tmp_path: Path) -> None:
        schema = {"required": ["item"], "properties": {"quantity": {"minimum": 1}}}
        suite = {
            "prompts": [{"raw": '{"quantity": 0}', "evaluation_mode": "schema"}],
            "providers": ["echo"],
            "tests": [{"evaluation_schema": schema}],
        }
        (tmp_path / "config.json").write_text(json.dumps(suite), encoding="utf-8")
        run_geval("run", "config.json", "-o", "results.json", cwd=tmp_path)
        results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
        detail = results["results"][0]["assertions"][0]["detail"]
        assert detail["errors"] == json.loads(blocks("json")[0])["errors"]

    def test_its_table_of_keys_is_complete(self) -> None:
        rows = re.findall(r"^\| (prompt|test) \| `(\w+)` \|", PAGE, flags=re.MULTILINE)
        wanted = [
            (name, key)
            for name, spec in (("prompt", PromptSpec), ("test", TestSpec))
            for key in dict.fromkeys(spellings(spec).values())
            if key.startswith("evaluation_") or key == "expected_schema"
        ]
        assert rows == wanted

    def test_every_camel_case_spelling_is_named(self) -> None:
        spelled = [*spellings(PromptSpec), *spellings(TestSpec)]
        camel = {key for key in spelled if key.startswith(("evaluationM", "evaluationC", "evaluationS"))}
        assert all(f"`{key}`" in PAGE for key in {*camel, "evaluationParsing", "expectedSchema"})

    def test_its_links_lead_to_files(self) -> None:
        links = re.findall(r"\]\(([^)#]+)", PAGE)
        assert links
        assert [link for link in links if not (ROOT / "docs" / "reference" / link).exists()] == []

"""Failed cases and typical questions of traces, frozen as tests that a suite reads."""

import json
import re
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import clean_environment, run_geval
from support.loopback import Reply
from support.model_server import ModelServer

from benchmarks.traces import INTENTS, write_traces
from geval_cli.extras.generation.questions import (
    KnownQuestions,
    grouped,
    repeats_answer,
    similar_pairs,
    tf_idf,
)

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"

OF_THE_SECOND = {
    "expected_output": "3",
    "context": ["a", "b"],
    "retrieval_context": "c",
    "scenario": "a shop",
    "expected_outcome": "a sale",
    "role": "a clerk",
}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def trace(number: int, text: str, answer: str = "An answer.") -> str:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return json.dumps({"trace_id": f"{number:032x}", "messages": turns}) + "\n"


class TestRuns:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        config = {
            "prompts": ["Q: {{ input }}", "A: {{ input }}"],
            "providers": "echo",
            "tests": [
                {
                    "input": "one two",
                    "assert": [{"type": "contains", "value": "Q:"}],
                    "metadata": {"area": "x"},
                },
                {
                    "input": "three",
                    **OF_THE_SECOND,
                    "assert": [{"type": "equals", "value": "3"}],
                },
                {
                    "vars": {"input": "file:// is a scheme"},
                    "assert": [{"type": "contains", "value": "scheme"}],
                },
                {"vars": {"input": "{{ five }} six"}, "assert": [{"type": "contains", "value": "seven"}]},
            ],
        }
        config["tests"][2]["vars"]["input"] = " file:// is a scheme"
        (tmp_path / "suite.json").write_text(json.dumps(config), encoding="utf-8")
        assert run_geval("run", "suite.json", "-o", "run.json", cwd=tmp_path).code == 1
        return tmp_path

    @pytest.mark.parametrize("name", ["latest", "run.json"])
    def test_each_failed_test_is_frozen_once_with_its_inputs_and_the_reasons(
        self, folder: Path, name: str
    ) -> None:
        done = run_geval("generate", "tests", "--from-run", name, "--failed", "-o", "f.jsonl", cwd=folder)
        assert (done.code, "wrote 3 tests to f.jsonl: 3 failed tests of run" in done.stdout) == (0, True), (
            done.stderr
        )
        first, second, third = rows_of(folder / "f.jsonl")
        assert (first["input"], first["metadata"]["area"], first["metadata"]["case"]) == (
            "one two",
            "x",
            "#1",
        )
        assert [item["output"] for item in first["metadata"]["outputs"]] == ["A: one two"]
        assert second.items() >= OF_THE_SECOND.items()
        assert [item["status"] for item in second["metadata"]["outputs"]] == ["failed", "failed"]
        assert "3" in second["metadata"]["outputs"][0]["reason"]
        assert third["vars"] == {"input": "{{ five }} six"}
        (folder / "again.yaml").write_text(
            "prompts: '{{ input }}'\nproviders: echo\ntests: file://f.jsonl\n"
            "defaultTest: {assert: [{type: regex, value: '^(one two|three|{{ five }} six)$'}]}\n".replace(
                "{{ five }}", ".*"
            )
        )
        again = run_geval("run", "again.yaml", cwd=folder)
        assert (again.code, "3 passed" in again.stdout) == (0, True), again.stdout + again.stderr

    def test_all_tests_are_frozen_without_failed_and_none_that_the_suite_has(self, folder: Path) -> None:
        words = ("generate", "tests", "--from-run", "latest", "-o", "all.jsonl")
        assert run_geval(*words, cwd=folder).code == 0
        rows = rows_of(folder / "all.jsonl")
        assert Counter(row["metadata"]["kind"] for row in rows) == {"failed": 3, "frozen": 1}
        none = run_geval(*words, "--force", "--suite", "suite.json", cwd=folder)
        assert (none.code, "the suite has each of them" in none.stderr) == (2, True)
        assert rows_of(folder / "all.jsonl") == rows

    def test_missing_pictures_are_told(self, folder: Path) -> None:
        (folder / "dot.png").write_bytes(b64decode(PIXEL))
        tests = [{"input": "What is this?", "images": ["file://dot.png"]}, {"input": "Who are you?"}]
        config = {"prompts": "{{ input }}", "providers": "echo", "tests": tests}
        (folder / "pictures.json").write_text(json.dumps(config), encoding="utf-8")
        assert run_geval("run", "pictures.json", cwd=folder).code == 0
        done = run_geval("generate", "tests", "--from-run", "latest", "-o", "f.jsonl", cwd=folder)
        assert (done.code, "1 test without images and audio" in done.stdout) == (0, True), done.stderr
        assert [row["input"] for row in rows_of(folder / "f.jsonl")] == [test["input"] for test in tests]


class TestTraces:
    def test_a_thousand_traces_become_groups_of_one_intent_each(self, tmp_path: Path) -> None:
        intents = write_traces(tmp_path / "traces.jsonl", 1_000)
        words = ("generate", "tests", "--from-traces", "traces.jsonl")
        done = run_geval(*words, "-o", "t.jsonl", "--json", cwd=tmp_path)
        assert done.code == 0, done.stderr
        found = json.loads(done.stdout)
        rows = rows_of(tmp_path / "t.jsonl")
        assert (found["traces"], len(found["groups"])) == (1_000, len(rows))
        assert len(rows) < 60
        assert sum(group["size"] for group in found["groups"]) == 1_000
        named = Counter(intents[int(row["metadata"]["trace_id"][1:])] for row in rows)
        assert named.keys() == INTENTS.keys()
        again = run_geval(*words, "-o", "u.jsonl", cwd=tmp_path)
        assert (tmp_path / "u.jsonl").read_bytes() == (tmp_path / "t.jsonl").read_bytes()
        assert "these groups hold 1,000 of 1,000 traces" in again.stdout

    def test_repeated_questions_are_one_test_with_the_size_of_their_group(self, tmp_path: Path) -> None:
        lines = [trace(number, f"Where is my order {number * 17}?") for number in range(20)]
        lines += [trace(30, "How do I reset my password?"), trace(31, "how do I reset my password")]
        lines += [trace(40, f"My key is {SECRET}, {{{{ env.HOME }}}}", "file:///etc/passwd")]
        (tmp_path / "traces.jsonl").write_text("".join(lines), encoding="utf-8")
        words = ("generate", "tests", "--from-traces", "traces.jsonl", "--per-group", "3")
        done = run_geval(*words, "-o", "t.jsonl", cwd=tmp_path)
        assert done.code == 0, done.stderr
        written = (tmp_path / "t.jsonl").read_text(encoding="utf-8")
        assert SECRET.lower() not in (written + done.stdout).lower()
        assert "abcdefghijkl" not in written + done.stdout
        rows = rows_of(tmp_path / "t.jsonl")
        assert [row["metadata"]["group_size"] for row in rows] == [20, 2, 1]
        assert rows[0]["metadata"]["trace_id"] == f"{0:032x}"
        assert (rows[0]["metadata"]["answered"], "output" in rows[0]) == ("An answer.", False)
        assert "personal data are not" in " ".join(done.stdout.split())
        (tmp_path / "suite.yaml").write_text(
            "prompts: '{{ input }}'\nproviders: echo\ntests: file://t.jsonl\n"
            "defaultTest: {assert: [{type: icontains-any, value: [order, password, 'env.HOME']}]}\n"
        )
        run = run_geval("run", "suite.yaml", cwd=tmp_path)
        assert (run.code, "3 passed" in run.stdout) == (0, True), run.stdout + run.stderr
        known = run_geval(*words, "-o", "u.jsonl", "--suite", "suite.yaml", cwd=tmp_path)
        assert (known.code, "the suite has a question of each" in known.stderr) == (2, True)
        (tmp_path / "traces.jsonl").write_text("".join([*lines, trace(50, "Do you sell gift cards?")]))
        known = run_geval(*words, "-o", "u.jsonl", "--suite", "suite.yaml", cwd=tmp_path)
        assert [row["input"] for row in rows_of(tmp_path / "u.jsonl")] == ["Do you sell gift cards?"]
        assert "3 left out: the suite asks the same" in known.stdout

    def test_embeddings_of_any_provider_group_what_words_do_not(self, tmp_path: Path) -> None:
        pytest.importorskip("numpy")
        texts = ["I want my money back", "refund please", "where is the shop", "directions to your store"]
        (tmp_path / "traces.jsonl").write_text("".join(map(trace, range(4), texts)), encoding="utf-8")

        def vector(body: Any) -> Reply:
            first = any(text in str(body["input"]) for text in texts[:2])
            data = [{"embedding": [1.0, 0.1] if first else [0.1, 1.0], "index": 0}]
            return Reply(
                body=json.dumps({"data": data, "model": "m", "usage": {"prompt_tokens": 3}}).encode()
            )

        words = ("generate", "tests", "--from-traces", "traces.jsonl", "-o", "t.jsonl", "--force")
        with EmbeddingServer(vector) as server:
            env = clean_environment(OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url)
            embedded = (*words, "--embeddings", "openai:embedding:small")
            done = run_geval(*embedded, cwd=tmp_path, env=env)
            found = json.loads(run_geval(*embedded, "--json", cwd=tmp_path, env=env).stdout)
        assert done.code == 0, done.stderr
        assert "\n 4 requests sent, price unknown\n" in done.stdout
        assert (found["requests"], found["cached_requests"], found["cost_usd"]) == (0, 4, 0)
        assert [row["metadata"]["group_size"] for row in rows_of(tmp_path / "t.jsonl")] == [2, 2]
        assert run_geval(*words, cwd=tmp_path).code == 0
        assert [row["metadata"]["group_size"] for row in rows_of(tmp_path / "t.jsonl")] == [1, 1, 1, 1]

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("no json\n", "this line cannot be used"),
            ("", "has a user's message"),
            (json.dumps({"request": {}, "response": {"output": "only an answer"}}), "has a user's message"),
        ],
    )
    def test_a_file_without_questions_says_so(self, tmp_path: Path, content: str, says: str) -> None:
        (tmp_path / "traces.jsonl").write_text(content, encoding="utf-8")
        done = run_geval("generate", "tests", "--from-traces", "traces.jsonl", "-o", "t.jsonl", cwd=tmp_path)
        assert (done.code, says in done.stderr) == (2, True), done.stderr


class EmbeddingServer(ModelServer):
    """Answers every request as it is told."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    async def _reply(self, body: Any, headers: Any) -> Reply:
        reply: Reply = self._answer(body)
        return reply


SAME = [
    ("When does the ferry leave?", "when does a ferry leave", True),
    ("When does the ferry leave?", "When did the ferry leave?", True),
    ("When does the ferry leave?", "Where does the ferry leave?", False),
    ("What was sold in 2019?", "What was sold in 2020?", False),
    ("Did Ann beat Bob?", "Did Bob beat Ann?", False),
    ("Wann fährt die Fähre?", "wann FÄHRT die Fa\u0308hre", True),
    ("新しい図書館はいつ開館しますか", "新しい図書館はいつ開館しますか?", True),
    ("", "", True),
]


@pytest.mark.parametrize(("one", "other", "is_same"), SAME)
def test_questions_are_the_same_if_only_function_words_differ(one: str, other: str, is_same: bool) -> None:
    assert KnownQuestions([one]).has(other) is is_same
    assert KnownQuestions([other]).has(one) is is_same


GIVEN = [
    ("Does it leave at 7:45?", "7:45", True),
    ("Who scored, Merson or Townsend?", "Townsend", False),
    ("Is the cabin open?", "Yes", False),
    ("When does the ferry leave?", "At 7:45", False),
    ("Why is it red?", "", False),
]


@pytest.mark.parametrize(("question", "answer", "is_given"), GIVEN)
def test_a_question_that_has_its_answer_gives_it_away(question: str, answer: str, is_given: bool) -> None:
    assert repeats_answer(question, answer) is is_given


def test_every_text_is_in_one_group_whatever_the_texts_are() -> None:
    for texts in (
        ["", "", "a"],
        ["same"] * 30,
        [chr(97 + n) for n in range(20)],
        ["a b", "b c", "c d", "d e"],
        ["?"],
    ):
        near = similar_pairs(tf_idf(texts), 0.4)
        groups = grouped(texts, near, 0.4)
        assert sum(group.size for group in groups) == len(texts)
        members = [place for group in groups for place in group.members]
        assert len(members) == len(set(members))
        assert re.sub(r"\W", "", "".join(texts)) == "" or groups

"""promptfoo configs on the command line, against a server that answers with what it was asked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.geval_command import Finished, clean_environment, run_geval
from support.loopback import LoopbackServer, Reply, chat_reply
from support.promptfoo import NAME, write_files


def answer(body: Any, headers: Mapping[str, str]) -> Reply:
    return chat_reply(f"[{' / '.join(message['content'] for message in body['messages'])}]")


def run(
    folder: Path, content: Mapping[str, Any], *options: str
) -> tuple[Finished, list[Any], LoopbackServer]:
    write_files(folder, {NAME: json.dumps(content)})
    with LoopbackServer(respond=answer) as server:
        env = clean_environment(OPENAI_API_KEY="sk-x", OPENAI_BASE_URL=server.base_url)
        done = run_geval("run", NAME, "-o", "o.json", "--no-progress", *options, cwd=folder, env=env)
    output = folder / "o.json"
    return done, json.loads(output.read_text())["results"] if output.exists() else [], server


def test_what_one_test_stores_later_ones_see_and_it_is_never_rendered(tmp_path: Path) -> None:
    content = {
        "providers": ["openai:m"],
        "prompts": ["Say {{x}}"],
        "tests": [
            {"vars": {"x": "{% raw %}{{ 7 * 7 }}{% endraw %}"}, "options": {"storeOutputAs": "first"}},
            {"vars": {"x": "more about {{first}}"}, "options": {"storeOutputAs": "second"}},
            {
                "vars": {"x": "{{second}}"},
                "assert": [
                    {"type": "equals", "value": "[Say {{second}}]"},
                    {"type": "contains", "value": "7 * 7"},
                ],
            },
        ],
    }
    done, rows, _ = run(tmp_path, content)
    assert done.code == 0, done.stdout
    assert [row["output"] for row in rows] == [
        "[Say {{ 7 * 7 }}]",
        "[Say more about [Say {{ 7 * 7 }}]]",
        "[Say [Say more about [Say {{ 7 * 7 }}]]]",
    ]


def test_former_turns_of_a_talk_are_in_the_prompt(tmp_path: Path) -> None:
    prompt = (
        '[{% for turn in _conversation %}{"role": "user", "content": "{{turn.input}}"}, '
        '{"role": "assistant", "content": "{{turn.output}}"}, {% endfor %}{"role": "user", "content": "{{x}}"}]'
    )
    tests = [
        {"vars": {"x": "a"}},
        {"vars": {"x": "b"}},
        {"vars": {"x": "c"}, "metadata": {"conversationId": "other"}},
    ]
    done, _, server = run(tmp_path, {"providers": ["openai:m"], "prompts": [prompt], "tests": tests})
    assert done.code == 0
    asked = [[message["content"] for message in request.json["messages"]] for request in server.requests]
    assert asked == [["a"], ["a", "[a]", "b"], ["c"]]


def test_former_turns_hold_the_answers_before_any_transform_also_after_a_resume(tmp_path: Path) -> None:
    content = {
        "providers": [{"id": "openai:m", "transform": "output + ' P'"}],
        "prompts": ["{% for turn in _conversation %}{{turn.output}}|{% endfor %}{{x}}{{kept}}"],
        "defaultTest": {"options": {"transform": "output + ' T'"}},
        "tests": [
            {"vars": {"x": "a"}, "options": {"storeOutputAs": "kept"}},
            {"vars": {"x": "b"}},
            {"vars": {"x": "c"}, "options": {"transform": "output"}},
        ],
    }
    asked = ["a", "[a]|b[a] P T", "[a]|[[a]|b[a] P T]|c[a] P T"]
    for options in (["--max-requests", "2"], ["--resume"]):
        _, rows, server = run(tmp_path, content, *options)
        sent = [request.json["messages"][0]["content"] for request in server.requests]
        assert sent == (asked[:2] if "--max-requests" in options else asked[2:])
    assert [row["output"] for row in rows] == [f"[{text}] P{' T' * (text != asked[2])}" for text in asked]


def test_an_output_that_a_test_brings_is_judged_without_asking(tmp_path: Path) -> None:
    content = {
        "providers": ["openai:m"],
        "prompts": ["Say {{x}}"],
        "tests": [
            {"vars": {"x": "a"}, "providerOutput": "mine", "assert": [{"type": "equals", "value": "mine"}]}
        ],
    }
    done, rows, server = run(tmp_path, content)
    assert (done.code, rows[0]["output"], rows[0]["prompt"]["rendered"]) == (0, "mine", "Say a")
    assert not server.requests


def test_chat_prompts_are_sent_as_messages_and_echoed_as_text(tmp_path: Path) -> None:
    content = {
        "providers": ["openai:m", "echo"],
        "prompts": ['[{"role": "system", "content": "S"}, {"role": "user", "content": "Hi {{x}}"}]'],
        "tests": [{"vars": {"x": '"you"'}, "options": {"temperature": 0.5}}],
    }
    _, rows, server = run(tmp_path, content)
    assert rows[0]["output"] == '[S / Hi "you"]'
    assert server.requests[0].json["temperature"] == 0.5
    assert json.loads(rows[1]["output"])[1]["content"] == 'Hi "you"'
    assert "\n  {" in rows[1]["output"]
    assert rows[0]["prompt"]["rendered"].startswith('[{"role":"system",')


def test_the_configs_own_outputs_and_repeats(tmp_path: Path) -> None:
    content = {
        "providers": ["echo"],
        "prompts": ["x"],
        "evaluateOptions": {"repeat": 2},
        "outputPath": ["own.json", "sheet.unknown"],
    }
    write_files(tmp_path, {NAME: json.dumps(content)})
    done = run_geval("run", NAME, "--no-progress", cwd=tmp_path)
    assert done.code == 0
    assert len(json.loads((tmp_path / "own.json").read_text())["results"]) == 2
    assert "cannot write results to sheet.unknown" in done.stderr


def test_a_g_eval_must_reach_seven_tenths(tmp_path: Path) -> None:
    def judge(body: Any, headers: Mapping[str, str]) -> Reply:
        return chat_reply('{"steps": ["look"], "reason": "so", "score": 6}')

    content = {
        "providers": ["echo"],
        "prompts": ["x"],
        "tests": [
            {
                "assert": [
                    {"type": "g-eval", "value": "is x"},
                    {"type": "g-eval", "value": "x", "threshold": 0.6},
                ]
            }
        ],
    }
    write_files(tmp_path, {NAME: json.dumps(content)})
    with LoopbackServer(respond=judge) as server:
        env = clean_environment(OPENAI_API_KEY="sk-x", OPENAI_BASE_URL=server.base_url)
        run_geval("run", NAME, "-o", "o.json", "--no-progress", cwd=tmp_path, env=env)
    (row,) = json.loads((tmp_path / "o.json").read_text())["results"]
    assert [(item["status"], item["threshold"]) for item in row["assertions"]] == [
        ("failed", 0.7),
        ("passed", 0.6),
    ]


def test_configs_are_joined_by_an_option_or_by_a_wildcard(tmp_path: Path) -> None:
    one = {
        "dialect": "promptfoo",
        "providers": ["echo"],
        "prompts": ["{{x}}"],
        "tests": [{"vars": {"x": "1"}}],
    }
    write_files(
        tmp_path, {"a.yaml": json.dumps(one), "b.yaml": json.dumps({**one, "tests": [{"vars": {"x": "2"}}]})}
    )
    # The files of a wildcard come in promptfoo's order, the last name first.
    for arguments, outputs in ((("--merge", "a.yaml", "b.yaml"), ["1", "2"]), (("*.yaml",), ["2", "1"])):
        done = run_geval("run", *arguments, "-o", "o.json", "--no-progress", cwd=tmp_path)
        assert done.code == 0, done.stderr
        assert [row["output"] for row in json.loads((tmp_path / "o.json").read_text())["results"]] == outputs


def test_validate_says_what_would_differ_from_promptfoo(tmp_path: Path) -> None:
    content = {
        "providers": ["echo"],
        "prompts": ["x"],
        "tests": [{"colour": 1, "assert": [{"type": "g-eval", "value": "x"}]}],
    }
    write_files(tmp_path, {"c.yaml": json.dumps(content)})
    done = run_geval("validate", "--promptfoo", "c.yaml", cwd=tmp_path)
    assert done.code == 0
    assert "5 things may differ from promptfoo" in done.stdout
    assert "neither passed nor failed" in done.stdout
    content["tests"] = [{"assert": [{"type": "contains", "value": "x"}]}]
    write_files(tmp_path, {"c.yaml": json.dumps(content)})
    done = run_geval("validate", "--promptfoo", "c.yaml", cwd=tmp_path)
    assert "no known differences from promptfoo" in done.stdout
    assert run_geval("validate", "--dialect", "other", "c.yaml", cwd=tmp_path).code == 2

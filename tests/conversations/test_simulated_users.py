"""Simulated users: what they are shown, how their replies are read, how they end, and what they cost."""

import contextlib
import hashlib
import itertools
import json
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import clean_environment, start_geval
from support.kill_trial import AT_ONCE
from support.loopback import LoopbackServer, Reply, chat_reply
from support.model_server import verdict
from support.product import Product

from geval_cli import GEval, Suite, TestCase, UsageError, run
from geval_cli.extras.conversations.holding import GAVE_UP, GOAL, read_reply, user_messages
from geval_cli.records import Turn
from geval_cli.runs.evaluate import JOBS_PER_REQUEST

MODEL, USER, JUDGE = "openai:model", "openai:user", "openai:judge"
REACHED, GIVING_UP = "[[GOAL REACHED]]", "[[GIVING UP]]"


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


def server_of(
    user: Callable[[int, Any], str], answer: Callable[[int, Any], str] = lambda turn, _: f"Answer {turn}."
) -> LoopbackServer:
    """A user and a model that say something by the number of their turn, from 1, and a judge who is content."""

    def respond(body: Any, headers: Any) -> Reply:
        del headers
        roles = Counter(message["role"] for message in body["messages"])
        if body["model"] == "user":
            return chat_reply(user(roles["assistant"] + 1, body))
        if body["model"] == "model":
            return chat_reply(answer(roles["user"], body))
        return chat_reply(verdict(9))

    return LoopbackServer(respond=respond)


def says(*words: str) -> Callable[[int, Any], str]:
    """Say these words, one after another, and the last of them from then on."""
    return lambda turn, _: words[min(turn, len(words)) - 1]


def config(simulate: Mapping[str, Any], *assertions: Any, **others: Any) -> dict[str, Any]:
    test = {
        "turns": {"simulate": {"goal": "Get a refund.", "user": USER, **simulate}},
        "assert": list(assertions),
        **others.pop("test", {}),
    }
    base = {"prompts": [{"system": "You are a clerk."}], "providers": MODEL}
    return {**base, **others, "tests": [test]}


def sent_to(server: LoopbackServer, model: str) -> list[list[tuple[str, Any]]]:
    bodies = [request.json for request in server.requests if request.json["model"] == model]
    return [[(item["role"], item["content"]) for item in body["messages"]] for body in bodies]


def said(case: Any) -> list[str]:
    return [turn["content"] for turn in case["turns"]]


READ = [
    ("I want my money back.", "I want my money back.", None),
    (REACHED, "", GOAL),
    (f"  **{REACHED}**\n", "", GOAL),
    ("`[[goal_reached]]`", "", GOAL),
    (GIVING_UP, "", GAVE_UP),
    (f"Thank you!\n{REACHED}", "Thank you!", GOAL),
    (f"{REACHED}\nThank you!", "Thank you!", GOAL),
    (f"Thank you! {REACHED}", "Thank you!", GOAL),
    (f"Forget it... {GIVING_UP}.", "Forget it...", GAVE_UP),
    (f"{REACHED}\n{REACHED}", "", GOAL),
    ("User: Hello?", "Hello?", None),
    ("**User:** Hello?", "Hello?", None),
    ("Hello?\nAssistant: Hi, how can I help?\nUser: Well.", "Hello?", None),
    (f"Hello?\nAssistant: Hi!\n{REACHED}", "Hello?", None),
    ("My assistant: she quit.", "My assistant: she quit.", None),
    ("First.\n\nSecond.", "First.\n\nSecond.", None),
    ("[[GOAL]]", "[[GOAL]]", None),
    ("[GOAL REACHED]", "", GOAL),
    ("【GIVING UP】。", "", GAVE_UP),
    *(
        (f"{said}{REACHED}", said, GOAL)
        for said in ("谢谢。", "ありがとう\uff01", "「はい」", "धन्यवाद।", "شكرا؟", "Merci !")
    ),
    ("<think>He helps, so I say [[GIVING UP]] never.</think>\nHello?", "Hello?", None),
    (f"<think>Done.</think>{REACHED}", "", GOAL),
    ("User: Hello?\n\nIs <b> allowed?", "Hello?\n\nIs <b> allowed?", None),
]
UNREADABLE = [
    "",
    " \n",
    f"I will not write {REACHED} before I have it.",
    f"I will not write {GIVING_UP}",
    "我不写 [GIVING UP]",
    "<think>I have to say something",
    f"{REACHED}\n{GIVING_UP}",
    "Assistant: How can I help you?",
    "**Assistant**: How can I help you?",
    f"Assistant: bye\n{REACHED}",
    "User:",
]


@pytest.mark.parametrize(("text", "words", "end"), READ)
def test_what_a_user_says_is_sent_without_its_marks(text: str, words: str, end: str | None) -> None:
    reply = read_reply(text)
    assert reply is not None
    assert (reply.words, reply.end) == (words, end)


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_reply_that_says_nothing_or_two_things_is_not_read(text: str) -> None:
    assert read_reply(text) is None


def test_a_mark_that_was_not_agreed_on_is_dropped() -> None:
    reply = read_reply(f"Fine.\n{REACHED}", (GAVE_UP,))
    assert reply is not None
    assert (reply.words, reply.end) == ("Fine.", None)
    assert read_reply(REACHED, (GAVE_UP,)) is None


@pytest.mark.parametrize(
    ("simulate", "user", "ended_by", "answers", "user_requests"),
    [
        ({}, says("Hi.", "More?", REACHED), "goal", 2, 3),
        ({}, says("Hi.", f"Thanks. {REACHED}"), "goal", 1, 2),
        ({}, says("Hi.", GIVING_UP), "gave_up", 1, 2),
        ({"max_turns": 3}, says("Hi.", "No."), "limit", 3, 4),
        ({"max_turns": 1}, says("Hi.", REACHED), "goal", 1, 2),
        ({"max_turns": 1}, says("Hi.", GIVING_UP), "gave_up", 1, 2),
        ({"opening": "Hello."}, says("Hi.", REACHED), "goal", 1, 1),
        ({"opening": "Hello.", "max_turns": 1}, says("Hi.", "No."), "limit", 1, 1),
        ({"done_when": {"type": "contains", "value": "Answer 2"}}, says("Hi."), "goal", 2, 2),
        ({"done_when": {"type": "contains", "value": "x"}, "max_turns": 2}, says("Hi."), "limit", 2, 2),
        ({"done_when": {"type": "contains", "value": "x"}}, says("Hi.", GIVING_UP), "gave_up", 1, 2),
        ({"done_when": {"type": "not-contains", "value": "x"}}, says(f"Hi. {REACHED}"), "goal", 1, 1),
        ({}, says(f"Hi.\n{REACHED}", REACHED), "goal", 1, 2),
    ],
)
def test_a_conversation_ends_by_its_goal_by_giving_up_or_at_the_limit(
    product: Product,
    simulate: Mapping[str, Any],
    user: Callable[[int, Any], str],
    ended_by: str,
    answers: int,
    user_requests: int,
) -> None:
    code = f"context.ended_by === '{ended_by}'"
    with server_of(user) as server:
        found = product.run(
            config(simulate, {"type": "ended-by", "value": ended_by}, {"type": "javascript", "value": code}),
            server,
        )
    [case] = found.cases
    assert (found.code, case["ended_by"], case["output"]) == (0, ended_by, f"Answer {answers}.")
    assert len(sent_to(server, "model")) == answers
    assert len(sent_to(server, "user")) == user_requests
    assert [turn["role"] for turn in case["turns"]] == ["user", "assistant"] * answers
    assert not [text for text in said(case) if "[[" in text]
    usage = found.results["summary"]["usage"]
    assert (usage["user"]["requests"], usage["generation"]["requests"]) == (user_requests, answers)


def test_what_does_not_end_as_asserted_fails(product: Product) -> None:
    with server_of(says("Hi.", GIVING_UP)) as server:
        found = product.run(
            config({}, {"type": "ended-by", "value": "goal"}, {"type": "not-ended-by", "value": "gave_up"}),
            server,
        )
    assert [(item["status"], item["reason"]) for item in found.verdicts] == [
        ("failed", "the user gave up"),
        ("failed", "the user gave up"),
    ]


@pytest.mark.parametrize(
    ("replies", "is_error"),
    [
        (("", "Hi."), False),
        ((f"I do not write {REACHED} yet", "Hi."), False),
        (("Assistant: What can I do for you?", "Hi."), False),
        (("", ""), True),
        (("Assistant: Hello", "Assistant: Hello"), True),
        ((REACHED, REACHED), True),
    ],
)
def test_a_reply_that_cannot_be_read_is_asked_for_once_more(
    product: Product, replies: tuple[str, str], is_error: bool
) -> None:
    rest = iter([*replies, REACHED])
    with server_of(lambda turn, body: next(rest)) as server:
        found = product.run(config({}), server)
    [case] = found.cases
    asked = sent_to(server, "user")
    assert asked[0][:-1] == asked[1][:-1]
    assert asked[1][-1][1].startswith(asked[0][-1][1])
    if is_error:
        assert case["error"]["type"] == "ProviderShapeError"
        assert case["error"]["message"].startswith(
            "at turn 1, the user: the reply of openai:user is no message"
        )
        assert (len(asked), case["status"], case.get("ended_by")) == (2, "error", None)
        assert sent_to(server, "model") == []
        assert case["usage"]["user"]["requests"] == 2
    else:
        assert (case["ended_by"], said(case)) == ("goal", ["Hi.", "Answer 1."])


@pytest.mark.parametrize("is_short_then", [True, False])
def test_what_a_token_limit_cut_off_is_not_sent(product: Product, is_short_then: bool) -> None:
    replies = iter(
        [
            ("I want my money back because the", "length"),
            ("Money back.", "stop" if is_short_then else "length"),
        ]
    )

    def respond(body: Any, headers: Any) -> Reply:
        if body["model"] != "user":
            return chat_reply("Answer.")
        text, end = next(replies, (REACHED, "stop"))
        return chat_reply(text, finish_reason=end)

    with LoopbackServer(respond=respond) as server:
        [case] = product.run(config({}), server).cases
    assert "That was too long" in sent_to(server, "user")[1][-1][1]
    if is_short_then:
        assert said(case) == ["Money back.", "Answer."]
    else:
        assert "the reply of openai:user was cut off by a token limit" in case["error"]["message"]
        assert case["error"]["hint"] == "raise `max_tokens` of `user`"
        assert sent_to(server, "model") == []


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ([{"user": "Hi."}], "`profiles` is not used: no test has a simulated user"),
        (
            {"simulate": {"goal": "g", "user": USER, "profile": "own"}},
            "all simulated users have their own `profile`",
        ),
        ({"simulate": {"goal": "g", "user": USER}}, None),
    ],
)
def test_profiles_that_no_test_uses_are_a_warning(product: Product, turns: Any, told: str | None) -> None:
    with server_of(says("Hi.")) as server:
        suite = config({}, test={"turns": turns}, profiles=["A student.", {"age": 70}])
        (product.folder / "config.yaml").write_text(json.dumps(suite), encoding="utf-8")
        found = product.command(server, "validate", "config.yaml", writes_results=False, names_home=False)
    assert found.code == 0
    assert (told or "") in found.stderr + found.stdout
    assert ("`profiles` is not used" in found.stderr + found.stdout) == (told is not None)


def test_replies_that_cannot_be_read_are_asked_for_again_by_a_retry(product: Product) -> None:
    replies = iter(["Hi.", "", "", "More?", REACHED])
    with server_of(lambda turn, body: next(replies)) as server:
        first = product.run(config({}), server)
        again = product.run(config({}), server, "--retry-errors")
    assert (first.cases[0]["status"], said(first.cases[0])) == ("error", ["Hi.", "Answer 1."])
    assert again.cases[0]["ended_by"] == "goal"
    assert said(again.cases[0]) == ["Hi.", "Answer 1.", "More?", "Answer 2."]
    assert len(server.requests) == 5 + 2  # what could be read was in the cache


def test_calls_of_tools_are_no_message_of_a_user(product: Product) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "open_door", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    with LoopbackServer(respond=lambda *_: Reply(body=body)) as server:
        [case] = product.run(config({}), server).cases
    assert "is no message of a user" in case["error"]["message"]
    assert sent_to(server, "model") == []


def test_an_error_of_the_user_or_its_judge_names_the_turn_and_keeps_what_was_said(product: Product) -> None:
    def refuse(turn: int, body: Any) -> str:
        return "Hi." if turn == 1 else ""

    judged = {"type": "g-eval", "criteria": "Solved.", "provider": JUDGE}  # who has no steps to say
    with server_of(refuse) as server:
        [case] = product.run(config({}), server).cases
        [other] = product.run(config({"opening": "Hi.", "done_when": judged}), server).cases
    assert said(case) == said(other) == ["Hi.", "Answer 1."]
    assert case["error"]["message"].startswith("at turn 2, the user: the reply of openai:user is no message")
    assert other["error"]["message"].startswith("at turn 2, the user: `done_when` could not be judged: ")
    assert other["usage"]["judge"]["requests"] > 0


def test_a_judge_in_done_when_counts_as_a_judge(product: Product) -> None:
    rates = {"type": "g-eval", "criteria": "It is solved.", "provider": JUDGE, "scoring": "single"}
    with server_of(says("Hi.")) as server:
        found = product.run(config({"done_when": {**rates, "evaluation_steps": ["Rate it."]}}), server)
    [case] = found.cases
    assert case["ended_by"] == "goal"
    assert (found.judge_usage["requests"], len(sent_to(server, "judge"))) == (1, 1)


def test_a_changed_prompt_pays_only_from_the_first_changed_answer_on(product: Product) -> None:
    def answer(turn: int, body: Any) -> str:
        is_new = "NEW" in body["messages"][0]["content"]
        return f"Answer {turn}{' changed' if is_new and turn >= 3 else ''}."

    def user(turn: int, body: Any) -> str:
        last = body["messages"][-1]["content"]
        return REACHED if turn == 6 else f"Message {turn} after {last[:30]}"

    with server_of(user, answer) as server:
        first = product.run(config({}), server)
        again = product.run(config({}), server)
        before = len(server.requests)
        changed = product.run(config({}, prompts=[{"system": "NEW. You are a clerk."}]), server)
        rest = [request.json for request in server.requests[before:]]
    assert first.results["summary"]["usage"]["user"]["requests"] == 6
    assert again.results["summary"]["usage"]["user"]["cached_requests"] == 6
    assert before == 6 + 5
    # All answers are to another prompt; the user hears what it knows twice, and something new from then on.
    assert Counter(body["model"] for body in rest) == {"model": 5, "user": 3}
    assert changed.results["summary"]["usage"]["user"]["cached_requests"] == 3


def test_each_repeat_is_another_conversation_and_no_cache_pays_again(product: Product) -> None:
    with server_of(says("Hi.", REACHED)) as server:
        product.run(config({}), server, "--repeat", "3")
        assert len(server.requests) == 9
        product.run(config({}), server, "--repeat", "3")
        assert len(server.requests) == 9
        product.run(config({}), server, "--repeat", "3", "--no-cache")
        assert len(server.requests) == 18
        offline = product.run(config({}), server, "--repeat", "3", "--offline")
        assert (len(offline.cases), offline.cases[0]["ended_by"], len(server.requests)) == (3, "goal", 18)
        missing = product.run(config({"goal": "Something else."}), server, "--offline")
    assert missing.cases[0]["error"]["type"] == "OfflineError"


def test_the_plan_counts_the_most_that_it_can_take_and_nothing_is_sent(product: Product) -> None:
    judged = {"type": "g-eval", "criteria": "Solved.", "provider": JUDGE, "evaluation_steps": ["Rate."]}
    with server_of(says("Hi.", REACHED)) as server:
        plain = product.run(config({"max_turns": 4}), server, "--plan")
        with_judge = product.run(config({"max_turns": 4, "done_when": judged}), server, "--plan")
        assert server.requests == []
        product.run(config({"max_turns": 4}), server)
        known = product.run(config({"max_turns": 4}), server, "--plan")

    def most(finished: Any) -> Counter[str]:
        found: Counter[str] = Counter()
        for row in finished.results["rows"]:
            found[f"{row['role']} {row['purpose']}"] += row["most"]
        return found

    assert most(plain) == {"generation answers": 4, "user user turns": 5}
    assert most(with_judge)["judge ratings"] + most(with_judge)["judge samples"] >= 4
    assert most(with_judge)["user user turns"] == 4
    assert sum(most(known).values()) == 0


@pytest.mark.parametrize("most", [3, 9, 10, 17, 18, 30])
def test_a_budget_leaves_whole_conversations(product: Product, most: int) -> None:
    tests = [
        {"vars": {"n": number}, "turns": {"simulate": {"goal": f"Goal {number}."}}} for number in range(4)
    ]
    default = {
        "turns": {"simulate": {"user": USER, "max_turns": 4}},
        "assert": [{"type": "ended-by", "value": "goal"}],
    }
    suite = {
        "prompts": [{"system": "Clerk for {{ n }}."}], "providers": MODEL, "defaultTest": default, "tests": tests,
    }  # fmt: skip

    def user(turn: int, body: Any) -> str:
        goal = body["messages"][0]["content"].split("Goal ")[1][0]
        return REACHED if turn == 3 else f"Message {turn} of {goal}."

    with server_of(user) as server:
        found = product.run(suite, server, "--max-requests", str(most))
    # A case takes 5 requests here and could take 9, so it begins only where so many are left.
    whole = 0 if most < 9 else min(4, 1 + (most - 9) // 5)
    assert len(server.requests) == whole * 5
    assert [case["status"] for case in found.cases] == ["passed"] * whole


@pytest.mark.parametrize(("most_usd", "whole"), [("0.009", 2), ("0.013", 3), ("0.018", 4), ("1", 6)])
@pytest.mark.parametrize("is_simulated", [True, False])
def test_a_budget_in_money_leaves_whole_conversations(
    product: Product, most_usd: str, whole: int, is_simulated: bool
) -> None:
    price = {"price": {"input": 100, "output": 100}}  # a dollar for a thousand answers of ten tokens
    turns: Any = [{"user": "Hi."}, {"user": "More?"}, {"user": "Bye."}, {"user": "Really."}]
    if is_simulated:
        turns = {
            "simulate": {"goal": "g {{ number }}", "user": {"id": USER, "config": price}, "max_turns": 5}
        }
    suite = {
        "prompts": [{"system": "Clerk {{ number }}."}],
        "providers": {
            "id": MODEL,
            "config": {"price": {"input": 0.001, "output": 0.001}} if is_simulated else price,
        },
        "tests": [{"vars": {"number": number}, "turns": turns} for number in range(6)],
    }
    with server_of(says("Hi.", "More?", "Bye.", REACHED)) as server:
        found = product.run(suite, server, "--max-cost", most_usd, "--no-cache", "-j", "4")
    assert len(found.cases) == whole
    assert all(len(case["turns"]) == (6 if is_simulated else 8) for case in found.cases)
    assert sum(usage["cost_usd"] for usage in found.results["summary"]["usage"].values()) <= float(most_usd)


PROFILES: list[tuple[Any, Mapping[str, str], list[Any]]] = [
    (["in a hurry", {"name": "Rosa", "age": 70}], {}, ["in a hurry", {"name": "Rosa", "age": 70}]),
    ("file://p.csv", {"p.csv": 'name,job\nAnn,"clerk, part-time"\nBob,\n'},
     [{"name": "Ann", "job": "clerk, part-time"}, {"name": "Bob"}]),
    ("file://p.csv", {"p.csv": "profile\nA shy person.\nA loud one.\n"}, ["A shy person.", "A loud one."]),
    ("file://p.jsonl", {"p.jsonl": '"shy"\n{"name": "Kim", "mood": {"now": "angry"}}\n'},
     ["shy", {"name": "Kim", "mood": {"now": "angry"}}]),
    ("file://p.yaml", {"p.yaml": "- shy\n- {name: Kim}\n"}, ["shy", {"name": "Kim"}]),
    (["loud", "file://p.tsv"], {"p.tsv": "name\tage\nAnn\t7\n"}, ["loud", {"name": "Ann", "age": "7"}]),
]  # fmt: skip


@pytest.mark.parametrize(("written", "files", "profiles"), PROFILES)
def test_each_profile_is_a_test_of_its_own(
    product: Product, written: Any, files: Mapping[str, str], profiles: list[Any]
) -> None:
    for name, text in files.items():
        (product.folder / name).write_text(text, encoding="utf-8")
    suite = config({}, profiles=written, test={"description": "refund"})
    suite["tests"] += [
        {"turns": {"simulate": {"goal": "x", "user": USER, "profile": "own"}}},
        {"turns": [{"user": "Hi."}]},
    ]
    with server_of(says("Hi.", REACHED)) as server:
        found = product.run(suite, server)
        again = product.run(suite, server, "--filter-pattern", r"refund \(")
    assert [case["vars"] for case in found.cases] == [
        *({"profile": item} for item in profiles),
        {"profile": "own"},
        {},
    ]
    assert [case["test_index"] for case in found.cases] == list(range(len(profiles) + 2))
    assert len({case["test_key"] for case in found.cases}) == len(profiles) + 2
    assert len(again.cases) == len(profiles)
    told = {messages[0][1] for messages in sent_to(server, "user")}
    for item in profiles:
        traits = [item] if isinstance(item, str) else [f"- {name}: " for name in item]
        assert any(all(trait in text for trait in traits) for text in told)


def test_a_test_without_a_description_is_shown_with_its_profile(product: Product) -> None:
    suite = config({}, profiles=[{"name": "Rosa", "age": 70}, "A shy person."])
    with server_of(says("Hi.", REACHED)) as server:
        cases = product.run(suite, server).cases
    assert [case["description"] for case in cases] == ["Rosa", "A shy person."]


@pytest.mark.parametrize(
    ("name", "text"), [("p.csv", "name,age\n"), ("p.jsonl", "\n"), ("p.json", "[]"), ("p.yaml", "[]")]
)
@pytest.mark.parametrize("is_listed", [True, False])
def test_files_without_profiles_are_refused(product: Product, name: str, text: str, is_listed: bool) -> None:
    (product.folder / name).write_text(text, encoding="utf-8")
    written = ["loud", f"file://{name}"] if is_listed else f"file://{name}"
    with server_of(says("Hi.")) as server:
        found = product.run(config({}, profiles=written), server)
    assert (found.code, server.requests) == (2, [])
    assert f"{name}` contains no profiles" in found.stderr


def test_the_key_of_a_test_is_left_out_by_what_defaultTest_has(product: Product) -> None:
    suite = config({})
    suite["defaultTest"] = {
        "turns": {"simulate": {"user": USER, "max_turns": 1, "opening": "Hello, {{ name }}."}}
    }
    suite["tests"] = [
        {"turns": {"simulate": {"goal": "About {{ name }}."}}, "vars": {"name": "a teapot"}},
        {"turns": {"simulate": {"goal": "g", "opening": "Own.", "max_turns": 2}}, "vars": {"name": "x"}},
        {"turns": [{"user": "Scripted."}], "vars": {"name": "x"}},
    ]
    with server_of(says("Hi.")) as server:
        cases = product.run(suite, server).cases
    assert [said(case)[0] for case in cases] == ["Hello, a teapot.", "Own.", "Scripted."]
    assert [case.get("ended_by") for case in cases] == ["limit", "limit", None]
    assert [len(case["turns"]) for case in cases] == [2, 4, 2]
    assert any("About a teapot." in messages[0][1] for messages in sent_to(server, "user"))


SECRETS = {
    "prompt": "SECRET-SYSTEM",
    "outcome": "SECRET-OUTCOME",
    "expected": "SECRET-EXPECTED",
    "context": "SECRET-CONTEXT",
    "criteria": "SECRET-CRITERIA",
    "done": "SECRET-PATTERN",
    "variable": "SECRET-VARIABLE",
    "metadata": "SECRET-METADATA",
    "scenario": "SECRET-SCENARIO",
    "description": "SECRET-DESCRIPTION",
    "tools": "SECRET-TOOL",
}


def test_the_user_sees_its_goal_its_profile_and_the_transcript_and_nothing_else(product: Product) -> None:
    tests = [
        {
            "description": SECRETS["description"],
            "vars": {"number": number, "hidden": SECRETS["variable"]},
            "expected_outcome": SECRETS["outcome"],
            "expected_output": SECRETS["expected"],
            "context": SECRETS["context"],
            "scenario": SECRETS["scenario"],
            "metadata": {"note": SECRETS["metadata"]},
            "turns": {"simulate": {"goal": f"Goal number {number}."}},
            "assert": [
                {
                    "type": "g-eval",
                    "criteria": SECRETS["criteria"],
                    "evaluation_steps": ["Rate."],
                    "provider": JUDGE,
                    "scoring": "single",
                }
            ],
        }
        for number in range(5)
    ]
    done = {"type": "regex", "value": f"{SECRETS['done']} {{{{ hidden }}}}"}
    suite = {
        "prompts": [
            {"label": "system", "system": f"{SECRETS['prompt']} {{{{ hidden }}}} {{{{ profile }}}}"},
            {
                "label": "chat",
                "messages": [
                    {"role": "system", "content": SECRETS["prompt"]},
                    {"role": "user", "content": f"{SECRETS['prompt']} {{{{ input }}}} {{{{ hidden }}}}"},
                ],
            },
        ],
        "providers": [
            {"id": MODEL, "config": {"tools": [{"type": "function", "function": {"name": SECRETS["tools"]}}]}}
        ],
        "profiles": ["Profile one.", {"name": "Profile two"}],
        "defaultTest": {"turns": {"simulate": {"user": USER, "max_turns": 8, "done_when": done}}},
        "tests": tests,
    }

    def user(turn: int, body: Any) -> str:
        mark = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:8]
        return GIVING_UP if turn == 6 else f"Message {turn} {mark}."

    def answer(turn: int, body: Any) -> str:
        return f"Answer {hashlib.sha256(json.dumps(body['messages']).encode()).hexdigest()[:8]}."

    with server_of(user, answer) as server:
        found = product.run(suite, server)
    bodies = [request for request in server.requests if request.json["model"] == "user"]
    assert len(bodies) >= 100
    leaks = [
        (name, text) for request in bodies for name, text in SECRETS.items() if text.encode() in request.body
    ]
    assert leaks == []
    # The conversation that it saw is the one that was held: nothing of it is missing, and nothing else is in it.
    heard = {tuple(content for role, content in messages[2:]) for messages in sent_to(server, "user")}
    assert {tuple(said(case)) for case in found.cases} <= heard
    texts = {text for case in found.cases for text in said(case)}
    assert {text for transcript in heard for text in transcript} == texts
    assert {case["ended_by"] for case in found.cases} == {"gave_up"}


def test_a_program_that_plays_the_user_is_given_no_variables(product: Product) -> None:
    (product.folder / "user.py").write_text(
        "import json\n"
        "def call_api(prompt, options, context):\n"
        "    seen = json.dumps([prompt, context], default=str)\n"
        "    return {'output': 'LEAK' if 'SECRET' in seen else '[[GOAL REACHED]]' if 'Answer 1' in seen else 'Hi.'}\n",
        encoding="utf-8",
    )
    secret = {"vars": {"hidden": "SECRET"}, "expected_outcome": "SECRET", "expected_output": "SECRET"}
    with server_of(says("")) as server:
        [case] = product.run(config({"user": "python:user.py"}, test=secret), server).cases
        refused = product.run(config({"user": "python:user.py"}), server, "--untrusted")
    assert (case["ended_by"], said(case)) == ("goal", ["Hi.", "Answer 1."])
    assert refused.code == 2
    assert "--untrusted" in refused.stderr


@pytest.mark.parametrize(
    ("simulate", "options", "told"),
    [
        ({"done_when": {"type": "python", "value": "True"}}, ("--untrusted",), "runs code"),
        ({"user": "openai:user", "done_when": {"type": "webhook", "value": "http://127.0.0.1:9/"}},
         ("--untrusted",), "a webhook sends outputs"),
        ({}, ("--batch",), "conversations with simulated users cannot be sent in batches"),
        ({}, ("--batch-judge",), "conversations with simulated users cannot be sent in batches"),
        ({"user": "opnai:x"}, (), "unknown provider `opnai:x`"),
        ({"user": "none"}, (), "`none` cannot play a user"),
        ({"user": "anthropic:x"}, (), "ANTHROPIC_API_KEY"),
        ({"profile": "x", "goal": "{{ tea }}"}, (), "undefined variable `tea`"),
        ({"opening": "{{ tea }}"}, (), "undefined variable `tea`"),
        ({"done_when": "{{ tea }}"}, (), "undefined variable `tea`"),
        ({"done_when": {"type": "regex", "value": "("}}, (), "broken regular expression"),
        ({"done_when": {"type": "not-ended-by", "value": "goal"}}, (), "it cannot be `ended-by`"),
        ({"done_when": {"type": "human"}}, (), "it cannot be `human`"),
        ({"goal": "{{ input or '' }}"}, ("--var", "input="), "`goal` of test 1 is empty once rendered"),
        ({"opening": " {{ '' }}"}, (), "`opening` of test 1 is empty once rendered"),
        ({"profile": "x"}, ("--var", "profile=y"), "the variable `profile` hides the profile"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_a_request(
    product: Product, simulate: Mapping[str, Any], options: tuple[str, ...], told: str
) -> None:
    with server_of(says("Hi.")) as server:
        found = product.run(config(simulate, {"type": "ended-by", "value": "goal"}), server, *options)
    assert (found.code, server.requests) == (2, [])
    assert told in found.stderr


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ({"turns": {"simulate": {"user": USER}}}, "the simulated user of test 1 has no `goal`"),
        ({"turns": {"simulate": {"goal": "g"}}}, "the simulated user of test 1 has no `user`"),
        ({"turns": {"simulate": {"goal": "g", "user": USER, "max_turns": 0}}}, "`max_turns` must be"),
        ({"turns": [{"user": 5}]}, "turns[0]"),
        ({"turns": {"simulate": {"goal": "g", "usr": USER}}}, "did you mean `user`"),
        ({"turns": 7}, "`turns` must be a list"),
        ({"turns": [{"user": "Hi."}]}, "ended-by needs a simulated user, but test 1 has none"),
        ({"input": "Hello."}, "`input` is not used (in test 1)"),
    ],
)
def test_what_a_test_lacks_is_told_before_a_request(
    product: Product, test: Mapping[str, Any], told: str
) -> None:
    with server_of(says("Hi.", REACHED)) as server:
        suite = config({}, {"type": "ended-by", "value": "goal"}, test=test, profiles="file://none.csv")
        found = product.run(suite, server)
    assert (found.code, server.requests) == (2, [])
    assert told in found.stderr
    assert "there is no file `none.csv`" in found.stderr
    assert "needs the test's `input`" not in found.stderr
    turns = test.get("turns")
    is_broken = turns == 7 or "usr" in str(turns) or turns == [{"user": 5}]
    assert not (is_broken and "needs a simulated user" in found.stderr)


def test_stored_conversations_are_judged_again_without_playing_them(product: Product) -> None:
    with server_of(says("Hi.", "More?", GIVING_UP)) as server:
        product.run(config({}, {"type": "ended-by", "value": "goal"}, profiles=["a", "b"]), server)
        before = len(server.requests)
        path = product.write(
            config({}, {"type": "ended-by", "value": "gave_up"}, profiles=["b", "a"], description="changed")
        )
        found = product.command(server, "judge", "latest", path.name)
        assert len(server.requests) == before
        over = {
            "type": "g-eval",
            "criteria": "Kind.",
            "evaluation_steps": ["Rate it."],
            "provider": JUDGE,
            "over": "answers",
            "scoring": "single",
        }
        answers = product.command(
            server, "judge", "latest", product.write(config({}, over, profiles=["b", "a"])).name
        )
    assert [(case["vars"]["profile"], case["status"]) for case in found.cases] == [
        ("b", "passed"),
        ("a", "passed"),
    ]
    assert {model for request in server.requests[before:] for model in [request.json["model"]]} == {"judge"}
    assert [len(item["detail"]["answers"]) for item in answers.verdicts] == [2, 2]


def test_results_show_how_the_conversation_ended(product: Product) -> None:
    with server_of(says("Hi.", GIVING_UP)) as server:
        found = product.run(
            config({}, {"type": "ended-by", "value": "goal"}, profiles=["a", "b"]), server,
            "-o", "r.csv", "-o", "r.md", "-o", "r.html",
        )  # fmt: skip
        shown = product.command(server, "show", "latest", "--case", "1", writes_results=False)
    assert found.code == 1
    header, _first, *_ = (product.folder / "r.csv").read_text("utf-8-sig").splitlines()
    assert header.endswith('"var profile","conversation","ended_by"')
    assert "gave_up" in (product.folder / "r.csv").read_text("utf-8")
    assert "\n`the user gave up`\n" in (product.folder / "r.md").read_text("utf-8")
    assert "ended   the user gave up" in shown.stdout


def test_workers_play_the_same_conversations(product: Product) -> None:
    suite = config({}, {"type": "ended-by", "value": "goal"}, profiles=[f"number {n}" for n in range(6)])
    with server_of(says("Hi.", "More.", REACHED)) as server:
        alone = product.run(suite, server)
        shared = product.run(suite, server, "--workers", "2", "--no-cache")
    assert [(case["id"], case["turns"], case["ended_by"]) for case in shared.cases] == [
        (case["id"], case["turns"], case["ended_by"]) for case in alone.cases
    ]


def roles_and_texts(path: str, body: Any) -> list[tuple[str, str]]:
    """The conversation in a request of any wire, as role and text."""
    if "contents" in body:
        system = body.get("systemInstruction", {}).get("parts", [])
        turns = [(item["role"], item["parts"][0]["text"]) for item in body["contents"]]
        return [*[("system", part["text"]) for part in system], *turns]
    listed = body["input"] if path.endswith("/responses") else body["messages"]
    system = [("system", body["system"])] if "system" in body else []
    return [*system, *((item["role"], text_of(item["content"])) for item in listed)]


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def wire_reply(path: str, text: str) -> Any:
    if path.endswith("/responses"):
        part = {"type": "output_text", "text": text}
        return {"status": "completed", "output": [{"type": "message", "content": [part]}]}
    if path.endswith("/messages"):
        return {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    if "generateContent" in path:
        return {"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]}
    return chat_reply(text)


WIRES = {
    "chat": "openai:{}",
    "responses": "openai:responses:{}",
    "anthropic": "anthropic:{}",
    "google": "google:{}",
}


@pytest.mark.parametrize("wire", WIRES)
def test_both_sides_transcript_on_every_wire(product: Product, wire: str) -> None:
    def respond(body: Any, headers: Any) -> Any:
        del headers
        path = server.requests[-1].path
        name = body.get("model") or path
        is_user = "user-m" in name
        transcript = roles_and_texts(path, body)
        own = sum(role in {"assistant", "model"} for role, _ in transcript)
        others = sum(role == "user" for role, _ in transcript)
        roles = [role for role, _ in transcript if role not in {"system", "developer"}]
        if not is_user:
            return wire_reply(path, f"Answer {others}.")
        assert roles[0] == "user"
        assert all(first != second for first, second in itertools.pairwise(roles)), roles
        return wire_reply(path, REACHED if own == 2 else f"Message {own + 1}.")

    with LoopbackServer(respond=respond) as server:
        settings = {
            "base_url": server.url if wire in {"anthropic", "google"} else server.base_url,
            "apiKey": "k-1",
        }
        suite = config(
            {"user": {"id": WIRES[wire].format("user-m"), "config": settings}},
            {"type": "ended-by", "value": "goal"},
            providers=[{"id": WIRES[wire].format("model-m"), "config": settings}],
        )
        [case] = product.run(suite, server, "-j", "1").cases
    assert said(case) == ["Message 1.", "Answer 1.", "Message 2.", "Answer 2."], case["error"]
    assert case["ended_by"] == "goal"


TRANSCRIPTS = 40


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
@pytest.mark.parametrize("options", [(), ("--no-cache",)], ids=["cache", "no-cache"])
def test_conversations_that_were_killed_are_resumed_without_paying_twice(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    suite = config(
        {}, {"type": "ended-by", "value": "goal"}, profiles=[f"number {n}" for n in range(TRANSCRIPTS)]
    )
    suite["prompts"] = [{"system": "You are the clerk of {{ profile }}."}]
    (tmp_path / "config.yaml").write_text(json.dumps(suite), encoding="utf-8")

    def reply(body: Any, words: str) -> str:
        return f"{words} {hashlib.sha256(json.dumps(body).encode()).hexdigest()[:12]}."

    def user(turn: int, body: Any) -> str:
        return reply(body, "Message") if turn < 4 else f"{reply(body, 'Thanks')}\n{REACHED}"

    with server_of(user, lambda _, body: reply(body, "Answer")) as server:
        environment = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-kill")
        words = (
            "run",
            "config.yaml",
            "--home",
            "home",
            "--no-progress",
            "-j",
            str(AT_ONCE),
            "-o",
            "r.json",
            *options,
        )
        paid_twice, kept = list[str](), set[str]()
        for at_least, more in ((60, ()), (150, ("--resume",)), (None, ("--resume",))):
            before = len(server.requests)
            process = start_geval(*words, *more, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
            if at_least is None:
                assert process.wait(timeout=120) == 0
            else:
                server.wait_for_requests(at_least)
                process.kill()
                process.wait()
            answers = {reply(request.json, "")[1:-1] for request in server.requests[before:]}
            paid_twice += [text for text in kept if any(mark in text for mark in answers)]
            kept = committed(tmp_path)
            assert kept
    sent = Counter(request.body for request in server.requests)
    results = json.loads((tmp_path / "r.json").read_text("utf-8"))["results"]
    assert [case["ended_by"] for case in results] == ["goal"] * TRANSCRIPTS
    assert [len(case["turns"]) for case in results] == [6] * TRANSCRIPTS
    assert paid_twice == []
    assert len(sent) == len(kept) == TRANSCRIPTS * 7
    # Lost is what was on the wire, and what had come and was being committed.
    assert sum(sent.values()) - len(sent) <= 2 * AT_ONCE * JOBS_PER_REQUEST


def committed(folder: Path) -> set[str]:
    """The answers in the cache, as texts."""
    with contextlib.closing(sqlite3.connect(folder / "home" / "cache.db")) as connection:
        rows = connection.execute("SELECT answer FROM choices").fetchall()
    return {json.loads(answer)["text"] for (answer,) in rows}


def test_tools_and_what_they_return_are_not_shown_to_the_user() -> None:
    call = {"id": "c1", "name": "find_order", "args": {"number": 7}}
    turns = [
        Turn("user", "Where is it?"),
        Turn("assistant", "Let me see.", (call,)),
        Turn("tool", "SECRET", tool_call_id="c1"),
        Turn("assistant", "It is lost."),
        Turn("user", "Again!"),
        Turn("assistant", "", (call,)),
        Turn("tool", "SECRET", tool_call_id="c1"),
    ]
    _, _, *shown = user_messages("Told.", turns)
    assert [(message.role, message.content, message.further) for message in shown] == [
        ("assistant", "Where is it?", {}),
        ("user", "Let me see.\n\nIt is lost.", {}),
        ("assistant", "Again!", {}),
        ("user", "(The assistant says nothing.)", {}),
    ]


def test_a_python_suite_plays_conversations_and_a_stored_output_does_not(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TestCase(turns={"simulate": {"goal": "Get a refund.", "user": USER}})
    with pytest.raises(UsageError, match="a stored output has no simulated user"):
        GEval("Kind", criteria="Kind.", model=JUDGE).evaluate(case)
    with server_of(says("Hi.", REACHED)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
        monkeypatch.chdir(product.folder)
        suite = Suite(
            name="conversations",
            prompts=["{{ input }}"],
            providers=MODEL,
            tests=[case],
            profiles=["Calm.", "Angry."],
        )
        found = run(suite)
    assert [(item.ended_by, item.output) for item in found.results] == [("goal", "Answer 1.")] * 2
    assert [item.vars["profile"] for item in found.results] == ["Calm.", "Angry."]

"""Servers that fail in every way at a given rate, so that the outcome of each test can be predicted.

The model `KIND` fails in the way that its name says. Whether an attempt fails depends only on the kind, the question
and the number of the attempt, not on the order in which requests arrive.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from support.judge_server import STEPS_TEXT, prompt_text
from support.loopback import Reply, chat_reply, error_reply

FAULTS: Mapping[str, Reply] = {
    "429": error_reply(429, "slow down", headers={"retry-after-ms": "20"}),
    "500": error_reply(500, "broken"),
    "503": error_reply(503, "overloaded"),
    "reset": Reply(reset=True),
    "hang": Reply(hang=True),
    "drip": Reply(body={"choices": []}, drip_s=0.3),
    "empty": Reply(body=""),
    "bad-json": Reply(body='{"choices": [{"message": {"content": "fi'),
    "wrong-shape": Reply(body={"choices": [{"message": {"role": "assistant"}}]}),
}
ERROR_TYPES: Mapping[str, str] = {
    "500": "ProviderUnavailableError",
    "503": "ProviderUnavailableError",
    "reset": "ProviderUnavailableError",
    "hang": "ProviderTimeoutError",
    "drip": "ProviderTimeoutError",
    "empty": "ProviderResponseError",
    "bad-json": "ProviderResponseError",
    "wrong-shape": "ProviderResponseError",
}
TIMEOUT_S = 1.0
MAX_RETRIES = 2


@dataclass
class FaultyServer:
    """The answers of a LoopbackServer: good ones, rated high, for even tests; bad ones, rated low, for odd ones."""

    rate: float
    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: set[tuple[str, str]] = field(default_factory=set)

    def respond(self, body: Any, headers: Mapping[str, str]) -> Reply:
        kind, question = body["model"].removeprefix("judge-"), prompt_text(body)
        is_judge = body["model"].startswith("judge-")
        about = _number_in(question)
        asked = (body["model"], question)
        self.attempts[asked] += 1
        # A slow machine may have received the answer too late and repeat the request.
        is_new = asked not in self.answered
        if kind in FAULTS and is_new and fails(kind, about, self.attempts[asked], self.rate, is_judge):
            return FAULTS[kind]
        self.answered.add(asked)
        if not is_judge:
            return chat_reply(answer_to(int(about)))
        if '"score"' not in question:
            return chat_reply(STEPS_TEXT)
        return chat_reply(json.dumps({"reason": "so it is", "score": 9 if "fine" in question else 1}))


def answer_to(number: int) -> str:
    return f"{'poor' if number % 2 else 'fine'}, says number {number};"


def fails(kind: str, about: str, attempt: int, rate: float, is_judge: bool) -> bool:
    """Return whether an attempt fails; requests for a judge's steps never do, because all tests depend on them."""
    if is_judge and not about:
        return False
    return random.Random(f"{kind} {about} {attempt} {is_judge}").random() < rate


def expected_status(kind: str, number: int, rate: float, *, is_judge: bool) -> str:
    """Return the correct status of a test: its true verdict, or an error if every allowed attempt fails."""
    attempts = range(1, MAX_RETRIES + 2)
    if kind != "429" and all(fails(kind, str(number), attempt, rate, is_judge) for attempt in attempts):
        return "error"
    return "failed" if number % 2 else "passed"


def provider(model: str, base_url: str) -> dict[str, Any]:
    settings = {
        "base_url": base_url,
        "api_key": "sk-faults",
        "max_retries": MAX_RETRIES,
        "max_concurrency": 50,
    }
    is_slow = model.removeprefix("judge-") in {"hang", "drip"}
    return {"id": f"openai:{model}", "config": {**settings, "timeout_s": TIMEOUT_S if is_slow else 60.0}}


def generation_config(tests: int, base_url: str) -> dict[str, Any]:
    """Return a config with every kind of fault as a model under test, in one run."""
    return {
        "prompts": ["Say number {{ x }};"],
        "providers": [provider(kind, base_url) for kind in FAULTS],
        "defaultTest": {"assert": [{"type": "contains", "value": "fine"}]},
        "tests": [{"vars": {"x": number}} for number in range(tests)],
    }


def judge_config(tests: int, base_url: str) -> dict[str, Any]:
    """Return a config with every kind of fault as a judge; all of them judge each test."""
    checks = [
        {
            "type": "g-eval",
            "criteria": "It is as it should be.",
            "evaluation_params": ["actual_output"],
            "metric": kind,
            "provider": provider(f"judge-{kind}", base_url),
        }
        for kind in FAULTS
    ]
    return {
        "defaultTest": {"assert": checks},
        "tests": [{"output": answer_to(number)} for number in range(tests)],
    }


def _number_in(question: str) -> str:
    found = re.search(r"number (\d+);", question)
    return found[1] if found else ""

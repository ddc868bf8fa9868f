"""A loopback server that plays model and judge: it answers each kind of judge prompt sensibly, or as scripted.

    with ModelServer(answer="Paris.", evaluate='{"reason": "Right.", "score": 9}') as server:
        ... run geval with OPENAI_BASE_URL=server.base_url ...
    assert len(server.asked("steps")) == 1

The reply to a kind of prompt is a text, a `Reply`, or a function of the request's body (sync or async) that returns one
of these. A text is repeated `n` times, as requested.
"""

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from support.loopback import LoopbackServer, Reply, chat_reply

STEPS = ("Read the text.", "Hold it against what is asked for.", "Rate it.")

# By the beginning of our prompts, so that the text of an output cannot confuse the server.
_BEGINNINGS = {
    "You are preparing an evaluation": "steps",
    "You are an evaluator": "evaluate",
    "You are a strict evaluator": "evaluate",
    "You rate a text on a single dimension": "form",
    "You rate a text on": "joint",
    "You decide whether a text": "form",
    "You check the Actual Output": "checklist",
    "A text was rated": "explain",
}
_SCALE = re.compile(r"from (\d+) \(worst\) to (\d+) \(best\)")

_ITEM = re.compile(r'^    "(\d+)": ', re.MULTILINE)
_OUTPUT = re.compile(r"<<<BEGIN Actual Output (\w+)>>>\n(.*?)\n<<<END Actual Output \1>>>", re.DOTALL)

_JOINT_SCALE = re.compile(r'"(\w+)": <your rating from \d+ \(worst\) to (\d+) \(best\)')

Answer = str | Reply
Says = Answer | Callable[[Any], Answer | Awaitable[Answer]]


class ModelServer(LoopbackServer):
    """Answers by kind of prompt: steps, evaluate, form, joint, checklist, explain; `answer` is for all others."""

    def __init__(self, **says: Says) -> None:
        """Script the replies; by default, every rating is good, with token probabilities if they are requested."""
        self._says: Mapping[str, Says] = {**_SENSIBLE, **says}
        super().__init__(respond=self._reply)

    def asked(self, kind: str) -> list[Any]:
        """Return the bodies of all requests of one kind, in order of arrival."""
        return [request.json for request in self.requests if kind_of(request.json) == kind]

    async def _reply(self, body: Any, headers: Mapping[str, str]) -> Reply:
        says = self._says[kind_of(body)]
        answer = says(body) if callable(says) else says
        if inspect.isawaitable(answer):
            answer = await answer
        return chat_reply(answer, n=body.get("n", 1)) if isinstance(answer, str) else answer


def prompt_of(body: Any) -> str:
    """Return the last prompt in a request, skipping a message that only says the reply could not be used."""
    asked = [str(message["content"]) for message in body["messages"] if message["role"] != "assistant"]
    return asked[-2] if asked[-1].startswith("Your reply could not be used") else asked[-1]


def kind_of(body: Any) -> str:
    """Return which of geval's judge prompts a request contains; `answer` if none."""
    prompt = prompt_of(body)
    return next((kind for start, kind in _BEGINNINGS.items() if prompt.startswith(start)), "answer")


def verdict(score: float, reason: str = "It does what is asked.") -> str:
    """Return a judge's reply in the criteria form."""
    return json.dumps({"reason": reason, "score": score})


def weighed(shares: Mapping[str, float], body: Any) -> Reply:
    """Return a rating whose token has these probabilities (the first is chosen), sent if `body` requests them."""
    text = next(iter(shares))
    entry = {token: math.log(share) for token, share in shares.items()}
    return chat_reply(text, n=body.get("n", 1), logprobs=[entry] if body.get("logprobs") else None)


def _good_verdict(body: Any) -> str:
    return verdict(1 if prompt_of(body).startswith("You are a strict") else 9)


def _good_form(body: Any) -> Reply:
    """Return the best rating at 80%, the next one at 20%; 1 in strict mode."""
    scale = _SCALE.search(prompt_of(body))
    best = int(scale[2]) if scale else 1
    return weighed({str(best): 0.8, str(best - 1): 0.2}, body)


def _good_ratings(body: Any) -> str:
    """Return the best rating of each dimension in a joint request."""
    return json.dumps({name: int(best) for name, best in _JOINT_SCALE.findall(prompt_of(body))})


def _all_yes(body: Any) -> str:
    """Return yes for each item of a checklist, with the whole output as evidence."""
    output = _OUTPUT.search(prompt_of(body))
    reply = {"reason": "It does.", "evidence": output[2] if output else "", "answer": "yes"}
    return json.dumps(dict.fromkeys(_ITEM.findall(prompt_of(body)), reply))


_SENSIBLE: Mapping[str, Says] = {
    "steps": json.dumps({"steps": STEPS}),
    "evaluate": _good_verdict,
    "form": _good_form,
    "joint": _good_ratings,
    "checklist": _all_yes,
    "explain": "The last sentence repeats the first.",
    "answer": "Elmsund has a new ferry terminal.",
}

"""The requests that geval and promptfoo send for the same configs, compared one by one.

Needs promptfoo (`GEVAL_PROMPTFOO`, see tests/support/promptfoo_live.py) and its configs next to the project; prints a
note if either is missing. Model requests are equal if their method, URL, parameters and messages are. Judge requests
are compared only by URL and parameters, since geval has its own judge prompts. Differences without a meaning to the API
are ignored.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.loopback import RecordedRequest
from support.promptfoo_facts import ENVIRONMENTS, FACTS, IS_READ, number_of, parameters_in, write_config
from support.promptfoo_live import COMMAND, installed, recording_server, sent_by_geval, sent_by_promptfoo
from support.promptfoo_rows import ROOT, recorded_configs

_SPOKEN = ("messages", "input", "contents", "system", "systemInstruction", "prompt")
_ROLE_LINE = re.compile(r"^\s*(?:user|assistant|system|thinking):", re.MULTILINE)
_NO_WORDS = re.compile(r"\W+")
_SHOWN = 300


def run(only: str = "") -> None:
    if not installed():
        print(f"promptfoo is not installed: set {COMMAND} to the command that starts it; nothing to compare")
        return
    _record_facts()
    configs = [item.path for item in recorded_configs("generous") if only in item.config]
    if not configs:
        print(f"no configs of promptfoo at {ROOT}; nothing to compare")
        return
    sums: Counter[str] = Counter()
    for path in configs:
        with recording_server() as server:
            theirs, their_rows, told = sent_by_promptfoo(path, server, {})
            ours, our_rows, _ = sent_by_geval(path, server, {})
        if not their_rows:
            print(f"promptfoo gave no rows for {path}: {told[-_SHOWN:]}")
        prompts = {_words(row["prompt"]["raw"]) for row in their_rows}
        prompts |= {_words(row["prompt"]["rendered"]) for row in our_rows}
        found = _compared(theirs, ours, prompts, str(path.relative_to(ROOT / "configs")))
        sums += found
    asked, judged = sums["asked"], sums["judged"]
    print(f"requests to models equal: {sums['equal']} of {asked}; sent by geval alone: {sums['alone']}")
    print(
        f"configs that ask models and are wholly equal: {sums['whole']} of {sums['configs']} "
        f"({len(configs) - sums['configs']} others ask none)"
    )
    print(f"requests of judges with equal parameters: {sums['judged_equal']} of {judged}")


def _record_facts() -> None:
    """Compare the facts in the tests with what promptfoo sends."""
    equal = total = 0
    for env, values in ENVIRONMENTS.items():
        facts = [fact for fact in FACTS if fact.env == env and not fact.provider.startswith(IS_READ)]
        with tempfile.TemporaryDirectory() as folder, recording_server() as server:
            path = write_config(Path(folder), facts, server.url)
            requests, _, told = sent_by_promptfoo(path, server, values)
        found = {number_of(request.path): parameters_in(request.json) for request in requests}
        if not found:
            print(told[-_SHOWN:])
        for number, fact in enumerate(facts):
            total += 1
            equal += found.get(number) == fact.sent
            if found.get(number) != fact.sent:
                print(f"{fact.provider} {dict(fact.written)} {env}: promptfoo sends {found.get(number)}")
    print(f"facts of the tests that hold for promptfoo: {equal} of {total}")


def _compared(
    theirs: Iterable[RecordedRequest], ours: Iterable[RecordedRequest], prompts: set[str], config: str
) -> Counter[str]:
    asked, judged = _sorted(theirs, prompts)
    our_asked, our_judged = _sorted(ours, prompts)
    # geval sends equal concurrent requests only once.
    equal = sum(count for request, count in asked.items() if request in our_asked)
    alone = sum((our_asked - Counter(dict.fromkeys(asked, max(our_asked.values(), default=0)))).values())
    for request in [request for request in asked if request not in our_asked][:2]:
        print(f"{config}: promptfoo {request[:_SHOWN]}")
    for request in [request for request in our_asked if request not in asked][:2]:
        print(f"{config}: geval     {request[:_SHOWN]}")
    judged_equal = sum(count for request, count in judged.items() if request in our_judged)
    return Counter(
        asked=sum(asked.values()),
        equal=equal,
        alone=alone,
        configs=bool(asked),
        whole=bool(asked) and asked.keys() == our_asked.keys(),
        judged=sum(judged.values()),
        judged_equal=judged_equal,
    )


def _sorted(requests: Iterable[RecordedRequest], prompts: set[str]) -> tuple[Counter[str], Counter[str]]:
    """Return the complete model requests, and the judge requests without their texts."""
    asked: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    for request in requests:
        body = plain(request.json)
        where = f"{request.method} {request.path}"
        said = {name: body[name] for name in _SPOKEN if name in body}
        if _words("".join(_texts(said))) in prompts:
            asked[f"{where} {json.dumps(body, sort_keys=True)}"] += 1
        else:
            bare = {name: value for name, value in body.items() if name not in _SPOKEN}
            judged[f"{where} {json.dumps(bare, sort_keys=True)}"] += 1
    return asked, judged


def plain(body: Any) -> Any:
    """Return a body without what means nothing to the API: nulls, default values, lists of a single text."""
    found = {name: value for name, value in dict(body or {}).items() if value not in (None, {})}
    if found.get("stream") is False:
        del found["stream"]
    text = found.get("text")
    if isinstance(text, dict) and text.get("format") == {"type": "text"}:
        found["text"] = {name: value for name, value in text.items() if name != "format"}
        if not found["text"]:
            del found["text"]
    for name in _SPOKEN:
        if name in found:
            found[name] = _spoken(found[name])
    return found


def _spoken(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        only = value[0]
        if only.keys() == {"type", "text"} and only["type"] == "text":
            return only["text"]
    if isinstance(value, list):
        return [_spoken(item) for item in value]
    if isinstance(value, dict):
        return {name: _spoken(item) if name == "content" else item for name, item in value.items()}
    return value


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in messages in the order of a prompt: system messages first."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping):
        for name in dict.fromkeys(("system", "systemInstruction", *_SPOKEN, "content", "parts", "text")):
            yield from _texts(value.get(name))


def _words(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, list):
        # Some APIs have the system message in a separate place.
        found.sort(key=lambda item: not (isinstance(item, dict) and item.get("role") == "system"))
        text = "".join(_texts(found)) or text
    return _NO_WORDS.sub("", _ROLE_LINE.sub("", text))


if __name__ == "__main__":
    run(*sys.argv[1:])

"""Runs stored as real runs are: with a config, scripted models and the run service."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from geval_cli.engine.runner import StopSignal
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.store.state import open_state

HOSTILE = {
    "script": "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>",
    "end of page": "</pre></article></dialog></main><h1>Hacked</h1>",
    "template": "{{ 7 * 191 }} {% if true %}yes{% endif %}",
    "long line": "x" * 20_000,
    "right to left": "\u202eesrever\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308",
    "control": "bell\x07 escape\x1b[31m zero\x00 hidden\u200bspace",
}


def write_config(folder: Path, name: str, tests: Sequence[Any], **keys: Any) -> Path:
    """Write a config in JSON; without providers, the prompt is the output."""
    path = folder / name
    config = {"prompts": ["{{ x }}"], "providers": ["echo"], "tests": list(tests), **keys}
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def write_replies(folder: Path, name: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Write a file of scripted replies; return the id of the provider that reads it."""
    (folder / name).write_text(json.dumps(list(entries)), encoding="utf-8")
    return f"scripted:{name}"


def store_run(config: Path, **options: Any) -> str:
    """Run `config` and return the id of the run, which is stored in `.geval` next to it."""
    prepared = prepare(RunRequest(config, {}, **options))
    with open_state(config.parent / ".geval", {}) as state:
        running = run_evaluation(prepared, state, listen=lambda event: None, stop=StopSignal())
        # In a separate thread: while a browser is open, an event loop is running in this one.
        with ThreadPoolExecutor(1) as pool:
            report = pool.submit(asyncio.run, running).result()
    return report.run.id


def hostile_tests() -> list[dict[str, Any]]:
    """Return tests whose outputs try to be interpreted as markup or control codes."""
    return [
        {
            "description": f"{name} {text}"[:300],
            "vars": {"x": text},
            "assert": [{"type": "contains", "value": text}],
        }
        for name, text in HOSTILE.items()
    ]


def store_hostile_run(folder: Path, **assertion: Any) -> str:
    """Store a run of `hostile_tests` that all pass; keywords are added to the assertion of each."""
    tests = [{**test, "assert": [{**test["assert"][0], **assertion}]} for test in hostile_tests()]
    return store_run(write_config(folder, "hostile.json", tests))


def store_judged_run(folder: Path, name: str = "judged.json", *, good: Sequence[str] = ("one", "two")) -> str:
    """Store a run of two prompts and three tests rated by a scripted judge; the outputs of `good` tests are good."""
    model = write_replies(
        folder,
        "model.json",
        [
            *({"match": f"about {word}", "reply": f"a fine answer about {word}"} for word in good),
            {"match": "about three", "error": {"status": 503, "message": "overloaded"}},
            {"default": "a poor answer"},
        ],
    )
    judge = write_replies(
        folder,
        "judge.json",
        [
            {"match": '"steps"', "reply": json.dumps({"steps": ["Read it.", "Rate it."]})},
            {"match": "fine answer", "reply": "5", "logprobs": {"5": 0.7, "4": 0.2, "3": 0.1}},
            {"default": "2", "logprobs": {"2": 0.6, "1": 0.4}},
        ],
    )
    prompts = [
        {"id": "plain", "raw": "Tell me about {{ x }}."},
        {
            "id": "chat",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "about {{ x }}"},
            ],
        },
    ]
    checks = [
        {
            "type": "g-eval",
            "dimension": "coherence",
            "metric": "coherence",
            "scoring": "logprobs",
            "provider": judge,
        },
        {"type": "contains", "value": "answer", "weight": 2},
    ]
    tests = [
        {"description": f"test {word}", "vars": {"x": word}, "assert": checks}
        for word in ("one", "two", "three")
    ]
    provider = {"id": model, "label": "model", "config": {"max_retries": 0}}
    return store_run(write_config(folder, name, tests, prompts=prompts, providers=[provider]))

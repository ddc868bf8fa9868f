import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.calls import answer, ask, provider, run

from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderShapeError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.providers.base import Provider
from geval_cli.records import ModelRequest, ModelResponse

CODE = """
import asyncio, os, sys, time
import neighbour

calls = 0

def call_api(prompt, options, context):
    global calls
    calls += 1
    print("noise on stdout", calls)
    sys.stdout.flush()
    os.system("echo noise of a child")
    return {
        "output": f"{calls}: {prompt} {options['config']['style']} {context['sample_index']}",
        "token_usage": {"prompt": 3, "completion": 2},
        "cost": 0.5,
    }

def one(prompt):
    return neighbour.shout(prompt)

async def later(prompt, options):
    await asyncio.sleep(0)
    return [prompt, options["id"]][0]

def data(prompt):
    return {"output": {"answer": 42}}

def variables(prompt, options, context):
    return {"output": context["vars"]}

def counted(prompt):
    return {"output": prompt, "token_usage": {"prompt": 3, "completion": 2}}

def reported(prompt):
    return {"error": "no luck"}

def number(prompt):
    return 7

def unserializable(prompt):
    return {"output": object()}

def raises(prompt):
    raise ValueError("bad sk-0123456789abcdef")

def crash(prompt):
    print("about to die", file=sys.stderr)
    sys.stderr.flush()
    os._exit(3)

def hang(prompt):
    if prompt == "wait":
        open("hangs", "w").close()
        time.sleep(600)
    return f"{os.getpid()}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "neighbour.py").write_text("def shout(text):\n    return text.upper()\n", encoding="utf-8")
    return tmp_path


def build(folder: Path, function: str = "", **config: Any) -> Provider:
    name = f"python:mine.py:{function}" if function else "python:mine.py"
    return provider(name, config, env=os.environ, base_dir=folder)


def call(folder: Path, function: str, *requests: ModelRequest, **config: Any) -> list[ModelResponse]:
    return run(answer(build(folder, function, **config), *requests))


def failure(folder: Path, function: str) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        call(folder, function)
    return caught.value


def test_one_process_serves_all_calls_and_prints_do_no_harm(folder: Path) -> None:
    first, second = call(folder, "", ask("a"), ask("b", sample_indexes=(4,)), style="dry")
    assert (first.text, second.text) == ("1: a dry 0", "2: b dry 4")
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.cost_usd) == (3, 2, 0.5)


@pytest.mark.parametrize(
    ("function", "text"), [("one", "SAY HI."), ("later", "Say hi."), ("data", '{"answer": 42}')]
)
def test_functions_of_every_shape_work(folder: Path, function: str, text: str) -> None:
    assert call(folder, function)[0].text == text


def test_what_the_function_raises_is_an_error_without_keys(folder: Path) -> None:
    error = failure(folder, "raises")
    assert isinstance(error, ProviderRequestError)
    assert "ValueError: bad ***" in error.message
    assert "mine.py" in error.body
    assert "0123456789abcdef" not in error.body


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("reported", ProviderRequestError, "no luck"),
        ("absent", ProviderRequestError, "absent"),
        ("unserializable", ProviderRequestError, "not a JSON value"),
        ("number", ProviderShapeError, "returned int"),
        ("crash", ProviderUnavailableError, "about to die"),
    ],
)
def test_failures_are_classified(folder: Path, function: str, kind: type[ProviderError], words: str) -> None:
    error = failure(folder, function)
    assert type(error) is kind
    assert error.is_retryable == (function == "crash")
    assert words in error.message


def test_a_file_that_cannot_be_loaded_is_an_error(folder: Path) -> None:
    (folder / "mine.py").write_text("import no_such_module_here\n", encoding="utf-8")
    assert "no_such_module_here" in failure(folder, "one").message


def wait_for(file: Path) -> None:
    while not file.exists():
        threading.Event().wait(0.01)


def test_after_a_timeout_a_new_process_answers(folder: Path) -> None:
    async def body() -> tuple[str, str]:
        model = build(folder, "hang", timeout_s=60)
        quick = build(folder, "hang", timeout_s=0.2)
        try:
            with pytest.raises(ProviderTimeoutError, match=r"0\.2 s"):
                await quick.complete(ask("wait"))
            before = (await model.complete(ask("go"))).text
            (folder / "hangs").unlink(missing_ok=True)  # the impatient call may have come as far
            waiting = asyncio.create_task(model.complete(ask("wait")))
            await asyncio.to_thread(wait_for, folder / "hangs")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return before, (await model.complete(ask("go"))).text
        finally:
            await model.aclose()
            await quick.aclose()
            await quick.aclose()

    before, after = run(body())
    assert before != after
    with pytest.raises(ProcessLookupError):
        os.kill(int(before), 0)


def test_calls_take_turns_where_one_process_is_wanted(folder: Path) -> None:
    async def body() -> list[str]:
        model = build(folder, style="x", max_concurrency=1)
        try:
            responses = await asyncio.gather(*[model.complete(ask(str(i))) for i in range(5)])
        finally:
            await model.aclose()
        return sorted(item.text[0] for item in responses)

    assert run(body()) == ["1", "2", "3", "4", "5"]
    assert build(folder).limits.max_concurrency == 4


def test_the_function_gets_the_tests_variables(folder: Path) -> None:
    request = ask(variables={"user": "u-1", "tags": ["a", {"b": None}]})
    [response] = call(folder, "variables", request)
    assert response.text == '{"user": "u-1", "tags": ["a", {"b": null}]}'


@pytest.mark.parametrize(
    ("function", "config", "cost_usd"),
    [
        ("counted", {}, None),
        ("counted", {"price": {"input": 1_000_000, "output": 2_000_000}}, 7.0),
        ("one", {"price": {"input": 1, "output": 2}}, None),
        ("one", {"price": {"input": 0, "output": 0}}, 0.0),
    ],
)
def test_a_call_costs_what_function_and_config_say(
    folder: Path, function: str, config: dict[str, Any], cost_usd: float | None
) -> None:
    assert call(folder, function, **config)[0].usage.cost_usd == cost_usd

"""The real llama.cpp with the real small model; the fast tests below need neither."""

import asyncio
import json
import math
import os
from pathlib import Path

import pytest
from support.calls import answer, ask, provider, run
from support.geval_command import run_geval
from support.loopback import LoopbackServer, chat_reply

from geval_cli.errors import ProviderRequestError
from geval_cli.extras.embeddings import cosine
from geval_cli.extras.local.llama_server import (
    LlamaPool,
    LlamaServer,
    LlamaSettings,
    TokenBudget,
    names_pooling,
)
from geval_cli.extras.local.provider import LocalProvider, LocalSource
from geval_cli.providers.base import Provider
from geval_cli.providers.registry import check_provider
from geval_cli.records import Message, ModelRequest, ModelResponse
from geval_cli.specs.base import ProviderSpec

SCORE_SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}


def smollm2() -> Provider:
    return provider("local:smollm2", {"temperature": 0, "max_tokens": 12}, env=os.environ)


@pytest.mark.local_model
def test_the_local_model_keeps_the_promises_of_a_provider(capfd: pytest.CaptureFixture[str]) -> None:
    async def body() -> None:
        model, twin = smollm2(), smollm2()
        try:
            plain, again = await asyncio.gather(model.complete(ask()), twin.complete(ask()))
            assert plain.text == again.text != ""
            assert plain.model == "smollm2"
            assert plain.usage.input_tokens > 0
            assert plain.usage.cost_usd == 0

            await logprobs_are_distributions(model)
            await many_samples_are_given_in_portions(model)
            await the_schema_shapes_the_answer(model)
            await a_prompt_beyond_the_context_is_refused(model)

            await twin.aclose()
            assert (await model.complete(ask())).text == plain.text
        finally:
            await model.aclose()
            await twin.aclose()

    run(body())
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


async def logprobs_are_distributions(model: Provider) -> None:
    response = await model.complete(ask("Rate this from 1 to 5.", want_logprobs=True))
    tokens = response.choices[0].token_logprobs or ()
    assert "".join(token.text for token in tokens).strip() == response.text.strip()
    assert len(tokens[0].alternatives) == 20
    assert 0.3 < sum(math.exp(item.logprob) for item in tokens[0].alternatives) <= 1.0001


async def many_samples_are_given_in_portions(model: Provider) -> None:
    response = await model.complete(ask(sample_indexes=tuple(range(20)), params={"max_tokens": 1}))
    assert len(response.choices) == 4


async def the_schema_shapes_the_answer(model: Provider) -> None:
    request = ask("Rate this: good.", response_schema=SCORE_SCHEMA, params={"max_tokens": 30})
    assert isinstance(json.loads((await model.complete(request)).text)["score"], int)


async def a_prompt_beyond_the_context_is_refused(model: Provider) -> None:
    with pytest.raises(ProviderRequestError) as caught:
        await model.complete(ModelRequest((Message("user", "word " * 9000),)))
    assert "shorten it" in caught.value.hint


@pytest.mark.local_model
def test_a_rating_is_nothing_but_one_of_those_allowed() -> None:
    wishes = ask(
        "Rate the text `The cat sat on the mat.` from 1 to 5. Explain.",
        ratings=("1", "2", "3", "4", "5"),
        want_logprobs=True,
        sample_indexes=(0, 1, 2),
    )
    model = provider("local:smollm2", {"temperature": 1, "n_parallel": 3}, env=os.environ)
    [response] = run(answer(model, wishes))
    assert len(response.choices) == 3
    for choice in response.choices:
        assert choice.text.strip() in wishes.ratings
        tokens = choice.token_logprobs or ()
        assert "".join(token.text for token in tokens).strip() == choice.text.strip()
        rated = next(token for token in tokens if token.text.strip())
        mass = sum(
            math.exp(item.logprob) for item in rated.alternatives if item.text.strip() in wishes.ratings
        )
        assert 0.5 < mass < 1, "the probabilities are the model's own, those of other words included"


@pytest.mark.local_model
def test_answers_that_overfill_the_context_together_are_given_alone() -> None:
    config = {"n_ctx": 256, "n_parallel": 2, "max_tokens": 18, "ignore_eos": True}
    model = provider("local:smollm2", config, env=os.environ)
    [response] = run(answer(model, ask("alpha " * 194, sample_indexes=(0, 1))))
    assert [response.usage.output_tokens, len(response.choices)] == [18, 1]


@pytest.mark.local_model
def test_the_local_model_turns_texts_into_vectors_that_tell_near_from_far() -> None:
    texts = [
        "Paris is the capital of France.",
        "The capital of France is Paris.",
        "def f(x): return x + 1",
    ]
    model = provider("local:embedding:smollm2", env=os.environ)
    first, second, other = (json.loads(one.text) for one in run(answer(model, *map(ask, texts))))
    assert len(first) == len(second) == 576
    assert cosine(first, second) > 0.9
    assert cosine(first, other) < 0.7


@pytest.mark.local_model
def test_a_text_that_is_too_long_for_one_vector_is_refused() -> None:
    model = provider("local:embeddings:smollm2", {"n_ctx": 128, "pooling": "mean"}, env=os.environ)
    for words in (150, 400):  # llama.cpp tells a batch that is too small from a context that is
        with pytest.raises(ProviderRequestError) as caught:
            run(answer(model, ask("word " * words)))
        assert "shorten it" in caught.value.hint


@pytest.mark.local_model
def test_a_file_that_is_no_model_is_refused_and_stays_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but no more")
    model = provider("local:broken.gguf", base_dir=tmp_path)
    for _ in range(2):
        with pytest.raises(ProviderRequestError, match="cannot load"):
            run(answer(provider("local:broken.gguf", base_dir=tmp_path)))
    run(model.aclose())


def test_the_identity_follows_the_content_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    before = provider("local:m.gguf", base_dir=tmp_path).identity
    path.write_bytes(b"other")
    assert provider("local:m.gguf", base_dir=tmp_path).identity != before
    assert provider("local:smollm2").identity.endpoint.startswith("sha256:b179c952")


def test_a_model_is_loaded_once_and_freed_with_its_last_user() -> None:
    loads: list[LlamaSettings] = []

    def load(settings: LlamaSettings) -> LlamaServer:
        loads.append(settings)
        return LlamaServer("http://127.0.0.1:1", "key", TokenBudget(1), object())

    pool = LlamaPool(load)
    settings = LlamaSettings(Path("m.gguf"))
    assert pool.acquire(settings) is pool.acquire(settings)
    pool.release(settings)
    pool.acquire(settings)
    assert len(loads) == 1
    pool.release(settings)
    pool.release(settings)
    pool.acquire(settings)
    assert len(loads) == 2


def test_a_rating_waits_for_the_one_before_and_lets_other_answers_past() -> None:
    async def body(server: LoopbackServer) -> None:
        native = LlamaServer(server.url, "key", TokenBudget(9000), object())
        source = LocalSource("local:m", "m", "m", Path("m.gguf"), {}, {}, {})
        model = LocalProvider(source, pool=LlamaPool(lambda settings: native))
        server.hold()
        asked: list[asyncio.Task[ModelResponse]] = []
        for text, words in (
            ("first", {"ratings": ("1", "2")}),
            ("second", {"ratings": ("1",)}),
            ("other", {}),
        ):
            asked.append(asyncio.create_task(model.complete(ask(text, **words))))
            await asyncio.to_thread(server.wait_for_requests, 1 + (text == "other"))
        arrived = [request.json["messages"][0]["content"] for request in server.requests]
        assert arrived == ["first", "other"]
        server.release()
        await asyncio.gather(*asked)
        await model.aclose()

    with LoopbackServer(respond=lambda body, headers: chat_reply("1")) as server:
        run(body(server))


def test_a_failed_load_is_tried_again_by_the_next_user() -> None:
    def load(settings: LlamaSettings) -> LlamaServer:
        raise RuntimeError("no memory")

    pool = LlamaPool(load)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            pool.acquire(LlamaSettings(Path("m.gguf")))


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("local:embedding:smollm2", {}, ""),
        ("local:embeddings:models/e.gguf", {"pooling": "cls"}, ""),
        ("local:embedding:smollm3", {}, "no local model `smollm3`"),
        ("local:embedding:smollm2", {"pooling": "sum"}, "`pooling` must be"),
        ("local:smollm2", {"pooling": "mean"}, "is only for embedding models"),
    ],
)
def test_embeddings_are_checked_as_chats_are(
    name: str, config: dict[str, str], words: str, tmp_path: Path
) -> None:
    found = check_provider(ProviderSpec(id=name, config=config), env={}, base_dir=tmp_path)
    assert [words in problem.message for problem in found] == ([True] if words else [])


def test_a_vector_and_an_answer_of_one_file_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"one")
    names = ("local:m.gguf", "local:embedding:m.gguf")
    chat, vector = (provider(name, base_dir=tmp_path).identity for name in names)
    other = provider("local:embedding:m.gguf", {"pooling": "cls"}, base_dir=tmp_path).identity
    assert len({str(identity) for identity in (chat, vector, other)}) == 3


@pytest.mark.parametrize(("header", "is_named"), [(b"GGUF bert.pooling_type", True), (b"GGUF llama", False)])
def test_a_model_that_says_how_its_vectors_are_made_is_heard(
    header: bytes, is_named: bool, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(header)
    assert names_pooling(tmp_path / "m.gguf") is is_named


@pytest.mark.local_model
def test_a_small_model_can_play_the_user_and_answer_it(tmp_path: Path) -> None:
    small = {"id": "local:smollm2", "config": {"temperature": 0, "max_tokens": 8}}
    user = {
        "goal": "Learn when the shop opens.",
        # A message that is cut off at its limit is an error: it ends with its first sentence.
        "user": {"id": "local:smollm2", "config": {"temperature": 0, "max_tokens": 300, "stop": ["."]}},
        "opening": "When do you open?",
        "max_turns": 2,
    }
    suite = {
        "prompts": [{"system": "The shop opens at nine. Answer in one sentence."}],
        "providers": small,
        "tests": [{"turns": {"simulate": user}, "assert": [{"type": "ended-by", "value": "limit"}]}],
    }
    (tmp_path / "config.yaml").write_text(json.dumps(suite), encoding="utf-8")
    finished = run_geval("run", "config.yaml", "-o", "r.json", cwd=tmp_path)
    [result] = json.loads((tmp_path / "r.json").read_text("utf-8"))["results"]
    assert result["error"] is None
    assert finished.code in {0, 1}
    assert result["ended_by"] in {"goal", "gave_up", "limit"}
    assert [turn["role"] for turn in result["turns"]][:2] == ["user", "assistant"]
    assert result["usage"]["user"]["output_tokens"] > 0

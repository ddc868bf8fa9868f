"""Audio in whole runs: what model and judge hear, what results keep, and what is refused before anything is sent."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, Reply, chat_reply
from support.pictures import data_url, png
from support.product import Product
from support.recordings import FLAC, MP3, audio_url, wav

from geval_cli import GEval, Suite, TestCase, UsageError, run
from geval_cli.source.media import MAX_MEDIA, MAX_MEDIA_BYTES

CALL, BEEP = wav(level=1), MP3
HEARD = [("wav", audio_url(CALL).partition(",")[2]), ("mp3", audio_url(BEEP).partition(",")[2])]
CRITERIA = {"type": "g-eval", "criteria": "It says what is heard.", "scoring": "single"}
CONFIG: dict[str, Any] = {
    "prompts": ["Listen: {{ call }} What is it?"],
    "providers": ["openai:gpt-audio"],
    "tests": [
        {
            "vars": {"call": "file://calls/one.wav"},
            "audio": "file://beep.mp3",
            "options": {"provider": "openai:gpt-audio-mini"},
            "assert": [CRITERIA],
        }
    ],
}


def respond(body: Any, headers: Any) -> Reply:
    del headers
    text = "".join(texts_of(body))
    if '"score"' in text:
        return chat_reply('{"reason": "It does.", "score": 9}')
    return chat_reply('{"steps": ["Listen."]}' if '"steps"' in text else "A beep.")


def parts_of(body: Any) -> list[Any]:
    content = body["messages"][-1]["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def texts_of(body: Any) -> list[str]:
    return [part["text"] for part in parts_of(body) if part["type"] == "text"]


def heard_of(body: Any) -> list[tuple[str, str]]:
    heard = [part["input_audio"] for part in parts_of(body) if part["type"] == "input_audio"]
    return [(item["format"], item["data"]) for item in heard]


@pytest.fixture
def recordings(product: Product) -> Path:
    (product.folder / "calls").mkdir()
    (product.folder / "calls" / "one.wav").write_bytes(CALL)
    (product.folder / "beep.mp3").write_bytes(BEEP)
    return product.folder


def test_model_and_judge_hear_what_results_name(product: Product, recordings: Path) -> None:
    with LoopbackServer(respond=respond) as server:
        finished = product.run(CONFIG, server, "-o", "r.jsonl", "-o", "r.md", "-o", "r.html", "-o", "r.csv")
        *before, rated = [request.json for request in server.requests]
        asked, steps = sorted(before, key=lambda body: not heard_of(body))  # nobody waits for the other
        product.run(CONFIG, server)
        assert len(server.requests) == 3  # an equal run is answered from the cache
        (recordings / "beep.mp3").write_bytes(BEEP + b"\0")
        product.run(CONFIG, server)
        assert len(server.requests) == 5  # the steps stay

    assert finished.code == 0, finished.stdout + finished.stderr
    assert texts_of(asked) == ["Listen: ", " What is it?\n\n"]
    assert heard_of(asked) == heard_of(rated) == HEARD
    assert heard_of(steps) == []
    shown = finished.cases[0]
    assert shown["vars"]["call"].startswith("[audio: calls/one.wav sha256:")
    assert shown["prompt"]["rendered"].count("[audio: ") == 2
    [[name, digest]] = finished.results["tests"][0]["audio"]
    assert (name, len(digest)) == ("beep.mp3", 64)
    for path in [*product.folder.glob("r.*"), product.folder / "results.json"]:
        assert HEARD[0][1][40:] not in path.read_text(encoding="utf-8")
    for stored in (product.folder / "state").rglob("*.db*"):
        assert CALL not in stored.read_bytes()


def test_a_judge_hears_only_what_its_parameters_name(product: Product, recordings: Path) -> None:
    (product.folder / "pic.png").write_bytes(png())
    both = {"images": ["file://pic.png"], "audio": ["file://beep.mp3"]}

    def test(output: str, *params: str) -> dict[str, Any]:
        named = {"evaluation_params": list(params)} if params else {}
        return {"input": "What?", "output": output, **both, "assert": [{**CRITERIA, **named}]}

    tests = [
        test("One."),
        test("Two.", "input", "actual_output"),
        test("Three.", "audio", "actual_output"),
        test("Four.", "images", "actual_output"),
        {"input": "Say it.", "output": "file://beep.mp3", "assert": [CRITERIA]},
    ]
    options = {"defaultTest": {"options": {"provider": "openai:gpt-audio"}}}
    with LoopbackServer(respond=respond) as server:
        finished = product.run({**options, "tests": tests}, server)
        bodies = [request.json for request in server.requests if '"score"' in "".join(texts_of(request.json))]

    def shown(name: str) -> list[str]:
        body = next(body for body in bodies if name in "".join(texts_of(body)))
        return sorted(part["type"] for part in parts_of(body) if part["type"] != "text")

    assert finished.code == 0, finished.stderr
    assert shown("One.") == ["image_url", "input_audio"]
    assert shown("Two.") == []
    assert shown("Three.") == ["input_audio"]
    assert shown("Four.") == ["image_url"]
    assert shown("Say it.") == ["input_audio"]
    assert finished.verdicts[0]["detail"]["evaluation_params"] == [
        "input",
        "images",
        "audio",
        "actual_output",
    ]


def test_a_conversation_plays_its_audio_with_each_of_the_user_s_turns(
    product: Product, recordings: Path
) -> None:
    turns = [{"user": "What is this?"}, {"user": "Again?"}]
    test = {"turns": turns, "audio": ["file://beep.mp3"], "assert": [{"type": "contains", "value": "beep"}]}
    with LoopbackServer(respond=respond) as server:
        finished = product.run({"providers": ["openai:gpt-audio"], "tests": [test]}, server)
        assert finished.code == 0, finished.stdout + finished.stderr
        assert [heard_of(request.json) for request in server.requests] == [HEARD[1:], HEARD[1:]]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "text named wav": ({"audio": "file://text.wav"}, "text.wav` is not audio, judging by its first bytes"),
    "another form": ({"audio": ["file://mp3.wav"]}, "mp3.wav` is named WAV but contains MP3"),
    "empty": ({"audio": ["file://empty.wav"]}, "empty.wav` is empty"),
    "too large": ({"vars": {"call": "file://huge.wav"}}, "huge.wav` is larger than 20 MB"),
    "a video": ({"audio": ["file://film.mp4"]}, "`file://film.mp4` is not audio"),
    "missing": ({"audio": ["file://none.wav"]}, "there is no file `none.wav`"),
    "an address": ({"audio": ["https://example.com/a.wav"]}, "audio is not fetched from URLs"),
    "a path": ({"audio": "a.wav"}, "`a.wav` is not audio"),
    "a number": ({"audio": [7]}, "audio must be text, found the number 7"),
    "an image": ({"audio": ["file://cat.png"]}, "`file://cat.png` is not audio"),
    "audio as image": ({"images": ["file://mp3.wav"]}, "`file://mp3.wav` is not an image"),
    "no base64": ({"audio": ["data:audio/wav;base64,?"]}, "this data URL is not base64 audio"),
    "no wav": ({"audio": ["data:audio/wav;base64,AAAA"]}, "the data URL is not audio"),
    "only a hash": ({"audio": [f"[audio: x.wav sha256:{'a' * 64}]"]}, "the run kept only the hash of this audio"),
    "too many": ({"audio": [audio_url(wav(level=n)) for n in range(MAX_MEDIA + 1)]}, "one request has 21 recordings"),
    "flac at openai": ({"audio": "file://call.flac"}, "openai:m cannot hear audio as FLAC, but a recording is in its"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bad_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    contents = {
        "text.wav": b"hello",
        "mp3.wav": MP3,
        "empty.wav": b"",
        "huge.wav": wav() + bytes(MAX_MEDIA_BYTES),
        "cat.png": png(),
        "call.flac": FLAC,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("test", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_sent_is_a_problem_with_its_place(
    product: Product, bad_recordings: Path, test: dict[str, Any], problem: str
) -> None:
    for path in bad_recordings.iterdir():
        (product.folder / path.name).symlink_to(path)
    config = {
        "prompts": ["Listen {{ call | default('') }}"],
        "providers": ["openai:m"],
        "tests": [{**test, "assert": [{"type": "contains", "value": "x"}]}],
    }
    with LoopbackServer(respond=respond) as server:
        finished = product.run(config, server)
        assert server.requests == []
    assert finished.code == 2
    assert problem in " ".join(finished.stderr.split())
    assert "--> config.yaml:" in finished.stderr


@pytest.mark.parametrize(
    "model",
    [
        "anthropic:claude-sonnet-4-5",
        "openai:responses:gpt-4.1",
        "vertex:claude-sonnet-4-5@20250929",
        "bedrock:anthropic.claude-x",
        "local:smollm2",
        "exec:cat",
        "http://127.0.0.1:1/answer",
    ],
)
def test_who_cannot_hear_is_named_with_those_who_can(product: Product, recordings: Path, model: str) -> None:
    test = {**CONFIG["tests"][0], "assert": [{"type": "contains", "value": "x"}]}
    judged = {
        "tests": [{"output": "A.", "audio": "file://beep.mp3", "assert": [{**CRITERIA, "provider": model}]}]
    }
    with LoopbackServer(respond=respond) as server:
        asked = product.run({**CONFIG, "providers": [model], "tests": [test]}, server)
        rated = product.run(judged, server)
        assert server.requests == []
    for finished in (asked, rated):
        text = " ".join(finished.stderr.split())
        assert finished.code == 2
        assert "cannot hear audio" in text
        assert "use Gemini (`google:`, `vertex:`), or a model with OpenAI's chat API" in text


def test_a_model_of_openai_that_says_nothing_of_audio_is_doubted(product: Product, recordings: Path) -> None:
    with LoopbackServer(respond=respond) as server:
        planned = product.run({**CONFIG, "providers": ["openai:gpt-4.1"]}, server, "--plan")
        assert server.requests == []
    assert planned.code == 0
    assert "openai:gpt-4.1 may refuse audio" in planned.stderr
    assert "gpt-audio-mini may refuse" not in planned.stderr


def test_a_recording_in_a_system_message_is_refused(product: Product, recordings: Path) -> None:
    messages = [{"role": "system", "content": "Listen: {{ call }}"}, {"role": "user", "content": "What?"}]
    with LoopbackServer(respond=respond) as server:
        finished = product.run({**CONFIG, "prompts": [{"messages": messages}]}, server)
        assert server.requests == []
    assert "a system message has a recording" in finished.stderr


def test_a_stranger_s_config_plays_nothing_from_elsewhere(product: Product, recordings: Path) -> None:
    (recordings / "repo").mkdir()
    path = recordings / "repo" / "config.yaml"
    test = {"output": "A.", "audio": ["file://../beep.mp3"], "assert": [CRITERIA]}
    path.write_text(json.dumps({"tests": [test]}), encoding="utf-8")
    with LoopbackServer(respond=respond) as server:
        finished = product.run(path, server, "--untrusted")
        assert server.requests == []
    assert finished.code == 2
    assert "is outside the config's folder" in finished.stderr


@pytest.mark.parametrize("form", ["path", "text", "bytes", "url"])
def test_a_program_plays_audio_to_the_judge(
    form: str, product: Product, recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recordings / "beep.mp3"
    url = audio_url(BEEP, "mpeg")
    given: Any = {"path": path, "text": str(path), "bytes": BEEP, "url": url}[form]
    with LoopbackServer(respond=respond) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        metric = GEval("Sound", criteria="It names the sound.", model="openai:gpt-audio")
        assert metric.evaluate(TestCase("What?", "A beep.", audio=[given])).score == 0.9
        suite = Suite(tests=[TestCase("What?", "A beep.", audio=[given])], assertions=[metric])
        assert run(suite, home=recordings / "state").summary.passed == 1
        rated = [body for body in (request.json for request in server.requests) if heard_of(body)]
    assert [heard_of(body) for body in rated] == [HEARD[1:]] * len(rated)
    assert rated


@pytest.mark.parametrize(
    ("audio", "model", "problem"),
    [
        ([b"none"], "openai:m", "not audio"),
        ([7], "openai:m", "audio must be a path, a data URL or bytes"),
        ([data_url(png())], "openai:m", "is not audio"),
        (["https://example.com/a.wav"], "openai:m", "not fetched from URLs"),
        ([FLAC], "openai:m", "cannot hear this audio"),
        ([MP3], "anthropic:m", "cannot hear this audio"),
    ],
)
def test_a_program_learns_what_is_wrong(audio: Any, model: str, problem: str) -> None:
    metric = GEval("Sound", criteria="It names the sound.", model=model)
    with pytest.raises(UsageError, match=problem):
        metric.evaluate(TestCase("What?", "A beep.", audio=audio))

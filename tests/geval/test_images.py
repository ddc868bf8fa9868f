"""Images in whole runs: what model and judge see, what results keep, and what is refused before anything is sent."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, Reply, chat_reply
from support.pictures import BLUE, JPEG, data_url, png
from support.product import Product

from geval_cli import GEval, Suite, TestCase, UsageError, run
from geval_cli.source.media import MAX_MEDIA, MAX_MEDIA_BYTES

RED_URL, BLUE_URL = data_url(png()), data_url(png(BLUE))
CRITERIA = {"type": "g-eval", "criteria": "It names the colour.", "scoring": "single"}


def respond(body: Any, headers: Any) -> Reply:
    """A judge and a model; the judge's request is known by its words."""
    del headers
    text = "".join(texts_of(body))
    if '"score"' in text:
        return chat_reply('{"reason": "It does.", "score": 9}')
    return chat_reply('{"steps": ["Look."]}' if '"steps"' in text else "It is red.")


def parts_of(body: Any) -> list[Any]:
    content = body["messages"][-1]["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def texts_of(body: Any) -> list[str]:
    return [part["text"] for part in parts_of(body) if part["type"] == "text"]


def urls_of(body: Any) -> list[str]:
    return [part["image_url"]["url"] for part in parts_of(body) if part["type"] == "image_url"]


@pytest.fixture
def pictures(product: Product) -> Path:
    (product.folder / "pics").mkdir()
    (product.folder / "pics" / "red.png").write_bytes(png())
    (product.folder / "blue.png").write_bytes(png(BLUE))
    return product.folder


CONFIG: dict[str, Any] = {
    "prompts": ["Look: {{ photo }} What colour?"],
    "providers": ["openai:m"],
    "tests": [
        {
            "vars": {"photo": "file://pics/red.png"},
            "images": ["file://blue.png"],
            "options": {"provider": "openai:judge"},
            "assert": [CRITERIA],
        }
    ],
}


def test_model_and_judge_see_what_results_name(product: Product, pictures: Path) -> None:
    with LoopbackServer(respond=respond) as server:
        finished = product.run(CONFIG, server, "-o", "r.jsonl", "-o", "r.md", "-o", "r.html", "-o", "r.csv")
        *before, rated = [request.json for request in server.requests]
    asked, steps = sorted(before, key=lambda body: not urls_of(body))  # nobody waits for the other

    assert finished.code == 0, finished.stdout + finished.stderr
    assert texts_of(asked)[:2] == ["Look: ", " What colour?\n\n"]
    assert urls_of(asked) == urls_of(rated) == [RED_URL, BLUE_URL]
    assert urls_of(steps) == []
    before = texts_of(rated)[0]
    assert before[before.rindex("<<<BEGIN") :].startswith("<<<BEGIN Input")  # between the judge's own marks
    assert "<<<END Input" in texts_of(rated)[-1]
    shown = finished.cases[0]
    assert shown["vars"]["photo"].startswith("[image: pics/red.png sha256:")
    assert shown["prompt"]["rendered"].count("[image: ") == 2
    for path in [*product.folder.glob("r.*"), product.folder / "results.json"]:
        assert RED_URL[22:] not in path.read_text(encoding="utf-8")
    assert RED_URL[22:] not in finished.stdout + finished.stderr
    for stored in (product.folder / "state").rglob("*.db*"):
        assert png() not in stored.read_bytes()
        assert RED_URL[22:].encode() not in stored.read_bytes()


def test_an_equal_run_is_answered_from_the_cache_until_an_image_changes(
    product: Product, pictures: Path
) -> None:
    with LoopbackServer(respond=respond) as server:
        product.run(CONFIG, server)
        asked = len(server.requests)
        product.run(CONFIG, server)
        assert len(server.requests) == asked
        (pictures / "blue.png").write_bytes(png((0, 255, 0)))
        product.run(CONFIG, server)
        assert len(server.requests) == asked + 2  # the steps stay


def test_stored_answers_are_judged_with_their_images(product: Product, pictures: Path) -> None:
    tests = [
        {"input": "What colour?", "output": "One.", "images": "file://pics/red.png", "assert": [CRITERIA]},
        {"input": "Draw blue.", "output": "file://blue.png", "assert": [CRITERIA]},
        {
            "vars": {"photo": BLUE_URL},
            "output": "Three.",
            "assert": [{"type": "g-eval", "dimension": "fluency"}],
        },
        {
            "input": "What?",
            "output": "Four.",
            "images": ["file://blue.png"],
            "assert": [{**CRITERIA, "evaluation_params": ["input", "actual_output"]}],
        },
    ]
    with LoopbackServer(respond=respond) as server:
        finished = product.run({"tests": tests}, server)
        bodies = [request.json for request in server.requests]
    shown = {
        name: urls_of(next(body for body in bodies if name in "".join(texts_of(body))))
        for name in ("One.", "Draw blue.", "Three.", "Four.")
    }
    assert shown == {"One.": [RED_URL], "Draw blue.": [BLUE_URL], "Three.": [BLUE_URL], "Four.": []}
    assert finished.verdicts[0]["detail"]["evaluation_params"] == ["input", "images", "actual_output"]
    assert finished.cases[1]["output"].startswith("[image: blue.png sha256:")


@pytest.mark.parametrize("prompts", [{}, {"prompts": ["Please: {{ input }}"]}])
def test_a_conversation_shows_its_images_with_each_of_the_user_s_turns(
    product: Product, pictures: Path, prompts: dict[str, Any]
) -> None:
    turns = [{"user": "What is this?"}, {"user": "Which colour?"}]
    test = {"turns": turns, "images": ["file://blue.png"], "options": {"provider": "openai:judge"}}
    config = {**prompts, "providers": ["openai:m"], "tests": [{**test, "assert": [CRITERIA]}]}
    with LoopbackServer(respond=respond) as server:
        finished = product.run(config, server)
        assert finished.code == 0, finished.stdout + finished.stderr
        asked = [request.json for request in server.requests if request.json["model"] == "m"]
        rated = [request.json for request in server.requests if '"score"' in "".join(texts_of(request.json))]
    assert [urls_of(body) for body in asked] == [[BLUE_URL], [BLUE_URL]]
    assert [urls_of(body) for body in rated] == [[BLUE_URL]]


def test_judging_again_finds_outputs_and_images(product: Product, pictures: Path) -> None:
    with LoopbackServer(respond=respond) as server:
        product.run(CONFIG, server)
        asked = len(server.requests)
        again = product.command(server, "judge", "latest")
        assert len(server.requests) == asked
    assert again.verdict["detail"]["judged_from"]


def test_a_data_url_is_named_by_its_hash_in_every_record(product: Product) -> None:
    config = {
        "prompts": ["What is {{ photo }}?"],
        "providers": ["openai:m"],
        "tests": [{"vars": {"photo": RED_URL}, "assert": [{"type": "icontains", "value": "red"}]}],
    }
    with LoopbackServer(respond=respond) as server:
        finished = product.run(config, server)
        assert urls_of(server.requests[0].json) == [RED_URL]
    assert finished.cases[0]["vars"]["photo"].startswith("[image: data URL sha256:")
    assert RED_URL not in json.dumps(finished.results)
    assert "[image: data URL" in json.dumps(finished.results["run"]["config"])


def test_promptfoo_chats_with_images_reach_any_model(product: Product, pictures: Path) -> None:
    parts = '[{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "{{ photo }}"}}]'
    config = {
        "prompts": [f'[{{"role": "user", "content": {parts}}}]'],
        "providers": ["openai:chat:m"],
        "tests": [
            {"vars": {"photo": "file://pics/red.png"}, "assert": [{"type": "contains", "value": "red"}]}
        ],
    }
    path = product.folder / "promptfooconfig.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    with LoopbackServer(respond=respond) as server:
        finished = product.run(path, server)
        assert urls_of(server.requests[0].json) == [RED_URL]
    assert finished.code == 0, finished.stdout + finished.stderr
    assert RED_URL not in json.dumps(finished.results)


def test_an_exported_suite_holds_its_images(product: Product, pictures: Path) -> None:
    product.write(CONFIG)
    with LoopbackServer(respond=respond) as server:
        command = ("export", "suite", "config.yaml", "-o", "whole.yaml")
        exported = product.command(server, *command, writes_results=False, names_home=False)
        assert exported.code == 0, exported.stderr
        for path in (pictures / "pics" / "red.png", pictures / "blue.png"):
            path.unlink()
        assert product.run(product.folder / "whole.yaml", server).code == 0
        assert urls_of(server.requests[0].json) == [RED_URL, BLUE_URL]


# -- refused before anything is sent ----------------------------------------------------------------------------


def many(count: int) -> dict[str, Any]:
    return {"images": [data_url(png(size=1 + number)) for number in range(count)]}


def test_as_many_images_as_are_allowed_are_sent(product: Product) -> None:
    config = {"prompts": ["Q"], "providers": ["openai:m"], "tests": [many(MAX_MEDIA)]}
    with LoopbackServer(respond=respond) as server:
        assert product.run(config, server).code == 0
        assert len(urls_of(server.requests[0].json)) == MAX_MEDIA


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too many": (many(MAX_MEDIA + 1), "one request has 21 images; at most 20 are allowed"),
    "one is too large": ({"vars": {"photo": "file://huge.png"}}, "`huge.png` is larger than 20 MB"),
    "too large together": (
        {"images": ["file://half.png", "file://more.png"]},
        "MB; at most 20 MB are allowed",
    ),
    "one is shown too often": (
        {"vars": {"photo": "file://half.png"}, "images": ["file://half2.png"], "input": "file://half.png"},
        "MB; at most 20 MB are allowed",
    ),
    "no image": ({"vars": {"photo": "file://fake.png"}}, "`fake.png` is not an image"),
    "another image": ({"vars": {"photo": "file://jpeg.png"}}, "`jpeg.png` is named PNG but contains JPEG"),
    "empty": ({"images": ["file://empty.png"]}, "`empty.png` is empty"),
    "missing": ({"vars": {"photo": "file://huge.pnG"}}, "there is no file `huge.pnG`"),
    "a folder": ({"images": ["file://folder.png"]}, "`folder.png` is a folder"),
    "an address": ({"images": ["https://example.com/cat.png"]}, "images are not fetched from URLs"),
    "a path": ({"images": ["cat.png"]}, "`cat.png` is not an image"),
    "a number": ({"images": [7]}, "an image must be text, found the number 7"),
    "svg": ({"images": ["file://cat.svg"]}, "`file://cat.svg` is not an image"),
    "no base64": ({"images": ["data:image/png;base64,?"]}, "this data URL is not a base64 image"),
    "not a base64 image": ({"vars": {"photo": "data:image/png;base64,AAAA"}}, "the data URL is not an image"),
    "only a hash": (
        {"vars": {"photo": f"[image: data URL sha256:{'a' * 64}]"}},
        "the run kept only the hash of this image",
    ),
}


@pytest.fixture(scope="module")
def bad_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    half = MAX_MEDIA_BYTES // 2
    contents = {
        "huge.png": png(padding=MAX_MEDIA_BYTES),
        "half.png": png(padding=half),
        "half2.png": png(BLUE, padding=half // 8),
        "more.png": png(BLUE, padding=half),
        "fake.png": b"<html>",
        "jpeg.png": JPEG,
        "empty.png": b"",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder.png").mkdir()
    return folder


@pytest.mark.parametrize(("test", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_sent_is_a_problem_with_its_place(
    product: Product, bad_pictures: Path, test: dict[str, Any], problem: str
) -> None:
    for path in bad_pictures.iterdir():
        (product.folder / path.name).symlink_to(path)
    config = {
        "prompts": ["{{ photo | default('') }}{{ input | default('') }}"],
        "providers": ["openai:m"],
        "tests": [{**test, "assert": [CRITERIA]}],
    }
    with LoopbackServer(respond=respond) as server:
        finished = product.run(config, server)
        assert server.requests == []
    assert finished.code == 2
    assert problem in " ".join(finished.stderr.split())
    assert "--> config.yaml:" in finished.stderr


def test_a_stranger_s_config_shows_no_image_from_elsewhere(product: Product, pictures: Path) -> None:
    (pictures / "repo").mkdir()
    path = pictures / "repo" / "config.yaml"
    test = {"output": "Red.", "images": ["file://../blue.png"], "assert": [CRITERIA]}
    path.write_text(json.dumps({"tests": [test]}), encoding="utf-8")
    with LoopbackServer(respond=respond) as server:
        finished = product.run(path, server, "--untrusted")
        assert server.requests == []
    assert finished.code == 2
    assert "is outside the config's folder" in finished.stderr
    assert "config.yaml:1:" in finished.stderr


@pytest.mark.parametrize("model", ["local:smollm2", "exec:cat", "http://127.0.0.1:1/answer"])
def test_who_cannot_see_is_named_with_those_who_can(product: Product, pictures: Path, model: str) -> None:
    config = {**CONFIG, "providers": [model]}
    judged = {
        "tests": [
            {"output": "Red.", "images": ["file://blue.png"], "assert": [{**CRITERIA, "provider": model}]}
        ]
    }
    with LoopbackServer(respond=respond) as server:
        asked, rated = product.run(config, server), product.run(judged, server)
        assert server.requests == []
    assert (asked.code, rated.code) == (2, 2)
    for finished in (asked, rated):
        text = " ".join(finished.stderr.split())
        assert "cannot see images" in text
        assert "use a model from OpenAI, Anthropic or Google" in text


def test_an_image_in_a_system_message_is_refused(product: Product, pictures: Path) -> None:
    messages = [{"role": "system", "content": "Look: {{ photo }}"}, {"role": "user", "content": "What?"}]
    config = {**CONFIG, "prompts": [{"messages": messages}]}
    with LoopbackServer(respond=respond) as server:
        finished = product.run(config, server)
        assert server.requests == []
    assert "a system message has an image" in finished.stderr


def test_the_plan_sends_nothing(product: Product, pictures: Path) -> None:
    with LoopbackServer(respond=respond) as server:
        planned = product.run(CONFIG, server, "--plan")
        assert (planned.code, server.requests) == (0, [])


# -- the library ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["path", "text", "bytes", "url"])
def test_a_program_shows_images_to_the_judge(
    form: str, product: Product, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pictures / "blue.png"
    given: Any = {"path": path, "text": str(path), "bytes": path.read_bytes(), "url": BLUE_URL}[form]
    with LoopbackServer(respond=respond) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        metric = GEval("Colour", criteria="It names the colour.", model="openai:m")
        found = metric.evaluate(TestCase("What?", "Blue.", images=[given]))
        rated = next(body for body in (request.json for request in server.requests) if urls_of(body))
        assert urls_of(rated) == [BLUE_URL]
    assert found.score == 0.9


def test_a_program_s_suite_shows_them_too(
    product: Product, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackServer(respond=respond) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        monkeypatch.chdir(pictures)
        case = TestCase("What?", "Blue.", images=[Path("blue.png")])
        metric = GEval("Colour", criteria="It names it.", model="openai:m")
        suite = Suite(tests=[case], assertions=[metric])
        assert run(suite, home=pictures / "state").summary.passed == 1
        assert any(urls_of(request.json) == [BLUE_URL] for request in server.requests)


@pytest.mark.parametrize(
    ("images", "model", "problem"),
    [
        ([b"none"], "openai:m", "not an image"),
        (["missing.png"], "openai:m", "there is no file"),
        ([7], "openai:m", "a path, a data URL or bytes"),
        ([png(size=1 + number) for number in range(21)], "openai:m", "21 images"),
        ([png()], "local:smollm2", "cannot see images"),
    ],
)
def test_a_program_learns_what_is_wrong(images: Any, model: str, problem: str) -> None:
    metric = GEval("Colour", criteria="It names the colour.", model=model)
    with pytest.raises(UsageError, match=problem):
        metric.evaluate(TestCase("What?", "Blue.", images=images))

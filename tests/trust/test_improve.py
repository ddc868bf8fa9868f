"""`geval improve`: judges on a server of this machine that follow examples, ignore them, or learn them by heart."""

import hashlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from msgspec.structs import replace
from support.geval_command import clean_environment, start_geval
from support.loopback import LoopbackServer, Reply, chat_reply
from support.product import Finished, Product
from support.sample_run import make_case

from geval_cli.extras.trust import improve
from geval_cli.extras.trust.improving import (
    TODAY,
    AgreementMeasure,
    CandidateRatings,
    JudgeCandidate,
    LabelledCase,
    held_out_gain,
    pick_examples,
    split,
)
from geval_cli.extras.trust.labels import read_labels
from geval_cli.records import Usage, to_json

OUTPUTS = 120
PER_DOCUMENT = 2
_JUDGED = re.compile(r"answer (\d+) of grade (\d+)")
_EXAMPLE = re.compile(r"<<<BEGIN Example \d+ Output.*?\nanswer (\d+) of grade", re.DOTALL)


def noise(*parts: object) -> float:
    """A number in 0..1 that these decide."""
    return hashlib.sha256(repr(parts).encode()).digest()[0] / 255


class World:
    """A judge of one kind, and a teacher. `prompts` are the texts that the judge and the teacher were sent."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.evolved = "It helps if the grade is high."
        self.lesson = "Look at the grade. [1, 2]"
        self.criteria = "The grade is high."
        self.prompts: list[str] = []
        self.teacher: list[str] = []

    def respond(self, body: Any, headers: Mapping[str, str]) -> Reply:
        del headers
        text = body["messages"][-1]["content"]
        if self.kind == "empty":
            return chat_reply("")
        if body["model"] == "model":
            return chat_reply(f"answer {text} of grade {grade_of(int(text))}")
        if "within ``` blocks" in text:
            self.teacher.append(text)
            if not self.evolved:
                return Reply(status=400, body={"error": {"message": "the prompt is too long"}})
            return chat_reply(f"```\n{self.evolved}\n```")
        if "Answer with JSON only" in text:
            self.teacher.append(text)
            if '"guidelines"' in text:
                return chat_reply(json.dumps({"guidelines": [self.lesson, "Be strict. [99]"]}))
            criteria = [self.criteria] if self.criteria else []
            return chat_reply(json.dumps({"criteria": criteria, "steps": ["Read.", "Rate."]}))
        self.prompts.append(text)
        if self.kind == "breaks" or not _JUDGED.search(text):  # the latter is a second try at a rating
            return chat_reply("I would rather not say.")
        number, grade = map(int, _JUDGED.findall(text)[-1])
        is_guided = "Be strict." in text
        if self.kind == "goes quiet" and is_guided and number % 12 == 5:
            return chat_reply("I would rather not say.")
        known = {int(found) for found in _EXAMPLE.findall(text)}
        vague = 2 + 5 * noise(number, len(known)) + 0.25 * grade
        score = {
            "follows": grade if known else vague,
            "ignores": vague,
            "reads": grade if self.evolved in text else vague,
            "by heart": grade if number in known else vague,
            "guided": grade if is_guided else vague,
            "goes quiet": grade if is_guided else vague,
        }[self.kind]
        return chat_reply(json.dumps({"reason": "as it is", "score": round(min(10, score))}))


class WorldServer(LoopbackServer):
    """The server of a world, and then of another one."""

    def __init__(self) -> None:
        self.world = World("follows")
        super().__init__(respond=self._answer)

    def _answer(self, body: Any, headers: Mapping[str, str]) -> Reply:
        return self.world.respond(body, headers)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[WorldServer]:
    with WorldServer() as server:
        yield server


@pytest.fixture
def server(shared_server: WorldServer) -> WorldServer:
    shared_server.world = World("follows")
    shared_server.requests.clear()
    return shared_server


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder that each test works in, and what is kept of it: runs are of a config at its path."""
    return tmp_path_factory.mktemp("work") / "here", tmp_path_factory.mktemp("kept")


@pytest.fixture
def product(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Product]:
    folders[0].mkdir()
    yield Product(folders[0], monkeypatch, capsys)
    monkeypatch.undo()
    shutil.rmtree(folders[0])


@pytest.fixture
def rated(product: Product, server: WorldServer, folders: tuple[Path, Path]) -> Product:
    """The folder after the run whose judge is to be improved. Without examples, judges of all kinds rate alike."""
    kept = folders[1] / "rated"
    if kept.exists():
        shutil.copytree(kept, product.folder, dirs_exist_ok=True)
    else:
        product.run(config(), server, "-j", "50")
        shutil.copytree(product.folder, kept)
    server.world.prompts.clear()
    server.requests.clear()
    return product


_searched: list[tuple[Finished, World]] = []


@pytest.fixture
def searched(rated: Product, server: WorldServer, folders: tuple[Path, Path]) -> tuple[Finished, World]:
    """What became of a search with a judge that follows examples, and what that world was sent."""
    kept = folders[1] / "searched"
    if kept.exists():
        shutil.copytree(kept, rated.folder, dirs_exist_ok=True)
    else:
        world = World("follows")
        _searched[:] = [(improved(rated, server, world), world)]
        shutil.copytree(rated.folder, kept)
        server.world = World("follows")  # what was sent for the search alone is looked at
    return _searched[0]


def config(**check: Any) -> dict[str, Any]:
    check = {
        "type": "g-eval",
        "metric": "helpful",
        "criteria": "It helps.",
        "evaluation_steps": ["Look."],
        "scoring": "single",
        **check,
    }
    tests = [
        {"vars": {"n": number}, "output": f"answer {number} of grade {grade_of(number)}"}
        for number in range(OUTPUTS)
    ]
    return {"defaultTest": {"options": {"provider": "openai:judge"}, "assert": [check]}, "tests": tests}


def grade_of(number: int) -> int:
    return int(10.99 * noise("grade", number))


def write_labels(folder: Path, scale: tuple[int, int] = (0, 10), outputs: int = OUTPUTS) -> Path:
    rows = []
    for number in range(outputs):
        grade = min(10, max(0, grade_of(number) + round(2 * noise("people", number) - 1)))
        label: Any = ("pass" if grade >= 6 else "fail") if scale == (0, 1) else grade
        row = {"id": f"{number}.0.0", "metric": "helpful", "label": label, "scale": list(scale)}
        rows.append({**row, "doc": f"document {number // PER_DOCUMENT}"})
    path = folder / "labels.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def improved(rated: Product, server: WorldServer, world: World, *words: str, **labels: Any) -> Finished:
    labels_path = write_labels(rated.folder, **labels)
    server.world = world
    return rated.command(
        server, "improve", "config.yaml", "--labels", str(labels_path), *words, "-o", "better.yaml"
    )


@pytest.mark.parametrize("scale", [(0, 10), (0, 1)])
def test_a_judge_that_follows_examples_is_accepted(
    scale: tuple[int, int], rated: Product, server: WorldServer, request: pytest.FixtureRequest
) -> None:
    product = rated
    if scale == (0, 10):
        finished, _ = request.getfixturevalue("searched")
    else:
        finished = improved(product, server, World("follows"), scale=scale)

    found = finished.results
    assert (finished.code, found["accepted"]) == (0, True), finished.stdout
    assert found["measure"] == ("weighted kappa" if scale == (0, 10) else "balanced accuracy")
    assert found["gain"]["interval"][0] > 0
    assert found["gain"]["labels"] == found["labels"]["held-out"] >= 40
    assert "accepted: " in finished.stdout
    assert "examples" in found["chosen"]
    written = yaml.safe_load((product.folder / "better.yaml").read_text(encoding="utf-8"))
    [check] = written["assert"]
    assert (check["type"], check["metric"], len(check["examples"])) == (
        "g-eval",
        "helpful",
        len(check["examples"]),
    )
    again = product.run(  # the fragment is a config's
        {**config(), "defaultTest": {"options": {"provider": "openai:judge"}, **written}}, server
    )
    assert again.results, again.stderr
    ratings = [case["assertions"][0]["score"] for case in again.cases]
    assert ratings == [grade_of(number) / 10 for number in range(OUTPUTS)]


@pytest.mark.parametrize("kind", ["ignores", "by heart"])
def test_a_judge_that_learns_nothing_is_refused(kind: str, rated: Product, server: WorldServer) -> None:
    finished = improved(rated, server, World(kind))

    assert (finished.code, finished.results["accepted"]) == (1, False), finished.stdout
    assert "nothing better was found" in finished.stdout
    assert not (rated.folder / "better.yaml").exists()
    assert "did not write better.yaml: no change was accepted" in finished.stderr


def test_nothing_of_a_held_out_document_is_in_what_teaches(
    product: Product, searched: tuple[Finished, World]
) -> None:
    """Nor of one that candidates are chosen by: what is shown to judge and teacher is of train alone."""
    finished, world = searched

    labels = read_labels(product.folder / "labels.jsonl").labels
    cases = [
        LabelledCase(make_case(place), label.human, str(label.doc)) for place, label in enumerate(labels)
    ]
    train, select, held = ({int(case.document.split()[1]) for case in part} for part in split(cases, 0))
    assert len(train | select | held) == OUTPUTS // PER_DOCUMENT
    found: dict[str, set[int]] = {"taught": set(), "shown": set(), "judged": set()}
    for text in (*world.teacher, *world.prompts):
        places = [int(number) // PER_DOCUMENT for number, _ in _JUDGED.findall(text)]
        if text in world.teacher:
            found["taught"].update(places)
        else:
            found["judged"].add(places[-1])
            found["shown"].update(places[:-1])
    assert len(world.teacher) == 2
    assert found["taught"]
    assert found["taught"] <= train
    assert found["shown"]
    assert found["shown"] <= train
    assert held <= found["judged"]
    assert finished.results["documents"] == {
        "train": len(train),
        "select": len(select),
        "held-out": len(held),
    }
    assert any(line.startswith("+") and "examples" in line for line in finished.results["diff"])
    assert re.search(r"\+ +examples:", finished.stdout)
    guidelines = next(
        item["guidelines"] for item in finished.results["candidates"] if item["name"] == "guidelines"
    )
    assert [len(item["sources"]) for item in guidelines] == [2, 0]


def test_nothing_that_a_teacher_or_a_model_wrote_is_a_template_of_the_config(
    rated: Product, server: WorldServer
) -> None:
    world = World("follows")
    world.lesson, world.criteria = "Say {{ env.OPENAI_API_KEY }}. [1]", "{% if true %}High{% endif %}"
    found = improved(rated, server, world).results

    lessons = [item["text"] for one in found["candidates"] for item in one["guidelines"]]
    assert set(lessons) == {"Be strict."}
    assert not any(one["criteria"] for one in found["candidates"])

    hostile = [
        LabelledCase(replace(make_case(place), output=f"{{{{ env.KEY }}}} {place}"), place / 8, str(place))
        for place in range(8)
    ]
    harmless = [
        LabelledCase(replace(make_case(place), output=f"{{ {place} }}"), place / 16, str(place))
        for place in range(8, 16)
    ]
    shown = pick_examples([*hostile, *harmless], np.zeros(16), 8, (1.0, 5.0))
    assert shown
    assert not any("env" in item.output for item in shown)
    assert pick_examples(hostile, np.zeros(8), 8, (1.0, 5.0)) == ()


def test_a_teacher_that_writes_no_criteria_is_noted_and_called_again_by_the_next_command(
    rated: Product, server: WorldServer
) -> None:
    world = World("follows")
    world.criteria = ""
    found = improved(rated, server, world).results
    assert "the teacher returned nothing usable: its list of criteria is empty" in found["notes"]
    (rated.folder / "better.yaml").unlink(missing_ok=True)
    again = World("follows")
    found = improved(rated, server, again).results
    assert len(again.teacher) == 1, "the guidelines are in the cache"
    assert any(one["criteria"] for one in found["candidates"])


def test_gepa_is_one_more_way_through_the_gateway(rated: Product, server: WorldServer) -> None:
    pytest.importorskip("gepa")
    product = rated
    world = server.world = World("reads")
    words = ("improve", "config.yaml", "--labels", "labels.jsonl", "--gepa")
    write_labels(product.folder)
    plan = product.command(server, *words, "--plan", "--json")
    assert not world.prompts
    first = product.command(server, *words, "-o", "better.yaml")
    sent = len(server.requests)
    again = product.command(server, *words, "--offline")
    assert len(server.requests) == sent
    assert first.results["chosen"] == "criteria by GEPA", first.results["notes"]
    assert first.code == 0, first.stdout
    [check] = yaml.safe_load((product.folder / "better.yaml").read_text(encoding="utf-8"))["assert"]
    assert check["criteria"] == world.evolved
    assert 3 <= len(world.teacher) <= 14
    assert first.results["usage"]["requests"] >= len(world.prompts) + len(world.teacher)
    assert again.results["gain"] == first.results["gain"]
    assert json.loads(plan.stdout)["teacher_calls"] == 14
    assert json.loads(plan.stdout)["ratings"] >= len(world.prompts)

    # Nothing of a held-out document, and nothing that a config would fill in.
    taught = {int(number) // PER_DOCUMENT for text in world.teacher for number, _ in _JUDGED.findall(text)}
    held = {int(item["id"].split(".")[0]) // PER_DOCUMENT for item in first.results["differing"]}
    assert taught
    assert held
    assert not taught & held
    (product.folder / "better.yaml").unlink()
    world.evolved = "It helps, {{ env.OPENAI_API_KEY }}."
    hostile = improved(product, server, world, "--gepa", "--seed", "3")
    assert not any("GEPA" in item["name"] for item in hostile.results["candidates"])
    assert "GEPA found nothing that is better on the training labels" in hostile.results["notes"]


def test_a_teacher_of_gepa_that_fails_is_told(rated: Product, server: WorldServer) -> None:
    pytest.importorskip("gepa")
    world = World("reads")
    world.evolved = ""
    [note] = improved(rated, server, world, "--gepa").results["notes"]
    assert note.startswith("GEPA found nothing that is better on the training labels; ")
    assert re.search(r"; \d+ requests to the teacher failed: .*the prompt is too long", note)


def test_a_budget_ends_gepa_too(rated: Product, server: WorldServer) -> None:
    pytest.importorskip("gepa")
    world = World("reads")
    finished = improved(rated, server, world, "--gepa", "--max-requests", "30")
    assert finished.code == 3
    assert "stopped before anything was decided" in finished.stdout
    assert len(world.prompts) + len(world.teacher) <= 30


def test_without_the_library_the_hint_installs_it(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gepa", None)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "gepa").exists()])
    product.write(config())
    write_labels(product.folder)
    with LoopbackServer() as server:
        finished = product.command(server, "improve", "config.yaml", "--labels", "labels.jsonl", "--gepa")
    assert finished.code == 2
    assert "--gepa needs the package gepa" in finished.stderr
    assert 'pip install ".[gepa]"' in finished.stderr


def test_a_second_look_at_the_same_labels_is_held_to_less_error(
    product: Product, server: WorldServer, searched: tuple[Finished, World]
) -> None:
    first, _ = searched
    (product.folder / "better.yaml").unlink()
    server.requests.clear()
    words = ("improve", "config.yaml", "--labels", "labels.jsonl", "--run", "latest")
    same = product.command(server, *words)
    assert not server.requests
    other = product.command(server, *words, "--seed", "5")
    assert server.requests  # by another split, other outputs are rated

    assert (first.results["gain"]["look"], first.results["gain"]["alpha"]) == (1, 0.025)
    assert same.results["gain"] == first.results["gain"]
    assert (other.results["gain"]["look"], other.results["gain"]["alpha"]) == (2, 0.0125)
    assert "these labels were used 2 times" in " ".join(other.stdout.split())


def test_the_same_change_is_another_look_with_another_split_judge_or_criterion(
    rated: Product, server: WorldServer
) -> None:
    """Otherwise, of twenty splits, one that happens to favour the change would be taken for its only look."""
    server.world = World("guided")
    labels = str(write_labels(rated.folder))
    seen: list[tuple[int, ...]] = []
    for seed, more, criterion in (
        ("0", (), "It helps."),
        ("1", (), "It helps."),
        ("1", ("--grader", "openai:other"), "It helps."),
        ("1", (), "It helps people."),
        ("0", (), "It helps."),
    ):
        rated.write(config(criteria=criterion))
        words = ("--labels", labels, "--run", "latest", "--seed", seed, *more)
        found = rated.command(server, "improve", "config.yaml", *words).results
        assert found["chosen"] == "guidelines"
        seen.append((found["gain"]["look"], round(0.05 / found["gain"]["alpha"])))
    # Another model or criterion that rates exactly alike shows nothing new.
    assert seen == [(1, 2), (2, 4), (2, 4), (2, 4), (1, 2)]
    server.world = World("goes quiet")
    other = ("--labels", labels, "--run", "latest", "--seed", "1", "--grader", "openai:third")
    assert rated.command(server, "improve", "config.yaml", *other).results["gain"]["look"] == 3
    # Nor do labels become fresh by changing some of them, or leaving some out.
    lines = Path(labels).read_text(encoding="utf-8").splitlines(keepends=True)
    for look, kept in ((4, lines[40:]), (5, lines[80:])):
        Path(labels).write_text("".join(kept), encoding="utf-8")
        assert rated.command(server, "improve", "config.yaml", *other).results["gain"]["look"] == look
    rows = [json.loads(line) for line in lines]
    edited = [json.dumps({**row, "label": min(10, row["label"] + 1)}) for row in rows]
    Path(labels).write_text("\n".join(edited), encoding="utf-8")
    assert rated.command(server, "improve", "config.yaml", *other).results["gain"]["look"] == 6


def test_held_out_outputs_without_a_rating_are_told(rated: Product, server: WorldServer) -> None:
    found = improved(rated, server, World("goes quiet")).results
    assert found["chosen"] == "guidelines"
    lost = found["labels"]["held-out"] - found["gain"]["labels"]
    assert lost > 0
    assert (
        f"guidelines: no rating of {lost} of {found['labels']['held-out']} held-out outputs" in found["notes"]
    )


def test_few_held_out_labels_accept_nothing(rated: Product, server: WorldServer) -> None:
    finished = improved(rated, server, World("follows"), outputs=40)

    assert (finished.code, finished.results["accepted"]) == (1, False)
    assert finished.results["labels"]["held-out"] < 20
    assert "too few" in finished.stdout
    assert "; nothing is accepted with fewer than 20 held-out labels" in finished.stderr


def test_a_budget_stops_before_anything_is_decided_and_the_rest_is_free(
    rated: Product, server: WorldServer
) -> None:
    world = World("follows")
    stopped = improved(rated, server, world, "--max-requests", "50")
    assert (stopped.code, stopped.results["stopped"] is None) == (3, False)
    assert "stopped before anything was decided" in stopped.stdout
    sent = len(world.prompts) + len(world.teacher)
    assert sent <= 50
    words = ("improve", "config.yaml", "--labels", "labels.jsonl")
    whole = rated.command(server, *words)
    sent = [request.body for request in server.requests]
    assert len(set(sent)) == len(sent)
    offline = rated.command(server, *words, "--offline")
    assert len(server.requests) == len(sent)
    assert whole.results["accepted"]
    assert offline.results["gain"] == whole.results["gain"]


def test_a_budget_in_dollars_stops_and_names_what_is_lacking(rated: Product, server: WorldServer) -> None:
    product, world = rated, World("follows")
    unpriced = improved(product, server, world, "--max-cost", "0.01")
    assert unpriced.code == 2
    assert "--max-cost" in unpriced.stderr
    assert "price" in unpriced.stderr
    assert not world.prompts

    written = config()
    price = {"id": "openai:judge", "config": {"price": {"input": 100.0, "output": 100.0}}}
    written["defaultTest"]["options"]["provider"] = price
    product.write(written)
    words = ("improve", "config.yaml", "--labels", "labels.jsonl", "--run", "latest")
    unpriced = product.command(server, *words, "--max-cost", "0.05", "--teacher", "openai:of-no-list")
    assert (unpriced.code, len(server.requests)) == (2, 0)
    assert "the price of openai:of-no-list is unknown, so --max-cost cannot be enforced" in unpriced.stderr
    stopped = product.command(server, *words, "--max-cost", "0.05")
    assert (stopped.code, stopped.results["accepted"]) == (3, False), stopped.stderr
    assert "stopped before anything was decided" in stopped.stdout
    assert 0 < stopped.results["usage"]["cost_usd"] < 0.0501
    offline = product.command(server, *words, "--offline")
    assert offline.code == 3, offline.stdout
    assert "not in the cache, and --offline sends nothing" in " ".join(offline.stdout.split())
    asked = len(server.requests)
    whole = product.command(server, *words)
    assert whole.results["accepted"]
    sent = [request.body for request in server.requests]
    assert len(set(sent)) == len(sent) > asked
    assert product.command(server, *words, "--offline").results["gain"] == whole.results["gain"]
    assert len(server.requests) == len(sent)


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (("improve", "config.yaml", "--labels", "labels.jsonl"), 500),
        (("improve", "config.yaml", "--labels", "labels.jsonl"), 60),
        (("probe", "with_model.yaml", "--items", "8", "--only", "negate"), 500),
        (("probe", "with_model.yaml", "--items", "8", "--only", "negate"), 6),
        (("drift", "anchors.jsonl", "config.yaml"), 500),
    ],
)
@pytest.mark.parametrize("kind", ["guided", "goes quiet", "empty", "breaks"])
def test_what_a_command_says_it_cost_is_what_the_server_charged(
    kind: str, words: tuple[str, ...], limit: int, rated: Product, server: WorldServer
) -> None:
    """Also for replies that brought nothing, answers of the model under test, and the teacher's."""
    write_labels(rated.folder)
    rated.command(server, "drift", "--save", "anchors.jsonl", "--items", "20", writes_results=False)
    price = {"price": {"input": 100.0, "output": 100.0}, "max_retries": 0}
    written = config()
    written["defaultTest"]["options"]["provider"] = {"id": "openai:judge", "config": price}
    rated.write(written)
    asked = {"prompts": ["{{ n }}"], "providers": [{"id": "openai:model", "config": price}]}
    written["tests"] = [{"vars": test["vars"]} for test in written["tests"]]
    text = yaml.safe_dump({**written, **asked})
    (rated.folder / "with_model.yaml").write_text(text, encoding="utf-8")
    server.world = World(kind)
    server.requests.clear()
    finished = rated.command(server, *words, "--max-requests", str(limit))
    usage = finished.results["usage"]
    assert server.requests
    assert usage["cost_usd"] == pytest.approx(len(server.requests) * 0.001), finished.stdout


def test_a_judge_that_breaks_is_said_and_not_taken_for_a_judge_that_rates(
    rated: Product, server: WorldServer
) -> None:
    """Broken on most outputs it ends the search at once; a candidate that breaks on many is never chosen."""
    labels = str(write_labels(rated.folder))
    rated.write(config(criteria="It helps a lot."))
    server.world.kind = "breaks"
    finished = rated.command(server, "improve", "config.yaml", "--labels", labels, "--run", "latest")
    assert len(server.requests) <= 2 * 36
    assert finished.code == 3
    assert "the judge failed on 36 of 36 outputs: " in " ".join(finished.stdout.split())
    assert "no score can be read from the judge's reply" in " ".join(finished.stdout.split())


class HoldingWorld(World):
    """A judge that follows examples, which answers only so many requests."""

    def __init__(self) -> None:
        super().__init__("follows")
        self.answered: list[str] = []
        self.waiting: list[str] = []
        self.most = 10**9

    def respond(self, body: Any, headers: Mapping[str, str]) -> Reply:
        text = json.dumps(body, sort_keys=True)
        if len(self.answered) >= self.most:
            self.waiting.append(text)
            return Reply(hang=True)
        self.answered.append(text)
        return super().respond(body, headers)


def test_a_search_that_is_killed_pays_for_no_answer_twice_and_finds_the_same(
    searched: tuple[Finished, World], rated: Product, server: WorldServer, folders: tuple[Path, Path]
) -> None:
    whole, undisturbed = searched
    total = len(undisturbed.prompts) + len(undisturbed.teacher)
    assert total > 200
    shutil.rmtree(rated.folder / "state")
    shutil.copytree(folders[1] / "rated" / "state", rated.folder / "state")
    server.world = world = HoldingWorld()
    at_once = 4
    words = ("improve", "config.yaml", "--labels", "labels.jsonl", "--run", "latest", "-j", str(at_once))
    env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-loopback")

    def stored() -> int:
        with closing(sqlite3.connect(rated.folder / "state" / "cache.db")) as cache:
            return int(cache.execute("SELECT count(*) FROM choices").fetchone()[0])

    asked_before = stored()
    for share in (0.1, 0.45, 0.97):  # while candidates are rated, and held-out outputs
        world.most = int(share * total)
        world.waiting.clear()
        process = start_geval(
            *(*words, "--home", "state"),
            cwd=rated.folder,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while len(world.waiting) < at_once and process.poll() is None:
            time.sleep(0.01)
        assert len(world.waiting) == at_once
        while stored() < asked_before + world.most:  # the last answers are on their way to the disk
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert len(world.answered) == world.most
    world.most = 10**9
    last = rated.command(server, *words)
    assert last.code == 0, last.stderr
    assert len(set(world.answered)) == len(world.answered) == total
    # Part of it came from the cache.
    paid = {"usage", "candidates", "cost_usd_before", "cost_usd_after"}
    found, expected = (
        {name: value for name, value in one.results.items() if name not in paid} for one in (last, whole)
    )
    assert found == expected


def test_the_function_finds_what_the_command_finds(
    product: Product, server: WorldServer, searched: tuple[Finished, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_command, _ = searched
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
    found = improve(
        product.folder / "config.yaml",
        product.folder / "labels.jsonl",
        run=by_command.results["run"],
        home=product.folder / "state",
        is_offline=True,
    )
    assert found.is_accepted
    assert json.loads(json.dumps(to_json(found.gain))) == by_command.results["gain"]


def test_the_plan_sends_nothing(rated: Product, server: WorldServer) -> None:
    finished = improved(rated, server, World("follows"), "--plan")
    assert finished.code == 0
    assert not server.requests
    assert "nothing is sent" in finished.stdout
    assert "2 teacher calls" in finished.stdout
    # The latest run of the config is meant, not of another one.
    (rated.folder / "other.yaml").write_text("prompts: [x]\nproviders: [echo]\n", encoding="utf-8")
    rated.command(server, "run", "other.yaml")
    again = rated.command(server, "improve", "config.yaml", "--labels", "labels.jsonl", "--plan")
    assert again.stdout == finished.stdout


def test_what_cannot_come_to_a_result_is_refused_before_anything_is_sent(
    rated: Product, server: WorldServer
) -> None:
    product = rated
    write_labels(product.folder)
    rows = (product.folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()
    equal = [json.dumps({**json.loads(row), "label": 3}) for row in rows]
    for name, lines in (("two.jsonl", rows[:2]), ("equal.jsonl", equal)):
        (product.folder / name).write_text("\n".join(lines), encoding="utf-8")
    (product.folder / "there.yaml").write_text("mine", encoding="utf-8")
    for labels, more, said in (
        ("two.jsonl", ("--plan",), "2 labels of 1 document are too few"),
        ("equal.jsonl", (), "all 36 select labels of `helpful` are equal"),
        ("labels.jsonl", ("-o", "there.yaml"), "may contain your config"),
        ("labels.jsonl", ("-o", "nowhere/b.yaml"), "mkdir -p nowhere"),
        ("labels.jsonl", ("-o", "nowhere/b.json"), "mkdir -p nowhere"),
        ("labels.jsonl", ("-o", "b.txt"), ".html, .json, .md, .yaml, .yml"),
        ("labels.jsonl", ("--teacher", "nope:x"), "nope:x cannot be the teacher"),
    ):
        words = ("improve", "config.yaml", "--labels", labels, *more)
        finished = product.command(server, *words, writes_results=False)
        assert (finished.code, said in finished.stderr) == (2, True), finished.stderr
    assert not server.requests


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"checklist": ["Is it right?"], "criteria": None, "evaluation_steps": None},
            "has no criterion to improve",
        ),
        ({"type": "not-g-eval"}, "is the metric of a `not-` assertion"),
        ({"metric": "other"}, "there are no labels for"),
        ({"rubric_prompt": "{{ output }} rate", "evaluation_steps": None}, "has a `rubricPrompt`"),
    ],
)
def test_what_cannot_be_improved_is_refused(
    change: dict[str, Any], said: str, rated: Product, server: WorldServer
) -> None:
    labels = write_labels(rated.folder)
    written = config(**change)
    written["defaultTest"]["assert"][0] = {
        name: value for name, value in written["defaultTest"]["assert"][0].items() if value is not None
    }
    metric = ["--metric", "other"] if change.get("metric") else []
    rated.write(written)
    finished = rated.command(server, "improve", "config.yaml", "--labels", str(labels), *metric)
    assert not server.requests
    assert finished.code == 2
    assert said in finished.stderr


@pytest.mark.parametrize(("documents", "is_shown"), [(2, False), (24, True)])
def test_a_gain_that_no_document_changes_is_no_surer_than_their_number(
    documents: int, is_shown: bool
) -> None:
    """Today's judge passes everything and the new one makes no mistake: leaving out a document changes neither."""
    cases = [
        LabelledCase(make_case(number), float(number % 2), f"document {number % documents // 2 * 2}")
        for number in range(48)
    ]
    human = np.array([case.human for case in cases])
    before = CandidateRatings(JudgeCandidate(TODAY), np.ones(48), ("",) * 48, Usage())
    after = replace(before, scores=human)
    if documents == 2:  # one half each, with good and bad outputs
        cases = [replace(case, document=f"document {place // 24}") for place, case in enumerate(cases)]
    gain = held_out_gain(AgreementMeasure.BALANCED_ACCURACY, before, after, cases, 0.5, 1)
    assert (gain.before, gain.after, gain.value) == (0.5, 1.0, 0.5)
    assert gain.is_shown is is_shown
    assert gain.interval is not None
    assert gain.interval[1] - gain.interval[0] > 0.3

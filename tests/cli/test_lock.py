"""`geval.lock`: steps that are asked for once, used by every run, and demanded by `--locked`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.loopback import LoopbackServer, Reply, chat_reply
from support.product import Finished, Product


class Judge:
    """Writes other steps each time it is asked for some, and keeps what it is asked."""

    def __init__(self) -> None:
        self.steps = 0
        self.prompts: list[str] = []

    def respond(self, body: Any, headers: Any) -> Reply:
        del headers
        prompt = str(body["messages"][-1]["content"])
        self.prompts.append(prompt)
        if '"score"' in prompt:
            return chat_reply('{"reason": "fair", "score": 6}')
        if '"steps"' in prompt:
            self.steps += 1
            return chat_reply(json.dumps({"steps": [f'Step "{self.steps}": read.', "Rate\u2028it."]}))
        return chat_reply("an answer")


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def server(judge: Judge) -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=judge.respond) as server:
        yield server


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


def config(*criteria: str, **changes: Any) -> dict[str, Any]:
    judged = [{"type": "g-eval", "criteria": text, "provider": "openai:judge"} for text in criteria]
    return {
        "prompts": ["Say {{ x }}"],
        "providers": ["openai:m"],
        "defaultTest": {"assert": judged},
        "tests": [{"vars": {"x": "a"}}, {"vars": {"x": "b"}}],
        **changes,
    }


def lock(product: Product, server: LoopbackServer, *options: str) -> Finished:
    return product.command(server, "lock", "config.yaml", *options, writes_results=False)


def entries(product: Product) -> list[Any]:
    found = yaml.safe_load((product.folder / "geval.lock").read_text(encoding="utf-8"))
    assert found["version"] == 1
    return list(found["entries"])


def test_only_steps_are_asked_for_and_runs_use_them(
    product: Product, server: LoopbackServer, judge: Judge
) -> None:
    product.write(config("Polite.", "Short."))
    first = lock(product, server)
    assert first.code == 0, first.stderr
    assert len(judge.prompts) == judge.steps == 2
    assert [entry["criteria"] for entry in entries(product)] == ["Polite.", "Short."]
    assert {tuple(entry["params"]) for entry in entries(product)} == {("Input", "Actual Output")}
    assert {entry["judge"] for entry in entries(product)} == {"openai:judge"}
    shutil.rmtree(product.folder / "state")
    judge.prompts.clear()

    run = product.run(product.folder / "config.yaml", server, "--locked")

    assert run.code == 0
    assert judge.steps == 2  # none was asked for again, with an empty cache
    steps = {entry["criteria"]: entry["steps"] for entry in entries(product)}
    assert [item["detail"]["evaluation_steps"] for item in run.verdicts] == [
        steps[item["detail"]["criteria"]] for item in run.verdicts
    ]


def test_each_judge_of_a_jury_has_steps_of_its_own(
    product: Product, server: LoopbackServer, judge: Judge
) -> None:
    written = config("Polite.")
    written["providers"].append({"id": "openai:third", "label": "my judge"})
    jury = ["openai:one", "openai:two", "my judge"]
    written["defaultTest"]["assert"][0].update(provider=jury)
    product.write(written)
    locked = lock(product, server)
    assert locked.code == 0, locked.stderr
    asked = ["openai:one", "openai:third", "openai:two"]
    assert [entry["judge"] for entry in entries(product)] == asked

    run = product.run(product.folder / "config.yaml", server, "--locked")

    assert run.code == 0, run.stderr
    assert judge.steps == 3
    steps = {entry["judge"]: entry["steps"] for entry in entries(product)}
    votes = [vote for item in run.verdicts for vote in item["detail"]["judges"]]
    assert len(votes) == 4 * 3
    names = {"my judge": "openai:third"}
    assert all(vote["evaluation_steps"] == steps[names.get(vote["id"], vote["id"])] for vote in votes)


def test_it_is_the_same_bytes_and_a_line_a_step(product: Product, server: LoopbackServer) -> None:
    product.write(config("Short.", "Polite: \u201ckind\u201d #1"))
    lock(product, server)
    path = product.folder / "geval.lock"
    before = path.read_bytes()

    again = lock(product, server)

    assert path.read_bytes() == before
    assert again.stdout.endswith(" of 2 criteria\n")
    text = before.decode()
    assert text.count("      - ") == 4
    assert text.index("Polite") < text.index("Short")
    assert "\u2028" not in text


@pytest.mark.parametrize("change", ["missing", "stale", "no file"])
def test_locked_refuses_before_anything_is_sent(
    product: Product, server: LoopbackServer, judge: Judge, change: str
) -> None:
    product.write(config("Polite."))
    lock(product, server)
    path = product.folder / "geval.lock"
    if change == "missing":
        product.write(config("Polite.", "Short."))
    elif change == "stale":
        version = entries(product)[0]["prompt_version"]
        path.write_text(path.read_text(encoding="utf-8").replace(version, "0" * 12), encoding="utf-8")
    else:
        path.unlink()
    judge.prompts.clear()

    run = product.run(product.folder / "config.yaml", server, "--locked")

    assert (run.code, judge.prompts) == (2, [])
    assert "config.yaml:" in run.stderr
    assert (
        "steps from other judge prompts" if change == "stale" else "has no steps for a criterion"
    ) in run.stderr
    assert product.run(product.folder / "config.yaml", server).code == 0  # without --locked they are bought
    assert lock(product, server).code == 0
    assert product.run(product.folder / "config.yaml", server, "--locked").code == 0


def test_criteria_with_variables_are_not_locked_and_that_is_said(
    product: Product, server: LoopbackServer
) -> None:
    product.write(config("Fits {{ x }}.", "Polite."))

    said = lock(product, server).stdout

    assert "not pinned: 1 criterion has variables" in said
    assert [entry["criteria"] for entry in entries(product)] == ["Polite."]
    assert product.run(product.folder / "config.yaml", server, "--locked").code == 0


def test_unused_entries_are_named_and_removed_on_request(product: Product, server: LoopbackServer) -> None:
    product.write(config("Polite.", "Short."))
    lock(product, server)
    product.write(config("Polite."))

    said = lock(product, server).stdout
    assert said.endswith("unused: Short.\nremove what is unused with --update\n")
    assert len(entries(product)) == 2

    assert "removed: Short." in lock(product, server, "--update").stdout
    assert [entry["criteria"] for entry in entries(product)] == ["Polite."]


@pytest.mark.parametrize("options", [(), ("--update",)])
def test_criteria_that_another_process_pins_meanwhile_stay(
    product: Product, judge: Judge, options: tuple[str, ...]
) -> None:
    """Those that were there before, and that an update removes, do not come back."""
    path = product.folder / "geval.lock"

    def respond(body: Any, headers: Any) -> Reply:
        if path.read_text(encoding="utf-8") == before:
            path.write_text(both, encoding="utf-8")
        return judge.respond(body, headers)

    with LoopbackServer(respond=judge.respond) as server:
        product.write(config("Old."))
        assert lock(product, server).code == 0
        before = path.read_text(encoding="utf-8")
        product.write(config("Old.", "Theirs."))
        assert lock(product, server).code == 0
        both = path.read_text(encoding="utf-8")
    path.write_text(before, encoding="utf-8")
    with LoopbackServer(respond=respond) as server:
        product.write(config("Ours."))
        assert lock(product, server, *options).code == 0
    old = [] if options else ["Old."]
    assert [entry["criteria"] for entry in entries(product)] == [*old, "Ours.", "Theirs."]


def test_of_equal_criteria_what_the_judge_sees_says_which_is_unused(
    product: Product, server: LoopbackServer
) -> None:
    narrow: dict[str, Any] = {"type": "g-eval", "criteria": "Polite.", "provider": "openai:judge"}
    narrow["evaluation_params"] = ["actual_output"]
    product.write(config(defaultTest={"assert": [narrow]}))
    lock(product, server)
    product.write(config("Polite."))

    said = lock(product, server).stdout
    assert [line for line in said.splitlines() if line.startswith("unused")] == [
        "unused: Polite. (by openai:judge from Actual Output)"
    ]

    product.write(config("Short."))
    said = lock(product, server).stdout
    assert [line for line in said.splitlines() if line.startswith("unused")] == [
        "unused: Polite. (by openai:judge from Actual Output)",
        "unused: Polite. (by openai:judge from Input, Actual Output)",
    ]


def test_other_steps_are_another_run_and_other_ratings(
    product: Product, server: LoopbackServer, judge: Judge
) -> None:
    product.write(config("Polite."))
    product.run(product.folder / "config.yaml", server)
    path = product.folder / "geval.lock"
    lock(product, server)
    locked = product.run(product.folder / "config.yaml", server)
    path.write_text(path.read_text(encoding="utf-8").replace("read.", "look."), encoding="utf-8")
    judge.prompts.clear()

    judged = product.command(server, "judge", "latest")

    assert ['"score"' in prompt for prompt in judge.prompts] == [True, True]
    assert judged.verdicts[0]["detail"]["criterion_key"] != locked.verdicts[0]["detail"]["criterion_key"]
    again = product.run(product.folder / "config.yaml", server, "--resume-from", locked.results["run"]["id"])
    assert again.code == 2
    assert "geval.lock: the evaluation steps" in again.stderr


def test_a_judge_that_fails_leaves_the_file_as_it_was(
    product: Product, server: LoopbackServer, judge: Judge
) -> None:
    product.write(config("Polite."))
    lock(product, server)
    before = (product.folder / "geval.lock").read_bytes()
    product.write(config("Polite.", "Short."))

    ended = lock(product, server, "--max-requests", "0")

    assert ended.code != 0
    assert ended.stderr == (
        "error: the budget of 0 requests is used up\n    = allow more with --max-cost or --max-requests\n"
    )
    assert (product.folder / "geval.lock").read_bytes() == before
    assert [path.name for path in product.folder.glob("*.tmp")] == []


_GOOD = '{criteria: a, params: [Input], judge: j, prompt_version: "1", steps: [s]}'
_BROKEN = {
    "syntax": ("entries: [", "geval.lock:1:11"),
    "a list": ("[]", "geval.lock:1:1"),
    "empty": ("", "geval.lock"),
    "no entries": ("version: 1\n", "geval.lock:1:1"),
    "a version": ("version: 2\nentries: []\n", "geval.lock:1:10"),
    "a text": ("version: 1\nentries: [x]\n", "geval.lock:2:11"),
    "no steps": (f"version: 1\nentries:\n  - {_GOOD.replace('[s]', '[]')}\n", "geval.lock:3:74"),
    "steps that are numbers": (
        f"version: 1\nentries:\n  - {_GOOD.replace('[s]', '[1]')}\n",
        "geval.lock:3:74",
    ),
    "an unknown key": (f"version: 1\nentries:\n  - {_GOOD.replace('{', '{x: 1, ')}\n", "geval.lock:3:6"),
    "twice": (f"version: 1\nentries:\n  - {_GOOD}\n  - {_GOOD}\n", "geval.lock:4:5"),
}


@pytest.mark.parametrize("name", _BROKEN)
def test_a_broken_lock_file_is_a_problem_with_its_place(
    product: Product, server: LoopbackServer, judge: Judge, name: str
) -> None:
    content, place = _BROKEN[name]
    product.write(config("Polite."))
    (product.folder / "geval.lock").write_text(content, encoding="utf-8")

    run = product.run(product.folder / "config.yaml", server)

    assert (run.code, judge.prompts) == (2, [])
    assert place in run.stderr


def test_no_credentials_of_a_judge_are_written(product: Product, server: LoopbackServer) -> None:
    written = config("Polite.")
    address = server.base_url.replace("://", "://user:secret-word@")
    written["defaultTest"]["assert"][0]["provider"] = {
        "id": "openai:judge",
        "config": {"base_url": address, "apiKey": "sk-abcdefgh1234"},
    }
    product.write(written)

    lock(product, server)

    text = (product.folder / "geval.lock").read_text(encoding="utf-8")
    assert "openai:judge" in text
    assert "secret-word" not in text
    assert "sk-" not in text

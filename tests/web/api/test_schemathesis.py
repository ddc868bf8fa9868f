"""Requests made up from the served description of the API: none of them may find the server at a loss."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.judge_server import judge_sensibly
from support.loopback import LoopbackServer
from support.web_server import judge_environ, running_server

SUITE = """\
prompts: ["{{ word }}"]
providers: [echo]
tests: [{ vars: { word: one }, assert: [{ type: contains, value: one }] }]
"""
SETTINGS = """\
[phases.coverage]
unexpected-methods = ["DELETE"]

[[operations]]
include-name = "POST /api/runs"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429", "5xx"]

[[operations]]
include-name = "GET /api/runs/{id}/labels/sheet"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "5xx"]
"""
"""No schema can say which judges there are, nor that a scale's first number is the lower one, so what is well-formed
may be 422; other methods are tested elsewhere."""
ROOT = Path(__file__).parents[3]
EXAMPLES = 3


def test_every_answer_is_as_described(tmp_path: Path) -> None:
    (tmp_path / "gevalconfig.yaml").write_text(SUITE, encoding="utf-8")
    (tmp_path / "schemathesis.toml").write_text(SETTINGS, encoding="utf-8")
    with (
        LoopbackServer(respond=judge_sensibly) as judge,
        running_server(tmp_path, environ=judge_environ(judge), scoring="single") as server,
    ):
        server.post("/api/runs", {"config": "gevalconfig.yaml"})
        finished = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                "--config-file=schemathesis.toml",
                "run",
                f"{server.url}/openapi.json",
                "--checks=all",
                "--phases=examples,coverage,fuzzing",
                f"--max-examples={EXAMPLES}",
                "--seed=1",
                "--workers=1",  # with more it looks up its own source in several threads, and breaks now and then
                "--generation-database=none",
                "--no-color",
            ],
            cwd=tmp_path,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert re.search(r"Tested: +17", finished.stdout), finished.stdout


def _places(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each field that a body may have, of a list that of its first item."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for form in (schema, *schema.get("anyOf", ())):
        for name, inner in form.get("properties", {}).items():
            yield (name,)
            yield from ((name, *further) for further in _places(inner, document))
        if isinstance(form.get("items"), dict):
            yield (0,)
            yield from ((0, *further) for further in _places(form["items"], document))


def _holding(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in reversed(path):
        value = [value] if isinstance(part, int) else {part: value}
    return value


def _at(pointer: str, body: Any) -> Any:
    for part in pointer.removeprefix("#/").split("/") if pointer != "#" else ():
        body = body[int(part)] if isinstance(body, list) else body[part]
    return body


def test_each_field_that_cannot_be_read_is_told_once_at_its_place_and_in_plain_words(tmp_path: Path) -> None:
    told = set()
    with running_server(tmp_path) as server:
        document = server.get("/openapi.json").json
        bodies = [
            (method.upper(), path.replace("{id}", "latest"), place)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            if "application/json" in operation.get("requestBody", {}).get("content", {})
            for place in _places(operation["requestBody"]["content"]["application/json"]["schema"], document)
        ]
        for method, path, place in bodies:
            for wrong in (None, True, -1, 0.5, 10**30, "", "\x00", [], [[1]], {}, {"a": {"b": 1}}):
                body = _holding(wrong, place)
                sent = json.dumps(body).encode()
                answer = server.send(method, path, sent, {"content-type": "application/json"})
                if answer.status != 422 or "errors" not in answer.json:
                    continue
                errors = [item for item in answer.json["errors"] if "pointer" in item]
                pointers = [item["pointer"] for item in errors]
                assert len(pointers) == len(set(pointers)), (path, body, errors)
                for item in errors:
                    detail, pointer = item["detail"], item["pointer"]
                    assert detail.startswith(("this ", "there is no such field")), (path, body, item)
                    _at(pointer.rpartition("/")[0] if detail == "this is required" else pointer, body)
                    told.add((path, pointer))
    assert len(told) > 40

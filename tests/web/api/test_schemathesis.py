"""Requests made up from the served description of the API: none of them may find the server at a loss."""

import os
import re
import subprocess
import sys
from pathlib import Path

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

"""Whole runs in this process, for configs that run code."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geval_cli.engine.runner import StopSignal
from geval_cli.records import to_json
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.store.state import open_state


def rows_of(folder: Path, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a config written to `folder`, and return the results in its results file."""
    config = folder / "config.json"
    config.write_text(json.dumps(content), encoding="utf-8")
    prepared = prepare(RunRequest(config, {}))
    with open_state(folder / "state", {}) as state:
        report = asyncio.run(run_evaluation(prepared, state, listen=lambda event: None, stop=StopSignal()))
        return [json.loads(json.dumps(to_json(result))) for result in report.results()]

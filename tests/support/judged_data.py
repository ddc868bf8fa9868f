"""Public data sets of outputs rated by people and judges; without them next to the checkout, tests are skipped."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data"


def lines_of(name: str) -> Iterator[dict[str, Any]]:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not there: figures of published data cannot be checked")
    with path.open(encoding="utf-8") as stream:
        yield from map(json.loads, stream)


@cache
def summaries() -> tuple[dict[str, Any], ...]:
    """Return SummEval as rows of labels: three experts, and the scores of gpt-4-0314."""
    texts = {(row["doc_id"], row["system_id"]): row["output"] for row in lines_of("summeval_outputs.jsonl")}
    return tuple(_summary(row, texts) for row in lines_of("summeval_gpt4_rts.jsonl"))


def _summary(row: dict[str, Any], texts: dict[tuple[str, str], str]) -> dict[str, Any]:
    rating = row["score_audited"]
    return {
        "id": f"{row['doc_id']}/{row['system_id']}",
        "metric": row["dimension"],
        "labels": {f"expert {number}": mark for number, mark in enumerate(row["human_experts"], start=1)},
        "scale": [1, 5],
        "doc": row["doc_id"],
        "system": row["system_id"],
        "score": None if rating is None else (rating - 1) / 4,
        "output": texts[row["doc_id"], row["system_id"]],
    }


@cache
def unieval(name: str, metric: str, scale: tuple[float, float]) -> tuple[dict[str, Any], ...]:
    """Return a data set with UniEval's scores as rows of labels by one annotator, the mean of the human ratings."""
    low, high = scale
    return tuple(
        {
            "id": row["id"],
            "metric": metric,
            "label": (row["human"][metric] - low) / (high - low),
            "score": row["unieval"][metric],
            "doc": row.get("doc_id", row.get("dialogue_id")),
        }
        for row in lines_of(name)
    )

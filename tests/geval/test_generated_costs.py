"""What an answer cost and took when it was generated stays known when the cache or an earlier run gives it."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.loopback import LoopbackServer, chat_reply
from support.product import Finished, Product

PRICE = {"price": {"input": 1000, "output": 1000}}  # 10 tokens an answer: a cent
CONFIG: dict[str, Any] = {
    "prompts": ["Say {{ x }}"],
    "providers": [
        {"id": "openai:a", "label": "a", "config": PRICE},
        {"id": "openai:b", "label": "b", "config": {"price": {"input": 2000, "output": 2000}}},
    ],
    "tests": [
        {
            "vars": {"x": number},
            "assert": [
                {"type": "contains", "value": "fine"},
                {"type": "cost", "threshold": 1},
                {"type": "latency", "threshold": 99_999},
            ],
        }
        for number in range(3)
    ],
}
TALK = {"turns": [{"user": "hi"}, {"user": "bye"}]}


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=lambda body, headers: chat_reply("fine")) as server:
        yield server


def columns(done: Finished) -> list[tuple[float, float]]:
    """What was paid, and what it cost when it was generated, of each column."""
    found = done.results["summary"]["columns"]
    return [(round(item["cost_usd"], 6), round(item["cost_usd_generated"], 6)) for item in found]


def latencies(done: Finished) -> list[float]:
    return [case["latency_ms"] for case in done.cases]


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_columns_that_the_cache_answers_keep_cost_and_latency(
    product: Product, server: LoopbackServer, options: tuple[str, ...]
) -> None:
    first = product.run(CONFIG, server, *options)
    assert columns(first) == [(0.03, 0.03), (0.06, 0.06)]
    again = product.run(CONFIG, server, *options)
    assert columns(again) == [(0, 0.03), (0, 0.06)]
    assert latencies(again) == latencies(first)
    assert [item["latency_ms"]["median"] for item in again.results["summary"]["columns"]] == [
        item["latency_ms"]["median"] for item in first.results["summary"]["columns"]
    ]
    assert "$0.090 in all, of which this run paid $0.00" in again.stdout
    assert "this run paid" not in first.stdout


def test_a_run_that_pays_for_some_says_both(product: Product, server: LoopbackServer) -> None:
    product.run({**CONFIG, "tests": CONFIG["tests"][:1]}, server)
    done = product.run(CONFIG, server)
    assert columns(done) == [(0.02, 0.03), (0.04, 0.06)]
    assert [case["cost_usd_generated"] for case in done.cases[:2]] == pytest.approx([0.01, 0.02])
    assert [case["usage"]["generation"]["cost_usd"] for case in done.cases[:2]] == [0, 0]


def test_outputs_that_are_judged_again_keep_them(product: Product, server: LoopbackServer) -> None:
    first = product.run(CONFIG, server)
    cached = product.run(CONFIG, server)
    sent = len(server.requests)
    for earlier in (first, cached):
        done = product.command(server, "judge", earlier.results["run"]["id"], "config.yaml")
        assert columns(done) == [(0, 0.03), (0, 0.06)]
        assert latencies(done) == latencies(first)
        assert done.code == 0, done.stdout
    assert len(server.requests) == sent


def test_the_turns_of_a_conversation_are_added_up(product: Product, server: LoopbackServer) -> None:
    config = {
        **CONFIG,
        "prompts": ["Be kind: {{ input }}"],
        "tests": [{**TALK, "assert": [{"type": "cost", "threshold": 1}]}],
    }
    first = product.run(config, server)
    again = product.run(config, server)
    assert columns(first) == [(0.02, 0.02), (0.04, 0.04)]
    assert columns(again) == [(0, 0.02), (0, 0.04)]
    assert [item["detail"]["value"] for item in again.verdicts] == pytest.approx([0.02, 0.04])


def test_an_unknown_price_is_unknown_both_times(product: Product, server: LoopbackServer) -> None:
    config = {**CONFIG, "providers": ["openai:nameless"], "tests": [{"vars": {"x": 1}}]}
    for _ in range(2):
        [column] = product.run(config, server).results["summary"]["columns"]
        assert column["cost_usd_generated"] is None


def test_tables_and_files_have_them(product: Product, server: LoopbackServer) -> None:
    product.run(CONFIG, server)
    names = [product.folder / f"r.{ending}" for ending in ("csv", "md", "html", "parquet", "jsonl")]
    done = product.run(CONFIG, server, *(word for name in names for word in ("-o", str(name))))
    rows = list(csv.DictReader(io.StringIO(names[0].read_text(encoding="utf-8-sig"))))
    assert [(float(row["cost_usd"]), float(row["cost_usd_generated"])) for row in rows[:2]] == [
        (0, 0.01),
        (0, 0.02),
    ]
    note = "$0.090 in all, of which this run paid $0.00"
    assert note in names[1].read_text(encoding="utf-8")
    page = names[2].read_text(encoding="utf-8")
    assert note in page
    assert "at $0.010." in page or "at $0.01." in page
    lines = [json.loads(line) for line in names[4].read_text(encoding="utf-8").splitlines()]
    assert lines[0]["cost_usd_generated"] == pytest.approx(0.01)
    imported = product.command(server, "import", "run", str(names[3]), writes_results=False)
    assert "is stored here already" in imported.stderr or imported.code == 0
    assert done.code == 0

"""Grouping the questions of 1,000 traces with `geval generate tests --from-traces`, and the groups it should find."""

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.measured import measure
from benchmarks.throughput import environment

TRACES = 1_000
BOUND_S = 10.0
SHOWN = 12
INTENTS = {
    "refund": (
        "I want my money back for {thing}",
        "how do I get a refund for {thing}?",
        "refund {thing} please",
    ),
    "late": (
        "where is my order {number}?",
        "my order {number} has not arrived",
        "order {number} is late, where is it",
    ),
    "password": (
        "I forgot my password",
        "cannot log in, password reset link does not work",
        "reset my password",
    ),
    "address": (
        "change the delivery address to {place}",
        "please deliver to {place} instead of my old address",
    ),
    "invoice": (
        "I need an invoice for {thing}",
        "send me the invoice of {number}",
        "where do I find my invoices?",
    ),
    "opening": (
        "when do you open in {place}?",
        "opening hours of the shop in {place}",
        "is the shop in {place} open",
    ),
    "cancel": (
        "cancel my subscription",
        "how can I cancel the subscription?",
        "I want to cancel subscription {number}",
    ),
    "broken": (
        "{thing} arrived broken",
        "the {thing} you sent me is broken",
        "my {thing} is damaged and broken",
    ),
    "size": (
        "does {thing} come in size {number}?",
        "which size of {thing} do I need",
        "size chart for {thing}",
    ),
    "voucher": (
        "my voucher {number} is not accepted",
        "the voucher code does not work",
        "can I use two vouchers",
    ),
}
THINGS = ("the red jacket", "the kettle", "a lamp", "the running shoes", "the blue scarf")
PLACES = ("Zürich", "Elmsund", "Leeds", "Porto")


def write_traces(path: Path, count: int, seed: int = 7) -> list[str]:
    """Write traces of questions, and return the intent of each one."""
    draw, intents, lines = random.Random(seed), [], []
    for number in range(count):
        intent = draw.choice([*INTENTS])
        form = draw.choice(INTENTS[intent])
        opening = draw.choice(("", "", "hi, ", "Hello! ", "hey ", "Good morning, "))
        text = opening + form.format(
            thing=draw.choice(THINGS), number=draw.randrange(1_000, 99_999), place=draw.choice(PLACES)
        )
        intents.append(intent)
        asked = {"role": "user", "content": text}
        given = {"role": "assistant", "content": f"Answer {number}."}
        lines.append(json.dumps({"trace_id": f"t{number}", "messages": [asked, given]}, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return intents


def run() -> None:
    """Print the time, the largest groups, and the intents of their typical questions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        intents = write_traces(folder / "traces.jsonl", TRACES)
        words = ["generate", "tests", "--from-traces", "traces.jsonl", "-o", "tests.jsonl"]
        command = [sys.executable, "-m", "geval_cli", *words]
        found = measure(command, folder, environment("http://127.0.0.1:9"))
        rows = [
            json.loads(line) for line in (folder / "tests.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    verdict = f"{'good' if found.cpu_s < BOUND_S else 'TOO MUCH'}: at most {BOUND_S:g} s"
    took = f"{found.wall_s:.2f} s, {found.cpu_s:.2f} s of it processor time, {found.peak_mb:.0f} MB"
    print(f"{TRACES:,} traces of {len(set(intents))} intents: {len(rows)} groups, {took}  ({verdict})")
    held = Counter()
    for row in rows:
        held[intents[int(row["metadata"]["trace_id"][1:])]] += row["metadata"]["group_size"]
    print(f"intents with a group: {len(held)} of {len(set(intents))}")
    for row in rows[:SHOWN]:
        metadata = row["metadata"]
        intent = intents[int(metadata["trace_id"][1:])]
        print(f"{metadata['group_size']:>5} {intent:<9} {metadata['group_words']:<32} {row['input']}")


if __name__ == "__main__":
    run()

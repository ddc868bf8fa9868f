"""`--plan`: how many tests show a drop, by the spread of an earlier run. The oracle is scipy's t distribution."""

import math
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, chat_reply
from support.product import Product

from geval_cli.numbers import estimated, format_cost

PRICED = {"price": {"input": 10, "output": 10}, "max_tokens": 10}


def config(tests: int, *gates: str) -> dict[str, Any]:
    check = {"type": "contains", "value": "fine", "metric": "tone"}
    return {
        "prompts": ["{{ x }}"],
        "providers": [{"id": "openai:m", "config": PRICED}],
        "tests": [{"vars": {"x": f"number {number}"}, "assert": [check]} for number in range(tests)],
        "gates": list(gates),
    }


def smallest(spread: float) -> int:
    from scipy.stats import t

    count = 2
    while (t.ppf(0.975, count - 1) + t.ppf(0.8, count - 1)) * spread / math.sqrt(count) > 0.05:
        count += 1
    return count


@pytest.mark.parametrize(
    ("tests", "good", "spread"),
    [
        (20, 10, math.sqrt(0.25 * 20 / 19)),
        (10, 10, math.sqrt(0.95 * 0.05)),  # all alike: as they would be after the drop
        (9, 4, None),  # too few to tell the spread
    ],
)
def test_the_plan_says_how_many_tests_show_a_drop_and_what_they_cost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tests: int,
    good: int,
    spread: float | None,
) -> None:
    product = Product(tmp_path, monkeypatch, capsys)
    suite = config(tests, "tone.mean >= 0.1")

    def respond(body: Any, headers: Any) -> Any:
        del headers
        number = int(body["messages"][0]["content"].split()[-1])
        return chat_reply("fine" if number < good else "poor")

    with LoopbackServer(respond=respond) as server:
        before = product.run(suite, server, "--plan")
        run = product.run(suite, server).results["run"]["id"]
        asked = len(server.requests)
        after = product.run(suite, server, "--plan", "--no-cache")
        assert len(server.requests) == asked
    assert "power" not in before.results
    assert "show a drop" not in before.stdout
    if spread is None:
        assert "power" not in after.results
        return
    needed = smallest(spread)
    rows = after.results["power"]
    assert [(row["metric"], row["needed"], row["run"]) for row in rows] == [
        (None, needed, run),
        ("tone", needed, run),
    ]
    shown = " ".join(after.stdout.split())
    dollars = after.results["total"]["cost_most_usd"] * needed / tests
    assert f"power {estimated(needed)} tests detect a drop of 0.05 in the pass rate (80 % power)" in shown
    assert f"-{format_cost(float(f'{dollars:.2g}'))};" in shown.replace(" (spread", ";")
    assert f"the {tests} here detect {rows[0]['shown']:.2f} or more (spread as in run {run})" in shown

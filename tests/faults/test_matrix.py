"""Every kind of fault, at every rate: runs end, every test ends as it must, and no fault is taken for a failure."""

from collections import Counter
from typing import Any

import pytest
from support.faults import ERROR_TYPES, FAULTS, FaultyServer, expected_status, generation_config, judge_config
from support.loopback import LoopbackServer
from support.product import Product

TESTS = 8


def run(product: Product, rate: float, make_config: Any) -> Any:
    faulty = FaultyServer(rate)
    with LoopbackServer(respond=faulty.respond) as server:
        return product.run(make_config(TESTS, server.base_url), server, "-j", "100")


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_a_model_that_fails_is_never_taken_for_a_bad_one(product: Product, rate: float) -> None:
    finished = run(product, rate, generation_config)
    expected = {
        (kind, number): expected_status(kind, number, rate, is_judge=False)
        for kind in FAULTS
        for number in range(TESTS)
    }
    found = {
        (case["provider"]["id"].removeprefix("openai:"), case["test_index"]): case["status"]
        for case in finished.cases
    }
    assert found == expected
    check_counts(finished)
    for case in finished.cases:
        if case["status"] == "error":
            kind = case["provider"]["id"].removeprefix("openai:")
            assert case["error"]["type"] == ERROR_TYPES[kind]
            assert case["error"]["message"].endswith("(sent 3 times)")


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_judge_that_fails_gives_no_bad_marks(product: Product, rate: float) -> None:
    finished = run(product, rate, judge_config)
    found = {
        (verdict["metric"], case["test_index"]): verdict["status"]
        for case in finished.cases
        for verdict in case["assertions"]
    }
    assert found == {
        (kind, number): expected_status(kind, number, rate, is_judge=True)
        for kind in FAULTS
        for number in range(TESTS)
    }
    check_counts(finished)


def check_counts(finished: Any) -> None:
    summary = finished.results["summary"]
    counts = Counter(case["status"] for case in finished.cases)
    assert summary["total"] == len(finished.cases)
    assert (summary["passed"], summary["failed"], summary["errored"]) == (
        counts["passed"],
        counts["failed"],
        counts["error"],
    )
    assert finished.results["run"]["status"] == "completed"

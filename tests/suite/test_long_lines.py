"""What a program writes in one line costs no more than the same over many lines: rows of work over rising lengths."""

import gc
import json
import time
from collections.abc import Callable

import pytest

from geval_cli.source.json_source import read_json
from geval_cli.source.problems import did_you_mean, draw_source_line
from geval_cli.source.secrets import mask_text
from geval_cli.source.yaml_source import read_yaml

_GROWTH = 16
_MOST = 80
"""Processor time may grow five times as fast as the text: a quadratic cost would grow sixteen times as fast."""


def one_line_of_tests(count: int) -> str:
    return json.dumps({"tests": [{"vars": {"i": f"number {index}"}} for index in range(count)]})


def locate_all(read: Callable[..., object], count: int) -> Callable[[], object]:
    positions = read(one_line_of_tests(count), "a.json").place.positions  # type: ignore[attr-defined]
    return lambda: [positions.values[("tests", index, "vars", "i")] for index in range(count)]


def draw_all(count: int) -> Callable[[], object]:
    line = one_line_of_tests(count)
    step = max(1, len(line) // 40)
    return lambda: [draw_source_line(line, column=at, length=len(line)) for at in range(1, len(line), step)]


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda count: locate_all(read_json, count), id="positions in JSON"),
        pytest.param(lambda count: locate_all(read_yaml, count), id="positions in YAML"),
        pytest.param(draw_all, id="drawing"),
        pytest.param(
            lambda count: lambda: mask_text("api_key=abcdefgh12345678; " * count * 10), id="masking"
        ),
        pytest.param(
            lambda count: (
                lambda: did_you_mean("x" * count, ["y" * (count // 2 + index) for index in range(20)])
            ),
            id="did you mean",
        ),
    ],
)
def test_the_cost_grows_with_the_length_of_a_line_and_not_with_its_square(
    work: Callable[[int], Callable[[], object]],
) -> None:
    # A quadratic cost is there each time; a collection of garbage, or a busy machine, hits one of three.
    assert any(_grows_slowly(work) for _ in range(3))


def _grows_slowly(work: Callable[[int], Callable[[], object]]) -> bool:
    small, large = (_processor_time(work(count)) for count in (120, 120 * _GROWTH))
    return large < max(small, 0.002) * _MOST


def _processor_time(work: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        work()
        return time.process_time() - started
    finally:
        gc.enable()


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_a_place_ends_with_its_line(line_break: str) -> None:
    text = line_break.join(["{", '"a": [', "1,", '2 ], "b": 3  ', "}"])
    positions = read_json(text, "a.json").place.positions
    assert positions.values["a",].length == 1  # the bracket alone
    assert (positions.values["b",].line, positions.values["b",].column) == (4, 11)
    assert positions.values[()].length == 1


def test_a_line_of_megabytes_is_shown_around_the_caret() -> None:
    line = "[" + "1, " * 5_000_000 + "here" + ", 2" * 1_000_000 + "]"
    shown, caret = draw_source_line(line, column=15_000_002, length=4)
    assert (shown[0], shown[-1]) == ("…", "…")
    assert len(shown) <= 102
    assert shown[caret.index("^") :].startswith("here")


def test_secrets_are_masked_in_long_lines_wherever_they_begin() -> None:
    line = "x " * 5_000 + '{"apiKey": "' + "s3cr3t" * 500 + '", "name": oops}' + " y" * 5_000
    for word in ("apiKey", "name", "oops"):
        column = line.index(word) + 1
        assert "s3cr3t" not in draw_source_line(line, column=column, length=4)[0]
    within = line.index("s3cr3t") + 1_200
    assert "s3cr3t" not in draw_source_line(line, column=within, length=4)[0]

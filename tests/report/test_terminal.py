import io
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from support.sample_run import (
    RUN,
    TerminalStream,
    console_of,
    make_case,
    make_judged,
    make_report,
    results_of,
)

from geval_cli.records import Column, ErrorInfo, FlakyTest, RunSummary, Status
from geval_cli.report.terminal import print_report

Check = Callable[[str, str], None]

PROVIDERS = ("openai:gpt-4o", "anthropic:claude-sonnet-4-5", "local:smollm2", "openai:gpt-4.1-mini")
MANY_COLUMNS = tuple(
    Column(index, ("short", "friendly")[index % 2], PROVIDERS[index // 2]) for index in range(8)
)


def printed(width: int, *, stream: io.StringIO | None = None, **options: object) -> str:
    verbose = bool(options.pop("verbose", False))
    environ = options.pop("environ", {})
    stream = stream or io.StringIO()
    print_report(make_report(**options), console_of(stream, width, **environ), verbose=verbose)  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_piped_report(width: int, check_expected: Check) -> None:
    check_expected(f"piped.{width}.txt", printed(width))


@pytest.mark.parametrize("width", [80, 200])
def test_report_on_a_terminal_without_colour(width: int, check_expected: Check) -> None:
    text = printed(width, stream=TerminalStream(), environ={"NO_COLOR": "1"})
    check_expected(f"terminal.{width}.txt", text)


@pytest.mark.parametrize(
    ("count", "said"),
    [(3, "2 tests passed in some repeats only: #1, #5"), (8, "7 tests passed in some repeats only: #1, #5")],
)
def test_a_test_that_is_flaky_in_several_columns_is_one_test(count: int, said: str) -> None:
    flaky = tuple(
        FlakyTest(test, column, None, 1, 2, None, None) for test, column in [(0, 0), (0, 1), (4, 0)]
    )
    summary = RunSummary(10, passed=5, failed=5, flaky=flaky, flaky_count=count)
    assert said in printed(100, summary=summary)


def test_report_on_a_terminal_in_colour(check_expected: Check) -> None:
    check_expected("terminal.80.ansi", printed(80, stream=TerminalStream()))


def test_verbose_report_shows_what_passed_too(check_expected: Check) -> None:
    check_expected("verbose.80.txt", printed(80, verbose=True))


@pytest.mark.parametrize("width", [80, 200])
def test_many_columns(width: int, check_expected: Check) -> None:
    check_expected(f"many-columns.{width}.txt", printed(width, columns=MANY_COLUMNS))


def test_many_rows(check_expected: Check) -> None:
    check_expected("many-rows.80.txt", printed(80, tests=5_000))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 133, 200])
@pytest.mark.parametrize("columns", [MANY_COLUMNS[:1], MANY_COLUMNS[:3], MANY_COLUMNS])
def test_no_line_is_wider_than_the_terminal(width: int, columns: tuple[Column, ...]) -> None:
    text = printed(width, columns=columns, verbose=True, run=replace(RUN, id="r1"))

    assert max(cell_len(line) for line in text.split("\n")) <= width


def test_no_line_ends_in_blanks() -> None:
    text = printed(120, columns=MANY_COLUMNS[:3])

    assert [line for line in text.split("\n") if line != line.rstrip()] == []


def test_no_color_means_no_escape_at_all() -> None:
    assert "\x1b" not in printed(80, stream=TerminalStream(), environ={"NO_COLOR": "1"})


def test_reports_can_be_printed_where_only_ascii_is_known() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_report(make_report(), console_of(stream, 80))  # type: ignore[arg-type]
    stream.flush()

    text = raw.getvalue().decode("ascii")

    assert "x FAIL" in text
    assert "+ PASS" in text


def assert_harmless(text: str) -> None:
    """No character that a terminal acts on or hides; colour codes are not part of `text`."""
    allowed = {"\n"}
    bad = {
        character
        for character in text
        if character not in allowed
        and unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    }
    assert bad == set()


hostile = st.text(
    st.one_of(
        st.characters(),
        st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]),
        st.sampled_from("\x1b\x07\x9b\u202e\u200b\u2066\ufeff[]/\\\n\r\t|\u3000漢🙂"),
    ),
    max_size=60,
)


@settings(max_examples=50)
@given(text=hostile, other=hostile, width=st.sampled_from([80, 200]), verbose=st.booleans())
def test_no_text_from_outside_reaches_the_terminal_as_a_command(
    text: str, other: str, width: int, verbose: bool
) -> None:
    detail = {
        "fallback": other,
        "judge": text,
        "evaluation_steps": [text, other],
        "distribution": {text: 1.0},
    }
    error = ErrorInfo(text, other, text, other)
    judged = make_judged(
        Status.FAILED, 0.1, reason=text, location=other, metric=text, detail=detail, error=error
    )
    column = Column(0, text, other)
    case = make_case(0, column, Status.FAILED, description=text or None, output=other, vars={text: other})
    cases = [replace(case, assertions=(judged,)), replace(case, test_index=1, description=None, error=error)]
    report = make_report((column, Column(1, other, text)), results=lambda: iter(cases))
    stream = io.StringIO()

    print_report(report, console_of(stream, width), verbose=verbose)

    assert_harmless(stream.getvalue())


def test_markup_in_an_output_stays_text() -> None:
    case = make_case(0, status=Status.FAILED, output="[bold red]hello[/] :smile: [link=file:///etc]x[/link]")
    text = printed(200, results=lambda: iter([case]))

    assert "[bold red]hello[/] :smile: [link=file:///etc]x[/link]" in text


def test_results_are_read_once_and_as_a_stream() -> None:
    readings = 0

    def endless_memory() -> object:
        nonlocal readings
        readings += 1
        return (replace(case, output="x" * 100_000) for case in results_of(tests=300))

    text = printed(80, results=endless_memory)

    assert len(text) < 20_000
    assert readings == 1

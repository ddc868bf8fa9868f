import io

import pytest
from rich.text import Text
from support.sample_run import TerminalStream

from geval_cli.report.console import PIPED_WIDTH, is_unicode, make_console


def printed_red(stream: io.StringIO, environ: dict[str, str]) -> str:
    make_console(stream, environ=environ).print(Text("x", style="red"))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "CI": "true"}, False),
        ({"TERM": "xterm", "CI": "true", "FORCE_COLOR": "1"}, True),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_on_a_terminal(environ: dict[str, str], is_coloured: bool) -> None:
    assert ("\x1b" in printed_red(TerminalStream(), environ)) is is_coloured


@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "0"}, False), ({"TERM": "xterm"}, False)],
)
def test_colour_in_a_pipe(environ: dict[str, str], is_coloured: bool) -> None:
    assert ("\x1b" in printed_red(io.StringIO(), environ)) is is_coloured


@pytest.mark.parametrize(
    ("environ", "width"),
    [
        ({}, PIPED_WIDTH),
        ({"COLUMNS": "72"}, 72),
        ({"COLUMNS": "wide"}, PIPED_WIDTH),
        ({"COLUMNS": "0"}, PIPED_WIDTH),
        ({"TERM": "dumb", "COLUMNS": "132"}, 132),
    ],
)
def test_width_of_a_pipe(environ: dict[str, str], width: int) -> None:
    assert make_console(io.StringIO(), environ=environ).width == width


def test_a_terminal_in_ci_or_without_abilities_is_not_drawn_on() -> None:
    consoles = [
        make_console(TerminalStream(), environ=environ)
        for environ in ({"TERM": "xterm"}, {"TERM": "xterm", "CI": "1"}, {"TERM": "dumb"})
    ]

    assert [console.is_interactive for console in consoles] == [True, False, False]


def test_forced_colour_does_not_make_a_pipe_interactive() -> None:
    assert not make_console(io.StringIO(), environ={"FORCE_COLOR": "1"}).is_interactive


def test_characters_that_the_stream_lacks_are_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    console = make_console(stream, environ={})
    console.print(Text("é 漢 long na…"))
    stream.flush()

    assert not is_unicode(console)
    assert raw.getvalue() == b"\xe9 \\u6f22 long na~\n"

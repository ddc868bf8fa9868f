"""How the four statuses look: a mark, a word for those who see no colour, and a style."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_comparison, format_score
from geval_cli.records import AssertionResult, CaseResult, Column, Status
from geval_cli.report.console import is_unicode
from geval_cli.report.sanitize import one_line

STYLES = {
    Status.PASSED: "green",
    Status.FAILED: "bold red",
    Status.ERROR: "bold yellow",
    Status.NOT_EVALUATED: "dim",
}
WORDS = {Status.PASSED: "PASS", Status.FAILED: "FAIL", Status.ERROR: "ERROR", Status.NOT_EVALUATED: "n/e"}
VERDICT_WIDTH = len("* PASS 0.9996 ~")
"""The width of a verdict in a table: mark, word, score and the mark of a fallback."""

_LABEL_MAX = 60


class Signs(Struct, frozen=True):
    """The characters beyond ASCII that reports use, or their stand-ins where the stream has none."""

    marks: Mapping[Status, str]
    dot: str
    times: str


_UNICODE_SIGNS = Signs(
    MappingProxyType(
        {Status.PASSED: "✓", Status.FAILED: "✗", Status.ERROR: "!", Status.NOT_EVALUATED: "–"}  # noqa: RUF001
    ),
    dot="·",
    times="×",  # noqa: RUF001
)
_ASCII_SIGNS = Signs(
    MappingProxyType({Status.PASSED: "+", Status.FAILED: "x", Status.ERROR: "!", Status.NOT_EVALUATED: "-"}),
    dot="|",
    times="x",
)


def signs_of(console: Console) -> Signs:
    """Return the signs that the console's stream can show."""
    return _UNICODE_SIGNS if is_unicode(console) else _ASCII_SIGNS


def verdict(status: Status, score: str | None, signs: Signs, *, has_fallback: bool = False) -> Text:
    """`✓ PASS 0.87`, with a trailing `~` when an estimator was not the one that was wanted."""
    words = f"{signs.marks[status]} {WORDS[status]}"
    if score is not None and status is not Status.ERROR:
        words += f" {score}"
    text = Text(words, style=STYLES[status], no_wrap=True)
    return text.append(" ~", style="yellow") if has_fallback else text


def case_verdict(result: CaseResult, signs: Signs) -> Text:
    """Return the verdict on one case with its score, precise enough not to look equal to a threshold that it missed."""
    return verdict(result.status, _case_score(result), signs, has_fallback=has_fallback(result.assertions))


def has_fallback(assertions: Iterable[AssertionResult]) -> bool:
    """Return whether any of the assertions, or of those within them, used another estimator than it was meant to."""
    return any(item.detail.get("fallback") or has_fallback(item.assertions) for item in assertions)


def column_title(column: Column, columns: tuple[Column, ...], signs: Signs) -> str:
    """`prompt × provider`, or only the one of the two in which the columns differ."""  # noqa: RUF002
    prompt, provider = (one_line(label, _LABEL_MAX) for label in (column.prompt_label, column.provider_label))
    if not prompt or (len({item.prompt_label for item in columns}) == 1 and provider):
        return provider
    if not provider or len({item.provider_label for item in columns}) == 1:
        return prompt
    return f"{prompt} {signs.times} {provider}"


def _case_score(result: CaseResult) -> str | None:
    if result.score is None:
        return None
    if result.status is Status.FAILED:
        for item in result.assertions:
            missed = item.status is Status.FAILED and item.score == result.score
            if missed and item.threshold is not None and item.score is not None:
                return format_comparison(item.score, item.threshold).split()[0]
    return format_score(result.score)

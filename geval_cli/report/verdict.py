"""How the four statuses look: a mark, a word for those who see no colour, and a style."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_comparison, format_score
from geval_cli.records import AssertionResult, CaseResult, Column, JsonValue, Status
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


def verdict(
    status: Status, score: str | None, signs: Signs, *, has_fallback: bool = False, is_split: bool = False
) -> Text:
    """`✓ PASS 0.87`, with a trailing `~` for another estimator than was wanted, and `/` for judges that are split."""
    words = f"{signs.marks[status]} {WORDS[status]}"
    if score is not None and status is not Status.ERROR:
        words += f" {score}"
    text = Text(words, style=STYLES[status], no_wrap=True)
    marks = f"{'~' if has_fallback else ''}{'/' if is_split else ''}"
    return text.append(f" {marks}", style="yellow") if marks else text


def case_verdict(result: CaseResult, signs: Signs) -> Text:
    """Return the verdict on one case with its score, precise enough not to look equal to a threshold that it missed."""
    assertions = result.assertions
    marks = {"has_fallback": has_fallback(assertions), "is_split": is_split(assertions)}
    return verdict(result.status, _case_score(result), signs, **marks)


def is_split(assertions: Iterable[AssertionResult]) -> bool:
    """Return whether the judges of any of the assertions, or of those within them, are far apart."""
    return any(item.detail.get("split") is True or is_split(item.assertions) for item in assertions)


def has_fallback(assertions: Iterable[AssertionResult]) -> bool:
    """Return whether any of the assertions, or of those within them, used another estimator than it was meant to."""
    return any(_fell_back(item.detail) or has_fallback(item.assertions) for item in assertions)


def _fell_back(detail: Mapping[str, JsonValue]) -> bool:
    """Return whether the verdict, or that of one judge of several, came from another estimator than was meant."""
    judges = detail.get("judges")
    of_judges = judges if isinstance(judges, list | tuple) else ()
    return any(part.get("fallback") for part in (detail, *of_judges) if isinstance(part, Mapping))


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

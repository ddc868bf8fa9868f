"""tool-call-f1: how well the tools that the output calls are those that are expected, whatever their order."""

import json
from collections.abc import Iterator, Mapping

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import Assertion, CheckContext, Subject, TestCase, Tools
from geval_cli.assertions.outcome import Outcome, shortened
from geval_cli.assertions.structured.json_text import parse_strict_json
from geval_cli.assertions.values import check_texts, rendered_texts
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.numbers import format_score, format_score_beside
from geval_cli.records import JsonValue
from geval_cli.specs.base import Score
from geval_cli.templating import Templates

DEFAULT_THRESHOLD = 1.0

_FENCES = ("```", "~~~")
_FLAT_CALLS = frozenset({"tool_use", "function_call"})
_MOST_FAILURES = 1000  # each takes time in proportion to the text


class ToolCallF1Assertion(Assertion):
    """tool-call-f1: which tools the output calls, against those that it should."""

    value_form = "texts"

    value: str | tuple[str, ...] = Field(
        description="The names of the tools, templates: a list, or one text with commas between them."
    )
    threshold: Score | None = Field(None, description="The lowest F1 that passes; 1 when left out.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the expected names: none is given, or a template is broken."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        if not problems and not _expected(self, context.test, context.templates):
            message = f"tool-call-f1 expects no tool ({context.where})"
            problems.append(Problem(message, self.place.value("value"), "list at least one name in `value`"))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """The harmonic mean of the share of calls that are expected and the share of expected tools that are called.

        Raises:
            UnjudgeableError: the output has too much broken JSON to be searched for calls.
        """
        expected = _expected(self, subject.test, tools.templates)
        called = set(_called(subject.output))
        hits = len(expected & called)
        precision, recall = hits / len(called) if called else 0.0, hits / len(expected)
        score = 2 * precision * recall / (precision + recall) if hits else 0.0
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        shown = shortened(", ".join(sorted(called))) or "nothing"
        reason = (
            f"F1 is {format_score_beside(score, threshold)} (precision {format_score(precision)}, "
            f"recall {format_score(recall)}); the threshold is {threshold:g}. "
            f"Expected: {shortened(', '.join(sorted(expected)))}. Called: {shown}"
        )
        is_default = self.threshold is None
        outcome = Outcome.graded(
            score, reason, threshold, is_default=is_default, precision=precision, recall=recall
        )
        if self.is_negated and not tools.rules.negates_scores:
            return replace(outcome, score=1 - score)  # `not-` will turn it back
        return outcome


def _expected(spec: ToolCallF1Assertion, test: TestCase, templates: Templates) -> set[str]:
    return {name.strip() for name in rendered_texts(spec.value, test, templates, split=True) if name.strip()}


def _called(output: JsonValue) -> Iterator[str]:
    """The names of the called tools in data, in a text that is JSON, or in the JSON between the lines of a text."""
    if not isinstance(output, str):
        yield from _names(output)
        return
    try:
        found = [parse_strict_json(output)]
    except ValueError:
        found = list(_blocks(output))
    for value in found:
        yield from _names(value)


def _names(value: JsonValue) -> Iterator[str]:
    """The tools that a value calls as OpenAI, Anthropic and Google write calls, or as a list of names of calls."""
    if isinstance(value, list):
        for item in value:
            yield from _names_of_item(item)
    elif isinstance(value, dict):
        yield from _names_of_message(value)


def _names_of_message(value: Mapping[str, JsonValue]) -> Iterator[str]:
    live = value.get("toolCall")
    for calls in (value.get("tool_calls"), live.get("functionCalls") if isinstance(live, dict) else None):
        for item in calls if isinstance(calls, list) else ():
            yield from _names_of_item(item)
    if value.get("type") in _FLAT_CALLS or "arguments" in value:
        yield from _name_in(value)
    yield from _name_in(value.get("functionCall"))
    yield from _name_in(value.get("function_call"))


def _names_of_item(item: JsonValue) -> Iterator[str]:
    if not isinstance(item, dict):
        return
    inner = next((item[key] for key in ("functionCall", "function") if isinstance(item.get(key), dict)), None)
    yield from _name_in(item if inner is None or item.get("type") in _FLAT_CALLS else inner)


def _name_in(value: JsonValue) -> Iterator[str]:
    name = value.get("name") if isinstance(value, dict) else None
    if isinstance(name, str):
        yield name


def _blocks(text: str) -> Iterator[JsonValue]:
    """Yield the JSON values in a text that begin and end with a line, outside of code fences.

    Raises:
        UnjudgeableError: too much of it is broken.
    """
    decoder, place, failures, fence = json.JSONDecoder(), 0, 0, ""
    while place < len(text):
        end = _end_of_line(text, place)
        line = text[place:end].strip()
        mark = line[:3]
        if fence or mark in _FENCES:
            fence = "" if mark == fence else fence or mark
        elif line.startswith(("{", "[")):
            try:
                # Each attempt may read to the end of the text: a limit on broken ones keeps the time linear.
                value, stop = decoder.raw_decode(text, text.index(line[0], place))
            except (ValueError, RecursionError):
                failures += 1
                if failures > _MOST_FAILURES:
                    raise UnjudgeableError("the output has too much broken JSON to find calls in") from None
            else:
                end = _end_of_line(text, stop)
                if not text[stop:end].strip():
                    yield value
        place = end + 1


def _end_of_line(text: str, place: int) -> int:
    found = text.find("\n", place)
    return len(text) if found < 0 else found

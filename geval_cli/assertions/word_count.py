"""word-count: how many words the output has."""

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import WordCountAssertionSpec, WordRangeSpec
from geval_cli.errors import Problem


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of a number that is written as text: a broken template, or no whole number."""
    assert isinstance(spec, WordCountAssertionSpec)
    problems: list[Problem] = []
    if isinstance(spec.value, str):
        place = spec.place.value("value")
        text = context.render(spec.value, place, problems)
        if text is not None and not _is_count(text):
            hint = "write a whole number, or a mapping with `min` and `max`"
            problems.append(
                Problem(f'the `value` of word-count must be a whole number, found "{text}"', place, hint)
            )
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Count what stands between white space."""
    assert isinstance(spec, WordCountAssertionSpec)
    count = len(subject.text.split())
    low, high = _range(spec, subject, tools)
    passed = (low is None or count >= low) and (high is None or count <= high)
    words = "1 word" if count == 1 else f"{count} words"
    return Outcome.of(passed, f"the output has {words}; wanted: {_wanted(low, high)}", words=count)


def _range(spec: WordCountAssertionSpec, subject: Subject, tools: Tools) -> tuple[int | None, int | None]:
    if isinstance(spec.value, WordRangeSpec):
        return spec.value.min, spec.value.max
    exactly = int(tools.templates.render(str(spec.value), subject.test.variables))
    return exactly, exactly


def _wanted(low: int | None, high: int | None) -> str:
    if low == high:
        return f"exactly {low}"
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"from {low} to {high}"


def _is_count(text: str) -> bool:
    return text.strip().isdecimal()

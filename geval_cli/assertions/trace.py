"""The steps of an agent before its answer: the test's trace, or the tools that the answer calls."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest, Subject
from geval_cli.assertions.json_text import called_tools
from geval_cli.errors import UnjudgeableError
from geval_cli.judge.source import TOOL
from geval_cli.records import JsonValue, TraceStep, Turn

_TOOL_KEYS = ("tools", "functions")


def trace_of(subject: Subject, *, timed: bool = True) -> tuple[TraceStep, ...] | None:
    """Return the steps that led to an output; None if nothing is known about them.

    A test's trace belongs to the output that comes with the test. For a model's answer, the steps are the recorded
    calls of the test's tools or, without those, the calls in earlier turns and in the answer itself; a model that had
    tools and called none has an empty trace. Unless `timed`, the times that geval measured are left out: they differ in
    each run, so a judge that was shown them would rate the same steps anew.
    """
    if subject.called is not None:
        return subject.called if timed else tuple(replace(step, ms=None) for step in subject.called)
    if knows_all_steps(subject):
        return subject.test.trace
    calls = subject.tool_calls
    steps = (
        *_steps_in_turns(subject.conversation[:-1]),
        *called_steps([dict(call) for call in calls] if calls else subject.output),
    )
    had_tools = subject.provider is not None and any(map(subject.provider.config.get, _TOOL_KEYS))
    return steps if steps or had_tools else None


def knows_all_steps(subject: Subject) -> bool:
    """Return whether all steps are known: the test has tools, or both the trace and the output come with the test."""
    is_given = subject.test.trace is not None and subject.response is None and subject.provider is None
    return subject.called is not None or is_given


def known_trace(subject: Subject, asked_by: str) -> tuple[TraceStep, ...]:
    """Return the trace of an output.

    Raises:
        UnjudgeableError: nothing is known about it, and `asked_by` needs it.
    """
    steps = trace_of(subject) if subject.rules.traces_from_answers or knows_all_steps(subject) else None
    if steps is None:
        takes_answers = subject.rules.traces_from_answers
        raise UnjudgeableError(
            f"{asked_by} needs a trace, but the test has none"
            + (": the output calls no tool" if takes_answers else ""),
            hint="give the test a `trace`"
            + (
                ", or the provider `tools` in its config"
                if takes_answers
                else " and the output that it produced"
            ),
        )
    return steps


def trace_of_given(test: MergedTest) -> tuple[TraceStep, ...] | None:
    """Return the trace of the output that comes with a test, as far as it is known before a run."""
    return trace_of(Subject(test, test.output, ""))


def called_steps(output: JsonValue) -> Iterator[TraceStep]:
    """Yield a step for each tool call in an output, in any of the forms in which models write calls."""
    if isinstance(output, str) and '"name"' not in output:
        return
    try:
        found = list(called_tools(output))
    except UnjudgeableError:  # too much broken JSON to be tool calls
        return
    for name, arguments in found:
        yield TraceStep(TOOL, name, arguments)


def _steps_in_turns(turns: Sequence[Turn]) -> Iterator[TraceStep]:
    """Yield the tool calls of a conversation, each with its result if a later turn has it."""
    given = {turn.tool_call_id: turn.content for turn in turns if turn.tool_call_id is not None}
    for turn in turns:
        for call in turn.tool_calls:
            found = next(called_steps([dict(call)]), None)
            step = TraceStep(TOOL, str(call.get("name") or ""), call.get("args")) if found is None else found
            yield TraceStep(step.type, step.name, step.args, given.get(str(call.get("id"))))
        if not turn.tool_calls and turn.role == "assistant":
            yield from called_steps(turn.content)


def fits(name: str, pattern: str) -> bool:
    """Return whether a whole name matches a pattern with `*` and `?`, ignoring case.

    It takes linear space and no regular expressions. Backtracking goes only to the last star, so the time is at most
    the product of the lengths.
    """
    name, pattern = name.casefold(), pattern.casefold()
    at, place, star, kept = 0, 0, -1, 0
    while at < len(name):
        if place < len(pattern) and pattern[place] == "*":
            star, kept = place, at
            place += 1
        elif place < len(pattern) and pattern[place] in ("?", name[at]):
            at, place = at + 1, place + 1
        elif star >= 0:
            kept += 1
            at, place = kept, star + 1
        else:
            return False
    return not pattern[place:].strip("*")

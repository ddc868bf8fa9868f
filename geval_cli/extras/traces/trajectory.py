"""The assertions `trajectory:...` and `trace-...`: which steps an agent took, in which order, and how.

They also check arguments of tool calls, durations and failures.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import AliasChoices, Field

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    MergedTest,
    Outcome,
    Subject,
    Tools,
    ValueRules,
    VariableText,
    filled,
    render_deep,
    rendered_texts,
    shortened,
)
from geval_cli.assertions.match import is_same_json
from geval_cli.assertions.trace import fits, known_trace
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.judge.source import TOOL
from geval_cli.records import JsonValue, TraceStep
from geval_cli.specs.base import Spec, StepType
from geval_cli.templating import Templates

Count = Annotated[int, Field(ge=0)]
_Kind = StepType | Literal["span", "command", "search", "reasoning", "message"]
_SPAN = "span"
_COMMANDS = frozenset({"exec_command", "local_shell", "shell"})
_MESSAGES = frozenset({"agent response", "send input"})
_MOST_SHOWN = 3
_BOUNDS_HINT = "add one of them"


class Fill(Struct, frozen=True):
    """Fills the variables of a test into the values that an assertion expects."""

    test: MergedTest
    templates: Templates

    def text(self, written: str) -> str:
        """Return rendered text."""
        return self.templates.render(written, self.test.variables)

    def texts(self, written: JsonValue, *, split: bool = False) -> list[str]:
        """Return rendered texts; a variable may hold a list of them. With `split`, a single text is split at commas."""
        return rendered_texts(written, self.test, self.templates, split=split)

    def data(self, written: JsonValue) -> JsonValue:
        """Return data with its texts rendered; one that is just a variable also matches the variable's own value."""
        return render_deep(written, lambda text: filled(text, self.test, self.templates))


class StepMatcher(Spec):
    """The name of the steps to match."""

    name: str | None = Field(None, description="The name of the step; `*` and `?` are wildcards.")
    pattern: str | None = Field(None, description="Another spelling of `name`, which it overrides.")

    @property
    def wanted(self) -> str:
        """Return the pattern for the name; empty for any name."""
        return self.pattern or self.name or ""


class _Bounds(ValueRules):
    min: Count | None = Field(None, description="The smallest passing number.")
    max: Count | None = Field(None, description="The largest passing number.")

    def problems(self) -> Sequence[Problem]:
        """Return a problem if nothing can meet the bounds."""
        if self.min is not None and self.max is not None and self.min > self.max:
            message = f"`min` ({self.min}) must not be above `max` ({self.max})"
            return [Problem(message, self.place.value("min"), "exchange them")]
        return []

    def holds(self, count: int) -> bool:
        """Return whether a count is within the bounds."""
        return (self.min is None or count >= self.min) and (self.max is None or count <= self.max)

    @property
    def shown(self) -> str:
        """Return the bounds in words."""
        if self.min is not None and self.max is not None:
            return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"
        return f"at least {self.min}" if self.min is not None else f"at most {self.max}"


def _unnamed(rules: Spec, wanted: str, what: str) -> list[Problem]:
    message = f"{what} has neither `name` nor `pattern`"
    return [] if wanted.strip() else [Problem(message, rules.place.value(), "name the tool")]


def _unbounded(rules: _Bounds, what: str) -> list[Problem]:
    is_open = rules.min is None and rules.max is None
    return (
        [Problem(f"{what} needs `min`, `max` or both", rules.place.value(), _BOUNDS_HINT)] if is_open else []
    )


class TraceAssertion(Assertion):
    """An assertion about the steps of a trace; subclasses decide which steps pass."""

    def texts(self) -> Iterator[str]:
        """Yield the templates in `value`."""
        yield from ()

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the templates in `value`."""
        problems: list[Problem] = []
        place = self.place.value("value")
        for text in self.texts():
            name = context.render(text, place, problems)
            if text and name is not None and not name.strip():
                message = f"{self.base_type} has an empty name ({context.where}), which no step has"
                problems.append(Problem(message, place, "write a name; `*` and `?` are wildcards"))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Judge the steps that led to the output.

        Raises:
            UnjudgeableError: the steps are unknown.
        """
        steps = known_trace(subject, self.base_type)
        return self.verdict(steps, Fill(subject.test, tools.templates))

    def verdict(self, steps: Sequence[TraceStep], fill: Fill) -> Outcome:
        """Return the verdict on the steps; `fill` fills in the test's variables."""
        raise NotImplementedError


class ToolCount(_Bounds, StepMatcher):
    """A tool, and how often it may be called."""

    def problems(self) -> Sequence[Problem]:
        """Return the problems of the name and the bounds."""
        never = self.max == 0 and self.min is None
        message = "`max: 0` without `min` can never pass: the tool has to be called at least once"
        hint = "add `min: 0`, or `not-trajectory:tool-used`"
        open_end = [Problem(message, self.place.value("max"), hint)] if never else []
        return [*_unnamed(self, self.wanted, "a tool count"), *open_end, *super().problems()]


class ToolUsedAssertion(TraceAssertion):
    """trajectory:tool-used: the agent called these tools, or one tool a given number of times."""

    value_form = (ToolCount, "a number of calls")

    value: str | tuple[str, ...] | ToolCount = Field(
        description=(
            "One or more tool names that must all be called (`*` and `?` are wildcards), or {name, min, max}."
        )
    )

    def texts(self) -> Iterator[str]:
        """Yield the names."""
        yield from [self.value.wanted] if isinstance(self.value, ToolCount) else _listed(self.value)

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the names: there are none, or one is empty."""
        return _with_empty_names(self, context)

    def verdict(self, steps: Sequence[TraceStep], fill: Fill) -> Outcome:
        """Pass if the tool was called as often as required, or all tools were called (with `not-`: if none was)."""
        called = _tools_in(steps)
        if isinstance(self.value, ToolCount):
            wanted = fill.text(self.value.wanted)
            count = sum(fits(step.name, wanted) for step in called)
            bounds = self.value if self.value.min is not None else self.value.model_copy(update={"min": 1})
            times_called = {0: "never called", 1: "called once"}.get(count, f"called {count} times")
            reason = f"{wanted} was {times_called}; expected: {bounds.shown}. {_called(called)}"
            return Outcome.of(bounds.holds(count), reason, count=count)
        wanted_names = fill.texts(self.value, split=True)
        used = [name for name in wanted_names if any(fits(step.name, name) for step in called)]
        missing = [name for name in wanted_names if name not in used]
        # `not-` inverts this, so that a single forbidden tool is enough to fail.
        passed = bool(used) if self.is_negated else not missing
        told = (
            f"found {', '.join(used)}"
            if not missing or (self.is_negated and used)
            else f"did not find {', '.join(missing)}"
        )
        return Outcome.of(passed, f"{shortened(told)}. {_called(called)}")


class ToolSequence(ValueRules):
    """Tools in order."""

    mode: Literal["in_order", "exact"] = Field(
        "in_order", description="in_order allows other calls in between; exact allows only these calls."
    )
    steps: tuple[str | StepMatcher, ...] = Field(description="The tools in order.")

    def problems(self) -> Sequence[Problem]:
        """Return a problem if there are no tools."""
        return (
            []
            if self.steps
            else [Problem("`steps` lists no tools", self.place.value("steps"), "list at least one")]
        )


class ToolSequenceAssertion(TraceAssertion):
    """trajectory:tool-sequence: the agent called the tools in this order."""

    value_form = (ToolSequence, "a sequence of tools")

    value: tuple[str | StepMatcher, ...] | ToolSequence = Field(
        description="The tools in order, with other calls allowed in between; or {steps, mode: exact}."
    )

    @property
    def _sequence(self) -> ToolSequence:
        return self.value if isinstance(self.value, ToolSequence) else ToolSequence(steps=self.value)

    def texts(self) -> Iterator[str]:
        """Yield the names."""
        for step in self._sequence.steps:
            yield step if isinstance(step, str) else step.wanted

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the names: there are none, or one is empty."""
        return _with_empty_names(self, context)

    def verdict(self, steps: Sequence[TraceStep], fill: Fill) -> Outcome:
        """Pass if the tools were called in this order; with `mode: exact`, only if there was no other call."""
        called = _tools_in(steps)
        wanted = fill.texts(list(self.texts()))
        if self._sequence.mode == "exact":
            fit = [fits(step.name, name) for step, name in zip(called, wanted, strict=False)]
            passed = len(called) == len(wanted) and all(fit)
            reason = f"expected exactly {', '.join(wanted)}. {_called(called)}"
            return Outcome.of(passed, reason)
        found = 0
        for step in called:
            if found < len(wanted) and fits(step.name, wanted[found]):
                found += 1
        passed = found == len(wanted)
        told = (
            f"found in this order: {', '.join(wanted)}"
            if passed
            else f"{wanted[found]} was not called in this order"
        )
        return Outcome.of(passed, f"{shortened(told)}. {_called(called)}")


class ToolArguments(ValueRules, StepMatcher):
    """A tool call with its arguments."""

    args: Any = Field(
        validation_alias=AliasChoices("args", "arguments"), description="The expected arguments."
    )
    mode: Literal["partial", "exact"] = Field(
        "partial", description="partial allows further arguments; exact doesn't."
    )
    defaults: dict[str, Any] | None = Field(
        None, description="Arguments that may also be present with exactly these values."
    )
    ignore: str | tuple[str, ...] = Field(
        (), description="Names of arguments to ignore; `*` and `?` are wildcards."
    )

    def problems(self) -> Sequence[Problem]:
        """Return a problem if the name is missing."""
        return _unnamed(self, self.wanted, "an expected call")


class ToolArgumentsAssertion(TraceAssertion):
    """trajectory:tool-args-match: the agent called a tool with these arguments."""

    value_form = (ToolArguments, "a tool call")

    value: ToolArguments = Field(description="The expected call: {name, args, mode, defaults, ignore}.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of templates in the name and the arguments."""
        problems = super().check(context)
        place = self.place.value("value")
        render_deep(self.value.args, lambda text: context.render(text, place, problems) or "")
        return problems

    def texts(self) -> Iterator[str]:
        """Yield the name."""
        yield self.value.wanted

    def verdict(self, steps: Sequence[TraceStep], fill: Fill) -> Outcome:
        """Pass if one of the tool's calls has the expected arguments."""
        rules, called = self.value, _tools_in(steps)
        wanted = fill.text(rules.wanted)
        expected = fill.data(rules.args)
        calls = [step for step in called if fits(step.name, wanted)]
        known = [step.args for step in calls if step.args is not None]
        passed = any(_arguments_fit(args, expected, rules) for args in known)
        if not passed and len(known) < len(calls) and fill.templates.rules.traces_from_answers:
            message = f"{wanted} was called, but its arguments are not known"
            raise UnjudgeableError(message, hint="give the call `args` in the test's `trace`")
        if passed or known:
            how = "exactly" if rules.mode == "exact" else "at least"
            found = f"{wanted} was called with {'; '.join(map(_json, known[:_MOST_SHOWN]))}"
            return Outcome.of(passed, f"{shortened(found, 400)}; expected {how} {shortened(_json(expected))}")
        if calls:
            return Outcome.of(False, f"{wanted} was called, but its arguments are unknown")
        return Outcome.of(False, f"{wanted} was not called. {_called(called)}")


class StepCount(_Bounds, StepMatcher):
    """How many steps of a type and name there may be."""

    type: _Kind | tuple[_Kind, ...] | None = Field(
        None,
        description=(
            "One or more of tool, llm and step; span means anything but a tool; command, search,"
            " reasoning and message go by the step's name, as in promptfoo."
        ),
    )

    def problems(self) -> Sequence[Problem]:
        """Return the problems of the bounds."""
        return [*_unbounded(self, "a number of steps"), *super().problems()]


class StepCountAssertion(TraceAssertion):
    """trajectory:step-count: the number of steps in the trace is within limits."""

    value_form = (StepCount, "a number of steps")

    value: StepCount = Field(description="{min, max} and which steps to count: {type, name}.")

    def texts(self) -> Iterator[str]:
        """Yield the name."""
        yield self.value.wanted

    def verdict(self, steps: Sequence[TraceStep], fill: Fill) -> Outcome:
        """Pass if the number of steps with this type and name is within the bounds."""
        rules = self.value
        wanted = fill.text(self.value.wanted)
        kinds = (rules.type,) if isinstance(rules.type, str) else rules.type or ()
        found = [
            step
            for step in steps
            if (not kinds or not _kinds_of(step).isdisjoint(kinds))
            and (not wanted or fits(step.name, wanted))
        ]
        what = f" of the type {' or '.join(kinds)}" if kinds else ""
        named = f" called {wanted}" if wanted else ""
        reason = f"{_number(len(found), 'step')}{what}{named}; expected: {rules.shown}"
        return Outcome.of(rules.holds(len(found)), reason, count=len(found))


class SpanCount(_Bounds):
    """How many steps with a matching name there may be."""

    pattern: str = Field(min_length=1, description="The name of the steps; `*` and `?` are wildcards.")

    def problems(self) -> Sequence[Problem]:
        """Return the problems of the bounds."""
        return [*_unbounded(self, "a number of spans"), *super().problems()]


class SpanCountAssertion(TraceAssertion):
    """trace-span-count: the number of steps with a matching name is within limits."""

    value_form = (SpanCount, "a number of spans")

    value: SpanCount = Field(description="{pattern, min, max}.")

    def texts(self) -> Iterator[str]:
        """Yield the pattern."""
        yield self.value.pattern

    def verdict(self, steps: Sequence[TraceStep], fill: Fill) -> Outcome:
        """Pass if the number of steps with a matching name is within the bounds."""
        pattern = fill.text(self.value.pattern)
        count = len(_named(steps, pattern))
        reason = f"{_number(count, 'step')} with a name that matches {pattern}; expected: {self.value.shown}"
        return Outcome.of(self.value.holds(count), reason, count=count)


class SpanDuration(ValueRules):
    """How long steps may take."""

    max: Annotated[float, Field(ge=0)] = Field(
        description="The longest passing duration of a step in milliseconds."
    )
    pattern: str = Field("*", description="The names of the steps to check; `*` and `?` are wildcards.")
    percentile: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="The percentage of steps that must be fast enough; by default all."
    )


class SpanDurationAssertion(TraceAssertion):
    """trace-span-duration: the steps of a trace took at most this long."""

    value_form = (SpanDuration, "a time limit")

    value: SpanDuration = Field(description="{max, pattern, percentile}; max in milliseconds.")

    def texts(self) -> Iterator[str]:
        """Yield the pattern."""
        yield self.value.pattern

    def verdict(self, steps: Sequence[TraceStep], fill: Fill) -> Outcome:
        """Pass if the slowest step, or the percentile by nearest rank, is within the limit, or if no step matches.

        A step without a duration may have taken any time: it is an error if the verdict depends on it. promptfoo's
        rules leave such steps out.
        """
        rules = self.value
        pattern = fill.text(self.value.pattern)
        named = _named(steps, pattern)
        timed = sorted((step.ms, step.name) for step in named if step.ms is not None)
        count = len(named) if fill.templates.rules.traces_from_answers else len(timed)
        rank = max(1, count if rules.percentile is None else math.ceil(rules.percentile / 100 * count))
        if not count:
            return Outcome.of(True, f"no step that matches {pattern} has a duration")
        # The untimed steps may all be slower than the others, or all faster.
        unknown = count - len(timed)
        is_fast = rank <= len(timed) and timed[rank - 1][0] <= rules.max
        is_slow = rank > unknown and timed[rank - unknown - 1][0] > rules.max
        if not is_fast and not is_slow:
            message = (
                f"it is not known how long {unknown} of {_number(count, 'step')} took that match {pattern}"
            )
            raise UnjudgeableError(message, hint="give them `ms` in the test's `trace`")
        ms, name = timed[rank - 1 if is_fast else rank - unknown - 1]
        what = "the slowest step" if rules.percentile is None else f"the {rules.percentile:g}th percentile"
        reason = (
            f"{what} of {count} that fit {pattern} took {ms:,g} ms ({name}); the limit is {rules.max:,g} ms"
        )
        return Outcome.of(ms <= rules.max, reason, ms=ms)


class ErrorSpans(ValueRules):
    """How many steps may have failed."""

    max_count: Count | None = Field(None, description="Maximum number of failed steps; 0 by default.")
    max_percentage: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="Maximum percentage of failed steps."
    )
    pattern: str = Field("*", description="The names of the steps to check; `*` and `?` are wildcards.")


class ErrorSpansAssertion(TraceAssertion):
    """trace-error-spans: at most this many steps of a trace failed."""

    value_form = (ErrorSpans, "an error limit")

    value: Count | ErrorSpans | None = Field(
        None,
        description=("Maximum number of failed steps (default 0), or {max_count, max_percentage, pattern}."),
    )

    @property
    def _rules(self) -> ErrorSpans:
        return self.value if isinstance(self.value, ErrorSpans) else ErrorSpans(max_count=self.value)

    def texts(self) -> Iterator[str]:
        """Yield the pattern."""
        yield self._rules.pattern

    def verdict(self, steps: Sequence[TraceStep], fill: Fill) -> Outcome:
        """Pass if the number and the percentage of failed steps are within the limits, or if no step matches."""
        rules = self._rules
        pattern = fill.text(self._rules.pattern)
        named = _named(steps, pattern)
        if not named:
            return Outcome.of(True, f"no step matches {pattern}")
        failed = [step for step in named if step.error is not None]
        share = 100 * len(failed) / len(named)
        most = 0 if rules.max_count is None and rules.max_percentage is None else rules.max_count
        passed = (most is None or len(failed) <= most) and (
            rules.max_percentage is None or share <= rules.max_percentage
        )
        limits = [f"{most}"] if most is not None else []
        limits += [] if rules.max_percentage is None else [f"{rules.max_percentage:g} %"]
        first = "; ".join(f"{step.name}: {step.error}" for step in failed[:_MOST_SHOWN])
        told = (
            f"{len(failed)} of {_number(len(named), 'step')} failed; at most {' and '.join(limits)} may fail"
        )
        return Outcome.of(passed, f"{told}. {shortened(first)}" if first else told, count=len(failed))


def _listed(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _with_empty_names(
    spec: ToolUsedAssertion | ToolSequenceAssertion, context: CheckContext
) -> list[Problem]:
    """Return the problems of templates, and one if there are no names or one is empty, also in a variable."""
    names, problems = list(spec.texts()), list[Problem]()
    for name in names:
        context.render(name, spec.place.value("value"), problems)
    if problems or not context.knows_variables:
        rendered = names
    elif isinstance(spec.value, str):
        rendered = rendered_texts(spec.value, context.test, context.templates, split=True)
    else:
        rendered = rendered_texts(names, context.test, context.templates)
    if rendered and all(name.strip() for name in rendered):
        return problems
    message = (
        f"{spec.base_type} needs at least one tool name"
        if not rendered
        else f"{spec.base_type} has an empty tool name"
    )
    hint = "write tool names; `*` and `?` are wildcards"
    return [*problems, Problem(message, spec.place.value("value"), hint)]


def _kinds_of(step: TraceStep) -> set[str]:
    """Return the type of a step, and the types that promptfoo derives from its name."""
    name = step.name.strip().lower()
    if step.type == TOOL:
        return {TOOL, "command"} if name in _COMMANDS else {TOOL}
    if name.startswith("exec "):
        return {step.type, _SPAN, "command"}
    if name.startswith("search "):
        return {step.type, _SPAN, "search"}
    if name == "reasoning" or name.startswith(("reasoning_", "reasoning ")):
        return {step.type, _SPAN, "reasoning"}
    return {step.type, _SPAN, "message"} if name in _MESSAGES else {step.type, _SPAN}


def _tools_in(steps: Sequence[TraceStep]) -> list[TraceStep]:
    return [step for step in steps if step.type == TOOL]


def _named(steps: Sequence[TraceStep], pattern: str) -> list[TraceStep]:
    return [step for step in steps if fits(step.name, pattern)]


def _called(called: Sequence[TraceStep]) -> str:
    return f"Called: {shortened(', '.join(step.name for step in called)) or 'nothing'}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _arguments_fit(args: JsonValue, expected: JsonValue, rules: ToolArguments) -> bool:
    """Return whether a call has the expected arguments, apart from ignored ones and defaults."""
    ignored = _listed(rules.ignore)
    own, wanted = _without(args, ignored), _without(expected, ignored)
    if isinstance(own, Mapping) and rules.defaults:
        known = rules.defaults
        own = {
            name: value
            for name, value in own.items()
            if not (name in known and is_same_json(value, known[name]))
        }
    return is_same_json(own, wanted) if rules.mode == "exact" else _has(own, wanted)


def _without(value: JsonValue, ignored: Sequence[str]) -> JsonValue:
    if not isinstance(value, Mapping) or not ignored:
        return value
    return {
        name: item for name, item in value.items() if not any(_is_ignored(name, entry) for entry in ignored)
    }


def _is_ignored(name: str, entry: str) -> bool:
    return name == entry or (("*" in entry or "?" in entry) and fits(name, entry))


def _has(value: JsonValue, expected: JsonValue) -> bool:
    """Return whether a value has everything expected: mappings may have more keys, lists must be of equal length."""
    if isinstance(expected, VariableText) and _has(value, expected.held):
        return True
    if isinstance(expected, Mapping):
        return isinstance(value, Mapping) and all(
            name in value and _has(value[name], item) for name, item in expected.items()
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(expected)
            and all(_has(own, item) for own, item in zip(value, expected, strict=True))
        )
    return is_same_json(value, expected)

"""Choose which texts of a test case the judge sees, and delimit them so that no text can pose as another part.

These are the input, the source, the knowledge and evaluation parameters, the transcript of a conversation, and an
agent's trace, as JSON with one step per line.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import MissingParamsError
from geval_cli.judge.metric import JudgedCase
from geval_cli.records import JsonValue, TraceStep, Turn
from geval_cli.source.media import MEDIA_FIELDS, markers_in, named_kind

_CODE_LENGTH = 16


def fence(label: str, text: str) -> str:
    """Return `text` between a BEGIN and an END line with a code derived from it.

    Equal texts get equal fences. To contain its own END line, a text would have to contain part of its own SHA-256.
    """
    code = marker_code(text)
    return f"<<<BEGIN {label} {code}>>>\n{text}\n<<<END {label} {code}>>>"


def marker_code(text: str) -> str:
    """Return the code for a text: part of its hash, chosen so that it does not occur in the text."""
    code = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_CODE_LENGTH]
    while code in text:
        code = hashlib.sha256(f"{code}{text}".encode("utf-8", "surrogatepass")).hexdigest()[:_CODE_LENGTH]
    return code


NO_STEPS = "(no steps)"
TOOL = "tool"


def trace_text(steps: Sequence[TraceStep]) -> str:
    """Return the steps with all that is known about each, one per line."""
    return _lines([_known(step) for step in steps])


def tools_text(steps: Sequence[TraceStep]) -> str:
    """Return the tool calls with their arguments, one per line."""
    called = [step for step in steps if step.type == TOOL]
    return _lines(
        [{"name": step.name, **({} if step.args is None else {"args": step.args})} for step in called]
    )


def _known(step: TraceStep) -> dict[str, JsonValue]:
    about = {"args": step.args, "output": step.output, "error": step.error, "ms": step.ms}
    return {
        "type": step.type,
        "name": step.name,
        **{name: value for name, value in about.items() if value is not None},
    }


def _lines(entries: Sequence[JsonValue]) -> str:
    shown = [json.dumps(entry, ensure_ascii=False, default=str) for entry in entries]
    return "\n".join(f"{number}. {text}" for number, text in enumerate(shown, 1)) or NO_STEPS


NOTHING_SAID = "(nothing was said before)"
ASSISTANT, USER = "assistant", "user"
ENDS = {
    "goal": "the user reached the goal",
    "gave_up": "the user gave up",
    "limit": "the user stopped at the limit of turns",
}
"""How a simulated conversation ended, in words, by `ended_by` of its result."""


def transcript(turns: Sequence[Turn], *, first: int = 1) -> str:
    """Return the turns as text, numbered from `first`; each has its own fence, so that no turn can pose as two."""
    if not turns:
        return NOTHING_SAID
    return "\n".join(
        fence(f"turn {number}, {turn.role}", said(turn)) for number, turn in enumerate(turns, first)
    )


def said(turn: Turn) -> str:
    """Return the content of a turn, followed by its tool calls as JSON, one per line."""
    calls = [json.dumps(call, ensure_ascii=False, default=str) for call in turn.tool_calls]
    return "\n".join(filter(None, (turn.content, *(f"calls {call}" for call in calls))))


def last_words(turns: Sequence[Turn]) -> str | None:
    """Return the content of the user's last turn, or None if there is none."""
    return next((turn.content for turn in reversed(turns) if turn.role == USER), None)


def answers_in(turns: Sequence[Turn]) -> Iterator[int]:
    """Yield the indexes of the assistant's answers; a turn with only tool calls counts only if it is the last."""
    for place, turn in enumerate(turns):
        is_answer = bool(turn.content) or not turn.tool_calls or place == len(turns) - 1
        if turn.role == ASSISTANT and is_answer:
            yield place


def answers_alone(turns: Sequence[Turn]) -> str:
    """Return the assistant's answers as text, each under the number of its turn."""
    return "\n".join(
        fence(f"turn {place + 1}, {ASSISTANT}", said(turns[place])) for place in answers_in(turns)
    )


def cases_of_answers(case: JudgedCase, window: int) -> tuple[tuple[int, JudgedCase], ...]:
    """Return a case for each answer of a conversation, with the number of its turn, counted from 1.

    Args:
        case: the whole conversation.
        window: how many turns the judge sees, including the answer.
    """
    turns = case.turns or ()
    return tuple((place + 1, _case_of_answer(case, turns, place, window)) for place in answers_in(turns))


def _case_of_answer(case: JudgedCase, turns: Sequence[Turn], place: int, window: int) -> JudgedCase:
    first = max(0, place + 1 - window)
    is_last = place == len(turns) - 1
    output: JsonValue = case.actual_output if is_last else said(turns[place])
    before = tuple(turns[first:place])
    return replace(
        case,
        actual_output=output,
        input=last_words(turns[:place]),
        turns=before,
        first_turn=first + 1,
        rates_answer=True,
    )


PARAM_LABELS: Mapping[str, str] = {
    "prompt": "Prompt",
    "role": "Role of the Assistant",
    "scenario": "Scenario",
    "turns": "Conversation",
    "input": "Input",
    "images": "Images",
    "audio": "Audio",
    "actual_output": "Actual Output",
    "trace": "Trace",
    "tools_called": "Tools Called",
    "expected_outcome": "Expected Outcome",
    "expected_output": "Expected Output",
    "context": "Context",
    "retrieval_context": "Retrieval Context",
}
"""The evaluation parameters, in the order in which a judge sees them, with their labels."""

_ABOUT_CONVERSATION = frozenset({"role", "scenario", "turns", "expected_outcome"})
_OF_TRACE: Mapping[str, Callable[[Sequence[TraceStep]], str]] = {
    "trace": trace_text,
    "tools_called": tools_text,
}
_IN_TURNS = frozenset({"input", "actual_output"})
# Most cases have few of these, and they have no fallback, so that None settles that they are missing.
_OF_FIELDS = frozenset({"prompt", "turns", "trace", "expected_output", "context", "retrieval_context"})

# In order of precedence: the first variable with a text is used.
_SOURCE_VARS = ("Document", "document", "source", "article", "conversation", "text")
_QUESTION_VARS = ("query", "prompt")
_KNOWLEDGE_VARS = ("context", "knowledge", "retrieval_context")


class Source(Struct, frozen=True):
    """The text that the output is compared with for a dimension.

    `found_in` says where the text comes from (`vars.article`); `knowledge` is an additional context text, or None.
    """

    text: str
    found_in: str
    knowledge: str | None = None


def as_text(value: JsonValue) -> str:
    """Return a value as shown to a judge: a text unchanged, several texts numbered, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return (
            value[0]
            if len(value) == 1
            else "\n".join(f"[{number}] {item}" for number, item in enumerate(value, 1))
        )
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def resolve_input(case: JudgedCase) -> str:
    """Return the test's input, or else vars.input, or else the rendered prompt; empty if there is none."""
    for value in (case.input, case.vars.get("input"), case.rendered_prompt):
        if not _is_blank(value):
            return as_text(value)
    return ""


def rated_output(case: JudgedCase) -> str:
    """Return the output that a dimension rates; for a whole conversation, all answers of the assistant."""
    if case.turns is None or case.rates_answer:
        return as_text(case.actual_output)
    return answers_alone(case.turns)


def with_all_answers(case: JudgedCase) -> JudgedCase:
    """Return the case with all answers of its conversation as the output, shown along with the conversation."""
    if case.turns is None or case.rates_answer:
        return case
    return replace(case, actual_output=rated_output(case), rates_answer=True)


def resolve_source(case: JudgedCase) -> Source:
    """Return the source for a dimension, by the order in docs/reference/geval.md, and any additional context."""
    source_candidates = [
        ("source", case.source),
        ("turns", None if case.turns is None else transcript(case.turns, first=case.first_turn)),
        *((f"vars.{name}", case.vars.get(name)) for name in _SOURCE_VARS),
        ("retrieval_context", case.retrieval_context),
        ("context", case.context),
        *((f"vars.{name}", case.vars.get(name)) for name in _QUESTION_VARS),
        ("prompt", case.rendered_prompt or resolve_input(case)),
    ]
    texts = [(name, as_text(value)) for name, value in source_candidates if not _is_blank(value)]
    found_in, text = texts[0] if texts else ("prompt", "")
    context = [
        ("retrieval_context", case.retrieval_context),
        ("context", case.context),
        *((f"vars.{name}", case.vars.get(name)) for name in _KNOWLEDGE_VARS),
    ]
    besides = (as_text(value) for name, value in context if name != found_in and not _is_blank(value))
    knowledge = next((item for item in besides if item != text), None)
    return Source(text, found_in, knowledge)


def present_texts(case: JudgedCase) -> dict[str, str]:
    """Return the texts of the evaluation parameters that the case has, in the judge's order; always with the output."""
    # An empty output is judged like any other, whereas an empty input counts as missing.
    return {
        name: text
        for name in PARAM_LABELS
        if not (name in _OF_FIELDS and getattr(case, name) is None)
        and ((text := param_text(name, case)) or name == "actual_output")
    }


def missing_params(params: Sequence[str] | None, case: JudgedCase) -> tuple[str, ...]:
    """Return the named parameters that the case lacks; empty if `params` is None."""
    if params is None:
        return ()
    present = present_texts(case)
    return tuple(name for name in params if name not in present)


def chosen_texts(params: Sequence[str] | None, case: JudgedCase) -> dict[str, str]:
    """Return the texts to show, in the judge's order: of the named parameters, or else of all that the case has.

    Raises:
        MissingParamsError: the case lacks a named parameter.
    """
    present = present_texts(case)
    if params is None:
        return _each_medium_once({name: text for name, text in present.items() if _is_shown(name, case)})
    if missing := tuple(name for name in params if name not in present):
        raise MissingParamsError(missing)
    return _each_medium_once({name: text for name, text in present.items() if name in params})


def _each_medium_once(texts: dict[str, str]) -> dict[str, str]:
    """Return the texts without the images and recordings that another text already shows, as each copy costs money."""
    if not MEDIA_FIELDS.keys() & texts.keys():
        return texts
    # Steps depend on which parameters are shown, and are requested before the output is known.
    others = [text for name, text in texts.items() if name not in MEDIA_FIELDS and name != "actual_output"]
    shown = dict(texts)
    for name in MEDIA_FIELDS.keys() & texts.keys():
        left = [line for line in texts[name].splitlines() if not any(line in text for text in others)]
        shown[name] = "\n".join(left)
    return {name: text for name, text in shown.items() if text or name not in MEDIA_FIELDS}


def media_text(name: str, case: JudgedCase) -> str:
    """Return the markers of a case's images or recordings, one per line, without duplicates."""
    kind = MEDIA_FIELDS[name]
    own = case.images if name == "images" else case.audio
    return "\n".join(
        dict.fromkeys((*own, *(item for item in markers_in(case.vars) if named_kind(item) == kind)))
    )


def _is_shown(name: str, case: JudgedCase) -> bool:
    """Return whether a parameter is shown by default; in a conversation the turns already show input and output."""
    if name in _OF_TRACE:
        return name == "trace" and case.shows_trace
    if case.turns is None:
        return name not in _ABOUT_CONVERSATION
    return name not in _IN_TURNS or (name == "actual_output" and case.rates_answer)


def param_text(name: str, case: JudgedCase) -> str:
    """Return the text of an evaluation parameter; empty if the case lacks it."""
    if name == "input":
        return resolve_input(case)
    if name in MEDIA_FIELDS:
        return media_text(name, case)
    if name == "turns":
        return "" if case.turns is None else transcript(case.turns, first=case.first_turn)
    if name in _OF_TRACE:
        return "" if case.trace is None else _OF_TRACE[name](case.trace)
    value = getattr(case, name)
    if value is None and name in _ABOUT_CONVERSATION:
        value = case.vars.get(name)
    if value is None and name != "actual_output":
        return ""
    return as_text(value) if name == "actual_output" or not _is_blank(value) else ""


def _is_blank(value: JsonValue) -> bool:
    if value is None:
        return True
    return not value.strip() if isinstance(value, str) else value in ([], (), {})

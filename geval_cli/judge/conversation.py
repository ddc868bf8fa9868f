"""Conversations as a judge sees them: the transcript, and each answer with the turns before it."""

import json
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from geval_cli.judge.markers import fence
from geval_cli.judge.metric import JudgedCase
from geval_cli.records import JsonValue, Turn

NOTHING_SAID = "(nothing was said before)"
ASSISTANT, USER = "assistant", "user"
ENDS = {
    "goal": "the user reached the goal",
    "gave_up": "the user gave up",
    "limit": "the user stopped at the limit of turns",
}
"""How a simulated user ended a conversation, in words, by `ended_by` of its result."""


def transcript(turns: Sequence[Turn], *, first: int = 1) -> str:
    """Return turns as text, numbered from `first`, each between markers of its own: no turn can pretend to be two."""
    if not turns:
        return NOTHING_SAID
    return "\n".join(
        fence(f"turn {number}, {turn.role}", said(turn)) for number, turn in enumerate(turns, first)
    )


def said(turn: Turn) -> str:
    """Return what was said in a turn; calls of tools stand below it as JSON, one a line."""
    calls = [json.dumps(call, ensure_ascii=False, default=str) for call in turn.tool_calls]
    return "\n".join(filter(None, (turn.content, *(f"calls {call}" for call in calls))))


def last_words(turns: Sequence[Turn]) -> str | None:
    """Return what the user said last; None where the user said nothing."""
    return next((turn.content for turn in reversed(turns) if turn.role == USER), None)


def answers_in(turns: Sequence[Turn]) -> Iterator[int]:
    """Yield where the assistant's answers are, from 0. A turn that only calls tools is none, unless it is the last."""
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
    """Return a case for each answer of a conversation, with the number of its turn, from 1.

    Args:
        case: of the whole conversation.
        window: how many turns a judge sees, the answer among them.
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

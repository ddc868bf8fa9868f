"""Read the turns of a test, which were said or are to be played, and the trace of its output."""

import json
from collections.abc import Mapping, Sequence

from geval_cli.json_codec import data_in
from geval_cli.judge.conversation import ASSISTANT, USER
from geval_cli.plugins import extra
from geval_cli.records import JsonValue, TraceStep, Turn
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.conversation import TraceStepSpec, TurnSpec
from geval_cli.specs.type_messages import describe_value
from geval_cli.suite.schema import SimulationSpec, TestSpec
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields, read_spec

_TWO_FORMS = "use either `role` and `content` in all of them, or only `user`"
_ENDS = ("end with a user or tool turn for the model to answer, or with an assistant turn to judge",)


def read_turns(fields: Fields, reading: LoadContext) -> None:
    """Put the turns of a test in the place of what is written, or drop them with a problem for each mistake."""
    if "turns" not in fields.values:
        return
    value, place = fields.values["turns"], fields.child("turns")
    if isinstance(value, dict) and "simulate" in value:
        extra("simulated users").read_simulation(fields, reading)
        if "turns" in fields.values and "output" in fields.values:
            _check_output(fields.values["turns"], "", fields.place, reading)
        return
    before = len(reading.problems)
    turns = _read_list(value, place, reading)
    if turns is not None and len(reading.problems) == before:
        _check_whole(turns, fields, place, reading)
    if turns is None or len(reading.problems) > before:
        drop_turns(fields)
    else:
        fields.values["turns"] = turns


def drop_turns(fields: Fields) -> None:
    """Take out turns that are already reported as wrong; no prompt misses the words that they would have given it."""
    fields.drop("turns")
    fields.values.setdefault("input", "")


def read_trace(fields: Fields, reading: LoadContext) -> None:
    """Put the steps of a trace in the place of what is written, or drop them with a problem for each mistake."""
    if "trace" not in fields.values:
        return
    value, place = fields.values.pop("trace"), fields.child("trace")
    if not isinstance(value, list | tuple):
        hint = "for example [{name: search, args: {query: tea}}]"
        reading.report(f"`trace` must be a list of steps, found {describe_value(value)}", place.value(), hint)
        return
    steps = []
    for index, item in enumerate(value):
        # An empty error is no error.
        if isinstance(item, dict):
            known = {
                key: part
                for key, part in item.items()
                if part is not None and not (key == "error" and part == "")
            }
        else:
            known = item
        steps.append(read_spec(TraceStepSpec, known, place.child(index), "a step of a trace", reading))
    if None not in steps:
        fields.values["trace"] = tuple(steps)


def trace_of_spec(written: Sequence[TraceStepSpec] | None) -> tuple[TraceStep, ...] | None:
    """Return the steps of a trace as records; None where there is none."""
    if written is None:
        return None
    return tuple(
        TraceStep(step.type, step.name, data_in(step.args), step.output, step.error, step.ms)
        for step in written
    )


def turns_of(written: Sequence[TurnSpec] | SimulationSpec | None) -> tuple[Turn, ...]:
    """Return turns as records."""
    if isinstance(written, SimulationSpec):
        return ()
    return tuple(
        Turn(USER, item.user)
        if item.user is not None
        else Turn(item.role or USER, item.content or "", item.tool_calls, item.tool_call_id)
        for item in written or ()
    )


def are_played(written: Sequence[TurnSpec] | SimulationSpec | None) -> bool:
    """Return whether the turns are what the user is going to say."""
    if isinstance(written, SimulationSpec):
        return True
    return bool(written) and all(item.user is not None for item in written or ())


def output_of(last: Turn) -> str:
    """Return the output that an assistant's last turn is: its words, else the tools that it calls, as JSON."""
    if last.content or not last.tool_calls:
        return last.content
    return json.dumps([dict(call) for call in last.tool_calls], ensure_ascii=False, default=str)


def _read_list(value: JsonValue, place: SourcePath, reading: LoadContext) -> tuple[TurnSpec, ...] | None:
    if not isinstance(value, list | tuple) or not value:
        found = "an empty list" if isinstance(value, list | tuple) else describe_value(value)
        hint = "for example [{user: Hello}, {user: And on Sundays?}]"
        reading.report(f"`turns` must be a list of turns, found {found}", place.value(), hint)
        return None
    turns = []
    for index, item in enumerate(value):
        at = place.child(index)
        # APIs write null for the content of a turn that only calls tools.
        known = read_fields(TurnSpec, item, at, "a turn", reading, nullable=("content",))
        turn = None if known is None else build_spec(TurnSpec, known, reading)
        if turn is not None:
            turns.append(turn)
            _check_turn(turn, index + 1, at, reading)
    return tuple(turns)


def _check_turn(turn: TurnSpec, number: int, place: SourcePath, reading: LoadContext) -> None:
    if turn.user is not None:
        for name in ("role", "content", "tool_calls", "tool_call_id"):
            if getattr(turn, name):
                reading.report(f"turn {number} has `user` and `{name}`", place.key(name), _TWO_FORMS)
                return
        if not turn.user.strip():
            reading.report(
                f"the user's text in turn {number} is empty", place.value("user"), "write what is said"
            )
        return
    if turn.role is None:
        reading.report(f"turn {number} does not say who speaks", place.value(), _TWO_FORMS)
    elif turn.tool_calls and turn.role != ASSISTANT:
        hint = "only an assistant can call tools"
        reading.report(
            f"turn {number} has the role {turn.role} but also `tool_calls`", place.key("tool_calls"), hint
        )
    elif turn.content is None and not turn.tool_calls:
        reading.report(f"turn {number} has no `content`", place.value(), "write what was said")
    for index, call in enumerate(turn.tool_calls):
        # APIs write the name in a mapping, beside the id and the type of the call.
        parts = [call, *(part for part in call.values() if isinstance(part, Mapping))]
        names = [part.get("name") for part in parts]
        names_tool = any(isinstance(name, str) and name.strip() for name in names)
        if not names_tool:
            at = place.child("tool_calls", index).value()
            hint = "write {name, args}, or the call as a chat API writes it"
            reading.report(f"a call in turn {number} has no tool name", at, hint)


def _check_whole(turns: Sequence[TurnSpec], fields: Fields, place: SourcePath, reading: LoadContext) -> None:
    """Check what the turns of a test say together."""
    played = [turn.user is not None for turn in turns]
    if any(played) and not all(played):
        at = place.child(played.index(not played[0])).value()
        reading.report("`turns` mixes recorded turns with `user` turns to play", at, _TWO_FORMS)
        return
    last = turns[-1]
    if not all(played) and last.role in {"system", "developer"}:
        reading.report(
            f"the last turn has the role {last.role}, so nothing is sent",
            place.child(len(turns) - 1).value("role"),
            notes=_ENDS,
        )
    if "output" in fields.values:
        _check_output(turns, "", fields.place, reading)


def check_output_of_test(test: TestSpec, default: TestSpec | None, reading: LoadContext) -> None:
    """Report the output of a test whose turns, those of `defaultTest`, leave nothing for it to answer."""
    is_own = "output" in test.model_fields_set and "turns" not in test.model_fields_set
    if is_own and default is not None and default.turns:
        _check_output(default.turns, " of defaultTest", test.place, reading)


def _check_output(
    turns: Sequence[TurnSpec] | SimulationSpec, whose: str, place: SourcePath, reading: LoadContext
) -> None:
    if isinstance(turns, SimulationSpec) or are_played(turns) or turns[-1].role == ASSISTANT:
        why = (
            "answers come from the model"
            if are_played(turns)
            else "leave it out: the assistant's last turn is the output"
        )
        reading.report(f"a test with these `turns`{whose} cannot have an `output`", place.key("output"), why)

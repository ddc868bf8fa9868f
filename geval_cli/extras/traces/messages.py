"""Messages in traces and logs, in any of their spellings, and the test that an answered call of a model becomes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from geval_cli.json_codec import data_in
from geval_cli.records import JsonValue
from geval_cli.source.files import FILE_PREFIX

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_MESSAGE_KEYS = frozenset({"role", "content", "parts", "message"})
_USUAL_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

Fields = Mapping[str, Any]


class TracedTurn(Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: str
    content: str
    tool_calls: tuple[Fields, ...] = ()
    tool_call_id: str = ""


class ModelAnswer(Struct, frozen=True):
    """One call of a model that a trace tells of.

    Attributes:
        turns: what was asked; empty where the line does not say.
        answer: what came back.
        facts: what `--where` is held against: attributes by their names.
        steps: those of the whole trace, where its spans were joined; else the messages tell which tools were called.
    """

    turns: tuple[TracedTurn, ...]
    answer: TracedTurn
    metadata: Mapping[str, JsonValue]
    facts: Fields
    steps: tuple[Fields, ...] = ()

    def row(self) -> dict[str, JsonValue]:
        """Return the test: input, output, turns of a conversation, trace and metadata."""
        asked = [turn.content for turn in self.turns if turn.role == "user" and turn.content]
        metadata = {name: value for name, value in self.metadata.items() if value not in (None, "")}
        row: dict[str, JsonValue] = {"input": no_file(asked[-1])} if asked else {}
        roles = [turn.role for turn in self.turns]
        has_answers = "assistant" in roles or "tool" in roles
        is_conversation = has_answers and roles[-1] in {"user", "tool"} and set(roles) <= _ROLES
        if is_conversation:
            row["turns"] = [_written(turn) for turn in self.turns]
        elif len(self.turns) > 1:
            metadata["turns"] = [_written(turn) for turn in self.turns]
        trace = list(self.steps) or list(_tool_steps((*self.turns, self.answer)))
        calls = []
        for call in self.answer.tool_calls:
            function = {"name": call.get("name"), "arguments": as_text(call.get("args", {}))}
            calls.append({"id": call.get("id"), "type": "function", "function": function})
        output = self.answer.content or json.dumps(calls, ensure_ascii=False)
        return {
            **row,
            "output": no_file(output),
            **({"trace": trace} if trace else {}),
            "metadata": metadata,
        }

    def fits(self, wanted: Sequence[tuple[str, str]]) -> bool:
        """Return whether all of these facts hold."""
        known = {**self.facts, **self.metadata}
        return all(name in known and as_text(known[name]) == value for name, value in wanted)


def answer_of(
    asked: Sequence[TracedTurn], given: Sequence[TracedTurn], metadata: Mapping[str, Any], facts: Fields
) -> ModelAnswer | None:
    """Return the call of a model that was asked and answered in these messages; None where no answer is recorded."""
    if not given or not (given[0].content or given[0].tool_calls):
        return None
    kept = {name: item if isinstance(item, str) else None for name, item in metadata.items()}
    return ModelAnswer(tuple(asked), given[0], kept, facts)


def messages(value: Any, role: str = "user") -> list[TracedTurn]:
    """Return messages in any of the known spellings; a text is one of `role`."""
    # The messages that a value holds or a text spells; a text that spells something else is a text.
    found = data_in(value)
    if isinstance(found, dict):
        found = found.get("messages", [found])
    is_said = isinstance(found, list) and any(
        isinstance(item, dict) and not _MESSAGE_KEYS.isdisjoint(item) for item in found
    )
    value = found if is_said or not isinstance(value, str) else value
    if isinstance(value, str):
        return [TracedTurn(role, value)] if value else []
    if not isinstance(value, list):
        return []
    if value and all(isinstance(item, dict) and "role" not in item and "type" in item for item in value):
        value = [{"role": role, "content": value}]  # parts of one message
    return [_turn(item, role) for item in value if isinstance(item, dict | str)]


def _turn(item: Fields | str, role: str) -> TracedTurn:
    if isinstance(item, str):
        return TracedTurn(role, item)
    inner = mapping(item.get("message")) or item
    parts = inner.get("parts", first(inner, "content", "contents"))
    calls = [*dicts(inner, "tool_calls"), *_parts_of(parts, {"tool_call", "tool_use"})]
    responses = _parts_of(parts, {"tool_call_response", "tool_result"})
    text = _text_of(parts)
    if responses and not text:
        text = "\n".join(as_text(first(part, "response", "result", "content")) for part in responses)
    answered = first(inner, "tool_call_id", "call_id") or next(
        (first(part, "id", "tool_use_id") for part in responses), ""
    )
    said_by = str(inner.get("role") or role)
    return TracedTurn(
        role=_USUAL_ROLES.get(said_by, said_by),
        content=text,
        tool_calls=tuple(_call(call) for call in calls),
        tool_call_id=str(answered or ""),
    )


def _text_of(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    if isinstance(parts, list):
        texts = (
            part if isinstance(part, str) else first(_inner(part), "text", "content")
            for part in parts
            if isinstance(part, str) or _inner(part).get("type", "text") in _TEXT_PARTS
        )
        return "".join(text for text in texts if isinstance(text, str))
    return "" if parts is None else as_text(parts)


def _inner(part: Any) -> Fields:
    found = mapping(part)
    return mapping(found.get("message_content")) or found


def _parts_of(parts: Any, kinds: set[str]) -> list[Fields]:
    return (
        [part for part in parts if isinstance(part, dict) and part.get("type") in kinds]
        if isinstance(parts, list)
        else []
    )


def _call(call: Fields) -> Fields:
    inner = mapping(call.get("tool_call")) or call
    function = mapping(inner.get("function")) or inner
    arguments = data_in(first(function, "arguments", "input"))
    found = {"id": first(inner, "id", "call_id"), "name": function.get("name"), "args": arguments}
    return {name: item for name, item in found.items() if item is not None}


def response_turns(source: Fields) -> list[TracedTurn]:
    """Return the first answer in a response of chat, completions, responses or messages."""
    if isinstance(source.get("choices"), list):
        choice = mapping(next(iter(source["choices"]), None))
        return messages([choice.get("message") or {"content": choice.get("text")}], "assistant")
    if isinstance(source.get("output"), list):
        items = dicts(source, "output")
        calls = [item for item in items if item.get("type") == "function_call"]
        texts = [
            turn.content for item in items if "content" in item for turn in messages([item], "assistant")
        ]
        return messages([{"role": "assistant", "content": "".join(texts), "tool_calls": calls}], "assistant")
    if source.get("role") == "assistant" and "content" in source:
        return messages([source], "assistant")
    return messages(source.get("output"), "assistant") if isinstance(source.get("output"), str) else []


def no_file(text: str) -> str:
    """Return a text that a test takes for a text: one that begins like the name of a file gets a blank before it."""
    return f" {text}" if text.startswith(FILE_PREFIX) else text


def _tool_steps(turns: Sequence[TracedTurn]) -> Iterator[dict[str, JsonValue]]:
    """Yield the tools that were called, each with what it gave back where a later message says so."""
    given = {turn.tool_call_id: turn.content for turn in turns if turn.tool_call_id}
    for call in (call for turn in turns for call in turn.tool_calls):
        step = {"type": "tool", "name": str(call.get("name") or "tool"), "args": call.get("args")}
        yield {**step, "output": given[str(call["id"])]} if str(call.get("id")) in given else step


def _written(turn: TracedTurn) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {"role": turn.role, "content": turn.content}
    if turn.tool_calls:
        found["tool_calls"] = [dict(call) for call in turn.tool_calls]
    if turn.tool_call_id:
        found["tool_call_id"] = turn.tool_call_id
    return found


def as_text(value: Any) -> str:
    """Return a text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def flat_names(nested: Fields, before: str) -> Iterator[tuple[str, Any]]:
    """Yield what is nested by dotted names, each behind `before`."""
    for name, item in nested.items():
        if isinstance(item, dict):
            yield from flat_names(item, f"{before}{name}.")
        else:
            yield f"{before}{name}", item


def mapping(value: Any) -> Fields:
    """Return a value that is a mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def first(fields: Fields, *names: str) -> Any:
    """Return the first of these fields that is there and not null; None when there is none."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def dicts(fields: Fields, *names: str) -> list[Fields]:
    """Return the mappings in the list that the first of these fields holds."""
    found = first(fields, *names)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

"""One case in parts for the templates: what was asked, what came back, what every assertion said about it."""

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from msgspec import Struct

from geval_cli.assertions.structured.called_tools import called_tools, calls_beside
from geval_cli.judge.checklist import CHECKLIST
from geval_cli.numbers import format_share
from geval_cli.records import AssertionResult, CaseResult, JsonValue, Message, Turn, Usage
from geval_cli.report.case_view import AssertionView, JudgeVerdict
from geval_cli.report.checklist import ShownItem, checklist_items
from geval_cli.report.html.environment import shown_text
from geval_cli.report.html.markdown import rendered_markdown
from geval_cli.report.report import worst_first
from geval_cli.report.verdict import Signs, has_fallback
from geval_cli.source.media import markers_in, named_and_hashed, named_kind
from geval_cli.store.result_filter import WORST_FIRST

_SHOWN_ELSEWHERE = frozenset(
    {
        "estimator", "rating", "score_range", "distribution", "coverage", "valid", "requested", "fallback",
        "evaluation_steps", "usage", "latency_ms", "criteria", "judge", "source_from", "parts", "status", "score",
        "reason", "judges", CHECKLIST,
    }
)  # fmt: skip
_NO_SIGNS = Signs({}, "·", "x")
_BAR_WIDTH, _BAR_GAP, BAR_HEIGHT = 24, 12, 72
_SCALE_MAX = 21
_ARGUMENTS_ON_A_LINE = 72


class RatingBar(Struct, frozen=True):
    """One rating of a distribution, as a bar of `height` at `x`."""

    rating: str
    share_text: str
    x: float
    height: float


class RatingBars(Struct, frozen=True):
    """How likely the judge found each rating."""

    bars: tuple[RatingBar, ...]
    width: int

    @property
    def description(self) -> str:
        """The chart in words."""
        return ", ".join(f"rating {bar.rating}: {bar.share_text}" for bar in self.bars)


class VerdictPart(Struct, frozen=True):
    """A judge's verdict, or the part of it that belongs to one of several criteria."""

    title: str
    reason: str
    criteria: str
    facts: tuple[tuple[str, str], ...]
    fallback: str
    steps: tuple[str, ...]
    distribution: RatingBars | None
    items: tuple[ShownItem, ...] = ()


class ShownAssertion(Struct, frozen=True):
    """One assertion and those within it; `number` is unique on the page. `items` are a jury's, of a checklist.

    `jury` is what its judges found together, on one scale.
    """

    number: int
    result: AssertionResult
    score_text: str
    parts: tuple[VerdictPart, ...]
    others: tuple[tuple[str, str], ...]
    items: tuple[ShownItem, ...]
    members: tuple["ShownAssertion", ...]
    jury: RatingBars | None = None


def shown_assertions(result: CaseResult) -> list[ShownAssertion]:
    """Return the assertions of a case: what failed first, the worst at the head, then what could not be judged."""
    numbers = count(1)
    ordered = sorted(worst_first(result.assertions), key=lambda item: WORST_FIRST.index(item.status))
    return [_shown(item, numbers) for item in ordered]


def _shown(item: AssertionResult, numbers: "count[int]") -> ShownAssertion:
    view = AssertionView(item, _NO_SIGNS)
    verdicts = view.verdicts()
    is_whole = len(verdicts) == 1
    others = {name: value for name, value in item.detail.items() if name not in _SHOWN_ELSEWHERE}
    jury = _jury(verdicts) if "judges" in item.detail and not is_whole else None
    return ShownAssertion(
        number=next(numbers),
        result=item,
        score_text=view.score_text(),
        parts=tuple(_part(verdict, is_whole, has_chart=jury is None) for verdict in verdicts),
        others=tuple((name, _json_text(value)) for name, value in others.items() if value is not None),
        items=tuple(checklist_items(item.detail)) if not is_whole else (),
        members=tuple(_shown(member, numbers) for member in item.assertions),
        jury=jury,
    )


def _jury(verdicts: Sequence[JudgeVerdict]) -> RatingBars | None:
    """Return the mean of the judges' distributions; None where they do not rate on one scale."""
    found = [dict(_on_scale(item.shares(), item.detail.get("score_range"))) for item in verdicts]
    if not all(found) or len({tuple(shares) for shares in found}) > 1:
        return None
    return _distribution(
        [(rating, sum(shares[rating] for shares in found) / len(found)) for rating in found[0]]
    )


def _part(verdict: JudgeVerdict, is_whole: bool, has_chart: bool) -> VerdictPart:
    facts = [(label, text) for label, text in verdict.facts() if label not in ("spread", "note")]
    return VerdictPart(
        title="" if is_whole else verdict.title(),
        reason="" if is_whole else verdict.reason(),
        criteria=_criteria_text(verdict.detail.get("criteria")) if is_whole else "",
        facts=tuple(facts),
        fallback=_text_of(verdict.detail.get("fallback")),
        steps=verdict.evaluation_steps(),
        distribution=_distribution(_on_scale(verdict.shares(), verdict.detail.get("score_range")))
        if has_chart
        else None,
        items=tuple(checklist_items(verdict.detail)),
    )


def _on_scale(shares: list[tuple[str, float]], bounds: JsonValue) -> list[tuple[str, float]]:
    """Add the ratings with no share, where the scale is short and of whole numbers."""
    match bounds:
        case [int() | float() as low, int() | float() as high] if 0 < high - low < _SCALE_MAX:
            scale = {f"{low + step:g}": 0.0 for step in range(int(high - low) + 1)}
            found = dict(shares)
            if found.keys() <= scale.keys():
                return [(rating, found.get(rating, 0.0)) for rating in scale] if found else []
    return shares


def _distribution(shares: list[tuple[str, float]]) -> RatingBars | None:
    if not shares:
        return None
    highest = max(share for _, share in shares)
    bars = tuple(
        RatingBar(
            rating,
            format_share(share),
            number * (_BAR_WIDTH + _BAR_GAP) + _BAR_GAP // 2,
            round(BAR_HEIGHT * share / highest, 1),
        )
        for number, (rating, share) in enumerate(shares)
    )
    return RatingBars(bars, len(bars) * (_BAR_WIDTH + _BAR_GAP))


class ShownCall(Struct, frozen=True):
    """A call of a tool: its name, and its arguments as text; "" without any, or all of it where it has no name."""

    name: str
    arguments: str

    @classmethod
    def of(cls, call: Mapping[str, JsonValue]) -> "ShownCall":
        name, arguments = next(called_tools([dict(call)]), (str(call.get("name") or ""), call.get("args")))
        if not name:
            return cls("", _json_text(call))
        if isinstance(arguments, str) or arguments in (None, {}, []):
            return cls(name, shown_text(arguments) if isinstance(arguments, str) else "")
        line = json.dumps(arguments, ensure_ascii=False, default=repr)
        return cls(name, shown_text(line) if len(line) <= _ARGUMENTS_ON_A_LINE else _json_text(arguments))


class ShownMessage(Struct, frozen=True):
    """A message of a conversation; `tool` is whose answer it is."""

    role: str
    content: str
    calls: tuple[ShownCall, ...] = ()
    tool: str = ""


def conversation_of(turns: Sequence[Turn]) -> list[ShownMessage]:
    """Return the turns of a conversation for reading, calls of tools by their names and arguments."""
    names: dict[str, str] = {}
    found = []
    for turn in turns:
        calls = tuple(map(ShownCall.of, turn.tool_calls))
        names.update(
            {str(call.get("id")): shown.name for call, shown in zip(turn.tool_calls, calls, strict=True)}
        )
        tool = names.get(turn.tool_call_id or "", "")
        found.append(ShownMessage(turn.role, turn.content, calls, tool))
    return found


def chat_messages(rendered: str) -> list[Message]:
    """Return the messages of a rendered chat prompt; empty for a prompt that is plain text."""
    try:
        items = json.loads(rendered)
    except (ValueError, RecursionError):
        return []
    is_chat = isinstance(items, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) and "content" in item for item in items
    )
    return [Message(item["role"], _content_text(item["content"])) for item in items] if is_chat else []


def output_text(result: CaseResult) -> str:
    """Return the output for reading: text as it came, anything else as indented JSON; below it the tool calls."""
    output = shown_text(result.output) if isinstance(result.output, str) else _json_text(result.output)
    calls = () if result.turns else calls_beside(result.output, result.tool_calls)
    shown = map(ShownCall.of, calls)
    return "\n".join([output, *(f"calls {call.name} {call.arguments}".rstrip() for call in shown)])


def usage_rows(result: CaseResult) -> list[tuple[str, Usage]]:
    """Return a row of usage for each role that asked for anything."""
    names = {"generation": "Model", "judge": "Judge", "user": "Simulated user"}
    return [(names[role.value], usage) for role, usage in result.usage.items() if usage.requests]


def _content_text(content: JsonValue) -> str:
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return _text_of(content) or ("" if content is None else _json_text(content))


def _part_text(part: JsonValue) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return _json_text(part)


def _criteria_text(value: JsonValue) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(_text_of(item) for item in value)
    return _text_of(value)


def _text_of(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def _json_text(value: JsonValue) -> str:
    if isinstance(value, str):
        return shown_text(value)
    return shown_text(json.dumps(value, ensure_ascii=False, indent=2, default=repr))


class ShownMedia(Struct, frozen=True):
    """An image or a recording (`kind`) of a case. `link` leads to it; None where no one has the file."""

    kind: str
    name: str
    sha256: str
    link: str | None = None


def media_of(result: CaseResult) -> list[ShownMedia]:
    """Return the images and recordings that a case names, each once."""
    markers = markers_in([result.vars, result.prompt.rendered, result.output])
    found = [(named_kind(marker), *named_and_hashed(marker)) for marker in markers]
    asked = result.asked
    if asked is not None:
        found += [("image", *item) for item in asked.images] + [("audio", *item) for item in asked.audio]
    return [ShownMedia(*item) for item in dict.fromkeys(found)]


def case_values(
    result: CaseResult, row: Sequence[CaseResult], title: str, repeats: Sequence[CaseResult] = ()
) -> dict[str, Any]:
    """Return the values of the template `case_detail.html`.

    `row` are all results of its test and repeat, `repeats` those of its test and column.
    """
    said_in_turns = {(turn.role, turn.content) for turn in result.turns}
    messages = chat_messages(result.prompt.rendered)
    others = [item for item in messages if (item.role, item.content) not in said_in_turns]
    return {
        "case": result,
        "ends_with_output": bool(result.turns) and result.turns[-1].content == result.output,
        "title": title,
        "siblings": row if len(row) > 1 else (),
        "repeats": repeats if len(repeats) > 1 else (),
        "has_fallback": has_fallback(result.assertions),
        "assertions": shown_assertions(result),
        "messages": others,
        "turns": conversation_of(result.turns),
        "shows_prompt": not messages or bool(others),
        "output": output_text(result),
        "rendered": rendered_markdown(result.output) if isinstance(result.output, str) else None,
        "media": media_of(result),
        "usage": usage_rows(result),
        "bar_height": BAR_HEIGHT,
    }

"""A case for the templates: what `case_view` shows of it, with a drawing of its ratings and its texts as blocks.

Markdown of a model becomes markup that can do nothing: no HTML of its own, no images, links to web pages alone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from geval_cli.extras.html import drawing as svg
from geval_cli.extras.html.drawing import Chart
from geval_cli.extras.html.environment import shown_text
from geval_cli.numbers import format_share
from geval_cli.records import CaseResult, JsonValue, Message, Usage
from geval_cli.report.case_view import (
    CaseView,
    JudgeVerdict,
    calls_of,
    conversation_of,
    has_fallback,
    whole_reason,
)
from geval_cli.report.sanitize import one_line, sanitized_lines, value_text

_CHARACTERS_MAX = 50_000
_SIGNS = re.compile(
    r"^ {0,3}(?:#{1,6} |[-*+] |\d{1,9}[.)] |> |```|~~~|\|.*\|)|\*\*\S|__\S|~~\S|`[^`\n]+`|\]\("
    r"|^ {0,3}(?:-{3,}|\*{3,})\s*$",
    re.MULTILINE,
)
_TASK = re.compile(r"\[([ xX])\]\s+")
_WEB = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)


def rendered_markdown(text: str) -> Markup | None:
    """Return Markdown as HTML; None for a text without a sign of Markdown, or one that is very long."""
    if len(text) > _CHARACTERS_MAX or not _SIGNS.search(text):
        return None
    return Markup(_parser().render("\n".join(sanitized_lines(text))))


class _Renderer(RendererHTML):
    """Writes an image as its description, so that nothing is fetched."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        alt = self.renderInlineAsText(tokens[idx].children or [], options, env)
        return f'<span class="muted">[image: {escape(alt or tokens[idx].attrs.get("src", ""))}]</span>'

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        # The page's policy refuses styles in attributes.
        align = str(tokens[idx].attrs.pop("style", "")).removeprefix("text-align:")
        if align:
            tokens[idx].attrSet("class", f"is-{align}")
        return self.renderToken(tokens, idx, options, env)

    td_open = th_open

    def task_box(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        sign, word = ("☑", "done") if tokens[idx].content == "x" else ("☐", "to do")
        return f'<span class="task-box" role="img" aria-label="{word}">{sign}</span> '

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        tokens[idx].attrSet("rel", "noopener noreferrer nofollow")
        return self.renderToken(tokens, idx, options, env)


def _tasks(state: StateCore) -> None:
    """Make boxes of `[ ]` and `[x]` at the beginning of list items."""
    for item, paragraph, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if (item.type, paragraph.type) != ("list_item_open", "paragraph_open") or not inline.children:
            continue
        text = inline.children[0]
        found = _TASK.match(text.content) if text.type == "text" else None
        if found:
            text.content = text.content[found.end() :]
            inline.children.insert(0, Token("task_box", "", 0, content=found[1].strip().lower()))
            item.attrSet("class", "task")


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.push("tasks", _tasks)
    # What is refused stays the text that it was.
    parser.validateLink = lambda url: _WEB.match(url.strip()) is not None  # type: ignore[method-assign]
    return parser


_BAR_WIDTH, _BAR_GAP, _BAR_HEIGHT = 24, 12, 72
_SCALE_MAX = 21
_ARGUMENTS_ON_A_LINE = 72


def rating_bars(verdicts: Sequence[JudgeVerdict]) -> Chart | None:
    """Return how likely the judge found each rating; of several judges the mean, where they rate on one scale."""
    found = [dict(_on_scale(item.shares, item.detail.get("score_range"))) for item in verdicts]
    if not all(found) or len({tuple(shares) for shares in found}) > 1:
        return None
    shares = {rating: sum(shares[rating] for shares in found) / len(found) for rating in found[0]}
    highest = max(shares.values())
    marks = []
    for number, (rating, share) in enumerate(shares.items()):
        x, height = number * (_BAR_WIDTH + _BAR_GAP) + _BAR_GAP // 2, round(_BAR_HEIGHT * share / highest, 1)
        top, middle = _BAR_HEIGHT - height, x + _BAR_WIDTH // 2
        bar = svg.element("text", format_share(share), class_="spread-share", x=middle, y=top + 12)
        bar += svg.rect(x, top + 17, _BAR_WIDTH, height, "fill is-accent", 2)
        bar += svg.element("text", svg.escape(one_line(rating, 6)), x=middle, y=_BAR_HEIGHT + 33)
        marks.append(svg.mark(bar, f"rating {rating}: {format_share(share)}"))
    judges = "the judge" if len(verdicts) == 1 else "the judges"
    title = f"How likely {judges} found each rating{'' if len(verdicts) == 1 else ', on average'}"
    said = ", ".join(f"rating {rating}: {format_share(share)}" for rating, share in shares.items())
    width = len(shares) * (_BAR_WIDTH + _BAR_GAP)
    return Chart("", title, said, height=_BAR_HEIGHT + 36, marks=marks, width=width)


def _on_scale(shares: list[tuple[str, float]], bounds: JsonValue) -> list[tuple[str, float]]:
    """Add the ratings with no share, where the scale is short and of whole numbers."""
    match bounds:
        case [int() | float() as low, int() | float() as high] if 0 < high - low < _SCALE_MAX:
            scale = {f"{low + step:g}": 0.0 for step in range(int(high - low) + 1)}
            found = dict(shares)
            if found.keys() <= scale.keys():
                return [(rating, found.get(rating, 0.0)) for rating in scale] if found else []
    return shares


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


def whole_output(result: CaseResult) -> str:
    """Return the output for reading: text as it came, anything else as indented JSON; below it the tool calls."""
    calls = (shown_text(call.line) for call in calls_of(result))
    return "\n".join([shown_text(_indented(result.output)), *calls])


def json_block(value: JsonValue) -> str:
    """Return a value for a block of its own: a short one on one line, else as indented JSON."""
    line = value_text(value)
    return shown_text(line if len(line) <= _ARGUMENTS_ON_A_LINE else _indented(value))


def _indented(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=repr)


def usage_rows(result: CaseResult) -> list[tuple[str, Usage]]:
    """Return a row of usage for each role that asked for anything."""
    names = {"generation": "Model", "judge": "Judge", "user": "Simulated user"}
    return [(names[role.value], usage) for role, usage in result.usage.items() if usage.requests]


def _content_text(content: JsonValue) -> str:
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return "" if content is None else json_block(content)


def _part_text(part: JsonValue) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json_block(part)


def case_values(
    result: CaseResult, row: Sequence[CaseResult], title: str, repeats: Sequence[CaseResult] = ()
) -> dict[str, Any]:
    """Return the values of the template `case_detail.html`.

    `row` are all results of its test and repeat, `repeats` those of its test and column.
    """
    said_in_turns = {(turn.role, turn.content) for turn in result.turns}
    messages = chat_messages(result.prompt.rendered)
    others = [item for item in messages if (item.role, item.content) not in said_in_turns]
    view = CaseView(result)
    return {
        "case": result,
        "view": view,
        "whole_reason": whole_reason(result),
        "ends_with_output": bool(result.turns) and result.turns[-1].content == result.output,
        "title": title,
        "siblings": row if len(row) > 1 else (),
        "repeats": repeats if len(repeats) > 1 else (),
        "has_fallback": has_fallback(result.assertions),
        "messages": others,
        "turns": conversation_of(result.turns),
        "shows_prompt": not messages or bool(others),
        "output": whole_output(result),
        "rendered": rendered_markdown(result.output) if isinstance(result.output, str) else None,
        "media": view.media,
        "usage": usage_rows(result),
        "rating_bars": rating_bars,
        "json_block": json_block,
    }

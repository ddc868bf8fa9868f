"""Markdown of a model as markup that can do nothing: no HTML of its own, no images, links to web pages alone."""

import re
from collections.abc import Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from geval_cli.report.sanitize import sanitized_lines

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

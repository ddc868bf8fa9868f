"""Markdown of a model as markup that can do nothing: no HTML of its own, no images, links to web pages alone."""

import re
from collections.abc import Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from geval_cli.report.sanitize import sanitized_lines

_CHARACTERS_MAX = 50_000
_SIGNS = re.compile(
    r"^ {0,3}(?:#{1,6} |[-*+] |\d{1,9}[.)] |> |```|~~~|\|.*\|)|\*\*\S|__\S|`[^`\n]+`|\]\(|^ {0,3}(?:-{3,}|\*{3,})\s*$",
    re.MULTILINE,
)
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

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        tokens[idx].attrSet("rel", "noopener noreferrer nofollow")
        return self.renderToken(tokens, idx, options, env)


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}, renderer_cls=_Renderer).enable(
        "table"
    )
    # What is refused stays the text that it was.
    parser.validateLink = lambda url: _WEB.match(url.strip()) is not None  # type: ignore[method-assign]
    return parser

"""is-html, contains-html: the output is HTML and nothing else, or there is HTML in it."""

import re
from html.parser import HTMLParser

from geval_cli.assertions.base import Assertion, Subject, Tools
from geval_cli.assertions.outcome import Outcome

_NAMES = (
    "a abbr address area article aside audio b base bdi bdo blockquote body br button canvas caption "
    "cite code col colgroup data datalist dd del details dfn dialog div dl dt em embed fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hgroup hr html i iframe img input "
    "ins kbd label legend li link main map mark math menu meta meter nav noscript object ol optgroup "
    "option output p param picture pre progress q rp rt ruby s samp script search section select "
    "slot small source span strong style sub summary sup svg table tbody td template textarea tfoot "
    "th thead time title tr track u ul var video wbr "
)
_ELEMENTS = frozenset(_NAMES.split())
_VOID = frozenset(
    {
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "param",
        "source",
        "track",
        "wbr",
    }
)
_AROUND = frozenset({"html", "head", "body"})
_XML_DECLARATION = re.compile(r"<\?xml", re.IGNORECASE)


class _Page(HTMLParser):
    """The tags and the text found by reading a text as a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stray_text = ""
        self.has_known_element = False
        self.has_pair = False
        self._open: list[str] = []
        self._had_body = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            self.has_pair = True
            while self._open.pop() != tag:
                pass

    def handle_decl(self, decl: str) -> None:
        self.has_known_element |= decl.lower().startswith("doctype html")

    def handle_data(self, data: str) -> None:
        outside = not any(tag not in _AROUND for tag in self._open) and not self._had_body
        if outside and data.strip() and not self.stray_text:
            self.stray_text = data.strip()

    def _note(self, tag: str) -> None:
        self._had_body |= tag == "body"
        self.has_known_element |= tag in _ELEMENTS or "-" in tag


class HtmlAssertion(Assertion):
    """is-html, contains-html: the output is HTML, or holds some."""

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Read the output as a page would be read: browsers forgive much, and so does this."""
        page = _Page()
        page.feed(subject.text)
        page.close()
        if self.base_type == "contains-html":
            passed = page.has_known_element or page.has_pair
            return Outcome.of(passed, f"there is {'' if passed else 'no '}HTML in the output")
        problem = _why_no_html(subject.text.strip(), page)
        return Outcome.of(not problem, problem or "the output is HTML")


def _why_no_html(text: str, page: _Page) -> str:
    if not text:
        return "the output is empty"
    if _XML_DECLARATION.match(text):
        return "the output is XML"
    if page.stray_text:
        return f'the output has text outside of any element: "{page.stray_text[:60]}"'
    return "" if page.has_known_element else "the output has no HTML element"

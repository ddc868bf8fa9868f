"""is-xml, contains-xml, is-html, contains-html: the output is or contains XML or HTML, with the required elements.

XML that declares its own entities is rejected, so none can expand or read a file.
"""

import asyncio
import re
import sys
from html.parser import HTMLParser
from xml.parsers import expat

from msgspec import Struct, field
from pydantic import AliasChoices, Field

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    Outcome,
    Subject,
    Tools,
    ValueRules,
    check_texts,
    rendered_texts,
    shortened,
)
from geval_cli.assertions.patterns import CHECK_TIMEOUT_S, within
from geval_cli.errors import Problem, Severity

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
_NAME = re.compile(r"[^\W\d][\w:\u00b7-]*")
_OPENING = re.compile(rb"<[A-Za-z_:\x80-\xff][^\s<>/]*")
_DEEPEST = 200  # nested elements
_MOST_TAGS = 100_000  # read in search of XML: after each malformed element, parsing starts over


class _MarkupPage(HTMLParser):
    """The tags and the text found by parsing a text as an HTML page."""

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
    """is-html, contains-html: the output is, or contains, HTML."""

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Parse the output leniently, as browsers do."""
        page = await asyncio.to_thread(within, CHECK_TIMEOUT_S, "reading the HTML", _page_of, subject.text)
        if self.base_type == "contains-html":
            passed = page.has_known_element or page.has_pair
            return Outcome.of(passed, f"there is {'' if passed else 'no '}HTML in the output")
        text = subject.text.strip()
        if not text:
            problem = "the output is empty"
        elif _XML_DECLARATION.match(text):
            problem = "the output is XML"
        elif page.stray_text:
            problem = f'the output has text outside any element: "{page.stray_text[:60]}"'
        else:
            problem = "" if page.has_known_element else "the output has no HTML element"
        return Outcome.of(not problem, problem or "the output is HTML")


def _page_of(text: str) -> _MarkupPage:
    page = _MarkupPage()
    page.feed(text)
    page.close()
    return page


class _RefusedError(Exception):
    """The XML exceeds a limit, or declares entities or elements of its own."""


class _RootClosed(Exception):
    """The first element is complete, so parsing stops. `index` is the parser's byte index at its end tag."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class _Elements(Struct):
    """The paths of all elements parsed so far, and the number of tags allowed."""

    most_tags: int
    paths: set[str] = field(default_factory=set)
    open: list[str] = field(default_factory=list)
    tags: int = 0
    has_content: bool = False

    def start(self, name: str, _: object) -> None:
        self._count_tag()
        if len(self.open) == _DEEPEST:
            raise _RefusedError(f"its elements are nested more than {_DEEPEST} deep")
        self.has_content = bool(self.open)
        self.open.append(name)
        self.paths.add(".".join(self.open))

    def end(self, _: str) -> None:
        self._count_tag()
        self.open.pop()

    def text(self, _: str) -> None:
        self.has_content = True

    def _count_tag(self) -> None:
        self.tags += 1
        if self.tags > self.most_tags:
            raise _RefusedError(f"it has more than {self.most_tags} tags")


class XmlRules(ValueRules):
    """The elements that an XML output must have."""

    required_elements: tuple[str, ...] = Field(
        validation_alias=AliasChoices("requiredElements", "required_elements"),
        description="Required elements with their parents: root.child.",
    )


class XmlAssertion(Assertion):
    """is-xml, contains-xml: well-formed XML with the required elements."""

    value_form = (XmlRules, "the rules of an XML assertion")

    value: str | tuple[str, ...] | XmlRules | None = Field(
        None, description="Required elements with their parents: root.child."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with element names: a template is broken, or no element can have such a name."""
        problems: list[Problem] = []
        if self.value is not None and check_texts(
            _written(self), self.place.child("value"), context, problems
        ):
            for path in rendered_texts(_written(self), context.test, context.templates, split=True):
                if path and not all(map(_NAME.fullmatch, path.split("."))):
                    message = f"no element can be called `{shortened(path, 60)}` ({context.where})"
                    hint = "write element names joined by dots: root.child"
                    at = self.place.value("value")
                    problems.append(Problem(message, at, hint, severity=Severity.WARNING))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Parse the output; the reason says where it is malformed or which elements are missing."""
        if self.value is None:
            required = []
        else:
            required = rendered_texts(_written(self), subject.test, tools.templates, split=True)
        if self.base_type == "contains-xml":
            paths = await asyncio.to_thread(
                within, CHECK_TIMEOUT_S, "parsing the XML", _paths_in, subject.text
            )
            if paths is None:
                return Outcome.of(False, "there is no XML element in the output")
        else:
            try:
                paths = await asyncio.to_thread(
                    within, CHECK_TIMEOUT_S, "parsing the XML", _paths_of, subject.text
                )
            except (expat.ExpatError, _RefusedError) as error:
                return Outcome.of(False, f"the output is not XML: {error}")
        missing = [name for name in required if name and name not in paths]
        if missing:
            return Outcome.of(False, f"the XML has no {shortened(', '.join(missing))}")
        does = "contains" if self.base_type == "contains-xml" else "is"
        return Outcome.of(
            True, f"the output {does} XML" + (" with all required elements" if required else "")
        )


def _written(spec: XmlAssertion) -> str | tuple[str, ...]:
    if isinstance(spec.value, XmlRules):
        return spec.value.required_elements
    return spec.value or ()


def _paths_of(text: str) -> set[str]:
    """Return the paths of all elements in a document.

    Raises:
        expat.ExpatError: it is not well-formed.
        _RefusedError: it declares its own entities or elements, or is nested too deeply.
    """
    elements = _Elements(most_tags=sys.maxsize)
    _parser(elements).Parse(text.strip().encode("utf-8", "replace"), True)
    return elements.paths


def _paths_in(text: str) -> set[str] | None:
    """Return the paths of all XML elements anywhere in a text; None if there are none."""
    data = text.encode("utf-8", "replace")
    found: set[str] | None = None
    position, tags = 0, 0
    while tags < _MOST_TAGS:
        opening = _OPENING.search(data, position)
        if opening is None:
            break
        elements = _Elements(_MOST_TAGS - tags)
        end = _end_of_element(data, opening.start(), elements)
        tags += max(elements.tags, 1)
        if end is None:
            position = opening.end()
        else:
            found = elements.paths if found is None else found | elements.paths
            position = end
    return found


def _end_of_element(data: bytes, start: int, elements: _Elements) -> int | None:
    """Return where the element that begins at `start` ends; None if it is malformed.

    The parser gets the whole rest as one final chunk, and stops itself at the end of the element. Feeding it in pieces
    would not work: newer versions of expat delay parsing a piece until they see more, so they do not show how far they
    are.
    """
    parser = _parser(elements)

    def end(name: str) -> None:
        elements.end(name)
        if not elements.open:
            raise _RootClosed(parser.CurrentByteIndex)

    parser.EndElementHandler = end
    parser.CharacterDataHandler = elements.text
    try:
        parser.Parse(memoryview(data)[start:], True)
    except _RootClosed as closed:
        at = start + closed.index
        # The index is after `<a/>`, but at the beginning of `</a>`.
        is_empty_tag = not elements.has_content and data.endswith(b"/>", start, at)
        return at if is_empty_tag else data.index(b">", at) + 1
    except (expat.ExpatError, _RefusedError):
        pass
    return None


def _parser(elements: _Elements) -> expat.XMLParserType:
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = elements.start
    parser.EndElementHandler = elements.end
    parser.StartDoctypeDeclHandler = _check_doctype
    return parser


def _check_doctype(_name: str, _system: str | None, _public: str | None, has_contents: int) -> None:
    if has_contents:
        raise _RefusedError("it declares its own entities or elements, which geval does not read")

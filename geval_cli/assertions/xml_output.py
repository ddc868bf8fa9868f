"""is-xml, contains-xml: well-formed XML, all of the output or somewhere in it, that has the elements it must have.

No document type is read, so no entity can grow or reach for a file.
"""

import asyncio
import re
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn
from xml.parsers import expat

from msgspec import Struct, field

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, shortened
from geval_cli.assertions.values import check_texts, rendered_texts
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import XmlAssertionSpec, XmlRulesSpec
from geval_cli.errors import Problem

_OPENING = re.compile(r"<[^\W\d][^\s<>/]*")
_DEEPEST = 200  # elements within one another
_MOST_TAGS = 100_000  # that are read in search of XML: from each broken element on, the text is read anew


class _RefusedError(Exception):
    """The XML has what is not read here."""


class _Elements(Struct):
    """The paths of all elements that a parser came by."""

    paths: set[str] = field(default_factory=set)
    open: list[str] = field(default_factory=list)
    is_closed: bool = False

    def start(self, name: str, _: object) -> None:
        if len(self.open) == _DEEPEST:
            raise _RefusedError(f"it has more than {_DEEPEST} elements within one another")
        self.open.append(name)
        self.paths.add(".".join(self.open))

    def end(self, _: str) -> None:
        self.open.pop()
        self.is_closed = not self.open


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the templates in the names of elements."""
    assert isinstance(spec, XmlAssertionSpec)
    problems: list[Problem] = []
    if spec.value is not None:
        check_texts(_written(spec), spec.place.child("value"), context, problems)
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Parse the output; the reason says where it is broken, or which elements are missing."""
    assert isinstance(spec, XmlAssertionSpec)
    required = _required(spec, subject, tools)
    if spec.base_type == "contains-xml":
        paths = await asyncio.to_thread(_paths_in, subject.text)
        if paths is None:
            return Outcome.of(False, "there is no XML element in the output")
    else:
        try:
            paths = await asyncio.to_thread(_paths_of, subject.text)
        except (expat.ExpatError, _RefusedError) as error:
            return Outcome.of(False, f"the output is not XML: {error}")
    missing = [name for name in required if name and name not in paths]
    if missing:
        return Outcome.of(False, f"the XML has no {shortened(', '.join(missing))}")
    does = "contains" if spec.base_type == "contains-xml" else "is"
    return Outcome.of(True, f"the output {does} XML" + (" with all required elements" if required else ""))


def _required(spec: XmlAssertionSpec, subject: Subject, tools: Tools) -> list[str]:
    if spec.value is None:
        return []
    return rendered_texts(_written(spec), subject.test, tools.templates, split=True)


def _written(spec: XmlAssertionSpec) -> str | tuple[str, ...]:
    if isinstance(spec.value, XmlRulesSpec):
        return spec.value.required_elements
    return spec.value or ()


def _paths_of(text: str) -> set[str]:
    """The paths of all elements of a document.

    Raises:
        expat.ExpatError: it is not well-formed.
        _RefusedError: it has a document type with contents of its own.
    """
    elements = _Elements()
    _parser(elements).Parse(text.strip().encode("utf-8", "replace"), True)
    return elements.paths


def _paths_in(text: str) -> set[str] | None:
    """The paths of all elements of all XML in a text, None without any; what surrounds it may be anything."""
    found: set[str] | None = None
    position, tags = 0, 0
    while tags < _MOST_TAGS:
        opening = _OPENING.search(text, position)
        if opening is None:
            break
        elements, end, read = _element_at(text, opening.start(), _MOST_TAGS - tags)
        tags += read
        if end is None:
            position = opening.end()
        else:
            found = elements.paths if found is None else found | elements.paths
            position = end
    return found


def _element_at(text: str, start: int, most_tags: int) -> tuple[_Elements, int | None, int]:
    """The element that begins at `start`, where it ends (None if it is broken), and how many tags were read."""
    elements = _Elements()
    parser = _parser(elements)
    read = 0
    try:
        for chunk, end in islice(_tag_by_tag(text, start), most_tags):
            read += 1
            parser.Parse(chunk, False)
            if elements.is_closed:
                return elements, end, read
    except (expat.ExpatError, _RefusedError):
        pass
    return elements, None, read


def _tag_by_tag(text: str, start: int) -> Iterator[tuple[bytes, int]]:
    """The text in pieces that end with a `>`, so that nothing after the last tag is read with it."""
    while start < len(text):
        end = text.find(">", start) + 1 or len(text)
        yield text[start:end].encode("utf-8", "replace"), end
        start = end


def _parser(elements: _Elements) -> expat.XMLParserType:
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = elements.start
    parser.EndElementHandler = elements.end
    parser.StartDoctypeDeclHandler = _check_doctype
    return parser


def _check_doctype(_name: str, _system: str | None, _public: str | None, has_contents: int) -> None:
    if has_contents:
        _refuse()


def _refuse() -> NoReturn:
    raise _RefusedError("it declares entities or elements of its own, which are not read")

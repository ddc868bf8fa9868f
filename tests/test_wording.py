"""Messages, help and pages are written in plain English: phrases that readers stumbled over do not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.own_code import module_texts, nodes_of

ROOT = Path(__file__).parents[1]

STRANGE = re.compile(
    r"gone on with|go(?:es|ing)? on with|\bmend(?:s|ed)?\b|turned round|nobody knows what|\banew\b|this is none\b"
    r"|f[ae]lls? short|another estimator than|\bhanded in\b|people's labels|labels of people|against people"
    r"|what people sa(?:y|id)|belongs? into|agrees on no|nobody is asked"
    r"|do(?:es)? not go (?:together )?with|passed over|lies? outside|exists already|finished is kept"
    r"|known to differ|say different things|is going on\b|was looked at|nothing comes of it|that is none\b"
    r"|no (?:file|pattern) fits|limits how often|takes a share|holds no\b|belongs to no\b|so many per cent"
    r"|is there twice|would be asked|was asked to stop|of no (?:judge|run)\b|has ended already"
    r"|(?<!there )\bis no (?:address|assertion|folder|image|JSON|label|model|number|path|scale|sheet|suite|tag|text)\b"
    r"|\b(?:judge|parameter|filter|code|server)s? of yours\b",
    re.IGNORECASE,
)

STRANGE_ON_PAGES = re.compile(
    STRANGE.pattern + r"|\bwhom\b|held against|stands there|\bnobody\b|\bsomebody\b|\bof yours\b"
    r"|\b(?:is|are|was|were) asked\b|\bas often as you like\b",
    re.IGNORECASE,
)


def shown_texts(source: str) -> Iterator[tuple[int, str]]:
    """Every text of a module that is no docstring."""
    nodes = nodes_of(source)
    loose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield node.lineno, node.value


def test_messages_are_plain_english() -> None:
    found = [
        f"{name}:{line}: {text}"
        for name, source in module_texts().items()
        for line, text in shown_texts(source)
        if STRANGE.search(text)
    ]
    assert found == []


def test_pages_are_plain_english() -> None:
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    templates = [*(ROOT / "geval_cli").rglob("*.html"), ROOT / "action.yml"]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for paths, strange in ((pages, STRANGE_ON_PAGES), (templates, STRANGE))
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if strange.search(line)
    ]
    assert found == []


def test_the_search_finds_what_it_looks_for() -> None:
    texts = [text for _, text in shown_texts('"""mend docstring"""\nhint = f"mend {x}"\n')]
    assert [bool(STRANGE.search(text)) for text in texts] == [True]


def test_docstrings_say_what_a_thing_is_or_does_in_plain_words() -> None:
    riddle = re.compile(r"(?:What|Whether) ")
    found = [
        f"{name}:{node.body[0].lineno}"
        for name, source in module_texts().items()
        for node in nodes_of(source)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and riddle.match(ast.get_docstring(node) or "")
    ]
    assert found == []

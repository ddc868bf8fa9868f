"""No pattern of geval takes longer than in proportion to a text: answers, files and configs may be hostile."""

import ast
import re
import signal
import time
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[1] / "geval_cli"
USES = ("search", "match", "fullmatch", "sub", "subn", "finditer", "findall", "split")
LENGTH, MOST_S = 4_000, 0.015
"""A linear search in so long a text takes less than a millisecond, a quadratic one longer than `MOST_S`."""
PIECES = (
    *("{{", "{%", "${", "[[", "((", "<", "<a ", "`", '"', "'", "[a](", "**", "#", "|", "\\", "{{ a"),
    *("1", "1,", " ", "\n", " \n", "Score:", "a", "a ", "a.", "a_", ".", "-", "/", "a@", "=", "\u3042"),
)
AFTER_AN_OPENING = [
    (begin, piece) for begin in ("(", "[", "{{", '"', "<a") for piece in ("1", " ", "a", "[", "1 ")
]
KNOWN = {
    "geval_cli.extras.generation.documents._LINK": "at most 500 characters from each bracket",
    "geval_cli.extras.html.file._TAG": "geval's own markup, in which the texts of others are escaped",
    "geval_cli.cli.options._RANGE": "only geval's own help texts",
    "geval_cli.providers.wire.refusals._DURATION_PART": "texts of at most 100 characters",
    "geval_cli.suite.gates.EQUIVALENCE": "texts of at most 500 characters",
    "geval_cli.suite.gates.GATE": "texts of at most 500 characters, and options of the command line",
}
"""Patterns that are slow on some text, and why none is met with it."""


class TooSlowError(Exception):
    """A pattern took more than its share of processor time."""


def patterns_in(path: Path) -> Iterator[str]:
    """Yield the names of a module's constants that are or contain patterns."""
    text = path.read_text(encoding="utf-8")
    for node in ast.parse(text).body if "compile" in text else []:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            calls = [ast.unparse(part.func) for part in ast.walk(node.value) if isinstance(part, ast.Call)]
            if isinstance(target, ast.Name) and {"compile_later", "re.compile"} & {*calls}:
                yield target.id


def flat(value: Any) -> Iterator[Any]:
    if hasattr(value, "fullmatch"):
        yield value
    elif isinstance(value, dict):
        yield from flat([*value, *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from flat(part)


def takes_too_long(use: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether one of three tries is quick: a busy machine can slow a single one."""
    for _ in range(3):
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 5 * MOST_S)
        try:
            found = use(*arguments)
            if isinstance(found, Iterator):
                deque(found, 0)
        except TooSlowError:
            continue
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if time.process_time() - began < MOST_S:
            return False
    return True


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer of the processor's time")
def test_no_pattern_takes_more_than_linear_time_on_hostile_text() -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    paths = sorted(PACKAGE.rglob("*.py"))
    called = re.compile(rf"\b(\w+)(?:\[\w+\])?\.({'|'.join(USES)})\b")
    uses_of: dict[tuple[Path | None, str], set[str]] = {}
    for path in paths:
        for name, use in called.findall(path.read_text(encoding="utf-8")):
            uses_of.setdefault((path if name.startswith("_") else None, name), set()).add(use)
    before = signal.signal(signal.SIGPROF, stop)
    slow: dict[str, list[str]] = {}
    count = 0
    try:
        for path in paths:
            for name in patterns_in(path):
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
                    ".__init__"
                )
                for pattern in (
                    [] if f"{module}.{name}" in KNOWN else flat(getattr(import_module(module), name))
                ):
                    count += 1
                    for begin, piece in (*(("", piece) for piece in PIECES), *AFTER_AN_OPENING):
                        text: Any = begin + piece * (LENGTH // len(piece)) + "!"
                        if isinstance(getattr(pattern, "pattern", ""), bytes):
                            text = text.encode()
                        home = path if name.startswith("_") else None
                        for use in uses_of.get((home, name), {"fullmatch"}):
                            arguments = (text[:0], text) if use in ("sub", "subn") else (text,)
                            if takes_too_long(getattr(pattern, use), arguments):
                                slow.setdefault(f"{module}.{name}", []).append(f"{use} {begin}{piece!r}")
    finally:
        signal.signal(signal.SIGPROF, before)
    assert count > 300
    assert slow == {}

"""Patterns that wait to be compiled: they find what others find, and no mistake in one waits for a user."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from geval_cli.patterns import compile_later

PACKAGE = Path(__file__).parents[1] / "geval_cli"


def test_it_finds_what_a_compiled_pattern_finds() -> None:
    later, at_once = compile_later(r"(?P<name>[a-z]+)", re.IGNORECASE), re.compile(r"[A-Za-z]+")
    found = later.search("12 Apples")
    assert found is not None
    assert found["name"] == "Apples"
    assert later.findall("a, B") == at_once.findall("a, B")
    assert later.sub("-", "a, B") == at_once.sub("-", "a, B")
    assert later.pattern == r"(?P<name>[a-z]+)"


def test_it_is_compiled_at_the_first_use() -> None:
    broken = compile_later("(")
    with pytest.raises(re.error):
        broken.search("")


def test_what_was_asked_of_it_stays() -> None:
    later = compile_later("a")
    assert later.search is later.search


def names_of_patterns(path: Path) -> list[str]:
    return re.findall(r"^(\w+) = compile_later\(", path.read_text(encoding="utf-8"), re.MULTILINE)


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if names_of_patterns(path)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_pattern_of_a_module_compiles(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    module = import_module(name)
    assert all(getattr(module, pattern).pattern for pattern in names_of_patterns(path))

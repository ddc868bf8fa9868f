"""The pages about the code name modules, functions, files and make targets that exist."""

import ast
import re
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from support.own_code import module_texts, nodes_of
from test_architecture import ROOMS, level_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "geval_cli"
PAGES = ("docs/internals/architecture.md", "docs/internals/decisions.md", "CONTRIBUTING.md")
TREE = re.compile(r"^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_FILES = re.compile(r"^[.~]?/|^\.(?:geval|venv)/|[<>*{}A-Z ]")
"""Paths of users' machines, and paths with a part that the reader chooses."""

NOT_OURS = {"GEVAL_HOME", "Struct"}
"""A name that the code has as text, and one of msgspec's."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_in(text: str) -> list[str]:
    """What stands in backticks outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


@cache
def names_in(path: Path) -> frozenset[str]:
    """Every function, class, constant and field that a file defines."""
    found: set[str] = set()
    text = path.read_text(encoding="utf-8")
    for node in nodes_of(text) if PACKAGE in path.parents else ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


@cache
def all_files() -> dict[str, list[Path]]:
    """All Python files by their names."""
    found: dict[str, list[Path]] = {}
    for path in chain(PACKAGE.rglob("*.py"), (ROOT / "tests").rglob("*.py")):
        found.setdefault(path.name, []).append(path)
    return found


@cache
def is_defined(name: str) -> bool:
    """Whether any file defines it. Only those that have it in their text are taken apart."""
    return any(
        name in path.read_text(encoding="utf-8") and name in names_in(path)
        for path in chain(*all_files().values())
    )


def missing(text: str) -> list[str]:
    """Return what stands in backticks as a name of our code, and is not there."""
    return [word for word in code_in(text) if not _exists(word)]


def _exists(word: str) -> bool:
    if re.fullmatch(r"(\w+\.)*\w+(\(\))?", word):
        parts = word.removesuffix("()").split(".")
        if (PACKAGE / parts[0]).is_dir() and len(parts) > 1:
            return _is_in_a_room(parts)
        if word.endswith("()") or re.fullmatch(r"[A-Z]\w*[a-z]\w*|[A-Z]+_[A-Z_]+", parts[0]):
            return all(part in NOT_OURS or is_defined(part) for part in parts)
    if re.fullmatch(r"[\w.-]+/[\w./-]*", word) and not NOT_FILES.search(word):
        return _is_file(word)
    if re.fullmatch(r"\w+\.py", word):
        return word in all_files()
    return True


def _is_file(name: str) -> bool:
    """Whether a path leads to something from the top, from the package, from the tests, or from a room."""
    starts = (ROOT, PACKAGE, ROOT / "tests", *(path for path in PACKAGE.iterdir() if path.is_dir()))
    return any((start / name).exists() for start in starts)


def _is_in_a_room(parts: list[str]) -> bool:
    """Whether `room.module`, `room.module.name` or a longer path leads to something."""
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:length])
        if path.with_suffix(".py").is_file():
            return set(parts[length:]) <= names_in(path.with_suffix(".py"))
        if path.is_dir():
            return length == len(parts)
    return False


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert missing(text_of(page)) == []


def test_what_is_not_there_is_found() -> None:
    text = "`runs.preparing`, `prepare_nothing()`, `engine/none.py`, `NoSuchClass`, `Plan.no_field`, `docs/none.md`"
    assert missing(text) == code_in(text)
    assert missing("`runs.prepare.prepare`, `prepare()`, `engine/plan.py`, `Plan.queues`, `aiohttp`") == []


def test_the_pages_that_the_code_names_are_there() -> None:
    named = {
        (module, page)
        for module, text in module_texts().items()
        for page in re.findall(r"(?<![\w/])(?:docs/[\w/-]+|[A-Z]+)\.md\b", text)
    }
    assert len(named) > 10
    assert [(module, page) for module, page in sorted(named) if not (ROOT / page).is_file()] == []


def test_the_tree_is_the_list_of_rooms_lowest_first() -> None:
    tree, extras = TREE.findall(text_of("docs/internals/architecture.md"))
    rooms = re.findall(r"^(\w+)(?:\.py|/) ", tree, re.MULTILINE)
    assert sorted(rooms) == sorted(set().union(*ROOMS))
    assert rooms == sorted(rooms, key=level_of)
    inside = re.findall(r"(?<![\w/])(\w+(?:/|\.py))(?=[ :;,])", tree)
    assert [name for name in inside if not list(PACKAGE.glob(name)) + list(PACKAGE.glob(f"*/{name}"))] == []
    named = re.findall(r"^(\w+(?:\.py|/)) ", extras, re.MULTILINE)
    folder = PACKAGE / "extras"
    there = {
        *(f"{path.parent.name}/" for path in folder.glob("*/__init__.py")),
        *(path.name for path in folder.glob("*.py")),
    }
    apart = set(named) ^ (there - {"__init__.py"})
    assert apart == set(), "the list of extras in docs/internals/architecture.md has to name what is there"


def test_the_reason_for_every_dependency_is_given() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    needed = {re.split(r"[<>=;\[]", line)[0] for line in (*project["dependencies"], *extras)}
    table = text_of("docs/internals/decisions.md").partition("## Dependencies")[2]
    named = {
        name.replace("backports.zstd", "backports-zstd")
        for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
        for name in re.split(r",? (?:\([^)]*\))?|, ", row)
    }
    assert needed - named == set()

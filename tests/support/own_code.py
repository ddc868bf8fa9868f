"""The source of geval's modules for tests that check coding rules; each is read and parsed once."""

import ast
import gc
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "geval_cli"


@cache
def module_texts() -> dict[str, str]:
    """Return the text of every module, by its path below the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's syntax tree, starting with the module itself."""
    gc.disable()  # there is no garbage, and collecting would take longer than parsing
    try:
        return tuple(ast.walk(ast.parse(source)))
    finally:
        gc.enable()

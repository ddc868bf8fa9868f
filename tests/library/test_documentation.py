"""The examples in docs/reference/library.md run, in their order, and print what their comments say."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer

import geval_cli
from geval_cli import GEval, Result

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PROMISE = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)


def run_block(source: str, names: dict[str, Any]) -> None:
    code = compile(source, "docs/reference/library.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def test_every_example_prints_what_it_says(
    server: LoopbackServer, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    for block in BLOCKS:
        run_block(block, names)
        assert capsys.readouterr().out.split() == " ".join(PROMISE.findall(block)).split()


def test_there_are_examples_with_promises() -> None:
    assert len(BLOCKS) > 10
    assert len(PROMISE.findall(PAGE)) > 15


def test_the_signature_on_the_page_is_the_real_one() -> None:
    shown = " ".join(re.findall(r"`GEval\((name.*?)\)`", PAGE, re.DOTALL)[0].split())
    parameters = inspect.signature(GEval).parameters.values()
    assert shown == ", ".join(
        item.name if item.default is item.empty else f"{item.name}={_literal(item.default)}"
        for item in parameters
    )


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def test_every_public_name_and_field_is_on_the_page() -> None:
    public = {name for name in geval_cli.__all__ if not name.startswith("_")}
    assert {name for name in public if name not in PAGE} == set()
    assert {name for name in Result.__dataclass_fields__ if f"| `{name}` |" not in PAGE} == set()

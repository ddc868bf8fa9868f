import json
from pathlib import Path
from typing import Any

import pytest
from support.calls import run

from geval_cli.extras.programs.scripting.code import Code, CodeError, Language, check_python, find_code
from geval_cli.extras.programs.scripting.scripts import Scripts
from geval_cli.source.access import TRUSTED
from geval_cli.source.command import ScriptCrashError, ScriptError, ScriptTimeoutError


def results(folder: Path, *codes: Code, limit_s: float = 60) -> list[Any]:
    """What each code gives, or the error that it raises."""

    async def body() -> list[Any]:
        scripts = Scripts(folder, TRUSTED, python_limit_s=limit_s)
        found: list[Any] = []
        for code in codes:
            try:
                found.append(await scripts.call(code, {"output": "hello", "context": {"vars": {"x": 1}}}))
            except ScriptError as error:
                found.append(error)
        await scripts.aclose()
        await scripts.aclose()
        return found

    return run(body())


def python(text: str) -> Code:
    return Code(Language.PYTHON, text)


def test_snippets_give_values(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("answer = 42", encoding="utf-8")
    texts = {
        "len(output) > 3": True,
        "context['vars']['x'] + 1": 2,
        "import math\nreturn math.floor(2.5)": 2,
        "if output:\n    return {'pass': True}\nreturn False": {"pass": True},
        "  x = 1\n  x + 1": 2,
        "'''a\n  b'''": "a\n  b",
        "assert output": None,
        "print('not an answer'); 3": 3,
        "def inner(): return 4\ninner()": 4,
        "import asyncio\nawait asyncio.sleep(0)\nreturn 5": 5,
        "json.loads('[1]')": [1],
        "import own\nown.answer": 42,
        "import os, sys\nos.write(1, b'{}\\n')\nsys.stdin.read()": "",
    }
    assert results(tmp_path, *map(python, texts)) == list(texts.values())


def test_values_of_numpy_are_plain_ones(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    codes = {
        "numpy.float64(1) > 0": True, "numpy.bool_(False)": False, "numpy.float32(0.5)": 0.5, "numpy.int64(3)": 3,
        "{'pass': numpy.all([1, 0]), 'score': numpy.mean([0, 1])}": {"pass": False, "score": 0.5},
        "numpy.array([1, 2])": [1, 2],
    }  # fmt: skip
    found = results(tmp_path, *(python(f"import numpy\n{code}") for code in codes))
    assert [json.dumps(one) for one in found] == [json.dumps(one) for one in codes.values()]


def test_errors_of_snippets_are_told(tmp_path: Path) -> None:
    codes = ["1 / 0", "assert 1 == 2, 'no'", "{1}", "undefined_name", "raise SystemExit(3)"]
    words = [
        "ZeroDivisionError",
        "AssertionError: no",
        "not a JSON value",
        "NameError",
        "SystemExit: 3",
    ]
    found = results(tmp_path, *map(python, codes))
    for error, word in zip(found, words, strict=True):
        assert isinstance(error, ScriptError)
        assert word in str(error)


def test_a_process_that_dies_or_hangs_is_replaced(tmp_path: Path) -> None:
    codes = ["import os; os._exit(3)", "import time; time.sleep(60)", "1"]
    crashed, late, good = results(tmp_path, *map(python, codes), limit_s=3)
    assert isinstance(crashed, ScriptCrashError)
    assert isinstance(late, ScriptTimeoutError)
    assert good == 1


def test_functions_of_files(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(
        "def get_assert(output, context): return output == 'hello'\n"
        "def short(output): return len(output)\n"
        "async def late(output, context): return context['vars']\n"
        "class Group:\n    @staticmethod\n    def inner(output): return 'in'\n",
        encoding="utf-8",
    )
    (tmp_path / "checks.mjs").write_text("export const size = (output) => output.length", encoding="utf-8")
    names = ["checks.py", "checks.py:short", "checks.py:late", "checks.py:Group.inner", "checks.mjs:size"]
    codes = [find_code(f"file://{name}", tmp_path, Language.JAVASCRIPT, TRUSTED) for name in names]
    assert results(tmp_path, *codes) == [True, 5, {"x": 1}, "in", 5]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("file://absent.py", "cannot be read"),
        ("file://", "not a JavaScript or Python file"),
        ("file://notes.txt", "not a JavaScript or Python file"),
        ("file://checks.ts", "TypeScript"),
        ("file://folder.py", "is not a file"),
        ("file://latin.py", "not UTF-8"),
        ("  ", "there is no code"),
        ("file://a\0b.py", "null character"),
    ],
)
def test_code_that_is_not_there(tmp_path: Path, written: str, message: str) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "latin.py").write_bytes(b"# \xe9")
    with pytest.raises(CodeError, match=message):
        find_code(written, tmp_path, Language.PYTHON, TRUSTED)


def test_broken_python_is_found_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text("def other(): pass\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("x = 1\ndef (:\n", encoding="utf-8")
    check_python(python("assert output"), "get_assert", TRUSTED)
    check_python(
        find_code("file://checks.py:other", tmp_path, Language.PYTHON, TRUSTED), "get_assert", TRUSTED
    )
    with pytest.raises(CodeError, match="no function `get_assert`"):
        check_python(find_code("file://checks.py", tmp_path, Language.PYTHON, TRUSTED), "get_assert", TRUSTED)
    with pytest.raises(CodeError, match="syntax error") as caught:
        check_python(find_code("file://broken.py", tmp_path, Language.PYTHON, TRUSTED), "get_assert", TRUSTED)
    assert caught.value.line == 2
    with pytest.raises(CodeError, match="syntax error"):
        check_python(python("return ("), "get_assert", TRUSTED)


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "checks.js"
    path.write_text("module.exports = () => 1", encoding="utf-8")
    first = find_code("file://checks.js", tmp_path, Language.JAVASCRIPT, TRUSTED)
    path.write_text("module.exports = () => 2222", encoding="utf-8")
    second = find_code("file://checks.js", tmp_path, Language.JAVASCRIPT, TRUSTED)
    assert (first.text, second.text) == ("module.exports = () => 1", "module.exports = () => 2222")

"""What JavaScript finds besides the language: its values are those that Node 20 gives."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geval_cli.extras.programs.scripting.code import Code, Language, ScriptLimitError
from geval_cli.extras.programs.scripting.javascript import call_javascript_now

ROWS: list[list[str]] = json.loads(
    Path(__file__).with_name("javascript_platform.json").read_text(encoding="utf-8")
)
EACH = "(expressions) => expressions.map((text) => String((0, eval)(text)))"


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_values_are_those_of_node() -> None:
    expressions = [row[0] for row in ROWS]
    code = Code(Language.JAVASCRIPT, f"({EACH})(expressions)")
    found = call_javascript_now(code, {"expressions": list(expressions)})
    assert isinstance(found, list)
    assert [list(row) for row in zip(expressions, found, strict=True)] == ROWS


def test_node_gives_these_values() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if not version.startswith("v20."):
        pytest.skip(f"the values are those of Node 20, and there is {version.strip()}")
    program = f"console.log(JSON.stringify(({EACH})({json.dumps([row[0] for row in ROWS])})))"
    done = subprocess.run([node, "-e", program], env={"TZ": "UTC"}, capture_output=True, check=True)
    assert json.loads(done.stdout) == [row[1] for row in ROWS]


@pytest.mark.parametrize(
    "text",
    [
        "(5).toLocaleString('fr')",
        "(5).toLocaleString('en-US', { notation: 'compact' })",
        "(5).toLocaleString('en-US', { style: 'unit', unit: 'mile' })",
        "new Date(0).toLocaleDateString('en-GB')",
        "new Date(0).toLocaleTimeString('en-US', { timeZoneName: 'short' })",
        "new Date(0).toLocaleTimeString('en-US', { timeStyle: 'full' })",
        "new Intl.RelativeTimeFormat('en')",
        "Intl.DateTimeFormat().resolvedOptions()",
        "'a'.localeCompare('b', 'de')",
        "new URL('http://m\u00fcller.de/')",
        "new URL('http://[2001:db8::1]/')",
        "new TextDecoder('shift_jis')",
    ],
)
def test_what_would_be_another_value_than_node_s_is_an_error(text: str) -> None:
    with pytest.raises(ScriptLimitError, match="not available"):
        call_javascript_now(Code(Language.JAVASCRIPT, text), {})


@pytest.mark.parametrize("text", ["typeof refuse", "/* URL */ typeof refuse"])
def test_nothing_of_how_it_is_made_is_left(text: str) -> None:
    assert call_javascript_now(Code(Language.JAVASCRIPT, text), {}) == "undefined"

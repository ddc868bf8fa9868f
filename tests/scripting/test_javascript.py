import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.calls import run

from geval_cli.extras.programs.scripting.code import Code, CodeError, Language, ScriptLimitError
from geval_cli.extras.programs.scripting.javascript import (
    JavaScriptEngine,
    JavaScriptLimits,
    call_javascript_now,
    check_javascript,
)
from geval_cli.records import JsonValue
from geval_cli.source.command import ScriptError, ScriptTimeoutError

NAMES = ("output", "context")
QUICK = JavaScriptLimits(memory_bytes=32 * 1024 * 1024, time_s=0.2, wall_s=20)
AT_ONCE = replace(QUICK, time_s=0.05)


@pytest.fixture
def engine() -> Iterator[JavaScriptEngine]:
    engine = JavaScriptEngine(QUICK)
    yield engine
    engine.close()
    engine.close()


def snippet(text: str) -> Code:
    return Code(Language.JAVASCRIPT, text)


def file(text: str, function: str = "") -> Code:
    return Code(Language.JAVASCRIPT, text, Path("checks.js"), function)


def result(engine: JavaScriptEngine, code: Code, output: JsonValue = "hello") -> JsonValue:
    return run(engine.call(code, {"output": output, "context": {"vars": {"x": 1}}}))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("output.length > 3", True),
        ("output.length > 3;", True),
        ("output.length // how long", 5),
        ("// how long\noutput.length", 5),
        ("const n = output.length; n + 1", 6),
        ("if (output) { return 'yes' }\nreturn 'no'", "yes"),
        ("let n = 0\nfor (const c of output) n++\nreturn n", 5),
        ("let n = 0\nfor (const c of output) n++\nn", 5),
        ("(output, context) => context.vars.x", 1),
        ("async (output) => output.length", 5),
        ("Promise.resolve(7).then((n) => n + 1)", 8),
        ("{pass: true, score: 1}", {"pass": True, "score": 1}),
        ("undefined", None),
        ("null", None),
        ("10n", 10),
        ("10n ** 30n", "1" + "0" * 30),
        ("console.log('seen'), 1", 1),
        ("'a\\0b \\ud83d\\ude00 \\ud800'", "a\0b 😀 \ufffd"),
        ("[1, {a: undefined, b: NaN}]", [1, {"b": None}]),
    ],
)
def test_snippets_give_values(engine: JavaScriptEngine, text: str, wanted: JsonValue) -> None:
    check_javascript(snippet(text), NAMES)
    assert result(engine, snippet(text)) == wanted


def test_values_go_in_as_they_are(engine: JavaScriptEngine) -> None:
    value = {"text": "a\0b 😀 `${x}` </script>\u2028", "list": [1, 2.5, None, True], "__proto__": 3}
    assert result(engine, snippet("output"), value) == value


@pytest.mark.parametrize(
    ("text", "function", "wanted"),
    [
        ("module.exports = (output, context) => output.length + context.vars.x", "", 6),
        ("module.exports = { long: (output) => output.length > 2 }", "long", True),
        ("exports.default = (output) => 4", "", 4),
        ("export default async function (output) { return 8 }", "", 8),
        ("export default (output) => 8", "", 8),
        ("export const long = (output) => 9\nexport function short() { return 1 }", "long", 9),
        ("export const long = (output) => 9\nexport function short() { return 1 }", "short", 1),
        ("function mine() { return 3 }\nexport { mine as yours }", "yours", 3),
        ("module.exports = { a: { b: () => 5 } }", "a.b", 5),
    ],
)
def test_files_export_functions(
    engine: JavaScriptEngine, text: str, function: str, wanted: JsonValue
) -> None:
    check_javascript(file(text, function), NAMES)
    assert result(engine, file(text, function)) == wanted


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (snippet("output.a.b"), "TypeError: cannot read property 'b' of undefined (line 1)"),
        (snippet("\nconst a = 1\nreturn output.a.b"), "(line 3)"),
        (file("const a = 1\n\nmodule.exports = (o) => o.a.b"), "(line 3)"),
        (snippet("throw new RangeError('too far')"), "RangeError: too far"),
        (snippet("throw 'a text'"), "a text"),
        (snippet("throw null"), "null"),
        (snippet("Promise.reject(new Error('late'))"), "late"),
        (snippet("new Promise(() => {})"), "a promise that is never settled"),
        (snippet("const a = []; a.push(a); a"), "circular"),
        (snippet("Symbol('x')"), "it returned a symbol"),
        (snippet("function f() { return f() }; f()"), "call stack"),
        (file("module.exports = 3"), "exports no function"),
        (file("module.exports = () => 3", "other"), "exports no function `other`"),
    ],
)
def test_what_goes_wrong_is_told(engine: JavaScriptEngine, code: Code, message: str) -> None:
    with pytest.raises(ScriptError) as caught:
        result(engine, code)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "require('fs')",
        "process.env.HOME",
        "process.mainModule.require('child_process')",
        "fetch('http://127.0.0.1/')",
        "setTimeout(() => 1, 5)",
        "new Blob(['x'])",
        "crypto.randomUUID()",
        "new Intl.PluralRules('en')",
        "(5).toLocaleString('de-DE')",
        "new Date(0).toLocaleString('en-US', { timeZone: 'Asia/Tokyo' })",
        "new URL('http://m\u00fcller.de/')",
    ],
)
def test_nothing_outside_can_be_reached(engine: JavaScriptEngine, text: str) -> None:
    with pytest.raises(ScriptLimitError):
        result(engine, snippet(text))


def test_the_engine_knows_no_way_out(engine: JavaScriptEngine) -> None:
    known = result(engine, snippet("Object.getOwnPropertyNames(globalThis)"))
    assert isinstance(known, list)
    assert not {"std", "os", "bjs", "print", "scriptArgs", "fetch", "Worker", "gc"} & set(known)
    with pytest.raises(ScriptError):
        result(engine, snippet("import('os').then((m) => m.getcwd())"))


@pytest.mark.parametrize(
    "text",
    [
        "while (true) {}",
        "try { while (true) {} } catch { 1 } finally { while (true) {} }",
        "/(a+)+$/.test('a'.repeat(40) + 'b')",
        "Promise.resolve().then(() => { while (true) {} })",
        "Array.prototype.indexOf.call({ length: 2 ** 53 - 1 }, 1)",
        "/^(a+)+$/.test('a'.repeat(40) + '!')",
        "'a'.repeat(4e6).indexOf('a'.repeat(1e6) + 'b')",
        "'a'.repeat(5e6).replace(/(?=a)/g, '') + 'a'.repeat(4e6).lastIndexOf('a'.repeat(1e6) + 'b')",
        "[...Array(2e5).keys()].sort((x, y) => { while (true) {} })",
        "JSON.stringify({ get x() { while (true) {} } })",
        "JSON.stringify({ toJSON() { while (true) {} } })",
        "`${{ toString() { while (true) {} } }}`",
        "({ pass: true, get score() { while (true) {} } })",
        "new Proxy({}, { ownKeys() { while (true) {} } })",
        "Array.from({ get length() { while (true) {} } })",
        "output.replace(/l/g, () => { while (true) {} })",
        "Promise.reject({ get message() { while (true) {} } })",
        "for (;;) { try { while (true) {} } catch { continue } }",
    ],
)
def test_endless_code_is_stopped(text: str) -> None:
    with contextlib.closing(JavaScriptEngine(AT_ONCE)) as engine:
        with pytest.raises(ScriptTimeoutError):
            result(engine, snippet(text))
        assert result(engine, snippet("1")) == 1


def test_code_for_which_others_stand_still_has_the_same_limits() -> None:
    slow = snippet("'a'.repeat(4e6).indexOf('a'.repeat(1e6) + 'b')")
    for limits in (JavaScriptLimits(time_s=0.1), JavaScriptLimits(wall_s=0.3)):
        with pytest.raises(ScriptTimeoutError):
            call_javascript_now(slow, {}, limits)
        assert call_javascript_now(snippet("7"), {}, limits) == 7


def test_promises_without_end_are_given_up() -> None:
    engine = JavaScriptEngine(JavaScriptLimits(wall_s=0.3))
    with pytest.raises(ScriptTimeoutError):
        result(engine, snippet("(async () => { while (true) await 0 })()"))
    engine.close()


@pytest.mark.parametrize(
    "text", ["'x'.repeat(1e9)", "const a = []; while (true) a.push('x'.repeat(1e5) + a.length)"]
)
def test_memory_is_limited(text: str) -> None:
    engine = JavaScriptEngine(JavaScriptLimits(memory_bytes=16 * 1024 * 1024))
    with pytest.raises(ScriptLimitError, match="memory"):
        result(engine, snippet(text))
    engine.close()


def test_calls_share_nothing(engine: JavaScriptEngine) -> None:
    assert result(engine, snippet("globalThis.kept = 1; String.prototype.x = 2; 1")) == 1
    assert result(engine, snippet("typeof kept + typeof ''.x")) == "undefinedundefined"


def test_the_event_loop_goes_on_while_code_runs() -> None:
    """A loop that never ends is interrupted by the loop's own clock: it would not be if the call blocked it."""

    async def body() -> int:
        engine, ticks = JavaScriptEngine(QUICK), 0
        call = asyncio.ensure_future(engine.call(snippet("while (true) {}"), {"output": ""}))
        while not call.done():
            ticks += 1
            await asyncio.sleep(0)
        with pytest.raises(ScriptTimeoutError):
            call.result()
        engine.close()
        return ticks

    assert run(body()) > 10


def test_threads_end_with_the_engine() -> None:
    async def body() -> None:
        engine = JavaScriptEngine(size=3)
        await asyncio.gather(*(engine.call(snippet("output"), {"output": n}) for n in range(20)))
        engine.close()

    before = set(threading.enumerate())
    run(body())
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert set(threading.enumerate()) <= before


def test_a_cancelled_call_leaves_the_engine_usable() -> None:
    async def body() -> JsonValue:
        engine = JavaScriptEngine(QUICK, size=1)
        call = asyncio.ensure_future(engine.call(snippet("while (true) {}"), {"output": ""}))
        await asyncio.sleep(0)
        call.cancel()
        found = await engine.call(snippet("2"), {"output": ""})
        engine.close()
        return found

    assert run(body()) == 2


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        (snippet("output.length ==="), "SyntaxError", 1),
        (snippet("let x = ;"), "SyntaxError", 1),
        (snippet("const a = 1\nreturn a b"), "SyntaxError", 2),
        (file("const a = 1\n\nmodule.exports = ("), "SyntaxError", 3),
        (snippet("const fs = require('fs')\nreturn fs"), "loads a module", None),
        (file("import fs from 'fs'\nexport default () => 1"), "loads a module", None),
        (snippet("process.mainModule.require('fs')"), "loads a module", None),
        (file("() => true"), "checks.js exports no function$", None),
        (file("// module.exports = 1\nfunction f() {}"), "checks.js exports no function$", None),
        (file("module.exports = { f: () => 1 }", "g"), "checks.js exports no function `g`", None),
        (file("export const f = () => 1", "a.g"), "checks.js exports no function `a.g`", None),
    ],
)
def test_broken_code_is_found_before_it_runs(code: Code, message: str, line: int | None) -> None:
    with pytest.raises(CodeError, match=message) as caught:
        check_javascript(code, NAMES)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "code",
    [
        file("module.exports = () => 1"),
        file("export default () => 1"),
        file("module.exports = { f: () => 1 }", "f"),
        file("export const a = { f: () => 1 }", "a.f"),
        file("exports['f'] = () => 1", "f"),
        file("for (const n of ['f' + 1]) exports[n] = () => 1", "f1"),
        file("exports.$g = () => 1", "$g"),
    ],
)
def test_a_function_that_a_file_exports_is_found(engine: JavaScriptEngine, code: Code) -> None:
    check_javascript(code, NAMES)
    assert result(engine, code) == 1


def test_words_in_texts_and_comments_ask_for_nothing() -> None:
    check_javascript(snippet("// require('fs')\noutput.includes(\"require('fs')\")"), NAMES)


@pytest.mark.parametrize("value", ["true", "1", "'a'", "null", "undefined", "{pass: true}", "[1]", "() => 1"])
@pytest.mark.parametrize(
    "form",
    [
        "NAME = VALUE; return output === 'never'",
        "NAME = VALUE\nreturn Promise.resolve(0).then(() => output === 'never')",
        "(async () => { NAME = VALUE; await null; await null; return output === 'never' })()",
    ],
)
def test_code_may_name_its_variables_as_it_likes(engine: JavaScriptEngine, form: str, value: str) -> None:
    for name in ("outcome", "result", "job", "run", "check", "code", "refuse", "found", "tell", "names"):
        text = form.replace("NAME", name).replace("VALUE", value)
        assert result(engine, snippet(text)) is False, text


@pytest.mark.parametrize(
    "written", ["1", "true", "{}", "'1'", "'{}'", "'[]'", "'null'", "'{\"type\": 1}'", "() => 1"]
)
def test_a_result_that_code_forges_is_an_error_and_the_next_call_is_answered(
    engine: JavaScriptEngine, written: str
) -> None:
    forged = snippet(f"globalThis['geval outcome'] = {written}; for (const n of [1]) throw n")
    with contextlib.suppress(ScriptError):  # what was thrown, or what cannot be read
        result(engine, forged)
    with contextlib.suppress(ScriptError):
        result(engine, snippet(f"globalThis['geval outcome'] = {written}; return new Promise(() => 1)"))
    assert result(engine, snippet("output.length")) == 5

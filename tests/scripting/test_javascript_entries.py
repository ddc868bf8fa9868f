"""What of a JavaScript file is called: its function, what makes tests, or a provider's `callApi`."""

from pathlib import Path

import pytest
from support.calls import run

from geval_cli.extras.programs.scripting.code import Code, Language, ScriptLimitError
from geval_cli.extras.programs.scripting.javascript import Entry, JavaScriptEngine, call_javascript_now
from geval_cli.records import JsonValue
from geval_cli.source.command import ScriptError


def file(text: str, function: str = "") -> Code:
    return Code(Language.JAVASCRIPT, text, Path("x.js"), function)


def made_by(text: str, function: str = "", **arguments: JsonValue) -> JsonValue:
    return call_javascript_now(file(text, function), arguments, entry=Entry.TESTS)


def answer_of(text: str, function: str = "") -> JsonValue:
    engine = JavaScriptEngine()
    try:
        options = {"id": "file://x.js", "config": {"mark": "!"}}
        arguments = {"prompt": "hi", "context": {"vars": {"who": "Ada"}}, "options": options}
        return run(engine.call(file(text, function), arguments, entry=Entry.PROVIDER))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("module.exports = () => [{ vars: { n: 1 } }];", ""),
        ("module.exports = async () => [{ vars: { n: 1 } }];", ""),
        ("module.exports = [{ vars: { n: 1 } }];", ""),
        ("export default [{ vars: { n: 1 } }];", ""),
        ("export default function () { return [{ vars: { n: 1 } }]; }", ""),
        ("export async function make() { return [{ vars: { n: 1 } }]; }", "make"),
        ("exports.make = () => [{ vars: { n: 1 } }];", "make"),
    ],
)
def test_tests_are_made_by_functions_or_exported_themselves(text: str, function: str) -> None:
    assert made_by(text, function) == [{"vars": {"n": 1}}]


def test_a_maker_of_tests_gets_its_config() -> None:
    assert made_by("module.exports = ({ count }) => Array(count).fill({});", config={"count": 2}) == [{}, {}]


def test_a_file_that_makes_no_tests_says_what_to_write() -> None:
    with pytest.raises(ScriptLimitError, match=r"write module\.exports = \(\) => \[\{ vars"):
        made_by("module.exports = 7;")


_BODY = "callApi(p, c) { return { output: p + c.vars.who + this.o.config.mark }; }"
_CONSTRUCTOR = "constructor(o) { this.o = o; }"


@pytest.mark.parametrize(
    ("text", "function"),
    [
        (f"module.exports = class {{ {_CONSTRUCTOR} async {_BODY} }};", ""),
        (f"export default class Answer {{ {_CONSTRUCTOR} id() {{ return 'x'; }} {_BODY} }}", ""),
        (
            f"function Old(o) {{ this.o = o; }}\nOld.prototype.callApi = {{ {_BODY} }}.callApi;\nmodule.exports = Old;",
            "",
        ),
        ("module.exports = { callApi: (p, c, o) => ({ output: p + c.vars.who + o.config.mark }) };", ""),
        ("module.exports = async (p, c, o) => ({ output: p + c.vars.who + o.config.mark });", ""),
        (f"export class Named {{ {_CONSTRUCTOR} {_BODY} }}", "Named"),
    ],
)
def test_providers_are_classes_objects_and_functions(text: str, function: str) -> None:
    assert answer_of(text, function) == {"output": "hiAda!"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module.exports = class { async callApi() { return await fetch('http://x'); } };", "fetch"),
        ("module.exports = class { callApi() { return process.env.KEY; } };", "process is not available"),
        ("module.exports = class { callApi() { setTimeout(() => {}, 1); } };", "setTimeout"),
        ("module.exports = 7;", "callApi"),
    ],
)
def test_what_the_engine_does_not_have_is_an_error_of_its_own(text: str, message: str) -> None:
    with pytest.raises(ScriptLimitError, match=message):
        answer_of(text)


def test_what_a_provider_throws_is_told() -> None:
    with pytest.raises(ScriptError, match="no luck"):
        answer_of("module.exports = class { callApi() { throw new Error('no luck'); } };")

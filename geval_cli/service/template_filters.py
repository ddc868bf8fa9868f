"""The filters of templates that a config brings: JavaScript that is run while a template is rendered."""

from collections.abc import Callable, Iterator

from msgspec import Struct

from geval_cli.config.promptfoo.template_filter import TemplateFilter
from geval_cli.config.suite import Suite
from geval_cli.errors import Problem
from geval_cli.records import JsonValue
from geval_cli.scripting.code import Code, CodeError, Language, find_code
from geval_cli.scripting.javascript import (
    INSTALL_HINT,
    call_javascript_now,
    check_javascript,
    is_installed,
)
from geval_cli.scripting.script_errors import ScriptError


class _JavaScriptFilter(Struct, frozen=True):
    """Called by a template. Raises ValueError, which a template takes for a failure of its own."""

    name: str
    code: Code

    def __call__(self, value: JsonValue, *further: JsonValue) -> JsonValue:
        arguments = {f"argument{index}": item for index, item in enumerate((value, *further))}
        try:
            return call_javascript_now(self.code, arguments)
        except ScriptError as error:
            raise ValueError(f"the filter `{self.name}` failed: {error}") from error


def template_filters(suite: Suite) -> dict[str, Callable[..., JsonValue]]:
    """The filters by name; those that `filter_problems` complains about, or that may not run, give nothing."""
    return {item.name: _built(item, suite) if suite.access.runs_code else _nothing for item in suite.filters}


def filter_problems(suite: Suite) -> Iterator[Problem]:
    """What keeps the suite's filters from being run."""
    for item in suite.filters:
        if not is_installed():
            yield Problem("JavaScript needs an engine that is not installed", item.location, INSTALL_HINT)
            continue
        try:
            check_javascript(
                find_code(item.written, suite.base_dir, Language.JAVASCRIPT, suite.access), ("value",)
            )
        except CodeError as error:
            yield Problem(error.message, item.location, error.hint or "fix the code")


def _built(item: TemplateFilter, suite: Suite) -> Callable[..., JsonValue]:
    try:
        code = find_code(item.written, suite.base_dir, Language.JAVASCRIPT, suite.access)
    except CodeError:
        return _nothing
    return _JavaScriptFilter(item.name, code) if is_installed() else _nothing


def _nothing(*_: JsonValue) -> JsonValue:
    return ""

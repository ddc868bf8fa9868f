"""Sandboxed Jinja2: templates from the config are compiled once and rendered with the variables of a test.

Model output is passed in as a variable and is never rendered itself. An undefined name is an error that lists the
defined names.
"""

import json
import re
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import cached_property, lru_cache, partial
from typing import Any

import jinja2
from jinja2 import (
    ChainableUndefined,
    Environment,
    StrictUndefined,
    Template,
    TemplateSyntaxError,
    Undefined,
    UndefinedError,
    nodes,
)
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.visitor import NodeTransformer

from geval_cli.errors import Location, Problem, TemplateError
from geval_cli.plugins import extra
from geval_cli.records import JsonValue
from geval_cli.source.problems import did_you_mean, listing
from geval_cli.specs.dialect import DEFAULT_RULES, DialectRules
from geval_cli.templating.limits import (
    MAX_CHARACTERS,
    LimitedEnvironment,
    TemplateLimitError,
    begin_counting,
    end_counting,
    environment_call,
    limited_filters,
    rounds,
)

_BEGINNINGS = ("{{", "{%", "{#")
_UNDEFINED_NAME = re.compile(r"^'(?P<name>[^']*)' is undefined")
_RENDER_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    AssertionError,  # from filters that get numbers they cannot use
    RecursionError,
)
# A run has few templates; this limits the memory for a config with a separate criterion for each test.
_COMPILED_KEPT = 4096


def is_template(text: str) -> bool:
    """Return whether `text` contains a template expression."""
    return any(mark in text for mark in _BEGINNINGS)


class Templates:
    """Renders templates. One instance serves a whole run and may be used from any thread.

    `rules` are those of the config that contains the templates.
    """

    def __init__(
        self, rules: DialectRules = DEFAULT_RULES, undefined: type[Undefined] = StrictUndefined
    ) -> None:
        self.rules = rules
        environment = _StrictEnvironment(
            undefined=undefined,
            autoescape=False,
            optimized=False,  # the optimizer's time is cubic in the depth: 13 s for 300 chained filters
            keep_trailing_newline=True,
            finalize=_as_prompt_text,
        )
        # With Jinja's own globals (lipsum, cycler, ...) a misspelt variable could render as a function's name.
        environment.filters = limited_filters(environment.filters)
        environment.globals = {"range": environment.globals["range"]}
        self._lenient: Templates | None = None
        self._use(environment)

    def lenient(self) -> "Templates":
        """Return templates that render undefined names as nothing, for tests whose variables are not all known yet."""
        if self._lenient is None:
            self._lenient = Templates(self.rules, ChainableUndefined)
        return self._lenient

    def render(self, text: str, variables: Mapping[str, JsonValue]) -> str:
        """Return `text` with every template expression replaced.

        Booleans, lists and mappings are written as JSON, None as nothing.

        Raises:
            TemplateError: the template is broken, or uses a name that is not in `variables`.
        """
        if "{" not in text or not is_template(text):
            return text
        counting = begin_counting()
        try:
            found = self._template(text)
            filled = found.filled(variables)
            return self._rendered(found.template, variables) if filled is None else filled
        except UndefinedError as error:
            raise self._undefined(error, variables) from error
        except SecurityError as error:
            raise TemplateError(f"the template does something that is not allowed: {error}") from error
        except TemplateLimitError as error:
            hint = "build the text outside the template and pass it in as a variable"
            raise TemplateError(f"the template was stopped: {error}", hint=hint) from error
        except (MemoryError, OverflowError) as error:
            why = str(error) or "it needs more memory than is available"
            raise TemplateError(f"the template was stopped: {why}", hint="make it do less") from error
        except _RENDER_FAILURES as error:
            raise TemplateError(f"the template cannot be rendered: {error}") from error
        finally:
            end_counting(counting)

    def check(self, text: str) -> None:
        """Compile `text`: the only check that is possible without variables.

        Raises:
            TemplateError: the template is broken.
        """
        if is_template(text):
            self._template(text)

    def _use(self, environment: Environment) -> None:
        self._compile = lru_cache(maxsize=_COMPILED_KEPT)(partial(_Compiled, environment))

    def _rendered(self, template: Template, variables: Mapping[str, JsonValue]) -> str:
        return template.render(variables)

    def _undefined(self, error: UndefinedError, variables: Mapping[str, JsonValue]) -> TemplateError:
        message = error.message or "something in the template is undefined"
        match = _UNDEFINED_NAME.match(message)
        if match is None:
            return TemplateError(message, known=sorted(variables))
        name = match["name"]
        return TemplateError(f"undefined variable `{name}`", missing=name, known=sorted(variables))

    def _template(self, text: str) -> "_Compiled":
        try:
            return self._compile(text)
        except TemplateSyntaxError as error:
            said = syntax_error_in_words(error.message or "it cannot be read")
            raise TemplateError(
                f"broken template, line {error.lineno}: {said}",
                hint=_closing(said, text)
                or "put {% raw %}...{% endraw %} around text that is not a template",
            ) from error
        except (
            SyntaxError,
            RecursionError,
            MemoryError,
        ) as error:  # from Python, since Jinja2 compiles templates to Python code
            hint = "make it simpler, or build the text outside the template and pass it in as a variable"
            raise TemplateError("the template is nested too deeply, or too long", hint=hint) from error


class _StrictEnvironment(LimitedEnvironment):
    """Jinja2's environment in which `order.items` is the mapping's entry; only `order.items()` is the method."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return (
            obj[attribute]
            if isinstance(obj, Mapping) and attribute in obj
            else super().getattr(obj, attribute)
        )

    def method(self, obj: Any, attribute: str) -> Any:
        """Return the method that `order.items()` calls."""
        return super().getattr(obj, attribute)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _CalledMethods().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]


class _CalledMethods(NodeTransformer):
    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.node, nodes.Getattr):
            name = nodes.Const(node.node.attr, lineno=node.lineno)
            node.node = environment_call("method", [node.node.node, name], node)
        return node


class _Compiled:
    """A compiled template. One that only inserts variables, as most do, is filled without Jinja2."""

    def __init__(self, environment: Environment, text: str) -> None:
        tree = environment.parse(text)
        self._environment, self._text = environment, text
        self._pieces = _pieces_of(tree)
        if self._pieces is None:
            self.template = self._compiled(tree)

    @cached_property
    def template(self) -> Template:
        return self._compiled(self._text)

    def _compiled(self, source: str | nodes.Template) -> Template:
        template = self._environment.from_string(source)
        # Jinja2 uses a ChainMap to allow for later changes; there are none here, and it took half the rendering time.
        template.globals = dict(template.globals)
        return template

    def filled(self, variables: Mapping[str, JsonValue]) -> str | None:
        """Return the text with its variables inserted if it does no more and they are all texts; otherwise None."""
        found = []
        for piece, is_name in self._pieces or ():
            value = variables.get(piece) if is_name else piece
            if type(value) is not str:
                return None
            found.append(value)
        text = "".join(found)
        return text if found and len(text) <= MAX_CHARACTERS else None


def _pieces_of(tree: nodes.Template) -> list[tuple[str, bool]] | None:
    """Return the texts and variable names that a template consists of; None if it contains anything else."""
    pieces = []
    for part in tree.body:
        for item in part.nodes if isinstance(part, nodes.Output) else (part,):
            if isinstance(item, nodes.TemplateData):
                pieces.append((item.data, False))
            elif isinstance(item, nodes.Name) and item.name not in _OF_JINJA:
                pieces.append((item.name, True))
            else:
                return None
    return pieces


_OF_JINJA = frozenset({"self", "super", "caller", "loop", "varargs", "kwargs"})
"""Names that may stand for something other than a variable."""

_MARKS = {
    "end of print statement": "}}",
    "begin of print statement": "{{",
    "end of statement block": "%}",
    "begin of statement block": "{%",
    "end of template": "end of the text",
}
_SYNTAX_ERRORS = (
    (
        r"nexpected end of template, expected 'end of print|nexpected 'end of template'",
        "`{{` is never closed",
    ),
    (r"nexpected end of template, expected 'end of state", "`{%` is never closed"),
    (r"end of comment", "`{#` is never closed"),
    (r"end of raw", "`{% raw %}` is never closed"),
    (
        r"unknown tag '(\w+)'.*needs to be closed is '(\w+)'",
        "`{{% {0} %}}` appears while `{{% {1} %}}` is still open",
    ),
    (r"needs to be closed is '(\w+)'", "`{{% {0} %}}` is never closed: add `{{% end{0} %}}`"),
    (r"unknown tag 'end(\w+)'", "`{{% end{0} %}}` closes nothing"),
    (r"unknown tag '(\w+)'", "there is no tag `{{% {0} %}}`"),
    (r"No (filter|test) named '(\w+)'", "there is no {0} `{1}`"),
    (r"unexpected char [\"']{3}|unexpected char '\"'", "a quote is never closed"),
)
"""Jinja2's descriptions of syntax errors, and geval's."""
_CLOSINGS = {
    "`{{` is never closed": "close it with `}}`",
    "`{%` is never closed": "close it with `%}`",
    "`{#` is never closed": "close it with `#}`",
    "`{% raw %}` is never closed": "close it with `{% endraw %}`",
}
_HALF_CLOSED = re.compile(r"\{([{%])(?:(?![%}]\}|\{[{%]).)*?\}(?!\})", re.DOTALL)


def _closing(said: str, text: str) -> str:
    """Return the hint for an unclosed tag; "" if that is not the problem."""
    if said == "unexpected `}`" and (half := _HALF_CLOSED.search(text)) is not None:
        said = f"`{{{half[1]}` is never closed"
    return _CLOSINGS.get(said, "")


def syntax_error_in_words(message: str) -> str:
    """Return Jinja2's description of a syntax error in words that the author of the template understands."""
    for pattern, said in _SYNTAX_ERRORS:
        if (found := re.search(pattern, message, re.DOTALL)) is not None:
            return said.format(*found.groups()) if found.groups() else said
    for name, mark in _MARKS.items():
        message = message.replace(f"'{name}'", f"`{mark}`")
    message = re.sub(r"'([^'\s]{1,20})'", r"`\1`", message.removesuffix("."))
    return message[:1].lower() + message[1:]


def _as_prompt_text(value: Any) -> JsonValue | Undefined:
    if value is None:
        return ""
    if isinstance(value, str | Undefined) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False)
    if type(value).__module__.startswith("jinja2.runtime"):
        raise TemplateRuntimeError("`loop`, `self` and macros cannot be shown as text")
    if isinstance(value, Iterator | KeysView | ValuesView | ItemsView | range):  # from a filter or a method
        return json.dumps(list(rounds(value)), ensure_ascii=False)
    name = getattr(value, "__name__", "").removeprefix("safe_")
    told = (
        f"`{name}` is a function: write `{name}()` to call it"
        if name
        else f"{type(value).__name__} cannot be shown as text"
    )
    raise TemplateRuntimeError(told)


def template_problem(error: TemplateError, *, where: str, location: Location | None) -> Problem:
    """Return a template error as a config problem: what is undefined and where, with the names that exist.

    `where` completes the sentence, for example "in prompt `short` for test 3".
    """
    if not error.known:
        hint = error.hint or ("no variables are defined" if error.missing else "")
        return Problem(f"{error.message} ({where})", location, hint)
    guess = did_you_mean(error.missing, error.known) if error.missing else None
    defined = listing("defined here", error.missing or "", error.known)
    hint = f"did you mean `{guess}`?" if guess else error.hint
    return Problem(f"{error.message} ({where})", location, hint or defined, (defined,) if hint else ())


def templates_of(
    rules: DialectRules,
    env: Mapping[str, str],
    filters: Mapping[str, Callable[..., JsonValue]] | None = None,
) -> Templates:
    """Return templates in the language of a dialect; `env` is the part of the environment that they may read.

    `filters` are added to the built-in ones if the dialect lets a config bring its own.
    """
    if rules.template_language == "strict":
        return Templates(rules)
    found: Templates = extra("templates: nunjucks").NunjucksTemplates(rules, env, filters)
    return found

"""Every deliberate difference from promptfoo, in one table for docs/reference/promptfoo.md and `geval validate`."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from geval_cli.assertions.base import Assertion, MergedTest, ModelGradedAssertion, each_assertion
from geval_cli.assertions.json_output import unknown_keywords
from geval_cli.assertions.sets import AssertSet
from geval_cli.errors import Location
from geval_cli.extras.programs.assertions import CodeAssertion
from geval_cli.extras.programs.scripting.code import FILE_PREFIX
from geval_cli.extras.promptfoo.js_values import is_in_first_plane
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import open_regular
from geval_cli.source.source_map import split_lines
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.suite.suite import LoadedSuite

Places = Iterator[Location | None]

_FAILS, _AN_ERROR, _REFUSED = "fails with score 0", "an error", "refused before anything is sent"


class PromptfooDifference(Struct, frozen=True):
    """A difference in words, and how to recognize a config that it affects.

    Attributes:
        what: the subject, or the assertion types, as shown in the documentation.
        assertion: returns whether an assertion of a test is affected.
        test: yields the affected places of a test.
        suite: yields the affected places of the whole config.
        template: returns whether a template (a prompt, a variable, an assertion's value) is affected.
        never: why no config that can run is affected; empty if one of the above finds them.
    """

    id: str
    what: str
    promptfoo: str
    geval: str
    assertion: Callable[[Assertion, MergedTest], bool] | None = None
    test: Callable[[MergedTest], Places] | None = None
    suite: Callable[[LoadedSuite], Places] | None = None
    template: Callable[[str], bool] | None = None
    never: str = ""


class ConfigDifference(Struct, frozen=True):
    """A difference that affects a config. `location` is the first affected place; there are `more` others."""

    id: str
    what: str
    promptfoo: str
    geval: str
    location: Location | None = None
    more: int = 0


def differences(suite: LoadedSuite) -> Iterator[ConfigDifference]:
    """Yield each difference that affects a suite in promptfoo's dialect once, then the suite's warnings."""
    found: dict[str, dict[Location | None, None]] = {row.id: {} for row in ROWS}
    for row, place in _concerned(suite):
        found[row.id][place] = None
    for row in ROWS:
        places = list(found[row.id])
        if places:
            yield ConfigDifference(row.id, row.what, row.promptfoo, row.geval, places[0], len(places) - 1)
    for problem in dict.fromkeys(suite.warnings):
        hint = f" ({problem.hint})" if problem.hint else ""
        yield ConfigDifference("warning", problem.message, "accepts it", f"warns{hint}", problem.location)


def _concerned(suite: LoadedSuite) -> Iterator[tuple[PromptfooDifference, Location | None]]:
    for row in ROWS:
        yield from ((row, place) for place in (row.suite(suite) if row.suite is not None else ()))
    for prompt in suite.prompts:
        yield from _concerned_by(prompt.raw or "", prompt.place.key())
    for test in suite.tests:
        for row in ROWS:
            yield from ((row, place) for place in (row.test(test) if row.test is not None else ()))
        for name, value in test.vars.items():
            yield from _concerned_by(value, test.place.value("vars", name))
        for spec in each_assertion(test.assertions):
            place = spec.place.key()
            if not isinstance(spec, CodeAssertion):
                yield from _concerned_by(getattr(spec, "value", None), place)
            yield from (
                (row, place) for row in ROWS if row.assertion is not None and row.assertion(spec, test)
            )


def _concerned_by(
    text: JsonValue, place: Location | None
) -> Iterator[tuple[PromptfooDifference, Location | None]]:
    if isinstance(text, str) and ("{{" in text or "{%" in text):
        yield from ((row, place) for row in ROWS if row.template is not None and row.template(text))


# How to recognize the configs that a row affects.


def _of(*types: str) -> Callable[[Assertion, MergedTest], bool]:
    """Return a test for assertions of these types, negated or not."""
    return lambda spec, test: spec.base_type in types


def _is_graded(spec: Assertion, test: MergedTest) -> bool:
    return isinstance(spec, ModelGradedAssertion)


def _has_default_judge(spec: Assertion, test: MergedTest) -> bool:
    return (
        isinstance(spec, ModelGradedAssertion)
        and "text" in spec.judge_kinds
        and all(level.provider is None for level in (spec, test.options, test.default_options))
    )


def _has_own_prompt(spec: Assertion, test: MergedTest) -> bool:
    levels = (spec, test.options, test.default_options)
    return any(getattr(level, "rubric_prompt", None) is not None for level in levels)


def _is_graded_by_own_words(spec: Assertion, test: MergedTest) -> bool:
    types = ("llm-rubric", "factuality", "model-graded-factuality", "model-graded-closedqa", "search-rubric")
    return spec.base_type in types and not _has_own_prompt(spec, test)


def _may_be_an_error_there(spec: Assertion) -> bool:
    if spec.transform is not None or getattr(spec, "context_transform", None) is not None:
        return True
    return spec.base_type in {"latency", "cost", "perplexity", "perplexity-score", "answer-relevance"} or (
        spec.base_type.startswith(("trajectory:", "trace-", "context-", "similar"))
    )


def _mixes_errors_and_failures(test: MergedTest) -> Places:
    specs = list(each_assertion(test.assertions))
    if len(specs) > 1 and any(map(_may_be_an_error_there, specs)):
        yield test.place.value("assert")


def _code_of_test(test: MergedTest) -> Iterator[tuple[str, Location | None]]:
    """Yield the code of a test, except its code assertions, with its place."""
    for found in (test.transform, test.transform_vars):
        if found is not None:
            yield found
    if test.promptfoo.assert_scoring_function is not None:
        yield test.promptfoo.assert_scoring_function, test.place.value("assertScoringFunction")
    for spec in each_assertion(test.assertions):
        for code in (spec.transform, getattr(spec, "context_transform", None)):
            if code is not None:
                yield code, spec.place.key()


def _is_javascript(code: str) -> bool:
    return not code.startswith(FILE_PREFIX) or ".py" not in code


def _javascript_of_test(test: MergedTest) -> Places:
    yield from (place for code, place in _code_of_test(test) if _is_javascript(code))
    yield from (
        spec.place.key()
        for spec in each_assertion(test.assertions)
        if spec.base_type == "javascript" or (isinstance(spec, CodeAssertion) and ".js" in spec.value[-40:])
    )
    yield from (
        test.place.value("vars", name)
        for name, program in test.promptfoo.made_vars.items()
        if ".py" not in program
    )


def _javascript_of_suite(suite: LoadedSuite) -> Places:
    for provider in suite.providers:
        if isinstance(provider, FilteredProviderSpec) and provider.transform is not None:
            yield provider.place.value("transform")
        if _program_suffix(provider) in {".js", ".cjs", ".mjs"}:
            yield provider.place.value("id")
        if any(key in provider.config for key in ("transformResponse", "responseParser")):
            yield provider.place.value("config")
    yield from (item.location for item in suite.filters)
    for prompt in suite.prompts:
        if (
            isinstance(prompt, NamedPromptSpec)
            and prompt.made_by.startswith(FILE_PREFIX)
            and ".js" in prompt.made_by
        ):
            yield prompt.place.key()


def _files_of_javascript(test: MergedTest) -> Places:
    for spec in each_assertion(test.assertions):
        if isinstance(spec, CodeAssertion) and spec.value.startswith(FILE_PREFIX) and ".py" not in spec.value:
            yield spec.place.key()


_RETURNS = compile_later(r"\b(?:return|raise|throw)\b")
_STATEMENT = compile_later(
    r"\s*(?:return|try|if|for|while|throw|switch|import|with|async|def|class|function)\b"
)


def _lacks_return(code: str, *, is_python: bool = False) -> bool:
    text = code.strip()
    if text.startswith(FILE_PREFIX):
        return False
    if "\n" in text:
        return not _RETURNS.search(text)
    return _STATEMENT.match(text) is not None and not (is_python and text.startswith("return"))


def _codes_without_return(test: MergedTest) -> Places:
    yield from (place for code, place in _code_of_test(test) if _lacks_return(code))
    for spec in each_assertion(test.assertions):
        if isinstance(spec, CodeAssertion) and _lacks_return(spec.value):
            yield spec.place.key()


_GIVES_FUNCTION = compile_later(r"\s*(?:async\s+)?(?:function\b|\([\w\s,{}]*\)\s*=>|\w+\s*=>)")


def _transforms_that_give_functions(test: MergedTest) -> Places:
    yield from (
        place for code, place in _code_of_test(test) if _GIVES_FUNCTION.match(code) and _is_javascript(code)
    )


def _stored_outputs(test: MergedTest) -> Places:
    if test.promptfoo.store_output_as:
        yield test.place.value("options")


_DATE = compile_later(r"\d{4}-\d\d?-\d\d?(?:(?:[Tt]|[ \t]+)\d.*)?")


def _unquoted_dates(suite: LoadedSuite) -> Places:
    """Yield the variables that YAML 1.1 reads as dates; quoted ones are text in promptfoo too."""
    lines: dict[str, list[str]] = {}
    for test in suite.tests:
        for name, value in test.vars.items():
            place = (
                test.place.value("vars", name) if isinstance(value, str) and _DATE.fullmatch(value) else None
            )
            # In other formats all text is quoted.
            if place is None or Path(place.file).suffix.lower() not in {".yaml", ".yml"}:
                continue
            if place.file not in lines:
                with suppress(OSError, ValueError), open_regular(Path(place.file), suite.access) as stream:
                    lines[place.file] = split_lines(stream.read().decode("utf-8-sig"))
            line = lines.setdefault(place.file, [])[place.line - 1 :][:1]
            if not "".join(line)[place.column - 1 :].startswith(("'", '"', "|", ">")):
                yield place


def _variables(wanted: Callable[[str, MergedTest], bool]) -> Callable[[MergedTest], Places]:
    """Return a search for the text variables that `wanted` accepts."""

    def places(test: MergedTest) -> Places:
        for name, value in test.vars.items():
            if isinstance(value, str) and wanted(value, test):
                yield test.place.value("vars", name)

    return places


_BROKEN = compile_later(r"\{\{(?:(?!\}\}).)*\{|\{\{(?:(?!\}\}).)*\}(?!\})(?:(?!\}\}).)*$", re.DOTALL)
_REPLACEMENT = compile_later(r"\$[&$`'\d]")
_WHOLE_NUMBER = compile_later(r"\d{17,}")


def _names_other_variables(test: MergedTest) -> bool:
    return any(isinstance(value, str) and "{{" in value for value in test.vars.values())


def _large_numbers(test: MergedTest) -> Places:
    for name, value in test.vars.items():
        if _WHOLE_NUMBER.search(json.dumps(value, default=str)) and not isinstance(value, str):
            yield test.place.value("vars", name)


_FILTER = compile_later(
    r"\{[{%](?:(?!\{[{%])[^}])*?(?<!\|)\|(?!\|)\s*\w|\{[{%](?:(?!\{[{%])[^}])*\bin\b(?![^}]*\bfor\b)",
    re.DOTALL,
)
_FOR = compile_later(r"\{%-?\s*for\b[^%]*%\}")
_SYSTEM = compile_later(r'"role"\s*:\s*"system".*"role"\s*:\s*"system"', re.DOTALL)
_SLICE = compile_later(r"\{[{%](?:(?!\{[{%])[^}])*\[[^\[\]}'\"]*:[^\]}]*\]")


def _has_filter(text: str) -> bool:
    return _FILTER.search(_FOR.sub("", text)) is not None


_INDEX = compile_later(r"\{[{%](?:(?!\{[{%])[^}])*\[\s*\d|\{%-?\s*for\b")


def _halves(suite: LoadedSuite) -> Places:
    if any(_INDEX.search(prompt.raw or "") for prompt in suite.prompts):
        for test in suite.tests:
            yield from _variables(lambda value, test: not is_in_first_plane(value))(test)


def _written(suite: LoadedSuite) -> Iterator[dict[str, JsonValue]]:
    """Yield the configs as written."""
    snapshots = suite.snapshot if isinstance(suite.snapshot, list) else [suite.snapshot]
    yield from (item for item in snapshots if isinstance(item, dict))


def _mappings_in(value: JsonValue) -> Iterator[dict[str, JsonValue]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _mappings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _mappings_in(item)


def _if_written(wanted: Callable[[dict[str, JsonValue]], bool]) -> Callable[[LoadedSuite], Places]:
    """Return a search for a mapping anywhere in the configs as written. Its place is unknown."""

    def places(suite: LoadedSuite) -> Places:
        if any(wanted(item) for config in _written(suite) for item in _mappings_in(config)):
            yield None

    return places


def _default_transform_meets_postprocess(suite: LoadedSuite) -> Places:
    for config in _written(suite):
        default = config.get("defaultTest")
        options = default.get("options") if isinstance(default, dict) else None
        if isinstance(options, dict) and options.get("transform"):
            tests = config.get("tests")
            if any("postprocess" in item for item in _mappings_in(tests)):
                yield None


def _providers(wanted: Callable[[ProviderSpec], bool]) -> Callable[[LoadedSuite], Places]:
    return lambda suite: (item.place.value() for item in suite.providers if wanted(item))


def _program_suffix(provider: ProviderSpec) -> str:
    """Return the file suffix of a provider that is a program; empty for other providers."""
    name = provider.id
    if not name.startswith((FILE_PREFIX, "python:", "javascript:")):
        return ""
    return Path(re.sub(r":\w+$", "", name)).suffix.lower()


def _has_openai_tools(config: Mapping[str, JsonValue]) -> bool:
    tools = config.get("tools")
    return isinstance(tools, list) and any(
        isinstance(item, dict) and item.get("type") == "function" for item in tools
    )


def _is_list_without_messages(text: str) -> bool:
    found: JsonValue = None
    if text.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
    return isinstance(found, list) and not any(isinstance(item, dict) and "role" in item for item in found)


def _is_http(provider: ProviderSpec) -> bool:
    return provider.id.startswith(("http:", "https:"))


def _has_unlabelled_python(suite: LoadedSuite) -> Places:
    for provider in suite.providers:
        if _program_suffix(provider) == ".py" and provider.label.endswith(
            (".py", provider.id.rpartition(":")[2])
        ):
            yield provider.place.value()


def _shares_id_with_prompts(suite: LoadedSuite) -> Places:
    ids = [provider.id for provider in suite.providers]
    for provider in suite.providers:
        own = provider.prompts if isinstance(provider, FilteredProviderSpec) else None
        if own is not None and ids.count(provider.id) > 1:
            yield provider.place.value()


def _is_odd_json(prompt: PromptSpec) -> bool:
    try:
        value = json.loads(prompt.raw or "")
    except (ValueError, RecursionError):
        return False
    return not isinstance(value, list)


def _from_table(spec: Assertion) -> bool:
    place = spec.place.key()
    return place is not None and Path(place.file).suffix.lower() in {".csv", ".xlsx"}


def _text_body_without_type(provider: ProviderSpec) -> bool:
    body, headers = provider.config.get("body"), provider.config.get("headers")
    names = {str(name).lower() for name in headers} if isinstance(headers, dict) else set()
    return (
        _is_http(provider)
        and isinstance(body, str)
        and body.lstrip()[:1] in "{["
        and "content-type" not in names
    )


def _is_insecure(suite: LoadedSuite) -> Places:
    if suite.env.get("PROMPTFOO_INSECURE_SSL"):
        yield None


def _answers_tools(spec: Assertion, test: MergedTest) -> bool:
    return spec.base_type.startswith("is-valid-") and spec.base_type.endswith("call")


# Any single character with a count, or up to the end.
_COUNTS_SIGNS = compile_later(r"(?:(?<!\\)\.|\[\^[^\]]*\]|\\[DSW])(?:\{|\$)")
_WEIGHS_LIKE_PYTHON = compile_later(r"\(\?[a-zA-Z]+\)|\(\?P<")


def _prompt_shows_images(suite: LoadedSuite) -> Places:
    yield from (item.place.key() for item in suite.prompts if "data:image/" in (item.raw or ""))
    for test in suite.tests:
        yield from _variables(lambda value, test: value.startswith("data:image/"))(test)


MATTERS: tuple[PromptfooDifference, ...] = (
    PromptfooDifference(
        "judge-errors",
        "judged assertions whose judge cannot be called or gives an unreadable reply",
        "the test fails with score 0",
        "an error: neither passed nor failed, exit code 3",
        assertion=_is_graded,
    ),
    PromptfooDifference(
        "judge-replies",
        "a judge's reply in another form than asked for (`A` for `(A)`, `yes` for `Y`, JSON after a draft of it)",
        "the test fails, or the first JSON counts",
        "read for what it says",
        assertion=_is_graded,
    ),
    PromptfooDifference(
        "judge-prompts",
        "the judge's prompt of `llm-rubric`, `factuality`, `model-graded-closedqa` and `search-rubric` without a "
        "`rubricPrompt`",
        "its own words",
        "other words, so verdicts may differ",
        assertion=_is_graded_by_own_words,
    ),
    PromptfooDifference(
        "judge-parameters",
        "judge parameters that the config does not set",
        "those of every request (`max_tokens: 1024`, ...)",
        "geval's own: `temperature: 0`, a reply format, log-probabilities and samples for `g-eval`",
        assertion=_is_graded,
    ),
    PromptfooDifference(
        "default-judge",
        "the judge if the config names none",
        "depends on which keys are set: OpenAI, Azure, Anthropic, Google, ...",
        "`openai:gpt-4.1`; set another with `--grader` or `defaultTest.options.provider`",
        assertion=_has_default_judge,
    ),
    PromptfooDifference(
        "errors-and-failures",
        "a test with one assertion that errors and another that fails",
        "the row is an error",
        "the row fails; the error is shown next to it",
        test=_mixes_errors_and_failures,
    ),
    PromptfooDifference(
        "missing-figures",
        "a missing price or token probability (`cost`, `perplexity`)",
        "fails",
        _AN_ERROR,
        assertion=_of("cost", "perplexity", "perplexity-score"),
    ),
    PromptfooDifference(
        "code-limits",
        "assertion code that raises",
        _FAILS,
        "the same; but an error if the code could not run: out of time or memory, a dead process, or a need for "
        "modules, the network or the environment",
        assertion=lambda spec, test: isinstance(spec, CodeAssertion),
    ),
    PromptfooDifference(
        "broken-code",
        "code with a syntax error, or a missing code file",
        "the row fails after the model was paid for",
        _REFUSED,
        never=_REFUSED,
    ),
    PromptfooDifference(
        "javascript",
        "JavaScript",
        "runs in Node, with access to the machine",
        "runs without modules, network, files, timers, `process` or locales other than `en-US`",
        test=_javascript_of_test,
        suite=_javascript_of_suite,
    ),
    PromptfooDifference(
        "kept-state",
        "state that a program keeps between calls (counters, conversations, `this.x`)",
        "kept: one Node and one Python process serve all calls",
        "JavaScript starts from scratch on each call; Python runs in several processes, each with its own state",
        test=_files_of_javascript,
        suite=_providers(lambda item: bool(_program_suffix(item))),
    ),
    PromptfooDifference(
        "code-without-return",
        "several lines without `return`; a single statement (`return x`, `try {...}`)",
        "fail",
        "the last expression is the value; the statement runs",
        test=_codes_without_return,
    ),
    PromptfooDifference(
        "given-functions",
        "a transform that evaluates to a function (`(output) => ...`)",
        "the function itself is the output",
        "the function is called; its result is the output",
        test=_transforms_that_give_functions,
    ),
    PromptfooDifference(
        "scoring-function",
        "a scoring function that fails",
        _FAILS,
        _AN_ERROR,
        test=lambda test: (
            place for code, place in _code_of_test(test) if code == test.promptfoo.assert_scoring_function
        ),
    ),
    PromptfooDifference(
        "stored-outputs",
        "answers used as variables of later tests (`storeOutputAs`)",
        "template expressions in them are rendered, also into the text of code",
        "never rendered and never part of code; code reads them from `context.vars`",
        test=_stored_outputs,
    ),
    PromptfooDifference(
        "missing-files",
        "a missing tests or prompts file",
        "no tests from it, or the path itself is the prompt",
        "refused, with a suggestion",
        never=_REFUSED,
    ),
    PromptfooDifference(
        "unknown-keys",
        "unknown keys, misspelt columns",
        "silently ignored in many places",
        "a warning with a suggestion",
        never="each is listed as a warning",
    ),
    PromptfooDifference(
        "unknown-types",
        "an unknown assertion type",
        "the row is an error after the model was paid for",
        _REFUSED,
        never=_REFUSED,
    ),
    PromptfooDifference(
        "broken-templates", "a broken template in a prompt", "each row is an error", _REFUSED, never=_REFUSED
    ),
    PromptfooDifference(
        "empty-made-prompts",
        'an empty prompt from a program (`""`, `[]`, `{}`, `{prompt: null}`)',
        "sent",
        _AN_ERROR,
        suite=lambda suite: (
            item.place.key() for item in suite.prompts if isinstance(item, NamedPromptSpec) and item.made_by
        ),
    ),
    PromptfooDifference(
        "json-prompts",
        'a prompt that is JSON but not a list of messages (`{"a": 1}`, `5`)',
        "sent to chat APIs instead of messages",
        "the text of one message",
        suite=lambda suite: (item.place.key() for item in suite.prompts if _is_odd_json(item)),
    ),
    PromptfooDifference(
        "system-messages",
        "several system messages in one chat for Claude or Gemini",
        "Claude gets the first, Gemini none",
        "all of them, joined",
        suite=lambda suite: (
            item.place.key()
            for item in suite.prompts
            if _SYSTEM.search(item.raw or "")
            and any(model.id.startswith(("anthropic:", "google:", "vertex:")) for model in suite.providers)
        ),
    ),
    PromptfooDifference(
        "text-beside-calls",
        "an answer with text and tool calls",
        "the output is the whole message, or text and calls in one text",
        "the output is the text; the calls are in `tool_calls` of the context and in assertions about calls",
        suite=_providers(lambda item: bool({"tools", "functions"} & item.config.keys())),
    ),
    PromptfooDifference(
        "gemini-tools",
        "tools in OpenAI's format for Gemini",
        "translated",
        "sent as is; Gemini rejects them",
        suite=_providers(
            lambda item: item.id.startswith(("google:", "vertex:")) and _has_openai_tools(item.config)
        ),
    ),
    PromptfooDifference(
        "lists-as-prompts",
        "a prompt that is a JSON list without chat messages",
        "sent as the messages; the model rejects them",
        "sent as text",
        suite=lambda suite: (
            item.place.key() for item in suite.prompts if _is_list_without_messages(item.raw or "")
        ),
    ),
    PromptfooDifference(
        "host-variables",
        "`OPENAI_API_HOST` and `MISTRAL_API_HOST` in the environment",
        "used",
        "ignored; `OPENAI_BASE_URL` is used",
        never="the environment decides, not the config",
    ),
    PromptfooDifference(
        "other-apis",
        "`ollama:MODEL`, `cohere:MODEL`",
        "called through their own APIs, with parameters such as `num_predict`, `k`",
        "called through their OpenAI-compatible chat APIs",
        suite=_providers(lambda item: item.id.startswith(("ollama:", "cohere:"))),
    ),
    PromptfooDifference(
        "fine-tuned",
        "`openai:ft:MODEL`",
        "requests a model named `ft`",
        "requests the fine-tuned model, like `openai:chat:ft:MODEL`",
        suite=_providers(lambda item: item.id.startswith("openai:ft:")),
    ),
    PromptfooDifference(
        "azure-version",
        "the API version of `azure` if the config has none",
        "2024-12-01-preview",
        "2024-10-21; set `apiVersion` to change it",
        suite=_providers(
            lambda item: (
                item.id.startswith(("azure:", "azureopenai:"))
                and not {"apiVersion", "api_version"} & item.config.keys()
            )
        ),
    ),
    PromptfooDifference(
        "broken-variables",
        "a variable that looks like a broken template (`{{a}{b}}`)",
        "the row is an error",
        "plain text",
        test=_variables(lambda value, test: _BROKEN.search(value) is not None),
    ),
    PromptfooDifference(
        "replacement-patterns",
        "`$&`, `$1` in a variable that another one uses",
        "JavaScript replacement patterns",
        "plain text",
        test=_variables(
            lambda value, test: _REPLACEMENT.search(value) is not None and _names_other_variables(test)
        ),
    ),
    PromptfooDifference(
        "filters",
        "filters and `in` on unsuitable values (`{{ missing | join }}`, `{{ 5 | upper }}`, "
        "`{{ 'a' in missing }}`)",
        "the row is an error",
        "empty, or the value as text",
        template=_has_filter,
    ),
    PromptfooDifference(
        "slices",
        "Python's slices in templates (`{{ name[0:2] }}`)",
        "the row is an error",
        "the slice",
        template=lambda text: _SLICE.search(text) is not None,
    ),
    PromptfooDifference(
        "file-of-variables",
        "`vars: file://vars.yaml`",
        "no variables",
        "the file's variables, like `vars: vars.yaml`",
        suite=_if_written(lambda item: str(item.get("vars", "")).startswith(FILE_PREFIX)),
    ),
    PromptfooDifference(
        "postprocess",
        "`postprocess` of a test in addition to a `transform` of defaultTest",
        "ignored",
        "used as the test's `transform`",
        suite=_default_transform_meets_postprocess,
    ),
    PromptfooDifference(
        "python-names",
        "the name of a Python provider without `label`",
        "`python:file.py:default`",
        "as the config has it",
        suite=_has_unlabelled_python,
    ),
    PromptfooDifference(
        "program-cache",
        "answers of Python providers",
        "cached while the file is unchanged",
        "not cached, since code may do anything",
        suite=_providers(lambda item: _program_suffix(item) == ".py"),
    ),
    PromptfooDifference(
        "shared-ids",
        "two providers with the same id, one with `prompts`",
        "`prompts` applies to both",
        "`prompts` applies to that one",
        suite=_shares_id_with_prompts,
    ),
    PromptfooDifference(
        "broken-rows",
        "a `transformVars` that cannot be compiled, an empty `__config:` cell",
        "the whole evaluation ends with a stack trace",
        "an error with its line; the empty cell is ignored",
        never="promptfoo runs no such config",
    ),
    PromptfooDifference(
        "transformed-lists",
        "lists of texts and files in variables, with `transformVars`",
        "it gets the lists and the paths; then lists make tests, also those that it returns, and files are loaded",
        "it gets a value of each list, and the content of files; a list of texts that it returns is an error, unless "
        "`disableVarExpansion` is set",
        test=lambda test: iter([test.transform_vars[1]] if test.transform_vars is not None else []),
    ),
    PromptfooDifference(
        "dates",
        "unquoted dates (`2024-01-01`)",
        "JavaScript dates with weekday and time zone",
        "the text as written",
        suite=_unquoted_dates,
    ),
    PromptfooDifference(
        "table-thresholds",
        "`g-eval(0.9): text`, `llm-rubric(0.9): text`, `bleu(0.3): text` in a cell",
        "the threshold is lost",
        "the threshold applies",
        assertion=lambda spec, test: (
            _from_table(spec)
            and spec.base_type in {"g-eval", "llm-rubric", "bleu"}
            and getattr(spec, "threshold", None) is not None
        ),
    ),
    PromptfooDifference(
        "table-commas",
        "quoted commas in a cell of `contains-any`",
        "split",
        "kept together",
        assertion=lambda spec, test: (
            _from_table(spec)
            and "contains-a" in spec.base_type
            and any("," in str(item) for item in _values(spec))
        ),
    ),
    PromptfooDifference(
        "large-numbers",
        "integers with more than 16 digits",
        "rounded",
        "exact until used in arithmetic",
        test=_large_numbers,
    ),
    PromptfooDifference(
        "half-characters",
        'halves of surrogate pairs in templates (`{{ "😀"[0] }}`, loops over texts with emoji)',
        "half a pair",
        "the replacement character; loops go by characters",
        suite=_halves,
    ),
    PromptfooDifference(
        "operators-behind-tests",
        "`{{ x is odd + 1 }}` and other operators after a test",
        "false",
        "refused",
        never=_REFUSED,
    ),
    PromptfooDifference(
        "unset-env",
        "unset `env` values",
        "the expression stays, and is later empty",
        "the same, with a warning",
        never="each is listed as a warning",
    ),
    PromptfooDifference(
        "command-line-variables",
        "`--var x=...` on the command line",
        "a default",
        "a default; in geval's own configs it overrides",
        never="no difference of a config of promptfoo's",
    ),
    PromptfooDifference(
        "delay",
        "`delay`",
        "a pause after each test, one test at a time",
        "a pause between requests to one provider; cached answers do not wait",
        suite=_providers(lambda item: bool(item.config.get("delay_ms"))),
    ),
    PromptfooDifference(
        "provider-cache",
        "`cache` of a provider",
        "respected",
        "sent to the model as a parameter; use `--no-cache`",
        suite=_providers(lambda item: item.config.get("cache") is not None),
    ),
    PromptfooDifference(
        "bodies-without-method",
        "an HTTP provider with `body` but no `method`",
        "GET without the body",
        "POST",
        suite=_providers(
            lambda item: _is_http(item) and "body" in item.config and "method" not in item.config
        ),
    ),
    PromptfooDifference(
        "text-bodies",
        "a `body` text that begins with `{` or `[`, without a `content-type`",
        "sent as a form",
        "sent as JSON",
        suite=_providers(_text_body_without_type),
    ),
    PromptfooDifference(
        "images",
        "images in prompts and variables",
        "stored in the results",
        "stored as a hash; the model gets the image",
        suite=_prompt_shows_images,
    ),
    PromptfooDifference("tls", "TLS certificates", "may go unchecked", "always checked", suite=_is_insecure),
    PromptfooDifference(
        "telemetry",
        "telemetry, update checks, sharing",
        "on unless turned off",
        "none",
        never="it changes no result",
    ),
    PromptfooDifference("red-teams", "red team prompts", "sent", "refused with advice", never=_REFUSED),
    PromptfooDifference(
        "services",
        "a moderator or classifier that fails",
        _FAILS,
        _AN_ERROR,
        assertion=_of("moderation", "classifier"),
    ),
)
"""General differences, in the order of the documentation."""


def _has_unknown_keywords(spec: Assertion, test: MergedTest) -> bool:
    schema = getattr(spec, "value", None)
    is_json = spec.base_type in {"is-json", "contains-json"}
    return (
        is_json
        and isinstance(schema, dict)
        and bool({*unknown_keywords(json.dumps(schema))} - {"format: url"})
    )


def _values(spec: Assertion) -> tuple[object, ...]:
    value = getattr(spec, "value", ())
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _may_miss(threshold: float | None, specs: tuple[Assertion, ...]) -> bool:
    """Return whether a rounding error may decide, because scores are computed by code or by weights."""
    return bool(threshold) and any(
        isinstance(spec, CodeAssertion | ModelGradedAssertion) or spec.weight not in {0, 1}
        for spec in each_assertion(specs)
    )


_IGNORED_NEGATIONS = {
    "factuality", "model-graded-factuality", "model-graded-closedqa",
    "latency", "cost", "levenshtein", "finish-reason", "perplexity",
}  # fmt: skip

ASSERTIONS: tuple[PromptfooDifference, ...] = (
    PromptfooDifference(
        "latency-from-cache",
        "`latency` of a cached answer",
        "an error",
        "the time measured when the answer was generated",
        assertion=_of("latency"),
    ),
    PromptfooDifference(
        "ignored-negations",
        "`factuality`, `model-graded-closedqa`, `is-valid-...-call`, `latency`, `cost`, `levenshtein`, `perplexity` "
        "and `finish-reason` with `not-`",
        "`not-` is ignored, from `latency` on only by some versions",
        "the verdict is inverted",
        assertion=lambda spec, test: (
            spec.is_negated and (spec.base_type in _IGNORED_NEGATIONS or _answers_tools(spec, test))
        ),
    ),
    PromptfooDifference(
        "weight-0",
        "`weight: 0`",
        "always passes; its metric is 0",
        "keeps its verdict but decides nothing; a row with nothing else has no score",
        assertion=lambda spec, test: spec.weight == 0 and not isinstance(spec, AssertSet),
    ),
    PromptfooDifference(
        "weight-0-sets",
        "`weight: 0` of an `assert-set`; a set whose assertions all have weight 0",
        "fails the test if the set fails; has score 0, so that a `threshold` fails",
        "decides nothing; is not counted",
        assertion=lambda spec, test: (
            isinstance(spec, AssertSet)
            and (spec.weight == 0 or not any(item.weight for item in spec.members))
        ),
    ),
    PromptfooDifference(
        "webhook",
        "`webhook`",
        "fails if it breaks or takes over 5 s; gets prompt and vars",
        "an error if it breaks or takes over 30 s; also gets the metadata of a program's answer",
        assertion=_of("webhook"),
    ),
    PromptfooDifference(
        "tools-missing",
        "`is-valid-...-call` if the provider has no tools",
        "fails",
        "an error",
        assertion=_answers_tools,
    ),
    PromptfooDifference(
        "single-calls",
        "`tool-call-f1` of a single call outside a list (`{name, arguments}`, `{function_call: ...}`)",
        "ignored",
        "counted",
        assertion=_of("tool-call-f1"),
    ),
    PromptfooDifference(
        "traces",
        "`trajectory:...`, `trace-...`",
        "read the spans of its own OpenTelemetry receiver (`tracing`)",
        "read the `trace` of a test with its own `output`; without one it is an error, as in promptfoo without spans",
        assertion=lambda spec, test: spec.base_type.startswith(("trajectory:", "trace-")),
    ),
    PromptfooDifference(
        "string-metrics",
        "`bleu`, `meteor`, `rouge-n`",
        "own code",
        "maintained libraries: the paper's brevity penalty, no synonyms, Treebank tokens",
        assertion=_of("bleu", "meteor", "rouge-n", "gleu"),
    ),
    PromptfooDifference(
        "rubric-scale",
        "`llm-rubric`: a score outside 0..1",
        "accepted",
        "an error",
        assertion=_of("llm-rubric"),
    ),
    PromptfooDifference(
        "rubric-without-pass",
        "`llm-rubric`: a reply without `pass`",
        "passes",
        "passes; in geval's own configs the request is repeated, then an error",
        never="the verdict is the same",
    ),
    PromptfooDifference(
        "rubric-verdicts",
        "`llm-rubric`: a reply with neither `pass` nor `score`, or with contradictory verdicts",
        "passes; the first counts",
        "an error",
        assertion=_of("llm-rubric"),
    ),
    PromptfooDifference(
        "select-best",
        "`select-best`: a reply that contains a number",
        "the first number is the choice",
        "an error, unless the reply is just the number, or JSON",
        assertion=_of("select-best"),
    ),
    PromptfooDifference(
        "pairwise",
        "`pairwise`",
        "unknown",
        "refused with promptfoo's rules; use `select-best`, or a geval config",
        never=_REFUSED,
    ),
    PromptfooDifference(
        "max-score",
        "`max-score` with equal scores",
        "the first output to arrive",
        "the output of the first column",
        assertion=_of("max-score"),
    ),
    PromptfooDifference(
        "max-score-sets",
        "`max-score` beside an `assert-set`",
        "counts each member of the set",
        "counts the set as one assertion",
        assertion=lambda spec, test: (
            spec.base_type == "max-score" and any(isinstance(item, AssertSet) for item in test.assertions)
        ),
    ),
    PromptfooDifference(
        "rounding",
        "a score that misses a `threshold` only by a rounding error (`0.7 + 0.1` for 0.8)",
        "fails",
        "passes",
        assertion=lambda spec, test: (
            isinstance(spec, CodeAssertion | AssertSet) and _may_miss(spec.threshold, spec.members or (spec,))
        ),
        test=lambda test: (
            place for place in [test.place.value("threshold")] if _may_miss(test.threshold, test.assertions)
        ),
    ),
    PromptfooDifference(
        "answer-relevance",
        "`answer-relevance`",
        "three questions, with promptfoo's prompt",
        "geval's prompt, so scores differ slightly",
        assertion=_of("answer-relevance"),
    ),
    PromptfooDifference(
        "context-relevance",
        "`context-relevance`",
        "quoted sentences",
        "line numbers",
        assertion=_of("context-relevance"),
    ),
    PromptfooDifference(
        "context-faithfulness",
        "`context-faithfulness` of an answer that makes no claims",
        "depends on the reply",
        "1",
        assertion=_of("context-faithfulness"),
    ),
    PromptfooDifference(
        "moderation-categories",
        "`moderation` with an unknown category",
        "never counts",
        "the same, with a warning",
        never="each is listed as a warning",
    ),
    PromptfooDifference(
        "moderators",
        "`moderation` by Replicate's LlamaGuard or Azure Content Safety",
        "called",
        "refused; OpenAI's, Mistral's and compatible APIs work",
        never=_REFUSED,
    ),
    PromptfooDifference(
        "classes",
        "`classifier` with a class the model does not have",
        "0",
        "0, with the classes in the reason; in geval's own configs an error",
        never="the verdict is the same",
    ),
    PromptfooDifference(
        "class-scores",
        "`classifier` with scores outside 0..1",
        "accepted",
        "an error",
        assertion=_of("classifier"),
    ),
    PromptfooDifference(
        "guardrails",
        "`guardrails` if the provider reports nothing",
        "passes",
        "passes; `config.purpose` is ignored",
        assertion=_of("guardrails"),
    ),
    PromptfooDifference(
        "search-rubric",
        "`search-rubric`",
        "accepts any judge",
        "rejects a judge that cannot search",
        assertion=_of("search-rubric"),
    ),
    PromptfooDifference(
        "embedding-judges",
        "`similar` if the text judge returns no embeddings",
        "the row is an error",
        "uses the embedding judge, or the default one",
        assertion=_of("similar", "similar:cosine", "similar:dot", "similar:euclidean"),
    ),
    PromptfooDifference(
        "empty-outputs",
        "`similar` of an empty output",
        "0",
        "an error",
        assertion=_of("similar", "similar:cosine", "similar:dot", "similar:euclidean"),
    ),
    PromptfooDifference(
        "characters",
        "`levenshtein`, and `regex` that counts characters (`^.{5}$`), of an output with emoji",
        "UTF-16 units: an emoji counts as two or more",
        "characters: most emoji count as one",
        assertion=lambda spec, test: (
            spec.base_type == "levenshtein"
            or (spec.base_type == "regex" and _COUNTS_SIGNS.search(str(_values(spec)[0])) is not None)
        ),
    ),
    PromptfooDifference(
        "json-keywords",
        "`is-json`, `contains-json` with keys in the schema that are no keywords (`reqired`, `example`, `x-order`)",
        "fails",
        "leaves them out, with a warning if one is nearly a keyword",
        assertion=_has_unknown_keywords,
    ),
    PromptfooDifference(
        "html",
        "`contains-html`; `is-html` of broken HTML",
        "counts signs of HTML (tags, attributes, entities): one `<b>` is too few, `a <p` is enough; jsdom",
        "one known element, or a closed one, is enough, and other signs do not count; Python's parser",
        assertion=_of("contains-html", "is-html"),
    ),
    PromptfooDifference(
        "xml",
        "`is-xml`, `contains-xml`",
        "forgiving in some versions (several roots, a bare `&`); `a.@_id` is an attribute, `a.b.1` the second `b`, and "
        "with several `b`, `a.b.c` is missing",
        "well-formed XML; `a.b.c` is found in any `b`, and paths name elements only",
        assertion=_of("is-xml", "contains-xml"),
    ),
    PromptfooDifference(
        "sql",
        "`is-sql`",
        "node-sql-parser",
        "sqlglot; rare syntax may differ",
        assertion=_of("is-sql", "contains-sql"),
    ),
    PromptfooDifference(
        "regex",
        "`regex`",
        "JavaScript's",
        "the same with a time limit; lone surrogates match nothing. Groups from other languages (`(?i)`, `(?P<name>`) "
        "fail as there, with a warning beforehand; an invalid pattern is refused",
        assertion=lambda spec, test: (
            spec.base_type == "regex"
            and any(
                not str(item).isascii() or _WEIGHS_LIKE_PYTHON.search(str(item)) is not None
                for item in _values(spec)
            )
        ),
    ),
    PromptfooDifference(
        "contains-nothing",
        "`contains` with an empty text",
        "the row is an error",
        "passes",
        assertion=lambda spec, test: (
            spec.base_type in {"contains", "icontains", "starts-with"}
            and any(not str(item).strip() or "{{" in str(item) for item in _values(spec))
        ),
    ),
    PromptfooDifference(
        "named-exports",
        "`file://check.js:name` in an ES module whose default export is a function",
        "the row is an error",
        "the named function",
        assertion=lambda spec, test: (
            isinstance(spec, CodeAssertion) and re.search(r"\.m?js:\w+$", spec.value) is not None
        ),
    ),
    PromptfooDifference(
        "derived-metrics",
        "`derivedMetrics`",
        "weighted sums per column",
        "sums per column and over all cases",
        suite=lambda suite: iter([None] if suite.derived_metrics else []),
    ),
)
"""Differences that concern single assertion types."""

ROWS: tuple[PromptfooDifference, ...] = (*MATTERS, *ASSERTIONS)


def difference_table(rows: tuple[PromptfooDifference, ...], title: str) -> str:
    """Return rows as a Markdown table for the documentation."""
    cells = ([text.replace("|", "\\|") for text in (row.what, row.promptfoo, row.geval)] for row in rows)
    lines = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join((f"| {title} | promptfoo | geval |", "| --- | --- | --- |", *lines))

"""The generated part of docs/reference/config-keys.md: a table of keys for each part of a config."""

from collections.abc import Iterable, Mapping
from typing import Any

from geval_cli.assertions.base import Assertion, ModelGradedAssertion
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.extras.json_schema import config_schema
from geval_cli.extras.tools.calling import SimulatedToolsSpec, ToolsSpec
from geval_cli.specs.base import (
    ChatMessageSpec,
    PromptSpec,
    ProviderSpec,
    RecordedAnswerSpec,
    RubricPromptSpec,
    RunOptionsSpec,
    Spec,
    TestOptionsSpec,
    TraceStepSpec,
    TurnSpec,
    expected_text,
    spellings,
)
from geval_cli.suite.gates import DerivedMetric
from geval_cli.suite.schema import SimulatedUserSpec, SuiteSpec, TestFilesSpec, TestSpec

PARTS: Mapping[str, type[Spec]] = {
    "a config": SuiteSpec,
    "a prompt": PromptSpec,
    "a chat message": ChatMessageSpec,
    "a provider": ProviderSpec,
    "a test": TestSpec,
    "a turn": TurnSpec,
    "a simulated user": SimulatedUserSpec,
    "a step of a trace": TraceStepSpec,
    "tools that are called": ToolsSpec,
    "simulated tools": SimulatedToolsSpec,
    "a recorded answer": RecordedAnswerSpec,
    "files of tests": TestFilesSpec,
    "options of a test": TestOptionsSpec,
    "prompts of a judge": RubricPromptSpec,
    "options of a run": RunOptionsSpec,
    "a derived metric": DerivedMetric,
    "an assertion": Assertion,
    "an assertion that asks a judge": ModelGradedAssertion,
}
"""The parts of the page, by the names of their marks."""

_OPEN = {
    "prompts": "a prompt, or a list of them",
    "providers": "a provider, or a list of them",
    "default_test": "a test",
    "tests": "a list of tests and tests files, or text",
    "derived_metrics": "a list of derived metrics",
    "gates": "a list of texts, or `correction` and `conditions`",
    "tools": "text, a list of texts, or tools that are called",
    "definitions": "a list of definitions, or text",
    "result": "anything",
    "margin": "number, or a mapping of metrics to numbers",
    "assertions": "a list of assertions",
    "turns": "a list of turns, or {simulate: ...}",
    "profiles": "a list of texts and mappings, or file://",
    "done_when": "text, or an assertion",
}
"""Values of keys whose type is checked by the reader of the part."""

_NAMES = {
    "ProviderSpec": "a provider",
    "TestOptionsSpec": "options of a test",
    "RunOptionsSpec": "options of a run",
    "SimulatedToolsSpec": "simulated tools",
    "RubricPromptSpec": "text, chat messages, or {steps, evaluate}",
}


def with_config_tables(page: str) -> str:
    """Return the page with all tables between their markers."""
    for name, model in PARTS.items():
        hidden = frozenset(Assertion.model_fields) if model is ModelGradedAssertion else frozenset()
        page = _with_part(page, name, key_table(model, without=hidden))
    return _with_part(page, "keys of each type", "\n\n".join(_types()))


def _with_part(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- generated: {name} -->\n", f"\n<!-- end of {name} -->"
    assert page.count(begin) == page.count(end) == 1, f"the page has no part that is named {name}"
    return page[: page.index(begin) + len(begin)] + text + page[page.index(end) :]


def key_table(model: type[Spec], *, without: Iterable[str] = ()) -> str:
    """Return a table of a model's keys: every spelling, the value, and the description."""
    hidden = {"place", *without}
    by_field: dict[str, list[str]] = {}
    for spelling, name in spellings(model).items():
        by_field.setdefault(name, []).append(spelling)
    rows = [
        f"| {', '.join(f'`{key}`' for key in keys)} | {_value(model, name)} | {_meaning(model, name)} |"
        for name, keys in by_field.items()
        if name not in hidden
    ]
    return "\n".join(("| key | value | meaning |", "| --- | --- | --- |", *rows))


def _value(model: type[Spec], name: str) -> str:
    info = model.model_fields[name]
    text = _OPEN.get(name) or next(
        (words for spec, words in _NAMES.items() if spec in str(info.annotation)), None
    )
    text = text or expected_text(info).replace("a value", "anything")
    needed = "; required" if info.is_required() else ""
    default = "" if info.is_required() or info.default in (None, "", ()) else _default(info.default)
    return _escaped(f"{text}{needed}{default}")


def _default(value: Any) -> str:
    words = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    text = words or (f"{value:g}" if isinstance(value, float) else str(value))
    return "" if "Undefined" in text else f"; default {text}"


def _meaning(model: type[Spec], name: str) -> str:
    return _escaped(model.model_fields[name].description or "")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def settings_table() -> str:
    """Return a table of the known keys of a provider's `config`; keys with the same meaning share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for key, schema in config_schema().items():
        rows.setdefault((_schema_words(schema), schema.get("description", "")), []).append(key)
    lines = [
        f"| {', '.join(f'`{key}`' for key in keys)} | {_escaped(value)} | {_escaped(meaning) or 'a model parameter'} |"
        for (value, meaning), keys in rows.items()
    ]
    return "\n".join(("| key | value | meaning |", "| --- | --- | --- |", *lines))


def _schema_words(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_schema_words, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join(f"`{'false' if item is False else item}`" for item in schema["enum"])
    kinds = {
        "number": "a number",
        "integer": "a whole number",
        "string": "text",
        "boolean": "true or false",
        "object": "a mapping",
        "array": "a list",
    }
    kind = schema.get("type", "")
    names = [kind] if isinstance(kind, str) else list(kind)
    words = " or ".join(kinds.get(name, "nothing" if name == "null" else "any value") for name in names)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{words} from {low:g} to {high:g}"
    return words if low is None else f"{words}, at least {low:g}"


def _types() -> Iterable[str]:
    """Yield the types of each assertion class, with the keys that it has in addition to the common ones."""
    classes: dict[type[Assertion], list[str]] = {}
    for name in ASSERTION_TYPES:
        classes.setdefault(ASSERTION_TYPES[name], []).append(name)
    for model, names in classes.items():
        base = ModelGradedAssertion if issubclass(model, ModelGradedAssertion) else Assertion
        common = [name for name, info in base.model_fields.items() if _is_same(info, model, name)]
        needs = f" Needs {needs_of(model)}." if needs_of(model) else ""
        heading = f"#### {', '.join(names)}\n\n{summary_of(model)}.{needs}"
        has_keys = not set(model.model_fields) <= {"place", *common}
        yield f"{heading}\n\n{key_table(model, without=common)}" if has_keys else heading


def _is_same(info: Any, model: type[Assertion], name: str) -> bool:
    own = model.model_fields[name]
    return (own.description, own.annotation, own.default) == (info.description, info.annotation, info.default)


def summary_of(spec: type[Assertion]) -> str:
    """Return the first paragraph of a docstring, without the type names before its colon."""
    paragraph = " ".join((spec.__doc__ or "").split("\n\n")[0].split())
    text = (paragraph.partition(": ")[2] or paragraph).removesuffix(".")
    return text[:1].upper() + text[1:]


def needs_of(spec: type[Assertion]) -> str:
    kinds = {
        "text": "a judge",
        "search": "a judge that searches the web",
        "embedding": "embeddings",
        "moderation": "a moderator",
        "classification": "a classifier",
    }
    judges = spec.judge_kinds if issubclass(spec, ModelGradedAssertion) else ()
    found = [kinds[kind] for kind in judges]
    found += ["token probabilities"] * spec.needs_logprobs
    found += ["your own code"] * spec.runs_code + ["your own server"] * spec.calls_server
    found += ["all outputs of a test"] * spec.compares_outputs
    return ", ".join(found)

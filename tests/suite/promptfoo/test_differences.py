"""The table of differences from promptfoo: each row finds the configs that it concerns, and no other."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.promptfoo import load

from geval_cli.extras.promptfoo.differences import ROWS, differences

PLAIN: dict[str, Any] = {
    "prompts": ["Say {{ x }}"],
    "providers": ["openai:gpt-4.1"],
    "tests": [
        {
            "vars": {"x": "hello", "y": 7, "day": "a day"},
            "assert": [
                {"type": "contains", "value": "hello", "weight": 2},
                {"type": "regex", "value": "^h.*o$"},
                {"type": "is-json"},
                {"type": "not-equals", "value": "x"},
                {"type": "icontains", "value": "Hello"},
                {"type": "is-refusal"},
            ],
        }
    ],
}


def asserting(*assertions: Mapping[str, Any], **test: Any) -> dict[str, Any]:
    return {"tests": [{"vars": {"x": "hello"}, "assert": list(assertions), **test}]}


def rubric(**keys: Any) -> dict[str, Any]:
    return {"type": "llm-rubric", "value": "polite", **keys}


def js(value: str = "true") -> dict[str, Any]:
    return {"type": "javascript", "value": value}


def answering(**provider: Any) -> dict[str, Any]:
    return {"providers": [provider]}


def with_vars(**variables: Any) -> dict[str, Any]:
    return {"tests": [{"vars": variables}]}


FILES = {
    "app.py": "def call_api(prompt, options, context):\n    return {'output': 'a'}\n",
    "app.js": "module.exports = class { id() { return 'mine'; } async callApi() { return {output: 'a'}; } };",
    "make.js": "module.exports = ({vars}) => `Say ${vars.x}`;",
    "check.mjs": "export default () => true;\nexport function named() { return true; }\n",
    "vars.yaml": "x: hello\n",
    "cells.csv": 'x,__expected\na,"g-eval(0.9): good"\nb,"contains-any: ""one, two"",three"\n',
}
HTTP = {"id": "https://example.com/answer"}
CALL = {"type": "is-valid-openai-tools-call"}

CONCERNED: dict[str, dict[str, Any] | str] = {
    "judge-errors": asserting({"type": "g-eval", "value": "good", "provider": "openai:m"}),
    "judge-replies": asserting(rubric(provider="openai:m")),
    "judge-prompts": asserting(rubric(provider="openai:m")),
    "judge-parameters": asserting(rubric(provider="openai:m")),
    "default-judge": asserting(rubric()),
    "errors-and-failures": asserting({"type": "latency", "threshold": 9}, {"type": "contains", "value": "a"}),
    "missing-figures": asserting({"type": "cost", "threshold": 1}),
    "code-limits": asserting({"type": "python", "value": "True"}),
    "javascript": asserting(js()),
    "kept-state": asserting(js("file://check.mjs")),
    "code-without-return": asserting(js("const a = 1;\na > 0")),
    "given-functions": asserting(options={"transform": "(output) => output"}),
    "scoring-function": {
        "tests": [{"vars": {"x": "a"}, "assertScoringFunction": "({pass: true, score: 1})"}]
    },
    "stored-outputs": {"tests": [{"vars": {"x": "a"}, "options": {"storeOutputAs": "b"}}]},
    "transformed-lists": asserting(options={"transformVars": "({ ...vars, n: 1 })"}),
    "empty-made-prompts": {"prompts": ["file://make.js"]},
    "json-prompts": {"prompts": ['{"a": "{{ x }}"}']},
    "system-messages": {
        "providers": ["anthropic:m"],
        "prompts": [json.dumps([{"role": "system", "content": text} for text in ("a", "b")])],
    },
    "text-beside-calls": answering(id="openai:m", config={"tools": [{"type": "function"}]}),
    "gemini-tools": answering(id="google:m", config={"tools": [{"type": "function"}]}),
    "lists-as-prompts": {"prompts": ['["a", "b"]']},
    "other-apis": answering(id="ollama:chat:m"),
    "fine-tuned": answering(id="openai:ft:m"),
    "azure-version": answering(id="azure:chat:m"),
    "broken-variables": with_vars(x="{{a}{b}}"),
    "replacement-patterns": with_vars(x="{{ y }}", y="$& costs"),
    "filters": {"prompts": ["Say {{ x | upper }}"]},
    "slices": {"prompts": ["Say {{ x[0:2] }}"]},
    "file-of-variables": {"tests": [{"vars": "file://vars.yaml"}]},
    "postprocess": {
        "defaultTest": {"options": {"transform": "output"}},
        "tests": [{"vars": {"x": "a"}, "options": {"postprocess": "output + 'a'"}}],
    },
    "python-names": {"providers": ["file://app.py"]},
    "program-cache": answering(id="file://app.py", label="app"),
    "shared-ids": {
        "providers": [{"id": "openai:m", "prompts": ["Say {{ x }}"]}, {"id": "openai:m", "label": "b"}]
    },
    "dates": "prompts: [Say]\nproviders: [openai:m]\ntests: [{vars: {x: 2024-01-01}}]\n",
    "table-thresholds": {"tests": "file://cells.csv"},
    "table-commas": {"tests": "file://cells.csv"},
    "large-numbers": with_vars(x=[12345678901234567890]),
    "half-characters": "prompts: ['Say {{ x[0] }}']\nproviders: [openai:m]\ntests: [{vars: {x: \U0001f600}}]\n",
    "delay": answering(id="openai:m", delay=100),
    "provider-cache": answering(id="openai:m", config={"cache": False}),
    "bodies-without-method": answering(**HTTP, config={"body": {"a": "{{ prompt }}"}}),
    "text-bodies": answering(**HTTP, config={"method": "POST", "body": '{"a": "{{ prompt }}"}'}),
    "images": with_vars(x="data:image/png;base64,iVBORw0KGgo="),
    "tls": {"env": {"PROMPTFOO_INSECURE_SSL": "true"}},
    "services": asserting({"type": "moderation"}),
    "latency-from-cache": asserting({"type": "latency", "threshold": 9}),
    "ignored-negations": asserting({"type": "not-finish-reason", "value": "stop"}),
    "weight-0": asserting({"type": "contains", "value": "a", "weight": 0}),
    "weight-0-sets": asserting(
        {"type": "assert-set", "weight": 0, "assert": [{"type": "contains", "value": "a"}]}
    ),
    "webhook": asserting({"type": "webhook", "value": "https://example.com/check"}),
    "tools-missing": asserting(CALL),
    "single-calls": asserting({"type": "tool-call-f1", "value": ["a"]}),
    "traces": asserting({"type": "trajectory:tool-used", "value": "a"}),
    "string-metrics": asserting({"type": "bleu", "value": "a b c d"}),
    "rubric-scale": asserting(rubric()),
    "rubric-verdicts": asserting(rubric()),
    "select-best": asserting({"type": "select-best", "value": "the best"}),
    "max-score": asserting({"type": "max-score"}, {"type": "contains", "value": "a"}),
    "max-score-sets": asserting(
        {"type": "max-score"}, {"type": "assert-set", "assert": [{"type": "contains", "value": "a"}]}
    ),
    "rounding": asserting(js("0.7 + 0.1"), threshold=0.8),
    "answer-relevance": asserting({"type": "answer-relevance"}),
    "context-relevance": asserting({"type": "context-relevance"}),
    "context-faithfulness": asserting({"type": "context-faithfulness"}),
    "class-scores": asserting(
        {"type": "classifier", "value": "a", "provider": "huggingface:text-classification:m"}
    ),
    "guardrails": asserting({"type": "guardrails"}),
    "search-rubric": asserting({"type": "search-rubric", "value": "a"}),
    "embedding-judges": asserting({"type": "similar", "value": "a"}),
    "empty-outputs": asserting({"type": "similar", "value": "a"}),
    "characters": asserting({"type": "levenshtein", "value": "a"}),
    "json-keywords": asserting({"type": "is-json", "value": {"type": "object", "x-order": 1}}),
    "html": asserting({"type": "not-contains-html"}),
    "xml": asserting({"type": "is-xml", "value": "a.b"}),
    "sql": asserting({"type": "is-sql"}),
    "regex": asserting({"type": "regex", "value": "(?i)a"}),
    "contains-nothing": asserting({"type": "contains", "value": "{{ x }}"}),
    "named-exports": asserting(js("file://check.mjs:named")),
    "derived-metrics": {"derivedMetrics": [{"name": "a", "value": "b + 1"}]},
}


def ids_of(folder: Path, content: Mapping[str, Any] | str) -> set[str]:
    written = content if isinstance(content, str) else {**PLAIN, **content}
    return {item.id for item in differences(load(folder, written, files=FILES))}


def test_every_row_finds_its_configs_or_says_why_it_concerns_none() -> None:
    ids = [row.id for row in ROWS]
    assert len(ids) == len(set(ids))
    for row in ROWS:
        finds = any(one is not None for one in (row.assertion, row.test, row.suite, row.template))
        assert finds is not bool(row.never), row.id
    assert set(CONCERNED) == {row.id for row in ROWS if not row.never}


def test_no_row_concerns_a_plain_config(tmp_path: Path) -> None:
    assert ids_of(tmp_path, {}) == set()


@pytest.mark.parametrize("row", CONCERNED)
def test_a_row_finds_the_config_that_it_concerns(row: str, tmp_path: Path) -> None:
    assert row in ids_of(tmp_path, CONCERNED[row])


@pytest.mark.parametrize(
    ("pattern", "counts"),
    [
        ("^.{5}$", True),
        ("^.$", True),
        (r"^[^,]{2}", True),
        (r"\S{3}", True),
        (r"\.{3}$", False),
        (r"^\d{3}$", False),
    ],
)
def test_a_pattern_that_counts_characters_differs(pattern: str, counts: bool, tmp_path: Path) -> None:
    found = ids_of(tmp_path, asserting({"type": "regex", "value": pattern}))
    assert ("characters" in found) is counts


@pytest.mark.parametrize(
    ("written", "is_date"),
    [
        ("2024-01-01", True),
        ("2024-1-5", True),
        ("2024-01-01T10:00:00Z", True),
        ("2024-01-01 10:00:00", True),
        ("'2024-01-01'", False),
        ('"2024-01-01"', False),
        ("on 2024-01-01", False),
        ("2024-01", False),
        ("|\n        2024-01-01", False),
    ],
)
def test_only_dates_without_quotes_differ(written: str, is_date: bool, tmp_path: Path) -> None:
    content = f"prompts: [Say]\nproviders: [openai:m]\ntests:\n  - vars:\n      x: {written}\n"
    assert ("dates" in ids_of(tmp_path, content)) is is_date


def test_dates_in_tables_and_json_are_texts_to_promptfoo_too(tmp_path: Path) -> None:
    rows = {"rows.csv": "x\n2024-01-01\n", "rows.json": '[{"vars": {"x": "2024-01-01"}}]'}
    for name, text in rows.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert "dates" not in ids_of(tmp_path, {"tests": f"file://{name}"})


def test_a_row_is_listed_once_with_its_first_place_and_the_number_of_others(tmp_path: Path) -> None:
    content = {**PLAIN, "tests": [{"vars": {"x": "a"}, "assert": [js(), js("1")]}, {"assert": [js()]}]}
    [found] = [item for item in differences(load(tmp_path, json.dumps(content))) if item.id == "javascript"]
    assert found.location is not None
    assert found.more == 2


@pytest.mark.parametrize(
    "kind", ["factuality", "model-graded-factuality", "model-graded-closedqa", "latency", "cost"]
)
def test_negations_that_promptfoo_ignores_are_told(kind: str, tmp_path: Path) -> None:
    keys = {"threshold": 1} if kind in {"latency", "cost"} else {"value": "a"}
    for prefix in ("not-", ""):
        found = differences(load(tmp_path, {**PLAIN, **asserting({"type": prefix + kind, **keys})}))
        assert ("ignored-negations" in {row.id for row in found}) == bool(prefix)


@pytest.mark.parametrize(
    ("content", "may_miss"),
    [
        (asserting({**js("0.7 + 0.1"), "threshold": 0.8}), True),
        (asserting({"type": "contains", "value": "a", "weight": 0.1}, js(), threshold=0.8), True),
        (asserting({"type": "assert-set", "threshold": 0.8, "assert": [js("0.7 + 0.1")]}), True),
        (asserting(js("0.7 + 0.1")), False),
        (asserting(js(), threshold=0), False),
        (asserting({"type": "contains", "value": "a"}, {"type": "is-json"}, threshold=0.5), False),
    ],
)
def test_thresholds_that_a_rounding_error_may_miss_are_told(
    content: dict[str, Any], may_miss: bool, tmp_path: Path
) -> None:
    assert ("rounding" in ids_of(tmp_path, content)) is may_miss


@pytest.mark.parametrize(
    ("keys", "differs"),
    [
        ({"weight": 0}, True),
        ({"threshold": 0.5, "assert": [{"type": "contains", "value": "a", "weight": 0}]}, True),
        ({"assert": [{"type": "contains", "value": "a", "weight": 0}]}, True),
        ({"assert": [{"type": "contains", "value": c, "weight": int(c == "a")} for c in "ab"]}, False),
        ({"threshold": 0.5}, False),
    ],
)
def test_sets_without_weight_are_told(keys: dict[str, Any], differs: bool, tmp_path: Path) -> None:
    spec = {"type": "assert-set", "assert": [{"type": "contains", "value": "a"}], **keys}
    found = differences(load(tmp_path, {**PLAIN, **asserting(spec)}))
    assert ("weight-0-sets" in {row.id for row in found}) == differs

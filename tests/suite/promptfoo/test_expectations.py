from typing import Any

import pytest

from geval_cli.extras.promptfoo.test_rows import PROMPTFOO_TYPES, assertion_of_cell


@pytest.mark.parametrize(
    ("cell", "assertion"),
    [
        ("Paris", {"type": "equals", "value": "Paris"}),
        ("note: this is text", {"type": "equals", "value": "note: this is text"}),
        ("contains: Paris ", {"type": "contains", "value": "Paris"}),
        ("not-icontains:x", {"type": "not-icontains", "value": "x"}),
        ("is-json", {"type": "is-json"}),
        ('contains-any:a,"b, c", d', {"type": "contains-any", "value": ["a", "b, c", "d"]}),
        ("icontains-all:a\nb,, c,", {"type": "icontains-all", "value": ["a\nb", "c"]}),
        ("similar:hi", {"type": "similar", "value": "hi", "threshold": 0.8}),
        ("similar(0.5):hi", {"type": "similar", "value": "hi", "threshold": 0.5}),
        ("levenshtein(5):hi", {"type": "levenshtein", "value": "hi", "threshold": 5}),
        ("latency(0)", {"type": "latency", "threshold": 0}),
        ("rouge-n:a", {"type": "rouge-n", "value": "a", "threshold": 0.75}),
        ("grade: is polite", {"type": "llm-rubric", "value": " is polite"}),
        ("llm-rubric:is: polite", {"type": "llm-rubric", "value": "is: polite"}),
        ("fn: output.length > 3", {"type": "javascript", "value": "output.length > 3"}),
        ("python: len(output)", {"type": "python", "value": "len(output)"}),
        ("file://checks/a.py:score", {"type": "python", "value": "file://checks/a.py:score"}),
        ("file://a.js", {"type": "javascript", "value": "file://a.js"}),
        ("g-eval(0.9):is kind", {"type": "g-eval", "value": "is kind", "threshold": 0.9}),
        ("regex:a:b\nc", {"type": "regex", "value": "a:b\nc"}),
        ("contains", {"type": "contains"}),
        ("tool-call-f1(0.5): a, b", {"type": "tool-call-f1", "value": "a, b", "threshold": 0.5}),
        ("not-tool-call-f1:a", {"type": "not-tool-call-f1", "value": "a"}),
        ("item1: a", {"type": "equals", "value": "item1: a"}),
        ("über: x", {"type": "equals", "value": "über: x"}),
    ],
)
def test_a_cell_stands_for_an_assertion(cell: str, assertion: dict[str, Any]) -> None:
    assert assertion_of_cell(cell, PROMPTFOO_TYPES) == assertion

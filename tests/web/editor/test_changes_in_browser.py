"""Changes of the form in the text of a suite: read by geval's own reader, only the value that was typed is another."""

import copy
import re
from typing import Any

from support.browser import Visit

from geval_cli.source.yaml_source import read_yaml

TEXTS = {
    "lines": (
        "# top\nprompts:\n  # one\n  - id: a # id\n    raw: Say {{x}} # say\n    evaluation_criteria: |  # kept\n"
        "      Be kind.\n      Be short.\n\n  - Say it # short\nproviders: echo\n"
        "tests:\n- vars: {x: 1, y: 'two', z: true}\n"
        '  input: "hi" # c\n  assert:\n  # what\n  - type: contains # any\n    value: b\n\n- description: d\n'
        "  evaluation_schema:\n    type: object # t\n    properties: {}\n  # end\n-\n# last\n"
    ),
    "JSON": (
        '{"prompts": ["a", {"raw": "b"}], "providers": ["echo"],'
        ' "tests": [{"input": "x"}, {"vars": {"q": "z"}}]}'
    ),
    "short": "prompts: Say {{x}}\nproviders: [echo]\ntests:\n  - input: a",
    "blocks": (
        "prompts:\n  - |\n    Line one\n    Line two\n  - system: >\n      folded text\n      more\n    label: L\n"
        "providers:\n  - id: echo\n    label: e\ntests: []\n"
    ),
    "one prompt": "prompts:\n  id: p\n  raw: hello\nproviders: [echo]\ntests: []\n",
    "headings": (
        "description: # what\nprompts:\n  - |  # kept\n    # Role\n    Be kind.\n       \n    # End\n\n  - raw: |\n"
        "      # One\n      # Two\nproviders: [echo]\ntests:\n  - input: # c\n"
        "    vars:\n      x: # any\n      y: !!str\n"
    ),
}
PLACES: dict[str, list[list[str | int]]] = {
    "lines": [
        ["description"],
        *(["prompts", 0, key] for key in ("raw", "evaluation_criteria", "evaluation_mode")),
        *(["prompts", 1, *key] for key in ([], ["evaluation_mode"])),
        ["providers", 0],
        *(["tests", 0, "vars", key] for key in ("x", "y", "z")),
        *(["tests", 0, key] for key in ("input", "expected_output")),
        *(["tests", 1, key] for key in ("description", "input")),
        ["tests", 2, "input"],
    ],
    "JSON": [
        ["description"],
        ["prompts", 0],
        ["prompts", 0, "evaluation_mode"],
        ["prompts", 1, "raw"],
        ["tests", 0, "input"],
        ["tests", 0, "expected_output"],
        ["tests", 1, "vars", "q"],
        ["tests", 1, "input"],
    ],
    "short": [["prompts", 0], ["prompts", 0, "evaluation_mode"], ["providers", 0], ["tests", 0, "input"]],
    "blocks": [
        ["prompts", 0],
        ["prompts", 0, "evaluation_mode"],
        *(["prompts", 1, key] for key in ("system", "label", "evaluation_criteria")),
        ["providers", 0, "id"],
    ],
    "one prompt": [["prompts", 0, "raw"], ["prompts", 0, "evaluation_criteria"], ["description"]],
    "headings": [
        ["description"],
        ["prompts", 0],
        ["prompts", 1, "raw"],
        ["tests", 0, "input"],
        *(["tests", 0, "vars", key] for key in ("x", "y")),
    ],
}
VALUES = [
    *(
        "word",
        "two words",
        "",
        "a: b",
        "# no",
        "yes",
        *("5", "-7.25", "012", "1.50", "1e21", "true", "True"),
        "null",
        "1e3",
        "2024-01-01",
        "end:",
        "%tag",
        "[x]",
    ),
    *("# head\n# next", "a\n# next\n", "a\n  ", "a\n \n", "a\n\t", "a\n  \n b"),
    *("line\nnext", "line\nnext\n", "a\n\nb", "a\n\n", "multi\n  indented\nback", "kept \nspace", "{{ x }}"),
    *(
        " lead",
        "trail ",
        "tab\tx",
        "- dash",
        "'q'",
        '"dq"',
        "\u00e9 \u65e5\u672c",
        "\u2028 x\x85y",
        "half # way",
    ),
]
APPLY = """
async (cases) => {
  const { readSuite } = await import('/static/editor-yaml.js');
  return cases.map(([text, act, ...given]) => {
    const change = readSuite(text)[act](...given);
    return text.slice(0, change.from) + change.insert + text.slice(change.to);
  });
}
"""
TYPE = """
async (cases) => {
  const { readSuite } = await import('/static/editor-yaml.js');
  return cases.map(([text, path, value]) => {
    const style = readSuite(text).value(path) ? readSuite(text).style(path) : 'PLAIN';
    for (let end = 1; end <= value.length; end += 1) {
      const change = readSuite(text).set(path, value.slice(0, end), style);
      text = text.slice(0, change.from) + change.insert + text.slice(change.to);
    }
    return text;
  });
}
"""
Case = tuple[list[Any], Any]
"""What is done, and what the suite is afterwards."""


def with_value(suite: Any, path: list[str | int], value: Any) -> Any:
    """The suite with a value; a prompt that is a text alone keeps it as `raw`, and one prompt alone is the first.

    A number that replaces a number is one, and so is what is true or false.
    """
    changed = copy.deepcopy(suite)
    if path[0] in {"prompts", "providers"} and not isinstance(suite[path[0]], list):
        path = [path[0], *path[2:]]
    here = changed
    for depth, key in enumerate(path[:-1]):
        inner = here[key] if not isinstance(here, dict) or key in here else None
        if isinstance(inner, str) and depth == len(path) - 2:
            inner = {"raw": inner}
        here[key] = {} if inner is None else inner
        here = here[key]
    old = here.get(path[-1]) if isinstance(here, dict) else here[path[-1]]
    kinds: dict[type, dict[str, Any]] = {bool: {"true": True}, int: {"5": 5, "-7.25": -7.25}}
    here[path[-1]] = kinds.get(type(old), {}).get(value, value) if isinstance(value, str) else value
    return changed


def check(window: Visit, cases: list[Case]) -> list[str]:
    """Make the changes; the texts that came of them."""
    texts: list[str] = window.page.evaluate(APPLY, [asked for asked, _ in cases])
    wrong = {}
    for (asked, wanted), text in zip(cases, texts, strict=True):
        if read_yaml(text, "suite.yaml").value != wanted:
            wrong[repr(asked)] = text
    assert wrong == {}
    return texts


def test_a_text_that_is_typed_is_the_only_thing_that_changes(window: Visit) -> None:
    cases: list[Case] = []
    for name, places in PLACES.items():
        suite = read_yaml(TEXTS[name], "suite.yaml").value
        for path in places:
            cases += [([TEXTS[name], "set", path, value], with_value(suite, path, value)) for value in VALUES]
    texts = check(window, cases)
    comment = re.compile(r"(?:^|\s)# (?:top|one|id|say|kept|short|c|what|any|t|end|last)$", re.MULTILINE)
    for (asked, _), text in zip(cases, texts, strict=True):
        assert len(comment.findall(text)) == len(comment.findall(asked[0])), asked


def test_a_text_is_the_same_letter_by_letter(window: Visit) -> None:
    cases = [
        (TEXTS[name], path, value)
        for name, places in PLACES.items()
        for path in places
        for value in VALUES
        if "\n" in value or "#" in value or value in {"5", "-7.25", "true", "yes"}
    ]
    texts: list[str] = window.page.evaluate(TYPE, cases)
    wrong = {}
    for (text, path, value), typed in zip(cases, texts, strict=True):
        if read_yaml(typed, "suite.yaml").value != with_value(read_yaml(text, "s").value, path, value):
            wrong[repr((path, value))] = typed
    assert wrong == {}


def test_keys_and_items_come_and_go(window: Visit) -> None:
    cases: list[Case] = []
    schema = {"type": "object", "a": [1, {"b": None}]}
    items = {"prompts": (['raw: "n"'], {"raw": "n"}), "tests": (["input: n"], {"input": "n"})}
    for text in TEXTS.values():
        suite: Any = read_yaml(text, "suite.yaml").value
        for name, (lines, item) in items.items():
            old = suite[name] if isinstance(suite[name], list) else [suite[name]]
            cases.append(([text, "add", [name], lines, item], {**suite, name: [*old, item]}))
            for at in range(len(old) if isinstance(suite[name], list) else 0):
                cases.append(([text, "removeItem", name, at], {**suite, name: old[:at] + old[at + 1 :]}))
                cases.append(([text, "copyItem", name, at], {**suite, name: old[: at + 1] + old[at:]}))
        for at, test in enumerate(suite["tests"]):
            path = ["tests", at, "evaluation_schema"]
            cases.append(([text, "setJson", path, schema], with_value(suite, path, schema)))
            more = [*((test or {}).get("assert") or []), {"type": "g-eval", "threshold": 0.5}]
            asked = [text, "add", ["tests", at, "assert"], ["type: g-eval", "threshold: 0.5"], more[-1]]
            cases.append((asked, with_value(suite, ["tests", at, "assert"], more)))
            for key in test or {}:
                less = copy.deepcopy(suite)
                del less["tests"][at][key]
                cases.append(([text, "remove", ["tests", at, key]], less))
    check(window, cases)

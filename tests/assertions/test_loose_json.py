import pytest

from geval_cli.assertions.json_output import loose_objects
from geval_cli.records import JsonValue


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('x {"a": {"b": 1}} y {"c": 2}', [{"a": {"b": 1}}, {"c": 2}]),
        ("{'py': 'dict', k: 1,}", [{"py": "dict", "k": 1}]),
        ("[1, 2]", []),
        ('[{"a": 1}]', [{"a": 1}]),
        ('cut off {"a": {"b": 1', [{"a": {"b": 1}}]),
        ("function() { return x; }", [{"return x;": None}]),
        ("{a: b: c: d} {}", [{}]),
        ("no braces", []),
        ("", []),
        ("}{", [{}]),
    ],
)
def test_objects(text: str, found: list[JsonValue]) -> None:
    assert [*loose_objects(text)] == found


def test_a_text_of_nothing_but_braces_comes_to_an_end() -> None:
    assert [*loose_objects("{" * 3_000 + "x" * 10)] == []

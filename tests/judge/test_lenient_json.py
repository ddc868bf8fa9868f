import pytest

from geval_cli.judge.lenient_json import JsonObject, find_objects, read_array


def plain(value):
    if isinstance(value, JsonObject):
        return {member.key: plain(member.value) for member in value.members}
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("text", "objects"),
    [
        ('{"a": 1}', [{"a": 1.0}]),
        ('x {"a": 1} y {"b": "c"} z', [{"a": 1.0}, {"b": "c"}]),
        (
            '{"a": {"b": [1, "2", null, true, False, None]}}',
            [{"a": {"b": [1, "2", None, True, False, None]}}],
        ),
        ("{a: 1, 'b': word}", [{"a": 1.0, "b": "word"}]),
        ('{"a": 1,}', [{"a": 1.0}]),
        ('{"a": "x" "b": 2}', [{"a": "x", "b": 2.0}]),
        ('{"a": "x", "y", and", "b": 2}', [{"a": 'x", "y", and', "b": 2.0}]),
        ('{"a": 1, "b": "cut o', [{"a": 1.0}]),
        ('{"a": [1, 2', []),
        ('{"a": 1e3, "b": -2.5, "c": +4, "d": .5}', [{"a": 1000.0, "b": -2.5, "c": 4.0, "d": 0.5}]),
        ("{{name}} is {no} object: {1}", []),
        ('{name} then {"a": 1}', [{"a": 1.0}]),
        ('{ {"a": 1}', [{"a": 1.0}]),
        ("{}", []),
        ("", []),
    ],
)
def test_objects_are_found_and_read(text, objects):
    assert [plain(found) for found in find_objects(text)] == objects


def test_members_know_where_their_values_stand():
    text = 'so: {"reason": "é ok", "score": 8.5, "as": "7"}'
    (found,) = find_objects(text)

    assert [text[member.start : member.end] for member in found.members] == ["é ok", "8.5", "7"]
    assert found.is_closed
    assert found.end == len(text)


def test_an_object_without_an_end_says_so():
    (found,) = find_objects('{"a": 1')

    assert not found.is_closed


def test_the_own_member_comes_before_those_of_nested_objects():
    (found,) = find_objects('{"score": 1, "details": {"score": 2}}')
    assert found.last("score").value == 1

    (found,) = find_objects('{"first": {"score": 1}, "second": {"score": 2}}')
    assert found.last("score").value == 2
    assert found.last("missing") is None


def test_a_list_is_read_or_it_is_none():
    assert read_array('["a", "b"]', 0) == ["a", "b"]
    assert read_array('["a", "b"', 0) is None
    assert read_array("[1,2,34]", 0) == [1, 2, 34], "no decimal comma between the items"


@pytest.mark.parametrize("escape", [r"\n", r"\t", r"\"", r"\\", r"\/", r"\u00e9", r"\ud83d\ude00"])
def test_escapes_are_read_as_in_json(escape):
    import json

    (found,) = find_objects(f'{{"a": "x{escape}y"}}')

    assert found.members[0].value == json.loads(f'"x{escape}y"')


def test_half_a_surrogate_pair_is_replaced():
    (found,) = find_objects(r'{"a": "\ud83d"}')

    assert found.members[0].value == "\ufffd"

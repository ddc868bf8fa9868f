import pytest

from geval_cli.assertions.base import Assertion
from geval_cli.assertions.match import COMPARISONS, TextAssertion
from geval_cli.assertions.registry import ASSERTION_TYPES, EVALUATION_TYPES, AssertionTypes


@pytest.mark.parametrize("types", [ASSERTION_TYPES, EVALUATION_TYPES])
def test_every_type_has_a_class_that_says_all_of_it(types: AssertionTypes) -> None:
    for name in types:
        found = types[name]
        assert issubclass(found, Assertion), name
        method = "judge_row" if found.compares_outputs else "judge"
        assert getattr(found, method) is not getattr(Assertion, method), name
        assert found.compares_outputs == (found.judge_row is not Assertion.judge_row), name
        assert found.__doc__, name


def test_every_text_type_has_its_comparison() -> None:
    assert COMPARISONS.keys() == {name for name in ASSERTION_TYPES if ASSERTION_TYPES[name] is TextAssertion}


def test_names_of_types_load_nothing() -> None:
    types = AssertionTypes({"x": "no_such_module:X"})
    assert list(types) == ["x"]
    assert "x" in types
    assert len(types) == 1
    with pytest.raises(ModuleNotFoundError):
        types["x"]

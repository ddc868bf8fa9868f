import pytest

from geval_cli.errors import MissingParamsError
from geval_cli.judge.metric import JudgedCase
from geval_cli.judge.source import (
    as_text,
    chosen_texts,
    missing_params,
    param_text,
    present_texts,
    resolve_input,
    resolve_source,
)


def case(**values):
    return JudgedCase(**{"actual_output": "An answer.", **values})


def test_the_input_is_the_tests_own_then_the_var_then_the_prompt():
    everything = {"input": "own", "vars": {"input": "var"}, "rendered_prompt": "prompt"}

    assert resolve_input(case(**everything)) == "own"
    assert resolve_input(case(**{**everything, "input": None})) == "var"
    assert resolve_input(case(rendered_prompt="prompt")) == "prompt"
    assert resolve_input(case()) == ""


ORDER = [
    ("source", {"source": "S"}),
    ("vars.Document", {"vars": {"Document": "S"}}),
    ("vars.document", {"vars": {"document": "S"}}),
    ("vars.source", {"vars": {"source": "S"}}),
    ("vars.article", {"vars": {"article": "S"}}),
    ("vars.conversation", {"vars": {"conversation": "S"}}),
    ("vars.text", {"vars": {"text": "S"}}),
    ("retrieval_context", {"retrieval_context": "S"}),
    ("context", {"context": "S"}),
    ("vars.query", {"vars": {"query": "S"}}),
    ("vars.prompt", {"vars": {"prompt": "S"}}),
    ("prompt", {"rendered_prompt": "S"}),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_source_is_the_first_of_the_order_and_says_where_it_is_from(first):
    given = {}
    for index, (_, values) in enumerate(ORDER[first:], first):
        for key, value in values.items():
            marked = dict.fromkeys(value, f"S{index}") if isinstance(value, dict) else f"S{index}"
            given[key] = {**given.get(key, {}), **marked} if isinstance(marked, dict) else marked

    found = resolve_source(case(**given))

    assert found.found_in == ORDER[first][0]
    assert found.text == f"S{first}"


@pytest.mark.parametrize("given", [{"input": "asked"}, {"vars": {"input": "asked"}}])
def test_what_was_asked_is_the_source_of_an_output_without_a_prompt(given):
    assert resolve_source(case(**given)).text == "asked"
    assert resolve_source(case(**given, rendered_prompt="P")).text == "P"


def test_blank_texts_are_passed_over():
    found = resolve_source(case(vars={"Document": "  ", "text": ""}, context=(), rendered_prompt="P"))

    assert (found.text, found.found_in) == ("P", "prompt")


def test_a_context_besides_the_source_is_the_knowledge():
    found = resolve_source(case(vars={"conversation": "Hi!", "context": "A fact."}))
    assert (found.text, found.knowledge) == ("Hi!", "A fact.")

    found = resolve_source(case(vars={"article": "News."}, context=("One.", "Two.")))
    assert found.knowledge == "[1] One.\n[2] Two."

    found = resolve_source(case(vars={"conversation": "Hi!", "knowledge": "A fact."}))
    assert found.knowledge == "A fact."


def test_the_source_is_not_its_own_knowledge():
    assert resolve_source(case(context="A fact.")).knowledge is None
    assert resolve_source(case(context="A fact.", vars={"context": "A fact."})).knowledge is None


def test_the_rag_example_of_the_documentation_shows_query_and_context():
    found = resolve_source(case(vars={"query": "How many days?", "context": "20 days.", "output": "20"}))

    assert (found.found_in, found.text, found.knowledge) == ("vars.query", "How many days?", "20 days.")


def test_default_parameters_are_those_that_the_case_has():
    full = case(input="Q", expected_output="E", context="C", retrieval_context=("R",))

    assert chosen_texts(None, case()) == {"actual_output": "An answer."}
    assert list(chosen_texts(None, case(input="Q")).items()) == [
        ("input", "Q"),
        ("actual_output", "An answer."),
    ]
    assert tuple(chosen_texts(None, full)) == (
        "input",
        "actual_output",
        "expected_output",
        "context",
        "retrieval_context",
    )


def test_named_parameters_are_shown_in_the_judges_order():
    chosen = chosen_texts(["expected_output", "actual_output"], case(input="Q", expected_output="E"))
    assert list(chosen.items()) == [("actual_output", "An answer."), ("expected_output", "E")]


def test_a_named_parameter_that_the_case_lacks_is_an_error_naming_it():
    with pytest.raises(MissingParamsError) as caught:
        chosen_texts(["actual_output", "expected_output", "context"], case(context=" "))
    assert caught.value.params == ("expected_output", "context")
    assert missing_params(None, case()) == ()


def test_an_empty_output_is_an_output():
    assert present_texts(case(actual_output="")) == {"actual_output": ""}
    assert param_text("actual_output", case(actual_output="")) == ""
    assert param_text("actual_output", case(actual_output=None)) == "null"


def test_texts_are_shown_as_they_are_lists_numbered_and_data_as_json():
    assert as_text("é") == "é"
    assert as_text(["one"]) == "one"
    assert as_text(("one", "two")) == "[1] one\n[2] two"
    assert as_text({"a": "é"}) == '{\n  "a": "é"\n}'
    assert as_text([1, 2]) == "[\n  1,\n  2\n]"
    assert as_text([]) == "[]"

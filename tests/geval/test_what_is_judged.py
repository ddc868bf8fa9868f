"""Which output is judged, and what the judge sees beside it."""

from typing import Any

import pytest
from support.model_server import ModelServer, prompt_of
from support.product import Product

FLUENT = {"type": "g-eval", "dimension": "fluency", "evaluation_steps": ["Read."]}


def grounded(**keys: Any) -> dict[str, Any]:
    return {"type": "g-eval", "dimension": "groundedness", "evaluation_steps": ["Read."], **keys}


def helpful(*params: str) -> dict[str, Any]:
    named = {"evaluation_params": list(params)} if params else {}
    return {"type": "g-eval", "criteria": "It helps.", "evaluation_steps": ["Read."], **named}


def labels(prompt: str) -> list[str]:
    """The names of the texts that the judge was shown, in their order."""
    return [" ".join(line.split()[1:-1]) for line in prompt.splitlines() if line.startswith("<<<BEGIN")]


def text_under(label: str, prompt: str) -> str:
    """What stands between the BEGIN and END lines of a text."""
    _, rest = prompt.split(f"<<<BEGIN {label} ", 1)
    return rest.split(">>>\n", 1)[1].split(f"\n<<<END {label} ", 1)[0]


# -- the output -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["test", "vars"])
@pytest.mark.parametrize("providers", [None, ["none"], "none"])
def test_a_test_with_an_output_is_judged_as_it_is(where: str, providers: Any, product: Product) -> None:
    output = {"output": "A text."}
    config = {"tests": [{**(output if where == "test" else {"vars": output}), "assert": [FLUENT]}]}
    if providers is not None:
        config["providers"] = providers
    with ModelServer() as server:
        finished = product.run(config, server)

    assert (finished.code, server.asked("answer")) == (0, [])
    assert finished.cases[0]["output"] == "A text."
    assert text_under("Output", prompt_of(server.asked("form")[0])) == "A text."


def test_with_a_provider_its_answer_is_judged_and_a_warning_names_the_unused_output(product: Product) -> None:
    config = {
        "prompts": ["Say something."],
        "providers": ["openai:under-test"],
        "tests": [{"vars": {"output": "A text."}, "assert": [FLUENT]}],
    }
    with ModelServer(answer="Another text.") as server:
        finished = product.run(config, server)

    assert finished.cases[0]["output"] == "Another text."
    assert "`vars.output` is not judged in test 1: the config has providers" in finished.stderr


def test_a_test_without_output_and_provider_is_a_problem(product: Product) -> None:
    with ModelServer() as server:
        finished = product.run({"tests": [{"vars": {"topic": "bees"}, "assert": [FLUENT]}]}, server)

    assert (finished.code, server.requests) == (2, [])
    assert "nothing to judge in test 1" in finished.stderr


def test_an_output_that_is_data_is_judged_as_json(product: Product) -> None:
    config = {"tests": [{"output": {"open": ["nine", "ten"]}, "assert": [helpful()]}]}
    with ModelServer() as server:
        product.run(config, server)

    shown = text_under("Actual Output", prompt_of(server.asked("evaluate")[0]))
    assert shown == '{\n  "open": [\n    "nine",\n    "ten"\n  ]\n}'


# -- the source of a dimension ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "source_from", "source"),
    [
        ({"vars": {"Document": "D", "article": "A"}}, "vars.Document", "D"),
        ({"vars": {"article": "A", "query": "Q"}}, "vars.article", "A"),
        ({"vars": {"query": "Q"}, "retrieval_context": ["R", "S"]}, "retrieval_context", "[1] R\n[2] S"),
        ({"vars": {"query": "Q"}, "context": "C"}, "context", "C"),
        ({"vars": {"prompt": "P"}, "context": "  "}, "vars.prompt", "P"),
        ({"vars": {"topic": "T"}}, "prompt", "About T."),
    ],
)
def test_the_source_is_found_and_its_place_is_in_the_result(
    test: dict[str, Any], source_from: str, source: str, product: Product
) -> None:
    config = {
        "prompts": ["About {{ topic | default('that') }}."],
        "providers": ["openai:under-test"],
        "tests": [{**test, "assert": [grounded()]}],
    }
    with ModelServer() as server:
        finished = product.run(config, server, "--verbose")

    assert finished.verdict["detail"]["source_from"] == source_from
    assert text_under("Source", prompt_of(server.asked("form")[0])) == source
    assert f"source  {source_from}" in finished.stdout


def test_a_source_template_wins(product: Product) -> None:
    test = {
        "vars": {"article": "A", "title": "T"},
        "output": "O",
        "assert": [grounded(source="{{title}}: {{article}}")],
    }
    with ModelServer() as server:
        finished = product.run({"tests": [test]}, server)

    assert finished.verdict["detail"]["source_from"] == "source"
    assert text_under("Source", prompt_of(server.asked("form")[0])) == "T: A"


@pytest.mark.parametrize("place", ["context", "retrieval_context", "vars"])
def test_groundedness_shows_the_conversation_and_the_knowledge(place: str, product: Product) -> None:
    conversation, knowledge = {"conversation": "When was it lit?"}, "It was lit in 1871."
    variables = {**conversation, "context": knowledge} if place == "vars" else conversation
    test: dict[str, Any] = {"vars": variables, "output": "In 1871.", "assert": [grounded()]}
    if place != "vars":
        test[place] = knowledge
    with ModelServer() as server:
        product.run({"tests": [test]}, server)

    prompt = prompt_of(server.asked("form")[0])
    assert labels(prompt) == ["Source", "Context", "Output"]
    assert text_under("Source", prompt) == "When was it lit?"
    assert text_under("Context", prompt) == knowledge


# -- the parameters of the criteria form ------------------------------------------------------------------------


FULL = {
    "input": "When do you open?",
    "expected_output": "At nine.",
    "context": "We open at nine.",
    "retrieval_context": ["Open from nine.", "Closed on Mondays."],
    "output": "Nine.",
}


def test_by_default_the_judge_sees_all_that_a_test_has(product: Product) -> None:
    with ModelServer() as server:
        finished = product.run({"tests": [{**FULL, "assert": [helpful()]}]}, server)

    prompt = prompt_of(server.asked("evaluate")[0])
    assert labels(prompt) == [
        "Input",
        "Actual Output",
        "Expected Output",
        "Context",
        "Retrieval Context",
    ]
    assert text_under("Retrieval Context", prompt) == "[1] Open from nine.\n[2] Closed on Mondays."
    assert finished.verdict["detail"]["evaluation_params"] == [
        "input",
        "actual_output",
        "expected_output",
        "context",
        "retrieval_context",
    ]


def test_named_parameters_are_all_that_the_judge_sees_and_the_steps_relate(product: Product) -> None:
    assertion = helpful("actual_output", "expected_output") | {"evaluation_steps": None}
    test = {**FULL, "assert": [{key: value for key, value in assertion.items() if value is not None}]}
    with ModelServer() as server:
        product.run({"tests": [test]}, server)

    prompt = prompt_of(server.asked("evaluate")[0])
    assert labels(prompt) == ["Actual Output", "Expected Output"]
    assert "Parameters:\nActual Output and Expected Output\n" in prompt
    steps = " ".join(prompt_of(server.asked("steps")[0]).split())
    assert "Actual Output and Expected Output in relation to one another" in steps


@pytest.mark.parametrize(
    ("test", "params", "lacks"),
    [
        ({}, ("expected_output",), "expected_output"),
        ({"context": ""}, ("context",), "context"),
        ({"context": []}, ("actual_output", "context"), "context"),
        ({"retrieval_context": "  \n"}, ("retrieval_context",), "retrieval_context"),
        ({"expected_output": " "}, ("expected_output", "context"), "expected_output, context"),
        ({}, ("input",), "input"),
    ],
)
def test_a_named_parameter_that_a_test_lacks_is_a_problem_before_anything_is_paid(
    test: dict[str, Any], params: tuple[str, ...], lacks: str, product: Product
) -> None:
    with ModelServer() as server:
        finished = product.run({"tests": [{"output": "Nine.", **test, "assert": [helpful(*params)]}]}, server)

    assert (finished.code, server.requests) == (2, [])
    assert f"test 1 has no {lacks}, which evaluation_params lists" in finished.stderr


def test_a_parameter_among_the_vars_is_pointed_out(product: Product) -> None:
    test = {"output": "Nine.", "vars": {"context": "We open at nine."}, "assert": [helpful("context")]}
    with ModelServer() as server:
        finished = product.run({"tests": [test]}, server)

    assert finished.code == 2
    assert "move context from `vars` to the test itself" in finished.stderr


@pytest.mark.parametrize(
    ("test", "shown"),
    [
        ({"input": "I", "vars": {"input": "V"}}, "I"),
        ({"vars": {"input": "V"}}, "V"),
        ({}, "About bees."),
    ],
)
def test_the_input_is_the_tests_own_or_a_var_or_the_prompt(
    test: dict[str, Any], shown: str, product: Product
) -> None:
    config = {
        "prompts": ["About bees."],
        "providers": ["openai:under-test"],
        "tests": [{**test, "assert": [helpful("input", "actual_output")]}],
    }
    with ModelServer() as server:
        finished = product.run(config, server)

    assert finished.code == 0, finished.stderr
    assert text_under("Input", prompt_of(server.asked("evaluate")[0])) == shown


def test_contexts_that_are_lists_stay_one_test(product: Product) -> None:
    test = {"output": "Nine.", "vars": {"context": ["A", "B"]}, "retrieval_context": ["C", "D"]}
    with ModelServer() as server:
        finished = product.run({"tests": [{**test, "assert": [helpful()]}]}, server)

    assert len(finished.cases) == 1

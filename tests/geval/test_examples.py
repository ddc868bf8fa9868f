"""The examples of the `g-eval` assertion run as they are, against a server in OpenAI's place."""

from pathlib import Path

import pytest
from support.model_server import ModelServer, prompt_of
from support.product import Product

EXAMPLES = Path(__file__).parents[2] / "examples" / "configs"
CONFIGS = sorted(path.name for path in EXAMPLES.glob("g-eval-*.yaml"))

# Dimension: (lowest rating, highest rating, threshold that is written).
DIMENSIONS = {
    "g-eval-assertion.yaml": {"coherence": (1, 5, 0.7)},
    "g-eval-summarization.yaml": {
        "fluency": (1, 3, 0.7),
        "coherence": (1, 5, 0.8),
        "consistency": (1, 5, 0.9),
        "relevance": (1, 5, 0.8),
    },
    "g-eval-dialogue.yaml": {
        "engagingness": (1, 3, 0.7),
        "naturalness": (1, 3, 0.8),
        "groundedness": (1, 5, 0.9),
    },
    "g-eval-rag.yaml": {"consistency": (1, 5, 0.9), "relevance": (1, 5, 0.8)},
    "g-eval-creative-writing.yaml": {"fluency": (1, 3, 0.8), "coherence": (1, 5, 0.7)},
    "g-eval-rubric-prompt.yaml": {"coherence": (1, 5, 0.7), "relevance": (1, 5, 0.7)},
    "g-eval-combined.yaml": {"fluency": (1, 3, 0.7), "consistency": (1, 5, 0.8)},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_example_passes_with_a_judge_that_is_content(name: str, product: Product) -> None:
    with ModelServer(answer=likes_forms_of_its_own) as server:
        finished = product.run(EXAMPLES / name, server)

    assert finished.code == 0, finished.stdout + finished.stderr
    assert finished.results["summary"]["errored"] == 0
    asked = {request.json["model"] for request in server.requests}
    assert asked <= {"gpt-4", "gpt-4.1"}


def likes_forms_of_its_own(body):
    """A judge prompt of the user's ends with the form; everything else is a prompt under test."""
    return "5" if prompt_of(body).rstrip().endswith(":") and "scores ONLY" in prompt_of(body) else "A text."


@pytest.mark.parametrize("name", sorted(DIMENSIONS))
def test_dimensions_have_the_documented_ranges_and_thresholds(name: str, product: Product) -> None:
    with ModelServer(answer=likes_forms_of_its_own) as server:
        finished = product.run(EXAMPLES / name, server)

    found = {
        item["metric"]: (*item["detail"]["score_range"], item["threshold"]) for item in finished.verdicts
    }
    assert found == DIMENSIONS[name]


def test_the_answer_that_a_test_brings_is_judged_and_nothing_is_generated(product: Product) -> None:
    with ModelServer() as server:
        finished = product.run(EXAMPLES / "g-eval-rag.yaml", server)

    assert server.asked("answer") == []
    assert finished.cases[0]["output"] == "Employees get 20 days of paid vacation..."
    assert finished.cases[0]["usage"]["generation"]["requests"] == 0
    form = prompt_of(server.asked("form")[0])
    policy = (EXAMPLES / "policies" / "vacation.md").read_text(encoding="utf-8")
    assert "What is our company's vacation policy?" in form
    assert policy in form
    assert {item["detail"]["source_from"] for item in finished.verdicts} == {"vars.query"}


def test_the_judge_is_the_default_one_unless_the_example_names_another(product: Product) -> None:
    with ModelServer() as server:
        by_default = product.run(EXAMPLES / "g-eval-summarization.yaml", server)
        named = product.run(EXAMPLES / "g-eval-grader.yaml", server)

    assert {item["detail"]["judge"] for item in by_default.verdicts} == {"openai:gpt-4.1"}
    assert {item["detail"]["judge"] for item in named.verdicts} == {"openai:gpt-4"}


def test_the_documented_judge_prompt_is_sent_word_for_word_without_buying_steps(product: Product) -> None:
    with ModelServer(answer=likes_forms_of_its_own) as server:
        finished = product.run(EXAMPLES / "g-eval-rubric-prompt.yaml", server)

    assert server.asked("steps") == []
    article = (EXAMPLES / "articles" / "news1.txt").read_text(encoding="utf-8").rstrip("\n")
    prompts = map(prompt_of, server.asked("answer"))
    text = next(prompt for prompt in prompts if "\nCoherence (1-5) - how" in prompt)
    assert text.startswith("You will be given one summary written for a news article.\nYour task is to rate")
    assert text.endswith(
        f"Source Text: {article}\nSummary: A text.\n\nEvaluation Form (scores ONLY):\n- Coherence:\n"
    )
    assert [item["detail"]["evaluation_steps"] for item in finished.verdicts] == [[], []]


def test_strict_mode_takes_the_judges_yes_or_no_whatever_the_threshold(product: Product) -> None:
    with ModelServer() as server:
        finished = product.run(EXAMPLES / "g-eval-custom-criteria.yaml", server)

    assert server.asked("steps") == []
    verdict = finished.verdict
    assert (verdict["score"], verdict["threshold"], verdict["detail"]["score_range"]) == (1.0, 1.0, [0, 1])
    assert "with `strict_mode` the threshold is 1, not 0.8" in finished.stderr

import pytest
from support.graded import graded, graded_tools
from support.verdicts import problems

from geval_cli.assertions.base import JudgeDefaults
from geval_cli.assertions.judges import DEFAULT_EMBEDDING, DEFAULT_JUDGE
from geval_cli.errors import JudgeError, Severity, UnjudgeableError
from geval_cli.records import AssertionResult, Status
from geval_cli.specs.base import ProviderSpec, TestOptionsSpec
from geval_cli.specs.promptfoo import JudgesSpec

VECTORS = {"out": [1.0, 0.0], "same": [2.0, 0.0], "near": [4.0, 3.0], "far": [-1.0, 0.0]}


def similar(value: object, kind: str = "similar", **keys: object) -> AssertionResult:
    return graded(kind, graded_tools(vectors=VECTORS), output="out", value=value, **keys)


@pytest.mark.parametrize(
    ("value", "score", "status"),
    [
        ("same", 1.0, Status.PASSED),
        ("near", 0.8, Status.PASSED),
        ("far", 0.0, Status.FAILED),
    ],
)
def test_the_score_is_the_cosine_and_75_hundredths_pass(value: str, score: float, status: Status) -> None:
    result = similar(value)
    assert (result.status, result.score) == (status, pytest.approx(score))
    assert result.threshold == 0.75
    assert similar(value, "similar:cosine").score == result.score


def test_of_several_texts_one_must_be_near() -> None:
    assert similar(("far", "near")).score == pytest.approx(0.8)
    assert similar(("far", "near"), "not-similar").score == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("kind", "keys", "score", "named"),
    [
        ("similar", {"threshold": 0.9}, 0.8, "near"),
        ("similar:dot", {"threshold": 0.9}, 0.8, "near"),
        ("similar:euclidean", {"threshold": 0.1}, 1 / (1 + 1.0), "shifted"),
        ("not-similar", {"threshold": 0.9}, 0.2, "near"),
    ],
)
def test_where_no_text_is_near_the_nearest_gives_the_score(
    kind: str, keys: dict[str, float], score: float, named: str
) -> None:
    texts = ("far", "shifted", "far") if kind == "similar:euclidean" else ("far", "near", "far")
    tools = graded_tools(vectors={**VECTORS, "near": [0.8, 0.6], "shifted": [1.0, 1.0]})
    result = graded(kind, tools, output="out", value=texts, **keys)
    assert result.score == pytest.approx(score)
    assert result.status is (Status.PASSED if kind.startswith("not-") else Status.FAILED)
    assert "none of the 3" in result.reason
    assert f'"{named}"' in result.reason


def test_negated_it_must_be_far() -> None:
    assert (similar("far", "not-similar").status, similar("far", "not-similar").score) == (Status.PASSED, 1.0)


def test_other_measures() -> None:
    assert similar("near", "similar:dot").score == 1.0
    assert similar("near", "similar:dot").detail["similarity"] == 4.0
    distant = similar("near", "similar:euclidean", threshold=5)
    assert (distant.status, distant.score) == (Status.PASSED, pytest.approx(1 / (1 + 18**0.5)))
    assert similar("near", "similar:euclidean").status is Status.FAILED


def test_what_has_no_embedding_is_an_error() -> None:
    with pytest.raises(UnjudgeableError):
        graded("similar", graded_tools(vectors=VECTORS), output="  ", value="same")
    with pytest.raises(JudgeError, match="differ in length"):
        graded("similar", graded_tools(vectors={"out": [1], "b": [1, 2]}), output="out", value="b")


@pytest.mark.parametrize(
    "vector", [[0.0, 0.0], [0, 0], [1e308, 1e308], [1e-200, 0.0], [10**400, 0], [True, 1]]
)
@pytest.mark.parametrize("kind", ["similar", "not-similar", "similar:dot", "similar:euclidean"])
def test_a_vector_that_cannot_be_compared_is_an_error(kind: str, vector: list[float]) -> None:
    with pytest.raises(JudgeError, match="vector"):
        graded(kind, graded_tools(vectors={"out": [1.0, 0.0], "b": vector}), output="out", value="b")


def test_a_threshold_beyond_all_similarity_is_a_problem() -> None:
    assert "must be between 0 and 1" in problems("similar", value="x", threshold=2)[0].message
    assert problems("similar:euclidean", value="x", threshold=2) == []
    assert "no text to compare with" in problems("similar", value=[])[0].message


OWN, OPTIONS, DEFAULT = "openai:embedding:a", "openai:embeddings:b", "ollama:embeddings:c"


def spec(name: str) -> ProviderSpec:
    return ProviderSpec(id=name)


@pytest.mark.parametrize(
    ("levels", "asked"),
    [
        ({}, DEFAULT_EMBEDDING.id),
        ({"assertion": spec(OWN), "options": spec(OPTIONS)}, OWN),
        ({"options": spec(OPTIONS), "default_options": spec(DEFAULT)}, OPTIONS),
        ({"options": spec("openai:gpt-5"), "default_options": spec(DEFAULT)}, DEFAULT),
        ({"options": spec("openai:gpt-5")}, DEFAULT_EMBEDDING.id),
        ({"options": JudgesSpec(id="t", by_kind={"text": spec("t"), "embedding": spec(OWN)})}, OWN),
        (
            {"options": JudgesSpec(id="t", by_kind={"text": spec("t")}), "default_options": spec(DEFAULT)},
            DEFAULT,
        ),
    ],
)
def test_the_nearest_provider_of_embeddings_is_asked(levels: dict[str, ProviderSpec], asked: str) -> None:
    seen: list[str] = []
    levels = dict(levels)
    keys = {"provider": levels.pop("assertion")} if "assertion" in levels else {}
    test = {name: TestOptionsSpec(provider=provider) for name, provider in levels.items()}
    graded(
        "similar", graded_tools(vectors=VECTORS, asked=seen), output="out", value="near", test=test, **keys
    )
    assert seen == [asked]


def test_a_provider_of_embeddings_does_not_judge_texts() -> None:
    seen: list[str] = []
    verdict = '{"pass": true, "score": 1}'
    test = {"options": TestOptionsSpec(provider=spec(OWN))}
    graded("llm-rubric", graded_tools(verdict, asked=seen), value="x", test=test)
    grader = JudgeDefaults(grader=spec("openai:g"))
    graded("llm-rubric", graded_tools(verdict, asked=seen, defaults=grader), value="x", test=test)
    assert seen == [DEFAULT_JUDGE.id, "openai:g"]


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("openai:embedding:a", False),
        ("local:smollm2", False),
        ("local:embedding:smollm2", False),
        ("openai:gpt-5", True),
    ],
)
def test_a_provider_of_another_kind_is_pointed_out(name: str, warned: bool) -> None:
    found = problems("similar", value="x", provider=ProviderSpec(id=name, label=name))
    assert [problem.severity for problem in found] == ([Severity.WARNING] if warned else [])


def test_a_local_chat_model_that_is_named_for_it_embeds() -> None:
    seen: list[str] = []
    own = ProviderSpec(id="local:smollm2", label="small")
    graded("similar", graded_tools(vectors=VECTORS, asked=seen), output="out", value="near", provider=own)
    assert seen == ["local:embedding:smollm2"]

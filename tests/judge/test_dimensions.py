from pathlib import Path

import pytest

from geval_cli.errors import UsageError
from geval_cli.judge.prompt import DIMENSIONS, find_dimension

RANGES = {
    "fluency": (1, 3),
    "coherence": (1, 5),
    "consistency": (1, 5),
    "relevance": (1, 5),
    "engagingness": (1, 3),
    "groundedness": (1, 5),
    "naturalness": (1, 3),
}


def test_there_are_the_seven_dimensions_with_their_ranges():
    assert {name: item.score_range for name, item in DIMENSIONS.items()} == RANGES


@pytest.mark.parametrize(("page", "lists"), [("README.md", 2), ("examples/configs/g-eval-assertion.yaml", 1)])
def test_every_list_of_them_is_whole(page, lists):
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    assert text.count(", ".join(list(DIMENSIONS)[1:])) == lists, (
        f"name all dimensions in {page}, in their order"
    )


@pytest.mark.parametrize("name", RANGES)
def test_each_definition_says_what_to_reward_and_what_to_penalise(name):
    definition = find_dimension(name).definition

    assert "Reward" in definition
    assert "Penalise" in definition
    assert "\n" not in definition


def test_an_unknown_dimension_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        find_dimension("coherance")
    assert caught.value.hint == "did you mean `coherence`?"
    with pytest.raises(UsageError) as caught:
        find_dimension("zzzzzzzzz")
    assert "fluency, coherence" in caught.value.hint

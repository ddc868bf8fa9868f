import math
from pathlib import Path

import pytest
from support.geval_command import run_geval
from support.verdicts import judged, problems

from geval_cli.records import Status

CAT = "the cat sat on the mat"


@pytest.mark.parametrize(
    ("kind", "output", "value", "score"),
    [
        # 5 of 6 tokens on either side: precision = recall = F1 = 5/6.
        ("rouge-n", CAT, "the cat is on the mat", 5 / 6),
        ("rouge-n", "The Cat", "the cat", 1.0),
        # Precision 2/2, recall 2/4.
        ("rouge-n", "the cat", "the cat sat down", 2 * 1 * 0.5 / 1.5),
        ("rouge-n", "same words", "same words", 1.0),
        # 5/6 words, 3/5 pairs, 1/4 triples, no four in a row: the last counts as 1e-7.
        ("bleu", CAT, "the cat is on the mat", math.exp(sum(map(math.log, (5 / 6, 3 / 5, 1 / 4, 1e-7))) / 4)),
        ("bleu", "A b c d", "a B c d", 1.0),
        # Two words have no triples: 2/2 words, 1/1 pairs.
        ("bleu", "A b", "a b", 1.0),
        ("bleu", "word", "other", 1e-7),
        # All n-grams match, but the output is short: e to the 1 - 5/4.
        ("bleu", "a b c d", "a b c d e", math.exp(1 - 5 / 4)),
        # 5 + 3 + 1 + 0 of 6 + 5 + 4 + 3 n-grams.
        ("gleu", CAT, "the cat is on the mat", 9 / 18),
        ("gleu", "The cat.", "the cat", 1.0),
        ("gleu", "x", "y", 0.0),
        ("meteor", "x", "y", 0.0),
    ],
)
def test_scores(kind: str, output: str, value: str, score: float) -> None:
    result = judged(kind, output, value=value)
    assert result.score == pytest.approx(score, abs=1e-6)
    assert judged(f"not-{kind}", output, value=value).score == pytest.approx(1 - score, abs=1e-6)


def test_libraries_may_be_wanted_by_several_at_once() -> None:
    code = (
        "import asyncio\n"
        "from geval_cli.extras.text_metrics import _score\n"
        "from support.specs import assertion\n"
        "kinds = ['bleu', 'rouge-n', 'gleu', 'meteor'] * 2\n"
        "specs = [assertion(kind, value='a b c d') for kind in kinds]\n"
        "async def main():\n"
        "    calls = [asyncio.to_thread(_score, spec, 'a b c d', ['a b c d']) for spec in specs]\n"
        "    return await asyncio.gather(*calls)\n"
        "assert min(asyncio.run(main())) > 0.9\n"
    )
    done = run_geval(cwd=Path(__file__).parents[1], code=code)
    assert done.code == 0, done.stderr


def test_meteor_knows_stems_and_punishes_scatter() -> None:
    # 6 of 6 words match, "cats" by its stem, all in one piece: 1 - 0.5 * (1/6) ** 3.
    assert judged("meteor", "the cats sat", value="the cat sat").score == pytest.approx(
        1 - 0.5 * (1 / 3) ** 3
    )
    scattered = judged("meteor", "sat cat the", value="the cat sat").score
    assert scattered == pytest.approx(1 - 0.5)
    assert judged("meteor", "sat cat the", value="the cat sat", gamma=0.0).score == pytest.approx(1)


@pytest.mark.parametrize("kind", ["rouge-n", "bleu", "gleu", "meteor"])
def test_of_several_references_the_best_counts(kind: str) -> None:
    assert judged(kind, CAT, value=("nothing alike", "{{x}}"), vars={"x": CAT}).score == pytest.approx(
        1, abs=0.01
    )


@pytest.mark.parametrize("kind", ["rouge-n", "bleu", "gleu", "meteor"])
@pytest.mark.parametrize("output", ["the", "the cat", "the cat sat on the mat today", "."])
def test_an_empty_reference_among_others_changes_nothing(kind: str, output: str) -> None:
    reference = "the cat sat on the mat today"
    alone = judged(kind, output, value=reference).score
    for value in ((reference, ""), (" ", reference)):
        assert judged(kind, output, value=value).score == alone


@pytest.mark.parametrize("kind", ["rouge-n", "bleu", "gleu", "meteor"])
@pytest.mark.parametrize("output", ["", "  \n", "日本", "🙂" * 50])
def test_outputs_without_a_common_word_score_nothing(kind: str, output: str) -> None:
    result = judged(kind, output, value="a reference")
    assert result.score == pytest.approx(0, abs=1e-6)
    assert result.status is Status.FAILED


@pytest.mark.parametrize(
    ("kind", "threshold"), [("rouge-n", 0.75), ("bleu", 0.5), ("gleu", 0.5), ("meteor", 0.5)]
)
def test_default_thresholds(kind: str, threshold: float) -> None:
    result = judged(kind, CAT, value=CAT)
    assert (result.threshold, result.threshold_is_default) == (threshold, True)
    assert judged(kind, CAT, value=CAT, threshold=0.1).threshold_is_default is False


def test_a_score_at_the_threshold_passes_and_fails_under_not() -> None:
    assert judged("gleu", CAT, value="the cat is on the mat", threshold=0.5).status is Status.PASSED
    assert judged("not-gleu", CAT, value="the cat is on the mat", threshold=0.5).status is Status.FAILED


def test_no_reference_is_a_problem() -> None:
    assert problems("bleu", value=())[0].message.startswith("bleu has no reference")

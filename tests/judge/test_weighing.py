import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.judge.estimate import LARGEST_SCALE, Scale, weigh_by_logprobs
from geval_cli.records import TokenAlternative, TokenLogprob

ENDS = ("}", "\n}", ",", ', "ok": true}', '"}', " ", "\n", ".\n", ")")
JUNK = ("**", '"', "N", "<", "", "ten", "-", "score", "\ufffd")


def token(text, probability, alternatives=()):
    logprob = math.log(probability) if probability > 0 else -9999.0
    return TokenLogprob(
        text,
        logprob,
        tuple(
            TokenAlternative(other, math.log(share) if share > 0 else -math.inf)
            for other, share in alternatives
        ),
    )


def weigh(tokens, score, *, before="", score_range=(0, 10), score_step=1, text=None):
    text = "".join(item.text for item in tokens) if text is None else text
    start = text.index(score, len(before))
    return weigh_by_logprobs(
        tokens, (start, start + len(score)), text=text, score_range=score_range, score_step=score_step
    )


# -- worked by hand ---------------------------------------------------------------------------------------------


def test_a_single_token_is_weighted_by_its_alternatives():
    tokens = [token('{"score": ', 1), token("8", 0.7, [("8", 0.7), ("9", 0.2), ("7", 0.1)]), token("}", 1)]

    found = weigh(tokens, "8")

    assert found.masses == pytest.approx({8: 0.7, 9: 0.2, 7: 0.1})
    assert found.mean() == pytest.approx(8.1)
    assert found.coverage == pytest.approx(1)


@pytest.mark.parametrize("end", ENDS)
def test_an_end_in_the_same_token_makes_no_difference(end):
    tokens = [token("Score:", 1), token(f" 8{end}", 0.6, [(f" 9{end}", 0.3), (" 7", 0.1)])]

    assert weigh(tokens, "8").masses == pytest.approx({8: 0.6, 9: 0.3, 7: 0.1})


def test_spaces_before_the_score_make_no_difference():
    tokens = [token("Score:", 1), token(" 8", 0.6, [("8", 0.1), ("\n9", 0.2), ("  7", 0.1)])]

    assert weigh(tokens, "8").masses == pytest.approx({8: 0.7, 9: 0.2, 7: 0.1})


def test_an_alternative_that_does_not_begin_as_the_text_does_is_not_counted():
    tokens = [
        token('{"score"', 1),
        token(':"8', 0.6, [(':"9', 0.1), (": 7", 0.2), (":", 0.1)]),
        token('"}', 1),
    ]

    assert weigh(tokens, "8").masses == pytest.approx({8: 0.6, 9: 0.1})


def test_one_is_open_on_a_scale_to_ten_and_settled_on_a_scale_to_five():
    tokens = [token("8", 0.7, [("1", 0.3)])]
    assert weigh(tokens, "8").masses == pytest.approx({8: 0.7})

    tokens = [token("4", 0.7, [("1", 0.3)])]
    assert weigh(tokens, "4", score_range=(1, 5)).masses == pytest.approx({4: 0.7, 1: 0.3})


def test_ten_digit_by_digit_tells_one_from_ten():
    tokens = [
        token('{"score":', 1),
        token(" ", 1),
        token("1", 0.5, [("9", 0.3), ("8", 0.2)]),
        token("0", 0.8, [("}", 0.15), ("\n", 0.05)]),
        token("}", 1),
    ]

    found = weigh(tokens, "10")

    assert found.masses == pytest.approx({10: 0.4, 1: 0.1, 9: 0.3, 8: 0.2})
    assert found.coverage == pytest.approx(1)


def test_a_chosen_one_is_settled_by_the_token_behind_it():
    tokens = [token("1", 0.5, [("9", 0.4)]), token("}", 0.9, [("0", 0.1)])]

    assert weigh(tokens, "1").masses == pytest.approx({1: 0.45, 10: 0.05, 9: 0.4})


def test_a_chosen_one_with_nothing_behind_it_stays_open():
    found = weigh([token("1", 0.6, [("9", 0.3)])], "1")

    assert found.masses == pytest.approx({9: 0.3})
    assert found.coverage == pytest.approx(0.3)


def test_ten_in_one_token():
    tokens = [token("10", 0.6, [("9", 0.3), ("1", 0.1)]), token("}", 1)]

    assert weigh(tokens, "10").masses == pytest.approx({10: 0.6, 9: 0.3})


def test_seven_and_a_point_is_seven_on_whole_numbers_and_open_in_half_steps():
    tokens = [token("8", 0.6, [("7.", 0.2), ("7", 0.2)]), token("}", 1)]
    assert weigh(tokens, "8").masses == pytest.approx({8: 0.6, 7: 0.4})

    # With half steps the "}" settles the chosen 8; "7." and "7" may still become 7.5.
    assert weigh(tokens, "8", score_step=0.5).masses == pytest.approx({8: 0.6})


def test_a_full_stop_ends_a_number_and_a_decimal_point_does_not():
    tokens = [token("3", 0.6, [("4.\n", 0.3), ("4.5", 0.1)]), token("\n", 1)]

    found = weigh(tokens, "3", score_range=(1, 5), score_step=0.5)

    assert found.masses == pytest.approx({3: 0.6, 4: 0.3, 4.5: 0.1})


def test_decimals_over_three_tokens():
    tokens = [
        token("3", 0.9, [("4", 0.1)]),
        token(".", 0.8, [("\n", 0.2)]),
        token("5", 0.75, [("0", 0.25)]),
        token("\n", 1),
    ]

    found = weigh(tokens, "3.5", score_range=(1, 5), score_step=0.5)

    assert found.masses == pytest.approx({3.5: 0.9 * 0.8 * 0.75, 3: 0.9 * 0.2 + 0.9 * 0.8 * 0.25})


def test_a_point_behind_a_rating_leaves_it_open_until_the_next_token():
    tokens = [token("7", 1), token(".", 1), token("\n", 0.6, [("5", 0.4)])]

    assert weigh(tokens, "7", score_step=0.5).masses == pytest.approx({7: 0.6, 7.5: 0.4})


def test_a_rating_between_the_steps_counts_and_makes_bare_digits_doubtful():
    tokens = [
        token("7", 0.6, [("8", 0.4)]),
        token(".", 0.9, [("}", 0.1)]),
        token("5", 0.7, [("2", 0.3)]),
        token("}", 1),
    ]

    found = weigh(tokens, "7.5")

    # "8" alone might have become 8.5 just as well.
    assert found.masses == pytest.approx({7.5: 0.6 * 0.9 * 0.7, 7.2: 0.6 * 0.9 * 0.3, 7: 0.06})


@pytest.mark.parametrize(
    "text", ["85", "11", "-1", "8-9", "8e1", "8%", "8x", "8th", "eight", ".", "-", "", " "]
)
def test_what_is_no_rating_of_the_scale_is_not_counted(text):
    tokens = [token("7", 0.6, [(text, 0.4)]), token("}", 1)]

    assert weigh(tokens, "7").masses == pytest.approx({7: 0.6})


def test_negative_ratings():
    tokens = [token("-", 0.6, [("4", 0.4)]), token("3", 0.5, [("2", 0.5)]), token("}", 1)]

    found = weigh(tokens, "-3", score_range=(-5, 5))

    assert found.masses == pytest.approx({-3: 0.3, -2: 0.3, 4: 0.4})


def test_a_hundred_in_one_two_or_three_tokens():
    for split in (["100"], ["10", "0"], ["1", "00"], ["1", "0", "0"]):
        tokens = [*(token(part, 1) for part in split), token("}", 1)]
        assert weigh(tokens, "100", score_range=(0, 100)).masses == pytest.approx({100: 1})


def test_two_digits_of_a_hundred_are_open_until_they_end():
    tokens = [token("85", 0.6, [("90", 0.2), ("9", 0.1), ("10", 0.1)]), token("}", 1)]

    assert weigh(tokens, "85", score_range=(0, 100)).masses == pytest.approx({85: 0.6, 90: 0.2})


def test_impossible_and_dusty_logprobs_are_harmless():
    alternatives = (
        TokenAlternative("9", -9999.0),
        TokenAlternative("7", -math.inf),
        TokenAlternative("6", math.nan),
        TokenAlternative("5", math.log(0.05)),
    )
    found = weigh([TokenLogprob("8", 1e-9, alternatives), token("}", 1)], "8")

    # 1 + 0.05 is more than there can be, so both are scaled down.
    assert found.masses == pytest.approx({8: 1 / 1.05, 5: 0.05 / 1.05})


def test_nothing_is_known_where_what_was_written_is_said_to_be_impossible():
    tokens = [token("Score:", 1), token(" 8", 0, [(" 9", 0.6), (" 7", 0.3)])]

    found = weigh(tokens, "8")

    assert (found.masses, found.coverage) == ({}, 0)


@pytest.mark.parametrize("logprobs", [(0.0, 0.0, 0.0), (-0.01, -0.01), (2.3, 1.0), (0.0, math.log(0.25))])
def test_numbers_that_add_up_to_more_than_one_are_no_probabilities(logprobs):
    alternatives = tuple(TokenAlternative(str(8 - place), value) for place, value in enumerate(logprobs))
    found = weigh([TokenLogprob("8", logprobs[0], alternatives), token("}", 1)], "8")

    assert (found.masses, found.coverage) == ({}, 0)


def test_a_chosen_token_that_is_listed_twice_counts_once():
    tokens = [token("8", 0.6, [("8", 0.6), ("8", 0.6), ("9", 0.3), ("9", 0.3)]), token("}", 1)]

    assert weigh(tokens, "8").masses == pytest.approx({8: 0.6, 9: 0.3})


def test_a_chosen_token_with_a_dummy_logprob_takes_the_one_from_the_list():
    tokens = [TokenLogprob("8", -9999.0, (TokenAlternative("8", math.log(0.6)),)), token("}", 1)]

    assert weigh(tokens, "8").masses == pytest.approx({8: 0.6})


def test_a_score_whose_tokens_are_missing_has_no_distribution():
    found = weigh([token("Score: ", 1)], "8", text="Score: 8")

    assert found.masses == {}
    assert found.coverage == 0


def test_a_score_in_words_has_no_distribution():
    assert weigh([token("eight", 1)], "eight").coverage == 0


@pytest.mark.parametrize(("high", "ratings"), [(LARGEST_SCALE - 1, LARGEST_SCALE), (LARGEST_SCALE, 0)])
def test_the_largest_scale_is_still_spelled(high, ratings):
    assert len(Scale.of((0, high), 1).spellings) == ratings


def test_a_scale_with_too_many_ratings_settles_nothing():
    assert weigh([token("8", 1)], "8", score_range=(0, 10**9)).coverage == 0


def test_the_score_is_found_where_it_stands_and_not_where_its_number_stands_first():
    before = '{"reason": "8 of 8 facts", "score": '
    tokens = [token(part, 1) for part in ('{"reason": "', "8", " of ", "8", ' facts", "score": ')]
    tokens += [token("8", 0.7, [("6", 0.3)]), token("}", 1)]

    assert weigh(tokens, "8", before=before).masses == pytest.approx({8: 0.7, 6: 0.3})


# -- properties over synthetic judges ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SyntheticJudge:
    """A judge that spells each rating in one way, with a known probability, over known tokens."""

    sequences: tuple[tuple[tuple[str, ...], float, float], ...]
    """(tokens, rating, probability); the tokens end with the end of the number."""

    chosen: int

    def stream(self, before, junk):
        chosen_tokens, rating, _ = self.sequences[self.chosen]
        tokens = list(before)
        for index, text in enumerate(chosen_tokens):
            here = [item for item in self.sequences if item[0][:index] == chosen_tokens[:index]]
            total = math.fsum(item[2] for item in here)
            shares = {}
            for sequence, _, probability in here:
                shares[sequence[index]] = shares.get(sequence[index], 0.0) + probability / total
            lost = junk[1] if index == 0 else 0.0
            shares = {key: value * (1 - lost) for key, value in shares.items()}
            alternatives = [*shares.items(), *([(junk[0], lost)] if lost and junk[0] not in shares else [])]
            tokens.append(token(text, shares[text], alternatives))
        return tokens, rating


SCALES = [
    ((0, 10), 1.0),
    ((1, 5), 1.0),
    ((1, 3), 1.0),
    ((0, 100), 1.0),
    ((1, 5), 0.5),
    ((0, 1), 0.1),
    ((-2, 2), 0.5),
]
CUTS = ["whole", "digits", "pairs", "at the point"]


def spell(rating, decimals):
    return (
        f"{rating:.{decimals}f}"
        if decimals
        else str(int(rating))
        if float(rating).is_integer()
        else f"{rating:g}"
    )


def cut(text, how):
    if how == "whole":
        return [text]
    if how == "digits":
        return list(text)
    if how == "pairs":
        return [text[index : index + 2] for index in range(0, len(text), 2)]
    return [part for part in text.replace(".", "|.|").split("|") if part]


@st.composite
def synthetic_judges(draw):
    (low, high), step = draw(st.sampled_from(SCALES))
    scale = [round(low + index * step, 10) for index in range(round((high - low) / step) + 1)]
    ratings = draw(st.lists(st.sampled_from(scale), min_size=1, max_size=7, unique=True))
    weights = draw(st.lists(st.floats(0.01, 1), min_size=len(ratings), max_size=len(ratings)))
    lead = draw(st.sampled_from(["", " ", "\n"]))
    sequences = {}
    for rating, weight in zip(ratings, weights, strict=True):
        end = draw(st.sampled_from(["}", ",", "\n", ' "', ")"]))
        parts = cut(spell(rating, draw(st.sampled_from([0, 0, 1]))), draw(st.sampled_from(CUTS)))
        parts[0] = lead + parts[0]
        parts = [*parts[:-1], parts[-1] + end] if draw(st.booleans()) else [*parts, end]
        sequences[tuple(parts)] = (rating, weight)
    total = math.fsum(weight for _, weight in sequences.values())
    listed = tuple((tokens, rating, weight / total) for tokens, (rating, weight) in sequences.items())
    judge = SyntheticJudge(listed, draw(st.integers(0, len(listed) - 1)))
    return judge, (low, high), step, scale


def could_mean(text, rating):
    """Whether a text that begins with `text` can be the rating, by comparing whole spellings."""
    plain = spell(rating, 0)
    spellings = [plain, *(f"{plain}{'' if '.' in plain else '.'}{'0' * zeros}" for zeros in range(4))]
    for spelling in spellings:
        if spelling.startswith(text):
            return True
        if text.startswith(spelling):
            behind = text[len(spelling)]
            if not (behind.isdigit() or behind == "."):
                return True
    return False


def expected_masses(judge, scale, kept):
    """What can be told at each place, found by trying every rating of the scale on every branch."""
    chosen_tokens, chosen, _ = judge.sequences[judge.chosen]
    masses = {}
    reached = 1.0
    for index in range(len(chosen_tokens)):
        here = [item for item in judge.sequences if item[0][:index] == chosen_tokens[:index]]
        total = math.fsum(item[2] for item in here)
        for branch in {item[0][index] for item in here}:
            share = math.fsum(item[2] for item in here if item[0][index] == branch) / total
            share *= kept if index == 0 else 1.0
            spelled = ("".join(chosen_tokens[:index]) + branch).lstrip()
            meant = [rating for rating in scale if could_mean(spelled, rating)]
            if branch != chosen_tokens[index]:
                if len(meant) == 1:
                    masses[meant[0]] = masses.get(meant[0], 0.0) + reached * share
            else:
                on_path, on_path_meant = share, meant
        reached *= on_path
        if on_path_meant == [chosen]:
            masses[chosen] = masses.get(chosen, 0.0) + reached
            return masses
    return masses


BEFORE = [
    ["{", '"reason": "8 of 10, 3.5', '", "score":'],
    ['{"reason": "caf', "é 日本", '語 10", "score":'],
    ['{"reason": "', "\\xf0\\x9f", "\\x98\\x80", ' 5", "score":'],
    ['{"reason": "', "\ufffd", "\ufffd", ' 5", "score":'],
    ["<|assistant|>", "- Coherence", ":"],
    [""],
]
TEXTS = [
    '{"reason": "8 of 10, 3.5", "score":',
    '{"reason": "café 日本語 10", "score":',
    '{"reason": "😀 5", "score":',
    '{"reason": "日 5", "score":',
    "- Coherence:",
    "",
]


@settings(max_examples=120, deadline=None)
@given(
    synthetic_judges(),
    st.integers(0, len(BEFORE) - 1),
    st.sampled_from(JUNK),
    st.floats(0, 0.4),
)
def test_the_weighted_rating_is_the_exact_expectation_over_what_can_be_told(made, preamble, junk, lost):
    judge, score_range, step, scale = made
    tokens, rating = judge.stream([token(part, 1) for part in BEFORE[preamble]], (junk, lost))
    score_text = "".join(judge.sequences[judge.chosen][0])
    text = TEXTS[preamble] + score_text
    spelled = score_text.strip().rstrip('},\n ")')
    start = len(TEXTS[preamble]) + score_text.index(spelled)

    found = weigh_by_logprobs(
        tokens, (start, start + len(spelled)), text=text, score_range=score_range, score_step=step
    )

    expected = expected_masses(judge, scale, 1 - lost)
    assert found.coverage == pytest.approx(math.fsum(expected.values()), abs=1e-9)
    assert set(found.masses) == set(expected)
    if expected:
        mean = math.fsum(r * m for r, m in expected.items()) / math.fsum(expected.values())
        assert found.mean() == pytest.approx(mean, abs=1e-9)
    # Nothing is counted as something else: no rating gets more than the judge truly gives it.
    truth = {}
    for _, true_rating, probability in judge.sequences:
        truth[true_rating] = truth.get(true_rating, 0.0) + probability
    for counted, mass in found.masses.items():
        assert mass <= truth.get(counted, 0.0) + 1e-9
    assert rating in scale


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
    st.integers(0, 4),
    st.sampled_from(["", " ", "▁", "Ġ"]),
)
def test_one_token_ratings_give_the_judges_own_expectation(weights, chosen, lead):
    total = math.fsum(weights)
    shares = {f"{lead}{rating}": weight / total for rating, weight in enumerate(weights, 1)}
    mean = math.fsum(rating * weight / total for rating, weight in enumerate(weights, 1))
    text = f"{lead}{chosen + 1}"
    tokens = [token("- Coherence:", 1), token(text, shares[text], shares.items())]

    found = weigh(
        tokens, str(chosen + 1), text=f"- Coherence:{' ' if lead else ''}{chosen + 1}", score_range=(1, 5)
    )

    assert found.coverage == pytest.approx(1, abs=1e-9)
    assert found.mean() == pytest.approx(mean, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text("0123456789.,- }\n", min_size=0, max_size=4),
            st.lists(st.tuples(st.text("0123456789.,- }\n", max_size=4), st.floats(-50, 1)), max_size=5),
        ),
        min_size=1,
        max_size=6,
    ),
    st.data(),
)
def test_any_stream_gives_a_distribution_within_the_range(drawn, data):
    tokens = [
        TokenLogprob(text, -0.5, tuple(TokenAlternative(other, logprob) for other, logprob in alternatives))
        for text, alternatives in drawn
    ]
    text = "".join(item.text for item in tokens)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))

    found = weigh_by_logprobs(tokens, (start, end), text=text, score_range=(0, 10), score_step=1)

    assert 0 <= found.coverage <= 1
    assert math.fsum(found.masses.values()) <= 1 + 1e-9
    assert all(mass > 0 for mass in found.masses.values())


# -- what a slip in the walk would give ---------------------------------------------------------------------------


def test_a_score_of_which_the_first_token_is_missing_is_not_weighed_by_its_rest():
    # Without the "1" of "10" the "0" would be weighed as a rating of its own, or with the 5 beside it.
    tokens = [token("Score:", 1), token("\ufffd", 0.9), token("0", 0.5, [("5", 0.5)])]

    found = weigh(tokens, "10", text="Score: 10")

    assert found.masses == {}
    assert found.coverage == 0


@pytest.mark.parametrize(("score", "first"), [("10", "1"), ("1.5", "1.")])
def test_a_score_of_which_a_later_token_is_missing_is_not_weighed_by_its_beginning(score, first):
    tokens = [token(first, 0.2, [("9}", 0.8)]), token("\ufffd", 1), token("}", 1)]

    found = weigh(tokens, score, text=f"{score}}}", score_step=0.5)

    assert (found.masses, found.coverage) == ({}, 0)


def test_how_sure_the_judge_was_before_the_score_does_not_lower_the_coverage():
    tokens = [token("{", 0.2), token('"score": ', 0.1), token("8", 0.7, [("9", 0.3)]), token("}", 1)]

    assert weigh(tokens, "8").coverage == pytest.approx(1)


@pytest.mark.parametrize("mark", ["▁", "Ġ", " ", ""])
def test_marks_of_spaces_leave_the_coverage_whole(mark):
    found = weigh(
        [token(f"{mark}4", 0.7, [(f"{mark}5", 0.2), (f"{mark}3", 0.1)])], "4", text="4", score_range=(1, 5)
    )

    assert found.masses == pytest.approx({4: 0.7, 5: 0.2, 3: 0.1})


@pytest.mark.parametrize("tokens", [["+3"], ["+", "3"], [" +", "3"]])
def test_a_plus_before_the_score_is_part_of_it(tokens):
    path = [token('{"score":', 1), *[token(text, 1) for text in tokens], token("}", 1)]

    assert weigh(path, "+3", score_range=(-5, 5)).masses == pytest.approx({3: 1})


def test_a_first_token_that_cannot_be_read_is_not_made_up_for_by_those_behind_it():
    tokens = [token(" x: 1", 0.6, [(" x: 2", 0.4)]), token(".", 1), token("\n", 1)]

    assert weigh(tokens, "1", text="x: 1.\n").masses == {}


def test_a_gap_right_behind_the_score_does_not_matter():
    tokens = [token("8", 0.7, [("9", 0.3)]), token("\ufffd", 1), token("}", 1)]

    assert weigh(tokens, "8", text="8日}").masses == pytest.approx({8: 0.7, 9: 0.3})


def test_what_stands_behind_a_decimal_comma_is_not_taken_for_the_end_of_a_rating():
    tokens = [token("7", 1), token(",", 0.8, [("}", 0.2)]), token("5", 0.6, [("2", 0.4)]), token("}", 1)]

    assert weigh(tokens, "7,5", score_step=0.5).masses == pytest.approx({7: 0.2})


def test_what_stands_behind_a_gap_does_not_go_on_with_the_score():
    tokens = [token("1", 0.6, [("9", 0.4)]), token("\ufffd", 1), token("0", 0.7, [("}", 0.3)])]

    assert weigh(tokens, "1", text="1日0").masses == pytest.approx({9: 0.4})


def test_an_end_mark_without_text_is_no_place_where_the_score_goes_on():
    tokens = [token("1", 0.6, [("9", 0.4)]), token("", 0.8, [("0", 0.2)])]

    assert weigh(tokens, "1").masses == pytest.approx({9: 0.4})


@pytest.mark.parametrize("end", [["}"], [",", "\n"], [".\n"]])
def test_a_score_too_fine_for_any_scale_counts_alone_once_it_has_ended(end):
    tokens = [token("0.87654", 0.8, [("0.9", 0.2)]), *(token(text, 1) for text in end)]

    found = weigh(tokens, "0.87654", score_range=(0, 1), score_step=0.1)

    assert found.masses == pytest.approx({0.87654: 0.8})


@pytest.mark.parametrize("behind", ["3", "th", "-0.9", "%"])
def test_a_score_too_fine_for_any_scale_does_not_count_where_the_number_goes_on(behind):
    tokens = [token("0.87654", 0.8), token(behind, 1)]

    assert weigh(tokens, "0.87654", score_range=(0, 1), score_step=0.1).masses == {}


def test_a_full_stop_behind_decimals_ends_the_number_and_a_second_point_with_digits_makes_it_none():
    tokens = [token("3", 0.5, [("4.5.\n", 0.3), ("2.5.1", 0.1), ("1.0.", 0.1)]), token("\n", 1)]

    found = weigh(tokens, "3", score_range=(1, 5), score_step=0.5)

    assert found.masses == pytest.approx({3: 0.5, 4.5: 0.3})


@pytest.mark.parametrize("shares", [(0.59, 0.36, 0.14), (0.58, 0.35, 0.14), (0.12, 0.38, 0.59)])
def test_the_coverage_is_never_more_than_whole_by_float_dust(shares):
    # Scaled down to a sum of 1, these add up to a hair more.
    listed = [(str(rating), share) for rating, share in enumerate(shares, 2)]
    found = weigh([token("2", shares[0], listed), token("}", 1)], "2")

    assert len(found.masses) == len(shares)
    assert found.coverage == 1

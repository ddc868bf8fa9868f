import json
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from geval_cli import errors
from geval_cli.errors import JudgeError, JudgeParseError
from geval_cli.judge.prompt import read_prompt
from geval_cli.judge.replies import parse_rating, parse_steps

REPLIES = yaml.safe_load((Path(__file__).parent / "replies.yaml").read_text(encoding="utf-8"))


def read(entry):
    if "dimension" in entry:
        return parse_rating(entry["reply"], score_range=(1, 5), name=entry["dimension"])
    low, high = entry.get("range", (0, 10))
    return parse_rating(entry["reply"], score_range=(low, high))


@pytest.mark.parametrize(
    "entry", [item for item in REPLIES if "rating" in item], ids=lambda item: item["name"]
)
def test_a_readable_reply_gives_its_rating(entry):
    parsed = read(entry)

    assert parsed.rating == entry["rating"]
    if "reason" in entry:
        assert parsed.reason == entry["reason"]


@pytest.mark.parametrize(
    "entry", [item for item in REPLIES if "error" in item], ids=lambda item: item["name"]
)
def test_an_unreadable_reply_is_an_error_that_keeps_the_reply(entry):
    with pytest.raises(JudgeError) as caught:
        read(entry)

    assert type(caught.value) is getattr(errors, entry["error"])
    assert caught.value.raw_text == entry["reply"]


ODD_REASONS = (
    "It is fine.",
    "",
    "  two   spaces ",
    "1. It is fine. 2. It is short.",
    'It says "no" twice.',
    "It says „nein“ and “no”.",
    "C:\\\\temp\\nand a line",
    "a\u2028b\x85c",
    "{score: 3}, and so on",
    'score": 3, "',
    "😀 é ﬁ",
)


@pytest.mark.parametrize("score", ["8", "0", "7.5", "08", "10"])
@pytest.mark.parametrize("reason", ODD_REASONS)
@pytest.mark.parametrize(
    "form",
    ['{"reason": "%s", "score": %s}', ' {"reason":"%s" ,\n"score" :%s\n}\n', '{"score": %s, "reason": "%s"}'],
)
def test_a_reply_that_is_nothing_but_an_object_is_read_like_one_with_prose_around_it(form, reason, score):
    reply = form % ((score, reason) if form.startswith('{"score"') else (reason, score))
    opening = "My verdict is this:\n"

    alone = parse_rating(reply, score_range=(0, 10))
    embedded = parse_rating(opening + reply, score_range=(0, 10))

    assert (alone.rating, alone.reason) == (embedded.rating, embedded.reason)
    assert alone.score_start + len(opening) == embedded.score_start
    assert reply[alone.score_start : alone.score_end] == score


def test_only_the_number_of_a_list_is_left_out_of_a_reason_and_of_a_step():
    reason = "1. I would give it 8. It is clear.\n2) See step 3. of the guide."
    parsed = parse_rating(json.dumps({"reason": reason, "score": 8}), score_range=(0, 10))
    steps = parse_steps('{"steps": ["1. Read chapter 2. Then stop.", "Compare it with Step 1: the draft."]}')

    assert parsed.reason == "I would give it 8. It is clear. See step 3. of the guide."
    assert steps == ("Read chapter 2. Then stop.", "Compare it with Step 1: the draft.")


def test_the_corpus_is_large_enough():
    assert len(REPLIES) >= 60
    assert len({item["name"] for item in REPLIES}) == len(REPLIES)


@pytest.mark.parametrize(
    "entry", [item for item in REPLIES if "rating" in item], ids=lambda item: item["name"]
)
def test_the_span_points_at_the_rating(entry):
    parsed = read(entry)

    spelled = entry["reply"][parsed.score_start : parsed.score_end].lower()

    words = {"seven": 7, "eight": 8, "true": 1}
    assert words.get(spelled) == parsed.rating or float(spelled.replace(",", ".")) == parsed.rating


def test_line_breaks_inside_a_reason_are_read_as_spaces():
    parsed = parse_rating('{"reason": "full\n            refund", "score": 9}', score_range=(0, 10))

    assert parsed.reason == "full refund"


def test_a_bare_number_has_no_reason_and_prose_is_its_own_reason():
    assert parse_rating("8", score_range=(0, 10)).reason is None
    prose = "The answer names all the facts that were asked for.\n\nScore: 8"
    assert parse_rating(prose, score_range=(0, 10)).reason == " ".join(prose.split())


def test_a_rating_on_another_scale_says_so():
    with pytest.raises(JudgeError, match=r"out of 5, but should have been 0 to 10"):
        parse_rating("Score: 4/5", score_range=(0, 10))


def test_a_dimension_name_is_taken_literally():
    with pytest.raises(JudgeParseError):
        parse_rating("xx: 4 and more", score_range=(1, 5), name="..")


@pytest.mark.parametrize(
    ("reply", "steps"),
    [
        ('{"steps": ["Read.", "Compare."]}', ("Read.", "Compare.")),
        ('```json\n{\n  "steps": [\n    "Read.",\n    "Compare.",\n  ]\n}\n```', ("Read.", "Compare.")),
        ("{'steps': ['Read it's text', 'Compare']}", ("Read it's text", "Compare")),
        ('{"steps": ["1. Read.", "2) Compare.", "Step 3: Rate."]}', ("Read.", "Compare.", "Rate.")),
        ('{"steps": [{"step": "Read."}, {"step": "Compare."}]}', ("Read.", "Compare.")),
        ('{"steps": "1. Read.\\n2. Compare."}', ("Read.", "Compare.")),
        ('{"evaluation_steps": ["Read."]}', ("Read.",)),
        ('Sure! ["Read.", "Compare."]', ("Read.", "Compare.")),
        ("Here are the steps:\n1. Read.\n2. Compare.\nDone.", ("Read.", "Compare.")),
        ("  1) Read.\n  2) Compare.", ("Read.", "Compare.")),
        ('{"steps": ["Read "it" twice", "Compare"]}', ('Read "it" twice', "Compare")),
        ('{"steps": ["Read.\n     slowly", "Compare."]}', ("Read. slowly", "Compare.")),
        ('<think>{"steps": ["no"]}</think>{"steps": ["Read."]}', ("Read.",)),
    ],
)
def test_steps_are_read_from_any_usual_spelling(reply, steps):
    assert parse_steps(reply) == steps


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I cannot help.",
        "{}",
        '{"steps": []}',
        '{"steps": null}',
        '{"steps": ["Read.", "Comp',
        '{"steps": [" "]}',
    ],
)
def test_a_reply_without_whole_steps_is_an_error(reply):
    with pytest.raises(JudgeParseError) as caught:
        parse_steps(reply)
    assert caught.value.raw_text == reply


HOSTILE = {
    "open braces": "{",
    "nested objects": '{"a":',
    "nested arrays": '{"a":[',
    "quotes": '"',
    "open string of quotes": '"" ',
    "backslashes": "\\",
    "label and spaces": "score" + " " * 9,
    "labels": "score: ",
    "digits": "9",
    "fractions": "1/",
    "minus": "-",
    "spaces": " ",
    "line breaks": "\n",
    "verbs": "give the a ",
    "numbers": "8 ",
    "numbered lines": "1. a\n",
    "keys": '"a": 1, ',
    "stars": "*",
    "brackets": "[",
}


@pytest.mark.parametrize("prefix", ["", '{"reason": "', '{"reason": ', '{"steps": ["', "score:"])
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE.keys())
def test_long_nonsense_ends_in_a_verdict_or_an_error_and_in_good_time(unit, prefix):
    # Work that grew with the square of the reply would take minutes here.
    text = prefix + unit * (40_000 // len(unit))
    for parse in (
        lambda: parse_rating(text, score_range=(0, 10)),
        lambda: parse_rating(text, score_range=(1, 5), name="Coherence"),
        lambda: parse_steps(text),
    ):
        with suppress(JudgeError):
            parse()


def test_a_megabyte_with_the_verdict_at_its_end_is_read():
    text = '{"reason": "' + 'he said "yes", ' * 70_000 + '", "score": 8}'

    assert parse_rating(text, score_range=(0, 10)).rating == 8


def test_nesting_beyond_the_limit_is_not_followed():
    with pytest.raises(JudgeParseError):
        parse_rating('{"a":' * 100_000 + '{"reason": "x", "score": 8}', score_range=(0, 10))


@pytest.mark.parametrize("reply", ['{"steps": <list_of_strings>}', '{"steps": ["<a step>", "<another>"]}'])
def test_a_judge_that_repeats_the_place_holders_has_written_no_steps(reply: str) -> None:
    with pytest.raises(JudgeParseError):
        parse_steps(reply)


def test_a_judge_that_repeats_its_prompt_has_given_no_rating() -> None:
    for name in ("evaluate", "evaluate_strict"):
        with pytest.raises(JudgeParseError):
            parse_rating(read_prompt(name), score_range=(0, 10))


REFUSALS = (
    "I cannot rate this.",
    "I can't evaluate the output without its source.",
    "I'm unable to judge pictures.",
    "Unable to assess: the text is cut off",
    "It is impossible to grade this answer.",
    "The output cannot be evaluated.",
    "The response could not be scored because it is encrypted.",
    "As an AI, I cannot do that.",
    "No output was provided.",
    "However, I was not able to score this.",
    "Ich kann diesen Text nicht bewerten.",
    "Es tut mir leid, aber ich kann die Antwort leider nicht beurteilen.",
    "Leider kann ich das nicht bewerten.",
    "Es tut mir leid, das kann ich nicht beurteilen.",
    "Helaas, dat kan ik niet beoordelen.",
    "Sorry, ik kan deze tekst niet beoordelen.",
    "Je ne peux pas évaluer ce texte.",
    "Désolé, je ne suis pas en mesure d'évaluer cela.",
    "Il m'est impossible de noter cette réponse.",
    "Lo siento, no puedo evaluar este texto.",
    "Não posso avaliar este texto.",
    "Mi dispiace, non posso valutare questo testo.",
    "Я не могу оценить этот текст.",
    "抱歉,我无法评估此内容。",
    "我无法对这段文本进行评分。",
    "申し訳ありませんが、この内容を評価することはできません。",
    "죄송합니다. 이 텍스트를 평가할 수 없습니다.",
)
VERDICTS = (
    "I cannot rate it higher because of two mistakes.",
    "I can't judge this more harshly than that.",
    "The output cannot be judged as helpful.",
    "The assistant is unable to rate films.",
    "It says that it cannot help.",
    "No answer to the second question is given.",
    "Unable to verify two claims, but the rest is right.",
    "Ich kann die Antwort nicht höher bewerten.",
    "Ich kann diese Antwort nicht als richtig bewerten.",
    "Die Antwort sagt, ich kann das nicht beurteilen.",
    "Je ne peux pas noter plus haut.",
    "La respuesta no se puede evaluar como correcta.",
    "No puedo calificar esta respuesta mejor.",
    "Non posso valutare la risposta meglio.",
    "该回答无法评估为正确。",
    "回答说无法评估该内容。",
    "この回答を高く評価できません。",
    "이 답변을 높게 평가할 수 없습니다.",
)
FORMS = (
    "Score: 2\n{}",
    "{}\nScore: 2",
    "Reason: {}\nScore: 2",
    "Score: 2\nReason: {}",
    '{{"score": 2, "reason": "{}"}}',
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("reason", "is_refusal"), [*((one, True) for one in REFUSALS), *((one, False) for one in VERDICTS)]
)
def test_a_number_beside_a_refusal_is_no_rating(form: str, reason: str, is_refusal: bool) -> None:
    reply = form.format(reason)
    if is_refusal:
        with pytest.raises(JudgeParseError, match="gives no rating"):
            parse_rating(reply, score_range=(1, 5))
    else:
        assert parse_rating(reply, score_range=(1, 5)).rating == 2

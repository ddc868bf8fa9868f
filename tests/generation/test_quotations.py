# ruff: noqa: RUF001 - these are the characters that it is about
"""A quotation is looked for by code: what is only typeset otherwise is equal, another word or number is not."""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.extras.generation.documents import FoldedText, FoundSpan, QuotationFault

TEXT = (
    "The  “total” cost was 1,250 euros—not 12½—and the exam-\nple of a well-known **bold** [link text](http://x.y/z)"
    " isn’t in the café. It rose to 5.2 million, 10² times, at -7 degrees outside from 2010–2020.\n\nThe ferry to"
    " Elmsund\u00a0leaves at 7:45 from the old pier."
)
FOUND = {
    "white space": ("ferry to Elmsund leaves  at\n7:45 from", "ferry to Elmsund\u00a0leaves at 7:45 from"),
    "typographic quotes": ('The "total" cost was 1,250 euros', "The  “total” cost was 1,250 euros"),
    "a hyphen at the end of a line": ("and the example of a wellknown", "and the exam-\nple of a well-known"),
    "dashes": ("cost was 1,250 euros - not 12½", "cost was 1,250 euros—not 12½"),
    "emphasis and links": (
        "well-known bold link text isn't",
        "well-known **bold** [link text](http://x.y/z) isn’t",
    ),
    "forms of Unicode": ("isn't in the cafe\u0301. It rose", "isn’t in the café. It rose"),
    "capitals": ("the FERRY to Elmsund leaves", "The ferry to"),
    "marks around it": ("“... the ferry to Elmsund leaves at 7:45 …”", "The ferry to"),
    "a dash of numbers": ("degrees outside from 2010-2020", "degrees outside from 2010–2020"),
    "soft hyphens": ("the ferry to Elm\u00adsund leaves at", "The ferry to"),
}
UNFOUND = {
    "another number": ("the total cost was 1,260 euros", QuotationFault.ABSENT),
    "another word": ("The ferry from Elmsund leaves at 7:45", QuotationFault.ABSENT),
    "a number cut at its front": ("250 euros—not 12½—and the", QuotationFault.ABSENT),
    "a number cut at its end": ("café. It rose to 5", QuotationFault.ABSENT),
    "a time cut at its end": ("ferry to Elmsund leaves at 7", QuotationFault.ABSENT),
    "a number without its sign": ("7 degrees outside from 2010–2020", QuotationFault.ABSENT),
    "a power as a number": ("5.2 million, 102 times, at -7", QuotationFault.ABSENT),
    "a word cut at its end": ("The ferry to Elmsund leaves at 7:45 from the ol", QuotationFault.ABSENT),
    "a word cut before its negation": ("well-known bold link text isn", QuotationFault.ABSENT),
    "a negation left out": ("bold link text is in the café", QuotationFault.ABSENT),
    "two places, joined by an ellipsis": (
        "The total cost was ... the ferry to Elmsund",
        QuotationFault.JOINED,
    ),
    "two places, joined by one character": ("the café. It rose […] the old pier", QuotationFault.JOINED),
    "few words": ("the old pier", QuotationFault.SHORT),
    "only marks": ("... — ...", QuotationFault.SHORT),
    "nothing": ("", QuotationFault.SHORT),
    "a whole page": ("the ferry leaves " * 60, QuotationFault.LONG),
}


@pytest.mark.parametrize(("quotation", "begins"), FOUND.values(), ids=FOUND)
def test_what_is_typeset_otherwise_is_found_where_it_stands(quotation: str, begins: str) -> None:
    span = FoldedText(TEXT).find(quotation)
    assert isinstance(span, FoundSpan)
    assert TEXT[span.start : span.end].startswith(begins)


@pytest.mark.parametrize(("quotation", "why"), UNFOUND.values(), ids=UNFOUND)
def test_what_the_document_does_not_say_is_not_found(quotation: str, why: QuotationFault) -> None:
    assert FoldedText(TEXT).find(quotation) is why


CUT = {
    "a minus set as a dash": ("It is at –5 degrees when the ferry stops", "5 degrees when the ferry stops"),
    "a decimal without a zero": ("Give .5 mg of the drug per day", "5 mg of the drug per day"),
    "a raised decimal point": ("Give 0·5 mg of the drug per day", "5 mg of the drug per day"),
    "an Arabic decimal": ("الجرعة هي ٣٫٥ ملغ من الدواء في اليوم", "٥ ملغ من الدواء في اليوم"),
    "thousands set apart, the front": (
        "It costs 12\u00a0500 francs a year for all",
        "500 francs a year for all",
    ),
    "thousands set apart, the end": ("A year of it costs 12\u202f500 francs", "A year of it costs 12"),
    "thousands set apart with a mark": ("It costs 12'500 francs a year for all", "500 francs a year for all"),
    "the front of a range": ("A parcel takes 5-7 days to get there", "7 days to get there"),
    "the end of a range": ("A parcel will take about 5 – 7 days", "A parcel will take about 5"),
    "the start of a price range": ("It costs $5-$7 a day for all of you", "$7 a day for all of you"),
    "less than": ("Take <5 mg of the drug per day", "5 mg of the drug per day"),
    "at least": ("It must be ≥ 5 mg of the drug per day", "5 mg of the drug per day"),
    "the power": ("There are in total 10^6 of them", "There are in total 10"),
    "the factor": ("There are in total 5 × 10⁶ of them", "There are in total 5"),
    "the fraction": ("Take as much water as 1 1/2 cups", "Take as much water as 1"),
    "the millions": ("The budget of all is 5 million euros", "The budget of all is 5"),
    "the unit of a share": ("The share of them is 5 % today", "The share of them is 5"),
    "a number of a name": ("It had COVID-19 patients in all of the wards", "19 patients in all of the wards"),
    "un- in bold": ("This is **un**safe for children under three", "safe for children under three"),
    "un- as code": ("This is `un`safe for children under three", "safe for children under three"),
    "un- in brackets": ("This is (un)safe for children under three", "safe for children under three"),
    "un- with tags": ("This is <b>un</b>safe for children under three", "safe for children under three"),
    "non- with a dash": (
        "These are non–refundable deposits of all guests",
        "refundable deposits of all guests",
    ),
    "less in bold": ("For all of us it is care**less**", "For all of us it is care"),
    "a Hindi prefix": ("यह व्यक्ति बहुत बेईमान है और झूठ बोलता है", "ईमान है और झूठ बोलता है"),
    "a word with vowel points": ("בְּלִי שָׁלוֹם עַל הָאָרֶץ הַזֹּאת", "לוֹם עַל הָאָרֶץ הַזֹּאת"),
}


@pytest.mark.parametrize(("text", "quotation"), CUT.values(), ids=CUT)
def test_nothing_is_cut_off_a_word_or_number(text: str, quotation: str) -> None:
    assert FoldedText(text).find(quotation, 3) is QuotationFault.ABSENT
    assert isinstance(FoldedText(text).find(text, 3), FoundSpan)


def test_scripts_without_spaces_are_quoted_too() -> None:
    text = "昨日の会議で、新しい図書館は来年の春に開館すると市長が発表しました。"
    span = FoldedText(text).find("新しい図書館は来年の春に開館する")
    assert isinstance(span, FoundSpan)
    assert text[span.start : span.end] == "新しい図書館は来年の春に開館する"
    assert (
        FoldedText("费用为二十二万元整,由市政府支付。").find("十二万元整,由市政府支付", 3)
        is QuotationFault.ABSENT
    )


@given(st.text(max_size=200), st.text(max_size=60))
def test_a_quotation_is_never_found_outside_of_the_text_and_is_found_again_as_it_stands(
    text: str, quotation: str
) -> None:
    folded = FoldedText(text)
    span = folded.find(quotation, 1)
    if isinstance(span, FoundSpan):
        assert 0 <= span.start < span.end <= len(text)
        assert isinstance(folded.find(text[span.start : span.end], 1), FoundSpan)


DATA = Path(__file__).parents[3] / "shared" / "data" / "summeval_docs.jsonl"


def test_every_true_quotation_of_real_documents_is_found_and_no_altered_one() -> None:
    if not DATA.exists():
        pytest.skip(f"there is no {DATA}")
    draw = random.Random(7)
    for line in DATA.read_text(encoding="utf-8").splitlines()[:100]:
        text = json.loads(line)["source"]
        folded, words = FoldedText(text), text.split()
        for _ in range(5):
            start = draw.randrange(len(words) - 12)
            told = words[start : start + 10]
            if re.match(r"\d|%|[a-z]*illion|hundred|thousand|per ?cent", words[start + 10]):
                continue  # it would end inside a number
            assert isinstance(folded.find(" ".join(told), 3), FoundSpan), told
            place = draw.randrange(1, 9)
            assert folded.find(" ".join([*told[:place], "zeppelin", *told[place:]])) is QuotationFault.ABSENT

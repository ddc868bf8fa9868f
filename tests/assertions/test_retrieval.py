"""The assertions about retrieval, and answer-relevance: numbers worked by hand."""

import json
from typing import Any

import pytest
from support.graded import SpeakingJudge, graded, graded_tools
from support.verdicts import problems

from geval_cli.errors import JudgeError, UnjudgeableError
from geval_cli.extras.rag import citations_in
from geval_cli.records import Status

CONTEXT = {"vars": {"query": "How much?", "context": "It costs 5.\n\nIt is red.\nIt is old."}}


def recalled(*attributed: bool) -> str:
    sentences = [{"sentence": f"s{number}", "attributed": claim} for number, claim in enumerate(attributed)]
    return json.dumps({"sentences": sentences})


@pytest.mark.parametrize(
    ("attributed", "score", "status"),
    [
        ((True, True, False, False), 0.5, Status.PASSED),
        ((True, False, False), 1 / 3, Status.FAILED),
        ((True,), 1.0, Status.PASSED),
    ],
)
def test_recall_is_the_share_of_attributed_sentences(
    attributed: tuple[bool, ...], score: float, status: Status
) -> None:
    result = graded("context-recall", graded_tools(recalled(*attributed)), value="A. B.", test=CONTEXT)
    assert result.score == pytest.approx(score)
    assert (result.status, result.threshold) == (status, 0.5)


def test_recall_takes_the_prompt_where_there_is_no_context() -> None:
    judge = SpeakingJudge([recalled(True)])
    graded("context-recall", graded_tools(judge=judge), value="A.", prompt="It says A.")
    assert "It says A." in judge.prompts[0]


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_recall_without_context_and_prompt_is_an_error(prompt: str) -> None:
    with pytest.raises(UnjudgeableError, match="has no `context`"):
        graded("context-recall", graded_tools(recalled(True)), value="A.", prompt=prompt)


@pytest.mark.parametrize(("relevant", "score"), [([1], 1 / 3), ([1, 3, 3], 2 / 3), ([], 0.0)])
def test_relevance_is_the_share_of_needed_lines(relevant: list[int], score: float) -> None:
    reply = json.dumps({"relevant": relevant})
    result = graded("context-relevance", graded_tools(reply), test=CONTEXT)
    assert result.score == pytest.approx(score)


def test_relevance_counts_the_passages_of_a_list() -> None:
    test = {"vars": {"query": "q"}, "retrieval_context": ("one\ntwo", "three")}
    assert graded("context-relevance", graded_tools('{"relevant": [2]}'), test=test).score == 0.5


@pytest.mark.parametrize("written", ['["one", "two"]', '[\n "one",\n "two"\n]', ' [{"text": "one"}, 7]\n'])
def test_a_list_that_is_written_as_json_is_a_list(written: str) -> None:
    test = {"vars": {"query": "q", "context": written}}
    assert graded("context-relevance", graded_tools('{"relevant": [1]}'), test=test).score == 0.5
    cited = {"vars": {"query": "q", "context": "[1] one\n[2] two"}}
    assert graded("context-relevance", graded_tools('{"relevant": [1]}'), test=cited).score == 0.5


def test_a_passage_that_is_a_mapping_is_shown_as_json() -> None:
    judge = SpeakingJudge(['{"relevant": [1]}'])
    passages = [{"text": "It costs 5.", "is_new": True}, "three", 7]
    test = {"vars": {"query": "q", "context": passages}}
    graded("context-relevance", graded_tools(judge=judge), test=test)
    assert '1. {"text": "It costs 5.", "is_new": true}\n2. three\n3. 7' in judge.prompts[0]


def test_relevance_of_the_users_own_prompt_counts_quoted_lines() -> None:
    own = "Quote what of {{ context }} answers {{ query }}."
    quoting = graded("context-relevance", graded_tools("It costs 5."), test=CONTEXT, rubricPrompt=own)
    assert quoting.score == pytest.approx(1 / 3)
    nothing = graded(
        "context-relevance", graded_tools("Insufficient Information"), test=CONTEXT, rubricPrompt=own
    )
    assert nothing.score == 0
    with pytest.raises(JudgeError, match="quoted nothing"):
        graded("context-relevance", graded_tools("Hello."), test=CONTEXT, rubricPrompt=own)


def said(statements: list[str], verdicts: list[str]) -> list[str]:
    return [
        json.dumps({"statements": statements}),
        json.dumps({"verdicts": [{"reason": "r", "verdict": item} for item in verdicts]}),
    ]


def test_faithfulness_is_the_share_of_supported_claims() -> None:
    judge = SpeakingJudge(said(["a", "b", "c", "d"], ["yes", "no", "yes", "yes"]))
    result = graded("context-faithfulness", graded_tools(judge=judge), test=CONTEXT, threshold=0.8)
    assert (result.status, result.score) == (Status.FAILED, 0.75)
    assert "1 of 4 claims" in result.reason
    assert "How much?" in judge.prompts[0]
    assert "It costs 5." in judge.prompts[1]


def test_a_claim_that_a_judge_repeats_counts_once() -> None:
    judge = SpeakingJudge(said(["a"] * 8 + ["b"], ["yes", "no"]))
    assert graded("context-faithfulness", graded_tools(judge=judge), test=CONTEXT).score == 0.5


def test_recall_of_a_part_of_the_truth_is_an_error() -> None:
    with pytest.raises(JudgeError, match="leaves out most"):
        graded("context-recall", graded_tools(recalled(True)), value="It costs 5. A. B. C.", test=CONTEXT)


def test_an_answer_without_claims_is_faithful_and_asks_no_further() -> None:
    judge = SpeakingJudge(said([], []))
    assert graded("context-faithfulness", graded_tools(judge=judge), test=CONTEXT).score == 1
    assert len(judge.requests) == 1


def test_verdicts_that_do_not_fit_the_claims_are_an_error() -> None:
    with pytest.raises(JudgeError, match="1 verdict where 2 were asked for"):
        graded("context-faithfulness", graded_tools(*said(["a", "b"], ["yes"])), test=CONTEXT)


@pytest.mark.parametrize("kind", ["context-faithfulness", "context-relevance"])
def test_a_test_without_a_context_is_a_problem(kind: str) -> None:
    assert "needs a context" in problems(kind)[0].message
    assert problems(kind, vars={"context": "x"}) == []
    with pytest.raises(UnjudgeableError):
        graded(kind, graded_tools("x"))


VECTORS = {"How much?": [1, 0], "Q?": [3, 4]}


@pytest.mark.parametrize(
    ("test", "prompt"),
    [(CONTEXT, "x"), ({"input": "How much?"}, "x"), ({}, "How much?")],
)
def test_answer_relevance_is_the_mean_nearness_of_made_up_questions(
    test: dict[str, Any], prompt: str
) -> None:
    judge = SpeakingJudge(["Q?"])
    tools = graded_tools(judge=judge, vectors=VECTORS)
    result = graded("answer-relevance", tools, test=test, prompt=prompt, threshold=0.7)
    assert (result.status, result.score) == (Status.FAILED, pytest.approx(0.6))
    assert judge.requests[0].sample_indexes == (0, 1, 2)
    assert result.detail["questions"] == ["Q?", "Q?", "Q?"]


NO_QUESTIONS = (
    "I cannot generate a question.",
    "I\u2019m sorry, there is nothing to ask.",
    "No question fits this answer.",
    "None",
    "N/A.",
    "...",
    "<the question>",
)


@pytest.mark.parametrize(
    "reply",
    [
        *(" ", "{}", "null", "7", '{"reason": 1}', '{"a": "Q?", "b": "R?"}', '{"error": "overloaded"}'),
        *NO_QUESTIONS,
        *(json.dumps({"question": text}) for text in NO_QUESTIONS),
    ],
)
def test_a_reply_without_a_question_is_an_error(reply: str) -> None:
    with pytest.raises(JudgeError):
        graded("answer-relevance", graded_tools(reply, vectors=VECTORS), test=CONTEXT)


@pytest.mark.parametrize(
    "reply", ["I can't log in. Why?", "None of the shops is open, is it\uff1f", "Tell me all."]
)
def test_a_question_may_begin_as_a_refusal_does(reply: str) -> None:
    tools = graded_tools(judge=SpeakingJudge([reply]), vectors={**VECTORS, reply: [1, 0]})
    assert graded("answer-relevance", tools, test=CONTEXT).score == 1


@pytest.mark.parametrize(
    "reply", ['{"question": "Q?"}', '"Q?"', '["Q?"]', "Q?", '```json\n{"question": "Q?"}\n```']
)
def test_a_question_in_json_is_the_question(reply: str) -> None:
    tools = graded_tools(judge=SpeakingJudge([reply]), vectors=VECTORS)
    assert graded("answer-relevance", tools, test=CONTEXT).detail["questions"] == ["Q?"] * 3


RANKED = {"vars": {"query": "How much?"}, "retrieval_context": ("a", "b", "c", "d")}


def verdicts(*said: str) -> str:
    return json.dumps({"verdicts": [{"reason": "r", "verdict": item} for item in said]})


@pytest.mark.parametrize("name", ["context-precision", "contextual-precision"])
@pytest.mark.parametrize(
    ("useful", "score"),
    [
        (("yes", "yes", "no", "no"), 1.0),
        (("no", "yes", "no", "yes"), (1 / 2 + 2 / 4) / 2),
        (("no", "no", "no", "yes"), 1 / 4),
        (("no", "no", "no", "no"), 0.0),
    ],
)
def test_precision_is_the_mean_of_the_shares_of_useful_passages_down_to_each(
    name: str, useful: tuple[str, ...], score: float
) -> None:
    judge = SpeakingJudge([verdicts(*useful)])
    result = graded(name, graded_tools(judge=judge), value="It costs 5.", test=RANKED)
    assert result.score == pytest.approx(score)
    assert result.detail["useful"] == [item == "yes" for item in useful]
    assert "It costs 5." in judge.prompts[0]


def test_precision_takes_the_expected_output_of_the_test_or_wants_a_value() -> None:
    judge = SpeakingJudge([verdicts("yes", "no", "no", "no")])
    graded("context-precision", graded_tools(judge=judge), test={**RANKED, "expected_output": "Five euros."})
    assert "Five euros." in judge.prompts[0]
    [problem] = problems("context-precision", vars={"context": "x"})
    assert "needs the expected answer" in problem.message


@pytest.mark.parametrize(
    ("true", "in_context", "score", "words"),
    [
        (("yes", "yes"), None, 1.0, "no claim is an error taken from the context"),
        (("yes", "no"), ("yes", "yes"), 0.5, "1 of 2 claims is wrong and comes from the context: b"),
        (("no", "no"), ("no", "no"), 1.0, "(2 of 2 are wrong, but not because of it)"),
        (("no", "no"), ("yes", "yes"), 0.0, "2 of 2 claims"),
    ],
)
def test_noise_sensitivity_counts_wrong_claims_that_the_context_makes(
    true: tuple[str, ...], in_context: tuple[str, ...] | None, score: float, words: str
) -> None:
    replies = [json.dumps({"statements": ["a", "b"]}), verdicts(*true)]
    judge = SpeakingJudge([*replies, *([] if in_context is None else [verdicts(*in_context)])])
    result = graded("noise-sensitivity", graded_tools(judge=judge), value="The truth.", test=CONTEXT)
    assert result.score == pytest.approx(score)
    assert words in result.reason
    assert "The truth." in judge.prompts[1]


def test_an_answer_without_claims_is_not_sensitive() -> None:
    judge = SpeakingJudge([json.dumps({"statements": []})])
    assert graded("noise-sensitivity", graded_tools(judge=judge), value="x", test=CONTEXT).score == 1.0


SOURCES = {
    "vars": {
        "context": ["Paris is the capital of France.", "The tower is 330 m high — with its tip.", "Other."]
    }
}


@pytest.mark.parametrize(
    ("output", "said", "score", "words"),
    [
        ("Paris is the capital [1].", ("yes",), 1.0, "the citation is correct"),
        ("Paris is the capital. [1] It has a tower.[2]", ("yes", "no"), 0.5, "passage 2 does not say so"),
        ("Paris is the capital [1, 3][2].", ("no",), 0.0, "passages 1 and 3 and 2 do not say so"),
        ("Paris is the capital [7].", (), 0.0, "there is no passage 7 (the context has 3)"),
        ("Paris [1]. The tower is high [0].", ("yes",), 0.5, "there is no passage 0"),
        ("It is “330 m high \u2013 with its tip” [2].", ("yes",), 1.0, "the citation is correct"),
        (
            "It is “330 m high \u2013 with its tip” [1].",
            (),
            0.0,
            "the quotation is not in the cited passages",
        ),
        ('It says "the TOWER ... with its tip".', (), 1.0, "the citation is correct"),
        ('It says "France. The tower is" there.', (), 0.0, "the quotation is not in the context"),
        ('It says "the tower is 400 m high".', (), 0.0, "the quotation is not in the context"),
        (
            "Paris is the capital【1†source】。塔は高い【2】。",
            ("yes", "yes"),
            1.0,
            "all 2 citations are correct",
        ),
        ("Paris [1-2].", ("yes",), 1.0, "the citation is correct"),
        ("Paris is the capital.", (), 0.0, "cites and quotes nothing"),
        ('He said "yes" to it.', (), 0.0, "cites and quotes nothing"),
        ("", (), 0.0, "cites and quotes nothing"),
        ("Paris[1] was built on the Seine[2] by 1889[3].", ("yes",), 1.0, "the citation is correct"),
        ('Paris is it [1](https://a.example/x_(y)[9] "a long title here").', ("yes",), 1.0, "is correct"),
        ("Paris is it [[1]](https://a.example), CO2[2] is not.", ("yes",), 1.0, "is correct"),
        ('Paris is it <sup>[1]</sup> <a href="https://a.example">here</a>.', ("yes",), 1.0, "is correct"),
        (
            "Paris is it [^1].\n\n[^1]: The guide, page 7.\n[2]: https://a.example",
            ("yes",),
            1.0,
            "is correct",
        ),
        ("Paris is it [1].\n\n**Sources:**\n\n- [1] guide.md\n- [2] tower.md", ("yes",), 1.0, "is correct"),
        ("Call `a[7]` with it [1].", ("yes",), 1.0, "is correct"),
        (
            "The World Health Organization (WHO)[1] has it in (late) May[2] (or June)[3].",
            ("yes",),
            1.0,
            "is correct",
        ),
        ("Paris[1] (the capital) has it [2].", ("yes",), 1.0, "is correct"),
        ("[1] says so.", ("yes",), 1.0, "is correct"),
    ],
)
def test_citations_are_looked_up_by_code_and_their_claims_judged(
    output: str, said: tuple[str, ...], score: float, words: str
) -> None:
    judge = SpeakingJudge([verdicts(*said)] if said else [])
    result = graded("citation-correctness", graded_tools(judge=judge), output=output, test=SOURCES)
    assert result.score == pytest.approx(score)
    assert words in result.reason
    assert len(judge.prompts) == bool(said)


@pytest.mark.parametrize("key", ["vars", "context", "retrieval_context"])
@pytest.mark.parametrize(
    ("context", "passages"),
    [
        (["Paris.\nIt has a tower."], ["Paris.\nIt has a tower."]),
        ("Paris.\n\nIt has a tower.", ["Paris.", "It has a tower."]),
        (["", "Paris.", None, "It\nhas"], ["", "Paris.", "", "It\nhas"]),
    ],
)
def test_passages_have_the_numbers_that_the_list_gives_them(
    key: str, context: Any, passages: list[str]
) -> None:
    if key != "vars" and isinstance(context, list):
        context = tuple(item or "" for item in context)
    test = {"vars": {"context": context}} if key == "vars" else {"vars": {}, key: context}
    last = len(passages)
    judge = SpeakingJudge([verdicts("yes")])
    tools = graded_tools(judge=judge)
    result = graded("citation-correctness", tools, output=f"A [{last}]. B [{last + 1}].", test=test)
    assert f"there is no passage {last + 1} (the context has {last})" in result.reason
    assert result.score == 0.5
    assert f"{last}. {passages[-1]}" in judge.prompts[0]

    useful = graded_tools(verdicts(*["no"] * (last - 1), "yes"))
    assert graded("context-precision", useful, value="A", test=test).score == pytest.approx(1 / last)


def test_empty_passages_are_not_among_those_that_are_needed() -> None:
    test = {"vars": {"query": "q", "context": ["", "one\ntwo", " "]}}
    assert graded("context-relevance", graded_tools('{"relevant": [1]}'), test=test).score == 1.0


@pytest.mark.parametrize(
    "text",
    [
        '```python\nprint(a[1], "a quoted text of some length")\n```',
        "~~~\nx = [1, 2]\n~~~ ",
        "Never closed:\n```\na[1]\n",
        "Use `a[1]` and ``b[`2`]``.",
        'Use `print("a quoted text of some length")`.',
        'It says "................" and "... ... ... ... ...".',
        "So a[1] is the second, my_list[1] too, row2[1], f(x)[1] and g(f(x), 2)[1] as well, items[0], m[0][1].",
        "Then values[1] = 5, handlers[2](x), people[1].name and x = [1, 2].",
        "![1](chart.png) shows it.",
        'See [the guide](https://a.example/a[1]?q=2 "a long title here").',
        "Use \ue000 1 \ue001.",
    ],
)
def test_code_links_and_images_cite_and_quote_nothing(text: str) -> None:
    assert list(citations_in(text)) == []


def test_a_claim_keeps_its_code() -> None:
    [found] = citations_in('Read `row["a quoted text of some length"]` or a[1] first [2].')
    assert (found.claim, found.cited, found.quoted) == (
        'Read `row["a quoted text of some length"]` or a[1] first.',
        (2,),
        (),
    )


def test_a_judge_sees_each_claim_with_the_passages_that_it_cites() -> None:
    judge = SpeakingJudge([verdicts("yes")])
    graded("citation-correctness", graded_tools(judge=judge), output="Paris is it [1][3].", test=SOURCES)
    assert "1. Paris is it. (cites 1, 3)" in judge.prompts[0]
    assert "2. The tower is 330 m high" in judge.prompts[0]

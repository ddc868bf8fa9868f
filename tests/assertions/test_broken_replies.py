"""No broken reply of a judge becomes a verdict, whatever type of assertion reads it."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from msgspec import Struct, field
from msgspec.structs import replace
from support.graded import SpeakingJudge
from support.specs import TEMPLATES, assertion, case

from geval_cli.assertions.base import ModelGradedAssertion, RowColumn, RowMember, Subject, Tools
from geval_cli.assertions.registry import ASSERTION_TYPES, judge_assertion, judge_row
from geval_cli.errors import GevalError, JudgeError
from geval_cli.judge.calls import JudgeCalls, JudgeFacts
from geval_cli.judge.grading import write_steps
from geval_cli.records import ModelRequest, ModelResponse, Status, TraceStep
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.templating import Templates

GOOD = {"reason": "Good.", "pass": True, "score": 0.9}
OWN = ProviderSpec(id="huggingface:text-classification:acme/m")
STATEMENTS, VERDICTS = {"statements": ["It is a."]}, {"verdicts": [{"reason": "r", "verdict": "yes"}]}
STEPS = {"steps": ["Read it.", "Rate it."]}
_FORM = re.compile(r"Form of the JSON:\n(.*?)\n\n", re.DOTALL)


class Kind(Struct, frozen=True):
    """A type with a reply that passes; `broken` are the keys that hold its verdict, `before` is said first."""

    keys: Mapping[str, Any]
    good: Any
    broken: tuple[str, ...]
    before: Mapping[str, Any] = field(default_factory=dict)
    output: str = "the output"


CHECK = {"1": {"reason": "r", "evidence": "the output", "answer": "yes"}}
KINDS: dict[str, Kind] = {
    "llm-rubric": Kind({"value": "nice"}, GOOD, ("pass", "score")),
    "search-rubric": Kind({"value": "nice"}, GOOD, ("pass", "score")),
    "trajectory:goal-success": Kind({"value": "find it"}, GOOD, ("pass", "score")),
    "g-eval": Kind({"criteria": "nice"}, {"reason": "Good.", "score": 9}, ("score",), STEPS),
    "g-eval dimension": Kind({"dimension": "fluency"}, 3, (), STEPS),
    "g-eval checklist": Kind({"checklist": [{"item": "Is it nice?"}]}, CHECK, ("answer",)),
    "factuality": Kind({"value": "a"}, {"reason": "r", "category": "C"}, ("category",)),
    "model-graded-factuality": Kind({"value": "a"}, {"reason": "r", "category": "C"}, ("category",)),
    "model-graded-closedqa": Kind({"value": "a"}, {"reason": "r", "verdict": "Y"}, ("verdict",)),
    "conversation-relevance": Kind({}, {"reason": "r", "verdict": "yes"}, ("verdict",)),
    "context-recall": Kind(
        {"value": "a"}, {"sentences": [{"sentence": "a", "attributed": True}]}, ("sentences", "attributed")
    ),
    "context-relevance": Kind({}, {"relevant": [1]}, ("relevant",)),
    "context-faithfulness": Kind({}, VERDICTS, ("verdicts", "verdict"), STATEMENTS),
    "context-faithfulness claims": Kind({}, STATEMENTS, ("statements",)),
    "faithfulness": Kind({}, VERDICTS, ("verdicts", "verdict"), STATEMENTS),
    "noise-sensitivity": Kind({"value": "a"}, VERDICTS, ("verdicts", "verdict"), STATEMENTS),
    "context-precision": Kind({"value": "a"}, VERDICTS, ("verdicts", "verdict")),
    "contextual-precision": Kind({"value": "a"}, VERDICTS, ("verdicts", "verdict")),
    "contextual-recall": Kind(
        {"value": "a"}, {"sentences": [{"sentence": "a", "attributed": True}]}, ("sentences", "attributed")
    ),
    "citation-correctness": Kind({}, VERDICTS, ("verdicts", "verdict"), output="The output is a [1]."),
    "choice": Kind({"value": "a", "choices": {"b": 1, "c": 0}}, {"reason": "r", "choice": "b"}, ("choice",)),
    "select-best": Kind({"value": "nice"}, {"reason": "r", "best": 1}, ("best",)),
    "pairwise": Kind({"criteria": "nice", "threshold": 0.1}, {"reason": "r", "winner": "1"}, ("winner",)),
    "classifier": Kind({"value": "good", "provider": OWN}, {"good": 1.0}, ("good",)),
    "moderation": Kind({"provider": OWN}, {}, ()),
    "similar": Kind({"value": "a"}, [1.0, 0.5], ()),
    "similar:cosine": Kind({"value": "a"}, [1.0, 0.5], ()),
    "similar:dot": Kind({"value": "a"}, [1.0, 0.5], ()),
    "similar:euclidean": Kind({"value": "a"}, [1.0, 0.5], ()),
    "answer-relevance": Kind({}, [1.0, 0.5], ()),
}
"""By the type, with a word behind it for a further form of it."""

ANYWHERE = ("", "  ", "I cannot help with that.", "null", "{}", '{"reason": "Terrible"}', "<think>It is bad")
ANYWHERE += (
    '{"error": {"message": "overloaded"}}',
    '{"type": "object", "properties": {}}',
    '"pass"',
    "[null]",
)
ANYWHERE += ("As the rubric says: <your verdict>", '{"reason": "Good", "pas', '{"passs": false, "score": ""}')
CLAIMS_NOTHING = {'"pass"', "As the rubric says: <your verdict>"}
VALUES = (None, float("nan"), float("inf"), "maybe", "9/100", "<true or false>", "", {}, [], ["?"], 1e9, -3)
UNHARMED = {"moderation": {"{}"}, "context-faithfulness claims": CLAIMS_NOTHING}
"""What is no broken reply to one type: nothing is flagged, and lines of claims, which are judged next."""


def broken_replies(kind: str) -> Iterator[str]:
    """Replies of which no verdict can be read."""
    spec = KINDS[kind]
    yield from (text for text in ANYWHERE if text not in UNHARMED.get(kind, ()))
    whole = json.dumps(spec.good)
    for key in spec.broken:
        yield json.dumps(_changed(spec.good, key, lambda name, value: {}))
        yield json.dumps(_changed(spec.good, key, lambda name, value: {f"{name}s_": value}))
        yield json.dumps({"example": spec.good, "reason": "r"})
        yield whole[: whole.index(f'"{key}"') + len(key) + 3]
        for odd in VALUES:
            if (odd != [] and (key, odd) != ("statements", ["?"])) or key not in ("relevant", "statements"):
                yield json.dumps(_changed(spec.good, key, lambda name, _, odd=odd: {name: odd}))
    for other in _opposites(spec):
        yield f"{whole}\n{other}"
        yield f"[{other}, {whole}]"
        yield f'{{"a": {whole}, "b": {other}}}'


def _changed(value: Any, key: str, change: Any) -> Any:
    """`value` with what `change` makes of every member `key`."""
    if isinstance(value, list):
        return [_changed(item, key, change) for item in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, item in value.items():
        found.update(change(name, item) if name == key else {name: _changed(item, key, change)})
    return found


def _opposites(spec: Kind) -> Iterator[str]:
    """The same reply with the other verdict, where it is JSON with one."""
    for good, bad in (('"Y"', '"N"'), ('"yes"', '"no"'), ('"C"', '"D"'), ("true", "false"), ('"1"', '"2"')):
        text = json.dumps(spec.good)
        if spec.broken and text.count(good) == 1 and not (good == '"1"' and '"answer"' in text):
            yield text.replace(good, bad).replace("0.9", "0.1")


CONTRADICTIONS = (
    '{"reason": "Terrible", "score": 0.0}',
    '{"reason": "Terrible", "score": null}',
    '{"reason": "Terrible", "score": NaN}',
    '{"reason": "Terrible", "score": "9/100"}',
    '{"passs": false, "score": 0}',
    '{"reason": <your reason, as a string>, "pass": <true or false>, "score": <a number from 0.0 to 1.0>}',
    '{"reason": "Terrible", "pass": true, "score": 0}',
    '{"reason": "Great", "pass": false, "score": 1}',
    '{"pass": true, "pass": false, "score": 0.5}',
    '{"pass": true, "score": 0.9, "score": 0.1}',
    '{"tone": {"pass": true, "score": 0.9}, "facts": {"pass": false, "score": 0.9}}',
    '{"pass": true, "score": 0.9}{"score": 0.1}',
    '[{"pass": true, "score": 0.9}, {"pass": false, "score": 0.1}]',
    '{"pass": [true], "score": 0.9}',
    '{"pass": "true or false", "score": "0.0 to 1.0"}',
    '{"pass": true, "score": "0.9 of 1"}',
)
RUBRICS = ("llm-rubric", "search-rubric", "trajectory:goal-success")


class _CutOffJudge(SpeakingJudge):
    """Says what it is told, until a token limit ends it."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        response = await super().complete(request)
        return replace(
            response, choices=tuple(replace(one, finish_reason="length") for one in response.choices)
        )


def verdict_on(kind: str, reply: str | None, *, is_cut_off: bool = False) -> list[Status]:
    """The verdict on an output, or on each of two, when the judge says `reply`; errors are errors."""
    spec = KINDS[kind]
    written = json.dumps(spec.good) if reply is None else reply

    def says(prompt: str) -> str:
        asked_before = any(f'"{key}": ' in prompt for key in spec.before)
        if (
            kind == "answer-relevance"
            and "the output" in prompt
            and "JSON" not in prompt
            and len(prompt) > 99
        ):
            return "What is it?"
        if kind == "context-faithfulness claims" and '"verdicts": ' in prompt:
            return json.dumps(VERDICTS)
        if reply == "FORM":
            form = _FORM.search(prompt)
            return form[1] if form else prompt
        if kind == "pairwise" and reply is None:
            return json.dumps({"reason": "r", "winner": "tie"})
        return json.dumps(spec.before) if asked_before else written

    judge = (_CutOffJudge if is_cut_off else SpeakingJudge)([says])
    tools = Tools(TEMPLATES, lambda _: judge, JudgeFacts())
    made = assertion(kind.split(maxsplit=1)[0], **spec.keys)
    steps = (TraceStep("tool", "search"),)
    own = {"input": "the input", "has_output": True, "output": "the output"}
    test = case(context=("a",), retrieval_context=("a",), trace=steps, **own)
    if made.compares_outputs:
        members = [
            RowMember(Subject(test, f"the output {place}", "the prompt", column=RowColumn(place, str(place))))
            for place in range(2)
        ]
        try:
            row = asyncio.run(judge_row(made, members, tools))
        except GevalError:
            return [Status.ERROR]
        return [Status.ERROR if isinstance(one, GevalError) else one.status for one in row]
    try:
        return [asyncio.run(judge_assertion(made, Subject(test, spec.output, "the prompt"), tools)).status]
    except GevalError:
        return [Status.ERROR]


def test_every_type_that_asks_a_judge_is_among_them() -> None:
    asking = {name for name, kind in ASSERTION_TYPES.items() if issubclass(kind, ModelGradedAssertion)}
    assert {kind.split()[0] for kind in KINDS} == asking, "each type that asks a judge needs a row in KINDS"


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_reply_passes(kind: str) -> None:
    assert Status.PASSED in verdict_on(kind, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_reply_is_an_error_and_never_a_verdict(kind: str) -> None:
    replies = [*broken_replies(kind), "FORM", *(CONTRADICTIONS if kind in RUBRICS else ())]
    read = {reply: verdict_on(kind, reply) for reply in replies}
    assert {reply: found for reply, found in read.items() if set(found) != {Status.ERROR}} == {}


@pytest.mark.parametrize(
    ("reply", "status", "score"),
    [
        ('{"reason": "Terrible", "score": 0.25}', Status.PASSED, 0.25),
        ('{"reason": "r", "pass": null, "score": 0.25}', Status.PASSED, 0.25),
        ('{"score": null}', Status.PASSED, 0.0),
        ('{"score": "9/100"}', Status.PASSED, 1.0),
        ('{"pass": "Yes"}', Status.PASSED, 1.0),
        ('{"pass": "no", "score": 1}', Status.FAILED, 1.0),
        ('{"pass": 1, "score": 0.5}', Status.FAILED, 0.5),
        ('{"pass": true, "score": 0}', Status.PASSED, 0.0),
    ],
)
def test_in_promptfoos_dialect_an_output_passes_that_the_reply_only_scores(
    reply: str, status: Status, score: float
) -> None:
    judge = SpeakingJudge([reply])
    tools = Tools(Templates(PROMPTFOO_RULES), lambda _: judge, JudgeFacts())
    result = asyncio.run(
        judge_assertion(assertion("llm-rubric", value="nice"), Subject(case(), "the output", "p"), tools)
    )
    assert (result.status, result.score, len(judge.requests)) == (status, score, 1)


def test_a_prompt_of_your_own_may_ask_for_a_yes_or_no_alone() -> None:
    judge = SpeakingJudge(['{"pass": true}'])
    own = assertion("llm-rubric", value="nice", rubricPrompt="{{ output }}? Reply with JSON: pass")
    tools = Tools(TEMPLATES, lambda _: judge, JudgeFacts())
    result = asyncio.run(judge_assertion(own, Subject(case(), "the output", "p"), tools))
    assert (result.status, result.score) == (Status.PASSED, 1.0)


IN_WORDS = {
    "context-recall": "One is so. [Attributed]\nTwo is so. [Attributed]\nThree is",
    "contextual-recall": "One is so. [Attributed]\nTwo is so. [Attributed]\nThree is",
    "model-graded-closedqa": "It names the price. The answer is: Y",
    "conversation-relevance": "It is about the same thing. The answer is: yes",
    "factuality": "A) It is a subset of",
    "model-graded-factuality": "A) It is a subset of",
}


@pytest.mark.parametrize("kind", IN_WORDS)
def test_a_reply_in_words_that_a_token_limit_cut_off_is_no_verdict(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, kind, replace(KINDS[kind], before={}))
    assert verdict_on(kind, IN_WORDS[kind], is_cut_off=True) == [Status.ERROR]


def test_steps_in_words_that_a_token_limit_cut_off_are_none() -> None:
    judge = _CutOffJudge(["1. Read it.\n2. Rate i"])
    with pytest.raises(JudgeError, match="breaks off"):
        asyncio.run(write_steps("It is kind.", ("Input",), JudgeCalls(judge, JudgeFacts())))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"answer-relevance"}))
def test_json_that_is_whole_when_the_token_limit_comes_is_read(kind: str) -> None:
    assert Status.PASSED in verdict_on(kind, None, is_cut_off=True)

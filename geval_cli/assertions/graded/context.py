"""Assertions about retrieval: a judge looks at what was retrieved for an answer, and at what the answer made of it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import Field

from geval_cli.assertions.base import CheckContext, Outcome, Subject, Tools, as_text, check_texts
from geval_cli.assertions.graded.judges import JudgeClient, Question, check_own_prompt, own_prompt
from geval_cli.assertions.graded.retrieval import (
    ContextAssertion,
    check_context_is_there,
    context_of,
    needed_context,
    question_of,
    sentences_of,
)
from geval_cli.errors import JudgeParseError, Problem
from geval_cli.judge.calls import reply_schema
from geval_cli.judge.prompt import Block, numbered
from geval_cli.judge.replies.verdicts import (
    parse_attributions,
    parse_numbers,
    parse_plain,
    parse_texts,
    parse_verdict_list,
)
from geval_cli.numbers import plural
from geval_cli.records import Purpose

_ATTRIBUTIONS_SCHEMA: Mapping[str, Any] = reply_schema(
    {
        "sentences": {
            "type": "array",
            "items": reply_schema({"sentence": {"type": "string"}, "attributed": {"type": "boolean"}}),
        }
    }
)
_SCHEMA: Mapping[str, Any] = reply_schema({"relevant": {"type": "array", "items": {"type": "integer"}}})
_NOTHING = "insufficient information"
_STATEMENTS_SCHEMA: Mapping[str, Any] = reply_schema(
    {"statements": {"type": "array", "items": {"type": "string"}}}
)
VERDICTS_SCHEMA: Mapping[str, Any] = reply_schema(
    {
        "verdicts": {
            "type": "array",
            "items": reply_schema(
                {
                    "reason": {"type": "string"},
                    "verdict": {"type": "string", "enum": ["yes", "no"]},
                }
            ),
        }
    }
)


class ContextRecallAssertion(ContextAssertion):
    """context-recall: how much of the known truth the retrieved context contains."""

    value_form = "text"

    value: str = Field(description="The known truth; a template, may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the known truth and of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        check_own_prompt(self, context, ("context", "groundTruth"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the share of sentences that the context says; where a test has none, the prompt is the context.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
        """
        truth = tools.templates.render(self.value, subject.test.variables)
        context = "\n".join(context_of(subject.test)) or subject.rendered_prompt
        question = Question(
            "recall",
            (Block("Context", context), Block("Known Truth", truth)),
            {"context": context, "groundTruth": truth},
            _ATTRIBUTIONS_SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        claims = await judge.ask(question, parse_attributions)
        score = sum(claims) / len(claims)
        reason = f"{sum(claims)} of {len(claims)} sentences are found in the context"
        return self.scored(score, reason, judge.latency_ms, attributed=list(claims))


class ContextRelevanceAssertion(ContextAssertion):
    """context-relevance: how much of the retrieved context the question needs."""

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the context and of the user's own prompt in one test."""
        problems: list[Problem] = []
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "query"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the share of passages that are needed: those of a list, or the lines of a text.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
            UnjudgeableError: the test has no context.
        """
        passages = sentences_of(needed_context(subject))
        query, context = question_of(subject), "\n".join(passages)
        question = Question(
            "relevance",
            (Block("Question", query), Block("Context", numbered(passages))),
            {"query": query, "question": query, "context": context},
            _SCHEMA,
        )
        is_own = own_prompt(self, subject.test) is not None
        read = partial(_quoted, passages) if is_own else partial(_numbered, len(passages))
        judge = JudgeClient(self, subject, tools)
        needed = await judge.ask(question, read)
        reason = f"{needed} of {len(passages)} passages are needed"
        return self.scored(needed / len(passages), reason, judge.latency_ms)


def _numbered(count: int, text: str) -> int:
    return len(parse_numbers(text, "relevant", count))


def _quoted(passages: tuple[str, ...], text: str) -> int:
    """Return the number of passages that a reply to the user's own prompt quotes, one a line."""
    if _NOTHING in parse_plain(text).lower():
        return 0
    lines = set(parse_texts(text, "relevant"))
    quoted = sum(any(line in passage or passage in line for line in lines) for passage in passages)
    if not quoted:
        raise JudgeParseError("the judge quoted nothing from the context", raw_text=text)
    return quoted


class ContextFaithfulnessAssertion(ContextAssertion):
    """context-faithfulness: how many of the output's claims the retrieved context supports."""

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the context and of the user's own prompts in one test."""
        problems: list[Problem] = []
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "question", "answer", "statements"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Ask the judge twice: for the claims of the answer, and for those that follow from the context.

        An answer that claims nothing is faithful: there is nothing that the context could fail to say.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
            UnjudgeableError: the test has no context.
        """
        context, asked = "\n".join(needed_context(subject)), question_of(subject)
        judge = JudgeClient(self, subject, tools)
        statements = await judge.ask(_statements_question(asked, subject.text), _parse_statements)
        verdicts: tuple[bool, ...] = ()
        if statements:
            question = Question(
                "faithfulness",
                (Block("Context", context), Block("Statements", numbered(statements))),
                {"context": context, "statements": list(statements)},
                VERDICTS_SCHEMA,
            )
            verdicts = await judge.ask(question, lambda text: parse_verdict_list(text, len(statements)))
        score = sum(verdicts) / len(verdicts) if verdicts else 1.0
        reason = _reason(statements, verdicts)
        return self.scored(
            score, reason, judge.latency_ms, statements=list(statements), verdicts=list(verdicts)
        )


class ContextPrecisionAssertion(ContextAssertion):
    """context-precision: how far up the passages that help to answer stand among those retrieved."""

    value_form = "text"

    value: str | None = Field(
        None,
        description="The expected answer; a template, may be file://. [default: the test's expected_output]",
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the expected answer, the context and the user's own prompt in one test."""
        problems: list[Problem] = []
        if self.value is not None:
            check_texts(self.value, self.place.child("value"), context, problems)
        elif context.test.expected_output is None:
            message = f"{self.base_type} needs the expected answer ({context.where})"
            hint = "write it as `value`, or as `expected_output` of the test"
            problems.append(Problem(message, self.place.value("type"), hint))
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("query", "context", "answer"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the average precision: the mean, over the useful passages, of the share of useful ones down to each.

        With no useful passage the score is 0. (ragas, `LLMContextPrecisionWithReference`; DeepEval,
        `ContextualPrecisionMetric`.)

        Raises:
            JudgeError, ProviderError: no verdict could be had.
            UnjudgeableError: the test has no context.
        """
        passages, query = sentences_of(needed_context(subject)), question_of(subject)
        test = subject.test
        written = as_text(test.expected_output) if self.value is None else self.value
        answer = written if self.value is None else tools.templates.render(written, test.variables)
        question = Question(
            "precision",
            (
                Block("Question", query),
                Block("Expected Answer", answer),
                Block("Context", numbered(passages)),
            ),
            {"query": query, "context": list(passages), "answer": answer},
            VERDICTS_SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        useful = await judge.ask(question, lambda text: parse_verdict_list(text, len(passages)))
        shares = [sum(useful[:rank]) / rank for rank, is_useful in enumerate(useful, 1) if is_useful]
        ranks = ", ".join(str(rank) for rank, is_useful in enumerate(useful, 1) if is_useful)
        reason = (
            f"{len(shares)} of {plural(len(passages), 'passage')} "
            f"{'is useful, at rank' if len(shares) == 1 else 'are useful, at ranks'} {ranks}"
            if shares
            else f"none of the {len(passages)} passages is useful"
        )
        score = sum(shares) / len(shares) if shares else 0.0
        return self.scored(score, reason, judge.latency_ms, useful=list(useful))


class NoiseSensitivityAssertion(ContextAssertion):
    """noise-sensitivity: how many of the output's claims are not wrong claims that it took from the context."""

    value_form = "text"

    value: str = Field(description="The known truth; a template, may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the known truth, the context and the user's own prompts in one test."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "question", "answer", "statements"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score 1 minus the share of claims that the known truth does not support but the context does.

        That share is the sum of ragas' noise sensitivities to relevant and to irrelevant passages. An answer without
        claims scores 1.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
            UnjudgeableError: the test has no context.
        """
        truth = tools.templates.render(self.value, subject.test.variables)
        context, asked = "\n".join(needed_context(subject)), question_of(subject)
        judge = JudgeClient(self, subject, tools)
        statements = await judge.ask(_statements_question(asked, subject.text), _parse_statements)

        async def supported_by(text: str) -> tuple[bool, ...]:
            question = Question(
                "faithfulness",
                (Block("Context", text), Block("Statements", numbered(statements))),
                {"context": text, "statements": list(statements)},
                VERDICTS_SCHEMA,
            )
            return await judge.ask(question, lambda reply: parse_verdict_list(reply, len(statements)))

        true = await supported_by(truth) if statements else ()
        in_context = await supported_by(context) if not all(true) else true
        noise = [
            text for text, right, said in zip(statements, true, in_context, strict=True) if said and not right
        ]
        share = len(noise) / len(statements) if statements else 0.0
        wrong = len(true) - sum(true)
        reason = "the answer makes no claims"
        if noise:
            reason = (
                f"{len(noise)} of {plural(len(statements), 'claim')} "
                f"{'is wrong and comes' if len(noise) == 1 else 'are wrong and come'} from the context: {noise[0]}"
            )
        elif statements:
            reason = "no claim is an error taken from the context" + (
                f" ({wrong} of {len(statements)} {'is' if wrong == 1 else 'are'} wrong, but not because of it)"
                if wrong
                else ""
            )
        seen = {"statements": list(statements), "true": list(true), "in_context": list(in_context)}
        return self.scored(1.0 - share, reason, judge.latency_ms, **seen)


def _statements_question(asked: str, answer: str) -> Question:
    return Question(
        "statements",
        (Block("Question", asked), Block("Answer", answer)),
        {"question": asked, "answer": answer},
        _STATEMENTS_SCHEMA,
        part="steps",
        purpose=Purpose.CLAIMS,
    )


def _parse_statements(text: str) -> tuple[str, ...]:
    return parse_texts(text, "statements")


def _reason(statements: tuple[str, ...], verdicts: tuple[bool, ...]) -> str:
    if not statements:
        return "the answer makes no claims"
    unsupported = [text for text, holds in zip(statements, verdicts, strict=True) if not holds]
    if not unsupported:
        return f"all {len(statements)} claims follow from the context"
    return f"{len(unsupported)} of {len(statements)} claims do not follow from the context: {unsupported[0]}"

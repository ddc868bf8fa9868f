"""classifier, moderation: verdicts of models that classify texts or detect harmful content."""

import json
from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    CheckContext,
    JudgeDefaults,
    MergedTest,
    ModelGradedAssertion,
    Outcome,
    Subject,
    Tools,
    listed,
    shortened,
)
from geval_cli.assertions.judges import find_judge, judge_provider
from geval_cli.errors import JudgeParseError, Problem, Severity, UnjudgeableError
from geval_cli.judge.prompt import user_message
from geval_cli.numbers import format_score_beside, format_threshold
from geval_cli.providers.base import CLASSIFICATION, MODERATION
from geval_cli.records import ModelRequest, Purpose, Role, Status
from geval_cli.source.problems import hint_among
from geval_cli.specs.base import Score

_OPENAI = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
DEFAULT_THRESHOLD = 1.0


class ModerationAssertion(ModelGradedAssertion):
    """moderation: a moderation model flags nothing harmful in the output."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("moderation",)

    value: tuple[str, ...] = Field((), description="The categories that count; by default all.")
    threshold: Score | None = Field(
        None, description="The lowest moderator score at which a flagged category counts."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Report categories that OpenAI's moderation models do not have, if one of them is the provider."""
        del context
        if self.provider is not None and not self.provider.id.startswith("openai:"):
            return []
        problems = []
        for index, category in enumerate(self.value):
            if category not in _OPENAI:
                hint = hint_among(category, _OPENAI, everything="docs/assertions.md")
                message = f"OpenAI's moderator has no category `{category}`, so it never counts"
                place = self.place.value("value", index)
                problems.append(Problem(message, place, hint, severity=Severity.WARNING))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Pass if no category is flagged or, with `value`, none of those categories.

        Raises:
            ProviderError: the model could not answer.
            JudgeParseError: its answer has no flagged categories.
            UnjudgeableError: it has no such category as `value` names, and flags none of the others.
        """
        if not subject.text.strip():
            return Outcome.of(True, "there is no output to moderate")
        model = tools.judge_for(judge_provider(self, subject.test, tools.defaults, MODERATION))
        # A verdict is the same in every repeat, so that the repeat is no part of the request.
        messages = user_message(subject.text)
        response = await model.complete(ModelRequest(messages, role=Role.JUDGE, purpose=Purpose.VERDICT))
        text = response.choices[0].text
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        categories = None  # a moderator of the user's own names only those that it flags
        if isinstance(found, dict) and found.keys() == {"flagged", "categories"}:
            found, categories = found["flagged"], found["categories"]
        if not isinstance(found, dict) or not all(
            score is None or _is_share(score) for score in found.values()
        ):
            raise JudgeParseError(
                "the moderation model did not return flagged categories",
                raw_text=text,
                hint="name a moderation model, for example openai:moderation",
            )
        verdict = self._verdict(found)
        unknown = [name for name in self.value if categories is not None and name not in categories]
        if unknown and verdict.status is Status.PASSED and not tools.rules.missing_class_is_zero:
            raise UnjudgeableError(
                f"the moderator has no category {listed(unknown)}",
                hint=f"write its own categories in `value`: {listed(categories or [])}",
            )
        return replace(verdict, latency_ms=response.latency_ms)

    def decide_again(self, rated: Outcome, test: MergedTest, tools: Tools) -> Outcome | None:
        """Apply the current threshold to the categories that the model flagged."""
        if "flagged" not in rated.detail:
            return rated  # there was nothing to moderate
        verdict = self._verdict(dict(rated.detail["flagged"]))
        return replace(verdict, detail=rated.detail, latency_ms=rated.latency_ms)

    def _verdict(self, flagged: dict[str, float | None]) -> Outcome:
        counted = [name for name in flagged if _counts(name, flagged[name], self)]
        reason = "nothing is flagged"
        if counted:
            reason = f"flagged: {listed(counted)}"
        elif flagged:
            reason = f"flagged only in categories that do not count here: {listed(list(flagged))}"
        return Outcome.of(not counted, reason, flagged=flagged)


def _counts(category: str, score: float | None, spec: ModerationAssertion) -> bool:
    is_wanted = not spec.value or category in spec.value
    return is_wanted and (spec.threshold is None or score is None or score >= spec.threshold)


class ClassifierAssertion(ModelGradedAssertion):
    """classifier: the score that a classification model gives to a class for the output."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("classification",)

    value: str | None = Field(
        None, description="The class, as the model names it (a template); by default the likeliest."
    )
    threshold: Score | None = Field(None, description="The lowest passing score; 1 by default.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the class, or a missing provider."""
        problems: list[Problem] = []
        if self.value is not None:
            context.render(self.value, self.place.value("value"), problems)
        if find_judge(self, context.test, JudgeDefaults(), CLASSIFICATION) is None:
            hint = "name one in `provider`: huggingface:text-classification:MODEL"
            problems.append(
                Problem("a classifier assertion has no classification model", self.place.key(), hint)
            )
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare the score of the class `value`, or the highest score if none is named, with the threshold (1).

        Raises:
            ProviderError: the model could not answer.
            JudgeParseError: its answer has no scores.
            UnjudgeableError: the class is not among them.
        """
        model = tools.judge_for(judge_provider(self, subject.test, tools.defaults, CLASSIFICATION))
        # A class is the same in every repeat, so that the repeat is no part of the request.
        messages = user_message(subject.text)
        response = await model.complete(ModelRequest(messages, role=Role.JUDGE, purpose=Purpose.VERDICT))
        text = response.choices[0].text
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        is_scores = isinstance(found, dict) and found and all(map(_is_share, found.values()))
        if not is_scores:
            raise JudgeParseError(
                "the model did not return class scores between 0 and 1",
                raw_text=text,
                hint="name a classification model, or have the model return JSON of classes and scores: "
                '{"toxic": 0.02}',
            )
        outcome = self._verdict(
            {str(label): float(score) for label, score in found.items()}, subject.test, tools
        )
        return replace(outcome, latency_ms=response.latency_ms)

    def decide_again(self, rated: Outcome, test: MergedTest, tools: Tools) -> Outcome | None:
        """Compare stored scores with the current threshold."""
        scores = rated.detail.get("scores")
        if not isinstance(scores, Mapping):
            return None
        verdict = self._verdict(dict(scores), test, tools)
        return replace(verdict, detail=rated.detail, latency_ms=rated.latency_ms)

    def _verdict(self, scores: dict[str, float], test: MergedTest, tools: Tools) -> Outcome:
        is_default = self.threshold is None
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        label_name = max(scores, key=lambda label: scores[label])
        if self.value is not None:
            label_name = tools.templates.render(self.value, test.variables)
            if label_name not in scores and not tools.rules.missing_class_is_zero:
                raise UnjudgeableError(
                    f'the model did not score the class "{shortened(label_name, 60)}"',
                    hint=f"write one of its classes in `value`: {listed(list(scores)[:9])}",
                )
        score = scores.get(label_name, 0.0)
        shown = ", ".join(
            f"{shortened(label, 40)} {found:.2f}"
            for label, found in sorted(scores.items(), key=lambda item: -item[1])[:5]
        )
        own = f"{format_score_beside(score, threshold)}; the threshold is {format_threshold(threshold)}"
        reason = f'the class "{shortened(label_name, 60)}" has {own} ({shown})'
        return Outcome.graded(score, reason, threshold, is_default=is_default, scores=dict(scores))


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1

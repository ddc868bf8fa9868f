"""levenshtein, rouge-n, bleu, gleu, meteor: similarity of wording to a reference; of several, the best match counts.

nltk, rouge-score and rapidfuzz do the counting. What they leave open (tokenization, an n-gram size without a match) is
decided here, so that scores are comparable with those of other tools.
"""

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from threading import Lock
from typing import Annotated, Any

from pydantic import Field

from geval_cli.assertions.base import (
    Amount,
    Assertion,
    CheckContext,
    Outcome,
    Subject,
    Tools,
    as_text,
    check_texts,
    rendered_texts,
    variable_data,
)
from geval_cli.assertions.patterns import CHECK_TIMEOUT_S, within
from geval_cli.errors import CheckTimeoutError, Problem, Severity
from geval_cli.numbers import format_score_beside, format_threshold
from geval_cli.specs.base import Score

_DEFAULT_THRESHOLDS = {"rouge-n": 0.75, "bleu": 0.5, "gleu": 0.5, "meteor": 0.5}
_LARGEST_NGRAM = 4
_ABSENT_NGRAM = 1e-7  # the precision of an n-gram size without any match, so that the geometric mean is not 0
_MAX_COMPARED = 40_000_000_000  # pairs of characters; about a second
_ONE_AT_A_TIME = Lock()
"""The lock for importing nltk, whose modules import each other: two threads at once would fail."""


class LevenshteinAssertion(Assertion):
    """levenshtein: at most `threshold` character edits turn the output into the text."""

    value_form = "text"
    threshold_is_score = False
    libraries = ("rapidfuzz",)
    extra = "text-metrics"

    value: str | int | float = Field(description="The text to compare with; a template.")
    threshold: Amount = Field(5, description="The largest passing number of edits.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the template in `value`, and with a threshold so high that an empty output passes."""
        problems: list[Problem] = []
        place = self.place.value("value")
        expected = context.render(as_text(self.value), place, problems)
        if variable_data(as_text(self.value), context.test, context.templates) is not None:
            message = f"{self.type} compares with a list or mapping, written as JSON ({context.where})"
            problems.append(Problem(message, place, "name one of its texts", severity=Severity.WARNING))
        if expected and len(expected) <= self.threshold and not self.is_negated:
            message = (
                f"{self.type} passes an empty output ({context.where}): `value` is no longer than the "
                f"{self.threshold:g} edits that are allowed"
            )
            hint = "set a lower `threshold`; it is 5 by default"
            problems.append(Problem(message, place, hint, severity=Severity.WARNING))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score 1 up to the threshold, else 0: a distance has no maximum to normalize it by."""
        expected = tools.templates.render(as_text(self.value), subject.test.variables)
        levenshtein = import_module("rapidfuzz.distance.Levenshtein")
        if len(subject.text) * len(expected) > _MAX_COMPARED:
            sizes = f"{len(subject.text):,} and {len(expected):,} characters"
            hint = "compare shorter texts, or use another metric"
            raise CheckTimeoutError(f"the edit distance of {sizes} takes too long", hint=hint)
        distance = await asyncio.to_thread(levenshtein.distance, subject.text, expected)
        passed = distance <= self.threshold
        relation = "at most" if passed else "more than"
        reason = f"the edit distance is {distance}, {relation} {self.threshold:g}"
        return Outcome.of(passed, reason, distance=distance, limit=self.threshold)


class TextMetricAssertion(Assertion):
    """rouge-n, bleu, gleu: how much of its wording the output shares with a reference."""

    value_form = "texts"
    libraries = ("nltk", "rouge_score")
    extra = "text-metrics"

    value: str | tuple[str, ...] = Field(
        description="The reference text or texts (templates); the best match counts."
    )
    threshold: Score | None = Field(
        None, description="The lowest passing score; by default 0.75 for rouge-n, otherwise 0.5."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the references."""
        problems: list[Problem] = []
        is_known = check_texts(self.value, self.place.child("value"), context, problems)
        if is_known and not "".join(rendered_texts(self.value, context.test, context.templates)).strip():
            message = f"{self.base_type} has no reference ({context.where}), so every output scores 0"
            hint = "write the expected wording in `value`, or leave the assertion out of this test"
            severity = Severity.WARNING if context.rules.skips_null and self.value else Severity.ERROR
            problems.append(Problem(message, self.place.value("value"), hint, severity=severity))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare the score of the metric, 0 to 1, with the threshold."""
        written = rendered_texts(self.value, subject.test, tools.templates)
        # BLEU would take an empty one for the reference that is nearest in length to an output of one word.
        references = [text for text in written if text.strip()] or written
        is_default = self.threshold is None
        threshold = _DEFAULT_THRESHOLDS[self.base_type] if self.threshold is None else self.threshold
        # Outside the time limit: a library interrupted while loading would stay half loaded.
        await asyncio.to_thread(lambda: [_library(name) for name in _MODULES[self.base_type]])
        what = f"{self.base_type} on this output"
        score = await asyncio.to_thread(within, CHECK_TIMEOUT_S, what, _score, self, subject.text, references)
        name = self.base_type.upper()
        reason = f"{name} is {format_score_beside(score, threshold)}; the threshold is {format_threshold(threshold)}"
        return Outcome.graded(score, reason, threshold, is_default=is_default)


class MeteorAssertion(TextMetricAssertion):
    """meteor: shared words and word stems of output and reference, and their order."""

    alpha: Annotated[float, Field(ge=0, le=1)] = Field(0.9, description="The weight of recall.")
    beta: Amount = Field(3.0, description="How steeply the penalty for scattered matches rises.")
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="The largest penalty for scattered matches."
    )


def _score(spec: TextMetricAssertion, output: str, references: Sequence[str]) -> float:
    if not output.strip():
        return 0.0
    if isinstance(spec, MeteorAssertion):
        # METEOR with words and their stems. Synonyms would need a dictionary download.
        meteor_score = _library("nltk.translate.meteor_score").meteor_score
        words = [[word.rstrip(".") for word in reference.split()] for reference in references]
        score = meteor_score(
            words,
            [word.rstrip(".") for word in output.split()],
            wordnet=_NoDictionary(),
            alpha=spec.alpha,
            beta=spec.beta,
            gamma=spec.gamma,
        )
        return float(score)
    return _METRICS[spec.base_type](output, references)


def _rouge_n(output: str, references: Sequence[str]) -> float:
    """Return the unigram F1 of the lower-cased texts, tokenized as in the Penn Treebank."""
    treebank = _library("nltk.tokenize.treebank").TreebankWordTokenizer()
    scorer = _library("rouge_score.rouge_scorer").RougeScorer(["rouge1"], tokenizer=treebank)
    return max(
        float(scorer.score(reference.lower(), output.lower())["rouge1"].fmeasure) for reference in references
    )


def _bleu(output: str, references: Sequence[str]) -> float:
    """Return the sentence BLEU of the lower-cased texts, with n-grams of 1 to 4 words, or fewer in a shorter output."""
    sentence_bleu = _library("nltk.translate.bleu_score").sentence_bleu
    words = [_words(reference) for reference in references]
    found = _words(output)
    sizes = min(_LARGEST_NGRAM, len(found))
    weights = (1 / sizes,) * sizes
    return float(sentence_bleu(words, found, weights=weights, smoothing_function=_smoothed))


def _smoothed(precisions: Sequence[Any], **_: Any) -> list[float]:
    return [float(precision) or _ABSENT_NGRAM for precision in precisions]


def _gleu(output: str, references: Sequence[str]) -> float:
    """Return Google's BLEU: the lower of precision and recall over n-grams of 1 to 4 words.

    The words are lower-cased, without trailing full stops.
    """
    sentence_gleu = _library("nltk.translate.gleu_score").sentence_gleu
    words = [_bare_words(reference) for reference in references]
    return float(sentence_gleu(words, _bare_words(output)))


class _NoDictionary:
    """A dictionary without synonyms."""

    def synsets(self, word: str) -> list[Any]:
        """Return an empty list for any word."""
        del word
        return []


_MODULES = {
    "rouge-n": ("nltk.tokenize.treebank", "rouge_score.rouge_scorer"),
    "bleu": ("nltk.translate.bleu_score",),
    "gleu": ("nltk.translate.gleu_score",),
    "meteor": ("nltk.translate.meteor_score",),
}


def _library(name: str) -> Any:
    with _ONE_AT_A_TIME:
        return import_module(name)


def _words(text: str) -> list[str]:
    return text.lower().split()


def _bare_words(text: str) -> list[str]:
    return [word.rstrip(".") for word in _words(text)]


_METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "rouge-n": _rouge_n,
    "bleu": _bleu,
    "gleu": _gleu,
}

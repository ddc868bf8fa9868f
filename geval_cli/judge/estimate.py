"""Estimate a rating from token probabilities, from samples or from a single reply, and turn it into a score.

score = (rating - low) / (high - low); pass when round(score, 9) >= round(threshold, 9).

A rating may be spelled by one token or by several, with a space before it or a comma after it. Each alternative token
is read as the beginning of a score. It counts for a rating only if that is the only rating on the scale that it can
still become; probability that fits several ratings, or none, is left out and lowers the coverage.

On a scale of whole numbers up to 10, "7" can only become 7: "75" and "7.5" are not ratings of that scale. "1" can
become 1 or 10, and in steps of a half "7." can become 7 or 7.5, until the next token decides.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Generic, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import JudgeError, JudgeRangeError, OfflineError
from geval_cli.judge.calls import FORM_MAX_TOKENS, LOGPROBS, JudgeCalls, is_cut_off
from geval_cli.judge.metric import Estimator, Metric, ReadFrom, ScoreRange, format_number
from geval_cli.judge.prompt import Criterion, number_alone_text, user_message
from geval_cli.judge.replies import ParsedReply, parse_member_rating, parse_rating, without_thoughts
from geval_cli.numbers import format_share
from geval_cli.patterns import compile_later
from geval_cli.records import (
    Choice,
    JsonValue,
    Message,
    ModelRequest,
    ModelResponse,
    Purpose,
    Role,
    Status,
    TokenLogprob,
    Usage,
    to_json,
)
from geval_cli.statistics.early_stop import StopDecision, StopRule, batch_ends, decide

STRICT_MAJORITY = 0.5 + 2e-9
"""The smallest share of 1-ratings that passes in strict mode: more than half, with a margin for rounding errors."""

_DECIDING_DIGITS = 9
_DUST = 1e-9


class Distribution(Struct, frozen=True):
    """A probability distribution over ratings. `masses` sum to `coverage`, which is at most 1."""

    masses: Mapping[float, float] = field(default_factory=dict)
    coverage: float = 0.0

    @property
    def shares(self) -> dict[float, float]:
        """Return rating -> probability, renormalised to sum to 1, from the lowest rating to the highest."""
        if self.coverage <= 0:
            return {}
        return {rating: self.masses[rating] / self.coverage for rating in sorted(self.masses)}

    def mean(self) -> float:
        """Return the expected rating: the sum of p * rating over the coverage (Liu et al. 2023, section 2, equation 1).

        Raises:
            ValueError: the coverage is 0.
        """
        if self.coverage <= 0:
            raise ValueError("an empty distribution has no mean")
        total = math.fsum(self.masses.values())
        return math.fsum(rating * mass for rating, mass in self.masses.items()) / total


def distribution_of(ratings: Sequence[float]) -> Distribution:
    """Return the relative frequencies of sampled ratings as a distribution."""
    counts = Counter(ratings)
    return Distribution(
        {rating: count / len(ratings) for rating, count in counts.items()}, 1.0 if ratings else 0.0
    )


def mean_of_samples(ratings: Sequence[float]) -> float:
    """Return the arithmetic mean; `ratings` must not be empty."""
    return math.fsum(ratings) / len(ratings)


def nearest_to(ratings: Sequence[float], mean: float) -> int:
    """Return the index of the rating nearest to `mean`; on a tie, the first."""
    return min(range(len(ratings)), key=lambda index: abs(ratings[index] - mean))


def normalise_rating(rating: float, score_range: ScoreRange) -> float:
    """Map a rating from the judge's range onto 0..1.

    Raises:
        JudgeRangeError: the rating is outside `score_range` by more than a rounding error. It is not clamped, because
            that would hide a judge that ignores its scale.
    """
    low, high = score_range
    score = (rating - low) / (high - low)
    if not -_DUST <= score <= 1 + _DUST:
        span = f"{format_number(low)} to {format_number(high)}"
        raise JudgeRangeError(f"the rating {rating!r} is outside {span}")
    return min(max(score, 0.0), 1.0)


def passes(score: float, threshold: float) -> bool:
    """Return whether `score` reaches `threshold`; equal passes, and both are also compared rounded to nine decimals."""
    return score >= threshold or round(score, _DECIDING_DIGITS) >= round(threshold, _DECIDING_DIGITS)


def strict_score(distribution: Distribution) -> float:
    """Return 1 if more than half of the known probability is for 1, else 0 (strict mode; a tie fails)."""
    return 1.0 if distribution.shares.get(1.0, 0.0) > 0.5 + _DUST else 0.0


class RatingEstimate(Struct, frozen=True):
    """A rating and how it was estimated.

    Attributes:
        rating: in the metric's `asked_range`; fractional when weighted or averaged.
        reason: the judge's reason for it.
        estimator: how it was estimated.
        fallback: why the preferred estimator could not be used; None if it was used.
        read_from: the part of the judge's reply that it was read from; None for the mean of several.
        distribution: of the ratings; empty for `single`, for a checklist and for the mean of several.
        valid: number of readable samples; None unless `samples`.
        requested: number of samples requested; None unless `samples`.
        early_stop: how many of the possible samples were taken, and why no more; None without early stopping.
    """

    rating: float
    reason: str | None
    estimator: Estimator
    read_from: ReadFrom | None = None
    distribution: Distribution = field(default_factory=Distribution)
    valid: int | None = None
    requested: int | None = None
    early_stop: Mapping[str, JsonValue] | None = None
    fallback: str | None = None

    @property
    def coverage(self) -> float | None:
        """Return the share of the probability that could be resolved (0..1); None unless `logprobs` was used."""
        return self.distribution.coverage if self.estimator == "logprobs" else None


class Grade(Struct, frozen=True):
    """The outcome of a judgement.

    Attributes:
        status: `passed` or `failed`, by the metric's effective threshold.
        score: 0..1.
        detail: the whole judgement as JSON, for `AssertionResult.detail`.
    """

    status: Status
    score: float
    threshold: float
    reason: str | None
    estimate: RatingEstimate
    evaluation_steps: tuple[str, ...] = ()
    usage: Usage = Usage()
    latency_ms: float = 0.0
    detail: Mapping[str, JsonValue] = field(default_factory=dict)


def graded(
    metric: Metric,
    score: float,
    estimate: RatingEstimate,
    about: Mapping[str, JsonValue],
    *,
    usage: Usage,
    latency_ms: float,
    steps: tuple[str, ...] = (),
    may_pass: bool = True,
) -> Grade:
    """Return the grade for a score, compared with its metric's threshold.

    Args:
        metric: the criterion.
        score: 0..1.
        estimate: the rating behind the score, with the reason to show.
        about: further entries for the detail; None values are left out.
        usage: of all calls.
        latency_ms: of all calls.
        steps: the evaluation steps that the judge followed.
        may_pass: False if something required is missing, which fails the grade whatever the score.
    """
    threshold = metric.effective_threshold
    shares = {format_number(rating): share for rating, share in estimate.distribution.shares.items()}
    detail = {
        "estimator": estimate.estimator,
        "rating": estimate.rating,
        "score_range": metric.asked_range,
        "distribution": shares or None,
        "coverage": estimate.coverage,
        "valid": estimate.valid,
        "requested": estimate.requested,
        "early_stop": estimate.early_stop,
        "read_from": estimate.read_from,
        "fallback": estimate.fallback,
        "evaluation_steps": steps,
        "usage": usage,
        "latency_ms": latency_ms,
        **about,
    }
    return Grade(
        status=Status.PASSED if may_pass and passes(score, threshold) else Status.FAILED,
        score=score,
        threshold=threshold,
        reason=estimate.reason,
        estimate=estimate,
        evaluation_steps=steps,
        usage=usage,
        latency_ms=latency_ms,
        detail=to_json({name: value for name, value in detail.items() if value is not None}),
    )


def mean_grade(
    metric: Metric,
    grades: Sequence[Grade],
    about: Mapping[str, JsonValue],
    *,
    reason: str | None,
    steps: tuple[str, ...],
) -> Grade:
    """Return one grade for the grades of several parts: the mean of their scores against one threshold."""
    estimators = {grade.estimate.estimator for grade in grades}
    estimate = RatingEstimate(
        math.fsum(grade.estimate.rating for grade in grades) / len(grades),
        reason,
        estimators.pop() if len(estimators) == 1 else "mixed",
        fallback=next((grade.estimate.fallback for grade in grades if grade.estimate.fallback), None),
    )
    return graded(
        metric,
        math.fsum(grade.score for grade in grades) / len(grades),
        estimate,
        about,
        usage=sum((grade.usage for grade in grades[1:]), grades[0].usage),
        latency_ms=max(grade.latency_ms for grade in grades),
        steps=steps,
    )


_SPACE = compile_later(r"\s*+")
_RESYNC_TOKENS = 6
_CHARACTERS_PER_OPAQUE_TOKEN = 4


class PlacedToken(Struct, frozen=True):
    """A token and its position in the reply: from `start` up to but not including `end`."""

    token: TokenLogprob
    start: int
    end: int


def plain_text(token: str) -> str:
    """Return a token as text, with the space and line break marks of some servers turned back into white space."""
    return token.replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n")


def place_tokens(tokens: Sequence[TokenLogprob], text: str) -> tuple[PlacedToken, ...]:
    """Return the tokens that can be found in `text`, in order, with their positions.

    Tokens that cannot be matched are skipped, and matching resumes after them: pieces of a multi-byte character,
    markers such as an end-of-turn token, white space that the server stripped.
    """
    spellings = [plain_text(token.text) for token in tokens]
    # Some servers report the tokens of thoughts as well, which come before the text and may have the same words.
    start = "".join(spellings).rfind(text.strip())
    tokens = tokens[sum(end <= start for end in accumulate(map(len, spellings))) :]
    placed: list[PlacedToken] = []
    position, unmatched = 0, 0
    for index, token in enumerate(tokens):
        end = None if unmatched else _match(token.text, text, position)
        if end is None:
            resumed = _resume(tokens, index, text, (position, unmatched))
            if resumed is None:
                unmatched += 1
                continue
            position, unmatched = resumed, 0
            end = _match(token.text, text, position)
        assert end is not None
        placed.append(PlacedToken(token, position, end))
        position = end
    return tuple(placed)


def _match(token: str, text: str, position: int) -> int | None:
    """Return the end of `token` in `text` if it begins at `position`, else None; an empty token never matches.

    Leading white space may differ: servers strip it, or mark it in their own way.
    """
    for spelling in (token, plain_text(token)):
        if spelling and text.startswith(spelling, position):
            return position + len(spelling)
    bare = plain_text(token).lstrip()
    start = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it matches everywhere
    return start + len(bare) if bare and text.startswith(bare, start) else None


def _resume(tokens: Sequence[TokenLogprob], index: int, text: str, lost: tuple[int, int]) -> int | None:
    """Return the position of the token at `index`, or None if it cannot be found.

    `lost` holds the last certain position and the number of tokens unmatched since. The next few tokens must follow one
    another there, because a single character would match anywhere.
    """
    position, unmatched = lost
    run: list[str] = []
    for token in tokens[index : index + _RESYNC_TOKENS]:
        if not token.text or plain_text(token.text) not in text:
            break
        run.append(token.text)
    if not run:
        return None
    limit = position + _CHARACTERS_PER_OPAQUE_TOKEN * (unmatched + 1) + sum(map(len, run))
    found = text.find(plain_text("".join(run)), position, limit)
    return None if found == -1 else found


LARGEST_SCALE = 10_001
"""The largest number of ratings on a scale; on finer scales no probability is resolved."""

_NUMBER_START = compile_later(r"[-+\u2212]?[0-9]*(?:\.[0-9]*)?")
_NOT_AN_END = compile_later(r"[\w\-\u2013\u2014~+^%]")
_SAME_RATING = 1e-9


class Scale(Struct, frozen=True):
    """The ratings low, low + step, ... up to high, with their spellings; empty if there are too many."""

    spellings: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, score_range: ScoreRange, score_step: float) -> "Scale":
        low, high = score_range
        count = math.floor((high - low) / score_step + _SAME_RATING) + 1
        if count > LARGEST_SCALE:
            return cls(())
        ratings = dict.fromkeys([*(round(low + index * score_step, 10) for index in range(count)), high])
        return cls(tuple((_spell(rating), float(rating)) for rating in ratings))

    def rating(self, value: float) -> float | None:
        """Return the rating of this scale that equals `value`, or None."""
        for _, rating in self.spellings:
            if abs(rating - value) <= _SAME_RATING:
                return rating
        return None

    def only_rating_after(self, start: str) -> float | None:
        """Return the only rating whose decimal spelling begins with `start`; None if there are none or several."""
        found = [rating for spelling, rating in self.spellings if _can_become(start, spelling)]
        return found[0] if len(found) == 1 else None


def weigh_by_logprobs(
    tokens: Sequence[TokenLogprob],
    span: tuple[int, int],
    *,
    text: str,
    score_range: ScoreRange,
    score_step: float,
) -> Distribution:
    """Return the probability of each rating that can be told apart at the position of the score.

    Args:
        tokens: of the reply, with their alternatives.
        span: start and end of the characters of the reply that spell the score.
        text: the reply.
        score_range: of the ratings.
        score_step: distance between neighbouring ratings.

    Returns:
        Probabilities given all text before the score; empty if the score's tokens cannot be found.
    """
    start, end = span
    path = _side_by_side([item for item in place_tokens(tokens, text) if item.end > start])
    chosen = _as_float(text[start:end])
    if chosen is None or not path or path[0].start > start or path[-1].end < end:
        return Distribution()
    scale = Scale.of(score_range, score_step)
    if scale.rating(chosen) is None:
        # 7.5 on a scale of whole numbers: use the step of its last digit, so that its neighbours are 7.4 and 7.6.
        _, _, decimals = text[start:end].replace(",", ".").partition(".")
        scale = Scale.of(score_range, float(10 ** -len(decimals)))
    walk = _Walk(scale, text[start:end], chosen)
    for item in path:
        if walk.ends_with(item, text[item.start : start]):
            break
    masses = {rating: math.fsum(parts) for rating, parts in walk.masses.items()}
    masses = {rating: mass for rating, mass in masses.items() if mass > 0}
    return Distribution(masses, min(math.fsum(masses.values()), 1.0))


def _side_by_side(path: Sequence[PlacedToken]) -> Sequence[PlacedToken]:
    """Return the tokens before the first gap: tokens after a gap do not continue the score."""
    gaps = (place for place, (left, right) in enumerate(pairwise(path), 1) if left.end != right.start)
    return path[: next(gaps, len(path))]


class _Walk:
    """A walk along the tokens that spell the chosen score, collecting the probability that each position settles."""

    def __init__(self, scale: Scale, spelling: str, chosen: float) -> None:
        self.scale = scale
        self.spelling = spelling
        self.chosen = chosen
        self.masses: dict[float, list[float]] = {}
        self._spelled = ""
        self._mass = 1.0

    def ends_with(self, item: PlacedToken, lead: str) -> bool:
        """Process one token and return whether the walk ends with it; `lead` is the token's text before the score."""
        probabilities = token_probabilities(item.token)
        # A token that was not chosen settles its rating here or never; the chosen one may need the tokens after it.
        for text, probability in probabilities.items():
            if text != item.token.text:
                self._count(self._resolve(text, lead), self._mass * probability)
        self._mass *= probabilities[item.token.text]
        rating = self._resolve(item.token.text, lead)
        self._spelled += beginning_of(item.token.text, lead, is_first=not self._spelled) or ""
        if rating == self.chosen or self._has_ended():
            self._count(self.chosen, self._mass)
            return True
        return not _NUMBER_START.fullmatch(self._spelled)

    def _count(self, rating: float | None, mass: float) -> None:
        if rating is not None:
            self.masses.setdefault(rating, []).append(mass)

    def _has_ended(self) -> bool:
        """Return whether the text so far completes the chosen score, which may lie between two steps of the scale."""
        behind = self._spelled[len(self.spelling) :]
        return self._spelled.startswith(self.spelling) and _ends_number(behind, self.spelling)

    def _resolve(self, token_text: str, lead: str) -> float | None:
        text = beginning_of(token_text, lead, is_first=not self._spelled)
        return None if text is None else _resolve(self._spelled + text, self.scale)


def _resolve(text: str, scale: Scale) -> float | None:
    """Return the only rating that a score beginning with `text` can mean, or None."""
    match = _NUMBER_START.match(text)
    assert match is not None
    number = match[0].replace("\u2212", "-").removeprefix("+")
    behind = text[match.end() :]
    if not behind:
        return scale.only_rating_after(number) if number else None
    if not _ends_number(behind, number):
        return None
    value = _as_float(number)
    return None if value is None else scale.rating(value)


def _ends_number(behind: str, number: str) -> bool:
    """Return whether `behind` shows that `number` is complete: no digit, letter or dash follows to change it."""
    if not behind or number in ("", "-"):
        return False
    # `7.` ends a sentence or begins `7.5`, depending on what follows the dot.
    if behind[0] == ".":
        behind = behind[1:]
        return bool(behind) and not _NOT_AN_END.match(behind)
    return not _NOT_AN_END.match(behind)


def beginning_of(token: str, lead: str, *, is_first: bool) -> str | None:
    """Return the part of a token that belongs to the score: the first token may begin with the `lead` before the score.

    Return None if the first token begins with anything else; spaces before the score make no difference.
    """
    text = plain_text(token)
    if not is_first:
        return text
    if lead and text.startswith(lead):
        return text[len(lead) :].lstrip()
    return text.lstrip() if not lead.strip() else None


def token_probabilities(token: TokenLogprob) -> dict[str, float]:
    """Return the probability of each token text at one position.

    Of duplicates, the most probable counts. A total slightly above 1 is scaled down to 1. A larger total, such as a
    logprob of 0 for every token, is not a distribution: all probabilities are then 0, as they are if the token that was
    written has none.
    """
    highest: dict[str, float] = {token.text: _probability(token.logprob)}
    for alternative in token.alternatives:
        known = highest.get(alternative.text, 0.0)
        highest[alternative.text] = max(known, _probability(alternative.logprob))
    total = math.fsum(highest.values())
    if total > _LARGEST_SUM or not highest[token.text]:
        return dict.fromkeys(highest, 0.0)
    return {text: value / total for text, value in highest.items()} if total > 1 else highest


_LARGEST_SUM = 1.1


def _probability(logprob: float) -> float:
    return 0.0 if math.isnan(logprob) else math.exp(min(logprob, 0.0))


def _as_float(number: str) -> float | None:
    try:
        return float(number.replace("\u2212", "-").replace(",", "."))
    except ValueError:
        return None


def _spell(rating: float) -> str:
    spelled = f"{rating:.10f}".rstrip("0").rstrip(".")
    return "0" if spelled == "-0" else spelled


def _can_become(start: str, spelling: str) -> bool:
    """Return whether continuing `start` can give `spelling`, with any number of zeros appended to its decimals."""
    if spelling.startswith(start):
        return True
    if not start.startswith(spelling):
        return False
    zeros = start[len(spelling) :]
    if "." not in spelling and not zeros.startswith("."):
        return False
    return not zeros.removeprefix(".").strip("0")


MIN_COVERAGE = 0.5

NO_LOGPROBS = "the judge gives no token probabilities"
LOGPROBS_HINT = "use `scoring: auto` or `scoring: samples`, or a judge that gives token probabilities"

# The most characters of an unreadable reply that are sent back with the request for the number alone.
_MOST_REPEATED = 8_000
_FEWEST_SAMPLES = 2
_MOST_SHOWN = 5
_MOST_LISTED = 101


class RatingQuestion(Struct, frozen=True):
    """A request for a rating, and the reader of its replies.

    Attributes:
        joint: the labels of all dimensions rated in the same reply, in order; empty if this one is rated alone.
    """

    messages: tuple[Message, ...]
    criterion: Criterion
    repeat_index: int
    response_schema: Mapping[str, JsonValue] | None = None
    joint: tuple[str, ...] = ()

    def request(self, calls: JudgeCalls, *, want_logprobs: bool = False) -> ModelRequest:
        """Return the request for one rating at temperature 0."""
        return ModelRequest(
            messages=self.messages,
            params=calls.params(temperature=0, max_tokens=self._max_tokens()),
            repeat_index=self.repeat_index,
            want_logprobs=want_logprobs,
            response_schema=self.response_schema,
            ratings=() if self.joint else _ratings(self.criterion.score_range, self.criterion.score_step),
            role=Role.JUDGE,
            purpose=Purpose.RATING,
        )

    def samples_request(self, calls: JudgeCalls, indexes: tuple[int, ...], purpose: Purpose) -> ModelRequest:
        """Return the request for the samples with these `indexes`, at temperature 1."""
        params = calls.params(temperature=1, max_tokens=self._max_tokens())
        return replace(self.request(calls), params=params, sample_indexes=indexes, purpose=purpose)

    def _max_tokens(self) -> int | None:
        return FORM_MAX_TOKENS * (len(self.joint) + 1) if self.criterion.is_form else None

    def read(self, choice: Choice) -> ParsedReply:
        """Return the verdict of a reply.

        Raises:
            JudgeError: there is no rating, more than one, or one outside the range.
        """
        score_range = self.criterion.score_range
        ends_early = is_cut_off(choice)
        if self.joint:
            return parse_member_rating(choice.text, score_range=score_range, name=self.criterion.label)
        name = self.criterion.label if self.criterion.is_form else None
        return parse_rating(choice.text, score_range=score_range, name=name, is_cut_off=ends_early)


@cache
def _ratings(score_range: ScoreRange, score_step: float) -> tuple[str, ...]:
    """Return the spelling of every rating; empty if there are too many to list."""
    scale = Scale.of(score_range, score_step).spellings
    return tuple(spelling for spelling, _ in scale) if len(scale) <= _MOST_LISTED else ()


Reply = TypeVar("Reply")
Read_co = TypeVar("Read_co", covariant=True)


class SampledQuestion(Protocol[Read_co]):
    """A question that can be sampled several times, and the reader of its replies."""

    def samples_request(
        self, calls: JudgeCalls, indexes: tuple[int, ...], purpose: Purpose
    ) -> ModelRequest: ...

    def read(self, choice: Choice) -> Read_co: ...


async def estimate_rating(question: RatingQuestion, metric: Metric, calls: JudgeCalls) -> RatingEstimate:
    """Estimate the rating as `metric.scoring` says; `auto` chooses the estimator and notes why it had to fall back.

    Raises:
        JudgeError: no reply or too few samples could be read, or `logprobs` is required and unavailable.
        ProviderError: the judge could not answer.
    """
    if metric.scoring == "single":
        return await _rated(question, question.request(calls), calls)
    if metric.scoring == "samples":
        return await _by_samples(question, metric, calls, Purpose.SAMPLES)
    if metric.scoring == "logprobs":
        request = question.request(calls, want_logprobs=True)
        found = await _rated(question, request, calls)
        if found.fallback is not None:
            message = f"{found.fallback}, but `scoring: logprobs` needs them"
            raise JudgeError(message, hint=LOGPROBS_HINT)
        return found
    if question.criterion.is_form:
        return await _by_logprobs_or_samples(question, metric, calls)
    return await _by_logprobs_or_single_reply(question, calls)


async def _rated(
    question: RatingQuestion, request: ModelRequest, calls: JudgeCalls, choice: Choice | None = None
) -> RatingEstimate:
    """Read the reply to `request`; if it cannot be read, ask for the number alone in the same conversation.

    If `request` wants token probabilities and they do not settle the rating, `fallback` says why.

    Raises:
        JudgeError: the second reply cannot be read either.
        ProviderError: the judge could not answer.
    """
    first = choice or (await calls.ask(request)).choices[0]
    read = partial(_weigh, question, request)
    try:
        return read(first)
    except JudgeError as error:
        roomier = calls.without_limit_if_cut(request, (first,))
        if roomier is not request:
            # The same question, as it is put to this judge from here on: which test came first must not matter.
            return await _rated(question, roomier, calls)
        if question.joint:
            return await calls.read_again(request, first, read)
        said = without_thoughts(first.text).strip()[-_MOST_REPEATED:]
        reminder = user_message(number_alone_text(question.criterion, error.message))
    # Some APIs refuse an empty turn.
    messages = (*request.messages, *((Message("assistant", said),) if said else ()), *reminder)
    alone = replace(request, messages=messages, response_schema=None)
    second = await calls.ask_again(request, alone, read)
    return replace(second, reason=second.reason or " ".join(said.split()) or None, read_from="retry")


async def _by_logprobs_or_single_reply(question: RatingQuestion, calls: JudgeCalls) -> RatingEstimate:
    request = question.request(calls, want_logprobs=True)
    found = await _rated(question, request, calls)
    if found.fallback is None:
        return found
    return replace(found, fallback=f"{found.fallback}: one rating was taken at face value")


async def _by_logprobs_or_samples(
    question: RatingQuestion, metric: Metric, calls: JudgeCalls
) -> RatingEstimate:
    request = question.request(calls, want_logprobs=True)
    first = tuple(range(next(iter(_sample_ends(metric)))))
    try:
        response = await calls.ask_with_logprobs(
            request, lambda: question.samples_request(calls, first, Purpose.FALLBACK_SAMPLES)
        )
    except OfflineError:
        # In the run that filled the cache, another question had already shown that the judge gives none.
        response = None
    shortcoming = NO_LOGPROBS
    if response is not None and LOGPROBS not in response.dropped:
        found = await _rated(question, request, calls, response.choices[0])
        if found.fallback is None:
            return found
        shortcoming = found.fallback
    sampled = await _by_samples(question, metric, calls, Purpose.FALLBACK_SAMPLES)
    return replace(sampled, fallback=f"{shortcoming}: {sampled.requested} samples were taken")


async def _by_samples(
    question: RatingQuestion, metric: Metric, calls: JudgeCalls, purpose: Purpose
) -> RatingEstimate:
    """Take all samples in one request or, with a `stop_error`, in batches until the verdict is settled."""
    rule = None if metric.stop_error is None else _stop_rule(metric, metric.stop_error)
    taken = SampledReplies[ParsedReply]()
    decision: StopDecision | None = None
    for end in _sample_ends(metric):
        indexes = tuple(range(taken.requested, end))
        request = question.samples_request(
            calls, indexes, Purpose.FURTHER_SAMPLES if taken.requested else purpose
        )
        await taken.add(request, question, metric, calls)
        if rule is not None:
            decision = decide(rule, [reply.rating for reply in taken.replies], metric.samples - end)
        if taken.cannot_reach_minimum(metric) or (
            decision is not None and decision.stops and taken.is_enough(metric)
        ):
            break
    await taken.check(metric, calls)
    if decision is None:
        early_stop = None
    else:
        # For the detail: how many of the possible samples were taken, and why no more.
        left = metric.samples - taken.requested
        if not left:
            why = "all samples were taken"
        elif decision.is_certain:
            why = f"the other {left} could not change the verdict"
        else:
            why = f"the other {left} were unlikely to change the verdict"
        early_stop = {"taken": taken.requested, "upto": metric.samples, "p_pass": decision.p_pass, "why": why}
    ratings = [reply.rating for reply in taken.replies]
    mean = mean_of_samples(ratings)
    return RatingEstimate(
        rating=mean,
        reason=taken.replies[nearest_to(ratings, mean)].reason,
        estimator="samples",
        read_from=dict(Counter(reply.read_from for reply in taken.replies)),
        distribution=distribution_of(ratings),
        valid=len(ratings),
        requested=taken.requested,
        early_stop=early_stop,
    )


def _sample_ends(metric: Metric) -> Iterable[int]:
    """Return the total number of samples after each request."""
    return (metric.samples,) if metric.stop_error is None else batch_ends(metric.samples)


def _stop_rule(metric: Metric, stop_error: float) -> StopRule:
    """Return the rule that stops sampling for `metric`: its verdict is that of the mean, or if strict the majority."""
    low, high = metric.asked_range
    ratings = tuple(rating for _, rating in Scale.of(metric.asked_range, metric.asked_step).spellings)
    if metric.strict_mode:
        return StopRule(ratings, STRICT_MAJORITY, stop_error)
    least_mean = low + metric.effective_threshold * (high - low)
    # On a scale with too many ratings to list, sampling stops only when the verdict is certain.
    return StopRule(ratings, least_mean, stop_error) if ratings else StopRule((low, high), least_mean, 0)


def _least_valid(metric: Metric, requested: int) -> int:
    return max(1, math.ceil(round(metric.min_valid * requested, 9)))


class SampledReplies(Struct, Generic[Reply]):
    """The samples taken so far: how many were requested, the readable ones, and the problems of the others."""

    requested: int = 0
    replies: list[Reply] = field(default_factory=list)
    problems: list[JudgeError] = field(default_factory=list)
    _unread: list[ModelRequest] = field(default_factory=list)

    async def add(
        self, request: ModelRequest, question: SampledQuestion[Reply], metric: Metric, calls: JudgeCalls
    ) -> None:
        """Send `request` and add its samples; send it again without geval's token limit if that cut off too many."""
        count = len(request.sample_indexes)
        response = await calls.ask(request)
        replies, problems = _read_all(question, response)
        is_enough = len(replies) >= _least_valid(metric, count)
        roomier = request if is_enough else calls.without_limit_if_cut(request, response.choices)
        if roomier is not request:
            request = roomier
            response = await calls.ask(roomier)
            replies, problems = _read_all(question, response)
        self.requested += count
        self.replies += replies
        self.problems += problems.values()
        # Only the unreadable samples may be dropped from the cache later: the readable ones are paid for.
        indexes = response.sample_indexes
        if len(indexes) != len(response.choices):
            without_readable = request
        else:
            without_readable = replace(request, sample_indexes=tuple(indexes[place] for place in problems))
        self._unread.append(without_readable)

    def cannot_reach_minimum(self, metric: Metric) -> bool:
        """Return whether too few samples would be valid even if all that are left were."""
        left = metric.samples - self.requested
        return len(self.replies) + left < _least_valid(metric, metric.samples)

    def is_enough(self, metric: Metric) -> bool:
        """Return whether enough samples are readable to base a verdict on them alone."""
        valid = len(self.replies)
        return valid >= _least_valid(metric, self.requested) and valid >= _FEWEST_SAMPLES

    async def check(self, metric: Metric, calls: JudgeCalls) -> None:
        """Raise if too few samples are readable, and drop the unreadable ones from the cache.

        Raises:
            JudgeError: fewer samples are readable than `min_valid` requires.
        """
        if len(self.replies) < _least_valid(metric, self.requested):
            await calls.forget(*self._unread)
            valid = len(self.replies)
            problems = self.problems
            lost = self.requested - valid - len(problems)
            parts = [
                f"only {valid} of {self.requested} samples are valid, {format_share(metric.min_valid)} are needed"
            ]
            if problems:
                parts.append(f"{len(problems)} could not be read, the first because {problems[0].message}")
            if lost:
                parts.append(f"{lost} never arrived")
            raise JudgeError("; ".join(parts), raw_text=problems[0].raw_text if problems else "")


def _read_all(
    question: SampledQuestion[Reply], response: ModelResponse
) -> tuple[list[Reply], dict[int, JudgeError]]:
    """Return the readable samples, and the problems of the others by their place in the response."""
    replies: list[Reply] = []
    problems: dict[int, JudgeError] = {}
    for place, choice in enumerate(response.choices):
        try:
            replies.append(question.read(choice))
        except JudgeError as error:
            note = " (a token limit cut it off)" if is_cut_off(choice) else ""
            problems[place] = JudgeError(f"{error.message}{note}", raw_text=error.raw_text)
    return replies, problems


def _weigh(question: RatingQuestion, request: ModelRequest, choice: Choice) -> RatingEstimate:
    reply = question.read(choice)
    single = RatingEstimate(reply.rating, reply.reason, "single", reply.read_from)
    if not request.want_logprobs:
        return single
    if choice.token_logprobs is None:
        return replace(single, fallback=NO_LOGPROBS)
    distribution = weigh_by_logprobs(
        choice.token_logprobs,
        (reply.score_start, reply.score_end),
        text=choice.text,
        score_range=question.criterion.score_range,
        score_step=question.criterion.score_step,
    )
    if distribution.coverage < MIN_COVERAGE:
        share = format_share(distribution.coverage)
        least = format_share(MIN_COVERAGE)
        lacks = (
            f"the judge's token probabilities settle only {share} of the rating (at least {least} is needed)"
        )
        return replace(single, fallback=lacks)
    return replace(single, rating=distribution.mean(), estimator="logprobs", distribution=distribution)


def describe(estimate: RatingEstimate, score_range: ScoreRange) -> str:
    """Return the estimate in words: `4.3 on a scale of 1 to 5 (from token probabilities: 4 70%, 5 30%)`."""
    low, high = (format_number(end) for end in score_range)
    rating = f"{format_number(round(estimate.rating, 2))} on a scale of {low} to {high}"
    # The sort is stable: of equal shares, the lower rating stays first.
    shares = sorted(estimate.distribution.shares.items(), key=lambda item: -item[1])
    shown = ", ".join(
        f"{format_number(number)} {format_share(share)}" for number, share in shares[:_MOST_SHOWN]
    )
    if len(shares) > _MOST_SHOWN:
        shown += ", ..."
    if estimate.estimator == "logprobs":
        return f"{rating} (from token probabilities: {shown})"
    if estimate.estimator == "samples":
        return f"{rating} (mean of {estimate.valid} samples: {shown})"
    return f"{rating} (one rating)"

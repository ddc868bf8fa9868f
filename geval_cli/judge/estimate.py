"""The estimators: a rating from token probabilities, from samples, or from a single reply; and the score that it makes.

score = (rating - low) / (high - low); pass when round(score, 9) >= round(threshold, 9).

In token probabilities a rating may be spelled by one token or by several, with a space before it or a comma behind it.
Every alternative token is read as a beginning of the score. It counts for a rating only when that rating is the only
one on the scale that can still be meant; what could become several ratings, or none, is left out and lowers the
coverage.

"7" on a scale of whole numbers to 10 can only become 7: "75" and "7.5" are no ratings of that scale. "1" can be 1 or
10, and "7." with steps of a half 7 or 7.5, until a token behind it tells.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
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
"""The least share of samples that say 1 with which strict mode passes: more than half, whatever float dust says."""

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
        """Return the expected rating, sum of p * rating over what is covered (Liu et al. 2023, section 2, equation 1).

        Raises:
            ValueError: nothing is covered.
        """
        if self.coverage <= 0:
            raise ValueError("an empty distribution has no mean")
        total = math.fsum(self.masses.values())
        return math.fsum(rating * mass for rating, mass in self.masses.items()) / total


def distribution_of(ratings: Sequence[float]) -> Distribution:
    """Return the distribution of sampled ratings by their frequency."""
    counts = Counter(ratings)
    return Distribution(
        {rating: count / len(ratings) for rating, count in counts.items()}, 1.0 if ratings else 0.0
    )


def mean_of_samples(ratings: Sequence[float]) -> float:
    """Return the plain mean; `ratings` must not be empty."""
    return math.fsum(ratings) / len(ratings)


def nearest_to(ratings: Sequence[float], mean: float) -> int:
    """Return the index of the rating nearest to `mean`; the first of several."""
    return min(range(len(ratings)), key=lambda index: abs(ratings[index] - mean))


def normalise_rating(rating: float, score_range: ScoreRange) -> float:
    """Map a rating from the judge's range onto 0..1.

    Raises:
        JudgeRangeError: the rating lies outside `score_range` by more than float dust; it is not clamped, since a clamp
            would hide a judge that ignores its scale.
    """
    low, high = score_range
    score = (rating - low) / (high - low)
    if not -_DUST <= score <= 1 + _DUST:
        span = f"{format_number(low)} to {format_number(high)}"
        raise JudgeRangeError(f"the rating {rating!r} is outside {span}")
    return min(max(score, 0.0), 1.0)


def passes(score: float, threshold: float) -> bool:
    """Return whether `score` reaches `threshold`; equal passes, and differences below 1e-9 never decide."""
    return score >= threshold or round(score, _DECIDING_DIGITS) >= round(threshold, _DECIDING_DIGITS)


def strict_score(distribution: Distribution) -> float:
    """Return 1 when more than half of the known probability is for 1, else 0 (strict mode; a tie is not enough)."""
    return 1.0 if distribution.shares.get(1.0, 0.0) > 0.5 + _DUST else 0.0  # a majority


class RatingEstimate(Struct, frozen=True):
    """A rating and how it was found.

    Attributes:
        rating: in the metric's `asked_range`; fractional when weighted or averaged.
        reason: what the judge said beside it.
        estimator: how it was found; `fallback` says why it was not the way that was hoped for, or is None.
        read_from: what of the judge's reply it was read from; None for the mean of several.
        distribution: of the ratings; empty for `single`, for a checklist and for the mean of several.
        valid: readable samples of `requested`; both None unless `samples`.
        early_stop: after how many samples of how many it was enough, and why; None where all were to be taken.
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
        """Return the share of the probability that could be resolved (0..1); None unless `logprobs`."""
        return self.distribution.coverage if self.estimator == "logprobs" else None


class Grade(Struct, frozen=True):
    """The outcome of a judgement.

    Attributes:
        status: `passed` or `failed`, by the metric's effective threshold.
        score: 0..1.
        detail: the JSON form of all this, for `AssertionResult.detail`.
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
    """Hold a score against the threshold of its metric.

    Args:
        metric: the criterion.
        score: 0..1.
        estimate: the rating that the score is made of, and the reason to show.
        about: what else the detail says, without what is None.
        usage: of all calls.
        latency_ms: of all calls.
        steps: the evaluation steps that were followed.
        may_pass: False where something that is required is missing, whatever the score.
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
    """Return the grade of several, each of a part of what is judged: the mean of their scores, with one threshold."""
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
    """A token and its place in the reply, from `start` to `end` (excluded)."""

    token: TokenLogprob
    start: int
    end: int


def plain_text(token: str) -> str:
    """Return a token as text: the space and line break marks that some servers leave in are put back."""
    return token.replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n")


def place_tokens(tokens: Sequence[TokenLogprob], text: str) -> tuple[PlacedToken, ...]:
    """Return the tokens that can be found in `text`, in order.

    Tokens that cannot be matched are left out: pieces of a multi-byte character, marks such as an end-of-turn token,
    white space that the server stripped. Matching resumes behind them.
    """
    placed: list[PlacedToken] = []
    position = 0
    unmatched = 0
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
    """Return the end of `token` in `text` if it begins at `position`, else None; empty tokens match nothing.

    The white space before its characters may differ: servers strip it, and mark it in their own way.
    """
    for spelling in (token, plain_text(token)):
        if spelling and text.startswith(spelling, position):
            return position + len(spelling)
    bare = plain_text(token).lstrip()
    start = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it matches everywhere
    return start + len(bare) if bare and text.startswith(bare, start) else None


def _resume(tokens: Sequence[TokenLogprob], index: int, text: str, lost: tuple[int, int]) -> int | None:
    """Return the place of the token at `index`; `lost` is the last sure position and the tokens unmatched since.

    The next few tokens must follow one another there; a single character would match anywhere.
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
"""Ratings that a scale may have at most; on finer ones no probability is resolved."""

_NUMBER_START = compile_later(r"[-+\u2212]?[0-9]*(?:\.[0-9]*)?")
_NOT_AN_END = compile_later(r"[\w\-\u2013\u2014~+^%]")
_SAME_RATING = 1e-9


class Scale(Struct, frozen=True):
    """The ratings low, low + step, ... up to high, and how they are spelled; none when they are too many."""

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
        """Return the rating of this scale that `value` is, or None."""
        for _, rating in self.spellings:
            if abs(rating - value) <= _SAME_RATING:
                return rating
        return None

    def only_rating_after(self, start: str) -> float | None:
        """Return the only rating whose decimal spelling begins with `start`; None when none or several do."""
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
    """Return the masses of the ratings that can be told apart at the place of the score.

    Args:
        tokens: of the reply, with their alternatives.
        span: the characters of the reply that spell the score.
        text: the reply.
        score_range: of the ratings.
        score_step: distance of neighbouring ratings.

    Returns:
        Masses given everything that stands before the score; empty when the score's tokens cannot be found.
    """
    start, end = span
    path = _side_by_side([item for item in place_tokens(tokens, text) if item.end > start])
    chosen = _as_float(text[start:end])
    if chosen is None or not path or path[0].start > start or path[-1].end < end:
        return Distribution()
    scale = Scale.of(score_range, score_step)
    if scale.rating(chosen) is None:
        # 7.5 on a scale of whole numbers: the ratings beside it are then 7.4 and 7.6.
        # The value of the last digit of a spelled number: 0.1 for 7.5.
        _, _, decimals = text[start:end].replace(",", ".").partition(".")
        step = float(10 ** -len(decimals))
        scale = Scale.of(score_range, step)
    walk = _Walk(scale, text[start:end], chosen)
    for item in path:
        if walk.ends_with(item, text[item.start : start]):
            break
    masses = {rating: math.fsum(parts) for rating, parts in walk.masses.items()}
    masses = {rating: mass for rating, mass in masses.items() if mass > 0}
    return Distribution(masses, min(math.fsum(masses.values()), 1.0))


def _side_by_side(path: Sequence[PlacedToken]) -> Sequence[PlacedToken]:
    """Return the tokens before the first gap: what stands behind one does not go on with the score."""
    gaps = (place for place, (left, right) in enumerate(pairwise(path), 1) if left.end != right.start)
    return path[: next(gaps, len(path))]


class _Walk:
    """A walk along the tokens that spell the chosen score, which gathers the ratings that each place decides."""

    def __init__(self, scale: Scale, spelling: str, chosen: float) -> None:
        self.scale = scale
        self.spelling = spelling
        self.chosen = chosen
        self.masses: dict[float, list[float]] = {}
        self._spelled = ""
        self._mass = 1.0

    def ends_with(self, item: PlacedToken, lead: str) -> bool:
        """Take one token, and return whether none behind it counts; `lead` is the part of it before the score."""
        probabilities = token_probabilities(item.token)
        # The tokens that were not chosen decide a rating here or never; the chosen one may only begin to spell its own.
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
        """Return whether more than the chosen score is spelled, so that it stands whole, be it between two steps."""
        behind = self._spelled[len(self.spelling) :]
        return self._spelled.startswith(self.spelling) and _ends_number(behind, self.spelling)

    def _resolve(self, token_text: str, lead: str) -> float | None:
        text = beginning_of(token_text, lead, is_first=not self._spelled)
        return None if text is None else _resolve(self._spelled + text, self.scale)


def _resolve(text: str, scale: Scale) -> float | None:
    """Return the one rating that a reply can mean whose score begins with `text`, or None."""
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
    """Return whether `behind` shows that `number` is complete: no digit, letter or dash would change its meaning."""
    if not behind or number in ("", "-"):
        return False
    # `7.` ends a sentence, or begins `7.5`: what follows the dot says which.
    if behind[0] == ".":
        behind = behind[1:]
        return bool(behind) and not _NOT_AN_END.match(behind)
    return not _NOT_AN_END.match(behind)


def beginning_of(token: str, lead: str, *, is_first: bool) -> str | None:
    """Return the part of a token that belongs to the score: the first token may begin with the `lead` before it.

    None when the token begins otherwise than the lead; spaces before the score make no difference.
    """
    text = plain_text(token)
    if not is_first:
        return text
    if lead and text.startswith(lead):
        return text[len(lead) :].lstrip()
    return text.lstrip() if not lead.strip() else None


def token_probabilities(token: TokenLogprob) -> dict[str, float]:
    """Return token text -> probability in one place. Doubles count once, and a sum rounded above 1 is scaled down.

    Numbers that add up to more are no probabilities, such as a 0 for each logarithm: nothing is known then. Nor is it
    where what was written is said to be impossible.
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
    """Return whether writing on behind `start` can give `spelling`, with any number of zeros after the decimals."""
    if spelling.startswith(start):
        return True
    if not start.startswith(spelling):
        return False
    zeros = start[len(spelling) :]
    if "." not in spelling:
        if not zeros.startswith("."):
            return False
        zeros = zeros[1:]
    return not zeros.strip("0")


MIN_COVERAGE = 0.5

NO_LOGPROBS = "the judge gives no token probabilities"
LOGPROBS_HINT = "use `scoring: auto` or `scoring: samples`, or a judge that gives token probabilities"

# As much of an unreadable reply as is sent back with the request for the number alone, in characters.
_MOST_REPEATED = 8_000
_FEWEST_SAMPLES = 2
_MOST_SHOWN = 5
_MOST_LISTED = 101


class RatingQuestion(Struct, frozen=True):
    """A request for a rating, together with the reader of its answer.

    Attributes:
        joint: the labels of all that is rated in the same reply, in order; empty when the rating is asked for alone.
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
        """Return the request for the samples of these `indexes` at temperature 1."""
        params = calls.params(temperature=1, max_tokens=self._max_tokens())
        return replace(self.request(calls), params=params, sample_indexes=indexes, purpose=purpose)

    def _max_tokens(self) -> int | None:
        return FORM_MAX_TOKENS * (len(self.joint) + 1) if self.criterion.is_form else None

    def read(self, choice: Choice) -> ParsedReply:
        """Return the verdict of a reply.

        Raises:
            JudgeError: there is none, there are different ones, or it lies outside the range.
        """
        score_range = self.criterion.score_range
        ends_early = is_cut_off(choice)
        if self.joint:
            return parse_member_rating(choice.text, score_range=score_range, name=self.criterion.label)
        name = self.criterion.label if self.criterion.is_form else None
        return parse_rating(choice.text, score_range=score_range, name=name, is_cut_off=ends_early)


@cache
def _ratings(score_range: ScoreRange, score_step: float) -> tuple[str, ...]:
    """Return every rating as it may be written; none when they are too many to be listed."""
    scale = Scale.of(score_range, score_step).spellings
    return tuple(spelling for spelling, _ in scale) if len(scale) <= _MOST_LISTED else ()


Reply = TypeVar("Reply")
Read_co = TypeVar("Read_co", covariant=True)


class SampledQuestion(Protocol[Read_co]):
    """A question that may be asked several times over, and the reader of its answers."""

    def samples_request(
        self, calls: JudgeCalls, indexes: tuple[int, ...], purpose: Purpose
    ) -> ModelRequest: ...

    def read(self, choice: Choice) -> Read_co: ...


async def estimate_rating(question: RatingQuestion, metric: Metric, calls: JudgeCalls) -> RatingEstimate:
    """Estimate the rating by `metric.scoring`; `auto` chooses, and notes the reason when it had to fall back.

    Raises:
        JudgeError: nothing readable came, too few samples did, or `logprobs` is demanded and cannot be had.
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
    """Read the answer to `request`; where it cannot be read, ask for the number alone in the same conversation.

    Where `request` wants token probabilities and they do not settle the rating, `fallback` says what they lack.

    Raises:
        JudgeError: the second answer cannot be read either.
        ProviderError: the judge could not answer.
    """
    first = choice or (await calls.ask(request)).choices[0]
    read = partial(_weigh, question, request)
    if question.joint:
        return await calls.read_again(request, first, read)
    try:
        return read(first)
    except JudgeError as error:
        said = without_thoughts(first.text).strip()[-_MOST_REPEATED:]
        reminder = user_message(number_alone_text(question.criterion, error.message))
    # An empty turn is refused by some APIs.
    messages = (*request.messages, *((Message("assistant", said),) if said else ()), *reminder)
    alone = replace(request, response_schema=None)
    second = await calls.ask_again(alone, first, messages, read)
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
        # In the run that filled the cache another question found out first that the judge gives none.
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
    """Take all samples in one request, or, with a `stop_error`, in batches until the verdict is settled."""
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
        if taken.is_lost(metric) or (decision is not None and decision.stops and taken.is_enough(metric)):
            break
    await taken.check(metric, calls)
    if decision is None:
        early_stop = None
    else:
        # The account of an early stop for the detail: how many were taken of how many, and why no more.
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
    """Return how many samples there are after each request for some."""
    return (metric.samples,) if metric.stop_error is None else batch_ends(metric.samples)


def _stop_rule(metric: Metric, stop_error: float) -> StopRule:
    """Return the rule by which `metric` has enough samples: its verdict is that of the mean, or of the majority."""
    low, high = metric.asked_range
    ratings = tuple(rating for _, rating in Scale.of(metric.asked_range, metric.asked_step).spellings)
    if metric.strict_mode:
        return StopRule(ratings, STRICT_MAJORITY, stop_error)
    least_mean = low + metric.effective_threshold * (high - low)
    # On a scale that is too fine to be listed nothing but certainty stops.
    return StopRule(ratings, least_mean, stop_error) if ratings else StopRule((low, high), least_mean, 0)


def _least_valid(metric: Metric, requested: int) -> int:
    return max(1, math.ceil(round(metric.min_valid * requested, 9)))


class SampledReplies(Struct, Generic[Reply]):
    """The samples that were taken so far: how many, those that can be read, and what is wrong with the others."""

    requested: int = 0
    replies: list[Reply] = field(default_factory=list)
    problems: list[JudgeError] = field(default_factory=list)
    _unread: list[ModelRequest] = field(default_factory=list)

    async def add(
        self, request: ModelRequest, question: SampledQuestion[Reply], metric: Metric, calls: JudgeCalls
    ) -> None:
        """Ask for the samples of `request`; again without our token limit when that cut off too many."""
        count = len(request.sample_indexes)
        response = await calls.ask(request)
        replies, problems = _read_all(question, response)
        is_enough = len(replies) >= _least_valid(metric, count)
        roomier = request if is_enough else calls.give_room(request, response.choices)
        if roomier is not request:
            request = roomier
            response = await calls.ask(roomier)
            replies, problems = _read_all(question, response)
        self.requested += count
        self.replies += replies
        self.problems += problems.values()
        # The request for the samples that cannot be read alone: what could be read is paid for and stays.
        indexes = response.sample_indexes
        if len(indexes) != len(response.choices):
            without_readable = request
        else:
            without_readable = replace(request, sample_indexes=tuple(indexes[place] for place in problems))
        self._unread.append(without_readable)

    def is_lost(self, metric: Metric) -> bool:
        """Return whether too few could be valid even if all that are left were."""
        left = metric.samples - self.requested
        return len(self.replies) + left < _least_valid(metric, metric.samples)

    def is_enough(self, metric: Metric) -> bool:
        """Return whether so many can be read that a verdict may rest on them alone."""
        valid = len(self.replies)
        return valid >= _least_valid(metric, self.requested) and valid >= _FEWEST_SAMPLES

    async def check(self, metric: Metric, calls: JudgeCalls) -> None:
        """Forget the samples that cannot be read where they are too many.

        Raises:
            JudgeError: they are.
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
    """Return the samples that can be read, and what is wrong with the others, by their place in the response."""
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
    """Return the distribution in words: `4.3 on a scale of 1 to 5 (from token probabilities: 4 70%, 5 30%)`."""
    low, high = (format_number(end) for end in score_range)
    rating = f"{format_number(round(estimate.rating, 2))} on a scale of {low} to {high}"
    # Of equal shares that of the lower rating stays first.
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

"""The estimators: a rating from token probabilities, from samples, or from a single reply (GEVAL.md, section 2)."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import JudgeError, OfflineError
from geval_cli.judge.calls import FORM_MAX_TOKENS, JudgeCalls, is_cut_off
from geval_cli.judge.memory import LOGPROBS
from geval_cli.judge.metric import Estimator, Metric, ReadFrom, ScoreRange, format_number
from geval_cli.judge.prompt import Criterion
from geval_cli.judge.replies.parse import ParsedReply, parse_form_rating, parse_rating
from geval_cli.judge.scoring import Distribution, distribution_of, mean_of_samples, nearest_to
from geval_cli.judge.weighing import Scale, weigh_by_logprobs
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, ModelResponse, Purpose, Role

MIN_COVERAGE = 0.5

_MOST_SHOWN = 5
_MOST_LISTED = 101


class RatingQuestion(Struct, frozen=True):
    """A request for a rating, together with the reader of its answer."""

    messages: tuple[Message, ...]
    criterion: Criterion
    repeat_index: int
    response_schema: Mapping[str, JsonValue] | None = None

    def request(self, calls: JudgeCalls, *, want_logprobs: bool = False) -> ModelRequest:
        """Return the request for one rating at temperature 0."""
        return ModelRequest(
            messages=self.messages,
            params=calls.params(temperature=0, max_tokens=self._max_tokens()),
            repeat_index=self.repeat_index,
            want_logprobs=want_logprobs,
            response_schema=self.response_schema,
            ratings=_ratings(self.criterion.score_range, self.criterion.score_step),
            role=Role.JUDGE,
            purpose=Purpose.RATING,
        )

    def samples_request(self, calls: JudgeCalls, count: int, purpose: Purpose) -> ModelRequest:
        """Return the request for `count` ratings at temperature 1."""
        params, indexes = calls.params(temperature=1, max_tokens=self._max_tokens()), tuple(range(count))
        return replace(self.request(calls), params=params, sample_indexes=indexes, purpose=purpose)

    def _max_tokens(self) -> int | None:
        return FORM_MAX_TOKENS if self.criterion.is_form else None

    def read(self, choice: Choice) -> ParsedReply:
        """Return the verdict of a reply.

        Raises:
            JudgeError: there is none, there are different ones, or it lies outside the range.
        """
        score_range, ends_early = self.criterion.score_range, is_cut_off(choice)
        if self.criterion.is_form:
            name = self.criterion.label
            return parse_form_rating(choice.text, score_range=score_range, name=name, is_cut_off=ends_early)
        return parse_rating(choice.text, score_range=score_range, is_cut_off=ends_early)


@cache
def _ratings(score_range: ScoreRange, score_step: float) -> tuple[str, ...]:
    """Return every rating as it may be written; none when they are too many to be listed."""
    scale = Scale.of(score_range, score_step).spellings
    return tuple(spelling for spelling, _ in scale) if len(scale) <= _MOST_LISTED else ()


class Estimate(Struct, frozen=True):
    """A rating with its estimator and distribution. `fallback` and `read_from` are those of `Grade`."""

    rating: float
    reason: str | None
    estimator: Estimator
    read_from: ReadFrom
    distribution: Distribution = field(default_factory=Distribution)
    valid: int | None = None
    requested: int | None = None
    fallback: str | None = None

    @property
    def coverage(self) -> float | None:
        return self.distribution.coverage if self.estimator == "logprobs" else None


class _Weighed(Struct, frozen=True):
    """A parsed reply and its distribution; None when the judge gave no token probabilities."""

    reply: ParsedReply
    distribution: Distribution | None

    @property
    def is_sure(self) -> bool:
        return self.distribution is not None and self.distribution.coverage >= MIN_COVERAGE

    @property
    def shortcoming(self) -> str:
        if self.distribution is None:
            return _NO_LOGPROBS
        return (
            f"the judge's token probabilities settle only {self.distribution.coverage:.0%} of the rating "
            f"(at least {MIN_COVERAGE:.0%} is needed)"
        )


_NO_LOGPROBS = "the judge gives no token probabilities"


async def estimate_rating(question: RatingQuestion, metric: Metric, calls: JudgeCalls) -> Estimate:
    """Estimate the rating by `metric.scoring`; `auto` chooses, and notes the reason when it had to fall back.

    Raises:
        JudgeError: nothing readable came, too few samples did, or `logprobs` is demanded and cannot be had.
        ProviderError: the judge could not answer.
    """
    if metric.scoring == "single":
        return await _by_single_reply(question, calls)
    if metric.scoring == "samples":
        return await _by_samples(question, metric, calls, Purpose.SAMPLES)
    if metric.scoring == "logprobs":
        return await _by_logprobs(question, calls)
    if question.criterion.is_form:
        return await _by_logprobs_or_samples(question, metric, calls)
    return await _by_logprobs_or_single_reply(question, calls)


async def _by_single_reply(question: RatingQuestion, calls: JudgeCalls) -> Estimate:
    reply = await calls.read(question.request(calls), question.read)
    return Estimate(reply.rating, reply.reason, "single", reply.read_from)


async def _by_logprobs(question: RatingQuestion, calls: JudgeCalls) -> Estimate:
    request = question.request(calls, want_logprobs=True)
    weighed = await calls.read(request, lambda choice: _weigh(question, choice))
    if not weighed.is_sure:
        hint = "use `scoring: auto` or `scoring: samples`, or a judge that gives token probabilities"
        raise JudgeError(f"{weighed.shortcoming}, and `scoring: logprobs` asks for them", hint=hint)
    return _weighted(weighed)


async def _by_logprobs_or_single_reply(question: RatingQuestion, calls: JudgeCalls) -> Estimate:
    request = question.request(calls, want_logprobs=True)
    weighed = await calls.read(request, lambda choice: _weigh(question, choice))
    if weighed.is_sure:
        return _weighted(weighed)
    fallback = f"{weighed.shortcoming}: one rating was taken as it is"
    reply = weighed.reply
    return Estimate(reply.rating, reply.reason, "single", reply.read_from, fallback=fallback)


async def _by_logprobs_or_samples(question: RatingQuestion, metric: Metric, calls: JudgeCalls) -> Estimate:
    request = question.request(calls, want_logprobs=True)
    try:
        response = await calls.ask_with_logprobs(request)
    except OfflineError:
        # In the run that filled the cache another question found out first that the judge gives none.
        response = None
    shortcoming = _NO_LOGPROBS
    if response is not None and LOGPROBS not in response.dropped:
        choice = response.choices[0]
        weighed = await calls.read_again(request, choice, lambda choice: _weigh(question, choice))
        if weighed.is_sure:
            return _weighted(weighed)
        shortcoming = weighed.shortcoming
    sampled = await _by_samples(question, metric, calls, Purpose.FALLBACK_SAMPLES)
    return replace(sampled, fallback=f"{shortcoming}: {metric.samples} samples were taken")


async def _by_samples(
    question: RatingQuestion, metric: Metric, calls: JudgeCalls, purpose: Purpose
) -> Estimate:
    request = question.samples_request(calls, metric.samples, purpose)
    needed = max(1, math.ceil(round(metric.min_valid * metric.samples, 9)))
    response = await calls.ask(request)
    replies, problems = _read_all(question, response)
    roomier = request if len(replies) >= needed else calls.give_room(request, response.choices)
    if roomier is not request:
        request, response = roomier, await calls.ask(roomier)
        replies, problems = _read_all(question, response)
    if len(replies) < needed:
        await calls.forget(_without_readable(request, response, problems))
        raise _too_few(replies, list(problems.values()), metric)
    ratings = [reply.rating for reply in replies]
    mean = mean_of_samples(ratings)
    return Estimate(
        rating=mean,
        reason=replies[nearest_to(ratings, mean)].reason,
        estimator="samples",
        read_from=dict(Counter(reply.read_from for reply in replies)),
        distribution=distribution_of(ratings),
        valid=len(replies),
        requested=metric.samples,
    )


def _read_all(
    question: RatingQuestion, response: ModelResponse
) -> tuple[list[ParsedReply], dict[int, JudgeError]]:
    """Return the samples that can be read, and what is wrong with the others, by their place in the response."""
    replies: list[ParsedReply] = []
    problems: dict[int, JudgeError] = {}
    for place, choice in enumerate(response.choices):
        try:
            replies.append(question.read(choice))
        except JudgeError as error:
            note = " (a token limit cut it off)" if is_cut_off(choice) else ""
            problems[place] = JudgeError(f"{error.message}{note}", raw_text=error.raw_text)
    return replies, problems


def _without_readable(request: ModelRequest, response: ModelResponse, unread: Iterable[int]) -> ModelRequest:
    """Return the request for the samples that cannot be read alone: what could be read is paid for and stays."""
    indexes = response.sample_indexes
    if len(indexes) != len(response.choices):
        return request
    return replace(request, sample_indexes=tuple(indexes[place] for place in unread))


def _too_few(replies: list[ParsedReply], problems: list[JudgeError], metric: Metric) -> JudgeError:
    lost = metric.samples - len(replies) - len(problems)
    parts = [f"only {len(replies)} of {metric.samples} samples are valid, {metric.min_valid:.0%} are needed"]
    if problems:
        parts.append(f"{len(problems)} could not be read, the first because {problems[0].message}")
    if lost:
        parts.append(f"{lost} never came")
    return JudgeError("; ".join(parts), raw_text=problems[0].raw_text if problems else "")


def _weigh(question: RatingQuestion, choice: Choice) -> _Weighed:
    reply = question.read(choice)
    if choice.token_logprobs is None:
        return _Weighed(reply, None)
    distribution = weigh_by_logprobs(
        choice.token_logprobs,
        (reply.score_start, reply.score_end),
        text=choice.text,
        score_range=question.criterion.score_range,
        score_step=question.criterion.score_step,
    )
    return _Weighed(reply, distribution)


def _weighted(weighed: _Weighed) -> Estimate:
    assert weighed.distribution is not None
    distribution = weighed.distribution
    reply = weighed.reply
    return Estimate(distribution.mean(), reply.reason, "logprobs", reply.read_from, distribution)


def describe(estimate: Estimate, score_range: ScoreRange) -> str:
    """Return the distribution in words: `4.3 on a scale of 1 to 5 (from token probabilities: 4 70%, 5 30%)`."""
    low, high = (format_number(end) for end in score_range)
    rating = f"{format_number(round(estimate.rating, 2))} on a scale of {low} to {high}"
    shares = sorted(estimate.distribution.shares.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{format_number(number)} {share:.0%}" for number, share in shares[:_MOST_SHOWN])
    if len(shares) > _MOST_SHOWN:
        shown += ", ..."
    if estimate.estimator == "logprobs":
        return f"{rating} (from token probabilities: {shown})"
    if estimate.estimator == "samples":
        return f"{rating} (mean of {estimate.valid} samples: {shown})"
    return f"{rating} (one rating)"

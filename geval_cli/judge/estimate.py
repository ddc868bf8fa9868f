"""The estimators: a rating from token probabilities, from samples, or from a single reply."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Generic, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import JudgeError, OfflineError
from geval_cli.judge.calls import FORM_MAX_TOKENS, LOGPROBS, JudgeCalls, is_cut_off
from geval_cli.judge.metric import Metric, ScoreRange, format_number
from geval_cli.judge.prompt import Criterion, number_alone_text, user_message
from geval_cli.judge.replies.parse import ParsedReply, parse_member_rating, parse_rating, without_thoughts
from geval_cli.judge.scoring import (
    STRICT_MAJORITY,
    RatingEstimate,
    Scale,
    distribution_of,
    mean_of_samples,
    nearest_to,
    weigh_by_logprobs,
)
from geval_cli.numbers import format_share
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, ModelResponse, Purpose, Role
from geval_cli.statistics.early_stop import StopDecision, StopRule, batch_ends, decide

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
        score_range, ends_early = self.criterion.score_range, is_cut_off(choice)
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
        return await _by_single_reply(question, calls)
    if metric.scoring == "samples":
        return await _by_samples(question, metric, calls, Purpose.SAMPLES)
    if metric.scoring == "logprobs":
        return await _by_logprobs(question, calls)
    if question.criterion.is_form:
        return await _by_logprobs_or_samples(question, metric, calls)
    return await _by_logprobs_or_single_reply(question, calls)


async def _by_single_reply(question: RatingQuestion, calls: JudgeCalls) -> RatingEstimate:
    return await _rated(question, question.request(calls), calls)


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


async def _by_logprobs(question: RatingQuestion, calls: JudgeCalls) -> RatingEstimate:
    request = question.request(calls, want_logprobs=True)
    found = await _rated(question, request, calls)
    if found.fallback is not None:
        message = f"{found.fallback}, but `scoring: logprobs` needs them"
        raise JudgeError(message, hint=LOGPROBS_HINT)
    return found


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
    try:
        response = await calls.ask_with_logprobs(
            request, lambda: _first_samples(question, metric, calls, Purpose.FALLBACK_SAMPLES)
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
    taken = Taken[ParsedReply]()
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
    early_stop = None if decision is None else _stopped(taken, metric, decision)
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


def _first_samples(
    question: RatingQuestion, metric: Metric, calls: JudgeCalls, purpose: Purpose
) -> ModelRequest:
    first = next(iter(_sample_ends(metric)))
    return question.samples_request(calls, tuple(range(first)), purpose)


async def take_samples(question: SampledQuestion[Reply], metric: Metric, calls: JudgeCalls) -> "Taken[Reply]":
    """Take all samples of `metric` in one request.

    Raises:
        JudgeError: too few can be read.
    """
    taken = Taken[Reply]()
    request = question.samples_request(calls, tuple(range(metric.samples)), Purpose.SAMPLES)
    await taken.add(request, question, metric, calls)
    await taken.check(metric, calls)
    return taken


def _stop_rule(metric: Metric, stop_error: float) -> StopRule:
    """Return the rule by which `metric` has enough samples: its verdict is that of the mean, or of the majority."""
    low, high = metric.asked_range
    ratings = tuple(rating for _, rating in Scale.of(metric.asked_range, metric.asked_step).spellings)
    if metric.strict_mode:
        return StopRule(ratings, STRICT_MAJORITY, stop_error)
    least_mean = low + metric.effective_threshold * (high - low)
    # On a scale that is too fine to be listed nothing but certainty stops.
    return StopRule(ratings, least_mean, stop_error) if ratings else StopRule((low, high), least_mean, 0)


def _stopped(taken: "Taken[ParsedReply]", metric: Metric, decision: StopDecision) -> Mapping[str, JsonValue]:
    """Return the account of an early stop for the detail: how many were taken of how many, and why no more."""
    left = metric.samples - taken.requested
    if not left:
        why = "all samples were taken"
    elif decision.is_certain:
        why = f"the other {left} could not change the verdict"
    else:
        why = f"the other {left} were unlikely to change the verdict"
    return {"taken": taken.requested, "upto": metric.samples, "p_pass": decision.p_pass, "why": why}


def _least_valid(metric: Metric, requested: int) -> int:
    return max(1, math.ceil(round(metric.min_valid * requested, 9)))


class Taken(Struct, Generic[Reply]):
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
            request, response = roomier, await calls.ask(roomier)
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
            await calls.forget(*(request for request in self._unread if request.sample_indexes))
            valid, problems = len(self.replies), self.problems
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
        share, least = format_share(distribution.coverage), format_share(MIN_COVERAGE)
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

"""From a metric and a case to a grade: steps, evaluation, decision, explanation. A checklist is graded item by item.

The score of a checklist is the weighted share of yes. Where the judge gives token probabilities, an item counts P(yes)
/ (P(yes) + P(no)) at the place of its answer instead of 1 or 0, as a rating is weighed by them elsewhere. A yes whose
words are not in the output counts 0: it rests on something that the judge made up.
"""

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import JudgeError, ProviderError, UsageError
from geval_cli.judge.calls import (
    EXPLANATION_MAX_TOKENS,
    JudgeCalls,
    JudgeMemory,
    all_of,
    reply_schema,
    whole_text,
)
from geval_cli.judge.estimate import (
    LOGPROBS_HINT,
    MIN_COVERAGE,
    NO_LOGPROBS,
    Distribution,
    Grade,
    RatingEstimate,
    RatingQuestion,
    Taken,
    describe,
    estimate_rating,
    graded,
    mean_grade,
    normalise_rating,
    passes,
    strict_score,
    take_samples,
    weigh_words,
)
from geval_cli.judge.metric import ChecklistItem, Estimator, Judge, JudgedCase, Metric, ReadFrom
from geval_cli.judge.prompt import (
    DIMENSION_PARAMS,
    METRICS_KEPT,
    Block,
    Criterion,
    Render,
    checklist_prompt_version,
    checklist_text,
    evaluate_text,
    explain_text,
    is_whole_scale,
    joint_criteria,
    joint_prompt_version,
    joint_text,
    label_params,
    metric_criteria,
    prompt_version,
    render_messages,
    rotation,
    rubric_prompt_variables,
    steps_text,
    user_message,
    uses_steps,
)
from geval_cli.judge.replies import ItemReply, parse_checklist, parse_steps
from geval_cli.judge.source import (
    PARAM_LABELS,
    Source,
    as_text,
    cases_of_answers,
    chosen_texts,
    media_text,
    param_text,
    rated_output,
    resolve_input,
    resolve_source,
    with_all_answers,
)
from geval_cli.numbers import format_share
from geval_cli.patterns import compile_later
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, Purpose, Role, Status
from geval_cli.source.media import MEDIA_FIELDS

MOST_ITEMS = 50
"""So many items fit into one reply that nothing cuts off."""

CHECKLIST = "checklist"
"""The key of a judgement's detail that holds the items."""

HALF = 0.5
"""The score that an item must exceed to be met."""

_ITEM_SHOWN = 80
_WORDS = dict.fromkeys(("yes", "y", "true", "pass"), "yes") | dict.fromkeys(
    ("no", "n", "false", "fail"), "no"
)
_ANSWER_SCHEMA = reply_schema(
    {
        "reason": {"type": "string"},
        "evidence": {"type": "string"},
        "answer": {"type": "string", "enum": ["yes", "no"]},
    }
)


class CheckedItem(Struct, frozen=True):
    """One item as it was answered, and what that counts.

    Attributes:
        score: what it counts, 0..1: the probability of yes, or the share of samples that say yes with evidence.
        p_yes: the probability of yes, or the share of samples that say it, whatever the evidence; None when the judge
            gave one answer without probabilities.
        met: whether it is answered with yes, and the evidence that it needs is there.
        evidence_found: whether the quoted words are in the output; None when a yes quotes none, or needs none.
    """

    item: ChecklistItem
    met: bool
    score: float
    p_yes: float | None
    reply: ItemReply
    evidence_found: bool | None

    @property
    def shown(self) -> dict[str, JsonValue]:
        """Return the item as the detail of a result has it."""
        return {
            "item": self.item.text,
            "weight": self.item.weight,
            "required": self.item.required,
            "met": self.met,
            "score": self.score,
            "answer": "yes" if self.reply.is_yes else "no",
            "p_yes": self.p_yes,
            "evidence": self.reply.evidence or None,
            "evidence_found": self.evidence_found,
            "reason": self.reply.reason,
        }


class _Answers(NamedTuple):
    """All items as one judgement answers them, and how the answers came about; the rating is made of them later."""

    items: tuple[CheckedItem, ...]
    estimate: RatingEstimate


class _Question(Struct, frozen=True):
    """The request for the answers to a checklist, together with their reader."""

    messages: tuple[Message, ...]
    items: tuple[ChecklistItem, ...]
    repeat_index: int

    def request(self, calls: JudgeCalls, *, want_logprobs: bool = False) -> ModelRequest:
        """Return the request for one reply at temperature 0."""
        numbers = [str(number) for number in range(1, len(self.items) + 1)]
        return ModelRequest(
            messages=self.messages,
            params=calls.params(temperature=0),
            repeat_index=self.repeat_index,
            want_logprobs=want_logprobs,
            response_schema=reply_schema(dict.fromkeys(numbers, _ANSWER_SCHEMA)),
            role=Role.JUDGE,
            purpose=Purpose.RATING,
        )

    def samples_request(self, calls: JudgeCalls, indexes: tuple[int, ...], purpose: Purpose) -> ModelRequest:
        """Return the request for the replies of these `indexes` at temperature 1."""
        params = calls.params(temperature=1)
        return replace(self.request(calls), params=params, sample_indexes=indexes, purpose=purpose)

    def read(self, choice: Choice) -> tuple[ItemReply, ...]:
        """Return the answers of a reply, one for each item.

        Raises:
            JudgeParseError: one is missing.
        """
        return parse_checklist(choice.text, [item.text for item in self.items])


async def grade_checklist(metric: Metric, case: JudgedCase, calls: JudgeCalls) -> Grade:
    """Have the judge of `calls` answer the checklist of `metric` about the output of `case`.

    Raises:
        MissingParamsError: the case lacks a parameter that the metric names; nothing was asked.
        JudgeError: an answer is missing, or too few samples can be read.
        ProviderError: the judge could not answer.
    """
    texts = chosen_texts(metric.evaluation_params, case)
    blocks = tuple(Block(PARAM_LABELS[name], text) for name, text in texts.items())
    question = _Question(
        user_message(checklist_text(metric.checklist, blocks)), metric.checklist, case.repeat_index
    )
    answers = await _answers(question, metric, as_text(case.actual_output), calls)
    items = answers.items
    score = checklist_score(metric.checklist, [item.score for item in items])
    if metric.strict_mode:
        score = float(all(item.met for item in items))
    about = {
        CHECKLIST: [item.shown for item in items],
        "evaluation_params": tuple(texts),
        "judge": calls.judge.label,
        "strict_mode": metric.strict_mode or None,
        "prompt_version": checklist_prompt_version(),
    }
    return graded(
        metric,
        score,
        replace(answers.estimate, rating=score, reason=_in_words(items)),
        about,
        usage=calls.usage,
        latency_ms=calls.latency_ms,
        may_pass=not any(item.item.required and not item.met for item in items),
    )


def checklist_score(items: Sequence[ChecklistItem], scores: Sequence[float]) -> float:
    """Return sum(weight * score) / sum(weight), 0..1; when every weight is 0 all items count the same."""
    weights = [item.weight for item in items]
    if not any(weights):
        weights = [1.0] * len(items)
    highest = max(weights)  # so that a sum of huge weights stays finite
    shares = [weight / highest for weight in weights]
    total = math.fsum(share * score for share, score in zip(shares, scores, strict=True))
    return min(total / math.fsum(shares), 1.0)


def missed_required(detail: Mapping[str, JsonValue]) -> list[str]:
    """Return the required items that a stored judgement by a checklist finds not met; none for any other."""
    items = detail.get(CHECKLIST)
    listed = [item for item in items if isinstance(item, Mapping)] if isinstance(items, list | tuple) else []
    return [str(item.get("item", "")) for item in listed if item.get("required") and not item.get("met")]


async def _answers(question: _Question, metric: Metric, output: str, calls: JudgeCalls) -> _Answers:
    """Return the answers by `metric.scoring`; `auto` takes token probabilities where they come."""
    if metric.scoring == "samples":
        return _of_samples(await take_samples(question, metric, calls), question.items, output)
    if metric.scoring == "single":
        replies = await calls.read(question.request(calls), question.read)
        return _Answers(_checked(question.items, replies, output), _found_by("single"))
    request = question.request(calls, want_logprobs=True)
    replies, chances = await calls.read(
        request, lambda choice: (found := question.read(choice), _chances(found, choice))
    )
    items = question.items
    must = metric.scoring == "logprobs"
    settled = [number for number, (_, known) in enumerate(chances or (), 1) if known >= MIN_COVERAGE]
    if chances is not None and len(settled) == len(replies):
        checked = _checked(items, replies, output, [chance for chance, _ in chances])
        covered = Distribution(coverage=min(known for _, known in chances))
        return _Answers(checked, _found_by("logprobs", distribution=covered))
    shortcoming, taken = NO_LOGPROBS, "each yes or no was taken at face value"
    if chances is not None:
        open_ones = [str(number) for number in range(1, len(replies) + 1) if number not in settled]
        numbers = f"item{'s' * (len(open_ones) > 1)} {', '.join(open_ones)}"
        shortcoming = (
            f"the judge's token probabilities settle less than"
            f" {format_share(MIN_COVERAGE)} of the answer to {numbers}"
        )
        taken = "there yes or no was taken at face value"
    if must:
        message = f"{shortcoming}, but `scoring: logprobs` needs them"
        raise JudgeError(message, hint=LOGPROBS_HINT)
    known_chances = [chance if known >= MIN_COVERAGE else None for chance, known in chances or ()]
    checked = _checked(items, replies, output, known_chances or None)
    estimator: Estimator = "mixed" if settled else "single"
    return _Answers(checked, _found_by(estimator, fallback=f"{shortcoming}: {taken}"))


def _found_by(estimator: Estimator, *, read_from: ReadFrom = "json", **how: Any) -> RatingEstimate:
    return RatingEstimate(0.0, None, estimator, read_from, **how)


def _chances(replies: Sequence[ItemReply], choice: Choice) -> list[tuple[float, float]] | None:
    """Return for each answer P(yes) / (P(yes) + P(no)), and P(yes) + P(no); None without token probabilities."""
    if choice.token_logprobs is None:
        return None
    found = []
    for reply in replies:
        masses = weigh_words(choice.token_logprobs, (reply.start, reply.end), text=choice.text, words=_WORDS)
        known = math.fsum(masses.values())
        found.append((masses.get("yes", 0.0) / known if known else 0.0, min(known, 1.0)))
    return found


def _checked(
    items: Sequence[ChecklistItem],
    replies: Sequence[ItemReply],
    output: str,
    chances: Sequence[float | None] | None = None,
) -> tuple[CheckedItem, ...]:
    """Return what each item counts: P(yes) where it is known, else 1 or 0; without the evidence it needs, 0."""
    whole = _comparable(output)
    return tuple(
        _checked_item(item, reply, whole, chance)
        for item, reply, chance in zip(items, replies, chances or [None] * len(items), strict=True)
    )


def _checked_item(item: ChecklistItem, reply: ItemReply, whole: str, chance: float | None) -> CheckedItem:
    found = _is_shown(reply.evidence, whole) if reply.is_yes and (item.evidence or reply.evidence) else None
    lacks = reply.is_yes and item.evidence and not found
    score = 0.0 if lacks else float(reply.is_yes) if chance is None else chance
    met = reply.is_yes and score > HALF
    return CheckedItem(item, met, score, chance, reply, found)


def _of_samples(
    taken: Taken[tuple[ItemReply, ...]], items: tuple[ChecklistItem, ...], output: str
) -> _Answers:
    """Return the share of samples that each item is met in; reason and evidence are those of the first that agrees."""
    samples = [_checked(items, replies, output) for replies in taken.replies]
    found = []
    for number in range(len(items)):
        answers = [sample[number] for sample in samples]
        score = sum(answer.score for answer in answers) / len(answers)
        p_yes = sum(answer.reply.is_yes for answer in answers) / len(answers)
        met = score > HALF
        shown = next((answer for answer in answers if answer.met == met), answers[0])
        found.append(replace(shown, met=met, score=score, p_yes=p_yes))
    valid = len(samples)
    return _Answers(
        tuple(found),
        _found_by("samples", read_from={"json": valid}, valid=valid, requested=taken.requested),
    )


def _in_words(items: Sequence[CheckedItem]) -> str:
    """`2 of 3 items met; not met: Names the price (required)`."""
    missing = [item for item in items if not item.met]
    head = f"{len(items) - len(missing)} of {len(items)} items met"
    return f"{head}; not met: {'; '.join(map(_missing_in_words, missing))}" if missing else head


def _missing_in_words(checked: CheckedItem) -> str:
    text = " ".join(checked.item.text.split())
    text = text if len(text) <= _ITEM_SHOWN else f"{text[: _ITEM_SHOWN - 1]}…"
    notes = ["required"] if checked.item.required else []
    if checked.reply.is_yes and checked.evidence_found is False:
        notes.append(
            "the quoted words are not in the output" if checked.reply.evidence else "nothing is quoted"
        )
    return f"{text} ({', '.join(notes)})" if notes else text


# -- evidence ---------------------------------------------------------------------------------------------------

_LEFT_OUT = compile_later(r"\s*(?:\[(?:\.\.\.|…)\]|\.\.\.|…)\s*")
_MARKS = str.maketrans(
    {"*": None, "`": None}
    | dict.fromkeys("\u2018\u2019", "'")
    | dict.fromkeys("\u201c\u201d", '"')
    | dict.fromkeys("\u2013\u2014", "-")
)
_AROUND = " \"'.,;:"


def is_quoted(evidence: str, output: str) -> bool:
    """Return whether quoted words are in an output.

    White space, upper and lower case, the shape of quotation marks and dashes, and marks of emphasis make no
    difference: judges change them without meaning to. Words may be left out where `...` says so; the rest must be in
    order.
    """
    return _is_shown(evidence, _comparable(output))


def _is_shown(evidence: str, whole: str) -> bool:
    for pieces in ([evidence], _LEFT_OUT.split(evidence)):
        wanted = [piece for piece in (_comparable(item).strip(_AROUND) for item in pieces) if piece]
        if wanted and _are_in_order(wanted, whole):
            return True
    plain = _comparable(evidence)
    return bool(plain.strip()) and not plain.strip(_AROUND) and plain in whole


def _are_in_order(pieces: Sequence[str], whole: str) -> bool:
    position = 0
    for piece in pieces:
        found = whole.find(piece, position)
        if found == -1:
            return False
        position = found + len(piece)
    return True


def _comparable(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).translate(_MARKS).casefold().split())


# Wordings of steps that are kept: tests mostly share one, and building and reading it anew took a tenth of their time.
_STEPS_KEPT = 256

_OTHER_PARAMS = ("expected_output", "context", "retrieval_context")
_OF_CONVERSATIONS = ("turns", "scenario", "expected_outcome", "role")

_STEPS_SCHEMA: Mapping[str, Any] = reply_schema({"steps": {"type": "array", "items": {"type": "string"}}})


def _rating_schema_of(kind: str) -> Mapping[str, Any]:
    return reply_schema({"reason": {"type": "string"}, "score": {"type": kind}})


_WHOLE_RATING_SCHEMA, _RATING_SCHEMA = _rating_schema_of("integer"), _rating_schema_of("number")


async def grade(
    metric: Metric,
    case: JudgedCase,
    judge: Judge,
    *,
    render: Render | None = None,
    memory: JudgeMemory | None = None,
) -> Grade:
    """Have `judge` rate `case` by `metric`.

    Args:
        metric: the criterion.
        case: the output and its surroundings.
        judge: the model that grades.
        render: needed when the metric has a `rubric_prompt`.
        memory: what is known about judges in this run; one for the whole run saves calls.

    Raises:
        MissingParamsError: the case lacks a parameter that the metric names; nothing was asked.
        UsageError: the metric says nothing to judge by.
        JudgeError: no verdict could be read, or too few samples could.
        ProviderError: the judge could not answer.
        TemplateError: the rubric prompt cannot be rendered.
    """
    if metric.checklist:
        return await grade_checklist(
            metric, with_all_answers(case), JudgeCalls(judge, memory or JudgeMemory())
        )
    criteria, memory = metric_criteria(metric), memory or JudgeMemory()
    cases = rated_cases(metric, case)
    judgings = {
        turn: _Judging(metric, item, _what_is_shown(metric, item), judge, render, memory)
        for turn, item in cases.items()
    }
    if len(criteria) == 1:
        return await _rate(metric, judgings, criteria[0])
    parts = await all_of(_rate(metric, judgings, criterion) for criterion in criteria)
    # The grade of a list of criteria: the mean of the scores, one threshold, the parts in the detail.
    about = {
        "criteria": metric.criteria,
        "judge": judge.label,
        "parts": [
            {**part.detail, "status": part.status, "score": part.score, "reason": part.reason}
            for part in parts
        ],
    }
    reason = "\n\n".join(part.reason for part in parts if part.reason) or None
    return mean_grade(metric, parts, about, reason=reason, steps=metric.evaluation_steps or ())


async def _rate(metric: Metric, judgings: Mapping[int, "_Judging"], criterion: Criterion) -> Grade:
    """Rate a case by one criterion: as a whole, or each answer of its conversation, all of them at once."""
    if metric.over != "answers":
        return await judgings[WHOLE].grade(criterion)
    rated = await all_of(judging.grade(criterion) for judging in judgings.values())
    return _mean_of_answers(metric, dict(zip(judgings, rated, strict=True)))


WHOLE = 0
"""Stands for the turn of an answer where a case is rated as a whole."""


def rated_cases(metric: Metric, case: JudgedCase) -> Mapping[int, JudgedCase]:
    """Return what is rated, by the number of its turn: each answer of the conversation, or the case as a whole.

    Raises:
        UsageError: answers are to be rated, and the case is no conversation.
    """
    if metric.over != "answers":
        return {WHOLE: case}
    if case.turns is None:
        hint = "give it `turns`"
        raise UsageError(
            "`over: answers` rates the answers of a conversation, but the test has none", hint=hint
        )
    return dict(cases_of_answers(case, metric.window))


def steps_requests(
    metric: Metric, case: JudgedCase, judge: Judge, *, memory: JudgeMemory
) -> Iterator[ModelRequest]:
    """Yield the requests that `grade` sends first whatever the output is: the steps, if the judge writes them.

    There are none where the user's own prompt asks for them: it may show the output.
    """
    for criteria, labels in steps_needed(metric, case):
        is_locked = memory.locked_steps(criteria, labels, judge) is not None
        if not is_locked and memory.why_no_steps(criteria, labels, judge) is None:
            yield _shared_steps_request(criteria, labels, JudgeCalls(judge, memory))


def steps_needed(metric: Metric, case: JudgedCase) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the criteria that a judge writes steps for whatever the output is, with the labels of what is shown."""
    if metric.evaluation_steps is None and metric.rubric_prompt is None:
        first = next(iter(rated_cases(metric, case).values()))
        labels = _what_is_shown(metric, first).step_labels
        for criterion in metric_criteria(metric):
            yield criterion.criteria, labels


async def write_steps(
    criteria: str, labels: tuple[str, ...], judge: Judge, memory: JudgeMemory
) -> tuple[str, ...]:
    """Have a judge write the steps for a criterion.

    Raises:
        JudgeError, ProviderError: none could be had.
    """
    return await _shared_steps(criteria, labels, JudgeCalls(judge, memory))


async def _shared_steps(criteria: str, labels: tuple[str, ...], calls: JudgeCalls) -> tuple[str, ...]:
    memory, judge = calls.memory, calls.judge
    error = memory.why_no_steps(criteria, labels, judge)
    if error is not None:
        raise error
    try:
        return await calls.read(_shared_steps_request(criteria, labels, calls), _read_steps)
    except JudgeError as failure:
        if calls.usage.requests:  # not where another test has asked for the same at the same time
            memory.note_no_steps(criteria, labels, judge, failure)
        raise


def judged_texts(metric: Metric, case: JudgedCase) -> JsonValue:
    """Return the texts of `case` that a judge is shown, each with its label."""
    texts = [_texts_of(metric, item) for item in rated_cases(metric, case).values()]
    return texts if metric.over == "answers" else texts[0]


def _texts_of(metric: Metric, case: JudgedCase) -> JsonValue:
    shown = [[block.label, block.text] for block in _what_is_shown(metric, case).blocks]
    if metric.rubric_prompt is None:
        return shown
    others = {
        name: param_text(name, case)
        for name in (*_OTHER_PARAMS, *(_OF_CONVERSATIONS if case.turns is not None else ()))
    }
    others |= {name: media_text(name, case) for name in MEDIA_FIELDS if getattr(case, name)}
    return [shown, resolve_input(case), as_text(case.actual_output), others, dict(case.vars)]


class _Shown(Struct, frozen=True):
    """The parts of the case that the judge gets to see."""

    blocks: tuple[Block, ...]
    step_labels: tuple[str, ...]
    params: tuple[str, ...] | None
    source: Source | None


def _what_is_shown(metric: Metric, case: JudgedCase) -> _Shown:
    if metric.dimension is None:
        texts_of = chosen_texts(metric.evaluation_params, case)
        blocks = tuple(Block(PARAM_LABELS[name], text) for name, text in texts_of.items())
        params = tuple(texts_of)
        return _Shown(blocks, label_params(params), params, None)
    source = resolve_source(case)
    shown = "\n".join(filter(None, (source.text, source.knowledge)))
    media = {
        PARAM_LABELS[name]: "\n".join(
            line for line in media_text(name, case).splitlines() if line not in shown
        )
        for name in MEDIA_FIELDS
    }
    texts = (("Source", source.text), ("Context", source.knowledge), *media.items())
    blocks = tuple(Block(label, text) for label, text in texts if text)
    return _Shown((*blocks, Block("Output", rated_output(case))), DIMENSION_PARAMS, None, source)


class _Judging(Struct, frozen=True):
    """One judgement: a metric, a case and a judge."""

    metric: Metric
    case: JudgedCase
    shown: _Shown
    judge: Judge
    render: Render | None
    memory: JudgeMemory

    async def grade(self, criterion: Criterion) -> Grade:
        calls = JudgeCalls(self.judge, self.memory)
        steps = await self._steps(criterion, calls)
        if self.metric.joint:
            # The question that asks for all dimensions of the metric; it is the same for each of them.
            # Later ratings depend on earlier ones, so the texts decide which dimension comes first.
            asked = joint_criteria(self.metric)
            first = rotation(self.shown.blocks, len(asked))
            asked = asked[first:] + asked[:first]
            others = [item for item in asked if item.label != criterion.label]
            found = await all_of(self._steps(item, calls) for item in others)
            steps_of = {
                criterion.label: steps,
                **dict(zip((item.label for item in others), found, strict=True)),
            }
            text = joint_text([(item, steps_of[item.label]) for item in asked], self.shown.blocks)
            labels = tuple(item.label for item in asked)
            question = RatingQuestion(
                messages=user_message(text),
                criterion=criterion,
                repeat_index=self.case.repeat_index,
                response_schema=_joint_schema(labels),
                joint=labels,
            )
        else:
            question = RatingQuestion(
                messages=self._evaluate_messages(criterion, steps),
                criterion=criterion,
                repeat_index=self.case.repeat_index,
                response_schema=self._rating_schema(criterion),
            )
        estimate = await estimate_rating(question, self.metric, calls)
        if not self.metric.strict_mode:
            score = normalise_rating(estimate.rating, self.metric.score_range)
        elif estimate.estimator == "single":
            score = 1.0 if estimate.rating == 1 else 0.0
        else:
            score = strict_score(estimate.distribution)
        if criterion.is_form:
            estimate = replace(estimate, reason=await self._reason(criterion, steps, estimate, score, calls))
        return graded(
            self.metric,
            score,
            estimate,
            self._about(criterion, question.joint),
            usage=calls.usage,
            latency_ms=calls.latency_ms,
            score_range=criterion.score_range,
            steps=steps,
        )

    async def _steps(self, criterion: Criterion, calls: JudgeCalls) -> tuple[str, ...]:
        if self.metric.evaluation_steps is not None:
            return self.metric.evaluation_steps
        own = self.metric.rubric_prompt
        if own is not None and own.evaluate is not None and not uses_steps(own.evaluate):
            return ()
        if own is not None and own.steps is not None:
            request = _steps_request(
                self._own_messages(own.steps, criterion, ()), calls.params(temperature=0)
            )
            return await calls.read(request, _read_steps)
        locked = self.memory.locked_steps(criterion.criteria, self.shown.step_labels, self.judge)
        if locked is not None:
            return locked
        return await _shared_steps(criterion.criteria, self.shown.step_labels, calls)

    def _evaluate_messages(self, criterion: Criterion, steps: tuple[str, ...]) -> tuple[Message, ...]:
        own = self.metric.rubric_prompt
        if own is not None and own.evaluate is not None:
            return self._own_messages(own.evaluate, criterion, steps)
        return user_message(evaluate_text(criterion, steps, self.shown.blocks))

    def _own_messages(
        self, template: str, criterion: Criterion, steps: tuple[str, ...]
    ) -> tuple[Message, ...]:
        shown = {"input": resolve_input(self.case), "output": as_text(self.case.actual_output)}
        shown |= {
            name: param_text(name, self.case)
            for name in (*_OTHER_PARAMS, *_OF_CONVERSATIONS)
            if getattr(self.case, name) is not None
        }
        shown |= {name: media_text(name, self.case) for name in MEDIA_FIELDS if getattr(self.case, name)}
        variables = rubric_prompt_variables(criterion, steps, shown, self.case.vars)
        return render_messages(template, variables, self.render)

    def _rating_schema(self, criterion: Criterion) -> Mapping[str, JsonValue] | None:
        own = self.metric.rubric_prompt
        if criterion.is_form or (own is not None and own.evaluate is not None):
            return None
        is_whole = is_whole_scale(criterion.score_range, criterion.score_step)
        return _WHOLE_RATING_SCHEMA if is_whole else _RATING_SCHEMA

    async def _reason(
        self,
        criterion: Criterion,
        steps: tuple[str, ...],
        estimate: RatingEstimate,
        score: float,
        calls: JudgeCalls,
    ) -> str:
        in_words = f"{criterion.label}: {describe(estimate, criterion.score_range)}"
        status = Status.PASSED if passes(score, self.metric.effective_threshold) else Status.FAILED
        if self.metric.explain not in ("always", status.value):
            return in_words
        text = explain_text(criterion, steps, self.shown.blocks, rating=estimate.rating)
        request = ModelRequest(
            user_message(text),
            calls.params(temperature=0, max_tokens=EXPLANATION_MAX_TOKENS),
            repeat_index=self.case.repeat_index,
            role=Role.JUDGE,
            purpose=Purpose.EXPLANATION,
        )
        try:
            response = await calls.ask(request)
        except (ProviderError, JudgeError) as error:  # the rating is paid for, and stands without it
            return f"{in_words} (no explanation: {error.message})"
        return "\n".join(filter(None, (response.text.strip(), in_words)))

    def _about(self, criterion: Criterion, joint: tuple[str, ...]) -> dict[str, JsonValue]:
        source = self.shown.source
        return {
            "dimension": self.metric.dimension,
            "criteria": criterion.criteria,
            "evaluation_params": self.shown.params,
            "source_from": None if source is None else source.found_in,
            "judge": self.judge.label,
            "strict_mode": self.metric.strict_mode or None,
            "joint": joint or None,
            "prompt_version": joint_prompt_version() if joint else prompt_version(),
        }


@lru_cache(maxsize=METRICS_KEPT)
def _joint_schema(labels: tuple[str, ...]) -> Mapping[str, JsonValue]:
    return reply_schema({label: {"type": "integer"} for label in labels})


def _steps_request(messages: tuple[Message, ...], params: Mapping[str, JsonValue]) -> ModelRequest:
    return ModelRequest(
        messages, params, response_schema=_STEPS_SCHEMA, role=Role.JUDGE, purpose=Purpose.STEPS
    )


def _shared_steps_request(criteria: str, labels: tuple[str, ...], calls: JudgeCalls) -> ModelRequest:
    """Return the request that all tests with these criteria share; it is the same object for them, too."""
    return _worded_steps_request(criteria, labels, tuple(calls.params(temperature=0).items()))


@lru_cache(maxsize=_STEPS_KEPT)
def _worded_steps_request(
    criteria: str, labels: tuple[str, ...], params: tuple[tuple[str, JsonValue], ...]
) -> ModelRequest:
    return _steps_request(user_message(steps_text(criteria, labels)), dict(params))


def _read_steps(choice: Choice) -> tuple[str, ...]:
    return _parsed_steps(whole_text(choice))


_parsed_steps = lru_cache(maxsize=_STEPS_KEPT)(parse_steps)


def _mean_of_answers(metric: Metric, rated: Mapping[int, Grade]) -> Grade:
    """Return the grade of a conversation by its answers: the mean of their scores, and which was the lowest.

    Args:
        metric: the criterion.
        rated: the grade of each answer, by the number of its turn.
    """
    grades = list(rated.values())
    answers = [
        {**grade.detail, "turn": turn, "status": grade.status, "score": grade.score, "reason": grade.reason}
        for turn, grade in rated.items()
    ]
    lowest = min(range(len(grades)), key=lambda place: grades[place].score)
    # What the answers share is told once, in the words in which a single rating tells it.
    shared = {name: grades[0].detail[name] for name in _SHARED_BY_ANSWERS if name in grades[0].detail}
    about = {
        **shared,
        "over": metric.over,
        "window": metric.window,
        "min": {"score": grades[lowest].score, "answer": lowest + 1, "turn": list(rated)[lowest]},
        "answers": answers,
    }
    steps = grades[0].evaluation_steps
    said = grades[lowest].reason
    if len(grades) == 1 or not said:
        reason_of_answers = said
    else:
        reason_of_answers = f"answer {lowest + 1} of {len(grades)} is the lowest: {said}"
    return mean_grade(metric, grades, about, reason=reason_of_answers, steps=steps)


_SHARED_BY_ANSWERS = (
    "dimension",
    "criteria",
    "evaluation_params",
    "source_from",
    "judge",
    "strict_mode",
    "joint",
    "prompt_version",
)

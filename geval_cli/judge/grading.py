"""Turn a metric and a test case into a grade: evaluation steps, rating, verdict, explanation."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import JudgeError, ProviderError, UsageError
from geval_cli.judge.calls import (
    EXPLANATION_MAX_TOKENS,
    JudgeCalls,
    JudgeFacts,
    gather_all,
    reply_schema,
    whole_text,
)
from geval_cli.judge.estimate import (
    Grade,
    RatingEstimate,
    RatingQuestion,
    describe,
    estimate_rating,
    graded,
    mean_grade,
    normalise_rating,
    passes,
    strict_score,
)
from geval_cli.judge.metric import Judge, JudgedCase, Metric
from geval_cli.judge.prompt import (
    DIMENSION_PARAMS,
    METRICS_KEPT,
    Block,
    Criterion,
    Render,
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
from geval_cli.judge.replies import parse_steps
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
from geval_cli.plugins import extra
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, Purpose, Role, Status
from geval_cli.source.media import MEDIA_FIELDS

MOST_ITEMS = 50
"""The maximum number of items in a checklist: one reply can answer that many without being cut off."""

CHECKLIST = "checklist"
"""The key of the checklist items in a judgement's detail."""

# Requests for steps, and parsed steps, to cache. Most tests share one; rebuilding it took a tenth of the run time.
_STEPS_KEPT = 256

_OTHER_PARAMS = ("expected_output", "context", "retrieval_context")
_OF_CONVERSATIONS = ("turns", "scenario", "expected_outcome", "role")

_STEPS_SCHEMA: Mapping[str, Any] = reply_schema({"steps": {"type": "array", "items": {"type": "string"}}})


def _rating_schema_of(kind: str) -> Mapping[str, Any]:
    return reply_schema({"reason": {"type": "string"}, "score": {"type": kind}})


_WHOLE_RATING_SCHEMA, _RATING_SCHEMA = _rating_schema_of("integer"), _rating_schema_of("number")


def missed_required(detail: Mapping[str, JsonValue]) -> list[str]:
    """Return the required items that a stored checklist judgement found not met; empty for other judgements."""
    items = detail.get(CHECKLIST)
    listed = [item for item in items if isinstance(item, Mapping)] if isinstance(items, list | tuple) else []
    return [str(item.get("item", "")) for item in listed if item.get("required") and not item.get("met")]


async def grade(
    metric: Metric,
    case: JudgedCase,
    judge: Judge,
    *,
    render: Render | None = None,
    memory: JudgeFacts | None = None,
) -> Grade:
    """Have `judge` rate `case` by `metric`.

    Args:
        metric: the criterion.
        case: the output and its context.
        judge: the model that grades.
        render: the template renderer, required if the metric has a `rubric_prompt`.
        memory: what is known about judges in this run; sharing one across the run saves calls.

    Raises:
        MissingParamsError: the case lacks a parameter that the metric names; no request was sent.
        UsageError: the metric has nothing to judge by.
        JudgeError: no verdict could be read, or too few samples could.
        ProviderError: the judge could not answer.
        TemplateError: the rubric prompt cannot be rendered.
    """
    if metric.checklist:
        calls = JudgeCalls(judge, memory or JudgeFacts())
        grade: Grade = await extra("checklists").grade_checklist(metric, with_all_answers(case), calls)
        return grade
    criteria = metric_criteria(metric)
    memory = memory or JudgeFacts()
    cases = rated_cases(metric, case)
    judgings = {
        turn: _Judging(metric, item, _shown_fields(metric, item), judge, render, memory)
        for turn, item in cases.items()
    }
    if len(criteria) == 1:
        return await _rate(metric, judgings, criteria[0])
    parts = await gather_all(_rate(metric, judgings, criterion) for criterion in criteria)
    # Several criteria: the mean of their scores against one threshold, with each criterion's grade in the detail.
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
    """Rate a case by one criterion: as a whole, or all answers of its conversation concurrently."""
    if metric.over != "answers":
        return await judgings[WHOLE].grade(criterion)
    rated = await gather_all(judging.grade(criterion) for judging in judgings.values())
    return _mean_of_answers(metric, dict(zip(judgings, rated, strict=True)))


WHOLE = 0
"""The turn number that stands for a case rated as a whole."""


def rated_cases(metric: Metric, case: JudgedCase) -> Mapping[int, JudgedCase]:
    """Return the cases to rate by turn number: each answer of the conversation, or the whole case under `WHOLE`.

    Raises:
        UsageError: answers are to be rated, but the case is not a conversation.
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
    metric: Metric, case: JudgedCase, judge: Judge, *, memory: JudgeFacts
) -> Iterator[ModelRequest]:
    """Yield the requests that `grade` sends first, whatever the output: those for steps, if the judge writes them.

    There are none if the user's own prompt asks for the steps, because it may show the output.
    """
    for criteria, labels in steps_needed(metric, case):
        is_locked = memory.locked_steps(criteria, labels, judge) is not None
        if not is_locked and memory.why_no_steps(criteria, labels, judge) is None:
            yield _shared_steps_request(criteria, labels, JudgeCalls(judge, memory))


def steps_needed(metric: Metric, case: JudgedCase) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the criteria for which a judge writes steps whatever the output, with the labels of what it is shown."""
    if metric.evaluation_steps is None and metric.rubric_prompt is None:
        first = next(iter(rated_cases(metric, case).values()))
        labels = _shown_fields(metric, first).step_labels
        for criterion in metric_criteria(metric):
            yield criterion.criteria, labels


async def write_steps(criteria: str, labels: tuple[str, ...], calls: JudgeCalls) -> tuple[str, ...]:
    """Have a judge write the steps for a criterion.

    Raises:
        JudgeError: the steps could not be read.
        ProviderError: the judge could not answer.
    """
    memory, judge = calls.memory, calls.judge
    error = memory.why_no_steps(criteria, labels, judge)
    if error is not None:
        raise error
    try:
        return await calls.read(_shared_steps_request(criteria, labels, calls), _read_steps)
    except JudgeError as failure:
        if calls.usage.requests:  # not if the request was sent for another test at the same time
            memory.note_no_steps(criteria, labels, judge, failure)
        raise


def judged_texts(metric: Metric, case: JudgedCase) -> JsonValue:
    """Return the texts of `case` that the judge is shown, each with its label."""
    texts = [_texts_of(metric, item) for item in rated_cases(metric, case).values()]
    return texts if metric.over == "answers" else texts[0]


def _texts_of(metric: Metric, case: JudgedCase) -> JsonValue:
    shown = [[block.label, block.text] for block in _shown_fields(metric, case).blocks]
    if metric.rubric_prompt is None:
        return shown
    others = {
        name: param_text(name, case)
        for name in (*_OTHER_PARAMS, *(_OF_CONVERSATIONS if case.turns is not None else ()))
    }
    others |= {name: media_text(name, case) for name in MEDIA_FIELDS if getattr(case, name)}
    return [shown, resolve_input(case), as_text(case.actual_output), others, dict(case.vars)]


class _Shown(Struct, frozen=True):
    """The parts of the case that the judge is shown."""

    blocks: tuple[Block, ...]
    step_labels: tuple[str, ...]
    params: tuple[str, ...] | None
    source: Source | None


def _shown_fields(metric: Metric, case: JudgedCase) -> _Shown:
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
    memory: JudgeFacts

    async def grade(self, criterion: Criterion) -> Grade:
        calls = JudgeCalls(self.judge, self.memory)
        steps = await self._steps(criterion, calls)
        if self.metric.joint:
            # One question asks for all dimensions of the metric, and is the same for each of them. In a reply, later
            # ratings depend on earlier ones, so the texts determine which dimension comes first.
            asked = joint_criteria(self.metric)
            first = rotation(self.shown.blocks, len(asked))
            asked = asked[first:] + asked[:first]
            others = [item for item in asked if item.label != criterion.label]
            found = await gather_all(self._steps(item, calls) for item in others)
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
        source = self.shown.source
        return graded(
            self.metric,
            score,
            estimate,
            {
                "dimension": self.metric.dimension,
                "criteria": criterion.criteria,
                "evaluation_params": self.shown.params,
                "source_from": None if source is None else source.found_in,
                "judge": self.judge.label,
                "strict_mode": self.metric.strict_mode or None,
                "joint": question.joint or None,
                "prompt_version": joint_prompt_version() if question.joint else prompt_version(),
            },
            usage=calls.usage,
            latency_ms=calls.latency_ms,
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
        return await write_steps(criterion.criteria, self.shown.step_labels, calls)

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
        except (ProviderError, JudgeError) as error:  # the rating is paid for and valid without it
            return f"{in_words} (no explanation: {error.message})"
        return "\n".join(filter(None, (response.text.strip(), in_words)))


@lru_cache(maxsize=METRICS_KEPT)
def _joint_schema(labels: tuple[str, ...]) -> Mapping[str, JsonValue]:
    return reply_schema({label: {"type": "integer"} for label in labels})


def _steps_request(messages: tuple[Message, ...], params: Mapping[str, JsonValue]) -> ModelRequest:
    return ModelRequest(
        messages, params, response_schema=_STEPS_SCHEMA, role=Role.JUDGE, purpose=Purpose.STEPS
    )


def _shared_steps_request(criteria: str, labels: tuple[str, ...], calls: JudgeCalls) -> ModelRequest:
    """Return the request for steps, which all tests with these criteria share; equal calls return the same object."""
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
    """Return the grade of a conversation from its answers: the mean of their scores, and which was the lowest.

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
    # What the answers share appears once, under the same keys as for a single rating.
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

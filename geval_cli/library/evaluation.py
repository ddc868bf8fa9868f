"""Evaluate one test case or many; returns results, and raises the library's own errors."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from geval_cli.assertions.base import Outcome
from geval_cli.assertions.trace import called_steps
from geval_cli.errors import (
    ApiError,
    ConfigError,
    GevalError,
    MissingParamsError,
    PendingError,
    Problem,
    ProviderError,
    UsageError,
)
from geval_cli.extras.juries import Member, ask_jury, verdict_of_jury
from geval_cli.gateway.budget import Spending
from geval_cli.gateway.call import KEYS_OF_CASE
from geval_cli.gateway.gateway import BoundModel
from geval_cli.judge.estimate import Grade
from geval_cli.judge.metric import Judge, JudgedCase, Metric
from geval_cli.judge.prompt import COMPARED
from geval_cli.judge.source import ASSISTANT, as_text, last_words, missing_params, resolve_source
from geval_cli.library.definition import Jury, read_trace_of_case, read_turns_of_case
from geval_cli.library.records import NO_OUTPUT, Result, TestCase, given_media, is_missing, written_media
from geval_cli.library.suite import SuiteWriter
from geval_cli.providers.base import ClientModel
from geval_cli.providers.registry import accepted_audio, sees_images
from geval_cli.records import TEST_TEXTS, JsonValue, Status, TraceStep, Turn, to_json
from geval_cli.runs.session import Session, check_price, counted
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import SourceFiles
from geval_cli.source.media import FEWER_HINT, ConfigMedia, Media, too_many
from geval_cli.specs.base import ProviderSpec, describe_value
from geval_cli.suite.tests import output_of


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A criterion and its judge."""

    metric: Metric
    judge: ProviderSpec | ClientModel | Judge | Jury


async def evaluate_case(judges: Session, evaluation: Evaluation, case: TestCase) -> Result:
    """Return the verdict on one test case.

    Raises:
        MissingParamsError: the case lacks a named parameter; no request was sent.
        UsageError: the judge cannot be called at all, or `case` is not a TestCase.
        ApiError: the judge could not answer.
        JudgeError: no verdict could be read.
    """
    with counted() as spending:
        return await _evaluated(judges, evaluation, case, spending)


async def _evaluated(judges: Session, evaluation: Evaluation, case: TestCase, spending: Spending) -> Result:
    _check_case(case)
    absent: dict[str, Any] = {
        item.name: item.default for item in fields(case) if is_missing(getattr(case, item.name))
    }
    case = _as_data(replace(case, **absent))  # empty table cells count as missing, as in a suite
    started = time.perf_counter()
    held = _media_of(case, evaluation)  # kept alive until the verdict
    turns = _turns(case)
    texts: dict[str, Any] = {name: getattr(case, name) for name in TEST_TEXTS}
    texts |= {name: _texts(name, texts[name]) for name in ("context", "retrieval_context")}
    texts["input"] = case.input or last_words(turns)
    metric = evaluation.metric
    judged = JudgedCase(
        images=tuple(item.marker for item in held if item.kind == "image"),
        audio=tuple(item.marker for item in held if item.kind == "audio"),
        actual_output=case.actual_output if case.actual_output is not NO_OUTPUT else output_of(turns[-1]),
        rendered_prompt=case.input,  # the source for a dimension if there is no context
        turns=turns or None,
        trace=_trace(case),
        shows_trace=case.trace is not None,
        **texts,
    )
    if missing := missing_params(metric.evaluation_params, judged):
        raise MissingParamsError(missing)
    source = resolve_source(judged)
    if metric.dimension in COMPARED and not held and not source.text and source.knowledge is None:
        raise MissingParamsError(
            ("input",), hint=f"{metric.dimension} compares the output with it, or with a context"
        )
    asked = [(judge, _find_judge(judges, judge)) for judge in _all_judges(evaluation)]
    jury = evaluation.judge
    if isinstance(jury, Jury):
        members = [
            Member(_id_of(judge), found.label, partial(judges.grade, metric, judged, found))
            for judge, found in asked
        ]
        outcome = verdict_of_jury(await ask_jury(members), jury.rules)
        metadata = {**outcome.detail, "score_range": tuple(outcome.detail["score_range"])}
        metadata["usage"] = to_json(spending.usage)  # includes judges without a verdict
        return _result(metric, outcome, metadata, started)
    try:
        grade = await judges.grade(metric, judged, asked[0][1])
    except ProviderError as error:
        raise ApiError(error.message, status=error.status, body=error.body, hint=error.hint) from error
    return _result(metric, grade, _metadata(grade.detail), started)


def check_prices(judges: Session, evaluation: Evaluation) -> None:
    """Check that the prices of judges are known, so that a cost limit can be enforced.

    Raises:
        UsageError: a price is unknown, or the judge cannot be called at all. Judges that are objects of the program
            are not checked: they report their own cost.
    """
    for judge in _all_judges(evaluation):
        found = _find_judge(judges, judge) if isinstance(judge, ProviderSpec | ClientModel) else None
        if isinstance(found, BoundModel):
            check_price(found, "set `price: {input: USD, output: USD}`, per million tokens, in its `config`")


async def evaluate_cases(
    judges: Session,
    evaluation: Evaluation,
    cases: Sequence[TestCase],
    concurrency: int,
    *,
    evaluate: Callable[[Session, Evaluation, TestCase], Awaitable[Result]] = evaluate_case,
) -> list[Result | GevalError]:
    """Return the result or the error of each case, in order; judge at most `concurrency` cases at a time.

    Raises:
        UsageError: the judge cannot be called at all, `concurrency` is below 1, or one of `cases` is not a TestCase.
    """
    if concurrency < 1:
        raise UsageError(f"concurrency must be at least 1, found {concurrency}")
    for case in cases:
        _check_case(case)
    for judge in _all_judges(evaluation):
        _find_judge(judges, judge)
    outcomes: dict[int, Result | GevalError] = {}
    waiting = enumerate(cases)

    async def work() -> None:
        for index, case in waiting:
            try:
                outcomes[index] = await evaluate(judges, evaluation, case)
            except GevalError as error:
                outcomes[index] = error

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(cases))):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [outcomes[index] for index in range(len(outcomes))]


async def evaluate_in_batches(
    judges: Session, evaluation: Evaluation, cases: Sequence[TestCase], concurrency: int
) -> list[Result | GevalError]:
    """Return the same as `evaluate_cases`, with batches of judge requests: hours later, at half the price.

    Raises:
        UsageError: as for `evaluate_cases`, or no judge has a batch API.
        ProviderError: a provider cannot report on its batches; another call resumes them.
    """
    driver = judges.gateway.batches
    if driver is None or not any(
        judges.has_batches(_find_judge(judges, judge)) for judge in _all_judges(evaluation)
    ):
        hint = "use an openai:, anthropic:, google:, mistral:, together: or groq: model, or leave `batch` out"
        raise UsageError("the judge has no batch API", hint=hint)

    async def evaluate(judges: Session, evaluation: Evaluation, case: TestCase) -> Result:
        keys: list[str] = []
        KEYS_OF_CASE.set(keys)
        result = await evaluate_case(judges, evaluation, case)
        judges.gateway.settle(keys)
        return result

    outcomes: dict[int, Result | GevalError] = {}
    waiting = list(range(len(cases)))
    while True:
        judges.gateway.begin_pass()
        some = [cases[index] for index in waiting]
        found = await evaluate_cases(judges, evaluation, some, concurrency, evaluate=evaluate)
        outcomes.update(zip(waiting, found, strict=True))
        waiting = [index for index in waiting if isinstance(outcomes[index], PendingError)]
        if not waiting:
            await driver.finish()
            return [outcomes[index] for index in range(len(cases))]
        await driver.between_passes(_wait)


async def _wait(delay_s: float) -> bool:
    await asyncio.sleep(delay_s)
    return False


def _check_case(case: object) -> None:
    if not isinstance(case, TestCase):
        found = type(case).__name__
        raise UsageError(
            f"a test case must be a TestCase, found {found}", hint="TestCase(input=..., actual_output=...)"
        )


def _as_data(case: TestCase) -> TestCase:
    """Return a case whose output, trace and texts are JSON data, as in a suite.

    Raises:
        UsageError: one of them is not, such as an answer that was not awaited.
    """
    writer = SuiteWriter()
    data: dict[str, Any] = {}
    for name in ("actual_output", "trace", *TEST_TEXTS):
        value = getattr(case, name)
        if name in ("context", "retrieval_context"):
            value = _texts(name, value)
        if name == "trace":
            value = _written(value)
        if value is not NO_OUTPUT:
            data[name] = writer.plain(value, (name,))
    if writer.problems:
        raise UsageError.of("the test case is not valid", writer.problems)
    return replace(case, **data)


def _all_judges(evaluation: Evaluation) -> Sequence[ProviderSpec | ClientModel | Judge]:
    judge = evaluation.judge
    return judge.members if isinstance(judge, Jury) else (judge,)


def _id_of(judge: ProviderSpec | ClientModel | Judge) -> str:
    if isinstance(judge, ProviderSpec):
        return judge.public_id
    return judge.model if isinstance(judge, ClientModel) else judge.label


def _find_judge(judges: Session, judge: ProviderSpec | ClientModel | Judge) -> Judge:
    if isinstance(judge, ClientModel):
        return judges.connect(judge)
    return judges.find(judge) if isinstance(judge, ProviderSpec) else judges.adopt(judge)


def _media_of(case: TestCase, evaluation: Evaluation) -> list[Media]:
    """Return the images and recordings of a test case.

    Raises:
        UsageError: a file cannot be read, or the judge does not support images or this audio.
    """
    found = ConfigMedia()
    files = SourceFiles(Path(), TRUSTED)
    held: list[Media] = []
    for given, kind, what in ((case.images, "image", "an image"), (case.audio, "audio", "audio")):
        try:
            items = [found.find(written_media(item, kind), files, None) for item in given_media(given)]
        except ConfigError as error:
            raise UsageError.of(f"{what} cannot be used", error.problems) from error
        for item in items:
            if item.kind != kind:
                hint = f"pass it as `{'images' if item.kind == 'image' else 'audio'}`"
                raise UsageError(f"`{item.name}` is not {what}", hint=hint)
        held += items
    if problem := too_many(held):
        raise UsageError(problem, hint=FEWER_HINT)
    has_images = any(item.kind == "image" for item in held)
    sounds = {item.media_type for item in held if item.kind == "audio"}
    for judge in _all_judges(evaluation) if held else ():
        if isinstance(judge, ClientModel):
            continue
        spec = judge if isinstance(judge, ProviderSpec) else None
        if has_images and (spec is None or not sees_images(spec)):
            hint = "use a model from OpenAI, Anthropic or Google"
            raise UsageError(f"the judge {_id_of(judge)} cannot see images", hint=hint)
        if sounds and (spec is None or not sounds <= accepted_audio(spec)):
            hint = "use Gemini, or a model with OpenAI's chat API (wav and mp3)"
            raise UsageError(f"the judge {_id_of(judge)} cannot hear this audio", hint=hint)
    return held


def _trace(case: TestCase) -> tuple[TraceStep, ...] | None:
    """Return the trace of a case, or else the tool calls in its output; None if nothing is known.

    Raises:
        UsageError: the trace is not valid.
    """
    if case.trace is None:
        return None if case.actual_output is NO_OUTPUT else (tuple(called_steps(case.actual_output)) or None)
    problems: list[Problem] = []
    found = read_trace_of_case(_written(case.trace), problems)
    if problems:
        raise UsageError.of("the trace of the test case is not valid", problems)
    return found


def _turns(case: TestCase) -> tuple[Turn, ...]:
    """Return the conversation of a case, with its output at the end; empty for a case without turns.

    Raises:
        UsageError: the turns are not valid, or there is neither a conversation nor an output.
    """
    has_output = case.actual_output is not NO_OUTPUT
    if case.actual_output is None:
        hint = 'return it from the function that makes it; JSON\'s null is "null"'
        raise UsageError("`actual_output` is None", hint=hint)
    if not case.turns:
        if not has_output:
            raise UsageError("a test case needs `actual_output`, or `turns` that end with an answer")
        return ()
    problems: list[Problem] = []
    turns = read_turns_of_case(_written(case.turns), problems)
    if problems:
        raise UsageError.of("the test case is not valid", problems)
    is_whole = turns[-1].role == ASSISTANT
    if is_whole and has_output:
        raise UsageError(
            "`actual_output` cannot be given with `turns` that end with an answer: that answer is judged"
        )
    if not is_whole and not has_output:
        raise UsageError("the last turn has no answer", hint="add the answer, or give `actual_output`")
    return turns if is_whole else (*turns, Turn(ASSISTANT, as_text(case.actual_output)))


def _written(items: object) -> JsonValue:
    """Return turns or steps as in a config; anything else is left for the reader to refuse."""
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        return items
    return [dict(item) if isinstance(item, Mapping) else item for item in items]


def _texts(name: str, value: object) -> str | tuple[Any, ...] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise UsageError(f"`{name}` must be text or a list of texts, found {describe_value(value)}")
    return tuple(value)


def _result(
    metric: Metric, verdict: Grade | Outcome, metadata: dict[str, JsonValue], started: float
) -> Result:
    assert verdict.score is not None
    assert verdict.threshold is not None
    return Result(
        metric=f"{metric.name} [GEval]",
        score=verdict.score,
        success=verdict.status is Status.PASSED,
        threshold=verdict.threshold,
        reason=verdict.reason,
        latency_ms=(time.perf_counter() - started) * 1000,
        metadata=metadata,
    )


def _metadata(detail: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a grade's detail with the library's names for its entries."""
    rest = {name: value for name, value in detail.items() if name not in {"rating", "latency_ms"}}
    found: dict[str, JsonValue] = {"raw_score": detail["rating"], **rest}
    found["score_range"] = tuple(detail["score_range"])
    if detail.get("source_from") == "prompt":
        found["source_from"] = "input"
    if "answers" in detail:
        found["answers"] = [_metadata(answer) for answer in detail["answers"]]
    if "parts" in detail:
        found["parts"] = [_metadata(part) for part in detail["parts"]]
    return found

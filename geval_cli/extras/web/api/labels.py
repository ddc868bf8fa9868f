"""`/api/runs/{id}/labels`: outputs to rate, the human labels of a run, and their comparison with the judge."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from msgspec import Struct
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt

from geval_cli.errors import UsageError
from geval_cli.extras.run_pages import ShownCriterion
from geval_cli.extras.trust.labelling import (
    GivenLabel,
    LabelChoice,
    Output,
    Reviewed,
    Sheet,
    label_row,
    outputs_to_label,
    pairs_to_label,
    removed_run,
    review,
    scales_of,
    stored_label,
)
from geval_cli.extras.trust.labels import UNIT_SCALE, Scale, draw_name
from geval_cli.extras.trust.matching import judged_items
from geval_cli.extras.web.api.runs import RunId
from geval_cli.extras.web.live_runs import runs_of
from geval_cli.extras.web.problems_json import RefusedError, answered, described
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.json_file import json_text
from geval_cli.runs.stored import load_report
from geval_cli.source.problems import hint_among
from geval_cli.store.runs import RunLabels, RunStore, StoredLabel

_NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 404, 409, 422
_WORDS = {"pass": 1.0, "fail": 0.0}
_MOST_AT_ONCE = 1000
_NUMBER = r"-?\d{1,9}(\.\d{1,9})?"


def _whole(value: object) -> object:
    """Return 8.0 as 8, since JSON does not distinguish the two."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class LabelAsked(BaseModel):
    """A label by one annotator for one metric of one output."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: str = Field(
        min_length=1, max_length=200, description="Of the result: test, repeat, column.", examples=["0.0.0"]
    )
    metric: str = Field(min_length=1, max_length=1000, description="Name of the metric in the config.")
    label: Literal["pass", "fail"] | StrictInt | StrictFloat = Field(
        description="`pass`, `fail`, or a number on the scale."
    )
    scale: tuple[StrictInt | StrictFloat, StrictInt | StrictFloat] | None = Field(
        None,
        description="Lowest and highest label. Default: the scale of the kept labels, else 0 to 1.",
    )
    annotator: str = Field("", max_length=200, description="Name of the annotator; may be empty.")
    note: str = Field("", max_length=20_000, description="Why.")
    seed: Annotated[StrictInt, Field(ge=0, le=2**53), BeforeValidator(_whole)] | None = Field(
        None, description="Seed of the random draw of this output."
    )
    output_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 of the text that was read. A label for a different text is refused."
    )


class LabelsAsked(BaseModel):
    """Labels to store, all or none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: list[LabelAsked] = Field(min_length=1, max_length=_MOST_AT_ONCE)


class SheetAsked(BaseModel):
    """Which outputs to rate, by which annotator, on which scale."""

    model_config = ConfigDict(frozen=True)

    metric: list[str] = Field(
        [], max_length=100, description="Only these metrics. Default: all judged metrics."
    )
    draw: int | None = Field(None, ge=1, le=2**31, description="This many random outputs. Default: all.")
    against: str = Field(
        "",
        max_length=200,
        description="An earlier run: returns both outputs of each test, and `draw` counts tests.",
    )
    seed: int = Field(0, ge=0, le=2**53, description="Of the draw.")
    annotator: str = Field("", max_length=200, description="Annotator whose labels are included.")
    scale: str | None = Field(
        None, pattern=f"^{_NUMBER},{_NUMBER}$", description="Lowest and highest label, such as `1,5`."
    )


class LabelsAnswer(Struct, frozen=True):
    """The stored labels of a run, each as a line of a label file."""

    run_id: str
    labels: list[JsonValue]


class KeptAnswer(Struct, frozen=True):
    """The number of labels stored; `replaced` of them changed an earlier label."""

    kept: int
    replaced: int


class SheetMetric(Struct, frozen=True):
    """A metric to rate, with its scale and the criteria and steps that the judge was given."""

    name: str
    scale: tuple[float, float]
    criteria: str
    steps: tuple[str, ...]


class SheetOutput(Struct, frozen=True):
    """One metric of one output to rate, without its text; `label` and `note` are the annotator's own so far.

    The output is from run `run_id`, which must not be shown to annotators.
    """

    id: str
    run_id: str
    metric: str
    test_index: int
    repeat_index: int
    column: int
    output_sha256: str
    label: JsonValue = None
    note: str = ""


class SheetAnswer(Struct, frozen=True):
    """The outputs to rate, in the order in which to show them, without the judge's verdicts."""

    run_id: str
    annotator: str
    draw: str
    metrics: list[SheetMetric]
    outputs: list[SheetOutput]


class ReviewAnswer(Struct, frozen=True):
    """Human labels next to the judge's scores, disagreements first.

    `flipped` counts the rows whose verdicts differ, `broken` those that the judge could not score.
    """

    run_id: str
    flipped: int
    broken: int
    rows: list[Reviewed]


LABEL_ANSWERS: tuple[type[Struct], ...] = (LabelsAnswer, KeptAnswer, SheetAnswer, ReviewAnswer)

router = APIRouter(prefix="/api/runs/{id}", tags=["Labels"])


@router.get(
    "/labels",
    summary="Read labels",
    operation_id="read_labels",
    responses={200: answered(LabelsAnswer), **described(401, 403, 404, 422, 503)},
)
async def read_labels(request: Request, run_id: RunId) -> Response:
    """Return the human labels of a run's outputs, oldest first; works for a removed run too."""
    return _json(await asyncio.to_thread(_kept, runs_of(request), run_id))


@router.get(
    "/labels.jsonl",
    summary="Download labels",
    operation_id="download_labels",
    response_class=Response,
    responses={
        200: {
            "description": "File of labels.",
            "content": {"application/jsonl": {"schema": {"type": "string"}}},
        },
        **described(401, 403, 404, 422, 503),
    },
)
async def download_labels(request: Request, run_id: RunId) -> Response:
    """Return the labels of a run as a file for `geval agree` and `geval label --import`."""
    found = await asyncio.to_thread(_kept, runs_of(request), run_id)
    text = "".join(f"{json_text(row)}\n" for row in found.labels)
    name = {"content-disposition": f'attachment; filename="labels-{found.run_id}.jsonl"'}
    return Response(text, headers=name, media_type="application/jsonl")


@router.post(
    "/labels",
    summary="Keep labels",
    operation_id="keep_labels",
    responses={200: answered(KeptAnswer), **described(400, 401, 403, 404, 408, 409, 413, 415, 422, 503)},
)
async def keep_labels(request: Request, run_id: RunId, asked: LabelsAsked) -> Response:
    """Store labels, all or none. They replace labels by the same annotators for the same outputs and metrics."""
    async with (
        request.app.state.saving
    ):  # if two requests choose a scale at once, the second sees the first's
        return _json(await asyncio.to_thread(_keep, runs_of(request), run_id, asked.labels))


@router.get(
    "/labels/sheet",
    summary="List outputs to rate",
    operation_id="list_outputs_to_rate",
    responses={200: answered(SheetAnswer), **described(401, 403, 404, 409, 422, 503)},
)
async def list_outputs_to_rate(
    request: Request,
    run_id: RunId,
    asked: Annotated[SheetAsked, Query()],
) -> Response:
    """Return the outputs to rate, without verdicts. Draws the same sample as `geval label --draw --seed`."""
    choice = LabelChoice(tuple(asked.metric), asked.draw, asked.seed)
    names = [name for name in (asked.against, run_id) if name]
    sheet = asyncio.to_thread(
        sheet_of, runs_of(request), names, choice, asked.annotator.strip(), _scale(asked.scale)
    )
    return _json(await sheet)


@router.get(
    "/labels/review",
    summary="Compare labels with the judge",
    operation_id="review_labels",
    responses={200: answered(ReviewAnswer), **described(401, 403, 404, 422, 503)},
)
async def review_labels(request: Request, run_id: RunId) -> Response:
    """Return human labels and judge scores of the same outputs, disagreements first."""
    return _json(await asyncio.to_thread(reviewed_labels, runs_of(request), run_id))


def sheet_of(
    runs: RunStore, names: Sequence[str], choice: LabelChoice, annotator: str, scale: Scale | None = None
) -> SheetAnswer:
    """Return the outputs to rate, with the annotator's labels so far.

    `names` has one run, or an earlier run and the run to pair with it.

    Raises:
        UsageError: there is no such run or metric.
        RefusedError: labels on another scale are stored.
    """
    *earlier, report = [load_report(runs, name) for name in names]
    if earlier:
        sheet = pairs_to_label(earlier[0], report, choice)
    else:
        sheet = outputs_to_label(report.results(), choice, report.run.id)
    kept = [(one.run.id, item) for one in (*earlier, report) for item in runs.labels().of_run(one.run.id)]
    metrics = dict.fromkeys(output.metric for output in sheet.outputs)
    try:
        scales = scales_of(metrics, [item for _, item in kept], scale)
    except UsageError as error:
        raise RefusedError(error.message, status=_CONFLICT, hint=error.hint) from error
    own = {(name, item.case_id, item.metric): item for name, item in kept if item.annotator == annotator}
    return SheetAnswer(
        run_id=report.run.id,
        annotator=annotator,
        draw="" if choice.count is None else draw_name(choice.seed),
        metrics=[_sheet_metric(name, scales[name], sheet) for name in metrics],
        outputs=[
            _sheet_output(output, own.get((output.run, output.id, output.metric))) for output in sheet.outputs
        ],
    )


def _sheet_metric(name: str, scale: Scale, sheet: Sheet) -> SheetMetric:
    criterion = sheet.criteria.get(name, ShownCriterion())
    return SheetMetric(name, scale, criterion.text, criterion.steps)


def _sheet_output(output: Output, kept: StoredLabel | None) -> SheetOutput:
    row = own_row(kept, output.output_sha256)
    return SheetOutput(
        id=output.id,
        run_id=output.run,
        metric=output.metric,
        test_index=output.test_index,
        repeat_index=output.repeat_index,
        column=output.column,
        output_sha256=output.output_sha256,
        label=row.get("label"),
        note=str(row.get("note") or ""),
    )


def own_row(kept: StoredLabel | None, output_sha256: str) -> Mapping[str, JsonValue]:
    """Return the row of a label; empty if there is none or if it was given to a different text."""
    if kept is None or kept.output_sha256 != output_sha256:
        return {}
    row: Mapping[str, JsonValue] = kept.row
    return row


def reviewed_labels(runs: RunStore, run_id: str) -> ReviewAnswer:
    """Return the labels of a run next to the judge's scores.

    Raises:
        UsageError: there is no such run.
    """
    report = load_report(runs, run_id)
    kept = runs.labels().of_run(report.run.id)
    rows = review(report.results(), kept) if kept else []
    flipped = sum(bool(row.is_flipped) for row in rows)
    broken = sum(row.score is None for row in rows)
    return ReviewAnswer(report.run.id, flipped, broken, rows)


def _kept(runs: RunStore, name: str) -> LabelsAnswer:
    run_id = removed_run(runs, name) or runs.find(name).run.id
    return LabelsAnswer(run_id, [item.row for item in runs.labels().of_run(run_id)])


def _keep(runs: RunStore, name: str, asked: Sequence[LabelAsked]) -> KeptAnswer:
    run_id = runs.find(name).run.id
    labels = runs.labels()
    writer = _LabelWriter(run_id, runs.cases(run_id, {label.id for label in asked}), labels)
    stored = [writer.stored(label, f"#/labels/{number}") for number, label in enumerate(asked)]
    places: dict[tuple[str, str, str], int] = {}
    for number, item in enumerate(stored):
        first = places.setdefault((item.case_id, item.metric, item.annotator), number)
        if first != number:
            message = f"the labels #/labels/{first} and #/labels/{number} are by one annotator for one output"
            raise _refused(message, _UNPROCESSABLE, "send one label per output, metric and annotator")
    before = [labels.find(run_id, item.case_id, item.metric, item.annotator) for item in stored]
    labels.put(run_id, stored)
    pairs = zip(before, stored, strict=True)
    replaced = sum(old is not None and old.row["label"] != new.row["label"] for old, new in pairs)
    return KeptAnswer(len(stored), replaced)


class _LabelWriter:
    """Checks the labels of a request against the run they are for."""

    def __init__(self, run_id: str, results: Mapping[str, CaseResult], labels: RunLabels) -> None:
        self._run_id, self._results, self._labels = run_id, results, labels
        kept = labels.of_run(run_id)
        self._scales = scales_of({item.metric for item in kept}, kept)

    def stored(self, asked: LabelAsked, pointer: str) -> StoredLabel:
        """Return a label in its stored form. `pointer` is its JSON pointer in the request's body, for messages.

        Raises:
            RefusedError: the run has no such output or metric, the output was a different text, or the label is not on
                the scale.
        """
        result = self._results.get(asked.id)
        item = None if result is None or result.output is None else next(judged_items([result]), None)
        if item is None:
            hint = "list what can be rated with `GET /api/runs/{id}/labels/sheet`"
            raise _refused(f"the run has no output {asked.id} to rate ({pointer}/id)", _NOT_FOUND, hint)
        if asked.metric not in item.scores:
            hint = hint_among(asked.metric, sorted(item.scores))
            message = f"the output {asked.id} has no metric {asked.metric} ({pointer}/metric)"
            raise _refused(message, _NOT_FOUND, hint)
        if asked.output_sha256 not in (None, item.output_sha256):
            hint = "read the run's current text, then rate it"
            raise _refused(f"this label was made for another output ({pointer})", _CONFLICT, hint)
        scale = self._scale(asked, pointer)
        label = asked.label
        low, high = scale
        is_word = isinstance(label, str)
        value = _WORDS[label] if isinstance(label, str) else float(label)
        if (is_word and scale != UNIT_SCALE) or not low <= value <= high:
            hint = "send `pass`, `fail` or a number from 0 to 1" if scale == UNIT_SCALE else "send a number"
            message = f"{label} is not a label from {low:g} to {high:g} ({pointer}/label)"
            raise _refused(message, _UNPROCESSABLE, hint)
        given = GivenLabel(
            value,
            scale,
            asked.annotator.strip(),
            asked.note,
            "" if asked.seed is None else draw_name(asked.seed),
        )
        earlier = self._labels.find(self._run_id, item.id, asked.metric, given.annotator)
        return stored_label(label_row(item, asked.metric, self._run_id, given), earlier)

    def _scale(self, asked: LabelAsked, pointer: str) -> Scale:
        wanted = None if asked.scale is None else (float(asked.scale[0]), float(asked.scale[1]))
        if wanted is not None and not wanted[0] < wanted[1]:
            hint = "write the lowest label, then the highest, for example [1, 5]"
            raise _refused(f"this is not a scale ({pointer}/scale)", _UNPROCESSABLE, hint)
        known = self._scales.setdefault(asked.metric, wanted or UNIT_SCALE)
        if wanted not in (None, known):
            low, high = known
            message = f"labels of {asked.metric} from {low:g} to {high:g} are kept for this run"
            raise _refused(f"{message} ({pointer}/scale)", _CONFLICT, "use that scale: a metric has only one")
        return known


def _scale(text: str | None) -> Scale | None:
    if text is None:
        return None
    low, high = map(float, text.split(","))
    if low >= high:
        hint = "write the lowest label, then the highest, for example `scale=1,5`"
        raise _refused(f"{text} is not a scale", _UNPROCESSABLE, hint)
    return low, high


def _refused(message: str, status: int, hint: str) -> RefusedError:
    return RefusedError(message, status=status, hint=hint)


def _json(value: Struct) -> Response:
    return Response(json_text(value), media_type="application/json")

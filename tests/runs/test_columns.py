"""The columns of a run are the same however it came about and whenever it is read; `baseline` names one of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.stored_runs import write_config, write_replies

from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.events import CaseFinished, RunEvent
from geval_cli.records import ColumnSummary, RunStatus, run_summary_from_json, to_json
from geval_cli.report.report import RunReport
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import find_run
from geval_cli.runs.stored import load_report
from geval_cli.store.state import State, open_state

PROMPTS = [{"label": label, "raw": f"{label}: {{{{ x }}}}"} for label in ("brief", "polite", "long")]
LABELS = "columns: `brief × small`, `polite × small`, `long × small`, `brief × large`, `polite × large`, `long × large`"  # noqa: RUF001


def config_of(folder: Path, **keys: Any) -> Path:
    """Three prompts with two models, eight tests; the large model knows more, and one test breaks the small one."""
    small = write_replies(
        folder,
        "small.json",
        [
            {"match": "x7", "error": {"status": 400, "message": "no"}},
            {"match": "long: x1", "reply": "yes"},
            {"default": "no"},
        ],
    )
    large = write_replies(folder, "large.json", [{"match": "brief: x2", "reply": "no"}, {"default": "yes"}])
    providers = [{"id": small, "label": "small"}, {"id": large, "label": "large"}]
    checks = [{"type": "contains", "value": "yes", "metric": "right"}]
    tests = [{"vars": {"x": f"x{number}"}, "assert": checks} for number in range(8)]
    return write_config(folder, "suite.json", tests, prompts=PROMPTS, providers=providers, **keys)


def run(config: Path, state: State, *, cases: int | None = None, **options: Any) -> RunReport:
    """Run `config`; stop it after so many `cases`."""
    prepared, stop, seen = prepare(RunRequest(config, {}, repeats=2, **options)), StopSignal(), 0
    resumed = find_run(prepared, state.runs) if prepared.request.resume_from else None

    def listen(event: RunEvent) -> None:
        nonlocal seen
        seen += isinstance(event, CaseFinished)
        if cases is not None and seen >= cases:
            stop.request(StopReason.SIGINT)

    return asyncio.run(run_evaluation(prepared, state, listen=listen, stop=stop, resumed=resumed))


def judged(columns: tuple[ColumnSummary, ...]) -> list[ColumnSummary]:
    """The columns without what depends on where an answer came from."""
    return [replace(column, usage={}, latency_ms=ColumnSummary("", "", "").latency_ms) for column in columns]


def test_a_resumed_run_has_the_columns_of_a_whole_one(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with open_state(tmp_path / ".geval", {}) as state:
        whole = run(config, state)
        half = run(config, state, cases=20)
        assert half.run.status is RunStatus.INTERRUPTED
        assert half.summary.columns != whole.summary.columns
        resumed = run(config, state, resume_from=half.run.id)

        assert resumed.run.status is RunStatus.COMPLETED
        assert judged(resumed.summary.columns) == judged(whole.summary.columns)
        assert load_report(state.runs, resumed.run.id).summary.columns == resumed.summary.columns


def test_the_columns_say_what_was_found(tmp_path: Path) -> None:
    with open_state(tmp_path / ".geval", {}) as state:
        columns = run(config_of(tmp_path), state).summary.columns

    assert [(item.passed, item.failed, item.errored) for item in columns] == [
        (0, 14, 2),
        (0, 14, 2),
        (2, 12, 2),
        (14, 2, 0),
        (16, 0, 0),
        (16, 0, 0),
    ]
    assert [item.vs_first and item.vs_first.metrics["right"].verdict for item in columns] == [
        None,
        "identical",  # the small model says the same, however it is asked
        "undecided",
        "undecided",
        "undecided",
        "undecided",
    ]
    polite = columns[4].vs_first
    assert polite is not None
    assert (polite.metrics["right"].delta.value, polite.metrics["right"].delta.clusters) == (1.0, 7)
    assert polite.metrics["right"].delta.p == 2 / 2**7
    assert columns[3].pass_hat_k["2"].value == 7 / 8


def test_a_run_that_died_gets_its_columns_when_it_is_read(tmp_path: Path) -> None:
    with open_state(tmp_path / ".geval", {}) as state:
        report = run(config_of(tmp_path, baseline="polite x large"), state)
        wanted = report.summary.columns
        assert [item.vs_first is None for item in wanted] == [False] * 4 + [True, False]

        died = replace(report.run, id="20200101-000000-dead", status=RunStatus.RUNNING)
        state.runs.begin(died, None)
        for result in report.results():
            state.runs.add(died.id, result).result()
        assert load_report(state.runs, died.id).summary.columns == wanted


def test_columns_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    with open_state(tmp_path / ".geval", {}) as state:
        summary = run(config_of(tmp_path), state).summary
    written = to_json(summary)
    written["columns"][0]["usage"]["a role of tomorrow"] = {"requests": 1}
    read = run_summary_from_json(written)

    assert read.columns[1:] == summary.columns[1:]
    assert read.columns[0].metrics == summary.columns[0].metrics


def problems_of(folder: Path, baseline: Any, **options: Any) -> tuple[Problem, ...]:
    try:
        return prepare(RunRequest(config_of(folder, baseline=baseline), {}, **options)).warnings
    except ConfigError as error:
        return error.problems


@pytest.mark.parametrize(
    ("baseline", "message", "hint", "note"),
    [
        (
            "something else",
            "there is no prompt, provider or column called `something else`",
            "write the label of a column, a run's id, `latest` or a results file",
            LABELS,
        ),
        (
            "polite x larg",
            "there is no prompt, provider or column called `polite x larg`",
            "did you mean `polite x large`?",
            LABELS,
        ),
        (
            "polite",
            "`baseline: polite` matches 2 columns, but must match one",
            "write one of their labels, such as `polite x small`",
            "columns: `polite × small`, `polite × large`",  # noqa: RUF001
        ),
    ],
)
def test_a_baseline_that_is_not_one_column_is_refused(
    tmp_path: Path, baseline: str, message: str, hint: str | None, note: str
) -> None:
    (problem,) = problems_of(tmp_path, baseline)

    assert problem.severity is Severity.ERROR
    assert (problem.message, problem.notes) == (message, (note,))
    assert hint is None or problem.hint == hint
    assert problem.location is not None
    assert problem.location.line == 1


def test_a_baseline_that_a_filter_left_out_is_a_warning(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "polite x small", filter_providers="large")

    assert problem.severity is Severity.WARNING
    assert problem.message == "there is no prompt, provider or column called `polite x small`"


@pytest.mark.parametrize("name", ["latest", "latest~2", "20261122-0", "before.json", "results/old.jsonl"])
def test_what_is_no_column_may_be_a_run(tmp_path: Path, name: str) -> None:
    assert problems_of(tmp_path, name) == ()


@pytest.mark.parametrize("baseline", [3, ["polite"], {"label": "polite"}, True, ""])
def test_a_baseline_is_text(tmp_path: Path, baseline: Any) -> None:
    (problem,) = problems_of(tmp_path, baseline)

    assert problem.message.startswith("`baseline` must be ")


@pytest.mark.parametrize("baseline", [3, ["polite"]])
def test_in_the_other_dialect_too(tmp_path: Path, baseline: Any) -> None:
    config = config_of(tmp_path, baseline=baseline, dialect="promptfoo")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(config, {}))

    assert [problem.message.split(",")[0] for problem in caught.value.problems] == ["`baseline` must be text"]
    assert prepare(
        RunRequest(config_of(tmp_path, baseline="long x small", dialect="promptfoo"), {})
    ).suite.baseline

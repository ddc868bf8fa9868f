"""A made-up run with every kind of result, for tests of displayed output."""

import io
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace
from rich.console import Console

from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Column,
    ErrorInfo,
    JsonValue,
    MetricSummary,
    ProviderRef,
    RenderedPrompt,
    Role,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
    Usage,
)
from geval_cli.report.console import make_console
from geval_cli.report.report import RunReport

STEPS = [
    "Compare the summary with the policy, claim by claim.",
    "Note every claim that the policy does not support, and every rule of the policy that is missing although the"
    " question asks for it.",
    "Give a rating from 1 to 5.",
]
COLUMNS = (Column(0, "short", "openai:gpt-4o"), Column(1, "friendly", "openai:gpt-4o"))
RUN = RunRecord(
    id="20261121-214544-k3f9",
    status=RunStatus.COMPLETED,
    started_at="2026-11-21T21:45:44.000+00:00",
    finished_at="2026-11-21T21:46:00.210+00:00",
    duration_ms=16_210.0,
    tool_version="0.1.0",
    config_path="examples/configs/vacation.yaml",
    config_digest="5f0c",
    config={"tests": []},
    columns=COLUMNS,
)
SUMMARY = RunSummary(
    total=10,
    passed=6,
    failed=1,
    errored=2,
    not_evaluated=1,
    pass_rate=6 / 7,
    metrics={
        "consistency": MetricSummary(0.8012, 5, 1, (0.5123, 1.0)),
        "tone": MetricSummary(None, 0, 2),
    },
    usage={
        Role.GENERATION: Usage(10, 12_345, 2_310, 4, 0.0123),
        Role.JUDGE: Usage(14, 40_100, 900, 6, None),
    },
    pass_interval=(0.4868, 0.9743),
)


class TerminalStream(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def console_of(stream: io.StringIO, width: int, **environ: str) -> Console:
    return make_console(stream, environ={"TERM": "xterm-256color", **environ}, width=width)


def make_case(
    test: int = 0, column: Column = COLUMNS[0], status: Status = Status.PASSED, **changes: object
) -> CaseResult:
    values: dict[str, object] = {
        "id": f"{test}-{column.index}",
        "test_index": test,
        "repeat_index": 0,
        "column": column.index,
        "description": None,
        "prompt": RenderedPrompt(column.prompt_label, column.prompt_label, "How much vacation do I have?"),
        "provider": ProviderRef(column.provider_label, column.provider_label),
        "vars": {"question": "How many days?", "country": "DE"},
        "output": "You have 28 days of paid vacation a year, and you may carry five of them over to the next one.",
        "status": status,
        "score": 0.875,
    }
    return CaseResult(**{**values, **changes})  # type: ignore[arg-type]


def make_judged(
    status: Status, score: float | None, *, detail: Mapping[str, JsonValue] | None = None, **changes: object
) -> AssertionResult:
    values: dict[str, object] = {
        "type": "g-eval",
        "metric": "consistency",
        "status": status,
        "score": score,
        "threshold": 0.5,
        "location": "examples/configs/vacation.yaml:18:9",
        "detail": detail or {},
    }
    return AssertionResult(**{**values, **changes})  # type: ignore[arg-type]


def results_of(columns: Iterable[Column] = COLUMNS, tests: int = 5) -> Iterator[CaseResult]:
    """Yield results of `tests` tests: the second fails, the third cannot be judged, the fourth has no answer."""
    for test in range(tests):
        for column in columns:
            makers = {0: _greeting, 1: _failed, 2: _not_judged, 3: _not_answered, 4: _not_evaluated}
            yield makers.get(test, _greeting)(test, column)


def make_report(columns: tuple[Column, ...] = COLUMNS, tests: int = 5, **changes: object) -> RunReport:
    values: dict[str, object] = {
        "summary": SUMMARY,
        "results": lambda: results_of(columns, tests),
    }
    run = changes.pop("run", RUN)
    assert isinstance(run, RunRecord)
    return RunReport(replace(run, columns=columns), **{**values, **changes})  # type: ignore[arg-type]


def _greeting(test: int, column: Column) -> CaseResult:
    detail = {
        "estimator": "single",
        "rating": 9,
        "score_range": [0, 10],
        "judge": "openai:gpt-4.1",
        "fallback": "the judge gives no token probabilities, so one rating was taken"
        if column.index
        else None,
        "evaluation_steps": STEPS,
    }
    judged = make_judged(Status.PASSED, 0.9, detail=detail, reason="Warm, short and correct.")
    return make_case(test, column, score=0.9, description="greets the user by name", assertions=(judged,))


def _failed(test: int, column: Column) -> CaseResult:
    if column.index:
        return make_case(test, column, score=1.0)
    judged = make_judged(
        Status.FAILED,
        0.49996,
        threshold_is_default=True,
        reason="The answer claims forty days although the policy grants twenty-eight; it also leaves out the rule"
        " about carrying days over, which the question asks for.",
        detail={
            "estimator": "logprobs",
            "rating": 2.99984,
            "score_range": [1, 5],
            "coverage": 0.934,
            "distribution": {"1": 0.05, "2": 0.2, "3": 0.45, "4": 0.299, "5": 0.001},
            "judge": "openai:gpt-4.1",
            "source_from": "vars.source",
            "evaluation_steps": STEPS,
        },
    )
    contains = AssertionResult(
        "contains",
        None,
        Status.FAILED,
        0.0,
        weight=2.0,
        reason='the output does not contain "28 days"',
        location="examples/configs/vacation.yaml:24:9",
    )
    is_json = AssertionResult("is-json", None, Status.PASSED, 1.0)
    return make_case(
        test,
        column,
        Status.FAILED,
        score=0.3749,
        description="states the number of days without inventing a rule",
        output="You get 40 days.\nAnd \x1b[31mred\x1b[0m, [bold]loud[/bold] and \u202ebackwards:"
        " 有給休暇は四十日です。",
        assertions=(judged, contains, is_json),
    )


def _not_judged(test: int, column: Column) -> CaseResult:
    if not column.index:
        return make_case(test, column, score=0.8)
    error = ErrorInfo(
        "JudgeParseError",
        "3 of 20 samples could be read, fewer than half",
        "use a larger judge, or lower `min_valid`",
        "I am sorry, but I cannot help with that\x07 request.",
    )
    detail = {"estimator": "samples", "requested": 20, "valid": 3}
    judged = make_judged(Status.ERROR, None, error=error, detail=detail)
    return make_case(test, column, Status.ERROR, score=None, assertions=(judged,))


def _not_answered(test: int, column: Column) -> CaseResult:
    error = ErrorInfo("ProviderAuthError", "the server refused the API key (401)", "check OPENAI_API_KEY")
    return make_case(test, column, Status.ERROR, score=None, output=None, error=error)


def _not_evaluated(test: int, column: Column) -> CaseResult:
    return make_case(test, column, Status.NOT_EVALUATED, score=None, vars={}, output={"days": 28})

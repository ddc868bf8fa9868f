"""`geval show RUN --case N`: a sentence, then the failures first, on about one screen, whatever kind of test it is."""

import io
import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from support.sample_run import make_report

from geval_cli.extras.evidence import case_sentence, print_test
from geval_cli.records import AssertionResult, CaseResult, ErrorInfo, Role, Status, TraceStep, Turn, Usage
from geval_cli.report.console import make_console

REPORT = make_report()
BASE = next(iter(REPORT.results()))
PASSED = AssertionResult("contains", None, Status.PASSED, 1.0, reason='the output contains "x"')
FAILED = AssertionResult(
    "g-eval",
    "correct",
    Status.FAILED,
    0.4,
    0.7,
    reason="It says 14 days, the policy says 30.",
    usage=Usage(1, 900, 40, 0, 0.0041237),
    latency_ms=1477.4669599999479,
    detail={
        "judge": "openai:gpt-4.1",
        "rating": 2.6000000000000001,
        "score_range": [1, 5],
        "estimator": "logprobs",
        "coverage": 0.97,
        "distribution": [[2, 0.4], [3, 0.6]],
        "evaluation_steps": ["Find the number of days.", "Compare it with the policy."],
        "prompt_version": "38d92e4a6463",
        "latency_ms": 147.74695999994947,
    },
)
WORSE = replace(FAILED, score=0.1)
JURY = replace(
    FAILED,
    reason="2 of 3 judges fail it",
    detail={
        "split": True,
        "judges": [
            {
                "judge": f"judge-{number}",
                "score": score,
                "rating": 5 * score,
                "score_range": [0, 5],
                "reason": why,
            }
            for number, score, why in ((1, 0.2, "Wrong number."), (2, 0.1, "No."), (3, 0.9, "Sounds fine."))
        ],
    },
)
CHECKLIST = AssertionResult(
    "g-eval",
    "policy",
    Status.FAILED,
    0.5,
    0.4,
    detail={
        "judge": "openai:gpt-4.1",
        "checklist": [
            {"item": "Names 30 days", "met": False, "required": True, "reason": "says 14"},
            {"item": "Is polite", "met": True, "evidence": "Thanks"},
        ],
    },
)
PAIRWISE = AssertionResult(
    "pairwise",
    "helpful",
    Status.FAILED,
    0.25,
    0.5,
    detail={
        "wins": 0,
        "losses": 1,
        "pairs": [
            {"column": 1, "label": "long", "outcome": "loss", "share": 0.0},
            {"column": 2, "label": "wide", "outcome": "tie", "share": 0.5},
        ],
    },
)
BROKEN = AssertionResult(
    "g-eval",
    "tone",
    Status.ERROR,
    None,
    error=ErrorInfo("JudgeParseError", "3 of 20 samples could be read", "use a larger judge", "no rating"),
)
NO_KEY = ErrorInfo("ProviderAuthError", "the server refused the API key (401)", "check OPENAI_API_KEY")


def case(*assertions: AssertionResult, column: int = 0, repeat: int = 0, **changes: object) -> CaseResult:
    statuses = {item.status for item in assertions}
    status = next(one for one in (Status.FAILED, Status.ERROR, Status.PASSED) if one in statuses)
    given = {
        "description": "refund after 30 days",
        "test_index": 6,
        "score": 0.5,
        "cost_usd_generated": 0.00041237,
    }
    return replace(
        BASE,
        status=status,
        column=column,
        repeat_index=repeat,
        assertions=assertions,
        **{
            **given,
            "latency_ms": 749.1234567,
            "usage": {Role.GENERATION: Usage(1, 9, 9, 0, 0.00041237)},
            **changes,
        },
    )


KINDS: dict[str, tuple[Sequence[CaseResult], str, Sequence[str]]] = {
    "one failed": (
        [case(PASSED, FAILED)],
        "failed: correct 0.40 < 0.70",
        [
            "✗ g-eval correct  0.40 < 0.70",
            "reason  It says 14 days",
            "openai:gpt-4.1 · rating 2.6 in 1 to 5",
            "2: 40 %, 3: 60 %",
            "$0.0041 · 1.5 s",
            "1. Find the number of days.",
            "✓ contains",
        ],
    ),
    "columns": (
        [case(PASSED), case(PASSED, FAILED, column=1)],
        "failed in 1 of 2 columns: correct 0.40 < 0.70",
        ["✗ FAIL", "✓ PASS"],
    ),
    "repeats, the worst first": (
        [case(FAILED), case(WORSE, repeat=1), *(case(PASSED, repeat=number) for number in range(2, 9))],
        "failed in 2 of 9 repeats: correct 0.10 < 0.70",
        ["repeat 2", "correct  0.10 < 0.70", "repeat 1", "correct  0.40 < 0.70", "✓ 7 passed"],
    ),
    "a jury": (
        [case(JURY)],
        "failed: correct 0.40 < 0.70",
        ["2 of 3 judges", "judge-1", "Wrong number.", "judge-3"],
    ),
    "a checklist": (
        [case(CHECKLIST)],
        "failed: policy 0.50, a required item is missing",
        ["✗ Names 30 days (required): says 14", "✓ Is polite"],
    ),
    "compared in pairs": (
        [case(PAIRWISE)],
        "failed: helpful 0.25 < 0.50",
        ["pairs   tied with wide; lost to long"],
    ),
    "a judge's error": (
        [case(BROKEN)],
        "has no verdict: 3 of 20 samples could be read",
        ["! g-eval tone", "hint    use a larger judge"],
    ),
    "no answer": (
        [
            case(PASSED),
            replace(case(PASSED, column=1), status=Status.ERROR, assertions=(), output=None, error=NO_KEY),
        ],
        "has no verdict in 1 of 2 columns: the server refused the API key (401)",
        ["! ERROR", "the server refused", "check OPENAI_API_KEY", "✓ PASS"],
    ),
    "a conversation with a trace": (
        [
            case(
                FAILED,
                turns=(Turn("user", "My order is late"), Turn("assistant", "Which?")),
                trace=(TraceStep("tool", "search"), TraceStep("tool", "refund", error="timeout")),
            )
        ],
        "failed: correct 0.40 < 0.70",
        ["turns   user: My order is late", "assistant: Which?", "trace   search, refund (failed)"],
    ),
    "a trace of calls with their results": (
        [
            case(
                FAILED,
                trace=(
                    TraceStep("tool", "search", {"word": "late"}, ["order 7"]),
                    TraceStep("tool", "refund", {"order": 7}, error="timeout"),
                ),
            )
        ],
        "failed: correct 0.40 < 0.70",
        ['trace   search {"word": "late"} -> ["order 7"]', 'refund {"order": 7} failed: timeout'],
    ),
    "all passed": ([case(PASSED), case(PASSED, column=1)], "passed in both columns", ["✓ PASS", "output"]),
}


@pytest.mark.parametrize(("results", "said", "shown"), KINDS.values(), ids=KINDS)
def test_a_sentence_then_failures_first_on_a_screen(
    results: Sequence[CaseResult], said: str, shown: Sequence[str]
) -> None:
    assert case_sentence(results) == f"test 7, refund after 30 days, {said}"
    stream = io.StringIO()
    print_test(results, REPORT, make_console(stream, environ={"COLUMNS": "80"}), is_verbose=False)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 40
    flat = re.sub(r"\s+", " ", text)
    places = [flat.find(re.sub(r"\s+", " ", part), flat.index("question")) for part in shown]
    assert -1 not in places, text
    assert places == sorted(places), text
    assert not re.search(r"(?<!\$)\b\d+\.\d{5}|38d92e|JudgeParseError", text)


def test_verbose_shows_prompts_and_no_tails_of_floats() -> None:
    stream = io.StringIO()
    print_test([case(FAILED)], REPORT, make_console(stream, environ={"COLUMNS": "80"}), is_verbose=True)
    assert stream.getvalue().lstrip().startswith("test 7, refund after 30 days, failed: correct 0.40 < 0.70")
    assert "   prompt  " in stream.getvalue()
    assert "prompt_version 38d92e4a6463" in stream.getvalue()
    assert not re.search(r"(?<!\$)\b\d\.\d{5}", stream.getvalue())

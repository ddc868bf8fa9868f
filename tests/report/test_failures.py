import io
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from support.sample_columns import FIGURES
from support.sample_run import COLUMNS, STEPS, SUMMARY, console_of, make_case, make_judged, make_report

from geval_cli.extras.evidence import Failures, case_sentence, print_failures
from geval_cli.records import INTERNAL_ERROR, CaseResult, Column, ErrorInfo, Status
from geval_cli.report.failures import FailedTests, GroupBy
from geval_cli.report.terminal import print_report


def printed(
    *cases: CaseResult, width: int = 100, verbose: bool = False, by: GroupBy = GroupBy.ASSERTION
) -> str:
    stream = io.StringIO()
    failures = Failures(verbose, by)
    for case in cases:
        failures.add(case)
    print_failures(failures, make_report(), console_of(stream, width))
    return stream.getvalue()


def failed(test: int = 0, **changes: object) -> CaseResult:
    return make_case(test, status=Status.FAILED, **changes)


def test_nothing_is_printed_when_all_passed() -> None:
    assert printed(make_case(), make_case(1, status=Status.NOT_EVALUATED)) == ""


def test_verbose_shows_reasons_and_steps_of_what_passed() -> None:
    judged = make_judged(Status.PASSED, 0.9, reason="Warm and correct.", detail={"evaluation_steps": STEPS})
    text = printed(make_case(assertions=(judged,)), verbose=True)

    assert "Warm and correct." in text
    assert "3. Give a rating from 1 to 5." in text


def test_failures_beyond_twenty_are_counted() -> None:
    text = printed(*(failed(test) for test in range(23)))

    assert text.count("FAIL") == 20
    assert "3 more failures and errors not shown" in text


def test_one_broken_key_is_one_message() -> None:
    error = ErrorInfo("ProviderAuthError", "the server refused the API key (401)", "check OPENAI_API_KEY")
    cases = [make_case(test, status=Status.ERROR, output=None, error=error) for test in range(1_000)]
    text = printed(*cases)

    assert text.count("refused the API key") == 1
    assert "the same in 999 more cases: #2, #3," in text
    assert "not shown" not in text


def test_different_errors_are_shown_apart() -> None:
    errors = [ErrorInfo("ProviderTimeoutError", f"no answer within {seconds} s") for seconds in (30, 60)]
    text = printed(
        *(make_case(n, status=Status.ERROR, output=None, error=error) for n, error in enumerate(errors))
    )

    assert "no answer within 30 s" in text
    assert "no answer within 60 s" in text


def test_equal_evaluation_steps_are_shown_once() -> None:
    judged = make_judged(Status.FAILED, 0.2, detail={"evaluation_steps": STEPS})
    text = printed(failed(0, assertions=(judged,)), failed(1, assertions=(judged,)))

    assert text.count(STEPS[0]) == 1
    assert "steps   the same as in #1, consistency" in text


def test_each_estimator_is_named() -> None:
    sure = {"estimator": "logprobs", "rating": 3.21, "score_range": [1, 5], "coverage": 0.93}
    details = [
        (sure, "3.21 in 1 to 5 (logprobs, coverage 93 %)"),
        ({"estimator": "samples", "rating": 3, "requested": 20, "valid": 19}, "3 (20 samples, 19 valid)"),
        ({"estimator": "single", "rating": 8, "score_range": [0, 10]}, "8 in 0 to 10 (single rating)"),
        (
            {"estimator": "single", "rating": 8, "score_range": [0, 10], "read_from": "retry"},
            "8 in 0 to 10 (single rating, after a retry)",
        ),
        ({"estimator": "samples", "requested": 20, "valid": 3}, "none (20 samples, 3 valid)"),
    ]
    for detail, shown in details:
        assert f"judge   rating {shown}" in printed(
            failed(assertions=(make_judged(Status.FAILED, 0.2, detail=detail),))
        )


def test_a_default_threshold_is_marked() -> None:
    judged = make_judged(Status.FAILED, 0.4, threshold_is_default=True)

    assert "0.40 < 0.50 (default)" in printed(failed(assertions=(judged,)))


def test_the_likeliest_ratings_are_shown_in_the_order_of_the_scale() -> None:
    distribution = {str(rating): (rating + 1) / 66 for rating in range(11)}
    judged = make_judged(Status.FAILED, 0.2, detail={"distribution": distribution})

    assert "judge   5: 9 %, 6: 11 %, 7: 12 %, 8: 14 %, 9: 15 %, 10: 17 %, and 5 more" in printed(
        failed(assertions=(judged,))
    )


def test_each_of_several_criteria_is_shown() -> None:
    parts = [
        {"criteria": "Is it polite?", "score": 0.9, "rating": 9, "reason": "It says please."},
        {"criteria": "Is it short?", "rating": 1, "reason": "It rambles."},
    ]
    text = printed(failed(assertions=(make_judged(Status.FAILED, 0.5, detail={"parts": parts}),)))

    for shown in ("part 1  0.90  Is it polite?", "part 2  Is it short?", "It says please.", "It rambles."):
        assert shown in text


def test_assertions_within_a_set_are_shown() -> None:
    inner = make_judged(Status.FAILED, 0.1, metric="inner", reason="too rude")
    outer = replace(make_judged(Status.FAILED, 0.1, metric=None), type="assert-set", assertions=(inner,))
    text = printed(failed(assertions=(outer,)))

    assert "assert-set" in text
    assert "g-eval inner" in text
    assert "too rude" in text


def test_details_of_a_strange_shape_are_passed_over() -> None:
    detail = {
        "rating": "nine",
        "score_range": [1],
        "estimator": 7,
        "distribution": [["a"], 3, {"b": 1}],
        "evaluation_steps": "not a list",
        "fallback": ["x"],
        "judge": None,
    }
    text = printed(failed(assertions=(make_judged(Status.FAILED, 0.2, detail=detail),)))

    assert "rating" not in text
    assert "spread" not in text
    assert "steps" not in text


def test_a_long_output_is_cut_and_the_rest_counted() -> None:
    text = printed(failed(output="word " * 1_000 + "end"))

    assert "... 3,803 more characters" in text


def test_an_empty_output_is_said_to_be_empty() -> None:
    assert "output  (empty)" in printed(failed(output=""))


def test_very_long_words_wrap() -> None:
    text = printed(failed(assertions=(make_judged(Status.FAILED, 0.2, reason="x" * 500),)), width=60)

    assert max(len(line) for line in text.split("\n")) <= 60
    assert text.count("x") >= 500


def test_of_a_bug_the_end_of_its_traceback_is_shown() -> None:
    trace = "\n".join(
        ["Traceback (most recent call last):", *(f"line {n}" for n in range(30)), "KeyError: 'x'"]
    )
    error = ErrorInfo(INTERNAL_ERROR, "KeyError: 'x'", "this is a bug in geval", trace)
    text = printed(make_case(status=Status.ERROR, error=error))

    assert "trace   line 23" in text
    assert "           KeyError: 'x'" in text


def test_the_raw_reply_and_the_hint_stand_with_an_error() -> None:
    error = ErrorInfo("JudgeParseError", "no score can be read", "use a larger judge", "I cannot\nhelp")
    text = printed(make_case(status=Status.ERROR, assertions=(make_judged(Status.ERROR, None, error=error),)))

    for shown in (
        "error   no score can be read",
        "hint    use a larger judge",
        "reply   I cannot",
    ):
        assert shown in text


def grouped(*cases: CaseResult, by: GroupBy = GroupBy.ASSERTION) -> list[str]:
    failures = Failures(by=by)
    for case in cases:
        failures.add(case)
    return [f"{group.name}: {group.heading()}" for group, _ in failures.groups()]


def test_each_group_says_how_many_of_how_many_fell_short() -> None:
    def case(number: int, status: Status, score: float | None) -> CaseResult:
        return make_case(number, status=status, assertions=(make_judged(status, score, metric="fluency"),))

    cases = [
        *(case(number, Status.FAILED, 0.25) for number in range(3)),
        case(3, Status.PASSED, 0.85),
        case(4, Status.ERROR, None),
        case(5, Status.NOT_EVALUATED, None),
    ]
    assert grouped(*cases) == ["fluency: 3 of 4 failed, 1 could not be judged, mean 0.40"]


def test_a_case_that_only_its_own_threshold_fails_has_a_group() -> None:
    passed = make_judged(Status.PASSED, 0.6)
    assert grouped(*(failed(number, assertions=(passed,)) for number in range(2))) == [
        "the test as a whole: 2 cases"
    ]


@pytest.mark.parametrize("by", GroupBy)
def test_a_case_is_in_the_group_of_what_decided_it(by: GroupBy) -> None:
    measured = make_judged(Status.FAILED, 0.0, metric="length", weight=0, reason="long")
    broken = make_judged(Status.ERROR, None, metric="tone", error=ErrorInfo("JudgeParseError", "no rating"))
    wrong = make_judged(Status.FAILED, 0.1, metric="right", reason="wrong")
    cases = [failed(assertions=(measured, broken, wrong)), failed(1, assertions=(measured,))]
    failures = Failures(by=by)
    for case in cases:
        failures.add(case)
    owners = {group.name: group.cases for group, _ in failures.groups() if group.cases}
    assert owners == {"right" if by is GroupBy.ASSERTION else "right: wrong": 1, "the test as a whole": 1}


def test_an_error_within_a_set_is_told() -> None:
    inner = make_judged(Status.ERROR, None, error=ErrorInfo("JudgeParseError", "no rating in the reply"))
    judged = make_judged(Status.ERROR, None, type="assert-set", reason="1 of 1", assertions=(inner,))
    case = make_case(0, status=Status.ERROR, assertions=(judged,))
    errors, stream = FailedTests(), io.StringIO()
    errors.add(case)
    errors.print_errors(make_report(), console_of(stream, 100), "")
    assert "1 × no rating in the reply  #1" in stream.getvalue()  # noqa: RUF001
    assert case_sentence([case]).endswith("has no verdict: no rating in the reply")


def test_a_traceback_is_not_called_a_reply() -> None:
    for kind, shown in ((INTERNAL_ERROR, False), ("JudgeParseError", True)):
        errors, stream = FailedTests(), io.StringIO()
        errors.add(
            make_case(status=Status.ERROR, error=ErrorInfo(kind, "KeyError: 'x'", "", "Traceback ..."))
        )
        errors.print_errors(make_report(), console_of(stream, 100), "")
        assert ("reply: Traceback" in stream.getvalue()) == shown


def test_of_many_groups_the_first_case_of_each_is_shown_and_few_are_kept() -> None:
    def case(number: int) -> CaseResult:
        return failed(
            number, assertions=(make_judged(Status.FAILED, 0.0, metric=None, type=f"t{number % 300}"),)
        )

    failures = Failures()
    for number in range(3_000):
        failures.add(case(number))
    groups = failures.groups()
    assert sum(group.cases for group, _ in groups) == 3_000
    assert [len(entries) for _, entries in groups] == [1] * 20 + [0] * (len(groups) - 20)
    assert sum(len(group.entries) for group, _ in groups) < 500


def test_hostile_names_and_reasons_of_groups_are_harmless() -> None:
    hostile = make_judged(Status.FAILED, 0.0, metric="\x1b[2J\u202e" + "x" * 9_999, reason="\x1b[2J" * 999)
    for by in GroupBy:
        text = printed(*(failed(number, assertions=(hostile,)) for number in range(2)), by=by)
        assert "\x1b" not in text
        assert "\u202e" not in text


def in_short(*cases: CaseResult, width: int = 100, columns: tuple[Column, ...] = COLUMNS) -> list[str]:
    """Return the lines that the answer of a run has about its failures and errors."""
    found, stream = FailedTests(), io.StringIO()
    for case in cases:
        found.add(case)
    console = console_of(stream, width)
    found.print_errors(make_report(columns), console, "geval show")
    found.print(make_report(columns), console, "geval show")
    return stream.getvalue().rstrip("\n").split("\n")


def judged_failure(test: int, column: int = 0, score: float = 0.4, **changes: object) -> CaseResult:
    reason = changes.pop("reason", f"what is wrong with {'abcdefghijklmnopqrstuvwxyz'[test % 26] * 9}")
    judged = make_judged(Status.FAILED, score, reason=reason, **changes)
    title = f"question {test + 1}"
    return make_case(
        test, COLUMNS[column], Status.FAILED, score=score, description=title, assertions=(judged,)
    )


def test_a_failed_test_is_one_line_and_the_worst_is_first() -> None:
    cases = [
        judged_failure(0, score=0.45),
        judged_failure(1, score=0.1),
        judged_failure(2, 0, score=0.3),
        judged_failure(2, 1, score=0.2),
        *(judged_failure(test, score=0.49) for test in range(3, 7)),
    ]
    head, *lines = in_short(*cases)

    assert head == " 8 of 8 failed   consistency 8"
    assert [line.split()[0] for line in lines] == ["#3", "#2", "#1", "#4", "#5", "#6", "#7"]
    assert "all columns" in lines[0]
    assert "consistency 0.20 < 0.50  what is wrong with ccccccccc" in lines[0]
    assert "short" in lines[1]


def test_few_failures_show_output_reason_and_the_line_of_the_config() -> None:
    _, line, *rest = in_short(judged_failure(6, reason="14 days, the policy says 30"), width=80)

    assert "#7  question 7  short  consistency 0.40 < 0.50" in line
    assert rest[0].startswith("    output  You have 28 days of paid vacation")
    assert rest[-2:] == [
        "    reason  14 days, the policy says 30",
        "    at      examples/configs/vacation.yaml:18:9",
    ]


def test_tests_that_fail_for_the_same_reason_are_one_line() -> None:
    same = [judged_failure(test, reason=f"the output has {test} words") for test in range(40)]
    lines = in_short(*same, judged_failure(40), width=80)

    assert lines[0] == " 41 of 41 failed   consistency 41"
    assert lines[1].split()[:4] == ["#1", "and", "39", "more"]
    assert "short" in lines[1]
    assert sum("#" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("places", "where"),
    [
        ([(0, 0), (1, 1), (2, 0)], "short 2, friendly 1"),
        ([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)], "all columns"),
        (
            [*((test, 0) for test in range(40)), (40, 1)],
            "short 40, friendly 1",
        ),  # no test of the first ten fails there
    ],
)
def test_columns_of_equal_failures_are_counted_and_never_all_where_no_test_failed_in_all(
    places: list[tuple[int, int]], where: str
) -> None:
    lines = in_short(*(judged_failure(test, column, reason="no") for test, column in places), width=160)

    assert f"  {where}  " in lines[1]


def test_what_to_look_at_next_is_the_first_line() -> None:
    found, stream = FailedTests(), io.StringIO()
    for test in range(20):
        found.add(judged_failure(test, score=None))
    found.print(make_report(), console_of(stream, 100), "")

    assert found.worst == stream.getvalue().split("\n")[1].split()[0] == "#1"
    assert (
        stream.getvalue().rstrip().endswith("... 10 more cases")
    )  # of a run that is not stored, no command shows them


def test_tests_that_fail_by_their_own_threshold_are_counted() -> None:
    whole = failed(0, assertions=(make_judged(Status.PASSED, 0.75),))

    assert in_short(whole, judged_failure(1))[0] == " 2 of 2 failed   the test as a whole 1 · consistency 1"


def test_errors_are_counted_by_what_went_wrong() -> None:
    errors = [
        ErrorInfo("ProviderTimeoutError", f"no answer within {n} s", "raise `timeout_s`") for n in (30, 60)
    ]
    cases = [make_case(n, status=Status.ERROR, output=None, error=errors[n % 2]) for n in range(12)]

    assert in_short(*cases) == [
        " 12 errors",
        "  12 × no answer within 30 s  #1, #2, #3, #4, #5, ...",  # noqa: RUF001
        "      hint: raise `timeout_s`",
    ]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9_999), is_told_apart=st.booleans(), width=st.sampled_from([80, 100, 200]))
def test_a_run_of_100_cases_is_read_on_one_screen(seed: int, is_told_apart: bool, width: int) -> None:
    random = Random(seed)
    statuses = random.choices(list(Status), [random.random() for _ in Status], k=100)
    scores = [random.uniform(0, 0.49) for _ in range(100)]
    columns = tuple(Column(n, ("brief", "polite")[n % 2], ("small", "large")[n // 2]) for n in range(4))
    cases = [
        replace(
            judged_failure(n // 4, score=score) if is_told_apart else judged_failure(n // 4, reason="no"),
            column=n % 4,
            status=status,
            error=ErrorInfo("E", "no answer") if status is Status.ERROR else None,
        )
        for n, (status, score) in enumerate(zip(statuses, scores, strict=True))
    ]
    stream = io.StringIO()
    report = make_report(columns, results=lambda: iter(cases), summary=replace(SUMMARY, columns=FIGURES[:4]))
    print_report(report, console_of(stream, width))
    lines = stream.getvalue().split("\n")

    assert len(lines) <= 45 + (30 if width > 80 else 0)  # where a table of the tests has room, it is shown
    assert max(map(cell_len, lines)) <= width
    for status, word in ((Status.FAILED, "failed"), (Status.PASSED, "passed")):
        assert status not in statuses or word in stream.getvalue()


def test_thousands_of_reasons_are_bounded_and_counted() -> None:
    letters = [f"{a}{b}{c}" for a in "abcdefghijklmn" for b in "abcdefghijklmn" for c in "abcdefghijklmn"]
    cases = [judged_failure(n, reason=f"wrong {word}", score=0.4) for n, word in enumerate(letters)]
    lines = in_short(*cases)

    assert lines[-1] == f"  ... {len(letters) - 10:,} more cases: geval show --failed"


_NAMES = ("icontains", "not-contains", "helpful")


@st.composite
def _failures_of_columns(draw: st.DrawFn) -> list[CaseResult]:
    """Draw a run of two columns in which every case fails some of three assertions, or none."""
    cases = []
    for test in range(draw(st.integers(1, 9))):
        for column in COLUMNS:
            names = draw(st.lists(st.sampled_from(_NAMES), max_size=4))
            items = tuple(
                make_judged(
                    Status.FAILED,
                    0.25 if name == "helpful" else 0.0,
                    type="g-eval" if name == "helpful" else name,
                    metric=name if name == "helpful" else None,
                    threshold=0.6 if name == "helpful" else None,
                    reason=f"{name} says no",
                )
                for name in names
            )
            status = Status.FAILED if items else Status.PASSED
            cases.append(make_case(test, column, status, assertions=items))
    return cases


@settings(max_examples=60, deadline=None)
@given(_failures_of_columns())
def test_a_line_counts_the_cases_in_which_exactly_what_it_names_failed(cases: list[CaseResult]) -> None:
    found = FailedTests()
    for case in cases:
        found.add(case)
    wrong = [case for case in cases if case.status is Status.FAILED]
    by_names: dict[tuple[str, ...], list[CaseResult]] = {}
    for case in wrong:
        names = tuple(sorted(item.metric or item.type for item in case.assertions))
        by_names.setdefault(names, []).append(case)

    lines = found.lines()
    assert sum(line.cases for line in lines) == found.failed == len(wrong)
    for names, of_names in by_names.items():
        own = [line for line in lines if line.tests[0].names == names]
        assert sum(line.cases for line in own) == len(of_names)
        for column in COLUMNS:
            counted = sum(line.columns.get(column.index, 0) for line in own)
            assert counted == sum(case.column == column.index for case in of_names)
    for name in _NAMES:
        having = sum(any((item.metric or item.type) == name for item in case.assertions) for case in wrong)
        assert found.counts.get(name, 0) == having  # cases, however often it failed in one


def test_columns_that_fail_different_assertions_of_the_same_tests_have_lines_of_their_own() -> None:
    kinds = ("icontains", "not-contains")
    cases = [
        make_case(
            test,
            column,
            Status.FAILED,
            assertions=(
                make_judged(Status.FAILED, 0.0, type=kind, metric=None, threshold=None, reason=f"{kind} no"),
            ),
        )
        for test in range(6)
        for column, kind in zip(COLUMNS, kinds, strict=True)
    ]
    head, *lines = in_short(*cases)

    assert head == " 12 of 12 failed   icontains 6 · not-contains 6"
    assert sorted(line.split("and 5 more")[1].split()[:2] for line in lines if "and 5 more" in line) == [
        ["friendly", "not-contains"],
        ["short", "icontains"],
    ]


@pytest.mark.parametrize(
    ("items", "head", "what"),
    [
        (["icontains", "helpful"], "icontains 1 · helpful 1", "icontains, helpful 0.25 < 0.60"),
        (["contains", "contains"], "contains 1", "contains (2)"),
        (["helpful"], "helpful 1", "helpful 0.25 < 0.60"),
        (
            ["a" * 20, "b" * 20, "helpful"],
            f"{'a' * 20} 1 · {'b' * 20} 1 · helpful 1",
            f"{'a' * 20} and 2 more",
        ),
    ],
)
def test_a_line_names_all_that_failed_and_gives_every_reason(items: list[str], head: str, what: str) -> None:
    parts = tuple(
        make_judged(Status.FAILED, 0.25, metric=name, threshold=0.6, reason=f"{name} is missing")
        if name == "helpful"
        else make_judged(
            Status.FAILED, 0.0, type=name, metric=None, threshold=None, reason=f"{name} is missing"
        )
        for name in items
    )
    measured = make_judged(Status.FAILED, 0.0, metric="of weight 0", weight=0)
    lines = in_short(failed(0, assertions=(measured, *parts)), columns=COLUMNS[:1])

    assert lines[0] == f" 1 of 1 failed   {head}"
    assert lines[1].endswith(f"  {what}")
    reasons = [line for line in lines if line.startswith("    reason")]
    assert [line.split()[-3] for line in reasons] == items

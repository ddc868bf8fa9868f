from pathlib import Path

import pytest

import geval_cli
from geval_cli import RunResult, Suite, UsageError, compare, run


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


ASSERTION = {"type": "contains", "value": "fine", "metric": "tone"}


def run_of(bad: int, **options: object) -> RunResult:
    tests = [
        {"vars": {"n": n}, "output": "<b>bad</b>" if n < bad else "fine", "description": "<i>test</i>"}
        for n in range(30)
    ]
    return run(Suite(tests=tests, assertions=[ASSERTION]), **options)  # type: ignore[arg-type]


def test_two_results_are_compared_as_the_command_compares_them(own_folder: Path) -> None:
    before, after = run_of(0), run_of(12, output="after.json")
    found = compare(before, after)

    assert found.verdict == "worse"
    assert str(found) == found.headline
    assert "100 % to 60 %" in found.headline
    [rate] = [row for row in found.rows if row.metric == "pass_rate"]
    assert (rate.a, rate.b, rate.verdict, rate.broken) == (1.0, pytest.approx(0.6), "worse", 12)
    for other in (compare(before.run.id, after.run.id), compare("latest~1", own_folder / "after.json")):
        assert (other.verdict, other.rows) == (found.verdict, found.rows)
    assert found.to_json()["verdict"] == "worse"


def test_a_notebook_shows_the_decision_with_texts_escaped() -> None:
    shown = compare(run_of(0), run_of(12))._repr_html_()
    assert shown.startswith("<p><b>B is worse than A")
    assert "<th>verdict</th>" in shown
    assert "<i>test" not in shown


def test_options_reach_the_comparison() -> None:
    same = run_of(1)
    assert compare(same, same).verdict == "identical"
    for margins in (["0.4"], "0.4", 0.4, {"pass_rate": 0.4}):
        assert compare(run_of(0), run_of(1), margins=margins).verdict == "equivalent"  # type: ignore[arg-type]
    for wrong in (5, "x", ["tone=2"], {"tone": "a"}, None):
        with pytest.raises(UsageError, match="which is no margin"):
            compare(same, same, margins=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="takes OLD=NEW: `x`"):
        compare(same, same, columns="x")
    with pytest.raises(UsageError, match="no test has the metadata `topic`"):
        compare(same, same, cluster="topic")


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UsageError, match="`a` must be a run, found an object of the class int"):
        compare(1, run_of(0))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="`b` must be a run, found None"):
        compare(run_of(0), None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no run"):
        compare("nothing", run_of(0))
    other = run(Suite(tests=[{"vars": {"other": 1}, "output": "fine"}], assertions=[ASSERTION]))
    with pytest.raises(UsageError):
        compare(other, run_of(0))
    assert geval_cli.compare is compare

"""Gates of a config on what people would say of all outputs: `labels:` and `METRIC.true_pass_rate >= 80%`."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.geval_command import clean_environment, run_geval
from support.stored_runs import store_run

from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.extras.export import read_portable_suite
from geval_cli.extras.trust.estimation import estimate
from geval_cli.records import GateResult
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.store.state import open_runs

EXAMPLES = Path(__file__).parents[2] / "examples" / "trust"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLES, tmp_path / "shop", ignore=shutil.ignore_patterns(".geval"))


def config(folder: Path, *gates: str, labels: Any = "answer-labels.jsonl", **keys: Any) -> Path:
    written = yaml.safe_load((EXAMPLES / "gated.yaml").read_text(encoding="utf-8"))
    written |= {"gates": list(gates), "labels": labels, **keys}
    path = folder / "gated.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in written.items() if value}), encoding="utf-8")
    return path


def gates_of(path: Path) -> list[GateResult]:
    run_id = store_run(path)
    with open_runs(path.parent / ".geval", {}) as runs:
        report = load_report(runs, run_id)
        return [gate for gate in report.summary.gates if not gate.gate.startswith("errors")]


def change_labels(folder: Path, change: Any) -> None:
    path = folder / "answer-labels.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [row for row in (change(number, row) for number, row in enumerate(rows)) if row is not None]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def problems(path: Path, **options: Any) -> list[Problem]:
    try:
        return list(prepare(RunRequest(path, {}, **options), is_going_to_run=False).warnings)
    except ConfigError as error:
        return error.problems


@pytest.mark.parametrize(
    ("gate", "status", "word"),
    [
        ("helpful.true_pass_rate >= 25%", "passed", "60 of 60 labels"),
        ("helpful.true_pass_rate >= 0.32", "failed", "undecided"),
        ("helpful.true_pass_rate >= 50%", "failed", "undecided"),
        ("helpful.true_pass_rate >= 60%", "failed", "60 of 60 labels"),
        ("helpful.true_pass_rate <= 60%", "passed", "60 of 60 labels"),
        ("helpful.true_pass_rate < 50%", "failed", "undecided"),
        ("helpful.true_mean > 0.4", "passed", "60 of 60 labels"),
        ("helpful.true_mean >= 0.9", "failed", "60 of 60 labels"),
    ],
)
def test_a_gate_holds_only_where_its_whole_interval_does(
    shop: Path, gate: str, status: str, word: str
) -> None:
    (found,) = gates_of(config(shop, gate))
    assert (found.status, found.note.startswith(word)) == (status, True)
    assert found.actual == pytest.approx(0.4375 if "rate" in gate else 0.55, abs=0.001)


def test_the_figure_is_that_of_the_estimate(shop: Path) -> None:
    change_labels(shop, lambda number, row: row if number % 3 else None)
    path = config(shop, "helpful.true_pass_rate >= 1%", "helpful.true_mean >= 1%", "helpful.mean >= 1%")
    found = gates_of(path)
    (item,) = estimate(shop / "answer-labels.jsonl", "latest", home=shop / ".geval").metrics
    assert item.pass_rate is not None
    assert item.mean is not None
    assert [found[0].actual, found[1].actual] == [item.pass_rate.value, item.mean.value]
    assert item.pass_rate.interval is not None
    low, high = item.pass_rate.interval
    between = f"{100 * low:.0f} to {100 * high:.0f} %"
    assert found[0].note == f"40 of 40 labels, 95 % interval {between}; the judge alone says 78 %"
    assert re.fullmatch(r"40 of 40 .* interval 0\.\d\d to 0\.\d\d; the judge alone says 0\.63", found[1].note)
    assert [gate.gate for gate in found] == [
        "helpful.true_pass_rate >= 1%", "helpful.true_mean >= 1%", "helpful.mean >= 1%"
    ]  # fmt: skip


def test_labels_of_other_outputs_are_left_out_and_counted(shop: Path) -> None:
    """Of an output that a new prompt changed, what people said of the old one is nothing."""
    change_labels(shop, lambda number, row: {**row, "output": "Another text."} if number < 20 else row)
    (found,) = gates_of(config(shop, "helpful.true_pass_rate >= 1%"))
    assert found.note.startswith("40 of 60 labels")
    change_labels(shop, lambda number, row: {**row, "output": "Another text."})
    (found,) = gates_of(config(shop, "helpful.true_pass_rate >= 1%"))
    assert (found.status, found.actual) == ("error", None)
    assert "this label was made for another output" in found.note


def test_metadata_chooses_outputs(shop: Path) -> None:
    path = shop / "answers.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    tagged = [{**row, "metadata": {"half": str(number % 2)}} for number, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in tagged), encoding="utf-8")
    (found,) = gates_of(config(shop, "helpful.true_pass_rate[half=1] >= 1%"))
    assert found.note.startswith("30 of 60 labels")


def test_one_label_makes_no_gate_hold(shop: Path) -> None:
    change_labels(shop, lambda number, row: row if number == 2 else None)
    found = gates_of(config(shop, "helpful.true_pass_rate >= 50%", "helpful.true_mean >= 1%"))
    assert [gate.status for gate in found] == ["failed", "error"]
    assert "too few for an interval" in found[1].note


@pytest.mark.parametrize(
    ("gate", "labels", "message"),
    [
        (
            "helpful.true_pass_rate >= 80%",
            None,
            "the gate `helpful.true_pass_rate >= 80%` needs human labels",
        ),
        ("helpful.true_pass_rate >= 80%", "nowhere.jsonl", "there is no file"),
        ("helpful.true_pass_rate >= 80%", ".", "there is no file"),
        ("helpful.true_pass_rate >= 80%", 3, "`labels` must be text"),
        ("helpful.true_pass_rate >= 80%", "answers.yaml", "does not look like a label file"),
        ("helpful.true_pass_rate >= 80%", "helpfulness.jsonl", "is about `helpful`, which has no labels"),
        ("helpful.true_pass_rate >= 800%", "answer-labels.jsonl", "a limit above 1"),
        ("helpful.true_pass_rate >= 80% vs baseline", "answer-labels.jsonl", "only `delta` can be compared"),
        ("true_pass_rate >= 80%", "answer-labels.jsonl", "unknown figure `true_pass_rate`"),
        ("kind.true_pass_rate >= 80%", "answer-labels.jsonl", "is about `kind`, which has no labels"),
        ("helpful.true_pass >= 80%", "answer-labels.jsonl", "unknown figure `helpful.true_pass`"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    shop: Path, gate: str, labels: Any, message: str
) -> None:
    found = [item for item in problems(config(shop, gate, labels=labels)) if message in item.message]
    assert found
    assert found[0].location is not None
    assert found[0].severity is Severity.ERROR


def test_a_broken_row_has_its_place(shop: Path) -> None:
    change_labels(shop, lambda number, row: {**row, "label": 9} if number == 3 else row)
    (found,) = problems(config(shop, "helpful.true_pass_rate >= 80%"))
    assert str(found.location).endswith("answer-labels.jsonl:4:47")


@pytest.mark.parametrize("lacking", [0, 1, 40])
def test_drawn_rows_without_a_label_are_warned_about(shop: Path, lacking: int) -> None:
    change_labels(shop, lambda number, row: {**row, "label": None} if number < lacking else row)
    found = problems(config(shop, "helpful.true_pass_rate >= 1%"))
    said = f"{lacking} {'row has' if lacking == 1 else 'rows have'} no label yet"
    assert [(item.severity, item.message) for item in found] == [(Severity.WARNING, said)] * bool(lacking)


def test_labels_that_nothing_uses_are_warned_about(shop: Path) -> None:
    (found,) = problems(config(shop, "helpful.mean >= 1%"))
    assert (found.severity, found.message) == (Severity.WARNING, "no gate uses the labels")


def test_a_stranger_may_not_name_a_file_elsewhere(shop: Path) -> None:
    shutil.move(shop / "answer-labels.jsonl", shop.parent / "answer-labels.jsonl")
    path = config(shop, "helpful.true_pass_rate >= 1%", labels="../answer-labels.jsonl")
    words = ("run", path.name, "--untrusted")
    finished = run_geval(*words, cwd=shop, env=clean_environment(COLUMNS="80"))
    assert finished.code == 2
    assert "is outside the config's folder" in " ".join(finished.stderr.split())


def test_a_portable_suite_says_that_its_labels_stay_a_file(shop: Path) -> None:
    found = read_portable_suite(shop / "gated.yaml", env={})
    assert found.content["labels"] == "answer-labels.jsonl"
    assert [item.message for item in found.warnings] == [
        "`answer-labels.jsonl` remains a separate file that has to travel with the suite"
    ]


def test_the_example_holds(shop: Path) -> None:
    finished = run_geval("run", "gated.yaml", cwd=shop, env=clean_environment(COLUMNS="80"))
    assert finished.code == 0
    assert "1 of 1 gate met" in finished.stdout


class TestDifferenceFromTheBaseline:
    """The judge gives an apology full marks; the labels say that 40 of the 60 answers lost half a point or nothing."""

    judge = """
- match: I am sorry
  reply: '{"reason": "Kind.", "score": 5}'
- default: '{"reason": "Plain.", "score": 3}'
"""

    def baseline(self, shop: Path, *, lost: float, labelled: int = 40) -> str:
        """Store a run, write a config whose answers apologise, and label both outputs of its first tests."""
        (shop / "flattered.yaml").write_text(self.judge, encoding="utf-8")
        tests = [{"vars": {"n": number}} for number in range(60)]
        self.keys: dict[str, Any] = {
            "tests": tests,
            "prompts": ["I am sorry: {{ n }}."],
            "providers": ["echo"],
            "defaultTest": {
                "assert": [
                    {
                        "type": "g-eval", "metric": "helpful", "criteria": "It helps.", "scoring": "single",
                        "evaluation_steps": ["Rate it."], "evaluation_params": ["actual_output"],
                        "score_range": [1, 5], "provider": "scripted:flattered.yaml",
                    }
                ]
            },
        }  # fmt: skip
        before = config(shop, labels=None, **{**self.keys, "prompts": ["{{ n }}."]})
        rows = [
            {
                "vars": {"n": str(number)},
                "metric": "helpful",
                "output": f"{beginning}{number}.",
                "label": 0.9 - (lost if beginning and number % 2 else 0),
            }
            for number in range(labelled)
            for beginning in ("", "I am sorry: ")
        ]
        (shop / "both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return store_run(before)

    @pytest.mark.parametrize(
        ("gate", "lost", "status", "note"),
        [
            ("helpful.true_delta >= -0.02 vs baseline", 0.5, "failed", "human labels on 40 tests, one-sided 97.5 %"),
            ("helpful.true_delta >= -0.02 vs baseline", 0.05, "passed", "undecided, more labels would tell: human"),
            ("helpful.true_delta >= -0.02 vs baseline proven", 0.05, "failed", "undecided, more labels would tell"),
            ("helpful.true_delta >= -5% vs baseline proven", 0.05, "passed", "human labels on 40 tests"),
            ("helpful.true_delta >= -0.02 vs baseline", 0.0, "error", (
                "the labels cannot decide: they are all"
            )),
        ],
    )  # fmt: skip
    def test_is_what_labels_say_and_not_the_judge(
        self, shop: Path, gate: str, lost: float, status: str, note: str
    ) -> None:
        run_id = self.baseline(shop, lost=lost)
        found, judged = gates_of(
            config(
                shop,
                gate,
                "helpful.delta >= 0.4 vs baseline",
                labels="both.jsonl",
                baseline=run_id,
                **self.keys,
            )
        )
        assert (found.status, found.note[: len(note)]) == (status, note)
        assert found.actual == (None if status == "error" else pytest.approx(-lost / 2))
        assert judged.status == "passed"

    def test_cannot_be_told_from_few_labels_or_of_another_metric(self, shop: Path) -> None:
        run_id = self.baseline(shop, lost=0.5, labelled=14)
        gate = "helpful.true_delta >= -0.02 vs baseline"
        (few,) = gates_of(config(shop, gate, labels="both.jsonl", baseline=run_id, **self.keys))
        assert (few.status, few.note) == (
            "error", "the labels cannot decide: at least 15 labelled tests are needed"
        )  # fmt: skip
        other = "kind.true_delta >= 0 vs baseline"
        found = problems(config(shop, other, labels="both.jsonl", baseline=run_id, **self.keys))
        assert f"the gate `{other}` is about `kind`, which has no labels" in [item.message for item in found]
        missing = [
            item.message for item in problems(config(shop, gate, "true_delta >= 0 vs baseline", labels=None))
        ]
        assert f"the gate `{gate}` needs human labels" in missing
        assert f"the gate `{gate}` needs a baseline, but there is none" in missing
        assert "unknown figure `true_delta`" in missing

"""What a prepared run takes from the dialect of its config."""

import json
from pathlib import Path

import pytest

from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import fingerprint
from geval_cli.specs.dialect import RULES


@pytest.mark.parametrize(
    ("dialect", "threshold", "label"), [("geval", 0.5, "own"), ("promptfoo", 0.7, "of the column")]
)
def test_a_run_has_the_threshold_the_templates_and_the_row_labels_of_its_dialect(
    tmp_path: Path, dialect: str, threshold: float, label: str
) -> None:
    config = {
        "dialect": dialect,
        "prompts": ["{{x}}"],
        "providers": [{"id": "echo", "label": "of the column"}],
        "tests": [{"vars": {"x": "a"}, "provider": {"id": "echo", "label": "own"}}],
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    prepared = prepare(RunRequest(path, {}))
    rules = RULES[dialect]
    assert (prepared.suite.rules, prepared.templates.rules) == (rules, rules)
    assert prepared.defaults.threshold == threshold
    options = fingerprint(prepared)["options"]
    assert isinstance(options, dict)
    assert options["--dialect"] == dialect
    [job] = prepared.plan.queues[0]
    assert job.shown_provider.label == label

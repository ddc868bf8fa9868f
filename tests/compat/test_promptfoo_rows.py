"""promptfoo's own configs, row by row, against what promptfoo answered; skipped where nothing was recorded."""

from collections import Counter
from collections.abc import Iterator

import pytest
from support.promptfoo_rows import (
    MODES,
    ROOT,
    Table,
    compare,
    recorded_configs,
    reference_model,
    rendered_prompts,
)

from geval_cli.store.state import State, open_state

pytestmark = pytest.mark.skipif(
    not (ROOT / "expected").is_dir(), reason=f"no recorded answers of promptfoo at {ROOT}"
)


EVERY = {"generous": 1, "harsh": 2}
"""Half of the configs are enough to show that what fails there fails here."""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    with open_state(tmp_path_factory.mktemp("state"), {}) as opened:
        yield opened


def test_prompts_come_out_the_same_to_the_letter() -> None:
    wanted: Counter[tuple[str, str, str]] = Counter()
    found: Counter[tuple[str, str, str]] = Counter()
    for recorded in recorded_configs("generous"):
        wanted.update((recorded.config, row["provider"], row["prompt"]) for row in recorded.rows)
        for (provider, prompt), count in rendered_prompts(recorded).items():
            found[recorded.config, provider, prompt] += count
    missing = sum((wanted - found).values())
    assert missing <= 0.01 * sum(wanted.values()), sorted(wanted - found)[:5]


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_the_configs_that_run_are_equal(mode: str, state: State) -> None:
    table = Table()
    with reference_model(mode) as server:
        for recorded in recorded_configs(mode)[:: EVERY[mode]]:
            compared = compare(recorded, server, state)
            if not compared.refused:
                table.add(compared)
    shown = "\n".join(table.lines())
    assert table.equal[mode] >= 0.95 * table.total[mode], shown
    assert table.equal_asserts[mode] + table.errors_on_purpose >= 0.98 * table.total_asserts[mode], shown

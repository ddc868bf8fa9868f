"""Each broken config in `invalid/` and, word for word, what its writer reads about it."""

from pathlib import Path

import pytest
from support.suites import load_suite
from support.whole_lists import name_lists

from geval_cli.errors import ConfigError
from geval_cli.source.problems import render_problems

INVALID = Path(__file__).parent / "invalid"
CONFIGS = sorted(path for path in INVALID.iterdir() if path.suffix in {".yaml", ".json"})
ENV = {"GREETING": "good morning", "HOME": "/home/someone"}


def problems_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        for _ in load_suite(path, env=ENV).tests:
            pass
    return name_lists(render_problems(caught.value.problems)) + "\n"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_writer_of_a_broken_config_reads_what_is_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch, update_expected: bool
) -> None:
    monkeypatch.chdir(INVALID)
    expected = path.with_name(f"{path.name}.err")

    shown = problems_of(Path(path.name))

    if update_expected:
        expected.write_text(shown, encoding="utf-8")
    assert shown == expected.read_text(encoding="utf-8")


def test_every_expected_message_belongs_to_a_config() -> None:
    assert {path.name.removesuffix(".err") for path in INVALID.glob("*.err")} == {
        path.name for path in CONFIGS
    }

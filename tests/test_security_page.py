"""The table of docs/internals/security-model.md names payloads and tests that exist, and names each payload."""

import re
from pathlib import Path

import pytest
from support.payloads import build_world, payloads

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "internals" / "security-model.md"


def lines() -> list[str]:
    page = PAGE.read_text(encoding="utf-8")
    found = [line for line in page.splitlines() if line.startswith("| ")]
    return found[2:] if found[1].startswith("| ---") else found[1:]


def held_by(line: str) -> list[str]:
    return re.findall(r"`([^`]+)`", line.rstrip("| ").rpartition(" | ")[2])


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return {payload.name for payload in payloads(build_world(tmp_path_factory.mktemp("w") / "w", 1))}


def test_each_line_is_held_by_a_test(names: set[str]) -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("test_*.py")))
    known = names | {name.partition(":")[0] for name in names} | set(re.findall(r"def (test_\w+)", source))
    for line in lines():
        assert held_by(line), line
        assert set(held_by(line)) <= known, line


def test_each_payload_stands_in_a_line(names: set[str]) -> None:
    named = {name for line in lines() for name in held_by(line)}
    assert {name for name in names if name not in named and name.partition(":")[0] not in named} == set()

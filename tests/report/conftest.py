"""Expected output kept as files in `expected/`."""

from collections.abc import Callable
from pathlib import Path

import pytest

EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture
def check_expected(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a file, or write the file with `--update-expected`."""

    def check(name: str, text: str) -> None:
        path = EXPECTED / name
        if request.config.getoption("--update-expected"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}"

    return check

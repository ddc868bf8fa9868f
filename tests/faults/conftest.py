from pathlib import Path

import pytest
from support.product import Product


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)

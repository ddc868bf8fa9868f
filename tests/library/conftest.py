"""A judge on 127.0.0.1 behind the variables that the library reads."""

from collections.abc import Iterator

import pytest
from support.judge_server import judge_sensibly
from support.loopback import LoopbackServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    """Answers queued replies first, then judges sensibly; `openai:` and `anthropic:` lead to it."""
    with LoopbackServer(respond=judge_sensibly) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        yield server

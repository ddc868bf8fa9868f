"""Models that are asked through a client of the `openai` library that the user already has."""

import sys
from typing import Any

from msgspec import Struct

HINT = 'write model=(client, "gpt-4.1")'


class ClientModel(Struct, frozen=True, eq=False):
    """A model, and the client that leads to it: OpenAI or AsyncOpenAI, or Azure's, which are such."""

    client: Any
    model: str

    def __repr__(self) -> str:
        return f"ClientModel({type(self.client).__name__}, {self.model!r})"  # a client shows its headers


def is_openai_client(value: object) -> bool:
    """Return whether `value` is a client of the `openai` library, which whoever has one has imported."""
    library: Any = sys.modules.get("openai")
    return library is not None and isinstance(value, library.OpenAI | library.AsyncOpenAI)


def is_async_client(client: object) -> bool:
    """Return whether a client's calls are awaited, and its connections belong to an event loop."""
    library: Any = sys.modules["openai"]
    return isinstance(client, library.AsyncOpenAI)


def client_problem(client: Any) -> tuple[str, str] | None:
    """Return the problem of a client, and a hint.

    Judges live in an event loop of their own, so an asynchronous client is copied with its own connections. That
    cannot be done with an `http_client` of the user's: its connections belong to the user's loop.
    """
    if not is_async_client(client) or type(client._client).__name__ == "AsyncHttpxClientWrapper":
        return None
    message = (
        f"`model` is an {type(client).__name__} with its own `http_client`, which belongs to another "
        "event loop"
    )
    return (
        message,
        f"give an {type(client).__name__.removeprefix('Async')} client, which is called in threads",
    )

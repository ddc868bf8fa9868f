"""Run llama.cpp's own server inside this process, on a free port of 127.0.0.1, one per loaded model."""

import asyncio
import os
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec


class TokenBudget:
    """A budget of `capacity` tokens that requests hold and release; safe to use from event loops in several threads."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._guard = threading.Lock()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, tokens: int) -> AsyncIterator[None]:
        """Hold `tokens` (at most the capacity) inside the block, after waiting until that many are free."""
        needed = min(tokens, self.capacity)
        await self._take(needed)
        try:
            yield
        finally:
            self._give_back(needed)

    async def _take(self, needed: int) -> None:
        with self._guard:
            if not self._waiting and needed <= self._free:
                self._free -= needed
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((needed, turn))
        try:
            await turn
        except asyncio.CancelledError:
            with self._guard:
                was_waiting = (needed, turn) in self._waiting
                if was_waiting:
                    self._waiting.remove((needed, turn))
            self._give_back(0 if was_waiting else needed)
            raise

    def _give_back(self, tokens: int) -> None:
        with self._guard:
            self._free += tokens
            while self._waiting and self._waiting[0][0] <= self._free:
                needed, turn = self._waiting.popleft()
                self._free -= needed
                turn.get_loop().call_soon_threadsafe(_resolve, turn)


def _resolve(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


POOLINGS = ("mean", "cls", "last")
"""Ways to combine the vectors of a text's tokens into one."""

_QUIET = -1
# Metadata is at the beginning of a GGUF file; the pooling keys come before the vocabulary, which takes megabytes.
_HEADER_BYTES = 256 * 1024
_POOLING_KEY = b".pooling_type"
_MODEL_ALIAS = "local"


class LlamaSettings(msgspec.Struct, frozen=True):
    """The settings that a model is loaded with; up to `n_parallel` concurrent answers share `n_ctx` tokens.

    With `pooling`, the model turns texts into vectors: with a method from POOLINGS, or the file's own (`model`).
    """

    path: Path
    n_ctx: int = 8192
    n_parallel: int = 4
    n_threads: int | None = None
    pooling: str = ""


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A running server.

    Attributes:
        key: the bearer token that requests must carry, so that no one else on the machine can use the server.
        budget: the tokens of its context; concurrent answers that together need more than that all fail.
        raters: held while a rating is made. Ratings of one metric share the beginning of their prompt; llama.cpp reuses
            it for a request that follows another, but reads it again for each of several concurrent ones.
    """

    url: str
    key: str = field(repr=False)
    budget: TokenBudget = field(repr=False)
    native: Any = field(repr=False)
    raters: TokenBudget = field(default_factory=lambda: TokenBudget(1), repr=False)


class LlamaPool:
    """Loads each model once, however many providers use it, and frees it after the last one. Thread-safe."""

    def __init__(self, load: Callable[[LlamaSettings], LlamaServer]) -> None:
        self._load = load
        self._guard = threading.Lock()
        self._slots: dict[LlamaSettings, _Slot] = {}

    def acquire(self, settings: LlamaSettings) -> LlamaServer:
        """Return the server for `settings`; blocks while it loads. Every successful call needs a `release`."""
        with self._guard:
            slot = self._slots.setdefault(settings, _Slot())
            slot.users += 1
        try:
            with slot.loading:
                if slot.server is None:
                    slot.server = self._load(settings)
                return slot.server
        except BaseException:
            self.release(settings)
            raise

    def release(self, settings: LlamaSettings) -> None:
        """Release a server; the last user's release frees it."""
        with self._guard:
            slot = self._slots[settings]
            slot.users -= 1
            if slot.users == 0:
                del self._slots[settings]


class _Slot(msgspec.Struct):
    users: int = 0
    server: LlamaServer | None = None
    loading: threading.Lock = msgspec.field(default_factory=threading.Lock)


def start_llama_server(settings: LlamaSettings) -> LlamaServer:
    """Load a model and serve it; blocks, for about a second with a small model.

    Raises:
        ImportError: xllamacpp is not installed.
        RuntimeError: llama.cpp cannot load the file.
    """
    # Read when the native library is loaded. By default, its threads busy-wait for one another: next to any
    # other busy process, 60 tokens took 80 s instead of 1.4 s (two cores).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(settings.path)
    params.model_alias = {_MODEL_ALIAS}
    params.n_ctx = settings.n_ctx
    params.n_parallel = settings.n_parallel
    # One pool of n_ctx tokens for all answers: otherwise each gets n_ctx / n_parallel and long prompts fail.
    params.kv_unified = True
    params.warmup = False
    params.verbosity = _QUIET
    params.port = 0
    params.ui = False
    params.endpoint_slots = False
    if settings.pooling:
        _make_embedding(params, settings, xllamacpp.llama_pooling_type)
    key = secrets.token_hex(16)
    params.api_keys = [key]
    if settings.n_threads is not None:
        params.cpuparams.n_threads = settings.n_threads
    native = xllamacpp.Server(params)
    return LlamaServer(native.listening_address, key, TokenBudget(settings.n_ctx), native)


def _make_embedding(params: Any, settings: LlamaSettings, kinds: Any) -> None:
    params.embedding = True
    # A text is embedded as a whole: anything longer than a batch is rejected.
    params.n_batch = params.n_ubatch = settings.n_ctx
    named = settings.pooling
    if named == "model":
        if names_pooling(settings.path):
            return
        named = "mean"
    params.pooling_type = getattr(kinds, f"LLAMA_POOLING_TYPE_{named.upper()}")


def names_pooling(path: Path) -> bool:
    """Return whether a model file specifies its pooling; only the header, before the vocabulary, is read."""
    with path.open("rb") as file:
        return _POOLING_KEY in file.read(_HEADER_BYTES)

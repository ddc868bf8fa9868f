"""Fan-out: ask for many samples in one request if the server takes it, else in as few requests as it allows."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct, field

from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderSettledError,
    UnsupportedParameterError,
)
from geval_cli.gateway.call import Handler, ModelCall, Notice, ServerKey, join
from geval_cli.gateway.capabilities import Discovery
from geval_cli.records import ModelResponse

_FEATURE = "n"
# Who goes ahead in ignorance loses nothing: a refusal is free, and what comes of too wide a request counts.
_PATIENCE_S = 2.0

# The parameter `n` in an error text, under the names that servers give it; not the end of an escaped line break.
_NAMES_N = re.compile(r"(?<![\\\w])(n|n_cmpl|n_choices|n_parallel)(?!\w)|completion choices?", re.IGNORECASE)


class _Width(Struct):
    """The choices that a server gives at a time: `most` so far, a limit once it gave fewer than asked."""

    discovery: Discovery = field(default_factory=Discovery)
    most: int = 1
    is_limited: bool = False

    def learn(self, *, asked: int, given: int) -> None:
        self.most = max(self.most, given)
        self.is_limited = self.is_limited or given < asked

    def refuse(self) -> None:
        self.most, self.is_limited = 1, True

    def chunks(self, indexes: Sequence[int]) -> list[tuple[int, ...]]:
        size = self.most if self.is_limited else len(indexes)
        return [tuple(indexes[start : start + size]) for start in range(0, len(indexes), size)]


class _Gathered(Struct):
    """The responses for one call so far.

    A sample is lost, and not asked for again, when its request failed for good, or what came for it is no answer.
    """

    parts: list[ModelResponse] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    error: ProviderError | None = None

    def add(self, response: ModelResponse, asked: Sequence[int]) -> None:
        """Add the response to a request for the samples `asked`."""
        self.parts.append(response)
        left = [index for index in asked if index not in response.sample_indexes]
        self.lost.update(left[: response.lost])

    def missing(self, wanted: Sequence[int]) -> list[int]:
        given = {index for part in self.parts for index in part.sample_indexes}
        return [index for index in wanted if index not in given and index not in self.lost]


class FanOut:
    """A layer that asks for the samples of a call in one request or several, and joins the responses."""

    def __init__(self, notice: Notice, *, patience_s: float = _PATIENCE_S) -> None:
        """Build the layer; calls wait `patience_s` seconds at most for what the first one finds out about `n`."""
        self._notice = notice
        self._patience_s = patience_s
        self._widths: defaultdict[ServerKey, _Width] = defaultdict(_Width)

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        wanted = call.request.sample_indexes
        if len(wanted) == 1:
            return await send_next(call)
        width = self._widths[call.server]
        gathered = _Gathered()
        claimed = await width.discovery.claim({_FEATURE}, patience_s=self._patience_s)
        if claimed:
            known: frozenset[str] = frozenset()
            try:
                response = await self._send(call, width, send_next)
                known = frozenset({_FEATURE})
                if response is not None:
                    gathered.add(response, wanted)
            finally:
                width.discovery.settle({_FEATURE}, known=known)
        while missing := gathered.missing(wanted):
            await self._ask(call, width.chunks(missing), gathered, send_next)
        if not gathered.parts and gathered.error is not None:
            raise gathered.error
        return join(gathered.parts, wanted)

    async def _ask(
        self, call: ModelCall, chunks: Sequence[tuple[int, ...]], gathered: _Gathered, send_next: Handler
    ) -> None:
        width = self._widths[call.server]
        answers = await asyncio.gather(
            *(self._send(call.for_samples(chunk), width, send_next) for chunk in chunks),
            return_exceptions=True,
        )
        for chunk, answer in zip(chunks, answers, strict=True):
            if isinstance(answer, ModelResponse):
                gathered.add(answer, chunk)
            elif isinstance(answer, ProviderError) and not isinstance(answer, ProviderSettledError):
                gathered.lost.update(chunk)
                gathered.error = gathered.error or answer
            elif isinstance(answer, BaseException):
                raise answer

    async def _send(self, call: ModelCall, width: _Width, send_next: Handler) -> ModelResponse | None:
        """Return the answer, or None when the server refuses to give several choices at once."""
        asked = len(call.request.sample_indexes)
        try:
            response = await send_next(call)
        except ProviderRequestError as error:
            if asked == 1 or not _refuses_n(error):
                raise
            if not width.is_limited or width.most > 1:
                width.refuse()
                self._tell(call)
            return None
        if asked > 1:
            was_wide = not width.is_limited
            width.learn(asked=asked, given=len(response.choices) + response.lost)
            if was_wide and width.is_limited and width.most == 1:
                self._tell(call)
        return response

    def _tell(self, call: ModelCall) -> None:
        label = call.provider.label
        self._notice(f"{label} gives one answer per request; samples are sent as parallel requests")


def _refuses_n(error: ProviderRequestError) -> bool:
    if isinstance(error, UnsupportedParameterError):
        return error.parameter == _FEATURE
    return _NAMES_N.search(error.body) is not None

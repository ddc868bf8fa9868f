"""Capabilities: leave out or replace parameters that a server refuses, remember them, and tell the user once.

The number of samples per request is one of them (`FanOut`): all samples are requested at once if the server supports
it, otherwise in as few requests as it allows.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderSettledError,
    UnsupportedParameterError,
)
from geval_cli.gateway.call import Handler, ModelCall, Notice, ServerKey, join
from geval_cli.records import JsonValue, ModelRequest, ModelResponse


class Discovery:
    """The known features of one server, and those that a call is testing. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def claim(self, features: AbstractSet[str], *, patience_s: float) -> frozenset[str]:
        """Wait until all of `features` are known, or until it is up to this call to find out about the unknown ones.

        No call waits in vain twice: when the call that was to find out fails, all calls that wait for it proceed at
        once. A caller that gets features must `settle` them, whatever happens.

        Args:
            features: what the call needs.
            patience_s: the longest time to wait for other calls; after that the call proceeds without a claim.

        Returns:
            The features that this call is to find out about; empty when all are known, or when waiting did not help.
        """
        while unknown := self.unknown(features):
            awaited = unknown & self._under_way.keys()
            if not awaited:
                found = asyncio.get_running_loop().create_future()
                self._under_way.update(dict.fromkeys(unknown, found))
                return frozenset(unknown)
            await asyncio.wait({self._under_way[name] for name in awaited}, timeout=patience_s)
            if not awaited <= self._known:
                break
        return frozenset()

    def unknown(self, features: AbstractSet[str]) -> AbstractSet[str]:
        """Return those of `features` that are not known yet."""
        return features - self._known

    def settle(self, claimed: AbstractSet[str], *, known: AbstractSet[str]) -> None:
        """End a claim. Of `claimed`, the features in `known` are settled; later calls may claim the rest."""
        self._known |= known
        for name in claimed:
            found = self._under_way.pop(name)
            if not found.done():
                found.set_result(None)


LOGPROBS = "logprobs"
RESPONSE_FORMAT = "response_format"
JSON_SCHEMA = "json_schema"

# OpenAI's reasoning models refuse the old name; most other servers know only the old one.
_REPLACED_BY = {"max_tokens": "max_completion_tokens"}
_ALWAYS_NEEDED = frozenset({"model", "messages", "n"})  # a refused `n` is handled by the fan-out

# The numbers of tokens that Ollama reads of a prompt that it cuts off without a word: its context, a power of two, or
# two more than half of it. Its chat API cannot be told another context.
_CUT_TO = frozenset({*(2**bits for bits in range(11, 18)), *(2**bits + 2 for bits in range(10, 17))})

# What the first call finds out while others wait, besides log-probabilities and the response format.
_PARAMETERS_FOUND_OUT = frozenset({"temperature", "max_tokens"})
# A refusal comes before anything is generated, so there is no point in waiting for a long answer to see one. That a
# server ignores the request for log-probabilities shows only in the answer, and a judge's form paid for without them is
# wasted. A call that requests too many choices without waiting loses nothing: a refusal is free, and all choices that
# come are used.
_PATIENCE_S = 2.0
_PATIENCE_FOR_LOGPROBS_S = 10.0


class _Capabilities(Struct):
    """The parameters that one server has refused, and those still to be tested."""

    discovery: Discovery = field(default_factory=Discovery)
    left_out: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    schema_forms: list[str] = field(default_factory=lambda: [JSON_SCHEMA, "json_object"])
    gives_logprobs: bool = False

    @property
    def has_limits(self) -> bool:
        takes_schema = JSON_SCHEMA in self.schema_forms
        return bool(self.left_out or self.replaced or not takes_schema)

    def adapt(
        self, request: ModelRequest, config: Mapping[str, JsonValue]
    ) -> tuple[ModelRequest, tuple[str, ...]]:
        """Return `request` as this server accepts it, and the names left out. A param of None is not sent."""
        if not self.has_limits:
            return request, ()
        params = dict(request.params)
        dropped: list[str] = []
        added = request.added
        for name in self.replaced:
            value = params.get(name, config.get(name))
            if value is not None:
                params[name] = None
                params[_REPLACED_BY[name]] = value
        for name in sorted(self.left_out):
            if params.get(name, config.get(name)) is not None:
                params[name] = None
                dropped.append(name)
        schema = request.response_schema
        if schema is not None and JSON_SCHEMA not in self.schema_forms:
            schema = None
            dropped.append(JSON_SCHEMA if self.schema_forms else RESPONSE_FORMAT)
            if self.schema_forms:
                params[RESPONSE_FORMAT] = {"type": self.schema_forms[0]}
                added |= {RESPONSE_FORMAT}
        wants = request.want_logprobs
        if wants and LOGPROBS in self.left_out:
            wants = False
            dropped.append(LOGPROBS)
        adapted = replace(request, params=params, response_schema=schema, want_logprobs=wants, added=added)
        return adapted, tuple(dict.fromkeys(dropped))

    def refuse(self, parameter: str, sent: ModelRequest) -> str:
        """Remember that `sent` was refused because of `parameter`, and return a sentence for the user."""
        if parameter in _REPLACED_BY and parameter not in self.replaced:
            self.replaced.add(parameter)
            return f"takes `{_REPLACED_BY[parameter]}` instead of `{parameter}`"
        if parameter == RESPONSE_FORMAT and (sent.response_schema or sent.params.get(RESPONSE_FORMAT)):
            refused = JSON_SCHEMA if sent.response_schema else "json_object"
            if refused in self.schema_forms:
                self.schema_forms.remove(refused)
            if self.schema_forms:
                return "does not accept a JSON Schema; answers are requested as plain JSON"
            return "does not accept a response format; only the prompt asks for JSON"
        if parameter in {LOGPROBS, "top_logprobs"}:
            self.left_out.update((LOGPROBS, "top_logprobs"))
            return "gives no token log-probabilities"
        self.left_out.add(parameter)
        return f"does not accept `{parameter}`, which is now left out"


class CapabilityLayer:
    """A layer that adapts each call to its server; the first call that needs a parameter tests its support."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._servers: defaultdict[ServerKey, _Capabilities] = defaultdict(_Capabilities)

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        server = self._servers[call.server]
        needed = features_of(call)
        if not server.discovery.unknown(needed):
            return await self._ask(call, server, send_next)
        patience_s = _PATIENCE_FOR_LOGPROBS_S if LOGPROBS in needed else _PATIENCE_S
        claimed = await server.discovery.claim(needed, patience_s=patience_s)
        if not claimed:
            return await self._ask(call, server, send_next)
        known: frozenset[str] = frozenset()
        try:
            response = await self._ask(call, server, send_next)
            is_open = not (server.gives_logprobs or LOGPROBS in server.left_out)
            known = claimed - {LOGPROBS} if is_open else claimed
        finally:
            server.discovery.settle(claimed, known=known)
        return response

    async def _ask(self, call: ModelCall, server: _Capabilities, send_next: Handler) -> ModelResponse:
        config = call.provider.identity.params
        while True:
            request, dropped = server.adapt(call.request, config)
            try:
                sent = call if request is call.request else replace(call, request=request)
                response = await send_next(sent)
            except UnsupportedParameterError as error:
                if error.parameter in _ALWAYS_NEEDED:
                    raise
                # If the adapted request differs, another call has learned something since this one was sent.
                if server.adapt(call.request, config)[0] == request:
                    finding = server.refuse(error.parameter, request)
                    if server.adapt(call.request, config)[0] == request:
                        raise
                    self._notice(f"{call.provider.label} {finding}")
                continue
            read = response.usage.input_tokens
            if read in _CUT_TO and call.provider.id.startswith("ollama:"):
                self._notice(
                    f"{call.provider.label} read exactly {read:,} tokens of a prompt and has probably cut it off: set"
                    " OLLAMA_CONTEXT_LENGTH to a larger context at the server, then run with --no-cache"
                )
            dropped = (*dropped, *self._missing_logprobs(call, request, response))
            if not dropped:
                return response
            return replace(response, dropped=tuple(dict.fromkeys((*response.dropped, *dropped))))

    def _missing_logprobs(
        self, call: ModelCall, sent: ModelRequest, response: ModelResponse
    ) -> tuple[str, ...]:
        """Return the name `LOGPROBS` if the server ignored the request for them; tell the user the first time."""
        server = self._servers[call.server]
        if not sent.want_logprobs or server.gives_logprobs:
            return ()
        if any(choice.token_logprobs is not None for choice in response.choices):
            server.gives_logprobs = True
            return ()
        if not any(choice.text for choice in response.choices):
            return ()  # an empty answer has no tokens to report on
        if LOGPROBS not in server.left_out:
            self._notice(f"{call.provider.label} {server.refuse(LOGPROBS, sent)}")
        return (LOGPROBS,)


def features_of(call: ModelCall) -> set[str]:
    """Return the features that a call needs and that not every server has."""
    request, config = call.request, call.provider.identity.params
    features = set()
    for name in _PARAMETERS_FOUND_OUT:
        if request.params.get(name, config.get(name)) is not None:
            features.add(name)
    if request.want_logprobs:
        features.add(LOGPROBS)
    if request.response_schema is not None:
        features.add(RESPONSE_FORMAT)
    return features


_FEATURE = "n"
# The parameter `n` in an error text, under the names that servers use; not the end of an escaped line break.
_NAMES_N = re.compile(r"(?<![\\\w])(n|n_cmpl|n_choices|n_parallel)(?!\w)|completion choices?", re.IGNORECASE)


class _ChoiceLimit(Struct):
    """The number of choices a server gives per request: `most` so far, a limit once it gave fewer than requested."""

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

    A sample is lost, and not requested again, when its request failed for good or its choice is not usable as an
    answer.
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
    """A layer that requests the samples of a call in one request or several, and joins the responses."""

    def __init__(self, notice: Notice, *, patience_s: float = _PATIENCE_S) -> None:
        """Build the layer; calls wait at most `patience_s` seconds for the first call to find out about `n`."""
        self._notice = notice
        self._patience_s = patience_s
        self._widths: defaultdict[ServerKey, _ChoiceLimit] = defaultdict(_ChoiceLimit)

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

    async def _send(self, call: ModelCall, width: _ChoiceLimit, send_next: Handler) -> ModelResponse | None:
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

"""The interface to a vendor's batch API: many requests submitted together, answered within a day for less money."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum, auto
from typing import Any, BinaryIO, Protocol

from msgspec import Struct

from geval_cli.errors import ProviderResponseError
from geval_cli.json_codec import decode_json
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.network.transport import json_in, response_error
from geval_cli.providers.preset_table import KIND_ALIASES, PRESETS
from geval_cli.providers.prices import Price
from geval_cli.providers.wire.chat import finite_number
from geval_cli.providers.wire.refusals import CallContext
from geval_cli.records import JsonValue, ModelRequest, ModelResponse

LOGPROBS_PER_BATCH = 5_000
"""An answer with token log-probabilities takes about 70 kB; a results file with more of them is slow to re-fetch."""


_MOST_DIGITS = 18
_CLOCKS_DIFFER_S = 3600.0
_MOST_EMPTY_PAGES = 100  # in a row: where a list is filtered, its pages may be


class RemoteState(StrEnum):
    """The state of a batch at its provider."""

    RUNNING = auto()
    COMPLETED = auto()
    EXPIRED = auto()
    CANCELLED = auto()
    FAILED = auto()


class RemoteBatch(Struct, frozen=True):
    """A batch as its provider describes it. Times are seconds since 1970.

    Attributes:
        total: the number of its requests; 0 while the provider does not say.
        answered: how many of them are finished, successfully or not.
        label: the label geval gave it, if the provider stores one.
        results: the ids or addresses of its results files; each may hold a part.
        code: the provider's error code if it failed; `message` is the text for people.
    """

    id: str
    state: RemoteState
    total: int = 0
    answered: int = 0
    expires_at: float | None = None
    label: str | None = None
    results: tuple[str, ...] = ()
    code: str = ""
    message: str = ""

    @property
    def is_token_limit(self) -> bool:
        """Return whether the provider refused the batch as too many tokens are queued; none of it was processed."""
        return self.code == "token_limit_exceeded"


class BatchLine(Struct, frozen=True):
    """One result: an HTTP status and body, or neither because the batch ended before its turn (`is_left_out`)."""

    custom_id: str
    status: int = 200
    body: JsonValue = None
    is_left_out: bool = False


class BrokenResultsError(ValueError):
    """The results file does not have the documented format: it is truncated, or it is a different file."""


class FileNotReadyError(Exception):
    """The provider is still processing the uploaded file; creating the batch works a little later."""


class BatchApi(Protocol):
    """The batch API of one provider. Every method raises a ProviderError when the provider is unreachable or refuses.

    Attributes:
        fewest_requests, most_requests, most_bytes: the limits of one batch.
    """

    fewest_requests: int
    most_requests: int
    most_bytes: int

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Return the line for one request in the batch's input file; `body` is its JSON."""
        ...

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        """Upload the lines of a batch and return the file's id; None if lines are sent when the batch is created."""
        ...

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        """Create a batch from an uploaded file, or from `file`.

        Raises:
            FileNotReadyError: the provider has not finished processing the uploaded file.
        """
        ...

    async def find(
        self, batch_id: str, *, since: float, requests: int, file_id: str | None
    ) -> list[RemoteBatch]:
        """Return the batches that could be `batch_id`, which has `requests` requests and was created after `since`.

        A certain match has `batch_id` as its label. `file_id` is the value that `upload` returned.
        """
        ...

    async def get(self, remote_id: str) -> RemoteBatch:
        """Return the current state of a batch."""
        ...

    def results(self, batch: RemoteBatch) -> AsyncIterator[BatchLine]:
        """Yield the results of a finished batch, in any order.

        Raises:
            BrokenResultsError: some lines are unreadable; raised after all readable ones were yielded.
        """
        ...

    async def cancel(self, remote_id: str) -> None:
        """Ask the provider to cancel a batch; requests answered by then are kept and paid for."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


def read_line(text: bytes | str, *, id_key: str = "custom_id") -> Mapping[str, Any]:
    """Parse one line of a results file into an object.

    Raises:
        BrokenResultsError: the line holds no such object.
    """
    try:
        found = decode_json(text)
    except ValueError as error:
        raise BrokenResultsError(f"a results line is not JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get(id_key), str):
        raise BrokenResultsError("a results line has no request id")
    return found


async def readable_lines(
    texts: AsyncIterator[bytes], read: Callable[[bytes], BatchLine]
) -> AsyncIterator[BatchLine]:
    """Yield `read(line)` for each line that is not blank.

    Raises:
        BrokenResultsError: some lines are unreadable; raised after all readable ones were yielded.
    """
    broken, first = 0, ""
    async for text in texts:
        if not text.strip():
            continue
        try:
            yield read(text)
        except BrokenResultsError as error:
            broken, first = broken + 1, first or str(error)
    if broken:
        raise BrokenResultsError(first if broken == 1 else f"{first}; {broken:,} lines are broken like this")


def joined(head: Mapping[str, JsonValue], name: str, body: bytes) -> bytes:
    """Return the JSON line of an object whose last key, `name`, holds `body`, which is already JSON."""
    return json.dumps(head).encode()[:-1] + f', "{name}": '.encode() + body + b"}\n"


def moment(value: Any) -> float | None:
    """Parse a time given as seconds since 1970 or as ISO 8601 text; None for anything else."""
    if not isinstance(value, str):
        return finite_number(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return None


def is_too_old(created_at: float | None, since: float) -> bool:
    """Return whether a batch was created before `since`, allowing for clock differences."""
    return created_at is not None and created_at < since - _CLOCKS_DIFFER_S


def has_texts(item: Any, *names: str) -> bool:
    """Return whether `item` is an object with a string under each of `names`."""
    return isinstance(item, dict) and all(isinstance(item.get(name), str) and item[name] for name in names)


class ListedPages:
    """The pages of a batch list read so far. Guards against servers that ignore the page parameter."""

    def __init__(self, provider_id: str) -> None:
        self._provider_id = provider_id
        self._seen: set[str] = set()
        self._empty = 0

    def turn(self, ids: Iterable[str]) -> None:
        """Record the batch ids on a page.

        Raises:
            ProviderResponseError: the page has no batch that earlier pages did not have.
        """
        page = set(ids)
        self._empty = 0 if page else self._empty + 1
        if self._empty >= _MOST_EMPTY_PAGES or (page and page <= self._seen):
            what = "only repeats earlier ones" if page else "is as empty as those before"
            message = f"{self._provider_id} sent a page of its list of batches that {what}"
            raise ProviderResponseError(message, provider_id=self._provider_id)
        self._seen |= page


async def labelled(
    batch_id: str, provider_id: str, page_of: Callable[[str], Awaitable[tuple[list[RemoteBatch], Any]]]
) -> list[RemoteBatch]:
    """Return the batch labelled `batch_id`, if any page lists it.

    Args:
        batch_id: the label that geval gave the batch.
        provider_id: the provider whose list is searched.
        page_of: returns the batches of a page, given its token ("" for the first), and the token of the next page.
    """
    token, pages = "", ListedPages(provider_id)
    while True:
        found, following = await page_of(token)
        pages.turn(batch.id for batch in found)
        ours = [batch for batch in found if batch.label == batch_id]
        if ours or not following or following == token:
            return ours[:1]
        token = str(following)


def whole(value: Any) -> int:
    """Parse a count or code, which some APIs write as text; 0 if it is neither."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class BatchingProvider(Protocol):
    """A provider that may have a batch API."""

    @property
    def batches(self) -> BatchApi | None: ...

    @property
    def batch_price(self) -> Price | None: ...

    def payload(self, request: ModelRequest) -> object: ...

    def batched_response(self, request: ModelRequest, status: int, body: JsonValue) -> ModelResponse: ...


_WITHOUT = {
    "azure": "set `batch_deployment` in its config to a Global Batch deployment of the same model",
    "bedrock": "set `batch_s3` and `batch_role_arn` in its config, and use AWS credentials",
    "vertex": "Vertex AI reads batches only from Cloud Storage or BigQuery; use google: or anthropic: instead",
}


def could_have_batches(provider_id: str) -> bool:
    """Return whether the provider's vendor has a batch API that this configuration cannot use."""
    kind = provider_id.partition(":")[0]
    return KIND_ALIASES.get(kind, kind) in _WITHOUT


def way_to_batches(provider_id: str, config: Mapping[str, JsonValue] | None = None) -> str:
    """Return a hint on how to use batches, for a provider without a batch API."""
    kind, _, name = provider_id.partition(":")
    kind = KIND_ALIASES.get(kind, kind)
    if (config or {}).get("batch") is False:
        return "remove `batch: false` from its config"
    if kind in _WITHOUT:
        return _WITHOUT[kind]
    preset = PRESETS.get(kind)
    if preset is not None and preset.batch and name.startswith("responses:"):
        return f"write `{kind}:{name.removeprefix('responses:')}`: its batches take chat requests only"
    able = [f"{kind}:" for kind, preset in PRESETS.items() if preset.batch and kind not in _WITHOUT]
    return f"use {', '.join(able)}, or set `batch: openai` for a server that has OpenAI's batch API"


def object_in(reply: HttpResponse, context: CallContext) -> dict[str, Any]:
    """Return the JSON object of a 2xx `reply`. Raises ProviderResponseError if there is none."""
    found = json_in(reply, context)
    if not isinstance(found, dict):
        raise response_error("JSON that is not an object", reply, context)
    return found

"""A vendor's API for batches: many requests are submitted together and answered within a day, for less money."""

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
"""With token log-probabilities an answer takes some 70 kB; so many of them are a file that can be fetched again."""


_MOST_DIGITS = 18
_CLOCKS_DIFFER_S = 3600.0
_MOST_EMPTY_PAGES = 100  # in a row: where a list is filtered, its pages may be


class RemoteState(StrEnum):
    """States of a batch as its provider has it."""

    RUNNING = auto()
    COMPLETED = auto()
    EXPIRED = auto()
    CANCELLED = auto()
    FAILED = auto()


class RemoteBatch(Struct, frozen=True):
    """A batch as its provider describes it. Times are seconds since 1970.

    Attributes:
        total: its requests, 0 while the provider does not say.
        answered: those that are done, whatever came of them.
        label: our name of it, where the provider keeps one.
        results: where its results are; of several, each holds some.
        code: why it failed, in the provider's words; `message` is for people.
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
        """Return whether the provider takes no more tokens at a time; nothing was asked then."""
        return self.code == "token_limit_exceeded"


class BatchLine(Struct, frozen=True):
    """One result: an HTTP status with a body, or no answer at all because the batch ended before (`is_left_out`)."""

    custom_id: str
    status: int = 200
    body: JsonValue = None
    is_left_out: bool = False


class BrokenResultsError(ValueError):
    """Lines of results are not what the API promises: the file was cut, or is another one."""


class FileNotReadyError(Exception):
    """The provider is still reading the file of a batch, which can be created a little later."""


class BatchApi(Protocol):
    """One provider's batches. All methods raise a ProviderError when the provider cannot be asked or refuses.

    Attributes:
        fewest_requests, most_requests, most_bytes: what one batch takes.
    """

    fewest_requests: int
    most_requests: int
    most_bytes: int

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Return a request as the file of a batch has it; `body` is its JSON."""
        ...

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        """Upload the lines of a batch, and return the name of the file; None where a batch takes them itself."""
        ...

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        """Create a batch of an uploaded file, or of `file`.

        Raises:
            FileNotReadyError: the file has not been read yet.
        """
        ...

    async def find(
        self, batch_id: str, *, since: float, requests: int, file_id: str | None
    ) -> list[RemoteBatch]:
        """Return the batches that may be `batch_id`, which had `requests` requests and was begun at `since`.

        One that it certainly is has `batch_id` as its label. `file_id` is what `upload` returned.
        """
        ...

    async def get(self, remote_id: str) -> RemoteBatch:
        """Return a batch as it is now."""
        ...

    def results(self, batch: RemoteBatch) -> AsyncIterator[BatchLine]:
        """Yield the results of a batch that has ended, in no order.

        Raises:
            BrokenResultsError: some lines cannot be read; it comes after all that can.
        """
        ...

    async def cancel(self, remote_id: str) -> None:
        """Ask the provider to end a batch; what is answered by then is kept, and paid for."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


def read_line(text: bytes | str, *, id_key: str = "custom_id") -> Mapping[str, Any]:
    """Return the object in a line of results.

    Raises:
        BrokenResultsError: it holds none.
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
    """Yield what `read` makes of each line that is not blank.

    Raises:
        BrokenResultsError: some lines cannot be read; all others have been yielded by then.
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
    """Return the line of an object whose last key, `name`, holds `body`, which is JSON already."""
    return json.dumps(head).encode()[:-1] + f', "{name}": '.encode() + body + b"}\n"


def moment(value: Any) -> float | None:
    """Return a moment that an API gives as seconds since 1970 or as text (ISO 8601); None for what is neither."""
    if not isinstance(value, str):
        return finite_number(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return None


def is_too_old(created_at: float | None, since: float) -> bool:
    """Return whether a batch was created before `since`, though the clocks here and there may differ."""
    return created_at is not None and created_at < since - _CLOCKS_DIFFER_S


def has_texts(item: Any, *names: str) -> bool:
    """Return whether an item of an answer is an object that has a text under each of `names`."""
    return isinstance(item, dict) and all(isinstance(item.get(name), str) and item[name] for name in names)


class ListedPages:
    """The pages of a list of batches that were read. A server may ignore which page it is asked for."""

    def __init__(self, provider_id: str) -> None:
        self._provider_id = provider_id
        self._seen: set[str] = set()
        self._empty = 0

    def turn(self, ids: Iterable[str]) -> None:
        """Take note of the batches on a page.

        Raises:
            ProviderResponseError: it brings nothing that earlier pages did not have.
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
    """Return the batch that has `batch_id` as its label, if any page has it.

    Args:
        batch_id: our name of the batch.
        provider_id: the provider whose list it is.
        page_of: gives the batches of the page that a token names ("": the first), and the token of the next.
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
    """Return a count or a code, which some APIs write as text; 0 for what is none."""
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
    """Return whether a provider's vendor has batches, which the provider as it is configured cannot use."""
    kind = provider_id.partition(":")[0]
    return KIND_ALIASES.get(kind, kind) in _WITHOUT


def way_to_batches(provider_id: str, config: Mapping[str, JsonValue] | None = None) -> str:
    """Return what to do to have batches, for a provider that has none."""
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
    """Return the JSON object in a 2xx `reply`. Raises ProviderResponseError when there is none."""
    found = json_in(reply, context)
    if not isinstance(found, dict):
        raise response_error("JSON that is not an object", reply, context)
    return found

"""Remote test data: files through fsspec (https, s3), and rows of Hugging Face data sets through their API.

Copies are kept in the home folder and downloaded again only when the source has changed.
"""

import asyncio
import codecs
import hashlib
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlencode

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ConfigError, GevalError, Location, Problem, ProviderError
from geval_cli.json_codec import decode_json
from geval_cli.providers.network.addresses import is_loopback, split_url
from geval_cli.providers.network.messages import HttpCall, HttpResponse
from geval_cli.providers.network.transport import Transport
from geval_cli.providers.redaction import Secrets, public_url
from geval_cli.providers.wire.refusals import CallContext
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import hash_file
from geval_cli.store.home import make_folder
from geval_cli.suite.validation import FetchedSource
from geval_cli.version import install_hint

HUGGINGFACE = "huggingface://"
DATASETS_PREFIX = f"{HUGGINGFACE}datasets/"
ENDPOINT_VARIABLE = "GEVAL_HF_ROWS_URL"
MOST_ROWS = 10_000
MAX_BYTES = 16 << 30

_ENDPOINT = "https://datasets-server.huggingface.co"
_TOKENS = ("HF_TOKEN", "HF_API_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_PAGE_ROWS = 100
_ATTEMPTS = 4
_WAIT_S = 0.25
_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_PARAMETERS = frozenset({"split", "config", "subset", "limit"})
_BEGINNING = 1024  # bytes
_LOGIN_HINT = "it may be private: put user and password, or a token, into the URL with {{ env.NAME }}"
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)


class DownloadError(GevalError):
    """Remote test data could not be downloaded. The message contains no credentials."""


def file_version(address: str) -> str:
    """Return a string that changes with the file at `address` (its ETag or modification time); "" if unknown.

    Raises:
        DownloadError: there is no such file, it may not be read, or it is too large.
    """
    found = _ask(address, lambda files: files.info(address))
    if (found.get("size") or 0) > MAX_BYTES:
        raise DownloadError(f"{public_url(address)} is larger than {MAX_BYTES >> 30} GB", hint="split it")
    for name in ("ETag", "Content-MD5", "Last-Modified", "LastModified"):
        if found.get(name):
            return f"{name} {found[name]} {found.get('size')}"
    return ""


def download_file(address: str, target: Path) -> None:
    """Download the file at `address` to `target`, chunk by chunk.

    Raises:
        DownloadError: as for `file_version`.
    """
    _ask(address, lambda files: files.get_file(address, str(target)))


def _ask(address: str, act: Any) -> Any:
    shown = public_url(address)
    try:
        import fsspec  # noqa: PLC0415 - an extra

        protocol = address.partition("://")[0]
        is_web = protocol in {"http", "https"}
        options = {"client_kwargs": {"timeout": _TIMEOUT, "trust_env": True}} if is_web else {}
        files = fsspec.filesystem(protocol, skip_instance_cache=True, **options)
    except ImportError as error:
        hint = f"install it {install_hint('remote')}; or download the file and refer to it with file://"
        raise DownloadError(f"reading {shown} needs fsspec and s3fs", hint=hint) from error
    try:
        return act(files)
    except (OSError, aiohttp.ClientError, ValueError) as error:
        raise _download_error(shown, error) from error
    except Exception as error:
        # botocore's errors (no credentials, no such region) have no base class that is available without importing it.
        if type(error).__module__.partition(".")[0] not in {"botocore", "aiobotocore", "fsspec", "s3fs"}:
            raise
        raise _download_error(shown, error) from error


def _download_error(shown: str, error: Exception) -> DownloadError:
    """Return the error with our own message: those of libraries contain the full URL with its credentials."""
    cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
    if isinstance(cause, aiohttp.ClientResponseError):
        hint = "check the address"
        if cause.status in {401, 403}:
            hint = _LOGIN_HINT
        return DownloadError(f"{shown} cannot be read: HTTP {cause.status}", hint=hint)
    if isinstance(cause, aiohttp.ClientConnectionError | TimeoutError):
        return DownloadError(
            f"{shown} cannot be reached", hint="check the address, the network and HTTPS_PROXY"
        )
    if isinstance(error, FileNotFoundError):
        return DownloadError(f"there is no file {shown}", hint="check the address")
    if isinstance(error, PermissionError):
        return DownloadError(
            f"access to {shown} is denied", hint="check the credentials, for example AWS_PROFILE"
        )
    if type(error).__name__ in {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}:
        hint = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return DownloadError(f"no credentials found for {shown}", hint=hint)
    return DownloadError(
        f"{shown} cannot be read ({type(error).__name__})", hint="check the URL and the credentials"
    )


class DatasetName(Struct, frozen=True):
    """Part of a Hugging Face data set; `limit` is the maximum number of rows, None for all."""

    dataset: str
    split: str = "test"
    config: str = "default"
    limit: int | None = None

    @property
    def parquet_hint(self) -> str:
        address = f"https://huggingface.co/datasets/{self.dataset}/resolve/refs%2Fconvert%2Fparquet"
        return f"use its Parquet files: {address}/{self.config}/{self.split}/0000.parquet"


def read_dataset_name(reference: str) -> DatasetName:
    """Parse a reference such as `huggingface://datasets/OWNER/NAME?split=test&config=C&limit=50`.

    Raises:
        DownloadError: it names no data set, or has an unknown parameter.
    """
    parts = split_url(reference)
    dataset = reference.removeprefix(DATASETS_PREFIX).partition("?")[0].strip("/")
    if not reference.startswith(DATASETS_PREFIX) or not _NAME.fullmatch(dataset):
        raise DownloadError(
            f"`{reference}` has no data set name", hint=f"write {DATASETS_PREFIX}OWNER/NAME?split=test"
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(given.keys() - _PARAMETERS)
    if unknown:
        raise DownloadError(f"unknown data set parameter `{unknown[0]}`", hint="known: split, config, limit")
    limit = given.get("limit")
    if limit is not None and not (limit.isascii() and limit.isdigit() and int(limit)):
        raise DownloadError("`limit` must be a whole number of at least 1", hint="for example limit=100")
    return DatasetName(
        dataset,
        given.get("split") or "test",
        given.get("config") or given.get("subset") or "default",
        None if limit is None else int(limit),
    )


async def write_dataset(
    name: DatasetName, target: Path, known_version: str, environ: Mapping[str, str]
) -> str | None:
    """Write the rows of a data set to `target` as JSON Lines, and return its version ("" if it has none).

    Returns None, with nothing written, if the version is still `known_version`.

    Args:
        name: the part of the data set.
        target: the file.
        known_version: the version of the rows that the caller has; "" for none.
        environ: may have HF_TOKEN for private data sets, and the URL of another server in `GEVAL_HF_ROWS_URL`.

    Raises:
        DownloadError: there is no such data set, it has too many rows, or the server does not return all of it.
    """
    transport = Transport()
    try:
        version, written = None, 0
        with target.open("w", encoding="utf-8") as file:
            async for page in _pages(name, transport, environ):
                if version is None:
                    version = page.version
                    if version and version == known_version:
                        return None
                elif page.version != version:
                    raise DownloadError(
                        f"{name.dataset} changed while it was being read", hint="run it again"
                    )
                for row in page.rows:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                written += len(page.rows)
    finally:
        await transport.aclose()
    if not written:
        what = f"{name.dataset} (config `{name.config}`, split `{name.split}`)"
        raise DownloadError(f"{what} has no rows", hint="choose another: ?split=train&config=NAME")
    return version or ""


class _Page(Struct, frozen=True):
    version: str
    total: int
    rows: list[dict[str, Any]]
    first: JsonValue = None


async def _pages(name: DatasetName, transport: Transport, environ: Mapping[str, str]) -> AsyncIterator[_Page]:
    offset, end = 0, 1
    while offset < end:
        length = min(_PAGE_ROWS, end - offset) if offset else min(_PAGE_ROWS, name.limit or _PAGE_ROWS)
        page = _read_page(await _ask_rows(name, offset, length, transport, environ), name)
        if not offset:
            end = page.total if name.limit is None else min(page.total, name.limit)
            if end > MOST_ROWS:
                message = (
                    f"{name.dataset} has {page.total:,} rows; at most {MOST_ROWS:,} can be read "
                    "through the API"
                )
                raise DownloadError(message, hint=f"write &limit={MOST_ROWS}, or {name.parquet_hint}")
        if page.first not in (
            None,
            offset,
        ):  # a server that ignores `offset` would return the same rows again
            message = f"{name.dataset} returned row {page.first} where row {offset} was requested"
            raise DownloadError(message, hint=name.parquet_hint)
        if not page.rows and offset < end:
            raise DownloadError(
                f"{name.dataset} returned only {offset:,} of {end:,} rows", hint=name.parquet_hint
            )
        yield replace(page, rows=page.rows[: end - offset])  # a server may return more than requested
        offset += len(page.rows)


async def _ask_rows(
    name: DatasetName, offset: int, length: int, transport: Transport, environ: Mapping[str, str]
) -> HttpResponse:
    asked = {"dataset": name.dataset, "config": name.config, "split": name.split}
    query = urlencode({**asked, "offset": offset, "length": length})
    endpoint = (environ.get(ENDPOINT_VARIABLE) or _ENDPOINT).rstrip("/")
    token = next((environ[variable] for variable in _TOKENS if environ.get(variable)), "")
    if not endpoint.startswith("https://") and not is_loopback(endpoint):
        raise DownloadError(
            f"{ENDPOINT_VARIABLE} must be an https:// URL", hint="use https: a token is sent there"
        )
    headers = {"authorization": f"Bearer {token}"} if token else {}
    call = HttpCall(url=f"{endpoint}/rows?{query}", headers=headers, method="GET", timeout_s=60.0)
    address = ENDPOINT_VARIABLE if environ.get(ENDPOINT_VARIABLE) else "HTTPS_PROXY"
    context = CallContext("huggingface://datasets", Secrets([token]), address=address)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await transport.send(call, context)
        except ProviderError as error:
            if not error.is_retryable or attempt == _ATTEMPTS:
                what = f"{name.dataset} (config `{name.config}`, split `{name.split}`)"
                if error.status in {401, 403}:
                    refused = DownloadError(
                        f"access to {what} is denied", hint="set HF_TOKEN to a token that has access"
                    )
                elif error.status == HTTPStatus.NOT_FOUND:
                    hint = "choose another: ?split=train&config=NAME; a private one needs HF_TOKEN"
                    refused = DownloadError(f"Hugging Face has no {what}", hint=hint)
                else:
                    refused = DownloadError(f"{what} cannot be read: {error.message}", hint=error.hint)
                raise refused from error
            await asyncio.sleep(_WAIT_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _read_page(reply: HttpResponse, name: DatasetName) -> _Page:
    try:
        found = decode_json(reply.body)
        entries, total = found["rows"], found["num_rows_total"]
        rows = [entry["row"] for entry in entries]
        is_whole = isinstance(total, int) and all(isinstance(row, dict) for row in rows)
        cut = next(((entry, cells) for entry in entries if (cells := entry.get("truncated_cells"))), None)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DownloadError(f"the reply for {name.dataset} does not contain rows") from error
    if not is_whole:
        raise DownloadError(f"the reply for {name.dataset} does not contain rows")
    if cut is not None:
        message = f"the API truncates `{cut[1][0]}` in row {cut[0].get('row_idx')} of {name.dataset}"
        raise DownloadError(message, hint=name.parquet_hint)
    if found.get("partial") and name.limit is None:
        message = f"the API has only a part of {name.dataset}"
        raise DownloadError(message, hint=f"take its first rows with &limit=N, or {name.parquet_hint}")
    first = entries[0].get("row_idx") if entries else None
    return _Page(reply.headers.get("x-revision", ""), total, rows, first)


_FOLDER = "sources"


@dataclass(slots=True)
class SourceCopies:
    """Downloads the URLs in a config, each once while the config is read.

    A copy is named after the SHA-256 of its content. A small index file, named after that of its URL, records its
    version; while the server reports the same version, nothing is downloaded.

    Attributes:
        home: the home folder of geval's state.
        is_offline: whether nothing may be requested; then the last copy is used.
    """

    home: Path
    is_offline: bool = False
    _fetched: dict[str, FetchedSource | ConfigError] = field(default_factory=dict, repr=False)

    def __call__(
        self, reference: str, environ: Mapping[str, str], asked_at: Location | None
    ) -> FetchedSource:
        """See `geval_cli.suite.validation.SourceFetcher`."""
        if reference not in self._fetched:
            try:
                self._fetched[reference] = self._fetch(reference, environ)
            except GevalError as error:
                hint = getattr(error, "hint", "")
                self._fetched[reference] = ConfigError([Problem(error.message, asked_at, hint)])
            except OSError as error:
                message = f"the copy of {public_url(reference)} cannot be kept in {self._folder}"
                why = (error.strerror or str(error)).lower()
                self._fetched[reference] = ConfigError([Problem(f"{message}: {why}", asked_at)])
        found = self._fetched[reference]
        if isinstance(found, ConfigError):
            raise found
        return found

    @property
    def _folder(self) -> Path:
        return self.home / _FOLDER

    def _fetch(self, reference: str, environ: Mapping[str, str]) -> FetchedSource:
        known = self._known(reference)
        if self.is_offline:
            if known is None:
                hint = "run once without --offline to keep a copy"
                raise DownloadError(f"there is no copy of {public_url(reference)} here", hint=hint)
            return self._copy(known)
        make_folder(self.home)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=".fetch-")
        os.close(descriptor)
        partial = Path(name)
        try:
            version = self._download(reference, partial, known, environ)
            if version is None and known is not None:
                return self._copy(known)
            with partial.open("rb") as file:
                begins = file.read(_BEGINNING).removeprefix(codecs.BOM_UTF8).lstrip().lower()
            if begins.startswith((b"<!doctype html", b"<html")):  # a login page with status 200
                raise DownloadError(
                    f"{public_url(reference)} is a web page, not a file of tests", hint=_LOGIN_HINT
                )
            return self._keep(reference, partial, version or "")
        finally:
            partial.unlink(missing_ok=True)

    def _download(
        self, reference: str, target: Path, known: Mapping[str, Any] | None, environ: Mapping[str, str]
    ) -> str | None:
        """Download to `target` and return the version; None if the known copy already has this version."""
        before = "" if known is None else str(known["version"])
        if reference.startswith(HUGGINGFACE):
            name = read_dataset_name(reference)
            # In a thread, because the caller may run inside an event loop.
            with ThreadPoolExecutor(1) as thread:
                written = thread.submit(lambda: asyncio.run(write_dataset(name, target, before, environ)))
                return written.result()
        version = file_version(reference)
        if version and version == before:
            return None
        download_file(reference, target)
        return version

    def _keep(self, reference: str, partial: Path, version: str) -> FetchedSource:
        digest = hash_file(partial, TRUSTED)
        copy = f"{digest}{source_suffix(reference)}"
        partial.replace(self._folder / copy)
        index = {
            "address": public_url(reference),
            "version": version,
            "copy": copy,
            "sha256": digest,
        }
        with tempfile.NamedTemporaryFile(
            "w", dir=self._folder, prefix=".fetch-", delete=False, encoding="utf-8"
        ) as file:
            json.dump(index, file)
        Path(file.name).replace(self._index_path(reference))
        return self._copy(index)

    def _known(self, reference: str) -> Mapping[str, Any] | None:
        """Return the index of the last copy; None if there is none, or the copy was changed."""
        try:
            index = json.loads(self._index_path(reference).read_text(encoding="utf-8"))
            digest = hash_file(self._copy(index).path, TRUSTED)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return index if digest == index["sha256"] and "version" in index else None

    def _copy(self, index: Mapping[str, Any]) -> FetchedSource:
        return FetchedSource(self._folder / PurePosixPath(index["copy"]).name, index["sha256"])

    def _index_path(self, reference: str) -> Path:
        return self._folder / f"address-{hashlib.sha256(reference.encode()).hexdigest()}.json"


def source_suffix(reference: str) -> str:
    """Return the suffix of the file that a reference names; a data set becomes JSON Lines."""
    if reference.startswith(HUGGINGFACE):
        return ".jsonl"
    return PurePosixPath(split_url(reference).path).suffix.lower()

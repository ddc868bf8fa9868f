"""Together's batches: OpenAI's, but a file goes to another place than its description.

Paths, fields and the three steps of an upload are those of `together` 3.1 (`resources/batches.py`,
`lib/resources/files.py`); a file may have 50,000 requests and 100 MB (docs.together.ai/docs/inference/batch/overview).
"""

import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import quote, urljoin, urlsplit

from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.network.transport import response_error
from geval_cli.providers.wire.batch_api import RemoteBatch, joined
from geval_cli.providers.wire.openai_batches import RAW, OpenAIBatches, has_id, is_batch
from geval_cli.providers.wire.refusals import refusal_error

_PART_BYTES = 1024 * 1024
_MOST_ADDRESSES = 4


class TogetherBatches(OpenAIBatches):
    """The batches of one account. They are found again by their file: a batch keeps no name of ours."""

    most_bytes = 90 * 1024 * 1024
    is_newest_first = False

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"custom_id": custom_id}, "body", body)

    def wish(self, batch_id: str, file_id: str | None) -> dict[str, Any]:
        wish = super().wish(batch_id, file_id)
        del wish["metadata"]
        return wish

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        found = await self.ask_for(
            "POST",
            self.collection,
            self.wish(batch_id, file_id),
            "an answer that does not describe a batch",
            lambda found: isinstance(found, dict) and is_batch(found.get("job")),
        )
        return self.remote(found["job"])

    def first_page(self) -> dict[str, Any]:
        return {}

    def next_page(self, page: dict[str, Any], said: Any, items: list[Any]) -> None:
        return None  # the list is always whole

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        checksum = hashlib.sha256()
        file.seek(0)
        while part := file.read(_PART_BYTES):
            checksum.update(part)
        form = {
            "purpose": "batch-api",
            "file_name": f"geval-{batch_id}.jsonl",
            "file_type": "jsonl",
            "checksum": checksum.hexdigest(),
        }
        reply = await self.ask(lambda client: _described(client, form, self._own_headers))
        if reply.status_code == HTTPStatus.CONFLICT:  # it has this file already
            return str(reply.json()["file_id"])
        target, file_id = (reply.headers.get(name, "") for name in ("location", "x-together-file-id"))
        for _ in range(_MOST_ADDRESSES):
            if not file_id or urlsplit(target).scheme not in {"https", urlsplit(self._base_url).scheme}:
                raise response_error("no address for a file", _response(reply), self._context)
            reply = await self.ask(lambda _, target=target: self._put(target, file))  # type: ignore[misc]
            if not reply.is_redirect:
                break
            target = urljoin(target, reply.headers.get("location", ""))
        if not reply.is_success:
            raise refusal_error(_response(reply), self._context, now_s=0.0)
        path = f"/files/{quote(file_id, safe='')}/preprocess"
        found = await self.ask_for("POST", path, None, "an answer without a file id", has_id)
        return str(found["id"])

    async def _put(self, target: str, file: BinaryIO) -> Any:
        """Upload a file to an address that needs no key: it is signed."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return await self._http_client.put(
            target, content=_parts(file), headers={"Content-Length": str(size)}, follow_redirects=False
        )


async def _described(client: Any, form: dict[str, str], own_headers: Mapping[str, Any]) -> Any:
    """Return the raw answer that says where a file goes: a redirect, which the library takes for an error."""
    import openai  # noqa: PLC0415

    # The library makes a form of it, because of the content type.
    headers = {"Content-Type": "multipart/form-data", **RAW, **own_headers}
    options = {"headers": headers, "follow_redirects": False}
    try:
        found = await client.post("/files", cast_to=object, body=form, options=options)
    except openai.APIStatusError as error:
        if error.status_code == HTTPStatus.FOUND or _names_a_file(error):
            return error.response
        raise
    return found


def _names_a_file(error: Any) -> bool:
    return (
        error.status_code == HTTPStatus.CONFLICT
        and isinstance(error.body, dict)
        and isinstance(error.body.get("file_id"), str)
    )


async def _parts(file: BinaryIO) -> AsyncIterator[bytes]:
    while part := file.read(_PART_BYTES):
        yield part


def _response(reply: Any) -> HttpResponse:
    headers = {key.lower(): value for key, value in reply.headers.items()}
    return HttpResponse(reply.status_code, headers, reply.content)

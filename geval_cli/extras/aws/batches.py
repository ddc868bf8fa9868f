"""Bedrock's batches (model invocation jobs), with requests and results in files in S3.

Paths, fields and states follow botocore's descriptions of `bedrock` and `s3`; line formats and limits follow the
Bedrock user guide, "Process multiple prompts with batch inference".
"""

import re
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

from msgspec import Struct

from geval_cli.errors import ProviderError
from geval_cli.extras.batches.api import (
    BatchLine,
    BrokenResultsError,
    RemoteBatch,
    RemoteState,
    has_texts,
    joined,
    labelled,
    moment,
    object_in,
    read_line,
    readable_lines,
    whole,
)
from geval_cli.patterns import compile_later
from geval_cli.providers.network.messages import HttpCall, HttpResponse, Signer, json_bytes
from geval_cli.providers.network.transport import Transport, response_error
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.wire.refusals import CallContext

_PAGE = 100
_NAME = "geval-"
_STATES = {
    "Completed": RemoteState.COMPLETED,
    "PartiallyCompleted": RemoteState.EXPIRED,
    "Expired": RemoteState.EXPIRED,
    "Stopped": RemoteState.CANCELLED,
    "Failed": RemoteState.FAILED,
}
_MAY_LACK_RESULTS = (RemoteState.EXPIRED, RemoteState.CANCELLED)
_S3_ERROR = compile_later(r"<Code>([^<]{1,80})</Code>\s*(?:<Message>([^<]{1,300})</Message>)?", re.IGNORECASE)
_INTERNAL_ERROR = 500


class JobPlace(Struct, frozen=True):
    """Where jobs run and where their files are stored.

    Attributes:
        control_url: the URL of the job API; `s3_url` is that of the bucket.
        folder: the path of the files in the bucket, without leading or trailing slashes; empty for the top level.
        bucket: the name of the bucket, for the job API.
        role_arn: the role that reads and writes the files.
        s3_signer: signs requests to S3; the endpoint's signer signs those to the job API.
    """

    control_url: str
    s3_url: str
    bucket: str
    folder: str
    role_arn: str
    s3_signer: Signer


class BedrockBatches:
    """The jobs of one account in one region. geval names each job, and a token ensures that it is created only once."""

    fewest_requests = 100
    most_requests = 50_000
    most_bytes = 64 * 1024 * 1024  # of 1 GB; a file is uploaded in one request, which is held in memory

    def __init__(self, endpoint: Endpoint, transport: Transport, place: JobPlace) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._place = place
        self._context = CallContext(endpoint.id, endpoint.secrets, endpoint.key_source)
        self._s3 = Transport(certificate=endpoint.certificate, signer=place.s3_signer)

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"recordId": custom_id}, "modelInput", body)

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        file.seek(0)
        name = f"{self._in_folder()}{_NAME}{batch_id}.jsonl"
        headers = {"content-type": "application/jsonl"}
        call = HttpCall(self._url_of(name), headers, file.read(), "PUT", self._endpoint.limits.timeout_s)
        try:
            await self._s3.send(call, self._context)
        except ProviderError as error:
            raise self._explained(error) from error.__cause__
        return name

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        wish = {
            "jobName": f"{_NAME}{batch_id}",
            "roleArn": self._place.role_arn,
            "clientRequestToken": batch_id,
            "modelId": self._endpoint.model,
            "modelInvocationType": "Converse",
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": self._uri_of(str(file_id))}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": self._uri_of(self._output_folder())}},
        }
        reply = await self._send("POST", "/model-invocation-job", body=json_bytes(wish))
        found = object_in(reply, self._context)
        if not isinstance(found.get("jobArn"), str) or not found["jobArn"]:
            raise response_error("an answer without the ARN of a job", reply, self._context)
        return RemoteBatch(_short(found["jobArn"]), RemoteState.RUNNING, label=batch_id)

    async def find(
        self, batch_id: str, *, since: float, requests: int, file_id: str | None
    ) -> list[RemoteBatch]:
        wanted = {"maxResults": str(_PAGE), "nameContains": f"{_NAME}{batch_id}"}

        async def page_of(token: str) -> tuple[list[RemoteBatch], Any]:
            query = urlencode({**wanted, **({"nextToken": token} if token else {})})
            page = object_in(await self._send("GET", f"/model-invocation-jobs?{query}"), self._context)
            listed = page.get("invocationJobSummaries")
            items = [item for item in listed if _is_job(item)] if isinstance(listed, list) else []
            return [self._remote(item) for item in items], page.get("nextToken")

        return await labelled(batch_id, self._endpoint.id, page_of)

    async def get(self, remote_id: str) -> RemoteBatch:
        reply = await self._send("GET", f"/model-invocation-job/{quote(remote_id, safe='')}")
        found = object_in(reply, self._context)
        if not _is_job(found):
            raise response_error("an answer that does not describe a job", reply, self._context)
        return self._remote(found)

    async def cancel(self, remote_id: str) -> None:
        await self._send("POST", f"/model-invocation-job/{quote(remote_id, safe='')}/stop")

    async def results(self, batch: RemoteBatch) -> AsyncIterator[BatchLine]:
        for name in batch.results:
            call = HttpCall(self._url_of(name), method="GET", timeout_s=self._endpoint.limits.timeout_s)
            try:
                async for line in readable_lines(self._s3.stream_lines(call, self._context), _line):
                    yield line
            except ProviderError as error:
                # A job that was ended early may have written nothing.
                if error.status != HTTPStatus.NOT_FOUND or batch.state not in _MAY_LACK_RESULTS:
                    raise self._explained(error) from error.__cause__

    async def aclose(self) -> None:
        await self._s3.aclose()

    async def _send(self, method: str, path: str, *, body: bytes = b"") -> HttpResponse:
        headers = {"accept": "application/json", **({"content-type": "application/json"} if body else {})}
        url = self._place.control_url + path
        call = HttpCall(url, headers, body, method, self._endpoint.limits.timeout_s)
        return await self._transport.send(call, self._context)

    def _remote(self, item: Mapping[str, Any]) -> RemoteBatch:
        job = _short(item["jobArn"])
        name = str(item.get("jobName") or "")
        label = name.removeprefix(_NAME) if name.startswith(_NAME) else None
        output = f"{self._output_folder()}{job}/{_NAME}{label}.jsonl.out"
        state = _STATES.get(str(item.get("status")), RemoteState.RUNNING)
        return RemoteBatch(
            id=job,
            state=state,
            total=whole(item.get("totalRecordCount")),
            answered=whole(item.get("processedRecordCount")),
            expires_at=moment(item.get("jobExpirationTime")),
            label=label,
            results=(output,) if label and state not in (RemoteState.RUNNING, RemoteState.FAILED) else (),
            message=self._endpoint.secrets.redact(str(item.get("message") or "")),
        )

    def _output_folder(self) -> str:
        return f"{self._in_folder()}results/"

    def _in_folder(self) -> str:
        return f"{self._place.folder}/" if self._place.folder else ""

    def _uri_of(self, name: str) -> str:
        return f"s3://{self._place.bucket}/{name}"

    def _url_of(self, name: str) -> str:
        return f"{self._place.s3_url}/{quote(name, safe='/')}"

    def _explained(self, error: ProviderError) -> ProviderError:
        """Return the error with the message from S3's XML reply."""
        said = _S3_ERROR.search(error.body) if isinstance(error.body, str) else None
        if said is not None:
            words = f"{said[1]}: {said[2].rstrip('.')}" if said[2] else said[1]
            error.message = f"{self._endpoint.id}: S3 answered HTTP {error.status}: {words}"
            error.args = (error.message,)
            error.hint = f"check `batch_s3` (s3://{self._place.bucket}) and the permissions for it"
        return error


def _short(arn: str) -> str:
    """Return the job id at the end of a job's ARN."""
    return arn.rpartition("/")[2]


def _is_job(item: Any) -> bool:
    return has_texts(item, "jobArn", "status")


def _line(text: bytes) -> BatchLine:
    found = read_line(text, id_key="recordId")
    custom_id = found["recordId"]
    body = found.get("modelOutput")
    error = found.get("error")
    if isinstance(error, dict):
        code = whole(error.get("errorCode"))
        status = code if code >= HTTPStatus.BAD_REQUEST else _INTERNAL_ERROR
        return BatchLine(custom_id, status, {"message": error.get("errorMessage") or "no reason was given"})
    if not isinstance(body, dict):
        raise BrokenResultsError("a results line has neither an answer nor an error")
    return BatchLine(custom_id, 200, body)

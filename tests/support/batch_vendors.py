"""The differences between vendors' batch APIs, for `BatchServer`: paths, fields, states and lines.

`Vendor` is OpenAI. The sources are those named in the modules of `providers.wire`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from aiohttp import web

Lines = list[dict[str, Any]]
_EPOCH = 1_900_000_000
_CREATED = datetime.fromtimestamp(_EPOCH, UTC).isoformat().replace("+00:00", "Z")
_DEADLINE = datetime.fromtimestamp(_EPOCH + 86400, UTC).isoformat().replace("+00:00", "Z")


@dataclass
class RemoteBatch:
    """A batch on the server. `age` counts how often its state was requested."""

    id: str
    vendor: "Vendor"
    requests: Lines
    label: str | None = None
    input_file_id: str = ""
    age: int = 0
    end: str = "completed"
    is_cancelled: bool = False
    results: Lines = field(default_factory=list)
    errors: Lines = field(default_factory=list)
    state: str = "validating"
    code: str = ""
    expired_share: float = 0.0

    @property
    def is_ended(self) -> bool:
        return self.state in {"completed", "failed", "expired", "cancelled"}

    @property
    def short_id(self) -> str:
        return self.id.removeprefix(self.vendor.id_prefix)


class Vendor:
    """OpenAI.

    Attributes:
        prefix: the path prefix of the vendor in the emulator; `root` is its API's path below that, `base` geval's.
        keeps_label: whether a batch keeps `metadata`.
        has_error_file: whether errors are in a separate file.
        refuses_when_full: whether too many enqueued tokens cause a 429 instead of a failed batch.
        uploads_elsewhere: whether the first answer to an upload only says where to send the file, below `store`.
        page_key, next_key: how a list request names a page, and an answer the next page.
    """

    prefix: ClassVar[str] = ""
    root: ClassVar[str] = "/v1"
    base: ClassVar[str] = "/v1"
    id_prefix: ClassVar[str] = ""
    store: ClassVar[str] = ""
    keeps_label: ClassVar[bool] = True
    has_error_file: ClassVar[bool] = True
    uploads_elsewhere: ClassVar[bool] = False
    page_key: ClassVar[str] = "after"
    next_key: ClassVar[str] = "last_id"
    refuses_when_full: ClassVar[bool] = False
    routes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "chat": ("POST", "/v1/chat/completions"),
        "upload": ("POST", "/v1/files"),
        "content": ("GET", "/v1/files/{id}/content"),
        "create": ("POST", "/v1/batches"),
        "list": ("GET", "/v1/batches"),
        "get": ("GET", "/v1/batches/{id}"),
        "cancel": ("POST", "/v1/batches/{id}/cancel"),
    }

    def file_id(self, number: int) -> str:
        return f"file-{number}"

    def file(self, file_id: str, status: str) -> Any:
        return {
            "id": file_id,
            "object": "file",
            "bytes": 1,
            "created_at": _EPOCH,
            "filename": "batch.jsonl",
            "purpose": "batch",
            "status": status,
        }

    async def place(
        self, request: web.Request, target: str, file_id: str, known: Mapping[str, str]
    ) -> web.Response:
        """Return where to send a file; `known` has the files that already exist, by checksum."""
        raise NotImplementedError

    def read(self, item: Any) -> tuple[str, Any]:
        """Return the name and the body of a request in a batch file."""
        assert (item["method"], item["url"]) == ("POST", "/v1/chat/completions")
        return item["custom_id"], item["body"]

    def wished(self, body: Any) -> tuple[str, str | None]:
        """Return the file of a batch to create, and geval's name for the batch."""
        assert (body["endpoint"], body["completion_window"]) == ("/v1/chat/completions", "24h")
        assert self.keeps_label == ("metadata" in body)
        return body["input_file_id"], (body.get("metadata") or {}).get("geval_batch")

    def submitted(self, body: Any) -> Lines:
        """Return the requests in the body of a batch, for vendors that take no files."""
        raise NotImplementedError

    def reply(self, body: Any, text: str) -> Any:
        choices = [
            {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for index in range(body.get("n", 1))
        ]
        usage = {"prompt_tokens": 100, "completion_tokens": 10 * len(choices), "total_tokens": 110}
        return {"id": "chat", "model": body["model"], "choices": choices, "usage": usage}

    def filtered(self, body: Any) -> tuple[int, Any]:
        reply = self.reply(body, "")
        for choice in reply["choices"]:
            choice["finish_reason"] = "content_filter"
        return 200, reply

    def line(self, name: str, status: int, reply: Any) -> Any:
        response = {"status_code": status, "body": reply}
        return {"id": f"r-{name[:8]}", "custom_id": name, "response": response, "error": None}

    def left_out_line(self, name: str, *, is_cancelled: bool) -> Any:
        """Return the results line of a request that was not processed; None if it has none."""
        code = "batch_cancelled" if is_cancelled else "batch_expired"
        return {"custom_id": name, "response": None, "error": {"code": code, "message": "too late"}}

    def created(self, batch: RemoteBatch) -> Any:
        return self.shown(batch)

    def shown(self, batch: RemoteBatch) -> Any:
        answered = len(batch.results) + len(batch.errors)
        code = {"code": batch.code, "message": "too much"}
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "input_file_id": batch.input_file_id,
            "completion_window": "24h",
            "status": batch.state,
            "created_at": _EPOCH,
            "expires_at": _EPOCH + 86400,
            "metadata": {"geval_batch": batch.label} if self.keeps_label else None,
            "output_file_id": f"out-{batch.id}" if batch.results else None,
            "error_file_id": f"err-{batch.id}" if batch.errors else None,
            "request_counts": {"total": len(batch.requests), "completed": answered, "failed": 0},
            "errors": {"data": [code]} if batch.state == "failed" else None,
        }

    def listed(self, batches: list[RemoteBatch], query: Mapping[str, str], most: int) -> Any:
        """Return a page of a list, newest first."""
        after = query.get("after") or query.get("after_id")
        ids = [item.id for item in batches]
        first = ids.index(after) + 1 if after else 0
        page = [self.shown(item) for item in batches[first : first + min(most, int(query["limit"]))]]
        return {"object": "list", "data": page, "has_more": first + len(page) < len(batches)}


class Anthropic(Vendor):
    root = "/v1/messages"
    page_key = "after_id"
    has_error_file = False
    routes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "message": ("POST", "/v1/messages"),
        "content": ("GET", "/v1/messages/batches/{id}/results"),
        "create": ("POST", "/v1/messages/batches"),
        "list": ("GET", "/v1/messages/batches"),
        "get": ("GET", "/v1/messages/batches/{id}"),
        "cancel": ("POST", "/v1/messages/batches/{id}/cancel"),
    }

    def read(self, item: Any) -> tuple[str, Any]:
        return item["custom_id"], item["params"]

    def wished(self, body: Any) -> tuple[str, str | None]:
        return "", None

    def submitted(self, body: Any) -> Lines:
        return list(body["requests"])

    def reply(self, body: Any, text: str) -> Any:
        return {
            "id": "msg",
            "type": "message",
            "model": body["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 100, "output_tokens": 10},
        }

    def filtered(self, body: Any) -> tuple[int, Any]:
        return 200, {**self.reply(body, ""), "content": [], "stop_reason": "refusal"}

    def line(self, name: str, status: int, reply: Any) -> Any:
        if status == 200:
            return {"custom_id": name, "result": {"type": "succeeded", "message": reply}}
        kind = {400: "invalid_request_error", 429: "rate_limit_error"}.get(status, "api_error")
        error = {"type": "error", "error": {"type": kind, "message": reply["error"]["message"]}}
        return {"custom_id": name, "result": {"type": "errored", "error": error}}

    def left_out_line(self, name: str, *, is_cancelled: bool) -> Any:
        return {"custom_id": name, "result": {"type": "canceled" if is_cancelled else "expired"}}

    def shown(self, batch: RemoteBatch) -> Any:
        kinds = Counter(line["result"]["type"] for line in batch.results)
        names = ("succeeded", "errored", "canceled", "expired")
        going = "canceling" if batch.is_cancelled else "in_progress"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if batch.is_ended else going,
            "request_counts": {"processing": 0, **{name: kinds[name] for name in names}},
            "created_at": _CREATED,
            "expires_at": _DEADLINE,
            "results_url": "http://elsewhere.invalid/results" if batch.is_ended else None,
        }


class Azure(Vendor):
    """Azure: batches do not keep geval's name, and use their own deployment."""

    prefix = "/azure"
    root = "/openai"
    base = ""
    keeps_label = False
    routes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "chat": ("POST", "/openai/deployments/{deployment}/chat/completions"),
        "upload": ("POST", "/openai/files"),
        "file": ("GET", "/openai/files/{id}"),
        "content": ("GET", "/openai/files/{id}/content"),
        "create": ("POST", "/openai/batches"),
        "list": ("GET", "/openai/batches"),
        "get": ("GET", "/openai/batches/{id}"),
        "cancel": ("POST", "/openai/batches/{id}/cancel"),
    }

    def read(self, item: Any) -> tuple[str, Any]:
        assert (item["method"], item["url"]) == ("POST", "/chat/completions")
        assert item["body"]["model"] == "global-batch"
        return item["custom_id"], item["body"]

    def wished(self, body: Any) -> tuple[str, str | None]:
        assert body == {
            "input_file_id": body["input_file_id"],
            "endpoint": "/chat/completions",
            "completion_window": "24h",
        }
        return body["input_file_id"], None

    def reply(self, body: Any, text: str) -> Any:
        return super().reply({**body, "model": "m-2030-03-17"}, text)

    def filtered(self, body: Any) -> tuple[int, Any]:
        inner = {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {"violence": {"filtered": True}},
        }
        message = "The response was filtered due to the prompt triggering a content management policy."
        error = {"message": message, "code": "content_filter", "status": 400, "innererror": inner}
        return 400, {"error": error}

    def shown(self, batch: RemoteBatch) -> Any:
        shown = super().shown(batch)
        return {**shown, **{name: shown[name] or "" for name in ("output_file_id", "error_file_id")}}


class AzureV1(Azure):
    """Azure's newer API, without a version parameter."""

    root = "/openai/v1"
    base = "/openai/v1"
    routes: ClassVar[Mapping[str, tuple[str, str]]] = {
        **{name: (how, path.replace("/openai", "/openai/v1")) for name, (how, path) in Azure.routes.items()},
        "chat": ("POST", "/openai/v1/chat/completions"),
    }


class Mistral(Vendor):
    """Mistral: a job has one model, and expired requests have no line."""

    prefix = "/mistral"
    page_key = "page"
    states: ClassVar[Mapping[str, str]] = {
        "validating": "QUEUED",
        "in_progress": "RUNNING",
        "finalizing": "RUNNING",
        "completed": "SUCCESS",
        "failed": "FAILED",
        "expired": "TIMEOUT_EXCEEDED",
        "cancelled": "CANCELLED",
    }
    routes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "chat": ("POST", "/v1/chat/completions"),
        "upload": ("POST", "/v1/files"),
        "content": ("GET", "/v1/files/{id}/content"),
        "create": ("POST", "/v1/batch/jobs"),
        "list": ("GET", "/v1/batch/jobs"),
        "get": ("GET", "/v1/batch/jobs/{id}"),
        "cancel": ("POST", "/v1/batch/jobs/{id}/cancel"),
    }

    def file(self, file_id: str, status: str) -> Any:
        return {**super().file(file_id, status), "sample_type": "batch_request", "source": "upload"}

    def read(self, item: Any) -> tuple[str, Any]:
        assert item.keys() == {"custom_id", "body"}
        return item["custom_id"], item["body"]

    def wished(self, body: Any) -> tuple[str, str | None]:
        assert body["endpoint"] == "/v1/chat/completions"
        assert body["model"] in {"m", "judge"}
        return body["input_files"][0], body["metadata"]["geval_batch"]

    def left_out_line(self, name: str, *, is_cancelled: bool) -> Any:
        return None

    def shown(self, batch: RemoteBatch) -> Any:
        return {
            "id": batch.id,
            "object": "batch",
            "input_files": [batch.input_file_id],
            "endpoint": "/v1/chat/completions",
            "model": "m",
            "errors": [{"message": "too much", "count": 1}] if batch.state == "failed" else [],
            "status": "CANCELLATION_REQUESTED"
            if batch.is_cancelled and not batch.is_ended
            else self.states[batch.state],
            "created_at": _EPOCH,
            "total_requests": len(batch.requests),
            "completed_requests": len(batch.results) + len(batch.errors),
            "succeeded_requests": len(batch.results),
            "failed_requests": len(batch.errors),
            "metadata": {"geval_batch": batch.label},
            "output_file": f"out-{batch.id}" if batch.results else None,
            "error_file": f"err-{batch.id}" if batch.errors else None,
        }

    def listed(self, batches: list[RemoteBatch], query: Mapping[str, str], most: int) -> Any:
        assert query["order_by"] == "-created"
        size = min(most, int(query["page_size"]))
        first = int(query["page"] or 0) * size
        page = [self.shown(item) for item in batches[first : first + size]]
        return {"object": "list", "data": page, "total": len(batches)}


class Together(Vendor):
    """Together: a list is an unordered array of everything, and an error has no status."""

    prefix = "/together"
    store = "/bucket"
    keeps_label = False
    uploads_elsewhere = True
    routes: ClassVar[Mapping[str, tuple[str, str]]] = {
        **Vendor.routes,
        "put": ("PUT", "/bucket/{id}"),
        "preprocess": ("POST", "/v1/files/{id}/preprocess"),
    }

    def file(self, file_id: str, status: str) -> Any:
        return {**super().file(file_id, status), "FileType": "jsonl", "purpose": "batch-api"}

    async def place(
        self, request: web.Request, target: str, file_id: str, known: Mapping[str, str]
    ) -> web.Response:
        form = await request.post()
        assert form.keys() == {"purpose", "file_name", "file_type", "checksum"}
        assert (form["purpose"], form["file_type"]) == ("batch-api", "jsonl")
        if form["checksum"] in known:
            return web.json_response({"file_id": known[str(form["checksum"])]}, status=409)
        return web.Response(status=302, headers={"location": target, "x-together-file-id": file_id})

    def read(self, item: Any) -> tuple[str, Any]:
        assert item.keys() == {"custom_id", "body"}
        return item["custom_id"], item["body"]

    def line(self, name: str, status: int, reply: Any) -> Any:
        if status != 200:
            return {"custom_id": name, "error": {"message": reply["error"]["message"], "code": "failed"}}
        return {"custom_id": name, "response": {"status_code": 200, "body": reply}}

    def left_out_line(self, name: str, *, is_cancelled: bool) -> Any:
        return None

    def created(self, batch: RemoteBatch) -> Any:
        return {"job": self.shown(batch), "warning": ""}

    def shown(self, batch: RemoteBatch) -> Any:
        shown = super().shown(batch)
        state = "in_progress" if batch.state == "finalizing" else batch.state
        kept = ("id", "endpoint", "input_file_id", "output_file_id", "error_file_id")
        return {
            **{name: shown[name] for name in kept},
            "status": state.upper(),
            "progress": 100.0 if batch.is_ended else 0.0,
            "created_at": _CREATED,
            "job_deadline": _DEADLINE,
            "model_id": "m",
            "error": "too much" if batch.state == "failed" else "",
        }

    def listed(self, batches: list[RemoteBatch], query: Mapping[str, str], most: int) -> Any:
        assert not query
        return [self.shown(item) for item in batches]


class Google(Vendor):
    prefix = "/google"
    page_key = "pageToken"
    next_key = "nextPageToken"
    root = ""
    base = ""
    id_prefix = "batches/"
    store = "/upload-here"
    refuses_when_full = True
    has_error_file = False
    uploads_elsewhere = True
    routes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "chat": ("POST", "/v1beta/models/{model}:generateContent"),
        "upload": ("POST", "/upload/v1beta/files"),
        "put": ("POST", "/upload-here/{id:.+}"),
        "content": ("GET", "/v1beta/files/{id}:download"),
        "create": ("POST", "/v1beta/models/{model}:batchGenerateContent"),
        "list": ("GET", "/v1beta/batches"),
        "get": ("GET", "/v1beta/batches/{id}"),
        "cancel": ("POST", "/v1beta/batches/{id}:cancel"),
    }
    states: ClassVar[Mapping[str, str]] = {
        "validating": "PENDING",
        "in_progress": "RUNNING",
        "finalizing": "RUNNING",
        "completed": "SUCCEEDED",
        "failed": "FAILED",
        "expired": "EXPIRED",
        "cancelled": "CANCELLED",
    }
    codes: ClassVar[Mapping[int, tuple[int, str]]] = {
        400: (3, "INVALID_ARGUMENT"),
        429: (8, "RESOURCE_EXHAUSTED"),
        500: (13, "INTERNAL"),
    }

    def file_id(self, number: int) -> str:
        return f"files/{number}"

    async def place(
        self, request: web.Request, target: str, file_id: str, known: Mapping[str, str]
    ) -> web.Response:
        assert (request.headers["x-goog-upload-protocol"], request.headers["x-goog-upload-command"]) == (
            "resumable",
            "start",
        )
        assert int(request.headers["x-goog-upload-header-content-length"]) > 0
        assert (await request.json())["file"]["display_name"]
        return web.json_response({}, headers={"x-goog-upload-url": target})

    def read(self, item: Any) -> tuple[str, Any]:
        assert item.keys() == {"key", "request"}
        return item["key"], item["request"]

    def wished(self, body: Any) -> tuple[str, str | None]:
        batch = body["batch"]
        return batch["inputConfig"]["fileName"], batch["displayName"]

    def reply(self, body: Any, text: str) -> Any:
        content = {"role": "model", "parts": [{"text": text}]}
        return {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
            "modelVersion": "m",
            "responseId": "r",
        }

    def filtered(self, body: Any) -> tuple[int, Any]:
        usage = {"promptTokenCount": 100, "totalTokenCount": 100}
        return 200, {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": usage, "modelVersion": "m"}

    def line(self, name: str, status: int, reply: Any) -> Any:
        if status == 200:
            return {"key": name, "response": reply}
        code, words = self.codes[status]
        return {"key": name, "error": {"code": code, "message": reply["error"]["message"], "status": words}}

    def left_out_line(self, name: str, *, is_cancelled: bool) -> Any:
        return None

    def shown(self, batch: RemoteBatch) -> Any:
        count = {
            "requestCount": str(len(batch.requests)),
            "successfulRequestCount": str(len(batch.results)),
            "pendingRequestCount": str(len(batch.requests) - len(batch.results)),
        }
        output = {"responsesFile": f"files/out-{batch.short_id}"} if batch.results else None
        shown = {
            "name": batch.id,
            "metadata": {
                "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
                "model": "models/m",
                "displayName": batch.label,
                "state": f"BATCH_STATE_{self.states[batch.state]}",
                "createTime": _CREATED,
                "inputConfig": {"fileName": batch.input_file_id},
                "batchStats": count,
                "name": batch.id,
                **({"output": output} if output else {}),
            },
        }
        if batch.state == "failed":
            return {**shown, "done": True, "error": {"code": 8, "message": "too much"}}
        return (
            {**shown, "done": True, **({"response": output} if output else {})} if batch.is_ended else shown
        )

    def listed(self, batches: list[RemoteBatch], query: Mapping[str, str], most: int) -> Any:
        first = int(query.get("pageToken") or 0)
        page = [self.shown(item) for item in batches[first : first + min(most, int(query["pageSize"]))]]
        end = first + len(page)
        more = {"nextPageToken": str(end)} if end < len(batches) else {}
        return {"operations": page, **more} if page else {}


class Bedrock(Vendor):
    """Bedrock: files are objects in a bucket, unprocessed requests have no line, and a token creates only one job."""

    prefix = "/bedrock"
    page_key = "nextToken"
    next_key = "nextToken"
    root = ""
    base = ""
    id_prefix = "arn:aws:bedrock:eu-west-1:123456789012:model-invocation-job/"
    has_error_file = False
    routes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "chat": ("POST", "/model/{model}/converse"),
        "object": ("PUT", "/s3/geval-bucket/{id:.+}"),
        "content": ("GET", "/s3/geval-bucket/runs/results/{id}/{name}"),
        "create": ("POST", "/model-invocation-job"),
        "list": ("GET", "/model-invocation-jobs"),
        "get": ("GET", "/model-invocation-job/{id}"),
        "cancel": ("POST", "/model-invocation-job/{id}/stop"),
    }
    states: ClassVar[Mapping[str, str]] = {
        "validating": "Validating",
        "in_progress": "InProgress",
        "finalizing": "InProgress",
        "completed": "Completed",
        "failed": "Failed",
        "expired": "PartiallyCompleted",
        "cancelled": "Stopped",
    }

    def read(self, item: Any) -> tuple[str, Any]:
        assert item.keys() == {"recordId", "modelInput"}
        return item["recordId"], item["modelInput"]

    def wished(self, body: Any) -> tuple[str, str | None]:
        assert body["modelInvocationType"] == "Converse"
        assert body["outputDataConfig"] == {
            "s3OutputDataConfig": {"s3Uri": "s3://geval-bucket/runs/results/"}
        }
        name = body["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].removeprefix("s3://geval-bucket/")
        label = body["jobName"].removeprefix("geval-")
        assert (body["clientRequestToken"], name) == (label, f"runs/geval-{label}.jsonl")
        return name, label

    def reply(self, body: Any, text: str) -> Any:
        return {
            "output": {"message": {"role": "assistant", "content": [{"text": text}]}},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110},
        }

    def filtered(self, body: Any) -> tuple[int, Any]:
        reply = self.reply(body, "Sorry, I cannot answer that.")
        return 200, {**reply, "stopReason": "guardrail_intervened"}

    def line(self, name: str, status: int, reply: Any) -> Any:
        asked = {"recordId": name, "modelInput": {}}
        if status == 200:
            return {**asked, "modelOutput": reply}
        return {**asked, "error": {"errorCode": status, "errorMessage": reply["error"]["message"]}}

    def left_out_line(self, name: str, *, is_cancelled: bool) -> Any:
        return None

    def created(self, batch: RemoteBatch) -> Any:
        return {"jobArn": batch.id}

    def shown(self, batch: RemoteBatch) -> Any:
        stopping = batch.is_cancelled and not batch.is_ended
        return {
            "jobArn": batch.id,
            "jobName": f"geval-{batch.label}",
            "modelId": "m",
            "clientRequestToken": batch.label,
            "roleArn": "arn:aws:iam::123456789012:role/batches",
            "status": "Stopping" if stopping else self.states[batch.state],
            "submitTime": _CREATED,
            "jobExpirationTime": _DEADLINE,
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": f"s3://geval-bucket/{batch.input_file_id}"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": "s3://geval-bucket/runs/results/"}},
            "timeoutDurationInHours": 24,
            "modelInvocationType": "Converse",
            "totalRecordCount": len(batch.requests),
            "processedRecordCount": len(batch.results),
            **({"message": "too much"} if batch.state == "failed" else {}),
        }

    def listed(self, batches: list[RemoteBatch], query: Mapping[str, str], most: int) -> Any:
        named = [item for item in batches if query["nameContains"] in f"geval-{item.label}"]
        first = int(query.get("nextToken") or 0)
        page = [self.shown(item) for item in named[first : first + min(most, int(query["maxResults"]))]]
        more = {"nextToken": str(first + len(page))} if first + len(page) < len(named) else {}
        return {"invocationJobSummaries": page, **more}


def error_body(kind: str, message: str) -> Any:
    """Return an error body in OpenAI's format."""
    return {"error": {"message": message, "type": kind, "code": None}}


VENDORS: Mapping[str, Vendor] = {
    "openai": Vendor(),
    "anthropic": Anthropic(),
    "azure": Azure(),
    "google": Google(),
    "mistral": Mistral(),
    "together": Together(),
    "bedrock": Bedrock(),
}

SERVED: Mapping[str, Vendor] = {**VENDORS, "azure v1": AzureV1()}
"""All that the server has; those of one vendor differ only in their addresses."""

"""What geval sends to the batch APIs is what the vendors' own libraries send."""

import asyncio
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from support.batch_server import BatchServer
from support.batch_vendors import VENDORS
from support.calls import provider

from geval_cli.errors import ProviderRequestError
from geval_cli.extras.batches import google
from geval_cli.extras.batches.api import FileNotReadyError
from geval_cli.extras.batches.openai import OpenAIBatches
from geval_cli.providers.base import batch_api

LABEL = "0123456789abcdef"
KEY = "a" * 64
PROMPT = "Write one sentence about topic 1."
CHAT = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
BODIES = {
    "google": {"contents": [{"role": "user", "parts": [{"text": PROMPT}]}]},
    "azure": {**CHAT, "model": "global-batch"},
}
LINES = {
    "openai": {"custom_id": KEY, "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
    "azure": {"custom_id": KEY, "method": "POST", "url": "/chat/completions", "body": BODIES["azure"]},
    "google": {"key": KEY, "request": BODIES["google"]},
    "mistral": {"custom_id": KEY, "body": CHAT},
    "together": {"custom_id": KEY, "body": CHAT},
}


def of_openai(client: Any, file: Any, endpoint: str, **wish: Any) -> None:
    """What the library of OpenAI and Azure does with one batch."""
    found = client.files.create(file=(f"geval-{LABEL}.jsonl", file, "application/jsonl"), purpose="batch")
    if endpoint == "/chat/completions":
        client.files.retrieve(found.id)
        client.files.retrieve(found.id)
    batch = client.batches.create(input_file_id=found.id, endpoint=endpoint, completion_window="24h", **wish)
    client.batches.retrieve(batch.id)
    client.batches.retrieve(batch.id)
    list(client.batches.list(limit=100))
    client.files.content(f"out-{batch.id}").read()
    client.batches.cancel(batch.id)


def openai_library(url: str, file: Any) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="sk-batch", max_retries=0)
    of_openai(client, file, "/v1/chat/completions", metadata={"geval_batch": LABEL})


def azure_library(url: str, file: Any) -> None:
    from openai import AzureOpenAI

    client = AzureOpenAI(azure_endpoint=url, api_key="sk-batch", api_version="2024-10-21", max_retries=0)
    of_openai(client, file, "/chat/completions")


def mistral_library(url: str, file: Any) -> None:
    from mistralai.client import Mistral

    with Mistral(api_key="sk-batch", server_url=url.removesuffix("/v1")) as client:
        named = {"file_name": f"geval-{LABEL}.jsonl", "content": file, "content_type": "application/jsonl"}
        found = client.files.upload(file=named, purpose="batch")
        job = client.batch.jobs.create(
            input_files=[found.id],
            model="m",
            endpoint="/v1/chat/completions",
            metadata={"geval_batch": LABEL},
            timeout_hours=24,
        )
        client.batch.jobs.get(job_id=job.id)
        client.batch.jobs.get(job_id=job.id)
        client.batch.jobs.list(page=0, page_size=100, order_by="-created")
        client.files.download(file_id=f"out-{job.id}").read()
        client.batch.jobs.cancel(job_id=job.id)


def google_library(url: str, file: Any) -> None:
    from google import genai

    options = genai.types.HttpOptions(base_url=url, api_version="v1beta")
    client = genai.Client(api_key="sk-batch", http_options=options)
    config = genai.types.UploadFileConfig(display_name=f"geval-{LABEL}", mime_type="application/jsonl")
    found = client.files.upload(file=file, config=config)
    assert found.name
    batch = client.batches.create(model="m", src=found.name, config={"display_name": LABEL})
    assert batch.name
    client.batches.get(name=batch.name)
    client.batches.get(name=batch.name)
    list(client.batches.list(config={"page_size": 100}))
    client.files.download(file=f"files/out-{batch.name.removeprefix('batches/')}")
    client.batches.cancel(name=batch.name)


LIBRARIES = {
    "openai": openai_library,
    "azure": azure_library,
    "google": google_library,
    "mistral": mistral_library,
}


_AUTHORIZED = {"authorization": "Bearer sk-batch"}
TOGETHER_SENDS = [
    [
        *("upload", "POST", "/together/v1/files", {}, _AUTHORIZED),
        {
            "purpose": "batch-api",
            "file_name": f"geval-{LABEL}.jsonl",
            "file_type": "jsonl",
            "checksum": "SUM",
        },
    ],
    ["put", "PUT", "/together/bucket/file-N", {}, {}, LINES["together"]],
    ["preprocess", "POST", "/together/v1/files/file-N/preprocess", {}, _AUTHORIZED, None],
    [
        *("create", "POST", "/together/v1/batches", {}, _AUTHORIZED),
        {"endpoint": "/v1/chat/completions", "input_file_id": "file-N", "completion_window": "24h"},
    ],
    *[["get", "GET", "/together/v1/batches/batch_N", {}, _AUTHORIZED, None]] * 2,
    ["list", "GET", "/together/v1/batches", {}, _AUTHORIZED, None],
    ["content", "GET", "/together/v1/files/out-batch_N/content", {}, _AUTHORIZED, None],
    ["cancel", "POST", "/together/v1/batches/batch_N/cancel", {}, _AUTHORIZED, None],
]
"""What the library `together` 3.1.1 sent to the same server; tests do not install it."""


async def ours(vendor: str, url: str) -> None:
    """What geval does with one batch."""
    config = {"base_url": url, "api_key": "sk-batch"}
    model = provider(
        f"{vendor}:m", config | ({"batch_deployment": "global-batch"} if vendor == "azure" else {})
    )
    api = batch_api(model)
    assert api is not None
    body = json.dumps(BODIES.get(vendor, CHAT)).encode()
    try:
        file = io.BytesIO(api.line(KEY, body))
        file_id = await api.upload(LABEL, file)
        for _ in range(2):
            try:
                batch = await api.create(LABEL, file_id, file)
                break
            except FileNotReadyError:  # Azure is still reading the file
                continue
        await api.get(batch.id)
        batch = await api.get(batch.id)
        found = await api.find(LABEL, since=0.0, requests=1, file_id=file_id)
        assert [item.id for item in found] == [batch.id]
        assert [line.custom_id async for line in api.results(batch)] == [KEY]
        await api.cancel(batch.id)
    finally:
        await model.aclose()


def noted(server: BatchServer) -> list[Any]:
    """The requests since the last look, without what differs from one batch to the next."""
    calls, server.calls = server.calls or [], []
    found = [
        [operation, method, path, _read(query), _of_key(headers, operation), _read(content)]
        for operation, method, path, query, headers, content in calls
    ]
    text = re.sub(r"(file-|files/|batch_)\d+", r"\1N", json.dumps(found))
    return list(json.loads(re.sub(r'"checksum": "[0-9a-f]{64}"', '"checksum": "SUM"', text)))


def _read(content: Any) -> Any:
    """A request's content, its files read as JSON."""
    if isinstance(content, dict):
        defaults = {"visibility": "workspace", "created_by_me": "false"}  # Mistral's library writes them out
        return {name: _read(item) for name, item in content.items() if defaults.get(name) != item}
    try:
        return json.loads(content)
    except (TypeError, ValueError):
        return content or None


def _of_key(headers: Mapping[str, str], operation: str) -> dict[str, str]:
    """The headers that mean something to the vendor; with parts of a file Google's library repeats the first ones."""
    lower = {name.lower(): value for name, value in headers.items()}
    first = ("x-goog-upload-protocol", "x-goog-upload-header-")
    names = {"authorization", "api-key", "x-goog-api-key"} | {
        n for n in lower if n.startswith("x-goog-upload")
    }
    if operation == "put":
        names -= {name for name in names if name.startswith(first)}
    return {name: value for name, value in lower.items() if name in names}


@pytest.mark.parametrize("vendor", [*LIBRARIES, "together"])
def test_requests_are_those_of_the_vendors_own_library(vendor: str) -> None:
    with BatchServer() as server:
        server.looks = 1
        url = f"http://127.0.0.1:{server.port}{VENDORS[vendor].prefix}{VENDORS[vendor].base}"
        server.calls = []
        asyncio.run(ours(vendor, url))
        sent, theirs = noted(server), TOGETHER_SENDS
        if vendor in LIBRARIES:
            LIBRARIES[vendor](url, io.BytesIO(json.dumps(LINES[vendor]).encode() + b"\n"))
            theirs = noted(server)
    assert [call[0] for call in sent] == [call[0] for call in theirs]
    assert sent == theirs


def test_azures_newer_api_has_files_and_batches_beside_its_models() -> None:
    with BatchServer() as server:
        server.looks, server.calls = 1, []
        asyncio.run(ours("azure", f"http://127.0.0.1:{server.port}/azure/openai/v1"))
        calls = {(call[0], call[2]): call[3] for call in noted(server)}
    assert {
        ("upload", "/azure/openai/v1/files"): {},
        ("create", "/azure/openai/v1/batches"): {},
    }.items() <= calls.items()


def test_azure_calls_the_responses_api_by_another_name_in_batches() -> None:
    config = {"base_url": "https://x.openai.azure.com", "api_key": "k", "batch_deployment": "global-batch"}
    api = batch_api(provider("azure:responses:m", config))
    assert api is not None
    line = json.loads(api.line(KEY, b'{"model": "m", "input": "Hi"}'))
    assert (line["url"], line["body"]["model"]) == ("/v1/responses", "global-batch")


def test_a_large_file_goes_to_google_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google, "_PART_BYTES", 50)
    with BatchServer() as server:
        server.looks = 1
        asyncio.run(ours("google", f"http://127.0.0.1:{server.port}/google"))
        assert list(server.files.values()) == [[LINES["google"]]]
        assert server.log.count("put") > 2


def test_a_file_goes_to_no_other_host_than_googles_api_does() -> None:
    class Elsewhere(BatchServer):
        async def _upload(self, request: Any) -> Any:
            return web.json_response(
                {}, headers={"x-goog-upload-url": f"http://localhost:{self.port}/google/x"}
            )

    with (
        Elsewhere() as server,
        pytest.raises(ProviderRequestError, match="wants the file of a batch at http"),
    ):
        asyncio.run(ours("google", f"http://127.0.0.1:{server.port}/google"))
    assert server.log == ["upload"]


@pytest.mark.parametrize(
    ("url", "proxy", "trusted"),
    [("https://h.test/v1", "", 1), ("http://h.test/v1", "", 0), ("http://h.test/v1", "https://p.test", 1)],
)
def test_certificates_are_read_where_tls_is_spoken(
    url: str, proxy: str, trusted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(ca))
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    monkeypatch.setenv("HTTP_PROXY", proxy)
    api = batch_api(provider("openai:m", {"base_url": url, "api_key": "sk-0123456789", "batch": "openai"}))
    assert isinstance(api, OpenAIBatches)
    assert api._trust().cert_store_stats()["x509_ca"] == trusted

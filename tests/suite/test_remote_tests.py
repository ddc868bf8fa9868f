"""Tests at addresses: https by a server on loopback, s3 by an emulator, rows of data sets by one of their API."""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest

from geval_cli.errors import ConfigError, Problem
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.extras.remote import SourceCopies
from geval_cli.runs.requests import RunRequest, copies_for
from geval_cli.source.access import TRUSTED, Access, untrusted_access
from geval_cli.suite.load import open_suite
from geval_cli.suite.suite import OpenedSuite

pytest.importorskip("fsspec")
pytest.importorskip("s3fs")

TOKEN = "hf_zq7secret"
CSV = b"q,expected_output\na,1\nb,2\n"


def opened(
    folder: Path,
    tests: object,
    *,
    env: Mapping[str, str] | None = None,
    is_offline: bool = False,
    access: Access = TRUSTED,
) -> OpenedSuite:
    config = {"prompts": ["{{ q }}"], "providers": ["echo"], "tests": tests}
    jsonschema.Draft202012Validator(config_json_schema()).validate(config)
    path = folder / "gevalconfig.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    fetch = SourceCopies(folder / ".geval", is_offline)
    return open_suite(path, env=env or {}, access=access, fetch=lambda: fetch)


def problems_of(folder: Path, tests: object, **options: Any) -> list[Problem]:
    suite = opened(folder, tests, **options)
    found = list(suite.problems)
    try:
        for _ in suite.suite.tests:
            pass
    except ConfigError as error:
        found += error.problems
    return found


def variables_of(folder: Path, tests: object, **options: Any) -> list[dict[str, Any]]:
    suite = opened(folder, tests, **options)
    assert not suite.problems, suite.problems
    return [dict(case.vars) for case in suite.suite.tests]


class DataServer:
    """A server on loopback: `files` by path with (content, ETag), and `rows`, a data set of 250 rows or fewer."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self.answers: list[tuple[int, object]] = []
        self.rows: list[dict[str, Any]] = []
        self.total: int | None = None
        self.cut: list[str] = []
        self.revision = "r1"
        self.seen: list[tuple[str, str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                outer.seen.append((self.command, self.path, self.headers.get("authorization", "")))
                status, headers, body = outer.answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return None

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(path)
        if parts.path == "/rows":
            if self.answers:
                status, content = self.answers.pop(0)
                return status, {}, json.dumps(content).encode()
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if asked["split"] != "test":
                return 404, {}, b'{"error": "Not found."}'
            first = int(asked["offset"])
            page = [
                {"row_idx": first + index, "row": row, "truncated_cells": self.cut}
                for index, row in enumerate(self.rows[first : first + int(asked["length"])])
            ]
            total = len(self.rows) if self.total is None else self.total
            content = {"features": [], "rows": page, "num_rows_total": total, "partial": False}
            return 200, {"x-revision": self.revision}, json.dumps(content).encode()
        if parts.path == "/moved.csv":
            return 302, {"location": "/t.csv"}, b""
        if parts.path == "/private.csv":
            return 403, {}, b"no"
        if parts.path not in self.files:
            return 404, {}, b"none"
        content, version = self.files[parts.path]
        return 200, {"etag": version} if version else {}, content

    def count(self, command: str) -> int:
        return sum(seen[0] == command for seen in self.seen)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DataServer]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    running = DataServer()
    thread = threading.Thread(target=running.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.http.shutdown()
    thread.join()
    running.http.server_close()


def test_a_file_at_an_address_is_copied_once_while_it_is_the_same(tmp_path: Path, server: DataServer) -> None:
    server.files["/t.csv"] = (CSV, '"v1"')
    for _ in range(2):
        assert variables_of(tmp_path, f"{server.url}/t.csv") == [{"q": "a"}, {"q": "b"}]
    assert server.count("GET") == 1
    digest = opened(tmp_path, f"{server.url}/t.csv").suite.digest

    server.files["/t.csv"] = (CSV.replace(b"b", b"c"), '"v2"')

    assert variables_of(tmp_path, f"{server.url}/t.csv") == [{"q": "a"}, {"q": "c"}]
    assert opened(tmp_path, f"{server.url}/t.csv").suite.digest != digest
    assert server.count("GET") == 2
    copies = [path for path in (tmp_path / ".geval/sources").iterdir() if path.suffix == ".csv"]
    assert {path.stem for path in copies} == {
        hashlib.sha256(content).hexdigest() for content in (CSV, CSV.replace(b"b", b"c"))
    }
    assert not list((tmp_path / ".geval/sources").glob(".fetch-*"))


def test_a_server_that_tells_no_versions_is_asked_each_time(tmp_path: Path, server: DataServer) -> None:
    server.files["/t.csv"] = (CSV, "")
    digests = {opened(tmp_path, f"{server.url}/t.csv").suite.digest for _ in range(2)}
    assert (server.count("GET"), len(digests)) == (2, 1)


@pytest.mark.parametrize("name", ["t.csv", "t.json", "t.jsonl", "t.yaml"])
@pytest.mark.parametrize("page", [b"<!DOCTYPE html>\n<html>\n", b"\xef\xbb\xbf\n <HTML><body>Sign in"])
def test_a_page_that_asks_for_a_login_is_no_file_of_tests(
    tmp_path: Path, server: DataServer, name: str, page: bytes
) -> None:
    server.files[f"/{name}"] = (page, '"v1"')
    (problem,) = problems_of(tmp_path, f"{server.url}/{name}?token=zq7")
    assert problem.message == f"{server.url}/{name} is a web page, not a file of tests"
    assert "it may be private" in problem.hint
    server.files[f"/{name}"] = (b'[{"vars": {"q": "<html>"}}]' if name != "t.csv" else b"q\n<html>\n", '"v2"')
    if name != "t.jsonl":
        assert variables_of(tmp_path, f"{server.url}/{name}") == [{"q": "<html>"}]


def test_a_copy_that_was_changed_is_fetched_again(tmp_path: Path, server: DataServer) -> None:
    server.files["/t.csv"] = (CSV, '"v1"')
    variables_of(tmp_path, f"{server.url}/t.csv")
    (copy,) = (tmp_path / ".geval/sources").glob("*.csv")
    copy.write_text("q\nforged\n", encoding="utf-8")
    assert variables_of(tmp_path, f"{server.url}/t.csv") == [{"q": "a"}, {"q": "b"}]


def test_offline_takes_the_copy_and_asks_nobody(tmp_path: Path, server: DataServer) -> None:
    server.files["/t.csv"] = (CSV, '"v1"')
    (problem,) = problems_of(tmp_path, f"{server.url}/t.csv", is_offline=True)
    assert "there is no copy" in problem.message
    variables_of(tmp_path, f"{server.url}/t.csv")
    before = len(server.seen)
    assert variables_of(tmp_path, f"{server.url}/t.csv", is_offline=True) == [{"q": "a"}, {"q": "b"}]
    assert len(server.seen) == before


def test_parquet_lines_and_tables_at_addresses_are_the_same_tests(tmp_path: Path, server: DataServer) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    found = [{"q": "a", "expected_output": "1"}, {"q": "b", "expected_output": "2"}]
    parquet.write_table(pa.Table.from_pylist(found), tmp_path / "t.parquet")
    server.files["/t.csv"] = (CSV, "")
    server.files["/t.jsonl"] = ("".join(json.dumps(row) + "\n" for row in found).encode(), "")
    server.files["/t.parquet"] = ((tmp_path / "t.parquet").read_bytes(), "")
    server.rows = found
    addresses = [f"{server.url}/t.{ending}" for ending in ("csv", "jsonl", "parquet")]
    env = {"GEVAL_HF_ROWS_URL": server.url}
    seen = [
        [(dict(case.vars), case.expected_output) for case in opened(tmp_path, one, env=env).suite.tests]
        for one in [*addresses, f"{server.url}/moved.csv", "huggingface://datasets/o/n"]
    ]
    assert seen == [[({"q": "a"}, "1"), ({"q": "b"}, "2")]] * 5


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("URL/none.csv", "there is no file URL/none.csv|URL/none.csv cannot be read: HTTP 404"),
        ("URL/private.csv?token=zq7", "URL/private.csv cannot be read: HTTP 403"),
        ("http://127.0.0.1:9/t.csv", "http://127.0.0.1:9/t.csv cannot be reached"),
        ("http://example.org/t.csv", "http:// is not safe: the tests could be changed in transit"),
        ("URL/load.py", "`.py` is not a known file type for tests"),
        ("URL/t", "the URL does not name a tests file"),
        ("URL/*.csv", "a URL names one file and cannot have wildcards"),
        ("huggingface://models/x", "has no data set name"),
        ("huggingface://datasets/o/n?splt=test", "unknown data set parameter `splt`"),
        ("huggingface://datasets/o/n?limit=0", "`limit` must be a whole number of at least 1"),
        (
            "huggingface://datasets/o/n?split=train",
            "Hugging Face has no o/n (config `default`, split `train`)",
        ),
    ],
)
def test_what_cannot_be_fetched_is_a_problem_of_the_config(
    tmp_path: Path, server: DataServer, tests: str, message: str
) -> None:
    env = {"GEVAL_HF_ROWS_URL": server.url, "HF_TOKEN": TOKEN}
    (problem,) = problems_of(tmp_path, tests.replace("URL", server.url), env=env)
    wanted = message.replace("URL/", f"{server.url}/").split("|")
    assert any(text in problem.message for text in wanted), problem.message
    assert problem.hint
    assert problem.location
    assert problem.location.key_path == "tests"
    assert "zq7" not in f"{problem.message}{problem.hint}"


def test_neither_strangers_nor_served_configs_have_anything_fetched(
    tmp_path: Path, server: DataServer
) -> None:
    server.files["/t.csv"] = (CSV, "")
    for address in (f"{server.url}/t.csv", "s3://bucket/t.csv", "huggingface://datasets/o/n"):
        (problem,) = problems_of(tmp_path, address, access=untrusted_access([tmp_path]))
        assert "which --untrusted does not allow" in problem.message
    assert copies_for(RunRequest(tmp_path / "c.yaml", {}, served=tmp_path)) is None
    assert copies_for(RunRequest(tmp_path / "c.yaml", {}, untrusted=True)) is None
    assert server.seen == []


def test_rows_of_a_data_set_are_read_page_by_page_with_the_token(tmp_path: Path, server: DataServer) -> None:
    server.rows = [{"q": f"question {index}", "label": index} for index in range(250)]
    env = {"GEVAL_HF_ROWS_URL": server.url, "HF_TOKEN": TOKEN}
    address = "huggingface://datasets/o/n?split=test&config=C"

    found = variables_of(tmp_path, address, env=env)

    assert found == server.rows
    asked = [parse_qs(urlsplit(path).query) for _, path, _ in server.seen]
    assert [(item["offset"], item["length"]) for item in asked] == [
        (["0"], ["100"]), (["100"], ["100"]), (["200"], ["50"])
    ]  # fmt: skip
    assert asked[0]["dataset"] + asked[0]["config"] == ["o/n", "C"]
    assert {key for _, _, key in server.seen} == {f"Bearer {TOKEN}"}
    # Of the same revision, only the first page is asked for again.
    assert variables_of(tmp_path, address, env=env) == found
    assert len(server.seen) == 4
    limited = variables_of(tmp_path, f"{address}&limit=120", env=env)
    assert limited == found[:120]
    kept = [path.read_text("utf-8") for path in (tmp_path / ".geval").rglob("*") if path.is_file()]
    assert not any(TOKEN in text for text in kept)


def test_a_data_set_is_read_whole_or_not_at_all(tmp_path: Path, server: DataServer) -> None:
    env = {"GEVAL_HF_ROWS_URL": server.url}
    server.rows = [{"q": "x"}] * 150

    def told(address: str = "huggingface://datasets/o/n") -> str:
        (problem,) = problems_of(tmp_path, address, env=env)
        return f"{problem.message} | {problem.hint}"

    server.total = 10_001
    assert "o/n has 10,001 rows; at most 10,000" in told()
    assert "refs%2Fconvert%2Fparquet/default/test/0000.parquet" in told()
    assert len(variables_of(tmp_path, "huggingface://datasets/o/n?limit=150", env=env)) == 150
    server.total = 200
    assert "o/n returned only 150 of 200 rows" in told()
    server.total, server.cut = None, ["q"]
    assert "the API truncates `q` in row 0 of o/n" in told()
    server.cut = []
    for answer in ({}, [], {"rows": 3, "num_rows_total": 1}, {"rows": [{"row": 1}], "num_rows_total": 1}):
        server.answers = [(200, answer)]
        assert "does not contain rows" in told()
    server.answers = [(200, {"rows": [{"row": {"q": "a"}}], "num_rows_total": 1, "partial": True})]
    assert "has only a part of o/n" in told()
    rows = [{"row_idx": index, "row": {"q": str(index)}} for index in range(100)]
    server.answers = [(200, {"rows": rows, "num_rows_total": 150})] * 2  # whatever the offset
    assert "o/n returned row 0 where row 100 was requested" in told()
    server.answers = [(401, {"error": "no"})]
    assert "is denied | set HF_TOKEN" in told()
    server.answers = [(503, {"error": "busy"})]
    assert len(variables_of(tmp_path, "huggingface://datasets/o/n", env=env)) == 150
    server.answers = [(200, {"rows": [{"row": {"q": "a"}}] * 100, "num_rows_total": 150})]
    assert len(variables_of(tmp_path, "huggingface://datasets/o/n?limit=30", env=env)) == 30
    server.answers = [(200, {"rows": [], "num_rows_total": 0})]
    assert "o/n (config `default`, split `test`) has no rows | choose another" in told()
    env["GEVAL_HF_ROWS_URL"] = "http://example.org"
    assert "must be an https:// URL" in told()


def test_a_file_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    emulator = moto.ThreadedMotoServer(port=0, verbose=False)
    emulator.start()
    try:
        host, port = emulator.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "zq7secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="tests")
        client.put_object(Bucket="tests", Key="a/t.csv", Body=CSV)
        assert variables_of(tmp_path, "s3://tests/a/t.csv") == [{"q": "a"}, {"q": "b"}]
        digest = opened(tmp_path, "s3://tests/a/t.csv").suite.digest
        client.put_object(Bucket="tests", Key="a/t.csv", Body=CSV + b"c,3\n")
        assert len(variables_of(tmp_path, "s3://tests/a/t.csv")) == 3
        assert opened(tmp_path, "s3://tests/a/t.csv").suite.digest != digest
        (missing,) = problems_of(tmp_path, "s3://tests/none.csv")
        assert missing.message == "there is no file s3://tests/none.csv"
        client.close()
    finally:
        emulator.stop()


def test_without_the_packages_the_way_to_install_them_is_told(
    tmp_path: Path, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    (problem,) = problems_of(tmp_path, f"{server.url}/t.csv")
    assert problem.message == f"reading {server.url}/t.csv needs fsspec and s3fs"
    assert '".[remote]"' in problem.hint
    assert server.seen == []

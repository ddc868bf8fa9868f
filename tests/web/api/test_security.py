import base64
import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.web_server import HttpAnswer, RunningServer, all_routes, running_server

TOKEN = "a-long-token-for-tests-0123456789"
MINIMAL = {"name": "clarity", "input": "What is 2 + 2?", "actualOutput": "It is 4."}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a token, and with an origin that may use it."""
    folder = tmp_path_factory.mktemp("guarded")
    with running_server(folder, token=TOKEN, allowed_origins=("https://app.example",)) as running:
        yield running


def as_host(server: RunningServer, *hosts: str, path: str = "/healthz") -> int:
    """The status for a request whose Host headers are `hosts`."""
    connection = http.client.HTTPConnection("127.0.0.1", server.settings.port, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def refused(answer: HttpAnswer, status: int) -> bool:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == answer.status
    return answer.status == status


class TestHost:
    @pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
    def test_names_of_this_machine_are_fine(self, server: RunningServer, name: str) -> None:
        assert as_host(server, f"{name}:{server.settings.port}") == 200

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "evil.example:{port}",
            "localhost",
            "localhost:1",
            "localhost.evil.example:{port}",
            "127.0.0.1:{port}.evil.example",
            "",
        ],
    )
    @pytest.mark.parametrize("path", ["/healthz", "/api/runs", "/nowhere", "/static/style.css", "/"])
    def test_any_other_name_is_refused_everywhere(self, server: RunningServer, host: str, path: str) -> None:
        assert as_host(server, host.format(port=server.settings.port), path=path) == 403

    def test_a_second_name_is_refused_whichever_comes_first(self, server: RunningServer) -> None:
        names = [f"localhost:{server.settings.port}", "evil.example"]
        assert as_host(server, *names) == as_host(server, *reversed(names)) == 403

    def test_a_browser_gets_a_page_that_says_so(self, server: RunningServer) -> None:
        answer = server.get("/", host="evil.example", accept="text/html")
        assert (answer.status, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
        assert "this server does not accept the name in the Host header" in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")

    def test_further_names_can_be_allowed(self, tmp_path: Path) -> None:
        with running_server(tmp_path, allowed_hosts=("geval.example",)) as server:
            assert as_host(server, "geval.example") == 200
            assert as_host(server, f"geval.example:{server.settings.port}") == 200
            assert as_host(server, "evil.example") == 403


class TestOrigin:
    def test_of_the_server_itself_is_fine(self, server: RunningServer) -> None:
        assert server.get("/api/runs", origin=server.url).status == 200

    @pytest.mark.parametrize(
        "origin",
        [
            "https://evil.example",
            "null",
            "http://127.0.0.1:1",
            "http://localhost",
            "",
            "http://[",
            "http://[]/:99999",
        ],
    )
    def test_any_other_is_refused(self, server: RunningServer, origin: str) -> None:
        assert refused(server.get("/api/runs", origin=origin), 403)
        assert refused(server.post("/api/geval", MINIMAL, origin=origin), 403)

    def test_no_answer_lets_other_pages_read_it(self, server: RunningServer) -> None:
        answer = server.get("/api/runs", origin=server.url)
        assert not [name for name in answer.headers if name.startswith("access-control")]

    def test_one_that_is_allowed_may_read_and_ask_beforehand(self, guarded: RunningServer) -> None:
        origin = "https://app.example"
        asked = {
            "origin": origin,
            "access_control_request_method": "POST",
            "access_control_request_headers": "authorization, content-type",
        }
        beforehand = guarded.send("OPTIONS", "/api/geval", headers=asked)
        assert beforehand.status == 200
        assert beforehand.headers["access-control-allow-origin"] == origin
        answer = guarded.get("/api/runs", origin=origin, authorization=f"Bearer {TOKEN}")
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert guarded.get("/api/runs", origin="https://evil.example").status == 403


class TestToken:
    @pytest.mark.parametrize(
        "path", ["/api/runs", "/", "/docs", "/openapi.json", "/nowhere", "/static/style.css"]
    )
    def test_is_wanted_everywhere(self, guarded: RunningServer, path: str) -> None:
        assert refused(guarded.get(path), 401)

    def test_is_asked_for_in_words_where_a_browser_opens_a_page(self, guarded: RunningServer) -> None:
        answer = guarded.get("/docs", accept="text/html,*/*")
        assert (answer.status, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert "this server requires its token" in answer.text
        assert "www-authenticate" in answer.headers
        assert refused(guarded.get("/api/runs", accept="text/html,*/*"), 401)

    def test_page_that_asks_for_it_fetches_nothing(self, guarded: RunningServer) -> None:
        """Its style stands in it: no other address need be open for it to look like a page."""
        answer = guarded.get("/runs/secret?q=secret", accept="text/html")
        policy = answer.headers["content-security-policy"]
        assert answer.status == 401
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert not re.search("'self'|unsafe|http", policy)
        assert re.findall(r'\b(?:src|href)="(?!/"|/suites"|/docs"|#)([^"]*)"', answer.text) == ["data:,"]
        assert "secret" not in answer.text

    def test_is_not_wanted_for_asking_whether_the_server_is_there(self, guarded: RunningServer) -> None:
        assert guarded.get("/healthz").json["status"] == "ok"

    def test_opens_the_api(self, guarded: RunningServer) -> None:
        assert guarded.get("/api/runs", authorization=f"Bearer {TOKEN}").status == 200

    def test_is_the_password_for_browsers(self, guarded: RunningServer) -> None:
        assert guarded.get("/docs").headers["www-authenticate"].startswith("Basic")
        given = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
        assert guarded.get("/docs", authorization=f"Basic {given}").status == 200

    @pytest.mark.parametrize(
        "given",
        [
            "Bearer",
            "Bearer ",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            TOKEN,
            f"Token {TOKEN}",
            "Basic !!!",
            "Basic YTpi",
            "Basic \xe9",
            "Bearer \xff\xfe",
        ],
    )
    def test_must_be_the_very_same(self, guarded: RunningServer, given: str) -> None:
        answer = guarded.get("/api/runs", authorization=given)
        assert refused(answer, 401)
        assert TOKEN not in answer.text
        assert answer.headers["www-authenticate"].startswith("Bearer")

    def test_may_hold_any_character(self, tmp_path: Path) -> None:
        token = 't\u00f6k"en \udcff'  # the last one is a byte of the environment that is no UTF-8
        with running_server(tmp_path, token=token) as server:
            given = token.encode("utf-8", "surrogateescape").decode("latin-1")
            assert server.get("/api/runs", authorization=f"Bearer {given}").status == 200
            assert server.get("/api/runs", authorization=f"Bearer {given[:-1]}").status == 401

    def test_is_in_the_description_of_the_api_when_there_is_one(
        self, server: RunningServer, guarded: RunningServer
    ) -> None:
        document = guarded.get("/openapi.json", authorization=f"Bearer {TOKEN}").json
        assert document["paths"]["/api/geval"]["post"]["security"] == [{"token": []}]
        assert "security" not in document["paths"]["/healthz"]["get"]
        assert "securitySchemes" not in server.get("/openapi.json").json["components"]


def ask(server: RunningServer, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
    """The answer itself, redirects not followed; all of it is read."""
    connection = http.client.HTTPConnection("127.0.0.1", server.settings.port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def cookie_of(answer: http.client.HTTPResponse) -> str:
    return str(answer.getheader("set-cookie")).partition(";")[0]


class TestCookie:
    @pytest.mark.parametrize(
        ("path", "then"),
        [
            ("/?token={token}", "/"),
            ("/?status=failed&token={token}&q=a%20b", "/?status=failed&q=a+b"),
            ("/runs/x%20y?token={token}", "/runs/x%20y"),
            ("//evil.example/?token={token}", "/evil.example/"),
            ("/%5Cevil.example/?token={token}", "/%5Cevil.example/"),
        ],
    )
    def test_is_given_for_the_token_in_an_address(self, guarded: RunningServer, path: str, then: str) -> None:
        answer = ask(guarded, "GET", path.format(token=TOKEN))
        assert answer.status == 303
        assert answer.getheader("location") == then
        given = str(answer.getheader("set-cookie"))
        assert given.startswith(f"geval-{guarded.settings.port}=")
        assert given.endswith("; Path=/; HttpOnly; SameSite=Strict")
        assert TOKEN not in given
        assert answer.getheader("referrer-policy") == "no-referrer"
        assert answer.getheader("cache-control") == "no-store"

    @pytest.mark.parametrize(
        "path", ["/", "/docs", "/openapi.json", "/api/runs", "/suites", "/static/style.css"]
    )
    def test_opens_everything(self, guarded: RunningServer, path: str) -> None:
        cookie = cookie_of(ask(guarded, "GET", f"/?token={TOKEN}"))
        assert ask(guarded, "GET", path, cookie=f"a=b; {cookie}").status == 200
        assert ask(guarded, "GET", path, cookie=cookie[:-1]).status == 401
        assert ask(guarded, "GET", path, cookie=cookie.replace("geval-", "geval-1")).status == 401
        assert ask(guarded, "GET", path, cookie=cookie, origin="https://evil.example").status == 403

    @pytest.mark.parametrize("path", ["/?token=", "/?token=wrong", "/?token=%ff", "/api/runs?token={token}"])
    def test_is_given_for_nothing_else(self, guarded: RunningServer, path: str) -> None:
        answer = ask(guarded, "GET", path.format(token=TOKEN))
        assert answer.status == 401
        assert answer.getheader("set-cookie") is None

    def test_of_another_server_opens_nothing(self, guarded: RunningServer, tmp_path: Path) -> None:
        cookie = cookie_of(ask(guarded, "GET", f"/?token={TOKEN}"))
        with running_server(tmp_path, token=f"{TOKEN}2") as other:
            value = cookie.partition("=")[2]
            assert ask(other, "GET", "/", cookie=f"geval-{other.settings.port}={value}").status == 401

    def test_is_given_once_for_a_ticket(self, tmp_path: Path) -> None:
        with running_server(tmp_path, token=TOKEN, ticket="once") as server:
            assert ask(server, "GET", "/?token=once", cookie="").status == 303
            assert ask(server, "GET", "/?token=once").status == 401
            assert ask(server, "GET", f"/?token={TOKEN}").status == 303
        with running_server(tmp_path, token=TOKEN) as server:
            assert ask(server, "GET", "/?token=").status == 401


def paths_and_methods() -> set[tuple[str, str]]:
    """All that the application answers to, the names in its paths filled in."""
    found = {("GET", "/static/style.css"), ("GET", "/openapi.json")}
    for route in all_routes():
        found |= {(method, re.sub(r"\{[^}]*\}", "x", route.path)) for method in route.methods}
    return found


class TestEvaluationsWithoutToken:
    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
        """As `geval serve` starts without a token of the user's."""
        folder = tmp_path_factory.mktemp("opened")
        with running_server(folder, token=TOKEN, has_open_geval=True) as server:
            yield server

    def test_may_be_asked_for(self, opened: RunningServer) -> None:
        assert opened.post("/api/geval", {}).status == 422
        assert opened.post("/api/geval", MINIMAL, origin="https://evil.example").status == 403
        assert opened.post("/api/geval?details=true", {}).status == 422

    def test_are_all_that_is_open(self, opened: RunningServer) -> None:
        known = paths_and_methods()
        assert len(known) > 15
        statuses = {item: ask(opened, *item).status for item in known}
        unguarded = {item for item, status in statuses.items() if status != 401}
        assert unguarded == {("GET", "/healthz"), ("POST", "/api/geval")}

    @pytest.mark.parametrize(
        ("method", "path"),
        [("GET", "/api/geval"), ("POST", "/api/geval/"), ("POST", "//api/geval"), ("POST", "/api/runs")],
    )
    def test_are_open_under_their_own_address_only(
        self, opened: RunningServer, method: str, path: str
    ) -> None:
        assert ask(opened, method, path).status == 401

    def test_are_described_as_open(self, opened: RunningServer) -> None:
        document = opened.get("/openapi.json", authorization=f"Bearer {TOKEN}").json
        assert "security" not in document["paths"]["/api/geval"]["post"]
        assert document["paths"]["/api/runs"]["post"]["security"] == [{"token": []}]

    def test_are_not_open_where_the_user_gave_a_token(self, guarded: RunningServer) -> None:
        assert ask(guarded, "POST", "/api/geval").status == 401


class TestBody:
    @pytest.mark.parametrize(
        "kind",
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp"],
    )
    @pytest.mark.parametrize("path", ["/api/geval", "/api/runs", "/api/runs/latest/stop"])
    def test_must_be_said_to_be_json(self, server: RunningServer, kind: str, path: str) -> None:
        answer = server.send("POST", path, json.dumps(MINIMAL).encode(), {"content-type": kind})
        assert refused(answer, 415)

    def test_may_name_its_charset(self, server: RunningServer) -> None:
        answer = server.post("/api/geval", {}, content_type="application/json; charset=utf-8")
        assert answer.status == 422

    def test_that_is_too_large_is_413(self, tmp_path: Path) -> None:
        with running_server(tmp_path, max_body_bytes=1000) as server:
            assert refused(server.post("/api/geval", {"name": "x" * 1000}), 413)
            assert server.post("/api/geval", {"name": "x" * 900}).status == 422

    def test_that_does_not_say_how_large_it_is_is_413_too(self, tmp_path: Path) -> None:
        with running_server(tmp_path, max_body_bytes=1000) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.settings.port, timeout=60)
            headers = {"content-type": "application/json"}
            connection.request("POST", "/api/geval", iter([b"x" * 600] * 2), headers, encode_chunked=True)
            assert connection.getresponse().status == 413
            connection.close()

    def test_that_takes_too_long_is_408(self, tmp_path: Path) -> None:
        with (
            running_server(tmp_path, body_timeout_s=0.1) as server,
            socket.create_connection(("127.0.0.1", server.settings.port), timeout=60) as slow,
        ):
            head = f"POST /api/geval HTTP/1.1\r\nhost: 127.0.0.1:{server.settings.port}\r\n"
            slow.sendall(f"{head}content-type: application/json\r\ncontent-length: 9\r\n\r\n{{".encode())
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")


class TestProblems:
    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/api/nowhere", 404),
            ("GET", "/static/nowhere.js", 404),
            ("GET", "/static/..%2fapp.py", 404),
            ("GET", "/api/geval", 405),
            ("PUT", "/api/runs", 405),
            ("PUT", "/api/runs/latest", 405),
            ("POST", "/healthz", 405),
            ("POST", "/nowhere", 404),
            ("TRACE", "/api/runs", 405),
        ],
    )
    def test_are_problem_json_everywhere(
        self, server: RunningServer, method: str, path: str, status: int
    ) -> None:
        answer = server.send(method, path, headers={"content-type": "application/json"})
        assert refused(answer, status)
        assert answer.json["detail"]
        assert answer.json["hint"]
        assert (status == 405) == ("allow" in answer.headers)

    @pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/api/runs", "/docs", "/api/geval"])
    def test_and_all_else_tell_browsers_what_is_allowed(self, server: RunningServer, path: str) -> None:
        headers = server.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"

    def test_a_bug_is_500_and_shows_nothing_of_the_inside(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running_server(tmp_path) as server:
            server.app.state.state = None  # nothing works without the stores
            answer = server.get("/api/runs")
        assert refused(answer, 500)
        assert "NoneType" not in answer.text
        assert "nosniff" in answer.headers["x-content-type-options"]
        assert "NoneType" in caplog.text


def shown_operations(page: str) -> set[str]:
    """The operations that the page describes, as `METHOD path`."""
    found = re.findall(r'<p class="docs-path">(.*?)</p>', page, re.DOTALL)
    return {" ".join(re.sub(r"<[^>]+>", " ", item).split()) for item in found}


class TestDescription:
    def test_page_needs_nothing_from_elsewhere(self, server: RunningServer) -> None:
        page = server.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "POST /api/geval" in shown_operations(page.text)
        assert "/openapi.json" in page.text
        assert "http://" not in page.text.replace(server.url, "")
        assert "https://" not in page.text

    def test_every_operation_of_the_document_is_on_the_page(self, server: RunningServer) -> None:
        page, document = server.get("/docs").text, server.get("/openapi.json").json
        shown = shown_operations(page)
        for path, item in document["paths"].items():
            for method, operation in item.items():
                assert f"{method.upper()} {path}" in shown
                assert operation["summary"]

    def test_arrays_are_described_as_generators_of_clients_read_them(self, server: RunningServer) -> None:
        odd = []

        def walk(part: Any, path: str) -> None:
            if isinstance(part, dict):
                if "items" in part and not isinstance(part["items"], dict):
                    odd.append(path)
                if part.get("type") == "array" and not part.keys() & {"items", "prefixItems"}:
                    odd.append(path)
                for name, inner in part.items():
                    walk(inner, f"{path}/{name}")
            elif isinstance(part, list):
                for inner in part:
                    walk(inner, path)

        document = server.get("/openapi.json").json
        walk(document, "")
        assert odd == []
        interval = document["components"]["schemas"]["RunSummary"]["properties"]["pass_interval"]["anyOf"][0]
        assert (interval["minItems"], interval["maxItems"], len(interval["prefixItems"])) == (2, 2, 2)

    def test_names_the_fields_as_they_are_sent(self, server: RunningServer) -> None:
        schema: dict[str, Any] = server.get("/openapi.json").json["components"]["schemas"]["GEvalRequest"]
        assert schema["required"] == ["name", "input", "actualOutput"]
        assert set(schema["properties"]) == {
            "name",
            "input",
            "actualOutput",
            "criteria",
            "expectedOutput",
            "evaluationSteps",
            "context",
            "retrievalContext",
        }


def test_no_answer_holds_a_key(tmp_path: Path) -> None:
    secret = "sk-secret-0123456789abcdef"
    environ = {"OPENAI_API_KEY": secret, "GEVAL_SERVER_TOKEN": "another-secret-value"}
    (tmp_path / "suite.yaml").write_text(
        "prompts: [x]\nproviders: [{ id: echo, config: { apiKey: '{{ env.OPENAI_API_KEY }}' } }]\n"
        "tests: [{ assert: [{ type: contains, value: x }] }]\n",
        encoding="utf-8",
    )
    with running_server(tmp_path, environ=environ) as server:
        started = server.post("/api/runs", {"config": "suite.yaml"})
        texts = [started.text]
        if started.status == 201:
            texts += [json.dumps(event) for event in server.events(started.json["events"])]
        paths = ("/", "/docs", "/openapi.json", "/api/runs", "/api/runs/latest?results=true", "/healthz")
        texts += [server.get(path).text for path in paths]
    assert all(value not in text for text in texts for value in environ.values())

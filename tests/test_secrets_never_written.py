"""Keys wherever a user can put one, a server that breaks in every way and echoes them, and all that geval writes."""

import base64
import json
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from pyarrow import parquet
from support.calls import answer, provider, run
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, RecordedRequest, Reply, chat_reply
from support.odd_servers import RawServer

from geval_cli.errors import ProviderError
from geval_cli.report import FORMATS

MARK = "zq7x9wk2v"
"""In every planted secret, and nowhere else: long enough not to come up in the packed data of a report by chance."""

PASSWORD = f"{MARK}-password-in-the-address"


def planted(place: str) -> str:
    return f"{MARK}-{place}-0123456789abcdef"


ENVIRONMENT = {
    "OPENAI_API_KEY": planted("openai"),
    "OTHER_KEY": planted("other"),
    "FROM_SHELL": planted("from-shell"),
    "HTTP_PROXY": f"http://user:{planted('proxy')}@127.0.0.1:9",
}
ENV_FILE = f"GROQ_API_KEY={planted('env-file')}\nANTHROPIC_API_KEY={planted('anthropic')}\n"


def config(server: LoopbackServer) -> dict[str, Any]:
    base_url, retried = server.base_url, {"max_retries": 1}
    judge = {
        "id": "openai:judge",
        "config": {
            "base_url": base_url,
            "apiKey": planted("judge"),
            "headers": {"X-Tenant": planted("tenant")},
            **retried,
        },
    }
    return {
        "env": {"IN_BLOCK": planted("env-block")},
        "prompts": ["say {{ x }}"],
        "providers": [
            {"id": "openai:env", "config": {"base_url": base_url, **retried}},
            {"id": "openai:named", "config": {"base_url": base_url, "api_key_env": "OTHER_KEY", **retried}},
            {"id": "openai:key", "config": {"base_url": base_url, "api_key": planted("api-key"), **retried}},
            {
                "id": "openai:header",
                "config": {
                    "base_url": base_url,
                    "headers": {
                        "Authorization": f"Bearer {planted('header')}",
                        "X-Auth-Token": planted("token-header"),
                    },
                    **retried,
                },
            },
            {
                "id": "openai:corp",
                "config": {"base_url": base_url, "headers": {"X-Corp": planted("corp")}, **retried},
            },
            {
                "id": "openai:query",
                "config": {"base_url": f"{base_url}?api_key={planted('query')}", **retried},
            },
            {
                "id": "openai:user",
                "config": {"base_url": base_url.replace("://", f"://me:{PASSWORD}@"), **retried},
            },
            {"id": "openai:block", "config": {"base_url": base_url, "api_key_env": "IN_BLOCK", **retried}},
            {"id": "groq:file", "config": {"base_url": base_url, **retried}},
            {"id": "anthropic:file", "config": {"base_url": server.url, **retried}},
            {
                "id": f"{server.url}/app?token={{{{ env.FROM_SHELL }}}}",
                "config": {
                    "body": {"q": "{{ prompt }}", "secret": planted("body")},
                    "response_path": "choices[0].message.content",  # an answer is kept as it is, whatever it says
                    **retried,
                },
            },
            # The proxy of the environment, which is not there, stands before a host that is not this machine.
            {"id": "openai:proxied", "config": {"base_url": "http://models.invalid/v1", "max_retries": 0}},
        ],
        "defaultTest": {
            "assert": [
                {"type": "contains", "value": "fine"},
                {"type": "g-eval", "criteria": "Good.", "provider": judge},
                {"type": "webhook", "value": f"{server.url}/hook?key={planted('webhook')}"},
            ]
        },
        "tests": [{"vars": {"x": word}} for word in ("one", "two", "three")],
    }


class Echo:
    """Answers each kind of request in turn with every fault and with success, and says back whatever it was sent."""

    def __init__(self) -> None:
        self.server: LoopbackServer
        self._turns: Counter[tuple[str, bool]] = Counter()

    def respond(self, body: Any, headers: Mapping[str, str]) -> Reply:
        request = next(item for item in reversed(self.server.requests) if item.headers is headers)
        kind = (request.path.partition("?")[0], "judge" in str(request.body))  # whichever kind comes first
        self._turns[kind] += 1
        return self._replies(request)[self._turns[kind] % 8]

    def _replies(self, request: RecordedRequest) -> list[Reply]:
        heard = f"{request.path} {dict(request.headers)} {request.body.decode()}"
        echoed = {"x-request-id": request.headers.get("authorization", request.path)}
        good = chat_reply("fine")
        if request.path.startswith("/hook"):
            good = Reply(200, {}, {"pass": False, "reason": heard, "score": 0.25})
        elif "judge" in str(request.body):
            found = {"score": 7, "reason": f"It is good. {heard}", "steps": [heard]}
            good = chat_reply(json.dumps(found))
        return [
            Reply(200, echoed, {**good.body, "heard": heard, "id": heard}),
            Reply(500, echoed, {"error": {"message": heard}}),
            Reply(429, {**echoed, "retry-after-ms": "1"}, {"error": {"message": heard}}),
            Reply(200, echoed, good.body),
            Reply(reset=True),
            Reply(body=heard, truncate=True),
            Reply(200, echoed, f"not JSON: {heard}"),
            Reply(307, {**echoed, "location": f"http://elsewhere.invalid/?token={heard!r}"}),
        ]


@pytest.fixture(scope="module")
def everything_written(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, echo = tmp_path_factory.mktemp("secrets"), Echo()
    outputs = [word for ending in FORMATS for word in ("-o", f"results{ending}")]
    with LoopbackServer(respond=echo.respond) as server:
        echo.server = server
        (folder / "config.yaml").write_text(yaml.safe_dump(config(server), sort_keys=False), encoding="utf-8")
        (folder / "keys.env").write_text(ENV_FILE, encoding="utf-8")
        before = {path.name for path in folder.iterdir()}
        options = ("config.yaml", "--env-file", "keys.env")
        commands = [
            ("run", *options, "--plan", "-o", "plan.json"),
            ("run", *options, "--debug", "--verbose", "--log-file", "requests.jsonl", *outputs),
            ("run", *options, "--max-cost", "1"),
            ("show", "latest", "--verbose"),
            ("list",),
            ("export", "suite", "config.yaml"),
            ("export", "suite", "config.yaml", "-o", "suite.json"),
        ]
        env = clean_environment(**ENVIRONMENT)
        finished = [run_geval(*command, cwd=folder, env=env) for command in commands]
    assert [item.code for item in finished][:1] == [0], finished[0].stderr
    assert finished[1].code in {1, 3}, finished[1].stderr
    assert finished[2].code == 2
    written = {
        str(path.relative_to(folder)): path.read_bytes().decode("latin-1")
        for path in folder.rglob("*")
        if path.is_file() and path.name not in before
    }
    for name in ("results.parquet", "results.tests.parquet"):
        written[f"rows of {name}"] = str(parquet.read_table(folder / name).to_pylist())
    assert {"plan.json", "requests.jsonl", "results.json", "suite.json"} <= written.keys()
    assert any(name.endswith("cache.db") for name in written)
    said = [text for item in finished for text in (item.stdout, item.stderr)]
    return "\n".join([*said, *written.values()])


def test_the_run_saw_faults_and_success(everything_written: str) -> None:
    for words in (
        "fine",
        "It is good. ",
        "/hook?key=***",
        "HTTP 500",
        "sent 2 times",
        "not JSON",
        "the proxy http://127.0.0.1:9 cannot be reached",
    ):
        assert words in everything_written


def test_no_planted_secret_was_written(everything_written: str) -> None:
    found = [everything_written[max(0, at - 80) : at + 40] for at in _positions(everything_written, MARK)]
    assert found == []


@pytest.mark.parametrize("spelled", [f"me:{PASSWORD}", f"user:{planted('proxy')}"])
def test_no_secret_was_written_in_another_spelling(everything_written: str, spelled: str) -> None:
    assert base64.b64encode(spelled.encode()).decode() not in everything_written


def test_a_search_that_finds_nothing_can_find_something() -> None:
    assert list(_positions(f"key={planted('api-key')}", MARK)) == [4]


@pytest.mark.parametrize(
    "reply",
    [Reply(reset=True), Reply(500, body="no"), Reply(body="x"), Reply(hang=True), Reply(401, body="no")],
)
def test_no_exception_shows_a_key_in_its_repr_or_traceback(reply: Reply) -> None:
    with LoopbackServer(reply) as server:
        url = server.base_url.replace("://", f"://me:{PASSWORD}@") + f"?api_key={planted('query')}"
        assert MARK not in _everything_about(failure_at(url))


def test_no_exception_about_bytes_that_are_no_http_shows_a_key() -> None:
    with RawServer(b"nonsense\r\n\r\n") as server:
        assert MARK not in _everything_about(failure_at(f"{server.base_url}?api_key={planted('query')}"))


def failure_at(url: str) -> ProviderError:
    settings = {"base_url": url, "headers": {"x-api-key": planted("header")}, "timeout_s": 0.1}
    model = provider("openai:m", settings)
    assert MARK not in repr(model)
    with pytest.raises(ProviderError) as caught:
        run(answer(model))
    return caught.value


def _everything_about(error: ProviderError) -> str:
    trace = "".join(traceback.format_exception(error, chain=True))
    return "\n".join([str(error), repr(error), error.hint, error.body, repr(error.__cause__), trace])


def _positions(text: str, word: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)

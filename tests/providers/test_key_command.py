"""`api_key_command`: a program prints the key. Real programs, and servers that refuse keys which have expired."""

import asyncio
import base64
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.batch_server import BatchServer
from support.batch_trial import BatchSuite
from support.calls import answer, ask, provider, run
from support.geval_command import Finished, clean_environment, run_geval
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply

from geval_cli.errors import ProviderAuthError
from geval_cli.extras import credentials
from geval_cli.extras.web.config_code import runs_code
from geval_cli.providers.registry import check_provider, check_ready
from geval_cli.runs.requests import RunRequest
from geval_cli.specs.base import ProviderSpec

COUNTER = """#!{python}
import json, sys, time
from pathlib import Path
log = Path(__file__).with_name("asked")
with log.open("a") as file:
    file.write("x")
number = len(log.read_text())
{body}
"""


def script(folder: Path, body: str = 'print(f"token-{number}-of-the-vault")') -> Path:
    """A program that counts how often it is started; `number` is which time this is."""
    path = folder / "give_token.py"
    path.write_text(COUNTER.format(python=sys.executable, body=body), encoding="utf-8")
    path.chmod(0o755)
    return path


def starts(folder: Path) -> int:
    log = folder / "asked"
    return len(log.read_text(encoding="utf-8")) if log.exists() else 0


def server_of(*good: str, reply: Any = None, status: int = 401) -> LoopbackServer:
    """A server that takes these tokens alone, one after another: each once the one before it has been refused."""
    left = list(good)

    def respond(body: Any, headers: Mapping[str, str]) -> Any:
        sent = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
        if sent not in left:
            return error_reply(status, f"the token {sent} has expired or is an invalid api key")
        return reply or chat_reply("fine")

    return LoopbackServer(respond=respond)


def model(folder: Path, server: LoopbackServer, kind: str = "openai:m", **config: Any) -> Any:
    settings = {"base_url": server.base_url, "api_key_command": ["./give_token.py"], **config}
    return provider(kind, settings, base_dir=folder, env={"OPENAI_API_KEY": "sk-not-this-one"})


def sent_keys(server: LoopbackServer) -> list[str]:
    return [request.headers.get("authorization", "") for request in server.requests]


def test_a_key_is_asked_for_once_and_used_until_the_server_refuses_it(tmp_path: Path) -> None:
    script(tmp_path)
    with server_of("token-2-of-the-vault") as server:
        replies = run(answer(model(tmp_path, server), ask("a"), ask("b"), ask("c")))
        assert [reply.text for reply in replies] == ["fine"] * 3
        assert sent_keys(server) == [
            "Bearer token-1-of-the-vault",
            *["Bearer token-2-of-the-vault"] * 3,
        ]
    assert starts(tmp_path) == 2


def test_requests_under_way_ask_once_for_a_key_and_once_for_a_newer_one(tmp_path: Path) -> None:
    script(tmp_path, 'time.sleep(0.2)\nprint(f"token-{number}-of-the-vault")')

    async def ask_many(*models: Any) -> list[str]:
        try:
            replies = await asyncio.gather(
                *(one.complete(ask(f"{index}")) for index in range(20) for one in models)
            )
        finally:
            for one in models:
                await one.aclose()
        return [reply.text for reply in replies]

    with server_of("token-2-of-the-vault") as server:
        # The model and its judge name the same program.
        found = run(ask_many(model(tmp_path, server), model(tmp_path, server, "openai:judge")))
        assert found == ["fine"] * 40
        assert len(server.requests) <= 80
    assert starts(tmp_path) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_refused_twice_is_an_error_that_shows_no_key(tmp_path: Path, status: int) -> None:
    script(tmp_path)
    with server_of("another", status=status) as server:
        with pytest.raises(ProviderAuthError) as caught:
            run(answer(model(tmp_path, server)))
        assert len(server.requests) == 2
    assert starts(tmp_path) == 2
    said = f"{caught.value.message} {caught.value.hint} {caught.value.body}"
    assert "vault" not in said
    assert "the token *** has expired" in said
    assert "`api_key_command`" in caught.value.hint


def test_google_refuses_a_key_with_a_400_and_gets_a_newer_one(tmp_path: Path) -> None:
    script(tmp_path)
    refused = {"code": 400, "message": "API key expired", "details": [{"reason": "API_KEY_INVALID"}]}
    with LoopbackServer(Reply(400, body={"error": refused}), chat_reply("fine")) as server:
        [response] = run(answer(model(tmp_path, server)))
        assert response.text == "fine"
    assert starts(tmp_path) == 2


def test_the_same_key_is_not_sent_twice(tmp_path: Path) -> None:
    script(tmp_path, 'print("the-one-and-only-token")')
    with server_of("another") as server:
        with pytest.raises(ProviderAuthError, match="has expired") as caught:
            run(answer(model(tmp_path, server)))
        assert len(server.requests) == 1
    assert caught.value.hint.startswith("`give_token.py` (`api_key_command`) printed the same key again")


def test_a_refusal_for_lack_of_money_is_not_about_the_key(tmp_path: Path) -> None:
    script(tmp_path)
    broke = error_reply(429, "You exceeded your current quota", code="insufficient_quota")
    with LoopbackServer(broke) as server, pytest.raises(ProviderAuthError):
        run(answer(model(tmp_path, server)))
    assert starts(tmp_path) == 1


def jwt(**claims: Any) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)
    ]
    return ".".join(["eyJ" + parts[0], parts[1], "c2ln"])


AZ = "json.dumps({'accessToken': f'az-{number}-abcdef', 'expiresOn': time.strftime('%Y-%m-%d %H:%M:%S.000000', time.localtime(time.time() + LIFE)), 'tokenType': 'Bearer'}, indent=2)"  # noqa: E501


@pytest.mark.parametrize(
    "printed",
    [
        AZ,
        "json.dumps({'token': f'gc-{number}-abcdef', 'expires_in': LIFE})",
        "json.dumps({'access_token': f'db-{number}-abcdef', 'token_type': 'Bearer',"
        " 'expiry': time.strftime('%Y-%m-%dT%H:%M:%S.123456789Z', time.gmtime(time.time() + LIFE))})",
        "json.dumps({'accessToken': f'az-{number}-abcdef', 'expires_on': str(int(time.time() + LIFE))})",
        "json.dumps({'access_token': f'ib-{number}-abcdef', 'expiration': (time.time() + LIFE) * 1000})",
        "json.dumps({'iam_token': f'Bearer ib-{number}-abcdef', 'expiresIn': LIFE})",
        "'.'.join(['eyJhbGciOiJub25lIn0', __import__('base64').urlsafe_b64encode(json.dumps("
        "{'exp': time.time() + LIFE, 'n': number}).encode()).decode().rstrip('='), 'c2ln'])",
    ],
)
@pytest.mark.parametrize("life_s", [1.6, 3600])
def test_a_token_is_replaced_before_it_ends(tmp_path: Path, printed: str, life_s: float) -> None:
    script(tmp_path, f"LIFE = {life_s}\nprint({printed})")

    async def ask_twice(one: Any) -> None:
        try:
            await one.complete(ask("a"))
            await one.complete(ask("b"))
            await asyncio.sleep(1.0)
            await one.complete(ask("c"))
        finally:
            await one.aclose()

    with LoopbackServer(respond=lambda body, headers: chat_reply("fine")) as server:
        run(ask_twice(model(tmp_path, server)))
        keys = sent_keys(server)
    assert all(key.startswith("Bearer ") and " " not in key.removeprefix("Bearer ") for key in keys)
    # Ends that are told in whole seconds may be up to a second sooner: then the second request has another one too.
    assert keys[0] != keys[2] if life_s < 10 else len(set(keys)) == 1


def test_a_clock_that_is_ahead_does_not_make_every_request_ask(tmp_path: Path) -> None:
    script(tmp_path, f"print({jwt(exp=time.time() - 7200)!r})")
    with LoopbackServer(respond=lambda body, headers: chat_reply("fine")) as server:
        run(answer(model(tmp_path, server), ask("a"), ask("b"), ask("c")))
    assert starts(tmp_path) == 1


@pytest.mark.parametrize(
    ("kind", "printed", "header", "value"),
    [
        ("openai:m", "plain-key-1234", "authorization", "Bearer plain-key-1234"),
        ("openai:responses:m", "plain-key-1234", "authorization", "Bearer plain-key-1234"),
        ("mistral:m", "plain-key-1234", "authorization", "Bearer plain-key-1234"),
        ("openai:embedding:m", "plain-key-1234", "authorization", "Bearer plain-key-1234"),
        ("openai:moderation:m", "plain-key-1234", "authorization", "Bearer plain-key-1234"),
        ("anthropic:m", "plain-key-1234", "x-api-key", "plain-key-1234"),
        ("anthropic:m", "sk-ant-oat01-abc", "authorization", "Bearer sk-ant-oat01-abc"),
        ("azure:m", "plain-key-1234", "api-key", "plain-key-1234"),
        ("azure:m", jwt(aud="x"), "authorization", f"Bearer {jwt(aud='x')}"),
        ("google:m", "AIzaplain-key-1234", "x-goog-api-key", "AIzaplain-key-1234"),
        ("google:m", "ya29.a0-token", "authorization", "Bearer ya29.a0-token"),
        ("vertex:gemini-x", "AIzaplain-key-1234", "x-goog-api-key", "AIzaplain-key-1234"),
        ("vertex:gemini-x", "ya29.a0-token", "authorization", "Bearer ya29.a0-token"),
        ("huggingface:text-classification:m", "plain-key-1234", "authorization", "Bearer plain-key-1234"),
        ("litellm:m", "plain-key-1234", "authorization", "Bearer plain-key-1234"),
        ("databricks:m", "plain-key-1234", "authorization", "Bearer plain-key-1234"),
    ],
)
def test_every_wire_sends_it_where_its_vendor_wants_it(
    tmp_path: Path, kind: str, printed: str, header: str, value: str
) -> None:
    script(tmp_path, f"print({printed!r})")
    with LoopbackServer(respond=lambda body, headers: Reply(status=400, body={"error": "no"})) as server:
        one = model(tmp_path, server, kind)
        with pytest.raises(Exception, match="HTTP 400"):
            run(answer(one))
        [request] = server.requests
    keys = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
    assert {name: request.headers[name] for name in keys if name in request.headers} == {header: value}
    assert b"api_key_command" not in request.body
    assert printed not in f"{one.identity}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('no login: password hunter2-0123456789')", "exited with status 1: no login: password"),
        ("pass", "printed nothing"),
        ("print('two'); print('lines')", "printed 2 lines"),
        ("print('IAM token: abc')", "spaces or unusual characters"),
        ("print('caf\\u00e9-token')", "spaces or unusual characters"),
        ('print(\'{"tenant": "x"}\')', "printed JSON without a token"),
        ("print('', file=sys.stderr); sys.exit(3)", "exited with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "exited with status -9"),
        ("time.sleep(60)", "did not finish within 1 s"),
    ],
)
def test_a_program_that_gives_no_key_is_an_error_for_that_provider(
    tmp_path: Path, body: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "TIME_LIMIT_S", 1.0 if "60" in body else 10.0)
    script(tmp_path, body)
    with LoopbackServer() as server:
        one = provider(
            "openai:m",
            {"base_url": server.base_url, "api_key_command": ["./give_token.py"]},
            base_dir=tmp_path,
            env={"VAULT_PASSWORD": "hunter2-0123456789"},
        )
        with pytest.raises(ProviderAuthError) as caught:
            run(answer(one))
        assert server.requests == []
    assert caught.value.message.startswith("no key for openai:m: `give_token.py` ")
    assert said in caught.value.message
    assert "hunter2" not in caught.value.message
    assert "`api_key_command`" in caught.value.hint


def test_many_requests_share_one_failure(tmp_path: Path) -> None:
    script(tmp_path, "time.sleep(0.2); sys.exit(1)")

    async def ask_many(one: Any) -> list[Any]:
        try:
            return await asyncio.gather(
                *(one.complete(ask(f"{index}")) for index in range(20)), return_exceptions=True
            )
        finally:
            await one.aclose()

    with LoopbackServer() as server:
        found = run(ask_many(model(tmp_path, server)))
    assert {type(error) for error in found} == {ProviderAuthError}
    assert starts(tmp_path) == 1


def problems_of(folder: Path, config: Any, **env: str) -> list[str]:
    spec = ProviderSpec(id="openai:m", config=config)
    env = {"PATH": "/usr/bin:/bin", **env}
    found = check_provider(spec, env=env, base_dir=folder) or check_ready(spec, env=env, base_dir=folder)
    return [f"{problem.message} ({problem.hint})" for problem in found]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"api_key_command": "az account get-access-token"}, 'write ["az", "account", "get-access-token"]'),
        ({"api_key_command": "broken ' quote"}, "it runs without a shell"),
        ({"api_key_command": []}, "must be a list of strings"),
        ({"api_key_command": ["az", 3]}, "must be a list of strings"),
        ({"api_key_command": ["az", ""]}, "must be a list of strings"),
        ({"apiKeyCommand": {"a": 1}}, "`apiKeyCommand` must be a list of strings"),
        ({"api_key_command": ["sh"], "api_key_env": "X"}, "both supply a key: keep one"),
        ({"api_key_command": ["sh"], "apiKey": "sk-12345"}, "both supply a key: keep one"),
        (
            {"api_key_command": ["sh"], "headers": {"Authorization": "Bearer abcdefgh"}},
            "and `headers` both supply",
        ),
        (
            {"api_key_command": ["no-such-program-anywhere"]},
            "`no-such-program-anywhere` of `api_key_command` was not",
        ),
        (
            {"api_key_command": ["./none.sh"]},
            "`./none.sh` of `api_key_command` was not found (paths are relative to",
        ),
        ({"api_key_command": ["./plain.sh"]}, "is not executable (make it executable: chmod +x ./plain.sh)"),
    ],
)
def test_what_is_wrong_with_it_is_known_before_anything_is_sent(
    tmp_path: Path, config: Any, said: str
) -> None:
    (tmp_path / "plain.sh").write_text("echo x", encoding="utf-8")
    [found] = problems_of(tmp_path, config)
    assert said in found


def test_it_is_enough_without_a_variable(tmp_path: Path) -> None:
    script(tmp_path)
    assert problems_of(tmp_path, {"api_key_command": ["./give_token.py"]}) == []
    assert problems_of(tmp_path, {"api_key_command": ["sh", "-c", "echo x"]}) == []


def written(folder: Path, config: Any) -> Path:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def geval(folder: Path, *words: str, **env: str) -> Finished:
    return run_geval(*words, cwd=folder, env=clean_environment(**env))


def config_of(server: LoopbackServer, *flags: str) -> Any:
    settings = {"base_url": server.base_url, "api_key_command": ["./give_token.py", *flags]}
    return {
        "prompts": ["Say {{ i }}."],
        "providers": [
            {"id": "openai:m", "config": settings},
            {"id": "openai:j", "label": "J", "config": settings},
        ],
        "tests": [
            {"vars": {"i": f"{index}"}, "assert": [{"type": "llm-rubric", "value": "is good"}]}
            for index in range(4)
        ],
    }


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_a_run_with_tokens_that_expire_loses_nothing_and_shows_none(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    script(tmp_path)
    used: dict[str, int] = {}

    def respond(body: Any, headers: Mapping[str, str]) -> Any:
        """Each token serves six requests."""
        token = headers["authorization"].removeprefix("Bearer ")
        used[token] = used.get(token, 0) + 1
        if used[token] > 6 or not token.startswith("token-"):
            return error_reply(401, f"{token} has expired")
        if "is good" in json.dumps(body["messages"]):
            return chat_reply(json.dumps({"pass": True, "score": 1, "reason": f"I was asked by {token}"}))
        return chat_reply("fine")

    with LoopbackServer(respond=respond) as server:
        written(tmp_path, config_of(server, "--password", "hunter2-0123456789"))
        ended = geval(tmp_path, "run", "c.yaml", "--grader", "J", "-o", "out.json", "-o", "r.html", *workers)
        assert ended.code == 0, ended.stdout + ended.stderr
        assert len([name for name in used if name.startswith("token-")]) >= 2
    files = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name not in {"c.yaml", "asked", "give_token.py"}
    ]
    for path in files:
        assert b"hunter2" not in path.read_bytes(), path
    assert b"api_key_command" in (tmp_path / "out.json").read_bytes()
    assert len(json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]) == 8


def test_a_failing_program_stops_its_provider_with_one_start(tmp_path: Path) -> None:
    script(tmp_path, "sys.exit('run az login first')")
    with LoopbackServer() as server:
        written(tmp_path, config_of(server))
        ended = geval(tmp_path, "run", "c.yaml", "--grader", "J", "-j", "1")
        assert server.requests == []
    assert ended.code == 3
    assert "run az login first" in ended.stdout + ended.stderr
    assert starts(tmp_path) <= 2, "each of the two providers may start it once"


def test_problems_are_placed(tmp_path: Path) -> None:
    with LoopbackServer() as server:
        written(tmp_path, config_of(server))
        ended = geval(tmp_path, "validate", "c.yaml")
    assert "c.yaml:8:5" in ended.stdout + ended.stderr
    assert "`./give_token.py` of `api_key_command` was not found" in " ".join(
        (ended.stdout + ended.stderr).split()
    )


def test_a_strangers_config_and_a_server_start_no_program(tmp_path: Path) -> None:
    script(tmp_path)
    path = written(
        tmp_path,
        {
            "prompts": ["x"],
            "providers": [{"id": "openai:m", "config": {"apiKeyCommand": ["./give_token.py"]}}],
            "tests": [{"vars": {"i": "1"}}],
        },
    )
    ended = geval(tmp_path, "run", "c.yaml", "--untrusted")
    assert ended.code == 2
    assert "`apiKeyCommand` of `openai:m` runs a program, which --untrusted does not allow" in " ".join(
        ended.stderr.split()
    )
    assert "c.yaml:7:5" in ended.stderr
    assert runs_code(RunRequest(path, {}, served=tmp_path)) == ("apiKeyCommand", "openai:m")
    assert starts(tmp_path) == 0


KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


@pytest.mark.parametrize(
    ("wire", "operation"),
    [
        *(("openai", name) for name in ("upload", "create", "get", "content")),
        *(("anthropic", name) for name in ("create", "get", "content")),
        *(("azure", "file"), ("google", "put"), ("mistral", "create"), ("together", "upload")),
    ],
)
def test_batches_go_on_with_a_new_token(tmp_path: Path, wire: str, operation: str) -> None:
    program = script(tmp_path)
    with BatchServer() as server:
        server.faults[operation] = ["401"]
        suite = BatchSuite(tmp_path / "suite", server, wire=wire, config={"api_key_command": [str(program)]})
        ended = suite.run()
        keys = {headers[name] for headers in server.headers for name in KEY_HEADERS if name in headers}
    assert len(ended.results) == 30
    assert {result["status"] for result in ended.results} <= {"passed", "failed"}
    assert set(server.paid.values()) == {1}
    assert starts(tmp_path) == 2
    assert {key.removeprefix("Bearer ") for key in keys} == {"token-1-of-the-vault", "token-2-of-the-vault"}

"""Keys in every place of a config where one can stand, and everything that geval writes searched for them."""

import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, Reply

SECRET = "zq9"
ENVIRONMENT_KEY, DOTENV_KEY = f"{SECRET}-from-environment", f"{SECRET}-from-dotenv"
SEEN = "seen = [value for name, value in os.environ.items() if name.endswith(('_KEY', '_TOKEN'))]"
PROGRAM = f"import os, sys\n{SEEN}\nprint(sys.argv, seen, file=sys.stderr)\nsys.exit(3)\n"
FUNCTION = f"import os\n{SEEN}\ndef call_api(prompt, options, context):\n    raise ValueError(str((options, seen)))\n"


def key(place: str) -> str:
    return f"{SECRET}/{place}+0123456789"


def providers(url: str) -> list[Any]:
    host = urlsplit(url).netloc
    base_url = f"{url}/v1"
    return [
        {"id": "openai:a", "config": {"base_url": base_url, "apiKey": key("api-key")}},
        {"id": "anthropic:a", "config": {"base_url": url, "apiKey": key("anthropic")}},
        {
            "id": "openai:b",
            "config": {
                "base_url": base_url,
                "headers": {
                    "Authorization": f"Bearer {key('bearer')}",
                    "Cookie": f"sid={key('cookie')}; a=b",
                },
                "passthrough": {"session_token": key("passthrough")},
            },
        },
        {"id": "openai:c", "config": {"base_url": f"{base_url}?key={key('query')}&v=1"}},
        {
            "id": "openai:d",
            "config": {"base_url": f"http://me:{SECRET}-password@{host}/v1"},
        },
        {"id": "openai:e", "config": {"base_url": base_url, "api_key_env": "BLOCK_KEY"}},
        f"{url}/short?api_key={key('short')}",
        f"{url}/environment?api_key={{{{ env.FROM_OUTSIDE }}}}",
        f"{url}/fallback?token={{{{ env.UNSET_TOKEN | default('{key('fallback')}') }}}}",
        {
            "id": f"{url}/app?sig={key('id')}",
            "config": {
                "headers": {"X-Auth": key("x-auth"), "x-api-key": "{{ env.DOTENV }}"},
                "body": {"prompt": "{{ prompt }}", "auth": {"user": "me", "pass": key("body")}},
            },
        },
        {
            "id": f"{url}/text",
            "config": {"body": f'{{"q": "{{{{ prompt }}}}", "password": "{key("text-body")}"}}'},
        },
        {
            "id": f"{url}/path",
            "config": {"headers": {"X-Auth-Token": key("path")}, "response_path": "no.where"},
        },
        f"exec:{sys.executable} program.py --token {key('argument')} -H 'X-Api-Key: {key('header')}'",
        {"id": "python:function.py", "config": {"client_secret": key("python")}},
    ]


def asked_once(provider: Any) -> dict[str, Any]:
    spec = provider if isinstance(provider, dict) else {"id": provider}
    return {**spec, "config": {**spec.get("config", {}), "max_retries": 0}}


def config(url: str) -> dict[str, Any]:
    judge = {
        "id": "openai:judge",
        "config": {"base_url": f"{url}/v1", "headers": {"api-key": key("judge")}},
    }
    checks = [
        {"type": "contains", "value": "fine"},
        {"type": "g-eval", "criteria": "It is good.", "provider": asked_once(judge)},
    ]
    return {
        "env": {"BLOCK_KEY": key("block"), "HARMLESS_NAME": key("harmless-name")},
        "prompts": ["say {{ x }}"],
        "providers": [asked_once(provider) for provider in providers(url)],
        "tests": [{"vars": {"x": word, "api_key": "kept-as-it-is"}, "assert": checks} for word in ("a", "b")],
    }


def run_everything(folder: Path, status: int) -> tuple[int, str]:
    """The number of requests, and all that several commands wrote."""

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        request = next(item for item in reversed(server.requests) if item.headers is headers)
        heard = {"path": request.path, "headers": dict(headers), "body": body}
        if status != 200:
            text = f"not for you: {heard}"
            return Reply(status, body={"error": {"message": text, "heard": heard}})
        answer = {"message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
        return Reply(body={"choices": [answer], "output": "fine", "heard": heard})

    with LoopbackServer(respond=respond) as server:
        (folder / "config.yaml").write_text(yaml.safe_dump(config(server.url), sort_keys=False))
        (folder / ".env").write_text(f"DOTENV={DOTENV_KEY}\nDOTENV_API_KEY={DOTENV_KEY}\n")
        (folder / "program.py").write_text(PROGRAM)
        (folder / "function.py").write_text(FUNCTION)
        planted = {path.name for path in folder.iterdir()}
        env = clean_environment(FROM_OUTSIDE=ENVIRONMENT_KEY, FROM_OUTSIDE_TOKEN=ENVIRONMENT_KEY)
        outputs = ("-o", "results.json", "-o", "results.jsonl")
        commands = (
            ("run", "config.yaml", "--verbose", *outputs),
            ("show", "latest", "--verbose"),
            ("list",),
            ("validate", "config.yaml"),
        )
        finished = [run_geval(*command, cwd=folder, env=env) for command in commands]
    assert [item.code for item in finished] == [3, 0, 0, 0], finished[0].stderr
    written = [item.read_bytes() for item in folder.rglob("*") if item.is_file() and item.name not in planted]
    assert len(written) >= 4
    said = [text for item in finished for text in (item.stdout, item.stderr)]
    return len(server.requests), "\n".join([*said, *(part.decode("latin-1") for part in written)])


@pytest.mark.parametrize("status", [401, 500, 200])
def test_no_key_leaves_the_config(tmp_path: Path, status: int) -> None:
    count, written = run_everything(tmp_path, status)
    assert count >= 12
    assert "kept-as-it-is" in written
    assert "/app?sig=***" in written
    around = [written[max(0, at - 60) : at + 40] for at in positions(written, SECRET)]
    assert around == []
    assert base64.b64encode(f"me:{SECRET}-password".encode()).decode() not in written


def positions(text: str, word: str) -> list[int]:
    return [at for at in range(len(text)) if text.startswith(word, at)]


@pytest.mark.parametrize(
    "broken",
    [
        {"env": {"ANY_NAME": 1234567}},
        {"env": {"ANY_NAME": ["1234567"]}},
        {"env": "1234567"},
        {"providers": ["opnai://me:1234567@host/?api_key=1234567"]},
        {"providers": [{"id": "openai:m", "config": {"headers": {"Cookie": ["1234567"]}}}]},
        {"providers": [{"id": "openai:m", "config": {"apiKey": 1234567}}]},
        {"providers": ["exec:no-such-program --password 1234567"]},
        {"providers": [{"id": "openai:m", "config": {"api_key_env": "sk-abc1234567"}}]},
        {"providers": [{"id": "openai:m", "config": {"api_key_env": "1234567_abcd1234567efghi"}}]},
        {
            "dialect": "promptfoo",
            "providers": [{"id": "openai:m", "config": {"apiKeyEnvar": "abcd-1234567-efgh"}}],
        },
        {"providers": [{"id": "bedrock:m", "config": {"api_key_env": "abcd-1234567-efgh"}}]},
        {"providers": [{"id": "openai:m", "config": {"api_key_command": "tool --password 1234567 get"}}]},
    ],
)
def test_no_key_stands_in_what_is_said_of_a_wrong_config(tmp_path: Path, broken: dict[str, Any]) -> None:
    whole = {"prompts": ["x"], "providers": ["echo"], "tests": [{"vars": {"a": "b"}}], **broken}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(whole, default_flow_style=False))
    finished = run_geval("run", "config.yaml", cwd=tmp_path)
    assert finished.code == 2, finished.stderr
    assert "1234567" not in finished.stdout + finished.stderr

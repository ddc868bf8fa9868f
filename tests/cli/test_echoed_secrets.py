"""Servers and programs that say back what they were sent or see: no key of it is stored or reported."""

import base64
import gzip
import html
import json
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.providers.redaction import Secrets
from geval_cli.records import Choice
from geval_cli.report import FORMATS
from geval_cli.source.secrets import environment_secrets

KEY = "zq9x/w2v+k7<m>&t4-0123456789"
# What looks like the escape of a letter may be part of the key.
KEYS = {"key": KEY, "key with %": "zq9x/w2v+k7%6dQt4-0123456789"}

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "JSON": lambda text: json.dumps({"a": text}),
    "JSON in JSON": lambda text: json.dumps(json.dumps({"a": text})),
    "slashes escaped": lambda text: json.dumps({"a": text}).replace("/", "\\/"),
    "as Go writes it": lambda text: text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
    "URL": lambda text: quote(text, safe=""),
    "URL in small letters": lambda text: quote(text, safe="").replace("%2F", "%2f").replace("%2B", "%2b")
    .replace("%3C", "%3c").replace("%3E", "%3e"),
    "HTML": html.escape,
    "hexadecimal": lambda text: text.encode().hex(),
    **{
        f"Base64 at {shift}": lambda text, shift=shift: base64.b64encode(f"{'x' * shift}{text}zz".encode()).decode()
        for shift in range(3)
    },
    "every character in a URL": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "some characters in a URL": lambda text: text.replace("+", "%2B"),
    "a URL in a URL": lambda text: quote(quote(text, safe=""), safe=""),
    "HTML by number": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "HTML by number, hexadecimal": lambda text: "".join(f"&#X{ord(one):04X};" for one in text),
    "HTML in HTML": lambda text: html.escape(html.escape(text)),
    "every character in JSON": lambda text: "".join(f"\\u{ord(one):04X}" for one in text),
    "every character in JSON in JSON": lambda text: "".join(f"\\\\u{ord(one):04x}" for one in text),
    "bytes in Python": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "code points in JavaScript": lambda text: "".join(f"\\u{{{ord(one):x}}}" for one in text),
    "Markdown": lambda text: "".join(one if one.isalnum() else f"\\{one}" for one in text),
    "hexadecimal in capitals": lambda text: text.encode().hex().upper(),
    "hexadecimal with spaces": lambda text: text.encode().hex(" "),
    "hexadecimal with colons": lambda text: text.encode().hex(":"),
    "hexadecimal with dashes": lambda text: text.encode().hex("-"),
    "hexadecimal, byte by byte": lambda text: ", ".join(f"0x{byte:02x}" for byte in text.encode()),
    "Base64 in lines": lambda text: base64.encodebytes(b"x" * 50 + text.encode()).decode(),
    "gzip": lambda text: base64.b64encode(gzip.compress(f"A_KEY={text}\n".encode(), mtime=0)).decode(),
    "zlib": lambda text: base64.urlsafe_b64encode(zlib.compress(text.encode() * 3)).decode(),
    "Base64 for URLs": lambda text: base64.urlsafe_b64encode(f"Bearer {text}".encode()).decode(),
}  # fmt: skip


def readable(text: str, key: str = KEY) -> bool:
    """Whether any spelling of the key can be read in `text`, but for the ends that belong to two groups of Base64."""
    return any(write(key)[6:-6] in text for name, write in SPELLINGS.items() if not name.startswith("JSON"))


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_key_is_found_in_every_spelling(name: str, key: str) -> None:
    said = SPELLINGS[name](key)
    secrets = Secrets([key])
    assert not readable(secrets.hide(said), key)
    assert secrets.hide_echo(Choice(f"It was {said}.")).text == secrets.hide(f"It was {said}.")


def test_words_of_an_answer_are_not_taken_for_short_passwords() -> None:
    assert Secrets(["postgres"]).hide_echo(Choice("I use postgres.")).text == "I use postgres."


@pytest.mark.parametrize(
    "word", ["test", "postgres", "EMPTY", "Administrator", "not-needed", "client_credentials", "1234"]
)
def test_secrets_that_are_ordinary_words_are_masked_in_errors_only(word: str) -> None:
    text = f"say {word} and {word}s"
    secrets = Secrets([word])
    assert (
        secrets.hide(text)
        == secrets.hide_in({"a": text})["a"]
        == secrets.hide_echo(Choice(text)).text
        == text
    )
    assert secrets.redact(text) == "say *** and ***s"


@pytest.mark.parametrize(
    "value", ["hunter22", "qwertyuiopasdfgh", "abcd efgh ijkl mnop", "correct horse battery staple"]
)
def test_other_secrets_are_masked_in_prose_too(value: str) -> None:
    assert Secrets([value]).hide(f"say {value}!") == "say ***!"


@pytest.mark.parametrize("name", SPELLINGS)
def test_an_argument_of_a_call_is_found_in_every_spelling(name: str) -> None:
    said = f"\n{SPELLINGS[name](KEY)}\nand \u00ab{SPELLINGS[name](KEY)}"
    call = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"key": said})}}
    (found,) = (
        Secrets([KEY, KEY[2:], quote(KEY, safe="")]).hide_echo(Choice("", tool_calls=(call,))).tool_calls
    )
    assert not readable(json.dumps(found))


def test_keys_that_overlap_are_hidden_whole() -> None:
    text = "".join(f"%{ord(one):02X}" for one in f"a{KEY}b{KEY}c")
    assert Secrets([KEY, KEY[:20], KEY[5:]]).hide(text) == "%61***%62***%63"


def test_calls_of_tools_are_masked_and_stay_calls() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"key": KEY})}}
    (found,) = Secrets([KEY]).hide_echo(Choice("", tool_calls=(call,))).tool_calls
    assert json.loads(found["function"]["arguments"]) == {"key": "***"}


@pytest.mark.parametrize(
    ("name", "value", "secrets"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=zq9-abcdefgh,tenant=acme-1234567", {"zq9-abcdefgh", "acme-1234567"}),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "Authorization=Basic%20enE5LXg6eQ12", {"enE5LXg6eQ12"}),
        ("HTTPS_PROXY", "http://me:zq9-password@proxy:8080", {"zq9-password"}),
        ("http_proxy", "me:zq9-password@proxy:8080", {"zq9-password"}),
        ("ALL_PROXY", "socks5://me:zq9-password@proxy:8080", {"zq9-password"}),
        ("OPENAI_BASE_URL", "https://me:zq9-password@host/v1", {"zq9-password"}),
        ("OLLAMA_BASE_URL", "https://host/v1?api_key=zq9-parameter", {"zq9-parameter"}),
        ("DATABASE_URL", "postgres://me:zq9-password@db/x", {"zq9-password"}),
        ("PATH", "/usr/bin:/bin", set()),
        ("DOCS_URL", "https://example.org/a", set()),
    ],
)  # fmt: skip
def test_variables_that_hold_secrets_without_saying_so(name: str, value: str, secrets: set[str]) -> None:
    found = set(environment_secrets({name: value}))
    assert secrets <= found
    assert bool(found) is bool(secrets)
    assert not found & {"api-key", "x-api-key", "tenant", "Authorization"}


SEEN = {
    "OTEL_EXPORTER_OTLP_HEADERS": "x-team=zq9x-otel-0123456789",
    "HTTPS_PROXY": "http://me:zq9x-proxy-0123456789@127.0.0.1:9",
    "OPENAI_BASE_URL": "http://me:zq9x-base-0123456789@127.0.0.1:9/v1",
}


def files_of(folder: Path, config: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, bytes]:
    (folder / "c.json").write_text(json.dumps(config))
    outputs = [word for ending in FORMATS for word in ("-o", f"r{ending}")]
    done = run_geval("run", "c.json", "--log-file", "r.log", *outputs, cwd=folder, env=env)
    assert done.code in (0, 1, 3), done.stderr
    found = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    del found["c.json"]
    return {**found, "stdout": done.stdout.encode(), "stderr": done.stderr.encode()}


@pytest.mark.parametrize("is_good", [True, False])
def test_a_server_that_says_back_its_request(tmp_path: Path, is_good: bool) -> None:
    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        sent = headers.get("Authorization", headers.get("authorization", ""))
        echo = f"{sent} {base64.b64encode(sent.encode()).decode()} {json.dumps(sent)} {quote(sent)}"
        return chat_reply(echo) if is_good else Reply(400, body={"error": {"message": echo}})

    with LoopbackServer(respond=respond) as server:
        config = {
            "prompts": ["Hello"],
            "providers": [{"id": "openai:m", "config": {"base_url": server.base_url, "max_retries": 0}}],
            "tests": [{"assert": [{"type": "contains", "value": "xyz", "metric": "m"}]}],
        }
        found = files_of(tmp_path, config, clean_environment(OPENAI_API_KEY=KEY))
    assert [name for name, content in found.items() if readable(content.decode("utf-8", "replace"))] == []
    assert b"***" in found["r.json"]


@pytest.mark.parametrize("kind", ["exec", "python"])
def test_a_program_that_prints_its_environment(tmp_path: Path, kind: str) -> None:
    (tmp_path / "show.py").write_text(
        "import os\ndef call_api(prompt, options, context):\n    return {'output': str(dict(os.environ))}\n"
        "if __name__ == '__main__':\n    print(dict(os.environ))\n"
    )
    config = {
        "prompts": ["Hello"],
        "providers": [f"exec:{sys.executable} show.py" if kind == "exec" else "python:show.py"],
        "tests": [{"assert": [{"type": "contains", "value": "xyz", "metric": "m"}]}],
    }
    found = files_of(tmp_path, config, clean_environment(**SEEN))
    del found["show.py"]
    assert b"OTEL_EXPORTER_OTLP_HEADERS" in found["r.json"]
    assert [name for name, content in found.items() if b"zq9x-" in content] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"apiKey": "{{ env.SOME_THING }}"},
        {"api_key_env": "SOME_THING"},
        {"headers": {"X-Corp": "{{ env.SOME_THING }}"}},
        {"base_url": "http://{{ env.SOME_THING }}@127.0.0.1:9/v1"},
    ],
)
@pytest.mark.parametrize("dialect", ["geval", "promptfoo"])
def test_a_program_that_prints_the_key_of_another_provider(
    tmp_path: Path, settings: dict[str, Any], dialect: str
) -> None:
    (tmp_path / "show.py").write_text("import os\nprint(dict(os.environ))\n")
    other = {"id": "openai:m", "config": {"base_url": "http://127.0.0.1:9/v1", "max_retries": 0, **settings}}
    config = {
        "dialect": dialect,
        "prompts": ["Hello"],
        "providers": [f"exec:{sys.executable} show.py", other],
        "tests": [{"assert": [{"type": "contains", "value": "xyz"}]}],
    }
    found = files_of(tmp_path, config, clean_environment(SOME_THING="zq9x-thing-0123456789"))
    assert b"SOME_THING" in found["r.json"]
    assert [name for name, content in found.items() if b"zq9x-" in content] == []


@pytest.mark.parametrize("name", ["code", "key", "sig", "Code"])
@pytest.mark.parametrize("key", ["query_params", "queryParams"])
def test_a_parameter_that_holds_a_key_is_hidden_wherever_the_config_has_it(
    tmp_path: Path, name: str, key: str
) -> None:
    with LoopbackServer(
        respond=lambda body, headers: Reply(body={"output": server.requests[-1].path})
    ) as server:
        http = {
            "id": f"{server.url}/x?{name}=zq9x-id-0123456789",
            "config": {key: {name: "zq9x-map-0123456789"}},
        }
        config = {"dialect": "geval" if "_" in key else "promptfoo", "prompts": ["Hello"], "providers": [http],
                  "tests": [{"assert": [{"type": "contains", "value": "xyz"}]}]}  # fmt: skip
        found = files_of(tmp_path, config, clean_environment())
    assert "zq9x-map" in server.requests[-1].path
    assert [name for name, content in found.items() if b"zq9x-" in content] == []


def test_a_program_is_not_told_the_token_of_a_webhook(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys\nprint(sys.argv[1:])\n")
    config = {
        "description": "in promptfoo's dialect",
        "prompts": ["Hello"],
        "providers": [f"exec:{sys.executable} show.py"],
        "tests": [
            {
                "assert": [
                    {"type": "webhook", "value": "http://me:zq9x-user-0123@127.0.0.1:9/x?token=zq9x-token-012345"},
                ]
            }
        ],
    }  # fmt: skip
    (tmp_path / "promptfooconfig.json").write_text(json.dumps(config))
    run_geval(
        "run", "promptfooconfig.json", "--dialect", "promptfoo", "--no-cache", "-o", "r.json", cwd=tmp_path
    )
    written = (tmp_path / "r.json").read_text()
    assert "Hello" in written
    assert "zq9x-" not in written


ORDINARY = {
    "POSTGRES_PASSWORD": "postgres",
    "ADMIN_PASSWORD": "administrator",
    "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=https;AccountKey=zq9x+/0123456789==;"
    "EndpointSuffix=core.windows.net",
    "GOOGLE_CREDENTIALS": '{"type": "service_account", "private_key": "zq9x-0123456789"}',
}
WORDS = [
    "postgres",
    "administrator",
    "core.windows.net",
    "service_account",
    "final_answer",
    "Acme Support Assistant",
]


def test_words_that_are_in_secrets_too_change_no_mark(tmp_path: Path) -> None:
    """What is judged, now and when the stored run is judged again, is what was said."""
    said = " ".join(WORDS)
    (tmp_path / "ours.py").write_text(
        "def call_api(prompt, options, context):\n"
        f"    return {{'output': {said!r}, 'metadata': {{'documents': [{said!r}]}}}}\n"
    )
    code = f"context['metadata']['documents'] == [{said!r}]"
    checks: list[dict[str, Any]] = [{"type": "contains", "value": word} for word in WORDS]
    config = {
        "prompts": ["Hello {{ x }}"],
        "providers": [
            {
                "id": "python:ours.py",
                "config": {
                    "api_key": "test",
                    "output_key": "final_answer",
                    "headers": {"X-App": "Acme Support Assistant"},
                },
            }
        ],
        "tests": [
            {
                "vars": {"x": said},
                "input": said,
                "expected_output": said,
                "assert": [*checks, {"type": "equals", "value": said}, {"type": "python", "value": code}],
            }
        ],
    }
    env = clean_environment(**ORDINARY)
    found = files_of(tmp_path, config, env)
    result = json.loads(found["r.json"])["results"][0]
    assert [item["status"] for item in result["assertions"]] == ["passed"] * 8
    assert b"***" not in found["r.jsonl"]
    assert not [name for name, content in found.items() if b"zq9x" in content]
    done = run_geval("judge", "latest", "c.json", "-o", "again.json", cwd=tmp_path, env=env)
    assert done.code == 0, done.stderr

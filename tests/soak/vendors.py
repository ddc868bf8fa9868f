"""Programs of others that speak with geval: a LiteLLM proxy before a model, and a generator of clients.

Each is installed by pip into an environment of its own, as what they need may not go together with what geval needs.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support.geval_command import clean_environment, run_geval
from support.loopback import Reply, chat_reply
from support.model_server import ModelServer, kind_of, weighed
from support.web_server import running_server

KEY = "sk-proxy-0123456789"
START_S = 180.0
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Rome"}'}}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PLAIN_LINES = "content_type_overrides: { application/jsonl: text/plain }\n"
"""The generator knows no lines of JSON; they are a file to download."""


def proxied() -> bool:
    """Run text, tool calls, a judge with a schema and token probabilities through a LiteLLM proxy; print each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = _environment(folder / "venv", "litellm[proxy]")
        model = _Model(answer=_answer, form=lambda body: weighed({"3": 0.75, "2": 0.25}, body))
        with model, _proxy(tools, folder, model.base_url) as base_url:
            return _asked_through(folder, base_url, model)


class _Model(ModelServer):
    """The model behind the proxy, which also asks what there is."""

    async def _reply(self, body: Any, headers: Mapping[str, str]) -> Reply:
        if not isinstance(body, dict) or "messages" not in body:
            return Reply(status=404, body={"error": {"message": "not here"}})
        return await super()._reply(body, headers)

    def bodies(self, kind: str) -> list[Any]:
        """The bodies of all judge prompts of a kind."""
        found = [request.json for request in self.requests]
        return [
            body for body in found if isinstance(body, dict) and "messages" in body and kind_of(body) == kind
        ]


def _answer(body: Any) -> Reply:
    """Call a tool where there are some, else say something."""
    if not body.get("tools"):
        return chat_reply("Rome is sunny.")
    reply = chat_reply(None, finish_reason="tool_calls")
    reply.body["choices"][0]["message"]["tool_calls"] = [CALL]
    return reply


def _asked_through(folder: Path, base_url: str, model: _Model) -> bool:
    text = [
        {"type": "equals", "metric": "text", "value": "Rome is sunny."},
        {"type": "g-eval", "metric": "schema", "criteria": "It is right.", "scoring": "single"},
        {"type": "g-eval", "metric": "logprobs", "dimension": "fluency", "scoring": "logprobs"},
    ]
    tools = [{"type": "is-valid-openai-tools-call", "metric": "tools"}]
    found: dict[str, Any] = {}
    for name, config, assertions in (("text", {}, text), ("tools", {"tools": [TOOL]}, tools)):
        suite = {
            "prompts": ["How is {{ city }}?"],
            "providers": [{"id": "litellm:scripted", "config": config}],
            "tests": [{"vars": {"city": "Rome"}, "assert": assertions}],
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
        words = ("run", f"{name}.yaml", "--grader", "litellm:scripted", "-o", f"{name}.json")
        env = clean_environment(LITELLM_BASE_URL=base_url, LITELLM_API_KEY=KEY)
        ended = run_geval(*words, cwd=folder, env=env, timeout_s=300)
        if not (folder / f"{name}.json").is_file():
            print(ended.stdout + ended.stderr)
            return False
        results = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["results"]
        found |= {item["metric"]: item for result in results for item in result["assertions"]}
    for name, item in found.items():
        print(
            f"{name}: {item['status']}, score {item['score']}, {item.get('error') or item.get('reason') or ''}"
        )
    shapes = [body.get("response_format", {}).get("type") for body in model.bodies("evaluate")]
    has_logprobs = any(body.get("logprobs") for body in model.bodies("form"))
    weighted = found["logprobs"]["score"]
    print(
        f"the model was asked with response_format {shapes}, logprobs {has_logprobs}, weighted score {weighted}"
    )
    is_weighted = weighted is not None and abs(weighted - 0.875) < 0.01 and has_logprobs
    return is_weighted and shapes == ["json_schema"] and all(i["status"] == "passed" for i in found.values())


@contextmanager
def _proxy(tools: Path, folder: Path, model_url: str) -> Iterator[str]:
    """A LiteLLM proxy before the server at `model_url`; its own address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    behind = {"model": "openai/scripted", "api_base": model_url, "api_key": "sk-none"}
    settings = {
        "model_list": [{"model_name": "scripted", "litellm_params": behind}],
        "general_settings": {"master_key": KEY},
    }
    (folder / "proxy.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [
        tools / "litellm",
        "--config",
        folder / "proxy.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (folder / "proxy.log").open("wb") as log:
        env = {**clean_environment(), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=folder)
        try:
            _await(f"http://127.0.0.1:{port}/health/liveliness", process, folder / "proxy.log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


def _await(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"the proxy did not start:\n{log.read_text(encoding='utf-8')[-3000:]}")


def generated_client() -> bool:
    """Make a client from the served description of the API, and use it; a warning of the generator is a failure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = _environment(folder / "venv", "openapi-python-client>=0.29,<0.30")
        (folder / "generator.yaml").write_text(PLAIN_LINES, encoding="utf-8")
        (folder / "use.py").write_text(
            "import sys\n"
            "from made_client import Client\n"
            "from made_client.api.runs import list_runs\n"
            "with Client(base_url=sys.argv[1], raise_on_unexpected_status=True) as client:\n"
            "    print(list_runs.sync(client=client))\n",
            encoding="utf-8",
        )
        with running_server(folder, environ={}) as server:
            options = ["--output-path", folder / "made_client", "--meta", "none", "--fail-on-warning"]
            command = [tools / "openapi-python-client", "generate", "--url", f"{server.url}/openapi.json"]
            path = {"PATH": f"{tools}:/usr/bin:/bin"}  # it formats its output by ruff
            made = subprocess.run(
                [*command, *options, "--config", folder / "generator.yaml"], env=path, check=False
            )
            used = subprocess.run([tools / "python", "use.py", server.url], cwd=folder, check=False)
    return made.returncode == 0 and used.returncode == 0


def _environment(folder: Path, *packages: str) -> Path:
    """Install packages into a new environment, and return the folder of its commands."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
    return folder / "bin"

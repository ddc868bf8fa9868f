"""promptfoo itself, if it is installed, next to geval: the requests that both send for one config.

`GEVAL_PROMPTFOO` is the command that starts it, for example `node /path/to/promptfoo/dist/src/entrypoint.js`.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.loopback import LoopbackServer, RecordedRequest, Reply, chat_reply
from support.promptfoo_rows import answer_of

COMMAND = "GEVAL_PROMPTFOO"
_TIMEOUT_S = 120
_QUIET = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_SHARING": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    "PROMPTFOO_CACHE_ENABLED": "false",
    "NO_COLOR": "1",
}
_KEYS = (
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AZURE_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY", "OPENROUTER_API_KEY",
    "DEEPSEEK_API_KEY", "XAI_API_KEY", "TOGETHER_API_KEY", "FIREWORKS_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY",
    "PERPLEXITY_API_KEY", "COHERE_API_KEY", "CEREBRAS_API_KEY", "GITHUB_TOKEN", "HF_TOKEN", "NVIDIA_API_KEY",
    "HELICONE_API_KEY", "DATABRICKS_TOKEN", "CLOUDFLARE_API_KEY", "LITELLM_API_KEY", "VERTEX_API_KEY",
)  # fmt: skip


def installed() -> list[str]:
    """Return the command that starts promptfoo; empty if it is not installed."""
    return shlex.split(os.environ.get(COMMAND, ""))


def recording_server() -> LoopbackServer:
    """Return a server that supports every API that configs call, and records the requests."""

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        if isinstance(body, dict) and "contents" in body:
            content = {"role": "model", "parts": [{"text": "fine"}]}
            return Reply(body={"candidates": [{"content": content, "finishReason": "STOP"}]})
        try:
            # Answered by the model behind the recorded results, if it exists: its answers depend on the requests.
            return answer_of(body, "generous")
        except (AttributeError, KeyError, TypeError, OSError):
            return _plain_answer(body if isinstance(body, dict) else {})

    return LoopbackServer(respond=respond)


def _plain_answer(body: Mapping[str, Any]) -> Reply:
    if "input" in body:
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "fine"}]}
        return Reply(body={"object": "response", "status": "completed", "output": [said]})
    if str(body.get("model")).startswith("claude"):
        return Reply(
            body={"content": [{"type": "text", "text": "fine"}], "stop_reason": "end_turn", "usage": {}}
        )
    chat = chat_reply("fine").body
    return Reply(body={**chat, "message": {"content": "fine"}, "response": "fine"})


def _environment(server: LoopbackServer, env: Mapping[str, str]) -> dict[str, str]:
    bare = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    addresses = {
        "OPENAI_BASE_URL": server.base_url,
        "ANTHROPIC_BASE_URL": server.url,
        "OLLAMA_BASE_URL": server.url,
        "GOOGLE_API_BASE_URL": server.url,
    }
    return {**bare, **addresses, **dict.fromkeys(_KEYS, "sk-test"), **env}


def sent_by_promptfoo(
    config: Path, server: LoopbackServer, env: Mapping[str, str]
) -> tuple[list[RecordedRequest], list[Any], str]:
    """Return the requests that promptfoo sends for a config, its rows, and its output."""
    before = len(server.requests)
    with tempfile.TemporaryDirectory() as home:
        output = Path(home) / "out.json"
        command = [
            *installed(),
            "eval",
            "-c",
            str(config),
            "--no-cache",
            "--no-progress-bar",
            "-o",
            str(output),
        ]
        environ = {**_environment(server, env), **_QUIET, "HOME": home, "PROMPTFOO_CONFIG_DIR": home}
        finished = subprocess.run(
            command,
            cwd=config.parent,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        rows = json.loads(output.read_text("utf-8"))["results"]["results"] if output.exists() else []
    return server.requests[before:], rows, finished.stdout + finished.stderr


def sent_by_geval(
    config: Path, server: LoopbackServer, env: Mapping[str, str]
) -> tuple[list[RecordedRequest], list[Any], str]:
    """Return the requests that geval sends for a config, its rows, and its output."""
    before = len(server.requests)
    with tempfile.TemporaryDirectory() as home:
        output = Path(home) / "out.json"
        command = [
            sys.executable,
            "-m",
            "geval_cli",
            "run",
            str(config),
            "--dialect",
            "promptfoo",
            "--no-cache",
        ]
        command += ["--no-progress", "-o", str(output), "--home", f"{home}/state"]
        environ = {**_environment(server, env), "HOME": home, "NO_COLOR": "1"}
        finished = subprocess.run(
            command,
            cwd=config.parent,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        rows = json.loads(output.read_text("utf-8"))["results"] if output.exists() else []
    return server.requests[before:], rows, finished.stdout + finished.stderr

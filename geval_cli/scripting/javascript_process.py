"""The process in which JavaScript runs, from the outside: started at the first call, killed when a call must end."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from geval_cli.scripting.javascript_worker import Limits
from geval_cli.scripting.script_errors import ScriptCrashError, ScriptTimeoutError

_WORKER = Path(__file__).with_name("javascript_worker.py")
_OUT_OF_TIME = -getattr(signal, "SIGPROF", 0)


class JavaScriptProcess:
    """Runs one call at a time. `ask` blocks its thread; `kill` may come from any thread and ends that.

    `is_ended` says that it was killed and is of no more use.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self.is_ended = False

    def ask(self, job: str, limits: Limits) -> dict[str, str | None]:
        """Return what the worker answers; see `javascript_worker.evaluate`.

        Raises:
            ScriptTimeoutError: the code used up its processor time.
            ScriptCrashError: the process ended otherwise, or is not to be used any more.
        """
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        request = {"job": job, "limits": limits}
        line = b""
        with suppress(OSError, ValueError):
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        if line.endswith(b"\n"):
            answer: dict[str, str | None] = json.loads(line)
            return answer
        self._child = None
        status = _end(child)
        if status == _OUT_OF_TIME:
            raise ScriptTimeoutError(f"it took more than {limits.time_s:g} s of processor time")
        raise ScriptCrashError(f"the JavaScript engine ended with status {status} instead of answering")

    def kill(self) -> None:
        """End the process for good; whoever waits for it is told. Safe to call twice."""
        self.is_ended = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the process and forget it; for the thread that asks."""
        child, self._child = self._child, None
        if child is not None:
            _end(child)

    def _start(self) -> "subprocess.Popen[bytes]":
        spec = find_spec("_quickjs")
        assert spec is not None
        assert spec.origin is not None
        # Without the environment and in a session of its own: code sees no keys, and Ctrl-C in the terminal is geval's.
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WORKER), str(Path(spec.origin).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        if self.is_ended:
            self._child.kill()
        return self._child


def _end(child: "subprocess.Popen[bytes]") -> int:
    child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):  # what was never read by the other side
                stream.close()
    return child.wait()

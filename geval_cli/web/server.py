"""A running server: its socket, and how it ends."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import uvicorn

from geval_cli.errors import UsageError
from geval_cli.web.app import create_app, judge_environment
from geval_cli.web.connections import bounded_protocol
from geval_cli.web.settings import ServerSettings

_BACKLOG = 1024
_STOPPING = 2


def bind(settings: ServerSettings) -> tuple[socket.socket, ServerSettings]:
    """Return a listening socket, and the settings with the port that it has (a free one for port 0).

    Raises:
        UsageError: the address cannot be had.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Without the protocol, asyncio leaves small packets waiting: 40 ms for each answer on an open connection.
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except OSError:
            listening.close()
            raise
        listening.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "choose another one with --port, or another address with --host"
        raise UsageError(f"cannot listen on {host} port {port}: {reason}", hint=hint) from error
    return listening, replace(settings, port=listening.getsockname()[1])


class Server(uvicorn.Server):
    """Ends in steps: the first signal lets everything under way finish, the second stops it, the third ends at once."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        say: Callable[[str], None] = lambda text: None,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the settings, open nothing. `say` gets messages, `on_started` is called once requests are answered."""
        self.app = create_app(settings)
        self.judge_env = judge_environment(settings)
        self._say = say
        self._on_started = on_started
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            ws="none",
            http=bounded_protocol(settings),
            timeout_keep_alive=30,
        )
        super().__init__(config)
        self._steps = 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The event loop may be asleep, and nothing of it may be touched in the middle of something else.
        self._loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Finish what is under way at the first call, stop it at the second, end at once at the third."""
        self._steps += 1
        if self._steps == 1:
            self._say("finishing what is under way; once more to stop it")
            self.should_exit = True
            self._in_app("live_runs", "close")
        elif self._steps == _STOPPING:
            self._say("stopping what is under way; once more to end at once")
            self._in_app("evaluations", "stop_all")
            self._in_app("live_runs", "stop_all")
        else:
            self.force_exit = True

    def _in_app(self, part: str, action: str) -> None:
        found = getattr(self.app.state, part, None)  # not there before the application has started
        if found is not None:
            getattr(found, action)()

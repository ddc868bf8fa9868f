"""The running server: its socket, its connections and their time limits, and its shutdown."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from geval_cli.errors import UsageError
from geval_cli.extras.web.app import create_app, judge_environment
from geval_cli.extras.web.settings import ServerSettings

_BODY_GRACE_S = 5.0  # time for the application to report a late body itself
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with time limits for the head and body of each request, and a limit on open connections."""

    settings: ClassVar[ServerSettings]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._has_begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._refuse(_TOO_MANY)
        else:
            self._allow(self.settings.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_begun = True
        if self._deadline is None:  # the start of the next request
            self._allow(self.settings.head_timeout_s)
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._has_begun = True
        if self._deadline is None:  # it arrived together with the end of the previous request
            self._allow(self.settings.head_timeout_s)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._allow(self.settings.body_timeout_s + _BODY_GRACE_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_clock()
        self._has_begun = False
        super().on_message_complete()

    def _allow(self, seconds: float) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(seconds, self._expire, seconds)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self, seconds: float) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.flow.read_paused:  # the late request follows one that is being answered
            self._allow(seconds)
        else:
            self._deadline = None
            self._refuse(_TOO_SLOW if self._has_begun else b"")

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


def bounded_protocol(settings: ServerSettings) -> type[BoundedProtocol]:
    """Return the protocol class for a server with these settings; uvicorn creates one instance per connection."""
    return type("BoundedProtocol", (BoundedProtocol,), {"settings": settings})


_BACKLOG = 1024
_STOPPING = 2


def bind(settings: ServerSettings) -> tuple[socket.socket, ServerSettings]:
    """Return a listening socket, and the settings with its actual port (a free one if the port is 0).

    Raises:
        UsageError: the address is not available.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Without the protocol, asyncio does not set TCP_NODELAY: each answer on an open connection takes 40 ms more.
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
        hint = "choose another port with --port, or another address with --host"
        raise UsageError(f"cannot listen on {host} port {port}: {reason}", hint=hint) from error
    return listening, replace(settings, port=listening.getsockname()[1])


class Server(uvicorn.Server):
    """Shuts down in steps: the first signal finishes work in progress, the second stops it, the third quits at once."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        say: Callable[[str], None] = lambda text: None,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the application without opening anything.

        `say` is called with messages for the user, `on_started` once the server answers requests.
        """
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
        # Wakes the event loop; a signal handler must not touch its state directly.
        self._loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Finish work in progress on the first call, stop it on the second, quit at once on the third."""
        self._steps += 1
        if self._steps == 1:
            self._say("finishing requests and runs in progress; press again to stop them")
            self.should_exit = True
            self._in_app("live_runs", "close")
        elif self._steps == _STOPPING:
            self._say("stopping requests and runs in progress; press again to quit at once")
            self._in_app("evaluations", "stop_all")
            self._in_app("live_runs", "stop_all")
        else:
            self.force_exit = True

    def _in_app(self, part: str, action: str) -> None:
        found = getattr(self.app.state, part, None)  # missing until the application has started
        if found is not None:
            getattr(found, action)()

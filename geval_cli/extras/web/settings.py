"""Settings of the server."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from geval_cli.specs.base import Scoring

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 3001
TOKEN_VARIABLE = "GEVAL_SERVER_TOKEN"

_WILDCARDS = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server: its folder, who may ask, and how much at a time. Times in seconds.

    Attributes:
        folder: the only folder that configs may be taken from; absolute, symbolic links resolved.
        home: where runs and cache are kept; None for GEVAL_HOME or `.geval`.
        environ: keys and base URLs; what the process was started with.
        token: whoever has it may use the server; None where everybody on this machine may.
        ticket: opens the pages once, as the token does; for addresses that others on this machine may see.
        has_open_geval: whether `POST /api/geval` needs no token.
        allows_code: whether configs may be run that run code of their own.
        grader: who judges; None for the default judge.
        allowed_origins: other web origins whose pages may use the API.
        allowed_hosts: further names of this server, as they stand in `Host` without the port.
        max_evaluations: outputs that are judged or wait for it at a time; one more is told to come again.
        max_runs: runs under way at a time.
        head_timeout_s: in which a request's line and headers must arrive.
        max_connections: that are open at a time; one more is closed at once.
    """

    folder: Path
    environ: Mapping[str, str] = field(repr=False)
    home: Path | None = None
    env_file: Path | None = None
    token: str | None = field(default=None, repr=False)
    ticket: str | None = field(default=None, repr=False)
    has_open_geval: bool = False
    allows_code: bool = False
    grader: str | None = None
    scoring: Scoring | None = None
    samples: int | str | None = None
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout_s: float = 30.0
    evaluation_timeout_s: float = 300.0
    max_evaluations: int = 256
    max_concurrency: int = 100
    max_runs: int = 4
    head_timeout_s: float = 15.0
    max_connections: int = 512

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def is_wildcard(self) -> bool:
        """Return whether the server listens on every address of this machine."""
        return self.host in _WILDCARDS

    @property
    def readable_folder(self) -> Path | None:
        """Return the folder that configs may not read outside of; None where they may run code anyway."""
        return None if self.allows_code else self.folder

    @property
    def url(self) -> str:
        """The address of the server for a browser on this machine."""
        host = DEFAULT_HOST if self.is_wildcard else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def address_with(secret: str | None, url: str) -> str:
    """Return the address that lets a browser in with `secret`, a token or a ticket."""
    return f"{url}/?token={quote(secret, safe='')}" if secret else url


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on `host` is reached from its own machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

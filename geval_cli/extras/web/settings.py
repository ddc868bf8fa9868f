"""Settings of the server, and the folder that it serves: no path leads out of it."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from geval_cli.errors import UsageError
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.specs.base import Scoring
from geval_cli.store.home import current_folder

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")

_FORBIDDEN, _NOT_FOUND = 403, 404


def served_config(folder: Path, name: str) -> Path:
    """Return the config that `name`, relative to `folder`, means; relative to the current folder when it lies in it.

    Raises:
        RefusedError: it lies outside `folder` (symbolic links are followed first), is no config, or is not there.
    """
    hint = "use a .yaml, .yml or .json file relative to the served folder, for example `gevalconfig.yaml`"
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, too long, a loop of links
        raise RefusedError("this is not a file path", status=_NOT_FOUND, hint=hint) from error
    if not path.is_relative_to(folder.resolve()):
        raise RefusedError(f"{name} is outside the served folder", status=_FORBIDDEN, hint=hint)
    if path.suffix.lower() not in CONFIG_SUFFIXES or not _is_file(path):
        raise RefusedError(f"the served folder has no config {name}", status=_NOT_FOUND, hint=hint)
    # Relative to the current folder, so that all runs of a config carry the same path.
    try:
        here = current_folder()
    except UsageError:  # it was removed while the server runs
        return path
    return Path(os.path.relpath(path, here)) if path.is_relative_to(here) else path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


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

"""The server's settings, and the paths of configs, which must be in the served folder."""

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
    """Return the path of the config `name`, which is relative to `folder`.

    The result is relative to the current folder if the config is inside it.

    Raises:
        RefusedError: the path is outside `folder` after following symbolic links, is not a config, or does not exist.
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
    # Relative to the current folder, so that all runs of a config have the same path.
    try:
        here = current_folder()
    except UsageError:  # the folder was removed while the server was running
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
    """The settings of one server: its folder, access and limits. Times are in seconds.

    Attributes:
        folder: the only folder from which configs are served; absolute, with symbolic links resolved.
        home: where runs and the cache are stored; None for GEVAL_HOME or `.geval`.
        environ: the environment the server was started with, with keys and base URLs.
        token: required from clients; None if every user of this machine may use the server.
        ticket: opens the pages once, like the token; for addresses that other users of this machine may see.
        has_open_geval: whether `POST /api/geval` needs no token.
        allows_code: whether configs that contain code may be run.
        grader: the judge; None for the default judge.
        allowed_origins: other web origins whose pages may use the API.
        allowed_hosts: further names of this server, as in the `Host` header without the port.
        max_evaluations: maximum number of outputs being judged or waiting for it; further ones are refused.
        max_runs: maximum number of runs in progress.
        head_timeout_s: time limit for a request's line and headers.
        max_connections: maximum number of open connections; further ones are closed at once.
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
        """Return the folder outside of which configs may not read; None if they may run code anyway."""
        return None if self.allows_code else self.folder

    @property
    def url(self) -> str:
        """Return the URL of the server for a browser on this machine."""
        host = DEFAULT_HOST if self.is_wildcard else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def address_with(secret: str | None, url: str) -> str:
    """Return the URL that signs a browser in with `secret`, a token or a ticket."""
    return f"{url}/?token={quote(secret, safe='')}" if secret else url


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on `host` can be reached only from its own machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

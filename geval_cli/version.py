"""The version of geval, and how to install its extras."""

import sys

__version__ = "0.2.0"


def install_hint(extra: str) -> str:
    """Return how to install an extra, depending on whether geval was installed from a clone or a git address.

    geval is not on any package index, where anyone could claim a name that is still free.
    """
    address = _git_address()
    if address is None:
        return f'in your clone of geval: pip install ".[{extra}]"'
    return "as geval itself was: " + _installing(f'"geval-cli[{extra}] @ {address}"')


def _git_address() -> str | None:
    """Return the address from which geval was installed (PEP 610); None for a clone, or if unknown."""
    import json  # noqa: PLC0415 - needed only for hints
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from urllib.parse import urlsplit, urlunsplit  # noqa: PLC0415

    try:
        record = json.loads(distribution("geval-cli").read_text("direct_url.json") or "{}")
        kind = record["vcs_info"]["vcs"]
        url = urlsplit(record["url"])
    except (PackageNotFoundError, OSError, LookupError, TypeError, ValueError):
        return None
    # Before the host there may be a user name or token.
    return f"{kind}+{urlunsplit(url._replace(netloc=url.netloc.rpartition('@')[2]))}"


def _installing(wanted: str) -> str:
    """Return the command that installs `wanted` into the environment in which geval runs."""
    around = sys.prefix.replace("\\", "/").split("/")
    if "pipx" in around:
        return f"pipx install --force {wanted}"
    if "uv" in around:
        return f"uv tool install --force {wanted}" if "tools" in around else f"uvx --from {wanted} geval"
    return f"pip install {wanted}"

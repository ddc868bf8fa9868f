"""Which geval this is, and how more of it is installed."""

import sys

__version__ = "0.2.0"


def install_hint(extra: str) -> str:
    """Say how an extra is installed where this geval came from: from a clone, or from a git address.

    No package index carries geval, and a name that an index does not know yet may be claimed there by anybody.
    """
    address = _git_address()
    if address is None:
        return f'in your clone of geval: pip install ".[{extra}]"'
    return "as geval itself was: " + _installing(f'"geval-cli[{extra}] @ {address}"')


def _git_address() -> str | None:
    """Return the address from which this geval was installed (PEP 610); None for a clone, or where nothing says."""
    import json  # noqa: PLC0415 - for those who need a hint
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from urllib.parse import urlsplit, urlunsplit  # noqa: PLC0415

    try:
        record = json.loads(distribution("geval-cli").read_text("direct_url.json") or "{}")
        kind = record["vcs_info"]["vcs"]
        url = urlsplit(record["url"])
    except (PackageNotFoundError, OSError, LookupError, TypeError, ValueError):
        return None
    # What stands before the host is a user's name or token.
    return f"{kind}+{urlunsplit(url._replace(netloc=url.netloc.rpartition('@')[2]))}"


def _installing(wanted: str) -> str:
    """Return the command that puts `wanted` into the environment in which this geval runs."""
    around = sys.prefix.replace("\\", "/").split("/")
    if "pipx" in around:
        return f"pipx install --force {wanted}"
    if "uv" in around:
        return f"uv tool install --force {wanted}" if "tools" in around else f"uvx --from {wanted} geval"
    return f"pip install {wanted}"

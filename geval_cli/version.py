"""Which geval this is, and how more of it is installed."""

__version__ = "0.2.0"


def install_hint(extra: str) -> str:
    """Say how an extra is installed: from a clone, since no package index carries geval.

    A name that an index does not know yet may be claimed there by anybody.
    """
    return f'in your clone of geval: pip install ".[{extra}]"'

"""The libraries of the extra `[trust]`: there, or a message that says how to get them."""

from importlib.util import find_spec

from geval_cli.errors import UsageError
from geval_cli.version import install_hint

_LIBRARIES = ("numpy", "scipy")


def require_statistics(what: str) -> None:
    """Raise UsageError when a library that `what` needs is not installed. None is imported."""
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        packages = "the package" if len(missing) == 1 else "the packages"
        message = f"{what} needs {packages} {', '.join(missing)}"
        raise UsageError(message, hint=f"install them {install_hint('trust')}")

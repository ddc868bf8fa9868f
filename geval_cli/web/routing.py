"""Which methods an address has."""

from collections.abc import Mapping
from typing import Any

from starlette.routing import Match
from starlette.types import Scope

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(scope: Scope) -> list[str]:
    """Return the methods that the application of `scope` has at its path; each route by itself knows only its own."""
    return [method for method in _METHODS if has_route({**scope, "method": method})]


def has_route(scope: Mapping[str, Any]) -> bool:
    """Return whether anything answers to the method and the path of `scope`."""
    return any(route.matches(dict(scope))[0] is Match.FULL for route in scope["app"].router.routes)

"""Helpers for page routes: links, query parameters (invalid ones are ignored), and errors as pages."""

import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from threading import Lock
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.routing import APIRoute

from geval_cli.errors import StoreError, UsageError
from geval_cli.extras.compare.comparison import ScoredCase
from geval_cli.extras.web.html import error_page

WordT = TypeVar("WordT", bound=StrEnum)
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_PAGE_DIGITS_MAX = 9


def run_link(run_id: str) -> str:
    """Return the link to a run."""
    return f"/runs/{quote(run_id, safe='')}"


def case_link(run_id: str, case: ScoredCase) -> str:
    """Return the link to one case of a run."""
    return place_link(run_id, case.test_index, case.repeat_index, case.column)


def place_link(run_id: str, test: int, repeat: int, column: int) -> str:
    """Return the link to a case of a run by its indexes, which start at 0."""
    return f"{run_link(run_id)}/results/{test}/{repeat}/{column}"


def link_with(path: str, values: Mapping[str, object]) -> str:
    """Return `path` with `values` as its query: a list as repeated parameters, None and empty texts left out."""
    listed = ((name, item) for name, value in values.items() for item in _items(value))
    query = urlencode(
        [(name, str(item)) for name, item in listed if item not in (None, "")], errors="replace"
    )
    return f"{path}?{query}" if query else path


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def page_number(request: Request) -> int:
    """Return the page number in the query, at least 1; 1 if there is none."""
    return max(whole_number_in_query(request, "page") or 1, 1)


def page_shown(asked: int, total: int, size: int) -> int:
    """Return the number of the page to show: `asked`, or the last page if there are fewer."""
    return min(asked, page_count(total, size))


def page_count(total: int, size: int) -> int:
    """Return the number of pages with `size` items each, at least 1."""
    return max(-(-total // size), 1)


def word_in_query(request: Request, name: str, kind: type[WordT]) -> WordT | None:
    """Return the value of a query parameter as a member of `kind`; None if it is missing or invalid."""
    text = request.query_params.get(name)
    return next((word for word in kind if word.value == text), None)


def whole_number_in_query(request: Request, name: str) -> int | None:
    """Return the value of a query parameter as an integer of 0 or more; None if it is missing or invalid."""
    text = request.query_params.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= _PAGE_DIGITS_MAX
    return int(text) if is_number else None


def number_in_query(request: Request, name: str) -> float | None:
    """Return the value of a query parameter as a finite number; None if it is missing or invalid."""
    try:
        number = float(request.query_params.get(name, ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class RecentResults(Generic[KeyT, ValueT]):
    """A thread-safe cache of the most recently used results of a slow function."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._lock = Lock()

    def get(self, key: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """Return the result for `key`, calling `make` if it is not cached; two threads may both call it."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        made = make()
        with self._lock:
            self._found[key] = made
            if len(self._found) > self._size:
                self._found.popitem(last=False)
        return made


class PageRoute(APIRoute):
    """A route whose errors are pages: 404 for a UsageError, 503 for a store that cannot be read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except UsageError as error:
                return error_page(404, "Not found", error.message, error.hint)
            except StoreError as error:
                return error_page(503, "The stored runs cannot be read", error.message, error.hint)

        return answer

"""Routes of pages: their addresses, what a query says (senseless ones are passed over), errors as pages."""

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
    """Return the link to the case in a place of a run; all three numbers count from 0."""
    return f"{run_link(run_id)}/results/{test}/{repeat}/{column}"


def link_with(path: str, values: Mapping[str, object]) -> str:
    """Return `path` with the given values as its query, lists one by one; empty ones are left out."""
    listed = ((name, item) for name, value in values.items() for item in _items(value))
    query = urlencode(
        [(name, str(item)) for name, item in listed if item not in (None, "")], errors="replace"
    )
    return f"{path}?{query}" if query else path


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def page_number(request: Request) -> int:
    """Return the page asked for, counted from 1."""
    return max(whole_number_in_query(request, "page") or 1, 1)


def page_shown(asked: int, total: int, size: int) -> int:
    """Return the page to show where page `asked` was asked for: the last one where there are not so many."""
    return min(asked, page_count(total, size))


def page_count(total: int, size: int) -> int:
    """Return how many pages of `size` it takes, at least one."""
    return max(-(-total // size), 1)


def word_in_query(request: Request, name: str, kind: type[WordT]) -> WordT | None:
    """Return the value of a query parameter that knows only the words of `kind`."""
    text = request.query_params.get(name)
    return next((word for word in kind if word.value == text), None)


def whole_number_in_query(request: Request, name: str) -> int | None:
    """Return the value of a query parameter that is a whole number from 0 on."""
    text = request.query_params.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= _PAGE_DIGITS_MAX
    return int(text) if is_number else None


def number_in_query(request: Request, name: str) -> float | None:
    """Return the value of a query parameter that is a number."""
    try:
        number = float(request.query_params.get(name, ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class RecentResults(Generic[KeyT, ValueT]):
    """The results of a slow function that were asked for last, by what they are made of. Safe for threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._lock = Lock()

    def get(self, key: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """Return the result for `key`, made if it is not there; two threads may both make it."""
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
    """A route whose errors are pages: what is not there is a 404, a store that cannot be read a 503."""

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

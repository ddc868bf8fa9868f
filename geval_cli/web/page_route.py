"""Routes that answer with pages: what goes wrong becomes a page too."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from geval_cli.errors import StoreError, UsageError
from geval_cli.store.runs import RunStore
from geval_cli.web.html import error_page


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


def stored_runs(request: Request) -> RunStore:
    """Return the runs that the server keeps."""
    runs: RunStore = request.app.state.state.runs
    return runs

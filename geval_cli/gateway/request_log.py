"""The log of requests: an event for every one that leaves, with its time, attempt and outcome."""

import time
from collections.abc import Callable

from geval_cli.errors import ProviderError
from geval_cli.events import RequestEnded
from geval_cli.gateway.call import Handler, ModelCall
from geval_cli.records import ErrorInfo, ModelResponse, Usage


class RequestTrace:
    """A layer that sends a `RequestEnded` for each request, without prompt, answer or key.

    `now` is seconds since 1970.
    """

    def __init__(
        self,
        on_event: Callable[[RequestEnded], None],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._on_event = on_event
        self._now = now

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        started_at, started = self._now(), time.perf_counter()
        try:
            response = await send_next(call)
        except ProviderError as error:
            info = ErrorInfo(type(error).__name__, error.message, error.hint)
            self._tell(
                call, started_at, started, status=error.status, error=info, request_id=error.request_id
            )
            raise
        self._tell(
            call,
            started_at,
            started,
            request_id=response.request_id,
            usage=response.usage,
            finish_reasons=tuple(choice.finish_reason for choice in response.choices),
        )
        return response

    def _tell(
        self,
        call: ModelCall,
        started_at: float,
        started: float,
        **outcome: int | str | Usage | ErrorInfo | tuple[str | None, ...] | None,
    ) -> None:
        self._on_event(
            RequestEnded(
                call=call.number,
                attempt=call.attempt,
                role=call.request.role,
                provider_id=call.provider.id,
                answers=len(call.request.sample_indexes),
                started_at=started_at,
                latency_ms=(time.perf_counter() - started) * 1000,
                **outcome,  # type: ignore[arg-type]  # each under the name of its field
            )
        )

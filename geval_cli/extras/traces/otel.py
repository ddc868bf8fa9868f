"""`--otel`: sends a run as OpenTelemetry traces and log events to the collector that the OTEL_* variables name.

Spans are `geval run` > `geval case` > `chat MODEL`; each assertion is a log event `gen_ai.evaluation.result`. They
follow the conventions for generative AI, which are still in development, so their names are spelled out here instead of
imported from a package that changes. An unreachable collector costs a warning and next to no time. Prompts, answers and
reasons, which quote both, are sent only if OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT says so.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import requests
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.re import parse_env_headers

from geval_cli.errors import UsageError
from geval_cli.events import (
    CaseFinished,
    CaseStarted,
    RequestDetail,
    RequestEnded,
    RunEvent,
    RunFinished,
    RunStarted,
)
from geval_cli.providers.network.addresses import split_url
from geval_cli.providers.redaction import Secrets, public_url
from geval_cli.records import AssertionResult, CaseResult, Choice, JsonValue, Message, Purpose
from geval_cli.records import Status as CaseStatus
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import value_text, whole_text
from geval_cli.source.secrets import environment_secrets
from geval_cli.version import __version__

DEFAULT_ENDPOINT = "http://localhost:4318"
EVALUATION_EVENT = "gen_ai.evaluation.result"

_VENDORS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Vendors whose names in the conventions differ from geval's."""

_SETTINGS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "temperature": (float, ("temperature",)),
    "top_p": (float, ("top_p", "topP")),
    "top_k": (float, ("top_k", "topK")),
    "max_tokens": (
        int,
        ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens", "max_new_tokens"),
    ),
    "seed": (int, ("seed", "random_seed")),
    "frequency_penalty": (float, ("frequency_penalty", "frequencyPenalty")),
    "presence_penalty": (float, ("presence_penalty", "presencePenalty")),
    "stop_sequences": (list, ("stop", "stop_sequences", "stopSequences")),
}
"""The conventions' name of each parameter, its type, and the vendors' names."""

_FINISH_REASONS = {"tool_calls": "tool_call", "tool_use": "tool_call", "function_call": "tool_call"}

_NS = 1_000_000_000
_MOST_BITS = 63
_LONGEST_EXIT_S = 5.0
_QUEUE = 1 << 15  # queued spans and events: a fast run makes thousands a second
_FAILURES_OF_NEVER_SEEN, _FAILURES = 2, 5
_MAY_PASS = frozenset({408, 429, 502, 503, 504})
_NO_HTTP = "leave it out, or set http/protobuf and an endpoint with port 4318: geval sends OTLP over HTTP"

Attributes = dict[str, Any]


class _GivenUpError(Exception):
    """Nothing more is sent. Not a connection error, after which the library would wait and retry."""


class _Link(requests.Session):
    """The connection to a collector. After a few failures in a row it gives up, so that the run does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble = ""
        self.last_failure = ""
        self.is_given_up = False
        self._failures = 0
        self._has_worked = False

    def send(self, request: requests.PreparedRequest, **words: Any) -> requests.Response:
        if self.is_given_up:
            raise _GivenUpError
        try:
            response = super().send(request, **words)
        except requests.RequestException as error:
            self._fail(f"cannot be reached ({type(error).__name__})")
            if self.is_given_up:
                raise _GivenUpError from error
            raise
        if response.status_code in _MAY_PASS:
            self._fail(f"answered {response.status_code}")
        elif response.status_code >= HTTPStatus.MULTIPLE_CHOICES:  # a redirect is not followed
            self._fail(f"answered {response.status_code}", is_final=True)
        else:
            self._has_worked, self._failures = True, 0
        return response

    def give_up(self, trouble: str) -> None:
        """Send nothing more. Only the first reason is kept."""
        self.trouble = self.trouble or trouble
        self.is_given_up = True

    def _fail(self, trouble: str, *, is_final: bool = False) -> None:
        self._failures += 1
        self.last_failure = trouble
        if is_final or self._failures >= (_FAILURES if self._has_worked else _FAILURES_OF_NEVER_SEEN):
            self.give_up(trouble)


class _LostBatchHandler(logging.Handler):
    """Catches the library's messages about lost batches, and remembers whether there were any."""

    def __init__(self) -> None:
        super().__init__()
        self.has_some = False

    def emit(self, record: logging.LogRecord) -> None:
        # A warning about something that will be retried is not a loss.
        self.has_some |= record.levelno >= logging.ERROR or "dropping" in str(record.msg).lower()


class OtelTraces:
    """A listener that sends a run's events to a collector in the background.

    `warning` says what could not be sent.

    Raises:
        UsageError: the OTEL_* variables request something that geval does not support.
    """

    def __init__(self, environ: Mapping[str, str], *, sends_content: bool = False) -> None:
        """Start sending; `sends_content` includes reasons. Prompts and answers are sent if the events have them."""
        self._environ = environ
        self._sends_content = sends_content
        self._secrets = Secrets(environment_secrets(environ))
        self._runs: list[Span] = []
        self._cases: dict[str, Span] = {}
        self._losses = _LostBatchHandler()
        self._links = {"TRACES": _Link(), "LOGS": _Link()}
        is_sent = {signal: check_signal(signal, environ) for signal in self._links}
        is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        self._sends_logs = is_sent["LOGS"] and not is_off
        self._sends_spans = is_sent["TRACES"] and not is_off
        try:
            is_named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get(
                "OTEL_RESOURCE_ATTRIBUTES", ""
            )
            resource = Resource.create({} if is_named else {"service.name": "geval"})
            self._spans = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._logs = LoggerProvider(resource=resource, shutdown_on_exit=False)
            if self._sends_spans:
                exporter = OTLPSpanExporter(session=self._links["TRACES"])
                size = None if "OTEL_BSP_MAX_QUEUE_SIZE" in self._environ else _QUEUE
                self._spans.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=size))
            if self._sends_logs:
                log_exporter = OTLPLogExporter(session=self._links["LOGS"])
                size = None if "OTEL_BLRP_MAX_QUEUE_SIZE" in self._environ else _QUEUE
                self._logs.add_log_record_processor(
                    BatchLogRecordProcessor(log_exporter, max_queue_size=size)
                )
            self._tracer = self._spans.get_tracer("geval", __version__)
            self._logger = self._logs.get_logger("geval", __version__)
        except (ValueError, OSError) as error:
            raise UsageError(
                f"OTEL_* variables cannot be used: {self._secrets.redact(str(error))}"
            ) from error

    @property
    def ports(self) -> frozenset[int]:
        """Return the TCP ports of the collector."""
        found = (split_url(endpoint_of(signal, self._environ)) for signal in self._links)
        return frozenset(parts.port or (443 if parts.scheme == "https" else 80) for parts in found)

    @property
    def warning(self) -> str:
        """Return one sentence about what could not be sent; empty if everything was."""
        troubled = [
            (signal, link) for signal, link in self._links.items() if link.trouble or link.last_failure
        ]
        if not any(link.trouble for _, link in troubled) and not self._losses.has_some:
            return ""
        signal, link = (troubled or list(self._links.items()))[0]
        what = "traces and results" if len(troubled) > 1 else {"TRACES": "traces", "LOGS": "results"}[signal]
        where = public_url(endpoint_of(signal, self._environ))
        trouble = link.trouble or link.last_failure or "was slower than the run"
        return f"not all {what} were sent: the collector at {where} {trouble}"

    def __enter__(self) -> Self:
        # The library logs each lost batch; `warning` says it once.
        self._silenced = logging.getLogger("opentelemetry")
        self._was_propagated, self._silenced.propagate = self._silenced.propagate, False
        self._silenced.addHandler(self._losses)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._silenced.removeHandler(self._losses)
        self._silenced.propagate = self._was_propagated

    def close(self) -> None:
        """Send what is queued, for a few seconds at most; threads that hang are left to end with the process."""
        self._end_all()
        closing = [threading.Thread(target=part.shutdown, daemon=True) for part in (self._spans, self._logs)]
        until = time.monotonic() + _LONGEST_EXIT_S
        for thread in closing:
            thread.start()
        for thread, link in zip(closing, self._links.values(), strict=True):
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                link.give_up(f"took longer than {_LONGEST_EXIT_S:g} s")

    def is_heard(self) -> bool:
        """Return whether anything can still be sent."""
        return not all(link.is_given_up for link in self._links.values())

    def listen(self, event: RunEvent) -> None:
        """Record the event as a span or a log event, if it is one."""
        if not self.is_heard():
            return
        match event:
            case RunStarted():
                facts = {"geval.run.id": event.run.id, "geval.version": event.run.tool_version}
                self._runs.append(self._tracer.start_span("geval run", attributes=facts))
            case CaseStarted():
                self._cases[event.case] = self._tracer.start_span(
                    "geval case", context=self._within(None), start_time=_nanoseconds(event.started_at)
                )
            case RequestEnded():
                self._request(event)
            case CaseFinished():
                self._case(event.result)
            case RunFinished():
                self._end_all({"geval.run.status": event.run.status.value})

    def finish(self, report: RunReport) -> None:
        """Do nothing: the spans of several runs are sent together."""

    def _within(self, case: str | None) -> Any:
        """Return the context of a case, or of the run if the case has none."""
        parent = self._cases.get(case) if case is not None else None
        parent = parent or (self._runs[-1] if self._runs else None)
        return None if parent is None else set_span_in_context(parent)

    def _request(self, event: RequestEnded) -> None:
        detail = event.detail
        if detail is None:
            return
        operation = "embeddings" if detail.purpose is Purpose.EMBEDDING else "chat"
        started = _nanoseconds(event.started_at)
        kind = event.provider_id.partition(":")[0].lower()
        vendor = _VENDORS.get(kind, kind)
        span = self._tracer.start_span(
            whole_text(f"{operation} {detail.model}").rstrip(),
            context=self._within(detail.case),
            kind=SpanKind.CLIENT,
            start_time=started,
            attributes=_without_none(
                {
                    "gen_ai.operation.name": operation,
                    "gen_ai.provider.name": vendor,
                    "gen_ai.request.model": detail.model or None,
                    "gen_ai.response.model": detail.response_model,
                    "gen_ai.response.id": detail.response_id or event.request_id,
                    "gen_ai.usage.input_tokens": event.usage.input_tokens if event.error is None else None,
                    "gen_ai.usage.output_tokens": event.usage.output_tokens if event.error is None else None,
                    "gen_ai.response.finish_reasons": [item for item in event.finish_reasons if item] or None,
                    "gen_ai.usage.cache_read.input_tokens": detail.cache_read_tokens or None,
                    "gen_ai.usage.cache_creation.input_tokens": detail.cache_write_tokens or None,
                    "gen_ai.request.choice.count": event.answers if event.answers > 1 else None,
                    **_request_settings(detail),
                    **_server(detail.endpoint),
                    "error.type": None if event.error is None else event.error.type,
                    "http.response.status_code": event.status,
                    "geval.role": event.role.value,
                    "geval.purpose": detail.purpose.value,
                    "geval.attempt": event.attempt,
                    **self._content(detail),
                }
            ),
        )
        if event.error is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(started + int(event.latency_ms * _NS / 1000))

    def _content(self, detail: RequestDetail) -> Attributes:
        """Return prompt and answers in the form of the conventions, if they were kept at all."""
        asked = [self._asked(message) for message in detail.messages]
        given = [
            {
                "role": "assistant",
                "parts": self._answered(choice),
                "finish_reason": _FINISH_REASONS.get(
                    choice.finish_reason or "", choice.finish_reason or "stop"
                ),
            }
            for choice in detail.choices
        ]
        return {
            "gen_ai.input.messages": json.dumps(asked, ensure_ascii=False) if asked else None,
            "gen_ai.output.messages": json.dumps(given, ensure_ascii=False) if given else None,
        }

    def _asked(self, message: Message) -> dict[str, JsonValue]:
        """Return a message that was sent, with tool calls and tool results as separate parts."""
        further = message.further
        parts: list[JsonValue] = []
        if message.role == "tool":
            response = self._redacted(message.content)
            parts.append(
                {"type": "tool_call_response", "id": further.get("tool_call_id"), "response": response}
            )
        else:
            content = message.content if isinstance(message.content, list) else [message.content]
            texts = [item.get("text", item) if isinstance(item, dict) else item for item in content]
            parts += [
                {"type": "text", "content": self._redacted(text)} for text in texts if text not in (None, "")
            ]
        calls = further.get("tool_calls")
        parts += [self._call(call) for call in calls] if isinstance(calls, list) else []
        return {"role": message.role, "parts": parts}

    def _answered(self, choice: Choice) -> list[JsonValue]:
        """Return an answer as parts: its text, and each tool call."""
        calls = [self._call(call) for call in choice.tool_calls]
        # If the model only calls tools, the text repeats the calls.
        is_text = choice.text and not (calls and choice.text.lstrip()[:1] in {"{", "["})
        text: list[JsonValue] = [{"type": "text", "content": self._secrets.redact(choice.text)}]
        return [*(text if is_text else []), *calls]

    def _call(self, call: Any) -> JsonValue:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            return {"type": "tool_call", "name": "unknown", "arguments": self._secrets.hide_in(call)}
        arguments = function.get("arguments")
        with suppress(ValueError, TypeError):
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        found = {"id": call.get("id"), "name": function.get("name"), "arguments": arguments}
        return {"type": "tool_call", **{key: self._secrets.hide_in(item) for key, item in found.items()}}

    def _redacted(self, content: JsonValue) -> str:
        return self._secrets.redact(value_text(content))

    def _case(self, result: CaseResult) -> None:
        context = self._within(result.id)
        for assertion in _all_assertions(result.assertions):
            self._evaluation(assertion, context)
        span = self._cases.pop(result.id, None)
        if span is None:
            return
        facts = {
            "geval.case.id": result.id,
            "geval.test.index": result.test_index,
            "geval.repeat.index": result.repeat_index,
            "geval.provider": result.provider.id,
            "geval.status": result.status.value,
            "geval.score": result.score,
            "error.type": None if result.error is None else result.error.type,
        }
        span.set_attributes(_without_none(facts))
        if result.status is CaseStatus.ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _evaluation(self, found: AssertionResult, context: Any) -> None:
        if not self._sends_logs or self._links["LOGS"].is_given_up:
            return
        # The reason may quote the output, so it is left out unless content is sent.
        is_sent = self._sends_content and found.reason is not None
        explanation = self._secrets.redact(found.reason or "") if is_sent else None
        facts = {
            "gen_ai.evaluation.name": found.metric or found.type,
            "gen_ai.evaluation.score.value": found.score,
            "gen_ai.evaluation.score.label": found.status.value,
            "gen_ai.evaluation.explanation": explanation,
            "error.type": None if found.error is None else found.error.type,
        }
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                context=context,
                severity_number=SeverityNumber.INFO,
                event_name=EVALUATION_EVENT,
                attributes=_without_none(facts),
            )
        )

    def _end_all(self, facts: Attributes | None = None) -> None:
        """End the spans of runs, and of cases that did not finish."""
        for span in self._cases.values():
            span.end()
        self._cases.clear()
        while self._runs:
            span = self._runs.pop()
            span.set_attributes(facts or {})
            span.end()


def check_signal(signal: str, environ: Mapping[str, str]) -> bool:
    """Return whether a signal (TRACES or LOGS) is to be sent.

    Raises:
        UsageError: its exporter, protocol, headers or endpoint are not supported.
    """
    exporter = environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower()
    if exporter not in {"", "otlp", "none"}:
        raise UsageError(f"OTEL_{signal}_EXPORTER is {exporter}", hint="use otlp or none")
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environ.get(name, "").strip().lower()
        if protocol not in {"", "http/protobuf"}:
            raise UsageError(f"{name} is {protocol}", hint=_NO_HTTP)
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"):
        if not _are_headers(environ.get(name, "")):
            hint = "write name=value, separated by commas, URL-encoded: authorization=Bearer%20KEY"
            raise UsageError(f"{name} has an entry that is no header", hint=hint)
    parts = split_url(endpoint_of(signal, environ))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        hint = f"use a URL such as {DEFAULT_ENDPOINT}"
        raise UsageError("OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL", hint=hint)
    return exporter != "none"


def _are_headers(text: str) -> bool:
    """Return whether the library can read all headers in a variable; it would log the others, keys included."""
    refused: list[logging.LogRecord] = []

    def take(record: logging.LogRecord) -> bool:
        refused.append(record)
        return False

    logger = logging.getLogger(parse_env_headers.__module__)
    logger.addFilter(take)
    try:
        parse_env_headers(text, liberal=True)
    finally:
        logger.removeFilter(take)
    return not refused


def endpoint_of(signal: str, environ: Mapping[str, str]) -> str:
    """Return the collector's address for a signal (TRACES or LOGS)."""
    names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next((value for name in names if (value := environ.get(name, "").strip())), DEFAULT_ENDPOINT)


def _all_assertions(found: tuple[AssertionResult, ...]) -> Iterator[AssertionResult]:
    for assertion in found:
        yield assertion
        yield from _all_assertions(assertion.assertions)


def _request_settings(detail: RequestDetail) -> Attributes:
    """Return the parameters of a request, whichever vendor's names the config uses."""
    settings: dict[str, Any] = dict(detail.settings)
    for name in ("generationConfig", "passthrough"):
        inner = settings.get(name)
        settings.update(inner if isinstance(inner, dict) else {})
    found: Attributes = {}
    for name, (kind, spellings) in _SETTINGS.items():
        value = next((settings[word] for word in spellings if settings.get(word) is not None), None)
        if name == "stop_sequences":
            value = [value] if isinstance(value, str) else value
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                found[f"gen_ai.request.{name}"] = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"gen_ai.request.{name}"] = kind(value)
    shape = settings.get("response_format") or settings.get("responseMimeType")
    shape = shape.get("type") if isinstance(shape, dict) else shape
    if detail.is_shaped or (isinstance(shape, str) and "json" in shape):
        found["gen_ai.output.type"] = "json"
    elif shape is not None:
        found["gen_ai.output.type"] = "text"
    return found


def _server(endpoint: str) -> Attributes:
    parts = split_url(endpoint)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    if not parts.hostname or port is None:
        return {}
    return {"server.address": parts.hostname, "server.port": port}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _NS)


def _without_none(attributes: Attributes) -> Attributes:
    """Return the attributes that have a value, in a form that can be sent: the library would drop the others."""
    return {name: _sendable(value) for name, value in attributes.items() if value is not None}


def _sendable(value: Any) -> Any:
    """Return a value without lone surrogates, and a number beyond 64 bits as text."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [_sendable(item) for item in value]
    return str(value) if isinstance(value, int) and value.bit_length() > _MOST_BITS else value

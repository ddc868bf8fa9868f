"""`geval run --otel` against a collector on loopback: what it gets, what it does not get, and when it is not there."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.geval_command import Finished, clean_environment, run_geval
from support.loopback import LoopbackServer, Reply
from support.model_server import ModelServer, verdict
from support.sample_run import make_case

from geval_cli.cli.run import _open_traces
from geval_cli.errors import UsageError
from geval_cli.events import CaseFinished, CaseStarted, RequestDetail, RequestEnded
from geval_cli.extras.traces.otel import OtelTraces, check_signal
from geval_cli.records import AssertionResult, Choice, Message, ProviderRef, Purpose, Role, Status, Usage
from geval_cli.runs.requests import RunRequest

CONFIG = """\
prompts: ["Where is {{ city }}? {{ env.SOME_API_KEY }}"]
providers: ["openai:gpt-4.1-mini"]
defaultTest: { options: { provider: "openai:gpt-4.1" } }
tests:
  - vars: { city: Paris }
    assert:
      - { type: g-eval, metric: right, criteria: It is right., scoring: single }
      - { type: equals, value: "Nowhere." }
  - vars: { city: Rome }
"""
SECRET = "sk-very-secret-value-1234567890"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Collector(LoopbackServer):
    """Takes OTLP over HTTP, and knows spans and log events by what they say."""

    def __init__(self, **reply: Any) -> None:
        super().__init__(respond=lambda body, headers: Reply(**reply))

    def spans(self) -> list[Any]:
        return [
            span
            for resource in self._parsed("/v1/traces", ExportTraceServiceRequest, "resource_spans")
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def events(self) -> list[Any]:
        return [
            record
            for resource in self._parsed("/v1/logs", ExportLogsServiceRequest, "resource_logs")
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def everything(self) -> bytes:
        return b"".join(request.body for request in self.requests)

    def _parsed(self, path: str, kind: Any, parts: str) -> Iterator[Any]:
        for request in self.requests:
            if request.path == path:
                message = kind()
                message.ParseFromString(request.body)
                yield from getattr(message, parts)


def facts(item: Any) -> dict[str, Any]:
    """The attributes of a span or an event, as plain values."""
    return {entry.key: _plain(entry.value) for entry in item.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind)


def run(folder: Path, *options: str, config: str = CONFIG, **env: str) -> Finished:
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    return run_geval("run", "config.yaml", "--otel", *options, cwd=folder, env=clean_environment(**env))


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(answer="In France, privately.", evaluate=verdict(9, "It quotes: In France.")) as server:
        yield server


def asking(model: ModelServer, collector: str) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": model.base_url,
        "OPENAI_API_KEY": SECRET,
        "SOME_API_KEY": SECRET + "-too",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
    }


def test_a_run_is_a_tree_of_spans_with_an_event_for_each_assertion(
    tmp_path: Path, model: ModelServer
) -> None:
    with Collector() as collector:
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": "x-team=blue"}
        finished = run(tmp_path, "--log-file", "log.jsonl", **asking(model, collector.url), **headers)
        spans, events = collector.spans(), collector.events()
        assert collector.requests[0].headers["x-team"] == "blue"
        sent = collector.everything()
    assert finished.code == 1, finished.stderr
    assert "warning" not in finished.stderr
    [whole] = [span for span in spans if span.name == "geval run"]
    cases = [span for span in spans if span.name == "geval case"]
    chats = [span for span in spans if span.name.startswith("chat ")]
    assert len(spans) == 1 + len(cases) + len(chats)
    assert facts(whole)["geval.run.status"] == "completed"
    assert whole.parent_span_id == b""
    assert {span.trace_id for span in spans} == {whole.trace_id}
    assert [span.parent_span_id for span in cases] == [whole.span_id] * 2
    assert sorted(facts(span)["geval.status"] for span in cases) == ["failed", "not_evaluated"]
    assert all(chat.parent_span_id in {case.span_id for case in cases} for chat in chats)
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    names = sorted(chat.name for chat in chats)
    assert names == ["chat gpt-4.1", "chat gpt-4.1", "chat gpt-4.1-mini", "chat gpt-4.1-mini"]
    answer = facts(next(chat for chat in chats if chat.name == "chat gpt-4.1-mini"))
    assert answer == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4.1-mini",
        "gen_ai.response.model": "loopback-model",
        "gen_ai.response.id": "chatcmpl-loopback",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["stop"],
        "server.address": "127.0.0.1",
        "server.port": model.port,
        "geval.role": "generation",
        "geval.purpose": "answers",
        "geval.attempt": 1,
    }
    by_name = {facts(event)["gen_ai.evaluation.name"]: event for event in events}
    assert set(by_name) == {"right", "equals"}
    judged = by_name["right"]
    assert judged.event_name == "gen_ai.evaluation.result"
    assert facts(judged)["gen_ai.evaluation.score.value"] == 0.9
    assert facts(judged)["gen_ai.evaluation.score.label"] == "passed"
    failed_case = next(case for case in cases if facts(case)["geval.status"] == "failed")
    assert (judged.trace_id, judged.span_id) == (whole.trace_id, failed_case.span_id)
    for private in (b"Paris", b"France", b"Nowhere", SECRET.encode()):
        assert private not in sent
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()]
    assert not any("detail" in entry for entry in logged)


def test_texts_are_sent_where_they_are_asked_for_and_keys_never(tmp_path: Path, model: ModelServer) -> None:
    with Collector() as collector:
        log = tmp_path / "log.jsonl"
        run(tmp_path, "--log-file", str(log), **asking(model, collector.url), **{CONTENT: "true"})
        spans, events, sent = collector.spans(), collector.events(), collector.everything()
        asked = [facts(span) for span in spans if span.name == "chat gpt-4.1-mini"]
        messages = [json.loads(item["gen_ai.input.messages"]) for item in asked]
        assert any("Where is Paris?" in item[0]["parts"][0]["content"] for item in messages)
        assert json.loads(asked[0]["gen_ai.output.messages"]) == [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "In France, privately."}],
                "finish_reason": "stop",
            }
        ]
        assert any("It quotes" in facts(event).get("gen_ai.evaluation.explanation", "") for event in events)
        assert SECRET.encode() not in sent
        assert "Paris" not in log.read_text("utf-8")
        # A run from the cache asks nobody.
        before = len(collector.spans())
        run(tmp_path, **asking(model, collector.url))
        names = [span.name for span in collector.spans()[before:]]
        assert sorted(names) == ["geval case", "geval case", "geval run"]


def test_a_request_tells_its_settings_and_calls_of_tools_in_the_words_of_the_conventions() -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, server_attributes

    call = {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Rome"}'}}
    detail = RequestDetail(
        case=None,
        model="m",
        purpose=Purpose.ANSWER,
        response_id="resp-1",
        settings={
            "temperature": 0,
            "generationConfig": {"topP": 0.5, "maxOutputTokens": 9, "seed": 7, "stopSequences": ["x"]},
            "top_k": 40,
            "presence_penalty": True,
            "response_format": {"type": "json_schema"},
        },
        endpoint="https://api.example.com/v1/chat",
        cache_read_tokens=5,
        cache_write_tokens=3,
        messages=(
            Message("user", [{"type": "text", "text": "Where?"}]),
            Message("assistant", "", {"tool_calls": [call]}),
            Message("tool", "sunny", {"tool_call_id": "c-1"}),
        ),
        choices=(
            Choice("I look it up.", "tool_calls", tool_calls=(call,)),
            Choice(json.dumps([call]), "tool_calls", tool_calls=(call,)),
            Choice("cut", "length"),
        ),
    )
    traces = OtelTraces({"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"})
    memory = InMemorySpanExporter()
    traces._spans.add_span_processor(SimpleSpanProcessor(memory))
    event = RequestEnded(
        1, 1, Role.GENERATION, "openai:m", 3, 0.0, 1.0, request_id="http-1", detail=detail,
        finish_reasons=("tool_calls", "tool_calls", "length"), usage=Usage(3, 20, 8),
    )  # fmt: skip
    traces.listen(event)
    [span] = memory.get_finished_spans()
    found: dict[str, Any] = dict(span.attributes or {})
    traces.close()
    part = {"type": "tool_call", "id": "c-1", "name": "look", "arguments": {"city": "Rome"}}
    assert json.loads(found.pop("gen_ai.input.messages")) == [
        {"role": "user", "parts": [{"type": "text", "content": "Where?"}]},
        {"role": "assistant", "parts": [part]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c-1", "response": "sunny"}]},
    ]
    assert json.loads(found.pop("gen_ai.output.messages")) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "I look it up."}, part],
            "finish_reason": "tool_call",
        },
        {"role": "assistant", "parts": [part], "finish_reason": "tool_call"},
        {"role": "assistant", "parts": [{"type": "text", "content": "cut"}], "finish_reason": "length"},
    ]
    wanted = {
        "gen_ai.response.id": "resp-1",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.top_k": 40.0,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.request.choice.count": 3,
        "gen_ai.output.type": "json",
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.usage.cache_creation.input_tokens": 3,
        "server.address": "api.example.com",
        "server.port": 443,
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert "gen_ai.request.presence_penalty" not in found
    known = {
        value
        for module in (gen_ai_attributes, server_attributes)
        for name, value in vars(module).items()
        if name.startswith(("GEN_AI_", "SERVER_"))
    }
    assert {name for name in found if name.startswith(("gen_ai.", "server."))} <= known


def test_nothing_is_lost_that_cannot_be_sent_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    half, large = "half \ud800", 1 << 70
    settings = {"seed": large, "max_tokens": -large, "stop": ["a", half], "top_k": large}
    detail = RequestDetail(
        case="0.0.0",
        model=half,
        purpose=Purpose.ANSWER,
        response_id=half,
        response_model=half,
        settings=settings,
        messages=(Message("user", half),),
        choices=(Choice(half, half),),
    )
    request = RequestEnded(
        1, 1, Role.GENERATION, f"{half}:m", 3, 0.0, 1.0, detail=detail, finish_reasons=(half,), usage=Usage(3, large)
    )  # fmt: skip
    found = AssertionResult(half, half, Status.FAILED, 0.5, reason=half)
    case = make_case(0, provider=ProviderRef(half, half), assertions=(found,))
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with OtelTraces(os.environ, sends_content=True) as traces:
            for event in (CaseStarted(case.id, 0.0), request, CaseFinished(case)):
                traces.listen(event)
        assert traces.warning == ""
        chat, whole = (facts(span) for span in collector.spans())
        [judged] = map(facts, collector.events())

    assert chat["gen_ai.request.seed"] == chat["gen_ai.usage.input_tokens"] == str(large)
    assert chat["gen_ai.request.max_tokens"] == str(-large)
    assert chat["gen_ai.request.stop_sequences"] == ["a", "half ?"]
    assert {"half ?"} == {
        *(
            chat[f"gen_ai.{name}"]
            for name in ("provider.name", "request.model", "response.model", "response.id")
        ),
        *chat["gen_ai.response.finish_reasons"],
        *(judged[f"gen_ai.evaluation.{name}"] for name in ("name", "explanation")),
        whole["geval.provider"],
    }
    assert all("half ?" in chat[f"gen_ai.{side}.messages"] for side in ("input", "output"))


ECHO = "prompts: [hello]\nproviders: [echo]\ntests: [{ assert: [{ type: equals, value: hello }] }]\n"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"status": 404}, "answered 404"),
        ({"status": 401, "body": "no"}, "answered 401"),
        ({"status": 307, "headers": {"location": "/elsewhere"}}, "answered 307"),
        ({"hang": True}, "cannot be reached"),
        ({"reset": True}, "cannot be reached"),
    ],
)
def test_a_collector_in_trouble_gives_one_warning_and_changes_nothing(
    tmp_path: Path, reply: Mapping[str, Any], words: str
) -> None:
    with Collector(**reply) as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        env |= {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"} if "hang" in reply else {}
        finished = run(tmp_path, config=ECHO, **env)
    assert finished.code == 0
    assert finished.stderr.count("warning") == 1
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr


def test_no_collector_at_all(tmp_path: Path) -> None:
    with LoopbackServer() as gone:
        address = gone.url
    finished = run(tmp_path, config=ECHO, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://user:{SECRET}@{address[7:]}")
    assert finished.code == 0
    assert finished.stderr.count("warning") == 1
    assert f"the collector at {address} cannot be reached" in finished.stderr
    assert SECRET not in finished.stderr


def test_traces_of_a_strangers_config_reach_the_collector_that_the_user_names(tmp_path: Path) -> None:
    with Collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=mine"}
        finished = run(tmp_path, "--untrusted", config=ECHO, **env)
        assert finished.code == 0, finished.stderr
        assert {span.name for span in collector.spans()} == {"geval run", "geval case", "chat"}
        assert len(collector.events()) == 1
        assert {request.headers["x-key"] for request in collector.requests} == {"mine"}


def test_signals_are_switched_off_by_their_variables(tmp_path: Path) -> None:
    with Collector() as collector:
        run(tmp_path, config=ECHO, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_LOGS_EXPORTER="none")
        assert {request.path for request in collector.requests} == {"/v1/traces"}
        collector.requests.clear()
        finished = run(
            tmp_path, config=ECHO, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_SDK_DISABLED="true"
        )
        assert (finished.code, collector.requests) == (0, [])


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "is grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "is http/json"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "is console"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317"}, "not an http or https URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"}, "not an http or https URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:port"}, "not an http or https URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}, "not an http or https URL"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "ftp://x"}, "not an http or https URL"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": f"authorization: {SECRET}"}, "OTLP_HEADERS has an entry that is no"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": f"x-key=1,{SECRET}"}, "OTLP_HEADERS has an entry that is no"),
        ({"OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"x-key=\u201c{SECRET}"}, "TRACES_HEADERS has an entry"),
    ],
)
def test_variables_that_cannot_be_followed_are_told_before_anything_is_sent(
    variables: Mapping[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        check_signal("TRACES", variables)
    assert SECRET not in caplog.text + str(refused.value) + refused.value.hint


@pytest.mark.parametrize(
    "headers", ["", "a=b", "authorization=Bearer key,b=", " a = b , c=d=e ,", "a=%20%C3"]
)
def test_headers_as_other_programs_write_them_are_taken(headers: str) -> None:
    assert check_signal("TRACES", {"OTEL_EXPORTER_OTLP_HEADERS": headers})


def test_without_the_extra_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import ExitStack

    monkeypatch.delitem(sys.modules, "geval_cli.extras.traces.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk._logs", None)
    with pytest.raises(UsageError, match="--otel needs") as refused, ExitStack() as stack:
        _open_traces([RunRequest(Path("c.yaml"), {}, otel=True)], stack)
    assert 'pip install ".[otel]"' in refused.value.hint

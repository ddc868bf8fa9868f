import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, RecordedRequest, Reply

from geval_cli.errors import ProviderRequestError, ProviderResponseError, ProviderShapeError
from geval_cli.extras.http_provider.placeholders import follow_path, parse_path
from geval_cli.gateway.cache import choice_keys
from geval_cli.providers.registry import build_provider, check_provider
from geval_cli.records import Message, ModelRequest, ModelResponse
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.dialect import PROMPTFOO_RULES

SIGNED_BY = {"accessKeyId": "A", "secretAccessKey": "secret-0123456789", "sessionToken": "session-0123456789"}
TRICKY = 'He said "no"\nand \\left {{ messages }}'


def exchange(
    config: dict[str, Any], reply: Any = "ok", *, request: ModelRequest | None = None, path: str = "/ask"
) -> tuple[ModelResponse, RecordedRequest]:
    with LoopbackServer(Reply(body=reply)) as server:
        model = provider(f"{server.url}{path}", config, base_dir=Path())
        [response] = run(answer(model, request or ask(TRICKY)))
    return response, server.requests[0]


def said_to(reply: Reply) -> str:
    """Return the answer that a provider without settings reads in a reply."""
    with LoopbackServer(reply) as server:
        [response] = run(answer(provider(f"{server.url}/ask", {}, base_dir=Path()), ask("p")))
    return response.text


def test_without_a_body_the_prompt_is_sent_as_json() -> None:
    response, sent = exchange({})
    assert sent.method == "POST"
    assert sent.json == {"prompt": TRICKY}
    assert response.text == "ok"


def test_a_body_of_data_is_filled_at_any_depth() -> None:
    body = {"q": [{"text": "Q: {{prompt}}"}], "messages": "{{ messages }}", "k": 3}
    _, sent = exchange({"body": body})
    assert sent.json == {
        "q": [{"text": f"Q: {TRICKY}"}],
        "messages": [{"role": "user", "content": TRICKY}],
        "k": 3,
    }


@pytest.mark.parametrize(
    "body",
    ['{"q": "{{ prompt }}"}', '{"q": {{ prompt | dump }}}', '{"q": {{ prompt }}}'],
)
def test_a_body_of_json_text_stays_json_whatever_the_prompt(body: str) -> None:
    _, sent = exchange({"body": body})
    assert sent.json == {"q": TRICKY}
    assert sent.headers["content-type"] == "application/json"


def test_messages_in_json_text_are_a_list() -> None:
    _, sent = exchange({"body": '{"m": {{ messages }}}'})
    assert sent.json == {"m": [{"role": "user", "content": TRICKY}]}


def test_another_text_is_sent_as_text() -> None:
    _, sent = exchange({"body": "Q: {{ prompt }}", "headers": {"Content-Type": "text/x-question"}})
    assert sent.body.decode() == f"Q: {TRICKY}"
    assert sent.headers["content-type"] == "text/x-question"


def test_a_prompt_in_the_address_is_encoded_and_makes_it_a_get() -> None:
    _, sent = exchange({}, path="/ask?q={{ prompt }}", request=ask("a b&c=d"))
    assert (sent.method, sent.path) == ("GET", "/ask?q=a%20b%26c%3Dd")
    assert sent.body == b""


def test_the_tests_variables_go_where_the_config_wants_them() -> None:
    request = ask("p", variables={"user": "a b", "top": 3})
    body = {"q": "{{ prompt }}", "top": "{{ vars.top }}", "who": "I am {{ vars.user }}"}
    _, sent = exchange({"body": body}, path="/ask/{{ vars.user }}", request=request)
    assert sent.path == "/ask/a%20b"
    assert sent.json == {"q": "p", "top": 3, "who": "I am a b"}


@pytest.mark.parametrize("spelling", ["query_params", "queryParams"])
def test_a_parameter_in_either_spelling_leaves_the_method_alone(spelling: str) -> None:
    _, sent = exchange({spelling: {"lang": "en"}})
    assert (sent.method, sent.path, sent.json) == ("POST", "/ask?lang=en", {"prompt": TRICKY})


def test_an_address_beside_a_name_may_ask_by_itself_too() -> None:
    with LoopbackServer(Reply(body="ok")) as server:
        model = provider("https://named.example", {"url": f"{server.url}/ask?q={{{{ prompt }}}}"})
        run(answer(model, ask("a b")))
    assert (server.requests[0].method, server.requests[0].path) == ("GET", "/ask?q=a%20b")


def test_parameters_stand_behind_those_of_the_address() -> None:
    config = {"query_params": {"q": "{{ prompt }}", "n": 5}, "body": {"a": 1}}
    _, sent = exchange(config, path="/ask?lang=en", request=ask("a b&c\ud800"))
    assert (sent.method, sent.path) == ("POST", "/ask?lang=en&q=a+b%26c%3F&n=5")


def test_a_variable_that_is_missing_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ProviderRequestError, match="no variable for"):
        exchange({"body": {"u": "{{ vars.user }}"}})


def test_only_variables_that_are_sent_tell_answers_apart() -> None:
    model = provider("http://x.example/{{ vars.user }}", {"body": {"q": "{{ prompt }}"}})

    def key(**variables: str) -> tuple[str, ...]:
        return choice_keys(model.identity, ask("p", variables=variables))

    assert key(user="a") != key(user="b")
    assert key(user="a", other="1") == key(user="a", other="2")


class _PromptfooSpec(ProviderSpec):
    rules = PROMPTFOO_RULES


@pytest.mark.parametrize(
    "template",
    [
        "{{ user }}",
        "{{ vars.user }}",
        "{{ vars | dump }}",
        "{{ vars['user'] }}",
        "{% for name, value in vars %}{{ name }}={{ value }};{% endfor %}",
        "{{ vars['order-id'] }}",
        "{{ übung }}",
        "{{ [übung, 1] | join }}",
    ],
)
def test_whatever_templates_make_of_variables_tells_answers_apart(template: str) -> None:
    spec = _PromptfooSpec(id="http://x.example", config={"body": {"q": template}})
    model = build_provider(spec, env={}, base_dir=Path())

    def key_and_body(value: str) -> tuple[object, bytes]:
        request = ask("p", variables={"user": value, "order-id": value, "übung": value})
        return choice_keys(model.identity, request), model._call(request).body  # type: ignore[attr-defined]

    (one, sent), (other, sent_next) = key_and_body("a"), key_and_body("b")
    assert sent != sent_next
    assert one != other


def test_a_chat_prompt_is_sent_as_the_json_text_of_its_messages() -> None:
    request = ModelRequest((Message("system", "s"), Message("user", "u")))
    _, sent = exchange({}, request=request)
    assert json.loads(sent.json["prompt"]) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]


@pytest.mark.parametrize(
    ("reply", "path", "text"),
    [
        ({"a": {"b": ["x", "y"]}}, "a.b[1]", "y"),
        ({"a": {"b": ["x", "y"]}}, "json.a.b[-1]", "y"),
        ({"a b": {"c": 1.5}}, "$['a b'].c", "1.5"),
        ({"a": {"b": True}}, "a", '{"b": true}'),
        (["x"], "[0]", "x"),
        ({"answer": "known"}, None, "known"),
        ({"choices": [{"message": {"content": "chat"}}]}, None, "chat"),
        ({"unknown": 1}, None, '{"unknown": 1}'),
        ("plain text", None, "plain text"),
        ('"a JSON string"', None, "a JSON string"),
    ],
)
def test_the_answer_is_taken_from_its_place(reply: Any, path: str | None, text: str) -> None:
    response, _ = exchange({} if path is None else {"response_path": path}, reply)
    assert response.text == text


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("caf\xe9".encode("latin-1"), "text/plain; charset=ISO-8859-1", "caf\xe9"),
        ("\u20ac5".encode("cp1252"), 'text/plain; charset="windows-1252"', "\u20ac5"),
        ("\u3042".encode("shift_jis"), "text/plain; Charset=Shift_JIS", "\u3042"),
        ("caf\xe9".encode("utf-16"), "text/plain; charset=utf-16", "caf\xe9"),
        (b"\xef\xbb\xbfyes", "text/plain", "yes"),
        ('{"output": "caf\xe9"}'.encode("latin-1"), "application/json; charset=latin1", "caf\xe9"),
        ("caf\xe9".encode(), "text/plain; charset=iso-8859-1", "caf\xe9"),  # the header is wrong
        ('{"output": "caf\xe9"}'.encode(), "application/json; charset=iso-8859-1", "caf\xe9"),
        ("caf\xe9".encode(), "text/plain; charset=klingon", "caf\xe9"),
        (b"+AOk-", "text/plain; charset=utf-7", "+AOk-"),
    ],
)
def test_a_text_is_read_in_the_charset_that_the_server_names(
    body: bytes, content_type: str, text: str
) -> None:
    assert said_to(Reply(body=body, headers={"content-type": content_type})) == text


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(204), "sent no answer (HTTP 204)"),
        (Reply(205), "sent no answer (HTTP 205)"),
        (
            Reply(body=b'data: {"a": 1}\n\n', headers={"content-type": "text/event-stream; charset=utf-8"}),
            "sent an event stream instead of an answer",
        ),
        (Reply(body={"status": "failed", "output": "half of"}), "sent an error instead of an answer"),
        (Reply(body=b"", headers={"content-type": "text/plain"}), "sent an answer with an empty body"),
        (
            Reply(body=b" \n", headers={"content-type": "application/json"}),
            "sent an answer with an empty body",
        ),
        (
            Reply(202, body=b"Accepted", headers={"content-type": "text/plain"}),
            "sent no answer yet (HTTP 202)",
        ),
        (Reply(202, body={"job": 7}), "sent no answer yet (HTTP 202)"),
        (
            Reply(
                body=b'{"response":"a"}\n{"response":"b"}\n', headers={"content-type": "application/x-ndjson"}
            ),
            "sent a stream of JSON lines instead of an answer",
        ),
        (
            Reply(body=b'data: {"a": 1}\n\n', headers={"content-type": "text/plain"}),
            "sent an event stream instead of an answer",
        ),
        *(
            (
                Reply(body=body, headers={"content-type": "application/json"}),
                "sent an answer that is not JSON",
            )
            for body in (b'{"output": "half', b'[{"output": 1}', '{"output": "caf\xe9"}'.encode("latin-1"))
        ),
        (
            Reply(body=b"\n<!DOCTYPE html><p>Log in", headers={"content-type": "text/html"}),
            "sent HTML instead",
        ),
        *(
            (Reply(body=body), "sent an error instead of an answer")
            for body in (
                {"errorMessage": "Task timed out after 3.00 seconds"},
                {"errorType": "ImportModuleError", "trace": []},
                {"statusCode": 500, "body": "Internal Server Error"},
                {"status": 429, "message": "slow down"},
                [{"error": {"code": 429}}],
            )
        ),
        (
            Reply(body={"what": "no"}, headers={"x-amz-function-error": "Unhandled"}),
            "sent an error instead of an answer",
        ),
        (
            Reply(body=b'{"title": "no"}', headers={"content-type": "application/problem+json"}),
            "sent an error instead of an answer",
        ),
        *(
            (Reply(body=body), "sent JSON with nothing but `")
            for body in (
                {"status": "queued"},
                {"id": "job-1", "status": "IN_PROGRESS", "created_at": 1, "eta": None},
                {"state": "running", "jobId": 7},
                {"detail": "Not Found"},
                {"message": "Forbidden"},
                {"message": "ok", "data": {}, "errors": [], "success": True},
                {"type": "about:blank", "title": "Bad Gateway", "statusCode": 200},
            )
        ),
    ],
)
def test_what_holds_no_answer_is_an_error(reply: Reply, message: str) -> None:
    with pytest.raises(ProviderResponseError) as caught:
        said_to(reply)
    assert message in str(caught.value)
    is_settled = any(word in message for word in ("stream", "202", "HTML", "nothing but"))
    assert caught.value.is_retryable is not is_settled, "it would come, and be paid for, five times"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(202, body={"answer": "yes"}), "yes"),
        (Reply(body=b"yes", headers={"content-type": "application/json"}), "yes"),
        (Reply(body=b"<p>a part of a page", headers={"content-type": "text/html"}), "<p>a part of a page"),
        (Reply(body=b'{"a": 1}\n{"a": 2}', headers={"content-type": "text/plain"}), '{"a": 1}\n{"a": 2}'),
        (Reply(body={"status": "pending", "action": "refund"}), '{"status": "pending", "action": "refund"}'),
        (Reply(body={"statusCode": 200, "body": "yes"}), '{"statusCode": 200, "body": "yes"}'),
        (Reply(body=[1, 2]), "[1, 2]"),
        *(
            (Reply(body=body), json.dumps(body))
            for body in (
                {"message": {"role": "assistant", "content": "Hi"}},
                {"message": "done", "data": {"city": "Oslo"}},
                {"detail": "blue", "label": "spam"},
                {"id": 1, "type": "refund"},
                {},
            )
        ),
    ],
)
def test_what_may_be_an_answer_is_one(reply: Reply, text: str) -> None:
    assert json_or_text(said_to(reply)) == json_or_text(text)


def test_a_reply_of_remarks_is_an_answer_where_the_hint_says() -> None:
    with pytest.raises(ProviderResponseError) as caught:
        exchange({}, {"status": "done", "message": "Hello"})
    assert caught.value.hint == "if the answer is there, write `response_path: message`"
    assert exchange({"response_path": "message"}, {"status": "done", "message": "Hello"})[0].text == "Hello"


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize("written", ["{{ q }}", "{{ vars['q'] }}", "{{ prompt | upper }}", "a {{q}} b"])
@pytest.mark.parametrize("key", ["id", "url", "headers", "query_params", "body"])
def test_what_is_not_filled_in_is_an_error_before_anything_is_sent(key: str, written: str) -> None:
    address = "http://127.0.0.1:9/ask"
    value: Any = (
        f"{address}?q={written}" if key in ("id", "url") else {"x": [written] if key == "body" else written}
    )
    spec = ProviderSpec(id=value if key == "id" else address, config={} if key == "id" else {key: value})
    [problem] = check_provider(spec, env={}, base_dir=Path())
    assert "would be sent as it is written" in problem.message
    assert ("vars.q" in problem.hint) is (written.strip("ab ") in ("{{ q }}", "{{q}}"))


def test_headers_are_filled_in_and_count_for_the_cache() -> None:
    config = {"headers": {"X-User": "u-{{ vars.user }}"}}
    requests = [ask("p", variables={"user": name}) for name in ("a", "b")]
    _, sent = exchange(config, request=requests[0])
    assert sent.headers["x-user"] == "u-a"
    identity = provider("http://127.0.0.1:9/ask", config).identity
    assert choice_keys(identity, requests[0]) != choice_keys(identity, requests[1])


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("body", ["x=1&q={{ prompt }}&y=2", {"x": "1", "q": "{{ prompt }}", "y": 2}])
@pytest.mark.parametrize("prompt", ["a & b = c + d %41 #", TRICKY, "caf\xe9"])
def test_a_form_holds_the_whole_prompt(body: Any, prompt: str) -> None:
    _, sent = exchange({"headers": FORM, "body": body}, request=ask(prompt))
    assert parse_qs(sent.body.decode()) == {"x": ["1"], "q": [prompt], "y": ["2"]}


def test_xml_stays_xml_whatever_the_prompt() -> None:
    config = {"headers": {"Content-Type": "text/xml"}, "body": "<q>{{ prompt }}</q>"}
    _, sent = exchange(config, request=ask("1 < 2 & 3"))
    assert sent.body == b"<q>1 &lt; 2 &amp; 3</q>"


TROUBLE: list[tuple[dict[str, Any], bool]] = [
    ({"success": False}, True),
    ({"ok": "false"}, True),
    ({"error": {"message": "no"}}, True),
    ({"success": True, "ok": 1, "status": "done", "code": 200, "error_code": "0", "error": None}, False),
]


@pytest.mark.parametrize(("beside", "is_trouble"), TROUBLE)
@pytest.mark.parametrize("path", ["data.answer", None])
def test_a_body_that_tells_of_trouble_holds_no_answer_at_any_place(
    beside: dict[str, Any], path: str | None, is_trouble: bool
) -> None:
    answered = {"data": {"answer": "half of"}} if path else {"answer": "half of"}
    config = {"response_path": path} if path else {}
    if not is_trouble:
        assert exchange(config, {**answered, **beside})[0].text == "half of"
        return
    with pytest.raises(ProviderResponseError, match="an error"):
        exchange(config, {**answered, **beside})


@pytest.mark.parametrize("key", ["success", "ok", "status", "error", "code"])
def test_what_a_path_asks_for_is_the_answer_and_no_trouble(key: str) -> None:
    assert exchange({"response_path": key}, {key: "failed"})[0].text == "failed"


def test_a_path_that_leads_nowhere_names_the_step_and_is_not_asked_for_again() -> None:
    with pytest.raises(ProviderShapeError, match="there is no 'c' in it") as caught:
        exchange({"response_path": "a.c"}, {"a": {"b": 1}})
    assert not caught.value.is_retryable


@pytest.mark.parametrize("status", [302, 404])
def test_a_hint_about_the_address_names_no_key_that_this_provider_lacks(status: int) -> None:
    with LoopbackServer(Reply(status=status)) as server, pytest.raises(ProviderRequestError) as caught:
        run(answer(provider(f"{server.url}/ask", {}, base_dir=Path()), ask("p")))
    assert "check the provider's URL" in caught.value.hint


def identity_key(url: str, **headers: str) -> tuple[str, ...]:
    return choice_keys(provider(url, {"headers": headers}).identity, ask("p"))


def test_whatever_is_sent_tells_answers_apart_secrets_too() -> None:
    here = "http://x.example/a"
    asked = [
        identity_key(here),
        identity_key(f"{here}?max_tokens=5"),
        identity_key(f"{here}?max_tokens=50"),
        identity_key(f"{here}?api_key=alice-0123"),
        identity_key(f"{here}?api_key=bob-0123"),
        identity_key(f"{here}?debug="),
        identity_key("http://alice:pw@x.example/a"),
        identity_key("http://bob:pw@x.example/a"),
        identity_key(here, **{"x-max-tokens": "5"}),
        identity_key(here, **{"x-author": "alice"}),
        identity_key(here, Authorization="Bearer alice-0123"),
        identity_key(here, Authorization="Bearer bob-0123"),
    ]
    assert len(set(asked)) == len(asked)
    assert identity_key(f"{here}?api_key=alice-0123") == asked[3]


def test_secrets_are_in_the_identity_as_hashes_only() -> None:
    headers = {"headers": {"Cookie": "session=hunter2000"}}
    identity = provider("http://me:hunter2001@x.example/a?api_key=hunter2002", headers).identity
    assert "hunter" not in repr(identity)


@pytest.mark.parametrize(
    ("config", "path", "secret"),
    [
        ({"headers": {"Authorization": "Bearer in-a-header-0123"}}, "/a", "in-a-header-0123"),
        ({"headers": {"X-Corp": "in-another-0123"}}, "/a", "in-another-0123"),
        ({"body": {"api_key": "in-the-body-0123"}}, "/a", "in-the-body-0123"),
        ({}, "/a?api_key=in-the-address-0123", "in-the-address-0123"),
        (
            {"sign": {"aws": {"service": "x", "region": "eu-west-1", **SIGNED_BY}}},
            "/a",
            SIGNED_BY["sessionToken"],
        ),
    ],
)
def test_an_answer_that_says_the_request_back_shows_no_secret(
    config: dict[str, Any], path: str, secret: str
) -> None:
    def say_back(body: Any, headers: Mapping[str, str]) -> Reply:
        request = server.requests[-1]
        return Reply(body={"said": f"{request.path} {dict(request.headers)} {body}"})

    with LoopbackServer(respond=say_back) as server:
        model = provider(f"{server.url}{path}", {"response_path": "said", **config}, base_dir=Path())
        [response] = run(answer(model, ask("hi")))
    assert secret in f"{server.requests[0].path} {server.requests[0].headers} {server.requests[0].body}"
    assert "***" in response.text
    assert secret not in response.text


def test_what_is_not_supported_is_reported_as_dropped() -> None:
    response, _ = exchange({}, request=ask(want_logprobs=True, sample_indexes=(0, 1)))
    assert response.dropped == ("logprobs", "n")
    assert len(response.choices) == 1


@pytest.mark.parametrize("path", ["a..b", "a[", "a[x]", "a b", "[0"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        parse_path(path)


@pytest.mark.parametrize("value", [{"a": []}, {"a": {"0": 1}}, {"a": "text"}, {"a": None}, []])
def test_steps_fit_only_their_kind_of_value(value: Any) -> None:
    with pytest.raises(LookupError):
        follow_path(value, parse_path("a[0]"))

"""What models are asked, and how, for what promptfoo configs say about requests."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.calls import ask
from support.code_runs import rows_of
from support.geval_command import Finished, clean_environment, run_geval
from support.loopback import LoopbackServer, RecordedRequest, Reply, chat_reply
from support.promptfoo import NAME, write_files

from geval_cli.errors import ConfigError, Severity
from geval_cli.gateway.cache import choice_keys
from geval_cli.providers.registry import build_provider
from geval_cli.specs.promptfoo import EnvProviderSpec


def answer(body: Any, headers: Mapping[str, str]) -> Reply:
    return chat_reply(f"{body['model']}: {len(body['messages'])}")


def run(
    folder: Path, content: Mapping[str, Any], *options: str
) -> tuple[Finished, list[RecordedRequest], list[Any]]:
    with LoopbackServer(respond=answer) as server:
        text = json.dumps(content).replace("<SERVER>", server.base_url)
        write_files(folder, {NAME: text})
        env = clean_environment(OPENAI_API_KEY="sk-of-all")
        done = run_geval("run", NAME, "-o", "o.json", "--no-progress", *options, cwd=folder, env=env)
        requests = server.requests
    output = folder / "o.json"
    return done, requests, json.loads(output.read_text())["results"] if output.exists() else []


def test_a_chat_that_a_variable_breaks_is_an_error_and_not_sent_as_one_text(tmp_path: Path) -> None:
    prompt = '[{"role": "system", "content": {{x}}}, {"role": "user", "content": "Q"}]'
    content = {
        "providers": [{"id": "openai:a", "config": {"apiBaseUrl": "<SERVER>"}}, "echo"],
        "prompts": [prompt],
        "tests": [{"vars": {"x": '"fine"'}}, {"vars": {"x": '"not "fine""'}}],
    }
    done, requests, rows = run(tmp_path, content)
    assert done.code == 3, done.stderr
    assert [row["output"] for row in rows if row["provider"]["id"] == "openai:a"] == ["a: 2", None]
    assert [len(request.json["messages"]) for request in requests] == [2]
    (said,) = (row["error"]["message"] for row in rows if row["error"])
    assert "starts like a chat, but cannot be read" in said


THINKING = {"type": "enabled", "budget_tokens": 2000}
FOR_CLAUDE: list[tuple[str, str | None, list[tuple[str, str]]]] = [
    ("Hello\n\n  there  \nworld\n", None, [("user", "Hello\nthere\nworld")]),
    (
        "system: Be brief.\nmore\nuser: Hi {{x}}\n\nassistant: Yes?\n  user:  Now\nlast line",
        "Be brief.",
        [("user", "more"), ("user", 'Hi "A"'), ("assistant", "Yes?"), ("user", "Now\nlast line")],
    ),
    ("system: one\nsystem: two\nQ", "two", [("user", "Q")]),
    ("user:\nassistant: a", None, [("user", ""), ("assistant", "a")]),
    ("USER: x\nUser : y", None, [("user", "USER: x\nUser : y")]),
    ("thinking: broken\nuser: Q", None, [("user", "Q")]),
    (f"thinking: {'[' * 20_000}\nuser: Q", None, [("user", "Q")]),
    ("- role: user\n  content: Hi", None, [("user", "- role: user\ncontent: Hi")]),
    (
        '[{"role": "user", "content": {{x}}"}]',
        None,
        [("user", '[{"role": "user", "content": "A""}]')],
    ),
    ("[draft] Write {{x}}", None, [("user", '[draft] Write "A"')]),
    (
        '[{"role": "system", "content": "S"}, {"role": "user", "content": " Q {{x}}\\n\\n"}]',
        "S",
        [("user", ' Q "A"\n\n')],
    ),
    ('{"a": 1}', None, [("user", '{\n"a": 1\n}')]),
]
"""A prompt, and the system text and messages that promptfoo sends Claude for it."""


@pytest.mark.parametrize(("prompt", "system", "messages"), FOR_CLAUDE)
def test_claude_is_sent_a_prompt_by_its_role_lines(
    tmp_path: Path, prompt: str, system: str | None, messages: list[tuple[str, str]]
) -> None:
    (sent,) = _sent_to_claude(tmp_path, prompt)
    assert sent.get("system") == system
    assert [(message["role"], message["content"]) for message in sent["messages"]] == messages


@pytest.mark.parametrize(
    "prompt",
    [
        f"thinking: {json.dumps(THINKING)}\nuser: Q",
        json.dumps([{"role": "user", "content": "Q", "thinking": THINKING}]),
    ],
)
def test_a_prompt_may_say_how_claude_thinks_unless_the_config_does(tmp_path: Path, prompt: str) -> None:
    (sent,) = _sent_to_claude(tmp_path, prompt)
    assert (sent["thinking"], sent["max_tokens"], "temperature" in sent) == (THINKING, 2048, False)
    (sent,) = _sent_to_claude(tmp_path, prompt, thinking={"type": "disabled"})
    assert (sent["thinking"], sent["max_tokens"], sent["temperature"]) == ({"type": "disabled"}, 1024, 0)


def _sent_to_claude(folder: Path, prompt: str, **config: Any) -> list[Any]:
    reply = Reply(body={"content": [{"type": "text", "text": "fine"}], "stop_reason": "end_turn"})
    with LoopbackServer(respond=lambda body, headers: reply) as server:
        own = {"apiBaseUrl": server.url, "apiKey": "sk-x", **config}
        content = {
            "dialect": "promptfoo",
            "providers": [{"id": "anthropic:claude-sonnet-4-5", "config": own}],
            "prompts": [{"raw": prompt}],
            "tests": [{"vars": {"x": '"A"'}, "assert": [{"type": "contains", "value": "fine"}]}],
        }
        (row,) = rows_of(folder, content)
        assert row["status"] == "passed", row
        return [request.json for request in server.requests]


def test_what_claude_is_not_sent_of_a_prompt_is_a_warning(tmp_path: Path) -> None:
    prompts = [
        "One line about {{x}}\n",
        "Two\n\n  paragraphs",
        "system: Be brief\nuser: Q",
        '[{"role": "user"}]',
    ]
    content = {"prompts": prompts, "tests": [{"vars": {"x": "y"}}]}
    for provider in ("anthropic:claude-sonnet-4-5", "openai:gpt-4.1"):
        write_files(tmp_path, {NAME: json.dumps({**content, "providers": [provider]})})
        done = run_geval("validate", NAME, cwd=tmp_path, env=clean_environment(ANTHROPIC_API_KEY="x"))
        said = re.findall(r"Claude does not get the prompt .*?promptfoo: (.*)", done.stdout + done.stderr)
        if provider.startswith("openai"):
            assert said == []
            continue
        assert said == [
            "blank lines are dropped; spaces around lines are dropped",
            "lines that begin with `user:`, `system:` set roles",
        ]


def test_the_responses_api_is_sent_a_text_that_is_no_json_chat_as_it_is(tmp_path: Path) -> None:
    prompts = ["- role: user\n  content: Hi", '[{"role": "user", "content": {{x}}"}]', "user: a\n\n b"]
    reply = {"object": "response", "status": "completed", "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "fine"}]}
    ]}  # fmt: skip
    with LoopbackServer(respond=lambda body, headers: Reply(body=reply)) as server:
        content = {
            "dialect": "promptfoo",
            "providers": [
                {
                    "id": "openai:responses:gpt-4.1",
                    "config": {"apiBaseUrl": server.base_url, "apiKey": "sk-x"},
                }
            ],
            "prompts": [{"raw": prompt, "label": prompt} for prompt in prompts],
            "tests": [{"vars": {"x": '"A"'}, "assert": [{"type": "contains", "value": "fine"}]}],
        }
        rows_of(tmp_path, content)
        sent = {request.json["input"] for request in server.requests}
    assert sent == {prompts[0], prompts[1].replace("{{x}}", '"A"'), prompts[2]}


def test_a_provider_s_own_environment_and_the_parameters_of_a_prompt(tmp_path: Path) -> None:
    own = {"OPENAI_API_KEY": "sk-of-one-alone", "OPENAI_BASE_URL": "<SERVER>"}
    content = {
        "env": {"OPENAI_BASE_URL": "<SERVER>"},
        "providers": [
            {"id": "openai:a", "config": {"temperature": 1, "top_p": 0.5}},
            {"id": "openai:b", "env": own},
        ],
        "prompts": [{"raw": "Hi", "config": {"temperature": 0.25, "max_tokens": 7}}],
        "tests": [{"options": {"max_tokens": 9}}],
    }
    done, requests, _ = run(tmp_path, content)
    assert done.code == 0, done.stderr
    sent = {request.json["model"]: request for request in requests}
    keys = {model: request.headers["authorization"] for model, request in sent.items()}
    assert keys == {"a": "Bearer sk-of-all", "b": "Bearer sk-of-one-alone"}
    assert (sent["a"].json["temperature"], sent["a"].json["top_p"], sent["a"].json["max_tokens"]) == (
        0.25,
        0.5,
        9,
    )
    assert sent["b"].json["temperature"] == 0.25
    written = "".join(path.read_text(errors="replace") for path in tmp_path.glob("o.json"))
    assert "sk-of-one-alone" not in written + done.stdout + done.stderr


def test_messages_keep_their_further_keys(tmp_path: Path) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    chat = [
        {"role": "user", "content": "Add {{x}}", "name": "Ann"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "{{x}}"},
    ]
    content = {
        "env": {"OPENAI_BASE_URL": "<SERVER>"},
        "providers": ["openai:a"],
        "prompts": [json.dumps(chat)],
        "tests": [{"vars": {"x": 1.0}}],
    }
    done, (request,), _ = run(tmp_path, content)
    assert done.code == 0, done.stderr
    assert request.json["messages"] == [
        {"role": "user", "content": "Add 1", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ]


def test_numbers_and_data_are_compared_as_javascript_writes_them(tmp_path: Path) -> None:
    data = {"a": 1.0, "b": [True, None]}
    content = {
        "providers": ["echo"],
        "prompts": ["x"],
        "tests": [
            {
                "providerOutput": data,
                "assert": [
                    {"type": "equals", "value": '{"a":1,"b":[true,null]}'},
                    {"type": "contains", "value": 1.0},
                    {"type": "contains-all", "value": [1.0, "true"]},
                    {"type": "regex", "value": r"^\{.*\}$"},
                    {"type": "assert-set", "assert": [{"type": "not-contains", "value": 2.50}]},
                ],
            },
            {"providerOutput": "2.5\n", "assert": [{"type": "not-regex", "value": r"^2\.5$"}]},
        ],
    }
    done, _, rows = run(tmp_path, content)
    assert done.code == 0, done.stdout + done.stderr
    assert [row["status"] for row in rows] == ["passed", "passed"]


def test_a_config_need_not_be_named(tmp_path: Path) -> None:
    content = {"providers": ["echo"], "prompts": ["x"], "gates": ["errors <= 0"]}
    write_files(tmp_path, {NAME: json.dumps(content)})
    done = run_geval("run", "--no-progress", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert NAME in done.stdout
    write_files(tmp_path, {"gevalconfig.yaml": "providers: [echo]\nprompts: [y]\n"})
    assert "gevalconfig.yaml is valid" in run_geval("validate", cwd=tmp_path).stdout
    (tmp_path / "empty").mkdir()
    lost = run_geval("run", cwd=tmp_path / "empty")
    assert lost.code == 2
    assert "no config given" in lost.stderr


def test_filtered_runs_of_filtering_configs_are_gone_on_with(tmp_path: Path) -> None:
    content = {
        "env": {"OPENAI_BASE_URL": "<SERVER>"},
        "providers": [{"id": "openai:a", "prompts": ["one"]}, "openai:b"],
        "prompts": [{"raw": "1 {{x}}", "label": "one"}, {"raw": "2 {{x}}", "label": "two"}],
        "tests": [
            {"description": "keep 1", "vars": {"x": ["p", "q"]}},
            {"description": "leave", "vars": {"x": "r"}},
            {"description": "keep 2", "vars": {"x": "s"}, "providers": ["openai:b"], "prompts": ["two"]},
            {"description": "keep 3", "vars": {"x": "t"}},
        ],
    }
    options = ("--filter-pattern", "keep", "--repeat", "2")
    with LoopbackServer(respond=answer) as server:
        write_files(tmp_path, {NAME: json.dumps(content).replace("<SERVER>", server.base_url)})
        env = clean_environment(OPENAI_API_KEY="sk-x")
        stopped = run_geval("run", "--max-requests", "9", "--no-progress", *options, cwd=tmp_path, env=env)
        other = run_geval("run", "--resume", "--filter-pattern", "leave", cwd=tmp_path, env=env)
        done = run_geval("run", "--resume", "-o", "o.json", "--no-progress", *options, cwd=tmp_path, env=env)
        asked = [
            (request.json["model"], request.json["messages"][0]["content"]) for request in server.requests
        ]
    assert stopped.code != 0
    assert other.code == 2
    assert "--filter-pattern: keep -> leave" in other.stderr
    assert done.code == 0, done.stderr
    assert " of 20 cases are done" in done.stderr
    pairs = [("a", "one"), ("b", "one"), ("b", "two")]
    wanted = [(model, f"{'1' if name == 'one' else '2'} {x}") for x in "pqt" for model, name in pairs] + [
        ("b", "2 s")
    ]
    assert sorted(asked) == sorted(wanted * 2)
    results = json.loads((tmp_path / "o.json").read_text())["results"]
    assert len({result["id"] for result in results}) == len(results) == 20


def test_derived_metrics_are_shown_for_each_column(tmp_path: Path) -> None:
    content = {
        "providers": [{"id": "echo", "label": "one"}, {"id": "echo", "label": "two", "prompts": ["p"]}],
        "prompts": [{"raw": "{{x}}", "label": "p"}],
        "derivedMetrics": [{"name": "share", "value": "right / __count"}],
        "tests": [
            {
                "vars": {"x": x},
                "providers": names,
                "assert": [{"type": "equals", "value": "a", "metric": "right"}],
            }
            for x, names in (("a", ["one", "two"]), ("b", ["one"]))
        ],
    }
    done, _, _ = run(tmp_path, content, "-o", "o.md", "-o", "o.html")
    assert done.code == 1
    rows = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("share")]
    assert rows == [["share", "one", "0.50"], ["share", "two", "1.00"], ["share", "all", "cases", "0.67"]]
    lines = [line.split("|") for line in (tmp_path / "o.md").read_text().splitlines() if "`share`" in line]
    assert [cells[-2].strip() for cells in lines] == ["0.50", "1.00", "0.67"]
    summary = json.loads((tmp_path / "o.json").read_text())["summary"]
    assert summary["derived_by_column"] == {"share": [0.5, 1.0]}
    texts = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", (tmp_path / "o.html").read_text()))
    assert "share one 0.50 share two 1.00 share all cases 0.67" in texts


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
SCHEMA_FILE = "file://schema.json"


def _json_answer(body: Any, headers: Mapping[str, str]) -> Reply:
    text = '{"name": "Ann"}'
    if "input" in body:
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        return Reply(body={"status": "completed", "model": body["model"], "output": [message]})
    if str(body["model"]).startswith("claude"):
        return Reply(body={"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"})
    return chat_reply(text)


@pytest.mark.parametrize(
    ("provider", "of_provider", "of_prompt", "of_test", "is_data"),
    [
        ("openai:m", {}, {}, {}, False),
        ("openai:m", {"response_format": SCHEMA}, {}, {}, True),
        ("openai:m", {}, {"response_format": SCHEMA}, {}, True),
        ("openai:m", {}, {}, {"response_format": SCHEMA}, True),
        ("openai:chat:m", {"response_format": SCHEMA_FILE}, {}, {}, False),
        ("openai:m", {}, {"response_format": SCHEMA_FILE}, {}, False),
        ("openai:m", {}, {}, {"response_format": SCHEMA_FILE}, False),
        ("openai:m", {"response_format": SCHEMA}, {"response_format": SCHEMA_FILE}, {}, False),
        ("openai:m", {"response_format": SCHEMA_FILE}, {"response_format": SCHEMA}, {}, True),
        ("openai:m", {"response_format": SCHEMA}, {}, {"response_format": {"type": "text"}}, False),
        ("openai:m", {"response_format": {**SCHEMA, "json_schema": "file://inner.json"}}, {}, {}, True),
        ("openai:m", {"response_format": {"type": "json_object"}}, {}, {}, False),
        ("openai:m", {"output_format": SCHEMA}, {}, {}, False),
        ("groq:m", {"response_format": SCHEMA}, {}, {}, True),
        ("mistral:m", {"response_format": SCHEMA}, {}, {}, False),
        ("openai:responses:m", {"response_format": SCHEMA_FILE}, {}, {}, True),
        ("openai:responses:m", {}, {"response_format": SCHEMA_FILE}, {}, True),
        ("openai:responses:m", {}, {}, {"response_format": SCHEMA_FILE}, True),
        ("anthropic:claude-x", {"output_format": SCHEMA_FILE}, {}, {}, True),
        ("anthropic:claude-x", {}, {"output_format": SCHEMA}, {}, True),
        ("anthropic:claude-x", {}, {}, {"response_format": SCHEMA}, False),
    ],
)
def test_answers_that_a_schema_was_asked_for_are_data_where_promptfoo_makes_them_so(
    tmp_path: Path,
    provider: str,
    of_provider: dict[str, Any],
    of_prompt: dict[str, Any],
    of_test: dict[str, Any],
    is_data: bool,
) -> None:
    write_files(
        tmp_path, {"schema.json": json.dumps(SCHEMA), "inner.json": json.dumps(SCHEMA["json_schema"])}
    )
    with LoopbackServer(respond=_json_answer) as server:
        base_url = server.url if provider.startswith("anthropic") else server.base_url
        own = {"base_url": base_url, "api_key": "sk-x", **of_provider}
        content = {
            "dialect": "promptfoo",
            "providers": [{"id": provider, "config": own}],
            "prompts": [{"raw": "Who?", "config": of_prompt}],
            "tests": [{"options": of_test, "assert": [{"type": "contains", "value": "Ann"}]}],
        }
        (row,) = rows_of(tmp_path, content)
        (request,) = server.requests
    assert row["status"] == "passed"
    assert row["output"] == ({"name": "Ann"} if is_data else '{"name": "Ann"}')
    assert SCHEMA_FILE not in json.dumps(request.json)


def test_tools_and_formats_hold_the_tests_variables_and_other_parameters_are_sent_as_written(
    tmp_path: Path,
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "for {{who | upper}} {{n}}"}}]
    shape = {"type": "json_schema", "json_schema": {"name": "{{who}}", "schema": {}}}
    providers: list[dict[str, Any]] = [
        {"id": "openai:a", "config": {"tools": tools, "user": "{{who}}"}},
        {"id": "openai:b", "config": {"tools": "file://tools.json"}},
    ]
    content = {
        "dialect": "promptfoo",
        "providers": providers,
        "prompts": [{"raw": "Hi", "config": {"response_format": shape}}],
        "tests": [{"vars": {"who": "Ann", "n": 1.0}, "assert": [{"type": "contains", "value": "1"}]}],
    }
    write_files(tmp_path, {"tools.json": json.dumps(tools)})
    with LoopbackServer(respond=answer) as server:
        for provider in providers:
            provider["config"] |= {"base_url": server.base_url, "api_key": "sk-x"}
        rows_of(tmp_path, content)
        sent = {request.json["model"]: request.json for request in server.requests}
    told = {name: body["tools"][0]["function"]["description"] for name, body in sent.items()}
    assert told == {"a": "for ANN 1", "b": "for {{who | upper}} {{n}}"}  # a file is sent as it is
    for body in sent.values():
        assert body["response_format"]["json_schema"]["name"] == "Ann"
    assert sent["a"]["user"] == "{{who}}"


VARIABLES = {
    "x": "a b", "num": 5, "obj": {"k": "v"}, "list": [[1, 2]], "yes": "true", "quo": 'say "hi"', "m": "put",
    "nul": None, "y": "Y{{x}}", "up": "{{ x | upper }}", "jsn": '{"a": [1]}',
}  # fmt: skip
CHAT = '[{"role": "user", "content": "hi {{x}}"}]'
MESSAGES = [{"role": "user", "content": "hi a b"}]
JSON_BODY = {"content-type": "application/json"}


def _sent_over_http(folder: Path, provider: Mapping[str, Any], prompt: str = "P {{x}}") -> RecordedRequest:
    with LoopbackServer(Reply(body={"answer": "fine"})) as server:
        content = {
            "dialect": "promptfoo",
            "providers": [json.loads(json.dumps(provider).replace("<SERVER>", server.url))],
            "prompts": [prompt],
            "tests": [{"vars": VARIABLES, "assert": [{"type": "contains", "value": "fine"}]}],
        }
        (row,) = rows_of(folder, content)
        assert row["status"] == "passed", row
        (request,) = server.requests
    return request


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("{{prompt}}", "P a b"),
        ("{{num}}", "5"),
        ("{{obj}}", "[object Object]"),
        ("{{obj | dump}}", {"k": "v"}),
        ("{{obj.k}} {{ x | upper }}", "v A B"),
        ("{{list}}", "1,2"),
        ("{{yes}}", "true"),
        ("{{quo}}", 'say "hi"'),
        ("{{nul}}", ""),
        ("{{missing}}", ""),
        ("{{y}}", "Ya b"),
        ("{{up}}", "{{ x | upper }}"),
        ("{{jsn}}", {"a": [1]}),
        ("n {{jsn}}", 'n {"a": [1]}'),
        ("{% if num > 4 %}[{{num}}]{% endif %}", [5]),
        ("5", "5"),
        ('{"b": 2}', {"b": 2}),
        ("[x", "[x"),
        ("null", "null"),
        ({"{{x}}": {"deep": ["{{num}}", 1.5, None, True]}}, {"{{x}}": {"deep": ["5", 1.5, None, True]}}),
        ("{{messages}}", [{"role": "user", "content": "P a b"}]),
        ("{{vars.num}}", 5),
    ],
)
def test_bodies_of_http_providers_are_templates_and_json_in_them_is_data(
    tmp_path: Path, written: object, sent: object
) -> None:
    provider = {"id": "<SERVER>/ask", "config": {"method": "POST", "body": {"b": [written]}}}
    assert _sent_over_http(tmp_path, provider).json == {"b": [sent]}


def test_a_chat_prompt_in_a_body_is_a_list_of_messages(tmp_path: Path) -> None:
    body = {"messages": "{{prompt}}", "text": "Q: {{prompt}}"}
    provider = {"id": "<SERVER>/ask", "config": {"method": "POST", "body": body}}
    sent = _sent_over_http(tmp_path, provider, CHAT).json
    assert sent["messages"] == MESSAGES
    assert json.loads(sent["text"].removeprefix("Q: ")) == MESSAGES


@pytest.mark.parametrize(
    ("body", "headers", "sent", "content_type"),
    [
        ('{"m": {{prompt | dump}}, "q": "{{x}}"}', JSON_BODY, {"m": "P a b", "q": "a b"}, "application/json"),
        ('{"q": "{{quo}}", "n": {{num}}}', JSON_BODY, {"q": 'say "hi"', "n": 5}, "application/json"),
        ('{"q": "{{quo}}"}', {}, {"q": 'say "hi"'}, "application/json"),
        ("a={{x}}&b={{quo | urlencode}} ", {}, "a=a b&b=say%20%22hi%22", "application/x-www-form-urlencoded"),
        ("<a>{{quo}}</a>", {"Content-Type": "text/xml"}, '<a>say "hi"</a>', "text/xml"),
    ],
)
def test_bodies_that_are_texts(
    tmp_path: Path, body: str, headers: dict[str, str], sent: object, content_type: str
) -> None:
    config = {"method": "POST", "body": body, "headers": headers}
    request = _sent_over_http(tmp_path, {"id": "<SERVER>/ask", "config": config})
    assert (json.loads(request.body) if isinstance(sent, dict) else request.body.decode()) == sent
    assert request.headers["content-type"] == content_type


def test_address_method_headers_and_parameters_are_templates(tmp_path: Path) -> None:
    config = {
        "url": "<SERVER>/{{ x | urlencode }}/{{obj.k}}?a=1&p={{prompt}}",
        "method": "{{m}}",
        "headers": {"X-Y": "{{obj.k}}-{{ x | upper }}{{missing}}", "X-E": "{{ env.FOO | lower }}"},
        "queryParams": {"q": "{{prompt}} &", "b c": "{{num}}"},
        "body": {"a": "{{x}}"},
    }
    request = _sent_over_http(
        tmp_path, {"id": "https", "label": "app", "env": {"FOO": "BAR"}, "config": config}
    )
    assert (request.method, request.path) == ("PUT", "/a%20b/v?a=1&p=P%20a%20b&q=P+a+b+%26&b+c=5")
    assert (request.headers["x-y"], request.headers["x-e"]) == ("v-A B", "bar")


def test_a_get_has_no_body_and_an_address_with_a_template_is_one(tmp_path: Path) -> None:
    request = _sent_over_http(tmp_path, {"id": "<SERVER>/ask?q={{x}}"})
    assert (request.method, request.path, request.body) == ("GET", "/ask?q=a%20b", b"")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"url": "http://x/{{ a b }}"}, "url"),
        ({"method": "{{ m | nofilter }}"}, "method"),
        ({"headers": {"a": "{{ x. }}"}}, "headers"),
        ({"queryParams": {"a": "{{ (x }}"}}, "queryParams"),
        ({"body": {"a": [{"b": "{% if x %}"}]}}, "body"),
    ],
)
def test_a_broken_template_of_a_request_is_told_before_anything_is_sent(
    tmp_path: Path, config: dict[str, Any], key: str
) -> None:
    content = {"dialect": "promptfoo", "providers": [{"id": "http://127.0.0.1:9/", "config": config}]}
    with pytest.raises(ConfigError) as caught:
        rows_of(tmp_path, {**content, "prompts": ["x"], "tests": [{}]})
    (problem,) = (item for item in caught.value.problems if item.severity is Severity.ERROR)
    assert problem.location is not None
    assert key in problem.location.key_path


def test_a_method_that_is_none_is_an_error_of_its_row(tmp_path: Path) -> None:
    provider = {"id": "http://127.0.0.1:9/", "config": {"method": "{{m}}"}}
    test = {"vars": {"m": "NO"}, "assert": [{"type": "contains", "value": "x"}]}
    content = {"dialect": "promptfoo", "providers": [provider], "prompts": ["x"], "tests": [test]}
    (row,) = rows_of(tmp_path, content)
    assert "`NO`" in row["error"]["message"]


def test_only_variables_and_environment_values_that_are_rendered_tell_answers_apart() -> None:
    def keys(variables: dict[str, str], **env: str) -> tuple[str, ...]:
        config = {"headers": {"x": "{{ user | upper }} {{ env.FOO | upper }}"}, "body": "{{prompt}}"}
        spec = EnvProviderSpec(id="http://x.example/", config=config)
        model = build_provider(spec, env=env, base_dir=Path())
        return choice_keys(model.identity, ask("p", variables=variables))

    assert keys({"user": "a"}) == keys({"user": "a", "other": "1"})
    assert len({keys({"user": "a"}), keys({"user": "b"}), keys({"user": "a"}, FOO="x")}) == 3
    assert keys({"user": "a"}, BAR="x") == keys({"user": "a"})


@pytest.mark.parametrize(
    ("reply", "taken", "output"),
    [
        ({"answer": "known", "n": 2.0}, None, {"answer": "known", "n": 2}),
        ({"answer": {"a": 1}}, "json.answer", {"a": 1}),
        ({"answer": {"a": 1}}, "({output: json.answer.a})", 1),
        ({"answer": '{"a": 1}'}, "json.answer", '{"a": 1}'),
        ("plain", None, "plain"),
    ],
)
def test_data_that_an_http_api_answers_with_is_data_also_from_the_cache(
    tmp_path: Path, reply: object, taken: str | None, output: object
) -> None:
    config = {
        "method": "POST",
        "body": {"q": "{{prompt}}"},
        **({"transformResponse": taken} if taken else {}),
    }
    with LoopbackServer(Reply(body=reply)) as server:
        provider = {"id": f"{server.url}/ask", "config": config}
        check = {"type": "javascript", "value": "output !== ''"}
        content = {
            "dialect": "promptfoo",
            "providers": [provider],
            "prompts": ["x"],
            "tests": [{"assert": [check]}],
        }
        rows = [row for _ in range(2) for row in rows_of(tmp_path, content)]
        assert len(server.requests) == 1
    assert [row["output"] for row in rows] == [output] * 2
    assert [row["cached"] for row in rows] == [False, True]

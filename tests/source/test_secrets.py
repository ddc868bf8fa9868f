import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.records import JsonValue
from geval_cli.source.problems import draw_source_line
from geval_cli.source.secrets import (
    environment_secrets,
    header_values,
    is_secret_name,
    is_secret_parameter,
    is_variable_name,
    mask_bare,
    mask_config,
    mask_text,
    secret_values,
    secret_variables,
)
from geval_cli.specs.base import ProviderSpec


@pytest.mark.parametrize(
    "line",
    [
        "apiKey: s3cret",
        "  api_key: 's3cret'",
        'OPENAI_API_KEY="s3cret"',
        '{"x": 1, "authorization": "Basic s3cret"}',
        "headers: {x-api-key: s3cret}",
        "access_token: s3cret",
        "password = s3cret",
        "client-secret: s3cret",
        "Cookie: sid=s3cret",
        "{X-Auth: s3cret}",
        "https://api.example/v1?v=1&api_key=s3cret",
        "https://me:s3cret@api.example/v1",
        "https://api.example/v1?api%5Fkey=s3cret#part",
        "exec:ask --api-key s3cret --short",
        "exec:ask --password='s3cret word'",
        "{{ env.MY_TOKEN | default('s3cret') }}",
        "apiKey: \"{{ env.KEY | default('s3cret') }}\"",
        "api_key: a, b: c, token: s3cret",
        "api_key: [a, s3cret]",
        "auth: [a, {b: s3cret}, s3cret]",
        '"auth": {"user": "me", "more": ["s3cret"], "x": "s3cret"}',
        "{a: 1, credentials: {user: me, id: s3cret}, b: 2}",
        "auth: {user: me, id: s3cret",
        "password: a,s3cret",
        "password: a}s3cret",
    ],
)
def test_values_under_secret_names_are_masked(line: str) -> None:
    assert "s3cret" not in mask_text(line)
    assert "***" in mask_text(line)


@pytest.mark.parametrize(
    "line",
    [
        "api_key_env: OPENAI_API_KEY",
        "max_tokens: 50",
        "tokens_per_minute: 9",
        'apiKey: "{{ env.KEY }}"',
        "Authorization: Bearer {{ env.KEY }}",
        "https://{{ env.USER }}:{{ env.PASSWORD }}@api.example/?api_key={{ env.KEY }}&q={{ prompt }}",
        "https://api.example/v1?max_tokens=5&author=me",
        "an author, a tokenizer and a monkey: all here",
        "a: b",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert mask_text(line) == line


def test_keys_are_recognised_by_their_form_anywhere() -> None:
    assert mask_text("use sk-proj-abcdefgh12345 please") == "use *** please"
    assert mask_text("Authorization: Bearer abcdefgh12345") == "Authorization: ***"


SECRET_TEXTS = {
    "sk-proj-abcdefgh12345": "***",
    "https://me:sk-proj-abcdefgh12345@x.example/": "https://***@x.example/",  # two marks, one in the other
    "https://x.example/?sig=abc&v=1": "https://x.example/?sig=***&v=1",
    "nothing": "nothing",
}


@given(st.lists(st.sampled_from(sorted(SECRET_TEXTS)), max_size=5))
def test_of_several_secrets_in_a_text_each_is_hidden_once(parts: list[str]) -> None:
    assert mask_text(" and ".join(parts)) == " and ".join(SECRET_TEXTS[part] for part in parts)


def test_a_snapshot_keeps_variables_and_references_but_no_literal_keys() -> None:
    config = {
        "providers": [
            {"id": "a", "config": {"apiKey": "x", "token": "{{ env.T }}", "headers": {"x-api-key": "y"}}}
        ],
        "tests": [{"vars": {"token": "a word"}, "metadata": {"password": "p"}}],
    }
    assert mask_config(config) == {
        "providers": [
            {"id": "a", "config": {"apiKey": "***", "token": "{{ env.T }}", "headers": {"x-api-key": "***"}}}
        ],
        "tests": [{"vars": {"token": "a word"}, "metadata": {"password": "p"}}],
    }


def test_every_place_of_a_provider_is_masked_and_prose_is_not() -> None:
    config = {
        "env": {"ANY": "a-key", "PORT": "8080"},
        "prompts": ["Password: say it. See https://x.example/?q=1&token=abc"],
        "providers": [
            "exec:ask --token abc",
            {
                "id": "http://x.example/?sig=abc&v=1",
                "config": {
                    "headers": {"Cookie": "sid=abc", "x-author": "me", "Key": "abc"},
                    "body": {
                        "vars": {"token": "abc"},
                        "auth": {"user": "me"},
                        "max_tokens": 5,
                        "key": "abc",
                        "KEY": "abc",
                        "keys": "abc",
                    },
                },
            },
        ],
        "tests": [{"assert": [{"type": "is-json", "value": {"properties": {"token": {"type": "string"}}}}]}],
    }
    assert mask_config(config) == {
        "env": {"ANY": "***", "PORT": "***"},
        "prompts": ["Password: say it. See https://x.example/?q=1&token=***"],
        "providers": [
            "exec:ask --token ***",
            {
                "id": "http://x.example/?sig=***&v=1",
                "config": {
                    "headers": {"Cookie": "***", "x-author": "me", "Key": "***"},
                    "body": {
                        "vars": {"token": "***"},
                        "auth": {"user": "***"},
                        "max_tokens": 5,
                        "key": "***",
                        "KEY": "***",
                        "keys": "abc",
                    },
                },
            },
        ],
        "tests": config["tests"],
    }


def test_secret_values_are_found_whole_and_in_parts() -> None:
    found = secret_values(
        {
            "id": "https://me:pw99@x.example/?api_key=ghi&v=1",
            "headers": {"authorization": "Bearer abc", "x-team": "blue", "cookie": "sid=0123456789; a=b"},
            "timeout_s": 5,
        }
    )
    assert {"me:pw99", "pw99", "ghi", "Bearer abc", "abc", "0123456789"} <= set(found)
    assert {"blue", "1", "5"}.isdisjoint(found)


HEADERS: list[tuple[str, object, bool]] = [
    ("X-Corp", "c0rp-secret-value", True),
    ("X-Corp", "hunter22", True),
    ("X-Team", "blue", True),
    ("X-Trace", 123456789, True),
    ("X-Api-Key", "on", True),
    ("Code", "on", True),
    ("Content-Type", "application/json", False),
    ("X-Accept", "text/plain; charset=utf-8", False),
    ("X-Debug", "true", False),
    ("X-Debug", True, False),
    ("X-Retries", 3, False),
    ("X-Version", "2024-10-21", False),
    ("X-Version", "v1.2.3", False),
    ("X-Locale", "en-GB", False),
    ("anthropic-beta", "prompt-caching-2024-07-31", False),
    ("User-Agent", "our tests/1.0", False),
    ("X-Corp", "{{ env.CORP }}", False),
    ("X-Corp", "Bearer {{ env.CORP }}", False),
    ("X-Corp", "", False),
]


@pytest.mark.parametrize(("name", "value", "is_hidden"), HEADERS)
@pytest.mark.parametrize("key", ["providers", "provider"])
def test_headers_of_a_provider_are_hidden_in_their_place(
    name: str, value: object, is_hidden: bool, key: str
) -> None:
    shown = {"config": {"headers": {name: "***" if is_hidden and not isinstance(value, bool) else value}}}
    assert mask_config({key: [{"config": {"headers": {name: value}}}]}) == {key: [shown]}  # type: ignore[dict-item]


@pytest.mark.parametrize(("name", "value", "is_hidden"), HEADERS)
@pytest.mark.parametrize(
    ("before", "written"),
    [
        ("", "    headers: {{{}: {}}}"),
        ("", '{{"headers": {{"a": "true", "{}": "{}"}}}}'),
        ("    headers:", "      {}: {}"),
        ("    headers:\n\n      Accept: x\n", "      {}: '{}'"),
        ('  "headers": {', '     "{}": "{}",'),
    ],
)
def test_headers_are_hidden_in_the_source_line_of_a_problem(
    name: str, value: object, is_hidden: bool, before: str, written: str
) -> None:
    line = written.format(name, value)
    shown, _ = draw_source_line(line, column=1, length=1, above=reversed(before.split("\n")))
    assert ("***" in shown) is is_hidden
    assert (str(value) in shown) is not is_hidden


@pytest.mark.parametrize(
    ("above", "line", "shown"),
    [
        ("      apiKey:", "        - zq9-first", "        ***"),
        ("      apiKey:\n        - other", "        - zq9-first", "        ***"),
        ("      apiKey:", "      - zq9-first", "      ***"),
        ("      apiKey: |", "        zq9-first line", "        ***"),
        ("      apiKey: >-\n        other", "        zq9-first", "        ***"),
        ("      auth:", "        user: zq9-first", "        user: ***"),
        ("      auth:\n        more:", "          user: zq9-first", "          user: ***"),
        ('      "auth": {', '        "user": "zq9-first",', '        "user": ***,'),
        ("      auth:", "        user: '{{ env.X }}'", "        user: '{{ env.X }}'"),
        ("      auth:", "        more:", "        more:"),
        ("      auth:\n        user: me\n      body:", "        user: you", "        user: you"),
        ("      api_key_env:", "        - OUR_KEY", "        - OUR_KEY"),
        ("  - id: x\n    token: abc", "    prompt: you", "    prompt: you"),
    ],
)
def test_what_is_in_the_lines_below_a_secret_name_is_hidden(above: str, line: str, shown: str) -> None:
    assert draw_source_line(line, column=1, length=1, above=reversed(above.split("\n")))[0] == shown


def test_what_stands_beside_headers_is_not_hidden() -> None:
    for line, before in (
        ("    model: some-model-4711", ["    headers:"]),
        ("      topic: some-topic-4711", ["    body:", "    headers:"]),
        ("tests: some-tests-4711", ["    headers:"]),
        ("        topic: some-topic-4711", ["      body:", "    headers:"]),
    ):
        assert draw_source_line(line, column=1, length=1, above=before)[0] == line
    schema = {"tests": [{"assert": [{"type": "is-json", "value": {"headers": {"type": "object-4711"}}}]}]}
    assert mask_config(schema) == schema  # type: ignore[arg-type]
    asked = {"properties": {"headers": {"properties": {"topic": {"description": "a topic of 4711"}}}}}
    provider = {"providers": [{"id": "openai:gpt-4.1", "config": {"response_format": asked}}]}
    assert mask_config(provider) == provider  # type: ignore[arg-type]


def test_of_headers_only_what_no_text_holds_by_chance_is_hidden_everywhere() -> None:
    headers = {
        "Accept": "application/json",
        "X-Corp": "c0rp-value",
        "X-Parts": "id=a1b2c3d4; name=production",
        "X-Filled": "{{ env.OUR_CORP_1 }}",
        "Code": "function-4711",
        "X-Both": "id=4711471147; team=search",
        "X-Team": "platform",
        "X-Short": "a1b2c",
        "X-Title-Of-Ours": "Acme Support Assistant",
        "X-Tenant": "acme-insurance.germany",
        "X-Debug": "true",
    }
    found = set(secret_values({"headers": headers}))
    assert found == {
        "c0rp-value",
        "id=a1b2c3d4; name=production",
        "a1b2c3d4",
        "function-4711",
        "id=4711471147; team=search",
        "4711471147",
    }


def test_a_digest_knows_only_keys_by_their_names() -> None:
    config = {"providers": [{"config": {"headers": {"X-Corp": "c0rp-value", "X-Api-Key": "k"}}}]}
    assert mask_config(config, hides_headers=False) == {  # type: ignore[arg-type]
        "providers": [{"config": {"headers": {"X-Corp": "c0rp-value", "X-Api-Key": "***"}}}]
    }


def test_everything_nested_under_a_secret_name_is_a_secret() -> None:
    nested = {"auth": {"user": "first-value", "more": [{"deep": "second-value", "n": 12345678, "on": True}]}}
    assert {"first-value", "second-value", "12345678"} <= set(secret_values(nested))  # type: ignore[arg-type]
    assert mask_config({"providers": [{"config": nested}]}) == {  # type: ignore[dict-item]
        "providers": [
            {"config": {"auth": {"user": "***", "more": [{"deep": "***", "n": "***", "on": True}]}}}
        ]
    }


@pytest.mark.parametrize(
    "name",
    ["MISTRAL_API_KEY", "OPENAI_API_KEY_PROD", "apiKey", "apikey", "X-Auth", "Set-Cookie", "HF_TOKEN", "accesstoken",
     "Ocp-Apim-Subscription-Key", "AWS_SECRET_ACCESS_KEY", "X-Amz-Signature", "Proxy-Authorization", "DB_PASS",
     "AZURE_STORAGE_CONNECTION_STRING", "connectionString", "connectionstring"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["OPENAI_BASE_URL", "api_key_env", "apiKeyEnvar", "max_tokens", "x-author", "x-max-tokens", "token_url",
     "eos_token", "max_token", "minToken", "prompt_cache_key", "tokenizer", "authority",
     "output_key", "inputKey", "memory_key", "RESPONSE_KEY", "prompt-key",
     "PWD", "monkey", "key", "KEY", "key_default", "code", "", "connection_timeout", "query_string"],
)  # fmt: skip
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("value", "is_name"),
    [
        ("OPENAI_API_KEY", True),
        ("my-team-openai-production-key", True),
        ("openai.key.2", True),
        ("KEY_20251128_OF_TEAM_7", True),
        ("{{ env.NAME }}", True),
        ("sk-abcdefgh", False),
        ("0123456789abcdef0123", False),
        ("fw_3ZabCdEfGhIjKlMnOp", False),
        ("11112222-3333-4444-5555-666677778888", False),
        ("", False),
        (7, False),
        (None, False),
    ],
)
def test_a_key_is_no_name_of_a_variable(value: object, is_name: bool) -> None:
    """Written as `api_key_env`, it would be shown as a variable that is not set."""
    assert is_variable_name(value) is is_name
    line = f"    config: {{api_key_env: '{value}', temperature: 0}}"
    assert ("***" in mask_text(line)) is (isinstance(value, str) and not is_name)


def test_in_an_address_more_words_name_keys() -> None:
    assert is_secret_parameter("key")
    assert is_secret_parameter("code")
    assert not is_secret_parameter("max_tokens")


def test_a_provider_shows_itself_without_its_keys() -> None:
    spec = ProviderSpec(id="http://x.example/?api_key=abc&v=1", config={"apiKey": "abc"})
    assert spec.public_id == spec.title == "http://x.example/?api_key=***&v=1"
    assert "abc" not in repr(spec)


@pytest.mark.parametrize(
    "part", ["{{}}", "key: ", "a=", "--token ", "?key=", "://x", '"', "eyJ", "sk-", "{{ env.A | default("]
)
def test_hostile_texts_are_searched_quickly(part: str) -> None:
    assert mask_text(part * 20_000) is not None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('password: "sk-abcdefgh1234 and more words"', "password: ***"),
        ("https://x.example/?token=sk-abcdefgh1234!rest", "https://x.example/?token=***"),
        ("--token sk-abcdefgh1234@tail-of-it", "--token ***"),
    ],
)
def test_a_secret_within_a_secret_does_not_end_it(text: str, shown: str) -> None:
    assert mask_text(text) == shown


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"api_key_env": "CORP_KEY", "model_env": "NAME"}, {"CORP_KEY"}),
        ({"apiKeyEnvar": "CORP_KEY"}, {"CORP_KEY"}),
        ({"api_key_env": ["CORP_KEY"]}, set()),
        ({"apiKey": "{{ env.A }}{{ env.B }}"}, {"A", "B"}),
        ({"apiKey": 12345, "label": "{{ env.L }}"}, set()),
        ({"auth": {"user": ["{{ env.U }}"], "n": 5}}, {"U"}),
        ({"headers": {"X-Corp": "{{ env.H }}"}, "body": {"X-Corp": "{{ env.B }}"}}, {"H"}),
        ({"headers": {"Accept": "{{ env.H }}", "n": 5}}, {"H"}),
        (
            {"url": "https://{{ env.U }}:{{ env.P }}@x.example/{{ env.PATH }}?q={{ env.Q }}&sig={{ env.S }}"},
            {"U", "P", "S"},
        ),
        (["{{ env.L }}"], set()),
    ],
)
def test_variables_that_hold_keys_are_known_by_where_they_are_used(
    config: JsonValue, names: set[str]
) -> None:
    assert set(secret_variables(config)) == names


def test_the_plural_is_a_secret_only_of_some_keys() -> None:
    assert all(is_secret_name(name) for name in ["api_keys", "access_keys", "SECRET_KEYS", "privateKeys"])
    assert not any(is_secret_name(name) for name in ["keys", "arrow_keys", "dictKeys"])


def test_what_is_public_in_an_auth_mapping_is_no_secret() -> None:
    public = {
        "type": "oauth-of-ours-2",
        "grant_type": "a-grant-2",
        "tokenUrl": "https://x.example/2",
        "scope": "read:2-all",
    }
    auth = {**public, "client_secret": "zq9-secret", "user": "zq9-user"}
    assert set(secret_values({"auth": auth})) == {"zq9-secret", "zq9-user"}  # type: ignore[dict-item]


def test_named_parts_of_a_secret_are_secrets_however_short() -> None:
    for written in ('{"user": "me", "pass": "s3cret"}', "{user: me, pass: s3cret}", "user=me;pass=s3cret"):
        assert "s3cret" in secret_values({"api_key": written}) + secret_values([f"x auth: {written}"])


def test_short_parts_of_a_secret_are_no_secrets() -> None:
    """They would be masked wherever they occur in a text."""
    assert set(secret_values({"Cookie": "sid=0123456789; n=1234567"})) == {
        "sid=0123456789; n=1234567",
        "n=1234567",
        "0123456789",
    }


@pytest.mark.parametrize(
    ("value", "secrets", "others"),
    [
        (
            "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=zq9+/abcdef==;EndpointSuffix=core.windows.net",
            {"zq9+/abcdef"},
            {"DefaultEndpointsProtocol", "EndpointSuffix", "core.windows.net"},
        ),
        (
            "Server=tcp:db.acme.example,1433;User ID=administrator;Password=swordfishes;TrustServerCertificate=False;"
            "Authentication=Active Directory Default",
            {"swordfishes"},
            {"administrator", "TrustServerCertificate", "Authentication", "Directory"},
        ),
        ("postgres://me:zq9-password@db.example/x", {"zq9-password"}, {"postgres", "//me", "db.example/x"}),
        (
            '{"type": "service_account", "private_key": "-----BEGIN KEY-----\\nMIIEzq9abc\\nhkiG9zq9\\n-----END",'
            ' "auth_uri": "https://accounts.example/o/oauth2/auth", "universe_domain": "example.com"}',
            {"MIIEzq9abc", "hkiG9zq9"},
            {"service_account", "private_key", "//accounts.example/o/oauth2/auth", "auth_uri", "universe_domain"},
        ),
        ("sid=0123456789; preferences=international", {"0123456789"}, {"preferences", "international"}),
    ],
)  # fmt: skip
def test_words_and_names_in_a_secret_of_parts_are_no_secrets(
    value: str, secrets: set[str], others: set[str]
) -> None:
    """A connection string would remove `core.windows.net` from all answers."""
    for found in (set(secret_values({"api_key": value})), set(environment_secrets({"OUR_SECRET": value}))):
        assert {value, *secrets} <= found
        assert not others & found


@pytest.mark.parametrize(
    "under", ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"]
)
def test_a_schema_may_describe_what_is_called_like_a_secret(under: str) -> None:
    schema = {under: {"Authentication": {"enum": ["service_account_of_ours", "other"]}}}
    config = {"response_format": {"json_schema": {"schema": schema}}}
    assert secret_values(config) == []  # type: ignore[arg-type]
    assert mask_config({"providers": [{"config": config}]}) == {"providers": [{"config": config}]}  # type: ignore[dict-item]


def test_short_values_of_headers_are_hidden_in_their_place_only() -> None:
    assert list(header_values({"X-Corp": "ab12c"})) == []
    assert list(header_values({"X-Corp": "ab12cd"})) == ["ab12cd"]


def test_in_prose_only_what_has_the_form_of_a_key_is_hidden() -> None:
    text = "password: hunter22, but sk-proj-abcdefgh12345 and sk-proj-zyxwvuts98765"
    assert mask_bare(text) == "password: hunter22, but *** and ***"


def test_secrets_in_variables_are_found_among_others() -> None:
    environ = {
        "USE_AUTH": "true",
        "SHORT_KEY": "zq91234",
        "CORP_API_KEY": "zq912345",
        "DB_PASSWORD": "two words-of-zq9",
        "EMAIL": "me:zq9-mailbox@example.org",
        "no_proxy": "localhost,.internal",
        "http_proxy": "me:zq9-proxy@proxy:8080",
        "DATABASE_URL": "postgres://me:zq9-base@db/x",
        "SHORT_URL": "postgres://me:zq9@db/x",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=zq9-abcdefgh, x-team=acme-1234567",
    }
    assert set(environment_secrets(environ)) == {
        "zq912345",
        "two words-of-zq9",
        "words-of-zq9",
        "me:zq9-proxy",
        "zq9-proxy",
        "me:zq9-base",
        "zq9-base",
        "api-key=zq9-abcdefgh, x-team=acme-1234567",
        "zq9-abcdefgh",
        "acme-1234567",
    }


@pytest.mark.parametrize(
    ("written", "shown", "secrets"),
    [
        (
            ["login", "--password", "hunter22", "--user", "me"],
            ["login", "--password", "***", "--user", "me"],
            {"hunter22"},
        ),
        (["--password"], ["--password"], set()),
        (["hunter22", "--password"], ["hunter22", "--password"], set()),
        (["--max-tokens", "12345678"], ["--max-tokens", "12345678"], set()),
        (["--pin-secret", 12345678], ["--pin-secret", "***"], {"12345678"}),
        (["--token", "{{ env.T }}"], ["--token", "{{ env.T }}"], None),
        ([5, "hunter22"], [5, "hunter22"], set()),
        ({"apiKey": None, "token": True}, {"apiKey": None, "token": True}, set()),
        (
            {"apiKey": ["one-key-1", None, 12345678]},
            {"apiKey": ["***", None, "***"]},
            {"one-key-1", "12345678"},
        ),
        (
            {"apiKey": {"value": "one-key-1", "other": False}},
            {"apiKey": {"value": "***", "other": False}},
            {"one-key-1"},
        ),
    ],
)
def test_words_of_a_command_and_values_of_keys_are_hidden(
    written: object, shown: object, secrets: set[str] | None
) -> None:
    config = {"providers": [{"config": {"args": written}}]}
    assert mask_config(config) == {"providers": [{"config": {"args": shown}}]}  # type: ignore[arg-type, comparison-overlap]
    if secrets is not None:
        assert set(secret_values(config)) == secrets  # type: ignore[arg-type]

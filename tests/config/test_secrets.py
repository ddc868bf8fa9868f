import pytest

from geval_cli.config.masking import is_secret_name, mask_snapshot, mask_text


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
        "a: b",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert mask_text(line) == line


def test_keys_are_recognised_by_their_form_anywhere() -> None:
    assert mask_text("use sk-proj-abcdefgh12345 please") == "use *** please"
    assert mask_text("Authorization: Bearer abcdefgh12345") == "Authorization: ***"


def test_a_snapshot_keeps_variables_and_references_but_no_literal_keys() -> None:
    config = {
        "providers": [
            {"id": "a", "config": {"apiKey": "x", "token": "{{ env.T }}", "headers": {"x-api-key": "y"}}}
        ],
        "tests": [{"vars": {"token": "a word"}, "metadata": {"password": "p"}}],
    }
    assert mask_snapshot(config) == {
        "providers": [
            {"id": "a", "config": {"apiKey": "***", "token": "{{ env.T }}", "headers": {"x-api-key": "***"}}}
        ],
        "tests": [{"vars": {"token": "a word"}, "metadata": {"password": "p"}}],
    }


def test_names_of_environment_variables_count() -> None:
    assert is_secret_name("MISTRAL_API_KEY")
    assert not is_secret_name("OPENAI_BASE_URL")

"""A provider's `config`: known keys have types, slips are told before anything is sent, the rest is named and sent."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from geval_cli.errors import Problem, Severity
from geval_cli.extras.aws.bedrock import BATCH_KEYS
from geval_cli.extras.json_schema import OWN_SETTINGS, config_json_schema
from geval_cli.providers.options import ENDPOINT_KEYS
from geval_cli.providers.registry import check_provider
from geval_cli.specs.base import WIRE_SETTINGS
from geval_cli.specs.dialect import Dialect
from geval_cli.suite.load import open_suite

SENDING = ("openai:m", "openai:responses:m", "openai:embedding:m", "anthropic:m", "google:gemini-2.5-flash",
           "vertex:gemini-2.5-flash", "ollama:m", "local:smollm2")  # fmt: skip
UNUSED = ("echo", "https://example.com/{{prompt}}")
CONFIG_LINE = 5


def problems_of(folder: Path, provider: str, config: str, dialect: Dialect = Dialect.GEVAL) -> list[Problem]:
    path = folder / "suite.yaml"
    path.write_text(
        f"prompts: [hi]\nproviders:\n  - id: {provider}\n    config:\n      {config}\ntests: [{{}}]\n",
        encoding="utf-8",
    )
    opened = open_suite(path, env={}, dialect=dialect)
    assert [problem for problem in opened.problems if problem.severity is Severity.ERROR] == []
    (spec,) = opened.suite.providers
    return check_provider(spec, env={}, base_dir=folder)


@pytest.mark.parametrize("provider", [*SENDING, *UNUSED])
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("max_retrys: 0", "max_retries"),
        ("timeout: 5", "timeout_s"),
        ("max_concurency: 5", "max_concurrency"),
        ("request_per_minute: 5", "requests_per_minute"),
    ],
)
def test_a_slip_of_a_limit_is_refused_everywhere(
    tmp_path: Path, provider: str, written: str, meant: str
) -> None:
    (found,) = problems_of(tmp_path, provider, written)

    assert found.severity is Severity.ERROR
    assert found.hint.startswith(f"did you mean `{meant}`?")
    assert found.location is not None
    assert (found.location.line, found.location.column) == (CONFIG_LINE, 7)


@pytest.mark.parametrize("provider", ["openai:m", "anthropic:m", "google:gemini-2.5-flash", "ollama:m"])
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("base_ur: http://x", "base_url"),
        ("api_key_en: KEY", "api_key_env"),
        ("temprature: 1", "temperature"),
        ("maxTokens: 4", "max_tokens"),  # geval sends what is written, and vendors want this
        ("max-tokens: 4", "max_tokens"),
        ("respons_format: {}", "response_format"),
    ],
)
def test_a_slip_of_what_is_sent_is_refused(tmp_path: Path, provider: str, written: str, meant: str) -> None:
    (found,) = problems_of(tmp_path, provider, written)

    assert found.severity is Severity.ERROR
    assert found.hint.startswith(f"did you mean `{meant}`?")
    assert "passthrough" in found.hint


@pytest.mark.parametrize("provider", SENDING)
@pytest.mark.parametrize(
    "written",
    ["temperature: hot", "temperature: -1", "temperature: true", "top_p: 2", "max_tokens: 0", "max_tokens: '4'",
     "seed: 1.5", "stop: 3", "logit_bias: []", "parallel_tool_calls: 'yes'", "timeout_s: soon"],
)  # fmt: skip
def test_known_keys_have_types(tmp_path: Path, provider: str, written: str) -> None:
    found, *_ = problems_of(tmp_path, provider, written)

    name = written.partition(":")[0]
    assert (found.severity, found.message.startswith(f"`{name}` must be ")) == (Severity.ERROR, True)
    assert found.location is not None
    assert (found.location.line, found.location.column) == (CONFIG_LINE, 7 + len(name) + 2)


@pytest.mark.parametrize("provider", SENDING)
def test_unknown_keys_are_sent_with_one_warning_that_names_them(tmp_path: Path, provider: str) -> None:
    (found,) = problems_of(tmp_path, provider, "brand_new_knob: 1\n      wholly_other_thing: {a: b}")

    assert found.severity is Severity.WARNING
    assert "`brand_new_knob`, `wholly_other_thing`" in found.message
    assert "sent as it is" in found.message


@pytest.mark.parametrize("provider", SENDING)
@pytest.mark.parametrize("inner", ["brand_new_knob: 1", "maxTokens: 4", "temperature: hot"])
def test_what_passes_through_is_not_looked_at(tmp_path: Path, provider: str, inner: str) -> None:
    assert problems_of(tmp_path, provider, f"passthrough: {{{inner}}}") == []


@pytest.mark.parametrize("provider", UNUSED)
def test_keys_that_do_nothing_are_named(tmp_path: Path, provider: str) -> None:
    (found,) = problems_of(tmp_path, provider, "brand_new_knob: 1")
    assert (found.severity, "it has no effect" in found.message) == (Severity.WARNING, True)


def test_programs_have_settings_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("def call_api(prompt, options, context): return {'output': 'x'}\n")
    assert problems_of(tmp_path, "python:p.py", "brand_new_knob: 1") == []
    (found,) = problems_of(tmp_path, "python:p.py", "timeout: 1")
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("apiBaseUr: http://x", "did you mean `apiBaseUrl`?"),
        ("maxRetrys: 1", "did you mean `maxRetries`?"),
        ("timeout: 1", "did you mean `timeout_s`?"),
        ("delay: 3000", "next to `id`"),
        ("maxTokens: 4", "did you mean `max_tokens`?"),
        ("temperature: hot", "`temperature` must be a number of at least 0"),
        ("brandNewKnob: 1", "`brandNewKnob` is not sent to this model"),
        ("top_k: 4", "`top_k` is not sent to this model"),
    ],
)
@pytest.mark.parametrize(
    "provider", ["openai:chat:m", "anthropic:m", "mistral:m", "azure:m", "openai:responses:m"]
)
def test_in_promptfoos_dialect_odd_keys_are_warnings(
    tmp_path: Path, provider: str, written: str, said: str
) -> None:
    if (provider, written) == ("anthropic:m", "top_k: 4"):
        return  # which Claude takes
    found = problems_of(tmp_path, provider, written, Dialect.PROMPTFOO)
    assert [problem.severity for problem in found] == [Severity.WARNING]
    assert said in f"{found[0].message} {found[0].hint}"


@pytest.mark.parametrize("name", sorted(WIRE_SETTINGS))
def test_no_known_key_is_taken_for_a_slip(tmp_path: Path, name: str) -> None:
    found = problems_of(tmp_path, "openai:m", f"{name}: null")
    assert found == []


def test_editors_know_the_keys_that_are_checked() -> None:
    shown = {spelling for spellings in OWN_SETTINGS for spelling in spellings}
    checked = {spelling for key in (*ENDPOINT_KEYS, *BATCH_KEYS) for spelling in key.spellings}
    assert shown <= checked
    assert checked - shown == {"account_id", "accountId", "organization", "region"}


@pytest.mark.parametrize(
    ("config", "is_valid"),
    [
        ({"temperature": 0.2, "anything": {"new": 1}}, True),
        ({"temperature": "hot"}, False),
        ({"max_retries": -1}, False),
        ({"base_url": 3}, False),
        ({"price": {"input": 1, "output": 2}}, True),
    ],
)
def test_the_json_schema_types_known_keys(config: dict[str, Any], is_valid: bool) -> None:
    suite = {"prompts": ["hi"], "providers": [{"id": "openai:m", "config": config}], "tests": [{}]}
    assert Draft202012Validator(config_json_schema()).is_valid(suite) is is_valid


COMPAT = Path(__file__).parents[3] / "shared" / "compat" / "configs"


@pytest.mark.skipif(not COMPAT.is_dir(), reason="../shared is not there")
def test_no_config_in_the_wild_is_refused_for_its_settings() -> None:
    refused = []
    for path in sorted(COMPAT.rglob("*.yaml")):
        try:
            value = yaml.safe_load(path.read_text("utf-8"))
        except yaml.YAMLError:
            continue
        if not isinstance(value, dict) or "providers" not in value:
            continue
        opened = open_suite(path, env={}, dialect=Dialect.PROMPTFOO, needs_keys=False)
        for spec in opened.suite.providers:
            found = check_provider(spec, env={}, base_dir=path.parent)
            refused += [
                f"{path.name}: {item.message}"
                for item in found
                if item.severity is Severity.ERROR and "unknown key" in item.message
            ]
    assert refused == []

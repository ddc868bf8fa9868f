"""What is refused before anything is sent because the command line says so."""

from pathlib import Path
from typing import Any

import pytest

from geval_cli.cli.run import RunDisplay, run_configs
from geval_cli.engine import plan
from geval_cli.errors import ConfigError, Severity, UsageError
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.store.state import CacheChoice

SUITE = "prompts: [hello]\nproviders: [echo]\ntests: [{assert: [{type: contains, value: hello}]}]\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE, encoding="utf-8")
    return path


def test_a_grader_that_does_not_exist_is_refused_even_if_nothing_is_to_be_judged(suite: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(suite, {}, grader="nope"))
    assert [problem.message for problem in caught.value.problems] == ["unknown provider `nope`"]


def test_a_grader_that_nothing_uses_needs_no_key(suite: Path) -> None:
    assert prepare(RunRequest(suite, {}, grader="openai:gpt-4.1")).total == 1


JUDGED = """\
prompts: [hello]
providers: [%s]
tests:
  - assert:
      - {type: contains, value: hello}
      - {type: g-eval, criteria: polite%s}
"""


@pytest.mark.parametrize(
    ("answering", "judge", "message", "line", "hint", "notes"),
    [
        (
            "echo",
            "",
            "no judge is set, and the default, openai:gpt-4.1, needs OPENAI_API_KEY",
            6,
            "set `defaultTest.options.provider`, for example local:smollm2",
            (),
        ),
        (
            "echo",
            ", provider: 'mistral:m'",
            "no key for mistral:m: the environment variable MISTRAL_API_KEY is not set",
            6,
            "set MISTRAL_API_KEY, or use another provider",
            ("local:smollm2 runs on this machine and needs no key",),
        ),
        (
            "'mistral:m'",
            ", provider: echo",
            "no key for mistral:m: the environment variable MISTRAL_API_KEY is not set",
            2,
            "set MISTRAL_API_KEY, or use another provider",
            ("local:smollm2 runs on this machine and needs no key",),
        ),
    ],
)
def test_a_missing_key_is_named_with_who_needs_it(
    tmp_path: Path, answering: str, judge: str, message: str, line: int, hint: str, notes: tuple[str, ...]
) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(JUDGED % (answering, judge), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(path, {}))
    [found] = [problem for problem in caught.value.problems if "API_KEY" in problem.message]
    assert found.location is not None
    assert (found.message, found.location.line, found.hint, found.notes) == (message, line, hint, notes)


@pytest.mark.parametrize(
    ("keys", "grader", "is_offered"),
    [
        ("defaultTest: {options: {provider: 'mistral:m'}}\ntests: [{output: x, assert: [A]}]", None, True),
        ("tests: [{output: x, assert: [A]}]", "mistral:m", True),
        ("tests: [{output: x, options: {provider: 'mistral:m'}, assert: [A]}]", None, False),
        ("default_test: {assert: [B]}\ntests: [{output: x}]", None, False),
        ("tests: [{output: x, assert: [{type: assert-set, assert: [B]}]}]", None, False),
    ],
)
def test_grader_is_offered_where_it_replaces_the_judge_that_lacks_a_key(
    tmp_path: Path, keys: str, grader: str | None, is_offered: bool
) -> None:
    judged = "{type: g-eval, criteria: polite}"
    own = "{type: g-eval, criteria: polite, provider: 'mistral:m'}"
    path = tmp_path / "suite.yaml"
    path.write_text(keys.replace("[A]", f"[{judged}]").replace("[B]", f"[{own}]"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(path, {}, grader=grader))
    [found] = caught.value.problems
    assert ("choose another judge with --grader PROVIDER" in found.notes) == is_offered


MISSPELT = """\
promts: ["{{ q }}"]
providres: [echo, nosuch]
test:
  - var: {q: 1}
    asserts:
      - {type: contains, vlaue: 1}
"""


def test_a_misspelt_key_hides_no_mistake_below_it(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(MISSPELT, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(path, {}))
    found = " ".join(problem.message for problem in caught.value.problems)
    for name in ("promts", "providres", "nosuch", "test", "var", "asserts", "vlaue"):
        assert f"`{name}`" in found


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ("", "--filter-pattern matches descriptions, and no test has a description"),
        ("description: a, ", "use a wider filter, or allow it with --allow-empty"),
    ],
)
def test_a_pattern_that_no_test_matches(suite: Path, more: str, hint: str) -> None:
    suite.write_text(SUITE.replace("[{assert", f"[{{{more}assert"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(suite, {}, filter_pattern="zzz"))
    assert [problem.hint for problem in caught.value.problems] == [hint]


def messages_of(request: RunRequest) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        prepare(request)
    return [problem.message for problem in caught.value.problems if problem.severity is Severity.ERROR]


OWN_OUTPUT = """\
providers: [echo]
prompts: ["{{ q }}"]
tests: [{vars: {q: a}, output: b, assert: [{type: equals, value: b}]}]
"""


def test_outputs_are_not_judged_where_a_filter_leaves_no_provider_or_prompt(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(OWN_OUTPUT, encoding="utf-8")
    for key, option in (("providers", "--filter-providers"), ("prompts", "--filter-prompts")):
        filters: dict[str, Any] = {f"filter_{key}": "ecko"}
        (message,) = messages_of(RunRequest(path, {}, **filters))
        assert message == f"no {key[:-1]} of {path} matches {option}, so there is nothing to run"
        assert not prepare(RunRequest(path, {}, allows_empty=True, **filters)).total


def test_a_filter_that_selects_nothing_is_an_error_beside_warnings(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(OWN_OUTPUT.replace("[echo]", "[echo, echo]"), encoding="utf-8")
    assert prepare(RunRequest(path, {})).warnings
    filters: dict[str, Any]
    for filters in ({"filter_pattern": "x"}, {"filter_metadata": (("a", "x"),)}):
        (message,) = messages_of(RunRequest(path, {}, **filters))
        assert "is selected, so there is nothing to run" in message


@pytest.mark.parametrize("key", ["pattern", "providers", "prompts"])
def test_a_filter_that_takes_too_long_is_named(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_PATTERN_TIMEOUT_S", 0.05)
    path, long = tmp_path / "suite.yaml", "a" * 60 + "!"
    named = f"providers: [{{id: echo, label: {long}}}]\nprompts: [{{raw: hello, label: {long}}}]\n"
    path.write_text(f"{named}tests: [{{description: {long}}}]", encoding="utf-8")
    filters: dict[str, Any] = {f"filter_{key}": "^(a|a)*$"}
    with pytest.raises(UsageError, match=r"the filter .* takes more than 0.05 s on `aaaa") as caught:
        prepare(RunRequest(path, {}, **filters))
    assert "simpler pattern" in caught.value.hint


def test_one_run_is_not_gone_on_with_under_several_configs(suite: Path) -> None:
    requests = [RunRequest(suite, {}, resume_from="latest")] * 2
    with pytest.raises(UsageError, match="is for one run, but there are several configs"):
        run_configs(requests, RunDisplay(), home=suite.parent / "state", cache=CacheChoice())
    assert not (suite.parent / "state").exists()


def test_a_log_that_cannot_be_opened_speaks_of_no_results(suite: Path) -> None:
    display = RunDisplay(log_file=suite.parent)
    with pytest.raises(ConfigError) as caught:
        run_configs([RunRequest(suite, {})], display, home=suite.parent / "state", cache=CacheChoice())
    [problem] = caught.value.problems
    assert problem.hint == "choose a writable file"

from pathlib import Path

import pytest
from support.promptfoo import errors_of, load, warnings_of

from geval_cli.engine.plan import Plan
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, JudgesSpec


def providers(folder: Path, value: object, **files: str) -> list[tuple[str, str]]:
    named = {name.replace("__", "."): text for name, text in files.items()}
    suite = load(folder, {"prompts": ["x"], "providers": value}, files=named)
    return [(provider.id, provider.title) for provider in suite.providers]


def test_a_bare_id_is_shown_without_the_mode_of_its_api(tmp_path: Path) -> None:
    assert providers(tmp_path, ["openai:chat:gpt-4.1", "anthropic:messages:claude", "openai:gpt-4.1"]) == [
        ("openai:chat:gpt-4.1", "openai:gpt-4.1"),
        ("anthropic:messages:claude", "anthropic:claude"),
        ("openai:gpt-4.1", "openai:gpt-4.1"),
    ]


def test_mappings_are_shown_by_their_label_or_by_their_id_as_written(tmp_path: Path) -> None:
    value = [
        {"id": "openai:chat:m"},
        {"id": "echo", "label": "E"},
        {"echo": {"id": "mine"}},
        {"echo": {"label": 3}},
    ]
    assert providers(tmp_path, value) == [
        ("openai:chat:m", "openai:chat:m"),
        ("echo", "E"),
        ("echo", "mine"),
        ("echo", "3"),
    ]


def test_targets_is_another_word(tmp_path: Path) -> None:
    suite = load(tmp_path, {"prompts": ["x"], "targets": ["echo"]})
    assert [provider.id for provider in suite.providers] == ["echo"]


def test_a_file_holds_one_provider_or_several(tmp_path: Path) -> None:
    files = {"one__yaml": "id: echo\nlabel: one\n", "two__json": '["echo", {"id": "echo", "label": "two"}]'}
    value = ["file://one.yaml", {"id": "file://one.yaml", "label": "again"}, "file://two.json"]
    assert [title for _, title in providers(tmp_path, value, **files)] == ["one", "again", "echo", "two"]


def test_settings_may_come_from_files(tmp_path: Path) -> None:
    files = {"f.json": '{"schema": "file://s.json"}', "s.json": '{"type": "object"}', "t.txt": "hi\n"}
    config = {"response_format": "file://f.json", "note": "file://t.txt", "template": "file://{{x}}.json"}
    suite = load(tmp_path, {"prompts": ["x"], "providers": [{"id": "echo", "config": config}]}, files=files)
    assert suite.providers[0].config == {
        "response_format": {"schema": {"type": "object"}},
        "note": "hi",
        "template": "file://{{x}}.json",
    }


def test_answers_of_known_vendors_are_priced_by_the_name_of_the_model(tmp_path: Path) -> None:
    price = {"input": 1, "output": 2}
    value = ["openai:m", {"id": "openai:m", "config": {"price": price}}, "echo"]
    suite = load(tmp_path, {"prompts": ["x"], "providers": value})
    assert [provider.config.get("price") for provider in suite.providers] == ["list", price, None]


def test_python_files_keep_their_function(tmp_path: Path) -> None:
    files = {"p__py": "def call_api(prompt): return prompt\n"}
    assert providers(tmp_path, ["file://p.py:ask", "python:p.py"], **files) == [
        ("file://p.py:ask", "file://p.py:ask"),
        ("file://p.py", "python:p.py"),
    ]


def test_a_provider_may_choose_prompts(tmp_path: Path) -> None:
    suite = load(tmp_path, {"prompts": ["x"], "providers": [{"id": "echo", "prompts": ["a"]}]})
    (provider,) = suite.providers
    assert isinstance(provider, FilteredProviderSpec)
    assert provider.prompts == ("a",)


def test_judges_by_kind(tmp_path: Path) -> None:
    judges = {"text": {"id": "openai:t", "config": {"temperature": 0}}, "embedding": "openai:embedding:e"}
    content = {"prompts": ["x"], "providers": ["echo"], "defaultTest": {"options": {"provider": judges}}}
    (case,) = load(tmp_path, content).tests
    judge = case.default_options.provider
    assert isinstance(judge, JudgesSpec)
    assert (judge.id, judge.config["temperature"]) == ("openai:t", 0)
    assert judge.by_kind["embedding"].id == "openai:embedding:e"


def test_the_judge_of_the_default_test_may_stand_beside_its_options(tmp_path: Path) -> None:
    content = {"prompts": ["x"], "providers": ["echo"], "defaultTest": {"provider": "openai:judge"}}
    (case,) = load(tmp_path, content).tests
    assert isinstance(case.default_options.provider, ProviderSpec)
    assert case.default_options.provider.id == "openai:judge"


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("file://p.tsx", "providers in TypeScript are not supported"),
        ("p.ts", "providers in TypeScript are not supported"),
        ("file://p.rb", "providers in `.rb` are not supported"),
        ("file://nothing.yaml", "there is no file"),
        (" ", "a provider's id is empty"),
        (7, "a provider must be text or a mapping"),
        ({"id": "echo", "env": "A=b"}, "`env` must be a mapping of names to text"),
        ({"id": "echo", "config": {"a": "file://nothing.json"}}, "there is no file"),
    ],
)
def test_what_cannot_be_a_provider_is_refused(tmp_path: Path, provider: object, message: str) -> None:
    found = errors_of(tmp_path, {"prompts": ["x"], "providers": [provider]})
    assert len(found) == 1
    assert message in found[0]


def test_what_is_not_used_is_warned_about(tmp_path: Path) -> None:
    provider = {"id": "echo", "delay": 5, "colour": 1, "config": {"functionToolCallbacks": {"f": "x"}}}
    found = warnings_of(tmp_path, {"prompts": ["x"], "providers": [provider]})
    assert len(found) == 2


def test_prompts_of_a_labelled_entry_of_an_id_are_not_used_and_a_warning_says_so(tmp_path: Path) -> None:
    entries = [
        {"echo": {"label": "labelled", "prompts": ["two"]}},
        {"echo": {"id": "renamed", "prompts": ["two"]}},
        {"echo": {"prompts": ["two"]}},
        {"id": "echo", "label": "apart", "prompts": ["two"]},
    ]
    content = {"prompts": [{"raw": "1", "label": "one"}, {"raw": "2", "label": "two"}], "providers": entries}
    asked = [(provider.title, prompt.raw) for provider, prompt in Plan(load(tmp_path, content)).pairs]
    assert asked == [("labelled", "1"), ("labelled", "2"), ("renamed", "2"), ("echo", "2"), ("apart", "2")]
    (warning,) = warnings_of(tmp_path, content)
    assert "`prompts` is not used" in warning

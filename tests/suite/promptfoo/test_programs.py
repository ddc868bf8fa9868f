"""Parts of a promptfoo config that programs make: how they are named, and what is kept for the run."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.promptfoo import load, open_config

from geval_cli.errors import ConfigError, Severity
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.specs.promptfoo import NamedPromptSpec, own_env_of
from geval_cli.suite.trust import code_of_suite, code_of_test

ECHO = {"providers": ["echo"]}
FILES = {"make.py": "def build(context):\n    return 'x'\n", "make.js": "module.exports = () => 'x'"}


def prompts_of(folder: Path, prompts: object, **files: str) -> list[NamedPromptSpec]:
    suite = load(folder, {**ECHO, "prompts": prompts}, files={**FILES, **files})
    return [prompt for prompt in suite.prompts if isinstance(prompt, NamedPromptSpec)]


def test_programs_of_prompts_are_named_with_their_whole_path(tmp_path: Path) -> None:
    found = prompts_of(tmp_path, ["file://make.py:build", "make.js", "exec: ./make.sh 'a b'"])
    assert [(prompt.label, prompt.made_by) for prompt in found] == [
        ("make.py:build", f"file://{tmp_path}/make.py:build"),
        ("make.js", f"file://{tmp_path}/make.js"),
        ("./make.sh 'a b'", "exec:./make.sh 'a b'"),
    ]
    assert found[2].folder == str(tmp_path)


def test_a_wildcard_finds_programs_beside_texts(tmp_path: Path) -> None:
    found = prompts_of(tmp_path, "make.*", **{"make.txt": "plain"})
    assert [(prompt.label, bool(prompt.made_by)) for prompt in found] == [
        ("make.txt: plain", False),
        ("make.py", True),
        ("make.js", True),
    ]


def test_a_label_and_a_config_of_a_prompt_are_kept(tmp_path: Path) -> None:
    prompt = {"id": "file://make.py:build", "label": "built", "config": {"tools": "file://tools.json"}}
    (found,) = prompts_of(tmp_path, [prompt], **{"tools.json": '[{"type": "function"}]'})
    assert found.label == "built"
    assert found.params == {"tools": [{"type": "function"}]}


def test_a_program_that_reads_former_turns_is_known_to(tmp_path: Path) -> None:
    talk = "def build(context):\n    return context['vars']['_conversation']\n"
    found = prompts_of(tmp_path, ["make.py:build", "talk.py:build"], **{"talk.py": talk})
    assert [prompt.sees_conversation for prompt in found] == [False, True]


def test_whatever_runs_code_is_told_to_those_who_do_not_trust_it(tmp_path: Path) -> None:
    content = {
        **ECHO,
        "prompts": ["file://make.py:build"],
        "nunjucksFilters": {"shout": "make.js"},
        "tests": [{"vars": {"x": "file://make.py", "y": ["file://make.js", "plain"]}}],
    }
    suite = load(tmp_path, content, files=FILES)
    assert [part.what for part in code_of_suite(suite)] == ["nunjucksFilters.shout", "make.py:build"]
    told = [[part.what for part in code_of_test(test)] for test in suite.tests]
    assert told == [["vars.x", "vars.y"], ["vars.x"]]


def test_a_text_that_only_mentions_a_program_is_none(tmp_path: Path) -> None:
    (test,) = load(
        tmp_path, {**ECHO, "tests": [{"vars": {"x": "see make.py", "y": "make.py"}}]}, files=FILES
    ).tests
    assert test.promptfoo.made_vars == {}


def test_environment_values_of_one_provider_stay_with_it(tmp_path: Path) -> None:
    content = {
        "env": {"REGION": "eu"},
        "providers": [{"id": "echo", "env": {"PLACE": "{{ env.REGION }}-1", "COUNT": 3}}, "echo:other"],
    }
    suite = load(tmp_path, content)
    assert [own_env_of(provider) for provider in suite.providers] == [{"PLACE": "eu-1", "COUNT": "3"}, {}]
    assert "PLACE" not in suite.env


def test_time_between_requests_is_the_provider_s_own_or_that_of_the_run(tmp_path: Path) -> None:
    content = {
        "evaluateOptions": {"delay": 500},
        "providers": ["openai:a", {"id": "openai:b", "delay": 20}, {"id": "openai:c", "delay": 0}],
    }
    delays = [provider.config["delay_ms"] for provider in load(tmp_path, content).providers]
    assert delays == [500, 20, 0]


def test_files_are_found_beside_a_config_with_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "sub/v.yaml": "a: 1\n",
        "sub/t.yaml": "- vars: {x: file://v.yaml, y: 'file://w*.txt'}\n",
        "sub/w1.txt": "one",
        "sub/w2.txt": "two",
    }
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    opened = open_config(
        Path("sub"), {**ECHO, "tests": "t.yaml"}, files={name[4:]: text for name, text in files.items()}
    )
    assert not opened.problems
    assert [dict(test.vars) for test in opened.suite.tests] == [
        {"x": '{"a":1}', "y": "two"},
        {"x": '{"a":1}', "y": "one"},
    ]


@pytest.mark.parametrize("name", ["p.ts", "p.mts", "p.cts"])
@pytest.mark.parametrize(
    "part",
    [
        {"prompts": ["file://NAME"]},
        {"providers": ["file://NAME"]},
        {"providers": [{"id": "echo", "transform": "file://NAME"}]},
        {"tests": "file://NAME"},
        {"tests": ["file://NAME"]},
        {"tests": [{"vars": {"x": "file://NAME"}}]},
        {"tests": [{"assert": [{"type": "javascript", "value": "file://NAME"}]}]},
        {"tests": [{"options": {"transform": "file://NAME"}}]},
        {"tests": [{"options": {"transformVars": "file://NAME"}}]},
        {"tests": [{"assertScoringFunction": "file://NAME"}]},
        {"nunjucksFilters": {"f": "NAME"}},
    ],
)
def test_typescript_is_refused_with_what_to_do_wherever_code_may_stand(
    part: dict[str, Any], name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("export default (text: string): boolean => true;\n", encoding="utf-8")
    content = {"prompts": ["{{x}}"], "providers": ["echo"], "tests": [{"vars": {"x": "a"}}], **part}
    config = tmp_path / "promptfooconfig.yaml"
    config.write_text(json.dumps(content).replace("NAME", name), encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        prepare(RunRequest(config, {}))
    [problem] = [item for item in raised.value.problems if item.severity is Severity.ERROR]
    assert "TypeScript" in problem.message
    assert name in problem.message
    assert "compile it to JavaScript" in problem.hint
    assert problem.location is not None

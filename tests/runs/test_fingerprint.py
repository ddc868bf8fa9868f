import json
from pathlib import Path
from typing import Any

import pytest

from geval_cli.errors import UsageError
from geval_cli.extras.web.live_runs import options_of
from geval_cli.runs.options import RunOptions, declared_options
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import GIVEN, REPEATED, changes, deciding_options
from geval_cli.specs.dialect import Dialect


def said(before: Any, now: Any, **parts: Any) -> list[str]:
    """What is said of two configs, and of further parts as (before, now)."""
    first = {"suite": {}, **{name: pair[0] for name, pair in parts.items()}}
    second = {"suite": {}, **{name: pair[1] for name, pair in parts.items()}}
    return changes(first, second, before, now)


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        ({"a": 1}, {"a": 1.5}, ["a: 1 -> 1.5"]),
        ({"a": None}, {}, ["a: null -> nothing"]),
        ({}, {"a": {"b": "é"}}, ['a: nothing -> {"b": "é"}']),
        (
            {"tests": [{"vars": {"x": "a"}}]},
            {"tests": [{"vars": {"x": "b"}}]},
            ['tests/0/vars/x: "a" -> "b"'],
        ),
        ({"tests": [1, 2]}, {"tests": [1, 2, 3]}, ["tests: 2 -> 3 entries"]),
        ({"a": "x" * 100}, {"a": 0}, ['a: "' + "x" * 56 + "... -> 0"]),
        ({"password": "one"}, {"password": "two"}, ["password: *** -> ***"]),
        ({"note": "sk-abcdefgh1234"}, {"note": ""}, ['note: "***" -> ""']),
        ({"a": "x" * 58}, {"a": 0}, ['a: "' + "x" * 58 + '" -> 0']),
        ({"a": "xy"}, {"a": ["x", "z"]}, ['a: "xy" -> ["x", "z"]']),
        ({"a": ["x", "z"]}, {"a": "xy"}, ['a: ["x", "z"] -> "xy"']),
        ({"a": {"b": 1}}, {"a": [1]}, ['a: {"b": 1} -> [1]']),
        ({"a": [True]}, {"a": [True]}, []),
    ],
)
def test_a_changed_config_is_told_place_by_place(before: Any, now: Any, lines: list[str]) -> None:
    assert said(before, now) == lines


def test_options_and_variables_are_told_by_their_names() -> None:
    lines = said(
        {},
        {},
        options=({"--grader": None, "--repeat": 1}, {"--grader": "echo", "--repeat": 3}),
        vars=({"a": "1"}, {"b": "2"}),
    )
    assert lines == [
        "--grader: not given -> echo",
        "--repeat: 1 -> 3",
        '--var a: "1" -> nothing',
        '--var b: nothing -> "2"',
    ]


def test_the_options_of_a_run_are_found_again_in_its_fingerprint() -> None:
    request = RunRequest(
        Path("a.yaml"),
        {},
        repeats=3,
        grader="echo",
        samples=5,
        filter_pattern="x",
        filter_metadata=(("area", "billing"), ("formula", "a=b=c")),
        variables={"city": "Rome"},
        dialect=Dialect.PROMPTFOO,
    )
    kept = {"options": deciding_options(request, {"repeats": 3}), "vars": dict(request.variables)}
    found = options_of(json.loads(json.dumps(kept)))
    for field, option in declared_options(RunOptions):
        if option.decides_results:
            assert getattr(found, field.name) == getattr(request, field.name), field.name
    assert type(found.dialect) is Dialect
    assert options_of({}) == RunOptions()


OF_ONE_TERMINAL = {
    *("outputs", "is_verbose", "shows_progress", "log_file", "otel", "tags", "plan", "watch", "waits"),
    *("workers", "ray", "env_file", "resume_latest", "resume_from", "retry_errors", "cache_folder", "home"),
}
"""Options that a repeated run does without: they change neither its results and verdict nor what it may cost."""


def test_a_repeated_run_has_every_option_that_its_results_verdict_and_cost_depend_on() -> None:
    options = dict(declared_options(RunOptions))
    deciding = {field.name for field, option in options.items() if option.decides_results}
    assert deciding | set(REPEATED) | OF_ONE_TERMINAL == {field.name for field in options}
    assert not set(REPEATED) & (deciding | OF_ONE_TERMINAL)
    given = {name: getattr(RunOptions(), name) for name in REPEATED}
    assert options_of({GIVEN: given}) == RunOptions()
    chosen = {"fail_under": 0.9, "margins": ("score=0.1", "0.05"), "max_cost": 0.5, "max_requests": 0}
    chosen |= {"baseline": "latest", "reads_cache": False, "is_offline": True, "batch": True}
    found = options_of(json.loads(json.dumps({GIVEN: {**given, **chosen}})))
    assert found == RunOptions(**chosen)
    assert options_of({GIVEN: {"an option that is gone": 1}}) == RunOptions()


def test_a_run_of_several_configs_is_not_repeated_as_one_of_the_first() -> None:
    with pytest.raises(UsageError, match="merged several configs"):
        options_of({GIVEN: {"merge": True}})


@pytest.mark.parametrize("chosen", [{"failing": ("a test",)}, {"only": (0, 2)}], ids=["failing", "by number"])
def test_tests_of_which_only_a_hash_is_kept_are_not_guessed(chosen: dict[str, Any]) -> None:
    kept = deciding_options(RunRequest(Path("a.yaml"), {}, **chosen), {})
    with pytest.raises(UsageError, match="which ones was not recorded"):
        options_of({"options": kept})


def test_files_are_told_by_their_names() -> None:
    before = {"file: a.txt": "1", "file: b.txt": "1", "file: ...": "1"}
    now = {"file: a.txt": "2", "file: c.txt": "1", "file: ...": "2"}
    assert said({}, {}, suite=(before, now)) == [
        "file a.txt: its content",
        "file b.txt: no longer used",
        "files used by the tests: their content",
        "file c.txt: now used",
    ]


@pytest.mark.parametrize(("part", "name"), [("config: prompts", "prompts"), ("tests", "tests")])
def test_a_value_from_the_environment_is_told_without_showing_it(part: str, name: str) -> None:
    changed = ({part: "1"}, {part: "2"})
    assert said({"a": 1}, {"a": 1}, suite=changed) == [
        f"{name}: a value that comes from the environment or from another file"
    ]
    assert said({"a": 1}, {"a": 2}, suite=changed) == ["a: 1 -> 2"]


def test_parts_that_are_equal_are_not_told() -> None:
    parts = [json.loads('{"file: a.txt": ["same hash"], "config: tests": ["same hash"]}') for _ in range(2)]
    assert said({}, {}, suite=tuple(parts)) == []


def test_a_part_without_words_of_its_own_is_told_by_its_name() -> None:
    assert said({}, {}, suite=({"strict": "1"}, {"strict": "2"})) == ["strict"]
    assert said({}, {}, suite=({"vars": "1"}, {"vars": "2"})) == []


def asked(**options: Any) -> RunRequest:
    return RunRequest(Path("suite.yaml"), {}, **options)


def test_options_tell_apart_whatever_selects_other_tests() -> None:
    requests = [
        asked(),
        asked(failing=frozenset()),
        asked(failing=frozenset({"a"})),
        asked(failing=frozenset({"b"})),
        asked(failing=frozenset({"a", "b"})),
        asked(filter_sample=3),
        asked(filter_sample=3, seed=1),
        asked(filter_sample=4),
        asked(filter_first=3),
        asked(filter_first=0),
        asked(filter_pattern="a"),
        asked(filter_metadata=(("a", "1"),)),
        asked(filter_providers="a"),
        asked(filter_prompts="a"),
    ]
    written = [repr(deciding_options(request, {})) for request in requests]
    assert len(set(written)) == len(requests)
    assert [request.selection.selects_all for request in requests] == [True] + [False] * (len(requests) - 1)
    assert deciding_options(asked(seed=5), {}) == deciding_options(asked(), {})
    (first, second) = (asked(failing=frozenset(text)) for text in ("abc", "cab"))
    assert deciding_options(first, {}) == deciding_options(second, {})


def test_options_are_written_as_stored_runs_have_them() -> None:
    always = {"--grader": None, "--scoring": None, "--samples": None, "--repeat": 1, "--dialect": "geval"}
    found = {"repeats": 1, "dialect": "geval"}
    assert list(deciding_options(asked(), found).items()) == list(always.items())
    everything = asked(
        grader="echo",
        scoring="samples",
        samples=3,
        filter_providers="a",
        filter_prompts="b",
        filter_pattern="c",
        filter_metadata=(("area", "billing"), ("x", "1=2")),
        filter_failing="latest",
        failing=frozenset("ab"),
        filter_first=0,
        filter_sample=2,
    )
    assert list(deciding_options(everything, found).items()) == [
        ("--grader", "echo"),
        ("--scoring", "samples"),
        ("--samples", 3),
        ("--repeat", 1),
        ("--dialect", "geval"),
        ("--filter-providers", "a"),
        ("--filter-prompts", "b"),
        ("--filter-pattern", "c"),
        ("--filter-metadata", ["area=billing", "x=1=2"]),
        ("--filter-failing", "7e18f737311b2dc3"),
        ("--filter-first-n", 0),
        ("--filter-sample", 2),
        ("--seed", 0),
    ]


def test_prompts_of_the_judge_that_another_version_wrote_are_named() -> None:
    told = said({"a": 1}, {"a": 1}, judge_prompts=("old", "new"))
    assert told == ["the judge's prompts: another version of geval wrote them"]

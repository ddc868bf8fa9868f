"""What is exported and imported again is the same suite."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Struct
from support.suites import load_suite

from geval_cli.errors import ConfigError
from geval_cli.extras.export import read_portable_suite
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import Spec, spellings
from geval_cli.suite.schema import SuiteSpec

ENV = {"CITY": "Rome", "MODEL": "openai:gpt-4o"}
VALID = Path(__file__).parent / "valid"
EXAMPLES = Path(__file__).parents[2] / "examples/configs"
CONFIGS = sorted(
    path
    for path in (*VALID.iterdir(), *EXAMPLES.iterdir())
    if path.suffix == ".yaml" or path.name == "suite.json"
    if path.name not in ("images.yaml", "tools.yaml")  # files become data URLs; functions stay where they are
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30).filter(
    lambda text: not text.startswith("file://") and "env." not in text
)
WORDS = TEXTS.filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
MAPPINGS = st.dictionaries(TEXTS, JSON, max_size=3)
SCHEMAS = MAPPINGS | st.booleans() | MAPPINGS.map(json.dumps) | st.just("") | st.none()
PARSING = st.sampled_from(["strict", "tolerant"])
MODES = {
    "evaluation_mode": st.sampled_from(["llm", "schema"]),
    "evaluation_criteria": TEXTS | st.none(),
    "evaluation_parsing": PARSING,
    "expected_schema": MAPPINGS | MAPPINGS.map(json.dumps) | st.none(),
}
PROMPTS = st.one_of(
    TEXTS,
    *(
        st.fixed_dictionaries({name: body}, optional={"label": WORDS, **MODES})
        for name, body in {
            "raw": TEXTS,
            "system": TEXTS,
            "messages": st.lists(
                st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXTS}),
                min_size=1,
                max_size=2,
            ),
        }.items()
    ),
)
ASSERTIONS = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["contains", "not-equals"]), "value": TEXTS}),
    st.fixed_dictionaries({"type": st.just("is-json")}, optional={"value": SCHEMAS, "weight": st.floats(0, 9)}),
    st.fixed_dictionaries(
        {"type": st.just("g-eval"), "criteria": TEXTS | st.lists(TEXTS, max_size=2)},
        optional={
            "evaluation_steps": st.lists(TEXTS, max_size=2),
            "rubric": st.just({"0": "bad", "10": "good"}) | st.just([{"score_range": [1, 4], "expected_outcome": "x"}]),
            "provider": st.just("openai:gpt-4.1") | st.just({"id": "local:smollm2", "config": {"temperature": 0}}),
            "rubricPrompt": TEXTS | st.just({"steps": "s", "evaluate": "e"}),
            "score_range": st.just([1, 5]),
        },
    ),
)  # fmt: skip
TESTS = st.fixed_dictionaries(
    {},
    optional={
        "description": TEXTS,
        "vars": st.dictionaries(TEXTS, JSON, max_size=3),
        "input": TEXTS,
        "output": JSON.filter(lambda value: value is not None),
        "expected_output": TEXTS,
        "context": TEXTS | st.lists(TEXTS, max_size=2),
        "evaluation_schema": SCHEMAS,
        "evaluation_parsing": PARSING,
        "assert": st.lists(ASSERTIONS, max_size=2),
        "threshold": st.floats(0, 1),
        "options": st.fixed_dictionaries(
            {}, optional={"scoring": st.just("single"), "provider": st.just("echo")}
        ),
        "metadata": MAPPINGS,
    },
)
SUITES = st.fixed_dictionaries(
    {"tests": st.lists(TESTS, min_size=1, max_size=3)},
    optional={
        "description": TEXTS,
        "prompts": st.lists(PROMPTS, min_size=1, max_size=3) | PROMPTS,
        "providers": st.just(["echo", {"id": "openai:gpt-4.1", "label": "big", "config": {"n": 1}}]),
        "defaultTest": TESTS,
        "options": st.just({"maxConcurrency": 3}),
        "env": st.dictionaries(st.sampled_from(["A", "B"]), TEXTS, max_size=2),
    },
)


def suite_in(path: Path) -> Any:
    """All that a run takes from a config, without places and file names."""
    suite = load_suite(path, env=ENV)
    parts = (suite.description, suite.prompts, suite.providers, suite.options, list(suite.tests), suite.env)
    gates = [gate.text for gate in suite.gates]
    named = (suite.baseline and suite.baseline.name, suite.labels and suite.labels.path.name)
    return plain((*parts, gates, suite.derived_metrics, suite.margins, suite.tags, named))


def plain(value: object) -> Any:
    if isinstance(value, Spec):
        return {"is": type(value).__name__, **plain(value.model_dump(exclude={"place"}))}
    if isinstance(value, Struct):
        names = set(value.__struct_fields__) - {"place", "schema_place"}
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if key != "place"}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return repr(value)


def passed_on(config: Path, folder: Path) -> Path:
    """The config after an export and an import."""
    exported, imported = folder / "passed-on.json", folder / "passed-on.yaml"
    exported.write_text(read_portable_suite(config, env=ENV).to_json(), encoding="utf-8")
    again = read_portable_suite(exported, env=ENV)
    imported.write_text(again.to_yaml(), encoding="utf-8")
    assert read_portable_suite(imported, env=ENV).content == again.content
    return imported


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(SUITES)
def test_a_round_trip_loses_nothing(suite: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "config.json"
        config.write_text(json.dumps(suite), encoding="utf-8")
        assert suite_in(passed_on(config, Path(name))) == suite_in(config)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_every_form_of_a_config_survives_the_round_trip(config: Path, tmp_path: Path) -> None:
    assert suite_in(passed_on(config, tmp_path)) == suite_in(config)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_what_is_exported_is_a_config_for_editors_too(config: Path, tmp_path: Path) -> None:
    imported = passed_on(config, tmp_path).read_text(encoding="utf-8")
    Draft202012Validator(config_json_schema()).validate(read_yaml(imported, "x").value)


def test_a_suite_whose_tools_are_functions_is_not_exported() -> None:
    with pytest.raises(ConfigError) as caught:
        read_portable_suite(EXAMPLES / "tools.yaml", env=ENV)
    [problem] = caught.value.problems
    assert (problem.message, problem.hint) == (
        "functions are not read here: `tea_shop.py`",
        "use `definitions`",
    )


EVERY_KEY = """
$schema: ./gevalconfig.schema.json
description: all keys
tags: {team: a, n: 1}
dialect: geval
env: {A: b}
prompts: [a]
providers: ["openai:gpt-4.1"]
defaultTest: {threshold: 0.5}
tests: [{input: x, tools: {definitions: file://tools.json, recorded: [{name: add, result: null}]}}]
tools:
  definitions: [{type: function, function: {name: add, parameters: {type: object}}}]
  simulate: {provider: "openai:gpt-4.1", world: "{{ input }}"}
  recorded: [{name: add, args: {a: 1}, result: {sum: 2}}, {name: add, error: no}]
  max_calls: 3
profiles: [calm, {mood: angry}]
options: {max_concurrency: 2}
derived_metrics: [{name: double, value: m * 2}]
baseline: "openai:gpt-4.1"
margin: {pass_rate: 0.02}
gates: [pass_rate >= 90%, errors <= 0]
calibration: file://judge.cal.json
labels: labels.jsonl
anchors: judge.anchors.json
"""


def test_every_key_of_a_config_is_exported(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    raw = read_yaml(EVERY_KEY, "config.yaml").value
    assert {spellings(SuiteSpec)[key] for key in raw} == set(SuiteSpec.model_fields) - {"place"}
    text = EVERY_KEY.replace("calibration: file://judge.cal.json\n", "")  # which has to be there
    config.write_text(text, encoding="utf-8")
    (tmp_path / "tools.json").write_text('[{"name": "add", "input_schema": {"type": "object"}}]', "utf-8")

    content = exported(tmp_path, text)

    assert suite_in(passed_on(config, tmp_path)) == suite_in(config)
    assert content.keys() == {*raw} - {"tools", "calibration", "derived_metrics"} | {"derivedMetrics"}
    assert content["gates"] == ["pass_rate >= 90%", "errors <= 0"]
    assert content["defaultTest"]["tools"]["simulate"]["world"] == "{{ input }}"
    warned = [problem.message for problem in read_portable_suite(config, env=ENV).warnings]
    assert [message.split("`")[1] for message in warned] == ["labels.jsonl", "judge.anchors.json"]


def exported(tmp_path: Path, config: str, **files: str) -> dict[str, Any]:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = tmp_path / "config.yaml"
    path.write_text(config, encoding="utf-8")
    return json.loads(read_portable_suite(path, env=ENV).to_json())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "assertion",
    [
        "{type: g-eval, criteria: x, provider: [echo, {id: 'openai:gpt-4.1', label: big}], jury: {combine: median}}",
        "{type: g-eval, dimension: fluency, provider: [echo, 'openai:gpt-4.1']}",
        "{type: g-eval, dimensions: [relevance, {dimension: fluency, threshold: 0.6}], threshold: 0.7}",
        "{type: g-eval, dimensions: [{dimension: fluency, threshold: 0.6}, relevance], threshold: 0.7}",
        "{type: g-eval, dimensions: [{dimension: fluency, threshold: 0.6}, relevance], weight: 2}",
        "{type: not-g-eval, dimensions: [relevance, fluency], metric: x, provider: [echo, 'openai:gpt-4.1']}",
        "{type: g-eval, dimensions: [{dimension: fluency, threshold: 0}, {dimension: relevance, threshold: 1}]}",
        "{type: assert-set, assert: [{type: g-eval, dimensions: [relevance, fluency]}]}",
        "{type: g-eval, checklist: [a, {item: b, weight: 0, required: true, evidence: false}], samples: {upto: 4}}",
        "{type: g-eval, criteria: x, over: answers, window: 3}",
        "{type: pairwise, criteria: x, against: all}",
        "{type: 'trajectory:tool-sequence', value: {steps: [a, {name: b}], mode: exact}}",
        "{type: 'trajectory:tool-args-match', value: {name: a, args: {b: [1, null]}, ignore: c}}",
        "{type: trace-error-spans}",
    ],
)
def test_an_assertion_of_every_form_is_exported_as_it_is_written(assertion: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    two = f"[{assertion}, {assertion}]"
    test = f"{{turns: [{{user: a}}], trace: [{{name: a, output: null}}], assert: {two}}}"
    config.write_text(f"tests: [{test}]\n", encoding="utf-8")
    assert suite_in(passed_on(config, tmp_path)) == suite_in(config)


def test_prompts_and_test_cases_carry_what_evaluates_them(tmp_path: Path) -> None:
    suite = exported(
        tmp_path,
        "prompts: [{system: s, evaluationMode: llm, evaluationCriteria: Good.}, {system: t, evaluation_mode: schema}]\n"
        "tests: [{input: a, evaluationSchema: '{}'}, {input: b, evaluation_schema: {type: object}}]\n",
    )
    assert suite["prompts"] == [
        {"system": "s", "evaluation_mode": "llm", "evaluation_criteria": "Good."},
        {"system": "t", "evaluation_mode": "schema"},
    ]
    assert suite["tests"] == [
        {"input": "a", "evaluation_schema": "{}"},
        {"input": "b", "evaluation_schema": {"type": "object"}},
    ]


def test_files_are_put_in(tmp_path: Path) -> None:
    suite = exported(
        tmp_path,
        "prompts: [{raw: file://ask, evaluation_criteria: file://good}]\ntests: file://tests.jsonl\n",
        ask="Say {{ x }}.\n",
        good="It is good.\n",
        schema='{"type": "object"}',
        **{"tests.jsonl": '{"vars": {"x": "file://ask"}, "evaluation_schema": "file://schema"}\n'},
    )
    assert suite["prompts"] == [{"raw": "Say {{ x }}.", "evaluation_criteria": "It is good."}]
    assert suite["tests"] == [{"vars": {"x": "Say {{ x }}."}, "evaluation_schema": {"type": "object"}}]


def test_values_of_this_machine_stay_at_home(tmp_path: Path) -> None:
    suite = exported(
        tmp_path,
        "prompts: ['{{ env.CITY }}']\nproviders: ['{{ env.MODEL }}']\ntests: [{input: 'file://{{ env.CITY }}'}]\n",
        Rome="a text",
    )
    assert (suite["prompts"], suite["providers"]) == (
        [{"raw": "{{ env.CITY }}"}],
        [{"id": "{{ env.MODEL }}"}],
    )
    assert suite["tests"] == [{"input": "a text"}]


PLAIN = """{{ env.HOME }}, {{env.KEY | default('it\\'s "a\\\\b"')}} and {{ env.HOME }}"""
ESCAPED = json.dumps(PLAIN).replace("env.", r"env\u002e")


def _write_table(folder: Path) -> str:
    cell = PLAIN.replace('"', '""')
    (folder / "t.csv").write_text(f'q,metadata.m\n"{cell}","{cell}"\n', encoding="utf-8")
    return "file://t.csv"


def _write_parquet(folder: Path) -> str:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"q": [PLAIN], "metadata.m": [PLAIN]}), folder / "t.parquet")
    return "file://t.parquet"


def _write_lines(folder: Path) -> str:
    line = f'{{"vars": {{"q": {ESCAPED}}}, "metadata": {{"m": {ESCAPED}}}}}\n'
    (folder / "t.jsonl").write_text(line, encoding="utf-8")
    return "file://t.jsonl"


def _write_document(folder: Path) -> str:
    (folder / "t.json").write_text(
        f'[{{"vars": {{"q": {ESCAPED}}}, "metadata": {{"m": {ESCAPED}}}}}]', encoding="utf-8"
    )
    return "file://t.json"


def _write_inline(_: Path) -> list[object]:
    return [{"vars": {"q": PLAIN}, "metadata": {"m": PLAIN}}]


@pytest.mark.parametrize(
    "write", [_write_table, _write_parquet, _write_lines, _write_document, _write_inline]
)
def test_a_text_that_is_no_env_expression_in_a_file_of_tests_is_none_in_the_exported_suite(
    write: Callable[[Path], object], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    content = {"prompts": ["{{ q }}"], "providers": ["echo"], "tests": write(tmp_path)}
    text = json.dumps(content).replace("env.", r"env\u002e")
    config.write_text(text, encoding="utf-8")
    for path in (config, passed_on(config, tmp_path), passed_on(passed_on(config, tmp_path), tmp_path)):
        (case,) = load_suite(path, env={"HOME": "/root", "KEY": "sk-1"}).tests
        assert (case.vars["q"], case.metadata["m"]) == (PLAIN, PLAIN)


def test_a_profile_in_a_table_is_no_env_expression_in_the_exported_suite(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("name\n{{ env.HOME }}\n", encoding="utf-8")
    config = tmp_path / "config.yaml"
    simulate = "{simulate: {goal: x, user: echo}}"
    config.write_text(
        f"prompts: ['{{{{ input }}}}']\nproviders: [echo]\nprofiles: file://p.csv\ntests: [{{turns: {simulate}}}]\n",
        encoding="utf-8",
    )
    for path in (config, passed_on(config, tmp_path)):
        (case,) = load_suite(path, env={"HOME": "/root"}).tests
        assert case.user is not None
        assert case.user.profile == {"name": "{{ env.HOME }}"}


@pytest.mark.parametrize("text", ["Use {{ env.HOME }}.", "file://elsewhere"])
def test_a_text_that_a_config_would_change_stays_in_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "about.txt").write_text(text, encoding="utf-8")
    config = tmp_path / "config.yaml"
    config.write_text("prompts: [x]\ntests: [{input: file://about.txt}]\n", encoding="utf-8")
    suite = read_portable_suite(config, env=ENV)
    assert suite.content["tests"] == [{"input": "file://about.txt"}]
    assert [problem.message for problem in suite.warnings] == [
        "`file://about.txt` remains a separate file that has to travel with the suite"
    ]
    assert suite_in(passed_on(config, tmp_path)) == suite_in(config)


def test_a_schema_file_that_a_config_would_change_stays_a_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"const": "{{ env.HOME }}"}', encoding="utf-8")
    config = tmp_path / "config.yaml"
    keys = "evaluation_schema: file://s.json, assert: [{type: is-json, value: file://s.json}]"
    config.write_text(f"prompts: [{{raw: x, expected_schema: file://s.json}}]\ntests: [{{{keys}}}]\n")
    assert len(read_portable_suite(config, env=ENV).warnings) == 3
    assert suite_in(passed_on(config, tmp_path)) == suite_in(config)


def test_a_key_in_the_suite_is_a_warning(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    text = "prompts: [x]\nproviders: [{id: 'openai:m', config: {apiKey: sk-of-somebody-1234}}]\ntests: [{}]\n"
    config.write_text(text, encoding="utf-8")
    [problem] = read_portable_suite(config, env=ENV).warnings
    assert problem.message == "the suite contains a key or a password"
    assert "sk-of" not in problem.hint
    config.write_text(
        "env: {LANGUAGE: German}\nprompts: [x]\nproviders: [echo]\ntests: [{}]\n", encoding="utf-8"
    )
    assert read_portable_suite(config, env=ENV).warnings == ()


def test_every_problem_of_the_suite_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("prompts: [{raw: x, evaluation_mode: yes}]\ntests: [{inptu: a}, 5]\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_portable_suite(config, env=ENV)
    assert [problem.location.line for problem in caught.value.problems if problem.location] == [1, 2, 2]


def test_half_of_a_surrogate_pair_is_exported_as_an_escape(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"prompts": ["x"], "tests": [{"vars": {"a": "\\ud800"}}]}', encoding="utf-8")
    text = read_portable_suite(config, env=ENV).to_json()
    assert '"\\ud800"' in text


def test_a_promptfoo_config_is_not_exported_and_the_message_says_why(tmp_path: Path) -> None:
    path = tmp_path / "promptfooconfig.yaml"
    path.write_text("prompts: [a]\nproviders: [echo]\ntests: [{}]\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_portable_suite(path, env={})
    (problem,) = caught.value.problems
    assert problem.message.startswith("a config in promptfoo's dialect cannot be exported")
    assert "`geval run` runs it unchanged" in problem.hint


def test_an_exported_file_holds_no_key_and_says_so(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        """
env: {LANGUAGE: German, MINE: key-of-mine, CORP: key-of-corp, URL: key-of-url, SOME_API_KEY: key-of-some}
prompts: [x]
providers:
  - id: openai:m
    config:
      apiKey: key-in-config
      base_url: http://127.0.0.1/v1?token={{ env.URL }}
      api_key_env: MINE
      headers: {X-Corp: key-in-header, X-Other: "{{ env.CORP }}", Accept: application/json}
tests: [{}]
""",
        encoding="utf-8",
    )
    portable = read_portable_suite(config, env=ENV)
    assert [problem.message for problem in portable.warnings] == ["the suite contains a key or a password"]
    exported = portable.without_secrets().content
    assert "key-" not in str(exported)
    assert exported["env"] == {
        "LANGUAGE": "German", "MINE": "***", "CORP": "***", "URL": "***", "SOME_API_KEY": "***"
    }  # fmt: skip
    headers = exported["providers"][0]["config"]["headers"]
    assert headers == {"X-Corp": "***", "X-Other": "{{ env.CORP }}", "Accept": "application/json"}
    assert "key-in-header" in portable.to_yaml(), "an import into one's own config keeps them"

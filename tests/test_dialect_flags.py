"""Every flag of a dialect makes the difference that it names, and makes it alone.

A row calls what asks for the flag and says what comes of it in geval's own dialect and in promptfoo's. Each is checked
with the record of the dialect, and with the other one's in which this flag alone is turned.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from support.graded import SpeakingJudge
from support.jobs import Model
from support.pictures import data_url, png
from support.specs import assertion, case, suite

from geval_cli.assertions.base import Assertion, CheckContext, JudgeDefaults, Subject, Tools
from geval_cli.assertions.geval import metric_of
from geval_cli.assertions.registry import judge_assertion, metric_name
from geval_cli.engine.case import JobContext, run_job
from geval_cli.engine.check import check_plan
from geval_cli.engine.plan import Plan
from geval_cli.engine.prompt import seen_by_templates
from geval_cli.engine.transforms import seen_by_assertion
from geval_cli.errors import ConfigError, GevalError
from geval_cli.extras.export import read_portable_suite
from geval_cli.extras.programs.assertions import code_text
from geval_cli.extras.programs.scripting.scripts import Scripts
from geval_cli.extras.web.editor.routes import open_suite_file
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.judge.calls import JudgeFacts
from geval_cli.providers.registry import build_provider, check_provider
from geval_cli.records import CaseResult, Choice, Message, ModelRequest, ModelResponse
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.access import TRUSTED
from geval_cli.source.env import EnvValues
from geval_cli.source.files import SourceFiles
from geval_cli.source.source_map import SourcePath
from geval_cli.specs import dialect
from geval_cli.specs.base import PromptSpec, ProviderSpec, TestOptionsSpec
from geval_cli.specs.dialect import DEFAULT_RULES, PROMPTFOO_RULES, DialectRules
from geval_cli.specs.promptfoo import PromptfooTestOptions
from geval_cli.suite import load
from geval_cli.suite.assertions import read_assertions, read_provider
from geval_cli.suite.tests import read_test
from geval_cli.suite.validation import LoadContext, read_fields
from geval_cli.templating import Templates
from geval_cli.templating.templates import templates_of

MODEL = ProviderSpec(id="openai:m", label="M")
CLASSIFIER = ProviderSpec(id="huggingface:text-classification:acme/m")
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}


class Probe:
    """What the rows ask, under some rules, in a folder of their own."""

    def __init__(self, rules: DialectRules, folder: Path) -> None:
        self.rules = rules
        self.folder = folder
        # Strict templates for all: what they do differently is one row, and no other.
        self.templates = Templates(rules)

    def reading(self) -> LoadContext:
        return LoadContext(SourceFiles(self.folder, TRUSTED), EnvValues({}), rules=self.rules)

    def keys(self, **written: Any) -> list[str]:
        """How bad the keys of an option mapping are."""
        reading = self.reading()
        read_fields(TestOptionsSpec, written, SourcePath.nowhere(), "options", reading)
        return [str(problem.severity) for problem in reading.problems]

    def types(self, *written: Any) -> list[str]:
        """The problems of assertions."""
        reading = self.reading()
        read_assertions(list(written), SourcePath.nowhere(), reading)
        return [problem.message for problem in reading.problems]

    def tools(self, scripts: Scripts | None = None, says: str | None = None) -> Tools:
        def judge_for(_: ProviderSpec) -> SpeakingJudge:
            return pytest.fail("a judge") if says is None else SpeakingJudge([says])

        return Tools(
            self.templates, judge_for, JudgeFacts(), scripts=None if scripts is None else lambda: scripts
        )

    def verdict(self, spec: Assertion, output: Any, says: str | None = None, **variables: Any) -> Any:
        """The status and score, or the error, of an assertion on an output; a judge `says` its verdict."""

        async def body() -> Any:
            scripts = Scripts(self.folder, TRUSTED, env={})
            try:
                subject = Subject(case(vars=variables), output, "Say", rules=self.rules)
                found = await judge_assertion(spec, subject, self.tools(scripts, says))
                return str(found.status), found.score
            except GevalError as error:
                return type(error).__name__
            finally:
                await scripts.aclose()

        return asyncio.run(body())

    def passes(self, spec: Assertion, output: Any) -> bool:
        """Whether an assertion on an output has the verdict that it passes, and no other and no error."""
        return bool(self.verdict(spec, output) == ("passed", 1.0))

    def seen_context(self, output: str, **code: str) -> Any:
        """The context that an assertion about retrieval is given by its code."""

        async def body() -> Any:
            scripts = Scripts(self.folder, TRUSTED, env={})
            try:
                subject = Subject(case(vars={"query": "q"}), output, "Say", rules=self.rules)
                spec = assertion("context-faithfulness", **code)
                seen = await seen_by_assertion(spec, subject, self.tools(scripts))
                return seen.test.vars["context"]
            finally:
                await scripts.aclose()

        return asyncio.run(body())

    def provider(self, name: str, **config: Any) -> ProviderSpec:
        rules_of_probe = self.rules

        class OfProbe(ProviderSpec):
            rules: ClassVar[DialectRules] = rules_of_probe

        return OfProbe(id=name, label=name, config=config)

    def complaints(self, name: str, **config: Any) -> list[str]:
        """How bad the problems of a provider's config are."""
        found = check_provider(self.provider(name, **config), env={}, base_dir=self.folder)
        return [str(problem.severity) for problem in found]

    def answer(self, spec: ProviderSpec) -> Choice:
        provider = build_provider(spec, env={"PATH": "/usr/bin:/bin"}, base_dir=self.folder)

        async def body() -> Choice:
            try:
                return (await provider.complete(ModelRequest((Message("user", "hello"),)))).choices[0]
            finally:
                await provider.aclose()

        return asyncio.run(body())

    def plan(self, raw: str = "Say {{ x }}", provider: ProviderSpec = MODEL, **fields: Any) -> Plan:
        test = case(**{"vars": {"x": "hello"}, **fields})
        prompts = (PromptSpec(id="p", label="p", raw=raw),)
        return Plan(with_changes(suite([test], prompts=prompts, providers=(provider,)), rules=self.rules))

    def job(
        self, model: Model, raw: str = "Say {{ x }}", provider: ProviderSpec = MODEL, **fields: Any
    ) -> CaseResult:
        """The result of the only job of a plan, its code run."""
        [[job]] = self.plan(raw, provider, **fields).queues

        async def body() -> CaseResult:
            scripts = Scripts(self.folder, TRUSTED, env={})
            try:
                return await run_job(job, JobContext(model, self.tools(scripts)))
            finally:
                await scripts.aclose()

        return asyncio.run(body())

    def request(
        self, raw: str = "Say {{ x }}", provider: ProviderSpec = MODEL, **fields: Any
    ) -> ModelRequest:
        model = Model("fine")
        self.job(model, raw, provider, **fields)
        [request] = model.requests
        return request

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


def forgotten_files(probe: Probe) -> int:
    probe.file("prompt.txt", "Say")
    reading = probe.reading()
    reading.text("prompt.txt", lambda: None, is_for_models=True)
    return len(reading.problems)


def image_in_a_test(probe: Probe) -> str:
    written = {"vars": {"photo": data_url(png())}}
    found = read_test(written, SourcePath.nowhere(), "a test", probe.reading())
    assert found is not None
    return str(found.vars["photo"])[:23]


def judges(probe: Probe) -> str:
    written = {"text": "openai:judge", "embedding": "openai:embedding:e"}
    found = read_provider(written, SourcePath.nowhere(), probe.reading())
    return "none" if found is None else type(found).__name__


def editable(probe: Probe) -> str:
    probe.file("geval.yaml", "prompts: [Say]\n")
    try:
        return open_suite_file(probe.folder, "geval.yaml").path.name
    except RefusedError:
        return "refused"


def exportable(probe: Probe) -> str:
    path = probe.file("geval.yaml", "prompts: [Say]\nproviders: [echo]\ntests: [{vars: {x: a}}]\n")
    try:
        read_portable_suite(path, env={}, access=TRUSTED)
    except ConfigError:
        return "refused"
    return "exported"


def undefined(probe: Probe) -> str:
    try:
        return templates_of(probe.rules, {}).render("a{{ x }}", {})
    except GevalError as error:
        return type(error).__name__


def chosen_prompt(probe: Probe) -> str | None:
    spec = assertion("g-eval", criteria="It is good.")
    test = case(options=TestOptionsSpec.model_validate({"rubric_prompt": "Rate {{ output }}"}))
    prompt = metric_of(spec, test, probe.tools()).rubric_prompt  # type: ignore[arg-type] # a g-eval
    return None if prompt is None else prompt.evaluate


def threshold(probe: Probe) -> float:
    """What a run takes from its suite; promptfoo's reader makes one with other rules than geval's."""
    written = {"dialect": "promptfoo", "prompts": ["Say"], "providers": ["echo"], "tests": [{}]}
    path = probe.file("threshold.json", json.dumps(written))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("geval_cli.extras.promptfoo.load.PROMPTFOO_RULES", probe.rules)
        return prepare(RunRequest(path, {})).defaults.threshold


def schema_problems(probe: Probe) -> int:
    spec = assertion("is-json", value='{"type": "{{ kind }}"}')
    test = case(vars={"kind": "object"})
    return len(spec.check(CheckContext(test, probe.templates, "in test 1")))


def unused_output(probe: Probe) -> int:
    plan = probe.plan(provider=ProviderSpec(id="none"), vars={"x": "a", "output": "b"})
    found = check_plan(plan, probe.templates, JudgeDefaults()).problems
    return sum("nothing to judge" in problem.message for problem in found)


def credited(probe: Probe) -> Any:
    given = PromptfooTestOptions.model_construct(output_replaces_answer=True)
    code = assertion("javascript", value="!!(context.provider && context.provider.id)")
    return probe.job(Model("unasked"), has_output=True, output="a", promptfoo=given, assertions=(code,)).score


def scored(probe: Probe) -> float | None:
    own = PromptfooTestOptions.model_construct(
        assert_scoring_function="({pass: true, score: 0.3, reason: ''})"
    )
    check = assertion("contains", value="fine")
    return probe.job(Model("fine"), promptfoo=own, assertions=(check,)).score


def output(probe: Probe, choice: Choice, **config: Any) -> Any:
    provider = ProviderSpec(id="openai:m", label="M", config=config)
    return probe.job(Model(ModelResponse((choice,))), provider=provider).output


def label(probe: Probe) -> str:
    named = case(vars={"x": 1}, provider=ProviderSpec(id="echo", label="own"))
    [[job]] = Plan(with_changes(probe.plan().suite, tests=[named])).queues
    return job.shown_provider.label


ROWS: Mapping[str, tuple[Callable[[Probe], Any], Any, Any]] = {
    "unknown_keys": (lambda probe: probe.keys(nobody_knows_it=1), ["error"], ["warning"]),
    "skips_null": (lambda probe: len(probe.keys(samples=None, scoring=None)) > 0, True, False),
    "suspects_bare_paths": (forgotten_files, 1, 0),
    "marks_images": (image_in_a_test, "[image: data URL sha256", "data:image/png;base64,i"),
    "judges_by_kind": (judges, "none", "JudgesSpec"),
    "compares_in_pairs": (
        lambda probe: probe.types({"type": "pairwise", "criteria": "good"}),
        [],
        ["promptfoo has no assertion type `pairwise`"],
    ),
    "is_editable": (editable, "geval.yaml", "refused"),
    "is_exportable": (exportable, "exported", "refused"),
    "template_language": (undefined, "TemplateError", "a"),
    "nested_variables": (
        lambda probe: seen_by_templates(case(vars={"x": "{{ y }}", "y": "b"}), probe.templates).vars["x"],
        "{{ y }}",
        "b",
    ),
    "prompts_spell_chats": (
        lambda probe: len(
            probe.request('[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]').messages
        ),
        1,
        2,
    ),
    "renders_params": (
        lambda probe: probe.request(
            provider=ProviderSpec(id="openai:m", label="M", config={"tools": [{"name": "{{ x }}"}]})
        ).params.get("tools"),
        None,
        [{"name": "hello"}],
    ),
    "code_is_template": (
        lambda probe: code_text("'{{ x }}'", {"x": "a"}, probe.templates),
        "'{{ x }}'",
        "'a'",
    ),
    "schema_is_template": (schema_problems, 1, 0),
    "renders_mappings": (
        lambda probe: probe.verdict(assertion("equals", value={"a": "{{ x }}"}), '{"a": "b"}', x="b")[0],
        "passed",
        "failed",
    ),
    "http_templates": (
        lambda probe: probe.complaints("http://127.0.0.1/", method="{{ verb }}", body={"a": "{{ prompt }}"}),
        ["error"],
        [],
    ),
    "odd_params": (lambda probe: probe.complaints("openai:m", temperature="hot"), ["error"], ["warning"]),
    "adds_params": (
        lambda probe: (
            probe.request(provider=ProviderSpec(id="openai:m", label="M", config={"top_k": 1})).params
        ),
        {},
        {"temperature": 0, "max_tokens": 1024, "top_k": None},
    ),
    "tells_programs": (
        lambda probe: bool(probe.request(provider=ProviderSpec(id="exec:cat", label="c")).origin),
        False,
        True,
    ),
    "echo_finish_reason": (lambda probe: probe.answer(probe.provider("echo")).finish_reason, "stop", None),
    "keeps_data": (lambda probe: output(probe, Choice('{"a":1}', is_data=True)), '{"a":1}', {"a": 1}),
    "parses_schema_answers": (
        lambda probe: output(probe, Choice('{"a":1}'), response_format=SCHEMA),
        '{"a":1}',
        {"a": 1},
    ),
    "geval_threshold": (threshold, 0.5, 0.7),
    "geval_takes_text_prompt": (chosen_prompt, "Rate {{ output }}", None),
    "names_geval_by_criteria": (
        lambda probe: (
            metric_name(assertion("g-eval", criteria="It is good."), case(), probe.templates) is None
        ),
        False,
        True,
    ),
    "data_as_text": (
        lambda probe: Subject(case(), {"a": 1}, "", rules=probe.rules).text,
        '{"a": 1}',
        '{"a":1}',
    ),
    "folds_case": (
        lambda probe: probe.verdict(assertion("icontains", value="strasse"), "Straße")[0],
        "passed",
        "failed",
    ),
    "patterns": (
        lambda probe: probe.verdict(
            assertion("regex", value="^a$"), "a\n"
        ),  # whether `$` stands before a last line break, too
        ("passed", 1.0),
        ("failed", 0.0),
    ),
    "lists_refusals": (
        lambda probe: probe.verdict(assertion("is-refusal"), "I cannot stress enough how good it is.")[0],
        "failed",
        "passed",
    ),
    "finds_loose_json": (
        lambda probe: probe.verdict(assertion("contains-json"), "it is {a: 1}")[0],
        "failed",
        "passed",
    ),
    "assumes_rubric_pass": (
        lambda probe: probe.verdict(assertion("llm-rubric", value="nice"), "a", '{"score": 0.2}'),
        "JudgeParseError",
        ("passed", 0.2),
    ),
    "missing_class_is_zero": (
        lambda probe: probe.verdict(
            assertion("classifier", value="b", provider=CLASSIFIER), "a", '{"c": 0.2}'
        ),
        "UnjudgeableError",
        ("failed", 0.0),
    ),
    "code_failures_fail": (
        lambda probe: probe.verdict(assertion("javascript", value="no.such.thing"), "a"),
        "CodeRaisedError",
        ("failed", 0.0),
    ),
    "calls_given_functions": (
        lambda probe: probe.passes(assertion("javascript", value="(output) => output === 'a'"), "a"),
        True,
        False,
    ),
    "traces_from_answers": (
        lambda probe: probe.passes(
            assertion("trajectory:tool-used", value="find"), '[{"name": "find", "arguments": {}}]'
        ),
        True,
        False,
    ),
    "negates_scores": (
        lambda probe: probe.verdict(assertion("not-tool-call-f1", value=["a"], threshold=0.5), "no call")[1],
        1.0,
        0.0,
    ),
    "metadata_as_given": (
        lambda probe: probe.verdict(assertion("javascript", value="'metadata' in context"), "a")[0],
        "passed",
        "failed",
    ),
    "context_from_answer": (
        lambda probe: probe.seen_context("a [b]", transform="'c'", context_transform="output"),
        "c",
        "a [b]",
    ),
    "scoring_functions": (scored, 1.0, 0.3),
    "judges_output_variable": (unused_output, 0, 1),
    "credits_given_outputs": (credited, 0.0, 1.0),
    "labels_rows_by_column": (label, "own", "M"),
}
"""For each flag: what asks for it, what comes of it in geval's own dialect, and what in promptfoo's."""


def test_every_flag_has_a_row() -> None:
    assert set(ROWS) == set(DialectRules.__struct_fields__) - {"name"}


@pytest.mark.parametrize("flag", ROWS)
def test_a_flag_makes_its_difference_alone(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, own, theirs = ROWS[flag]
    found = []
    for base, other in ((DEFAULT_RULES, PROMPTFOO_RULES), (PROMPTFOO_RULES, DEFAULT_RULES)):
        for rules in (base, replace(base, **{flag: getattr(other, flag)})):
            # For readers of files, which find the record by the dialect that a config names: here geval's.
            monkeypatch.setitem(dialect.RULES, "geval", rules)  # type: ignore[arg-type]
            monkeypatch.setattr(load, "DEFAULT_RULES", rules)
            found.append(ask(Probe(rules, tmp_path)))
    assert found == [own, theirs, theirs, own]

"""Assertions, tests and prompts built in code, for rooms that work on the typed suite."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geval_cli.assertions.base import Assertion, CheckContext, JudgeDefaults, MergedTest, Subject, Tools
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.judge.calls import JudgeFacts
from geval_cli.judge.metric import Judge
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec, RunOptionsSpec
from geval_cli.suite.suite import LoadedSuite
from geval_cli.templating import Templates

TEMPLATES = Templates()


def assertion(kind: str, **keys: Any) -> Assertion:
    return ASSERTION_TYPES[kind.removeprefix("not-")].model_validate({"type": kind, **keys})


def case(index: int = 0, **fields: Any) -> MergedTest:
    return MergedTest(index, SourcePath.nowhere(), **fields)


def subject(output: JsonValue, test: MergedTest | None = None, prompt: str = "the prompt") -> Subject:
    return Subject(test or case(), output, prompt)


def tools(judge: Judge | None = None, defaults: JudgeDefaults | None = None) -> Tools:
    def judge_for(spec: ProviderSpec) -> Judge:
        assert judge is not None, "this test has no judge"
        return judge

    return Tools(TEMPLATES, judge_for, JudgeFacts(), defaults or JudgeDefaults())


def check_context(test: MergedTest | None = None) -> CheckContext:
    return CheckContext(test or case(), TEMPLATES, "in test 1", "the prompt")


def suite(
    tests: list[MergedTest],
    *,
    prompts: tuple[PromptSpec, ...] = (PromptSpec(id="p", label="p", raw="{{ x }}"),),
    providers: tuple[ProviderSpec, ...] = (ProviderSpec(id="echo", label="echo"),),
    env: Mapping[str, str] | None = None,
) -> LoadedSuite:
    return LoadedSuite(
        path=Path("config.yaml"),
        base_dir=Path(),
        prompts=prompts,
        providers=providers,
        tests=tests,  # type: ignore[arg-type]  # a list is as re-iterable as it gets
        options=RunOptionsSpec(),
        snapshot={},
        env=env or {},
    )


def assertion_result(status: Status, score: float | None = None, **fields: Any) -> AssertionResult:
    return AssertionResult(
        type="contains", metric=fields.pop("metric", None), status=status, score=score, **fields
    )

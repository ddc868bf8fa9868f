"""g-eval: renders the assertion's templates for a test and hands metric, case and judge to the judge room."""

from collections.abc import Sequence
from dataclasses import replace

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, judge_provider
from geval_cli.config.schema import AssertionSpec, GEvalAssertionSpec, TestOptionsSpec
from geval_cli.config.suite import TestCase
from geval_cli.errors import Problem
from geval_cli.judge.build import MetricDefaults, ScoringChoice, metric_from_spec
from geval_cli.judge.check import check_metric
from geval_cli.judge.grading import grade
from geval_cli.judge.metric import JudgedCase, Metric


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of one g-eval in one test: of the metric, of its templates, of parameters that the test lacks."""
    assert isinstance(spec, GEvalAssertionSpec)
    problems = list(check_metric(spec))
    for index, criterion in enumerate(_criteria(spec)):
        location = spec.place.value("criteria") or spec.place.value("value")
        text = context.render(criterion, location, problems)
        if text is not None and not text.strip():
            message = (
                f"criteria number {index + 1} is empty ({context.where})"
                if index
                else f"the criteria is empty ({context.where})"
            )
            problems.append(Problem(message, location, "say what makes an output good"))
    for step in spec.evaluation_steps or ():
        context.render(step, spec.place.value("evaluation_steps"), problems)
    if spec.source is not None:
        context.render(spec.source, spec.place.value("source"), problems)
    missing = _missing_params(spec, context.test)
    if missing:
        problems.append(
            Problem(
                f"{context.where.removeprefix('in ')} lacks {', '.join(missing)}, which evaluation_params names",
                spec.place.value("evaluation_params"),
                "give the test these fields, or leave them out of evaluation_params",
            )
        )
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Have the judge rate the output.

    Raises:
        JudgeError, ProviderError: no verdict could be had.
    """
    assert isinstance(spec, GEvalAssertionSpec)
    model = tools.judge_for(judge_provider(spec, subject.test, tools.defaults))
    result = await grade(
        _metric(spec, subject.test, tools),
        _judged_case(spec, subject, tools),
        model,
        render=tools.templates.render,
        memory=tools.judge_memory,
    )
    return Outcome(
        status=result.status,
        score=result.score,
        reason=result.reason or "",
        threshold=result.threshold,
        threshold_is_default=spec.threshold is None and not spec.strict_mode,
        detail=result.detail,
        latency_ms=result.latency_ms,
    )


def _metric(spec: GEvalAssertionSpec, test: TestCase, tools: Tools) -> Metric:
    def rendered(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(tools.templates.render(text, test.variables) for text in texts)

    metric = metric_from_spec(
        spec,
        criteria=rendered(_criteria(spec)) or None,
        evaluation_steps=None if spec.evaluation_steps is None else rendered(spec.evaluation_steps),
        defaults=MetricDefaults(
            scoring=(
                _scoring(test.options),
                ScoringChoice(tools.defaults.scoring, tools.defaults.samples),
                _scoring(test.default_options),
            ),
            rubric_prompt=test.options.rubric_prompt or test.default_options.rubric_prompt,
        ),
    )
    # Under `not-` a pass is what fails the assertion, so that is what wants an explanation.
    return replace(metric, explain="passed") if spec.is_negated and spec.explain == "failed" else metric


def _judged_case(spec: GEvalAssertionSpec, subject: Subject, tools: Tools) -> JudgedCase:
    test = subject.test
    return JudgedCase(
        actual_output=subject.output,
        input=test.input,
        expected_output=test.expected_output,
        context=test.context,
        retrieval_context=test.retrieval_context,
        source=None if spec.source is None else tools.templates.render(spec.source, test.variables),
        vars=test.vars,
        rendered_prompt=subject.rendered_prompt or None,
        repeat_index=subject.repeat_index,
    )


def _criteria(spec: GEvalAssertionSpec) -> tuple[str, ...]:
    if spec.criteria is None:
        return ()
    return (spec.criteria,) if isinstance(spec.criteria, str) else spec.criteria


def _scoring(options: TestOptionsSpec) -> ScoringChoice:
    return ScoringChoice(options.scoring, options.samples)


def _missing_params(spec: GEvalAssertionSpec, test: TestCase) -> list[str]:
    has = {
        "expected_output": test.expected_output is not None,
        "context": test.context is not None,
        "retrieval_context": test.retrieval_context is not None,
    }
    return [name for name in spec.evaluation_params or () if not has.get(name, True)]

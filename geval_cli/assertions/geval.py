"""g-eval, evaluation-llm: render the templates for a test, and have the judge rate its output."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from geval_cli.assertions.base import CheckContext, MergedTest, Outcome, Subject, Tools
from geval_cli.assertions.geval_metric import (
    GEvalFields,
    MetricDefaults,
    check_early_stop,
    check_metric,
    check_threshold_on_rating,
    metric_from_spec,
    metric_name,
    range_of,
    scoring_levels,
    why_all_samples,
    written_criteria,
)
from geval_cli.assertions.judges import judge_provider, members_of
from geval_cli.assertions.registry import judge_parts
from geval_cli.assertions.trace import knows_all_steps, trace_of, trace_of_given
from geval_cli.errors import Problem, Severity, TemplateError
from geval_cli.judge.estimate import Grade
from geval_cli.judge.grading import grade, judged_texts, missed_required, steps_needed, steps_requests
from geval_cli.judge.metric import Judge, JudgedCase, Metric
from geval_cli.judge.prompt import CRITERION_FACTS, criterion_facts, example_variables
from geval_cli.judge.source import last_words, missing_params
from geval_cli.plugins import extra
from geval_cli.records import TEST_TEXTS, AssertionResult, JsonValue, ModelRequest, Status
from geval_cli.specs.base import CALIBRATED, JurySpec, ProviderSpec, TestOptionsSpec
from geval_cli.templating import Templates

_OF_TRACE = frozenset({"trace", "tools_called"})
_PARTS: Mapping[str, tuple[str, ...]] = {
    "criteria": ("dimension", "criteria", "name"),
    "evaluation_params": ("evaluation_params",),
    "rubric": ("rubric",),
    "score_range": ("score_range", "score_step", "strict_mode"),
    "scoring": ("scoring", "samples"),
    "rubric_prompt": ("rubric_prompt",),
}


_SHOWN_TO_JUDGE = ("guidelines", "examples")
"""Facts of a criterion that are parts of their own in `criterion_parts`."""


class GEvalAssertion(GEvalFields):
    """g-eval: a judge rates the output by a named `dimension`, your own `criteria` or a `checklist`."""

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of one g-eval in one test: of its metric and templates, and missing parameters."""
        problems = list(check_metric(self))
        levels = scoring_levels(self, context.test, context.defaults)
        problems += check_threshold_on_rating(self, levels)
        problems += check_early_stop(self, context.test, context.defaults, context.templates)
        location = partial(self.place.spelled, "criteria", "value")
        criteria = written_criteria(self)
        for number, criterion in enumerate(criteria, start=1):
            text = context.render(criterion, location, problems)
            # A criterion that is empty in the config is reported by `check_metric`.
            if criterion.strip() and text is not None and not text.strip():
                what = "the criteria is empty" if len(criteria) == 1 else f"criterion {number} is empty"
                problems.append(
                    Problem(
                        f"{what} ({context.where})", location(), "check the variables in it: one is empty"
                    )
                )
        _check_items(self, context, problems)
        place = partial(self.place.spelled, "evaluation_steps", "evaluationSteps")
        for step in self.evaluation_steps or ():
            context.render(step, place, problems)
        if self.source is not None:
            context.render(self.source, self.place.value("source"), problems)
        _check_rubric_prompt(self, context, problems)
        if self.over is not None and not context.test.is_conversation:
            message = (
                f"`over` needs the turns of a conversation, but {context.where.removeprefix('in ')} has none"
            )
            problems.append(
                Problem(message, self.place.key("over"), "give the test `turns`, or leave `over` out")
            )
        missing = _missing_params(self, context)
        if missing:
            test = context.test
            in_vars = [name for name in missing if name in test.vars]
            if in_vars:
                hint_for_missing = f"move {', '.join(in_vars)} from `vars` to the test itself"
            else:
                hint_for_missing = "give the test these fields, or leave them out of evaluation_params"
            problems.append(
                Problem(
                    f"{context.where.removeprefix('in ')} has no {', '.join(missing)}, which "
                    "evaluation_params lists",
                    self.place.spelled("evaluation_params", "evaluationParams"),
                    hint_for_missing,
                )
            )
        return problems

    def prefetch(self, subject: Subject, tools: Tools) -> Iterator[tuple[Judge, ModelRequest]]:
        """Return the requests for the judge's steps, which do not depend on an output."""
        if self.evaluation_steps is not None:
            return iter(())
        return prefetch_case(self, self.case(subject, tools), subject.test, tools)

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Have the judge rate the output.

        Raises:
            JudgeError: no verdict could be read.
            ProviderError: the judge could not answer.
        """
        return await judge_case(self, self.case(subject, tools), subject.test, tools)

    def criterion_source(self, test: MergedTest, tools: Tools) -> object:
        """Return the metric, which tests with equal criteria share."""
        return metric_of(self, test, tools)

    def criterion(self, test: MergedTest, tools: Tools) -> JsonValue:
        """Return what affects the metric's ratings, templates rendered, and how a jury's ratings are combined."""
        facts = criterion_facts(metric_of(self, test, tools))
        rules = self.jury_rules
        if rules is None:
            return facts
        weights = [[one.parts, one.weight, one.mean, one.sd] for one in jury_weights(self, test, tools)]
        return [*facts, ["jury", rules.combine, rules.min_judges, *([weights] if weights else [])]]

    def criterion_alone(self, test: MergedTest, tools: Tools) -> JsonValue:
        """Return what affects the rating of a single judge, templates rendered."""
        return criterion_facts(metric_of(self, test, tools))

    def criterion_parts(self, written: JsonValue) -> Mapping[str, JsonValue]:
        """Return the criteria, the rubric and so on by name; `registry` adds the steps, written or generated."""
        facts = dict(zip(CRITERION_FACTS, written, strict=False))
        others = written[len(CRITERION_FACTS) :]
        found: dict[str, JsonValue] = {
            name: [facts[fact] for fact in parts] for name, parts in _PARTS.items()
        }
        shown = {name: part for part in others if (name := part[0]) in _SHOWN_TO_JUDGE}
        rest = [part for part in others if part[0] not in _SHOWN_TO_JUDGE]
        return {**found, **shown, "scoring": [*found["scoring"], *rest]}

    def judged_texts(self, subject: Subject, tools: Tools) -> JsonValue:
        """Return the texts that the judge is shown."""
        return judged_texts(metric_of(self, subject.test, tools), self.case(subject, tools))

    def case(self, subject: Subject, tools: Tools) -> JudgedCase:
        """Return what the judge sees of a test and its output."""
        return judged_case(self, subject, tools)

    def is_still_valid(self, rated: AssertionResult, subject: Subject, tools: Tools) -> bool:
        """Return whether the rating followed the lock file's steps, if any; for a jury, those of each judge."""
        named = judge_provider(self, subject.test, tools.defaults)
        needed = steps_needed(metric_of(self, subject.test, tools), self.case(subject, tools))
        votes = rated.detail.get("judges") or [rated.detail]
        for judge, vote in zip(members_of(named), votes, strict=False):
            model = tools.judge_for(judge)
            parts = vote.get("parts") or [vote]
            for (criteria, labels), part in zip(needed, parts, strict=False):
                locked = tools.judge_facts.locked_steps(criteria, labels, model)
                if locked is not None and locked != tuple(part.get("evaluation_steps") or ()):
                    return False
        return True

    def decide_again(self, rated: Outcome, test: MergedTest, tools: Tools) -> Outcome | None:
        """Return the outcome by the current threshold; None if sampling was stopped early for another threshold."""
        threshold = metric_of(self, test, tools).effective_threshold
        votes = rated.detail.get("judges") or [rated.detail]
        stopped = any(vote.get("early_stop") for vote in votes)
        before = (rated.detail.get("jury") or {}).get("threshold", rated.threshold)
        if stopped and before != threshold:
            return None
        if self.jury_rules is not None and self.jury_rules.combine == "majority":
            counted: Outcome = extra("juries").majority_again(rated, threshold)
            return counted
        is_default = self.threshold is None and not self.strict_mode
        again = rated.against(threshold, is_default=is_default)
        return replace(again, status=Status.FAILED) if missed_required(rated.detail) else again


def prefetch_case(
    spec: GEvalFields, case: JudgedCase, test: MergedTest, tools: Tools
) -> Iterator[tuple[Judge, ModelRequest]]:
    """Yield the requests of `judge_case` that do not depend on the output of `case`."""
    named = judge_provider(spec, test, tools.defaults)
    metric = metric_of(spec, test, tools)
    for judge in members_of(named):
        model = tools.judge_for(judge)
        for request in steps_requests(metric, case, model, memory=tools.judge_facts):
            yield model, request


async def judge_case(spec: GEvalFields, case: JudgedCase, test: MergedTest, tools: Tools) -> Outcome:
    """Have the judge rate `case`, which holds what it may see of `test` and its output.

    Raises:
        JudgeError: no verdict could be read.
        ProviderError: the judge could not answer.
    """
    named = judge_provider(spec, test, tools.defaults)
    metric = metric_of(spec, test, tools)

    async def ask(judge: ProviderSpec) -> Grade:
        model = tools.judge_for(judge)
        return await grade(metric, case, model, render=tools.templates.render, memory=tools.judge_facts)

    is_default = spec.threshold is None and not spec.strict_mode
    rules = spec.jury_rules
    if rules is not None and isinstance(named, JurySpec):
        juries = extra("juries")
        members = [
            juries.Member(judge.public_id, judge.title, partial(ask, judge)) for judge in named.members
        ]
        parts = [judge_parts(tools.judge_for(judge)) for judge in named.members]
        weights = juries.weights_of(parts, jury_weights(spec, test, tools))
        outcome: Outcome = juries.verdict_of_jury(await juries.ask_jury(members), rules, weights)
        return replace(outcome, threshold_is_default=is_default and rules.combine != "majority")
    result = await ask(named)
    return Outcome(
        status=result.status,
        score=result.score,
        reason=result.reason or "",
        threshold=result.threshold,
        threshold_is_default=is_default,
        detail=result.detail,
        latency_ms=result.latency_ms,
    )


def jury_weights(spec: GEvalFields, test: MergedTest, tools: Tools) -> tuple[Any, ...]:
    """Return the weights of a jury's judges from the run's calibration file; empty unless they are asked for."""
    if spec.jury_rules is None or spec.jury_rules.combine != CALIBRATED:
        return ()
    return tools.calibrations.jury_weights(metric_name(spec, test, tools.templates))


def metric_of(spec: GEvalFields, test: MergedTest, tools: Tools) -> Metric:
    """Return the metric of a checked `spec` in one test, templates rendered."""
    return tools.metrics.find((spec, test), (), lambda: _metric_of(spec, test, tools))


def _metric_of(spec: GEvalFields, test: MergedTest, tools: Tools) -> Metric:
    variables = test.variables

    def rendered(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple([tools.templates.render(text, variables) for text in texts])

    criteria = rendered(written_criteria(spec)) or None
    steps = None if spec.evaluation_steps is None else rendered(spec.evaluation_steps)
    items = None if spec.checklist is None else rendered([item.item for item in spec.checklist])

    def make() -> Metric:
        defaults = _metric_defaults(spec, test, tools)
        # The effective rubric prompt is in the defaults.
        silent = spec if spec.rubric_prompt is None else spec.model_copy(update={"rubric_prompt": None})
        return metric_from_spec(
            silent, criteria=criteria, evaluation_steps=steps, checklist=items, defaults=defaults
        )

    sources = (spec, test.options, test.default_options, tools.defaults)
    metric = tools.metrics.find(sources, (criteria, steps, items), make)
    if metric.stop_error is None or why_all_samples(spec, test, tools.defaults, tools.templates) is None:
        return metric
    return replace(metric, stop_error=None)


def _metric_defaults(spec: GEvalFields, test: MergedTest, tools: Tools) -> MetricDefaults:
    owner = _owner_of_rubric_prompt(spec, test, tools.templates)
    defaults = tools.defaults
    return MetricDefaults(
        threshold=defaults.threshold,
        scoring=scoring_levels(spec, test, defaults)[1:],
        rubric_prompt=None if owner is None else owner.rubric_prompt,
    )


def judged_case(spec: GEvalFields, subject: Subject, tools: Tools) -> JudgedCase:
    """Return what the judge sees of a test and its output."""
    case = _case_of(subject.test, subject.output, subject.rendered_prompt, subject.repeat_index)
    if turns := subject.conversation:
        case = replace(case, turns=turns)
    if knows_all_steps(subject) or not _OF_TRACE.isdisjoint(spec.evaluation_params or ()):
        case = replace(case, trace=trace_of(subject, timed=False), shows_trace=knows_all_steps(subject))
    if spec.source is None:
        return case
    return replace(case, source=tools.templates.render(spec.source, subject.test.variables))


def _case_of(
    test: MergedTest, output: JsonValue, rendered_prompt: str | None, repeat_index: int = 0
) -> JudgedCase:
    texts = {name: getattr(test, name) for name in TEST_TEXTS}
    if test.input is None:
        texts["input"] = last_words(test.turns)
    return JudgedCase(
        actual_output=output,
        images=test.images,
        audio=test.audio,
        vars=test.vars,
        rendered_prompt=rendered_prompt or None,
        repeat_index=repeat_index,
        turns=test.turns or None,
        **texts,
    )


def _check_items(spec: GEvalFields, context: CheckContext, problems: list[Problem]) -> None:
    """Check that no item of a checklist is empty once the test's variables are filled in."""
    for number, item in enumerate(spec.checklist or (), start=1):
        place = item.place.value("item") or item.place.value()
        text = context.render(item.item, place, problems)
        # An item that is empty in the config is reported by `check_metric`.
        if item.item.strip() and text is not None and not text.strip():
            message = f"item {number} of the checklist is empty ({context.where})"
            problems.append(Problem(message, place, "check the variables in it: one is empty"))


def _check_rubric_prompt(spec: GEvalFields, context: CheckContext, problems: list[Problem]) -> None:
    """Check the user's own prompt by rendering it, with example values for what only a judgement provides."""
    owner = _owner_of_rubric_prompt(spec, context.test, context.templates)
    if owner is not None and spec.dimensions is not None and owner is not spec:
        message = "a `rubricPrompt` cannot rate several `dimensions` in one call"
        hint = "write an assertion with `dimension` for each"
        problems.append(Problem(message, spec.place.key("dimensions"), hint))
    if owner is not None and spec.checklist is not None and owner is not spec:
        message = "a `rubricPrompt` cannot be combined with a `checklist`"
        hint = "move it from the options to the assertions that need it"
        problems.append(Problem(message, spec.place.key("checklist"), hint))
    if owner is None:
        if spec.rubric_prompt is not None:
            message = "a rubricPrompt given as text does not apply to g-eval in promptfoo configs"
            hint = "write `rubricPrompt: {evaluate: ...}`, optionally with `steps`"
            place = spec.place.spelled("rubricPrompt", "rubric_prompt")
            unused_prompt = Problem(message, place, hint, severity=Severity.WARNING)
            problems.append(unused_prompt)
        return
    location = owner.place.spelled("rubricPrompt", "rubric_prompt")
    own = owner.rubric_prompt
    templates = (own,) if isinstance(own, str) else (own.steps, own.evaluate) if own else ()
    variables = example_variables(range_of(spec), context.test.variables)
    for template in templates:
        context.render(template or "", location, problems, variables=variables)


def _owner_of_rubric_prompt(
    spec: GEvalFields, test: MergedTest, templates: Templates
) -> GEvalFields | TestOptionsSpec | None:
    """Return the nearest level with its own judge prompt.

    In some dialects, a prompt given as text is for other assertions; g-eval then takes only {steps, evaluate}.
    """
    levels = (spec, test.options, test.default_options)
    nearest = next((level for level in levels if level.rubric_prompt is not None), None)
    is_for_others = nearest is not None and isinstance(nearest.rubric_prompt, str)
    return nearest if templates.rules.geval_takes_text_prompt or not is_for_others else None


def _missing_params(spec: GEvalFields, context: CheckContext) -> tuple[str, ...]:
    if spec.evaluation_params is None:
        return ()
    test = context.test
    case = replace(_case_of(test, None, context.rendered_prompt), trace=trace_of_given(test))
    missing = missing_params(spec.evaluation_params, case)
    if not test.has_output:  # the answer may call tools
        missing = tuple(name for name in missing if name not in _OF_TRACE)
    if context.rendered_prompt is None:  # a broken prompt is reported separately
        return tuple(name for name in missing if name != "input")
    return missing


class LlmEvaluation(GEvalAssertion):
    """evaluation-llm: the criteria of a prompt in the mode `llm`, for every answer; located at the criteria."""

    def applies_to(self, test: MergedTest, templates: Templates) -> bool:
        """Return whether the criteria are not empty once the test's variables are filled in."""
        try:
            return bool(templates.render(str(self.criteria), test.variables).strip())
        except TemplateError:
            return True  # so that the broken template is reported

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the criteria in one test; empty criteria have none."""
        return super().check(context) if self.applies_to(context.test, context.templates) else []

    def prefetch(self, subject: Subject, tools: Tools) -> Iterator[tuple[Judge, ModelRequest]]:
        """Yield the requests for the judge's steps, which do not depend on an output."""
        if self.applies_to(subject.test, tools.templates):
            yield from super().prefetch(subject, tools)

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Have the judge rate the output, given prompt and input; without criteria no judge is called.

        Raises:
            JudgeError: no verdict could be read.
            ProviderError: the judge could not answer.
        """
        if not self.applies_to(subject.test, tools.templates):
            return Outcome.not_evaluated("the prompt has no `evaluation_criteria`")
        return await super().judge(subject, tools)

    def case(self, subject: Subject, tools: Tools) -> JudgedCase:
        """Return what the judge sees of a test and its output, including the prompt."""
        # The prompt is shown in addition to the input, unless it is used as the input.
        case = super().case(subject, tools)
        if subject.system is not None:
            return replace(case, prompt=subject.system)
        if case.input or case.vars.get("input"):
            return replace(case, prompt=case.rendered_prompt)
        return case

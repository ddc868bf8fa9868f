"""The name of an assertion's metric: as written, or what a g-eval or a comparison has for a default."""

from geval_cli.assertions.base import Assertion, MergedTest
from geval_cli.assertions.graded.geval_fields import GEvalFields
from geval_cli.errors import TemplateError
from geval_cli.metrics import default_metric
from geval_cli.templating import Templates

_OF_PROMPTS = "evaluation-llm"


def metric_name(spec: Assertion, test: MergedTest, templates: Templates) -> str | None:
    """Under which name scores are summed up: the `metric` that was written, or what a g-eval has for a default.

    A name is a template. One that is empty in a test is no name there; one that cannot be rendered stays as written.
    """
    if spec.metric is None:
        return default_metric_of(spec, templates)
    try:
        return templates.render(spec.metric, test.variables).strip() or None
    except TemplateError:
        return spec.metric


def default_metric_of(spec: Assertion, templates: Templates) -> str | None:
    """Return the dimension of a g-eval, or, where the dialect takes it, the name of its criteria; else None."""
    if spec.compared_by is not None:
        return default_metric(spec.compared_by, None)
    if not isinstance(spec, GEvalFields):
        return None
    if spec.dimension is not None or not templates.rules.names_geval_by_criteria:
        return spec.dimension
    if spec.base_type == _OF_PROMPTS and not spec.criteria:
        return None
    return default_metric(spec.criteria, spec.evaluation_steps, is_negated=spec.is_negated)

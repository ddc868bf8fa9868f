"""Templates, sandboxed: strict, or as nunjucks renders them, as the dialect has it."""

from geval_cli.templating.templates import TEMPLATE_MARKS, Templates, template_problem, templates_of

__all__ = ["TEMPLATE_MARKS", "Templates", "template_problem", "templates_of"]

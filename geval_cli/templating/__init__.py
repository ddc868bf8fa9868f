"""Templates, sandboxed: strict, or as nunjucks renders them, as the dialect has it."""

from geval_cli.templating.templates import Templates, is_template, template_problem, templates_of

__all__ = ["Templates", "is_template", "template_problem", "templates_of"]

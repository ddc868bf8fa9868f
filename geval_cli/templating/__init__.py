"""Sandboxed templates: strict, or rendered as nunjucks does, depending on the dialect."""

from geval_cli.templating.templates import Templates, is_template, template_problem, templates_of

__all__ = ["Templates", "is_template", "template_problem", "templates_of"]

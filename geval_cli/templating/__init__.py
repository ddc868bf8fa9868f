"""Templates, sandboxed: strict in geval's own dialect, as nunjucks renders them in promptfoo's."""

from geval_cli.templating.registry import templates_of
from geval_cli.templating.templates import TEMPLATE_MARKS, Templates, template_problem

__all__ = ["TEMPLATE_MARKS", "Templates", "template_problem", "templates_of"]

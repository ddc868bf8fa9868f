"""Templates, sandboxed: strict in geval's own dialect, as nunjucks renders them in promptfoo's."""

from geval_cli.templating.nunjucks import NunjucksTemplates
from geval_cli.templating.templates import TEMPLATE_MARKS, Templates, template_problem

__all__ = ["TEMPLATE_MARKS", "NunjucksTemplates", "Templates", "template_problem"]

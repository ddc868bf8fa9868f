"""The templates of each language. Those of nunjucks are an extra, loaded when a suite needs them."""

from collections.abc import Callable, Mapping

from geval_cli.plugins import extra
from geval_cli.records import JsonValue
from geval_cli.specs.dialect import DialectRules
from geval_cli.templating.templates import Templates


def templates_of(
    rules: DialectRules,
    env: Mapping[str, str],
    filters: Mapping[str, Callable[..., JsonValue]] | None = None,
) -> Templates:
    """Return templates in the language of a dialect; `env` is the part of the environment that they may read.

    `filters` come to the built-in ones, where the dialect lets a config bring its own.
    """
    if rules.template_language == "strict":
        return Templates(rules)
    found: Templates = extra("templates: nunjucks").NunjucksTemplates(rules, env, filters)
    return found

"""The templates of each dialect. Those of nunjucks are imported when a suite needs them."""

from collections.abc import Callable, Mapping

from geval_cli.records import JsonValue
from geval_cli.specs.dialect import Dialect
from geval_cli.templating.templates import Templates


def templates_of(
    dialect: Dialect, env: Mapping[str, str], filters: Mapping[str, Callable[..., JsonValue]] | None = None
) -> Templates:
    """Return templates that behave as in `dialect`; `env` is the part of the environment that they may read.

    `filters` come to the built-in ones, where the dialect lets a config bring its own.
    """
    if dialect is not Dialect.PROMPTFOO:
        return Templates()
    from geval_cli.templating.nunjucks import NunjucksTemplates

    return NunjucksTemplates(env, filters)

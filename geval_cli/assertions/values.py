"""The `value` of assertions as they are written in configs: as text, as several texts, rendered."""

import csv
import json
from collections.abc import Callable, Sequence

from geval_cli.assertions.base import CheckContext, MergedTest
from geval_cli.assertions.outcome import shortened
from geval_cli.errors import Problem
from geval_cli.records import JsonValue
from geval_cli.source.source_map import SourcePath
from geval_cli.templating import Templates

_SHOWN = 60  # characters of one of several texts


def as_text(value: JsonValue) -> str:
    """Return a value as text; YAML's `true` is written as in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def compact_json(value: JsonValue) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def render_deep(value: JsonValue, render: Callable[[str], str]) -> JsonValue:
    """`value` with every text in it rendered; keys stay as they are."""
    if isinstance(value, str):
        return render(value)
    if isinstance(value, dict):
        return {key: render_deep(item, render) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [render_deep(item, render) for item in value]
    return value


def rendered_texts(
    value: JsonValue, test: MergedTest, templates: Templates, *, split: bool = False
) -> list[str]:
    """The texts of a `value` that is one text or a list of them, rendered; with `split` one text is cut at commas."""
    variables = test.variables
    if isinstance(value, list | tuple):
        return [templates.render(as_text(item), variables) for item in value]
    text = templates.render(as_text(value), variables)
    return split_at_commas(text) if split else [text]


def check_texts(value: JsonValue, place: SourcePath, context: CheckContext, problems: list[Problem]) -> bool:
    """Report the problems of rendering the texts of a `value`, whose position is `place`.

    Return whether it is known what all of them become.
    """
    if not isinstance(value, list | tuple):
        return context.render(as_text(value), place.value(), problems) is not None
    rendered = [
        context.render(as_text(item), place.value(index), problems) for index, item in enumerate(value)
    ]
    return None not in rendered


def split_at_commas(text: str) -> list[str]:
    """The parts of a text with commas between them, without the space around them; quotes keep a comma in a part."""
    lines = [line for line in text.splitlines() if line.strip()]
    rows = csv.reader(lines, skipinitialspace=True)
    return [part.strip() for row in rows for part in row]


def listed(texts: Sequence[str], limit: int = 5) -> str:
    """Return some texts for use inside a reason."""
    shown = ", ".join(f'"{shortened(text, _SHOWN)}"' for text in texts[:limit])
    return f"{shown} and {len(texts) - limit} more" if len(texts) > limit else shown

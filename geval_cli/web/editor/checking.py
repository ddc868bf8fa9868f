"""The problems of a draft, each with the field beside which the editor shows it."""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.records import JsonValue
from geval_cli.runs.preparation import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.problems import sort_problems
from geval_cli.suite.draft import ComposedSuite, FieldProblem
from geval_cli.suite.draft_fields import PROMPT_FIELDS, PROVIDER_FIELDS, SUITE_FIELDS, TEST_FIELDS, FieldSpec

DIFFERENCE_MAX = 400_000
"""Characters of a text beyond which no difference is shown: finding it would take seconds."""

_PLACE = re.compile(r"(prompts|providers|tests)(?:\[(\d+)\])?(?:\.([A-Za-z_]+))?")
_TOP = re.compile(r"([A-Za-z_]+)")
_FIELDS: dict[str, tuple[FieldSpec, ...]] = {
    "prompts": PROMPT_FIELDS,
    "providers": PROVIDER_FIELDS,
    "tests": TEST_FIELDS,
}
_BODIES = ("raw", "system", "messages")


def draft_problems(request: RunRequest, composed: ComposedSuite) -> list[Problem]:
    """Return the problems that `geval validate` would report of the composed text, warnings too."""
    try:
        return list(prepare(replace(request, draft=composed.text), is_going_to_run=False).warnings)
    except ConfigError as error:
        return sort_problems(error.problems)


def problems_json(fields: Iterable[FieldProblem], problems: Iterable[Problem]) -> list[JsonValue]:
    """Return problems for the page: first those of fields that cannot be read, then those of the whole text.

    `list`, `index` and `field` say where the page shows it; lines of the first kind are those of the field.
    """
    found: list[JsonValue] = []
    for item in fields:
        name, index = item.item or (None, None)
        found.append(_json(item.problem, name, index, item.field, in_field=True))
    return [*found, *(_json(problem, *_target(problem)) for problem in problems)]


def has_errors(composed: ComposedSuite, problems: Iterable[Problem]) -> bool:
    """Return whether a run would refuse the text."""
    return bool(composed.problems) or any(problem.severity is Severity.ERROR for problem in problems)


def difference(before: str, after: str) -> str:
    """Return the lines that change, as `diff -u` shows them; empty when there are none, or too many to look at."""
    if before == after or len(before) + len(after) > DIFFERENCE_MAX:
        return ""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=2, lineterm="")
    return "\n".join(list(lines)[2:])


def _json(
    problem: Problem, name: str | None, index: int | None, field: str, *, in_field: bool = False
) -> dict[str, JsonValue]:
    location = problem.location
    return {
        "severity": problem.severity.value,
        "message": problem.message,
        "hint": problem.hint,
        "notes": list(problem.notes),
        "line": location.line if location else None,
        "column": location.column if location else None,
        "in_field": in_field,
        "list": name,
        "index": index,
        "field": field,
    }


def _target(problem: Problem) -> tuple[str | None, int | None, str]:
    path = problem.location.key_path if problem.location else ""
    found = _PLACE.match(path)
    if found is None:
        top = _TOP.match(path)
        key = top.group(1) if top else ""
        return None, None, next(iter(_named(SUITE_FIELDS, key)), "")
    name, index, key = found.group(1), found.group(2), found.group(3) or ""
    if not key:
        return name, None if index is None else int(index), ""
    field = "body" if name == "prompts" and key in _BODIES else next(iter(_named(_FIELDS[name], key)), "more")
    return name, int(index or 0), field


def _named(specs: tuple[FieldSpec, ...], key: str) -> Iterator[str]:
    yield from (spec.name for spec in specs if key in (spec.name, *spec.also))

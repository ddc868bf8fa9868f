"""Serialize specs as config, with every short form written out and each key in its preferred spelling."""

from collections.abc import Iterator, Sequence
from functools import cache

from geval_cli.assertions.geval_metric import GEvalFields, RubricBandSpec
from geval_cli.records import JsonValue
from geval_cli.specs.base import JurySpec, ProviderSpec, Spec, ToolSet, spellings


def serialize(spec: Spec) -> dict[str, JsonValue]:
    """Return a mapping that reads as an equal spec; keys that were not set are left out."""
    if isinstance(spec, RubricBandSpec):
        if spec.low == spec.high:
            return {"score": spec.low, "description": spec.description}
        return {"score_range": [spec.low, spec.high], "expected_outcome": spec.description}
    given = [name for name in type(spec).model_fields if name in spec.model_fields_set and name != "place"]
    entries = {_first_spelling(type(spec))[name]: _plain(getattr(spec, name)) for name in given}
    if isinstance(spec, ProviderSpec) and spec.label == spec.public_id:
        entries.pop("label", None)
    return {key: entry for key, entry in entries.items() if entry != {} or key not in {"options", "config"}}


def _plain(value: object) -> JsonValue:
    if isinstance(value, JurySpec):  # in a config, a jury is a list of judges
        return [serialize(member) for member in value.members]
    if isinstance(value, Spec):
        return serialize(value)
    if isinstance(value, ToolSet):
        # Tools in the form that a config has; tools that are functions are in files and left out.
        written: dict[str, JsonValue] = {
            "definitions": [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": _plain(dict(tool.parameters)),
                }
                for tool in value.definitions
            ],
            "max_calls": value.max_calls,
        }
        if value.simulator is not None:
            written["simulate"] = {"provider": serialize(value.simulator), "world": value.world}
        if value.recorded:
            answers = [serialize(answer) for answer in value.recorded]
            written["recorded"] = [
                answer if "error" in answer else {"result": None, **answer} for answer in answers
            ]
        return written
    if isinstance(value, tuple | list):
        return list(_listed(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _listed(items: Sequence[object]) -> Iterator[JsonValue]:
    """Yield the items of a list; g-evals made from one assertion with `dimensions` are merged into one again."""
    made: list[GEvalFields] = []
    for item in items:
        if isinstance(item, GEvalFields) and item.dimensions is not None:
            made.append(item)
            if len(made) == len(item.dimensions):
                # Rebuild the assertion that `parts` was called on; a dimension gets a threshold if it differs.
                written = {item.dimension: item.threshold for item in made[0].dimensions or ()}
                shared = next(
                    (part.threshold for part in made if written[part.dimension or ""] is None), None
                )
                entries: list[JsonValue] = [
                    {"dimension": part.dimension}
                    if written[part.dimension or ""] is None and part.threshold == shared
                    else {"dimension": part.dimension, "threshold": part.threshold}
                    for part in made
                ]
                form = {**serialize(made[0]), "dimensions": entries, "threshold": shared}
                unsaid = {"dimension", "threshold"} if shared is None else {"dimension"}
                dimensions_form = {key: entry for key, entry in form.items() if key not in unsaid}
                yield dimensions_form
                made = []
        else:
            yield _plain(item)


@cache
def _first_spelling(model: type[Spec]) -> dict[str, str]:
    first: dict[str, str] = {}
    for spelling, name in spellings(model).items():
        first.setdefault(name, spelling)
    return first

"""Serialize specs as config: every short form written out, each key in its first spelling."""

from functools import cache

from geval_cli.assertions.graded.geval_fields import RubricBandSpec
from geval_cli.records import JsonValue
from geval_cli.specs.base import ProviderSpec, Spec, spellings


def serialize(spec: Spec) -> dict[str, JsonValue]:
    """Return the mapping that reads as an equal spec; keys that were not given are left out."""
    if isinstance(spec, RubricBandSpec):
        return _band_form(spec)
    given = [name for name in type(spec).model_fields if name in spec.model_fields_set and name != "place"]
    entries = {_first_spelling(type(spec))[name]: _plain(getattr(spec, name)) for name in given}
    if isinstance(spec, ProviderSpec) and spec.label == spec.public_id:
        entries.pop("label", None)
    return {key: entry for key, entry in entries.items() if entry != {} or key not in {"options", "config"}}


def _plain(value: object) -> JsonValue:
    if isinstance(value, Spec):
        return serialize(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _band_form(band: RubricBandSpec) -> dict[str, JsonValue]:
    if band.low == band.high:
        return {"score": band.low, "description": band.description}
    return {"score_range": [band.low, band.high], "expected_outcome": band.description}


@cache
def _first_spelling(model: type[Spec]) -> dict[str, str]:
    first: dict[str, str] = {}
    for spelling, name in spellings(model).items():
        first.setdefault(name, spelling)
    return first

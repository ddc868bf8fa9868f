"""Tells which JSON Schemas OpenAI's strict mode takes: every object closed, every property required."""

from collections.abc import Mapping
from typing import Any


def is_strict_safe(schema: Any) -> bool:
    """Whether `schema`, and every schema in it, lists all its properties as required and allows no others."""
    if isinstance(schema, list):
        return all(is_strict_safe(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            return False
        if set(schema.get("required", ())) != set(properties):
            return False
        return all(is_strict_safe(item) for item in properties.values())
    return all(is_strict_safe(schema[key]) for key in ("items", "anyOf", "$defs") if key in schema)

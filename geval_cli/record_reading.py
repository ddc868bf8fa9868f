"""Records from their JSON form, as this geval or another one wrote it."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from geval_cli.records import AskedTest, CaseResult, JsonValue, Role, RunRecord, RunSummary, Usage

T = TypeVar("T")


def case_result_from_json(data: Mapping[str, JsonValue]) -> CaseResult:
    """Return a `CaseResult` from what `to_json` made of it, in this geval or in another one.

    Keys and roles that this geval does not know are passed over.

    Raises:
        ValueError: a key is missing that this geval needs, or what is there is of the wrong kind.
    """
    return _record(data, CaseResult)


def asked_test_from_json(data: Mapping[str, JsonValue]) -> AskedTest:
    """Return an `AskedTest` from what `to_json` made of it; as `case_result_from_json`."""
    return _record(data, AskedTest)


def run_record_from_json(data: Mapping[str, JsonValue]) -> RunRecord:
    """Return a `RunRecord` from what `to_json` made of it; as `case_result_from_json`."""
    return _record(data, RunRecord)


def run_summary_from_json(data: Mapping[str, JsonValue]) -> RunSummary:
    """Return a `RunSummary` from what `to_json` made of it; as `case_result_from_json`."""
    return _record(data, RunSummary)


def usage_by_role_from_json(data: Mapping[str, JsonValue]) -> dict[Role, Usage]:
    """Usage by role from what `to_json` made of it; roles that this geval does not know are passed over."""
    known = {name: item for name, item in data.items() if name in _ROLES}
    return msgspec.convert(known, dict[Role, Usage])


def _record(data: Mapping[str, JsonValue], kind: type[T]) -> T:
    try:
        values = dict(data)
        if "usage" in values:
            values["usage"] = usage_by_role_from_json(values["usage"])
        return msgspec.convert(values, kind)
    except (msgspec.ValidationError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"this is not a {kind.__name__} of this version of geval: {error}") from error


_ROLES = frozenset(role.value for role in Role)

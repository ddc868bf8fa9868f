import json
from types import MappingProxyType

import pytest
from support.sample_run import RUN, SUMMARY, make_case, results_of

from geval_cli.records import to_json
from geval_cli.store.runs import record_text


@pytest.mark.parametrize("record", [RUN, SUMMARY, *results_of()], ids=lambda record: type(record).__name__)
def test_a_record_is_stored_in_its_one_json_form(record: object) -> None:
    assert record_text(record) == json.dumps(to_json(record), ensure_ascii=False, separators=(",", ":"))


def test_mappings_of_any_kind_are_stored() -> None:
    case = make_case(vars=MappingProxyType({"a": MappingProxyType({"b": (1, 2.5, None, True)})}))
    assert json.loads(record_text(case))["vars"] == {"a": {"b": [1, 2.5, None, True]}}


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        record_text(make_case(output=object()))

"""Case results as stored text: the JSON form of `records.to_json`, written and read in one step."""

import json
import sqlite3
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from geval_cli.json_codec import decode_json, encode_json
from geval_cli.metrics import Judged, default_metrics_in, lacks_metrics, with_default_metrics
from geval_cli.record_reading import asked_test_from_json, case_result_from_json
from geval_cli.records import AskedTest, CaseResult, JsonValue
from geval_cli.specs.dialect import RULES
from geval_cli.store.migrations import table_names


def record_text(record: msgspec.Struct) -> str:
    """Return the JSON form of a record as compact text.

    The same as encoding `to_json(record)`, without making its tree first: many times as fast.

    Raises:
        TypeError: there is something in it that has no JSON form.
    """
    return encode_json(record).decode()


def read_case_result(text: str | bytes) -> CaseResult:
    """Return the result that `record_text` wrote, in this geval or in another one.

    Raises:
        ValueError: it is no result that this version of geval can read.
    """
    try:
        return _CASE_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return case_result_from_json(decode_json(text))  # which passes over what it does not know


_CASE_DECODER = msgspec.json.Decoder(CaseResult)
_NO_METRIC = (
    'g-eval","metric":null',
    'evaluation-llm","metric":null',
)  # in the text of a result, after its type
_HAS_ORIGINS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'origins'"
_SELECT_WRITTEN = """
    SELECT json_extract(record, '$.config'), covered FROM runs JOIN origins ON run_id = id WHERE id = ?
"""


def read_asked_test(text: str | bytes) -> AskedTest:
    """Return the test that `record_text` wrote.

    Raises:
        ValueError: it is none.
    """
    try:
        return _TEST_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return asked_test_from_json(decode_json(text))


_TEST_DECODER = msgspec.json.Decoder(AskedTest)
_SELECT_TEST = "SELECT test FROM tests WHERE run_id = ? AND test_index = ?"


class ResultReader:
    """Reads the stored results of one run, with their tests; the results of one test share it.

    G-evals that an older geval left without a metric get their default one.
    """

    def __init__(self, connection: sqlite3.Connection, run_id: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._metrics: Mapping[Judged, str] | None = None
        self._has_tests = "tests" in table_names(connection)
        self._test: tuple[int, AskedTest | UnsetType] = (-1, UNSET)

    def read(self, text: str) -> CaseResult:
        """Return the result that `text` holds."""
        result = read_case_result(text)
        if self._has_tests:
            if self._test[0] != result.test_index:
                found = self._connection.execute(_SELECT_TEST, (self._run_id, result.test_index)).fetchone()
                self._test = (result.test_index, UNSET if found is None else read_asked_test(found[0]))
            result = replace(result, test=self._test[1]) if self._test[1] else result
        if not lacks_metrics(result.assertions):
            return result
        if self._metrics is None:  # looked up late, since a config may be large
            self._metrics = self._default_metrics()
        return with_default_metrics(result, self._metrics)

    def text(self, text: str) -> str:
        """Return the text of a result as `read` has it."""
        return (
            record_text(replace(self.read(text), test=UNSET))
            if any(mark in text for mark in _NO_METRIC)
            else text
        )

    def _default_metrics(self) -> Mapping[Judged, str]:
        if self._connection.execute(_HAS_ORIGINS).fetchone() is None:
            return {}
        found = self._connection.execute(_SELECT_WRITTEN, (self._run_id,)).fetchone()
        return {} if found is None else metrics_of_run(*map(json.loads, found))


def metrics_of_run(config: JsonValue, covered: Mapping[str, JsonValue]) -> Mapping[Judged, str]:
    """Return the default metrics of a run's g-evals; none where the dialect of its config has none.

    `covered` is what the run was begun with, where the dialect stands.
    """
    options = covered.get("options")
    rules = RULES.get(str(options.get("--dialect"))) if isinstance(options, dict) else None
    return default_metrics_in(config) if rules is not None and rules.names_geval_by_criteria else {}

"""Case results as stored text: the JSON form of `records.to_json`, written and read in one step."""

import json
import sqlite3
from collections.abc import Mapping

import msgspec

from geval_cli.json_codec import decode_json, encode_json
from geval_cli.metrics import Judged, default_metrics_in, lacks_metrics, with_default_metrics
from geval_cli.record_reading import case_result_from_json
from geval_cli.records import CaseResult, JsonValue
from geval_cli.specs.dialect import RULES


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


class ResultReader:
    """Reads the stored results of one run; g-evals that an older geval left without a metric get their default one."""

    def __init__(self, connection: sqlite3.Connection, run_id: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._metrics: Mapping[Judged, str] | None = None

    def read(self, text: str) -> CaseResult:
        """Return the result that `text` holds."""
        result = read_case_result(text)
        if not lacks_metrics(result.assertions):
            return result
        if self._metrics is None:  # looked up late, since a config may be large
            self._metrics = self._default_metrics()
        return with_default_metrics(result, self._metrics)

    def text(self, text: str) -> str:
        """Return the text of a result as `read` has it."""
        return record_text(self.read(text)) if any(mark in text for mark in _NO_METRIC) else text

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

"""Case results as stored text: the JSON form of `records.to_json`, written and read in one step."""

import sqlite3

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from geval_cli.json_codec import decode_json, encode_json
from geval_cli.record_reading import asked_test_from_json, case_result_from_json
from geval_cli.records import AskedTest, CaseResult


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
    """Reads the stored results of one run, with their tests; the results of one test share it."""

    def __init__(self, connection: sqlite3.Connection, run_id: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._test: tuple[int, AskedTest | UnsetType] = (-1, UNSET)

    def read(self, text: str) -> CaseResult:
        """Return the result that `text` holds."""
        result = read_case_result(text)
        if self._test[0] != result.test_index:
            found = self._connection.execute(_SELECT_TEST, (self._run_id, result.test_index)).fetchone()
            self._test = (result.test_index, UNSET if found is None else read_asked_test(found[0]))
        return replace(result, test=self._test[1]) if self._test[1] else result

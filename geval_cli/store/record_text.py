"""Case results as the text that is stored: what `records.to_json` says, written and read in one go."""

import msgspec

from geval_cli.json_codec import decode_json, encode_json
from geval_cli.record_reading import case_result_from_json
from geval_cli.records import CaseResult


def record_text(record: msgspec.Struct) -> str:
    """The JSON form of a record as compact text.

    The same as encoding `to_json(record)`, without making its tree first: many times as fast.

    Raises:
        TypeError: there is something in it that has no JSON form.
    """
    return encode_json(record).decode()


def read_case_result(text: str) -> CaseResult:
    """The result that `record_text` wrote, in this geval or in another one.

    Raises:
        ValueError: it is no result that this version of geval can read.
    """
    try:
        return _CASE_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return case_result_from_json(decode_json(text))  # which passes over what it does not know


_CASE_DECODER = msgspec.json.Decoder(CaseResult)

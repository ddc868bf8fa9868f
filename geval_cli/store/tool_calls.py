"""Calls of tools that may do something in the world: each is stored before it is made, its answer before it is used."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from geval_cli.json_codec import decode_json, encode_json
from geval_cli.records import JsonValue

if TYPE_CHECKING:
    import sqlite3

    from geval_cli.store.database import DatabaseThread

_INSERT = (
    "INSERT OR REPLACE INTO tool_calls (run_id, case_id, number, name, arguments) VALUES (?, ?, ?, ?, ?)"
)
_FINISH = "UPDATE tool_calls SET answer = ? WHERE run_id = ? AND case_id = ? AND number = ?"
_SELECT = "SELECT name, arguments, answer FROM tool_calls WHERE run_id = ? AND case_id = ? ORDER BY number"
_HAS_RESULT = "SELECT 1 FROM results WHERE run_id = ? AND case_id = ?"


class StoredCall(Struct, frozen=True):
    """A call that was begun. `answer` is None where none came; `is_told` is whether the case's error says so."""

    name: str
    arguments: JsonValue
    answer: Mapping[str, JsonValue] | None
    is_told: bool


class ToolCallLog:
    """The calls of tools in one run, by case, in the order in which they were made."""

    def __init__(self, writer: "DatabaseThread", run_id: str) -> None:
        self._writer = writer
        self._run_id = run_id

    async def of_case(self, case_id: str) -> list[StoredCall]:
        """Return the calls of a case that were begun so far.

        Raises:
            StoreError: they cannot be read.
        """

        def select(connection: "sqlite3.Connection") -> list[StoredCall]:
            rows = connection.execute(_SELECT, (self._run_id, case_id)).fetchall()
            return [
                StoredCall(
                    name,
                    decode_json(arguments),
                    None if answer is None else decode_json(answer),
                    is_told=answer is not None,
                )
                for name, arguments, answer in rows
            ]

        return await self._writer.run(select)

    async def has_result(self, case_id: str) -> bool:
        """Return whether the run has a result of a case, be it an error.

        Raises:
            StoreError: that cannot be read.
        """
        where = (self._run_id, case_id)
        return await self._writer.run(
            lambda connection: connection.execute(_HAS_RESULT, where).fetchone() is not None
        )

    async def begin(self, case_id: str, number: int, name: str, arguments: JsonValue) -> None:
        """Store that a call is about to be made. It is committed when this returns.

        Raises:
            StoreError: it cannot be stored, so the call must not be made.
        """
        row = (self._run_id, case_id, number, name, encode_json(arguments).decode())
        await self._writer.run(lambda connection: connection.execute(_INSERT, row) and None)

    async def finish(self, case_id: str, number: int, answer: Mapping[str, JsonValue] | None) -> None:
        """Store what a call was answered; None where the case's error is about to say that no answer came.

        Raises:
            StoreError: it cannot be stored.
        """
        row = (encode_json(None if answer is None else dict(answer)).decode(), self._run_id, case_id, number)
        await self._writer.run(lambda connection: connection.execute(_FINISH, row) and None)

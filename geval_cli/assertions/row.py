"""Define the group of outputs that comparing assertions see: all of one test, with the results of each."""

from collections.abc import Sequence

from msgspec import Struct

from geval_cli.assertions.outcome import Subject
from geval_cli.errors import UnjudgeableError
from geval_cli.records import AssertionResult

_LEAST = 2


class RowMember(Struct, frozen=True):
    """One output of a comparison group, with the results of its other assertions."""

    subject: Subject
    assertions: tuple[AssertionResult, ...] = ()


def check_is_comparable(members: Sequence[RowMember]) -> None:
    """Raise UnjudgeableError unless there are several outputs to compare.

    Raises:
        UnjudgeableError: fewer than two outputs could be had.
    """
    if len(members) < _LEAST:
        raise UnjudgeableError(
            "there are fewer than two outputs of this test to compare",
            hint="see the errors of the other cases of the test",
        )

"""Cases packed into a page: what the report's script needs of each, compressed so that ten thousand fit into a mail.

Markup is cut at its tags, and every piece is stored once in a chunk and named by its number after that: pages of cases
are alike, prompts and documents repeat in each column, and neither fits into the window of the compression.

A chunk is JSON: `strings`, and `cases`, each with

    at       test, repeat and column, counted from 0
    status   of the case
    score    of the case, or null
    metrics  by name, the worst status, the score and the number of the reason
    labels   the mean human label by metric; none where nobody labelled it
    meta     the metadata that cases are chosen by, as lists of texts
    head     the numbers of the pieces of its test's title and variables; with the first case of a test alone
    cell     those of its cell in the matrix
    page     those of its page
    texts    those of the texts in which a search looks
    sha      the digest by which labels name its output; none where there is no output
    test     the key of its test, which labels name, too; none where nothing of it can be labelled
    id       of the result, where it is not made of `at`

Beside it stands what the page exports of the same cases, a chunk of its own since few readers ask for it; a page of
many cases has none.
It has two lines for each case: that of a file of JSON Lines, and a list of

    fixed    its cells in a CSV file, of the columns that every file has, joined
    named    its other cells by the heads of their columns: those of scores, of variables, and of metadata
    turns    the cell of its conversation; empty without one
"""

import base64
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from geval_cli.json_codec import encode_json
from geval_cli.records import CaseResult
from geval_cli.report.csv_file import (
    METADATA_COLUMN,
    SCORE_COLUMN,
    VARIABLE_COLUMN,
    csv_cells,
    csv_head,
)
from geval_cli.report.html.environment import short_text
from geval_cli.report.html.matrix import Chip, first_reason
from geval_cli.report.json_file import json_text
from geval_cli.report.sanitize import output_digest, whole_text
from geval_cli.store.result_filter import metadata_texts, searched_texts

CASES_PER_CHUNK = 500
REASON_WIDTH = 160
"""As in a cell of the matrix."""
_TAG = re.compile(r"(<[^>]*>)")
_INDENTATION = re.compile(r">\s+<(?!/pre)")
"""White space between tags, which means no more than one space does; in a `pre` it is what a model said."""


class PackedCase(Struct, frozen=True, omit_defaults=True):
    """One case as it stands in a chunk; the module says what each field holds."""

    at: tuple[int, int, int]
    status: str
    score: float | None
    metrics: dict[str, tuple[str, float | None, int]]
    meta: dict[str, tuple[str, ...]]
    cell: list[int]
    page: list[int]
    texts: list[int]
    head: list[int] = field(default_factory=list)
    sha: str = ""
    test: str = ""
    id: str = ""
    labels: dict[str, float] = field(default_factory=dict)


class ExportedCells(Struct, frozen=True, array_like=True):
    """The cells of one case in a CSV file; the module says what each field holds."""

    fixed: str
    named: tuple[dict[str, str], ...]
    turns: str


def exported_lines(result: CaseResult) -> str:
    """Return the two lines of a case, made by what writes such files."""
    cells = csv_cells(result)
    scores, variables, metadata = (
        {csv_head(f"{kind} {name}"): text for name, text in found.items()}
        for kind, found in (
            (SCORE_COLUMN, cells.scores),
            (VARIABLE_COLUMN, cells.variables),
            (METADATA_COLUMN, cells.metadata),
        )
    )
    asked = {csv_head(name): text for name, text in cells.asked.items()}
    exported = ExportedCells(cells.fixed, (asked, scores, variables, metadata), cells.conversation)
    return f"{json_text(result)}\n{encode_json(exported).decode()}"


class Packer(Struct):
    """Collects the cases of one chunk, with what is exported of them if it `has_exports`; holds that chunk alone."""

    has_exports: bool = True
    _numbers: dict[str, int] = field(default_factory=dict)
    _cases: list[PackedCase] = field(default_factory=list)
    _exported: list[str] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self._cases) >= CASES_PER_CHUNK

    def add(
        self,
        result: CaseResult,
        chips: Iterable[Chip],
        labels: Mapping[str, float],
        *,
        cell: str,
        page: str,
        head: str = "",
    ) -> None:
        """Add a case with its markup: its cell, its page, and for the first one of a row the title of the test.

        `labels` are the mean human labels of it by metric.
        """
        meta = {name: metadata_texts(value) for name, value in result.metadata.items()}
        place = (result.test_index, result.repeat_index, result.column)
        metrics = {
            chip.name: (
                chip.status.value,
                _rounded(chip.score),
                self._number(short_text(first_reason(result, chip.name), REASON_WIDTH)),
            )
            for chip in chips
        }
        packed = PackedCase(
            at=place,
            status=result.status.value,
            score=_rounded(result.score),
            metrics=metrics,
            meta={name: texts for name, texts in meta.items() if texts},
            head=self._pieces(head),
            cell=self._pieces(cell),
            page=self._pieces(page),
            sha="" if result.output is None else output_digest(result.output),
            test=result.test_key or "" if metrics else "",
            id="" if result.id == ".".join(map(str, place)) else result.id,
            labels={name: round(label, 9) for name, label in labels.items()},
            texts=[self._number(text) for text in dict.fromkeys(searched_texts(result)) if text],
        )
        self._cases.append(packed)
        if self.has_exports:
            self._exported.append(exported_lines(result))

    def packed(self) -> tuple[str, str]:
        """Return the chunk, and what is exported of its cases, as texts in base64, and begin another one.

        The second one is empty where nothing is exported.
        """
        strings = json.dumps(
            [whole_text(text) for text in self._numbers], ensure_ascii=False, separators=(",", ":")
        )
        text = b'{"strings":%s,"cases":%s}' % (strings.encode(), encode_json(self._cases))
        exported = "\n".join(self._exported).encode()
        self._numbers, self._cases, self._exported = {}, [], []
        return _packed(text), _packed(exported) if self.has_exports else ""

    def _pieces(self, markup: str) -> list[int]:
        """Return the numbers of the tags of a piece of markup and of what stands between them."""
        parts: Sequence[str] = _TAG.split(_INDENTATION.sub("> <", markup.strip()))
        return [self._number(part) for part in parts if part]

    def _number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))


def _packed(data: bytes) -> str:
    made = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = made.compress(data) + made.flush()
    return base64.b64encode(deflated).decode()


def _rounded(score: float | None) -> float | None:
    """Return a score as it is sorted by."""
    return None if score is None else round(score, 9)

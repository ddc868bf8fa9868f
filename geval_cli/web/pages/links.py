"""Addresses of pages, and what their queries say; what makes no sense in a query is passed over."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar
from urllib.parse import quote, urlencode

from fastapi import Request

from geval_cli.records import CaseResult
from geval_cli.store.run_pages import StoredVerdict

WordT = TypeVar("WordT", bound=StrEnum)

_PAGE_DIGITS_MAX = 9


def run_link(run_id: str) -> str:
    """Return the link to a run."""
    return f"/runs/{quote(run_id, safe='')}"


def case_link(run_id: str, case: CaseResult | StoredVerdict) -> str:
    """Return the link to one case of a run."""
    return f"{run_link(run_id)}/results/{case.test_index}/{case.repeat_index}/{case.column}"


def link_with(path: str, values: Mapping[str, object]) -> str:
    """Return `path` with the given values as its query; empty ones are left out."""
    query = urlencode(
        {name: str(value) for name, value in values.items() if value not in (None, "")}, errors="replace"
    )
    return f"{path}?{query}" if query else path


def page_number(request: Request) -> int:
    """Return the page asked for, counted from 1."""
    text = request.query_params.get("page", "")
    is_number = text.isascii() and text.isdigit() and len(text) <= _PAGE_DIGITS_MAX
    return max(int(text), 1) if is_number else 1


def page_count(total: int, size: int) -> int:
    """Return how many pages of `size` it takes, at least one."""
    return max(-(-total // size), 1)


def word_in_query(request: Request, name: str, kind: type[WordT]) -> WordT | None:
    """Return the value of a query parameter that knows only the words of `kind`."""
    text = request.query_params.get(name)
    return next((word for word in kind if word.value == text), None)

"""Styles and scripts that stand in a page itself, and their names in its content security policy."""

import base64
import hashlib
from functools import cache

from geval_cli.report.html.environment import STATIC_FOLDER


@cache
def asset(name: str) -> str:
    """Return the text of a style or script of the page and the report."""
    return (STATIC_FOLDER / name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """Return the name of an inline style or script in a content security policy: its hash."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""`-o results.html`: the whole run as one page that opens from disk, needs no network and can be mailed."""

import base64
import hashlib
import html
from collections.abc import Iterator
from pathlib import Path
from string import Template

from geval_cli.events import RunEvent
from geval_cli.records import CaseResult, Status, to_json
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import sanitize

CASES_MAX = 20_000
"""Above it, passed cases are left out and counted: browsers cannot hold a hundred thousand prompts."""

_FOLDER = Path(__file__).with_name("html")

_PROBLEMS = frozenset({Status.FAILED, Status.ERROR})


class HtmlFile:
    """A results file that needs the whole report; it lets the events pass.

    The results are in the page as JSON, from which its script draws them as text: nothing that a model said is
    markup. A content security policy lets nothing run but that script, and nothing be fetched.
    """

    def __init__(self, path: Path, cases_max: int = CASES_MAX) -> None:
        self._path = path
        self._cases_max = cases_max

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        total = problems = 0
        for result in report.results():
            total += 1
            problems += result.status in _PROBLEMS
        room = max(self._cases_max - problems, 0)
        left_out = max(total - max(self._cases_max, problems), 0)
        style, script = (_asset("static/colours.css") + _asset("page.css")), _asset("page.js")
        run = {"run": _without_config(report), "summary": report.summary, "left_out": left_out}
        head = Template(_asset("page.html")).substitute(
            title=html.escape(sanitize(report.run.config_path)),
            style=style,
            style_hash=_hash(style),
            script_hash=_hash(script),
            run=_embedded(run),
        )
        with SafeFile(self._path) as file:
            file.write(head.rstrip("\n"))
            file.write("[")
            for position, result in enumerate(_chosen(report, room)):
                file.write((",\n" if position else "") + _embedded(result))
            file.write(f"]</script>\n<script>{script}</script>\n</body>\n</html>\n")


def _chosen(report: RunReport, room: int) -> Iterator[CaseResult]:
    """Yield every case that did not pass, and the first `room` others, in the order of the tests."""
    for result in report.results():
        if result.status in _PROBLEMS:
            yield result
        elif room > 0:
            room -= 1
            yield result


def _without_config(report: RunReport) -> object:
    """Return the run's record without its config, which the page does not show and which may be large."""
    return {name: value for name, value in to_json(report.run).items() if name != "config"}


def _embedded(value: object) -> str:
    """JSON that is safely within a script element: no tag and no comment can begin in it."""
    return json_text(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the name of an inline style or script in a content security policy: its hash."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

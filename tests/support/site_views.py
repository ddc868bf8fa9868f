"""A site with every page on it, as people see it, and what the rules of axe-core say about each one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from support.axe import violations
from support.browser import Visit
from support.realistic_runs import Shape, store_history
from support.sample_run import RUN
from support.stored_runs import store_hostile_run

from geval_cli.records import RunStatus
from geval_cli.store.runs import RunStore

OPEN_DETAILS = """
document.querySelectorAll('details:not([data-charts-section])').forEach((item) => { item.open = true; });
"""
"""All but the drawings, which have their own pages."""
BREAK_AND_SAVE = """
const text = document.querySelector('[data-path="prompts[0].raw"]');
text.value = '{{ nothing }}';
text.dispatchEvent(new Event('input', { bubbles: true }));
document.querySelector('[data-save]').click();
"""

SUITE = """\
description: Everything that a form shows
prompts:
  - id: desk
    raw: "{{ input }}, {{ tone }}"
providers: [echo]
defaultTest:
  vars: { tone: kind }
  options: { provider: echo }
tests:
  - description: a plain one
    input: Where is my parcel?
    assert:
      - type: assert-set
        threshold: 0.5
        assert:
          - type: contains
            value: parcel
      - type: g-eval
        checklist: [It names the parcel]
  - turns:
      - user: Hello
      - user: And now?
"""


@dataclass(frozen=True)
class View:
    """A page as someone sees it: the actions to take on it first, and the element that shows that they were taken."""

    path: str
    script: str = ""
    shown: str = "h1"


def store_site(folder: Path, shape: Shape) -> dict[str, View]:
    """Fill a folder with realistic runs, an unfinished one, a hostile one and a suite; return its pages."""
    *_, before, after = store_history(folder, shape, 2)
    hostile = store_hostile_run(folder)
    runs = RunStore.open(folder / ".geval")
    runs.begin(replace(RUN, status=RunStatus.RUNNING, finished_at=None, duration_ms=None))
    runs.close()
    (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    run, pair = f"/runs/{after}", f"?before={before}&after={after}"
    editor = "/suites/edit?path=suite.yaml"
    return {
        "runs": View("/", OPEN_DETAILS),
        "runs of a tag": View("/?tag=a=b"),
        "run": View(f"{run}?status=failed", OPEN_DETAILS),
        "run by a metric": View(
            f"{run}?metric=tone",
            "for (const menu of document.querySelectorAll('[data-columns], [data-more-filters]')) menu.open = true;",
        ),
        "run renamed": View(f"/runs/{hostile}", "document.querySelector('[data-act=rename]').click();"),
        "run deleted": View(f"/runs/{hostile}", "document.querySelector('[data-act=remove]').click();"),
        "run under way": View(f"/runs/{RUN.id}"),
        "charts": View(f"{run}/charts", shown=".chart-drawing"),
        "case": View(f"{run}/results/1/0/0", OPEN_DETAILS),
        "case in a drawer": View(
            f"/runs/{hostile}", "document.querySelector('[data-cell]').click();", "dialog[open] h2"
        ),
        "label": View(f"{run}/label"),
        "labels": View(f"{run}/labels", OPEN_DETAILS),
        "compare": View(f"/compare{pair}", OPEN_DETAILS),
        "compare others": View(f"/compare?before={before}&after={hostile}"),
        "compare charts": View(f"/compare/charts{pair}", shown=".chart-drawing"),
        "suites": View("/suites"),
        "editor": View(editor, OPEN_DETAILS, ".assertion-line .chip"),
        "refused save": View(editor, OPEN_DETAILS + BREAK_AND_SAVE, "[data-messages] .is-error"),
        "docs": View("/docs", OPEN_DETAILS),
        "nothing": View("/nothing"),
    }


def barriers(
    window: Visit, view: View, sights: Mapping[tuple[str, tuple[int, int]], tuple[str, ...]]
) -> list[str]:
    """Open a page once and return its problems, by theme and size; each with the rules to check.

    An empty tuple means all rules. A phone must not scroll sideways.
    """
    page = window.page
    window.go(view.path)
    page.evaluate(f"() => {{ {view.script} }}")
    page.locator(view.shown).first.wait_for()
    return [problem for sight, rules in sights.items() for problem in _barriers(window, sight, rules)]


def _barriers(window: Visit, sight: tuple[str, tuple[int, int]], rules: tuple[str, ...]) -> Iterator[str]:
    theme, (width, height) = sight
    window.page.set_viewport_size({"width": width, "height": height})
    window.page.emulate_media(color_scheme=theme)
    for violation in violations(window.page, *rules):
        yield f"{theme}, {width} px: {violation}"
    if window.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        yield f"{theme}, {width} px: scrolls sideways"

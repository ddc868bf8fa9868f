"""The page of the suite editor: a suite to edit, and the parts of the page that tests look at."""

from pathlib import Path
from textwrap import dedent
from typing import Any

from support.browser import Visit

SUITE = dedent("""\
    # A bakery, with comments that must stay
    description: A bakery

    prompts:
      # the one prompt
      - id: reply
        system: Answer in one sentence. # short!
        evaluation_mode: llm
        evaluation_criteria: |
          The answer is friendly.

    providers:
      - scripted:replies.yaml

    defaultTest:
      options: { provider: scripted:judge.yaml, scoring: single }

    tests:
      # first
      - description: an order
        input: Two loaves # of rye
        assert:
          # what counts
          - type: icontains # any case
            value: bread

      - description: a question
        input: Are you open?
    """)
REPLIES = "- reply: We have bread and opening hours.\n  latency_ms: 20\n"
JUDGE = """\
- match: '"steps"'
  reply: '{"steps": ["Is it friendly?"]}'
- reply: '{"score": 9, "reason": "friendly"}'
"""


def open_editor(window: Visit, name: str = "suite.yaml") -> None:
    window.go(f"/suites/edit?path={name}")
    window.page.wait_for_selector("[data-problem-count]:not(:empty)")


def card(window: Visit, items: str, number: int = 1) -> Any:
    return window.page.locator(f"[data-items={items}] > article").nth(number - 1)


def field(place: Any, name: str) -> Any:
    return place.locator(f"[data-field={name}] [data-input]")


def open_test(window: Visit, number: int) -> Any:
    found = card(window, "tests", number)
    found.locator("[data-toggle]").click()
    return found


def save(window: Visit) -> None:
    window.page.get_by_role("button", name="Save", exact=True).click()
    wait_for_state(window, "Saved")


def wait_for_state(window: Visit, text: str) -> None:
    window.page.locator("[data-state]", has_text=text).wait_for()


def text_of(folder: Path) -> str:
    return (folder / "suite.yaml").read_text(encoding="utf-8")


def assertion(window: Visit, name: str) -> Any:
    """The form of an assertion of the first test: `2`, or of a set `1 of set 2`."""
    return card(window, "tests").get_by_role("group", name=f"Assertion {name}", exact=True)


def wait_for_value(locator: Any, value: str) -> None:
    from playwright.sync_api import expect

    expect(locator).to_have_value(value, timeout=60_000)

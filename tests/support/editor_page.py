"""The page of the suite editor: a suite to edit, and the elements of the page that tests use."""

import re
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


def field(window: Visit, path: str) -> Any:
    """Return the form field for a value, such as `tests[0].input`."""
    return window.page.locator(f'[data-path="{path}"]')


def open_test(window: Visit, number: int) -> None:
    window.page.locator("[data-items=tests] summary").nth(number - 1).click()


def yaml_of(window: Visit) -> Any:
    """Return the code editor with the YAML."""
    return window.page.get_by_role("textbox", name="YAML of")


def save(window: Visit) -> None:
    window.page.get_by_role("button", name="Save", exact=True).click()
    wait_for_state(window, "Saved")


def wait_for_state(window: Visit, text: str) -> None:
    window.page.locator("[data-state]", has_text=re.compile(f"^{text}")).wait_for()


def text_of(folder: Path) -> str:
    return (folder / "suite.yaml").read_text(encoding="utf-8")

"""Checks a page in a real browser with the rules of axe-core, for barriers to assistive technology."""

from typing import Any

import pytest

_RUN = """
async (rules) => {
  // How to find again what a rule has nothing against would take as long as the rules.
  const options = { resultTypes: ["violations"], selectors: false, preload: false };
  const found = await axe.run(document, rules.length ? { ...options, runOnly: rules } : options);
  // A rule that broke, as of a colour that it cannot read, would pass in silence.
  const broken = found.incomplete.filter((rule) => rule.error).map((rule) => `${rule.id}: ${rule.error.message}`);
  const nodes = found.violations.flatMap((rule) => rule.nodes.map((node) => [rule, node]));
  return [...broken, ...nodes.map(([rule, node]) => `${rule.id} (${rule.impact}): ${node.html.slice(0, 200)}`)];
}
"""


def violations(page: Any, *rules: str) -> list[str]:
    """Return all violations of some rules, or of all rules, on the current page, whatever their impact.

    Skips the test if axe-core is missing.
    """
    try:
        from axe_core_python.base import AXE_SCRIPT
    except ImportError:
        pytest.skip("axe-core is not installed (pip install axe-core-python)")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    return list(page.evaluate(_RUN, list(rules)))

"""What pages and files repeat of the code is made from the code: `make docs` writes it, and here it is compared.

A page holds such a part between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from support.config_page import settings_table, with_config_tables

from geval_cli.extras.json_schema import config_json_schema
from geval_cli.extras.promptfoo.differences import ASSERTIONS, MATTERS, difference_table
from geval_cli.providers.preset_table import PRESETS, Preset

ROOT = Path(__file__).parents[1]


def vendor_table() -> str:
    """Every preset: what an id looks like, where its key is looked up, and where requests go."""
    rows = (
        f"| `{name}:MODEL` | {preset.title}: `{preset.example}` | {key_of(preset)} | {address_of(preset)} |"
        for name, preset in PRESETS.items()
    )
    return "\n".join(("| id | what it is | key | address |", "| --- | --- | --- | --- |", *rows))


def vendors_with_prices() -> str:
    names = ", ".join(f"`{name}:`" for name, preset in PRESETS.items() if preset.price_vendor)
    return textwrap.fill(f"List prices are known for `azure:`, `vertex:`, {names}.", 120)


def key_of(preset: Preset) -> str:
    names = in_code(preset.key_envs)
    return names if preset.needs_key else f"none needed ({names})"


def address_of(preset: Preset) -> str:
    account = f"`{preset.account_key}`, or {in_code(preset.account_envs)}; " if preset.account_url else ""
    fixed = f"`{preset.base_url or 'base_url'}`"
    return account + fixed + (f", or {in_code(preset.base_url_envs)}" if preset.base_url_envs else "")


def in_code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def with_part(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the marks of this name."""
    begin, end = f"<!-- generated: {name} -->\n", f"\n<!-- end of {name} -->"
    assert page.count(begin) == page.count(end) == 1, f"the page has no part that is named {name}"
    return page[: page.index(begin) + len(begin)] + text + page[page.index(end) :]


def with_differences(page: str) -> str:
    general = with_part(page, "differences in general", difference_table(MATTERS, "matter"))
    return with_part(general, "differences of assertions", difference_table(ASSERTIONS, "type"))


GENERATED: Mapping[str, Callable[[str], str]] = {
    "docs/reference/config-keys.md": with_config_tables,
    "docs/reference/promptfoo.md": with_differences,
    "docs/reference/provider-settings.md": lambda page: with_part(
        page, "settings of a provider", settings_table()
    ),
    "docs/providers.md": lambda page: with_part(
        with_part(page, "vendors", vendor_table()), "vendors with list prices", vendors_with_prices()
    ),
    "examples/configs/gevalconfig.schema.json": lambda _: (
        json.dumps(config_json_schema(), indent=2, ensure_ascii=False) + "\n"
    ),
}


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_generated_is_up_to_date(name: str, update_expected: bool) -> None:
    path = ROOT / name
    page = path.read_text(encoding="utf-8")
    wanted = GENERATED[name](page)
    if update_expected:
        path.write_text(wanted, encoding="utf-8")
        page = wanted
    assert page == wanted, f"{name} is older than the code: run `make docs`"


def test_every_generated_part_belongs_to_a_rule() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    marked = {
        page.relative_to(ROOT).as_posix()
        for page in pages
        if re.search(r"^<!-- generated: ", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert marked == {name for name in GENERATED if name.endswith(".md")}


def test_a_part_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- generated: x -->\nold\n<!-- end of x -->\nb\n"
    assert with_part(page, "x", "new") == page.replace("old", "new")

"""The pages as a whole: all of them can be found, begin with an example, and name every option and key."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from support.config_page import PARTS
from support.own_code import module_texts
from typer.core import TyperCommand, TyperGroup

from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.cli.app import app, as_typed, names_of_commands
from geval_cli.errors import UsageError
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.judge.prompt import DIMENSIONS
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.specs.base import spellings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.name != "index.md")
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in [*DOCS.rglob("*.md"), ROOT / "README.md"])


def links_of(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))


def test_every_page_is_in_the_index_once() -> None:
    linked = [name for name in links_of(DOCS / "index.md") if not name.startswith("..")]
    assert sorted(linked) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_the_readme_leads_to_the_index_first() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(([^)]+)\)", readme[readme.index("## Read on") :])[0] == "docs/index.md"


WITHOUT_EXAMPLE = {"decisions.md"}


def sentences(paragraph: str) -> int:
    return len(re.findall(r"[.!?](?=\s|$)", paragraph))


def before_the_first_example(page: str) -> list[str]:
    """The paragraphs between the title and the first block of code."""
    return page.partition("\n```")[0].split("\n\n")[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    title, purpose = page.read_text(encoding="utf-8").split("\n\n")[:2]
    assert title.startswith("# ")
    assert purpose[0] not in "#|`-<"
    assert sentences(purpose) in {1, 2}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in WITHOUT_EXAMPLE], ids=lambda page: page.name
)
def test_a_page_shows_an_example_before_long_rules(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "```" in text
    paragraphs = before_the_first_example(text)
    assert [text for text in paragraphs if len(text.split()) > 60 and not text.startswith("|")] == []


def test_a_page_that_begins_with_rules_is_found() -> None:
    page = f"# Title\n\nOne. Two.\n\n{'rule ' * 61}\n\n```yaml\nx: 1\n```\n"
    assert [len(paragraph.split()) for paragraph in before_the_first_example(page)] == [2, 61]


def test_the_configs_of_the_config_page_are_valid(tmp_path: Path) -> None:
    text = "\n".join(
        (DOCS / name).read_text(encoding="utf-8") for name in ("config.md", "reference/config-keys.md")
    )
    configs = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(configs) == 3
    for config in configs:
        path = tmp_path / "gevalconfig.yaml"
        path.write_text(config, encoding="utf-8")
        request = RunRequest(path, environ={"OPENAI_API_KEY": "key-0123456789"})
        assert prepare(request, is_going_to_run=False).warnings == ()


def commands(group: TyperGroup, name: str) -> Iterator[tuple[str, TyperCommand]]:
    """Every command with its name, those of groups too."""
    context: Any = None
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{name} {word}")
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield f"{name} {word}", command


def options_not_named(text: str) -> dict[str, list[list[str]]]:
    """The options of each command that a text names in none of their spellings; hidden ones need no page."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    named = set(re.findall(r"[\w-]+", text))
    found: dict[str, list[list[str]]] = {}
    for name, command in commands(root, "geval"):
        for option in command.params:
            words = [word for word in (*option.opts, *option.secondary_opts) if word.startswith("-")]
            if words and named.isdisjoint(words) and not getattr(option, "hidden", False):
                found.setdefault(name, []).append(words)
    return found


def test_every_option_of_every_command_is_named_on_a_page() -> None:
    assert options_not_named(TEXT) == {}, "name these options on a page of docs/"


def test_every_command_is_named_on_a_page() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    names = [name for name, _ in commands(root, "geval")]
    assert len(names) > 10
    assert [name for name in names if name not in TEXT] == [], "name these commands on a page of docs/"


def wrong_commands(text: str) -> list[str]:
    """The commands between backticks that geval has not, or not with these options or so many arguments."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    known = dict(commands(root, "geval"))
    groups = {name.rpartition(" ")[0] for name in known} - {"geval"}
    return [written for written in COMMAND.findall(text) if not is_right(written, known, groups)]


COMMAND = re.compile(r"`(geval [a-z][^`\n]*)`")


def is_right(written: str, known: dict[str, TyperCommand], groups: set[str]) -> bool:
    try:
        words = ["geval", *as_typed(re.split(r" [|>&;]", written)[0].split()[1:], names_of_commands())]
    except UsageError:
        return False
    size = next((size for size in (3, 2) if " ".join(words[:size]) in known), 0)
    if not size:
        return " ".join(words[:2]) in groups and all(word.startswith("-") for word in words[2:])
    command = known[" ".join(words[:size])]
    context = command.context_class(command)
    try:
        values, too_many, _ = command.make_parser(context).parse_args(words[size:])
    except Exception as error:  # noqa: BLE001 - depending on its version, typer has click's classes or its own
        return type(error).__name__ == "BadOptionUsage"  # an option is named without its value
    configs = [value for name, value in values.items() if name in {"config", "configs"}]
    files = [file for value in configs for file in (value if isinstance(value, list | tuple) else [value])]
    return not too_many and not any(str(file).isalpha() and str(file).islower() for file in files)


NOT_COMMANDS = {"geval case", "geval {near}"}
"""The name of a span, and a command that is filled in."""


def test_every_command_in_pages_and_messages_is_one() -> None:
    shown = "\n".join([TEXT, *module_texts().values()])
    assert [text for text in wrong_commands(shown) if text not in NOT_COMMANDS] == []


def test_a_wrong_command_is_found() -> None:
    wrong = ["geval list assertions", "geval run --resum", "geval shw", "geval cache cleer", "geval show a b"]
    assert wrong_commands("".join(f"`{text}`" for text in wrong)) == wrong


def test_every_kind_of_json_document_is_on_the_page_of_reports() -> None:
    page = (DOCS / "reference" / "reports.md").read_text(encoding="utf-8")
    table = page[page.index("| kind |") :].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    head = r'schema_version"?(?:: |=)\{?\w+\}?,(?:\\n|\s)*"?kind"?(?:: |=)"(\w+)"'
    known = re.findall(head, "".join(module_texts().values()))
    assert sorted(named) == sorted(set(known)), "the table of kinds in docs/reference/reports.md"


def test_an_option_that_no_page_names_is_found() -> None:
    missing = options_not_named(TEXT.replace("--fail-under", "--fail-over"))
    assert [name for name, options in missing.items() if ["--fail-under"] in options] == [
        "geval run",
        "geval judge",
    ]


def keys_of_the_page() -> Iterator[tuple[str, str]]:
    """The generated parts of the reference and the keys in their tables, every spelling of them."""
    names = ("config-keys.md", "provider-settings.md")
    page = "".join((DOCS / "reference" / name).read_text(encoding="utf-8") for name in names)
    for name in [*PARTS, "settings of a provider", "keys of each type"]:
        start = page.index(f"<!-- generated: {name} -->")
        part = page[start : page.index(f"<!-- end of {name} -->")]
        for row in re.findall(r"^\| (`[^|]+) \|", part, re.MULTILINE):
            yield from ((name, key) for key in re.findall(r"`([^`]+)`", row))


def keys_of_schema(schema: Any) -> set[str]:
    """Every key that a schema knows, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(keys_of_schema, schema))
    if not isinstance(schema, dict):
        return set()
    own = schema["properties"].keys() if isinstance(schema.get("properties"), dict) else set()
    return set(own).union(*map(keys_of_schema, schema.values()))


def test_every_key_of_the_reference_is_accepted_by_the_schema() -> None:
    schema = config_json_schema()
    definitions = schema["$defs"]
    homes: dict[str, Any] = {
        "a config": {"properties": schema["properties"]},
        "a test": definitions["test"],
        "options of a test": definitions["testOptions"],
        "a prompt": definitions["prompt"],
        "a provider": definitions["provider"],
        "settings of a provider": definitions["provider"],
        "a chat message": definitions["chatMessages"],
        "prompts of a judge": definitions["rubricPrompt"],
    }
    named = list(keys_of_the_page())
    assert len(named) > 100
    assert [pair for pair in named if pair[1] not in keys_of_schema(homes.get(pair[0], schema))] == []


@pytest.mark.parametrize("kind", ASSERTION_TYPES)
def test_each_type_of_assertion_may_have_the_keys_that_the_reference_gives_it(kind: str) -> None:
    assert set(schema_of_type(kind)["properties"]) == set(spellings(ASSERTION_TYPES[kind]))


def schema_of_type(kind: str) -> Any:
    branches = config_json_schema()["$defs"]["assertion"]["allOf"]
    (branch,) = [item["then"] for item in branches if kind in item["if"]["properties"]["type"]["enum"]]
    return branch


def choices_of_schema(schema: Any) -> set[str]:
    """Every text that a schema lists as a possible value, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(choices_of_schema, schema))
    if not isinstance(schema, dict):
        return set()
    own = {item for item in schema.get("enum", ()) if isinstance(item, str)}
    return own.union(*map(choices_of_schema, schema.values()))


def rows_of_types(page: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The rows of a page that say what makes a type of assertion pass: the types, and the cells by heading."""
    for table in re.findall(r"^\| type \|.*\n\| ---.*\n(?:\|.*\n)+", page, re.MULTILINE):
        heading, _, *rows = [
            [cell.strip() for cell in re.split(r" \|(?: |$)", line.removeprefix("| "))][:-1]
            for line in table.splitlines()
        ]
        if any(name.startswith("passes") or "threshold" in name for name in heading):
            for row in rows:
                yield re.findall(r"`([^`]+)`", row[0]), dict(zip(heading[1:], row[1:], strict=True))


NOT_KEYS = {
    "contains": {"i"},
    "is-xml": {"root", "child"},
    "contains-all": {"a", "b", "c"},
    "finish-reason": {"stop", "length", "tool_calls", "content_filter"},
    "context-precision": {"expected_output"},
    "is-valid-openai-tools-call": {"tools"},
    "is-valid-openai-function-call": {"functions"},
    "trace-error-spans": {"error"},
}
"""Words between backticks that name something else: letters, examples, finish reasons, keys of tests and providers."""


def keys_named(cells: dict[str, str]) -> set[str]:
    """What the cells of a row name as keys: between backticks, in a heading, inside of braces."""
    named = [
        word
        for cell in cells.values()
        for word in re.findall(r"`([^`]+)`", cell)
        if word not in ASSERTION_TYPES
    ]
    for heading, cell in cells.items():
        if heading == "`value`" and cell not in {"none", "\u2013"}:
            named.append("value")
        if heading == "default `threshold`":
            named.append("threshold")
    return {key for word in named for key in re.findall(r"[A-Za-z_]\w*", word)}


def keys_not_accepted(page: str) -> dict[str, set[str]]:
    """By type of assertion, what its row names and its schema does not have."""
    found: dict[str, set[str]] = {}
    for types, cells in rows_of_types(page):
        for kind in types:
            schema = schema_of_type(kind)
            known = keys_of_schema(schema) | choices_of_schema(schema)
            found[kind] = keys_named(cells) - known
            if cells.get("`value`") in {"none", "\u2013"} and "value" in known:
                found[kind].add("value")
    return found


def test_an_assertion_accepts_every_key_that_its_row_names() -> None:
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("assertions.md", "reference/agents.md")]
    found = keys_not_accepted("\n".join(pages))
    assert len(found) > 50
    of_first = {types[0]: set(types) for types, _ in rows_of_types("\n".join(pages))}
    expected = {kind: words for first, words in NOT_KEYS.items() for kind in of_first[first]}
    assert {kind: words for kind, words in found.items() if words} == expected


def test_a_row_that_names_a_wrong_key_is_found() -> None:
    page = "| type | passes if | `value` |\n| --- | --- | --- |\n| `word-count`, `is-html` | it has `{min, mx}` |"
    assert keys_not_accepted(f"{page} a text |\n") == {
        "word-count": {"mx"},
        "is-html": {"min", "mx", "value"},
    }
    assert keys_not_accepted(f"{page} none |\n")["word-count"] == {"mx", "value"}


def lists_of_dimensions(text: str) -> list[list[str]]:
    """Every list of words that names all dimensions, or all but two; SummEval's four are a list of their own."""
    word = r"`?[a-z]+`?"
    lists = re.findall(rf"{word}(?:(?:, (?:or |and )?| or | and | # ){word})+", text)
    named = [re.findall(r"[a-z]+", re.sub(r" (?:or|and) ", ", ", item)) for item in lists]
    return [names for names in named if len(DIMENSIONS.keys() - set(names)) <= 2]


def test_every_list_of_dimensions_names_all_of_them() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples" / "configs").glob("*.yaml")]
    found = {page.name: lists_of_dimensions(page.read_text(encoding="utf-8")) for page in pages}
    lists = {name: lists for name, lists in found.items() if lists}
    every = list(DIMENSIONS)
    assert lists == {"README.md": [every] * 2, "config-keys.md": [every], "g-eval-assertion.yaml": [every]}


def test_a_list_that_lacks_a_dimension_or_has_another_is_found() -> None:
    first, *others = DIMENSIONS
    assert lists_of_dimensions(f"dimension: {', '.join(others)}; or criteria") == [others]
    assert lists_of_dimensions(f"`{first}` # {', '.join(others[:-1])}, grace or {others[-1]}.") == [
        [first, *others[:-1], "grace", others[-1]]
    ]


def test_no_page_holds_the_marks_of_an_unfinished_merge() -> None:
    marked = re.findall(r"^(?:<{7} .*|={7}|>{7} .*)$", TEXT, re.MULTILINE)
    assert marked == []

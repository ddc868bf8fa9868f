"""docs/assertions.md: every snippet of it is read, and every type is there with a config."""

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.specs import case, check_context
from support.suites import load_suite

from geval_cli.assertions.base import Assertion, ModelGradedAssertion, SimulatedUser
from geval_cli.assertions.registry import ASSERTION_TYPES, check_assertion
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.source.source_map import SourcePath
from geval_cli.source.yaml_source import read_yaml, write_yaml

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "assertions.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
WHOLE = re.findall(r"^```yaml config\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PAGES = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
ASK_JUDGES = frozenset(
    name for name, spec in ASSERTION_TYPES.items() if issubclass(spec, ModelGradedAssertion)
)


def config_of(snippet: str) -> str:
    assertions = read_yaml(snippet, "docs/assertions.md").value
    return write_yaml(
        {"tests": [{"output": "x", "vars": {"expected": "x", "city": "x"}, "assert": assertions}]}
    )


def assertions_of(folder: Path, text: str) -> tuple[Assertion, ...]:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    [test] = load_suite(path, env={}).tests
    return test.assertions


@pytest.mark.parametrize("text", [*map(config_of, SNIPPETS), *WHOLE])
def test_every_config_on_the_page_is_valid(text: str, tmp_path: Path) -> None:
    Draft202012Validator(config_json_schema()).validate(read_yaml(text, "x").value)
    found = assertions_of(tmp_path, text)
    context = check_context(
        case(
            vars={"expected": "x", "city": "x", "context": "x"},
            assertions=found,
            user=SimulatedUser(SourcePath.nowhere()),
        )
    )
    for spec in found:
        assert check_assertion(spec, context) == []


def test_every_type_without_a_judge_has_a_config_on_the_page(tmp_path: Path) -> None:
    shown = set()
    for text in map(config_of, SNIPPETS):
        for spec in assertions_of(tmp_path, text):
            shown |= {spec.base_type, *(member.base_type for member in spec.members)}
    built_here = {name for name in ASSERTION_TYPES if name not in ASK_JUDGES}
    in_whole_configs = {"contains", "javascript", "python", "max-score"}
    without = built_here - in_whole_configs - shown - {"icontains-all", "icontains-any"}
    assert without == set(), "docs/assertions.md needs an example of these types"


def test_every_check_with_a_judge_has_a_config_on_some_page() -> None:
    shown = {name for name in ASK_JUDGES if re.search(rf"\btype: [\"']?{name}(?=[\"',}}\n])", PAGES)}
    of_class = {ASSERTION_TYPES[name] for name in shown}
    without = [name for name in ASK_JUDGES if ASSERTION_TYPES[name] not in of_class]
    assert without == [], "a page of docs/ needs an example of these types"


def test_every_type_is_explained_and_not_only_shown() -> None:
    pages = PAGE + (DOCS / "reference" / "agents.md").read_text(encoding="utf-8")
    of_class = {kind for name, kind in ASSERTION_TYPES.items() if f"`{name}`" in pages}
    without = [name for name, kind in ASSERTION_TYPES.items() if kind not in of_class]
    assert without == [], "a table of docs/assertions.md needs a row on these types"

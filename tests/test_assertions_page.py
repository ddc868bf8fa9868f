"""docs/assertions.md: every snippet of it is read, and every type is there with a config."""

import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.graded import SpeakingJudge, graded, graded_tools
from support.specs import assertion, case, check_context
from support.suites import load_suite

from geval_cli.assertions.base import Assertion, ModelGradedAssertion, SimulatedUser
from geval_cli.assertions.registry import ASSERTION_TYPES, check_assertion
from geval_cli.errors import JudgeError, ProviderError, TemplateError
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.records import TraceStep
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


OWN_PROMPTS = re.findall(
    r"^\| (`[^|]+`) \| ([^|]+) \| ([^|]+) \|$",
    PAGE[PAGE.index("**Your own judge prompt.**") :].split("\n```")[0],
    re.M,
)
COMPARED = ("select-best", "pairwise")
NAMES_OF_PROMPTS = (
    *(
        "output",
        "rubric",
        "prompt",
        "input",
        "ideal",
        "completion",
        "criteria",
        "question",
        "choices",
        "context",
    ),
    *(
        "groundTruth",
        "query",
        "statements",
        "answer",
        "claims",
        "messages",
        "outputs",
        "output_1",
        "output_2",
    ),
    *("goal", "trajectory", "nowhere"),
)
KEYS: dict[str, dict[str, Any]] = {
    "choice": {"value": "Which?", "choices": {"formal": 1, "rude": 0}},
    **{name: {} for name in ("conversation-relevance", "answer-relevance", "citation-correctness")},
    **{name: {} for name in ("context-relevance", "context-faithfulness")},
    "pairwise": {"criteria": "better"},
}
TEST: dict[str, Any] = {
    "vars": {"context": "It is May."},
    "trace": (TraceStep(type="tool", name="find"),),
}


def own_prompts(part: str, name: str) -> dict[str, str]:
    return {"steps": "x", "evaluate": "x"} | {part: f"{{{{ {name} }}}}"}


def is_sent(kind: str, part: str, name: str) -> bool:
    """Return whether a judge gets a prompt with this name in it; the replies can be read as far as they must."""
    judge = SpeakingJudge(['{"statements": ["It is May."]}'])
    prompt = own_prompts(part, name)
    keys = KEYS.get(kind, {"value": "It is May."})
    try:
        graded(kind, graded_tools(judge=judge), output="May [1].", test=TEST, rubricPrompt=prompt, **keys)
    except TemplateError:
        return False
    except (JudgeError, ProviderError):
        pass
    return True


@pytest.mark.parametrize(("kinds", "variables", "_"), OWN_PROMPTS, ids=[row[0] for row in OWN_PROMPTS])
def test_the_names_of_own_prompts_are_those_of_the_page(kinds: str, variables: str, _: str) -> None:
    for kind in re.findall(r"`([^`]+)`", kinds):
        of_page = OWN_PROMPTS[[row[0] for row in OWN_PROMPTS].index("`context-faithfulness`")]
        words = of_page[1] if "as `context-faithfulness`" in variables else variables
        parts = {"evaluate": words}
        if "in `steps`" in words:
            parts = {"steps": words.split(" in `steps`")[0], "evaluate": words.split(" in `steps`")[1]}
        for part, named in parts.items():
            listed = set(re.findall(r"`(\w+)`", named)) & set(NAMES_OF_PROMPTS)
            keys = KEYS.get(kind, {"value": "It is May."})
            context = check_context(case(**TEST))
            accepted = {
                name
                for name in NAMES_OF_PROMPTS
                if not check_assertion(assertion(kind, rubricPrompt=own_prompts(part, name), **keys), context)
            }
            assert listed <= accepted
            assert accepted - listed <= {"context", "output", "question"}, "a name that the page lacks"
            if kind not in COMPARED:
                assert accepted == {name for name in NAMES_OF_PROMPTS if is_sent(kind, part, name)}


@pytest.mark.parametrize(("kinds", "_", "replies"), OWN_PROMPTS, ids=[row[0] for row in OWN_PROMPTS])
def test_the_replies_to_own_prompts_that_the_page_shows_are_read(kinds: str, _: str, replies: str) -> None:
    for kind in re.findall(r"`([^`]+)`", kinds):
        shown = re.findall(r"`(\{[^`]+\})`", replies)
        if kind in COMPARED or not shown or kind == "search-rubric":
            continue
        judge = SpeakingJudge(shown)
        own = {"steps": "x", "evaluate": "y"} if len(shown) > 1 else "x"
        keys = KEYS.get(kind, {"value": "It is May."})
        found = graded(
            kind, graded_tools(judge=judge), output="May [1].", test=TEST, rubricPrompt=own, **keys
        )
        assert found.score is not None
        assert len(judge.requests) == len(shown)

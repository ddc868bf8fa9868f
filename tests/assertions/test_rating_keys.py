"""Both keys of a rating: what changes them, what does not, and that equal ratings are not asked for again."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.graded import SpeakingJudge, graded, graded_tools

from geval_cli.assertions.registry import judge_facts
from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import AssertionResult

_STEPS = '{"steps": ["Read it.", "Rate it."]}'
_RATING = '{"reason": "fair", "score": 6}'
_VECTORS = {"the output": [1, 0], "near": [0.8, 0.6], "far": [0, 1], "Q?": [1, 0], "the prompt": [0.6, 0.8]}


@dataclass(frozen=True)
class Kind:
    """A judged type with keys of a config, replies of its judge, and other keys that decide a rating."""

    name: str
    keys: dict[str, Any]
    replies: tuple[str, ...]
    deciding: tuple[dict[str, Any], ...] = ()
    test: dict[str, Any] | None = None


_KINDS = (
    Kind(
        "g-eval",
        {"criteria": "Polite."},
        (_STEPS, _RATING),
        (
            {"criteria": "Short."},
            {"score_range": (0, 20)},
            {"rubric": ({"low": 0, "high": 10, "description": "any"},)},
            {"guidelines": ("Count typos.",)},
            {"examples": ({"output": "hi", "rating": 3},)},
            {"evaluation_params": ("actual_output",)},
            {"scoring": "single"},
            {"samples": 3},
            {"evaluation_steps": ("Look.",)},
            {"score_step": 0.5},
            {"rubric_prompt": "Rate {{ output }}"},
        ),
    ),
    Kind(
        "llm-rubric",
        {"value": "Polite."},
        ('{"pass": true, "score": 0.6, "reason": "r"}',),
        ({"value": "Short."},),
    ),
    Kind("model-graded-closedqa", {"value": "Polite?"}, ("Y",), ({"value": "Short?"},)),
    Kind("factuality", {"value": "Ann"}, ('{"category": "A", "reason": "r"}',), ({"value": "Bob"},)),
    Kind("answer-relevance", {}, ("Q?",)),
    Kind(
        "context-recall",
        {"value": "Known."},
        ('{"sentences": [{"sentence": "s", "attributed": true}, {"sentence": "t", "attributed": false}]}',),
        ({"value": "Other."},),
        {"context": "c"},
    ),
    Kind("context-relevance", {}, ('{"relevant": [1]}',), (), {"context": ("c", "d")}),
    Kind("conversation-relevance", {}, ("yes",), ({"config": {"window_size": 2}},)),
    Kind("classifier", {"provider": {"id": "python:c.py"}}, ('{"good": 0.6}',), ({"value": "good"},)),
    Kind("moderation", {}, ('{"violence": 0.5}',), ({"value": ("hate",)},)),
    Kind("similar", {"value": ("near", "far")}, (), ({"value": ("near",)},)),
)
_IDS = [kind.name for kind in _KINDS]


def _rated(
    kind: Kind, *, output: str = "the output", judge: SpeakingJudge | None = None, **keys: Any
) -> AssertionResult:
    tools = graded_tools(*kind.replies, vectors={**_VECTORS, output: [1, 0]}, judge=judge)
    result = graded(kind.name, tools, output=output, test=kind.test, **{**kind.keys, **keys})
    assert result.error is None
    return result


def _keys(result: AssertionResult) -> tuple[str, str]:
    found = result.detail["criterion_key"], result.detail["rating_key"]
    assert all(key.startswith("sha256:") and len(key) == 71 for key in found)
    return found


@pytest.mark.parametrize("kind", _KINDS, ids=_IDS)
def test_what_a_rating_means_is_in_neither_key(kind: Kind) -> None:
    plain = _keys(_rated(kind))

    for keys in ({"threshold": 0.9}, {"threshold": 0.1}, {"weight": 3}, {"metric": "m"}):
        assert _keys(_rated(kind, **keys)) == plain, keys


@pytest.mark.parametrize("kind", _KINDS, ids=_IDS)
def test_what_decides_a_rating_changes_the_keys(kind: Kind) -> None:
    plain = _keys(_rated(kind))

    for keys in kind.deciding:
        criterion, rating = _keys(_rated(kind, **keys))
        assert criterion != plain[0], keys
        assert rating != plain[1], keys
    criterion, rating = _keys(_rated(kind, output="another output"))
    assert criterion == plain[0]
    assert rating != plain[1]


@pytest.mark.parametrize(
    "kind", [kind for kind in _KINDS if kind.name != "similar"], ids=lambda kind: kind.name
)
def test_another_judge_changes_the_keys_and_other_words_of_it_do_not(kind: Kind) -> None:
    plain = _keys(_rated(kind))
    warm = SpeakingJudge(kind.replies, provider_params={"temperature": 0.7})
    other = SpeakingJudge(kind.replies, label="scripted:other")

    for judge in (warm, other):
        found = _keys(_rated(kind, judge=judge))
        assert found[0] != plain[0]
        assert found[1] != plain[1]


def test_other_steps_of_the_same_judge_are_another_criterion() -> None:
    kind = _KINDS[0]
    plain = _keys(_rated(kind))
    others = Kind(kind.name, kind.keys, ('{"steps": ["Look at it."]}', _RATING))

    assert _keys(_rated(others))[0] != plain[0]


@pytest.mark.parametrize("kind", _KINDS, ids=_IDS)
@pytest.mark.parametrize("negation", ["", "not-"])
@pytest.mark.parametrize("threshold", [None, 0.05, 0.55, 0.95])
def test_an_equal_rating_is_taken_over_and_held_against_the_threshold_of_today(
    kind: Kind, negation: str, threshold: float | None
) -> None:
    """With any threshold the verdict, score and reason are what asking again would have given."""
    name, keys = f"{negation}{kind.name}", {**kind.keys, "threshold": threshold}
    first = graded(name, graded_tools(*kind.replies, vectors=_VECTORS), test=kind.test, **kind.keys)
    asked_again = graded(name, graded_tools(*kind.replies, vectors=_VECTORS), test=kind.test, **keys)
    asked: list[str] = []
    tools = replace(graded_tools("unreadable", asked=asked), earlier=(first,))

    taken = graded(name, tools, test=kind.test, **keys)

    assert asked == []
    assert (taken.status, taken.score, taken.threshold) == (
        asked_again.status,
        asked_again.score,
        asked_again.threshold,
    )
    assert taken.reason == asked_again.reason
    assert _keys(taken) == _keys(first)


def test_a_rating_of_another_text_or_an_error_is_not_taken_over() -> None:
    kind = _KINDS[1]
    first = _rated(kind, output="another output")
    asked: list[str] = []
    tools = replace(graded_tools(*kind.replies, asked=asked), earlier=(first,))

    assert graded(kind.name, tools, **kind.keys).score == 0.6
    assert asked


@dataclass(frozen=True)
class _Known:
    identity: ProviderIdentity
    label: str = "a judge"
    public_id: str = "openai:m"


def _facts(endpoint: str, **params: Any) -> Any:
    return judge_facts(_Known(ProviderIdentity("openai", "m", endpoint, params)))  # type: ignore[arg-type]


def test_credentials_are_no_part_of_a_judge() -> None:
    plain = _facts("https://host/v1", temperature=0, headers={"x-api-key": "a"})

    assert _facts("https://user:secret@host/v1?key=1", temperature=0, headers={"x-api-key": "b"}) == plain
    assert _facts("https://host/v2", temperature=0, headers={"x-api-key": "a"}) != plain
    assert _facts("https://host/v1", temperature=1, headers={"x-api-key": "a"}) != plain
    assert "secret" not in str(plain)


def test_the_keys_are_the_same_in_every_process() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from assertions.test_rating_keys import _KINDS, _keys, _rated\n"
        "print([_keys(_rated(kind)) for kind in _KINDS])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )

    assert found.stdout.strip() == str([_keys(_rated(kind)) for kind in _KINDS])

"""decision-tree: questions whose answers lead to further questions or to a score."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace
from pydantic import Field, PrivateAttr

from geval_cli.assertions.base import Assertion, Outcome, Subject, Tools
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.numbers import format_score
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import Score, Spec, describe_value
from geval_cli.suite.assertions import read_assertion
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields

_DEFAULT_THRESHOLD = 0.5


class TreeNode(Spec):
    """A question of a decision tree, and where each answer leads: to another node or to a score from 0 to 1."""

    question: str | None = Field(None, description="What the judge is asked; a template.")
    assertion: Assertion | None = Field(
        None, alias="assert", description="An assertion in place of a question: `yes` if it passes."
    )
    yes: "TreeNode | Score | None" = Field(
        None, description="Where yes leads: a node, or a score from 0 to 1."
    )
    no: "TreeNode | Score | None" = Field(None, description="Where no leads: a node, or a score from 0 to 1.")
    choices: dict[str, "TreeNode | Score"] | None = Field(
        None, description="Where each choice leads, in place of `yes` and `no`."
    )

    _asked: Assertion = PrivateAttr()

    @property
    def asked(self) -> Assertion:
        """The assertion that decides: the configured one, or a judge's yes/no answer or choice."""
        return self._asked

    def with_asked(self, asked: Assertion) -> "TreeNode":
        """Return the node with another deciding assertion."""
        self._asked = asked
        return self

    @property
    def branches(self) -> "dict[str, TreeNode | Score | None]":
        """Return the node or score that each answer leads to."""
        return {"yes": self.yes, "no": self.no} if self.choices is None else dict(self.choices)

    def nodes(self) -> "Iterator[TreeNode]":
        """Yield this node and all nodes below it."""
        yield self
        for branch in self.branches.values():
            if isinstance(branch, TreeNode):
                yield from branch.nodes()


class DecisionTreeAssertion(Assertion):
    """decision-tree: questions that lead to further questions, and scores at the ends."""

    tree: TreeNode = Field(description="The first question.")
    threshold: Score | None = Field(None, description="The lowest passing score; 0.5 by default.")

    @property
    def members(self) -> tuple[Assertion, ...]:
        """The assertions of all nodes; an output is checked by those on its path."""
        return tuple(node.asked for node in self.tree.nodes())

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Follow the answers from question to question; the result is the score at the end.

        If a question cannot be judged, the whole result is an error.
        """
        visited: list[AssertionResult] = []
        path: list[str] = []
        place: TreeNode | float | None = self.tree
        while isinstance(place, TreeNode):
            [result] = await tools.judge_each((place.asked,), subject)
            visited.append(result)
            asked = place.question or f"{result.type}?"
            if result.status is Status.ERROR:
                reason = f"could not be judged: {asked}"
                return Outcome(Status.ERROR, None, reason, assertions=tuple(visited))
            answer = "yes" if result.status is Status.PASSED else "no"
            if place.choices is not None:
                answer = str(result.detail["choice"])
                # A choice only says where to go on: no answer is a failed one, and what it is worth is said at the end.
                visited[-1] = replace(
                    result, status=Status.PASSED, score=None, threshold=None, threshold_is_default=False
                )
            path.append(f"{asked} {answer}")
            place = place.branches[answer]
        assert place is not None  # each answer leads somewhere: the config was checked
        threshold = _DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        reason = f"{' → '.join(path)} → {format_score(place)}"
        outcome = Outcome.graded(place, reason, threshold, is_default=self.threshold is None, path=path)
        return replace(outcome, assertions=tuple(visited))


_MOST_NODES_DEEP = 50
_HUMAN = "human"  # decides nothing: a person has to
_NODE_FORMS = (
    "{question: ..., yes: NODE, no: NODE}, {question: ..., choices: {NAME: NODE, ...}} or "
    "{assert: {...}, yes: NODE, no: NODE}, where NODE is a further node or a score from 0 to 1",
)


def read_tree(value: JsonValue, place: SourcePath, reading: LoadContext, depth: int = 1) -> Any:
    """Read a node of a decision tree and everything below it; None, with a problem for each mistake."""
    before = reading.errors
    if depth > _MOST_NODES_DEEP:
        reading.report(f"a decision tree can be {_MOST_NODES_DEEP} questions deep at most", place.value())
        return None
    fields = read_fields(TreeNode, value, place, "a node of a decision tree", reading)
    if fields is None:
        return None
    values = fields.values
    if ("question" in values) == ("assertion" in values):
        what = "both `question` and `assert`" if "question" in values else "neither `question` nor `assert`"
        reading.report(f"a node of a decision tree has {what}", place.value(), notes=_NODE_FORMS)
        return None
    answers = [name for name in ("yes", "no") if name in values]
    if "choices" in values and (answers or "assertion" in values):
        what = f"`{answers[0]}`" if answers else "`assert`"
        reading.report(
            f"a node cannot have both `choices` and {what}", place.key("choices"), notes=_NODE_FORMS
        )
        return None
    if "choices" in values:
        choices = values["choices"]
        at = fields.child("choices")
        if not isinstance(choices, dict) or len(choices) < 2:  # noqa: PLR2004
            reading.report(
                "`choices` must be a mapping of at least two choices", at.value(), notes=_NODE_FORMS
            )
            return None
        values["choices"] = {
            name: _read_branch(end, at.child(name), reading, depth) for name, end in choices.items()
        }
    else:
        for name in [name for name in ("yes", "no") if name not in values]:
            hint = "write a score from 0 to 1, or a further node"
            reading.report(f"a node of a decision tree has no `{name}`", place.value(), hint)
        for name in answers:
            values[name] = _read_branch(values[name], fields.child(name), reading, depth)
    asked = _asked_in(fields, reading)
    if asked is None or reading.errors > before:
        return None
    node = build_spec(TreeNode, fields, reading)
    return None if node is None else node.with_asked(asked)


def _read_branch(value: JsonValue, place: SourcePath, reading: LoadContext, depth: int) -> Any:
    if isinstance(value, dict):
        return read_tree(value, place, reading, depth + 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        message = f"an end of a decision tree must be a score from 0 to 1, found {describe_value(value)}"
        reading.report(message, place.value(), "or write a further node")
        return None
    return float(value)


def _asked_in(fields: Fields, reading: LoadContext) -> Assertion | None:
    """Return the assertion that decides at a node: its own, or a judge's answer to its question."""
    values = fields.values
    if "assertion" in values:
        place = fields.child("assertion")
        asked = read_assertion(values["assertion"], place, reading)
        if asked is None:
            return None
        values["assertion"] = asked
        if asked.members or asked.compares_outputs or asked.base_type == _HUMAN:
            message = f"{asked.base_type} cannot decide at a node of a decision tree"
            hint = (
                "an assertion that geval evaluates"
                if asked.base_type == _HUMAN
                else "an assertion on a single output"
            )
            reading.report(message, place.value("type"), f"use {hint}")
        return asked
    place = fields.child("question")
    question = reading.text(values["question"], place.value, is_for_models=True)
    if not isinstance(question, str) or not question.strip():
        reading.report("the question of a node must be a text", place.value())
        return None
    values["question"] = question
    asked_by = {"value": question, "place": fields.place}
    choices = values.get("choices")
    if isinstance(choices, dict):
        ends = {name: end if isinstance(end, float) else 0.0 for name, end in choices.items()}
        return ASSERTION_TYPES["choice"].model_validate({"type": "choice", "choices": ends, **asked_by})
    return ASSERTION_TYPES["model-graded-closedqa"].model_validate(
        {"type": "model-graded-closedqa", **asked_by}
    )

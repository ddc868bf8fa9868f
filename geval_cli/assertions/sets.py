"""Assertions that hold others, or wait for a person: assert-set, decision-tree, human."""

from collections.abc import Iterator

from msgspec.structs import replace
from pydantic import AliasChoices, Field, PrivateAttr

from geval_cli.assertions.base import Assertion, Outcome, Subject, Tools, verdict_of
from geval_cli.numbers import format_score, format_score_beside, format_threshold
from geval_cli.records import AssertionResult, Status
from geval_cli.specs.base import Score, Spec


class HumanAssertion(Assertion):
    """human: a note for a human reviewer; stored with the result, not evaluated."""

    value: str | None = Field(None, description="What the reviewer should look at.")

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Not evaluated."""
        return Outcome.not_evaluated("a person has to judge this")


class AssertSet(Assertion):
    """assert-set: a group of assertions that counts as one."""

    assertions: tuple[Assertion, ...] = Field(
        validation_alias=AliasChoices("assert", "assertions"),
        description="The assertions of the set; sets don't nest.",
    )
    threshold: Score | None = Field(
        None,
        description=(
            "If set, the weighted mean score of the set must reach it; single assertions don't decide."
        ),
    )

    @property
    def members(self) -> tuple[Assertion, ...]:
        return self.assertions

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Judge all members side by side. Without a threshold each of them must pass."""
        results = tuple(await tools.judge_each(self.assertions, subject))
        verdict = verdict_of(results, self.threshold)
        return Outcome(
            status=verdict.status,
            score=verdict.score,
            reason=_reason(results, verdict.score, self.threshold),
            threshold=self.threshold,
            assertions=results,
        )


def _reason(results: tuple[AssertionResult, ...], score: float | None, threshold: float | None) -> str:
    errored = [result for result in results if result.status is Status.ERROR]
    failed = [result for result in results if result.status is Status.FAILED and result.weight]
    if failed and threshold is None:
        return f"{failed[0].type}: {failed[0].reason or 'failed'}"
    if errored:
        return f"{len(errored)} of {len(results)} assertions in the set could not be judged"
    if threshold is not None and score is not None:
        own = format_score_beside(score, threshold)
        return f"the score of the set is {own}; the threshold is {format_threshold(threshold)}"
    passed = sum(result.status is Status.PASSED for result in results)
    if not passed:
        return "no assertion in the set was evaluated"
    if passed == len(results):
        return f"all {passed} assertions in the set pass" if passed > 1 else "the assertion in the set passes"
    return f"{passed} of {len(results)} assertions in the set pass, and the others decide nothing"


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
        """The assertion that decides: that of the config, or a judge's yes or no, or its choice."""
        return self._asked

    def with_asked(self, asked: Assertion) -> "TreeNode":
        """Return the node with the assertion that decides."""
        self._asked = asked
        return self

    @property
    def branches(self) -> "dict[str, TreeNode | Score | None]":
        """Return the node or the score behind each answer."""
        return {"yes": self.yes, "no": self.no} if self.choices is None else dict(self.choices)

    def nodes(self) -> "Iterator[TreeNode]":
        """Yield this node and all that it leads to."""
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
        """The assertions of all nodes, of which an output meets those on its path."""
        return tuple(node.asked for node in self.tree.nodes())

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Follow the answers from question to question; the score is the one at the end.

        A question that could not be judged makes the whole an error.
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

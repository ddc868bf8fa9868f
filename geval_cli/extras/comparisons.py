"""Assertions that compare the outputs of one test: select-best, max-score, pairwise, and the resulting verdicts."""

import asyncio
import math
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace
from pydantic import AliasChoices, Field

from geval_cli.assertions.base import (
    EXPECTED_OUTPUT,
    PAIRS,
    Amount,
    Assertion,
    CheckContext,
    MergedTest,
    ModelGradedAssertion,
    Outcome,
    RowColumn,
    RowMember,
    Subject,
    Tools,
    ValueRules,
    Verdict,
    Weight,
    shortened,
    verdict_of,
)
from geval_cli.assertions.judges import judge_provider
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.engine.case import JobContext, PendingResult
from geval_cli.engine.judge_output import Meter, compare_outputs, metered_tools
from geval_cli.engine.plan import Job, assertions_of
from geval_cli.errors import GevalError, JudgeError, NotDoneError, Problem, Severity, UnjudgeableError
from geval_cli.extras.graded.asking import JudgeClient, Question, check_own_prompt, check_value, own_prompt
from geval_cli.extras.graded.verdicts import SPELLINGS, parse_choice, parse_winner, weigh_words
from geval_cli.judge.calls import is_cut_off, reply_schema
from geval_cli.judge.estimate import MIN_COVERAGE, passes
from geval_cli.judge.metric import JudgedCase
from geval_cli.judge.prompt import Block, prompt_digest
from geval_cli.judge.source import resolve_input
from geval_cli.metrics import named_scores
from geval_cli.numbers import format_score, format_score_beside, format_threshold, plural
from geval_cli.records import AssertionResult, CaseResult, Choice, JsonValue, Purpose, Role, Status, Usage
from geval_cli.source.problems import did_you_mean
from geval_cli.specs.base import Score

_COMPARING = ("select-best", "max-score")
_LEAST_COMPARED = 2
_DIGITS = 9  # of scores that are compared: beyond them lies rounding
_CHOICE_SCHEMA: Mapping[str, Any] = reply_schema({"reason": {"type": "string"}, "best": {"type": "integer"}})


def _severity(context: CheckContext) -> Severity:
    """Return the severity of what promptfoo ignores."""
    return Severity.WARNING if context.rules.skips_null else Severity.ERROR


def _problems_of_transform(spec: Assertion, context: CheckContext) -> list[Problem]:
    if spec.transform is None:
        return []
    message = f"{spec.base_type} compares whole outputs and cannot have a `transform`"
    hint = "put it into `options` of the test, for all its assertions"
    return [Problem(message, spec.place.value("transform"), hint, severity=_severity(context))]


class MaxScoreRules(ValueRules):
    """How the scores of one output are combined into one number."""

    method: Literal["average", "sum"] = Field("average", description="The weighted mean or the weighted sum.")
    weights: dict[str, Weight] = Field(
        default_factory=dict, description="The weight of each assertion type; 1 by default."
    )
    threshold: Amount | None = Field(None, description="The lowest score with which the best output passes.")


class MaxScoreAssertion(Assertion):
    """max-score: the output whose other assertions have the highest score passes."""

    value_form = (MaxScoreRules, "the rules of a max-score")
    compares_outputs = True

    value: MaxScoreRules = Field(
        default_factory=MaxScoreRules,
        description="How to combine the scores: {method, weights, threshold}.",
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems: no other assertions, whose scores could be compared, or weights of unknown types."""
        problems = _problems_of_transform(self, context)
        for name in self.value.weights:
            if name.removeprefix("not-") not in ASSERTION_TYPES:
                near = did_you_mean(name, [*ASSERTION_TYPES])
                hint = f"did you mean `{near}`?" if near else "name the types of the test's assertions"
                message = f"`weights` of max-score names the unknown type `{name}`"
                problems.append(
                    Problem(message, self.place.value("value"), hint, severity=_severity(context))
                )
        if all(other.compares_outputs for other in context.test.assertions):
            message = "max-score compares the scores of other assertions, and there are none"
            hint = "add the assertions that score the outputs"
            problems.append(Problem(message, self.place.value("type"), hint))
        return problems

    async def judge_row(self, members: Sequence[RowMember], tools: Tools) -> Sequence[Outcome]:
        """Pass the output with the highest score, the first one if there is a tie.

        Raises:
            UnjudgeableError: there are fewer than two outputs, or none of them has a score.
        """
        del tools
        check_is_comparable(members)
        if not any(_scored(member.assertions) for member in members):
            hint = "add assertions that score the outputs"
            raise UnjudgeableError("no other assertion gives the outputs of this test a score", hint=hint)
        scores = [total_score(member.assertions, self.value) for member in members]
        highest = max(scores)
        reaches = self.value.threshold is None or passes(highest, self.value.threshold)
        best = scores.index(highest) if reaches else -1
        return [
            Outcome.of(
                place == best, _score_reason(score, highest, self.value, chosen=place == best), total=score
            )
            for place, score in enumerate(scores)
        ]


def total_score(assertions: Sequence[AssertionResult], rules: MaxScoreRules) -> float:
    """Return the weighted mean or sum of the scores; an assertion type without a weight weighs 1."""
    weighed = [(rules.weights.get(result.type, 1.0), score) for result, score in _scored(assertions)]
    total = math.fsum(weight * score for weight, score in weighed)
    weights = math.fsum(weight for weight, _ in weighed)
    if rules.method == "average":
        total = total / weights if weights else 0.0
    return round(total, _DIGITS)


def _scored(assertions: Sequence[AssertionResult]) -> list[tuple[AssertionResult, float]]:
    """Return the other assertions that gave a score; one that evaluates nothing, such as `human`, gives none."""
    return [
        (result, result.score)
        for result in assertions
        if result.score is not None and result.type.removeprefix("not-") not in _COMPARING
    ]


def _score_reason(score: float, highest: float, rules: MaxScoreRules, *, chosen: bool) -> str:
    if chosen:
        return f"the highest score in the row: {format_score(score)}"
    if rules.threshold is not None and not passes(highest, rules.threshold):
        own = format_score_beside(score, rules.threshold)
        return f"no output in the row reaches {format_threshold(rules.threshold)}; this one has {own}"
    own, best = format_score_beside(score, highest), format_score_beside(highest, score)
    return f"the score is {own}; the highest in the row is {best}"


class SelectBestAssertion(ModelGradedAssertion):
    """select-best: a judge picks the output of a test that best meets the criterion."""

    value_form = "text"
    compares_outputs = True

    value: str = Field(description="The criterion; a template, may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the criterion and with the user's own prompt in one test."""
        problems = _problems_of_transform(self, context)
        check_value(self, self.value, "criterion", context, problems)
        check_own_prompt(self, context, ("criteria", "outputs"), problems)
        return problems

    async def judge_row(self, members: Sequence[RowMember], tools: Tools) -> Sequence[Outcome]:
        """Pass the output that the judge chose; outcomes in the order of `members`.

        Raises:
            JudgeError, ProviderError: the judge made no valid choice.
            UnjudgeableError: there are fewer than two outputs.
        """
        check_is_comparable(members)
        subject = members[0].subject
        criterion = tools.templates.render(self.value, subject.test.variables)
        outputs = [member.subject.text for member in members]
        blocks = [Block(f"Output {number}", text) for number, text in enumerate(outputs, 1)]
        question = Question(
            "best",
            (Block("Criterion", criterion), *blocks),
            {"criteria": criterion, "outputs": outputs},
            _CHOICE_SCHEMA,
            purpose=Purpose.CHOICE,
        )
        # promptfoo-style prompts number the outputs from 0.
        first = 0 if own_prompt(self, subject.test) is not None else 1
        judge = JudgeClient(self, subject, tools)
        read = partial(parse_choice, count=len(outputs), first=first)
        best, reason = await judge.ask(question, read)
        why = f": {reason}" if reason else ""
        outcomes = [
            Outcome.of(place == best, f"{'chosen' if place == best else 'not chosen'} for {criterion!r}{why}")
            for place in range(len(outputs))
        ]
        return [replace(outcome, latency_ms=judge.latency_ms) for outcome in outcomes]


def check_is_comparable(members: Sequence[RowMember]) -> None:
    """Check that there are several outputs to compare.

    Raises:
        UnjudgeableError: there are fewer than two outputs.
    """
    if len(members) < _LEAST_COMPARED:
        raise UnjudgeableError(
            "this test has fewer than two outputs to compare",
            hint="see the errors of the other cases of the test",
        )


ALL = "all"
_YARDSTICK = "is_yardstick"
_PROMPT = "pairs/pair"
_OWN_NAMES = ("criteria", "input", "output_1", "output_2")
_REASON_LENGTH = 300
_OPPONENTS_NAMED = 4

Side = Literal["win", "tie", "loss"]
PairScoring = Literal["auto", "logprobs", "single"]

_SHARES: Mapping[Side, float] = {"win": 1.0, "tie": 0.5, "loss": 0.0}
_OTHER_SIDE: Mapping[Side, Side] = {"win": "loss", "tie": "tie", "loss": "win"}
_FIRST_WINS: Mapping[str, Side] = {"1": "win", "2": "loss", "tie": "tie"}
_WORDS: Mapping[Side, str] = {"win": "preferred to", "tie": "tied with", "loss": "not preferred to"}

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string"},
        "winner": {"type": "string", "enum": ["1", "2", "tie"]},
    },
    "required": ["reason", "winner"],
    "additionalProperties": False,
}


class Preference(Struct, frozen=True):
    """The judge's verdict on a pair in one order, from the point of view of one output.

    Attributes:
        side: whether this output won, tied or lost.
        share: the probability (0..1) that this output is preferred, counting a tie as half, if `is_weighed` by token
            probabilities; else 1, 0.5 or 0.
    """

    side: Side
    share: float
    is_weighed: bool
    reason: str | None = None

    def turned(self) -> "Preference":
        """Return the same verdict from the point of view of the other output."""
        return replace(self, side=_OTHER_SIDE[self.side], share=1 - self.share)


_SAME_TEXT = Preference("tie", 0.5, is_weighed=False)


class PairResult(Struct, frozen=True):
    """The result of a pair from the point of view of one output, which was shown first and then second."""

    opponent: RowColumn | None
    shown_first: Preference
    shown_second: Preference
    is_asked: bool = True

    @property
    def is_consistent(self) -> bool:
        """Return whether both orders gave the same winner."""
        return self.shown_first.side == self.shown_second.side

    @property
    def side(self) -> Side:
        """Return the verdict of both orders; a tie if they disagree."""
        return self.shown_first.side if self.is_consistent else "tie"

    @property
    def is_weighed(self) -> bool:
        return self.shown_first.is_weighed and self.shown_second.is_weighed

    @property
    def share(self) -> float:
        """Return the share (0..1) of the pair that this output won."""
        if self.is_weighed:
            return (self.shown_first.share + self.shown_second.share) / 2
        return _SHARES[self.side]

    def turned(self, opponent: RowColumn | None) -> "PairResult":
        """Return the same result from the point of view of the other output, compared with `opponent`."""
        return PairResult(opponent, self.shown_second.turned(), self.shown_first.turned(), self.is_asked)

    @property
    def title(self) -> str:
        return _title(self.opponent)

    def shown(self) -> dict[str, JsonValue]:
        """Return the JSON form for the assertion's detail; `column` is None for `expected_output`."""
        return {
            "column": None if self.opponent is None else self.opponent.index,
            "label": self.title,
            "outcome": self.side,
            "share": self.share,
            "consistent": self.is_consistent if self.is_asked else None,
            "shown_first": {"said": self.shown_first.side, "reason": self.shown_first.reason},
            "shown_second": {"said": self.shown_second.side, "reason": self.shown_second.reason},
        }


class PairwiseAssertion(ModelGradedAssertion):
    """pairwise: a judge compares the outputs of a test in pairs, in both orders, and geval ranks the columns."""

    compares_outputs = True

    criteria: str = Field(
        validation_alias=AliasChoices("criteria", "value"),
        description="What makes one output better than another; a template, may be file://.",
    )
    against: str = Field(
        ALL,
        min_length=1,
        description=(
            "What to compare with: `all` other columns, one column (by its label) or `expected_output`."
        ),
    )
    threshold: Score | None = Field(
        None,
        description="The share of its pairs that an output must win to pass; without it, nothing fails.",
    )
    scoring: PairScoring | None = Field(
        None,
        description="Whether to weight wins by the judge's token probabilities: auto, logprobs or single.",
    )

    @property
    def compared_with(self) -> str | None:
        """Return the name of the column to compare with; None for `all` and `expected_output`."""
        return None if self.against in {ALL, EXPECTED_OUTPUT} else self.against

    @property
    def compared_by(self) -> str:
        return self.criteria

    @property
    def needs_other_outputs(self) -> bool:
        return self.against != EXPECTED_OUTPUT

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the criteria, the user's own prompt, and `against` in one test."""
        problems: list[Problem] = []
        if self.is_negated:
            hint = "write `pairwise`, with criteria that say the opposite"
            problems.append(Problem("there is no `not-pairwise`", self.place.value("type"), hint))
        problems += _problems_of_transform(self, context)
        place = self.place.child("criteria" if self.place.key("criteria") else "value")
        criteria = context.render(self.criteria, place, problems)
        if criteria is not None and not criteria.strip():
            hint = "say what makes one output better than another"
            problems.append(Problem("pairwise has no criteria", place.value(), hint))
        check_own_prompt(self, context, _OWN_NAMES, problems)
        if self.against == EXPECTED_OUTPUT and context.test.expected_output is None:
            message = (
                f"{context.where.removeprefix('in ')} has no expected_output for pairwise to compare with"
            )
            hint = "give the test an `expected_output`, or compare with `all`"
            problems.append(Problem(message, self.place.value("against"), hint))
        return problems

    def criterion(self, test: MergedTest, tools: Tools) -> JsonValue:
        """Return everything that determines a comparison: the criteria, the way of scoring and the judge's prompt."""
        return [super().criterion(test, tools), _scoring(self, test, tools), prompt_digest(_PROMPT)]

    def judged_texts(self, subject: Subject, tools: Tools) -> JsonValue:
        """Return the texts that the judge sees, and the column, which appears in the details of comparisons."""
        column = subject.column
        where = None if column is None else [column.index, column.label]
        return [super().judged_texts(subject, tools), where]

    def decide_again(self, rated: Outcome, test: MergedTest, tools: Tools) -> Outcome | None:
        """Compare the stored share of the pairs with the current threshold."""
        return None if rated.score is None else _decided(self, rated, bool(rated.detail.get(_YARDSTICK)))

    async def judge_row(self, members: Sequence[RowMember], tools: Tools) -> Sequence[Outcome | GevalError]:
        """Compare all pairs; if either order of a pair cannot be judged, both of its outputs get the error.

        Raises:
            UnjudgeableError: there is nothing to compare with.
            NotDoneError: the budget is used up, or an answer is still to come with a batch.
        """
        pairs = _pairs_of(self, members)
        judge = JudgeClient(self, members[0].subject, tools)
        comparing = [self._compared(pair, members, tools, judge) for pair in pairs]
        found = await _both_orders([order for orders in comparing for order in orders])
        results: list[list[PairResult]] = [[] for _ in members]
        errors: dict[int, GevalError] = {}
        for (first, second), orders in zip(pairs, zip(found[::2], found[1::2], strict=True), strict=True):
            result = _joined(
                orders, _column_of(members, second), is_asked=not _are_same(members, first, second)
            )
            if isinstance(result, PairResult):
                results[first].append(result)
                if second is not None:
                    results[second].append(result.turned(_column_of(members, first)))
                continue
            errors.setdefault(first, _of_pair(result, _column_of(members, second)))
            if second is not None:
                errors.setdefault(second, _of_pair(result, _column_of(members, first)))
        judged_by = judge_provider(self, members[0].subject.test, tools.defaults).title
        return [
            errors.get(place) or self._outcome(members[place], results[place], judged_by, judge.latency_ms)
            for place in range(len(members))
        ]

    def _compared(
        self, pair: "_Pair", members: Sequence[RowMember], tools: Tools, judge: JudgeClient
    ) -> list["_Asking"]:
        """Return a coroutine for each order that gives the judge's preference for the first output."""
        first, second = pair
        subject = members[first].subject
        own = subject.text
        other = _text_of(members, pair)
        if own == other:  # a judge's preference between equal texts would mean nothing
            return [_known(_SAME_TEXT), _known(_SAME_TEXT)]
        # The input that both outputs answer; if their inputs differ, the variables that both were made from.
        tasks = {_input_of(subject), _input_of(subject if second is None else members[second].subject)}
        if len(tasks) == 1:
            task = tasks.pop()
        else:
            task = "\n".join(f"{name}: {value}" for name, value in subject.test.vars.items())
        criteria = tools.templates.render(self.criteria, subject.test.variables)
        scoring = _scoring(self, subject.test, tools)
        ahead = _question(criteria, task, own, other)
        behind = _question(criteria, task, other, own)
        return [_asked(judge, ahead, scoring), _turned(_asked(judge, behind, scoring))]

    def _outcome(
        self, member: RowMember, results: Sequence[PairResult], judged_by: str, latency_ms: float
    ) -> Outcome:
        if not results:
            return Outcome.not_evaluated("there was nothing to compare it with")
        sides = [result.side for result in results]
        weighed = {result.is_weighed for result in results if result.is_asked}
        scored_by = "mixed" if len(weighed) > 1 else "logprobs" if True in weighed else "single"
        is_yardstick = self.compared_with in _names_of(member)
        outcome = Outcome(
            status=Status.PASSED,
            score=math.fsum(result.share for result in results) / len(results),
            reason=_reason(results),
            detail={
                "judge": judged_by,
                "scored_by": scored_by,
                "against": self.against,
                "wins": sides.count("win"),
                "ties": sides.count("tie"),
                "losses": sides.count("loss"),
                PAIRS: [result.shown() for result in results],
                _YARDSTICK: is_yardstick,
            },
            latency_ms=latency_ms,
        )
        return _decided(self, outcome, is_yardstick)


_Pair = tuple[int, int | None]
"""The places of two outputs in a row; None is the expected output."""
_Asking = Coroutine[Any, Any, Preference]


def _decided(spec: PairwiseAssertion, outcome: Outcome, is_yardstick: bool) -> Outcome:
    """Return the outcome with its status: not evaluated without a threshold, or for the yardstick column."""
    threshold = None if is_yardstick else spec.threshold
    if threshold is None or outcome.score is None:
        return replace(outcome, status=Status.NOT_EVALUATED, threshold=None)
    reached = passes(outcome.score, threshold)
    return replace(outcome, status=Status.PASSED if reached else Status.FAILED, threshold=threshold)


def _pairs_of(spec: PairwiseAssertion, members: Sequence[RowMember]) -> list[_Pair]:
    """Return the pairs to compare, in the order of the columns.

    Raises:
        UnjudgeableError: there is nothing to compare with.
    """
    if spec.against == EXPECTED_OUTPUT:
        return [(place, None) for place in range(len(members))]
    check_is_comparable(members)
    count = len(members)
    if spec.compared_with is None:
        return [(first, second) for first in range(count) for second in range(first + 1, count)]
    named = [place for place, member in enumerate(members) if spec.compared_with in _names_of(member)]
    if len(named) != 1:
        raise UnjudgeableError(
            f"there is no output of `{spec.compared_with}` to compare with",
            hint="see the errors of the other cases of the test",
        )
    [yardstick] = named
    return [(min(place, yardstick), max(place, yardstick)) for place in range(count) if place != yardstick]


def _names_of(member: RowMember) -> frozenset[str]:
    return frozenset() if member.subject.column is None else member.subject.column.names


def _column_of(members: Sequence[RowMember], place: int | None) -> RowColumn | None:
    if place is None:
        return None
    return members[place].subject.column or RowColumn(place, f"output {place + 1}")


def _title(column: RowColumn | None) -> str:
    return EXPECTED_OUTPUT if column is None else column.label


def _text_of(members: Sequence[RowMember], pair: _Pair) -> str:
    """Return the text of the second output of a pair."""
    first, second = pair
    if second is None:
        return members[first].subject.test.expected_output or ""
    return members[second].subject.text


def _are_same(members: Sequence[RowMember], first: int, second: int | None) -> bool:
    return members[first].subject.text == _text_of(members, (first, second))


def _input_of(subject: Subject) -> str:
    test = subject.test
    prompt = subject.rendered_prompt or None
    return resolve_input(
        JudgedCase(actual_output=None, input=test.input, vars=test.vars, rendered_prompt=prompt)
    )


def _question(criteria: str, task: str, first: str, second: str) -> Question:
    blocks = [Block("Criterion", criteria), Block("Output 1", first), Block("Output 2", second)]
    if task:
        blocks.insert(1, Block("Task", task))
    names = dict(zip(_OWN_NAMES, (criteria, task, first, second), strict=True))
    return Question(_PROMPT, tuple(blocks), names, _SCHEMA, purpose=Purpose.CHOICE)


def _scoring(spec: PairwiseAssertion, test: MergedTest, tools: Tools) -> PairScoring:
    """Return the scoring set at the most specific level; `samples`, which only other assertions support, is ignored."""
    levels = (spec.scoring, test.options.scoring, tools.defaults.scoring, test.default_options.scoring)
    for level in levels:
        if level is not None and level != "samples":
            return level
    return "auto"


async def _known(preference: Preference) -> Preference:
    return preference


async def _turned(asking: _Asking) -> Preference:
    return (await asking).turned()


async def _asked(judge: JudgeClient, question: Question, scoring: PairScoring) -> Preference:
    """Return the judge's preference, as seen from the output that is shown first."""
    return await judge.ask_choice(
        question, lambda choice: _read(choice, scoring), want_logprobs=scoring != "single"
    )


def _read(choice: Choice, scoring: PairScoring) -> Preference:
    try:
        reply = parse_winner(choice.text)
    except JudgeError as error:
        note = " (a token limit cut it off)" if is_cut_off(choice) else ""
        raise type(error)(f"{error.message}{note}", raw_text=error.raw_text, hint=error.hint) from error
    side = _FIRST_WINS[reply.winner]
    masses: Mapping[str, float] = {}
    if scoring != "single" and choice.token_logprobs is not None:
        span = (reply.start, reply.end)
        masses = weigh_words(choice.token_logprobs, span, text=choice.text, words=SPELLINGS)
    coverage = math.fsum(masses.values())
    if coverage >= MIN_COVERAGE:
        share = (masses.get("1", 0.0) + masses.get("tie", 0.0) / 2) / coverage
        return Preference(side, share, is_weighed=True, reason=reply.reason)
    if scoring == "logprobs":
        what = (
            "gives no token probabilities"
            if choice.token_logprobs is None
            else "is undecided between the two outputs"
        )
        hint = "use `scoring: auto`, or a judge that gives token probabilities"
        raise JudgeError(f"the judge {what}, but `scoring: logprobs` needs them", hint=hint)
    return Preference(side, _SHARES[side], is_weighed=False, reason=reply.reason)


async def _both_orders(asking: Sequence[_Asking]) -> list[Preference | GevalError]:
    """Run the given judge calls concurrently and return their results or errors, in order.

    Raises:
        NotDoneError: the budget is used up, or an answer is still to come with a batch.
    """
    found: list[Preference | GevalError] = []
    came = await asyncio.gather(*asking, return_exceptions=True)
    for item in came:
        if isinstance(item, NotDoneError) or not isinstance(item, Preference | GevalError):
            raise item
        found.append(item)
    return found


def _joined(
    orders: tuple[Preference | GevalError, Preference | GevalError],
    opponent: RowColumn | None,
    *,
    is_asked: bool,
) -> PairResult | GevalError:
    first, second = orders
    if isinstance(first, GevalError):
        return first
    if isinstance(second, GevalError):
        return second
    return PairResult(opponent, first, second, is_asked)


def _of_pair(error: GevalError, opponent: RowColumn | None) -> GevalError:
    """Return the error of a pair; a JudgeError also names the other output."""
    if not isinstance(error, JudgeError):
        return error
    message = f"the comparison with `{_title(opponent)}`: {error.message}"
    return type(error)(message, raw_text=error.raw_text, hint=error.hint)


def _reason(results: Sequence[PairResult]) -> str:
    """Summarize the pairs, with the judge's reason for the first one that this output did worst in."""
    parts = []
    for result in results[:_OPPONENTS_NAMED]:
        why = "" if result.is_consistent else " (each order had a different winner)"
        if not result.is_asked:
            why = " (the same text)"
        parts.append(f"{_WORDS[result.side]} {result.title}{why}")
    if len(results) > _OPPONENTS_NAMED:
        parts.append(f"and {len(results) - _OPPONENTS_NAMED} more pairs")
    told = min(results, key=lambda result: result.share)
    reason = told.shown_first.reason
    said = f"\nshown first, with {told.title} second: {shortened(reason, _REASON_LENGTH)}" if reason else ""
    return "; ".join(parts) + said


async def finish_row(row: Sequence[PendingResult], context: JobContext) -> list[CaseResult]:
    """Return the final results of a whole row. Cases without an output are not compared and remain errors.

    Raises:
        NotDoneError: the budget is used up, or an answer is still to come with a batch.
    """
    specs = [spec for spec in row[0].job.test.assertions if spec.compares_outputs]
    answered = [member for member in row if member.subject is not None]
    verdicts: dict[int, list[AssertionResult]] = {member.job.column: [] for member in answered}
    for spec in specs:
        for column, result in await _compared(spec, row, context):
            verdicts[column].append(result)
    return [
        _finished(member, verdicts[member.job.column]) if member.job.column in verdicts else member.result
        for member in row
    ]


async def _compared(
    spec: Assertion, row: Sequence[PendingResult], context: JobContext
) -> list[tuple[int, AssertionResult]]:
    """Return the result of one comparison for each case that takes part; the first result carries the cost."""
    # When scores are compared, a case that failed beside an error lacks one just as a case that is an error.
    needs_scores = spec.base_type == "max-score"
    part = [
        item for item in row if item.subject is not None and not (needs_scores and _has_error(item.result))
    ]
    members = [
        RowMember(in_column(item.subject, item.job, context.columns), item.result.assertions)
        for item in part
        if item.subject is not None
    ]
    meter = Meter()
    tools = replace(
        metered_tools(context.tools, meter),
        earlier=tuple(result for item in part for result in item.earlier),
    )
    results = await compare_outputs(spec, members, tools)
    is_among_all = not isinstance(spec, PairwiseAssertion) or spec.against == ALL
    left_out = len(row) - len(part) if is_among_all else 0
    return [
        (
            item.job.column,
            replace(
                meter.read(result),
                usage=Usage() if place else meter.usage,
                reason=_with_left_out(result.reason, left_out),
            ),
        )
        for place, (item, result) in enumerate(zip(part, results, strict=True))
    ]


def _has_error(result: CaseResult) -> bool:
    """Return whether a case or one of its assertions is an error; it may have failed by another assertion."""
    return Status.ERROR in {result.status, *(item.status for item in result.assertions)}


def _with_left_out(reason: str | None, count: int) -> str | None:
    """Add the number of outputs that could not be compared to the first line of a reason."""
    note = f" ({plural(count, 'output')} with an error not compared)"
    if reason is None or not count or note in reason:  # reused from an earlier run
        return reason
    first, line, rest = reason.partition("\n")
    return f"{first}{note}{line}{rest}"


def in_column(subject: Subject, job: Job, columns: Sequence[RowColumn]) -> Subject:
    """Return the subject with the column of its job, for comparisons that refer to columns."""
    known = columns[job.column] if job.column < len(columns) else None
    return replace(subject, column=known or RowColumn(job.column, job.shown_provider.label))


def _finished(member: PendingResult, compared: Sequence[AssertionResult]) -> CaseResult:
    result = member.result
    assertions = tuple(_in_order(member.job, result.assertions, compared))
    verdict = _own_verdict(member, compared)
    choosing = [item for item in compared if not _is_ranked(item)]
    if choosing and result.error is None:
        verdict = row_verdict(verdict, choosing)
    judging = sum((item.usage for item in compared), result.usage.get(Role.JUDGE, Usage()))
    return replace(
        result,
        status=verdict.status,
        score=verdict.score,
        named_scores=named_scores(assertions),
        usage={**result.usage, Role.JUDGE: judging},
        assertions=assertions,
    )


def _is_ranked(result: AssertionResult) -> bool:
    """Return whether a comparison gives each output its own score, which counts like that of any other assertion."""
    return result.type == "pairwise"


def _own_verdict(member: PendingResult, compared: Sequence[AssertionResult]) -> Verdict:
    """Return the verdict of all assertions except those that pick one output of the test."""
    result = member.result
    ranked = [item for item in compared if _is_ranked(item)]
    if not ranked or result.error is not None:
        return Verdict(result.status, result.score)
    return verdict_of((*result.assertions, *ranked), member.job.test.threshold)


def row_verdict(own: Verdict, compared: Sequence[AssertionResult]) -> Verdict:
    """Return the verdict of a compared case: a loser fails with score 0, a winner keeps its own verdict.

    A winner of which nothing else was evaluated passes. A failure decides beside an error, but has no score then.
    """
    statuses = {item.status for item in compared if item.weight or item.status is Status.ERROR}
    if Status.ERROR in {own.status, *statuses}:
        failed = Status.FAILED in {own.status, *statuses}
        return Verdict(Status.FAILED if failed else Status.ERROR, None)
    if Status.FAILED in statuses:
        return Verdict(Status.FAILED, 0.0)
    if own.status is Status.NOT_EVALUATED:
        return Verdict(Status.PASSED, 1.0 if own.score is None else own.score)
    return own


def _in_order(
    job: Job, own: Iterable[AssertionResult], compared: Iterable[AssertionResult]
) -> Iterator[AssertionResult]:
    """Yield the results in the order of the config."""
    rest, comparisons = iter(own), iter(compared)
    for spec in assertions_of(job.prompt, job.test):
        result = next(comparisons if spec.compares_outputs else rest, None)
        if result is not None:
            yield result

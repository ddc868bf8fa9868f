"""conversation-relevance: the share of a conversation's answers that fit what came before."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from geval_cli.assertions.base import CheckContext, ModelGradedAssertion, Outcome, Subject, Tools
from geval_cli.assertions.judges import DEFAULT_THRESHOLD
from geval_cli.engine.conversation import CONVERSATION, turn_of
from geval_cli.errors import Problem, Severity
from geval_cli.extras.graded.asking import JudgeClient, Question, check_own_prompt, task_of
from geval_cli.extras.graded.rubric import text_or_json
from geval_cli.extras.graded.verdicts import JudgeDecision, parse_yes_or_no
from geval_cli.judge.calls import gather_all, reply_schema
from geval_cli.judge.prompt import Block
from geval_cli.judge.source import answers_in, last_words
from geval_cli.specs.base import Spec

_SCHEMA: Mapping[str, Any] = reply_schema(
    {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": ["yes", "no"]}}
)


class ConversationSettingsSpec(Spec):
    """How to judge a conversation."""

    window_size: Annotated[int, Field(ge=1, le=1000)] = Field(
        5,
        validation_alias=AliasChoices("windowSize", "window_size"),
        description="How many turns the judge sees, including the answer; 5 by default.",
    )


class ConversationRelevanceAssertion(ModelGradedAssertion):
    """conversation-relevance: the share of a conversation's answers that fit what came before."""

    default_threshold = DEFAULT_THRESHOLD

    config: ConversationSettingsSpec = Field(
        default_factory=ConversationSettingsSpec, description="How to judge the conversation."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the turns in a variable and of the user's own prompt in one test."""
        problems: list[Problem] = []
        test = context.test
        turns = None if test.is_conversation else test.vars.get(CONVERSATION)
        are_turns = isinstance(turns, list | tuple) and all(
            isinstance(turn, dict) and turn.keys() & {"input", "output"} for turn in turns
        )
        if turns is not None and not are_turns:
            message = f"`{CONVERSATION}` is not a list of turns with `input` and `output` ({context.where})"
            severity = Severity.WARNING if context.rules.skips_null else Severity.ERROR
            hint = "write [{input: ..., output: ...}]; a chat of roles goes into `turns` of the test"
            place = test.place.value("vars", CONVERSATION) or test.place.value()
            problems.append(Problem(message, place, hint, severity=severity))
        check_own_prompt(self, context, ("messages",), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Judge each turn with those before it; the turns are the test's, or else in the variable `_conversation`.

        Raises:
            JudgeError, ProviderError: there is no verdict.
        """
        turns = _turns(subject)
        judge = JudgeClient(self, subject, tools)
        windows = [turns[max(0, end - self.config.window_size) : end] for end in range(1, len(turns) + 1)]
        decisions = await gather_all(judge.ask(_question(window), parse_yes_or_no) for window in windows)
        fitting = sum(decision.passed for decision in decisions)
        return self.scored(fitting / len(decisions), _reason(decisions), judge.latency_ms)


def _turns(subject: Subject) -> list[tuple[str, str]]:
    if conversation := subject.conversation:
        places = answers_in(conversation)
        return [(last_words(conversation[:place]) or "", conversation[place].content) for place in places]
    written = subject.test.vars.get(CONVERSATION)
    turns = [item for item in written if isinstance(item, dict)] if isinstance(written, list | tuple) else []
    if turns and CONVERSATION in subject.opaque:
        # They are those of earlier tests, to which this output is the next answer.
        turns.append(turn_of(subject, subject.output))
    if not turns:
        return [(task_of(subject), subject.text)]
    return [(text_or_json(turn.get("input")), text_or_json(turn.get("output"))) for turn in turns]


def _question(window: Sequence[tuple[str, str]]) -> Question:
    messages = [
        {"role": role, "content": text}
        for said, answered in window
        for role, text in (("user", said), ("assistant", answered))
    ]
    blocks = tuple(Block(str(item["role"]).title(), item["content"]) for item in messages)
    return Question("conversation", blocks, {"messages": messages}, _SCHEMA)


def _reason(decisions: Sequence[JudgeDecision]) -> str:
    stray = [decision for decision in decisions if not decision.passed]
    if not stray:
        if len(decisions) > 1:
            return "all answers are relevant"
        return decisions[0].reason or "the answer is relevant"
    why = f": {stray[0].reason}" if stray[0].reason else ""
    return f"{len(stray)} of {len(decisions)} answers are not relevant{why}"

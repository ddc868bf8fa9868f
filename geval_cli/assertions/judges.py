"""Find who judges, alone or as a jury, and ask; and find the question and the retrieved context of a test.

The provider is that of the nearest level that names one, else a default.
"""

import asyncio
import json
import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import AliasChoices, Field

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    JudgeDefaults,
    MergedTest,
    ModelGradedAssertion,
    Outcome,
    Subject,
    Tools,
    render_deep,
)
from geval_cli.errors import (
    ConfigError,
    GevalError,
    JudgeError,
    Problem,
    Severity,
    UndoneError,
    UnjudgeableError,
)
from geval_cli.judge.calls import JudgeCalls, whole_text
from geval_cli.judge.estimate import Grade, passes
from geval_cli.judge.grading import CHECKLIST, HALF, missed_required
from geval_cli.judge.prompt import Block, question_text, user_message
from geval_cli.numbers import format_score
from geval_cli.providers.base import (
    CLASSIFICATION,
    EMBEDDING,
    MODERATION,
    SEARCH,
    TEXT,
    can_search,
    kind_of,
)
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, Purpose, Role, Status, to_json
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import (
    CALIBRATED,
    JuryRulesSpec,
    JurySpec,
    ProviderSpec,
    RubricPromptSpec,
    TestOptionsSpec,
)
from geval_cli.specs.promptfoo import JudgesSpec
from geval_cli.statistics.calibration import JudgeWeight, heard_shares, weighted_score

DEFAULT_JUDGE = ProviderSpec(id="openai:gpt-4.1")
"""The judge when none is named."""

DEFAULT_EMBEDDING = ProviderSpec(id="openai:embedding:text-embedding-3-large")
"""The embedding provider when none is named."""

DEFAULT_MODERATION = ProviderSpec(id="openai:moderation")
"""The moderator when none is named."""

DEFAULT_SEARCH = ProviderSpec(id="openai:responses:gpt-4.1", config={"tools": [{"type": "web_search"}]})
"""The judge with web search when none is named."""

_DEFAULTS: Mapping[str, ProviderSpec] = {
    TEXT: DEFAULT_JUDGE,
    EMBEDDING: DEFAULT_EMBEDDING,
    MODERATION: DEFAULT_MODERATION,
    SEARCH: DEFAULT_SEARCH,
}


def kind_by_default(judge: ProviderSpec) -> str | None:
    """Return the kind of a default judge; None for a judge that the config names."""
    return next((kind for kind, default in _DEFAULTS.items() if judge is default), None)


def judge_provider(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults, kind: str = TEXT
) -> ProviderSpec:
    """Return the judge of an assertion: of the nearest level that names one of this kind.

    `kind` is what it must answer with (`providers.base`).

    Raises:
        UnjudgeableError: none is named, and there is none by default.
    """
    found = find_judge(spec, test, defaults, kind)
    if found is None:
        raise UnjudgeableError(f"{spec.base_type} has no {kind} model to call", hint="name one in `provider`")
    return found


def find_judge(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults, kind: str = TEXT
) -> ProviderSpec | None:
    """Return the provider of `judge_provider`, or None where none is named."""
    own = None if spec.provider is None else _as_kind(spec.provider, kind)
    if own is not None:
        return own
    for level in (test.options.provider, defaults.grader, test.default_options.provider):
        found = None if level is None else _of_kind(level, kind)
        if found is not None:
            return found
    return _DEFAULTS.get(kind)


def members_of(judge: ProviderSpec) -> tuple[ProviderSpec, ...]:
    """Return the judges of a jury, or the one judge."""
    return judge.members if isinstance(judge, JurySpec) else (judge,)


def judges_of(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults
) -> Iterator[ProviderSpec]:
    """Yield every provider that judges for an assertion."""
    for kind in spec.judge_kinds:
        found = find_judge(spec, test, defaults, kind)
        if found is not None:
            yield from members_of(found)


_CALLED = {EMBEDDING: "an embedding model", CLASSIFICATION: "a classifier", MODERATION: "a moderation model"}


def check_judge(spec: ModelGradedAssertion, context: CheckContext) -> Iterator[Problem]:
    """Yield a problem for an assertion's own judge that answers with something else than the assertion needs.

    promptfoo takes the default judge then, and says so.
    """
    own = spec.provider
    if own is None or isinstance(own, JudgesSpec) or not {TEXT, MODERATION} & set(spec.judge_kinds):
        return
    for judge in members_of(own):
        if any(_as_kind(judge, kind) is not None for kind in spec.judge_kinds):
            continue
        wanted = spec.judge_kinds[0]
        what = _CALLED.get(kind_of(judge.id), "a model that writes text")
        message, severity = (
            f"`{judge.public_id}` is {what}, which cannot judge {spec.base_type}",
            Severity.ERROR,
        )
        if context.rules.judges_by_kind:
            message, severity = f"{message}; {_DEFAULTS[wanted].id} is used instead", Severity.WARNING
        hint = f"name {'a chat model' if wanted == TEXT else _CALLED[wanted]}, for example {_DEFAULTS[wanted].id}"
        place = judge.place.value("id") or judge.place.value() or spec.place.value("provider")
        yield Problem(message, place, hint, severity=severity)


def check_writer(provider: ProviderSpec, role: str) -> Iterator[Problem]:
    """Yield a problem for a model that must write text, in the given role, and returns vectors."""
    if kind_of(provider.id) == EMBEDDING:
        message = f"`{provider.public_id}` is an embedding model: it returns vectors and cannot {role}"
        hint = "name a chat model; embedding models are for the `provider` of `similar`"
        yield Problem(message, provider.place.value("id") or provider.place.value(), hint)


def _as_kind(provider: ProviderSpec, kind: str) -> ProviderSpec | None:
    """Return an assertion's own provider, which need not say its kind where there can be no doubt."""
    if isinstance(provider, JurySpec):
        return provider if kind == TEXT else None
    if isinstance(provider, JudgesSpec):
        return _of_kind(provider, kind)
    if kind == CLASSIFICATION:
        return provider  # anything that answers with scores of labels
    vendor, _, model = provider.id.partition(":")
    if kind == EMBEDDING and vendor == "local" and kind_of(provider.id) == TEXT:
        return provider.model_copy(update={"id": f"{vendor}:embedding:{model}"})
    return _of_kind(provider, kind)


def _of_kind(provider: ProviderSpec, kind: str) -> ProviderSpec | None:
    if isinstance(provider, JudgesSpec):
        found = provider.by_kind.get(TEXT if kind == SEARCH else kind)
        return found if found is None or kind != SEARCH or can_search(found) else None
    if kind == SEARCH:
        return provider if can_search(provider) else None
    return provider if kind_of(provider.id) == kind else None


Part = Literal["evaluate", "steps"]

_YAML_CHAT = ("- role:", '- "role":', "- 'role':")

Read = TypeVar("Read")


class Question(Struct, frozen=True):
    """A question to a judge.

    Attributes:
        name: of our prompt.
        blocks: the texts that it shows.
        names: what the user's own prompt can name besides the variables of the test.
        schema: of the answer to our own prompt, where it is JSON.
        part: which of the user's own prompts takes its place.
        purpose: what the answer is for.
    """

    name: str
    blocks: tuple[Block, ...]
    names: Mapping[str, JsonValue] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    part: Part = "evaluate"
    purpose: Purpose = Purpose.VERDICT


class JudgeClient:
    """Asks the judge of one assertion about one output, and adds up how long it took."""

    def __init__(self, spec: ModelGradedAssertion, subject: Subject, tools: Tools) -> None:
        self._spec = spec
        self._subject = subject
        self._tools = tools
        judge = tools.judge_for(judge_provider(spec, subject.test, tools.defaults, spec.judge_kinds[0]))
        self._calls = JudgeCalls(judge, tools.judge_memory)

    @property
    def latency_ms(self) -> float:
        return self._calls.latency_ms

    async def ask(self, question: Question, read: Callable[[str], Read]) -> Read:
        """Return the judge's reply, parsed by `read`; a reply that cannot be parsed is requested once more.

        Raises:
            JudgeError: it cannot be read either.
            ProviderError: the judge could not answer.
        """
        return await self.ask_choice(question, lambda choice: read(whole_text(choice)))

    async def ask_choice(
        self, question: Question, read: Callable[[Choice], Read], *, want_logprobs: bool = False
    ) -> Read:
        """As `ask`, with a reader that sees the probabilities of the reply's tokens, if they are wanted and given.

        Raises:
            JudgeError, ProviderError: as in `ask`.
        """
        request = self._request(question, temperature=0, want_logprobs=want_logprobs)
        return await self._calls.read(request, read)

    async def ask_several(
        self, question: Question, count: int, read: Callable[[str], Read]
    ) -> Sequence[Read]:
        """Return `count` different replies, parsed by `read`; fewer when some failed.

        Raises:
            JudgeError: none can be read.
            ProviderError: the judge could not answer.
        """
        # At 0, several answers would mostly be one.
        request = self._request(question, temperature=1, samples=count)
        response = await self._calls.ask(request)
        found, problems = [], []
        for choice in response.choices:
            try:
                found.append(read(whole_text(choice)))
            except JudgeError as error:
                problems.append(error)
        if not found:
            raise problems[0]
        return found

    def _request(
        self, question: Question, *, temperature: int, samples: int = 1, want_logprobs: bool = False
    ) -> ModelRequest:
        own = own_prompt(self._spec, self._subject.test, question.part)
        if own is None:
            messages = user_message(question_text(question.name, question.blocks))
        else:
            variables = {**self._subject.test.variables, **question.names}
            messages = own_messages(own, variables, self._tools)
        return ModelRequest(
            messages,
            params=self._calls.params(temperature=temperature),
            sample_indexes=tuple(range(samples)),
            repeat_index=self._subject.repeat_index,
            want_logprobs=want_logprobs,
            # A prompt of the user's own may ask for an answer in another form.
            response_schema=question.schema if own is None else None,
            role=Role.JUDGE,
            purpose=question.purpose,
        )


def own_prompt(spec: ModelGradedAssertion, test: MergedTest, part: Part = "evaluate") -> str | None:
    """Return the user's own prompt for a question, from the nearest level that has one."""
    owner = _owner(spec, test)
    written = None if owner is None else owner.rubric_prompt
    if isinstance(written, RubricPromptSpec):
        return written.evaluate if part == "evaluate" else written.steps
    return written if part == "evaluate" else None


def own_messages(template: str, variables: Mapping[str, JsonValue], tools: Tools) -> tuple[Message, ...]:
    """Return the messages of the user's own prompt: those that its JSON or YAML spells, else one.

    A template that is JSON is rendered text by text, so that no value can break it.

    Raises:
        TemplateError: it cannot be rendered.
    """
    texts = {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else value
        for name, value in variables.items()
    }
    written = _chat(template)
    if written is None:
        text = tools.templates.render(template, texts)
        return _messages(_chat(text)) or user_message(text)
    rendered = render_deep(written, lambda item: tools.templates.render(item, texts))
    return _messages(rendered) or user_message(json.dumps(rendered, ensure_ascii=False))


def check_own_prompt(
    spec: ModelGradedAssertion, context: CheckContext, names: Sequence[str], problems: list[Problem]
) -> None:
    """Report what keeps the user's own prompt from being rendered; `names` are what it can name."""
    owner = _owner(spec, context.test)
    if owner is None:
        return
    variables = {**context.test.variables, **dict.fromkeys(names, "text")}
    parts: tuple[Part, ...] = ("evaluate", "steps")
    for part in parts:
        template = own_prompt(spec, context.test, part)
        if template is not None:
            place = owner.place.spelled("rubricPrompt", "rubric_prompt")
            context.render(template, place, problems, variables=variables)


def _owner(spec: ModelGradedAssertion, test: MergedTest) -> ModelGradedAssertion | TestOptionsSpec | None:
    levels = (spec, test.options, test.default_options)
    return next((level for level in levels if level.rubric_prompt is not None), None)


def _chat(text: str) -> JsonValue:
    """Return the list or mapping that a text is as JSON, or the chat that it is as YAML; None when it is neither."""
    start = text.lstrip()
    if start.startswith(_YAML_CHAT):
        try:
            return read_yaml(text, "rubricPrompt").value
        except ConfigError:
            return None
    if not start.startswith(("[", "{")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _messages(found: JsonValue) -> tuple[Message, ...]:
    if not isinstance(found, list) or not found:
        return ()
    if not all(isinstance(item, dict) and {"role", "content"} <= item.keys() for item in found):
        return ()
    return tuple(Message(str(item["role"]), item["content"]) for item in found)


SPLIT = 0.5
"""Scores that lie so far apart are marked: the judges do not mean the same."""

_WHO = ("judge", "params")
_DIGITS = 9  # beyond them lies rounding: 0.7 and 0.2 are 0.5 apart, and not 0.49999999999999994

Combine = Callable[[Sequence[float]], float]

COMBINED_SCORES: Mapping[str, Combine] = {"mean": statistics.fmean, "median": statistics.median}
"""How one score is made of the judges' scores; `majority` counts verdicts instead, and `calibrated` weighs the judges
by how well they follow people."""


class Member(Struct, frozen=True):
    """One judge of a jury: its id and its name, without keys, and how it is asked."""

    id: str
    title: str
    ask: Callable[[], Awaitable[Grade]]


class Vote(Struct, frozen=True):
    """The grade of one judge, or the error that kept it from giving one."""

    judge: Member
    grade: Grade | None = None
    error: GevalError | None = None


async def ask_jury(members: Sequence[Member]) -> list[Vote]:
    """Return the votes of all judges, who are asked side by side, in the order of the jury.

    Raises:
        UndoneError: the run may spend no more, or an answer comes with a batch. All judges have ended by then.
    """
    came = await asyncio.gather(*(judge.ask() for judge in members), return_exceptions=True)
    votes = []
    for judge, found in zip(members, came, strict=True):
        if isinstance(found, Grade):
            votes.append(Vote(judge, found))
        elif isinstance(found, GevalError) and not isinstance(found, UndoneError):
            votes.append(Vote(judge, error=found))
        else:
            raise found
    return votes


def verdict_of_jury(
    votes: Sequence[Vote], rules: JuryRulesSpec, weights: Sequence[JudgeWeight | None] = ()
) -> Outcome:
    """Return one verdict: of the combined score, or with `majority` of how many judges pass the output.

    Args:
        votes: of all judges.
        rules: how they are combined.
        weights: of the same judges, for `calibrated`.

    Raises:
        JudgeError: fewer than `min_judges` gave a verdict, or none that has a weight.
    """
    grades = [vote.grade for vote in votes if vote.grade is not None]
    needed = rules.min_judges or len(votes) // 2 + 1
    if len(grades) < needed:
        judged = len(grades)
        first = next(vote for vote in votes if vote.error is not None)
        assert first.error is not None
        message = f"only {judged} of {len(votes)} judges gave a verdict; at least {needed} must"
        raw = first.error.raw_text if isinstance(first.error, JudgeError) else ""
        raise JudgeError(
            f"{message}; {first.judge.title}: {first.error.message}", raw_text=raw, hint=first.error.hint
        )
    scores = [grade.score for grade in grades]
    if rules.combine == "majority":
        majority = len(grades) // 2 + 1
        score = sum(grade.status is Status.PASSED for grade in grades) / len(grades)
        # On the scale of the score, the share of judges that pass: 2 of 3 must, 3 of 4, 3 of 5.
        threshold = majority / len(grades)
    elif rules.combine == CALIBRATED:
        score, threshold = _weighted(votes, weights), grades[0].threshold
    else:
        score, threshold = COMBINED_SCORES[rules.combine](scores), grades[0].threshold
    known = [weight for weight in weights if weight is not None]
    shares = heard_shares(known, _scores(votes)) if len(known) == len(votes) else []
    of_grades = [share for share, vote in zip(shares, votes, strict=False) if vote.grade is not None]
    items = _checklist_of_jury(grades, rules.combine, of_grades)
    status = Status.PASSED if passes(score, threshold) else Status.FAILED
    if rules.combine != "majority" and missed_required(items):
        status = Status.FAILED
    spread = round(max(scores) - min(scores), _DIGITS)
    return Outcome(
        status=status,
        score=score,
        reason=_reason(votes, math.fsum(scores) / len(scores) if rules.combine == "majority" else score),
        threshold=threshold,
        detail=_detail(votes, rules, grades, shares) | items | {"spread": spread, "split": spread >= SPLIT},
        latency_ms=max(grade.latency_ms for grade in grades),
    )


def _weighted(votes: Sequence[Vote], weights: Sequence[JudgeWeight | None]) -> float:
    """Return the score by the judges' weights, which the check before the run has found to be there for all of them."""
    known = [weight for weight in weights if weight is not None]
    if len(known) < len(votes):
        hint = "set `calibration:` in the config to the file that `geval calibrate` wrote"
        raise UnjudgeableError("the judges of this jury have no weights", hint=hint)
    score = weighted_score(known, _scores(votes))
    if score is None:
        first = next(vote for vote in votes if vote.error is not None)
        assert first.error is not None
        message = "no judge whose weight is above 0 gave a verdict"
        raise JudgeError(f"{message}; {first.judge.title}: {first.error.message}", hint=first.error.hint)
    return score


def weights_of(
    members: Sequence[Mapping[str, str]], judges: Sequence[JudgeWeight]
) -> list[JudgeWeight | None]:
    """Return the weight of each judge of a jury, known by the parts of its key that say who it is; None without one."""
    left = list(judges)
    found = []
    for parts in members:
        one = next(
            (one for one in left if all(one.parts.get(name) == parts.get(name) for name in _WHO)), None
        )
        if one is not None:
            left.remove(one)
        found.append(one)
    return found


def _scores(votes: Sequence[Vote]) -> list[float | None]:
    return [None if vote.grade is None else vote.grade.score for vote in votes]


def _checklist_of_jury(
    grades: Sequence[Grade], combine: str, shares: Sequence[float]
) -> dict[str, JsonValue]:
    """Return the items of a checklist as the jury sees them, by the key of the detail; empty for other criteria.

    Scores of an item are combined as those of the output are; with `majority` the share of the judges counts that find
    it met, and with `calibrated` each judge counts for its share of the weight: `shares` has that of each grade. The
    jury finds it met where that is more than half.
    """
    lists = [grade.detail.get(CHECKLIST) for grade in grades]
    if not all(lists):
        return {}
    found = []
    for answers in zip(*lists, strict=True):
        if combine == "majority":
            score = statistics.fmean(float(answer["met"]) for answer in answers)
        elif combine == CALIBRATED:
            parts = zip(shares, answers, strict=True)
            score = round(math.fsum(share * answer["score"] for share, answer in parts), _DIGITS)
        else:
            score = COMBINED_SCORES[combine]([answer["score"] for answer in answers])
        known = {name: answers[0][name] for name in ("item", "weight", "required")}
        found.append({**known, "met": score > HALF, "score": score})
    return {CHECKLIST: found}


def majority_again(rated: Outcome, threshold: float) -> Outcome:
    """Return the verdict of a majority on scores that its judges gave before, with the threshold of today."""
    votes = [vote for vote in rated.detail["judges"] if vote["score"] is not None]
    passed = [passes(vote["score"], threshold) and not missed_required(vote) for vote in votes]
    score = sum(passed) / len(passed)
    least = (len(passed) // 2 + 1) / len(passed)
    status = Status.PASSED if passes(score, least) else Status.FAILED
    detail = {**rated.detail, "jury": {**rated.detail["jury"], "threshold": threshold}}
    return replace(rated, status=status, score=score, threshold=least, detail=detail)


def _reason(votes: Sequence[Vote], score: float) -> str:
    """Return the scores of all judges, and the reason of the one whose score is nearest to that of the jury."""
    judged = [(vote.judge, vote.grade) for vote in votes if vote.grade is not None]
    shown = ", ".join(
        f"{vote.judge.title} {'error' if vote.grade is None else format_score(vote.grade.score)}"
        for vote in votes
    )
    judge, nearest = min(judged, key=lambda pair: round(abs(pair[1].score - score), _DIGITS))
    return "\n".join(filter(None, (nearest.reason and f"{judge.title}: {nearest.reason}", shown)))


def _detail(
    votes: Sequence[Vote],
    rules: JuryRulesSpec,
    grades: Sequence[Grade],
    shares: Sequence[float],
) -> dict[str, JsonValue]:
    names = ", ".join(vote.judge.title for vote in votes)
    usage = sum((grade.usage for grade in grades[1:]), grades[0].usage)
    shared = {name: grades[0].detail.get(name) for name in ("dimension", "criteria", "score_range")}
    jury: dict[str, JsonValue] = {"combine": rules.combine, "judged": len(grades), "asked": len(votes)}
    if rules.combine == "majority":
        jury["threshold"] = grades[0].threshold
    shown = [_vote_shown(vote) for vote in votes]
    if rules.combine == CALIBRATED:
        jury["reweighted"] = len(grades) < len(votes)
        shown = [{**vote, "weight": round(share, _DIGITS)} for vote, share in zip(shown, shares, strict=True)]
    found: dict[str, JsonValue] = {name: value for name, value in shared.items() if value is not None}
    return {
        **found,
        "judge": names,
        "jury": jury,
        "judges": shown,
        "usage": to_json(usage),
        "latency_ms": max(grade.latency_ms for grade in grades),
    }


def _vote_shown(vote: Vote) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"id": vote.judge.id, "label": vote.judge.title}
    if vote.grade is None:
        assert vote.error is not None
        error = {"type": type(vote.error).__name__, "message": vote.error.message, "hint": vote.error.hint}
        return {**shown, "status": Status.ERROR.value, "score": None, "reason": None, "error": error}
    grade = vote.grade
    verdict = {"status": grade.status.value, "score": grade.score, "reason": grade.reason, "error": None}
    return {**shown, **verdict, **{key: value for key, value in grade.detail.items() if key not in shown}}


DEFAULT_THRESHOLD = 0.5
"""The lowest score that passes where an assertion about retrieval names none."""


class ContextAssertion(ModelGradedAssertion):
    """Base of the assertions about retrieved context."""

    default_threshold = DEFAULT_THRESHOLD

    context_transform: str | None = Field(
        None,
        validation_alias=AliasChoices("contextTransform", "context_transform"),
        description="Code that extracts the context from the output.",
    )


def question_of(subject: Subject) -> str:
    """Return the question: the variable `query`, else the test's input, else the whole prompt."""
    query = subject.test.variables.get("query")
    return query if isinstance(query, str) and query else subject.test.input or subject.rendered_prompt


def context_of(test: MergedTest) -> tuple[str, ...]:
    """Return the passages of the context: from the variable, else from the test itself; empty without either."""
    for value in (test.vars.get("context"), test.retrieval_context, test.context):
        passages = _passages(value)
        if passages:
            return passages
    return ()


def needed_context(subject: Subject) -> tuple[str, ...]:
    """Return the passages of the context.

    Raises:
        UnjudgeableError: there are none.
    """
    found = context_of(subject.test)
    if not found:
        raise UnjudgeableError("the test has no `context`", hint="put the retrieved text into `vars.context`")
    return found


def sentences_of(passages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the countable units of a context: the passages of a list, or the lines of a single text."""
    if len(passages) != 1:
        return passages
    return tuple(line.strip() for line in passages[0].splitlines() if line.strip())


def check_context_is_there(spec: Assertion, context: CheckContext, problems: list[Problem]) -> None:
    """Report a test that has no context."""
    if not context_of(context.test):
        where = context.where.removeprefix("in ")
        message = f"{spec.base_type} needs a context, but {where} has none"
        hint = "put the retrieved text into `vars.context`"
        problems.append(Problem(message, spec.place.value("type"), hint))


def _passages(value: JsonValue) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value.strip() else ()
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value if str(item).strip())
    return ()

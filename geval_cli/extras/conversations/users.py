"""Simulated users of a config (`turns: {simulate: ...}`, `profiles`), and a model that plays them.

The settings are read and checked; then a model is shown the conversation and plays the user until it is over.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from geval_cli.assertions.base import Assertion, CheckContext, MergedTest, SimulatedUser, Subject, shortened
from geval_cli.assertions.json_text import calls_beside
from geval_cli.engine.case import JobContext
from geval_cli.engine.conversation import Conversation
from geval_cli.engine.plan import Job
from geval_cli.errors import ConfigError, Location, Problem, ProviderShapeError, UnjudgeableError
from geval_cli.judge.calls import is_cut_off
from geval_cli.judge.metric import CachingJudge
from geval_cli.judge.source import ASSISTANT, USER
from geval_cli.numbers import plural
from geval_cli.records import (
    JsonValue,
    Message,
    ModelRequest,
    ModelResponse,
    Purpose,
    Role,
    Status,
    TraceStep,
    Turn,
    Usage,
)
from geval_cli.source.files import is_file_reference, read_document
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import describe_value
from geval_cli.suite.assertions import read_assertion, read_provider
from geval_cli.suite.schema import SimulatedUserSpec, SimulationSpec
from geval_cli.suite.tables import csv_rows
from geval_cli.suite.test_files import JsonLinesRows, named_files
from geval_cli.suite.tests import PROFILE, Profiles, drop_turns
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields

GOAL, GAVE_UP, LIMIT = "goal", "gave_up", "limit"

_MARKS = {GOAL: "[[GOAL REACHED]]", GAVE_UP: "[[GIVING UP]]"}
_MARK = r"\[\[ *(GOAL[ _]REACHED|GIVING[ _]UP) *\]\]"
_AROUND = r"[\s*_`\"'.!]*"
_LINE = re.compile(rf"{_AROUND}{_MARK}{_AROUND}", re.IGNORECASE)
# Behind a whole sentence: "I will not write [[GIVING UP]]" says the opposite.
_BEHIND = re.compile(rf"(?<=[.!?…)\"'\u2019\u201d*_])\s*{_MARK}{_AROUND}\Z", re.IGNORECASE)
_ANYWHERE = re.compile(_MARK, re.IGNORECASE)
_OWN_NAME = re.compile(r"[\s*_]*(?:user|human)[*_ ]*:[*_]*\s*", re.IGNORECASE)
_OTHER_NAME = re.compile(r"^[ \t*_]*(?:assistant|ai)[*_ ]*:", re.IGNORECASE | re.MULTILINE)

_INSTRUCTIONS = """\
You play a person who writes to an assistant. You are this person and never the assistant: you do not help, you want \
something. The messages that you receive are the assistant's.
{profile}
What you want:
{goal}

How you write:
- Reply with this person's next message alone: no name before it, no quotation marks around it, no comment on it.
- Write as this person would in a chat, usually one or two sentences, in the language of the text above.
- Do not say everything at once. Say what matters when it is asked for or needed.
- If you are asked for something that is not said above, make up an answer that fits, and stay with it.
- Do not accept less than what you want, unless this person would.

How it ends:
{ends}"""
_PROFILE = "\nWho you are:\n{profile}\n"
_END_BY_SELF = """\
- {when}, reply with this line alone:
{mark}"""
_BEGIN = "(The chat is open. Write your first message.)"
_AGAIN = "(Reply with this person's next message alone, or with the agreed line alone.)"
_SHORTER = (
    "(That was too long and is cut off. Write this person's next message in one or two short sentences.)"
)


class UserReply(Struct, frozen=True):
    """A reply of the model that plays the user: the words to send, and how it ends the conversation, if it does."""

    words: str
    end: str | None = None


def read_reply(text: str, ends: Sequence[str] = (GOAL, GAVE_UP)) -> UserReply | None:
    """Read a reply of the model that plays the user; None where it says nothing, or could mean two things.

    A mark counts on a line of its own and behind a whole sentence. One that is not among the agreed `ends` is dropped.
    """
    own = _OWN_NAME.match(text)
    said = text[own.end() :] if own else text
    if other := _OTHER_NAME.search(said):  # what follows is not the user's
        said = said[: other.start()]
    marks: set[str] = set()
    lines = []
    for line in said.splitlines():
        if found := _LINE.fullmatch(line):
            marks.add(_end_of(found))
        else:
            lines.append(line)
    words = "\n".join(lines).strip()
    if found := _BEHIND.search(words):
        marks.add(_end_of(found))
        words = words[: found.start()].rstrip()
    marks &= set(ends)
    if _ANYWHERE.search(words) or len(marks) > 1 or not (words or marks):
        return None
    return UserReply(words, next(iter(marks), None))


def _end_of(found: re.Match[str]) -> str:
    return GOAL if found[1].upper().startswith("GOAL") else GAVE_UP


class SimulatedConversation:
    """The user's side of one conversation. Its model sees the goal, the profile and what was said, and nothing else."""

    def __init__(
        self, job: Job, test: MergedTest, context: JobContext, called: Sequence[TraceStep] | None = None
    ) -> None:
        """Begin; `test` has its variables as templates see them, and `called` grows with each tool that is called.

        Raises:
            TemplateError: a text of the user cannot be rendered.
        """
        assert test.user is not None
        self._job, self._test, self._context, self._user = job, test, context, test.user
        self._called = called
        self._ends = (GAVE_UP,) if test.user.assertions else (GOAL, GAVE_UP)
        variables = test.variables
        templates = context.tools.templates
        self._opening = None if test.user.opening is None else templates.render(test.user.opening, variables)
        done_when = test.user.done_when
        self._instructions = instructions(
            templates.render(test.user.goal or "", variables),
            test.user.profile,
            templates.render(done_when, variables) if isinstance(done_when, str) else "",
            self._ends,
        )

    async def next_turns(self, held: Conversation) -> Sequence[Turn]:
        """Return what the user says next; nothing at the end, which `held` then has in `ended_by`.

        Raises:
            GevalError: the user's model fails or says nothing that could be sent, or `done_when` cannot be judged.
        """
        said = sum(turn.role == USER for turn in held.turns)
        if not said and self._opening is not None:
            return (Turn(USER, self._opening),)
        if said:
            for spec in self._user.assertions:
                if await self._holds(spec, held):
                    held.ended_by = GOAL
                    return ()
                if said >= self._user.max_turns:
                    held.ended_by = LIMIT
                    return ()
        reply = await self._reply(held)
        # Before the first answer there is nothing to end, and after the last turn nothing to say.
        if said and reply.end is not None:
            held.ended_by = reply.end
        elif said >= self._user.max_turns:
            held.ended_by = LIMIT
        else:
            return (Turn(USER, reply.words),)
        return ()

    async def _reply(self, held: Conversation) -> UserReply:
        """Return the user's reply; one that cannot be read, or was cut off, is asked for once more.

        Raises:
            ProviderShapeError: the second one is no better.
        """
        provider = self._user.provider
        assert provider is not None
        messages = user_messages(self._instructions, held.turns)
        response, sent, is_cut = ModelResponse(()), list[ModelRequest](), False
        for again in (False, True):
            if again:
                asked = _SHORTER if is_cut else _AGAIN
                messages = (*messages[:-1], Message(USER, f"{messages[-1].content}\n\n{asked}"))
            request = ModelRequest(
                messages, repeat_index=self._job.repeat_index, role=Role.USER, purpose=Purpose.USER_TURN
            )
            sent.append(request)
            response = await self._context.generate(provider, request)
            held.usage[Role.USER] = held.usage.get(Role.USER, Usage()) + response.usage
            is_call = bool(response.tool_calls) and not calls_beside(response.text, response.tool_calls)
            is_cut = any(map(is_cut_off, response.choices))
            reply = None if is_call or is_cut else read_reply(response.text, self._ends)
            if reply is not None and (reply.words or held.responses):
                return reply
        model = self._context.tools.judge_for(provider)
        if isinstance(model, CachingJudge):  # so that a retry does not find them in the cache
            for request in sent:
                await model.forget(request)
        what = "was cut off by a token limit" if is_cut else "is no message of a user"
        raise ProviderShapeError(
            f'the reply of {provider.public_id} {what}: "{shortened(response.text)}"',
            provider_id=provider.public_id,
            body=response.text,
            hint="raise `max_tokens` of `user`" if is_cut else "use a more capable model as `user`",
        )

    async def _holds(self, spec: Assertion, held: Conversation) -> bool:
        """Return whether `done_when` holds for the last answer.

        Raises:
            UnjudgeableError: it could not be judged.
        """
        response = held.responses[-1]
        subject = Subject(
            self._test,
            held.turns[-1].content,
            held.sent,
            self._job.repeat_index,
            response=response,
            provider=self._job.provider,
            rules=self._context.tools.rules,
            turns=tuple(held.turns),
            called=None if self._called is None else tuple(self._called),
        )
        result = await self._context.judge(spec, subject, self._context.tools)
        held.usage[Role.JUDGE] = held.usage.get(Role.JUDGE, Usage()) + result.usage
        if result.error is not None:
            message = f"`done_when` could not be judged: {result.error.message}"
            raise UnjudgeableError(message, hint=result.error.hint)
        return result.status is Status.PASSED


def instructions(
    goal: str, profile: str | Mapping[str, JsonValue] | None, done_when: str, ends: Sequence[str]
) -> str:
    """Return what the user's model is told before the conversation."""
    when = {
        GOAL: f"As soon as you have what you want ({done_when})"
        if done_when
        else "As soon as you have what you want",
        GAVE_UP: "If this person would give up, since the assistant does not help or goes round in circles",
    }
    told = "" if profile is None else _PROFILE.format(profile=_profile_text(profile))
    return _INSTRUCTIONS.format(
        profile=told,
        goal=goal,
        ends="\n".join(_END_BY_SELF.format(when=when[end], mark=_MARKS[end]) for end in ends),
    )


def _profile_text(profile: str | Mapping[str, JsonValue]) -> str:
    if isinstance(profile, str):
        return profile
    return "\n".join(
        f"- {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in profile.items()
    )


def user_messages(told: str, said: Sequence[Turn]) -> tuple[Message, ...]:
    """Return the conversation with its roles exchanged, as the user's model sees it: without tools and their calls."""
    messages = [Message("system", told), Message(USER, _BEGIN)]
    for turn in said:
        if turn.role not in {USER, ASSISTANT} or not turn.content:
            continue
        role = ASSISTANT if turn.role == USER else USER
        if messages[-1].role == role and len(messages) > 2:  # noqa: PLR2004 - what the assistant says beside calls
            messages[-1] = Message(role, f"{messages[-1].content}\n\n{turn.content}")
        else:
            messages.append(Message(role, turn.content))
    if messages[-1].role == ASSISTANT:
        messages.append(Message(USER, "(The assistant says nothing.)"))
    return tuple(messages)


_TEXTS = ("goal", "profile", "opening", "done_when")
_TEMPLATES = ("goal", "opening", "done_when")
_FORM = "for example [{age: 70, patience: little}, A student in a hurry.]"
_KNOWN = "known: .csv, .tsv, .jsonl, .ndjson, .json, .yaml, .yml"


def read_simulation(fields: Fields, reading: LoadContext) -> None:
    """Put a simulated user in the place of what is written as `turns`, or drop it with a problem for each mistake."""
    before = reading.errors
    place = fields.child("turns")
    outer = read_fields(SimulationSpec, fields.values["turns"], place, "`turns`", reading)
    spec = None
    if outer is not None and "simulate" in outer.values:
        written = outer.values["simulate"]
        inner = read_fields(SimulatedUserSpec, written, outer.child("simulate"), "a simulated user", reading)
        if inner is not None:
            _read_parts(inner, reading)
            user = build_spec(SimulatedUserSpec, inner, reading)
            spec = None if user is None else SimulationSpec(simulate=user, place=place)
    if spec is None or reading.errors > before:
        drop_turns(fields)
    else:
        fields.values["turns"] = spec


def _read_parts(fields: Fields, reading: LoadContext) -> None:
    for name in _TEXTS:
        value = fields.values.get(name)
        if is_file_reference(value) and not reading.is_built:
            fields.values[name] = reading.text(value, fields.child(name).value)
        if isinstance(fields.values.get(name), str) and not fields.values[name].strip():
            reading.report(
                f"`{fields.written[name]}` is empty", fields.child(name).value(), "fill it in, or remove it"
            )
    if "user" in fields.values:
        fields.values["user"] = read_provider(fields.values["user"], fields.child("user"), reading)
    if isinstance(written := fields.values.get("done_when"), dict):
        at = fields.child("done_when")
        spec = read_assertion(written, at, reading)
        if spec is not None and (spec.compares_outputs or getattr(spec, "dimensions", None)):
            hint = "name one assertion about one answer"
            reading.report("`done_when` cannot compare outputs or rate several dimensions", at.value(), hint)
        elif spec is not None and spec.type.removeprefix("not-") == "ended-by":
            hint = "name an assertion about the last answer"
            reading.report("`done_when` decides the end, so it cannot be `ended-by`", at.value("type"), hint)
        fields.values["done_when"] = spec


def merged_user(written: SimulationSpec, below: object) -> SimulatedUser:
    """Return the user of a test; what it leaves out is that of `defaultTest`, whose turns are `below`."""
    own = written.simulate
    default = below.simulate if isinstance(below, SimulationSpec) else own

    def pick(name: str) -> JsonValue:
        return getattr(own if name in own.model_fields_set else default, name)

    return SimulatedUser(
        own.place,
        goal=pick("goal"),
        provider=pick("user"),
        profile=pick("profile"),
        opening=pick("opening"),
        done_when=pick("done_when"),
        max_turns=pick("max_turns"),
    )


def check_user(test: MergedTest, context: CheckContext) -> Iterator[Problem]:
    """Yield what a simulated user lacks, and what is wrong with its texts; `done_when` is checked as an assertion."""
    user = test.user
    assert user is not None
    whose = context.where.removeprefix("in ")
    if user.goal is None:
        hint = "say what the user wants: `goal: Get a refund for the broken teapot`"
        yield Problem(f"the simulated user of {whose} has no `goal`", user.place.value(), hint)
    if user.provider is None:
        hint = (
            "name the model that plays the user, in the test or in `defaultTest`: `user: openai:gpt-4.1-mini`"
        )
        yield Problem(f"the simulated user of {whose} has no `user`", user.place.value(), hint)
    if user.profile is not None and test.vars.get(PROFILE) != user.profile:
        yield Problem(
            f"the variable `{PROFILE}` hides the profile of the simulated user ({whose})",
            test.place.value("vars", PROFILE) or user.place.value(),
            "give the variable another name",
        )
    problems: list[Problem] = []
    for name in _TEMPLATES:
        if isinstance(text := getattr(user, name), str):
            rendered = context.render(text, user.place.value(name), problems)
            if rendered is not None and not rendered.strip():
                hint = "fill in its variables, or remove it"
                yield Problem(f"`{name}` of {whose} is empty once rendered", user.place.value(name), hint)
    yield from problems


def read_profiles(value: JsonValue, place: SourcePath, reading: LoadContext) -> Profiles:
    """Return the profiles of a config, in their order, with a problem for each that cannot be read."""
    if is_file_reference(value):
        return tuple(_profiles(_rows_of_files(value, place.value(), reading), reading))
    if not isinstance(value, list) or not value:
        found = "an empty list" if isinstance(value, list) else describe_value(value)
        reading.report(f"`profiles` must be a list of profiles, found {found}", place.value(), _FORM)
        return ()
    items = ((item, place.child(index)) for index, item in enumerate(value))
    return tuple(_profiles(items, reading))


def _profiles(
    rows: Iterator[tuple[JsonValue, SourcePath]], reading: LoadContext
) -> Iterator[str | Mapping[str, JsonValue]]:
    for item, place in rows:
        if is_file_reference(item):
            yield from _profiles(_rows_of_files(item, place.value(), reading), reading)
        elif isinstance(item, dict) and item and not set(item) - {PROFILE} and isinstance(item[PROFILE], str):
            yield item[PROFILE]  # a table with one column
        elif (isinstance(item, str) and item.strip()) or (isinstance(item, dict) and item):
            yield item
        else:
            found = "an empty mapping" if item == {} else describe_value(item)
            reading.report(f"a profile must be text or traits, found {found}", place.value(), _FORM)


def _rows_of_files(
    reference: str, asked_at: Location | None, reading: LoadContext
) -> Iterator[tuple[JsonValue, SourcePath]]:
    known, is_empty = reading.errors, True
    try:
        for file in named_files(reference, asked_at, reading):
            for row in _rows_of_file(file.path, asked_at, reading):
                is_empty = False
                yield row
    except ConfigError as error:
        reading.problems.extend(error.problems)
    if is_empty and reading.errors == known:
        reading.report(f"`{reference}` contains no profiles", asked_at, _FORM)


def _rows_of_file(
    path: Path, asked_at: Location | None, reading: LoadContext
) -> Iterator[tuple[JsonValue, SourcePath]]:
    suffix = path.suffix.lower()
    if suffix in {".jsonl", ".ndjson"}:
        yield from JsonLinesRows(path, asked_at, "profiles").rows(reading)
    elif suffix in {".json", ".yaml", ".yml"}:
        document = read_document(path, reading.files.access, asked_at=asked_at, prefix="profiles")
        if not isinstance(document.value, list):
            message = f"`{path.name}` must contain a list of profiles, found {describe_value(document.value)}"
            reading.report(message, document.place.value(), _FORM)
            return
        yield from ((item, document.place.child(index)) for index, item in enumerate(document.value))
    elif suffix in {".csv", ".tsv"}:
        delimiter = "\t" if suffix == ".tsv" else None
        rows = csv_rows(path, reading.files.access, asked_at, delimiter=delimiter, is_strict=True)
        filled = (row for row in rows if not row.is_empty)
        header = next(filled, None)
        names = [] if header is None else [str(cell).strip() for cell in header.cells]
        for row in filled:
            if len(row.cells) > len(names):
                message = f"this row has {plural(len(row.cells), 'cell')}, but the header has {len(names)}"
                reading.report(message, row.location(path), "put quotes around a text with a comma")
            cells = dict(zip(names, row.cells, strict=False))
            traits = {name: cell for name, cell in cells.items() if name and cell}
            yield reading.env.literal(traits), SourcePath.nowhere()
    else:
        reading.report(f"`{path.name}` is not a file of profiles", asked_at, _KNOWN)

"""The first pass over a suite: renders every test and checks every assertion before anything is sent.

It also checks images and audio: whether there are too many, and whether the models can take them.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    JudgeDefaults,
    MergedTest,
    ModelGradedAssertion,
    Subject,
    each_assertion,
)
from geval_cli.assertions.judges import judges_of
from geval_cli.assertions.registry import check_assertion
from geval_cli.engine.aggregate import check_formulas
from geval_cli.engine.columns import check_column_name, columns_named
from geval_cli.engine.conversation import is_order_bound, uses_conversation
from geval_cli.engine.gates import GateSubjects
from geval_cli.engine.plan import (
    NO_PROVIDER,
    Plan,
    assertions_of,
    check_prompts,
    check_unused_schema,
    evaluation_of,
)
from geval_cli.engine.prompt import REQUESTS, Rendered, render_prompt, seen_by_templates
from geval_cli.engine.transforms import check_code
from geval_cli.errors import ConfigError, GevalError, Location, Problem, Severity, TemplateError
from geval_cli.plugins import extra
from geval_cli.providers.options import ENDPOINT_KEYS, own_settings
from geval_cli.providers.registry import accepted_audio, sees_images
from geval_cli.records import JsonValue, Message
from geval_cli.source.files import is_bare_path
from geval_cli.source.media import (
    FEWER_HINT,
    MEDIA_FIELDS,
    Media,
    called,
    counted,
    find_media,
    markers_in,
    media_of_messages,
    shown_media,
    too_many,
)
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.suite.prompts import NO_PROMPT
from geval_cli.suite.suite import LoadedSuite
from geval_cli.suite.tests import MAX_PROBLEMS
from geval_cli.templating import Templates, template_problem

_WHO_SEES = "use a model from OpenAI, Anthropic or Google, or a server with OpenAI's chat API"
_WHO_HEARS = "use Gemini (`google:`, `vertex:`), or a model with OpenAI's chat API such as openai:gpt-audio"
_INSTRUCTIONS = ("system", "developer")


def check_prompt_media(
    prompt: PromptSpec, rendered: Rendered, answerers: Iterable[ProviderSpec], where: str
) -> Iterator[Problem]:
    """Yield the problems of a prompt's images and audio, as it would be sent to each of `answerers`."""
    messages, found = media_of_messages(rendered.messages)
    for message in messages:
        held = list(filter(None, map(find_media, markers_in(message.content))))
        if message.role in _INSTRUCTIONS and held:
            hint = "put it into a user message"
            said = f"a {message.role} message has {counted(held[:1])} ({where})"
            yield Problem(said, prompt.place.value(), hint)
    if not found:
        return
    shown = shown_media(messages, found)
    problem = too_many(shown)
    if problem:
        yield Problem(f"{problem} ({where})", prompt.place.value(), FEWER_HINT)
    for provider in answerers:
        if provider.id == NO_PROVIDER.id:
            continue
        for lack, kind, hint in _lacks(provider, shown):
            named = counted([item for item in shown if item.kind == kind])
            said = f"{provider.public_id} {lack}, but {named} is in its prompt ({where})"
            yield Problem(said, provider.place.value(), hint)
        yield from _check_audio_model(provider, shown, provider.place.value())


def check_judged_media(
    test: MergedTest, specs: Sequence[Assertion], defaults: JudgeDefaults, where: str
) -> Iterator[Problem]:
    """Yield the problems of the images and audio that the judges of a test are shown."""
    shown = tuple(
        dict.fromkeys((*test.images, *test.audio, *markers_in(test.variables), *markers_in(test.output)))
    )
    if not shown:
        return
    messages, found = media_of_messages((Message("user", "\n".join(shown)),))
    problem = too_many(shown_media(messages, found))
    if problem:
        yield Problem(f"{problem} ({where})", test.place.value(), FEWER_HINT)
    for spec in (item for group in specs for item in (group, *group.members)):
        if not isinstance(spec, ModelGradedAssertion) or "text" not in spec.judge_kinds:
            continue
        params = getattr(spec, "evaluation_params", None)
        seen = list(found.values())
        if params is not None and "input" not in params:
            of_output = {item.sha256 for item in filter(None, map(find_media, markers_in(test.output)))}
            named = {kind for name, kind in MEDIA_FIELDS.items() if name in params}
            seen = [item for item in seen if item.kind in named or item.sha256 in of_output]
        for judge in judges_of(spec, test, defaults):
            place = judge.place.value() or spec.place.value()
            for lack, _, hint in _lacks(judge, seen):
                message = f"{judge.public_id} judges but {lack}, which the test has ({where})"
                yield Problem(message, place, hint)
            yield from _check_audio_model(judge, seen, place)


def _lacks(provider: ProviderSpec, shown: Sequence[Media]) -> Iterator[tuple[str, str, str]]:
    """Yield what a provider cannot take of the media in `shown`: the reason in words, the kind of media, and a hint."""
    if any(item.kind == "image" for item in shown) and not sees_images(provider):
        yield "cannot see images", "image", _WHO_SEES
    heard = accepted_audio(provider)
    sounds = {item.media_type for item in shown if item.kind == "audio"}
    if sounds and not heard:
        yield "cannot hear audio", "audio", _WHO_HEARS
    elif sounds - heard:
        names = " and ".join(sorted(map(called, sounds - heard)))
        hint = f"convert it to {' or '.join(sorted(map(called, heard)))}"
        yield f"cannot hear audio as {names}", "audio", hint


def _check_audio_model(
    provider: ProviderSpec, shown: Sequence[Media], place: Location | None
) -> Iterator[Problem]:
    """Yield a warning if audio goes to a model of OpenAI's own whose name does not suggest that it takes audio."""
    if (
        any(item.kind == "audio" for item in shown)
        and provider.id.startswith("openai:")
        and "audio" not in provider.id
        and accepted_audio(provider)
        and not own_settings(provider.config, ENDPOINT_KEYS).keys() & {"base_url", "api_host", "api_endpoint"}
    ):
        message = (
            f"{provider.public_id} may refuse audio: OpenAI's models that hear have `audio` in their names"
        )
        yield Problem(message, place, "for example openai:gpt-audio", severity=Severity.WARNING)


_TESTS_COMPARED = 100


class Checked(Struct, frozen=True):
    """The findings of the first pass over all tests.

    Attributes:
        problems: all of them, warnings included.
        tests: the number of tests.
        judges: every provider that will judge, without duplicates.
        judged_at: for each of these judges, the place of the first assertion that uses it.
        answerers: every provider that answers because a test names it, as its model or as a simulator of tools; without
            duplicates.
        users: every provider that plays a user, without duplicates.
        own_judges: the number of assertions, counted once per test, that name their own judge, so that `--grader` does
            not apply to them.
        cases: the number of cases, with repeats counted once.
        checks_nothing: whether no test has anything to check.
        is_serial: whether a case may depend on earlier ones.
        is_in_rows: whether outputs of a test are compared with one another.
        tools_at: the place of the `tools` in the first test that has any; None if no test has tools.
    """

    problems: tuple[Problem, ...]
    tests: int
    judges: tuple[ProviderSpec, ...] = ()
    judged_at: tuple[Location | None, ...] = ()
    answerers: tuple[ProviderSpec, ...] = ()
    users: tuple[ProviderSpec, ...] = ()
    own_judges: int = 0
    cases: int = 0
    checks_nothing: bool = False
    is_serial: bool = False
    is_in_rows: bool = False
    tools_at: Location | None = None


class _Totals(Struct):
    """The running totals over the tests, from which `Checked` is made."""

    is_serial: bool
    tests: int = 0
    cases: int = 0
    checks_nothing: bool = True
    is_in_rows: bool = False
    without_turns: int = 0
    with_answers: int = 0
    tools: MergedTest | None = None

    def record(self, test: MergedTest, plan: Plan) -> None:
        self.tests += 1
        self.without_turns += not test.is_conversation
        self.with_answers += test.ends_with_answer
        self.cases += plan.cases_of(test)
        self.checks_nothing = self.checks_nothing and not (
            bool(test.assertions) or any(evaluation_of(prompt, test) for prompt in plan.suite.prompts)
        )
        self.is_serial = self.is_serial or is_order_bound(test)
        self.tools = self.tools or (None if test.tools is None else test)
        self.is_in_rows = self.is_in_rows or any(spec.compares_outputs for spec in test.assertions)

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Yield the problems of providers and tests taken together; tests with turns need no prompt."""
        if self.without_turns or not self.tests:
            yield from _check_missing_prompts(plan)
        elif self.with_answers == self.tests:
            # All tests bring their own answers, so the providers are never called.
            asked = next((provider for provider in plan.providers if provider.id != NO_PROVIDER.id), None)
            if asked is not None:
                yield Problem(
                    "no provider is called: every test's `turns` end with an answer, which is judged",
                    asked.place.value(),
                    "remove the last turn to have a model answer",
                    severity=Severity.WARNING,
                )


class _Judges(Struct):
    """The judges over all tests, and the other providers that tests name."""

    defaults: JudgeDefaults
    found: dict[bytes, ProviderSpec] = field(default_factory=dict)
    places: list[Location | None] = field(default_factory=list)
    own: int = 0
    answerers: dict[bytes, ProviderSpec] = field(default_factory=dict)
    users: dict[bytes, ProviderSpec] = field(default_factory=dict)
    _seen: dict[int, ProviderSpec] = field(default_factory=dict)

    def record(self, spec: Assertion, context: CheckContext) -> None:
        if not spec.applies_to(context.test, context.templates):
            return
        for member in spec.members:
            self.record(member, context)
        if isinstance(spec, ModelGradedAssertion):
            judges = list(judges_of(spec, context.test, self.defaults))
            for judge in judges:
                self._add(judge, spec)
            self.own += "text" in spec.judge_kinds and self.defaults.grader not in judges

    def note_answerer(self, test: MergedTest, plan: Plan) -> None:
        # Keyed by fingerprint: thousands of tests may name the same provider, which is checked once.
        if test.provider is not None:
            answerer = plan.answering(test, NO_PROVIDER)
            self.answerers.setdefault(answerer.fingerprint, answerer)
        if test.tools is not None and test.tools.simulator is not None:
            simulator = plan.suite.resolved(test.tools.simulator)
            self.answerers.setdefault(simulator.fingerprint, simulator)
        if test.user is not None and test.user.provider is not None:
            self.users.setdefault(test.user.provider.fingerprint, test.user.provider)

    def _add(self, judge: ProviderSpec, spec: Assertion) -> None:
        if id(judge) in self._seen:  # most tests share their judges, and comparing by content is slow
            return
        if judge.fingerprint not in self.found:
            self.places.append(spec.place.value("type") or spec.place.value())
        if self.found.setdefault(judge.fingerprint, judge) is judge:
            self._seen[id(judge)] = judge


MOST_UNTRUSTED_TESTS = 50_000
"""The most tests that an untrusted suite may have: each takes a few bytes of a file, but a millisecond of a run."""


class _Findings(Struct):
    """Problems, each kept once: a mistake in `defaultTest` or in a prompt shows in every test, but is one mistake.

    Beyond `MAX_PROBLEMS`, further problems are only counted.
    """

    _first: dict[tuple[str, Location | None], Problem] = field(default_factory=dict)
    _further: dict[tuple[str, Location | None], int] = field(default_factory=dict)
    _left_out: dict[Severity, int] = field(default_factory=dict)

    def add(self, problem: Problem, where: str) -> None:
        key = (problem.message.replace(where, ""), problem.location)
        if key in self._first:
            self._further[key] = self._further.get(key, 0) + 1
        elif len(self._first) < MAX_PROBLEMS:
            self._first[key] = problem
        else:
            self._left_out[problem.severity] = self._left_out.get(problem.severity, 0) + 1

    def all(self) -> Iterator[Problem]:
        for key, problem in self._first.items():
            further = self._further.get(key, 0)
            if further and key[0] != problem.message:
                note = f"the same in {further} more test{'s' if further > 1 else ''}"
                yield dataclasses.replace(problem, notes=(*problem.notes, note))
            else:
                yield problem
        for severity, count in self._left_out.items():
            what = f"{count:,} more {severity}{'' if count == 1 else 's'} in the tests"
            yield Problem(f"{what}, not shown", severity=severity)


_TEXTS = ("input", "output", "expected_output", "context", "retrieval_context", "evaluation_schema")


_DEFAULTS = ("defaultTest", "default_test", "defaultTest.vars", "default_test.vars")
"""Keys in which a mistake leaves it open which variables all tests have."""


def check_plan(
    plan: Plan,
    templates: Templates,
    defaults: JudgeDefaults,
    *,
    is_complete: bool = True,
    is_filtered: bool = False,
    broken: Sequence[Problem] = (),
    text: str = "",
) -> Checked:
    """Go through all tests once and collect their problems, of which at most `MAX_PROBLEMS` are listed.

    Without `is_complete`, parts of the suite are missing because they have problems of their own, so whatever seems to
    be absent is not reported. Metrics of gates are an exception: they are reported if their names occur nowhere else in
    `text`, the text of the config, and all `broken` parts are in that file.
    With `is_filtered`, whatever a gate lacks may have been filtered out, so that it is only a warning.
    """
    findings = _Findings()
    judges = _Judges(defaults)
    of_suite = (
        *check_prompts(plan.suite.prompts),
        *check_formulas(plan.suite.derived_metrics),
        *(extra(REQUESTS).changed_for_claude(plan.suite) if plan.suite.rules.prompts_spell_chats else ()),
    )
    for problem in of_suite:
        findings.add(problem, "")
    totals = _Totals(is_serial=any(map(uses_conversation, plan.suite.prompts)))
    lenient = templates.lenient()
    suite = plan.suite
    subjects = GateSubjects(suite.gates, suite.margins, suite.margin_place, suite.derived_metrics)
    asked = _IdenticalRequests(suite.prompts)
    likely = extra("likely mistakes").LikelyMistakes(plan)
    stores_answers = False
    lacks_default = any(item.location and item.location.key_path in _DEFAULTS for item in broken)
    try:
        # One pass for everything: tests may come from a large file, and are never all held in memory.
        for written in plan.suite.tests:
            # The variables that code adds are unknown before the run, and so are those of a broken defaultTest.
            is_open = written.transform_vars is not None or lacks_default
            seen_by = lenient if is_open else templates
            test = seen_by_templates(written, seen_by)
            totals.record(test, plan)
            if plan.suite.access.is_untrusted and totals.tests > MOST_UNTRUSTED_TESTS:
                hint = "use fewer, or run the config without --untrusted once you trust it"
                message = f"the suite has more than {MOST_UNTRUSTED_TESTS:,} tests, which --untrusted does not allow"
                findings.add(Problem(message, hint=hint), "")
                break
            judges.note_answerer(test, plan)
            subjects.record(test, plan.suite.prompts, templates)
            asked.record(test)
            likely.record(written)
            where = describe_test(test)
            knows_variables = not (stores_answers or is_open or written.promptfoo.made_vars)
            stores_answers = stores_answers or is_order_bound(written)
            for problem in _check_test(
                test, plan, seen_by, judges, is_complete=is_complete, knows_variables=knows_variables
            ):
                findings.add(problem, where)
    except ConfigError as error:
        may_be = _names_in(text, plan, (*broken, *error.problems))
        return Checked((*error.problems, *findings.all(), *subjects.unknown_metrics(may_be)), totals.tests)
    for problem in totals.problems(plan) if is_complete else ():
        findings.add(problem, "")
    braces = likely.braces()
    of_prompts = [*asked.problems(besides={found.prompt.id for found in braces})]
    # An unknown name is already an error; a variable that seems unused because of it is the same mistake.
    is_sound = is_complete and not any(item.severity is Severity.ERROR for item in findings.all())
    of_likely = likely.problems(braces, has_fixed_prompts=bool(of_prompts)) if is_sound else ()
    of_gates: Iterable[Problem] = ()
    if totals.tests:
        of_gates = (
            subjects.problems() if is_complete else subjects.unknown_metrics(_names_in(text, plan, broken))
        )
    if is_filtered:
        of_gates = (dataclasses.replace(problem, severity=Severity.WARNING) for problem in of_gates)
    return Checked(
        (*findings.all(), *of_prompts, *of_likely, *of_gates),
        totals.tests,
        tuple(judges.found.values()),
        tuple(judges.places),
        tuple(judges.answerers.values()),
        tuple(judges.users.values()),
        own_judges=judges.own,
        cases=totals.cases,
        checks_nothing=bool(totals.tests) and totals.checks_nothing,
        is_serial=totals.is_serial,
        is_in_rows=totals.is_in_rows,
        tools_at=None
        if totals.tools is None or totals.tools.tools is None
        else totals.tools.tools.place.key(),
    )


def _names_in(text: str, plan: Plan, broken: Sequence[Problem]) -> Callable[[str], bool]:
    """Return a predicate: may a name be that of a metric in parts of the config that could not be read?"""
    places = [problem.location for problem in broken if not is_of_gates(problem)]
    path, written = plan.suite.path, _letters(text)
    is_elsewhere = any(place is None or Path(place.file).name != path.name for place in places)
    if not text or is_elsewhere or "{{" in text.partition("metric:")[2].partition("\n")[0]:
        return lambda _: True
    in_gates = "".join(_letters(gate.text) for gate in plan.suite.gates)
    return lambda name: written.count(_letters(name)) > in_gates.count(_letters(name))


def is_of_gates(problem: Problem) -> bool:
    """Return whether a problem makes only a gate missing, not a test."""
    return problem.location is not None and problem.location.key_path.startswith("gates")


def _letters(text: str) -> str:
    """Return the letters and digits of a text in lower case: a metric may be named by the words of its criteria."""
    return "".join(filter(str.isalnum, text.lower()))


def assertions_of_plan(plan: Plan, templates: Templates) -> Iterator[tuple[Assertion, Subject]]:
    """Yield every assertion, a group before its members, for each test and prompt, with a subject without an output.

    Prompts that cannot be rendered are skipped; `check_plan` reports them.
    """
    for written in plan.suite.tests:
        test = seen_by_templates(written, templates)
        for prompt in plan.suite.prompts:
            try:
                rendered = render_prompt(prompt, test, templates)
            except GevalError:
                continue
            subject = Subject(test, "", rendered.whole, system=rendered.system)
            ends = () if written.user is None else written.user.assertions
            for spec in each_assertion((*assertions_of(prompt, written), *ends)):
                yield spec, subject


def describe_test(test: MergedTest) -> str:
    """Return a test's name for messages: its number, counted from 1, and its description."""
    return f"test {test.index + 1}" + (f" ({test.description})" if test.description else "")


def _check_test(
    test: MergedTest,
    plan: Plan,
    templates: Templates,
    judges: _Judges,
    *,
    is_complete: bool,
    knows_variables: bool,
) -> Iterator[Problem]:
    if is_complete:
        yield from _check_output(test, plan)
        yield from check_unused_schema(test, plan.suite.prompts)
    yield from _bare_paths(test, plan.suite)
    context = CheckContext(
        test,
        templates,
        f"in {describe_test(test)}",
        base_dir=plan.suite.base_dir,
        access=plan.suite.access,
        defaults=judges.defaults,
        knows_variables=knows_variables,
    )
    yield from check_code(plan.suite, context, is_first=test.index == 0)
    answerers = {provider.id: provider for provider in (plan.answering(test, one) for one in plan.providers)}
    yield from check_judged_media(test, test.assertions, judges.defaults, context.where)
    if test.is_conversation:
        yield from extra("conversations").check_turns(test, context)
    if test.tools is not None:
        asked = {name: spec for name, spec in answerers.items() if spec.id != NO_PROVIDER.id}
        yield from extra("tools of a config").check_tools(test.tools, asked, context)
    if test.user is not None:
        yield from extra("simulated users").check_user(test, context)
        for spec in test.user.assertions:
            judges.record(spec, context)
            yield from check_assertion(spec, context)
    for prompt in plan.suite.prompts:
        try:
            rendered = render_prompt(prompt, test, templates)
            context = replace(context, rendered_prompt=rendered.whole)
            yield from check_prompt_media(prompt, rendered, answerers.values(), context.where)
            if test.is_conversation:
                yield from extra("conversations").check_prompt_of_turns(prompt, test, context)
        except TemplateError as error:
            yield _prompt_problem(error, prompt, test, plan.suite)
        evaluation = evaluation_of(prompt, test)
        if evaluation is not None:
            judges.record(evaluation, context)
            yield from check_assertion(evaluation, context)
    for spec in test.assertions:
        judges.record(spec, context)
        yield from check_assertion(spec, context)
        if spec.needs_other_outputs:
            yield from _check_comparison(spec, test, plan)


def _check_comparison(spec: Assertion, test: MergedTest, plan: Plan) -> Iterator[Problem]:
    """Yield a problem if a test has no second output, or none in the column that its outputs are compared with."""
    if plan.cases_of(test) == 1:
        message = f"{spec.base_type} compares outputs, but {describe_test(test)} has only one"
        yield Problem(message, spec.place.value("type"), "add another prompt or provider")
        return
    if spec.compared_with is None:
        return
    place = spec.place.value("against")
    unknown = list(check_column_name(spec.compared_with, plan.columns, key="against", place=place))
    yield from unknown
    if not unknown and not plan.answers_in(test, columns_named(plan.columns, spec.compared_with)[0]):
        message = (
            f"{describe_test(test)} has no output of `{spec.compared_with}` for pairwise to compare with"
        )
        yield Problem(message, place, "compare with `all`, or with a column that answers the test")


class _IdenticalRequests:
    """A check for prompts without variables whose tests differ only in variables, so that all send the same request."""

    def __init__(self, prompts: Iterable[PromptSpec]) -> None:
        self._fixed = [prompt for prompt in prompts if _is_fixed(prompt)]
        self._first: MergedTest | None = None
        self._tests = 0
        self._is_shown = False

    def record(self, test: MergedTest) -> None:
        """Record the next test; the first `_TESTS_COMPARED` are enough to decide."""
        if test.is_conversation or not self._fixed or self._is_shown or self._tests >= _TESTS_COMPARED:
            return
        self._tests += 1
        if self._first is None:
            self._first = test
        elif test.variables != self._first.variables:
            self._is_shown = _written(test.assertions) == _written(self._first.assertions)

    def problems(self, *, besides: Collection[str] = ()) -> Iterator[Problem]:
        """Yield a warning for each such prompt, except those whose ids are in `besides`."""
        for prompt in self._fixed if self._is_shown else ():
            if prompt.id in besides:
                continue
            message = (
                f"the prompt `{prompt.label or prompt.id}` uses no variables, so tests that differ only "
                "in variables"
            )
            hint = "use them in it, as in {{ question }}"
            yield Problem(
                f"{message} send the same prompt", prompt.place.value(), hint, severity=Severity.WARNING
            )


def _is_fixed(prompt: PromptSpec) -> bool:
    if type(prompt) is not PromptSpec or prompt == NO_PROMPT or prompt.system is not None:
        return False
    texts = [prompt.raw or "", *(str(message.content) for message in prompt.messages or ())]
    return not any(mark in text for text in texts for mark in ("{{", "{%"))


def _written(specs: Iterable[Assertion]) -> list[dict[str, object]]:
    return [spec.model_dump(exclude={"place"}, serialize_as_any=True) for spec in specs]


def _bare_paths(test: MergedTest, suite: LoadedSuite) -> Iterator[Problem]:
    """Yield a warning for each text of a test that is the path of a file: this is rarely what was meant."""
    if not suite.rules.suspects_bare_paths:
        return
    for value, place, keys in _texts_of(test):
        if is_bare_path(value, suite.base_dir, suite.access):
            # Look up the location only here: that reads the file once more.
            location = place.value(*keys) if isinstance(place, SourcePath) else place
            message = f"the path `{value}` itself is used, not the content of the file"
            hint = f"write file://{value} to use its text"
            yield Problem(message, location, hint, severity=Severity.WARNING)


def _texts_of(
    test: MergedTest,
) -> Iterator[tuple[JsonValue, SourcePath | Location | None, tuple[str | int, ...]]]:
    """Yield each value of a test that may be text or `file://`, with a place and the keys from there to it."""
    named: list[tuple[JsonValue, SourcePath, tuple[str | int, ...]]]
    named = [(getattr(test, name), test.place, (name,)) for name in _TEXTS]
    named += [(value, test.place, ("vars", name)) for name, value in test.vars.items()]
    for spec in each_assertion(test.assertions):
        named += [(getattr(spec, name), spec.place, (name,)) for name in _text_keys(type(spec))]
    for value, place, keys in named:
        if isinstance(value, list | tuple):
            yield from ((item, place, (*keys, index)) for index, item in enumerate(value))
        elif value is not None:
            yield value, place, keys
    yield from ((*code, ()) for code in (test.transform, test.transform_vars) if code is not None)


@cache
def _text_keys(kind: type[Assertion]) -> tuple[str, ...]:
    return tuple(name for name in ("value", "transform", "context_transform") if name in kind.model_fields)


def _prompt_problem(
    error: TemplateError, prompt: PromptSpec, test: MergedTest, suite: LoadedSuite
) -> Problem:
    written = suite.snapshot if isinstance(suite.snapshot, dict) else {}
    if error.missing and "prompts" in written and "tests" not in written:
        label = prompt.label or prompt.id
        message = f"the config has no `tests`, but the prompt `{label}` needs the variable `{error.missing}`"
        return Problem(message, prompt.place.value(), f"add `tests:` with `vars: {{{error.missing}: ...}}`")
    key = "system" if prompt.system is not None else "messages" if prompt.messages is not None else "raw"
    where = f"in prompt `{prompt.label or prompt.id}` for {describe_test(test)}"
    return template_problem(error, where=where, location=prompt.place.value(key))


def _check_missing_prompts(plan: Plan) -> Iterator[Problem]:
    """Yield a problem if there are providers but no prompts: each would get empty requests, which cost money."""
    asks_nothing = plan.suite.prompts == (NO_PROMPT,)
    for provider in plan.providers:
        if asks_nothing and provider.id != NO_PROVIDER.id:
            yield Problem(
                "the config has providers but no `prompts`, so nothing would be sent",
                provider.place.value(),
                'add `prompts: ["{{ input }}"]`, or the prompts to send',
            )
            return


def _check_output(test: MergedTest, plan: Plan) -> Iterator[Problem]:
    """Yield problems of a test that has nothing to judge, or whose stored output or trace is not used."""
    answering = [plan.answering(test, provider) for provider in plan.providers]
    generates = any(provider.id != NO_PROVIDER.id for provider in answering)
    judges_as_is = any(provider.id == NO_PROVIDER.id for provider in answering)
    if test.ends_with_answer:
        return
    if (
        test.provider is not None
        and generates
        and not test.is_conversation
        and all(prompt == NO_PROMPT for prompt in plan.suite.prompts)
    ):
        message = f"`provider` of {describe_test(test)} would get no prompt: the config has no `prompts`"
        yield Problem(message, test.provider.place.value(), 'add `prompts: ["{{ input }}"]`')
    if test.promptfoo.output_replaces_answer:
        return
    has_output = test.has_output or ("output" in test.vars and plan.suite.rules.judges_output_variable)
    if judges_as_is and not has_output:
        yield Problem(
            f"nothing to judge in {describe_test(test)}: there is no provider to call, and the test "
            "has no `output`",
            test.place.value(),
            "add `providers:` to the config, or an `output` to the test",
        )
    if generates and not judges_as_is and test.trace is not None:
        yield Problem(
            f"`trace` is ignored: the answers of {describe_test(test)} come from the config's providers",
            test.place.key("trace"),
            "to judge it, give the test its `output` and leave `providers` out",
            severity=Severity.WARNING,
        )
    if generates and not judges_as_is and has_output:
        key = ("output",) if test.has_output else ("vars", "output")
        name = ".".join(key)
        yield Problem(
            f"`{name}` is not judged in {describe_test(test)}: the config has providers, so their "
            "answers are judged",
            test.place.key(*key),
            "to judge it, leave `providers` out or use `providers: none`",
            severity=Severity.WARNING,
        )

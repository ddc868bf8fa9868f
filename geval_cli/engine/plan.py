"""Plans the jobs of a run: what `--filter-...` leaves of the suite, lazily, with a queue for each provider. Pure.

Each test has a key by which another run recognises it, wherever it is in the suite: a hash of its description, its
variables, its input, the content of its turns, and its images. What outputs are compared with and what a system
produced (`output`, `retrieval_context`, `trace`, answers) are not part of it: they may change from run to run while
the test stays the same.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from msgspec import Struct

from geval_cli.assertions.base import Assertion, MergedTest
from geval_cli.assertions.json_text import none_if_empty, parse_schema
from geval_cli.assertions.registry import EVALUATION_TYPES, check_schema
from geval_cli.errors import Problem, Severity, UsageError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.judge.source import ASSISTANT, USER
from geval_cli.records import CaseResult, Column, JsonValue, ProviderRef, Status, Turn
from geval_cli.source.media import is_marker, named_and_hashed, without_media_data
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.suite.suite import LoadedSuite, TestSource


def assertions_of(prompt: PromptSpec, test: MergedTest) -> tuple[Assertion, ...]:
    """Return all assertions for an answer to `prompt` in `test`, the evaluation of the prompt's mode first."""
    evaluation = evaluation_of(prompt, test)
    return test.assertions if evaluation is None else (evaluation, *test.assertions)


def evaluation_of(prompt: PromptSpec, test: MergedTest) -> Assertion | None:
    """Return the assertion of the prompt's mode; None when the prompt has no mode."""
    mode = prompt.effective_mode
    if mode == "llm":
        is_written = "evaluation_criteria" in prompt.model_fields_set
        return EVALUATION_TYPES["evaluation-llm"](  # type: ignore[call-arg] # the keys of that type
            type="evaluation-llm",
            criteria=prompt.evaluation_criteria or "",
            place=prompt.place.child("evaluation_criteria" if is_written else "evaluation_mode"),
        )
    if mode == "schema":
        return EVALUATION_TYPES["evaluation-schema"](  # type: ignore[call-arg] # the keys of that type
            type="evaluation-schema",
            value=test.evaluation_schema,
            parsing=test.evaluation_parsing or prompt.evaluation_parsing or "strict",
            place=test.schema_place,
        )
    return None


def answer_schema(prompt: PromptSpec) -> Mapping[str, JsonValue] | None:
    """Return the JSON Schema for answers to a checked prompt, where the provider supports it; None without one."""
    if prompt.expected_schema is None:
        return None
    written = none_if_empty(prompt.expected_schema)
    schema = None if written is None else parse_schema(written)
    return schema if isinstance(schema, dict) else None


def check_prompts(prompts: Iterable[PromptSpec]) -> Iterator[Problem]:
    """Yield the problems of the prompts' evaluation keys that do not depend on a test."""
    for prompt in prompts:
        yield from _check_expected_schema(prompt)
        if prompt.effective_mode == "schema" and (prompt.evaluation_criteria or "").strip():
            yield _unused(prompt, "evaluation_criteria", "the evaluation mode is schema")
        if prompt.effective_mode != "schema" and prompt.evaluation_parsing is not None:
            yield _unused(prompt, "evaluation_parsing", "the evaluation mode is not schema")


def check_unused_schema(test: MergedTest, prompts: Iterable[PromptSpec]) -> Iterator[Problem]:
    """Yield a warning if a test has an `evaluation_schema` that no prompt uses."""
    if none_if_empty(test.evaluation_schema) is None:
        return
    modes = {prompt.effective_mode for prompt in prompts}
    if "schema" in modes:
        return
    why = (
        "the evaluation mode of the prompts is llm"
        if modes == {"llm"}
        else "no prompt has the evaluation mode schema"
    )
    yield Problem(
        f"`evaluation_schema` is not used: {why}",
        test.schema_place.value(),
        "write `evaluation_mode: schema` in a prompt",
        severity=Severity.WARNING,
    )


def _check_expected_schema(prompt: PromptSpec) -> list[Problem]:
    written = none_if_empty(prompt.expected_schema)
    if written is None:
        return []
    place = prompt.place.child("expected_schema")
    problems = check_schema(written, "`expected_schema`", place)
    if not problems and answer_schema(prompt) is None:
        problems.append(Problem("`expected_schema` must be an object, not a boolean", place.value()))
    return problems


def _unused(prompt: PromptSpec, key: str, why: str) -> Problem:
    return Problem(
        f"`{key}` of prompt `{prompt.label or prompt.id}` is not used: {why}",
        prompt.place.value(key),
        "remove it, or change `evaluation_mode`",
        severity=Severity.WARNING,
    )


def content_key(
    description: str | None, variables: Mapping[str, JsonValue] | str, said: JsonValue = None
) -> str:
    """Return the key of a test with this content: 32 hexadecimal digits.

    Args:
        description: None counts as empty.
        variables: its `vars`, or their JSON text. Their order does not matter.
        said: its other content. If that is empty, the key is made from description and variables alone.
    """
    if isinstance(variables, str):
        try:
            variables = decode_json(variables)
        except ValueError:
            variables = {"": variables}
    named = sorted(variables.items()) if isinstance(variables, Mapping) else variables
    content = [description or "", named, said] if said else [description or "", named]
    try:
        text = encode_json(content)
    except TypeError:  # a Python program's own objects; whether they can be stored is decided elsewhere
        text = json.dumps(content, default=str).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def with_texts(variables: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return variables with numbers and booleans as the texts that a table would have for them."""
    if not any(isinstance(value, int | float) for value in variables.values()):
        return variables
    return {
        name: encode_json(value).decode() if isinstance(value, int | float) else value
        for name, value in variables.items()
    }


def key_across_formats(key: str, description: str | None, variables: Mapping[str, JsonValue]) -> str:
    """Return the key that a test would have in a table, where every cell is text; its own key where that is unknown.

    A suite may move from YAML (`n: 1`) to CSV (the text `1`), or a row to another place, and its tests stay the same.
    Stored keys never change; this one is made when runs are compared. That takes everything that a key is made of,
    which results lack for tests with an input, turns or images.
    """
    texts, words = with_texts(variables), _own_words(description)
    if (texts is variables and words == description) or key != content_key(description, variables):
        return key
    return content_key(words, texts)


def _own_words(description: str | None) -> str | None:
    """Return a description, but for the number that promptfoo's rules give to a row: it changes with rows before it."""
    return None if (description or "").rstrip("0123456789") == "Row #" else description


NOTHING_SAID = content_key(None, {})
"""The key of every test that has nothing but an output."""


def key_of(test: MergedTest) -> str:
    """Return the key of a test as written in the config, before programs change its variables."""
    said = _given(
        input=test.input,
        turns=_turns_without_answers(test),
        images=[_media_as_hash(item) for item in (*test.images, *test.audio)],
    )
    if not (said or test.description or test.vars):
        # Nothing but an output to judge. In other tests these two may be corrected, and the test stays the same.
        said = _given(context=test.context, expected_output=test.expected_output)
    return content_key(test.description, without_media_data(test.vars), without_media_data(said))


def _given(**parts: JsonValue) -> dict[str, JsonValue]:
    return {name: value for name, value in parts.items() if value}


def _turns_without_answers(test: MergedTest) -> list[JsonValue]:
    """Return the turns without the answers of models, and without the answer that is judged."""
    if test.user is not None:
        return [[test.user.goal, test.user.opening]]
    if test.plays_turns:
        return [[turn.role, turn.content] for turn in test.turns if turn.role == USER]
    before = test.turns[:-1] if test.ends_with_answer else test.turns
    found = []
    for turn in before:
        further = [list(turn.tool_calls), turn.tool_call_id] if turn.tool_calls or turn.tool_call_id else []
        found.append([turn.role, turn.content, *further])
    return found


def _media_as_hash(marker: str) -> str:
    """Return the hash of an image or a recording, since its file may be renamed; other texts as they are."""
    return named_and_hashed(marker)[1] if is_marker(marker) else marker


def rough_key(
    description: str | None, variables: Mapping[str, JsonValue] | str, words: Sequence[str] = ()
) -> str:
    """Return a key made only of what every result contains of its test, even the result of another program.

    `words` are what others than the assistant said in its turns, as returned by `words_of`.
    """
    return content_key(_own_words(description), variables, list(words))


def words_of(turns: Iterable[Turn]) -> list[str]:
    """Return the messages of all but the assistant: in a result, the assistant's may be answers of a model."""
    return [turn.content for turn in turns if turn.role != ASSISTANT]


_PATTERN_TIMEOUT_S = 2.0
_SHOWN = 60  # characters
_ANY = "*"
_FIRST_BLOCK, _LARGEST_BLOCK = 500, 10_000
"""The number of tests in the first block that is held in memory, and the most in any later block."""
NO_PROVIDER = ProviderSpec(id="none")
"""Stands for the provider when nothing is generated: the test's own output is judged as it is."""


class Selection(Struct, frozen=True):
    """A selection of tests; each part narrows down the ones before it, in this order.

    Attributes:
        providers: a regular expression to find in a provider's id or label.
        prompts: the same for prompts.
        pattern: the same for a test's description.
        metadata: names and values, all of which a test must have. A value matches when it is part of a text, or an item
            of a list.
        failing: names of tests, as returned by `failing_tests`; None for all.
        only: the indexes of tests; None for all.
        first: the largest number of tests, counted from the first one.
        sample: the largest number of tests, drawn at random with `seed`; they keep their order.
    """

    providers: str | None = None
    prompts: str | None = None
    pattern: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    failing: frozenset[str] | None = None
    first: int | None = None
    sample: int | None = None
    seed: int = 0
    only: frozenset[int] | None = None

    @property
    def selects_all(self) -> bool:
        """Return whether nothing is left out."""
        return self == Selection(seed=self.seed)  # a seed alone selects nothing

    def apply(self, suite: LoadedSuite) -> LoadedSuite:
        """Return the suite with only what is selected. Tests keep their indexes."""
        if self.selects_all:
            return suite
        providers = tuple(spec for spec in suite.providers if _is_wanted(self.providers, spec))
        prompts = tuple(spec for spec in suite.prompts if _is_wanted(self.prompts, spec))
        # Without a provider, the outputs of tests would be judged in place of answers.
        is_empty = bool(suite.providers and not providers) or not prompts
        tests = () if is_empty else SelectedTests(suite.tests, self)
        return replace(suite, providers=providers, prompts=prompts, tests=tests)

    def takes(self, test: MergedTest) -> bool:
        """Return whether a test is among those that `first` and `sample` choose from."""
        return (
            (self.pattern is None or _is_found(self.pattern, test.description or ""))
            and all(_fits(test.metadata.get(name), value) for name, value in self.metadata)
            and (self.failing is None or not self.failing.isdisjoint(names_of(test)))
            and (self.only is None or test.index in self.only)
        )


class SelectedTests(Struct):
    """The selected tests of a source. The first pass reads the whole source, so that mistakes anywhere are found."""

    source: TestSource
    selection: Selection
    _drawn: frozenset[int] | None = None
    _is_checked: bool = False

    def __iter__(self) -> Iterator[MergedTest]:
        if self.selection.sample is not None and self._drawn is None:
            self._drawn = _draw(self._candidates(), self.selection.sample, self.selection.seed)
        for test in self._candidates():
            if self._drawn is None or test.index in self._drawn:
                yield test
        self._is_checked = True

    def _candidates(self) -> Iterator[MergedTest]:
        taken, first = 0, self.selection.first
        for test in self.source:
            if first is not None and taken >= first:
                if self._is_checked:
                    return
                continue
            if self.selection.takes(test):
                taken += 1
                yield test


class SampledTests:
    """All `count` tests of a source in a random order that is the same for the same seed.

    They are held in blocks of growing size: a run that stops early never holds many of them, and a run through all of
    them reads the source only a few times.
    """

    __test__ = False

    def __init__(self, source: TestSource, count: int, seed: int) -> None:
        self._source = source
        self.positions = list(range(count))
        random.Random(seed).shuffle(self.positions)

    def __iter__(self) -> Iterator[MergedTest]:
        begin, size = 0, _FIRST_BLOCK
        while begin < len(self.positions):
            wanted = self.positions[begin : begin + size]
            chosen = frozenset(wanted)
            block = {position: test for position, test in enumerate(self._source) if position in chosen}
            # A missing test was there when the tests were checked: the run ends with fewer cases, and says so.
            yield from (block[position] for position in wanted if position in block)
            begin += size
            size = min(2 * size, _LARGEST_BLOCK)


def _draw(tests: Iterable[MergedTest], count: int, seed: int) -> frozenset[int]:
    """Return the indexes of `count` tests, each equally likely, from a stream that is not held (reservoir sampling)."""
    generator = random.Random(seed)
    drawn: list[int] = []
    for position, test in enumerate(tests):
        if position < count:
            drawn.append(test.index)
        elif (place := generator.randrange(position + 1)) < count:
            drawn[place] = test.index
    return frozenset(drawn)


def failing_tests(results: Iterable[CaseResult]) -> frozenset[str]:
    """Return the names of the tests that failed, or could not be judged, in any column of an earlier run."""
    return frozenset(
        _fallback_name(result.description, result.vars, result.test_index)
        if result.test_key is None
        else _name(key_across_formats(result.test_key, result.description, result.vars), result.test_index)
        for result in results
        if result.status in {Status.FAILED, Status.ERROR}
    )


def names_of(test: MergedTest) -> tuple[str, str]:
    """Return the names that another run may have for a test: by its key, and as made for results without a key."""
    variables = without_media_data(test.vars)
    key = key_across_formats(key_of(test), test.description, variables)
    return _name(key, test.index), _fallback_name(test.description, test.vars, test.index)


def _name(key: str, index: int) -> str:
    return f"test {index}" if key == NOTHING_SAID else key


def _fallback_name(description: str | None, variables: Mapping[str, JsonValue], index: int) -> str:
    """Return a name made of description and variables, or of the index if both are empty."""
    # Sorted by name: the order of variables in a file does not matter.
    what: JsonValue = [_own_words(description), with_texts(variables)] if description or variables else index
    return json.dumps(what, sort_keys=True, default=str)


def _is_found(pattern: str, text: str) -> bool:
    import regex  # noqa: PLC0415 - few runs have patterns, and the module takes a while to compile its own

    try:
        return regex.search(pattern, text, timeout=_PATTERN_TIMEOUT_S) is not None
    except TimeoutError as error:
        what = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        message = f"the filter `{pattern}` takes more than {_PATTERN_TIMEOUT_S:g} s on `{what}`"
        raise UsageError(message, hint="use a simpler pattern, without repetitions in repetitions") from error


def _is_wanted(pattern: str | None, spec: ProviderSpec | PromptSpec) -> bool:
    return pattern is None or any(_is_found(pattern, name) for name in (spec.id, spec.label))


def _fits(found: JsonValue, value: str) -> bool:
    if isinstance(found, list | tuple):
        return any(_text(item) == value for item in found)
    return found is not None and value in _text(found)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def answers_prompt(provider: ProviderSpec, prompt: PromptSpec) -> bool:
    """Return whether a provider gets a prompt; a provider that lists no prompts gets all of them."""
    chosen = provider.prompts if isinstance(provider, FilteredProviderSpec) else None
    return chosen is None or is_chosen(prompt_names(prompt), chosen)


def runs_with(test: MergedTest, provider: ProviderSpec, prompt: PromptSpec) -> bool:
    """Return whether a test runs with a provider and a prompt."""
    promptfoo = test.promptfoo
    return (promptfoo.prompts is None or is_chosen(prompt_names(prompt), promptfoo.prompts)) and (
        promptfoo.providers is None or is_chosen(provider_names(provider), promptfoo.providers)
    )


def prompt_names(prompt: PromptSpec) -> tuple[str, ...]:
    """Return all names by which a config may select a prompt."""
    own = prompt.names if isinstance(prompt, NamedPromptSpec) else ()
    return (prompt.id, prompt.label, *own)


def provider_names(provider: ProviderSpec) -> tuple[str, ...]:
    """Return all names by which a test may select a provider."""
    return (provider.label, provider.id, provider.public_id)


def is_chosen(names: Iterable[str], chosen: Iterable[str]) -> bool:
    """Return whether one of `names` is chosen: exactly, by the group before its colon, or by a prefix and `*`."""
    known = [name for name in names if name]
    return any(
        name == chosen_name
        or name.startswith(f"{chosen_name}:")
        or (chosen_name.endswith(_ANY) and name.startswith(chosen_name.removesuffix(_ANY)))
        for chosen_name in chosen
        for name in known
    )


class Job(Struct, frozen=True):
    """One prompt x provider x test case x repeat.

    `group` identifies the jobs in one row of the table, those of the same test and repeat. Assertions that compare
    answers with one another use it. `label` is what results show for the provider in place of its own label.
    """

    test: MergedTest
    prompt: PromptSpec
    provider: ProviderSpec
    repeat_index: int
    column: int
    label: str = ""

    @property
    def shown_provider(self) -> ProviderRef:
        """Return the provider that answers, as results name it."""
        return ProviderRef(self.provider.public_id, self.label or self.provider.title)

    @property
    def id(self) -> str:
        return f"{self.group}.{self.column}"

    @property
    def group(self) -> str:
        return f"{self.test.index}.{self.repeat_index}"

    @property
    def generates(self) -> bool:
        """Return whether a model is called for the output; otherwise the test's own output is judged."""
        test = self.test
        is_given = test.promptfoo.output_replaces_answer or test.ends_with_answer
        return self.provider.id != NO_PROVIDER.id and not is_given


class Plan(Struct, frozen=True, dict=True):
    """All jobs of a run. Each iteration gives equal jobs with equal ids; none of them is held in memory.

    With `is_serial`, a job may depend on earlier ones, so there is a single queue. With `is_in_rows`, outputs of a test
    are compared with one another, so that all of its jobs come one after another. So they do with `drawn`, the tests in
    the order in which they run, if that is not the suite's. When a run is judged again, `has_output` tells for which
    jobs it has an output; the others are left out.
    """

    suite: LoadedSuite
    repeats: int = 1
    is_serial: bool = False
    is_in_rows: bool = False
    drawn: SampledTests | None = None
    has_output: Callable[[Job], bool] | None = None

    @property
    def providers(self) -> tuple[ProviderSpec, ...]:
        return self.suite.providers or (NO_PROVIDER,)

    @cached_property
    def pairs(self) -> tuple[tuple[ProviderSpec, PromptSpec], ...]:
        """Return the prompt x provider pairs of a run, provider by provider."""
        return tuple(
            (provider, prompt)
            for provider in self.providers
            for prompt in self.suite.prompts
            if answers_prompt(provider, prompt)
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the pairs as columns of the table."""
        return tuple(
            Column(index, prompt.label, provider.title) for index, (provider, prompt) in enumerate(self.pairs)
        )

    def cases_of(self, test: MergedTest) -> int:
        """Return the number of a test's jobs, with repeats counted once."""
        return sum(runs_with(test, provider, prompt) for provider, prompt in self.pairs)

    def row_size(self, job: Job) -> int:
        """Return how many cases are compared with one another, including that of `job`."""
        if self.has_output is None:
            return self.cases_of(job.test)
        return sum(other.repeat_index == job.repeat_index for other in self.jobs_of(job.test))

    def answers_in(self, test: MergedTest, column: int) -> bool:
        """Return whether a test has a job in a column."""
        provider, prompt = self.pairs[column]
        return runs_with(test, provider, prompt)

    @property
    def queues(self) -> tuple[Iterator[Job], ...]:
        """Return the jobs in the order test, repeat, provider, prompt: a queue per provider, or one if order matters.

        Each queue iterates over the tests by itself.
        """
        if self.is_serial or self.is_in_rows or self.drawn is not None:
            return (self._lane(None),)
        return tuple(self._lane(provider) for provider in self.providers)

    def answering(self, test: MergedTest, provider: ProviderSpec) -> ProviderSpec:
        """Return the provider that answers a test in a provider's column.

        A test may name a provider, which takes precedence; a bare id may be the label or id of a configured one.
        """
        own = test.provider
        if own is None:
            return provider
        named = (item for item in self.suite.providers if own.id in (item.label, item.id))
        return next(named, own) if _is_only_name(own) else own

    def _lane(self, only: ProviderSpec | None) -> Iterator[Job]:
        for test in self.suite.tests if self.drawn is None else self.drawn:
            yield from self.jobs_of(test, only)

    def jobs_of(self, test: MergedTest, only: ProviderSpec | None = None) -> Iterator[Job]:
        """Yield the jobs of one test, for all providers or for one, in the order repeat, provider, prompt."""
        columns = [
            (column, provider, prompt)
            for column, (provider, prompt) in enumerate(self.pairs)
            if (only is None or provider is only) and runs_with(test, provider, prompt)
        ]
        for repeat_index in range(self.repeats):
            for column, provider, prompt in columns:
                answering = self.answering(test, provider)
                # Some dialects label the provider of a row by its column, whichever provider answers.
                is_named = self.suite.rules.labels_rows_by_column and provider.id != NO_PROVIDER.id
                label = provider.title if is_named else ""
                job = Job(test, prompt, answering, repeat_index, column, label)
                if self.has_output is None or self.has_output(job):
                    yield job


def _is_only_name(spec: ProviderSpec) -> bool:
    """Return whether the config gives only an id, which may be the name of a provider configured elsewhere."""
    has_transform = isinstance(spec, FilteredProviderSpec) and spec.transform is not None
    return not spec.config and not has_transform and spec.label in {"", spec.id, spec.public_id}


class DoneCases:
    """The cases of a run that have a lasting result: one byte each, since there may be very many.

    `first_test` is the index of the first test covered; cases of tests before it count as done.
    """

    def __init__(self, *, repeats: int, columns: int, first_test: int = 0, marks: bytes = b"") -> None:
        self._marks = bytearray(marks)
        self._repeats = repeats
        self._columns = columns
        self._offset = first_test * repeats * columns

    def __len__(self) -> int:
        return self._marks.count(1)

    def add(self, result: CaseResult) -> bool:
        """Mark the case of `result` as done; return False if the run has no such column or repeat."""
        if result.column >= self._columns or result.repeat_index >= self._repeats:
            return False
        place = self._place(result.test_index, result.repeat_index, result.column)
        if place >= len(self._marks):
            self._marks.extend(bytes(place + 1 - len(self._marks)))
        self._marks[place] = 1
        return True

    def has(self, result: CaseResult) -> bool:
        """Return whether the case of `result` is done."""
        return self._is_done(self._place(result.test_index, result.repeat_index, result.column))

    def missing(self, jobs: Iterable[Job], skip: Callable[[Job], None] | None = None) -> Iterator[Job]:
        """Yield the `jobs` that are not done, and call `skip` with each of the others."""
        for job in jobs:
            if not self._is_done(self._place(job.test.index, job.repeat_index, job.column)):
                yield job
            elif skip is not None:
                skip(job)

    def marks_of(self, first_test: int, last_test: int) -> bytes:
        """Return the marks of the tests from `first_test` up to but not including `last_test`, a byte for each case."""
        each = self._repeats * self._columns
        return bytes(self._marks[first_test * each - self._offset : last_test * each - self._offset])

    def _is_done(self, place: int) -> bool:
        return place < 0 or (place < len(self._marks) and self._marks[place] == 1)

    def _place(self, test_index: int, repeat_index: int, column: int) -> int:
        return (test_index * self._repeats + repeat_index) * self._columns + column - self._offset

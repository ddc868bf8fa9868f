"""`geval generate`: shows the plan, calls the model, writes the file, and reports coverage and dropped tests."""

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, convert
from rich.console import Console
from rich.text import Text

from geval_cli.cli.problems import print_note, print_problems, print_progress, print_warnings
from geval_cli.cli.run import run_stoppable
from geval_cli.errors import ConfigError, ExitCode, GevalError, Problem, Severity, UsageError
from geval_cli.extras.generation.documents import DocumentReading, read_documents
from geval_cli.extras.generation.freezing import FrozenTests, freeze_run, freeze_traces
from geval_cli.extras.generation.generating import (
    LEAST_PROFILE_WORDS,
    Generated,
    GeneratedProfiles,
    GenerationKind,
    GenerationPlan,
    GenerationRequest,
    generate,
    generate_profiles,
    plan_generation,
    profiles_request,
)
from geval_cli.extras.generation.options import GeneratePersonasOptions, GenerateTestsOptions, WritingOptions
from geval_cli.extras.plan import request_counts
from geval_cli.extras.traces.importing import line_of, no_file
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Wire
from geval_cli.gateway.gateway import BoundModel, CallPolicy
from geval_cli.numbers import format_cost, plural
from geval_cli.records import SCHEMA_VERSION, JsonValue, ModelRequest, Usage
from geval_cli.report.console import make_console, print_hanging
from geval_cli.report.json_file import json_text
from geval_cli.report.report import check_output_path
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import one_line, quoted, sanitize
from geval_cli.runs.event_loop import run_async
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.session import (
    DEFAULT_CONCURRENCY,
    UNPRICED_HINT,
    Session,
    check_price,
    counted,
    judge_problems,
    open_session,
)
from geval_cli.source.access import TRUSTED
from geval_cli.source.env import gather_env
from geval_cli.source.problems import did_you_mean
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.state import CacheChoice, open_answers

T = TypeVar("T")


class GenerationUsage(Struct, frozen=True):
    """The requests sent, retries included, and their usage, also if they brought no answer."""

    requests: int
    usage: Usage

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "requests": self.requests,
            "cached_requests": self.usage.cached_requests,
            "cost_usd": self.usage.cost_usd,
        }


_DEFAULT_COUNT = 50
_UNSEEN_SHOWN = 3
_CONTINUES = "run it again with a larger budget and --force: the answers so far are in the cache"


def run_generate_tests(given: GenerateTestsOptions) -> ExitCode:
    """Write the requested tests.

    Raises:
        UsageError: the options contradict each other, or there is nothing to generate tests from.
        ConfigError: a document, the suite or the output file has a problem.
        ProviderError: the model refuses every request.
    """
    origins = {
        "--from": bool(given.documents),
        "--from-run": given.run is not None,
        "--from-traces": given.traces is not None,
    }
    asked = [flag for flag, is_given in origins.items() if is_given]
    if not asked:
        raise UsageError("nothing to make tests from", hint="name documents: --from docs/")
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} cannot be combined", hint="write two files")
    for flag, is_given, origin in (
        ("--failed", given.failed, "--from-run"),
        ("--embeddings", given.embeddings is not None, "--from-traces"),
        ("--per-group", given.per_group > 1, "--from-traces"),
        ("--kinds", given.kinds is not None, "--from"),
        ("--model", given.model is not None, "--from"),
        ("--text-column", given.text_column is not None, "--from"),
    ):
        if is_given and origin not in asked:
            raise UsageError(f"{flag} needs {origin}", hint=f"add {origin}, or remove {flag}")
    _check_output(given)
    known = _questions_of(given)
    if given.run is not None:
        frozen = freeze_run(given.run, given.home, failed=given.failed, most=given.count, known=known)
        return _deliver_frozen(frozen, given)
    if given.traces is not None:
        return _from_traces(given.traces, known, given)
    return _from_documents(known, given)


def _check_output(given: WritingOptions, what: str = "tests") -> None:
    if given.output is None:
        if not given.plan:
            raise UsageError("there is no output file", hint="name one: -o tests.jsonl")
        return
    if given.output.suffix.lower() != ".jsonl":
        raise UsageError(f"{what} cannot be written to {given.output}", hint="use a name that ends in .jsonl")
    if given.output.exists() and not given.may_replace and not given.plan:
        raise UsageError(
            f"{given.output} already exists and was not changed", hint="choose another file, or add --force"
        )
    problem = check_output_path(given.output)
    if problem is not None:
        raise ConfigError([problem])


def _questions_of(given: GenerateTestsOptions) -> tuple[str, ...]:
    """Return the questions that the suite's tests ask: their input, or else their variables."""
    if given.suite is None:
        return ()
    request = RunRequest(given.suite, os.environ, env_file=given.env_file)
    prepared = prepare(request, is_going_to_run=False)
    found: list[str] = []
    for test in prepared.suite.tests:
        variables = [value for value in test.vars.values() if isinstance(value, str)]
        found += [test.input] if test.input else variables
    return tuple(found)


def parse_kinds(text: str | None) -> dict[GenerationKind, float]:
    """Return the kinds in `--kinds` with their weights; a kind without one weighs 1.

    Raises:
        UsageError: a kind is unknown, or its weight is not a positive number.
    """
    if text is None:
        return dict(GenerationRequest(1).kinds)
    found: dict[GenerationKind, float] = {}
    for part in text.split(","):
        name, equals, share = part.strip().partition("=")
        if name not in set(GenerationKind):
            near = did_you_mean(name, [*GenerationKind])
            hint = f"did you mean `{near}`?" if near else f"use {', '.join(GenerationKind)}"
            raise UsageError(f"there is no kind `{name}` of tests", hint=hint)
        try:
            weight = float(share.removesuffix("%")) if equals else 1.0
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise UsageError(
                f"the share of `{name}` must be a positive number, not `{share}`", hint="for example plain=60"
            )
        found[GenerationKind(name)] = weight
    return found


def _from_documents(known: tuple[str, ...], given: GenerateTestsOptions) -> ExitCode:
    spec = _model_of(given)
    reading = read_documents(given.documents, given.text_column, given.output)
    print_problems([_as_warning(problem) for problem in reading.problems])
    wanted = GenerationRequest(
        given.count or _DEFAULT_COUNT,
        parse_kinds(given.kinds),
        given.seed,
        given.passage,
        given.least_words,
        known,
    )
    plan = plan_generation(reading.documents, wanted)
    told = f"{plural(wanted.count, 'test')} from {plural(len(reading.documents), 'document')}"
    found, spent = _with_model(
        spec, given, told, plan.first_requests(), lambda model: generate(plan, model, _tell_progress)
    )
    if found is None:
        return ExitCode.OK
    rows = [test.row(spec.public_id) for test in found.tests]
    _write(rows, given)
    if given.as_json:
        _print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "kind": "generated_tests",
                **_outcome_json(found, plan, reading, spent),
            },
            given,
        )
    else:
        _print_generated(found, plan, reading, spent, given)
    return ExitCode.OK if rows and not found.stopped else ExitCode.NOT_JUDGED


def _as_warning(problem: Problem) -> Problem:
    return Problem(problem.message, problem.location, problem.hint, severity=Severity.WARNING)


def _model_of(given: WritingOptions) -> ProviderSpec:
    if given.model is None:
        raise UsageError("no model is named to write with", hint="for example --model openai:gpt-4.1-mini")
    spec = ProviderSpec(id=given.model)
    env = gather_env(os.environ, base_dir=Path.cwd(), env_file=given.env_file, access=TRUSTED)
    problems = [*judge_problems(spec, env=env, base_dir=Path.cwd(), is_going_to_judge=not given.plan)]
    if problems and not given.is_offline:
        raise UsageError.of(f"{spec.public_id} cannot write tests", problems)
    return spec


def _with_model(
    spec: ProviderSpec,
    given: WritingOptions,
    told: str,
    requests: Sequence[ModelRequest],
    ask: Callable[[BoundModel], Coroutine[Any, Any, T]],
) -> tuple[T | None, GenerationUsage]:
    """Return the result of calling the model, after showing the plan; None with --plan, which only shows it."""
    budget = Budget(given.max_cost, given.max_requests)
    env = gather_env(os.environ, base_dir=Path.cwd(), env_file=given.env_file, access=TRUSTED)

    async def main(session: Session) -> T | None:
        model = session.model_for(spec)
        _tell_plan(told, requests, model, given)
        if not given.plan:
            _check_price(model, given)
        return None if given.plan else await ask(model)

    return _in_session(main, env, budget, given)


def _check_price(model: BoundModel, given: WritingOptions) -> None:
    if given.max_cost is not None and not given.is_offline:
        check_price(model, UNPRICED_HINT)


def _in_session(
    main: Callable[[Session], Coroutine[Any, Any, T]],
    env: Mapping[str, str],
    budget: Budget,
    given: WritingOptions,
) -> tuple[T, GenerationUsage]:
    choice = CacheChoice(is_offline=given.is_offline)
    wire = Wire()

    async def run() -> tuple[T, GenerationUsage]:
        async with open_session(
            env=env,
            base_dir=Path.cwd(),
            cache=cache,
            max_concurrency=given.max_concurrency or DEFAULT_CONCURRENCY,
            policy=CallPolicy(budget, is_offline=given.is_offline, wire=wire),
            notice=print_note,
        ) as session:
            with counted() as spending:
                found = await main(session)
            return found, GenerationUsage(budget.requests, spending.usage)

    with open_answers(given.home, os.environ, choice) as (cache, warnings):
        print_warnings(warnings)
        if not given.plan:
            cache.check_room()
        try:
            return run_stoppable(run(), wire)
        except KeyboardInterrupt:
            print_note(
                "nothing was written; the answers so far are cached, and the same command continues with them"
            )
            raise
        except GevalError as error:
            if error.usage is not None and budget.requests:
                print_note(cost_text(GenerationUsage(budget.requests, convert(error.usage, Usage))))
            raise
        finally:
            _tell_progress(0, 0)


def _tell_progress(done: int, all_of: int) -> None:
    print_progress(f"{done:,} of {plural(all_of, 'request')}" if all_of else "")


def _tell_plan(told: str, requests: Sequence[ModelRequest], model: BoundModel, given: WritingOptions) -> None:
    """Print the plan: with --plan as the command's output, otherwise before anything is sent."""
    counts = [request_counts(model.provider, request) for request in requests]
    tokens = sum(count.input_most for count in counts)
    costs = [count.cost_most_usd for count in counts]
    cost = None if None in costs else sum(cost or 0.0 for cost in costs)
    price = "price unknown" if cost is None else f"at most {format_cost(cost)}"
    text = (
        f"{told}: {plural(len(requests), 'request')} to {model.public_id}, about {tokens:,} tokens to read, {price};"
        " what is missing then is asked for again; cached answers cost nothing"
    )
    if given.plan and given.as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "kind": "generation_plan",
            "requests": len(requests),
            "input_tokens": tokens,
            "cost_usd": cost,
        }
        sys.stdout.write(json_text(document, indent=2) + "\n")
    elif given.plan:
        sys.stdout.write(f" nothing is sent: {text}\n")
    else:
        print_note(text)


def _write(rows: Sequence[Mapping[str, JsonValue]], given: WritingOptions) -> None:
    if rows and given.output is not None:
        with SafeFile(given.output) as file:
            for row in rows:
                file.write(line_of(_as_texts(row)))


def _as_texts(row: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a test in which no text refers to a file, since some texts are untrusted."""
    found: dict[str, JsonValue] = {}
    for name, value in row.items():
        if isinstance(value, str):
            found[name] = no_file(value)
        elif isinstance(value, list):
            found[name] = [no_file(item) if isinstance(item, str) else item for item in value]
        elif name == "vars":
            found[name] = _as_texts(value)
        else:
            found[name] = value
    return found


def _print_json(outcome: Mapping[str, JsonValue], given: WritingOptions) -> None:
    sys.stdout.write(json_text({**outcome, "file": str(given.output)}, indent=2) + "\n")


def _outcome_json(
    found: Generated, plan: GenerationPlan, reading: DocumentReading, spent: GenerationUsage
) -> dict[str, JsonValue]:
    return {
        "tests": len(found.tests),
        "kinds": {str(kind): sum(test.kind is kind for test in found.tests) for kind in GenerationKind},
        "written": found.written,
        "dropped": dict(found.dropped),
        "documents": len(plan.documents),
        "without_tests": _without_tests(found, plan),
        "left_out": reading.left_out(),
        **spent.to_json(),
        "unread_replies": found.unread,
        "failed_requests": found.failed,
        "stopped": found.stopped or None,
    }


def _without_tests(found: Generated, plan: GenerationPlan) -> list[str]:
    touched = {name for test in found.tests for name in test.touched}
    return [document.name for document in plan.documents if document.name not in touched]


def _print_generated(
    found: Generated,
    plan: GenerationPlan,
    reading: DocumentReading,
    spent: GenerationUsage,
    given: WritingOptions,
) -> None:
    console = make_console(sys.stdout, environ=os.environ)
    count, wanted = len(found.tests), plan.wanted
    kinds = Counter(str(test.kind) for test in found.tests)
    parts = ", ".join(f"{kinds[kind]} {kind}" for kind in GenerationKind if kinds[kind])
    bare = _without_tests(found, plan)
    about = f"{len(plan.documents) - len(bare):,} of {plural(len(plan.documents), 'document')}"
    if count:
        of = f" of {wanted.count:,}" if count < wanted.count else ""
        print_lines(
            console,
            f"wrote {count:,}{of} {'test' if wanted.count == 1 else 'tests'} about {about} to {given.output}: {parts}",
        )
    else:
        print_lines(console, f"no test is left of {found.written:,}, so {given.output} was not written")
    lines = [f"{number:,} of {found.written:,} dropped: {why}" for why, number in found.dropped.most_common()]
    if found.unread:
        lines.append(f"{found.unread:,} of {plural(found.replies, 'reply', 'replies')} had no test in it")
    if found.failed:
        lines.append(f"{plural(found.failed, 'request')} failed: {one_line(found.error, 200)}")
    if found.stopped:
        lines.append(f"stopped: {found.stopped}; {_CONTINUES}")
    if bare and count:
        shown = ", ".join(one_line(name, 60) for name in bare[:_UNSEEN_SHOWN])
        more = f" and {len(bare) - _UNSEEN_SHOWN:,} more" if len(bare) > _UNSEEN_SHOWN else ""
        lines.append(f"no test about {shown}{more}")
    lines += [*found.notes, *reading.left_out()]
    lost = sum(number for why, number in found.dropped.items() if "quotation" in why)
    if found.written and lost * 2 > found.written:
        lines.append(
            "most quotations are not literal: use a larger model, small ones rarely quote word by word"
        )
    elif found.unread * 2 > found.replies:
        lines.append("most replies are not the JSON that was asked for: use a larger model")
    print_lines(console, *lines)
    print_lines(console, cost_text(spent))
    if count:
        print_lines(console, f"next: geval review {quoted(str(given.output))}")


def cost_text(spent: GenerationUsage) -> str:
    """Return a sentence about the requests sent and their cost."""
    usage = spent.usage
    cached = f", {plural(usage.cached_requests, 'answer')} from the cache" if usage.cached_requests else ""
    cost = "price unknown" if usage.cost_usd is None else format_cost(usage.cost_usd)
    return f"{plural(spent.requests, 'request')} sent{cached}, {cost}"


def print_lines(console: Console, *lines: str) -> None:
    """Print lines, each wrapped as a paragraph."""
    for line in lines:
        print_hanging(Text(""), Text(sanitize(line)), console, indent=1)


def _from_traces(path: Path, known: tuple[str, ...], given: GenerateTestsOptions) -> ExitCode:
    spec = None
    if given.embeddings is not None:
        if given.plan:
            hint = "each trace is one request; leave out --embeddings to see groups by words"
            raise UsageError("--plan and --embeddings cannot be combined", hint=hint)
        spec = ProviderSpec(id=given.embeddings)
        env = gather_env(os.environ, base_dir=Path.cwd(), env_file=given.env_file, access=TRUSTED)
        if problems := [*judge_problems(spec, env=env, base_dir=Path.cwd())]:
            raise UsageError.of(f"{spec.public_id} cannot group traces", problems)
        budget = Budget(given.max_cost, given.max_requests)

        async def main(session: Session) -> FrozenTests:
            model = session.model_for(spec)
            _check_price(model, given)
            return await freeze_traces(path, model, given, known)

        frozen, spent = _in_session(main, env, budget, given)
        if not frozen.rows:
            print_note(cost_text(spent))
        frozen.lines.append(cost_text(spent))
        frozen.facts |= spent.to_json()
        return _deliver_frozen(frozen, given)
    return _deliver_frozen(run_async(freeze_traces(path, None, given, known)), given)


def _deliver_frozen(frozen: FrozenTests, given: GenerateTestsOptions) -> ExitCode:
    if not frozen.rows:
        raise UsageError(f"there is nothing to freeze: {frozen.said}", hint=frozen.hint)
    if not given.plan:
        _write(frozen.rows, given)
    if given.as_json:
        _print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "kind": "frozen_tests",
                "tests": len(frozen.rows),
                **frozen.facts,
            },
            given,
        )
        return ExitCode.OK
    console = make_console(sys.stdout, environ=os.environ)
    verb = "would write" if given.plan else "wrote"
    target = given.output or "a file"
    print_lines(
        console, f"{verb} {plural(len(frozen.rows), 'test')} to {target}: {frozen.said}", *frozen.lines
    )
    if not given.plan:
        print_lines(console, f"next: geval review {quoted(str(given.output))}")
    return ExitCode.OK


def run_generate_personas(given: GeneratePersonasOptions) -> ExitCode:
    """Write profiles of users, as a list that `profiles:` in a config can read.

    Raises:
        UsageError: no model or no file is given.
        ProviderError: the model refuses every request.
    """
    _check_output(given, "profiles")
    spec = _model_of(given)
    about = (given.about or "").strip()
    sizes = [10] * (given.count // 10) + [given.count % 10] * (given.count % 10 > 0)
    requests = [profiles_request(size, about) for size in sizes]

    def ask(model: BoundModel) -> Coroutine[Any, Any, GeneratedProfiles]:
        return generate_profiles(given.count, about, model, _tell_progress)

    found, spent = _with_model(spec, given, plural(given.count, "profile"), requests, ask)
    if found is None:
        return ExitCode.OK
    _write([{"profile": text} for text in found.profiles], given)
    outcome = found.outcome
    count = len(found.profiles)
    code = ExitCode.OK if count and not outcome.stopped else ExitCode.NOT_JUDGED
    if given.as_json:
        facts: dict[str, JsonValue] = {
            "schema_version": SCHEMA_VERSION,
            "kind": "generated_personas",
            "profiles": count,
            "repeated": found.repeated,
            "short": found.short,
            "stopped": outcome.stopped or None,
            **spent.to_json(),
        }
        _print_json(facts, given)
        return code
    console = make_console(sys.stdout, environ=os.environ)
    of = f" of {given.count:,}" if count < given.count else ""
    said = f"wrote {count:,}{of} {'profile' if given.count == 1 else 'profiles'} to {given.output}"
    print_lines(console, said if count else f"no profile could be read, so {given.output} was not written")
    lines = []
    if found.repeated:
        lines.append(f"{found.repeated:,} dropped: another profile says the same")
    if found.short:
        lines.append(f"{found.short:,} dropped: fewer than {LEAST_PROFILE_WORDS} words")
    if outcome.unread:
        lines.append(
            f"{outcome.unread:,} of {plural(outcome.replies, 'reply', 'replies')} had no profile in it"
        )
    if outcome.failed:
        lines.append(f"{plural(outcome.failed, 'request')} failed: {one_line(outcome.error, 200)}")
    if outcome.stopped:
        lines.append(f"stopped: {outcome.stopped}; {_CONTINUES}")
    print_lines(console, *lines, cost_text(spent))
    if count and given.output is not None:
        print_lines(console, f"next: add `profiles: file://{given.output.name}` to a config")
    return code

"""`geval realism`: compares simulated users with real ones. Imports what it needs when it runs."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_cli.cli.options import EXIT_CODES, CommandTable, check_idle, complete_run, declared, exit_with
from geval_cli.errors import ExitCode, UsageError
from geval_cli.extras.trust.options import BudgetOptions, ReportOptions, SeedOption
from geval_cli.runs.options import OfflineOption, Option, OptionGroup

if TYPE_CHECKING:
    from geval_cli.extras.conversations.realism import DiscriminationResult, PlannedPairs, TranscriptPair

SimulatedTranscripts = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run with conversations: its id, `latest`, a results file; or a .jsonl file of conversations.",
        autocompletion=complete_run,
    ),
]

commands = CommandTable()


@dataclass(frozen=True, kw_only=True)
class RealismCommand(ReportOptions, BudgetOptions):
    """Options of `geval realism`. Without `judge` nothing is sent."""

    against: Annotated[
        str | None,
        Option(
            "--against",
            "Conversations of real users: a .jsonl file of conversations or traces, or another run.",
            OptionGroup.CONFIG,
            syntax="FILE",
        ),
    ] = None
    judge: Annotated[
        str | None,
        Option(
            "--grader",
            "Also have this model tell simulated conversations from real ones.",
            OptionGroup.JUDGING,
            syntax="PROVIDER",
        ),
    ] = None
    pairs: Annotated[
        int,
        Option("--pairs", "Number of pairs for the judge; two calls each.", OptionGroup.JUDGING, minimum=1),
    ] = 50
    shows_answers: Annotated[
        bool,
        Option("--show-answers", "Show the judge the assistant's answers too.", OptionGroup.JUDGING),
    ] = False
    seed: SeedOption = 0
    is_offline: OfflineOption = False


@commands.command(epilog=EXIT_CODES)
@declared(RealismCommand)
def realism(given: RealismCommand, run: SimulatedTranscripts = "latest") -> None:
    """Compare simulated users with real ones.

    Counts how they write, and proposes lines for their profiles; a judge tells them apart.
    """
    exit_with(run_realism(run, given))


def run_realism(run: str, given: RealismCommand) -> ExitCode:
    """Compare the users of a run with real ones, and show the findings.

    Raises:
        ConfigError: a file has lines that cannot be used, or cannot be written.
        UsageError: there is no such run or model, or it has no conversations.
    """
    from geval_cli.extras.conversations.realism import compare_transcripts, draw_pairs, realism_document
    from geval_cli.extras.conversations.transcripts import read_transcripts
    from geval_cli.extras.trust.documents import check_document_paths, deliver

    if given.against is None:
        raise UsageError("no conversations of real users given", hint="pass them with --against real.jsonl")
    if given.judge is None and given.plan:
        raise UsageError("--plan needs --grader: without a judge nothing is sent", hint="remove --plan")
    if given.judge is None:
        of_judge = {"pairs", "shows_answers", "seed", "is_offline"}
        of_requests = {"max_cost", "max_requests", "max_concurrency", "env_file"}
        check_idle(given, of_judge | of_requests, without="--grader")
    check_document_paths(given.outputs, "a comparison of users")
    simulated, real = (read_transcripts(named, given.home) for named in (run, given.against))
    told = None
    if given.judge is not None:
        told = _tell_apart(draw_pairs(simulated, real, given.pairs, given.seed), given.judge, given)
        if told is None:
            return ExitCode.OK
    found = compare_transcripts(simulated, real, told)
    deliver(realism_document(found), given)
    if found.is_unlike:
        return ExitCode.FAILED
    return ExitCode.OK if told is None or told.is_complete else ExitCode.NOT_JUDGED


def _tell_apart(
    pairs: "list[TranscriptPair]", named: str, given: RealismCommand
) -> "DiscriminationResult | None":
    """Return the judge's results on the pairs; None with --plan, after printing the plan."""
    from geval_cli.cli.problems import print_note, print_progress, print_warnings
    from geval_cli.cli.run import run_stoppable
    from geval_cli.gateway.budget import Budget
    from geval_cli.gateway.call import Wire
    from geval_cli.numbers import plural
    from geval_cli.runs.session import judge_problems
    from geval_cli.source.access import TRUSTED
    from geval_cli.source.env import gather_env
    from geval_cli.specs.base import ProviderSpec
    from geval_cli.store.state import CacheChoice, open_answers

    folder = Path.cwd()
    env = gather_env(os.environ, base_dir=folder, env_file=given.env_file, access=TRUSTED)
    spec = ProviderSpec(id=named)
    will_ask = not given.plan and not given.is_offline
    if problems := [*judge_problems(spec, env=env, base_dir=folder, is_going_to_judge=will_ask)]:
        raise UsageError.of(f"{spec.public_id} cannot judge", problems)
    budget = Budget(given.max_cost, given.max_requests)
    wire = Wire()
    choice = CacheChoice(is_offline=given.is_offline, may_be_absent=given.plan)
    with open_answers(given.home, os.environ, choice) as (cache, warnings):
        print_warnings(warnings)
        if not given.plan:
            cache.check_room()

        async def ask() -> "DiscriminationResult | None":
            from geval_cli.extras.conversations.realism import plan_pairs, tell_apart
            from geval_cli.gateway.gateway import CallPolicy
            from geval_cli.providers.prices import known_price
            from geval_cli.runs.session import (
                DEFAULT_CONCURRENCY,
                UNPRICED_HINT,
                check_price,
                open_session,
            )

            policy = CallPolicy(budget, is_offline=given.is_offline, wire=wire)
            async with open_session(
                env=env,
                base_dir=folder,
                cache=cache,
                max_concurrency=given.max_concurrency or DEFAULT_CONCURRENCY,
                policy=policy,
                notice=print_note,
            ) as session:
                judge = session.model_for(spec)
                price = known_price(judge.provider)
                plan = await plan_pairs(pairs, session, judge, price, shows_answers=given.shows_answers)
                _print_plan(plan, given)
                if given.plan:
                    return None
                if given.max_cost is not None and not given.is_offline:
                    check_price(judge, UNPRICED_HINT)

                def tell(done: int) -> None:
                    print_progress(f"{done:,} of {plural(len(pairs), 'pair')}")

                try:
                    return await tell_apart(
                        pairs, session, judge, shows_answers=given.shows_answers, tell=tell
                    )
                finally:
                    print_progress("")

        return run_stoppable(ask(), wire)


def _print_plan(plan: "PlannedPairs", given: RealismCommand) -> None:
    """Print the plan: with --plan as the command's output, otherwise before anything is sent."""
    from geval_cli.cli.problems import print_note
    from geval_cli.numbers import format_cost, plural
    from geval_cli.records import SCHEMA_VERSION, to_json
    from geval_cli.report.json_file import json_text

    sent = plan.judge_calls - plan.cached
    price = "price unknown" if plan.cost_usd is None else f"about {format_cost(plan.cost_usd)}"
    cached = f", {plan.cached:,} of them from the cache" if plan.cached else ""
    told = f"{plural(plan.pairs, 'pair')}, {plural(plan.judge_calls, 'judge call')}{cached}"
    told += f"; {price}" if sent else ""
    if not given.plan:
        print_note(told)
    elif given.as_json:
        document = {"schema_version": SCHEMA_VERSION, "kind": "realism_plan", **to_json(plan)}
        sys.stdout.write(json_text(document, indent=2) + "\n")
    else:
        sys.stdout.write(f" nothing is sent: {told}\n")

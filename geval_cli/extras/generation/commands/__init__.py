"""`geval generate` and `geval review`. Their bodies import what they need when they run."""

from pathlib import Path
from typing import Annotated

import typer

from geval_cli.cli.options import EXIT_CODES, CommandTable, declared, exit_with
from geval_cli.extras.generation.options import GeneratePersonasOptions, GenerateTestsOptions, ReviewOptions

ReviewedTests = Annotated[
    Path,
    typer.Argument(metavar="TESTS", help="Tests of `geval generate tests`, or other tests in a .jsonl file."),
]

commands = CommandTable()
generate = CommandTable(help="Generate tests, or profiles of users, with a model.", no_args_is_help=True)
commands.add_typer(generate, name="generate")


@generate.callback()
def generate_what() -> None:
    """Generate tests, or profiles of users, with a model."""


@generate.command("tests", epilog=EXIT_CODES)
@declared(GenerateTestsOptions)
def generate_tests(given: GenerateTestsOptions) -> None:
    """Write tests from documents, a run or traces.

    A test counts only if the quotation it rests on is in the document.
    """
    from geval_cli.extras.generation.commands.generate import run_generate_tests

    exit_with(run_generate_tests(given))


@generate.command("personas", epilog=EXIT_CODES)
@declared(GeneratePersonasOptions)
def generate_personas(given: GeneratePersonasOptions) -> None:
    """Write profiles of users for simulated conversations."""
    from geval_cli.extras.generation.commands.generate import run_generate_personas

    exit_with(run_generate_personas(given))


@commands.command()
@declared(ReviewOptions)
def review(given: ReviewOptions, tests: ReviewedTests) -> None:
    """Accept, edit or drop tests with single keys.

    Decisions are saved as you go; only accepted tests are written.
    """
    from geval_cli.extras.generation.commands.review import run_review

    run_review(tests, given)

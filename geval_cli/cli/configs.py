"""`geval validate`, `geval init`, `geval demo`, `geval schema`, `geval export suite`, `geval import`."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from geval_cli.cli.options import ProblemFormat
from geval_cli.cli.problems import print_annotations, print_problems
from geval_cli.cli.run import check_all, keep_inputs
from geval_cli.cli.streams import write_commands
from geval_cli.errors import ConfigError, ExitCode, OutputError, UsageError
from geval_cli.extras.export import PortableSuite, read_portable_suite
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.extras.promptfoo.differences import ConfigDifference, differences
from geval_cli.extras.pull_requests.problem_formats import FILE_ENDINGS, Origin, write_problems
from geval_cli.extras.starter import DEMO_CONFIG, DEMO_MODEL, choose_starter, has_local_models
from geval_cli.numbers import plural
from geval_cli.report.safe_file import SafeFile, open_in_place, output_error
from geval_cli.report.sanitize import quoted
from geval_cli.runs.requests import RunRequest, is_untrusted
from geval_cli.source.access import TRUSTED, Access, open_regular, untrusted_access
from geval_cli.version import install_hint

if TYPE_CHECKING:
    from geval_cli.cli.untrusted import KernelSandbox


_HEAD = 1_000


def validate_configs(
    requests: Sequence[RunRequest],
    sandbox: "KernelSandbox | None" = None,
    *,
    lists_differences: bool = False,
    form: ProblemFormat = ProblemFormat.FULL,
    output: Path | None = None,
) -> ExitCode:
    """Print for each config that it is valid, the size of its run and, on request, how promptfoo would differ.

    If `form` is not FULL, stdout gets only the problems and warnings, in that format; `output` is a file that gets them
    in the format of its extension.

    Raises:
        ConfigError: with every problem of every config.
        UsageError: `output` has an unknown extension, or cannot be written.
    """
    file_format = None
    if output is not None:
        name = output.name.lower()
        file_format = next((form for ending, form in FILE_ENDINGS.items() if name.endswith(ending)), None)
        if file_format is None:
            raise UsageError(
                f"problems cannot be written to {output}: unknown file type",
                hint=f"use a name that ends in one of: {', '.join(sorted(FILE_ENDINGS))}",
            )
    if sandbox is not None:
        sandbox.confine(requests, outputs=[] if output is None else [output])
    prepared, problems = check_all(requests, is_going_to_run=False)
    keep_inputs([] if output is None else [output], requests, prepared)
    if output is not None and file_format is not None:
        text = write_problems(problems, file_format, origin=Origin.CONFIG, workspace=Path())
        _write(output, text, is_told=form is ProblemFormat.FULL)
    if form is not ProblemFormat.FULL:
        text = write_problems(problems, form, origin=Origin.CONFIG, workspace=Path())
        if form is ProblemFormat.GITHUB:
            write_commands(text, sys.stdout)
        else:
            sys.stdout.write(text)
        return ExitCode.USAGE if len(prepared) < len(requests) else ExitCode.OK
    if len(prepared) < len(requests):
        raise ConfigError(problems)
    print_problems(problems)
    print_annotations(problems)
    for run in prepared:
        columns = len(run.plan.columns)
        sys.stdout.write(
            f"{run.suite.path} is valid: {plural(run.tests, 'test')} x {plural(columns, 'column')}"
            f" = {plural(run.total, 'case')}\n"
        )
        if lists_differences:
            sys.stdout.write(_listed(list(differences(run.suite))))
    return ExitCode.OK


def write_starter(path: Path) -> None:
    """Write the starter config.

    Raises:
        UsageError: the file exists already, cannot be written, or is not named like a config.
    """
    if path.suffix not in {".yaml", ".yml"}:
        hint = "name the file to write, for example `geval init gevalconfig.yaml`; models are named in it"
        raise UsageError(f"`{path}` is not the name of a config: it must end in .yaml or .yml", hint=hint)
    starter = choose_starter(os.environ, path.parent, _access_of(path))
    try:
        descriptor = open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(starter.text)
    except FileExistsError as error:
        raise UsageError(
            f"{path} already exists and was not changed", hint="choose another file: geval init FILE"
        ) from error
    except OSError as error:
        failed = output_error(path, error, advice="choose a file in a folder that exists")
        raise UsageError(failed.message, hint=failed.hint) from error
    sys.stdout.write(f"wrote {path}: {starter.why}\nnext: geval run {quoted(str(path))}\n")


def demo_config() -> Path:
    """Return the config of `geval demo`, after fetching the model that it calls to this machine.

    Raises:
        UsageError: the local-model runtime is not installed.
        ModelFetchError: the model cannot be fetched.
    """
    if not has_local_models():
        raise UsageError(
            "the demo needs a model on this machine, and the local-model runtime is not installed",
            hint=f"install it {install_hint('local')}",
        )
    from geval_cli.extras.local.command import pull_model

    pull_model(DEMO_MODEL)
    return DEMO_CONFIG


def write_schema(path: Path | None) -> None:
    """Write the JSON Schema of a config to `path` or to stdout.

    Raises:
        UsageError: the file cannot be written, or is something else than a schema, such as the config itself.
    """
    text = json.dumps(config_json_schema(with_plugins=True), indent=2) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    held = b""
    if path.is_file():
        with suppress(ConfigError, OSError), open_regular(path, TRUSTED) as stream:
            held = stream.read(_HEAD).strip()
    if held and b"//json-schema.org/" not in held:
        raise UsageError(
            f"{path} exists and is not a JSON Schema", hint="name another file, or remove it first"
        )
    _write(path, text)


def export_suite(config: Path, output: Path | None, *, env_file: Path | None) -> None:
    """Write the suite of a config as one JSON file to `output` or to stdout.

    Raises:
        ConfigError: with every problem of the config.
        UsageError: the file cannot be written, or is the config itself or a file that it reads.
    """
    read = read_portable_suite(config, env=os.environ, env_file=env_file, access=_access_of(config))
    portable = read.without_secrets()
    _write_portable(portable, portable.to_json(), config, output)


def import_suite(source: Path, output: Path | None, *, env_file: Path | None, may_replace: bool) -> None:
    """Write an exported suite as a YAML config to `output` or to stdout.

    Raises:
        ConfigError: with every problem of the suite.
        UsageError: the file cannot be written, or exists and must not be replaced.
    """
    portable = read_portable_suite(source, env=os.environ, env_file=env_file, access=_access_of(source))
    if output is not None and output.exists() and not may_replace:
        raise UsageError(
            f"{output} already exists and was not changed", hint="choose another file, or add --force"
        )
    has_secrets = portable.without_secrets().content != portable.content
    _write_portable(portable, portable.to_yaml(), source, output, is_private=has_secrets)


def _access_of(config: Path) -> Access:
    """Return the access of a config; these commands lack --untrusted, so only GEVAL_UNTRUSTED restricts it."""
    return untrusted_access([config.parent]) if is_untrusted(os.environ) else TRUSTED


def _write_portable(
    portable: PortableSuite, text: str, source: Path, output: Path | None, *, is_private: bool = False
) -> None:
    print_problems(portable.warnings)
    if output is None:
        sys.stdout.write(text)
        return
    if output.exists() and (output.samefile(source) or output.resolve() in portable.files):
        raise UsageError(f"{output} is also the input and would be overwritten", hint="name another file")
    _write(output, text, is_private=is_private)


def _write(path: Path, text: str, *, is_told: bool = True, is_private: bool = False) -> None:
    try:
        with SafeFile(path, is_private=is_private) as file:
            file.write(text)
    except OutputError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if is_told:
        sys.stdout.write(f"wrote {path}\n")


def _listed(found: Sequence[ConfigDifference]) -> str:
    if not found:
        return "no known differences from promptfoo\n"
    lines = [f"{plural(len(found), 'thing')} may differ from promptfoo:"]
    for item in found:
        more = f" and {plural(item.more, 'more place')}" if item.more else ""
        where = f" ({item.location}{more})" if item.location else ""
        lines.append(f"- {item.what}{where}\n  promptfoo: {item.promptfoo}\n  geval: {item.geval}")
    return "\n".join(lines) + "\n"

"""List a config's tests without running anything, and store a run whose results come one by one: for pytest."""

import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally
from geval_cli.errors import ConfigError, Location, Severity, StoreError
from geval_cli.judge.prompt import prompt_version
from geval_cli.records import CaseResult, Column, JsonValue, RunRecord, RunStatus, RunSummary
from geval_cli.runs.record import ended_run
from geval_cli.runs.requests import RunRequest, open_config
from geval_cli.source.problems import sort_problems
from geval_cli.store.home import current_folder, home_folder
from geval_cli.store.runs import RunOrigin, RunStore
from geval_cli.version import __version__


class ListedTest(Struct, frozen=True):
    """A test of a config, as a list shows it."""

    index: int
    description: str | None
    location: Location | None


class _CodeNeededError(Exception):
    """The tests are made by a program, which is not run for a list."""


class _RefusedCode:
    """Stands where functions of a config are called, and calls none."""

    def __call__(
        self, path: Path, function: str, arguments: list[JsonValue], asked_at: Location | None
    ) -> JsonValue:
        raise _CodeNeededError

    def provider_name(
        self, path: Path, export: str, options: Mapping[str, JsonValue], asked_at: Location | None
    ) -> JsonValue:
        """Return None: tests are the same whoever answers."""
        return None

    def rows(self, path: Path, function: str, asked_at: Location | None) -> Path:
        raise _CodeNeededError


def list_tests(config: Path, environ: Mapping[str, str]) -> tuple[ListedTest, ...] | None:
    """Return the tests of a config in its order; None where only code of the config could tell. Nothing is run or sent.

    Raises:
        ConfigError: with every problem that reading the config finds.
    """
    found: list[ListedTest] = []
    try:
        opened = open_config(RunRequest(config, environ), needs_keys=False, scripts=_RefusedCode)
        problems = [item for item in opened.problems if item.severity is Severity.ERROR]
        try:
            for test in opened.suite.tests:
                found.append(ListedTest(test.index, test.description, test.place.value()))
        except ConfigError as error:
            problems += error.problems
    except _CodeNeededError:
        return None
    if problems:
        raise ConfigError(sort_problems(problems))
    return tuple(found)


class SessionRun:
    """A run of which no one knows beforehand what it will hold: results are stored as they come.

    A store that fails costs no session its results; `failure` then says what happened.

    Args:
        name: what lists of runs show in the place of a config.
        config: what the record keeps of how it was begun.
        home: the state folder; None for the usual one.
        environ: where GEVAL_HOME is looked up.
    """

    def __init__(self, name: str, config: JsonValue, home: Path | None, environ: Mapping[str, str]) -> None:
        self.failure: StoreError | None = None
        self._tally = Tally()
        self._began_s = time.monotonic()
        now = datetime.now(UTC)
        self._run = RunRecord(
            id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            status=RunStatus.RUNNING,
            started_at=now.isoformat(timespec="milliseconds"),
            finished_at=None,
            duration_ms=None,
            tool_version=__version__,
            config_path=name,
            config_digest="",
            config=config,
            columns=(Column(0, "", name),),
            prompt_version=prompt_version(),
        )
        self._runs: RunStore | None = None
        try:
            self._runs = RunStore.open(home_folder(home, env=environ, cwd=current_folder()))
            self._runs.begin(self._run, RunOrigin(name, 0, {}))
        except StoreError as error:
            self.failure = error

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def summary(self) -> RunSummary:
        """The sums so far."""
        return self._tally.summary()

    def add(self, result: CaseResult) -> None:
        """Count a result and store it, under the next number."""
        index = sum(self._tally.counts.values())
        numbered = replace(result, test_index=index, id=f"{index}.0.0")
        self._tally.add(numbered)
        if self._runs is not None and self.failure is None:
            self._runs.add(self._run.id, numbered)

    def finish(self, *, is_interrupted: bool) -> None:
        """Store how it ended."""
        if self._runs is None:
            return
        status = RunStatus.INTERRUPTED if is_interrupted else RunStatus.COMPLETED
        ended = ended_run(self._run, status, lasted_s=time.monotonic() - self._began_s, notices=())
        try:
            self._runs.finish(ended, self.summary)
        except StoreError as error:
            self.failure = self.failure or error
        finally:
            self._runs.close()
            self._runs = None

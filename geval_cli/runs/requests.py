"""The request for a run, and a run that is prepared to start."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from msgspec import Struct

from geval_cli.assertions.base import JudgeDefaults
from geval_cli.engine.plan import Job, Plan, Selection
from geval_cli.errors import GevalError, Problem
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.gateway import TraceDetail
from geval_cli.judge.calls import LockedSteps
from geval_cli.plugins import extra
from geval_cli.records import CaseResult, JsonValue, Role, RunRecord
from geval_cli.runs.options import RunOptions
from geval_cli.source.access import TRUSTED, Access, access_in, untrusted_access
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.promptfoo import PromptfooOptions
from geval_cli.store.home import current_folder, home_folder
from geval_cli.store.runs import RunStore
from geval_cli.suite.load import BuiltSuite, open_suite
from geval_cli.suite.suite import LoadedSuite, OpenedSuite
from geval_cli.suite.validation import ScriptCaller, SourceFetcher
from geval_cli.templating import Templates

UNTRUSTED_VARIABLE = "GEVAL_UNTRUSTED"
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CONTENT_ON_SPANS = frozenset({"true", "1", "span_only", "span_and_event"})
_NO = frozenset({"", "0", "false", "no", "off"})


def _always() -> bool:
    return True


def is_untrusted(environ: Mapping[str, str]) -> bool:
    """Return whether the environment declares every config untrusted."""
    return environ.get(UNTRUSTED_VARIABLE, "").strip().lower() not in _NO


class JudgedMetrics(Struct, frozen=True):
    """The metrics to judge (`only`, empty for all), and thresholds that replace the config's, by metric."""

    only: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = {}  # msgspec copies it


class JudgedSource(Struct, frozen=True):
    """An earlier run whose outputs are judged again.

    Attributes:
        run: its record.
        runs: the store that holds it, open while it is judged.
        parts: hashes of the parts of its config; empty if they are unknown.
        metrics: which of its metrics are judged, and thresholds that replace its config's.
    """

    run: RunRecord
    runs: RunStore
    parts: Mapping[str, JsonValue]
    metrics: JudgedMetrics

    @property
    def facts(self) -> dict[str, JsonValue]:
        """Return what decides the results of judging it again, for the fingerprint."""
        only, thresholds = self.metrics.only, self.metrics.thresholds
        return {"run": self.run.id, "only": sorted(only), "thresholds": dict(thresholds)}


@dataclass(frozen=True)
class RunRequest(RunOptions):
    """A request for a run: config, options, and what a front end adds to them. `environ` is the process environment.

    Attributes:
        joined: further configs that form one suite with it.
        failing: names of the tests that `filter_failing` selects, looked up by the front end; None for all.
        served: the folder that a server serves, which the config may not lead out of; None without a server.
        is_own_grader: whether `grader` was set by the person who runs geval, not by a client of the server.
        budget: what several runs may cost together; None: `max_cost` and `max_requests` apply to this run alone.
        draft: a text to check in place of the config's text on disk.
        built: a suite built by a program, without a text; `config` is then its name and location.
        only: the indexes of the tests to run; None for all.
        judged: the earlier run whose outputs are judged, in place of generating new ones.
        asks_judges_only: whether no model under test will be called, so that none needs to be ready.
        has_collector: whether the collector of `otel` still accepts traces.
        made_s: when the request was made, in seconds since 1970; no file of it was read before.
    """

    config: Path
    environ: Mapping[str, str] = field(repr=False)
    joined: tuple[Path, ...] = field(default=(), kw_only=True)
    failing: frozenset[str] | None = field(default=None, kw_only=True)
    served: Path | None = field(default=None, kw_only=True)
    is_own_grader: bool = field(default=True, kw_only=True)
    budget: Budget | None = field(default=None, kw_only=True)
    draft: str | None = field(default=None, kw_only=True)
    built: BuiltSuite | None = field(default=None, kw_only=True, repr=False)
    only: frozenset[int] | None = field(default=None, kw_only=True)
    judged: JudgedSource | None = field(default=None, kw_only=True)
    asks_judges_only: bool = field(default=False, kw_only=True)
    has_collector: Callable[[], bool] = field(default=_always, kw_only=True)
    made_s: float = field(default_factory=time.time, kw_only=True, compare=False)

    @property
    def for_workers(self) -> "RunRequest":
        """Return the same request for another process, without anything that belongs to this one."""
        return replace(self, environ=dict(self.environ), budget=None, has_collector=_always)

    def for_machines(self, *, is_here: bool) -> "RunRequest":
        """Return the same request for another machine, whose own environment has the keys.

        There it runs in the folder of the config, unless it `is_here`.
        """
        sent = replace(self.for_workers, environ={})
        if is_here:
            return sent
        folder = self.config.resolve().parent
        joined = tuple(path.resolve().relative_to(folder) for path in self.joined)
        return replace(sent, config=Path(self.config.name), joined=joined, env_file=None)

    @property
    def is_shared(self) -> bool:
        """Return whether other processes run the cases."""
        return self.workers is not None or self.ray is not None

    @property
    def batched_roles(self) -> frozenset[Role]:
        """Return the roles whose requests are sent in batches by request of the command line."""
        if self.batch:
            return frozenset(Role)
        return frozenset({Role.JUDGE}) if self.batch_judge else frozenset()

    @property
    def selection(self) -> Selection:
        """Return the selection of tests, prompts and providers."""
        return Selection(
            providers=self.filter_providers,
            prompts=self.filter_prompts,
            pattern=self.filter_pattern,
            metadata=self.filter_metadata,
            failing=self.failing,
            only=self.only,
            first=self.filter_first,
            sample=self.filter_sample,
            seed=self.seed,
        )

    @property
    def resumes(self) -> bool:
        """Return whether an earlier run is resumed, instead of starting a new one."""
        return self.resume_latest or self.resume_from is not None or self.retry_errors

    @property
    def is_logged(self) -> bool:
        """Return whether every request is shown or logged to a file."""
        return self.is_verbose or self.log_file is not None

    @property
    def trace_detail(self) -> TraceDetail:
        """Return how much detail the traces have: texts only if the variable of OpenTelemetry asks for them."""
        if not self.otel:
            return TraceDetail.NONE
        asked = self.environ.get(CONTENT_VARIABLE, "").strip().lower()
        return TraceDetail.CONTENT if asked in _CONTENT_ON_SPANS else TraceDetail.FACTS

    @property
    def is_untrusted(self) -> bool:
        """Return whether the config is untrusted: by request, or because GEVAL_UNTRUSTED is set."""
        return self.untrusted or self.untrusted_strict or is_untrusted(self.environ)

    @property
    def access(self) -> Access:
        """Return what the config may access. Files that the user names beside it are trusted."""
        vouched = frozenset[bytes]()
        if self.is_own_grader and self.grader is not None and ":" in self.grader:
            vouched = frozenset({ProviderSpec(id=self.grader).fingerprint})
        if self.is_untrusted:
            return untrusted_access([config.parent for config in (self.config, *self.joined)], vouched)
        return TRUSTED if self.served is None else access_in(self.served, vouched)


class PreparedRun(Struct, frozen=True):
    """A valid suite that is ready to run.

    Attributes:
        tests, total: the number of tests, and the number of cases.
        warnings: problems that do not stop it.
        notes: the warnings that its record has from the start.
        asked: all providers that may be called.
        ports: the TCP ports on which the providers of an untrusted suite may be called; None for any.
        judges: those of `asked` that judge.
        stored: finds the case of a job in the run that is judged again.
        lock_digest: the digest of the lock file; None without one.
        locked_steps: evaluation steps that need no judge call: those of the lock file, of the run that is judged again,
            or generated before.
        labels: human labels, for gates on true figures.
        anchors: outputs that its judges rate again before it begins.
    """

    request: RunRequest
    suite: LoadedSuite
    plan: Plan
    defaults: JudgeDefaults
    templates: Templates
    tests: int
    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]
    total: int
    asked: tuple[ProviderSpec, ...] = ()
    ports: frozenset[int] | None = None
    judges: tuple[ProviderSpec, ...] = ()
    stored: Callable[[Job], CaseResult] | None = None
    lock_digest: str | None = None
    locked_steps: LockedSteps = {}  # msgspec copies it
    labels: object = None
    anchors: object = None

    @property
    def reads_cache(self) -> bool:
        """Return whether answers of earlier runs may be used: neither the request nor the config rules them out."""
        options = self.suite.options
        is_refused = isinstance(options, PromptfooOptions) and options.uses_cache is False
        return self.request.reads_cache and not is_refused


def open_config(
    request: RunRequest, *, needs_keys: bool = True, scripts: Callable[[], ScriptCaller] | None = None
) -> OpenedSuite:
    """Return the suite of a request as far as it can be read; `needs_keys` and `scripts` as in `open_suite`.

    Raises:
        ConfigError: nothing can be read at all.
    """
    return open_suite(
        request.config,
        env=request.environ,
        env_file=request.env_file,
        variables=request.variables,
        dialect=request.dialect,
        joined=request.joined,
        needs_keys=needs_keys,
        text=request.draft,
        built=request.built,
        scripts=scripts,
        fetch=copies_for(request),
        access=request.access,
    )


def copies_for(request: RunRequest) -> Callable[[], SourceFetcher] | None:
    """Return a factory of the fetcher of remote tests; None if the config is confined to folders, or without a home."""
    if request.access.folders is not None:
        return None
    try:
        home = home_folder(request.home, env=request.environ, cwd=current_folder())
    except GevalError:
        return None
    return cache(lambda: extra("remote tests").SourceCopies(home, request.is_offline))

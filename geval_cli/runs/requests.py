"""Define the request for a run, and a run that is ready to start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from geval_cli.assertions.outcome import JudgeDefaults
from geval_cli.engine.plan import Plan
from geval_cli.engine.selection import Selection
from geval_cli.errors import Problem
from geval_cli.gateway.budget import Budget
from geval_cli.source.access import TRUSTED, Access, access_in, access_of_stranger
from geval_cli.specs.base import ProviderSpec, Scoring
from geval_cli.specs.dialect import Dialect
from geval_cli.suite.suite import Suite
from geval_cli.templating import Templates

UNTRUSTED_VARIABLE = "GEVAL_UNTRUSTED"
_NO = frozenset({"", "0", "false", "no", "off"})


def is_untrusted(environ: Mapping[str, str]) -> bool:
    """Return whether the environment says that every config is a stranger's."""
    return environ.get(UNTRUSTED_VARIABLE, "").strip().lower() not in _NO


class Resumption(Struct, frozen=True):
    """Which earlier run to resume.

    Attributes:
        run: its id, or the beginning of it, or `latest`; None for the latest one of the config.
        only_unfinished: whether the latest one must be one that did not come to its end.
        retries_errors: whether its cases that ended in an error are done again.
    """

    run: str | None = None
    only_unfinished: bool = True
    retries_errors: bool = False


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request for a run. `environ` is the process environment; `variables` are set in every test.

    Attributes:
        dialect: whose rules the config follows; None: as it says itself.
        joined: further configs that are one suite with it.
        selection: which tests, prompts and providers are taken.
        fail_under: least share (0..1) of all judged cases that must pass; errors count as not passed. With it, or with
            gates in the config, these decide the exit code.
        max_errors: how many cases may end in an error.
        allows_empty: whether it is fine when nothing is selected.
        served: the folder that a server serves, which the config may not lead out of; None for none.
        is_own_grader: whether `grader` is the word of whoever runs geval, and not that of a client.
        untrusted: whether the config may run no code, read nothing of this machine, and reach only known vendors.
        budget: what the run may cost; several runs may share one. None for no bound.
        traces_requests: whether an event tells of every request.
        is_offline: whether only the cache may answer.
        resume: the earlier run to resume; None begins a new one.
        draft: what is to be checked in place of the config's text on disk.
    """

    config: Path
    environ: Mapping[str, str] = field(repr=False)
    env_file: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    grader: str | None = None
    scoring: Scoring | None = None
    samples: int | None = None
    max_concurrency: int | None = None
    repeats: int | None = None
    reads_cache: bool = True
    is_offline: bool = False
    fail_fast: bool = False
    budget: Budget | None = None
    traces_requests: bool = False
    resume: Resumption | None = None
    draft: str | None = None
    dialect: Dialect | None = None
    joined: tuple[Path, ...] = ()
    selection: Selection = field(default_factory=Selection)
    fail_under: float | None = None
    max_errors: int | None = None
    allows_empty: bool = False
    untrusted: bool = False
    served: Path | None = None
    is_own_grader: bool = True

    @property
    def is_untrusted(self) -> bool:
        """Return whether the config is a stranger's: by request, or because GEVAL_UNTRUSTED is set."""
        return self.untrusted or is_untrusted(self.environ)

    @property
    def access(self) -> Access:
        """Return the access that the config has. Files that the user names beside it are trusted."""
        vouched = frozenset[bytes]()
        if self.is_own_grader and self.grader is not None and ":" in self.grader:
            vouched = frozenset({ProviderSpec(id=self.grader).fingerprint})
        if self.is_untrusted:
            return access_of_stranger([config.parent for config in (self.config, *self.joined)], vouched)
        return TRUSTED if self.served is None else access_in(self.served, vouched)


class PreparedRun(Struct, frozen=True):
    """A suite that is valid and can be run.

    `warnings` are problems that do not stop it; `notes` go into its record; `cases` counts repeats once;
    `asked` are all providers that may be asked. `ports` are those that the providers of a stranger's suite are asked
    at, over TCP; None for any.
    """

    request: RunRequest
    suite: Suite
    plan: Plan
    defaults: JudgeDefaults
    templates: Templates
    tests: int
    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]
    cases: int
    asked: tuple[ProviderSpec, ...] = ()
    ports: frozenset[int] | None = None

    @property
    def total(self) -> int:
        """How many cases there will be."""
        return self.cases * self.plan.repeats

"""What is asked of a run, and a run that is ready to start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from geval_cli.assertions.outcome import JudgeDefaults
from geval_cli.config.schema import Scoring
from geval_cli.config.suite import Suite
from geval_cli.engine.plan import Plan
from geval_cli.errors import Problem
from geval_cli.templating import Templates


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run, and how. `environ` is the process environment; `variables` are set in every test."""

    config: Path
    environ: Mapping[str, str] = field(repr=False)
    env_file: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    grader: str | None = None
    scoring: Scoring | None = None
    samples: int | None = None
    max_concurrency: int | None = None
    repeats: int = 1
    reads_cache: bool = True
    fail_fast: bool = False


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A suite that is valid and can be run. `warnings` are problems that do not stop it; `notes` go into its record."""

    request: RunRequest
    suite: Suite
    plan: Plan
    defaults: JudgeDefaults
    templates: Templates
    tests: int
    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def total(self) -> int:
        """How many cases there will be."""
        return self.tests * self.plan.repeats * len(self.plan.columns)

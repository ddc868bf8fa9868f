"""The record of a run as it begins, and what is kept so that it can be resumed."""

import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from geval_cli.judge.prompt import prompt_version
from geval_cli.records import SHORT_COMMIT, STOPPED, GitState, RunRecord, RunStatus
from geval_cli.runs.fingerprint import fingerprint, run_digest
from geval_cli.runs.git_state import read_git_state
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.resume import ResumedRun
from geval_cli.source.secrets import MASK, is_secret_name, mask_bare
from geval_cli.store.runs import RunOrigin, config_file
from geval_cli.version import __version__

DECIDED_EARLY = ("decided after ", "this run stopped early: ")
"""Begin what a run says that stopped since it was decided; one that is resumed says it as it is then."""


def begun_run(prepared: PreparedRun, resumed: ResumedRun | None = None) -> RunRecord:
    """Return the record of a run that begins now, or of one that is resumed, under its id."""
    suite = prepared.suite
    git = read_git_state(suite.base_dir, suite.access)
    if resumed is not None:
        return _resumed_run(prepared, resumed, git)
    return RunRecord(
        id=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        status=RunStatus.RUNNING,
        started_at=_now(),
        finished_at=None,
        duration_ms=None,
        tool_version=__version__,
        config_path=str(prepared.suite.path),
        config_digest=run_digest(fingerprint(prepared)),
        config=prepared.suite.snapshot,
        columns=prepared.plan.columns,
        warnings=prepared.notes,
        prompt_version=prompt_version(),
        description=suite.description,
        judges=tuple(dict.fromkeys(spec.title for spec in prepared.judges)),
        tags=_tags_of(prepared),
        git=git,
        judged_from=None if prepared.request.judged is None else prepared.request.judged.run.id,
    )


def ended_run(run: RunRecord, status: RunStatus, *, lasted_s: float, notices: Iterable[str]) -> RunRecord:
    """Return the record of a run that ends now, `lasted_s` seconds after it began or was resumed."""
    return replace(
        run,
        status=status,
        finished_at=_now(),
        duration_ms=(run.duration_ms or 0.0) + lasted_s * 1000,
        warnings=tuple(dict.fromkeys([*run.warnings, *notices])),
    )


def origin_of(prepared: PreparedRun) -> RunOrigin:
    """Return the origin that the store keeps beside the record."""
    return RunOrigin(config_file(prepared.suite.path), prepared.total, fingerprint(prepared))


def _tags_of(prepared: PreparedRun) -> dict[str, str]:
    """Return the tags of the config, and those of the command line over them, without keys."""
    return without_keys({**prepared.suite.tags, **prepared.request.tags})


def without_keys(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags as they may be stored: a value that is a key, by its name or its form, is masked."""
    return {name: MASK if is_secret_name(name) else mask_bare(value) for name, value in tags.items()}


def _resumed_run(prepared: PreparedRun, resumed: ResumedRun, git: GitState | None) -> RunRecord:
    old = resumed.run
    warnings = [text for text in old.warnings if not text.startswith((STOPPED, *DECIDED_EARLY))]
    if old.tool_version != __version__:
        warnings.append(f"started by geval {old.tool_version}, resumed by geval {__version__}")
    if git is not None and old.git is not None and git.commit != old.git.commit:
        warnings.append(f"started at commit {_short(old.git)}, resumed at commit {_short(git)}")
    if _now() < old.started_at:
        warnings.append("the system clock is earlier than the start of this run")
    return replace(
        old,
        status=RunStatus.RUNNING,
        finished_at=None,
        warnings=tuple(dict.fromkeys([*warnings, *prepared.notes])),
        tags={**old.tags, **_tags_of(prepared)},
    )


def _short(git: GitState) -> str:
    return "none" if git.commit is None else git.commit[:SHORT_COMMIT]


def _now() -> str:
    """Return the time as records have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

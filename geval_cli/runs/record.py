"""The record of a run: its id, the commit that it was made from, and what is kept so that it can be resumed.

The commit is read from `.git` without starting a program; only `is_dirty` runs git itself. A user's config may be
checked out anywhere: in a linked worktree, in a submodule, or in no repository at all. The repository may be
untrusted, so its files are read through the access of the config, as regular files and up to a size, and nothing of
them is kept but a hash and the name of a branch.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from geval_cli.errors import CodeFailedError
from geval_cli.judge.prompt import prompt_version
from geval_cli.patterns import compile_later
from geval_cli.records import SHORT_COMMIT, STOPPED, GitState, RunRecord, RunStatus
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.resume import GIVEN, REPEATED, ResumedRun, fingerprint
from geval_cli.source.access import Access, open_regular
from geval_cli.source.command import ScriptError, run_command
from geval_cli.source.files import FILE_PART, digest_of
from geval_cli.source.secrets import MASK, is_ordinary_word, is_secret_name, mask_bare
from geval_cli.store.home import repository_of
from geval_cli.store.runs import RunOrigin, config_file, new_run, time_now
from geval_cli.version import __version__

DECIDED_EARLY = ("decided after ", "this run stopped early: ")
"""How the warnings about an early stop begin; a resumed run drops them, and adds its own when it ends."""

DIRTY_TIMEOUT_S = 2.0
"""How long a run waits for git; a repository that takes longer (millions of files, a slow disk) has no answer."""

_MOST_FILES, _FILE_DIGITS = 100, 16
_MOST_BYTES = 4096
_MOST_PACKED_BYTES = 32 * 1024 * 1024
_MOST_BRANCH = 255
_COMMIT = compile_later(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = compile_later(r"refs/[^\x00-\x20\x7f~^:?*\[\\]{1,1000}")
_HEADS = "refs/heads/"
_KEPT_VARIABLES = ("PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "TMPDIR")
_NO_PROGRAMS = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false"),
    "--no-optional-locks",
)
"""Settings that keep git from starting programs that a repository names, and from writing to it."""


def begun_run(prepared: PreparedRun, resumed: ResumedRun | None) -> tuple[RunRecord, RunOrigin | None]:
    """Return the record of a new run with its origin, or the record of a resumed run with None."""
    suite = prepared.suite
    git = read_git_state(suite.base_dir, suite.access)
    if resumed is not None:
        old = resumed.run
        warnings = [text for text in old.warnings if not text.startswith((STOPPED, *DECIDED_EARLY))]
        if old.tool_version != __version__:
            warnings.append(f"started by geval {old.tool_version}, resumed by geval {__version__}")
        if git is not None and old.git is not None and git.commit != old.git.commit:
            warnings.append(f"started at commit {_short(old.git)}, resumed at commit {_short(git)}")
        if time_now() < old.started_at:
            warnings.append("the system clock is earlier than the start of this run")
        again = replace(
            old,
            status=RunStatus.RUNNING,
            finished_at=None,
            warnings=tuple(dict.fromkeys([*warnings, *prepared.notes])),
            tags={**old.tags, **_tags_of(prepared)},
        )
        return again, None
    covered = fingerprint(prepared)
    # The files that the config itself names come before those that its tests name.
    named = islice((name for name in suite.parts if name.startswith(FILE_PART)), _MOST_FILES)
    files = {name.removeprefix(FILE_PART): suite.parts[name][:_FILE_DIGITS] for name in named}
    run = new_run(
        str(suite.path),
        suite.snapshot,
        prepared.plan.columns,
        config_digest=digest_of(covered),
        warnings=prepared.notes,
        prompt_version=prompt_version(),
        description=suite.description,
        judges=tuple(dict.fromkeys(spec.title for spec in prepared.judges)),
        tags=_tags_of(prepared),
        git=git,
        judged_from=None if prepared.request.judged is None else prepared.request.judged.run.id,
        files=files,
    )
    given = {name: getattr(prepared.request, name) for name in REPEATED}
    return run, RunOrigin(config_file(suite.path), prepared.total, {**covered, GIVEN: given})


def ended_run(run: RunRecord, status: RunStatus, *, lasted_s: float, notices: Iterable[str]) -> RunRecord:
    """Return the record of a run that has ended, `lasted_s` seconds after it began or was resumed."""
    return replace(
        run,
        status=status,
        finished_at=time_now(),
        duration_ms=(run.duration_ms or 0.0) + lasted_s * 1000,
        warnings=tuple(dict.fromkeys([*run.warnings, *notices])),
    )


def _tags_of(prepared: PreparedRun) -> dict[str, str]:
    """Return the tags of the config, overridden by those of the command line, without keys."""
    return without_keys({**prepared.suite.tags, **prepared.request.tags})


def without_keys(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags as they may be stored: a value that is a key, judging by its name or its form, is masked."""
    kept = {name for name, value in tags.items() if not is_secret_name(name) or is_ordinary_word(value)}
    return {name: mask_bare(value) if name in kept else MASK for name, value in tags.items()}


def _short(git: GitState) -> str:
    return "none" if git.commit is None else git.commit[:SHORT_COMMIT]


def read_git_state(folder: Path, access: Access) -> GitState | None:
    """Return the commit and branch of the repository around `folder`; None outside of one, or if it cannot be read.

    `dirty` stays unknown. The branch is None on a detached HEAD; the commit is None before the first one.
    """
    repository = repository_of(folder.absolute())
    if repository is None:
        return None
    try:
        own = _git_folder(repository / ".git", access)
        head = _line(own / "HEAD", access)
        if _COMMIT.fullmatch(head):
            return GitState(commit=head)
        ref = head.removeprefix("ref:").strip()
        if not head.startswith("ref:") or not _REF.fullmatch(ref) or ".." in ref:
            return None
        commit = next(_commits(own, ref, access), None)
    except (OSError, ValueError):
        return None
    branch = ref.removeprefix(_HEADS)[:_MOST_BRANCH] if ref.startswith(_HEADS) else None
    return GitState(commit=commit, branch=branch)


async def is_dirty(folder: Path, access: Access) -> bool | None:
    """Return whether files around `folder` that git tracks differ from its commit.

    None if git is not installed, does not answer in time, or may not be started: a config that may run no code could be
    in a repository whose settings and filters name programs.
    """
    env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    words = ("git", *_NO_PROGRAMS, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    try:
        return bool(
            await run_command(
                words,
                access,
                folder=folder,
                env={**env, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
                timeout_s=DIRTY_TIMEOUT_S,
            )
        )
    except (CodeFailedError, ScriptError):
        return None


def _git_folder(path: Path, access: Access) -> Path:
    """Return the folder `.git`, or the one that it names: in a linked worktree or a submodule, it is a file."""
    if path.is_dir():
        return path
    written = _line(path, access)
    if not written.startswith("gitdir:"):
        raise ValueError(f"{path} is not a folder")
    return path.parent / written.removeprefix("gitdir:").strip()


def _commits(own: Path, ref: str, access: Access) -> Iterator[str]:
    """Yield the commits of a ref from the places where git looks for it, in git's order."""
    folders = [own]
    with suppress(OSError):  # only linked worktrees have it
        folders.append(own / _line(own / "commondir", access))
    for folder in folders:
        try:
            text = _line(folder / ref, access)
        except OSError:
            continue
        if _COMMIT.fullmatch(text):
            yield text
    for folder in folders:
        yield from _packed(folder / "packed-refs", ref, access)


def _packed(path: Path, ref: str, access: Access) -> Iterator[str]:
    try:
        with open_regular(path, access) as stream:
            lines = stream.read(_MOST_PACKED_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        commit, _, name = line.partition(" ")
        if name == ref and _COMMIT.fullmatch(commit):
            yield commit


def _line(path: Path, access: Access) -> str:
    with open_regular(path, access) as stream:
        return stream.read(_MOST_BYTES).decode("utf-8", "replace").strip()

"""What is written for an untrusted config is written where it says: links, pipes and devices lead nowhere else."""

import json
import os
import shutil
import threading
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path

import pytest
from support.geval_command import Finished, clean_environment, run_geval
from support.sample_run import RUN, make_case, make_report
from support.stored_runs import write_config

from geval_cli.errors import OutputError
from geval_cli.events import CaseFinished, RunStarted
from geval_cli.extras.request_log import RequestLogFile
from geval_cli.report import FORMATS, safe_file
from geval_cli.report.report import check_output_path, open_results_file
from geval_cli.report.safe_file import SafeFile, distrust_links

VICTIM = "import os  # not to be overwritten\n"
DATA = Path(__file__).parent / "cases" / "calibrate"


def plant(attack: str, name: Path, outside: Path) -> None:
    """Put an attack in the place of the file, or of its folder."""
    victim = outside / "evil.pth"
    if attack in {"link", "relative link", "chain of links", "hard link"}:
        victim.write_text(VICTIM)
    match attack:
        case "link" | "dangling link":
            name.symlink_to(victim)
        case "relative link":
            name.symlink_to(os.path.relpath(victim, name.parent))
        case "chain of links":
            (name.parent / "other").symlink_to(victim)
            name.symlink_to("other")
        case "link to itself":
            name.symlink_to(name.name)
        case "linked folder" | "linked folder above":
            folder = name.parent if attack == "linked folder" else name.parent.parent
            shutil.rmtree(folder)
            folder.symlink_to(outside)
        case "hard link":
            name.hardlink_to(victim)
        case "pipe":
            os.mkfifo(name)
        case "folder":
            name.mkdir()


ATTACKS = (
    "link",
    "relative link",
    "chain of links",
    "dangling link",
    "link to itself",
    "linked folder",
    "linked folder above",
    "hard link",
    "pipe",
    "folder",
)


def harm(outside: Path) -> list[str]:
    """Return what was made or changed outside."""
    return [
        str(path.relative_to(outside))
        for path in sorted(outside.rglob("*"))
        if path.is_file() and path.read_text(errors="replace") != VICTIM
    ]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a stranger's, in which an output is named `a/b/FILE`; `outside` is beside it."""
    monkeypatch.setattr(safe_file, "_distrusted", set())
    (tmp_path / "checkout" / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "b").mkdir(parents=True)
    return tmp_path / "checkout"


def _written(path: Path) -> None:
    with SafeFile(path, is_private=True) as file:
        file.write("all")


def _logged(path: Path) -> None:
    with RequestLogFile(path) as log:
        log.listen(RunStarted(RUN, 1))


def _streamed(path: Path) -> None:
    file = open_results_file(path.with_suffix(".jsonl"))
    file.listen(RunStarted(RUN, 1))
    file.listen(CaseFinished(make_case()))


def _reported(path: Path) -> None:
    open_results_file(path).finish(make_report())


WRITERS = {
    **dict.fromkeys(FORMATS, _reported),
    ".tests.parquet": lambda path: _reported(path.with_name("r.parquet")),
    ".jsonl as it comes": _streamed,
    ".log": _logged,
    ".yaml": _written,
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", WRITERS)
def test_no_file_is_written_elsewhere(checkout: Path, kind: str, attack: str) -> None:
    name = checkout / "a" / "b" / f"r{kind.partition(' ')[0]}"
    outside = checkout.parent / "outside"
    distrust_links([checkout])
    plant(attack, name, outside)
    # What replaces a name takes no other name of the same file along; a stream only loses its lines.
    is_harmless = (attack == "hard link" and kind != ".log") or kind == ".jsonl as it comes"
    with nullcontext() if is_harmless else pytest.raises(OutputError):
        WRITERS[kind](name)
    assert harm(outside) == []
    assert not list((checkout.parent / "outside").rglob("*.tmp"))


def test_a_repository_within_a_repository_is_no_end_of_the_checkout(checkout: Path) -> None:
    """A submodule has a `.git` of its own; what is around it may be the same stranger's."""
    (checkout / "evals").mkdir()
    (checkout / ".git").mkdir()
    (checkout / "evals" / ".git").write_text("gitdir: ../.git/modules/evals")
    distrust_links([checkout / "evals"])
    (checkout / "reports").symlink_to(checkout.parent / "outside")
    for kind, write in WRITERS.items():
        with nullcontext() if kind == ".jsonl as it comes" else pytest.raises(OutputError, match="is a link"):
            write(checkout / "reports" / f"r{kind.partition(' ')[0]}")
    assert harm(checkout.parent / "outside") == []


@pytest.mark.parametrize(("planted", "named"), [("r.json", "r.json"), ("r.tests.parquet", "r.parquet")])
@pytest.mark.parametrize("attack", [name for name in ATTACKS if name not in {"hard link"}])
def test_it_is_told_before_a_run(checkout: Path, attack: str, planted: str, named: str) -> None:
    name = checkout / "a" / "b" / planted
    distrust_links([checkout])
    plant(attack, name, checkout.parent / "outside")
    problem = check_output_path(name.with_name(named))
    assert problem is not None
    assert problem.hint
    assert harm(checkout.parent / "outside") == []


def test_a_folder_that_is_exchanged_all_the_time(checkout: Path) -> None:
    """Between the look at a name and its use it becomes a link; nothing is ever written behind it."""
    distrust_links([checkout])
    outside, folder, kept = checkout.parent / "outside", checkout / "a", checkout / "kept"
    kept.symlink_to(outside)
    ended = threading.Event()

    def exchange() -> None:
        spare = checkout / "spare"
        while not ended.is_set():
            folder.rename(spare)
            kept.rename(folder)
            folder.rename(kept)
            spare.rename(folder)

    thread = threading.Thread(target=exchange)
    thread.start()
    written = 0
    try:
        for number in range(2_000):
            try:
                with SafeFile(folder / "b" / f"r{number}.csv") as file:
                    file.write("x")
                written += 1
            except OutputError:
                continue
    finally:
        ended.set()
        thread.join()
    assert written, "the folder was there at times"
    assert harm(outside) == []


class TestTheUsersOwnLinks:
    def test_a_file_that_is_a_link_is_replaced_behind_it(self, checkout: Path) -> None:
        target = checkout / "runs" / "1.json"
        target.parent.mkdir()
        target.write_text("old")
        (checkout / "latest.json").symlink_to("runs/1.json")
        open_results_file(checkout / "latest.json").finish(make_report())
        assert (checkout / "latest.json").is_symlink()
        assert json.loads(target.read_text())["kind"] == "run"

    def test_links_of_the_users_lead_into_a_strangers_folder_and_no_further(self, checkout: Path) -> None:
        outside = checkout.parent / "outside"
        distrust_links([checkout])
        own = checkout.parent / "own"
        own.symlink_to(checkout)
        _written(own / "a" / "b" / "r.yaml")
        assert (checkout / "a" / "b" / "r.yaml").read_text() == "all"
        (checkout / "out").symlink_to(outside)
        (checkout.parent / "twice").symlink_to(checkout / "out")
        with pytest.raises(OutputError, match="is a link"):
            _written(checkout.parent / "twice" / "r.yaml")
        with pytest.raises(OutputError, match="is a link"):
            _written(checkout / "out" / ".." / "r.yaml")
        assert harm(outside) == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to someone else")
    def test_somebody_elses_link_in_a_folder_of_all(self, checkout: Path) -> None:
        shared, outside = checkout.parent / "shared", checkout.parent / "outside"
        shared.mkdir()
        shared.chmod(0o1777)
        (outside / "evil.pth").write_text(VICTIM)
        (shared / "r.yaml").symlink_to(outside / "evil.pth")
        os.chown(shared / "r.yaml", 4711, 4711, follow_symlinks=False)
        with pytest.raises(OutputError, match="another user's link"):
            _written(shared / "r.yaml")
        assert harm(outside) == []

    def test_a_name_for_a_moment_is_nobodys_to_guess(self, checkout: Path) -> None:
        """As it once was: `.NAME.PID.tmp`."""
        (checkout.parent / "outside" / "evil.pth").write_text(VICTIM)
        (checkout / f".r.yaml.{os.getpid()}.tmp").symlink_to(checkout.parent / "outside" / "evil.pth")
        names = set()
        for _ in range(2):
            with SafeFile(checkout / "r.yaml") as file:
                names |= {path.name for path in checkout.glob(".r.yaml.*.tmp")}
                file.write("x")
        assert len(names) == 3
        assert harm(checkout.parent / "outside") == []


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with whatever the commands need, and a state folder of the user's beside it."""
    folder = tmp_path_factory.mktemp("stored") / "checkout"
    folder.mkdir()
    tests = [{"vars": {"x": "import os"}, "assert": [{"type": "contains", "value": "import", "metric": "m"}]}]
    write_config(folder, "c.json", tests)
    shutil.copy(DATA / "labels.jsonl", folder / "labels.jsonl")
    state = str(folder.parent / "state")
    assert run_geval("run", "c.json", "--home", state, cwd=folder).code == 0
    assert run_geval("run", "c.json", "--home", state, "-o", "results.json", cwd=folder).code == 0
    assert run_geval("export", "suite", "c.json", "-o", "suite.json", cwd=folder).code == 0
    line = {"input": "q", "output": "a", "messages": [{"role": "user", "content": "q"}]}
    (folder / "traces.jsonl").write_text(json.dumps(line) + "\n")
    return folder


HOME = ("--home", "../state")
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "c.json", "-o", "a/b/r.csv", *HOME),
    "run, two files": ("run", "c.json", "-o", "fine.json", "-o", "a/b/r.jsonl", *HOME),
    "run, log": ("run", "c.json", "--log-file", "a/b/r.log", *HOME),
    "run, plan": ("run", "c.json", "--plan", "-o", "a/b/r.json", *HOME),
    "judge": ("judge", "results.json", "c.json", "-o", "a/b/r.md", *HOME),
    "validate": ("validate", "c.json", "-o", "a/b/r.sarif"),
    "init": ("init", "a/b/r.yaml"),
    "schema": ("schema", "-o", "a/b/r.json"),
    "show": ("show", "latest", "-o", "a/b/r.junit.xml", *HOME),
    "export run": ("export", "run", "latest", "-o", "a/b/r.html", *HOME),
    "export suite": ("export", "suite", "c.json", "-o", "a/b/r.json"),
    "import suite": ("import", "suite", "suite.json", "-o", "a/b/r.yaml"),
    "import suite by force": ("import", "suite", "suite.json", "-o", "a/b/r.yaml", "--force"),
    "import traces": ("import", "traces", "traces.jsonl", "-o", "a/b/r.jsonl"),
    "compare": ("compare", "latest", "latest", "-o", "a/b/r.md", *HOME),
    "label": ("label", "latest", "--export", "a/b/r.csv", *HOME),
    "agree": ("agree", "labels.jsonl", "-o", "a/b/r.html", *HOME),
    "calibrate": ("calibrate", "labels.jsonl", "-o", "a/b/r.cal.json", *HOME),
    "calibrate, report": ("calibrate", "labels.jsonl", "-o", "a/b/r.md", *HOME),
}


@pytest.mark.parametrize(
    ("command", "attack"),
    [*zip(COMMANDS, cycle(["link", "dangling link", "linked folder above"]), strict=False)],
)
def test_no_command_writes_through_a_link(stored: Path, tmp_path: Path, command: str, attack: str) -> None:
    """A command without an attack writes its file; with one, nothing outside. All attacks are tried on each writer."""
    name = next(word for word in COMMANDS[command] if word.startswith("a/b/"))
    done = _attacked(stored, tmp_path / "none", command, "")
    assert (tmp_path / "none" / "checkout" / name).is_file(), done.stderr
    done = _attacked(stored, tmp_path / "attacked", command, attack)
    assert harm(tmp_path / "attacked" / "outside") == [], done.stderr
    assert done.code != 0
    assert "Traceback" not in done.stderr


def _attacked(stored: Path, world: Path, command: str, attack: str) -> Finished:
    name = next(word for word in COMMANDS[command] if word.startswith("a/b/"))
    shutil.copytree(stored, world / "checkout")
    shutil.copytree(stored.parent / "state", world / "state")
    (world / "checkout" / name).parent.mkdir(parents=True)
    (world / "outside" / "b").mkdir(parents=True)
    plant(attack, world / "checkout" / name, world / "outside")
    env = clean_environment(GEVAL_UNTRUSTED="1", XDG_STATE_HOME=str(world / "xdg"))
    return run_geval(*COMMANDS[command], cwd=world / "checkout", env=env)


@pytest.mark.parametrize("attack", ["dangling link", "link"])
def test_a_lock_file_that_is_a_link(tmp_path: Path, attack: str) -> None:
    folder, outside = tmp_path / "checkout", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    write_config(folder, "c.json", [{"assert": [{"type": "contains", "value": "x"}]}])
    plant(attack, folder / "geval.lock", outside)
    done = run_geval(
        "lock", "--untrusted", "c.json", cwd=folder, env=clean_environment(XDG_STATE_HOME=str(tmp_path))
    )
    assert done.code == 2
    assert harm(outside) == []


@pytest.mark.parametrize("link", [".", "running", "geval.db", "cache.db", "geval.db-wal"])
@pytest.mark.parametrize("option", ["--home", "--cache-dir"])
def test_a_state_folder_that_leads_elsewhere(tmp_path: Path, link: str, option: str) -> None:
    """The user names it; what is in it, or where it is, came with the checkout."""
    folder, outside = tmp_path / "checkout", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    write_config(folder, "c.json", [{"assert": [{"type": "contains", "value": "x"}]}])
    if link == ".":
        (folder / "state").symlink_to(outside)
    else:
        (folder / "state").mkdir()
        (folder / "state" / link).symlink_to(outside / "evil.pth")
    done = run_geval(
        "run",
        "--untrusted",
        "c.json",
        option,
        "state",
        cwd=folder,
        env=clean_environment(XDG_STATE_HOME=str(tmp_path)),
    )
    assert done.code == 2
    assert "is a link" in done.stderr
    assert list(outside.iterdir()) == []


NO_WALL = """
import sys
from pathlib import Path
from geval_cli.cli.untrusted import KernelSandbox
from geval_cli.errors import UsageError
from geval_cli.report.safe_file import distrust_links
from geval_cli.runs.requests import RunRequest

checkout = Path(sys.argv[1])
distrust_links([checkout])
try:
    KernelSandbox().confine([RunRequest(checkout / "c.json", {}, untrusted=True)], outputs=[checkout / "out" / "r.csv"])
except UsageError as error:
    print(error)
"""


def test_the_wall_is_not_opened_for_what_a_link_means(checkout: Path) -> None:
    """In a process of its own: where threads run already, there is no sandbox."""
    write_config(checkout, "c.json", [])
    (checkout / "out").symlink_to(checkout.parent / "outside")
    ended = run_geval(str(checkout), cwd=checkout, code=NO_WALL)
    assert ended.code == 0, ended.stderr
    assert "is a link" in ended.stdout

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from geval_cli.cli.configs import import_suite
from geval_cli.errors import StoreError
from geval_cli.extras.request_log import RequestLogFile
from geval_cli.report.safe_file import SafeFile
from geval_cli.store.cache import ResponseCache
from geval_cli.store.home import home_folder, make_folder, make_private_file
from geval_cli.store.runs import RUNS_FILE, RunStore

CWD = Path("/somewhere")


@pytest.mark.parametrize(
    ("explicit", "env", "expected"),
    [
        (None, {}, "/somewhere/.geval"),
        (None, {"GEVAL_HOME": "/state"}, "/state"),
        (None, {"GEVAL_HOME": "state"}, "/somewhere/state"),
        (None, {"GEVAL_HOME": ""}, "/somewhere/.geval"),
        (Path("here"), {"GEVAL_HOME": "/state"}, "/somewhere/here"),
        (Path("/abs"), {}, "/abs"),
    ],
)
def test_the_option_comes_before_the_variable_before_the_current_folder(explicit, env, expected):
    assert home_folder(explicit, env=env, cwd=CWD) == Path(expected)


class TestNearest:
    """Which `.geval` is used where none is named."""

    @staticmethod
    def home_in(cwd: Path) -> Path:
        cwd.mkdir(parents=True, exist_ok=True)
        return home_folder(None, env={}, cwd=cwd)

    @staticmethod
    def made(*folders: Path) -> None:
        for folder in folders:
            folder.mkdir(parents=True)

    def test_it_is_the_nearest_upwards_within_the_repository(self, tmp_path: Path) -> None:
        self.made(tmp_path / ".git", tmp_path / ".geval", tmp_path / "a" / ".geval")
        assert self.home_in(tmp_path / "b" / "c") == tmp_path / ".geval"
        assert self.home_in(tmp_path / "a" / "c") == tmp_path / "a" / ".geval"
        assert self.home_in(tmp_path) == tmp_path / ".geval"

    @pytest.mark.parametrize("kind", ["folder", "file", "broken link"])
    def test_it_is_never_above_the_repository(self, kind: str, tmp_path: Path) -> None:
        inner = tmp_path / "module"
        self.made(tmp_path / ".git", tmp_path / ".geval", inner)
        if kind == "folder":
            (inner / ".git").mkdir()
        elif kind == "file":
            (inner / ".git").write_text("gitdir: ../.git/modules/module", encoding="utf-8")
        else:
            (inner / ".git").symlink_to("nowhere")
        assert self.home_in(inner / "sub") == inner / "sub" / ".geval"

    def test_without_a_repository_it_is_in_the_current_folder_only(self, tmp_path: Path) -> None:
        self.made(tmp_path / ".geval")
        assert self.home_in(tmp_path / "sub") == tmp_path / "sub" / ".geval"

    def test_a_file_of_that_name_is_passed_over(self, tmp_path: Path) -> None:
        self.made(tmp_path / ".git", tmp_path / ".geval", tmp_path / "a")
        (tmp_path / "a" / ".geval").write_text("", encoding="utf-8")
        assert self.home_in(tmp_path / "a" / "b") == tmp_path / ".geval"

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
    @pytest.mark.parametrize("is_link", [False, True])
    def test_somebody_else_s_state_above_is_not_used(self, is_link: bool, tmp_path: Path) -> None:
        self.made(tmp_path / ".git", tmp_path / "real")
        if is_link:
            (tmp_path / ".geval").symlink_to("real")
            assert self.home_in(tmp_path / "sub") == tmp_path / ".geval"
        else:
            (tmp_path / ".geval").mkdir()
        os.chown(tmp_path / ".geval", 12345, 12345, follow_symlinks=False)
        assert self.home_in(tmp_path / "sub") == tmp_path / "sub" / ".geval"

    def test_what_the_user_names_wins(self, tmp_path: Path) -> None:
        self.made(tmp_path / ".git", tmp_path / ".geval", tmp_path / "sub")
        assert home_folder(None, env={"GEVAL_HOME": "x"}, cwd=tmp_path / "sub") == tmp_path / "sub" / "x"
        assert home_folder(Path("y"), env={}, cwd=tmp_path / "sub") == tmp_path / "sub" / "y"


def test_a_new_folder_keeps_its_content_out_of_git(tmp_path):
    make_folder(tmp_path / "a" / ".geval")
    assert (tmp_path / "a" / ".geval" / ".gitignore").read_text() == "*\n"


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path):
    make_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


class TestModes:
    """Who may read what geval keeps."""

    @pytest.fixture(autouse=True)
    def everything_is_open_by_default(self) -> Iterator[None]:
        before = os.umask(0)
        yield
        os.umask(before)

    @staticmethod
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    @pytest.mark.parametrize("kind", [RunStore, ResponseCache])
    def test_databases_are_their_owner_s(self, tmp_path: Path, kind: type[RunStore | ResponseCache]) -> None:
        home = tmp_path / "home"
        for _ in range(2):
            store = kind.open(home)
            try:
                names = {path.name: self.mode(path) for path in home.iterdir() if path.name != ".gitignore"}
            finally:
                store.close()
            assert len(names) >= 1
            assert set(names.values()) == {0o600}
            assert self.mode(home) == 0o700
            # As an older geval left them:
            home.chmod(0o755)
            for path in home.iterdir():
                path.chmod(0o644)
            Path(f"{home / min(names)}-wal").touch(0o644)

    def test_a_damaged_database_that_is_moved_aside_too(self, tmp_path: Path) -> None:
        (tmp_path / RUNS_FILE).write_bytes(b"no database " * 100)
        RunStore.open(tmp_path).close()
        modes = {path.name: self.mode(path) for path in tmp_path.iterdir()}
        assert len(modes) >= 2
        assert set(modes.values()) == {0o600}

    def test_a_folder_that_others_made_keeps_its_mode(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        make_folder(tmp_path)
        assert self.mode(tmp_path) == 0o755

    def test_what_a_group_shares_stays_shared(self, tmp_path: Path) -> None:
        (tmp_path / "cache.db").touch()
        (tmp_path / "cache.db").chmod(0o660)
        tmp_path.chmod(0o2770)
        make_private_file(tmp_path / "cache.db")
        assert self.mode(tmp_path / "cache.db") == 0o660

    def test_a_log_of_before_is_closed_to_others(self, tmp_path: Path) -> None:
        (tmp_path / "log.jsonl").touch(0o644)
        with RequestLogFile(tmp_path / "log.jsonl"):
            assert self.mode(tmp_path / "log.jsonl") == 0o600

    def test_a_results_file_is_private_while_it_is_written_if_it_was_before(self, tmp_path: Path) -> None:
        (tmp_path / "out.json").touch(0o600)
        with SafeFile(tmp_path / "out.json") as file:
            file.write("x")
            assert {self.mode(path) for path in tmp_path.iterdir()} == {0o600}
        assert self.mode(tmp_path / "out.json") == 0o600
        with SafeFile(tmp_path / "new.json") as file:
            file.write("x")
        assert self.mode(tmp_path / "new.json") == 0o666

    def test_an_imported_suite_with_a_key_is_private(self, tmp_path: Path) -> None:
        suite = {"prompts": ["x"], "providers": [{"id": "openai:m", "config": {"apiKey": "a-key-4711"}}]}
        (tmp_path / "suite.json").write_text(json.dumps({**suite, "tests": [{}]}))
        import_suite(tmp_path / "suite.json", tmp_path / "own.yaml", env_file=None, may_replace=False)
        assert "a-key-4711" in (tmp_path / "own.yaml").read_text()
        assert self.mode(tmp_path / "own.yaml") == 0o600

    def test_what_cannot_be_made_is_left_to_whoever_opens_it(self, tmp_path: Path) -> None:
        make_private_file(tmp_path / "nowhere" / "cache.db")
        make_private_file(tmp_path)
        assert not (tmp_path / "nowhere").exists()


def test_a_file_in_the_folders_place_is_an_error_with_a_way_out(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreError, match="taken") as caught:
        make_folder(tmp_path / "taken" / "home")
    assert "--home" in caught.value.hint
    with pytest.raises(StoreError, match="cannot be created"):
        make_folder(tmp_path / "taken")

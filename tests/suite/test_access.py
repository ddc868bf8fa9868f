"""What may be read for a config: the folder, its links, names that cannot be followed, wildcards of every kind."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geval_cli.errors import CodeFailedError, ConfigError, Location, UnjudgeableError
from geval_cli.extras.promptfoo.env import existing_files
from geval_cli.source.access import TRUSTED, Access, OutsideError, access_in, open_regular, untrusted_access
from geval_cli.source.files import find_files
from geval_cli.specs.base import ProviderSpec

WHERE = Location("c.yaml", 3, 5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config's folder; beside it stands what may not be read."""
    inside = tmp_path / "in"
    (inside / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        (inside / name).write_text("fine", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (inside / "link.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "own.txt").symlink_to(inside / "a.txt")
    (inside / "loop.txt").symlink_to(inside / "loop.txt")
    return inside


@pytest.mark.parametrize(
    ("name", "is_outside"),
    [
        ("a.txt", False),
        ("none.txt", False),
        ("own.txt", False),
        (".", False),
        ("sub/../a.txt", False),
        ("", False),
        ("..", True),
        ("../in2/a.txt", True),
        ("../secret.txt", True),
        ("link.txt", True),
        ("/etc/passwd", True),
        ("a\0b", True),
        ("x" * 300, False),
    ],
)
def test_links_and_dots_are_followed_and_what_cannot_be_counts_as_outside(
    folder: Path, name: str, is_outside: bool
) -> None:
    access = untrusted_access([folder])
    assert access.is_outside(folder / name) is is_outside
    assert not TRUSTED.is_outside(folder / name)


class Unfollowed(type(Path())):  # type: ignore[misc]
    """A path that the system does not follow."""

    error: type[Exception] = OSError

    def resolve(self, strict: bool = False) -> Path:
        raise self.error(strict)


@pytest.mark.parametrize("error", [OSError, RuntimeError, ValueError])
def test_a_path_that_cannot_be_resolved_is_outside(folder: Path, error: type[Exception]) -> None:
    path = Unfollowed(folder / "a.txt")
    path.__class__ = type("Path", (Unfollowed,), {"error": error, "__slots__": ()})
    access = untrusted_access([folder])
    assert access.is_outside(path)
    with pytest.raises(OutsideError):
        access.require_inside(path)


def test_two_configs_may_read_in_both_of_their_folders_and_nowhere_else(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text(name, encoding="utf-8")
    access = untrusted_access([tmp_path / "one", tmp_path / "two"])
    assert [access.is_outside(tmp_path / name / "x.txt") for name in ("one", "two", "three")] == [
        False,
        False,
        True,
    ]


def test_a_name_that_means_nothing_by_now_is_not_read(folder: Path) -> None:
    with (folder / "a.txt").open("rb") as stream:
        (folder / "a.txt").unlink()
        with pytest.raises(OutsideError):
            untrusted_access([folder]).require_same(stream, folder / "a.txt")


def test_a_name_that_means_another_file_by_now_is_not_read(folder: Path) -> None:
    access = untrusted_access([folder])
    with (folder / "a.txt").open("rb") as stream:
        access.require_same(stream, folder / "a.txt")
        (folder / "a.txt").unlink()
        (folder / "a.txt").symlink_to(folder.parent / "secret.txt")
        with pytest.raises(OutsideError):
            access.require_same(stream, folder / "a.txt")
    with (folder.parent / "secret.txt").open("rb") as stream, pytest.raises(OutsideError):
        access.require_same(stream, folder / "b.txt")
    with pytest.raises(OutsideError):
        open_regular(folder / "link.txt", access)
    with pytest.raises(OutsideError, match=r"missing\.txt may not be read"):  # nor told whether it is there
        open_regular(folder.parent / "missing.txt", access)
    with open_regular(folder / "own.txt", untrusted_access([folder, folder.parent])) as stream:
        assert stream.read() == b"secret"


@pytest.mark.parametrize(
    "reference",
    [
        "file://../secret.txt",
        "file://{a.txt,../secret.txt}",
        "file://{a.txt,{b,../secret}.txt}",
        "file://*.txt",
        "file://../*.txt",
        "file://../**/*.txt",
        "file://sub/../../[s]ecret.txt",
        "file://su*/../../secret.txt",
        "file://link.txt",
        "file:///etc/pass[w]d",
        "file://" + "{a,b}" * 60,
        "file://{1..999999999}.txt",
        "file://{1..2}/../../secret.txt",
    ],
)
def test_a_match_outside_is_a_problem_with_its_place(folder: Path, reference: str) -> None:
    access = untrusted_access([folder])
    with pytest.raises(ConfigError) as caught:
        existing_files(reference, folder, access, WHERE)
    assert all(problem.location == WHERE for problem in caught.value.problems)
    assert all("outside the config's folder" in problem.message for problem in caught.value.problems)


PIECES = [
    "..",
    "*",
    "**",
    "a.txt",
    "{",
    "}",
    ",",
    "/",
    "door",
    "link.txt",
    "own.txt",
    "[s]ecret.txt",
    "secret",
    ".txt",
    "sub",
    "c.txt",
    "?",
    "loop.txt",
    "[",
    "]",
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=9), st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_pattern_finds_a_file_outside(folder: Path, pieces: list[str], is_marked: bool) -> None:
    if not (folder / "door").is_symlink():
        (folder / "door").symlink_to(folder.parent, target_is_directory=True)
    access = untrusted_access([folder])
    try:
        found = find_files(("file://" if is_marked else "") + "".join(pieces), folder, access, WHERE)
    except ConfigError:
        found = []
    for file in found:
        assert file.path.resolve().is_relative_to(folder.resolve())
        with open_regular(file.path, access) as stream:
            assert stream.read() == b"fine"


def test_what_lies_inside_is_found(folder: Path) -> None:
    access = untrusted_access([folder])
    for reference, names in (
        ("file://{a,b}.txt", ["b.txt", "a.txt"]),
        ("file://sub", ["c.txt"]),
        ("file://**/c.txt", ["c.txt"]),
        ("file://own.txt", ["own.txt"]),
    ):
        assert [file.path.name for file in find_files(reference, folder, access, WHERE)] == names


def test_a_served_config_may_read_in_the_folder_and_is_told_so(folder: Path) -> None:
    access = access_in(folder)
    problem = access.outside_problem(folder / "../secret.txt", WHERE)
    assert "served folder" in problem.message
    assert access.reads_environment
    assert access.reaches_any_host
    with pytest.raises(CodeFailedError, match="this server does not allow"):
        access.require_code("`x`")


def test_a_stranger_runs_and_asks_nothing() -> None:
    access = untrusted_access([Path()])
    with pytest.raises(CodeFailedError, match="--untrusted does not allow"):
        access.require_code("`x`")
    with pytest.raises(UnjudgeableError, match="--untrusted does not allow"):
        access.require_host("a webhook")
    TRUSTED.require_code("`x`")
    TRUSTED.require_host("a webhook")


def test_the_users_word_counts_only_for_what_stands_in_no_config() -> None:
    named = ProviderSpec(id="python:judge.py")
    access = untrusted_access([Path()], frozenset({named.fingerprint}))
    assert access.is_trusted_provider(named)
    assert not access.is_trusted_provider(ProviderSpec(id="python:other.py"))
    assert not Access().is_trusted_provider(named)


def test_devices_are_not_read_even_where_everything_may_be() -> None:
    if os.path.exists("/dev/zero"):  # noqa: PTH110 - asks about a device
        with pytest.raises(OSError, match="pipe or a device"):
            open_regular(Path("/dev/zero"), TRUSTED)

from pathlib import Path

import pytest

from geval_cli.errors import StoreError
from geval_cli.store.home import home_folder, make_folder

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


def test_a_new_folder_keeps_its_content_out_of_git(tmp_path):
    make_folder(tmp_path / "a" / ".geval")
    assert (tmp_path / "a" / ".geval" / ".gitignore").read_text() == "*\n"


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path):
    make_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_folders_place_is_an_error_with_a_way_out(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreError, match="taken") as caught:
        make_folder(tmp_path / "taken" / "home")
    assert "--home" in caught.value.hint
    with pytest.raises(StoreError, match="cannot be created"):
        make_folder(tmp_path / "taken")

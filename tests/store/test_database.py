import contextlib
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from geval_cli.errors import StoreError
from geval_cli.store.database import (
    CACHE,
    RUNS,
    Schema,
    open_database,
    readable_database,
    store_error,
    transaction,
)

BOTH = pytest.mark.parametrize("schema", [RUNS, CACHE], ids=lambda schema: schema.name)
TWO_STEPS = Schema(
    "test database",
    77,
    (
        ("CREATE TABLE notes (text TEXT)",),
        ("ALTER TABLE notes ADD COLUMN colour TEXT", "UPDATE notes SET colour = 'red'"),
    ),
)


def first_steps(schema, count):
    return Schema(schema.name, schema.application_id, schema.migrations[:count])


def shape(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT name, sql FROM sqlite_schema").fetchall(), key=str)


def insert(connection, text, then_raise=None):
    with transaction(connection):
        connection.execute("INSERT INTO notes VALUES (?, '')", (text,))
        if then_raise:
            raise then_raise


def open_and_count(path):
    with contextlib.closing(open_database(path, TWO_STEPS).connect()) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


@BOTH
def test_a_new_database_has_every_migration_and_is_set_up_for_several_processes(tmp_path, schema):
    database = open_database(tmp_path / "home" / "x.db", schema)
    with contextlib.closing(database.connect()) as connection:
        pragmas = [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "application_id", "user_version")
        ]
    assert pragmas == ["wal", 1, 1, schema.application_id, len(schema.migrations)]
    assert database.warnings == ()


def test_a_migration_keeps_what_was_stored(tmp_path):
    path = tmp_path / "x.db"
    with contextlib.closing(open_database(path, first_steps(TWO_STEPS, 1)).connect()) as connection:
        connection.execute("INSERT INTO notes VALUES ('hello')")
    with contextlib.closing(open_database(path, TWO_STEPS).connect()) as connection:
        assert connection.execute("SELECT * FROM notes").fetchall() == [("hello", "red")]


def test_a_migration_that_fails_leaves_the_older_schema_whole(tmp_path):
    path = tmp_path / "x.db"
    open_database(path, first_steps(TWO_STEPS, 1))
    before = shape(path)
    broken = Schema("test database", 77, (TWO_STEPS.migrations[0], ("CREATE TABLE more (a)", "NONSENSE")))
    with pytest.raises(StoreError):
        open_database(path, broken)
    assert shape(path) == before


def test_a_database_of_a_newer_geval_is_left_alone(tmp_path):
    open_database(tmp_path / "x.db", TWO_STEPS)
    with pytest.raises(StoreError, match="newer geval") as caught:
        open_database(tmp_path / "x.db", first_steps(TWO_STEPS, 1))
    assert "update geval" in caught.value.hint


@BOTH
def test_a_database_from_before_the_first_release_is_refused_and_left_alone(tmp_path, schema):
    path = tmp_path / "x.db"
    with contextlib.closing(open_database(path, schema).connect()) as connection:
        connection.execute("PRAGMA user_version = 0")
    before = path.read_bytes()
    for reads in (lambda: open_database(path, schema), lambda: readable_database(path, schema).__enter__()):
        with pytest.raises(StoreError, match=r"older than 0\.2\.0") as caught:
            reads()
        assert "--home" in caught.value.hint
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_left_alone(tmp_path):
    path = tmp_path / "x.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not geval's"):
        open_database(path, RUNS)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"this is no database at all, and longer than any header\n" * 50,
        lambda whole: b"short",
        lambda whole: whole[:16] + b"\xff" * 500 + whole[516:],
        lambda whole: whole[:100] + b"\xff" * (len(whole) - 100),
    ],
    ids=["text", "short text", "header", "pages"],
)
def test_a_damaged_file_is_moved_aside_whole_and_a_warning_names_it(tmp_path, damage):
    path = tmp_path / "x.db"
    open_database(path, RUNS)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    database = open_database(path, RUNS)
    [warning] = database.warnings
    [aside] = tmp_path.glob("x.db.damaged-*")
    assert aside.name in warning
    assert aside.read_bytes() == damaged
    assert open_database(path, RUNS).warnings == ()


def test_an_empty_file_is_a_new_database(tmp_path):
    (tmp_path / "x.db").touch()
    assert open_database(tmp_path / "x.db", RUNS).warnings == ()


def test_many_processes_may_open_the_same_new_database_at_once(tmp_path):
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(open_and_count, [tmp_path / "home" / "x.db"] * 12)) == [2] * 12


def test_many_processes_that_find_damage_keep_one_new_database(tmp_path):
    path = tmp_path / "x.db"
    path.write_bytes(b"damaged " * 100)
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(open_and_count, [path] * 8)) == [2] * 8
    assert len(list(tmp_path.glob("x.db.damaged-*"))) == 1


def test_a_full_disk_is_said_in_words(tmp_path):
    database = open_database(tmp_path / "x.db", TWO_STEPS)
    with contextlib.closing(database.connect()) as connection:
        connection.execute("PRAGMA max_page_count = 4")
        with pytest.raises(sqlite3.OperationalError) as caught:
            insert(connection, "x" * 100_000)
        assert not connection.in_transaction
    error = database.error(caught.value)
    assert "disk is full" in error.message
    assert "free some space" in error.hint
    assert error.path == str(tmp_path / "x.db")


def test_a_file_that_cannot_be_written_is_said_in_words(tmp_path):
    path = tmp_path / "x.db"
    open_database(path, TWO_STEPS)
    uri = f"file:{path}?mode=ro"
    connection = sqlite3.connect(uri, uri=True)
    with contextlib.closing(connection), pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("DELETE FROM notes")
    assert "read-only" in store_error(caught.value, path=path, name="x").message


def test_a_folder_in_the_files_place_is_said_in_words(tmp_path):
    (tmp_path / "x.db").mkdir()
    with pytest.raises(StoreError, match="cannot be opened") as caught:
        open_database(tmp_path / "x.db", RUNS)
    assert "--home" in caught.value.hint


def test_what_is_raised_inside_a_transaction_rolls_it_back(tmp_path):
    with contextlib.closing(open_database(tmp_path / "x.db", TWO_STEPS).connect()) as connection:
        with pytest.raises(KeyError):
            insert(connection, "lost", KeyError)
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)

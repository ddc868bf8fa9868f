"""Databases that the first geval wrote, read by this one."""

import contextlib
import json

import pytest
from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY, make_case

from geval_cli.errors import StoreError
from geval_cli.records import Role, Usage, to_json
from geval_cli.store.database import open_database
from geval_cli.store.migrations import RUNS, Schema
from geval_cli.store.runs import RunOrigin, RunStore


@pytest.fixture
def old_home(tmp_path):
    """A home whose run database is as the first version of the schema had it, with a run in it."""
    schema = Schema(RUNS.name, RUNS.application_id, RUNS.migrations[:1])
    with contextlib.closing(open_database(tmp_path / "geval.db", schema).connect()) as connection:
        record, summary = json.dumps(to_json(RUN)), json.dumps(to_json(SUMMARY))
        connection.execute(
            "INSERT INTO runs VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
            (RUN.id, RUN.status, RUN.started_at, RUN.config_path, RUN.config_digest, record, summary),
        )
        result = json.dumps(to_json(make_case(3)))
        connection.execute("INSERT INTO results VALUES (?, 3, 0, 0, 'x', 'passed', ?)", (RUN.id, result))
    return tmp_path


def test_runs_of_the_oldest_schema_are_kept_and_new_ones_go_beside_them(old_home):
    store = RunStore.open(old_home)
    assert store.find(RUN.id) == (RUN, SUMMARY)
    assert list(store.results(RUN.id)) == [make_case(3)]
    assert store.origin(RUN.id) is None
    assert [item.run.id for item in store.of_config("/nowhere", RUN.config_digest)] == [RUN.id]
    origin = RunOrigin("/here/config.yaml", 7, {"suite": {"a": "1"}})
    store.begin(replace(RUN, id="new"), origin)
    store.note_spent("new", {Role.JUDGE: Usage(3, 2, 1, 0, None)}).result()
    assert store.origin("new") == replace(origin, spent={Role.JUDGE: Usage(3, 2, 1, 0, None)})
    assert [item.run.id for item in store.of_config("/here/config.yaml", "?")] == ["new"]
    store.close()


def test_the_oldest_schema_is_read_where_it_cannot_be_migrated(old_home):
    before = (old_home / "geval.db").read_bytes()
    with RunStore.open_read_only(old_home) as store:
        assert store.find(RUN.id) == (RUN, SUMMARY)
        assert list(store.results(RUN.id)) == [make_case(3)]
        assert store.origin(RUN.id) is None
        with pytest.raises(StoreError, match="for reading only"):
            store.add(RUN.id, make_case(4))
        store.close()
    assert (old_home / "geval.db").read_bytes() == before

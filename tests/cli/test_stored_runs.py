"""`geval list`, `show` and `rm`: runs of a store, looked at and taken away."""

import asyncio
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.geval_command import Finished, clean_environment, run_geval
from support.model_server import ModelServer, prompt_of
from support.stored_runs import store_judged_run, store_run, write_config, write_replies

from geval_cli.cli.arguments import parse_case, parse_grouping, parse_tags
from geval_cli.cli.options import RemoveOptions
from geval_cli.cli.remove import remove_runs
from geval_cli.cli.runs import ShowChoice, print_runs, show_run
from geval_cli.errors import StoreError, UsageError
from geval_cli.extras.plan import plan_run
from geval_cli.records import CaseResult, RunStatus, Status
from geval_cli.report.failures import GroupBy
from geval_cli.runs.prepare import prepare
from geval_cli.runs.record import without_keys
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import load_report, open_report
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs, open_state


def read_all(file: Path) -> list[CaseResult]:
    with open_report(str(file), None, {}) as (report, _):
        return list(report.results())


def checks(*words: str) -> list[dict[str, Any]]:
    return [{"type": "contains", "value": word, "metric": word} for word in words]


def rows_of(*texts: str, words: tuple[str, ...] = ("a",)) -> list[dict[str, Any]]:
    return [{"vars": {"x": text}, "assert": checks(*words)} for text in texts]


def stored(folder: Path, *texts: str, name: str = "config.json", **options: Any) -> str:
    return store_run(write_config(folder, name, rows_of(*texts), description="letters"), **options)


def store_and_read(folder: Path) -> str:
    """The record of a run that `config.json` has now, as it is stored."""
    run_id = store_run(folder / "config.json")
    with closing(sqlite3.connect(folder / ".geval" / "geval.db")) as connection:
        return str(connection.execute("SELECT record FROM runs WHERE id = ?", (run_id,)).fetchone()[0])


@pytest.fixture
def listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(config: Path | None = None, tags: tuple[str, ...] = (), limit: int = 20) -> dict[str, Any]:
        home = tmp_path / ".geval"
        print_runs(home, config=config, tags=parse_tags(tags), limit=limit, as_json=True)
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return run


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(
        name: str = "latest", *, as_json: bool = False, outputs: tuple[Path, ...] = (), **choice: Any
    ) -> str:
        show_run(tmp_path / ".geval", name, ShowChoice(**choice), outputs=outputs, as_json=as_json)
        return capsys.readouterr().out

    return run


class TestList:
    def test_a_run_says_how_it_was_made(self, tmp_path: Path, listed: Callable[..., dict[str, Any]]) -> None:
        store_judged_run(tmp_path)
        run = listed()["runs"][0]["run"]
        assert run["judges"] == ["scripted:judge.json"]
        assert run["git"] is None
        assert "config" not in run

    def test_tags_of_the_command_line_win_over_those_of_the_config(
        self, tmp_path: Path, listed: Callable[..., dict[str, Any]]
    ) -> None:
        tags = {
            "model": "base",
            "n": 3,
            "ok": True,
            "api_key": "x-1",
            "said": "sk-abcdefghijklmnopqrstuvwx123456",
        }
        config = write_config(tmp_path, "config.json", rows_of("a"), tags=tags)
        store_run(config, tags={"model": "new"})
        assert listed()["runs"][0]["run"]["tags"] == {
            "model": "new",
            "n": "3",
            "ok": "true",
            "api_key": "***",
            "said": "***",
        }

    @pytest.mark.parametrize(
        ("name", "value", "shown"),
        [
            ("auth", "oauth", "oauth"),
            ("pass", "2", "2"),
            ("api_key", "test", "test"),
            ("api_key", "zq9-abcdef", "***"),
            ("stage", "sk-abcdefgh1", "***"),
        ],
    )
    def test_only_a_tag_that_may_be_a_key_is_masked(self, name: str, value: str, shown: str) -> None:
        """Runs with `auth=oauth` and `auth=basic` are told apart."""
        assert without_keys({name: value}) == {name: shown}

    def test_tags_decide_no_result(self, tmp_path: Path) -> None:
        digests = set()
        for tags in ({}, {"a": "b"}, {"a": "c"}):
            config = write_config(tmp_path, "config.json", rows_of("a"), **({"tags": tags} if tags else {}))
            digests.add(prepare(RunRequest(config, {}, tags=tags)).suite.digest)
        assert len(digests) == 1

    def test_tags_of_promptfoo_s_configs_that_are_no_texts_are_left_out(self, tmp_path: Path) -> None:
        config = write_config(
            tmp_path, "promptfooconfig.json", rows_of("a"), tags={"a": "b", "c": [1], "n": 1}
        )
        prepared = prepare(RunRequest(config, {}))
        assert prepared.suite.tags == {"a": "b", "n": "1"}
        assert any("the tag `c` must be text" in problem.message for problem in prepared.warnings)

    @pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
    def test_a_run_keeps_its_commit_and_a_resumed_one_says_that_it_has_two(self, tmp_path: Path) -> None:
        def git(*words: str) -> str:
            given = (
                "git",
                "-c",
                "user.name=n",
                "-c",
                "user.email=e@x",
                "-c",
                "init.defaultBranch=main",
                *words,
            )
            return subprocess.run(
                given, cwd=tmp_path, check=True, capture_output=True, text=True
            ).stdout.strip()

        write_config(tmp_path, "config.json", [*rows_of("b"), *rows_of("a")])
        git("init", "-q")
        git("add", "config.json")
        git("commit", "-qm", "one")
        first = git("rev-parse", "HEAD")
        run_geval("run", "config.json", "--fail-fast", "-j", "1", "-o", "out.json", cwd=tmp_path)
        read = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["run"]
        assert read["git"] == {"commit": first, "branch": "main", "dirty": False}
        git("commit", "-qm", "two", "--allow-empty")
        words = ("run", "config.json", "--retry-errors", "--tag", "a=b", "-o", "out.json")
        assert run_geval(*words, cwd=tmp_path).code == 1
        again = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["run"]
        assert (again["id"], again["git"], again["tags"]) == (read["id"], read["git"], {"a": "b"})
        second = git("rev-parse", "HEAD")
        assert f"started at commit {first[:9]}, resumed at commit {second[:9]}" in again["warnings"]
        with (tmp_path / "config.json").open("a", encoding="utf-8") as file:
            file.write("\n")
        assert json.loads(store_and_read(tmp_path))["git"] == {
            "commit": second,
            "branch": "main",
            "dirty": True,
        }

    def test_runs_are_found_by_their_tags(
        self, tmp_path: Path, listed: Callable[..., dict[str, Any]]
    ) -> None:
        first = stored(tmp_path, "a", tags={"a": "1", "b": "2"})
        second = stored(tmp_path, "a", tags={"a": "1", 'o"d.d': "x=y"})
        for tags, expected in (
            (("a=1",), [second, first]),
            (("a=1", "b=2"), [first]),
            (('o"d.d=x=y',), [second]),
            (("a=2",), []),
            (("a=",), []),
        ):
            found = listed(tags=tags)
            assert ([item["run"]["id"] for item in found["runs"]], found["total"]) == (
                expected,
                len(expected),
            )

    def test_configs_of_one_name_in_two_folders_are_two(
        self, tmp_path: Path, listed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = {}
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / ".geval").symlink_to(tmp_path / ".geval")
            monkeypatch.chdir(tmp_path / name)
            write_config(Path(), "c.json", rows_of("a"))
            (tmp_path / ".geval").mkdir(exist_ok=True)
            ids[name] = store_run(Path("c.json"))
        assert [item["run"]["id"] for item in listed(Path("../one/c.json"))["runs"]] == [ids["one"]]
        assert listed()["runs"][0]["change"] is None  # the run before is of another config
        with pytest.raises(UsageError, match="no runs of three"):
            listed(Path("three.json"))

    def test_a_change_is_of_the_tests_that_both_runs_have(
        self, tmp_path: Path, listed: Callable[..., dict[str, Any]]
    ) -> None:
        older = stored(tmp_path, "a", "b", "c", "d")
        stored(tmp_path, "x", "d", "a", "c", "b")  # in another order, and one more
        config = write_config(tmp_path, "config.json", rows_of("a", "b", "c", "d", words=("c",)))
        store_run(config)
        newest, middle, oldest = (item["change"] for item in listed()["runs"])
        assert oldest is None
        assert (middle["against"], middle["value"], middle["n"], middle["clusters"]) == (older, 0, 4, 4)
        # In the run before, a of the four passed; now c.
        assert (newest["value"], newest["n"], newest["verdict"]) == (0, 4, "undecided")
        assert newest["interval"] is None  # it would be all of -1 to 1

    def test_other_tests_have_no_change(self, tmp_path: Path, listed: Callable[..., dict[str, Any]]) -> None:
        stored(tmp_path, "a", "b")
        stored(tmp_path, "c", "d")
        assert listed()["runs"][0]["change"] is None

    def test_a_run_that_was_killed_is_interrupted_and_counted(
        self, tmp_path: Path, listed: Callable[..., dict[str, Any]]
    ) -> None:
        run_id = stored(tmp_path, "a", "b")
        with closing(sqlite3.connect(tmp_path / ".geval" / "geval.db")) as connection:
            sql = "UPDATE runs SET summary = NULL, record = json_set(record, '$.status', 'running')"
            connection.execute(sql)
            connection.commit()
        item = listed()["runs"][0]
        assert (item["run"]["id"], item["run"]["status"]) == (run_id, "interrupted")
        assert (item["summary"]["passed"], item["summary"]["failed"], item["change"]) == (1, 1, None)


class TestShow:
    def test_failures_stand_under_the_assertion_that_fell_short(
        self, tmp_path: Path, shown: Callable[..., str]
    ) -> None:
        tests = rows_of("ab", "a", "b", "", "c", words=("a", "b"))
        store_run(write_config(tmp_path, "config.json", tests))
        text = shown(wanted=frozenset({Status.FAILED}))
        places = [text.index(part) for part in ("a: 3 of 5 failed, mean 0.40", "#3", "#4", "#5")]
        section = text[text.index("failures") :]
        assert places
        assert (
            section.index("a: 3 of 5")
            < section.index("#3")
            < section.index("b: 3 of 5")
            < section.index("#2")
        )

    def test_reasons_that_differ_in_quotes_and_numbers_are_one(
        self, tmp_path: Path, shown: Callable[..., str]
    ) -> None:
        tests = [{"vars": {"x": "-"}, "assert": checks(word)} for word in ("a1", "b22", "c333")]
        store_run(write_config(tmp_path, "config.json", tests))
        assert 'a1: the output does not contain "...": 1 case' in shown(by=GroupBy.REASON)
        same = [{"vars": {"x": "-"}, "assert": [{"type": "contains", "value": w}]} for w in ("a1", "b22")]
        store_run(write_config(tmp_path, "config.json", same))
        assert 'contains: the output does not contain "...": 2 cases' in shown(by=GroupBy.REASON)

    def test_one_case_is_shown_whole(self, tmp_path: Path, shown: Callable[..., str]) -> None:
        long = "\n".join(f"line {number}" for number in range(300)) + "\x1b[31m"
        store_run(write_config(tmp_path, "config.json", rows_of(long, "a")))
        text = shown(case=parse_case("1"), is_verbose=True)
        assert "line 299\\x1b[31m" in text
        assert text.count("line 150") == 3  # prompt, variable, output
        assert "more characters" not in text
        assert "#2" not in text

    def test_a_judge_s_reply_is_shown_whole(self, tmp_path: Path, shown: Callable[..., str]) -> None:
        reply = "no rating here. " * 100 + "The end."
        judge = write_replies(tmp_path, "judge.json", [{"default": reply}])
        check = {"type": "g-eval", "value": "kind", "provider": judge, "evaluation_steps": ["Read it."]}
        store_run(write_config(tmp_path, "config.json", [{"vars": {"x": "a"}, "assert": [check]}]))
        raw = [
            item.error.raw for result in self.results(tmp_path) for item in result.assertions if item.error
        ]
        assert raw
        words = " ".join(shown(case="#1", is_verbose=True).split())
        assert all(text is not None and " ".join(text.split()) in words for text in raw)

    @staticmethod
    def results(folder: Path) -> list[Any]:
        with RunStore.open_read_only(folder / ".geval") as runs:
            return list(load_report(runs, "latest").results())

    def test_all_of_many_failures_are_shown(self, tmp_path: Path, shown: Callable[..., str]) -> None:
        stored(tmp_path, *(f"{number}b" for number in range(30)), "a")
        assert "10 more failures and errors not shown; everything: geval show" in shown(
            wanted=frozenset({Status.FAILED})
        )
        text = shown(is_whole=True, wanted=frozenset({Status.FAILED}))
        assert all(f"#{number}  " in text for number in range(1, 31))
        assert "#31" not in text
        assert "not shown" not in text
        assert "#31" in shown(is_whole=True)

    def test_only_what_was_asked_for_is_in_the_json(self, tmp_path: Path, shown: Callable[..., str]) -> None:
        stored(tmp_path, "a", "b", "c")
        for choice, numbers in (
            ({}, [0, 1, 2]),
            ({"wanted": frozenset({Status.FAILED})}, [1, 2]),
            ({"wanted": frozenset({Status.ERROR})}, []),
            ({"case": "#2"}, [1]),
        ):
            document = json.loads(shown(as_json=True, **choice))
            assert [item["test_index"] for item in document["results"]] == numbers
            assert document["summary"]["failed"] == 2

    @pytest.mark.parametrize("ending", ["json", "jsonl", "csv", "junit.xml"])
    def test_only_what_was_asked_for_is_in_files(
        self, tmp_path: Path, shown: Callable[..., str], ending: str
    ) -> None:
        stored(tmp_path, "one a", "two b", "three c")
        for choice, texts in (
            ({}, {"one a", "two b", "three c"}),
            ({"wanted": frozenset({Status.FAILED})}, {"two b", "three c"}),
            ({"case": "#2"}, {"two b"}),
        ):
            path = tmp_path / f"out.{ending}"
            shown(outputs=(path,), **choice)
            written = path.read_text(encoding="utf-8")
            if ending == "json":  # which has the config, too
                written = json.dumps(json.loads(written)["results"])
            assert {text for text in ("one a", "two b", "three c") if text in written} == texts

    @pytest.mark.parametrize("ending", ["html", "md"])
    def test_a_page_of_sums_takes_no_part_of_a_run(
        self, tmp_path: Path, shown: Callable[..., str], ending: str
    ) -> None:
        stored(tmp_path, "a", "b")
        path = tmp_path / f"out.{ending}"
        for choice in ({"wanted": frozenset({Status.FAILED})}, {"case": "#2"}):
            with pytest.raises(UsageError, match="sums of the whole run"):
                shown(outputs=(path,), **choice)
        assert not path.exists()
        shown(outputs=(path,), is_whole=True)
        assert path.exists()

    def test_a_repeat_is_a_case_of_its_own(self, tmp_path: Path, shown: Callable[..., str]) -> None:
        stored(tmp_path, "a", repeats=3)
        assert [part in shown(case="#1", is_verbose=True) for part in ("#1 ", "#1.2", "#1.3")] == [True] * 3
        assert [part in shown(case="#1.2", is_verbose=True) for part in ("#1 ", "#1.2", "#1.3")] == [
            False,
            True,
            False,
        ]

    @pytest.mark.parametrize("ending", [".json", ".jsonl"])
    def test_a_results_file_is_shown_like_the_run(
        self, ending: str, tmp_path: Path, shown: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        stored(tmp_path, "a", "b")
        file = tmp_path / f"out{ending}"
        show_run(tmp_path / ".geval", "latest", ShowChoice(), outputs=(file,), as_json=False)
        capsys.readouterr()
        with open_report(str(file), None, {}) as (report, _):
            counts = report.summary
        assert (counts.passed, counts.failed, counts.pass_rate) == (1, 1, 0.5)
        text = shown(str(file))
        assert 'reason  the output does not contain "a"' in text
        assert "1 passed, 1 failed" in text

    @pytest.mark.parametrize(
        "content", ["", "{}", "[1]", '{"results": 3}', '{"results": [{}]}', "\xff", "[" * 9999]
    )
    def test_what_is_no_results_file_is_said(self, content: str, tmp_path: Path) -> None:
        file = tmp_path / "x.json"
        file.write_bytes(content.encode("latin-1"))
        with pytest.raises(UsageError, match="is not a geval results file"):
            read_all(file)
        with pytest.raises(UsageError, match="no such file"):
            read_all(tmp_path / "none.json")

    def test_names_of_runs(self, tmp_path: Path) -> None:
        ids = [stored(tmp_path, "a") for _ in range(3)]
        with RunStore.open_read_only(tmp_path / ".geval") as runs:
            for name, expected in (
                ("latest", 2),
                ("latest~0", 2),
                ("latest~1", 1),
                ("latest~2", 0),
                (ids[1], 1),
            ):
                assert runs.find(name).run.id == ids[expected]
            wrong = ids[0][:-1] + ("0" if ids[0][-1] != "0" else "1")
            for name, said in (
                ("latest~3", "3 runs are stored here"),
                (wrong, f"did you mean .*{ids[0]}"),
                (ids[0][:6], "give more of the id: .*, "),
                ("", "`geval list`"),
                ("x" * 100_000, "^list the stored runs"),
                ("latets", "^did you mean `latest`"),
            ):
                with pytest.raises(UsageError) as caught:
                    runs.find(name)
                assert re.search(said, caught.value.hint), name

    @pytest.mark.parametrize("text", ["", "x", "1.", "-1", "1.2.3", "१२", "9" * 30])
    def test_what_is_no_number_of_a_case_is_said(self, text: str) -> None:
        if text == "१२":
            assert parse_case(text) == "#12"
            return
        with pytest.raises(UsageError, match="--case must be the number"):
            parse_case(text)

    def test_mistakes_are_said(self, tmp_path: Path, shown: Callable[..., str]) -> None:
        stored(tmp_path, "a")
        with pytest.raises(UsageError, match=r"has no case #7"):
            shown(case="#7")
        with pytest.raises(UsageError, match="--by must be assertion or reason"):
            parse_grouping("colour")


class TestRemove:
    @staticmethod
    def remove(folder: Path, *names: str, **options: Any) -> None:
        older_than_s = options.pop("older_than_s", None)
        given: dict[str, Any] = {"home": folder / ".geval", "is_sure": True, "as_json": True, **options}
        remove_runs(names, RemoveOptions(**given), older_than_s=older_than_s)

    @staticmethod
    def left(folder: Path) -> list[str]:
        with RunStore.open_read_only(folder / ".geval") as runs:
            return [item.run.id for item in runs.runs()]

    def test_what_is_named_goes_with_all_that_is_its_own(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        secret = "privateprivate" * 400
        gone = stored(tmp_path, secret)
        stays = stored(tmp_path, "a")
        self.remove(tmp_path, gone, gone[:-1], "latest~1")
        assert json.loads(capsys.readouterr().out) == {
            "schema_version": 1,
            "kind": "rm",
            "removed": [gone],
            "left": [],
            "answers_removed": 0,
            "labels": {"removed": 0, "kept": 0},
        }
        assert self.left(tmp_path) == [stays]
        with closing(sqlite3.connect(tmp_path / ".geval" / "geval.db")) as connection:
            for table in ("results", "origins"):
                found = {row[0] for row in connection.execute(f"SELECT run_id FROM {table}")}
                assert found == {stays}
        files = b"".join(path.read_bytes() for path in (tmp_path / ".geval").glob("geval.db*"))
        assert b"privateprivate" not in files
        assert list((tmp_path / ".geval" / "running").iterdir()) == []

    def test_the_newest_and_the_young_stay(self, tmp_path: Path) -> None:
        ids = [stored(tmp_path, "a") for _ in range(4)]
        with closing(sqlite3.connect(tmp_path / ".geval" / "geval.db")) as connection:
            for run_id, when in (
                (ids[0], "2020-01-01T00:00:00+00:00"),
                (ids[3], "2020-01-01T00:00:00+00:00"),
                (ids[1], "once upon a time"),
            ):
                sql = "UPDATE runs SET record = json_set(record, '$.started_at', ?) WHERE id = ?"
                connection.execute(sql, (when, run_id))
            connection.commit()
        self.remove(tmp_path, older_than_s=86_400.0, keep=1)
        assert self.left(tmp_path) == ids[:0:-1]
        self.remove(tmp_path, keep=2)
        assert self.left(tmp_path) == [ids[3], ids[2]]
        self.remove(tmp_path, keep=0)
        assert self.left(tmp_path) == []

    def test_a_run_that_is_going_on_stays(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        gone, going_on = stored(tmp_path, "a"), stored(tmp_path, "b")
        with closing(RunStore.open(tmp_path / ".geval")) as runs:
            run = runs.find(going_on).run
            runs.begin(replace(run, status=RunStatus.RUNNING))
            with pytest.raises(UsageError, match=f"run {going_on} is in progress in process"):
                self.remove(tmp_path, gone, going_on)
            assert self.left(tmp_path) == [going_on, gone]
            self.remove(tmp_path, keep=0)
            document = json.loads(capsys.readouterr().out)
            assert document["left"] == [{"run": going_on, "why": "it is in progress"}]
            assert self.left(tmp_path) == [going_on]

    def test_a_run_that_is_resumed_meanwhile_stays(self, tmp_path: Path) -> None:
        run_id = stored(tmp_path, "a")
        home = tmp_path / ".geval"
        with closing(RunStore.open(home)) as other, closing(RunStore.open(home)) as runs:
            assert other.claim(run_id)
            with pytest.raises(UsageError, match="is in progress"):
                runs.remove(run_id)
            other.release(run_id)
            assert (runs.remove(run_id), runs.remove(run_id)) == (True, False)

    def test_two_at_once_remove_each_run_once(self, tmp_path: Path) -> None:
        ids = [stored(tmp_path, "a") for _ in range(6)]
        home = tmp_path / ".geval"

        def remove_all(_: int) -> list[str]:
            done = []
            with closing(RunStore.open(home)) as runs:
                for run_id in ids:
                    try:
                        done += [run_id] if runs.remove(run_id) else []
                    except UsageError:  # the other one is at it
                        continue
            return done

        with ThreadPoolExecutor(2) as pool:
            one, two = pool.map(remove_all, range(2))
        assert sorted(one + two) == sorted(ids)

    @pytest.mark.parametrize(
        ("names", "options", "said"),
        [
            ((), {}, "no run given"),
            (("latest",), {"keep": 3}, "cannot be combined"),
            (("latest", "20200101"), {}, "there is no run `20200101`"),
            (("latest", "results.json"), {}, "is a results file, not a stored run"),
        ],
    )
    def test_what_does_not_say_which_runs_removes_none(
        self, names: tuple[str, ...], options: dict[str, Any], said: str, tmp_path: Path
    ) -> None:
        stored(tmp_path, "a")
        with pytest.raises(UsageError, match=said):
            self.remove(tmp_path, *names, **options)
        assert len(self.left(tmp_path)) == 1

    @pytest.mark.parametrize(("answer", "count"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
    def test_somebody_at_a_terminal_is_asked(
        self, answer: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Keyboard(io.StringIO):
            def isatty(self) -> bool:
                return True

        stored(tmp_path, "a")
        monkeypatch.setattr(sys, "stdin", Keyboard(answer))
        self.remove(tmp_path, "latest", is_sure=False, as_json=False)
        assert len(self.left(tmp_path)) == count

    def test_a_store_that_is_only_read_is_left_alone(self, tmp_path: Path) -> None:
        run_id = stored(tmp_path, "a")
        with (
            RunStore.open_read_only(tmp_path / ".geval") as runs,
            pytest.raises(StoreError, match="read-only"),
        ):
            runs.remove(run_id)


class TestRemovedAnswers:
    """Cached answers go with the only run that used them."""

    @pytest.fixture
    def asking(self, tmp_path: Path) -> Iterator[Callable[..., None]]:
        """Run a suite that asks a server about some things; its answers end in what was asked."""

        def ask(*about: str, **options: Any) -> None:
            tests = [{"vars": {"x": text}} for text in about]
            base = {"base_url": server.base_url, "api_key": "sk-test-key"}
            provider = {"id": "openai:gpt-test", "config": base}
            store_run(write_config(tmp_path, "asking.json", tests, providers=[provider]), **options)

        with ModelServer(answer=lambda body: f"all about {prompt_of(body)}") as server:
            yield ask

    @staticmethod
    def remove(folder: Path, *names: str, **options: Any) -> None:
        home = folder / ".geval"
        given = RemoveOptions(home=home, keep=None if names else 0, is_sure=True, as_json=True, **options)
        remove_runs(names, given, older_than_s=None)

    @staticmethod
    def answers(folder: Path) -> list[str]:
        with closing(sqlite3.connect(folder / "cache.db")) as connection:
            found = connection.execute("SELECT json_extract(answer, '$.text') FROM choices")
            return sorted(str(row[0]).removeprefix("all about ") for row in found)

    @pytest.fixture
    def removed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
        def remove(*names: str, **options: Any) -> Any:
            self.remove(tmp_path, *names, **options)
            return json.loads(capsys.readouterr().out)["answers_removed"]

        return remove

    def test_those_that_another_run_used_stay(
        self, tmp_path: Path, asking: Callable[..., None], removed: Callable[..., Any]
    ) -> None:
        asking("tides", "rain")
        asking("rain", "snow", "hail")
        assert self.answers(tmp_path / ".geval") == ["hail", "rain", "snow", "tides"]
        assert removed("latest") == 2
        assert self.answers(tmp_path / ".geval") == ["rain", "tides"]
        assert removed() == 1
        assert self.answers(tmp_path / ".geval") == ["rain"]

    def test_a_plan_is_no_user(
        self, tmp_path: Path, asking: Callable[..., None], removed: Callable[..., Any]
    ) -> None:
        asking("tides", "rain")
        prepared = prepare(RunRequest(tmp_path / "asking.json", {}))
        with open_state(tmp_path / ".geval", {}) as state:
            assert asyncio.run(plan_run(prepared, state.cache)).cases == 2
        assert removed("latest") == 2

    def test_they_cannot_be_read_from_the_files(
        self, tmp_path: Path, asking: Callable[..., None], removed: Callable[..., Any]
    ) -> None:
        asking("tides")
        files = tmp_path / ".geval"
        assert b"all about tides" in (files / "cache.db").read_bytes()
        assert removed("latest") == 1
        assert b"all about tides" not in b"".join(path.read_bytes() for path in files.glob("*.db*"))

    def test_they_are_kept_where_that_is_asked_for(
        self, tmp_path: Path, asking: Callable[..., None], removed: Callable[..., Any]
    ) -> None:
        asking("tides")
        assert removed("latest", keeps_answers=True) is None
        assert self.answers(tmp_path / ".geval") == ["tides"]

    def test_those_in_another_folder_go_when_it_is_named(
        self, tmp_path: Path, asking: Callable[..., None], removed: Callable[..., Any]
    ) -> None:
        asking("tides")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / ".geval" / "cache.db").rename(elsewhere / "cache.db")
        assert removed("latest", cache_folder=elsewhere) == 1
        assert self.answers(elsewhere) == []

    def test_without_them_the_runs_go_all_the_same(
        self, tmp_path: Path, asking: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        asking("tides")
        with closing(sqlite3.connect(tmp_path / ".geval" / "cache.db")) as connection, connection:
            connection.execute("PRAGMA user_version = 99")
        self.remove(tmp_path, "latest")
        told = capsys.readouterr()
        assert json.loads(told.out)["answers_removed"] is None
        assert "was written by a newer geval; cached answers stay" in told.err
        with open_runs(tmp_path / ".geval", {}) as runs:
            assert runs.runs() == []


def test_without_a_terminal_nothing_is_removed_unasked(tmp_path: Path) -> None:
    stored(tmp_path, "a")
    refused = run_geval("rm", "latest", cwd=tmp_path)
    assert (refused.code, "add --yes" in refused.stderr) == (2, True)
    assert run_geval("rm", "latest", "--yes", cwd=tmp_path).code == 0
    assert "no runs yet" in run_geval("list", cwd=tmp_path).stdout


def test_a_list_that_nobody_reads_keeps_no_run_from_going(tmp_path: Path) -> None:
    stored(tmp_path, "a")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run_geval("rm", "latest", "--yes", cwd=tmp_path, streams={"stdout": writing}).code == 0
    finally:
        os.close(writing)
    assert TestRemove.left(tmp_path) == []


def test_the_commands_of_a_repository_share_one_state(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    write_config(tmp_path, "config.json", [*rows_of("a"), {"vars": {"x": "b"}, "assert": checks("a")}])
    first = run_geval("run", "config.json", "--fail-fast", "-j", "1", cwd=tmp_path)
    assert "note: created .geval here for runs and cached answers" in first.stderr
    below = run_geval("run", "../config.json", "--retry-errors", cwd=tmp_path / "sub")
    assert (below.code, "resuming run <ID>" in below.stderr, "note:" in below.stderr) == (1, True, False)
    assert not (tmp_path / "sub" / ".geval").exists()
    listed = run_geval("list", "--json", cwd=tmp_path / "sub", env=clean_environment())
    assert json.loads(listed.stdout)["total"] == 1


@pytest.mark.parametrize("planted", ["above", "a link to another folder"])
def test_a_stranger_s_state_is_not_used(planted: str, tmp_path: Path) -> None:
    home = tmp_path / ".geval"
    home.mkdir()
    (tmp_path / "sub").mkdir()
    if planted == "above":
        (tmp_path / ".git").mkdir()
    else:
        (tmp_path / "sub" / ".git").mkdir()
        (tmp_path / "sub" / ".geval").symlink_to(home)
    write_config(tmp_path / "sub", "config.json", rows_of("a"))
    done = run_geval("run", "config.json", "--untrusted", cwd=tmp_path / "sub")
    assert "may have come with it and is not used" in done.stderr
    assert list(home.iterdir()) == []


def test_a_run_is_compared_with_its_baseline_or_names_the_command(tmp_path: Path) -> None:
    def run(*options: str, good: int) -> str:
        rows = [{"vars": {"x": number}, "assert": checks("a")} for number in range(20)]
        prompts = [f"{{{{ x }}}}: {{{{ 'a' if x < {good} else 'b' }}}}"]
        write_config(tmp_path, "config.json", rows, prompts=prompts)
        env = clean_environment(COLUMNS="80")
        return run_geval("run", "config.json", *options, cwd=tmp_path, env=env).stdout

    assert "geval compare" not in run(good=18)
    last = run(good=16).splitlines()[-1]
    assert last == " next: geval show --case 17 · geval compare latest~1 latest · geval view"
    run("--baseline", "none", good=3)
    text = run("--baseline", "latest~1", good=4)

    assert " This run is worse than the baseline latest~1: " in text
    assert "80 % to 20 % (-60 points" in " ".join(text.split())
    assert text.index("of 20 failed") < text.index(" This run is worse") < text.index(" FAILED ")
    assert re.search(r"^ 12 broken, 0 fixed · more: geval compare <ID> latest$", text, re.MULTILINE)
    assert "compare latest~1 latest" not in text
    assert " A → B" not in text
    with_all = run("--baseline", "latest", "-v", good=3)
    assert " A → B" in with_all
    assert "This run is" not in with_all


@pytest.mark.parametrize(
    ("rows", "prompts", "told"),
    [
        (range(20), 1, []),
        (
            range(1, 21),
            1,
            ["1 test of this run is not in the baseline", "1 test of the baseline is not in this run"],
        ),
        (range(30), 1, ["10 tests of this run are not in the baseline"]),
        (range(15), 1, ["5 tests of the baseline are not in this run"]),
        (range(20), 2, ["1 column of this run is not compared: second \N{MULTIPLICATION SIGN} echo"]),
    ],
    ids=["the same", "one replaced", "more tests", "fewer tests", "one more prompt"],
)
def test_beside_a_baseline_a_run_tells_what_no_gate_compares(
    tmp_path: Path, rows: range, prompts: int, told: list[str]
) -> None:
    def run(*options: str, rows: range, prompts: int) -> Finished:
        tests = [{"vars": {"x": number}, "assert": checks("a")} for number in rows]
        names = [{"id": name, "raw": f"{name}: {{{{ x }}}} a"} for name in ("first", "second")[:prompts]]
        gates = {"gates": ["pass_rate.delta >= 0 vs baseline"]}
        write_config(tmp_path, "config.json", tests, prompts=names, **gates)
        return run_geval("run", "config.json", *options, cwd=tmp_path, env=clean_environment(COLUMNS="120"))

    run("--baseline", "none", rows=range(20), prompts=1)
    done = run("--baseline", "latest", rows=rows, prompts=prompts)
    assert done.code == 0
    assert re.findall(r"^ note +(.*)$", done.stdout, re.MULTILINE) == told


@pytest.mark.parametrize(
    "words",
    [
        ("show", "r.json", "-o"),
        ("show", "r.json", "--failed", "-o"),
        ("export", "run", "r.json", "-o"),
        ("judge", "r.json", "-o"),
        ("judge", "r.json", "--plan", "-o"),
        ("run", "config.json", "--baseline", "r.json", "-o"),
        ("run", "config.json", "--filter-failing", "r.json", "-o"),
        ("run", "config.json", "--baseline", "r.json", "--log-file"),
        ("compare", "latest", "r.json", "-o"),
    ],
)
def test_a_results_file_that_is_read_is_not_replaced(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "r.json"
    run_id = stored(tmp_path, "one a", "two b")
    assert run_geval("export", "run", run_id, "-o", "r.json", cwd=tmp_path).code == 0
    before = file.read_bytes()
    done = run_geval(*words, "./r.json", cwd=tmp_path)
    assert (done.code, "cannot write to r.json: it is " in done.stderr) == (2, True), done.stderr
    assert file.read_bytes() == before

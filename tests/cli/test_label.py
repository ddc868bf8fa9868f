"""`geval label` at a real terminal: keys, notes, Ctrl-C, two people at once, hostile outputs, and files of labels."""

import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.cells import cell_len
from support.geval_command import clean_environment, geval_at_terminal, run_geval
from support.sample_run import COLUMNS, make_case, make_judged
from support.stored_runs import HOSTILE, store_judged_run

from geval_cli.cli.arguments import parse_option
from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.trust.agreement import agree
from geval_cli.extras.trust.commands.label import run_label
from geval_cli.extras.trust.labels import draw, read_labels
from geval_cli.extras.trust.options import LabelCommand
from geval_cli.records import RunRecord, RunStatus, RunSummary, Status
from geval_cli.runs.options import Option
from geval_cli.store.runs import RunStore

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROMPT = "q quit"


def label(folder: Path, *arguments: str, columns: int = 80, **env: str) -> "pexpect.spawn[str]":
    environ = clean_environment(TERM="xterm-256color", **env)
    return geval_at_terminal("label", *arguments, cwd=folder, env=environ, dimensions=(40, columns))


def finish(child: "pexpect.spawn[str]") -> tuple[str, int]:
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus is not None
    return ESCAPE.sub("", child.before or ""), child.exitstatus


def press(child: "pexpect.spawn[str]", *keys: str) -> str:
    """Press keys, each when the terminal asks for one; what was shown before the last."""
    for key in keys:
        child.expect_exact(PROMPT)
        child.send(key)
    return ESCAPE.sub("", child.before or "")


def rows(folder: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(folder / ".geval" / "geval.db")) as connection:
        found = connection.execute("SELECT label FROM labels ORDER BY rowid").fetchall()
    return [json.loads(text) for (text,) in found]


def store(
    folder: Path,
    outputs: Iterator[str] | list[str],
    run_id: str = "run-1",
    score: float | None = 0.5,
    **detail: Any,
) -> str:
    """A stored run with an output for each text, each judged 0.5 of 1 on `tone`; None: the judge broke."""
    runs = RunStore.open(folder / ".geval")
    run = RunRecord(
        run_id,
        RunStatus.RUNNING,
        "2026-11-22T10:00:00+00:00",
        None,
        None,
        "0",
        "c.yaml",
        "d",
        {},
        columns=COLUMNS,
    )
    runs.begin(run)
    last = None
    for number, text in enumerate(outputs):
        judged = make_judged(
            Status.ERROR if score is None else Status.PASSED,
            score,
            metric="tone",
            detail={"judge": "openai:gpt-4.1", "criteria": "Be kind.", **detail},
        )
        case = make_case(
            number,
            id=f"{number}.0.0",
            output=text,
            assertions=(judged,),
            named_scores={} if score is None else {"tone": score},
            vars={},
        )
        last = runs.add(run.id, case)
    if last is not None:
        last.result()
    runs.finish(run, RunSummary())
    runs.close()
    return run_id


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    store_judged_run(tmp_path)
    return tmp_path


class TestKeys:
    def test_each_key_does_what_the_line_says(self, judged: Path) -> None:
        child = label(judged, "--annotator", "anna")
        shown = press(child, "p")
        assert "1 of 4   coherence   #1 test one" in shown
        assert "0 of 4 outputs labelled by anna" in shown
        assert "look for" in shown
        assert "a fine answer about one" in shown
        press(child, "n")
        child.expect_exact("note: ")
        child.sendline("zu kurz, schön")
        child.expect_exact("now rate it")
        child.send("f")
        press(child, "b")
        assert "you said fail before" in press(child, "p")
        press(child, "s")
        said, code = finish_after(child, "q")
        assert code == 0
        assert "labelled 3 now, 2 of 4 in all" in said
        first, second = rows(judged)
        assert (first["label"], second["label"], second["note"]) == ("pass", "pass", "zu kurz, schön")
        assert first["annotator"] == "anna"
        assert first.keys() >= {"id", "metric", "run_id", "output_sha256", "prompt", "provider", "repeat"}

    def test_outputs_of_two_runs_are_rated_side_by_side_and_each_label_is_kept_for_its_run(
        self, tmp_path: Path
    ) -> None:
        texts = {"run-a": "of the earlier one", "run-b": "of the later one"}
        for name, text in texts.items():
            store(tmp_path, [f"answer {number} {text}" for number in range(4)], name)
        words = ("run-a,run-b", "--draw", "2", "--seed", "7", "--annotator", "anna")
        child = label(tmp_path, *words)
        shown = [press(child, "p") for _ in range(3)]
        child.expect_exact(PROMPT)
        shown.append(ESCAPE.sub("", child.before or ""))
        child.send("f")
        said, code = finish(child)
        assert code == 0
        assert "geval compare run-a run-b --labels kept" in said
        found = rows(tmp_path)
        assert sorted(row["run_id"] for row in found) == ["run-a", "run-a", "run-b", "run-b"]
        assert len({row["id"] for row in found}) == 2
        assert [row["label"] for row in found] == ["pass"] * 3 + ["fail"]
        for row, screen in zip(found, shown, strict=True):
            assert f"answer {row['id'][0]} {texts[row['run_id']]}" in screen
            assert "run-a" not in screen.replace("run-a,run-b", "")
        done = run_geval("label", *words, "--export", "sheet.jsonl", cwd=tmp_path)
        assert (done.code, done.stderr) == (0, "")
        assert run_geval("label", "run-a,run-b,run-c", cwd=tmp_path).code == 2

    def test_what_to_label_next_is_drawn_and_kept_with_its_weight(self, judged: Path) -> None:
        child = label(judged, "latest", "--next", "3", "--annotator", "anna")
        press(child, "p", "f", "q")
        shown, code = finish(child)
        assert code == 0
        assert "labelled 2 now, 2 of 3 in all" in shown
        assert "--next 1 --annotator anna continues" in " ".join(shown.split())
        found = rows(judged)
        assert {row["draw"] for row in found} == {"next 1 after 0, seed 0"}
        assert all(row["weight"] >= 1 for row in found)

    def test_keys_that_mean_nothing_label_nothing(self, judged: Path) -> None:
        child = label(judged)
        child.expect_exact(PROMPT)
        child.send("x5\x1b[A\x1b[B\x1bOPé海\t")
        child.send("q")
        said, code = finish(child)
        assert (code, rows(judged)) == (0, [])
        assert "0 of 4 in all" in said

    def test_the_scale_s_numbers_are_keys(self, judged: Path) -> None:
        child = label(judged, "--scale", "1,5", "--annotator", "anna")
        press(
            child,
            "7",
        )
        child.send("4")
        press(child, "2")
        finish_after(child, "q")
        assert [(row["label"], row["scale"]) for row in rows(judged)] == [(4, [1, 5]), (2, [1, 5])]

    def test_a_long_scale_is_typed(self, judged: Path) -> None:
        child = label(judged, "--scale", "0,100", "--annotator", "anna")
        child.expect_exact(PROMPT)
        child.send("8")
        child.expect_exact("then Enter: ")
        child.sendline("5")
        child.expect_exact("85")
        press(child, "9")
        child.expect_exact("then Enter: ")
        child.sendline("99")
        child.expect_exact("999 is not a label from 0 to 100")
        child.send("q")
        finish(child)
        assert [row["label"] for row in rows(judged)] == [85]

    @pytest.mark.parametrize("end", ["\x03", "q"])
    def test_the_command_that_continues_has_the_options_that_were_given(self, judged: Path, end: str) -> None:
        words = ("--draw", "99", "--seed", "7", "--scale", "1,5", "--annotator", "anna b", "--home", ".geval")
        child = label(judged, *words)
        shown, _ = finish_after(child, end)
        continues = "--draw 99 --seed 7 --scale 1,5 --annotator 'anna b' --home .geval"
        assert f"{continues}  continues where you stopped" in shown

    @pytest.mark.parametrize("end", ["\x04", "q"])
    def test_the_terminal_is_left_as_it_was(self, judged: Path, end: str) -> None:
        script = f"{sys.executable} -m geval_cli label; stty -a | tr ' ' '\\n' | grep -x -e icanon -e echo"
        child = pexpect.spawn(
            "sh",
            ["-c", script],
            cwd=str(judged),
            env=clean_environment(TERM="xterm"),
            encoding="utf-8",
            timeout=60,
        )
        child.expect_exact(PROMPT)
        child.send(end)
        said, _ = finish(child)
        assert said.split()[-2:] == ["icanon", "echo"]


def finish_after(child: "pexpect.spawn[str]", key: str) -> tuple[str, int]:
    press(child, key)
    return finish(child)


class TestBlindness:
    def test_nothing_of_the_judge_is_shown(self, tmp_path: Path) -> None:
        store(tmp_path, ["fine"])
        shown, _ = finish_after_shown(label(tmp_path))
        assert "0.5" not in shown
        assert "judge" not in shown.split("look for")[1]

    def test_unless_it_is_asked_for(self, tmp_path: Path) -> None:
        store(tmp_path, ["fine"])
        shown, _ = finish_after_shown(label(tmp_path, "--show-verdict"))
        assert "judge     passed 0.50" in shown


def finish_after_shown(child: "pexpect.spawn[str]") -> tuple[str, int]:
    shown = press(child, "q")
    said, code = finish(child)
    return shown + said, code


class TestInterruption:
    def test_ctrl_c_loses_nothing_and_the_next_session_goes_on(self, judged: Path) -> None:
        child = label(judged, "--annotator", "anna")
        press(child, "p", "f")
        child.expect_exact(PROMPT)
        child.sendintr()
        said, code = finish(child)
        assert code == 130
        assert "labelled 2 now, 2 of 4 in all" in said
        assert len(rows(judged)) == 2
        child = label(judged, "--annotator", "anna")
        assert "3 of 4" in press(child, "p")
        press(child, "p")
        said, code = finish(child)
        assert "4 of 4 in all" in said
        assert "--review" in said

    def test_a_killed_session_keeps_every_label(self, judged: Path) -> None:
        child = label(judged)
        press(child, "p", "p")
        child.expect_exact(PROMPT)
        child.kill(9)
        child.close()
        assert len(rows(judged)) == 2

    def test_two_sessions_of_one_person_share_the_work_and_two_people_do_not(self, judged: Path) -> None:
        one, two = label(judged, "--annotator", "anna"), label(judged, "--annotator", "anna")
        ben = label(judged, "--annotator", "ben")
        one.expect_exact(PROMPT)
        two.expect_exact(PROMPT)
        press(ben, "f")
        one.send("p")
        one.expect_exact(PROMPT)
        two.send("s")
        two.expect_exact(PROMPT)  # the second output, which no one of that name has labelled yet
        one.send("p")
        assert "3 of 4" in press(one, "q")
        two.send("s")
        assert "3 of 4" in press(two, "q")
        press(ben, "q")
        for child in (one, two, ben):
            finish(child)
        assert sorted((row["annotator"], row["label"]) for row in rows(judged)) == [
            ("anna", "pass"),
            ("anna", "pass"),
            ("ben", "fail"),
        ]


class TestShown:
    @pytest.mark.parametrize("columns", [80, 200])
    def test_hostile_outputs_steer_nothing(self, tmp_path: Path, columns: int) -> None:
        store(tmp_path, list(HOSTILE.values()))
        child = label(tmp_path, columns=columns, NO_COLOR="1")
        shown = ""
        for _ in HOSTILE:
            child.expect_exact(PROMPT)
            shown += child.before or ""
            child.send("p")
        _, code = finish(child)
        assert code == 0
        assert not {"\x07", "\u202e", "\x00", "\u200b"} & set(shown)
        assert ESCAPE.sub("", shown) == shown
        assert "שלום" in shown
        assert max(cell_len(line) for line in re.split(r"[\r\n]+", shown)) <= columns
        assert len(rows(tmp_path)) == len(HOSTILE)

    def test_a_huge_output_is_cut_and_shown_whole_when_asked(self, tmp_path: Path) -> None:
        store(tmp_path, ["\n".join(f"line {number}" for number in range(500))])
        child = label(tmp_path)
        assert "line 499" not in press(child, "m")
        child.expect_exact("line 499")
        child.send("q")
        finish(child)

    def test_ten_thousand_outputs_are_drawn_from_quickly(self, tmp_path: Path) -> None:
        store(tmp_path, (f"text {number}" for number in range(10_000)))
        child = label(tmp_path, "--draw", "100", "--seed", "7", "--home", ".geval")
        assert "0 of 100 outputs labelled" in press(child, "p")
        said, _ = finish_after(child, "q")
        assert "1 of 100 in all" in said
        assert said.count(" --home .geval  ") == 3  # continues, shows where, shows how well
        drawn = draw([f"{number}.0.0" for number in range(10_000)], 1, seed=7)
        assert [(row["id"], row["draw"]) for row in rows(tmp_path)] == [(drawn[0], "seed 7")]


class TestWithoutTerminal:
    def test_nobody_can_be_asked(self, judged: Path) -> None:
        finished = run_geval("label", cwd=judged)
        assert finished.code == 2
        assert "geval label needs a terminal" in finished.stderr
        elsewhere = run_geval("label", "--home", ".geval", "--draw", "2", cwd=judged)
        assert "--draw 2 --home .geval --export sheet.csv" in elsewhere.stderr
        assert "--import sheet.csv --home .geval" in elsewhere.stderr
        assert "--export sheet.csv" in finished.stderr
        finished = run_geval("label", "--next", "3", "--scale", "1,5", cwd=judged)
        assert " --next 3 --scale 1,5 --export sheet.csv" in finished.stderr

    @pytest.mark.parametrize("ending", ["csv", "jsonl"])
    def test_a_sheet_is_exported_filled_in_and_imported(self, judged: Path, ending: str) -> None:
        sheet, home = judged / f"sheet.{ending}", judged / ".geval"
        run_label("latest", LabelCommand(export=sheet, home=home, scale=(1.0, 5.0)))
        text = sheet.read_text(encoding="utf-8-sig")
        assert "a fine answer about one" in text
        assert "0.7" not in text
        filled = text.replace('"coherence",,', '"coherence",4,').replace('"label":null', '"label":4')
        sheet.write_text(filled, encoding="utf-8")
        run_label("latest", LabelCommand(read=sheet, home=home, annotator="anna"))
        assert [(row["label"], row["annotator"], row["scale"]) for row in rows(judged)] == [
            (4, "anna", [1, 5])
        ] * 4
        exported = judged / f"labels.{ending}"
        run_label("latest", LabelCommand(export=exported, home=home))
        assert read_labels(exported).labels[0].marks == {"anna": 0.75}
        assert "fine answer" not in exported.read_text(encoding="utf-8-sig")

    def test_notes_of_several_people_come_back(self, judged: Path) -> None:
        home, file = judged / ".geval", judged / "labels.csv"
        file.write_text(
            "id,metric,annotator,label,note\n0.0.0,coherence,anna,pass,good\n0.0.0,coherence,ben,fail,=bad\n",
            encoding="utf-8",
        )
        run_label("latest", LabelCommand(read=file, home=home))
        with pytest.raises(ConfigError) as caught:  # somebody may have filled it in
            run_label("latest", LabelCommand(export=file, home=home))
        assert "--export does not overwrite" in caught.value.problems[0].message
        again = judged / "again.csv"
        run_label("latest", LabelCommand(export=again, home=home))
        run_label("latest", LabelCommand(read=again, home=home))
        assert [(row["annotator"], row["note"]) for row in rows(judged)] == [
            ("anna", "good"),
            ("ben", "=bad"),
        ]

    def test_labels_of_another_text_are_refused(self, judged: Path) -> None:
        file = judged / "labels.jsonl"
        row = {"id": "0.0.0", "metric": "coherence", "label": 1, "output": "another text"}
        file.write_text(json.dumps(row), encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            run_label("latest", LabelCommand(read=file, home=judged / ".geval"))
        assert "made for another output" in caught.value.problems[0].message
        assert rows(judged) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"metrics": ("coherenze",)}, "no output of this run has the metric `coherenze`"),
            ({"review": True}, "no labels are kept for run"),
            ({"review": True, "export": Path("x.csv")}, "--export and --review cannot be combined"),
            ({"as_json": True}, "--json needs --review"),
        ],
    )
    def test_what_cannot_be_done_is_said(self, judged: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError) as caught:
            run_label("latest", LabelCommand(home=judged / ".geval", **options))
        assert message in caught.value.message

    def test_one_metric_has_one_scale(self, judged: Path) -> None:
        home, file = judged / ".geval", judged / "labels.jsonl"
        file.write_text(
            '{"id": "0.0.0", "metric": "coherence", "label": 1, "annotator": "a"}', encoding="utf-8"
        )
        run_label("latest", LabelCommand(read=file, home=home))
        file.write_text(
            '{"id": "1.0.0", "metric": "coherence", "label": 3, "scale": [1, 5]}', encoding="utf-8"
        )
        for options in (LabelCommand(read=file, home=home), LabelCommand(scale=(1.0, 5.0), home=home)):
            with pytest.raises(UsageError) as caught:
                run_label("latest", options)
            assert "labels of `coherence` from 0 to 1 are kept" in caught.value.message

    @pytest.mark.parametrize("text", ["5", "5,1", "1,1", "a,b", "1,2,3", "1..5", "nan,5", ""])
    def test_a_scale_has_two_ends(self, text: str) -> None:
        option = Option("--scale", syntax="LOW,HIGH")
        with pytest.raises(UsageError) as caught:
            parse_option(option, None, text)
        assert "lowest and the highest label" in caught.value.message
        assert parse_option(option, None, "1, 5") == parse_option(option, None, "1-5") == (1.0, 5.0)

    @pytest.mark.parametrize("count", [{"draw": 5}, {"next": 5}])
    def test_nothing_is_drawn_of_what_no_judge_scored(self, count: dict[str, Any], tmp_path: Path) -> None:
        """An empty sheet, or a session without an output, would say that all is done."""
        store(tmp_path, ["one", "two", "three"], score=None)
        home, sheet = tmp_path / ".geval", tmp_path / "sheet.csv"
        with pytest.raises(UsageError, match="has a score that labels could be compared with"):
            run_label("latest", LabelCommand(export=sheet, home=home, **count))
        assert not sheet.exists()

    def test_a_sheet_for_a_person_has_the_name_in_every_row(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store(tmp_path, ["one", "two"])
        home, sheet = tmp_path / ".geval", tmp_path / "sheet.jsonl"
        run_label("latest", LabelCommand(export=sheet, home=home, annotator=" anna "))
        given = [json.loads(line) for line in sheet.read_text(encoding="utf-8").splitlines()]
        assert [row["annotator"] for row in given] == ["anna", "anna"]
        sheet.write_text("".join(json.dumps({**row, "label": 1}) + "\n" for row in given), encoding="utf-8")
        run_label("latest", LabelCommand(read=sheet, home=home))
        run_label("latest", LabelCommand(read=sheet, home=home, annotator="ben"))
        assert [row["annotator"] for row in rows(tmp_path)] == ["anna", "anna"]
        for name, count in (("anna", 2), ("ben", 0)):
            path = tmp_path / f"{name}.jsonl"
            run_label("latest", LabelCommand(export=path, home=home, annotator=name))
            assert f"wrote {count} label" in capsys.readouterr().out


class TestAfterwards:
    @pytest.fixture
    def labelled(self, tmp_path: Path) -> Path:
        store_judged_run(tmp_path)
        file = tmp_path / "labels.jsonl"
        given = [("0.0.0", "pass", None), ("1.0.0", "fail", "wrong [b] \x1b[31m"), ("0.0.1", "pass", None)]
        lines = [
            json.dumps({"id": name, "metric": "coherence", "label": mark, "annotator": "anna", "note": note})
            for name, mark, note in given
        ]
        file.write_text("\n".join(lines), encoding="utf-8")
        run_label("latest", LabelCommand(read=file, home=tmp_path / ".geval"))
        return tmp_path

    def test_disagreements_come_first(self, labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
        capsys.readouterr()
        run_label("latest", LabelCommand(review=True, as_json=True, home=labelled / ".geval"))
        found = json.loads(capsys.readouterr().out)
        assert (found["kind"], found["schema_version"]) == ("label_review", 1)
        assert [(row["id"], row["is_flipped"]) for row in found["rows"]] == [
            ("1.0.0", True),
            ("0.0.0", False),
            ("0.0.1", False),
        ]
        assert found["rows"][0]["human"] == 0.0

    @pytest.mark.parametrize("columns", ["80", "200"])
    def test_the_table_fits(self, labelled: Path, columns: str) -> None:
        finished = run_geval("label", "--review", cwd=labelled, env=clean_environment(COLUMNS=columns))
        assert finished.code == 0
        assert "3 labels: the judge and the label disagree on 1 verdict" in finished.stdout
        assert finished.stdout.index("1.0.0") < finished.stdout.index("0.0.0")
        assert "\x1b" not in finished.stdout
        assert max(map(len, finished.stdout.splitlines())) <= int(columns)

    def test_agree_finds_them(self, labelled: Path) -> None:
        finished = run_geval("agree", "--run", "latest", "--json", cwd=labelled)
        assert finished.code == 0, finished.stderr
        found = json.loads(finished.stdout)
        assert (found["matched"], found["annotators"]) == (3, ["anna"])
        again = agree(None, "latest", home=labelled / ".geval")
        assert (again.matched, again.annotators) == (3, ("anna",))

    def test_labels_outlive_their_run_unless_told(self, labelled: Path) -> None:
        run_id = rows(labelled)[0]["run_id"]
        removed = run_geval("rm", run_id, "--yes", cwd=labelled)
        assert removed.code == 0
        assert "kept 3 human labels" in removed.stderr
        exported = run_geval("label", run_id, "--export", "kept.jsonl", cwd=labelled)
        assert exported.code == 0, exported.stderr
        assert len(read_labels(labelled / "kept.jsonl").labels) == 3
        gone = run_geval("rm", run_id, "--labels", "--yes", "--json", cwd=labelled)
        assert json.loads(gone.stdout)["labels"] == {"removed": 3, "kept": 0}
        assert rows(labelled) == []

    def test_they_go_with_their_run_when_told(self, labelled: Path) -> None:
        removed = run_geval("rm", "latest", "--labels", "--yes", cwd=labelled)
        assert removed.stdout.endswith("and 3 labels\n")
        assert rows(labelled) == []

    def test_a_results_file_can_be_labelled(self, labelled: Path) -> None:
        run_geval("show", "latest", "-o", "results.json", cwd=labelled)
        child = label(labelled, "results.json", "--annotator", "ben")
        press(child, "p")
        finish_after(child, "q")
        assert [row["annotator"] for row in rows(labelled)].count("ben") == 1


def test_a_draw_is_the_same_everywhere_and_a_larger_one_holds_it() -> None:
    ids = [f"{number}.0.0" for number in range(1000)]
    assert draw(ids, 5, seed=7) == draw(iter(ids[::-1]), 5, seed=7)
    assert draw(ids, 5, seed=7) == draw(ids, 50, seed=7)[:5]
    assert draw(ids, 5, seed=7) != draw(ids, 5, seed=8)
    assert draw(ids, 3, seed=7) == ["388.0.0", "577.0.0", "158.0.0"]
    assert sorted(draw(ids)) == sorted(ids)
    assert draw([], 5) == []

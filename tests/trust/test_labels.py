"""Files of labels: what is read, and what their writers are told."""

import json
from pathlib import Path

import pytest

from geval_cli.errors import ConfigError
from geval_cli.extras.trust.labels import LabelFile, read_labels, write_labels
from geval_cli.report.sanitize import output_digest
from geval_cli.source.problems import render_problems

DIGEST = "ab" * 32


def read(folder: Path, text: str | bytes, name: str = "labels.jsonl") -> LabelFile:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_labels(path)


def problems_of(folder: Path, text: str | bytes, name: str = "labels.jsonl") -> list[str]:
    """`line:column message | hint` of every problem."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text, name)
    assert render_problems(caught.value.problems)
    return [
        f"{item.location.line}:{item.location.column} {item.message} | {item.hint}"
        if item.location
        else f"{item.message} | {item.hint}"
        for item in caught.value.problems
    ]


def rows(*given: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in given)


class TestReading:
    def test_labels_are_brought_to_0_1_by_their_scale(self, tmp_path: Path) -> None:
        text = rows(
            {"id": "0.0.0", "metric": "coherence", "label": 4, "scale": [1, 5]},
            {"id": "0.0.0", "metric": "safe", "label": "fail"},
            {"id": 1, "metric": "safe", "label": " Pass "},
            {"id": "2", "metric": "safe", "label": True},
            {"id": "3", "metric": "safe", "label": 0.25},
        )
        found = read(tmp_path, text)
        assert [label.human for label in found.labels] == [0.75, 0.0, 1.0, 1.0, 0.25]
        assert found.scales == {"coherence": (1, 5), "safe": (0, 1)}
        assert found.labels[2].item.id == "1"

    def test_annotators_in_one_row_or_in_several_are_one_label(self, tmp_path: Path) -> None:
        item = {"id": "a", "metric": "m", "scale": [1, 5]}
        several = rows(
            {**item, "label": 5, "annotator": "anna", "score": 0.5},
            {**item, "label": 2, "annotator": "ben", "doc": "d"},
        )
        together = rows({**item, "labels": {"anna": 5, "ben": 2, "eve": None}, "doc": "d", "score": 0.5})
        for text in (several, together):
            (label,) = read(tmp_path, text).labels
            assert (label.marks, label.human) == ({"anna": 1.0, "ben": 0.25}, 0.625)
            assert (label.doc, label.score) == ("d", 0.5)

    def test_a_table_says_the_same_as_lines_of_json(self, tmp_path: Path) -> None:
        lines = rows(
            {
                "description": 'say "hi", you',
                "vars": {"q": "=1+1\n- x"},
                "metric": "ø",
                "label": 4,
                "scale": [1, 5],
                "repeat": 2,
                "area": "north",
                "score": None,
            }
        )
        table = (
            "\ufeffdescription,var q,metric,label,scale,repeat,area,score\r\n"
            '"say ""hi"", you","\'=1+1\n- x",ø,4,1-5,2,north,\r\n\r\n'
        )
        of_lines, of_table = read(tmp_path, lines), read(tmp_path, table, "labels.csv")
        for found in (of_lines, of_table):
            (label,) = found.labels
            assert label.item.variables == (("q", "=1+1\n- x"),)
            assert (label.human, label.item.repeat, label.columns) == (0.75, 2, {"area": "north"})
            assert (found.has_scores, label.score) == (True, None)
        assert of_lines.labels[0].item == of_table.labels[0].item

    @pytest.mark.parametrize("written", ["1-5", "[1, 5]", "1,5", "1..5", " 1 to 5 ", "1.0-5.0"])
    def test_scales_of_a_table(self, tmp_path: Path, written: str) -> None:
        found = read(tmp_path, f'id,metric,label,scale\na,m,2,"{written}"\n', "labels.csv")
        assert found.scales == {"m": (1, 5)}

    @pytest.mark.parametrize("mark", [";", "\t"])
    def test_a_table_of_a_spreadsheet_with_decimal_commas(self, mark: str, tmp_path: Path) -> None:
        lines = ["id|metric|label|score|var a, b", "a|m|0,5|1,0|1,5", "b|m|1|0.25|x"]
        text = "\ufeff" + "\r\n".join(lines).replace("|", mark) + "\r\n"
        found = read(tmp_path, text, "labels.csv").labels
        assert [(label.human, label.score) for label in found] == [(0.5, 1), (1, 0.25)]
        assert found[0].item.variables == (("a, b", "1,5"),)

    def test_rows_that_nobody_labelled_yet_are_counted(self, tmp_path: Path) -> None:
        found = read(tmp_path, "id,metric,label\na,m,1\nb,m,\nc,m, \n", "labels.csv")
        assert (len(found.labels), found.unlabelled) == (1, 2)

    def test_the_text_of_an_output_says_which_one_it_was(self, tmp_path: Path) -> None:
        text = rows(
            {"output": "two words", "metric": "m", "label": 1},
            {"id": "x", "output_sha256": f"sha256:{DIGEST.upper()}", "metric": "m", "label": 1},
        )
        first, second = read(tmp_path, text).labels
        assert (first.item.output_sha256, first.words) == (output_digest("two words"), 2)
        assert second.item.output_sha256 == DIGEST

    def test_line_ends_and_line_separators_within_texts(self, tmp_path: Path) -> None:
        row = '{"id": "a\u2028b", "metric": "m", "label": 1, "note": "x"}'
        assert read(tmp_path, f"\ufeff{row}\r\n\r\n").labels[0].item.id == "a\u2028b"


ITEM = '"id": "a", "metric": "m"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1 the file is empty"),
        ("\ufeff \n", "1:1 the file is empty"),
        ("[1]\n", "1:1 a label row must be a JSON object | write one object per line"),
        ('{"id": 1', "1:9 a comma or `}` is missing here"),
        ('\n{"id": "a", "id": "b", "metric": "m", "label": 1}', "2:13 the key `id` is given twice"),
        (f'{{{ITEM}, "label": NaN}}', "1:37 a JSON value is missing here"),
        (f'{{{ITEM}, "label": 1e999}}', "1:37 this number is too large"),
        (f'{{{ITEM}, "label": {"9" * 4100}}}', "1:37 this number has more than 4000 digits"),
        (
            f'{{{ITEM}, "label": 1, "vars": {"[" * 200 + "]" * 200}}}',
            "1:148 nested more than 100 levels deep",
        ),
        (f'{{{ITEM}, "label": "4"}}', '1:37 a label must be a number, `pass` or `fail`, found "4"'),
        (f'{{{ITEM}, "label": [4]}}', "1:37 a label must be a number"),
        (
            f'{{{ITEM}, "label": 4}}',
            "1:37 the label 4 is not on the scale from 0 to 1 | add its scale",
        ),
        (
            f'{{{ITEM}, "label": 6, "scale": [1, 5]}}',
            "1:37 the label 6 is not on the scale from 1 to 5 | write a",
        ),
        (f'{{{ITEM}, "label": "pass", "scale": [1, 5]}}', '1:37 "pass" is not a label from 1 to 5'),
        (f'{{{ITEM}, "label": false, "scale": [1, 5]}}', "1:37 false is not a label from 1 to 5"),
        (f'{{{ITEM}, "label": 1, "scale": [5, 1]}}', "1:49 `scale` must be the lowest and the highest"),
        (f'{{{ITEM}, "label": 1, "scale": 5}}', "1:49 `scale` must be the lowest and the highest"),
        (f'{{{ITEM}, "label": 1, "labels": {{"b": 1}}}}', "1:40 a row has `label` or `labels`, not both"),
        (f'{{{ITEM}, "labels": [1, 2]}}', "1:38 `labels` must be an object, found [1,2] | write who"),
        (f'{{{ITEM}, "labels": {{"b": 7}}}}', "1:44 the label 7 is not on the scale"),
        (f'{{{ITEM}, "lable": 1}}', "1:28 unknown key `lable` | did you mean `label`?"),
        ('{"id": "a", "label": 1}', "1:1 this row has no metric"),
        ('{"metric": "m", "label": 1}', "1:1 this row does not identify an output"),
        ('{"id": [], "metric": "m", "label": 1}', "1:8 `id` must be a string or a whole number, found []"),
        ('{"id": "a", "metric": 3, "label": 1}', "1:23 `metric` must be a string, found 3"),
        (f'{{{ITEM}, "label": 1, "vars": "x"}}', "1:48 `vars` must be an object"),
        (f'{{{ITEM}, "label": 1, "repeat": 0}}', "1:50 `repeat` must be a whole number of at least 1"),
        (f'{{{ITEM}, "label": 1, "output_sha256": "abc"}}', "1:57 `output_sha256` is not a SHA-256"),
        (f'{{{ITEM}, "label": 1, "score": 4}}', "1:49 `score` must be a number from 0 to 1, found 4"),
        (f'{{{ITEM}, "label": 1, "score": "x"}}', "1:49 `score` must be a number from 0 to 1"),
        (f'{{{ITEM}, "label": null}}', "1:1 none of the 1 rows has a label yet"),
        (
            f'{{{ITEM}, "label": 1}}\n{{{ITEM}, "label": 0}}',
            "2:1 the label of `m` for this item is already in line 1",
        ),
        (
            f'{{{ITEM}, "labels": {{"b": 1}}}}\n{{{ITEM}, "label": 0, "annotator": "b"}}',
            "2:1 the label of `m` by `b` for this item is already in line 1",
        ),
        (
            f'{{{ITEM}, "label": 1, "annotator": "b"}}\n{{{ITEM}, "label": 0, "annotator": "b "}}',
            "2:1 the label of `m` by `b` for this item is already in line 1",
        ),
        (
            f'{{{ITEM}, "label": 1, "score": 1}}\n{{{ITEM}, "label": 0, "annotator": "b", "score": 0.5}}',
            "2:67 this item has another `score` in line 1: 1.0",
        ),
        (
            f'{{{ITEM}, "label": 1}}\n{{"id": "b", "metric": "m", "label": 4, "scale": [1, 5]}}',
            "2:49 the scale of `m` is 0 to 1 in line 1, but 1 to 5 here",
        ),
        (b'{"id": "\xff"}', "1:9 "),
    ],
)
def test_problems_of_lines(tmp_path: Path, text: str | bytes, expected: str) -> None:
    (found,) = problems_of(tmp_path, text)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id,metrik,label\na,m,1\n", "1:1 there is no column `metric` | did you mean `metric` by `metrik`?"),
        ("id,metric,metric,label\n", "1:1 the column `metric` occurs twice"),
        ("id,metric,label\na,m\n", "2:1 this row has 2 cells, but the header has 3"),
        ('id,metric,label,scale\n"a, b\nc",m,"7",1-5\n', "3:6 the label 7 is not on the scale from 1 to 5"),
        ("id,metric,label,scale\na,m,3,wide\n", "2:7 `scale` must be"),
        (
            "id,metric,label\na,m,4\n",
            "2:5 the label 4 is not on the scale from 0 to 1 | add a column `scale`",
        ),
        ("id,metric,label\na,m,maybe\n", '2:5 a label must be a number, `pass` or `fail`, found "maybe"'),
        ("id,metric,label\na,m,nan\n", '2:5 a label must be a number, `pass` or `fail`, found "nan"'),
        ('id,metric,label\n"a,m,1\n', "2:1 this line cannot be read"),
        ("id,metric,label\n", "1:1 there are no label rows"),
        ("id;metric;label\na;m\n", "2:1 this row has 2 cells, but the header has 3 | put text with `;` or"),
        ("id;metric;label\na;m;0,5,1\n", '2:5 a label must be a number, `pass` or `fail`, found "0,5,1"'),
        (
            "Id,Metric,Label\na,m,1\nb,m,0\n",
            "1:1 there is no column `metric` | did you mean `metric` by `Metric`?",
        ),
        ("id,metric,Label\na,m,1\nb,m,0\n", "1:1 unknown column `Label` | did you mean `label`?"),
    ],
)
def test_problems_of_tables(tmp_path: Path, text: str, expected: str) -> None:
    found = problems_of(tmp_path, text, "labels.csv")
    assert found[0].startswith(expected)


def test_a_problem_of_the_first_line_is_told_once(tmp_path: Path) -> None:
    for header in ("Id,Metric,Label", "id,metric,Label", "id,metrik,label"):
        assert len(problems_of(tmp_path, f"{header}\na,m,1\nb,m,0\n", "labels.csv")) == 1


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = rows({"id": "a", "metric": "m", "label": 4}, {"metric": "m"}, {"id": "a", "label": 1}) + "{\n"
    assert [problem.split()[0] for problem in problems_of(tmp_path, text)] == ["1:37", "2:1", "3:1", "4:2"]


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "labels.csv").write_text("id,metric,label\na,m,1\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_labels(tmp_path / "label.csv")
    assert "did you mean `labels.csv`?" in render_problems(caught.value.problems)
    with pytest.raises(ConfigError) as caught:
        read_labels(tmp_path / "labels.xlsx")
    assert "ends in .jsonl" in render_problems(caught.value.problems)
    with pytest.raises(ConfigError) as caught:
        read_labels(tmp_path)
    monkeypatch.setattr("geval_cli.extras.trust.labels.MAX_LABEL_BYTES", 10)
    with pytest.raises(ConfigError) as caught:
        read_labels(tmp_path / "labels.csv")
    assert "split it" in render_problems(caught.value.problems)


@pytest.mark.parametrize("name", ["sheet.csv", "sheet.jsonl"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    written = [
        {
            "id": "0.0.1",
            "metric": "m",
            "labels": {"anna": 3, "ben": 5},
            "scale": [1, 5],
            "vars": {"q": '=SUM(A1)\n=2, "quoted"', "n": 3},
            "output_sha256": DIGEST,
            "doc": "d",
        },
        {"id": "0.0.2", "metric": "m", "label": None, "scale": [1, 5]},
    ]
    write_labels(tmp_path / name, written)
    found = read_labels(tmp_path / name)
    (label,) = found.labels
    assert (label.marks, found.unlabelled, label.doc) == ({"anna": 0.5, "ben": 1.0}, 1, "d")
    assert label.item.variables == (("n", "3"), ("q", '=SUM(A1)\n=2, "quoted"'))
    assert not list(tmp_path.glob(".*"))

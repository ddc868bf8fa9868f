"""`geval import run`: results files that become stored runs, and what is said of those that cannot."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.loopback import LoopbackServer, chat_reply
from support.product import Product
from support.realistic_runs import COLUMNS, Shape, realistic_report

from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.results_files import read_importable, read_results_file, store_run
from geval_cli.records import (
    RecordedTest,
    Role,
    RunSummary,
    Status,
    case_result_from_json,
    run_record_from_json,
)
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport, write_results_file
from geval_cli.runs.stored import load_report, named_report
from geval_cli.store.runs import RunStore

_ENDINGS = ("json", "jsonl", "parquet")
_CASE = {
    "id": "0.0.0",
    "test_index": 0,
    "repeat_index": 0,
    "column": 0,
    "description": None,
    "prompt": {"id": "p", "label": "p", "rendered": "Say a"},
    "provider": {"id": "echo", "label": "echo"},
    "vars": {"x": "a"},
    "output": "a",
    "status": "passed",
    "score": 1.0,
}
_RUN = {
    "id": "20260101-000000-abcd",
    "status": "running",
    "started_at": "2026-01-01T00:00:00.000+00:00",
    "finished_at": None,
    "duration_ms": None,
    "tool_version": "0",
    "config_path": "c.yaml",
    "config_digest": "0",
    "config": {"providers": [{"id": "openai:m", "config": {"apiKey": "sk-abcdefgh1234"}}]},
}
_ROW = {
    "testIdx": 1,
    "promptIdx": 0,
    "success": False,
    "score": 0.5,
    "prompt": {"raw": "Say b", "label": "say"},
    "provider": {"id": "openai:m", "label": ""},
    "vars": {"x": "b"},
    "response": {"output": "b!"},
    "namedScores": {"m": 0.5},
    "latencyMs": 12,
    "cost": 0.25,
    "failureReason": 1,
    "tokenUsage": {"prompt": 3, "completion": 4},
    "gradingResult": {
        "pass": False,
        "score": 0.5,
        "reason": "no",
        "componentResults": [
            {
                "pass": False,
                "score": 0.5,
                "reason": "no",
                "assertion": {"type": "llm-rubric", "metric": "m", "weight": 2},
            }
        ],
    },
    "testCase": {"description": "the second", "metadata": {"area": "x"}},
}


def _write(folder: Path, value: Any, name: str = "results.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1), encoding="utf-8")
    return path


def _ours(*cases: Any, **run: Any) -> dict[str, Any]:
    return {"schema_version": 1, "run": {**_RUN, **run}, "summary": {}, "results": list(cases)}


def _theirs(*rows: Any, version: Any = 3) -> dict[str, Any]:
    results = {"version": version, "timestamp": "2026-01-01T00:00:00Z", "results": list(rows)}
    return {
        "evalId": "eval-8gk-2026-01-01T00:00:00",
        "results": results,
        "config": {"env": {"KEY": "sk-abcdefgh12"}},
    }


def test_results_of_promptfoo_become_results_of_geval(tmp_path: Path) -> None:
    failed_call = {
        **_ROW,
        "testIdx": 0,
        "response": None,
        "error": "HTTP 500",
        "failureReason": 2,
        "gradingResult": None,
    }
    found = read_importable(_write(tmp_path, _theirs(_ROW, failed_call)))
    error, case = found.results

    assert (error.status, error.score, error.output) == (Status.ERROR, None, None)
    assert error.error is not None
    assert error.error.message == "HTTP 500"
    assert (case.id, case.status, case.score, case.output) == ("1.0.0", Status.FAILED, 0.5, "b!")
    assert (case.description, case.metadata, case.vars) == ("the second", {"area": "x"}, {"x": "b"})
    assert case.usage[Role.GENERATION].cost_usd == 0.25
    [part] = case.assertions
    assert (part.type, part.metric, part.score, part.weight) == ("llm-rubric", "m", 0.5, 2)
    assert found.run.id == "eval-8gk-2026-01-01T00-00-00"
    assert found.run.columns[0].provider_label == "openai:m"
    assert found.run.config == {"env": {"KEY": "***"}}


def test_keys_in_errors_and_reasons_of_promptfoo_are_masked(tmp_path: Path) -> None:
    part = {"pass": False, "score": 0, "reason": "sent zq9-config-key", "assertion": {"type": "llm-rubric"}}
    failed = {
        **_ROW,
        "gradingResult": {"pass": False, "score": 0, "reason": "no", "componentResults": [part]},
    }
    refused = {
        **_ROW,
        "testIdx": 0,
        "response": None,
        "error": "HTTP 401: Incorrect API key: zq9-config-key, sk-proj-zq9abcdefgh",
        "failureReason": 2,
        "gradingResult": None,
    }
    written = _theirs(failed, refused)
    written["config"] = {"providers": [{"id": "openai:m", "config": {"apiKey": "zq9-config-key"}}]}
    found = read_importable(_write(tmp_path, written))
    assert "zq9" not in repr(found)
    assert "Incorrect API key: ***, ***" in repr(found)


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """The names of one run in a store, where it is the one before the latest, and in files."""
    files = [_write(tmp_path, _theirs(_ROW), name) for name in ("theirs.json", "latest.json")]
    imported = read_importable(files[0])
    with closing(RunStore.open(tmp_path / "state")) as runs:
        store_run(imported, runs)
        store_run(read_importable(_write(tmp_path, _ours(_CASE))), runs)
        report = load_report(runs, imported.run.id)
        for ending in _ENDINGS:
            write_results_file(tmp_path / f"ours.{ending}", report)
    ours = [str(tmp_path / f"ours.{ending}") for ending in _ENDINGS]
    return ["latest~1", imported.run.id, imported.run.id[:10], *map(str, files), *ours]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("show", "RUN", "--json"), 0),
        (("export", "run", "RUN", "-o", "again.json"), 0),
        (("judge", "RUN", "config.yaml", "-o", "again.json"), 1),
        (("compare", "RUN", "latest~1", "-o", "again.json"), 0),
        (("agree", "labels.jsonl", "--run", "RUN", "-o", "again.json"), 0),
        (("run", "config.yaml", "--baseline", "RUN", "-o", "again.json"), 1),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_every_command_takes_every_name_of_a_run(
    words: tuple[str, ...],
    code: int,
    names: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    product = Product(tmp_path, monkeypatch, capsys)
    product.write(
        {
            "prompts": [{"label": "say", "raw": "Say {{ x }}"}],
            "providers": [{"id": "echo", "label": "openai:m"}],
            "tests": [
                {
                    "description": "the second",
                    "vars": {"x": "b"},
                    "assert": [{"type": "equals", "value": "c", "metric": "m"}],
                }
            ],
        }
    )
    label = {"id": "1.0.0", "metric": "m", "label": 0.5, "scale": [0, 1]}
    _write(tmp_path, json.dumps(label), "labels.jsonl")
    found = []
    with LoopbackServer(respond=lambda body, headers: chat_reply("")) as server:
        for name in names:
            given = [name if word == "RUN" else word for word in words]
            ended = product.command(server, *given, writes_results=False)
            assert ended.code == code, (name, ended.stderr)
            text = (
                ended.stdout if "--json" in words else (tmp_path / "again.json").read_text(encoding="utf-8")
            )
            found.append(_essence(json.loads(text)))
            if words[0] in {"judge", "run"}:
                product.command(server, "rm", "latest", "--yes", writes_results=False)
    assert all(item == found[0] for item in found), found
    assert found[0]


def test_every_json_document_says_what_it_is(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    product = Product(tmp_path, monkeypatch, capsys)
    test = {"vars": {"x": "b"}, "description": "the second"}
    product.write({"prompts": ["Say {{ x }}"], "providers": ["echo"], "tests": [test]})
    label = {"id": "1.0.0", "metric": "m", "label": 0.5, "scale": [0, 1]}
    _write(tmp_path, json.dumps(label), "labels.jsonl")
    page = (Path(__file__).parents[2] / "docs" / "reference" / "reports.md").read_text(encoding="utf-8")
    documents = {
        "run": ["show", names[0], "--json"],
        "list": ["list", "--json"],
        "compare": ["compare", names[0], names[1], "--json"],
        "agree": ["agree", "labels.jsonl", "--run", names[0], "--json"],
        "problems": ["validate", "config.yaml", "--format", "json"],
        "plan": ["run", "config.yaml", "--plan", "-o", "plan.json"],
        "rm": ["rm", "latest", "--yes", "--json"],
    }
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "geval_cli").rglob("*.py")
    )
    written_kinds = set(re.findall(r"""schema_version\\?"[^}]{,60}?"kind\\?": ?\\?"(\w+)""", sources)) | {
        "compare"
    }
    table = page.partition("## JSON")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|((?: `\w+`,?)+) \|", table, re.MULTILINE)
    assert set(re.findall(r"\w+", " ".join(rows))) == written_kinds
    monkeypatch.setenv("GEVAL_HOME", str(tmp_path / "state"))
    with LoopbackServer(respond=lambda body, headers: chat_reply("")) as server:
        for kind, words in documents.items():
            ended = product.command(server, *words, writes_results=False, names_home=kind != "problems")
            written = tmp_path / words[-1]
            text = written.read_text(encoding="utf-8") if words[-2] == "-o" else ended.stdout
            assert text, ended.stderr
            document = json.loads(text)
            assert (document["schema_version"], document["kind"]) == (1, kind), ended.stderr


def _essence(document: Any) -> Any:
    """What does not say by which name a run was found, or when."""
    if "rows" in document:
        return [[row["metric"], row["verdict"], row["delta"]["value"]] for row in document["rows"]]
    if "metrics" in document:
        return [[item["metric"], item["n"]] for item in document["metrics"]]
    baseline = document["summary"].get("baseline")
    outcomes = [[case["output"], case["status"], case["score"]] for case in document["results"]]
    counts = [document["summary"][name] for name in ("total", "passed", "failed")]
    return [counts, outcomes, None if baseline is None else _essence(baseline)]


def test_an_id_is_no_path_keys_are_masked_and_what_runs_no_more_was_interrupted(tmp_path: Path) -> None:
    found = read_importable(_write(tmp_path, _ours(_CASE, id="../../etc/latest")))

    assert found.run.id == "etc-latest"
    assert "sk-abcdefgh1234" not in str(found.run.config)
    assert found.run.status == "interrupted"
    assert read_importable(_write(tmp_path, _ours(_CASE, id="latest"))).run.id != "latest"


def test_a_run_is_stored_once_and_counted_anew(tmp_path: Path) -> None:
    wrong = {**_ours(_CASE), "summary": {"total": 99, "passed": 99}}
    imported = read_importable(_write(tmp_path, wrong))
    with RunStore.open_in_memory() as runs:
        store_run(imported, runs)
        [stored] = runs.runs()
        assert stored.summary is not None
        assert (stored.summary.total, stored.summary.passed) == (1, 1)
        with pytest.raises(UsageError, match="is stored here already"):
            store_run(imported, runs)


_BROKEN: dict[str, tuple[Any, str]] = {
    "no json": ("{", "results.json:1:2"),
    "not a number": ('{"run": {}, "results": [], "x": NaN}', "results.json:1:33"),
    "a list": ([], "it contains no JSON object"),
    "a suite": ({"tests": []}, "it has no `run` and `results`"),
    "results of the wrong type": ({"run": _RUN, "results": 3}, "it has no `run` and `results`"),
    "a run of the wrong type": ({"run": [], "results": []}, "results.json:2:9"),
    "a run that lacks something": (
        {"run": {"id": "x"}, "results": []},
        "the run cannot be read: Object missing",
    ),
    "a result of the wrong type": (_ours(_CASE, "x"), "result 2: "),
    "a status that is none": (_ours({**_CASE, "status": "fine"}), "result 1: "),
    "a score of the wrong type": (_ours({**_CASE, "score": "high"}), "result 1: "),
    "an index that is none": (_ours({**_CASE, "test_index": -1}), "whole numbers of at least 0"),
    "an index that is too large": (_ours({**_CASE, "column": 1 << 40}), "whole numbers of at least 0"),
    "a case given twice": (_ours(_CASE, _CASE), "result 2: case 0.0.0 is result 1 already"),
    "another version": (_theirs(_ROW, version=4), "only results of promptfoo's version 3"),
    "rows of the wrong type": (_theirs({**_ROW, "score": []}), "result 1: Expected `float`, got `array`"),
    "rows given twice": (_theirs(_ROW, _ROW), "result 2: case 1.0.0 is result 1 already"),
    "nested too deeply": ("[" * 100_000, "results.json:1:"),
}


@pytest.mark.parametrize("name", _BROKEN)
def test_what_is_no_results_file_is_told_with_its_place(tmp_path: Path, name: str) -> None:
    content, says = _BROKEN[name]

    with pytest.raises(ConfigError) as caught:
        read_importable(_write(tmp_path, content))

    assert all(problem.location is not None for problem in caught.value.problems)
    told = [f"{problem.location} {problem.message}" for problem in caught.value.problems]
    assert any(says in line for line in told), told


def test_line_separators_within_a_text_end_no_line(tmp_path: Path) -> None:
    output = "a\u2028b\u2029c\x85d\x0b\x1ce"
    lines = [json.dumps({**_CASE, "output": output, "test_index": n}, ensure_ascii=False) for n in range(2)]

    found = read_importable(_write(tmp_path, "\r\n".join(lines), "r.jsonl"))

    assert [case.output for case in found.results] == [output, output]


def test_each_broken_line_has_its_number(tmp_path: Path) -> None:
    lines = [json.dumps(_CASE), "{", json.dumps({**_CASE, "test_index": "x"}), "", json.dumps(_CASE)]

    with pytest.raises(ConfigError) as caught:
        read_importable(_write(tmp_path, "\n".join(lines), "r.jsonl"))

    assert [problem.location.line for problem in caught.value.problems if problem.location] == [2, 3, 5]
    for empty in ("", "\n\n"):
        with pytest.raises(ConfigError) as caught:
            read_importable(_write(tmp_path, empty, "r.jsonl"))
        assert "it is empty" in caught.value.problems[0].message
    with pytest.raises(ConfigError):
        read_importable(tmp_path / "absent.json")


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_broken_result_of_a_file_of_ours_has_its_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"r.{ending}"
    write_results_file(path, realistic_report(Shape(tests=3, columns=COLUMNS[:1])))
    lines = path.read_text("utf-8").split("\n")
    number = max(place for place, line in enumerate(lines, 1) if '"test_index":' in line)
    lines[number - 1] = lines[number - 1].replace('"test_index":', '"test_idx":')
    path.write_text("\n".join(lines), encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        read_importable(path)

    assert [problem.location.line for problem in caught.value.problems if problem.location] == [number]


@pytest.mark.parametrize("ending", _ENDINGS)
def test_a_run_goes_out_and_comes_in_again_and_can_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    product = Product(tmp_path, monkeypatch, capsys)
    rubric = {"type": "llm-rubric", "value": "kind", "metric": "kind", "provider": "openai:judge"}
    config = {
        "prompts": ["Say {{ x }}"],
        "providers": ["openai:m"],
        "tests": [{"vars": {"x": "a"}, "assert": [rubric]}],
    }
    with LoopbackServer(
        respond=lambda *_: chat_reply('{"pass": true, "score": 0.6, "reason": "r"}')
    ) as server:
        product.run(config, server)
        file = tmp_path / f"out.{ending}"
        product.command(server, "export", "run", "latest", "-o", str(file), writes_results=False)
        other = Product(tmp_path / "other", monkeypatch, capsys)
        other.folder.mkdir()
        imported = other.command(server, "import", "run", str(file), writes_results=False)
        shown = other.command(server, "show", "latest")
        server.requests.clear()
        written = str(tmp_path / "config.yaml")
        judged = other.command(server, "judge", "latest", written, "--threshold", "kind=0.9")

        assert (imported.code, shown.code, judged.code) == (0, 0, 1)
        assert "imported 1 result as run" in imported.stdout
        assert imported.stdout.endswith(f" --home {other.folder / 'state'}\n")
        assert server.requests == []
        assert judged.verdict["status"] == "failed"
        again = other.command(server, "import", "run", str(file), writes_results=False)
        assert again.code == (0 if ending == "jsonl" else 2)  # lines have no id of their own


@pytest.mark.parametrize("ending", _ENDINGS)
def test_a_run_from_a_file_has_the_figures_of_the_run(tmp_path: Path, ending: str) -> None:
    report = realistic_report(Shape(tests=12, columns=COLUMNS[:3]))
    said = {"baseline": {"kind": "compare", "error": "no test in both"}, "derived": {"twice": 1.5}}
    report = replace(report, summary=replace(report.summary, **said))
    path = tmp_path / f"r.{ending}"
    write_results_file(path, report)
    with RunStore.open_in_memory() as runs:
        imported = store_run(read_importable(path), runs)
        found = [load_report(runs, imported.id).summary, named_report(str(path), runs).summary]
    counted = ("passed", "pass_interval", "columns", "rankings", "order_consistency", "flaky", "flaky_count")
    told = () if ending == "jsonl" else ("gates", "baseline", "derived", "derived_by_column", "early_stop")
    for summary in found:
        for name in (*counted, *told):
            assert getattr(summary, name) == getattr(report.summary, name), name
    assert report.summary.rankings
    assert report.summary.flaky_count
    assert report.summary.gates


@pytest.mark.parametrize("ending", [*_ENDINGS, "a page's jsonl"])
def test_what_tests_have_besides_variables_comes_in_again(tmp_path: Path, ending: str) -> None:
    tests = [RecordedTest(index, f"input {index}", context=("c", "d")) for index in range(3)]
    cases = [
        replace(case_result_from_json({**_CASE, "test_index": index, "repeat_index": repeat}), test=test)
        for index, test in enumerate(tests)
        for repeat in (0, 1)
    ]
    path = tmp_path / f"r.{ending.rsplit(maxsplit=1)[-1]}"
    if ending in _ENDINGS:
        report = RunReport(run_record_from_json(_RUN), RunSummary(), lambda: iter(cases))
        write_results_file(path, report)
    else:  # as `results.html` and the page of a run export what is filtered: each line has its test
        path.write_text("".join(f"{json_text(case)}\n" for case in cases), "utf-8")

    for found in (read_importable(path).results, list(read_results_file(path).results())):
        assert [case.asked for case in found] == [case.asked for case in cases]


def test_outputs_of_promptfoo_can_be_judged_by_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    product = Product(tmp_path, monkeypatch, capsys)
    row = {**_ROW, "prompt": {"raw": "Say b", "label": "Say {{ x }}"}}
    file = _write(tmp_path, _theirs(row), "theirs.json")
    rubric = {"type": "llm-rubric", "value": "kind", "metric": "kind", "provider": "openai:judge"}
    product.write(
        {
            "prompts": ["Say {{ x }}"],
            "providers": ["openai:m"],
            "tests": [{"vars": {"x": "b"}, "assert": [rubric]}],
        }
    )
    with LoopbackServer(
        respond=lambda *_: chat_reply('{"pass": true, "score": 0.6, "reason": "r"}')
    ) as server:
        judged = product.command(server, "judge", str(file), "config.yaml")

        assert judged.code == 0, judged.stderr
        assert len(server.requests) == 1
        assert judged.verdict["score"] == 0.6
        assert judged.results["results"][0]["output"] == "b!"


@pytest.mark.parametrize("kept", [(1,), (2, 3), (0, 3), (1, 2)])
def test_results_of_some_columns_have_their_figures_not_those_of_others(
    tmp_path: Path, kept: tuple[int, ...]
) -> None:
    cases = []
    for test, column in ((test, column) for test in range(4) for column in kept):
        pairs = [
            {"column": other, "outcome": "win" if column < other else "loss", "share": float(column < other)}
            for other in (0, 1, 2, 3)
            if other != column
        ]
        judged = {"type": "pairwise", "metric": "best", "status": "passed", "score": 1.0, "weight": 1.0}
        changes = {
            "id": f"{test}.0.{column}",
            "test_index": test,
            "column": column,
            "provider": {"id": "echo", "label": f"model {column}"},
            "status": "passed" if test < column else "failed",
            "assertions": [{**judged, "threshold": None, "reason": None, "detail": {"pairs": pairs}}],
        }
        cases.append(json.dumps({**_CASE, **changes}))
    path = _write(tmp_path, "\n".join(cases), "some.jsonl")

    imported = read_importable(path)
    with RunStore.open_in_memory() as runs:
        store_run(imported, runs)
        for report in (load_report(runs, imported.run.id), named_report(str(path), runs)):
            places = {(result.column, int(result.id[-1])) for result in report.results()}
            assert places == set(enumerate(kept))
            assert [column.index for column in report.columns] == [*range(len(kept))]
            passed = {item.provider: item.passed for item in report.summary.columns}
            assert passed == {f"model {column}": column for column in kept}
            best = [entry.label for entry in report.summary.rankings.get("best", ())]
            assert best == [f"model {column}" for column in kept if len(kept) > 1]

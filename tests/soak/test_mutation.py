import ast
import subprocess
import sys
from pathlib import Path

import pytest
from soak.core import CORE, EQUIVALENT
from soak.mutants import FAILED, LEAST, ROOMS, Traced, Worker, is_equivalent, sampled, started_worker
from soak.mutation import lines_of_functions, mutants

ROOT = Path(__file__).parents[2]

WHERE = """\
import subprocess, sys
import geval_cli.version

def test_where(tmp_path):
    found = geval_cli.version.__file__
    assert "worker/copy" in found
    code = "import geval_cli.version; print(geval_cli.version.__file__)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env={}, text=True).strip() == found
"""


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("a < b", {"(a <= b)", "(a >= b)"}),
        ("a <= b", {"(a < b)", "(a > b)"}),
        ("a is None", {"(a is not None)"}),
        ("a not in b", {"(a in b)"}),
        ("a < b < c", {"(a <= b < c)", "(a >= b < c)", "(a < b <= c)", "(a < b >= c)"}),
        ("a and b", {"(a or b)", "a", "b"}),
        ("not a", {"a"}),
        ("-a", {"a"}),
        ("x = 3", {"x = 4", "x = (2)"}),
        ("x = 0", {"x = 1"}),
        ("x = True", {"x = False"}),
        ("a + b", {"(a - b)"}),
        ("a if b else c", {"(c if b else a)"}),
        ("min(a, b)", {"max(a, b)"}),
        ("[a for a in b if a]", {"[a for a in b]"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("def f():\n    raise a", {"def f():\n    pass"}),
        ("a.b = c", {"pass"}),
        ("a += b", {"pass"}),
        ("f(a)", {"pass"}),
        ("for a in b:\n    break", {"for a in b:\n    continue"}),
        ("é = 'é'; x = a < b", {"é = 'é'; x = (a <= b)", "é = 'é'; x = (a >= b)"}),
    ],
)
def test_each_mistake_changes_one_place(source: str, made: set[str]) -> None:
    found = {mutant.text for mutant in mutants(source)}
    statements = {"pass"} if isinstance(ast.parse(source).body[0], ast.Expr) else set()
    assert found == made | statements


@pytest.mark.parametrize(
    "source",
    [
        '"""A text, 1 < 2."""',
        "import a",
        "x: tuple[int, 2] | None",
        'x = f"{1 + 2}"',
        "if TYPE_CHECKING:\n    import a",
        '__all__ = ["a", 1]',
        "x = None",
    ],
)
def test_what_decides_nothing_is_left_as_it_is(source: str) -> None:
    assert mutants(source) == []


def test_a_mistake_in_what_runs_on_loading_is_tried_against_all_tests_of_its_module() -> None:
    """For coverage they belong to the test that happens to load the module first."""
    source = (
        "A = 1\ndef f(\n    a=2,\n):\n    return a\nclass C:\n    b = 3\n    def g(self):\n        return 4\n"
    )
    assert lines_of_functions(source) == {5, 9}

    module = "geval_cli/gateway/limits.py"
    text = (ROOT / module).read_text(encoding="utf-8")
    inside = sorted(lines_of_functions(text))
    first, last = inside[0], inside[-1]
    traced = Traced(
        {module: {first: frozenset({"tests/a.py::one"}), last: frozenset({"tests/b.py::two"})}}, {}
    )
    both = [f"{ROOT}/tests/a.py::one", f"{ROOT}/tests/b.py::two"]
    assert traced.chosen(module, first) == both[:1]
    assert traced.chosen(module, last) == both[1:]
    assert traced.chosen(module, first - 1) == both
    assert traced.chosen(module, 1) == both


def test_the_difference_is_shown_without_its_surroundings() -> None:
    source = "a = 1\nb = c < d\n"
    [mutant] = [mutant for mutant in mutants(source) if "<=" in mutant.text]
    assert mutant.difference(source, "x.py") == "@@ -2 +2 @@\n-b = c < d\n+b = (c <= d)"


def test_a_sample_is_the_same_each_time_and_takes_some_of_every_module() -> None:
    made = {"large": mutants("\n".join(f"x = {n}" for n in range(100))), "small": mutants("x = 1\ny = 2")}
    sample = sampled(made, 20, 1)
    assert sampled(made, 20, 1) == sample
    assert sampled(made, 20, 2) != sample
    assert len(sample["small"]) == LEAST
    assert sampled(made, 0, 1).keys() == made.keys()
    assert sum(map(len, sampled(made, 0, 1).values())) == sum(map(len, made.values()))


def test_a_mistake_is_put_into_the_copy_and_taken_back_whatever_happens(tmp_path: Path) -> None:
    copy, original = tmp_path / "copy" / "x.py", "a = 1\n"
    copy.parent.mkdir()
    copy.write_text(original, encoding="utf-8")
    before = copy.stat().st_mtime
    worker = Worker(tmp_path, subprocess.Popen([sys.executable, "-c", ""], text=True))
    with worker.with_text("x.py", "a = 2\n", 7):
        assert (copy.read_text(encoding="utf-8"), copy.stat().st_mtime) == ("a = 2\n", 7)
    assert (copy.read_text(encoding="utf-8"), copy.stat().st_mtime) == (original, before)
    with pytest.raises(KeyboardInterrupt), worker.with_text("x.py", "a = 2\n", 8):
        raise KeyboardInterrupt
    assert (copy.read_text(encoding="utf-8"), copy.stat().st_mtime) == (original, before)
    worker.process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="workers fork")
def test_tests_run_against_the_copy_and_commands_that_they_start_too(tmp_path: Path) -> None:
    test = tmp_path / "test_where.py"
    test.write_text(WHERE, encoding="utf-8")
    with started_worker(tmp_path / "worker") as worker:
        code, _ = worker.test([str(test)], 60)
        assert code == 0, worker.output.read_text(encoding="utf-8")
        with worker.with_text("geval_cli/version.py", "raise ImportError\n", 1):
            assert worker.test([str(test)], 60)[0] != 0
        assert worker.test([str(test)], 60)[0] == 0
        test.write_text("import time\n\ndef test_hang():\n    time.sleep(120)\n", encoding="utf-8")
        code, seconds = worker.test([str(test)], 100, each_s=0.2)
        assert code == FAILED
        assert seconds < 100
    assert worker.process.poll() is not None


def test_modules_and_rooms_of_tests_are_where_they_are_looked_for() -> None:
    assert len({*CORE}) == len(CORE), "a module that is listed twice counts twice in the score"
    paths = [*CORE, *(f"tests/{room}" for room in ROOMS)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("module", CORE[:4])
def test_every_mistake_leaves_python(module: str) -> None:
    for mutant in mutants((ROOT / module).read_text(encoding="utf-8"))[::7]:
        assert ast.parse(mutant.text)


def test_every_mistake_that_is_listed_as_harmless_can_still_be_made() -> None:
    found = set()
    for module in {module for module, _, _ in EQUIVALENT}:
        for mutant in mutants((ROOT / module).read_text(encoding="utf-8")):
            if is_equivalent(module, mutant):
                found |= {(module, mutant.before, mutant.after)}
                found |= {(module, f"{mutant.above} {mutant.before}", mutant.after)}
    assert set(EQUIVALENT) - found == set()

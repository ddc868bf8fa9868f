"""The plugin in real sessions of pytest, in a project of its own, with a judge on loopback."""

import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.geval_command import Finished, clean_environment, run_pytest, start_pytest
from support.judge_server import judge_sensibly, prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.cli.streams import _BuildLog
from geval_cli.extras.pytest_plugin import without_commands
from geval_cli.records import Role, RunStatus
from geval_cli.store.runs import RunStore, StoredRun

TESTS = """\
import asyncio
import pytest
from geval_cli import GEval, TestCase

def test_without(): pass

def test_polite(geval):
    assert geval.check("fine", input="Refund?", criteria="Is it polite?", threshold=0.7).score == 0.9

def test_rude(geval):
    geval.check("rude \\x1b[31m<b>", input="Refund?", criteria="Is it polite?", threshold=0.7)

def test_words(geval):
    geval.check("Refunds take 14 days", {"type": "contains", "value": "14"})
    geval.check("Refunds take 14 days", {"type": "contains", "value": "30"})

def test_broken_judge(geval):
    geval.check("broken", input="Refund?", criteria="Is it polite?")

def test_wrong_key(geval):
    geval.check("fine", critera="Is it polite?")

@pytest.mark.geval(grader="openai:other", samples=3)
def test_awaited(geval):
    result = asyncio.run(geval.ajudge(TestCase("Refund?", "fine"), GEval("Tone", "Is it kind?")))
    assert result.success and result.metadata["judge"] == "openai:other"
    assert result.metadata["requested"] == 3
"""
SUITE = """\
prompts: ["{{ input }}"]
providers: [echo]
defaultTest:
  assert: [{ type: g-eval, criteria: Is it right?, threshold: 0.7 }]
tests:
  - { description: right, input: fine }
  - { description: wrong, input: rude }
  - { description: unjudged, input: broken }
  - { description: " ", input: without a description }
"""
PROGRAM = """\
# yaml-language-server: $schema=https://promptfoo.dev/config-schema.json
prompts: ["{{ input }}"]
providers: [echo]
tests: file://make.py:tests
"""
MAKE = """\
import pathlib
pathlib.Path("made").touch()
def tests():
    return [{"vars": {"input": "fine"}, "assert": [{"type": "contains", "value": "fine"}]}]
"""
OUTCOMES = {
    "test_answers.py::test_without": "PASSED",
    "test_answers.py::test_polite": "PASSED",
    "test_answers.py::test_rude": "FAILED",
    "test_answers.py::test_words": "FAILED",
    "test_answers.py::test_broken_judge": "ERROR",
    "test_answers.py::test_wrong_key": "ERROR",
    "test_answers.py::test_awaited": "PASSED",
    "suite.geval.yaml::right": "PASSED",
    "suite.geval.yaml::wrong": "FAILED",
    "suite.geval.yaml::unjudged": "ERROR",
    "suite.geval.yaml::test 4": "PASSED",
}
PLUGIN = ("-p", "geval_cli.extras.pytest_plugin")
LINE = re.compile(r"^(?:\[gw\d\].*?)?(PASSED|FAILED|ERROR) (\S+\.(?:py|yaml)::.+?)(?: - .*)?$", re.MULTILINE)


def respond(body: Any, headers: Mapping[str, str]) -> Reply:
    prompt = prompt_text(body)
    if "mumble" in prompt:
        return chat_reply("Hm.")
    if "broken" in prompt:
        return Reply(status=400, body={"error": {"message": "this judge is out of order"}})
    if '"score"' in prompt and "rude" in prompt:
        return chat_reply('{"reason": "It is rude.", "score": 2}')
    return judge_sensibly(body, headers)


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=respond) as server:
        yield server


def write(folder: Path) -> None:
    for name, text in {
        "pytest.ini": "[pytest]\naddopts = --strict-markers -p no:randomly\n",
        "test_answers.py": TESTS,
        "suite.geval.yaml": SUITE,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


class Session:
    """A project, and the judge that its tests ask."""

    def __init__(self, folder: Path, server: LoopbackServer) -> None:
        self.folder = folder
        self.server = server
        self.env = clean_environment(
            OPENAI_API_KEY="sk-of-the-test",
            OPENAI_BASE_URL=server.base_url,
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",  # the rest of what is installed here takes seconds
        )

    def run_anew(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a session in a process that has loaded nothing."""
        command = [sys.executable, "-m", "pytest", *PLUGIN, "-rA", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )

    def run(self, *words: str) -> Finished:
        """Run a session in a process that has loaded what most of them use."""
        return run_pytest(*PLUGIN, "-rA", *words, cwd=self.folder, env=self.env)

    def stored(self, home: str = ".geval") -> list[StoredRun]:
        runs = RunStore.open(self.folder / home)
        try:
            return runs.runs()
        finally:
            runs.close()


def outcomes(printed: str) -> dict[str, str]:
    return {name: outcome for outcome, name in LINE.findall(printed)}


def test_verdicts_and_calls_are_the_same_for_one_process_and_for_two(
    project: Path, server: LoopbackServer
) -> None:
    session = Session(project, server)
    alone = session.run("--geval-home", "alone", "test_answers.py", "suite.geval.yaml")
    asked = len(server.requests)
    assert (alone.code, outcomes(alone.stdout)) == (1, OUTCOMES)
    two = session.run("-p", "xdist", "--geval-home", "two", "-n", "2", "test_answers.py", "suite.geval.yaml")
    assert (two.code, outcomes(two.stdout)) == (1, OUTCOMES)
    assert " --home alone)" in alone.stdout
    assert len(server.requests) == 2 * asked
    for home in ("alone", "two"):
        sums = {item.run.config_path.rpartition("/")[2]: item.summary for item in session.stored(home)}
        assert {name: (item.passed, item.failed, item.errored) for name, item in sums.items() if item} == {
            "pytest": (3, 2, 2),
            "suite.geval.yaml": (2, 1, 1),
        }
        assert len(session.stored(home)) == 2
    assert list((project / "two" / "running").iterdir()) == []

    report = alone.stdout
    assert "E       - at least 0.70\nE       + 0.20  (0.50 below)" in report
    assert "\n- at least 0.70\n+ 0.20  (0.50 below)" in report  # of the suite, without a traceback
    assert "reason    It is rude." in report
    assert "output    rude \\x1b[31m<b>" in report  # a model's control characters are written out
    assert "ERROR at setup of unjudged" in report
    errors = report.partition("ERROR at setup of unjudged")[2].partition("\n____")[0]
    assert "out of order" in errors
    assert ".py" not in errors  # frames of pytest and geval would hide what is wrong
    assert "ERROR at call of test_broken_judge" in report
    assert "out of order" in report
    assert "did you mean `criteria`?" in report
    assert "geval: 3 passed, 2 failed, 2 errors, cost unknown (geval show " in report


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A project whose tests ran once, so that the cache knows their answers."""
    folder = tmp_path_factory.mktemp("ran")
    write(folder)
    with LoopbackServer(respond=respond) as server:
        session = Session(folder, server)
        session.run("test_answers.py", "suite.geval.yaml")
        yield session


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--lf", "suite.geval.yaml"), {"wrong", "unjudged"}),
        (("-k", "right or wrong", "suite.geval.yaml"), {"right", "wrong"}),
        (("-x", "suite.geval.yaml"), {"right", "wrong"}),
        (
            ("--geval-offline", "-k", "right or polite", "test_answers.py", "suite.geval.yaml"),
            {"right", "test_polite"},
        ),
        (("-k", "right or polite", ".", "suite.geval.yaml"), {"right", "test_polite"}),
        (("-o", "geval_files=true", "-k", "right", "."), {"right"}),
    ],
)
def test_selected_tests_are_run_and_answers_are_not_bought_twice(
    words: tuple[str, ...], expected: set[str], ran: Session
) -> None:
    before = len(ran.server.requests)
    found = outcomes(ran.run(*words).stdout)
    assert {name.partition("::")[2] for name in found} == expected
    assert {name: OUTCOMES[name] for name in found} == found
    asked = [prompt_text(item.json) for item in ran.server.requests[before:]]
    assert all("broken" in prompt for prompt in asked)  # an error is no answer that a cache could keep
    assert not asked or "unjudged" in expected or "-x" in words


GATED = """\
prompts: ["{{ input }}"]
providers: [echo]
gates: GATES
tests:
  - { description: right, input: fine, assert: [{ type: contains, value: fine, metric: nice }] }
  - { description: wrong, input: rude, assert: [{ type: contains, value: fine, metric: nice }] }
  - { description: gates, input: fine, assert: [{ type: contains, value: fine }] }
"""
GATES = "gates #2"  # beside the test of this name


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "xdist"])
@pytest.mark.parametrize(
    ("gates", "outcome", "said"),
    [
        ("[pass_rate >= 60%, nice.mean >= 0.5]", "PASSED", ""),
        ("[pass_rate >= 90%, nice.mean >= 0.5]", "FAILED", "\npass_rate >= 90% not met: 67 % (n=3"),
        ("[pass_rate >= 60%, latency.p95 <= 1, cost <= 1]", "ERROR", "latency.p95 <= 1 not met: none"),
        ("[pass_rate >= 90%, latency.p95 <= 1]", "FAILED", "latency.p95 <= 1 not met: none"),
    ],
)
def test_the_gates_of_a_config_are_an_item(
    project: Path, server: LoopbackServer, gates: str, outcome: str, said: str, options: tuple[str, ...]
) -> None:
    (project / "gated.geval.yaml").write_text(GATED.replace("GATES", gates), encoding="utf-8")
    session = Session(project, server)
    printed = session.run("gated.geval.yaml", *options).stdout
    tests = {"right": "PASSED", "wrong": "FAILED", "gates": "PASSED", GATES: outcome}
    assert outcomes(printed) == {f"gated.geval.yaml::{name}": found for name, found in tests.items()}
    assert said in printed
    assert len(session.stored()) == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--lf", "gated.geval.yaml"), {"wrong": "FAILED", GATES: "FAILED"}),
        ((f"gated.geval.yaml::{GATES}",), {GATES: "FAILED"}),
        (("-k", "right", "gated.geval.yaml"), {"right": "PASSED"}),
    ],
)
def test_gates_are_those_of_the_whole_run_whatever_is_selected(
    project: Path, server: LoopbackServer, words: tuple[str, ...], found: dict[str, str]
) -> None:
    (project / "gated.geval.yaml").write_text(GATED.replace("GATES", "[failures <= 0]"), encoding="utf-8")
    session = Session(project, server)
    session.run("gated.geval.yaml")
    printed = session.run(*words).stdout
    assert outcomes(printed) == {f"gated.geval.yaml::{name}": outcome for name, outcome in found.items()}
    sizes = [item.summary.total for item in session.stored() if item.summary is not None]
    assert sizes == ([3, 3] if GATES in found else [1, 3])


def test_tests_that_only_a_program_knows_are_held_to_their_gates(
    project: Path, server: LoopbackServer
) -> None:
    (project / "program.geval.yaml").write_text(f"{PROGRAM}gates: [failures >= 1]\n", encoding="utf-8")
    (project / "make.py").write_text(MAKE, encoding="utf-8")
    printed = Session(project, server).run("program.geval.yaml").stdout
    assert outcomes(printed) == {"program.geval.yaml::all tests": "FAILED"}
    assert "\nfailures >= 1 not met: 0" in printed


def test_gates_are_not_decided_by_the_part_that_a_budget_paid_for(
    project: Path, server: LoopbackServer
) -> None:
    (project / "paid.geval.yaml").write_text(
        f"""\
prompts: ["{{{{ input }}}}"]
providers:
  - id: openai:m
    config: {{ base_url: "{server.base_url}", price: {{ input: 100000, output: 100000 }} }}
gates: [pass_rate >= 50%]
defaultTest: {{ assert: [{{ type: contains, value: "4" }}] }}
tests: [{{ description: first, input: one }}, {{ description: second, input: two }}]
""",
        encoding="utf-8",
    )
    printed = Session(project, server).run("--geval-max-cost", "0.5", "paid.geval.yaml").stdout
    assert outcomes(printed)["paid.geval.yaml::gates"] == "ERROR"
    assert "the budget of $0.50 is used up" in printed


def test_collecting_sends_nothing_and_runs_no_code(project: Path, server: LoopbackServer) -> None:
    (project / "program.geval.yaml").write_text(PROGRAM, encoding="utf-8")
    (project / "make.py").write_text(MAKE, encoding="utf-8")
    session = Session(project, server)
    unnamed = session.run("--collect-only", "-q", ".")
    assert "test_answers.py::test_rude" in unnamed.stdout
    assert "geval.yaml" not in unnamed.stdout  # never by surprise
    listed = session.run("--collect-only", "-q", "suite.geval.yaml", "program.geval.yaml", "test_answers.py")
    assert "suite.geval.yaml::right" in listed.stdout
    assert "program.geval.yaml::all tests" in listed.stdout
    assert (server.requests, (project / "made").exists(), (project / ".geval").exists()) == ([], False, False)
    ran = session.run("program.geval.yaml")
    assert outcomes(ran.stdout) == {"program.geval.yaml::all tests": "PASSED"}
    assert (project / "made").exists()


def test_what_is_wrong_with_a_config_or_an_option_is_said_before_anything_is_sent(
    project: Path, server: LoopbackServer
) -> None:
    (project / "bad.geval.yaml").write_text(SUITE.replace("criteria", "critera"), encoding="utf-8")
    session = Session(project, server)
    bad = session.run("bad.geval.yaml")
    assert bad.code == pytest.ExitCode.INTERRUPTED
    assert "bad.geval.yaml:4:28" in bad.stdout
    assert "did you mean `criteria`?" in bad.stdout
    for amount in ("nan", "-1", "inf", "x"):
        refused = session.run(f"--geval-max-cost={amount}", "suite.geval.yaml")
        said = f"--geval-max-cost must be an amount in USD of at least 0, not {amount}"
        assert (refused.code, said in refused.stdout + refused.stderr) == (pytest.ExitCode.USAGE_ERROR, True)
    priceless = session.run(
        "--geval-max-cost", "1", "-k", "right or polite or awaited", "test_answers.py", "suite.geval.yaml"
    )
    assert set(outcomes(priceless.stdout).values()) == {"ERROR"}
    assert (
        priceless.stdout.count("the price of openai:gpt-4.1 is unknown, so --max-cost cannot be enforced")
        >= 2
    )
    assert server.requests == []


def test_the_example_on_the_page_works(project: Path, server: LoopbackServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "pytest.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    more = """\
def bot(question): return "With pleasure: within 14 days."
pytestmark = pytest.mark.anyio
@pytest.fixture
def anyio_backend(): return "asyncio"
"""
    (project / "test_page.py").write_text(example + more, encoding="utf-8")
    printed = Session(project, server).run("-p", "anyio.pytest_plugin", "test_page.py").stdout
    assert outcomes(printed) == {"test_page.py::test_refund": "PASSED", "test_page.py::test_tone": "PASSED"}
    assert (
        len([item for item in server.requests if item.json["model"] == "gpt-4.1" and item.json.get("n") == 5])
        == 1
    )


def test_ctrl_c_ends_the_session_and_keeps_what_was_paid_for(project: Path, server: LoopbackServer) -> None:
    session = Session(project, server)
    server.hold()
    logging = ("-o", "log_cli=true", "-o", "log_cli_level=WARNING")
    running = start_pytest(*PLUGIN, *logging, "suite.geval.yaml", cwd=project, env=session.env)
    try:
        server.wait_for_requests(1)
        running.send_signal(signal.SIGINT)
        printed = b""
        while b"waiting for requests in flight" not in printed and (line := running.stdout.readline()):
            printed += line
        server.release()
        printed += running.communicate(timeout=60)[0]
    finally:
        running.kill()
        server.release()
    assert running.returncode == pytest.ExitCode.INTERRUPTED, printed
    assert b"KeyboardInterrupt" in printed
    assert [item.run.status for item in session.stored()] == [RunStatus.INTERRUPTED]


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["one process", "xdist"])
def test_a_session_that_does_not_use_it_loads_nothing(
    project: Path, server: LoopbackServer, options: tuple[str, ...]
) -> None:
    (project / "test_nothing.py").write_text("def test_it(): pass\n", encoding="utf-8")
    (project / "conftest.py").write_text(
        "import atexit, sys\n"
        "@atexit.register\n"
        "def show():\n"
        "    print('LOADED', *[name for name in sys.modules if 'geval' in name], 'END', flush=True)\n",
        encoding="utf-8",
    )
    printed = Session(project, server).run_anew("test_nothing.py", *options).stdout
    loaded = set(re.findall(r"LOADED (.*) END", printed)[0].split())
    assert loaded == {"geval_cli", "geval_cli.version", "geval_cli.extras", "geval_cli.extras.pytest_plugin"}
    assert [item.value for item in entry_points(group="pytest11", name="geval")] == [
        "geval_cli.extras.pytest_plugin"
    ]


HOSTILE = """\
import pytest
SAID = "hi\\n::set-env name=X::1\\n##" + "vso[task.setvariable x]y\\r  ::error::forged\\n##" + "[error]x"
def test_failed(geval): geval.check(SAID, {"type": "contains", "value": "zzz"})
def test_own(geval):
    said = SAID
    assert geval.check(said, {"type": "not-contains", "value": "zzz"}).score == 0, said
def test_broken(geval): geval.check("broken", input=SAID, criteria="Is it polite?")
@pytest.fixture
def judged(geval, given=SAID): geval.check("broken", criteria="Is it polite?")
def test_broken_before(judged): pass
"""
HOSTILE_SUITE = """\
prompts: ["{{ x }}"]
providers: [echo]
tests: [{vars: {x: "q\\n::set-env name=X::1\\n##vso[a]b"}, assert: [{type: contains, value: zzz}]}]
"""


@pytest.mark.parametrize("options", [("-l",), ("--tb=native",), ("-p", "xdist", "-n", "1")])
def test_a_build_server_finds_no_command_in_what_a_model_said_and_its_file_knows_errors_from_failures(
    project: Path, server: LoopbackServer, options: tuple[str, ...]
) -> None:
    (project / "test_hostile.py").write_text(HOSTILE, encoding="utf-8")
    (project / "hostile.geval.yaml").write_text(HOSTILE_SUITE, encoding="utf-8")
    session = Session(project, server)
    session.env |= {"TF_BUILD": "true", "CI": "true"}
    found = session.run("test_hostile.py", "hostile.geval.yaml", "--junitxml=found.xml", *options)
    assert "task.setvariable" in found.stdout
    assert not re.findall(r"^\s*::.*|##(?:vso|teamcity)?\[.*", found.stdout, re.MULTILINE)
    [suite] = ElementTree.parse(project / "found.xml").getroot()
    assert (suite.get("errors"), suite.get("failures")) == ("2", "3")
    assert {case.get("name"): case[0].tag for case in suite} == {
        **dict.fromkeys(("test_failed", "test_own", "test 1"), "failure"),
        **dict.fromkeys(("test_broken", "test_broken_before"), "error"),
    }


def test_the_plugin_escapes_what_the_commands_escape() -> None:
    for text in (
        "::a::b",
        "x\n \t::a",
        "a ::b",
        "##[x",
        "a##VSO[b",
        "##teamcity[c",
        "##x[",
        "std::a",
        "a\r::b",
        ":::",
    ):
        stream = io.BytesIO()
        log = _BuildLog(stream, encoding="utf-8", newline="")
        log.write(text)
        log.flush()
        assert without_commands(text) == stream.getvalue().decode()


def test_a_test_does_not_pass_by_some_of_its_cases_when_the_money_ends_before_the_others(
    project: Path, server: LoopbackServer
) -> None:
    (project / "two.geval.yaml").write_text(
        f"""\
prompts: ["First {{{{ input }}}}", "Second {{{{ input }}}}"]
providers:
  - id: openai:m
    config: {{ base_url: "{server.base_url}", price: {{ input: 100000, output: 100000 }} }}
tests: [{{ description: both, input: fine, assert: [{{ type: contains, value: "4" }}] }}]
""",
        encoding="utf-8",
    )
    session = Session(project, server)
    printed = session.run("--geval-max-cost", "0.5", "two.geval.yaml").stdout
    assert len(server.requests) == 1, "the first answer costs a dollar"
    assert outcomes(printed) == {"two.geval.yaml::both": "ERROR"}
    assert "the budget of $0.50 is used up" in printed
    assert "allow more with --geval-max-cost" in printed
    assert "--resume" not in printed
    assert outcomes(session.run("two.geval.yaml").stdout) == {"two.geval.yaml::both": "PASSED"}


PAID = """\
import pytest
from geval_cli import GEval, JudgeError, TestCase

JUDGE = {"id": "openai:m", "config": {"price": {"input": 100000, "output": 100000}}}

def test_unreadable(geval):
    geval.check("mumble", evaluation_steps=["Read."], provider=JUDGE)

def test_expected(geval):
    with pytest.raises(JudgeError):
        geval.judge(TestCase(actual_output="mumble more"), GEval("Tone", evaluation_steps=["Read."], model=JUDGE))

@pytest.mark.geval(samples=3)
def test_sampled(geval):
    metric = GEval("Tone", evaluation_steps=["Read."], model=JUDGE)
    assert geval.check("fine", metric).metadata["requested"] == 3
    assert geval.judge(TestCase(actual_output="well"), metric).metadata["requested"] == 3
"""


def test_a_session_says_what_it_paid_for_answers_without_a_verdict_too(
    project: Path, server: LoopbackServer
) -> None:
    (project / "test_paid.py").write_text(PAID, encoding="utf-8")
    session = Session(project, server)
    printed = session.run("test_paid.py").stdout
    assert outcomes(printed) == {
        "test_paid.py::test_unreadable": "ERROR",
        "test_paid.py::test_expected": "PASSED",
        "test_paid.py::test_sampled": "PASSED",
    }
    paid = len(server.requests)
    assert f"geval: 2 passed, 0 failed, 2 errors, ${paid}.00 (geval show " in printed
    [stored] = session.stored()
    assert stored.summary.usage[Role.JUDGE].cost_usd == paid


CHOSEN = """\
import pytest

JUDGED = {"type": "g-eval", "evaluation_steps": ["Read."], "metric": "tone"}

def judge(geval, **given):
    return geval.check("fine", JUDGED, **given).metadata["judge"].partition(":")[2]

def test_of_the_session(geval): assert judge(geval) == "session"
def test_no_choice(geval): assert judge(geval, grader=None, samples=None) == "session"
def test_of_the_call(geval): assert judge(geval, grader="openai:call") == "call"

@pytest.mark.geval(grader=None)
def test_empty_marker(geval): assert judge(geval) == "session"

@pytest.mark.geval(grader="openai:outer", samples=2)
class TestMarked:
    def test_outer(self, geval): assert judge(geval) == "outer"

    @pytest.mark.geval(samples=3)
    def test_both(self, geval):
        found = geval.check("fine", JUDGED).metadata
        assert (found["judge"], found["requested"]) == ("openai:outer", 3)

    @pytest.mark.geval(grader="openai:inner")
    def test_inner(self, geval):
        found = geval.check("fine", JUDGED, grader=None).metadata
        assert (found["judge"], found["requested"]) == ("openai:inner", 2)
"""


def test_the_nearest_choice_of_a_judge_counts_and_none_is_no_choice(
    project: Path, server: LoopbackServer
) -> None:
    (project / "test_chosen.py").write_text(CHOSEN, encoding="utf-8")
    session = Session(project, server)
    found = session.run("--geval-grader", "openai:session", "test_chosen.py")
    assert (found.code, set(outcomes(found.stdout).values())) == (0, {"PASSED"}), found.stdout
    assert {item.json["model"] for item in server.requests} == {"session", "call", "outer", "inner"}
    [stored] = session.stored()
    assert stored.summary is not None
    [(name, metric)] = stored.summary.metrics.items()
    assert (name, metric.mean, metric.n) == ("tone", 0.9, 7)

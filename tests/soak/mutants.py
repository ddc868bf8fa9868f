"""Puts small mistakes into the core, a seeded sample of them, and looks whether the tests beside it notice.

The checkout is never written to: the mistakes go into copies of the package in a temporary folder, which stand before
the original in environments of their own, so that the commands that tests start have the mistake as well.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from coverage import CoverageData
from soak.core import CORE, EQUIVALENT
from soak.mutant_worker import TIMED_OUT
from soak.mutation import Mutant, lines_of_functions, mutants

ROOT = Path(__file__).parents[2]
SAMPLE = 120
LEAST = 3
"""As many of each module are in a sample, if it has them."""
SLACK_S = 20.0
TIMES = 5
"""A mistake may make the tests so many times slower, and `SLACK_S` more; then it counts as noticed."""
TRIES = 3
"""A test that fails without a mistake is unsteady, and would count as one that notices: it is tried again."""
MOST_S = 40.0
MOST_TESTS = 500
"""A mistake is tried against so many of the tests that run its line: those named for its module, then quick ones."""
EVERY_S = 400.0
EVERY_TEST = 5_000
"""One that they do not notice is tried against all the others that run its line, as far as these bounds go."""
ROOMS = (
    "assertions", "cli", "engine", "gateway", "geval", "judge", "library", "report", "runs", "source", "statistics",
    "store", "suite", "test_access_is_given.py",
)  # fmt: skip
"""Where tests of the core are."""
FAILED = 1
NOT_COLLECTED = 2
NOT_FOUND = 4
"""Exit codes of pytest: a test failed; a module of tests could not be loaded, and so a test named in it not be found.

Others are mistakes of ours.
"""


@dataclass
class Tally:
    """What became of the mistakes in one module."""

    made: int = 0
    killed: int = 0
    equivalent: int = 0
    survivors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Traced:
    """Which tests run which lines of the core, by module and line, and how many seconds a test takes."""

    tests: dict[str, dict[int, frozenset[str]]]
    seconds: dict[str, float]

    @classmethod
    def of(cls, data: Path, durations: str) -> "Traced":
        """Read what coverage has stored, and what pytest has printed of how long each test takes."""
        found = CoverageData(str(data))
        found.read()
        inside = {module: lines_of_functions((ROOT / module).read_text(encoding="utf-8")) for module in CORE}
        tests = {
            module: {
                line: frozenset(context.rpartition("|")[0] for context in contexts if context)
                for line, contexts in found.contexts_by_lineno(str(ROOT / module)).items()
                # What runs on loading is counted for the test that happens to load the module first.
                if line in inside[module]
            }
            for module in CORE
        }
        lines = re.findall(r"^([\d.]+)s call +(.+)$", durations, re.MULTILINE)
        return cls(tests, {name: float(seconds) for seconds, name in lines})

    def chosen(self, module: str, line: int, *, most: int = MOST_TESTS, most_s: float = MOST_S) -> list[str]:
        """Return tests that run a line, the cheapest first; of what runs on loading, tests that run any line."""
        by_line = self.tests[module]
        running = by_line.get(line, frozenset())
        # Of a statement over several lines, some are not counted.
        if line in lines_of_functions((ROOT / module).read_text(encoding="utf-8")):
            for above in range(line - 1, max(0, line - 12), -1):
                running = running or by_line.get(above, frozenset())
        running = running or frozenset().union(*by_line.values())
        stem = Path(module).stem
        files: dict[str, list[str]] = {}
        for test in sorted(running, key=lambda test: (self.seconds.get(test, 0.0), test)):
            files.setdefault(test.partition("::")[0], []).append(test)
        taken: list[str] = []
        room_s = most_s
        for _, tests in sorted(
            files.items(), key=lambda item: (stem not in item[0], self._cost_s(item[1]), item[0])
        ):
            for test in tests:
                room_s -= self.seconds.get(test, 0.0)
                if room_s < 0 or len(taken) >= most:
                    return taken
                taken.append(f"{ROOT}/{test}")
        return taken

    def limit_s(self, tests: Sequence[str]) -> float:
        """Return how long a test of these may take with a mistake, so that one that hangs ends soon."""
        return TIMES * max(self.seconds.get(test.removeprefix(f"{ROOT}/"), 0.0) for test in tests) + SLACK_S

    def _cost_s(self, tests: Sequence[str]) -> float:
        return sum(self.seconds.get(test, 0.0) for test in tests)


def trace(folder: Path) -> Traced:
    """Run the tests of the core once, and note which of them runs which line."""
    config = folder / "coveragerc"
    # With --cov, conftest leaves the tests to xdist: what runs in forks would not be counted.
    data, included = folder / "coverage.data", "\n    ".join(CORE)
    config.write_text(f"[run]\ndata_file = {data}\ninclude =\n    {included}\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "--cov",
        "--cov-report=",
    ]
    command += [f"--cov-config={config}", "--cov-context=test", "--durations=0", "--durations-min=0"]
    command += ["-p", "no:cacheprovider", "-m", "not browser and not local_model"]
    command += [f"tests/{room}" for room in ROOMS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in {0, FAILED}:
        raise SystemExit(f"the tests of the core cannot be run\n{done.stdout[-3000:]}")
    return Traced.of(data, done.stdout)


@dataclass(frozen=True)
class Worker:
    """A process that runs tests against its own copy of the package."""

    folder: Path
    process: "subprocess.Popen[str]"

    def test(self, tests: Sequence[str], limit_s: float, *, each_s: float = 180) -> tuple[int, float]:
        """Return pytest's exit code and the seconds that it took; a test that takes more than `each_s` fails."""
        arguments = ["-x", "-q", "-n", "0", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
        # The libraries are loaded before pytest can rewrite assertions in those that are plugins of it.
        arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        arguments += [f"--rootdir={ROOT}", f"--basetemp={self.folder / 'tmp'}", "--hypothesis-seed=0"]
        arguments += [f"--timeout={each_s}"]
        order = {
            "arguments": arguments + list(tests),
            "copy": str(self.folder / "copy"),
            "limit_s": limit_s,
            "output": str(self.output),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["code"], answer["seconds"]

    @property
    def output(self) -> Path:
        """What pytest printed last."""
        return self.folder / "output.txt"

    @contextmanager
    def with_text(self, module: str, text: str, number: int) -> Iterator[None]:
        """Have `text` as the module. Every text has a time of its own, by which Python knows compiled ones."""
        path = self.folder / "copy" / module
        original, before = path.read_text(encoding="utf-8"), path.stat().st_mtime
        try:
            path.write_text(text, encoding="utf-8")
            os.utime(path, (number, number))
            yield
        finally:
            path.write_text(original, encoding="utf-8")
            os.utime(path, (before, before))


def main(words: Sequence[str] | None = None) -> bool:
    """Return whether every mistake was noticed, but those that are known to change nothing."""
    chosen = _options().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as for Ctrl-C: nothing is left behind
    modules = [
        module for module in CORE if not chosen.modules or any(part in module for part in chosen.modules)
    ]
    made = {module: mutants((ROOT / module).read_text(encoding="utf-8")) for module in modules}
    sample = sampled(made, chosen.sample, chosen.seed)
    print(f"{sum(map(len, sample.values()))} mutants, seed {chosen.seed}", flush=True)
    tallies = {module: Tally() for module in modules}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="geval-mutants-")))
        # Left last, so that it waits for its jobs when their workers are gone.
        pool = stack.enter_context(ThreadPoolExecutor(chosen.jobs))
        idle: Queue[Worker] = Queue()
        for number in range(chosen.jobs):
            idle.put(stack.enter_context(started_worker(folder / str(number))))
        traced = trace(folder)
        stop = threading.Event()
        try:
            jobs = [
                pool.submit(_try_module, module, sample[module], traced, idle, tallies[module], stop)
                for module in modules
            ]
            for job in jobs:
                job.result()
        finally:
            stop.set()
    show(tallies)
    return not any(tally.survivors for tally in tallies.values())


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m soak mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many mutants; 0 for all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--modules", nargs="+", metavar="PART", help="those whose path contains it")
    return parser


def sampled(made: dict[str, list[Mutant]], size: int, seed: int) -> dict[str, list[Mutant]]:
    """Return `size` of the mutants, of each module as many as are its share, and not fewer than `LEAST`."""
    total = sum(map(len, made.values()))
    chosen = {}
    for module, all_of_it in made.items():
        share = len(all_of_it) if not size else max(LEAST, round(size * len(all_of_it) / total))
        chance = random.Random(f"{seed} {module}")
        chosen[module] = chance.sample(all_of_it, min(share, len(all_of_it)))
    return chosen


def _try_module(
    module: str,
    chosen: Sequence[Mutant],
    traced: Traced,
    idle: "Queue[Worker]",
    tally: Tally,
    stop: threading.Event,
) -> None:
    """Try the mutants of one module, one after the other, on one worker."""
    source = (ROOT / module).read_text(encoding="utf-8")
    worker = idle.get()
    try:
        tests = [traced.chosen(module, mutant.line) for mutant in chosen]
        _check_steady(worker, module, sorted({test for some in tests for test in some}))
        for number, (mutant, some) in enumerate(zip(chosen, tests, strict=True), start=1):
            if stop.is_set():
                return
            noticing: list[str] = []
            with worker.with_text(module, mutant.text, number):
                is_noticed = _is_noticed(worker, module, some, traced.limit_s(some))
                if not is_noticed and not is_equivalent(module, mutant):
                    # The cheapest tests passed: whether the suite notices, all that run the line can tell.
                    every = traced.chosen(module, mutant.line, most=EVERY_TEST, most_s=EVERY_S)
                    rest = [test for test in every if test not in set(some)]
                    is_noticed = bool(rest) and _is_noticed(
                        worker, module, rest, traced.limit_s(rest), most_s=EVERY_S
                    )
                    noticing = re.findall(
                        r"^FAILED (.+?)(?: - .*)?$", worker.output.read_text(), re.MULTILINE
                    )
            # The others were found to be steady before.
            _check_steady(worker, module, [str(ROOT / test) for test in noticing if is_noticed])
            tally.made += 1
            if is_noticed:
                tally.killed += 1
            elif is_equivalent(module, mutant):
                tally.equivalent += 1
            else:
                tally.survivors.append(mutant.difference(source, module))
        print(f"{module}: {tally.killed} of {tally.made}", *tally.survivors, sep="\n", flush=True)
    except BaseException:
        stop.set()
        raise
    finally:
        idle.put(worker)


def _check_steady(worker: Worker, module: str, tests: Sequence[str]) -> None:
    """Run the tests without a mistake: they must pass."""
    if not tests:
        return
    for _ in range(TRIES):
        code, _ = worker.test(tests, 1200)
        if not code:
            return
    raise SystemExit(f"{module}: its tests fail as it is ({code})\n{worker.output.read_text()[-3000:]}")


def _is_noticed(
    worker: Worker, module: str, tests: Sequence[str], each_s: float, *, most_s: float = MOST_S
) -> bool:
    code, _ = worker.test(tests, most_s * TIMES + SLACK_S, each_s=each_s)
    if code not in {0, FAILED, NOT_COLLECTED, NOT_FOUND, TIMED_OUT}:
        raise SystemExit(f"{module}: pytest ended with {code}\n{worker.output.read_text()[-3000:]}")
    return code != 0


def is_equivalent(module: str, mutant: Mutant) -> bool:
    """Tell whether the mistake is one of those that are known to change nothing."""
    lines = (mutant.before, f"{mutant.above} {mutant.before}")
    return any((module, line, mutant.after) in EQUIVALENT for line in lines)


@contextmanager
def started_worker(folder: Path) -> Iterator[Worker]:
    """Start a worker in an environment where a copy of the package takes the place of the original."""
    package = "geval_cli"
    shutil.copytree(ROOT / package, folder / "copy" / package, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    # Whoever starts this environment's Python, even with other variables, finds the copy and then our libraries.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "env" / "lib" / version / "site-packages"
    (site / "copy.pth").write_text(f"{folder / 'copy'}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    environment = os.environ | {
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "PYTHONPATH": str(ROOT / "tests"),
    }
    with subprocess.Popen(
        [str(folder / "env" / "bin" / "python"), "-P", str(Path(__file__).with_name("mutant_worker.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,  # Ctrl-C is ours to handle
    ) as process:
        try:
            yield Worker(folder, process)
        finally:
            process.terminate()


def show(tallies: dict[str, Tally]) -> None:
    """Print a line for each module, and every mistake that no one noticed."""
    print(f"\n{'module':36} mutants  killed  equivalent  open")
    for module, tally in tallies.items():
        print(
            f"{module:36} {tally.made:7}  {tally.killed:6}  {tally.equivalent:10}  {len(tally.survivors):4}"
        )
    made, killed, equivalent = (
        sum(getattr(tally, name) for tally in tallies.values()) for name in ("made", "killed", "equivalent")
    )
    share = killed / max(1, made - equivalent)
    print(
        f"{'all':36} {made:7}  {killed:6}  {equivalent:10}  {made - killed - equivalent:4}  {share:.1%} killed"
    )


def started_as_command() -> None:
    began = time.monotonic()
    is_good = main()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(not is_good)


if __name__ == "__main__":
    started_as_command()

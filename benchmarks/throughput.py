"""Typical suites, in turn with a floor and an earlier version: 50 ms latency, `-j 200`, nothing cached.

The floor is a bare aiohttp loop that sends as many requests of about the same size. The earlier version is the commit
`EARLIER`, if git has it; figures for both are medians.
"""

import csv
import json
import os
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.measured import Measured, measure

TESTS = 1_000
CONNECTIONS = 200
LATENCY_S = 0.05
RUNS = 5
QUICK_RUNS = 3
RATIO_BOUND = 3
FURTHER_BOUND = 2.5
"""Processor time of each further inline test, in that of the floor for its two requests."""
MEMORY_BOUND_MB = 90
PROMPTFOO_S = (14, 17)
EARLIER = "6f0ea81"

BARE_LOOP = """
import asyncio, json, sys
import aiohttp

async def main(url, requests, connections, size):
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * size}], "temperature": 0}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as session:
        async def one():
            async with session.post(url, json=body, headers={"authorization": "Bearer k"}) as response:
                return (await response.json())["choices"][0]["message"]["content"]
        await asyncio.gather(*(one() for _ in range(requests)))

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


class Form(NamedTuple):
    """A way to write a suite. `write` writes config.yaml with so many tests; `is_new`: `EARLIER` cannot run it."""

    name: str
    tests: int
    requests: int
    write: Callable[[Path, int], None]
    body_bytes: int = 900
    is_new: bool = False


def run() -> None:
    compare(RUNS)


def run_quick() -> None:
    compare(QUICK_RUNS)


def compare(turns: int) -> None:
    # As for an installed package. If the environment forbids bytecode, each run would compile changed files.
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "geval_cli"], cwd=Path(__file__).parents[1], check=True
    )
    with earlier_tree() as earlier, fixed_latency_server() as url:
        if earlier is None:
            print(f"git has no {EARLIER} here: compared with the floor alone")
        for form in FORMS:
            compare_form(form, url, None if form.is_new else earlier, turns)
    with tempfile.TemporaryDirectory() as name, fixed_latency_server() as url:
        write_config(Path(name), TESTS)
        show_promptfoo(Path(name), environment(url))


def compare_form(form: Form, url: str, earlier: Path | None, turns: int) -> None:
    print(f"{form.name}: {form.tests:,} tests, {form.requests:,} requests")
    runs: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, env = Path(name), environment(url)
        form.write(folder, form.tests)
        for turn in range(turns):
            contestants = {
                "floor": (floor_command(url, form.requests, form.body_bytes), env),
                "geval": (geval_command(f"home{turn}"), env),
            }
            if earlier is not None:
                contestants[EARLIER] = (geval_command(f"earlier{turn}"), {**env, "PYTHONPATH": str(earlier)})
            for contestant, (command, own_env) in contestants.items():
                before = count(url)
                runs.setdefault(contestant, []).append(measure(command, folder, own_env))
                if turn == 0 and count(url) - before != form.requests:
                    print(f"  {contestant} sent {count(url) - before} requests")
        bare = measured_alone(form, folder, env)
    for contestant, found in runs.items():
        cpu_s, peak_mb = median(run.cpu_s for run in found), max(run.peak_mb for run in found)
        print(
            f"  {contestant:8} {median(run.wall_s for run in found):6.2f} s   "
            f"{cpu_s:5.2f} s of processor   {peak_mb:4.0f} MB"
        )
    ours, floor = (median(run.cpu_s for run in runs[name]) for name in ("geval", "floor"))
    print(
        f"  ratio of times {ratio(runs, 'geval', 'floor'):.2f} ({verdict(ratio(runs, 'geval', 'floor'), RATIO_BOUND)})"
    )
    if earlier is not None:
        share = ours / median(run.cpu_s for run in runs[EARLIER])
        print(f"  processor time {share:.2f} of {EARLIER} ({verdict(share, 1)})")
    if form is FORMS[0]:
        started = bare["floor"].cpu_s, bare["geval"].cpu_s
        further = (ours - started[1]) / max(floor - started[0], 1e-9)
        each_ms = 1000 * (ours - started[1]) / form.tests
        peak_mb = max(run.peak_mb for run in runs["geval"])
        print(
            f"  each further test {each_ms:.2f} ms, {further:.2f} times its requests alone "
            f"({verdict(further, FURTHER_BOUND)}); memory {peak_mb:.0f} MB ({verdict(peak_mb, MEMORY_BOUND_MB)})"
        )


def measured_alone(form: Form, folder: Path, env: dict[str, str]) -> dict[str, Measured]:
    """Measure the startup costs: of geval with one test, and of the floor without requests."""
    form.write(folder, 1)
    return {
        "floor": measure([sys.executable, "-c", "import asyncio, json, sys, aiohttp"], folder, env),
        "geval": measure(geval_command("alone"), folder, env),
    }


def ratio(runs: dict[str, list[Measured]], one: str, other: str) -> float:
    return median(run.wall_s for run in runs[one]) / median(run.wall_s for run in runs[other])


@contextmanager
def earlier_tree() -> Iterator[Path | None]:
    """Check out `EARLIER` in a temporary folder; yields None if git does not have it."""
    repository = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as name:
        packed = subprocess.run(
            ["git", "archive", EARLIER, "geval_cli"], cwd=repository, capture_output=True, check=False
        )
        if packed.returncode:
            yield None
            return
        subprocess.run(["tar", "-x", "-C", name], input=packed.stdout, check=True)
        subprocess.run([sys.executable, "-m", "compileall", "-q", name], check=False)
        yield Path(name)


def show_promptfoo(folder: Path, env: dict[str, str]) -> None:
    theirs = measured_promptfoo(folder, env)
    ours = measure(geval_command("home"), folder, env)
    if theirs is None:
        low, high = PROMPTFOO_S
        print(f"promptfoo 0.123.1 was measured once, elsewhere, at {low}-{high} s for the same tests:")
        print(
            f"  {low / ours.wall_s:.1f} to {high / ours.wall_s:.1f} times as long as a run of geval "
            "(wanted: 8; another machine, so a rough guide; PROMPTFOO=/path/to/promptfoo measures it here)"
        )
    else:
        print(
            f"promptfoo {theirs.wall_s:.2f} s ({theirs.cpu_s:.2f} s, {theirs.peak_mb:.0f} MB): "
            f"{theirs.wall_s / ours.wall_s:.1f} times as long as geval (wanted: 8)"
        )


def verdict(value: float, bound: float) -> str:
    return f"bound {bound:g}: {'kept' if value <= bound else 'BROKEN'}"


def floor_command(url: str, requests: int, body_bytes: int = 900) -> list[str]:
    words = [f"{url}/v1/chat/completions", str(requests), str(CONNECTIONS), str(body_bytes)]
    return [sys.executable, "-c", BARE_LOOP, *words]


def geval_command(home: str) -> list[str]:
    words = f"run config.yaml -j {CONNECTIONS} --no-cache --no-progress --home {home}".split()
    return [sys.executable, "-m", "geval_cli", *words]


def measured_promptfoo(folder: Path, env: dict[str, str]) -> Measured | None:
    """Measure promptfoo on the same tests; None unless PROMPTFOO names its path or command."""
    command = os.environ.get("PROMPTFOO")
    if not command:
        return None
    quiet = {
        "PROMPTFOO_CONFIG_DIR": str(folder / "promptfoo"),
        "PROMPTFOO_DISABLE_TELEMETRY": "1",
        "PROMPTFOO_DISABLE_UPDATE": "1",
        "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    }
    words = f"eval -c promptfoo.yaml -j {CONNECTIONS} --no-cache --no-table --no-progress-bar --no-share"
    return measure([*shlex.split(command), *words.split()], folder, {**env, **quiet})


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-bench", "NO_COLOR": "1"}


@contextmanager
def fixed_latency_server(latency_s: float = LATENCY_S) -> Iterator[str]:
    """Start a server in a separate process; yields its base URL (without /v1)."""
    command = [sys.executable, "-m", "benchmarks.fixed_latency_server", str(latency_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def count(url: str) -> int:
    return int(ask(url, "count"))


def ask(url: str, what: str) -> float:
    with urllib.request.urlopen(f"{url}/{what}") as response:
        return float(response.read())


def write_config(folder: Path, tests: int) -> None:
    """Write a config with its tests in a JSON Lines file, as in large suites, and the same for promptfoo."""
    (folder / "promptfoo.yaml").write_text(
        """\
prompts: ["Write one sentence about {{ topic }}."]
providers: ["openai:chat:m"]
defaultTest:
  options: { provider: "openai:chat:judge" }
  assert: [{ type: g-eval, value: The output is one sentence about the topic. }]
tests: file://tests.jsonl
""",
        encoding="utf-8",
    )
    (folder / "config.yaml").write_text(
        """\
prompts: ["Write one sentence about {{ topic }}."]
providers: [{ id: "openai:m", config: { max_concurrency: 200 } }]
defaultTest:
  options: { provider: { id: "openai:judge", config: { max_concurrency: 200 } } }
  assert: [{ type: g-eval, criteria: The output is one sentence about the topic. }]
tests: file://tests.jsonl
""",
        encoding="utf-8",
    )
    lines = (json.dumps({"vars": {"topic": f"topic number {number}"}}) + "\n" for number in range(tests))
    (folder / "tests.jsonl").write_text("".join(lines), encoding="utf-8")


PROMPT = "prompts: ['Write one sentence about {{ topic }}.']\n"
PROVIDER = 'providers: [{ id: "openai:m", config: { max_concurrency: 200 } }]\n'
JUDGE = 'options: { provider: { id: "openai:judge", config: { max_concurrency: 200 } } }'


def write_inline(folder: Path, tests: int, *, metrics: int = 1) -> None:
    """Write a suite whose tests are in YAML, each with its own g-evals."""
    lines = [PROMPT, PROVIDER, f"defaultTest:\n  {JUDGE}\ntests:\n"]
    for number in range(tests):
        lines.append(f"  - vars: {{ topic: topic number {number} }}\n    assert:\n")
        lines += (
            f"      - type: g-eval\n        metric: m{metric}\n"
            f"        criteria: The output is sentence {metric} about topic number {number}.\n"
            f"        evaluation_steps: [Read the output., Check that it is about topic number {number}.]\n"
            for metric in range(metrics)
        )
    (folder / "config.yaml").write_text("".join(lines), encoding="utf-8")


def write_twenty(folder: Path, tests: int) -> None:
    write_inline(folder, tests, metrics=20)


def write_long(folder: Path, tests: int) -> None:
    """Write a suite whose tests each have a document of 20 kB, which the model and the judge read."""
    (folder / "config.yaml").write_text(
        f"prompts: ['Summarise: {{{{ topic }}}} {{{{ document }}}}']\n{PROVIDER}defaultTest:\n  {JUDGE}\n"
        "  assert: [{ type: g-eval, criteria: The output sums the document up. }]\ntests: file://tests.jsonl\n",
        encoding="utf-8",
    )
    rows = (
        {"vars": {"topic": f"t{number}", "document": "All is well in town. " * 1_000}}
        for number in range(tests)
    )
    (folder / "tests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_csv(folder: Path, tests: int) -> None:
    """Write a suite with tests in a CSV file, each with its own assertion in addition to the g-eval."""
    write_config(folder, 0)
    config = folder / "config.yaml"
    config.write_text(
        config.read_text(encoding="utf-8").replace("tests.jsonl", "tests.csv"), encoding="utf-8"
    )
    with (folder / "tests.csv").open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["topic", "assert.icontains"])
        rows.writerows([f"topic number {number}", "sea"] for number in range(tests))


# With criteria that tests share, a judge writes their steps once; inline, they are in the config.
FORMS = (
    Form("inline", TESTS, 2 * TESTS, write_inline),
    Form("shared", TESTS, 2 * TESTS + 1, write_config),
    Form("CSV", TESTS, 2 * TESTS + 1, write_csv, is_new=True),
    Form("20 metrics a test", TESTS // 20, TESTS // 20 * 21, write_twenty),
    Form("20 kB a test", TESTS // 2, TESTS + 1, write_long, body_bytes=21_000),
)

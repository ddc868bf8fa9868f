"""How long the command takes before it does anything, beside an empty Python process in the same run."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 11
BOUNDS_S = {"--version": 0.2, "--help": 0.2}

CONFIG = """\
prompts: ["{{ x }}"]
providers: [echo]
tests:
""" + "".join(
    f"  - {{ vars: {{ x: {number} }}, assert: [{{ type: contains, value: {number} }}] }}\n"
    for number in range(10)
)


def run() -> None:
    empty = median_s([sys.executable, "-c", "pass"])
    print(f"{'python -c pass':<40} {empty * 1000:7.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_text(CONFIG, encoding="utf-8")
        for words in (
            ["--version"],
            ["--help"],
            ["validate", "config.yaml"],
            ["run", "config.yaml", "--no-progress"],
        ):
            took = median_s([sys.executable, "-m", "geval_cli", *words], folder)
            bound = BOUNDS_S.get(words[0])
            verdict = (
                ""
                if bound is None
                else f"  (bound {bound * 1000:.0f} ms: {'kept' if took <= bound else 'BROKEN'})"
            )
            name = "geval " + " ".join(words)
            print(f"{name:<40} {took * 1000:7.0f} ms  {took / empty:5.1f} x{verdict}")


def median_s(command: list[str], folder: str | None = None) -> float:
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])  # the first one fills the disk cache

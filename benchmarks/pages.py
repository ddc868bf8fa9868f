"""The web page of a run with 5,000 tests: CPU time to its first byte, CPU time of a search, and size in bytes."""

import gzip
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.realistic_runs import COLUMNS, Shape, store_realistic_run

TESTS = 5_000
SETTLING_S = 3
"""After a server has started it reads its templates; the first page is asked for when it is idle."""
PAGE_BOUND_S, SEARCH_BOUND_S = 0.3, 0.5

ASKED = {
    "page, cold": ("", PAGE_BOUND_S),
    "page, warm": ("", PAGE_BOUND_S),
    "rare word": ("/results?q=xyzzy", SEARCH_BOUND_S),
    "two phrases": ("/results?q=%22gift+cards%22+policy", SEARCH_BOUND_S),
    "another script": ("/results?q=%E9%A0%98%E5%8F%8E%E6%9B%B8", SEARCH_BOUND_S),
    "status": ("/results?status=failed", SEARCH_BOUND_S),
    "metric, cold": ("/results?metric=tone", SEARCH_BOUND_S),
    "metric, warm": ("/results?metric=tone", SEARCH_BOUND_S),
    "metadata": ("/results?meta.lang=de", SEARCH_BOUND_S),
}


def run() -> None:
    for columns in (1, 4):
        print(f"{TESTS:,} tests, {columns} column{'s' if columns > 1 else ''}")
        measure(columns)


def measure(columns: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shape = Shape(tests=TESTS, repeats=1, columns=COLUMNS[:columns], has_pairs=False)
        run_id = store_realistic_run(Path(folder), shape)
        server = subprocess.Popen(
            [sys.executable, "-m", "geval_cli", "serve", "--port", "0", "--no-token"],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stderr is not None
            found = re.search(r"http://[^/\s]+", server.stderr.readline())
            assert found is not None, server.stderr.read()
            urllib.request.urlopen(f"{found.group()}/healthz").close()
            time.sleep(SETTLING_S)
            for name, (path, bound_s) in ASKED.items():
                report(name, f"{found.group()}/runs/{run_id}{path}", server.pid, bound_s)
        finally:
            server.terminate()
            server.communicate()


def report(name: str, url: str, pid: int, bound_s: float) -> None:
    before_s, began = processor_s(pid), time.perf_counter()
    asked = urllib.request.Request(url, headers={"accept-encoding": "gzip"})
    with urllib.request.urlopen(asked) as answer:
        body = answer.read(1)
        wall_s, used_s = time.perf_counter() - began, processor_s(pid) - before_s
        body += answer.read()
        is_packed = answer.headers["content-encoding"] == "gzip"
    plain = len(gzip.decompress(body)) if is_packed else len(body)
    verdict = "" if used_s <= bound_s else f"  OVER {bound_s:g} s"
    print(
        f"{name:<14} first byte {used_s:.2f} s of processor time, {wall_s:.2f} s; "
        f"{len(body):,} bytes, {plain:,} unpacked{verdict}"
    )


def processor_s(pid: int) -> float:
    """Return the user and system time of a process, as reported by Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

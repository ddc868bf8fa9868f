"""The long forms of what `make test` holds in small: all of them, or those named, `make soak PARTS="kills mutants"`."""

import argparse
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from soak import batch_kills, coverage, files, mutants, pages, payloads, processes, rankings
from soak import vendors as foreign

from benchmarks import faults, kill

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
KILLED_RUNS = 10
KILLED_BATCHES = 100
FAULTY_TESTS = 300


def on_every_python(_: int) -> bool:
    """`make test` with every supported Python of this machine."""
    found = {version: find_python(version) for version in VERSIONS}
    failed = []
    for version, path in found.items():
        print(f"-- Python {version}: {path or 'not on this machine'}", flush=True)
        if path and subprocess.run(["make", "test", f"PYTHON={path}"], cwd=ROOT, check=False).returncode:
            failed.append(version)
    print(f"failed with: {', '.join(failed) or 'none'}")
    return not failed and any(found.values())


def find_python(version: str) -> Path | None:
    """Return a Python of that version that starts, from the search path or from what pyenv has installed."""
    return next((path for path in _candidates(version) if _starts(path, version)), None)


def _candidates(version: str) -> Iterator[Path]:
    if named := shutil.which(f"python{version}"):
        yield Path(named)
    installed = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    yield from sorted(
        installed, key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))], reverse=True
    )


def _starts(path: Path, version: str) -> bool:
    """Tell a Python from a shim of pyenv whose version is not switched on."""
    finished = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return finished.returncode == 0 and finished.stdout.startswith(f"Python {version}.")


def many_examples(seed: int) -> bool:
    """Forty times as many examples of every property that names no number of its own."""
    options = ["--hypothesis-profile=many", f"--hypothesis-seed={seed}", "-o", "timeout=3600"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "hypothesis", *options]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def kills(seed: int) -> bool:
    """Runs killed at 20 moments each, and gone on with."""
    outcomes = [kill.run(seed=seed + number) for number in range(KILLED_RUNS)]
    return all(outcomes)


def batches(seed: int) -> bool:
    """Runs in batches killed a hundred times, in every state."""
    return batch_kills.run(KILLED_BATCHES, seed)


def faulty(_: int) -> bool:
    """Every kind of fault at 1, 10 and 50 %."""
    return faults.run(FAULTY_TESTS)


def mistakes(seed: int) -> bool:
    """A sample of mistakes put into the core."""
    return mutants.main(["--seed", str(seed)])


def intervals(seed: int) -> bool:
    """How often the intervals of a judge's agreement contain the truth."""
    return coverage.run(seed)


def ranked(seed: int) -> bool:
    """How often the intervals of a ranking contain the true strengths."""
    return rankings.run(seed)


def shared(seed: int) -> bool:
    """Runs in several processes and on several machines: killed, and with a million stored outputs."""
    return processes.run(seed=seed)


def from_files(_: int) -> bool:
    """A hundred thousand tests from JSON Lines, CSV and Parquet."""
    return files.run()


def accessible(_: int) -> bool:
    """Every page by the rules of axe-core, in both themes and two sizes."""
    return pages.run()


def confined(_: int) -> bool:
    """Every way out of a stranger's folder, held by the kernel alone."""
    return payloads.run()


def vendors(_: int) -> bool:
    """A LiteLLM proxy before the model, and a client generated from the HTTP API's description."""
    outcomes = [foreign.proxied(), foreign.generated_client()]
    return all(outcomes)


PARTS: dict[str, Callable[[int], bool]] = {
    "pythons": on_every_python,
    "examples": many_examples,
    "kills": kills,
    "batches": batches,
    "faults": faulty,
    "mutants": mistakes,
    "intervals": intervals,
    "rankings": ranked,
    "processes": shared,
    "files": from_files,
    "pages": accessible,
    "payloads": confined,
    "vendors": vendors,
}


def main() -> None:
    """Run the parts one after another; the exit code is 1 when one of them found something."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"one of: {', '.join(PARTS)}; all of them if none"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.parts) - set(PARTS)):
        parser.error(f"no part named {', '.join(unknown)}; one of: {', '.join(PARTS)}")
    outcomes = {}
    for name in chosen.parts or PARTS:
        print(f"== {name}, seed {chosen.seed}: {PARTS[name].__doc__}", flush=True)
        began = time.monotonic()
        outcomes[name] = PARTS[name](chosen.seed)
        print(
            f"{name}: {'good' if outcomes[name] else 'BAD'}, {time.monotonic() - began:.0f} s\n", flush=True
        )
    bad = [name for name, is_good in outcomes.items() if not is_good]
    print(f"bad: {', '.join(bad)}" if bad else f"all good: {', '.join(outcomes)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()

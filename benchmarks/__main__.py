"""Run every benchmark, or those named on the command line: `python -m benchmarks --quick startup scale`."""

import argparse
import importlib
import os
import pkgutil
from types import ModuleType

import benchmarks
from benchmarks import statistics_simulations


def main() -> None:
    known = find_benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of: {', '.join(known)}; all of them if none"
    )
    parser.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    chosen = parser.parse_args()
    if chosen.names[:1] == ["simulations"]:
        statistics_simulations.run(*chosen.names[1:], quick=chosen.quick)
        return
    unknown = sorted(set(chosen.names) - set(known))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; one of: {', '.join(known)}")
    # As for an installed geval, whose modules were compiled by pip or at the first start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in chosen.names or known:
        print(f"== {name}")
        module = known[name]
        quick = getattr(module, "run_quick", None)
        (quick if chosen.quick and quick else module.run)()


def find_benchmarks() -> dict[str, ModuleType]:
    """Return the modules of this package that are benchmarks; the others are helpers."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    modules["simulations"] = modules.pop("statistics_simulations")
    return {name: module for name, module in sorted(modules.items()) if hasattr(module, "run")}


main()

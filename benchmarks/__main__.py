"""Runs every benchmark, or those named on the command line: `python -m benchmarks startup`."""

import importlib
import pkgutil
import sys

import benchmarks


def main() -> None:
    known = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]
    names = sys.argv[1:] or known
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(known)}")
    for name in names:
        print(f"== {name}")
        importlib.import_module(f"benchmarks.{name}").run()


main()

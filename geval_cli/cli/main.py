"""Where the process begins and ends: the quick answers, and the boundary that turns errors into exit codes."""

import gc
import os
import sys
import traceback
from typing import NoReturn

from geval_cli.version import __version__

DEBUG = "--debug"
"""Wherever it stands in a command, errors are shown with their tracebacks."""

_ALLOCATIONS_PER_COLLECTION = 200_000


def main() -> NoReturn:
    """The `geval` command."""
    if sys.argv[1:] in (["--version"], ["-V"]):  # answered before anything heavy is imported
        sys.stdout.write(f"geval {__version__}\n")
        sys.exit(0)
    sys.exit(_run_command())


def _run_command() -> int:
    _collect_garbage_rarely()
    # Plugins of pydantic have no say in configs, and to look for some it reads about every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from geval_cli.cli.app import app
    from geval_cli.cli.streams import survive_odd_streams
    from geval_cli.errors import ExitCode, GevalError

    survive_odd_streams()
    shows_tracebacks = DEBUG in sys.argv
    sys.argv[1:] = [word for word in sys.argv[1:] if word != DEBUG]
    try:
        app()
    except GevalError as error:
        from geval_cli.cli.problems import print_error

        if shows_tracebacks:
            traceback.print_exc()
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return ExitCode.INTERRUPTED
    except Exception:  # noqa: BLE001 - the last boundary: a bug gets its own exit code and is never silent
        traceback.print_exc()
        sys.stderr.write("\nthis is a bug in geval; please report it with the lines above\n")
        return ExitCode.BUG
    return ExitCode.OK


def _collect_garbage_rarely() -> None:
    """Almost nothing here is garbage in a cycle, and looking for it took a tenth of a large run."""
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 20, 100)


if __name__ == "__main__":
    main()

"""Where the process begins and ends: the quick answers, and the boundary that turns errors into exit codes."""

import os
import sys
import traceback
from typing import NoReturn

from geval_cli.version import __version__


def main() -> NoReturn:
    """The `geval` command."""
    if sys.argv[1:] in (["--version"], ["-V"]):  # answered before anything heavy is imported
        sys.stdout.write(f"geval {__version__}\n")
        sys.exit(0)
    _survive_odd_streams()
    sys.exit(_run_command())


def _run_command() -> int:
    from geval_cli.cli.app import app
    from geval_cli.errors import ExitCode, GevalError

    debug = "--debug" in sys.argv
    try:
        app()
    except GevalError as error:
        from geval_cli.cli.problems import print_error

        if debug:
            traceback.print_exc()
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`geval show | head`): nobody is left to tell. Python would complain
        # once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception:  # noqa: BLE001 - the last boundary: a bug gets its own exit code and is never silent
        traceback.print_exc()
        sys.stderr.write("\nthis is a bug in geval; please report it with the lines above\n")
        return ExitCode.BUG
    return ExitCode.OK


def _survive_odd_streams() -> None:
    """Model output is any Unicode; a terminal or a pipe with a narrow encoding must not stop a paid run."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()

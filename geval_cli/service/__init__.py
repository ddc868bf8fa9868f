"""The use cases, and the only place where rooms are wired together: check a suite, run it, read stored runs."""

from geval_cli.service.evaluation import DEFAULT_CONCURRENCY, run_evaluation
from geval_cli.service.preparation import prepare
from geval_cli.service.requests import PreparedRun, RunRequest
from geval_cli.service.stored import exit_code, load_report

__all__ = [
    "DEFAULT_CONCURRENCY",
    "PreparedRun",
    "RunRequest",
    "exit_code",
    "load_report",
    "prepare",
    "run_evaluation",
]

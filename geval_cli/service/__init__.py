"""The use cases, and the only place where rooms are wired together: check a suite, run it, read stored runs.

What few commands need is not loaded with these: `planning` (what a run would ask), `code` (what it would execute).
"""

from geval_cli.service.evaluation import DEFAULT_CONCURRENCY, run_evaluation
from geval_cli.service.preparation import prepare
from geval_cli.service.requests import PreparedRun, Resumption, RunRequest
from geval_cli.service.resume import ResumedRun, look_up, take_up
from geval_cli.service.stored import exit_code, load_report

__all__ = [
    "DEFAULT_CONCURRENCY",
    "PreparedRun",
    "ResumedRun",
    "Resumption",
    "RunRequest",
    "exit_code",
    "load_report",
    "look_up",
    "prepare",
    "run_evaluation",
    "take_up",
]

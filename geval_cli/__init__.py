"""geval: run prompts against models and check every answer, above all with G-Eval.

The names of the library are imported on first use, which keeps the command line fast.
"""

from importlib import import_module

from geval_cli.version import __version__

TYPE_CHECKING = False  # as in `typing`, whose import takes a quarter of the time before Ctrl-C works
if TYPE_CHECKING:
    from geval_cli.errors import ApiError, ConfigError, GevalError, JudgeError, MissingParamsError, UsageError
    from geval_cli.extras import trust
    from geval_cli.library.check import CheckResult, acheck, check
    from geval_cli.library.metric import GEval, aevaluate_batch, evaluate_batch
    from geval_cli.library.records import Result, TestCase
    from geval_cli.library.run import Comparison, RunResult, arun, compare, run
    from geval_cli.library.schema import SchemaEvaluation, SchemaResult
    from geval_cli.library.suite import Suite
else:
    _HOMES = {
        "ApiError": "geval_cli.errors",
        "CheckResult": "geval_cli.library.check",
        "Comparison": "geval_cli.library.run",
        "ConfigError": "geval_cli.errors",
        "GEval": "geval_cli.library.metric",
        "GevalError": "geval_cli.errors",
        "JudgeError": "geval_cli.errors",
        "MissingParamsError": "geval_cli.errors",
        "Result": "geval_cli.library.records",
        "RunResult": "geval_cli.library.run",
        "SchemaEvaluation": "geval_cli.library.schema",
        "SchemaResult": "geval_cli.library.schema",
        "Suite": "geval_cli.library.suite",
        "TestCase": "geval_cli.library.records",
        "UsageError": "geval_cli.errors",
        "acheck": "geval_cli.library.check",
        "aevaluate_batch": "geval_cli.library.metric",
        "arun": "geval_cli.library.run",
        "check": "geval_cli.library.check",
        "compare": "geval_cli.library.run",
        "evaluate_batch": "geval_cli.library.metric",
        "run": "geval_cli.library.run",
    }

    def __getattr__(name: str) -> object:
        if name == "trust":
            return import_module("geval_cli.extras.trust")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


__all__ = [
    "ApiError",
    "CheckResult",
    "Comparison",
    "ConfigError",
    "GEval",
    "GevalError",
    "JudgeError",
    "MissingParamsError",
    "Result",
    "RunResult",
    "SchemaEvaluation",
    "SchemaResult",
    "Suite",
    "TestCase",
    "UsageError",
    "__version__",
    "acheck",
    "aevaluate_batch",
    "arun",
    "check",
    "compare",
    "evaluate_batch",
    "run",
    "trust",
]


def __dir__() -> list[str]:
    return __all__

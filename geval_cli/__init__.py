"""geval: run prompts against models and have every answer checked, first of all by G-Eval.

The names of the library are imported on first use, so that the command line does not pay for them.
"""

from importlib import import_module

from geval_cli.version import __version__

TYPE_CHECKING = False  # as in `typing`, the import of which is a quarter of what is before the first Ctrl-C
if TYPE_CHECKING:
    from geval_cli.errors import ApiError, GevalError, JudgeError, MissingParamsError, UsageError
    from geval_cli.library.metric import GEval, aevaluate_batch, evaluate_batch
    from geval_cli.library.records import Result, TestCase
    from geval_cli.library.schema import SchemaEvaluation, SchemaResult
else:
    _HOMES = {
        "ApiError": "geval_cli.errors",
        "GEval": "geval_cli.library.metric",
        "GevalError": "geval_cli.errors",
        "JudgeError": "geval_cli.errors",
        "MissingParamsError": "geval_cli.errors",
        "Result": "geval_cli.library.records",
        "SchemaEvaluation": "geval_cli.library.schema",
        "SchemaResult": "geval_cli.library.schema",
        "TestCase": "geval_cli.library.records",
        "UsageError": "geval_cli.errors",
        "aevaluate_batch": "geval_cli.library.metric",
        "evaluate_batch": "geval_cli.library.metric",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


__all__ = [
    "ApiError",
    "GEval",
    "GevalError",
    "JudgeError",
    "MissingParamsError",
    "Result",
    "SchemaEvaluation",
    "SchemaResult",
    "TestCase",
    "UsageError",
    "__version__",
    "aevaluate_batch",
    "evaluate_batch",
]


def __dir__() -> list[str]:
    return __all__

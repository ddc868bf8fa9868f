"""geval: run prompts against models and have every answer checked, first of all by G-Eval."""

from geval_cli.version import __version__

__all__ = ["__version__"]

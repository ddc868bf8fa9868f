"""Run `geval` for `python -m geval_cli`."""

from geval_cli.cli.main import geval

geval()

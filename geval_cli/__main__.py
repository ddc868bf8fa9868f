"""`python -m geval_cli` is `geval`."""

from geval_cli.cli.main import geval

geval()

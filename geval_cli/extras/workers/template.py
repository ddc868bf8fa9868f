"""Imported by the process that workers are forked from, to load everything they need."""

import gc

from geval_cli.runs import collect_garbage_rarely

collect_garbage_rarely()  # before the imports below, which make much and drop little

import geval_cli.extras.workers.executors  # noqa: E402, F401

gc.freeze()  # no copy looks through it again

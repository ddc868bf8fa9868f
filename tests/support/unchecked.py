"""Runs the payloads as if they were trusted: with Landlock around this process, or without any protection.

    python unchecked.py WORLD PORT confined|open [all]

prints, as JSON, which of them showed a secret or made the marker. In the sandbox it takes each place and each form, and
with `all` each of their pairs; without a sandbox, one form for each place.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.payloads import ENV, FORMS, PLACES, World, attempt, escapes, payloads, sample, write

from geval_cli.cli.landlock import restrict_ports
from geval_cli.cli.untrusted import KernelSandbox
from geval_cli.runs.requests import RunRequest

ONE_IN = 5
"""Of the forms of a place, in the sandbox."""


def main() -> None:
    root, port, how, *amount = sys.argv[1:]
    world = World(Path(root), int(port))
    table = list(enumerate(payloads(world)))
    if how == "open":
        table = sample(table[: len(PLACES) * len(FORMS)], len(FORMS))
    elif not amount:
        table = sample(table, ONE_IN)
    for number, payload in table:
        write(world, number, payload)
    if how == "confined":
        table = [(number, item) for number, item in table if item.files_alone and not item.is_patient]
        inside = world.root / "in"
        sandbox = KernelSandbox(is_strict=True)
        sandbox.confine([RunRequest(inside / "config.json", ENV, untrusted=True)], [inside])
        assert sandbox.is_active
        assert restrict_ports({53})
    found = {}
    for number, payload in table:
        try:
            seen = attempt(world, number, payload, untrusted=False, env=ENV)
        except OSError as error:  # a program that the kernel did not start
            seen = str(error)
        out = escapes(world, seen)
        if out:
            found[payload.name] = out
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

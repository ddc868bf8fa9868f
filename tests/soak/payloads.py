"""Every place of a config times every way to lead elsewhere, with no check of geval's own, behind Landlock."""

import tempfile
from pathlib import Path

from support.payloads import build_world
from support.unchecked_runs import listening, run_unchecked

from geval_cli.cli.landlock import landlock_version


def run() -> bool:
    """Print what got out, and return whether nothing did."""
    if landlock_version() < 4:
        print("the kernel has no Landlock that knows ports")
        return False
    with tempfile.TemporaryDirectory() as folder, listening() as listener:
        world = build_world(Path(folder), listener.port)
        found = run_unchecked(world, "confined all")
        print(f"{len(found)} got out, {listener.visits} visits to a server: {found}")
        return not found and not listener.visits and not world.marker.exists()

"""promptfoo's own configs, compared with its recorded results: how many rows and assertions are equal, and why not all.

Needs the recorded results next to the project (see tests/support/promptfoo_rows.py); prints a note if they are missing.
"""

import sys
import tempfile
from pathlib import Path

from geval_cli.store.state import open_state

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.promptfoo_rows import MODES, ROOT, Table, compare, recorded_configs, reference_model


def run() -> None:
    if not (ROOT / "expected").is_dir():
        print(f"no recorded answers of promptfoo at {ROOT}; nothing to compare")
        return
    table = Table()
    with tempfile.TemporaryDirectory() as folder, open_state(Path(folder), {}) as state:
        for mode in MODES:
            with reference_model(mode) as server:
                for recorded in recorded_configs(mode):
                    compared = compare(recorded, server, state)
                    table.add(compared)
                    if compared.refused:
                        print(f"{mode}  {recorded.config}: {compared.refused}")
    print("\n".join(table.lines()))

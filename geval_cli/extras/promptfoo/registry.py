"""The way into promptfoo's dialect. Its readers are imported when the first config of that dialect is read."""

from collections.abc import Mapping
from pathlib import Path

from geval_cli.source.access import Access
from geval_cli.source.source_map import Document
from geval_cli.suite.suite import OpenedSuite, SuiteOverrides
from geval_cli.suite.validation import ScriptCaller


def open_promptfoo_suite(
    documents: list[tuple[Path, Document]],
    *,
    env: Mapping[str, str],
    env_file: Path | None,
    overrides: SuiteOverrides,
    access: Access,
    scripts: ScriptCaller | None,
) -> OpenedSuite:
    """See `geval_cli.extras.promptfoo.load.open_promptfoo_suite`."""
    from geval_cli.extras.promptfoo import load

    return load.open_promptfoo_suite(
        documents, env=env, env_file=env_file, overrides=overrides, access=access, scripts=scripts
    )

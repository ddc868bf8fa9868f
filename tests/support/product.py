"""The product as users see it: the `geval run` command in a folder, with a local server."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.built_commands import keep_built_commands
from support.loopback import LoopbackServer

from geval_cli.cli.main import main


@dataclass(frozen=True)
class Finished:
    """The outcome of a run, and its results.json (empty if nothing was run)."""

    code: int
    stdout: str
    stderr: str
    results: Mapping[str, Any]

    @property
    def cases(self) -> list[Any]:
        return list(self.results["results"])

    @property
    def verdicts(self) -> list[Any]:
        """Return the assertion results of all cases."""
        return [item for case in self.cases for item in case["assertions"]]

    @property
    def verdict(self) -> Any:
        """Return the only assertion result of the run."""
        [only] = self.verdicts
        return only

    @property
    def judge_usage(self) -> Any:
        return self.results["summary"]["usage"]["judge"]


@dataclass
class Product:
    """Runs `geval run` in this process; all runs of one `Product` share the state in its folder."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def run(
        self,
        config: Mapping[str, Any] | Path,
        server: LoopbackServer,
        *options: str,
        key: str = "sk-loopback-0123456789",
    ) -> Finished:
        """Run a config (a file, or its content), with OpenAI's URL and key set to the server's."""
        path = config if isinstance(config, Path) else self.write(config)
        return self.command(server, "run", path.name, *options, folder=path.parent)

    def command(
        self,
        server: LoopbackServer,
        *words: str,
        folder: Path | None = None,
        writes_results: bool = True,
        names_home: bool = True,
    ) -> Finished:
        """Run any command with the same state; with `writes_results`, its results go to a file."""
        results = self.folder / "results.json"
        results.unlink(missing_ok=True)
        environment = {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "sk-loopback-0123456789",
            "COLUMNS": "100",
        }
        for name, value in environment.items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.chdir(folder or self.folder)
        output = ["-o", str(results)] if writes_results else []
        state = [] if "--home" in words or not names_home else ["--home", str(self.folder / "state")]
        self.monkeypatch.setattr(sys, "argv", ["geval", *words, *output, *state])
        self.capsys.readouterr()
        keep_built_commands()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
        return Finished(int(ended.value.code or 0), printed.out, printed.err, found)

    def write(self, config: Mapping[str, Any]) -> Path:
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(dict(config), allow_unicode=True, sort_keys=False), encoding="utf-8")
        return path

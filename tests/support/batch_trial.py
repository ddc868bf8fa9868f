"""Runs of one suite in batches, in this process or in a forked one that is killed, against the batch API emulator."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.batch_server import BatchServer
from support.batch_vendors import VENDORS

from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.events import RunEvent
from geval_cli.providers.preset_table import PRESETS
from geval_cli.records import to_json
from geval_cli.report.report import RunReport
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import resume_run
from geval_cli.store.state import CacheChoice, open_state

PRICE = {"input": 1, "output": 2, "batch": {"input": 0.5, "output": 1}}
_DIFFERS = frozenset({"latency_ms", "cost_usd", "cost_usd_generated", "batched_requests", "location"})


@dataclass
class Ended:
    """A run that ended in this process."""

    report: RunReport
    reason: StopReason | None
    events: list[RunEvent]
    results: list[Any]
    notices: tuple[str, ...]

    @property
    def run(self) -> Any:
        return to_json(self.report.run)

    @property
    def usage(self) -> Any:
        return to_json(self.report.summary.usage)


@dataclass
class BatchSuite:
    """A suite of `tests` tests, each with a model's answer and a judge's verdict on it."""

    folder: Path
    server: BatchServer
    tests: int = 30
    wire: str = "openai"
    options: Mapping[str, Any] = field(default_factory=dict)
    home: str = "home"
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        vendor = VENDORS.get(self.wire)
        url = (
            f"http://127.0.0.1:{self.server.port}{vendor.prefix}{vendor.base}"
            if vendor
            else self.server.base_url
        )
        of_vendor = {"base_url": url} if self.wire not in {"openai", "anthropic"} else {}
        kind = self.wire
        if self.wire == "bedrock":
            kind, of_vendor = (
                "bedrock:converse",
                {"batch_s3": "s3://geval-bucket/runs/", "region": "eu-west-1"},
            )
            of_vendor["batch_role_arn"] = "arn:aws:iam::123456789012:role/batches"
        if self.wire == "azure":
            of_vendor["batch_deployment"] = "global-batch"
        settings = {"price": PRICE, "max_retries": 2, **of_vendor, **self.config}
        document = {
            "prompts": ["Write one sentence about topic {{ number }}."],
            "providers": [{"id": f"{kind}:m", "config": settings}],
            "defaultTest": {
                "options": {
                    "provider": {"id": f"{kind}:judge", "config": settings},
                    "scoring": "single",
                },
                "assert": [
                    {"type": "g-eval", "criteria": "It is one sentence about the topic.", "threshold": 0.5}
                ],
            },
            "tests": [{"vars": {"number": number}} for number in range(self.tests)],
            "options": {"batch": {"poll_s": 0.001, **self.options}},
        }
        self.path.write_text(json.dumps(document), encoding="utf-8")

    @property
    def path(self) -> Path:
        return self.folder / "config.json"

    @property
    def environ(self) -> dict[str, str]:
        url = self.server.base_url
        return {
            "AWS_ACCESS_KEY_ID": "AKIDBATCH",
            "AWS_SECRET_ACCESS_KEY": "sk-batch",
            **dict.fromkeys(
                ("AWS_ENDPOINT_URL_BEDROCK", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"),
                f"{url.removesuffix('/v1')}/bedrock",
            ),
            "AWS_ENDPOINT_URL_S3": f"{url.removesuffix('/v1')}/bedrock/s3",
            "OPENAI_BASE_URL": url,
            **{preset.key_envs[0]: "sk-batch" for preset in PRESETS.values() if preset.batch},
            "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        }

    def run(
        self,
        *,
        is_batched: bool = True,
        listen: Callable[[RunEvent, StopSignal], None] | None = None,
        **options: Any,
    ) -> Ended:
        """Run the suite in this process; `listen` may ask it to stop."""
        return asyncio.run(self.arun(is_batched=is_batched, listen=listen, **options))

    async def arun(
        self,
        *,
        is_batched: bool = True,
        listen: Callable[[RunEvent, StopSignal], None] | None = None,
        **options: Any,
    ) -> Ended:
        """Do the same as `run`, inside an event loop."""
        stop, events = StopSignal(), []
        request = RunRequest(self.path, self.environ, **{"batch": is_batched, **options})
        prepared = prepare(request)

        def on_event(event: RunEvent) -> None:
            events.append(event)
            if listen is not None:
                listen(event, stop)

        with open_state(self.folder / self.home, {}, CacheChoice()) as state:
            resumed = resume_run(prepared, state.runs) if request.resumes else None
            report = await run_evaluation(prepared, state, listen=on_event, stop=stop, resumed=resumed)
            results = [to_json(result) for result in report.results()]
        return Ended(report, stop.reason, events, results, report.run.warnings)

    def run_until_killed(self, operation: str, when: str, **options: Any) -> bool:
        """Run it in a forked process that is killed at the next request of one kind; return False if there was none."""
        with self._victim(operation, when) as is_killed:
            process = os.fork()
            if process == 0:
                code = 1
                try:
                    self.run(**options)
                    code = 0
                finally:
                    os._exit(code)
            self.server.victim.put(process)
            _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in {0, -signal.SIGKILL}, f"the run ended with {code}"
        return is_killed() and code != 0

    @contextmanager
    def _victim(self, operation: str, when: str) -> Iterator[Callable[[], bool]]:
        while not self.server.victim.empty():
            self.server.victim.get()
        self.server.kills_at = operation, when
        yield lambda: self.server.kills_at is None
        self.server.kills_at = None


def comparable(value: Any) -> Any:
    """Return a result without its costs and durations."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key not in _DIFFERS}
    return [comparable(item) for item in value] if isinstance(value, list) else value

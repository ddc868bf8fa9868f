"""What a progress display knows of a run under way: counts, calls, cost, and how long the rest may take."""

from msgspec import Struct, field

from geval_cli.events import CaseFinished, ModelCalled, RunEvent, RunStarted
from geval_cli.numbers import format_cost
from geval_cli.records import Role, Status, Usage
from geval_cli.report.numbers import format_clock, format_count, format_percentage, plural

_ETA_FROM_DONE = 3
_ETA_FROM_SHARE = 0.01
"""An estimate from fewer finished cases than this would only jump about."""


class RunState(Struct):
    """Adds up events. Times are seconds of the clock that the owner reads."""

    started_s: float
    total: int = 0
    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    calls: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 0))
    usage: Usage = Usage()

    def add(self, event: RunEvent) -> None:
        """Take one event into account."""
        if isinstance(event, RunStarted):
            self.total = event.total
        elif isinstance(event, CaseFinished):
            self.counts[event.result.status] += 1
        elif isinstance(event, ModelCalled):
            self.calls[event.role] += max(event.usage.requests, 1)
            self.usage += event.usage

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    def count_parts(self) -> list[tuple[Status, str]]:
        """`5 passed`, `2 failed`, `1 error`; failures and errors stand there only once there are any."""
        passed, failed, errors = (self.counts[item] for item in (Status.PASSED, Status.FAILED, Status.ERROR))
        parts = [(Status.PASSED, f"{passed:,} passed")]
        if failed:
            parts.append((Status.FAILED, f"{failed:,} failed"))
        if errors:
            parts.append((Status.ERROR, plural(errors, "error")))
        return parts

    def counts_text(self) -> str:
        """The counts as one phrase."""
        return ", ".join(text for _, text in self.count_parts())

    def calls_text(self) -> str:
        """`calls 12 + 24 judge, 40% cached, $0.02`; the cost only when a price is known."""
        judge = self.calls[Role.JUDGE]
        text = f"calls {format_count(self.calls[Role.GENERATION])}"
        parts = [f"{text} + {format_count(judge)} judge" if judge else text]
        if self.usage.cached_requests and self.usage.requests:
            parts.append(f"{format_percentage(self.usage.cached_requests, self.usage.requests)} cached")
        if self.usage.cost_usd:
            parts.append(format_cost(self.usage.cost_usd))
        return ", ".join(parts)

    def elapsed_text(self, now_s: float) -> str:
        """`1m 05s`."""
        return format_clock(max(now_s - self.started_s, 0))

    def eta_text(self, now_s: float) -> str:
        """`ETA 2m 10s`; empty while too little is known, and at the end."""
        is_early = self.done < max(_ETA_FROM_DONE, self.total * _ETA_FROM_SHARE)
        if is_early or self.done >= self.total:
            return ""
        elapsed = now_s - self.started_s
        return f"ETA {format_clock(elapsed / self.done * (self.total - self.done))}"

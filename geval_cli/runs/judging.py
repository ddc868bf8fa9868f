"""Provide judges outside of a suite's run: for the library and the HTTP API."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from geval_cli.assertions.rating_keys import OWN_HASHES
from geval_cli.errors import Problem, Severity, UsageError
from geval_cli.events import Noticed, RunEvent
from geval_cli.extras.batches.driver import BatchDriver
from geval_cli.extras.batches.layer import batch_api
from geval_cli.extras.programs.scripting.scripts import Scripts
from geval_cli.gateway.gateway import BoundModel, CallPolicy, Gateway
from geval_cli.judge.grading import grade
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.metric import Grade, Judge, JudgedCase, Metric
from geval_cli.providers.base import AdoptedJudge, Provider, ProviderSource
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.registry import (
    NONE_PROVIDER,
    build_client_provider,
    build_provider,
    check_provider,
    check_ready,
)
from geval_cli.providers.wire.client_model import ClientModel
from geval_cli.records import AssertionResult, ErrorInfo
from geval_cli.source.access import TRUSTED, Access
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache

_SHARED_SPECS_KEPT = 64


@dataclass(slots=True)
class ProviderPool:
    """Builds each provider once. Belongs to one event loop.

    `secrets` are those of all that it has built, and of the environment.
    """

    env: Mapping[str, str] = field(repr=False)
    base_dir: Path
    access: Access
    secrets: Secrets = field(default_factory=Secrets)
    _values: set[str] = field(default_factory=set, repr=False)
    _built: dict[bytes, Provider] = field(default_factory=dict)
    _shared: dict[int, tuple[ProviderSpec, Provider]] = field(default_factory=dict)

    def get(self, spec: ProviderSpec) -> Provider:
        """Return the provider of a checked `spec`; the same one for an equal spec."""
        shared = self._shared.get(id(spec))  # most tests share one spec, and comparing by content is slow
        if shared is not None:
            return shared[1]
        key = spec.fingerprint
        if key not in self._built:
            source = ProviderSource(spec, self.env, self.base_dir, access=self.access)
            self._built[key] = build_provider(spec, env=self.env, base_dir=self.base_dir, access=self.access)
            self._values.update(source.secret_values)
            self.secrets = Secrets(self._values)
        if len(self._shared) < _SHARED_SPECS_KEPT:
            self._shared[id(spec)] = spec, self._built[key]
        return self._built[key]

    def has(self, spec: ProviderSpec) -> bool:
        """Return whether the provider of `spec` is built."""
        return spec.fingerprint in self._built

    async def aclose(self) -> None:
        await asyncio.gather(*(provider.aclose() for provider in self._built.values()))


class Judges:
    """Judges that share one gateway and what is found out about them. Belongs to one event loop; `judging` makes it.

    Equal requests reach a judge once, also one whose answers no cache may keep (a program, a function).
    """

    def __init__(self, gateway: Gateway, pool: ProviderPool) -> None:
        self._gateway = gateway
        self._pool = pool
        self._memory = JudgeMemory()
        self._adopted: dict[int, AdoptedJudge] = {}
        self._clients: dict[tuple[int, str], tuple[ClientModel, Provider]] = {}
        self._scripts: Scripts | None = None

    def find(self, spec: ProviderSpec) -> Judge:
        """Return the judge that `spec` names.

        Raises:
            UsageError: with every problem that the spec has, or that this machine has with it (no key, no model file).
        """
        if not self._pool.has(spec):
            problems = [*judge_problems(spec, env=self._pool.env, base_dir=self._pool.base_dir)]
            if problems:
                raise UsageError.of(f"{spec.public_id} cannot judge", problems)
        return self._gateway.model(self._pool.get(spec))

    def adopt(self, judge: Judge) -> Judge:
        """Return a judge that somebody else made, behind this gateway: equal requests reach it once."""
        adopted = self._adopted.setdefault(id(judge), AdoptedJudge(judge, len(self._adopted)))
        return self._gateway.model(adopted)

    def connect(self, asked: ClientModel) -> Judge:
        """Return a judge that is asked through a client of the user's; `aclose` closes what was opened for it."""
        key = id(asked.client), asked.model
        if key not in self._clients:
            self._clients[key] = asked, build_client_provider(asked, len(self._clients))
        return self._gateway.model(self._clients[key][1])

    @property
    def batches(self) -> BatchDriver | None:
        """Hands in and fetches what goes into batches; None where nothing does."""
        driver: BatchDriver | None = self._gateway.batches
        return driver

    def has_batches(self, judge: Judge) -> bool:
        """Return whether a judge of these can be asked in batches."""
        return isinstance(judge, BoundModel) and batch_api(judge.provider) is not None

    def begin_pass(self) -> None:
        """Begin to judge what has no verdict yet, since answers came with a batch."""
        self._gateway.begin_pass()

    def settle(self, keys: Iterable[str]) -> None:
        """Note that a case has its verdict, for which the answers with these keys have counted."""
        self._gateway.settle(keys)

    async def aclose(self) -> None:
        """Close the connections of `connect` and the processes of `scripts`; the users' own clients stay open."""
        if self._scripts is not None:
            await self._scripts.aclose()
        await asyncio.gather(*(provider.aclose() for _, provider in self._clients.values()))

    def model_for(self, spec: ProviderSpec) -> Judge:
        """Return the judge of a checked `spec`."""
        return self._gateway.model(self._pool.get(spec))

    @property
    def memory(self) -> JudgeMemory:
        """The steps of each criterion, asked for once."""
        return self._memory

    @property
    def secrets(self) -> Secrets:
        """Keys that are taken out of their words."""
        return self._pool.secrets

    @property
    def scripts(self) -> Scripts:
        """Whatever runs the code of assertions."""
        if self._scripts is None:
            self._scripts = Scripts(self._pool.base_dir, self._pool.access, env=self._pool.env)
        return self._scripts

    async def grade(self, metric: Metric, case: JudgedCase, judge: Judge) -> Grade:
        """Have one of these judges rate `case`; raises what `geval_cli.judge.grading.grade` raises."""
        found = await grade(metric, case, judge, memory=self._memory)
        return without_secrets(found, self._pool.secrets)


def without_secrets(grade: Grade, secrets: Secrets) -> Grade:
    """`grade` with no secret in what the judge wrote: a gateway before it may say back what it was sent."""
    return replace(
        grade,
        reason=None if grade.reason is None else secrets.hide(grade.reason),
        evaluation_steps=tuple(map(secrets.hide, grade.evaluation_steps)),
        detail=secrets.hide_in(grade.detail),
    )


def safe_assertion(found: AssertionResult, secrets: Secrets) -> AssertionResult:
    """Return a result with no secret in what judges, webhooks and code say."""
    error, said = found.error, [found.reason, {**found.detail, **dict.fromkeys(OWN_HASHES)}]
    safe = secrets.hide_in(said)
    if safe is said and error is None and not found.assertions:  # nearly all
        return found
    reason, detail = safe
    return replace(
        found,
        reason=reason,
        error=None if error is None else _safe_error(error, secrets),
        detail={name: found.detail[name] if name in OWN_HASHES else detail[name] for name in found.detail},
        assertions=tuple(safe_assertion(item, secrets) for item in found.assertions),
    )


def _safe_error(error: ErrorInfo, secrets: Secrets) -> ErrorInfo:
    """Return the error with no secret in any of its texts."""
    texts = {name: getattr(error, name) for name in ("message", "hint", "raw")}
    return replace(error, **{name: secrets.hide_in(text) for name, text in texts.items()})


@asynccontextmanager
async def judging(
    *,
    env: Mapping[str, str],
    base_dir: Path,
    cache: ResponseCache | None = None,
    max_concurrency: int | None = None,
    policy: CallPolicy | None = None,
    notice: Callable[[str], None] = lambda message: None,
) -> AsyncIterator[Judges]:
    """Provide judges until the end of the block.

    Args:
        env: where keys and base URLs are looked up.
        base_dir: what paths in provider ids are relative to.
        cache: where answers are kept; None keeps the latest in memory.
        max_concurrency: requests on the wire at once; None for no cap but the providers' own.
        policy: what may be spent, and whether anything may be sent; None for no bounds.
        notice: is told, once and in a sentence, what a user should know (a parameter that a server does not take).
    """

    def listen(event: RunEvent) -> None:
        if isinstance(event, Noticed):
            notice(event.message)

    async with AsyncExitStack() as stack:
        # Its judges are named by the program or the server itself.
        pool = ProviderPool(env, base_dir, TRUSTED)
        stack.push_async_callback(pool.aclose)
        gateway = Gateway(
            cache=cache,
            on_event=listen,
            max_concurrency=max_concurrency,
            policy=CallPolicy() if policy is None else policy,
        )
        stack.push_async_callback(gateway.aclose)
        judges = Judges(gateway, pool)
        stack.push_async_callback(judges.aclose)
        yield judges


def judge_problems(
    spec: ProviderSpec, *, env: Mapping[str, str], base_dir: Path, is_going_to_judge: bool = True
) -> Iterator[Problem]:
    """Yield the problems of a provider as a judge; nothing is sent.

    Without `is_going_to_judge`, what only this machine lacks (a key, a model file) is left out.
    """
    if spec.id == NONE_PROVIDER:
        yield Problem(f"`{spec.public_id}` is no model", hint="name one, for example openai:gpt-4.1")
        return
    problems = check_provider(spec, env=env, base_dir=base_dir, access=TRUSTED)
    if not problems and is_going_to_judge:
        problems = check_ready(spec, env=env, base_dir=base_dir, access=TRUSTED)
    yield from (problem for problem in problems if problem.severity is Severity.ERROR)

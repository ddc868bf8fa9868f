"""Run shards on several machines, as tasks of a Ray cluster.

Ray places the tasks, ships the config and notices that a worker or a machine is gone. Each machine keeps answers on its
own disk before anything uses them, and sends them to the cache of the run within 50 ms; what that one knows already is
fetched through an actor beside it, which also tells the workers to stop.
"""

import asyncio
import contextlib
import logging
import os
import platform
import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace as replace_fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.engine.runner import StopReason
from geval_cli.errors import ConfigError, GevalError, UsageError
from geval_cli.extras.workers.executors import HURRY, Hear, WorkerLostError
from geval_cli.extras.workers.shards import Lot, ShardEnd, ShardOrder, lot_from_json, lot_to_json
from geval_cli.extras.workers.worker import Lots, ShardRunner, WorkerSetup, mistakes_of, open_runner
from geval_cli.runs.options import LOCAL
from geval_cli.store.cache import ResponseCache
from geval_cli.store.node_cache import AnswerRow, KnownKeys, NodeCache, packed_keys, rows_of
from geval_cli.version import __version__, install_hint

_NOT_SHIPPED = (".geval", ".git", ".venv*", ".env*", "node_modules", "__pycache__")
_FOUND_BY_RAY = "auto"  # the cluster that this machine is part of
_PATIENCE_S = 5.0
_START = (
    "`ray start --head` starts a cluster and prints its address; --ray local starts one for this run alone"
)
_CLEANING_S = 5.0
_END = "end"
_AFFAIRS = 1_000  # calls of the hub that may wait at once: each worker waits for the word to stop


class NodeSetup(Struct, frozen=True):
    """The facts of a run for the workers of a cluster.

    Attributes:
        run: as for any worker; its `environ` is empty, since keys stay on each machine.
        version: of geval; all must have the same one.
        folder: the folder to work in, where all processes are on one machine; None where Ray ships the config's.
    """

    run: WorkerSetup
    version: str
    folder: str | None


def check_cluster(address: str) -> None:
    """Check that a cluster can be asked for, without asking it.

    Raises:
        UsageError: Ray is not installed, or nothing listens at the address; Ray itself would try for many minutes.
    """
    if "://" in address:
        hint = "run geval on a machine of the cluster, and name the address that `ray start` prints, or auto"
        raise UsageError(f"--ray cannot use `{address}`: it connects from inside a cluster", hint=hint)
    if address not in {LOCAL, _FOUND_BY_RAY}:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
        except (OSError, ValueError, OverflowError) as error:
            message = f"--ray cannot reach a cluster at `{address}`: nothing listens there"
            raise UsageError(message, hint=_START) from error
    if find_spec("ray") is None:
        raise UsageError("--ray needs Ray, which is not installed", hint=install_hint("ray"))


def join_cluster(address: str, config: Path) -> int:
    """Connect to a cluster, or start one on this machine, and return how many processors it has.

    Args:
        address: `local`, `auto` for the cluster that this machine is part of, or its address.
        config: the config, whose folder is sent to the machines of the cluster.

    Raises:
        UsageError: there is no such cluster, or it does not let us in.
    """
    # It would send figures about its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # noqa: PLC0415 - few runs have a cluster

    shipped = {"working_dir": str(config.resolve().parent), "excludes": list(_NOT_SHIPPED)}
    own: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {"runtime_env": shipped}
    cluster: Any = ray  # only some of its functions have types
    try:
        cluster.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        return int(cluster.cluster_resources().get("CPU", 1))
    except Exception as error:
        if address == LOCAL:
            message = f"Ray cannot start on this machine: {str(error) or type(error).__name__}"
            raise UsageError(message, hint="make room in TMPDIR and memory, or use --workers") from error
        message = f"--ray cannot reach a cluster at `{address}`: {error}"
        raise UsageError(
            message, hint=f"{_START}; where it asks for a token, set RAY_AUTH_MODE=token"
        ) from error


class RayWorkers:
    """Workers on the machines of a cluster. Belongs to one event loop; `join_cluster` comes first."""

    def __init__(self, setup: WorkerSetup, address: str) -> None:
        import ray  # noqa: PLC0415 - as above
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - as above

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._hub: Any = (
            ray.remote(Hub)
            .options(num_cpus=0, max_concurrency=_AFFAIRS, scheduling_strategy=here)
            .remote(str(setup.cache.folder.resolve()), setup.reads_since_s)
        )
        sent = replace(setup, request=setup.request.for_machines(is_here=address == LOCAL))
        folder = str(Path.cwd()) if address == LOCAL else None
        self._setup: Any = ray.put(NodeSetup(sent, __version__, folder))
        self._task: Any = ray.remote(do_shard_on_node).options(num_cpus=1, max_retries=0)
        self._hosts: dict[int, str] = {}
        self._is_closed = False

    def host(self, worker: int) -> str:
        """Return the machine that did the last shard of a worker."""
        return self._hosts.get(worker, "")

    async def run(self, worker: int, order: ShardOrder, hear: Hear) -> ShardEnd:
        """Have a task do a shard; as `ShardExecutor.run`."""
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415 - as above

        try:
            async for told in self._task.remote(self._setup, self._hub, order):
                message = await told
                if isinstance(message, str):
                    self._hosts[worker] = message
                    continue
                lot = lot_from_json(message)
                await hear(lot)
                if lot.end is not None:
                    return lot.end
        except RayTaskError as error:
            raise RuntimeError(str(error)) from error
        except RayError as error:
            raise WorkerLostError from error
        raise WorkerLostError

    def stop(self, reason: StopReason) -> None:
        """Have all workers start no further job."""
        self._hub.tell.remote(reason.value)

    def hurry(self) -> None:
        """Have all workers grant no grace to what is under way."""
        self._hub.tell.remote(HURRY.decode())

    async def aclose(self) -> None:
        """Leave the cluster. Safe to call twice."""
        import ray  # noqa: PLC0415 - as above

        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(
                TimeoutError, ray.exceptions.RayError
            ):  # a lost machine cleans up nothing
                await asyncio.wait_for(self._hub.end.remote(), _CLEANING_S)
            await asyncio.to_thread(ray.shutdown)


class Hub:
    """An actor beside the cache of the run: gives its answers to other machines, and passes on the word to stop."""

    def __init__(self, folder: str, since_s: float) -> None:
        self._cache = ResponseCache.open(Path(folder))
        self._since_s = since_s
        self._words: list[str] = []
        self._here: set[str] = set()
        self._has_news = asyncio.Event()

    async def keys(self) -> bytes:
        """Return the keys of all answers that may be used."""
        return await packed_keys(self._cache, self._since_s)

    async def rows(self, keys: Sequence[str]) -> list[AnswerRow]:
        """Return the answers of keys."""
        return await rows_of(self._cache, keys)

    async def word(self, number: int) -> str:
        """Wait until there are more than `number` words for the workers, and return the next one."""
        while len(self._words) <= number:
            self._has_news.clear()
            await self._has_news.wait()
        return self._words[number]

    async def tell(self, word: str) -> None:
        """Tell all workers to stop, to hurry, or that the run has ended."""
        self._words.append(word)
        self._has_news.set()

    async def come(self, worker: str) -> None:
        """Note that a worker has something on the disk of its machine."""
        self._here.add(worker)

    async def go(self, worker: str) -> None:
        """Note that a worker has removed that."""
        self._here.discard(worker)
        self._has_news.set()

    async def end(self) -> None:
        """Tell all workers that the run has ended, and wait until they have cleaned up."""
        await self.tell(_END)
        while self._here:
            self._has_news.clear()
            await self._has_news.wait()


class _NodeProcess:
    """The state that a process of the cluster keeps from one shard to the next. There is one in a process."""

    current: "_NodeProcess | None" = None

    def __init__(self, setup: NodeSetup, hub: Any, node: str) -> None:
        self.run_id = setup.run.run_id
        self._setup = setup
        self._hub = hub
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._runner: ShardRunner | None = None
        self._cache: NodeCache | None = None
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._name = f"{node}-{os.getpid()}"
        self._folder = Path(tempfile.gettempdir()) / f"geval-{self.run_id}-{node}"
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def do(self, order: ShardOrder) -> Iterator[bytes]:
        """Do a shard, and yield what happens as messages."""
        doing = asyncio.run_coroutine_threadsafe(self._do(order), self._loop)
        doing.add_done_callback(lambda _: self._messages.put(None))
        while (message := self._messages.get()) is not None:
            yield message
        doing.result()

    async def _do(self, order: ShardOrder) -> None:
        if self._runner is None:
            try:
                self._runner = await self._opened(order)
            except ConfigError as error:
                self._messages.put(lot_to_json(Lot(end=ShardEnd(mistakes=mistakes_of(error)))))
                return
        if order.is_repeated and self._cache is not None:
            self._cache.known = KnownKeys(await self._hub.keys.remote())
        await self._runner.run(order)

    async def _opened(self, order: ShardOrder) -> ShardRunner:
        setup = self._setup.run
        setup = replace(setup, request=replace_fields(setup.request, environ=dict(os.environ)))
        lots = Lots(self._messages.put)
        await self._hub.come.remote(self._name)
        cache = self._cache = NodeCache.open(self._folder, ttl_s=setup.cache.ttl_s)
        self._stack.callback(cache.close)
        cache.known = KnownKeys(await self._hub.keys.remote())
        cache.fetch, cache.share = self._fetch, lots.share
        runner = await self._stack.enter_async_context(open_runner(setup, order.permit, lots, cache))
        self._listening = asyncio.ensure_future(self._listen(runner))
        return runner

    async def _fetch(self, keys: Sequence[str]) -> Sequence[AnswerRow]:
        rows: list[AnswerRow] = await self._hub.rows.remote(keys)
        return rows

    async def _listen(self, runner: ShardRunner) -> None:
        number = 0
        while True:
            word = await self._hub.word.remote(number)
            number += 1
            if word == _END:
                await self._stack.aclose()
                shutil.rmtree(self._folder, ignore_errors=True)
                await self._hub.go.remote(self._name)
                return
            if word == HURRY.decode():
                runner.hurry()
            else:
                runner.stop(StopReason(word))


def do_shard_on_node(setup: NodeSetup, hub: Any, order: ShardOrder) -> Iterator[str | bytes]:
    """Do a shard in this process of a cluster; yields the name of the machine, and then lots as messages."""
    yield platform.node()
    if setup.version != __version__:
        message = f"geval {__version__} is on {platform.node()}, and geval {setup.version} runs this"
        yield lot_to_json(Lot(end=ShardEnd(mistakes=(message,))))
        return
    if setup.folder is not None:
        os.chdir(setup.folder)
    process = _NodeProcess.current
    if process is None or process.run_id != setup.run.run_id:
        import ray  # noqa: PLC0415 - as above

        process = _NodeProcess.current = _NodeProcess(setup, hub, ray.get_runtime_context().get_node_id())
    try:
        yield from process.do(order)
    except GevalError as error:
        raise RuntimeError(
            error.message
        ) from error  # others of ours do not survive the way to another process

"""Run shards on several machines, as tasks of a Ray cluster.

Ray places the tasks, ships the config, and notices when a worker or machine is lost. Workers on the machine that shows
the run write answers directly into its cache. Every other machine first stores answers on its own disk, then sends them
to that cache within 50 ms; answers that a killed run did not send are fetched by the next run. An actor next to the
cache serves the answers it has, and tells workers to stop.

Each machine has a cache of its own, with the answers on its disk and those of the machine that shows the run.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import platform
import queue
import socket
import tempfile
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace as replace_fields
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.engine.runner import StopReason
from geval_cli.errors import ConfigError, GevalError, UsageError
from geval_cli.extras.workers.executors import HURRY, Listener, WorkerLostError
from geval_cli.extras.workers.shards import EventBatch, ShardEnd, ShardOrder, batch_from_json, batch_to_json
from geval_cli.extras.workers.worker import EventBatcher, ShardRunner, WorkerSetup, mistakes_of, open_runner
from geval_cli.runs.options import LOCAL
from geval_cli.store.cache import CacheRow, ResponseCache, StoredChoice, insert_rows
from geval_cli.store.home import abandoned_folders, hold_folder, make_temporary_folder, remove_folder
from geval_cli.version import __version__, install_hint

_PREFIX_DIGITS = 16  # of a key: eight bytes, which among a billion keys are rarely those of another one

AnswerRow = tuple[bytes, float, str | bytes, str | None]
"""An answer as a cache row: key, seconds since 1970, the encoded answer, the only run that may use it (or None)."""

Fetch = Callable[[Sequence[str]], Awaitable[Sequence[AnswerRow]]]
"""Fetches the answers for keys from the other machine."""

_KEYS = "SELECT key FROM choices WHERE created_at >= ? ORDER BY key"
_ROWS = "SELECT key, created_at, answer, only_run FROM choices WHERE key IN ({})"


class KnownKeys:
    """The keys of another cache, eight bytes each: no false negatives, and almost no false positives."""

    def __init__(self, packed: bytes = b"") -> None:
        self._prefixes = array("Q")
        self._prefixes.frombytes(packed)

    def may_hold(self, key: str) -> bool:
        """Return False only if the other cache had no answer for `key`."""
        prefix = int(key[:_PREFIX_DIGITS], 16)
        place = bisect_left(self._prefixes, prefix)
        return place < len(self._prefixes) and self._prefixes[place] == prefix


async def packed_keys(cache: ResponseCache, since_s: float) -> bytes:
    """Return the keys of answers stored after `since_s`, in the format of `KnownKeys`.

    Raises:
        StoreError: the cache cannot be read.
    """
    found = await cache._reader.run(lambda connection: connection.execute(_KEYS, (since_s,)).fetchall())
    return array("Q", (int.from_bytes(key[: _PREFIX_DIGITS // 2]) for (key,) in found)).tobytes()


async def rows_of(cache: ResponseCache, keys: Sequence[str]) -> list[AnswerRow]:
    """Return the answers for keys as rows.

    Raises:
        StoreError: the cache cannot be read.
    """
    marks = ",".join("?" * len(keys))
    asked = [bytes.fromhex(key) for key in keys]
    rows: list[Any] = await cache._reader.run(
        lambda connection: connection.execute(_ROWS.format(marks), asked).fetchall()
    )
    return [tuple(row) for row in rows]


async def all_keys(cache: ResponseCache) -> list[str]:
    """Return the keys of all answers.

    Raises:
        StoreError: the cache cannot be read.
    """
    found = await cache._reader.run(lambda connection: connection.execute(_KEYS, (0.0,)).fetchall())
    return [key.hex() for (key,) in found]


async def keep_rows(cache: ResponseCache, rows: Sequence[AnswerRow]) -> None:
    """Store answers of another cache, unchanged.

    Raises:
        StoreError: the cache cannot be written.
    """
    await cache._writing().run(lambda connection: insert_rows(connection, rows))


class NodeCache(ResponseCache):
    """A cache on the disk of one machine; it fetches answers from the run's cache and forwards new ones to it."""

    known = KnownKeys()
    fetch: Fetch | None = None
    share: Callable[[Mapping[str, StoredChoice]], None] | None = None

    async def put_many(self, choices: Mapping[str, StoredChoice], *, run_id: str | None = None) -> None:
        """Store `choices` here, then forward them."""
        await super().put_many(choices, run_id=run_id)
        if self.share is not None:
            self.share(choices)

    async def _find(self, statement: str, keys: Sequence[str], since: float | None) -> list[CacheRow]:
        wanted = [key for key in keys if self.known.may_hold(key) and not self._own.may_hold(key)]
        if wanted and self.fetch is not None:
            rows = await self.fetch(wanted)
            await self._writing().run(lambda connection: insert_rows(connection, rows))
            for key in wanted:
                self._own.add(key)
        return await super()._find(statement, keys, since)


_NOT_SHIPPED = (".geval", ".git", ".venv*", ".env*", "node_modules", "__pycache__")
_FOUND_BY_RAY = "auto"  # the cluster that this machine is part of
_PATIENCE_S = 5.0
_START = (
    "start a cluster with `ray start --head`, which prints its address, or use --ray local for this run only"
)
_CLEANING_S = 5.0
_END = "end"
_GONE = "gone"
_LONGEST_FOLDER = 20  # Ray's sockets have long names, and the path of a socket has at most 104 characters
_ROWS_AT_ONCE = 500
_ID_DIGITS = 16
_FOLDER_PREFIX = "geval-node-"
_TAKING_OVER_S = 60.0  # Ray may have to start processes and send the config to a machine
_KEPT_S = 24 * 3600.0  # of a folder that belongs to another cache, whose next run could still use it
_AFFAIRS = 1_000  # calls of the hub that may wait at once: each worker waits for the word to stop


class NodeSetup(Struct, frozen=True):
    """The facts about a run that the workers of a cluster need.

    Attributes:
        run: as for any worker; its `environ` is empty, since keys stay on each machine.
        version: geval's version; all machines must have the same one.
        folder: the working folder if all processes are on one machine; None if Ray ships the config's folder.
        home: Ray's name of the machine that shows the run; workers there write directly into the run's cache.
        prefix: the prefix of folders in which other machines store answers for that cache.
    """

    run: WorkerSetup
    version: str
    folder: str | None
    home: str
    prefix: str


def check_cluster(address: str) -> None:
    """Check the request for a cluster, without connecting to it.

    Raises:
        UsageError: Ray is not installed, or nothing listens at the address; Ray itself would retry for many minutes.
    """
    if "://" in address:
        hint = "run geval on a machine of the cluster with the address that `ray start` prints, or auto"
        raise UsageError(f"--ray cannot use `{address}`: it connects from inside a cluster", hint=hint)
    if address not in {LOCAL, _FOUND_BY_RAY}:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
        except (OSError, ValueError, OverflowError) as error:
            message = f"--ray cannot reach a cluster at `{address}`: nothing listens there"
            raise UsageError(message, hint=_START) from error
    if find_spec("ray") is None:
        raise UsageError("--ray needs Ray, which is not installed", hint=f"install it {install_hint('ray')}")


def join_cluster(address: str, config: Path) -> int:
    """Connect to a cluster, or start one on this machine, and return its number of processors.

    Args:
        address: `local`, `auto` for the cluster that this machine is part of, or its address.
        config: the config; its folder is sent to the machines of the cluster.

    Raises:
        UsageError: there is no such cluster, or it refuses the connection.
    """
    # It would send figures about its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = {
        "runtime_env": {"working_dir": str(config.resolve().parent), "excludes": list(_NOT_SHIPPED)}
    }
    if address == LOCAL:
        own = {"include_dashboard": False}
        if len(tempfile.gettempdir()) <= _LONGEST_FOLDER:  # else Ray uses its own, and leaves its files there
            folder = make_temporary_folder()
            atexit.register(remove_folder, folder)  # before Ray is imported, which ends its processes there
            own["_temp_dir"] = str(folder / "r")  # of its own, as Ray opens it to everybody
    import ray  # noqa: PLC0415 - few runs have a cluster

    cluster: Any = ray  # only some of its functions have types
    try:
        cluster.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        return int(cluster.cluster_resources().get("CPU", 1))
    except Exception as error:
        if address == LOCAL:
            message = f"Ray cannot start on this machine: {str(error) or type(error).__name__}"
            raise UsageError(message, hint="free space in TMPDIR and memory, or use --workers") from error
        message = f"--ray cannot reach a cluster at `{address}`: {error}"
        raise UsageError(
            message, hint=f"{_START}; if it requires a token, set RAY_AUTH_MODE=token"
        ) from error


class RayWorkers:
    """Workers on the machines of a cluster. Belongs to one event loop; call `join_cluster` first."""

    def __init__(self, setup: WorkerSetup, address: str) -> None:
        import ray  # noqa: PLC0415 - as above
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - as above

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        place = replace(setup.cache, folder=setup.cache.folder.resolve())
        actor: Any = ray.remote(Hub)
        self._hub: Any = actor.options(num_cpus=0, max_concurrency=_AFFAIRS, scheduling_strategy=here).remote(
            str(place.folder), setup.reads_since_s
        )
        # Nothing is said over it: that it ends with this process is all that the hub wants to know.
        self._lifeline = socket.create_server(("127.0.0.1", 0))
        self._hub.watch.remote(self._lifeline.getsockname()[1])
        sent = replace(setup, request=setup.request.for_machines(is_here=address == LOCAL), cache=place)
        folder = str(Path.cwd()) if address == LOCAL else None
        cache_id = sha256(f"{platform.node()}:{place.folder}".encode()).hexdigest()[:_ID_DIGITS]
        self._setup: Any = ray.put(
            NodeSetup(sent, __version__, folder, here.node_id, f"{_FOLDER_PREFIX}{cache_id}-")
        )
        self._task: Any = ray.remote(do_shard_on_node).options(num_cpus=1, max_retries=0)
        self._hosts: dict[int, str] = {}
        self._is_closed = False

    async def take_over(self) -> None:
        """Fetch the answers that killed runs left on other machines."""
        import ray  # noqa: PLC0415 - as above
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - as above

        cluster: Any = ray  # only some of its functions have types
        here = ray.get_runtime_context().get_node_id()
        others = [node["NodeID"] for node in cluster.nodes() if node["Alive"] and node["NodeID"] != here]
        task: Any = ray.remote(hand_over).options(num_cpus=0, max_retries=0)
        handing = [
            asyncio.wrap_future(
                task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
                .remote(self._setup, self._hub)
                .future()
            )
            for node in others
        ]
        if handing:
            await asyncio.wait(handing, timeout=_TAKING_OVER_S)
            for task in handing:
                task.add_done_callback(
                    lambda ended: ended.cancelled() or ended.exception()
                )  # a lost machine has none

    def host(self, worker: int) -> str:
        """Return the machine that ran a worker's last shard."""
        return self._hosts.get(worker, "")

    async def run(self, worker: int, order: ShardOrder, listen: Listener) -> ShardEnd:
        """Have a task run a shard; see `ShardExecutor.run`."""
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415 - as above

        try:
            async for told in self._task.remote(self._setup, self._hub, order):
                message = await told
                if isinstance(message, str):
                    self._hosts[worker] = message
                    continue
                batch = batch_from_json(message)
                await listen(batch)
                if batch.end is not None:
                    return batch.end
        except RayTaskError as error:
            raise RuntimeError(str(error)) from error
        except RayError as error:
            raise WorkerLostError from error
        raise WorkerLostError

    def stop(self, reason: StopReason) -> None:
        """Tell all workers to start no more jobs."""
        self._hub.tell.remote(reason.value)

    def hurry(self) -> None:
        """Tell all workers to stop without waiting for requests under way."""
        self._hub.tell.remote(HURRY.decode())

    async def aclose(self) -> None:
        """Leave the cluster. Safe to call twice."""
        import ray  # noqa: PLC0415 - as above

        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                # A lost machine cleans up nothing
                await asyncio.wait_for(self._hub.end.remote(), _CLEANING_S)
            await asyncio.to_thread(ray.shutdown)
            self._lifeline.close()


class Hub:
    """An actor next to the run's cache: serves its answers to other machines, and relays messages such as stop.

    It also notices when the process that shows the run is killed, seconds before Ray ends all workers.
    """

    def __init__(self, folder: str, since_s: float) -> None:
        self._cache = ResponseCache.open(Path(folder))
        self._since_s = since_s
        self._words: list[str] = []
        self._here: set[str] = set()
        self._has_news = asyncio.Event()

    async def keys(self) -> bytes:
        """Return the keys of all usable answers."""
        return await packed_keys(self._cache, self._since_s)

    async def rows(self, keys: Sequence[str]) -> list[AnswerRow]:
        """Return the answers for keys."""
        return await rows_of(self._cache, keys)

    async def keep(self, rows: Sequence[AnswerRow]) -> None:
        """Store answers from another machine."""
        await keep_rows(self._cache, rows)

    async def watch(self, port: int) -> None:
        """Wait until the process that shows the run has ended, then tell all workers."""
        with contextlib.suppress(OSError):
            reader, _ = await asyncio.open_connection("127.0.0.1", port)
            await reader.read()
        await self.tell(_GONE)

    async def word(self, number: int) -> str:
        """Wait until more than `number` messages were sent to the workers, and return the next one."""
        while len(self._words) <= number:
            self._has_news.clear()
            await self._has_news.wait()
        return self._words[number]

    async def tell(self, word: str) -> None:
        """Tell all workers to stop, to hurry, or that the run has ended."""
        self._words.append(word)
        self._has_news.set()

    async def come(self, worker: str) -> None:
        """Record that a worker has files on its machine's disk."""
        self._here.add(worker)

    async def go(self, worker: str) -> None:
        """Record that a worker has removed its files."""
        self._here.discard(worker)
        self._has_news.set()

    async def end(self) -> None:
        """Tell all workers that the run has ended, and wait until they have cleaned up."""
        await self.tell(_END)
        while self._here:
            self._has_news.clear()
            await self._has_news.wait()


class _NodeProcess:
    """The state that a cluster process keeps between shards; one per process."""

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
        self._is_home = node == setup.home
        self._folder = Path(tempfile.gettempdir()) / f"{setup.prefix}{self.run_id}-{node}"
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def do(self, order: ShardOrder) -> Iterator[bytes]:
        """Run a shard, and yield its events as messages."""
        doing = asyncio.run_coroutine_threadsafe(self._do(order), self._loop)
        doing.add_done_callback(lambda _: self._messages.put(None))
        while (message := self._messages.get()) is not None:
            yield message
        doing.result()

    async def _do(self, order: ShardOrder) -> None:
        if self._runner is None:
            try:
                setup = self._setup.run
                setup = replace(setup, request=replace_fields(setup.request, environ=dict(os.environ)))
                batches = EventBatcher(self._messages.put)
                await self._hub.come.remote(self._name)
                if not self._is_home:
                    cache = self._cache = NodeCache.open(self._folder, ttl_s=setup.cache.ttl_s)
                    self._stack.callback(cache.close)
                    hold_folder(self._folder)
                    cache.known = KnownKeys(await self._hub.keys.remote())
                    cache.fetch, cache.share = self._fetch, batches.share
                opening = open_runner(setup, order.permit, batches, self._cache)
                runner = await self._stack.enter_async_context(opening)
                self._listening = asyncio.ensure_future(self._listen(runner))
                self._runner = runner
            except ConfigError as error:
                self._messages.put(batch_to_json(EventBatch(end=ShardEnd(mistakes=mistakes_of(error)))))
                return
        if order.is_repeated and self._cache is not None:
            self._cache.known = KnownKeys(await self._hub.keys.remote())
        await self._runner.run(order)

    async def _fetch(self, keys: Sequence[str]) -> Sequence[AnswerRow]:
        rows: list[AnswerRow] = await self._hub.rows.remote(keys)
        return rows

    async def _listen(self, runner: ShardRunner) -> None:
        from ray.exceptions import RayError  # noqa: PLC0415 - as above

        number = 0
        while True:
            try:
                word = await self._hub.word.remote(number)
            except RayError:  # it ends with the process that shows the run
                word = _GONE
            number += 1
            if word == _END:
                await self._stack.aclose()
                if not self._is_home:
                    remove_folder(self._folder)
                await self._hub.go.remote(self._name)
                return
            if word == _GONE:
                # Nothing more is sent. What was sent is paid for: its answer goes to the disk until Ray ends this.
                runner.stop(StopReason.REQUEST)
                return
            if word == HURRY.decode():
                runner.hurry()
            else:
                runner.stop(StopReason(word))


def do_shard_on_node(setup: NodeSetup, hub: Any, order: ShardOrder) -> Iterator[str | bytes]:
    """Run a shard in this cluster process; yields the machine's name first, then batches of events as messages."""
    yield platform.node()
    if setup.version != __version__:
        message = f"{platform.node()} has geval {__version__}, but this run uses geval {setup.version}"
        yield batch_to_json(EventBatch(end=ShardEnd(mistakes=(message,))))
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


def hand_over(setup: NodeSetup, hub: Any) -> None:
    """Send the answers that killed runs left on this machine to the cache they were meant for."""
    for folder in abandoned_folders(f"{_FOLDER_PREFIX}*"):
        if folder.name.startswith(setup.prefix):
            asyncio.run(_send_missing(folder, hub))
            remove_folder(folder)
        elif time.time() - folder.stat().st_mtime > _KEPT_S:
            remove_folder(folder)


async def _send_missing(folder: Path, hub: Any) -> None:
    known = KnownKeys(await hub.keys.remote())
    with contextlib.closing(ResponseCache.open(folder)) as cache:
        missing = [key for key in await all_keys(cache) if not known.may_hold(key)]
        for start in range(0, len(missing), _ROWS_AT_ONCE):
            await hub.keep.remote(await rows_of(cache, missing[start : start + _ROWS_AT_ONCE]))

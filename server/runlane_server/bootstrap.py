"""Puts the parts together: the only place that knows concrete classes."""

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import structlog
from uuid_utils import uuid7

from runlane_server.access_settings import JwtConfig, missing_guards
from runlane_server.app.base import Limits, Services
from runlane_server.app.keys import RELOAD_SECONDS, KeyRing
from runlane_server.app.service import App, Committed
from runlane_server.core.model import Rules
from runlane_server.executors import EMBEDDED_PREFIX, EmbeddedExecutor
from runlane_server.quota_settings import default_quota, own_quotas
from runlane_server.runtime.bus import Bus
from runlane_server.runtime.clock import Clock, StoreClock
from runlane_server.runtime.dispatch import Dispatch
from runlane_server.runtime.engine import Engine, Time
from runlane_server.runtime.quotas import make_quotas
from runlane_server.runtime.roster import SharedDispatch
from runlane_server.runtime.stats import Stats
from runlane_server.settings import Settings, SettingsError, is_database, is_local, refuse_malformed
from runlane_server.store.base import Store, StoreInfo
from runlane_server.store.errors import StoreRefused
from runlane_server.store.sqlite import (
    Examined,
    SqliteStore,
    backup_file,
    check_file,
    examine_file,
    restore_file,
)
from runlane_server.transport.access import Anybody, Bearers, Identity
from runlane_server.transport.codec import ProtoCodec
from runlane_server.transport.limits import FIXED_LIMITS
from runlane_server.transport.server import GrpcServer, GrpcSettings
from runlane_server.transport.tls import TlsFiles

if TYPE_CHECKING:
    from runlane_server.observability.traces import Traces
    from runlane_server.store.postgres import ExaminedDatabase
    from runlane_server.transport.tokens import JwtTokens

log = structlog.get_logger(__name__)

MICROSECONDS = 1_000_000

DEAF_GAP = 3 * MICROSECONDS
"""Time between two looks at the clock after which executors may not have been heard."""

YOUNG_OBJECTS = 20_000
"""New objects after which the youngest are collected."""


def new_id(prefix: str) -> str:
    """Makes an id: the prefix and a UUIDv7, so that ids made later sort later."""
    return f"{prefix}_{uuid7()}"


def make_store(settings: Settings) -> Store:
    """Makes the store that the settings name; it is not open yet.

    Raises:
        StoreRefused: It needs a package that is not installed.
    """
    if settings.on_postgres:
        postgres = _postgres()
        address = postgres.Address(settings.store, settings.postgres_statement_timeout_seconds)
        store: Store = postgres.PostgresStore(address, readers=settings.postgres_connections)
        return store
    return SqliteStore(settings.store_path, reader_threads=settings.reader_threads)


def _postgres() -> ModuleType:
    try:
        from runlane_server.store import postgres  # noqa: PLC0415 - its driver is an extra
    except ImportError:
        raise StoreRefused(
            "a store on PostgreSQL needs the extra: pip install 'runlane[postgres]'"
        ) from None
    return postgres


def make_app(settings: Settings, store: Store, clock: Time, traces: "Traces | None" = None) -> App:
    """Makes the use cases over an open store; `traces` records the ends of runs."""
    rules = Rules(
        default_agent=settings.default_agent,
        agents=frozenset(settings.agents),
        max_steers=settings.max_pending_steers,
        max_next_runs=settings.max_pending_next_runs,
        max_pending_bytes=settings.max_pending_bytes,
        max_model_steps=settings.max_model_steps,
        agent_model_steps={
            agent.name: agent.limits.max_model_steps
            for agent in settings.agent
            if agent.limits.max_model_steps is not None
        },
        cancel_grace=settings.cancel_grace_seconds * MICROSECONDS,
        sweep_delay=int(settings.sweep_delay_seconds * MICROSECONDS),
    )
    bus, codec = Bus(settings.bookmark_seconds), ProtoCodec()
    dispatch = Dispatch() if store.shared is None else SharedDispatch()
    stats = Stats()
    quotas = make_quotas(default_quota(settings), own_quotas(settings), store.usage, clock.now)
    watcher = traces.committed if traces is not None else None
    observer = Committed(bus, dispatch, stats, quotas, watcher)
    engine = Engine(
        store,
        codec,
        clock,
        new_id,
        rules,
        observer,
        slots_max=settings.hot_sessions_max,
        linger=settings.linger_milliseconds / 1000,
        batch_max=settings.batch_max,
        deaf_gap=DEAF_GAP,
        stats=stats,
    )
    limits = Limits(
        settings.streams_max,
        settings.request_keep_hours * 3600 * MICROSECONDS,
        settings.feeds_max,
        settings.imports_max,
        settings.import_bytes_max,
        settings.import_messages_max,
        settings.import_runs_max,
    )
    services = Services(store, engine, bus, dispatch, codec, clock, new_id, rules, limits, quotas)
    limits_shown = [*FIXED_LIMITS, *settings.limits()]
    version, interval = metadata.version("runlane"), settings.poll_interval_seconds
    return App(services, observer, version, limits_shown, interval)


async def serve(settings: Settings, ready: Callable[[list[str]], None]) -> None:
    """Serves until SIGTERM or SIGINT, then drains.

    Args:
        settings: What to serve, and where.
        ready: Called with the bound addresses once calls are taken.

    Raises:
        OSError: An address cannot be listened on.
        StoreError: The store will not be opened.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    store = make_store(settings)
    traces = _traces() if settings.otel else None
    await store.open(None, EMBEDDED_PREFIX)
    try:
        clock = await _clock(store)
        app = make_app(settings, store, clock, traces)
        keys = KeyRing(store, clock, new_id, _reload_seconds(settings, store))
        await app.start()
        await keys.start()
        _collect_rarely()

        def started(addresses: list[str]) -> None:
            _say_started(settings, store.info)
            ready(addresses)

        try:
            await _serve(app, keys, clock, settings, started, stop, traces)
        finally:
            await keys.close()
            await app.close()
    finally:
        await store.close()
        if traces is not None:
            await asyncio.to_thread(traces.close)
    log.info("stopped")


def _say_started(settings: Settings, store: StoreInfo) -> None:
    """Says in the log what runs from now on, and how open it is."""
    tls = "off" if not settings.tls_cert else "mutual" if settings.tls_client_ca else "on"
    log.info(
        "started",
        version=metadata.version("runlane"),
        store=store.kind,
        store_epoch=store.epoch,
        auth=settings.auth,
        tls=tls,
    )
    lacks = missing_guards(settings)
    open_to_others = [one for one in settings.listen if not is_local(one)]
    if lacks and open_to_others:
        log.warning("other machines may reach this server", addresses=open_to_others, lacks=lacks)


@contextlib.asynccontextmanager
async def private_server(settings: Settings) -> AsyncIterator[str]:
    """Serves a store that nobody has, to this process alone; gives the address.

    For what needs no server otherwise: whoever may open the file may do all with it.

    Raises:
        StoreHeld: A server has it.
        StoreError: The store will not be opened.
    """
    store = make_store(settings)
    # No embedded prefix: nothing is said here of the executors of a server.
    await store.open(None, "")
    try:
        clock = await _clock(store)
        server = GrpcServer(make_app(settings, store, clock), KeyRing(store, clock, new_id))
        with tempfile.TemporaryDirectory(prefix="runlane-") as folder:
            address = f"unix:{Path(folder, 'keys.sock')}"
            await server.start([address])
            try:
                yield address
            finally:
                await server.drain(1)
    finally:
        await store.close()


async def _clock(store: Store) -> Time:
    """Returns the time of this machine, or that of a store that other machines use too."""
    if store.shared is None:
        return Clock()
    return StoreClock((await store.shared.moved("")).time)


def _reload_seconds(settings: Settings, store: Store) -> float:
    return RELOAD_SECONDS if store.shared is None else settings.poll_interval_seconds


def _traces() -> "Traces":
    try:
        # Only who wants it needs its libraries.
        from runlane_server.observability.traces import (  # noqa: PLC0415
            NoExporterError,
            start_traces,
        )
    except ImportError as error:
        raise SettingsError(f"otel needs runlane[otel]: {error}") from error
    try:
        return start_traces(metadata.version("runlane"))
    except NoExporterError as error:
        raise SettingsError(f"otel: {error}") from error


def _collect_rarely() -> None:
    """Makes collections rare, and leaves what is there now out of them.

    Hot states and recent answers are many, live long and hold no cycles. Each full
    collection walks all of them, which took a tenth of the processor and 70 ms at a time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 100)


async def _identity(settings: Settings, keys: KeyRing, clock: Time) -> Identity:
    """Returns who is let in, and says in the log what an operator may have missed."""
    if settings.auth == "none":
        if keys.count:
            log.warning("API keys are not asked for, since auth is none", keys=keys.count)
        return Anybody(certified=bool(settings.tls_client_ca))
    if settings.jwt is not None:
        tokens = await _tokens(settings.jwt, clock)
        keys.on_tick = tokens.tick
        return Bearers(keys, tokens)
    if not keys.count:
        how = "make one with `runlane keys create NAME --scope admin`"
        if not settings.on_postgres:
            how = f"stop the server, {how}, start it again"
        log.warning("there is no API key yet, so nobody is let in", advice=how)
    return Bearers(keys)


async def _tokens(config: JwtConfig, clock: Time) -> "JwtTokens":
    try:
        # Only who wants it needs its library.
        from runlane_server.transport.tokens import JwtTokens  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(f'auth = "jwt" needs runlane[jwt]: {error}') from error
    tokens = JwtTokens(config, clock)
    await tokens.refresh()
    return tokens


def _tls(settings: Settings) -> TlsFiles | None:
    if not settings.tls_cert:
        return None
    client_ca = Path(settings.tls_client_ca) if settings.tls_client_ca else None
    return TlsFiles(Path(settings.tls_cert), Path(settings.tls_key), client_ca)


async def _serve(
    app: App,
    keys: KeyRing,
    clock: Time,
    settings: Settings,
    ready: Callable[[list[str]], None],
    stop: asyncio.Event,
    traces: "Traces | None",
) -> None:
    server = GrpcServer(
        app,
        keys,
        GrpcSettings(
            reflection=settings.reflection,
            channelz=settings.channelz,
            max_stream_seconds=settings.max_stream_seconds,
            max_connection_age=settings.max_connection_age_seconds or None,
            max_connection_age_grace=settings.max_connection_age_grace_seconds,
            keepalive=settings.keepalive_seconds,
            keepalive_timeout=settings.keepalive_timeout_seconds,
        ),
        await _identity(settings, keys, clock),
        app.stats,
        traces,
    )
    async with contextlib.AsyncExitStack() as stack:
        # The embedded executor is a client like any other, at a door that nobody else can
        # reach.
        door = []
        if settings.agent:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="runlane-"))
            door = [f"unix:{Path(folder, 'executor.sock')}"]
        _refuse_taken(settings.listen)
        await _serve_metrics(app, settings.metrics_listen, stack)
        ports = await _listen(server, [*settings.listen, *door], _tls(settings))
        embedded = None
        if settings.agent:
            secret = keys.own("client:embedded") if settings.auth != "none" else ""
            executor_id = f"{EMBEDDED_PREFIX}{uuid7()}"
            embedded = EmbeddedExecutor(door[0], settings.agent, executor_id, secret)
            await embedded.start()
        ready([_bound(*one) for one in zip(settings.listen, ports, strict=False)])
        await stop.wait()
        log.info("draining", grace_seconds=settings.drain_grace_seconds)
        finish = None
        if embedded is not None:
            finish = partial(embedded.drain, settings.agent_grace_seconds)
        await server.drain(settings.drain_grace_seconds, finish)


async def _serve_metrics(app: App, address: str, stack: contextlib.AsyncExitStack) -> None:
    """Serves metrics until the stack unwinds."""
    if not address:
        return
    # The library is an import of its own weight, and not everybody wants it.
    from runlane_server.observability.metrics import MetricsServer  # noqa: PLC0415

    metrics = MetricsServer(app)
    host, _, port = address.rpartition(":")
    try:
        bound = metrics.start(host.strip("[]"), int(port))
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror}") from error
    stack.push_async_callback(metrics.close)
    log.info("serving metrics", address=f"{host}:{bound}")


async def _listen(server: GrpcServer, addresses: list[str], tls: TlsFiles | None) -> list[int]:
    try:
        return await server.start(addresses, tls)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {addresses[0]}: {error}") from error


def _refuse_taken(addresses: Sequence[str]) -> None:
    """Raises OSError with the cause where an address is taken; gRPC keeps that to itself."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        if address.startswith("unix:"):
            folder = Path(address.removeprefix("unix:")).parent
            if not folder.is_dir():
                raise OSError(f"cannot listen on {address}: {folder} is no folder")
            continue
        if port == "0":
            continue
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host.strip("[]"), int(port)))
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                advice = "; a server may run there already, --listen names another" if taken else ""
                raise OSError(f"cannot listen on {address}: {error.strerror}{advice}") from error


def _bound(address: str, port: int) -> str:
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


async def check_store(spec: str) -> list[str]:
    """Verifies a store, and changes nothing; returns what is wrong.

    Raises:
        StoreError: It is no store, or is a file that a server holds.
    """
    if is_database(spec):
        postgres = _postgres()
        try:
            refuse_malformed(spec)
        except ValueError as error:
            raise StoreRefused(str(error)) from None
        found: list[str] = await postgres.check_database(postgres.Address(spec))
        return found
    kind, _, path = spec.partition(":")
    if kind != "sqlite":
        raise StoreRefused(f"{kind}: only sqlite:PATH and postgresql://... can be checked")
    return await asyncio.to_thread(check_file, Path(path))


async def backup_store(source: Path, target: Path) -> list[str]:
    """Copies a store beside its server; returns what is wrong with the copy: then there is none.

    Raises:
        StoreError: The target exists, or the source cannot be copied.
    """
    return await asyncio.to_thread(backup_file, source, target)


async def restore_store(source: Path, target: Path, *, replace: bool) -> tuple[list[str], int]:
    """Makes a store of a copy; returns what is wrong with the copy, and the new epoch.

    Raises:
        StoreError: A server has the target, it exists, or the source cannot be copied.
    """
    return await asyncio.to_thread(restore_file, source, target, replace=replace)


def examine_store(path: Path, read_max: int) -> Examined:
    """Looks at the file of a store, also beside its server; reads one up to so many bytes."""
    return examine_file(path, read_max)


async def examine_database(spec: str) -> "ExaminedDatabase":
    """Looks at a database, also beside its servers.

    Raises:
        StoreRefused: It needs a package that is not installed.
    """
    postgres = _postgres()
    found: ExaminedDatabase = await postgres.examine_database(postgres.Address(spec))
    return found

"""Running the proxy as a process: the event loop, the signals, and the line that says it is up."""

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable, Sequence

import orjson
import uvloop

from neuron_pd.errors import UsageError
from neuron_pd.proxy.app import Proxy
from neuron_pd.proxy.settings import Settings
from neuron_pd.proxy.workers import DRAIN, Work, run_workers


def run(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal breaks requests in flight off.

    `announce` gets one line once the port is bound. UsageError when it cannot be.
    """
    allow_open_files()
    if settings.listen.workers > 1:
        run_workers(settings, announce, serve_as_worker)
    else:
        uvloop.run(_serve(Proxy(settings), announce, (signal.SIGTERM, signal.SIGINT)))


def serve_as_worker(work: Work) -> None:
    """One of several processes."""

    def report(line: str) -> None:
        os.write(work.report, orjson.dumps({"line": line}) + b"\n")
        os.close(work.report)

    async def serve() -> None:
        await _serve(Proxy(work.settings, work.sockets, work.seat), report, (DRAIN,), work.lifeline)

    uvloop.run(serve())


async def _serve(
    proxy: Proxy, announce: Callable[[str], None], signals: Sequence[int], lifeline: int | None = None
) -> None:
    """Until the first of `signals`, or the end of `lifeline`: then drain, and with the second signal stop."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        await proxy.__aenter__()
    except OSError as error:
        place = f"{proxy.settings.listen.host}:{proxy.settings.listen.port}"
        raise UsageError(
            f"cannot listen on {place} ({error.strerror or error}): choose another --host or --port"
        ) from error
    loop.add_signal_handler(signal.SIGHUP, proxy.reload)
    if lifeline is not None:
        loop.add_reader(lifeline, _parent_ended, loop, lifeline, stop)
    collect_less()
    announce(greeting(proxy))
    await stop.wait()
    closing = asyncio.create_task(proxy.__aexit__())
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait((closing, hurried), return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        proxy.server.abort()
    await closing
    hurried.cancel()


def _parent_ended(loop: asyncio.AbstractEventLoop, lifeline: int, stop: asyncio.Event) -> None:
    loop.remove_reader(lifeline)
    stop.set()


def allow_open_files() -> None:
    """Raise the limit on open files as far as this user may: a stream takes two, and many systems begin at 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def collect_less() -> None:
    """Let the cycle collector leave alone what was made at start, and come by less often: a turn's objects
    are freed as it ends.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def greeting(proxy: Proxy) -> str:
    """One line: where, and what stands behind it."""
    host = proxy.settings.listen.host
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if proxy.settings.tls.cert else "http"
    engines = proxy.engines
    return f"proxy on {scheme}://{shown}:{proxy.port} : {len(engines.prefill)} prefill, {len(engines.decode)} decode"

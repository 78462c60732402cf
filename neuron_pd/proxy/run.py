"""Running the proxy as a process: the event loop, the signals, and the line that says it is up."""

import asyncio
import gc
import signal
from collections.abc import Callable

import uvloop

from neuron_pd.errors import UsageError
from neuron_pd.proxy.app import Proxy
from neuron_pd.proxy.settings import Settings


def run(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal breaks requests in flight off.

    `announce` gets one line once the port is bound. UsageError when it cannot be.
    """
    uvloop.run(_run(settings, announce))


async def _run(settings: Settings, announce: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    proxy = Proxy(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await proxy.__aenter__()
    except OSError as error:
        place = f"{settings.listen.host}:{settings.listen.port}"
        raise UsageError(
            f"cannot listen on {place} ({error.strerror or error}): choose another --host or --port"
        ) from error
    loop.add_signal_handler(signal.SIGHUP, proxy.reload)
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


def collect_less() -> None:
    """Let the cycle collector leave alone what was made at start, and come by less often: a turn's objects
    are freed as it ends."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def greeting(proxy: Proxy) -> str:
    """One line: where, and what stands behind it."""
    host = proxy.settings.listen.host
    shown = f"[{host}]" if ":" in host else host
    engines = proxy.engines
    return f"proxy on http://{shown}:{proxy.port} : {len(engines.prefill)} prefill, {len(engines.decode)} decode"

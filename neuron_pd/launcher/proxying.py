"""The proxy's command line, for all that starts one beside engines."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Engines that share their machine's cores with each other, the proxy and the clients may answer late.
SHARED_CORES_ACQUIRE_SECONDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyCommand:
    """`neuron-pd proxy` before engines at URLs, or before the pods that have these labels. None is "not said"."""

    host: str
    port: int
    prefill: Sequence[str] = ()
    decode: Sequence[str] = ()
    kubernetes_selector: str | None = None
    store: str | None = None
    drain_seconds: int | None = None
    acquire_timeout: int | None = None
    python: str = ""

    def argv(self) -> list[str]:
        words = [self.python or sys.executable, "-m", "neuron_pd", "proxy"]
        words += [word for url in self.prefill for word in ("--prefill", url)]
        words += [word for url in self.decode for word in ("--decode", url)]
        if self.kubernetes_selector is not None:
            words.append("--kubernetes")
        said = {
            "--kubernetes-selector": self.kubernetes_selector,
            "--host": self.host,
            "--port": self.port,
            "--store": self.store,
            "--drain-seconds": self.drain_seconds,
            "--acquire-timeout": self.acquire_timeout,
        }
        return words + [word for name, value in said.items() if value is not None for word in (name, str(value))]

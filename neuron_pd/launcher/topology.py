"""Which processes make a whole: a prefill engine, a decode engine and the proxy on one machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuron_pd.core.control import TOKEN_FILE_ENV, control_token
from neuron_pd.hosts.addresses import PROXY_PORT
from neuron_pd.launcher.proxying import SHARED_CORES_ACQUIRE_SECONDS, ProxyCommand
from neuron_pd.launcher.serve import ServeSpec, base_url, serve_spec
from neuron_pd.launcher.state import new_run_dir, token_file


@dataclass(frozen=True, slots=True)
class Child:
    """A process to supervise. It is up when `health_url` answers 200. `environment` is added to the supervisor's."""

    name: str
    kind: str
    argv: Sequence[str]
    port: int
    health_url: str
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """One prefill engine, one decode engine and a proxy in front. Logs go to `run_dir`."""

    prefill: ServeSpec
    decode: ServeSpec
    proxy_host: str
    proxy_port: int
    run_dir: Path
    token_file: Path | None = None

    def stages(self) -> list[list[Child]]:
        """Children that start side by side, stage after stage: the engines, then the proxy."""
        return [[self._engine(self.prefill), self._engine(self.decode)], [self._proxy()]]

    def urls(self) -> dict[str, str]:
        return {
            "prefill": self.prefill.url,
            "decode": self.decode.url,
            "proxy": base_url(self.proxy_host, self.proxy_port),
        }

    def token(self) -> str | None:
        """The control token that the engines and the proxy share."""
        return control_token({TOKEN_FILE_ENV: str(self.token_file)} if self.token_file else None)

    def _engine(self, spec: ServeSpec) -> Child:
        return Child(
            name=spec.role,
            kind="server",
            argv=spec.argv(),
            port=spec.port,
            health_url=f"{spec.url}/health",
            log=self.run_dir / f"{spec.role}.log",
            environment=spec.environment(),
        )

    def _proxy(self) -> Child:
        url = base_url(self.proxy_host, self.proxy_port)
        command = ProxyCommand(
            prefill=[self.prefill.url],
            decode=[self.decode.url],
            host=self.proxy_host,
            port=self.proxy_port,
            acquire_timeout=SHARED_CORES_ACQUIRE_SECONDS,
        )
        return Child(
            name="proxy",
            kind="proxy",
            argv=command.argv(),
            port=self.proxy_port,
            health_url=f"{url}/ready",
            log=self.run_dir / "proxy.log",
            environment={TOKEN_FILE_ENV: str(self.token_file)} if self.token_file else {},
        )


def cpu_topology(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    prefill_port: int | None = None,
    decode_port: int | None = None,
    proxy_port: int = PROXY_PORT,
    prefill_side_channel_port: int | None = None,
    decode_side_channel_port: int | None = None,
    prefill_prefix_caching: bool = True,
    run_dir: Path | None = None,
    **engine: Any,
) -> Topology:
    """P and D on this machine's cores, half of them each, and the proxy on `host`. The engines listen on loopback.

    `model` is a directory; `engine` holds what both engines share (ServeSpec's fields: served_name, dtype,
    max_model_len, kv_cache_gib, bidir, retention, ...; None means the profile's). UsageError as `serve_spec`.
    """
    token = token_file()
    shared = {**engine, "token_file": token}
    return Topology(
        prefill=serve_spec(
            "prefill",
            str(model),
            port=prefill_port,
            side_channel_port=prefill_side_channel_port,
            prefix_caching=prefill_prefix_caching,
            **shared,
        ),
        decode=serve_spec("decode", str(model), port=decode_port, side_channel_port=decode_side_channel_port, **shared),
        proxy_host=host,
        proxy_port=proxy_port,
        run_dir=run_dir or new_run_dir(),
        token_file=token,
    )

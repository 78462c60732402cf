"""The ports of a prefill engine, a decode engine and a proxy on this machine: options of `up` and `demo`."""

from collections.abc import Callable
from typing import Any, Final

import click

from neuron_pd.hosts.addresses import PROXY_PORT

PORT: Final = click.IntRange(1, 65535)
OPTIONS: Final = (
    ("--proxy-port", PROXY_PORT, "The proxy's port."),
    ("--prefill-port", 8100, "The prefill engine's port."),
    ("--decode-port", 8200, "The decode engine's port."),
    ("--prefill-side-channel-port", 5600, "The prefill engine's port for NIXL's handshakes."),
    ("--decode-side-channel-port", 5601, "The decode engine's port for NIXL's handshakes."),
)


def ports(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add them to a command."""
    for name, default, text in reversed(OPTIONS):
        command = click.option(name, type=PORT, default=default, show_default=True, help=text)(command)
    return command

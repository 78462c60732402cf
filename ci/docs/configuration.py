"""docs/configuration.md: the connector's settings, the files that the proxy reads, and environment variables."""

from collections.abc import Mapping
from typing import Any

from ci.docs.environment import variables
from ci.docs.text import table
from neuron_pd.core.settings import KEYS
from neuron_pd.proxy.keyfile import ENTRY_KEYS
from neuron_pd.proxy.pools.file import ENGINE_KEYS, FILE_KEYS, KUBERNETES_KEYS

TEXT = """\
# Configuration

Made from the program: `make docs` writes this page anew.

| what | where |
|---|---|
| the engines | [the connector's settings](#the-connectors-settings), in vLLM's `--kv-transfer-config`; `neuron-pd launch` writes them |
| `neuron-pd …` | options, each also an environment variable: [the command line](cli.md) |
| the proxy | [its options](cli.md#neuron-pd-proxy), [a file of pools](#the-proxys-pools), [a file of API keys](#the-proxys-api-keys) |
| machines and models | profiles, YAML: [their schema](profiles.md) |
| all of them | [environment variables](#environment-variables) |

## The connector's settings

In `kv_connector_extra_config` of `--kv-transfer-config`. Names that vLLM's own connector has keep its meaning and default.
A value that cannot be stops the engine at its start with a line that says what it may be. D needs its prefix cache (vLLM's
default), and `kv_load_failure_policy` beside them must be `recompute`: vLLM's default, `fail`, turns a failed read into
HTTP 500.

{settings}
How retention and the threshold work is on [the connector's page](connector.md), what a buffer is on [its own](buffers.md).

## The proxy's pools

`neuron-pd proxy --pools FILE`: YAML, read again within a second of a change and on SIGHUP. A file that cannot be read
changes nothing. [An example](proxy.md#pools).

{pools}
An engine:

{engine}
`kubernetes`:

{kubernetes}
## The proxy's API keys

`neuron-pd proxy --api-keys FILE`: YAML with a `salt` and a list of `keys`, made by `neuron-pd key new` and read again when
it changes. The keys themselves are not in it.

{keys}
## Environment variables

Beside those of [each option](cli.md):

{variables}"""

# What each variable is for. One that the code reads and is not here fails the check.
VARIABLES = {
    "NEURON_PD_CONTROL_TOKEN": "the cluster's control token, the same for engines, proxy and benchmark",
    "NEURON_PD_CONTROL_TOKEN_FILE": "a file that holds it, where the token itself is not given",
    "NEURON_PD_BUFFER": "wins over the setting `buffer`, for engines whose command line is someone else's",
    "NEURON_PD_BACKENDS": "wins over the setting `backends`; with commas",
    "NEURON_PD_STORE_PASSWORD": "the password of the proxy's Redis, where `--store` has none",
    "FI_PROVIDER": "libfabric's provider; with another than `efa`, LIBFABRIC is used without EFA devices",
    "XDG_CACHE_HOME": "the embedded models and what is downloaded once are kept below it [~/.cache]",
    "XDG_STATE_HOME": "logs, the control token and what is running are kept below it [~/.local/state]",
    "KUBERNETES_SERVICE_HOST": "in a pod: where the Kubernetes API is, for `--kubernetes`",
    "KUBERNETES_SERVICE_PORT": "in a pod: its port",
    "PATH": "where `ip` and vendors' tools are looked for",
}


class Undocumented(Exception):
    """The code reads a variable that has no text here, or no longer reads one that has."""


def page() -> str:
    """The page. Undocumented."""
    if wrong := variables() ^ set(VARIABLES):
        raise Undocumented(f"{', '.join(sorted(wrong))}: describe what the code reads, and nothing else, in {__name__}")
    return TEXT.format(
        settings=table(
            ("key", "default", "what"), [(f"`{n}`", _value(key.default), key.text) for n, key in KEYS.items()]
        ),
        pools=_keys(FILE_KEYS),
        engine=_keys(ENGINE_KEYS),
        kubernetes=_keys(KUBERNETES_KEYS),
        keys=_keys(ENTRY_KEYS),
        variables=table(("variable", "what"), [(f"`{name}`", text) for name, text in VARIABLES.items()]),
    )


def _keys(texts: Mapping[str, str]) -> str:
    return table(("key", "what"), [(f"`{name}`", text) for name, text in texts.items()])


def _value(default: Any) -> str:
    """As JSON has it."""
    if default is None:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"

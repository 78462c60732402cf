"""docs/configuration.md: the connector's settings, the files that the proxy reads, and environment variables."""

from collections.abc import Mapping
from typing import Any

from ci.docs.environment import variables
from ci.docs.text import table, template
from neuron_pd.core.settings import KEYS
from neuron_pd.proxy.keyfile import ENTRY_KEYS
from neuron_pd.proxy.pools.file import ENGINE_KEYS, FILE_KEYS, KUBERNETES_KEYS

# What each variable is for. One that the code reads and is not here fails the check.
VARIABLES = {
    "NEURON_PD_CONTROL_TOKEN": "the cluster's control token, the same for engines, proxy and benchmark",
    "NEURON_PD_CONTROL_TOKEN_FILE": "a file that holds it, where the token itself is not given",
    "NEURON_PD_BUFFER": "wins over the setting `buffer`, for engines whose command line is someone else's",
    "NEURON_PD_BACKENDS": "wins over the setting `backends`; with commas",
    "NEURON_PD_STORE_PASSWORD": "the password of the proxy's Redis, where `--store` has none",
    "FI_PROVIDER": "libfabric's provider; with another than `efa`, LIBFABRIC is used without EFA devices",
    "FI_EFA_ENABLE_SHM_TRANSFER": "must be off on Neuron, which `neuron-pd doctor` looks at",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "the engine's side channel, where it is set: `neuron-pd doctor` looks at it",
    "VLLM_USE_RUST_FRONTEND": "must be off, which `neuron-pd doctor` looks at: that front end has no control path",
    "XDG_CACHE_HOME": "the embedded models and what is downloaded once are kept below it [~/.cache]",
    "XDG_STATE_HOME": "logs, the control token and what is running are kept below it [~/.local/state]",
    "KUBERNETES_SERVICE_HOST": "in a pod: where the Kubernetes API is, for `--kubernetes`",
    "KUBERNETES_SERVICE_PORT": "in a pod: its port",
    "PYTHONPATH": "where the child processes of `neuron-pd doctor` look for packages too",
    "PATH": "where `ip` and vendors' tools are looked for",
}


class Undocumented(Exception):
    """The code reads a variable that has no text here, or no longer reads one that has."""


def page() -> str:
    """The page. Undocumented."""
    if wrong := variables() ^ set(VARIABLES):
        raise Undocumented(f"{', '.join(sorted(wrong))}: describe what the code reads, and nothing else, in {__name__}")
    return template("configuration").format(
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

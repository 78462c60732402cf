"""What a person asks of one engine, before profiles are consulted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from neuron_pd.core.settings import KEYS, RETENTIONS
from neuron_pd.errors import UsageError
from neuron_pd.hosts.addresses import EVERYWHERE, HERE, LOOPBACK
from neuron_pd.profiles import ROLES, Profiles

CONNECTORS: Final = ("neuron-pd", "upstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One engine. None is "not said". Lengths in tokens, times in seconds, memory in GiB, `ledger_bytes` in bytes.

    `model` is a directory, or a name that vLLM itself can resolve; `card` is the name that its profile is known by,
    where that is another. `cores` is a list as in "0-3,6", of CPU cores, GPUs or logical NeuronCores. `index` counts
    the `engines` of this role on this machine from 0. An engine may span `nodes` machines of this kind; `node_rank` is
    this one's number among them, `head_host` the first one's address where that is not the role's own. `extra_args`
    are vLLM flags that win over everything else.
    """

    role: str
    model: str
    instance: str = "cpu"
    card: str = ""
    profiles: Profiles = field(default_factory=Profiles)
    connector: str = "neuron-pd"
    retention: str = "lease"
    bidir: bool = True
    prefix_caching: bool = True
    served_name: str | None = None
    prefill_host: str | None = None
    decode_host: str | None = None
    host: str | None = None
    port: int | None = None
    side_channel_host: str | None = None
    side_channel_port: int | None = None
    cores: str | None = None
    kv_cache_gib: int | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    recompute_threshold: int | None = None
    engines: int = 1
    index: int = 0
    nodes: int = 1
    node_rank: int = 0
    head_host: str | None = None
    read_lease_seconds: int = int(KEYS["read_lease_seconds"].default)
    kv_lease_duration: int = int(KEYS["kv_lease_duration"].default)
    decoder_kv_blocks_ttl: int = int(KEYS["decoder_kv_blocks_ttl"].default)
    ledger_bytes: int = int(KEYS["ledger_bytes"].default)
    token_file: Path | None = None
    image: str | None = None
    extra_args: Sequence[str] = ()
    python: str = ""

    @property
    def peer(self) -> str:
        return ROLES[1 - ROLES.index(self.role)]

    @property
    def own_host(self) -> str | None:
        """This role's node, where it was named."""
        return self.prefill_host if self.role == "prefill" else self.decode_host

    @property
    def peer_host(self) -> str | None:
        return self.decode_host if self.role == "prefill" else self.prefill_host

    @property
    def side_channel(self) -> str:
        """The address that the other role connects to."""
        return self.side_channel_host or self.own_host or HERE

    @property
    def head(self) -> str | None:
        """The address that the engine's other nodes connect to."""
        return self.head_host or self.own_host

    @property
    def one_machine(self) -> bool:
        """Both roles are on this machine."""
        return self.side_channel in LOOPBACK or self.side_channel == self.peer_host

    @property
    def ours(self) -> bool:
        """neuron-pd's connector, not upstream's own."""
        return self.connector == CONNECTORS[0]


def check_request(request: Request) -> None:
    """UsageError for words that are none of the choices, and for addresses that the other role cannot reach."""
    for word, value, choices in (
        ("role", request.role, ROLES),
        ("connector", request.connector, CONNECTORS),
        ("retention", request.retention, RETENTIONS),
    ):
        if value not in choices:
            raise UsageError(f"unknown {word} {value!r}: use {' or '.join(choices)}")
    if not 0 <= request.index < request.engines:
        last = request.engines - 1
        raise UsageError(f"--index {request.index} is none of {request.engines} engines: use 0 to {last}")
    _check_addresses(request)
    _check_nodes(request)
    if request.role == "decode" and request.bidir and request.ours and not request.prefix_caching:
        raise UsageError(
            "decode reads conversations out of its prefix cache: leave --no-prefix-caching out, or add --no-bidir"
        )


def _check_addresses(request: Request) -> None:
    own, peer = request.side_channel, request.peer_host
    option = f"--{request.role}-host"
    if own in EVERYWHERE:
        raise UsageError(
            f"the side channel's host is what {request.peer} connects to: give {option} this node's address"
        )
    if own in LOOPBACK and peer is not None and peer not in LOOPBACK:
        raise UsageError(
            f"{request.peer} on {peer} cannot reach the side channel on {own}: give {option} this node's address"
        )


def _check_nodes(request: Request) -> None:
    if not 0 <= request.node_rank < request.nodes:
        last = request.nodes - 1
        raise UsageError(f"--node-rank {request.node_rank} is none of {request.nodes} nodes: use 0 to {last}")
    if request.nodes == 1:
        return
    if request.engines > 1:
        raise UsageError(f"an engine on {request.nodes} nodes is the only one there: leave --engines out")
    if request.head in (None, *LOOPBACK):
        raise UsageError(
            f"an engine on {request.nodes} nodes needs its first node's address: give --{request.role}-host"
        )

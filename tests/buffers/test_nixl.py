"""What adapters tell NIXL, told to real NIXL agents: one reads from the other by it, in both directions.

The backend is UCX, or what NEURON_PD_BACKENDS says: under `python -m ci.libfabric` the same test runs over LIBFABRIC.
"""

import os
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nixl = pytest.importorskip("nixl._api", reason="NIXL is not installed: pip install 'neuron-pd[cpu]'")

from neuron_pd.buffers import BufferAdapter  # noqa: E402
from neuron_pd.buffers.host import HostAdapter  # noqa: E402
from neuron_pd.buffers.staged import StagedAdapter  # noqa: E402

pytestmark = pytest.mark.vllm

BACKEND = os.environ.get("NEURON_PD_BACKENDS", "UCX")
BLOCKS, SLOTS, LAYERS = 16, 8, 2
SHAPE = (2, 8, 16)


class Engine:
    """KV in an adapter's memory, and a NIXL agent that knows of it what the adapter says."""

    def __init__(self, name: str, staged: bool, first: float) -> None:
        self.caches = {
            f"layer.{i}": torch.arange(BLOCKS).view(-1, 1, 1, 1).expand(BLOCKS, *SHAPE) + first + 100 * i
            for i in range(LAYERS)
        }
        self.caches = {layer: cache.float().contiguous() for layer, cache in self.caches.items()}
        self.adapter: BufferAdapter = StagedAdapter(HostAdapter(), BLOCKS, SLOTS) if staged else HostAdapter()
        shown = self.adapter.attach(self.caches)
        self.addresses = [cache.data_ptr() for cache in shown.values()]
        self.block_bytes = next(iter(shown.values()))[0].nbytes
        self.count = SLOTS if staged else BLOCKS
        self.agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[BACKEND]))
        regions = [(region.address, region.nbytes, region.device_id, "") for region in self.adapter.regions(shown)]
        self.agent.register_memory(regions, self.adapter.segment.value, [BACKEND])

    def expose(self, blocks: list[int]) -> list[int]:
        """What a peer calls these blocks."""
        if not isinstance(self.adapter, StagedAdapter):
            return blocks
        slots = list(range(len(blocks)))
        self.adapter.save(blocks, slots)
        return slots

    def read(self, peer: "Engine", theirs: list[int], blocks: list[int]) -> None:
        """Read what the peer exposed as `theirs` into `blocks`."""
        staged = isinstance(self.adapter, StagedAdapter)
        ours = list(range(SLOTS - len(blocks), SLOTS)) if staged else blocks
        name = self.agent.add_remote_agent(peer.agent.get_agent_metadata())
        local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self._descriptors(self))
        remote = self.agent.prep_xfer_dlist(name, self._descriptors(peer))
        handle = self.agent.make_prepped_xfer(
            "READ", local, self._ids(self, ours), remote, self._ids(peer, theirs), b""
        )
        self.agent.transfer(handle)
        until = time.monotonic() + 60
        while (state := self.agent.check_xfer_state(handle)) == "PROC":
            assert time.monotonic() < until, "the read never ended"
            peer.agent.get_new_notifs()  # both sides make progress
        assert state == "DONE"
        self.agent.release_xfer_handle(handle)
        if staged:
            self.adapter.load(blocks, ours)  # type: ignore[attr-defined]

    def _descriptors(self, engine: "Engine") -> Any:
        blocks = [
            (address + block * engine.block_bytes, engine.block_bytes, 0)
            for address in engine.addresses
            for block in range(engine.count)
        ]
        return self.agent.get_xfer_descs(blocks, engine.adapter.segment.value)

    def _ids(self, engine: "Engine", blocks: list[int]) -> list[int]:
        return [layer * engine.count + block for layer in range(LAYERS) for block in blocks]

    def block(self, layer: int, block: int) -> set[float]:
        return set(self.caches[f"layer.{layer}"][block].flatten().tolist())


@pytest.mark.parametrize(
    ("p_staged", "d_staged"),
    [(False, False), (True, True), (True, False), (False, True)],
    ids=["host to host", "staged to staged", "staged to host", "host to staged"],
)
def test_blocks_travel_both_ways_by_what_the_adapters_say(p_staged: bool, d_staged: bool) -> None:
    prefill, decode = Engine("p", p_staged, 1000.0), Engine("d", d_staged, 2000.0)
    decode.read(prefill, prefill.expose([3, 4, 9]), [7, 8, 0])  # the hand-off
    for layer in range(LAYERS):
        assert [decode.block(layer, block) for block in (7, 8, 0, 1)] == [
            {1003.0 + 100 * layer},
            {1004.0 + 100 * layer},
            {1009.0 + 100 * layer},
            {2001.0 + 100 * layer},
        ]
    prefill.read(decode, decode.expose([10, 11]), [14, 15])  # the read-back
    for layer in range(LAYERS):
        assert [prefill.block(layer, block) for block in (13, 14, 15)] == [
            {1013.0 + 100 * layer},
            {2010.0 + 100 * layer},
            {2011.0 + 100 * layer},
        ]

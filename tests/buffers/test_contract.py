"""One suite over every adapter: what the connector may count on, whatever the memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from neuron_pd.buffers import BufferAdapter, Run, Segment, runs  # noqa: E402
from neuron_pd.buffers.cuda import CudaAdapter  # noqa: E402
from neuron_pd.buffers.host import HostAdapter  # noqa: E402
from neuron_pd.buffers.host_memory import HostBuffer, HostRows  # noqa: E402
from neuron_pd.buffers.machine import Machine  # noqa: E402
from neuron_pd.buffers.neuron import NeuronAdapter  # noqa: E402
from neuron_pd.buffers.nrt import NrtTensor, Runtime  # noqa: E402
from neuron_pd.buffers.nxd import NxdAdapter  # noqa: E402
from neuron_pd.buffers.staged import StagedAdapter  # noqa: E402
from tests.fakes.device import DONE, DeviceTensor  # noqa: E402

BLOCKS, SLOTS, LAYERS = 12, 8, 3
SHAPE = (2, 4, 8)  # heads, tokens, K and V of a head
BLOCK_BYTES = 2 * 4 * 8 * 4


@dataclass
class Subject:
    """An adapter with caches in its memory, whose block b of layer l holds the byte 16·l + b."""

    adapter: BufferAdapter
    caches: dict[str, Any]
    read: Callable[[Any, int], bytes]

    def block(self, layer: int, block: int) -> bytes:
        return self.read(list(self.caches.values())[layer], block)


def value(layer: int, block: int) -> bytes:
    return bytes([16 * layer + block]) * BLOCK_BYTES


def plain(layer: int, rows: int = BLOCKS) -> Any:
    content = b"".join(value(layer, block) for block in range(rows))
    return torch.frombuffer(bytearray(content), dtype=torch.float32).view(rows, *SHAPE)


def of_plain(cache: Any, block: int) -> bytes:
    inner = cache.inner if isinstance(cache, DeviceTensor) else cache
    return bytes(inner[block].contiguous().view(torch.uint8).flatten().tolist())


def of_nrt(cache: NrtTensor, block: int) -> bytes:
    rows = HostBuffer(BLOCK_BYTES).rows(0, BLOCK_BYTES, 1)
    cache.read(block * BLOCK_BYTES, BLOCK_BYTES, rows.address(0))
    return bytes(rows.bytes(0))


def host(machine: Machine, runtime: Runtime) -> Subject:
    return Subject(HostAdapter(machine), {f"layer.{i}": plain(i) for i in range(LAYERS)}, of_plain)


def cuda(machine: Machine, runtime: Runtime) -> Subject:
    caches = {f"layer.{i}": DeviceTensor(plain(i), "cuda") for i in range(LAYERS)}
    return Subject(CudaAdapter(machine), caches, of_plain)


def neuron(machine: Machine, runtime: Runtime) -> Subject:
    """As vLLM's Neuron plugin has it: torch tensors."""
    caches = {f"layer.{i}": DeviceTensor(allocated(runtime, i), "neuron") for i in range(LAYERS)}
    return Subject(NeuronAdapter(machine, runtime), caches, of_plain)


def allocated(runtime: Runtime, layer: int, rows: int = BLOCKS) -> Any:
    """A torch view of memory that the runtime has allocated."""
    import ctypes

    raw = runtime.allocate(rows * BLOCK_BYTES)
    KEPT.append(raw)
    memory = (ctypes.c_char * raw.nbytes).from_address(raw.data_ptr())
    tensor = torch.frombuffer(memory, dtype=torch.float32).view(rows, *SHAPE)
    return tensor.copy_(plain(layer, rows))


KEPT: list[NrtTensor] = []


def neuron_without_torch(machine: Machine, runtime: Runtime) -> Subject:
    caches = {}
    for layer in range(LAYERS):
        caches[f"layer.{layer}"] = tensor = runtime.allocate(BLOCKS * BLOCK_BYTES)
        rows = HostBuffer(BLOCK_BYTES * BLOCKS).rows(0, BLOCK_BYTES, BLOCKS)
        for block in range(BLOCKS):
            rows.bytes(block)[:] = value(layer, block)
        tensor.write(0, BLOCKS * BLOCK_BYTES, rows.address(0))
    return Subject(NeuronAdapter(machine, runtime), caches, of_nrt)


def nxd(machine: Machine, runtime: Runtime) -> Subject:
    """As neuronx-distributed-inference has it: one block more than vLLM knows, and K and V apart."""
    names = [f"rank0.layer{i // 2}.{'kv'[i % 2]}" for i in range(LAYERS)]
    caches = {name: DeviceTensor(allocated(runtime, i, BLOCKS + 1), "xla") for i, name in enumerate(names)}
    return Subject(NxdAdapter(machine, runtime), caches, of_plain)


def staged(over: Callable[[Machine, Runtime], Subject]) -> Callable[[Machine, Runtime], Subject]:
    def make(machine: Machine, runtime: Runtime) -> Subject:
        device = over(machine, runtime)
        return Subject(StagedAdapter(device.adapter, BLOCKS, SLOTS), device.caches, device.read)

    return make


DIRECT = {"host": host, "cuda": cuda, "neuron": neuron, "neuron_without_torch": neuron_without_torch, "nxd": nxd}
STAGED = {f"staged_{name}": staged(make) for name, make in DIRECT.items() if name != "neuron_without_torch"}


@pytest.fixture(params=[*DIRECT, *STAGED])
def subject(
    request: pytest.FixtureRequest, machine: Machine, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> Subject:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.delenv("FI_PROVIDER", raising=False)
    return {**DIRECT, **STAGED}[request.param](machine, runtime)


def rows_for(subject: Subject, layer: int) -> tuple[Any, HostRows]:
    cache = list(subject.caches.values())[layer]
    pages = subject.adapter.pages(cache, BLOCKS)
    return pages, HostBuffer(SLOTS * pages.page_bytes).rows(0, pages.page_bytes, SLOTS)


def test_what_is_registered_is_the_memory_that_the_peer_is_told_of(subject: Subject) -> None:
    shown = subject.adapter.attach(subject.caches)
    regions = subject.adapter.regions(shown)
    assert regions == sorted(regions, key=lambda region: region.address)
    assert all(region.address > 0 and region.nbytes > 0 and region.device_id >= 0 for region in regions)
    for cache in shown.values():
        inside = [r for r in regions if r.address <= cache.data_ptr() < r.address + r.nbytes]
        assert len(inside) == 1
        assert cache.data_ptr() + cache.nbytes <= inside[0].address + inside[0].nbytes
    assert subject.adapter.describe(regions).startswith(f"buffer={subject.adapter.name} ")


def test_a_host_buffer_is_host_memory_in_whole_pages_of_its_own(subject: Subject) -> None:
    shown = subject.adapter.attach(subject.caches)
    if not subject.adapter.host_buffer:
        assert shown is subject.caches
        return
    (region,) = subject.adapter.regions(shown)
    assert subject.adapter.segment is Segment.DRAM
    assert (region.address % 4096, region.nbytes % 4096) == (0, 0)
    assert {tuple(cache.shape) for cache in shown.values()} == {(SLOTS, *SHAPE)}


def test_its_backends_are_what_was_configured_or_the_machines_best(subject: Subject) -> None:
    assert subject.adapter.backends(None) == ("LIBFABRIC",)  # the machine has EFA devices
    assert subject.adapter.backends(["LIBFABRIC"]) == ("LIBFABRIC",)
    assert all(isinstance(subject.adapter.parameters(name), dict) for name in subject.adapter.backends(None))


def test_a_machine_that_is_in_order_passes_every_check(subject: Subject) -> None:
    subject.adapter.before_agent()
    shown = subject.adapter.attach(subject.caches)
    subject.adapter.before_registration(subject.adapter.regions(shown), subject.adapter.backends(None))


@pytest.mark.parametrize("run", [Run(0, 0, 1), Run(3, 2, 4), Run(4, 0, SLOTS), Run(BLOCKS - 1, SLOTS - 1, 1)])
def test_blocks_come_out_and_go_in_unchanged(subject: Subject, run: Run) -> None:
    pages, rows = rows_for(subject, 1)
    pages.to_host(run, rows)
    for i in range(run.length):
        assert bytes(rows.bytes(run.slot + i)) == value(1, run.block + i)
        rows.bytes(run.slot + i)[:] = value(2, i)
    pages.from_host(run, rows)
    after = [subject.block(1, block) for block in range(BLOCKS)]
    wanted = [value(1, block) for block in range(BLOCKS)]
    wanted[run.block : run.block + run.length] = [value(2, i) for i in range(run.length)]
    assert after == wanted


def test_a_run_is_one_copy_whatever_its_length(subject: Subject) -> None:
    pages, rows = rows_for(subject, 0)
    DONE.clear()
    pages.to_host(Run(2, 0, SLOTS), rows)
    pages.from_host(Run(2, 0, SLOTS), rows)
    assert DONE in ({}, {"narrow": 2, "copy_": 2})  # nothing was counted: not a fake device's tensor


def test_rows_that_are_not_equal_blocks_are_refused(subject: Subject) -> None:
    from neuron_pd.buffers import BufferFault

    with pytest.raises((BufferFault, RuntimeError)):
        subject.adapter.pages(next(iter(subject.caches.values())), BLOCKS * 5)


@pytest.mark.parametrize("make", STAGED.values(), ids=STAGED)
def test_staging_puts_any_block_into_any_slot_and_back(
    make: Callable[..., Subject], machine: Machine, runtime: Runtime
) -> None:
    subject = make(machine, runtime)
    adapter = subject.adapter
    assert isinstance(adapter, StagedAdapter)
    shown = list(adapter.attach(subject.caches).values())
    blocks, slots = [9, 10, 11, 3, 0, 1], [0, 1, 2, 5, 6, 7]
    DONE.clear()
    adapter.save(blocks, slots)
    assert len(runs(blocks, slots)) == 3
    assert DONE["copy_"] in (0, 3 * LAYERS)
    for layer, cache in enumerate(shown):
        assert [of_plain(cache, slot) for slot in slots] == [value(layer, block) for block in blocks]
    adapter.load([4, 5], [6, 7])  # what was blocks 0 and 1
    for layer in range(LAYERS):
        assert [subject.block(layer, block) for block in (3, 4, 5, 6)] == [value(layer, b) for b in (3, 0, 1, 6)]


def test_k_and_v_that_lie_apart_are_staged_as_two_regions_a_layer(machine: Machine) -> None:
    """As the Neuron plugin has it: one tensor a layer, blocks first, and in memory all K before all V."""
    memory = torch.arange(2 * BLOCKS).view(2, BLOCKS, 1, 1).expand(2, BLOCKS, 4, 8).float().contiguous()
    cache = memory.transpose(0, 1)  # [blocks, K or V, tokens, head]
    staged_adapter = StagedAdapter(HostAdapter(machine), BLOCKS, SLOTS)
    (shown,) = staged_adapter.attach({"layer": cache}).values()
    assert tuple(shown.shape) == (SLOTS, 2, 4, 8)
    # Upstream finds its regions by these: segments of `blocks` times the stride of a block.
    segment_bytes = SLOTS * shown.stride(0) * shown.element_size()
    assert shown.nbytes == 2 * segment_bytes
    assert shown[0, 1].data_ptr() - shown.data_ptr() == segment_bytes
    staged_adapter.save([3, 4], [5, 6])
    assert [shown[slot, part, 0, 0].item() for slot in (5, 6) for part in (0, 1)] == [3, 15, 4, 16]
    staged_adapter.load([0], [6])
    assert [cache[0, part, 0, 0].item() for part in (0, 1)] == [4, 16]


def test_blocks_that_are_several_rows_of_the_attention_kernel(machine: Machine) -> None:
    cache = torch.arange(24.0).view(24, 1, 1).expand(24, 2, 8).contiguous()
    adapter = StagedAdapter(HostAdapter(machine), 12, SLOTS)
    (shown,) = adapter.attach({"layer": cache}).values()
    assert tuple(shown.shape) == (2 * SLOTS, 2, 8)
    adapter.save([5], [1])
    assert shown[2:4, 0, 0].tolist() == [10, 11]


def test_layers_that_share_a_block_are_staged_layer_by_layer(machine: Machine) -> None:
    """A layout that packs every layer's page into one row a block."""
    packed = torch.arange(BLOCKS * LAYERS).view(BLOCKS, LAYERS, 1).expand(BLOCKS, LAYERS, 8).float().contiguous()
    caches = {f"layer.{i}": packed[:, i].view(BLOCKS, 1, 8) for i in range(LAYERS)}
    adapter = StagedAdapter(HostAdapter(machine), BLOCKS, SLOTS)
    shown = list(adapter.attach(caches).values())
    assert all(cache.is_contiguous() for cache in shown)
    adapter.save([7, 8], [0, 1])
    assert [cache[1, 0, 0].item() for cache in shown] == [24, 25, 26]


def test_a_block_in_pieces_is_refused(machine: Machine) -> None:
    from neuron_pd.buffers import BufferFault

    interleaved = torch.zeros(4, 12, 8)[:, ::2]  # another layer's rows lie between
    with pytest.raises(BufferFault, match="VLLM_KV_CACHE_LAYOUT=HND"):
        StagedAdapter(HostAdapter(machine), 4, 2).attach({"layer": interleaved})

"""What is worth knowing beside a command: lines for a person, one thing each."""

from collections.abc import Iterator, Mapping

from neuron_pd.launcher.flags import Value, number
from neuron_pd.launcher.layout import STAGGER_SECONDS, Layout
from neuron_pd.launcher.memory import Fit
from neuron_pd.launcher.request import Request
from neuron_pd.profiles import Instance, Model


def notes_on(
    request: Request,
    instance: Instance,
    card: Model | None,
    layout: Layout,
    flags: Mapping[str, Value],
    fit: Fit | None,
) -> tuple[str, ...]:
    """In the order of their weight. Each is one line."""
    lines = [
        *_pairing(request, layout),
        *_start(request, instance),
        *_memory(instance, flags, fit),
        *instance.notes,
        *(card.notes if card else ()),
        *_untried(instance),
    ]
    return tuple(" ".join(line.split()) for line in lines)


def start_delay(request: Request, instance: Instance) -> int:
    """Seconds to wait before this engine starts, so that those of one role on a Neuron machine follow one another."""
    return STAGGER_SECONDS * request.index if instance.is_neuron else 0


def _pairing(request: Request, layout: Layout) -> Iterator[str]:
    yield (
        f"{request.peer} must run with the same --{'' if request.bidir else 'no-'}bidir, model, dtype, block size and "
        "vLLM and NIXL releases"
    )
    if request.ours:
        yield "both engines and the proxy need the same control token (NEURON_PD_CONTROL_TOKEN_FILE)"
    elif request.bidir:
        yield (
            "upstream's connector: a router that streams needs a vLLM that puts kv_transfer_params into streamed "
            f"replies (0.33, or the patch); reads after {request.decoder_kv_blocks_ttl} s fail: the router's own TTL "
            "must be shorter"
        )
    if request.nodes > 1:
        yield (
            f"an engine on {request.nodes} nodes keeps its id when it restarts, which makes it a stale peer: restart "
            f"{request.peer} too"
        )
    if not request.ours:
        yield "kv_rank and kv_parallel_size are for vLLM before 0.32; from 0.32 on leave them out (--exec does)"
    if not request.ours and request.role == "decode" and request.bidir and not request.prefix_caching:
        yield "decode without a prefix cache can be read from while its blocks are pinned, and hits nothing of its own"
    if layout.data_parallel > 1:
        last = layout.side_channel_port + layout.data_parallel - 1
        yield f"side-channel ports {layout.side_channel_port} to {last} are taken, one for each data-parallel rank"


def _start(request: Request, instance: Instance) -> Iterator[str]:
    if not instance.is_neuron:
        return
    if request.index:
        yield f"start it {start_delay(request, instance)} s after the first {request.role} engine of this machine"
    if request.one_machine and request.role == "decode":
        yield f"both roles on one machine: start decode about {STAGGER_SECONDS} s after prefill"


def _memory(instance: Instance, flags: Mapping[str, Value], fit: Fit | None) -> Iterator[str]:
    if fit is None:
        if instance.hardware is not None:
            yield "the model's size is not known here, so its fit into memory was not checked: --profile FILE gives it"
        return
    sequences = number(flags, "max-num-seqs")
    full = fit.tokens / fit.length
    yield f"memory: {fit.arithmetic}"
    if sequences is not None and full < sequences:
        yield f"{full:.1f} sequences of the greatest length fit at once; of --max-num-seqs {sequences} some may wait"


def _untried(instance: Instance) -> Iterator[str]:
    if instance.accelerator != "cpu":
        yield f"neuron-pd has not run on {instance.name} yet: docs/{_page(instance)} says what has been checked and how"


def _page(instance: Instance) -> str:
    return "trainium.md" if instance.is_neuron else "p5en.md"

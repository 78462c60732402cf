"""`--kv-transfer-config`: upstream's keys, and with our connector ours beside them."""

from collections.abc import Mapping
from typing import Any, Final

from neuron_pd.core.versions import release
from neuron_pd.errors import UsageError
from neuron_pd.launcher.request import Request
from neuron_pd.profiles import ROLES, Instance, Settings

CONNECTOR: Final = "NixlConnector"  # vLLM's own checks go by the class name; the module path decides which class it is
CONNECTOR_MODULE: Final = "neuron_pd.connector.connector"
# NIXL has no use for these, and vLLM refuses them from this release on; upstream's users know them from before.
RANKS: Final = ("kv_rank", "kv_parallel_size")
WITHOUT_RANKS: Final = (0, 32)
STAGED: Final = "staged"  # the buffer adapter that copies through host memory, in both directions
KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


def known_to(config: Mapping[str, Any], vllm: str | None) -> dict[str, Any]:
    """The configuration without the keys that this release of vLLM refuses."""
    found = release(vllm) if vllm else None
    gone = RANKS if found is not None and found >= WITHOUT_RANKS else ()
    return {name: value for name, value in config.items() if name not in gone}


def is_staged(instance: Instance) -> bool:
    """KV goes through host memory: the accelerator's own cannot be registered there."""
    return instance.hardware is not None and not instance.hardware.registers_hbm


def check_reach(request: Request, instance: Instance) -> None:
    """UsageError for a connector or a retention that cannot do with KV in a staging buffer."""
    if not is_staged(instance):
        return
    if not request.ours:
        raise UsageError(
            f"upstream's connector cannot register the memory of {instance.name}, nor read back through a host buffer: "
            "use --connector neuron-pd"
        )
    if request.retention == "pin":
        raise UsageError(f"KV goes through a host buffer on {instance.name}, which pins nothing: use --retention lease")


def transfer_config(request: Request, instance: Instance, settings: Settings, engine_id: str) -> dict[str, Any]:
    """The configuration as a JSON object. Names and defaults of upstream's keys are upstream's."""
    extra: dict[str, Any] = {
        "backends": list(instance.kv_transfer.backends),
        "kv_recompute_threshold": request.recompute_threshold or settings.recompute_threshold or 64,
        "decoder_kv_blocks_ttl": request.decoder_kv_blocks_ttl,
        "bidirectional_kv_xfer": request.bidir,
    }
    config: dict[str, Any] = {
        "kv_connector": CONNECTOR if request.ours else settings.connector or CONNECTOR,
        "kv_buffer_device": instance.kv_transfer.buffer_device,
        "kv_role": KV_ROLES[request.role],
        "engine_id": engine_id,
    }
    if not request.ours:
        config |= {"kv_rank": ROLES.index(request.role), "kv_parallel_size": len(ROLES)}
    else:
        config["kv_connector_module_path"] = CONNECTOR_MODULE
        # vLLM's default, "fail", turns a read that came to nothing into an HTTP 500.
        config["kv_load_failure_policy"] = "recompute"
        extra["retention"] = request.retention
        extra["read_lease_seconds"] = request.read_lease_seconds
        extra["kv_lease_duration"] = request.kv_lease_duration
        extra["ledger_bytes"] = request.ledger_bytes
        if is_staged(instance):
            extra["buffer"] = STAGED
    return {**config, "kv_connector_extra_config": extra}

"""`--kv-transfer-config`: upstream's keys, and with our connector ours beside them."""

from typing import Any, Final

from neuron_pd.launcher.request import Request
from neuron_pd.profiles import ROLES, Instance, Settings

CONNECTOR: Final = "NixlConnector"  # vLLM's own checks go by the class name; the module path decides which class it is
CONNECTOR_MODULE: Final = "neuron_pd.connector.connector"
KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


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
        "kv_rank": ROLES.index(request.role),
        "kv_parallel_size": len(ROLES),
    }
    if request.ours:
        config["kv_connector_module_path"] = CONNECTOR_MODULE
        # vLLM's default, "fail", turns a read that came to nothing into an HTTP 500.
        config["kv_load_failure_policy"] = "recompute"
        extra["retention"] = request.retention
        extra["read_lease_seconds"] = request.read_lease_seconds
        extra["kv_lease_duration"] = request.kv_lease_duration
        extra["ledger_bytes"] = request.ledger_bytes
    return {**config, "kv_connector_extra_config": extra}

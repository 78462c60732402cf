"""What the proxy remembers between turns: key → which engines, under which handle.

Keys are digests; nothing of a prompt is kept. Losing an entry costs a prefill, never an answer.

base     what an entry is, and the contract of a store
memory   in this process, compact
shared   in Redis, for several proxies
"""

from neuron_pd.proxy.chain import TURNS_KEPT
from neuron_pd.proxy.settings import Conversations
from neuron_pd.proxy.store.base import KEY_BYTES, Known, Offer, Store
from neuron_pd.proxy.store.memory import MemoryStore
from neuron_pd.proxy.store.shared import Failed, RedisStore, check_url

__all__ = ["KEY_BYTES", "Known", "MemoryStore", "Offer", "RedisStore", "Store", "check_url", "open_store"]

KEYS_A_TURN = 2  # of a transcript: with its reply, and without


def open_store(settings: Conversations, failed: Failed) -> Store:
    """The store that the settings name; `failed(operation, kind)` hears of calls that came to nothing."""
    if settings.store == "memory":
        return MemoryStore(TURNS_KEPT * KEYS_A_TURN * settings.most, settings.ttl)
    return RedisStore(settings.store, settings.ttl, settings.store_timeout, failed)

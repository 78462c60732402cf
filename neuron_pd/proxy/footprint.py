"""What remembered conversations take in memory, measured on the store itself.

    python -m neuron_pd.proxy.footprint 1000000

prints `{"conversations": N, "bytes_by_id": B, "bytes_by_transcript": T}`: bytes a conversation of resident memory, by
how it is recognised. By id it has one key, by transcript two for each of its latest turns; measured after one turn.
"""

import argparse
import asyncio
import os
import sys

import orjson
import psutil

from neuron_pd.proxy.settings import Conversations
from neuron_pd.proxy.store import KEY_BYTES, KEYS_A_TURN, Known, Store, open_store

ENGINES = 8


async def fill(store: Store, conversations: int, keys: int) -> float:
    """Keep so many conversations, each under `keys` keys; bytes of memory for each."""
    process = psutil.Process()
    before = process.memory_info().rss
    for number in range(conversations):
        drawn = os.urandom(16 + keys * KEY_BYTES)
        known = Known(
            f"http://decode-{number % ENGINES}", drawn[:16].hex(), f"http://prefill-{number % ENGINES}", number
        )
        await store.put([drawn[16 + at * KEY_BYTES :][:KEY_BYTES] for at in range(keys)], known)
    return (process.memory_info().rss - before) / max(1, conversations)


async def measure(conversations: int) -> dict[str, float]:
    def store() -> Store:
        return open_store(Conversations(most=max(1, conversations)), lambda operation, kind: None)

    by_transcript = await fill(kept := store(), conversations, KEYS_A_TURN)
    # The first store stays, so that the second grows in memory of its own.
    by_id = await fill(store(), conversations, 1)
    await kept.close()
    return {"conversations": conversations, "bytes_by_id": round(by_id), "bytes_by_transcript": round(by_transcript)}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("conversations", type=int)
    figures = asyncio.run(measure(options.parse_args().conversations))
    sys.stdout.write(orjson.dumps(figures).decode() + "\n")


if __name__ == "__main__":
    main()

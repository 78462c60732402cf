"""What the proxy remembers of conversations."""

from typing import TYPE_CHECKING

import click

from neuron_pd.cli.topics import topic

if TYPE_CHECKING:
    from neuron_pd.proxy.settings import Conversations


@topic(
    "Conversations",
    click.option("--conversation-ttl", default=3600.0, show_default=True, type=click.FloatRange(1), metavar="SECONDS",
                 help="How long an unused conversation is remembered."),
    click.option("--max-conversations", default=100_000, show_default=True, type=click.IntRange(1),
                 help="How many are remembered, at most, in this process."),
    click.option("--store", default="memory", show_default=True, metavar="memory|URL", envvar="NEURON_PD_STORE",
                 show_envvar=True, help="Where: redis://HOST:PORT/0 or rediss://… is shared by several proxies."),
    click.option("--store-timeout", default=0.025, show_default=True, type=click.FloatRange(0.001), metavar="SECONDS",
                 help="For an answer of the store; then the turn goes on without reuse."),
    click.option("--decoder-kv-blocks-ttl", default=480.0, show_default=True, type=click.FloatRange(0),
                 metavar="SECONDS", help="How long a D with vLLM's own connector keeps a turn's blocks, as set there; "
                                         "0: nothing is reused from it."),
)  # fmt: skip
def conversations(
    conversation_ttl: float, max_conversations: int, store: str, store_timeout: float, decoder_kv_blocks_ttl: float
) -> "Conversations":
    from neuron_pd.proxy.settings import Conversations
    from neuron_pd.proxy.store import check_url

    if store != "memory":
        check_url(store)
    return Conversations(conversation_ttl, max_conversations, store, store_timeout, decoder_kv_blocks_ttl)

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
                 help="How many are remembered, at most."),
)  # fmt: skip
def conversations(conversation_ttl: float, max_conversations: int) -> "Conversations":
    from neuron_pd.proxy.settings import Conversations

    return Conversations(conversation_ttl, max_conversations)

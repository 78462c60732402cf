"""One turn as a model of time: what its parts cost, linear in coefficients that a calibration holds.

transfer   latency + per_byte·bytes + per_descriptor·descriptors             the D→P read, as NIXL counts it
prefill    compute + prompt.per_token·prompt + (transfer + wait if reused)   the whole prefill leg
ttft       prefill + acquire if reused + hand_off.fixed + hand_off.per_token·prompt + D's read of what it lacks

Compute is `PrefillCost` over the tokens that are neither reused nor in P's own cache, after those that are.
"""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Self

from neuron_pd.core.cost import PrefillCost, TransferCost
from neuron_pd.core.decision import Costs


class Quantity(StrEnum):
    """What can be measured of a turn."""

    ACQUIRE = "acquire"
    TRANSFER = "transfer"
    PREFILL = "prefill"
    TTFT = "ttft"


@dataclass(frozen=True, slots=True)
class Layout:
    """How KV lies in memory: bytes a token, tokens a block, and NIXL descriptors a block (0 where that is not known).

    A descriptor is one contiguous piece of memory: a layer's K or V of a block, or of several blocks that lie side by
    side.
    """

    bytes_per_token: float
    block_size: int
    descriptors_per_block: float = 0.0

    @property
    def descriptors_per_token(self) -> float:
        return self.descriptors_per_block / self.block_size

    def whole(self, tokens: int) -> int:
        """`tokens` down to whole blocks: only those are kept and reused."""
        return max(0, tokens) // self.block_size * self.block_size

    def blocks(self, tokens: int) -> int:
        """How many blocks hold `tokens`."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt in tokens: `local` leading ones are in P's cache, the next `reused` come from D, P computes the rest.

    `held` leading ones are in D's cache when the turn reaches it; D reads the others from P.
    """

    prompt: int
    reused: int = 0
    local: int = 0
    held: int = 0

    @property
    def context(self) -> int:
        return self.local + self.reused

    @property
    def computed(self) -> int:
        return self.prompt - self.context

    @property
    def lacking(self) -> int:
        return max(0, self.prompt - self.held)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds, seconds a token, a pair of tokens, a byte or a descriptor.

    `prefill_*` is P's engine computing. `prompt_per_token` is what the prefill leg takes for every token of the prompt
    whichever way its KV comes: reading the request, tokenizing, hashing. `read_*` is the transfer, `read_wait` what a
    read costs the prefill leg beyond its transfer, `acquire` the round trip to D before it. `hand_off_*` is the way
    from P's answer to D's first token.
    """

    prefill_fixed: float = 0.0
    prefill_per_token: float = 0.0
    prefill_per_pair: float = 0.0
    prompt_per_token: float = 0.0
    read_latency: float = 0.0
    per_byte: float = 0.0
    per_descriptor: float = 0.0
    read_wait: float = 0.0
    acquire: float = 0.0
    hand_off_fixed: float = 0.0
    hand_off_per_token: float = 0.0

    @property
    def prefill(self) -> PrefillCost:
        return PrefillCost(self.prefill_fixed, self.prefill_per_token, self.prefill_per_pair)

    def moving(self, layout: Layout, latency: float = 0.0) -> TransferCost:
        """Reading KV of a layout. Descriptors are in proportion to the bytes, and so part of the seconds a byte."""
        per_token = self.per_descriptor * layout.descriptors_per_token
        return TransferCost(latency, self.per_byte + per_token / layout.bytes_per_token)

    def costs(self, layout: Layout, others: int = 0, *, direct: bool = False) -> Costs:
        """As the product's decision sees them. `direct`: D may prefill, at P's speed, with `others` replies waiting."""
        return Costs(
            bytes_per_token=layout.bytes_per_token,
            prefill=self.prefill,
            read_back=self.moving(layout, self.read_latency + self.read_wait + self.acquire),
            hand_off=self.moving(layout),
            direct=self.prefill if direct else None,
            others=others,
        )

    def as_json(self) -> dict[str, float]:
        return asdict(self)


COLUMNS = tuple(field.name for field in fields(Coefficients))


@dataclass(frozen=True, slots=True)
class Account:
    """Where a turn's seconds go, without queueing. `host` is what the prefill leg takes beside compute and transfer."""

    compute: float
    transfer: float
    host: float
    acquire: float
    hand_off: float

    @property
    def prefill(self) -> float:
        """The whole prefill leg."""
        return self.compute + self.transfer + self.host

    @property
    def ttft(self) -> float:
        return self.prefill + self.acquire + self.hand_off

    @property
    def handover(self) -> float:
        """Everything but compute and transfer."""
        return self.host + self.acquire + self.hand_off

    @classmethod
    def of(cls, turn: Turn, by: Coefficients, layout: Layout) -> Self:
        size = layout.bytes_per_token
        reading = bool(turn.reused)
        hand_off = by.hand_off_fixed + by.hand_off_per_token * turn.prompt
        return cls(
            compute=by.prefill.seconds(turn.computed, turn.context),
            transfer=by.moving(layout, by.read_latency).seconds(turn.reused * size),
            host=by.prompt_per_token * turn.prompt + by.read_wait * reading,
            acquire=by.acquire * reading,
            hand_off=hand_off + by.moving(layout).seconds(turn.lacking * size),
        )


def features(quantity: Quantity, turn: Turn, layout: Layout) -> dict[str, float]:
    """What each coefficient is multiplied with, by name; those that are absent do not count."""
    reading = float(bool(turn.reused))
    if quantity is Quantity.ACQUIRE:
        return {"acquire": reading}
    if quantity is Quantity.TRANSFER:
        return {"read_latency": reading, **_moved(turn.reused, layout)}
    new, context = turn.computed, turn.context
    leg = {
        **_moved(turn.reused, layout),
        "read_latency": reading,
        "read_wait": reading,
        "prefill_fixed": float(new > 0),
        "prefill_per_token": new,
        "prefill_per_pair": new * context + new * new / 2,
        "prompt_per_token": turn.prompt,
    }
    if quantity is Quantity.PREFILL:
        return leg
    handed_over = {"acquire": reading, "hand_off_fixed": 1.0, "hand_off_per_token": turn.prompt}
    return {**leg, **handed_over, **_moved(turn.reused + turn.lacking, layout)}


def _moved(tokens: int, layout: Layout) -> dict[str, float]:
    return {"per_byte": tokens * layout.bytes_per_token, "per_descriptor": tokens * layout.descriptors_per_token}

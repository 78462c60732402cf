"""What an operator looks for in the logs."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from neuron_pd.doctor.logs.records import Record

# The reasons for which a turn was not read back though nothing went wrong.
NOTHING_OFFERED: Final = ("none", "no_lease", "off")
REASON: Final = re.compile(r"\bpath=recompute\b.*?\breason=(\w+)")
DECLINED: Final = (
    "is refused",  # a lease that does not hold together, a hand-off
    "are offered and refused",  # leases without a fingerprint
    "is recomputed",  # a read that outlasted its lease, a staging buffer without room
    "do not fit the staging buffer",
    "no answer about lease",
    "Declining expired remote read",  # upstream's connector
)
EXPIRED: Final = re.compile(r"neuron-pd: lease \S+ expired")
SERIOUS: Final = ("WARNING", "ERROR", "CRITICAL")


def is_read_back(record: Record) -> bool:
    """A turn that started from D's KV, as P or the proxy logs it."""
    return "path=read_back" in record.text


def is_decline(record: Record) -> bool:
    """A turn, a lease or a read that was offered and not used, with its reason."""
    found = REASON.search(record.text)
    if found is not None:
        return found[1] not in NOTHING_OFFERED
    return any(mark in record.text for mark in DECLINED) or EXPIRED.search(record.text) is not None


def is_transfer(record: Record) -> bool:
    """vLLM's own figures of the transfers since the last such line; the side that reads writes them."""
    return record.text.startswith("KV Transfer metrics:")


def is_serious(record: Record) -> bool:
    """A warning or worse."""
    return record.level in SERIOUS


KINDS: Final[dict[str, Callable[[Record], bool]]] = {
    "read-backs": is_read_back,
    "declines": is_decline,
    "transfers": is_transfer,
    "warnings": is_serious,
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Records of any of these kinds (all where there is none), with each of these texts, since a moment."""

    kinds: Collection[str] = ()
    texts: Collection[str] = ()
    since: datetime | None = None

    def __call__(self, record: Record) -> bool:
        if self.since is not None and (record.time is None or record.time < self.since):
            return False
        if any(text not in record.text for text in self.texts):
            return False
        return not self.kinds or any(KINDS[kind](record) for kind in self.kinds)

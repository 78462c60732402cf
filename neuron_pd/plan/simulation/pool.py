"""The KV blocks of one engine: running, pinned, cached or free.

    free ──take──► running ──give──► cached ──(evicted, the least recently used first, its tail first)──► free
                             └─pin──► pinned ──unpin──► cached

A conversation's blocks are a prefix of its sequence; what is evicted from its tail leaves a shorter prefix.
"""

from collections import OrderedDict


class Pool:
    """Block counts by conversation. `total` is never exceeded: running + pinned + cached + free = total."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.running = 0
        self.pinned = 0
        self.peak_pinned = 0
        self._cached: OrderedDict[int, int] = OrderedDict()
        self._cached_blocks = 0
        self._pinned: dict[int, int] = {}

    @property
    def cached(self) -> int:
        return self._cached_blocks

    @property
    def free(self) -> int:
        return self.total - self.running - self.pinned - self._cached_blocks

    def held(self, conversation: int) -> int:
        """Leading blocks of a conversation that are here, cached or pinned."""
        return self._cached.get(conversation, 0) + self._pinned.get(conversation, 0)

    def is_pinned(self, conversation: int) -> bool:
        return conversation in self._pinned

    def can_take(self, blocks: int) -> bool:
        """Whether that many can run: everything that is neither running nor pinned can be made free."""
        return self.running + self.pinned + blocks <= self.total

    def take(self, conversation: int, blocks: int) -> None:
        """Start running a sequence of `blocks`: on what is cached of it, and on free blocks. See `can_take`."""
        assert self.can_take(blocks)
        self._cached_blocks -= self._cached.pop(conversation, 0)
        self.running += blocks
        self._evict_to_fit()

    def give(self, conversation: int, blocks: int, keep: int) -> None:
        """The sequence of `blocks` has ended; its first `keep` whole blocks stay cached, the most recently used."""
        self.running -= blocks
        self.cache(conversation, keep)

    def cache(self, conversation: int, blocks: int) -> None:
        """Put blocks into the cache, as the most recently used, evicting what no longer fits."""
        blocks = min(blocks, self.total - self.running - self.pinned)
        self._cached_blocks += blocks - self._cached.pop(conversation, 0)
        if blocks:
            self._cached[conversation] = blocks
        self._evict_to_fit()

    def pin(self, conversation: int) -> None:
        """Hold what is cached of a conversation against eviction."""
        blocks = self._cached.pop(conversation, 0)
        self._cached_blocks -= blocks
        self._pinned[conversation] = self._pinned.get(conversation, 0) + blocks
        self.pinned += blocks
        self.peak_pinned = max(self.peak_pinned, self.pinned)

    def unpin(self, conversation: int) -> bool:
        """Back to the cache. False when it was not pinned."""
        blocks = self._pinned.pop(conversation, None)
        if blocks is None:
            return False
        self.pinned -= blocks
        self.cache(conversation, blocks + self._cached.get(conversation, 0))
        return True

    def _evict_to_fit(self) -> None:
        while self.free < 0:
            oldest = next(iter(self._cached))
            evicted = min(-self.free, self._cached[oldest])
            self._cached_blocks -= evicted
            self._cached[oldest] -= evicted
            if not self._cached[oldest]:
                del self._cached[oldest]

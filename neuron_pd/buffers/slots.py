"""Slots of a staging buffer: who holds which. Standard library only; used by one thread."""


class SlotPool:
    """`capacity` slots, given out by name in runs as long as they come, each held by one name at a time."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity))  # ascending, so that what is taken together lies together
        self._held: dict[str, list[int]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def take(self, name: str, count: int) -> list[int] | None:
        """`count` slots for `name`, in ascending order; None, and nothing is taken, where there are not as many.

        What `name` held before is given back first.
        """
        self.give_back(name)
        if count > len(self._free):
            return None
        start = self._long_run(count)
        taken, self._free = self._free[start : start + count], self._free[:start] + self._free[start + count :]
        self._held[name] = taken
        return list(taken)

    def give_back(self, name: str) -> None:
        """What `name` held is free; nothing happens where it held none."""
        if slots := self._held.pop(name, None):
            self._free = sorted(self._free + slots)

    def _long_run(self, count: int) -> int:
        """Where in the free list `count` consecutive slots begin; its start where there is no such run."""
        starts = range(len(self._free) - count + 1) if count else ()
        return next((i for i in starts if self._free[i + count - 1] == self._free[i] + count - 1), 0)

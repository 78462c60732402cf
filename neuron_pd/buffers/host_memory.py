"""Page-aligned host memory that is registered once, and rows of it."""

import ctypes
import mmap
from dataclasses import dataclass
from typing import Any

PAGE = mmap.PAGESIZE


class HostBuffer:
    """`nbytes` of anonymous memory that starts at a page. It lives as long as this object, or a tensor made of it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-nbytes // PAGE) * PAGE
        self._map = mmap.mmap(-1, self.nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def rows(self, offset: int, row_bytes: int, count: int) -> "HostRows":
        """`count` rows of `row_bytes` from `offset` on. ValueError when they do not fit."""
        if offset + row_bytes * count > self.nbytes:
            raise ValueError(f"{count} rows of {row_bytes} bytes at {offset} do not fit {self.nbytes} bytes")
        return HostRows(self, offset, row_bytes, count)

    def tensor(self) -> Any:
        """The whole buffer as a tensor of bytes."""
        import torch

        return torch.frombuffer(self._map, dtype=torch.uint8)

    def view(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._map)[offset : offset + nbytes]


@dataclass(frozen=True, slots=True)
class HostRows:
    """Equal rows of a host buffer, one after the other."""

    buffer: HostBuffer
    offset: int
    row_bytes: int
    count: int

    def address(self, row: int) -> int:
        return self.buffer.address + self.offset + row * self.row_bytes

    def bytes(self, row: int, length: int = 1) -> memoryview:
        """`length` rows from `row` on, to read and to write."""
        return self.buffer.view(self.offset + row * self.row_bytes, length * self.row_bytes)

    def tensor(self, dtype: Any) -> Any:
        """All rows as a tensor [count, row_bytes / itemsize] of `dtype`. The offset must suit the dtype."""
        nbytes = self.row_bytes * self.count
        return self.buffer.tensor().narrow(0, self.offset, nbytes).view(dtype).view(self.count, -1)

"""Host memory for buckets and arenas, faulted in once and used again.

The first write to a fresh page costs several times a copy; versions of one job have equal sizes, so buffers are kept
by size.
"""

import sys
from collections import defaultdict
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.core.weights.layout import ALIGN

Bytes: TypeAlias = npt.NDArray[np.uint8]

PAGE_BYTES = 4096


def allocate(nbytes: int) -> Bytes:
    """Writable memory that starts at a multiple of ALIGN and is already faulted in."""
    raw = np.empty(nbytes + ALIGN, dtype=np.uint8)
    raw[::PAGE_BYTES] = 0
    shift = -raw.ctypes.data % ALIGN
    return raw[shift : shift + nbytes]


class BufferPool:
    """Spare buffers by size; spare and used together stay within `cap_bytes` (spare ones are given up first)."""

    def __init__(self, cap_bytes: int = sys.maxsize) -> None:
        self._cap_bytes = cap_bytes
        self._spare: defaultdict[int, list[Bytes]] = defaultdict(list)
        self._spare_bytes = 0
        self._used_bytes = 0

    @property
    def spare_bytes(self) -> int:
        return self._spare_bytes

    def take(self, nbytes: int) -> Bytes:
        """A buffer of exactly this size, contents undefined."""
        self._used_bytes += nbytes
        if self._spare[nbytes]:
            self._spare_bytes -= nbytes
            return self._spare[nbytes].pop()
        self._shrink()
        return allocate(nbytes)

    def give(self, buffer: Bytes) -> None:
        """Takes a buffer back; nobody may use it any more."""
        self._used_bytes -= buffer.nbytes
        self._spare[buffer.nbytes].append(buffer)
        self._spare_bytes += buffer.nbytes
        self._shrink()

    def forget(self, buffer: Bytes) -> None:
        """A buffer that is not to be used again: something may still write to it."""
        self._used_bytes -= buffer.nbytes

    def trim(self, nbytes: int) -> None:
        """Gives up spare buffers of other sizes than this."""
        for size in [size for size in self._spare if size != nbytes]:
            self._spare_bytes -= size * len(self._spare.pop(size))

    def _shrink(self) -> None:
        for size in sorted(self._spare, reverse=True):
            while self._spare[size] and self._used_bytes + self._spare_bytes > self._cap_bytes:
                self._spare[size].pop()
                self._spare_bytes -= size

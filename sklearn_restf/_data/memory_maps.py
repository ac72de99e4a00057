"""Arrays larger than memory: rows are read when asked for, and what was read is given back."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

LARGE_BYTES = 2**26  # single rows of a larger array are not copied together


class SelectedRows:
    """Some rows of a large array, copied piece by piece as they are asked for."""

    def __init__(self, values: np.ndarray, rows: np.ndarray) -> None:
        self.values, self.rows = values, rows
        self.dtype, self.ndim = values.dtype, values.ndim
        self.shape = (len(rows), *values.shape[1:])
        self.size = math.prod(self.shape)
        self.nbytes = self.size * values.dtype.itemsize

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: slice | np.ndarray) -> np.ndarray:
        return self.values[self.rows[key]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values[self.rows], dtype=dtype)


def select_rows(values: Any, rows: slice | np.ndarray) -> Any:
    """Return some rows: a view where they are a block, read later where the array is large."""
    if isinstance(values, SelectedRows):
        return select_rows(values.values, values.rows[rows])
    if isinstance(rows, slice) or values.nbytes < LARGE_BYTES:
        return values[rows]
    return SelectedRows(values, rows)


def release(values: Any) -> None:
    """Let the operating system take back the pages of a memory map that were read.

    Pages of a mapped file count as resident memory of the process until somebody else needs
    them; a pass over a file would otherwise seem to, and in a container may, fill the memory.
    Nothing is lost: the next access reads the file again, mostly from the system's cache. Arrays
    that are no memory map, and copy-on-write maps (whose changes exist in memory only), are left
    alone.
    """
    if not hasattr(mmap.mmap, "madvise") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    owner = values.values if isinstance(values, SelectedRows) else values
    shared = False
    while owner is not None and not isinstance(owner, mmap.mmap):
        if isinstance(owner, np.memmap):
            shared = owner.mode in ("r", "r+", "w+")
        owner = getattr(owner, "base", None)
    if owner is not None and shared:
        owner.madvise(mmap.MADV_DONTNEED)

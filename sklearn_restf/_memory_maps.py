"""Memory maps larger than memory: what was read is given back."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np


def release(values: np.ndarray) -> None:
    """Let the operating system take back the pages of a memory map that were read.

    Pages of a mapped file count as resident memory of the process until somebody else needs
    them; a pass over a file would otherwise seem to, and in a container may, fill the memory.
    Nothing is lost: the next access reads the file again, mostly from the system's cache. Arrays
    that are no memory map, and copy-on-write maps (whose changes exist in memory only), are left
    alone.
    """
    if not hasattr(mmap.mmap, "madvise") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    owner: Any = values
    shared = False
    while owner is not None and not isinstance(owner, mmap.mmap):
        if isinstance(owner, np.memmap):
            shared = owner.mode in ("r", "r+", "w+")
        owner = getattr(owner, "base", None)
    if owner is not None and shared:
        owner.madvise(mmap.MADV_DONTNEED)

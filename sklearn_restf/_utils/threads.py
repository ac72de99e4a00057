"""How many threads a computation uses.

Small fits are faster on one thread: the threads of an OpenMP team spin at the end of every
operation, and cost 10 to 50 times the work itself when another process holds a core.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

# multiply-adds of one pass below which a second thread does not pay (measured)
SMALL_WORK = 2e7

_lock = threading.Lock()
_users = 0
_before = 1
_blas: Any = None  # restores the thread counts of NumPy's library for matrix products
_forked = False
_inside = threading.local()  # .here: whether this Python thread is inside already


def _mark_forked() -> None:
    global _forked, _users
    _forked, _users = True, 0
    _inside.here = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


@functools.cache
def _blas_libraries() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


@contextmanager
def thread_limit(work: float) -> Iterator[None]:
    """Run small `work` (multiply-adds per pass) on one thread; restore the count afterwards.

    In a forked child always: OpenMP's threads do not survive a fork, and a second team
    would wait for them for ever. Several Python threads may be inside at once; the count
    found by the first is restored. What is called inside (a callback that predicts during a
    fit) leaves the count alone.
    """
    if (work >= SMALL_WORK and not _forked) or getattr(_inside, "here", False):
        yield
        return
    global _users, _before, _blas
    with _lock:
        if _users == 0:
            _before = torch.get_num_threads()
            _blas = _blas_libraries().limit(limits=1)
        _users += 1
        torch.set_num_threads(1)
    _inside.here = True
    try:
        yield
    finally:
        _inside.here = False
        with _lock:
            _users -= 1
            torch.set_num_threads(_before)
            if _users == 0:
                _blas.restore_original_limits()

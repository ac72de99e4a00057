"""Warnings that point at the user's line, and those of several threads kept apart."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Log = list[tuple[type[Warning], str]]

_lock = threading.Lock()
_users = 0
_state: Any = None  # restores what the first user found
_show: Any = None  # shows the warnings that nobody records
_this_thread = threading.local()  # .log: where it records

INNER = ("sklearn_restf", "sklearn", "joblib", "contextlib", "numpy")


def warn(message: str, category: type[Warning]) -> None:
    """Warn on behalf of the first caller outside this package and what stands between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in INNER:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def recording(log: Log) -> Iterator[None]:
    """Record all warnings of this Python thread in `log`.

    ``warnings.catch_warnings`` is not for threads: of two that overlap, the second restores what
    the first has set. So it is entered once for all, and the threads must all be inside the
    context of the one that started them.
    """
    global _users, _state, _show
    with _lock:
        if _users == 0:
            _state = warnings.catch_warnings()
            _state.__enter__()
            if warnings.showwarning is not _record:  # restored too late by someone else
                _show = warnings.showwarning
            warnings.showwarning = _record
            warnings.simplefilter("always")
        _users += 1
    before, _this_thread.log = getattr(_this_thread, "log", None), log
    try:
        yield
    finally:
        _this_thread.log = before
        with _lock:
            _users -= 1
            if _users == 0:
                _state.__exit__(None, None, None)


def _record(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Record a warning if this thread does, or show it."""
    log = getattr(_this_thread, "log", None)
    if log is None:
        _show(message, category, *where, **more)
    else:
        log.append((category, str(message)))

"""Telling the user's Ctrl+C from a ``raise KeyboardInterrupt`` in the code that is called."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class InterruptWatch:
    """Within its context, remembers whether SIGINT raised a KeyboardInterrupt: ``interrupted``.

    What the signal does is up to the handler it finds, which is called as ever and put back in the
    end. Out of the main thread, where no signal arrives, nothing is touched; nor where SIGINT is
    ignored, or handled outside of Python.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._found: Callable[[int, FrameType | None], Any] | None = None
        self._is_over = False

    def __enter__(self) -> InterruptWatch:
        if threading.current_thread() is threading.main_thread():
            found = signal.getsignal(signal.SIGINT)
            if callable(found):
                self._found = found
                signal.signal(signal.SIGINT, self)
        return self

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        assert self._found is not None
        try:
            self._found(number, frame)
        except KeyboardInterrupt:
            self.interrupted = True
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._found is None:
            return
        self._is_over = True
        # what the watched code has installed stays; what it has put back may be a watch of before
        handler = present = signal.getsignal(signal.SIGINT)
        while isinstance(handler, InterruptWatch) and handler._is_over:
            handler = handler._found
        if handler is not present:
            signal.signal(signal.SIGINT, handler)

"""A fixed sequence of operations captured as a CUDA graph, to be repeated without Python."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

WARM_UP = 3  # calls before capture: libraries and buffers are set up in them

_one_at_a_time = threading.Lock()


def capture(call: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
    """Capture a function as a CUDA graph; None if it cannot be.

    What works without capture needs none to be right: operations are then started one by one.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    with _one_at_a_time, torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
            stream.synchronize()
            try:
                # other threads may go on using the device
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    call()
                finally:
                    graph.capture_end()
            except RuntimeError:
                graph = None
        torch.cuda.current_stream().wait_stream(stream)
    return graph

"""Clocks for the benchmarks of speed."""

import math
import time

import numpy as np
import torch


def timed(call):
    """Return (process seconds, wall seconds, result)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return time.process_time() - cpu, time.perf_counter() - wall, result


def gemm_peak(size=1024, seconds=1.0):
    """Measure the float32 matrix product: FLOP per second of processor time (of all threads)."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    best = math.inf
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, timed(lambda: torch.mm(a, b, out=out))[0])
    return 2 * size**3 / best


def slope(fit, n_iter):
    """Return (processor seconds, wall seconds) per iteration, and processor seconds of the rest.

    ``fit(n)`` trains for n iterations; what it does once cancels between two runs.
    """
    cpu_1, wall_1, _ = timed(lambda: fit(1))
    cpu_n, wall_n, _ = timed(lambda: fit(n_iter + 1))
    cpu = (cpu_n - cpu_1) / n_iter
    return cpu, (wall_n - wall_1) / n_iter, max(0.0, cpu_1 - cpu)


def choose_n_iter(fit, seconds, fewest):
    """Return how many iterations take about so many seconds; warms up along the way."""
    first = timed(lambda: fit(1))[0]
    per_iteration = first
    if first < 20 * max(seconds, 1.0):  # the first fit of a process loads parts of torch
        first = timed(lambda: fit(1))[0]
        per_iteration = first
    if first < seconds:  # what is done once may be most of it
        per_iteration = max(1e-5, (timed(lambda: fit(4))[0] - first) / 3)
    return int(np.clip(seconds / per_iteration, fewest, 2000))

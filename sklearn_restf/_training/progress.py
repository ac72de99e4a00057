"""Progress of training: a bar on a terminal, plain lines otherwise, silence by default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

Progress = Callable[[range, Sequence[float]], Iterator[int]]


def make_progress(verbose: int, name: str) -> Progress | None:
    """Return what wraps the iterations; it reads the latest loss from the growing list."""
    if not verbose:
        return None
    show = _bar if sys.stderr.isatty() else _lines
    return lambda iterations, losses: show(iterations, losses, name)


def _bar(iterations: range, losses: Sequence[float], name: str) -> Iterator[int]:
    from tqdm.auto import tqdm  # only when asked for

    done, total = iterations.start - 1, iterations.stop - 1
    with tqdm(iterations, desc=name, unit="it", initial=done, total=total) as bar:
        for iteration in bar:
            yield iteration
            bar.set_postfix(loss=f"{losses[-1]:.6g}", refresh=False)


def _lines(iterations: range, losses: Sequence[float], name: str) -> Iterator[int]:
    every = max(1, len(iterations) // 20)
    for iteration in iterations:
        yield iteration
        if iteration % every == 0 or iteration == 1:
            print(f"[{name}] iteration {iteration}/{iterations.stop - 1}, loss = {losses[-1]:.8g}")

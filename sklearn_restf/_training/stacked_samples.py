"""The samples of several models side by side, filled up to the same numbers of both axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sklearn_restf._data.batches import Batch, Batches


class StackedSamples:
    """All samples of S models as one batch with a leading model axis."""

    keeps_graph = is_cached = True

    def __init__(self, x: Tensor, mask: Tensor | None, y: Tensor, weight: Tensor) -> None:
        self.x, self.mask, self.y, self.weight = x, mask, y, weight
        self.row_sets = [slice(None)]

    @classmethod
    def of(cls, batches: Sequence[Batches]) -> StackedSamples:
        """Stack the samples of several models.

        Samples that fill up are copies of the first one, with weight zero. The same `Batches`
        may come several times: it is read once.
        """
        read = {id(b): whole(b) for b in batches}
        T = max(samples.x.shape[1] for samples in read.values())
        n = max(len(samples.x) for samples in read.values())
        ragged = any(s.mask is not None or s.x.shape[1] < T for s in read.values())
        filled = {key: fill(samples, n, T, ragged=ragged) for key, samples in read.items()}
        parts = zip(*(filled[id(b)] for b in batches), strict=True)
        x, mask, y, weight = (None if p[0] is None else torch.stack(p) for p in parts)
        return cls(x, mask, y, weight)

    def __iter__(self) -> Iterator[Batch]:
        return iter([Batch(self.x, self.mask, self.y, self.weight, slice(None))])


def whole(batches: Batches) -> Batch:
    """Return all samples of one model in one piece, in their order."""
    pieces = list(batches)
    if len(pieces) == 1:
        return pieces[0]  # in order: only several are sorted by length
    n, T = len(batches), max(piece.x.shape[1] for piece in pieces)
    rows = np.concatenate([np.arange(n)[piece.rows] for piece in pieces])
    order = torch.from_numpy(np.argsort(rows)).to(batches.device)
    filled = [fill(piece, len(piece.x), T, ragged=True) for piece in pieces]
    x, mask, y, weight = (torch.cat(parts)[order] for parts in zip(*filled, strict=True))
    return Batch(x, mask, y, weight, slice(None))


def fill(
    samples: Batch, n: int, T: int, *, ragged: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Return tokens, mask, targets and weights of n samples of T tokens."""
    index = torch.arange(n, device=samples.x.device)
    index = torch.where(index < len(samples.x), index, 0)
    weight = functional.pad(samples.weight, (0, n - len(samples.x)))
    x, y, extra = samples.x[index], samples.y[index], T - samples.x.shape[1]
    if not ragged:
        return x, None, y, weight
    mask = samples.mask
    if mask is None:
        mask = torch.ones(samples.x.shape[:2], dtype=torch.bool, device=x.device)
    if y.ndim == 3:
        y = functional.pad(y, (0, 0, 0, extra))
    x = functional.pad(x, (0, 0, 0, extra))
    return x, functional.pad(mask[index], (0, extra)), y, weight

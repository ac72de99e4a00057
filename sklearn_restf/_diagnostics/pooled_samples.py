"""Samples of all ranks of a process group brought together, for the diagnostics."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.batches import Batches
from sklearn_restf._model import ModuleConfig
from sklearn_restf._utils.process_group import gather, total

POOL_BYTES = 2**30  # tokens of all ranks that diagnostics="full" brings together
# what it computes from them
FULL_FIELDS = (
    "jacobian_norm",
    "kernel_min",
    "predicted_curve",
    "predicted_horizon",
    "local_rate",
    "forecast",
)


def join(parts: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Concatenate batches of tokens (n, T, W) and their masks along the samples."""
    if len(parts) == 1:
        return parts[0]
    longest = max(x.shape[1] for x, _ in parts)
    tokens = parts[0][0].new_zeros(sum(len(x) for x, _ in parts), longest, parts[0][0].shape[2])
    mask = torch.zeros(tokens.shape[:2], dtype=torch.bool)
    start = 0
    for x, real in parts:
        tokens[start : start + len(x), : x.shape[1]] = x
        mask[start : start + len(x), : x.shape[1]] = True if real is None else real
        start += len(x)
    return tokens, None if mask.all() else mask


def pool_ranks(batches: Batches, config: ModuleConfig) -> tuple[Batches | None, str]:
    """Return the samples of all ranks on every one, or why they are too many for that."""
    size = total(batches.tokens.values.nbytes)
    if size > POOL_BYTES:
        return None, f"computed for up to 1 GiB of X on several ranks; it has {size / 2**30:.3g}"
    tokens = batches.tokens
    own = np.asarray(tokens.values), tokens.lengths, batches.y, batches.weight
    values, lengths, y, weight = zip(*gather(own), strict=True)
    pooled = Batches(
        RawTokens(np.concatenate(values), None if lengths[0] is None else np.concatenate(lengths)),
        batches.layout,
        np.concatenate(y),
        np.concatenate(weight),
        config=config,
        chunk_size=None,
        dtype=batches.dtype,
        device=batches.device,
        total_weight=1.0,
    )
    return pooled, ""

"""Which fit a checkpoint belongs to: its model, settings, samples and initial weights."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from sklearn_restf._data.batches import Batches
from sklearn_restf._training.net import FullBatchNet

# computed quantities may differ by rounding between machines and thread counts
TOLERANCE = 1e-6


def identity(net: FullBatchNet) -> dict[str, Any]:
    """Return what tells one fit from another, as plain data.

    What only decides when training ends is left out: it may be changed on going on.
    """
    assert net.train is not None
    settings, optimizer = net.settings, net.optimizer_
    found = {
        **asdict(net.module_.config),
        "loss": settings.loss.name,
        "learning_rate": settings.learning_rate,
        "momentum": settings.momentum,
        "alpha": settings.alpha,
        "dtype": str(net.train.dtype)[6:],
        "standardize": net.train.layout.mean is not None,
        **samples(net.train, ""),
        "random_state or init": summary(torch.cat([net.objective_.theta, optimizer.velocity])),
        "early_stopping": net.valid is not None,
    }
    return found if net.valid is None else found | samples(net.valid, "_val")


def samples(batches: Batches, suffix: str) -> dict[str, Any]:
    """Return fingerprints of X (exact), y and weights."""
    return {
        f"X{suffix}": digest(batches),
        f"y{suffix}": summary(batches.y),
        f"sample_weight{suffix}": summary(batches.weight),
    }


def digest(batches: Batches) -> str:
    """Return a digest of the samples as the user gave them."""
    tokens = batches.tokens
    found = hashlib.blake2b(f"{tokens.values.shape} {tokens.values.dtype}".encode(), digest_size=16)
    if tokens.lengths is not None:
        found.update(tokens.lengths.astype(np.int64).tobytes())
    for piece in tokens.slices():
        found.update(np.ascontiguousarray(tokens.values[piece]).tobytes())
    return found.hexdigest()


def summary(values: np.ndarray | torch.Tensor) -> list[float]:
    """Return size and largest value, and of the values in units of it, norm and projections."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    flat = np.ravel(values).astype(np.float64)
    largest = float(np.abs(flat).max(initial=0.0))
    flat = flat / (largest or 1.0)
    index = np.arange(flat.size, dtype=np.float64)
    projections = [float((flat * wave).sum()) for wave in (np.cos(index), np.sin(0.7 * index))]
    return [float(flat.size), largest, float(np.sqrt((flat**2).sum())), *projections]


def alike(a: Any, b: Any) -> bool:
    """Tell whether two entries stand for the same, but for rounding."""
    if isinstance(a, list) and isinstance(b, list):
        (size_a, largest_a, *a), (size_b, largest_b, *b) = a, b
        same = size_a == size_b and abs(largest_a - largest_b) <= TOLERANCE * largest_b
        return same and bool(np.allclose(a, b, rtol=0, atol=TOLERANCE * b[0]))
    return bool(a == b)


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name what differs between two fits."""
    found = []
    for name in {**before, **now}:
        a, b = before.get(name), now.get(name)
        if not alike(a, b):
            plain = isinstance(a, bool | int | float | str) and not name.startswith("X")
            found.append(f"{name} ({a!r} there, {b!r} here)" if plain else name)
    return found

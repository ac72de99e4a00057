"""Weighted means and variances per channel, over chunks of tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from sklearn_restf._input import real_token_mask


def check_weights(sample_weight: ArrayLike | None, n_samples: int) -> np.ndarray:
    """Validate weights.

    Parameters
    ----------
    sample_weight : array-like of shape (n_samples,) or None
        Non-negative weights; None: ones.
    n_samples : int
        Number of samples.

    Returns
    -------
    weights : ndarray of float64 of shape (n_samples,)
        The weights.

    Raises
    ------
    ValueError
        If the shape is wrong, a weight is negative or not finite, or all are zero.
    """
    if sample_weight is None:
        return np.ones(n_samples)
    weights = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
    )
    if weights.ndim != 1:
        raise ValueError(f"sample_weight must be 1-D, got shape {weights.shape}.")
    if len(weights) != n_samples:
        raise ValueError(f"sample_weight has {len(weights)} values for {n_samples} samples.")
    if (weights < 0).any():
        raise ValueError(f"sample_weight holds {int((weights < 0).sum())} negative values.")
    if not weights.any():
        raise ValueError("sample_weight is zero for every sample: nothing to compute from.")
    return weights


def moments(
    chunks: Iterator[tuple[slice, np.ndarray]],
    weights: np.ndarray,
    n_channels: int,
    padding_value: float | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight, mean and weighted sum of squared deviations per channel, ignoring NaN.

    Each chunk is centred on its own mean and merged by the pairwise update of Chan, Golub and
    LeVeque, which does not cancel for channels with a large mean.

    Parameters
    ----------
    chunks : iterator of (slice, ndarray of shape (m, T, c))
        Rows of the samples, and their tokens.
    weights : ndarray of shape (n_samples,)
        Weight of each sample.
    n_channels : int
        The number ``c`` of channels.
    padding_value : float or None
        Value of tokens that do not count.

    Returns
    -------
    total, mean, sum_squares : ndarrays of shape (c,)
        Zero for a channel without any value.
    """
    total, mean, sum_squares = (np.zeros(n_channels) for _ in range(3))
    for rows, chunk in chunks:
        x = chunk.reshape(-1, n_channels).astype(np.float64)
        present = ~np.isnan(x)
        present &= real_token_mask(chunk, padding_value).reshape(-1, 1)
        w = np.repeat(weights[rows], chunk.shape[1])[:, None] * present
        x[~present] = 0.0
        w_chunk = w.sum(axis=0)
        seen = w_chunk > 0
        mean_chunk = np.divide((w * x).sum(axis=0), w_chunk, out=np.zeros(n_channels), where=seen)
        squares_chunk = (w * (x - mean_chunk) ** 2).sum(axis=0)
        merged = total + w_chunk
        share = np.divide(w_chunk, merged, out=np.zeros(n_channels), where=merged > 0)
        delta = mean_chunk - mean
        mean = mean + delta * share
        sum_squares = sum_squares + squares_chunk + delta**2 * total * share
        total = merged
    return total, mean, sum_squares

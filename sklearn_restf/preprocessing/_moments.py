"""Weighted means and variances per channel, over chunks of tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from sklearn_restf._data.arrays import real_token_mask, validating


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
    with validating("sample_weight"):
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
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Weight, mean, unit and variance in this unit per channel, ignoring NaN.

    Each chunk is centred on its own mean and merged by the pairwise update of Chan, Golub and
    LeVeque, which does not cancel for channels with a large mean. Squares are taken of deviations
    in units of the largest one so far, so that neither 1e-300 nor 1e300 is lost in them.

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
    total, mean, unit, variance : ndarrays of shape (c,)
        Zero for a channel without any value; unit and variance are zero for one that is constant.

    Raises
    ------
    ValueError
        If deviations from the mean overflow.
    """
    total, mean, unit, squares = (np.zeros(n_channels) for _ in range(4))
    for rows, chunk in chunks:
        x = chunk.reshape(-1, n_channels).astype(np.float64)
        present = ~np.isnan(x)
        present &= real_token_mask(chunk, padding_value).reshape(-1, 1)
        w = np.repeat(weights[rows], chunk.shape[1])[:, None] * present
        w_chunk = w.sum(axis=0)
        w /= np.where(w_chunk > 0, w_chunk, 1.0)
        x[~present] = 0.0
        counted = w > 0
        low = np.where(counted, x, np.inf).min(axis=0, initial=np.inf)
        high = np.where(counted, x, -np.inf).max(axis=0, initial=-np.inf)
        # a mean outside the range is rounding
        mean_chunk = np.where(w_chunk > 0, np.clip((w * x).sum(axis=0), low, high), 0.0)
        merged = total + w_chunk
        share = np.divide(w_chunk, merged, out=np.zeros(n_channels), where=merged > 0)
        with np.errstate(over="ignore"):
            deviations = np.where(counted, x - mean_chunk, 0.0)
            delta = np.where((total > 0) & (w_chunk > 0), mean_chunk - mean, 0.0)
            largest = np.abs(deviations).max(axis=0, initial=0.0)
            new_unit = np.maximum.reduce([unit, largest, np.abs(delta)])
        if not np.isfinite(new_unit).all():
            channel = int(np.flatnonzero(~np.isfinite(new_unit))[0])
            raise ValueError(
                f"X contains values too large to be standardised: the spread of channel {channel} "
                "overflows float64. Rescale X."
            )
        safe = np.where(new_unit > 0, new_unit, 1.0)
        squares = (
            squares * (unit / safe) ** 2 * (1 - share)
            + (w * (deviations / safe) ** 2).sum(axis=0) * share
            + (delta / safe) ** 2 * share * (1 - share)
        )
        mean = np.where(total > 0, mean + delta * share, mean_chunk)
        total, unit = merged, new_unit
    return total, mean, unit, squares

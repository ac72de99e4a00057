"""Singular values of the token matrices of a layer, and what they say about rank collapse.

Always in float64 and from the matrix itself: the eigenvalues of a Gram matrix lose half
the digits and come out negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spectra:
    """Spectral quantities of one set of token matrices, one entry per sample.

    `singular_values` is (n, r), NaN-padded for ragged samples.
    """

    singular_values: np.ndarray
    sigma_min: np.ndarray
    norm: np.ndarray
    rank1_residual: np.ndarray
    effective_rank: np.ndarray
    stable_rank: np.ndarray

    @property
    def condition_ratio(self) -> np.ndarray:
        """(sigma_min / norm)^2 per sample, nan for a zero matrix."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.norm > 0, (self.sigma_min / self.norm) ** 2, np.nan)


def singular_values(matrices: np.ndarray) -> np.ndarray:
    """Return the singular values of a matrix, or of each of a stack, in falling order.

    NaN where LAPACK fails or the input is not finite. Every matrix is scaled first, so that
    extreme magnitudes neither over- nor underflow.
    """
    rank = min(matrices.shape[-2:])
    values = np.full((*matrices.shape[:-2], rank), np.nan)
    scale = np.abs(matrices).max(axis=(-2, -1), initial=0.0)
    zero = scale == 0
    usable = np.isfinite(scale) & ~zero
    values[zero] = 0.0
    scaled = matrices[usable] / scale[usable][..., None, None]
    try:
        found = np.linalg.svd(scaled, compute_uv=False)
    except np.linalg.LinAlgError:  # of one matrix: the others are still of use
        found = np.array([_svd_or_nan(matrix, rank) for matrix in scaled])
    with np.errstate(over="ignore"):
        values[usable] = scale[usable][..., None] * found
    return values


def _svd_or_nan(matrix: np.ndarray, rank: int) -> np.ndarray:
    try:
        return np.linalg.svd(matrix, compute_uv=False)
    except np.linalg.LinAlgError:
        return np.full(rank, np.nan)


def centred_residual(matrices: np.ndarray) -> np.ndarray:
    """Return ``||P M||_F / ||M||_F`` with P the centring over rows; nan for a zero matrix.

    Of a matrix (T, d) or of each of a stack (n, T, d): 0 when all rows coincide.
    """
    scale = np.abs(matrices).max(axis=(-2, -1), keepdims=True, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = matrices / scale
        centred = scaled - scaled.mean(axis=-2, keepdims=True)
        return np.linalg.norm(centred, axis=(-2, -1)) / np.linalg.norm(scaled, axis=(-2, -1))


def spectra(matrices: np.ndarray | Sequence[np.ndarray]) -> Spectra:
    """Compute the spectra of token matrices: a stack (n, T, d), or matrices (T_i, d).

    * `sigma_min`: the min(T, d)-th singular value;
    * `norm`: the largest;
    * `rank1_residual`: ``||P Z||_F / ||Z||_F`` with P the centring over tokens: 0 when all
      tokens of a sample coincide;
    * `effective_rank`: ``exp(entropy(s / sum s))`` (Roy and Vetterli, 2007);
    * `stable_rank`: ``||Z||_F^2 / ||Z||^2``.
    """
    ranks = np.array([min(matrix.shape) for matrix in matrices])
    values = np.full((len(ranks), ranks.max()), np.nan)
    residual = np.full(len(ranks), np.nan)
    for rows, stack in _by_shape(matrices):
        values[rows, : min(stack.shape[1:])] = singular_values(stack)
        residual[rows] = centred_residual(stack)
    norm = values[:, 0]
    sigma_min = values[np.arange(len(values)), ranks - 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.nan_to_num(values / norm[:, None])
        probability = relative / relative.sum(axis=1, keepdims=True)
        terms = np.where(probability > 0, probability * np.log(probability), 0.0)
        effective = np.where(norm > 0, np.exp(-terms.sum(axis=1)), np.nan)
        stable = np.where(norm > 0, (relative**2).sum(axis=1), np.nan)
    return Spectra(values, sigma_min, norm, residual, effective, stable)


def _by_shape(
    matrices: np.ndarray | Sequence[np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Group matrices of equal shape: LAPACK is then called once per group."""
    if isinstance(matrices, np.ndarray):
        return [(np.arange(len(matrices)), matrices)]
    shapes: dict[tuple[int, ...], list[int]] = {}
    for row, matrix in enumerate(matrices):
        shapes.setdefault(matrix.shape, []).append(row)
    return [(np.array(rows), np.stack([matrices[i] for i in rows])) for rows in shapes.values()]


def numerically_zero(spectrum: Spectra, shape: tuple[int, int], eps: float) -> np.ndarray:
    """Tell for each sample whether sigma_min is below rounding: ``eps max(T, d) norm``."""
    return spectrum.sigma_min <= eps * max(shape) * spectrum.norm

"""Singular values of the token matrices of a layer, and what they say about rank collapse.

Always in float64 and from the matrix itself: the eigenvalues of a Gram matrix lose half
the digits and come out negative.
"""

from __future__ import annotations

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


def singular_values(matrix: np.ndarray) -> np.ndarray:
    """Return the singular values in falling order; NaN where LAPACK fails or input is not finite.

    The matrix is scaled first, so that extreme magnitudes neither over- nor underflow.
    """
    scale = np.abs(matrix).max(initial=0.0)
    if scale == 0:
        return np.zeros(min(matrix.shape))
    try:
        return scale * np.linalg.svd(matrix / scale, compute_uv=False)
    except np.linalg.LinAlgError:
        return np.full(min(matrix.shape), np.nan)


def spectra(matrices: list[np.ndarray]) -> Spectra:
    """Compute the spectra of token matrices (T_i, d).

    * `sigma_min`: the min(T, d)-th singular value;
    * `norm`: the largest;
    * `rank1_residual`: ``||P Z||_F / ||Z||_F`` with P the centring over tokens: 0 when all
      tokens of a sample coincide;
    * `effective_rank`: ``exp(entropy(s / sum s))`` (Roy and Vetterli, 2007);
    * `stable_rank`: ``||Z||_F^2 / ||Z||^2``.
    """
    width = max(min(matrix.shape) for matrix in matrices)
    values = np.full((len(matrices), width), np.nan)
    residual = np.full(len(matrices), np.nan)
    for row, matrix in enumerate(matrices):
        values[row, : min(matrix.shape)] = singular_values(matrix)
        scale = np.abs(matrix).max() or 1.0
        total = np.linalg.norm(matrix / scale)
        centred = np.linalg.norm((matrix - matrix.mean(axis=0)) / scale)
        residual[row] = centred / total if total > 0 else np.nan
    norm = values[:, 0]
    sigma_min = np.array([row[: min(m.shape)][-1] for row, m in zip(values, matrices, strict=True)])
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.nan_to_num(values / norm[:, None])
        probability = relative / relative.sum(axis=1, keepdims=True)
        terms = np.where(probability > 0, probability * np.log(probability), 0.0)
        effective = np.where(norm > 0, np.exp(-terms.sum(axis=1)), np.nan)
        stable = np.where(norm > 0, (relative**2).sum(axis=1), np.nan)
    return Spectra(values, sigma_min, norm, residual, effective, stable)


def numerically_zero(spectrum: Spectra, shape: tuple[int, int], eps: float) -> np.ndarray:
    """Tell for each sample whether sigma_min is below rounding: ``eps max(T, d) norm``."""
    return spectrum.sigma_min <= eps * max(shape) * spectrum.norm

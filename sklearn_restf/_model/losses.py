"""Losses, as weighted sums over samples.

Weights are normalised to sum to one over all samples, so that the sum over all chunks is
the weighted mean the user sees.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def weighted_sum(loss_N: Tensor, weight_N: Tensor) -> Tensor:
    """Sum in float64 where the device has it: float32 sums hide small decreases."""
    if loss_N.device.type != "mps":
        loss_N, weight_N = loss_N.double(), weight_N.double()
    return loss_N @ weight_N


def squared_error(
    prediction: Tensor, y: Tensor, weight_N: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Half the squared Frobenius norm of the error of each sample, (N, C) or (N, T, C)."""
    error = prediction - y
    if prediction.ndim == 3 and mask is not None:
        error = torch.where(mask[:, :, None], error, 0.0)
    return weighted_sum((0.5 * error * error).flatten(1).sum(1), weight_N)


def binary_log_loss(
    prediction: Tensor, y: Tensor, weight_N: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Negative log-likelihood of labels -1 and +1 under one logit, (N, 1)."""
    return weighted_sum(functional.softplus(-y * prediction)[:, 0], weight_N)


def multinomial_log_loss(
    prediction: Tensor, y: Tensor, weight_N: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Negative log-likelihood of one-hot labels under softmax logits, (N, C)."""
    return weighted_sum(torch.logsumexp(prediction, dim=1) - (prediction * y).sum(1), weight_N)


def loss_and_slope(
    loss: Loss, prediction: Tensor, y: Tensor, weight_N: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return a loss and its derivative in the predictions."""
    weight = weight_N.view(-1, *[1] * (prediction.ndim - 1))
    if loss is squared_error:
        error = prediction - y
        if prediction.ndim == 3 and mask is not None:
            error = torch.where(mask[:, :, None], error, 0.0)
        slope = weight * error
        exact = torch.float64 if error.device.type != "mps" else error.dtype
        return 0.5 * torch.dot(error.to(exact).view(-1), slope.to(exact).view(-1)), slope
    value = loss(prediction, y, weight_N, mask)
    if loss is binary_log_loss:
        return value, -weight * y * torch.sigmoid(-y * prediction)
    return value, weight * (torch.softmax(prediction, dim=1) - y)


def probabilities(loss: Loss, raw: np.ndarray) -> np.ndarray:
    """Return class probabilities (n, K) for the outputs of a module trained with `loss`."""
    if loss is binary_log_loss:
        return np.column_stack([expit(-raw[:, 0]), expit(raw[:, 0])])
    if loss is multinomial_log_loss:
        return softmax(raw, axis=1)
    if raw.shape[1] == 2:  # in step with the difference of the two outputs
        positive = np.clip(0.5 * (1.0 + raw[:, 1] - raw[:, 0]), 0.0, 1.0)
        return np.column_stack([1.0 - positive, positive])
    clipped = np.clip(raw, 0.0, 1.0)
    total = clipped.sum(axis=1, keepdims=True)
    return np.where(total > 0, clipped / np.where(total > 0, total, 1.0), 1.0 / raw.shape[1])


def curvature_bound(loss: Loss) -> float:
    """Largest eigenvalue of the Hessian of a loss in its predictions."""
    if loss is squared_error:
        return 1.0
    return 0.25 if loss is binary_log_loss else 0.5

"""Losses, as weighted sums over samples.

Weights are normalised to sum to one over all samples, so that the sum over all chunks is
the weighted mean the user sees.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
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


def curvature_bound(loss: Loss) -> float:
    """Largest eigenvalue of the Hessian of a loss in its predictions."""
    return {squared_error: 1.0, binary_log_loss: 0.25, multinomial_log_loss: 0.5}[loss]

"""Losses: value, slope and curvature of each in one small class, and its probabilities.

Weights are normalised to sum to one over all samples, so that the sum over all chunks is the
weighted mean the user sees. Predictions, targets and weights may have a leading model axis:
weights (*S, N), predictions (*S, N, C), or (*S, N, T, C) per token; the value is then (*S).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor
from torch.nn import functional


class Loss:
    """A loss of predictions and targets; there is one object of each class."""

    name: str
    largest_curvature: float  # of the loss in the predictions

    def of_outputs(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, by output or summed over the outputs, and its slope by output."""
        raise NotImplementedError

    def curved(self, prediction: Tensor, direction: Tensor) -> Tensor:
        """Return the Hessian in the predictions times a direction."""
        raise NotImplementedError

    def probabilities(self, raw: np.ndarray) -> np.ndarray:
        """Return class probabilities (n, K) for the outputs of a module."""
        raise NotImplementedError

    def value_and_slope(
        self, prediction: Tensor, y: Tensor, weight: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sum over samples, and its derivative in the predictions."""
        models = weight.ndim - 1
        weight = weight.view(*weight.shape, *[1] * (prediction.ndim - weight.ndim))
        if mask is not None and prediction.ndim == models + 3:
            # where, not multiplication: padding must not leak even if it is inf or NaN
            prediction = torch.where(mask[..., None], prediction, 0.0)
            weight = weight * mask[..., None]
        loss, slope = self.of_outputs(prediction, y)
        slope = weight * slope
        if not models and loss.shape == weight.shape:
            return torch.dot(exact(loss).view(-1), exact(weight).view(-1)), slope
        return (exact(loss) * exact(weight)).flatten(models).sum(-1), slope

    def __call__(
        self, prediction: Tensor, y: Tensor, weight: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the weighted sum over samples."""
        return self.value_and_slope(prediction, y, weight, mask)[0]

    def __reduce__(self) -> str:
        return self.name  # copies and pickles are this very object


class SquaredError(Loss):
    """Half the squared Frobenius norm of the error of each sample."""

    name = "squared_error"
    largest_curvature = 1.0

    def of_outputs(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``1/2 (prediction - y)^2`` and the error."""
        error = prediction - y
        wide = exact(error)
        return 0.5 * wide * wide, error

    def curved(self, prediction: Tensor, direction: Tensor) -> Tensor:
        """Return the direction."""
        return direction

    def probabilities(self, raw: np.ndarray) -> np.ndarray:
        """Return what outputs trained on one-hot labels say, clipped."""
        if raw.shape[1] == 2:  # in step with the difference of the two outputs
            positive = np.clip(0.5 * (1.0 + raw[:, 1] - raw[:, 0]), 0.0, 1.0)
            return np.column_stack([1.0 - positive, positive])
        clipped = np.clip(raw, 0.0, 1.0)
        total = clipped.sum(axis=1, keepdims=True)
        return np.where(total > 0, clipped / np.where(total > 0, total, 1.0), 1.0 / raw.shape[1])


class BinaryLogLoss(Loss):
    """Negative log-likelihood of labels -1 and +1 under one logit."""

    name = "binary_log_loss"
    largest_curvature = 0.25

    def of_outputs(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``log(1 + exp(-y logit))`` and its slope."""
        margin = -y * prediction
        return functional.softplus(margin), -y * torch.sigmoid(margin)

    def curved(self, prediction: Tensor, direction: Tensor) -> Tensor:
        """Return ``p (1 - p)`` times the direction."""
        probability = torch.sigmoid(prediction)
        return probability * (1 - probability) * direction

    def probabilities(self, raw: np.ndarray) -> np.ndarray:
        """Return the logistic function of the logit, and of its negative."""
        return np.column_stack([expit(-raw[:, 0]), expit(raw[:, 0])])


class MultinomialLogLoss(Loss):
    """Negative log-likelihood of one-hot labels under softmax logits."""

    name = "multinomial_log_loss"
    largest_curvature = 0.5

    def of_outputs(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``log sum exp(logits) - logit of the label`` and ``softmax - y``."""
        # four passes are faster than torch's kernels on rows of a few numbers
        shifted = prediction - prediction.detach().amax(-1, keepdim=True)
        odds = shifted.exp()
        total = odds.sum(-1, keepdim=True)
        return total.log() - (shifted * y).sum(-1, keepdim=True), odds / total - y

    def curved(self, prediction: Tensor, direction: Tensor) -> Tensor:
        """Return ``(diag p - p p^T)`` times the direction."""
        probability = torch.softmax(prediction, dim=-1)
        weighted = probability * direction
        return weighted - probability * weighted.sum(dim=-1, keepdim=True)

    def probabilities(self, raw: np.ndarray) -> np.ndarray:
        """Return the softmax of the logits."""
        return softmax(raw, axis=1)


squared_error = SquaredError()
binary_log_loss = BinaryLogLoss()
multinomial_log_loss = MultinomialLogLoss()


def exact(values: Tensor) -> Tensor:
    """Return float64 where the device has it: float32 sums hide small decreases."""
    return values if values.device.type == "mps" else values.double()

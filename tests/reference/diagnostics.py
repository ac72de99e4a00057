"""Plain definitions of the spectral diagnostics and of the rate of convergence, as an oracle."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tests.reference.theory import Model, Weights, gradients


def singular_values(z: np.ndarray) -> np.ndarray:
    """Singular values of z in decreasing order."""
    return np.linalg.svd(z, compute_uv=False)


def condition_ratio(z: np.ndarray) -> float:
    """sigma_min(T,d)(z)^2 / ||z||^2, nan for a matrix of zeros."""
    values = singular_values(z)
    return float(values[-1] / values[0]) ** 2 if values[0] > 0 else math.nan


def numerical_zero(z: np.ndarray, dtype: type = np.float64) -> float:
    """Singular values of z below this cannot be told from zero in ``dtype``."""
    return float(np.finfo(dtype).eps) * max(z.shape) * float(singular_values(z)[0])


def stable_rank(z: np.ndarray) -> float:
    """||z||_F^2 / ||z||^2."""
    values = singular_values(z)
    return math.fsum(values**2) / float(values[0]) ** 2 if values[0] > 0 else math.nan


def effective_rank(z: np.ndarray) -> float:
    """Exponential of the entropy of the singular values divided by their sum."""
    values = singular_values(z)
    total = math.fsum(values)
    if total == 0:
        return math.nan
    shares = [value / total for value in values if value > 0]
    return math.exp(-math.fsum(share * math.log(share) for share in shares))


def centred(z: np.ndarray) -> np.ndarray:
    """P z with P = I - 11^T/T: every token less the mean token."""
    n_tokens = len(z)
    return (np.eye(n_tokens) - np.ones((n_tokens, n_tokens)) / n_tokens) @ z


def rank1_residual(z: np.ndarray) -> float:
    """||P z||_F / ||z||_F: 0 if all tokens are the same, nan for a matrix of zeros."""
    norm = np.linalg.norm(z)
    return float(np.linalg.norm(centred(z)) / norm) if norm > 0 else math.nan


def collapse_floor(y: np.ndarray) -> float:
    """Smallest loss (sum form) when all rows of a prediction coincide [7]; y is (n, T, k)."""
    return 0.5 * math.fsum(float(np.sum(centred(each) ** 2)) for each in y)


class Trajectory(NamedTuple):
    """Loss and squared gradient norm before every step and after the last, and the last weights."""

    losses: np.ndarray
    squared_gradient_norms: np.ndarray
    weights: Weights


def gradient_descent(model: Model, y: np.ndarray, step: float, n_iterations: int) -> Trajectory:
    """Gradient descent with a constant step on the loss in its sum form."""
    losses, squares = [], []
    for iteration in range(n_iterations + 1):
        gradient = gradients(model, y)
        losses.append(model.loss(y))
        squares.append(math.fsum(float(np.sum(g**2)) for g in gradient.values()))
        if iteration < n_iterations:
            model = model.with_weights(
                {name: value - step * gradient[name] for name, value in model.weights.items()}
            )
    return Trajectory(np.array(losses), np.array(squares), model.weights)


def local_pl_constants(losses: Sequence[float], squares: Sequence[float]) -> np.ndarray:
    """alpha_t = ||g_t||^2 / (2 Phi_t)."""
    return np.array([square / (2 * loss) for loss, square in zip(losses, squares, strict=True)])


def sufficient_decrease(
    losses: Sequence[float], squares: Sequence[float], step: float
) -> np.ndarray:
    """r_t = (Phi_t - Phi_{t+1}) / (mu ||g_t||^2), one entry less than there are losses."""
    steps = range(len(losses) - 1)
    return np.array([(losses[t] - losses[t + 1]) / (step * squares[t]) for t in steps])


def is_certified(losses: Sequence[float], squares: Sequence[float], step: float) -> bool:
    """Whether every step made at least half of the decrease that its gradient promised."""
    return bool(np.all(sufficient_decrease(losses, squares, step) >= 0.5))


def certified_loss_bound(losses: Sequence[float], squares: Sequence[float], step: float) -> float:
    """Phi_0 prod_t (1 - mu alpha_t): what a certified run guarantees for its last loss."""
    alphas = local_pl_constants(losses, squares)[:-1]
    return float(losses[0] * np.prod([1 - step * alpha for alpha in alphas]))


def _slope(values: Sequence[float]) -> float:
    t = np.arange(len(values)) - (len(values) - 1) / 2
    return math.fsum(t * values) / math.fsum(t**2)


def rate_from_losses(losses: Sequence[float]) -> float:
    """Contraction factor per iteration from the slope of log loss: right only if the floor is 0."""
    return math.exp(_slope([math.log(loss) for loss in losses]))


def rate_from_decrements(losses: Sequence[float], lag: int) -> float:
    """Median of (delta_{t+w} / delta_t)^(1/w) with delta_t = Phi_t - Phi_{t+w}: needs no floor.

    Pairs in which a decrement is not positive say nothing and are left out.
    """
    decrements = [losses[t] - losses[t + lag] for t in range(len(losses) - lag)]
    ratios = []
    for t in range(len(decrements) - lag):
        if decrements[t] > 0 and decrements[t + lag] > 0:
            ratios.append((decrements[t + lag] / decrements[t]) ** (1 / lag))
    return float(np.median(ratios)) if ratios else math.nan


def rate_from_gradients(squares: Sequence[float]) -> float:
    """Contraction factor per iteration from the slope of log ||g||^2: needs no floor."""
    return math.exp(_slope([math.log(square) for square in squares]))

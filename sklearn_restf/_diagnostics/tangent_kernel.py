"""The tangent kernel of a model on its training samples, and the loss curve it predicts.

With the Jacobian J of the (weighted) predictions in the parameters, gradient descent near
a point behaves as on the quadratic of curvature ``H = J^T C J + D``, where C is the
curvature of the loss in the predictions (the identity for the squared error) and D the L2
penalty; for the squared error the nonzero spectrum of ``J^T J`` is that of the tangent
kernel ``K = J J^T``. Nothing of this size is ever formed: only products with J and J^T are
used, and a Krylov space started at the gradient, which holds all directions in which the
first steps move.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from sklearn_restf._data.batches import Batch, Batches
from sklearn_restf._diagnostics.singular_values import singular_values
from sklearn_restf._model import (
    LinearizedBatch,
    Loss,
    ParameterViews,
    ResidualTransformer,
    output_weights,
)

DENSE_LIMIT = 512  # predictions up to which J is formed, for the exact smallest eigenvalue
KRYLOV_STEPS = 48
TOLERANCE = 0.1  # relative error of the loss up to which the prediction counts as valid


class Linearisation:
    """Products with the Jacobian of the weighted predictions at the module's weights.

    Row (p, c) of J is the gradient of output c of sample p times ``sqrt(w_p)``, so that for
    the squared error ``J^T J`` is the Gauss-Newton matrix of the weighted mean loss.

    Parameters
    ----------
    module : ResidualTransformer
        In float64 on the CPU.
    batches : Batches
        All training samples.
    loss : callable
        One of :mod:`sklearn_restf._model.losses`.
    alpha : float
        Strength of the L2 penalty.
    """

    def __init__(
        self, module: ResidualTransformer, batches: Batches, loss: Loss, alpha: float = 0.0
    ) -> None:
        self.module, self.batches, self.loss = module, batches, loss
        self.views = ParameterViews(module)
        self.decay = self.views.decay(alpha)
        # the graph is kept where memory allows, else built again for every product
        self._kept = [self._linearise(batch) for batch in batches] if batches.keeps_graph else None

    def with_penalty(self, alpha: float) -> Linearisation:
        """Return the same linearisation with another penalty."""
        other = copy.copy(self)
        other.decay = self.views.decay(alpha)
        return other

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return len(self.decay)

    def _pieces(self) -> Iterator[_Piece]:
        if self._kept is not None:
            return iter(self._kept)
        return (self._linearise(batch) for batch in self.batches)

    def _linearise(self, batch: Batch) -> _Piece:
        def double(tensor: Tensor) -> Tensor:
            return tensor.cpu().to(torch.float64)

        mask = None if batch.mask is None else batch.mask.cpu()
        linearized = LinearizedBatch(self.module, double(batch.x), mask)
        weights = output_weights(linearized.output, double(batch.weight), mask)
        return _Piece(linearized, double(batch.y), double(batch.weight), mask, weights)

    def objective_and_gradient(self) -> tuple[float, Tensor]:
        """Return the training objective and its gradient at the module's weights."""
        theta = torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])
        value = 0.5 * float((self.decay * theta) @ theta)
        gradient = self.decay * theta
        for piece in self._pieces():
            output = piece.linearized.output.detach()
            term, slope = self.loss.value_and_slope(output, piece.y, piece.weight, piece.mask)
            value += float(term)
            gradient = gradient + piece.linearized.pull(slope)
        return value, gradient

    def gauss_newton_product(self, direction: Tensor) -> Tensor:
        """Return ``(J^T C J + D)`` times a vector of parameters."""

        def of_piece(piece: _Piece) -> Tensor:
            output, weights = piece.linearized.output.detach(), piece.weights
            return piece.linearized.gauss_newton_product(
                direction, lambda pushed: weights * self.loss.curved(output, pushed)
            )

        return sum((of_piece(piece) for piece in self._pieces()), self.decay * direction)

    def jacobian(self) -> np.ndarray:
        """Return J as a dense matrix, one row per (real) prediction and output."""
        rows = []
        for piece in self._pieces():
            root = piece.weights.sqrt()
            for index in root.nonzero().tolist():
                cotangent = torch.zeros_like(root)
                cotangent[tuple(index)] = root[tuple(index)]
                rows.append(piece.linearized.pull(cotangent))
        return torch.stack(rows).numpy()


@dataclass(frozen=True)
class _Piece:
    """A linearised batch with its targets and weights, by sample and by output."""

    linearized: LinearizedBatch
    y: Tensor
    weight: Tensor
    mask: Tensor | None
    weights: Tensor


@dataclass(frozen=True)
class LocalQuadratic:
    """The objective restricted to a Krylov space around a point, in its eigenbasis.

    Attributes
    ----------
    objective : float
        Value at the point.
    slopes, curvatures : ndarray of shape (m,)
        Component of the gradient along each Ritz vector, and the Ritz value.
    """

    objective: float
    slopes: np.ndarray
    curvatures: np.ndarray

    def descend(self, learning_rates: Sequence[float] | np.ndarray, momentum: float) -> np.ndarray:
        """Return the objective along (heavy-ball) gradient descent with the given rates.

        Exact for the quadratic over the first m iterations, and close to it long after:
        the Krylov space reproduces the moments of the spectrum seen by the gradient.
        """
        position = np.zeros_like(self.slopes)
        previous = position
        values = [self.objective]
        with np.errstate(over="ignore", invalid="ignore"):  # too long a step diverges: inf, NaN
            for rate in learning_rates:
                step = -rate * (self.slopes + self.curvatures * position)
                step += momentum * (position - previous)
                previous, position = position, position + step
                change = self.slopes * position + 0.5 * self.curvatures * position**2
                values.append(self.objective + change.sum())
        return np.array(values)


def local_quadratic(linearisation: Linearisation, steps: int = KRYLOV_STEPS) -> LocalQuadratic:
    """Run Lanczos on the Gauss-Newton matrix, started at the gradient.

    With full reorthogonalisation: a few dozen vectors, and no ghost eigenvalues.
    """
    objective, gradient = linearisation.objective_and_gradient()
    norm = float(gradient.norm())
    if not norm > 0 or not np.isfinite(objective):
        return LocalQuadratic(objective, np.zeros(1), np.zeros(1))
    basis = [gradient / norm]
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    for _ in range(min(steps, linearisation.n_parameters)):
        product = linearisation.gauss_newton_product(basis[-1])
        diagonal.append(float(product @ basis[-1]))
        Q = torch.stack(basis)
        for _ in range(2):
            product = product - Q.T @ (Q @ product)
        length = float(product.norm())
        if length <= 1e-12 * max(map(abs, diagonal)):
            break
        off_diagonal.append(length)
        basis.append(product / length)
    off_diagonal = off_diagonal[: len(diagonal) - 1]
    T = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    if not np.isfinite(T).all():  # LAPACK prints, or raises, or returns anything
        return LocalQuadratic(objective, np.full(1, np.nan), np.full(1, np.nan))
    curvatures, vectors = np.linalg.eigh(T)
    return LocalQuadratic(objective, norm * vectors[0], curvatures.clip(0))


def largest_eigenvalue(linearisation: Linearisation) -> float:
    """Return the largest eigenvalue of the Gauss-Newton matrix: ``||J||^2`` plus penalty."""
    n = linearisation.n_parameters

    def product(vector: np.ndarray) -> np.ndarray:
        direction = torch.from_numpy(np.ascontiguousarray(vector, np.float64).reshape(-1))
        return linearisation.gauss_newton_product(direction).numpy()

    operator = LinearOperator((n, n), matvec=product, dtype=np.float64)
    # a fixed start: the result is the same every time, and no random numbers are spent on it
    start = np.cos(np.arange(n))
    first = product(start)
    if not np.isfinite(first @ first):
        return float("nan")
    if n < 3 or not first.any():
        return float(np.linalg.norm(first) / np.linalg.norm(start))
    try:
        (value,) = eigsh(operator, k=1, which="LA", v0=start, tol=1e-4, return_eigenvectors=False)
    except ArpackError:
        return float("nan")
    return float(value)


def smallest_eigenvalue(linearisation: Linearisation, n_rows: int) -> tuple[float, str]:
    """Return the smallest eigenvalue of K = J J^T, or nan and why it was not computed.

    From the singular values of J itself: K would lose half of the digits. Iterative methods
    find the lower end of this spectrum too slowly to be trusted.
    """
    if n_rows > linearisation.n_parameters:
        return 0.0, ""  # more predictions than parameters: K is rank-deficient
    if n_rows > DENSE_LIMIT:
        return float("nan"), f"computed up to {DENSE_LIMIT} outputs; there are {n_rows}"
    smallest = float(singular_values(linearisation.jacobian())[-1])
    return smallest * smallest, ""  # ** would raise OverflowError


def valid_horizon(predicted: np.ndarray, actual: np.ndarray, tolerance: float = TOLERANCE) -> int:
    """Return up to which iteration the prediction was within `tolerance` of the loss."""
    length = min(len(predicted), len(actual))
    wrong = ~(
        np.abs(predicted[:length] - actual[:length]) <= tolerance * np.abs(actual[:length])
    )  # NaN is wrong
    return int(np.argmax(wrong)) - 1 if wrong.any() else length - 1

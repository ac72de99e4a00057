"""Full-batch gradient descent: the objective on a flat parameter vector, and the step rules.

Everything here is about one vector `theta` of all parameters. The module's parameters are
views of it, so that a step is two or three vector operations whatever the number of
layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sklearn_restf import _compute
from sklearn_restf._batches import Batch, Batches
from sklearn_restf._losses import Loss, curvature_bound
from sklearn_restf._module import ResidualTransformer
from sklearn_restf._state import is_weight

GROWTH, SHRINK = 1.1, 0.5  # measured best of a handful of step rules
SMALLEST_RATE = 1e-20
FIRST_RATE = 0.1


class Objective:
    """The training objective and its exact gradient over all samples.

    ``sum_p w_p loss_p + alpha / 2 * sum of squared weights`` (biases, positions and LayerNorm
    parameters are not penalised).

    Parameters
    ----------
    module : ResidualTransformer
        Its parameters become views of `theta`, their ``.grad`` views of `gradient`.
    batches : Batches
        All samples.
    loss : callable
        One of :mod:`sklearn_restf._losses`.
    alpha : float
        Strength of the L2 penalty.
    """

    def __init__(
        self, module: ResidualTransformer, batches: Batches, loss: Loss, alpha: float
    ) -> None:
        self.module, self.batches, self.loss, self.alpha = module, batches, loss, alpha
        named = list(module.named_parameters())
        self.parameters = [parameter for _, parameter in named]
        self.theta = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.gradient = torch.zeros_like(self.theta)
        self.decay = torch.cat(
            [torch.full_like(p, alpha * is_weight(name)).detach().reshape(-1) for name, p in named]
        )
        start = 0
        for parameter in self.parameters:
            piece = slice(start, start + parameter.numel())
            parameter.data = self.theta[piece].view(parameter.shape)
            parameter.grad = self.gradient[piece].view(parameter.shape)
            start = piece.stop
        self._pending: Tensor | None = None  # graph, or gradient, of the last evaluation

    def predict(self, batch: Batch) -> Tensor:
        """Return the predictions for one batch, in the cheapest order."""
        return _compute.forward(self.module, batch.x, batch.mask)

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the weighted loss of one batch, without the penalty."""
        return self.loss(self.predict(batch), batch.y, batch.weight, batch.mask)

    def penalty(self) -> float:
        """Return the L2 penalty."""
        return 0.0 if self.alpha == 0 else 0.5 * float((self.decay * self.theta) @ self.theta)

    def evaluate(self) -> float:
        """Return the objective at `theta`, remembering what :meth:`differentiate` needs.

        In chunks the gradient is computed along, in the hope that this point is accepted:
        cheaper than a second forward pass, since most steps are.
        """
        self._pending = None
        if self.batches.keeps_graph:
            terms = [self.batch_loss(batch) for batch in self.batches]
            self._pending = terms[0] if len(terms) == 1 else torch.stack(terms).sum()
            return float(self._pending.detach()) + self.penalty()
        value, gradient = 0.0, torch.zeros_like(self.theta)
        for batch in self.batches:
            term = self.batch_loss(batch)
            gradient += self._flat_gradient(term)
            value += float(term.detach())
        self._pending = gradient
        return value + self.penalty()

    def differentiate(self) -> None:
        """Write the gradient at the last evaluated point into `gradient`."""
        assert self._pending is not None
        flat = self._flat_gradient(self._pending) if self.batches.keeps_graph else self._pending
        torch.addcmul(flat, self.decay, self.theta, out=self.gradient)
        self._pending = None

    def _flat_gradient(self, value: Tensor) -> Tensor:
        return self._flatten(torch.autograd.grad(value, self.parameters, allow_unused=True))

    def _flatten(self, pieces: tuple[Tensor | None, ...]) -> Tensor:
        """Concatenate one gradient per parameter; None (unused) means zero."""
        return torch.cat(
            [
                torch.zeros_like(parameter).reshape(-1) if piece is None else piece.reshape(-1)
                for piece, parameter in zip(pieces, self.parameters, strict=True)
            ]
        )

    def gauss_newton_norm(self, max_iter: int = 30, tol: float = 1e-3) -> float:
        """Return ||J||^2 of the weighted mean loss: the largest Gauss-Newton eigenvalue.

        Power iteration on ``J^T W J``; the Jacobian-vector product comes from
        differentiating ``J^T u`` in u, so that plain reverse mode suffices. For the log-loss
        the curvature of the loss in the predictions is bounded (1/4, 1/2).
        """
        # a fixed start that is no eigenvector by symmetry; no random numbers are spent on it
        vector = torch.cos(torch.arange(len(self.theta), dtype=torch.float64)).to(self.theta)
        eigenvalue = 0.0
        for _ in range(max_iter):
            vector = vector / vector.norm()
            product = torch.zeros_like(vector)
            for batch in self.batches:
                product += self._gauss_newton_product(batch, vector)
            previous, eigenvalue = eigenvalue, float(product.norm())
            vector = product
            if eigenvalue == 0 or abs(eigenvalue - previous) <= tol * eigenvalue:
                break
        return curvature_bound(self.loss) * eigenvalue + self.alpha

    def _gauss_newton_product(self, batch: Batch, vector: Tensor) -> Tensor:
        output = self.module(batch.x, batch.mask)
        weight = batch.weight.view(-1, *[1] * (output.ndim - 1))
        if output.ndim == 3 and batch.mask is not None:
            weight = weight * batch.mask[:, :, None]
        u = torch.zeros_like(output, requires_grad=True)
        pulled = torch.autograd.grad(
            output, self.parameters, u, create_graph=True, allow_unused=True
        )
        directions = torch.split(vector, [p.numel() for p in self.parameters])
        inner = sum(
            (piece * direction.view_as(piece)).sum()
            for piece, direction in zip(pulled, directions, strict=True)
            if piece is not None
        )
        (pushed,) = torch.autograd.grad(inner, u, retain_graph=True)
        back = torch.autograd.grad(
            output, self.parameters, weight * pushed.detach(), allow_unused=True
        )
        return self._flatten(back)


class GradientDescent(torch.optim.Optimizer):
    """Full-batch (heavy-ball) gradient descent on an :class:`Objective`.

    With ``guarded=False`` this is ``torch.optim.SGD`` with the same rate and momentum: the
    theorem's setting. With ``guarded=True`` a step that would increase the objective is
    not taken: first the momentum is dropped, then the rate is halved; after each step the
    rate grows by `growth`. NaN compares false, so an overflow is a rejected step.

    Parameters
    ----------
    objective : Objective
        What to minimise.
    lr : float
        Learning rate at the start.
    momentum : float
        Heavy-ball momentum in [0, 1).
    guarded : bool
        Whether the objective may never increase.
    growth : float
        Factor on the rate after each accepted step.
    """

    def __init__(
        self, objective: Objective, *, lr: float, momentum: float, guarded: bool, growth: float
    ) -> None:
        self.objective = objective
        self.guarded, self.growth = guarded, growth
        super().__init__(objective.parameters, {"lr": lr, "momentum": momentum})
        self.velocity = torch.zeros_like(objective.theta)
        self.moving = False  # whether the velocity is non-zero
        self.loss = math.nan

    def start(self) -> float:
        """Evaluate the objective and its gradient at the initial point."""
        self.loss = self.objective.evaluate()
        if math.isfinite(self.loss):
            self.objective.differentiate()
        return self.loss

    def step(self, closure: Any = None) -> str | None:  # type: ignore[override]
        """Take one step; return why no further step makes sense, or None.

        Returns
        -------
        reason : {None, "stationary", "stalled", "diverged"}
        """
        objective, group = self.objective, self.param_groups[0]
        momentum = group["momentum"]
        origin = objective.theta.clone()
        while True:
            step = objective.gradient * -group["lr"]
            if self.moving:
                step.add_(self.velocity, alpha=momentum)
            torch.add(origin, step, out=objective.theta)
            loss = objective.evaluate()
            if loss <= self.loss or not self.guarded:
                break
            if self.moving:
                self.moving = False
            else:
                group["lr"] *= SHRINK
                if group["lr"] < SMALLEST_RATE:
                    objective.theta.copy_(origin)
                    return "stalled"
        self.velocity, self.moving, self.loss = step, momentum > 0, loss
        if not math.isfinite(loss):
            return "diverged"
        objective.differentiate()
        group["lr"] *= self.growth
        return None

    def is_stationary(self) -> bool:
        """Tell whether the gradient is exactly zero."""
        return not bool(self.objective.gradient.any())

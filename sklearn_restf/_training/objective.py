"""The training objective on a flat parameter vector, and its exact gradient.

Everything here is about one vector `theta` of all parameters. The module's parameters are
views of it, and their ``.grad`` views of `gradient`, so that a step is two or three vector
operations whatever the number of layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sklearn_restf._data.batches import Batch, Batches, with_less_memory
from sklearn_restf._model import forward as forward_module
from sklearn_restf._model.gradient import FusedLayer, is_supported
from sklearn_restf._model.initialization import is_weight
from sklearn_restf._model.losses import Loss, curvature_bound, loss_and_slope
from sklearn_restf._model.module import ResidualTransformer


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
        One of :mod:`sklearn_restf._model.losses`.
    alpha : float
        Strength of the L2 penalty.
    closed_form : bool
        Whether to use the closed-form gradient where there is one; autograd otherwise.
    """

    def __init__(
        self,
        module: ResidualTransformer,
        batches: Batches,
        loss: Loss,
        alpha: float,
        *,
        closed_form: bool = True,
    ) -> None:
        self.module, self.batches, self.loss, self.alpha = module, batches, loss, alpha
        named = list(module.named_parameters())
        self.parameters = [parameter for _, parameter in named]
        self.theta = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.gradient = torch.zeros_like(self.theta)
        self.decay = torch.cat(
            [torch.full_like(p, alpha * is_weight(name)).detach().reshape(-1) for name, p in named]
        )
        for parameter, value, gradient in zip(
            self.parameters, self.views(self.theta), self.views(self.gradient), strict=True
        ):
            parameter.data, parameter.grad = value, gradient
        self._engine_class = (
            _ClosedForm if closed_form and is_supported(module.config) else _Autograd
        )
        self._engine: Any = self._engine_class(self)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return one view of a flat vector per parameter."""
        pieces = torch.split(flat, [p.numel() for p in self.parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]

    def predict(self, batch: Batch) -> Tensor:
        """Return the predictions for one batch, in the cheapest order."""
        return forward_module.forward(self.module, batch.x, batch.mask)

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the weighted loss of one batch, without the penalty."""
        return self.loss(self.predict(batch), batch.y, batch.weight, batch.mask)

    def samples_loss(self, batches: Batches, read: Callable[[Tensor], Any] = float) -> Any:
        """Return the weighted loss of any samples, without penalty and gradient."""
        with torch.no_grad():
            return with_less_memory(
                batches, lambda: sum((read(self.batch_loss(batch)) for batch in batches), 0.0)
            )

    def validation_loss(self, valid: Batches) -> float:
        """Return the loss on the validation samples at the last evaluated point."""
        return self.samples_loss(valid)

    def penalty(self, read: Callable[[Tensor], Any] = float) -> Any:
        """Return the L2 penalty."""
        return 0.0 if self.alpha == 0 else 0.5 * read((self.decay * self.theta) @ self.theta)

    def evaluate(self, read: Callable[[Tensor], Any] = float) -> Any:
        """Return the objective at `theta`, remembering what :meth:`differentiate` needs.

        In chunks the gradient is computed along, in the hope that this point is accepted:
        cheaper than a second forward pass, since most steps are. `read` turns a tensor of one
        number into a float, which waits for the device, or leaves it as it is.
        """
        return self._in_chunks(lambda: self._engine.evaluate(read)) + self.penalty(read)

    def differentiate(self) -> None:
        """Write the gradient at the last evaluated point into `gradient`."""
        torch.mul(self.decay, self.theta, out=self.gradient)
        engine = self._engine
        self._in_chunks(lambda: self._add_gradient(engine))

    def _add_gradient(self, evaluated: Any) -> None:
        if self._engine is not evaluated:  # another one, with smaller chunks
            torch.mul(self.decay, self.theta, out=self.gradient)
            self._engine.evaluate(float)
        self._engine.add_gradient()

    def _in_chunks(self, call: Callable[[], Any]) -> Any:
        """Call; where memory does not suffice, again and with smaller chunks: same result."""
        while True:
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                return call()
            if self.theta.is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("out of memory while a graph is captured")
            self._engine = None  # lets go of what it keeps
            self.batches.halve()
            self._engine = self._engine_class(self)

    def zero_frozen(self, *vectors: Tensor) -> None:
        """Zero the gradient (and other flat vectors) at parameters that a callback froze."""
        for vector in (self.gradient, *vectors):
            for parameter, piece in zip(self.parameters, self.views(vector), strict=True):
                if not parameter.requires_grad:
                    piece.zero_()

    def gradient_norm(self) -> float:
        """Return the Euclidean norm of the gradient."""
        return float(torch.linalg.vector_norm(self.gradient))

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
            product = self.gauss_newton_product(vector)
            previous, eigenvalue = eigenvalue, float(product.norm())
            vector = product
            if eigenvalue == 0 or abs(eigenvalue - previous) <= tol * eigenvalue:
                break
        return curvature_bound(self.loss) * eigenvalue + self.alpha

    def gauss_newton_product(self, vector: Tensor) -> Tensor:
        """Return ``J^T W J`` times a vector of parameters."""
        return self._in_chunks(partial(self._gauss_newton_sum, vector))

    def _gauss_newton_sum(self, vector: Tensor) -> Tensor:
        product = torch.zeros_like(vector)
        for batch in self.batches:
            product += self._gauss_newton_product(batch, vector)
        return product

    def _gauss_newton_product(self, batch: Batch, vector: Tensor) -> Tensor:
        output = self.module(batch.x, batch.mask)
        weight = batch.weight.view(-1, *[1] * (output.ndim - 1))
        if output.ndim == 3 and batch.mask is not None:
            weight = weight * batch.mask[:, :, None]
        u = torch.zeros_like(output, requires_grad=True)
        pulled = torch.autograd.grad(
            output, self.parameters, u, create_graph=True, allow_unused=True
        )
        inner = sum(
            (piece * direction).sum()
            for piece, direction in zip(pulled, self.views(vector), strict=True)
            if piece is not None
        )
        (pushed,) = torch.autograd.grad(inner, u, retain_graph=True)
        back = torch.autograd.grad(
            output, self.parameters, weight * pushed.detach(), allow_unused=True
        )
        return flatten(back, self.parameters)


class _ClosedForm:
    """Loss and gradient through :class:`FusedLayer`."""

    def __init__(self, objective: Objective) -> None:
        self.objective, self.batches = objective, objective.batches
        self.keeps = self.batches.keeps_graph
        module = objective.module
        self.target = objective.gradient if self.keeps else torch.zeros_like(objective.gradient)
        names = [name for name, _ in module.named_parameters()]
        views = dict(zip(names, objective.views(self.target), strict=True))
        weights = dict(zip(names, objective.views(objective.theta), strict=True))
        # one per batch keeps intermediates until the gradient is asked for
        count = len(self.batches.row_sets) if self.keeps else 1
        self.layers = [FusedLayer(module.config, weights, views) for _ in range(count)]
        if self.keeps:
            for layer, batch in zip(self.layers, self.batches, strict=True):
                layer.bind(batch.x, batch.mask)
        self.slopes: list[Tensor] = []

    @torch.no_grad()
    def evaluate(self, read: Callable[[Tensor], Any]) -> Any:
        """Return the loss, with the gradient pending."""
        value, self.slopes = 0.0, []
        if not self.keeps:
            self.target.zero_()
        for i, batch in enumerate(self.batches):
            layer = self.layers[i] if self.keeps else self.layers[0].bind(batch.x, batch.mask)
            loss, slope = loss_and_slope(
                self.objective.loss, layer.forward(), batch.y, batch.weight, batch.mask
            )
            value = value + read(loss)
            if self.keeps:
                self.slopes.append(slope)
            else:
                layer.backward(slope)
        return value

    @torch.no_grad()
    def add_gradient(self) -> None:
        """Add the gradient at the last evaluated point."""
        if not self.keeps:
            self.objective.gradient.add_(self.target)
        for layer, slope in zip(self.layers, self.slopes, strict=False):
            layer.backward(slope)
        self.slopes = []


class _Autograd:
    """Loss and gradient of any model through autograd."""

    def __init__(self, objective: Objective) -> None:
        self.objective, self.batches = objective, objective.batches
        self.graph: Tensor | None = None
        self.flat: Tensor | None = None

    def evaluate(self, read: Callable[[Tensor], Any]) -> Any:
        """Return the loss, with the gradient pending."""
        objective = self.objective
        self.graph = self.flat = None
        if self.batches.keeps_graph:
            terms = [objective.batch_loss(batch) for batch in self.batches]
            self.graph = terms[0] if len(terms) == 1 else torch.stack(terms).sum()
            return read(self.graph.detach())
        value, self.flat = 0.0, torch.zeros_like(objective.theta)
        for batch in self.batches:
            term = objective.batch_loss(batch)
            self.flat += self._gradient(term)
            value = value + read(term.detach())
        return value

    def add_gradient(self) -> None:
        """Add the gradient at the last evaluated point."""
        flat = self.flat if self.graph is None else self._gradient(self.graph)
        assert flat is not None
        self.objective.gradient.add_(flat)
        self.graph = self.flat = None

    def _gradient(self, value: Tensor) -> Tensor:
        parameters = self.objective.parameters
        trainable = [p for p in parameters if p.requires_grad]
        pieces = iter(torch.autograd.grad(value, trainable, allow_unused=True))
        return flatten([next(pieces) if p.requires_grad else None for p in parameters], parameters)


def flatten(pieces: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Concatenate one gradient per parameter; None (unused) means zero."""
    return torch.cat(
        [
            torch.zeros_like(parameter).reshape(-1) if piece is None else piece.reshape(-1)
            for piece, parameter in zip(pieces, parameters, strict=True)
        ]
    ).detach()

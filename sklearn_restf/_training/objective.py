"""The training objective on a flat parameter vector, and its exact gradient.

Everything here is about one vector `theta` of all parameters, or one for each of several models
of the same shape: theta (*S, P). The parameters are views of it, and their gradients views of
`gradient`, so that a step is two or three vector operations whatever the number of layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sklearn_restf._data.batches import Batch, Batches, with_less_memory
from sklearn_restf._model import (
    ClosedForm,
    LinearizedBatch,
    Loss,
    ParameterViews,
    ResidualTransformer,
    has_closed_form,
    output_weights,
)
from sklearn_restf._model.forward import Parameters, Strength, forward
from sklearn_restf._training.stacked_samples import StackedSamples


class Objective:
    """The training objective and its exact gradient over all samples.

    ``sum_p w_p loss_p + alpha / 2 * sum of squared weights`` (biases, positions and LayerNorm
    parameters are not penalised).

    Parameters
    ----------
    module : ResidualTransformer
        The model. Without `theta` its parameters become views of it, their ``.grad`` views of
        `gradient`.
    batches : Batches or StackedSamples
        All samples.
    loss : Loss
        One of :mod:`sklearn_restf._model.losses`.
    alpha : float
        Strength of the L2 penalty.
    theta : Tensor of shape (S, P), optional
        The parameters of several models of the module's shape, each with its own samples.
    strengths : pair of Tensor of shape (S, 1, 1), optional
        Their beta and gamma.
    closed_form : bool
        Whether to use the closed-form gradient where there is one; autograd otherwise.
    """

    def __init__(
        self,
        module: ResidualTransformer,
        batches: Batches | StackedSamples,
        loss: Loss,
        alpha: float,
        *,
        theta: Tensor | None = None,
        strengths: tuple[Strength, Strength] | None = None,
        closed_form: bool = True,
    ) -> None:
        self.module, self.loss, self.alpha = module, loss, alpha
        self.batches: Any = batches
        self.config = config = module.config
        self.strengths: Any = strengths or (config.residual_beta, config.ffn_residual_beta)
        self.views = ParameterViews(module)
        self.parameters = list(module.parameters())
        self.several = theta is not None
        if theta is None:
            theta = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.decay = self.views.decay(alpha).to(theta)
        self._engine_class = (
            ClosedFormEngine if closed_form and has_closed_form(config) else Autograd
        )
        self.theta, self.gradient = theta, torch.zeros_like(theta)
        self.weights = self.views(theta)
        self._engine: Any = self._engine_class(self)
        if not self.several:
            gradients = self.views(self.gradient)
            for name, parameter in module.named_parameters():
                parameter.data, parameter.grad = self.weights[name], gradients[name]

    def predict(self, batch: Batch, weights: Parameters | None = None) -> Tensor:
        """Return the predictions for one batch, in the cheapest order."""
        weights, (beta, gamma) = weights or self.weights, self.strengths
        return forward(self.config, weights, batch.x, batch.mask, beta=beta, gamma=gamma)

    def batch_loss(self, batch: Batch, weights: Parameters | None = None) -> Tensor:
        """Return the weighted loss of one batch, without the penalty."""
        return self.loss(self.predict(batch, weights), batch.y, batch.weight, batch.mask)

    def samples_loss(self, batches: Any, read: Callable[[Tensor], Any] = float) -> Any:
        """Return the weighted loss of any samples, without penalty and gradient."""
        with torch.no_grad():
            return with_less_memory(
                batches, lambda: sum((read(self.batch_loss(batch)) for batch in batches), 0.0)
            )

    def validation_loss(self, valid: Any) -> Any:
        """Return the loss on the validation samples at the last evaluated point."""
        return self.samples_loss(valid)

    def penalty(self, read: Callable[[Tensor], Any] = float) -> Any:
        """Return the L2 penalty."""
        if self.alpha == 0:
            return 0.0
        return 0.5 * read((self.decay * self.theta * self.theta).sum(-1))

    def evaluate(self, read: Callable[[Tensor], Any] = float) -> Any:
        """Return the objective at `theta`, remembering what :meth:`differentiate` needs.

        In chunks the gradient is computed along, in the hope that this point is accepted:
        cheaper than a second forward pass, since most steps are. `read` turns a tensor of one
        number into a float, which waits for the device, or leaves tensors as they are.
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
            if self.several:
                raise torch.cuda.OutOfMemoryError("too many models side by side")
            if self.theta.is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("out of memory while a graph is captured")
            self._engine = None  # lets go of what it keeps
            self.batches.halve()
            self._engine = self._engine_class(self)

    def zero_frozen(self, *vectors: Tensor) -> None:
        """Zero the gradient (and other flat vectors) at parameters that a callback froze."""
        for vector in (self.gradient, *vectors):
            for parameter, piece in zip(self.parameters, self.views(vector).values(), strict=True):
                if not parameter.requires_grad:
                    piece.zero_()

    def gradient_norm(self) -> float:
        """Return the Euclidean norm of the gradient."""
        return float(torch.linalg.vector_norm(self.gradient))

    def gauss_newton_norm(self, max_iter: int = 30, tol: float = 1e-3) -> float:
        """Return ||J||^2 of the weighted mean loss: the largest Gauss-Newton eigenvalue.

        Power iteration on ``J^T W J``. For the log-loss the curvature of the loss in the
        predictions is bounded (1/4, 1/2).
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
        return self.loss.largest_curvature * eigenvalue + self.alpha

    def gauss_newton_product(self, vector: Tensor) -> Tensor:
        """Return ``J^T W J`` times a vector of parameters."""

        def of_batch(batch: Batch) -> Tensor:
            linearized = LinearizedBatch(self.module, batch.x, batch.mask)
            weights = output_weights(linearized.output, batch.weight, batch.mask)
            return linearized.gauss_newton_product(vector, lambda pushed: weights * pushed)

        zero = torch.zeros_like(vector)
        return self._in_chunks(lambda: sum((of_batch(batch) for batch in self.batches), zero))


class ClosedFormEngine:
    """Loss and gradient through :class:`ClosedForm`."""

    def __init__(self, objective: Objective) -> None:
        self.objective, self.batches = objective, objective.batches
        self.keeps = self.batches.keeps_graph
        target = objective.gradient if self.keeps else torch.zeros_like(objective.gradient)
        self.target, self.gradients = target, objective.views(target)
        # one per batch keeps intermediates until the gradient is asked for
        count = len(self.batches.row_sets) if self.keeps else 1
        self.layers = [ClosedForm(objective.config, *objective.strengths) for _ in range(count)]
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
            prediction = layer.forward(self.objective.weights)
            loss, slope = self.objective.loss.value_and_slope(
                prediction, batch.y, batch.weight, batch.mask
            )
            value = value + read(loss)
            if self.keeps:
                self.slopes.append(slope)
            else:
                layer.backward(slope, self.gradients)
        return value

    @torch.no_grad()
    def add_gradient(self) -> None:
        """Add the gradient at the last evaluated point."""
        if not self.keeps:
            self.objective.gradient.add_(self.target)
        for layer, slope in zip(self.layers, self.slopes, strict=False):
            layer.backward(slope, self.gradients)
        self.slopes = []


class Autograd:
    """Loss and gradient of any model through autograd."""

    def __init__(self, objective: Objective) -> None:
        self.objective, self.batches = objective, objective.batches
        self.leaf, self.loss = objective.theta, objective.theta  # with the graph
        self.flat: Tensor | None = None

    def evaluate(self, read: Callable[[Tensor], Any]) -> Any:
        """Return the loss, with the gradient pending."""
        self.flat = None
        if self.batches.keeps_graph:
            return read(self._loss(self.batches))
        value, self.flat = 0.0, torch.zeros_like(self.objective.theta)
        for batch in self.batches:
            value = value + read(self._loss([batch]))
            self.flat += self._gradient()
        return value

    def _loss(self, batches: Iterable[Batch]) -> Tensor:
        objective = self.objective
        self.leaf = objective.theta.detach().clone().requires_grad_()
        weights = objective.views(self.leaf)
        terms = [objective.batch_loss(batch, weights) for batch in batches]
        self.loss = terms[0] if len(terms) == 1 else torch.stack(terms).sum(0)
        return self.loss.detach()

    def _gradient(self) -> Tensor:
        (gradient,) = torch.autograd.grad(self.loss.sum(), self.leaf)
        self.loss = self.leaf  # lets go of the graph
        return gradient

    def add_gradient(self) -> None:
        """Add the gradient at the last evaluated point."""
        self.objective.gradient.add_(self._gradient() if self.flat is None else self.flat)
        self.flat = None

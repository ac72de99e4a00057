"""The training objectives of many models side by side, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sklearn_restf._data.batches import Batches
from sklearn_restf._model.initialization import is_weight
from sklearn_restf._model.losses import Loss, binary_log_loss, squared_error
from sklearn_restf._model.module import ModuleConfig
from sklearn_restf._training.problem import Problem
from sklearn_restf._training.sweep_fused import StackedLayer, is_supported
from sklearn_restf._training.sweep_module import ParameterViews, Strengths, forward


@dataclass
class StackedSamples:
    """The samples of S models: tokens, mask, targets and weights with a leading model axis."""

    x: Tensor
    mask: Tensor | None
    y: Tensor
    weight: Tensor

    def __getitem__(self, models: Any) -> StackedSamples:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return StackedSamples(**{k: None if v is None else v[models] for k, v in values.items()})


def stack(batches: Sequence[Batches]) -> StackedSamples:
    """Stack the samples of several models, filled up to equal numbers of samples and tokens.

    Samples that fill up are copies of the first one, with weight zero. The same `Batches`
    may come several times: it is read once.
    """
    read = {id(b): all_samples(b) for b in batches}
    T = max(samples.x.shape[1] for samples in read.values())
    n = max(len(samples.x) for samples in read.values())
    ragged = any(s.mask is not None or s.x.shape[1] < T for s in read.values())
    filled = {key: fill(samples, n, T, ragged=ragged) for key, samples in read.items()}
    of_models = [filled[id(b)] for b in batches]
    return StackedSamples(
        torch.stack([s.x for s in of_models]),
        torch.stack([s.mask for s in of_models if s.mask is not None]) if ragged else None,
        torch.stack([s.y for s in of_models]),
        torch.stack([s.weight for s in of_models]),
    )


def all_samples(batches: Batches) -> StackedSamples:
    """Return all samples of one model in one piece, in their order."""
    pieces = list(batches)
    if len(pieces) == 1:
        piece = pieces[0]  # in order: only several are sorted by length
        return StackedSamples(piece.x, piece.mask, piece.y, piece.weight)
    n, T = len(batches), max(piece.x.shape[1] for piece in pieces)
    parts = [
        fill(StackedSamples(p.x, p.mask, p.y, p.weight), len(p.x), T, ragged=True) for p in pieces
    ]
    rows = np.concatenate([np.arange(n)[piece.rows] for piece in pieces])
    order = torch.from_numpy(np.argsort(rows)).to(batches.device)
    whole = StackedSamples(
        *(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(StackedSamples))
    )
    return whole[order]


def fill(samples: StackedSamples, n: int, T: int, *, ragged: bool) -> StackedSamples:
    """Return n samples of T tokens."""
    index = torch.arange(n, device=samples.x.device)
    index = torch.where(index < len(samples.x), index, 0)
    weight = functional.pad(samples.weight, (0, n - len(samples.x)))
    x, y, extra = samples.x[index], samples.y[index], T - samples.x.shape[1]
    mask = None
    if ragged:
        mask = samples.mask
        if mask is None:
            mask = torch.ones(samples.x.shape[:2], dtype=torch.bool, device=x.device)
        mask = functional.pad(mask[index], (0, extra))
        x = functional.pad(x, (0, 0, 0, extra))
        if y.ndim == 3:
            y = functional.pad(y, (0, 0, 0, extra))
    return StackedSamples(x, mask, y, weight)


def losses_and_slopes(
    loss: Loss, prediction: Tensor, samples: StackedSamples
) -> tuple[Tensor, Tensor]:
    """Return the weighted loss of every model, and its derivative in the predictions.

    As :func:`sklearn_restf._model.losses.loss_and_slope` does for one model.
    """
    y, weight = samples.y, samples.weight
    weight = weight.view(*weight.shape, *[1] * (prediction.ndim - 2))
    if loss is squared_error:
        error = prediction - y
        if prediction.ndim == 4 and samples.mask is not None:
            error = torch.where(samples.mask[..., None], error, 0.0)
        slope = weight * error
        return 0.5 * exact_sum(error, slope), slope
    if loss is binary_log_loss:
        margin = -y * prediction
        return exact_sum(functional.softplus(margin), weight), -weight * y * torch.sigmoid(margin)
    shifted = prediction - prediction.detach().amax(2, keepdim=True)
    odds = shifted.exp()
    total = odds.sum(2, keepdim=True)
    of_samples = total.log() - (shifted * y).sum(2, keepdim=True)
    return exact_sum(of_samples, weight), weight * (odds / total - y)


def exact_sum(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of ``a b`` of every model, in float64 where the device has it."""
    if a.device.type != "mps":
        a, b = a.double(), b.double()
    return (a * b).flatten(1).sum(1)


class StackedObjective:
    """The objectives of S models of one shape.

    Parameters
    ----------
    config : ModuleConfig
        The shape that all models share.
    problems : list of Problem
        What each model is trained on; its config tells the residual strengths.
    loss : callable
        One of :mod:`sklearn_restf._model.losses`.
    alpha : float
        Strength of the L2 penalty.
    """

    def __init__(
        self, config: ModuleConfig, problems: Sequence[Problem], loss: Loss, alpha: float
    ) -> None:
        self.config, self.loss = config, loss
        self.views = ParameterViews(config)
        first = problems[0]
        self.dtype, self.device = first.dtype, first.device
        self.train = stack([problem.train for problem in problems])
        held_out = [problem.valid for problem in problems if problem.valid is not None]
        self.valid = stack(held_out) if held_out else None
        self.strengths = Strengths.of(
            self._vector([problem.config.residual_beta for problem in problems]),
            self._vector([problem.config.ffn_residual_beta for problem in problems]),
        )
        decay = [alpha * is_weight(name) for name in self.views.names]
        self._buffers: dict[str, Tensor] = {}
        self.decay = self._vector(np.repeat(decay, self.views.sizes))
        self._bind()

    def _vector(self, values: Sequence[float] | np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float64).to(self.dtype).to(self.device)

    def initial(self, problems: Sequence[Problem]) -> Tensor:
        """Return the initial parameters, (S, P)."""
        rows = [
            np.concatenate([problem.state[name].reshape(-1) for name in self.views.names])
            for problem in problems
        ]
        return torch.from_numpy(np.stack(rows)).to(self.dtype).to(self.device)

    def keep(self, models: Tensor) -> None:
        """Go on with some of the models only."""
        self.train = self.train[models]
        self.valid = None if self.valid is None else self.valid[models]
        self.strengths = self.strengths[models]
        self._bind()

    def _bind(self) -> None:
        self._layer: StackedLayer | None = None
        self._pending: list[tuple[Any, Tensor, Tensor]] = []  # rows, their point, their losses
        if is_supported(self.config):
            x, mask = self.train.x, self.train.mask
            self._layer = StackedLayer(self.config, self.strengths, x, mask, self._buffers)

    def value(self, theta_SP: Tensor) -> Tensor:
        """Return the objective (S,) of every model, remembering what :meth:`gradient` needs."""
        if self._layer is None:
            self._pending = []
            return self._value_for_autograd(theta_SP, slice(None))
        with torch.no_grad():
            prediction = self._layer.forward(self.views(theta_SP))
            value, self._slope = losses_and_slopes(self.loss, prediction, self.train)
        return value + self._penalty(theta_SP)

    def value_again(self, theta_KP: Tensor, rows: Tensor) -> Tensor:
        """Return the objective (K,) of some models, whose points :meth:`gradient` then uses."""
        if self._layer is None:
            return self._value_for_autograd(theta_KP, rows)
        with torch.no_grad():
            prediction = self._layer.forward_again(self.views(theta_KP), rows)
            value, slope = losses_and_slopes(self.loss, prediction, self.train[rows])
            self._slope[rows] = slope
        return value + self._penalty(theta_KP)

    def gradient(self, theta_SP: Tensor) -> Tensor:
        """Return the gradient (S, P) at the last evaluated points, `theta_SP`."""
        gradient = torch.empty_like(theta_SP)
        if self._layer is None:
            for rows, theta, value in self._pending:
                (gradient[rows],) = torch.autograd.grad(value.sum(), theta)
        else:
            with torch.no_grad():
                self._layer.backward(self._slope, self.views(gradient))
        return gradient.add_(self.decay * theta_SP)

    def _value_for_autograd(self, theta: Tensor, rows: Any) -> Tensor:
        theta = theta.detach().clone().requires_grad_()
        value = self._losses(theta, self.train[rows], self.strengths[rows])
        self._pending.append((rows, theta, value))
        return value.detach() + self._penalty(theta.detach())

    def _penalty(self, theta_SP: Tensor) -> Tensor:
        return 0.5 * (self.decay * theta_SP * theta_SP).sum(1)

    def _losses(self, theta: Tensor, samples: StackedSamples, strengths: Strengths) -> Tensor:
        prediction = forward(self.config, self.views(theta), strengths, samples.x, samples.mask)
        return losses_and_slopes(self.loss, prediction, samples)[0]

    def validation_loss(self, theta_SP: Tensor) -> Tensor:
        """Return the loss of every model on its validation samples, without penalty."""
        assert self.valid is not None
        with torch.no_grad():
            return self._losses(theta_SP, self.valid, self.strengths)

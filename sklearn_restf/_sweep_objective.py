"""The training objectives of many models side by side, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sklearn_restf._base import Problem
from sklearn_restf._batches import Batches
from sklearn_restf._losses import Loss, binary_log_loss, squared_error
from sklearn_restf._module import ModuleConfig
from sklearn_restf._state import is_weight
from sklearn_restf._sweep_fused import StackedLayer, is_supported, packed_samples
from sklearn_restf._sweep_module import ParameterViews, Strengths, forward


@dataclass
class StackedSamples:
    """The samples of S models: tokens, mask, targets and weights with a leading model axis."""

    x: Tensor
    mask: Tensor | None
    y: Tensor
    weight: Tensor

    def __getitem__(self, models: Tensor) -> StackedSamples:
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
    n += -n % packed_samples(T)
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
        piece = pieces[0]
        order = torch.as_tensor(np.argsort(np.arange(len(batches))[piece.rows], kind="stable"))
        whole = StackedSamples(piece.x, piece.mask, piece.y, piece.weight)
        return whole[order.to(piece.x.device)]
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


def losses(loss: Loss, prediction: Tensor, samples: StackedSamples) -> Tensor:
    """Return the weighted loss of every model, as :mod:`sklearn_restf._losses` does for one."""
    y = samples.y
    if loss is squared_error:
        error = prediction - y
        if prediction.ndim == 4 and samples.mask is not None:
            error = torch.where(samples.mask[..., None], error, 0.0)
        of_samples = 0.5 * (error * error).flatten(2).sum(2)
    elif loss is binary_log_loss:
        of_samples = functional.softplus(-y * prediction)[..., 0]
    else:
        of_samples = torch.logsumexp(prediction, dim=2) - (prediction * y).sum(2)
    weight = samples.weight
    if of_samples.device.type != "mps":
        of_samples, weight = of_samples.double(), weight.double()
    return (of_samples * weight).sum(1)


def slopes(loss: Loss, prediction: Tensor, samples: StackedSamples) -> Tensor:
    """Return the derivative of every model's loss in its predictions."""
    y, weight = samples.y, samples.weight
    weight = weight.view(*weight.shape, *[1] * (prediction.ndim - 2))
    if loss is squared_error:
        slope = weight * (prediction - y)
        if prediction.ndim == 4 and samples.mask is not None:
            slope = torch.where(samples.mask[..., None], slope, 0.0)
        return slope
    if loss is binary_log_loss:
        return -weight * y * torch.sigmoid(-y * prediction)
    return weight * (torch.softmax(prediction, dim=2) - y)


class StackedObjective:
    """The objectives of S models of one shape.

    Parameters
    ----------
    config : ModuleConfig
        The shape that all models share.
    problems : list of Problem
        What each model is trained on; its config tells the residual strengths.
    loss : callable
        One of :mod:`sklearn_restf._losses`.
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
        self.decay = torch.repeat_interleave(self._vector(decay), torch.tensor(self.views.sizes))
        self.decay = self.decay.to(self.device)
        self._bind()

    def _vector(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(self.dtype).to(self.device)

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
        self.strengths = replace(
            self.strengths, beta=self.strengths.beta[models], gamma=self.strengths.gamma[models]
        )
        self._bind()

    def _bind(self) -> None:
        self._layer = None
        if is_supported(self.config):
            x, mask = self.train.x, self.train.mask
            self._layer = StackedLayer(self.config, self.strengths, x, mask)

    def value(self, theta_SP: Tensor) -> Tensor:
        """Return the objective (S,) of every model, remembering what :meth:`gradient` needs."""
        if self._layer is None:
            theta_SP.requires_grad_()
            value = self._losses(theta_SP, self.train)
            self._pending = value
            value, theta_SP = value.detach(), theta_SP.detach()
        else:
            with torch.no_grad():
                prediction = self._layer.forward(self.views(theta_SP))
                value = losses(self.loss, prediction, self.train)
                self._pending = slopes(self.loss, prediction, self.train)
        self._decayed = self.decay * theta_SP
        return value + 0.5 * (self._decayed * theta_SP).sum(1)

    def gradient(self, theta_SP: Tensor) -> Tensor:
        """Return the gradient (S, P) at the last evaluated point, `theta_SP`."""
        if self._layer is None:
            (gradient,) = torch.autograd.grad(self._pending.sum(), theta_SP)
            return gradient.add_(self._decayed)
        gradient = torch.empty_like(theta_SP)
        with torch.no_grad():
            self._layer.backward(self._pending, self.views(gradient))
            return gradient.add_(self._decayed)

    def _losses(self, theta_SP: Tensor, samples: StackedSamples) -> Tensor:
        parameters = self.views(theta_SP)
        prediction = forward(self.config, parameters, self.strengths, samples.x, samples.mask)
        return losses(self.loss, prediction, samples)

    def validation_loss(self, theta_SP: Tensor) -> Tensor:
        """Return the loss of every model on its validation samples, without penalty."""
        assert self.valid is not None
        with torch.no_grad():
            return self._losses(theta_SP, self.valid)

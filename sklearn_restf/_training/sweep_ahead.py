"""Gradient descent on many models side by side that does not wait for the device.

What :mod:`sklearn_restf._training.cuda_graph` does for one model: a trial of all models is a fixed
sequence of operations on tensors of the device, captured as a graph on CUDA, replayed a number
of times, and what happened is read in one go. Here the device decides about stopping as well:
each model is frozen where it ends, and the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._training import cuda_graph
from sklearn_restf._training.gradient_descent import SHRINK, SMALLEST_RATE
from sklearn_restf._training.net import BLOW_UP
from sklearn_restf._training.sweep_descent import StackedDescent
from sklearn_restf._training.training_result import TrainingResult

REASONS = ("", "max_iter", "tol", "early_stopping", "diverged", "stationary", "stalled")
CODES = {reason: float(code) for code, reason in enumerate(REASONS)}


@dataclass
class State(cuda_graph.Tensors):
    """What the next trial depends on, on the device; one row, or one number, a model."""

    theta: Tensor
    gradient: Tensor
    velocity: Tensor
    best_theta: Tensor
    moving: Tensor  # bool: whether the velocity counts
    rate: Tensor
    loss: Tensor
    best_value: Tensor
    n_iter: Tensor  # steps taken
    reason: Tensor  # why the model has ended, 0 while it goes on
    criterion: Tensor  # what stopping watches, by iteration
    best_so_far: Tensor  # its running minimum

    def update(self, chosen: Tensor, **values: Tensor) -> None:
        """Put new values in place of those of the chosen models."""
        for name, new in values.items():
            old = getattr(self, name)
            torch.where(chosen.view(-1, *[1] * (old.ndim - 1)), new, old, out=old)


class DeviceStackedDescent(StackedDescent):
    """:class:`StackedDescent` whose trials are run ahead and read in batches."""

    def run(self) -> list[TrainingResult]:
        """Train until every model has ended."""
        self._prepare()
        while (self.reason == 0).any():
            self._run_ahead()
        state = self._now
        self.theta, self.best_theta = state.theta, state.best_theta
        self.rate = state.rate.cpu().numpy()
        self._graph = None  # with the memory it holds
        # NaN where a model did not get to
        self.best_iteration = np.where(np.isnan(self.criterion), np.inf, self.criterion).argmin(1)
        return [
            self._result(row, REASONS[int(code)], n_iter=int(self.iterations[row]))
            for row, code in enumerate(self.reason)
        ]

    def _prepare(self) -> None:
        """Evaluate the initial weights, put the state onto the device, and capture a trial."""
        S, n, device = len(self.theta), self.settings.max_iter, self.theta.device

        def numbers(values: Any) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float64).to(device)

        loss = self.objective.value(self.theta).double()
        gradient = self.objective.gradient(self.theta)
        valid = self.objective.valid is not None
        value = self.objective.validation_loss(self.theta).double() if valid else loss
        history = torch.full((S, n + 1), torch.inf, dtype=torch.float64, device=device)
        history[:, 0] = value
        reason = torch.where(torch.isfinite(loss), 0.0, CODES["diverged"]).double()
        self._now = State(
            theta=self.theta,
            gradient=gradient,
            velocity=self.velocity,
            best_theta=self.best_theta,
            moving=torch.zeros(S, dtype=torch.bool, device=device),
            rate=numbers(self.rate),
            loss=loss.clone(),
            best_value=torch.where(value < torch.inf, value, torch.inf),
            n_iter=torch.zeros(S, dtype=torch.int64, device=device),
            reason=reason,
            criterion=history,
            best_so_far=history.clone(),
        )
        self._first_loss = loss.clone()
        self._record = torch.empty((6, S), dtype=torch.float64, device=device)
        self.iterations, self.reason = np.zeros(S, dtype=int), reason.cpu().numpy()
        norm = gradient.norm(dim=1).double()
        self.losses[:, 0], self.norms[:, 0], self.criterion[:, 0] = (
            torch.stack([loss, norm, value]).cpu().numpy()
        )
        self._graph = cuda_graph.capture_where_it_pays(self._trial, self._now, n, device)

    def _run_ahead(self) -> None:
        """Run as many trials as there can be of use, and write down what happened."""
        left = self.settings.max_iter - self.iterations[self.reason == 0].min()
        count = max(1, min(cuda_graph.TRIALS, int(left)))
        run_trial = self._trial if self._graph is None else self._graph.replay
        records = cuda_graph.run_many(run_trial, self._record, count)
        for accepted, loss, norm, rate, value, reason in records.numpy():
            rows = np.flatnonzero(accepted)
            self.iterations[rows] += 1
            n = self.iterations[rows]
            self.rates[rows, n - 1] = rate[rows]
            self.losses[rows, n], self.norms[rows, n] = loss[rows], norm[rows]
            self.criterion[rows, n] = value[rows]
            self.reason = reason

    def _trial(self) -> None:
        """Try one step of every model; the device decides, and nothing is read back."""
        state, objective, momentum = self._now, self.objective, self.settings.momentum
        going, tried_rate = state.reason == 0, state.rate.clone()
        step = state.gradient * -state.rate.to(state.theta.dtype)[:, None]
        if momentum:
            pushed = torch.add(step, state.velocity, alpha=momentum)
            step = torch.where(state.moving[:, None], pushed, step)
        candidate = state.theta + step
        loss = objective.value(candidate).double()
        gradient = objective.gradient(candidate)
        accepted = going & (loss <= state.loss) if self.guarded else going
        state.update(accepted, theta=candidate, gradient=gradient, velocity=step)
        state.update(accepted, loss=loss, n_iter=state.n_iter + 1)
        # rejected: first without momentum, then with shorter and shorter steps
        shortened = torch.where(state.moving, state.rate, state.rate * SHRINK)
        stalled = going & ~accepted & ~state.moving & (shortened < SMALLEST_RATE)
        state.update(going, rate=torch.where(accepted, state.rate * self.growth, shortened))
        state.moving.copy_(accepted if momentum else torch.zeros_like(accepted))

        value = loss
        if objective.valid is not None:
            value = objective.validation_loss(state.theta).double()
        if self.keeps_best:
            improved = accepted & (value < state.best_value)
            state.update(improved, best_theta=state.theta, best_value=value)
        norm = state.gradient.norm(dim=1).double()
        ended = self._reasons_on_device(accepted, value, norm)
        ended = torch.where(stalled, CODES["stalled"], ended)
        state.update(going, reason=ended)
        numbers = accepted.double(), loss, norm, tried_rate, value, state.reason
        torch.stack(numbers, out=self._record)

    def _reasons_on_device(self, accepted: Tensor, value: Tensor, norm: Tensor) -> Tensor:
        """Say which models end with the step they have taken, and why, as codes."""
        state, settings = self._now, self.settings
        n, patience = state.n_iter[:, None], settings.n_iter_no_change
        here = torch.where(accepted[:, None], n, 0)  # an old value where no step was taken
        before = state.best_so_far.gather(1, (here - 1).clamp(min=0))[:, 0]
        entered = torch.where(accepted, value, state.criterion[:, 0])[:, None]
        state.criterion.scatter_(1, here, entered)
        best = torch.where(accepted, torch.fmin(before, value), state.best_so_far[:, 0])
        state.best_so_far.scatter_(1, here, best[:, None])

        ended = torch.where(state.n_iter == settings.max_iter, CODES["max_iter"], 0.0).double()
        tol = settings.tol
        if tol is not None and patience <= settings.max_iter:
            before = state.best_so_far.gather(1, (n - patience).clamp(min=0))[:, 0]
            window = n - torch.arange(patience, device=n.device)
            now = state.criterion.gather(1, window.clamp(min=0)).amin(1)
            done = (state.n_iter >= patience) & (before - now <= tol * before.abs())
            name = "tol" if self.objective.valid is None else "early_stopping"
            ended = torch.where(done, CODES[name], ended)
        if not self.guarded:
            limit = BLOW_UP * self._first_loss.clamp(min=1.0)
            bounded = state.loss <= limit  # which NaN is not
            ended = torch.where(bounded, ended, CODES["diverged"])
        if tol is not None:
            stationary = (norm == 0) & (ended == 0)
            ended = torch.where(stationary, CODES["stationary"], ended)
        return torch.where(accepted, ended, 0.0)

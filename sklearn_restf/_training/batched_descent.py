"""Gradient descent on one model or several that does not wait for the device after every step.

A GPU runs a small model's iteration in less time than Python takes to start its operations,
and every number read back makes both wait; on a CPU the same holds of several small models. Here
one trial of the step rule (candidate, loss, gradient, decision), of all models at once, is a fixed
sequence of operations on tensors of the device: on CUDA it is captured as a graph, replayed a
number of times, and what happened is read in one go. The device decides about steps and
stopping. Every model follows the trajectory it would follow alone, up to rounding, and is frozen
where it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._training import cuda_graph
from sklearn_restf._training.objective import Objective
from sklearn_restf._training.step_rule import DeviceStepRule, StepRule
from sklearn_restf._training.stopping import CODES, REASONS, DeviceStoppingRule
from sklearn_restf._training.training_result import TrainingResult, TrainingSettings

DEVICES = ("cuda",)  # where waiting costs more than a trial in vain
TRIALS = 32  # there at most so many between two readings
FEWEST_ITERATIONS = 16  # of a fit, for capture to pay


def pays_for_one(objective: Objective, valid: Any) -> bool:
    """Tell whether one model is trained faster by trials of fixed shapes, and can be."""
    # an objective of several processes waits for the others, and is a subclass
    plain, batches = type(objective) is Objective, objective.batches
    stays = batches.keeps_graph and batches.is_cached and (valid is None or valid.is_cached)
    return plain and objective.theta.device.type in DEVICES and stays


class Histories:
    """What is written down of S models, by iteration; NaN where a model did not get to."""

    def __init__(self, objective: Objective, settings: TrainingSettings, validated: bool) -> None:
        self.views, self.validated = objective.views, validated
        self.initial = objective.theta.view(-1, objective.theta.shape[-1]).clone()
        S, n = len(self.initial), settings.max_iter
        self.losses, self.norms = np.full((S, n + 1), np.nan), np.full((S, n + 1), np.nan)
        self.rates, self.criterion = np.full((S, n), np.nan), np.full((S, n + 1), np.nan)

    def result(
        self, model: int, reason: str, n_iter: int, *, last: Tensor, best: Tensor, rate: float
    ) -> TrainingResult:
        """Return what one model leaves behind; `last` and `best` are parameters."""
        visited = n_iter if reason == "diverged" and n_iter else n_iter + 1  # with a gradient
        kept_best = self.validated or reason in ("diverged", "interrupted")
        reached = self.criterion[model, : n_iter + 1]
        best_iteration = int(np.where(np.isnan(reached), np.inf, reached).argmin())
        losses = self.losses[model, : n_iter + 1].tolist()
        return TrainingResult(
            initial_state=self.views.state(self.initial[model]),
            state=self.views.state(best if kept_best else last),
            kept_best=kept_best,
            best_iteration=best_iteration,
            losses=losses,
            gradient_norms=self.norms[model, :visited].tolist(),
            learning_rates=self.rates[model, :n_iter].tolist(),
            validation_losses=reached[1:].tolist() if self.validated else [],
            stop_reason=reason,
            loss=losses[best_iteration if kept_best else -1],
            learning_rate=rate,
        )


class BatchedDescent:
    """Train all models of an objective, or its only one.

    Parameters
    ----------
    objective : Objective
        What to minimise: all its samples stay on the device.
    rules : sequence of StepRule
        The step rule of each model.
    settings : TrainingSettings
        The same for all.
    valid : Batches, StackedSamples or None
        Validation samples.
    velocity : Tensor, optional
        The last step of each model, to go on with.
    """

    def __init__(
        self,
        objective: Objective,
        rules: Sequence[StepRule],
        settings: TrainingSettings,
        valid: Any = None,
        velocity: Tensor | None = None,
    ) -> None:
        self.objective, self.settings, self.valid = objective, settings, valid
        self.histories = Histories(objective, settings, valid is not None)
        self.rule = DeviceStepRule.of(list(rules), objective.theta.device)
        shape = self.histories.initial.shape
        self.theta, self.gradient = objective.theta.view(shape), objective.gradient.view(shape)
        start = torch.zeros_like(self.theta) if velocity is None else velocity
        self.velocity = start.view(shape).clone()
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> list[TrainingResult]:
        """Train until every model has ended."""
        self.start()
        for _ in self.iterations():
            pass
        return self.results()

    def start(self) -> None:
        """Visit the initial points, and capture a trial."""
        objective, histories = self.objective, self.histories
        self.loss = objective.evaluate(as_tensor).double().view(-1)
        objective.differentiate()
        criterion = self._criterion(self.loss)
        self.best_theta = self.theta.clone()
        self.best_value = torch.where(criterion < torch.inf, criterion, torch.inf)
        self.stopping = DeviceStoppingRule(
            self.settings, validated=self.valid is not None, first=self.loss, criterion=criterion
        )
        self.reason = torch.where(torch.isfinite(self.loss), 0.0, CODES["diverged"]).double()
        self.record = self.loss.new_empty((6, len(self.loss)))
        numbers = torch.stack([self.loss, self._norm(), criterion]).cpu().numpy()
        histories.losses[:, 0], histories.norms[:, 0], histories.criterion[:, 0] = numbers
        self.n_iter = np.zeros(len(self.loss), dtype=int)
        self.ended = self.reason.cpu().numpy()
        self.ahead = TRIALS if self.theta.device.type in DEVICES else 1
        if self.theta.device.type == "cuda" and self.settings.max_iter >= FEWEST_ITERATIONS:
            before = self._snapshot()
            self.graph = cuda_graph.capture(self._trial, self.theta.device)
            self._restore(before)

    def iterations(self) -> Iterator[int]:
        """Run trials, many at a time; yield the largest number of iterations taken after each.

        Where trials run ahead, an interrupt leaves the state before those that were not read.
        """
        while (self.ended == 0).any():
            left = self.settings.max_iter - self.n_iter[self.ended == 0].min()
            count = max(1, min(self.ahead, int(left)))
            records = self.record.new_empty((count, *self.record.shape))
            # where every trial is read, an interrupt ends the whole search: nothing to go back to
            before = self._snapshot() if self.ahead > 1 else None
            counts = self.n_iter.copy(), self.ended
            try:
                for row in records:
                    self._trial() if self.graph is None else self.graph.replay()
                    row.copy_(self.record)
                taken = [self._write_down(record) for record in records.cpu().numpy()]
            except BaseException:
                if before is not None:
                    self.n_iter, self.ended = counts
                    self._restore(before)
                raise
            yield from taken

    def _write_down(self, record: np.ndarray) -> int:
        accepted, loss, norm, rate, criterion, self.ended = record
        rows, histories = np.flatnonzero(accepted), self.histories
        self.n_iter[rows] += 1
        n = self.n_iter[rows]
        histories.rates[rows, n - 1] = rate[rows]
        histories.losses[rows, n], histories.norms[rows, n] = loss[rows], norm[rows]
        histories.criterion[rows, n] = criterion[rows]
        return int(self.n_iter.max())

    def results(self, reason: str = "") -> list[TrainingResult]:
        """Return what the models leave behind; a reason counts for those that have not ended."""
        self.graph = None  # with the memory it holds
        rates = self.rule.rate.cpu().tolist()
        return [
            self.histories.result(
                i,
                REASONS[int(code)] or reason,
                int(self.n_iter[i]),
                last=self.theta[i],
                best=self.best_theta[i],
                rate=rates[i],
            )
            for i, code in enumerate(self.ended)
        ]

    def _state(self) -> list[Tensor]:
        """Return all that a trial changes and the next depends on."""
        state = [self.theta, self.gradient, self.velocity, self.loss, self.reason]
        state += [self.best_theta, self.best_value, self.rule.rate, self.rule.moving]
        stopping = self.stopping
        return [*state, stopping.n_iter, stopping.criterion, stopping.best_so_far]

    def _snapshot(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self._state()]

    def _restore(self, before: list[Tensor]) -> None:
        for tensor, value in zip(self._state(), before, strict=True):
            tensor.copy_(value)

    def _trial(self) -> None:
        """Try one step of every model; the device decides, and nothing is read back."""
        objective, rule = self.objective, self.rule
        origin, gradient = self.theta.clone(), self.gradient.clone()
        going, rate = self.reason == 0, rule.rate.clone()
        step = rule.step(gradient, self.velocity)
        torch.add(origin, step, out=self.theta)
        loss = objective.evaluate(as_tensor).double().view(-1)
        objective.differentiate()
        accepted, stalled = rule.judge(self.loss, loss, going)
        rows = accepted[:, None]
        for new, old in ((self.theta, origin), (self.gradient, gradient)):
            torch.where(rows, new, old, out=new)
        torch.where(rows, step, self.velocity, out=self.velocity)
        torch.where(accepted, loss, self.loss, out=self.loss)

        criterion, norm = self._criterion(loss), self._norm()
        improved = accepted & (criterion < self.best_value)
        torch.where(improved[:, None], self.theta, self.best_theta, out=self.best_theta)
        torch.where(improved, criterion, self.best_value, out=self.best_value)
        reason = self.stopping.after(loss, norm, criterion, accepted)
        reason = torch.where(stalled, CODES["stalled"], reason)
        torch.where(going, reason, self.reason, out=self.reason)
        numbers = accepted.double(), loss, norm, rate, criterion, self.reason
        torch.stack(numbers, out=self.record)

    def _criterion(self, loss: Tensor) -> Tensor:
        if self.valid is None:
            return loss
        return self.objective.samples_loss(self.valid, as_tensor).double().view(-1)

    def _norm(self) -> Tensor:
        return torch.linalg.vector_norm(self.gradient, dim=-1).double()


def as_tensor(value: Tensor) -> Tensor:
    """Return a number as it is, on its device, so that nothing waits for it."""
    return value

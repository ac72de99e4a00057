"""Gradient descent on many models side by side.

Every model follows the trajectory it would follow alone (see
:class:`sklearn_restf._training.gradient_descent.GradientDescent` and the stopping rules of
:mod:`sklearn_restf._training.net`), up to rounding. All are at the same iteration: models whose
step is rejected try again, by themselves, until it is accepted; then one gradient serves all.
Finished models leave.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._model.initialization import NumpyState
from sklearn_restf._training.gradient_descent import GROWTH, SHRINK, SMALLEST_RATE
from sklearn_restf._training.net import BLOW_UP
from sklearn_restf._training.sweep_objective import StackedObjective
from sklearn_restf._training.training_result import TrainingResult, TrainingSettings


class StackedDescent:
    """Train all models of an objective.

    Parameters
    ----------
    objective : StackedObjective
        What to minimise.
    theta : Tensor of shape (S, P)
        Initial parameters.
    rates : ndarray of shape (S,)
        Initial learning rates.
    settings : TrainingSettings
        Step rule and stopping rule, the same for all models.
    """

    def __init__(
        self,
        objective: StackedObjective,
        theta: Tensor,
        rates: np.ndarray,
        settings: TrainingSettings,
    ) -> None:
        S, n = len(theta), settings.max_iter
        self.objective, self.settings = objective, settings
        self.guarded = isinstance(settings.learning_rate, str)
        self.growth = GROWTH if settings.learning_rate == "adaptive" else 1.0
        # of the models still there
        self.model = np.arange(S)
        self.theta, self.velocity = theta, torch.zeros_like(theta)
        self.gradient = torch.zeros_like(theta)
        self.rate, self.moving = rates.astype(np.float64), np.zeros(S, dtype=bool)
        # the best weights are kept where the last ones need not be the best
        self.keeps_best = objective.valid is not None or not self.guarded
        self.best_theta, self.best_value = theta.clone(), np.full(S, np.inf)
        # of all models, by iteration; NaN where a model did not get to
        self.initial, self.n_iter = theta.clone(), 0
        self.losses, self.norms = np.full((S, n + 1), np.nan), np.full((S, n + 1), np.nan)
        self.rates, self.criterion = np.full((S, n), np.nan), np.full((S, n + 1), np.nan)
        self.best_so_far = np.full((S, n + 1), np.nan)  # running minimum of the criterion
        self.best_iteration = np.zeros(S, dtype=int)
        self.results: list[TrainingResult | None] = [None] * S

    def run(self) -> list[TrainingResult]:
        """Train until every model has ended."""
        loss = self.objective.value(self.theta).cpu().numpy()
        self._differentiate(loss)
        self._finish(np.where(np.isfinite(loss), "", "diverged"))
        while len(self.model):
            if self.settings.tol is not None and self.n_iter > 0:
                stationary = self.norms[self.model, self.n_iter] == 0
                self._finish(np.where(stationary, "stationary", ""))
            if len(self.model):
                self._iterate()
        return self.results  # type: ignore[return-value]

    def _differentiate(self, loss: np.ndarray) -> None:
        """Enter the loss at the last evaluated points, and the gradient there."""
        self.gradient = self.objective.gradient(self.theta)
        models, n = self.model, self.n_iter
        self.losses[models, n] = loss
        self.norms[models, n] = self.gradient.norm(dim=1).cpu().numpy()
        self._criterion(loss)

    def _iterate(self) -> None:
        """Take one step of every model."""
        momentum = self.settings.momentum
        step = self.gradient * self._column(-self.rate)
        if self.moving.any():
            step = torch.addcmul(step, self.velocity, self._column(momentum * self.moving))
        candidate = self.theta + step
        loss = self.objective.value(candidate).cpu().numpy().copy()
        stalled = self._shorten(step, candidate, loss) if self.guarded else np.zeros(0, dtype=int)
        if len(stalled):
            reason = np.full(len(self.model), "", dtype="<U16")
            reason[stalled] = "stalled"
            self._finish(reason)
            if not len(self.model):
                return
            kept = np.flatnonzero(reason == "")
            step, candidate, loss = step[kept], candidate[kept], loss[kept]
            self.objective.value(candidate)  # for the gradient, without those that left
        self.theta, self.velocity = candidate, step
        self.moving[:] = momentum > 0
        self.n_iter += 1
        self.rates[self.model, self.n_iter - 1] = self.rate
        self._differentiate(loss)
        self.rate *= self.growth
        self._finish(self._reasons(loss))

    def _shorten(self, step: Tensor, candidate: Tensor, loss: np.ndarray) -> np.ndarray:
        """Try rejected steps again, changing the arguments; return the rows that give up.

        First without momentum, then shorter and shorter.
        """
        current = self.losses[self.model, self.n_iter]
        stalled = np.zeros(len(loss), dtype=bool)
        rejected = np.flatnonzero(~(loss <= current))  # NaN as well
        while len(rejected):
            shorten = rejected[~self.moving[rejected]]
            self.rate[shorten] *= SHRINK
            stalled[shorten] = self.rate[shorten] < SMALLEST_RATE
            self.moving[rejected] = False
            rejected = rejected[~stalled[rejected]]
            if not len(rejected):
                break
            rows = torch.from_numpy(rejected).to(self.theta.device)
            step[rows] = self.gradient[rows] * self._column(-self.rate[rejected])
            candidate[rows] = self.theta[rows] + step[rows]
            loss[rejected] = self.objective.value_again(candidate[rows], rows).cpu().numpy()
            rejected = rejected[~(loss[rejected] <= current[rejected])]
        return np.flatnonzero(stalled)

    def _reasons(self, loss: np.ndarray) -> np.ndarray:
        """Say which models end with the step that was just taken, and why."""
        settings, models, n = self.settings, self.model, self.n_iter
        ended = np.full(len(models), "max_iter" if n == settings.max_iter else "", dtype="<U16")
        patience = settings.n_iter_no_change
        if settings.tol is not None and n >= patience:
            before = self.best_so_far[models, n - patience]
            now = self.criterion[models, n - patience + 1 : n + 1].min(axis=1)
            done = before - now <= settings.tol * np.abs(before)
            ended[done] = "tol" if self.objective.valid is None else "early_stopping"
        if not self.guarded:
            limit = BLOW_UP * np.maximum(self.losses[models, 0], 1.0)
            ended[~(loss <= limit)] = "diverged"
        return ended

    def _criterion(self, value: np.ndarray) -> None:
        """Enter what stopping watches, and keep the best weights."""
        models, n = self.model, self.n_iter
        if self.objective.valid is not None:
            value = self.objective.validation_loss(self.theta).cpu().numpy()
        self.criterion[models, n] = value
        before = self.best_so_far[models, n - 1] if n else value
        self.best_so_far[models, n] = np.fmin(before, value)
        improved = value < self.best_value
        self.best_value[improved] = value[improved]
        self.best_iteration[models[improved]] = n
        if self.keeps_best and improved.any():
            index = torch.from_numpy(np.flatnonzero(improved)).to(self.theta.device)
            self.best_theta[index] = self.theta[index]

    def _finish(self, reason: np.ndarray) -> None:
        """Write down the results of the models with a reason to end, and drop them."""
        ended = reason != ""
        if not ended.any():
            return
        for row in np.flatnonzero(ended):
            result = self._result(int(row), str(reason[row]), n_iter=self.n_iter)
            self.results[self.model[row]] = result
        kept = np.flatnonzero(~ended)
        self.model, self.rate, self.moving = self.model[kept], self.rate[kept], self.moving[kept]
        self.best_value = self.best_value[kept]
        if not len(kept):
            return
        index = torch.from_numpy(kept).to(self.theta.device)
        self.theta, self.velocity = self.theta[index], self.velocity[index]
        self.gradient, self.best_theta = self.gradient[index], self.best_theta[index]
        self.objective.keep(index)

    def _result(self, row: int, reason: str, *, n_iter: int) -> TrainingResult:
        """Return what one model leaves behind, as :class:`FullBatchNet` would."""
        model, n = self.model[row], n_iter
        visited = n if reason == "diverged" and n else n + 1  # points whose gradient was kept
        kept_best = self.objective.valid is not None or reason == "diverged"
        return TrainingResult(
            initial_state=self._state(self.initial[model]),
            state=self._state(self.best_theta[row] if kept_best else self.theta[row]),
            kept_best=kept_best,
            best_iteration=int(self.best_iteration[model]),
            losses=self.losses[model, : n + 1].tolist(),
            gradient_norms=self.norms[model, :visited].tolist(),
            learning_rates=self.rates[model, :n].tolist(),
            validation_losses=(
                [] if self.objective.valid is None else self.criterion[model, 1 : n + 1].tolist()
            ),
            stop_reason=reason,
            learning_rate=float(self.rate[row]),
        )

    def _state(self, theta: Tensor) -> NumpyState:
        """Return one flat vector as named arrays."""
        parameters = self.objective.views(theta.detach()[None])
        return {name: value[0].cpu().numpy().copy() for name, value in parameters.items()}

    def _column(self, values: np.ndarray) -> Tensor:
        """Return one number per model as a column."""
        return torch.from_numpy(values).to(self.theta.dtype).to(self.theta.device)[:, None]
